"""Entries of sparse matrices: their movement by SciPy's functions, and matrices of sums of entries.

A matrix is a list of triplets: constant positions, and values that may be active. The result of a SciPy function has
SciPy's structure (and values), and its entries are

* *moved*: the function itself is run with indices instead of the values, which shows where each entry came from;
* *sums of terms*: products of entries of two matrices, or entries at the same position.

SciPy drops entries with value zero; here they stay, since their derivatives may not be zero.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as ss

from ...arrays.activity import is_active, plain_of
from ...arrays.known_classes import define_class, mapped, parts
from ...arrays.nested import from_nested
from ...arrays.writing import assign
from ...interception.hooks import Hook
from ...memory.storages import TrackedArray, storage_of, tracked, wrapped
from ...rules.definitions import any_active, exactly, refusal
from ...tape import Tape, current, passive
from .dense_matrices import as_array as as_plain
from .dense_matrices import as_matrix

INDICES = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("coords",),
    "dia": ("offsets",),
}
"""Formats whose entries may be active, and the names of their index arrays."""

INSTEAD = "build the matrix from entries and coordinates, scipy.sparse.coo_array((data, (row, column)), shape=...)"


def take_apart(a: Any) -> tuple:
    """The arrays of a sparse matrix, its data first, and the matrix."""
    if "data" not in vars(a):
        return (), a  # under construction
    return (a.data, *[getattr(a, name) for name in INDICES[a.format]]), a


def put_together(arrays: tuple, a: Any) -> Any:
    """The same matrix with other arrays.

    SciPy sorts data and indices in place, even in functions that only read (comparisons, counts): a plain matrix that
    replaces an active one has its own arrays.
    """
    data = arrays[0]
    if isinstance(a.data, TrackedArray) and not isinstance(data, TrackedArray):
        data = np.array(data)
    new = holding(a, data)
    is_other = not np.may_share_memory(data, a.data)
    for name, x in zip(INDICES[a.format], arrays[1:]):
        setattr(new, name, mapped(_index, x) if is_other else x)
    return new


def _index(x: np.ndarray) -> np.ndarray:
    return np.array(plain_of(x))


def holding(a: Any, data: Any) -> Any:
    """The same matrix with the same indices and other data."""
    new = copy.copy(a)
    new.data = data
    return new


def with_data(a: Any, data: Any) -> Any:
    """The same matrix with its own indices and other data."""
    new = holding(a, data)
    for name in INDICES[a.format]:
        setattr(new, name, mapped(_index, getattr(a, name)))
    return new


for _format in INDICES:
    for _kind in ("array", "matrix"):
        define_class(getattr(ss, f"{_format}_{_kind}"), take_apart, put_together)


def detach(a: Any) -> None:
    """Give a matrix its own arrays before SciPy writes into them without the tape noticing."""
    data = vars(a).get("data")
    if isinstance(data, np.ndarray) and storage_of(data) is not None:
        vars(a).update(vars(with_data(a, tracked(np.array(plain_of(data))))))


def copied(x: Any) -> Any:
    """A plain copy that a function may change."""
    if ss.issparse(x) and x.format in INDICES:
        return with_data(x, np.array(plain_of(x.data)))
    return np.array(plain_of(x))[()] if isinstance(x, TrackedArray) else x


def numbered(a: Any) -> Any:
    """The matrix with the indices of its data's elements (from 1) instead of their values."""
    numbers = np.arange(1.0, a.data.size + 1).reshape(a.data.shape)
    return with_data(a, numbers)


def indices_of(numbers: np.ndarray) -> np.ndarray:
    """Numbers from 1 as indices from 0; -1 for none."""
    return np.rint(numbers.real).astype(np.intp) - 1


def name_of(found: Hook, arguments: tuple) -> str:
    """The public name of a function, or of a method with the matrix's class."""
    own = type(arguments[0])
    if ":" in found.name:
        return found.name
    return f"scipy.sparse.{own.__name__}.{found.__name__}" if ss.issparse(arguments[0]) else found.name


