"""Rules of NumPy's functions that create arrays, and methods of conversion (see ``functions``)."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import METHODS, array, is_none, number, rule
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, computed, element_at, is_array, only_element, shape_of
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.values import Group
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import ZERO


@rule(np.asarray, of_anything=True)
def asarray(builder: Any, node: ast.Call, a: Any, dtype: Any = None) -> Any:
    """An array itself, or a new one of a number, tuple or list."""
    type_ = None if is_none(dtype) else builder.dtype(node, dtype)
    if not is_array(a) or sequences.is_list(builder, a):
        return sequences.array_of(builder, node, a, type_)
    return a if type_ in (None, a.type.dtype) else array_shapes.astype(builder, node, a, dtype)


def at_least(builder: Any, node: ast.Call, arrays: tuple[Any, ...], ndim: int) -> Any:
    """Arrays with at least ``ndim`` axes; new axes come before the others (for matrices, also after them)."""
    results = []
    for a in arrays:
        a = computed(builder, asarray(builder, node, a))
        before = {3: (0, 1, 1, 0)}.get(ndim, (ndim - a.type.ndim,) * 4)[min(a.type.ndim, 3)]
        for _ in range(max(ndim - a.type.ndim, 0)):
            at = 0 if before > 0 else a.type.ndim
            a, before = array_shapes.with_axis(builder, node, a, at), before - 1
        results.append(a)
    return results[0] if len(results) == 1 else Group(tuple(results))


@rule(np.atleast_1d, of_anything=True)
def atleast_1d(builder: Any, node: ast.Call, *arys: Any) -> Any:
    return at_least(builder, node, arys, 1)


@rule(np.atleast_2d, of_anything=True)
def atleast_2d(builder: Any, node: ast.Call, *arys: Any) -> Any:
    return at_least(builder, node, arys, 2)


@rule(np.atleast_3d, of_anything=True)
def atleast_3d(builder: Any, node: ast.Call, *arys: Any) -> Any:
    return at_least(builder, node, arys, 3)


def item(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    """The single element of an array."""
    return only_element(builder, a, "item(): can only convert an array of size 1 to a Python scalar")


METHODS["item"] = item


def view(builder: Any, node: ast.Call, a: Any, dtype: Any) -> Any:
    """The bits of a constant array as numbers of another type; any array viewed as its own type is unchanged."""
    type_ = builder.dtype(node, dtype)
    if type_ == a.type.dtype:
        return computed(builder, a)
    constant = builder.constants.get(a.name) if isinstance(a, ir.Var) else None
    if constant is None:
        problem = f"a view of an array of {a.type.dtype} as {type_}"
        builder.fail(node, problem, "convert the values with a.astype(...); or pass the view as an argument")
    try:
        found = constant.view(numpy_support.as_dtype(type_))
    except ValueError as problem:
        builder.fail(node, str(problem))
    return outside.constant_array(builder, "view", found)


METHODS["view"] = view


# --------------------------------------------------------------------------------------------------- triangles


def integer(builder: Any, node: ast.Call, value: Any) -> ir.Expr:
    if not (isinstance(value, ir.Expr) and isinstance(value.type, types.Integer)):
        builder.fail(node, f"{ast.unparse(node.func)} takes integers here")
    return array_values.steady(builder, value)


def diagonal_of_ones(
    builder: Any, node: ast.Call, shape: tuple[ir.Expr, ir.Expr], k: ir.Expr, type_: types.Type
) -> Lazy:
    i, j = axes_for(builder, 2)
    here = ir.Op("eq", (j, index_algebra.add(i, k)), types.boolean)
    value = ir.Op("select", (here, number(1, type_), number(0, type_)), type_)
    return Lazy(types.Array(type_, 2, "C"), (i, j), shape, value)


@rule(np.eye, of_anything=True)
def eye(builder: Any, node: ast.Call, N: Any, M: Any = None, k: Any = ZERO, dtype: Any = None) -> Any:
    type_ = types.float64 if is_none(dtype) else builder.dtype(node, dtype)
    rows, k = integer(builder, node, N), integer(builder, node, k)
    columns = rows if is_none(M) else integer(builder, node, M)
    if not (k == ZERO and rows == columns):
        return diagonal_of_ones(builder, node, (rows, columns), k, type_)
    target, (axis,) = (
        array_values.new_array(builder, "unit", type_, (rows, columns), number(0, type_)),
        axes_for(builder, 1),
    )
    builder.emit(ir.Elementwise(target, (axis,), (rows,), (axis, axis), number(1, type_)))
    return target


@rule(np.identity, of_anything=True)
def identity(builder: Any, node: ast.Call, n: Any, dtype: Any = None) -> Any:
    return eye(builder, node, n, dtype=dtype)


@rule(np.tri, of_anything=True)
def tri(builder: Any, node: ast.Call, N: Any, M: Any = None, k: Any = ZERO) -> Lazy:
    rows, k = integer(builder, node, N), integer(builder, node, k)
    shape = (rows, rows if is_none(M) else integer(builder, node, M))
    i, j = axes_for(builder, 2)
    below = ir.Op("le", (j, index_algebra.add(i, k)), types.boolean)
    value = ir.Op("select", (below, number(1, types.float64), number(0, types.float64)), types.float64)
    return Lazy(types.Array(types.float64, 2, "C"), (i, j), shape, value)


def triangle(builder: Any, node: ast.Call, function: Any, m: Any, k: Any, lower: bool) -> Lazy:
    """A triangle of a matrix, of each matrix in a stack, or of the matrix whose rows are all a vector."""
    type_ = array_values.result_type(builder, node, function, array(builder, node, m))
    k, sizes = integer(builder, node, k), shape_of(builder, m)
    shape = (*sizes, *sizes) if len(sizes) == 1 else sizes
    axes = axes_for(builder, len(shape))
    i, j = axes[-2:]
    inside = ir.Op("le" if lower else "ge", (j, index_algebra.add(i, k)), types.boolean)
    value = ir.Op("select", (inside, element_at(m, axes[-len(sizes) :]), number(0, type_.dtype)), type_.dtype)
    return Lazy(type_, axes, shape, value)


@rule(np.tril)
def tril(builder: Any, node: ast.Call, m: Any, k: Any = ZERO) -> Lazy:
    return triangle(builder, node, np.tril, m, k, True)


@rule(np.triu)
def triu(builder: Any, node: ast.Call, m: Any, k: Any = ZERO) -> Lazy:
    return triangle(builder, node, np.triu, m, k, False)
