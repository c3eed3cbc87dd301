"""Functions that move elements on a device: views, which need no record, and copies.

As on the host, a function itself shows where the elements of a copy came from: for the adjoint it runs on the elements'
indices.  Index 0 stands for constants.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.elementwise import unbroadcast
from ..arrays.indexing import writers_of
from ..base.missing_rules import no_rule
from ..base.program_lines import where_called
from ..base.structures import bound, leaves, mapped
from ..errors import KernelError
from ..rules.movement import VIEWS, available
from ..tape import recording
from .arrays import DeviceArray, has_arrays, region, to_device, transfer
from .backends import device
from .elementwise import ON_DEVICE
from .memory import Memory, append, overwrite
from .operations import (
    Computed,
    active,
    add,
    any_active,
    array_of,
    compute,
    each,
    kept_value,
    of_kind,
    operand,
    operands,
    record,
)

# ---------------------------------------------------------------------------------------------------------- views

_OTHERS = "ravel", "reshape", "trim_zeros", "unstack"  # they may copy, look at values, or have no parameter axis
_VIEWS = {name: parameters for name, parameters in VIEWS.items() if parameters is not None and name not in _OTHERS}


def _viewing(function: Callable, parameters: str) -> Callable:
    """Return the rule of a function that returns views, which depend on the layout of its argument only."""
    name, *others = parameters.split()

    def rule(*arguments: Any, **keywords: Any) -> Any:
        given = bound(parameters, arguments, keywords)
        x = operand(given.pop(name), function.__name__)
        found = function(x.sketch(), **{n: given[n] for n in others if n in given})
        return mapped(lambda view: x.like(view) if isinstance(view, np.ndarray) else view, found)

    return rule


def _at_least(function: Callable) -> Callable:
    def rule(*arrays: Any) -> Any:
        found = [x.like(function(x.sketch())) for x in operands(arrays, function.__name__)]
        return found[0] if len(found) == 1 else tuple(found)

    return rule


def _broadcast_arrays(*arrays: Any, subok: bool = False) -> Any:
    found = operands(arrays, "numpy.broadcast_arrays")
    shape = np.broadcast_shapes(*[x.shape for x in found])
    return tuple([np.broadcast_to(x, shape) for x in found])


def reshape(x: Any, shape: Any, order: str = "C") -> Any:
    """`numpy.reshape`: a view where the layout allows it, else a copy."""
    x = operand(x, "numpy.reshape")
    if order not in ("C", "F"):
        raise no_rule(np.reshape, f" with order={order!r}{ON_DEVICE}")
    if not x.size:
        return x.like(x.sketch().reshape(shape))
    view = _view_in_shape(x.sketch(), shape, order)
    if view is None:
        x = copied(x, order)
        view = _view_in_shape(x.sketch(), shape, order)
    return x.like(view)  # type: ignore[arg-type]


def _view_in_shape(sketch: np.ndarray, shape: Any, order: Any) -> np.ndarray | None:
    """Return a view in another shape; None if elements would have to be copied, which a sketch must not be."""
    if (sketch.flags.f_contiguous if order == "F" else sketch.flags.c_contiguous) or not sketch.ndim:
        return sketch.reshape(shape, order=order)
    try:
        return sketch.reshape(shape, order=order, copy=False)
    except ValueError:
        return None
    except TypeError:  # before NumPy 2.1
        view = sketch.T.view() if order == "F" else sketch.view()
        shape = np.broadcast_to(np.False_, sketch.shape).reshape(shape, order=order).shape  # without -1
        with contextlib.suppress(AttributeError):
            view.shape = shape[::-1] if order == "F" else shape
            return view.T if order == "F" else view
        return None


def copied(x: DeviceArray, order: str = "C") -> DeviceArray:
    """Return a copy in C or Fortran order."""
    result = compute(lambda a: a.copy(order=order), x)
    return record("a copy", [x], result, None, each(lambda k, g, values: g), lambda dots, values: dots[0])


def ravel(x: Any, order: str = "C") -> Any:
    """`numpy.ravel`."""
    return reshape(x, (-1,), order)


def astype(x: Any, dtype: Any, copy: bool = True, **options: Any) -> Any:
    """``x.astype(dtype)``."""
    x = operand(x, "astype")
    if not copy and x.dtype == dtype:
        return x
    result = compute(lambda a: a.astype(dtype), x)
    return record("astype", [x], result, None, each(lambda k, g, values: g), lambda dots, values: dots[0])


def part_of_complex(name: str) -> Callable:
    """Return the rule of `numpy.real` or `numpy.imag`: a view of complex numbers."""

    def rule(val: Any) -> Any:
        x = operand(val, f"numpy.{name}")
        if x.dtype.kind == "c":
            return x.like(getattr(x.sketch(), name))
        return x if name == "real" else np.zeros_like(x)

    return rule


# --------------------------------------------------------------------------------------------------------- copies

_COPIES = {
    "append": ("arr values axis", "arr values"),
    "column_stack": ("tup", "tup"),
    "compress": ("condition a axis", "a"),
    "concatenate": ("arrays axis", "arrays"),
    "delete": ("arr obj axis", "arr"),
    "diag": ("v k", "v"),
    "diagflat": ("v k", "v"),
    "dstack": ("tup", "tup"),
    "extract": ("condition arr", "arr"),
    "hstack": ("tup", "tup"),
    "pad": ("array pad_width mode", "array"),
    "repeat": ("a repeats axis", "a"),
    "resize": ("a new_shape", "a"),
    "roll": ("a shift axis", "a"),
    "select": ("condlist choicelist default", "choicelist default"),
    "stack": ("arrays axis", "arrays"),
    "take": ("a indices axis", "a"),
    "take_along_axis": ("arr indices axis", "arr"),
    "tile": ("A reps", "A"),
    "tril": ("m k", "m"),
    "triu": ("m k", "m"),
    "vstack": ("tup", "tup"),
}


class _Place:
    """Where a source is in the structure of arguments."""

    __slots__ = ("k", "shape")

    def __init__(self, k: int | None, shape: Any) -> None:
        self.k, self.shape = k, shape


def move(name: str, action: Callable[..., Any], given: Any, control: Any = None, of_places: Any = None) -> Any:
    """Call ``action(given, control)``, which moves elements of the arrays in ``given``, and record it.

    ``of_places`` is the action for indices, if it differs.
    """
    of_places = action if of_places is None else of_places
    result = compute(action, given, control)
    if not any_active(given):
        return result
    tape = recording()
    inputs = list(leaves(given))
    places = iter([_Place(k if active(tape, x) else None, getattr(x, "shape", None)) for k, x in enumerate(inputs)])
    structure = mapped(lambda x: next(places), given)
    result_shape = result.shape

    def origins(control: Any) -> tuple[Any, list[tuple[int, int, _Place]], int]:
        library = device().library
        first, starts = 1, []

        def indices(place: _Place) -> Any:
            nonlocal first
            if place.k is None:
                return library.zeros(place.shape, np.int64) if place.shape is not None else 0
            start, first = first, first + math.prod(place.shape)
            starts.append((start, first, place))
            return library.arange(start, first).reshape(place.shape)

        found = of_places(mapped(indices, structure), control)
        return found, starts, first

    def sums(g: Any, control: Any) -> tuple[Any, list[tuple[int, int, _Place]]]:
        origin, starts, n = origins(control)
        total = device().library.zeros(n, g.dtype)
        where, g = origin.ravel(), g.ravel()
        if g.dtype.kind == "c":  # CuPy does not add complex numbers
            np.add.at(total.real, where, g.real)
            np.add.at(total.imag, where, g.imag)
        else:
            np.add.at(total, where, g)
        return total, starts

    def adjoint(ks: list[int], g: Any, values: Any) -> Any:
        total, starts = sums(g, values)
        return [(place.k, total[start:stop].reshape(place.shape)) for start, stop, place in starts]

    def push(dots: dict[int, Any], values: Any) -> Any:
        library = device().library
        origin, starts, _ = origins(values)
        kind = next(iter(dots.values())).dtype
        kind = np.result_type(*[dot.dtype for dot in dots.values()]) if len(dots) > 1 else kind
        parts = [library.zeros(1, kind)]
        for start, stop, place in starts:
            parts.append(dots[place.k].ravel() if place.k in dots else library.zeros(stop - start, kind))
        return np.concatenate(parts)[origin].reshape(result_shape)

    return record(name, inputs, result, control, adjoint, push)


def _moving(function: Callable, parameters: str, data: str) -> Callable:
    """Return the rule of a function that moves elements of its parameters ``data``."""
    names = parameters.split()

    def rule(*arguments: Any, **keywords: Any) -> Any:
        extra = [n for n in keywords if n not in names and n != "constant_values"]
        if extra or len(arguments) > len(names) or (function is not np.pad and "constant_values" in keywords):
            raise no_rule(function, f" with {', '.join(extra) or 'these arguments'}{ON_DEVICE}")
        constant = {n: keywords.pop(n) for n in ("constant_values",) if n in keywords}
        if function is np.pad and keywords.get("mode", (*arguments, "constant")[2:3] or "constant") in ("empty",):
            raise no_rule(function, f" with mode='empty'{ON_DEVICE}")
        given = operands(bound(parameters, arguments, keywords), function.__name__)
        moved = {n: given[n] for n in data.split() if n in given}
        control = {n: given[n] for n in given if n not in moved}
        if any_active(control) or any_active(constant):
            raise no_rule(function, f" with respect to {', '.join({**control, **constant})}{ON_DEVICE}")

        def run(moved: Any, control: Any, **fill: Any) -> Any:
            every = {**moved, **control}
            by_position = []
            for n in names:
                if n not in every or n == "axis":
                    break
                by_position.append(every.pop(n))
            return function(*by_position, **every, **fill)

        name = f"numpy.{function.__name__}"
        return move(name, functools.partial(run, **constant), moved, control, run)

    return rule


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """`numpy.where`."""
    condition = operand(condition, "numpy.where")
    if x is None and y is None:
        return compute(np.where, condition)
    x, y = operands((x, y), "numpy.where")
    result = compute(np.where, condition, x, y)
    shapes = [v.shape if isinstance(v, Memory) else () for v in (x, y)]

    def adjoint(k: int, g: Any, condition: Any) -> Any:
        return unbroadcast(np.where(condition, 0, g) if k else np.where(condition, g, 0), shapes[k])

    def push(dots: dict[int, Any], condition: Any) -> Any:
        return np.where(condition, dots.get(0, 0), dots.get(1, 0))

    return record("numpy.where", [x, y], result, condition, each(adjoint), push)


# ------------------------------------------------------------------------------------------------- indices as arrays


def _key(key: Any) -> tuple[Any, ...]:
    """Return an index with its arrays on the device."""
    items = []
    for item in key if isinstance(key, tuple) else (key,):
        if isinstance(item, list):
            item = np.asarray(item, np.int64 if not item else None)
        if isinstance(item, np.ndarray) and item.dtype.kind in "iub":
            item = to_device(item)
        elif not (item is None or item is Ellipsis or isinstance(item, (slice, int, np.integer))):
            item = operand(item, "an index")
            if not isinstance(item, Memory) or item.dtype.kind not in "iub":
                raise KernelError(
                    f"{where_called()}: an array on a device is indexed by {type(item).__name__}; it takes integers, "
                    "slices, and arrays of integers or booleans"
                )
        items.append(item)
    return tuple(items)


def gather(x: DeviceArray, key: Any) -> Any:
    """``x[key]`` with arrays in the key: a copy."""
    return move("an index", lambda x, key: x[key], x, _key(key))


class Scattered(Computed):
    """Record of ``target[key] = source``, where the key has arrays; the values are the key and the `_writers`."""

    __slots__ = ()

    def __call__(self, sweep: Any) -> None:
        """Take the adjoints of the elements that were overwritten, and add them to that of the source."""
        if not sweep.has_shadow(self.result):
            return
        sweep.put_back(self.storages)
        with self.device.computing():
            shadow, (key, writers) = array_of(sweep.shadow(self.result)), mapped(array_of, self.values)
            g = shadow[key]
            if writers is not None:
                g = np.where(writers == _order(writers), g, 0)
            self.end(shadow, key)
            for _, source in self.sources:
                add(sweep.shadow(source), unbroadcast(g, source.shape))

    def end(self, shadow: Any, key: Any) -> None:
        """Set the adjoints of the elements to zero, which were overwritten."""
        shadow[key] = 0

    def tangent(self, push: Any) -> None:
        """Set the tangents of these elements."""
        dots = [push.shadow(source) for _, source in self.sources if push.has_shadow(source)]
        if not dots and not push.has_shadow(self.result):
            return
        with self.device.computing():
            dot = of_kind(array_of(dots[0]), self.result.dtype) if dots else 0
            key, writers = mapped(array_of, self.values)
            self.put(array_of(push.shadow(self.result)), key, _of_writers(dot, writers) if dots else 0)

    def put(self, y_dot: Any, key: Any, x_dot: Any) -> None:
        """Set tangents."""
        y_dot[key] = x_dot


class AddedAt(Scattered):
    """Record of ``numpy.add.at(target, key, source)``."""

    __slots__ = ()

    def end(self, shadow: Any, key: Any) -> None:
        """Do nothing: the elements were not overwritten."""

    def put(self, y_dot: Any, key: Any, x_dot: Any) -> None:
        """Add tangents."""
        np.add.at(y_dot, key, x_dot)


def _order(writers: Any) -> Any:
    return device().library.arange(writers.size).reshape(writers.shape)


def _writers(target: DeviceArray, key: tuple[Any, ...]) -> Any:
    """Return for each value of ``target[key] = values`` the number of the one that is to be in its element."""
    arange = device().library.arange
    return compute(lambda target, key: writers_of(target, key, target[key].shape, arange)[0], target, key)


def _of_writers(value: Any, writers: Any) -> Any:
    """Return values for ``target[key] = values`` of which those of one element are equal: CuPy has no order."""
    return value if writers is None else np.broadcast_to(value, writers.shape).ravel()[writers]


def _may_repeat(key: tuple[Any, ...]) -> bool:
    return any([isinstance(item, Memory) and item.dtype != bool and item.size > 1 for item in key])


def _write(target: DeviceArray, key: Any, value: Any, run: Callable, kind: type[Scattered]) -> None:
    """Call ``run(target, key, value)``, which writes to elements of the target, and record it."""
    key, value = _key(key), operand(value, "an assignment")
    tape = recording()
    source = active(tape, value)
    if isinstance(value, Memory) and not np.can_cast(value.dtype, target.dtype, "same_kind"):
        raise KernelError(
            f"{where_called()}: an array of dtype {value.dtype} is assigned to one of dtype {target.dtype}; convert "
            "it: x.astype(...)"
        )
    recorded = source or (active(tape, target) and kind is Scattered)
    # The same value remains in each sweep, also where the library has no order of writing.
    writers = _writers(target, key) if source and kind is Scattered and _may_repeat(key) else None
    storages: set[Any] = set()
    kept = mapped(lambda x: kept_value(tape, x, storages), (key, writers)) if recorded else None
    undo = overwrite(target)
    compute(lambda y, key, x, writers: run(y, key, _of_writers(x, writers)), target, key, value, writers)
    if recorded:
        sources = [(0, region(value))] if source else []
        record = kind("an assignment", None, None, sources, region(target), kept, storages)  # type: ignore[arg-type]
        if source:
            tape.set_active(target.storage)
        append(tape, record, undo)
    elif undo and tape is not None:
        append(tape, None, undo)


def scatter(target: DeviceArray, key: Any, value: Any) -> None:
    """``target[key] = value`` with arrays in the key."""
    _write(target, key, value, operator.setitem, Scattered)


def add_at(target: DeviceArray, key: Any, value: Any) -> None:
    """``numpy.add.at(target, key, value)``."""
    if not isinstance(target, DeviceArray) or target.dtype.kind == "c":
        raise no_rule(np.add, f" for its method at, of complex numbers or into an array on the host{ON_DEVICE}")
    _write(target, key, value, np.add.at, AddedAt)


def assign(target: DeviceArray, key: Any, value: Any) -> None:
    """``target[key] = value``."""
    if has_arrays(key):
        scatter(target, key, value)
        return
    part = target._part(key)
    value = value if isinstance(value, np.ndarray) else operand(value, "an assignment")
    if isinstance(value, Memory) and value.shape != part.shape:
        value = value if isinstance(value, DeviceArray) else compute(lambda a: a.copy(), value)
        extra = value.ndim - part.ndim
        if extra > 0:
            value = reshape(value, value.shape[extra:]) if set(value.shape[:extra]) <= {1} else value
        value = value.like(np.broadcast_to(value.sketch(), part.shape))
    transfer(part, value)


RULES: dict[Callable, Callable] = {
    **{getattr(np, name): _viewing(getattr(np, name), p) for name, p in available(_VIEWS).items()},
    **{getattr(np, name): _moving(getattr(np, name), p, data) for name, (p, data) in available(_COPIES).items()},
    **{function: _at_least(function) for function in (np.atleast_1d, np.atleast_2d, np.atleast_3d)},
    np.broadcast_arrays: _broadcast_arrays,
    np.copy: lambda a, order="C", subok=False: copied(operand(a, "numpy.copy"), "F" if order == "F" else "C"),
    np.fft.fftshift: _moving(np.fft.fftshift, "x axes", "x"),
    np.fft.ifftshift: _moving(np.fft.ifftshift, "x axes", "x"),
    np.imag: part_of_complex("imag"),
    np.linalg.matrix_transpose: _viewing(np.linalg.matrix_transpose, "x"),
    np.ravel: ravel,
    np.real: part_of_complex("real"),
    np.reshape: reshape,
    np.where: where,
}
