"""Functions of numbers composed of intrinsics, so that their derivatives follow.

Each entry takes the parser, the call, and the values of its arguments.
"""

from __future__ import annotations

import ast
import cmath
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.base.values import part_of
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast


def phase(builder: Any, node: ast.Call, value: ir.Expr) -> ir.Expr:
    """The angle of a complex number (of a real one: 0 or pi)."""
    value = _atom(builder, value)
    if isinstance(value.type, types.Integer):
        value = ir.Op("cast", (value,), types.float64)
    real, imag = part_of("real", value), part_of("imag", value)
    return builder.operation(node, "atan2", np.arctan2, imag, real)


def polar(builder: Any, node: ast.Call, value: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    value = _atom(builder, value)
    return builder.operation(node, "abs", abs, value), phase(builder, node, value)


def rect(builder: Any, node: ast.Call, radius: ir.Expr, angle: ir.Expr) -> ir.Expr:
    radius, angle = _atom(builder, radius), _atom(builder, angle)
    parts = [builder.operation(node, name, getattr(np, name), angle) for name in ("cos", "sin")]
    x, y = (builder.operation(node, "mul", operator.mul, radius, part) for part in parts)
    return builder.operation(node, "complex", complex, x, y)


def quotient_and_remainder(builder: Any, node: ast.Call, x: ir.Expr, y: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    x, y = _atom(builder, x), _atom(builder, y)
    quotient = builder.operation(node, "floordiv", operator.floordiv, x, y)
    return quotient, builder.operation(node, "mod", operator.mod, x, y)


def rounded(builder: Any, node: ast.Call, x: ir.Expr, digits: ir.Expr) -> ir.Expr:
    """``round(x, digits)``, by the same steps as in Numba and NumPy."""
    return nearest(builder, node, _atom(builder, x), power_of_ten(builder, node, digits))


def power_of_ten(builder: Any, node: ast.Call, digits: ir.Expr) -> ir.Expr:
    return _atom(builder, builder.operation(node, "pow", operator.pow, ir.Const(10.0, types.float64), digits))


def nearest(builder: Any, node: ast.Call, x: ir.Expr, power: ir.Expr) -> ir.Expr:
    """The nearest multiple of ``1 / power``."""
    scaled = builder.operation(node, "mul", operator.mul, x, power)
    whole = builder.operation(node, "round", np.rint, scaled)
    near = builder.operation(node, "truediv", operator.truediv, whole, power)
    x = cast(x, near.type)
    return ir.Op("select", (builder.operation(node, "isfinite", np.isfinite, scaled), near, x), near.type)


def mantissa_and_exponent(builder: Any, node: ast.Call, x: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    x = _atom(builder, x if isinstance(x.type, types.Float) else cast(x, types.float64))
    return ir.Op("mantissa", (x,), x.type), ir.Op("exponent", (x,), types.int32)


COMPOSITIONS: dict[Any, tuple[int, Callable[..., Any]]] = {
    round: (2, rounded),
    divmod: (2, quotient_and_remainder),
    np.divmod: (2, quotient_and_remainder),
    math.frexp: (1, mantissa_and_exponent),
    np.angle: (1, phase),
    cmath.phase: (1, phase),
    cmath.polar: (1, polar),
    cmath.rect: (2, rect),
}


def is_composed(function: Any) -> bool:
    try:
        return function in COMPOSITIONS
    except TypeError:  # not hashable
        return False


def lookup(function: Any, arguments: list[Any]) -> Callable[..., Any] | None:
    """The function that composes a call from intrinsics; None if there is none, or not for these arguments."""
    if not all(isinstance(a, ir.Expr) and inference.is_scalar(a.type) for a in arguments):
        return None
    try:
        count, compose = COMPOSITIONS.get(function, (None, None))
    except TypeError:  # not hashable
        return None
    return compose if count == len(arguments) else None


def _atom(builder: Any, value: ir.Expr) -> ir.Expr:
    """A value that may be used more than once without computing it again."""
    return value if isinstance(value, (ir.Var, ir.Const)) else builder.temporary("value", value)
