"""Memory of messages: overwritten, strided, shared, freed, constant."""

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, check, typeof
from rings import around, like

import ampi

pytestmark = pytest.mark.mpi


# ---------------------------------------------------------------------------------------------------------- memory


def test_receive_overwrites_what_an_earlier_operation_needs():
    def program(np, comm, x):
        after, before = around(comm)
        u = x * x
        y = u * u * u
        comm.Sendrecv(x, after, 0, u, before, 0)
        y = y * u
        request = comm.Irecv(u, before, 1)
        comm.Send(y, after, 1)
        request.Wait()
        return y * u

    check(program, ampi.COMM_WORLD, WORLD)


def test_same_buffer_received_twice():
    """Only the second message's values are used."""

    def program(np, comm, x):
        after, before = around(comm)
        v = x * 2.0
        comm.Sendrecv(x * x, after, 0, v, before, 0)
        comm.Sendrecv(x * x * x, after, 0, v, before, 0)
        return v * v

    check(program, ampi.COMM_WORLD, WORLD)


def test_one_buffer_sent_several_times_and_overlapping_views():
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x, (4, 2))
        requests = [comm.Irecv(v[k], before, k) for k in range(4)]
        views = (u[:2], u[:2], u[1:], u[1:])
        requests += [comm.Isend(view, after, k) for k, view in enumerate(views)]
        MPI.Request.Waitall(requests)
        return v * v * np.arange(1.0, 5.0)[:, None]

    check(program, ampi.COMM_WORLD, WORLD)


def test_scalar_sent_many_times():
    def program(np, comm, x):
        after, before = around(comm)
        s, r = np.sum(x * x), np.zeros((), x.dtype)
        y = x * 1.0
        for turn in range(4):
            request = comm.Isend(s, after, turn)
            comm.Recv(r, before, turn)
            request.Wait()
            y = y * r
        return y

    check(program, ampi.COMM_WORLD, WORLD)


def test_strided_datatypes():
    """Gaps are left alone; the datatypes are freed before the sweep."""

    def program(np, comm, x):
        after, before = around(comm)
        a = np.zeros((4, 3), x.dtype)
        a[...] = x * x
        b = a * 2.0
        c = b * b
        column = typeof(x).Create_vector(4, 1, 3).Commit()
        block = typeof(x).Create_subarray([4, 3], [2, 2], [1, 1]).Commit()
        request = comm.Irecv([b, 1, column], before, 2)
        comm.Send([a, 4, typeof(x)], after, 2)
        request.Wait()
        c = c * b
        request = comm.Isend([a, 1, column], after, 3)
        comm.Recv([b, 1, block], before, 3)
        request.Wait()
        column.Free()
        block.Free()
        return b * c

    check(program, ampi.COMM_WORLD, WORLD)


def test_fortran_order_and_bytes():
    """Arrays are sent in memory order, also as bytes."""

    def program(np, comm, x):
        after, before = around(comm)
        u = np.array(np.ones((2, 3), x.dtype) * x, order="F")
        v = np.zeros((2, 3), x.dtype)
        w = like(np, x)
        comm.Sendrecv(u, after, 0, v, before, 0)
        comm.Sendrecv([x, MPI.BYTE], after, 1, [w, x.nbytes, MPI.BYTE], before, 1)
        return v * v * w

    check(program, ampi.COMM_WORLD, WORLD)


def test_buffers_freed_before_the_sweep():
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x)
        requests = [comm.Irecv(v, before), comm.Isend(u, after)]
        MPI.Request.Waitall(requests)
        y = v * 2.0
        del u, v, requests
        return y * x

    check(program, ampi.COMM_WORLD, WORLD)


def test_the_same_arrays_again_and_again():
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, like(np, x)
        y = x * x
        for k in range(4):
            comm.Sendrecv(u, after, k, v, before, k)
            y = y * v
            u[...] = v * x
            requests = [comm.Irecv(v, before, k), comm.Isend(u, after, k)]
            MPI.Request.Waitall(requests)
            y = y + v * u
        return y

    check(program, ampi.COMM_WORLD, WORLD)


def test_one_array_to_both_sides_on_two_communicators():
    """Facts remembered from the array's latest message must not be used for the next ones."""
    other = ampi.COMM_WORLD.Dup()
    plain_other = WORLD.Dup()

    def program(np, comm, x):
        after, before = around(comm)
        second = plain_other if np is numpy else other
        u, v, w = x * x, like(np, x), like(np, x)
        y = x * x
        for k in range(3):
            for place, (dest, source) in (comm, (after, before)), (second, (before, after)), (comm, (before, after)):
                place.Sendrecv(u, dest, k, v, source)
                y = y * v
                u[...] = v * x
                requests = [place.Irecv(v, source, k), place.Isend(u, dest, k), place.Irecv(w, source, 7 + k)]
                place.Send(y, dest, 7 + k)
                MPI.Request.Waitall(requests)
                y = y + v * w
        return y

    check(program, ampi.COMM_WORLD, WORLD)
    other.Free()
    plain_other.Free()


