"""Lengths of lists that grow: upper bounds, and program slices that count items (see `growing_lists`)."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np

from ampi.kernel.frontend.lists.evaluate_once import known_by
from ampi.kernel.frontend.lists.nodes import Length, Put, assign, copied, increase, name_of, named, placed

CHANGES = {"append": 1, "extend": 1, "insert": 2, "pop": (0, 1), "clear": 0, "reverse": 0, "sort": 0}
"""The methods that change a list, and the numbers of arguments that they take."""


def change(node: ast.AST, name: str) -> str | None:
    """The method by which a call, or a statement that is a call, changes the list; None if it does not."""
    call = node.value if isinstance(node, ast.Expr) else node
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and not call.keywords):
        return None
    number = CHANGES.get(call.func.attr)
    if number is None or name_of(call.func.value) != name:
        return None
    fits = len(call.args) in (number if isinstance(number, tuple) else (number,))
    return call.func.attr if fits else None


def started(statement: ast.AST) -> str | None:
    """The name of the list that a statement creates."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        value = statement.value
        repeated = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List)
        if isinstance(value, (ast.List, ast.ListComp)) or repeated:
            return name_of(statement.targets[0])
    return None


def _all_started(node: ast.AST) -> set[str | None]:
    """The names of all lists that a statement creates: ``l, m = [], []``."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            return {started(ast.Assign([t], v)) for t, v in zip(targets, values)}
    return {started(node)}


def is_display(node: ast.AST) -> bool:
    """Return whether an expression is ``[x, y]`` or ``(x, y)``."""
    return isinstance(node, (ast.List, ast.Tuple)) and not any(isinstance(v, ast.Starred) for v in node.elts)


def is_addition(node: ast.AST, name: str) -> bool:
    """Return whether a statement is ``l += m``."""
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and name_of(node.target) == name


def is_deletion(node: ast.AST, name: str) -> bool:
    """Return whether a statement is ``del l[i]``."""
    if not (isinstance(node, ast.Delete) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript)):
        return False
    target = node.targets[0]
    return name_of(target.value) == name and not isinstance(target.slice, (ast.Slice, ast.Tuple))


def changes(statement: ast.AST, name: str) -> bool:
    return any(change(n, name) is not None or is_deletion(n, name) or is_addition(n, name) for n in ast.walk(statement))


def mentions(statement: ast.AST, name: str) -> bool:
    return any(name_of(n) == name for n in ast.walk(statement))


def stored(*statements: ast.AST) -> set[str]:
    """The names that statements assign, and those of arrays whose elements they assign."""
    found = set()
    for n in (n for s in statements for n in ast.walk(s)):
        if isinstance(n, (ast.Name, ast.Subscript, ast.Attribute)) and isinstance(n.ctx, ast.Store):
            while isinstance(n, (ast.Subscript, ast.Attribute)):
                n = n.value
            found.add(name_of(n) or "")
    return found


def loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


# ------------------------------------------------------------------------------------------------- bounds on lengths


class Room:
    """Upper bounds of the number of items that statements add to the list ``name``."""

    def __init__(self, name: str):
        self.name = name

    def of(self, body: list[ast.stmt], assigned: set[str]) -> ast.expr | None:
        """The bound for statements in loops that assign the names ``assigned``; None if it is unknown."""
        total: ast.expr | None = ast.Constant(0)
        for s in body:
            more: ast.expr | None = ast.Constant(0)
            if change(s, self.name) in ("append", "insert"):
                more = ast.Constant(1)
            elif change(s, self.name) == "extend" or is_addition(s, self.name):
                more = self.length(s.value.args[0] if isinstance(s, ast.Expr) else s.value, assigned)
            elif started(s) == self.name:
                value = s.value
                more = ast.Constant(len(value.elts)) if isinstance(value, ast.List) else None
            elif isinstance(s, ast.While) and self.shrinks(s):
                more = ast.Constant(_effect(s.body, self.name)[1])
            elif isinstance(s, ast.For) and changes(s, self.name):
                inner = self.of(s.body, assigned | stored(s))
                rest = self.of(s.orelse, assigned)
                trips = self.length(s.iter, assigned)
                if inner is None or rest is None or trips is None:
                    return None
                restarts = bool(s.body) and started(s.body[0]) == self.name
                more = added(rest, inner if restarts else _product(trips, inner))
            elif isinstance(s, ast.If):
                more = self.of([*s.body, *s.orelse], assigned)
            elif isinstance(s, ast.While) and changes(s, self.name):
                more = None
            if more is None:
                return None
            total = added(total, more)
        return total

    def shrinks(self, loop: ast.While) -> bool:
        """Return whether no iteration leaves more items in the list than before."""
        effect = None if loop.orelse else _effect(loop.body, self.name)
        return effect is not None and effect[0] <= 0

    def length(self, items: ast.expr, assigned: set[str]) -> ast.expr | None:
        """The number of iterations of a loop; None if it depends on the names ``assigned`` or on the list."""
        if is_display(items):
            return ast.Constant(len(items.elts))
        if isinstance(items, ast.ListComp) and len(items.generators) == 1:
            return self.length(items.generators[0].iter, assigned)
        if isinstance(items, ast.ListComp) or loaded(items) & (assigned | {self.name}):
            return None
        return Length(copied(items))


def _effect(body: list[ast.stmt], name: str) -> tuple[int, int] | None:
    """Bounds of a list's growth by statements: at their end, and at any time; None if they are unknown."""
    net = peak = 0
    for s in body:
        if isinstance(s, (ast.Break, ast.Continue, ast.While, ast.For)) and (mentions(s, name) or not _is_loop(s)):
            return None
        if started(s) == name or is_addition(s, name) or change(s, name) in ("extend", "clear"):
            return None
        if isinstance(s, ast.If):
            branches = [_effect(s.body, name), _effect(s.orelse, name)]
            if None in branches or change(s.test, name):
                return None
            more, most = (max(way[k] for way in branches if way) for k in (0, 1))
        else:
            more = is_addition(s, name) - sum(change(n, name) == "pop" for n in ast.walk(s) if isinstance(n, ast.Call))
            more += (change(s, name) in ("append", "insert")) - is_deletion(s, name)
            most = more
        net, peak = net + more, max(peak, net + most)
    return net, peak


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, (ast.For, ast.While))


