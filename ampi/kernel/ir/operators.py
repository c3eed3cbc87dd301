"""Python's operators: their names in the IR, and their values for constants."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable

import numpy as np
from numba import types

from ampi.kernel import ir

BINARY: dict[type[ast.operator], tuple[str, Callable]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("truediv", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.BitAnd: ("bitand", operator.and_),
    ast.BitOr: ("bitor", operator.or_),
    ast.BitXor: ("bitxor", operator.xor),
    ast.LShift: ("lshift", operator.lshift),
    ast.RShift: ("rshift", operator.rshift),
}
QUOTIENTS = {"truediv", "floordiv", "mod", "fmod"}
"""Operations that divide by their second operand: Python's error model raises an exception where that is zero."""
COMPARE: dict[type[ast.cmpop], tuple[str, Callable]] = {
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
}
UNARY: dict[type[ast.unaryop], tuple[str, Callable]] = {
    ast.USub: ("neg", operator.neg),
    ast.UAdd: ("pos", operator.pos),
    ast.Invert: ("invert", operator.invert),
}


_COMPARISONS = dict(COMPARE.values())


def compared(name: str, a: ir.Expr, b: ir.Expr) -> ir.Const | None:
    """The outcome of a comparison of constants, as the processor computes it; None for other operands."""
    if name not in _COMPARISONS or not (isinstance(a, ir.Const) and isinstance(b, ir.Const)):
        return None
    if all(isinstance(v.type, (types.Integer, types.Boolean)) for v in (a, b)):
        return ir.Const(_COMPARISONS[name](a.value, b.value), types.boolean)
    if a.type != b.type or not isinstance(a.type, types.Float):
        return None
    dtype = np.dtype(a.type.name).type
    return ir.Const(bool(_COMPARISONS[name](dtype(a.value), dtype(b.value))), types.boolean)


def fold(name: str, function: Callable, left: ir.Expr, right: ir.Expr) -> ir.Const | None:
    """Arithmetic of integer constants, so that sizes and indices stay constants."""
    if name not in ("add", "sub", "mul", "floordiv", "mod"):
        return None
    if not all(isinstance(v, ir.Const) and v.type == types.int64 for v in (left, right)):
        return None
    if name in ("floordiv", "mod") and right.value == 0:
        return None
    value = function(left.value, right.value)
    return ir.Const(value, types.int64) if -(2**63) <= value < 2**63 else None
