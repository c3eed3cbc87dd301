"""Sets of numbers, rewritten as tuples, arrays and lists, before type inference.

* the set of ``x in {1, 2}``, or a name for such a set, becomes a tuple;
* ``s = set(a)`` becomes the array of the distinct numbers in ``a``;
* ``s = set()`` to which numbers are added becomes a list: ``s.add(x)`` is ``if x not in s: s.append(x)``;
* ``a & b``, ``a - b`` and ``a.intersection(b)`` become the array of the numbers in ``a`` that are (not) in ``b``,
  ``a | b`` the array of the numbers in either, and ``a ^ b`` of those in only one.

Numba iterates over sets in the order of hashes, which arrays do not reproduce: loops over sets raise an error, as does
everything that is not listed here.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ampi.kernel.frontend.lists.nodes import Known, Rename, assign, is_membership, loop, name_of, named, placed

ADVICE = "sets support x in s, s.add(x), len(s) and operations with other sets here; use a tuple, or np.unique"
_METHODS = {
    "intersection": ast.BitAnd,
    "difference": ast.Sub,
    "union": ast.BitOr,
    "symmetric_difference": ast.BitXor,
}
_OPERATORS = tuple(_METHODS.values())


def spell_sets(
    definition: ast.FunctionDef, known: dict[str, Any], fresh: Callable[[str], str], fail: Callable[..., Any]
) -> None:
    """Rewrite the sets of a function in place."""
    names: set[str] = set()
    makes = lambda node: _makes_a_set(node, known, names)

    def collect() -> None:
        names.clear()
        while found := {s.targets[0].id for s in ast.walk(definition) if _binds(s) and makes(s.value)} - names:  # type: ignore[attr-defined]
            names.update(found)

    collect()
    _name_apart(definition, makes, fresh)
    collect()
    uses = _Uses(names, makes)
    uses.visit(definition)
    for node in uses.others:
        fail(node, f"the set '{node.id}' as a whole", ADVICE)
    _Spelling(names, uses, makes, fresh, fail).visit(definition)


def _name_apart(definition: ast.FunctionDef, makes: Callable[[ast.AST], bool], fresh: Callable[[str], str]) -> None:
    """Give a set that reuses a name a new one from there on: ``x = set(x)``, ``s = s | t``."""
    body = definition.body
    for k, s in enumerate(body):
        if not (_binds(s) and makes(s.value)):  # type: ignore[attr-defined]
            continue
        name = s.targets[0].id  # type: ignore[attr-defined]
        if any(isinstance(n, ast.Name) and n.id == name for earlier in (*body[:k], s.value) for n in ast.walk(earlier)):  # type: ignore[attr-defined]
            rename = Rename({name: fresh(name)})
            s.targets = [rename.visit(s.targets[0])]  # type: ignore[attr-defined]
            body[k + 1 :] = map(rename.visit, body[k + 1 :])


def _makes_a_set(node: ast.AST, known: dict[str, Any], names: set[str]) -> bool:
    """Return whether an expression makes a set; ``names`` are the names of sets."""
    if isinstance(node, ast.Set):
        return not any(isinstance(v, ast.Starred) for v in node.elts)
    parts = _combined(node)
    if parts is not None:
        return all(name_of(p) in names or _makes_a_set(p, known, names) for p in parts[1:])
    is_call = isinstance(node, ast.Call) and not node.keywords and len(node.args) <= 1
    return is_call and known.get(name_of(node.func) or "") in (set, frozenset)  # type: ignore[attr-defined]


def _combined(node: ast.AST) -> tuple[Any, ast.expr, ast.expr] | None:
    """The operator and the two operands of an operation on sets; None for anything else."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            return type(op), left, right
        case ast.Call(func=ast.Attribute(value=left, attr=attr), args=[right], keywords=[]) if attr in _METHODS:
            return _METHODS[attr], left, right
    return None


def _binds(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)


class _Uses(ast.NodeVisitor):
    """Collects the uses of named sets."""

    def __init__(self, names: set[str], makes: Callable[[ast.AST], bool]) -> None:
        self.names, self.makes = names, makes
        self.added: set[str] = set()
        self.counted: set[str] = set()
        self.bound: Counter[str] = Counter()
        self.others: list[ast.Name] = []

    def visit(self, node: ast.AST) -> None:
        parts = _combined(node)
        if parts is None or not self.makes(node):
            return super().visit(node)
        for part in parts[1:]:
            if name_of(part) not in self.names:
                self.visit(part)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not (_binds(node) and name_of(node.targets[0]) in self.names and self.makes(node.value)):
            return self.generic_visit(node)
        self.bound[node.targets[0].id] += 1  # type: ignore[attr-defined]
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="add"), args=[x]) if name in self.names:
                self.added.add(name)
                self.visit(x)
            case _:
                self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        self.visit(node.left)
        for other in node.comparators:
            if not (is_membership(node) and name_of(other) in self.names):
                self.visit(other)

    def visit_Call(self, node: ast.Call) -> None:
        if name_of(node.func) == "len" and len(node.args) == 1 and name_of(node.args[0]) in self.names:
            self.counted.add(node.args[0].id)  # type: ignore[attr-defined]
        else:
            self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in self.names:
            self.others.append(node)


