"""Rerun steps of time loops execute one-sided operations in the order of their first run.

All ranks access rank 0's memory after random delays, in one of many ways, and results depend on their order.  The
gradient is that of a plain loop that is given the order of the first run.
"""

import gc
import random as randomness
import time
import weakref

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi import MPI
from ampi.mpi import COMM_WORLD
from ampi.mpi.windows.window import windows

SIZE = COMM_WORLD.size
N = 2
RESTS = 0.004  # seconds, at most


def rest():
    time.sleep(RESTS * randomness.random())


def allocated(comm, dtype="d", n=N):
    size = numpy.dtype(dtype).itemsize
    win = ampi.Win.Allocate(n * size, size, comm=comm)
    memory = np.frombuffer(win.tomemory(), dtype)
    memory[...] = 0
    win.Fence()
    return win, memory


def freed(comm, win, came):
    comm.Barrier()
    win.Free()
    return came


def changed(old, v):
    return np.sin(1.3 * old + v)


# Ways to access rank 0's memory.  They return this rank's result for its v, and a key for its position in the order: a
# number, or the value found.


def one_after_the_other(comm, v):
    """Under an exclusive lock: read, change, write."""
    win, _ = allocated(comm, n=N + 1)
    old = np.zeros(N + 1)
    rest()
    win.Lock(0)
    win.Get(old, 0)
    win.Flush(0)
    win.Put(np.concatenate([changed(old[:N], v), old[N:] + 1.0]), 0)
    win.Unlock(0)
    return freed(comm, win, old[:N] * 1), int(ampi.value(old)[N])


def exchanged(comm, v, epoch, request=False):
    """Exchange the value in memory with this rank's."""
    win, _ = allocated(comm)
    old = np.zeros(N)

    def exchange():
        if request:
            win.Rget_accumulate(v, old, 0, op=MPI.REPLACE).Wait()
        else:
            win.Get_accumulate(v, old, 0, op=MPI.REPLACE)

    epoch(comm, win, exchange)
    return freed(comm, win, old * 1), float(ampi.value(old)[0])


def fences(comm, win, work):
    win.Fence()
    rest()
    work()
    win.Fence(MPI.MODE_NOSUCCEED)


def starts(comm, win, work):
    group = comm.Get_group()
    first = group.Incl([0])
    if comm.rank == 0:
        win.Post(group)
    rest()
    win.Start(first)
    work()
    win.Complete()
    if comm.rank == 0:
        turns = 0
        while not win.Test():
            turns += 1
    group.Free()
    first.Free()


def shared_locks(comm, win, work):
    rest()
    win.Lock(0, MPI.LOCK_SHARED)
    work()
    win.Unlock(0)


def exclusive_locks(comm, win, work):
    rest()
    win.Lock(0)
    work()
    win.Unlock(0)


def locks_of_all(comm, win, work):
    win.Lock_all()
    rest()
    work()
    win.Unlock_all()


def some_of_each(comm, win, work):
    (exclusive_locks, shared_locks, locks_of_all)[comm.rank % 3](comm, win, work)


def counted(comm, v, swap=False, win=None):
    """Take the next number from a counter."""
    mine = win is None
    if mine:
        win, _ = allocated(comm, "i", 1)
    else:
        if comm.rank == 0:
            win.Lock(0)
            win.Put(numpy.zeros(1, "i"), 0)
            win.Unlock(0)
        comm.Barrier()
    one, number = numpy.ones(1, "i"), numpy.zeros(1, "i")
    rest()
    win.Lock_all()
    if swap:
        expected, turns = 0, 0
        while True:
            win.Compare_and_swap(numpy.array([expected + 1], "i"), numpy.array([expected], "i"), number, 0)
            win.Flush(0)
            if number[0] == expected:
                break
            expected, turns = int(number[0]), turns + 1
    else:
        win.Fetch_and_op(one, number, 0)
        win.Flush(0)
    win.Unlock_all()
    came = v * (1.0 + 0.3 * int(number[0]))
    comm.Barrier()
    if mine:
        win.Free()
    return came, int(number[0])


