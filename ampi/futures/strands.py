"""Strands: the records of each thread of a program with tasks, and the happened-before relation between them.

The tape's own thread and each task have a *strand*: a list of records, divided into segments where the strand submits a
task (`Forked`), gives a signal (`Released`), or learns that a task has ended or has given one (`Joined`).  Each segment
has a vector clock: the number of segments of each strand that had ended before it began (Lamport, "Time, clocks, and
the ordering of events in a distributed system", 1978; Mattern, "Virtual time and global states of distributed systems",
1989).  Segments that their clocks do not order are concurrent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter_ns as now
from typing import Any

import numpy as np

from ..memory.accesses import Accesses
from ..memory.extents import Extent
from ..memory.regions import Region
from ..memory.storages import Storage

Path = tuple[int, ...]
"""The indices of the submits that led to a strand; empty for the tape's own thread."""


class Segment:
    """The part of a strand between two events.

    Attributes
    ----------
    begin : int
        The position of its first record.
    clock : dict
        By the paths of strands, the number of their segments that ended before this one began.
    writes : list of Region
        Regions that were overwritten, or became active.
    reads : list of tuple
        Storages and extents of the values that adjoints need.
    seen : dict of Region
        Regions that were taken as constants although another strand had made their storages active, by their ids.
    calls : list of Accesses
        Operations that are repeated with the same arrays.
    """

    __slots__ = ("begin", "calls", "clock", "reads", "seen", "writes")

    def __init__(self, begin: int, clock: dict[Path, int]) -> None:
        self.begin = begin
        self.clock = clock
        self.writes: list[Region] = []
        self.reads: list[tuple[Storage, Extent]] = []
        self.seen: dict[int, Region] = {}
        self.calls: list[Accesses] = []

    def is_idle(self) -> bool:
        """Return whether no access is noted."""
        return not (self.reads or self.writes or self.seen or self.calls)

    def written(self) -> Iterator[Region]:
        """Iterate over the regions that were overwritten, or became active."""
        yield from self.writes
        for call in dict.fromkeys(self.calls):
            yield from call.writes


class Forked:
    """Event: a strand submitted a task, at a time in nanoseconds."""

    __slots__ = ("child", "time")

    def __init__(self, child: Path) -> None:
        self.child = child
        self.time = now()


class Released:
    """Event: a strand gave a signal for which others may wait, by a queue, an event or a lock."""

    __slots__ = ()


class Token:
    """A signal: the strand that gave it, the index of the event, and the strand's clock."""

    __slots__ = ("clock", "number", "path")

    def __init__(self, path: Path, number: int, clock: dict[Path, int]) -> None:
        self.path, self.number, self.clock = path, number, clock


class Joined:
    """Event: a strand learned that another one had ended, or had given the signal of event ``number``.

    ``new`` has the segments that it learned of, as path, first segment and last segment (exclusive).
    """

    __slots__ = ("new", "number", "path", "time")

    def __init__(self, path: Path, new: list[tuple[Path, int, int]], number: int | None = None) -> None:
        self.time = now()
        self.path = path
        self.new = new
        self.number = number


