"""NumPy functions written with functions that have derivative rules.

NumPy's own sources of these convert to plain arrays on the way, or are compiled. Where a formula rounds differently
from NumPy's, `exactly` puts NumPy's values into the result, so that a recorded program computes the same values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import is_active, plain_of, run_plainly
from ..arrays.exact import exactly
from ..arrays.indexing import gathered
from ..arrays.nested import as_array as _array
from ..arrays.nested import from_nested, nested_plain
from ..base.missing_rules import no_rule
from ..base.structures import leaves
from ..memory.storages import is_scalar, plain, region_of, tracked, wrapped
from ..tape import BaseAdjoint, Push, Sweep, current
from .contractions import contracted
from .roots import root, std

# ----------------------------------------------------------------------------------------------- order statistics


def _sort(a: Any, axis: Any = -1, kind: Any = None, order: Any = None, **options: Any) -> Any:
    if axis is None:
        a, axis = a.ravel(), -1
    return _reordered(a, np.sort(plain(a), axis, kind, order, **options), axis, order)


def _partition(a: Any, kth: Any, axis: Any = -1, kind: Any = "introselect", order: Any = None) -> Any:
    if axis is None:
        a, axis = a.ravel(), -1
    return _reordered(a, np.partition(plain(a), kth, axis, kind, order), axis, order)


def _reordered(a: Any, values: np.ndarray, axis: int, order: Any) -> Any:
    """NumPy's result, with an array's elements in another order along an axis, recorded by where each one was."""
    if not a.ndim:
        raise np.exceptions.AxisError(axis, 0)
    places = np.empty(values.shape, np.intp)
    for_each, of_each = (np.argsort(x, axis, "stable", order) for x in (values, plain(a)))
    np.put_along_axis(places, for_each, of_each, axis)
    key: list[np.ndarray] = list(np.indices(values.shape, sparse=True))
    key[axis] = places
    return gathered(a, tuple(key), values)


# --------------------------------------------------------------------------------------------- values left alone


def _nan_to_num(x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    for name, number in {"nan": nan, "posinf": posinf, "neginf": neginf}.items():
        if is_active(current(), number):
            raise no_rule(np.nan_to_num, f" with respect to {name} (write np.where)")
    if x.dtype.kind not in "fc":
        return wrapped(np.nan_to_num(plain_of(x), copy, nan, posinf, neginf))
    numbers = np.nan_to_num(plain(x), nan=nan, posinf=posinf, neginf=neginf)
    if not copy and not is_scalar(x):
        for part, values in (
            ((x.real, numbers.real), (x.imag, numbers.imag)) if x.dtype.kind == "c" else ((x, numbers),)
        ):
            replaced = ~np.isfinite(plain(part))
            part[replaced] = values[replaced]
        return x if x.ndim else x[()]
    result = x[...].copy(order="K")
    if x.dtype.kind != "c":
        replaced = ~np.isfinite(plain(x))
        if replaced.any():
            result[replaced] = numbers[replaced]
        return result[()]
    result.real = np.where(np.isfinite(plain(x).real), x.real, numbers.real)
    result.imag = np.where(np.isfinite(plain(x).imag), x.imag, numbers.imag)
    return result[()]


def _full_like(a: Any, fill_value: Any, *arguments: Any, **keywords: Any) -> Any:
    if not any(is_active(current(), x) for x in leaves(fill_value)):
        return run_plainly(np.full_like, (a, fill_value, *arguments), keywords)
    return np.full_like._implementation(a, fill_value, *arguments, **keywords)  # type: ignore[attr-defined]


def _real_if_close(a: Any, tol: Any = 100) -> Any:
    return a if np.iscomplexobj(np.real_if_close(plain(a), tol)) else a.real


@exactly(np.unwrap)
def _unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * math.pi) -> Any:
    p = _array(p)
    found = np.unwrap(plain(p), plain_of(discont), axis, period=plain_of(period))
    return p + np.rint((found - plain(p)) / plain_of(period)) * period


# ---------------------------------------------------------------------------------------- ignoring not-a-numbers


def _without_nan(function: Callable, fill: Any) -> Callable:
    """A reduction with NaNs replaced by its neutral element."""

    def ignoring(a: Any, *arguments: Any, **keywords: Any) -> Any:
        return function(_filled(a, fill), *arguments, **keywords)

    return ignoring


def _filled(a: Any, fill: Any) -> Any:
    """A copy with NaNs replaced, in NumPy's memory layout, on which strides and rounding of results depend."""
    a = _array(a)
    absent = np.isnan(plain(a))
    result = a[...].copy(order="K")
    if absent.any():
        result[absent] = fill
    return result


