"""Plans of collectives that move data: Bcast, Gather, Scatter, Allgather and Alltoall, in all their forms.

Copies travel as bytes, so that ranks whose memory is plain can take part without knowing its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...tape import Sweep
from ..log.sizes import Sizes, of_blocks, to_others
from ..memory.argument_forms import is_in_place
from ..memory.arguments import parse_moved, parse_types_moved
from ..memory.buffers import NOTHING, Buffer
from .collective_calls import Call
from .intercomm_p2p import exchanged, split
from .reductions import Steps


def counts_of(buffer: Buffer, size: int) -> list[int]:
    """Elements of the block of each rank."""
    return [buffer.count // size] * size if buffer.counts is None else buffer.counts


class Blocks:
    """A buffer as one block for each rank; with a hole, all but one of them."""

    __slots__ = ("nbytes", "parts")

    def __init__(self, buffer: Buffer, size: int, hole: int | None = None) -> None:
        counts = counts_of(buffer, size)
        itemsize = 1 if buffer.dtype is None else buffer.dtype.itemsize
        self.nbytes = [n * itemsize for n in counts]
        if hole is None:
            self.parts = (buffer,)
            return
        start = sum(counts[:hole])
        self.parts = (buffer.part(0, start), buffer.part(start + counts[hole], buffer.count))
        self.nbytes[hole] = 0

    def take(self, sweep: Sweep) -> np.ndarray:
        """The adjoints of all blocks, as bytes; the shadows become zero."""
        return np.concatenate([_bytes(part.take(sweep)) for part in self.parts])

    def add(self, sweep: Sweep, came: np.ndarray) -> None:
        """Add bytes to the adjoints."""
        _add_blocks(sweep, self.parts, came)


def _own_block(buffer: Buffer, rank: int, size: int) -> Buffer:
    counts = counts_of(buffer, size)
    start = sum(counts[:rank])
    return buffer.part(start, start + counts[rank])


def nbytes_of(buffer: Buffer) -> int:
    """Bytes of a message of a buffer's adjoint."""
    return 0 if buffer.dtype is None else buffer.count * buffer.dtype.itemsize


def _bytes(flat: np.ndarray) -> np.ndarray:
    return flat.view(np.uint8)


def add_bytes(sweep: Sweep, buffer: Buffer, came: np.ndarray) -> None:
    """Add bytes to a buffer's adjoint."""
    if buffer.tracked:
        buffer.add(sweep, came.view(buffer.dtype))


def _add_blocks(sweep: Sweep, blocks: Sequence[Buffer], came: np.ndarray) -> None:
    start = 0
    for block in blocks:
        end = start + nbytes_of(block)
        add_bytes(sweep, block, came[start:end])
        start = end


def bcast(comm: Any, buf: Any, root: int = 0) -> Call:
    """Bcast."""
    buffer = parse_moved(buf)
    if comm.Get_rank() == root:
        call = Call((buffer,), (), _adjoint_of_bcast_at_root(buffer, root), root=root)
    else:
        call = Call((), (buffer,), _adjoint_of_bcast_elsewhere(buffer, root), root=root)
    call.sizes = lambda: Sizes(buffer, buffer.nbytes)
    return call


def _adjoint_of_bcast_at_root(buffer: Buffer, root: int) -> Callable:
    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        total = np.zeros(buffer.count, buffer.dtype)
        yield [comm.Ireduce(mpi.IN_PLACE, total, mpi.SUM, root)]
        return partial(buffer.add, sweep, total)

    return adjoint


def _adjoint_of_bcast_elsewhere(buffer: Buffer, root: int) -> Callable:
    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        taken = buffer.take(sweep)  # has a name: requests of mpi4py's reductions do not keep buffers alive
        yield [comm.Ireduce(taken, None, mpi.SUM, root)]

    return adjoint


def gather(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0, *, form: Callable = parse_moved) -> Call:
    """Gather; Gatherv with the form of an argument with one count per rank."""
    rank, size = comm.Get_rank(), comm.Get_size()
    if rank != root:
        sent = parse_moved(sendbuf)

        def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
            came = np.empty(nbytes_of(sent), np.uint8)
            yield [comm.Iscatterv(None, came, root)]
            return partial(add_bytes, sweep, sent, came)

        call = Call((sent,), (), adjoint, root=root)
        call.sizes = lambda: Sizes(sent, going={root: sent.nbytes})
        return call

    received = form(recvbuf, size)
    in_place = is_in_place(sendbuf)
    sent = NOTHING if in_place else parse_moved(sendbuf)
    blocks = Blocks(received, size, rank if in_place else None)

    def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(blocks.nbytes[rank], np.uint8)
        yield [comm.Iscatterv([blocks.take(sweep), blocks.nbytes], came, root)]
        return partial(add_bytes, sweep, sent, came)

    call = Call((sent,), blocks.parts, adjoint_at_root, root=root)
    call.sizes = lambda: _sizes_at_root(received, None if in_place else sent, rank, size, False)
    return call


