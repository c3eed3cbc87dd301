"""Regions: the places of arrays in their storages."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ActivityError
from .extents import address_of

if TYPE_CHECKING:
    from .storages import Storage


SLOT = 8
"""Bytes of the shadow of a packed storage for each byte."""


class Region:
    """The place of an array in its storage: offset, shape, strides and dtype.

    `tape.element_places` caches here what it needs to find elements (``asked``, ``steps``, ``offsets``, ``numbers``),
    and the regions of the rows in ``rows`` (None if these are elements); ``transposed`` is that of the transposed
    array.  `futures.races` caches the ``extent``.
    """

    __slots__ = (
        "asked",
        "dtype",
        "extent",
        "numbers",
        "offset",
        "offsets",
        "rows",
        "shape",
        "steps",
        "storage",
        "strides",
        "transposed",
    )

    def __init__(self, storage: Storage, array: np.ndarray) -> None:
        self.storage = storage
        self.offset = address_of(array) - storage.address
        self.shape = array.shape
        self.strides = array.strides
        self.dtype = array.dtype

    @classmethod
    def all_of(cls, storage: Storage, array: np.ndarray) -> Region:
        """Return the region of an array that begins with its storage."""
        region = cls.__new__(cls)
        region.storage = storage
        region.offset = 0
        region.shape = array.shape
        region.strides = array.strides
        region.dtype = array.dtype
        return region

    @property
    def place(self) -> tuple[Any, ...]:
        """A key that is equal for regions with the same elements of the same storage in the same order."""
        return self.storage, self.offset, self.shape, self.strides, self.dtype

    def view(self, block: np.ndarray) -> np.ndarray:
        """View this region in a block of bytes with the storage's layout (in its shadow, if that has slots)."""
        if self.storage.packed:
            return self._slots(block)
        try:
            return np.ndarray(self.shape, self.dtype, block, self.offset, self.strides)
        except (TypeError, ValueError):  # an empty region may lie anywhere
            if 0 not in self.shape:
                raise
            return np.empty(self.shape, self.dtype)

    def _slots(self, block: np.ndarray) -> np.ndarray:
        """View the slots of the elements' first bytes."""
        if self.dtype.kind == "c":
            raise ActivityError("packed bytes are viewed as complex numbers; unpack them first: datatype.Unpack(...)")
        if 0 in self.shape:
            return np.empty(self.shape)
        strides = tuple(SLOT * stride for stride in self.strides)
        return np.ndarray(self.shape, np.float64, block, SLOT * self.offset, strides)

    def tangent(self, push: Any) -> Any:
        """Return a copy of this region's tangent, for the program."""
        return np.array(push.get(self))

    def adjoint(self, sweep: Any, is_new: bool) -> Any:
        """Return this region's adjoint, that of an independent, without gaps, for the program; ``is_new``: no earlier
        record adds to it."""
        found = sweep.shadow(self) if is_new else sweep.result(self)
        return found if found.flags.forc else found.copy(order="K")

    def row(self, index: int) -> Region:
        """Return the region of ``array[index]``."""
        region = Region.__new__(Region)
        region.storage = self.storage
        region.offset = self.offset + (index + self.shape[0] if index < 0 else index) * self.strides[0]
        region.shape = self.shape[1:]
        region.strides = self.strides[1:]
        region.dtype = self.dtype
        return region

    def field(self, name: str) -> Region:
        """Return the region of one field of structured elements."""
        dtype, offset = self.dtype.fields[name][:2]  # type: ignore[index]
        region = Region.__new__(Region)
        region.storage = self.storage
        region.offset = self.offset + offset
        region.dtype = dtype.base
        region.shape = self.shape + dtype.shape
        inner = np.empty(dtype.shape, dtype.base).strides
        region.strides = self.strides + inner
        return region

    def is_all_ordinary(self) -> bool:
        """Return whether the region has as many bytes as its storage, and the storage is ordinary memory."""
        storage = self.storage
        return self.nbytes == storage.nbytes and not (storage.packed or storage.volatile or storage.elsewhere)

    def lies_like(self, array: np.ndarray) -> bool:
        """Return whether a C-ordered array has the elements of this region, in the same places of its storage."""
        flags = array.flags
        same = array.dtype == self.dtype and array.shape == self.shape and array.strides == self.strides
        return same and flags.c_contiguous and flags.writeable and flags.aligned and not self.offset

    @property
    def nbytes(self) -> int:
        """Bytes of the region's elements."""
        return math.prod(self.shape) * self.dtype.itemsize
