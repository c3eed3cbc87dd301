"""NumPy functions that move elements: they return views, which need no record, or copies.

The function itself shows where the elements of a copy came from: it is run on the elements' indices instead of their
values. Index 0 stands for constants (padding, zeros outside a triangle), which get no adjoint.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import carries, carry, plain_of, run_plainly
from ..arrays.elementwise import unbroadcast
from ..arrays.indexing import scatter_add
from ..arrays.nested import from_nested
from ..base.missing_rules import no_rule
from ..base.structures import bound, leaves, mapped
from ..memory.layouts import is_contiguous, memory_order
from ..memory.storages import Region, is_scalar, is_view_of, region_of, wrapped
from ..tape import BaseAdjoint, Push, Sweep, Tape, current


class _Source:
    """Placeholder for an active array among the arguments of a recorded function."""

    __slots__ = ("region",)

    def __init__(self, region: Region) -> None:
        self.region = region


class _Constant:
    """Placeholder for an array or number whose values are constants."""

    __slots__ = ("shape",)

    def __init__(self, shape: tuple) -> None:
        self.shape = shape


class _Movement(BaseAdjoint):
    __slots__ = ("action", "arguments", "results")
    second_order = "linear"

    def __init__(self, action: Callable, arguments: dict, results: list[Region | None]) -> None:
        self.action = action
        self.arguments = arguments
        self.results = results

    def __call__(self, sweep: Sweep) -> None:
        reached = [k for k, r in enumerate(self.results) if r is not None and sweep.has_shadow(r)]
        if not reached:
            return
        origin, starts, first = self._origins()
        total = None
        for k in reached:
            region = self.results[k]
            assert region is not None
            g = sweep.shadow(region)
            contribution = _sums(np.asarray(origin[k]), g, first)
            total = contribution if total is None else total + contribution
        assert total is not None
        for start, region in starts:
            sweep.add(region, total[start : start + _size(region)].reshape(region.shape))

    def _origins(self) -> tuple[list, list[tuple[int, Region]], int]:
        """Origins of each result's elements, the first index of each source, and the number of indices."""
        first = 1
        starts: list[tuple[int, Region]] = []

        def positions(x: Any) -> Any:
            nonlocal first
            if isinstance(x, _Constant):
                return np.zeros(x.shape, np.intp)
            if not isinstance(x, _Source):
                return x
            starts.append((first, x.region))
            first += _size(x.region)
            return _positions(x.region, starts[-1][0])

        arguments = mapped(positions, self.arguments)
        return list(leaves(self.action(arguments))), starts, first

    def tangent(self, push: Push) -> None:
        """Move the tangents' elements as the values were moved."""
        origin, starts, _ = self._origins()
        parts = [push.get(region).reshape(-1) for _, region in starts]
        flat = np.concatenate([np.zeros(1, parts[0].dtype), *parts])
        for k, region in enumerate(self.results):
            if region is not None:
                push.put(region, flat[np.asarray(origin[k])])


def _size(region: Region) -> int:
    return math.prod(region.shape)


def _positions(region: Region, first: int) -> np.ndarray:
    """Consecutive indices in an array with the region's memory order, and with gaps if it has some.

    Functions with ``order="K"`` or ``order="A"`` depend on these.
    """
    order = memory_order(region.shape, region.strides)
    lengths = [region.shape[k] for k in order]
    steps = [1] * len(lengths)
    if not is_contiguous(region.shape, region.strides, region.dtype.itemsize):
        steps[max(k for k, n in enumerate(lengths) if n != 1)] = 2
    made = np.empty([n * step for n, step in zip(lengths, steps)], np.intp)
    made = made[tuple([slice(None, None, step) for step in steps] + [...])]
    made = made.transpose(np.argsort(order) if order else None)
    made[...] = np.arange(first, first + made.size).reshape(made.shape)
    return made


def _sums(origin: np.ndarray, g: np.ndarray, n: int) -> np.ndarray:
    """For each index the sum of the adjoints of the elements that came from it."""
    place = origin.ravel()
    values = g.ravel()
    if g.dtype.names is not None or g.dtype.char in "gG":  # which bincount does not take
        total = np.zeros_like(g, shape=n)
        scatter_add(total, place, values)
        return total
    if g.dtype.kind == "c":
        return np.bincount(place, values.real, n) + 1j * np.bincount(place, values.imag, n)
    return np.bincount(place, values, n)


_SPREADING = (np.broadcast_to, np.broadcast_arrays)


