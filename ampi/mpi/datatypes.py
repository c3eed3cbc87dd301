"""What an MPI datatype looks at: the byte offsets of its basic elements, and the same as a few strided pieces.

Everything is worked out while the datatype lives and kept as an MPI attribute of it, so that nothing depends on the
handle once the user has freed it (MPI reuses handles), and a second message with the datatype costs a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..memory import carries_derivatives

_MOST_PIECES = 16  # beyond it, elements are addressed by an index array
_MOST_LAYOUTS = 8  # kept per datatype, for different counts


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
        self.overlapping = any(_overlaps_itself(piece, itemsize) for piece in self.pieces)
        if self.count and (len(self.pieces) > _MOST_PIECES or self.overlapping):
            offsets = self.offsets()
            low = int(offsets.min())
            index, rest = np.divmod(offsets - low, itemsize)
            if not rest.any():
                self.index = index
                self.low = low
                self.span = int(index.max()) + 1
                if not self.overlapping and len(self.pieces) > _MOST_PIECES:
                    self.overlapping = len(np.unique(index)) < len(index)

    def offsets(self) -> np.ndarray:
        """Byte offset of each element, int64."""
        return np.concatenate([_offsets_of(piece) for piece in self.pieces] or [np.zeros(0, np.int64)])

    def part(self, start: int, stop: int, itemsize: int) -> Layout:
        """The layout of elements ``start`` to ``stop``."""
        if len(self.pieces) > _MOST_PIECES:
            return Layout(compress(self.offsets()[start:stop], itemsize), itemsize)
        parts: list[Piece] = []
        for piece in self.pieces:
            parts += _part_of(piece, start, stop)
            start, stop = start - piece.count, stop - piece.count
        return Layout(parts, itemsize)


class Typemap:
    """The basic elements of a datatype that matter for derivatives.

    Attributes
    ----------
    dtype : numpy.dtype or None
        Dtype of its floating-point or complex elements; without any, the dtype of its elements.  None if such elements
        have several dtypes.
    offsets : numpy.ndarray of int64
        Byte offsets of the elements of that dtype, in the order of the typemap.
    mixed : bool
        Whether there are elements of other dtypes (locations, indices).
    places : numpy.ndarray of int64
        Number of packed bytes of one item up to and including each of these elements.
    extra : tuple of (dtype, Piece)
        The other elements: memory that a receive overwrites as well.
    size, extent : int
        Bytes of one item packed, and from one item to the next.
    contiguous : bool
        Items of this datatype side by side are a plain array of ``dtype``.
    """

    __slots__ = ("_layouts", "contiguous", "dtype", "extent", "extra", "mixed", "offsets", "places", "size")

    def __init__(self, elements: list[tuple[np.dtype, np.ndarray, np.ndarray]], size: int, extent: int) -> None:
        differentiable = [e for e in elements if carries_derivatives(e[0])]
        chosen = differentiable or elements
        dtypes = {e[0] for e in chosen}
        self.size = size
        self.extent = extent
        self.dtype = chosen[0][0] if len(dtypes) == 1 and chosen[0][0].names is None else None
        self.mixed = len({e[0] for e in elements}) > 1
        self.offsets, self.places = _in_order(chosen)
        self.extra = tuple(
            (dtype, piece)
            for dtype, offsets, _ in (elements if self.dtype is None else [e for e in elements if e[0] != self.dtype])
            for piece in compress(offsets, dtype.itemsize)
        )
        itemsize = self.dtype.itemsize if self.dtype is not None else 0
        self.contiguous = (
            self.dtype is not None
            and not self.mixed
            and extent == size
            and bool(np.array_equal(self.offsets, np.arange(len(self.offsets)) * itemsize))
        )
        self._layouts: dict[int, Layout] = {}

    @property
    def length(self) -> int:
        """Elements of ``dtype`` in one item."""
        return len(self.offsets)

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
        one = compress(self.offsets, self.dtype.itemsize)
        if len(one) == 1:
            offset, shape, strides = one[0]
            return [_simplified(Piece(offset, (count, *shape), (self.extent, *strides)))]
        items = self.extent * np.arange(count)[:, None]
        return compress((items + self.offsets).ravel(), self.dtype.itemsize)


def _in_order(elements: list[tuple[np.dtype, np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.concatenate([e[1] for e in elements] or [np.zeros(0, np.int64)])
    places = np.concatenate([e[2] for e in elements] or [np.zeros(0, np.int64)])
    order = np.argsort(places, kind="stable")
    return offsets[order], places[order]


def regrouped(typemap: Typemap, count: int, itemsize: int) -> np.ndarray | None:
    """Byte offsets of the elements of another size that items of bytes or integers make up; None if they do not."""
    offsets = typemap.layout(count).offsets()
    step, rest = divmod(itemsize, typemap.dtype.itemsize)
    if rest or step == 0 or len(offsets) % step:
        return None
    groups = offsets.reshape(-1, step)
    if ((groups - groups[:, :1]) != np.arange(step) * typemap.dtype.itemsize).any():
        return None
    return groups[:, 0]


# ------------------------------------------------------------------------------------------------ offsets and pieces


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
        return [_simplified(Piece(int(starts[0]), shape, strides))]
    if shape:
        return [_simplified(piece) for piece in _joined(starts, shape, strides)]
    return [_simplified(piece) for piece in _runs(starts, itemsize)]


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


def _simplified(piece: Piece) -> Piece:
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
        return [_simplified(row) for row in rows]
    row = lambda k: Piece(piece.offset + k * stride, tuple(shape), tuple(strides))
    if first > last:  # all in one row
        return _part_of(row(last), start - last * size, stop - last * size)
    head = _part_of(row(first - 1), start - (first - 1) * size, size) if start < first * size else []
    tail = _part_of(row(last), 0, stop - last * size)
    return [*head, *map(_simplified, rows), *tail]


def _overlaps_itself(piece: Piece, itemsize: int) -> bool:
    span = itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(piece.strides, piece.shape, strict=True) if n > 1):
        if stride < span:
            return True
        span += stride * (n - 1)
    return False


# ------------------------------------------------------------------------------------------------ decoding datatypes

_predefined: dict[int, Typemap] = {}
_keyval = MPI.KEYVAL_INVALID


def typemap_of(datatype: MPI.Datatype) -> Typemap:
    """The typemap of a datatype, decoded at its first use.

    Raises
    ------
    NotImplementedError
        The datatype was built by a constructor that is not known here.
    """
    found = _predefined.get(datatype.handle)
    if found is not None:
        return found
    if datatype.is_predefined:
        return _predefined.setdefault(datatype.handle, _decoded(datatype))
    global _keyval
    if _keyval == MPI.KEYVAL_INVALID:
        _keyval = MPI.Datatype.Create_keyval()
    found = datatype.Get_attr(_keyval)
    if found is None:
        found = _decoded(datatype)
        datatype.Set_attr(_keyval, found)
    return found


def datatype_named(name: str) -> MPI.Datatype:
    """The datatype that mpi4py takes a string for.

    Raises
    ------
    KeyError
        There is none.
    """
    try:
        return MPI._typedict[name]
    except KeyError:
        raise KeyError(f"cannot map {name!r} to MPI datatype") from None


def _decoded(datatype: MPI.Datatype) -> Typemap:
    dtypes, offsets = _elements(datatype)
    kinds = sorted(set(dtypes.tolist()))
    sizes = np.array([_DTYPES[k].itemsize for k in range(len(_DTYPES))], np.int64)
    places = np.cumsum(sizes[dtypes]) if len(dtypes) else np.zeros(0, np.int64)
    elements = [(_DTYPES[k], offsets[dtypes == k], places[dtypes == k]) for k in kinds]
    return Typemap(elements, datatype.size, datatype.extent)


# Basic dtypes met so far; an element of a typemap names its dtype by the position in this list.
_DTYPES: list[np.dtype] = []


def _kind(dtype: np.dtype) -> int:
    if dtype not in _DTYPES:
        _DTYPES.append(dtype)
    return _DTYPES.index(dtype)


def _elements(datatype: MPI.Datatype) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and byte offsets of the basic elements of one item, in the order of the typemap."""
    if datatype.is_predefined:
        return _basic_elements(datatype)
    base, combiner, parameters = datatype.decode()
    try:
        if combiner == "STRUCT":
            return _struct_elements(parameters)
        kinds, offsets = _elements(base)
        blocks = _BLOCKS.get(combiner)
        if blocks is None:
            raise NotImplementedError(f"ampi does not know the layout of a datatype made by {combiner}")
        return _repeated(kinds, offsets, blocks(parameters, base.extent))
    finally:
        for part in [base, *parameters.get("datatypes", ())]:
            if part is not datatype and part != MPI.DATATYPE_NULL and not part.is_predefined and part != datatype:
                part.Free()


