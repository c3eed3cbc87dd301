"""Strided pieces: where the elements of a message lie, in the fewest regular parts that are easily found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...memory.extents import may_repeat

MOST_PIECES = 16  # beyond it, elements are addressed by an index array


class Piece(NamedTuple):
    """Elements at ``offset + Σ i_k strides[k]`` bytes from the message's address, in C order of the indices."""

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
        """Byte offset of each element, int64."""
        return _offsets_of(self)

    def moved(self, offset: int) -> Piece:
        """The same elements so many bytes further on."""
        return Piece(self.offset + offset, self.shape, self.strides)


class Layout:
    """Where a message's elements lie, relative to the message's address.

    Attributes
    ----------
    pieces : tuple of Piece
        The message is their concatenation.
    index : numpy.ndarray of int64 or None
        Positions of the elements in units of the item size from ``low``: the way to address them if there are many
        pieces, or pieces whose elements overlap.
    low, span : int
        First byte and number of items of the range that ``index`` refers to.
    overlapping : bool
        Some memory belongs to the message more than once (allowed when sending).
    """

    __slots__ = ("count", "index", "low", "overlapping", "pieces", "span")

    def __init__(self, pieces: Sequence[Piece], itemsize: int) -> None:
        self.pieces = tuple(pieces)
        self.count = sum(piece.count for piece in self.pieces)
        self.index = None
        self.low = self.span = 0
        self.overlapping = any(may_repeat(piece.shape, piece.strides, itemsize) for piece in self.pieces)
        if self.count and (len(self.pieces) > MOST_PIECES or self.overlapping):
            offsets = self.offsets()
            low = int(offsets.min())
            index, rest = np.divmod(offsets - low, itemsize)
            if not rest.any():
                self.index = index
                self.low = low
                self.span = int(index.max()) + 1
                if not self.overlapping and len(self.pieces) > MOST_PIECES:
                    self.overlapping = len(np.unique(index)) < len(index)

    def offsets(self) -> np.ndarray:
        """Byte offset of each element, int64."""
        return concatenated(self.pieces)

    def part(self, start: int, stop: int, itemsize: int) -> Layout:
        """The layout of elements ``start`` to ``stop``."""
        if len(self.pieces) > MOST_PIECES:
            return Layout(compress(self.offsets()[start:stop], itemsize), itemsize)
        parts: list[Piece] = []
        for piece in self.pieces:
            parts += _part_of(piece, start, stop)
            start, stop = start - piece.count, stop - piece.count
        return Layout(parts, itemsize)


def concatenated(pieces: Sequence[Piece]) -> np.ndarray:
    """Byte offsets of the elements of one piece after the other; int64."""
    return np.concatenate([_offsets_of(piece) for piece in pieces] or [np.zeros(0, np.int64)])


def reach(pieces: Iterable[Piece], itemsize: int) -> tuple[int, int]:
    """First byte of elements of a size, and the one after the last; zeros if there are none."""
    low, high = [], []
    for piece in pieces:
        ends = [(n - 1) * stride for n, stride in zip(piece.shape, piece.strides, strict=True)]
        low.append(piece.offset + sum(min(end, 0) for end in ends))
        high.append(piece.offset + sum(max(end, 0) for end in ends) + itemsize)
    return min(low, default=0), max(high, default=0)


def repeated(piece: Piece, count: int, extent: int) -> Piece:
    """A piece several times, in distance of the extent."""
    return simplified(Piece(piece.offset, (count, *piece.shape), (extent, *piece.strides)))


def compress(offsets: np.ndarray, itemsize: int) -> list[Piece]:
    """The fewest strided pieces, found greedily from the inside out, whose concatenation has these offsets."""
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
    """Stride and length of groups with a constant stride into which all starts divide evenly; length 1 if none."""
    steps = np.diff(starts)
    stride = int(steps[0]) if first is None else first
    breaks = np.flatnonzero(steps != stride) + 1
    if len(breaks) == 0:
        return stride, len(starts)
    length = int(breaks[0])
    whole = len(starts) % length == 0 and np.array_equal(breaks, np.arange(length, len(starts), length))
    return stride, length if whole else 1


def _joined(starts: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[Piece]:
    """Pieces of equal form at the given starts, neighbours with a common stride joined."""
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
    """The same elements with as few axes as possible."""
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
    """Elements ``start`` to ``stop`` of a piece, as far as it has them."""
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
