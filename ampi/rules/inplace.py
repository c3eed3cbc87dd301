"""NumPy functions that overwrite one of their arguments, in terms of item assignment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..activity import is_active, is_of_numpy, plain_of, require_tracked
from ..errors import ActivityError
from ..indexing import assign_in_turn, elements_at, set_flat, setitem, writes_what_it_reads
from ..memory import is_scalar, region_of, storage_of, tracked, writable
from ..nested import from_nested
from ..tape import current
from ..writing import assign


def _writing(name: str, parameter: str, formula: Callable) -> Callable:
    """Runs the formula on tracked memory, and NumPy's function on a plain array, which no active value may enter."""
    function = getattr(np, name)

    def writer(*arguments: Any, **keywords: Any) -> None:
        target, *arguments = arguments if arguments else (keywords.pop(parameter),)
        if isinstance(target, np.ndarray) and storage_of(target) is not None:
            formula(tracked(target), *arguments, **keywords)
            return
        tape = current()
        if any(is_active(tape, from_nested(x)) for x in (*arguments, *keywords.values())):
            if not isinstance(target, np.ndarray):
                raise ActivityError(f"np.{name} writes an active value into a {type(target).__name__}")
            require_tracked(target, f"np.{name}")
        function(
            target, *[plain_of(x) for x in arguments], **{name: plain_of(value) for name, value in keywords.items()}
        )

    return writer


def _values(x: Any) -> Any:
    return np.asanyarray(from_nested(x))


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if is_scalar(dst):
        if not is_of_numpy(4):
            raise TypeError("copyto() argument 1 must be an array, not a scalar (NumPy gives this as a number)")
        dst = tracked(writable(dst))  # what NumPy's own code has just computed
    src = from_nested(src)
    if where is True:
        assign(dst, src, "np.copyto", casting)
        return
    if isinstance(src, np.ndarray) and region_of(tracked(src)).place == region_of(dst).place:
        np.copyto(
            plain_of(dst), plain_of(src), casting, plain_of(where)
        )  # which does nothing, also to what cannot be written
        return
    while np.ndim(src) > dst.ndim and len(src) == 1:
        src = src[0]
    values = np.broadcast_to(src, dst.shape)
    if not np.can_cast(values.dtype, dst.dtype, casting):
        raise TypeError(f"Cannot cast array data from {values.dtype} to {dst.dtype} according to the rule {casting!r}")
    mask = np.broadcast_to(plain_of(where), dst.shape)
    setitem(dst, (mask,), elements_at(values, (mask,)))


def _place(arr: Any, mask: Any, vals: Any) -> None:
    if writes_what_it_reads(arr, vals):
        assign_in_turn(arr, vals, lambda target, values: np.place(target, plain_of(mask), values))
        return
    mask = plain_of(np.asanyarray(mask)).reshape(arr.shape).astype(bool)
    values = _values(vals).reshape(-1)
    n = int(mask.sum())
    if n and not len(values):
        raise ValueError("Cannot insert from an empty array!")
    if n:
        setitem(arr, (mask,), elements_at(values, np.arange(n) % len(values)))


def _putmask(a: Any, mask: Any, values: Any) -> None:
    mask = np.asarray(plain_of(mask))
    if mask.size != a.size:
        raise ValueError("putmask: mask and data must be the same size")
    places = np.flatnonzero(mask)
    source = _values(values).reshape(-1)
    if len(places) and len(source):
        set_flat(a, places, elements_at(source, places % len(source)))


def _put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    places = np.asarray(plain_of(ind)).reshape(-1)
    source = _values(v).reshape(-1)
    if not len(places) or not len(source):
        return
    if not a.size:
        raise IndexError("cannot replace elements of an empty array")
    if mode == "raise":
        if places.max() >= a.size or places.min() < -a.size:
            raise IndexError(f"index out of bounds for an array of size {a.size}")
        places = places % a.size
    else:
        places = np.clip(places, 0, a.size - 1) if mode == "clip" else places % a.size
    set_flat(a, places, elements_at(source, np.arange(len(places)) % len(source)))


def _fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    if writes_what_it_reads(a, val):
        assign_in_turn(a, val, lambda target, values: np.fill_diagonal(target, values, wrap))
        return
    # NumPy itself says which elements these are.
    places = np.zeros(a.shape, bool)
    np.fill_diagonal(places, True, wrap)
    _putmask_in_order(a, places, val)


def _putmask_in_order(a: Any, places: np.ndarray, val: Any) -> None:
    chosen = np.flatnonzero(places)
    source = _values(val).reshape(-1)
    if not len(source):
        return  # as with NumPy
    setitem(a, np.unravel_index(chosen, a.shape), elements_at(source, np.arange(len(chosen)) % len(source)))


def _put_along_axis(arr: Any, indices: Any, values: Any, axis: Any = -1) -> None:
    places = np.arange(arr.size).reshape(arr.shape)
    chosen = np.take_along_axis(places, plain_of(indices), axis)
    setitem(arr, np.unravel_index(chosen, arr.shape), from_nested(values))


# The name of the argument that is overwritten comes first.
WRITERS: dict[Callable, Callable] = {
    getattr(np, name): _writing(name, parameter, formula)
    for name, (parameter, formula) in {
        "copyto": ("dst", _copyto),
        "fill_diagonal": ("a", _fill_diagonal),
        "place": ("arr", _place),
        "put": ("a", _put),
        "put_along_axis": ("arr", _put_along_axis),
        "putmask": ("a", _putmask),
    }.items()
}
