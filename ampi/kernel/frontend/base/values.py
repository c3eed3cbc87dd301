"""Values of expressions and names while a kernel is parsed, and their structure.

The *value* of an expression is an ``ir.Expr`` (a scalar, or a ``Var`` of array type), a ``Lazy`` (an array that is not
computed yet), a ``Group`` (a tuple of values) or a ``Static`` (an object known at compile time: a module, function,
kernel, dtype, None, a string).
"""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.ir import inference


@dataclass(frozen=True)
class Static:
    """A value known when the kernel is compiled."""

    value: Any


@dataclass(frozen=True)
class Group:
    """A tuple of values; ``cls`` is the class of a named tuple."""

    items: tuple[Any, ...]
    cls: type | None = None


Slice = namedtuple("Slice", "start stop step")  # the class of a ``Group`` for a slice object


Maybe = namedtuple("Maybe", "there number")
"""The class of a ``Group`` for a result that is a number or None: a flag, true if there is a number, and the number."""


def is_maybe(value: Any) -> bool:
    return isinstance(value, Group) and value.cls is Maybe


class Listed:
    """The class of a ``Group`` for a list of tuples: the arrays of their first, second, ... items."""

    width: int


@functools.cache
def list_class(width: int) -> Any:
    """The class of a list of tuples of ``width`` items, or of numbers (``width`` 0): for `Group.cls`."""
    fields = namedtuple("List", [f"item{k}" for k in range(max(width, 1))])
    return type("List", (Listed, fields), {"width": width})


class Recorded:
    """The class of a ``Group`` for a structured array that is a result: the arrays of its fields."""

    type: types.Array


@functools.cache
def record_class(type_: types.Array) -> Any:
    """The class for structured arrays of this type."""
    count = len(type_.dtype.fields)
    return type("Records", (Recorded, namedtuple("Records", [f"field{k}" for k in range(count)])), {"type": type_})


class ArraysOfList(namedtuple("ArraysOfList", "elements starts")):
    """The class of a ``Group`` for an argument that is a list of vectors.

    It has the elements of all vectors, concatenated, and the offsets at which each begins (and the last one ends).
    """


def is_list_of_arrays(value: Any) -> bool:
    """Return whether a value is a list of vectors."""
    return isinstance(value, Group) and value.cls is ArraysOfList


def is_listed(value: Any) -> bool:
    """Return whether a value is a list of tuples: a ``Group`` of the columns."""
    return isinstance(value, Group) and value.cls is not None and issubclass(value.cls, Listed)


@dataclass(frozen=True)
class Items:
    """The items of a loop by their index: ``item(k)`` for k from 0 to ``length``.

    Items on a grid also have an index for each axis of ``shape``: ``at(indices)``.
    """

    length: ir.Expr
    item: Callable[[ir.Expr], Any]
    shape: tuple[ir.Expr, ...] = ()
    at: Callable[[tuple[ir.Expr, ...]], Any] | None = None


@dataclass(frozen=True)
class Flat:
    """The elements of an array by one index: ``a.flat``."""

    array: Any


@dataclass(frozen=True)
class Named:
    """A local name that is not a scalar variable: an alias of ``var``."""

    var: ir.Var


@dataclass(frozen=True)
class Leaf:
    """An item of a tuple variable, which is stored in the variable ``name``."""

    name: str


Value = Any  # ir.Expr | Lazy | Group | Static
Single = frozenset[tuple[int, int]]  # axes of size one: the position of the argument leaf, and the axis


class Unknown(Exception):
    """A variable is used whose type is not inferred yet."""


TRUE = ir.Const(True, types.boolean)
ZERO = ir.Const(0, types.int64)


def leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, Group):
        for item in value.items:
            yield from leaves_of(item)
    else:
        yield value


def map_leaves(value: Value, function: Callable[[ir.Expr], ir.Expr]) -> Value:
    if isinstance(value, Group):
        return Group(tuple(map_leaves(v, function) for v in value.items), value.cls)
    return value if isinstance(value, Static) else function(value)


