"""One-sided communication: programs with windows against the complex step, and the traps one by one."""

import gc

import numpy
import pytest
from mpi4py import MPI
from programs import broken_in, check, random, typeof

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
DTYPES = ["float32", "float64", "complex64", "complex128"]


def windows_of(np):
    """The class of windows for a program on ampi or on mpi4py and NumPy."""
    return ampi.Win if np is ampi.numpy else ampi.Win._base


def allocated(np, comm, n, dtype):
    """A window and an array on its memory, zeros."""
    size = numpy.dtype(dtype).itemsize
    win = windows_of(np).Allocate(n * size, size, comm=comm)
    memory = np.frombuffer(win.tomemory(), dtype)
    memory[...] = 0
    win.Fence()
    return win, memory


def created(np, comm, n, dtype):
    memory = np.zeros(n, dtype)
    return windows_of(np).Create(memory, numpy.dtype(dtype).itemsize, comm=comm), memory


def right(comm, steps=1):
    return (comm.rank + steps) % comm.size


# Programs: functions of the array module, the communicator and this rank's array of 3.


def put(np, comm, x):
    win, memory = created(np, comm, 5, x.dtype)
    memory[:3] = x * x
    used = memory**2
    win.Fence()
    win.Put(x * 3, right(comm), 1)
    win.Fence()
    y = memory**2 + used
    win.Fence()
    win.Put([x, 2, typeof(x)], right(comm, 2), (0, 2))
    win.Fence()
    y = y * memory
    win.Free()
    return y


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
    """Gets of overlapping regions by all ranks, while the target reads its memory as well."""
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
    """Every second element, of the target and of the origin; gaps stay as they are."""
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
    """A ring with Post, Start, Complete and Wait, three times round; the target reads while others do."""
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
    """The window of one rank alone, and a PROC_NULL target."""
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


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_put_zeroes_what_it_overwrites():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(3))
        memory = ampi.numpy.zeros(3)
        memory[...] = x * 5
        win = ampi.Win.Create(memory, 8, comm=COMM_WORLD)
        win.Fence()
        win.Put(numpy.full(1, 7.0), right(WORLD), 1)
        win.Fence()
        win.Free()
    assert numpy.array_equal(memory, [5, 7, 5])
    assert numpy.array_equal(tape.gradient(memory, x, seed=numpy.ones(3)), [5, 0, 5])


def test_window_and_buffers_freed_before_the_sweep():
    with ampi.Tape() as tape:
        x = tape.watch(random(3))
        win, memory = allocated(ampi.numpy, COMM_WORLD, 3, "d")
        win.Put(x * x, right(WORLD))
        win.Fence()
        y = memory**3
        win.Fence()
        del memory
        win.Free()
    gc.collect()
    others, _ = allocated(ampi.numpy, COMM_WORLD, 3, "d")
    x_bar = tape.gradient(y, x, seed=numpy.ones(3))
    numpy.testing.assert_allclose(x_bar, 6 * ampi.value(x) ** 5, rtol=1e-14)
    others.Free()


def test_memory_is_as_it_was_after_the_sweep():
    with ampi.Tape() as tape:
        x = tape.watch(random(3))
        memory = x * 2
        y = memory**2  # needs what the memory has before the window is made
        win = ampi.Win.Create(memory, 8, comm=COMM_WORLD)
        win.Fence()
        win.Put(x**2, right(WORLD))
        win.Fence()
        z = y * memory
        memory[:2] = 3.0
        win.Fence()
    before = ampi.value(memory).copy()
    x_bar = tape.gradient(z, x, seed=numpy.ones(3))
    assert numpy.array_equal(memory, before)
    assert numpy.array_equal(tape.gradient(z, x, seed=numpy.ones(3)), x_bar)
    win.Free()


