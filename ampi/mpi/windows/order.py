"""Order of RMA accesses: tickets define it while a tape records, turns reverse it in the sweep.

The target of a lock epoch makes no call.  While a tape records, the origin therefore draws a *ticket* from a counter of
the target each time its accesses are complete there: at Flush, Unlock, or when a request has completed.  Of two
accesses that the program orders, by locks, messages or barriers, the later one has the higher ticket.  Accesses that
it does not order commute, except for atomic updates that fetch, whose order is random: they are executed one at a
time, each with its own ticket.

Atomic operations in epochs of Fence and of Start whose order matters are postponed to the end of the epoch, and get
their tickets there: at a fence the ranks execute them one after the other, at Complete one origin at a time.

The target reads its counter at each record of its tape, and so knows between which tickets its own loads and stores
lie.

In the sweep the tickets have their turns in descending order.  A turn begins when the target's sweep has reached the
ticket, which the target publishes by lowering a limit; and the target does not use the adjoint of its memory before the
turns of all tickets that were drawn later have ended.  Each rank waits only for events that were later in the program,
so a program that did not deadlock does not deadlock in the sweep.  But the adjoint of a collective waits for the later
operations of all ranks: accesses by a rank that had left it, which by chance came before it on another rank, are moved
behind it at the start of the sweep (`precedence`; `history` has the facts of the tape).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI as mpi

from ...tape import BaseAdjoint, Push, Record, Sweep, Tape, lanes_of
from ..log.messages import LateCompletion, Received, Sent
from ..waiting.waiting import Patience, running
from .cells import Cells
from .precedence import Drawn, handed_on, in_order, is_contradicted
from .uses import CELLS, Uses

if TYPE_CHECKING:
    from .window import Window

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound


# ------------------------------------------------------------------------------------------------- while recording

_TICKETS, _ATOMIC = 0, 1  # number of tickets drawn; 1 while a rank executes an atomic update
_FENCE = 2  # the last fence at which operations were postponed
_STEPPED, _STEPPING, _STEP_FENCE = 3, 4, 5  # in steps: atomic operations so far; 1 while one runs; as _FENCE
_EPOCHS, _EXCLUSIVE = 6, 7  # in steps: lock epochs that have ended, and those with exclusive locks
_MISUSED = 8  # in steps: uses by tapes of steps of a window that is older than the loop
_POSTS = 9  # from here on, epochs posted for each rank; then the cells of `Uses`


class Order:
    """The counters of a window, from its creation to its end."""

    __slots__ = ("_known_misuses", "cells", "size", "uses")

    def __init__(self, comm: mpi.Comm) -> None:
        self.size = comm.Get_size()
        self.cells = Cells(comm, [0] * (_POSTS + (1 + CELLS) * self.size))
        self.uses = Uses(self.cells, _POSTS + self.size, self.size)
        self._known_misuses = 0

    @property
    def drawn(self) -> int:
        """Number of tickets that have been drawn for this rank's memory."""
        return int(self.cells.own[_TICKETS])

    def ticket(self, rank: int) -> int:
        """Draw a ticket for the memory of a rank."""
        return self.cells.add(rank, _TICKETS, 1) + 1

    def call(self, fence: int) -> None:
        """Announce to all ranks, before a fence, that postponed operations follow it."""
        for rank in range(self.size):
            self.cells.write(rank, _FENCE, fence)

    def called(self, fence: int) -> bool:
        """Return, after a fence, whether any rank has postponed operations."""
        return int(self.cells.own[_FENCE]) == fence

    def post(self, ranks: list[int]) -> None:
        """Count epochs of this rank's memory posted for these ranks."""
        for rank in ranks:
            self.cells.own[_POSTS + rank] += 1

    def await_post(self, rank: int, number: int) -> None:
        """Wait until a rank has posted ``number`` epochs for this one."""
        while self.cells.read(rank, _POSTS + self.cells.rank) < number:
            _give_way()

    def enter(self, rank: int) -> None:
        """Wait until no other rank updates the memory of a rank, and lock it."""
        self._close(rank, _ATOMIC)

    def leave(self, rank: int) -> None:
        """Let others update the memory of a rank."""
        self.cells.write(rank, _ATOMIC, 0)

    def _close(self, rank: int, door: int) -> None:
        while not self.cells.swap(rank, door, 0, 1):
            _give_way()

    # In steps of time loops: see `replay`.

    def call_step(self, fence: int) -> None:
        """Announce to all ranks, before a fence, that operations postponed by steps follow it."""
        for rank in range(self.size):
            self.cells.write(rank, _STEP_FENCE, fence)

    def step_called(self, fence: int) -> bool:
        """Return, after a fence, whether any rank's step has postponed operations."""
        return int(self.cells.own[_STEP_FENCE]) == fence

    def misuse(self) -> None:
        """Announce to all ranks that a step has used the window, which is older than the loop."""
        for rank in range(self.size):
            self.cells.add(rank, _MISUSED, 1)

    def is_misused(self) -> bool:
        """Return whether any rank has announced such a use since the last call."""
        known, self._known_misuses = self._known_misuses, int(self.cells.own[_MISUSED])
        return known != self._known_misuses

    def enter_step(self, rank: int) -> None:
        """Wait until no other step executes an atomic operation on the memory of a rank."""
        self._close(rank, _STEPPING)

    def leave_step(self, rank: int) -> None:
        """Let other steps execute atomic operations on the memory of a rank."""
        self.cells.write(rank, _STEPPING, 0)

    def stepped(self, rank: int) -> int:
        """Return the number of atomic operations that steps have executed on the memory of a rank."""
        return self.cells.read(rank, _STEPPED)

    def await_step(self, rank: int, number: int) -> None:
        """Wait until steps have executed ``number`` atomic operations on the memory of a rank."""
        while self.stepped(rank) < number:
            _give_way()

    def step(self, rank: int, count: int) -> int:
        """Count ``count`` more of these operations; return the number before."""
        return self.cells.add(rank, _STEPPED, count)

    def epochs(self, rank: int) -> int:
        """Return the number of lock epochs of steps that have ended at a rank."""
        return self.cells.read(rank, _EPOCHS)

    def exclusive_epochs(self, rank: int) -> int:
        """Return the number of those with exclusive locks."""
        return self.cells.read(rank, _EXCLUSIVE)

    def end_epoch(self, rank: int, exclusive: bool) -> int:
        """End a lock epoch; return the number of earlier ones that it could not overlap with."""
        ended = self.cells.add(rank, _EPOCHS, 1)
        if not exclusive:
            return self.cells.read(rank, _EXCLUSIVE)
        self.cells.add(rank, _EXCLUSIVE, 1)
        return ended


