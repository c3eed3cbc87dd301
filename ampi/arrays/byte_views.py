"""Views of active numbers as bytes or integers.

Derivatives follow bytes that are moved and later read as numbers again: if bytes may be those of active numbers, the
shadow has a slot for each byte (`memory.storages.Storage.packed`), which is moved as the byte is. Arithmetic on bytes
carries no derivative and is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..memory.storages import (
    PACKED,
    Region,
    Storage,
    TrackedArray,
    address_of,
    behind,
    carries_derivatives,
    plain,
    region_of,
    storage_of,
    tracked,
    wrapped,
)
from ..tape import BaseAdjoint, Push, Sweep, Tape


def bits_in(tape: Tape, x: np.ndarray) -> int:
    """`PACKED` if an array of bytes, integers or booleans views active numbers, `RECEIVED` if it may, otherwise 0."""
    storage = storage_of(x)
    if storage is None or storage.tape is None or x.dtype.hasobject:
        return 0
    kind = _kind(storage, x)
    return kind if kind and tape.is_active(x) else 0


def _kind(storage: Storage, x: np.ndarray) -> int:
    if storage.packed:
        return storage.packed if x.dtype.itemsize == 1 else 0  # packed integers as well
    made = _made_as(x)
    if made is None or storage.volatile:
        return 0  # memory that is not ampi's, which may hold anything
    if carries_derivatives(made):
        return PACKED if _meets_numbers(storage, x, made) else 0
    return PACKED if made.itemsize == x.dtype.itemsize == 1 else 0


def _made_as(x: np.ndarray) -> np.dtype | None:
    """The dtype of the array that allocated the memory; None if no array did."""
    owner: Any = x
    while isinstance(base := behind(owner.base), np.ndarray):
        owner = base
    return owner.dtype if owner.base is None else None


def _meets_numbers(storage: Storage, x: np.ndarray, made: np.dtype) -> bool:
    """Return whether an array overlaps the real numbers in elements of a dtype, not only other fields."""
    if made.names is None or any(stride % made.itemsize for stride in x.strides):
        return True
    start = (address_of(x) - storage.address) % made.itemsize
    stop = start + x.dtype.itemsize
    return any(start < place + real.itemsize and place < stop for place, real in _reals(made))


def _reals(dtype: np.dtype, place: int = 0) -> Iterator[tuple[int, np.dtype]]:
    """Offsets and dtypes of the real numbers in an element of a dtype."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        for k in range(int(np.prod(shape))):
            yield from _reals(base, place + k * base.itemsize)
    elif dtype.names is not None:
        for name in dtype.names:
            field, start = dtype.fields[name][:2]  # type: ignore[index]
            yield from _reals(field, place + start)
    elif dtype.kind == "f":
        yield place, dtype
    elif dtype.kind == "c":
        real = np.empty(0, dtype).real.dtype
        yield place, real
        yield place + real.itemsize, real


def movable(tape: Tape | None, x: Any) -> TrackedArray | None:
    """An array of the same bytes with slots in its shadow; None if it does not hold bytes of active numbers.

    It is the array itself, or a copy if its memory was allocated for numbers.
    """
    if tape is None or not isinstance(x, np.ndarray) or x.dtype.itemsize != 1:
        return None
    kind = bits_in(tape, x)
    if not kind:
        return None
    storage: Any = storage_of(x)
    made = _made_as(x)
    if not storage.packed and made is not None and carries_derivatives(made):
        return _slotted(tape, x, storage, made)
    storage.packed = kind
    return tracked(x)


def _slotted(tape: Tape, x: np.ndarray, storage: Storage, made: np.dtype) -> TrackedArray:
    """A recorded copy of the bytes of numbers."""
    result = wrapped(np.array(plain(x), order="C"))
    tape.activate(result)
    storage_of(result).packed = PACKED  # type: ignore[union-attr]
    places = np.full(x.shape, address_of(x) - storage.address)
    for axis, stride in enumerate(x.strides):
        places += (np.arange(x.shape[axis]) * stride).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    tape.append(_Slotted(storage, places.reshape(-1), made, region_of(result)), created=(result,))
    return result


class _Slotted(BaseAdjoint):
    """Adjoint of a copy of the bytes of numbers: the slot of a number's first byte holds the number's adjoint."""

    __slots__ = ("made", "places", "result", "storage")
    reads_memory = False
    second_order = "linear"

    def __init__(self, storage: Storage, places: np.ndarray, made: np.dtype, result: Region) -> None:
        self.storage = storage
        self.places = places
        self.made = made
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = sweep.shadow(self.result).reshape(-1)
        inside = self.places % self.made.itemsize
        for start, real in _reals(self.made):
            chosen = np.flatnonzero((inside == start) & (g != 0))
            if chosen.size:
                self._add(sweep.block(self.storage), real, self.places[chosen], g[chosen])

    def tangent(self, push: Push) -> None:
        """Put each number's tangent into the slot of its first byte."""
        block = push.block(self.storage)
        found = np.zeros(len(self.places))
        inside = self.places % self.made.itemsize
        for start, real in _reals(self.made):
            chosen = np.flatnonzero(inside == start)
            if self.storage.packed:
                found[chosen] = block.view(np.float64)[self.places[chosen]]
            else:
                parts = self.places[chosen][:, None] + np.arange(real.itemsize)
                found[chosen] = block[parts].view(real)[:, 0] if chosen.size else 0
        push.put(self.result, found.reshape(self.result.shape))

    def _add(self, block: np.ndarray, real: np.dtype, places: np.ndarray, g: np.ndarray) -> None:
        if self.storage.packed:
            np.add.at(block.view(np.float64), places, g)
            return
        first, which = np.unique(places, return_inverse=True)
        parts = first[:, None] + np.arange(real.itemsize)
        sums = block[parts].view(real)[:, 0] + np.bincount(which, g)
        block[parts] = sums.astype(real)[:, None].view(np.uint8)
