"""Loops of unmodified programs are compiled, with the results that Python has."""

import math
import pathlib
import re

import numpy as np
import pytest
from loop_programs import at_once, compared, gradients_compared

import ampi
import ampi.numpy
from ampi.programs import lint
from ampi.programs.gradients import Differentiation
from ampi.programs.outlining import running, uncompiled
from ampi.programs.outlining.compiled_loops import with_compiled_loops
from ampi.programs.runs import Program

INTERPRETED = 60
"""Drawn functions whose kernels Python runs, in each of the cases."""


@pytest.mark.parametrize("first", range(0, 2 * INTERPRETED, INTERPRETED))
def test_drawn_loops(first):
    counts = 0
    for seed in range(first, first + INTERPRETED):
        found, compiled, _, drawn, _ = compared(seed)
        assert not found, f"seed {seed}: {found}\n{drawn.text}"
        counts += compiled
    assert counts > INTERPRETED / 3


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(1000, 11000, 1000))
def test_many_drawn_loops(first):
    for seed in range(first, first + 1000):
        found, _, _, drawn, _ = compared(seed)
        assert not found, f"seed {seed}: {found}\n{drawn.text}"


@pytest.mark.parametrize("seed", range(5))
def test_kernels_of_drawn_loops(seed):
    found, _, _, drawn, _ = compared(seed, interpreted=False)
    assert not found, f"{found}\n{drawn.text}"


@pytest.mark.parametrize("seed", range(6))
def test_gradients_of_drawn_loops(seed):
    found, _, _, drawn, _ = gradients_compared(seed)
    assert not found, f"{found}\n{drawn.text}"


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("first", range(100, 500, 100))
def test_gradients_of_many_drawn_loops(first):
    for seed in range(first, first + 100):
        found, _, _, drawn, _ = gradients_compared(seed)
        assert not found, f"seed {seed}: {found}\n{drawn.text}"


def test_numbers_of_a_loop(monkeypatch):
    monkeypatch.setattr(running, "UNRECORDED", 10)
    loops = []

    def program(x, y):
        s, k = 0, 0
        for i in range(len(x)):
            s += x[i] * y[i]
            k += 2
        return s, k, i

    with_compiled_loops(program, loops)
    x, y = np.arange(40.0), np.arange(40.0) ** 2
    s, k, i = program(x, y)
    assert type(s) is np.float64
    assert (type(k), type(i)) == (int, int)
    assert (s, k, i) == (np.dot(x, y), 80, 39)
    (form,) = loops[0].forms.values()
    assert form.kernel is not None


def test_gradient_of_a_loop(monkeypatch):
    monkeypatch.setattr(running, "RECORDED", 10)
    loops = []

    def program(x, y, c):
        z = ampi.numpy.zeros(1)
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                z[0] += x[i, j] * y[i, j]
                c[i, j] += np.sin(x[i][j]) / (2.0 + x[i, j] ** 2)
        return z[0] + c.sum()

    with_compiled_loops(program, loops)
    x, y = np.linspace(0.1, 1.0, 64).reshape(8, 8), np.linspace(-1.0, 2.0, 64).reshape(8, 8)
    found = ampi.grad(lambda x: program(x, y, ampi.numpy.zeros((8, 8))))(x)
    expected = y + np.cos(x) / (2.0 + x**2) - 2 * x * np.sin(x) / (2.0 + x**2) ** 2
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert [form.kernel is not None for one in loops for form in one.forms.values()] == [True]


def sums(x):
    s = 0.0
    for i in range(len(x)):
        s += x[i] * x[i]
    return s


def loops_of(function):
    return vars(function)["__ampi_loops__"]


def test_context(monkeypatch):
    monkeypatch.setattr(running, "UNRECORDED", 10)
    x = np.arange(50.0)
    with ampi.compiled_loops():
        first = sums(x)
    (loop,) = loops_of(sums)
    assert not loop.on
    (form,) = loop.forms.values()
    assert form.kernel is not None
    assert first == sums(x) == np.dot(x, x)


def test_decorator_of_a_closure(monkeypatch):
    monkeypatch.setattr(running, "UNRECORDED", 10)
    weight = 3.0

    class Sum:
        @ampi.compiled_loops
        def of(self, x, power=1):
            s = weight
            for v in x:
                s += weight * v**power
            return s

    assert Sum().of(np.arange(50.0)) == 3.0 * (1 + 49 * 25)
    (form,) = loops_of(Sum.of)[0].forms.values()
    assert form.kernel is not None


