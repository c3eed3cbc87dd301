"""Old values are read from where they were saved: every way in which they can lie there, and memory used again."""

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi import pool

N = 4096  # enough for the pool's blocks


@ampi.kernel
def squares(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


@ampi.kernel
def double(x):
    for i in range(x.shape[0]):
        x[i] = 2.0 * x[i]


@pytest.mark.parametrize("shape", ["same", "part of it", "more than it", "strided", "two parts"])
@pytest.mark.parametrize("by_kernel", [True, False])
def test_old_values_are_found_however_they_were_saved(shape, by_kernel):
    """x² of a part, then x (or a part of it) is doubled, and all squared again."""
    read, written = {
        "same": (slice(None), [slice(None)]),
        "part of it": (slice(8, -8), [slice(None)]),
        "more than it": (slice(None), [slice(8, -8)]),
        "strided": (slice(None, None, 2), [slice(None), slice(None, None, 2)]),
        "two parts": (slice(None), [slice(0, N // 2), slice(N // 2 - 4, N), slice(None)]),
    }[shape]
    x0 = numpy.random.default_rng(0).uniform(0.5, 1.5, N)
    factor = numpy.ones(N)
    with ampi.Tape() as tape:
        watched = tape.watch(x0)
        x = watched.copy()
        first, last = np.empty(x[read].shape[0]), np.empty(N)
        squares(x[read], first)
        for part in written:
            if by_kernel:
                double(x[part])
            else:
                x[part] *= 2.0
            factor[part] *= 2.0
            squares(x, last)
        total = np.sum(first) + np.sum(last)
    after = numpy.array(ampi.value(x))
    expected = 2.0 * factor**2 * x0
    expected[read] += 2.0 * x0[read]
    for _ in range(2):
        numpy.testing.assert_allclose(tape.gradient(total, watched), expected, rtol=1e-14)
        numpy.testing.assert_array_equal(ampi.value(x), after)  # memory is as it was


def test_a_sweep_that_stops_leaves_memory_as_it_was():
    def fails(*_):
        raise RuntimeError("on purpose")

    @ampi.custom_vjp
    def identity(x):
        return x * 1.0

    identity.defvjp(lambda x: (x * 1.0, None), fails)
    with ampi.Tape() as tape:
        watched = tape.watch(numpy.ones(N))
        x, y = watched.copy(), np.empty(N)
        squares(x, y)
        z = identity(y)
        double(x)
        squares(x, y)
        total = np.sum(y) + np.sum(z)
    after = numpy.array(ampi.value(x))
    with pytest.raises(RuntimeError, match="on purpose"):
        tape.gradient(total, watched)
    numpy.testing.assert_array_equal(ampi.value(x), after)


def test_a_block_is_used_again_only_when_nobody_looks_at_it():
    block = pool.take(1 << 15)
    address = block.ctypes.data
    view = block[8:]
    blocks = [block]
    del block
    pool.give(blocks)
    assert not blocks
    other = pool.take(1 << 15)
    assert other.ctypes.data != address
    del view
    again = other.ctypes.data
    blocks = [other]
    del other
    pool.give(blocks)
    assert pool.take(1 << 15).ctypes.data == again


def test_the_pool_keeps_a_bounded_amount():
    pool.give([numpy.empty(pool.KEPT_BYTES // 4, numpy.uint8) for _ in range(16)])
    assert pool._free_bytes <= pool.KEPT_BYTES
    assert pool._free_bytes == sum(block.nbytes for blocks in pool._free.values() for block in blocks)
    huge = numpy.empty(pool.KEPT_BYTES + 1, numpy.uint8)
    pool.give([huge])
    assert pool.KEPT_BYTES + 1 not in pool._free
