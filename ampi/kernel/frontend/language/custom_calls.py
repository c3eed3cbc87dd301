"""Calls of functions with custom derivatives (`ampi.custom_vjp`, `ampi.custom_jvp`) inside kernels.

Such a call becomes one statement, ``ir.Custom``.  Its body is the custom forward function, or the function itself, and
is not differentiated; what the adjoint needs of it is saved (arrays as copies, since the caller may overwrite them).
In an adjoint it is replaced by the custom backward function, or by the transpose of the custom tangent; in a tangent
program by the custom tangent.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numba import types

from ampi.derivatives.custom import custom_vjp
from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.values import Group, Static, map_leaves
from ampi.kernel.frontend.language.custom import custom_jvp
from ampi.kernel.frontend.language.inline import bound_values, inline
from ampi.kernel.frontend.language.invocations import AUTHORED, call_values
from ampi.kernel.ir import inference
from ampi.kernel.ir.custom_rules import Rule, Tangent, constant_arguments
from ampi.kernel.ir.intrinsics import is_differentiable
from ampi.kernel.ir.liveness import stored
from ampi.kernel.normalise.array_phi import resolve
from ampi.kernel.normalise.carried_arrays import hoist, keep
from ampi.kernel.normalise.expand import expand
from ampi.kernel.normalise.views import resolve_views
from ampi.kernel.runtime.cache import function_of

Given = custom_vjp | custom_jvp

ADVICE = "see ampi.custom_vjp"
SEE = "see ampi.custom_jvp"


def is_inside(rule: Given, callers: tuple[Any, ...]) -> bool:
    """Return whether a call is inside the rule's own functions, where it calls the plain function."""
    own = [function_of(f).__code__ for f in _functions(rule) if f is not None]
    return any(code is known for code, _ in callers for known in own)


def _functions(rule: Given) -> tuple[Any, ...]:
    return (rule.tangent,) if isinstance(rule, custom_jvp) else (rule.forward, rule.backward, rule.tangent)


def call(builder: Any, rule: Given, node: ast.Call, hint: str | None) -> Any:
    """Emit the call of a function with a custom rule, and return its result as a value."""
    name = rule.__name__
    if isinstance(rule, custom_jvp):
        if rule.tangent is None:
            builder.fail(node, f"'{name}' has no tangent yet", f"decorate its tangent with @{name}.defjvp before")
    elif rule.forward is None or rule.backward is None:
        builder.fail(node, f"'{name}' has no adjoint yet", f"call {name}.defvjp(forward, backward) before")
    arguments = bound_values(builder, node, function_of(rule.f), *call_values(builder, node))
    given = tuple(builder.type_of(node, v) for v in arguments)
    callee = _as_loops(
        builder.callee(node, function_of(rule.f if isinstance(rule, custom_jvp) else rule.forward), given)
    )
    _refuse_random_numbers(builder, node, name, callee)
    arguments = _steady_arguments(builder, callee, arguments)
    make = _plain if isinstance(rule, custom_jvp) else _forward
    body, (result, residuals) = builder.sub_block(lambda: make(builder, rule, node, callee, arguments))
    _require_results(builder, node, name, body, result)
    outputs = map_leaves(result, lambda x: x if inference.is_array(x.type) else _new(builder, hint or name, x))
    tangent = None if rule.tangent is None else _tangent(builder, rule, node, arguments, result)
    if isinstance(rule, custom_jvp):
        made: Any = tangent
        kept = [*_leaves(residuals), *_constants(builder, tangent.function)]
    else:
        made, kept = _adjoint_rule(builder, rule, node, arguments, result, residuals, tangent)
    builder.emit(
        ir.Custom(
            body=body,
            arguments=tuple(x for v in arguments for x in _leaves(v)),
            results=tuple(_leaves(result)),
            outputs=tuple(_leaves(outputs)),
            residuals=tuple(kept),
            rule=made,
            line=node.lineno,
        )
    )
    return outputs


def _adjoint_rule(
    builder: Any, rule: custom_vjp, node: ast.Call, arguments: list[Any], result: Any, residuals: Any, tangent: Any
) -> tuple[Rule, list[ir.Expr]]:
    """The custom adjoint, and the values that it takes besides the adjoints of the results."""
    name = rule.__name__
    given = builder.type_of(node, residuals), builder.type_of(node, map_leaves(result, _carrier))
    backward = _as_loops(builder.callee(node, function_of(rule.backward), given))
    _refuse_random_numbers(builder, node, name, backward)
    constants = constant_arguments(backward)
    kept = [*_leaves(residuals), *_constants(builder, backward)]
    leaves = backward.arguments
    count = len(list(_leaves(residuals)))
    backward = replace(backward, arguments=(*leaves[:count], *constants, *leaves[count:]), constants=())
    positions = tuple(_positions(builder, node, name, backward.result, arguments))
    return Rule(name, backward, positions, tangent), kept


def _refuse_random_numbers(builder: Any, node: ast.Call, name: str, function: ir.Function) -> None:
    if function.drawn:
        builder.fail(
            node,
            f"random numbers in '{name}', which has a custom derivative",
            "pass them to it",
        )