class Strand:
    """The records of one thread, from its submit on (the tape's own thread: from the first submit on).

    Attributes
    ----------
    path : tuple of int
    where : str
        The line of the program that submitted it.
    records : list
    segments : list of Segment
    events : list of Forked, Joined or Released
        One between each segment and the next.
    clock : dict
        The clock of the next segment.
    ended : bool
    name : str
        The function that it called.
    worker : tuple
        Identifier and name of the thread that ran it.
    begun, over : int
        The times of its beginning and end, in nanoseconds (0: it has not run).
    threads : int or None
        The number of threads that its kernels used.
    activated : dict
        For storages that became active while tasks ran: the strands that made them so, and the first segments that
        did.  All strands share it.
    """

    def __init__(
        self,
        path: Path,
        where: str,
        records: list[Any],
        clock: dict[Path, int],
        activated: dict[Storage, dict[Path, int]],
    ) -> None:
        self.path = path
        self.activated = activated
        self.where = where
        self.records = records
        self.clock = clock
        self.segments = [Segment(len(records), clock)]
        self.events: list[Forked | Joined | Released] = []
        self.ended = False
        self.name = ""
        self.worker: tuple[int, str] = 0, ""
        self.begun = self.over = 0
        self.threads: int | None = None
        self.children = 0
        self._known_active: set[Storage] = set()  # also before all later operations

    # ------------------------------------------------------------------------------------------- what is accessed

    def write(self, storage: Storage, array: np.ndarray) -> None:
        """Note that an array is about to be overwritten, or becomes active."""
        self.segments[-1].writes.append(Region(storage, array))

    def wrote(self, region: Region) -> None:
        """Note that a region has been overwritten, by an operation that began earlier."""
        self.segments[-1].writes.append(region)

    def read(self, storage: Storage, extent: Extent) -> None:
        """Note that the adjoint of the next record needs the values of an extent."""
        self.segments[-1].reads.append((storage, extent))

    def see(self, region: Region) -> None:
        """Note that a region is taken as constant although another strand has made its storage active."""
        self.segments[-1].seen[id(region)] = region

    def repeat(self, accesses: Accesses) -> None:
        """Note that an operation is about to be repeated with the same arrays."""
        self.segments[-1].calls.append(accesses)

    def activate(self, storage: Storage, reference: Any) -> None:
        """Note that a storage is about to become active on the tape of this reference, if it is not so already."""
        if storage.tape is not reference or storage in self.activated:
            self.activated.setdefault(storage, {}).setdefault(self.path, len(self.segments) - 1)

    def knows_active(self, storage: Storage) -> bool:
        """Return whether an active storage became active before the next operation of this strand.

        Another strand may have activated another part of it at any time: what this one does must not depend on it.
        """
        if storage in self._known_active:
            return True
        found = self.activated.get(storage)
        if found is None:
            return True
        if not any(path == self.path or self.clock.get(path, 0) > k for path, k in list(found.items())):
            return False
        self._known_active.add(storage)
        return True

    def all_known_active(self, storages: Iterable[Storage]) -> bool:
        """Return whether `knows_active` is true of each of some active storages."""
        return self.activated.keys().isdisjoint(storages) or all(map(self.knows_active, storages))

    # -------------------------------------------------------------------------------------------------- the order

    def _cut(self, event: Forked | Joined | Released, clock: dict[Path, int]) -> None:
        self.events.append(event)
        self.clock = clock
        self.segments.append(Segment(len(self.records), clock))

    def _after_present(self) -> dict[Path, int]:
        return {**self.clock, self.path: len(self.segments)}

    def fork(self, where: str, records: list[Any]) -> Strand:
        """Return the strand of a task that is submitted, with an empty list for its records."""
        path = (*self.path, self.children)
        self.children += 1
        clock = self._after_present()
        self._cut(Forked(path), clock)
        return Strand(path, where, records, clock, self.activated)

    def end(self) -> None:
        """Note that the task has ended."""
        self.clock = self._after_present()
        self.ended = True

    def knows(self, other: Strand) -> bool:
        """Return whether all segments of another strand happened before the next one of this strand."""
        return self.clock.get(other.path, 0) >= len(other.segments)

    def join(self, other: Strand) -> None:
        """Note that this strand has learned that another one has ended."""
        self._learn(other.clock, other.path)

    def release(self) -> Token:
        """Give a signal: the segments so far happen before the segments of strands that receive it."""
        last, latest = self.segments[-1], self.events[-1] if self.events else None
        idle = len(self.records) == last.begin and last.is_idle()
        if not (idle and isinstance(latest, Released)):
            self._cut(Released(), self._after_present())
        return Token(self.path, len(self.events) - 1, self.clock)

    def acquire(self, token: Token) -> None:
        """Receive a signal."""
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
        """Return whether the strand matters to the sweep, or to other strands."""
        return bool(self.records or self.children or not all(s.is_idle() for s in self.segments))

    def bounds(self, k: int) -> tuple[int, int]:
        """Return the range of the records of a segment."""
        end = self.segments[k + 1].begin if k + 1 < len(self.segments) else len(self.records)
        return self.segments[k].begin, end


def in_order(strands: dict[Path, Strand]) -> Iterator[tuple[Strand, int]]:
    """Iterate over all segments, each after those that happened before it, in a deterministic order."""
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
