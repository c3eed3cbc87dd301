"""Calls of NumPy's ufuncs and their methods, as `ampi.ndarray.__array_ufunc__` sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import no_rule
from .indexing import (
    assign,
    from_nested,
    frozen_key,
    getitem,
    is_active,
    is_inexact,
    is_of_numpy,
    must_announce,
    plain_key,
    plain_of,
    require_arrays,
    require_tracked,
    setitem,
    write,
    write_constants,
)
from .memory import (
    Region,
    TrackedArray,
    as_viewed,
    carries_derivatives,
    is_scalar,
    plain,
    region_of,
    tracked,
    wrapped,
    writable,
)
from .rules.elementwise import CONSTANT_FOR_REAL, CONSTANTS, RULES, Rule, unbroadcast
from .rules.linear_algebra import GENERALIZED, ufunc_without_partials
from .tape import Sweep, Tape, current

_COMPARISONS = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}


def apply(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict) -> Any:
    """Run ``ufunc.method(*inputs, **keywords)`` and record it if it has an active operand."""
    if keywords:
        outs = keywords.get("out", ())
        if any(map(is_scalar, outs)):
            return _into_scalars(ufunc, method, inputs, keywords, outs)
    tape = current()
    if tape is None:
        return _passively(ufunc, method, inputs, keywords)
    inputs = tuple([from_nested(x) if isinstance(x, (list, tuple)) else x for x in inputs])
    if method == "__call__" and ufunc in _COMPARISONS:
        return _passively(ufunc, method, inputs, keywords)
    active = tuple([k for k, x in enumerate(inputs) if isinstance(x, np.ndarray) and is_active(tape, x)])
    if not active and not is_active(tape, keywords.get("initial")):
        return _passively(ufunc, method, inputs, keywords)
    return _METHODS[method](tape, ufunc, inputs, active, keywords)


def _into_scalars(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict, outs: tuple) -> Any:
    """With an output that is a scalar: an error, unless NumPy's own code has just computed it."""
    if not is_of_numpy(3):
        require_arrays(outs)
    arrays = tuple([tracked(writable(out)) if is_scalar(out) else out for out in outs])
    return _given(outs, apply(ufunc, method, inputs, {**keywords, "out": arrays}))


def _passively(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict) -> Any:
    values = [as_viewed(x, np.ndarray) if isinstance(x, TrackedArray) else x for x in inputs]
    run = ufunc if method == "__call__" else getattr(ufunc, method)
    if not keywords and method != "at":
        return wrapped(run(*values))
    outs = (inputs[0],) if method == "at" else keywords.get("out", ())
    if len(keywords) == len(outs) == 1 and not must_announce(outs[0]):
        run(*values, out=plain_of(outs[0]))
        return outs[0]
    targets = [out for out in outs if isinstance(out, np.ndarray)]
    keywords = {name: plain_of(x) for name, x in keywords.items()}
    if not targets:
        return wrapped(run(*values, **keywords))
    if "out" in keywords:
        keywords["out"] = tuple([plain_of(out) for out in outs])
    action = lambda: run(*values, **keywords)
    if any(must_announce(target) for target in targets):
        result = write_constants(targets, action, _mask_key(targets[0], keywords.get("where", True), method))
    else:
        result = action()
    return _given(outs, result)


def _mask_key(target: np.ndarray, where: Any, method: str) -> Any:
    if where is True or method != "__call__":
        return None
    return (np.array(np.broadcast_to(where, target.shape)),)


def _given(outs: tuple, result: Any) -> Any:
    """The result, with the user's own array wherever one was given as output."""
    if len(outs) == 1:
        return outs[0] if outs[0] is not None else wrapped(result)
    if not outs or result is None:
        return wrapped(result)
    return tuple(out if out is not None else wrapped(r) for out, r in zip(outs, result))


# ---------------------------------------------------------------------------------------------------- plain calls


