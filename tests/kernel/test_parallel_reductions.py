"""Reductions of numbers and arrays in ``prange`` on two threads: in each mode, values and derivatives are those of the
same kernel on one thread, in every run."""

import numba
import numpy as np
import pytest

import ampi


def sums(m, a):
    v = np.zeros(5)
    for i in numba.prange(len(m)):
        v += m[i] * a[i]
    return np.sum(v * v)


def differences(m, a):
    v = 0.1 * a[:5]
    for i in numba.prange(len(m)):
        v -= np.sin(m[i]) * a[i]
    return np.sum(v**3)


def products(m, a):
    v = np.ones(5)
    for i in numba.prange(len(m)):
        v *= 1.0 + 0.3 * m[i] * a[i]
    return np.sum(v)


def several(m, a):
    v, s = np.zeros(5), 0.0
    w = np.zeros((2, 5))
    for i in numba.prange(len(m)):
        v += m[i] * a[i]
        w += np.outer(a[:2], m[i])
        s += a[i] * m[i, 2]
    return s * np.sum(v) + np.sum(w * w)


def matrices(m, a):
    v = np.zeros((5, 5))
    for i in numba.prange(len(m)):
        v += np.outer(m[i], m[i]) * a[i]
    return np.sum(v * v)


def numbers(m, a):
    s, p, low, high = 0.0, 1.0, 10.0, -10.0
    for i in numba.prange(len(m)):
        s += m[i, 0] * a[i]
        p *= 1.0 + 0.1 * m[i, 1]
        low = min(low, m[i, 2])
        high = max(high, a[i])
    return s * p * low + high * p


def in_a_callee(m, a):
    return np.sum(summed(m, a) ** 2)


@numba.njit(parallel=True)
def summed(m, a):
    v = np.zeros(5)
    for i in numba.prange(len(m)):
        v += m[i] * a[i]
    return v


KERNELS = [sums, several, differences, products, matrices, numbers, in_a_callee]
MODES = {
    "grad": lambda k, x, dx: ampi.value_and_grad(k, argnums=(0, 1))(*x),
    "jvp": lambda k, x, dx: ampi.jvp(k, x, dx),
    "hvp": lambda k, x, dx: ampi.hvp(k, x, dx),
    "several tangents": lambda k, x, dx: ampi.jacfwd(lambda m: k(m, x[1]), x[0]),
}


def numbers_in(found):
    return [np.asarray(found)] if not isinstance(found, tuple) else [n for part in found for n in numbers_in(part)]


def case(function, mode, deterministic):
    quick = (function, mode, deterministic) in ((sums, "jvp", False), (sums, "jvp", True), (several, "jvp", False))
    name = f"{function.__name__}, {mode}{', deterministic' if deterministic else ''}"
    return pytest.param(function, mode, deterministic, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("function", "mode", "deterministic"), [case(f, mode, d) for f in KERNELS for mode in MODES for d in (False, True)]
)
def test_reductions(function, mode, deterministic):
    before = numba.get_num_threads()
    random = np.random.default_rng(3)
    x = random.uniform(-1, 1, (6, 5)), random.uniform(-1, 1, 6)
    dx = random.uniform(-1, 1, (6, 5)), random.uniform(-1, 1, 6)
    expected = numbers_in(MODES[mode](ampi.kernel(function), x, dx))
    threaded = ampi.kernel(parallel=True, deterministic=deterministic)(function)
    numba.set_num_threads(min(2, before))
    try:
        for _ in range(1000 if mode == "jvp" else 50):
            for one, other in zip(numbers_in(MODES[mode](threaded, x, dx)), expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-13)
    finally:
        numba.set_num_threads(before)
