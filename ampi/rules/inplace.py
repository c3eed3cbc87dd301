"""NumPy functions that overwrite one of their arguments, written as item assignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import is_active, plain_of, require_tracked
from ..arrays.callers import is_called_by_numpy
from ..arrays.indexing import assign_in_turn, elements_at, overtakes_itself, setitem, writes_what_it_reads
from ..arrays.nested import from_nested, nested_plain
from ..arrays.writing import assign
from ..errors import ActivityError
from ..memory.extents import repeats_elements
from ..memory.storages import is_scalar, plain, region_of, storage_of, tracked, writable
from ..tape import current
from .known_parameters import for_this_numpy

_NOTHING = object()
"""A formula's result if no element is written."""


def _writing(name: str, parameter: str, formula: Callable) -> Callable:
    """Run a formula on tracked memory, and NumPy's function on a plain array, which must not get active values.

    The formula returns a view of the memory, the key of the written elements, and their values, and NumPy's function
    writes them; or it writes them itself and returns None.
    """
    function = getattr(np, name)

    def writer(*arguments: Any, **keywords: Any) -> None:
        target, *arguments = arguments if arguments else (keywords.pop(parameter),)
        given, named = list(map(nested_plain, arguments)), {name: nested_plain(x) for name, x in keywords.items()}
        arguments, keywords = list(map(from_nested, arguments)), {name: from_nested(x) for name, x in keywords.items()}
        if isinstance(target, np.ndarray) and storage_of(target) is not None:
            written = formula(tracked(target), *arguments, **keywords)
            if written is _NOTHING:
                function(plain_of(target), *given, **named)  # raises NumPy's errors
            elif written is not None:
                # Constants, too: NumPy writes to a copy, and copies it back.
                if repeats_elements(written[0]) and is_active(current(), written[0]):
                    require_tracked(written[0], f"np.{name}")
                setitem(*written, action=lambda: function(plain(target), *given, **named))
            return
        tape = current()
        if any(is_active(tape, x) for x in (*arguments, *keywords.values())):
            if not isinstance(target, np.ndarray):
                raise ActivityError(f"np.{name} writes an active value into a {type(target).__name__}")
            require_tracked(target, f"np.{name}")
        function(target, *given, **named)

    return writer


def _values(x: Any) -> Any:
    return np.asanyarray(x).reshape(-1)


def _flat(a: Any, places: np.ndarray, values: Any) -> Any:
    """The view, key and values for flat indices in C order; values are repeated."""
    if not len(places) or not len(values):
        return _NOTHING
    a = a if a.ndim else a[None]
    return a, np.unravel_index(places, a.shape), elements_at(values, np.arange(len(places)) % len(values))


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> Any:
    if is_scalar(dst):
        if not is_called_by_numpy(5):
            raise TypeError("copyto() argument 1 must be an array, not a scalar (NumPy gives this as a number)")
        dst = tracked(writable(dst))  # a scalar that NumPy's own code has just computed
        np.copyto(dst, src, casting, where)
        return None
    if where is True:
        if overtakes_itself(dst, src):
            assign_in_turn(dst, src, np.copyto)
        else:
            assign(dst, src, "np.copyto", casting)
        return None
    if isinstance(src, np.ndarray) and region_of(tracked(src)).place == region_of(dst).place:
        return _NOTHING  # even if the array is read-only
    while np.ndim(src) > dst.ndim and len(src) == 1:
        src = src[0]
    if overtakes_itself(dst, src):
        assign_in_turn(dst, src, lambda target, values: np.copyto(target, values, where=plain_of(where)))
        return None
    try:
        mask, values = (np.broadcast_to(plain_of(where), dst.shape),), np.broadcast_to(src, dst.shape)
    except ValueError:
        return _NOTHING
    return dst, mask, elements_at(values, mask)


def _place(arr: Any, mask: Any, vals: Any) -> Any:
    if writes_what_it_reads(arr, vals):
        return assign_in_turn(arr, vals, lambda target, values: np.place(target, plain_of(mask), values))
    mask = plain_of(np.asanyarray(mask)).reshape(arr.shape).astype(bool)
    values = _values(vals)
    n = int(mask.sum())
    if not n or not len(values):
        return _NOTHING
    return arr, (mask,), elements_at(values, np.arange(n) % len(values))


def _putmask(a: Any, mask: Any, values: Any) -> Any:
    mask = np.asarray(plain_of(mask))
    if mask.size != a.size:
        return _NOTHING
    places, source = np.flatnonzero(mask), _values(values)
    if not len(places) or not len(source):
        return _NOTHING
    return _flat(a, places, elements_at(source, places % len(source)))


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> Any:
    places = np.asarray(plain_of(ind)).reshape(-1)
    if not len(places) or not a.size:
        return _NOTHING
    if mode == "raise" and (places.max() >= a.size or places.min() < -a.size):
        before = int(np.argmax((places >= a.size) | (places < -a.size)))
        if before and plain(a).flags.carray:  # NumPy raises an error after it has written the elements before
            setitem(*_flat(a, places[:before] % a.size, _values(v)))
        return _NOTHING
    return _flat(a, np.clip(places, 0, a.size - 1) if mode == "clip" else places % a.size, _values(v))


def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> Any:
    if writes_what_it_reads(a, val):
        return assign_in_turn(a, val, lambda target, values: np.fill_diagonal(target, values, wrap))
    # NumPy itself shows which elements these are.
    places = np.zeros(a.shape, bool)
    np.fill_diagonal(places, True, wrap)
    return _flat(a, np.flatnonzero(places), _values(val))


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: Any = -1) -> Any:
    places = np.arange(arr.size).reshape(arr.shape)
    chosen = np.take_along_axis(places, plain_of(indices), axis)
    return arr, np.unravel_index(chosen, arr.shape), values


# The name of the argument that is overwritten comes first.
WRITERS: dict[Callable, Callable] = for_this_numpy(
    {
        getattr(np, name): _writing(name, parameter, formula)
        for name, (parameter, formula) in {
            "copyto": ("dst", _copyto),
            "fill_diagonal": ("a", _fill_diagonal),
            "place": ("arr", _place),
            "put": ("a", _put),
            "put_along_axis": ("arr", _put_along_axis),
            "putmask": ("a", _putmask),
        }.items()
    },
    tried=False,
)
