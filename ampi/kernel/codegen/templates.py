"""Expressions as text: templates with arguments, in parentheses where Python's grammar needs them.

The text is that of ``ast.unparse``, which decides once for each template and argument which operators need parentheses
there; to unparse each expression would take most of the time of emission.
"""

from __future__ import annotations

import ast
import functools
import re

from ampi.kernel.ir.intrinsics import ARGUMENTS

Text = tuple[str, int]
"""The text of an expression, and its level: the place of its outermost operator in `LEVELS`."""

LEVELS = (
    *("probe if a else b", "probe or a", "probe and a", "not probe", "probe < a", "probe | a", "probe ^ a"),
    *("probe & a", "probe << a", "probe + a", "probe * a", "-probe", "probe ** a", "probe"),
)
"""An expression of each level; later ones are bound more tightly."""
ATOM = len(LEVELS) - 1


@functools.cache
def normalised(text: str) -> Text:
    """An expression without arguments."""
    tree = ast.parse(text, mode="eval").body
    return ast.unparse(tree), _level(tree)


def filled(template: str, *arguments: Text) -> Text:
    """The template with the first names of `ARGUMENTS` replaced."""
    pieces, places, level = _compiled(template, len(arguments))
    if level is None:
        return arguments[places[0][0]]
    found = [pieces[0]]
    for (argument, least), piece in zip(places, pieces[1:]):
        text, own = arguments[argument]
        found += (text, piece) if own >= least else ("(", text, ")", piece)
    return "".join(found), level


@functools.cache
def _compiled(template: str, count: int) -> tuple[list[str], list[tuple[int, int]], int | None]:
    """The text between arguments; the number of each argument, and the least level that needs no parentheses; and the
    level of the template (None for a template that is an argument)."""
    tree = ast.parse(template, mode="eval").body
    known = ARGUMENTS[:count]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in known]
    given = [known.index(node.id) for node in names]
    for k, node in enumerate(names):
        node.id = f"argument_{k}_"
    text = ast.unparse(tree)
    parts = re.split(r"argument_(\d+)_", text)
    order = list(map(int, parts[1::2]))
    places = [(given[k], _least_level(text, names[k].id)) for k in order]
    return parts[::2], places, None if tree in names else _level(tree)


def _least_level(text: str, name: str) -> int:
    """The least level of an argument that needs no parentheses in place of a name in an expression."""
    for level, sample in enumerate(LEVELS):
        tree = _Replacing(name, ast.parse(sample, mode="eval").body).visit(ast.parse(text, mode="eval").body)
        if ast.unparse(tree) == text.replace(name, sample):
            return level
    return ATOM


class _Replacing(ast.NodeTransformer):
    """Puts an expression in the place of a name."""

    def __init__(self, name: str, by: ast.expr) -> None:
        self.name, self.by = name, by

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.by if node.id == self.name else node


def _level(tree: ast.expr) -> int:
    """The level of an expression's outermost operator."""
    return _KINDS.get(_kind(tree), ATOM)


def _kind(tree: ast.expr) -> tuple[type, type | None]:
    operator = getattr(tree, "op", None)
    if isinstance(operator, (ast.Sub, ast.Add)):
        operator = ast.Add()
    elif isinstance(operator, (ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult)):
        operator = ast.Mult()
    elif isinstance(operator, ast.RShift):
        operator = ast.LShift()
    elif isinstance(operator, (ast.UAdd, ast.Invert)):
        operator = ast.USub()
    return type(tree), None if operator is None else type(operator)


_KINDS = {_kind(ast.parse(sample, mode="eval").body): level for level, sample in enumerate(LEVELS[:-1])}
