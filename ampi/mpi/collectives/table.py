"""The table of collective operations on buffers, from which methods of all forms, reports and guards derive."""

from __future__ import annotations

from mpi4py import MPI as mpi

from ..base.rules import Operation, Treatment, enter
from ..memory.arguments import parse_vector_moved
from . import movement_plans as moved
from . import reduction_plans as reduced
from .collective_recording import CollectiveOperation

_SHARES = "; MIN, MAX: to the lowest rank that holds the extremum; PROD: times the product of the other ranks' x"
_SCANNED = "SUM: suffix sums of ȳ; else a carry from rank to rank, downwards"

COLLECTIVES = (
    CollectiveOperation("Bcast", "Reduce(SUM) of x̄ to the root", moved.bcast, buffers=("buf", "buf")),
    CollectiveOperation("Gather", "Scatterv of ȳ from the root", moved.gather),
    CollectiveOperation("Gatherv", "Scatterv of ȳ from the root", moved.gather, form=parse_vector_moved),
    CollectiveOperation("Scatter", "Gatherv of ȳ to the root", moved.scatter),
    CollectiveOperation("Scatterv", "Gatherv of ȳ to the root", moved.scatter, form=parse_vector_moved),
    CollectiveOperation("Allgather", "Reduce_scatter(SUM) of ȳ", moved.allgather),
    CollectiveOperation("Allgatherv", "Reduce_scatter(SUM) of ȳ", moved.allgather, form=parse_vector_moved),
    CollectiveOperation("Alltoall", "the transposed Alltoallv of ȳ", moved.alltoall),
    CollectiveOperation("Alltoallv", "the transposed Alltoallv of ȳ", moved.alltoall, form=parse_vector_moved),
    CollectiveOperation("Alltoallw", "the transposed Alltoallv of ȳ", moved.alltoallw),
    CollectiveOperation("Reduce", "Bcast of ȳ from the root" + _SHARES, reduced.reduce),
    CollectiveOperation("Allreduce", "Allreduce(SUM) of ȳ" + _SHARES, reduced.allreduce),
    CollectiveOperation(
        "Reduce_scatter_block",
        "Allgatherv of ȳ" + _SHARES,
        reduced.reduce_scatter_block,
    ),
    CollectiveOperation("Reduce_scatter", "Allgatherv of ȳ" + _SHARES, reduced.reduce_scatter),
)
"""Operations of all communicators."""

SCANS = (
    CollectiveOperation("Scan", _SCANNED, reduced.scan),
    CollectiveOperation("Exscan", _SCANNED, reduced.exscan),
)
"""Operations of intracommunicators."""


class Collectives:
    """Collective operations of all communicators."""


class IntracommCollectives:
    """Collective operations that only intracommunicators have."""


for _name in ("Barrier", "Ibarrier", "Barrier_init"):
    enter(
        Operation("Comm", _name, Treatment.PASSES, adjoint="none: the sweep does not depend on barriers for its order")
    )
for _operation in COLLECTIVES:
    _operation.give(Collectives, mpi.Comm)
for _operation in SCANS:
    _operation.give(IntracommCollectives, mpi.Intracomm)
