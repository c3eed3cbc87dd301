"""Offsets of array elements in their storages, with tables for arrays of which many elements are used."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from ..memory.extents import may_repeat
from ..memory.regions import Region
from ..memory.storages import memory_at

SINGLE = 8
"""Added to the codes of memory of single precision."""

BITS: dict[Any, int] = {np.float64: 0, np.float32: SINGLE}
"""Added to the codes of memory, by the type of its numbers; other types cannot be variables."""
PAIR = -1
"""Stands for the code of complex elements, which are pairs of double numbers."""
_CODES = {**BITS, np.complex128: PAIR}

FEWEST, LARGEST = 16, 1 << 20
"""Elements looked up before a table of offsets is made, and elements of the largest such table."""
MOST_ROWS = 4096
"""Rows of an array that are cached."""


def steps_of(region: Region) -> tuple:
    """Return what locates the elements of an array: first offset, strides, shape, and what is added to codes.

    An empty tuple if statements on its elements have to be recorded in another way.
    """
    try:
        return region.steps
    except AttributeError:
        dtype, size = region.dtype, region.dtype.itemsize
        aligned = not any(n % size for n in (region.offset, *region.strides)) if size else False
        usual = dtype.type in _CODES and dtype.isnative and aligned and not region.storage.elsewhere
        if usual and not may_repeat(region.shape, region.strides, size):
            region.steps = region.offset, region.strides, region.shape, _CODES[dtype.type]
        else:
            region.steps = ()
        return region.steps


def offset_of(region: Region, key: Any) -> int | None:
    """Return the offset in its storage of the element that a key of integers selects; None for any other key, and for
    elements whose statements must be recorded in another way.

    An array of which an eighth of the elements have been looked up (a long vector sooner) gets a table of their
    offsets, which halves the time.
    """
    steps = steps_of(region)
    if not steps:
        return None
    offset, strides, shape, code = steps
    if type(key) is not tuple:
        key = (key,)
    if len(key) != len(shape):
        return None
    for k, stride, length in zip(key, strides, shape):
        if type(k) is not int:
            if not isinstance(k, np.integer):
                return None
            k = int(k)  # NumPy's integers may be too short for offsets
        if k < 0:
            k += length
        if not 0 <= k < length:
            return None  # NumPy will raise the error
        offset += k * stride
    try:
        region.asked += 1
    except AttributeError:
        region.asked = 1
    size = math.prod(shape)
    fewest, part = (FEWEST, 8) if len(shape) > 1 else (2, 64) if size > FEWEST else (FEWEST // 2, 64)
    if region.asked >= fewest and region.asked * part >= size and size <= LARGEST:
        region.asked = -sys.maxsize  # never again
        if len(shape) < 2:
            region.rows = None
        region.offsets = _offsets(steps[0], strides, shape)
        if code in (0, PAIR):
            storage = region.storage
            # Not a view of the array, which holds its region and so could never be freed.
            region.numbers = np.ndarray(
                shape, region.dtype, memory_at(storage.address, storage.nbytes), steps[0], strides
            )
    return offset


def row_of(region: Region, index: int) -> Region | None:
    """Return the region of a row that the program has taken from an array of several axes; None for an element.

    Rows are cached with the tables of their elements: a loop over ``a[i][j]`` makes thousands of views of them.
    """
    try:
        rows = region.rows
    except AttributeError:
        rows = region.rows = {} if len(region.shape) > 1 and region.dtype.names is None else None
    if rows is None:
        return None
    found = rows.get(index)
    if found is None:
        if len(rows) >= MOST_ROWS:
            rows.clear()
        found = rows[index] = region.row(index)
    return found


def _offsets(first: int, strides: tuple[int, ...], shape: tuple[int, ...]) -> memoryview:
    if len(shape) == 1:
        return memoryview(first + strides[0] * np.arange(shape[0], dtype=np.int64))
    offsets = np.full(shape, first, np.int64)
    for axis, (stride, length) in enumerate(zip(strides, shape)):
        offsets += (stride * np.arange(length)).reshape(-1, *(1,) * (len(shape) - axis - 1))
    return memoryview(offsets)