def _give_way() -> None:
    _WORLD.Iprobe()  # lets MPI serve other ranks: the one that updates may wait for this rank
    os.sched_yield()


class Observer:
    """Observer of a tape that marks the tickets for this rank's memory drawn before each record.

    It also draws tickets for loads from other ranks' memory and stores to it.

    Attributes
    ----------
    seen : dict
        For each window the number of tickets up to the last mark.
    last : dict
        For each window that has been freed, the number of tickets drawn.
    visited : set of (Window, int)
        Other ranks' memory that local work is about to load from or store to.
    """

    __slots__ = ("_add", "_draw", "last", "records", "seen", "visited")

    def __init__(self, tape: Tape, draw: Callable[[Any, int], int]) -> None:
        self._draw = draw
        self.records = tape.records
        self._add = tape.appender()
        self.seen: dict[Any, int] = {}
        self.last: dict[Any, int] = {}
        self.visited: set[tuple[Any, int]] = set()
        tape.observe(self)

    def watch(self, window: Window) -> None:
        """Begin to watch a window."""
        self.seen[window] = window.order.drawn  # other ranks, whose tapes began earlier, may have drawn some
        self.records.append(_record(Mark(window, 0, 0)))

    def leave(self, window: Window) -> None:
        """Stop watching a window that has been freed: no more tickets are drawn for it."""
        drawn = self.last[window] = window.order.drawn
        seen = self.seen.pop(window)
        if seen != drawn:
            self.records.append(_record(Mark(window, seen, seen)))

    def append(self, record: Record) -> None:
        """Append a record, with the marks that belong before and after it."""
        if self.visited and not _communicates(record):
            self.visited = {visit for visit in self.visited if not visit[0].freed}  # these were only examined
            if self.visited:
                self._append_visit(record)
                return
        for window, seen in self.seen.items():
            if window.order.drawn != seen:
                break
        else:
            if _synchronizes(record):
                self._meet(record)
            else:
                self._add(record)
            return
        if isinstance(record.adjoint, LateCompletion):
            self._add(record)  # new tickets may have come after the start of what is appended next
        elif _synchronizes(record):
            self._meet(record)
        elif _communicates(record) and not _starts_in_windows(record.adjoint):
            self._add(record)
            self.look()
        else:
            self.close()
            self._add(record)

    def _append_visit(self, record: Record) -> None:
        """Append the record of local work on other ranks' memory, which has its turn there in the sweep.

        It also gets a turn for this rank's own memory, on which it may work as well.  All tickets are drawn under one
        lock, so that any two ranks have theirs in the same order.
        """
        windows = {window: None for window, _ in self.visited}
        visited = self.visited | {(window, window.reverse.rank) for window in windows}
        self.visited = set()
        (first, *_) = windows
        first.order.enter(0)
        try:
            visits = [
                (window, rank, self._draw(window, rank))
                for window, rank in sorted(visited, key=lambda visit: (visit[0].reverse.identity, visit[1]))
            ]
        finally:
            first.order.leave(0)
        news = self._news()
        self.records.extend(_record(Mark(window, None, seen)) for window, seen in news)
        self.records.extend(_record(Visit(*visit, False)) for visit in visits)
        self._add(record)
        self.records.extend(_record(Visit(*visit, True)) for visit in visits)
        self.records.extend(_record(Mark(window, seen, None)) for window, seen in news)

    def look(self) -> None:
        """Mark new tickets at the end of a communication, whose record is the last one.

        It may have taken some time.  Accesses by others in that time do not concern its memory, but its partner may
        depend on them: neither waits for the other in the sweep.
        """
        position = len(self.records) - 1
        for window, seen in self._news():
            self.records.insert(position, _record(Mark(window, None, seen)))
            self.records.append(_record(Mark(window, seen, None)))

    def has_received(self, receive: Any) -> None:
        """Mark the end of a blocking receive, which has no record if it has overwritten nothing of importance."""
        if self.records and self.records[-1].adjoint is receive:
            self.look()
        else:
            self.close()

    def _meet(self, record: Record) -> None:
        """Append a record that waits in the sweep for later operations of other ranks, perhaps on this rank's memory.

        Their accesses may have been seen before it, by chance: see `precedence`.
        """
        news = dict(self._news())
        marked = [(window, news.get(window, seen)) for window, seen in self.seen.items()]
        self.records.extend(_record(Mark(window, None, seen)) for window, seen in marked)
        self._add(record)
        self.records.extend(_record(Mark(window, seen, None)) for window, seen in marked)

    def close(self) -> None:
        """Mark new tickets, before local work, a message or a collective, or at the end of the tape."""
        for window, seen in self._news():
            self.records.append(_record(Mark(window, seen, seen)))

    def _news(self) -> list[tuple[Any, int]]:
        news = [(window, seen) for window, seen in self.seen.items() if window.order.drawn != seen]
        for window, _ in news:
            self.seen[window] = window.order.drawn
        return news