def test_window_made_before_the_tape_and_a_target_that_has_nothing_else_to_do():
    win = ampi.Win.Allocate(8 * WORLD.size, 8, comm=COMM_WORLD)
    memory = ampi.numpy.frombuffer(win.tomemory(), "d")
    win.Fence()
    with ampi.Tape() as tape:
        x = tape.watch(random(1))
        win.Fence()
        win.Put(x * x, 0, WORLD.rank)
        win.Fence()
        y = ampi.numpy.sum(memory**2) if WORLD.rank == 0 else None
    x_bar = tape.gradient(y, x)
    numpy.testing.assert_allclose(x_bar, 4 * ampi.value(x) ** 3, rtol=1e-14)
    win.Free()


def test_idle_window_takes_no_part():
    win = ampi.Win.Allocate(8, 8, comm=COMM_WORLD)
    count = ampi.Win.Allocate(8, 8, comm=COMM_WORLD)
    numpy.frombuffer(count.tomemory(), "l")[:] = 0
    count.Fence()
    with ampi.Tape() as tape:
        x = tape.watch(random(1))
        count.Fence()
        count.Accumulate(numpy.ones(1, "l"), 0)
        count.Fence()
        y = x * x
    assert tape.gradient(y, x) == 2 * ampi.value(x)
    if WORLD.rank == 0:
        assert numpy.frombuffer(count.tomemory(), "l") == WORLD.size
    win.Free()
    count.Free()


def test_passive_blocks_cut_derivatives():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        win = ampi.Win.Create(x * 3, 8, comm=COMM_WORLD)
        win.Fence()
        y = x * 4
        with ampi.passive():
            win.Get(y[:1], right(WORLD))
        win.Fence()
        win.Free()
    assert numpy.array_equal(y, [3, 4])
    assert numpy.array_equal(tape.gradient(y, x, seed=numpy.ones(2)), [0, 4])


# What is not differentiated


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_untracked_target_of_active_data():
    win = ampi.Win.Create(numpy.zeros(2), 8, comm=COMM_WORLD)
    win.Fence()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        win.Fence()
        win.Put(numpy.ones(2), right(WORLD))
        win.Fence()
        with pytest.raises(ampi.ActivityError, match="not tracked"):
            win.Put(x, right(WORLD))
        win.Fence()
    win.Free()


def sweeps_with(match, use, after=lambda win: None):
    """A program whose sweep is refused on every rank."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        memory = ampi.numpy.zeros(2)
        win = ampi.Win.Create(memory, 8, comm=COMM_WORLD.Dup())
        y = use(win, x)
    with pytest.raises(ampi.AmpiError, match=match):
        tape.gradient(memory[0] if y is None else y, x)
    after(win)
    win.Free()


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_plain_receive_buffer():
    def use(win, x):
        win.Fence()
        win.Get(numpy.zeros(1), right(WORLD))
        win.Fence()

    sweeps_with("not tracked", use)


@pytest.mark.parametrize("nothing", [[None, 0, MPI.BYTE], [MPI.BOTTOM, 0, 0, MPI.BYTE], [None, MPI.BYTE]])
def test_nothing_is_moved(nothing):
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        win, memory = allocated(ampi.numpy, COMM_WORLD, 2, "float64")
        memory[...] = x
        win.Fence()
        win.Put(nothing, COMM_WORLD.rank, [0, 0, MPI.BYTE])
        win.Get(nothing, COMM_WORLD.rank, [0, 0, MPI.BYTE])
        win.Accumulate(nothing, COMM_WORLD.rank, [0, 0, MPI.BYTE], op=MPI.SUM)
        win.Fence()
        loss = (3 * memory).sum()
    numpy.testing.assert_array_equal(tape.gradient(loss, x), [3, 3])
    win.Free()


@pytest.mark.parametrize("name", ["Put", "Accumulate", "Get", "Get_accumulate"])
def test_datatypes_without_elements(name):
    """A part of a target that is empty, said by the target's datatype."""
    comm = ampi.COMM_WORLD.Dup()
    x0 = numpy.array([0.3, 0.7]) + 0.1 * comm.rank
    x_bar = ampi.grad(lambda x: through_nothing(comm, x, name))(x0)
    numpy.testing.assert_allclose(x_bar, 2 * x0)
    comm.Free()


