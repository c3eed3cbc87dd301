"""Requests that are cancelled, never completed, or completed unseen."""

import gc

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in, check
from request_programs import Original, around

import ampi
from ampi.mpi.log.reverse import AGREEMENT_TAG, reverse_of
from ampi.mpi.waiting.notices import STOPPED_TAG

pytestmark = pytest.mark.mpi

Request = MPI.Request


# -------------------------------------------------------------------------------------------------- what goes wrong


def test_receive_that_is_never_completed(comm):
    after, before = around(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        v = ampi.numpy.zeros(2)
        receive = comm.Irecv(v, before, 6)
        send = comm.Isend(x, after, 6)
        send.Wait()
    with pytest.raises(
        ampi.CommunicationError,
        match=rf"Irecv from rank {before} with tag 6 .*test_unfinished_requests.py:\d+ was never completed",
    ):
        tape.gradient(x, x, seed=numpy.ones(2))
    receive.Wait()


def test_receive_completed_after_the_tape():
    comm = ampi.COMM_WORLD
    after, before = around(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, comm.rank + 2.0))
        v = ampi.numpy.zeros(2)
        requests = [comm.Irecv(v), comm.Isend(x * x, after)]
    MPI.Request.Waitall(requests)
    assert tape.gradient(v, x, seed=numpy.ones(2)) == pytest.approx(2 * (comm.rank + 2.0))
    assert v[0] == (before + 2.0) ** 2


def ask_all(requests):
    while not MPI.Request.Get_status_all(requests):
        pass
    MPI.Request.Waitall(requests)


def ask_any(requests):
    while requests:
        index, flag = MPI.Request.Get_status_any(requests)
        if flag:
            requests.pop(index).Wait()


def ask_some(requests):
    left = list(requests)
    while left:
        for index in sorted(MPI.Request.Get_status_some(left) or (), reverse=True):
            left.pop(index).Wait()


@broken_in("Open MPI", "has no Get_status_all, Get_status_any and Get_status_some")
@pytest.mark.parametrize("ask", [ask_all, ask_any, ask_some])
@pytest.mark.parametrize("source", [None, MPI.ANY_SOURCE])
def test_tested_before_waiting(ask, source):
    def program(np, comm, x):
        after, before = around(comm)
        v, w = np.zeros(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
        wanted = before if source is None else source
        ask([comm.Irecv(v, wanted, 1), comm.Irecv(w, wanted, 2), comm.Isend(x * x, after, 2), comm.Isend(x, after, 1)])
        return v * w

    check(program, ampi.COMM_WORLD, WORLD)


def test_generalized_requests_pass():
    done = []
    request = MPI.Grequest.Start(lambda status: done.append("asked"), lambda: done.append("freed"), lambda flag: None)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        v = ampi.numpy.zeros(1)
        after, before = around(ampi.COMM_WORLD)
        request.Complete()
        MPI.Request.Waitall([request, ampi.COMM_WORLD.Irecv(v, before), ampi.COMM_WORLD.Isend(x * x, after)])
        y = v * 3.0
    assert done == ["asked", "freed"]
    assert tape.gradient(y, x, seed=[1.0]) == 6.0


def test_cancelled_send():
    """MPI decides whether the send is cancelled: a cancelled message carries nothing, any other is as usual."""
    after, before = around(ampi.COMM_WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, 3.0))
        v = ampi.numpy.zeros(2)
        request = ampi.COMM_WORLD.Isend(x * x, after, 1)
        request.Cancel()
        status = MPI.Status()
        request.Wait(status)
        gone = WORLD.sendrecv(status.Is_cancelled(), after, 77, source=before, recvtag=77)
        if not gone:
            ampi.COMM_WORLD.Recv(v, before, 1)
        y = v + x
    expected = 1.0 if status.Is_cancelled() else 7.0
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(2)), expected)