class _Elementwise:
    """Adjoint of an elementwise function.

    ``values`` has the arguments and, last, the result, as far as the adjoint needs them.  ``recompute`` gives the
    result again where it was written over something else, for then the memory holds the old values.
    """

    __slots__ = ("active", "fresh", "mask", "recompute", "regions", "result", "rule", "values")

    def __init__(
        self,
        rule: Rule,
        active: tuple,
        regions: list[Region],
        result: Region,
        values: list,
        fresh: bool,
        mask: Any = None,
        recompute: Callable | None = None,
    ) -> None:
        self.rule = rule
        self.active = active
        self.regions = regions
        self.result = result
        self.values = values
        self.fresh = fresh
        self.mask = mask
        self.recompute = recompute

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = _taken(sweep, self.result, self.fresh, self.mask)
        values = self.values
        if self.recompute is not None:
            with np.errstate(all="ignore"):
                values = [*values[:-1], self.recompute(values[:-1])]
        terms, needs = self.rule.terms, self.rule.needs
        for k, region in zip(self.active, self.regions):
            if self.mask is None:
                contribution = terms[k](g, *[values[n] for n in needs[k]])
            else:
                # Where the mask is false the function may not even be defined.
                with np.errstate(all="ignore"):
                    contribution = np.where(self.mask, terms[k](g, *[values[n] for n in needs[k]]), 0)
            sweep.add(region, unbroadcast(contribution, region.shape))


def _taken(sweep: Sweep, result: Region, fresh: bool, mask: Any) -> np.ndarray:
    """Adjoint of an operation's result; zero where a mask kept the old value."""
    shadow = sweep.shadow(result)
    if fresh:
        return shadow if mask is None else np.where(mask, shadow, 0)
    if mask is None:
        g = shadow.copy()
        shadow[...] = 0
        return g
    mask = np.broadcast_to(mask, shadow.shape)
    g = np.where(mask, shadow, 0)
    shadow[mask] = 0
    return g


