"""Interleaved shadows of a vector sweep: all directions of one element side by side, for the adjoints of kernels.

The adjoints of an element are contiguous, so that compiled code with a vector for each derivative reads and writes
them at once.  Other operations use shadows in rows, one for each direction; shadows are converted when needed.
"""

from __future__ import annotations

import numpy as np

from ..memory.storages import Region, Storage, address_of

WIDTH = 8
"""The number of directions that compiled code handles at once."""
FEWEST = 4
"""The smallest number of directions that pays off: with fewer, more than half of each vector would be empty."""
LINE = 64  # bytes of a cache line, with which blocks are aligned
_DTYPES = frozenset(map(np.dtype, ("f8", "f4")))


def padded(count: int) -> int:
    """Return the number of directions rounded up to whole vectors."""
    return -(-count // WIDTH) * WIDTH


def fits(region: Region) -> bool:
    """Return whether a region can be viewed in interleaved shadows."""
    storage, dtype = region.storage, region.dtype
    if dtype not in _DTYPES or storage.volatile or storage.packed or storage.elsewhere:
        return False
    size = dtype.itemsize
    return not (storage.nbytes % size or region.offset % size or any(stride % size for stride in region.strides))


def allocate(storage: Storage, dtype: np.dtype, count: int) -> np.ndarray:
    """Allocate interleaved adjoints of a storage without setting them."""
    shape = storage.nbytes // dtype.itemsize, padded(count)
    memory = np.empty(storage.nbytes * shape[1] + LINE, np.uint8)
    return np.ndarray(shape, dtype, memory, -address_of(memory) % LINE)


def of_rows(rows: np.ndarray | None, storage: Storage, dtype: np.dtype, count: int) -> np.ndarray:
    """Interleave the adjoints of a storage; each of the ``rows`` of bytes has one direction (None: zeros)."""
    block = allocate(storage, dtype, count)
    if rows is None:
        block[...] = 0
    else:
        block[:, :count] = rows[:, : storage.nbytes].view(dtype).T
        block[:, count:] = 0
    return block


def into_rows(block: np.ndarray, rows: np.ndarray) -> None:
    """Copy interleaved adjoints into rows of bytes, one for each direction."""
    size, dtype = block.shape[0], block.dtype
    rows[:, : size * dtype.itemsize].view(dtype)[...] = block[:, : len(rows)].T


def view_of(block: np.ndarray, region: Region) -> np.ndarray:
    """View the adjoints of a region in such a block; the directions are the last axis."""
    room = block.shape[1]
    if 0 in region.shape:  # an empty region may lie anywhere
        return np.empty((*region.shape, room), block.dtype)
    strides = *(stride * room for stride in region.strides), block.itemsize
    return np.ndarray((*region.shape, room), block.dtype, block, region.offset * room, strides)