@exactly(np.nanmean)
def _nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: None = None, keepdims: Any = False, **keywords: Any
) -> Any:
    present = ~np.isnan(plain(a))
    total = np.sum(_filled(a, 0), axis=axis, dtype=dtype, keepdims=keepdims, **keywords)
    return total / np.sum(present, axis=axis, keepdims=keepdims, **keywords)


@exactly(np.nanvar)
def _nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    ddof: int = 0,
    keepdims: Any = False,
    *,
    mean: Any = None,
    correction: Any = None,
    **keywords: Any,
) -> Any:
    ddof = ddof if correction is None else correction
    present = ~np.isnan(plain(a))
    # Replace NaNs first: their adjoint would be zero times NaN.
    mean = _nanmean.__wrapped__(a, axis, dtype, keepdims=True, **keywords) if mean is None else mean
    deviation = _filled(a, 0) - mean
    squares = np.where(present, (deviation * np.conj(deviation)).real, 0)
    total = np.sum(squares, axis=axis, keepdims=keepdims, **keywords)
    return total / (np.sum(present, axis=axis, keepdims=keepdims, **keywords) - ddof)


@exactly(np.nanstd)
def _nanstd(a: Any, *arguments: Any, **keywords: Any) -> Any:
    return root(_nanvar.__wrapped__(a, *arguments, **keywords))


def _nan_extremum(ufunc: np.ufunc) -> Callable:
    def extremum(a: Any, axis: Any = None, out: None = None, keepdims: Any = False, **keywords: Any) -> Any:
        return ufunc.reduce(_array(a), axis=axis, keepdims=keepdims, **keywords)

    return extremum


# --------------------------------------------------------------------------------------- interpolation


def _in_floats(a: Any) -> Any:
    """Convert integers and booleans as NumPy does: their differences may overflow or not exist."""
    return a if a.dtype.kind in "fc" else a.astype(np.float64)


@exactly(np.interp)
def _interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    if period is not None:
        raise no_rule(np.interp, " for a period")
    x, xp, fp = (_in_floats(_array(a)) for a in (x, xp, fp))
    cell = np.clip(np.searchsorted(plain(xp), plain(x), side="right") - 1, 0, len(xp) - 2)
    x0, f0 = xp[cell], fp[cell]
    inside = f0 + (x - x0) * ((fp[cell + 1] - f0) / (xp[cell + 1] - x0))
    if plain(xp)[-1] == plain(xp)[-2:][0]:  # a jump at the end, or a single point
        inside = np.where(plain(x) == plain(xp)[-1], fp[-1], inside)
    result = np.where(plain(x) < plain(xp)[0], fp[0] if left is None else left, inside)
    return np.where(plain(x) > plain(xp)[-1], fp[-1] if right is None else right, result)


@exactly(np.linspace)
def _linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: Any = True,
    retstep: Any = False,
    dtype: Any = None,
    axis: int = 0,
    **keywords: Any,
) -> Any:
    start, stop = np.asanyarray(start), np.asanyarray(stop)
    make = np.linspace._implementation  # type: ignore[attr-defined]
    if start.ndim or stop.ndim:
        return make(start, stop, num, endpoint, retstep, dtype, axis, **keywords)
    # For numbers, NumPy computes in an array of its own, which is not tracked.
    found = make(_array(start)[None], _array(stop)[None], num, endpoint, retstep, dtype, **keywords)
    return (found[0][:, 0], found[1][0]) if isinstance(found, tuple) else found[:, 0]


def _gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    if any(is_active(current(), from_nested(h)) for h in varargs):
        return _gradient_of_spacings(f, *varargs, axis=axis, edge_order=edge_order)
    return np.gradient._implementation(f, *varargs, axis=axis, edge_order=edge_order)  # type: ignore[attr-defined]


