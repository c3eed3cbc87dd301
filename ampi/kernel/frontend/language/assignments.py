"""Assignments to names, tuples of names, and elements and parts of arrays."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences, structured_arrays
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.arrays.values import Lazy, is_array
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.refusals import describe
from ampi.kernel.frontend.base.values import (
    Flat,
    Group,
    Leaf,
    Named,
    Static,
    Value,
    describe_kind,
    leaves_of,
    map_leaves,
)
from ampi.kernel.frontend.language import subscripts
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.names import stem


def _root_names(target: ast.expr) -> Iterator[str]:
    """The names at the start of an assignment's targets, also in tuples."""
    if isinstance(target, (ast.Tuple, ast.List)):
        yield from itertools.chain(*map(_root_names, target.elts))
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
    if isinstance(target, ast.Name):
        yield target.id


def assign(builder: Any, target: ast.expr, value: Value) -> None:
    match target:
        case ast.Name():
            bind(builder, target, target.id, value)
        case ast.Tuple() | ast.List():
            assign_tuple(builder, target, value)
        case ast.Subscript() | ast.Attribute():
            store(builder, target, value)
        case _:
            builder.fail(target, f"cannot assign to {describe(target)}", "assign to a name or to an element")


def assign_tuple(builder: Any, target: ast.Tuple | ast.List, value: Value) -> None:
    if isinstance(value, Static) and isinstance(value.value, (tuple, list)):
        value = outside.constant(builder, tuple(value.value), target)
    if is_array(value):
        value = unpacked(builder, target, value)
    if not isinstance(value, Group):
        builder.fail(target, "only tuples and arrays can be unpacked", "index the elements")
    if len(target.elts) != len(value.items):
        builder.fail(target, f"{len(value.items)} values for {len(target.elts)} names")
    changed = [set().union(*(variables(builder, name) for name in _root_names(t))) for t in target.elts]
    earlier = [set().union(*changed[:k]) for k in range(len(changed))]
    for element, item in zip(target.elts, at_once(builder, value.items, earlier), strict=True):
        assign(builder, element, item)


def variables(builder: Any, name: str) -> set[str]:
    """The variables that an assignment to a name changes: also those of the items of a tuple."""
    leaves = [k.name for k in leaves_of(builder.scope.kinds.get(name)) if isinstance(k, Leaf)]
    return {name}.union(*(variables(builder, leaf) for leaf in leaves))


def at_once(builder: Any, items: Iterable[Value], earlier: Iterable[set[str]]) -> list[Value]:
    """The items of a simultaneous assignment, saved where an earlier assignment in it could change them.

    ``earlier`` has for each item the variables that are assigned before it.
    """

    def saved(value: Value, names: set[str]) -> Value:
        if isinstance(value, Records) and not value.index:
            return structured_arrays.with_arrays(value, lambda array: pinned(builder, array))
        if isinstance(value, ir.Expr) and inference.is_scalar(value.type):
            return builder.temporary("value", value) if names and depends(builder, value, names) else value
        return pinned(builder, value) if isinstance(value, ir.Var) else value

    return [
        map_leaves(item, lambda v, names=names: saved(v, names)) for item, names in zip(items, earlier, strict=True)
    ]


def unpacked(builder: Any, target: ast.Tuple | ast.List, array: Any) -> Group:
    """The elements or rows of an array, unpacked into names."""
    if array.type.ndim == 0:
        builder.fail(target, "a 0-dimensional array cannot be unpacked", "take its number: a[()]")
    count = ir.Const(len(target.elts), types.intp)
    size = array_values.shape_of(builder, array)[0]
    if isinstance(size, ir.Const) and size.value != count.value:
        builder.fail(target, f"{size.value} elements for {count.value} names")
    if isinstance(array, Lazy) and array.type.ndim > 1:
        array = array_values.computed(builder, array)
    if not isinstance(size, ir.Const):
        refuse = ir.Raise('raise ValueError("unpack count mismatch")', exact=False, line=builder.line)
        builder.emit(ir.If(ir.Op("ne", (size, count), types.boolean), (refuse,)))
    places = [ir.Const(k, types.intp) for k in range(count.value)]
    if isinstance(array, Lazy):
        return Group(tuple(array_values.element_at(array, (k,)) for k in places))
    return Group(tuple(builder.subscript(target, array, (k,), None) for k in places))


def pinned(builder: Any, value: ir.Expr) -> ir.Expr:
    """An array under a new name, which no assignment rebinds."""
    if not (isinstance(value, ir.Var) and value.name in builder.references):
        return value
    target = ir.Var(builder.names.fresh("array"), value.type)
    builder.references.add(target.name)
    builder.single |= {(target.name, axis) for axis in array_values.single_axes(builder, value)}
    builder.emit(ir.Alias(target, value, ()))
    return target


