"""Moving values between arrays: copies, item access, assignment, and arrays made of nested lists.

Views need no record: they share the storage.  Everything here that writes goes through `write`, which keeps the undo
log right even where NumPy raises halfway.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .bits import bits_in, movable
from .errors import ActivityError, no_rule
from .handouts import settle
from .memory import (
    PACKED,
    Region,
    TrackedArray,
    as_viewed,
    carries_derivatives,
    is_scalar,
    plain,
    region_of,
    storage_of,
    wrapped,
)
from .rules.elementwise import unbroadcast
from .tape import Sweep, Tape, Undo, Zero, current, overwrite

_INTEGER = (int, np.integer)
_BASIC = (int, slice, type(None), type(Ellipsis), np.integer)


def is_active(tape: Tape | None, x: Any) -> bool:
    """Whether a value is an array of floating-point or complex numbers that carries derivatives on the tape.

    Raises
    ------
    ActivityError
        It looks at such numbers as bytes or integers: what is computed of them would carry no derivative.
    """
    if tape is None or not isinstance(x, np.ndarray):
        return False
    if carries_derivatives(x.dtype):
        return tape.is_active(x)
    if isinstance(x, TrackedArray) or x.dtype.itemsize == 1:
        storage = storage_of(x)
        if storage is not None and storage.tape is not None and bits_in(tape, x) == PACKED:
            raise _computed(x)
    return False


def carries(tape: Tape, x: Any) -> bool:
    """Whether a value is an array of active numbers, or of the bytes of some as `movable` gives them."""
    if isinstance(x, np.ndarray) and x.dtype.itemsize == 1:
        storage = storage_of(x)
        return storage is not None and bool(storage.packed) and tape.is_active(x)
    return is_active(tape, x)


def carry(tape: Tape, result: Any, sources: Sequence[Any]) -> bool:
    """Whether the result of moving elements holds what its sources (that `carries` is true of) hold; then it is active.

    Raises
    ------
    ActivityError
        The bytes of active numbers became numbers of another kind on the way.
    """
    if not isinstance(result, np.ndarray):
        return False
    bytewise = [x for x in sources if x.dtype.itemsize == 1]
    kind = max((storage_of(x).packed for x in bytewise), default=0)  # type: ignore[union-attr]
    if not all(_same_bytes(x, result) for x in bytewise):
        if kind == PACKED or is_inexact(result):
            raise _computed(bytewise[0])
        return False
    if not kind and not is_inexact(result):
        return False
    tape.activate(result)
    if kind:
        storage_of(result).packed = kind  # type: ignore[union-attr]
    return True


def _computed(x: np.ndarray) -> ActivityError:
    return ActivityError(
        f"the bytes of active values are used in a computation, as an array of {x.dtype}, where their derivatives "
        "would be lost; such bytes can be sent, received, unpacked, copied, joined and indexed; compute with the "
        "numbers (datatype.Unpack(...), b.view(float)), or pass ampi.value(a)"
    )


def plain_of(x: Any) -> Any:
    """A tracked array as a plain view of its memory, a tracked scalar as NumPy's; anything else as it is."""
    if isinstance(x, TrackedArray):
        return _item(x, ()) if is_scalar(x) else as_viewed(x, np.ndarray)
    return x


_item = np.ndarray.__getitem__


def is_of_numpy(depth: int) -> bool:
    """Whether the caller of ampi, so many frames above this function's caller, is NumPy's own Python code.

    That computes in place in what it made a moment ago, where it is an array, and takes a tracked scalar for one.
    """
    return sys._getframe(depth + 1).f_globals.get("__name__", "").partition(".")[0] == "numpy"


def require_arrays(outs: Any) -> None:
    """Raise if one of the arrays that the user gave to take results is a scalar."""
    if any(is_scalar(out) for out in (outs if isinstance(outs, tuple) else (outs,))):
        raise TypeError(
            "a scalar cannot take a result (NumPy gives it as a number, not as an array); make the array for out= "
            "with ampi.numpy, e.g. ampi.numpy.empty(())"
        )