def _record(adjoint: Callable[[Sweep], None]) -> Record:
    return Record(adjoint, (), ())


def _communicates(record: Record) -> bool:
    """Return whether a record's adjoint may wait for other ranks."""
    return record.adjoint is not None and not record.adjoint.is_local


def _starts_in_windows(adjoint: Any) -> bool:
    """Return whether a message, whose record comes before it, may read or write window memory."""
    if isinstance(adjoint, Received):
        return any(storage is not None and storage.volatile for storage in getattr(adjoint.buffer, "storages", ()))
    return isinstance(adjoint, Sent)


def _synchronizes(record: Record) -> bool:
    """Return whether a record's adjoint may wait for later operations of other ranks."""
    return record.adjoint is not None and record.adjoint.synchronizes


# --------------------------------------------------------------------------------------------------- in the sweep

_TURN, _LIMIT = 0, 1  # the ticket whose turn it is, or one of the two below; tickets up to the limit must wait
_BUSY, _HELD = -1, -2  # instead of a turn: it has started; the rank itself works on the adjoint of its memory


class Mark(BaseAdjoint):
    """Record of the number of tickets drawn for this rank's memory.

    Attributes
    ----------
    limit : int or None
        In the sweep, tickets above it may have their turns from here on.
    bound : int or None
        From here on the adjoint of the memory is used only after the turns of all tickets above it.
    """

    __slots__ = ("bound", "limit", "window")
    is_local = False
    second_order = "joint"
    batched = True
    touches_windows = False
    propagates_tangents = True

    def __init__(self, window: Window, limit: int | None, bound: int | None) -> None:
        self.window = window
        self.limit = limit
        self.bound = bound

    def __call__(self, sweep: Sweep) -> None:
        """Lower the limit or the bound."""
        shadow = lanes_of(sweep)[0].state["windows"].get(self.window)
        if shadow is not None and shadow.turns is not None:
            shadow.turns.lower(self)

    def tangent(self, push: Push) -> None:
        """Do nothing: a walk schedules all waits at its start."""


