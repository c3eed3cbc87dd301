"""Point-to-point messages: programs whose gradients are compared with the complex step."""

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, check, typeof
from rings import around, like

import ampi

pytestmark = pytest.mark.mpi


# ------------------------------------------------------------------------------------------------------ send modes


@pytest.mark.parametrize("mode", ["Send", "Ssend", "Bsend", "Rsend"])
def test_blocking_modes(mode):
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x)
        request = comm.Irecv(v, before, 3)
        if mode == "Rsend":
            comm.Barrier()
        getattr(comm, mode)(u, after, 3)
        request.Wait()
        u[...] = 0.0
        return v * v * x

    attached = MPI.Alloc_mem(1 << 16)
    MPI.Attach_buffer(attached)
    try:
        check(program, ampi.COMM_WORLD, WORLD)
    finally:
        MPI.Detach_buffer()


@pytest.mark.parametrize("mode", ["Isend", "Issend", "Ibsend", "Irsend"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_nonblocking_modes(mode, dtype):
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x)
        requests = [comm.Irecv(v, before, 3)]
        if mode == "Irsend":
            comm.Barrier()
        requests.append(getattr(comm, mode)([u, typeof(u)], after, 3))
        MPI.Request.Waitall(requests)
        u[...] = 0.0
        return v * v * x

    attached = MPI.Alloc_mem(1 << 16)
    MPI.Attach_buffer(attached)
    try:
        check(program, ampi.COMM_WORLD, WORLD, dtype=dtype)
    finally:
        MPI.Detach_buffer()


@pytest.mark.mpi(min_size=2)
def test_both_send_first():
    """The program relies on buffering: the reverse sweep must not need more."""

    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x)
        for k in range(5):
            comm.Send(u, after, k)
        for k in range(5):
            comm.Recv(v, before, k)
            u = u * v
        return u

    check(program, ampi.COMM_WORLD, WORLD)


def test_to_itself():
    def program(np, comm, x):
        v = like(np, x)
        request = comm.Isend(x * x, comm.rank, 1)
        comm.Recv(v, comm.rank, 1)
        request.Wait()
        return v * x

    check(program, ampi.COMM_WORLD, WORLD)
    check(program, ampi.COMM_SELF, MPI.Intracomm(MPI.COMM_SELF))


def test_proc_null():
    """A line instead of a ring."""

    def program(np, comm, x):
        after = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
        before = comm.rank - 1 if comm.rank else MPI.PROC_NULL
        u, v, w = x * x, x * 2.0, x * 3.0
        comm.Sendrecv(u, after, 0, v, before, 0)
        request = comm.Irecv(w, after)
        comm.Isend(u, before).Wait()
        request.Wait()
        comm.Send(u, MPI.PROC_NULL)
        comm.Recv(u, MPI.PROC_NULL)
        comm.Sendrecv_replace(u, MPI.PROC_NULL, 0, MPI.PROC_NULL)
        return u * v * w

    check(program, ampi.COMM_WORLD, WORLD)


def test_zero_length():
    def program(np, comm, x):
        after, before = around(comm)
        v = x * 1.0
        comm.Sendrecv(x[:0], after, 1, v[3:], before, 1)
        comm.Sendrecv([x, 0], after, 1, [v, 0, typeof(v)], before, 1)
        return v * v

    check(program, ampi.COMM_WORLD, WORLD)


def test_short_receive():
    """The message is shorter than its buffer: the rest keeps its value and its adjoint."""

    def program(np, comm, x):
        after, before = around(comm)
        v = x * x
        requests = [comm.Irecv(v, before, 7), comm.Isend(x[:1], after, 7)]
        MPI.Request.Waitall(requests)
        w = v * v
        request = comm.Isend(x[1:], after, 8)
        comm.Recv(v, before, 8)
        request.Wait()
        return v * w

    check(program, ampi.COMM_WORLD, WORLD)


# ------------------------------------------------------------------------------------------------------- exchanges


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_short_message_without_derivatives(length, nonblocking):
    """The rest of the buffer keeps its adjoint."""

    def program(np, comm, x):
        after, before = around(comm)
        v = x * x
        if nonblocking:
            request = comm.Irecv(v, before)
            comm.Send(numpy.ones(length, x.dtype), after)
            request.Wait()
        else:
            comm.Sendrecv(numpy.ones(length, x.dtype), after, 0, v, before)
        return v

    check(program, ampi.COMM_WORLD, WORLD)


@pytest.mark.parametrize("nonblocking", [False, True])
def test_sendrecv(nonblocking):
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x)
        if nonblocking:
            comm.Isendrecv(u, after, comm.rank, v, before, before).Wait()
        else:
            comm.Sendrecv(u, after, comm.rank, recvbuf=v, source=before, recvtag=before)
        return v * u

    check(program, ampi.COMM_WORLD, WORLD)


@pytest.mark.parametrize("nonblocking", [False, True])
def test_sendrecv_replace_in_a_ring_with_distinct_tags(nonblocking):
    def program(np, comm, x):
        after, before = around(comm)
        u = x * x
        w = u * u  # needs u's old value
        for turn in range(3):
            if nonblocking:
                comm.Isendrecv_replace(u, after, 10 * turn + comm.rank, before, 10 * turn + before).Wait()
            else:
                comm.Sendrecv_replace(u, after, 10 * turn + comm.rank, before, 10 * turn + before)
            w = w * u
        return w

    check(program, ampi.COMM_WORLD, WORLD)


