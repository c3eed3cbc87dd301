"""`scipy.sparse`: products with active arrays, and matrices with active data.

A matrix is its arrays: data and indices.  What only moves data (changes of format, transposes, elements) is found by
asking the method itself, with numbers in the place of the data that say where each came from.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as ss

from ..activity import plain_of
from ..libraries import Hook, hook
from ..memory import TrackedArray, tracked
from ..nested import from_nested
from ..rules.definitions import any_active, define, define_class, exactly, mapped, parts, refusal
from ..tape import Tape, passive

_INDICES = {
    "csr": ("indices", "indptr"),
    "csc": ("indices", "indptr"),
    "bsr": ("indices", "indptr"),
    "coo": ("coords",),
    "dia": ("offsets",),
}


def take_apart(a: Any) -> tuple:
    """The arrays of a sparse matrix, its data first, and the matrix."""
    if "data" not in vars(a):
        return (), a  # which is being made
    return (a.data, *[getattr(a, name) for name in _INDICES[a.format]]), a


def put_together(arrays: tuple, a: Any) -> Any:
    """The same matrix with other arrays."""
    made = copy.copy(a)
    for name, x in zip(("data", *_INDICES[a.format]), arrays):
        setattr(made, name, x)
    return made


for _format in _INDICES:
    for _kind in ("array", "matrix"):
        _cls = getattr(ss, f"{_format}_{_kind}")
        define_class(_cls, take_apart, put_together)


def numbered(a: Any) -> Any:
    """The matrix with the numbers of its data's elements (from 1) in their place."""
    numbers = np.arange(1.0, a.data.size + 1).reshape(a.data.shape)
    return put_together((numbers, *take_apart(mapped(plain_of, a))[0][1:]), a)


def sampled(a: Any, left: Any, right: Any) -> tuple:
    """The adjoints of a matrix's arrays where that of the matrix is left @ rightᴴ."""
    places = numbered(a).tocoo()
    row, column = places.coords
    left, right = (np.reshape(x, (len(x), -1)) for x in (left, right))
    bar = np.zeros(a.data.size, np.result_type(left, right))
    bar[places.data.astype(np.intp) - 1] = (left[row] * np.conj(right[column])).sum(1)
    return (bar.reshape(a.data.shape), *[None] * (len(list(parts(a))) - 1))


def h(a: Any) -> Any:
    """The conjugate transpose."""
    return a.conj().T


def refuse_sparse(name: str, x: Any) -> None:
    """Raise if an operand is a sparse matrix."""
    if ss.issparse(x):
        raise refusal(f"scipy.sparse: {name}", " of two sparse matrices")


# ------------------------------------------------------------------------------------------------------------ products


def _product_by_other(g: Any, self: Any, shape: Any) -> Any:
    return np.reshape(h(self) @ g, shape)


def _product_by_self(g: Any, self: Any, other: Any) -> Any:
    if self.ndim != 2:
        raise refusal("scipy.sparse: a product", " of a matrix with active data that is not two-dimensional")
    return sampled(self, g, other)


