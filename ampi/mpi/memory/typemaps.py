"""Typemaps: the basic elements of a datatype that matter for derivatives, as strided pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...memory.storages import carries_derivatives
from .pieces import Layout, Piece, compress, concatenated, repeated, simplified

_MOST_LAYOUTS = 8  # kept per datatype, for different counts


class Typemap:
    """The basic elements of a datatype that matter for derivatives.

    Nothing here lists the elements of a regular layout: they may be more than fit in memory.

    Attributes
    ----------
    dtype : numpy.dtype or None
        Dtype of its floating-point or complex elements; without any, the dtype of its elements.  None if such elements
        have several dtypes.
    length : int
        Number of elements of that dtype in one item.
    mixed : bool
        Whether there are elements of other dtypes (locations, indices).
    extra : tuple of (dtype, Piece)
        The other elements: memory that a receive overwrites as well.
    size, extent : int
        Bytes of one item packed, and from one item to the next.
    contiguous : bool
        Items of this datatype side by side are a plain array of ``dtype``.
    """

    __slots__ = ("_layouts", "_pieces", "_places", "contiguous", "dtype", "extent", "extra", "length", "mixed", "size")

    def __init__(self, groups: Sequence[Group], size: int, extent: int) -> None:
        differentiable = [group for group in groups if carries_derivatives(group.dtype)]
        dtypes = {group.dtype for group in differentiable or groups}
        self.size = size
        self.extent = extent
        self.dtype = dtypes.pop() if len(dtypes) == 1 else None
        self.mixed = len({group.dtype for group in groups}) > 1
        own = [group for group in groups if self.dtype is not None and group.dtype == self.dtype]  # None means float64
        self._pieces = [piece for group in own for piece in group.pieces]
        self._places = [piece for group in own for piece in group.places]
        self.length = sum(piece.count for piece in self._pieces)
        self.extra = tuple((group.dtype, piece) for group in groups if group not in own for piece in group.pieces)
        self.contiguous = self.dtype is not None and not self.mixed and extent == size and self._is_plain()
        self._layouts: dict[int, Layout] = {}

    def _is_plain(self) -> bool:
        if len(self._pieces) != 1:
            return not self.length
        offset, shape, strides = self._pieces[0]
        return offset == 0 and (self.length == 1 or (shape, strides) == ((self.length,), (self.dtype.itemsize,)))

    @property
    def offsets(self) -> np.ndarray:
        """Byte offsets of the elements of ``dtype``, in the order of the typemap; int64."""
        return concatenated(self._pieces)

    @property
    def places(self) -> np.ndarray:
        """Number of packed bytes of one item up to and including each of these elements; int64."""
        return concatenated(self._places)

    def layout(self, count: int) -> Layout:
        """The layout of ``count`` items side by side (in distance of the extent)."""
        layout = self._layouts.get(count)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[count] = Layout(self.pieces(count), self.dtype.itemsize)
        return layout

    def pieces(self, count: int) -> list[Piece]:
        """The pieces of ``count`` items."""
        if count == 0 or self.length == 0:
            return []
        if count == 1:
            return list(self._pieces)
        if len(self._pieces) == 1:
            return [repeated(self._pieces[0], count, self.extent)]
        items = self.extent * np.arange(count)[:, None]
        return compress((items + self.offsets).ravel(), self.dtype.itemsize)


class Group(NamedTuple):
    """Elements of one dtype in an item of a datatype.

    ``pieces`` says where they lie, ``places`` the number of packed bytes up to and including each, both as the
    concatenation of strided pieces, in the order of the typemap.
    """

    dtype: np.dtype
    pieces: Sequence[Piece]
    places: Sequence[Piece]


def typemap_at(dtype: np.dtype, offsets: np.ndarray) -> Typemap:
    """The typemap of one item that consists of elements at given byte offsets, none of them negative."""
    size = len(offsets) * dtype.itemsize
    places = [Piece(dtype.itemsize, (len(offsets),), (dtype.itemsize,))]
    extent = int(offsets.max()) + dtype.itemsize if len(offsets) else 0
    return Typemap([Group(dtype, compress(offsets, dtype.itemsize), places)], size, extent)


def regrouped(typemap: Typemap, count: int, itemsize: int) -> list[Piece] | None:
    """Where elements of another size lie that items of bytes or integers make up; None if they do not."""
    small = typemap.dtype.itemsize
    step, rest = divmod(itemsize, small)
    if rest or step == 0:
        return None
    pieces = [_regrouped(piece, small, step) for piece in typemap.layout(count).pieces]
    if None not in pieces:
        return pieces  # type: ignore[return-value]
    offsets = typemap.layout(count).offsets()
    if len(offsets) % step:
        return None
    groups = offsets.reshape(-1, step)
    if ((groups - groups[:, :1]) != np.arange(step) * small).any():
        return None
    return compress(groups[:, 0], itemsize)


def _regrouped(piece: Piece, small: int, step: int) -> Piece | None:
    if step == 1:
        return piece
    if not piece.shape or piece.strides[-1] != small or piece.shape[-1] % step:
        return None
    shape, strides = (*piece.shape[:-1], piece.shape[-1] // step), (*piece.strides[:-1], small * step)
    return simplified(Piece(piece.offset, shape, strides))
