"""Copies and item access. Views need no record: they share the storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ActivityError
from ..memory.extents import Extent, address_of, repeats_elements
from ..memory.storages import (
    Region,
    TrackedArray,
    as_record,
    carries_derivatives,
    plain,
    region_of,
    storage_of,
    tracked,
    wrapped,
)
from ..tape import BaseAdjoint, Push, Sweep, Tape, current
from . import fast_writes
from .activity import carry, holds_same_bytes, is_active, is_inexact, plain_of, require_tracked
from .byte_views import movable
from .elementwise import unbroadcast
from .nested import from_nested, nested_plain
from .writing import assign, make_slots, must_announce, write, write_constants

_BASIC = (int, slice, type(None), type(Ellipsis), np.integer)
_item = np.ndarray.__getitem__
_set_item = np.ndarray.__setitem__


class _Copy(BaseAdjoint):
    __slots__ = ("result", "source")
    second_order = "linear"
    reads_memory = False

    def __init__(self, source: Region, result: Region) -> None:
        self.source = source
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.result):
            sweep.add(self.source, sweep.shadow(self.result).reshape(self.source.shape))

    def tangent(self, push: Push) -> None:
        """Copy the tangent."""
        push.put(self.result, push.get(self.source).reshape(self.result.shape))


def copied(source: np.ndarray, result: np.ndarray) -> Any:
    """Record that a new array holds another one's elements in C order; return the new array."""
    result = wrapped(result)
    tape = current()
    if tape is None:
        return result
    if not carries_derivatives(source.dtype):
        source = _bytes_copied(tape, source, result)
        if source is None:
            return result
    elif not (is_active(tape, source) and is_inexact(result)):
        return result
    tape.activate(result)
    tape.append(_Copy(region_of(source), region_of(result)), created=(result,))
    return result


def _bytes_copied(tape: Tape, source: np.ndarray, result: np.ndarray) -> np.ndarray | None:
    """The bytes that a copy holds, for its record; None if they carry no derivatives."""
    moved = movable(tape, source)
    if moved is None or not holds_same_bytes(moved, result):
        is_active(tape, source)  # raises where derivatives would be lost
        return None
    storage_of(result).packed = storage_of(moved).packed  # type: ignore[union-attr]
    return moved


def is_basic(key: Any) -> bool:
    """Return whether a key selects a view: integers, slices, None, Ellipsis, or a field's name."""
    kind = type(key)
    if kind is tuple:
        return all(isinstance(k, _BASIC) and type(k) is not bool for k in key)
    return (isinstance(key, _BASIC) and kind is not bool) or kind is str


def view_at(array: np.ndarray, key: Any) -> np.ndarray:
    """The view that a basic key selects; 0-d where the key selects one element."""
    # Elements of structured arrays would give numbers.
    if type(key) is str:
        return _item(array, key)
    key = key if type(key) is tuple else (key,)
    if not any(k is Ellipsis for k in key):
        key = (*key, Ellipsis)
    return _item(array, key)


def frozen_key(tape: Tape, key: Any) -> Any:
    """A key whose arrays keep their present values until the adjoint runs."""
    if type(key) is tuple:
        return tuple(frozen_key(tape, k) for k in key)
    if isinstance(key, np.ndarray):
        return tape.need(key)
    return _index_array(key) if isinstance(key, list) else key


def _index_array(key: list) -> np.ndarray:
    found = np.asarray(key)
    return found if found.size else found.astype(np.intp)  # an empty list has no dtype


def plain_key(key: Any) -> Any:
    """A key without tracked arrays."""
    if type(key) is tuple:
        return tuple(plain_of(k) for k in key)
    return plain_of(key)


def copied_key(key: Any) -> Any:
    """A key with copies of its arrays."""
    if type(key) is tuple:
        return tuple(copied_key(k) for k in key)
    if isinstance(key, list):
        return _index_array(key)
    return np.array(key) if isinstance(key, np.ndarray) else key


def _may_repeat(key: Any) -> bool:
    """Return whether a key may select an element more than once: integer arrays may, masks and basic keys do not."""
    if type(key) is tuple:
        return any(_may_repeat(k) for k in key)
    return isinstance(key, np.ndarray) and key.dtype != bool and key.size > 1


class _Gather(BaseAdjoint):
    """result = source[key], a copy."""

    __slots__ = ("key", "result", "source")
    second_order = "linear"

    def __init__(self, source: Region, key: Any, result: Region) -> None:
        self.source = source
        self.key = key
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.result):
            scatter_add(sweep.shadow(self.source), self.key, sweep.shadow(self.result))

    def tangent(self, push: Push) -> None:
        """Select the same elements of the tangent."""
        push.put(self.result, push.get(self.source)[self.key])


