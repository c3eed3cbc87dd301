"""One-sided communication: programs with windows compared with the complex step, and special cases."""

import numpy
import pytest
from mpi4py import MPI
from programs import check, typeof
from window_cases import allocated, attached, created, put, right, windows_of

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
DTYPES = ["float32", "float64", "complex64", "complex128"]


def put_into_allocated(np, comm, x):
    win, memory = allocated(np, comm, 4, x.dtype)
    memory[3] = x[0]
    win.Fence()
    win.Put(x * x, right(comm))
    win.Fence()
    y = memory * memory
    win.Fence()
    win.Free()
    return y


def get(np, comm, x):
    """All ranks get overlapping regions, while the target also reads its memory."""
    win, memory = created(np, comm, 4, x.dtype)
    memory[:3] = x * x
    win.Fence()
    y = np.zeros((comm.size, 3), x.dtype)
    own = memory[0] * memory[2]
    for rank in range(comm.size):
        win.Get(y[rank], rank, comm.rank % 2)
    win.Fence()
    win.Free()
    return y * y + own


def accumulate(np, comm, x):
    win, memory = created(np, comm, 3, x.dtype)
    memory[...] = x * 2
    win.Fence()
    for rank in range(comm.size):
        win.Accumulate(x * x * (rank + 1), rank)
    win.Fence()
    y = memory * memory
    win.Fence()
    win.Accumulate(x, right(comm), op=MPI.REPLACE)
    win.Fence()
    y = y * memory
    win.Free()
    return y


def fetch(np, comm, x):
    """Each rank updates its own element of rank 0's memory, twice, and fetches what was there."""
    win, memory = created(np, comm, comm.size, x.dtype)
    memory[...] = x[0] + x[1]
    first, second, third, fourth = (np.zeros(1, x.dtype) for _ in range(4))
    win.Fence()
    win.Fetch_and_op(x[:1] * x[2], first, 0, comm.rank)
    win.Fetch_and_op(x[1:2], second, 0, comm.rank)
    win.Fence()
    y = memory * first * second
    win.Fence()
    win.Get_accumulate(x[2:], third, 0, (comm.rank, 1), op=MPI.REPLACE)
    win.Fence()
    win.Get_accumulate(x[:1], fourth, 0, (comm.rank, 1), op=MPI.NO_OP)
    win.Fence()
    y = y * memory + third * third * fourth
    win.Free()
    return y


def datatypes(np, comm, x):
    """Every second element of target and origin; gaps stay unchanged."""
    win, memory = created(np, comm, 8, x.dtype)
    memory[...] = x[1]
    spread = typeof(x).Create_vector(3, 1, 2).Commit()
    source = np.zeros(6, x.dtype)
    source[::2] = x * x
    win.Fence()
    win.Put([source, 1, spread], right(comm), (1, 1, spread))
    win.Fence()
    y = memory * memory
    win.Fence()
    got = np.zeros(6, x.dtype) + x[2]
    win.Get([got, 3, typeof(x)], right(comm), (2, 1, spread))
    win.Fence()
    spread.Free()
    win.Free()
    return np.concatenate([y, got * got])


def bytes_of(np, comm, x):
    win, memory = created(np, comm, 3, x.dtype)
    win.Fence()
    win.Put([x * x, MPI.BYTE], right(comm), (0, x.nbytes, MPI.BYTE))
    win.Fence()
    y = memory * 2
    win.Free()
    return y


def in_bytes(np, comm, x):
    """Displacements in bytes on odd ranks."""
    unit = 1 if comm.rank % 2 else x.itemsize
    memory = np.zeros(4, x.dtype)
    win = windows_of(np).Create(memory, unit, comm=comm)
    win.Fence()
    win.Put(x * x, right(comm), x.itemsize if right(comm) % 2 else 1)
    win.Fence()
    win.Free()
    return memory * memory


def post_start(np, comm, x):
    """Three rounds of a ring with Post, Start, Complete and Wait; the target reads while others do."""
    win, memory = created(np, comm, 3, x.dtype)
    group = comm.Get_group()
    before, after = group.Incl([right(comm, -1)]), group.Incl([right(comm)])
    memory[...] = x
    y = x * 0
    for turn in range(3):
        win.Post(before)
        win.Start(after)
        got = np.zeros(3, x.dtype)
        win.Get(got, right(comm))
        own = memory * memory
        win.Complete()
        if turn % 2:
            win.Wait()
        else:
            while not win.Test():
                pass
        y = y + own * got
        win.Post(before)
        win.Start(after)
        win.Put(got * x, right(comm))
        win.Complete()
        win.Wait()
    y = y * memory
    for g in (group, before, after):
        g.Free()
    win.Free()
    return y


def nobody_else(np, comm, x):
    """A window on one rank, and PROC_NULL as a target."""
    win, memory = created(np, MPI.COMM_SELF, 3, x.dtype)
    win.Fence()
    win.Put(x * x, 0)
    win.Put(x, MPI.PROC_NULL)
    win.Fence()
    win.Get(memory[:1], MPI.PROC_NULL)
    win.Free()
    return memory * 3


PROGRAMS = [
    *(put, put_into_allocated, get, accumulate, fetch, datatypes, bytes_of, in_bytes, post_start),
    nobody_else,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program):
    check(program, COMM_WORLD, WORLD)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("program", [put, get, accumulate], ids=lambda program: program.__name__)
