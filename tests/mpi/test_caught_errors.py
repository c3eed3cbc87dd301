"""Calls that raise an MPI error which the program catches: derivatives are those of the memory as MPI left it.

A message that is too long fills the receive buffer with its head. Other errors are raised before anything is sent.
"""

import contextlib

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

pytestmark = [pytest.mark.mpi, broken_in("Intel MPI", "what is left of a message that is too long is not known")]

RANK, SIZE = WORLD.rank, WORLD.size
AFTER, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE


def by_recv(x, y, rng):
    request = COMM_WORLD.Isend(x, AFTER, 3)
    yield lambda: COMM_WORLD.Recv(y, BEFORE if rng.random() < 0.7 else MPI.ANY_SOURCE, 3)
    request.Wait()


def by_irecv(x, y, rng):
    requests = [COMM_WORLD.Irecv(y, BEFORE, 3), COMM_WORLD.Isend(x, AFTER, 3)]
    yield requests[0].Wait
    requests[1].Wait()


def by_test(x, y, rng):
    requests = [COMM_WORLD.Irecv(y, BEFORE, 3), COMM_WORLD.Isend(x, AFTER, 3)]

    def until_it_is():
        while not requests[0].Test():
            pass

    yield until_it_is
    requests[1].Wait()


def by_waitall(x, y, rng):
    requests = [COMM_WORLD.Irecv(y, BEFORE, 3), COMM_WORLD.Isend(x, AFTER, 3)]
    yield lambda: MPI.Request.Waitall(requests)
    requests[1].Wait()


def by_waitany(x, y, rng):
    requests = [COMM_WORLD.Irecv(y, BEFORE, 3), MPI.REQUEST_NULL]
    going = COMM_WORLD.Isend(x, AFTER, 3)
    yield lambda: MPI.Request.Waitany(requests)
    going.Wait()


def by_waitsome(x, y, rng):
    requests = [COMM_WORLD.Irecv(y, BEFORE, 3)]
    going = COMM_WORLD.Isend(x, AFTER, 3)
    yield lambda: MPI.Request.Waitsome(requests)
    going.Wait()


def by_sendrecv(x, y, rng):
    yield lambda: COMM_WORLD.Sendrecv(x, AFTER, 3, y, BEFORE, 3)


def by_probe(x, y, rng):
    request = COMM_WORLD.Isend(x, AFTER, 3)
    message = COMM_WORLD.Mprobe(BEFORE, 3)
    yield lambda: message.Recv(y)
    request.Wait()


def by_persistent(x, y, rng):
    requests = [COMM_WORLD.Recv_init(y, BEFORE, 3), COMM_WORLD.Send_init(x, AFTER, 3)]
    MPI.Prequest.Startall(requests)
    yield requests[0].Wait
    requests[1].Wait()


WAYS = {
    f.__name__: f
    for f in (by_recv, by_irecv, by_test, by_waitall, by_waitany, by_waitsome, by_sendrecv, by_probe, by_persistent)
}


def caught(way, number, wrong):
    """A program in which some messages are too long, and the same with messages of the right length."""
    rng = numpy.random.default_rng(number)
    n, m = int(rng.integers(2, 7)), int(rng.integers(0, 4))
    dtype = rng.choice(["d", "d", "D", "f"])
    used = rng.random() < 0.6
    before = rng.random() < 0.5

    def f(x):
        x = x.astype(dtype)
        y = np.zeros(m, dtype)
        if before:
            y[...] = x[:1] * 2.0
        going = x[:1] * x[1:]
        going = going if wrong else going[: len(y)]
        steps = WAYS[way](going, y, rng)
        for step in steps:
            if wrong and m < n:
                with pytest.raises(MPI.Exception):
                    step()
            else:
                step()
        z = np.zeros(n + 1, dtype)
        COMM_WORLD.Sendrecv(np.sin(x), AFTER, 3, z, BEFORE, 3)
        last = np.sum((z * z).real) + (np.sum((y * y * z[:m]).real) if used else 0.0)
        return last

    return f, n, dtype


def check(way, number):
    f, n, dtype = caught(way, number, True)
    plainly, *_ = caught(way, number, False)
    rng = numpy.random.default_rng([number, RANK, 1])
    x, v = (rng.uniform(-1, 1, n + 1) + (1j * rng.uniform(-1, 1, n + 1) if dtype == "D" else 0) for _ in range(2))
    tolerance = 1e-4 if dtype == "f" else 1e-12
    same = lambda a, b: numpy.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"{way}, {number}")
    same(ampi.grad(f)(x), ampi.grad(plainly)(x))
    same(ampi.jvp(f, x, v), ampi.jvp(plainly, x, v))
    same(ampi.linearize(f, x)[1](v), ampi.jvp(plainly, x, v)[1])
    same(ampi.hvp(f, x, v), ampi.hvp(plainly, x, v))


