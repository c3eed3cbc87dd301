"""Communicators and windows created and freed in loops: right derivatives, and few of them alive at a time."""

import gc
import random as chance

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, check

import ampi
import ampi.numpy
from ampi.mpi.log import channels

pytestmark = pytest.mark.mpi

COMM_WORLD = ampi.COMM_WORLD


def alive():
    """Number of reverse communicators, without those that other ranks still have to leave."""
    gc.collect()
    return sum(type(found) is channels.Channel for found in gc.get_objects())


def around(comm):
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def halves(comm):
    """Intercommunicator between the even ranks and the odd ones."""
    half = comm.Split(comm.rank % 2, comm.rank)
    made = half.Create_intercomm(0, comm, 1 - comm.rank % 2, 7)
    half.Free()
    return made


def completed(made):
    comm, request = made
    request.Wait()
    return comm


def duplicate_between(comm):
    inter = halves(comm)
    made = completed(inter.Idup())
    inter.Free()
    return made


MADE = {
    "Dup": lambda comm: comm.Dup(),
    "Clone": lambda comm: comm.Clone(),
    "Idup": lambda comm: completed(comm.Idup()),
    "Split": lambda comm: comm.Split(0, -comm.rank),
    "Split in two": lambda comm: comm.Split(comm.rank % 2, comm.rank),
    "Create": lambda comm: comm.Create(comm.group.Incl(range(comm.size)[::-1])),
    "Create_group": lambda comm: comm.Create_group(comm.group),
    "Create_cart": lambda comm: comm.Create_cart([comm.size], [True]),
    "Create_dist_graph": lambda comm: comm.Create_dist_graph_adjacent(*([rank] for rank in around(comm)[::-1])),
    "Create_intercomm": halves,
    "Idup of an intercommunicator": duplicate_between,
}
IN_TWO = ("Create_intercomm", "Idup of an intercommunicator")


def used(np, comm, x, operation, waiting):
    """The values received by an operation, in a new array; some requests are left in ``waiting``."""
    y = np.zeros(x.shape, x.dtype)
    if comm.Is_inter():
        comm.Allreduce(x, y)
        return y
    after, before = around(comm)
    if operation == "messages":
        comm.Sendrecv(x, after, 1, y, before, 1)
        again = np.zeros(x.shape, x.dtype)
        request = comm.Isend(x * x, after, 1)
        comm.Recv(again, MPI.ANY_SOURCE, 1)
        request.Wait()
        return y + again
    if operation == "object":
        return comm.sendrecv({"x": [x * 1.0]}, after, source=before)["x"][0]
    if operation == "Allreduce":
        comm.Allreduce(x, y)
    elif operation == "Allgather":
        every = np.zeros((comm.size, len(x)), x.dtype)
        comm.Allgather(x, every)
        y = np.sum(every * np.arange(1.0, comm.size + 1)[:, None], axis=0)
    elif operation == "Iallreduce":
        waiting.append(comm.Iallreduce(x, y))
    else:
        waiting += [comm.Irecv(y, before, 1), comm.Isend(x, after, 1)]
    return y


OPERATIONS = ["messages", "object", "Allreduce", "Allgather", "Iallreduce", "Irecv"]


def drawn(number, iterations=2):
    """A random program that makes communicators, uses them, and frees them at once, at the end, or before it waits."""
    draw = chance.Random(number)
    kinds = [kind for kind in MADE if WORLD.size > 1 or kind not in IN_TWO]
    uses = [
        (draw.choice(kinds), draw.choice(OPERATIONS), draw.choice(["at once", "early", "at the end"]), draw.random())
        for _ in range(draw.randint(2, 6))
    ]

    def program(np, comm, x):
        for _ in range(iterations):
            left = []
            for kind, operation, when, part in uses:
                made, waiting = MADE[kind](comm), []
                y = used(np, made, x, operation, waiting)
                if when == "early":
                    made.Free()
                    other = comm.Dup()
                    between = used(np, other, x, "messages", [])
                    other.Free()
                    MPI.Request.Waitall(waiting)
                    y = y + part * between
                else:
                    MPI.Request.Waitall(waiting)
                    if when == "at once":
                        made.Free()
                    else:
                        left.append(made)
                x = np.sin(x + part * y / comm.size)
            for made in left:
                made.Free()
        return x * x

    return program