def _call(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    rule = RULES.get(ufunc)
    if rule is None:
        return _call_without_table(tape, ufunc, inputs, active, keywords)
    terms = rule.terms
    active = tuple([k for k in active if terms[k] is not None])
    if not active:
        return _passively(ufunc, "__call__", inputs, keywords)
    if keywords:
        return _call_with_keywords(tape, ufunc, rule, inputs, active, keywords)
    result = wrapped(ufunc(*[as_viewed(x, np.ndarray) if isinstance(x, TrackedArray) else x for x in inputs]))
    if is_inexact(result):
        _record_fresh(tape, rule, inputs, active, result, None)
    return result


def _record_fresh(tape: Tape, rule: Rule, inputs: tuple, active: tuple, result: TrackedArray, mask: Any) -> None:
    values: list = [None] * (len(inputs) + 1)
    for n in rule.wants(active):
        if n < 0:
            values[n] = tape.need(result)
        else:
            x = inputs[n]
            values[n] = tape.need(x) if isinstance(x, np.ndarray) else _frozen(x)
    tape.activate(result)
    regions = [region_of(inputs[k]) for k in active]
    tape.append(_Elementwise(rule, active, regions, region_of(result), values, True, mask), created=(result,))


def _frozen(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, list) else x


def _call_with_keywords(
    tape: Tape, ufunc: np.ufunc, rule: Rule, inputs: tuple, active: tuple, keywords: dict
) -> TrackedArray:
    keywords = dict(keywords)
    (out,) = keywords.pop("out", (None,))
    where = keywords.pop("where", True)
    mask = None if where is True else tape.need(np.asanyarray(where))
    masked = {} if mask is None else {"where": plain_of(mask), "out": None}
    operands = [plain_of(x) for x in inputs]
    if out is None:
        result = wrapped(ufunc(*operands, **keywords, **masked))
        if is_inexact(result):
            _record_fresh(tape, rule, inputs, active, result, mask)
        return result
    return _call_into(tape, ufunc, rule, inputs, active, out, mask, keywords)


def _call_into(
    tape: Tape, ufunc: np.ufunc, rule: Rule, inputs: tuple, active: tuple, out: Any, mask: Any, keywords: dict
) -> Any:
    require_tracked(out, f"np.{ufunc.__name__}(..., out=...)")
    operands = [plain_of(x) for x in inputs]
    masked = {} if mask is None else {"where": mask}
    key = None if mask is None else (np.array(np.broadcast_to(mask, out.shape)),)
    action = lambda: ufunc(*operands, out=plain(out), **keywords, **masked)
    if not is_inexact(out):
        write_constants([out], action, key)
        return out
    wanted = rule.wants(active)
    recompute = None
    if -1 in wanted:
        wanted = tuple(range(len(inputs)))
        recompute = lambda values: ufunc(*values, **{**masked, "out": None}, **keywords)
    values: list = [None] * (len(inputs) + 1)
    for n in wanted:
        values[n] = tape.need(inputs[n]) if isinstance(inputs[n], np.ndarray) else _frozen(inputs[n])
    _, undo = write([out], action, key)
    regions = [region_of(inputs[k]) for k in active]
    tape.append(_Elementwise(rule, active, regions, region_of(out), values, False, mask, recompute), undo)
    tape.activate(out)
    return out


def _call_without_table(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    """Rewritten, generalized, constant, in autograd's tables, or without a rule."""
    if ufunc in _REWRITTEN:
        outs = keywords.get("out")
        return _REWRITTEN[ufunc](*inputs) if not keywords else _write_results(ufunc, _REWRITTEN[ufunc](*inputs), outs)
    if ufunc in GENERALIZED:
        return ufunc_without_partials(ufunc, inputs, keywords)
    complex_input = any(inputs[k].dtype.kind == "c" for k in active)
    if ufunc in CONSTANTS and not (complex_input and ufunc in CONSTANT_FOR_REAL):
        return _passively(ufunc, "__call__", inputs, keywords)
    if not _gives_numbers(ufunc, inputs):
        return _passively(ufunc, "__call__", inputs, keywords)
    return ufunc_without_partials(ufunc, inputs, keywords)


def _gives_numbers(ufunc: np.ufunc, inputs: tuple) -> bool:
    """Whether the result is floating-point or complex, so that it would carry a derivative."""
    dtypes = [
        x.dtype if isinstance(x, np.ndarray) else type(x) if isinstance(x, (int, float, complex)) else None
        for x in inputs
    ]
    found = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))
    return any(carries_derivatives(dtype) or dtype.hasobject for dtype in found[ufunc.nin :])


def _write_results(ufunc: np.ufunc, results: tuple, outs: Any) -> tuple:
    if outs is None:
        raise no_rule(ufunc, " with these keyword arguments")
    for out, result in zip(outs, results):
        if out is not None:
            assign(out, result, f"np.{ufunc.__name__}(..., out=...)", "same_kind")
    return _given(outs, results)


def _divmod(x: Any, y: Any) -> tuple:
    return np.floor_divide(x, y), np.remainder(x, y)


def _modf(x: Any) -> tuple:
    whole = np.trunc(x)
    return x - whole, whole


def _frexp(x: Any) -> tuple:
    _, exponent = np.frexp(plain_of(x))
    return np.ldexp(x, -exponent), wrapped(exponent)


_REWRITTEN: dict[np.ufunc, Callable] = {np.divmod: _divmod, np.modf: _modf, np.frexp: _frexp}


# ----------------------------------------------------------------------------------------------------- reductions


def _sum_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    return g


def _extremum_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    hits = x == z
    if mask is not None:
        hits &= mask
    return g * hits / np.maximum(hits.sum(axis=axes, keepdims=True), 1)


def _product_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    # The product of the others from a prefix and a suffix product: no division, so zeros are right.
    if mask is not None:
        x = np.where(mask, x, 1)
    kept = [k for k in range(x.ndim) if k not in axes]
    order = kept + list(axes)
    moved = np.transpose(x, order)
    rows = moved.reshape(moved.shape[: len(kept)] + (-1,))
    others = np.ones_like(rows)
    np.cumprod(rows[..., :-1], axis=-1, out=others[..., 1:])
    suffix = np.cumprod(rows[..., :0:-1], axis=-1)[..., ::-1]
    others[..., :-1] *= suffix
    back = np.transpose(others.reshape(moved.shape), np.argsort(order))
    return g * np.conj(back)