@pytest.mark.parametrize("number", range(2))
@pytest.mark.parametrize("way", WAYS)
def test_too_long(way, number):
    check(way, number)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_too_long_in_many_forms(way):
    for number in range(2, 60):
        check(way, number)


WRONG = {
    "rank": lambda x, y: COMM_WORLD.Send(x, SIZE + 3),
    "tag": lambda x, y: COMM_WORLD.Isend(x, AFTER, -5),
    "source": lambda x, y: COMM_WORLD.Recv(y, SIZE + 3, 1),
    "posted": lambda x, y: COMM_WORLD.Irecv(y, SIZE + 3, 1),
    "exchange": lambda x, y: COMM_WORLD.Sendrecv(x, AFTER, -5, y, BEFORE, 1),
    "replaced": lambda x, y: COMM_WORLD.Sendrecv_replace(y, AFTER, -5, BEFORE, 1),
    "root": lambda x, y: COMM_WORLD.Bcast(y, SIZE + 3),
    "object": lambda x, y: COMM_WORLD.send([x], SIZE + 3),
    "objects": lambda x, y: COMM_WORLD.isend([x], AFTER, -5),
    "no object": lambda x, y: COMM_WORLD.recv(None, SIZE + 3),
    "no root": lambda x, y: COMM_WORLD.bcast([x], SIZE + 3),
}


@pytest.mark.parametrize("which", WRONG)
def test_wrong_arguments(which):
    """Nothing is sent, and nothing overwritten."""

    def f(x):
        y = x * 2.0
        for _ in range(2):
            with contextlib.suppress(MPI.Exception):
                WRONG[which](x * x, y)
        z = np.zeros(3)
        COMM_WORLD.Sendrecv(y * x, AFTER, 1, z, BEFORE, 1)
        return np.sum(z * z)

    x, v = numpy.array([1.0, 2.0, 3.0]), numpy.array([0.5, -1.0, 2.0])
    numpy.testing.assert_allclose(ampi.grad(f)(x), 16 * x**3)
    numpy.testing.assert_allclose(ampi.jvp(f, x, v)[1], 16 * numpy.dot(x**3, v))
    numpy.testing.assert_allclose(ampi.hvp(f, x, v), 48 * x**2 * v)


def in_form(form, comm, name):
    """The method for a collective's blocking, nonblocking or persistent form, which is started."""
    if form == "blocking":
        return getattr(comm, name)
    if form == "nonblocking":
        return getattr(comm, "I" + name[0].lower() + name[1:])
    return lambda *arguments: getattr(comm, name + "_init")(*arguments).Start()


BAD = SIZE + 3
RING = COMM_WORLD.Create_dist_graph_adjacent([BEFORE], [AFTER])
REFUSED = {
    "Bcast to all": lambda call, x, y: call("Bcast")(y, BAD),
    "Bcast of a type": lambda call, x, y: call("Bcast")([y, 3, MPI.DATATYPE_NULL], 0),
    "Bcast of a count": lambda call, x, y: call("Bcast")([y, -2, MPI.DOUBLE], 0),
    "Reduce to": lambda call, x, y: call("Reduce")(x, y, MPI.SUM, BAD),
    "Allreduce by": lambda call, x, y: call("Allreduce")(x, y, MPI.OP_NULL),
    "Allreduce of bits": lambda call, x, y: call("Allreduce")(x, y, MPI.BAND),
    "Allreduce in place": lambda call, x, y: call("Allreduce")(MPI.IN_PLACE, y, MPI.REPLACE),
    "Scan by": lambda call, x, y: call("Scan")(x, y, MPI.OP_NULL),
    "Gather to": lambda call, x, y: call("Gather")(x, np.zeros((SIZE, 3)), BAD),
    "Scatter from": lambda call, x, y: call("Scatter")(np.ones((SIZE, 3)) * x, y, BAD),
    "Allgatherv of counts": lambda call, x, y: call("Allgatherv")(x, [y, [-1] * SIZE, None, MPI.DOUBLE]),
    "Alltoall of a count": lambda call, x, y: call("Alltoall")([x, -3, MPI.DOUBLE], y),
    "Neighbor of a count": lambda call, x, y: call("Neighbor_allgather", RING)([x, -3, MPI.DOUBLE], y),
    "Neighbor of a type": lambda call, x, y: call("Neighbor_allgather", RING)([x, 3, MPI.DATATYPE_NULL], y),
}
"""Collectives that MPI refuses on all ranks."""


