"""First steps of a user: ``python -m ampi``, and an import without MPI."""

import subprocess
import sys
import textwrap

import pytest
from patience import patience

import ampi.self_test as first


def run(source):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
    )


@pytest.mark.parametrize(
    "stand_in",
    [
        "raise ModuleNotFoundError(\"No module named 'mpi4py'\", name='mpi4py')",
        "raise ImportError('libmpi.so.12: cannot open shared object file')",
        "raise RuntimeError('cannot load MPI library')",
    ],
)
def test_import_without_mpi_explains_how_to_install_one(stand_in):
    done = run(f"""
        import sys

        class NoMpi:
            def find_spec(self, name, *rest):
                if name.startswith("mpi4py"):
                    {stand_in}

        sys.meta_path.insert(0, NoMpi())
        import ampi
    """)
    assert done.returncode == 1
    said = done.stderr[done.stderr.index("ImportError: ") :]
    assert said.startswith("ImportError: ampi needs mpi4py and an MPI library"), done.stderr
    assert "pip install mpi4py mpich" in said and stand_in.split("'")[1].split()[0].strip('"') in said
    assert done.stderr.count("Traceback") == 1  # where mpi4py looked for a library is of no interest


@pytest.mark.parametrize("ranks", [1, 3])
def test_self_test(mpiexec, ranks):
    done = mpiexec(ranks, "-m", "ampi")
    assert done.returncode == 0, done.stderr
    assert f"kernel is right on {ranks} rank(s)" in done.stdout and done.stdout.count("self-test") == 1
    assert "mpi4py " in done.stdout and "compiled kernels are kept in " in done.stdout


def test_self_test_fails_where_a_gradient_is_wrong(mpiexec, tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys\nimport ampi.self_test as first\nright = first.gradient\n"
        "first.gradient = lambda rank, size: right(rank, size) + (rank == 1)\nsys.exit(first.main())\n"
    )
    done = mpiexec(2, program)
    assert done.returncode == 1 and "WRONG" in done.stdout and "rank 1: the gradient is" in done.stdout, done.stdout


def test_gradient_by_hand_is_that_of_differences():
    h = 1e-5
    for rank in range(3):
        found = []
        for k in range(first.SIZE):
            values = []
            for sign in (1.0, -1.0):
                x = [first.numbers(r) for r in range(3)]
                x[rank][k] += sign * h
                values.append(sum((x[r] ** 3).sum() + x[r - 1][-1] * x[r][0] for r in range(3)))
            found.append((values[0] - values[1]) / (2 * h))
        assert first.gradient(rank, 3) == pytest.approx(found, rel=1e-7)


@pytest.mark.slow
def test_a_rank_that_imports_alone_says_what_it_waits_for(mpiexec, tmp_path):
    """The other rank imports much later; the note comes once, and the program goes on."""
    program = tmp_path / "late.py"
    program.write_text(
        "import time\nfrom mpi4py import MPI\ntime.sleep(23 * MPI.COMM_WORLD.rank)\nimport ampi\nprint('imported')\n"
    )
    done = mpiexec(2, program)
    assert done.returncode == 0
    assert done.stdout.count("imported") == 2
    assert done.stderr.count("ampi: rank 0 has waited 20 s in `import ampi` for the other ranks") == 1
