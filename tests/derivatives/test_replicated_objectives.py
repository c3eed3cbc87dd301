"""A warning where one value of all ranks is counted once for each."""

import functools
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


def started(x):
    total, mine = np.zeros(1), np.sum(x * x).reshape(1)
    WORLD.Iallreduce(mine, total).Wait()
    return total[0]


def started_again(x):
    total, mine = np.zeros(1), np.zeros(1)
    request = WORLD.Allreduce_init(mine, total)
    mine[0] = np.sum(x * x)
    request.Start()
    request.Wait()
    request.Free()
    return total[0] ** 2


def gathered_later(x):
    everything = np.zeros((WORLD.size, x.size))
    request = WORLD.Iallgather(x, everything)
    request.Wait()
    return np.sum(everything**3)


def reduced_and_told(x):
    total = np.zeros(1)
    WORLD.Reduce(np.sum(x * x), total)
    WORLD.Bcast(total)
    return total[0]


COUNTED_ONCE_PER_RANK = {
    "allreduce": lambda x: WORLD.allreduce(np.sum(x * x)),
    "Allreduce": reduced,
    "an element": lambda x: reduced(x)[0],
    "a function of it": lambda x: 0.5 * np.sqrt(reduced(x)[0]) + 1.0,
    "of an object": lambda x: np.exp(-0.1 * WORLD.allreduce(np.sum(x * x))),
    "bcast": lambda x: WORLD.bcast(np.sum(x * x), root=0),
    "allgather": lambda x: np.sum(np.sin(all_of(x))),
    "Iallreduce": started,
    "Allreduce_init": started_again,
    "Iallgather": gathered_later,
    "Reduce and Bcast": reduced_and_told,
}
RIGHT = {
    "local": lambda x: np.sum(x * x),
    "alike by chance": lambda x: np.sum(0.0 * x) + 3.0,
    "a part of each": lambda x: np.sum(x * x) + reduced(x)[0],
    "an element of each": lambda x: x[0] * x[0] + reduced(x)[0],
    "of the total": lambda x: np.sum(x) * reduced(x)[0],
    "one rank": lambda x: reduced(x)[0] * (1.0 if WORLD.rank == 0 else 0.0),
    "another weight": lambda x: reduced(x)[0] * (WORLD.rank + 1.0),
    "a halo": lambda x: np.sum(WORLD.sendrecv(x, (WORLD.rank + 1) % WORLD.size) ** 2),
}
RIGHT["none elsewhere"] = lambda x: [reduced(x)[0], None][WORLD.rank > 0]


def product(f, x, objective):
    return ampi.hvp(f, x, numpy.ones_like(x), objective)


def tangent_of_gradient(f, x, objective):
    return ampi.jvp(ampi.grad(f, objective=objective), x, numpy.ones_like(x))[1]


DERIVATIVES = {
    "grad": lambda f, x, objective: ampi.grad(f, objective=objective)(x),
    "value_and_grad": lambda f, x, objective: ampi.value_and_grad(f, objective=objective)(x)[1],
    "hvp": product,
    "hvp of several": lambda f, x, objective: ampi.hvp(f, x, numpy.eye(x.size), objective, vectorised=True),
    "jvp of grad": tangent_of_gradient,
    "hessian": lambda f, x, objective: ampi.hessian(f, x, objective, chunk=2),
}
TESTS = {
    "taylor_test": functools.partial(ampi.testing.taylor_test, verbose=False),
    "taylor_test of gradients": functools.partial(ampi.testing.taylor_test, verbose=False, order=2),
    "symmetry_test": ampi.testing.symmetry_test,
}


def warned(f, objective="sum", derivative=DERIVATIVES["grad"]):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        found = derivative(f, numpy.arange(1.0, 4.0), objective)
    return [str(one.message) for one in seen if "replicated" in str(one.message)], found


@pytest.mark.parametrize("name", COUNTED_ONCE_PER_RANK)
def test_one_value_counted_once_per_rank_draws_a_warning(name):
    f = COUNTED_ONCE_PER_RANK[name]
    found, summed = warned(f)
    assert len(found) == (WORLD.rank == 0 and WORLD.size > 1)
    none, once = warned(f, "replicated")
    assert not none
    numpy.testing.assert_allclose(summed, WORLD.size * once)
    if found:
        assert f"counts it {WORLD.size} times" in found[0] and __file__.rpartition("/")[2] in found[0]


@pytest.mark.parametrize("name", ["Allreduce", "a function of it", "bcast", "allgather"])
@pytest.mark.parametrize("way", DERIVATIVES)
def test_every_derivative_warns_once(way, name):
    f, derivative = COUNTED_ONCE_PER_RANK[name], DERIVATIVES[way]
    found, summed = warned(f, derivative=derivative)
    assert len(found) == (WORLD.rank == 0 and WORLD.size > 1)
    none, once = warned(f, "replicated", derivative)
    assert not none
    numpy.testing.assert_allclose(summed, WORLD.size * once, atol=1e-12)
    for right in ("of the total", "another weight", "a part of each", "an element of each"):
        assert not warned(RIGHT[right], derivative=derivative)[0]


@pytest.mark.parametrize("way", TESTS)
def test_tests_of_derivatives_warn(way):
    def tested(f, x, objective):
        assert TESTS[way](f, x, objective=objective).passed

    assert len(warned(reduced, derivative=tested)[0]) == (WORLD.rank == 0 and WORLD.size > 1)
    assert not warned(reduced, "replicated", tested)[0]
    assert not warned(RIGHT["of the total"], derivative=tested)[0]


def test_programs_that_are_traced(tmp_path):
    path = WORLD.bcast(str(tmp_path / "program.py"))
    if WORLD.rank == 0:
        with open(path, "w") as file:
            file.write("from mpi4py import MPI\nimport numpy as np\nx = np.arange(1.0, 4.0)\n")
            file.write("total = np.zeros(1)\nMPI.COMM_WORLD.Allreduce(np.sum(x * x), total)\ny = total[0]\n")
    WORLD.Barrier()

    def traced(f, x, objective):
        return ampi.trace(path, "x", "y", objective=objective)[1]

    found, summed = warned(None, derivative=traced)
    assert len(found) == (WORLD.rank == 0 and WORLD.size > 1)
    none, once = warned(None, "replicated", traced)
    assert not none
    numpy.testing.assert_allclose(summed, WORLD.size * once)


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_a_sum_is_not_warned_of(name):
    f = RIGHT[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        assert not warned(f)[0]