_PAIRS = {
    "FLOAT_INT": np.float32,
    "DOUBLE_INT": np.float64,
    "LONG_INT": np.dtype("l"),
    "TWOINT": np.intc,
    "SHORT_INT": np.short,
    "LONG_DOUBLE_INT": np.longdouble,
}


def _basic_elements(datatype: MPI.Datatype) -> tuple[np.ndarray, np.ndarray]:
    for name, value in _PAIRS.items():
        if datatype == getattr(MPI, name):
            struct = np.dtype([("value", value), ("location", np.intc)], align=True)
            kinds = [_kind(struct[name]) for name in struct.names]
            return np.array(kinds), np.array([struct.fields[name][1] for name in struct.names], np.int64)
    if datatype.typestr in ("", "V", None) or datatype.size == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.array([_kind(_basic_dtype(datatype))]), np.zeros(1, np.int64)


def _basic_dtype(datatype: MPI.Datatype) -> np.dtype:
    try:
        dtype = np.dtype(datatype.typestr)
    except TypeError:
        dtype = np.dtype(f"V{datatype.size}")
    if dtype.itemsize != datatype.size or dtype.kind in "SUV":
        return np.dtype(np.uint8) if datatype.size == 1 else np.dtype(f"V{datatype.size}")
    return dtype


