"""Movements of data between ranks: each is stated once, with its transpose.

A *mover* sends a flat message of each rank to others.  It is a generator that runs on all ranks of the reverse
communicator: it yields lists of MPI requests, and is resumed when they are complete.  A `Pair` is a mover and its
transpose.  The mover carries tangents from the memory that a call reads to the memory that it writes; the transpose
carries adjoints back.  The transpose of Gather is Scatter, that of Bcast a sum at the root, that of Allgather
Reduce_scatter, and Alltoall transposed is an Alltoall.

Between the groups of an intercommunicator, messages go from rank to rank, since no implementation gets nonblocking
collectives right there.  After an Ireduce or an Ibcast for which a member of the root's group passes
``MPI.PROC_NULL``, the next one finds the wrong partners in Open MPI; with several ranks in both groups they sometimes
hang in Intel MPI, and in MPICH an Ibcast gives wrong values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...tape import Push, Sweep, where_called
from ..log.reverse import COLLECTIVE_TAG, Reverse
from ..memory.buffers import Buffer
from ..memory.message_memory import AdjointMemory
from ..memory.tangents import set_tangent, tangent_in, tangent_in_place
from .reductions import Steps

BYTES = np.dtype(np.uint8)


class Message:
    """A flat message: blocks of numbers, or of bytes, one for each partner.

    Attributes
    ----------
    arrays : list of numpy.ndarray
        Flat; their concatenation is the message.  A message to be received has none at first.
    counts : sequence of int
        Number of elements of each block.
    dtype : numpy.dtype
        Of the elements.
    """

    __slots__ = ("arrays", "counts", "dtype")

    def __init__(self, arrays: list[np.ndarray], counts: Sequence[int], dtype: np.dtype = BYTES) -> None:
        self.arrays = arrays
        self.counts = counts
        self.dtype = dtype

    def whole(self) -> np.ndarray:
        """Return the message as one array; zeros if it is still to be received."""
        if len(self.arrays) != 1:
            self.arrays = [np.concatenate(self.arrays) if self.arrays else np.zeros(sum(self.counts), self.dtype)]
        return self.arrays[0]

    def in_bytes(self) -> np.ndarray:
        """Return the message as bytes: ranks whose memory is not tracked take part without knowing the dtype."""
        return self.whole().view(BYTES)

    def vector(self) -> list[Any]:
        """Return the message as bytes, in mpi4py's form for several blocks."""
        whole = self.whole()
        return [whole.view(BYTES), [n * whole.itemsize for n in self.counts]]

    def blocks(self) -> list[np.ndarray]:
        """Return an array for each block."""
        if [array.size for array in self.arrays] == list(self.counts):
            return self.arrays
        return pieces(self.whole(), self.counts)


