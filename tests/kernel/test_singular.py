"""Derivatives where zero is multiplied by infinity, or squares overflow or underflow, in kernels and on tapes."""

import itertools
import math

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.kernel import prange


@ampi.kernel
def distances(p, out):
    for i in range(out.shape[0]):
        d = p[i] - p[0]
        out[i] = math.sqrt(d * d) + math.sqrt(1.0 - math.cos(d))


@ampi.kernel
def masked(x, w):
    t = x * np.log(x) + x**w
    s = x / w
    return np.sum(np.where(x > 0.0, t, 0.0)) + np.sum(np.where(w > 0.0, s, 0.0))


def quotients(a, b, y):
    for i in range(y.shape[0]):
        y[i] = a[i] / b[i]


def gradients(function, *arguments):
    with ampi.Tape() as tape:
        watched = [tape.watch(x) for x in arguments]
        y = function(*watched)
    return tape.gradient(y, watched)


def test_distance_of_a_point_to_itself():
    def total(p):
        out = np.zeros(3)
        distances(p, out)
        return np.sum(out)

    (found,) = gradients(total, numpy.array([0.0, 0.0, 2.0]))
    slope = 1.0 + math.sin(2.0) / (2.0 * math.sqrt(1.0 - math.cos(2.0)))
    numpy.testing.assert_allclose(found, [-slope, 0.0, slope], rtol=1e-14)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_masked_values_are_of_no_consequence():
    x, w = numpy.array([0.0, 1.0, 2.0]), numpy.array([0.0, 1.0, 2.0])
    x_bar, w_bar = gradients(masked, x, w)
    numpy.testing.assert_allclose(x_bar[1:], [2.0 + 1.0, math.log(2.0) + 1.0 + 4.0 + 0.5], rtol=1e-14)
    assert x_bar[0] == 0.0 and w_bar[0] == 0.0


@pytest.mark.parametrize("fastmath", [False, True])
@pytest.mark.parametrize("dtype, small", [("f4", 2e-25), ("f8", 2e-170)])
def test_quotients_of_small_numbers(fastmath, dtype, small):
    kernel = ampi.kernel(fastmath=fastmath)(quotients)

    def values(a, b):
        y = np.zeros(9, dtype)
        kernel(a, b, y)
        return np.sum(y)

    a_bar, b_bar = gradients(values, numpy.full(9, small / 2, dtype), numpy.full(9, small, dtype))
    numpy.testing.assert_allclose(a_bar, 1 / small, rtol=1e-6)
    numpy.testing.assert_allclose(b_bar, -0.5 / small, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "function, x, expected",
    [
        (lambda x: np.sqrt(x * x), 0.0, 0.0),
        (lambda x: np.sqrt(x), 0.0, math.inf),
        (lambda x: np.where(x > 0, x * np.log(x), 0.0), 0.0, 0.0),
        (lambda x: np.where(x > 0, 1.0 / x, 0.0), 0.0, 0.0),
        (lambda x: np.sqrt(np.clip(x, 0.0, 9.0)), -1.0, 0.0),
        (lambda x: np.arctan2(x, x + 1e-200), 1e-200, 0.2e200),
        (lambda x: np.arcsinh(x), 1e200, 1e-200),
        (lambda x: np.hypot(x, 1.0), math.inf, 1.0),
        (lambda x: np.logaddexp(x, x), -math.inf, 1.0),
        (lambda x: np.logaddexp.reduce(np.stack([x, x, x])), -math.inf, 1.0),
        (lambda x: np.where(x > 0, x * np.log(x), 0.0), -1.0, 0.0),
        (lambda x: np.where(np.isnan(ampi.value(x)), 0.0, (x - 1.0) ** 2), math.nan, 0.0),
        (lambda x: np.log(x, where=ampi.value(x) > 0, out=np.zeros(1)), 0.0, 0.0),
        (lambda x: np.exp(x) * x, -math.inf, 0.0),
        (lambda x: x**0.5 * x**1.5, 0.0, 0.0),
        (lambda x: np.hypot(x, 0.0 * x), 0.0, 1.0),  # from the right, as that of abs
        (lambda x: np.linalg.norm(np.stack([x, 2.0 * x])), 0.0, 0.0),
        (lambda x: np.sqrt(np.max(np.concatenate([x, x - 1.0]))), 0.0, math.inf),
        (lambda x: np.cumprod(np.concatenate([x, x, 1.0 / (x + 1.0)]))[:1], -1.0, 1.0),
        (lambda x: np.prod(np.concatenate([x, np.sqrt(x)])), 0.0, 0.0),
    ],
)
def test_arrays_on_the_tape(function, x, expected):
    (found,) = gradients(lambda x: np.sum(function(x)), numpy.array([x]))
    assert found[0] == pytest.approx(expected, rel=1e-12)