def summed(comm, v, epoch, op=MPI.SUM, request=False):
    """Add atomically: the order affects only rounding."""
    win, memory = allocated(comm)
    memory[...] = 0.7

    def add():
        if request:
            win.Raccumulate(v, 0, op=op).Wait()
        else:
            win.Accumulate(v, 0, op=op)

    win.Fence()
    epoch(comm, win, add)
    comm.Barrier()
    came = memory * 1
    comm.Bcast(came, 0)
    win.Free()
    return came, 0


# The results of these ways for a given order of the ranks.


def places(keys):
    return sorted(range(SIZE), key=lambda rank: keys[rank])


def changed_in_order(rank, v, keys):
    old = np.zeros(N)
    for k in places(keys):
        if k == rank:
            return old
        old = changed(old, v[k])
    raise AssertionError


def exchanged_in_order(rank, v, keys):
    for k in range(SIZE):
        if abs(keys[rank] - float(ampi.value(v)[k, 0])) < 1e-12:
            return v[k]
    assert keys[rank] == 0.0
    return np.zeros(N)


def counted_in_order(rank, v, keys):
    return v[rank] * (1.0 + 0.3 * keys[rank])


def sum_of_all(rank, v, keys):
    return 0.7 + np.sum(v, axis=0)


def product_of_all(rank, v, keys):
    return 0.7 * np.prod(v, axis=0)


EPOCHS = [fences, starts, shared_locks, exclusive_locks, locks_of_all, some_of_each]
WAYS = {"one_after_the_other": (one_after_the_other, {}, changed_in_order)}
WAYS.update((f"exchanged-{e.__name__}", (exchanged, {"epoch": e}, exchanged_in_order)) for e in EPOCHS)
WAYS.update((f"summed-{e.__name__}", (summed, {"epoch": e}, sum_of_all)) for e in EPOCHS)
WAYS.update((f"product-{e.__name__}", (summed, {"epoch": e, "op": MPI.PROD}, product_of_all)) for e in EPOCHS)
for e in EPOCHS[2:]:
    WAYS[f"requests-{e.__name__}"] = exchanged, {"epoch": e, "request": True}, exchanged_in_order
    WAYS[f"summed-by-requests-{e.__name__}"] = summed, {"epoch": e, "request": True}, sum_of_all
WAYS["counted"] = counted, {}, counted_in_order
WAYS["swapped"] = counted, {"swap": True}, counted_in_order
for made in ("allocated", "created"):
    WAYS[f"counted-{made}-before"] = counted, {"win": made}, counted_in_order
    WAYS[f"swapped-{made}-before"] = counted, {"win": made, "swap": True}, counted_in_order


def run(x, take, comm, steps, seen, **options):
    """The objective; ``take(comm, v)`` returns a result and a key, which is appended to ``seen`` once."""

    def step(u):
        came, key = take(comm, u * (0.9 + 0.17 * comm.rank) + 0.3)
        if seen is not None:
            ampi.once(seen.append, key)
        return np.sin(0.7 * u + 0.4 * came)

    u = x * 1.0
    if options:
        u = ampi.timeloop(step, u, steps, **options)
    else:
        for _ in range(steps):
            u = step(u)
    return np.sum(u * u)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_rerun_steps_keep_the_order(way, kept):
    function, options, reference = WAYS[way]
    comm = COMM_WORLD.Dup()
    outside = None
    if "win" in options:
        memory = numpy.zeros(1, "i")
        created = options["win"] == "created"
        outside = ampi.Win.Create(memory, 4, comm=comm) if created else ampi.Win.Allocate(4, 4, comm=comm)
        options = {**options, "win": outside}
    x = numpy.array([0.3, 0.8]) + 0.1 * comm.rank
    seen = []
    found, back = ampi.vjp(lambda x: run(x, lambda c, v: function(c, v, **options), comm, 7, seen, checkpoints=kept), x)
    x_bar = [back(1.0) for _ in range(2)]
    assert len(seen) == 7
    keys = list(zip(*comm.allgather(seen)))
    order = iter(keys)

    def as_seen(comm, v):
        every = np.zeros((SIZE, N))
        comm.Allgather(v, every)
        return reference(comm.rank, every, next(order)), None

    expected, plain = ampi.vjp(lambda x: run(x, as_seen, comm, 7, None), x)
    assert found == pytest.approx(expected, rel=1e-11)
    wanted = plain(1.0)
    for bar in x_bar:
        numpy.testing.assert_allclose(bar, wanted, rtol=1e-8)  # steps on 8 ranks amplify rounding errors by 5e5
    assert next(order, None) is None
    if outside is not None:
        outside.Free()
    comm.Free()


