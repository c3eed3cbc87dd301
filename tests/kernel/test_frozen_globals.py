"""Globals, closure variables, module attributes and elements of global arrays that change after a kernel's first call:
values and derivatives stay consistent, as with Numba, in all modes, with other types, and in another process that
starts with other values."""

import subprocess
import sys
from types import ModuleType

import numba
import numpy as np
import pytest

import ampi
from ampi import KernelError

SOURCE = """
import types, sys
import numba, numpy as np, ampi

START = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
G = START
A = np.array([START, START + 1.0])
T = (START, (START, 1.0))
FLAG = None
module = types.ModuleType("constants_of_a_program")
module.c = START

@numba.njit
def twice(x):
    return 2.0 * x

@numba.njit
def scaled(x):
    return x * G

@numba.njit
def deeper(x):
    return scaled(x) + twice(x)

@numba.njit("float64(float64)")
def limited(x):
    return x * x * G

@numba.njit
def recursive(x, n):
    return x * G if n == 0 else recursive(x, n - 1)

@ampi.kernel
def inner(x):
    return x * G

function = twice

def changed():
    global G, T, FLAG, function
    G, T, FLAG, function = 5.0, (7.0, (3.0, 2.0)), 4.0, scaled
    A[:] = 9.0
    module.c = 11.0

@ampi.kernel
def of_number(x):
    return x[0] * x[1] * G

@ampi.kernel
def of_array(x):
    return x[0] * A[0] * x[1] + A[1]

@ampi.kernel
def of_tuple(x):
    return x[0] * x[1] * T[0] * T[1][0]

@ampi.kernel
def of_module(x):
    return x[0] * x[1] * module.c

@ampi.kernel
def of_none(x):
    return x[0] * x[1] if FLAG is None else x[0] * x[1] * 4.0

@ampi.kernel
def of_callee(x):
    return scaled(x[0] * x[1])

@ampi.kernel
def of_callees_callee(x):
    return deeper(x[0] * x[1])

@ampi.kernel
def of_limited(x):
    for _ in range(20):
        x = x + 0.01 * limited(np.sin(x))
    return x

@ampi.kernel
def of_recursion(x):
    return recursive(x[0] * x[1], 2)

@ampi.kernel
def of_function(x):
    return function(x[0] * x[1])

@ampi.kernel
def of_kernel(x):
    return inner(x[0] * x[1])

def made(c):
    def f(x):
        return x[0] * x[1] * c
    def change():
        nonlocal c
        c = 5.0
    return ampi.kernel(f), change

of_closure, change_closure = made(START)
KERNELS = {n: k for n, k in globals().items() if n.startswith("of_")}
"""
NAMES = [line[4:].split("(")[0] for line in SOURCE.splitlines() if line.startswith("def of_")] + ["of_closure"]


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that creates a new module of the program."""
    (tmp_path / "program_with_globals.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "argv", ["program"])

    def make():
        space = ModuleType("program_with_globals")
        space.__file__ = str(tmp_path / "program_with_globals.py")
        monkeypatch.setitem(sys.modules, "program_with_globals", space)
        exec(compile(SOURCE, space.__file__, "exec"), vars(space))
        return space

    return make


def agree(kernel, x, expected):
    """Check that value and derivatives agree with ``expected``, for a kernel that is bilinear in x."""
    dx, one = np.array([0.3, -0.7]), expected - (kernel(np.zeros(2)) if kernel.__name__ == "of_array" else 0.0)
    assert kernel(x) == pytest.approx(expected)
    value, gradient = ampi.value_and_grad(lambda x: kernel(x))(x)
    assert value == pytest.approx(expected)
    np.testing.assert_allclose(gradient, one / x)
    value, tangent = ampi.jvp(lambda x: kernel(x), (x,), (dx,))
    assert value == pytest.approx(expected) and tangent == pytest.approx(one / x @ dx)
    product = ampi.hvp(lambda x: kernel(x), x, dx)
    np.testing.assert_allclose(product[-1] if isinstance(product, tuple) else product, one / np.prod(x) * dx[::-1])


X = np.array([1.5, 2.0])
ALONE = ("of_number", "of_array", "of_callees_callee", "of_module")


@pytest.mark.parametrize("name", [n if n in ALONE else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_what_changes_after_the_first_call(program, name):
    space = program()
    kernel = space.KERNELS[name]
    before = kernel(X)
    space.changed(), space.change_closure()
    agree(kernel, X, before)
    single = ampi.value_and_grad(lambda x: kernel(x))(X.astype(np.float32))  # compiled after the change
    assert single[0] == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("name", [n if n == "of_callee" else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_what_changes_before_the_first_call(program, name):
    """Even if Numba compiled the called functions before, for itself or for another kernel."""
    space = program()
    other = numba.njit(space.KERNELS[name].py_func)
    other(X), space.scaled(1.0), space.deeper(1.0), space.recursive(1.0, 1)
    space.changed(), space.change_closure()
    kernel = space.KERNELS[name]
    agree(kernel, X, kernel(X))
    assert kernel(X) != other(X) or name == "of_kernel"  # a called kernel keeps its first values


def test_another_process_with_another_value(program, tmp_path):
    """Code on disk belongs to the values that it was compiled with."""
    program()
    text = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "import numpy as np, ampi, program_with_globals as p\n"
        "x = np.array([1.5, 2.0])\n"
        "p.scaled(1.0)\n"
        "if sys.argv[3] == 'changed': p.changed()\n"
        "for k, w, c in (p.of_number, p.G, 0), (p.of_callee, p.G, 0), (p.of_array, p.A[0], p.A[1]):\n"
        "    v, g = ampi.value_and_grad(lambda x: k(x))(x)\n"
        "    assert np.isclose(v, 3 * w + c) and np.allclose(g, 3 * w / x), (k, v, g, w)\n"
    )
    for start, change in (("2.0", "changed"), ("5.0", "not"), ("3.0", "not"), ("2.0", "not")):
        found = subprocess.run(
            [sys.executable, "-c", text, start, str(tmp_path), change], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr


def test_a_name_that_is_defined_after_a_call_that_failed(program):
    space = program()
    exec(compile("def late(x):\n    return x * later\n", "<late>", "exec"), vars(space))
    import linecache

    linecache.cache["<late>"] = 1, None, ["def late(x):\n", "    return x * later\n"], "<late>"
    kernel = ampi.kernel(space.late)
    with pytest.raises(KernelError, match="later"):
        kernel(2.0)
    space.later = 3.0
    assert kernel(2.0) == 6.0 and ampi.grad(kernel)(2.0) == 3.0


def test_functions_that_name_nothing_that_changes_are_not_copied():
    from ampi.kernel.runtime.frozen import frozen

    def function(x):
        return np.sin(x) + abs(x)

    assert frozen(function) is function


def test_functions_with_signatures_are_compiled_when_they_are_called(program):
    """A run that saves values has them inlined, and needs no machine code of theirs."""
    from ampi.kernel.runtime.frozen import CompiledLater

    space = program()
    kernel = space.of_limited
    copy = kernel.frozen_func.__globals__["limited"]
    assert isinstance(copy, CompiledLater) and not copy.overloads
    assert [str(s) for s in copy.nopython_signatures] == ["(float64,) -> float64"]
    gradient = ampi.grad(kernel)(0.7)
    assert not copy.overloads
    assert kernel(0.7) == kernel.py_func(0.7)
    assert len(copy.overloads) == 1 and copy(2.0) == 8.0
    np.testing.assert_allclose(gradient, (kernel(0.7 + 1e-6) - kernel(0.7 - 1e-6)) / 2e-6, rtol=1e-6)
    with pytest.raises(TypeError, match="No matching definition"):
        copy("two")
