"""Decoding of MPI datatypes: their basic elements as a few strided pieces, or as byte offsets if they are irregular.

Datatypes are decoded while they exist, and the result is stored as an MPI attribute: nothing depends on the handle once
the user has freed it (MPI reuses handles), and a second message with the datatype costs a look-up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from .typemaps import MOST_PIECES, Group, Piece, Typemap, compress, concatenated, simplified

_FEW_ELEMENTS = 4096  # up to this number, all offsets are examined


def made_of(datatype: MPI.Datatype, pieces: Sequence[Piece]) -> MPI.Datatype:
    """Return a committed datatype of the elements at given places."""
    if len(pieces) > MOST_PIECES:
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


_predefined: dict[int, Typemap] = {}
_keyval = MPI.KEYVAL_INVALID


def typemap_of(datatype: MPI.Datatype) -> Typemap:
    """Return the typemap of a datatype, decoded at its first use.

    Raises
    ------
    NotImplementedError
        The datatype was built by a constructor that ampi does not know.
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
    """Return the datatype for one of mpi4py's strings.

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
    groups = _elements(datatype).groups()
    return Typemap(groups, datatype.size, datatype.extent)


# Basic dtypes found so far; lists of elements name dtypes by their positions here.
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
        """Return the elements, listed one by one."""
        kinds = [np.full(piece.count, _kind(dtype)) for dtype, piece in self.runs]
        return Listed(np.concatenate(kinds or [np.zeros(0, np.int64)]), concatenated([piece for _, piece in self.runs]))

    def groups(self) -> list[Group]:
        """Return the elements, sorted by dtypes."""
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
    """Return the same elements in fewer pieces, if these are easily found."""
    if len(pieces) > 1 and sum(piece.count for piece in pieces) <= _FEW_ELEMENTS:
        return compress(concatenated(pieces), itemsize)
    fewer = pieces[:1]
    for piece in pieces[1:]:
        longer = _continued(fewer[-1], piece, itemsize)
        fewer = [*fewer, piece] if longer is None else [*fewer[:-1], longer]
    return fewer


def _continued(piece: Piece, after: Piece, itemsize: int) -> Piece | None:
    """Return two runs of elements as one, if the second continues the first."""
    if len(piece.shape) > 1 or len(after.shape) > 1:
        return None
    (stride,) = piece.strides or after.strides or (itemsize,)
    if (after.strides or (stride,)) != (stride,) or after.offset != piece.offset + piece.count * stride:
        return None
    return Piece(piece.offset, (piece.count + after.count,), (stride,))


class Listed:
    """The basic elements of one item of an irregular datatype: kinds and byte offsets of all of them."""

    __slots__ = ("kinds", "offsets")

    def __init__(self, kinds: np.ndarray, offsets: np.ndarray) -> None:
        self.kinds = kinds
        self.offsets = offsets

    def listed(self) -> Listed:
        """Return the list itself."""
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
    """Return one item of the base datatype at each place in the pieces, one after the other."""
    blocks = [block for block in blocks if block.count]
    if isinstance(base, Runs):
        if len(base.runs) == 1 and len(blocks) <= MOST_PIECES:
            ((dtype, piece),) = base.runs
            return Runs([(dtype, _nested(block, piece)) for block in blocks])
        if len(base.runs) * sum(block.count for block in blocks) <= MOST_PIECES:
            items = [Piece(item, (), ()) for item in concatenated(blocks).tolist()]
            return Runs([(dtype, _nested(item, piece)) for item in items for dtype, piece in base.runs])
    return _listed_at(base, concatenated(blocks))


def _listed_at(base: Elements, items: np.ndarray) -> Listed:
    """Return one item of the base datatype at each of these byte offsets."""
    one = base.listed()
    return Listed(np.tile(one.kinds, len(items)), (items[:, None] + one.offsets).ravel())


def _nested(block: Piece, piece: Piece) -> Piece:
    return simplified(Piece(block.offset + piece.offset, block.shape + piece.shape, block.strides + piece.strides))


def _joined_elements(parts: Sequence[Elements]) -> Elements:
    """Return the parts, one after the other."""
    if all(isinstance(part, Runs) for part in parts):
        runs = [run for part in parts for run in part.runs]  # type: ignore[union-attr]
        if len(runs) <= MOST_PIECES:
            return Runs(runs)
    lists = [part.listed() for part in parts]
    return Listed(np.concatenate([part.kinds for part in lists]), np.concatenate([part.offsets for part in lists]))


def _elements(datatype: MPI.Datatype) -> Elements:
    """Return the basic elements of one item."""
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
    """Return blocks that start at given multiples of ``scale`` bytes and have given lengths in items."""
    if isinstance(lengths, int):
        lengths = [lengths] * len(starts)
    if len(starts) <= MOST_PIECES:
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
    """Return the global indices along one dimension that a process of a distributed array holds."""
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
    """Return the items with these indices along the dimensions of an array."""
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
