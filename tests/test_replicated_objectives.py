"""A warning where one value of all ranks is counted once for each."""

import warnings

import numpy
import pytest

import ampi
import ampi.numpy as np

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD


def reduced(x):
    total = np.zeros(1)
    WORLD.Allreduce(np.sum(x * x), total)
    return total


def all_of(x):
    everything = np.zeros((WORLD.size, x.size))
    WORLD.Allgather(x, everything)
    return everything


COUNTED_ONCE_PER_RANK = {
    "allreduce": lambda x: WORLD.allreduce(np.sum(x * x)),
    "Allreduce": reduced,
    "an element": lambda x: reduced(x)[0],
    "a function of it": lambda x: 0.5 * np.sqrt(reduced(x)[0]) + 1.0,
    "of an object": lambda x: np.exp(-0.1 * WORLD.allreduce(np.sum(x * x))),
    "bcast": lambda x: WORLD.bcast(np.sum(x * x), root=0),
    "allgather": lambda x: np.sum(np.sin(all_of(x))),
}
RIGHT = {
    "local": lambda x: np.sum(x * x),
    "alike by chance": lambda x: np.sum(0.0 * x) + 3.0,
    "a part of each": lambda x: np.sum(x * x) + reduced(x)[0],
    "of the total": lambda x: np.sum(x) * reduced(x)[0],
    "one rank": lambda x: reduced(x)[0] * (1.0 if WORLD.rank == 0 else 0.0),
    "another weight": lambda x: reduced(x)[0] * (WORLD.rank + 1.0),
    "a halo": lambda x: np.sum(WORLD.sendrecv(x, (WORLD.rank + 1) % WORLD.size) ** 2),
}
RIGHT["none elsewhere"] = lambda x: [reduced(x)[0], None][WORLD.rank > 0]


def warned(f, objective="sum"):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = ampi.grad(f, objective=objective)(numpy.arange(1.0, 4.0))
    return [str(one.message) for one in seen if "replicated" in str(one.message)], found


@pytest.mark.parametrize("name", COUNTED_ONCE_PER_RANK)
def test_one_value_counted_once_per_rank_is_said(name):
    f = COUNTED_ONCE_PER_RANK[name]
    found, summed = warned(f)
    assert len(found) == (WORLD.rank == 0 and WORLD.size > 1)
    none, once = warned(f, "replicated")
    assert not none
    numpy.testing.assert_allclose(summed, WORLD.size * once)
    if found:
        assert f"counts it {WORLD.size} times" in found[0] and __file__.rpartition("/")[2] in found[0]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_a_sum_is_not_warned_of(name):
    f = RIGHT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        assert not warned(f)[0]
