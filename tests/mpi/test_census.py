"""What the census of a tape says of its sweep, against what the sweep says to MPI."""

import collections

import numpy
import pytest
from mpi4py import MPI as mpi

import ampi
import ampi.numpy as np
from ampi.mpi.reverse import COLLECTIVE_TAG, FIRST_TAG, reverse_of
from ampi.scaling.census import PRIMAL, SWEEP, Census

pytestmark = [pytest.mark.mpi, pytest.mark.filterwarnings("ignore:.*carries no derivative")]

OPS = {"sum": mpi.SUM, "max": mpi.MAX}


class Counting(mpi.Intracomm):
    """A reverse communicator that counts what goes over it, but for the agreement before a sweep."""

    def __new__(cls, comm):
        self = super().__new__(cls, comm)
        self.seen = collections.Counter()
        return self


def _counted(name, plain):
    method = getattr(mpi.Intracomm, name)

    def call(self, *arguments, **keywords):
        if not plain.endswith("end") and not plain.endswith("ceive"):
            self.seen[plain, 0] += 1
        elif arguments[2] >= FIRST_TAG or arguments[2] == COLLECTIVE_TAG:
            self.seen[plain, numpy.asarray(arguments[0]).nbytes] += 1
        return method(self, *arguments, **keywords)

    return call


NAMES = {
    "Isend": "send", "Irecv": "receive", "Ireduce": "Reduce", "Ibcast": "Bcast", "Iallreduce": "Allreduce",
    "Iscatterv": "Scatter", "Igatherv": "Gather", "Ireduce_scatter": "Reduce_scatter", "Iallgather": "Allgather",
    "Ialltoallv": "Alltoall", "Iexscan": "Exscan",
}  # fmt: skip
for _name, _plain in NAMES.items():
    setattr(Counting, _name, _counted(_name, _plain))


def ring(comm, x):
    y = np.zeros(x.size)
    comm.Sendrecv(x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size, 0)
    return y


def halo(comm, x):
    y = np.zeros(x.size)
    requests = []
    for k, other in enumerate((comm.rank - 1, comm.rank + 1)):
        if 0 <= other < comm.size:
            requests += [comm.Irecv(y[2 * k : 2 * k + 1], other), comm.Isend(x[k : k + 1].copy(), other)]
    ampi.MPI.Request.Waitall(requests)
    return y


def passive(comm, x):
    """Messages without derivatives have no adjoint."""
    y = numpy.zeros(2, int)
    comm.Sendrecv(numpy.ones(2, int), (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size, 0)
    return x * float(y[0])


def bcast(comm, x):
    y = x.copy()
    comm.Bcast(y, comm.size - 1)
    return y


def reduced(op):
    def program(comm, x):
        y = np.zeros(x.size)
        comm.Allreduce(x * (1 + comm.rank), y, OPS[op])
        return y

    return program


def reduce(comm, x):
    y = np.zeros(x.size)
    comm.Reduce(x, y, root=0)
    return y


def gather(comm, x):
    every, y = np.zeros(comm.size * x.size), np.zeros(x.size)
    comm.Gather(x, every)
    comm.Scatter(every, y)
    return y


def allgather(comm, x):
    every = np.zeros(comm.size * x.size)
    comm.Allgather(x, every)
    return every


def alltoall(comm, x):
    every = np.zeros(comm.size * x.size)
    for k in range(comm.size):
        every[k * x.size : (k + 1) * x.size] = x * k
    there = np.zeros(every.size)
    comm.Alltoall(every, there)
    return there


def reduce_scatter(comm, x):
    y = np.zeros(1)
    comm.Reduce_scatter_block(np.ones(comm.size) * x[0], y)
    return y


PROGRAMS = {
    "ring": ring, "halo": halo, "passive": passive, "bcast": bcast, "sum": reduced("sum"), "max": reduced("max"),
    "reduce": reduce, "gather": gather, "allgather": allgather, "alltoall": alltoall, "reduce_scatter": reduce_scatter,
}  # fmt: skip


def swept(program):
    """What the census says of the sweep of a program, by operation and (of messages) bytes; what the sweep says to MPI;
    and all that the census has counted."""
    comm = ampi.COMM_WORLD.Dup()
    census = Census()
    census.start()
    try:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.arange(1.0, 4.0))
            loss = np.sum(program(comm, x) ** 2)
    finally:
        census.stop()
    reverse = reverse_of(comm)
    reverse.comm = counting = Counting(reverse.comm)
    tape.gradient(loss, x)
    expected = collections.Counter()
    for key, count in census.counts.items():
        if key.phase == SWEEP:
            message = key.operation in ("send", "receive")
            nbytes = (count.sent + count.received) // count.calls if message else 0
            expected[key.operation, nbytes] += count.calls
    comm.Free()
    return expected, +counting.seen, census.counts


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sweep_says_what_the_census_says(name):
    expected, seen, counts = swept(PROGRAMS[name])
    if ampi.COMM_WORLD.size > 1 and name != "passive":
        assert expected
    assert seen == expected
    sizes = {(key.line, key.phase): (count.sent, count.received) for key, count in counts.items()}
    for (line, phase), (sent, received) in sizes.items():
        if phase == PRIMAL and (line, SWEEP) in sizes and name in ("bcast", "sum", "allgather", "alltoall", "gather"):
            assert sizes[line, SWEEP] == (received, sent)


SCANNED = {"sum": mpi.SUM, "prod": mpi.PROD, "max": mpi.MAX, "min": mpi.MIN}


@pytest.mark.parametrize("op", SCANNED)
@pytest.mark.parametrize("form", ["Scan", "Iscan", "Scan_init", "Exscan", "Iexscan", "Exscan_init"])
def test_scans(form, op):
    """Of SUM the sweep sends a logarithmic number of messages, which the census says in a word."""

    def program(comm, x):
        y = np.zeros(x.size)
        request = getattr(comm, form)(x * (1 + comm.rank), y, SCANNED[op])
        if form.endswith("_init"):
            request.Start()
        if request is not None:
            request.Wait()
        return y

    expected, seen, _ = swept(program)
    if ampi.COMM_WORLD.size == 1 and "xscan" in form.lower():
        assert not expected and not seen  # nothing is received
    elif op == "sum":
        assert set(expected) == {("suffix sums", 0)} and {what for what, _ in seen} <= {"send", "receive"}
        assert set(expected.values()) == {1}
    else:
        assert seen == expected and expected["Exscan", 0] == 1
