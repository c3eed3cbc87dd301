"""Solves of PETSc in a program, beside NumPy on one rank."""

import numpy
import pytest
from example import complex_step, load

pytest.importorskip("petsc4py")
petsc = load("with_petsc", "libraries")
ampi = petsc.ampi


def serial(k):
    """The mean temperature with NumPy's dense solver, also of complex numbers."""
    n = len(k)
    faces = (k[:-1] + k[1:]) / 2
    matrix = numpy.zeros((n, n), k.dtype)
    for i, face in enumerate(faces):
        matrix[i : i + 2, i : i + 2] += face * numpy.array([[1, -1], [-1, 1]])
    matrix[0, 0] += k[0]
    return numpy.linalg.solve(matrix, numpy.full(n, 1.0 / n**2)).sum() / n


def parts():
    """This rank's coefficients, and all."""
    comm = petsc.comm
    k = 1.0 + numpy.random.default_rng(comm.rank).random(2 + comm.rank % 2)
    return k, numpy.concatenate(comm.allgather(k))


@pytest.mark.mpi
@pytest.mark.parametrize("method", [("gmres", "bjacobi"), ("bcgs", "jacobi"), ("preonly", "lu")])
def test_derivatives_are_those_of_complex_step(method, monkeypatch):
    comm = petsc.comm
    if comm.size > 1 and method == ("preonly", "lu"):
        pytest.skip("PETSc needs another package for it on several ranks")
    solver = petsc.solver
    monkeypatch.setattr(petsc, "solver", lambda *given: solver(*given, *method))
    k, whole = parts()
    first = sum(map(len, comm.allgather(k)[: comm.rank]))
    value, gradient = ampi.value_and_grad(petsc.rod)(k)
    expected = complex_step(serial, whole)
    assert comm.allreduce(value) == pytest.approx(serial(whole), rel=1e-9)
    numpy.testing.assert_allclose(gradient, expected[first : first + len(k)], rtol=1e-7)
    direction = numpy.cos(numpy.arange(len(k)) + comm.rank)
    slope = comm.allreduce(float(ampi.jvp(petsc.rod, k, direction)[1]))
    assert slope == pytest.approx(comm.allreduce(float(gradient @ direction)), rel=1e-7)


def test_second_order_is_an_error():
    with pytest.raises((ampi.ActivityError, ampi.ActivityWarning)):
        ampi.hvp(petsc.rod, numpy.ones(3), numpy.ones(3))


def test_active_arrays_in_petscs_own_functions_are_refused_by_name():
    vector = petsc.PETSc.Vec().createSeq(3)
    for use in (lambda x: vector.setArray(x), lambda x: vector.setValues([0, 1, 2], x)):
        with pytest.raises(ampi.ActivityError, match="petsc4py"):
            ampi.grad(lambda x, use=use: petsc.np.sum(x) + (use(x) or 0.0))(numpy.ones(3))