def _moving(function: Callable, parameters: str, data: str, check: Callable | None = None) -> Callable:
    """The rule of a function that moves elements of its parameters ``data``, as its other parameters say."""
    moved = data.split()

    def rule(*arguments: Any, **keywords: Any) -> Any:
        tape = current()
        assert tape is not None
        given = bound(parameters, arguments, keywords)
        if function in _SPREADING:  # one number in many places: a view, which needs no record
            given = mapped(lambda x: x[...] if is_scalar(x) else x, given)
        if check is not None:
            check(given)
        result = run_plainly(lambda **plain: _run(function, parameters, plain), (), given)
        results = list(leaves(result))
        inputs = [x for x in leaves(given) if isinstance(x, np.ndarray)]
        sources = [x for name in moved if name in given for x in leaves(given[name]) if carries(tape, x)]
        new = [r for r in results if isinstance(r, np.ndarray) and not is_view_of(r, inputs)]
        copies = [r for r in new if carry(tape, r, sources)]
        if not copies:
            return result
        frozen = {
            name: mapped(lambda x: _place(tape, x), x) if name in moved else mapped(lambda x: _control(tape, x), x)
            for name, x in given.items()
            if name not in ("dtype", "casting")
        }
        if function is np.pad and frozen.get("mode") == "empty":  # indices must not be arbitrary
            frozen["mode"] = "constant"
        regions = [region_of(r) if any(r is c for c in copies) else None for r in results]
        tape.append(_Movement(lambda a: _run(function, parameters, a), frozen, regions), created=copies)
        return result

    return rule


def _run(function: Callable, parameters: str, given: dict) -> Any:
    # By position where possible: many of NumPy's parameters are positional only.
    given = dict(given)
    positional: list = []
    by_name = _only_by_name(function)
    for name in parameters.split():
        if name not in given or name in by_name:
            break
        positional.append(given.pop(name))
    return function(*positional, **given)


