"""Activity: which arrays carry derivatives on the recording tape, and the rules for results and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..base import checks
from ..base.structures import mapped
from ..errors import ActivityError
from ..memory.extents import repeats_elements
from ..memory.storages import PACKED, TrackedArray, as_viewed, carries_derivatives, is_scalar, storage_of, wrapped
from ..tape import Tape
from .byte_views import bits_in


def is_active(tape: Tape | None, x: Any) -> bool:
    """Return whether a value is an array of floating-point or complex numbers that carries derivatives on the tape.

    Raises
    ------
    ActivityError
        It is a view of such numbers as bytes or integers, which cannot carry a derivative.
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


def any_active(tape: Tape | None, values: Iterable[Any]) -> bool:
    """Return whether a value, or a leaf of nested tuples, lists and dictionaries of values, is active (`is_active`)."""
    for x in values:
        if isinstance(x, np.ndarray):
            if is_active(tape, x):
                return True
        elif isinstance(x, (tuple, list)):
            if any_active(tape, x):
                return True
        elif isinstance(x, dict) and any_active(tape, x.values()):
            return True
    return False


def carries(tape: Tape, x: Any) -> bool:
    """Return whether a value is an array of active numbers, or of their bytes in the form that `movable` returns."""
    if isinstance(x, np.ndarray) and x.dtype.itemsize == 1:
        storage = storage_of(x)
        return storage is not None and bool(storage.packed) and tape.is_active(x)
    return is_active(tape, x)


def carry(tape: Tape, result: Any, sources: Sequence[Any]) -> bool:
    """Activate the result of moving elements if it holds active values of its sources; return whether it does.

    The sources are arrays for which `carries` is true.

    Raises
    ------
    ActivityError
        Bytes of active numbers were converted to numbers of another kind.
    """
    if not isinstance(result, np.ndarray):
        return False
    bytewise = [x for x in sources if x.dtype.itemsize == 1]
    kind = max((storage_of(x).packed for x in bytewise), default=0)  # type: ignore[union-attr]
    if not all(holds_same_bytes(x, result) for x in bytewise):
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


def holds_same_bytes(x: np.ndarray, target: np.ndarray) -> bool:
    """Return whether an assignment copies bytes unmodified."""
    return target.dtype.itemsize == 1 and (x.dtype.kind == "b" or target.dtype.kind != "b")


def is_inexact(x: Any) -> bool:
    """Return whether a result is an array whose dtype can carry derivatives."""
    return isinstance(x, np.ndarray) and carries_derivatives(x.dtype)


def plain_of(x: Any) -> Any:
    """A tracked array as a plain view of its memory, a tracked scalar as NumPy's; anything else unchanged."""
    if isinstance(x, TrackedArray):
        return _item(x, ()) if is_scalar(x) else as_viewed(x, np.ndarray)
    return x


_item = np.ndarray.__getitem__


def run_plainly(function: Callable, arguments: tuple, keywords: dict) -> Any:
    """Call a function with plain arguments, and wrap its results.

    Where the function returns one of its arguments, the argument itself is returned.
    """
    given, named = mapped(plain_of, arguments), mapped(plain_of, keywords)
    found = function(*given, **named)
    if keywords:
        arguments, given = (*arguments, *keywords.values()), (*given, *named.values())
    if type(found) is tuple:
        return tuple([_argument_or_result(r, arguments, given) for r in found])
    return _argument_or_result(found, arguments, given)


def _argument_or_result(found: Any, arguments: tuple, given: tuple) -> Any:
    for x, p in zip(arguments, given):
        if found is p and p is not x:
            return x
    return wrapped(found)


def copies(copy: Any) -> bool:
    """Return whether an argument ``copy`` of NumPy's functions requires a copy."""
    return copy is np._CopyMode.ALWAYS if isinstance(copy, np._CopyMode) else bool(copy)


def require_arrays(outs: Any) -> None:
    """Raise if one of the arrays that the user gave to take results is a scalar."""
    if any(is_scalar(out) for out in (outs if isinstance(outs, tuple) else (outs,))):
        raise TypeError(
            "a scalar cannot take a result (NumPy gives it as a number, not as an array); make the array for out= "
            "with ampi.numpy, e.g. ampi.numpy.empty(())"
        )


_MAKE = "make that array with ampi.numpy"
_MADE = "make a copy of it where the program gets it from a library (w = np.array(w))"


def require_tracked(target: np.ndarray, what: str) -> None:
    """Raise if an active value is about to enter memory that is not tracked."""
    if target.dtype == object:
        raise ActivityError(
            f"{what} writes an active value into an array of objects, where its derivative would be lost"
        )
    if storage_of(target) is None:
        raise ActivityError(
            f"{what} writes an active value into a plain numpy array of shape {target.shape}, where its derivative "
            f"would be lost; {_MADE if checks.whole else _MAKE}, or pass ampi.value(...) of the active operands"
        )
    if repeats_elements(target):
        raise ActivityError(
            f"{what} writes active values into an array of shape {target.shape} some of whose elements share memory "
            "(it was broadcast, or its windows slide); write into a copy of it"
        )
