"""Arrays and kernels have the same partial derivatives where two definitions of a function could differ."""

import numpy
import pytest

import ampi
import ampi.numpy as np

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

CUTS = {
    "sqrt": (-0.5, -2.0), "log": (-0.5, -2.0), "log10": (-0.5, -2.0), "arccosh": (0.5, -1.5),
    "arcsin": (1.5, -2.0), "arccos": (1.5, -2.0), "arctanh": (1.5, -2.0), "arcsinh": (1.5j, -2j), "arctan": (1.5j, -2j),
}  # fmt: skip
"""Points on branch cuts, which lie along the axes."""


def sides(point):
    """A point on an axis as the limit from either side, which the sign of the zero selects."""
    return [complex(zero, point.imag) if point.imag else complex(point, zero) for zero in (0.0, -0.0)]


def along(point, length):
    """A number further along a cut, on the same side of it."""
    return complex(point.real, point.imag + length) if point.real == 0 else complex(point.real + length, point.imag)


@ampi.kernel
def every_function(x, out):
    for i in range(x.shape[1]):
        out[0, i] = np.sqrt(x[0, i])
        out[1, i] = np.log(x[1, i])
        out[2, i] = np.log10(x[2, i])
        out[3, i] = np.arccosh(x[3, i])
        out[4, i] = np.arcsin(x[4, i])
        out[5, i] = np.arccos(x[5, i])
        out[6, i] = np.arctanh(x[6, i])
        out[7, i] = np.arcsinh(x[7, i])
        out[8, i] = np.arctan(x[8, i])


def by_kernel(x):
    out = np.zeros(x.shape, complex)
    every_function(x, out)
    return out


def by_arrays(x):
    return np.stack([getattr(np, name)(x[k]) for k, name in enumerate(CUTS)])


@pytest.mark.parametrize("function", [by_kernel, by_arrays])
def test_sides_of_branch_cuts(function):
    points = [sides(a) + sides(b) for a, b in CUTS.values()]
    values = {}
    for step in (-2, -1, 1, 2):
        moved = [[along(p, 1e-3 * step) for p in row] for row in points]
        values[step] = numpy.array([getattr(numpy, name)(row) for name, row in zip(CUTS, moved)])
    expected = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / 12e-3
    x = numpy.array(points)
    found = ampi.jvp(function, x, numpy.where(x.real == 0, 1j, 1.0))[1]
    assert numpy.allclose(found, expected, rtol=1e-7, atol=0)
    # Derivatives jump across the cut.
    assert (abs(found[:, ::2] - found[:, 1::2]) > 0.1)[[0, 4, 5]].all()


@ampi.kernel(error_model="numpy")
def extremes(x, y, out):
    for i in range(x.shape[0]):
        out[0, i] = x[i] ** y[i]
        out[1, i] = np.hypot(x[i], y[i])


def by_kernel_extremes(x, y):
    out = np.zeros((2, x.size))
    extremes(x, y, out)
    return out


def by_arrays_extremes(x, y):
    return np.stack([x**y, np.hypot(x, y)])


INFINITE = numpy.inf
#    x, y, d/dx and d/dy of x**y
POWERS = [
    (0.0, 0.0, 0.0, -INFINITE),
    (0.0, -0.5, -INFINITE, -INFINITE),
    (0.0, 1.0, 1.0, 0.0),
    (0.0, 0.5, INFINITE, 0.0),
    (0.0, 2.0, 0.0, 0.0),
    (1e-310, 0.0, 0.0, numpy.log(1e-310)),
    (INFINITE, 0.0, 0.0, INFINITE),
]


@pytest.mark.parametrize("function", [by_kernel_extremes, by_arrays_extremes])
def test_powers_and_hypotenuses_at_extremes(function):
    x, y, by_x, by_y = numpy.array(POWERS).T
    with ampi.Tape() as tape:
        a, b = tape.watch(x), tape.watch(y)
        powers = function(a, b)[0]
    a_bar, b_bar = tape.gradient(powers, [a, b], numpy.ones(len(x)))
    assert numpy.allclose(a_bar, by_x, rtol=1e-14) and numpy.allclose(b_bar, by_y, rtol=1e-14)
    x = numpy.array([INFINITE, INFINITE, numpy.nan, 0.0, 3.0])
    y = numpy.array([1.0, numpy.nan, -INFINITE, 0.0, 4.0])
    with ampi.Tape() as tape:
        a, b = tape.watch(x), tape.watch(y)
        lengths = function(a, b)[1]
    a_bar, b_bar = tape.gradient(lengths, [a, b], numpy.ones(5))
    assert a_bar.tolist() == [1.0, 1.0, 0.0, 1.0, 0.6] and b_bar.tolist() == [0.0, 0.0, -1.0, 1.0, 0.8]