# ------------------------------------------------------------------------------------------------------- writing


def concerns_tapes(target: np.ndarray) -> bool:
    """Whether a write into the array concerns any tape, open or closed."""
    storage = storage_of(target)
    return storage is not None and (bool(storage.needs) or storage.tape is not None)


def must_announce(target: np.ndarray) -> bool:
    """Whether a write into the array has to be announced: it concerns a tape, or the memory is watched for others."""
    storage = storage_of(target)
    return storage is not None and (bool(storage.needs) or storage.tape is not None or bool(storage.guard))


def write(targets: Sequence[np.ndarray], action: Callable[[], Any], key: Any = None) -> tuple[Any, list[Undo]]:
    """Run an action that overwrites arrays (only ``array[key]``, if a key is given).

    Returns
    -------
    result, undo
        What the action returned, and what belongs into the record that the caller appends.
    """
    undo = overwrite(*targets, key=key)
    try:
        result = action()
        for target in targets:
            storage = storage_of(target)
            if storage is not None and storage.guard:
                settle(storage)
        return result, undo
    except BaseException:
        tape = current()
        if undo and tape is not None:
            tape.append(None, undo)
        raise


def write_constants(targets: Sequence[np.ndarray], action: Callable[[], Any], key: Any = None) -> Any:
    """Run an action that overwrites arrays with values that carry no derivative."""
    tape = current()
    zeroed = [] if tape is None else [region_of(target) for target in targets if tape.is_active(target)]
    result, undo = write(targets, action, key)
    if tape is not None:
        if zeroed or undo:
            tape.append(Zero(zeroed, key) if zeroed else None, undo)
        if key is None:
            for target in targets:
                tape.deactivate(target)
    return result


def require_tracked(target: np.ndarray, what: str) -> None:
    """Raise if an active value is about to enter memory that is not tracked."""
    if target.dtype == object:
        raise ActivityError(
            f"{what} writes an active value into an array of objects, where its derivative would be lost"
        )
    if storage_of(target) is None:
        raise ActivityError(
            f"{what} writes an active value into a plain numpy array of shape {target.shape}, where its derivative "
            "would be lost; make that array with ampi.numpy, or pass ampi.value(...) of the active operands"
        )
    if (
        0 in target.strides
        and target.size
        and any(n > 1 and not stride for n, stride in zip(target.shape, target.strides))
    ):
        raise ActivityError(
            f"{what} writes active values into an array of shape {target.shape} whose elements share memory (it was "
            "broadcast); write into a copy of it"
        )


class _Assign:
    """target[...] = source, with broadcasting."""

    __slots__ = ("source", "target")
    reads_memory = False

    def __init__(self, target: Region, source: Region) -> None:
        self.target = target
        self.source = source

    def __call__(self, sweep: Sweep) -> None:
        g = sweep.take(self.target)
        if g is not None:
            sweep.add(self.source, unbroadcast(g, self.source.shape))


def assign(target: np.ndarray, value: Any, what: str = "item assignment", casting: Any = "unsafe") -> None:
    """``target[...] = value``; target is a view of the memory to be overwritten."""
    view = plain(target)
    source = plain_of(value)
    action = lambda: np.copyto(view, source, casting=casting)
    tape = current()
    moved = movable(tape, value) if target.dtype.itemsize == 1 else None
    if moved is not None and _same_bytes(moved, target):
        _assign_packed(tape, target, moved, action, what)
        return
    if not is_active(tape, value):
        write_constants([target], action)
        return
    require_tracked(target, what)
    if not carries_derivatives(target.dtype):
        write_constants([target], action)
        return
    assert tape is not None
    _, undo = write([target], action)
    tape.append(_Assign(region_of(target), region_of(value)), undo)
    tape.activate(target)


def _same_bytes(x: np.ndarray, target: np.ndarray) -> bool:
    """Whether assignment copies bytes as they are."""
    return target.dtype.itemsize == 1 and (x.dtype.kind == "b" or target.dtype.kind != "b")