class _Spelling(ast.NodeTransformer):
    def __init__(
        self,
        names: set[str],
        uses: _Uses,
        makes: Callable[[ast.AST], bool],
        fresh: Callable[[str], str],
        fail: Callable[..., Any],
    ) -> None:
        self.names, self.uses, self.makes, self.fresh, self.fail = names, uses, makes, fresh, fail

    def visit_Assign(self, node: ast.Assign) -> Any:
        name = name_of(node.targets[0])
        if name not in self.names or not self.makes(node.value):
            return self.generic_visit(node)
        before: list[ast.stmt] = []
        items = self.items(node.value, before)
        if name not in self.uses.added:
            as_array = name in self.uses.counted or self.uses.bound[name] > 1
            value = self.array(items) if as_array else self.searchable(items)
            return [placed(s, node) for s in (*before, assign(name, value))]
        made: list[ast.stmt] = [*before, assign(name, ast.List([], ast.Load()))]
        if isinstance(items, ast.Tuple):
            made += [s for item in items.elts for s in self.added(name, item)]
        else:
            value = self.fresh(name)
            made.append(loop(named(value, ast.Store()), items, self.added(name, named(value))))
        return [placed(s, node) for s in made]

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="add"), args=[x]) if name in self.names:
                return [placed(s, node) for s in self.added(name, self.visit(x))]
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        if not (is_membership(node) and self.makes(node.comparators[0])):
            return self.generic_visit(node)
        left, found = self.visit(node.left), node.comparators[0]
        if _combined(found) and any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(left)):
            self.fail(node, "the result of a call is searched for in several sets", "assign it to a name first")
        among = self.among(left, found)
        return placed(ast.UnaryOp(ast.Not(), among) if isinstance(node.ops[0], ast.NotIn) else among, node)

    def among(self, value: ast.expr, made: Any) -> ast.expr:
        """The test whether a number is in a set; operands of set operations are tested one by one."""
        parts = _combined(made)
        if parts is None:
            items = made if isinstance(made, ast.Name) else self.items(made, [])
            return ast.Compare(value, [ast.In()], [items if isinstance(items, ast.Name) else self.searchable(items)])
        operation, *operands = parts
        left, right = (self.among(value, p) for p in operands)
        if operation is ast.BitXor:
            return ast.Compare(left, [ast.NotEq()], [right])
        if operation is ast.Sub:
            right = ast.UnaryOp(ast.Not(), right)
        return ast.BoolOp(ast.Or() if operation is ast.BitOr else ast.And(), [left, right])

    def items(self, node: Any, before: list[ast.stmt]) -> ast.expr:
        """The items of a new set; statements that compute them are added to ``before``."""
        parts = _combined(node)
        if parts is not None:
            operation, *operands = parts
            left, right = (self.operand(p, before) for p in operands)
            if operation is ast.BitAnd:
                return self.filtered(left, ast.In(), right)
            if operation is ast.Sub:
                return self.filtered(left, ast.NotIn(), right)
            arrays = [self.array(left), self.array(right)]
            if operation is ast.BitXor:
                arrays = [self.filtered(left, ast.NotIn(), right), self.filtered(right, ast.NotIn(), left)]
            return ast.Call(Known(np.append), arrays, [])
        elements = node.elts if isinstance(node, ast.Set) else node.args
        elements = [self.visit(e) for e in elements]
        if isinstance(node, ast.Set) or not elements:
            return ast.Tuple(elements, ast.Load())
        return elements[0]

    def searchable(self, items: ast.expr) -> ast.expr:
        return items if isinstance(items, ast.Tuple) else self.array(items)

    def operand(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """The name of a set, or a new name for an unnamed one."""
        if name_of(node) in self.names:
            return node
        name = self.fresh("set")
        before.append(assign(name, self.array(self.items(node, before))))
        return named(name)

    def filtered(self, items: ast.expr, op: ast.cmpop, others: ast.expr) -> ast.expr:
        """The array of the items that are (or are not) among others."""
        value = self.fresh("value")
        return self.listed(items, value, ast.Compare(named(value), [op], [others]))

    def listed(self, items: ast.expr, value: str, *conditions: ast.expr) -> ast.expr:
        """The array of the items, each called ``value``, for which conditions hold."""
        generator = ast.comprehension(named(value, ast.Store()), items, list(conditions), 0)
        return ast.Call(Known(np.array), [ast.ListComp(named(value), [generator])], [])

    def array(self, items: ast.expr) -> ast.expr:
        """The array of the distinct items."""
        if isinstance(items, ast.Tuple):
            whole: ast.expr = ast.Call(Known(np.array), [ast.List(items.elts, ast.Load())], [])
        else:
            whole = self.listed(items, self.fresh("value"))
        return ast.Call(Known(np.unique), [whole], [])

    def added(self, name: str, item: ast.expr) -> list[ast.stmt]:
        value = self.fresh("value")
        absent = ast.Compare(named(value), [ast.NotIn()], [named(name)])
        append = ast.Expr(ast.Call(ast.Attribute(named(name), "append", ast.Load()), [named(value)], []))
        return [assign(value, item), ast.If(absent, [append], [])]
