"""Messages from MPI.BOTTOM, whose datatypes hold addresses: tracked memory is found, or the message is refused."""

import numpy
import pytest
from mpi4py import MPI

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.buffers import NOTHING, parse, parse_types, parse_vector

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


def test_several_arrays_in_one_message_are_refused():
    a, b = ampi.numpy.ones(2), ampi.numpy.ones(2)
    places = [MPI.Get_address(array) for array in (a, b)]
    both = MPI.DOUBLE.Create_hindexed([2, 2], places)
    with pytest.raises(ampi.ActivityError, match=r"MPI\.BOTTOM"):
        parse([MPI.BOTTOM, 1, both])
    with pytest.raises(ampi.ActivityError, match=r"MPI\.BOTTOM"):
        parse_vector([MPI.BOTTOM, [1, 0], [0, 0], both], 2)
    first, second = parse_types([MPI.BOTTOM, [16, 0], places, [MPI.BYTE] * 2], 2)
    assert first.tracked and first.count == 2 and second is NOTHING
    both.Free()


def test_memory_that_nobody_tracks_passes():
    plain = numpy.ones(4)
    datatype = at(plain)
    nothing = parse([MPI.BOTTOM, 1, datatype])
    assert nothing.array is None and nothing.nbytes == datatype.size
    assert parse([MPI.BOTTOM, 0, MPI.DOUBLE]) is NOTHING
    assert parse_vector([MPI.BOTTOM, [1], [0], datatype], 1).count == 0
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
