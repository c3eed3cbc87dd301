"""Pack and Unpack, messages of packed bytes, and bytes views of active arrays as messages."""

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, check, random, typeof

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

DTYPES = ("float32", "float64", "complex64", "complex128")


def partners(comm):
    rank, size = comm.Get_rank(), comm.Get_size()
    return (rank + 1) % size, (rank - 1) % size


# ------------------------------------------------------------------------------------------------------- programs
#
# Analytic functions of (np, comm, x), on ampi and, with complex arrays, on plain mpi4py.


def packed_locally(np, comm, x):
    """Two arrays after a byte that leaves them unaligned, unpacked in another order."""
    kind = typeof(x)
    room = np.zeros(1 + 3 * x.nbytes, np.uint8)
    position = kind.Pack(x * x, room, 1, comm)
    position = kind.Pack(x, room, position, comm)
    a, b = np.zeros_like(x), np.zeros_like(x)
    kind.Unpack(room, 1 + x.nbytes, b, comm)
    kind.Unpack(room, 1, a, comm)
    return a * b + a


def packed_with_numbers(np, comm, x):
    """A header of integers before the values, sent as MPI.PACKED."""
    after, before = partners(comm)
    kind = typeof(x)
    header = numpy.array([len(x), 7], numpy.intc)
    room = np.zeros(MPI.INT.Pack_size(2, comm) + kind.Pack_size(len(x), comm), np.uint8)
    position = MPI.INT.Pack(header, room, 0, comm)
    position = kind.Pack(x * x, room, position, comm)
    request = comm.Isend([room, position, MPI.PACKED], after, 3)
    came = np.zeros(room.size + 16, np.uint8)  # longer than the message
    status = MPI.Status()
    comm.Recv([came, MPI.PACKED], before, MPI.ANY_TAG, status)
    request.Wait()
    numbers = numpy.zeros(2, numpy.intc)
    position = MPI.INT.Unpack(came, 0, numbers, comm)
    assert numbers.tolist() == [len(x), 7] and status.Get_count(MPI.BYTE) == room.size
    y = np.zeros_like(x)
    kind.Unpack(came, position, y, comm)
    return y * x