def through_nothing(comm, x, name):
    win, memory = allocated(ampi.numpy, comm, 2, x.dtype)
    memory[...] = x
    none = MPI.DOUBLE.Create_indexed_block(1, []).Commit()
    u, old = x[:0] * 2, ampi.numpy.zeros(0)
    win.Fence()
    arguments = [old] if name == "Get" else [u, old] if name == "Get_accumulate" else [u]
    getattr(win, name)(*([a, MPI.DOUBLE] for a in arguments), right(comm), [0, 1, none])
    none.Free()
    win.Fence()
    y = ampi.numpy.sum(memory * memory)
    win.Free()
    return y


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_put_from_plain_memory_at_its_address():
    plain = numpy.array([5.0])
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        win, memory = allocated(ampi.numpy, COMM_WORLD, 2, "float64")
        memory[...] = x
        win.Fence()
        place = MPI.DOUBLE.Create_hindexed([1], [MPI.Get_address(plain)]).Commit()
        win.Put([MPI.BOTTOM, 1, place], (COMM_WORLD.rank + 1) % COMM_WORLD.size, [1, 1, MPI.DOUBLE])
        win.Fence()
        place.Free()
        loss = (memory * memory).sum()
    assert memory[1] == 5
    numpy.testing.assert_array_equal(tape.gradient(loss, x), [2, 0])
    win.Free()


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_operation_without_a_rule():
    def use(win, x):
        win.Fence()
        with pytest.raises(ampi.ActivityError, match="use SUM, PROD"):
            win.Accumulate([x, MPI.LONG], right(WORLD), op=MPI.PROD)
        if WORLD.rank == 0:
            with ampi.passive():
                win.Accumulate([x, MPI.LONG], 0, op=MPI.PROD)
        win.Fence()
        win.Put(x, right(WORLD))
        win.Fence()

    sweeps_with("rank 0: Accumulate has no derivative rule", use)


@pytest.mark.mpi(min_size=2)
def test_fences_and_handshakes_left_open():
    def put(win, x):
        win.Fence()
        if WORLD.rank == 1:
            win.Put(x, 0)

    def start(win, x):
        win.Fence()
        win.Put(x, right(WORLD))
        win.Fence()
        if WORLD.rank == 1:
            group = WORLD.Get_group()
            win.Post(group.Incl([]))

    sweeps_with(r"rank 1: Put with target rank 0 .*still open", put, after=lambda win: win.Fence())
    sweeps_with(r"rank 1: Post .*still open", start, after=lambda win: win.Wait() if WORLD.rank == 1 else None)


def test_epoch_opened_before_the_tape():
    win = ampi.Win.Create(ampi.numpy.zeros(1), 8, comm=COMM_WORLD)
    win.Fence()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        win.Put(x, right(WORLD))
        win.Fence()
    with pytest.raises(ampi.AmpiError, match="opened before the tape"):
        tape.gradient(x, x)
    win.Free()


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
    """One rank has the memory; all work on it in turns, under locks and in one epoch with Sync and barriers."""
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


# Updates of one place by several ranks in one epoch

OPERATIONS = {
    "SUM": lambda old, x: old + x,
    "PROD": lambda old, x: old * x,
    "MIN": lambda old, x: numpy.where(x.real < old.real, x, old),
    "MAX": lambda old, x: numpy.where(x.real > old.real, x, old),
    "REPLACE": lambda old, x: x,
    "NO_OP": lambda old, x: old,
}


def in_rank_order(comm, operation, first, terms):
    """What updates of rank 0's memory make of it, one rank after the other, and what each of this rank's finds."""
    memory, found = comm.bcast(first), []
    for rank, theirs in enumerate(comm.allgather(terms)):
        for term in theirs:
            if rank == comm.rank:
                found.append(memory)
            memory = operation(memory, term)
    return memory, found


def update(win, term, got, op, datatype):
    """Elements 1, 3 and 5 of rank 0's memory; the datatype is freed before the epoch ends."""
    spread = datatype.Create_vector(3, 1, 2).Commit()
    target = (1, 1, spread)
    if got is None:
        win.Accumulate([term, 3, datatype], 0, target, op)
    else:
        win.Get_accumulate([term, 3, datatype], got, 0, target, op)
    spread.Free()


