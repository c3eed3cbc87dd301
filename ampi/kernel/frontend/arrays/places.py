"""Rules of NumPy's functions that reorder axes or elements, or compare arrays (see ``functions``)."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import all_, array, axis_of, is_none, number, rule
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, computed, element_at, is_array, shape_of
from ampi.kernel.frontend.base.values import TRUE, Group, negation
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO


def reordered(builder: Any, node: ast.Call, a: Any, order: list[int]) -> ir.Var:
    """A view with the axes in another order."""
    axes = Group(tuple(ir.Const(k, INT) for k in order))
    return array_shapes.transpose(builder, node, a, axes)


@rule(np.swapaxes)
def swapaxes(builder: Any, node: ast.Call, a: Any, axis1: Any, axis2: Any) -> ir.Var:
    order = list(range(array(builder, node, a).type.ndim))
    first, second = (axis_of(builder, node, a, k) for k in (axis1, axis2))
    order[first], order[second] = order[second], order[first]
    return reordered(builder, node, a, order)


@rule(np.moveaxis)
def moveaxis(builder: Any, node: ast.Call, a: Any, source: Any, destination: Any) -> ir.Var:
    order = list(range(array(builder, node, a).type.ndim))
    start, end = (axis_of(builder, node, a, k) for k in (source, destination))
    order.insert(end, order.pop(start))
    return reordered(builder, node, a, order)


def turned(builder: Any, node: ast.Call, a: Any, axis: int) -> ir.Var:
    items: list[Any] = [array_values.Range(None, None, None)] * a.type.ndim
    items[axis] = array_values.Range(None, None, ir.Const(-1, INT))
    return array_values.part(builder, node, computed(builder, a), items, None)


@rule(np.fliplr)
def fliplr(builder: Any, node: ast.Call, m: Any) -> ir.Var:
    return turned(builder, node, array(builder, node, m), 1)


@rule(np.flipud)
def flipud(builder: Any, node: ast.Call, m: Any) -> ir.Var:
    return turned(builder, node, array(builder, node, m), 0)


@rule(np.broadcast_to)
def broadcast_to(builder: Any, node: ast.Call, array: Any, shape: Any) -> Any:
    """A read-only view in which axes of size one are repeated."""
    if not is_array(array):
        array = sequences.array_of(builder, node, array)
    array = computed(builder, array)
    items = shape.items if isinstance(shape, Group) else (shape,)
    sizes = tuple(array_values.steady(builder, n) for n in items)
    own = shape_of(builder, array)
    if len(own) > len(sizes):
        builder.fail(node, f"an array of {len(own)} dimensions cannot be broadcast to a shape of {len(sizes)}")
    axes, index = axes_for(builder, len(sizes)), []
    for axis, size, length in zip(axes[len(axes) - len(own) :], sizes[len(sizes) - len(own) :], own):
        if length != ONE:
            array_values.agree(builder, node, length, size)
        index.append(ZERO if length == ONE else axis)
    type_ = types.Array(array.type.dtype, len(sizes), "A", readonly=True)
    return array_values.rearranged(builder, array, type_, axes, sizes, index, None)


@rule(np.take, method="take")
def take(builder: Any, node: ast.Call, a: Any, indices: Any, axis: Any = None) -> Any:
    builder.has_effects = True  # it raises an error if an index is out of range
    a = computed(builder, array(builder, node, a))
    if isinstance(indices, Group):
        indices = sequences.array_of(builder, node, indices)
    along = 0
    if is_none(axis):
        a = array_shapes.ravel(builder, node, a)
    else:
        along = axis_of(builder, node, a, axis)
    if is_array(indices) and indices.type.ndim > 1:
        builder.fail(node, "np.take with several dimensions of indices", "use .ravel(), and reshape the result")
    items: list[Any] = [array_values.Range(None, None, None)] * a.type.ndim
    items[along] = computed(builder, indices, "index")
    if not is_array(indices) and a.type.ndim == 1:
        return builder.subscript(node, a, (from_start(builder, indices, shape_of(builder, a)[0]),), None)
    found = array_values.part(builder, node, a, items, None)
    return found if isinstance(found, Lazy) else array_values.copied(builder, found, "taken")


def from_start(builder: Any, index: ir.Expr, size: ir.Expr) -> ir.Expr:
    if isinstance(index, ir.Const):
        return index if index.value >= 0 else index_algebra.add(size, index)
    return index


@rule(np.append, of_anything=True)
def append(builder: Any, node: ast.Call, arr: Any, values: Any, axis: Any = None) -> Any:
    parts = tuple(v if is_array(v) else sequences.array_of(builder, node, v) for v in (arr, values))
    if not is_none(axis):
        return array_shapes.concatenate(builder, node, Group(parts), axis)
    flat = tuple(array_shapes.ravel(builder, node, computed(builder, p)) for p in parts)
    return array_shapes.concatenate(builder, node, Group(flat))


@rule(np.diagflat, lists="v")
def diagflat(builder: Any, node: ast.Call, v: Any, k: Any = ZERO) -> Lazy:
    v = array_shapes.ravel(builder, node, computed(builder, v))
    if not isinstance(k, ir.Const):
        builder.fail(node, "np.diagflat with a k that is not constant", "write k=1, or loop")
    (length,), (i, j) = shape_of(builder, v), axes_for(builder, 2)
    size = index_algebra.add(length, ir.Const(abs(k.value), INT))
    here = ir.Op("eq", (j, index_algebra.add(i, k)), types.boolean)
    value = element_at(v, (i if k.value >= 0 else j,))
    dtype = v.type.dtype
    return Lazy(
        types.Array(dtype, 2, "C"), (i, j), (size, size), ir.Op("select", (here, value, number(0, dtype)), dtype)
    )


# --------------------------------------------------------------------------------------------------- comparison


@rule(np.isclose, of_anything=True)
def isclose(
    builder: Any, node: ast.Call, a: Any, b: Any, rtol: Any = None, atol: Any = None, equal_nan: Any = None
) -> Any:
    wanted = (rtol, ir.Const(1e-05, types.float64)), (atol, ir.Const(1e-08, types.float64)), (equal_nan, negation(TRUE))
    relative, absolute, nothing = (array_values.settled(builder, d if g is None else g) for g, d in wanted)
    op = lambda name, function, *values: builder.operation(node, name, function, *values)

    def close(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        missing = [op("isnan", np.isnan, v) for v in (x, y)]
        infinite = [op("isinf", np.isinf, v) for v in (x, y)]
        far = op("abs", abs, builder.binary(node, ast.Sub(), x, y))
        most = builder.binary(node, ast.Mult(), relative, op("abs", abs, y))
        near = builder.compare(node, ast.LtE(), far, builder.binary(node, ast.Add(), absolute, most))
        same = builder.compare(node, ast.Eq(), x, y)
        either, both = (ir.Op(word, tuple(infinite), types.boolean) for word in ("or", "and"))
        finite = ir.Op("select", (either, ir.Op("and", (both, same), types.boolean), near), types.boolean)
        return ir.Op("select", (ir.Op("and", tuple(missing), types.boolean), nothing, finite), types.boolean)

    if not (is_array(a) or is_array(b)):
        return close(*(array_values.settled(builder, v) for v in (a, b)))
    a, b = (array_values.settled(builder, v) for v in (a, b))
    shape = array_values.broadcast(builder, node, a, b)
    axes = axes_for(builder, len(shape))
    value = close(*(array_values.element_of(builder, v, axes) for v in (a, b)))
    return Lazy(types.Array(types.boolean, len(shape), "C"), axes, shape, value)


@rule(np.allclose, method="allclose", lists="a b")
def allclose(
    builder: Any, node: ast.Call, a: Any, b: Any, rtol: Any = None, atol: Any = None, equal_nan: Any = None
) -> Any:
    found = isclose(builder, node, a, b, rtol, atol, equal_nan)
    return all_(builder, node, found) if is_array(found) else found


@rule(np.array_equal, lists="a1 a2")
def array_equal(builder: Any, node: ast.Call, a1: Any, a2: Any) -> Any:
    a1, a2 = (computed(builder, array(builder, node, a)) for a in (a1, a2))
    if a1.type.ndim != a2.type.ndim:
        return negation(TRUE)
    same: ir.Expr = TRUE
    for x, y in zip(shape_of(builder, a1), shape_of(builder, a2)):
        same = ir.Op("and", (same, ir.Op("eq", (x, y), types.boolean)), types.boolean)
    result = ir.Var(builder.names.fresh("equal"), types.boolean)

    def compare() -> None:
        axes = axes_for(builder, a1.type.ndim)
        equal = builder.compare(node, ast.Eq(), element_at(a1, axes), element_at(a2, axes))
        found = all_(
            builder, node, Lazy(types.Array(types.boolean, len(axes), "C"), axes, shape_of(builder, a1), equal)
        )
        builder.emit(ir.Assign(result, found))

    builder.emit(ir.Assign(result, negation(TRUE)))
    inside, _ = builder.sub_block(compare)
    builder.emit(ir.If(same, inside))
    return result


@rule(np.shape)
def shape(builder: Any, node: ast.Call, a: Any) -> Any:
    return Group(shape_of(builder, array(builder, node, a)))


@rule(np.size)
def size(builder: Any, node: ast.Call, a: Any) -> Any:
    return index_algebra.product(shape_of(builder, array(builder, node, a)))
