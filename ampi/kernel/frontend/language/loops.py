"""``for`` loops of a kernel: Python -> IR."""

from __future__ import annotations

import ast
import collections
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import functions as array_functions
from ampi.kernel.frontend.arrays import sequences, structured_arrays
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.arrays.values import Lazy
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.refusals import keywords_of
from ampi.kernel.frontend.base.values import (
    ZERO,
    Flat,
    Group,
    Items,
    Named,
    Static,
    Value,
    is_list_of_arrays,
    is_listed,
)
from ampi.kernel.frontend.language import assignments, subscripts
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.rewrite import substitute


def for_statement(builder: Any, node: ast.For) -> None:
    called = function_called(builder, node.iter)
    if called is range or called is numba.prange:
        range_loop(builder, node, parallel=called is numba.prange)
        return
    items = iterated(builder, node.iter)
    if isinstance(items, Group):
        unrolled_loop(builder, node, items)
    elif items.at is not None and len(items.shape) != 1 and not leaves_by_break(node.body):
        nested_loops(builder, node, items.shape, items.at)
    else:
        zero, one = ir.Const(0, types.intp), ir.Const(1, types.intp)
        counted_loop(builder, node, zero, items.length, one, types.intp, False, items.item)


def leaves_by_break(body: list[ast.stmt]) -> bool:
    """Return whether a loop with this body has a ``break``."""
    inside = [s for s in body if not isinstance(s, (ast.For, ast.While))]
    return any(
        isinstance(s, ast.Break) or (isinstance(s, ast.If) and leaves_by_break([*s.body, *s.orelse])) for s in inside
    )


def nested_loops(builder: Any, node: ast.For, shape: tuple[ir.Expr, ...], at: Callable[..., Value]) -> None:
    """A loop for each axis of a grid, the last one fastest."""
    axes = array_values.axes_for(builder, len(shape))
    for axis in axes:
        builder.bounds[axis.name] = 0
    zero = ir.Const(0, types.intp)

    def body() -> None:
        assignments.assign(builder, node.target, at(axes))
        builder.statements(node.body)

    emit_nest(builder, node, axes, [(zero, size) for size in shape], body)


def emit_nest(
    builder: Any,
    node: Any,
    axes: tuple[ir.Var, ...],
    bounds: list[tuple[ir.Expr, ir.Expr]],
    body: Callable[[], None],
) -> None:
    """Emit loops around the statements of ``body``, the last axis innermost."""
    builder.loops += ["for"] * len(axes)
    statements, _ = builder.sub_block(body)
    del builder.loops[len(builder.loops) - len(axes) :]
    one = ir.Const(1, types.intp)
    for axis, (start, stop) in reversed(list(zip(axes, bounds, strict=True))):
        statements = (ir.For(axis, start, stop, one, statements, line=node.lineno),)
    builder.block.extend(statements)


def function_called(builder: Any, node: ast.expr) -> Any:
    """The function that an expression calls, if it is known at compile time; otherwise None."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and not is_outside(builder, node.func.value):
        return None
    called = builder.value(node.func)
    return called.value if isinstance(called, Static) else None


def is_outside(builder: Any, node: ast.expr) -> bool:
    """Return whether a (dotted) name does not begin with a local variable."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id not in builder.webs.definitions


