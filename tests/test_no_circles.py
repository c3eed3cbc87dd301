"""Tapes are freed with their last reference: what they keep may be large, and Python's garbage collector, which counts
objects and not bytes, would come late."""

import collections
import gc

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi import MPI
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi(max_size=3)

X = numpy.linspace(0.1, 0.9, 4)
AFTER, BEFORE = (COMM_WORLD.rank + 1) % COMM_WORLD.size, (COMM_WORLD.rank - 1) % COMM_WORLD.size


@ampi.kernel
def kernel(x, y):
    for i in range(len(x)):
        y[i] = np.sin(x[i]) * x[i]


@ampi.custom_vjp
def square(x):
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, y_bar: (2 * x * y_bar,))
square.defjvp(lambda x, x_dot: (x[0] * x[0], 2 * x[0] * x_dot[0]))


def arrays(x):
    y = np.sin(x) * x
    y[1:] += y[:-1] * 2
    y *= y
    return np.sum(y)


def elements(x):
    s = 0.0
    for i in range(4):
        s = s + x[i] * x[i]
    return s


def kernels(x):
    y = np.zeros(4)
    kernel(x, y)
    return np.sum(y)


def libraries(x):
    return np.sum(np.abs(np.fft.fft(x)) ** 2) + np.sum(np.linalg.solve(np.outer(x, x) + np.eye(4), x))


def author(x):
    return np.sum(square(x))


def requests(x):
    z = np.zeros(4)
    MPI.Request.Waitall([COMM_WORLD.Irecv(z, BEFORE), COMM_WORLD.Isend(x * x, AFTER)])
    return np.sum(z)


def persistent(x):
    y, z = x * x, np.zeros(4)
    several = [COMM_WORLD.Recv_init(z, BEFORE), COMM_WORLD.Send_init(y, AFTER)]
    for _ in range(2):
        MPI.Prequest.Startall(several)
        MPI.Request.Waitall(several)
    for request in several:
        request.Free()
    return np.sum(z)


def objects(x):
    return np.sum(COMM_WORLD.sendrecv({"a": x * x}, AFTER, source=BEFORE)["a"])


def collectives(x):
    y, z = np.zeros(4), np.zeros(4)
    COMM_WORLD.Allreduce(x * x, z)
    COMM_WORLD.Iallreduce(z * x, y).Wait()
    return np.sum(y) + COMM_WORLD.allreduce(np.sum(x))


def topology(x):
    ring = COMM_WORLD.Create_cart([COMM_WORLD.size], [True])
    z = np.zeros((2, 4))
    ring.Neighbor_allgather(x * x, z)
    ring.Free()
    return np.sum(z)


def window(x):
    shared = MPI.Win.Allocate(32, 8, comm=COMM_WORLD)
    shared.Fence()
    shared.Put(x * x, AFTER)
    shared.Fence()
    y = np.zeros(4)
    shared.Get(y, BEFORE)
    shared.Fence()
    shared.Free()
    return np.sum(y * y)


def locks(x):
    shared = MPI.Win.Allocate_shared(32, 8, comm=COMM_WORLD)
    segments = [np.frombuffer(shared.Shared_query(rank)[0]) for rank in (COMM_WORLD.rank, AFTER)]
    segments[0][...] = x
    COMM_WORLD.Barrier()
    shared.Lock(AFTER)
    shared.Accumulate(x * x, AFTER)
    shared.Unlock(AFTER)
    COMM_WORLD.Barrier()
    y = segments[0] * segments[1]
    COMM_WORLD.Barrier()
    shared.Free()
    return np.sum(y)


def loop(x):
    return np.sum(ampi.timeloop(lambda u: u - 0.1 * u * u, np.array(x), steps=9, checkpoints=2))


def loop_in_place(x):
    def step(u):
        u *= 1 - 0.1 * u
        COMM_WORLD.Sendrecv_replace(u, AFTER, source=BEFORE)

    return np.sum(ampi.timeloop(step, np.array(x), steps=9, checkpoints=2))


def loop_over_numbers(x):
    first = [x[0] * k for k in range(5)]
    return sum(ampi.timeloop(lambda s: [v - 1e-3 * v * v for v in s], first, steps=9, checkpoints=2))


def tape(f, sweeps=2):
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = f(x)
    for _ in range(sweeps):
        tape.gradient(y, x)


PROGRAMS = [arrays, elements, kernels, libraries, author, requests, persistent, objects, collectives, topology, window]
PROGRAMS += [locks, loop, loop_in_place, loop_over_numbers]
MODES = {
    "no tape": lambda f: f(np.array(X)),
    "no sweep": lambda f: tape(f, 0),
    "two sweeps": tape,
    "grad": lambda f: ampi.grad(f)(X),
    "jvp": lambda f: ampi.jvp(f, (X,), (X,)),
    "jvp in several directions": lambda f: ampi.jvp(f, (X,), (numpy.eye(4),), vectorised=True),
    "linearize": lambda f: ampi.linearize(f, X)[1](X),
    "jacrev": lambda f: ampi.jacrev(f, X),
    "hvp": lambda f: ampi.hvp(f, (X,), (X,)),
}


@pytest.mark.filterwarnings("ignore::ampi.PerformanceWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_nothing_is_left_to_the_collector(program, mode):
    run = MODES[mode]
    try:
        run(program)
        run(program)  # what is made once and for all is there
    except ampi.ActivityError as refusal:
        pytest.skip(str(refusal))
    gc.collect()
    gc.disable()
    try:
        run(program)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found = collections.Counter(f"{type(x).__module__}.{type(x).__name__}" for x in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not [name for name in found if name.startswith("ampi")], found
