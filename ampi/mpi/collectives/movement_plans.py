"""Plans of collectives that move data: Bcast, Gather, Scatter, Allgather and Alltoall, in all their forms.

On an intercommunicator, one group writes what the other one reads.  In operations with a root, the root itself passes
``MPI.ROOT``, the other members of its group pass ``MPI.PROC_NULL``, and the other group passes the root's rank.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ..log.sizes import Sizes, of_blocks, to_others
from ..memory.argument_forms import is_in_place
from ..memory.arguments import parse_moved, parse_types_moved
from ..memory.buffers import NOTHING, Buffer
from .collective_calls import Call
from .movements import (
    ALLGATHER,
    ALLTOALL,
    BCAST,
    GATHER,
    NO_BLOCKS,
    SCATTER,
    Blocks,
    Movement,
    counts_of,
    in_blocks,
    in_parts,
    is_root,
    partners,
)


def bcast(comm: mpi.Comm, buf: Any, root: int = 0) -> Call:
    """Plan of Bcast."""
    if comm.Is_inter() and root == mpi.PROC_NULL:
        call = Call((), (), Movement(BCAST, NO_BLOCKS, NO_BLOCKS, root))
    else:
        buffer = parse_moved(buf)
        whole = Blocks((buffer,), [buffer.count], buffer.dtype)
        if is_root(comm, root):
            call = Call((buffer,), (), Movement(BCAST, whole, NO_BLOCKS, root), root=root)
        else:
            call = Call((), (buffer,), Movement(BCAST, NO_BLOCKS, whole, root), root=root)
        call.sizes = lambda: Sizes(buffer, buffer.nbytes)
    call.overlaps = not comm.Is_inter()  # the sum inside a group comes first
    return call


def gather(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, root: int = 0, *, form: Callable = parse_moved) -> Call:
    """Plan of Gather, and of Gatherv if ``form`` parses one count per rank."""
    size = partners(comm)
    if not is_root(comm, root):
        if comm.Is_inter() and root == mpi.PROC_NULL:
            return Call((), (), Movement(GATHER, NO_BLOCKS, NO_BLOCKS, root))
        sent = parse_moved(sendbuf)
        call = Call((sent,), (), Movement(GATHER, in_parts((sent,)), NO_BLOCKS, root), root=root)
        call.sizes = lambda: Sizes(sent, going={root: sent.nbytes})
        return call
    received = form(recvbuf, size)
    in_place, rank = is_in_place(sendbuf), comm.Get_rank()
    alone = in_place or comm.Is_inter()
    sent = NOTHING if alone else parse_moved(sendbuf)
    blocks = in_blocks(received, size, rank if in_place and not comm.Is_inter() else None)
    call = Call((sent,), blocks.parts, Movement(GATHER, in_parts((sent,)), blocks, root), root=root)
    call.sizes = lambda: _sizes_at_root(received, None if alone else sent, rank, size, False)
    return call


def _sizes_at_root(blocks: Buffer, own: Buffer | None, rank: int, size: int, scatters: bool) -> Sizes:
    nbytes = of_blocks(blocks, counts_of(blocks, size))
    others = to_others(nbytes, rank)
    mine = None if own is None else (nbytes[rank], own.nbytes) if scatters else (own.nbytes, nbytes[rank])
    return Sizes(blocks, going=others, own=mine) if scatters else Sizes(blocks, coming=others, own=mine)


def scatter(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, root: int = 0, *, form: Callable = parse_moved) -> Call:
    """Plan of Scatter and Scatterv."""
    size = partners(comm)
    if not is_root(comm, root):
        if comm.Is_inter() and root == mpi.PROC_NULL:
            return Call((), (), Movement(SCATTER, NO_BLOCKS, NO_BLOCKS, root))
        received = parse_moved(recvbuf)
        call = Call((), (received,), Movement(SCATTER, NO_BLOCKS, in_parts((received,)), root), root=root)
        call.sizes = lambda: Sizes(received, coming={root: received.nbytes})
        return call
    sent = form(sendbuf, size)
    in_place, rank = is_in_place(recvbuf), comm.Get_rank()
    alone = in_place or comm.Is_inter()
    received = NOTHING if alone else parse_moved(recvbuf)
    blocks = in_blocks(sent, size, rank if in_place and not comm.Is_inter() else None)
    call = Call(blocks.parts, (received,), Movement(SCATTER, blocks, in_parts((received,)), root), root=root)
    call.sizes = lambda: _sizes_at_root(sent, None if alone else received, rank, size, True)
    return call


def allgather(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved) -> Call:
    """Plan of Allgather and Allgatherv.

    Between two groups it is an Alltoall: MPI's Reduce_scatter requires equally much data from both groups.
    """
    rank, size = comm.Get_rank(), partners(comm)
    received = form(recvbuf, size)
    if comm.Is_inter():
        sent = parse_moved(sendbuf)
        return Call((sent,), (received,), Movement(ALLTOALL, in_parts([sent] * size), in_blocks(received, size)))
    counts, in_place = counts_of(received, size), is_in_place(sendbuf)
    sent = _own_block(received, counts, rank) if in_place else parse_moved(sendbuf)
    to_all = Blocks((sent,), [counts[rank]], received.dtype)
    call = Call(
        (sent,), (received,), Movement(ALLGATHER, to_all, Blocks((received,), counts, received.dtype), shares=in_place)
    )

    def sizes() -> Sizes:
        nbytes = of_blocks(received, counts)
        return Sizes(received, sum(nbytes), nbytes, own=(sent.nbytes, nbytes[rank]))

    call.sizes = sizes
    return call


def _own_block(buffer: Buffer, counts: list[int], rank: int) -> Buffer:
    start = sum(counts[:rank])
    return buffer.part(start, start + counts[rank])


def alltoall(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved) -> Call:
    """Plan of Alltoall and Alltoallv."""
    size, in_place = partners(comm), is_in_place(sendbuf)
    received = form(recvbuf, size)
    sent = received if in_place else form(sendbuf, size)
    movement = Movement(ALLTOALL, in_blocks(sent, size), in_blocks(received, size), shares=in_place)
    call = Call((sent,), (received,), movement)
    if not comm.Is_inter():
        rank = comm.Get_rank()
        call.sizes = lambda: _sizes_to_all(
            of_blocks(sent, counts_of(sent, size)), of_blocks(received, counts_of(received, size)), rank, received
        )
    return call


def _sizes_to_all(going: list[int], coming: list[int], rank: int, buffer: Buffer) -> Sizes:
    own = going[rank], coming[rank]
    return Sizes(buffer, going=to_others(going, rank), coming=to_others(coming, rank), own=own)


def alltoallw(comm: mpi.Comm, sendbuf: Any, recvbuf: Any) -> Call:
    """Plan of Alltoallw."""
    size, in_place = partners(comm), is_in_place(sendbuf)
    received = parse_types_moved(recvbuf, size)
    sent = received if in_place else parse_types_moved(sendbuf, size)
    call = Call(sent, received, Movement(ALLTOALL, in_parts(sent), in_parts(received), shares=in_place))
    if not comm.Is_inter():
        rank = comm.Get_rank()
        call.sizes = lambda: _sizes_to_all(
            [block.nbytes for block in sent], [block.nbytes for block in received], rank, received[rank]
        )
    return call