def _logsumexp_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    return g * np.exp(x - z)


def _hypot_adjoint(g: Any, x: Any, z: Any, axes: tuple, mask: Any) -> Any:
    return g * x / np.where(z == 0, 1, z)


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


class _Reduction:
    __slots__ = ("adjoint", "axes", "factor", "fresh", "mask", "recompute", "result", "source", "x", "z")

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        z = self.z if self.recompute is None else self.recompute(self.x)
        shape = tuple(1 if k in self.axes else n for k, n in enumerate(self.source.shape))
        g = _taken(sweep, self.result, self.fresh, None).reshape(shape)
        if self.factor is not None:
            g = g * self.factor
        g = self.adjoint(g, self.x, None if z is None else np.reshape(z, shape), self.axes, self.mask)
        sweep.add(self.source, g if self.mask is None else np.where(self.mask, g, 0))


def _axes(axis: Any, ndim: int) -> tuple:
    if axis is None:
        return tuple(range(ndim))
    return tuple(int(k) % ndim for k in (axis if isinstance(axis, tuple) else (axis,))) if ndim else ()


def _in_real_dtype(x: Any, keywords: dict) -> Any:
    """What is reduced: the real parts of complex numbers, where a real dtype is asked for."""
    dtype = keywords.get("dtype")
    return x if dtype is None or x.dtype.kind != "c" or np.dtype(dtype).kind == "c" else tracked(x).astype(dtype)


