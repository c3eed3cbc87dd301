"""Collectives in corner cases, in closed form: zeros, ties, reused arrays, gaps, passive and untracked data."""

import gc
import weakref

import numpy
import pytest
from mpi4py import MPI
from test_collectives import last

import ampi
import ampi.numpy
from ampi.memory.storages import storage_of
from ampi.mpi import COMM_WORLD
from ampi.tape import Undo

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD


# ------------------------------------------------------------------------------------------- traps, in closed form

RANK, SIZE = WORLD.rank, WORLD.size


def on_tape(x0, run):
    """Gradient of the sum over all ranks of what `run(x)` returns."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array(x0, float))
        y = run(x)
    return tape.gradient(y, x, seed=numpy.ones(y.shape))


def received(x, op, method="Allreduce"):
    y = ampi.numpy.zeros(x.shape)
    getattr(COMM_WORLD, method)(x, y, op)
    return y


@pytest.mark.parametrize("zeros", [1, 2])
def test_product_with_zeros(zeros):
    """With one zero only the rank that holds it has a derivative, with two no rank has."""
    values = [0.0 if r < zeros else r + 2.0 for r in range(SIZE)]
    others = [numpy.prod([values[k] for k in range(SIZE) if k != r]) for r in range(SIZE)]
    x_bar = on_tape([values[RANK], RANK + 2.0], lambda x: received(x, MPI.PROD))
    assert x_bar[0] == SIZE * others[RANK]
    assert x_bar[1] == SIZE * numpy.prod([r + 2.0 for r in range(SIZE) if r != RANK])


@pytest.mark.parametrize("op", [MPI.MIN, MPI.MAX], ids=["min", "max"])
def test_ties_go_to_the_lowest_rank_element_by_element(op):
    sign = 1.0 if op == MPI.MIN else -1.0
    last = SIZE - 1
    # All equal; only the last rank; all but rank 0 (on one rank: rank 0).
    x0 = [1.0, 1.0 if last == RANK else 2.0, 2.0 if RANK == 0 else 1.0]
    winners = [0, last, min(1, last)]
    expected = [SIZE * (winner == RANK) for winner in winners]
    assert numpy.array_equal(on_tape(sign * numpy.array(x0), lambda x: received(x, op)), expected)


@ampi.kernel
def square_into(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


@ampi.kernel
def double(x):
    for i in range(x.shape[0]):
        x[i] = 2.0 * x[i]


def test_the_adjoint_puts_back_the_memory_that_it_reads_and_no_other(monkeypatch):
    swapped = []
    swap = Undo.swap
    monkeypatch.setattr(Undo, "swap", lambda undo: (swapped.append(undo.storage), swap(undo))[1])
    np = ampi.numpy
    x0 = numpy.array([1.0 + RANK, SIZE - RANK])
    with ampi.Tape() as tape:
        x, z = tape.watch(np.array(x0)), tape.watch(np.array(3.0 * x0))
        y, w = np.zeros(2), np.zeros(2)
        square_into(z, w)
        COMM_WORLD.Allreduce(x, y, MPI.MIN)
        double(z)
        double(x)
        total = y.sum() + w.sum() + z.sum() + x.sum()
    x_bar, z_bar = tape.gradient(total, [x, z])
    lowest = [RANK == 0, last(COMM_WORLD) == RANK]
    numpy.testing.assert_array_equal(x_bar, 2.0 + SIZE * numpy.array(lowest))
    numpy.testing.assert_array_equal(z_bar, 2.0 + 6.0 * x0)
    assert set(swapped) == {storage_of(x)}
    numpy.testing.assert_array_equal(ampi.value(x), 2.0 * x0)


def test_ties_in_a_scan_go_to_the_lowest_rank():
    x_bar = on_tape([1.0, -RANK], lambda x: received(x, MPI.MIN, "Scan"))
    assert numpy.array_equal(x_bar, [SIZE * (RANK == 0), 1])


def test_the_same_arrays_active_and_constant_in_turn():
    """Facts known about a call depend on whether its array carries derivatives at that time."""
    x0 = 0.5 + (RANK + numpy.arange(3.0)) / (2 * SIZE)

    def program(np, comm, x):
        u, v = x * 1.0, np.zeros(3, x.dtype)
        y = x * x
        for k in range(6):
            comm.Allreduce(u, v)
            y = y * v / comm.Get_size()
            if k % 3 == 1:
                u[...] = 2.0
            elif k % 3 == 2:
                u[...] = y * x
        return y

    direction = numpy.array([1.0, -2.0, 0.5])
    x_bar = on_tape(x0, lambda x: program(ampi.numpy, COMM_WORLD, x))
    slope = WORLD.allreduce(program(numpy, WORLD, x0 + 1e-30j * direction).imag.sum() * 1e30)
    scale = WORLD.allreduce(abs(x_bar) @ abs(direction))
    assert WORLD.allreduce(x_bar @ direction) == pytest.approx(slope, abs=1e-12 * scale)


def test_the_same_arrays_again_and_again():
    """With other operations, in place, and with another array in one place."""
    x0 = 0.5 + (RANK + numpy.arange(3.0)) / (2 * SIZE)

    def program(np, comm, x):
        u, v, w = x * 1.0, np.zeros(3, x.dtype), np.zeros(3, x.dtype)
        for k in range(3):
            comm.Allreduce(u, v)
            u[...] = u * v / 10.0
            comm.Allreduce(u, v, MPI.PROD)
            comm.Allreduce(u, w)
            w /= comm.Get_size()
            comm.Allreduce(MPI.IN_PLACE, w, MPI.PROD)
            u[...] = u + v / 100.0 + w / 1000.0
            comm.Bcast(u, k % comm.Get_size())
            u[...] = u * x
        return u

    direction = numpy.array([1.0, -2.0, 0.5])
    x_bar = on_tape(x0, lambda x: program(ampi.numpy, COMM_WORLD, x))
    slope = WORLD.allreduce(program(numpy, WORLD, x0 + 1e-30j * direction).imag.sum() * 1e30)
    scale = WORLD.allreduce(abs(x_bar) @ abs(direction))
    assert WORLD.allreduce(x_bar @ direction) == pytest.approx(slope, abs=1e-12 * scale)


def test_repeated_calls_keep_no_array_alive():
    x = ampi.numpy.ones(3)
    with ampi.Tape() as tape:
        tape.watch(x)
        y = ampi.numpy.zeros(3)
        for _ in range(3):
            COMM_WORLD.Allreduce(x, y)
        with pytest.raises(ampi.ActivityError, match="not tracked"):
            COMM_WORLD.Allreduce(x, numpy.zeros(3))
    alive = weakref.ref(x), weakref.ref(y)
    del tape, x, y
    gc.collect()
    assert [one() for one in alive] == [None, None]


def test_sum_on_all_ranks_counts_every_rank_that_uses_it():
    assert numpy.array_equal(on_tape([1.0, 2.0], lambda x: received(x, MPI.SUM)), [SIZE, SIZE])


def test_gaps_of_a_freed_datatype_are_left_alone():
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8).Commit()

    def run(x):
        field = ampi.numpy.zeros((3, 4))
        field[...] = x
        comm = COMM_WORLD.Dup()
        comm.Bcast([field, (1, 2), column], root=SIZE - 1)
        comm.Free()
        column.Free()
        return field * ampi.numpy.array([1.0, 10.0, 100.0, 1000.0])

    x_bar = on_tape(numpy.ones((3, 4)), run)
    expected = numpy.tile([1.0, 10.0, 100.0 * SIZE if RANK == SIZE - 1 else 0.0, 1000.0], (3, 1))
    assert numpy.array_equal(x_bar, expected)


def test_columns_gathered_as_rows():
    """Send and receive datatypes differ; the receive buffer has gaps that keep their adjoints."""
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Commit()

    def run(x):
        rows = ampi.numpy.zeros((SIZE, 5))
        rows[...] = x[0, 0]
        comm = COMM_WORLD
        comm.Allgatherv([x, 1, column], [rows, ([3] * SIZE, [5 * r for r in range(SIZE)]), MPI.DOUBLE])
        return rows * (RANK + 1.0)

    x_bar = on_tape(numpy.arange(12.0).reshape(3, 4), run)
    column.Free()
    expected = numpy.zeros((3, 4))
    expected[:, 0] = sum(range(1, SIZE + 1))
    expected[0, 0] += 2 * SIZE * (RANK + 1)
    assert numpy.array_equal(x_bar, expected)


def test_bytes_of_active_arrays():
    def run(x):
        y = ampi.numpy.zeros(2 * SIZE)
        COMM_WORLD.Allgather([x, MPI.BYTE], [y, MPI.BYTE])
        z = ampi.numpy.zeros(2 * SIZE)
        COMM_WORLD.Alltoall([y, 16, MPI.BYTE], z.view(numpy.uint8))
        return z * (RANK + 1)

    assert numpy.array_equal(on_tape([1.0, 2.0], run), numpy.full(2, SIZE * (RANK + 1.0)))


def test_ranks_without_active_values_participate():
    """Only the last rank has an input; the others send plain arrays."""
    x0 = numpy.array([2.0, 3.0])
    with ampi.Tape() as tape:
        x = tape.watch(x0) if RANK == SIZE - 1 else None
        y = received(numpy.ones(2) if x is None else x * x, MPI.PROD)
        z = ampi.numpy.zeros(2 * SIZE) if RANK == 0 else None
        COMM_WORLD.Gather(y, z)
        w = ampi.numpy.zeros(2)
        COMM_WORLD.Scatter(z, w)
    x_bar = tape.gradient(w, x, seed=numpy.ones(2))
    if x is not None:
        assert numpy.array_equal(x_bar, SIZE * 2 * x0)


def test_ranks_without_output_participate():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        y = received(x, MPI.SUM)
    x_bar = tape.gradient(y if RANK == 0 else None, x, seed=numpy.ones(2) if RANK == 0 else None)
    assert numpy.array_equal(x_bar, [1.0, 1.0])


def test_zero_elements():
    assert on_tape(numpy.ones(0), lambda x: received(x, MPI.PROD)).shape == (0,)


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_passive_data_overwrites_active_data():
    def run(x):
        y = x * 1.0
        z = x * 3.0
        COMM_WORLD.Allreduce(numpy.ones(2), y)
        COMM_WORLD.Bcast(z)
        return y + z

    assert numpy.array_equal(on_tape([1.0, 2.0], run), numpy.full(2, 3.0 * SIZE if RANK == 0 else 0.0))


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_integers_and_operations_without_derivative_pass_on_passive_data():
    own = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        n = ampi.numpy.zeros(3, dtype=int)
        COMM_WORLD.Allreduce(numpy.array([1, RANK, 2]), n)
        assert numpy.array_equal(n, [SIZE, SIZE * (SIZE - 1) // 2, 2 * SIZE])
        COMM_WORLD.Allreduce(MPI.IN_PLACE, n, MPI.BOR)
        pair = numpy.array([(float(RANK), RANK)], dtype=[("value", "f8"), ("rank", "i4")])
        best = numpy.zeros_like(pair)
        COMM_WORLD.Allreduce([pair, 1, MPI.DOUBLE_INT], [best, 1, MPI.DOUBLE_INT], MPI.MAXLOC)
        assert best[0]["rank"] == SIZE - 1
        COMM_WORLD.Allreduce(numpy.ones(2), numpy.zeros(2), own)
        COMM_WORLD.Barrier()
        y = x * n[0]
    assert numpy.array_equal(tape.gradient(y, x, seed=numpy.ones(2)), [SIZE, SIZE])
    own.Free()


def test_operations_without_derivative_refuse_active_data():
    own = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        with pytest.raises(ampi.ActivityError, match=r"Allreduce: .*user-defined MPI.Op.*Op.Create\(kernel\)"):
            received(x, own)
        with pytest.raises(ampi.ActivityError, match=r"Reduce: .*MPI.LAND"):
            COMM_WORLD.Reduce(x, ampi.numpy.zeros(2), MPI.LAND)
    own.Free()


def test_active_values_into_untracked_memory():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        with pytest.raises(ampi.ActivityError, match=r"Allreduce: .*not tracked.*ampi.numpy"):
            COMM_WORLD.Allreduce(x, numpy.zeros(2))
        COMM_WORLD.Allreduce(ampi.value(x), numpy.zeros(2))


@pytest.mark.mpi(min_size=2)
def test_active_values_into_untracked_memory_of_another_rank():
    comm = COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = x * 2 if RANK == 0 else numpy.zeros(2) if RANK == SIZE - 1 else ampi.numpy.zeros(2)
        comm.Bcast(y)
    with pytest.raises(ampi.CommunicationError, match=r"Bcast.*test_collective_corners.py:\d+.*not tracked"):
        tape.gradient(x, x, seed=numpy.ones(2))


def test_collectives_inside_passive():
    def run(x):
        y = x * 2
        with ampi.passive():
            COMM_WORLD.Allreduce(MPI.IN_PLACE, y)
        return x * y

    assert numpy.array_equal(on_tape([1.0, 2.0], run), 2 * SIZE * numpy.array([1.0, 2.0]))


def test_overwriting_after_the_tape_has_closed():
    """A closed tape still gets the values that its records need."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        y = x * 1.0
        z = y * y
    COMM_WORLD.Allreduce(MPI.IN_PLACE, y)
    changed = ampi.value(y)
    assert numpy.array_equal(tape.gradient(z, x, seed=numpy.ones(2)), [4.0, 6.0])
    assert numpy.array_equal(ampi.value(y), changed)
