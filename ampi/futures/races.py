"""Races: accesses of two strands to the same memory, one of which writes, that nothing orders."""

from __future__ import annotations

import operator
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ActivityError
from ..memory.accesses import Accesses
from ..memory.extents import Extent
from ..memory.handouts import describe
from ..memory.regions import Region
from ..memory.storages import Storage
from ..mpi.memory.buffers import Buffer
from ..tape import Tape
from ..tape.records import BaseAdjoint
from .strands import Path, Strand

_OPAQUE = (np.ndarray, np.dtype, Storage, type, types.ModuleType, str, bytes, int, float, complex, type(None))


def extent_of(region: Region) -> Extent:
    """Return the bytes of a region in its storage."""
    low = region.storage.address + region.offset
    try:
        extent = region.extent
        if extent.pattern[0] == low:
            return extent
    except AttributeError:
        pass
    region.extent = extent = Extent.__new__(Extent)
    extent.listed = None
    extent.pattern = (low, region.shape, region.strides, region.dtype.itemsize)
    high = low
    expected = region.dtype.itemsize
    extent.dense = True
    for n, stride in zip(reversed(region.shape), reversed(region.strides)):
        if n > 1 and stride != expected:
            extent.dense = False
        expected *= n
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    extent.low, extent.high = (0, 0) if 0 in region.shape else (low, high + region.dtype.itemsize)
    return extent


def regions_of(adjoint: Any, seen: dict[int, Any] | None = None) -> list[Region]:
    """Return the regions that a record's adjoint may read or write: all that it refers to, directly or not.

    Objects in ``seen``, by their ids, are left out, and those that are visited are added.
    """
    found: list[Region] = []
    seen = {} if seen is None else seen
    wanted = [adjoint]
    while wanted:
        x = wanted.pop()
        kind = type(x)
        parts = _parts_by_type[kind] if kind in _parts_by_type else _note_type(kind)
        if parts is None or id(x) in seen:
            continue
        seen[id(x)] = x  # which keeps it alive: otherwise another object could get its id
        if parts is Region:
            found.append(x)
        else:
            wanted += parts(x)
    return found


_parts_by_type: dict[type, Any] = {}
"""The function that iterates over the parts of an object, `Region` for regions, or None for what has no parts."""


def _note_type(kind: type) -> Any:
    if issubclass(kind, Region):
        found: Any = Region
    elif issubclass(kind, _OPAQUE) or (kind.__module__.startswith("ampi.") and kind.__name__ in _APART):
        found = None
    elif issubclass(kind, Buffer):
        found = _regions_of_message
    else:
        found = iter if issubclass(kind, (tuple, list, set, frozenset)) else _parts_of
        if issubclass(kind, BaseAdjoint) and kind.held is not None:
            found = operator.attrgetter(*kind.held)
    _parts_by_type[kind] = found
    return found


def _regions_of_message(buffer: Buffer) -> list[Region]:
    return buffer.regions()


def _parts_of(x: Any) -> Iterator[Any]:
    if isinstance(x, dict):
        yield from x.values()
    elif isinstance(x, types.FunctionType):
        for cell in x.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # empty
                continue
        yield from x.__defaults__ or ()
    elif isinstance(x, types.MethodType):
        yield x.__self__
    elif type(x).__module__.startswith("ampi."):
        for name in _slots_of(type(x)):
            part = getattr(x, name, None)
            if part is not x:
                yield part
        yield from getattr(x, "__dict__", {}).values()
    elif hasattr(x, "func") and hasattr(x, "keywords"):
        yield from (x.func, x.args, x.keywords)


_APART = {
    "Contract",
    "Kernel",
    "TaskTape",
    "SecondTaskTape",
    "SecondTape",
    "Tape",
    "Push",
    "TaskPush",
    "TaskLane",
    "TaskVectorPush",
    "VectorPush",
    "PushLane",
    "OtherTaskLane",
    "ForwardTaskTape",
    "Undo",
    "Rule",
    "Need",
    "StandIn",
}
_known_slots: dict[type, tuple[str, ...]] = {}


def _slots_of(kind: type) -> tuple[str, ...]:
    found = _known_slots.get(kind)
    if found is None:
        names = [name for base in kind.__mro__ for name in (vars(base).get("__slots__") or ())]
        found = _known_slots[kind] = tuple(name for name in names if name not in ("__weakref__", "__dict__", "undo"))
    return found