@pytest.mark.parametrize("mode", ["Send", "Isend"])
def test_large_messages_again_and_again(mode):
    """They are recorded while in flight; receives are tested, not waited for."""

    def program(np, comm, x):
        after, before = around(comm)
        u, v = np.concatenate([x * x, x]), np.zeros(2 * x.size, x.dtype)
        for k in range(3):
            request = comm.Irecv(v, before, k)
            started = getattr(comm, mode)(u, after, k)
            while not request.Test():
                pass
            if started is not None:
                started.Wait()
            u[...] = u * v / 2.0
        return u[: x.size]

    check(program, ampi.COMM_WORLD, WORLD, n=5000)


def test_the_line_of_each_message_is_known():
    """For messages that differ only in the line or the method."""
    comm = ampi.COMM_WORLD.Dup()
    after, before = around(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        for send in comm.Send, comm.Ssend:
            requests = [comm.Irecv(numpy.zeros(2), before) for _ in range(3)]
            for _ in range(2):
                send(x, after)
            send(x, after)
            MPI.Request.Waitall(requests)
    with pytest.raises(ampi.CommunicationError) as caught:
        tape.gradient(x, x, seed=numpy.ones(2))
    sent = [line for line in str(caught.value).splitlines() if " carries a derivative, but " in line]
    first = test_the_line_of_each_message_is_known.__code__.co_firstlineno + 9
    for name, line, message in zip(["Send"] * 3 + ["Ssend"] * 3, [first, first, first + 1] * 2, sent, strict=True):
        assert f": {name} to " in message
        assert f":{line} " in message


def test_halo_rows_do_not_save_the_field():
    n = 1000

    def program(np, comm, x):
        after, before = around(comm)
        field = np.zeros((4, n), x.dtype)
        field[1:3] = x[0]
        y = field * field
        for _ in range(3):
            comm.Sendrecv(field[2], after, 0, field[0], before, 0)
            y = y + field * field
        return np.sum(y, axis=1)

    tape = check(program, ampi.COMM_WORLD, WORLD)
    assert tape.saved_bytes <= 3 * 8 * n


def test_integers_in_between():
    """Messages that cannot carry derivatives are only counted."""

    def program(np, comm, x):
        after, before = around(comm)
        k, v = numpy.array([comm.rank]), like(np, x)
        comm.Sendrecv_replace(k, after, 0, before, 0)
        comm.Sendrecv(x, after, 0, v, before, 0)
        comm.Sendrecv_replace(k, after, 0, before, 0)
        return v * v * float(1 + k[0])

    check(program, ampi.COMM_WORLD, WORLD)


@pytest.mark.mpi(min_size=2)
def test_rank_without_input_and_output():
    """The last rank only passes on what it receives."""

    def program(np, comm, x):
        last = comm.size - 1
        if comm.rank == last:
            v = like(np, x)
            for source in range(last):
                comm.Recv(v, source)
                comm.Send(v, source, 1)
            return None
        v = like(np, x)
        comm.Send(x * x, last)
        comm.Recv(v, last, 1)
        return v * x

    check(program, ampi.COMM_WORLD, WORLD)


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_constants_overwrite():
    """An inactive message makes what it overwrites constant."""

    def program(np, comm, x):
        after, before = around(comm)
        v = x * x
        y = v * v
        comm.Sendrecv(numpy.ones(x.size, x.dtype), after, 0, v, before, 0)
        return y * v * x

    check(program, ampi.COMM_WORLD, WORLD)


def test_receive_after_the_tape():
    """A receive into memory that a closed tape needs keeps the old values for it."""
    comm = ampi.COMM_WORLD
    after, before = around(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([3.0]))
        y = x * x
    request = comm.Irecv(x, before)
    comm.Send(numpy.array([7.0]), after)
    request.Wait()
    assert x[0] == 7
    assert tape.gradient(y, x) == [6.0]
    assert x[0] == 7
    comm.Sendrecv_replace(x, after, 0, before)
    assert tape.gradient(y, x) == [6.0]


def test_passive():
    comm = ampi.COMM_WORLD
    after, before = around(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([3.0]))
        v = x * x
        plain = numpy.zeros(1)
        with ampi.passive():
            comm.Sendrecv(x, after, 0, v, before, 0)
            comm.Sendrecv(x, after, 0, plain, before, 0)
        y = v * x * plain[0]
    assert tape.gradient(y, x) == [9.0]
