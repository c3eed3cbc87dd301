"""Partitioned messages: programs on all ranks compared with the complex step, and refusals."""

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in, check, typeof

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi


def partners(comm):
    rank, size = comm.Get_rank(), comm.Get_size()
    return (rank + 1) % size, (rank - 1) % size


def free(*requests):
    """Free requests: Intel MPI may hang in Finalize if partitioned ones are left."""
    for request in requests:
        request.Free()


def arrives(request, partition):
    while not request.Parrived(partition):
        pass


# Programs are analytic functions of (np, comm, x); x has 6 elements.


def ring(np, comm, x):
    """Partitions become ready out of order, and are computed between the start and their Pready."""
    after, before = partners(comm)
    u, v = np.zeros(6, x.dtype), np.zeros(6, x.dtype)
    send, receive = comm.Psend_init(u, 3, after, 4), comm.Precv_init(v, 3, before, 4)
    MPI.Prequest.Startall([receive, send])
    for k in (2, 0, 1):
        u[2 * k : 2 * k + 2] = x[2 * k : 2 * k + 2] ** (k + 2)
        send.Pready(k)
    MPI.Request.Waitall([send, receive])
    free(send, receive)
    return v * x


def other_partitions_there(np, comm, x):
    """Three partitions are received as two; counts and datatypes are given."""
    after, before = partners(comm)
    kind = typeof(x)
    u, v = x * x, np.zeros(6, x.dtype)
    send, receive = comm.Psend_init([u, 2, kind], 3, after), comm.Precv_init([v, 3, kind], 2, before, 0)
    receive.Start()
    send.Start()
    send.Pready_range(1, 2)
    send.Pready_list([0])
    arrives(receive, 1)
    early = v[3:] * x[:3]
    send.Wait()
    receive.Wait()
    free(send, receive)
    return early * v[:3] + v[3:]


def repeated(np, comm, x):
    """The requests are started repeatedly; the buffers change in between."""
    after, before = partners(comm)
    u, v = x * 1, np.zeros(6, x.dtype)
    send, receive = comm.Psend_init(u, 2, after, 1), comm.Precv_init(v, 6, before, 1)
    total = x * 0
    for _ in range(3):
        receive.Start()
        send.Start()
        send.Pready_range(0, 1)
        send.Wait()
        u *= u
        while not receive.Test():
            pass
        total = total * v + v
    free(send, receive)
    return total


def two_pairs_with_one_tag(np, comm, x):
    """Requests with one tag match in the order of their creation; ordinary messages do not interfere."""
    after, before = partners(comm)
    u, v = [x * x, x * x * x], [np.zeros(6, x.dtype) for _ in range(2)]
    sends = [comm.Psend_init(part, 2, after, 1) for part in u]
    receives = [comm.Precv_init(part, 2, before, 1) for part in v]
    w = np.zeros(6, x.dtype)
    ordinary = comm.Irecv(w, before, 1)
    MPI.Prequest.Startall(receives)
    MPI.Prequest.Startall(sends[::-1])
    for send in sends:
        send.Pready_range(0, 1)
    comm.Send(x, after, 1)
    MPI.Request.Waitall([ordinary, *sends, *receives])
    free(*sends, *receives)
    return v[0] * v[0] * v[1] + w


def ordinary_beside(np, comm, x):
    """Ordinary messages of the same sender and tag, posted and received after the partitioned one began."""
    after, before = partners(comm)
    u, v, w, z = x * x, np.zeros(6, x.dtype), np.zeros(6, x.dtype), np.zeros(6, x.dtype)
    send, receive = comm.Psend_init(u, 3, after, 1), comm.Precv_init(v, 2, before, 1)
    MPI.Prequest.Startall([receive, send])
    late = comm.Irecv(w, before, 1)
    comm.Send(x * x * x, after, 1)
    send.Pready(1)
    comm.Sendrecv(x, after, 2, recvbuf=z, source=MPI.ANY_SOURCE, recvtag=2)
    send.Pready_list([0, 2])
    MPI.Request.Waitall([send, late, receive])
    free(send, receive)
    return v * w + z * v


def constants_before(np, comm, x):
    """The first ready partition of a message is constant, and the last one is declared to be."""
    after, before = partners(comm)
    u, v = np.ones(6, x.dtype), np.zeros(6, x.dtype)
    send, receive = comm.Psend_init(u, 3, after, 4), comm.Precv_init(v, 2, before, 4)
    MPI.Prequest.Startall([receive, send])
    send.Pready(1)
    u[:2] = x[2:4] * x[2:4]
    u[4:] = x[4:] * x[4:]
    send.Pready(0)
    if np is ampi.numpy:
        with ampi.passive():
            send.Pready(2)
    else:
        u[4:] = u[4:].real
        send.Pready(2)
    arrives(receive, 1)
    early = v[3:] * x[:3]
    MPI.Request.Waitall([send, receive])
    free(send, receive)
    return v[:3] * early


PROGRAMS = (ring, other_partitions_there, repeated, two_pairs_with_one_tag, ordinary_beside, constants_before)


TWO = broken_in("Open MPI", "two partitioned messages with one tag, started in another order, never complete")
CASES = [pytest.param(program, marks=TWO if program is two_pairs_with_one_tag else ()) for program in PROGRAMS]


@pytest.mark.parametrize("program", CASES, ids=[program.__name__ for program in PROGRAMS])
def test_gradient(program):
    # Values declared constant change in differences of gradients.
    check(program, COMM_WORLD, WORLD, n=6, second=program is not constants_before)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_dtypes(dtype):
    check(other_partitions_there, COMM_WORLD, WORLD, n=6, dtype=dtype)


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_constants_overwrite():
    after, before = partners(WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(4, 2.0))
        v = x * x
        w = v * v
        send, receive = COMM_WORLD.Psend_init(numpy.ones(4), 2, after), COMM_WORLD.Precv_init(v, 2, before, 0)
        MPI.Prequest.Startall([send, receive])
        send.Pready_range(0, 1)
        arrives(receive, 0)
        MPI.Request.Waitall([send, receive])
        y = v + w
    free(send, receive)
    numpy.testing.assert_array_equal(ampi.value(y), numpy.full(4, 17.0))
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(4)), numpy.full(4, 32.0))


def test_started_before_the_tape():
    after, before = partners(WORLD)
    u = np.ones(2)
    send, receive = COMM_WORLD.Psend_init(u, 2, after), COMM_WORLD.Precv_init(numpy.zeros(2), 2, before, 0)
    MPI.Prequest.Startall([send, receive])
    with ampi.Tape() as tape:
        u[...] = tape.watch(1.0)
        with pytest.raises(ampi.ActivityError, match="started before"):
            send.Pready(0)
    send.Pready_range(0, 1)
    MPI.Request.Waitall([send, receive])
    free(send, receive)


def test_plain_receive_buffer_is_named():
    comm = COMM_WORLD.Dup()
    after, before = partners(WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        send, receive = comm.Psend_init(x, 2, after, 5), comm.Precv_init(numpy.zeros(2), 2, before, 5)
        MPI.Prequest.Startall([send, receive])
        send.Pready_range(0, 1)
        MPI.Request.Waitall([send, receive])
    with pytest.raises(ampi.CommunicationError, match=r"tag 5 .*not tracked"):
        tape.gradient(x, x, seed=numpy.ones(2))
    free(send, receive)
