"""Calls of functions whose adjoint their author writes (`ampi.custom_vjp`) inside of kernels.

Such a call becomes one statement, ``ir.Custom``.  Its body is the author's forward function, which no derivative looks
into; what that returns as residuals is kept (arrays as copies, since the caller may overwrite them).  In the reverse
sweep the author's backward function stands in its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numba
from numba import types

from ampi.custom import custom_vjp
from ampi.kernel import inference, ir
from ampi.kernel.expand import expand
from ampi.kernel.inline import inline
from ampi.kernel.intrinsics import is_differentiable
from ampi.kernel.parse import Static
from ampi.kernel.references import resolve
from ampi.kernel.ssa import stored
from ampi.kernel.views import resolve_views

ADVICE = "see ampi.custom_vjp"


@dataclass(frozen=True)
class Rule:
    """The author's adjoint, for arguments of certain types.

    ``backward`` takes the leaves of the residuals and of the adjoints of the results; ``positions`` says for every
    input which of its results is the input's adjoint (None: zero).
    """

    name: str
    backward: ir.Function
    positions: tuple[int | None, ...]


def is_inside(rule: custom_vjp, callers: tuple[Any, ...]) -> bool:
    """Whether a call stands in the rule's own functions, where it is the plain function."""
    own = [_function(f).__code__ for f in (rule.forward, rule.backward) if f is not None]
    return any(code is known for code, _ in callers for known in own)


def call(builder: Any, rule: custom_vjp, node: ast.Call, hint: str | None) -> Any:
    """Emit the call of a function with a rule of its own, and give its result as a value."""
    name = rule.__name__
    if rule.forward is None or rule.backward is None:
        builder.fail(node, f"'{name}' has no adjoint yet", f"call {name}.defvjp(forward, backward) before")
    arguments = [builder.map_leaves(v, lambda x: _steady(builder, x)) for v in builder.bound(node, _function(rule.f))]
    body, (result, residuals) = builder.sub_block(lambda: _forward(builder, rule, node, arguments))
    _require_results(builder, node, name, body, result)
    outputs = builder.map_leaves(result, lambda x: x if inference.is_array(x.type) else _new(builder, hint or name, x))
    given = builder.type_of(node, residuals), builder.type_of(node, builder.map_leaves(result, _adjoint))
    backward = _as_loops(builder.callee(node, _function(rule.backward), given))
    constants = tuple(ir.Argument(n, numba.typeof(array), ("constant", n)) for n, array in backward.constants)
    kept = [*_leaves(residuals), *(builder.constant_array(n, array) for n, array in backward.constants)]
    leaves = backward.arguments
    count = len(list(_leaves(residuals)))
    backward = replace(backward, arguments=(*leaves[:count], *constants, *leaves[count:]), constants=())
    inputs = [x for v in arguments for x in _leaves(v) if is_differentiable(x.type)]
    positions = tuple(_positions(builder, node, name, backward.result, arguments))
    builder.emit(
        ir.Custom(
            body=body,
            inputs=tuple(inputs),
            results=tuple(_leaves(result)),
            outputs=tuple(_leaves(outputs)),
            residuals=tuple(kept),
            rule=Rule(name, backward, positions),
            line=node.lineno,
        )
    )
    return outputs


def _function(value: Any) -> Any:
    return getattr(value, "py_func", value)


def _as_loops(function: ir.Function) -> ir.Function:
    """A function that does nothing but loop over elements, with the sizes that must agree checked in it."""
    function = expand(resolve(resolve_views(function)))
    checks = []
    for s in function.agreeing:
        differ = ir.Op("ne", (s.first, s.second), types.boolean)
        text = f"raise ValueError('line {s.line}: arrays of different sizes in one operation')"
        checks.append(ir.If(differ, (ir.Raise(text, own=True, line=s.line),), line=s.line))
    return replace(function, body=(*checks, *function.body), agreeing=())


def _steady(builder: Any, value: ir.Expr) -> ir.Expr:
    """An argument as a variable or constant: what it is computed from is none of the rule's business."""
    return value if isinstance(value, (ir.Var, ir.Const)) else builder.temporary("value", value)


def _new(builder: Any, hint: str, value: ir.Expr) -> ir.Var:
    return ir.Var(builder.names.fresh(hint), value.type)


def _forward(builder: Any, rule: custom_vjp, node: ast.Call, arguments: list[Any]) -> tuple[Any, Any]:
    """The author's forward function, and copies of its residuals."""
    given = tuple(builder.type_of(node, v) for v in arguments)
    callee = _as_loops(builder.callee(node, _function(rule.forward), given))
    both = inline(builder, callee, arguments, node, None)
    if len(getattr(both, "items", ())) != 2:
        builder.fail(node, f"the forward function of '{rule.__name__}' must return (result, residuals)", ADVICE)
    result, residuals = both.items
    return result, builder.map_leaves(residuals, lambda x: _kept(builder, x))


def _kept(builder: Any, value: ir.Expr) -> ir.Expr:
    if not inference.is_array(value.type):
        return builder.temporary("kept", value)
    if isinstance(value, ir.Var) and value.name in builder.constants:
        return value
    target = ir.Var(builder.names.fresh(f"{value.name}_kept"), value.type.copy(layout="C", readonly=False))
    shape = tuple(ir.Size(value, axis, types.intp) for axis in range(value.type.ndim))
    builder.emit(ir.Alloc(target, shape, value))
    return target


def _adjoint(value: ir.Expr) -> Any:
    """What stands for the adjoint of a result where the types of backward's arguments are asked for."""
    if not is_differentiable(value.type):
        return Static(None)
    type_ = value.type.copy(layout="C", readonly=False) if inference.is_array(value.type) else value.type
    return ir.Var("adjoint", type_)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, ir.Expr):
        yield value
    items = getattr(value, "items", None)
    if isinstance(items, tuple):
        for item in items:
            yield from _leaves(item)


def _require_results(builder: Any, node: ast.Call, name: str, body: tuple[ir.Stmt, ...], result: Any) -> None:
    """Arrays of the caller that are overwritten must be results: otherwise their adjoint would be anybody's guess."""
    own = {s.target.name for s in ir.walk(body) if isinstance(s, ir.Alloc)}
    written = stored(body)
    views = {s.target.name: s.array.name for s in ir.walk(body) if isinstance(s, ir.Alias)}
    while any(n in views for n in written):
        written = {views.get(n, n) for n in written}
    lost = written - own - {x.name for x in _leaves(result) if isinstance(x, ir.Var)}
    if lost:
        builder.fail(node, f"'{name}' overwrites '{min(lost)}' without returning it", "return it in forward's result")


def _positions(builder: Any, node: ast.Call, name: str, result: Any, arguments: list[Any]) -> Iterator[int | None]:
    """Where the adjoint of every differentiable leaf of the arguments is among backward's results."""
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
                builder.fail(node, f"the backward function of '{name}' returns a wrong kind of adjoint", ADVICE)
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
