"""`scipy.sparse`: matrices with active entries, and their products with active arrays.

A matrix is represented by its arrays: data and indices. This module has constructors, products with arrays, and methods
that call other methods; `sparse_entries` explains the approach, `sparse_arithmetic` has operations on two matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as ss

from ...arrays.activity import is_inexact, plain_of
from ...arrays.known_classes import define_class, mapped, parts
from ...interception.hooks import Hook, hook
from ...memory.storages import TrackedArray, tracked
from ...rules.definitions import any_active, define, refusal
from ...tape import Tape, passive
from . import sparse_arithmetic as arithmetic
from .dense_matrices import Matrix, as_matrix
from .sparse_entries import (
    INDICES,
    INSTEAD,
    added,
    any_entries,
    as_array,
    detach,
    moving,
    name_of,
    placed,
    places_of,
)
from .tracked_arrays import as_tracked


def sampled(a: Any, left: Any, right: Any) -> tuple:
    """The adjoints of a matrix's arrays if the matrix's adjoint is left @ rightᴴ."""
    (row, column), picks = places_of(a)
    if np.ndim(left) == 1 and np.ndim(right) == 1:
        bar = left[row] * np.conj(right[column])
    else:
        left, right = (np.reshape(x, (len(x), -1)) for x in (left, right))
        bar = (left[row] * np.conj(right[column])).sum(1)
    if picks is not None:
        bar = added(bar, picks, a.data.size)
    return (bar.reshape(a.data.shape), *[None] * (len(list(parts(a))) - 1))


def h(a: Any) -> Any:
    """The conjugate transpose."""
    return a.conj().T


# ------------------------------------------------------------------------------------------------------------ products


def _product_by_other(g: Any, self: Any, shape: Any) -> Any:
    return np.reshape(h(self) @ np.reshape(g, (*self.shape[:-1], *shape[1:])), shape)


def _product_by_self(g: Any, self: Any, other: Any) -> Any:
    if self.ndim != 2:
        raise refusal("scipy.sparse: a product", " of a matrix with active data that is not two-dimensional")
    return sampled(self, np.reshape(g, (self.shape[0], *np.shape(other)[1:])), other)  # SciPy's result may be a number


def _matmul(adjoint: Callable, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    self, other = arguments
    if isinstance(other, (list, tuple)):
        other = as_tracked(other)
    if any_active(tape, self, other):
        if ss.issparse(other):
            return arithmetic.product(found, tape, self, other)
        if np.ndim(other) == 0:
            return self._mul_scalar(other)
        if isinstance(other, (np.matrix, Matrix)):
            return as_matrix(adjoint(found, tape, (self, as_array(other)), keywords))
    return adjoint(found, tape, (self, other), keywords)


def define_twice(function: Callable, adjoint: dict, **options: Any) -> Hook:
    """`define`, with adjoints that have derivatives themselves."""
    define(function, adjoint=adjoint, **options)
    found = hook(function, None)
    found.handle.second_order = "differentiated"  # type: ignore[union-attr]
    return found


_dispatch = ss._base._spbase._matmul_dispatch
define_twice(_dispatch, {"self": _product_by_self, "other": _product_by_other})
for _dispatch in {ss._base._spbase._matmul_dispatch, ss._coo._coo_base._matmul_dispatch}:
    _hook = hook(_dispatch, None)
    _hook.name = "scipy.sparse: @"
    _hook.handle = functools.partial(_matmul, hook(ss._base._spbase._matmul_dispatch, None).handle)


def _refuse_format(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Refuse a method that returns a matrix in a format that stores Python's numbers."""
    if any_active(tape, arguments, keywords):
        raise refusal(name_of(found, arguments), " for active entries", INSTEAD)
    return found.original(*arguments, **keywords)