@pytest.mark.parametrize("form", ["blocking", "nonblocking", "persistent"])
@pytest.mark.parametrize("which", REFUSED)
def test_collectives_refused(which, form):
    """Nothing is overwritten; collectives before and after, also nonblocking ones, are still differentiated."""

    def f(x, inactive=False):
        y = numpy.array([1.0, 2.0, 3.0]) * x
        y = np.array(ampi.value(y)) if inactive else y
        w = y * y  # which needs y
        begun, sums = np.sin(x), np.zeros(3)
        before = COMM_WORLD.Iallreduce(begun, sums)
        for _ in range(2):
            with pytest.raises((MPI.Exception, ValueError, ampi.AmpiError)):
                REFUSED[which](lambda name, comm=COMM_WORLD: in_form(form, comm, name), x * x, y)
        before.Wait()
        z = np.zeros(3)
        COMM_WORLD.Ibcast(w, 0).Wait()
        COMM_WORLD.Allreduce(w * x * y, z)
        y[...] = 7.0
        return np.sum(z * z) + np.sum(sums**2)

    def plainly(x, inactive=False):
        y = numpy.array([1.0, 2.0, 3.0]) * x
        y = np.array(ampi.value(y)) if inactive else y
        w = y * y
        sums, z = np.zeros(3), np.zeros(3)
        COMM_WORLD.Allreduce(np.sin(x), sums)
        COMM_WORLD.Bcast(w, 0)
        COMM_WORLD.Allreduce(w * x * y, z)
        return np.sum(z * z) + np.sum(sums**2)

    x, v = numpy.array([1.0, 2.0, 3.0]) + RANK, numpy.array([0.5, -1.0, 2.0]) - RANK
    for wrong in (f, lambda x: f(x, True)):
        right = plainly if wrong is f else lambda x: plainly(x, True)
        numpy.testing.assert_allclose(ampi.grad(wrong)(x), ampi.grad(right)(x), 1e-12)
        numpy.testing.assert_allclose(ampi.jvp(wrong, x, v), ampi.jvp(right, x, v), 1e-12)
        both = numpy.stack([v, 2 * v, x])
        numpy.testing.assert_allclose(
            ampi.jvp(wrong, x, both, vectorised=True)[1], ampi.jvp(right, x, both, vectorised=True)[1], 1e-12
        )
        numpy.testing.assert_allclose(ampi.hvp(wrong, x, v), ampi.hvp(right, x, v), 1e-12)
        numpy.testing.assert_allclose(ampi.linearize(wrong, x)[1](v), ampi.jvp(right, x, v)[1], 1e-12)


def starting(kind, requests):
    """A start that MPI refuses: of active requests, or of null requests, before or after others."""
    going, coming = requests
    if kind == "active":
        return lambda: MPI.Prequest.Startall([going])
    if kind == "one active":
        return coming.Start
    if kind == "none behind":
        return lambda: MPI.Prequest.Startall([*requests, MPI.Prequest()])
    return lambda: MPI.Prequest.Startall([MPI.Prequest(), *requests])


@pytest.mark.parametrize("kind", ["active", "one active", "none behind", "none before"])
def test_starts_refused(kind):
    """Requests started before and later are differentiated; nothing is overwritten."""

    def f(x):
        u, y = x * 1.0, np.zeros(3)
        requests = [COMM_WORLD.Send_init(u, AFTER, 4), COMM_WORLD.Recv_init(y, BEFORE, 4)]
        last = np.zeros(3)
        for k in range(3):
            if "active" in kind and WORLD.size > 1:
                COMM_WORLD.Barrier()  # no message has come when it is started again
            if "active" in kind:
                requests[1].Start()
                if kind == "one active":
                    with pytest.raises(MPI.Exception):
                        starting(kind, requests)()
                COMM_WORLD.Barrier()
                requests[0].Start()
            else:
                with pytest.raises((MPI.Exception, TypeError, ValueError)):
                    starting(kind, requests)()
                MPI.Prequest.Startall(requests)
            MPI.Request.Waitall(requests)
            last = last + y * y * (k + 1.0)
            u *= 2.0
        for request in requests:
            request.Free()
        return np.sum(last)

    x, v = numpy.array([1.0, 2.0, 3.0]) + RANK, numpy.array([0.5, -1.0, 2.0])
    factor = 2.0 * (1.0 + 2.0 * 4.0 + 3.0 * 16.0)
    numpy.testing.assert_allclose(ampi.grad(f)(x), factor * x)
    expected = factor * numpy.dot(numpy.array([1.0, 2.0, 3.0]) + BEFORE, v)
    numpy.testing.assert_allclose(ampi.jvp(f, x, v)[1], expected)
    numpy.testing.assert_allclose(ampi.hvp(f, x, v), factor * v)


