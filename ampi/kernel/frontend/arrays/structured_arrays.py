"""Structured arrays inside kernels: one array per field.

An argument that is a structured array is split into its fields, as a tuple is into its items; a field is a strided view
of the same memory.  A new structured array is a new array for each field; where it is a result, the run of the kernel
itself makes the structured array.  ``atoms[i]`` is the index ``i`` into all fields, at which they are read and written.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.base.values import Group, record_class
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast


@dataclass(frozen=True)
class Records:
    """A structured array, or the record in it at ``index``: its fields' arrays by name (records again for nested ones).

    Fields that hold no numbers are left out.
    """

    type: types.Type
    ndim: int
    fields: tuple[tuple[str, Any], ...]
    index: tuple[ir.Expr, ...] = ()

    @property
    def items(self) -> tuple[Any, ...]:
        return tuple(value for _, value in self.fields)

    @property
    def first(self) -> ir.Var:
        """One of the arrays; all share the leading axes."""
        value = self.items[0]
        return value.first if isinstance(value, Records) else value


def is_structured(type_: types.Type) -> bool:
    return isinstance(type_, types.Array) and isinstance(type_.dtype, types.Record)


def field_types(type_: types.Array) -> list[tuple[str, types.Array]]:
    """The types of the fields' arrays, for fields of numbers."""
    found = []
    for name in type_.dtype.fields:
        of_field, more = type_.dtype.typeof(name), 0
        if isinstance(of_field, types.NestedArray):
            of_field, more = of_field.dtype, len(of_field.shape)
        if inference.is_scalar(of_field) or isinstance(of_field, types.Record):
            found.append((name, types.Array(of_field, type_.ndim + more, "A", readonly=not type_.mutable)))
    return found


def new(
    builder: Any, node: ast.AST, record: types.Record, shape: tuple[ir.Expr, ...], fill: ir.Expr | None, name: str
) -> Records:
    """A new structured array."""
    type_ = types.Array(record, len(shape), "A")
    fields = []
    for f, t in field_types(type_):
        of_field = record.typeof(f)
        more = of_field.shape if isinstance(of_field, types.NestedArray) else ()
        whole = (*shape, *(ir.Const(n, types.intp) for n in more))
        if isinstance(t.dtype, types.Record):
            fields.append((f, new(builder, node, t.dtype, whole, fill, f"{name}_{f}")))
        else:
            value = None if fill is None else cast(fill, t.dtype)
            fields.append((f, array_values.new_array(builder, f"{name}_{f}", t.dtype, whole, value)))
    if not fields:
        builder.fail(node, "a structured array without a field of numbers")
    return Records(type_, len(shape), tuple(fields))


def with_arrays(records: Records, function: Callable[[Any], Any]) -> Records:
    """The records with a function applied to each array."""
    made = tuple((n, with_arrays(v, function) if isinstance(v, Records) else function(v)) for n, v in records.fields)
    return replace(records, fields=made)


def arrays_of(records: Records) -> Iterator[Any]:
    """The arrays of all fields."""
    for value in records.items:
        if isinstance(value, Records):
            yield from arrays_of(value)
        else:
            yield value


def as_result(records: Records) -> Group:
    """A structured array as a result of a function: its fields."""
    items = tuple(as_result(v) if isinstance(v, Records) else v for v in records.items)
    return Group(items, record_class(records.type))


def of_result(group: Group) -> Records:
    """A structured array that a function has returned."""
    type_ = group.cls.type  # type: ignore[union-attr]
    items = (of_result(v) if isinstance(v, Group) else v for v in group.items)
    return Records(type_, type_.ndim, tuple(zip((name for name, _ in field_types(type_)), items, strict=True)))


def field(builder: Any, node: ast.AST, records: Records, name: str) -> Any:
    """The array of a field (or its records), without the index."""
    known = dict(records.fields)
    if name not in known:
        builder.fail(node, f"the records have no field '{name}' of numbers", f"they have {', '.join(known)}")
    return known[name]


def value_of(builder: Any, node: ast.AST, records: Records, name: str, hint: str | None) -> Any:
    """``records.name`` or ``records['name']``."""
    value = field(builder, node, records, name)
    if isinstance(value, Records):
        return replace(value, index=records.index)
    return builder.subscript(node, value, records.index, hint) if records.index else value


def part(builder: Any, node: ast.AST, records: Records, items: list[Any], hint: str | None = None) -> Any:
    """``records[items]``."""
    if len(items) == 1 and isinstance(getattr(items[0], "value", None), str):
        return value_of(builder, node, records, items[0].value, hint)
    if records.index:
        builder.fail(node, "the index of a record must be the name of a field")
    if len(items) < records.ndim or not array_values.is_simple(items):
        return _several(builder, node, records, items)
    index = builder.index(node, records.first, items[: records.ndim])
    return replace(records, index=tuple(array_values.steady(builder, i) for i in index))


def _several(builder: Any, node: ast.AST, records: Records, items: list[Any]) -> Records:
    """A part of the records: the same part of each field."""
    if None in items or Ellipsis in items:
        builder.fail(node, "an index of a structured array with None or an ellipsis", "index a field: a['x'][1:]")

    def part_of(array: ir.Var) -> Any:
        if array_values.is_simple(items):
            return builder.subscript(node, array, builder.index(node, array, items), None)
        return array_values.computed(builder, array_values.part(builder, node, array, items, None))

    found = with_arrays(records, part_of)
    axes = [(a.type.ndim, b.type.ndim) for a, b in zip(arrays_of(records), arrays_of(found), strict=True)]
    return _with_axes(found, records.ndim - axes[0][0] + axes[0][1])


def _with_axes(records: Records, ndim: int) -> Records:
    fewer = records.ndim - ndim
    fields = tuple((n, _with_axes(v, v.ndim - fewer) if isinstance(v, Records) else v) for n, v in records.fields)
    return replace(records, type=records.type.copy(ndim=ndim), ndim=ndim, fields=fields)


def assign(builder: Any, node: ast.AST, target: Records, value: Any) -> None:
    """``records[i] = records[j]``: field by field."""
    if not (isinstance(value, Records) and [n for n, _ in value.fields] == [n for n, _ in target.fields]):
        builder.fail(node, "only a record with the same fields can be assigned to a record", "assign field by field")
    pairs = [(replace(a, index=target.index), replace(b, index=value.index)) if isinstance(a, Records) else (a, b)
             for a, b in zip(target.items, value.items, strict=True)]  # fmt: skip
    for a, b in pairs:
        if isinstance(a, Records):
            assign(builder, node, a, b)
            continue
        builder.require_store(node, a, b.type.dtype)
        axes = array_values.axes_for(builder, a.type.ndim - len(target.index))
        shape = array_values.shape_of(builder, a)[len(target.index) :]
        load = ir.Load(b, (*value.index, *axes), b.type.dtype)
        if axes:
            builder.emit(ir.Elementwise(a, axes, shape, (*target.index, *axes), load))
        else:
            builder.emit(ir.Store(a, target.index, load))
