"""Large arrays that a tape saves are copied past the CPU caches, completely and unchanged."""

import numba
import numpy
import pytest

import ampi
import ampi.numpy
from ampi.kernel.runtime import nontemporal_copy, threads


@pytest.mark.parametrize("offset", [0, 1, 8, 60])
@pytest.mark.parametrize("more", [0, 1, 63, 64, 1000])
def test_all_bytes_are_copied(offset, more):
    block = numpy.random.default_rng(0).integers(0, 256, nontemporal_copy.LARGE + 2000, dtype=numpy.uint8)
    array = block[offset : offset + nontemporal_copy.LARGE + more]
    copy = nontemporal_copy.copied(array)
    assert copy is not array and not numpy.shares_memory(copy, array)
    numpy.testing.assert_array_equal(copy, array)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", ["f4", "f8", "c16"])
def test_order_is_kept(order, dtype):
    array = numpy.asarray(numpy.random.default_rng(0).random((300, 3000)).astype(dtype), order=order)
    copy = nontemporal_copy.copied(array)
    assert copy.strides == array.strides and copy.dtype == array.dtype
    numpy.testing.assert_array_equal(copy, array)
    numpy.testing.assert_array_equal(nontemporal_copy.copied(array[:, ::2]), array[:, ::2])


@pytest.fixture
def two_threads(monkeypatch):
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two threads")
    before = numba.get_num_threads()
    numba.set_num_threads(2)
    monkeypatch.setattr(threads, "_started", True)
    yield
    numba.set_num_threads(before)


@pytest.mark.parametrize("more", [0, 1, 63, 5000])
def test_threads_copy_and_clear_all_bytes(two_threads, more):
    array = numpy.random.default_rng(0).integers(1, 256, nontemporal_copy.LARGE + more, dtype=numpy.uint8)
    numpy.testing.assert_array_equal(nontemporal_copy.copied(array), array)
    del array  # so that the next block reuses its memory
    zeros = nontemporal_copy.zeroed(nontemporal_copy.LARGE + more)
    assert zeros.nbytes == nontemporal_copy.LARGE + more and not zeros.any()


def square(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


def test_large_march():
    """(x^2)^2 ..., back and forth between two arrays: the gradient is n x^(n - 1)."""
    kernel = ampi.kernel(square)
    x0 = numpy.random.default_rng(0).uniform(0.9, 1.1, nontemporal_copy.LARGE // 8 + 5)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        u, v = x * 1.0, ampi.numpy.empty(x.shape)
        for _ in range(6):
            kernel(u, v)
            u, v = v, u
    assert tape.saved_bytes >= 4 * x0.nbytes
    for scale in (1.0, 2.0):
        x_bar = tape.gradient(u, x, seed=numpy.full(x0.shape, scale))
        numpy.testing.assert_allclose(x_bar, scale * 64 * x0**63, rtol=1e-12)
    numpy.testing.assert_allclose(u, x0**64, rtol=1e-12)