def _repeated(kinds: np.ndarray, offsets: np.ndarray, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One item of the base datatype at each of the given byte offsets."""
    return np.tile(kinds, len(blocks)), (blocks[:, None] + offsets).ravel()


def _struct_elements(parameters: dict) -> tuple[np.ndarray, np.ndarray]:
    kinds, offsets = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    columns = (parameters["blocklengths"], parameters["displacements"], parameters["datatypes"])
    for length, displacement, part in zip(*columns, strict=True):
        k, o = _repeated(*_elements(part), displacement + part.extent * np.arange(length))
        kinds.append(k)
        offsets.append(o)
    return np.concatenate(kinds), np.concatenate(offsets)


def _blocks(starts: np.ndarray, lengths: np.ndarray | int, extent: int) -> np.ndarray:
    """Byte offsets of the items of blocks that start at given bytes and have given lengths in items."""
    starts = np.asarray(starts, np.int64)
    lengths = np.broadcast_to(np.asarray(lengths, np.int64), starts.shape)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(starts, lengths) + (np.arange(int(lengths.sum())) - first) * extent


def _subarray(p: dict, extent: int) -> np.ndarray:
    sizes, subsizes, starts = p["sizes"], p["subsizes"], p["starts"]
    if p["order"] == MPI.ORDER_C:
        sizes, subsizes, starts = sizes[::-1], subsizes[::-1], starts[::-1]
    offsets = np.zeros(1, np.int64)
    stride = extent
    for size, subsize, start in zip(sizes, subsizes, starts, strict=True):  # fastest dimension first
        offsets = ((start + np.arange(subsize)) * stride)[:, None] + offsets
        offsets = offsets.ravel()
        stride *= size
    return offsets


def _darray(p: dict, extent: int) -> np.ndarray:
    grid = p["psizes"]
    place = np.unravel_index(p["rank"], grid)  # MPI numbers the process grid in C order whatever the array's order
    owned = [_owned(*dimension) for dimension in zip(p["gsizes"], p["distribs"], p["dargs"], grid, place, strict=True)]
    strides = np.ones(len(owned), np.int64)
    order = range(len(owned) - 1, -1, -1) if p["order"] == MPI.ORDER_C else range(len(owned))
    stride = extent
    offsets = np.zeros(1, np.int64)
    for axis in order:
        strides[axis] = stride
        offsets = (owned[axis][:, None] * stride + offsets).ravel()
        stride *= p["gsizes"][axis]
    return offsets


def _owned(size: int, distribution: int, argument: int, processes: int, place: int) -> np.ndarray:
    """Global indices along one dimension that a process of a distributed array holds."""
    indices = np.arange(size)
    if distribution == MPI.DISTRIBUTE_NONE or processes == 1:
        return indices
    if argument == MPI.DISTRIBUTE_DFLT_DARG:
        argument = -(-size // processes) if distribution == MPI.DISTRIBUTE_BLOCK else 1
    return indices[(indices // argument) % processes == place]


_BLOCKS = {
    "DUP": lambda p, extent: np.zeros(1, np.int64),
    "RESIZED": lambda p, extent: np.zeros(1, np.int64),
    "CONTIGUOUS": lambda p, extent: extent * np.arange(p["count"]),
    "VECTOR": lambda p, extent: _blocks(p["stride"] * extent * np.arange(p["count"]), p["blocklength"], extent),
    "HVECTOR": lambda p, extent: _blocks(p["stride"] * np.arange(p["count"]), p["blocklength"], extent),
    "INDEXED": lambda p, extent: _blocks(np.array(p["displacements"]) * extent, p["blocklengths"], extent),
    "HINDEXED": lambda p, extent: _blocks(p["displacements"], p["blocklengths"], extent),
    "INDEXED_BLOCK": lambda p, extent: _blocks(np.array(p["displacements"]) * extent, p["blocklength"], extent),
    "HINDEXED_BLOCK": lambda p, extent: _blocks(p["displacements"], p["blocklength"], extent),
    "SUBARRAY": _subarray,
    "DARRAY": _darray,
}
