"""Kernels with a custom tangent: used in the tangents of their callers, and transposed in their adjoints."""

import math
from collections import namedtuple

import numba
import numpy as np
import pytest
from kernel_cases import eliminate
from kernel_checks import Check, copies, float_arguments, load

import ampi
from ampi import KernelError

Pair = namedtuple("Pair", "left right")


@ampi.custom_jvp
@ampi.kernel
def cosine_point(a, start):
    """Solve x = a cos(x) by iteration."""
    x = start
    for _ in range(200):
        x = a * math.cos(x)
    return x


@cosine_point.defjvp
def cosine_point_jvp(primals, tangents):
    a, start = primals
    a_dot, _ = tangents
    x = cosine_point(a, start)
    return x, a_dot * math.cos(x) / (1.0 + a * math.sin(x))


@ampi.custom_jvp
@ampi.kernel
def solve(m, b):
    return np.linalg.solve(m, b)


@solve.defjvp
@ampi.kernel
def solve_jvp(primals, tangents):
    m, b = primals
    m_dot, b_dot = tangents
    x = solve(m, b)
    return x, solve(m, b_dot - m_dot @ x)


@ampi.custom_jvp
@ampi.kernel
def gauss(m, b, x):
    """Solve m x = b into x by elimination."""
    x[:] = b
    eliminate(m.copy(), x)
    return x


@gauss.defjvp
def gauss_jvp(primals, tangents):
    m, b, x = primals
    m_dot, b_dot, x_dot = tangents
    gauss(m, b, x)
    gauss(m, b_dot - m_dot @ x, x_dot)
    return x, x_dot


@ampi.custom_jvp
@ampi.kernel
def weighted(pair, index, n, scale=2.0):
    """A function of tuples, integer arrays and numbers: all possible leaves of arguments and results."""
    total, out = 0.0 * pair.left[0], np.zeros_like(pair.right)
    for i in range(n):
        out[i] = scale * pair.left[index[i]] * pair.right[i]
        total += out[i] * out[i]
    return Pair(out, total), n


@weighted.defjvp
def weighted_jvp(primals, tangents):
    pair, index, n, scale = primals
    pair_dot, no_index, no_n, no_scale = tangents
    result = weighted(pair, index, n, scale)
    out, dot = result[0].left, np.zeros_like(pair.right)
    total_dot = 0.0 * pair_dot.left[0]
    for i in range(n):
        change = pair_dot.left[index[i]] * pair.right[i] + pair.left[index[i]] * pair_dot.right[i]
        dot[i] = scale * change
        total_dot += 2.0 * out[i] * dot[i]
    return result, (Pair(dot, total_dot), None)


# ------------------------------------------------------------------------------------------------ kernels that call


def points_in_a_loop(a, out):
    s = 0.0
    for i in range(len(a)):
        t = a[i] * a[i]
        x = cosine_point(t, 0.5)
        out[i] = x * t
        s += x * x
    return s


def points_where(a, out):
    for i in range(len(a)):
        if a[i] > 0.6:
            out[i] += cosine_point(out[i] * a[i], 0.1)
        a[i] = 2 * out[i]


def points_in_parallel(a, out):
    for i in numba.prange(len(a)):
        out[i] = cosine_point(a[i], 0.5) * a[i]


def solved_again_and_again(m, b):
    """Solve a nonlinear system whose matrix is overwritten between the linear solves."""
    s = 0.0 * b[0]
    for k in range(3):
        x = solve(m, b * b)
        for i in range(len(b)):
            m[i, i] += x[i] * x[i] + 0.1 * k
        s += x[1] * b[k]
    return s, solve(m, b)


def rows_solved(m, b, x):
    """Pass parts of arrays as arguments that are overwritten."""
    for k in range(b.shape[0]):
        gauss(m[k], b[k], x[k])
    s = b[0, 0] * 0
    for k in range(b.shape[0]):
        for i in range(b.shape[1]):
            s += x[k, i] * x[k, i] * b[k, i]
    return s


def slices_solved(m, b):
    """Pass slices as arguments that are read."""
    x = np.zeros_like(b[:2])
    y = gauss(m[1:, 1:], b[::2], x)
    return y * y, x


def tuples(a, b, index):
    pair, n = weighted(Pair(a, b[1:]), index, 2)
    again, _ = weighted(Pair(pair.left, a), index, n, 0.5)
    return again.right * pair.right + again.left[0] * n


numbers = np.array([0.7, 0.9, 0.4])
index = np.array([1, 0, 1])


