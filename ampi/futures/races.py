"""Races: accesses of two strands to the same memory, one of which writes, that nothing orders."""

from __future__ import annotations

import operator
import types
from collections import defaultdict
from collections.abc import Iterator
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

    __slots__ = ("extent", "region", "segment", "strand", "writes")

    def __init__(self, strand: Strand, segment: int, extent: Extent, writes: bool, region: Any) -> None:
        self.strand, self.segment, self.extent, self.writes, self.region = strand, segment, extent, writes, region

    def precedes(self, other: Access) -> bool:
        """Return whether this access happened before the other one."""
        return other.strand.segments[other.segment].clock.get(self.strand.path, 0) > self.segment


class _OfCalls:
    """The accesses of repeated operations, each once.

    Attributes
    ----------
    found : list of tuple
        Storage, extent, whether it is overwritten, and region or None.
    regions : dict
        Regions and containers of these, by their ids.
    """

    __slots__ = ("calls", "found", "regions")

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


_known_calls: dict[tuple[Accesses, ...], _OfCalls] = {}
_MOST_KNOWN = 1024


def _of_calls(calls: list[Accesses]) -> _OfCalls:
    key = tuple(calls)
    found = _known_calls.get(key)
    if found is None:
        if len(_known_calls) >= _MOST_KNOWN:
            _known_calls.clear()
        found = _known_calls[key] = _OfCalls(key)
    return found


def accesses_of(strand: Strand) -> Iterator[tuple[Storage, Access]]:
    """Iterate over the accesses of a strand, each once for each segment."""
    for k, segment in enumerate(strand.segments):
        seen: set[Any] = set()
        visited: dict[int, Any] = {}
        begin, end = strand.bounds(k)
        if segment.calls:
            calls = _of_calls(segment.calls)
            visited.update(calls.regions)
            for storage, extent, writes, region in calls.found:
                yield storage, Access(strand, k, extent, writes, region)
        for region in segment.writes:
            extent = extent_of(region)
            key = region.storage, extent.pattern, True
            if key not in seen and extent.low < extent.high:
                seen.add(key)
                yield region.storage, Access(strand, k, extent, True, region)
        records = strand.records[begin:end]
        touched = [(r.storage, extent_of(r), r) for r in segment.seen.values()]
        touched += [(r.storage, extent_of(r), r) for record in records for r in _touched(record, visited)]
        for storage, extent, region in (*((s, e, None) for s, e in segment.reads), *touched):
            key = storage, extent.pattern, False
            if key not in seen and (storage, extent.pattern, True) not in seen and extent.low < extent.high:
                seen.add(key)
                yield storage, Access(strand, k, extent, False, region)


def _touched(record: Any, visited: dict[int, Any]) -> list[Region]:
    adjoint = record.adjoint
    if adjoint is None:
        return []
    held = adjoint.held
    if held is None:
        return regions_of(adjoint, visited)
    for name in held:
        part = getattr(adjoint, name)
        if not (id(part) in visited or (type(part) is tuple and not part)):
            return regions_of(adjoint, visited)
    return []  # all are those of a repeated operation


def found_in(strands: dict[Path, Strand], tape: Tape) -> ActivityError | None:
    """Return the error for a race of strands; None if there is none."""
    by_storage: dict[Storage, list[Access]] = defaultdict(list)
    for strand in strands.values():
        for storage, access in accesses_of(strand):
            by_storage[storage].append(access)
    found = []
    for storage, accesses in by_storage.items():
        writers = {access.strand for access in accesses if access.writes}
        if not writers or len({access.strand for access in accesses}) == 1:
            continue
        if storage.tape is not tape.reference and all(access.writes for access in accesses):
            continue  # no derivative depends on it
        pair = _race_among(accesses)
        if pair is not None:
            found.append((sorted([pair[0].strand.path, pair[1].strand.path]), storage, pair))
    if not found:
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
