"""History of a tape with RMA accesses: the collectives that had started and ended at each ticket and mark."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mpi4py import MPI as mpi

from ..collectives.collective_calls import Performed
from ..collectives.reverse_schedule import Started
from ..log.messages import Collective, CollectiveAdjoint, Completion, LoggedMessage
from .access import Access, Completed, Handshake
from .order import Mark, Visit
from .precedence import ADD, CHANGE, READ, Counts, Drawn, Moment, Touched, counter, higher

if TYPE_CHECKING:
    from .window import Window


@dataclass(slots=True)
class _Stage:
    """A position on a tape at which this rank drew tickets, or saw tickets for its own memory.

    Attributes
    ----------
    moment : Moment
    ended : dict
        The collectives that had ended before, also known by way of other ranks.
    tickets : list of (Window, int, int)
        The drawn tickets, with windows and targets.
    position : int or None
        The position of the last record of a visit.
    touched : tuple
        The effects of the operations in a lock epoch.
    window, seen : Window and int, or None
        A window, and its last ticket that had been seen.
    """

    moment: Moment = Moment({}, {})  # noqa: RUF009  (never changed)
    ended: Counts = field(default_factory=dict)
    tickets: list[tuple[Any, int, int]] = field(default_factory=list)
    position: int | None = None
    touched: tuple[Touched, ...] = ()
    window: Window | None = None
    seen: int | None = None


_NEVER = _Stage()
_NOTHING: tuple[int, Counts] = (0, {})


class History:
    """The collectives, tickets and marks of a tape, in their order.

    Attributes
    ----------
    started : dict
        Number of collectives of each kind that this rank has started.
    facts : dict
        For each mark, its position on the tape, and the number of collectives of each kind that had ended before it.
    """

    __slots__ = (
        "_begins",
        "_ended",
        "_indices",
        "_marks",
        "_now",
        "_records",
        "_stages",
        "_stages_of",
        "facts",
        "started",
    )

    def __init__(self, records: Sequence[Any], logs: Iterable[Any]) -> None:
        self.started: Counts = {}
        self._ended: Counts = {}
        self._now: Moment | None = None
        self._begins: dict[tuple[Any, int], int] = {}  # records, by kind and number
        self._stages: list[_Stage] = []
        self._stages_of: dict[tuple[Any, int, int], _Stage] = {}  # by window, target and ticket
        self._marks: dict[Any, list[tuple[Mark, int]]] = {}  # by window, with the records that they precede
        self._records = records
        self.facts: dict[Mark, tuple[int, Counts]] = {}
        so_far: Counts = {}
        self._indices = {id(call): k for log in logs for k, call in enumerate(log.collectives) if _orders(call)}
        latest = 0
        seen: dict[Any, int] = {}
        for position, record in enumerate(records):
            adjoint = record.adjoint
            if isinstance(adjoint, Mark):
                known = adjoint.limit if adjoint.bound is None else adjoint.bound
                if seen.get(adjoint.window, 0) != known:
                    seen[adjoint.window] = known  # type: ignore[assignment]
                    self._stages.append(_Stage(window=adjoint.window, seen=known))
                # A mark without a bound follows the record whose adjoint waits for what the mark lets others do.
                so_far = higher(so_far, self._ended)
                self.facts[adjoint] = position, so_far
                self._marks.setdefault(adjoint.window, []).append(
                    (adjoint, latest if adjoint.bound is None else position)
                )
                continue
            latest = position
            if isinstance(adjoint, (Visit, Completed)):
                if self._now is None:
                    self._now = Moment(dict(self.started), dict(self._ended))
                self._draws(adjoint, position)
            else:
                self._pass(adjoint, position)

    def _draws(self, adjoint: Any, position: int) -> None:
        """Enter a ticket; those of a visit, which follow each other, were drawn at the same time."""
        key = adjoint.window, adjoint.rank, adjoint.ticket
        if key in self._stages_of:
            return  # the end of a visit
        last = self._stages[-1] if self._stages else None
        if last is None or last.position != position - 1 or not isinstance(adjoint, Visit):
            last = _Stage(moment=self._now, ended=self._now.ended)  # type: ignore[arg-type, union-attr]
            self._stages.append(last)
        if isinstance(adjoint, Visit):
            last.position = position
        else:
            last.touched = tuple(map(_touched, adjoint.accesses))
        last.tickets.append(key)
        self._stages_of[key] = last

    def _pass(self, adjoint: Any, position: int) -> None:
        """Count the collectives and epochs that a record starts and ends."""
        if isinstance(adjoint, Handshake):
            for kind, comes_first in adjoint.meetings():
                if comes_first:
                    self._begin(kind, self.started.get(kind, 0), position)
                else:
                    self._end(kind, self._ended.get(kind, 0))
        elif isinstance(adjoint, Completion):
            for part in adjoint:
                if isinstance(part, Started):
                    self._count(part.performed, None, True)
        elif isinstance(adjoint, Started):
            self._count(adjoint.performed, position, False)
        else:
            call = adjoint.token if isinstance(adjoint, CollectiveAdjoint) else adjoint
            self._count(call, position, True)

    def _count(self, call: Any, position: int | None, ends: bool) -> None:
        index = self._indices.get(id(call))
        if index is None:
            return
        kind = call.reverse.identity
        if position is not None:
            self._begin(kind, index, position)
        if ends:
            self._end(kind, index)

    def _begin(self, kind: Any, index: int, position: int) -> None:
        self._begins[kind, index] = position
        self.started[kind] = index + 1
        self._now = None

    def _end(self, kind: Any, index: int) -> None:
        if index >= self._ended.get(kind, 0):
            self._ended[kind] = index + 1
            self._now = None

    def drawn(
        self, window: Window, rank: int, tickets: Sequence[int]
    ) -> list[tuple[int, Moment, Counts, tuple[Touched, ...]]]:
        """Return tickets for a target's memory, with their moments, the collectives ended before, and their effects."""
        stages = [self._stages_of.get((window, rank, abs(ticket)), _NEVER) for ticket in tickets]
        return [(ticket, stage.moment, stage.ended, stage.touched) for ticket, stage in zip(tickets, stages)]

    def hand_on(
        self, window: Window, came: dict[tuple[int, int], Sequence[Any]], announced: dict[int, Sequence[Any]]
    ) -> bool:
        """Pass on the collectives ended before each ticket to this rank's later tickets; return whether any is new.

        Parameters
        ----------
        came : dict
            For this rank's tickets, by target and ticket: position in the target's order, and collectives ended before.
        announced : dict
            The same for all tickets for this rank's memory; the tape has marks that tell when it had seen them.
        """
        ended: Counts = {}
        is_new = False
        for stage in self._stages:
            if stage.window is window:
                ended = higher(ended, announced.get(stage.seen, _NOTHING)[1])  # type: ignore[arg-type]
                continue
            for of_window, rank, ticket in stage.tickets:
                if of_window is window:
                    ended = higher(ended, came.get((rank, ticket), _NOTHING)[1])
            before, stage.ended = stage.ended, higher(stage.ended, ended)
            is_new |= stage.ended is not before
            ended = higher(ended, stage.ended)
        return is_new

    def places(self, window: Window, order: list[Drawn], seen: int) -> tuple[dict[Mark, tuple[int, int]], int]:
        """Return the number of tickets for this rank's memory that precede each mark (limit and bound), and the end.

        Parameters
        ----------
        order : list of Drawn
            All tickets for this rank's memory.
        seen : int
            The last one that this rank has seen.
        """
        limits, bounds = counter(order, self._follows), counter(order, self._follows)
        places = {
            mark: (
                0 if mark.limit is None else limits(mark.limit, position),
                0 if mark.bound is None else bounds(mark.bound, position),
            )
            for mark, position in self._marks.get(window, ())
        }
        return places, limits(seen, 1 << 62)

    def touching(self) -> list[int]:
        """Return the positions of records that may touch the memory of windows without a ticket."""
        return [place for place, record in enumerate(self._records) if _may_touch(record.adjoint)]

    def preceding(self, order: list[Drawn], marks: Iterable[Mark]) -> list[int]:
        """Return for each mark, and the end of the tape, the last ticket drawn before a collective that had ended here.

        The access came before the mark, even if it was seen later.
        """
        ended = [*(self.facts[mark][1] for mark in marks), self._ended]
        last = [0] * len(ended)
        for number, drawn in enumerate(order, 1):
            first = bisect_left(ended, True, key=drawn.precedes)  # they rise
            if first < len(ended):
                last[first] = number
        return list(accumulate(last, max))

    def _follows(self, ended: Counts) -> int:
        return max((self._begins.get((kind, number - 1), -1) for kind, number in ended.items()), default=-1)


def _may_touch(adjoint: Any) -> bool:
    if adjoint is not None and not adjoint.touches_windows:
        return False
    if isinstance(adjoint, Completion):
        return any(map(_may_touch, adjoint))
    part = adjoint.performed if isinstance(adjoint, Started) else adjoint
    if isinstance(part, Performed):
        buffers = *part.call.reads, *part.call.writes
    elif isinstance(part, LoggedMessage):
        buffers = () if part.buffer is None else (part.buffer,)
    else:
        return True
    return any(
        not hasattr(buffer, "storages") or any(s is not None and s.volatile for s in buffer.storages)
        for buffer in buffers
    )


def _touched(access: Access) -> Touched:
    if not access.updates:
        does = READ
    else:
        does = ADD if access.op == mpi.SUM and access.result is None else CHANGE
    return access.target.start, access.target.stop, does


def _orders(call: Collective) -> bool:
    """Return whether the sweep may wait at a collective: the same on all ranks of the communicator."""
    return bool(call.reverse.identity) and (call.happening or call.name in ("Fence", "Free"))
