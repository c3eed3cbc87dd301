"""Fast path of assignments between arrays of one shape and precision; `writing` records all others."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..memory.extents import Extent
from ..memory.storages import Region, Storage, TrackedArray, array_type, as_viewed, region_of
from ..tape import Record, Tape, Undo, current, save
from .few_writes import is_ordinary
from .writing import Assign

LARGEST = sys.maxsize
"""Most elements of the arrays for which there are fast paths; tests lower it."""
_DTYPES = frozenset((np.dtype(np.float64), np.dtype(np.float32)))
_copy = np.copyto


def assign(target: Any, x: Any) -> bool:
    """``target[...] = x`` for active arrays of one shape and precision; False: record it with `writing`."""
    if not type(target) is type(x) is array_type():
        return False
    tape = current()
    if tape is None or tape.pen is None or tape.accesses is not None:
        return False
    region = region_of(target)
    source = source_of(tape, x, region)
    if source is None or not may_write(tape, target, region):
        return False
    storage = region.storage
    if source.storage is storage and source.offset == region.offset and source.strides == region.strides:
        return True  # `a[key] += b` assigns what it has just computed in place
    if source.storage is storage and len(region.shape) == 1 and source.strides != region.strides:
        return False  # writing might overtake reading
    if tape.before_append is not None:
        tape.before_append()
    view = as_viewed(target, np.ndarray)
    undo = saved(tape, storage, view)
    _copy(view, as_viewed(x, np.ndarray))
    storage.tape = tape.reference
    tape.append_record(Record(Assign(region, source), undo, ()))
    return True


def source_of(tape: Tape, x: TrackedArray, target: Region) -> Region | None:
    """Return the region of an active array that has the shape and dtype of a target; None for all others."""
    source = region_of(x)
    storage = source.storage
    if (
        storage.tape is not tape.reference
        or source.shape != target.shape
        or source.dtype is not target.dtype
        or not is_ordinary(storage)
        or not is_in_rows(x)
    ):
        return None
    return source


def may_write(tape: Tape, target: TrackedArray, region: Region) -> bool:
    """Return whether a record of the fast path may overwrite all of an array."""
    storage = region.storage
    return (
        0 < target.size <= LARGEST
        and region.dtype in _DTYPES
        and (storage.tape is None or storage.tape is tape.reference)
        and is_ordinary(storage)
        and target.flags.writeable
        and is_in_rows(target)
    )


def saved(tape: Tape, storage: Storage, view: np.ndarray) -> Sequence[Undo]:
    """Save the values of an array that adjoints need, before it is overwritten."""
    if not storage.needs:
        return ()
    undo: list[Undo] = []
    save(tape, storage, view, Extent(view), undo)
    return undo


def is_in_rows(x: np.ndarray) -> bool:
    """Return whether the elements of an array are distinct and in C order, perhaps with gaps.

    NumPy gives the result of a ufunc of such arrays C order as well.
    """
    if x.flags.c_contiguous:
        return True
    least = x.itemsize
    for n, stride in zip(reversed(x.shape), reversed(x.strides)):
        if stride < least:
            return False
        least = n * stride
    return True