def iterated(builder: Any, node: ast.expr) -> Group | Items:
    """The items of a ``for`` loop: a tuple of values, or items by their index."""
    called = function_called(builder, node)
    if called is range:
        return range_items(builder, node)
    if called is enumerate:
        return enumerated(builder, node)
    if called is zip:
        return zipped(builder, node)
    if called is numba.literal_unroll and isinstance(node, ast.Call) and len(node.args) == 1:
        return iterated(builder, node.args[0])
    items = assignments.steady(builder, builder.any_value(node))
    if is_listed(items):
        return sequences.items_of(items)
    if is_list_of_arrays(items):
        return sequences.arrays_of_list(builder, node, items)
    if isinstance(items, Items):
        return items
    if isinstance(items, Flat):
        array = assignments.steady(builder, items.array)
        return grid(array_values.shape_of(builder, array), lambda axes: array_values.element_at(array, axes))
    if isinstance(items, Lazy):
        items = array_values.computed(builder, items)
    if isinstance(items, ir.Var) and inference.is_array(items.type):
        length = ir.Size(items, 0, types.intp)
        return Items(length, lambda number: builder.subscript(node, items, (number,), None))
    if isinstance(items, Records) and items.ndim == 1 and not items.index:
        length = array_values.shape_of(builder, items.first)[0]
        return Items(length, lambda number: structured_arrays.part(builder, node, items, [number]))
    if isinstance(items, Static) and isinstance(items.value, (tuple, list)):
        items = outside.constant(builder, tuple(items.value), node)
    if not isinstance(items, Group):
        builder.fail(node, "this cannot be looped over", "loop over range(...), prange(...), a tuple or an array")
    return items


def range_items(builder: Any, node: ast.Call) -> Items:
    """``range`` inside of ``zip`` or ``enumerate``."""
    start, stop, step, type_ = range_bounds(builder, node)
    start, stop = (assignments.steady(builder, bound) for bound in (start, stop))
    if not isinstance(step, ir.Const):
        builder.fail(node, "a range with a variable step in zip or enumerate", "loop over the range alone")
    low, high = (start, stop) if step.value > 0 else (stop, start)
    span = builder.binary(node, ast.Sub(), high, low)
    size = ir.Const(abs(step.value), types.int64)
    rounded = builder.binary(node, ast.Add(), span, ir.Const(size.value - 1, types.int64))
    trips = builder.operation(node, "max", max, builder.binary(node, ast.FloorDiv(), rounded, size), ZERO)

    def item(number: ir.Expr) -> ir.Expr:
        moved = builder.binary(node, ast.Mult(), number, step)
        return cast(builder.binary(node, ast.Add(), start, moved), type_)

    return Items(trips, item)


def enumerated(builder: Any, node: ast.Call) -> Group | Items:
    arguments = {k.arg: k.value for k in node.keywords}
    if not 1 <= len(node.args) <= 2 or set(arguments) - {"start"} or len(node.args) + len(arguments) > 2:
        builder.fail(node, "enumerate takes what to loop over, and a start", "write enumerate(x, start)")
    if arguments:
        builder.fail(node, *keywords_of("enumerate", node))
    start_node = node.args[1] if len(node.args) == 2 else None
    items = iterated(builder, node.args[0])
    start: ir.Expr = ir.Const(0, types.int64) if start_node is None else builder.scalar(start_node)
    if not isinstance(start.type, types.Integer):
        builder.fail(node, f"enumerate from a {start.type}", "use an integer")
    start = start if isinstance(start, ir.Const) else builder.temporary("start", start)
    number = lambda k: builder.binary(node, ast.Add(), start, k)
    if isinstance(items, Group):
        counted = [Group((number(ir.Const(k, types.int64)), item)) for k, item in enumerate(items.items)]
        return Group(tuple(counted))
    at = items.at and (lambda axes: Group((number(numbered_from(items.shape, axes)), items.at(axes))))
    return Items(items.length, lambda k: Group((number(k), items.item(k))), items.shape, at)


def numbered_from(shape: tuple[ir.Expr, ...], axes: tuple[ir.Expr, ...]) -> ir.Expr:
    """The index of a grid point in the order of a loop over the grid."""
    place: ir.Expr = ir.Const(0, types.intp)
    for axis, size in zip(axes, shape, strict=True):
        place = index_algebra.add(index_algebra.mul(place, size), axis)
    return place


def grid(shape: tuple[ir.Expr, ...], at: Callable[[tuple[ir.Expr, ...]], Value]) -> Items:
    """The points of a grid, the last axis fastest."""

    def item(number: ir.Expr) -> Value:
        index: list[ir.Expr] = []
        for size in reversed(shape[1:]):
            index.append(ir.Op("mod", (number, size), types.intp))
            number = ir.Op("floordiv", (number, size), types.intp)
        return at((*([number] if shape else []), *reversed(index)))

    return Items(index_algebra.product(shape), item, shape, at)


