"""What a tape's logs say of messages and collectives, with the times that a tracer has seen."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np

from ..mpi.collective_calls import Performed
from ..mpi.log import Communication, Log
from ..mpi.messages import ALL, Received, Route, Sent
from ..tape import Tape
from .plain import COLLECTIVE, FETCHED, RECEIVED, SENT, WRITTEN
from .tracer import COMMUNICATION, STAMP, TracedRecords, Tracer, access_of


def harvest(tracer: Tracer, tape: Tape) -> None:
    """Take from a tape what it knows of its communication; a sweep that comes later replaces it."""
    records = tape.records
    traced = isinstance(records, TracedRecords)
    tracer.messages[records.number if traced else -1] = array("q", chain.from_iterable(of_tape(tracer, tape)))
    if traced:
        records.harvested = True


def unseen_receives(tape: Tape) -> list[Received]:
    """Receives of which no record says that they have ended: a sweep sends their adjoints before its first record."""
    communication = tape.sweep_starts.get("communication")
    return list(communication.unseen) if isinstance(communication, Communication) else []


def of_tape(tracer: Tracer, tape: Tape) -> Iterable[tuple]:
    """Messages and collective calls of a tape.

    Yields
    ------
    tuple
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
        yield from _of_log(tracer, log, traced)
        for call in log.collectives:
            if isinstance(call, Performed):
                yield _collective(tracer, log, call, traced)
    yield from _of_windows(tracer, tape, traced)


def _of_log(tracer: Tracer, log: Log, traced: TracedRecords | None) -> Iterable[tuple]:
    stamps = () if traced is None else traced.stamps.get(id(log), ())
    swept, passages, completed = (
        ({}, array("q"), {}) if traced is None else (traced.swept, traced.passages, traced.completed)
    )
    identity, sites, many = log.reverse.identity, tracer.sites, len(stamps) // STAMP
    sizes: dict[Any, int] = {}  # bytes of an element
    routes: dict[int, tuple[int, int, int, str]] = {}  # the messages of a loop have theirs in common
    for k, message in enumerate(log.messages):
        known = routes.get(id(message.route))
        if known is None:
            known = routes[id(message.route)] = _of_route(tracer, log, message.route)
        partner, tag, site, line = known
        if partner < 0 or message.void:
            continue
        begin, end = 0, 0
        if k < many and sites[stamps[STAMP * k]][0] == line:  # a call that is traced
            site, begin, end = stamps[STAMP * k : STAMP * (k + 1)]
        back, buffer = -1, message.buffer
        if message.back is not None and buffer is not None:
            size = sizes.get(buffer.dtype)
            if size is None:
                size = sizes[buffer.dtype] = np.dtype(buffer.dtype).itemsize
            back = buffer.count * size
        number = id(message)
        place = swept.get(number)
        left, came = (0, 0) if place is None else (passages[place], passages[place + 1])
        nbytes = -1 if message.nbytes == ALL else message.nbytes
        kind = SENT if isinstance(message, Sent) else RECEIVED
        yield kind, identity, partner, tag, nbytes, site, begin, completed.get(number, end), left, came, back


def _of_route(tracer: Tracer, log: Log, route: Route) -> tuple[int, int, int, str]:
    """Partner in the world (less than 0: none, or of a program that was spawned), tag, site, and its line."""
    partner = log.reverse.in_world(route.partner)[0] if route.partner >= 0 else -1
    site = tracer.number(route.code, route.instruction, route.name, COMMUNICATION)
    return partner, route.tag, site, tracer.sites[site][0]


def _collective(tracer: Tracer, log: Log, call: Performed, traced: TracedRecords | None) -> tuple:
    site = -1 if traced is None else traced.sites.get(id(call), -1)
    if site < 0:
        site = tracer.number(*call.where, call.name, COMMUNICATION)
    nbytes = sum(buffer.nbytes for buffer in call.call.reads)
    swept = (0, 0) if traced is None else traced.passage(call)
    back = sum(buffer.nbytes for buffer in call.call.writes) if call.happening else -1
    return COLLECTIVE, log.reverse.identity, -1, 0, nbytes, site, 0, 0, *swept, back


def _of_windows(tracer: Tracer, tape: Tape, traced: TracedRecords | None) -> Iterable[tuple]:
    """One-sided operations: what went to the target, and what came from there."""
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
