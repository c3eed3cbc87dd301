"""Reductions with locations and with custom operations, compared with finite differences."""

import math

import numpy
import pytest
import test_collectives as blocking
from mpi4py import MPI

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size


def combined(np, comm, name, x, op, datatype, width=1):
    """The result of a reduction on every rank (of Reduce: on rank 0); x has 4 items for each rank."""
    in_place = name.endswith("in place")
    method = getattr(comm, name.split()[0])
    if name.split()[0] == "Reduce":
        y = np.zeros(x.shape, x.dtype)
        method([x, datatype], [y, datatype] if comm.Get_rank() == 0 else None, op)
        return y
    if name.split()[0] == "Reduce_scatter_block":
        y = np.zeros(4 * width, x.dtype)
        method([x, datatype], [y, datatype], op)
        return y
    if in_place:
        method(MPI.IN_PLACE, [x, datatype], op)
        return x
    y = np.zeros(x.shape, x.dtype)
    method([x, datatype], [y, datatype], op)
    return y


METHODS = ["Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block", "Allreduce in place", "Scan in place"]


# --------------------------------------------------------------------------------------------------- with locations


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["MINLOC", "MAXLOC"])
@pytest.mark.parametrize("method", METHODS)
def test_locations(method, op, dtype):
    def case(np, comm, u):
        pairs = np.zeros(u.size, numpy.dtype([("value", u.dtype), ("location", "i4")], align=True))
        pairs["value"] = u
        pairs["location"] = 7 - comm.Get_rank()
        kind = {4: MPI.FLOAT_INT, 8: MPI.DOUBLE_INT}[u.itemsize]
        best = combined(np, comm, method, pairs, getattr(MPI, op), kind)
        return best["value"] * (best["location"] % 3 + 1) + u[0]

    blocking.check(blocking.world, dtype, case)


def test_nonblocking_locations_in_place():
    def case(np, comm, u):
        pairs = np.zeros(u.size, numpy.dtype([("value", u.dtype), ("location", "i4")], align=True))
        pairs["value"] = u
        comm.Iallreduce(MPI.IN_PLACE, [pairs, MPI.DOUBLE_INT], MPI.MAXLOC).Wait()
        return pairs["value"] * u

    blocking.check(blocking.world, "float64", case)


def test_ties_go_to_the_location_and_then_to_the_lowest_rank():
    """Equal values: the pair with the lower location; equal pairs: the lower rank."""
    dtype = numpy.dtype([("value", "f8"), ("location", "i4")], align=True)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        pairs, best = ampi.numpy.zeros(2, dtype), ampi.numpy.zeros(2, dtype)
        pairs["value"] = x
        pairs["location"] = [SIZE - RANK, 5]
        COMM_WORLD.Allreduce([pairs, MPI.DOUBLE_INT], [best, MPI.DOUBLE_INT], MPI.MAXLOC)
        y = best["value"] * 1
    x_bar = tape.gradient(y, x, seed=numpy.ones(2))
    assert numpy.array_equal(x_bar, [SIZE * (RANK == SIZE - 1), SIZE * (RANK == 0)])
    assert numpy.array_equal(best["location"], [1, 5])


# ----------------------------------------------------------------------------------------------- the user's operations


@ampi.kernel
def hypot(a, b):
    for k in range(b.size):
        b[k] = math.sqrt(a[k] * a[k] + b[k] * b[k])


