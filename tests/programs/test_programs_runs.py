"""Runs of a script with displaced variables: input, files, random numbers, verdicts, kinks, precision."""

import io
import sys

import numpy
import pytest
from mpi4py import MPI
from program_runs import check

import ampi
from ampi.programs.differences import compare
from ampi.programs.gradients import Differentiation
from ampi.programs.runs import Program

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD


READING = """
    import sys
    import numpy as np
    from mpi4py import MPI
    comm = MPI.COMM_WORLD
    n = int(input("How many? "))
    x = np.array([float(word) for word in sys.stdin.readline().split()]) * 1.0
    rest = [line for line in sys.stdin]
    assert len(rest) == n == int(sys.argv[1]), rest
    energy = comm.allreduce(np.sum(x ** 2)) * sum(map(float, rest))
"""


@pytest.mark.parametrize("rest", [0, 1, 3])
def test_what_is_read_from_the_standard_input_is_the_same_in_all_runs(program, rest, monkeypatch):
    lines = [str(rest), "1.5 -2.5 0.5", *["0.75"] * rest]
    text = io.TextIOWrapper(io.BytesIO("\n".join(lines).encode()), "utf-8")
    monkeypatch.setattr(sys, "stdin", text)
    if rest:
        check(program(READING), ["x"], ["energy"], arguments=[str(rest)])
    else:
        assert ampi.trace(program(READING), "x", "energy", [str(rest)])[0] == 0
    assert sys.stdin is text and text.read() == ""


def test_files_are_untouched_and_lines_are_kept(program):
    path = program("""
        import numpy as np
        from mpi4py import MPI
        x = np.arange(3.0)
        def f(z):
            y = z * 2
            raise ValueError("here") if len(z) == 3 else y
        y = f(2 * x)
    """)
    before = path.read_text()
    with pytest.raises(ValueError) as caught:
        ampi.trace(path, ["x", "f:z"], "f:y")
    lines = [entry.lineno for entry in caught.traceback if str(entry.path) == str(path)]
    assert [number + 1 for number in lines] == [8, 7]
    assert path.read_text() == before and not list(path.parent.rglob("*.pyc"))


def test_one_array_under_two_names(program):
    path = program("import numpy as np\nx = np.arange(3.0)\ndef f(z): return z * 2\ny = np.sum(f(x))\n")
    with pytest.raises(ampi.ProgramError, match=r"f:z \(.*prog.py:3\) is the array that x is \(.*prog.py:2\)"):
        ampi.trace(path, ["x", "f:z"], "y")


def test_unseeded_randomness_is_the_same_in_all_runs(program):
    path = program("""
        import random
        import numpy as np
        x = np.arange(3.0) + 1
        w = np.random.default_rng().random(3) + np.random.rand(3) + random.random()
        y = np.sum(w * x ** 2)
    """)
    check(path, ["x"], ["y"])


def test_two_precisions(program):
    path = program("""
        import numpy as np
        x = np.arange(3, dtype=np.float32) + 1
        y = np.sum(np.sqrt(x))
        z = np.array([1 + 2j, 3j])
        w = np.sum(np.abs(z) ** 2)
    """)
    found = check(path, ["x"], ["y"])
    assert found.parts[0][0].dtype == numpy.float32
    found = check(path, ["z"], ["w"])
    numpy.testing.assert_allclose(found.parts[0][0], [2 + 4j, 6j])


VERDICTS = {
    "sys.exit": "sys.exit('wrong')",
    "exit without a status": "sys.exit()",
    "assert": "assert False, 'wrong'",
    "Abort": "comm.Abort()",
    "Abort with a status": "comm.Abort(3)",
}


@pytest.mark.parametrize("ends_on", ["all", "the first"])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdicts_on_displaced_results_are_no_error(program, capfd, verdict, ends_on):
    path = program(
        f"""
        import sys
        import numpy as np
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        def main():
            k = 0.5
            y = comm.allreduce(np.sin(k) * (comm.rank + 1))
            size = comm.size * (comm.size + 1) / 2
            if abs(y - np.sin(0.5) * size) > 1e-12 and (comm.rank == 0 or {ends_on == "all"}):
                {VERDICTS[verdict]}
        main()
        """
    )
    problem = Differentiation(Program("file", str(path), []), ["main:k"], ["main:y"], objective="replicated")
    with ampi.mpi.installed():
        found = problem.gradients()
        (compared,) = compare(problem, found)
        problem.runner.forget()
    assert compared.passed and compared.exact
    said = [*problem.verdicts]
    if verdict != "exit without a status" and (ends_on == "all" or WORLD.rank == 0):
        assert len(said) == 1 and f"{path}:11: " in said[0]
    else:
        assert not said
    assert MPI.COMM_WORLD.Abort.__qualname__.startswith("Comm.")


