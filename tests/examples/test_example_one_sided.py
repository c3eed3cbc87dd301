"""One-sided halo exchange, against the whole ring in NumPy."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

example = load("one_sided")
N, STEPS = 14, 10


def serial_run(amplitudes):
    k, dx = 2 * np.pi * np.arange(N) / N, 1 / N
    u = np.array(amplitudes) @ np.array([np.sin(k), np.cos(k), np.sin(2 * k), np.cos(2 * k)])
    for _ in range(STEPS):
        right, left = np.roll(u, -1), np.roll(u, 1)
        curved = example.VISCOSITY * (right - 2 * u + left) / dx**2
        u = u + 0.2 * dx * (curved - (right**2 - left**2) / (4 * dx))
    return u


def mine():
    return slice(N * example.comm.rank // example.comm.size, N * (example.comm.rank + 1) // example.comm.size)


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    seen = serial_run(example.TRUTH)
    np.testing.assert_allclose(example.ampi.value(example.run(example.TRUTH, N, STEPS)), seen[mine()], rtol=1e-10)
    amplitudes = np.array([0.2, 0.1, -0.1, 0.3])
    value, gradient = example.ampi.value_and_grad(example.misfit)(amplitudes, N, STEPS, seen[mine()])
    misfit = lambda amplitudes: np.sum((serial_run(amplitudes) - seen) ** 2)
    assert example.comm.allreduce(value) == pytest.approx(misfit(amplitudes), rel=1e-10)
    np.testing.assert_allclose(example.comm.allreduce(gradient), complex_step(misfit, amplitudes), rtol=1e-10)


@pytest.mark.mpi
def test_amplitudes_are_found():
    few_ranks()
    amplitudes, _ = example.invert(N, STEPS, serial_run(example.TRUTH)[mine()])
    np.testing.assert_allclose(amplitudes, example.TRUTH, atol=1e-7)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    printed = started(mpiexec, 2, "one_sided", "one_sided", tmp_path / "burgers.png", "-n", 14, "--steps", 8)
    assert "amplitude" in printed
