"""Recursive kernels, compiled; `recursion_cases` has those that run in plain Python."""

import importlib
import math
import os
import subprocess
import sys
import textwrap

import numba
import numpy as np
import pytest
from patience import patience

import ampi
from ampi import KernelError


@numba.njit
def wave(t, p):
    return math.exp(-p * t * t) * math.sin(3 * t)


@ampi.kernel
def adaptive(f, a, b, p, tolerance):
    m = 0.5 * (a + b)
    difference = f(a, p) - 2 * f(m, p) + f(b, p)
    if abs(difference) <= tolerance:
        return (b - a) * (f(m, p) + difference / 6)
    return adaptive(f, a, m, p, tolerance) + adaptive(f, m, b, p, tolerance)


@ampi.kernel
def integral(a, b, p):
    return adaptive(wave, a, b, p, 1e-3)


POINT = (0.1, 1.3, 0.7)


def test_adaptive_quadrature():
    """Values are bitwise identical to Numba's, gradients equal differences and forward mode; the derivative with
    respect to an endpoint is the integrand."""
    h, directions = 1e-4, np.eye(3)
    plain = lambda p: integral(*map(float, p))
    value, gradient = ampi.value_and_grad(integral, argnums=(0, 1, 2))(*POINT)
    assert value == plain(POINT)
    expected = [(plain(POINT + h * d) - plain(POINT - h * d)) / (2 * h) for d in directions]
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient[1], wave(1.3, 0.7), rtol=1e-4)
    d = np.array([0.3, -0.2, 0.5])
    np.testing.assert_allclose(ampi.jvp(integral, POINT, tuple(d))[1], np.dot(gradient, d), rtol=1e-13)


@pytest.mark.slow
def test_adaptive_quadrature_in_second_order():
    h, d = 1e-4, np.array([0.3, -0.2, 0.5])
    at = lambda t: np.array(ampi.grad(integral, argnums=(0, 1, 2))(*(POINT + t * d)))
    np.testing.assert_allclose(ampi.hvp(integral, POINT, tuple(d)), (at(h) - at(-h)) / (2 * h), rtol=1e-5)


@ampi.kernel
def swap_down(a, n):
    """Writes what its calls read, and draws random numbers."""
    if n > 0:
        a[n] += a[n - 1] * np.random.normal(0.5, 0.1)  # noqa: NPY002
        swap_down(a, n - 1)
        a[n - 1] *= a[n]


@ampi.kernel
def seed(n):
    np.random.seed(n)  # noqa: NPY002


def test_arrays_that_are_changed_on_the_way():
    x = np.array([0.7, 0.2, 1.3, 0.4])
    weights = np.array([1.0, -0.5, 2.0, 0.3])

    def loss(x):
        a = ampi.numpy.array(x)
        seed(5)
        swap_down(a, 3)
        return ampi.numpy.sum(a * weights)

    expected = [(loss(x + 1e-5 * e) - loss(x - 1e-5 * e)) / 2e-5 for e in np.eye(4)]
    np.testing.assert_allclose(ampi.grad(loss)(x), expected, rtol=1e-8)


@numba.njit
def even(x, n):
    return x if n == 0 else odd(x * 0.5, n - 1)


@numba.njit
def odd(x, n):
    return 0.3 if n == 0 else even(x * x * 0.7, n - 1)


@ampi.kernel
def even_or_odd(x, n):
    return even(x, n) + odd(x, n)


@pytest.mark.parametrize("n", [4, 5])
def test_functions_that_call_one_another(n):
    """Values are Numba's; the derivatives come from both functions in turn."""
    value, slope = ampi.value_and_grad(even_or_odd)(1.3, n)
    assert value == even(1.3, n) + odd(1.3, n)
    np.testing.assert_allclose(slope, (even_or_odd(1.3 + 1e-5, n) - even_or_odd(1.3 - 1e-5, n)) / 2e-5, rtol=1e-8)


OTHER_FILE = """
import numba

@numba.njit
def back(x, n):
    y = x * x * 0.7
    return 0.3 if n == 0 else forth(y, n - 1)
"""


def test_functions_of_two_files_that_call_one_another(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "file_with_back.py").write_text(OTHER_FILE)
    other = importlib.import_module("file_with_back")
    back = other.back

    @numba.njit
    def forth(x, n):
        y = 0.5 * x
        return x if n == 0 else back(y, n - 1)

    other.forth = forth
    kernel = ampi.kernel(lambda x, n: forth(x, n) + back(x, n))
    value, slope = ampi.value_and_grad(kernel)(1.3, 5)
    assert value == forth(1.3, 5) + back(1.3, 5)
    np.testing.assert_allclose(slope, (kernel(1.3 + 1e-5, 5) - kernel(1.3 - 1e-5, 5)) / 2e-5, rtol=1e-8)


# ------------------------------------------------------------------------------------------------ other processes

SCRIPT = textwrap.dedent("""\
    import numba
    import ampi

    @numba.njit
    def scaled(t, p):
        return t * p

    @ampi.kernel
    def down(f, x, n):
        if n == 0:
            return f(x, x)
        return f(x, 0.3) + down(f, x * 0.5, n - 1)

    @ampi.kernel
    def once(f, x):
        return f(x, 0.3)

    @ampi.kernel
    def above(x):
        return down(scaled, x, 3) + once(scaled, x)

    print(above(2.0), float(ampi.grad(above)(2.0)))
""")