def _assign_packed(tape: Any, target: np.ndarray, value: Any, action: Callable[[], Any], what: str) -> None:
    """The same for bytes that hold packed values."""
    if storage_of(target) is None and storage_of(value).packed != PACKED:  # type: ignore[union-attr]
        action()  # bytes that came from elsewhere: most likely they hold nothing
        return
    require_tracked(target, what)
    _make_slots(target, value)
    _, undo = write([target], action)
    tape.append(_Assign(region_of(target), region_of(value)), undo)
    tape.activate(target)


def _make_slots(target: np.ndarray, value: np.ndarray) -> None:
    """Bytes that hold packed values are about to enter memory."""
    storage: Any = storage_of(target)
    if storage.volatile:
        raise ActivityError(
            "the bytes of active values are written into the memory of a window; write the numbers, or pass "
            "ampi.value(...)"
        )
    storage.packed = max(storage.packed, storage_of(value).packed)  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------------------------- copies


class _Copy:
    __slots__ = ("result", "source")
    reads_memory = False

    def __init__(self, source: Region, result: Region) -> None:
        self.source = source
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.result):
            sweep.add(self.source, sweep.shadow(self.result).reshape(self.source.shape))


def copied(source: np.ndarray, result: np.ndarray) -> Any:
    """Record that a new array holds the elements of another, one by one in C order; gives the result."""
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
    """The bytes that a copy holds, for its record; None if nothing goes with them."""
    moved = movable(tape, source)
    if moved is None or not _same_bytes(moved, result):
        is_active(tape, source)  # raises where derivatives would be lost
        return None
    storage_of(result).packed = storage_of(moved).packed  # type: ignore[union-attr]
    return moved


def is_inexact(x: Any) -> bool:
    """Whether a result is an array that can carry derivatives."""
    return isinstance(x, np.ndarray) and carries_derivatives(x.dtype)


# ---------------------------------------------------------------------------------------------------- item access


def is_basic(key: Any) -> bool:
    """Whether a key selects a view: integers, slices, None, Ellipsis, or a field's name."""
    kind = type(key)
    if kind is tuple:
        return all(isinstance(k, _BASIC) and type(k) is not bool for k in key)
    return (isinstance(key, _BASIC) and kind is not bool) or kind is str


def view_at(array: np.ndarray, key: Any) -> np.ndarray:
    """The view that a basic key selects; 0-d where the key selects one element."""
    if type(key) is str:
        return array[key]
    key = key if type(key) is tuple else (key,)
    if not any(k is Ellipsis for k in key):
        key = (*key, Ellipsis)
    return array[key]


def frozen_key(tape: Tape, key: Any) -> Any:
    """A key whose arrays hold, whenever the adjoint runs, the values they have now."""
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
    """A key whose arrays nobody else sees."""
    if type(key) is tuple:
        return tuple(copied_key(k) for k in key)
    if isinstance(key, list):
        return _index_array(key)
    return np.array(key) if isinstance(key, np.ndarray) else key


def _may_repeat(key: Any) -> bool:
    """Whether a key may select an element more than once: integer arrays may, masks and basic keys do not."""
    if type(key) is tuple:
        return any(_may_repeat(k) for k in key)
    return isinstance(key, np.ndarray) and key.dtype != bool and key.size > 1


class _Gather:
    """result = source[key], a copy."""

    __slots__ = ("key", "result", "source")

    def __init__(self, source: Region, key: Any, result: Region) -> None:
        self.source = source
        self.key = key
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.result):
            scatter_add(sweep.shadow(self.source), self.key, sweep.shadow(self.result))


def scatter_add(shadow: np.ndarray, key: Any, g: Any) -> None:
    """``shadow[key] += g``, where a repeated element gets the sum."""
    if _may_repeat(key) or 0 in shadow.strides:
        np.add.at(shadow, key, g)
    else:
        shadow[key] += g


def looks_into(result: np.ndarray, array: np.ndarray) -> bool:
    """Whether what a method of an array gave is a view of the array's memory."""
    base = result.base
    return base is array or (base is not None and base is array.base) or result is array


