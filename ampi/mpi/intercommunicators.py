"""Collective operations on intercommunicators: what each reads and writes on this rank, and its adjoint.

What one group reads the other writes.  For operations with a root, the root's group names it ``MPI.ROOT``, its other
members say ``MPI.PROC_NULL``, and the other group gives its rank; so do their adjoints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..tape import Sweep
from . import collectives
from .buffers import NOTHING, Buffer, parse, parse_moved, parse_vector_moved
from .collectives import Call, add_bytes, between_groups, nbytes_of, plan_alltoall, plan_alltoallw, plan_reduction
from .reductions import COLLECTIVE_TAG, Reduction, Steps
from .reverse import reverse_of

_BY_IDUP = "an intercommunicator that was made by Idup has no adjoint of this; make it by Dup"


def _nothing(sweep: Sweep, comm: Any, x: None) -> Steps:
    yield []


def _outside(name: str, adjoint: Callable[[Any], mpi.Request]) -> Call:
    """The part of a member of the root's group that is not the root."""

    def steps(sweep: Sweep, comm: Any, x: None) -> Steps:
        yield [adjoint(comm)]

    return Call(name, (), (), steps)


def _bcast(comm: Any, buf: Any, root: int = 0) -> Call:
    """The adjoints are summed inside the group that received, whose first member sends the sum to the root.

    (Open MPI's Ireduce between groups loses its way where one of them has a single member.)
    """
    if root == mpi.PROC_NULL:
        return Call("Bcast", (), (), _nothing)
    buffer = parse_moved(buf)
    reverse = reverse_of(comm)
    local = None if reverse is None else reverse.local
    shape = buffer.count, buffer.dtype

    def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
        total = np.zeros(*shape)
        yield [comm.Irecv(total, 0, COLLECTIVE_TAG)]
        return partial(buffer.add, sweep, total)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        taken, total = buffer.take(sweep), np.zeros(*shape)
        yield [local.Ireduce(taken, total, mpi.SUM, 0)]
        if local.Get_rank() == 0:
            yield [comm.Isend(total, root, COLLECTIVE_TAG)]

    call = Call("Bcast", (buffer,), (), adjoint_at_root) if root == mpi.ROOT else Call("Bcast", (), (buffer,), adjoint)
    if local is None and not call.refused:
        call.refused = _BY_IDUP
    return call


