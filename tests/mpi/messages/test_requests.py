"""Requests: every way to complete them, with wildcards and null requests among them; and what a tape cannot follow."""

import contextlib

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in, check
from request_programs import Original, around

import ampi

pytestmark = pytest.mark.mpi

Request = MPI.Request


def everybody(np, comm, x, complete, source=None):
    """Each rank sends to all; `complete` finishes the receives; the result depends on who sent what."""
    v = np.zeros((comm.size, x.size), x.dtype)
    receives = [comm.Irecv(v[k], k if source is None else source, k) for k in range(comm.size)]
    sends = [comm.Isend(x * (2.0 + k), k, comm.rank) for k in range(comm.size)]
    complete(receives + sends)
    return v * v * v * np.arange(1.0, comm.size + 1)[:, None]


# ------------------------------------------------------------------------------------------------------- completion


def wait(requests):
    for request in requests[::-1]:
        request.Wait()


def poll(requests):
    left = list(requests)
    while left:
        left = [request for request in left if not request.Test()]


def unbound(requests):
    for request in requests:
        MPI.Request.Wait(request)


def waitall(requests):
    MPI.Request.Waitall([MPI.REQUEST_NULL, *requests, MPI.REQUEST_NULL])
    assert not any(requests)


def waitall_with_statuses(requests):
    statuses = [MPI.Status() for _ in requests]
    MPI.Request.Waitall(requests, statuses)
    for k in range(len(requests) // 2):
        assert statuses[k].source == statuses[k].tag == k


def waitall_after_one_that_failed(requests):
    with pytest.raises(TypeError):
        MPI.Request.Waitall([*requests, "no request"])
    assert all(requests)
    MPI.Request.Waitall(requests)


def waitall_of_an_instance(requests):
    requests[0].Waitall(requests)


def poll_all(requests):
    while not MPI.Request.Testall(requests):
        pass


def waitany(requests):
    requests = [MPI.REQUEST_NULL, *requests]
    for _ in range(len(requests) - 1):
        assert MPI.Request.Waitany(requests) > 0
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED


def poll_any(requests):
    requests = [*requests, MPI.REQUEST_NULL]
    while True:
        index, flag = MPI.Request.Testany(requests)
        if flag and index == MPI.UNDEFINED:
            break


def waitsome(requests):
    requests = [MPI.REQUEST_NULL, *requests]
    while MPI.Request.Waitsome(requests) is not None:
        pass


def waitsome_with_statuses(requests):
    statuses = [MPI.Status() for _ in requests]
    while (indices := MPI.Request.Waitsome(requests, statuses)) is not None:
        for index, status in zip(indices, statuses):
            if index < len(requests) // 2:
                assert status.tag == index


def poll_some(requests):
    requests = [*requests, MPI.REQUEST_NULL]
    while MPI.Request.Testsome(requests) is not None:
        pass


def ask_before(requests):
    for request in requests:
        while not request.Get_status():
            pass
        request.Wait()


COMPLETIONS = [
    wait,
    poll,
    unbound,
    waitall,
    waitall_with_statuses,
    waitall_after_one_that_failed,
    waitall_of_an_instance,
    poll_all,
    waitany,
    poll_any,
    waitsome,
    waitsome_with_statuses,
    poll_some,
    ask_before,
]


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("complete", COMPLETIONS)
def test_completion(complete, wild):
    def program(np, comm, x):
        return everybody(np, comm, x, complete, MPI.ANY_SOURCE if wild else None)

    check(program, ampi.COMM_WORLD, WORLD, n=2)


@pytest.mark.parametrize("complete", COMPLETIONS)
def test_any_tag_from_known_sources(complete):
    """Such a receive matches by the order of messages, however it is completed."""
    if "statuses" in complete.__name__:
        pytest.skip("says which request gets which message")

    def program(np, comm, x):
        after, before = around(comm)
        v = np.zeros((5, x.size), x.dtype)
        tags = MPI.ANY_TAG, 3, MPI.ANY_TAG, 7, MPI.ANY_TAG
        requests = [comm.Irecv(v[k], before, tag) for k, tag in enumerate(tags)]
        requests += [comm.Isend(x * (2.0 + k), after, tag) for k, tag in enumerate((7, 7, 3, 3, 7))]
        complete(requests)
        return v * v * v * np.arange(1.0, 6.0)[:, None]

    check(program, ampi.COMM_WORLD, WORLD, n=2)


@pytest.mark.parametrize("complete", COMPLETIONS)
def test_both_wildcards(complete):
    """The order of arrival is not known: the result is symmetric in the messages."""
    if "statuses" in complete.__name__:
        pytest.skip("says which request gets which message")

    def program(np, comm, x):
        v = np.zeros((comm.size, x.size), x.dtype)
        requests = [comm.Irecv(v[k]) for k in range(comm.size)]
        requests += [comm.Isend(x * (2.0 + k), k, comm.rank) for k in range(comm.size)]
        complete(requests)
        comm.Barrier()  # what the next run sends must not be received in this one
        return np.sum(v * v * v, axis=0)

    check(program, ampi.COMM_WORLD, WORLD, n=2)


def test_waitany_uses_each_message_as_it_comes():
    def program(np, comm, x):
        y = x * 1.0
        v = np.zeros((comm.size, x.size), x.dtype)
        requests = [comm.Irecv(v[k], MPI.ANY_SOURCE) for k in range(comm.size)]
        sends = [comm.Isend(x, k) for k in range(comm.size)]
        for _ in range(comm.size):
            k = MPI.Request.Waitany(requests)
            y = y * v[k]
            v[k] = 0.0
        MPI.Request.Waitall(sends)
        comm.Barrier()  # what the next run sends must not be received in this one
        return y

    check(program, ampi.COMM_WORLD, WORLD, n=2)


def test_pending_while_others_complete():
    """A receive stays pending over other messages and local work."""

    def program(np, comm, x):
        after, before = around(comm)
        v, w = np.zeros(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
        late = comm.Irecv(v, before, 1)
        comm.Sendrecv(x * x, after, 2, w, before, 2)
        y = w * w
        comm.Isend(y, after, 1).Wait()
        y = y * x
        late.Wait()
        return y * v

    check(program, ampi.COMM_WORLD, WORLD)


def test_send_that_nobody_waits_for():
    """A program may know by other means that its message has arrived; until then it keeps the buffer."""

    def program(np, comm, x):
        after, before = around(comm)
        v, w = np.zeros(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
        request = comm.Irecv(w, after, 2)
        there = x * x
        comm.Isend(there, after, 1).Free()
        comm.Recv(v, before, 1)
        back = v * v
        comm.Isend(back, before, 2).Free()
        request.Wait()
        comm.Barrier()
        del there, back
        return w * x

    check(program, ampi.COMM_WORLD, WORLD)


def test_completed_by_the_original_class():
    """Overlap is lost, the gradient is not."""

    def program(np, comm, x):
        after, before = around(comm)
        v = np.zeros(x.shape, x.dtype)
        requests = [comm.Irecv(v, before, 1), comm.Isend(x * x, after, 1)]
        Original.Request.Waitall(requests)
        y = v * v
        requests = [comm.Irecv(v, before, 1), comm.Isend(y, after, 1)]
        Original.Request.Wait(requests[0])
        y = y * v
        v[...] = x
        Original.Request.Waitall(requests)
        return y * v

    check(program, ampi.COMM_WORLD, WORLD)


def test_wildcard_completed_by_the_original_class(comm):
    after, _ = around(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        v = ampi.numpy.zeros(2)
        requests = [comm.Irecv(v), comm.Isend(x, after)]
        Original.Request.Waitall(requests)
    with pytest.raises(
        ampi.CommunicationError, match=r"Irecv from any rank.*test_requests.py:\d+ matched is not known"
    ):
        tape.gradient(v, x, seed=numpy.ones(2))


def test_lists_of_requests_of_both_kinds():
    """Requests started before the tape are mpi4py's own."""
    comm = ampi.COMM_WORLD
    after, before = around(comm)
    k = numpy.zeros(1, int)
    early = [comm.Irecv(k, before, 9), comm.Isend(numpy.array([comm.rank]), after, 9)]
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, comm.rank + 2.0))
        v = ampi.numpy.zeros(2)
        MPI.Request.Waitall([*early, comm.Irecv(v, before), comm.Isend(x, after)])
        y = v * v
    assert k[0] == before
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(2)), 2 * (comm.rank + 2.0))


