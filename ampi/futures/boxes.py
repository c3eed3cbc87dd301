"""Regions as boxes of elements: whether one contains another, their intersection, hull and difference."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..memory.extents import may_repeat
from ..memory.storages import Region


def is_part(region: Region) -> bool:
    """Return whether a region is a box: numbers in ordinary memory, each once, at positive strides."""
    storage = region.storage
    if storage.packed or storage.volatile or storage.elsewhere or region.dtype.kind not in "fc":
        return False
    return _is_grid(region.shape, region.strides, region.dtype.itemsize)


@functools.lru_cache(1024)
def _is_grid(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    if 0 in shape or any(stride <= 0 for stride in strides):
        return False
    return not may_repeat(shape, strides, itemsize)


def _place_in(region: Region, box: Region) -> list[int] | None:
    """Return the index in a box of the first element of a region; None if the region is not certainly inside."""
    strides, shape = box.strides, box.shape
    if region is box:
        return [0] * len(shape)
    left = region.offset - box.offset
    if left < 0 or region.strides != strides or region.dtype != box.dtype or 0 in region.shape:
        return None
    index = [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        index[axis], left = divmod(left, strides[axis])
        if index[axis] + region.shape[axis] > shape[axis]:
            return None
    return None if left else index


def is_inside(region: Region, box: Region) -> bool:
    """Return whether all elements of a region are certainly elements of a box, for which `is_part` is true."""
    return _place_in(region, box) is not None


@functools.lru_cache(1024)
def _places(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Sequence[tuple[int, int]] | None:
    """Return the first and last (exclusive) index of a box on each axis of the grid of its strides, counted from the
    beginning of its storage; None if a row of the grid ends inside of it."""
    left, found, outer = offset, [(0, 0)] * len(shape), 0
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        stride, n = strides[axis], shape[axis]
        first, left = divmod(left, stride)
        if outer and (first + n) * stride > outer:
            return None
        found[axis], outer = (first, first + n), stride
    return None if left else found


def _places_of_both(box: Region, other: Region) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]] | None:
    """Return the places of two boxes on one grid; None if they are not certainly on one."""
    if other.strides != box.strides or other.dtype != box.dtype or 0 in (*box.shape, *other.shape):
        return None
    places = _places(box.offset, box.shape, box.strides)
    others = _places(other.offset, other.shape, other.strides)
    return None if places is None or others is None else (places, others)


def meeting(box: Region, other: Region) -> Region | None:
    """Return the elements that two boxes have in common, a box that may be empty; None if that is not certain."""
    both = _places_of_both(box, other)
    if both is None:
        return None
    places, others = both
    offset, shape = box.offset, []
    for (first, end), (first_other, end_other), stride in zip(places, others, box.strides):
        low, high = max(first, first_other), min(end, end_other)
        if low >= high:
            return _box(box, box.offset, (0,) * len(box.shape))
        offset += (low - first) * stride
        shape.append(high - low)
    return _box(box, offset, tuple(shape))


def hull(box: Region, other: Region) -> Region | None:
    """Return the smallest box that contains two boxes; None if they are not certainly on one grid, or if it is larger
    than their storage."""
    both = _places_of_both(box, other)
    if both is None:
        return None
    offset, last, shape = box.offset, box.dtype.itemsize, []
    for (first, end), (first_other, end_other), stride in zip(*both, box.strides):
        low = min(first, first_other)
        offset += (low - first) * stride
        shape.append(max(end, end_other) - low)
        last += (shape[-1] - 1) * stride
    return _box(box, offset, tuple(shape)) if offset + last <= box.storage.nbytes else None


def everything(box: Region) -> Region | None:
    """Return all of a storage as a box on the grid of one of its boxes; None if it is no such box."""
    shape, outer = [0] * len(box.shape), box.storage.nbytes
    for axis in sorted(range(len(box.shape)), key=lambda axis: -box.strides[axis]):
        shape[axis], left = divmod(outer, box.strides[axis])
        if left:
            return None
        outer = box.strides[axis]
    return _box(box, 0, tuple(shape)) if outer == box.dtype.itemsize else None


def remainder(box: Region, inner: Region) -> list[Region] | None:
    """Return the elements of a box that are not in another one, as boxes; None if that is not certainly inside."""
    index = _place_in(inner, box)
    if index is None:
        return None
    found, offset, shape = [], box.offset, list(box.shape)
    for axis, (first, n) in enumerate(zip(index, inner.shape)):
        after, stride = box.shape[axis] - first - n, box.strides[axis]
        if first:
            found.append(_box(box, offset, (*shape[:axis], first, *shape[axis + 1 :])))
        if after:
            found.append(_box(box, offset + (first + n) * stride, (*shape[:axis], after, *shape[axis + 1 :])))
        offset += first * stride
        shape[axis] = n
    return found


def _box(like: Region, offset: int, shape: tuple[int, ...]) -> Region:
    box = Region.__new__(Region)
    box.storage, box.dtype = like.storage, like.dtype
    box.offset, box.shape, box.strides = offset, shape, like.strides
    return box