@exactly(np.gradient)
def _gradient_of_spacings(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Differences for unequal distances: NumPy's source takes one distance for all if they happen to be equal."""
    f = _in_floats(_array(f))
    axes = range(f.ndim) if axis is None else [int(k) % f.ndim for k in (axis if isinstance(axis, tuple) else (axis,))]
    spacings = varargs * len(axes) if len(varargs) == 1 else varargs
    found = tuple([_differences(f, k, _array(h), edge_order) for k, h in zip(axes, spacings)])
    return found if len(axes) > 1 else found[0]


def _differences(f: Any, axis: int, x: Any, edge_order: int) -> Any:
    f = np.moveaxis(f, axis, 0)
    distances = np.diff(_in_floats(x)) if x.ndim else x * np.ones(len(f) - 1)
    d = distances.reshape((-1,) + (1,) * (f.ndim - 1))
    d1, d2 = d[:-1], d[1:]
    both, product = d1 + d2, d1 * d2
    inner = -d2 / (d1 * both) * f[:-2] + (d2 - d1) / product * f[1:-1] + d1 / (d2 * both) * f[2:]
    if edge_order == 1:
        first, last = (f[1:2] - f[:1]) / d[:1], (f[-1:] - f[-2:-1]) / d[-1:]
    else:
        d1, d2 = d[:1], d[1:2]
        first = -(2 * d1 + d2) / (d1 * (d1 + d2)) * f[:1] + (d1 + d2) / (d1 * d2) * f[1:2]
        first = first - d1 / (d2 * (d1 + d2)) * f[2:3]
        d1, d2 = d[-2:-1], d[-1:]
        last = d2 / (d1 * (d1 + d2)) * f[-3:-2] - (d1 + d2) / (d1 * d2) * f[-2:-1]
        last = last + (2 * d2 + d1) / (d2 * (d1 + d2)) * f[-1:]
    return np.moveaxis(np.concatenate([first, inner, last]), 0, axis)


class _Convolution(BaseAdjoint):
    """Adjoint of the full convolution of two 1-d arrays: correlation with the other one."""

    __slots__ = ("a", "b", "result", "values")
    second_order = "differentiated"

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = sweep.shadow(self.result)
        for region, other in ((self.a, self.values[1]), (self.b, self.values[0])):
            if region is not None:
                found = contracted(lambda g, other: np.correlate(g, other, "full"), g, other)
                sweep.add(region, found[len(other) - 1 :][: region.shape[0]])

    def tangent(self, push: Push) -> None:
        """The product rule."""
        total: Any = 0.0
        for region, other in ((self.a, self.values[1]), (self.b, self.values[0])):
            if region is not None:
                total = total + contracted(np.convolve, push.get(region), other)
        push.put(self.result, total)


def _convolve_full(a: Any, v: Any) -> Any:
    tape = current()
    assert tape is not None
    result = wrapped(np.convolve(plain_of(a), plain_of(v)))
    record = _Convolution()
    record.a = region_of(a) if is_active(tape, a) else None
    record.b = region_of(v) if is_active(tape, v) else None
    record.values = (
        tape.need(a) if record.b is not None else None,
        tape.need(v) if record.a is not None else None,
    )
    record.result = region_of(result)
    tape.activate(result)
    tape.append(record, created=(result,))
    return result


@exactly(np.convolve)
def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    a, v = _array(a).reshape(-1), _array(v).reshape(-1)
    full = _convolve_full(a, v)
    longer, shorter = max(len(a), len(v)), min(len(a), len(v))
    if mode in ("full", 2):
        return full
    if mode in ("same", 1):
        start = (shorter - 1) // 2
        return full[start : start + longer].copy()
    return full[shorter - 1 : longer].copy()


@exactly(np.correlate)
def _correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    a, v = _array(a).reshape(-1), _array(v).reshape(-1)
    full = _convolve_full(a, np.conj(v[::-1]))
    longer, shorter = max(len(a), len(v)), min(len(a), len(v))
    if mode in ("full", 2):
        return full
    if mode in ("same", 1):
        start = (shorter - 1) // 2 if len(a) >= len(v) else shorter // 2
        return full[start : start + longer].copy()
    return full[shorter - 1 : longer].copy()


# ------------------------------------------------------------------------------------------------------ the rest


def _apply_along_axis(func1d: Callable, axis: int, arr: Any, *arguments: Any, **keywords: Any) -> Any:
    moved = np.moveaxis(arr, axis, -1)
    results = [func1d(moved[k], *arguments, **keywords) for k in np.ndindex(moved.shape[:-1])]
    stacked = from_nested(results)
    stacked = tracked(np.asanyarray(stacked))
    if results:  # as NumPy does, whose result has the dtype of the first one
        stacked = stacked.astype(np.asarray(nested_plain(results[0])).dtype, copy=False)
    result = stacked.reshape(moved.shape[:-1] + stacked.shape[1:])
    extra = result.ndim - (moved.ndim - 1)
    axis = axis % arr.ndim
    for k in range(extra):
        result = np.moveaxis(result, moved.ndim - 1 + k, axis + k)
    return result


def _apply_over_axes(func: Callable, a: Any, axes: Any) -> Any:
    result = _array(a)
    for axis in np.atleast_1d(plain_of(axes)):
        axis = int(axis) % result.ndim
        reduced = func(result, axis)
        result = reduced if reduced.ndim == result.ndim else np.expand_dims(reduced, axis)
    return result


class _WeightedCount(BaseAdjoint):
    __slots__ = ("bins", "result", "weights")
    second_order = "linear"

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.result):
            sweep.add(self.weights, sweep.shadow(self.result)[self.bins])

    def tangent(self, push: Push) -> None:
        """Count with the tangents of the weights."""
        push.put(self.result, np.bincount(self.bins, push.get(self.weights), self.result.shape[0]))


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    result = wrapped(np.bincount(plain_of(x), plain_of(weights), minlength))
    tape = current()
    assert tape is not None
    record = _WeightedCount()
    record.bins = tape.need(np.asanyarray(x))
    record.weights = region_of(weights)
    record.result = region_of(result)
    tape.activate(result)
    tape.append(record, created=(result,))
    return result


