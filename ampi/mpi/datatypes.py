"""What an MPI datatype looks at: its basic elements as a few strided pieces, or their byte offsets if it is irregular.

Everything is worked out while the datatype lives and kept as an MPI attribute of it, so that nothing depends on the
handle once the user has freed it (MPI reuses handles), and a second message with the datatype costs a look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..memory import carries_derivatives

_MOST_PIECES = 16  # beyond it, elements are addressed by an index array
_MOST_LAYOUTS = 8  # kept per datatype, for different counts
_FEW_ELEMENTS = 4096  # of which all offsets are looked at


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
        return concatenated(self.pieces)

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
    return _simplified(Piece(piece.offset, shape, strides))


# ------------------------------------------------------------------------------------------------ offsets and pieces


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


def made_of(datatype: MPI.Datatype, pieces: Sequence[Piece]) -> MPI.Datatype:
    """A committed datatype of elements that lie where the pieces say."""
    if len(pieces) > _MOST_PIECES:
        return datatype.Create_hindexed_block(1, concatenated(pieces).tolist()).Commit()
    parts = [_strided(datatype, piece) for piece in pieces]
    derived = MPI.Datatype.Create_struct([1] * len(parts), [piece.offset for piece in pieces], parts).Commit()
    for part in parts:
        part.Free()
    return derived


def _strided(datatype: MPI.Datatype, piece: Piece) -> MPI.Datatype:
    part = datatype.Dup()
    for n, stride in zip(reversed(piece.shape), reversed(piece.strides)):
        inner, part = part, part.Create_hvector(n, 1, stride)
        inner.Free()
    return part


def repeated(piece: Piece, count: int, extent: int) -> Piece:
    """A piece several times, in distance of the extent."""
    return _simplified(Piece(piece.offset, (count, *piece.shape), (extent, *piece.strides)))


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
    return Typemap(_elements(datatype).groups(), datatype.size, datatype.extent)


# Basic dtypes met so far; in a list of elements each names its dtype by the position in this list.
_DTYPES: list[np.dtype] = []


def _kind(dtype: np.dtype) -> int:
    if dtype not in _DTYPES:
        _DTYPES.append(dtype)
    return _DTYPES.index(dtype)


class Runs:
    """The basic elements of one item in the order of the typemap: the concatenation of a few strided runs."""

    __slots__ = ("runs",)

    def __init__(self, runs: Sequence[tuple[np.dtype, Piece]]) -> None:
        self.runs = [run for run in runs if run[1].count]

    def listed(self) -> Listed:
        """The same as a list of all elements."""
        kinds = [np.full(piece.count, _kind(dtype)) for dtype, piece in self.runs]
        return Listed(np.concatenate(kinds or [np.zeros(0, np.int64)]), concatenated([piece for _, piece in self.runs]))

    def groups(self) -> list[Group]:
        """The same, sorted by dtypes."""
        found: dict[np.dtype, tuple[list[Piece], list[Piece]]] = {}
        start = 0
        for dtype, piece in self.runs:
            pieces, places = found.setdefault(dtype, ([], []))
            pieces.append(piece)
            places.append(Piece(start + dtype.itemsize, (piece.count,), (dtype.itemsize,)))
            start += piece.count * dtype.itemsize
        return [
            Group(dtype, _fewer(pieces, dtype.itemsize), _fewer(places, dtype.itemsize))
            for dtype, (pieces, places) in found.items()
        ]


def _fewer(pieces: list[Piece], itemsize: int) -> list[Piece]:
    """The same elements in fewer pieces, if these are easily found."""
    if len(pieces) > 1 and sum(piece.count for piece in pieces) <= _FEW_ELEMENTS:
        return compress(concatenated(pieces), itemsize)
    fewer = pieces[:1]
    for piece in pieces[1:]:
        longer = _continued(fewer[-1], piece, itemsize)
        fewer = [*fewer, piece] if longer is None else [*fewer[:-1], longer]
    return fewer


def _continued(piece: Piece, after: Piece, itemsize: int) -> Piece | None:
    """Two runs of elements as one, if the second goes on where the first ends."""
    if len(piece.shape) > 1 or len(after.shape) > 1:
        return None
    (stride,) = piece.strides or after.strides or (itemsize,)
    if (after.strides or (stride,)) != (stride,) or after.offset != piece.offset + piece.count * stride:
        return None
    return Piece(piece.offset, (piece.count + after.count,), (stride,))


class Listed:
    """The same as a list of all elements, for irregular datatypes: kinds and byte offsets."""

    __slots__ = ("kinds", "offsets")

    def __init__(self, kinds: np.ndarray, offsets: np.ndarray) -> None:
        self.kinds = kinds
        self.offsets = offsets

    def listed(self) -> Listed:
        """Itself."""
        return self

    def groups(self) -> list[Group]:
        """As `Runs.groups`."""
        sizes = np.array([dtype.itemsize for dtype in _DTYPES], np.int64)
        places = np.cumsum(sizes[self.kinds])
        groups = []
        for kind in np.unique(self.kinds).tolist():
            dtype, own = _DTYPES[kind], self.kinds == kind
            groups.append(
                Group(dtype, compress(self.offsets[own], dtype.itemsize), compress(places[own], dtype.itemsize))
            )
        return groups


Elements = Runs | Listed


def _repeated(base: Elements, blocks: Sequence[Piece]) -> Elements:
    """One item of the base datatype at each of the places that pieces give, one after the other."""
    blocks = [block for block in blocks if block.count]
    if isinstance(base, Runs):
        if len(base.runs) == 1 and len(blocks) <= _MOST_PIECES:
            ((dtype, piece),) = base.runs
            return Runs([(dtype, _nested(block, piece)) for block in blocks])
        if len(base.runs) * sum(block.count for block in blocks) <= _MOST_PIECES:
            items = [Piece(item, (), ()) for item in concatenated(blocks).tolist()]
            return Runs([(dtype, _nested(item, piece)) for item in items for dtype, piece in base.runs])
    return _listed_at(base, concatenated(blocks))


def _listed_at(base: Elements, items: np.ndarray) -> Listed:
    """One item of the base datatype at each of these byte offsets."""
    one = base.listed()
    return Listed(np.tile(one.kinds, len(items)), (items[:, None] + one.offsets).ravel())


def _nested(block: Piece, piece: Piece) -> Piece:
    return _simplified(Piece(block.offset + piece.offset, block.shape + piece.shape, block.strides + piece.strides))


def _joined_elements(parts: Sequence[Elements]) -> Elements:
    """One part after the other."""
    if all(isinstance(part, Runs) for part in parts):
        runs = [run for part in parts for run in part.runs]  # type: ignore[union-attr]
        if len(runs) <= _MOST_PIECES:
            return Runs(runs)
    lists = [part.listed() for part in parts]
    return Listed(np.concatenate([part.kinds for part in lists]), np.concatenate([part.offsets for part in lists]))


def _elements(datatype: MPI.Datatype) -> Elements:
    """The basic elements of one item."""
    if datatype.is_predefined:
        return _basic_elements(datatype)
    base, combiner, parameters = datatype.decode()
    try:
        if combiner == "STRUCT":
            return _struct_elements(parameters)
        one = _elements(base)
        place = _PLACES.get(combiner)
        if place is None:
            raise NotImplementedError(f"ampi does not know the layout of a datatype made by {combiner}")
        places = place(parameters, base.extent)
        return _repeated(one, places) if isinstance(places, list) else _listed_at(one, places)
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


def _basic_elements(datatype: MPI.Datatype) -> Runs:
    for name, value in _PAIRS.items():
        if datatype == getattr(MPI, name):
            struct = np.dtype([("value", value), ("location", np.intc)], align=True)
            return Runs([(struct[field], Piece(struct.fields[field][1], (), ())) for field in struct.names])
    if datatype.typestr in ("", "V", None) or datatype.size == 0:
        return Runs([])
    return Runs([(_basic_dtype(datatype), Piece(0, (), ()))])


def _basic_dtype(datatype: MPI.Datatype) -> np.dtype:
    try:
        dtype = np.dtype(datatype.typestr)
    except TypeError:
        dtype = np.dtype(f"V{datatype.size}")
    if dtype.itemsize != datatype.size or dtype.kind in "SUV":
        return np.dtype(np.uint8) if datatype.size == 1 else np.dtype(f"V{datatype.size}")
    return dtype


def _struct_elements(parameters: dict) -> Elements:
    columns = (parameters["blocklengths"], parameters["displacements"], parameters["datatypes"])
    return _joined_elements(
        [
            _repeated(_elements(part), [Piece(displacement, (length,), (part.extent,))])
            for length, displacement, part in zip(*columns, strict=True)
        ]
    )


# Where the items of the base datatype lie: a list of pieces, or an array of byte offsets.
Places = list[Piece] | np.ndarray


def _vector(p: dict, stride: int, extent: int) -> Places:
    return [Piece(0, (p["count"], p["blocklength"]), (stride, extent))]


def _blocks(starts: Sequence[int], lengths: Sequence[int] | int, scale: int, extent: int) -> Places:
    """Blocks that start at given multiples of ``scale`` bytes and have given lengths in items."""
    if isinstance(lengths, int):
        lengths = [lengths] * len(starts)
    if len(starts) <= _MOST_PIECES:
        return [Piece(start * scale, (length,), (extent,)) for start, length in zip(starts, lengths, strict=True)]
    items = np.asarray(lengths, np.int64)
    first = np.repeat(np.cumsum(items) - items, items)
    return np.repeat(np.asarray(starts, np.int64) * scale, items) + (np.arange(int(items.sum())) - first) * extent


def _subarray(p: dict, extent: int) -> Places:
    owned = [range(start, start + n) for start, n in zip(p["starts"], p["subsizes"], strict=True)]
    return _grid(owned, p["sizes"], p["order"], extent)


def _darray(p: dict, extent: int) -> Places:
    grid = p["psizes"]
    place = np.unravel_index(p["rank"], grid)  # MPI numbers the process grid in C order whatever the array's order
    dimensions = zip(p["gsizes"], p["distribs"], p["dargs"], grid, map(int, place), strict=True)
    return _grid([_owned(*dimension) for dimension in dimensions], p["gsizes"], p["order"], extent)


def _owned(size: int, distribution: int, argument: int, processes: int, place: int) -> range | np.ndarray:
    """Global indices along one dimension that a process of a distributed array holds."""
    if distribution == MPI.DISTRIBUTE_NONE or processes == 1:
        return range(size)
    if argument == MPI.DISTRIBUTE_DFLT_DARG:
        argument = -(-size // processes) if distribution == MPI.DISTRIBUTE_BLOCK else 1
    starts = range(place * argument, size, processes * argument)
    if argument == 1:
        return starts
    if len(starts) <= 1:
        return range(starts.start, min(starts.start + argument, size)) if starts else range(0)
    indices = (np.array(starts)[:, None] + np.arange(argument)).ravel()
    return indices[indices < size]


def _grid(owned: Sequence[range | np.ndarray], sizes: Sequence[int], order: int, extent: int) -> Places:
    """The items with these indices along the dimensions of an array."""
    axes = list(range(len(sizes)))
    axes = axes if order == MPI.ORDER_C else axes[::-1]  # slowest first
    strides = {}
    for axis in reversed(axes):
        strides[axis] = extent
        extent *= sizes[axis]
    if all(isinstance(indices, range) for indices in owned):
        offset = sum(owned[axis].start * strides[axis] for axis in axes)  # type: ignore[union-attr]
        steps = tuple(owned[axis].step * strides[axis] for axis in axes)  # type: ignore[union-attr]
        return [Piece(offset, tuple(len(owned[axis]) for axis in axes), steps)]
    offsets = np.zeros(1, np.int64)
    for axis in axes:
        offsets = (offsets[:, None] + np.asarray(owned[axis], np.int64) * strides[axis]).ravel()
    return offsets


_PLACES = {
    "DUP": lambda p, extent: [Piece(0, (), ())],
    "RESIZED": lambda p, extent: [Piece(0, (), ())],
    "CONTIGUOUS": lambda p, extent: [Piece(0, (p["count"],), (extent,))],
    "VECTOR": lambda p, extent: _vector(p, p["stride"] * extent, extent),
    "HVECTOR": lambda p, extent: _vector(p, p["stride"], extent),
    "INDEXED": lambda p, extent: _blocks(p["displacements"], p["blocklengths"], extent, extent),
    "HINDEXED": lambda p, extent: _blocks(p["displacements"], p["blocklengths"], 1, extent),
    "INDEXED_BLOCK": lambda p, extent: _blocks(p["displacements"], p["blocklength"], extent, extent),
    "HINDEXED_BLOCK": lambda p, extent: _blocks(p["displacements"], p["blocklength"], 1, extent),
    "SUBARRAY": _subarray,
    "DARRAY": _darray,
}