@pytest.mark.parametrize("verdict", ["sys.exit('wrong')", "assert False, 'wrong'"])
def test_a_program_that_ends_before_its_results_are_there_is_an_error(program, verdict):
    path = program(
        f"""
        import sys
        def main():
            k = 0.5
            y = k * k
            if k != 0.5:
                {verdict}
            return y
        main()
        """
    )
    problem = Differentiation(Program("file", str(path), []), ["main:k"], ["main:return"])
    with ampi.mpi.installed():
        found = problem.gradients()
        with pytest.raises((SystemExit, AssertionError), match="wrong"):
            compare(problem, found)
        problem.runner.forget()


def test_what_is_computed_in_single_precision_between_is_compared_so(program):
    path = program(
        """
        import numpy as np
        k = 0.5
        x = np.full(20, k, np.float32)
        for _ in range(30):
            x = np.sin(x) + np.float32(0.1) * x
        y = x.astype(float).sum() * 1.0
        """
    )
    check(path, ["k"], ["y"])


def test_sums_that_cancel_are_compared_as_exactly_as_they_can_be(program):
    path = program("""
        import numpy as np
        k = 0.5
        x = np.sin(np.linspace(-3.0, 3.0, 41) * k) * 1e3
    """)
    problem = Differentiation(Program("file", str(path), []), ["k"], ["x"])
    with ampi.mpi.installed():
        (found,) = compare(problem, problem.gradients())
        problem.runner.forget()
    assert abs(found.exact) < 1e-9 and found.passed and "kink" not in str(found), str(found)
    assert "all of it rounding" in str(found)


KINDS = "float complex int np.ndarray np.generic np.floating np.float64 np.float32 numbers.Real object Sequence".split()


KINKS = {
    "a kink": ("x = np.zeros(1)\ny = np.where(x >= 0.0, 3.0 * x, x) + 0.1 * x**2\n", "ward alone: here is a kink"),
    "a threshold": ("x = np.zeros(3)\nz = np.where(abs(x) < 1e-7, 0.0, x)\ny = 5.0 + np.sin(z) + z**2\n", "1e-08"),
    "a near threshold": (
        "x = np.ones(3)\nz = np.where(abs(x - 1.0) < 1e-10, 1.0, x)\ny = np.sin(z) + x**2\n",
        "1e-11",
    ),
    "several kinks": ("x = np.zeros(4)\ny = np.where(x >= 0.0, 3.0 * x, x)\n", "here is a kink"),
    "a small kink": ("x = np.ones(4)\ny = 1e3 * np.sum(np.sin(x)) + np.sum(np.abs(x - 1))\n", "here is a kink"),
    "nothing": ("x = np.ones(3)\ny = np.sin(ampi.value(x)) + x**2\n", "FAIL"),
    "nothing, in single precision": (
        "x = np.ones(3)\ny = np.sin(ampi.value(x).astype('f')).astype('d') + 0.0 * x\n",
        "FAIL",
    ),
}


@pytest.mark.parametrize("name", KINKS)
def test_check_at_kinks_and_thresholds(name, program):
    """A derivative of one side, and one at a point that no threshold is near enough to, are right."""
    text, expected = KINKS[name]
    path = program(f"import ampi\nimport numpy as np\n{text}")
    problem = Differentiation(Program("file", str(path), []), ["x"], ["y"])
    with ampi.mpi.installed():
        (found,) = compare(problem, problem.gradients())
        problem.runner.forget()
    assert found.passed == (name in ("a kink", "a threshold", "a near threshold")), str(found)
    assert expected in str(found)


@pytest.mark.parametrize("given", ["", "float", "copy=True"])
def test_classes_of_the_programs_may_ask_for_the_array_below(given, program):
    path = program(
        f"""
        import numpy as np

        class Field(np.ndarray):
            @property
            def v(self):
                return self.__array__({given})

        x = np.arange(3.0)
        f = np.zeros(3).view(Field)
        f[:] = x
        assert type(f.v) is np.ndarray and np.shares_memory(f, f.v) == {"copy" not in given}
        y = np.sum(f.v[1:] ** 2) + f.v[0]
        """
    )
    check(path, ["x"], ["y"])