def _constants(builder: Any, function: ir.Function) -> list[ir.Expr]:
    return [outside.constant_array(builder, n, array) for n, array in function.constants]


def _as_loops(function: ir.Function) -> ir.Function:
    """A function reduced to loops over elements, which checks the sizes that must agree."""
    for change in (keep, resolve_views, resolve, resolve_views, hoist, expand):
        function = change(function)
    checks = []
    for s in function.agreeing:
        differ = ir.Op("ne", (s.first, s.second), types.boolean)
        text = f"{function.where(s.line)}: arrays of different sizes in one operation"
        refuse = ir.Raise(f"raise ValueError({text!r})", own=True, line=s.line)
        checks.append(ir.If(differ, (refuse,), line=s.line))
    return replace(function, body=(*checks, *function.body), agreeing=())


def _steady_arguments(builder: Any, callee: ir.Function, arguments: list[Any]) -> list[Any]:
    """The arguments as variables, constants and arrays, evaluated before the call.

    A part of an array that is only read is copied.
    """
    written = stored(callee.body)
    names = iter([a.name for a in callee.arguments])

    def steady(value: ir.Expr) -> ir.Expr:
        is_read_only = next(names) not in written
        if inference.is_array(value.type):
            part = isinstance(value, ir.Var) and value.name in builder.extents and value.name not in builder.owned
            return array_values.copied(builder, value, f"{value.name}_given") if part and is_read_only else value
        return value if isinstance(value, (ir.Var, ir.Const)) else builder.temporary("value", value)

    return [map_leaves(v, steady) for v in arguments]


def _new(builder: Any, hint: str, value: ir.Expr) -> ir.Var:
    return ir.Var(builder.names.fresh(hint), value.type)


def _forward(builder: Any, rule: Given, node: ast.Call, callee: ir.Function, arguments: list[Any]) -> tuple[Any, Any]:
    """Emit the custom forward function; return its result, and copies of its residuals."""
    both = inline(builder, callee, arguments, node, None)
    if len(getattr(both, "items", ())) != 2:
        builder.fail(node, f"the forward function of '{rule.__name__}' must return (result, residuals)", ADVICE)
    result, residuals = both.items
    return result, map_leaves(residuals, lambda x: _saved(builder, x))


def _plain(builder: Any, rule: Given, node: ast.Call, callee: ir.Function, arguments: list[Any]) -> tuple[Any, Any]:
    """Emit the function itself; return its result, and copies of its arguments and its result."""
    save = lambda v: map_leaves(v, lambda x: _saved(builder, x))
    before = Group(tuple(map(save, arguments)))
    result = inline(builder, callee, arguments, node, None)
    return result, Group((before, save(result)))


def _saved(builder: Any, value: ir.Expr) -> ir.Expr:
    if not inference.is_array(value.type):
        return builder.temporary("kept", value)
    if isinstance(value, ir.Var) and value.name in builder.constants:
        return value
    target = ir.Var(builder.names.fresh(f"{value.name}_kept"), value.type.copy(layout="C", readonly=False))
    shape = tuple(ir.Size(value, axis, types.intp) for axis in range(value.type.ndim))
    builder.emit(ir.Alloc(target, shape, value))
    return target


def _carrier(value: ir.Expr) -> Any:
    """A placeholder for the derivative of a value while types are inferred."""
    if not is_differentiable(value.type):
        return Static(None)
    type_ = value.type.copy(layout="C", readonly=False) if inference.is_array(value.type) else value.type
    return ir.Var("derivative", type_)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, ir.Expr):
        yield value
    items = getattr(value, "items", None)
    if isinstance(items, tuple):
        for item in items:
            yield from _leaves(item)


def _require_results(builder: Any, node: ast.Call, name: str, body: tuple[ir.Stmt, ...], result: Any) -> None:
    """Require that overwritten arrays of the caller are results: otherwise their adjoint is undefined."""
    own = {s.target.name for s in ir.walk(body) if isinstance(s, ir.Alloc)}
    written = stored(body)
    views = {s.target.name: s.array.name for s in ir.walk(body) if isinstance(s, ir.Alias)}
    while any(n in views for n in written):
        written = {views.get(n, n) for n in written}
    lost = written - own - {x.name for x in _leaves(result) if isinstance(x, ir.Var)}
    if lost:
        builder.fail(node, f"'{name}' overwrites '{min(lost)}' without returning it", "return it in the result")


