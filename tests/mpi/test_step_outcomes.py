"""Rerun steps of time loops repeat their first run's outcomes: wildcards, tests, probes, which request ended first.

All ranks send to rank 0 after random delays; it receives the messages in one of many ways and multiplies them, so that
the order matters.  The gradient is that of a plain loop with messages in the order of the first run.
"""

import random as randomness
import time

import numpy
import pytest
from test_held_buffers import N as LENGTH
from test_held_buffers import begin, blocks_of
from test_held_buffers import started as started_forms

import ampi
import ampi.numpy as np
from ampi import MPI
from ampi.mpi import COMM_WORLD

SIZE = COMM_WORLD.size
ANY = MPI.ANY_SOURCE, MPI.ANY_TAG
N = 2


def status_of(call):
    status = MPI.Status()
    result = call(status)
    return status.Get_source(), result


def buffers():
    return [np.zeros(N) for _ in range(SIZE - 1)]


def received(comm):
    for u in buffers():
        yield status_of(lambda status: comm.Recv(u, *ANY, status))[0], u  # noqa: B023


def received_as_objects(comm):
    for _ in range(SIZE - 1):
        yield status_of(lambda status: comm.recv(None, *ANY, status))


def posted(comm):
    rooms = buffers()
    requests = [comm.Irecv(u, tag=9) for u in rooms]
    statuses = []
    MPI.Request.Waitall(requests, statuses)
    yield from zip([status.Get_source() for status in statuses], rooms)


def posted_and_waited(comm):
    for u in buffers():
        request = comm.Irecv(u)
        yield status_of(request.Wait)[0], u


def probed(comm):
    for u in buffers():
        source, _ = status_of(lambda status: comm.Probe(*ANY, status))
        comm.Recv(u, source, 9)
        yield source, u


def probed_in_vain(comm):
    for u in buffers():
        status = MPI.Status()
        turns = 0
        while not comm.Iprobe(*ANY, status):
            turns += 1
        comm.Recv(u, status.source, status.tag)
        yield status.source, u * (1.0 + 1e-9 * turns)


def matched(comm):
    for u in buffers():
        status = MPI.Status()
        comm.Mprobe(status=status).Recv(u)
        yield status.source, u


def matched_in_vain(comm):
    for u in buffers():
        status = MPI.Status()
        message = None
        while message is None:
            message = comm.Improbe(*ANY, status)
        message.Recv(u)
        yield status.source, u


def from_each(comm):
    rooms = buffers()
    return rooms, [comm.Irecv(u, k + 1) for k, u in enumerate(rooms)]


def waited_for_any(comm):
    rooms, requests = from_each(comm)
    for _ in requests:
        k = MPI.Request.Waitany(requests)
        yield k + 1, rooms[k]


def waited_for_some(comm):
    rooms, requests = from_each(comm)
    found = MPI.Request.Waitsome(requests)
    while found is not None:
        yield from ((k + 1, rooms[k]) for k in found)
        found = MPI.Request.Waitsome(requests, [])


def one_tested(comm):
    rooms, requests = from_each(comm)
    left = dict(enumerate(requests))
    while left:
        for k in list(left):
            if left[k].Test():
                del left[k]
                yield k + 1, rooms[k]


def any_tested(comm):
    rooms, requests = from_each(comm)
    left = len(requests)
    while left:
        k, flag = MPI.Request.Testany(requests)
        if flag:
            left -= 1
            yield k + 1, rooms[k]


def some_tested(comm):
    rooms, requests = from_each(comm)
    while (found := MPI.Request.Testsome(requests)) is not None:
        yield from ((k + 1, rooms[k]) for k in found)


def asked(comm):
    rooms, requests = from_each(comm)
    left = dict(enumerate(requests))
    while left:
        for k in list(left):
            if left[k].Get_status():
                left.pop(k).Wait()
                yield k + 1, rooms[k]


def all_tested(comm):
    rooms, requests = from_each(comm)
    turns = 0
    while not MPI.Request.Testall(requests):
        turns += 1
    yield from ((k + 1, u * (1.0 + 1e-9 * turns)) for k, u in enumerate(rooms))


def objects_waited_for_any(comm):
    requests = [comm.irecv(None, k + 1) for k in range(SIZE - 1)]
    for _ in requests:
        k, u = MPI.Request.waitany(requests)
        yield k + 1, u


def objects_tested(comm):
    left = {k: comm.irecv(None, k + 1) for k in range(SIZE - 1)}
    while left:
        for k in list(left):
            flag, u = left[k].test()
            if flag:
                del left[k]
                yield k + 1, u


def exchanged(comm):
    for u in buffers():
        request = comm.Isendrecv(u.copy(), MPI.PROC_NULL, 0, u)
        yield status_of(request.Wait)[0], u


def exchanged_in_place(comm):
    rooms = buffers()
    requests = [comm.Isendrecv_replace(u, MPI.PROC_NULL) for u in rooms]
    statuses = []
    MPI.Request.Waitall(requests, statuses)
    yield from zip([status.Get_source() for status in statuses], rooms)


def started(comm):
    u = np.zeros(N)
    request = comm.Recv_init(u)
    for _ in range(SIZE - 1):
        request.Start()
        yield status_of(request.Wait)[0], u.copy()
    request.Free()


