"""Memory from before a time loop that its steps have overwritten: views of it, and copies of its values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..memory.extents import address_of
from ..memory.storages import Storage, memory_at, plain
from ..tape import place_of
from ..tape.recording import open_tapes
from .states import write


class _Part:
    """One view of such memory.

    If it has no gaps and no objects, ``flat`` are its bytes, whose copies are at ``offset`` of a block.
    """

    __slots__ = ("address", "flat", "nbytes", "offset", "storage", "view")

    def __init__(self, view: np.ndarray, storage: Storage, offset: int) -> None:
        self.view = view
        self.storage = storage
        self.offset = offset
        self.nbytes = view.nbytes
        self.flat: np.ndarray | None = None
        if view.flags.forc and not view.dtype.hasobject:
            self.flat = memory_at(address_of(view), view.nbytes)
        self.address = address_of(view)

    def is_free(self) -> bool:
        """Return whether writes there need not be reported."""
        storage = self.storage
        return not (storage.needs or storage.guard or storage.swapped_by)


class Written:
    """Views of all memory that existed when a loop began and that steps have overwritten, in order.

    Attributes
    ----------
    storages : dict
        This memory, with a view of each block that keeps it alive.
    nbytes : int
        Bytes of a copy.
    block_nbytes : int
        Bytes of the views without gaps, which are copied into one block.
    """

    def __init__(self) -> None:
        self._parts: dict[tuple, _Part] = {}
        self.storages: dict[Storage, np.ndarray] = {}
        self.nbytes = self.block_nbytes = 0

    def add(self, storage: Storage, view: np.ndarray) -> None:
        """Add memory that steps have overwritten."""
        place = place_of(view)
        if place not in self._parts:
            begin, aligned = self.block_nbytes, view.dtype.alignment
            offset = -(-begin // aligned) * aligned
            self._parts[place] = part = _Part(view, storage, offset)
            end = begin if part.flat is None else offset + view.nbytes
            self.nbytes += view.nbytes if part.flat is None else end - begin
            self.block_nbytes = end
        self.storages.setdefault(storage, view)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (part.view for part in self._parts.values())

    def parts(self) -> list[_Part]:
        """Return all views."""
        return list(self._parts.values())

    def blocks(self, copies: list[np.ndarray]) -> list[tuple[int, int]]:
        """Return addresses and bytes of the views, or of copies of these, in their order; see `block_of`."""
        return [
            block_of(part.view, copies) if part.flat is None else (part.address, part.nbytes)
            for part in self._parts.values()
        ]


def block_of(array: np.ndarray, copies: list[np.ndarray]) -> tuple[int, int]:
    """Return address and bytes of an array, or of a copy without gaps, which is added to ``copies``; objects: zeros."""
    if array.dtype.hasobject or not array.size:
        return 0, 0
    if not array.flags.forc:
        array = array.copy(order="K")
        copies.append(array)
    return address_of(array), array.nbytes


class Values:
    """The values of all memory that steps have written so far.

    Attributes
    ----------
    nbytes : int
    """

    def __init__(self, written: Written) -> None:
        self._parts = written.parts()
        self.nbytes = written.nbytes
        self._block = np.empty(written.block_nbytes, np.uint8)
        self._others: dict[_Part, np.ndarray] = {}
        to = address_of(self._block)
        for part in self._parts:
            if part.flat is None:
                self._others[part] = plain(part.view).copy(order="K")
            else:
                _copy(to + part.offset, part.address, part.nbytes)

    def __len__(self) -> int:
        return len(self._parts)

    def put_back(self, begin: int = 0) -> None:
        """Restore the values; the present ones are saved for tapes that need them."""
        block = address_of(self._block)
        for part in self._parts[begin:]:
            if part.flat is not None and part.is_free() and not open_tapes:
                _copy(part.address, block + part.offset, part.nbytes)
            else:
                write(part.view, self._of(part))

    def _of(self, part: _Part) -> np.ndarray:
        if part.flat is None:
            return self._others[part]
        view = part.view
        return np.ndarray(view.shape, view.dtype, self._block, part.offset, view.strides)


_copy: Any = ctypes.CDLL(None).memcpy
_copy.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
_copy.restype = None


def fingerprints(blocks: list[tuple[int, int]]) -> list[int]:
    """Return fingerprints of the bytes of blocks, always by compiled code, so that all of them are comparable."""
    from ..kernel.runtime.fingerprints import fingerprints as found

    return found(blocks)
