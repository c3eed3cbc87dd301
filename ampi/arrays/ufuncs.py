"""Calls of NumPy's ufuncs and their methods (`ampi.ndarray.__array_ufunc__`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.missing_rules import no_rule
from ..memory.storages import (
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
from ..tape import BaseAdjoint, Push, Sweep, Tape, current
from . import element_arithmetic, extensions, fast_calls, few_elements, operands, reductions
from .activity import is_active, is_inexact, plain_of, require_arrays, require_tracked
from .callers import is_called_by_numpy
from .elementwise import CONSTANT_FOR_REAL, CONSTANTS, RULES, Rule, unbroadcast
from .exact import exactly
from .indexing import frozen_key, getitem, plain_key, setitem
from .losses import lose
from .nested import from_nested
from .writing import assign, must_announce, write, write_constants

_UPDATES = frozenset((np.add, np.subtract))
_COMPARISONS = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}


_plain_kinds: set[type] = {np.ndarray, int, float, complex, bool, list, tuple, np.float64, np.int64}
"""Classes of operands that are known not to override ``__array_ufunc__``."""


def _overrides(x: Any) -> bool:
    """Return whether an operand's class overrides ``__array_ufunc__``, or sets it to None."""
    kind = type(x)
    if kind in _plain_kinds:
        return False
    method = getattr(kind, "__array_ufunc__", _plain_method)
    if (
        method is not _plain_method
        and method is not TrackedArray.__array_ufunc__
        and not issubclass(kind, TrackedArray)
    ):
        return True
    _plain_kinds.add(kind)
    return False


class _Deferred(Exception):
    """An operand's class overrides ``__array_ufunc__``."""


def _plain_input(x: Any) -> Any:
    if _overrides(x):
        raise _Deferred
    return x


_plain_method = np.ndarray.__array_ufunc__
_CLIP = np._core.umath.clip  # which ndarray.clip calls, for numbers as well


def apply(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict) -> Any:
    """Run ``ufunc.method(*inputs, **keywords)`` and record it if it has an active operand."""
    if keywords:
        outs = keywords.get("out", ())
        if not isinstance(outs, tuple):  # Numba's ufuncs pass it on as it was given
            outs = (outs,)
            keywords = {**keywords, "out": outs}
        if method == "__call__" and len(keywords) == len(outs) == 1 and outs[0] is inputs[0]:
            tape = current()
            if tape is not None and _in_place(tape, ufunc, inputs):
                return inputs[0]
        if any(map(_overrides, (*inputs, *outs, keywords.get("where")))):
            return NotImplemented
        if any(map(is_scalar, outs)):
            return _into_scalars(ufunc, method, inputs, keywords, outs)
        if not all([out is None or isinstance(out, np.ndarray) for out in outs]):
            raise TypeError("return arrays must be of ArrayType")
    tape = current()
    if tape is None:
        try:
            return _passively(ufunc, method, inputs, keywords)
        except _Deferred:
            return NotImplemented
    if not keywords and method == "__call__":
        if ufunc is np.matmul:
            found = few_elements.product(tape, ufunc, *inputs)
        else:
            found = fast_calls.call(tape, ufunc, inputs)
        if found is None and all([not isinstance(x, np.ndarray) or is_scalar(x) for x in inputs]):
            found = element_arithmetic.call(tape, ufunc, inputs)
        if found is not None:
            return found
    if any(map(_overrides, inputs)):
        return NotImplemented
    lists = list if method == "at" else (list, tuple)  # its key may be a tuple
    inputs = tuple([from_nested(x) if isinstance(x, lists) else x for x in inputs])
    if method == "__call__" and ufunc in _COMPARISONS:
        return _passively(ufunc, method, inputs, keywords)
    active = tuple([k for k, x in enumerate(inputs) if isinstance(x, np.ndarray) and is_active(tape, x)])
    if not active and not is_active(tape, keywords.get("initial")):
        return _passively(ufunc, method, inputs, keywords)
    if not isinstance(ufunc, np.ufunc):
        return extensions.compiled_ufuncs.apply(ufunc, method, inputs, keywords)
    if len(inputs) > 1 and method != "at" and any(map(operands.is_object, inputs)):
        return operands.compute(ufunc, method, inputs)
    return _METHODS[method](tape, ufunc, inputs, active, keywords)