# --------------------------------------------------------------------------------------------------- places and values


def keys_of(coords: tuple, shape: tuple) -> np.ndarray:
    """Coordinates as flat positions in C order."""
    keys = np.zeros(len(coords[0]) if coords else 1, np.int64)
    for c, n in zip(coords, shape):
        keys = keys * n + c
    return keys


def coords_of(keys: np.ndarray, shape: tuple) -> tuple:
    """Flat positions in C order as coordinates."""
    coords = []
    for n in shape[::-1]:
        coords.append(keys % max(n, 1))
        keys = keys // max(n, 1)
    return tuple(coords[::-1])


def places_of(a: Any) -> tuple[tuple, np.ndarray | None]:
    """The coordinates of a matrix's entries, and their indices in its data; None: all, in order."""
    if a.format == "coo":
        return a.coords, None
    if a.format in ("csr", "csc") and a.ndim == 2:
        major = np.repeat(np.arange(len(a.indptr) - 1), np.diff(a.indptr))
        minor = a.indices[: len(major)]
        picks = None if len(major) == a.data.size else np.arange(len(major))
        return ((major, minor) if a.format == "csr" else (minor, major)), picks
    with passive():
        found = numbered(a).tocoo()
    picks = indices_of(found.data)
    is_all = len(picks) == a.data.size and (picks == np.arange(len(picks))).all()
    return found.coords, None if is_all else picks


def entries(a: Any) -> tuple[np.ndarray, Any]:
    """The positions of a matrix's entries, and an array of their values, which may be active."""
    if a.format not in INDICES:
        with passive():
            a = a.tocoo()
    coords, picks = places_of(a)
    data = (tracked(a.data) if is_active(current(), a.data) else a.data).reshape(-1)
    return keys_of(coords, a.shape), data if picks is None else data[picks]


def added(data: Any, slots: np.ndarray, n: int) -> Any:
    """An array of n sums of the values with the same slot."""
    import ampi.numpy as anp

    if len(slots) == n:
        takes = np.full(n, -1)
        takes[slots] = np.arange(n)
        if (takes >= 0).all():
            return data[takes]
    sums = anp.zeros(n, data.dtype)
    np.add.at(sums, slots, data)
    return sums


def any_entries(tape: Tape, *given: Any) -> bool:
    """Return whether a part of an argument is active and has elements."""
    return any(x.size and is_active(tape, x) for x in parts(given) if isinstance(x, np.ndarray))


def with_values(name: str, tape: Tape, new: Any, exact: Any, given: list) -> Any:
    """`exactly` for arrays that may be empty."""
    is_known = is_active(tape, new) or any_entries(tape, given)
    if isinstance(exact, np.matrix):
        return as_matrix(exactly(name, tape, new, np.asarray(exact), given)) if is_known else exact
    return exactly(name, tape, new, exact, given) if is_known else wrapped(exact)


def summed(keys: np.ndarray, data: Any) -> tuple[np.ndarray, Any]:
    """The entries in order, with those at the same position added up."""
    distinct, slots = np.unique(keys, return_inverse=True)
    return distinct, added(data, slots, len(distinct))


def dense_of(name: str, tape: Tape, exact: Any, keys: np.ndarray, data: Any) -> Any:
    """A function's dense result as sums of values at its positions."""
    new = added(data, keys, np.size(exact)).reshape(np.shape(exact))
    return with_values(name, tape, new, exact, [data])


