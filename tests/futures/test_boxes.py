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
def test_parts_that_two_boxes_have_in_common_and_boxes_side_by_side(seed):
    draw, certain, together = random.Random(seed), 0, 0
    for _ in range(400):
        x = np.zeros(draw.choice(SHAPES))
        one, two = region_of(drawn(draw, x)), region_of(drawn(draw, x))
        if not boxes.is_part(one):
            continue
        assert one.storage is storage_of(x)
        meeting, joined = boxes.meeting(one, two), boxes.joined(one, two)
        if meeting is not None:
            certain += 1
            assert elements(meeting) == elements(one) & elements(two)
            rest = boxes.without(one, meeting) if 0 not in meeting.shape else None
            if rest is not None:
                assert elements(rest) == elements(one) - elements(two)
        if joined is not None:
            together += 1
            assert elements(joined) == elements(one) | elements(two) and not elements(one) & elements(two)
    assert certain > 30 and together
