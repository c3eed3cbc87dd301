"""One-sided communication in corner cases: overlapping accesses, freed windows, untracked memory, open epochs."""

import gc
import weakref

import numpy
import pytest
from mpi4py import MPI
from programs import random
from window_cases import allocated, right

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD


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
        y = memory**2  # needs the memory's values from before the window
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
    """The target's datatype describes an empty part."""
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


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["Put", "Get", "Accumulate", "Get_accumulate"])
def test_active_arrays_by_datatypes_without_elements(name):
    """A rank without a halo describes it by a vector of no blocks; this had been refused as a mixture of dtypes."""
    comm = ampi.COMM_WORLD

    def program(x):
        win, memory = allocated(ampi.numpy, comm, 2, x.dtype)
        memory[...] = x
        none = MPI.DOUBLE.Create_vector(0, 1, 2).Commit()
        arguments = [[x * 2, 1, none]] * (2 if name == "Get_accumulate" else 1)
        win.Fence()
        getattr(win, name)(*arguments, right(comm), [0, 1, none])
        win.Fence()
        comm.Bcast([memory, 1, none])
        none.Free()
        y = ampi.numpy.sum(memory * memory)
        win.Free()
        return y

    x0 = numpy.array([0.3, 0.7]) + 0.1 * comm.rank
    numpy.testing.assert_allclose(ampi.grad(program)(x0), 2 * x0)


@pytest.mark.mpi
@pytest.mark.filterwarnings("error::ampi.errors.ActivityWarning")
def test_the_address_of_active_memory():
    """A program asks for it to describe the memory of a dynamic window; this reads nothing."""
    comm = ampi.COMM_WORLD

    def program(x):
        memory = ampi.numpy.zeros(2)
        win = ampi.Win.Create_dynamic(comm=comm)
        win.Attach(memory)
        memory += x
        places = comm.allgather(MPI.Get_address(memory))
        assert places[comm.rank] == ampi.MPI.Get_address(memory)
        win.Fence()
        win.Put(x * x, right(comm), places[right(comm)])
        win.Fence()
        y = ampi.numpy.sum(memory * memory)
        win.Detach(memory)
        win.Free()
        return y

    x0 = numpy.array([0.3, 0.7]) + 0.1 * comm.rank
    numpy.testing.assert_allclose(ampi.grad(program)(x0), 4 * x0**3)


def test_nobody_is_not_everybody():
    """MPICH's PROC_NULL is -1: a flush there had let go of buffers that other operations still read."""
    win = ampi.Win.Allocate(8, comm=ampi.COMM_SELF)
    win.Lock_all()
    sent = numpy.ones(1)
    kept = weakref.ref(sent)
    win.Put(sent, 0)
    del sent
    win.Flush(MPI.PROC_NULL)
    assert kept() is not None
    win.Unlock_all()
    assert kept() is None
    win.Free()