def _gather(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_gather("Gather", parse_moved, comm, sendbuf, recvbuf, root)


def _gatherv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_gather("Gatherv", parse_vector_moved, comm, sendbuf, recvbuf, root)


def _plan_gather(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    if root == mpi.PROC_NULL:
        return _outside(name, lambda comm: comm.Iscatterv(None, None, mpi.PROC_NULL))
    if root == mpi.ROOT:
        blocks = collectives.Blocks(form(recvbuf, comm.Get_remote_size()), comm.Get_remote_size())

        def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
            yield [comm.Iscatterv([blocks.take(sweep), blocks.nbytes], None, mpi.ROOT)]

        return Call(name, (), blocks.parts, adjoint_at_root)
    sent = parse_moved(sendbuf)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(nbytes_of(sent), np.uint8)
        yield [comm.Iscatterv(None, came, root)]
        return partial(add_bytes, sweep, sent, came)

    return Call(name, (sent,), (), adjoint)


def _scatter(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_scatter("Scatter", parse_moved, comm, sendbuf, recvbuf, root)


def _scatterv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_scatter("Scatterv", parse_vector_moved, comm, sendbuf, recvbuf, root)


def _plan_scatter(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    if root == mpi.PROC_NULL:
        return _outside(name, lambda comm: comm.Igatherv(None, None, mpi.PROC_NULL))
    if root == mpi.ROOT:
        blocks = collectives.Blocks(form(sendbuf, comm.Get_remote_size()), comm.Get_remote_size())

        def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
            came = np.empty(sum(blocks.nbytes), np.uint8)
            yield [comm.Igatherv(None, [came, blocks.nbytes], mpi.ROOT)]
            return partial(blocks.add, sweep, came)

        return Call(name, blocks.parts, (), adjoint_at_root)
    received = parse_moved(recvbuf)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        yield [comm.Igatherv(received.take(sweep).view(np.uint8), None, root)]

    return Call(name, (), (received,), adjoint)


def _allgather(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return _plan_allgather("Allgather", parse_moved, comm, sendbuf, recvbuf)


def _allgatherv(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return _plan_allgather("Allgatherv", parse_vector_moved, comm, sendbuf, recvbuf)


def _plan_allgather(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    """MPI's Reduce_scatter wants as much data from one group as from the other; an Allgather does not give that."""
    size = comm.Get_remote_size()
    sent = parse_moved(sendbuf)
    blocks = collectives.Blocks(form(recvbuf, size), size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty((size, nbytes_of(sent)), np.uint8)
        going = [blocks.take(sweep), blocks.nbytes]
        yield [comm.Ialltoallv(going, [came, [nbytes_of(sent)] * size])]
        return partial(_add_all, sweep, sent, came)

    return Call(name, (sent,), blocks.parts, adjoint)


def _add_all(sweep: Sweep, buffer: Buffer, came: np.ndarray) -> None:
    for part in came:
        add_bytes(sweep, buffer, part)


# ------------------------------------------------------------------------------------------------------ reductions


def _plan(name: str, comm: Any, op: Any, x: Buffer, y: Buffer, adjoint: Callable) -> Call:
    """A reduction; ``adjoint(sweep, comm)`` gives what comes back of the result."""
    reverse = reverse_of(comm)
    local = None if reverse is None else reverse.local

    def steps(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = yield from adjoint(sweep, comm)
        if x is not NOTHING:
            return partial(x.add, sweep, (yield from rule.share(local, values, g)))
        return None

    call = plan_reduction(name, op, x, y, steps)
    if local is None and not call.overlaps and not call.refused:
        call.refused = _BY_IDUP
    return call


def _reduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM, root: int = 0) -> Call:
    if root == mpi.PROC_NULL:
        x = y = NOTHING
    elif root == mpi.ROOT:
        x, y = NOTHING, parse(recvbuf)
    else:
        x, y = parse(sendbuf), NOTHING

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        # MPICH 5.0's Ibcast between groups of several ranks gives wrong values: messages instead.
        if root == mpi.ROOT:
            g = y.take(sweep)
            yield [comm.Isend(g, rank, COLLECTIVE_TAG) for rank in range(comm.Get_remote_size())]
        else:
            g = np.empty(x.count, x.dtype)
            yield [] if root == mpi.PROC_NULL else [comm.Irecv(g, root, COLLECTIVE_TAG)]
        return g

    call = _plan("Reduce", comm, op, x, y, adjoint)
    if x is NOTHING:
        call.needed, call.refused = None, ""
    return call


def _allreduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        taken, g = y.take(sweep), np.empty(x.count, x.dtype)
        yield [comm.Iallreduce(taken, g, mpi.SUM)]
        return g

    return _plan("Allreduce", comm, op, x, y, adjoint)


def _reduce_scatter_block(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        g = np.empty(x.count, x.dtype)
        yield [comm.Iallgather(y.take(sweep), g)]
        return g

    return _plan("Reduce_scatter_block", comm, op, x, y, adjoint)


def _reduce_scatter(comm: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = mpi.SUM) -> Call:
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        counts = np.empty(comm.Get_remote_size(), np.int64)
        yield [comm.Iallgather(np.array([y.count], np.int64), counts)]
        g = np.empty(x.count, x.dtype)
        yield [comm.Iallgatherv(y.take(sweep), [g, counts])]
        return g

    return _plan("Reduce_scatter", comm, op, x, y, adjoint)


def _alltoall(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return plan_alltoall("Alltoall", parse_moved, comm.Get_remote_size(), sendbuf, recvbuf)


def _alltoallv(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return plan_alltoall("Alltoallv", parse_vector_moved, comm.Get_remote_size(), sendbuf, recvbuf)


def _alltoallw(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return plan_alltoallw(comm.Get_remote_size(), sendbuf, recvbuf)


between_groups.update(
    {
        "Bcast": _bcast,
        "Gather": _gather,
        "Gatherv": _gatherv,
        "Scatter": _scatter,
        "Scatterv": _scatterv,
        "Allgather": _allgather,
        "Allgatherv": _allgatherv,
        "Alltoall": _alltoall,
        "Alltoallv": _alltoallv,
        "Alltoallw": _alltoallw,
        "Reduce": _reduce,
        "Allreduce": _allreduce,
        "Reduce_scatter_block": _reduce_scatter_block,
        "Reduce_scatter": _reduce_scatter,
    }
)