@array_functions.rule(np.ndindex, of_anything=True)
@array_functions.rule(numba.pndindex, of_anything=True)
def ndindex(builder: Any, node: ast.Call, *shape: Value) -> Items:
    items = shape[0].items if len(shape) == 1 and isinstance(shape[0], Group) else shape
    if not all(isinstance(n, ir.Expr) and isinstance(n.type, types.Integer) for n in items):
        builder.fail(node, "np.ndindex takes integers, or a tuple of them", "write np.ndindex(a.shape)")
    sizes = tuple(array_values.steady(builder, n) for n in items)
    return grid(sizes, lambda axes: Group(tuple(axes)))


@array_functions.rule(np.ndenumerate)
def ndenumerate(builder: Any, node: ast.Call, arr: Value) -> Items:
    array = assignments.steady(builder, array_values.computed(builder, array_functions.array(builder, node, arr)))
    shape = array_values.shape_of(builder, array)
    return grid(shape, lambda axes: Group((Group(tuple(axes)), array_values.element_at(array, axes))))


def zipped(builder: Any, node: ast.Call) -> Group | Items:
    if node.keywords or not node.args or any(isinstance(a, ast.Starred) for a in node.args):
        builder.fail(node, "zip takes plain arguments here", "write zip(x, y)")
    parts = [iterated(builder, a) for a in node.args]
    groups = [p for p in parts if isinstance(p, Group)]
    if len(groups) == len(parts):
        return Group(tuple(Group(together) for together in zip(*(p.items for p in parts))))
    if groups:
        parts = [numbered(builder, node, p) if isinstance(p, Group) else p for p in parts]
    length = parts[0].length
    for part in parts[1:]:
        length = builder.operation(node, "min", min, length, part.length)
    return Items(length, lambda k: Group(tuple(part.item(k) for part in parts)))


def numbered(builder: Any, node: ast.AST, group: Group) -> Items:
    array = subscripts.as_array(builder, node, group)
    length = ir.Const(len(group.items), types.intp)
    return Items(length, lambda number: builder.subscript(node, array, (number,), None))


def range_bounds(builder: Any, call: ast.Call, parallel: bool = False) -> tuple[ir.Expr, ir.Expr, ir.Expr, types.Type]:
    """Start, stop and step of a range, and the type of its items; floats are truncated as in Numba (not in prange)."""
    if call.keywords or not 1 <= len(call.args) <= 3 or any(isinstance(a, ast.Starred) for a in call.args):
        builder.fail(call, "range takes one to three plain arguments")
    bounds = builder.operands(*[lambda a=a: builder.scalar(a) for a in call.args])
    for argument, bound in zip(call.args, bounds, strict=True):
        is_truncated = isinstance(bound.type, (types.Float, types.Boolean)) and not parallel
        if not (is_truncated or isinstance(bound.type, types.Integer)):
            builder.fail(argument, f"range of a {bound.type}", "use integers")
    bounds = [as_index(bound) for bound in bounds]
    type_ = inference.result_type(range, tuple(b.type for b in bounds)).dtype
    if not type_.signed:  # in Numba, differences of unsigned and signed integers are floating-point numbers
        bounds, type_ = [cast(bound, types.int64) for bound in bounds], types.int64
    start = bounds[0] if len(bounds) > 1 else ir.Const(0, type_)
    stop = bounds[0] if len(bounds) == 1 else bounds[1]
    step = bounds[2] if len(bounds) == 3 else ir.Const(1, type_)
    if step == ir.Const(0, type_):
        builder.fail(call, "range with a step of 0")
    array_values.refuse_number(builder, "eq", step, "range() arg 3 must not be zero")
    return start, stop, step, type_


def as_index(bound: ir.Expr) -> ir.Expr:
    """A bound of a range as an integer; other numbers are truncated."""
    if isinstance(bound.type, types.Integer):
        return bound
    if isinstance(bound, ir.Const) and np.isfinite(bound.value):
        return ir.Const(int(bound.value), types.int64)
    return cast(bound, types.int64)


