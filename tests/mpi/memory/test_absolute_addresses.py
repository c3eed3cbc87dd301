"""Messages from MPI.BOTTOM, whose datatypes hold addresses: the memory of one or several arrays is found."""

import gc
import inspect

import numpy
import pytest
from mpi4py import MPI

import ampi
import ampi.numpy
from ampi.memory import live_arrays
from ampi.memory.live_arrays import tracked_arrays
from ampi.mpi import COMM_WORLD
from ampi.mpi.memory.arguments import parse, parse_types, parse_vector
from ampi.mpi.memory.buffers import NOTHING

pytestmark = pytest.mark.mpi

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size


def at(array):
    """Datatype of the addresses of every other element."""
    place = MPI.Get_address(array)
    return MPI.DOUBLE.Create_hindexed(
        [1] * (len(array) // 2), [place + 16 * k for k in range(len(array) // 2)]
    ).Commit()


def test_tracked_memory_is_found():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 7.0) + RANK)
        y = x * x
        z = ampi.numpy.ones(6)
        sent, received = at(y), at(z)
        COMM_WORLD.Sendrecv([MPI.BOTTOM, 1, sent], after, 0, [MPI.BOTTOM, 1, received], before)
        COMM_WORLD.Bcast([MPI.BOTTOM, 1, received])
        w = z * z
        sent.Free()
        received.Free()
    source = (SIZE - 1) % SIZE  # rank 0 received from it
    squares = (numpy.arange(1.0, 7.0) + source) ** 2
    squares[1::2] = 1
    numpy.testing.assert_array_equal(ampi.value(w), squares**2)
    x_bar = tape.gradient(w, x, seed=numpy.ones(6))
    expected = numpy.zeros(6)
    if RANK == source:
        expected[::2] = (SIZE * 4 * (numpy.arange(1.0, 7.0) + RANK) ** 3)[::2]
    numpy.testing.assert_allclose(x_bar, expected)


def struct(*arrays, dtypes=None):
    """Datatype of the addresses of several arrays."""
    dtypes = dtypes or [MPI._typedict[array.dtype.char] for array in arrays]
    places = [MPI.Get_address(array) for array in arrays]
    return MPI.Datatype.Create_struct([array.size for array in arrays], places, dtypes).Commit()


