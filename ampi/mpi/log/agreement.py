"""Agreement: at the beginning of a sweep the ranks exchange their logs, and thus know which transfers are reversed.

Each pair of ranks that exchanged messages exchanges the lists of them, and the ranks of each communicator the list of
its collectives; then all know for each whether an adjoint is sent back.  The agreement holds for later sweeps of the
tape; only the number of directions, in vector mode, is exchanged each time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ..base.call_sites import line_of
from ..base.rules import TABLE
from ..waiting.deadlocks import Whom
from ..waiting.notices import stranded
from ..waiting.waiting import Patience
from .early import Early, meeting_place
from .matching import Columns, match_received, match_sent, received_columns, sent_columns
from .messages import Collective, Received, Sent
from .reverse import AGREEMENT_TAG, COLLECTIVE_AGREEMENT_TAG, Reverse
from .size_agreement import compare_pairs, sizes_of, unequal_lengths

if TYPE_CHECKING:
    from .log import Log


def agree(logs: Iterable[Log], directions: int, early: Early) -> bool | None:
    """Exchange the logs with all partners at once, in no particular order; then compare them.

    ``directions`` is the number of directions of a sweep in vector mode; 0 for other sweeps.

    Returns
    -------
    bool or None
        True if sweeps skip the records made before anything was watched; None if the earlier agreement still holds.
    """
    problems: list[str] = []
    exchanges = []
    is_new = False
    numbers: dict[tuple[Any, int], int] = {}  # of the messages sent so far, by channel and partner
    for log in sorted(logs, key=lambda log: log.reverse.turn):
        sent_to, received_from = log.by_partner()
        for partner in sorted(sent_to.keys() | received_from.keys()):
            sent, got = sent_to[partner], received_from[partner]
            place = log.reverse.channel, partner
            first = numbers.get(place, 0)
            numbers[place] = first + len(sent)
            if log.agreed.get(partner) != (len(sent), len(got)):
                exchanges.append(_agree_messages(log, partner, sent, got, first, directions, early, problems))
                is_new = True
            elif directions:
                exchanges.append(_agree_messages(log, partner, [], [], first, directions, early, problems))
        if log.agreed_collectives != (len(log.collectives), log.passive):
            exchanges.append(_agree_collectives(log, log.collectives, directions, early, problems))
            is_new = True
        elif directions and (log.collectives or log.passive):
            exchanges.append(_agree_collectives(log, [], directions, early, problems))
    _drive(exchanges, problems)
    if problems:
        raise CommunicationError("\n".join(problems))
    return _leave_out(early) if is_new else None


def _leave_out(early: Early) -> bool:
    """Agree whether all records made before anything was watched carry no derivative."""
    size = mpi.COMM_WORLD.Get_size()
    if size == 1:
        return early.holds
    log = meeting_place(early.met) if early.some else None
    if log is None:
        early.holds = early.holds and not early.met
        if not early.edges:
            return early.holds
    found: list[bool] = []

    def steps() -> Generator[None]:
        found.append((yield from _ask_all(log, early) if log is not None else _ask_partners(early, size - 1)))

    reverse = early.edges[0][0] if log is None else log.reverse
    what = f"the agreement on {reverse.name} about what was recorded before anything was watched"
    _drive([_Exchange(steps(), (reverse, None), lambda: what)], [])
    return found[0]


def _ask_all(log: Log, early: Early) -> Generator[None, None, bool]:
    """Ask all ranks of a communicator."""
    mine = np.array([[log.reverse.identity, not early.holds, 0]], np.int64)
    found = yield from _most(log.reverse, mine)
    return not found[0, 1]


def _ask_partners(early: Early, rounds: int) -> Generator[None, None, bool]:
    """Ask all ranks that messages connect with this one: partners ask partners."""
    holds = early.holds
    for _ in range(rounds):
        going = []
        for reverse, partner in early.edges:
            mine = np.array([reverse.identity, not holds, 0], np.int64)
            going.append((reverse.comm.Isend(mine, partner, AGREEMENT_TAG), mine))
        for reverse, partner in early.edges:
            theirs = yield from _rows_from(reverse, reverse.comm, partner, AGREEMENT_TAG, 3)
            holds = holds and not theirs[0, 1]
        for request, _ in going:
            while not request.Test():
                yield
    return holds


_AFTER_A_PROBLEM = 1.0  # seconds


class _Exchange:
    """An exchange in steps: a generator that yields while it waits, the partner, and a description for messages."""

    __slots__ = ("describe", "steps", "whom")

    def __init__(self, steps: Generator[None], whom: Whom, describe: Callable[[], str]) -> None:
        self.steps = steps
        self.whom = whom
        self.describe = describe


def _drive(exchanges: list[_Exchange], problems: list[str]) -> None:
    """Continue all exchanges until they have ended, or for a short time if there are problems.

    Ranks that have seen no problem may send nothing more to a rank that has.
    """
    try:
        while exchanges:
            exchanges = _continue(exchanges, problems)
    except BaseException:
        stranded.extend(exchanges)
        raise


def _continue(exchanges: list[_Exchange], problems: list[str]) -> list[_Exchange]:
    """Continue exchanges until some have ended; return the others."""
    with Patience(exchanges[0].describe, lambda: [exchange.whom for exchange in exchanges]) as patience:
        while True:
            waiting = [exchange for exchange in exchanges if not _finished(exchange)]
            if len(waiting) < len(exchanges):
                return waiting
            if problems and patience.waited() > _AFTER_A_PROBLEM:
                raise CommunicationError("\n".join(problems))
            patience.pause()


def _finished(exchange: _Exchange) -> bool:
    for _ in exchange.steps:
        return False
    return True


def _agree_messages(
    log: Log,
    partner: int,
    sent: list[Sent],
    got: list[Received],
    first: int,
    directions: int,
    early: Early,
    problems: list[str],
) -> _Exchange:
    """Exchange with one partner the list of messages sent to it and received from it, or none if it is known.

    ``first`` is the index of the first one sent, among those sent on all communicators that have used the channel.
    """

    def steps() -> Generator[None]:
        reverse = log.reverse
        sweeps = reverse.sweep_with(partner)
        to_partner, from_partner = sent_columns(sent, early), received_columns(got)
        mine = [reverse.identity, len(sent), sweeps, directions, first, early.first > 0]
        for column in (*to_partner, *from_partner):
            mine += column
        request = reverse.comm.Isend(np.array(mine, np.int64), partner, AGREEMENT_TAG)
        came = yield from _message_from(reverse, reverse.comm, partner, AGREEMENT_TAG)
        _, n_sent, their_sweeps, their_directions, their_first, has_early, *theirs = came.tolist()
        if their_sweeps != sweeps:
            problems.append(_other_sweeps(reverse, sweeps, f"rank {partner} {their_sweeps}"))
        if their_directions != directions:
            problems.append(_other_directions(reverse, directions, f"rank {partner}", their_directions))
        match_sent(reverse, partner, sent, to_partner, _columns_in(theirs[3 * n_sent :]), first, problems)
        if early.first:
            for message in sent:
                if message.back is not None:
                    early.note_sent(message)
        their_columns = _columns_in(theirs[: 3 * n_sent])
        match_received(reverse, partner, got, from_partner, their_columns, their_first, early, problems)
        while not request.Test():
            yield
        if sent or got:
            log.agreed[partner] = len(sent), len(got)
            if early.first or has_early:
                early.connect(log, partner)

    def describe() -> str:
        if not (sent or got):
            return f"the agreement with rank {partner} about a sweep in {directions} directions"
        first = (sent or got)[0].describe()
        return f"the agreement with rank {partner} about {len(sent) + len(got)} messages, the first of which is {first}"

    return _Exchange(steps(), (log.reverse, partner), describe)


def _rows_from(
    reverse: Reverse, comm: mpi.Comm, source: int, tag: int, width: int
) -> Generator[None, None, np.ndarray]:
    """Receive a rank's message in this communicator's agreement as rows, the first one with its identity."""
    return (yield from _message_from(reverse, comm, source, tag)).reshape(-1, width)


def _message_from(reverse: Reverse, comm: mpi.Comm, source: int, tag: int) -> Generator[None, None, np.ndarray]:
    """Receive a rank's message in this communicator's agreement: integers, the first of which is its identity."""
    status = mpi.Status()
    while (theirs := reverse.channel.told(reverse.identity, comm, source, tag, status)) is None:
        yield
    return theirs


def _columns_in(numbers: list[int]) -> Columns:
    """Cut what a rank sent about messages into columns."""
    n = len(numbers) // 3
    return numbers[:n], numbers[n : 2 * n], numbers[2 * n :]


def _other_sweeps(reverse: Reverse, sweeps: int, others: str) -> str:
    return (
        f"rank {reverse.rank}: on {reverse.name} this rank has begun {sweeps} sweeps, {others}: ask for as many "
        "gradients on each rank; continue with a duplicate of the communicator, comm.Dup(), made on all its ranks"
    )


def _other_directions(reverse: Reverse, directions: int, other: str, others: int) -> str:
    def shown(count: int) -> str:
        return f"in {count} directions" if count else "in one direction, without seeds="

    return (
        f"rank {reverse.rank}: on {reverse.name} this rank sweeps {shown(directions)}, {other} {shown(others)}: the "
        "leading axis of seeds= must have the same length on all ranks"
    )


def _agree_collectives(
    log: Log, calls: list[Collective], directions: int, early: Early, problems: list[str]
) -> _Exchange:
    """Determine with all ranks of a communicator which of its collectives are reversed, unless this is known."""

    def steps() -> Generator[None]:
        facts = yield from _most(log.reverse, _facts_of(log, calls, directions, early))
        if _compare_collectives(log, calls, directions, facts, early, problems) and (calls or log.passive):
            yield from compare_pairs(log.reverse, calls, problems, partial(_rows_from, log.reverse, log.reverse.comm))
            log.agreed_collectives = len(log.collectives), log.passive
            if calls:
                early.met.append(log)

    def describe() -> str:
        if not calls and (directions or log.passively is None):
            return f"the agreement on {log.reverse.name} about a sweep in {directions} directions"
        last = calls[-1].describe() if calls else f"inside ampi.passive(), {line_of(log.passively)}"
        return f"the agreement about {len(calls) + log.passive} collective calls, the last of which is {last}"

    return _Exchange(steps(), (log.reverse, None), describe)


def _facts_of(log: Log, calls: list[Collective], directions: int, early: Early) -> np.ndarray:
    """Return a row about all calls of this rank on a communicator, and one about each.

    Numbers that must be equal on all ranks stand there with both signs, because the ranks take the maximum.
    """
    n, sweeps, passive = len(calls), log.reverse.sweeps, log.passive
    facts = np.zeros((1 + n, 13), np.int64)
    facts[0, 11] = early.first > 0
    facts[0, 9:11] = _code_of_value(log.returned, log.reverse.rank)
    facts[0, :9] = log.reverse.identity, n, -n, sweeps, -sweeps, passive, -passive, directions, -directions
    for k, call in enumerate(calls, 1):
        code = _code(call.name)
        active = call.reads_active * (1 + call.certain)
        sizes = sizes_of(call)
        same, blocks = (0, 0) if sizes is None else (sizes.same, sizes.blocks)
        flags = active, call.writes_tracked, call.loses
        facts[k] = code, -code, *flags, call.after, -call.after, same, -same, blocks, -blocks, *early.sides_of(call)
    return facts


def _compare_collectives(
    log: Log,
    calls: list[Collective],
    directions: int,
    facts: np.ndarray,
    early: Early,
    problems: list[str],
) -> bool:
    """Set which of the calls are reversed; return whether all ranks have made the same ones."""
    reverse, here = log.reverse, f"rank {log.reverse.rank}"
    early.some = early.some or bool(facts[0, 11])
    log.alike = bool(log.returned is not None and facts[0, 9] == -facts[0, 10])
    signs = (1, 1, -1, 1, -1, 1, -1, 1, -1)
    row = (facts[0, :9] * signs).tolist()
    _, most, least, most_sweeps, least_sweeps, most_passive, least_passive, *ways = row
    if ways[0] != ways[1]:
        others = ways[1] if directions == ways[0] else ways[0]
        problems.append(_other_directions(reverse, directions, "another rank", others))
        return False
    if most_sweeps != least_sweeps:
        problems.append(_other_sweeps(reverse, reverse.sweeps, f"others {least_sweeps} to {most_sweeps}"))
        return False
    for call, row in zip(calls[:least], facts[1:].tolist()):
        difference = _difference(call, row)
        if difference:
            problems.append(f"{here}: {difference}")
            return False
        _, _, active, tracked, lost, *_ = row
        call.happening = bool(active and tracked)
        unequal = unequal_lengths(call, *row[7:11]) if call.happening else ""
        if call.happening:
            early.note_call(call, *row[11:])
        if unequal:
            problems.append(f"{here}: {unequal}")
        if active > 1 and lost:
            who = "this rank" if call.loses else "another rank"
            problems.append(
                f"{here}: {call.describe()} carries a derivative, but {who} receives it into memory that is not "
                "tracked; make the receive buffer with ampi.numpy, or send ampi.value(...)"
            )
    missing = calls[least].describe() if len(calls) > least else ""
    if most_passive != least_passive:
        last = "" if log.passively is None else f" (the last one at {line_of(log.passively)})"
        problems.append(
            f"{here}: {log.passive} collective calls of this rank on {reverse.name}{last} are inside ampi.passive(), "
            f"{least_passive} to {most_passive} of others{missing and f'; {missing} is not'}; a collective call must "
            "be inside it on all ranks or on none"
        )
        return False
    if most > least:
        problems.append(
            f"{here}: {len(calls)} collective calls were recorded on {reverse.name}, but {least} to {most} on other "
            f"ranks{missing and f'; the first one that misses on another is {missing}'}"
        )
        return False
    return True


def _difference(call: Collective, row: list[int]) -> str:
    """Describe how another rank's call differs from this one at the same position; '' if it does not."""
    high, low, _, _, _, most_before, least_before, *_ = row
    code = _code(call.name)
    if high != code or low != -code:
        other = _name_of(high if high != code else -low)
        return f"where this rank called {call.describe()}, another called {other}"
    if most_before != -least_before:
        return (
            f"before this rank called {call.describe()}, it had made {call.after} collective calls inside "
            f"ampi.passive(), other ranks {-least_before} to {most_before}; a collective call must be inside it on all "
            "ranks or on none"
        )
    return ""


