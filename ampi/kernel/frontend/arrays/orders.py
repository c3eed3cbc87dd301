"""Rules of NumPy's functions that sort, or search in sorted arrays (see ``functions``).

Numba's own sort determines the order of the elements (``ir.Fill``), so that a derivative program finds the same order,
also of equal elements; derivatives follow the elements.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import functions as array_functions
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import array, filled, rule
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, computed, element_at, is_array, shape_of
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO
from ampi.kernel.ir.intrinsics import cast


def vector(builder: Any, node: ast.Call, a: Any) -> Any:
    """The argument of a function that takes a vector of real numbers."""
    if array(builder, node, a).type.ndim != 1:
        builder.fail(node, f"{ast.unparse(node.func)} of an array of several dimensions", "use .ravel(), or loop")
    if isinstance(a.type.dtype, types.Complex):
        builder.fail(node, f"{ast.unparse(node.func)} of complex numbers", "use the real parts or magnitudes")
    return a


@rule(np.argsort, method="argsort")
def argsort(builder: Any, node: ast.Call, a: Any, kind: Any = None) -> ir.Var:
    kind = getattr(kind, "value", kind) or "quicksort"
    if kind not in ("quicksort", "mergesort"):
        builder.fail(node, f"{ast.unparse(node.func)} with the kind {kind!r}", "use quicksort or mergesort")
    a = vector(builder, node, a)
    return filled(builder, "argsort" if kind == "quicksort" else "stable_argsort", INT, shape_of(builder, a), a)


def sorted_vector(builder: Any, node: ast.Call, a: Any) -> Lazy:
    a = array_values.copied(builder, vector(builder, node, a), "values")
    order, axes = argsort(builder, node, a), axes_for(builder, 1)
    return Lazy(a.type, axes, shape_of(builder, a), element_at(a, (element_at(order, axes),)))


def place_of(builder: Any, node: ast.Call, a: Any, op: ast.cmpop) -> ir.Var:
    """The index of the first element that is the smallest (``op`` is ``<``) or largest; of the first NaN, if any."""
    a = computed(builder, array(builder, node, a), "values")
    name = "max" if isinstance(op, ast.Gt) else "min"
    array_values.require_elements(builder, a, f"attempt to get arg{name} of an empty sequence")
    if a.type.ndim > 1:
        a = array_shapes.flat_view(builder, a)
    best = ir.Var(builder.names.fresh("best"), INT)
    builder.emit(ir.Assign(best, ZERO))
    (axis,) = axes_for(builder, 1)
    better = builder.compare(node, op, element_at(a, (axis,)), element_at(a, (best,)))
    choose: tuple[ir.Stmt, ...] = (ir.If(better, (ir.Assign(best, axis, line=builder.line),), line=builder.line),)
    if not isinstance(a.type.dtype, types.Float):
        array_functions.emit_loops(builder, (axis,), shape_of(builder, a), *choose)
        return best
    missing = ir.Var(builder.names.fresh("missing"), INT)
    builder.emit(ir.Assign(missing, ZERO))
    count = array_functions.count_nan(builder, missing, element_at(a, (axis,)))
    array_functions.emit_loops(builder, (axis,), shape_of(builder, a), *choose, count)
    array_functions.emit_if_missing(builder, missing, a, lambda place: ir.Assign(best, place, line=builder.line))
    return best


@rule(np.searchsorted)
def searchsorted(builder: Any, node: ast.Call, a: Any, v: Any, side: Any = None) -> Any:
    side = getattr(side, "value", side) or "left"
    if side not in ("left", "right"):
        builder.fail(node, f"np.searchsorted with side={side!r}", "use 'left' or 'right'")
    return places(builder, node, vector(builder, node, a), v, side)


def places(builder: Any, node: ast.Call, a: Any, v: Any, side: str) -> Any:
    """The indices at which the numbers ``v`` would be inserted into the sorted vector ``a``."""
    function = "searchsorted" if side == "left" else "searchsorted_right"
    if is_array(v):
        return filled(builder, function, INT, shape_of(builder, v), a, vector(builder, node, v))
    one = array_values.new_array(builder, "searched", v.type, (ONE,), v)
    return builder.temporary("place", element_at(filled(builder, function, INT, (ONE,), a, one), (ZERO,)))


@rule(np.interp, lists="x xp fp")
def interp(builder: Any, node: ast.Call, x: Any, xp: Any, fp: Any) -> Any:
    """Piecewise linear interpolation; at a point of ``xp``, the derivative is that of the piece to its right."""
    type_ = array_values.result_type(builder, node, np.interp, x, xp, fp)
    xp, fp = (computed(builder, vector(builder, node, v), "points") for v in (xp, fp))
    array_values.require_elements(builder, xp, "array of sample points is empty")
    array_values.agree(builder, node, shape_of(builder, xp)[0], shape_of(builder, fp)[0])
    last = index_algebra.sub(shape_of(builder, xp)[0], ONE)
    found = places(builder, node, xp, x, "right")

    def value(x: ir.Expr, place: ir.Expr) -> ir.Expr:
        def at(v: ir.Var, k: ir.Expr) -> ir.Expr:
            return cast(element_at(v, (k,)), dtype)

        def op(kind: ast.operator, a: ir.Expr, b: ir.Expr) -> ir.Expr:
            return builder.binary(node, kind, a, b)

        x = cast(x, dtype)
        low = index_algebra.maximum(
            index_algebra.minimum(index_algebra.sub(place, ONE), index_algebra.sub(last, ONE)), ZERO
        )
        high = index_algebra.minimum(index_algebra.add(low, ONE), last)
        rise, run = op(ast.Sub(), at(fp, high), at(fp, low)), op(ast.Sub(), at(xp, high), at(xp, low))
        inside = op(ast.Add(), op(ast.Mult(), op(ast.Div(), rise, run), op(ast.Sub(), x, at(xp, low))), at(fp, low))
        before = ir.Op("lt", (x, at(xp, ZERO)), types.boolean)
        beyond = ir.Op("ge", (x, at(xp, last)), types.boolean)
        outside = ir.Op("select", (before, at(fp, ZERO), at(fp, last)), dtype)
        return ir.Op("select", (ir.Op("or", (before, beyond), types.boolean), outside, inside), dtype)

    if not is_array(x):
        dtype = type_
        return value(x, found)
    dtype = type_.dtype
    x, axes = computed(builder, x, "searched"), axes_for(builder, 1)
    return Lazy(type_, axes, shape_of(builder, x), value(element_at(x, axes), element_at(found, axes)))