def passed_on(np, comm, x):
    """Packed bytes go around the whole ring through ranks that never look into them."""
    after, before = partners(comm)
    kind = typeof(x)
    room = np.zeros(x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    total = x * 0
    for _ in range(comm.Get_size()):
        comm.Sendrecv_replace([room, MPI.BYTE], after, 1, before, 1)
        y = np.zeros_like(x)
        kind.Unpack(room, 0, y, comm)
        total = total * x + y
    return total


def typed_on_one_side(np, comm, x):
    """Packed bytes are received as elements, and elements as packed bytes."""
    after, before = partners(comm)
    kind = typeof(x)
    room = np.zeros(x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    requests = [comm.Isend([room, MPI.PACKED], after, 1), comm.Isend(x * x * x, after, 2)]
    typed = np.zeros_like(x)
    comm.Recv([typed, x.nbytes, MPI.PACKED], before, 1)
    came = np.zeros(x.nbytes, np.uint8)
    comm.Recv([came, MPI.PACKED], before, 2)
    MPI.Request.Waitall(requests)
    y = np.zeros_like(x)
    kind.Unpack(came, 0, y, comm)
    return typed * y * x


def sent_twice_and_overwritten(np, comm, x):
    """The same packed bytes are sent twice, and partly overwritten in between."""
    after, before = partners(comm)
    kind = typeof(x)
    room = np.zeros(2 * x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    kind.Pack(x, room, x.nbytes, comm)
    first, second = np.zeros_like(room), np.zeros_like(room)
    comm.Sendrecv([room, MPI.PACKED], after, 1, [first, MPI.PACKED], before, 1)
    kind.Pack(x * x * x, room, 0, comm)
    comm.Sendrecv([room, MPI.PACKED], before, 2, [second, MPI.PACKED], after, 2)
    parts = [np.zeros_like(x) for _ in range(4)]
    for k, came in enumerate((first, second)):
        kind.Unpack(came, 0, parts[2 * k], comm)
        kind.Unpack(came, x.nbytes, parts[2 * k + 1], comm)
    room[...] = 0
    return parts[0] * parts[1] + parts[2] * parts[3]


def copied(np, comm, x):
    """Packed bytes are copied as arrays."""
    kind = typeof(x)
    room = np.zeros(x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    longer = np.zeros(2 * x.nbytes + 5, np.uint8)
    longer[5 : 5 + x.nbytes] = room
    longer[5 + x.nbytes :] = room.copy()
    longer[5 : 5 + x.nbytes // len(x)] = 0  # the first element is now a constant
    y = np.zeros(2 * len(x), x.dtype)
    kind.Unpack(longer, 5, y, comm)
    return y[: len(x)] * y[len(x) :] + x


def in_an_object(np, comm, x):
    """Packed bytes inside Python objects, passed on once more."""
    after, before = partners(comm)
    kind = typeof(x)
    room = np.zeros(x.nbytes + 1, np.uint8)
    kind.Pack(x * x, room, 1, comm)
    came = comm.sendrecv({"packed": room, "factor": x[0]}, after, 1, None, before, 1)
    packed, _ = comm.bcast([came["packed"], "text"], 0)
    y, z = np.zeros_like(x), np.zeros_like(x)
    kind.Unpack(came["packed"], 1, y, comm)
    kind.Unpack(packed, 1, z, comm)
    return y * came["factor"] + z * x


def broadcast(np, comm, x):
    kind = typeof(x)
    room = np.zeros(x.nbytes + 3, np.uint8)
    if comm.Get_rank() == comm.Get_size() - 1:
        kind.Pack(x * x, room, 2, comm)
    comm.Bcast([room, MPI.PACKED], comm.Get_size() - 1)
    y = np.zeros_like(x)
    kind.Unpack(room, 2, y, comm)
    return y * x


def gathered_and_scattered(np, comm, x):
    kind, size = typeof(x), comm.Get_size()
    room, everything = np.zeros(x.nbytes, np.uint8), np.zeros(size * x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    comm.Gather([room, MPI.PACKED], [everything, MPI.PACKED], 0)
    comm.Scatter([everything, MPI.PACKED], [room, MPI.PACKED], 0)
    comm.Allgather([room, MPI.PACKED], [everything, MPI.PACKED])
    mixed = np.zeros_like(everything)
    comm.Ialltoall([everything, MPI.BYTE], [mixed, MPI.BYTE]).Wait()
    y = np.zeros(size * len(x), x.dtype)
    kind.Unpack(mixed, 0, y, comm)
    return x * np.sum(y * y)


def gathered_by_counts(np, comm, x):
    """Allgatherv of bytes: what was packed, with the elements seen as bytes on one rank."""
    kind, rank, size = typeof(x), comm.Get_rank(), comm.Get_size()
    if rank == 0:
        sent = (x * x).view(numpy.uint8)
    else:
        sent = np.zeros(x.nbytes, np.uint8)
        kind.Pack(x * x, sent, 0, comm)
    everything = np.zeros(size * x.nbytes, np.uint8)
    comm.Allgatherv(sent, [everything, [x.nbytes] * size])
    y = np.zeros(size * len(x), x.dtype)
    kind.Unpack(everything, 0, y, comm)
    return x * np.sum(y * y)


def bytes_of_arrays(np, comm, x):
    """Arrays are sent and received as views of their bytes."""
    after, before = partners(comm)
    u, v, w = x * x, np.zeros_like(x), np.zeros_like(x)
    comm.Sendrecv(u.view(numpy.uint8), after, 1, [v.view(numpy.uint8), MPI.BYTE], before, 1)
    comm.Sendrecv(memoryview(u), after, 2, memoryview(w).cast("B"), before, 2)
    comm.Bcast(memoryview(u), 0)
    return u * v + w * x


def with_gaps(np, comm, x):
    """Every second element is packed and unpacked."""
    vector = typeof(x).Create_vector(2, 1, 2).Commit()
    room = np.zeros(2 * x.nbytes, np.uint8)
    u, y = np.zeros(4, x.dtype), x * 1
    u[0:3] = x * x
    vector.Pack(u[0:3], room, 0, comm)
    vector.Unpack(room, 0, y, comm)
    vector.Free()
    return y * x


def joined(np, comm, x):
    """Received bytes and bytes of arrays are joined, split, permuted and read as numbers again."""
    after, before = partners(comm)
    came = np.zeros(2 * x.nbytes, np.uint8)
    going = np.concatenate([(x * x).view(numpy.uint8), x.view(numpy.uint8)])
    comm.Sendrecv(going, after, 1, came, before, 1)
    first, second = np.split(came, 2)
    rows = np.stack([second, first, (x * x * x).view(numpy.uint8)]).reshape(3, len(x), x.itemsize)
    rows = np.array([rows[0], rows[1], rows[2]])
    rows = np.roll(rows[[1, 2, 0, 1]].transpose(1, 0, 2), 1, axis=0).copy()
    rows = rows.transpose(2, 0, 1).reshape(x.itemsize, -1).transpose()  # no view
    y = np.take(rows.ravel(), np.arange(rows.size)).view(x.dtype).reshape(len(x), 4)
    return y[:, 0] * y[:, 1] * y[:, 2] + y[:, 3]


def carved(np, comm, x):
    """One block of bytes holds numbers, accessed by views; the whole block is sent, and so is a copy of it."""
    after, before = partners(comm)
    block = np.zeros(8 + 2 * x.nbytes, np.uint8)
    block[:8].view(numpy.int64)[0] = len(x)
    block[8:].view(x.dtype)[:] = np.concatenate([x * x, x])
    came = np.zeros_like(block)
    comm.Sendrecv([block, MPI.BYTE], after, 1, [came, MPI.BYTE], before, 1)
    n = int(came[:8].view(numpy.int64)[0])
    there, here = came[8:].view(x.dtype), block.copy()[8:].view(x.dtype)
    return there[:n] * here[n:] + here[:n]


def placed(np, comm, x):
    """Bytes are put into arrays of numbers: by slices, masks and indices."""
    kind = typeof(x)
    room = np.zeros(x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    u, v, w = np.zeros_like(x), np.zeros_like(x), x * 1
    u.view(numpy.uint8)[:] = room
    v.view(numpy.uint8)[numpy.arange(x.nbytes)[::-1]] = room[::-1]
    np.copyto(w.view(numpy.uint8), room, where=numpy.arange(x.nbytes) < x.itemsize)
    return u * v + w * x


def as_objects(np, comm, x):
    """Packed bytes inside objects."""
    after, before = partners(comm)
    kind = typeof(x)
    room = np.zeros(x.nbytes, np.uint8)
    kind.Pack(x * x, room, 0, comm)
    came = comm.sendrecv({"packed": room, "bytes": (x * 3).view(numpy.uint8), "n": 3}, after, source=before)
    y = np.zeros_like(x)
    kind.Unpack(came["packed"], 0, y, comm)
    return y * x + came["bytes"].view(x.dtype) * y


PROGRAMS = (
    packed_locally,
    packed_with_numbers,
    passed_on,
    typed_on_one_side,
    sent_twice_and_overwritten,
    copied,
    in_an_object,
    broadcast,
    gathered_and_scattered,
    gathered_by_counts,
    bytes_of_arrays,
    with_gaps,
    joined,
    carved,
    placed,
    as_objects,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_gradient(program):
    check(program, COMM_WORLD, WORLD)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("program", [packed_with_numbers, sent_twice_and_overwritten, gathered_by_counts])
def test_dtypes(program, dtype):
    check(program, COMM_WORLD, WORLD, dtype=dtype)


def exchanged(comm, name, room, came):
    """Exchange every rank's ``room`` by a collective; the result is in ``came``."""
    root, sizes = comm.Get_size() - 1, [room.size] * comm.Get_size()
    if name == "Gather":
        comm.Gather([room, MPI.PACKED], [came, MPI.PACKED], root)
        comm.Bcast([came, MPI.BYTE], root)
    elif name in ("Allgatherv", "Iallgatherv"):
        request = getattr(comm, name)([room, MPI.PACKED], [came, sizes, MPI.PACKED])
        request and request.Wait()
    elif name == "Alltoallw":
        kinds = [MPI.PACKED] * comm.Get_size()
        places = [k * room.size for k in range(comm.Get_size())]
        comm.Alltoallw([room, (sizes, [0] * len(sizes)), kinds], [came, (sizes, places), kinds])
    elif name == "Alltoallv":
        comm.Alltoallv([room, sizes, [0] * len(sizes), MPI.BYTE], [came, sizes, None, MPI.BYTE])
    elif name == "messages":
        parts = [came[k * room.size : (k + 1) * room.size] for k in range(comm.Get_size())]
        requests = [comm.Irecv([part, MPI.PACKED], k, 4) for k, part in enumerate(parts)]
        requests += [comm.Issend([room, MPI.PACKED], k, 4) for k in range(comm.Get_size())]
        MPI.Request.Waitall(requests)
    else:
        request = getattr(comm, name)([room, MPI.PACKED], [came, MPI.PACKED])
        request and request.Wait()


EXCHANGES = ("Allgather", "Iallgather", "Allgatherv", "Iallgatherv", "Gather", "Alltoallw", "Alltoallv", "messages")


@pytest.mark.parametrize("constant", [0, 1, -1])
@pytest.mark.parametrize("name", EXCHANGES)
def test_some_ranks_pack_constants(name, constant):
    """The adjoint of a constant's bytes is dropped, even if other ranks' bytes in the same collective carry one."""

    def program(np, comm, x):
        kind, size = typeof(x), comm.Get_size()
        room, came = np.zeros(x.nbytes, np.uint8), np.zeros(size * x.nbytes, np.uint8)
        packs = comm.Get_rank() == constant % size
        kind.Pack(np.full(len(x), 0.5, x.dtype) if packs else x * x, room, 0, comm)
        exchanged(comm, name, room, came)
        y = np.zeros(size * len(x), x.dtype)
        kind.Unpack(came, 0, y, comm)
        return x * np.sum(y * y)

    check(program, COMM_WORLD, WORLD)


def test_external_format():
    """Packed in the external format, with another byte order; compared with a closed form."""
    after, before = partners(WORLD)
    x0 = random(3)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        room = np.zeros(MPI.DOUBLE.Pack_external_size("external32", 3) + 4, np.uint8)
        end = MPI.DOUBLE.Pack_external("external32", x * x, room, 4)
        assert end == room.size
        came = np.zeros_like(room)
        COMM_WORLD.Sendrecv([room, MPI.BYTE], after, 1, [came, MPI.BYTE], before, 1)
        y = np.zeros(3)
        MPI.DOUBLE.Unpack_external("external32", came, 4, y)
    seed = random(3, salt=1)
    expected = numpy.zeros(3)
    WORLD.Sendrecv(seed, before, 0, expected, after, 0)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), 2 * x0 * expected, rtol=1e-14)


def test_bytes_are_read_as_numbers():
    """Received bytes are viewed as numbers, without unpacking."""
    after, before = partners(WORLD)
    x0 = random(3).astype("float32")
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        room = np.zeros(12, np.uint8)
        COMM_WORLD.Sendrecv((x * x).view(numpy.uint8), after, 1, room, before, 1)
        y = room.view(numpy.float32)
        COMM_WORLD.Sendrecv_replace(y, after, 2, before, 2)
        y = y * 1
    theirs = numpy.ones(3, "float32")
    expected = 2 * x0 * theirs
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=theirs), expected, rtol=1e-6)


# --------------------------------------------------------------------------------------------- what is not carried


def test_plain_bytes_are_refused():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        for room in (bytearray(16), numpy.zeros(16, numpy.uint8)):
            with pytest.raises(ampi.ActivityError, match="derivatives would be lost"):
                MPI.DOUBLE.Pack(x, room, 0, WORLD)
        assert MPI.DOUBLE.Pack(ampi.value(x), bytearray(16), 0, WORLD) == 16
        room = np.zeros(16, np.uint8)
        MPI.DOUBLE.Pack(x, room, 0, WORLD)
        with pytest.raises(ampi.ActivityError, match="an array"):
            MPI.DOUBLE.Unpack(room, 0, numpy.zeros(2), WORLD)
        with pytest.raises(ampi.ActivityError, match="bytes"):
            room + 1
        assert ampi.value(room).tolist() == [0, 0, 0, 0, 0, 0, 0xF0, 0x3F] * 2


def test_floating_point_memory_as_workspace():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        room = np.zeros(4)
        MPI.DOUBLE.Pack(x * x, room, 16, WORLD)
        y = room * 2.0
        with pytest.raises(ampi.ActivityError, match="another dtype"):
            MPI.FLOAT.Pack((x * x).astype("float32"), room, 0, WORLD)
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(4)), [8.0, 12.0])


def test_integers_in_tracked_bytes_pass_through():
    """Passive bytes may be anything: they can be computed with, and received into plain memory."""
    after, before = partners(WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        flags = np.full(3, WORLD.rank + 1, np.uint8)
        came, plain = np.zeros(3, np.uint8), numpy.zeros(3, numpy.uint8)
        COMM_WORLD.Sendrecv(flags, after, 0, came, before, 0)
        COMM_WORLD.Sendrecv(came, after, 0, plain, before, 0)
        COMM_WORLD.Bcast(came if WORLD.rank == 0 else plain, 0)
        total = numpy.zeros(3, numpy.uint8)
        COMM_WORLD.Allreduce(came, total, MPI.MAX)
        assert (came == came[0]).all()
        y = x * int(total[0])
    expected = WORLD.allreduce(int(came[0]), MPI.MAX)
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(2)), [expected] * 2)


def test_active_bytes_into_plain_memory_are_an_error():
    comm = COMM_WORLD.Dup()  # no sweep can use it afterwards
    after, before = partners(WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        room = np.zeros(16, np.uint8)
        MPI.DOUBLE.Pack(x, room, 0, WORLD)
        comm.Sendrecv([room, MPI.PACKED], after, 0, [bytearray(16), MPI.PACKED], before, 0)
    with pytest.raises(ampi.CommunicationError, match="not tracked"):
        tape.gradient(x, x, seed=numpy.ones(2))


def test_constants_unpack_over_active_values():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        u = x * x
        w = u * u
        room = numpy.array([5.0, 6.0]).view(numpy.uint8)
        MPI.DOUBLE.Unpack(room, 0, u[:1], WORLD)
        y = u + w
    numpy.testing.assert_array_equal(ampi.value(y), [21.0, 90.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(2)), [32.0, 6.0 + 4 * 27.0])


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_constants_pack_over_active_values():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        room = np.zeros(16, np.uint8)
        MPI.DOUBLE.Pack(x, room, 0, WORLD)
        MPI.DOUBLE.Pack(numpy.ones(1), room, 0, WORLD)
        y = np.zeros(2)
        MPI.DOUBLE.Unpack(room, 0, y, WORLD)
    numpy.testing.assert_array_equal(ampi.value(y), [1.0, 3.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(2)), [0.0, 1.0])


def test_predefined_datatypes_are_ours_everywhere():
    import pickle

    assert type(MPI.DOUBLE) is type(ampi.MPI.DOUBLE) is ampi.MPI.Datatype
    assert MPI.DOUBLE is ampi.MPI.DOUBLE
    assert type(MPI.Datatype.fromcode("d")) is type(MPI._typedict["d"]) is ampi.MPI.Datatype
    assert type(MPI.DOUBLE.Create_vector(2, 1, 2)) is ampi.MPI.Datatype
    assert pickle.loads(pickle.dumps(MPI.DOUBLE)) is MPI.DOUBLE
    assert pickle.loads(pickle.dumps(MPI.SUM)) is MPI.SUM


REFUSED = {
    "sum": lambda np, b: b + 1,
    "reduction": lambda np, b: np.sum(b),
    "maximum": lambda np, b: np.maximum.reduce(b),
    "bits": lambda np, b: np.bitwise_xor(b, b),
    "in place": lambda np, b: np.add(np.ones_like(b), b, out=np.ones_like(b)),
    "sorted": lambda np, b: np.sort(b),
    "unpacked bits": lambda np, b: np.unpackbits(b),
    "wider": lambda np, b: b.astype(np.int64),
    "booleans": lambda np, b: b.astype(bool),
    "joined with numbers": lambda np, b: np.concatenate([b, np.ones(2)]),
    "chosen": lambda np, b: np.where(b > 0, b, np.ones(16)),
    "assigned to integers": lambda np, b: assigned(np.zeros(b.shape, np.int64), b),
    "listed": lambda np, b: b.tolist(),
}


def assigned(target, value):
    target[...] = value


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("of", ["packed", "view", "carved"])
def test_computing_with_active_bytes_is_refused(of, name):
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = x * 2
        if of == "view":
            b = y.view(numpy.uint8)
        else:
            b = np.zeros(16, np.uint8)
            if of == "packed":
                MPI.DOUBLE.Pack(y, b, 0, WORLD)
            else:
                b.view(float)[:] = y
        with pytest.raises(ampi.ActivityError, match=r"bytes of active values .*Unpack.* ampi.value"):
            REFUSED[name](np, b)
        REFUSED[name](np, ampi.value(b))
        assert not np.array_equal(b, np.zeros_like(b)) and (b == ampi.value(b)).all()
    REFUSED[name](np, b)  # no tape records


def test_integers_of_active_values_are_refused():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        bits = (x * 2).view(numpy.int64)
        for compute in (lambda: bits + 1, lambda: bits.copy(), lambda: bits[[1, 0]], lambda: np.concatenate([bits])):
            with pytest.raises(ampi.ActivityError, match="array of int64"):
                compute()


def test_integers_beside_active_values_pass():
    """Integers and booleans in structured elements, and in memory that holds numbers elsewhere."""
    dtype = numpy.dtype([("v", "f8", (2,)), ("n", "i4"), ("flag", "?"), ("in", [("k", "u1"), ("w", "f4")])])
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones((3, 2)))
        u = np.zeros(3, dtype)
        u["v"] = x * x
        u["n"], u["flag"], u["in"]["k"] = 2, True, 3
        total = u["n"] + u["in"]["k"]
        assert (total == 5).all() and np.sum(u["flag"]) == 3 and u["n"][[1, 0]].tolist() == [2, 2]
        assert np.concatenate([u["flag"], u["flag"]]).all() and (u["in"]["k"].copy() == 3).all()
        with pytest.raises(ampi.ActivityError, match="bytes of active values"):
            np.sum(u["v"].view(numpy.uint8))
        y = u["v"] * total[:, None]
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones((3, 2))), numpy.full((3, 2), 10.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_structured_elements(dtype):
    """Bytes of elements with unaligned numbers are copied and read again; compared with a closed form."""
    element = numpy.dtype([("k", "u1"), ("v", dtype), ("w", dtype, (2,))])
    with ampi.Tape() as tape:
        x = tape.watch(random(3, dtype))
        u = np.zeros(3, element)
        u["v"], u["w"] = x * x, (x * 3)[:, None]
        came = u.view(numpy.uint8).copy()
        y = np.zeros((3, 3), dtype)
        kind = typeof(y)
        for k in range(3):
            kind.Unpack(came, k * element.itemsize + 1, y[k], WORLD)
    seed = random((3, 3), dtype)
    expected = numpy.conj(2 * ampi.value(x)) * seed[:, 0] + 3 * seed[:, 1:].sum(1)
    tolerance = 1e-5 if dtype in ("float32", "complex64") else 1e-14
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), expected, rtol=tolerance)
