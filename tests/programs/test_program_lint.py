"""``python -m ampi.check``: what in a program will not be differentiated."""

import pathlib
import re
import textwrap

import numpy
import pytest

from ampi.programs import lint

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"

LINES = {
    "import somelib": "import somelib: .*--also somelib",
    "from somelib.inner import thing": "import somelib.inner",
    "import ctypes": "import ctypes: its code is not seen",
    "from concurrent.futures import ThreadPoolExecutor, wait; import threading; ThreadPoolExecutor()": None,
    "from concurrent.futures import ProcessPoolExecutor as P; p = P(2)": "concurrent.futures.Process.*tasks",
    "import concurrent.futures as c; p = c.ProcessPoolExecutor()": "concurrent.futures.ProcessPoolExecutor",
    "import multiprocessing": "import multiprocessing: .*threads and processes",
    "y = x.astype(int)": r"\.astype\(int\): integers carry no derivative",
    "y = x.astype('i4')": "astype",
    "y = x.view(np.int64)": "view",
    "np.save('f', x)": "numpy.save: what is written",
    "with open('f', 'w') as f: pass": "open",
    "y = np.loadtxt('f')": "numpy.loadtxt: what is read is a constant",
    "import math as m; y = m.remainder(x[0], 2.0)": "math.remainder: there is no derivative rule",
    "from math import frexp as e; y = e(1.0)": "math.frexp",
    "y = np.heaviside": None,
    "y = np.spacing(x)": "numpy.spacing",
    "import array; y = array.array('d', [0.0]); z = array.array('i', [0])": "array.array: its elements keep no",
    "y = np.array([x, None], dtype=object)": "dtype=object",
    "y = x.tobytes()": "tobytes",
    "y = x.ctypes.data": "ctypes",
    "op = MPI.Op.Create(min)": "MPI.Op.Create",
    "import numba\n@numba.cfunc('f8(f8)')\ndef f(x): return x": "@numba.cfunc of 'f'",
    "import numba\n@numba.vectorize\ndef f(x): return x": None,
    "from scipy.optimize import minimize as m; y = m(lambda x: (x, x), x, jac=True)": None,
    "from scipy.optimize import minimize as m; y = m(lambda x: x, x)": "scipy.optimize.minimize: there is no",
    "import scipy.optimize as o; y = o.brentq(lambda x: x, -1, 1)": "scipy.optimize.brentq: there is no",
    "from scipy.special import logsumexp, erf; y = logsumexp(x) + erf(x)": None,
    "from scipy import linalg, fft; y = linalg.solve(x, x) + fft.fft(x)": None,
    "import scipy.spatial; t = scipy.spatial.distance.cdist(x, x)": "scipy.spatial.distance.cdist",
    "from scipy.interpolate import CubicSpline, RBFInterpolator; y = CubicSpline(x, x)(x)": None,
    "from scipy.interpolate import RBFInterpolator as R; y = R(x, x)(x)": "scipy.interpolate.RBFInterpolator",
    "from scipy.stats import norm; y = norm.pdf(0.3)": "scipy.stats.norm.pdf",
    "import pandas": "import pandas: .*take the columns as arrays",
    "import jax.numpy as jnp": "import jax.numpy: .*ampi.from_jax",
    "from torch import nn": "import torch: .*ampi.from_torch",
    "from petsc4py import PETSc": "import petsc4py.*solveTranspose",
    "import xarray": None,
    "y = np.matrix([[1.0]])": "numpy.matrix",
    "y = np.linalg.norm(np.fft.fft(np.sort(x))) + np.sin(x) @ x": None,
    "import math; y = math.sin(x[0]) + math.lgamma(x[1]) + math.factorial(3)": None,
    "from numba import njit\n@njit\ndef f(x): return x": None,
    "y = x.astype(float) + x.astype(np.float32)": None,
    "import h5py, sys, json, os.path, helper": None,
    "with open('f') as f: pass": None,
    "y = np.where(x > 0, x, 0.0).reshape(1, -1); n = np.argsort(x)": None,
}


@pytest.mark.parametrize("line", LINES)
def test_line(tmp_path, line):
    path = tmp_path / "prog.py"
    path.write_text(f"import numpy as np\nfrom mpi4py import MPI\nx = np.arange(3.0)\n{line}\n")
    (tmp_path / "helper.py").write_text("")
    found = lint.look(path)
    if LINES[line] is None:
        assert not found, found
    else:
        assert len(found) == 1, found
        assert found[0].line in (4, 5, 6) and found[0].file.endswith("prog.py")
        assert re.search(LINES[line], str(found[0]))


def test_modules_of_the_program_are_checked(tmp_path):
    (tmp_path / "prog.py").write_text("from pack import a\nimport pack.b\nimport far\n")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "a.py").write_text("from . import c\nfrom .d import e\nx.tobytes()\n")
    for name in "bcd":
        (tmp_path / "pack" / f"{name}.py").write_text("\nx.tobytes()\n")
    found = lint.look(tmp_path / "prog.py")
    places = {(pathlib.Path(f.file).name, f.line) for f in found}
    assert places == {("a.py", 3), ("b.py", 2), ("c.py", 2), ("d.py", 2), ("prog.py", 3)}


