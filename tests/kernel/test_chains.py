"""Adjoints of recurrences whose iterations wait for only one operation of the previous one."""

import numba
import numpy
import pytest

import ampi
import ampi.numpy
from ampi.kernel.runtime.special import fused

RNG = numpy.random.default_rng(5)
X = RNG.uniform(0.5, 1.5, 40)


def product(x, y):
    total = 1.0
    for i in range(x.shape[0]):
        total *= x[i]
        y[i] = total


def filtered(x, y):
    s = x[0]
    for i in range(1, x.shape[0]):
        s = 0.75 * s - x[i] * x[i - 1]
        y[i] = s
        y[i - 1] += 0.5 * s


def several_terms(x, y):
    s = x[0]
    for i in range(1, x.shape[0] - 1):
        s = (s - x[i]) / (1.0 + x[i + 1] * x[i + 1]) + x[i - 1]
        y[i] = s * x[i]
        y[i + 1] = s - x[i + 1]


def quotients(x, y):
    """If a divisor may be zero, an adjoint of zero must stay zero, which needs a condition besides the product."""
    s = x[0]
    for i in range(1, x.shape[0] - 1):
        s = (s - x[i]) / x[i + 1] + x[i - 1]
        y[i] = s * x[i]


def two_at_once(x, y):
    s, p = 1.0, 0.5
    for i in range(x.shape[0]):
        p = (p + x[i]) * 0.5
        s = s * x[i] + p
        y[i] = s * p


def rounded(x, y):
    """Recomputed values of the kernel must be bitwise identical if a condition depends on them."""
    for k in range(1, x.shape[0]):
        s = 0.0
        for i in range(k):
            s = (s + x[i]) * x[k]
        y[k] = x[k] * s if s > 3.0 else x[k] / (1.0 + s * s)


KERNELS = {f.__name__: f for f in (product, filtered, several_terms, quotients, two_at_once, rounded)}
SHORTENED = ("product", "filtered", "several_terms", "two_at_once")


def complex_step(function, x, seed):
    found = numpy.zeros(x.shape)
    for k in range(x.size):
        moved = x.astype(complex)
        moved[k] += 1e-30j
        y = numpy.zeros(x.shape, complex)
        function(_Ordered.of(moved), y)
        found[k] = numpy.sum(seed * y).imag / 1e-30
    return found


class _Ordered(complex):
    """A complex number that is compared by its real part."""

    @staticmethod
    def of(values):
        found = numpy.empty(values.shape, object)
        found[:] = [_Ordered(v) for v in values]
        return found

    def __gt__(self, other):
        return self.real > complex(other).real

    def __add__(self, other):
        return _Ordered(complex(self) + other)

    def __mul__(self, other):
        return _Ordered(complex(self) * other)

    __radd__, __rmul__ = __add__, __mul__


def gradient(kernel, x0, seed):
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = ampi.numpy.zeros(x0.shape, x0.dtype)
        kernel(x, y)
    return tape.gradient(y, x, seed=seed)


@pytest.mark.parametrize("without", ["", "chains"])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients(name, without):
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(KERNELS[name], without=without)
    assert ("fused(" in kernel.adjoint_source(X, X)) == (not without and name in SHORTENED)
    seed = rng.standard_normal(X.shape)
    expected = complex_step(KERNELS[name], X, seed)
    numpy.testing.assert_allclose(gradient(kernel, X, seed), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", SHORTENED)
def test_in_single_precision(name):
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(KERNELS[name])
    x, seed = X.astype(numpy.float32), rng.standard_normal(X.shape).astype(numpy.float32)
    found = gradient(kernel, x, seed)
    assert found.dtype == numpy.float32
    expected = complex_step(KERNELS[name], x.astype(float), seed.astype(float))
    numpy.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-5 * abs(expected).max())


@pytest.mark.parametrize("ty", [numpy.float32, numpy.float64, numpy.complex128])
def test_fused(ty):
    """Rounded once or twice, the result is accurate to a few units in the last place of its terms."""
    rng = numpy.random.default_rng(11)
    compiled = numba.njit(lambda x, y, z: fused(x, y, z))
    for x, y, z in rng.uniform(-2, 2, (50, 3)).astype(ty):
        exact = complex(x) * complex(y) + complex(z)
        found = compiled(x, y, z)
        bound = 4 * numpy.finfo(ty).eps * (abs(x * y) + abs(z))
        assert abs(found - exact) <= bound and abs(fused(x, y, z) - exact) <= bound
    assert fused(2.0, 3.0, 4.0) == compiled(2.0, 3.0, 4.0) == 10.0


def using_it(x, y):
    for i in range(x.shape[0]):
        y[i] = fused(x[i], x[i], 0.5 * x[i])


def test_derivatives_of_derivatives():
    """Generated code stays in the language of kernels."""
    rng = numpy.random.default_rng(11)
    seed = rng.standard_normal(X.shape)
    numpy.testing.assert_allclose(gradient(ampi.kernel(using_it), X, seed), seed * (2.0 * X + 0.5), rtol=1e-14)
