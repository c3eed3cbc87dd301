"""Loads from other ranks' memory in shared windows, and stores to it."""

import numpy
import pytest
from mpi4py import MPI
from programs import check
from window_cases import right, windows_of

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD


def segment(np, win, dtype, rank):
    return np.frombuffer(win.Shared_query(rank)[0], dtype)


def neighbours(np, comm, x):
    """Loads from both neighbours' segments and stores to one of them, between fences; Put and Get as well."""
    win = windows_of(np).Allocate_shared(4 * x.itemsize, x.itemsize, comm=comm)
    own = segment(np, win, x.dtype, comm.rank)
    after, before = (segment(np, win, x.dtype, right(comm, steps)) for steps in (1, -1))
    own[...] = 0
    comm.Barrier()
    y = x * 0
    for turn in range(2):
        own[:3] = x * x
        win.Fence()
        y = y + after[:3] * before[:3] + own[0] * x
        win.Fence()
        after[1:] = x * (turn + 2)
        win.Fence()
        before[0] *= x[1]
        win.Fence()
        got = np.zeros(3, x.dtype)
        win.Get(got, right(comm), 1)
        x = x + own[1:] * own[0] / 4
        win.Fence()
        win.Put(got * x, right(comm, -1), 1)
        win.Fence()
        y = y + after[1:] * own[1:]
        win.Fence()
    win.Free()
    return y


def one_for_all(np, comm, x):
    """One rank has the memory; all ranks use it in turns, under locks and in one epoch with Sync and barriers."""
    win = windows_of(np).Allocate_shared(3 * x.itemsize * (comm.rank == 0), x.itemsize, comm=comm)
    shared = segment(np, win, x.dtype, MPI.PROC_NULL)
    if comm.rank == 0:
        shared[...] = x
    comm.Barrier()
    y = x * 0
    for rank in range(comm.size):
        if rank == comm.rank:
            win.Lock(0)
            y = y + shared * x
            shared *= x
            win.Unlock(0)
        comm.Barrier()
    win.Lock_all()
    y = y + shared * x[1]
    win.Sync()
    comm.Barrier()
    if comm.rank == comm.size - 1:
        shared[1:] = y[1:] * x[0]
    win.Sync()
    comm.Barrier()
    y = y * shared
    comm.Barrier()
    win.Unlock_all()
    win.Free()
    return y


@pytest.mark.parametrize("program", [neighbours, one_for_all], ids=lambda program: program.__name__)
def test_loads_and_stores_in_shared_memory(program):
    ours, plain = (comm.Split_type(MPI.COMM_TYPE_SHARED) for comm in (COMM_WORLD, WORLD))
    check(program, ours, plain)
    ours.Free()
    plain.Free()


@pytest.mark.mpi(min_size=2)
def test_messages_from_and_to_another_ranks_memory():
    comm = COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    win = ampi.Win.Allocate_shared(8, 8, comm=comm)
    theirs = segment(ampi.numpy, win, "d", right(comm))
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(1, 3.0))
        with ampi.passive():
            theirs[...] = 9
            assert theirs * 1 == 9
        with pytest.raises(ampi.ActivityError, match="another rank's memory in a shared window"):
            comm.Isend(theirs, 0)
        with pytest.raises(ampi.ActivityError, match="another rank's memory in a shared window"):
            comm.Irecv(theirs, 0)
        y = x * x
    comm.Barrier()
    assert tape.gradient(y, x) == 6
    win.Free()
    comm.Free()


def test_shared_memory_that_is_left_alone_before_its_window_is_freed():
    """An augmented assignment to a part writes the part back onto itself: an access without an effect."""
    comm = ampi.COMM_WORLD.Dup()
    x0 = numpy.array([0.3, 0.7]) + 0.1 * comm.rank
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        win = MPI.Win.Allocate_shared(16, 8, comm=comm)
        mine = ampi.numpy.frombuffer(win.Shared_query(comm.rank)[0], "d")
        mine[...] = 0.0
        win.Fence()
        near = ampi.numpy.frombuffer(win.Shared_query((comm.rank + 1) % comm.size)[0], "d")
        mine += ampi.numpy.sin(x)
        win.Fence()
        near[0:1] *= ampi.numpy.cos(x[0:1])
        win.Fence()
        del near, mine
        win.Free()
        y = ampi.numpy.sum(x * x)
    numpy.testing.assert_allclose(tape.gradient(y, x), 2 * x0)
    comm.Free()