def getitem(array: TrackedArray, key: Any) -> Any:
    """``array[key]``: a view where NumPy gives one, otherwise a recorded copy."""
    result = np.ndarray.__getitem__(array, key)
    if isinstance(result, np.ndarray):
        if looks_into(result, array):
            return result
    elif not isinstance(result, np.inexact):
        return result
    tape = current()
    source = movable(tape, array)
    if source is None:
        if not is_active(tape, array):
            return wrapped(result)
        source = array
    assert tape is not None
    if is_basic(key):
        return copied(view_at(array, key), plain_of(result))
    result = wrapped(result)
    carry(tape, result, (source,))
    array = source
    tape.append(_Gather(region_of(array), frozen_key(tape, key), region_of(result)), created=(result,))
    return result


class _Scatter:
    """target[key] = source: where elements repeat, the last one written wins."""

    __slots__ = ("key", "source", "target")

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
            g = np.where(_written_last(shadow, self.key, g.shape), g, 0)
        sweep.add(self.source, unbroadcast(np.asarray(g), self.source.shape))


def _written_last(like: np.ndarray, key: Any, shape: tuple) -> np.ndarray:
    """For each element written by ``like[key] = values``: whether its value is the one that stays.

    NumPy itself is asked, because the order of its writes is its own affair.
    """
    writer = np.empty_like(like, dtype=np.intp)
    order = np.arange(int(np.prod(shape))).reshape(shape)
    writer[key] = order
    return writer[key] == order


def setitem(array: TrackedArray, key: Any, value: Any) -> None:
    """``array[key] = value``."""
    value = from_nested(value)
    key = plain_key(key)
    if is_basic(key):
        assign(view_at(array, key), value)
        return
    view = plain(array)
    tape = current()
    if tape is not None:
        key = frozen_key(tape, key)
    elif must_announce(array):
        key = copied_key(key)
    source = plain_of(value)

    def action() -> None:
        view[key] = source

    moved = movable(tape, value)
    if moved is not None and _same_bytes(moved, array):
        value = moved
        _make_slots(array, moved)
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


# ------------------------------------------------------------------------------------------- arrays of nested lists


class _Stack:
    __slots__ = ("result", "sources")

    def __init__(self, sources: list[tuple[int, Region]], result: Region) -> None:
        self.sources = sources
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        shape = self.sources[0][1].shape
        g = sweep.shadow(self.result).reshape((-1, *shape))
        for k, source in self.sources:
            sweep.add(source, g[k])


def _nested_leaves(x: Any) -> Iterator[Any]:
    if isinstance(x, (list, tuple)):
        for item in x:
            yield from _nested_leaves(item)
    else:
        yield x


def _nested_plain(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_nested_plain(item) for item in x]
    return plain_of(x)


def from_nested(x: Any, **keywords: Any) -> Any:
    """Lists and tuples that contain tracked arrays as one array (recorded); anything else as it is.

    Keyword arguments are those of `numpy.array`.
    """
    if not isinstance(x, (list, tuple)):
        return x
    leaves = list(_nested_leaves(x))
    if not any(isinstance(leaf, TrackedArray) for leaf in leaves):
        return x
    result = wrapped(np.array(_nested_plain(x), **keywords))
    tape = current()
    if tape is None:
        return result
    moved = [movable(tape, leaf) for leaf in leaves]
    leaves = [leaf if found is None else found for leaf, found in zip(leaves, moved)]
    active = [(k, leaf) for k, leaf in enumerate(leaves) if carries(tape, leaf)]
    if active and result.dtype.hasobject:
        raise no_rule(np.array, " for arrays of objects")
    if active and carry(tape, result, [leaf for _, leaf in active]):
        if result.size != sum(np.size(leaf) for leaf in leaves):
            raise ActivityError("active arrays of different shapes cannot be made one array")
        tape.append(_Stack([(k, region_of(leaf)) for k, leaf in active], region_of(result)), created=(result,))
    return result