class Visit(BaseAdjoint):
    """Record of the start or end of local work on another rank's memory."""

    __slots__ = ("begins", "rank", "ticket", "window")
    is_local = False
    second_order = "joint"
    batched = True
    touches_windows = False  # the work in between has a ticket
    propagates_tangents = True

    def __init__(self, window: Window, rank: int, ticket: int, begins: bool) -> None:
        self.window = window
        self.rank = rank
        self.ticket = ticket
        self.begins = begins

    def __call__(self, sweep: Sweep) -> None:
        """Begin or end the turn."""
        shadows = [lane.state["windows"].get(self.window) for lane in lanes_of(sweep)]
        if shadows[0] is None:
            return
        turns = shadows[0].turns
        if self.begins:
            turns.begin(self.rank, self.ticket, self.waiting)
        for shadow in shadows:
            (shadow.visiting.add if self.begins else shadow.visiting.discard)(self.rank)
            shadow.win.Sync()
        if not self.begins:
            turns.end(self.rank, self.ticket)

    def tangent(self, push: Push) -> None:
        """In a walk: end or begin the turn."""
        forward = [lane.state["windows"].get(self.window) for lane in lanes_of(push)]
        if forward[0] is None:
            return
        turns = forward[0].turns
        if not self.begins:
            turns.begin(self.rank, self.ticket, self.waiting)
        for each in forward:
            each.visit(self.rank, not self.begins)
        if self.begins:
            turns.end(self.rank, self.ticket)

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return (
            f"its turn for the adjoint of loads and stores in rank {self.rank}'s memory of {self.window.reverse.name}"
        )


class Schedule:
    """Schedule of the turns of a window's tickets.

    The tickets of each target are numbered from 1, without those of other tapes, in the order that `precedence` gives
    them.

    Parameters
    ----------
    tickets : dict
        This rank's tickets, by target; negative for updates.
    seen : int
        The last one for this rank's memory that its tape knows of.
    touched : bool
        True if the memory is an output.
    history : History

    Attributes
    ----------
    cells : Cells
        Turn and limit of each rank, from `open` on.
    numbers : dict
        Number of each of this rank's tickets, by target and ticket.
    places : dict
        Limit and bound of each mark, in numbers, in the order of the tape.
    seen : int
        The number of the last ticket for this rank's memory that its tape knows of.
    problems : list of str
        The reasons of all ranks why the window cannot be swept.
    """

    __slots__ = ("_first", "cells", "numbers", "places", "problems", "reverse", "seen")

    def __init__(self, window: Window, tickets: dict[int, list[int]], seen: int, touched: bool, history: Any) -> None:
        reverse = self.reverse = window.reverse
        comm = reverse.comm
        takes_part = frozenset(history.started)
        while True:
            came = comm.alltoall(
                [(takes_part, history.drawn(window, rank, tickets.get(rank, ()))) for rank in range(comm.size)]
            )
            order = in_order(
                Drawn(abs(ticket), moment, part, *more) for part, theirs in came for ticket, moment, *more in theirs
            )
            announced = {drawn.ticket: found for drawn, *found in zip(order, itertools.count(1), handed_on(order))}
            back = comm.alltoall([[announced[abs(ticket)] for ticket, *_ in theirs] for _, theirs in came])
            mine = {
                (rank, abs(ticket)): found
                for rank, drawn in tickets.items()
                for ticket, found in zip(drawn, back[rank], strict=True)
            }
            if not any(comm.allgather(history.hand_on(window, mine, announced))):
                break
        late = [ticket for _, theirs in came for ticket, *_ in theirs if -ticket > seen]
        self.numbers = {key: number for key, (number, _) in mine.items()}
        self.places, self.seen = history.places(window, [drawn.by_its_rank() for drawn in order], seen)
        self._first = self.beginning(order, history)
        problem = ""
        if late and touched:
            problem = (
                f"rank {reverse.rank}: another rank wrote to this rank's memory in {reverse.name} after this rank's "
                "tape had been closed, and that memory is an output; put a barrier before the end of the tape"
            )
        if is_contradicted(order):
            problem = (
                f"rank {reverse.rank}: two ranks accessed this rank's memory in {reverse.name} under locks, the "
                "first one after a collective call which the second one reached later: MPI does not guarantee this "
                "order, and the sweep cannot reverse it; make both accesses before the call, or both after it"
            )
        self.problems = [text for text in comm.allgather(problem) if text]

    def beginning(self, order: list[Drawn], history: Any) -> list[int]:
        """Return the initial values of this rank's cells, from the tickets for its memory and its tape."""
        raise NotImplementedError

    def open(self) -> None:
        """Let tickets have their turns from now on; collective."""
        self.cells = Cells(self.reverse.comm, self._first)

    def close(self) -> None:
        """End the schedule: all tickets have had their turns; collective."""
        self.cells.free()

    def attend(self, sweep: Any, shadows: Sequence[Any]) -> None:
        """Prepare a walk with these shadows in its directions."""

    def let_in(self) -> None:
        """Let all tickets have their turns at the end of this rank's tape."""


