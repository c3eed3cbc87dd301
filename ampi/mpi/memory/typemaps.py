"""Typemaps: the basic elements of a datatype that matter for derivatives, as strided pieces.

Pieces describe where the elements lie, by as few regular parts as can easily be found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...memory.extents import may_repeat

MOST_PIECES = 16  # beyond it, elements are addressed by an index array


class Piece(NamedTuple):
    """Strided elements at ``offset + Σ i_k strides[k]`` bytes from the message's address, in C order of the indices."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of elements."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    def offsets(self) -> np.ndarray:
        """Return the byte offset of each element, int64."""
        return _offsets_of(self)

    def moved(self, offset: int) -> Piece:
        """Return the same elements, ``offset`` bytes further on."""
        return Piece(self.offset + offset, self.shape, self.strides)


class Layout:
    """The layout of a message's elements, relative to the message's address.

    Attributes
    ----------
    pieces : tuple of Piece
        The message is their concatenation.
    index : numpy.ndarray of int64 or None
        Positions of the elements in units of the item size, counted from ``low``; used if there are many pieces, or
        pieces whose elements overlap.
    low, span : int
        First byte and number of items of the range that ``index`` refers to.
    overlapping : bool
        Some memory belongs to the message more than once (MPI allows this for sends).
    """

    __slots__ = ("_index", "_itemsize", "_overlapping", "count", "low", "pieces", "span")

    def __init__(self, pieces: Sequence[Piece], itemsize: int) -> None:
        self.pieces = tuple(pieces)
        self.count = sum(piece.count for piece in self.pieces)
        self.low = self.span = 0
        self._itemsize = itemsize
        self._index: np.ndarray | None = None
        self._overlapping: bool | None = None  # None: neither this nor the index is known yet

    @property
    def index(self) -> np.ndarray | None:
        """Positions of the elements, if they are addressed by positions."""
        if self._overlapping is None:
            self._examine()
        return self._index

    @property
    def overlapping(self) -> bool:
        """True if some memory belongs to the message more than once."""
        if self._overlapping is None:
            self._examine()
        return bool(self._overlapping)

    def _examine(self) -> None:
        """Determine whether elements overlap, and their positions if these are needed."""
        itemsize = self._itemsize
        overlapping = any(may_repeat(piece.shape, piece.strides, itemsize) for piece in self.pieces)
        if self.count and (len(self.pieces) > MOST_PIECES or overlapping):
            offsets = self.offsets()
            low = int(offsets.min())
            index, rest = np.divmod(offsets - low, itemsize)
            if not rest.any():
                self._index = index
                self.low = low
                self.span = int(index.max()) + 1
                if not overlapping and len(self.pieces) > MOST_PIECES:
                    overlapping = len(np.unique(index)) < len(index)
        self._overlapping = overlapping

    def offsets(self) -> np.ndarray:
        """Return the byte offset of each element, int64."""
        return concatenated(self.pieces)

    def part(self, start: int, stop: int, itemsize: int) -> Layout:
        """Return the layout of elements ``start`` to ``stop``."""
        if len(self.pieces) > MOST_PIECES:
            return Layout(compress(self.offsets()[start:stop], itemsize), itemsize)
        parts: list[Piece] = []
        for piece in self.pieces:
            parts += _part_of(piece, start, stop)
            start, stop = start - piece.count, stop - piece.count
        return Layout(parts, itemsize)


_MOST_LAYOUTS = 8  # stored per datatype, for different counts


