"""Messages from ``MPI.BOTTOM``: displacements are addresses, and elements may lie in the memory of several owners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import ActivityError
from ...memory.live_arrays import tracked_arrays
from ...memory.storages import Memory, Region, Storage, arrays_of_blocks, memory_at, memory_of, storage_of
from ...tape import Sweep, Tape, Undo
from .argument_forms import per_rank, typemap_for
from .buffers import NOTHING, Buffer, buffer_at
from .typemaps import Piece, Typemap, reach, typemap_at

_Blocks = list[tuple[Storage, np.ndarray]]


class Composite(Buffer):
    """A message from ``MPI.BOTTOM`` whose elements lie in several storages, or in some and in plain memory.

    Attributes
    ----------
    parts : list of (numpy.ndarray, Buffer)
        For each storage, and for plain memory: the indices of the message's elements that lie there (ascending), and
        their buffer.
    asides : list of Buffer
        Elements of other dtypes: memory that a receive overwrites as well.
    ends : numpy.ndarray of int64 or None
        In a mixed message: number of packed bytes up to and including each element.
    """

    __slots__ = ("asides", "ends", "parts")

    def __init__(
        self, dtype: np.dtype, count: int, parts: list[tuple[np.ndarray, Buffer]], ends: np.ndarray | None = None
    ) -> None:
        super().__init__(None, None, dtype, count)
        self.parts = parts
        self.asides: list[Buffer] = []
        self.ends = ends
        self.mixed = ends is not None
        self.tracked = any(part.tracked for _, part in parts)
        self.storage = next((part.storage for _, part in parts if part.storage is not None), None)

    @property
    def storages(self) -> Sequence[Storage | None]:
        """The storages of the memory."""
        return [part.storage for part in self._all() if part.storage is not None]

    @property
    def loses(self) -> bool:
        """True if some derivatives that are received would be lost."""
        return any(part.loses for _, part in self.parts)

    def _all(self) -> list[Buffer]:
        return [part for _, part in self.parts] + self.asides

    def on(self, tape: Tape) -> bool:
        """As `Buffer.on`."""
        return any([part.on(tape) for part in self._all()])

    def active(self, tape: Tape) -> bool:
        """As `Buffer.active`."""
        return any([part.active(tape) for part in self._all()])

    def activate(self, tape: Tape) -> None:
        """As `Buffer.activate`."""
        for _, part in self.parts:
            part.activate(tape)

    def need(self, tape: Tape) -> Callable[[], np.ndarray]:
        """As `Buffer.need`."""
        values = [(where, part.need(tape)) for where, part in self.parts]
        return lambda: self._gathered((where, value()) for where, value in values)

    def values(self) -> np.ndarray:
        """As `Buffer.values`."""
        return self._gathered((where, part.values()) for where, part in self.parts)

    def store(self, values: np.ndarray) -> None:
        """As `Buffer.store`."""
        if values.dtype.names is not None:
            raise _mixes_memory()
        for where, part in self.parts:
            part.store(values[where])

    def others(self, dtype: np.dtype) -> np.ndarray:
        """As `Buffer.others`; an error, because their order is not stored."""
        raise _mixes_memory()

    def overwritten(self) -> list[np.ndarray]:
        """As `Buffer.overwritten`."""
        return [view for part in self._all() for view in part.overwritten()]

    def overwrite(self) -> list[Undo]:
        """As `Buffer.overwrite`."""
        return [undo for part in self._all() for undo in part.overwrite()]

    def detach(self) -> Composite:
        """As `Buffer.detach`."""
        for part in self._all():
            if part.storage is not None:  # an array on plain memory does not keep it alive
                part.detach()
        return self

    def places(self) -> np.ndarray:
        """As `Buffer.places`."""
        itemsize = self.dtype.itemsize
        return np.arange(self.count, dtype=np.int64) * itemsize if self.ends is None else self.ends - itemsize

    def within(self, nbytes: int) -> Buffer:
        """As `Buffer.within`."""
        if nbytes >= self.nbytes:
            return self
        ends = self.places() + self.dtype.itemsize
        return self.first(int(np.searchsorted(ends, nbytes, side="right")))

    def part(self, start: int, stop: int) -> Composite:
        """As `Buffer.part`."""
        parts = []
        for where, part in self.parts:
            low, high = np.searchsorted(where, [start, stop])
            if low < high:
                parts.append((where[low:high] - start, part.part(int(low), int(high))))
        return Composite(self.dtype, stop - start, parts, None if self.ends is None else self.ends[start:stop])

    def shape(self) -> tuple[tuple[int, ...], str]:
        """As `Buffer.shape`."""
        return (self.count,), "C"

    def regions(self) -> list[Region]:
        """As `Buffer.regions`."""
        return [region for _, part in self.parts for region in part.regions()]

    def peek(self, sweep: Sweep) -> np.ndarray:
        """As `Buffer.peek`."""
        return self._gathered((where, part.peek(sweep)) for where, part in self.parts)

    def take(self, sweep: Sweep) -> np.ndarray:
        """As `Buffer.take`."""
        taken = self.peek(sweep)
        self.zero(sweep)
        return taken

    def zero(self, sweep: Sweep) -> None:
        """As `Buffer.zero`."""
        for _, part in self.parts:
            part.zero(sweep)

    def add(self, sweep: Sweep, flat: np.ndarray) -> None:
        """As `Buffer.add`."""
        for where, part in self.parts:
            part.add(sweep, flat[where])

    def _gathered(self, found: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        whole = np.zeros(self.count, self.dtype)
        for where, flat in found:
            whole[where] = flat
        return whole


def _mixes_memory() -> ActivityError:
    return ActivityError(
        "a message from MPI.BOTTOM of bytes, with several floating-point dtypes, or reduced with locations, mixes the "
        "memory of an array that ampi tracks with other memory; send each array in a separate message"
    )


def vector_at_addresses(datatype: Any, counts: Any, displs: Any, blocks: int) -> Buffer:
    """Return the buffer of a message from ``MPI.BOTTOM`` with one count per rank."""
    counts = [0] * blocks if counts is None else per_rank(counts, blocks, lambda value: [value] * blocks)
    displs = (
        [0] * blocks if displs is None else per_rank(displs, blocks, lambda value: [value * r for r in range(blocks)])
    )
    if not any(counts) or datatype is None:
        nothing = Buffer(None, None, None, 0)
        nothing.counts = [0] * blocks
        return nothing
    typemap = typemap_for(datatype)
    items = [displ + np.arange(count) for count, displ in zip(counts, displs)]
    buffer = _at_items(typemap, np.concatenate(items) * typemap.extent, tracked_blocks())
    length = buffer.count // sum(counts)
    buffer.counts = [count * length for count in counts]
    return buffer


def at_addresses(datatype: Any, count: int, displ: int, start: int = 0, tracked: _Blocks | None = None) -> Buffer:
    """Return the buffer of a message from ``MPI.BOTTOM``: the datatype's displacements are addresses in memory.

    Raises
    ------
    ActivityError
        The message lies in several storages, or in one and in plain memory, and consists of bytes or of several
        floating-point dtypes.
    """
    if count == 0 or datatype is None:
        return NOTHING
    typemap = typemap_for(datatype)
    address = start + displ * typemap.extent
    low, high = bounds(typemap, count, address)
    tracked = _blocks_between(tracked_blocks() if tracked is None else tracked, low, high)
    for storage, array in tracked:
        if storage.address <= low and high <= storage.address + storage.nbytes:
            return buffer_at(memory_of(array, storage), typemap, count, address)
    return _at_items(typemap, address + np.arange(count, dtype=np.int64) * typemap.extent, tracked)


def _at_items(typemap: Typemap, items: np.ndarray, tracked: _Blocks) -> Buffer:
    """Return the buffer of items of a typemap at these addresses, in memory of any owner."""
    elements = [(dtype, (items[:, None] + piece.offsets()).ravel()) for dtype, piece in typemap.extra]
    if typemap.dtype is not None:
        elements.insert(0, (typemap.dtype, (items[:, None] + typemap.offsets).ravel()))
    elements = [(dtype, addresses) for dtype, addresses in elements if len(addresses)]
    low = min((int(addresses.min()) for _, addresses in elements), default=0)
    high = max((int(addresses.max()) + dtype.itemsize for dtype, addresses in elements), default=0)
    blocks = _blocks_between(tracked, low, high)
    owners = [_owners(blocks, addresses, dtype.itemsize) for dtype, addresses in elements]
    touched = {int(k) for owner in owners for k in np.unique(owner)}
    if not touched:
        return NOTHING
    if touched != {_PLAIN} and (typemap.dtype is None or typemap.dtype.itemsize == 1):
        raise _mixes_memory()
    if typemap.dtype is None:
        return buffer_at((memory_at(low, high - low), None, None), typemap, len(items), 0)
    memories = [*blocks, (None, memory_at(low, high - low))]  # the last one is that at _PLAIN
    parts = [
        (where, _scattered(*memories[k], typemap.dtype, elements[0][1][where])) for k, where in _by_owner(owners[0])
    ]
    ends = None
    if typemap.mixed:
        ends = (typemap.size * np.arange(len(items))[:, None] + typemap.places).ravel()
    buffer = Composite(typemap.dtype, len(elements[0][1]), parts, ends)
    buffer.nbytes = len(items) * typemap.size
    buffer.asides = [
        _scattered(*memories[k], dtype, addresses[where])
        for (dtype, addresses), owner in zip(elements[1:], owners[1:])
        for k, where in _by_owner(owner)
        if k != _PLAIN
    ]
    return buffer


_PLAIN = -1  # in place of a storage's number: memory that is not tracked


def _by_owner(owner: np.ndarray) -> list[tuple[int, np.ndarray]]:
    return [(int(k), np.flatnonzero(owner == k)) for k in np.unique(owner)]


def _scattered(storage: Storage | None, array: np.ndarray, dtype: np.dtype, addresses: np.ndarray) -> Buffer:
    """Return the buffer of elements at these addresses in one block of memory."""
    low = int(addresses.min())
    typemap = typemap_at(dtype, addresses - low)
    if storage is None:  # only warnings use the exact elements
        memory: Memory = _regular(typemap.pieces(1), dtype, low), None, None
    else:
        memory = memory_of(array, storage)
    buffer = buffer_at(memory, typemap, 1, low)
    if buffer.dtype != dtype or buffer.raw or (buffer.storage is not None and buffer.storage.packed):
        raise _mixes_memory()
    return buffer


def _regular(pieces: list[Piece], dtype: np.dtype, address: int) -> np.ndarray:
    """Return an array on elements in memory that is not tracked: exactly these elements if they are regular."""
    low, high = reach(pieces, dtype.itemsize)
    memory = memory_at(address + low, high - low)
    if len(pieces) != 1:
        return memory.view(dtype) if memory.nbytes % dtype.itemsize == 0 else memory
    ((offset, shape, strides),) = pieces
    return np.ndarray(shape, dtype, memory, offset - low, strides)


def tracked_blocks() -> _Blocks:
    """Return all storages, with an array on each, in the order of their addresses."""
    found: dict[int, tuple[Storage, np.ndarray]] = {}
    for array in [*tracked_arrays(), *arrays_of_blocks()]:
        storage = storage_of(array)
        if storage is not None:
            found.setdefault(id(storage), (storage, array))
    return sorted(found.values(), key=lambda block: block[0].address)


def _blocks_between(blocks: _Blocks, low: int, high: int) -> _Blocks:
    """Return the blocks that have bytes between two addresses."""
    return [
        (storage, array)
        for storage, array in blocks
        if storage.address < high and low < storage.address + storage.nbytes
    ]


def _owners(blocks: _Blocks, addresses: np.ndarray, itemsize: int) -> np.ndarray:
    """Return the number of the storage of each element; _PLAIN for none."""
    if not blocks:
        return np.full(len(addresses), _PLAIN)
    begins = np.array([storage.address for storage, _ in blocks])
    ends = np.array([storage.address + storage.nbytes for storage, _ in blocks])

    def owner_of(byte: np.ndarray) -> np.ndarray:
        k = np.searchsorted(begins, byte, side="right") - 1
        return np.where((k >= 0) & (byte < ends[k]), k, _PLAIN)

    owner = owner_of(addresses)
    if (owner != owner_of(addresses + itemsize - 1)).any():
        raise _mixes_memory()
    return owner


def bounds(typemap: Typemap, count: int, address: int) -> tuple[int, int]:
    """Return the first byte of a message's elements, and the one after the last."""
    ends = [reach([piece], dtype.itemsize) for dtype, piece in _elements(typemap)]
    low = min((end[0] for end in ends), default=0)
    high = max((end[1] for end in ends), default=0)
    last = (count - 1) * typemap.extent
    return address + low + min(last, 0), address + high + max(last, 0)


def _elements(typemap: Typemap) -> list[tuple[np.dtype, Piece]]:
    """Return the elements of one item."""
    pieces = [] if typemap.dtype is None else [(typemap.dtype, piece) for piece in typemap.pieces(1)]
    return [*pieces, *typemap.extra]