# --------------------------------------------------------------------------------------------------- in kernels


@ampi.kernel
def angles(x, y):
    """The root's argument is no sum of squares: each of the products in it is multiplied by infinity."""
    return np.sum(np.sqrt((1.0 - np.cos(x)) * y) + np.sqrt(x * y * y))


@ampi.kernel(parallel=True)
def lengths(p, out):
    for i in prange(out.shape[0]):
        s = 0.0
        for j in range(p.shape[1]):
            s += (p[i, j] - p[0, j]) ** 2
        out[i] = math.sqrt(s)


@ampi.kernel
def guarded_roots(x):
    total = 0.0
    for i in range(len(x)):
        r = 1.0 / x[i]
        t = r * math.log(x[i]) * math.sqrt(x[i])
        if x[i] > 0.0:
            total += t + math.sqrt(x[i])
    return total


@ampi.kernel
def running_products(x, out):
    p = 1.0
    for i in range(len(x)):
        p = p * x[i]
        out[i] = math.sqrt(p * p)


def test_products_before_a_root():
    x_bar, y_bar = gradients(angles, numpy.array([0.0, 1.0]), numpy.array([2.0, 3.0]))
    assert y_bar[0] == 0.0 and x_bar[0] == math.inf  # of sqrt(x)
    step = 1e-6
    for k, bar in enumerate((x_bar, y_bar)):
        ends = [angles(*(numpy.array([a + s * step * (i == k)]) for i, a in enumerate((1.0, 3.0)))) for s in (1, -1)]
        assert bar[1] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-8)