def test_classes():
    request = ampi.COMM_SELF.Irecv(numpy.zeros(1), 0)
    assert isinstance(request, MPI.Request) and isinstance(request, ampi.Request)
    request.Cancel()
    request.Wait()
    with ampi.Tape():
        request = ampi.COMM_SELF.Irecv(numpy.zeros(1), 0)
        assert isinstance(request, MPI.Request) and isinstance(request, Original.Request)
        assert issubclass(type(request), MPI.Request) and issubclass(MPI.Prequest, MPI.Request)
        request.Cancel()
        request.Wait()


# -------------------------------------------------------------------------------------------------------- persistent


@pytest.mark.parametrize("mode", ["Send_init", "Ssend_init", "Bsend_init", "Rsend_init"])
def test_persistent(mode):
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * 1.0, np.zeros(x.shape, x.dtype)
        requests = [comm.Recv_init(v, before, 4), getattr(comm, mode)(u, after, 4)]
        y = x * x
        for turn in range(3):
            u[...] = y * (turn + 1.0)
            requests[0].Start()
            if mode == "Rsend_init":
                comm.Barrier()
            MPI.Prequest.Startall(requests[1:])
            MPI.Request.Waitall(requests)
            y = y * v
        for request in requests:
            request.Free()
        return y

    attached = MPI.Alloc_mem(1 << 16)
    MPI.Attach_buffer(attached)
    try:
        check(program, ampi.COMM_WORLD, WORLD)
    finally:
        MPI.Detach_buffer()


