"""The sweep over tasks: the graph of their strands backwards, by as many threads as ran it.

Every strand has shadows of its own.  The adjoint of what learns that a task has ended hands the adjoints of what the
task wrote on to the task's strand, whose sweep begins when all have done so; the adjoint of the submit waits for that
sweep, and adds what is left in the task's shadows, the adjoints of what the task read.  So no two threads touch the
same shadow, sums are formed in the order of the program, and results are the same bits with any number of threads.

A worker never waits: a strand that needs another one is put aside, and goes on when that is through.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TapeError
from ..memory.extents import may_repeat
from ..memory.storages import Region, Storage
from ..tape import Sweep
from ..tape.recording import sweeps_for
from .strands import Forked, Joined, Path, Released, Strand

if TYPE_CHECKING:
    from .episodes import Episode

Place = tuple[Path, "int | None"]
"""Where a strand may have to wait: for its own event of this number to be passed by those who have learned of it, or
for the end of a strand's sweep (None)."""

Mail = tuple[Storage, np.ndarray, list[Region]]
"""Adjoints for another strand: of a storage as a whole, or in the region that is given alone."""


class StrandSweep(Sweep):
    """The sweep of a task's strand: shadows of its own, and what is undone put back with all else by the tape's sweep.

    Attributes
    ----------
    noted : dict of list of Region
        By storages: what of their shadows is not zero, at most.
    """

    def __init__(self, root: Sweep, strand: Strand) -> None:
        super().__init__(root.tape)
        self.strand = strand
        self.be_part_of(root)
        self.noted: dict[Storage, list[Region]] = defaultdict(list)

    def shadow(self, region: Region) -> np.ndarray:
        """`Sweep.shadow`, noted."""
        self.noted[region.storage].append(region)
        return super().shadow(region)

    def begin_anew(self, region: Region, others: Sequence[Region]) -> np.ndarray | None:
        """`Sweep.begin_anew`, noted."""
        self.noted[region.storage].append(region)
        return super().begin_anew(region, others)

    def add_once(self, region: Region, value: np.ndarray, kept: np.ndarray) -> None:
        """`Sweep.add_once`, noted."""
        self.noted[region.storage].append(region)
        super().add_once(region, value, kept)

    def begin(self, region: Region, value: np.ndarray) -> None:
        """`Sweep.begin`, noted."""
        self.noted[region.storage].append(region)
        super().begin(region, value)

    def forget(self, storage: Storage) -> None:
        """`Sweep.forget`."""
        super().forget(storage)
        self.noted.pop(storage, None)

    def steps(self, reversal: Reversal) -> Iterator[Place]:
        """Walk back over the strand; gives what it has to wait for."""
        reversal.receive_at(self, (self.strand.path, None))
        yield from reversal.walk_back(self, self.strand)
        self.put_all_back()


def merge(into: Sweep, shadows: Sweep) -> None:
    """Add the shadows of a strand that is through to those of the strand that submitted it."""
    for storage, block in shadows.blocks():
        _add_block(into, storage, block, shadows.noted.get(storage, []))  # type: ignore[attr-defined]
    shadows.clear()


def receive(sweep: Sweep, mail: Iterable[Mail]) -> None:
    """Add what another strand has handed on."""
    for storage, values, regions in mail:
        if values.dtype == np.uint8 and values.nbytes >= storage.nbytes and values.ndim == 1:
            _add_block(sweep, storage, values, regions)
        else:
            sweep.add(regions[0], values)


def _add_block(sweep: Sweep, storage: Storage, block: np.ndarray, regions: list[Region]) -> None:
    ordinary = not (storage.packed or storage.volatile or storage.elsewhere)
    if ordinary and not sweep.has_block(storage):
        sweep.adopt(storage, block)
        if isinstance(sweep, StrandSweep):
            sweep.noted[storage] += regions
        return
    if isinstance(sweep, StrandSweep):
        sweep.noted[storage] += regions
    target = sweep.block(storage)
    if storage.packed:
        np.add(target.view(np.float64), block.view(np.float64), out=target.view(np.float64))
        return
    flat = _flat(regions)
    if flat is not None:
        dtype, low, high = flat
        count = (high - low) // dtype.itemsize
        there = np.ndarray((count,), dtype, target, low)
        there += np.ndarray((count,), dtype, block, low)
        return
    for region in regions:
        if may_repeat(region.shape, region.strides, region.dtype.itemsize):
            raise TapeError(
                "an array with repeated elements, of memory that holds numbers of several kinds, is used in a task; "
                "give the task a copy of it"
            )
        there = region.view(block)
        sweep.add(region, there)
        there[...] = 0


def _flat(regions: list[Region]) -> tuple[np.dtype, int, int] | None:
    """The kind of real numbers of which all regions are, and the bytes among which they lie; None if there are
    several."""
    dtypes = {region.dtype for region in regions}
    if any(dtype.names is not None for dtype in dtypes):
        return None
    reals = {np.empty(0, dtype).real.dtype for dtype in dtypes}
    if len(reals) != 1:
        return None
    (dtype,) = reals
    low, high, size = None, 0, dtype.itemsize
    for region in regions:
        if 0 in region.shape:
            continue
        first = last = region.offset
        for n, stride in zip(region.shape, region.strides):
            if stride % size:
                return None
            if stride < 0:
                first += (n - 1) * stride
            else:
                last += (n - 1) * stride
        if low is not None and (first - low) % size:
            return None
        low = first if low is None else min(low, first)
        high = max(high, last + region.dtype.itemsize)
    return (dtype, 0, 0) if low is None else (dtype, low, high)