def scatter_add(shadow: np.ndarray, key: Any, g: Any) -> None:
    """``shadow[key] += g``; a repeated element gets the sum."""
    if shadow.dtype.names is not None:
        for part, values in _fields(shadow, g):
            scatter_add(part, key, values)
        return
    if _may_repeat(key) or repeats_elements(shadow):
        np.add.at(shadow, key, g)
    else:
        shadow[key] += g


def _fields(shadow: np.ndarray, g: Any) -> Iterator[tuple[np.ndarray, Any]]:
    """The numbers in the fields of structured elements, each for all elements."""
    for name in shadow.dtype.names:
        part = shadow[name]
        if carries_derivatives(part.dtype):
            for k in np.ndindex(part.shape[shadow.ndim :]):
                place = (Ellipsis, *k)
                yield part[place], g[name][place]


def looks_into(result: np.ndarray, array: np.ndarray) -> bool:
    """Return whether the result of an array's method is a view of the array."""
    base = result.base
    return base is array or (base is not None and base is array.base) or result is array


def getitem(array: TrackedArray, key: Any) -> Any:
    """``array[key]``: a view where NumPy gives one, otherwise a recorded copy."""
    return selected(array, key, _item(array, key))


def selected(array: TrackedArray, key: Any, result: Any) -> Any:
    """The same as `getitem`, given the result of NumPy's own item access."""
    if isinstance(result, np.ndarray) and looks_into(result, array):
        return result
    if array.dtype.hasobject and array.dtype.names is None and is_basic(key):
        return result  # the very object
    if not isinstance(result, (np.ndarray, np.inexact)):
        if not isinstance(result, np.void) or not carries_derivatives(result.dtype):
            return result
        if is_basic(key):  # it looks into the array's memory
            return as_record(view_at(array, key))  # type: ignore[arg-type]
        return getitem(array, (*key, None) if type(key) is tuple else (key, None))[0]
    tape = current()
    source = movable(tape, array)
    if source is None:
        if not is_active(tape, array):
            return wrapped(result)
        source = array
    assert tape is not None
    if is_basic(key):
        return copied(view_at(array, key), plain_of(result))
    return gathered(source, frozen_key(tape, key), result)


def gathered(source: np.ndarray, key: Any, result: np.ndarray) -> Any:
    """Record that a new array is ``source[key]``, of a source for which `carries` is true; return the new array."""
    tape: Any = current()
    result = wrapped(result)
    carry(tape, result, (source,))
    tape.append(_Gather(region_of(source), key, region_of(result)), created=(result,))
    return result


class _Scatter(BaseAdjoint):
    """target[key] = source: where elements repeat, the last one written wins."""

    __slots__ = ("key", "source", "target")
    second_order = "linear"

    def __init__(self, target: Region, key: Any, source: Region) -> None:
        self.target = target
        self.key = key
        self.source = source

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.target):
            return
        shadow = sweep.shadow(self.target)
        g = shadow[self.key]
        shadow[self.key] = 0
        if _may_repeat(self.key):
            writers, order = writers_of(shadow, self.key, g.shape)
            g[writers != order] = 0
        sweep.add(self.source, unbroadcast(np.asarray(g), self.source.shape))

    def tangent(self, push: Push) -> None:
        """Assign the tangent to the same elements."""
        x_dot = push.get(self.source)
        if self.source.storage is self.target.storage:
            x_dot = x_dot.copy()
        push.shadow(self.target)[self.key] = np.real(x_dot) if self.target.dtype.kind == "f" else x_dot


def writers_of(like: Any, key: Any, shape: tuple, arange: Callable[[int], Any] = np.arange) -> tuple[Any, Any]:
    """Return for each value of ``like[key] = values`` the number of the one that remains in its element, and its own.

    They differ where elements repeat.  The library itself is run to find them, since its order of writing is not
    specified.
    """
    writer = np.empty_like(like, dtype=np.intp)
    order = arange(int(np.prod(shape))).reshape(shape)
    writer[key] = order
    return writer[key], order