def _sizes_at_root(blocks: Buffer, own: Buffer | None, rank: int, size: int, scatters: bool) -> Sizes:
    nbytes = of_blocks(blocks, counts_of(blocks, size))
    others = to_others(nbytes, rank)
    mine = None if own is None else (nbytes[rank], own.nbytes) if scatters else (own.nbytes, nbytes[rank])
    return Sizes(blocks, going=others, own=mine) if scatters else Sizes(blocks, coming=others, own=mine)


def scatter(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0, *, form: Callable = parse_moved) -> Call:
    """Scatter, Scatterv."""
    rank, size = comm.Get_rank(), comm.Get_size()
    if rank != root:
        received = parse_moved(recvbuf)

        def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
            yield [comm.Igatherv(_bytes(received.take(sweep)), None, root)]

        call = Call((), (received,), adjoint, root=root)
        call.sizes = lambda: Sizes(received, coming={root: received.nbytes})
        return call

    sent = form(sendbuf, size)
    in_place = is_in_place(recvbuf)
    received = NOTHING if in_place else parse_moved(recvbuf)
    blocks = Blocks(sent, size, rank if in_place else None)

    def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
        mine = np.empty(0, np.uint8) if in_place else _bytes(received.take(sweep))
        came = np.empty(sum(blocks.nbytes), np.uint8)
        yield [comm.Igatherv(mine, [came, blocks.nbytes], root)]
        return partial(blocks.add, sweep, came)

    call = Call(blocks.parts, (received,), adjoint_at_root, root=root)
    call.sizes = lambda: _sizes_at_root(sent, None if in_place else received, rank, size, True)
    return call


def allgather(comm: Any, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved) -> Call:
    """Allgather, Allgatherv."""
    rank, size = comm.Get_rank(), comm.Get_size()
    received = form(recvbuf, size)
    sent = _own_block(received, rank, size) if is_in_place(sendbuf) else parse_moved(sendbuf)
    counts = counts_of(received, size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        taken, mine = received.take(sweep), np.empty(counts[rank], received.dtype)
        yield [comm.Ireduce_scatter(taken, mine, counts, mpi.SUM)]
        return partial(sent.add, sweep, mine)

    def sizes() -> Sizes:
        nbytes = of_blocks(received, counts)
        return Sizes(received, sum(nbytes), nbytes, own=(sent.nbytes, nbytes[rank]))

    call = Call((sent,), (received,), adjoint)
    call.sizes = sizes
    return call


def _transposed(
    comm: Any, going: np.ndarray, lengths: Sequence[int], came: np.ndarray, sizes: Sequence[int]
) -> list[mpi.Request]:
    """The reversed Alltoall of bytes."""
    if comm.Is_inter():
        return exchanged(comm, split(going, lengths), split(came, sizes))
    return [comm.Ialltoallv([going, lengths], [came, sizes])]


def _partners(comm: Any) -> int:
    return comm.Get_remote_size() if comm.Is_inter() else comm.Get_size()


def alltoall(comm: Any, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved) -> Call:
    """Alltoall, Alltoallv, on intercommunicators as well."""
    size = _partners(comm)
    received = form(recvbuf, size)
    sent = received if is_in_place(sendbuf) else form(sendbuf, size)
    there, here = Blocks(received, size), Blocks(sent, size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(sum(here.nbytes), np.uint8)
        yield _transposed(comm, there.take(sweep), there.nbytes, came, here.nbytes)
        return partial(here.add, sweep, came)

    call = Call((sent,), (received,), adjoint)
    if not comm.Is_inter():
        rank = comm.Get_rank()
        call.sizes = lambda: _sizes_to_all(
            of_blocks(sent, counts_of(sent, size)), of_blocks(received, counts_of(received, size)), rank, received
        )
    return call


def _sizes_to_all(going: list[int], coming: list[int], rank: int, buffer: Buffer) -> Sizes:
    own = going[rank], coming[rank]
    return Sizes(buffer, going=to_others(going, rank), coming=to_others(coming, rank), own=own)


def alltoallw(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    """Alltoallw, on intercommunicators as well."""
    size = _partners(comm)
    received = parse_types_moved(recvbuf, size)
    sent = received if is_in_place(sendbuf) else parse_types_moved(sendbuf, size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        going = np.concatenate([_bytes(block.take(sweep)) for block in received])
        came = np.empty(sum(map(nbytes_of, sent)), np.uint8)
        yield _transposed(comm, going, list(map(nbytes_of, received)), came, list(map(nbytes_of, sent)))
        return partial(_add_blocks, sweep, sent, came)

    call = Call(sent, received, adjoint)
    if not comm.Is_inter():
        rank = comm.Get_rank()
        call.sizes = lambda: _sizes_to_all(
            [block.nbytes for block in sent], [block.nbytes for block in received], rank, received[rank]
        )
    return call
