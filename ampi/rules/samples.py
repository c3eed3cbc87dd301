"""NumPy functions of samples: covariances, histograms, sets of values, and quantiles of the numbers that are not NaN.

Counts of samples are constants; the edges of bins follow the samples' least and greatest value, and weights count.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..arrays.exact import exactly
from ..arrays.indexing import gathered
from ..arrays.nested import as_array as _array
from ..base.structures import mapped
from ..memory.storages import plain, wrapped

# ------------------------------------------------------------------------------------------------------- covariances


@functools.cache
def _single_rows_are_transposed() -> bool:
    """Return whether this NumPy treats a row of numbers as several variables if rowvar=False."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.ndim(np.cov(np.zeros((1, 2)), rowvar=False)) == 2


def _variables(x: Any, rowvar: Any, dtype: Any, first: bool) -> Any:
    """Samples with a row for each variable."""
    x = _array(x)
    single = len(np.atleast_2d(plain(x))) == 1
    rows = (x if x.ndim == 2 else x.reshape(1, -1)).astype(dtype)
    kept = rowvar or (x.ndim < 2 if first and _single_rows_are_transposed() else single)
    return rows if kept else rows.T


@exactly(np.cov)
def _cov(
    m: Any,
    y: Any = None,
    rowvar: Any = True,
    bias: Any = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> Any:
    dtype = dtype or np.result_type(_array(m), np.float64, *([] if y is None else [_array(y)]))
    x = _variables(m, rowvar, dtype, True)
    if y is not None:
        x = np.concatenate([x, _variables(y, rowvar, dtype, False)])
    ddof = (0 if bias else 1) if ddof is None else ddof
    count: Any = x.shape[1]
    if fweights is None and aweights is None:
        centred = x - np.mean(x, axis=1, keepdims=True)
        return (np.matmul(centred, np.conj(centred).T) / (count - ddof)).squeeze()
    a = 1.0 if aweights is None else _array(aweights)
    w = a if fweights is None else _array(fweights) * a
    count = np.sum(w)
    centred = x - (np.sum(x * w, axis=1) / count)[:, None]
    factor = count - ddof * (np.sum(w * a) / count)
    return (np.matmul(centred, np.conj(centred * w).T) / factor).squeeze()


@exactly(np.corrcoef)
def _corrcoef(x: Any, y: Any = None, rowvar: Any = True, *_: Any, dtype: Any = None, **__: Any) -> Any:
    c = np.cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    deviation = np.sqrt(np.diag(c).real)
    return c / deviation[:, None] / deviation[None, :]


# -------------------------------------------------------------------------------------------------------- histograms


def _edges(a: Any, exact: np.ndarray, bins: Any, limits: Any) -> Any:
    """The edges of bins, equal ones between two limits unless they are given."""
    if np.ndim(plain_of(bins)) == 1:
        return _array(bins).copy()
    if limits is not None:
        low, high = limits
    elif np.size(plain_of(a)):
        low, high = np.min(a), np.max(a)
    else:
        low, high = 0.0, 1.0
    low, high = (low - 0.5, high + 0.5) if plain_of(low) == plain_of(high) else (low, high)
    return _array(np.linspace(low, high, len(exact)))


def _bins_of(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each value: a bin includes its lower edge, and the last bin its upper edge as well."""
    places = np.searchsorted(edges, values, side="right") - 1
    places[values == edges[-1]] = len(edges) - 2
    return places


def _counted(places: np.ndarray, inside: np.ndarray, size: int, weights: Any) -> Any:
    if weights is None:
        return wrapped(np.bincount(places[inside], minlength=size))
    weights = _array(weights).ravel()[inside.ravel()]
    places = places[inside]
    if weights.dtype.kind == "c":
        return np.bincount(places, weights.real, size) + 1j * np.bincount(places, weights.imag, size)
    return np.bincount(places, weights, size)


@exactly(np.histogram)
def _histogram(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    a = _array(a)
    _, exact = np.histogram(plain(a), *mapped(plain_of, (bins, range, density, weights)))
    edges = _edges(a, exact, bins, range)
    places = _bins_of(plain(a).ravel(), exact)
    counts = _counted(places, (places >= 0) & (places < len(exact) - 1), len(exact) - 1, weights)
    return (counts / np.diff(edges) / counts.sum() if density else counts), edges


@exactly(np.histogram_bin_edges)
def _histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    exact = np.histogram_bin_edges(*mapped(plain_of, (a, bins, range, weights)))
    return _edges(_array(a), exact, bins, range)


@exactly(np.histogramdd)
def _histogramdd(sample: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    _, exact = np.histogramdd(*mapped(plain_of, (sample, bins, range, density, weights)))
    columns = list(_array(sample).T if isinstance(sample, np.ndarray) else map(_array, sample))
    each = bins if np.iterable(bins) else [bins] * len(columns)
    limits = [None] * len(columns) if range is None else range
    edges = [_edges(*given) for given in zip(columns, exact, each, limits)]
    sizes = [len(e) - 1 for e in exact]
    places = np.stack([_bins_of(plain(x), e) for x, e in zip(columns, exact)])
    inside = np.all((places >= 0) & (places < np.array(sizes)[:, None]), axis=0)
    padded = [size + 2 for size in sizes]  # NumPy's result is a view of an array with a margin
    flat = np.ravel_multi_index(tuple(np.where(inside, places, 0) + 1), padded)
    counts = _counted(flat, inside, int(np.prod(padded)), weights).reshape(padded).astype(float)
    counts = counts[(slice(1, -1),) * len(sizes)]
    if density:
        total = counts.sum()
        for axis, e in enumerate(edges):
            counts = counts / np.diff(e).reshape([-1 if k == axis else 1 for k in np.arange(len(sizes))])
        counts = counts / total
    return counts, type(exact)(edges)


@exactly(np.histogram2d)
def _histogram2d(x: Any, y: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    each = bins if isinstance(bins, (list, tuple)) and len(bins) == 2 else [bins, bins]
    counts, edges = np.histogramdd([x, y], each, range, density, weights)
    return counts, edges[0], edges[1]


# ---------------------------------------------------------------------------------------------------- sets of values


def _of(a: Any, values: Any) -> Any:
    """A new array of values that all occur in another one, recorded by where they occur first."""
    a = _array(a).ravel()
    a = a if a.dtype == values.dtype else a.astype(values.dtype)
    order = np.argsort(plain(a), kind="stable")
    places = order[np.searchsorted(plain(a), values, sorter=order)]
    return gathered(a, (places,), values)


def _unique(ar: Any, *arguments: Any, axis: Any = None, **keywords: Any) -> Any:
    if len(arguments) > 3:
        *arguments, axis = arguments  # type: ignore[assignment]
    found = np.unique(plain_of(ar), *arguments, axis=axis, **keywords)
    values, *rest = found if isinstance(found, tuple) else (found,)
    if axis is None:
        values = _of(ar, values)
    else:
        places = np.unique(plain_of(ar), return_index=True, axis=axis)[1]
        values = np.take(ar, places, axis=axis)
    return (values, *rest) if isinstance(found, tuple) else values


def _with_values(function: Callable) -> Callable:
    """A function of the array API whose result has an array of values beside indices and counts."""

    def run(x: Any) -> Any:
        found = function(plain_of(x))
        if isinstance(found, np.ndarray):
            return _of(x, found)
        return found._replace(values=_of(x, found.values))

    return run


def _of_two(function: Callable, of_first: bool) -> Callable:
    """A function of two sets, whose values are all in the first, or in one of them."""

    def run(ar1: Any, ar2: Any, *arguments: Any, **keywords: Any) -> Any:
        found = function(plain_of(ar1), plain_of(ar2), *arguments, **keywords)
        values, *rest = found if isinstance(found, tuple) else (found,)
        values = _of(ar1 if of_first else np.concatenate([_array(ar1).ravel(), _array(ar2).ravel()]), values)
        return (values, *rest) if isinstance(found, tuple) else values

    return run


def _sort_complex(a: Any) -> Any:
    exact = np.sort_complex(plain_of(a))
    return np.sort(_array(a)).astype(exact.dtype)


# --------------------------------------------------------------------------------- quantiles without NaNs


@exactly(np.nanquantile)
def _nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: None = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: Any = False,
    *,
    weights: Any = None,
    interpolation: Any = None,
) -> Any:
    a, q = _array(a), _array(q)
    keepdims = False if keepdims is np._NoValue else keepdims  # type: ignore[attr-defined]
    method = method if interpolation is None else interpolation
    if not np.isnan(plain(a)).any():
        return np.quantile(a, q, axis=axis, method=method, keepdims=keepdims, weights=weights)
    axes = tuple(range(a.ndim)) if axis is None else tuple(k % a.ndim for k in np.atleast_1d(axis))
    kept = [k for k in range(a.ndim) if k not in axes]
    in_rows = lambda x: np.transpose(x, [*kept, *axes]).reshape([x.shape[k] for k in kept] + [-1])
    if method != "linear":
        weights = None if weights is None else in_rows(plain_of(weights))
        result = _quantiles_of_rows(in_rows(a), q, method, weights)
    else:
        result = _linear_quantiles_of_rows(in_rows(a), q)
    return np.expand_dims(result, tuple(q.ndim + k for k in axes)) if keepdims else result


def _linear_quantiles_of_rows(rows: Any, q: Any) -> Any:
    rows = np.sort(rows, axis=-1)
    count = np.maximum(np.sum(~np.isnan(plain(rows)), axis=-1), 1)
    place = q.reshape(q.shape + (1,) * count.ndim) * (count - 1)
    low = np.floor(plain(place)).astype(np.intp)
    each = tuple(np.indices(count.shape, sparse=True))
    lower, upper = (rows[each + (k,)] for k in (low, np.minimum(low + 1, count - 1)))
    return lower + (upper - lower) * (place - low)


def _quantiles_of_rows(rows: Any, q: Any, method: str, weights: Any) -> Any:
    found = []
    for k in np.ndindex(rows.shape[:-1]):
        present = np.flatnonzero(~np.isnan(plain(rows[k])))
        those = None if weights is None else weights[k][present]
        found.append(np.quantile(rows[k][present] if present.size else rows[k], q, method=method, weights=those))
    return np.stack(found, axis=-1).reshape(q.shape + rows.shape[:-1])


@exactly(np.nanpercentile)
def _nanpercentile(a: Any, q: Any, *arguments: Any, **keywords: Any) -> Any:
    return _nanquantile.__wrapped__(a, _array(q) / 100.0, *arguments, **keywords)


@exactly(np.nanmedian)
def _nanmedian(a: Any, axis: Any = None, out: None = None, overwrite_input: bool = False, keepdims: Any = False) -> Any:
    return _nanquantile.__wrapped__(a, 0.5, axis, keepdims=keepdims)


RULES: dict[Callable, Callable] = {
    np.corrcoef: _corrcoef,
    np.cov: _cov,
    np.histogram: _histogram,
    np.histogram2d: _histogram2d,
    np.histogram_bin_edges: _histogram_bin_edges,
    np.histogramdd: _histogramdd,
    np.intersect1d: _of_two(np.intersect1d, True),
    np.nanmedian: _nanmedian,
    np.nanpercentile: _nanpercentile,
    np.nanquantile: _nanquantile,
    np.setdiff1d: _of_two(np.setdiff1d, True),
    np.setxor1d: _of_two(np.setxor1d, False),
    np.sort_complex: _sort_complex,
    np.union1d: _of_two(np.union1d, False),
    np.unique: _unique,
    **{
        function: _with_values(function)
        for function in (np.unique_all, np.unique_counts, np.unique_inverse, np.unique_values)
    },
}