def setitem(array: TrackedArray, key: Any, value: Any, action: Callable[[], Any] | None = None) -> None:
    """``array[key] = value``; an action, if given, makes NumPy write the values."""
    if (
        type(value) is type(array)
        and action is None
        and is_basic(key)
        and fast_writes.assign(view_at(array, key), value)
    ):
        return
    given, original = nested_plain(value), value
    if isinstance(value, (list, tuple)):
        dtype = array.dtype[key].base if type(key) is str else array.dtype
        value = from_nested(value, dtype=dtype) if dtype.names is not None else from_nested(value)
    key = plain_key(key)
    if action is None:
        view, source = plain(array), original if array.dtype.hasobject else given  # an object may be an array
        action = lambda: _set_item(view, key, source)
    if is_basic(key):
        target = view_at(array, key)
        if overtakes_itself(target, value):
            assign_in_turn(target, value, np.copyto)
            return
        assign(target, value, action=action)
        return
    tape = current()
    if tape is not None:
        key = frozen_key(tape, key)
        # With a mask, NumPy does not copy values first if they overlap the elements that it overwrites.
        values_matter = isinstance(value, np.ndarray) and carries_derivatives(value.dtype)  # not their bytes
        if (
            values_matter
            and _is_whole_mask(array, key)
            and is_active(tape, value)
            and Extent(array).overlaps(Extent(value))
        ):
            if writes_what_it_reads(array, value):
                assign_in_turn(array, value, lambda target, values: _set_item(target, key, values))
                return
            if value.size > 1:
                raise ActivityError(
                    f"values of dtype {value.dtype} from the memory of an array of dtype {array.dtype} are assigned to "
                    "elements that a mask selects from it, and NumPy would read values that it has just overwritten; "
                    "assign a copy of the values"
                )
    elif must_announce(array):
        key = copied_key(key)
    moved = movable(tape, value)
    if moved is not None and holds_same_bytes(moved, array):
        value = moved
        make_slots(array, moved)
    else:
        if is_active(tape, value):
            require_tracked(array, "item assignment")
        if not (is_active(tape, value) and carries_derivatives(array.dtype)):
            write_constants([array], action, key)
            return
    assert tape is not None
    _, undo = write([array], action, key)
    tape.append(_Scatter(region_of(array), key, region_of(value)), undo)
    tape.activate(array)


# ------------------------------------------------------------------------------------- values that overlap their target


def _is_whole_mask(array: np.ndarray, key: Any) -> bool:
    """Return whether a key is a mask over all axes of an array."""
    if type(key) is tuple and len(key) == 1:
        (key,) = key
    mask = np.asarray(key) if isinstance(key, list) else key
    return isinstance(mask, np.ndarray) and mask.dtype == bool and mask.ndim == array.ndim > 0


def writes_what_it_reads(target: Any, values: Any) -> bool:
    """Return whether NumPy, if it does not copy the values first, reads values that it has just written."""
    if not isinstance(values, np.ndarray) or values.dtype != target.dtype:
        return False
    distances = (*target.strides, *values.strides, address_of(target) - address_of(values))
    aligned = not any(distance % target.itemsize for distance in distances)
    return aligned and Extent(target).overlaps(Extent(values))


def overtakes_itself(target: np.ndarray, value: Any) -> bool:
    """Return whether NumPy reads values in ``target[...] = value`` that it has just written.

    Along one axis it copies the values first only if the strides differ in sign; if they differ otherwise, writing may
    overtake reading.
    """
    if target.ndim != 1 or not isinstance(value, np.ndarray) or not value.ndim or value.size < 2:
        return False
    steps = target.strides[0], value.strides[-1]
    if steps[0] == steps[1] or steps[0] * steps[1] < 0 or not Extent(target).overlaps(Extent(value)):
        return False
    tape = current()
    if tape is None or not is_active(tape, value):
        return False
    if not writes_what_it_reads(target, value):
        raise ActivityError(
            f"values of dtype {value.dtype} from the memory of an array of dtype {target.dtype} are assigned to other "
            "elements of it, and NumPy would read values that it has just overwritten; assign a copy of the values"
        )
    return True


def assign_in_turn(target: Any, values: Any, function: Callable) -> None:
    """Assign as a NumPy function does that reads and writes the same memory in turn.

    The function is applied to the indices of the elements in the same layout: it shows which value arrives where.
    """
    low = min(Extent(target).low, Extent(values).low)
    memory = np.arange((max(Extent(target).high, Extent(values).high) - low) // target.itemsize)

    def numbers(x: np.ndarray) -> np.ndarray:
        first = (address_of(x) - low) // x.itemsize
        strides = [stride // x.itemsize * memory.itemsize for stride in x.strides]
        return np.lib.stride_tricks.as_strided(memory[first:], x.shape, strides)

    before = [numbers(x).flatten() for x in (target, values)]
    elements = np.concatenate([tracked(x).reshape(-1) for x in (target, values)])
    place_of = np.zeros_like(memory)
    place_of[np.concatenate(before)] = np.arange(len(elements))
    function(numbers(target), numbers(values))
    after = numbers(target).flatten()
    changed = np.flatnonzero(after != before[0])
    _set_flat(target, changed, elements_at(elements, place_of[after[changed]]))


def _set_flat(a: Any, places: np.ndarray, values: Any) -> None:
    """Set the elements at flat indices in C order."""
    if not a.ndim:
        a = a[None]
    setitem(a, np.unravel_index(places, a.shape), values)


def elements_at(values: np.ndarray, places: Any) -> Any:
    """Elements of an array at flat indices, with their derivatives."""
    return getitem(tracked(values), places)
