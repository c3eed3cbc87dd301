"""What ``import ampi`` imports, and that nothing is missed whenever other modules are imported."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

import ampi

HEAVY = {"numba", "llvmlite", "scipy", "h5py", "matplotlib", "pandas", "checkpoint_schedules", "pytest"}

USES = {
    "numba": """
        @numba.njit
        def plain(a):
            return numpy.dot(a, a) + numpy.where(a > 0, a, 0.0).sum() + numpy.concatenate((a, a)).sum()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = plain(x)
        assert found == 14.0 + 6.0 + 12.0, found
        assert any("a function of numba.njit given" in str(w.message) for w in caught), caught

        @numba.njit
        def calls(a):
            return cube(a[0])
        assert calls(np.arange(2.0, 4.0)) == 8.0
        y = np.sum(x * x)
        expected = [2.0, 4.0, 6.0]
    """,
    "scipy.special": """
        y = np.sum(scipy.special.expit([x[0], x[1], 1.0]))
        s = 1 / (1 + numpy.exp(-numpy.arange(1.0, 3.0)))
        expected = [*(s * (1 - s)), 0.0]
    """,
    "h5py": """
        with h5py.File("any", "w", driver="core", backing_store=False) as file:
            file["a"] = numpy.array([5.0])
            t = x * x
            y = np.sum(t * t)
            file["a"].read_direct(t, dest_sel=numpy.s_[:1])
            y = y + np.sum(t)
        expected = [4.0, 32.0 + 4.0, 108.0 + 6.0]
    """,
}
ORDERS = ("before", "after", "inside", "after a tape")


def run(source, path=None):
    """Run a program, in a file if it has kernels, whose source is read."""
    if path is not None:
        path.write_text(source)
    what = ["-c", source] if path is None else [path]
    done = subprocess.run([sys.executable, *what], capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "use",
    [
        "",
        "k = ampi.kernel(lambda x: x * x)",
        "ampi.kernel(parallel=True, fastmath=True)(len)",
        "ampi.grad(lambda x: (x * x).sum())(ampi.numpy.ones(3))",
    ],
    ids=["import", "kernel", "options", "gradient"],
)
def test_nothing_heavy_is_imported(use):
    wanted = {"llvmlite"} if "grad" in use else set()  # its machine code is what looks at operands
    use = use.replace("(len)", "(run)")
    source = (
        f"def run(x): return x\nimport sys, ampi\n{use}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    )
    assert set(run(source).split()) & HEAVY == wanted


LATE = (
    "arrays.array numpy arrays.scalars arrays.ufuncs rules.functions foreign.numpy_in_c foreign.fftw foreign.scipy "
    "derivatives testing programs memory.filed_needs"
).split()


def test_a_program_that_only_has_messages_imports_nothing_for_arrays_and_tapes():
    source = """
        import sys, ampi, numpy
        comm = ampi.COMM_WORLD
        comm.Allreduce(numpy.ones(3), numpy.empty(3))
        comm.bcast({"a": numpy.ones(3)})
        print(*[name.partition("ampi.")[2] for name in sys.modules if name.startswith("ampi.")])
    """
    assert not set(run(textwrap.dedent(source)).split()).intersection(LATE)


def test_every_name_can_be_the_first_to_be_used():
    """Each in a process of its own, as if the program began with it."""
    source = """
        import importlib, os, sys, ampi
        submodules = ["arrays", "foreign", "memory", "programs", "run"]
        for name in [*ampi.__all__, *submodules, "no_such_name"]:
            if name == "prange" or name in vars(ampi) and name != "Tape":  # the others that are there import nothing
                continue
            child = os.fork()
            if not child:
                status = 1
                try:
                    found = getattr(ampi, name, None)
                    assert found is getattr(ampi, name, None) and (found is None) == (name == "no_such_name"), found
                    assert name not in submodules or found is sys.modules[f"ampi.{name}"]
                    assert ampi.grad(lambda x: (x * x).sum())(ampi.numpy.ones(2)).tolist() == [2.0, 2.0]
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0, name
        assert "ampi.arrays.array" not in sys.modules and {*ampi.__all__} <= {*dir(ampi)}
    """
    run(textwrap.dedent(source))


ROOMS = sorted(path.name for path in pathlib.Path(ampi.__file__).parent.iterdir() if (path / "__init__.py").exists())
QUICK = ("device", "futures", "mpi")  # where what is imported imports others


@pytest.mark.parametrize("room", [r if r in QUICK else pytest.param(r, marks=pytest.mark.slow) for r in ROOMS])
def test_every_module_can_be_the_first_to_be_imported(room):
    source = f"""
        import importlib, os, pathlib, sys, traceback, ampi, numba
        package = pathlib.Path(ampi.__file__).parent
        failed = []
        for path in sorted((package / "{room}").rglob("*.py")):
            parts = path.relative_to(package).with_suffix("").parts
            name = ".".join(("ampi", *parts)).removesuffix(".__init__")
            if name in sys.modules or path.name == "__main__.py":
                continue
            child = os.fork()
            if not child:
                status = 1
                try:
                    importlib.import_module(name)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            if os.waitpid(child, 0)[1]:
                failed.append(name)
        assert not failed, failed
    """
    run(textwrap.dedent(source))


def test_a_plan_made_before_the_first_tape_is_seen():
    pytest.importorskip("mpi4py_fft")
    run(
        """
