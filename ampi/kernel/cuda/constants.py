"""Constant folding of integers and conditions, with the values of names and thread indices that are known."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from numba import types

from ampi.kernel import ir


def _shifted(shift: Callable[[int, int], int]) -> Callable[[int, int], int]:
    """Return a shift that raises an error where the result is not defined."""

    def shifted(value: int, places: int) -> int:
        if places > 63:
            raise OverflowError
        return shift(value, places)

    return shifted


_OPERATIONS: dict[str, Any] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "lshift": _shifted(operator.lshift),
    "rshift": _shifted(operator.rshift),
    "max": max,
    "min": min,
    "neg": operator.neg,
    "cast": lambda a: a,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "not": operator.not_,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}


def is_exact(ty: Any) -> bool:
    """Return whether a type has no rounding: integers and booleans."""
    return isinstance(ty, (types.Integer, types.Boolean))


def evaluated(e: ir.Expr, names: Mapping[str, Any] = {}, indices: Mapping[str, int] = {}) -> Any:
    """Return the value of an integer expression or a condition, which wraps around as in compiled code; None if it is
    not known.

    ``names`` has the values of variables, ``indices`` those of indices and sizes of threads and blocks.
    """
    match e:
        case ir.Const(value=value) if isinstance(value, int):
            return value
        case ir.Var(name=name):
            return names.get(name)
        case ir.Op(name=name, args=()):
            return indices.get(name)
        case ir.Op(name=name, args=args) if name in _OPERATIONS and all(is_exact(x.type) for x in (e, *args)):
            values = [evaluated(a, names, indices) for a in args]
            if all(v is not None for v in values):
                try:
                    value = _OPERATIONS[name](*values)
                except (ArithmeticError, ValueError):  # a shift by a negative number, or by too many places
                    return None
                return ir.Const(bool(value) if isinstance(e.type, types.Boolean) else int(value), e.type).value
    return None