class Access:
    """An access of a segment to an extent."""

    __slots__ = ("extent", "region", "segment", "storage", "strand", "writes")

    def __init__(
        self, strand: Strand, segment: int, extent: Extent, writes: bool, region: Any, storage: Storage
    ) -> None:
        self.strand, self.segment, self.extent, self.writes = strand, segment, extent, writes
        self.region, self.storage = region, storage

    def precedes(self, other: Access) -> bool:
        """Return whether this access happened before the other one."""
        return other.strand.segments[other.segment].clock.get(self.strand.path, 0) > self.segment


class _OfCalls:
    """The accesses of repeated operations, each once.

    Attributes
    ----------
    found : list of tuple
        Storage, extent, whether it is overwritten, and region or None.
    overwrites : dict of bool
        The same, by storage and pattern of the extent.
    regions : dict
        Regions and containers of these, by their ids.
    """

    __slots__ = ("calls", "found", "overwrites", "regions")

    def __init__(self, calls: tuple[Accesses, ...]) -> None:
        self.calls = calls  # the key of `_of_calls`
        self.regions: dict[int, Any] = {}
        found: dict[Any, Any] = {}
        for region in (region for call in calls for region in call.writes):
            extent = extent_of(region)
            found.setdefault((region.storage, extent.pattern), (region.storage, extent, True, region))
        for call in calls:
            for storage, extent in call.reads:
                found.setdefault((storage, extent.pattern), (storage, extent, False, None))
            for shadows in call.shadows:
                self.regions[id(shadows)] = shadows
                for region in shadows:
                    self.regions[id(region)] = region
                    extent = extent_of(region)
                    found.setdefault((region.storage, extent.pattern), (region.storage, extent, False, region))
        self.found = [access for access in found.values() if access[1].low < access[1].high]
        self.overwrites = {key: access[2] for key, access in found.items()}


_known_calls: dict[tuple[Accesses, ...], _OfCalls] = {}
_MOST_KNOWN = 1024


def _of_calls(calls: list[Accesses]) -> _OfCalls:
    key = tuple(calls)
    return _remembered(_known_calls, _MOST_KNOWN, key, lambda: _OfCalls(key))


def _remembered(known: dict[Any, Any], most: int, key: Any, make: Callable[[], Any]) -> Any:
    """The value for a key, made the first time; so many are kept, then all are forgotten."""
    found = known.get(key)
    if found is None:
        if len(known) >= most:
            known.clear()
        found = known[key] = make()
    return found


def _others(strand: Strand, k: int, of_calls: _OfCalls | None) -> Iterator[Access]:
    """Iterate over the accesses of a segment that are not those of its repeated operations."""
    segment = strand.segments[k]
    begin, end = strand.bounds(k)
    if begin == end and not (segment.writes or segment.reads or segment.seen):
        return
    overwrites, regions = ({}, {}) if of_calls is None else (of_calls.overwrites, of_calls.regions)
    written: set[Any] = set()
    for region in segment.writes:
        extent = extent_of(region)
        key = region.storage, extent.pattern
        if key not in written and not overwrites.get(key) and extent.low < extent.high:
            written.add(key)
            yield Access(strand, k, extent, True, region, region.storage)
    visited: dict[int, Any] = {}
    touched = [(r.storage, extent_of(r), r) for r in segment.seen.values()]
    for record in strand.records[begin:end]:
        touched += [(r.storage, extent_of(r), r) for r in _touched(record, regions, visited)]
    used: set[Any] = set()
    for storage, extent, region in (*((s, e, None) for s, e in segment.reads), *touched):
        key = storage, extent.pattern
        if key not in used and key not in written and key not in overwrites and extent.low < extent.high:
            used.add(key)
            yield Access(strand, k, extent, False, region, storage)


def _touched(record: Any, regions: dict[int, Any], visited: dict[int, Any]) -> list[Region]:
    adjoint = record.adjoint
    if adjoint is None:
        return []
    held = adjoint.held
    if held is None:
        return regions_of(adjoint, visited)
    found: list[Region] = []
    for name in held:
        part = getattr(adjoint, name)
        if not (id(part) in regions or (type(part) is tuple and not part)):
            found += regions_of(part, visited)
    return found


