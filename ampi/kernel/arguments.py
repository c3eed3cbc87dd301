"""The arguments of a kernel call: their leaves, their plain form for the primal, and lookup keys of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from ampi.memory import storages as memory
from ampi.tape.recording import passive


class ListArgument:
    """A list among the arguments of a call.

    Attributes
    ----------
    items : list
        The list as passed by the program.
    leaves : tuple of array
        Its numbers, or its arrays stacked along a first axis; for vectors all their elements, and the offsets of the
        vectors.
    """

    __slots__ = ("items", "leaves")

    def __init__(self, items: Any, leaves: tuple[Any, ...]) -> None:
        self.items, self.leaves = items, leaves


def is_list(value: Any) -> bool:
    """Return whether an argument is a list: Python's, or Numba's."""
    return isinstance(value, list) or type(value).__module__ == "numba.typed.typedlist"


def has_list(value: Any) -> bool:
    """Return whether an argument is a list, or a tuple with one in it."""
    return any(map(has_list, value)) if isinstance(value, tuple) else is_list(value)


def any_list(args: tuple[Any, ...]) -> bool:
    """Return whether one of the arguments of a call is or contains a list; fast, since every call needs it."""
    for value in args:
        kind = type(value)
        if kind not in _WITHOUT_LISTS:
            if has_list(value):
                return True
            if not isinstance(value, tuple):
                _WITHOUT_LISTS.add(kind)
    return False


_WITHOUT_LISTS: set[type] = set()  # classes of arguments that are not lists and contain none


def leaves_of(bound: tuple[Any, ...]) -> Sequence[Any]:
    """The leaves of all arguments of a call."""
    for value in bound:
        if value.dtype.names is not None if isinstance(value, np.ndarray) else not isinstance(value, (float, int)):
            return list(flatten(bound))
    return bound


def flatten(value: Any) -> Iterator[Any]:
    """The leaves of arguments in the order of ``ir.Function.arguments``: arrays and scalars.

    A structured array has one leaf for each field of numbers.
    """
    if isinstance(value, np.ndarray) and value.dtype.names is not None:
        for name in value.dtype.names:
            if value.dtype[name].names is not None or value.dtype[name].base.kind in "biufc":
                yield from flatten(value[name])
    elif isinstance(value, (np.ndarray, float, int, complex, np.generic)):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from flatten(item)
    elif isinstance(value, ListArgument):
        yield from value.leaves


def plain(value: Any) -> Any:
    """An argument as the primal takes it: plain arrays and scalars, in tuples as well."""
    if isinstance(value, memory.TrackedArray):
        return memory.plain(value) if value.ndim else memory.plain(value)[()]
    if isinstance(value, tuple):
        return rebuilt(value, map(plain, value))
    if isinstance(value, ListArgument):
        return plain(value.items)
    if isinstance(value, list) and any(isinstance(v, memory.TrackedArray) for v in value):
        return list(map(plain, value))
    return value


def opaque(function: Any) -> Any:
    """Compiled code, unchanged; a Python function (NUMBA_DISABLE_JIT) is wrapped to get plain arrays, unrecorded."""
    if not isinstance(function, FunctionType):
        return function

    def run(*args: Any) -> Any:
        with passive():
            return function(*map(plain, args))

    return run


def entry_point(compiled: Any, types: tuple[Any, ...]) -> Any:
    """The code of a dispatcher for arguments of these types, which takes arrays of any class; None if there is none.

    Unlike the dispatcher it does not look at the types of its arguments: the caller is certain of them.
    """
    found = getattr(compiled, "overloads", {}).get(types)
    return None if found is None else found.entry_point


def like(result: Any, args: Any) -> Any:
    """A result with its arrays as ``ampi.ndarray`` if an argument is one, as NumPy functions return subclasses."""
    if isinstance(result, (np.ndarray, tuple, list)):
        leaves = list(flatten(args))
        if any(isinstance(a, memory.TrackedArray) for a in leaves):
            return _tracked(result, leaves)
    return result


def _tracked(value: Any, leaves: Any) -> Any:
    if isinstance(value, np.ndarray):
        return memory.tracked(with_base(value, leaves))
    return rebuilt(value, (_tracked(v, leaves) for v in value)) if isinstance(value, (tuple, list)) else value


def with_base(result: np.ndarray, leaves: Any) -> np.ndarray:
    """An array that Numba returns, as a view of the argument whose memory it shares, since Numba sets no base."""
    if isinstance(result, memory.TrackedArray) or isinstance(result.base, np.ndarray) or not result.nbytes:
        return result
    low = result.__array_interface__["data"][0]
    for leaf in leaves:
        if isinstance(leaf, memory.TrackedArray) and leaf.ndim:
            first, last = place(leaf)[:2]
            if first <= low < last:
                return _view_of(leaf, result)
    return result


def _view_of(array: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The part as a view of the array that keeps it alive."""
    dummy = np.lib.stride_tricks.as_strided(array).base
    dummy.__array_interface__ = {**dummy.__array_interface__, **part.__array_interface__}
    return np.asarray(dummy)


