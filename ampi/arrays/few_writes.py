"""Statements that add to a few elements of an array, or set them (`ampi.tape.flows`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory.regions import Region
from ..memory.storages import Storage, TrackedArray, address_of, as_viewed, storage_of
from ..tape import Tape, current
from ..tape.elements import CLEAR, FLOW, LONGEST, Elements
from ..tape.flows import COUNT, NEGATIVE, OVERWRITES, SPREAD, STEP, VARIABLES
from ..tape.flows import MOST as MOST

_DOUBLE = np.dtype(np.float64)
_SETS = FLOW + OVERWRITES
_copy = np.copyto
_set_item = np.ndarray.__setitem__
_FARTHEST = 8 * (STEP >> 2)
OWN = VARIABLES + STEP
"""The word of the place of elements that are variables with successive numbers."""


def step_of(region: Region) -> int:
    """Return the step from one element of an array to the next, for the word of its place; 0 if there is no such."""
    shape, strides = region.shape, region.strides
    if region.offset & 7:
        return 0
    if len(shape) == 1:
        (stride,) = strides
        return STEP if stride == 8 else (stride >> 3) * STEP if 0 < stride < _FARTHEST and not stride & 7 else 0
    expected = 8
    for n, stride in zip(reversed(shape), reversed(strides)):
        if stride != expected and n != 1:
            return 0
        expected *= n
    return STEP


def place_in_memory(x: Any) -> tuple[Storage, int, int]:
    """Return the storage of a vector, its offset there, and its step as of `step_of`.

    Most are views that exist for one operation: no region is made for them.
    """
    region = getattr(x, "_region", None)
    if region is not None:
        return region.storage, region.offset, step_of(region)
    base = x.base
    storage: Any = getattr(base, "_storage", None) if isinstance(base, TrackedArray) else None
    if storage is None:
        storage = storage_of(x)
    offset = address_of(x) - storage.address
    (stride,) = x.strides
    if offset & 7:
        return storage, offset, 0
    if stride == 8:
        return storage, offset, STEP
    return storage, offset, (stride >> 3) * STEP if 0 < stride < _FARTHEST and not stride & 7 else 0


def open_for(pen: Elements) -> None:
    """Begin a record, unless statements that read and write memory may be added to the tape's last one."""
    if not pen.records or pen.records[-1] is not pen.current or len(pen.integers) > LONGEST:
        pen.open()


def place_of(pen: Elements, storage: Storage) -> int:
    """Return the code of a storage whose elements a statement reads or writes."""
    place = pen.places.get(storage)
    if place is None:
        place = pen.place(storage)
    return place


def is_ordinary(storage: Storage) -> bool:
    """Return whether memory is the usual one: statements and records of the fast paths may read and write it."""
    return not (
        storage.guard
        or storage.swapped_by
        or storage.volatile
        or storage.packed
        or storage.arriving
        or storage.elsewhere
    )


def add(tape: Tape, source: Any, target: Region, count: int, negative: bool) -> bool:
    """Add the statement that adds a region or a variable to a few elements, or subtracts it; False: it needs a record.

    The source must not overlap the target.
    """
    pen: Any = tape.pen
    to = step_of(target)
    if not to:
        return False
    head = count * COUNT + FLOW + (NEGATIVE if negative else 0)
    if type(source) is int:
        open_for(pen)
        pen.integers += (source, 0, target.offset, place_of(pen, target.storage) + to, head + SPREAD)
        return True
    where = step_of(source)
    if not where:
        return False
    open_for(pen)
    places = source.offset, place_of(pen, source.storage) + where, target.offset, place_of(pen, target.storage) + to
    pen.integers += (*places, head)
    return True


def fill(tape: Tape, target: Any, number: Any, variable: int | None) -> bool:
    """``target[...] = number`` for a vector of a few elements, a variable or a constant; False: it needs a record."""
    pen: Any = tape.pen
    if len(target.shape) != 1 or not 0 < target.shape[0] <= MOST or target.dtype is not _DOUBLE:
        return False
    reference, count = tape.reference, target.shape[0]
    storage, offset, to = place_in_memory(target)
    if not to or storage.needs or not is_ordinary(storage) or not target.flags.writeable:
        return False
    if storage.tape is not reference and storage.tape is not None:
        return False
    if storage.tape is None and variable is None:
        _set_item(target, slice(None), number)
        return True  # constants into a constant: nothing is recorded, perhaps on a tape without any record
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    _set_item(target, slice(None), number)
    place = place_of(pen, storage)
    if variable is not None:
        storage.tape = reference
        pen.integers += (variable, 0, offset, place + to, count * COUNT + _SETS + SPREAD)
    else:
        (stride,) = target.strides
        for k in range(count):
            pen.integers += (offset + k * stride, place + CLEAR)
    return True


def assign(target: Any, x: Any) -> bool:
    """``target[...] = x`` for vectors of a few elements; False: it needs a record."""
    tape = current()
    if tape is None or (pen := tape.pen) is None or target.shape != x.shape or len(x.shape) != 1:
        return False
    if target.dtype is not _DOUBLE or x.dtype is not _DOUBLE or not target.flags.writeable:
        return False
    reference = tape.reference
    storage, offset, to = place_in_memory(target)
    if not to or (storage.tape is not reference and storage.tape is not None):
        return False
    if not is_ordinary(storage):
        return False
    node = getattr(x, "_node", None)
    if node is not None:
        if node[2] is not reference:
            return False
        origin, source, where = None, 8 * node[1], OWN
    else:
        origin, source, where = place_in_memory(x)
        if not where or origin.tape is not reference or not is_ordinary(origin):
            return False
        if origin is storage:  # `a[key] += b` assigns what it has just computed in place
            return source == offset and where == to
    if storage.needs:
        return False
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    _copy(as_viewed(target, np.ndarray), as_viewed(x, np.ndarray))
    storage.tape = reference
    if origin is not None:
        where += place_of(pen, origin)
    pen.integers += (source, where, offset, place_of(pen, storage) + to, x.size * COUNT + _SETS)
    return True