def test_dtypes(program, dtype):
    check(program, COMM_WORLD, WORLD, dtype=dtype)


@pytest.mark.mpi(min_size=2)
def test_communicators():
    for make in (lambda c: c.Split(0, -c.rank), lambda c: c.Split(c.rank % 2, c.rank)):
        ours, theirs = make(COMM_WORLD), make(WORLD)
        check(put, ours, theirs)
        check(get, ours, theirs)
        ours.Free()
        theirs.Free()


@pytest.mark.mpi(min_size=2)
def test_overlapping_gets_add():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0))
        win = ampi.Win.Create(x, 8, comm=COMM_WORLD)
        win.Fence()
        y = ampi.numpy.zeros(3)
        win.Get(y, 0)
        win.Fence()
        win.Free()
    x_bar = tape.gradient(y, x, seed=numpy.arange(1.0, 4.0) * 10**WORLD.rank)
    total = sum(10**rank for rank in range(WORLD.size))
    assert numpy.array_equal(x_bar, numpy.arange(1.0, 4.0) * total if WORLD.rank == 0 else numpy.zeros(3))


@pytest.mark.mpi(min_size=3)
def test_ranks_without_part_in_an_epoch_take_part_in_the_sweep():
    rank, group = WORLD.rank, WORLD.Get_group()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(1, 2.0 + rank))
        win, memory = created(ampi.numpy, COMM_WORLD, 1, "d")
        if rank == 0:
            win.Start(group.Incl([1]))
            win.Put(x * x, 1)
            win.Complete()
        elif rank == 1:
            win.Post(group.Incl([0]))
            win.Wait()
        y = memory * 3
        win.Free()
    assert tape.gradient(y, x).tolist() == [0.0 if rank else 12.0]
    group.Free()


@pytest.mark.mpi(min_size=2)
def test_only_one_rank_records():
    """The others take part in deferred operations; nothing hangs."""
    win, memory = allocated(ampi.numpy, COMM_WORLD.Dup(), 1, "d")
    got = ampi.numpy.zeros(1)

    def use():
        win.Fence()
        win.Fetch_and_op(numpy.ones(1), got, 0)
        win.Fence()
        group = WORLD.Get_group()
        if WORLD.rank == 0:
            win.Post(group)
        win.Start(group.Incl([0]))
        win.Fetch_and_op(numpy.ones(1), got, 0)
        win.Complete()
        if WORLD.rank == 0:
            win.Wait()
        group.Free()

    if WORLD.rank == 1:
        with ampi.Tape() as tape:
            tape.watch(numpy.ones(1))
            use()
    else:
        use()
    WORLD.Barrier()
    assert WORLD.rank or memory[0] == 2 * WORLD.size
    win.Free()


def dynamic(np, comm, x):
    """Arrays attached, detached and attached again, with fences and with locks; a part of one array only."""
    win = windows_of(np).Create_dynamic(comm=comm)
    first, second = np.zeros(5, x.dtype), np.zeros(3, x.dtype)
    first[:3] = x * x
    where = attached(np, comm, win, first[1:])
    win.Fence()
    win.Put(x * 3, right(comm), where[right(comm)] + x.itemsize)
    win.Fence()
    y = first[:3] * first[2:]
    elsewhere = attached(np, comm, win, second)
    win.Fence(MPI.MODE_NOSUCCEED)
    win.Lock_all()
    spread = typeof(x).Create_vector(2, 1, 2).Commit()
    win.Accumulate([x, 2, typeof(x)], right(comm), (elsewhere[right(comm)], 1, spread))
    win.Flush_all()
    spread.Free()
    comm.Barrier()
    got = np.zeros(3, x.dtype)
    win.Get(got, right(comm, 2), elsewhere[right(comm, 2)])
    y = y * second
    win.Unlock_all()
    comm.Barrier()
    win.Detach(first[1:])
    win.Detach(second)
    where = attached(np, comm, win, second)
    win.Lock(right(comm))
    win.Put(got * x, right(comm), where[right(comm)])
    win.Unlock(right(comm))
    comm.Barrier()
    y = y + second * second
    win.Detach(second)
    win.Free()
    return y


def test_dynamic_windows():
    check(dynamic, COMM_WORLD, WORLD)


def test_untracked_memory_in_a_dynamic_window():
    memory = numpy.zeros(1)
    win = ampi.Win.Create_dynamic(comm=COMM_WORLD.Dup())
    addresses = attached(numpy, WORLD, win, memory)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        win.Fence()
        win.Put(x, right(WORLD), addresses[right(WORLD)])
        win.Fence()
    with pytest.raises(ampi.AmpiError, match="not tracked on rank"):
        tape.gradient(x, x)
    win.Detach(memory)
    win.Free()


@pytest.mark.mpi(min_size=2)
def test_gradient_of_local_work_beside_a_window():
    """A rank that did not communicate while its tape recorded does not wait for the others."""
    win = ampi.Win.Allocate(24, 8, comm=COMM_WORLD)
    memory = ampi.numpy.asarray(numpy.frombuffer(win.tomemory(), "d"))
    memory[...] = 1.0
    if COMM_WORLD.rank == 0:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.full(2, 1.0))
            memory[:2] = 3 * x
            y = ampi.numpy.sum(memory * memory)
        assert tape.gradient(y, x).tolist() == [18.0, 18.0]
    COMM_WORLD.Barrier()
    win.Free()
