"""Conjugate gradients with an adjoint solve, against a dense solution in NumPy on one rank."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

example = load("sparse_cg")
N, BLOCKS = 5, 2


def dense_solution(log_k):
    """Cell by cell."""
    block = np.arange(N) * BLOCKS // N
    k = np.exp(log_k).reshape(BLOCKS, BLOCKS)[np.ix_(block, block)]
    matrix = np.zeros((N * N, N * N), k.dtype)
    for y, x in np.ndindex(N, N):
        for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if 0 <= y + dy < N and 0 <= x + dx < N:
                conductance = 2 / (1 / k[y, x] + 1 / k[y + dy, x + dx])
                matrix[y * N + x, (y + dy) * N + x + dx] = -conductance
            else:
                conductance = 2 * k[y, x]
            matrix[y * N + x, y * N + x] += conductance
    return np.linalg.solve(matrix, np.full(N * N, 1 / N**2))


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    plate, true = example.Plate(N, BLOCKS), example.truth(BLOCKS)
    seen = dense_solution(true)
    mine = slice(plate.begin, plate.end)
    np.testing.assert_allclose(example.ampi.value(plate.temperature(true)), seen[mine], rtol=1e-10)
    log_k = 0.3 * np.cos(np.arange(4.0))
    value, gradient = example.ampi.value_and_grad(plate.misfit)(log_k, seen[mine])
    misfit = lambda log_k: np.sum((dense_solution(log_k) - seen) ** 2) * 1e4
    assert example.comm.allreduce(value) == pytest.approx(misfit(log_k), rel=1e-9)
    np.testing.assert_allclose(example.comm.allreduce(gradient), complex_step(misfit, log_k), rtol=1e-9)


@pytest.mark.mpi
def test_conductivity_is_found():
    few_ranks()
    plate, true = example.Plate(N, BLOCKS), example.truth(BLOCKS)
    log_k, _ = example.invert(plate, example.ampi.value(plate.temperature(true)))
    np.testing.assert_allclose(log_k, true, atol=1e-6)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "conductivity.png"
    assert "unknowns" in started(mpiexec, 2, "sparse_cg", "sparse_cg", picture, "-n", 6, "--blocks", 2)