def system(dtype, *shape):
    rng = np.random.default_rng(1)
    m = rng.uniform(0.3, 1.0, (*shape, 3, 3)) + 3 * np.eye(3)
    b = rng.uniform(0.3, 1.0, (*shape, 3))
    if np.dtype(dtype).kind == "c":
        m, b = m + 0.2j * rng.uniform(-1, 1, m.shape), b + 0.3j * rng.uniform(-1, 1, b.shape)
    return m.astype(dtype), b.astype(dtype)


def cases():
    for function in (points_in_a_loop, points_where, points_in_parallel):
        yield function, (numbers, numbers[::-1].copy())
    yield tuples, (numbers, np.array([0.3, 0.8, 0.5, 1.1]), index)
    for dtype in (np.float64, np.complex128):
        m, b = system(dtype)
        yield solved_again_and_again, (m, b)
        yield slices_solved, (m, b)
        m, b = system(dtype, 2)
        yield rows_solved, (m, b, np.zeros_like(b))


CASES = [pytest.param(f, a, id=f"{f.__name__}-{a[0].dtype}") for f, a in cases()]


@pytest.mark.parametrize("function, arguments", CASES)
def test_derivatives(function, arguments):
    """Compare the custom tangent with differences, and its transpose with the tangent."""
    names = float_arguments(function, arguments)
    for active in (names, *([n] for n in names)):
        Check(function, copies(arguments), tuple(active)).compare(1e-11)


@pytest.mark.parametrize("function, arguments", [c for c in CASES if c.values[0] in (points_in_a_loop, rows_solved)])
def test_second_derivatives(function, arguments):
    check = Check(function, copies(arguments), tuple(float_arguments(function, arguments)))
    array_seeds, result_seeds = check.seeds()
    code = check.adjoint.function
    given = copies((*arguments, *array_seeds.values(), *result_seeds))
    call = load(code)
    active = tuple(n for n, a in zip(call.__code__.co_varnames, given) if np.asarray(a).dtype.kind in "fc")
    Check(call, given, active, code=code).compare(1e-11)


def test_single_precision():
    m, b = system(np.float32)
    Check(solved_again_and_again, (m, b), ("m", "b")).compare(1e-4, against_differences=False)


def test_the_result_is_computed_once():
    """The adjoint runs the iteration once, for the result, and saves none of its values."""
    text = ampi.kernel(points_in_a_loop).adjoint_source(numbers, numbers)
    assert text.count("range(200)") == 1 and "_saved" not in text
    assert ampi.kernel(points_in_a_loop).tangent_source(numbers, numbers).count("range(200)") == 1


# ------------------------------------------------------------------------------------------------ calls from Python


def test_a_fixed_point_from_python():
    with ampi.Tape() as tape:
        a = tape.watch(0.7)
        x = cosine_point(a, start=0.5)
    value = float(ampi.value(x))
    assert value == pytest.approx(0.7 * math.cos(value))
    assert tape.gradient(x, a) == pytest.approx(math.cos(value) / (1 + 0.7 * math.sin(value)), rel=1e-12)
    assert cosine_point(0.7, 0.5) == value


def test_a_linear_system_from_python():
    m, b = system(np.float64)
    weights = np.array([1.0, -2.0, 0.5])

    def value(m, b):
        return weights @ np.linalg.solve(m, b) ** 2

    with ampi.Tape() as tape:
        watched = tape.watch(m), tape.watch(b)
        x = gauss(*watched, ampi.numpy.zeros(3))
        y = ampi.numpy.sum(weights * solve(*watched) * x)
    bars = tape.gradient(y, list(watched))
    rng = np.random.default_rng(0)
    for bar, at in zip(bars, (0, 1)):
        d, h = rng.normal(size=bar.shape), 1e-5
        moved = [value(*(a + t * d if k == at else a for k, a in enumerate((m, b)))) for t in (h, -h)]
        np.testing.assert_allclose(np.sum(bar * d), (moved[0] - moved[1]) / (2 * h), rtol=1e-7)


def test_the_cache_depends_on_the_tangent():
    for factor in (5.0, 7.0):
        rule = ampi.custom_jvp(ampi.kernel(doubled))
        rule.defjvp(tangent_with(factor))
        with ampi.Tape() as tape:
            v = tape.watch(1.0)
            result = ampi.kernel(calling(rule))(v)
        assert tape.gradient(result, v) == factor


def doubled(v):
    return 2.0 * v


def tangent_with(factor):
    def tangent(primals, tangents):
        return doubled_kernel(primals[0]), factor * tangents[0]

    return tangent


doubled_kernel = ampi.kernel(doubled)


def calling(rule):
    def calls(v):
        return rule(v)

    return calls


