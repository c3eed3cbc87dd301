"""Methods of NumPy's ufuncs that fold an axis: ``reduce``, ``accumulate`` and ``reduceat``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.missing_rules import no_rule
from ..memory.storages import plain, region_of, tracked, wrapped
from ..tape import BaseAdjoint, Push, Sweep, Tape
from . import few_elements
from .activity import is_active, is_inexact, plain_of, require_tracked
from .elementwise import leg, times
from .indexing import copied
from .nested import from_nested
from .writing import assign_as, taken, write, write_constants


def _sum_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    return g


def _rows(x: Any, axes: tuple) -> tuple[Any, Callable]:
    """An array with the axes of a reduction merged into its last one, and the inverse of that."""
    kept = [k for k in range(x.ndim) if k not in axes]
    order = kept + list(axes)
    moved = np.transpose(x, order)
    rows = moved.reshape((*moved.shape[: len(kept)], math.prod(moved.shape[len(kept) :])))
    return rows, lambda found: np.transpose(found.reshape(moved.shape), np.argsort(order))


def _extremum_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any, initial: Any = None) -> Any:
    """Give the adjoint to the first element that is the extremum; the initial value comes before all elements."""
    x, z = plain_of(x), plain_of(z)
    hits = x == z
    if mask is not None:
        hits = hits & mask
    if initial is not None:
        hits = hits & (z != initial)
    rows, back = _rows(hits, axes)
    if not rows.size:
        return np.zeros(x.shape, g.dtype)
    first = np.zeros(rows.shape, bool)
    place = np.argmax(rows, axis=-1)[..., None]
    is_hit = np.take_along_axis(rows, place, -1)
    if not is_hit.all():
        # A function whose formula this is may round the extremum otherwise: then the nearest element holds it.
        with np.errstate(invalid="ignore"):
            distance, whole = np.abs(x - z), np.abs(z - (np.inf if initial is None else initial))
        distance = _rows(distance if mask is None else np.where(mask, distance, np.inf), axes)[0]
        nearest = np.argmin(distance, axis=-1)[..., None]
        lost = ~is_hit & (np.take_along_axis(distance, nearest, -1) < whole.reshape(is_hit.shape))
        place, is_hit = np.where(lost, nearest, place), is_hit | lost
    np.put_along_axis(first, place, is_hit, -1)
    return np.where(back(first), g, g.dtype.type(0))


def _product_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    # The product of the others from a prefix and a suffix product: no division, so zeros are right.
    if mask is not None:
        x = np.where(mask, x, 1)
    rows, back = _rows(x, axes)
    others = np.ones_like(rows)
    others[..., 1:] = np.cumprod(rows[..., :-1], axis=-1)
    suffix = np.cumprod(rows[..., :0:-1], axis=-1)[..., ::-1]
    others[..., :-1] *= suffix
    return times(g, np.conj(back(others)))


def _logsumexp_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    shares = np.exp(np.where(x == z, 0.0, x - z))
    return times(g, shares / np.where(np.isinf(z), shares.sum(axis=axes, keepdims=True), 1.0))


def _hypot_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    return times(g, leg(x, z))


# For each reduction: its adjoint, and whether that needs the argument and the result.
_REDUCTIONS: dict[np.ufunc, tuple[Callable, bool, bool]] = {
    np.add: (_sum_adjoint, False, False),
    np.multiply: (_product_adjoint, True, False),
    np.maximum: (_extremum_adjoint, True, True),
    np.minimum: (_extremum_adjoint, True, True),
    np.fmax: (_extremum_adjoint, True, True),
    np.fmin: (_extremum_adjoint, True, True),
    np.logaddexp: (_logsumexp_adjoint, True, True),
    np.hypot: (_hypot_adjoint, True, True),
}


class _Reduction(BaseAdjoint):
    __slots__ = ("adjoint", "axes", "factor", "fresh", "mask", "recompute", "result", "source", "x", "z")
    second_order = "differentiated"

    @property
    def reads_memory(self) -> bool:  # type: ignore[override]
        """True if the adjoint needs values: that of a sum needs none, for which memory would have to be put back."""
        return not all(v is None for v in (self.x, self.z, self.recompute, self.factor, self.mask))

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        z = self.z if self.recompute is None else self.recompute(self.x)
        shape = tuple(1 if k in self.axes else n for k, n in enumerate(self.source.shape))
        g = taken(sweep, self.result, self.fresh, None).reshape(shape)
        if self.factor is not None:
            g = times(g, np.conj(self.factor))
        g = self.adjoint(g, self.x, None if z is None else np.reshape(z, shape), self.axes, self.mask)
        sweep.add(self.source, g if self.mask is None else np.where(self.mask, g, 0))

    def tangent(self, push: Push) -> None:
        """The sum of the conjugate weights of the adjoint times ẋ."""
        x_dot = push.get(self.source)
        if self.adjoint is not _sum_adjoint:
            z = self.z if self.recompute is None else self.recompute(self.x)
            shape = tuple(1 if k in self.axes else n for k, n in enumerate(self.source.shape))
            one = np.ones(shape, self.result.dtype)
            one = one if self.factor is None else one * np.conj(self.factor)
            z = None if z is None else np.reshape(z, shape)
            x_dot = times(x_dot, np.conj(self.adjoint(one, self.x, z, self.axes, self.mask)))
        if self.mask is not None:
            x_dot = np.where(self.mask, x_dot, 0)
        push.put(self.result, x_dot.sum(axis=self.axes).reshape(self.result.shape))


def _axes(axis: Any, ndim: int) -> tuple:
    if axis is None:
        return tuple(range(ndim))
    return tuple(int(k) % ndim for k in (axis if isinstance(axis, tuple) else (axis,))) if ndim else ()


def _in_requested_dtype(ufunc: np.ufunc, x: Any, keywords: dict) -> Any:
    """The array to reduce, in the requested dtype if that has no imaginary parts, no fractions, or other extrema."""
    dtype = keywords.get("dtype")
    if dtype is None or np.dtype(dtype) == x.dtype:
        return x
    if np.dtype(dtype).kind not in ("iub" if x.dtype.kind == "f" and ufunc not in _EXTREMA else "iubf"):
        return x
    real = tracked(x).astype(dtype)
    # NumPy reduces without a copy: its result has the memory order of the array, repeated elements included.
    return _laid_out(real, x) if 0 in x.strides and x.ndim > 1 else real


def _laid_out(values: Any, like: np.ndarray) -> Any:
    """The values of an array in memory that repeats elements as another array's does."""
    once = tuple(slice(1) if stride == 0 else slice(None) for stride in like.strides)
    return np.broadcast_to(values[once].copy(order="K"), like.shape)


