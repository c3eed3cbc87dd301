"""Lists that grow, as IR: arrays with room for more items."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import list_indices, sequences
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.base.values import Group, Static, Unknown, Value, is_listed, kind_of, merge_kinds
from ampi.kernel.frontend.language import loops
from ampi.kernel.frontend.lists.nodes import Elements, Filled, Known, Length, MakeRoom, NewList, Place, Position, Put
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.index_algebra import ONE, ZERO
from ampi.kernel.ir.intrinsics import cast


def allocated(builder: Any, node: NewList) -> Value:
    kind = builder.scope.kinds.get(f"list {node.key}")
    if kind is None:
        raise Unknown
    length = array_values.steady(builder, cast(builder.scalar(node.length), types.intp))
    make = lambda dtype: array_values.new_array(builder, "list", dtype, (length,))
    if isinstance(kind, Group):
        return sequences.of_columns(map(make, kind.items))
    return sequences.as_list(builder, make(kind))


def length(builder: Any, node: Length) -> ir.Expr:
    items = loops.iterated(builder, node.iter)
    return ir.Const(len(items.items), types.intp) if isinstance(items, Group) else cast(items.length, types.intp)


def filled(builder: Any, node: Filled) -> Value:
    """The items that a list has so far: the first elements of its array, which has room for more."""
    count = array_values.steady(builder, cast(builder.scalar(node.count), types.intp))
    value = builder.any_value(node.list)

    def first(array: ir.Var) -> ir.Var:
        type_ = inference.part(array.type, (types.slice2_type,))
        axes = array_values.axes_for(builder, 1)
        place = array_values.Place(array, type_, tuple(axes), (count,), tuple(axes), False)
        return array_values.view(builder, place, None)

    if is_listed(value):
        return sequences.of_columns(map(first, value.items))
    return sequences.as_list(builder, first(value))


def elements(builder: Any, node: Elements) -> Value:
    value = builder.value(node.list)
    return (
        sequences.as_list(builder, sequences.array_of(builder, node.list, value)) if isinstance(value, Group) else value
    )


def position(builder: Any, node: Position) -> ir.Expr:
    index, count = builder.scalar(node.index), builder.scalar(node.count)
    if not isinstance(index.type, types.Integer):
        builder.fail(node, f"an index must be an integer, not {index.type}", "use integers; loop over masks")
    if node.text:
        index = list_indices.within(builder, index, cast(count, types.intp), node.text)
    lowest = index_algebra.lowest(index, builder.lowest)
    if lowest is not None and (lowest >= 0 or isinstance(index, ir.Const)):
        return index if lowest >= 0 else index_algebra.add(cast(count, types.intp), index)
    index = array_values.steady(builder, cast(index, types.intp))
    below = ir.Op("lt", (index, ZERO), types.boolean)
    return ir.Op("select", (below, index_algebra.add(index, cast(count, types.intp)), index), types.intp)


def put_item(builder: Any, node: Put) -> None:
    value = builder.value(node.value)
    items = value.items if isinstance(value, Group) and value.cls is None else (value,)
    if not items or not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in items):
        what = "an array" if any(map(array_values.is_array, items)) else "something other than a number"
        advice = "lists that grow hold numbers, or tuples of numbers: assign arrays to rows of a matrix instead"
        builder.fail(node, f"{what} in a list that grows", advice)
    key, kind = f"list {node.key}", kind_of(value)
    known = builder.scope.kinds.get(key)
    merged = kind if known is None else merge_kinds(known, kind)
    if merged is None:
        builder.fail(node, "items of different kinds in one list", "use two lists")
    builder.scope.kinds[key] = merged
    found = builder.any_value(node.list)
    place = array_values.steady(builder, builder.scalar(node.place))
    items = tuple(builder.temporary("value", v) for v in items) if len(items) > 1 else items
    for array, item in zip(found.items if is_listed(found) else (found,), items, strict=True):
        builder.emit(ir.Store(array, (place,), cast(item, array.type.dtype)))


def make_room(builder: Any, node: MakeRoom) -> None:
    count = array_values.steady(builder, cast(builder.scalar(node.count), types.intp))
    room = builder.temporary("room", ir.Op("add", (count, ONE), types.intp))
    found = builder.any_value(node.list)
    for array in found.items if is_listed(found) else (found,):
        builder.emit(ir.Grow(array, room))


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    NewList: allocated,
    Length: length,
    Filled: filled,
    Elements: elements,
    Position: position,
    Place: lambda builder, node: builder.scalar(node.index),
    Known: lambda builder, node: Static(node.function),
}
STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {Put: put_item, MakeRoom: make_room}