# ------------------------------------------------------------------------------------------------ both derivatives


@ampi.custom_vjp
@ampi.kernel
def cubed(v):
    return v * v * v


def cubed_forward(v):
    return cubed(v), v


def cubed_backward(v, bar):
    return (3.0 * v * v * bar,)


cubed.defvjp(cubed_forward, cubed_backward)


@cubed.defjvp
def cubed_tangent(primals, tangents):
    (v,), (v_dot,) = primals, tangents
    step = abs(v_dot) if v_dot != 0.0 else 1.0  # not linear as written
    return cubed(v), 3.0 * v * v * (v_dot / step) * step


def calls_cubed(a):
    s = 0.0
    for i in range(len(a)):
        s += cubed(a[i]) * a[0]
    return s


def test_an_adjoint_and_a_tangent():
    Check(calls_cubed, (numbers,), ("a",)).compare(1e-11)


# ------------------------------------------------------------------------------------------------ what is refused


def squared_tangent(primals, tangents):
    return doubled_kernel(primals[0]), tangents[0] * tangents[0]


def shifted_tangent(primals, tangents):
    v_dot = tangents[0]
    if primals[0] > 0.0:
        v_dot = 1.0
    return doubled_kernel(primals[0]), v_dot


def added_tangent(primals, tangents):
    return doubled_kernel(primals[0]), tangents[0] + 1.0


def divided_tangent(primals, tangents):
    return doubled_kernel(primals[0]), 1.0 / tangents[0]


def kinked_tangent(primals, tangents):
    return doubled_kernel(primals[0]), abs(tangents[0])


def compared_tangent(primals, tangents):
    return doubled_kernel(primals[0]), tangents[0] if tangents[0] > 0.0 else 2.0 * tangents[0]


def mixed_tangent(primals, tangents):
    return doubled_kernel(0.5 * tangents[0]), tangents[0]


@pytest.mark.parametrize(
    "tangent, problem",
    [
        (squared_tangent, "multiplied"),
        (shifted_tangent, "replaces one"),
        (added_tangent, "added"),
        (divided_tangent, "divided"),
        (kinked_tangent, "'abs'"),
        (compared_tangent, "'gt'"),
        (mixed_tangent, "result itself"),
    ],
)
def test_nonlinear_tangents_have_no_transpose(tangent, problem):
    rule = ampi.custom_jvp(ampi.kernel(doubled))
    rule.defjvp(tangent)
    compiled = ampi.kernel(calling(rule))
    assert "def calls_tangent" in compiled.tangent_source(1.0)
    line = tangent.__code__.co_firstlineno
    with pytest.raises(KernelError, match=rf"{__file__}:\d+: the tangent of 'doubled'.*{problem}.*\n.*custom_vjp") as e:
        compiled.adjoint_source(1.0)
    assert line <= int(str(e.value).split(":")[1]) <= line + 4
    with pytest.raises(KernelError, match=problem), ampi.Tape() as tape:
        rule(tape.watch(1.0))
    assert rule(1.0) == 2.0


def test_refused():
    with pytest.raises(KernelError, match=r"takes a kernel.*ampi.custom_vjp"):
        ampi.custom_jvp(doubled)
    rule = ampi.custom_jvp(ampi.kernel(doubled))
    caller = ampi.kernel(calling(rule))
    with pytest.raises(KernelError, match="has no tangent yet"):
        caller.ir_of((numba.float64,))
    rule.defjvp(lambda_free_tangent)
    with pytest.raises(KernelError, match=r"must return \(result, tangent of the result\)"):
        caller.ir_of((numba.float64,))
    rule.defjvp(tuple_tangent)
    with pytest.raises(KernelError, match="another structure"):
        caller.ir_of((numba.float64,))
    rule.defjvp(doubled)
    with pytest.raises(KernelError, match="two tuples"):
        caller.ir_of((numba.float64,))


def lambda_free_tangent(primals, tangents):
    return tangents[0]


def tuple_tangent(primals, tangents):
    return primals[0], (tangents[0], tangents[0])


@ampi.custom_jvp
@ampi.kernel
def scaled_in_place(v):
    v *= 2.0
    return v


@scaled_in_place.defjvp
def scaled_copy(primals, tangents):
    return primals[0] * 2.0, tangents[0] * 2.0


def calls_scaled(v):
    scaled_in_place(v)
    return v[0]


def test_what_is_overwritten_is_overwritten_by_the_tangent():
    with pytest.raises(KernelError, match="must return the argument"):
        ampi.kernel(calls_scaled).ir_of((numba.float64[::1],))
