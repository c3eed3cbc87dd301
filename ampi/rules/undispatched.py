"""Functions and classes of NumPy that compute with the numbers of an array behind the back of `ampi.ndarray`.

NumPy does not hand these calls to the classes of their arguments.  Each is let through where nothing is lost by it, and
refused otherwise.  (Not in `ampi.numpy`, where `any`, `all` and `sum` are NumPy's.)
"""

from __future__ import annotations

import abc
import contextlib
import functools
import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

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
"""Functions that are given lists of arrays, and whose arguments' classes NumPy looks for in these."""

SEPARATE: set[Callable] = {np.block, np.rec.array, np.rec.fromarrays, np.rec.fromrecords}
"""Functions whose lists are no arrays: their depth says what is done, or they hold columns with dtypes of their own."""


def with_lists_joined(function: Callable, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
    """The arguments of a function with an array for every list of ours that NumPy would take for one, but for its
    numbers alone."""
    if not any(isinstance(x, (list, tuple)) for x in (*arguments, *keywords.values())):
        return arguments, keywords
    if function in SEPARATE or (function in WRITERS and arguments and isinstance(arguments[0], ndarray)):
        return arguments, keywords  # the latter cast lists in another way than arrays
    join = _items_joined if function in SEQUENCES else _joined
    return tuple([join(x) for x in arguments]), {name: join(x) for name, x in keywords.items()}


def _joined(x: Any) -> Any:
    if isinstance(x, (list, tuple)) and _is_array_of_ours(x):
        with contextlib.suppress(ValueError):  # of items with different shapes, such as the bins of `histogramdd`
            return from_nested(x)
    return x


def _items_joined(x: Any) -> Any:
    return type(x)([_joined(item) for item in x]) if type(x) in (list, tuple) else x


def _is_array_of_ours(x: Any) -> bool:
    """Whether a list is an array of numbers in NumPy's eyes, and has active ones."""
    tape = current()
    found = list(leaves(x))
    return any(is_active(tape, item) for item in found) and all(map(_is_of_numbers, found))


def _is_of_numbers(item: Any) -> bool:
    if isinstance(item, (np.ndarray, np.generic)):
        return item.dtype.kind in "biufc"
    return isinstance(item, numbers.Number)


def require_active(function: Callable, arguments: tuple, keywords: dict, result: Any) -> None:
    """Raise if none of the numbers that a function gave of active arrays is active.

    NumPy looks for arrays' classes among some of a function's arguments only.
    """
    tape = current()
    numbers = [r for r in leaves(result) if is_inexact(r)]
    if numbers and not any(is_active(tape, r) for r in numbers) and any_active(arguments, keywords):
        raise no_rule(function)


def any_active(arguments: tuple, keywords: dict) -> bool:
    tape = current()
    return tape is not None and any(is_active(tape, x) for x in leaves((arguments, keywords)))


def checked(function: Callable) -> Callable:
    """A function that NumPy does not hand to its arguments' classes: what comes of active arrays has to be active."""

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
    """A function that computes with numbers alone, and says so of active arrays."""

    @functools.wraps(function)
    def run(*arguments: Any, **keywords: Any) -> Any:
        if any_active(arguments, keywords):
            raise no_rule(function)
        return function(*arguments, **keywords)

    run.numpy_function = function  # type: ignore[attr-defined]
    return run


class Refusing(abc.ABCMeta):
    """The class of classes that stand for NumPy's own, and refuse to make an instance of active arrays."""

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
        return type.__subclasscheck__(cls.origin, other)  # an abstract class would ask this one, its subclass, again


def standing_for(origin: type) -> type:
    """A class like NumPy's that refuses active arrays; instances are NumPy's own."""
    if issubclass(origin, (np.generic, Exception)):
        return origin
    names = {"origin": origin, "__doc__": origin.__doc__, "__module__": origin.__module__}
    return Refusing(origin.__name__, (origin,), names)


class OfNumbers(Refusing):
    """The class of a class that is told numbers where NumPy's is, such as `numpy.finfo`."""

    def __call__(cls, x: Any) -> Any:
        return cls.origin(x.dtype if is_scalar(x) else x)


class RefusingToWrite(Refusing):
    def __call__(cls, op: Any, flags: Any = (), op_flags: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if op_flags is not None and any(isinstance(x, ndarray) and concerns_tapes(x) for x in leaves(op)):
            raise no_rule(np.nditer, " that may write (it does so behind the tape's back)")
        return super().__call__(op, flags, op_flags, *arguments, **keywords)