def test_lengths_on_threads():
    p = numpy.array([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    (found,) = gradients(lambda p: lengths(p, out := np.zeros(3)) or np.sum(out), p)
    numpy.testing.assert_allclose(found, [[-0.6, -0.8], [0.0, 0.0], [0.6, 0.8]], rtol=1e-14)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_branch_leaves_out():
    kernel = ampi.kernel(error_model="numpy")(guarded_roots.py_func)
    (found,) = gradients(kernel, numpy.array([0.0, -1.0, 4.0]))
    slope = (1 / 4.0 - 0.5 * math.log(4.0) / 4.0) / 2.0 + 0.25  # of log(x) / sqrt(x) + sqrt(x)
    numpy.testing.assert_allclose(found, [0.0, 0.0, slope], rtol=1e-14)


def test_running_products_with_a_zero():
    (found,) = gradients(lambda x: running_products(x, out := np.zeros(3)) or np.sum(out), numpy.array([2.0, 0.0, 3.0]))
    numpy.testing.assert_allclose(found, [1.0, 0.0, 0.0], rtol=1e-14)


def test_what_needs_no_guard_has_none():
    """Products inside roots of sums of squares and quotients by positive numbers are not guarded."""

    def regular(x, y, z):
        for i in range(len(x)):
            s = max(x[i] * x[i] + 3.0 * (y[i] * y[i]), 0.0)
            z[i] = math.sqrt(s) + x[i] * y[i] / (1.0 + s) + x[i] * x[i] / math.sqrt(s + 1e-9)

    source = ampi.kernel(regular).adjoint_source(*numpy.ones((3, 3)))
    assert source.count("!= 0.0") <= 1, source


# ---------------------------------------------------------------------------------------------- small programs


def soft_dtw(costs, table, gamma):
    for i in range(1, table.shape[0]):
        for j in range(1, table.shape[1]):
            a, b, c = -table[i - 1, j - 1] / gamma, -table[i - 1, j] / gamma, -table[i, j - 1] / gamma
            largest = max(max(a, b), c)
            total = math.exp(a - largest) + math.exp(b - largest) + math.exp(c - largest)
            table[i, j] = costs[i - 1, j - 1] - gamma * (math.log(total) + largest)
    return table[-1, -1]


def soft_dtw_of(costs, gamma, recurrence=soft_dtw):
    table = np.full((costs.shape[0] + 1, costs.shape[1] + 1), np.inf)
    table[0, 0] = 0.0
    return recurrence(costs, table, gamma)


def paths_cost(costs, gamma):
    """The same by enumerating all paths: the soft minimum of their costs."""
    n, m = costs.shape
    sums = []

    def walk(i, j, total):
        total = total + costs[i, j]
        if (i, j) == (n - 1, m - 1):
            sums.append(total)
        for di, dj in ((1, 0), (0, 1), (1, 1)):
            if i + di < n and j + dj < m:
                walk(i + di, j + dj, total)

    walk(0, 0, 0.0)
    return -gamma * numpy.log(numpy.sum(numpy.exp(-numpy.array(sums) / gamma)))


@pytest.mark.parametrize("fastmath", [False, {"reassoc", "contract", "arcp"}])
def test_soft_dtw(fastmath):
    """Its border is infinite.  Compared with complex steps of the sum over all paths."""
    recurrence = ampi.kernel(fastmath=fastmath)(soft_dtw)
    costs, gamma = numpy.random.default_rng(4).random((3, 4)), 0.3
    with ampi.Tape() as tape:
        watched = tape.watch(costs), tape.watch(numpy.array(gamma))
        y = soft_dtw_of(watched[0], watched[1], recurrence)
    costs_bar, gamma_bar = tape.gradient(y, watched)
    h = 1e-40j
    for i, j in itertools.product(*map(range, costs.shape)):
        moved = costs.astype(complex)
        moved[i, j] += h
        assert costs_bar[i, j] == pytest.approx((paths_cost(moved, gamma) / h).real, rel=1e-12)
    assert gamma_bar == pytest.approx((paths_cost(costs.astype(complex), gamma + h) / h).real, rel=1e-10)


def relu(x):
    return np.maximum(x, 0.0)


def softmax(x):
    largest = np.max(x, axis=-1, keepdims=True)
    e = np.exp(x - largest)
    return e / np.sum(e, axis=-1, keepdims=True)


def mlp(x, w1, b1, w2, b2):
    return softmax(relu(x @ w1 + b1) @ w2 + b2)


def scaled_quotients(e, total, y):
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = e[i, j] / total[i]


@pytest.mark.parametrize("kernels", [False, True])
def test_perceptron_in_single_precision(kernels):
    """Logits lie far apart, so that most of the softmax underflows.  Compared with double precision."""

    def softmax_by_kernel(x):
        e = np.exp(x)  # not shifted: sums from 1e-30 to 1e30
        y = np.zeros(e.shape, e.dtype)
        ampi.kernel(fastmath=True)(scaled_quotients)(e, np.sum(e, axis=-1), y)
        return y

    rng = numpy.random.default_rng(5)
    shapes = (6, 5), (5, 8), (8,), (8, 4), (4,)
    parameters = [rng.standard_normal(shape) * 3.0 for shape in shapes]
    weights = rng.standard_normal((6, 4))

    def loss(*values):
        if not kernels:
            return np.sum(mlp(*values) * weights.astype(values[0].dtype))
        logits = relu(values[0] @ values[1] + values[2]) @ values[3] + values[4]
        logits = logits / np.max(np.abs(ampi.value(logits)), axis=-1, keepdims=True) * 5.0 - 60.0
        return np.sum(softmax_by_kernel(logits) * weights.astype(values[0].dtype))

    found = gradients(loss, *[p.astype("f4") for p in parameters])
    expected = gradients(loss, *parameters)
    for a, b in zip(found, expected):
        numpy.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4 * abs(b).max())


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.0, 1.0, 2.5])
def test_complex_powers_of_zero(exponent):
    """Numba raises if a complex number is divided by zero, even in a value that is not selected."""

    @ampi.kernel
    def power(x, n):
        return (x**n).real

    value, gradient = ampi.value_and_grad(lambda x: power(x[0], exponent))(np.zeros(1, dtype=complex))
    assert value == (exponent == 0)
    np.testing.assert_array_equal(gradient, [exponent == 1])
