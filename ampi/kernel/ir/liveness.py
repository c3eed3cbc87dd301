"""Live variables of parsed programs: values that may still be read, and the names that statements bind and write."""

from __future__ import annotations

from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Stmt, Var


def assigned(body: tuple[Stmt, ...]) -> set[str]:
    """The names of the scalars and arrays that parsed statements (re)bind."""
    found = set()
    for node in ir.walk(body):
        if isinstance(node, (ir.Assign, ir.Alloc, ir.Alias)):
            found.add(node.target.name)
        elif isinstance(node, ir.For):
            found.add(node.var.name)
        elif isinstance(node, ir.Custom):
            found.update(v.name for v in node.outputs if not isinstance(v.type, types.Array))
    return found


def stored(body: tuple[Stmt, ...]) -> set[str]:
    """The names of the arrays into whose elements statements write (views by their own names)."""
    found = set()
    for node in ir.walk(body):
        if isinstance(node, (ir.Store, ir.Accumulate)):
            found.add(node.array.name)
        elif isinstance(node, (ir.Alloc, ir.Grow, ir.Fill)):
            found.add(node.target.name)
    return found


def used(expression: Any) -> set[str]:
    return {n.name for n in ir.walk(expression) if isinstance(n, Var)}


def live_before(body: tuple[Stmt, ...], live: set[str]) -> set[str]:
    """The variables whose values may be read by parsed statements, or after them."""
    for statement in reversed(body):
        live = _live_before(statement, live)
    return live


def _live_before(s: Stmt, live: set[str]) -> set[str]:
    match s:
        case ir.Assign(target=target, value=value):
            return live - {target.name} | used(value)
        case ir.Alloc(target=target, shape=shape, fill=fill):
            return live - {target.name} | used(shape) | (used(fill) if fill is not None else set())
        case ir.Alias(target=target, array=array, index=index):
            return live - {target.name} | {array.name} | used(index)
        case ir.View(target=target):
            return live - {target.name} | used((s.array, *s.shape, *s.index))
        case ir.Custom():
            live = live - {v.name for v in s.outputs} | used((*s.results, *s.residuals))
            return live_before(s.body, live) | used(s.arguments)
        case ir.If(condition=condition, then=then, orelse=orelse):
            return used(condition) | live_before(then, live) | live_before(orelse, live)
        case ir.For(var=var, body=body):
            around = live | live_before(body, live) - {var.name}
            around |= live_before(body, around) - {var.name}
            if is_entered(s):
                around = live_before(body, around) - {var.name}
            return around | used((s.start, s.stop, s.step))
        case ir.While(condition=condition, body=body):
            around = live | used(condition)
            around |= live_before(body, around)
            return around | live_before(body, around)
        case _:
            return live | used(s)


def is_entered(s: ir.For) -> bool:
    """Return whether a loop certainly runs at least once, up to the end of its body."""
    ends = (s.start, s.stop, s.step)
    if not all(isinstance(e, Const) for e in ends) or not range(*(e.value for e in ends)):  # type: ignore[attr-defined]
        return False
    return not any(isinstance(t, (ir.Break, ir.Continue, ir.Return)) for t in ir.walk(s.body))