class Reversal:
    """One sweep over an episode.

    Attributes
    ----------
    through : set of Path
        The tasks whose sweeps have ended.
    """

    def __init__(self, episode: Episode, root: Sweep) -> None:
        self.episode, self.root = episode, root
        self.strands = episode.strands
        self.through: set[Path] = set()
        self._sweeps: dict[Path, StrandSweep] = {}
        self._mail: dict[Place, dict[tuple[Path, int], list[Mail]]] = defaultdict(dict)
        self._joins: dict[Place, int] = defaultdict(int)  # that have not been passed, by what was learned of
        for strand in self.strands.values():
            for event in strand.events:
                if isinstance(event, Joined):
                    self._joins[event.path, event.number] += 1
        self._ready: deque[tuple[Path, Iterator[Place]]] = deque()
        self._aside: dict[Place, list[tuple[Path, Iterator[Place]]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._active = 0  # workers on their way
        self._submit: Any = None

    def run(self) -> None:
        """Walk back over all strands; that of the tape in this thread."""
        with self.episode.lend_threads() as self._submit:
            try:
                for place in self.walk_back(self.root, self.episode.own):
                    self._wait_for(place)
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._ready.clear()
                    self._changed.wait_for(lambda: not self._active)  # who use the memory that is put back then
                raise

    def walk_back(self, sweep: Sweep, strand: Strand) -> Iterator[Place]:
        """Walk back over a strand; gives what it has to wait for."""
        for k in reversed(range(len(strand.segments))):
            begin, end = strand.bounds(k)
            sweep.walk(strand.records, end, begin)
            if not k:
                break
            event, here = strand.events[k - 1], (strand.path, k - 1)
            if isinstance(event, Joined):
                self._hand_on(sweep, here, event)
                continue
            place = (event.child, None) if isinstance(event, Forked) else here
            while not self.is_through(place):
                yield place
            if isinstance(event, Released):
                self.receive_at(sweep, here)
            else:
                found = self._sweeps.pop(event.child, None)
                if found is not None:
                    merge(sweep, found)

    def _hand_on(self, sweep: Sweep, here: tuple[Path, int], event: Joined) -> None:
        """The adjoint of what learned of another strand: that one is given the adjoints of what it has written."""
        sweep.put_all_back()
        mail = self._adjoints_of(sweep, event)
        place = event.path, event.number
        with self._changed:
            self._mail[place][here] = mail
            self._joins[place] -= 1
            if self._joins[place]:
                return
            if event.number is None:
                strand = self._sweeps[event.path] = StrandSweep(self.root, self.strands[event.path])
                self._make_ready([(event.path, strand.steps(self))])
            else:
                self._make_ready(self._aside.pop(place, ()))

    def is_through(self, place: Place) -> bool:
        """Whether nobody has to wait there any more."""
        path, number = place
        if number is not None:
            return not self._joins.get(place, 0)
        return path in self.through or not self.strands[path].ended  # there is nothing to sweep: it was cancelled

    def receive_at(self, sweep: Sweep, place: Place) -> None:
        """Add what others have handed on, in the order of the program."""
        found = self._mail.pop(place, {})
        for key in sorted(found):
            receive(sweep, found[key])

    def _adjoints_of(self, sweep: Sweep, event: Joined) -> list[Mail]:
        """Take the adjoints of what was written in the segments that were new."""
        mail: list[Mail] = []
        seen = set()
        for path, first, last in event.new:
            for segment in self.strands[path].segments[first:last]:
                for region in segment.writes:
                    if region.place not in seen and sweep.has_block(region.storage):
                        seen.add(region.place)
                        mail += self._taken(sweep, region)
        return mail

    @staticmethod
    def _taken(sweep: Sweep, region: Region) -> Iterator[Mail]:
        storage = region.storage
        if region.is_all_ordinary():
            regions = sweep.noted.get(storage, []) if isinstance(sweep, StrandSweep) else [region]
            block = sweep.block(storage)
            sweep.forget(storage)
            yield storage, block, regions
            return
        if may_repeat(region.shape, region.strides, region.dtype.itemsize):
            raise TapeError("a task overwrites an array some elements of which share memory; let it write to a copy")
        taken = sweep.take(region)
        if taken is not None:
            yield storage, taken, [region]

    # --------------------------------------------------------------------------------------------------- threads

    def _make_ready(self, strands: Iterable[tuple[Path, Iterator[Place]]]) -> None:
        for strand in strands:
            self._ready.append(strand)
            with contextlib.suppress(RuntimeError):  # the executor is shut down: the sweep's own thread does it
                self._submit(self._work)
        self._changed.notify_all()

    def _work(self) -> None:
        """Of a worker: walk back over a strand as far as that goes."""
        with self._changed:
            if not self._ready or self._error is not None:
                return
            path, steps = self._ready.popleft()
            self._active += 1
        try:
            with sweeps_for(self.root.thread), np.errstate(all="ignore"):
                missing = next(steps, None)
        except BaseException as error:
            with self._changed:
                self._active -= 1
                self._error = self._error or error
                self._changed.notify_all()
            return
        with self._changed:
            self._active -= 1
            if missing is None:
                self.through.add(path)
                self._make_ready(self._aside.pop((path, None), ()))
            elif self.is_through(missing):
                self._make_ready([(path, steps)])
            else:
                self._aside[missing].append((path, steps))

    def _wait_for(self, place: Place) -> None:
        """In the thread of the sweep, which lends a hand where the workers have other things to do."""
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                if self.is_through(place):
                    return
                idle = not self._changed.wait(PATIENCE)
            if idle:
                self._work()


PATIENCE = 0.05  # seconds