def drawn(seed, rounds=3):
    """Random rounds of epochs: the kind, and each rank's operations: (target, operation, fetches, elements)."""
    draw = randomness.Random(seed)
    kinds = ["fences", "starts", "locks", "all"]

    def work():
        some = range(draw.randrange(4))
        return [(draw.randrange(SIZE), draw.choice(OPS), draw.random() < 0.5, draw.choice(PARTS)) for _ in some]

    return [(draw.choice(kinds), [work() for _ in range(SIZE)]) for _ in range(rounds)]


@pytest.mark.mpi(min_size=2)
def test_windows_of_steps_do_not_outlive_them():
    """The tape around the loop sees neither windows of unrecorded steps nor operations on them."""
    comm = COMM_WORLD.Dup()
    made = []

    def step(u):
        win, memory = allocated(comm)
        made.append(weakref.ref(windows[win.handle]))
        win.Fence()
        win.Accumulate(u, (comm.rank + 1) % SIZE, op=MPI.REPLACE)
        win.Fence()
        win.Lock(0, MPI.LOCK_SHARED)
        win.Get_accumulate(u, np.zeros(N), 0, op=MPI.NO_OP)
        win.Unlock(0)
        u = np.sin(0.9 * u + 0.1 * memory)
        win.Free()
        return u

    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([0.3, 0.8]))
        y = np.sum(ampi.timeloop(step, x * 1.0, 8, checkpoints=1))
    gc.collect()
    assert [ref() for ref in made[:-1]] == [None] * 7
    assert len(tape.records) < 10
    assert numpy.all(tape.gradient(y, x))
    comm.Free()


OPS = [MPI.SUM, MPI.SUM, MPI.PROD, MPI.MAX, MPI.REPLACE, MPI.NO_OP]
PARTS = [(0, 1), (0, 2), (1, 2), (0, 0), (0, 4, 2)]  # first, stop and step of elements


def datatype_of(start, stop, step=1):
    return MPI.DOUBLE.Create_indexed_block(1, range(start, stop, step)).Commit()


def do(win, u, target, op, fetches, part, came):
    """Execute one operation, and free its datatype at once."""
    datatype = datatype_of(*part)
    v = u[slice(*part)] * 1
    place = [0, 1, datatype]
    if fetches or op == MPI.NO_OP:
        old = np.zeros(v.size)
        win.Get_accumulate([v, MPI.DOUBLE], [old, MPI.DOUBLE], target, place, op)
        came.append(old)
    else:
        win.Accumulate([v, MPI.DOUBLE], target, place, op)
    datatype.Free()