def started_with_a_datatype_that_is_gone(comm):
    """Receive into every other element; the datatype is freed before the request starts."""
    room = np.zeros(2 * N)
    kind = MPI.DOUBLE.Create_vector(N, 1, 2).Commit()
    request = comm.Recv_init([room, 1, kind])
    kind.Free()
    for _ in range(SIZE - 1):
        request.Start()
        yield status_of(request.Wait)[0], room[::2].copy()
    request.Free()


def started_together(comm):
    rooms = buffers()
    requests = [comm.Recv_init(u) for u in rooms]
    MPI.Prequest.Startall(requests)
    for _ in requests:
        status = MPI.Status()
        k = MPI.Request.Waitany(requests, status)
        yield status.source, rooms[k]
    for request in requests:
        request.Free()


LASTING = {}


def started_from_before(comm):
    """The request is older than the loop."""
    u, request = LASTING[comm.handle]
    for _ in range(SIZE - 1):
        request.Start()
        flag, status = False, MPI.Status()
        while not flag:
            flag = request.Test(status)
        yield status.source, u.copy()


OBJECTS = {received_as_objects, objects_waited_for_any, objects_tested}
WAYS = [received, received_as_objects, posted, posted_and_waited, probed, probed_in_vain, matched, matched_in_vain,
        waited_for_any, waited_for_some, one_tested, any_tested, some_tested, asked, all_tested,
        objects_waited_for_any, objects_tested, exchanged, exchanged_in_place, started,
        started_with_a_datatype_that_is_gone, started_together, started_from_before]  # fmt: skip


def run(x, take, comm, steps, objects, seen, **options):
    """The objective; ``take(comm)`` yields sources and received values, which are appended to ``seen`` once."""

    def step(u):
        if comm.rank:
            time.sleep(0.003 * randomness.random())
            (comm.send if objects else comm.Send)(u * (0.5 + 0.1 * comm.rank), 0, 9)
            came = np.zeros(N)
            comm.Bcast(came, 0)
            return 0.7 * u + 0.2 * came
        total = u
        for source, v in take(comm):
            if seen is not None:
                ampi.once(seen.append, (source, float(ampi.value(v)[0])))
            total = np.sin(total * 1.3 + v * (1.0 + 0.2 * total))
        comm.Bcast(total, 0)
        return total

    u = x * 1.0
    if options:
        u = ampi.timeloop(step, u, steps, **options)
    else:
        for _ in range(steps):
            u = step(u)
    return np.sum(u * u)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_rerun_steps_see_the_same_outcomes(way, kept):
    comm = COMM_WORLD.Dup()
    x = numpy.array([0.3, 0.8]) + 0.1 * comm.rank
    objects, seen = way in OBJECTS, []
    room = np.zeros(N)
    LASTING[comm.handle] = room, comm.Recv_init(room)
    found, back = ampi.vjp(lambda x: run(x, way, comm, 7, objects, seen, checkpoints=kept), x)
    x_bar = [back(1.0) for _ in range(2)]

    order = iter(seen)

    def as_seen(comm):
        for source, first in [next(order) for _ in range(SIZE - 1)]:
            u = np.zeros(N)
            if objects:
                u = comm.recv(None, source, 9)
            else:
                comm.Recv(u, source, 9)
            factor = first / float(ampi.value(u)[0])  # in vain
            assert abs(factor - 1.0) < 1e-3
            yield source, u * factor

    expected, plain = ampi.vjp(lambda x: run(x, as_seen, comm, 7, objects, None), x)
    assert found == pytest.approx(expected, rel=1e-12)
    wanted = plain(1.0)
    for bar in x_bar:
        numpy.testing.assert_allclose(bar, wanted, rtol=1e-10)
    assert next(order, None) is None
    LASTING.pop(comm.handle)[1].Free()
    comm.Free()


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")
@pytest.mark.mpi
@pytest.mark.parametrize("form", [form for form in started_forms() if "bsend" not in form.lower()])
def test_requests_in_steps_repeat_their_answers(form):
    """For all operations: the result depends on how often Test returns False."""
    comm = COMM_WORLD.Create_cart([SIZE], [True])
    turns = []

    def step(u):
        sends, receives = blocks_of(form)
        sent = None if sends is None else np.concatenate([u * 2.0] * sends)
        received = None if receives is None else np.zeros(receives * len(u))
        request, other = begin(np, comm, form, sent, received)
        assert type(request) in (ampi.Request, ampi.Prequest)
        no = 0
        while not request.Test():
            no += 1
        ampi.once(turns.append, no)
        for used in (request, other):
            if used is not None:
                used.Wait()
            if isinstance(used, MPI.Prequest):
                used.Free()
        return u * (1.0 + 1e-3 * no)

    def plain(u):
        for no in turns:
            u = u * (1.0 + 1e-3 * no)
        return np.sum(u * u)

    x = numpy.arange(1.0, LENGTH + 1) + comm.rank
    value, back = ampi.vjp(lambda x: np.sum(ampi.timeloop(step, x * 1.0, 4, checkpoints=1) ** 2), x)
    expected, wanted = ampi.vjp(plain, x)
    assert len(turns) == 4
    assert value == pytest.approx(expected, rel=1e-12)
    numpy.testing.assert_allclose(back(1.0), wanted(1.0), rtol=1e-12)
    comm.Free()
