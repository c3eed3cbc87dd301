"""Point-to-point exchanges between the two groups of an intercommunicator, by which adjoints travel.

No implementation can be trusted with the nonblocking collectives of intercommunicators. After an Ireduce or an Ibcast
for which a member of the root's group says ``MPI.PROC_NULL``, the next one finds the wrong partners in Open MPI; with
several ranks in both groups they hang now and then in Intel MPI, and in MPICH an Ibcast gives wrong values.

The root's group says ``MPI.ROOT`` and ``MPI.PROC_NULL`` for the root, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from mpi4py import MPI as mpi

from ..log.reverse import COLLECTIVE_TAG

Requests = list[mpi.Request]


def scattered(comm: mpi.Intercomm, parts: Sequence[np.ndarray], mine: np.ndarray | None, root: int) -> Requests:
    """From the root a part to each rank of the other group."""
    if root == mpi.ROOT:
        return [comm.Isend(part, rank, COLLECTIVE_TAG) for rank, part in enumerate(parts)]
    return [] if root == mpi.PROC_NULL else [comm.Irecv(mine, root, COLLECTIVE_TAG)]


def gathered(comm: mpi.Intercomm, mine: np.ndarray | None, parts: Sequence[np.ndarray], root: int) -> Requests:
    """To the root a part from each rank of the other group."""
    if root == mpi.ROOT:
        return [comm.Irecv(part, rank, COLLECTIVE_TAG) for rank, part in enumerate(parts)]
    return [] if root == mpi.PROC_NULL else [comm.Isend(mine, root, COLLECTIVE_TAG)]


def exchanged(comm: mpi.Intercomm, going: Sequence[np.ndarray], coming: Sequence[np.ndarray]) -> Requests:
    """A part to each rank of the other group, and one from each."""
    return [
        *(comm.Irecv(part, rank, COLLECTIVE_TAG) for rank, part in enumerate(coming)),
        *(comm.Isend(part, rank, COLLECTIVE_TAG) for rank, part in enumerate(going)),
    ]


def split(array: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
    """Parts of so many elements each."""
    return list(_parts(array, counts))


def _parts(array: np.ndarray, counts: Sequence[int]) -> Iterator[np.ndarray]:
    start = 0
    for count in counts:
        yield array[start : start + count]
        start += count