@ampi.kernel
def compose(a, b):
    """Affine functions: b(a(t)) for pairs of slope and offset; not commutative."""
    for k in range(b.size // 2):
        b[2 * k + 1] = a[2 * k + 1] * b[2 * k] + b[2 * k + 1]
        b[2 * k] = a[2 * k] * b[2 * k]


def plain(function):
    """A kernel as a function for mpi4py alone."""

    def combine(inbuf, inoutbuf, datatype):
        dtype = numpy.float64 if datatype.size % 8 == 0 else numpy.float32
        a, b = (numpy.asarray(memoryview(buffer)).view(dtype) for buffer in (inbuf, inoutbuf))
        function.py_func(a, b)

    return combine


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("commute", [True, False])
def test_kernels(method, commute):
    function = hypot if commute else compose
    ours = MPI.Op.Create(function, commute)
    assert isinstance(ours, ampi.Op)
    theirs = ampi.Op._base.Create(plain(function), commute)
    item = MPI.DOUBLE if commute else MPI.DOUBLE.Create_contiguous(2).Commit()

    def case(np, comm, u):
        x = u * 1
        if not commute:
            x = np.concatenate([x, np.roll(x, 1)])
        op = ours if np is ampi.numpy else theirs
        return combined(np, comm, method, x, op, item, 1 if commute else 2) + u[0]

    blocking.check(blocking.world, "float64", case)
    blocking.check(blocking.backwards, "float64", case)
    ours.Free()
    theirs.Free()


def test_nonblocking_in_place_with_an_operation_that_is_freed():
    def case(np, comm, u):
        x = u * 1
        op = ampi.Op.Create(hypot, True) if np is ampi.numpy else ampi.Op._base.Create(plain(hypot), True)
        comm.Iallreduce(MPI.IN_PLACE, x, op).Wait()
        op.Free()
        return x * u

    blocking.check(blocking.world, "float64", case)


def test_handles_of_freed_operations_are_forgotten():
    op = ampi.Op.Create(hypot, True)
    op.Free()
    other = ampi.Op.Create(lambda a, b, datatype: None, True)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        with pytest.raises(ampi.ActivityError, match="user-defined"):
            COMM_WORLD.Allreduce(x, ampi.numpy.zeros(2), other)
    other.Free()


# -------------------------------------------------------------------------------------------------- local reductions


@ampi.kernel
def norm_of_both(a, b):
    for i in range(a.size):
        b[i] = math.sqrt(a[i] * a[i] + b[i] * b[i])


LOCAL = ["SUM", "PROD", "MIN", "MAX", "kernel"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LOCAL)
def test_reduce_local(name, dtype):
    """Reduce twice into a buffer whose values are needed before and after; compared with finite differences."""

    def combine(np, a, b):
        if name == "kernel" and np is numpy:
            b[...] = numpy.sqrt(a * a + b * b)
        elif name == "kernel":
            op = ampi.Op.Create(norm_of_both)
            op.Reduce_local(a, b)
            op.Free()
        else:
            getattr(MPI, name).Reduce_local(a, b)

    def case(np, comm, u):
        a, b = u * u, u[::-1] * 3
        before = b * b
        combine(np, a, b)
        combine(np, u, b)
        return b * b + before * a

    blocking.check(blocking.world, dtype, case)


@pytest.mark.parametrize("op", ["MINLOC", "MAXLOC"])
def test_reduce_local_with_locations(op):
    def case(np, comm, u):
        dtype = numpy.dtype([("value", u.dtype), ("location", "i4")], align=True)
        a, b = np.zeros(u.size, dtype), np.zeros(u.size, dtype)
        a["value"], a["location"] = u * u, 1
        b["value"], b["location"] = u[::-1] * 2, 2
        kind = {4: MPI.FLOAT_INT, 8: MPI.DOUBLE_INT}[u.itemsize]
        getattr(MPI, op).Reduce_local([a, kind], [b, kind])
        return b["value"] * b["location"]

    blocking.check(blocking.world, "float64", case)


def test_reduce_local_of_some_elements():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 5))
        b = ampi.numpy.full(4, 2.0)
        MPI.PROD.Reduce_local([x, 3, MPI.DOUBLE], [b, 3, MPI.DOUBLE])
        y = b * x
    numpy.testing.assert_array_equal(ampi.value(b), [2, 4, 6, 2])
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(4)), [4, 8, 12, 2])


def test_reduce_local_refuses_what_has_no_rule():
    own = MPI.Op.Create(lambda a, b, datatype: None)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        with pytest.raises(ampi.ActivityError, match="not tracked"):
            MPI.SUM.Reduce_local(x, numpy.zeros(2))
        with pytest.raises(ampi.ActivityError, match="kernel"):
            own.Reduce_local(x, ampi.numpy.zeros(2))
        own.Free()
        total = numpy.zeros(2)
        MPI.SUM.Reduce_local(numpy.ones(2), total)
        flags = ampi.numpy.array([1, 2])
        MPI.BOR.Reduce_local(numpy.array([4, 4]), flags)
        assert flags.tolist() == [5, 6] and total.tolist() == [1, 1]


def test_operations_are_called_on_objects():
    """An operation is a function of two objects as well, and so are reductions of objects with it."""
    kernel_op = ampi.Op.Create(norm_of_both)
    x0 = numpy.array([3.0, 1.0]) + RANK
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        a, b = x[0], x[1]
        values = [MPI.SUM(a, b), MPI.PROD(a, b), MPI.MAX(a, b), MPI.MIN(a, b), kernel_op(a, b)]
        best = MPI.MAXLOC((a, 0), (b, 1))
        values.append(best[0] * best[0])
        total = COMM_WORLD.allreduce(x, kernel_op)
        y = values[0] * 1.0
        for value in values[1:]:
            y = y + value
        y = y + ampi.numpy.sum(total) / SIZE
    kernel_op.Free()
    u, v = x0
    everything = numpy.sqrt(sum((numpy.array([3.0, 1.0]) + r) ** 2 for r in range(SIZE)))
    expected = numpy.array([1 + v + 1 + u / numpy.hypot(u, v) + 2 * u, 1 + u + 1 + v / numpy.hypot(u, v)])
    numpy.testing.assert_allclose(tape.gradient(y, x), expected + x0 / everything, rtol=1e-12)
