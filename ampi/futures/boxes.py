"""Regions as boxes of elements: whether one contains another, and their set difference."""

from __future__ import annotations

from ..memory.extents import may_repeat
from ..memory.storages import Region


def is_part(region: Region) -> bool:
    """Return whether a region is a box: numbers in ordinary memory, each once, at positive strides."""
    storage = region.storage
    if storage.packed or storage.volatile or storage.elsewhere or region.dtype.kind not in "fc" or 0 in region.shape:
        return False
    if any(stride <= 0 for stride in region.strides):
        return False
    return not may_repeat(region.shape, region.strides, region.dtype.itemsize)


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


def _places(box: Region) -> list[tuple[int, int]] | None:
    """Return the first and last (exclusive) index of a box on each axis of the grid of its strides, counted from the
    beginning of its storage; None if a row of the grid ends inside of it."""
    left, found, outer = box.offset, [(0, 0)] * len(box.shape), 0
    for axis in sorted(range(len(box.shape)), key=lambda axis: -box.strides[axis]):
        stride, n = box.strides[axis], box.shape[axis]
        first, left = divmod(left, stride)
        if outer and (first + n) * stride > outer:
            return None
        found[axis], outer = (first, first + n), stride
    return None if left else found


def _places_of_both(box: Region, other: Region) -> tuple[list[tuple[int, int]], list[tuple[int, int]]] | None:
    """Return the places of two boxes on one grid; None if they are not certainly on one."""
    if other.strides != box.strides or other.dtype != box.dtype or 0 in (*box.shape, *other.shape):
        return None
    places, others = _places(box), _places(other)
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
            return _box(box, box.offset, (0,) * len(box.shape), box.strides)
        offset += (low - first) * stride
        shape.append(high - low)
    return _box(box, offset, tuple(shape), box.strides)


def joined(box: Region, other: Region) -> Region | None:
    """Return the elements of two boxes that are next to each other, if they are a box together."""
    both = _places_of_both(box, other)
    if both is None:
        return None
    places, others = both
    differing = [axis for axis, (one, two) in enumerate(zip(places, others)) if one != two]
    if len(differing) != 1:
        return None
    (axis,) = differing
    (first, end), (first_other, end_other) = places[axis], others[axis]
    if end != first_other and end_other != first:
        return None
    shape = (*box.shape[:axis], end - first + end_other - first_other, *box.shape[axis + 1 :])
    return _box(box, min(box.offset, other.offset), shape, box.strides)


def without(box: Region, region: Region) -> Region | None:
    """Return the elements of a box that are not in a region; None if they are no box, or the region is not inside."""
    index = _place_in(region, box)
    if index is None:
        return None
    differing = [axis for axis, (n, m) in enumerate(zip(box.shape, region.shape)) if n != m]
    if len(differing) > 1:
        return None
    (axis,) = differing or (0,)
    if not box.shape:
        return _box(box, box.offset, (0,), box.strides or (box.dtype.itemsize,))
    n, m, k = box.shape[axis], region.shape[axis], index[axis]
    if k and k + m < n:
        return None
    offset = box.offset if k else box.offset + m * box.strides[axis]
    return _box(box, offset, (*box.shape[:axis], n - m, *box.shape[axis + 1 :]), box.strides)


def _box(like: Region, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Region:
    box = Region.__new__(Region)
    box.storage, box.dtype = like.storage, like.dtype
    box.offset, box.shape, box.strides = offset, shape, strides
    return box
