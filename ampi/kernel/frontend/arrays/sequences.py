"""Tuples and lists of numbers as arrays."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import list_indices
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.base.refusals import READ
from ampi.kernel.frontend.base.values import Group, Items, Value, is_listed, list_class
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.intrinsics import cast

Places = dict[tuple[int, ...], ir.Expr]
OF_LISTS = "change a list only in the block that creates it, under the name it has there; or use an array and a count"


def array_of(
    builder: Any, node: ast.AST, value: Value, dtype: types.Type | None = None, variable: str | None = None
) -> ir.Var:
    """A new array from a number, or from nested tuples or lists of numbers."""
    if is_listed(value):
        return matrix_of(builder, value, dtype, variable)
    if array_values.is_array(value):  # an array, or a list that is represented by one
        axes = array_values.axes_for(builder, value.type.ndim)
        element = cast(array_values.element_at(value, axes), dtype or value.type.dtype)
        type_ = value.type.copy(dtype=element.type, layout="C", readonly=False)
        shape = array_values.shape_of(builder, value)
        return array_values.computed(builder, array_values.Lazy(type_, axes, shape, element), "local", variable)
    shape, items = nested(builder, node, value)
    if dtype is None:
        dtype = functools.reduce(inference.unify, (item.type for item in items.values()))
    return filled_array(builder, "local", shape, items, dtype, variable)


def nested(builder: Any, node: ast.AST, value: Value) -> tuple[tuple[int, ...], Places]:
    """The shape and the elements of nested tuples or lists of numbers."""
    if isinstance(value, ir.Expr) and inference.is_scalar(value.type):
        return (), {(): value}
    if not isinstance(value, Group) or not value.items:
        problem = f"{called(node)} takes tuples or lists of numbers here"
        builder.fail(node, problem, "use np.empty and assign the elements")
    rows = [nested(builder, node, item) for item in value.items]
    if len({shape for shape, _ in rows}) > 1:
        builder.fail(node, f"the lists in {called(node)} differ in length")
    items = {(k, *index): item for k, (_, row) in enumerate(rows) for index, item in row.items()}
    return (len(rows), *rows[0][0]), items


def called(node: Any) -> str:
    """The name of the function that takes a sequence, for error messages."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else "a list whose elements are assigned"


def filled_array(
    builder: Any, word: str, shape: tuple[int, ...], items: Places, dtype: types.Type, variable: str | None = None
) -> ir.Var:
    sizes = tuple(ir.Const(n, types.intp) for n in shape)
    target = array_values.new_array(builder, word, dtype, sizes, variable=variable)
    for index, item in items.items():
        builder.emit(ir.Store(target, tuple(ir.Const(k, types.intp) for k in index), cast(item, dtype)))
    return target


def as_list(builder: Any, array: ir.Var) -> ir.Var:
    builder.lists.add(array.name)
    return array


def is_list(builder: Any, value: Value) -> bool:
    return isinstance(value, ir.Var) and value.name in builder.lists


def refuse_lists(builder: Any, node: ast.AST, problem: str, *values: Value) -> None:
    if any(is_list(builder, v) for v in values):
        builder.fail(node, problem, "make an array of it first: np.array(...)")


def copied_list(builder: Any, node: ast.AST, array: Value) -> ir.Var:
    """A new list of the same numbers, for instance for a slice of a list."""
    return as_list(builder, array_of(builder, node, array))


# ----------------------------------------------------------------------------------------- lists among the arguments

OF_ARRAYS = "use only loops over it, indices and len(); or pass the arrays in a tuple"


def number_of_arrays(builder: Any, value: Group) -> ir.Expr:
    (size,) = array_values.shape_of(builder, value.items[1])
    return ir.Op("sub", (size, ir.Const(1, types.intp)), types.intp)


def array_of_list(builder: Any, node: ast.AST, value: Group, index: ir.Expr, hint: str | None = None) -> ir.Var:
    """The array at an index of a list of vectors."""
    elements, starts = value.items
    if not isinstance(index.type, types.Integer):
        builder.fail(node, f"an index must be an integer, not {index.type}", "use integers; loop over masks")
    count = number_of_arrays(builder, value)
    index = list_indices.within(builder, index, count, READ)
    lowest = index_algebra.lowest(index, builder.lowest)
    if lowest is None or lowest < 0:
        index = array_values.steady(builder, cast(index, types.intp))
        below = ir.Op("lt", (index, ir.Const(0, types.intp)), types.boolean)
        index = ir.Op("select", (below, index_algebra.add(index, count), index), types.intp)
    index = array_values.steady(builder, cast(index, types.intp))
    following = ir.Op("add", (index, ir.Const(1, types.intp)), types.intp)
    begin, end = (builder.temporary("start", ir.Load(starts, (k,), types.intp)) for k in (index, following))
    for bound in (begin, end):
        builder.bounds[bound.name] = 0
    return array_values.part(builder, node, elements, [array_values.Range(begin, end, None)], hint)


def arrays_of_list(builder: Any, node: ast.AST, value: Group) -> Items:
    return Items(number_of_arrays(builder, value), lambda number: array_of_list(builder, node, value, number))


# ----------------------------------------------------------------------------------------------------- lists of tuples

OF_TUPLES = "use only loops over it, indices, slices and len(); or store the items of the tuples in arrays"


def of_columns(columns: Iterable[ir.Var]) -> Group:
    """The list of tuples whose first, second, ... items are these arrays."""
    arrays = tuple(columns)
    return Group(arrays, list_class(len(arrays)))


def tuple_at(value: Group, index: ir.Expr) -> Group:
    """An item of a list of tuples."""
    return Group(tuple(ir.Load(array, (index,), array.type.dtype) for array in value.items))


def items_of(value: Group) -> Items:
    return Items(ir.Size(value.items[0], 0, types.intp), lambda number: tuple_at(value, number))


def matrix_of(builder: Any, value: Group, dtype: types.Type | None, variable: str | None) -> ir.Var:
    """A list of tuples as an array: one row for each."""
    dtype = dtype or functools.reduce(inference.unify, (array.type.dtype for array in value.items))
    rows = array_values.shape_of(builder, value.items[0])[0]
    shape = (rows, ir.Const(len(value.items), types.intp))
    target = array_values.new_array(builder, "local", dtype, shape, variable=variable)
    for k, array in enumerate(value.items):
        (row,) = array_values.axes_for(builder, 1)
        element = cast(ir.Load(array, (row,), array.type.dtype), dtype)
        builder.emit(ir.Elementwise(target, (row,), (rows,), (row, ir.Const(k, types.intp)), element))
    return target
