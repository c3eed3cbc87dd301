"""Targets of one-sided operations: the elements of another rank's window that one accesses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ..memory.argument_forms import as_array, simple_form, typemap_for
from ..memory.datatypes import datatype_named, made_of, typemap_of
from ..memory.typemaps import Piece, Typemap, reach, regrouped


class Target:
    """The elements of a target's window that an operation accesses.

    Attributes
    ----------
    rank : int
    start, stop : int
        Range of bytes in the window; of addresses in a dynamic window.
    count : int
        Number of basic elements of ``dtype``.
    pieces : list of Piece or None
        The places of the elements, from ``start`` on; None if they are contiguous.
    """

    __slots__ = ("count", "dtype", "pieces", "rank", "start", "stop")

    def __init__(self, rank: int, start: int, count: int, dtype: np.dtype, pieces: Sequence[Piece] | None) -> None:
        self.rank = rank
        self.count = count
        self.dtype = dtype
        low, high = (0, count * dtype.itemsize) if pieces is None else reach(pieces, dtype.itemsize)
        self.start, self.stop = start + low, start + high
        self.pieces = None if pieces is None else [piece._replace(offset=piece.offset - low) for piece in pieces]

    def overlaps(self, other: Target) -> bool:
        """Return whether both may access one location; never False if they do."""
        return self.rank == other.rank and self.start < other.stop and other.start < self.stop

    @contextlib.contextmanager
    def argument(self, start: int, unit: int, datatype: mpi.Datatype) -> Iterator[tuple[int, int, mpi.Datatype]]:
        """Make mpi4py's target argument for these elements, from ``start`` on, in a window with a displacement unit."""
        displacement, rest = divmod(start, unit)
        if self.pieces is None and not rest:
            yield displacement, self.count, datatype
            return
        pieces = [Piece(0, (self.count,), (self.dtype.itemsize,))] if self.pieces is None else self.pieces
        derived = made_of(datatype, [piece._replace(offset=piece.offset + rest) for piece in pieces])
        try:
            yield displacement, 1, derived
        finally:
            derived.Free()


def target_of(rank: int, unit: int, spec: Any, origin: Any, dtype: np.dtype) -> Target:
    """Return the elements of a dtype that a target argument of mpi4py denotes.

    Parameters
    ----------
    unit : int
        Displacement unit of the target.
    spec
        The target argument; its omitted parts are as in the origin argument.
    """
    displacement, count, datatype = 0, None, None
    if isinstance(spec, (list, tuple)):
        displacement, count, datatype = (*spec, *(0, None, None)[len(spec) :])
    elif spec is not None:
        displacement = spec
    own_count, own_typemap = _items(origin)
    typemap = own_typemap if datatype is None else typemap_of(_datatype(datatype))
    count = own_count if count is None else count
    pieces: Sequence[Piece] | None = None
    is_own = typemap.dtype is not None and typemap.dtype == dtype  # None means float64
    if not (typemap.length or typemap.extra):
        count = 0
    elif is_own and typemap.contiguous:
        count *= typemap.length
    else:
        pieces = typemap.layout(count).pieces if is_own else None
        if pieces is None and typemap.dtype is not None:
            pieces = regrouped(typemap, count, dtype.itemsize)
        if pieces is None:
            raise ActivityError(
                f"the target's datatype in one-sided communication is not made of whole elements of {dtype}; "
                "use the datatype of the elements"
            )
        count = sum(piece.count for piece in pieces)
    return Target(rank, displacement * unit, count, dtype, pieces)


def _datatype(datatype: Any) -> mpi.Datatype:
    return datatype_named(datatype) if isinstance(datatype, str) else datatype


def _items(spec: Any) -> tuple[int, Typemap]:
    """Return the number of items of an origin argument and their typemap."""
    memory, count, displ, datatype = simple_form(spec)
    array = as_array(memory)
    typemap = typemap_for(datatype, array.dtype)
    if count is None:
        count = typemap.fitting(array.nbytes - (displ or 0) * typemap.extent)
    return count, typemap