def fence(win, comm, updates):
    win.Fence()
    updates()
    win.Fence(MPI.MODE_NOSUCCEED | MPI.MODE_NOPUT)


def post(win, comm, updates):
    """All ranks are origins; they complete their epochs in the order of the ranks, without knowing it from MPI."""
    group = comm.Get_group()
    first = group.Incl([0])
    if comm.rank == 0:
        win.Post(group)
    win.Start(first)
    updates()
    for rank in range(comm.size):
        if rank == comm.rank:
            win.Complete()
        WORLD.Barrier()
    if comm.rank == 0:
        win.Wait()
    first.Free()
    group.Free()


def concurrent(name, fetches, epoch):
    """A program in which all ranks update the same elements, twice each."""

    def program(np, comm, x):
        terms = [x * 1.5, x * x - 0.25]
        if np is not ampi.numpy:
            memory, found = in_rank_order(comm, OPERATIONS[name], x * 2, terms)
            found = found if fetches else [x, x]
        else:
            win, whole = created(np, comm, 6, x.dtype)
            whole[1::2] = x * 2
            found = [np.zeros(3, x.dtype) + x for _ in terms]

            def updates():
                for term, got in zip(terms, found):
                    update(win, term, got if fetches else None, getattr(MPI, name), typeof(x))

            epoch(win, comm, updates)
            memory = whole[1::2]
            win.Free()
        mine = memory * memory if comm.rank == 0 else x
        return np.concatenate([found[0] * x, found[1], mine])

    return program


@pytest.mark.parametrize(
    ("epoch", "name", "fetches"),
    [
        *((fence, name, False) for name in ("PROD", "MIN", "MAX", "REPLACE")),
        *((fence, name, True) for name in OPERATIONS),
        *((post, name, False) for name in ("PROD", "MAX", "REPLACE")),
        *((post, name, True) for name in ("SUM", "PROD", "MIN", "NO_OP")),
    ],
)
def test_concurrent_updates(epoch, name, fetches):
    check(concurrent(name, fetches, epoch), COMM_WORLD, WORLD)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("epoch", [fence, post], ids=lambda epoch: epoch.__name__)
def test_concurrent_products_of_dtypes(dtype, epoch):
    check(concurrent("PROD", True, epoch), COMM_WORLD, WORLD, dtype=dtype)


def sums_and_fetches(np, comm, x):
    """What only adds and what fetches as well, and each rank's order of its own; in bytes, and in a dynamic window."""
    terms = [x, x * x, x * 3]
    if np is not ampi.numpy:
        everybody = comm.allgather(terms)
        first = comm.bcast(x * 2) + sum(theirs[0] for theirs in everybody)
        before = sum((theirs[1] + theirs[2] for theirs in everybody[: comm.rank]), 0 * x)
        got = first + before
        memory = first + sum(theirs[1] + theirs[2] for theirs in everybody)
    else:
        memory, got = np.zeros(3, x.dtype), np.zeros(3, x.dtype)
        memory[...] = x * 2
        win = windows_of(np).Create_dynamic(comm=comm)
        where = attached(np, comm, win, memory)[0]
        win.Fence(MPI.MODE_NOPRECEDE)
        win.Accumulate(x, 0, where)
        win.Get_accumulate(terms[1], got, 0, where)
        win.Accumulate(terms[2], 0, where)
        win.Fence()
        win.Detach(memory)
        win.Free()
    return np.concatenate([got * x, memory * memory if comm.rank == 0 else x])


def test_sums_and_fetches():
    check(sums_and_fetches, COMM_WORLD, WORLD)