def pieces(array: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Split a flat array into parts with these numbers of elements."""
    found, start = [], 0
    for count in counts:
        found.append(array[start : start + count])
        start += count
    return found


Mover = Callable[[Reverse, Message, Message, Any], Steps]
"""``mover(reverse, going, coming, root)`` fills ``coming``, which is zero initially."""


class Pair(NamedTuple):
    """A movement and its transpose."""

    forward: Mover
    transposed: Mover


# ------------------------------------------------------------------------------------------------------- the movers


def spread(reverse: Reverse, going: Message, coming: Message, root: int) -> Steps:
    """Send the whole message from the root to all ranks, or to the other group; the root may receive it, too."""
    comm = reverse.comm
    if comm.Is_inter():
        whole = going.in_bytes()
        yield _from_root(comm, [whole] * comm.Get_remote_size(), coming, root)
    elif comm.Get_rank() == root:
        yield [comm.Ibcast(going.in_bytes(), root)]
        coming.arrays = going.arrays
    else:
        yield [comm.Ibcast(coming.in_bytes(), root)]


def total(reverse: Reverse, going: Message, coming: Message, root: int) -> Steps:
    """Add up the messages of all ranks at the root, or those of the other group, whose first member sends the sum."""
    comm, mine = reverse.comm, going.whole()  # a variable: requests of mpi4py's reductions do not keep buffers alive
    if not comm.Is_inter():
        if comm.Get_rank() != root:
            yield [comm.Ireduce(mine, None, mpi.SUM, root)]
            return
        if mine.size:
            coming.arrays = going.arrays
        result = coming.whole()
        yield [comm.Ireduce(mpi.IN_PLACE, result, mpi.SUM, root)]
    elif root == mpi.ROOT:
        yield [comm.Irecv(coming.whole(), 0, COLLECTIVE_TAG)]
    elif root == mpi.PROC_NULL:
        yield []
    else:
        result, local = np.zeros_like(mine), group_of(reverse)
        yield [local.Ireduce(mine, result, mpi.SUM, 0)]
        if local.Get_rank() == 0:
            yield [comm.Isend(result, root, COLLECTIVE_TAG)]


def collected(reverse: Reverse, going: Message, coming: Message, root: int) -> Steps:
    """Send a block from each rank, or from each of the other group, to the root."""
    comm = reverse.comm
    if comm.Is_inter():
        yield _to_root(comm, going, coming, root)
    else:
        at_root = comm.Get_rank() == root
        yield [comm.Igatherv(going.in_bytes(), coming.vector() if at_root else None, root)]


def distributed(reverse: Reverse, going: Message, coming: Message, root: int) -> Steps:
    """Send a block from the root to each rank, or to each of the other group."""
    comm = reverse.comm
    if comm.Is_inter():
        yield _from_root(comm, going.blocks(), coming, root)
    else:
        at_root = comm.Get_rank() == root
        yield [comm.Iscatterv(going.vector() if at_root else None, coming.in_bytes(), root)]


def exchanged(reverse: Reverse, going: Message, coming: Message, root: None) -> Steps:
    """Send a block from each rank to each, or to each of the other group."""
    comm = reverse.comm
    if not comm.Is_inter():
        yield [comm.Ialltoallv(going.vector(), coming.vector())]
        return
    received = [comm.Irecv(block, rank, COLLECTIVE_TAG) for rank, block in enumerate(coming.blocks())]
    yield received + [comm.Isend(block, rank, COLLECTIVE_TAG) for rank, block in enumerate(going.blocks())]


def shared(reverse: Reverse, going: Message, coming: Message, root: None) -> Steps:
    """Send a block from each rank to all ranks, or to the other group."""
    comm = reverse.comm
    if comm.Is_inter():
        whole, size = going.whole(), comm.Get_remote_size()
        yield from exchanged(reverse, Message([whole] * size, [whole.size] * size), coming, root)
    else:
        sent, received = going.in_bytes(), coming.vector()  # variables: as in `total`
        yield [comm.Iallgatherv(sent, received)]


def shared_unevenly(reverse: Reverse, going: Message, coming: Message, root: None) -> Steps:
    """Send a block from each rank to all, where no rank knows how long the blocks of others are."""
    own, sizes = np.array(going.counts, np.int64), np.empty(reverse.partners, np.int64)
    if reverse.comm.Is_inter():
        yield from shared(reverse, Message([own], [1]), Message([sizes], [1] * sizes.size), root)
    else:
        yield [reverse.comm.Iallgather(own, sizes)]
    coming.counts = sizes.tolist()
    yield from shared(reverse, going, coming, root)


def summed(reverse: Reverse, going: Message, coming: Message, root: None) -> Steps:
    """Add up the messages of all ranks on all ranks, or those of one group on the other."""
    comm, local, mine = reverse.comm, reverse.local, going.whole()
    if local is None:
        coming.arrays = going.arrays
        yield [comm.Iallreduce(mpi.IN_PLACE, mine, mpi.SUM)]
        return
    result, received = np.zeros_like(mine), coming.whole()
    yield [local.Ireduce(mine, result, mpi.SUM, 0)]
    if local.Get_rank() == 0:
        yield [comm.Isend(result, 0, COLLECTIVE_TAG), comm.Irecv(received, 0, COLLECTIVE_TAG)]
    yield [local.Ibcast(received, 0)]


def sums_distributed(reverse: Reverse, going: Message, coming: Message, root: None) -> Steps:
    """Add up the messages of all ranks, and give each rank its block of the sum."""
    mine, result = going.whole(), coming.whole()
    yield [reverse.comm.Ireduce_scatter(mine, result, list(going.counts), mpi.SUM)]


def _from_root(comm: mpi.Comm, blocks: Sequence[np.ndarray], coming: Message, root: int) -> list[mpi.Request]:
    if root == mpi.ROOT:
        return [comm.Isend(block, rank, COLLECTIVE_TAG) for rank, block in enumerate(blocks)]
    return [] if root == mpi.PROC_NULL else [comm.Irecv(coming.in_bytes(), root, COLLECTIVE_TAG)]


def _to_root(comm: mpi.Comm, going: Message, coming: Message, root: int) -> list[mpi.Request]:
    if root == mpi.ROOT:
        return [comm.Irecv(block, rank, COLLECTIVE_TAG) for rank, block in enumerate(coming.blocks())]
    return [] if root == mpi.PROC_NULL else [comm.Isend(going.in_bytes(), root, COLLECTIVE_TAG)]


def _along(
    sources: Sequence[int], dests: Sequence[int], reverse: Reverse, going: Message, coming: Message, root: None
) -> Steps:
    comm = reverse.comm
    received = [comm.Irecv(block, rank, COLLECTIVE_TAG) for rank, block in zip(sources, coming.blocks(), strict=True)]
    yield received + [comm.Isend(block, r, COLLECTIVE_TAG) for r, block in zip(dests, going.blocks(), strict=True)]


BCAST = Pair(spread, total)
GATHER = Pair(collected, distributed)
SCATTER = Pair(distributed, collected)
ALLGATHER = Pair(shared, sums_distributed)
ALLTOALL = Pair(exchanged, exchanged)


OF_ROOTS_GROUP = (mpi.ROOT, mpi.PROC_NULL)
"""Values of ``root`` that members of the root's group pass to an operation on an intercommunicator."""


def is_root(comm: mpi.Comm, root: int) -> bool:
    """Return whether this rank is the root of a call."""
    return root == mpi.ROOT if comm.Is_inter() else comm.Get_rank() == root


def partners(comm: mpi.Comm) -> int:
    """Return the number of ranks that a block goes to, or comes from."""
    return comm.Get_remote_size() if comm.Is_inter() else comm.Get_size()


def group_of(reverse: Reverse) -> Any:
    """Return the communicator of this group of an intercommunicator, or of an intracommunicator."""
    return reverse.comm if reverse.local is None else reverse.local


# -------------------------------------------------------------------------------------------------- memory in blocks


def counts_of(buffer: Buffer, size: int) -> list[int]:
    """Return the number of elements in the block of each rank."""
    return [buffer.count // size] * size if buffer.counts is None else buffer.counts


def nbytes_of(memory: AdjointMemory) -> int:
    """Return the number of bytes in a message of adjoints."""
    return 0 if memory.dtype is None else memory.count * memory.dtype.itemsize


class Blocks:
    """The memory that a call reads or writes, in blocks: one for each partner.

    Attributes
    ----------
    parts : sequence of AdjointMemory
        The memory: one part for all blocks, or one for each.
    counts : sequence of int
        Number of elements, or of bytes, of each block.
    dtype : numpy.dtype
        Of the elements of messages; `BYTES` where nothing is added up on the way.
    """

    __slots__ = ("counts", "dtype", "parts")

    def __init__(self, parts: Sequence[AdjointMemory], counts: Sequence[int], dtype: np.dtype | None = None) -> None:
        self.parts = parts
        self.counts = counts
        self.dtype = BYTES if dtype is None else dtype

    def _message(self, flats: list[np.ndarray]) -> Message:
        return Message([flat.view(self.dtype) for flat in flats], self.counts)

    def take(self, sweep: Sweep) -> Message:
        """Return the adjoints of memory that was overwritten, and zero them."""
        return self._message([part.take(sweep) for part in self.parts])

    def room(self) -> Message:
        """Return a message to be received."""
        return Message([], self.counts, self.dtype)

    def add(self, sweep: Sweep, message: Message) -> None:
        """Add a message that was received to the adjoints of memory that was read."""
        for part, flat in self._parted(message):
            part.add(sweep, flat)

    def tangents(self, push: Push, copied: bool) -> Message:
        """Return the tangents: in place where they are contiguous, unless ``copied``."""
        found = [None if copied else tangent_in_place(push, part) for part in self.parts]
        return self._message([tangent_in(push, p) if f is None else f for p, f in zip(self.parts, found)])

    def room_for_tangents(self, push: Push) -> tuple[Message, bool]:
        """Return a message for tangents to be received, and whether it is in place."""
        if len(self.parts) == 1:
            place = tangent_in_place(push, self.parts[0], True)
            if place is not None:
                return self._message([place]), True
        return self.room(), False

    def receive_tangents(self, push: Push, message: Message, name: str) -> None:
        """Set the tangents to those of a message that was received."""
        for part, flat in self._parted(message):
            receive_tangent(push, part, flat, name)

    def _parted(self, message: Message) -> list[tuple[AdjointMemory, np.ndarray]]:
        """Return the parts that have elements, each with its elements of a message."""
        filled = [part for part in self.parts if nbytes_of(part)]
        flats = pieces(message.in_bytes(), [nbytes_of(part) for part in filled])
        return [(part, flat.view(part.dtype)) for part, flat in zip(filled, flats)]


def in_parts(parts: Sequence[AdjointMemory]) -> Blocks:
    """Return blocks, each of which is one of the parts."""
    return Blocks(parts, [nbytes_of(part) for part in parts])


def in_blocks(buffer: Buffer, size: int, hole: int | None = None) -> Blocks:
    """Return a buffer as one block for each rank; without that of rank ``hole``."""
    counts = counts_of(buffer, size)
    itemsize = 1 if buffer.dtype is None else buffer.dtype.itemsize
    nbytes = [n * itemsize for n in counts]
    if hole is None:
        return Blocks((buffer,), nbytes)
    start = sum(counts[:hole])
    nbytes[hole] = 0
    return Blocks((buffer.part(0, start), buffer.part(start + counts[hole], buffer.count)), nbytes)


def receive_tangent(push: Push, memory: AdjointMemory, flat: np.ndarray, name: str) -> None:
    """Set the tangent of memory to the received one; raise an error if it would be lost."""
    if getattr(memory, "loses", False) and flat.any():  # a bundle loses nothing
        lost = flat.copy()
        for where, part in getattr(memory, "parts", ()):
            if part.tracked:
                lost[where] = 0
        if lost.any():
            raise ActivityError(
                f"{name} at {where_called()}: an active array is received into memory that is not tracked, where "
                "its derivative would be lost; make the receive buffer with ampi.numpy, or send ampi.value(...)"
            )
    set_tangent(push, memory, flat)


NO_BLOCKS = Blocks((), ())


class Movement:
    """This rank's part in a movement of data.

    Attributes
    ----------
    pair : Pair
    sent, received : Blocks
    root : int or None
    shares : bool
        True if data are received into the memory that is sent (``MPI.IN_PLACE``).
    """

    __slots__ = ("pair", "received", "root", "sent", "shares")

    def __init__(
        self, pair: Pair, sent: Blocks, received: Blocks, root: int | None = None, shares: bool = False
    ) -> None:
        self.pair = pair
        self.sent = sent
        self.received = received
        self.root = root
        self.shares = shares

    def adjoint(self, sweep: Sweep, reverse: Reverse, x: None = None) -> Steps:
        """Carry adjoints back."""
        going, coming = self.received.take(sweep), self.sent.room()
        yield from self.pair.transposed(reverse, going, coming, self.root)
        return partial(self.sent.add, sweep, coming)

    def tangent(self, push: Push, reverse: Reverse, name: str, values: None = None) -> Steps:
        """Carry tangents to where the values go."""
        coming, in_place = self.received.room_for_tangents(push)
        going = self.sent.tangents(push, self.shares)
        yield from self.pair.forward(reverse, going, coming, self.root)
        return None if in_place else partial(self.received.receive_tangents, push, coming, name)


class AlongEdges(Movement):
    """This rank's part in a movement of a block along each edge of a topology.

    Attributes
    ----------
    sources, dests : sequence of int
        The ranks at the other ends of the edges that arrive at this rank, and that leave it.
    """

    __slots__ = ("dests", "sources")

    def __init__(self, sources: Sequence[int], dests: Sequence[int], sent: Blocks, received: Blocks) -> None:
        pair = Pair(partial(_along, sources, dests), partial(_along, dests, sources))
        super().__init__(pair, sent, received)
        self.sources = sources
        self.dests = dests
