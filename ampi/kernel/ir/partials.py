"""Derivatives of single operations, written as IR from the expressions in the table of `intrinsics`."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from numba import types

from ampi.errors import ActivityError
from ampi.kernel.ir import Const, Expr, Op
from ampi.kernel.ir.intrinsics import (
    ARGUMENTS,
    TABLE,
    arithmetic,
    conjugate,
    constant,
    convert,
    is_nonzero,
    join_types,
    negate,
    real_type,
    select,
    without_derivative,
)
from ampi.kernel.runtime import scipy_calls
from ampi.kernel.runtime.special_table import UNKNOWN

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.Pow: "pow",
}  # fmt: skip
_COMPARE = {ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne"}


@functools.cache
def _parsed(template: str) -> ast.expr:
    return ast.parse(template, mode="eval").body


class _Template:
    """Writes a derivative expression of the table as IR, with constants in the working type."""

    def __init__(self, names: dict[str, Expr], working: Any) -> None:
        self.names = names
        self.working = working

    def build(self, node: ast.expr) -> Expr:
        match node:
            case ast.Name(id=name):
                value = self.names[name]
                is_number = isinstance(value.type, (types.Float, types.Complex, types.Boolean))
                return value if is_number else convert(value, real_type(self.working))
            case ast.Constant(value=value):
                return constant(value, self.working if isinstance(value, complex) else real_type(self.working))
            case ast.BinOp(left=left, op=op, right=right):
                return arithmetic(_BINARY[type(op)], self.build(left), self.build(right))
            case ast.UnaryOp(operand=operand):
                return negate(self.build(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self.build(left), self.build(right)
                if isinstance(op, ast.NotEq) and isinstance(a, Const) and isinstance(b, Const):
                    return Const(a.value != b.value, types.boolean)
                return Op(_COMPARE[type(op)], (a, b), types.boolean)
            case ast.IfExp(test=ast.Constant(value=True), body=body):
                return self.build(body)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                return select(self.build(test), self.build(body), self.build(orelse))
            case ast.Call(func=ast.Name(id=name), args=args):
                values = tuple(self.build(a) for a in args)
                if name in _HELPERS:
                    return _HELPERS[name](*values)
                if name in scipy_calls.FUNCTIONS:
                    inside = tuple(convert(v, types.float64) for v in values)
                    return Op(f"scipy_{name}", inside, types.float64)
                ty = real_type(values[0].type) if name in ("real", "imag") else values[0].type
                return Op(name, values, ty)
        raise AssertionError(ast.dump(node))


def _power_x(d: Expr, x: Expr, y: Expr, r: Expr) -> Expr:
    """``d * y * x ** (y - 1)``; zero where the exponent is zero, even at x = 0."""
    if not isinstance(y, Const):
        power = Op("pow", (x, arithmetic("sub", y, constant(1, y.type))), r.type)
        value = arithmetic("mul", d, arithmetic("mul", y, power))
        return select(Op("and", (is_nonzero(d), is_nonzero(y)), types.boolean), value, constant(0, value.type))
    n = y.value
    working = real_type(r.type)
    if n == 0:
        return constant(0, d.type)
    if n == 1:
        return d
    factor = arithmetic("mul", d, constant(n, real_type(working) if not isinstance(n, complex) else r.type))
    if n == 2:
        return arithmetic("mul", factor, x)
    if n == 3:
        return arithmetic("mul", factor, arithmetic("mul", x, x))
    if n == int(n.real) and n.real < 0:  # Numba's power raises for zero to a negative integer
        value = arithmetic("truediv", factor, Op("pow", (x, Const(1 - int(n.real), types.int64)), x.type))
    else:
        exponent = Const(int(n.real) - 1, types.int64) if n == int(n.real) else constant(n - 1, working)
        value = arithmetic("mul", factor, Op("pow", (x, exponent), x.type))
    if n.real >= 1:
        return value
    return select(is_nonzero(d), value, constant(0, value.type))


def _power_y(d: Expr, x: Expr, y: Expr, r: Expr) -> Expr:
    """``d * r * log(x)``; where the power is zero, its limit zero."""
    value = arithmetic("mul", d, arithmetic("mul", r, Op("log", (x,), x.type)))
    return select(Op("and", (is_nonzero(d), is_nonzero(r)), types.boolean), value, constant(0, value.type))


def _around(a: Expr, x: Expr, y: Expr) -> Expr:
    """``a / (x * x + y * y)`` without overflow or underflow of the squares; zero at the origin and at infinity."""
    distance = Op("hypot", (x, y), join_types(x.type, y.type))
    value = arithmetic("truediv", arithmetic("truediv", a, distance), distance)
    zero = constant(0, value.type)
    somewhere = select(Op("isinf", (distance,), types.boolean), zero, value)
    return select(is_nonzero(distance), somewhere, zero)


def _above_one(x: Expr) -> Expr:
    """``sqrt(x * x + 1)``, without overflow for real numbers."""
    one = constant(1, x.type)
    if isinstance(x.type, types.Complex):
        return Op("sqrt", (arithmetic("add", arithmetic("mul", x, x), one),), x.type)
    return Op("hypot", (x, one), x.type)


def _in_double(name: str) -> Callable[[Expr], Expr]:
    return lambda x: convert(Op(name, (convert(x, types.float64),), types.float64), x.type)


_HELPERS: dict[str, Callable[..., Expr]] = {
    "power_x": _power_x,
    "power_y": _power_y,
    "around": _around,
    "above_one": _above_one,
    "digamma": _in_double("digamma"),
    "trigamma": _in_double("trigamma"),
    "tetragamma": _in_double("tetragamma"),
}


def _bindings(op: Op, result: Expr, d: Expr) -> dict[str, Expr]:
    return {**dict(zip(ARGUMENTS, op.args)), "r": result, "d": d}


def tangent_of(op: Op, k: int, result: Expr, d: Expr) -> Expr | None:
    """The change of ``op``'s result for the change ``d`` of its k-th argument, or None where it is zero.

    ``result`` names the operation's value.  The type is that of the result.
    """
    if op.name == "abs" and isinstance(op.args[0].type, types.Complex):
        return _complex_abs_tangent(op.args[0], result, d)
    template = TABLE[op.name].partials[k]
    if template is None:
        return None
    _check_known(op, k)
    value = _Template(_bindings(op, result, d), op.type).build(_parsed(template))
    return convert(value, op.type)


def _check_known(op: Op, k: int) -> None:
    if TABLE[op.name].partials[k] == UNKNOWN:
        raise ActivityError(without_derivative(op.name, k))


GUARD = "d != 0"  # of derivatives that may be infinite, in the table


def adjoint_of(op: Op, k: int, result: Expr, g: Expr, guard: str = GUARD) -> Expr | None:
    """The contribution of the adjoint ``g`` of ``op``'s result to that of its k-th argument, in that argument's type.

    ``guard`` replaces `GUARD`: "True" where the derivative is finite.
    """
    argument = op.args[k]
    if op.name == "abs" and isinstance(argument.type, types.Complex):
        return _complex_abs_adjoint(argument, result, g)
    entry = TABLE[op.name]
    if entry.partials[k] is None:
        return None
    _check_known(op, k)
    own_rule = entry.adjoints is not None
    template = _parsed((entry.adjoints or entry.partials)[k].replace(GUARD, guard))
    is_complex = isinstance(g.type, types.Complex)
    working = argument.type if own_rule else op.type
    if own_rule or not is_complex:
        return convert(_Template(_bindings(op, result, g), working).build(template), argument.type)
    value = _Template(_bindings(op, result, conjugate(g)), working).build(template)
    return convert(conjugate(value), argument.type)


def _complex_abs_tangent(z: Expr, r: Expr, d: Expr) -> Expr:
    """Re(conj(z) d) / |z|; at zero Re d, the derivative from the right along the real axis."""
    projection = Op("truediv", (Op("real", (arithmetic("mul", conjugate(z), d),), r.type), r), r.type)
    at_zero = Op("eq", (r, constant(0, r.type)), types.boolean)
    return select(at_zero, convert(Op("real", (d,), r.type), r.type), projection)


def _complex_abs_adjoint(z: Expr, r: Expr, g: Expr) -> Expr:
    """g z / |z|; at zero the derivative from the right along the real axis."""
    value = arithmetic("mul", z, arithmetic("truediv", g, r))
    at_zero = Op("eq", (r, constant(0, r.type)), types.boolean)
    return select(at_zero, convert(g, z.type), value)