@pytest.mark.slow
def test_code_that_calls_itself_is_compiled_by_each_process(tmp_path):
    """Numba does not find recursive functions in code that it has loaded; function arguments of loaded code are those
    of this process."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, path], capture_output=True, text=True, check=False, timeout=patience(60),
            env={**os.environ, "AMPI_CACHE_DIR": str(tmp_path / "cache")},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        value, slope = map(float, done.stdout.split())
        assert abs(value - 1.7125) < 1e-13
        assert abs(slope - 0.8875) < 1e-13


# ------------------------------------------------------------------------------------------------ what is refused


@ampi.kernel
def discarded(x, n):
    if n == 0:
        return x
    discarded(2.0 * x, n - 1)
    return 3.0 * x


@ampi.kernel
def constant_result(x, n):
    if n == 0:
        return x
    y = constant_result(2.0 * x, n - 1)
    return 5.0


@ampi.kernel
def discarded_pair(x, n):
    if n == 0:
        return x, 1.0
    discarded_pair(2.0 * x, n - 1)
    return 0.5, 3.0 * x


@ampi.kernel
def sum_of_pair(x, n):
    s, t = discarded_pair(x, n)
    return s + t


@pytest.mark.parametrize(
    "kernel, value, slope", [(discarded, 9.0, 3.0), (constant_result, 5.0, 0.0), (sum_of_pair, 9.5, 3.0)]
)
def test_calls_whose_results_are_not_returned(kernel, value, slope):
    assert ampi.value_and_grad(kernel)(3.0, 4) == (value, slope)
    assert ampi.jvp(kernel, (3.0, 4), (1.0, None)) == (value, slope)


@ampi.kernel
def parts(a):
    if len(a) < 2:
        return a[0]
    return parts(a[: len(a) // 2]) + parts(a[len(a) // 2 :])


@ampi.kernel
def own_array(a, n):
    t = np.zeros(3)
    if n == 0:
        return a[0]
    t[0] = a[n]
    s = own_array(a, n - 1)
    return s + t[0]


@ampi.kernel
def other_type(x, n):
    return x if n == 0 else other_type(x * 1j, n - 1)


@ampi.kernel
def generated(x, n):
    return x if n == 0 else sum(generated(x, k) for k in range(n))


@ampi.kernel
def not_last(x, n):
    if n > 0:
        y = not_last(x, n - 1)
        x[0] = y


@ampi.kernel
def over_parts(x, n):
    s = x[0]
    for t in x[1:]:
        s += over_parts(x, n - 1) * t if n > 0 else t
    return s


@numba.njit
def out_of_a_loop(x, n):
    return x if n == 0 else leaves_a_loop(x * 0.5, n - 1)


@numba.njit
def leaves_a_loop(x, n):
    for k in range(n):
        if x > k:
            return out_of_a_loop(x * 0.7, n - 1)
    return 0.0


@ampi.kernel
def left(x):
    return out_of_a_loop(x, 5)


@numba.njit
def together(x, n):
    return x if n == 0 else alone(x * 0.5, n - 1)


@numba.njit
def alone(x, n):
    return 0.1 if n == 0 else together(x * 0.7, n - 1) + alone(x * 0.3, n - 1)


@ampi.kernel
def both(x):
    return together(x, 5)


@ampi.kernel
def rest(x, *more):
    return x if x > 3 else rest(x * 2, *more)


@ampi.kernel("f4(f4, i8)")
def rounded(x, n):
    return x if n == 0 else x * rounded(x / 3.0, n - 1)


VECTOR = np.array([0.6, 0.8, 0.3, 1.1])
REFUSED = {
    parts: ((VECTOR,), "the array 'a' is another one where 'parts' calls itself", "which part to use"),
    own_array: ((VECTOR, 3), "'t' is an array .* where 'own_array' calls itself", "pass whole arrays on"),
    other_type: ((0.3, 3), "'x' is float64 here and complex128 there", "give it one type"),
    generated: ((0.3, 3), "a call of 'generated' itself in a generator expression", "on a line of its own"),
    not_last: ((VECTOR, 3), "'not_last' returns no value, but its result is used here", "return a value"),
    over_parts: ((VECTOR, 3), "a loop over this, in which 'over_parts' calls itself", "write for i in range"),
    left: ((0.3,), "'out_of_a_loop' and 'leaves_a_loop' call .*returns from inside a loop", "by break, and return"),
    both: ((0.3,), "'together' and 'alone' call one another, and 'alone' also itself", "make one recursive"),
    rest: ((0.3, 2), r"'rest' has \*more and calls itself", "name every parameter"),
    rounded: ((np.float32(0.3), 2), "'x' is declared to be float32, and is float64", "convert it in the call"),
}


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda k: k.__name__)
def test_what_is_refused(kernel):
    arguments, problem, advice = REFUSED[kernel]
    with pytest.raises(KernelError, match=f"(?s)test_recursion.py:\\d+:\\d+: .*{problem}.*\n  .*{advice}"):
        kernel.lower_ir(*arguments)
