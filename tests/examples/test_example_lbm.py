"""A lattice Boltzmann method in CUDA kernels: against NumPy, and its derivatives against complex step."""

import numpy as np
import pytest
from example import EXAMPLES, load

example = load("lbm", "gpu")
SHAPE, STEPS, OMEGA = (6, 5, 7), 3, 1.7


def by_numpy(distributions, omega, flags, steps):
    """The kinetic energy after so many steps."""
    d = example.DIRECTIONS
    for _ in range(steps):
        f = np.stack([np.roll(distributions[..., q], d[q], (0, 1, 2)) for q in range(19)], axis=-1)
        density = f.sum(-1, keepdims=True)
        velocity = f @ d / density
        velocity = np.where((flags == example.DRIVEN)[..., None], example.SPEED, velocity)
        along = 3 * velocity @ d.T
        square = 1.5 * (velocity * velocity).sum(-1, keepdims=True)
        equilibrium = example.WEIGHTS * density * (1 + along + along * along / 2 - square)
        bounced = f[..., example.OPPOSITE]
        distributions = np.where((flags == example.OBSTACLE)[..., None], bounced, f + omega * (equilibrium - f))
    density, momentum = distributions.sum(-1), distributions @ d
    return 0.5 * ((momentum * momentum).sum(-1) / density)[flags != example.OBSTACLE].sum()


@pytest.fixture
def case():
    flags = example.flags_of(SHAPE)
    generator = np.random.default_rng(3)
    return flags, example.at_rest(SHAPE) * (1 + 0.05 * generator.standard_normal((*SHAPE, 19)))


def test_directions():
    assert len(example.DIRECTIONS) == 19 and example.WEIGHTS.sum() == pytest.approx(1.0)
    np.testing.assert_array_equal(example.DIRECTIONS[example.OPPOSITE], -example.DIRECTIONS)


def test_energy_and_derivatives(case):
    flags, start = case
    differentiated = example.ampi.value_and_grad(example.objective, argnums=(0, 1))
    value, (by_omega, by_start) = differentiated(OMEGA, start, flags, STEPS)
    assert value == pytest.approx(by_numpy(start, OMEGA, flags, STEPS), rel=1e-12)
    assert by_omega == pytest.approx(by_numpy(start, OMEGA + 1e-30j, flags, STEPS).imag / 1e-30, rel=1e-11)
    direction = np.random.default_rng(4).standard_normal(start.shape)
    expected = by_numpy(start + 1e-30j * direction, OMEGA, flags, STEPS).imag / 1e-30
    assert np.sum(by_start * direction) == pytest.approx(expected, rel=1e-11)


def test_program(mpiexec):
    done = mpiexec(1, EXAMPLES / "gpu" / "lbm.py", "--size", "6", "5", "7", "--steps", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(("omega", "start"))]
    assert len(rows) == 2
    for _, adjoint, quotient in rows:
        assert float(adjoint) == pytest.approx(float(quotient), rel=1e-6)
