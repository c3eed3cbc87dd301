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


def literal(node: ast.AST) -> ir.Const | None:
    """The value of an expression of literal integers, which Python computes exactly before anything is compiled."""
    value = _literal(node)
    if isinstance(value, float):
        return ir.Const(value, types.float64)
    if value is None or not -(2**63) <= value < 2**64:
        return None
    return ir.Const(value, types.int64 if value < 2**63 else types.uint64)


def _literal(node: ast.AST) -> int | float | None:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            operands = [operand]
            function = UNARY[type(op)][1]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY and not isinstance(op, ast.Div):
            operands = [left, right]
            function = BINARY[type(op)][1]
        case _:
            return None
    values = [_literal(o) for o in operands]
    if not all(isinstance(v, int) and abs(v) < 2**128 for v in values):
        return None
    if isinstance(node.op, (ast.Pow, ast.LShift)) and values[1] > 128:  # type: ignore[operator]
        return None
    try:
        return function(*values)
    except (ArithmeticError, ValueError):
        return None
