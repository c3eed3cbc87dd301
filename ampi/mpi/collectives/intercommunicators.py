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

from ...tape import Sweep
from ..log.reverse import COLLECTIVE_TAG, reverse_of
from ..memory.arguments import parse, parse_moved
from ..memory.buffers import NOTHING, Buffer
from .collective_calls import Call
from .data_movement import Blocks, add_bytes, nbytes_of
from .intercomm_p2p import exchanged, gathered, scattered, split
from .reduction_plans import plan_reduction
from .reductions import Reduction, Steps


def _outside() -> Call:
    """The part of a member of the root's group that is not the root."""

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        yield []

    return Call((), (), adjoint)


def _local_of(comm: Any) -> Any:
    """For the adjoints: the ranks of this group; None where no adjoints can be (active values are an error there)."""
    reverse = reverse_of(comm)
    return None if reverse is None else reverse.local


def bcast(comm: Any, buf: Any, root: int = 0) -> Call:
    """The adjoints are summed inside the group that received, whose first member sends the sum to the root."""
    if root == mpi.PROC_NULL:
        return _in_steps(_outside())
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
        return _in_steps(Call((buffer,), (), adjoint_at_root, root=root))
    return _in_steps(Call((), (buffer,), adjoint, root=root))


def _in_steps(call: Call) -> Call:
    """A collective whose adjoint goes in several steps on some rank."""
    call.overlaps = False
    return call


def gather(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0, *, form: Callable = parse_moved) -> Call:
    """Gather, Gatherv."""
    if root == mpi.PROC_NULL:
        return _outside()
    if root == mpi.ROOT:
        blocks = Blocks(form(recvbuf, comm.Get_remote_size()), comm.Get_remote_size())

        def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
            yield scattered(comm, split(blocks.take(sweep), blocks.nbytes), None, root)

        return Call((), blocks.parts, adjoint_at_root, root=root)
    sent = parse_moved(sendbuf)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(nbytes_of(sent), np.uint8)
        yield scattered(comm, (), came, root)
        return partial(add_bytes, sweep, sent, came)

    return Call((sent,), (), adjoint, root=root)


def scatter(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0, *, form: Callable = parse_moved) -> Call:
    """Scatter, Scatterv."""
    if root == mpi.PROC_NULL:
        return _outside()
    if root == mpi.ROOT:
        blocks = Blocks(form(sendbuf, comm.Get_remote_size()), comm.Get_remote_size())

        def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
            came = np.empty(sum(blocks.nbytes), np.uint8)
            yield gathered(comm, None, split(came, blocks.nbytes), root)
            return partial(blocks.add, sweep, came)

        return Call(blocks.parts, (), adjoint_at_root, root=root)
    received = parse_moved(recvbuf)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        yield gathered(comm, received.take(sweep).view(np.uint8), (), root)

    return Call((), (received,), adjoint, root=root)


def allgather(comm: Any, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved) -> Call:
    """MPI's Reduce_scatter wants as much data from one group as from the other; an Allgather does not give that."""
    size = comm.Get_remote_size()
    sent = parse_moved(sendbuf)
    blocks = Blocks(form(recvbuf, size), size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty((size, nbytes_of(sent)), np.uint8)
        yield exchanged(comm, split(blocks.take(sweep), blocks.nbytes), came)
        return partial(_add_all, sweep, sent, came)

    return Call((sent,), blocks.parts, adjoint)


def _add_all(sweep: Sweep, buffer: Buffer, came: np.ndarray) -> None:
    for part in came:
        add_bytes(sweep, buffer, part)


# ------------------------------------------------------------------------------------------------------ reductions


def _plan(
    comm: Any, op: Any, x: Buffer, y: Buffer, adjoint: Callable, in_steps: bool = False, root: int | None = None
) -> Call:
    """A reduction; ``adjoint(sweep, comm)`` gives what comes back of the result."""
    local = _local_of(comm)

    def steps(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = yield from adjoint(sweep, comm)
        if x is not NOTHING:
            return partial(x.add, sweep, (yield from rule.share(local, values, g)))
        return None

    return plan_reduction(op, x, y, steps, in_steps, root)


def reduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM, root: int = 0) -> Call:
    """Reduce."""
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

    call = _plan(comm, op, x, y, adjoint, root=root)
    if x is NOTHING:
        call.needed, call.refused = None, ""
    return call


def allreduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    """Allreduce."""
    x, y = parse(sendbuf), parse(recvbuf)

    local = _local_of(comm)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        taken, total, g = y.take(sweep), np.zeros(y.count, y.dtype), np.empty(x.count, x.dtype)
        yield [local.Ireduce(taken, total, mpi.SUM, 0)]
        if local.Get_rank() == 0:
            yield [comm.Isend(total, 0, COLLECTIVE_TAG), comm.Irecv(g, 0, COLLECTIVE_TAG)]
        yield [local.Ibcast(g, 0)]
        return g

    return _in_steps(_plan(comm, op, x, y, adjoint))


def reduce_scatter_block(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    """Reduce_scatter_block."""
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        g, size = np.empty(x.count, x.dtype), comm.Get_remote_size()
        yield exchanged(comm, [y.take(sweep)] * size, split(g, [x.count // size] * size))
        return g

    return _plan(comm, op, x, y, adjoint)


def reduce_scatter(comm: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = mpi.SUM) -> Call:
    """Reduce_scatter."""
    x, y = parse(sendbuf), parse(recvbuf)

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        size = comm.Get_remote_size()
        counts, g = np.empty((size, 1), np.int64), np.empty(x.count, x.dtype)
        yield exchanged(comm, [np.array([y.count], np.int64)] * size, counts)
        yield exchanged(comm, [y.take(sweep)] * size, split(g, counts[:, 0].tolist()))
        return g

    return _plan(comm, op, x, y, adjoint, in_steps=True)