def _in_place(tape: Tape, ufunc: np.ufunc, inputs: tuple) -> bool:
    """``target op= x`` by a fast path; False: there is none."""
    if ufunc in _UPDATES and (
        few_elements.update(tape, ufunc, *inputs) or fast_calls.update(tape, ufunc, *inputs) is not None
    ):
        return True
    return few_elements.in_place(tape, ufunc, inputs)


def apply_formula(function: Any, inputs: tuple) -> Any:
    """Call a function of arrays that has a rule of partial derivatives like a ufunc, but is not one."""
    tape = current()
    active = () if tape is None else tuple([k for k, x in enumerate(inputs) if is_active(tape, x)])
    if tape is None or not active:
        return wrapped(function(*map(plain_of, inputs)))
    return _call(tape, function, inputs, active, {})


def _into_scalars(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict, outs: tuple) -> Any:
    """Call a ufunc with a scalar as output: an error, unless NumPy's own code has just computed the scalar."""
    if not is_called_by_numpy(4):
        require_arrays(outs)
    if any(is_scalar(out) and hasattr(out, "_node") for out in outs):  # a variable, which NumPy's code rebinds
        return apply(ufunc, method, inputs, {name: x for name, x in keywords.items() if name not in ("out", "where")})
    arrays = tuple([tracked(writable(out)) if is_scalar(out) else out for out in outs])
    return _with_outputs(outs, apply(ufunc, method, inputs, {**keywords, "out": arrays}))


def _passively(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict) -> Any:
    values = [
        as_viewed(x, np.ndarray) if isinstance(x, TrackedArray) else x if type(x) in _plain_kinds else _plain_input(x)
        for x in inputs
    ]
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
    return _with_outputs(outs, result)


def _mask_key(target: np.ndarray, where: Any, method: str) -> Any:
    if where is True or method != "__call__":
        return None
    return (np.array(np.broadcast_to(where, target.shape)),)


def _with_outputs(outs: tuple, result: Any) -> Any:
    """The results, with the user's output arrays where they were given."""
    if len(outs) == 1:
        return outs[0] if outs[0] is not None else wrapped(result)
    if not outs or result is None:
        return wrapped(result)
    return tuple(out if out is not None else wrapped(r) for out, r in zip(outs, result))


# ---------------------------------------------------------------------------------------------------- plain calls