def _positions(builder: Any, node: ast.Call, name: str, result: Any, arguments: list[Any]) -> Iterator[int | None]:
    """For each differentiable leaf of the arguments, the position of its adjoint among backward's results."""
    parts = result[2] if isinstance(result, tuple) else ()
    if len(parts) != len(arguments):
        problem = (
            f"the backward function of '{name}' must return a tuple of {len(arguments)} adjoints, one per argument"
        )
        builder.fail(node, problem, ADVICE)
    counter = iter(range(1_000_000))

    def pair(part: Any, value: Any) -> Iterator[int | None]:
        if isinstance(value, ir.Expr):
            wanted = None if part is None else "array" if inference.is_array(value.type) else "scalar"
            if part != wanted:
                builder.fail(node, f"the backward function of '{name}' returns an adjoint of another structure", ADVICE)
            position = None if part is None else next(counter)
            if is_differentiable(value.type):
                yield position
            return
        items = getattr(value, "items", None)
        if not isinstance(items, tuple):  # known when the kernel is compiled
            if part is not None:
                next(counter)
            return
        inside = (None,) * len(items) if part is None else part[2]
        for p, v in zip(inside, items, strict=True):
            yield from pair(p, v)

    for part, value in zip(parts, arguments):
        yield from pair(part, value)


# --------------------------------------------------------------------------------------------------- tangents


def _tangent(builder: Any, rule: Given, node: ast.Call, arguments: list[Any], result: Any) -> Tangent:
    """The custom tangent for these arguments; checks the structure of its results."""
    name = rule.__name__
    primals = Group(tuple(arguments))
    dots = Group(tuple(map_leaves(v, _carrier) for v in arguments))
    given = builder.type_of(node, primals), builder.type_of(node, dots)
    if len(inspect.signature(function_of(rule.tangent)).parameters) != 2:
        builder.fail(node, f"the tangent of '{name}' must take two tuples: arguments, and their tangents", SEE)
    function = _as_loops(builder.callee(node, function_of(rule.tangent), given))
    _refuse_random_numbers(builder, node, name, function)
    both = function.result[2] if isinstance(function.result, tuple) else ()
    if len(both) != 2:
        builder.fail(node, f"the tangent of '{name}' must return (result, tangent of the result)", SEE)
    counter = iter(range(1_000_000))
    values = [next(counter) for _ in _paired(builder, node, name, result, both[0], whole=True)]
    positions = [
        None if kind is None else next(counter)
        for _, kind in _paired(builder, node, name, result, both[1], whole=False)
    ]
    parameters = list(inspect.signature(function_of(rule.tangent)).parameters)
    primals, tangents = (tuple(a for a in function.arguments if a.path[0] == p) for p in parameters)
    found = Tangent(name, function, primals, tangents, tuple(values), tuple(positions))
    _require_places(builder, node, found, arguments, list(_leaves(result)))
    return found


def _paired(
    builder: Any, node: ast.Call, name: str, value: Any, kind: Any, whole: bool
) -> Iterator[tuple[ir.Expr, Any]]:
    """The leaves of a result, each with the kind of the corresponding result of the tangent."""
    problem = f"the tangent of '{name}' returns {'a result' if whole else 'tangents'} of another structure"
    if isinstance(value, ir.Expr):
        wanted = "array" if inference.is_array(value.type) else "scalar"
        if kind != wanted and (whole or kind is not None):
            builder.fail(node, problem, SEE)
        yield value, kind
        return
    items = getattr(value, "items", None)
    if not isinstance(items, tuple):
        return
    inside = (None,) * len(items) if kind is None else kind[2] if isinstance(kind, tuple) else ()
    if len(inside) != len(items) or (kind is None and whole):
        builder.fail(node, problem, SEE)
    for v, k in zip(items, inside):
        yield from _paired(builder, node, name, v, k, whole)


def _require_places(builder: Any, node: ast.Call, found: Tangent, arguments: list[Any], results: list[ir.Expr]) -> None:
    """Require that results of the tangent are arguments where those of the function are, and otherwise new arrays."""
    given = list(_leaves(Group(tuple(arguments))))
    moving = [k for k, x in enumerate(given) if is_differentiable(x.type)]
    place = {a.name: k for k, a in enumerate(found.primals)}
    dot_place = {a.name: moving[k] for k, a in enumerate(found.tangents)}
    returned, used = found.results, set()
    for leaf, at, dot in zip(results, found.values, found.dots, strict=True):
        if not inference.is_array(leaf.type):
            continue
        own = {k for k, x in enumerate(given) if isinstance(x, ir.Var) and x == leaf}
        pairs = [(returned[at].name, place)] + ([] if dot is None else [(returned[dot].name, dot_place)])
        for array, places in pairs:
            fits = places.get(array) in own if own else array not in place | dot_place and array not in used
            if not fits:
                what = "the argument that it is in the function itself, and its tangent" if own else "new arrays"
                builder.fail(node, f"the tangent of '{found.name}' must return {what} for '{leaf.name}'", SEE)
            used.add(array)
        if leaf.type.dtype != returned[at].type.dtype or leaf.type.ndim != returned[at].type.ndim:
            builder.fail(node, f"the tangent of '{found.name}' returns a result of another type", SEE)


def authored(builder: Any, rule: Given, node: ast.Call, hint: str | None) -> Any:
    """The value of a call; None inside the rule's own functions, which call the plain function."""
    return None if is_inside(rule, builder.callers) else call(builder, rule, node, hint)


AUTHORED.update({custom_vjp: authored, custom_jvp: authored})
