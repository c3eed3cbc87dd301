"""Kernels with a custom adjoint, called from Python and from other kernels."""

import linecache
import math

import numba
import numpy as np
import pytest
from kernel_cases import eliminate

import ampi
from ampi import KernelError
from ampi.kernel import ANALYSES, prange


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


# ------------------------------------------------------------------------------------------------ bodies and calls

BODIES = {
    "small array": ["t = np.zeros(2)", "t[0] = x", "t[1] = x * x", "r = t[0] + t[1]"],
    "from the end": ["t = np.zeros(2)", "t[-2] = x", "t[-1] = x * x", "r = t[0] + t[1]"],
    "part": ["t = np.zeros((2, 2))", "u = t[1]", "u[0] = x", "u[1] = x * x", "r = t[1, 0] + t[1, 1]"],
    "branch": ["t = np.zeros(2)", "if x > 0:", "    t[0] = x + x * x", "else:", "    t[1] = x", "r = t[0] + t[1]"],
    "constant branch": ["s = 3", "r = x", "if s > 2:", "    t = np.zeros(2)", "    t[0] = x * x", "    r += t[0]"],
    "short loop": ["t = np.zeros(2)", "for i in range(2):", "    t[i] += x ** (i + 1)", "r = t[0] + t[1]"],
    "while": ["t = np.zeros(3)", "k = 0", "while k < 2:", "    t[k] += x ** (k + 1)", "    k += 1", "r = t[0] + t[1]"],
    "break": ["r = x", "for i in range(10):", "    r += x * x", "    if i == 0:", "        break"],
    "early return": ["for i in range(3):", "    if i == 1:", "        return x + x ** (i + 1)", "r = x"],
    "whole arrays": ["t = np.full(3, x)", "u = t.copy()", "u[1] = x * x", "u[2] = 0.0", "r = u.sum()"],
    "swapped": ["a = np.full(1, x)", "b = np.full(1, x * x)", "if x > 1:", "    a, b = b, a", "r = a[0] + b[0]"],
    "chosen": ["a = np.full(1, x)", "b = np.full(1, x * x)", "c = a if x > 1 else b", "r = c[0] + x * x"],
    "rebound": ["a = np.full(2, x)", "for i in range(2):", "    b = a * 1.0", "    b[0] = x + x * x", "    a = b",
                "r = a[0]"],
    "list": ["v = [x]", "while len(v) < 2:", "    v.append(v[-1] * x)", "r = v[0] + v[1]"],
    "sorted": ["t = np.sort(np.array([x * x, x]))", "r = t[0] + t[1]"],
}  # fmt: skip
CALLS = {
    "plain": ["y = rule(x) * x"],
    "branch": ["if x > 0:", "    y = rule(x) * x", "else:", "    y = x"],
    "short loop": ["y = 0.0", "for i in range(2):", "    y += 0.5 * rule(x) * x"],
    "long loop": ["y = 0.0", "for i in range(100):", "    y += 0.01 * rule(x) * x"],
    "while": ["y = 0.0", "k = 0", "while k < 2:", "    y += 0.5 * rule(x) * x", "    k += 1"],
    "break": ["y = 0.0", "for i in range(5):", "    y += rule(x) * x", "    if y > 0:", "        break"],
    "prange": ["y = 0.0", "for i in prange(100):", "    y += 0.01 * rule(x) * x"],
    "small array": ["t = np.zeros(2)", "t[0] = x", "t[1] = rule(t[0])", "y = t[1] * t[0]"],
    "swapped": ["a = np.full(1, x)", "b = np.zeros(1)", "for i in range(3):", "    b[0] = x * rule(x)",
                "    a, b = b, a", "y = a[0]"],
}  # fmt: skip
PAIRS = [(b, c) for b in BODIES for c in CALLS]


def written(name, parameters, lines, **names):
    """A function with this body."""
    text = f"def {name}({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
    file = f"<custom kernels {len(linecache.cache)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    namespace = {"np": np, "prange": prange, **names}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def check_call(body, call, **options):
    """``rule(x)`` is x + x**2; its derivative is given as twice the true one, to tell which one is used."""
    rule = ampi.custom_vjp(ampi.kernel(written("own", "x", [*BODIES[body], "return r"])))
    forward = written("forward", "x", ["return rule(x), x"], rule=rule)
    rule.defvjp(forward, written("backward", "x, g", ["return (2 * g * (1 + 2 * x),)"]))
    function = ampi.kernel(written("caller", "x", [*CALLS[call], "return y"], rule=rule), **options)
    assert function(3.0) == pytest.approx(36.0)
    assert ampi.grad(function)(3.0) == pytest.approx(2 * 7 * 3 + 12)


@pytest.mark.parametrize("body", ["small array", "from the end", "part", "constant branch"])
def test_bodies(body):
    check_call(body, "plain")


@pytest.mark.parametrize("call", ["long loop", "swapped"])
def test_calls(call):
    check_call("small array", call)


@pytest.mark.slow
@pytest.mark.parametrize(("body", "call"), PAIRS)
def test_bodies_in_calls(body, call):
    check_call(body, call)


@pytest.mark.slow
@pytest.mark.parametrize("step", ANALYSES)
@pytest.mark.parametrize("body", BODIES)
def test_bodies_without(body, step):
    check_call(body, "short loop", without=step)