ONE_SIDED = {
    "Put": lambda win, x, y, to: win.Put(x, *to),
    "Get": lambda win, x, y, to: win.Get(y, *to),
    "Accumulate": lambda win, x, y, to: win.Accumulate(x, *to),
    "Accumulate by": lambda win, x, y, to: win.Accumulate(x, *to, op=MPI.MAX),
    "Get_accumulate": lambda win, x, y, to: win.Get_accumulate(x, y, *to),
    "Fetch_and_op": lambda win, x, y, to: win.Fetch_and_op(x[:1], y[:1], *to[:1]),
    "Get_accumulate by": lambda win, x, y, to: win.Get_accumulate(x, y, *to, op=MPI.OP_NULL),
    "Get of bytes": lambda win, x, y, to: win.Get(y.view("b"), *to),
    "Rput": lambda win, x, y, to: win.Rput(x, *to),
    "Rget": lambda win, x, y, to: win.Rget(y, *to),
    "Raccumulate": lambda win, x, y, to: win.Raccumulate(x, *to),
}
WRONG_TARGETS = {
    "rank": (SIZE + 3,),
    "negative rank": (-7,),
    "type": (AFTER, (0, 3, MPI.DATATYPE_NULL)),
    "count": (AFTER, (0, -3, MPI.DOUBLE)),
    "epoch": (AFTER,),
}


def one_sided_program(which, epoch, target, number):
    """A program in which some operations are refused: their targets are wrong, or there is no epoch for them."""
    call, wrong = ONE_SIDED[which], WRONG_TARGETS[target]

    def refused(win, x, y):
        try:
            call(win, x * x, y, wrong)
        except (MPI.Exception, ampi.AmpiError):
            return
        win.Free()
        pytest.skip("MPI does not refuse it, or not yet")

    def f(x, refuse=True):
        mem, y = np.zeros(3), x * 3.0
        kept = np.exp(y)  # which is needed when y is overwritten
        win = ampi.Win.Create(mem, 8, comm=COMM_WORLD)
        mem[...] = 0.1 * x
        for _ in range(number):
            COMM_WORLD.Barrier()
            if target == "epoch" and refuse:
                refused(win, x, y)
            if epoch == "Fence":
                win.Fence()
            else:
                win.Lock(AFTER)
            if target != "epoch" and refuse:
                refused(win, x, y)
            win.Accumulate(x * x, AFTER)
            if epoch == "Fence":
                win.Fence(MPI.MODE_NOSUCCEED)
            else:
                win.Unlock(AFTER)
            COMM_WORLD.Barrier()
        last = np.sum(mem * mem * y * kept)
        win.Free()
        return last

    return f


def check_one_sided(which, epoch, target):
    if which == "Fetch_and_op" and target in ("type", "count"):
        pytest.skip("it has none")
    f = one_sided_program(which, epoch, target, 2)
    right = lambda x: f(x, False)
    x, v = numpy.array([0.1, 0.2, 0.3]) + RANK, numpy.array([0.5, -1.0, 2.0]) - RANK
    numpy.testing.assert_allclose(ampi.grad(f)(x), ampi.grad(right)(x), 1e-12)
    numpy.testing.assert_allclose(ampi.jvp(f, x, v), ampi.jvp(right, x, v), 1e-12)
    numpy.testing.assert_allclose(ampi.hvp(f, x, v), ampi.hvp(right, x, v), 1e-12)


@pytest.mark.parametrize("target", ["rank", "type", "epoch"])
@pytest.mark.parametrize("epoch", ["Fence", "Lock"])
@pytest.mark.parametrize("which", ["Put", "Get", "Accumulate", "Raccumulate"])
def test_one_sided_refused(which, epoch, target):
    """Nothing is moved, and operations before and after are differentiated."""
    check_one_sided(which, epoch, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", WRONG_TARGETS)
@pytest.mark.parametrize("epoch", ["Fence", "Lock"])
@pytest.mark.parametrize("which", ONE_SIDED)
def test_all_one_sided_refused(which, epoch, target):
    check_one_sided(which, epoch, target)