def _call(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    rule = RULES.get(ufunc)
    if rule is None:
        return _call_without_table(tape, ufunc, inputs, active, keywords)
    if keywords and not keywords.keys().isdisjoint(("dtype", "signature", "sig")):
        inputs = _in_requested_dtypes(ufunc, inputs, keywords)
        active = tuple([k for k in active if is_active(tape, inputs[k])])
    if rule.of_complex is not None and any(
        [(getattr(x, "dtype", None) or np.asarray(x).dtype).kind == "c" for x in inputs]
    ):
        rule = rule.of_complex
        if len(rule.unknown) == len(inputs):
            raise no_rule(ufunc, " of complex numbers")
    terms = rule.terms
    if rule.unknown and any([k in rule.unknown for k in active]):
        if extensions.compiled_ufuncs.has_kernel(ufunc, inputs, active):
            return extensions.compiled_ufuncs.apply(ufunc, "__call__", inputs, keywords)
        where = f" with respect to argument {min(set(active) & set(rule.unknown))}"
        raise no_rule(ufunc if isinstance(ufunc, np.ufunc) else ufunc.described(), where)
    active = tuple([k for k in active if terms[k] is not None])
    if not active:
        return _passively(ufunc, "__call__", inputs, keywords)
    if keywords:
        return _call_with_keywords(tape, ufunc, rule, inputs, active, keywords)
    if ufunc is _CLIP and type(inputs[0]) is np.ndarray and not inputs[0].ndim and not is_called_by_numpy(5):
        raise no_rule(ufunc, " as a method of one of NumPy's own numbers (write np.clip(x, low, high))")
    result = wrapped(ufunc(*[as_viewed(x, np.ndarray) if isinstance(x, TrackedArray) else x for x in inputs]))
    if is_inexact(result):
        _record_fresh(tape, rule, inputs, active, result, None)
    elif result.dtype.kind in "mM":
        _lose_times(inputs, active)
    return result


def _in_requested_dtypes(ufunc: np.ufunc, inputs: tuple, keywords: dict) -> tuple:
    """The operands as the call converts them before it computes: to complex, real or whole numbers."""
    signature, dtype = keywords.get("signature", keywords.get("sig")), keywords.get("dtype")
    if isinstance(signature, str):
        kinds = [np.dtype(kind) for kind in signature.replace("->", "")]
        signature = tuple(kinds) if len(kinds) > 1 or ufunc.nargs == 1 else None
        dtype = kinds[0] if signature is None else None
    if signature is None or isinstance(signature, (np.dtype, type)):
        signature = (None,) * ufunc.nin + (dtype if signature is None else signature,) * ufunc.nout
    elif len(signature) == 1:
        signature = (None,) * ufunc.nin + (*signature,) * ufunc.nout
    given = [
        type(x) if type(x) in (int, float, complex) else getattr(x, "dtype", None) or np.asarray(x).dtype
        for x in inputs
    ]
    casting = keywords.get("casting", "same_kind")
    found = ufunc.resolve_dtypes((*given, *[None] * ufunc.nout), signature=signature, casting=casting)
    return tuple([_converted(x, dtype) for x, dtype in zip(inputs, found)])


def _converted(x: Any, dtype: np.dtype) -> Any:
    kind = (getattr(x, "dtype", None) or np.asarray(x).dtype).kind
    if kind not in "fc" or kind == dtype.kind:
        return x  # no more than a precision, or a constant
    return (tracked(x) if isinstance(x, np.ndarray) else np.asarray(x)).astype(dtype)


def _lose_times(inputs: tuple, active: tuple) -> None:
    """Warn of a result in whole units of time, as datetime64 and timedelta64 count it."""
    lose("a time (timedelta64) computed from", inputs[active[0]], "compute with a number of seconds")


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
    rule = rule.of_mixed(values, result.dtype)
    tape.append(fast_calls.Elementwise(rule, active, regions, region_of(result), values, True, mask), created=(result,))


def _frozen(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, list) else x


_OPTIONS = frozenset(("out", "where", "casting", "order", "dtype", "subok", "signature", "sig"))


def _call_with_keywords(
    tape: Tape, ufunc: np.ufunc, rule: Rule, inputs: tuple, active: tuple, keywords: dict
) -> TrackedArray:
    if not keywords.keys() <= _OPTIONS:
        raise no_rule(ufunc, f" in NumPy {np.__version__} with the argument {', '.join(keywords.keys() - _OPTIONS)}")
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
        elif result.dtype.kind in "mM":
            _lose_times(inputs, active)
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
        if out.dtype.kind in "mM":
            _lose_times(inputs, active)
        write_constants([out], action, key)
        return out
    if mask is not None and out.dtype.kind == "c":
        _require_whole(ufunc, operands, plain(out))
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
    rule = rule.of_mixed(values, out.dtype)
    tape.append(fast_calls.Elementwise(rule, active, regions, region_of(out), values, False, mask, recompute), undo)
    tape.activate(out)
    return out


def _require_whole(ufunc: np.ufunc, operands: list, out: np.ndarray) -> None:
    """Refuse real operands in a complex output's memory: NumPy also converts elements that `where` leaves out."""
    real = [np.asarray(x).dtype.kind != "c" for x in operands]
    if all(real) and any(isinstance(x, np.ndarray) and np.may_share_memory(x, out, max_work=1) for x in operands):
        raise no_rule(
            ufunc,
            " with where= into complex numbers whose memory a real operand shares (NumPy discards imaginary parts "
            "where nothing is computed; write into a separate array)",
        )


def _call_without_table(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    """Call a ufunc without partial derivatives: rewritten, generalized, constant, or without a rule."""
    if ufunc in _REWRITTEN:
        outs = keywords.get("out")
        if keywords and (outs is None or len(keywords) > 1):
            others = [name for name in keywords if name != "out"]
            raise no_rule(ufunc, f" with the argument {', '.join(others)}")
        results = _REWRITTEN[ufunc](*inputs)
        return results if outs is None else _write_results(ufunc, results, outs)
    if ufunc in extensions.generalized_ufuncs:
        return extensions.call_ufunc_without_partials(ufunc, inputs, keywords)
    complex_input = any(inputs[k].dtype.kind == "c" for k in active)
    if ufunc in CONSTANTS and not (complex_input and ufunc in CONSTANT_FOR_REAL):
        return _passively(ufunc, "__call__", inputs, keywords)
    if not _gives_numbers(ufunc, inputs):
        return _passively(ufunc, "__call__", inputs, keywords)
    return extensions.call_ufunc_without_partials(ufunc, inputs, keywords)


def _gives_numbers(ufunc: np.ufunc, inputs: tuple) -> bool:
    """Return whether the result is floating-point or complex, and so would carry a derivative."""
    dtypes = [
        type(x) if type(x) in (int, float, complex) else getattr(x, "dtype", None) or np.asarray(x).dtype
        for x in inputs
    ]
    found = ufunc.resolve_dtypes((*dtypes, *[None] * ufunc.nout))
    return any(carries_derivatives(dtype) or dtype.hasobject for dtype in found[ufunc.nin :])


def _write_results(ufunc: np.ufunc, results: tuple, outs: Any) -> tuple:
    for out, result in zip(outs, results):
        if out is not None:
            assign(out, result, f"np.{ufunc.__name__}(..., out=...)", "same_kind")
    return _with_outputs(outs, results)


@exactly(np.divmod)
def _divmod(x: Any, y: Any) -> tuple:
    return np.floor_divide(x, y), np.remainder(x, y)


@exactly(np.modf)
def _modf(x: Any) -> tuple:
    whole = np.trunc(x)
    return x - whole, whole


@exactly(np.frexp)
def _frexp(x: Any) -> tuple:
    _, exponent = np.frexp(plain_of(x))
    return np.ldexp(x, -exponent), wrapped(exponent)


_REWRITTEN: dict[np.ufunc, Callable] = {np.divmod: _divmod, np.modf: _modf, np.frexp: _frexp}


def _outer(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> Any:
    a, b = [x if isinstance(x, np.ndarray) else np.asarray(x) for x in inputs]
    return ufunc(a.reshape(a.shape + (1,) * b.ndim) if not a.ndim or b.ndim else a, b, **keywords)


# -------------------------------------------------------------------------------------------------------- ufunc.at


def _at(tape: Tape, ufunc: np.ufunc, inputs: tuple, active: tuple, keywords: dict) -> None:
    """``ufunc.at(a, key[, b])`` in rounds, in NumPy's order: each round selects an element at most once."""
    target, key, *operand = inputs
    if not isinstance(target, np.ndarray):
        raise TypeError(f"np.{ufunc.__name__}.at needs an array to write into, not {type(target).__name__}")
    if any(is_active(tape, b) for b in operand):
        require_tracked(target, f"np.{ufunc.__name__}.at")
    target = tracked(target)
    places = np.arange(target.size).reshape(target.shape)[_plain_index(key)]
    operand = [b.copy() if isinstance(b, np.ndarray) and np.may_share_memory(b, target) else b for b in operand]
    values = [np.broadcast_to(b, places.shape) if np.ndim(b) else b for b in operand]
    for turn in _rounds(places.ravel()):
        chosen = np.unravel_index(places.ravel()[turn], target.shape)
        picked = [getitem(tracked(b.reshape(-1)), turn) if np.ndim(b) else b for b in values]
        setitem(target, chosen, ufunc(getitem(target, chosen), *picked))


def _plain_index(key: Any) -> Any:
    return tuple(plain_of(k) for k in key) if isinstance(key, tuple) else plain_of(key)


def _rounds(places: np.ndarray) -> list[np.ndarray]:
    """Positions in ``places`` of the first occurrences of all elements, then of the second ones, and so on."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if ordered.size else np.empty(0, int)
    lengths = np.diff(np.r_[starts, ordered.size])
    occurrence = np.arange(ordered.size) - np.repeat(starts, lengths)
    return [np.sort(order[occurrence == k]) for k in range(int(lengths.max(initial=0)))]


class _AddAt(BaseAdjoint):
    """Adjoint of add.at and subtract.at: the operand gets the adjoint of the selected elements."""

    __slots__ = ("key", "sign", "source", "target")
    second_order = "linear"

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.target):
            g = self.sign * np.asarray(sweep.shadow(self.target)[self.key])
            sweep.add(self.source, unbroadcast(g, self.source.shape))

    def tangent(self, push: Push) -> None:
        """Add the operand's tangent as the operand was added."""
        x_dot = push.get(self.source)
        x_dot = np.real(x_dot) if self.target.dtype.kind == "f" else x_dot
        np.add.at(push.shadow(self.target), self.key, self.sign * x_dot)


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
    "reduce": reductions.reduce,
    "accumulate": reductions.accumulate,
    "reduceat": reductions.reduceat,
    "outer": _outer,
    "at": _at_method,
}