def _reduce(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    x = _in_real_dtype(inputs[0], keywords)
    if is_active(tape, keywords.get("initial")):
        raise no_rule(ufunc, ".reduce for an active `initial`")
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
    record.factor = initial if ufunc is np.multiply and isinstance(initial, (int, float, complex, np.number)) else None
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
    np.cumprod(x[:-1], axis=0, out=before[1:])
    before = np.conj(before)
    factors = np.conj(x)
    total = np.zeros_like(g)
    s = np.zeros_like(g[0]) if len(g) else None
    for k in range(len(g) - 1, -1, -1):
        s = g[k] + (factors[k + 1] * s if k + 1 < len(g) else 0)
        total[k] = s
    return total * before


def _cumulative_extremum_adjoint(g: Any, x: Any, z: Any) -> Any:
    # An element holds the extremum until a later one takes (or ties) it.
    place = np.arange(len(x)).reshape((-1,) + (1,) * (x.ndim - 1))
    holder = np.maximum.accumulate(np.where(x == z, place, 0), axis=0)
    total = np.zeros_like(g)
    np.add.at(total, (holder, *np.indices(x.shape, sparse=True)[1:]), g)
    return total


_ACCUMULATIONS: dict[np.ufunc, tuple[Callable, bool]] = {
    np.add: (_cumsum_adjoint, False),
    np.multiply: (_cumprod_adjoint, True),
    np.maximum: (_cumulative_extremum_adjoint, True),
    np.minimum: (_cumulative_extremum_adjoint, True),
}


class _Accumulation:
    __slots__ = ("adjoint", "axis", "keywords", "result", "source", "ufunc", "x")

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = np.moveaxis(sweep.shadow(self.result), self.axis, 0)
        x = z = None
        if self.x is not None:
            x = np.moveaxis(self.x, self.axis, 0)
            z = self.ufunc.accumulate(x, axis=0)
        sweep.add(self.source, np.moveaxis(self.adjoint(g, x, z), 0, self.axis))


def _accumulate(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    x = _in_real_dtype(inputs[0], keywords)
    keywords = dict(keywords)
    (out,) = keywords.pop("out", (None,)) or (None,)
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
    if out is None:
        return result
    assign(out, result, f"np.{ufunc.__name__}.accumulate(..., out=...)")
    return out


def _reduceat(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    """Segment by segment, through the rules of reduce and item access."""
    x, starts = inputs
    keywords = dict(keywords)
    axis = keywords.pop("axis", 0) % x.ndim
    (out,) = keywords.pop("out", (None,)) or (None,)
    starts = plain_of(np.asarray(starts))
    n = x.shape[axis]
    moved = np.moveaxis(tracked(x), axis, 0)
    parts = []
    for k, start in enumerate(starts):
        stop = starts[k + 1] if k + 1 < len(starts) else n
        segment = moved[start:stop] if start < stop else moved[start : start + 1]
        parts.append(ufunc.reduce(segment, axis=0, **keywords))
    result = np.moveaxis(from_nested(parts), 0, axis)
    plain(result)[...] = ufunc.reduceat(plain(x), starts, axis=axis, **keywords)
    if out is None:
        return result
    assign(out, result, f"np.{ufunc.__name__}.reduceat(..., out=...)")
    return out


def _outer(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    a, b = [x if isinstance(x, np.ndarray) else np.asarray(x) for x in inputs]
    return ufunc(a.reshape(a.shape + (1,) * b.ndim) if not a.ndim or b.ndim else a, b, **keywords)


# -------------------------------------------------------------------------------------------------------- ufunc.at


def _at(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> None:
    """``ufunc.at(a, key[, b])`` in rounds: each selects an element at most once, in NumPy's order of application."""
    target, key, *operand = inputs
    if not isinstance(target, np.ndarray):
        raise TypeError(f"np.{ufunc.__name__}.at needs an array to write into, not {type(target).__name__}")
    if any(is_active(tape, b) for b in operand):
        require_tracked(target, f"np.{ufunc.__name__}.at")
    target = tracked(target)
    places = np.arange(target.size).reshape(target.shape)[_plain_index(key)]
    operand = [b.copy() if isinstance(b, np.ndarray) and np.may_share_memory(b, target) else b for b in operand]
    values = [np.broadcast_to(b, places.shape) if np.ndim(b) else b for b in operand]
    for turn in _turns(places.ravel()):
        chosen = np.unravel_index(places.ravel()[turn], target.shape)
        picked = [getitem(tracked(b.reshape(-1)), turn) if np.ndim(b) else b for b in values]
        setitem(target, chosen, ufunc(getitem(target, chosen), *picked))


def _plain_index(key: Any) -> Any:
    return tuple(plain_of(k) for k in key) if isinstance(key, tuple) else plain_of(key)


def _turns(places: np.ndarray) -> list[np.ndarray]:
    """Positions in ``places`` of every element's first occurrence, of every second one, and so on."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if ordered.size else np.empty(0, int)
    lengths = np.diff(np.r_[starts, ordered.size])
    occurrence = np.arange(ordered.size) - np.repeat(starts, lengths)
    return [np.sort(order[occurrence == k]) for k in range(int(lengths.max(initial=0)))]


class _AddAt:
    """add.at and subtract.at: the target keeps its adjoint, the operand gets the elements'."""

    __slots__ = ("key", "sign", "source", "target")

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.target):
            g = self.sign * np.asarray(sweep.shadow(self.target)[self.key])
            sweep.add(self.source, unbroadcast(g, self.source.shape))


def _add_at(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> None:
    target, key, b = inputs
    key = frozen_key(tape, plain_key(key))
    require_tracked(target, f"np.{ufunc.__name__}.at")
    source = plain_of(b)
    _, undo = write([target], lambda: ufunc.at(plain(target), key, source), None)
    record = None
    if is_active(tape, b) and carries_derivatives(target.dtype):
        record = _AddAt()
        record.target = region_of(target)
        record.key = key
        record.sign = 1.0 if ufunc is np.add else -1.0
        record.source = region_of(b)
        tape.activate(target)
    if record is not None or undo:
        tape.append(record, undo)


def _at_method(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> None:
    (_add_at if ufunc in (np.add, np.subtract) else _at)(tape, ufunc, inputs, active, keywords)


_METHODS: dict[str, Callable] = {
    "__call__": _call,
    "reduce": _reduce,
    "accumulate": _accumulate,
    "reduceat": _reduceat,
    "outer": _outer,
    "at": _at_method,
}
