"""Tangents of one-sided operations are in flight together, and together with the values."""

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD
from ampi.mpi.windows import epochs as rma_epochs
from ampi.mpi.windows.shadow import Shadow

pytestmark = pytest.mark.mpi

RANK, SIZE = WORLD.rank, WORLD.size
TARGET = (RANK + 1) % SIZE
PLAIN = rma_epochs._Win  # mpi4py's
MANY = 4  # operations of an epoch


def fence(win, work):
    win.Fence()
    work()
    win.Fence()


def start(win, work):
    group = WORLD.Get_group()
    to, back = group.Incl([TARGET]), group.Incl([(RANK - 1) % SIZE])
    win.Post(back)
    win.Start(to)
    work()
    win.Complete()
    win.Wait()


def lock(win, work):
    win.Lock(TARGET)
    work()
    win.Unlock(TARGET)
    COMM_WORLD.Barrier()


def flush(win, work):
    win.Lock_all()
    work()
    win.Flush(TARGET)
    win.Unlock_all()
    COMM_WORLD.Barrier()


def put(win, x, came, k):
    win.Put(x * (k + 1.0), TARGET, target=(3 * k, 3))


def accumulate(win, x, came, k):
    win.Accumulate(x * x, TARGET, target=(3 * (k % 2), 3))


def get(win, x, came, k):
    win.Get(came[k], TARGET, target=(3 * k, 3))


def request(win, x, came, k):
    return win.Rget(came[k], TARGET, target=(3 * k, 3))


class Watched:
    """mpi4py's ``Win``, which notes when operations on values are completed at their target."""

    def __init__(self, log):
        self.log = log

    def __getattr__(self, name):
        return getattr(PLAIN, name)

    def Flush(self, win, target):
        self.log.append("values")
        PLAIN.Flush(win, target)


WAYS = [(e, o) for e in (fence, start, lock, flush) for o in (put, accumulate, get)] + [
    (lock, request),
    (flush, request),
]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(("epoch", "operation"), WAYS, ids=lambda f: f.__name__)
def test_under_way_together(epoch, operation, lanes, monkeypatch):
    log = []
    for name in ("begin", "await_request"):
        monkeypatch.setattr(Shadow, name, noted(name, getattr(Shadow, name), log))
    x0 = numpy.array([0.5, -1.5, 2.0]) + 0.25 * RANK

    def f(x):
        memory = np.concatenate([x, x * x, 2.0 * x, np.sin(x)])
        came = [np.zeros(3) for _ in range(MANY)]
        comm = COMM_WORLD.Dup()
        win = ampi.Win.Create(memory, 8, comm=comm)

        def work():
            log.clear()
            requests = [operation(win, x, came, k) for k in range(MANY)]
            if operation is request:
                MPI.Request.Waitall(requests)

        with monkeypatch.context() as patch:
            patch.setattr(rma_epochs, "_Win", Watched(log))
            epoch(win, work)
        done = log.copy()
        y = memory * np.concatenate(came)
        win.Free()
        comm.Free()
        log[:] = done
        return np.concatenate([y, memory])

    directions = numpy.random.default_rng(RANK).normal(size=(lanes, 3))
    if lanes == 1:
        y, y_dot = ampi.jvp(f, x0, directions[0])
        y_dot = y_dot[None]
    else:
        y, y_dot = ampi.jvp(f, x0, directions, vectorised=True)
    seen = [word for word in log if word != "values"]
    if not (epoch in (start, flush) and operation is accumulate):  # ranks do that one after another
        assert seen == ["begin"] * (MANY * lanes) + ["await_request"] * (MANY * lanes)
        assert "values" not in log or log.index("values") >= MANY * lanes
    w = numpy.random.default_rng(RANK + 100).normal(size=y.shape)
    _, back = ampi.vjp(f, x0)
    (x_bar,) = back(w)
    both = numpy.array([y_dot @ w, directions @ x_bar])
    tangents, adjoints = COMM_WORLD.allreduce(both)
    numpy.testing.assert_allclose(tangents, adjoints, rtol=1e-12)


def noted(name, function, log):
    def method(*arguments):
        log.append(name)
        return function(*arguments)

    return method
