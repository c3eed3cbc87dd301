"""Seismograms and their gradient, against NumPy on one rank; the model against the truth."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

example = load("wave")
N, KNOTS, SHOTS, STEPS = 12, 2, 3, 24


def serial_shot(model, shot):
    at = np.linspace(0, KNOTS - 1, N)
    weights = np.maximum(0, 1 - abs(at[:, None] - np.arange(KNOTS)))
    field = weights @ model.reshape(KNOTS, KNOTS) @ weights.T
    before, now, seen = np.zeros((N, N), field.dtype), np.zeros((N, N), field.dtype), []
    places = list(range(2, N - 2, 2))
    receivers = [(2, k) for k in places] + [(k, N - 3) for k in places] + [(N - 3, k) for k in places]
    for step in range(STEPS):
        after = np.zeros_like(now)
        curved = now[:-2, 1:-1] + now[2:, 1:-1] + now[1:-1, :-2] + now[1:-1, 2:] - 4 * now[1:-1, 1:-1]
        after[1:-1, 1:-1] = 2 * now[1:-1, 1:-1] - before[1:-1, 1:-1] + example.RATE * field[1:-1, 1:-1] * curved
        t = (step - 12) / 4
        after[shot] += (1 - 2 * t * t) * np.exp(-t * t)
        before, now = now, after
        seen.append([after[place] for place in receivers])
    return np.array(seen)


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    survey, true = example.Survey(N, KNOTS, SHOTS, STEPS), example.truth(KNOTS)
    seen = [serial_shot(true, shot) for shot in survey.shots]
    for one, other in zip(survey.seismograms(true), seen):
        np.testing.assert_allclose(example.ampi.value(one), other, atol=1e-12)
    shots = [shot for given in example.comm.allgather(survey.shots) for shot in given]
    assert len(shots) == SHOTS
    model = np.ones(KNOTS**2)
    value, gradient = example.ampi.value_and_grad(survey.misfit)(model, seen)
    misfit = lambda model: sum(np.sum((serial_shot(model, s) - serial_shot(true, s)) ** 2) for s in shots)
    assert example.comm.allreduce(float(value or 0.0)) == pytest.approx(misfit(model), rel=1e-10)
    np.testing.assert_allclose(example.comm.allreduce(gradient), complex_step(misfit, model), rtol=1e-9)


@pytest.mark.mpi
def test_model_is_found():
    few_ranks()
    survey, true = example.Survey(N, KNOTS, SHOTS, STEPS), example.truth(KNOTS)
    model, _ = example.invert(survey, [example.ampi.value(one) for one in survey.seismograms(true)])
    np.testing.assert_allclose(model, true, atol=1e-4)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("-n", 12, "--knots", 2, "--shots", 2, "--steps", 24)
    assert "unknowns" in started(mpiexec, 2, "wave", "wave", tmp_path / "wave.png", *options)
