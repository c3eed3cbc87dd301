"""Compiled functions of a program that read global variables: what Numba takes as a constant is differentiated."""

import itertools

import numpy
import pytest
from program_runs import check

import ampi

HEAD = """
import numba
import numpy as np
import constants
import constants as c
from constants import shared
from numba import njit
g = 9.81
table = np.array([1.0, -2.0, 0.5])
twice = table
pair = (3.0, 4.0)
deep = (1, pair)
dx = table[2] - table[1]
"""
MODULES = {
    "constants.py": """
        import numpy as np
        from numba import njit
        rho = np.float64(1.2)
        shared = np.array([0.3, 0.7])
        others = np.array([0.1, 0.9])
        g = 0.5
        @njit
        def weighted(x):
            return rho * x + g
    """
}
USES = {  # what a function reads, and the independent
    "a number": ("g * x", "g"),
    "an array": ("table[0] * x + table.sum() * table[2]", "table"),
    "a tuple": ("pair[0] * x + deep[1][0] * pair[1]", "pair"),
    "two names": ("table[0] * x + twice[1]", "table"),
    "an element computed": ("x / dx", "table"),
    "a module's": ("constants.rho * x + c.shared[1]", "constants::rho"),
    "a module's array": ("constants.shared[0] * x * shared[1]", "constants::shared"),
    "a module's, beside a constant one": ("constants.rho * x + c.others[1]", "constants::rho"),
    "a function of a module": ("constants.weighted(x) * g + c.weighted(2.0)", "constants::rho"),
    "both": ("constants.weighted(x) * g", "g"),
    "a name of its own": ("other(x, 2.0) + x", "g"),
    "an argument of the name": ("third(g, x)", "g"),
}
HELPERS = """
@njit
def other(x, g_):
    k = g
    return k * x * g_
@njit
def third(g, x):
    table = g * x
    return table + g
"""
CALLS = {
    "directly": "@njit\ndef f(x):\n    return {use}\ny = f(1.5)\n",
    "by another": "@njit\ndef inner(x):\n    return {use}\n"
    "@njit\ndef f(x, y=2.0):\n    return inner(x) * y + inner(y)\ny = f(1.5)\n",
    "in loops": "@njit\ndef f(x, out):\n    for i in range(len(out)):\n        out[i] = ({use}) * i\n"
    "out = np.zeros(3)\nf(1.5, out)\nf(0.5, out)\ny = out.sum()\n",
    "inside": "def make(g, table):\n    @njit\n    def f(x):\n        return {use}\n    return f\n"
    "y = make(g, table)(1.5)\n",
    "by itself": "@njit\ndef f(n, x):\n    return {use} if n == 0 else g * f(n - 1, 0.5 * x) + f(n - 1, 1.5)\n"
    "y = f(3, 1.5) + 0.0 * table.sum() + 0.0 * constants.rho\n",
    "with rest": "@njit\ndef f(x, *rest):\n    return ({use}) * rest[0]\ny = f(1.5, 2.0, 3.0)\n",
}
CASES = list(itertools.product(USES, CALLS))


@pytest.mark.parametrize(
    "use, call", CASES[::3] + [pytest.param(*c, marks=pytest.mark.slow) for c in CASES[1::3] + CASES[2::3]]
)
def test_gradients(program, use, call):
    text, wrt = USES[use]
    path = program(HEAD + HELPERS + CALLS[call].format(use=text), MODULES)
    check(path, [wrt], ["y"])


def test_values_are_those_of_the_first_call(program):
    """As for Numba's constants, later values of the variable do not matter."""
    path = program("""
        import numpy as np
        from numba import njit
        k = 2.0
        a = np.ones(2)
        a *= k
        @njit
        def f(x):
            return k * x + a[0]
        before = f(3.0)
        a[:] = 100.0
        k = k * 50.0
        y = before + 10 * f(3.0)
    """)
    value, slope = ampi.trace(path, "k", "y")
    assert value == 8.0 * 11 and slope == 4.0 * 11


def test_variables_that_are_not_passed_on_are_an_error(program):
    path = program("""
        import numba
        import numpy as np
        k = 2.0
        @numba.vectorize
        def f(x):
            return k * x
        y = f(np.ones(2)).sum() + k
    """)
    with pytest.raises(ampi.ActivityError, match=r"prog.py:8.* global variable that carries derivatives"):
        ampi.trace(path, "k", "y")


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_constants_of_kernels_may_be_tracked_numbers_without_derivatives():
    x = ampi.numpy.linspace(0.0, 1.0, 5)
    dx = x[1] - x[0]

    @ampi.kernel
    def f(u):
        return u * dx

    assert f(2.0) == 0.5
    assert ampi.grad(f)(numpy.float64(2.0)) == 0.25

    with ampi.Tape() as tape:
        k = tape.watch(numpy.float64(3.0))

        @ampi.kernel
        def g(u):
            return u * k

        with pytest.raises(ampi.KernelError, match=r"'k' carries derivatives.*\n.*\n.*\n.*pass it as an argument"):
            g(2.0)
