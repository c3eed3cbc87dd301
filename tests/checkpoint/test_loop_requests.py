"""Requests and epochs that are open between the steps of a time loop: right, or an error that says what to do."""

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD as COMM

AFTER, BEFORE = (COMM.rank + 1) % COMM.size, (COMM.rank - 1) % COMM.size
X = numpy.array([0.3, 0.7, 1.1]) + 0.1 * COMM.rank


def begun(u, came):
    return [COMM.Irecv(came, BEFORE, 7), COMM.Isend(u.copy(), AFTER, 7)]


def in_the_state(x, loop):
    s = {"u": np.array(x), "came": np.zeros(3), "requests": []}

    def step(s):
        ampi.MPI.Request.Waitall(s["requests"])
        s["u"] += 0.1 * s["came"]
        s["came"] = np.zeros(3)
        s["requests"] = begun(s["u"], s["came"])

    s = loop(step, s)
    ampi.MPI.Request.Waitall(s["requests"])
    return np.sum(s["u"] * s["came"])


def beside_the_state(x, loop):
    u, came, requests = np.array(x), np.zeros(3), []

    def step(u):
        ampi.MPI.Request.Waitall(requests)
        u += 0.1 * came
        requests[:] = begun(u, came)

    u = loop(step, u)
    ampi.MPI.Request.Waitall(requests)
    return np.sum(u * came)


def begun_before(x, loop):
    u, came = np.array(x), np.zeros(3)
    requests = begun(np.sin(u), came)

    def step(u):
        ampi.MPI.Request.Waitall(requests)
        del requests[:]
        u += 0.1 * came * u

    return np.sum(loop(step, u))


def an_epoch(x, loop):
    s = {"u": np.array(x), "window": None, "memory": None}

    def step(s):
        if s["window"] is not None:
            s["window"].Fence()
            s["u"] += 0.1 * s["memory"]
            s["window"].Free()
        s["memory"] = np.zeros(3)
        s["window"] = ampi.MPI.Win.Create(s["memory"], comm=COMM)
        s["window"].Fence()
        s["window"].Put(s["u"].copy(), AFTER)

    try:
        return np.sum(loop(step, s)["u"])
    finally:
        s["window"].Fence()
        s["window"].Free()


def a_collective(x, loop):
    """One whose request is waited for in the next step."""
    u, sums, requests = np.array(x), np.zeros(3), []

    def step(u):
        ampi.MPI.Request.Waitall(requests)
        u += 0.1 * sums
        requests[:] = [COMM.Iallreduce(u.copy(), sums)]

    try:
        return np.sum(loop(step, u))
    finally:
        ampi.MPI.Request.Waitall(requests)


REFUSED = {
    a_collective: r"Iallreduce on .*has not completed at the end of the step.*wait for its request in this step",
    in_the_state: r"test_loop_requests.py:\d+: ampi.timeloop: Irecv from .*has not completed at the end of the step",
    beside_the_state: r"Irecv from .*has not completed at the end of the step.*wait for its request in this step",
    begun_before: r"Irecv from .*was started before the loop and completed in one of its steps",
    an_epoch: r"at the end of a step, .*epoch.*each with whole epochs",
}


@pytest.mark.mpi
@pytest.mark.parametrize("program", REFUSED)
def test_what_is_open_between_steps_is_named(program):
    def by_loop(step, state):
        return ampi.timeloop(step, state, 6, checkpoints=2)

    with pytest.raises(ampi.CommunicationError, match=REFUSED[program]):
        ampi.grad(lambda x: program(x, by_loop))(X)


def through_the_loop(x, loop):
    u, came = np.array(x), np.zeros(3)
    requests = begun(np.sin(u), came)

    def step(u):
        u *= 1.0 - 0.05 * u

    u = loop(step, u)
    ampi.MPI.Request.Waitall(requests)
    return np.sum(u * came)


def sent_before(x, loop):
    """A send whose request is waited for in the next step: what it sends has come before."""
    u, requests = np.array(x), []

    def step(u):
        ampi.MPI.Request.Waitall(requests)
        came = np.zeros(3)
        requests[:] = [COMM.Isend(u.copy(), AFTER, 7)]
        COMM.Recv(came, BEFORE, 7)
        u += 0.1 * came

    u = loop(step, u)
    ampi.MPI.Request.Waitall(requests)
    return np.sum(u)


@pytest.mark.mpi
@pytest.mark.parametrize("program", [through_the_loop, sent_before])
def test_what_may_be_open(program):
    def plainly(step, state):
        for _ in range(6):
            step(state)
        return state

    found = ampi.grad(lambda x: program(x, lambda *a: ampi.timeloop(*a, 6, checkpoints=2)))(X)
    numpy.testing.assert_array_equal(found, ampi.grad(lambda x: program(x, plainly))(X))


def along(comm, u):
    came = np.zeros(3)
    comm.Sendrecv(u, AFTER, recvbuf=came, source=BEFORE)
    u += 0.1 * came


def along_typed(comm, datatype, u):
    comm.Sendrecv_replace([u, 1, datatype], AFTER, source=BEFORE)


def sum_by(comm, op, u):
    total = np.zeros(3)
    comm.Allreduce(u, total, op)
    u += 0.1 * total


@ampi.kernel
def added(a, b):
    for i in range(len(a)):
        b[i] = a[i] + b[i]


FREED = {
    "communicator": (lambda comm: comm.Dup(), lambda _, comm, u: along(comm, u)),
    "topology": (lambda comm: comm.Create_cart([comm.size], [True]), lambda _, comm, u: along(comm, u)),
    "datatype": (lambda _: ampi.MPI.DOUBLE.Create_vector(2, 1, 2).Commit(), along_typed),
    "datatype of a collective": (
        lambda _: ampi.MPI.DOUBLE.Create_contiguous(2).Commit(),
        lambda comm, datatype, u: comm.Bcast([u, 1, datatype]),
    ),
    "group": (lambda comm: comm.Get_group(), lambda comm, group, u: along(comm.Create(group), u)),
    "operation": (lambda _: ampi.MPI.Op.Create(added, commute=True), sum_by),
}


@pytest.mark.mpi
@pytest.mark.parametrize("kind", FREED)
def test_what_the_program_frees_after_the_loop_is_named(kind):
    make, use = FREED[kind]
    comm = COMM.Dup()  # which cannot be swept any more afterwards

    def final(x):
        thing, u = make(comm), np.array(x)

        def step(u):
            use(comm, thing, u)
            u *= 1.0 - 0.05 * u

        u = ampi.timeloop(step, u, 6, checkpoints=2)
        thing.Free()
        return np.sum(u**2)

    named = {"topology": "communicator", "operation": "MPI.OP_NULL.*"}.get(kind, kind.split()[0])
    with pytest.raises(ampi.errors.AmpiError, match=f"{named}.*freed.*free it after the gradient"):
        ampi.grad(final)(X)
