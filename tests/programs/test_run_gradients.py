"""``python -m ampi.run --wrt NAME --of NAME``: the command, its output and its exit status."""

import re

import h5py
import numpy
import pytest

PROGRAM = """\
import sys
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
k = 0.5
x = np.arange(3.0) + comm.rank + float(sys.argv[1])
energy = comm.allreduce(k * np.sum(x ** 2))
print("ran", flush=True)
"""


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "prog.py"
    made.write_text(PROGRAM)
    return made


def test_gradients_are_printed_written_and_checked(path, mpiexec, tmp_path):
    options = ["--wrt", "x", "--wrt=k", "--of", "energy", "--objective", "replicated"]
    result = mpiexec(2, "-m", "ampi.run", *options, "--check", "--output", tmp_path / "g.h5", path, "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines().count("ran") == 2  # the runs of the check are silent
    squares = 14.0 + 29.0
    assert f"energy = {squares / 2:.12e}   (on each of 2 ranks)" in result.stdout
    assert f"with respect to x: norm {numpy.sqrt(squares):.12e}, float64 of shape (3,) on each rank" in result.stdout
    assert f"sum over ranks {squares:.12e}" in result.stdout
    assert len(re.findall(r"^   1e-0\d   [+-]\d\.\d{12}e[+-]\d\d   \d\.\de[+-]\d\d$", result.stdout, re.M)) == 4
    assert "PASS (relative difference" in result.stdout
    with h5py.File(tmp_path / "g.h5") as file:
        assert file.attrs["ranks"] == 2 and file.attrs["objective"] == "replicated"
        assert "--wrt x --wrt=k --of energy" in file.attrs["command"] and "version of numpy" in file.attrs
        assert file["energy"].attrs["value"] == squares / 2
        for rank in range(2):
            part = file[f"energy/x/rank{rank}"]
            assert part.attrs["rank"] == rank and part.attrs["assigned"] == f"{path}:6"
            numpy.testing.assert_allclose(part[...], numpy.arange(3.0) + rank + 1, rtol=1e-15)


def test_a_wrong_gradient_fails(path, mpiexec):
    path.write_text(PROGRAM.replace("k * np.sum(x ** 2)", "k * np.sum(x ** 2 + wrong(x))").replace("k = 0.5", HIDDEN))
    result = mpiexec(2, "-m", "ampi.run", "--wrt", "x", "--of", "energy", "--check", path, "1")
    assert result.returncode == 1, result.stderr
    assert "FAIL (relative difference" in result.stdout


HIDDEN = """k = 0.5
import ampi
wrong = lambda x: ampi.numpy.array(ampi.value(x)) * 3"""


WRONG_HALO = """\
import sys
import numpy as np
import ampi
from mpi4py import MPI
comm = MPI.COMM_WORLD
def from_left(u):
    out = np.zeros(1)
    comm.Sendrecv(u, 1 - comm.rank, recvbuf=out, source=1 - comm.rank)
    return out
halo = ampi.custom_vjp(from_left)
halo.defvjp(lambda u: (from_left(u), None), lambda saved, bar: (bar,))      # it should be sent back
u = np.full(1, 1.0) + comm.rank * float(sys.argv[1] if len(sys.argv) > 1 else 0.0)
J = float(np.sum(halo(u) ** 2) / 2 * 10.0**comm.rank)
"""


@pytest.mark.parametrize("options, passes", [([], False), (["--replicated", "u"], True)])
def test_a_share_on_the_wrong_rank_fails_where_all_ranks_have_the_same(path, mpiexec, options, passes):
    path.write_text(WRONG_HALO)
    result = mpiexec(2, "-m", "ampi.run", "--wrt", "u", "--of", "J", "--check", *options, path)
    assert result.returncode == (not passes), result.stderr
    assert ("PASS" in result.stdout, "write --replicated NAME" in result.stdout) == (passes, not passes)


def test_random_results_fail(path, mpiexec):
    path.write_text(PROGRAM.replace("k = 0.5", "import time; k = 0.5 + time.time() % 1"))
    result = mpiexec(2, "-m", "ampi.run", "--wrt", "x", "--of", "energy", "--check", path, "1")
    assert result.returncode == 1 and "left to chance" in result.stdout


@pytest.mark.parametrize(
    "options, status, text",
    [
        (
            ["--wrt", "nothing", "--of", "energy"],
            1,
            "ampi.run: nothing is never assigned at the top level of the script",
        ),
        (["--wrt", "k", "--of", "comm"], 1, "ampi.run: comm is an ampi.MPI.Intracomm, and no number"),
        (["--wrt", "k", "--of", "x"], 1, "ampi.run: x does not depend on k"),
        (["--wrt", "comm", "--of", "x"], 1, "ProgramError: comm ("),
        (["--wrt", "k"], 2, "ampi.run: --wrt without --of"),
        (["--check"], 2, "ampi.run: --check and --output go with --wrt"),
        (["--wrt=x", "--of=energy", "--replicated=x"], 2, "ampi.run: --replicated NAME goes with --check"),
        (["--wrt", "k", "--of", "energy", "--objective", "mean"], 2, "invalid choice: 'mean'"),
        (["--also", "numpy", "--numpy"], 1, "numpy itself cannot be a part of the program"),
        (["--declared"], 1, "the program calls ampi.independent and ampi.dependent nowhere"),
    ],
)
def test_errors_are_printed_once(path, mpiexec, options, status, text):
    result = mpiexec(2, "-m", "ampi.run", *options, path, "1")
    assert result.returncode == status
    assert result.stderr.count(text) == 1, result.stderr


@pytest.mark.parametrize("form", ["module", "command", "program in a package"])
def test_other_forms_of_programs(path, mpiexec, form, monkeypatch):
    package = path.parent / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text("from . import other\n" + PROGRAM.replace("k = 0.5", "k = other.half"))
    (package / "other.py").write_text(
        "import numpy as np\nhalf = np.float64(0.5)\nimport ampi.numpy; assert np is ampi.numpy"
    )
    monkeypatch.chdir(path.parent)
    forms = {"module": ["-m", "prog"], "command": ["-c", PROGRAM], "program in a package": ["-m", "pack.tool"]}
    result = mpiexec(2, "-m", "ampi.run", "--wrt", "k", "--of", "energy", *forms[form], "1")
    assert result.returncode == 0, result.stderr
    assert f"sum over ranks {2 * 43:.12e}" in result.stdout


def test_numpy_alone(path, mpiexec):
    path.write_text(f"{PROGRAM}\nimport numpy, ampi\nassert np is numpy is ampi.numpy and type(x) is ampi.ndarray\n")
    result = mpiexec(2, "-m", "ampi.run", "--numpy", path, "1")
    assert result.returncode == 0 and result.stdout.count("ran") == 2, result.stderr


def test_traceback_shows_the_programs_lines(path, mpiexec):
    path.write_text(PROGRAM + "def fail(y):\n    1 / 0\nfail(x)\n")
    result = mpiexec(2, "-m", "ampi.run", "--wrt", "x", "--of", "energy", path, "1")
    assert result.returncode == 1
    assert [int(n) for n in re.findall(r"line (\d+), in", result.stderr)] == [11, 10]
    assert "ampi/programs" not in result.stderr and "1 / 0" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks, name", [(8, "energy"), (8, "v"), (1, "x")])  # at rest, by its cut-offs
def test_lulesh_unmodified(ranks, name, mpiexec):
    import pathlib

    lulesh = pathlib.Path(__file__).parents[2] / "examples" / "lulesh" / "lulesh.py"
    options = ["--wrt", f"main:domain.{name}", "--of", "main:domain.energy", "--check"]
    result = mpiexec(ranks, "-m", "ampi.run", *options, lulesh, "-s", "3", "-i", "10", timeout=800)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "PASS" in result.stdout
