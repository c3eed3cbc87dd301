"""Random kernels, narrow ones of loops and elements and wide ones with whole arrays, swaps, tuples and calls."""

import pytest
from random_check import examine, examine_recorded
from random_kernels import Program


@pytest.mark.parametrize("seed", range(10_000, 10_100))
def test_random(seed):
    examine(Program(seed).source(), seed)


@pytest.mark.parametrize("seed", range(20_000, 20_060))
def test_wide(seed):
    examine(Program(seed, wide=True).source(), seed)


@pytest.mark.parametrize("seed", range(30_000, 30_008))
def test_recorded(seed):
    examine_recorded(Program(seed).source(), seed)
