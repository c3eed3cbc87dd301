"""Derivatives of single operations, written as IR from the expressions in the table of `intrinsics`."""

from __future__ import annotations

import ast
import cmath
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
    negate,
    real_type,
    select,
    without_derivative,
)
from ampi.kernel.ir.operators import BINARY, COMPARE
from ampi.kernel.runtime import scipy_calls
from ampi.partials.special import UNKNOWN


@functools.cache
def _parsed(template: str) -> ast.expr:
    return ast.parse(template, mode="eval").body


class _Template:
    """Writes a derivative expression of the table as IR, with constants in the working type."""

    def __init__(self, names: dict[str, Expr], working: Any) -> None:
        self.names = names
        self.working = working

    def product(self, d: Expr, node: ast.expr) -> Expr:
        """A change times a partial derivative, in the form with the fewest operations."""
        match node:
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.product(negate(d), operand)
            case ast.BinOp(left=ast.UnaryOp(op=ast.USub(), operand=left), op=ast.Div() as op, right=right):
                return self.product(negate(d), ast.BinOp(left, op, right))
            case ast.BinOp(left=ast.Constant(value=value) as left, op=ast.Div(), right=right):
                quotient = arithmetic("truediv", d, self.build(right))
                return quotient if value == 1 else arithmetic("mul", self.build(left), quotient)
            case ast.BinOp(left=ast.Constant(value=2) as left, op=ast.Mult(), right=right):
                return arithmetic("mul", arithmetic("mul", self.build(left), d), self.build(right))
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.build(test)
                return select(condition, self.product(d, body), self.product(d, orelse))
            case ast.Constant(value=0):
                return constant(0, d.type)
        return arithmetic("mul", d, self.build(node))

    def build(self, node: ast.expr) -> Expr:
        match node:
            case ast.Name(id=name):
                value = self.names[name]
                is_number = isinstance(value.type, (types.Float, types.Complex, types.Boolean))
                return value if is_number else convert(value, real_type(self.working))
            case ast.NamedExpr(target=ast.Name(id=name), value=inner):
                self.names[name] = self.build(inner)
                return self.names[name]
            case ast.Constant(value=value):
                return constant(value, self.working if isinstance(value, complex) else real_type(self.working))
            case ast.BinOp(left=left, op=op, right=right):
                return arithmetic(BINARY[type(op)][0], self.build(left), self.build(right))
            case ast.UnaryOp(operand=operand):
                return negate(self.build(operand))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                a, b = self.build(left), self.build(right)
                if isinstance(op, ast.NotEq) and isinstance(a, Const) and isinstance(b, Const):
                    return Const(a.value != b.value, types.boolean)
                return Op(COMPARE[type(op)][0], (a, b), types.boolean)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                condition = self.build(test)
                return select(condition, self.build(body), self.build(orelse))
            case ast.Call(func=ast.Name(id=name), args=args):
                values = tuple(self.build(a) for a in args)
                if name in _IN_DOUBLE:
                    return convert(Op(name, (convert(values[0], types.float64),), types.float64), values[0].type)
                if name in scipy_calls.FUNCTIONS:
                    inside = tuple(convert(v, types.float64) for v in values)
                    return Op(f"scipy_{name}", inside, types.float64)
                if name == "isinf":
                    return Op(name, values, types.boolean)
                ty = real_type(values[0].type) if name in ("real", "imag", "abs") else values[0].type
                return Op(name, values, ty)
        raise AssertionError(ast.dump(node))


_IN_DOUBLE = {"digamma", "trigamma", "tetragamma"}


