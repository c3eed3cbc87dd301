"""The variables that a program's statements assign, and their scopes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*Function, ast.ClassDef, ast.Lambda)


def stored(node: ast.AST) -> Iterator[ast.expr]:
    """Return the targets of a statement (of a loop or ``with``, those in its header), without ``+=`` and ``:=``."""
    match node:
        case ast.Assign():
            for target in node.targets:
                yield from _parts(target)
        case ast.AnnAssign(value=ast.expr()):
            yield node.target
        case ast.For() | ast.AsyncFor():
            yield from _parts(node.target)
        case ast.With() | ast.AsyncWith():
            for item in node.items:
                if item.optional_vars is not None:
                    yield from _parts(item.optional_vars)
        case ast.Import() | ast.ImportFrom():
            for alias in node.names:
                if alias.name != "*":
                    yield ast.Name(alias.asname or alias.name.partition(".")[0])
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield ast.Name(node.name)
        case ast.match_case():
            yield from _captured(node.pattern)


def changed(node: ast.AST) -> list[str]:
    """The targets of a statement as source text, with augmented assignments."""
    found = [ast.unparse(target) for target in stored(node)]
    return [*found, ast.unparse(node.target)] if isinstance(node, ast.AugAssign) else found


def changes(node: ast.AST, path: str) -> bool:
    """Return whether a statement assigns a variable, elements or attributes of it, or calls a method of it."""
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    places = changed(node) + ([ast.unparse(called)] if called is not None else [])
    return any(place == path or place.startswith((f"{path}[", f"{path}.")) for place in places)


def lines_that_change(tree: ast.AST, scope: str, path: str) -> list[int]:
    """The lines of a scope that assign or change a variable, in their order."""
    found = set()
    for name, node in scopes(tree):
        if name == scope:
            found |= {part.lineno for part in inside(node) if isinstance(part, ast.stmt) and changes(part, path)}
    return sorted(found)


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            yield from _parts(item)
    elif isinstance(target, ast.Starred):
        yield from _parts(target.value)
    else:
        yield target


def _captured(pattern: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(pattern):
        name = getattr(node, "name", None) or getattr(node, "rest", None)
        if isinstance(node, (ast.MatchAs, ast.MatchStar, ast.MatchMapping)) and name:
            yield ast.Name(name)


def parameters(node: Any) -> list[str]:
    """The names of a function's parameters."""
    a = node.args
    found = [*a.posonlyargs, *a.args, *a.kwonlyargs]
    return [p.arg for p in (*found, *filter(None, (a.vararg, a.kwarg)))]


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, with its functions and classes but without the nodes inside these."""
    waiting = list(scope.body) if hasattr(scope, "body") else []
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, _SCOPES):
            waiting[:0] = list(ast.iter_child_nodes(node))


def declared_global(scope: ast.AST) -> set[str]:
    """The names that a function declares as global."""
    return {name for node in inside(scope) if isinstance(node, ast.Global) for name in node.names}


def names_in(scope: ast.AST) -> set[str]:
    """Everything that a scope assigns, as source text: names, attributes and elements."""
    found = set(parameters(scope)) if isinstance(scope, Function) else set()
    for node in inside(scope):
        found |= {ast.unparse(target) for target in stored(node)}
        if isinstance(node, ast.NamedExpr):
            found.add(node.target.id)
        elif isinstance(node, ast.AugAssign):
            found.add(ast.unparse(node.target))
    return found


def scopes(tree: ast.AST, outer: str = "") -> Iterator[tuple[str, ast.AST]]:
    """All scopes of a module with their names, ``""`` for the module itself and ``Class.method``."""
    yield outer, tree
    for node in inside(tree):
        if isinstance(node, (*Function, ast.ClassDef)):
            yield from scopes(node, f"{outer}.{node.name}" if outer else node.name)


def assigned_in(tree: ast.AST, scope: str) -> set[str]:
    """Return all names assigned in the scopes of a name; for the module's own, also globals that functions assign."""
    found: set[str] = set()
    for name, node in scopes(tree):
        if name == scope:
            found |= names_in(node)
        elif not scope and isinstance(node, Function):
            found |= declared_global(node) & names_in(node)
    return found