def _most(reverse: Reverse, mine: np.ndarray) -> Generator[None, None, np.ndarray]:
    """Return the elementwise maximum over all ranks, of both groups of an intercommunicator, over the common rows.

    It uses messages, which can be distinguished from those left over from an earlier sweep, unlike MPI's collectives.
    """
    if not reverse.comm.Is_inter():
        return (yield from _most_of_group(reverse, reverse.comm, mine))
    mine = yield from _most_of_group(reverse, reverse.local, mine)
    size, others = reverse.local.Get_size(), reverse.comm.Get_remote_size()
    dests = range(reverse.rank, others, size)
    going = [reverse.comm.Isend(mine, dest, COLLECTIVE_AGREEMENT_TAG) for dest in dests]
    source = reverse.rank % others
    theirs = yield from _rows_from(reverse, reverse.comm, source, COLLECTIVE_AGREEMENT_TAG, mine.shape[1])
    for request in going:
        while not request.Test():
            yield
    return _higher(mine, theirs)


def _most_of_group(reverse: Reverse, comm: mpi.Intracomm, mine: np.ndarray) -> Generator[None, None, np.ndarray]:
    """Take the maximum by dissemination: after k rounds a rank knows the values of the 2^k ranks up to its own."""
    rank, size = comm.Get_rank(), comm.Get_size()
    going = []
    distance = 1
    while distance < size:
        going.append(comm.Isend(mine, (rank + distance) % size, COLLECTIVE_AGREEMENT_TAG))
        source = (rank - distance) % size
        mine = _higher(mine, (yield from _rows_from(reverse, comm, source, COLLECTIVE_AGREEMENT_TAG, mine.shape[1])))
        distance *= 2
    for request in going:
        while not request.Test():
            yield
    return mine


def _higher(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    rows = min(len(mine), len(theirs))
    return np.maximum(mine[:rows], theirs[:rows])


def _code_of_value(value: float | None, rank: int) -> tuple[int, int]:
    """Return a checksum of a rank's result, with both signs; without a result it is different on each rank."""
    code = -1 - rank if value is None else zlib.crc32(np.float64(value).tobytes()) + 1
    return code, -code


def _code(name: str) -> int:
    """Return a positive number for an operation's name, the same on all ranks."""
    return zlib.crc32(name.encode()) + 1


def _name_of(code: int) -> str:
    names = (operation.name for operation in TABLE.values())
    return next((name for name in names if _code(name) == code), "another operation")