def _power_of_constant(d: Expr, x: Expr, n: Any, r: Expr, guard: Callable[[Expr], Expr]) -> Expr:
    """``d * n * x ** (n - 1)`` for a constant exponent."""
    working = real_type(r.type)
    if n == 0:
        return constant(0, d.type)
    if n == 1:
        return d
    factor = arithmetic("mul", d, constant(n, r.type if isinstance(n, complex) else working))
    if n == 2:
        return arithmetic("mul", factor, x)
    if n == 3:
        return arithmetic("mul", factor, arithmetic("mul", x, x))
    if not cmath.isfinite(n):  # x ** (n - 1) is x ** n; where it is zero, it is so around x as well
        is_zero = Op("eq", (r, constant(0, r.type)), types.boolean)
        value = arithmetic("mul", factor, r)
        return guard(select(is_zero, constant(0, value.type), value) if n == n else value)
    is_integer = n == n.real and n.real == int(n.real) and abs(n.real) < _LARGEST_EXPONENT
    if is_integer and n.real < 0:  # Numba's power raises for zero to a negative integer
        value = arithmetic("truediv", factor, Op("pow", (x, Const(1 - int(n.real), types.int64)), x.type))
    elif is_integer:
        value = arithmetic("mul", factor, Op("pow", (x, Const(int(n.real) - 1, types.int64)), x.type))
    elif isinstance(n, complex):
        value = arithmetic("mul", factor, Op("pow", (x, constant(n - 1, r.type)), r.type))
    else:
        value = arithmetic("mul", factor, Op("pow", (x, constant(n - 1, working)), x.type))
    return value if n.real >= 1 else guard(value)


_LARGEST_EXPONENT = 2.0**53
"""Exponents are integers below this bound, and floating-point numbers above it, where all of them are even."""


GUARD = "d != 0"
"""The condition under which a derivative that may be infinite is evaluated."""


def _change(op: Op, k: int, text: str, result: Expr, d: Expr, working: Any, guard: str) -> Expr:
    """The change ``d`` of argument k times the partial derivative in ``text``."""
    template = _Template({**dict(zip(ARGUMENTS, op.args)), "r": result, "d": d}, working)
    if "d" in _names(text):
        return template.build(_parsed(text))

    def guarded(value: Expr) -> Expr:
        return select(template.build(_parsed(guard)), value, constant(0, value.type))

    if op.name == "pow" and k == 0 and isinstance(op.args[1], Const):
        return _power_of_constant(d, op.args[0], op.args[1].value, result, guarded)
    if TABLE[op.name].is_special:  # expensive: a conditional expression is evaluated once
        return arithmetic("mul", d, template.build(_parsed(text)))
    value = template.product(d, _parsed(text))
    is_number = isinstance(_parsed(text), (ast.Constant, ast.UnaryOp)) and not _names(text)
    if is_number or not TABLE[op.name].unbounded or guard == "True":
        return value
    return guarded(value)


@functools.cache
def _names(text: str) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(_parsed(text)) if isinstance(node, ast.Name))


def _partials(op: Op) -> tuple[str | None, ...]:
    entry = TABLE[op.name]
    is_complex = entry.of_complex is not None and any(isinstance(a.type, types.Complex) for a in op.args)
    return entry.of_complex if is_complex else entry.partials  # type: ignore[return-value]


def tangent_of(op: Op, k: int, result: Expr, d: Expr) -> Expr | None:
    """The change of ``op``'s result for the change ``d`` of its k-th argument, or None where it is zero.

    ``result`` names the operation's value.  The type is that of the result.
    """
    if op.name == "abs" and isinstance(op.args[0].type, types.Complex):
        return _complex_abs_tangent(op.args[0], result, d)
    text = _partials(op)[k]
    if text is None:
        return None
    _check_known(op, k)
    return convert(_change(op, k, text, result, d, op.type, GUARD), op.type)


def _check_known(op: Op, k: int) -> None:
    if TABLE[op.name].partials[k] == UNKNOWN:
        raise ActivityError(without_derivative(op.name, k))


def adjoint_of(op: Op, k: int, result: Expr, g: Expr, guard: str = GUARD) -> Expr | None:
    """The contribution of the adjoint ``g`` of ``op``'s result to that of its k-th argument, in that argument's type.

    ``guard`` replaces `GUARD`: "True" where the derivative is finite.
    """
    argument = op.args[k]
    if op.name == "abs" and isinstance(argument.type, types.Complex):
        return _complex_abs_adjoint(argument, result, g)
    text = _partials(op)[k]
    if text is None:
        return None
    _check_known(op, k)
    own = TABLE[op.name].adjoints
    if own is not None:
        return convert(_change(op, k, own[k], result, g, argument.type, guard), argument.type)  # type: ignore[arg-type]
    if not isinstance(g.type, types.Complex):
        return convert(_change(op, k, text, result, g, op.type, guard), argument.type)
    return convert(conjugate(_change(op, k, text, result, conjugate(g), op.type, guard)), argument.type)


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