def added(a: ast.expr, b: ast.expr) -> ast.expr:
    if isinstance(a, ast.Constant) and isinstance(b, ast.Constant):
        return ast.Constant(a.value + b.value)
    if isinstance(a, ast.Constant) and a.value == 0:
        return b
    return a if isinstance(b, ast.Constant) and b.value == 0 else ast.BinOp(a, ast.Add(), b)


def _product(a: ast.expr, b: ast.expr) -> ast.expr:
    if isinstance(b, ast.Constant) and b.value in (0, 1):
        return a if b.value else b
    return ast.BinOp(a, ast.Mult(), b)


# ---------------------------------------------------------------------------------------------- counting beforehand


TOO_LONG = "a list became longer than was counted"


def _ends_early(node: ast.AST) -> bool:
    match node:
        case ast.Raise(exc=ast.Call(args=[ast.Constant(value=text)])) if text == TOO_LONG:
            return False  # the check of the room of a list that was counted before
    return isinstance(node, (ast.Return, ast.Raise, ast.Yield, ast.Try, ast.With))


class _Unpredictable(Exception):
    """The length of the list cannot be computed beforehand."""


class Counting:
    """The program slice of a statement that counts the items it adds to a list, with new names."""

    def __init__(self, spelling: Any, room: Room, counted: str):
        self.spelling, self.room, self.counted = spelling, room, counted
        self.name, self.fresh = room.name, spelling.fresh
        self.needed: set[str] = set()

    def statements(self, statement: ast.stmt) -> list[ast.stmt] | None:
        try:
            while True:
                before = set(self.needed)
                sliced = self.slice([copied(statement)])
                if before == self.needed:
                    break
        except _Unpredictable:
            return None
        if self.name in self.needed or any(map(_ends_early, ast.walk(statement))):
            return None
        elements = {
            name_of(_root(n))
            for n in ast.walk(statement)
            if isinstance(n, (ast.Subscript, ast.Attribute)) and isinstance(n.ctx, ast.Store)
        }
        if elements & self.needed or not all(self.is_pure(n) for k in sliced for n in ast.walk(k)):
            return None
        reads = any(isinstance(n, ast.Subscript) for k in sliced for n in ast.walk(k))
        lists = {name for n in ast.walk(self.spelling.source.definition) for name in _all_started(n)}
        writes = elements or not all(
            self.is_pure(n) or any(change(n, name) for name in lists) for n in ast.walk(statement)
        )
        if reads and writes:  # arrays may be parts of one another
            return None
        assigned = stored(*sliced) - {self.counted}
        names = [n.id for k in sliced for n in ast.walk(k) if isinstance(n, ast.Name) and n.id in assigned]
        renamed = {n: self.fresh(n) for n in dict.fromkeys(names)}  # in their order in the program
        earlier = self.assigned_before(statement)
        begin = [assign(renamed[n], named(n)) for n in renamed if n in earlier]
        for n in (n for k in sliced for n in ast.walk(k)):
            if isinstance(n, ast.Name) and n.id in renamed:
                n.id = renamed[n.id]
        return [placed(s, statement) for s in (assign(self.counted, ast.Constant(0)), *begin, *sliced)]

    def assigned_before(self, statement: ast.stmt) -> set[str]:
        definition = self.spelling.source.definition
        names = {n.arg for n in ast.walk(definition.args) if isinstance(n, ast.arg)}
        place = (statement.lineno, statement.col_offset)
        return names | {
            n.id
            for n in ast.walk(definition)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and (n.lineno, n.col_offset) < place
        }

    def slice(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [part for s in body for part in self.slice_of(s)]

    def slice_of(self, s: ast.stmt) -> list[ast.stmt]:
        name = self.name
        if change(s, name) in ("append", "insert"):
            return [placed(increase(self.counted), s)]
        if change(s, name) == "extend" or is_addition(s, name):
            items = s.value.args[0] if isinstance(s, ast.Expr) else s.value
            length = self.room.length(items, set())
            if length is None:
                raise _Unpredictable
            self.needed |= loaded(length)
            return [placed(increase(self.counted, length), s)]
        if started(s) == name:
            return [placed(increase(self.counted, ast.Constant(len(getattr(s.value, "elts", [])))), s)]
        match s:
            case ast.Assign(targets=targets, value=value):
                return self.assignment(s, targets, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                return self.assignment(s, [target], value)
            case ast.AugAssign(target=ast.Name(id=target), value=value):
                if target not in self.needed:
                    return []
                self.needed |= loaded(value)
            case ast.If(test=test, body=body, orelse=orelse):
                then, otherwise = self.slice(body), self.slice(orelse)
                only_counts = all(_target(k) == self.counted for k in (*then, *otherwise))
                if only_counts and (mentions(test, name) or not all(map(self.is_pure, ast.walk(test)))):
                    return [*then, *otherwise]
                if not (then or otherwise):
                    return []
                self.needed |= loaded(test)
                s.body, s.orelse = then or [placed(ast.Pass(), s)], otherwise
            case ast.For(target=target, iter=items, body=body, orelse=orelse):
                inner, rest = self.slice(body), self.slice(orelse)
                if not _matters(inner, rest):
                    return []
                self.needed |= loaded(items)
                s.body, s.orelse = inner or [placed(ast.Pass(), s)], rest
            case ast.While(test=test, body=body, orelse=orelse):
                inner, rest = self.slice(body), self.slice(orelse)
                if not _matters(inner, rest):
                    return []
                self.needed |= loaded(test)
                s.body, s.orelse = inner or [placed(ast.Pass(), s)], rest
            case ast.Break() | ast.Continue():
                pass
            case Put(list=ast.Name(id=other)) if other in self.needed:
                raise _Unpredictable
            case _:
                return []
        return [s]

    def assignment(self, s: ast.stmt, targets: list[ast.expr], value: ast.expr) -> list[ast.stmt]:
        names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        if not names & self.needed:
            return []
        if any(isinstance(n, (ast.Subscript, ast.Attribute)) for t in targets for n in ast.walk(t)):
            raise _Unpredictable
        self.needed |= loaded(value)
        return [s]

    def is_pure(self, node: ast.AST) -> bool:
        """Return whether an expression may be evaluated twice: it calls no function that could write."""
        if isinstance(node, ast.NamedExpr):
            return False
        if not isinstance(node, ast.Call):
            return True
        found = known_by(node.func, self.spelling.known)
        module = getattr(found, "__module__", None) or ""
        of_numpy = isinstance(found, np.ufunc) or module.partition(".")[0] == "numpy"
        return found is not None and (module in ("builtins", math.__name__) or (of_numpy and "random" not in module))


def _matters(*blocks: list[ast.stmt]) -> bool:
    """Return whether the slice of a loop does anything but leave the loop."""
    return any(not isinstance(n, (ast.Break, ast.Continue, ast.If, ast.Pass))
               for b in blocks for s in b for n in ast.walk(s) if isinstance(n, ast.stmt))  # fmt: skip


def _target(statement: ast.stmt) -> str | None:
    return name_of(statement.targets[0]) if isinstance(statement, ast.Assign) else None


def _root(node: ast.AST) -> ast.AST:
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node