def range_loop(builder: Any, node: ast.For, parallel: bool) -> None:
    start, stop, step, type_ = range_bounds(builder, node.iter, parallel)
    if not isinstance(node.target, ast.Name):
        builder.fail(node.target, "the loop variable must be a name")
    counted_loop(builder, node, start, stop, step, type_, parallel, None)


def counted_loop(
    builder: Any,
    node: ast.For,
    start: ir.Expr,
    stop: ir.Expr,
    step: ir.Expr,
    type_: types.Type,
    parallel: bool,
    item: Callable[[ir.Var], Value] | None,
) -> None:
    """Emit a ``For``, whose counter is the user's variable if only the loop assigns it, and otherwise a new one."""
    name = node.target.id if isinstance(node.target, ast.Name) else "item"
    alone = item is None and name in builder.webs.loop_variables
    direct = alone and not builder.unrolling
    var = ir.Var(name if direct else builder.names.fresh(f"{name}_at"), type_)
    if isinstance(step, ir.Const):
        below = index_algebra.lowest(start if step.value > 0 else stop, builder.lowest)
        builder.bounds[var.name] = below if below is None or step.value > 0 else below + 1
        note_end(builder, var, stop if step.value > 0 else index_algebra.add(start, ir.Const(1, types.intp)))

    def body() -> None:
        if alone:
            builder.scope.kinds[name] = type_ if direct else Named(var)
        else:
            assignments.assign(builder, node.target, var if item is None else item(var))
        builder.statements(node.body)

    builder.loops.append("prange" if parallel else "for")
    statements, _ = builder.sub_block(body)
    builder.loops.pop()
    if parallel and builder.unrolling:
        statements = with_own_scalars(builder, node, statements)
    builder.emit(ir.For(var, start, stop, step, statements, parallel, line=node.lineno))


def note_end(builder: Any, var: ir.Var, end: ir.Expr) -> None:
    """Note the upper bound of a counter, if it does not change in the loop."""
    builder.ends.pop(var, None)
    names = [n.name for n in ir.walk(end) if isinstance(n, ir.Var)]
    may_change = any(name in builder.references or not builder.is_assigned_once(name) for name in names)
    if not may_change and not any(isinstance(n, ir.Load) for n in ir.walk(end)):
        builder.ends[var] = end


def with_own_scalars(builder: Any, node: ast.For, statements: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """The body of a parallel loop in an unrolled loop, with new names for variables that only it assigns."""
    assigned = [s.target for s in ir.walk(statements) if isinstance(s, ir.Assign)]
    here, everywhere = (collections.Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name))
                        for tree in (node, builder.definition))  # fmt: skip
    own = {
        v.name: replace(v, name=builder.names.fresh(v.name)) for v in assigned if here[v.name] == everywhere[v.name] > 0
    }
    return tuple(substitute(s, own) for s in statements)


def unrolled_loop(builder: Any, node: ast.For, items: Group) -> None:
    body = without_continue(node.body)
    builder.loops.append("unrolled")
    builder.unrolling += 1
    for item in items.items:
        builder.line = node.lineno
        assignments.assign(builder, node.target, item)
        builder.statements(body)
    builder.unrolling -= 1
    builder.loops.pop()


def without_continue(body: list[ast.stmt]) -> list[ast.stmt]:
    """A loop body without ``continue``: statements after ``if test: continue`` move into the other branch."""
    for number, s in enumerate(body):
        if isinstance(s, ast.Continue):
            return body[:number]
        if isinstance(s, ast.If) and any(isinstance(arm[-1], ast.Continue) for arm in (s.body, s.orelse) if arm):
            rest = body[number + 1 :]
            arms = [arm if arm and isinstance(arm[-1], ast.Continue) else [*arm, *rest] for arm in (s.body, s.orelse)]
            then, orelse = map(without_continue, arms)
            nothing = ast.copy_location(ast.Pass(), s)
            return [*body[:number], ast.copy_location(ast.If(s.test, then or [nothing], orelse), s)]
    return body
