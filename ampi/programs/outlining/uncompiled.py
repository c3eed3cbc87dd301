"""Loops over elements that stay in Python, and why: for ``python -m ampi.check``."""

from __future__ import annotations

import ast
from typing import Any

from ..edits import is_compiled
from .loops import Loop
from .rewriting import Guards, Objects, note_loops
from .running import Running


def refused_in(tree: ast.Module, filename: str) -> list[tuple[int, int, str]]:
    """Return the innermost loops over elements in a module that cannot be compiled for any values.

    Returns
    -------
    list of (int, int, str)
        The line of the loop, that of the reason, and the reason.
    """
    found: list[Loop] = []

    def make(loop: Loop) -> None:
        found.append(loop)

    note_loops(tree)
    Guards(filename, Objects(), make, None, is_compiled, lambda node: False).visit(tree)
    refused = [loop for loop in found if loop.refusal is not None and _is_over_elements(loop.node)]
    return sorted((loop.node.lineno, *loop.refusal) for loop in refused)  # type: ignore[misc]


def _is_over_elements(node: Any) -> bool:
    """Return whether an innermost loop computes with elements."""
    inner = [n for s in node.body for n in ast.walk(s)]
    if any(isinstance(n, (ast.For, ast.While)) for n in inner):
        return False
    elements = any(isinstance(n, ast.Subscript) and not isinstance(n.slice, ast.Slice) for n in inner)
    return elements and any(isinstance(n, (ast.BinOp, ast.AugAssign)) for n in inner)


def described(loops: list[Running]) -> list[str]:
    """Return lines about the uncompiled loops of a program's run, those with most work first."""
    found: dict[tuple[str, int, str], float] = {}
    for running in loops:
        for form in running.forms.values():
            if form.refusal is not None:
                line = form.refusal.line or running.loop.node.lineno
                key = running.loop.place, line, form.refusal.reason
                found[key] = max(found.get(key, 0.0), form.done, float(running.entries))
    lines = []
    for (place, line, reason), _ in sorted(found.items(), key=lambda item: -item[1]):
        at = "" if place.endswith(f":{line}") else f" (line {line})"
        lines.append(f"{place}: this loop stays in Python: {reason}{at}")
    return lines
