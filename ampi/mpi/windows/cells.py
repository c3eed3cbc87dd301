"""Integers of every rank that all ranks update atomically: the counters of windows."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI as mpi

_Win = mpi.Win  # mpi4py's own: the name in its module may be rebound


class Cells:
    """Integers of every rank, which all ranks update atomically.

    Attributes
    ----------
    own : ndarray of int64
        The integers of this rank.
    """

    __slots__ = ("_open", "own", "rank", "win")

    def __init__(self, comm: mpi.Comm, values: list[int]) -> None:
        self.win = _Win.Allocate(8 * len(values), 8, comm=comm)
        self.own = np.asarray(memoryview(self.win.tomemory())).view(np.int64)
        self.own[:] = values
        self.rank = comm.Get_rank()
        self._open = False
        comm.Barrier()  # the values are set before others use them

    def add(self, rank: int, cell: int, value: int) -> int:
        """Add to a cell; return the value before."""
        return self._exchange(rank, cell, value, mpi.SUM)

    def read(self, rank: int, cell: int) -> int:
        """Return the present value of a cell."""
        return self._exchange(rank, cell, 0, mpi.NO_OP)

    def write(self, rank: int, cell: int, value: int) -> None:
        """Replace the value of a cell."""
        self._exchange(rank, cell, value, mpi.REPLACE)

    def swap(self, rank: int, cell: int, expected: int, value: int) -> bool:
        """Replace the value of a cell if it is the expected one; return whether it was."""
        self._ready()
        before, going, there = np.zeros(1, np.int64), np.array([value]), np.array([expected])  # until the flush
        self.win.Compare_and_swap(going, there, before, rank, cell)
        self.win.Flush(rank)
        return int(before[0]) == expected

    def free(self) -> None:
        """Free the window; collective.  The last values of this rank remain in ``own``."""
        self.own = self.own.copy()
        if self._open:
            self.win.Unlock_all()
        self.win.Free()

    def _ready(self) -> None:
        if not self._open:
            self.win.Lock_all()
            self._open = True

    def _exchange(self, rank: int, cell: int, value: int, op: mpi.Op) -> int:
        self._ready()
        before, going = np.zeros(1, np.int64), np.array([value])
        self.win.Fetch_and_op(going, before, rank, cell, op)
        self.win.Flush(rank)
        return int(before[0])
