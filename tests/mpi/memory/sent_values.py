"""Values that MPI sends for a message argument, and checks of buffers against them."""

import numpy as np
from mpi4py import MPI

import ampi
from ampi.memory.storages import plain, tracked_copy
from ampi.tape import Sweep

FIELD = (6, 8)


def field(dtype="float64", order="C"):
    """A tracked array whose elements are their positions in memory."""
    values = np.arange(48).reshape(FIELD[::-1] if order == "F" else FIELD).astype(dtype)
    result = tracked_copy(values)
    return result.T if order == "F" else result


def vector():
    return MPI.DOUBLE.Create_vector(3, 2, 8)


def column():
    return MPI.DOUBLE.Create_vector(2, 1, 8).Create_resized(0, 8)


def hvector():
    return MPI.DOUBLE.Create_vector(2, 1, 3).Create_hvector(2, 2, 160)


def indexed():
    return MPI.DOUBLE.Create_indexed([2, 1, 3], [30, 3, 10])


def hindexed():
    return MPI.DOUBLE.Create_hindexed([2, 0, 3], [48, 0, 160])


def indexed_block():
    return MPI.DOUBLE.Create_indexed_block(2, [40, 0, 5, 20])


def hindexed_block():
    return MPI.DOUBLE.Create_hindexed_block(1, [8 * k * k for k in range(7)])


def many_pieces():
    return MPI.DOUBLE.Create_indexed_block(1, [(k * 7) % 48 for k in range(30)])


def subarray():
    return MPI.DOUBLE.Create_subarray(FIELD, [3, 2], [2, 5])


def fortran_subarray():
    return MPI.DOUBLE.Create_subarray(FIELD, [3, 2], [2, 5], MPI.ORDER_F)


def distributed():
    block, cyclic = MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC
    return MPI.DOUBLE.Create_darray(6, 4, FIELD, [block, cyclic], [MPI.DISTRIBUTE_DFLT_DARG, 2], [2, 3])


def distributed_in_fortran_order():
    cyclic, none = MPI.DISTRIBUTE_CYCLIC, MPI.DISTRIBUTE_NONE
    return MPI.DOUBLE.Create_darray(2, 1, FIELD, [none, cyclic], [MPI.DISTRIBUTE_DFLT_DARG, 3], [1, 2], MPI.ORDER_F)


def distributed_in_blocks():
    block = MPI.DISTRIBUTE_BLOCK
    return MPI.DOUBLE.Create_darray(4, 3, FIELD, [block, block], [4, MPI.DISTRIBUTE_DFLT_DARG], [2, 2])


def nested():
    rows = MPI.DOUBLE.Create_indexed_block(1, [2, 0]).Create_resized(0, 24)
    return MPI.Datatype.Create_struct([2, 1], [8, 160], [rows, MPI.DOUBLE.Create_subarray([4], [2], [1])]).Dup()


def struct():
    return MPI.Datatype.Create_struct([1, 2], [16, 64], [MPI.DOUBLE, MPI.DOUBLE.Create_vector(2, 1, 2)])


def duplicate():
    return MPI.DOUBLE.Create_contiguous(5).Dup()


def backwards():
    return MPI.DOUBLE.Create_hindexed([1] * 5, [8 * (20 - 4 * k) for k in range(5)])


def as_bytes():
    return MPI.BYTE.Create_vector(3, 16, 40)


DATATYPES = [
    vector,
    column,
    hvector,
    indexed,
    hindexed,
    indexed_block,
    hindexed_block,
    many_pieces,
    subarray,
    fortran_subarray,
    distributed,
    distributed_in_fortran_order,
    distributed_in_blocks,
    nested,
    struct,
    duplicate,
    backwards,
    as_bytes,
]


def in_memory(memory):
    """A plain view of the elements in memory order."""
    found = plain(memory)
    return (found if found.flags.c_contiguous else found.T).reshape(-1)


def check_adjoints(memory, buffer, positions):
    sweep = Sweep(ampi.Tape())
    region = ampi.memory.storages.region_of(memory)
    assert np.array_equal(buffer.peek(sweep), np.zeros(buffer.count))
    shadow = in_memory(sweep.shadow(region))
    shadow[...] = np.arange(100, 100 + shadow.size)
    expected = shadow.copy()
    assert np.array_equal(buffer.peek(sweep), expected[positions])
    assert np.array_equal(shadow, expected)
    taken = buffer.take(sweep)
    assert taken.flags.c_contiguous and taken.flags.owndata and taken.ndim == 1
    assert np.array_equal(taken, expected[positions])
    expected[positions] = 0
    assert np.array_equal(shadow, expected)
    more = np.arange(1.0, buffer.count + 1).astype(buffer.dtype)
    buffer.detach().add(sweep, more)
    np.add.at(expected, positions, more)
    assert np.array_equal(shadow, expected)
    buffer.first(buffer.count // 2).zero(sweep)
    expected[positions[: buffer.count // 2]] = 0
    assert np.array_equal(shadow, expected)