def kind_of(value: Value) -> Any:
    if isinstance(value, Group):
        return Group(tuple(kind_of(v) for v in value.items), value.cls)
    return value if isinstance(value, Static) else inference.plain(value.type)


def merge_kinds(first: Any, second: Any) -> Any:
    """The structure of a result that has either structure; None if they do not fit."""
    if isinstance(first, Group) and isinstance(second, Group):
        if len(first.items) != len(second.items) or first.cls is not second.cls:
            return None
        items = tuple(merge_kinds(a, b) for a, b in zip(first.items, second.items, strict=True))
        return None if None in items else Group(items, first.cls)
    if isinstance(first, types.Type) and isinstance(second, types.Type):
        return inference.unify(first, second)
    return first if first == second else None


def number_or_none(first: Any, second: Any) -> Any:
    """The structure of a result that is a number on one path and None on another; otherwise None."""
    kinds = [k.items[1] if is_maybe(k) else k for k in (first, second) if k != Static(None)]
    if len(kinds) == 2 and not (is_maybe(first) or is_maybe(second)):
        return None
    if not kinds or not all(isinstance(k, types.Type) and inference.is_scalar(k) for k in kinds):
        return None
    number = kinds[0] if len(kinds) == 1 else inference.unify(*kinds)
    return None if number is None else Group((types.boolean, number), Maybe)


def structure_of(kind: Any) -> Any:
    """``ir.Function.result`` for a result of this kind."""
    if kind is None or isinstance(kind, Static):
        return None
    if isinstance(kind, Group):
        return ("tuple", kind.cls, tuple(structure_of(k) for k in kind.items))
    return "array" if inference.is_array(kind) else "scalar"


def forms_in(structure: Any) -> Any:
    """The parts of ``ir.Function.result`` that have another form while a call is recorded (see `Contract.forms`).

    A list is given by its width, an optional number by -1, a structured array by -2; None if there are none of these.
    """
    if not isinstance(structure, tuple):
        return None
    _, cls, parts = structure
    if cls is Maybe:
        return -1
    if cls is not None and issubclass(cls, Recorded):
        return -2
    if cls is not None and issubclass(cls, Listed):
        return cls.width
    found = tuple(forms_in(p) for p in parts)
    return None if all(f is None for f in found) else found


def assemble(structure: Any, leaves: Iterator[ir.Expr]) -> Value:
    """The value of a call from the leaves of its result."""
    if structure is None:
        return Static(None)
    if isinstance(structure, tuple):
        _, cls, parts = structure
        return Group(tuple(assemble(p, leaves) for p in parts), cls)
    return next(leaves)


def negation(condition: ir.Expr) -> ir.Expr:
    if isinstance(condition, ir.Const):
        return ir.Const(not condition.value, types.boolean)
    return ir.Op("not", (condition,), types.boolean)


def conjugate(value: ir.Expr) -> ir.Expr:
    return ir.Op("conj", (value,), value.type) if isinstance(value.type, types.Complex) else value


def part_of(name: str, value: ir.Expr) -> ir.Expr:
    if isinstance(value.type, types.Complex):
        return ir.Op(name, (value,), value.type.underlying_float)
    return value if name == "real" else ir.Const(0, value.type)


def constant_table(group: Group) -> np.ndarray | None:
    """A tuple (of tuples) of constants of one type as an array, or None."""

    def unpack(value: Any) -> Any:
        return [unpack(v) for v in value.items] if isinstance(value, Group) else value.value

    leaves = list(leaves_of(group))
    if not all(isinstance(v, ir.Const) for v in leaves) or len({v.type for v in leaves}) != 1:
        return None
    try:
        return np.array(unpack(group), dtype=numpy_support.as_dtype(leaves[0].type))
    except ValueError:
        return None


def describe_kind(kind: Any) -> str:
    if isinstance(kind, types.Type):
        return str(kind)
    return "a tuple" if isinstance(kind, Group) else "an array" if isinstance(kind, Named) else "something else"
