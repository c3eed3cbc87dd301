"""`scipy.sparse`: arithmetic with the entries of one or two matrices.

Each operation is defined by its terms: a product of two matrices is a sum over pairs of entries, a sum has the entries
of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as ss

from ...interception.hooks import Hook
from ...memory.storages import TrackedArray, tracked
from ...rules.definitions import any_active, refusal
from ...tape import Tape, passive
from .sparse_entries import (
    INDICES,
    added,
    as_array,
    coalesced,
    coords_of,
    copied,
    dense_of,
    detach,
    entries,
    indices_of,
    keys_of,
    matrix_of,
    name_of,
    numbered,
    summed,
    with_data,
    with_values,
)


def _exactly(found: Hook, *arguments: Any, **keywords: Any) -> Any:
    """SciPy's own result."""
    with passive():
        return found.original(*map(copied, arguments), **keywords)


def _given(found: Hook, tape: Tape, exact: Any, keys: np.ndarray, data: Any) -> Any:
    make = matrix_of if ss.issparse(exact) else dense_of
    return make(found.name, tape, exact, keys, data)


def _joined(*pairs: Any) -> tuple[np.ndarray, Any]:
    import ampi.numpy as anp

    return np.concatenate([keys for keys, _ in pairs]), anp.concatenate([data for _, data in pairs])


# ------------------------------------------------------------------------------------------------------------- numbers