def random_step(comm, u, rounds):
    win, memory = allocated(comm, n=4)
    memory[...] = np.cos(u) + 1.2
    group = comm.Get_group()
    came = []
    for kind, works in rounds:
        comm.Barrier()
        work = works[comm.rank]
        rest()
        if kind == "fences":
            win.Fence()
            for one in work:
                do(win, u, *one, came)
            win.Fence()
        elif kind == "starts":
            win.Post(group)
            win.Start(group)
            for one in work:
                do(win, u, *one, came)
            win.Complete()
            win.Wait()
        elif kind == "all":
            win.Lock_all()
            for one in work:
                do(win, u, *one, came)
                rest()
            win.Unlock_all()
        else:
            for n, one in enumerate(work):
                win.Lock(one[0], (MPI.LOCK_SHARED, MPI.LOCK_EXCLUSIVE)[n % 2])
                do(win, u, *one, came)
                win.Unlock(one[0])
    comm.Barrier()
    total = memory * 0.3 + sum(np.sum(old) * (0.1 + 0.02 * n) for n, old in enumerate(came))
    group.Free()
    comm.Barrier()
    win.Free()
    return np.sin(0.5 * u + total)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("seed", range(6))
def test_random_epochs_keep_the_order(seed):
    comm = COMM_WORLD.Dup()
    rounds = drawn(seed)

    def inner(u):
        return ampi.timeloop(lambda u: random_step(comm, u, rounds), u, 2, checkpoints=1)

    def objective(x):
        step = inner if seed % 3 == 2 else lambda u: random_step(comm, u, rounds)
        return np.sum(ampi.timeloop(step, x * 1.0, 4, checkpoints=1))

    x = numpy.linspace(0.1, 0.9, 4) + 0.1 * comm.rank
    _, back = ampi.vjp(objective, x)
    first, second = back(1.0), back(1.0)
    assert numpy.array_equal(first, second)
    assert numpy.all(numpy.isfinite(first))
    comm.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("allocated_by_mpi", [False, True])
@pytest.mark.parametrize("how", ["state", "written", "partly", "read"])
def test_steps_use_this_ranks_window_memory(how, allocated_by_mpi):
    """Other ranks overwrite it before the loop and after it; steps that run again find their values there."""
    comm, right = COMM_WORLD, (COMM_WORLD.rank + 1) % SIZE
    x0 = numpy.linspace(0.5, 0.9, N) + 0.1 * comm.rank
    factors, windows_to_free = (0.3, 0.7), []

    def run(np, win_class, x, loop):
        if allocated_by_mpi:
            win = win_class.Allocate(N * x.itemsize, x.itemsize, comm=comm)
            memory = np.frombuffer(win.tomemory(), x.dtype)
        else:
            memory = np.zeros(N, x.dtype)
            win = win_class.Create(memory, memory.itemsize, comm=comm)
        win.Fence()
        win.Put(x * x, right)
        win.Fence()

        def in_place(u):
            u *= factors[0] + u
            u[:] = np.sin(u)

        def written(u):
            memory[:] = np.sin(memory) * u
            return u * factors[1] + memory * memory

        def partly(u):
            memory[:1] = np.sin(memory[1:2]) * u[:1]
            return u * factors[1] + memory * memory

        def read(u):
            return np.tanh(u * memory) + factors[0] * memory * memory

        step = {"written": written, "partly": partly, "read": read}.get(how)
        y = np.sum(loop(in_place, memory) if step is None else loop(step, x * 1.0))
        win.Fence()
        last = memory * memory
        win.Fence()
        win.Put(x * 7.0, right)
        win.Fence()
        y = y + np.sum(last) + np.sum(memory * x)
        if allocated_by_mpi:
            windows_to_free.append(win)  # after the gradient: with it, MPI frees the memory
        else:
            win.Free()
        return y

    def all_steps(step, state):
        for _ in range(7):
            result = step(state)
            state = state if result is None else result
        return state

    expected = numpy.zeros((SIZE, N))
    for place in numpy.ndindex(SIZE, N):
        x = x0.astype(complex)
        x[place[1]] += 1e-30j * (place[0] == comm.rank)
        expected[place] = comm.allreduce(run(numpy, MPI.Win._base, x, all_steps).imag * 1e30)
    gradient = ampi.grad(lambda x: run(np, ampi.Win, x, lambda s, u: ampi.timeloop(s, u, steps=7, checkpoints=2)))
    numpy.testing.assert_allclose(gradient(x0), expected[comm.rank], rtol=1e-12)
    for win in windows_to_free:
        win.Free()