@functools.cache
def _only_by_name(function: Callable) -> frozenset[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return frozenset()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def _place(tape: Tape, x: Any) -> Any:
    if carries(tape, x):
        return _Source(region_of(x))
    return x if x is None else _Constant(np.shape(x))


def _control(tape: Tape, x: Any) -> Any:
    return tape.need(x) if isinstance(x, np.ndarray) else x


# ------------------------------------------------------------------------------------------- views, mostly

VIEWS = {
    "atleast_1d": None,
    "atleast_2d": None,
    "atleast_3d": None,
    "broadcast_arrays": None,
    "array_split": "ary indices_or_sections axis",
    "broadcast_to": "array shape subok",
    "diagonal": "a offset axis1 axis2",
    "dsplit": "ary indices_or_sections",
    "expand_dims": "a axis",
    "flip": "m axis",
    "fliplr": "m",
    "flipud": "m",
    "hsplit": "ary indices_or_sections",
    "matrix_transpose": "x",
    "moveaxis": "a source destination",
    "permute_dims": "a axes",
    "ravel": "a order",
    "reshape": "a shape order copy",
    "rollaxis": "a axis start",
    "rot90": "m k axes",
    "split": "ary indices_or_sections axis",
    "squeeze": "a axis",
    "swapaxes": "a axis1 axis2",
    "transpose": "a axes",
    "trim_zeros": "filt trim axis",
    "unstack": "x axis",
    "vsplit": "ary indices_or_sections",
}


def _viewing(function: Callable, parameters: str | None) -> Callable:
    """The rule of a function that returns views; a copy is recorded as a movement of elements."""
    if parameters is not None:
        return _moving(function, parameters, parameters.split()[0])

    def rule(*arguments: Any, **keywords: Any) -> Any:
        names = [f"a{k}" for k in range(len(arguments))]
        return _moving(function, " ".join(names), " ".join(names))(*arguments, **keywords)

    return rule


# ------------------------------------------------------------------------------------------------------- copies

_MODES = ("constant", "edge", "empty", "reflect", "symmetric", "wrap")


def _check_pad(given: dict) -> None:
    if given.get("mode", "constant") not in _MODES or given.get("reflect_type", "even") != "even":
        raise no_rule(np.pad, f" for mode={given.get('mode')!r} with {given.get('reflect_type', 'even')} reflection")


_COPIES = {
    "append": ("arr values axis", "arr values"),
    "block": ("arrays", "arrays"),
    "choose": ("a choices out mode", "choices"),
    "column_stack": ("tup", "tup"),
    "compress": ("condition a axis out", "a"),
    "copy": ("a order subok", "a"),
    "delete": ("arr obj axis", "arr"),
    "diag": ("v k", "v"),
    "diagflat": ("v k", "v"),
    "dstack": ("tup", "tup"),
    "extract": ("condition arr", "arr"),
    "hstack": ("tup", "tup"),
    "insert": ("arr obj values axis", "arr values"),
    "pad": ("array pad_width mode", "array constant_values"),
    "repeat": ("a repeats axis", "a"),
    "resize": ("a new_shape", "a"),
    "roll": ("a shift axis", "a"),
    "select": ("condlist choicelist default", "choicelist default"),
    "stack": ("arrays axis out", "arrays"),
    "take": ("a indices axis out mode", "a"),
    "tile": ("A reps", "A"),
    "tril": ("m k", "m"),
    "triu": ("m k", "m"),
    "vstack": ("tup", "tup"),
}


class _Where(BaseAdjoint):
    __slots__ = ("condition", "result", "sources")
    second_order = "linear"

    def __init__(self, condition: Any, sources: list[tuple[bool, Region]], result: Region) -> None:
        self.condition = condition
        self.sources = sources
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = sweep.shadow(self.result)
        for chosen, region in self.sources:
            part = np.where(self.condition, g, 0) if chosen else np.where(self.condition, 0, g)
            sweep.add(region, unbroadcast(part, region.shape))

    def tangent(self, push: Push) -> None:
        """Select from the tangents."""
        given: dict[bool, Any] = {True: 0, False: 0}
        for chosen, region in self.sources:
            given[chosen] = push.get(region)
        push.put(self.result, np.where(self.condition, given[True], given[False]))


def _where(condition: Any, x: Any = None, y: Any = None) -> Any:
    if x is None and y is None:
        return wrapped(np.where(plain_of(condition)))
    x, y = from_nested(x), from_nested(y)
    tape = current()
    assert tape is not None
    result = wrapped(np.where(plain_of(condition), plain_of(x), plain_of(y)))
    active = [(chosen, v) for chosen, v in ((True, x), (False, y)) if carries(tape, v)]
    if active and carry(tape, result, [v for _, v in active]):
        sources = [(chosen, region_of(v)) for chosen, v in active]
        kept = tape.need(condition) if isinstance(condition, np.ndarray) else np.asarray(condition)
        tape.append(_Where(kept, sources, region_of(result)), created=(result,))
    return result


class _Concatenate(BaseAdjoint):
    __slots__ = ("axis", "result", "sources")
    second_order = "linear"

    def __init__(self, axis: int, sources: list[tuple[int, Region]], result: Region) -> None:
        self.axis = axis
        self.sources = sources
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = np.moveaxis(sweep.shadow(self.result), self.axis, 0)
        for start, region in self.sources:
            part = g[start : start + region.shape[self.axis]]
            sweep.add(region, np.moveaxis(part, 0, self.axis))

    def tangent(self, push: Push) -> None:
        """Concatenate the tangents."""
        y_dot = np.zeros(self.result.shape, push.dtype(self.result))
        along = np.moveaxis(y_dot, self.axis, 0)
        for start, region in self.sources:
            along[start : start + region.shape[self.axis]] = np.moveaxis(push.get(region), self.axis, 0)
        push.put(self.result, y_dot)


def _concatenate(arrays: Any, axis: Any = 0, out: None = None, **keywords: Any) -> Any:
    parts = [x if isinstance(x, np.ndarray) else np.asarray(from_nested(x)) for x in arrays]
    if axis is None:
        parts, axis = [part.ravel() for part in parts], 0
    tape = current()
    assert tape is not None
    result = wrapped(np.concatenate([plain_of(part) for part in parts], axis, **keywords))
    axis = axis % result.ndim
    starts = np.cumsum([0] + [part.shape[axis] for part in parts])
    active = [(int(start), part) for start, part in zip(starts, parts) if carries(tape, part)]
    if active and carry(tape, result, [part for _, part in active]):
        sources = [(start, region_of(part)) for start, part in active]
        tape.append(_Concatenate(axis, sources, region_of(result)), created=(result,))
    return result


def available(names: dict) -> dict:
    return {name: rest for name, rest in names.items() if hasattr(np, name)}


RULES: dict[Callable, Callable] = {
    **{getattr(np, name): _viewing(getattr(np, name), p) for name, p in available(VIEWS).items()},
    **{
        getattr(np, name): _moving(getattr(np, name), p, data, _check_pad if name == "pad" else None)
        for name, (p, data) in available(_COPIES).items()
    },
    np.concatenate: _concatenate,
    np.where: _where,
    np.lib.stride_tricks.sliding_window_view: _viewing(
        np.lib.stride_tricks.sliding_window_view, "x window_shape axis subok writeable"
    ),
    np.fft.fftshift: _moving(np.fft.fftshift, "x axes", "x"),
    np.fft.ifftshift: _moving(np.fft.ifftshift, "x axes", "x"),
    np.linalg.diagonal: _viewing(np.linalg.diagonal, "x offset"),
    np.linalg.matrix_transpose: _viewing(np.linalg.matrix_transpose, "x"),
}