def test_a_message_that_comes_short_leaves_the_rest_alone():
    def program(np, comm, x):
        after, before = around(comm)
        v = x * x
        request = comm.Isend(numpy.ones(1) if comm.rank % 2 else x[:1], after, 1)
        comm.Recv([v, MPI._typedict[x.dtype.char]], before, 1)
        request.Wait()
        return v * x

    def plain(np, comm, x):
        return program(np, comm, x) if np is not numpy else _as_complex(comm, x)

    def _as_complex(comm, x):
        after, before = around(comm)
        v = x * x
        comm.Sendrecv(numpy.ones(1, complex) if comm.rank % 2 else x[:1], after, 1, v, before, 1)
        return v * x

    check(plain, ampi.COMM_WORLD, WORLD)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_cancelled_receive(asked, persistent):
    def program(np, comm, x):
        after, before = around(comm)
        v, w = np.zeros(x.shape, x.dtype), x * x
        if persistent:
            cancelled = comm.Recv_init(w, MPI.ANY_SOURCE, 1)
            cancelled.Start()
        else:
            cancelled = comm.Irecv(w, before, 1)
        cancelled.Cancel()
        if asked:
            while not cancelled.Get_status():
                pass
        v += x  # something is recorded meanwhile
        cancelled.Wait()
        if persistent:
            cancelled.Free()
        comm.Barrier()
        request = comm.Irecv(v, before, 1)
        comm.Isend(x, after, 1).Wait()
        request.Wait()
        return v * w

    check(program, ampi.COMM_WORLD, WORLD)


def test_buffers_live_as_long_as_their_requests():
    def program(np, comm, x):
        after, before = around(comm)

        def post():
            v = np.zeros(1000, x.dtype)
            return v, comm.Irecv(v, before), comm.Isend(x[0] * np.ones(1000, x.dtype), after)

        v, *requests = post()
        gc.collect(1)
        MPI.Request.Waitall(requests)
        return np.sum(v) * x

    check(program, ampi.COMM_WORLD, WORLD)


def test_many_completed_by_the_original_class():
    """More requests than are checked before each record give a clear error, and not a wrong gradient."""
    comm = ampi.COMM_WORLD.Dup()
    after, before = around(comm)
    n = 200
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(n))
        v = ampi.numpy.zeros(n)
        requests = [comm.Irecv(v[i : i + 1], before) for i in range(n)]
        requests += [comm.Isend(x[i : i + 1], after) for i in range(n)]
        Original.Request.Waitall(requests)
        y = v * v
    with pytest.raises(
        ampi.CommunicationError, match=r"Irecv from .*test_unfinished_requests.py:\d+ was completed by mpi4py's own"
    ):
        tape.gradient(y, x, seed=numpy.ones(n))


def test_overwritten_before_completion_is_noticed():
    """Two messages arrive in the same memory, and the first one completes unseen: the second one counts."""

    def program(np, comm, x):
        after, before = around(comm)
        v = np.zeros(x.shape, x.dtype)
        v[...] = x
        for factor in (2.0, 3.0):
            w = x * factor
            requests = [comm.Irecv(v, before), comm.Isend(w, after)]
            Original.Request.Waitall(requests)
        requests = [comm.Isend(x * x, after)]
        comm.Recv(v, before)
        Original.Request.Waitall(requests)
        return v * v

    check(program, ampi.COMM_WORLD, WORLD)


def test_messages_of_other_sweeps_are_no_tangents():
    """A receive of any tag that completes unseen gets the next tangent, and not what a stopped sweep has left."""
    comm = ampi.COMM_WORLD
    after, _ = around(comm)
    reverse = reverse_of(comm)
    left = [f"{reverse.identity} -1 1 an earlier sweep stopped".encode(), f"{reverse.identity + 1} 0 1 gone".encode()]
    requests = [reverse.comm.Isend([text, MPI.BYTE], after, STOPPED_TAG) for text in left]
    rows = numpy.array([reverse.identity + 1, 0, 0, 1, 0, 0])  # of a communicator that no longer exists
    requests.append(reverse.comm.Isend(rows, after, AGREEMENT_TAG))

    def program(np, comm, x):
        after, before = around(comm)
        v = np.zeros(x.shape, x.dtype)
        requests = [comm.Irecv(v, before), comm.Isend(x * x, after)]
        Original.Request.Waitall(requests)
        return v * v

    check(program, ampi.COMM_WORLD, WORLD)
    Original.Request.Waitall(requests)