def _matmul(adjoint: Callable, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    self, other = arguments
    if isinstance(other, (list, tuple)):
        other = tracked(np.asanyarray(from_nested(other)))
    if any_active(tape, self, other):
        if ss.issparse(other):
            raise refusal("scipy.sparse: @", " of two sparse matrices")
        if np.ndim(other) == 0:
            return self._mul_scalar(other)
    return adjoint(found, tape, (self, other), keywords)


_dispatch = ss._base._spbase._matmul_dispatch
define(_dispatch, adjoint={"self": _product_by_self, "other": _product_by_other})
_hook = hook(_dispatch, None)
_hook.name = "scipy.sparse: @"
_hook.handle = functools.partial(_matmul, _hook.handle)


def through(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A method that is made of others which have rules: what it gives of active arrays is active."""
    result = found.original(*arguments, **keywords)
    if any_active(tape, arguments, keywords) and result is not NotImplemented and not any_active(tape, result):
        raise refusal(found.name, "")
    return result


def _scaled(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A product with a number, which may be active as well as the data."""
    self, other = arguments
    if not any_active(tape, self, other):
        return found.original(self, other)
    if self.format not in _INDICES:
        raise refusal("scipy.sparse: *", f" for the format {self.format}")
    data = np.multiply(self.data, tracked(np.asanyarray(other)).reshape(()))
    return put_together((data, *[copy.copy(x) for x in take_apart(self)[0][1:]]), self)


def _multiplied(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A product of elements: with a number."""
    if any_active(tape, arguments, keywords):
        if np.ndim(arguments[1]) or ss.issparse(arguments[1]):
            raise refusal(found.name, " with an array")
        return arguments[0]._mul_scalar(arguments[1])
    return found.original(*arguments, **keywords)


# --------------------------------------------------------------------------------------------------- moving data about


def _distinct(a: Any) -> bool:
    """Whether no element stands in the data twice, to be summed when its format changes."""
    if a.format in ("dia", "bsr") or not a.data.size:
        return a.format == "dia" or _distinct_blocks(a)
    places = numbered(a).tocoo().coords
    return len(np.unique(np.ravel_multi_index(places, a.shape))) == a.data.size


def _distinct_blocks(a: Any) -> bool:
    return a.format != "bsr" or a.has_canonical_format or not a.data.size


def _moved(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    self, *others = arguments
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    if any_active(tape, others, keywords) or not _distinct(self):
        raise refusal(f"scipy.sparse: {found.__name__}", " for active data with entries that are to be summed")
    with passive():
        exact = found.original(mapped(_copy, self), *others, **keywords)
        places = found.original(numbered(self), *others, **keywords)
    return _with_places(found.name, tape, self.data, exact, places)


def _copy(x: Any) -> Any:
    return np.array(plain_of(x)) if isinstance(x, TrackedArray) else x


def _with_places(name: str, tape: Tape, data: Any, exact: Any, places: Any) -> Any:
    """What a method gave, with the elements of active data where the numbers of these elements are."""
    wanted = exact.data if ss.issparse(exact) else exact
    numbers = np.asarray(places.data if ss.issparse(places) else places)
    keys = np.rint(numbers.real).astype(np.intp)
    picked = data.reshape(-1)[np.maximum(keys - 1, 0)]
    result = np.where(keys > 0, picked, np.zeros((), picked.dtype))
    if not isinstance(exact, np.ndarray) and not ss.issparse(exact):
        return exactly(name, tape, result, exact, [data])
    if ss.issparse(exact) and exact.data.shape != result.shape:  # without the zeros, which have derivatives
        return put_together((result, *take_apart(places)[0][1:]), places)
    made = exactly(name, tape, result, np.asarray(wanted), [data])
    return put_together((made, *take_apart(exact)[0][1:]), exact) if ss.issparse(exact) else made


def _made(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A matrix of active data with indices, of an active array, or of another matrix."""
    self, *given = arguments
    names = dict(zip(("arg1", "shape", "dtype", "copy"), given))
    named = {**names, **keywords}
    if not any_active(tape, named):
        return found.original(*arguments, **keywords)
    source = named.pop("arg1")
    if self.format not in _INDICES:
        raise refusal(f"scipy.sparse.{self.format}_array", " for this format")
    if type(source) is list:
        source = tracked(np.asanyarray(from_nested(source)))
    data = source.data if ss.issparse(source) else source[0] if isinstance(source, tuple) else source
    data = tracked(np.asanyarray(from_nested(data)))
    if isinstance(source, tuple) and (len(source) == 3 or self.format in ("dia", "coo")):
        with passive():
            found.original(self, (np.array(plain_of(data)), *source[1:]), **{**named, "copy": True})
        if self.data.shape != data.shape:
            raise refusal(f"scipy.sparse.{self.format}_array", " for arrays of these shapes")
        self.data = data.astype(self.data.dtype) if named.get("copy") else data.astype(self.data.dtype, copy=False)
        return None
    if isinstance(source, tuple):
        source = ss.coo_array((data, source[1]), shape=named.get("shape"))
    if ss.issparse(source):
        if not _distinct(source):
            return _summed(found, self, source, named)
        numbers = numbered(source)
        exact = mapped(_copy, source)
    else:
        exact = np.array(plain_of(data))
        if not exact.all():
            raise refusal(
                f"scipy.sparse.{self.format}_array",
                " of dense arrays with zeros, which it leaves out,",
                "give it the elements and their places: (data, (row, column))",
            )
        numbers = np.arange(1.0, exact.size + 1).reshape(exact.shape)
    with passive():
        places = copy.copy(self)
        found.original(self, exact, **named)
        found.original(places, numbers, **{name: x for name, x in named.items() if name != "dtype"})
    made = _with_places(found.name, tape, data, self, places)
    self.data = made.data
    return None


def _summed(found: Hook, self: Any, source: Any, named: dict) -> None:
    """A compressed matrix of a list of elements with places that occur several times."""
    if self.format not in ("csr", "csc"):
        raise refusal(f"scipy.sparse.{self.format}_array", " for active data with entries that are to be summed")
    import ampi.numpy as anp

    with passive():
        found.original(self, mapped(_copy, source), **named)
        self.sum_duplicates()
        own = numbered(self).tocoo()
        given = numbered(source).tocoo()
    keys = np.ravel_multi_index(own.coords, self.shape)
    order = np.argsort(keys)
    place = order[np.searchsorted(keys[order], np.ravel_multi_index(given.coords, self.shape))]
    data = anp.zeros(self.data.size, self.data.dtype)
    np.add.at(data, own.data[place].astype(np.intp) - 1, source.data.reshape(-1)[given.data.astype(np.intp) - 1])
    self.data = data


_MOVING = (
    "tocsr tocsc tocoo todia tobsr asformat transpose toarray todense diagonal __getitem__ copy reshape getcol getrow"
).split()
_THROUGH = "__matmul__ __rmatmul__ __mul__ __rmul__ dot _rmatmul_dispatch __truediv__ __neg__ T astype conj".split()

for _cls in {
    base
    for _format in (*_INDICES, "dok", "lil")
    for _kind in ("array", "matrix")
    for base in getattr(ss, f"{_format}_{_kind}").__mro__
    if base.__module__.startswith("scipy.sparse")
}:
    for _name, _member in list(vars(_cls).items()):
        if not callable(_member) or isinstance(_member, type):
            continue
        if _name in _MOVING:
            hook(_member, _moved, f"scipy.sparse.{_cls.__name__}.{_name}")
        elif _name in _THROUGH:
            hook(_member, through, f"scipy.sparse.{_cls.__name__}.{_name}")
        elif _name == "multiply":
            hook(_member, _multiplied, f"scipy.sparse.{_cls.__name__}.multiply")
        elif _name == "_mul_scalar":
            hook(_member, _scaled, f"scipy.sparse.{_cls.__name__}.*")
        elif _name == "__init__" and hasattr(_cls, "format"):
            hook(_member, _made, f"scipy.sparse.{_cls.__name__}")