class Typemap:
    """The basic elements of a datatype that matter for derivatives.

    The elements of a regular layout are never listed: they may not fit in memory.

    Attributes
    ----------
    dtype : numpy.dtype or None
        Dtype of its floating-point or complex elements; without any, the dtype of its elements.  None if such elements
        have several dtypes.
    length : int
        Number of elements of that dtype in one item.
    mixed : bool
        There are elements of other dtypes (locations, indices).
    extra : tuple of (dtype, Piece)
        The other elements: memory that a receive overwrites as well.
    size, extent : int
        Bytes of one item packed, and from one item to the next.
    contiguous : bool
        Items of this datatype side by side are a plain array of ``dtype``.
    """

    __slots__ = ("_layouts", "_pieces", "_places", "contiguous", "dtype", "extent", "extra", "length", "mixed", "size")

    def __init__(self, groups: Sequence[Group], size: int, extent: int) -> None:
        differentiable = [group for group in groups if group.dtype.kind in "fc"]
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
        """Return the layout of ``count`` items, one extent apart."""
        layout = self._layouts.get(count)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            pieces = self.pieces(count)
            layout = self._layouts[count] = Layout(pieces, self.dtype.itemsize)
        return layout

    def fitting(self, nbytes: int) -> int:
        """Return the number of items in ``nbytes``, where a message argument does not give it."""
        if nbytes <= 0:
            return 0
        if self.extent <= 0:
            raise ValueError(f"message: cannot infer count, datatype extent {self.extent}")
        count, rest = divmod(nbytes, self.extent)
        if rest:
            raise ValueError(
                f"message: cannot infer count, buffer length {nbytes} is not a multiple of datatype extent "
                f"{self.extent}"
            )
        return count

    def extras(self, count: int) -> list[tuple[np.dtype, Piece]]:
        """Return the elements of other dtypes in ``count`` items."""
        dtypes = [dtype for dtype, _ in self.extra]
        if count == 0 or len(dtypes) == len(set(dtypes)):
            return [(dtype, repeated(piece, count, self.extent)) for dtype, piece in self.extra if count]
        return [(dtype, piece.moved(k * self.extent)) for k in range(count) for dtype, piece in self.extra]

    def selection(self, count: int, memory: np.dtype | None = None, start: int = 0) -> Selection:
        """Return the elements that ``count`` items select.

        Parameters
        ----------
        memory : numpy.dtype, optional
            Of floating-point memory in which items of bytes or integers lie: the elements are those of the memory.
        start : int
            Where the items begin in that memory, in bytes.
        """
        dtype = self.dtype
        if dtype is None:
            return Selection(None, 0, None, self.extras(count))
        if memory is None:
            layout = None if self.contiguous else self.layout(count)
            return Selection(dtype, count * self.length, layout, self.extras(count) if self.mixed else ())
        size = memory.itemsize
        pieces = [Piece(0, (), ())] if self.contiguous else regrouped(self, count, size)
        if memory.kind not in "fc" or not _aligned(pieces, start, size) or count * self.size % size:
            own = self.layout(count).pieces if self.length else ()
            return Selection(None, 0, None, [*self.extras(count), *((dtype, piece) for piece in own)])
        return Selection(memory, count * self.size // size, None if self.contiguous else Layout(pieces, size), ())

    def pieces(self, count: int) -> list[Piece]:
        """Return the pieces of ``count`` items."""
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

    ``pieces`` are their offsets, ``places`` the numbers of packed bytes up to and including each of them, both as a
    concatenation of strided pieces in the order of the typemap.
    """

    dtype: np.dtype
    pieces: Sequence[Piece]
    places: Sequence[Piece]


class Selection(NamedTuple):
    """Elements of memory that items of a typemap select.

    Attributes
    ----------
    dtype : numpy.dtype or None
        None if the elements are not a sequence of one floating-point dtype; then ``extra`` has all of them.
    count : int
        Number of elements of that dtype.
    layout : Layout or None
        Where they lie; None: contiguous.
    extra : sequence of (dtype, Piece)
        Elements of other dtypes.
    """

    dtype: np.dtype | None
    count: int
    layout: Layout | None
    extra: Sequence[tuple[np.dtype, Piece]]


def typemap_at(dtype: np.dtype, offsets: np.ndarray) -> Typemap:
    """Return the typemap of one item that consists of elements at given byte offsets, none of them negative."""
    size = len(offsets) * dtype.itemsize
    places = [Piece(dtype.itemsize, (len(offsets),), (dtype.itemsize,))]
    extent = int(offsets.max()) + dtype.itemsize if len(offsets) else 0
    return Typemap([Group(dtype, compress(offsets, dtype.itemsize), places)], size, extent)


def regrouped(typemap: Typemap, count: int, itemsize: int) -> list[Piece] | None:
    """Return the places of the larger elements that items of bytes or integers form; None if they form none."""
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


def _aligned(pieces: Sequence[Piece] | None, start: int, size: int) -> bool:
    """True if all elements of a size lie at multiples of it."""
    return pieces is not None and not any(
        (start + piece.offset) % size or any(stride % size for stride in piece.strides) for piece in pieces
    )


def _regrouped(piece: Piece, small: int, step: int) -> Piece | None:
    if step == 1:
        return piece
    if not piece.shape or piece.strides[-1] != small or piece.shape[-1] % step:
        return None
    shape, strides = (*piece.shape[:-1], piece.shape[-1] // step), (*piece.strides[:-1], small * step)
    return simplified(Piece(piece.offset, shape, strides))


def concatenated(pieces: Sequence[Piece]) -> np.ndarray:
    """Return the byte offsets of the elements, one piece after the other; int64."""
    return np.concatenate([_offsets_of(piece) for piece in pieces] or [np.zeros(0, np.int64)])


def reach(pieces: Iterable[Piece], itemsize: int) -> tuple[int, int]:
    """Return the first byte of elements of a size, and the one after the last; zeros if there are none."""
    low, high = [], []
    for piece in pieces:
        ends = [(n - 1) * stride for n, stride in zip(piece.shape, piece.strides, strict=True)]
        low.append(piece.offset + sum(min(end, 0) for end in ends))
        high.append(piece.offset + sum(max(end, 0) for end in ends) + itemsize)
    return min(low, default=0), max(high, default=0)


def repeated(piece: Piece, count: int, extent: int) -> Piece:
    """Return a piece repeated ``count`` times, one extent apart."""
    return simplified(Piece(piece.offset, (count, *piece.shape), (extent, *piece.strides)))


def compress(offsets: np.ndarray, itemsize: int) -> list[Piece]:
    """Return few strided pieces, found greedily from the inside out, whose concatenation has these offsets."""
    if len(offsets) == 0:
        return []
    starts = np.asarray(offsets, np.int64)
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    while len(starts) > 1:
        stride, length = _common_group(starts, itemsize if not shape else None)
        if length == 1:
            break
        starts = starts[::length]
        shape = (length, *shape)
        strides = (stride, *strides)
    if len(starts) == 1:
        return [simplified(Piece(int(starts[0]), shape, strides))]
    if shape:
        return [simplified(piece) for piece in _joined(starts, shape, strides)]
    return [simplified(piece) for piece in _runs(starts, itemsize)]


def _common_group(starts: np.ndarray, first: int | None) -> tuple[int, int]:
    """Return stride and length of groups of constant stride into which all starts divide evenly; length 1 if none."""
    steps = np.diff(starts)
    stride = int(steps[0]) if first is None else first
    breaks = np.flatnonzero(steps != stride) + 1
    if len(breaks) == 0:
        return stride, len(starts)
    length = int(breaks[0])
    whole = len(starts) % length == 0 and np.array_equal(breaks, np.arange(length, len(starts), length))
    return stride, length if whole else 1


def _joined(starts: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[Piece]:
    """Return pieces of the same form at the given starts, with neighbours joined that have a common stride."""
    pieces = []
    k, n = 0, len(starts)
    steps = np.diff(starts)
    changes = np.flatnonzero(np.diff(steps)) + 1  # positions in `steps` where a new stride begins
    ends = np.append(changes, n - 1)
    while k < n:
        end = int(ends[np.searchsorted(ends, k, side="right")]) if k < n - 1 else k
        length = end - k + 1
        if length == 1:
            pieces.append(Piece(int(starts[k]), shape, strides))
        else:
            pieces.append(Piece(int(starts[k]), (length, *shape), (int(steps[k]), *strides)))
        k += length
    return pieces


def _runs(starts: np.ndarray, itemsize: int) -> list[Piece]:
    breaks = np.flatnonzero(np.diff(starts) != itemsize) + 1
    firsts = np.concatenate([[0], breaks])
    lengths = np.diff(np.concatenate([firsts, [len(starts)]]))
    return [
        Piece(int(starts[first]), (int(length),), (itemsize,)) for first, length in zip(firsts, lengths, strict=True)
    ]


def simplified(piece: Piece) -> Piece:
    """Return the same elements with as few axes as possible."""
    shape: list[int] = []
    strides: list[int] = []
    for n, stride in zip(piece.shape, piece.strides, strict=True):
        if n == 1:
            continue
        if shape and strides[-1] == n * stride:
            shape[-1] *= n
            strides[-1] = stride
        else:
            shape.append(n)
            strides.append(stride)
    return Piece(piece.offset, tuple(shape), tuple(strides))


def _offsets_of(piece: Piece) -> np.ndarray:
    offsets = np.full(piece.shape, piece.offset, np.int64)
    for axis, (n, stride) in enumerate(zip(piece.shape, piece.strides, strict=True)):
        along = [1] * len(piece.shape)
        along[axis] = n
        offsets += (np.arange(n, dtype=np.int64) * stride).reshape(along)
    return offsets.ravel()


def _part_of(piece: Piece, start: int, stop: int) -> list[Piece]:
    """Return those of the elements ``start`` to ``stop`` that a piece has."""
    start, stop = max(start, 0), min(stop, piece.count)
    if start >= stop:
        return []
    if stop - start == piece.count:
        return [piece]
    (n, *shape), (stride, *strides) = piece.shape, piece.strides
    size = piece.count // n
    first, last = -(-start // size), stop // size
    rows = [Piece(piece.offset + first * stride, (last - first, *shape), piece.strides)] if last > first else []
    if size == 1:
        return [simplified(row) for row in rows]
    row = lambda k: Piece(piece.offset + k * stride, tuple(shape), tuple(strides))
    if first > last:  # all in one row
        return _part_of(row(last), start - last * size, stop - last * size)
    head = _part_of(row(first - 1), start - (first - 1) * size, size) if start < first * size else []
    tail = _part_of(row(last), 0, stop - last * size)
    return [*head, *map(simplified, rows), *tail]
