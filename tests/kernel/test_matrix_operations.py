"""Operations on matrices of all sizes: products of empty ones, and systems that are solved in blocks."""

import itertools

import numpy as np
import pytest
from derivative_check import difference
from second_check import check_second

import ampi
from ampi.kernel.special import solve_upper

RNG = np.random.default_rng(5)


@ampi.kernel
def products(a, b, v):
    c = a @ b
    d = v @ c
    return d.sum() + (c * c).sum() + (a.T @ v)[:1].sum()


@pytest.mark.parametrize("n, k, m", [*itertools.product((0, 1, 3), (0, 1, 2), (0, 1, 4))])
def test_products(n, k, m):
    a, b, v = RNG.random((n, k)), RNG.random((k, m)), RNG.random(n)
    value, bars = ampi.value_and_grad(products, (0, 1, 2))(a, b, v)
    c, first = a @ b, np.arange(k) == 0
    np.testing.assert_allclose(value, (v @ c).sum() + (c * c).sum() + (a.T @ v)[:1].sum(), rtol=1e-13)
    c_bar = np.outer(v, np.ones(m)) + 2.0 * c
    expected = c_bar @ b.T + np.outer(v, first), a.T @ c_bar, c.sum(axis=1) + a @ first
    for bar, other in zip(bars, expected):
        np.testing.assert_allclose(bar, other, rtol=1e-13, atol=1e-14)


@ampi.kernel
def product(a, b):
    return a @ b


@pytest.mark.parametrize("seed", [lambda c: c, lambda c: c.T.copy().T, lambda c: np.broadcast_to(c[:1], c.shape)])
def test_the_seed_of_a_product_stays_as_it_is(seed):
    """A sweep reads the seed in place, in any layout, and leaves it for the next one."""
    a, b = RNG.random((3, 4)), RNG.random((4, 5))
    seed = seed(RNG.random((3, 5)))
    before = seed.copy()
    with ampi.Tape() as tape:
        x, y = tape.watch(a), tape.watch(b)
        z = tape.watch(product(x, y))
        both = z * 1.0 + product(x, y)
    for _ in range(2):
        for output, factor in ((z, 1.0), (both, 2.0), ([z, both], 3.0)):
            given = [seed, seed] if isinstance(output, list) else seed
            bars = tape.gradient(output, [x, y], seed=given)
            np.testing.assert_allclose(bars[0], factor * before @ b.T, rtol=1e-13)
            np.testing.assert_allclose(bars[1], factor * a.T @ before, rtol=1e-13)
            np.testing.assert_array_equal(seed, before)
    bars = tape.gradient(both, [x, z], seed=seed)
    np.testing.assert_allclose(bars[1], before)


@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 50])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
def test_triangular_systems(n, dtype):
    matrix = np.triu(RNG.random((n, n)) + n * np.eye(n)).astype(dtype)
    right = (RNG.random((n, 3)) * (1.0 + (1j if dtype is np.complex128 else 0.0))).astype(dtype)
    found = solve_upper(matrix, right)
    assert found.dtype == dtype
    np.testing.assert_allclose(matrix @ found, right, rtol=1e-4 if dtype is np.float32 else 1e-12)


@ampi.kernel
def inverted(a, w):
    return (np.linalg.inv(a) * w).sum() + np.linalg.inv(a.T + np.eye(a.shape[0]))[0, 0]


@ampi.kernel
def decomposed(a, w):
    return (np.linalg.cholesky(a) * w).sum()


@pytest.mark.parametrize("n", [1, 2, 7, 35])
@pytest.mark.parametrize("kernel", [inverted, decomposed])
def test_inverses_and_decompositions(kernel, n):
    half, w = RNG.random((n, n)), RNG.random((n, n))
    a, d = half @ half.T + n * np.eye(n), RNG.random((n, n))
    d += d.T
    bar, h = ampi.grad(kernel)(a, w), 1e-3
    along = lambda t: kernel(a + t * d, w)
    slope = difference(along, h)
    np.testing.assert_allclose((bar * d).sum(), slope, rtol=1e-8)
    if n == 7:
        check_second(kernel, [a, w], 1e-11, rough=1e-5)