def ring(sent, received, comm=COMM_WORLD, how="Sendrecv"):
    """Send a message from absolute addresses to the next rank, receive one from the rank before."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    message, room = [MPI.BOTTOM, 1, sent], [MPI.BOTTOM, 1, received]
    if how == "Sendrecv":
        comm.Sendrecv(message, after, 0, room, before)
    else:
        requests = [comm.Irecv(room, before), comm.Isend(message, after)]
        MPI.Request.Waitall(requests)
    sent.Free()
    received.Free()


@pytest.mark.parametrize("how", ["Sendrecv", "Isend"])
@pytest.mark.parametrize("dtype", ["f", "d", "D"])
def test_several_arrays_in_one_message(dtype, how):
    with ampi.Tape() as tape:
        a = tape.watch(numpy.arange(1.0, 4.0).astype(dtype) + RANK)
        b = tape.watch(numpy.arange(2.0, 7.0).astype(dtype) + RANK)
        passive = ampi.numpy.full(2, 3.0, dtype)
        y, z = a * a, 2 * b
        p, q, r = (ampi.numpy.zeros(n, dtype) for n in (5, 3, 2))  # split differently from what was sent
        ring(struct(y, passive, z), struct(p, q, r), how=how)
        loss = (p * p).sum() + 3 * q.sum() + (r * r).sum()
    came = numpy.concatenate(
        [(numpy.arange(1.0, 4.0) + (RANK - 1) % SIZE) ** 2, [3, 3], 2 * (numpy.arange(2.0, 7.0) + (RANK - 1) % SIZE)]
    )
    numpy.testing.assert_array_equal(numpy.concatenate([ampi.value(x) for x in (p, q, r)]), came.astype(dtype))
    a_bar, b_bar = tape.gradient(loss, (a, b))
    y_now, z_now = (numpy.arange(1.0, 4.0) + RANK) ** 2, 2 * (numpy.arange(2.0, 7.0) + RANK)
    numpy.testing.assert_allclose(a_bar, 2 * y_now * 2 * (numpy.arange(1.0, 4.0) + RANK))
    numpy.testing.assert_allclose(b_bar, 2 * numpy.concatenate([[3.0, 3.0, 3.0], 2 * z_now[3:]]))


def test_several_arrays_against_differences():
    def loss_of(a, b):
        y, z = ampi.numpy.sin(a), a[:2] * b
        p, q = ampi.numpy.zeros(3), ampi.numpy.zeros(2)
        ring(struct(z, y), struct(q, p))
        COMM_WORLD.Bcast([MPI.BOTTOM, 1, struct(p, q)])
        return (p * p * p).sum() * q[0] + q[1] ** 2

    generator = numpy.random.default_rng(RANK)
    a, b, da, db = (generator.normal(size=n) for n in (3, 2, 3, 2))
    with ampi.Tape() as tape:
        x, y = tape.watch(a.copy()), tape.watch(b.copy())
        loss = loss_of(x, y)
    x_bar, y_bar = tape.gradient(loss, (x, y))
    slope = COMM_WORLD.allreduce(float(x_bar @ da + y_bar @ db))
    errors = []
    for h in (1e-3, 1e-4):
        values = [float(ampi.value(loss_of(*(ampi.numpy.array(v) for v in (a + s * da, b + s * db))))) for s in (h, -h)]
        errors.append(abs(COMM_WORLD.allreduce((values[0] - values[1]) / (2 * h)) - slope))
    assert errors[1] < 1e-6 * (1 + abs(slope)) and errors[1] < 0.05 * errors[0] + 1e-9


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_plain_memory_is_sent_beside_tracked_memory():
    plain = numpy.array([5.0, 6.0])
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 4.0))
        y = 3 * x
        p, q = ampi.numpy.zeros(2), ampi.numpy.zeros(3)
        ring(struct(plain, y), struct(p, q))
        loss = (p * p).sum() + (q * q).sum()
    numpy.testing.assert_array_equal(ampi.value(p), plain)
    numpy.testing.assert_allclose(tape.gradient(loss, x), 18 * numpy.arange(1.0, 4.0))


def test_active_values_are_not_received_into_plain_memory():
    plain = numpy.zeros(2)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 6.0))
        y = 3 * x
        q = ampi.numpy.zeros(3)
        ring(struct(y), struct(plain, q), COMM_WORLD.Dup())  # which cannot be swept any more afterwards
        loss = (q * q).sum()
    with pytest.raises(ampi.CommunicationError, match="not tracked"):
        tape.gradient(loss, x)


def test_a_short_receive():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 5.0))
        y = x * x
        p, q = (tape.watch(numpy.ones(3)) for _ in range(2))
        u, v = 2 * p, 2 * q
        ring(struct(y), struct(u, v))
        loss = (u * u).sum() + (v * v).sum()
    x_bar, p_bar, q_bar = tape.gradient(loss, (x, p, q))
    numpy.testing.assert_allclose(x_bar, 4 * numpy.arange(1.0, 5.0) ** 3)
    numpy.testing.assert_array_equal(p_bar, 0)
    numpy.testing.assert_array_equal(q_bar, [0, 8, 8])


def test_integers_beside_and_elements_in_turn():
    marks, room = ampi.numpy.array([7, 8 + RANK]), ampi.numpy.array([0, 0])
    with ampi.Tape() as tape:
        a, b = tape.watch(numpy.arange(1.0, 4.0)), tape.watch(numpy.arange(4.0, 7.0))
        y, z, p = a * a, b * b, ampi.numpy.zeros(6)
        kept = p * p  # needs the old zeros
        pair = MPI.DOUBLE.Create_hindexed([1, 1], [MPI.Get_address(y), MPI.Get_address(z)])
        turns = pair.Create_resized(0, 8).Create_contiguous(3)
        sent = MPI.Datatype.Create_struct([2, 1], [MPI.Get_address(marks), 0], [MPI.LONG, turns]).Commit()
        ring(sent, struct(room, p))
        loss = (p * numpy.arange(1.0, 7.0)).sum() + kept.sum()
    assert room.tolist() == [7, 8 + (RANK - 1) % SIZE]
    numpy.testing.assert_array_equal(ampi.value(p), [1, 16, 4, 25, 9, 36])
    a_bar, b_bar = tape.gradient(loss, (a, b))
    numpy.testing.assert_allclose(a_bar, 2 * numpy.arange(1.0, 4.0) * [1, 3, 5])
    numpy.testing.assert_allclose(b_bar, 2 * numpy.arange(4.0, 7.0) * [2, 4, 6])


def test_collectives_of_several_arrays():
    with ampi.Tape() as tape:
        a, b = tape.watch(numpy.arange(1.0, 3.0) + RANK), tape.watch(numpy.array([5.0]) + RANK)
        y, z = a * a, b * b
        of_all, from_all = ampi.numpy.zeros(3 * SIZE), ampi.numpy.zeros(3 * SIZE)
        both = struct(y, z)
        COMM_WORLD.Allgather([MPI.BOTTOM, 1, both], of_all)
        COMM_WORLD.Alltoallv([MPI.BOTTOM, ([1] * SIZE, [0] * SIZE), both], from_all)
        both.Free()
        loss = of_all.sum() + (from_all * from_all).sum()
    a_bar, b_bar = tape.gradient(loss, (a, b))
    numpy.testing.assert_array_equal(ampi.value(of_all), ampi.value(from_all))
    for x, x_bar in ((a, a_bar), (b, b_bar)):
        x = ampi.value(x)
        numpy.testing.assert_allclose(x_bar, SIZE * (2 * x + 4 * x**3))


def test_one_count_per_rank():
    a, b = ampi.numpy.ones(2), ampi.numpy.ones(2)
    both = struct(a, b)
    buffer = parse_vector([MPI.BOTTOM, [1, 0], [0, 0], both], 2)
    assert buffer.tracked and buffer.counts == [4, 0] and buffer.count == 4
    both.Free()


def test_what_is_ambiguous_is_refused():
    a, b, c = ampi.numpy.ones(2), ampi.numpy.ones(2), ampi.numpy.ones(2, "f")
    places = [MPI.Get_address(array) for array in (a, b)]
    for refused in (struct(a, c), MPI.BYTE.Create_hindexed([16, 16], places)):
        with pytest.raises(ampi.ActivityError, match=r"MPI\.BOTTOM"):
            parse([MPI.BOTTOM, 1, refused])
        with pytest.raises(ampi.ActivityError, match=r"MPI\.BOTTOM"):
            parse_vector([MPI.BOTTOM, [1, 0], [0, 0], refused], 2)
        refused.Free()
    first, second = parse_types([MPI.BOTTOM, [16, 0], places, [MPI.BYTE] * 2], 2)
    assert first.tracked and first.count == 2 and second is NOTHING


def test_memory_that_nobody_tracks_passes():
    plain = numpy.ones(4)
    datatype = at(plain)
    nothing = parse([MPI.BOTTOM, 1, datatype])
    assert not nothing.tracked and nothing.nbytes == datatype.size
    numpy.testing.assert_array_equal(nothing.values(), [1, 1])
    assert parse([MPI.BOTTOM, 0, MPI.DOUBLE]) is NOTHING
    assert parse_vector([MPI.BOTTOM, [0], [0], datatype], 1).count == 0
    with ampi.Tape():
        COMM_WORLD.Bcast([MPI.BOTTOM, 1, datatype])
    datatype.Free()


def test_persistent_requests_outlive_the_datatype():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 5.0))
        z = ampi.numpy.zeros(4)
        sent, received = at(x), at(z)
        requests = [
            COMM_WORLD.Recv_init([MPI.BOTTOM, 1, received], before),
            COMM_WORLD.Send_init([MPI.BOTTOM, 1, sent], after),
        ]
        sent.Free()
        received.Free()
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        w = z * z
    for request in requests:
        request.Free()
    numpy.testing.assert_array_equal(ampi.value(w), [1.0, 0.0, 9.0, 0.0])
    numpy.testing.assert_array_equal(tape.gradient(w, x, seed=numpy.ones(4)), [2.0, 0.0, 6.0, 0.0])


@pytest.mark.parametrize("looked", [False, True])
def test_what_the_collector_has_frozen_is_found(looked, monkeypatch):
    if not looked:  # earlier tests may have looked
        monkeypatch.setattr(gc, "freeze", inspect.unwrap(gc.freeze))
        monkeypatch.setattr(live_arrays, "_live", None)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 7.0) + RANK)
        y, z = x * x, ampi.numpy.ones(6)
        if looked:
            tracked_arrays()
        gc.freeze()
        sent, received = at(y), at(z)
        ring(sent, received)
        w = z * z
    x_bar = tape.gradient(w, x, seed=numpy.ones(6))
    expected = numpy.zeros(6)
    expected[::2] = (4 * (numpy.arange(1.0, 7.0) + RANK) ** 3)[::2]
    numpy.testing.assert_allclose(x_bar, expected)