def steady(builder: Any, value: Value) -> Value:
    """The items of a loop, saved when it begins, so that assignments in its body do not change them."""

    def saved(leaf: Value) -> Value:
        if isinstance(leaf, Records):
            return structured_arrays.with_arrays(leaf, lambda array: pinned(builder, array))
        if isinstance(leaf, ir.Var) and is_array(leaf):
            return pinned(builder, leaf)
        if not isinstance(leaf, ir.Expr):
            return leaf
        of_reference = any(isinstance(n, ir.Var) and n.name in builder.references for n in ir.walk(leaf))
        return builder.temporary("value", leaf) if of_reference else array_values.steady(builder, leaf)

    return map_leaves(value, saved)


def depends(builder: Any, value: ir.Expr, names: set[str]) -> bool:
    """Return whether assignments to these variables or elements of these arrays could change ``value``."""
    return any(isinstance(n, ir.Load) or (isinstance(n, ir.Var) and n.name in names) for n in ir.walk(value))


def bind(builder: Any, node: ast.AST, name: str, value: Value) -> None:
    """``name = value`` for a local name."""
    if isinstance(value, Lazy):
        value = array_values.computed(builder, value, variable=name)
    if isinstance(value, Group):
        bind_group(builder, node, name, value)
    elif isinstance(value, Records) and not value.index:
        bind_records(builder, node, name, value)
    elif isinstance(value, (Static, Records)):
        if builder.scope.kinds.setdefault(name, value) != value and not builder.unrolling:
            builder.fail(node, f"'{name}' stands for different things", "use two names")
        builder.scope.kinds[name] = value
    elif inference.is_array(value.type):
        bind_array(builder, node, name, value)
    elif builder.webs.definitions[name] == 1 and isinstance(value, ir.Var) and value.name in builder.immutable:
        builder.scope.kinds[name] = Named(value)
    else:
        bind_scalar(builder, node, name, value)


def bind_scalar(builder: Any, node: ast.AST, name: str, value: ir.Expr) -> None:
    old = builder.scope.kinds.get(name)
    if old is None or isinstance(old, Named):
        type_ = inference.plain(value.type)
    elif isinstance(old, types.Type) and inference.is_scalar(old):
        type_ = inference.unify(old, value.type)
    else:
        type_ = None
    declared = builder.declared.get(stem(name))
    if declared is not None and type_ is not None and inference.is_scalar(declared):
        value, type_ = cast(value, declared), declared
    if type_ is None or not inference.is_scalar(type_):
        builder.fail(node, f"'{name}' is {describe_kind(old)} elsewhere and {value.type} here", "use two names")
    builder.scope.kinds[name] = type_
    if builder.webs.definitions.get(name, 1) == 1 and isinstance(type_, types.Integer):
        builder.bounds[name] = index_algebra.lowest(value, builder.lowest)
    builder.emit(ir.Assign(ir.Var(name, type_), cast(value, type_)))


def bind_array(builder: Any, node: ast.AST, name: str, value: ir.Var) -> None:
    if builder.webs.definitions.get(name, 1) > 1 or value.name in builder.references:
        bind_reference(builder, node, name, value)
        return
    immutable = value.name in builder.immutable or value.name in builder.constants or value.name == name
    if builder.loops and not immutable:
        target = ir.Var(builder.names.fresh(name) if builder.unrolling else name, value.type)
        builder.emit(ir.Alias(target, value, ()))
        builder.describe_part(target, value, 0)
        if value.name in builder.lists:
            builder.lists.add(target.name)
        value = target
    builder.scope.kinds[name] = Named(value)


def bind_reference(builder: Any, node: ast.AST, name: str, value: ir.Var) -> None:
    """Bind a name that stands for one of several arrays; ``array_phi`` resolves it."""
    old = builder.scope.kinds.get(name)
    single = builder.webs.definitions.get(name, 1) == 1
    known = old.var.type if isinstance(old, Named) and not single else value.type
    type_ = inference.unify(known, value.type) if inference.is_array(known) else None
    if type_ is None or not (old is None or isinstance(old, Named)):
        builder.fail(node, f"'{name}' is {describe_kind(old)} elsewhere and {value.type} here", "use two names")
    target = ir.Var(builder.names.fresh(name) if single and builder.unrolling else name, type_)
    builder.references.add(target.name)
    axes = array_values.single_axes(builder, value)
    axes &= builder.scope.kinds.get(f"single axes of {name}", axes)  # of all arrays that it stands for
    builder.scope.kinds[f"single axes of {name}"] = axes
    builder.single |= {(target.name, axis) for axis in axes}
    builder.emit(ir.Alias(target, value, ()))
    builder.scope.kinds[name] = Named(target)