FREED = broken_in("Open MPI", "persistent collectives do not keep datatypes that are freed")


@pytest.mark.parametrize("collective", [False, pytest.param(True, marks=FREED)])
def test_persistent_with_datatypes_that_are_freed(collective):
    """MPI keeps them for the request; so does ampi."""

    def program(np, comm, x):
        after, before = around(comm)
        y, v, w = x * x, np.zeros(3 * x.size, x.dtype), np.ones(comm.size, x.dtype)
        spread = MPI._typedict[x.dtype.char].Create_vector(x.size, 1, 2).Commit()
        requests = [comm.Send_init(y, after), comm.Recv_init([v, 1, spread], before)]
        if collective:
            single = MPI._typedict[x.dtype.char].Create_contiguous(1).Commit()
            requests.append(comm.Allgather_init([y, 1, single], [w, 1, single]))
            single.Free()
        spread.Free()
        for _ in range(2):
            MPI.Prequest.Startall(requests)
            Request.Waitall(requests)
            y *= v[: 2 * x.size : 2] * w[0]
        for request in requests:
            request.Free()
        return y

    check(program, ampi.COMM_WORLD, WORLD)


@pytest.mark.parametrize("form", ["Isendrecv", "Isendrecv_replace"])
@pytest.mark.parametrize(
    "source, tag", [(MPI.ANY_SOURCE, 5), (None, MPI.ANY_TAG), (MPI.ANY_SOURCE, MPI.ANY_TAG), (None, 5)]
)
def test_nonblocking_exchange_with_wildcards_and_statuses(form, source, tag):
    def program(np, comm, x):
        after, before = around(comm)
        u, v = x * x, np.zeros(x.size + 1, x.dtype)
        v[: x.size] = u
        expected = before if source is None else source
        if form == "Isendrecv":
            request = comm.Isendrecv(u, after, 5, v, expected, tag)
        else:
            request = comm.Isendrecv_replace([v, MPI.BYTE], after, 5, expected, tag)
        Request.Waitall([request], [MPI.Status()])
        return v * v

    check(program, ampi.COMM_WORLD, WORLD)


def test_persistent_with_wildcards_made_before_the_tape():
    comm = ampi.COMM_WORLD
    u, v = ampi.numpy.zeros(2), ampi.numpy.zeros(2)
    sends = [comm.Send_init(u, dest) for dest in range(comm.size)]
    receive = comm.Recv_init(v)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, comm.rank + 2.0))
        u[...] = x * x
        MPI.Prequest.Startall(sends)
        y = 0.0 * x
        for _ in range(comm.size):
            receive.Start()
            receive.Wait()
            y = y + v * v
        MPI.Request.Waitall(sends)
    assert tape.gradient(y, x, seed=numpy.ones(2)) == pytest.approx(comm.size * 4 * (comm.rank + 2.0) ** 3)
    for request in (*sends, receive):
        request.Free()