@pytest.mark.parametrize("script", ["lulesh/lulesh.py", "minibude/minibude.py"])
def test_examples_have_few_places(script):
    assert 0 < len(lint.look(EXAMPLES / script)) < 12


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_optimisers_that_are_given_gradients_are_no_places(path):
    assert not [found for found in lint.look(path) if "scipy.optimize" in found.what]


UNREADABLE = {
    "missing.py": (None, "missing.py: No such file or directory"),
    "syntax.py": (b"x = 1\ndef f(:\n", "syntax.py:2: "),
    "null.py": (b"x = 1\0\n", "null"),
    "folder": (None, "folder: the folder has no __main__.py"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_script_that_cannot_be_read_is_one_line(name, tmp_path, capsys, monkeypatch):
    from ampi import check

    monkeypatch.chdir(tmp_path)
    source, message = UNREADABLE[name]
    if source is not None:
        (tmp_path / name).write_bytes(source)
    elif name == "folder":
        (tmp_path / name).mkdir()
    assert check.main([name]) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1 and err.startswith("ampi.check: ") and message in err


def test_a_module_that_is_no_python_is_a_place(tmp_path):
    (tmp_path / "prog.py").write_text("import old\nx.tobytes()\n")
    (tmp_path / "old.py").write_text("print 1\n")
    assert [(found.line, found.what) for found in lint.look(tmp_path / "prog.py")] == [
        (1, "not Python"),
        (2, ".tobytes()"),
    ]


def test_reports_on_numpy_functions_are_true():
    """A function of which is said that it has no rule raises, and the others do not."""
    import ampi

    x = numpy.array([0.5, 0.25, 0.75])
    for name in "unique spacing sort sin cumsum interp heaviside nextafter ptp quantile corrcoef histogram".split():
        function = getattr(ampi.numpy, name)
        arguments = {"interp": (x, x), "heaviside": (x,), "nextafter": (x,), "quantile": (0.5,)}.get(name, ())
        if name == "corrcoef":
            arguments = (x[::-1],)
        with ampi.Tape() as tape:
            active = tape.watch(x)
            try:
                function(active, *arguments)
            except ampi.ActivityError:
                assert not lint.takes_derivatives(getattr(numpy, name)), name
            else:
                assert lint.takes_derivatives(getattr(numpy, name)), name


def test_command(mpiexec, tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(
        textwrap.dedent("""
        import sys
        import numpy as np
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        x = np.arange(3.0) * float(sys.argv[1])
        n = x.astype(int)
        y = comm.allreduce(np.sum(x ** 2))
        part = np.zeros(1) if comm.rank else x[1:2]
        comm.Bcast(part)
        comm.Allreduce(np.zeros(2), np.ones(2))
        comm.Allreduce([n, MPI.INT64_T], [n + 1, MPI.INT64_T], op=MPI.MAX)
        print("ran")
        """)
    )
    result = mpiexec(2, "-m", "ampi.check", path)
    assert result.returncode == 1 and result.stdout.count(":7: .astype(int)") == 1, result.stderr
    result = mpiexec(2, "-m", "ampi.check", "--run", "--wrt", "x", path, "2")
    assert "ran\n" not in result.stdout
    assert "prog.py:8: 2 x NumPy (reduction) on 2" in result.stdout, result.stdout + result.stderr
    assert "prog.py:10: 2 x Bcast on 2" in result.stdout  # one rank has active data, the other receives it
    assert "Allreduce" not in result.stdout  # none has
    assert "message" in result.stdout and "ampi/el" not in result.stdout  # lines of the program, and none of ampi's
    assert "   y: carries derivatives" in result.stdout and "   n: does not" in result.stdout


def test_a_program_that_fails_is_shown_from_its_own_lines_on(mpiexec, tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(
        "import numpy as np\nx = np.ones(3)\ndef broken(a):\n    raise ValueError('on all ranks')\nbroken(x)\n"
    )
    result = mpiexec(2, "-m", "ampi.check", "--run", "--wrt", "x", path)
    assert result.returncode != 0
    assert "All 2 ranks failed:\nTraceback" in result.stderr and result.stderr.count("ValueError: on all ranks") == 1
    assert result.stderr.count("  File ") == 2 and "check.py" not in result.stderr


TASKS = """\
from concurrent.futures import ThreadPoolExecutor

import numpy

k = numpy.linspace(0, 1, 5)
with ThreadPoolExecutor(2) as pool:
    heat = sum(pool.map(lambda x: numpy.sum(numpy.sin(x)), [k, 2 * k, 3 * k]))
"""


def test_lines_of_tasks_are_counted(mpiexec, tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(TASKS, encoding="utf-8")
    result = mpiexec(1, "-m", "ampi.check", "--run", "--wrt", "k", path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "prog.py:7: 3 x NumPy (reduction)" in result.stdout and "heat: carries derivatives" in result.stdout
