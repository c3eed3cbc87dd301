"""Messages and collectives whose buffers are window memory, after other ranks' accesses under locks.

A barrier orders the access and the message, and leaves no record on the tape.
"""

import numpy
import pytest
from window_cases import created

import ampi
import ampi.numpy
from ampi import MPI
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi(min_size=2, max_size=3)

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size
AFTER, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def sendrecv(np, comm, m, z):
    comm.Sendrecv(m, AFTER, 5, z, BEFORE, 5)


def requests(np, comm, m, z):
    MPI.Request.Waitall([comm.Irecv(z, BEFORE), comm.Isend(m, AFTER)])


def replaced(np, comm, m, z):
    comm.Sendrecv_replace(m, AFTER, source=BEFORE)
    z[:] = m


def received(np, comm, m, z):
    comm.Sendrecv(z + 0.5 * m, AFTER, 5, m, BEFORE, 5)
    z[:] = m


def objects(np, comm, m, z):
    z[:] = comm.sendrecv(m, AFTER, source=BEFORE)


def allreduce(np, comm, m, z):
    comm.Allreduce(m, z)


def started(np, comm, m, z):
    comm.Iallreduce(m, z).Wait()


def broadcast(np, comm, m, z):
    comm.Bcast(m, 0)
    z[:] = m


def gathered(np, comm, m, z):
    everything = comm.allgather(m)
    z[:] = everything[0] * everything[-1]


def neighbours(np, comm, m, z):
    ring = comm.Create_cart([SIZE], [True])
    both = np.zeros((2, m.size), m.dtype)
    ring.Neighbor_allgather(m, both)
    z[:] = both[0]
    ring.Free()


MESSAGES = [sendrecv, requests, replaced, received, objects, allreduce, started, broadcast, gathered, neighbours]


def run(np, comm, message, x):
    win, m = created(np, comm, 3, x.dtype)
    m[:] = np.sin(x)
    mine = m * 0.8
    comm.Barrier()
    if RANK:
        win.Lock(0, MPI.LOCK_SHARED)
        win.Accumulate(mine, 0)
        win.Unlock(0)
    comm.Barrier()
    z = np.zeros(3, x.dtype)
    message(np, comm, m, z)
    y = np.sum(z * z * x)
    comm.Barrier()
    win.Free()
    return y


@pytest.mark.parametrize("message", MESSAGES, ids=lambda f: f.__name__)
def test_they_follow_the_accesses_before_them(message):
    """Sweeps and walks did them while the access was under way, or before it."""
    x0, v = numpy.linspace(0.4, 0.9, 3) + 0.1 * RANK, numpy.array([1.0, -2.0, 0.5]) * (RANK + 1)
    world = MPI.COMM_WORLD
    plain = lambda x: world.allreduce(run(numpy, COMM_WORLD, message, x).imag * 1e30)
    expected = plain(x0 + 1e-30j * v)
    gradient = [plain(x0 + 1e-30j * (numpy.arange(3) == i) * (RANK == r)) for r in range(SIZE) for i in range(3)]
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = run(ampi.numpy, COMM_WORLD, message, x)
    for _ in range(3):
        found = world.allreduce(float(tape.tangent(y, x, v)))
        numpy.testing.assert_allclose(found, expected, rtol=1e-12)
        mine = gradient[3 * RANK : 3 * RANK + 3]
        numpy.testing.assert_allclose(tape.gradient(y, x), mine, rtol=1e-12)