def matrix_of(name: str, tape: Tape, exact: Any, keys: np.ndarray, data: Any) -> Any:
    """A function's sparse result as sums of values at positions; entries that SciPy left out are added."""
    coords, slots = places_of(exact)
    own = keys_of(coords, exact.shape)
    slots = np.arange(len(own)) if slots is None else slots
    if (own[1:] > own[:-1]).all():
        order = np.arange(len(own))
    else:
        order = np.argsort(own, kind="stable")
    inside = own[order]
    place = np.searchsorted(inside, keys)
    known = place < len(inside)
    known[known] = inside[place[known]] == keys[known]
    if known.all() and (inside[1:] != inside[:-1]).all():
        new = added(data, slots[order[place]], exact.data.size).reshape(exact.data.shape)
        return holding(exact, with_values(name, tape, new, exact.data, [data]))
    places = np.unique(np.concatenate([own, keys]))
    values = np.zeros(len(places), exact.dtype if own.size else data.dtype)  # the dtype of an empty sum is arbitrary
    np.add.at(values, np.searchsorted(places, own), exact.data.reshape(-1)[slots])
    new = with_values(name, tape, added(data, np.searchsorted(places, keys), len(places)), values, [data])
    kind = "array" if isinstance(exact, ss.sparray) else "matrix"
    with passive():
        numbers = np.arange(1.0, len(places) + 1)
        found = getattr(ss, f"coo_{kind}")((numbers, coords_of(places, exact.shape)), shape=exact.shape)
        found = found.tobsr(exact.blocksize) if exact.format == "bsr" else found.asformat(exact.format)
    return _picked(name, tape, [new], None, found)


def coalesced(a: Any) -> Any:
    """A matrix with the entries at the same position added up."""
    tape = current()
    if tape is None or a.format == "dia" or not a.data.size:
        return a
    with passive():
        exact = copied(a)
        exact.sum_duplicates()
    return matrix_of("scipy.sparse: sum_duplicates", tape, exact, *entries(a))


# --------------------------------------------------------------------------------------------------------------- moved


class Numbers:
    """Arrays and matrices in which complex numbers replace the values: the index of the element, plus 1j."""

    def __init__(self) -> None:
        self.sources: list = []
        self.count = 0

    def of(self, x: Any) -> Any:
        """Indices for all elements in lists of matrices, arrays and numbers."""
        if isinstance(x, np.ndarray) and x.dtype == object:
            x = x.tolist()
        if x is None or isinstance(x, str):
            return x
        if isinstance(x, (list, tuple)):
            return [self.of(item) for item in x]
        if ss.issparse(x):
            if x.format not in INDICES:
                with passive():
                    x = x.tocoo()
            return with_data(x, self._new(x.data))
        return self._new(np.asanyarray(x))

    def _new(self, data: Any) -> Any:
        self.sources.append(data)
        numbers = np.arange(self.count + 1.0, self.count + data.size + 1) + 1j
        self.count += data.size
        return numbers.reshape(data.shape)[()]


def numbers_of(x: Any) -> np.ndarray:
    """The indices in a function's result."""
    return np.asarray(x.data if ss.issparse(x) else x)


def are_sums(places: Any) -> bool:
    """Return whether a function has added the indices of several elements."""
    return bool((numbers_of(places).imag > 1.5).any())


def _picked(name: str, tape: Tape, sources: list, exact: Any, places: Any) -> Any:
    """A function's result, with the elements of its arguments instead of their indices."""
    import ampi.numpy as anp

    flat = [x.reshape(-1) for x in sources]
    data = tracked(flat[0]) if len(flat) == 1 else anp.concatenate(flat)
    picks = indices_of(numbers_of(places))
    result = data[np.maximum(picks, 0)] if data.size else anp.zeros(picks.shape, data.dtype)
    if (picks < 0).any():
        result = np.where(picks >= 0, result, np.zeros((), result.dtype))
    if exact is None:
        return holding(places, result)
    if not ss.issparse(exact):
        return with_values(name, tape, result, exact, sources)
    if not _has_places(exact, places):  # SciPy left out zeros, which have derivatives
        return holding(places, result.astype(exact.dtype, copy=False))
    return holding(exact, with_values(name, tape, result, exact.data, sources))


