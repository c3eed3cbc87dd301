"""Programs of ours with other people's distributed libraries, as they stand; the libraries are not needed otherwise."""

import importlib.util
import pathlib

import numpy
import pytest
from mpi4py import MPI

import ampi
from ampi.programs.gradients import Differentiation
from ampi.programs.runs import Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WORLD = ampi.COMM_WORLD
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "libraries"

PROGRAMS = {
    "pylops_mpi": "--also pylops --also pylops_mpi --wrt model --wrt matrix --of misfit --objective replicated",
    "mpi4py_fft": "--also mpi4py_fft --wrt amplitude --of skewness",
    "fbpic": "--also fbpic --wrt field --of energy",
    "veros": "--also veros --wrt wind --of energy",
}

REFUSED = {
    "veros": "scipy.sparse.dia_array has no rule for what comes by messages",
}

LINEAR = """
import numpy as np
import pylops
import pylops_mpi
from mpi4py import MPI

comm = MPI.COMM_WORLD
n = 6
rng = np.random.default_rng(comm.rank)
model = rng.standard_normal(n)
x = pylops_mpi.DistributedArray(global_shape=n * comm.size)
x[:] = model
operator = {operator}
weights = pylops_mpi.DistributedArray(global_shape=operator.shape[0])
weights[:] = np.cos(np.arange(weights.local_shape[0]) + comm.rank)
y = (operator @ x).dot(weights)
expected = (operator.H @ weights).local_array
"""
OPERATORS = {
    "blocks": "pylops_mpi.MPIBlockDiag([pylops.MatrixMult(rng.standard_normal((4, n)))])",
    "first derivative": "pylops_mpi.MPIFirstDerivative((n * comm.size,), dtype=np.float64)",
    "second derivative": "pylops_mpi.MPISecondDerivative((n * comm.size,), dtype=np.float64)",
}


def absent(package):
    return importlib.util.find_spec(package) is None


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("package", PROGRAMS)
def test_gradients_are_those_of_finite_differences(package, ranks, mpiexec):
    if absent(package):
        pytest.skip(f"no {package}")
    if ranks > 1 and package in REFUSED:
        pytest.skip(f"refused on several ranks: {REFUSED[package]}")
    options = PROGRAMS[package].split()
    result = mpiexec(ranks, "-m", "ampi.run", *options, "--check", EXAMPLES / f"with_{package}.py", timeout=500)
    assert result.returncode == 0 and "PASS" in result.stdout, result.stdout + result.stderr
    assert "it is zero" not in result.stdout


@pytest.mark.mpi
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_through_operators_are_their_own_adjoints(name, tmp_path_factory):
    if absent("pylops_mpi"):
        pytest.skip("no pylops_mpi")
    folder = MPI.COMM_WORLD.bcast(tmp_path_factory.mktemp("linear") if WORLD.rank == 0 else None)
    path = folder / "linear.py"
    if WORLD.rank == 0:
        path.write_text(LINEAR.format(operator=OPERATORS[name]))
    MPI.COMM_WORLD.Barrier()
    program = Program("file", str(path), [])
    problem = Differentiation(program, ["model"], ["y"], ["pylops", "pylops_mpi"], "replicated")
    with ampi.mpi.installed():
        found = problem.gradients()
        expected = numpy.asarray(ampi.value(problem.runner.namespace["expected"]))
        problem.runner.forget()
    numpy.testing.assert_allclose(found.parts[0][0], expected, rtol=1e-12)
