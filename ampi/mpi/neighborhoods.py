"""Neighborhood collectives on Cartesian, graph and distributed-graph topologies; adjoints go along reversed edges.

An edge leaves a rank by one of its slots and arrives at another by one of that one's slots.  Between two ranks there
may be several edges (periodic dimensions of one or two ranks); which slot meets which has been found out when the
communicator was made (`reverse.slots_of`), since implementations differ.  Where a Cartesian grid ends, nothing is read
and nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI as mpi

from ..tape import Sweep, living
from .buffers import Buffer, parse_moved, parse_types_moved, parse_vector_moved
from .collectives import Call, add_bytes, add_forms, counts_of, describe, nbytes_of, perform
from .reductions import Steps
from .reverse import COLLECTIVE_TAG, reverse_of

_Topocomm = mpi.Topocomm  # mpi4py's own: the name in its module may be rebound


class Edges(NamedTuple):
    """The edges at this rank: ``(slot, rank)`` without those that lead nowhere.

    ``arriving`` are in the order in which the ranks at their other ends have them.
    """

    arriving: list[tuple[int, int]]
    leaving: list[tuple[int, int]]
    known: bool


def edges_of(comm: Any, started: bool = False) -> Edges:
    """The edges of a communicator with a topology at this rank, for collectives that block or are started."""
    sources, destinations = comm.inoutedges
    reverse = reverse_of(comm)
    slots = None if reverse is None else reverse.slots_started if started else reverse.slots
    arriving = [(slot, source) for slot, source in enumerate(sources) if source != mpi.PROC_NULL]
    if slots is not None:
        arriving.sort(key=lambda edge: slots[edge[0]])
    leaving = [(slot, dest) for slot, dest in enumerate(destinations) if dest != mpi.PROC_NULL]
    return Edges(arriving, leaving, slots is not None)


def go_back(comm: Any, edges: Edges, going: Sequence[np.ndarray], coming: Sequence[np.ndarray]) -> list[mpi.Request]:
    """Send arrays of bytes back along the edges that arrive, and receive them along those that leave."""
    return [
        *(comm.Irecv(array, dest, COLLECTIVE_TAG) for (_, dest), array in zip(edges.leaving, coming, strict=True)),
        *(comm.Isend(array, source, COLLECTIVE_TAG) for (_, source), array in zip(edges.arriving, going, strict=True)),
    ]


def _plan(name: str, edges: Edges, sent: Sequence[Buffer], received: Sequence[Buffer], reads: Sequence[Buffer]) -> Call:
    """A neighborhood collective with a block for each edge."""

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        going = [block.take(sweep).view(np.uint8) for block in received]
        coming = [np.zeros(nbytes_of(block), np.uint8) for block in sent]
        yield go_back(comm, edges, going, coming)
        return partial(_add_each, sweep, sent, coming)

    refused = "" if edges.known else "which edge is which in an asymmetric graph is not known; send ampi.value(...)"
    return Call(name, reads, received, adjoint, refused=refused)


def _add_each(sweep: Sweep, blocks: Sequence[Buffer], came: Sequence[np.ndarray]) -> None:
    for block, array in zip(blocks, came, strict=True):
        add_bytes(sweep, block, array)


def _blocks(buffer: Buffer, slots: int, edges: Sequence[tuple[int, int]]) -> list[Buffer]:
    """The block of each edge."""
    ends = np.cumsum([0, *counts_of(buffer, slots)]).tolist() if slots else [0]
    return [buffer.part(ends[slot], ends[slot + 1]) for slot, _ in edges]


def _allgather(comm: Any, sendbuf: Any, recvbuf: Any, started: bool = False) -> Call:
    return _plan_allgather("Neighbor_allgather", parse_moved, comm, sendbuf, recvbuf, started)


def _allgatherv(comm: Any, sendbuf: Any, recvbuf: Any, started: bool = False) -> Call:
    return _plan_allgather("Neighbor_allgatherv", parse_vector_moved, comm, sendbuf, recvbuf, started)


def _plan_allgather(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, started: bool) -> Call:
    edges = edges_of(comm, started)
    slots = comm.indegree
    sent = parse_moved(sendbuf)
    received = _blocks(form(recvbuf, slots), slots, edges.arriving)
    return _plan(name, edges, [sent] * len(edges.leaving), received, (sent,))


def _alltoall(comm: Any, sendbuf: Any, recvbuf: Any, started: bool = False) -> Call:
    return _plan_alltoall("Neighbor_alltoall", parse_moved, comm, sendbuf, recvbuf, started)


def _alltoallv(comm: Any, sendbuf: Any, recvbuf: Any, started: bool = False) -> Call:
    return _plan_alltoall("Neighbor_alltoallv", parse_vector_moved, comm, sendbuf, recvbuf, started)


def _plan_alltoall(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, started: bool) -> Call:
    edges = edges_of(comm, started)
    slots, ways_out = comm.indegree, comm.outdegree
    sent = _blocks(form(sendbuf, ways_out), ways_out, edges.leaving)
    received = _blocks(form(recvbuf, slots), slots, edges.arriving)
    return _plan(name, edges, sent, received, sent)


def _alltoallw(comm: Any, sendbuf: Any, recvbuf: Any, started: bool = False) -> Call:
    edges = edges_of(comm, started)
    sent = parse_types_moved(sendbuf, comm.outdegree)
    received = parse_types_moved(recvbuf, comm.indegree)
    sent = [sent[slot] for slot, _ in edges.leaving]
    received = [received[slot] for slot, _ in edges.arriving]
    return _plan("Neighbor_alltoallw", edges, sent, received, sent)


class Neighborhoods:
    """Collective operations among the neighbors of a topology."""

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather equal blocks from the neighbors."""
        if living:
            perform(self, _allgather, _Topocomm.Neighbor_allgather, sendbuf, recvbuf)
        else:
            _Topocomm.Neighbor_allgather(self, sendbuf, recvbuf)

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather blocks of any length from the neighbors."""
        if living:
            perform(self, _allgatherv, _Topocomm.Neighbor_allgatherv, sendbuf, recvbuf)
        else:
            _Topocomm.Neighbor_allgatherv(self, sendbuf, recvbuf)

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send an equal block to each neighbor."""
        if living:
            perform(self, _alltoall, _Topocomm.Neighbor_alltoall, sendbuf, recvbuf)
        else:
            _Topocomm.Neighbor_alltoall(self, sendbuf, recvbuf)

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of any length to each neighbor."""
        if living:
            perform(self, _alltoallv, _Topocomm.Neighbor_alltoallv, sendbuf, recvbuf)
        else:
            _Topocomm.Neighbor_alltoallv(self, sendbuf, recvbuf)

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of any length and datatype to each neighbor."""
        if living:
            perform(self, _alltoallw, _Topocomm.Neighbor_alltoallw, sendbuf, recvbuf)
        else:
            _Topocomm.Neighbor_alltoallw(self, sendbuf, recvbuf)


_NAMES = {
    _allgather: "Neighbor_allgather",
    _allgatherv: "Neighbor_allgatherv",
    _alltoall: "Neighbor_alltoall",
    _alltoallv: "Neighbor_alltoallv",
    _alltoallw: "Neighbor_alltoallw",
}


def _started(plan: Callable[..., Call]) -> Callable[..., Call]:
    """The plan of the forms with a request."""

    def started(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
        return plan(comm, sendbuf, recvbuf, started=True)

    return started


add_forms(Neighborhoods, _Topocomm, {_started(plan): name for plan, name in _NAMES.items()})
describe(tuple(_NAMES.values()), "ȳ of each block back along its edge", "Topocomm")
