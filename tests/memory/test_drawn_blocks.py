"""Arrays of drawn layouts: whether they are zero, and copies that are not contiguous."""

import random

import numpy as np
import pytest

from ampi.memory.blocks import is_zero, spaced

DTYPES = (np.float64, np.float32, np.float16, np.complex64, np.complex128, np.uint8)


def drawn(draw):
    """A view of zeros, mostly with one other number in it, in memory that may hold ones around it."""
    shape = tuple(draw.choice([0, 1, 2, 3, 70]) for _ in range(draw.randint(0, 3)))
    dtype = draw.choice(DTYPES)
    base = np.full(tuple(2 * n + 1 for n in shape), draw.choice([0, 1]), dtype, order=draw.choice("CF"))
    part = lambda n: draw.choice([slice(0, n), slice(1, None, 2), slice(2 * n, n, -1)])
    view = base[tuple(part(n) for n in shape)] if shape else base
    view = view.T if draw.random() < 0.3 else view
    view[...] = 0
    if view.size and draw.random() < 0.6:
        view[tuple(draw.randrange(n) for n in view.shape)] = draw.choice([1, 3, 3 if dtype is np.uint8 else np.nan])
    return view


@pytest.mark.parametrize("seed", range(20))
def test_drawn_layouts(seed):
    draw = random.Random(seed)
    for _ in range(200):
        view = drawn(draw)
        where = view.shape, view.strides, view.dtype
        assert is_zero(view) == (not view.any()), where
        copy = spaced(view)
        np.testing.assert_array_equal(copy, view)
        assert copy.dtype == view.dtype and not np.shares_memory(copy, view), where
        has_rows = sum(n > 1 for n in view.shape) > 1 and view.size
        assert copy.flags.forc == view.flags.forc or not has_rows, where