def numbers(few, many):
    """Numbers of random programs; only the first few are not marked slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] * (n >= few)) for n in range(many)]


@pytest.mark.parametrize("number", numbers(3, 60))
def test_drawn_communicators(number):
    check(drawn(number), COMM_WORLD, WORLD)


# Windows.


def exposed(np, comm, kind, n, dtype):
    """A window, its memory, and what to add to displacements."""
    size = numpy.dtype(dtype).itemsize
    windows = ampi.Win if np is ampi.numpy else ampi.Win._base
    if kind == "Create_dynamic":
        win, memory = windows.Create_dynamic(comm=comm), np.zeros(n, dtype)
        places = numpy.array(WORLD.allgather(MPI.Get_address(memory)))
        win.Attach(memory)
        return win, memory, places
    if kind == "Create":
        memory = np.zeros(n, dtype)
        return windows.Create(memory, size, comm=comm), memory, None
    win = getattr(windows, kind)(n * size, size, comm=comm)
    memory = np.ndarray((n,), dtype, win.tomemory())
    memory[...] = 0
    return win, memory, None


def moved(win, comm, kind, operation, x, target, places):
    """The values that this rank gets by an operation on another rank's memory, in one kind of epoch."""
    came = x * 0.0
    spec = None if places is None else (int(places[target]), len(x), MPI._typedict[x.dtype.char])
    if kind == "Fence":
        win.Fence()
    elif kind == "Start":
        win.Post(comm.group.Incl([2 * comm.rank - target if comm.size == 1 else (comm.rank - 1) % comm.size]))
        win.Start(comm.group.Incl([target]))
    else:
        win.Lock(target)
    if operation == "Put":
        win.Put(x, target, spec)
    elif operation == "Get":
        win.Get(came, target, spec)
    elif operation == "Accumulate":
        win.Accumulate(x, target, spec)
    else:
        win.Get_accumulate(x, came, target, spec)
    if kind == "Fence":
        win.Fence()
    elif kind == "Start":
        win.Complete()
        win.Wait()
    else:
        win.Unlock(target)
    return came


WINDOWS = ["Create", "Allocate", "Allocate_shared", "Create_dynamic"]
MOVES = ["Put", "Get", "Accumulate", "Get_accumulate"]


def drawn_windows(number, iterations=2):
    """A random program that makes windows and frees them, at once or later, with messages in between."""
    draw = chance.Random(number)
    uses = [
        (draw.choice(WINDOWS), draw.choice(["Fence", "Lock", "Start"]), draw.choice(MOVES), draw.choice("abc"))
        for _ in range(draw.randint(1, 3))
    ]

    def program(np, comm, x):
        left = []
        for _ in range(iterations):
            for kind, epoch, operation, when in uses:
                win, memory, places = exposed(np, comm, kind, len(x), x.dtype)
                memory[:] = 0.5 * x
                comm.Barrier()
                came = moved(win, comm, epoch, operation, x * x, around(comm)[0], places)
                if when == "a" and kind == "Create":
                    win.Free()
                    win = None
                else:
                    comm.Barrier()
                y = np.zeros(x.shape, x.dtype)
                comm.Sendrecv(memory + 0.3 * came, around(comm)[0], 0, y, around(comm)[1], 0)
                x = np.sin(0.7 * x + y)
                if kind == "Create_dynamic":
                    comm.Barrier()
                    win.Detach(memory)
                if win is not None:
                    left.append(win)
                while left and (when != "c" or len(left) > 2):
                    left.pop(0).Free()
        for win in left:
            win.Free()
        return x * x

    return program


@pytest.mark.parametrize("number", numbers(2, 40))
def test_drawn_windows(number):
    check(drawn_windows(number), COMM_WORLD, WORLD)


# How many there are.


def passed_on(kind, iterations, seen):
    """x is passed around the ring repeatedly, each time by a new communicator or window."""
    comm = COMM_WORLD
    after, before = around(comm)

    def program(x):
        for _ in range(iterations):
            y = ampi.numpy.zeros(2)
            if kind == "window":
                win = ampi.Win.Create(y, 8, comm=comm)
                win.Fence()
                win.Put(x, after)
                win.Fence()
            elif kind == "lock":
                win = ampi.Win.Create(y, 8, comm=comm)
                win.Lock(after)
                win.Put(x, after)
                win.Unlock(after)
            else:
                win = MADE[kind](comm)
                win.Sendrecv(x, after, 0, y, before, 0)
            seen.append(alive())
            win.Free()
            x = y * 1.0
        return ampi.numpy.sum(x)

    return program


ONE_RING = ["Dup", "Idup", "Create_cart", "Create_dist_graph", "window", "lock"]


@pytest.mark.parametrize("kind", ONE_RING)
def test_few_are_alive(kind):
    before, seen = alive(), []
    f, x = passed_on(kind, 6, seen), numpy.array([1.0, 3.0])
    numpy.testing.assert_allclose(ampi.grad(f)(x), 1.0)
    numpy.testing.assert_allclose(ampi.jvp(f, x, x)[1], 4.0)
    numpy.testing.assert_allclose(ampi.hvp(lambda x: f(x) ** 2, x, x), 8.0)
    assert max(seen) <= before + 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ONE_RING)
def test_more_than_mpi_has_room_for(kind):
    numpy.testing.assert_allclose(ampi.grad(passed_on(kind, 2100, []))(numpy.ones(2)), 1.0)
