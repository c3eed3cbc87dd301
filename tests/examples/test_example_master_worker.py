"""Master and workers: the gradient against complex step on one rank, and the rates against the truth."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

example = load("master_worker")
TASKS = example.experiments(5, 20)


def serial_run(log_rates):
    k1, k2, k3 = np.exp(log_rates)
    rate = lambda y: np.array(
        [-k1 * y[0] * y[1] + k2 * y[2], -k1 * y[0] * y[1] + k2 * y[2], k1 * y[0] * y[1] - (k2 + k3) * y[2], k3 * y[2]]
    )
    measured = []
    for start, steps in TASKS:
        y, dt = np.array([*start, 0, 0], np.result_type(log_rates, float)), 2.0 / steps
        for _ in range(example.TIMES):
            for _ in range(steps):
                first = rate(y)
                y = y + 0.5 * dt * (first + rate(y + dt * first))
            measured.append(y[3])
    return np.array(measured).reshape(len(TASKS), -1)


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    measured = serial_run(example.TRUTH)
    value, gradient = example.ampi.value_and_grad(example.misfit, objective="root")(example.GUESS, TASKS, measured)
    if example.comm.rank == 0:
        misfit = lambda log_rates: np.sum((serial_run(log_rates) - measured) ** 2)
        assert value == pytest.approx(misfit(example.GUESS), rel=1e-11)
        np.testing.assert_allclose(gradient, complex_step(misfit, example.GUESS), rtol=1e-9)


@pytest.mark.mpi
def test_rates_are_found():
    few_ranks(3)
    rates, _ = example.invert(TASKS, serial_run(example.TRUTH))
    if example.comm.rank == 0:
        np.testing.assert_allclose(rates, example.TRUTH, atol=1e-7)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--experiments", "3", "--steps", "10")
    printed = started(mpiexec, 3, "master_worker", "master_worker", tmp_path / "rates.png", *options)
    assert "A + B -> C" in printed