def _has_places(a: Any, b: Any) -> bool:
    """Return whether two matrices of one format have their entries at the same positions."""
    arrays = [list(parts(x))[1:] for x in (a, b)]
    return a.data.shape == b.data.shape and all(np.array_equal(x, y) for x, y in zip(*arrays))


def each(function: Callable, x: Any) -> Any:
    """Apply a function to the matrices and arrays in lists."""
    if isinstance(x, (list, tuple)):
        return [each(function, item) for item in x]
    if isinstance(x, np.ndarray) and x.dtype == object:
        return each(function, x.tolist())
    return function(x)


def _with_one_entry_each(x: Any) -> Any:
    return coalesced(x) if ss.issparse(x) and x.format in INDICES else x


def moving(*names: str, in_place: bool = False) -> Callable:
    """The handler of a function that moves the elements of its arguments, or of such a method of a matrix."""

    def handle(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
        if not any_active(tape, arguments, keywords):
            return found.original(*arguments, **keywords)
        bound = found.signature.bind(*arguments, **keywords)
        given = dict(bound.arguments)
        own = [name for name in names if name in given]
        if any_active(tape, [x for name, x in given.items() if name not in own]):
            raise refusal(name_of(found, arguments), " with respect to its other arguments")
        bound.arguments.pop("out", None)
        for attempt in (False, True):
            numbers = Numbers()
            with passive(), warnings.catch_warnings():
                bound.arguments.update({name: each(copied, given[name]) for name in own})
                exact = found.original(*bound.args, **bound.kwargs)
                if in_place:
                    exact = bound.arguments["self"]
                if ss.issparse(exact) and exact.format not in INDICES:
                    raise refusal(name_of(found, arguments), f" that gives the format {exact.format}", INSTEAD)
                warnings.simplefilter("ignore")
                bound.arguments.update({name: numbers.of(given[name]) for name in own})
                kind = bound.arguments.pop("dtype", None)
                places = found.original(*bound.args, **bound.kwargs)
                if kind is not None:
                    bound.arguments["dtype"] = kind
                if in_place:
                    places = bound.arguments["self"]
            if not are_sums(places):
                break
            if found.original.__name__ in STAYING and not in_place:
                make = matrix_of if ss.issparse(exact) else dense_of
                return into(make(found.name, tape, exact, *entries(given["self"])), given.get("out"), found.name)
            if attempt:
                raise refusal(found.name, " for entries that are to be summed")
            given = {name: each(_with_one_entry_each, x) if name in own else x for name, x in given.items()}
        new = _picked(found.name, tape, numbers.sources, exact, places)
        if in_place:
            vars(arguments[0]).update(vars(new))
            return None
        return into(new, given.get("out"), found.name)

    return handle


STAYING = set("tocsr tocsc tocoo todia tobsr asformat toarray todense".split())
"""Methods that do not change the positions of entries."""


def into(new: Any, out: Any, name: str) -> Any:
    """Return a result, or the output array after writing it there."""
    if out is None:
        return new
    assign(out, new, name)
    return out


def placed(self: Any, name: str, tape: Tape, run: Callable, source: Any) -> None:
    """Set a matrix to the entries of another one or of a dense array, as ``run(matrix, source, exact)`` does."""
    numbers = Numbers()
    with passive():
        places = copy.copy(self)
        run(self, copied(source), True)
        run(places, numbers.of(source), False)
    if are_sums(places):
        new = matrix_of(name, tape, self, *entries(source))
    else:
        new = _picked(name, tape, numbers.sources, self, places)
    vars(self).update(vars(new))


def as_array(x: Any) -> Any:
    """Convert lists with active numbers, and anything that is no sparse matrix, to an `ampi.ndarray`."""
    if ss.issparse(x):
        return x
    x = from_nested(x)
    return as_plain(tracked(np.asarray(x) if isinstance(x, np.matrix) else np.asanyarray(x)))
