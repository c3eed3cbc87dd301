"""Attributes and indices in a kernel: Python -> values."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import list_indices, sequences, structured_arrays
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.arrays.values import Lazy, Range
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.refusals import OF_TUPLE, READ, WRITTEN
from ampi.kernel.frontend.base.values import (
    Flat,
    Group,
    Slice,
    Static,
    Value,
    constant_table,
    is_list_of_arrays,
    is_listed,
    part_of,
)
from ampi.kernel.frontend.lists.nodes import Place, Position
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.intrinsics import cast


def attribute_value(builder: Any, node: ast.Attribute) -> Value:
    owner = builder.value(node.value)
    if isinstance(owner, Lazy):
        owner = array_values.computed(builder, owner)
    if isinstance(owner, Records):
        if node.attr in ("shape", "size", "ndim") and not owner.index:
            return shape_of_records(builder, owner, node.attr)
        return structured_arrays.value_of(builder, node, owner, node.attr, None)
    if isinstance(owner, Static):
        return static_attribute(builder, node, owner.value)
    if isinstance(owner, Group):
        if owner.cls is not None and node.attr in owner.cls._fields:
            return owner.items[owner.cls._fields.index(node.attr)]
        if hasattr(list, node.attr):
            builder.fail(node, f"'.{node.attr}' of a list is not supported here", sequences.OF_LISTS)
        builder.fail(node, f"a tuple has no field '{node.attr}'")
    if inference.is_array(owner.type):
        return array_attribute(builder, node, owner)
    if node.attr in ("real", "imag"):
        return part_of(node.attr, owner)
    return builder.fail(node, f"a {owner.type} has no attribute '{node.attr}' here")


def static_attribute(builder: Any, node: ast.Attribute, owner: Any) -> Value:
    if not hasattr(owner, node.attr):
        builder.fail(node, f"{getattr(owner, '__name__', owner)!s} has no attribute '{node.attr}'")
    return outside.value_of(builder, node, node.attr, getattr(owner, node.attr))


def array_attribute(builder: Any, node: ast.Attribute, array: ir.Var) -> Value:
    sizes = tuple(ir.Size(array, axis, types.intp) for axis in range(array.type.ndim))
    match node.attr:
        case "shape":
            return Group(sizes)
        case "ndim":
            return ir.Const(array.type.ndim, types.int64)
        case "size":
            product: ir.Expr = sizes[0] if sizes else ir.Const(1, types.intp)
            for size in sizes[1:]:
                product = ir.Op("mul", (product, size), types.intp)
            return product
        case "dtype":
            return Static(numpy_support.as_dtype(array.type.dtype))
        case "flat":
            return Flat(array)
        case "itemsize":
            return ir.Const(numpy_support.as_dtype(array.type.dtype).itemsize, types.intp)
        case "strides" if array.type.layout in "CF":
            order = sizes[::-1] if array.type.layout == "C" else sizes
            steps: list[ir.Expr] = [ir.Const(numpy_support.as_dtype(array.type.dtype).itemsize, types.intp)]
            for size in order[:-1]:
                steps.append(ir.Op("mul", (steps[-1], size), types.intp))
            steps = steps[: len(sizes)]
            return Group(tuple(steps[::-1] if array.type.layout == "C" else steps))
        case "T":
            return array_shapes.transpose(builder, node, array)
        case "real" | "imag" as name:
            make = lambda x: part_of(name, x)
            return array_values.operation(builder, node, getattr(np, name), make, array)
    problem = f"'.{node.attr}' of an array is not known to the differentiator"
    return builder.fail(node, problem, "use .shape, .size, .ndim, .dtype, .T, .flat, .real and .imag")


def shape_of_records(builder: Any, owner: Records, name: str) -> Value:
    sizes = array_values.shape_of(builder, owner.first)[: owner.ndim]
    if name == "shape":
        return Group(sizes)
    return index_algebra.product(sizes) if name == "size" else ir.Const(owner.ndim, types.int64)


def subscript_value(builder: Any, node: ast.Subscript, hint: str | None = None) -> Value:
    owner = builder.any_value(node.value)
    if is_listed(owner):
        return part_of_list(builder, node, owner)
    if is_list_of_arrays(owner):
        items = index_items(builder, node)
        if len(items) != 1 or not array_values.is_simple(items):
            builder.fail(node, "the index of a list of arrays must be an integer", sequences.OF_ARRAYS)
        return sequences.array_of_list(builder, node, owner, items[0], hint)
    if isinstance(owner, Group):
        return item_of(builder, node, owner)
    if isinstance(owner, Static) and isinstance(owner.value, (list, tuple)):
        return item_of(builder, node, outside.constant(builder, tuple(owner.value), node))
    if isinstance(owner, Lazy):
        owner = array_values.computed(builder, owner)
    if isinstance(owner, Flat):
        owner = array_shapes.flat_view(builder, owner.array)
    if isinstance(owner, Records):
        return structured_arrays.part(builder, node, owner, index_items(builder, node), hint)
    if not (isinstance(owner, ir.Var) and inference.is_array(owner.type)):
        builder.fail(node, "only arrays and tuples can be indexed")
    items = array_values.without_idle_ellipsis(owner, index_items(builder, node))
    if not array_values.is_simple(items):
        part = array_values.part(builder, node, owner, items, hint)
        return sequences.copied_list(builder, node, part) if sequences.is_list(builder, owner) else part
    return builder.subscript(node, owner, index_of(builder, node, owner, items), hint)


def index_of(builder: Any, node: ast.Subscript, owner: ir.Var, items: list[Any]) -> tuple[ir.Expr, ...]:
    """The index of an element, or the leading indices of a part; the index of a list has to be in range."""
    index = builder.index(node, owner, items)
    if sequences.is_list(builder, owner) and index and not isinstance(node.slice, (Place, Position)):
        text = READ if isinstance(node.ctx, ast.Load) else WRITTEN
        size = array_values.shape_of(builder, owner)[0]
        return (list_indices.within(builder, index[0], size, text), *index[1:])
    return index


def part_of_list(builder: Any, node: ast.Subscript, owner: Group) -> Value:
    """An item or a slice of a list of tuples."""
    items = index_items(builder, node)
    if array_values.is_simple(items) and len(items) == 1:
        (index,) = builder.index(node, owner.items[0], items)
        if not isinstance(node.slice, (Place, Position)):
            size = array_values.shape_of(builder, owner.items[0])[0]
            index = list_indices.within(builder, index, size, READ)
        return sequences.tuple_at(owner, array_values.steady(builder, index))
    if len(items) != 1 or not isinstance(items[0], Range):
        builder.fail(node, "the index of a list of tuples must be an integer or a slice", "use integers and slices")
    parts = [array_values.part(builder, node, array, items, None) for array in owner.items]
    return sequences.of_columns(sequences.array_of(builder, node, part) for part in parts)


def index_items(builder: Any, node: ast.Subscript) -> list[Any]:
    """The items of an index: integers, arrays of integers, ``Range``, None, an ellipsis."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    items: list[Any] = []
    for value in builder.operands(*[lambda p=p: index_item(builder, p) for p in parts]):
        items.extend(value.items if isinstance(value, Group) else [value])
    return [v.value if v in (Static(None), Static(Ellipsis)) else v for v in items]


