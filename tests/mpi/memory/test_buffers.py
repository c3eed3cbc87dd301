"""The meaning of message arguments, compared with what mpi4py and MPI send for them."""

import array

import numpy as np
import pytest
from mpi4py import MPI
from sent_values import DATATYPES, check_adjoints, field, in_memory

import ampi
from ampi.memory.storages import plain, storage_of, tracked_copy
from ampi.mpi.memory.absolute_buffers import Composite
from ampi.mpi.memory.arguments import parse
from ampi.mpi.memory.buffers import NOTHING
from ampi.mpi.memory.bundles import Bundle
from ampi.mpi.memory.message_memory import AdjointMemory, MessageMemory
from ampi.mpi.memory.packed_adjoints import PackedAdjoints
from ampi.tape import Sweep

SELF = MPI.Intracomm(MPI.COMM_SELF)
FIELD = (6, 8)


def sent(spec, dtype, count):
    """What MPI sends for a message argument, given plain arrays, since memory that was handed out is copied."""
    came = np.empty(count, dtype)
    parts = spec if isinstance(spec, (list, tuple)) else [spec]
    parts = [plain(part) if isinstance(part, np.ndarray) else part for part in parts]
    SELF.Sendrecv(parts if isinstance(spec, (list, tuple)) else parts[0], 0, 0, [came, MPI.BYTE], 0, 0)
    return came


# --------------------------------------------------------------------------------------------- values and adjoints


def check(spec, memory, buffer):
    """Check that values, overwritten memory and adjoints of a buffer are those of the elements that MPI sends."""
    came = sent(spec, memory.dtype, buffer.count)
    positions = came.real.astype(int)
    assert buffer.dtype == memory.dtype
    assert np.array_equal(buffer.values(), came)
    check_overwritten(memory, buffer, positions)
    check_adjoints(memory, buffer, positions)


def check_overwritten(memory, buffer, positions):
    elements = in_memory(memory)
    before = elements.copy()
    with ampi.Tape() as tape:
        needed = tape.need(memory)
        touched = buffer.overwritten()
        undo = buffer.overwrite()
    saved = sum(np.size(u.saved) for u in undo)
    for view in touched:
        view[...] = -1
    assert set(np.flatnonzero(elements != before)) == set(positions)
    for u in undo:
        u.swap()
    assert np.array_equal(in_memory(needed), before)
    if storage_of(memory).guard:  # others may write to it: what is needed was copied
        elements[...] = before
    else:
        assert saved == len(positions)


@pytest.mark.parametrize("count", [1, 2])
def test_datatypes(datatype, count):
    memory = tracked_copy(np.arange(200.0))
    check([memory, count, datatype], memory, parse([memory, count, datatype]))


def test_datatype_freed_by_the_user():
    memory = field()
    for make in DATATYPES * 2:  # handles are reused
        datatype = make().Commit()
        spec = [memory, 1, datatype]
        came = sent(spec, memory.dtype, datatype.size // 8)
        buffer = parse(spec)
        datatype.Free()
        assert np.array_equal(buffer.values(), came)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "longdouble"])
@pytest.mark.parametrize("order", "CF")
def test_forms_of_a_simple_message(order, dtype):
    memory = field(dtype, order)
    code = memory.dtype.char
    basic = MPI._typedict[code]
    for spec in (
        memory,
        [memory, basic],
        (memory, code),
        [memory, 5],
        [memory, (5, 7)],
        [memory, (None, 7)],
        [memory, None, basic],
        [memory, 4, code],
        [memory, (4, 40), basic],
        [memory, 4, 40, basic],
        [memory, None, 8, basic],
        [memory, None],
    ):
        check(spec, memory, parse(spec))


def test_views_of_a_field():
    memory = field()
    for view in (memory[2:4], memory[3, 2:7], memory[1:, ...], memory[5], memory.reshape(4, 12)[1], memory[2:3, 1:4]):
        check(view, memory, parse(view))
    halo = MPI.DOUBLE.Create_vector(4, 1, 8).Commit()
    check([memory[1:2, 0], 1, halo], memory, parse([memory[1:2, 0], 1, halo]))  # reaches beyond the view
    halo.Free()


def test_bytes_of_floating_point_memory():
    memory = field()
    for spec in (
        [memory, MPI.BYTE],
        [memory, 24, MPI.BYTE],
        [memory, (24, 16), MPI.BYTE],
        memory.view(np.uint8),
        memory.view(np.int64),
        [memory, MPI.INT64_T],
        [memory.data, MPI.DOUBLE],
        memoryview(memory),
        memoryview(memory).cast("B"),
    ):
        check(spec, memory, parse(spec))