# ------------------------------------------------------------------------------------------- messages seen to arrive

ENDS = {
    "Wait": lambda R, rs, s: [R.Wait(r, t) for r, t in zip(rs, s)],
    "Test": lambda R, rs, s: [R.Test(r, t) for r, t in zip(rs, s)],
    "wait": lambda R, rs, s: [R.wait(r, t) for r, t in zip(rs, s)],
    "test": lambda R, rs, s: [R.test(r, t) for r, t in zip(rs, s)],
    "Get_status": lambda R, rs, s: [R.Get_status(r, t) for r, t in zip(rs * 2, s * 2)] and R.Waitall(rs, s),
    **{
        name: lambda R, rs, s, name=name: getattr(R, name)(rs, s)
        for name in ("Waitall", "Testall", "waitall", "testall")
    },
    **{name: lambda R, rs, s, name=name: [getattr(R, name)(rs, t) for t in s] for name in ("Waitany", "waitany")},
    **{name: lambda R, rs, s, name=name: [getattr(R, name)(rs, t) for t in s] for name in ("Testany", "testany")},
    **{name: lambda R, rs, s, name=name: getattr(R, name)(rs, s) for name in ("Waitsome", "Testsome")},
    **{name: lambda R, rs, s, name=name: getattr(R, name)(rs, s) for name in ("waitsome", "testsome")},
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("recorded", [False, True], ids=["idle", "recorded"])
@pytest.mark.parametrize("source", [0, MPI.ANY_SOURCE], ids=["one", "any"])
@pytest.mark.parametrize("way", ENDS)
def test_calls_that_complete_persistent_receives_report_what_arrived(way, source, recorded):
    """Even if something is recorded between the arrival and the call that completes the request."""
    if way == "Get_status" and not recorded:
        pytest.skip("MPICH's own takes a request for completed once it has told its status")
    comm = ampi.COMM_WORLD.Dup()
    order = [2, 0, 1]
    with ampi.Tape() if recorded else contextlib.nullcontext() as tape:
        x = ampi.numpy.array([1.0, 2.0, 3.0]) if tape is None else tape.watch(numpy.array([1.0, 2.0, 3.0]))
        y = ampi.numpy.zeros((3, 3))
        if comm.rank == 0:
            for k in order:
                for rank in range(1, comm.size):
                    comm.Send((x * (k + 1.0))[: k + 1], rank, k)
            for rank in range(1, comm.size):
                comm.Send(x, rank, 9)
        else:
            requests = [comm.Recv_init(part, source, k) for k, part in enumerate(y)]
            MPI.Prequest.Startall(requests)
            comm.Recv(ampi.numpy.zeros(3), 0, 9)
            z = x * 1.0
            for _ in range(3):
                z = ampi.numpy.sin(z)  # here a tape checks for arrived messages
            statuses = [MPI.Status() for _ in range(3)]
            found = ENDS[way](MPI.Request, requests, statuses)
            told = sorted((s.Get_source(), s.Get_tag(), s.Get_count(MPI.DOUBLE)) for s in statuses)
            assert told == [(0, k, k + 1) for k in range(3)]
            if way.endswith("any"):
                assert sorted(f if way == "Waitany" else f[0] for f in found) == [0, 1, 2]
            elif way.endswith("some"):
                assert (found[0] if way[0].islower() else found) == [0, 1, 2]
            assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
            for request in requests:
                request.Free()
        total = ampi.numpy.sum(y * y)
    if tape is not None:
        gradient = tape.gradient(total, x)
        sums = [sum((k + 1.0) ** 2 for k in range(3) if i <= k) for i in range(3)]
        expected = 2 * numpy.array([1.0, 2.0, 3.0]) * sums * (comm.size - 1) * (comm.rank == 0)
        numpy.testing.assert_allclose(gradient, expected, rtol=1e-14)
    comm.Free()