def bind_group(builder: Any, node: ast.AST, name: str, value: Group) -> None:
    old = builder.scope.kinds.get(name)
    if isinstance(old, Group) and len(old.items) != len(value.items):
        problem = f"'{name}' has {len(old.items)} items elsewhere and {len(value.items)} here"
        builder.fail(node, problem, "use two names, or an array of the longer size and the number of items in use")
    fields_ = value.cls._fields if value.cls else range(len(value.items))
    new = value.items
    if isinstance(old, Group):
        new = at_once(builder, new, [variables(builder, name)] * len(new))
    items = tuple(bind_leaf(builder, node, name, f, item) for f, item in zip(fields_, new, strict=True))
    builder.scope.kinds[name] = Group(items, value.cls)


def bind_records(builder: Any, node: ast.AST, name: str, value: Records) -> None:
    """Bind a structured array: each field to a new variable, unless it can never change."""
    old = builder.scope.kinds.get(name)
    if old is not None and not (isinstance(old, Records) and old.type == value.type):
        builder.fail(node, f"'{name}' is {describe_kind(old)} elsewhere and a structured array here", "use two names")
    if old is not None:
        (value,) = at_once(builder, [value], [set()])
    numbers = itertools.count()
    bound = lambda array: bind_leaf(builder, node, name, next(numbers), array)
    builder.scope.kinds[name] = structured_arrays.with_arrays(value, bound)


def bind_leaf(builder: Any, node: ast.AST, name: str, part: Any, item: Value) -> Value:
    """Bind one item of a tuple: to itself if it can never change, otherwise to a new variable."""
    immutable = isinstance(item, (ir.Const, Static)) or (isinstance(item, ir.Var) and item.name in builder.immutable)
    if immutable and builder.webs.definitions[name] == 1 and not builder.unrolling:
        return item
    leaf = builder.leaf_names.get((name, part))
    if leaf is None:
        leaf = builder.leaf_names[name, part] = builder.names.fresh(f"{name}_{part}")
        builder.webs.definitions[leaf] = builder.webs.definitions[name]
    bind(builder, node, leaf, item)
    return Leaf(leaf)


def store(builder: Any, target: ast.Subscript | ast.Attribute, value: Value) -> None:
    position = len(builder.block)
    if isinstance(value, Records):
        structured_arrays.assign(builder, target, builder.value(target), value)
        return
    array, items = indexed(builder, target)
    if not is_element(array, items):
        if isinstance(value, Group) and value.items:
            value = sequences.array_of(builder, target, value)
        if not (is_array(value) or isinstance(value, ir.Expr)):
            builder.fail(target, "only numbers and arrays can be stored into an array")
        if array_values.is_mask(array, items) and not is_array(value):
            array_values.assign_masked(builder, target, array, items[0], value)
            return
        array_values.assign(builder, target, array_values.place(builder, target, array, items), value)
        return
    if not isinstance(value, ir.Expr) or not inference.is_scalar(value.type):
        builder.fail(target, "only a scalar can be stored into an element", "index a part of the array: a[i:j]")
    index = subscripts.index_of(builder, target, array, items)
    if len(builder.block) > position and any(isinstance(n, ir.Load) for n in ir.walk(value)):
        saved = ir.Var(builder.names.fresh("value"), value.type)
        builder.block.insert(position, ir.Assign(saved, value, line=builder.line))
        value = saved
    builder.require_store(target, array, value.type)
    if isinstance(value, ir.Const):
        value = cast(value, array.type.dtype) if inference.default_constant(array.type.dtype) else value
    builder.emit(ir.Store(array, index, value))


def indexed(builder: Any, node: ast.Subscript | ast.Attribute) -> tuple[ir.Var, list[Any]]:
    """The array and the index of an assignment to elements."""
    array = builder.value(node.value)
    if isinstance(array, Flat):
        array = array_shapes.flat_view(builder, array.array)
    if isinstance(array, Records):
        by_attribute = isinstance(node, ast.Attribute)
        name = node.attr if by_attribute else getattr(subscripts.index_items(builder, node)[0], "value", None)
        if not isinstance(name, str):
            builder.fail(node, "a number for a whole record", "assign to its fields")
        return structured_arrays.field(builder, node, array, name), list(array.index)
    if isinstance(node, ast.Attribute):
        builder.fail(node, "cannot assign to an attribute", "assign to a name or to an element")
    if not (isinstance(array, ir.Var) and inference.is_array(array.type)):
        builder.fail(node, "only elements of arrays can be assigned", "tuples cannot change; use a local array")
    return array, array_values.without_idle_ellipsis(array, subscripts.index_items(builder, node))


def is_element(array: ir.Var, items: list[Any]) -> bool:
    return array_values.is_simple(items) and len(items) >= array.type.ndim
