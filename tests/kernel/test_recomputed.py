"""Kernel values that adjoints recompute: sums in any order if only rounding changes, otherwise bitwise identical."""

import math

import numpy
import pytest

import ampi
import ampi.numpy

RNG = numpy.random.default_rng(3)


def forces(x, m, f):
    """The adjoint needs the values of the sums, as factors of products."""
    for i in range(x.shape[0]):
        s = c = 0.0
        for j in range(x.shape[0]):
            d = x[j] - x[i]
            squared = d * d + 0.01
            w = m[j] / (squared * math.sqrt(squared))
            s += w * d
            c += w / (1.0 + w)
        f[i] = m[i] * s + m[i] * c


def turned(x, m, f):
    """A condition depends on the sum."""
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[0]):
            d = x[j] - x[i]
            squared = d * d + 0.01
            s += m[j] * d / (squared * math.sqrt(squared))
        if s > 0.0:
            f[i] = m[i] * s * s
        else:
            f[i] = -m[i] * s


def placed(x, m, f):
    """An index depends on the sum."""
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[0]):
            d = x[j] - x[i]
            squared = d * d + 0.01
            s += m[j] * d / (squared * math.sqrt(squared))
        f[i] = m[int(abs(s)) % x.shape[0]] * s * s


def rooted(x, m, f):
    """The guard against dividing the adjoint of a root by zero depends on the sum."""
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[0]):
            d = x[j] - x[i]
            squared = d * d + 0.01
            s += m[j] * d / (squared * math.sqrt(squared))
        f[i] = m[i] * s * s


ANY_ORDER = {"forces": True, "turned": False, "placed": False, "rooted": False}
KERNELS = {"forces": forces, "turned": turned, "placed": placed, "rooted": rooted}


def gradient(kernel, size):
    rng = numpy.random.default_rng(11)
    x0, m0 = rng.normal(size=size), rng.uniform(0.5, 1.5, size)
    seed = rng.normal(size=size)
    with ampi.Tape() as tape:
        x, m = tape.watch(x0), tape.watch(m0)
        f = ampi.numpy.zeros(size)
        kernel(x, m, f)
    return (x0, m0), seed, tape.gradient(f, (x, m), seed=seed)


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("name", KERNELS)
def test_gradient(name, size):
    """Compared with a central difference, whose error is quadratic in the step, apart from rounding."""
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(KERNELS[name])
    points, seed, found = gradient(kernel, size)
    along = [rng.normal(size=size) for _ in points]
    exact = sum(float(g @ d) for g, d in zip(found, along))
    errors = []
    for step in (1e-5, 1e-6):
        ends = []
        for sign in (1, -1):
            f = numpy.zeros(size)
            kernel(*(p + sign * step * d for p, d in zip(points, along)), f)
            ends.append(f)
        errors.append(abs(float(seed @ (ends[0] - ends[1])) / (2 * step) - exact))
    scale = sum(float(numpy.linalg.norm(g) * numpy.linalg.norm(d)) for g, d in zip(found, along))
    assert min(errors) <= 1e-6 * scale


@pytest.mark.parametrize("name", KERNELS)
def test_which_sums_change_their_order(name):
    kernel = ampi.kernel(KERNELS[name])
    source = kernel.adjoint_source(*(numpy.ones(8),) * 3)
    recomputed = source[source.index("def ") : source.index("f_bar[i]")]
    assert ("strip" in recomputed) == ANY_ORDER[name]


def test_a_root_is_no_obstacle_to_reciprocals():
    """Its adjoint compares with zero before it divides."""

    def roots(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i] / (1.0 + x[i]) + math.sqrt(x[i]) / (1.0 + x[i])

    kernel = ampi.kernel(roots)
    assert "reciprocal" in kernel.adjoint_source(numpy.ones(8), numpy.ones(8))
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([0.25, 4.0]))
        y = ampi.numpy.zeros(2)
        kernel(x, y)
    at = numpy.array([0.25, 4.0])
    expected = (1 - at + 2 * numpy.sqrt(at)) / (2 * numpy.sqrt(at) * (1 + at) ** 2)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(2)), expected, rtol=1e-14)
