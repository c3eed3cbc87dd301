"""Statements that add to a few elements of an array, or set them (`ampi.tape.flows`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory.regions import Region
from ..memory.storages import Storage, as_viewed, new_region
from ..tape import Tape, current
from ..tape.elements import FLOW, LONGEST, Elements
from ..tape.flows import COUNT, NEGATIVE, OVERWRITES, SPREAD, STEP
from ..tape.flows import MOST as MOST

_DOUBLE = np.dtype(np.float64)
_SETS = FLOW + OVERWRITES
_copy = np.copyto
_FARTHEST = 8 * (STEP >> 2)


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


def open_for(pen: Elements) -> None:
    """Begin a record, unless statements that read and write memory may be added to the tape's last one."""
    if pen.records[-1] is not pen.current or len(pen.integers) > LONGEST:
        pen.open()


def place_of(pen: Elements, storage: Storage) -> int:
    """Return the code of a storage whose elements a statement reads or writes."""
    place = pen.places.get(storage)
    if place is None:
        place = pen.place(storage)
    return place


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


def assign(target: Any, x: Any) -> bool:
    """``target[...] = x`` for vectors of a few elements; False: it needs a record."""
    tape = current()
    if tape is None or (pen := tape.pen) is None or target.shape != x.shape or len(x.shape) != 1:
        return False
    region = getattr(target, "_region", None) or new_region(target)
    source = getattr(x, "_region", None) or new_region(x)
    storage, origin, reference = region.storage, source.storage, tape.reference
    if (
        region.dtype is not _DOUBLE
        or source.dtype is not _DOUBLE
        or origin.tape is not reference
        or (storage.tape is not reference and storage.tape is not None)
        or not target.flags.writeable
        or not (to := step_of(region))
        or not (where := step_of(source))
        or not pen.can_read(storage)
        or not pen.can_read(origin)
        or storage.swapped_by
        or origin.swapped_by
        or storage.elsewhere
        or origin.elsewhere
    ):
        return False
    if origin is storage:  # `a[key] += b` assigns what it has just computed in place
        return source.offset == region.offset and where == to
    if storage.needs:
        return False
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    _copy(as_viewed(target, np.ndarray), as_viewed(x, np.ndarray))
    storage.tape = reference
    place = place_of(pen, origin) + where
    pen.integers += (source.offset, place, region.offset, place_of(pen, storage) + to, x.size * COUNT + _SETS)
    return True
