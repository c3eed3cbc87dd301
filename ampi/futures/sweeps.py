"""The sweep over tasks: the graph of their strands backwards, by as many threads as ran it.

Every strand has its own shadows.  Where a strand learned that a task had ended, its adjoint passes the adjoints of the
memory that the task wrote to the task's strand, whose sweep begins when all such strands have done so.  The adjoint of
the submit waits for that sweep, and adds the rest of the task's shadows, which are the adjoints of the memory that the
task read.  So no two threads use the same shadow, sums are formed in the order of the program, and results are bitwise
identical with any number of threads.

A worker never waits: a strand that needs another one is suspended, and resumed when that has finished.
"""

from __future__ import annotations

import contextlib
import threading
from _thread import get_ident
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.locks import RLock
from ..errors import TapeError
from ..memory.blocks import is_zero
from ..memory.extents import may_repeat
from ..memory.storages import Region, Storage
from ..tape import Sweep
from ..tape.recording import sweeps_for
from .partial_sweep import PartialSweep, taken_from
from .strands import Forked, Joined, Path, Released, Strand
from .thread_counts import on_threads

if TYPE_CHECKING:
    from .episodes import Episode

Place = tuple[Path, "int | None"]
"""Where a strand may have to wait: at the event of this index, until the sweeps of all strands that received it have
passed, or (None) for the end of a strand's sweep."""

Mail = tuple[Storage, np.ndarray, list[Region]]
"""Adjoints for another strand: of a whole storage, or of the one region in the list."""


class StrandSweep(PartialSweep):
    """The sweep of a task's strand, with its own shadows; the tape's sweep restores undone memory.

    Only the part of a shadow that the strand uses is zeroed, passed on and added.

    Attributes
    ----------
    noted : dict of list of Region
        For each storage, regions outside of which its shadow is zero.
    """

    def __init__(self, root: Sweep, strand: Strand) -> None:
        super().__init__(root.tape)
        self.strand = strand
        self.be_part_of(root)
        self.noted: dict[Storage, list[Region]] = defaultdict(list)

    def note(self, region: Region) -> None:
        """Note that a region of a shadow is used."""
        self.noted[region.storage].append(region)

    def is_all_of(self, storage: Storage, dtype: np.dtype) -> bool:
        """Return whether a shadow has been used in regions of this dtype only."""
        return all(region.dtype == dtype for region in self.noted.get(storage, ()))

    def begin_anew(self, region: Region, others: Sequence[Region]) -> np.ndarray | None:
        """Do as `Sweep.begin_anew`, and note the region."""
        self.note(region)
        return super().begin_anew(region, others)

    def add_once(self, region: Region, value: np.ndarray, kept: np.ndarray) -> None:
        """Do as `Sweep.add_once`, and note the region."""
        self.note(region)
        super().add_once(region, value, kept)

    def begin(self, region: Region, value: np.ndarray) -> None:
        """Do as `Sweep.begin`, and note the region."""
        self.note(region)
        super().begin(region, value)

    def forget(self, storage: Storage) -> None:
        """Do as `PartialSweep.forget`, and forget the regions."""
        super().forget(storage)
        self.noted.pop(storage, None)

    def clear(self) -> None:
        """Do as `PartialSweep.clear`, and forget the regions."""
        super().clear()
        self.noted.clear()

    def steps(self, reversal: Reversal) -> Iterator[Place]:
        """Walk back over the strand; yield the places where it has to wait."""
        reversal.receive_at(self, (self.strand.path, None))
        yield from reversal.walk_back(self, self.strand)
        self.forget_zeros()


def walk_part(sweep: Sweep, position: int, begin: int) -> None:
    """Walk back over a part of the tape's records; a report's list of records learns that others may come next."""
    records = sweep.tape.records
    sweep.walk(records, position, begin)
    pause = getattr(records, "pause", None)
    if pause is not None:
        pause()


