"""Extraction of messages and collectives from a tape's logs, with the times that a tracer has recorded."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ..mpi.collectives.collective_calls import Performed
from ..mpi.log.log import Communication, Log
from ..mpi.log.messages import ALL, Received, Route, Sent
from ..tape import Tape
from .events import COMMUNICATION, MESSAGE, STAMP, rows_of
from .plain import COLLECTIVE, FETCHED, RECEIVED, SENT, WRITTEN
from .traced_records import TracedRecords, access_of

if TYPE_CHECKING:
    from .tracer import Tracer


def harvest(tracer: Tracer, tape: Tape) -> None:
    """Read a tape's communication into the tracer; a later sweep replaces it."""
    records = tape.records
    traced = isinstance(records, TracedRecords)
    found = tracer.messages[records.number if traced else -1] = array("q")
    for rows in of_tape(tracer, tape):
        found.frombytes(rows.tobytes())
    if traced:
        records.harvested = True


def unseen_receives(tape: Tape) -> list[Received]:
    """Return receives without a record of their completion: a sweep sends their adjoints before its first record."""
    communication = tape.sweep_starts.get("communication")
    return list(communication.unseen) if isinstance(communication, Communication) else []


def of_tape(tracer: Tracer, tape: Tape) -> Iterable[np.ndarray]:
    """Iterate over messages and collective calls of a tape, in tables.

    Yields
    ------
    array of int64, shape (any, MESSAGE)
        `SENT`, `RECEIVED`, `COLLECTIVE`, `WRITTEN` or `FETCHED`; identity of the communicator; this rank's partner in
        the world (-1: all); tag; bytes; site; begin and end of the call (0: not known), the same in the sweep; bytes of
        the adjoint (-1: there is none, or no sweep has run).
    """
    communication = tape.sweep_starts.get("communication")
    if not isinstance(communication, Communication):
        return
    records = tape.records
    traced = records if isinstance(records, TracedRecords) else None
    for log in communication.logs.values():
        if log.reverse is None:
            continue
        tracer.comms[log.reverse.identity] = log.reverse.name
        if log.messages:
            yield _of_log(tracer, log, traced)
        performed = (call for call in log.collectives if isinstance(call, Performed))
        yield _table([_collective(tracer, log, call, traced) for call in performed])
    yield _table(_of_windows(tracer, tape, traced))


def _table(found: Iterable[tuple]) -> np.ndarray:
    return np.array(list(found), np.int64).reshape(-1, MESSAGE)


_details = attrgetter("route", "buffer", "void", "nbytes", "back")


def _of_log(tracer: Tracer, log: Log, traced: TracedRecords | None) -> np.ndarray:
    """Return a table with a row for each message of a log.

    There may be tens of thousands, and the program waits meanwhile, so all of them are processed at once where
    possible.  The messages of a loop share routes and buffers.
    """
    messages = log.messages
    several, kinds = len(messages), list(map(type, messages))
    try:
        routes, buffers, void, sizes, backs = zip(*map(_details, messages))
    except AttributeError:  # no sweep has run
        routes, buffers, void = zip(*((message.route, message.buffer, message.void) for message in messages))
        sizes, backs = [getattr(message, "nbytes", ALL) for message in messages], repeat(None, several)
    is_sent = {cls: SENT if issubclass(cls, Sent) else RECEIVED for cls in set(kinds)}
    lines_of = {number: _of_route(tracer, log, route) for number, route in dict(zip(map(id, routes), routes)).items()}
    nbytes_of = {number: _nbytes(buffer) for number, buffer in dict(zip(map(id, buffers), buffers)).items()}

    table = np.zeros((several, MESSAGE), np.int64)
    table[:, 0] = np.fromiter(map(is_sent.__getitem__, kinds), np.int64, several)
    table[:, 1] = log.reverse.identity
    which = dict(zip(lines_of, range(several)))
    of_routes = np.array(list(lines_of.values()), np.int64)
    of_routes = of_routes[np.fromiter(map(which.__getitem__, map(id, routes)), np.int64, several)]
    table[:, (2, 3, 5)] = of_routes[:, :3]
    table[:, 4] = np.array(sizes, np.int64)
    table[table[:, 4] == ALL, 4] = -1
    table[:, 10] = np.fromiter(map(nbytes_of.__getitem__, map(id, buffers)), np.int64, several)
    table[[back is None for back in backs], 10] = -1
    if traced is not None:
        stamps = rows_of(traced.stamps.get(id(log), array("q")), STAMP)
        _add_times(table, tracer, traced, list(map(id, messages)), of_routes[:, 3], stamps)
    return table[(table[:, 2] >= 0) & ~np.array(void, bool)]


