"""Substitution in the intermediate representation: copies of nodes with replaced parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from ampi.kernel import ir


def mapped(node: Any, change: Callable[[ir.Expr], ir.Expr], statement: Callable[[Any], Any] | None = None) -> Any:
    """A copy of an expression or statement with every expression inside changed, innermost first.

    Targets of assignments and arrays are passed to ``change`` like other variables; it must return a ``Var`` for them.
    Blocks inside a statement are mapped as well, and then each statement is passed to ``statement``.
    """
    changed: dict[str, Any] = {}
    for f in fields(node):
        old = getattr(node, f.name)
        if isinstance(old, (ir.Expr, ir.Stmt)):
            new = mapped(old, change, statement)
        elif isinstance(old, tuple) and old and isinstance(old[0], (ir.Expr, ir.Stmt)):
            new = tuple(mapped(v, change, statement) for v in old)
        else:
            continue
        if new is not old:
            changed[f.name] = new
    result = replace(node, **changed) if changed else node
    if isinstance(result, ir.Expr):
        return change(result)
    return result if statement is None else statement(result)


def substitute(node: Any, names: dict[str, ir.Expr]) -> Any:
    """A copy of an expression or statement with these variables replaced."""
    return rename(node, dict(names), lambda name: name)


def rename(node: Any, names: dict[str, ir.Expr], fresh: Callable[[str], str], line: int | None = None) -> Any:
    """A copy of an expression or statement with variables replaced; those not in ``names`` yet are given new names.

    ``line`` replaces the line numbers unless it is None.
    """

    def change(node: ir.Expr) -> ir.Expr:
        if not isinstance(node, ir.Var):
            return node
        if node.name not in names:
            names[node.name] = replace(node, name=fresh(node.name))
        return names[node.name]

    def statement(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.For) and s.reductions:
            s = replace(s, reductions=tuple((names[name].name, kind) for name, kind in s.reductions))
        return s if line is None else replace(s, line=line)

    return mapped(node, change, statement)


def merged(function: ir.Function, same: tuple[tuple[int, int], ...]) -> ir.Function:
    """Merge arguments that are the same array into one name; the others remain as unused arguments."""
    if not same:
        return function
    leaves = function.arguments
    one: dict[str, ir.Expr] = {leaves[k].name: ir.Var(leaves[first].name, leaves[first].type) for k, first in same}
    return replace(function, body=tuple(substitute(s, one) for s in function.body))