def test_bytes_that_cut_through_elements():
    memory = field()
    with ampi.Tape() as tape:
        for spec in ([memory, 5, MPI.BYTE], [memory, (8, 3), MPI.BYTE], memory.view(np.uint8).reshape(-1)[1:9]):
            assert not parse(spec).active(tape)
        tape.activate(memory)
        for spec in ([memory, 5, MPI.BYTE], [memory, (8, 3), MPI.BYTE], memory.view(np.uint8).reshape(-1)[1:9]):
            with pytest.raises(ampi.ActivityError, match="whole aligned elements"):
                parse(spec).active(tape)


@pytest.mark.parametrize(
    "memory",
    [bytearray(16), bytes(16), array.array("d", [1, 2]), array.array("i", [1, 2, 3]), np.arange(5), np.zeros((2, 0))],
    ids=lambda memory: type(memory).__name__,
)
def test_memory_that_carries_no_derivatives(memory):
    buffer = parse(memory)
    assert not buffer.tracked
    assert buffer.values().tobytes() == bytes(memory)
    assert buffer.nbytes == len(bytes(memory))
    assert buffer.overwritten() == []


def test_integer_elements_pass():
    memory = tracked_copy(np.arange(6))
    assert not parse(memory).tracked
    assert np.array_equal(parse([memory, 2, MPI.LONG]).values(), [0, 1])


def test_memories_have_what_the_log_the_sweep_and_the_recording_ask_of_them():
    buffer = parse(tracked_copy(np.arange(4.0)))
    for memory in (buffer, NOTHING, Composite(np.dtype(float), 0, []), PackedAdjoints(buffer)):
        assert isinstance(memory, MessageMemory)
    assert isinstance(Bundle(), AdjointMemory) and not isinstance(Bundle(), MessageMemory)


def test_no_memory():
    for spec in (None, [None, 0, MPI.DOUBLE], [MPI.BOTTOM, 0, MPI.DOUBLE]):
        buffer = parse(spec) if spec is not None else parse([None, MPI.DOUBLE])
        assert buffer.array is None and buffer.count == 0 and buffer.nbytes == 0
        assert buffer.overwritten() == []


@pytest.mark.parametrize(
    "spec",
    [
        [],
        [np.zeros(3)],
        [1, 2, 3, 4, 5],
        3,
        [np.zeros(3), "no such type"],
        [np.zeros(3), -1],
        [np.zeros(3), (1, -1)],
        np.zeros((3, 3))[:, 1],
        np.array([None]),
        [np.zeros(3), MPI.DOUBLE_INT],
    ],
)
def test_refused_as_mpi4py_does(spec):
    with pytest.raises(Exception) as theirs:
        SELF.Sendrecv(spec, 0, 0, [bytearray(1000), MPI.BYTE], 0, 0)
    with pytest.raises(theirs.type):
        parse(spec)


def test_structs_with_integers_and_floats():
    dtype = np.dtype([("id", "i4"), ("x", "f8", 3), ("flag", "i8")], align=True)
    one = MPI.Datatype.Create_struct(
        [1, 3, 1], [dtype.fields[n][1] for n in dtype.names], [MPI.INT, MPI.DOUBLE, MPI.INT64_T]
    )
    item = one.Create_resized(0, dtype.itemsize).Commit()
    memory = tracked_copy(np.zeros(5, dtype))
    plain(memory)["x"] = np.arange(15).reshape(5, 3)
    buffer = parse([memory, (3, 1), item])
    assert buffer.tracked and buffer.mixed
    assert np.array_equal(buffer.values(), np.arange(3.0, 12.0))
    with ampi.Tape() as tape:
        tape.need(memory)
        saved = buffer.overwrite()
    assert sum(u.saved.nbytes for u in saved) == 3 * (4 + 24 + 8)
    one.Free()
    item.Free()


def test_overlapping_elements_of_a_send():
    memory = tracked_copy(np.arange(6.0))
    datatype = MPI.DOUBLE.Create_vector(3, 3, 1).Commit()
    buffer = parse([memory, 1, datatype])
    assert np.array_equal(buffer.values(), [0, 1, 2, 1, 2, 3, 2, 3, 4])
    sweep = Sweep(ampi.Tape())
    buffer.add(sweep, np.ones(9))
    assert np.array_equal(sweep.shadow(ampi.memory.storages.region_of(memory)), [1, 2, 3, 2, 1, 0])
    datatype.Free()