class _Pattern:
    """Segments in a certain order, with the repeated operations of each.

    Attributes
    ----------
    calls : list of tuple
        Strand, index of the segment, and operations, as (path, index, `_OfCalls`).
    storages : set of Storage
        What these operations access.
    disjoint : set of frozenset
        Other accesses to these storages with which no race was found.
    """

    __slots__ = ("calls", "disjoint", "storages")

    def __init__(self, calls: list[tuple[Path, int, _OfCalls]]) -> None:
        self.calls = calls
        self.storages = {access[0] for _, _, of_calls in calls for access in of_calls.found}
        self.disjoint: set[frozenset] = set()

    def accesses(self, strands: dict[Path, Strand]) -> Iterator[Access]:
        """Iterate over the accesses of the repeated operations."""
        for path, k, of_calls in self.calls:
            for storage, extent, writes, region in of_calls.found:
                yield Access(strands[path], k, extent, writes, region, storage)


_known_patterns: dict[tuple, _Pattern] = {}
_MOST_PATTERNS = 128


def _pattern_of(key: tuple, calls: list[tuple[Path, int, _OfCalls]]) -> _Pattern:
    return _remembered(_known_patterns, _MOST_PATTERNS, key, lambda: _Pattern(calls))


def found_in(strands: dict[Path, Strand], tape: Tape) -> ActivityError | None:
    """Return the error for a race of strands; None if there is none.

    Time loops have the same operations in the same order in each step: what has been found disjoint is not compared
    again.
    """
    by_storage: dict[Storage, list[Access]] = defaultdict(list)
    key: list[Any] = []
    calls: list[tuple[Path, int, _OfCalls]] = []
    for path, strand in strands.items():
        for k, segment in enumerate(strand.segments):
            of_calls = _of_calls(segment.calls) if segment.calls else None
            if of_calls is not None:
                calls.append((path, k, of_calls))
            key.append((path, frozenset(segment.clock.items()), of_calls))
            for access in _others(strand, k, of_calls):
                by_storage[access.storage].append(access)
    pattern = _pattern_of(tuple(key), calls)
    others = frozenset(
        (access.strand.path, access.segment, access.extent.pattern, access.writes, storage)
        for storage, accesses in by_storage.items()
        if storage in pattern.storages
        for access in accesses
    )
    known = others in pattern.disjoint
    if not known:
        for access in pattern.accesses(strands):
            by_storage[access.storage].append(access)
    found, are_disjoint = [], True
    for storage, accesses in by_storage.items():
        if known and storage in pattern.storages:
            continue
        writers = {access.strand for access in accesses if access.writes}
        if not writers or len({access.strand for access in accesses}) == 1:
            continue
        pair = _race_among(accesses)
        if pair is None:
            continue
        are_disjoint = False
        if storage.tape is tape.reference or not all(access.writes for access in accesses):
            found.append((sorted([pair[0].strand.path, pair[1].strand.path]), storage, pair))
        # Otherwise no derivative depends on it.
    if not found:
        if are_disjoint and not known:
            pattern.disjoint.add(others)
        return None
    _, storage, pair = min(found, key=lambda item: item[0])
    return _error(storage, *pair)


def _race_among(accesses: list[Access]) -> tuple[Access, Access] | None:
    accesses.sort(key=lambda access: (access.extent.low, access.strand.path, access.segment))
    reads: list[Access] = []
    writes: list[Access] = []
    for access in accesses:
        extent, low = access.extent, access.extent.low
        writes = [other for other in writes if other.extent.high > low]
        if access.writes:
            reads = [other for other in reads if other.extent.high > low]
        for other in (*writes, *reads) if access.writes else writes:
            if access.strand is other.strand or access.precedes(other) or other.precedes(access):
                continue
            if extent.overlaps(other.extent):
                return other, access
        (writes if access.writes else reads).append(access)
    return None


def _error(storage: Storage, first: Access, second: Access) -> ActivityError:
    first, second = sorted((first, second), key=lambda access: access.strand.path)
    region = first.region or second.region
    array = None
    if region is not None:
        array = np.lib.stride_tricks.as_strided(np.empty(1, region.dtype), region.shape, [0] * len(region.shape))
    parts = [f"{_name(access.strand)} {'writes to' if access.writes else 'reads'} it" for access in (first, second)]
    return ActivityError(
        f"{describe(storage, array)} is used at the same time by two tasks, in no determined order: "
        f"{parts[0]}, and {parts[1]}; ask for the result of one before the other is submitted (a lock, an event or a "
        "queue that both use orders them, too), or give each a part of the array that no other one overlaps (a slice: "
        "an array of indices or a mask counts as all of it), or a copy"
    )


def _name(strand: Strand) -> str:
    return strand.where if not strand.path else f"the task submitted at {strand.where}"