import ampi, numpy
from mpi4py_fft import fftw
assert "ampi.arrays.array" in __import__("sys").modules
source = fftw.aligned(8, dtype="D")
assert isinstance(source, ampi.ndarray), type(source)
"""
    )


CHESSBOARD = [
    pytest.param(module, order, marks=[pytest.mark.slow] if (i + k) % 2 else [])
    for i, module in enumerate(USES)
    for k, order in enumerate(ORDERS)
]


@pytest.mark.parametrize("module, order", CHESSBOARD)
def test_what_is_imported_is_seen_in_any_order(module, order, tmp_path):
    line = {when: f"import {module}" if when == order else "" for when in ORDERS}
    body = textwrap.indent(textwrap.dedent(USES[module]), "    ")
    run(
        f"""
{line["before"]}
import warnings
import numpy, ampi, ampi.numpy as np
{line["after"]}

@ampi.kernel
def cube(a):
    return a ** 3

if {order == "after a tape"}:
    assert ampi.grad(lambda x: (x * x).sum())(np.ones(1)) == 2.0
{line["after a tape"]}
with ampi.Tape() as tape:
    x = tape.watch(numpy.arange(1.0, 4.0))
{textwrap.indent(line["inside"], "    ")}
{body}
numpy.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-6)
""",
        tmp_path / "program.py",
    )


def test_prange_is_numbas():
    run("import ampi; p = ampi.prange; import numba; assert p is numba.prange; from ampi.kernel import prange")
    with pytest.raises(AssertionError, match="has no attribute 'pranger'"):
        run("import ampi; ampi.pranger")


@pytest.mark.parametrize("spelling", ["ampi.prange", "prange"])
def test_a_parallel_kernel_finds_prange_before_numba_is_there(spelling, tmp_path):
    source = (
        "import ampi, numpy\n"
        + ("from ampi import prange\n" if spelling == "prange" else "")
        + "@ampi.kernel(parallel=True)\ndef f(x):\n    s = 0.0\n"
        + f"    for i in {spelling}(len(x)):\n        s += x[i] ** 2\n    return s\n"
        + "assert f.has_parallel_loop\n"
        + "assert ampi.grad(f)(ampi.numpy.ones(3)).tolist() == [2.0] * 3\n"
    )
    run(source, tmp_path / "program.py")


@pytest.mark.parametrize("name", ["numba", "scipy.special", "scipy.linalg", "h5py"])
def test_unmodified_programs_import_hooked_modules(name, tmp_path):
    """Their own finder of modules asks all others, as that of the hooks does."""
    pytest.importorskip(name)
    path = tmp_path / "program.py"
    path.write_text(f"import numpy as np\nimport {name}\nx = np.ones(3)\ny = np.sum(x * x)\n")
    command = [sys.executable, "-m", "ampi.run", "--wrt", "x", "--of", "y", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0 and "norm 3.46" in done.stdout, done.stderr
