"""Rules of NumPy's elementwise functions that are not ufuncs (see ``functions``)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import is_none, rule
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, element_at, is_array, shape_of
from ampi.kernel.frontend.base import compositions
from ampi.kernel.frontend.base.values import part_of
from ampi.kernel.ir.intrinsics import cast

EQ = ast.Eq()


def each(builder: Any, a: Any, dtype: types.Type, make: Callable[[ir.Expr], ir.Expr]) -> Any:
    """Apply an expression to a number, or to each element of an array."""
    if not is_array(a):
        return make(array_values.settled(builder, a))
    axes = axes_for(builder, a.type.ndim)
    return Lazy(types.Array(dtype, len(axes), "C"), axes, shape_of(builder, a), make(element_at(a, axes)))


@rule(np.around, np.round, method="round", of_anything=True)
def around(builder: Any, node: ast.Call, a: Any, decimals: Any = None, out: Any = None) -> Any:
    if not is_none(out):
        builder.fail(node, f"{ast.unparse(node.func)} with an output array", "write result[:] = ...")
    dtype = a.type.dtype if is_array(a) else a.type
    power = None
    if not (is_none(decimals) or decimals == ir.Const(0, types.int64)):
        power = compositions.power_of_ten(builder, node, decimals)

    def rounded(x: ir.Expr) -> ir.Expr:
        if power is None:
            return builder.operation(node, "round", np.rint, x)
        return compositions.nearest(builder, node, x, power)

    def make(x: ir.Expr) -> ir.Expr:
        if isinstance(dtype, types.Complex):
            return builder.operation(node, "complex", complex, *(rounded(part_of(p, x)) for p in ("real", "imag")))
        return x if isinstance(dtype, types.Integer) and power is None else cast(rounded(x), dtype)

    return each(builder, a, dtype, make)


@rule(np.nan_to_num, of_anything=True)
def nan_to_num(
    builder: Any, node: ast.Call, x: Any, copy: Any = None, nan: Any = None, posinf: Any = None, neginf: Any = None
) -> Any:
    """The array with NaN and infinities replaced by other numbers."""
    if not (is_none(copy) or getattr(copy, "value", False)):
        builder.fail(node, "np.nan_to_num with copy=False", "write x[:] = np.nan_to_num(x)")
    dtype = x.type.dtype if is_array(x) else x.type
    if isinstance(dtype, types.Complex):
        builder.fail(node, "np.nan_to_num of complex numbers", "take the real and imaginary parts")
    if not isinstance(dtype, types.Float):
        return x
    largest = float(np.finfo(f"f{dtype.bitwidth // 8}").max)
    others: list[ir.Expr] = [ir.Const(0.0, dtype), ir.Const(largest, dtype), ir.Const(-largest, dtype)]
    for k, value in enumerate((nan, posinf, neginf)):
        if not is_none(value):
            others[k] = cast(array_values.settled(builder, value), dtype)
    missing, high, low = others

    def known(x: ir.Expr) -> ir.Expr:
        infinite = [builder.compare(node, op, x, ir.Const(v, dtype)) for op, v in ((EQ, np.inf), (EQ, -np.inf))]
        here = (builder.operation(node, "isnan", np.isnan, x), *infinite)
        for found, other in zip(here, (missing, high, low), strict=True):
            x = ir.Op("select", (found, other, x), dtype)
        return x

    return each(builder, x, dtype, known)


@rule(np.angle, of_anything=True)
def angle(builder: Any, node: ast.Call, z: Any, deg: Any = None) -> Any:
    """The angles of complex numbers, in degrees if ``deg`` is a true constant."""
    if not (deg is None or isinstance(deg, ir.Const)):
        builder.fail(node, "np.angle with a 'deg' that is not constant", "multiply by 180 / np.pi")
    given = z.type.dtype if is_array(z) else z.type
    dtype = getattr(given, "underlying_float", given if isinstance(given, types.Float) else types.float64)

    def make(x: ir.Expr) -> ir.Expr:
        parts = (cast(part_of(name, x), dtype) for name in ("imag", "real"))
        found = builder.operation(node, "atan2", np.arctan2, *parts)
        in_degrees = deg is not None and deg.value
        return builder.binary(node, ast.Mult(), found, ir.Const(180 / np.pi, dtype)) if in_degrees else found

    return each(builder, z, dtype, make)