@pytest.mark.parametrize("in_epoch", [fence, post], ids=lambda epoch: epoch.__name__)
def test_ties_and_zeros(in_epoch):
    """Among equals the value before the epoch is first, then the lowest rank; products may have several zeros."""
    size, rank = WORLD.size, WORLD.rank
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 2.0, 0.0, 3.0 if rank else 0.0]))
        win, memory = created(ampi.numpy, COMM_WORLD, 4, "d")
        first = tape.watch(numpy.array([1.0, 2.0, 5.0, 5.0]))
        memory[...] = first

        def updates():
            win.Accumulate(x[:2], 0, op=MPI.MAX)
            win.Accumulate(x[2:], 0, 2, op=MPI.PROD)

        in_epoch(win, COMM_WORLD, updates)
        y = memory * 1.0
        win.Free()
    x_bar, first_bar = tape.gradient(y, (x, first), seed=numpy.ones(4) * (rank == 0))
    others = 3.0 ** (size - 1)
    expected = [rank == 0, 0, 0 if size > 1 else 5.0, 5 * others if rank == 0 else 0]
    numpy.testing.assert_allclose(x_bar, expected)
    numpy.testing.assert_allclose(first_bar, [0, 1, 0, 0] if rank == 0 else [1, 1, 1, 1] * 0 + [0] * 4)


@broken_in("Open MPI", "the heap is damaged")
@broken_in("Intel MPI", "Fetch_and_op leaves wrong locations")
@pytest.mark.parametrize("name", ["MINLOC", "MAXLOC"])
@pytest.mark.parametrize("form", ["Accumulate", "Get_accumulate", "Fetch_and_op", "locked"])
def test_locations(name, form):
    """Pairs of a value and a location: what wins gets the adjoint, the lower location if values are the same."""
    pair = numpy.dtype([("value", "d"), ("location", "i4")], align=True)
    size, rank, op = WORLD.size, WORLD.rank, getattr(MPI, name)
    sign = 1 if name == "MAXLOC" else -1

    def pairs(values, locations):
        made = ampi.numpy.zeros(len(values), pair)
        made["value"], made["location"] = values, locations
        return made

    with ampi.Tape() as tape:
        x = tape.watch(sign * numpy.array([1.0 + rank, 1.0, 4.0])[: 1 if form == "Fetch_and_op" else 3])
        n = x.size
        memory = pairs(sign * numpy.array([0.5, 1.0, 9.0])[:n], 100)
        win = ampi.Win.Create(memory, 16, comm=COMM_WORLD)
        mine, got = pairs(x, size - rank), pairs(numpy.zeros(n), 0)
        if form == "locked":
            COMM_WORLD.Barrier()
            for turn in range(size):
                if turn == rank:
                    win.Lock(0)
                    win.Get_accumulate([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], 0, (0, n, MPI.DOUBLE_INT), op)
                    win.Unlock(0)
                WORLD.Barrier()
        else:
            win.Fence()
            if form == "Accumulate":
                win.Accumulate([mine, MPI.DOUBLE_INT], 0, (0, n, MPI.DOUBLE_INT), op)
            elif form == "Get_accumulate":
                win.Get_accumulate([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], 0, (0, n, MPI.DOUBLE_INT), op)
            else:
                win.Fetch_and_op([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], 0, 0, op)
            win.Fence()
        y = memory["value"] * 1.0
        z = got["value"] * 1.0
        win.Free()
    outputs, seed = [y], [numpy.ones(n) * (rank == 0)]
    if form != "Accumulate":
        outputs, seed = [y, z], [*seed, numpy.full(n, 10.0**rank)]
    x_bar = tape.gradient(outputs, x, seed=seed)
    if rank == 0:
        assert ampi.value(memory["value"]).tolist() == (sign * numpy.array([size, 1.0, 9.0])[:n]).tolist()
        assert memory["location"].tolist() == [1, 1, 100][:n]
    if form != "Accumulate":
        assert ampi.value(z).tolist()[:1] == [sign * max(0.5, rank)]
    fetched = 10.0 ** (rank + 1) * (form != "Accumulate" and rank + 1 < size)
    expected = [(rank == size - 1) + fetched, (rank == size - 1) + fetched, 0.0]
    assert x_bar.tolist() == expected[:n]


