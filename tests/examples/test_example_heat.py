"""The heat equation's example, against the same plate in NumPy on one rank."""

import numpy as np
import pytest
from example import complex_step, few_ranks, load, started

heat = load("heat")
N, STEPS = 15, 12


def serial_run(heaters, n, steps, every=5):
    """All thermometers over time, on the whole plate."""
    points = (np.arange(n) + 1.0) / (n + 1)
    source = sum(
        s * np.exp(-((points[:, None] - x) ** 2 + (points - y) ** 2) / (2 * heat.WIDTH**2)) / n for x, y, s in heaters
    )
    u = np.zeros((n + 2, n + 2), source.dtype)
    shown = []
    for _ in range(steps):
        inner = u[1:-1, 1:-1]
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] = inner + heat.RATE * (around - 4 * inner) + source
        shown.append(u[3:-1:every, 3:-1:every].ravel())
    return np.array(shown)


@pytest.mark.mpi
def test_gradient_is_that_of_complex_step():
    plate = heat.Plate(N, STEPS)
    shown = heat.ampi.value(plate.run(heat.TRUTH)["shown"])
    expected = serial_run(heat.TRUTH, N, STEPS)
    assert sum(heat.comm.allgather(float(np.sum(shown)))) == pytest.approx(float(np.sum(expected)), rel=1e-13)

    value, gradient = heat.value_and_gradient(plate, shown)(heat.GUESS.ravel())
    misfit = lambda heaters: np.sum((serial_run(heaters, N, STEPS) - expected) ** 2)
    assert value == pytest.approx(misfit(heat.GUESS), rel=1e-11)
    np.testing.assert_allclose(gradient, complex_step(misfit, heat.GUESS).ravel(), rtol=1e-10)


@pytest.mark.mpi
def test_heaters_are_found():
    few_ranks()
    plate = heat.Plate(N, STEPS)
    shown = heat.ampi.value(plate.run(heat.TRUTH)["shown"])
    found, _ = heat.invert(plate, shown)
    np.testing.assert_allclose(found, heat.TRUTH, atol=1e-7)


def test_program(mpiexec, tmp_path):
    pytest.importorskip("matplotlib")
    printed = started(mpiexec, 2, "heat", "heat", tmp_path / "heat.png", "-n", "15", "--steps", "12")
    assert printed.count("heater") == 2
