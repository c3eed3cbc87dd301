"""`mpi4py.util.pkl5` on ampi's communicators, compared with the complex step; and mpi4py's other utilities."""

import numpy
import pytest
import test_objects as objects
from mpi4py import MPI
from mpi4py.util import dtlib, pkl5
from programs import WORLD, check

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi


def matched_probes(np, comm, u):
    right, left = objects.neighbors(comm)
    going = [comm.isend([u], right, 5), comm.issend((u * u, "b"), right, 6)]
    second = comm.mprobe(source=MPI.ANY_SOURCE, tag=6)
    first = None
    while first is None:
        first = comm.improbe(left, MPI.ANY_TAG)
    request = second.irecv()
    a = first.recv()[0]
    (b, _), *_ = pkl5.Request.waitall([request])
    pkl5.Request.waitall(going)
    return a * a + b


def nonblocking_receive(np, comm, u):
    right, left = objects.neighbors(comm)
    going = comm.isend({"big": u * u, "small": u[0]}, right)
    came = comm.mprobe(left).irecv().wait()
    going.wait()
    return came["big"] * came["small"]


def buffered(np, comm, u):
    right, left = objects.neighbors(comm)
    room = bytearray(1 << 14)
    MPI.Attach_buffer(room)
    comm.bsend([u], right)
    request = comm.ibsend(u * u, right)
    came = comm.recv(source=left)[0] * comm.recv(source=left)
    request.wait()
    MPI.Detach_buffer()
    return came


def buffers_as_well(np, comm, u):
    right, left = objects.neighbors(comm)
    v = np.zeros_like(u)
    comm.Sendrecv(u * u, right, recvbuf=v, source=left)
    duplicate = comm.Dup()
    w = duplicate.bcast(v * u, 0) * u
    duplicate.Free()
    return w


CASES = (
    *(objects.ring, objects.blocking_sends, objects.exchange, objects.bcast, objects.gather, objects.scatter),
    *(objects.allgather, objects.alltoall, objects.reduce, objects.allreduce, objects.scan, objects.exscan),
    *(matched_probes, nonblocking_receive, buffered, buffers_as_well),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_gradient(case):
    comm, plain = pkl5.Intracomm(COMM_WORLD.Dup()), pkl5.Intracomm(WORLD.Dup())
    assert isinstance(comm, pkl5.Intracomm) and isinstance(comm, ampi.Intracomm)
    assert type(plain) is pkl5.Intracomm
    check(lambda np, comm, x: case(np, comm, x * x), comm, plain, n=6)
    comm.Free()
    plain.Free()


def test_intercommunicator():
    if WORLD.size == 1:
        pytest.skip("needs two groups")
    from test_intercommunicators import halves, objects_allgather, objects_bcast

    comm, plain = pkl5.Intercomm(halves(COMM_WORLD)), pkl5.Intercomm(halves(WORLD))
    for case in (objects_bcast, objects_allgather):
        check(case, comm, plain, n=6)
    comm.Free()
    plain.Free()


def test_null_and_nothing():
    assert pkl5.Intracomm() == MPI.COMM_NULL
    comm = pkl5.Intracomm(COMM_WORLD)
    with ampi.Tape():
        comm.send(1, MPI.PROC_NULL)
        assert comm.recv(source=MPI.PROC_NULL) is None
        assert comm.mprobe(MPI.PROC_NULL).recv() is None
        with pytest.raises(RuntimeError, match="unsupported"):
            comm.irecv()


def test_datatypes_of_dtypes():
    """A datatype that dtlib makes of a structured dtype."""
    dtype = numpy.dtype([("n", "i4"), ("v", "f8", (2,))], align=True)
    datatype = dtlib.from_numpy_dtype(dtype).Commit()
    right, left = objects.neighbors(WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones((3, 2)))
        u, w = np.zeros(3, dtype), np.zeros(3, dtype)
        u["v"], u["n"] = x * x, WORLD.rank
        COMM_WORLD.Sendrecv([u, datatype], right, 0, [w, datatype], left, 0)
        y = w["v"] * 2.0
    datatype.Free()
    assert (w["n"] == left).all()
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones((3, 2))), numpy.full((3, 2), 4.0))