_EXTREMA = frozenset((np.maximum, np.minimum, np.fmax, np.fmin))
_OPTIONS = frozenset(("axis", "dtype", "out", "keepdims", "initial", "where"))


def _require_known(ufunc: np.ufunc, method: str, keywords: dict) -> None:
    if not keywords.keys() <= _OPTIONS:
        others = ", ".join(keywords.keys() - _OPTIONS)
        raise no_rule(ufunc, f" in NumPy {np.__version__} for its method {method} with the argument {others}")


def is_whole(keywords: dict) -> bool:
    """Return whether a reduction of a vector gives a number, computed in its own precision."""
    for name, value in keywords.items():
        usual = value is None or (name == "where" and value is True)
        usual = usual or (name == "axis" and type(value) is int and value in (0, -1))  # any other one is an error
        if not usual and not (name == "keepdims" and value is False):
            return False
    return True


def reduce(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    """Call ``ufunc.reduce`` with an active array, and record it."""
    if is_whole(keywords) and (found := few_elements.reduced(tape, ufunc, inputs[0])) is not None:
        return found
    _require_known(ufunc, "reduce", keywords)
    x = _in_requested_dtype(ufunc, inputs[0], keywords)
    if x is not inputs[0] and not is_active(tape, x):
        return ufunc.reduce(x, **keywords)
    if is_active(tape, keywords.get("initial")):
        raise no_rule(ufunc, f" for its method reduce with an active initial (write np.{ufunc.__name__}(initial, ...))")
    keywords = {name: plain_of(value) for name, value in keywords.items()}
    (out,) = keywords.pop("out", (None,)) or (None,)
    run = lambda values: ufunc.reduce(values, **keywords)
    if ufunc not in _REDUCTIONS:
        return _unknown_method(ufunc, "reduce", inputs, run(plain(x)), out)
    record = _Reduction()
    record.adjoint, need_x, need_z = _REDUCTIONS[ufunc]
    record.axes = _axes(keywords.get("axis", 0), x.ndim)
    where = keywords.get("where", True)
    record.mask = None if where is True else tape.need(np.asarray(where))
    initial = keywords.get("initial", None)
    record.factor = _factor(initial) if ufunc is np.multiply and initial is not None else None
    if initial is not None and record.adjoint is _extremum_adjoint:
        record.adjoint = functools.partial(_extremum_adjoint, initial=initial)
    record.source = region_of(x)
    record.x = tape.need(x) if need_x else None
    record.z = record.recompute = None
    record.fresh = out is None
    if out is None:
        result = wrapped(run(plain(x)))
        if not is_inexact(result):
            return result
        record.z = tape.need(result) if need_z else None
        record.result = region_of(result)
        tape.activate(result)
        tape.append(record, created=(result,))
        return result
    require_tracked(out, f"np.{ufunc.__name__}.reduce(..., out=...)")
    action = lambda: ufunc.reduce(plain(x), out=plain(out), **keywords)
    if not is_inexact(out):
        write_constants([out], action)
        return out
    record.recompute = run if need_z else None
    _, undo = write([out], action)
    record.result = region_of(out)
    tape.append(record, undo)
    tape.activate(out)
    return out


def _factor(initial: Any) -> Any:
    """The initial value of a product, perhaps a 0-d array; None if there is none."""
    found = np.asarray(initial)[()] if np.ndim(initial) == 0 else None
    return found if isinstance(found, (np.number, np.bool_)) else None


def _unknown_method(ufunc: np.ufunc, method: str, inputs: tuple, result: Any, out: Any) -> Any:
    result = wrapped(result)
    if is_inexact(result) or out is not None:
        raise no_rule(ufunc, f" for its method {method}")
    return result


# ------------------------------------------------------------------------------------------------- accumulations


def _cumsum_adjoint(g: Any, x: Any, z: Any) -> Any:
    return np.cumsum(g[::-1], axis=0)[::-1]


def _cumprod_adjoint(g: Any, x: Any, z: Any) -> Any:
    # Horner's scheme from the end: s_k = ḡ_k + x_{k+1} s_{k+1}; no division, so zeros are right.
    before = np.ones_like(x)
    before[1:] = np.cumprod(x[:-1], axis=0)
    before = np.conj(before)
    factors = np.conj(x)
    total = np.zeros_like(g)
    s = np.zeros_like(g[0]) if len(g) else None
    for k in range(len(g) - 1, -1, -1):
        s = g[k] + (times(s, factors[k + 1]) if k + 1 < len(g) else 0)
        total[k] = s
    return times(total, before)


def _cumprod_tangent(x_dot: Any, x: Any, z: Any) -> Any:
    total = np.empty(x.shape, np.result_type(x_dot, x))
    for k in range(len(x)):
        total[k] = times(total[k - 1], x[k]) + times(x_dot[k], z[k - 1]) if k else x_dot[k]
    return total


def _holder(z: Any) -> tuple:
    """For each element the index of the running extremum, which stays until a later element exceeds it."""
    place = np.arange(len(z)).reshape((-1,) + (1,) * (z.ndim - 1))
    is_new = np.ones(z.shape, bool)
    is_new[1:] = (z[1:] != z[:-1]) & ~(np.isnan(z[1:]) & np.isnan(z[:-1]))
    holder = np.maximum.accumulate(np.where(is_new, place, 0), axis=0)
    return (holder, *np.indices(z.shape, sparse=True)[1:])


def _cumulative_extremum_adjoint(g: Any, x: Any, z: Any) -> Any:
    total = np.zeros_like(g)
    np.add.at(total, _holder(plain_of(z)), g)
    return total


_TANGENTS: dict[np.ufunc, Callable] = {
    np.add: lambda x_dot, x, z: np.cumsum(x_dot, axis=0),
    np.multiply: _cumprod_tangent,
    np.maximum: lambda x_dot, x, z: x_dot[_holder(plain_of(z))],
    np.minimum: lambda x_dot, x, z: x_dot[_holder(plain_of(z))],
}


_ACCUMULATIONS: dict[np.ufunc, tuple[Callable, bool]] = {
    np.add: (_cumsum_adjoint, False),
    np.multiply: (_cumprod_adjoint, True),
    np.maximum: (_cumulative_extremum_adjoint, True),
    np.minimum: (_cumulative_extremum_adjoint, True),
}


class _Accumulation(BaseAdjoint):
    __slots__ = ("adjoint", "axis", "keywords", "result", "source", "ufunc", "x")
    second_order = "differentiated"

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = np.moveaxis(sweep.shadow(self.result), self.axis, 0)
        x = z = None
        if self.x is not None:
            x = np.moveaxis(self.x, self.axis, 0)
            z = self.ufunc.accumulate(x, axis=0)
        sweep.add(self.source, np.moveaxis(self.adjoint(g, x, z), 0, self.axis))

    def tangent(self, push: Push) -> None:
        """Accumulate the tangent along with the values."""
        x_dot = np.moveaxis(push.get(self.source), self.axis, 0)
        x = z = None
        if self.x is not None:
            x = np.moveaxis(self.x, self.axis, 0)
            z = self.ufunc.accumulate(x, axis=0)
        push.put(self.result, np.moveaxis(_TANGENTS[self.ufunc](x_dot, x, z), 0, self.axis))


def accumulate(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    """Call ``ufunc.accumulate`` with an active array, and record it."""
    _require_known(ufunc, "accumulate", keywords)
    x = _in_requested_dtype(ufunc, inputs[0], keywords)
    keywords = dict(keywords)
    (out,) = keywords.pop("out", (None,)) or (None,)
    if out is not None:
        return assign_as(
            out,
            f"np.{ufunc.__name__}.accumulate(..., out=...)",
            lambda scratch: ufunc.accumulate(plain(x), out=scratch, **keywords),
            lambda: accumulate(tape, ufunc, inputs, active, keywords),
        )
    result = wrapped(ufunc.accumulate(plain(x), **keywords))
    if ufunc not in _ACCUMULATIONS:
        return _unknown_method(ufunc, "accumulate", inputs, result, out)
    if is_inexact(result):
        record = _Accumulation()
        record.adjoint, need_x = _ACCUMULATIONS[ufunc]
        record.ufunc = ufunc
        record.axis = keywords.get("axis", 0) % x.ndim
        record.source = region_of(x)
        record.x = tape.need(x) if need_x else None
        record.result = region_of(result)
        tape.activate(result)
        tape.append(record, created=(result,))
    return result


def reduceat(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    """Reduce segment by segment, with the rules of reduce and item access."""
    _require_known(ufunc, "reduceat", keywords)
    x, starts = inputs
    keywords = dict(keywords)
    axis = keywords.pop("axis", 0) % max(x.ndim, 1)
    (out,) = keywords.pop("out", (None,)) or (None,)
    starts = plain_of(np.asarray(starts))
    starts = starts if starts.size else starts.astype(np.intp)  # an empty list has no dtype
    if out is not None:
        return assign_as(
            out,
            f"np.{ufunc.__name__}.reduceat(..., out=...)",
            lambda scratch: ufunc.reduceat(plain(x), starts, axis=axis, out=scratch, **keywords),
            lambda: reduceat(tape, ufunc, inputs, active, {"axis": axis, **keywords}),
        )
    exact = ufunc.reduceat(plain(x), starts, axis=axis, **keywords)
    n = x.shape[axis]
    moved = np.moveaxis(tracked(x), axis, 0)
    parts = []
    for k, start in enumerate(starts):
        stop = starts[k + 1] if k + 1 < len(starts) else n
        segment = moved[start:stop] if start < stop else moved[start : start + 1]
        parts.append(ufunc.reduce(segment, axis=0, **keywords))
    if not parts:
        return wrapped(exact)
    result = np.moveaxis(from_nested(parts), 0, axis)
    if result.strides != exact.strides:
        result = copied(result, np.array(exact, order="K"))
    plain(result)[...] = exact
    return result
