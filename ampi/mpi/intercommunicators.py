"""Collective operations on intercommunicators: what each reads and writes on this rank, and its adjoint.

What one group reads the other writes.  For operations with a root, the root's group names it ``MPI.ROOT``, its other
members say ``MPI.PROC_NULL``, and the other group gives its rank; so do their adjoints, which go in messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..tape import Sweep
from . import collectives
from .between import exchanged, gathered, scattered, split
from .buffers import NOTHING, Buffer, parse, parse_moved, parse_vector_moved
from .collectives import Call, add_bytes, between_groups, nbytes_of, plan_alltoall, plan_alltoallw, plan_reduction
from .reductions import Reduction, Steps
from .reverse import COLLECTIVE_TAG, reverse_of


def _outside(name: str) -> Call:
    """The part of a member of the root's group that is not the root."""

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        yield []

    return Call(name, (), (), adjoint)


def _local_of(comm: Any) -> Any:
    """For the adjoints: the ranks of this group; None where no adjoints can be (active values are an error there)."""
    reverse = reverse_of(comm)
    return None if reverse is None else reverse.local


def _bcast(comm: Any, buf: Any, root: int = 0) -> Call:
    """The adjoints are summed inside the group that received, whose first member sends the sum to the root."""
    if root == mpi.PROC_NULL:
        return _in_steps(_outside("Bcast"))
    buffer = parse_moved(buf)
    local = _local_of(comm)
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

    if root == mpi.ROOT:
        return _in_steps(Call("Bcast", (buffer,), (), adjoint_at_root))
    return _in_steps(Call("Bcast", (), (buffer,), adjoint))


def _in_steps(call: Call) -> Call:
    """A collective whose adjoint goes in several steps on some rank."""
    call.overlaps = False
    return call


def _gather(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_gather("Gather", parse_moved, comm, sendbuf, recvbuf, root)


def _gatherv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_gather("Gatherv", parse_vector_moved, comm, sendbuf, recvbuf, root)


def _plan_gather(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    if root == mpi.PROC_NULL:
        return _outside(name)
    if root == mpi.ROOT:
        blocks = collectives.Blocks(form(recvbuf, comm.Get_remote_size()), comm.Get_remote_size())

        def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
            yield scattered(comm, split(blocks.take(sweep), blocks.nbytes), None, root)

        return Call(name, (), blocks.parts, adjoint_at_root)
    sent = parse_moved(sendbuf)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(nbytes_of(sent), np.uint8)
        yield scattered(comm, (), came, root)
        return partial(add_bytes, sweep, sent, came)

    return Call(name, (sent,), (), adjoint)


def _scatter(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_scatter("Scatter", parse_moved, comm, sendbuf, recvbuf, root)


def _scatterv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_scatter("Scatterv", parse_vector_moved, comm, sendbuf, recvbuf, root)


def _plan_scatter(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    if root == mpi.PROC_NULL:
        return _outside(name)
    if root == mpi.ROOT:
        blocks = collectives.Blocks(form(sendbuf, comm.Get_remote_size()), comm.Get_remote_size())

        def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
            came = np.empty(sum(blocks.nbytes), np.uint8)
            yield gathered(comm, None, split(came, blocks.nbytes), root)
            return partial(blocks.add, sweep, came)

        return Call(name, blocks.parts, (), adjoint_at_root)
    received = parse_moved(recvbuf)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        yield gathered(comm, received.take(sweep).view(np.uint8), (), root)

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
        yield exchanged(comm, split(blocks.take(sweep), blocks.nbytes), came)
        return partial(_add_all, sweep, sent, came)

    return Call(name, (sent,), blocks.parts, adjoint)


def _add_all(sweep: Sweep, buffer: Buffer, came: np.ndarray) -> None:
    for part in came:
        add_bytes(sweep, buffer, part)


# ------------------------------------------------------------------------------------------------------ reductions


def _plan(name: str, comm: Any, op: Any, x: Buffer, y: Buffer, adjoint: Callable) -> Call:
    """A reduction; ``adjoint(sweep, comm)`` gives what comes back of the result."""
    local = _local_of(comm)

    def steps(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = yield from adjoint(sweep, comm)
        if x is not NOTHING:
            return partial(x.add, sweep, (yield from rule.share(local, values, g)))
        return None

    return plan_reduction(name, op, x, y, steps)


def _reduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM, root: int = 0) -> Call:
    if root == mpi.PROC_NULL:
        x = y = NOTHING
    elif root == mpi.ROOT:
        x, y = NOTHING, parse(recvbuf)
    else:
        x, y = parse(sendbuf), NOTHING

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        if root == mpi.ROOT:
            g = y.take(sweep)
            yield scattered(comm, [g] * comm.Get_remote_size(), None, root)
        else:
            g = np.empty(x.count, x.dtype)
            yield scattered(comm, (), g, root)
        return g

    call = _plan("Reduce", comm, op, x, y, adjoint)
    if x is NOTHING:
        call.needed, call.refused = None, ""
    return call


def _allreduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    x, y = parse(sendbuf), parse(recvbuf)

    local = _local_of(comm)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        taken, total, g = y.take(sweep), np.zeros(y.count, y.dtype), np.empty(x.count, x.dtype)
        yield [local.Ireduce(taken, total, mpi.SUM, 0)]
        if local.Get_rank() == 0:
            yield [comm.Isend(total, 0, COLLECTIVE_TAG), comm.Irecv(g, 0, COLLECTIVE_TAG)]
        yield [local.Ibcast(g, 0)]
        return g

    return _in_steps(_plan("Allreduce", comm, op, x, y, adjoint))


def _reduce_scatter_block(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        g, size = np.empty(x.count, x.dtype), comm.Get_remote_size()
        yield exchanged(comm, [y.take(sweep)] * size, split(g, [x.count // size] * size))
        return g

    return _plan("Reduce_scatter_block", comm, op, x, y, adjoint)


def _reduce_scatter(comm: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = mpi.SUM) -> Call:
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        size = comm.Get_remote_size()
        counts, g = np.empty((size, 1), np.int64), np.empty(x.count, x.dtype)
        yield exchanged(comm, [np.array([y.count], np.int64)] * size, counts)
        yield exchanged(comm, [y.take(sweep)] * size, split(g, counts[:, 0].tolist()))
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
