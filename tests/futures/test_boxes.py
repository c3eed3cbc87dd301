"""Boxes of elements, by which strands pass parts of shadows to each other, against sets of elements."""

import random

import numpy
import pytest

import ampi.numpy as np
from ampi.futures import boxes
from ampi.memory.storages import region_of, storage_of

SHAPES = (24,), (5, 6), (3, 4, 5)


def drawn(draw, x):
    """A part of an array, of slices with or without a step."""
    key = []
    for n in x.shape:
        a, b = sorted(draw.choices(range(n + 1), k=2))
        key.append(draw.choice((slice(None), slice(a, b), slice(a, b, 2), slice(a, a + 1))))
    return x[tuple(key)]


def elements(region):
    if 0 in region.shape:
        return set()
    numbers = numpy.arange(storage_size // 8, dtype=numpy.int64).view(numpy.uint8)
    return set(numpy.ndarray(region.shape, numpy.int64, numbers, region.offset, region.strides).ravel().tolist())


storage_size = 8 * 60


@pytest.mark.parametrize("seed", range(8))
def test_intersections_hulls_and_differences_of_boxes(seed):
    draw, certain, together = random.Random(seed), 0, 0
    for _ in range(400):
        x = np.zeros(draw.choice(SHAPES))
        one, two = region_of(drawn(draw, x)), region_of(drawn(draw, x))
        if not boxes.is_part(one):
            continue
        assert one.storage is storage_of(x)
        meeting, hull = boxes.meeting(one, two), boxes.hull(one, two)
        if meeting is not None:
            certain += 1
            assert elements(meeting) == elements(one) & elements(two)
            differ(one, meeting)
        if hull is not None:
            together += 1
            assert elements(hull) >= elements(one) | elements(two)
            differ(hull, one)
            differ(hull, two)
        if (whole := boxes.everything(one)) is not None:
            assert elements(whole) == set(range(x.size))
            differ(whole, one)
    assert certain > 30 and together


def differ(box, inner):
    """The difference of two boxes is the union of disjoint boxes."""
    rest = boxes.remainder(box, inner)
    if 0 in inner.shape:
        return
    assert rest is not None
    parts = [element for region in rest for element in elements(region)]
    assert len(parts) == len(set(parts))
    assert set(parts) == elements(box) - elements(inner)


def test_parts_side_by_side_have_no_gap():
    x = np.zeros((5, 6))
    hull = boxes.hull(region_of(x[:, 1:3]), region_of(x[:, 3:6]))
    assert elements(hull) == elements(region_of(x[:, 1:6]))
