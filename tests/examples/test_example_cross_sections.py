"""Look-ups of cross sections in a CUDA kernel: XSBench's checksum, and derivatives against NumPy."""

import numpy as np
import pytest
from example import EXAMPLES, load

example = load("cross_sections", "gpu")
LOOKUPS = 300


@pytest.fixture(scope="module")
def case():
    return *example.data(points=50), *example.events(LOOKUPS)


def test_generator():
    """The numbers are those of the recurrence."""
    seed, expected = 42, []
    for _ in range(9):
        seed = (example.MULTIPLIER * seed + 1) % 2**63
        expected.append(seed / 2**63)
    np.testing.assert_array_equal(example.numbers(42, 9), expected)


def test_derivatives(case):
    """The sums are linear in the tables, and their gradient times the tables is the sums; NumPy agrees."""
    grid, tables, *rest = case
    largest = np.zeros(LOOKUPS, np.int64)
    value, (by_grid, by_tables) = example.ampi.value_and_grad(example.total, argnums=(0, 1))(*case, largest)
    expected, checksum = example.reference(*case)
    assert value == pytest.approx(expected, rel=1e-12) and largest.sum() == checksum
    assert np.sum(by_tables * tables) == pytest.approx(expected, rel=1e-12)
    other = np.random.default_rng(2).standard_normal(tables.shape)
    assert np.sum(by_tables * other) == pytest.approx(example.reference(grid, other, *rest)[0], rel=1e-11)
    direction = np.random.default_rng(1).standard_normal(grid.shape) * 1e-9
    up, down = (example.reference(grid + s * direction, tables, *rest)[0] for s in (1, -1))
    assert np.sum(by_grid * direction) == pytest.approx((up - down) / 2, rel=1e-4)


def test_program(mpiexec):
    done = mpiexec(1, EXAMPLES / "gpu" / "cross_sections.py", "--lookups", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checksum 3044; XSBench: 3044; with NumPy: 3044" in done.stdout
