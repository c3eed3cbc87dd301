"""Substitution in the intermediate representation: copies of nodes in which something is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ampi.kernel import ir


def mapped(node: Any, change: Callable[[ir.Expr], ir.Expr]) -> Any:
    """A copy of an expression or statement with every expression inside changed, innermost first.

    Targets of assignments and arrays are variables like others and are passed to ``change`` too; it must give a ``Var``
    for them.  Blocks inside a statement are mapped as well.
    """
    changed: dict[str, Any] = {}
    for f in fields(node):
        old = getattr(node, f.name)
        if isinstance(old, (ir.Expr, ir.Stmt)):
            new = mapped(old, change)
        elif isinstance(old, tuple) and old and isinstance(old[0], (ir.Expr, ir.Stmt)):
            new = tuple(mapped(v, change) for v in old)
        else:
            continue
        if new is not old:
            changed[f.name] = new
    result = replace(node, **changed) if changed else node
    return change(result) if isinstance(result, ir.Expr) else result


def rename(node: Any, names: dict[str, ir.Expr], fresh: Any, line: int | None) -> Any:
    """A copy of ``node`` with variables replaced; names not in ``names`` yet are given new ones.

    ``line`` replaces the line numbers unless it is None.
    """
    if isinstance(node, ir.Var):
        if node.name not in names:
            names[node.name] = replace(node, name=fresh(node.name))
        return names[node.name]
    if isinstance(node, ir.Const):
        return node
    changed: dict[str, Any] = {}
    for f in fields(node):
        old = getattr(node, f.name)
        if isinstance(old, (ir.Expr, ir.Stmt)):
            changed[f.name] = rename(old, names, fresh, line)
        elif isinstance(old, tuple) and old and isinstance(old[0], (ir.Expr, ir.Stmt)):
            changed[f.name] = tuple(rename(v, names, fresh, line) for v in old)
    if isinstance(node, ir.For) and node.reductions:
        changed["reductions"] = tuple((names[name].name, kind) for name, kind in node.reductions)
    if line is not None and isinstance(node, ir.Stmt):
        changed["line"] = line
    return replace(node, **changed)


def substitute(function: ir.Function, names: dict[str, ir.Expr]) -> ir.Function:
    """The function with these variables replaced in its body."""
    names = dict(names)
    return replace(function, body=tuple(rename(s, names, lambda name: name, None) for s in function.body))
