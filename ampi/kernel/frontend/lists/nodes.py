"""Nodes of the syntax tree for lists as arrays, and functions that make statements.

Passes over source write them (`spelling`); ``language.list_nodes`` builds IR of them.
"""

from __future__ import annotations

import ast
import copy
from typing import Any


class NewList(ast.expr):
    """An array with room for ``length`` numbers, of the type of those that are put into the list ``key``."""

    _fields = ("length",)
    key: str


class Length(ast.expr):
    """The number of iterations of a loop over ``iter``."""

    _fields = ("iter",)


class Filled(ast.expr):
    """The first elements of a list."""

    _fields = ("list", "count")


class Elements(ast.expr):
    """An array of the numbers in a list."""

    _fields = ("list",)


class Position(ast.expr):
    """An index of a list with ``count`` items, counted from the start."""

    _fields = ("index", "count")


class Known(ast.expr):
    """A function, whatever its name means in the program."""

    _fields = ()

    def __init__(self, function: Any = None):
        super().__init__()
        self.function = function


class Put(ast.stmt):
    """``list[place] = value``."""

    _fields = ("list", "place", "value")
    key: str


class Longer(ast.stmt):
    """Room in a list for one item more than ``count``."""

    _fields = ("list", "count")


def assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([named(name, ast.Store())], value)


def increase(name: str, number: ast.expr | None = None) -> ast.stmt:
    return assign(name, ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), number or ast.Constant(1)))


def named(name: str, context: ast.expr_context | None = None) -> ast.Name:
    return ast.Name(name, context or ast.Load())


def name_of(node: Any) -> str | None:
    """The name that an expression is, if it is one."""
    return node.id if isinstance(node, ast.Name) else None


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
