"""An ensemble by tasks: the gradient against complex step on one rank, with any number of tasks, and the truth."""

import sys

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

example = load("ensemble")
MEMBERS, STEPS = 5, 8


def serial_angles(parameters):
    """Of all members, by NumPy."""
    damping, length = parameters
    dt = example.END / example.TIMES / STEPS
    rate = lambda a, v: (v, -9.81 / length * np.sin(a) - damping * v)
    found = []
    a = np.linspace(0.2, 2.6, MEMBERS).astype(np.result_type(parameters, float))
    v = np.zeros_like(a)
    for _ in range(example.TIMES):
        for _ in range(STEPS):
            first = rate(a, v)
            second = rate(a + dt * first[0], v + dt * first[1])
            a, v = a + 0.5 * dt * (first[0] + second[0]), v + 0.5 * dt * (first[1] + second[1])
        found.append(a)
    return np.array(found).T


@pytest.fixture(autouse=True)
def module_of_tasks(monkeypatch):
    """Functions go to other ranks by the name of their module, which another test may have loaded anew."""
    monkeypatch.setitem(sys.modules, example.__name__, example)


@pytest.mark.mpi
@pytest.mark.parametrize("tasks", [0, 1, 3])
def test_gradient_is_that_of_complex_step(tasks):
    measured = serial_angles(example.TRUTH)
    mine = measured[example.comm.rank :: example.comm.size]
    value, gradient = example.both(example.GUESS, example.members(MEMBERS), STEPS, tasks, mine)
    misfit = lambda parameters: np.sum((serial_angles(parameters) - measured) ** 2)
    assert value == pytest.approx(misfit(example.GUESS), rel=1e-10)
    np.testing.assert_allclose(gradient, complex_step(misfit, example.GUESS), rtol=1e-8)


@pytest.mark.mpi
def test_parameters_are_found():
    few_ranks(3)
    mine = serial_angles(example.TRUTH)[example.comm.rank :: example.comm.size]
    parameters, _ = example.invert(example.members(MEMBERS), STEPS, 2, mine)
    np.testing.assert_allclose(parameters, example.TRUTH, atol=1e-6)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    options = ("--members", "4", "--steps", "8", "--tasks", "2")
    printed = started(mpiexec, 2, "ensemble", "ensemble", tmp_path / "ensemble.png", *options)
    assert "damping" in printed