def merge(into: Sweep, shadows: StrandSweep) -> None:
    """Add the shadows of a finished strand to those of the strand that submitted it."""
    partial = isinstance(into, PartialSweep)
    for storage, _ in shadows.sizes():
        boxes = shadows.boxes(storage)
        if not boxes or not (partial or into.has_block(storage)):
            _add_block(into, storage, shadows.complete(storage), shadows.noted.get(storage, []))
            continue
        for box, values in boxes:
            if isinstance(into, PartialSweep):
                into.receive(box, values)
            else:
                into.add(box, values)
    shadows.clear()


def receive(sweep: Sweep, mail: Iterable[Mail]) -> None:
    """Add adjoints that another strand has passed on."""
    for storage, values, regions in mail:
        if values.dtype == np.uint8 and values.nbytes >= storage.nbytes and values.ndim == 1:
            _add_block(sweep, storage, values, regions)
        elif isinstance(sweep, PartialSweep):
            sweep.receive(regions[0], values)
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
    if is_zero(block):
        return
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
    """Return the real dtype that all regions have, and the range of their bytes; None if they differ."""
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
    finished : set of Path
        The tasks whose sweeps have ended.
    """

    def __init__(self, episode: Episode, root: Sweep) -> None:
        self.episode, self.root = episode, root
        self.strands = episode.strands
        self.finished: set[Path] = set()
        self.passes: list[tuple[Path, tuple[int, str], int, int]] = []
        self.links: list[tuple[bool, Path, int, int]] = []
        episode.passes, episode.links = self.passes, self.links
        self._sweeps: dict[Path, StrandSweep] = {}
        self._mail: dict[Place, dict[tuple[Path, int], list[Mail]]] = defaultdict(dict)
        self._joins: dict[Place, int] = defaultdict(int)  # number of joins that the sweep has not passed, by place
        for strand in self.strands.values():
            for event in strand.events:
                if isinstance(event, Joined):
                    self._joins[event.path, event.number] += 1
        self._ready: deque[tuple[Path, Iterator[Place]]] = deque()
        self._aside: dict[Place, list[tuple[Path, Iterator[Place]]]] = defaultdict(list)
        self._changed = threading.Condition(RLock())
        self._error: BaseException | None = None
        self._active = 0  # number of workers that sweep
        self._submit: Any = None
        self._awaited: Place | None = None  # where the sweep's own thread waits

    def run(self) -> None:
        """Walk back over all strands; this thread walks over the tape's own."""
        with self.episode.lend_threads() as self._submit:
            try:
                for place in self.walk_back(self.root, self.episode.own):
                    self._wait_for(place)
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._ready.clear()
                    self._changed.wait_for(lambda: not self._active)  # they use memory that is restored after an error
                raise

    def walk_back(self, sweep: Sweep, strand: Strand) -> Iterator[Place]:
        """Walk back over a strand; yield the places where it has to wait."""
        for k in reversed(range(len(strand.segments))):
            if strand is self.episode.own:
                begin, end = self.episode.places[k]
                walk_part(sweep, end, begin)
            else:
                begin, end = strand.bounds(k)
                sweep.walk(strand.records, end, begin)
            if not k:
                break
            event, here = strand.events[k - 1], (strand.path, k - 1)
            if isinstance(event, Joined):
                self._hand_on(sweep, here, event)
                continue
            place = (event.child, None) if isinstance(event, Forked) else here
            while not self.is_finished(place):
                yield place
            if isinstance(event, Released):
                self.receive_at(sweep, here)
            else:
                found = self._sweeps.pop(event.child, None)
                if found is not None:
                    merge(sweep, found)
                    self.links.append((False, event.child, get_ident(), now()))

    def _hand_on(self, sweep: Sweep, here: tuple[Path, int], event: Joined) -> None:
        """Mirror a join: pass the adjoints of the memory that another strand has written to that strand."""
        mail = self._adjoints_of(sweep, event)
        place = event.path, event.number
        with self._changed:
            self._mail[place][here] = mail
            self._joins[place] -= 1
            if self._joins[place]:
                return
            if event.number is None:
                self.links.append((True, event.path, get_ident(), now()))
                strand = self._sweeps[event.path] = StrandSweep(self.root, self.strands[event.path])
                self._make_ready([(event.path, strand.steps(self))])
            else:
                self._make_ready(self._aside.pop(place, ()))
                self._notify()

    def is_finished(self, place: Place) -> bool:
        """Return whether no strand has to wait at a place any more."""
        path, number = place
        if number is not None:
            return not self._joins.get(place, 0)
        return path in self.finished or not self.strands[path].ended  # a cancelled task has nothing to sweep

    def receive_at(self, sweep: Sweep, place: Place) -> None:
        """Add the adjoints that others have passed on, in the order of the program."""
        found = self._mail.pop(place, {})
        for key in sorted(found):
            receive(sweep, found[key])

    def _adjoints_of(self, sweep: Sweep, event: Joined) -> list[Mail]:
        """Take the adjoints of the memory written in the new segments of a join."""
        mail: list[Mail] = []
        seen = set()
        for path, first, last in event.new:
            for segment in self.strands[path].segments[first:last]:
                for region in segment.written():
                    if sweep.has_block(region.storage) and (place := region.place) not in seen:
                        seen.add(place)
                        mail += self._taken(sweep, region)
        return mail

    @staticmethod
    def _taken(sweep: Sweep, region: Region) -> Iterator[Mail]:
        storage = region.storage
        if region.is_all_ordinary():
            regions = sweep.noted.get(storage, []) if isinstance(sweep, StrandSweep) else [region]
            block = sweep.block(storage)
            sweep.forget(storage)
            if not is_zero(block):
                yield storage, block, regions
            return
        if may_repeat(region.shape, region.strides, region.dtype.itemsize):
            raise TapeError("a task overwrites an array some elements of which share memory; let it write to a copy")
        if isinstance(sweep, PartialSweep):
            region, taken = sweep.hand_on(region)
        else:
            taken = taken_from(sweep, region)
        if taken is not None:
            yield storage, taken, [region]

    # --------------------------------------------------------------------------------------------------- threads

    def _make_ready(self, strands: Iterable[tuple[Path, Iterator[Place]]]) -> None:
        for strand in strands:
            self._ready.append(strand)
            with contextlib.suppress(RuntimeError):  # the executor is shut down: the sweep's own thread does the work
                self._submit(self._work)

    def _notify(self) -> None:
        """Wake the sweep's own thread if it need not wait any more: at other times it would only take the GIL."""
        if self._error is not None or (self._awaited is not None and self.is_finished(self._awaited)):
            self._changed.notify_all()

    def _work(self) -> None:
        """Walk back over a strand, in a worker, until it has to wait."""
        with self._changed:
            if not self._ready or self._error is not None:
                return
            path, steps = self._ready.popleft()
            self._active += 1
        try:
            begin, threads = now(), self.strands[path].threads
            with sweeps_for(self.root.thread), on_threads(threads), np.errstate(all="ignore"):
                missing = next(steps, None)
        except BaseException as error:
            with self._changed:
                self._active -= 1
                self._error = self._error or error
                self._changed.notify_all()
            return
        with self._changed:
            self._active -= 1
            self.passes.append((path, (get_ident(), threading.current_thread().name), begin, now()))
            if missing is None:
                self.finished.add(path)
                self._make_ready(self._aside.pop((path, None), ()))
            elif self.is_finished(missing):
                self._make_ready([(path, steps)])
            else:
                self._aside[missing].append((path, steps))
            self._notify()

    def _wait_for(self, place: Place) -> None:
        """Wait at a place in the sweep's own thread, which helps if the workers are busy with other work."""
        while True:
            with self._changed:
                if self._error is not None:
                    raise self._error
                if self.is_finished(place):
                    return
                self._awaited, before = place, len(self.passes)
                idle = not self._changed.wait(PATIENCE) and len(self.passes) == before
                self._awaited = None
            if idle:
                self._work()


PATIENCE = 0.05  # seconds
