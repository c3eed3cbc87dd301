"""Rules of NumPy's functions and methods that reshape or join arrays (see ``functions``)."""

from __future__ import annotations

import ast
import operator
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import METHODS, array, axis_of, binary, is_none, number, rule
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, computed, element_at, is_array, shape_of
from ampi.kernel.frontend.base.values import Group, Static
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO
from ampi.kernel.ir.intrinsics import cast


@rule(np.copy, method="copy")
def copy(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return array_values.copied(builder, array(builder, node, a), "copy")


@rule(np.ascontiguousarray)
def ascontiguousarray(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    a = array(builder, node, a)
    return a if isinstance(a, ir.Var) and a.type.layout == "C" else array_values.copied(builder, a, "copy")


@rule(np.transpose, method="transpose")
def transpose(builder: Any, node: ast.Call, a: Any, axes: Any = None) -> ir.Var:
    a = computed(builder, array(builder, node, a))
    order = tuple(reversed(range(a.type.ndim)))
    if not is_none(axes):
        items = getattr(axes, "items", ())
        if not (len(items) == a.type.ndim and all(isinstance(i, ir.Const) for i in items)):
            builder.fail(node, "the axes must be a tuple of constants, one per axis")
        order = tuple(i.value % a.type.ndim for i in items)
    sizes, variables = shape_of(builder, a), axes_for(builder, a.type.ndim)
    index = tuple(variables[order.index(k)] for k in range(a.type.ndim))
    turned = {"C": "F", "F": "C"}.get(a.type.layout, "A") if is_none(axes) else "A"
    shape = tuple(sizes[k] for k in order)
    return array_values.rearranged(builder, a, a.type.copy(layout=turned), variables, shape, index, None)


def reshaped(builder: Any, node: ast.AST, a: ir.Var, shape: tuple[ir.Expr, ...]) -> ir.Var:
    """A view of a contiguous array in another shape."""
    if a.type.layout != "C":
        builder.fail(node, "a reshape of an array that is not C-contiguous", "take a copy first: a.copy()")
    return in_shape(builder, a, shape)


def flat_view(builder: Any, a: ir.Var) -> ir.Var:
    """A view of an array as a vector, in C order."""
    return in_shape(builder, a, (index_algebra.product(shape_of(builder, a)),))


def in_shape(builder: Any, a: ir.Var, shape: tuple[ir.Expr, ...]) -> ir.Var:
    sizes, axes = shape_of(builder, a), axes_for(builder, len(shape))
    place: ir.Expr = ZERO
    for axis, size in zip(axes, shape, strict=True):
        place = index_algebra.add(index_algebra.mul(place, size), axis)
    index: list[ir.Expr] = []
    for size in reversed(sizes[1:]):
        index.append(ir.Op("mod", (place, size), INT))
        place = ir.Op("floordiv", (place, size), INT)
    if sizes:
        index.append(place)
    type_ = types.Array(a.type.dtype, len(shape), a.type.layout if a.type.layout == "C" else "A", not a.type.mutable)
    return array_values.rearranged(builder, a, type_, axes, shape, index[::-1], None)


@rule(np.reshape, method="reshape")
def reshape(builder: Any, node: ast.Call, a: Any, *shape: Any) -> ir.Var:
    a = computed(builder, array(builder, node, a))
    items = shape[0].items if len(shape) == 1 and hasattr(shape[0], "items") else shape
    if not items or not all(isinstance(n, ir.Expr) and isinstance(n.type, types.Integer) for n in items):
        builder.fail(node, "a shape must be integers")
    sizes = tuple(array_values.steady(builder, n) for n in items)
    rest = [k for k, n in enumerate(sizes) if isinstance(n, ir.Const) and n.value == -1]
    if len(rest) == 1:
        others = index_algebra.product(tuple(n for n in sizes if not isinstance(n, ir.Const) or n.value != -1))
        total = index_algebra.product(shape_of(builder, a))
        missing = total if others == ONE else ir.Op("floordiv", (total, others), INT)
        sizes = tuple(missing if k == rest[0] else n for k, n in enumerate(sizes))
    given, wanted = (index_algebra.product(s) for s in (shape_of(builder, a), sizes))
    if given != wanted:
        differ = ir.Op("ne", (given, wanted), types.boolean)
        array_values.refuse(builder, differ, "total size of new array must be unchanged")
    return reshaped(builder, node, a, sizes)


@rule(np.ravel, method="ravel")
def ravel(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    a = array(builder, node, a)
    if isinstance(a, Lazy) or a.type.layout != "C":
        a = array_values.copied(builder, a, "copy")
    return a if a.type.ndim == 1 else reshaped(builder, node, a, (index_algebra.product(shape_of(builder, a)),))


def flatten(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return ravel(builder, node, array_values.copied(builder, array(builder, node, a), "copy"))


METHODS["flatten"] = flatten


@rule(np.flip)
def flip(builder: Any, node: ast.Call, m: Any) -> ir.Var:
    a = computed(builder, array(builder, node, m))
    back = array_values.Range(None, None, ir.Const(-1, INT))
    return array_values.part(builder, node, a, [back] * a.type.ndim, None)


def diff(builder: Any, node: ast.Call, a: Any) -> Lazy:
    a = computed(builder, array(builder, node, a))
    sides = [
        array_values.part(builder, node, a, [Ellipsis, array_values.Range(bounds[0], bounds[1], None)], None)
        for bounds in ((ONE, None), (None, ir.Const(-1, INT)))
    ]
    return array_values.operation(builder, node, operator.sub, binary(builder, node, ast.Sub()), *sides)


@rule(np.roll)
def roll(builder: Any, node: ast.Call, a: Any, shift: Any) -> Lazy:
    a = computed(builder, array(builder, node, a))
    if a.type.ndim != 1 or not (isinstance(shift, ir.Expr) and isinstance(shift.type, types.Integer)):
        builder.fail(node, "np.roll takes a vector and an integer here", "loop over the rows")
    (axis,), (size,) = axes_for(builder, 1), shape_of(builder, a)
    origin = ir.Op("mod", (index_algebra.sub(axis, array_values.steady(builder, shift)), size), INT)
    return Lazy(a.type.copy(layout="C"), (axis,), (size,), element_at(a, (origin,)))


def fill(builder: Any, node: ast.Call, a: Any, value: Any) -> Any:
    array_values.assign(builder, node, array_values.whole(builder, a), value)
    return Static(None)


METHODS["fill"] = fill


def astype(builder: Any, node: ast.Call, a: Any, dtype: Any) -> Lazy:
    ty, axes = builder.dtype(node, dtype), axes_for(builder, a.type.ndim)
    value = element_at(a, axes)
    if isinstance(value.type, types.Complex) and not isinstance(ty, types.Complex):
        builder.fail(node, f"a {value.type} as {ty}", "take .real first")
    return Lazy(types.Array(ty, len(axes), "C"), axes, shape_of(builder, a), cast(value, ty))


METHODS["astype"] = astype


@rule(np.concatenate)
def concatenate(builder: Any, node: ast.Call, arrays: Any, axis: Any = ZERO) -> ir.Var:
    parts = list(getattr(arrays, "items", ()))
    if not parts or not all(map(is_array, parts)):
        builder.fail(node, "np.concatenate takes a tuple of arrays")
    along = axis_of(builder, node, parts[0], axis)
    together = ir.Var("", types.Tuple(tuple(p.type for p in parts)))  # only for Numba's type inference
    type_ = array_values.result_type(builder, node, np.concatenate, together)
    shape = list(shape_of(builder, parts[0]))
    starts: list[ir.Expr] = [ZERO]
    for p in parts:
        starts.append(index_algebra.add(starts[-1], shape_of(builder, p)[along]))
    shape[along] = starts[-1]
    target = array_values.new_array(builder, "joined", type_.dtype, tuple(shape))
    for p, start in zip(parts, starts, strict=False):
        axes, sizes = axes_for(builder, p.type.ndim), shape_of(builder, p)
        for k in range(len(sizes)):
            if k != along:
                array_values.agree(builder, node, shape[k], sizes[k])
        index = tuple(index_algebra.add(start, a) if k == along else a for k, a in enumerate(axes))
        builder.emit(ir.Elementwise(target, axes, sizes, index, cast(element_at(p, axes), type_.dtype)))
    return target


def joined(builder: Any, node: ast.Call, arrays: Any, axis: int, longer: Any = None) -> ir.Var:
    """Concatenate the arrays of a tuple, after ``longer`` has added an axis to those that need one."""
    parts = getattr(arrays, "items", ())
    if not parts or not all(map(is_array, parts)):
        builder.fail(node, f"{ast.unparse(node.func)} takes a tuple of arrays")
    if longer is not None:
        parts = tuple(longer(computed(builder, p, "part")) for p in parts)
    return concatenate(builder, node, Group(tuple(parts)), ir.Const(axis, INT))


def with_axis(builder: Any, node: ast.Call, a: ir.Var, axis: int) -> ir.Var:
    """A view with one more axis, of size one."""
    whole = array_values.Range(None, None, None)
    items: list[Any] = [whole] * a.type.ndim
    return array_values.part(builder, node, a, [*items[:axis], None, *items[axis:]], None)


def place_of_axis(builder: Any, node: ast.Call, axis: Any, ndim: int) -> int:
    """The position of a new axis in a result of ``ndim`` dimensions."""
    if not (isinstance(axis, ir.Const) and -ndim <= axis.value < ndim):
        builder.fail(node, "the axis must be a constant, and an axis of the result", "write axis=0")
    return axis.value % ndim


@rule(np.stack)
def stack(builder: Any, node: ast.Call, arrays: Any, axis: Any = ZERO) -> ir.Var:
    parts = getattr(arrays, "items", ())
    at = place_of_axis(builder, node, axis, 1 + max((p.type.ndim for p in parts if is_array(p)), default=0))
    return joined(builder, node, arrays, at, lambda p: with_axis(builder, node, p, at))


@rule(np.vstack)
def vstack(builder: Any, node: ast.Call, tup: Any) -> ir.Var:
    return joined(builder, node, tup, 0, lambda p: with_axis(builder, node, p, 0) if p.type.ndim == 1 else p)


@rule(np.hstack)
def hstack(builder: Any, node: ast.Call, tup: Any) -> ir.Var:
    vectors = all(is_array(p) and p.type.ndim == 1 for p in getattr(tup, "items", ()))
    return joined(builder, node, tup, 0 if vectors else 1)


@rule(np.column_stack)
def column_stack(builder: Any, node: ast.Call, tup: Any) -> ir.Var:
    return joined(builder, node, tup, 1, lambda p: with_axis(builder, node, p, 1) if p.type.ndim == 1 else p)


@rule(np.expand_dims)
def expand_dims(builder: Any, node: ast.Call, a: Any, axis: Any) -> ir.Var:
    a = computed(builder, array(builder, node, a))
    return with_axis(builder, node, a, place_of_axis(builder, node, axis, a.type.ndim + 1))


@rule(np.repeat, method="repeat")
def repeat(builder: Any, node: ast.Call, a: Any, repeats: Any) -> Lazy:
    if not (isinstance(repeats, ir.Expr) and isinstance(repeats.type, types.Integer)):
        builder.fail(node, "np.repeat with several numbers of repetitions", "use one integer, or loop")
    a, times = ravel(builder, node, a), array_values.steady(builder, repeats)
    if not isinstance(times, ir.Const) or times.value < 0:
        array_values.refuse(builder, ir.Op("lt", (times, ZERO), types.boolean), "negative dimensions are not allowed")
    (axis,), (size,) = axes_for(builder, 1), shape_of(builder, a)
    value = element_at(a, (ir.Op("floordiv", (axis, times), INT),))
    return Lazy(a.type, (axis,), (index_algebra.mul(size, times),), value)


def diag(builder: Any, node: ast.Call, v: Any) -> Any:
    v = computed(builder, array(builder, node, v), "diagonal")
    (axis,) = axes_for(builder, 1)
    if v.type.ndim == 2:
        size = index_algebra.minimum(*shape_of(builder, v))
        return Lazy(types.Array(v.type.dtype, 1, "C"), (axis,), (size,), element_at(v, (axis, axis)))
    (size,) = shape_of(builder, v)
    target = array_values.new_array(builder, "matrix", v.type.dtype, (size, size), number(0, v.type.dtype))
    builder.emit(ir.Elementwise(target, (axis,), (size,), (axis, axis), element_at(v, (axis,))))
    return target
