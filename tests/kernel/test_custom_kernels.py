"""Kernels with a custom adjoint, called from Python and from other kernels."""

import math

import numba
import numpy as np
import pytest
from kernel_cases import eliminate

import ampi
from ampi import KernelError
from ampi.kernel import prange


@ampi.custom_vjp
@ampi.kernel
def cosine_point(a, start):
    """Solve x = a cos(x) by iteration."""
    x = start
    for _ in range(200):
        x = a * math.cos(x)
    return x


def cosine_point_forward(a, start):
    x = cosine_point(a, start)
    return x, (a, x)


def cosine_point_backward(residuals, x_bar):
    a, x = residuals
    return x_bar * math.cos(x) / (1.0 + a * math.sin(x)), None


forward_kernel = ampi.kernel(cosine_point_forward)
cosine_point.defvjp(forward_kernel, ampi.kernel(cosine_point_backward))


@ampi.custom_vjp
@ampi.kernel
def solve(m, b, x):
    """Solve m x = b into x by Gaussian elimination."""
    n = len(b)
    a = np.empty_like(m)
    for i in range(n):
        x[i] = b[i]
        for j in range(n):
            a[i, j] = m[i, j]
    eliminate(a, x)
    return x


@ampi.kernel
def solve_forward(m, b, x):
    solve(m, b, x)
    return x, (m, x)


@ampi.kernel
def solve_backward(residuals, x_bar):
    m, x = residuals
    n = len(x)
    adjoint = np.empty_like(m)
    for i in range(n):
        for j in range(n):
            adjoint[i, j] = np.conj(m[j, i])
    b_bar = np.empty_like(x)
    solve(adjoint, x_bar, b_bar)
    m_bar = np.empty_like(m)
    for i in range(n):
        for j in range(n):
            m_bar[i, j] = -b_bar[i] * np.conj(x[j])
    return m_bar, b_bar, None


solve.defvjp(solve_forward, solve_backward)


@ampi.custom_vjp
@ampi.kernel
def doubled(v):
    w = np.empty_like(v)
    for i in range(len(v)):
        w[i] = 2.0 * v[i]
    return w


@ampi.kernel
def doubled_forward(v):
    return doubled(v), None


@ampi.kernel
def tripled_backwards(residuals, w_bar):
    v_bar = np.empty_like(w_bar)
    for i in range(len(w_bar)):
        v_bar[i] = 3.0 * w_bar[i]  # not the derivative, so that tests notice its use
    return (v_bar,)


doubled.defvjp(doubled_forward, tripled_backwards)


# ------------------------------------------------------------------------------------------------ kernels that call


@ampi.kernel
def points_in_a_loop(a, out):
    s = 0.0
    for i in range(len(a)):
        t = a[i] * a[i]
        x = cosine_point(t, 0.5)
        out[i] = x * t
        s += x * x
    return s


@ampi.kernel
def points_in_parallel(a, out):
    for i in prange(len(a)):
        out[i] = cosine_point(a[i], 0.5) * a[i]


@ampi.kernel
def point_if(a, out):
    for i in range(len(a)):
        if a[i] > 0.6:
            out[i] += cosine_point(out[i] * a[i], 0.1)
        a[i] = 2 * out[i]


@ampi.kernel
def relaxed(m, b, n):
    """Solve a nonlinear system by repeated linear solves, whose matrix is overwritten in between."""
    x = np.zeros_like(b)
    for k in range(n):
        for i in range(len(b)):
            m[i, i] += x[i] * x[i] + 0.1 * k
        solve(m, b, x)
    s = b[0] * 0
    for v in x:
        s += v * v
    return s


@ampi.kernel
def rows_solved(m, b):
    """Pass parts of arrays as arguments."""
    x = np.zeros_like(b)
    for k in range(b.shape[0]):
        solve(m[k], b[k], x[k])
    s = b[0, 0] * 0
    for k in range(b.shape[0]):
        for i in range(b.shape[1]):
            s += x[k, i] * x[k, i] * b[k, i]
    return s


@ampi.kernel
def squares_of_doubled(v):
    w = doubled(v)
    s = 0.0
    for i in range(len(w)):
        s += w[i] * w[i]
    return s


def directional(function, arguments, directions, h=1e-4):
    """The directional derivative of a real-valued function by fourth-order differences."""
    moved = lambda t: function(*(a.copy() + t * d for a, d in zip(arguments, directions)))
    return (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)