def index_item(builder: Any, node: ast.expr) -> Any:
    if not isinstance(node, ast.Slice):
        value = builder.value(node)
        if isinstance(value, Group) and value.cls is Slice:
            return Range(*(None if b == Static(None) else b for b in value.items))
        return value
    return Range(
        *(None if p is None else bound_of_slice(builder, node, p) for p in (node.lower, node.upper, node.step))
    )


def bound_of_slice(builder: Any, whole: ast.Slice, node: ast.expr) -> ir.Expr | None:
    """A bound or the step of a slice; numbers are truncated to integers as in Numba."""
    value = builder.value(node)
    if value == Static(None):
        return None
    if not (isinstance(value, ir.Expr) and isinstance(value.type, (types.Integer, types.Float, types.Boolean))):
        builder.fail(whole, "the bounds of a slice must be integers")
    return value if isinstance(value.type, types.Integer) else cast(value, types.intp)


def item_of(builder: Any, node: ast.Subscript, group: Group) -> Value:
    if isinstance(node.slice, ast.Slice):
        parts = [node.slice.lower, node.slice.upper, node.slice.step]
        bounds = [None if p is None else builder.value(p) for p in parts]
        if all(b is None or isinstance(b, ir.Const) for b in bounds):
            return Group(group.items[slice(*[None if b is None else b.value for b in bounds])])
        builder.fail(node, "a tuple needs constant slice bounds")
    index = builder.value(node.slice)
    if isinstance(index, Group) and index.cls is Slice:
        if not all(b == Static(None) or isinstance(b, ir.Const) for b in index.items):
            builder.fail(node, "a tuple needs constant slice bounds")
        return Group(group.items[slice(*[b.value for b in index.items])])
    if isinstance(index, ir.Const) and isinstance(index.type, types.Integer):
        if not -len(group.items) <= index.value < len(group.items):
            builder.fail(node, f"index {index.value} of a tuple of {len(group.items)}")
        return group.items[index.value]
    if isinstance(index, ir.Expr) and isinstance(index.type, types.Integer):
        array = as_array(builder, node, group)
        if isinstance(array, ir.Var):
            size = ir.Const(len(group.items), types.intp)
            index = list_indices.within(builder, index, size, OF_TUPLE)
            return builder.subscript(node, array, (index,), None)
    return builder.fail(node, "a tuple index must be an integer")


def as_array(builder: Any, node: ast.AST, group: Group) -> ir.Var:
    """A tuple that is indexed by a variable, as an array: a constant one if all items are constants."""
    table = constant_table(group)
    if table is not None:
        table = builder.tables.setdefault(repr((table.dtype, table.tolist())), table)
        return outside.constant_array(builder, "table", table)
    types_ = {v.type for v in group.items if isinstance(v, ir.Expr) and inference.is_scalar(v.type)}
    if len(types_) != 1 or not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in group.items):
        builder.fail(node, "a tuple indexed by a variable must hold numbers of one type", "index it by constants")
    places = {(k,): item for k, item in enumerate(group.items)}
    return sequences.filled_array(builder, "table", (len(places),), places, types_.pop())
