"""Inversions: gradients against differences and NumPy on one rank, results against the truth."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

blast = load("blast", "inversion")


@pytest.mark.slow
@pytest.mark.timeout(400)  # compiles LULESH's kernels and their adjoints
def test_gradient_of_the_blast_is_that_of_differences():
    guess = np.array([0.8, 0.5])
    run = blast.Blast(3, 12, checkpoints=3)
    seen, scale = run.observe(np.array([1.0, blast.GAMMA_MINUS_1]))
    _, gradient = run.value_and_gradient(seen, scale)(guess)
    value = lambda x: float(blast.ampi.value(run.misfit(x, seen, scale)))
    differences = [(value(guess + h) - value(guess - h)) / 2e-5 for h in 1e-5 * np.eye(2)]
    np.testing.assert_allclose(gradient, differences, rtol=1e-6)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "ranks, size, method",
    [
        (1, 3, "L-BFGS-B"),
        pytest.param(8, 2, "L-BFGS-B", marks=pytest.mark.slow),
        # The second derivatives of LULESH's kernels are compiled for minutes.
        *(
            pytest.param(*case, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
            for case in ((1, 3, "trust-ncg"), (1, 3, "Newton-CG"), (8, 2, "trust-ncg"), (8, 2, "Newton-CG"))
        ),
    ],
)
def test_energy_and_gamma_are_found(mpiexec, tmp_path, ranks, size, method):
    pytest.importorskip("matplotlib")
    options = "-s", size, "-i", "12", "--method", method
    printed = started(mpiexec, ranks, "blast", "inversion", tmp_path / "blast.png", *options, timeout=1500)
    for name in ("energy", "gamma - 1"):
        (line,) = [line for line in printed.splitlines() if line.startswith(name)]
        assert float(line.split()[-1]) < 1e-8, printed


def serial_run(field, start):
    u = np.pad(start, 1)
    shown = []
    for k in range(1, field.SEEN[-1] + 1):
        u[1:-1, 1:-1] += field.RATE * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])
        if k in field.SEEN:
            shown.append(u[1:-1, 1:-1].copy())
    return np.array(shown)


@pytest.mark.mpi
def test_gradient_of_the_field_is_that_of_complex_step():
    pytest.importorskip("NuMPI")
    field = load("field", "inversion")
    n = max(6, field.comm.size)
    whole = np.sin(np.arange(n * n)).reshape(n, n)
    begin, end = field.rows(n)
    true = np.concatenate(field.comm.allgather(field.truth(n)))
    shown = serial_run(field, true)
    value, gradient = field.ampi.value_and_grad(field.misfit)(whole[begin:end], shown[:, begin:end])
    misfit = lambda start: np.sum((serial_run(field, start) - shown) ** 2)
    assert field.comm.allreduce(value) == pytest.approx(misfit(whole), rel=1e-12)
    np.testing.assert_allclose(gradient, complex_step(misfit, whole)[begin:end], rtol=1e-10, atol=1e-13)


@pytest.mark.mpi
def test_field_is_found():
    pytest.importorskip("NuMPI")
    few_ranks()
    field = load("field", "inversion")
    true = field.truth(8)
    found = field.invert(field.ampi.value(field.run(true)), gtol=1e-7)
    np.testing.assert_allclose(found.x.reshape(true.shape), true, atol=1e-4)


def test_program_of_the_field(mpiexec, tmp_path):
    pytest.importorskip("NuMPI")
    pytest.importorskip("matplotlib")
    options = ("-n", "8", "--gtol", "1e-4")
    assert "[32, 32]" in started(mpiexec, 2, "field", "inversion", tmp_path / "field.png", *options)