def is_scalar(value: Any) -> bool:
    """Return whether an array is a scalar to a kernel: a tracked one without dimensions."""
    return isinstance(value, memory.TrackedArray) and not value.ndim


def rebuilt(like: Any, items: Any) -> Any:
    """A tuple, named tuple or list of the same class with other items."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)


LAYOUT = 0x1 | 0x2 | 0x100 | 0x400  # C order, Fortran order, aligned, writeable: the flags in Numba's array types


def kind(value: Any) -> Any:
    """A key for Numba's type of an argument, cheaper than the type."""
    if isinstance(value, np.ndarray):
        ndim = value.ndim
        if not ndim and isinstance(value, memory.TrackedArray):
            return value.dtype
        return value.dtype, ndim, value.flags.num & LAYOUT
    if isinstance(value, tuple):
        return type(value), tuple(map(kind, value))
    if isinstance(value, ListArgument):
        return type(value.items), kind(plain(value.items[0])) if len(value.items) else None
    if type(value) is int and is_large(value):
        return int, "unsigned"
    return _code_key(value)


def is_large(number: int) -> bool:
    """Return whether an integer is beyond int64: Numba takes it as unsigned, or not at all."""
    return not -_BEYOND_INT64 <= number < _BEYOND_INT64


def _code_key(value: Any) -> Any:
    """A key for an argument that is not an array or tuple: its type, or its value if compiled code depends on that."""
    return value if value is None or isinstance(value, str) or callable(value) else type(value)


def identity(bound: tuple[Any, ...], tape: Any) -> Any:
    """A key that is equal for calls with arrays at the same addresses and numbers of the same types, or None.

    None if an argument has no such identity.  Arrays without dimensions must also be equally active on ``tape`` (a
    reference, or None).  Arrays with a region are identified by it: the owner of the key must keep the regions alive.
    """
    parts: list[Any] = []
    for value in bound:
        if isinstance(value, memory.TrackedArray):
            try:
                parts.append(value._region)
            except AttributeError:
                parts.append(location(value) if value.ndim else (value.dtype, _is_on(value, tape)))
        elif isinstance(value, np.ndarray):
            parts.append(location(value))
        elif isinstance(value, ListArgument):
            return None
        elif isinstance(value, tuple):
            parts.append((type(value), identity(value, tape)))
            if parts[-1][1] is None:
                return None
        elif type(value) is int:
            if is_large(value):
                return None
            parts.append(int)
        else:
            parts.append(_code_key(value))
        if parts[-1] is None and value is not None:
            return None
    return tuple(parts)


_BEYOND_INT64 = 1 << 63  # integers have another type from here on


def location(array: np.ndarray) -> Any:
    """A key that is equal for arrays of the same layout at one address; None if its memory is volatile."""
    storage = memory.storage_of(array)
    if storage is not None and storage.volatile:
        return None
    return storage, memory.address_of(array), array.shape, array.strides, array.dtype, array.flags.num & LAYOUT


def _is_on(scalar: memory.TrackedArray, tape: Any) -> bool | None:
    storage = memory.storage_of(scalar)
    if storage is None or storage.volatile:
        return None
    other = storage.tape
    if tape is None or other is None or other is tape:
        return other is tape is not None
    return None if other() is not None else False


def place(leaf: Any) -> Any:
    """A key that is equal for arrays with the same elements: first and last byte, shape, strides, and so on."""
    if not isinstance(leaf, np.ndarray) or is_scalar(leaf):
        return None
    if leaf.flags.forc:
        low = memory.address_of(leaf)
        return low, low + leaf.nbytes, leaf.shape, leaf.strides, leaf.dtype
    low, high = memory.bounds_of(leaf)
    return low, high, leaf.shape, leaf.strides, leaf.dtype


def same_places(places: Sequence[Any]) -> tuple[tuple[int, int], ...]:
    """Pairs (later, first) of leaves that are the same array."""
    taken = [p[0] for p in places if p is not None]
    if len(set(taken)) == len(taken):
        return ()
    first: dict[Any, int] = {}
    same = []
    for k, p in enumerate(places):
        if p is None or p[0] == p[1]:
            continue
        earlier = first.setdefault(p, k)
        if earlier != k:
            same.append((k, earlier))
    return tuple(same)
