"""Sets of numbers, spelled out as tuples, arrays and lists in which is looked, before anything is typed.

* ``x in {1, 2}``, and a name for such a set, is a tuple;
* ``s = set(a)`` is the array of what is in ``a``, each once;
* ``s = set()`` to which numbers are added is a list: ``s.add(x)`` is ``if x not in s: s.append(x)``;
* ``a & b``, ``a - b`` and ``a.intersection(b)`` are the array of what is in ``a`` and (not) in ``b``, ``a | b`` that of
  both.

Numba goes through sets in the order of hashes, which is not followed here: loops over sets are refused, as is all but
looking, adding, counting and this.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ampi.kernel.frontend.lists.nodes import Known, assign, loop, name_of, named, placed

ADVICE = "a set here can be looked in (x in s), added to, counted, intersected and united; use a tuple, or np.unique"
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
    """Rewrite a function in place."""
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
    """``x = set(x)``, ``s = s | t``: from there on the set has a name of its own."""
    body = definition.body
    for k, s in enumerate(body):
        if not (_binds(s) and makes(s.value)):  # type: ignore[attr-defined]
            continue
        name = s.targets[0].id  # type: ignore[attr-defined]
        if any(isinstance(n, ast.Name) and n.id == name for earlier in (*body[:k], s.value) for n in ast.walk(earlier)):  # type: ignore[attr-defined]
            rename = _Rename(name, fresh(name))
            s.targets = [rename.visit(s.targets[0])]  # type: ignore[attr-defined]
            body[k + 1 :] = map(rename.visit, body[k + 1 :])


class _Rename(ast.NodeTransformer):
    """Replaces one name by another."""

    def __init__(self, name: str, other: str) -> None:
        self.name, self.other = name, other

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.other, node.ctx), node) if node.id == self.name else node


def _makes_a_set(node: ast.AST, known: dict[str, Any], names: set[str]) -> bool:
    """Return whether an expression is a new set; ``names`` are those of sets."""
    if isinstance(node, ast.Set):
        return not any(isinstance(v, ast.Starred) for v in node.elts)
    parts = _combined(node)
    if parts is not None:
        return all(name_of(p) in names or _makes_a_set(p, known, names) for p in parts[1:])
    is_call = isinstance(node, ast.Call) and not node.keywords and len(node.args) <= 1
    return is_call and known.get(name_of(node.func) or "") in (set, frozenset)  # type: ignore[attr-defined]


def _combined(node: ast.AST) -> tuple[Any, ast.expr, ast.expr] | None:
    """An operation of two sets, and these; None for anything else."""
    match node:
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            return type(op), left, right
        case ast.Call(func=ast.Attribute(value=left, attr=attr), args=[right], keywords=[]) if attr in _METHODS:
            return _METHODS[attr], left, right
    return None


def _binds(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)


def _is_membership(node: ast.Compare) -> bool:
    return len(node.ops) == 1 and isinstance(node.ops[0], (ast.In, ast.NotIn))


class _Uses(ast.NodeVisitor):
    """The uses of sets that have names."""

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
            if not (_is_membership(node) and name_of(other) in self.names):
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
            value = self.array(items) if as_array else self.looked_in(items)
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
        if not (_is_membership(node) and self.makes(node.comparators[0])):
            return self.generic_visit(node)
        left, found = self.visit(node.left), node.comparators[0]
        if _combined(found) and any(isinstance(n, (ast.Call, ast.NamedExpr)) for n in ast.walk(left)):
            self.fail(node, "what a call returns, looked for in sets that are combined", "give a name to it")
        among = self.among(left, found)
        return placed(ast.UnaryOp(ast.Not(), among) if isinstance(node.ops[0], ast.NotIn) else among, node)

    def among(self, value: ast.expr, made: Any) -> ast.expr:
        """The test whether a number is in a set; combined sets are not built for it."""
        parts = _combined(made)
        if parts is None:
            items = made if isinstance(made, ast.Name) else self.items(made, [])
            return ast.Compare(value, [ast.In()], [items if isinstance(items, ast.Name) else self.looked_in(items)])
        operation, *operands = parts
        left, right = (self.among(value, p) for p in operands)
        if operation is ast.BitXor:
            return ast.Compare(left, [ast.NotEq()], [right])
        if operation is ast.Sub:
            right = ast.UnaryOp(ast.Not(), right)
        return ast.BoolOp(ast.Or() if operation is ast.BitOr else ast.And(), [left, right])

    def items(self, node: Any, before: list[ast.stmt]) -> ast.expr:
        """The items of a new set; ``before`` receives the statements that compute them."""
        parts = _combined(node)
        if parts is not None:
            operation, *operands = parts
            left, right = (self.operand(p, before) for p in operands)
            if operation is ast.BitAnd:
                return self.kept(left, ast.In(), right)
            if operation is ast.Sub:
                return self.kept(left, ast.NotIn(), right)
            arrays = [self.array(left), self.array(right)]
            if operation is ast.BitXor:
                arrays = [self.kept(left, ast.NotIn(), right), self.kept(right, ast.NotIn(), left)]
            return ast.Call(Known(np.append), arrays, [])
        elements = node.elts if isinstance(node, ast.Set) else node.args
        elements = [self.visit(e) for e in elements]
        if isinstance(node, ast.Set) or not elements:
            return ast.Tuple(elements, ast.Load())
        return elements[0]

    def looked_in(self, items: ast.expr) -> ast.expr:
        return items if isinstance(items, ast.Tuple) else self.array(items)

    def operand(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """The name of a set, or one for a set without."""
        if name_of(node) in self.names:
            return node
        name = self.fresh("set")
        before.append(assign(name, self.array(self.items(node, before))))
        return named(name)

    def kept(self, items: ast.expr, op: ast.cmpop, others: ast.expr) -> ast.expr:
        """The array of those items that are (not) among others."""
        value = self.fresh("value")
        return self.listed(items, value, ast.Compare(named(value), [op], [others]))

    def listed(self, items: ast.expr, value: str, *conditions: ast.expr) -> ast.expr:
        """The array of those items, each called ``value``, for which conditions hold."""
        generator = ast.comprehension(named(value, ast.Store()), items, list(conditions), 0)
        return ast.Call(Known(np.array), [ast.ListComp(named(value), [generator])], [])

    def array(self, items: ast.expr) -> ast.expr:
        """The array of what is in it, each once."""
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
