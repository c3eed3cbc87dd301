"""Expressions that draw random numbers, assigned to names where the rewriting of lists would evaluate them twice.

::

    for k in range(np.random.randint(5)):        count = np.random.randint(5)
        l.append(a[k])                           for k in range(count):
                                                     l.append(a[k])
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ampi.kernel.frontend.base.draws import METHODS
from ampi.kernel.frontend.lists.nodes import assign, named, placed
from ampi.kernel.runtime.cache import names_in

_GROWING = {"append", "extend", "insert"}
_THROUGH = (range, enumerate, zip, reversed)


def draws(node: ast.AST, known: dict[str, Any]) -> bool:
    """Return whether an expression may draw random numbers."""
    return any(isinstance(n, ast.Call) and _may_draw(n.func, known) for n in ast.walk(node))


def _may_draw(function: ast.expr, known: dict[str, Any]) -> bool:
    path: list[str] = []
    owner = function
    while isinstance(owner, ast.Attribute):
        path, owner = [owner.attr, *path], owner.value
    name = owner.id if isinstance(owner, ast.Name) else None
    if "random" in path or (path and path[-1] in METHODS and name not in known):
        return True
    return _function_draws(known_by(function, known), [])


def known_by(node: ast.expr, known: dict[str, Any]) -> Any:
    """The value of a global name, or of a path such as ``numba.typed.List``; None if it is not known."""
    if isinstance(node, ast.Attribute):
        return getattr(known_by(node.value, known), node.attr, None)
    return known.get(node.id) if isinstance(node, ast.Name) else getattr(node, "function", None)


def _function_draws(value: Any, seen: list[Any]) -> bool:
    if isinstance(getattr(value, "__self__", None), np.random.RandomState):
        return True
    function = getattr(value, "py_func", value)
    if not inspect.isfunction(function) or function in seen:
        return False
    seen.append(function)
    named_in = names_in(function.__code__)
    if "random" in named_in or not METHODS.keys().isdisjoint(named_in):
        return True
    return any(_function_draws(function.__globals__.get(n), seen) for n in named_in)


def once(items: ast.expr, known: dict[str, Any], fresh: Callable[[str], str]) -> tuple[list[ast.stmt], ast.expr]:
    """Statements that evaluate the parts of an expression that draw, and the expression with names for these parts."""
    if not draws(items, known):
        return [], items
    is_through = isinstance(items, ast.Call) and isinstance(items.func, ast.Name) and not items.keywords
    if is_through and any(known.get(items.func.id) is f for f in _THROUGH):  # type: ignore[attr-defined]
        before: list[ast.stmt] = []
        for k, argument in enumerate(items.args):  # type: ignore[attr-defined]
            more, items.args[k] = once(argument, known, fresh)  # type: ignore[attr-defined]
            before += more
        return before, items
    name = fresh("drawn")
    return [placed(assign(name, items), items)], placed(named(name), items)


class EvaluateOnce(ast.NodeTransformer):
    """Assigns names to expressions that draw the number of items by which a statement lengthens a list."""

    def __init__(self, known: dict[str, Any], fresh: Callable[[str], str]) -> None:
        self.known, self.fresh = known, fresh

    def visit_For(self, node: ast.For) -> Any:
        self.generic_visit(node)
        if not any(isinstance(n, ast.Attribute) and n.attr in _GROWING for n in ast.walk(node)):
            return node
        before, node.iter = once(node.iter, self.known, self.fresh)
        return [*before, node]

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Call(func=ast.Attribute(attr="extend"), args=[items]):
                before, node.value.args[0] = once(items, self.known, self.fresh)
                return [*before, node]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if isinstance(node.op, ast.Add) and isinstance(node.value, (ast.List, ast.ListComp)):
            before, node.value = once(node.value, self.known, self.fresh)
            return [*before, node]
        return node