# ------------------------------------------------------------------------ functions that NumPy's source sets at a point

_SINC = [(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(16)]
_I0 = [1 / math.factorial(k) ** 2 for k in range(26)]


def _in_powers(coefficients: list[float], square: Any) -> Any:
    total: Any = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        total = total * square + c
    return total


@exactly(np.sinc)
def _sinc(x: Any) -> Any:
    """Use the power series near zero, where NumPy inserts a constant for x = 0, and divides small numbers."""
    x = _array(x)
    near = np.abs(plain_of(x)) < 0.5
    angle = math.pi * np.where(near, 1.0, x)
    return np.where(near, _in_powers(_SINC, np.square(np.where(near, x, 0.0))), np.sin(angle) / angle)


@exactly(np.i0)
def _i0(x: Any) -> Any:
    """Use the power series near zero: NumPy's formula depends on the absolute value."""
    x = _array(x)
    near = np.abs(plain_of(x)) < 8.0
    series = _in_powers(_I0, np.square(0.5 * np.where(near, x, 0.0)))
    return np.where(near, series, np.i0._implementation(np.where(near, 9.0, x)))


RULES: dict[Callable, Callable] = {
    np.apply_along_axis: _apply_along_axis,
    np.apply_over_axes: _apply_over_axes,
    np.bincount: _bincount,
    np.convolve: _convolve,
    np.correlate: _correlate,
    np.full_like: _full_like,
    np.gradient: _gradient,
    np.i0: _i0,
    np.imag: lambda val: val.imag,  # a constant for real numbers
    np.interp: _interp,
    np.linspace: _linspace,
    np.nan_to_num: _nan_to_num,
    np.nancumprod: _without_nan(np.cumprod, 1),
    np.nancumsum: _without_nan(np.cumsum, 0),
    np.nanmax: _nan_extremum(np.fmax),
    np.nanmean: _nanmean,
    np.nanmin: _nan_extremum(np.fmin),
    np.nanprod: _without_nan(np.prod, 1),
    np.nanstd: _nanstd,
    np.nansum: _without_nan(np.sum, 0),
    np.nanvar: _nanvar,
    np.partition: _partition,
    np.real_if_close: _real_if_close,
    np.sinc: _sinc,
    np.sort: _sort,
    np.std: std,
    np.unwrap: _unwrap,
}