def test_sendrecv_with_wildcards():
    def program(np, comm, x):
        after, _ = around(comm)
        u, v = x * x, like(np, x)
        comm.Sendrecv(u, after, comm.rank, v, MPI.ANY_SOURCE, MPI.ANY_TAG)
        comm.Sendrecv_replace(v, after, comm.rank)
        return v * u

    check(program, ampi.COMM_WORLD, WORLD)


def test_tags_that_depend_on_the_rank():
    def program(np, comm, x):
        v = like(np, x, (comm.size, x.size))
        requests = [comm.Irecv(v[source], source, 100 * source + comm.rank) for source in range(comm.size)]
        requests += [comm.Isend(x, dest, 100 * comm.rank + dest) for dest in range(comm.size)]
        MPI.Request.Waitall(requests)
        return v * v * np.arange(1.0, comm.size + 1)[:, None]

    check(program, ampi.COMM_WORLD, WORLD)


# -------------------------------------------------------------------------------------------------------- matching


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_messages_of_one_tag_waited_for_in_another_order(order):
    def program(np, comm, x):
        after, before = around(comm)
        u = [x * k for k in (1.0, 2.0, 3.0)]
        v = [like(np, x) for _ in range(3)]
        receives = [comm.Irecv(b, before, 5) for b in v]
        sends = [comm.Isend(b, after, 5) for b in u]
        for k in order:
            receives[k].Wait()
        for k in reversed(order):
            sends[k].Wait()
        return v[0] * v[1] * v[1] * v[2] * v[2] * v[2]

    check(program, ampi.COMM_WORLD, WORLD)


def test_two_tags_received_in_the_other_order():
    def program(np, comm, x):
        after, before = around(comm)
        v, w = like(np, x), like(np, x)
        requests = [comm.Isend(x * 1.0, after, 1), comm.Isend(x * x, after, 2)]
        comm.Recv(w, before, 2)
        comm.Recv(v, before, 1)
        MPI.Request.Waitall(requests)
        return v * w * w

    check(program, ampi.COMM_WORLD, WORLD)


def test_a_wildcard_among_named_receives():
    """Messages of one tag go to the receives in the order of posting, whichever of them has a wildcard."""

    def program(np, comm, x):
        after, before = around(comm)
        v = [like(np, x) for _ in range(3)]
        requests = [comm.Irecv(v[0], before, 4), comm.Irecv(v[1], before, MPI.ANY_TAG), comm.Irecv(v[2], before, 4)]
        requests += [comm.Isend(x * k, after, 4) for k in (1.0, 2.0, 3.0)]
        MPI.Request.Waitall(requests)
        return v[0] + v[1] * v[1] + v[2] * v[2] * v[2]

    check(program, ampi.COMM_WORLD, WORLD)


def test_blocking_wildcards():
    """The order of arrival is not known, but the result does not depend on it."""

    def program(np, comm, x):
        v, status = like(np, x), MPI.Status()
        y = x * 1.0
        requests = [comm.Isend(x, dest, comm.rank) for dest in range(comm.size)]
        for turn in range(comm.size):
            if turn % 2:
                comm.Recv(v)
                y = y * v
            else:
                comm.Recv(v, MPI.ANY_SOURCE, MPI.ANY_TAG, status)
                assert status.source == status.tag
                y = y * v
        MPI.Request.Waitall(requests)
        comm.Barrier()  # what the next run sends must not be received in this one
        return y

    check(program, ampi.COMM_WORLD, WORLD)


def test_probed():
    def program(np, comm, x):
        status = MPI.Status()
        y = x * 1.0
        requests = [comm.Isend(x[: 1 + comm.rank % 2], dest, comm.rank) for dest in range(comm.size)]
        for _ in range(comm.size):
            comm.Probe(status=status)
            v = like(np, x, status.Get_count(typeof(x)))
            comm.Recv(v, status.source, status.tag)
            y[: v.size] *= v
        MPI.Request.Waitall(requests)
        comm.Barrier()  # what the next run sends must not be received in this one
        return y

    check(program, ampi.COMM_WORLD, WORLD)


@pytest.mark.parametrize("nonblocking", [False, True])
@pytest.mark.parametrize("receive", ["Recv", "Irecv"])
def test_matched_probes(nonblocking, receive):
    def probe(comm):
        if not nonblocking:
            return comm.Mprobe()
        while (message := MPI.Message.Iprobe(comm)) is None:
            pass
        return message

    def program(np, comm, x):
        y = x * 1.0
        requests = [comm.Isend(x, dest, comm.rank) for dest in range(comm.size)]
        messages = [probe(comm) for _ in range(comm.size)]
        for message in reversed(messages):
            v = like(np, x)
            if receive == "Recv":
                message.Recv(v)
            else:
                message.Irecv(v).Wait()
            y = y * v * v
        MPI.Request.Waitall(requests)
        comm.Barrier()  # what the next run sends must not be received in this one
        return y

    check(program, ampi.COMM_WORLD, WORLD)


def test_many_messages_in_flight():
    def program(np, comm, x):
        after, before = around(comm)
        v = like(np, x, (200, x.size))
        y = x * 1.0
        requests = [comm.Irecv(v[k], before, k % 3) for k in range(200)]
        requests += [comm.Isend(x, after, k % 3) for k in range(200)]
        MPI.Request.Waitall(requests)
        for k in (0, 77, 199):
            y = y * v[k]
        return y

    check(program, ampi.COMM_WORLD, WORLD, n=2)
