"""Tasks of mpi4py.futures: active arguments are refused where the program gives them, and nothing hangs."""

import textwrap

import pytest

HEAD = """
import functools
import numpy as np
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor, MPIPoolExecutor
theta, J = 0.7, 0.0
def model(a, k=0): return np.sum(np.sin(a * np.arange(4.0)) ** 2)
"""
GIVEN = {
    "map": "J = sum(ex.map(model, [theta * (1 + k / 10) for k in range(6)]))",
    "map in chunks": "J = sum(ex.map(model, [theta * (1 + k / 10) for k in range(6)], chunksize=3))",
    "starmap": "J = sum(ex.starmap(model, [(theta, k) for k in range(3)]))",
    "submit": "J = ex.submit(model, a=theta * 2).result()",
    "partial": "J = sum(ex.map(functools.partial(model, theta * 2), range(3)))",
    "closure": "J = (lambda t: sum(ex.map(lambda k: model(t * k), range(3))))(theta * 2)",
}


@pytest.mark.parametrize("how, ranks", [*((how, 1) for how in GIVEN), ("map", 2), ("partial", 2)])
def test_active_arguments_of_tasks_are_refused(mpiexec, tmp_path, how, ranks):
    path = tmp_path / "prog.py"
    text = HEAD + "with MPICommExecutor(MPI.COMM_WORLD, root=0) as ex:\n    if ex is not None:\n        " + GIVEN[how]
    path.write_text(text + "\n")
    result = mpiexec(ranks, "-m", "ampi.run", "--wrt", "theta", "--of", "J", path)
    line = text.split("\n").index("        " + GIVEN[how]) + 1
    assert result.returncode != 0
    assert f"prog.py:{line}: a task of mpi4py.futures is given a value that carries derivatives" in result.stderr
    assert "comm.allreduce" in result.stderr and "'MainThread'" not in result.stderr


def test_tasks_of_constants_go_on(mpiexec, tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(
        HEAD
        + textwrap.dedent("""
        with MPICommExecutor(MPI.COMM_WORLD, root=0) as ex:
            if ex is not None:
                weights = list(ex.map(model, [0.1, 0.2, 0.3]))
                J = theta**2 * sum(weights)
                print(sum(map(model, [0.1, 0.2, 0.3])) * 2 * 0.7)
        """)
    )
    result = mpiexec(1, "-m", "ampi.run", "--wrt", "theta", "--of", "J", path)
    assert result.returncode == 0, result.stderr
    expected = float(result.stdout.split()[0])
    assert f"norm {expected:.9e}"[:14] in result.stdout