def through(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Call a method composed of others with rules: its results for active arrays must be active."""
    result = found.original(*arguments, **keywords)
    if any_entries(tape, arguments, keywords) and result is not NotImplemented and not any_active(tape, result):
        if any(np.size(x) for x in parts(result) if _is_inexact(x)):
            raise refusal(name_of(found, arguments), "")
    return result


def _is_inexact(x: Any) -> bool:
    return isinstance(x, (float, complex)) or (isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind in "fc")


def unmodified(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Call a method composed of others, whose derivative may be zero, or which yields its results."""
    return found.original(*arguments, **keywords)


# ------------------------------------------------------------------------------------------------ constructing matrices


def first(x: Any) -> Any:
    """The first of several arguments, or the argument."""
    return x[0] if isinstance(x, tuple) and x else x


def keep_track(a: Any) -> None:
    """Make the data of a matrix an `ampi.ndarray`, so that active values can be assigned to it."""
    if a.format in INDICES and is_inexact(vars(a).get("data")):
        a.data = tracked(a.data)


def _copy(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """`copy` of a matrix; its data is tracked."""
    if any_active(tape, arguments):
        return _move(found, tape, arguments, keywords)
    result = found.original(*arguments, **keywords)
    keep_track(result)
    return result


def _construct(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Construct a matrix from active data and indices, an active array, or another matrix."""
    self, *given = arguments
    names = dict(zip(("arg1", "shape", "dtype", "copy"), given))
    named = {**names, **keywords}
    if not any_active(tape, named):
        found.original(*arguments, **keywords)
        source = named.get("arg1")
        if isinstance(getattr(source, "data", None) if ss.issparse(source) else first(source), TrackedArray):
            keep_track(self)
        return None
    source = named.pop("arg1")
    name = f"scipy.sparse.{type(self).__name__}"
    if self.format not in INDICES:
        raise refusal(name, " for active entries", INSTEAD)
    if type(source) is list:
        source = as_tracked(source)
    data = source[0] if isinstance(source, tuple) else source
    if not ss.issparse(data):
        data = as_tracked(data)
    if isinstance(source, tuple) and (len(source) == 3 or self.format in ("dia", "coo")):
        with passive():
            found.original(self, (np.array(plain_of(data)), *source[1:]), **{**named, "copy": True})
        if self.data.size != data.size:
            raise refusal(name, " for arrays of these shapes")
        data = data.reshape(self.data.shape)
        self.data = data.astype(self.data.dtype) if named.get("copy") else data.astype(self.data.dtype, copy=False)
        return None
    if isinstance(source, tuple):
        source = self._coo_container((data, source[1]), shape=named.get("shape"))
    kept = {name: x for name, x in named.items() if name != "dtype"}

    def run(matrix: Any, source: Any, exact: bool) -> None:
        found.original(matrix, source, **(named if exact else kept))

    return placed(self, name, tape, run, source if ss.issparse(source) else data)


# --------------------------------------------------------------------------------------------- the methods of matrices

_MOVING = (
    "tocsr tocsc tocoo todia tobsr asformat transpose toarray todense diagonal __getitem__ reshape getcol getrow "
    "sorted_indices _broadcast_to"
).split()
_IN_PLACE = "sum_duplicates sort_indices prune resize setdiag __setitem__".split()
_THROUGH = (
    "__matmul__ __rmatmul__ __mul__ __rmul__ dot _rmatmul_dispatch __neg__ T astype conj conjugate getH "
    "asfptype __abs__ power mean trace max min nanmax nanmin sqrt sin tan arcsin arctan sinh tanh arcsinh "
    "arctanh expm1 log1p deg2rad rad2deg"
).split()
_UNMODIFIED = "__pow__ set_shape sign rint floor ceil trunc __round__ __iter__ __iadd__ __isub__".split()
_OWN: dict[str, tuple[Callable, str]] = {
    "__init__": (_construct, ""),
    "copy": (_copy, ".copy"),
    "multiply": (arithmetic.multiplied, ".multiply"),
    "maximum": (arithmetic.extreme, ".maximum"),
    "minimum": (arithmetic.extreme, ".minimum"),
    "sum": (arithmetic.total, ".sum"),
    "tolil": (_refuse_format, ".tolil"),
    "todok": (_refuse_format, ".todok"),
    "eliminate_zeros": (arithmetic.without_zeros, ".eliminate_zeros"),
    "_mul_scalar": (arithmetic.scaled, ": *"),
    "__truediv__": (arithmetic.divided, ": /"),
    "__imul__": (arithmetic.scaled_in_place, ": *="),
    "__itruediv__": (arithmetic.scaled_in_place, ": /="),
    "__add__": (functools.partial(arithmetic.of_number_or_matrix, "__add__"), ": +"),
    "__radd__": (functools.partial(arithmetic.of_number_or_matrix, "__radd__"), ": +"),
    "__sub__": (functools.partial(arithmetic.of_number_or_matrix, "__sub__"), ": -"),
    "__rsub__": (functools.partial(arithmetic.of_number_or_matrix, "__rsub__"), ": -"),
    "_add_sparse": (functools.partial(arithmetic.sum_of_two, 1), ": +"),
    "_sub_sparse": (functools.partial(arithmetic.sum_of_two, -1), ": -"),
    "_add_dense": (functools.partial(arithmetic.sum_with_dense, 1, 1), ": +"),
    "_sub_dense": (functools.partial(arithmetic.sum_with_dense, 1, -1), ": -"),
    "_rsub_dense": (functools.partial(arithmetic.sum_with_dense, -1, 1), ": -"),
}
_move = moving("self")
_move_in_place = moving("self", "x", "value", "values", in_place=True)


def _changed(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Call a method that moves elements of its matrix in place, and may set some."""
    if any_active(tape, arguments, keywords):
        if arguments[0].format not in INDICES:
            raise refusal(name_of(found, arguments), " for active entries", INSTEAD)
        return _move_in_place(found, tape, arguments, keywords)
    detach(arguments[0])
    return found.original(*arguments, **keywords)


def _handler(cls: type, name: str) -> tuple[Callable, str] | None:
    if name == "__init__" and not hasattr(cls, "format"):
        return None
    if name in _OWN:
        return _OWN[name]
    for names, handle in ((_MOVING, _move), (_IN_PLACE, _changed), (_THROUGH, through), (_UNMODIFIED, unmodified)):
        if name in names:
            return handle, f".{name}"
    return None


for _kind in ("array", "matrix"):
    define_class(getattr(ss, f"dok_{_kind}"), lambda a: ((), a), lambda _, a: a)  # dictionaries of plain numbers

for _cls in {
    base
    for _format in (*INDICES, "dok", "lil")
    for _kind in ("array", "matrix")
    for base in getattr(ss, f"{_format}_{_kind}").__mro__
    if base.__module__.startswith("scipy.sparse")
}:
    for _name, _member in list(vars(_cls).items()):
        _found = _handler(_cls, _name) if callable(_member) and not isinstance(_member, type) else None
        if _found is not None:
            hook(_member, _found[0], f"scipy.sparse{'' if ':' in _found[1] else '.' + _cls.__name__}{_found[1]}")


# ----------------------------------------------------------------------------------------------------------- functions

for _name, _parameters in {
    "diags": ("diagonals",),
    "diags_array": ("diagonals",),
    "spdiags": ("data",),
    "bmat": ("blocks",),
    "block_array": ("blocks",),
    "hstack": ("blocks",),
    "vstack": ("blocks",),
    "block_diag": ("mats",),
    "triu": ("A",),
    "tril": ("A",),
    "expand_dims": ("A",),
    "permute_dims": ("A",),
    "swapaxes": ("A",),
}.items():
    if hasattr(ss, _name):
        hook(getattr(ss, _name), moving(*_parameters), f"scipy.sparse.{_name}")
hook(ss.kron, arithmetic.kron, "scipy.sparse.kron")
hook(ss.kronsum, through, "scipy.sparse.kronsum")
hook(ss.find, arithmetic.find, "scipy.sparse.find")


def _written(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Call a function that writes a matrix to a file, with plain values."""
    return found.original(*mapped(plain_of, arguments), **keywords)


hook(ss.save_npz, _written, "scipy.sparse.save_npz")
