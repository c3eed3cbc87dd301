"""Calls of ``@numba.stencil`` functions: loops over the points whose entire neighborhood lies in the array.

A stencil ``a[-1] + a[1]`` becomes a function of the point, ``a[i - 1] + a[i + 1]``, which is inlined into the loop.
"""

from __future__ import annotations

import ast
import copy
import functools
from dataclasses import dataclass, replace
from typing import Any

from numba import types
from numba.stencils.stencil import StencilFunc

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.values import axes_for, computed, is_array, shape_of
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.source import read_source
from ampi.kernel.frontend.base.values import Value
from ampi.kernel.frontend.language import loops
from ampi.kernel.frontend.language.inline import call_function
from ampi.kernel.frontend.language.invocations import AUTHORED, call_values
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.intrinsics import cast

Reach = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Point:
    """A stencil at one point: its function, whose first parameters are the point's indices, and its neighborhood."""

    function: Any
    reach: Reach | None


@functools.cache
def at_a_point(stencil: StencilFunc, ndim: int) -> Point:
    function = stencil.kernel_ir.func_id.func
    source = read_source(function)
    definition = copy.deepcopy(source.definition)
    definition.decorator_list = []
    parameters = [a.arg for a in definition.args.args]
    relative = set(parameters) - set(stencil.options.get("standard_indexing", ()))
    shift = _Shift(source, relative, [f"place_{k}" for k in range(ndim)])
    definition.body = [shift.visit(s) for s in definition.body]
    places = [ast.copy_location(ast.arg(name), definition) for name in shift.places]
    definition.args.args = [*places, *definition.args.args]
    ast.fix_missing_locations(definition)
    space = outside.free_names(function)
    exec(compile(ast.Module([definition], []), source.filename, "exec"), space)
    made = space[definition.name]
    made.__ampi_source__ = replace(source, definition=definition)
    given = stencil.options.get("neighborhood")
    return Point(made, shift.reach() if given is None else tuple((low, high) for low, high in given))


class _Shift(ast.NodeTransformer):
    """Adds the indices of the point to relative indices."""

    def __init__(self, source: Any, relative: set[str], places: list[str]):
        self.source, self.relative, self.places = source, relative, places
        self.offsets: list[list[int]] | None = [[] for _ in places]

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not (isinstance(node.value, ast.Name) and node.value.id in self.relative):
            return node
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(items) != len(self.places):
            self.source.fail(node, f"{len(items)} indices in a stencil of {len(self.places)} dimensions")
        for axis, item in enumerate(items):
            self.note(axis, item)
        moved: list[ast.expr] = [
            ast.BinOp(ast.Name(place, ast.Load()), ast.Add(), item)
            for place, item in zip(self.places, items, strict=True)
        ]
        index = moved[0] if len(moved) == 1 else ast.Tuple(moved, ast.Load())
        return ast.fix_missing_locations(ast.copy_location(ast.Subscript(node.value, index, node.ctx), node))

    def note(self, axis: int, item: ast.expr) -> None:
        try:
            offset = ast.literal_eval(item)
        except ValueError:
            offset = None
        if not isinstance(offset, int):
            self.offsets = None
        elif self.offsets is not None:
            self.offsets[axis].append(offset)

    def reach(self) -> Reach | None:
        if self.offsets is None:
            return None
        return tuple((min(o, default=0), max(o, default=0)) for o in self.offsets)


def call(builder: Any, stencil: StencilFunc, node: ast.Call, hint: str | None) -> Value:
    values, keywords = call_values(builder, node)
    name = stencil.kernel_ir.func_id.func_name
    target = keywords.pop("out", None)
    values = [computed(builder, v) if is_array(v) else v for v in values]
    if not (values and is_array(values[0])):
        builder.fail(node, f"the first argument of the stencil '{name}' must be an array")
    shape = shape_of(builder, values[0])
    point = at_a_point(stencil, len(shape))
    if point.reach is None or len(point.reach) != len(shape):
        advice = f"declare it: @stencil(neighborhood={((-1, 1),) * len(shape)})"
        builder.fail(node, f"the stencil '{name}' needs a neighborhood of {len(shape)} dimensions", advice)
    for other in values[1:]:
        if is_array(other) and other.type.ndim == len(shape):
            for mine, theirs in zip(shape, shape_of(builder, other), strict=True):
                array_values.agree(builder, node, mine, theirs)
    axes = axes_for(builder, len(shape))
    bounds = [
        (ir.Const(max(-low, 0), types.intp), index_algebra.sub(size, ir.Const(max(high, 0), types.intp)))
        for size, (low, high) in zip(shape, point.reach, strict=True)
    ]
    for axis, (start, _) in zip(axes, bounds, strict=True):
        builder.bounds[axis.name] = start.value

    def value_at_point() -> ir.Expr:
        return call_function(builder, node, point.function, [*axes, *values], keywords)

    if target is None:
        target = new_result(builder, node, stencil, shape, value_at_point, hint)
    elif "cval" in stencil.options:
        array_values.assign(builder, node, array_values.whole(builder, target), border(stencil))

    def body() -> None:
        builder.emit(ir.Store(target, axes, cast(value_at_point(), target.type.dtype)))

    loops.emit_nest(builder, node, axes, bounds, body)
    return target


def new_result(
    builder: Any,
    node: ast.Call,
    stencil: StencilFunc,
    shape: tuple[ir.Expr, ...],
    value_at_point: Any,
    hint: str | None,
) -> ir.Var:
    """A new array for the results, filled with the value for the border."""
    _, value = builder.sub_block(value_at_point)
    if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
        builder.fail(node, f"the stencil '{stencil.kernel_ir.func_id.func_name}' does not return a number")
    fill = cast(border(stencil), value.type)
    return array_values.new_array(builder, "stencil", value.type, shape, fill, variable=hint)


def border(stencil: StencilFunc) -> ir.Const:
    value = stencil.options.get("cval", 0)
    return ir.Const(value, inference.plain(types.float64 if isinstance(value, float) else types.int64))


AUTHORED[StencilFunc] = call
