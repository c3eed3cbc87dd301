"""Strands: what the threads of a program with tasks record, and which of it happened before what.

The tape's own thread and each task have a *strand*: a list of records, cut into segments where the strand submits
a task (`Forked`), gives a signal (`Released`), or learns that a task has ended or has given one (`Joined`).  Each
segment has a vector clock: how many segments of each strand had ended before it began (Lamport, "Time, clocks, and the
ordering of events in a distributed system", 1978; Mattern, "Virtual time and global states of distributed systems",
1989).  What neither clock orders is concurrent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..memory.extents import Extent
from ..memory.regions import Region
from ..memory.storages import Storage

Path = tuple[int, ...]
"""A strand by the numbers of the submits that led to it; the tape's own thread has the empty one."""


class Segment:
    """What a strand did between two events.

    Attributes
    ----------
    begin : int
        The position of its first record.
    clock : dict
        By the paths of strands: the number of their segments that ended before this one began.
    writes : list of Region
        What was overwritten, or came to carry derivatives.
    reads : list of tuple
        Storages and extents of the values that adjoints need.
    """

    __slots__ = ("begin", "clock", "reads", "writes")

    def __init__(self, begin: int, clock: dict[Path, int]) -> None:
        self.begin = begin
        self.clock = clock
        self.writes: list[Region] = []
        self.reads: list[tuple[Storage, Extent]] = []


class Forked:
    """A strand submitted a task."""

    __slots__ = ("child",)

    def __init__(self, child: Path) -> None:
        self.child = child


class Released:
    """A strand gave a signal, which others may wait for: a queue, an event, a lock."""

    __slots__ = ()


class Token:
    """A signal: the strand that gave it and the number of the event, with the clock of what happened before."""

    __slots__ = ("clock", "number", "path")

    def __init__(self, path: Path, number: int, clock: dict[Path, int]) -> None:
        self.path, self.number, self.clock = path, number, clock


class Joined:
    """A strand learned that another one had ended; ``new``: the segments that it learned of by that, as path, first
    and last segment (exclusive).  With a ``number`` it has got the signal of that event; the other one may go on."""

    __slots__ = ("new", "number", "path")

    def __init__(self, path: Path, new: list[tuple[Path, int, int]], number: int | None = None) -> None:
        self.path = path
        self.new = new
        self.number = number


class Strand:
    """What one thread recorded, from its submit (or from where the tape's own thread submitted the first task) on.

    Attributes
    ----------
    path : tuple of int
    where : str
        The line of the program that submitted it.
    records : list
    segments : list of Segment
    events : list of Forked, Joined or Released
        Each is between two segments.
    clock : dict
        That of the segment which begins next.
    ended : bool
    failed : bool
        It has recorded nothing and never will: the task was cancelled.
    """

    def __init__(self, path: Path, where: str, records: list[Any], clock: dict[Path, int]) -> None:
        self.path = path
        self.where = where
        self.records = records
        self.clock = clock
        self.segments = [Segment(len(records), clock)]
        self.events: list[Forked | Joined | Released] = []
        self.ended = False
        self.children = 0

    # ------------------------------------------------------------------------------------------- what is accessed

    def write(self, storage: Storage, array: np.ndarray) -> None:
        """An array is about to be overwritten, or carries derivatives from now on."""
        self.segments[-1].writes.append(Region(storage, array))

    def read(self, storage: Storage, extent: Extent) -> None:
        """The values of an extent are needed by the adjoint of the record that comes next."""
        self.segments[-1].reads.append((storage, extent))

    # -------------------------------------------------------------------------------------------------- the order

    def _cut(self, event: Forked | Joined | Released, clock: dict[Path, int]) -> None:
        self.events.append(event)
        self.clock = clock
        self.segments.append(Segment(len(self.records), clock))

    def _after_present(self) -> dict[Path, int]:
        return {**self.clock, self.path: len(self.segments)}

    def fork(self, where: str) -> Strand:
        """A task is submitted: its strand."""
        path = (*self.path, self.children)
        self.children += 1
        clock = self._after_present()
        self._cut(Forked(path), clock)
        return Strand(path, where, [], clock)

    def end(self) -> None:
        """The task has ended."""
        self.clock = self._after_present()
        self.ended = True

    def knows(self, other: Strand) -> bool:
        """Whether all that another strand did happened before what this one does next."""
        return self.clock.get(other.path, 0) >= len(other.segments)

    def join(self, other: Strand) -> None:
        """This strand has learned that another one has ended; its records so far are followed by no further one that
        belongs to the segment before."""
        self._learn(other.clock, other.path)

    def release(self) -> Token:
        """This strand gives a signal: what it has done so far happened before what others do once they have it."""
        last, latest = self.segments[-1], self.events[-1] if self.events else None
        idle = len(self.records) == last.begin and not last.reads and not last.writes
        if not (idle and isinstance(latest, Released)):
            self._cut(Released(), self._after_present())
        return Token(self.path, len(self.events) - 1, self.clock)

    def acquire(self, token: Token) -> None:
        """This strand has got a signal."""
        if token.path != self.path:
            self._learn(token.clock, token.path, token.number)

    def _learn(self, clock: dict[Path, int], path: Path, number: int | None = None) -> None:
        known = self._after_present()
        new = [(path, known.get(path, 0), n) for path, n in clock.items() if n > known.get(path, 0)]
        if not new:
            return
        known.update((path, n) for path, _, n in new)
        self._cut(Joined(path, sorted(new), number), known)

    def has_accessed(self) -> bool:
        """Whether anything of it matters to the sweep, or to other strands."""
        return bool(self.records or self.children or any(s.reads or s.writes for s in self.segments))

    def bounds(self, k: int) -> tuple[int, int]:
        """Where the records of a segment begin and end."""
        end = self.segments[k + 1].begin if k + 1 < len(self.segments) else len(self.records)
        return self.segments[k].begin, end


def in_order(strands: dict[Path, Strand]) -> Iterator[tuple[Strand, int]]:
    """All segments, each after those that happened before it, in an order that the program alone decides."""
    done = dict.fromkeys(strands, 0)
    for path in sorted(strands):
        wanted = [(path, len(strands[path].segments))]
        while wanted:
            strand, upto = strands[wanted[-1][0]], wanted[-1][1]
            k = done[strand.path]
            if k >= upto:
                wanted.pop()
                continue
            missing = [(p, n) for p, n in strand.segments[k].clock.items() if done[p] < n]
            if missing:
                wanted += sorted(missing, reverse=True)
                continue
            done[strand.path] = k + 1
            yield strand, k
