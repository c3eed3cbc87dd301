"""Particles that migrate, against all of them in one array in NumPy."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

example = load("particles")
COUNT, STEPS = 24, 15


def serial_run(strengths):
    start = example.cloud(COUNT)
    position, velocity = start[:, 1:3].astype(strengths.dtype), start[:, 3:5].astype(strengths.dtype)
    for _ in range(STEPS):
        for strength, centre in zip(strengths, example.CENTRES):
            apart = np.pi * (position - centre)
            square = np.sum(np.sin(apart) ** 2, axis=1, keepdims=True) / np.pi**2 + 0.02
            velocity = velocity - example.DT * strength * np.sin(apart) * np.cos(apart) / np.pi / square
        position = position + example.DT * velocity
    return position


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    seen, moved = example.observe(example.TRUTH, example.cloud(COUNT), STEPS)
    np.testing.assert_allclose(seen, serial_run(example.TRUTH), rtol=1e-10)
    assert moved > 0 or example.comm.size == 1
    strengths = np.array([0.3, -0.2, 0.1])
    value, gradient = example.ampi.value_and_grad(example.misfit)(strengths, example.cloud(COUNT), STEPS, seen)
    misfit = lambda strengths: np.sum((serial_run(strengths) - seen) ** 2)
    assert example.comm.allreduce(value) == pytest.approx(misfit(strengths), rel=1e-9)
    np.testing.assert_allclose(example.comm.allreduce(gradient), complex_step(misfit, strengths), rtol=1e-9)


@pytest.mark.mpi
def test_strengths_are_found():
    few_ranks()
    start = example.cloud(COUNT)
    seen, _ = example.observe(example.TRUTH, start, STEPS)
    strengths, _ = example.invert(start, STEPS, seen)
    np.testing.assert_allclose(strengths, example.TRUTH, atol=1e-6)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "particles.png"
    printed = started(mpiexec, 3, "particles", "particles", picture, "--particles", 20, "--steps", 10)
    assert "migrations in a run" in printed