def random(rng, dtype, *shape):
    values = rng.uniform(0.3, 1.0, shape)
    return (values + 1j * rng.uniform(-0.3, 0.3, shape) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def compare(call, arguments, rtol=1e-9):
    """Compare the gradient of ``call``, which returns a real scalar, with differences."""
    rng = np.random.default_rng(3)
    directions = [random(rng, a.dtype, *a.shape) for a in arguments]
    with ampi.Tape() as tape:
        watched = [tape.watch(a) for a in arguments]
        result = call(*(w.copy() for w in watched))
    bars = tape.gradient(result, watched)
    found = sum(float(np.sum((np.conj(g) * d).real)) for g, d in zip(bars, directions))
    expected = directional(lambda *a: float(ampi.value(call(*map(ampi.numpy.array, a)))), arguments, directions)
    assert found == pytest.approx(expected, rel=rtol)


numbers = np.array([0.7, 0.9, 0.4])


def test_a_fixed_point_from_python():
    with ampi.Tape() as tape:
        a = tape.watch(0.7)
        x = cosine_point(a, 0.5)
    value = float(ampi.value(x))
    assert value == pytest.approx(0.7 * math.cos(value))
    expected = math.cos(value) / (1 + 0.7 * math.sin(value))
    assert tape.gradient(x, a) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("function", [points_in_a_loop, point_if, points_in_parallel])
def test_a_fixed_point_in_kernels(function):
    def call(a, out):
        result = function(a, out)
        return np.sum(out * out) + np.sum(a) + (0.0 if result is None else result)

    compare(call, [numbers, numbers[::-1].copy()])


def test_nothing_is_stored_for_the_iteration():
    text = points_in_a_loop.adjoint_source(numbers, numbers)
    assert "_saved" not in text
    assert text.count("math.sin(") == 1


def system(dtype, *shape):
    rng = np.random.default_rng(1)
    m = random(rng, dtype, *shape, 3, 3) + 3 * np.eye(3, dtype=dtype)
    return [m.astype(dtype), random(rng, dtype, *shape, 3)]


def test_a_linear_solve_from_python(dtype=np.complex128):
    def call(m, b):
        x = ampi.numpy.zeros(3, dtype)
        x = solve(m, b * b, x)
        return np.sum((x * x * b).real)

    compare(call, system(dtype))


def test_a_nonlinear_system_by_linear_solves():
    compare(lambda m, b: relaxed(m, b, 3), system(np.float64))


def test_complex_parts_of_arrays_in_a_kernel():
    compare(lambda m, b: rows_solved(m, b).real, system(np.complex128, 2))


def test_the_rule_is_used():
    with ampi.Tape() as tape:
        v = tape.watch(numbers)
        s = squares_of_doubled(v)
    np.testing.assert_allclose(tape.gradient(s, v), 3 * 2 * 2 * numbers)
    assert float(ampi.value(s)) == pytest.approx(4 * numbers @ numbers)


def test_the_cache_depends_on_the_rule():
    """Another backward function means another adjoint."""

    def make(factor):
        rule = ampi.custom_vjp(ampi.kernel(lambda_free))
        rule.defvjp(doubled_number, backward_with(factor))
        return ampi.kernel(calling(rule))

    for factor in (5.0, 7.0):
        with ampi.Tape() as tape:
            v = tape.watch(1.0)
            result = make(factor)(v)
        assert tape.gradient(result, v) == factor


def lambda_free(v):
    return 2.0 * v


def doubled_number(v):
    return 2.0 * v, None


def backward_with(factor):
    def backward(residuals, w_bar):
        return (factor * w_bar,)

    return backward


def calling(rule):
    def calls(v):
        return rule(v)

    return calls


# ------------------------------------------------------------------------------------------------ refused


def test_refused():
    rule = ampi.custom_vjp(ampi.kernel(lambda_free))
    caller = calling(rule)
    with pytest.raises(KernelError, match="has no adjoint yet"):
        ampi.kernel(caller).ir_of((numba.float64,))
    rule.defvjp(lambda_free, backward_with(1.0))
    with pytest.raises(KernelError, match="forward function"):
        ampi.kernel(caller).ir_of((numba.float64,))
    rule.defvjp(doubled_number, lambda_free_two)
    with pytest.raises(KernelError, match="a tuple of 1 adjoints"):
        ampi.kernel(caller).ir_of((numba.float64,))


def lambda_free_two(residuals, w_bar):
    return w_bar
