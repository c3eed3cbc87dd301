"""Calls of other kernels: the callee's body, with its names replaced, in place of the call."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences, structured_arrays
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.sequences import refuse_lists
from ampi.kernel.frontend.arrays.values import Lazy, is_array
from ampi.kernel.frontend.base import draws as random_draws
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.declared import declared
from ampi.kernel.frontend.base.values import (
    Group,
    Recorded,
    Single,
    Static,
    Value,
    assemble,
    is_listed,
    is_maybe,
    map_leaves,
)
from ampi.kernel.frontend.language import large_calls
from ampi.kernel.ir import inference
from ampi.kernel.ir.index_algebra import ONE
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.rewrite import rename
from ampi.kernel.normalise.array_phi import references


def call_function(
    builder: Any,
    node: ast.Call,
    function: Any,
    positional: list[Value],
    keywords: dict[str, Value],
    hint: str | None = None,
) -> Value:
    """Inline a call of a Python function with these values."""
    arguments = bound_values(builder, node, function, positional, keywords)
    made_here = [v for v in arguments if isinstance(v, ir.Var) and v.name not in builder.list_arguments]
    refuse_lists(builder, node, "a list as an argument of a kernel", *made_here)
    single: Single = frozenset()
    if builder.single_axes:
        leaves = enumerate(leaf_values(arguments))
        arrays = ((k, array_values.shape_of(builder, leaf)) for k, leaf in leaves if is_array(leaf))
        single = frozenset((k, axis) for k, shape in arrays for axis, n in enumerate(shape) if n == ONE)
    argument_types = tuple(builder.type_of(node, v) for v in arguments)
    declaration = declared(function)
    if declaration is not None:
        taken = builder.signature(declaration, argument_types, node)[0]
        scalar = [inference.is_scalar(given) and inference.is_scalar(t) for given, t in zip(argument_types, taken)]
        arguments = [cast(v, t) if s else v for v, t, s in zip(arguments, taken, scalar)]
        argument_types = tuple(t if s else given for given, t, s in zip(argument_types, taken, scalar))
    callee = builder.callee(node, function, argument_types, single)
    if builder.derivatives is not None and not single and large_calls.is_large(builder, node, function, callee):
        results = large_calls.call(builder, callee, leaf_values(arguments), builder.derivatives)
        if results is not None:
            return with_lists(builder, assemble(callee.result, iter(results)))
    return inline(builder, callee, arguments, node, hint)


def bound_values(
    builder: Any, node: ast.Call, function: Any, positional: list[Value], keywords: dict[str, Value]
) -> list[Value]:
    """The values of a call's arguments in the order of the function's parameters, defaults as `Static`."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*positional, **keywords).arguments
    except TypeError as problem:
        builder.fail(node, f"{function.__name__}(): {problem}")
    if any(map(is_maybe, bound.values())):
        builder.fail(
            node, "an argument that may be None", "test whether it is None before the call, and pass the number"
        )
    several = {p.name for p in signature.parameters.values() if p.kind == p.VAR_POSITIONAL}
    found = {name: settled(builder, Group(v) if name in several else v) for name, v in bound.items()}
    found.update({name: Group(()) for name in several - set(found)})
    return [found.get(p.name, Static(p.default)) for p in signature.parameters.values()]


def settled(builder: Any, value: Value) -> Value:
    """A value whose whole-array expressions are computed into arrays."""
    if isinstance(value, Group):
        return map_leaves(value, lambda v: settled(builder, v))
    return array_values.computed(builder, value) if isinstance(value, Lazy) else value


def inline(builder: Any, callee: ir.Function, arguments: list[Any], node: ast.Call, hint: str | None) -> Any:
    """Emit the body of ``callee`` (lowered) for these argument values, and return its result as a value.

    Arrays, and scalars that are variables or constants, keep the caller's names.  Other scalars, and all local names of
    the callee, get new names.
    """
    *body, last = callee.body if callee.body and isinstance(callee.body[-1], ir.Return) else (*callee.body, ir.Return())
    names: dict[str, ir.Expr] = {}
    for argument, value in zip(callee.arguments, leaf_values(arguments), strict=True):
        names[argument.name] = value if direct(value) else builder.temporary(argument.name, value)
    for own in callee.drawn:
        random_draws.refuse_on_threads(builder, node)
        drawn = random_draws.drawn_in(builder, own.array.type.dtype)
        names[own.array.name], names[own.place.name] = drawn.array, drawn.place
    if callee.drawn:
        names.update(random_draws.generators_in(callee.body))
    for name, array in callee.constants:
        names[name] = outside.constant_array(builder, name, array)
    if hint is not None and len(last.values) == 1 and inference.is_array(last.values[0].type):
        names.setdefault(last.values[0].name, replace(last.values[0], name=builder.new_array_name(hint, "result")))
    builder.has_effects = builder.has_effects or callee.has_effects
    here = callee.filename == builder.source.filename
    start = len(builder.block)
    for statement in body:
        builder.block.append(rename(statement, names, builder.names.fresh, None if here else node.lineno))
    builder.references |= {names[name].name for name in references(callee)}
    results = [rename(value, names, builder.names.fresh) for value in last.values]
    note_parts(builder, start)
    return with_lists(builder, assemble(callee.result, iter(results)))


def with_lists(builder: Any, value: Value) -> Value:
    """A callee's result with lists of numbers as their arrays, and structured arrays as `Records`."""
    if not isinstance(value, Group):
        return value
    if value.cls is not None and issubclass(value.cls, Recorded):
        return structured_arrays.of_result(value)
    if is_listed(value):
        return value if value.cls.width else sequences.as_list(builder, value.items[0])
    return Group(tuple(with_lists(builder, v) for v in value.items), value.cls)


def note_parts(builder: Any, start: int) -> None:
    """Note which names of an inlined body are parts of arrays, and which local arrays have axes of size one."""
    for s in ir.walk(tuple(builder.block[start:])):
        builder.note_root(s)
        if isinstance(s, ir.View):
            builder.extents[s.target.name] = s.shape
        elif isinstance(s, ir.Alloc):
            builder.single |= {(s.target.name, axis) for axis, size in enumerate(s.shape) if size == ONE}
        elif isinstance(s, ir.Alias) and s.index:
            builder.describe_part(s.target, s.array, len(s.index))


def direct(value: ir.Expr) -> bool:
    """Return whether the callee may use the caller's expression directly, any number of times."""
    return isinstance(value, (ir.Var, ir.Const))


def leaf_values(arguments: list[Any]) -> list[ir.Expr]:
    """The values of a callee's argument leaves, in order."""

    def leaves(value: Any) -> list[ir.Expr]:
        if isinstance(value, ir.Expr):
            return [value]
        items = getattr(value, "items", None)  # a group; values known at compile time have no leaf
        return [leaf for item in items for leaf in leaves(item)] if isinstance(items, tuple) else []

    return [leaf for argument in arguments for leaf in leaves(argument)]
