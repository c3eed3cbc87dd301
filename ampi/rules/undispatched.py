"""Functions and classes of NumPy that do not dispatch on the classes of their arguments.

They read the numbers of an `ampi.ndarray` directly. A call is allowed if no derivative is lost, and refused otherwise.
(The module is separate from `ampi.numpy`, where `any`, `all` and `sum` are NumPy's.)
"""

from __future__ import annotations

import abc
import contextlib
import functools
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import activity
from ..arrays.activity import is_active, is_inexact
from ..arrays.array import ndarray
from ..arrays.nested import from_nested
from ..arrays.writing import concerns_tapes
from ..base.missing_rules import no_rule
from ..base.structures import leaves
from ..memory.storages import is_scalar, wrapped
from ..tape import current
from .inplace import WRITERS

SEQUENCES: set[Callable] = {
    np.choose,
    np.column_stack,
    np.concatenate,
    np.dstack,
    np.hstack,
    np.linalg.multi_dot,
    np.select,
    np.stack,
    np.vstack,
}
"""Functions of lists of arrays, which dispatch on the classes of the lists' items."""

SEPARATE: set[Callable] = {np.block, np.rec.array, np.rec.fromarrays, np.rec.fromrecords}
"""Functions whose lists are not arrays: the nesting has a meaning, or the items are columns with different dtypes."""


PARTLY: set[Callable] = {
    np.full_like,
    np.histogram,
    np.histogram2d,
    np.histogram_bin_edges,
    np.histogramdd,
    np.interp,
    np.nan_to_num,
    np.pad,
    np.polyint,
    np.select,
    np.trapezoid,
    np.unwrap,
}
"""Functions that do not dispatch on the class of each parameter that may be active, such as the range of a histogram.

NumPy's source would run and lose derivatives of some of the results."""


def with_lists_joined(function: Callable, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
    """The arguments of a function, with lists that hold active numbers converted to arrays if NumPy would do so."""
    if not any(isinstance(x, (list, tuple)) for x in (*arguments, *keywords.values())):
        return arguments, keywords
    if function in SEPARATE or (function in WRITERS and arguments and isinstance(arguments[0], ndarray)):
        return arguments, keywords  # writers cast lists differently from arrays
    join = _items_as_arrays if function in SEQUENCES else _as_array
    return tuple([join(x) for x in arguments]), {name: join(x) for name, x in keywords.items()}


def _as_array(x: Any) -> Any:
    if isinstance(x, (list, tuple)) and _is_active_array(x):
        with contextlib.suppress(ValueError):  # items of different shapes, such as the bins of `histogramdd`
            return from_nested(x)
    return x


def _items_as_arrays(x: Any) -> Any:
    return type(x)([_as_array(item) for item in x]) if type(x) in (list, tuple) else x


def _is_active_array(x: Any) -> bool:
    """Return whether NumPy would convert a list to an array of numbers, some of them active."""
    tape = current()
    return tape is not None and activity.any_active(tape, x) and all(map(_is_of_numbers, leaves(x)))


def _is_of_numbers(item: Any) -> bool:
    if isinstance(item, (np.ndarray, np.generic)):
        return item.dtype.kind in "biufc"
    return isinstance(item, numbers.Number)


def require_active(function: Callable, arguments: tuple, keywords: dict, result: Any) -> None:
    """Raise an error if a function of active arrays returned numbers none of which is active.

    NumPy dispatches on the classes of some of a function's arguments only.
    """
    tape = current()
    numbers = [r for r in leaves(result) if is_inexact(r)]
    if numbers and not any(is_active(tape, r) for r in numbers) and any_active(arguments, keywords):
        raise no_rule(function)


def any_active(arguments: tuple, keywords: dict) -> bool:
    """Return whether an argument is active on the recording tape."""
    tape = current()
    return tape is not None and activity.any_active(tape, (arguments, keywords))


def checked(function: Callable) -> Callable:
    """Wrap a function that does not dispatch: its results must be active if its arguments are."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        result = wrapped(function(*arguments, **keywords))
        if any_active(arguments, keywords):
            tape = current()
            if any(is_inexact(r) and not (isinstance(r, ndarray) and is_active(tape, r)) for r in leaves(result)):
                raise no_rule(function)
        return result

    return run


def refusing(function: Callable) -> Callable:
    """Wrap a function that reads plain numbers: active arguments are an error."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        if any_active(arguments, keywords):
            raise no_rule(function)
        return function(*arguments, **keywords)

    run.numpy_function = function  # type: ignore[attr-defined]
    return run


class Refusing(abc.ABCMeta):
    """Metaclass of stand-ins for NumPy's classes, which refuse to make an instance from active arrays."""

    origin: Any

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        if "origin" not in vars(cls):
            return super().__call__(*arguments, **keywords)
        if any_active(arguments, keywords):
            raise no_rule(cls.origin)
        return cls.origin(*arguments, **keywords)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.origin) if "origin" in vars(cls) else super().__instancecheck__(instance)

    def __subclasscheck__(cls, other: type) -> bool:
        if "origin" not in vars(cls):
            return super().__subclasscheck__(other)
        # Not issubclass(): an abstract class would ask its subclasses, this one included.
        return type.__subclasscheck__(cls.origin, other)


def standing_for(origin: type) -> type:
    """A stand-in for one of NumPy's classes that refuses active arrays; its instances are NumPy's own."""
    if issubclass(origin, (np.generic, Exception)):
        return origin
    names = {"origin": origin, "__doc__": origin.__doc__, "__module__": origin.__module__}
    return Refusing(origin.__name__, (origin,), names)


class OfNumbers(Refusing):
    """Metaclass of stand-ins that accept tracked numbers, such as `numpy.finfo`."""

    def __call__(cls, x: Any) -> Any:
        return cls.origin(x.dtype if is_scalar(x) else x)


class RefusingToWrite(Refusing):
    def __call__(cls, op: Any, flags: Any = (), op_flags: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if op_flags is not None and any(isinstance(x, ndarray) and concerns_tapes(x) for x in leaves(op)):
            raise no_rule(np.nditer, " that may write (the tape would not notice)")
        return super().__call__(op, flags, op_flags, *arguments, **keywords)
