"""Syntax tree nodes for lists as arrays, and functions that make and rewrite statements.

Passes over source insert the nodes (`spelling`); ``language.list_nodes`` builds their IR.
"""

from __future__ import annotations

import ast
import copy
from typing import Any


class NewList(ast.expr):
    """An array with room for ``length`` numbers, whose type is that of the items put into the list ``key``."""

    _fields = ("length",)
    key: str


class Length(ast.expr):
    """The number of iterations of a loop over ``iter``."""

    _fields = ("iter",)


class Filled(ast.expr):
    """The filled part of a list's array: its first ``count`` elements."""

    _fields = ("list", "count")


class Elements(ast.expr):
    """A new array of the numbers in a list."""

    _fields = ("list",)


class Position(ast.expr):
    """An index of a list with ``count`` items, counted from the start; an index out of range is an error with this
    text, if there is one."""

    _fields = ("index", "count")

    def __init__(self, index: ast.expr | None = None, count: ast.expr | None = None, text: str = ""):
        super().__init__(index, count)  # type: ignore[call-arg]
        self.text = text


class Place(ast.expr):
    """An index of the array of a list that is known to be in range."""

    _fields = ("index",)


class Known(ast.expr):
    """A function itself, independent of what its name means in the program."""

    _fields = ()

    def __init__(self, function: Any = None):
        super().__init__()
        self.function = function


class Put(ast.stmt):
    """``list[place] = value``."""

    _fields = ("list", "place", "value")
    key: str


class MakeRoom(ast.stmt):
    """Make room in a list for one more item than ``count``."""

    _fields = ("list", "count")


def assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([named(name, ast.Store())], value)


def increase(name: str, number: ast.expr | None = None) -> ast.stmt:
    return assign(name, ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), number or ast.Constant(1)))


def named(name: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(name, context or ast.Load())


def name_of(node: Any) -> str | None:
    """The identifier of an expression that is a name; otherwise None."""
    return node.id if isinstance(node, ast.Name) else None


def is_membership(node: ast.Compare) -> bool:
    """Return whether a comparison is ``x in y`` or ``x not in y``."""
    return len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn))


class Rename(ast.NodeTransformer):
    """Replaces names by others."""

    def __init__(self, names: dict[str, str]):
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)


def loop(target: ast.expr, items: ast.expr, body: list[ast.stmt]) -> ast.For:
    return ast.For(target, items, body, [])


def put(array: str, place: ast.expr, value: ast.expr) -> ast.stmt:
    statement = Put(named(array), place, value)
    statement.key = array
    return statement


def new_list(length: ast.expr, key: str) -> ast.expr:
    made = NewList(length)
    made.key = key
    return made


def copied(node: Any) -> Any:
    return copy.deepcopy(node)


def placed(node: Any, like: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(node, like))
