"""Neighborhood collectives on Cartesian, graph and distributed-graph topologies; adjoints go along reversed edges.

An edge joins a slot of the rank that it leaves to a slot of the rank at which it arrives.  Two ranks may share several
edges (periodic dimensions of one or two ranks).  Which slots are joined was determined when the communicator was made
(`reverse.slots_of`), since implementations differ.  At the boundary of a Cartesian grid nothing is read or overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI as mpi

from ..log.reverse import reverse_of
from ..memory.arguments import parse_moved, parse_types_moved, parse_vector_moved
from ..memory.buffers import Buffer
from ..memory.message_memory import AdjointMemory
from .collective_calls import Call
from .collective_recording import CollectiveOperation
from .movements import AlongEdges, Movement, counts_of, in_parts


class Edges(NamedTuple):
    """The edges at this rank as pairs ``(slot, rank)``, without those to ``PROC_NULL``.

    ``arriving`` has the order that the ranks at the other ends use.
    """

    arriving: list[tuple[int, int]]
    leaving: list[tuple[int, int]]
    known: bool


def edges_of(comm: mpi.Topocomm, started: bool = False) -> Edges:
    """Return the edges of a communicator at this rank; ``started``: for collectives with a request."""
    sources, destinations = comm.inoutedges
    reverse = reverse_of(comm)
    slots = None if reverse is None else reverse.slots_started if started else reverse.slots
    arriving = [(slot, source) for slot, source in enumerate(sources) if source != mpi.PROC_NULL]
    if slots is not None:
        arriving.sort(key=lambda edge: slots[edge[0]])
    leaving = [(slot, dest) for slot, dest in enumerate(destinations) if dest != mpi.PROC_NULL]
    return Edges(arriving, leaving, slots is not None)


def along(edges: Edges, sent: Sequence[AdjointMemory], received: Sequence[AdjointMemory]) -> Movement:
    """Return the movement of a block along each edge."""
    sources, dests = [source for _, source in edges.arriving], [dest for _, dest in edges.leaving]
    return AlongEdges(sources, dests, in_parts(sent), in_parts(received))


def _plan(edges: Edges, sent: Sequence[Buffer], received: Sequence[Buffer], reads: Sequence[Buffer]) -> Call:
    """Return the call of a neighborhood collective with a block for each edge."""
    call = Call(reads, received, along(edges, sent, received))
    call.refused = "" if edges.known else NOT_KNOWN
    return call


NOT_KNOWN = "the edges of an asymmetric graph cannot be matched between its ranks; send ampi.value(...)"


def _blocks(buffer: Buffer, slots: int, edges: Sequence[tuple[int, int]]) -> list[Buffer]:
    """Return the block of each edge."""
    ends = np.cumsum([0, *counts_of(buffer, slots)]).tolist() if slots else [0]
    return [buffer.part(ends[slot], ends[slot + 1]) for slot, _ in edges]


def _allgather(
    comm: mpi.Topocomm, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved, started: bool = False
) -> Call:
    edges, slots = edges_of(comm, started), comm.indegree
    sent = parse_moved(sendbuf)
    received = _blocks(form(recvbuf, slots), slots, edges.arriving)
    return _plan(edges, [sent] * len(edges.leaving), received, (sent,))


def _alltoall(
    comm: mpi.Topocomm, sendbuf: Any, recvbuf: Any, *, form: Callable = parse_moved, started: bool = False
) -> Call:
    edges = edges_of(comm, started)
    slots, out_slots = comm.indegree, comm.outdegree
    sent = _blocks(form(sendbuf, out_slots), out_slots, edges.leaving)
    received = _blocks(form(recvbuf, slots), slots, edges.arriving)
    return _plan(edges, sent, received, sent)


def _alltoallw(comm: mpi.Topocomm, sendbuf: Any, recvbuf: Any, *, started: bool = False) -> Call:
    edges = edges_of(comm, started)
    sent, received = parse_types_moved(sendbuf, comm.outdegree), parse_types_moved(recvbuf, comm.indegree)
    going, coming = [sent[slot] for slot, _ in edges.leaving], [received[slot] for slot, _ in edges.arriving]
    return _plan(edges, going, coming, going)


_ALONG_EDGES = "ȳ of each block back along its edge"

NEIGHBORHOODS = (
    CollectiveOperation("Neighbor_allgather", _ALONG_EDGES, _allgather),
    CollectiveOperation("Neighbor_allgatherv", _ALONG_EDGES, _allgather, form=parse_vector_moved),
    CollectiveOperation("Neighbor_alltoall", _ALONG_EDGES, _alltoall),
    CollectiveOperation("Neighbor_alltoallv", _ALONG_EDGES, _alltoall, form=parse_vector_moved),
    CollectiveOperation("Neighbor_alltoallw", _ALONG_EDGES, _alltoallw),
)


class Neighborhoods:
    """Collective operations among the neighbors of a topology."""


for _operation in NEIGHBORHOODS:
    _operation.give(Neighborhoods, mpi.Topocomm)