def scaled(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A product with a number; the number and the data may be active."""
    self, other = arguments[:2]
    if not any_active(tape, self, other):
        return found.original(*arguments, **keywords)
    if self.format not in INDICES:
        self = self.tocsr()
    return with_data(self, np.multiply(self.data, as_array(other).reshape(())))


def divided(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A / k, and A / array."""
    self, other = arguments[:2]
    if not any_active(tape, self, other):
        return found.original(*arguments, **keywords)
    if ss.issparse(other):
        raise refusal(found.name, " by a sparse matrix, which gives nan between its entries")
    if isinstance(other, (list, tuple)) and _exactly(found, self, other) is NotImplemented:
        return NotImplemented  # before SciPy 1.16
    factor = np.divide(1, as_array(other))
    return self.multiply(factor) if factor.ndim else self._mul_scalar(factor)


def scaled_in_place(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """``A *= k`` and ``A /= k``."""
    self, other = arguments[:2]
    if not any_active(tape, self, other) or ss.issparse(other) or np.ndim(other):
        return found.original(*arguments, **keywords)
    if self.format not in INDICES:
        return NotImplemented  # a new matrix
    if isinstance(self.data, TrackedArray):
        return found.original(self, other)
    exact = _exactly(found, self, other)  # raises an error for a dtype that does not fit
    k = as_array(other)
    data = self.data * (1.0 / k if found.name.endswith("/=") else k)
    self.data = with_values(found.name, tape, data.astype(exact.dtype, copy=False), exact.data, [self.data])
    return self


def of_number_or_matrix(method: str, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Compute ``A + B`` or ``A - B``, which SciPy delegates to other methods, except for numbers."""
    self, other = arguments
    if not any_active(tape, self, other):
        return found.original(self, other)
    if np.ndim(other) == 0 and not ss.issparse(other) and any_active(tape, other) and other == 0:
        raise refusal(found.name, " with a number", "add it to an array (A.toarray() + k)")
    if self.format not in INDICES:
        return getattr(self.tocsr(), method)(other)
    return found.original(self, other)


# ---------------------------------------------------------------------------------------------------------------- sums


def sum_of_two(sign: int, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A + B and A - B."""
    self, other = arguments[:2]
    if not any_active(tape, self, other):
        return found.original(*arguments, **keywords)
    keys, data = entries(other)
    if keywords.get("sub") or any(arguments[2:]):  # of two diagonal-format matrices
        sign = -1
    exact = _exactly(found, *arguments, **keywords)
    return _given(found, tape, exact, *_joined(entries(self), (keys, sign * data)))


def sum_with_dense(sign: int, other_sign: int, found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """The sum with a dense array."""
    self, other = arguments[:2]
    if not any_active(tape, self, other):
        return found.original(*arguments, **keywords)
    exact = _exactly(found, self, other)
    other = as_array(other)
    keys, data = entries(self)
    new = other_sign * other + sign * added(data, keys, other.size).reshape(other.shape)
    return with_values(found.name, tape, new, exact, [data, other])


def total(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A.sum(axis)."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    given = found.signature.bind(*arguments, **keywords)
    given.apply_defaults()
    self, axis = given.arguments["self"], given.arguments["axis"]
    if given.arguments.get("out") is not None:
        raise refusal(
            name_of(found, arguments), " that writes into an array (out=)", "assign its result: array[...] = A.sum(...)"
        )
    exact = _exactly(found, *given.args, **given.kwargs)
    keys, data = entries(self)
    if np.ndim(exact) == 0:
        return with_values(found.name, tape, data.sum(), exact, [data])
    axes = {a % self.ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    left = [k for k in range(self.ndim) if k not in axes]
    coords = coords_of(keys, self.shape)
    keys = keys_of(tuple(coords[k] for k in left), tuple(self.shape[k] for k in left))
    return dense_of(found.name, tape, exact, keys, data)


def without_zeros(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A.eliminate_zeros(): active entries stay, since their derivatives may not be zero."""
    if any_active(tape, arguments):
        return None
    detach(arguments[0])
    return found.original(*arguments, **keywords)


# ------------------------------------------------------------------------------------------------------------ products


def product(found: Hook, tape: Tape, self: Any, other: Any) -> Any:
    """The product of two sparse matrices: the sum over pairs of an entry in column k with one in row k."""
    if max(self.ndim, other.ndim) > 2:
        raise refusal(found.name, " of sparse arrays of more than two dimensions")
    exact = _exactly(found, self, other)
    inner = self.shape[-1]
    width = 1 if other.ndim == 1 else other.shape[1]
    keys, a = entries(self)
    row, k = keys // max(inner, 1), keys % max(inner, 1)
    keys, b = entries(other)
    k_b, column = keys // max(width, 1), keys % max(width, 1)
    order = np.argsort(k_b, kind="stable")
    begin = np.searchsorted(k_b[order], np.arange(inner + 1))
    counts = begin[k + 1] - begin[k]
    left = np.repeat(np.arange(len(k)), counts)
    right = order[np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts - begin[k], counts)]
    return _given(found, tape, exact, row[left] * width + column[right], a[left] * b[right])


def _spread(a: Any, shape: tuple) -> tuple[np.ndarray, Any]:
    """The entries of a matrix after broadcasting to a shape."""
    keys, data = entries(a)
    own = (1,) * (len(shape) - a.ndim) + a.shape
    if own == shape:
        return keys, data
    coords, picks = list(coords_of(keys, own)), np.arange(len(keys))
    for axis, (n, wide) in enumerate(zip(own, shape)):
        if n != wide:
            count = len(picks)
            coords, picks = [np.repeat(c, wide) for c in coords], np.repeat(picks, wide)
            coords[axis] = np.tile(np.arange(wide), count)
    return keys_of(tuple(coords), shape), data[picks]


def multiplied(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A.multiply(B): the elementwise product with a number, an array or a matrix."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    self, other = found.signature.bind(*arguments, **keywords).args
    other = as_array(other)
    if not ss.issparse(other) and np.ndim(other) == 0:
        return self._mul_scalar(other)
    exact = _exactly(found, self, other)
    keys, data = _spread(self, exact.shape)
    if ss.issparse(other):
        (keys, data), (others, values) = summed(keys, data), summed(*_spread(other, exact.shape))
        keys, left, right = np.intersect1d(keys, others, assume_unique=True, return_indices=True)
        data = data[left] * values[right]
    else:
        coords = coords_of(keys, exact.shape)[len(exact.shape) - other.ndim :]
        data = data * other[tuple(np.where(n == 1, 0, c) for c, n in zip(coords, other.shape))]
    return _given(found, tape, exact, keys, data)


def extreme(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """A.maximum(B) and A.minimum(B) for a matrix, an array, or a number that keeps zeros."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    import ampi.numpy as anp

    function = anp.maximum if found.name.endswith("maximum") else anp.minimum
    self, other = arguments
    other = as_array(other)
    if not ss.issparse(other) and np.ndim(other):
        return function(self.todense(), other)
    if not ss.issparse(other) and function(0, other):
        raise refusal(name_of(found, arguments), " that gives a dense matrix", "use numpy.maximum of A.toarray()")
    exact = _exactly(found, self, other)
    keys, data = summed(*entries(self))
    if ss.issparse(other):
        own, (others, other) = keys, summed(*entries(other))
        keys = np.union1d(own, others)
        data = added(data, np.searchsorted(keys, own), len(keys))
        other = added(other, np.searchsorted(keys, others), len(keys))
    return _given(found, tape, exact, keys, function(data, other))


def kron(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """The Kronecker product: all pairs of an entry of A and one of B."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    given = found.signature.bind(*arguments, **keywords).arguments
    a, b = (x if ss.issparse(x) else ss.coo_array(as_array(x)) for x in (given["A"], given["B"]))
    if max(a.ndim, b.ndim) > 2:
        raise refusal(found.name, " of sparse arrays of more than two dimensions")
    exact = _exactly(found, *[given["A"], given["B"]], **({"format": given["format"]} if "format" in given else {}))
    n, m = b.shape if b.ndim == 2 else (1, *b.shape)
    (rows_a, columns_a, a), (rows_b, columns_b, b) = (_rows_and_columns(x) for x in (a, b))
    keys = keys_of(
        ((rows_a[:, np.newaxis] * n + rows_b).reshape(-1), (columns_a[:, np.newaxis] * m + columns_b).reshape(-1)),
        exact.shape,
    )
    return _given(found, tape, exact, keys, (a[:, np.newaxis] * b).reshape(-1))


def _rows_and_columns(a: Any) -> tuple:
    keys, data = entries(a)
    return (*divmod(keys, max(a.shape[-1], 1)), data)


def find(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Rows, columns and values of the entries, in SciPy's order, zero values included."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    (a,) = found.signature.bind(*arguments, **keywords).args
    a = coalesced(a if ss.issparse(a) else ss.coo_array(as_array(a)))
    with passive():
        row, column, numbers = found.original(numbered(a))
    values = tracked(a.data).reshape(-1)[indices_of(numbers)]
    return row, column, values