def _nbytes(buffer: Any) -> int:
    return -1 if buffer is None else buffer.count * np.dtype(buffer.dtype).itemsize


def _add_times(
    table: np.ndarray,
    tracer: Tracer,
    traced: TracedRecords,
    numbers: list[int],
    lines: np.ndarray,
    stamps: np.ndarray,
) -> None:
    """Enter begin and end of messages, the same in the sweep, and the sites of those whose calls were traced.

    Parameters
    ----------
    numbers : list of int
        The ids of the messages.
    lines : array of int
        The numbers of their lines.
    """
    stamps = stamps[: len(table)]
    of_calls = np.fromiter(map(tracer.lines.__getitem__, stamps[:, 0].tolist()), np.int64, len(stamps))
    seen = np.flatnonzero(of_calls == lines[: len(stamps)])
    table[seen, 5:8] = stamps[seen]
    if traced.completed:
        ended = np.fromiter(map(traced.completed.get, numbers, repeat(0)), np.int64, len(numbers))
        table[:, 7] = np.where(ended, ended, table[:, 7])
    if traced.swept:
        places = np.fromiter(map(traced.swept.get, numbers, repeat(-1)), np.int64, len(numbers))
        passages = np.array(traced.passages, np.int64)
        swept = np.flatnonzero(places >= 0)
        table[swept, 8], table[swept, 9] = passages[places[swept]], passages[places[swept] + 1]


def _of_route(tracer: Tracer, log: Log, route: Route) -> tuple[int, int, int, int]:
    """Return the partner in the world (negative: none, or in a spawned program), tag, site, and number of its line."""
    partner = log.reverse.in_world(route.partner)[0] if route.partner >= 0 else -1
    site = tracer.number(route.code, route.instruction, route.name, COMMUNICATION)
    return partner, route.tag, site, tracer.lines[site]


def _collective(tracer: Tracer, log: Log, call: Performed, traced: TracedRecords | None) -> tuple:
    site = -1 if traced is None else traced.sites.get(id(call), -1)
    if site < 0:
        site = tracer.number(*call.where, call.name, COMMUNICATION)
    nbytes = sum(buffer.nbytes for buffer in call.call.reads)
    swept = (0, 0) if traced is None else traced.passage(call)
    back = sum(buffer.nbytes for buffer in call.call.writes) if call.happening else -1
    return COLLECTIVE, log.reverse.identity, -1, 0, nbytes, site, 0, 0, *swept, back


def _of_windows(tracer: Tracer, tape: Tape, traced: TracedRecords | None) -> Iterable[tuple]:
    """Iterate over the transfers of one-sided operations, to the target and from it."""
    traces = getattr(tape.sweep_starts.get("windows"), "of", None)
    for access in filter(None, map(access_of, tape.records)) if traces else ():
        reverse, target = access.window.reverse, access.target
        tracer.comms[reverse.identity] = reverse.name
        site, begin, end = -1, 0, 0
        swept = (0, 0)
        if traced is not None:
            site, begin, end = traced.accesses.get(id(access), (-1, 0, 0))
            swept = traced.passage(access)
        if site < 0:
            site = tracer.number(*access.where, access.name, COMMUNICATION)
        nbytes = target.count * target.dtype.itemsize
        happens = traces[access.window].token.happening
        (partner,) = reverse.in_world(target.rank)
        fetches = access.op is None or access.name.startswith(("Get_", "Rget_", "Fetch_"))
        for kind, takes_part, has_adjoint in (
            (WRITTEN, access.updates, access.origin is not None),
            (FETCHED, fetches, access.result is not None),
        ):
            if takes_part:
                back = nbytes if has_adjoint and happens else -1
                yield kind, reverse.identity, partner, 0, nbytes, site, begin, end, *swept, back