@broken_in("Open MPI", "the heap is damaged")
@broken_in("Intel MPI", "the second pair is garbage")
@pytest.mark.parametrize("epoch", [fence, post], ids=lambda epoch: epoch.__name__)
def test_pairs_are_fetched_and_replaced(epoch):
    pair = numpy.dtype([("value", "d"), ("location", "i4")], align=True)
    size, rank = WORLD.size, WORLD.rank
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]) + rank)
        memory, mine, got = (ampi.numpy.zeros(2, pair) for _ in range(3))
        memory["value"], memory["location"] = 3 * x, rank
        mine["value"], mine["location"] = x * x, 10 + rank
        win = ampi.Win.Create(memory, 1, comm=COMM_WORLD)
        spec = (0, 2, MPI.DOUBLE_INT)
        epoch(
            win,
            COMM_WORLD,
            lambda: win.Get_accumulate([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], 0, spec, MPI.REPLACE),
        )
        y, z = memory["value"] * 1.0, got["value"] * 1.0
        win.Free()
    values = ampi.value(x)
    last = numpy.arange(1.0, 3.0) + size - 1
    before = numpy.arange(1.0, 3.0) * 3 if rank == 0 else (values - 1) ** 2
    assert ampi.value(z).tolist() == before.tolist()
    assert got["location"].tolist() == [10 + rank - 1 if rank else 0] * 2
    assert ampi.value(y).tolist() == ((3 * values) if rank else last**2).tolist()
    assert memory["location"].tolist() == [rank if rank else 10 + size - 1] * 2
    x_bar = tape.gradient((y, z), x, seed=(numpy.ones(2), numpy.full(2, 10.0**rank)))
    weight = 10.0 ** (rank + 1) if rank + 1 < size else 1.0
    assert x_bar.tolist() == (2 * values * weight + 3).tolist()


@pytest.mark.mpi(min_size=4)
def test_handshakes_that_depend_on_one_another():
    """Ranks 0 and 1 both fetch from rank 2; rank 0 waits for rank 3 as well, which waits for rank 1."""
    rank, group = WORLD.rank, WORLD.Get_group()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(1, 2.0 + rank))
        win, memory = created(ampi.numpy, COMM_WORLD, 1, "d")
        memory[...] = x
        got, other = ampi.numpy.zeros(1), ampi.numpy.zeros(1)
        if rank == 0:
            win.Start(group.Incl([2, 3]))
            win.Get_accumulate(x, got, 2, op=MPI.PROD)
            win.Fetch_and_op(x, other, 3, op=MPI.REPLACE)
            win.Complete()
        elif rank == 1:
            win.Start(group.Incl([2]))
            win.Get_accumulate(x, got, 2, op=MPI.PROD)
            win.Complete()
            COMM_WORLD.Send(got, 3)
        elif rank == 2:
            win.Post(group.Incl([0, 1]))
            win.Wait()
        elif rank == 3:
            COMM_WORLD.Recv(got, 1)
            win.Post(group.Incl([0]))
            win.Wait()
        y = got + other + memory * 10
        win.Free()
    x_bar = WORLD.allgather(tape.gradient(y, x).tolist())
    found = WORLD.allgather(float(got[0]))
    if found[0] < found[1]:  # rank 0 was first
        assert found == [4, 8, 0, 8, *found[4:]]
        assert x_bar[:4] == [[8 + 140.0], [90.0], [65.0], [1.0]]
    else:
        assert found == [12, 4, 0, 4, *found[4:]]
        assert x_bar[:4] == [[140.0], [4 + 90.0], [65.0], [1.0]]
    group.Free()


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
    """The others take part in what is put off; nothing hangs."""
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


def attached(np, comm, win, memory):
    """Attach an array; the addresses on all ranks."""
    win.Attach(memory)
    return comm.allgather(MPI.Get_address(memory))


def dynamic(np, comm, x):
    """Arrays attached, detached and attached again, by fences and by locks; a part of one array only."""
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
    """A rank that has said nothing while its tape recorded does not wait for the others."""
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


def test_shared_memory_that_is_left_alone_before_its_window_is_freed():
    """An augmented assignment to a part writes it back to where it lies: a visit without work of its own."""
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