class Turns(Schedule):
    """Turns in a sweep, in descending order."""

    __slots__ = ("_bound", "_held", "_limit", "_settled")

    def beginning(self, order: list[Drawn], history: Any) -> list[int]:
        """Give the last ticket the first turn; tickets that the tape has seen must wait."""
        *above, end = history.preceding(order, self.places)
        self.places = {
            mark: (max(bound if mark.limit is None else limit, k), max(bound, k))
            for (mark, (limit, bound)), k in zip(self.places.items(), above)
        }
        self._bound = self._limit = max(self.seen, end)
        self._held = 0
        self._settled = False
        return [len(order), self._limit]

    def open(self) -> None:
        """Let tickets have their turns from now on; collective."""
        super().open()
        running.underway.append(self.release)

    def close(self) -> None:
        """End the schedule: all tickets have had their turns; collective."""
        if self.release in running.underway:  # not at the end of the sweep
            running.underway.remove(self.release)
        super().close()

    # ------------------------------------------------------------------------------------------- of others' memory

    def begin(self, rank: int, ticket: int, describe: Callable[[], str]) -> None:
        """Wait for the turn of one of this rank's tickets."""
        number = self.numbers[rank, ticket]
        with Patience(describe, lambda: [(self.reverse, None)]) as patience:
            while self.cells.read(rank, _LIMIT) >= number or not self.cells.swap(rank, _TURN, number, _BUSY):
                patience.pause()

    def end(self, rank: int, ticket: int) -> None:
        """End the turn."""
        self.cells.write(rank, _TURN, self.numbers[rank, ticket] - 1)

    # ------------------------------------------------------------------------------------------ of this rank's memory

    def lower(self, mark: Mark) -> None:
        """Apply a mark that the sweep has reached."""
        self.release()
        limit, bound = self.places[mark]
        if limit != self._limit:
            self._limit = limit
            self.cells.write(self.cells.rank, _LIMIT, limit)
        if mark.bound is not None:
            self._bound = bound
        self._settled = False

    def settle(self) -> None:
        """Wait for the turns that come first, before this rank uses the adjoint of its memory."""
        if self._settled:
            return
        with Patience(self._waiting, lambda: [(self.reverse, None)]) as patience:
            while not self._may_touch():
                patience.pause()
        self._settled = True

    def _may_touch(self) -> bool:
        turn = int(self.cells.own[_TURN])
        if not 0 <= turn <= self._bound:
            return False
        if self._limit >= turn:
            return True  # the next ticket has to wait for this rank
        if self.cells.swap(self.cells.rank, _TURN, turn, _HELD):
            self._held = turn
            return True
        return False

    def release(self) -> None:
        """Let others begin their turns, if this rank has blocked them: it waits, or has reached a mark."""
        if self._held:
            self.cells.write(self.cells.rank, _TURN, self._held)
            self._held = 0
            self._settled = False

    def finished(self) -> bool:
        """Return whether all turns of this rank's memory are over."""
        return int(self.cells.own[_TURN]) == 0

    def _waiting(self) -> str:
        return f"other ranks' accesses to this rank's memory in {self.reverse.name}, before it works on its adjoint"
