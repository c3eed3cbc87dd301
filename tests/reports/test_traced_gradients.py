"""Tracing changes no derivative, of time loops in particular, whose steps are swept inside the sweep of a tape."""

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi import MPI
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi(max_size=2)

X = numpy.linspace(0.3, 0.9, 3)
AFTER, BEFORE = (COMM_WORLD.rank + 1) % COMM_WORLD.size, (COMM_WORLD.rank - 1) % COMM_WORLD.size


def arrays(x):
    y = np.sin(x) * x
    y[1:] *= y[:-1]
    return np.sum(y)


def loop(x):
    return np.sum(ampi.timeloop(lambda u: np.sin(u) * 1.1, x * 1.0, steps=6, checkpoints=2))


def loop_in_place(x):
    def step(u):
        u *= 1.0 + 0.1 * u
        COMM_WORLD.Sendrecv_replace(u, AFTER, source=BEFORE)

    return np.sum(ampi.timeloop(step, np.array(x), steps=6, checkpoints=2))


def loop_of_loops(x):
    def step(u):
        return ampi.timeloop(lambda v: v * np.cos(v), u * 1.0, steps=3, checkpoints=1)

    return np.sum(ampi.timeloop(step, x * 1.0, steps=4, checkpoints=1))


def loop_with_windows(x):
    def step(u):
        memory = np.zeros(3)
        win = MPI.Win.Create(memory, 8, comm=COMM_WORLD)
        win.Fence()
        win.Put(u, AFTER)
        win.Fence()
        v = np.sin(memory)
        win.Free()
        return v

    return np.sum(ampi.timeloop(step, x * 1.0, steps=4, checkpoints=2))


def tape(f):
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = f(x)
    return tape, x, y


def twice(f):
    recorded, x, y = tape(f)
    return numpy.stack([recorded.gradient(y, x), recorded.gradient(y, x)])


def several(f):
    recorded, x, y = tape(f)
    return recorded.gradient(y, x, seeds=numpy.array([1.0, -2.0, 3.0]))


MODES = {
    "gradients": twice,
    "directions": several,
    "hvp": lambda f: ampi.hvp(f, X, X),
    "jvp": lambda f: ampi.jvp(f, (X,), (X,))[1],
    "walk": lambda f: ampi.linearize(f, X)[1](X),
}


@pytest.mark.filterwarnings("ignore::ampi.PerformanceWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", [arrays, loop, loop_in_place, loop_of_loops, loop_with_windows], ids=lambda f: f.__name__)
def test_derivatives_are_the_same(f, mode):
    """Those of time loops were zero."""
    expected = MODES[mode](f)
    with ampi.tracing():
        found = MODES[mode](f)
    numpy.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("f", [loop, loop_of_loops])
def test_sweeps_of_tapes_from_before(f):
    recorded, x, y = tape(f)
    expected = recorded.gradient(y, x)
    with ampi.tracing():
        found = recorded.gradient(y, x)
    numpy.testing.assert_array_equal(found, expected)