def test_check_reports_which_loops_stay_in_python(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "x, rows, k, s = [0.5] * 9, 3, 2.0, 0.0\n"
        "for i in range(9):\n    s += x[i] * k\n"
        "for i in range(9):\n    s += x[i] * k\n    if s > 1e9: print(s)\n"
    )
    loops = []
    assert lint.look(script, (), loops) == []
    assert [(loop.line, loop.advice) for loop in loops] == [(4, "a call of print() (line 6)")]
    problem = Differentiation(Program("file", str(script), []), ["k"], ["s"], compares=False)
    problem.gradients()
    said = uncompiled.described(problem.modules.loops.running)
    assert said == [f"{script}:2: this loop stays in Python: 'x' is a list (line 3)"]


SOLVER = pathlib.Path(__file__).parents[1] / "helpers" / "reaction_diffusion.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_solver_with_loops_on_two_ranks(mpiexec):
    """All loops of an implicit solver are compiled: no warning about its speed is left, and the gradient is right."""
    plain = mpiexec(2, SOLVER, "32", "2")
    arguments = ("--objective", "replicated", "--replicated", "k", "--check", SOLVER, "32", "2")
    found = mpiexec(2, "-m", "ampi.run", "--wrt", "k", "--of", "energy", *arguments, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "PerformanceWarning" not in found.stderr
    (value,) = re.findall(r"^energy = (\S+)", found.stdout, re.MULTILINE)
    assert float(value) == pytest.approx(float(plain.stdout.split()[1]), rel=1e-12)


def of_infinity(function):
    def f(x, s):
        for i in range(x.shape[0]):
            x[i] *= 2.0
            s *= s
            s += function(s)
        return s

    return f


@pytest.mark.parametrize("function", [math.sin, math.cos, math.tan])
def test_functions_of_infinity_raise_as_in_python(function):
    """What the loop has written before is as it is in Python, too."""
    x, again = np.ones(20), np.ones(20)
    with pytest.raises(ValueError):
        of_infinity(function)(x, 1e30)
    with at_once(interpreted=False):
        compiled = with_compiled_loops(of_infinity(function), [])
        with pytest.raises(ValueError):
            compiled(again, 1e30)
    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("mode", ["raise", "call"])
def test_errors_of_numpy_are_raised_where_the_program_asks_for_them(mode):
    """They had been lost: a kernel does not look at ``numpy.errstate``."""

    def f(x):
        s = 0.0
        for i in range(len(x)):
            s += x[i] * x[i]
        return s

    def called(error, flag):
        raise FloatingPointError(error)

    x = np.full(100, 1e200)
    with at_once(interpreted=False):
        compiled = with_compiled_loops(f, [])
        assert compiled(x) == np.inf
        with np.errstate(all=mode, call=called), pytest.raises(FloatingPointError, match="overflow"):
            compiled(x)
        assert compiled(x) == np.inf


def first_operand_decides():
    def f(v, t, k, n):
        s = 0.0
        for _ in range(n):
            k = k + 1
            if t > 0 or v[k] > 0.0:
                s += v[k]
        return s

    return f


def condition_decides():
    def f(v, t, k, n):
        s = 0.0
        for _ in range(n):
            k = k + 1
            s += (1.0 if t > 0 else v[k]) * v[k]
        return s

    return f


@pytest.mark.parametrize("made", [first_operand_decides, condition_decides])
def test_an_index_is_checked_where_the_check_of_another_use_may_not_run(made):
    loops = []
    whole = np.arange(8.0)
    with at_once(interpreted=False):
        function = with_compiled_loops(made(), loops)
        with pytest.raises(IndexError):
            function(whole[:5], 1.0, 2, 4)
    assert [form.failures for one in loops for form in one.forms.values()] == [1]


def counting():
    def f(v, most):
        n = 0
        for i in range(len(v)):
            steps = 0
            while steps < most and v[i] > 0.1:
                v[i] *= 0.5
                steps += 1
            unused = steps if i else 1.5
            n += steps
            if unused > 3:
                n += 1
        return n

    return f


def test_counters_that_start_in_a_loop_and_names_not_used_after_it_are_compiled():
    loops = []
    v = np.linspace(0.0, 2.0, 9)
    with at_once(interpreted=True):
        found = with_compiled_loops(counting(), loops)(v.copy(), 4)
    assert found == counting()(v, 4)
    assert [form.kernel is not None for one in loops for form in one.forms.values()] == [True]


def test_no_compile(tmp_path, mpiexec):
    script = tmp_path / "program.py"
    script.write_text(
        "import numpy as np\nx, k, s = np.ones(60), 2.0, 0.0\n"
        "for r in range(1000):\n    for i in range(60):\n        s += x[i] * k\nprint(type(s))\n"
    )
    given = "--wrt", "k", "--of", "s", script
    done = mpiexec(1, "-m", "ampi.run", "--no-compile", *given)
    assert done.returncode == 0, done.stderr
    assert "PerformanceWarning" in done.stderr
    assert "derivative 6.0" in done.stdout
    refused = mpiexec(1, "-m", "ampi.run", "--no-compile", "--compile", *given)
    assert "--no-compile goes with --wrt" in refused.stderr
