"""Kinds of numbers in a loop: Python's and NumPy's classes, bounds of integers, and results of arithmetic."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from ...memory.storages import TrackedArray, is_scalar

INT, BOOL, FLOAT = "int", "bool", "float"
INT64, INT32, BOOL_, FLOAT64 = "int64", "int32", "bool_", "float64"

SAFE = 1 << 31
"""Bound of the magnitude of integer inputs and counters; beyond it the loop runs in Python."""
LARGEST = (1 << 63) - 1
EXACT = 1 << 53
"""Integers up to this magnitude are exact as floating-point numbers."""

_OF_TYPES: dict[type, str] = {
    int: INT, bool: BOOL, float: FLOAT,
    np.int64: INT64, np.bool_: BOOL_, np.float64: FLOAT64, np.int32: INT32,
}  # fmt: skip
_OF_ELEMENTS = {np.dtype(np.float64): FLOAT64, np.dtype(np.int64): INT64, np.dtype(np.int32): INT32}
_OF_ELEMENTS[np.dtype(np.bool_)] = BOOL_

REAL = frozenset((FLOAT, FLOAT64))
INTEGER = frozenset((INT, INT64, INT32))
LOGICAL = frozenset((BOOL, BOOL_))


class Refused(Exception):
    """A loop that is not compiled, and why.

    Attributes
    ----------
    line : int
    reason : str
    """

    def __init__(self, node: Any, reason: str) -> None:
        super().__init__(reason)
        self.line = getattr(node, "lineno", 0)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Number:
    """The abstract value of a number.

    Attributes
    ----------
    assigned : frozenset of str
        The kinds that the loop may have given it.
    entry : frozenset of str
        The kinds that it may have had before the loop, if it may still be that number.
    magnitude : int
        A bound of an integer's absolute value.
    low, high : str or None
        Expressions of the loop's arguments that bound an integer.
    real : bool
        True if the kernel stores it as a floating-point number, though it may be an integer in Python.
    """

    assigned: frozenset[str]
    entry: frozenset[str] = frozenset()
    magnitude: int = SAFE
    low: str | None = None
    high: str | None = None
    real: bool = False

    @property
    def kinds(self) -> frozenset[str]:
        return self.assigned | self.entry

    @property
    def form(self) -> str:
        """The kernel's type: int, bool or float."""
        kinds = self.kinds
        if kinds <= LOGICAL:
            return BOOL
        return INT if kinds <= INTEGER and not self.real else FLOAT

    def as_value(self) -> Number:
        """The same, as the value of an assignment."""
        return dataclasses.replace(self, assigned=self.kinds, entry=frozenset())


@dataclasses.dataclass(frozen=True)
class Array:
    """An array that the loop does not rebind, by the name of the kernel's argument; its shape when it is compiled."""

    name: str
    dtype: Any
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def element(self) -> str:
        return _OF_ELEMENTS[self.dtype]


@dataclasses.dataclass(frozen=True)
class View:
    """A part of an array with fixed first indices, which are variables of the kernel."""

    array: Array
    indices: tuple[str, ...]

    @property
    def ndim(self) -> int:
        return self.array.ndim - len(self.indices)


@dataclasses.dataclass(frozen=True)
class Slice:
    """A few neighbouring elements of an array: `count` of them from an index on that is not negative."""

    view: View
    first: str
    count: int


@dataclasses.dataclass(frozen=True)
class Vector:
    """An array of float64 that the loop has made, by its elements: expressions, or the variables of one with a name."""

    elements: tuple[str, ...]
    name: str = ""


@dataclasses.dataclass(frozen=True)
class Constant:
    """A function, a module, or another object that a name denotes."""

    value: Any


def as_view(found: Any) -> Any:
    """An array as the part of itself that has no fixed indices; anything else unchanged."""
    return View(found, ()) if isinstance(found, Array) else found


def number(*kinds: str, magnitude: int = SAFE, low: str | None = None, high: str | None = None) -> Number:
    return Number(frozenset(kinds), frozenset(), magnitude, low, high)


def kind_of(value: Any) -> Any:
    """Return the kind of a number, the dtype and dimensions of an array, or the identity of another object."""
    known = _OF_TYPES.get(type(value))
    if known is not None:
        return known
    if isinstance(value, np.ndarray):
        if isinstance(value, TrackedArray) and is_scalar(value):
            return _OF_ELEMENTS.get(value.dtype, value.dtype.str)
        return value.dtype, value.ndim, value.flags.writeable
    return id(value)


def is_known_array(value: Any) -> bool:
    """Return whether a value is an array whose elements loops may use."""
    return (
        (type(value) is np.ndarray or isinstance(value, TrackedArray))
        and not (isinstance(value, TrackedArray) and is_scalar(value))
        and value.dtype in _OF_ELEMENTS
        and value.dtype.isnative
        and value.ndim > 0
    )


def join(a: Number, b: Number) -> Number:
    """Return the abstract value of a number that is either of two."""
    same = (a.low, a.high) == (b.low, b.high)
    return Number(
        a.assigned | b.assigned,
        a.entry | b.entry,
        max(a.magnitude, b.magnitude),
        a.low if same else None,
        a.high if same else None,
        a.real or b.real,
    )


def _of_pair(operator: str, a: str, b: str) -> str:
    if FLOAT64 in (a, b):
        return FLOAT64
    if operator == "/":
        return FLOAT64 if INT64 in (a, b) else FLOAT
    if FLOAT in (a, b):
        return FLOAT64 if INT64 in (a, b) else FLOAT
    return INT64 if INT64 in (a, b) else INT


def of_operation(operator: str, a: Number, b: Number) -> frozenset[str]:
    """The kinds of the result of an arithmetic operation."""
    return frozenset(_of_pair(operator, x, y) for x, y in itertools.product(a.kinds, b.kinds))
