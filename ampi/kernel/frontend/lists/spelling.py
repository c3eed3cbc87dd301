"""Lists of numbers, rewritten as arrays that are filled, before type inference.

* ``list()``, and ``List()`` and ``List.empty_list(int64)`` of ``numba.typed``, become ``[]``; ``list(x)`` becomes
  ``[v for v in x]`` if x is a generator, ``range``, ``enumerate`` or ``zip``, or if the list grows or shrinks;
* ``[f(x) for x in a if x > 0]`` becomes an array with enough room, and a loop that puts the values into it;
* ``l = [x0]`` and statements that add or remove items become an array with enough room, and a count of its items (see
  `growing_lists`);
* ``l = [x, y]`` whose elements are assigned becomes an array.

Operations that have another meaning for arrays, such as ``2 * l``, raise an error when they are parsed (see `is_list`).
"""

from __future__ import annotations

import ast
from typing import Any

from numba import typed, types
from numba.np.numpy_support import as_dtype

from ampi.kernel.frontend.base.source import Source
from ampi.kernel.frontend.lists.evaluate_once import EvaluateOnce, draws, known_by, once
from ampi.kernel.frontend.lists.growing_lists import Growing
from ampi.kernel.frontend.lists.lengths import changes, started
from ampi.kernel.frontend.lists.nodes import (
    Elements,
    Known,
    Length,
    assign,
    copied,
    increase,
    loop,
    name_of,
    named,
    new_list,
    placed,
    put,
)
from ampi.kernel.frontend.lists.sets import spell_sets
from ampi.kernel.ir.names import Names

# --------------------------------------------------------------------------------------------------- rewriting


def spell_lists(source: Source, taken: list[str], known: dict[str, Any]) -> None:
    """Rewrite ``source.definition`` in place; ``known`` has the values of the names around it."""
    spelling = _Spelling(source, Names(taken), known)
    definition = source.definition
    spell_sets(definition, known, spelling.fresh, source.fail)
    EvaluateOnce(known, spelling.fresh).visit(definition)
    _spell_calls(definition, known)
    _spell_copies(definition, known)
    definition.body = spelling.block(definition.body)
    spelling.assigned_elements(definition)


class _Spelling:
    def __init__(self, source: Source, names: Names, known: dict[str, Any]):
        self.source = source
        self.known = known
        self.fresh = names.fresh

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        body = self.grown([one for s in body for one in _one_by_one(s)])
        result: list[ast.stmt] = []
        for statement in body:
            for field in ("body", "orelse"):
                inner = getattr(statement, field, None)
                if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                    setattr(statement, field, self.block(inner))
            result += self.comprehensions(statement)
            result.append(statement)
        return result

    # comprehensions

    def comprehensions(self, statement: ast.stmt) -> list[ast.stmt]:
        """The loops for the comprehensions in a statement, in which these are replaced by the names of their lists."""
        before: list[ast.stmt] = []
        fields = {ast.For: ("iter",), ast.If: ("test",)}.get(type(statement), ("value", "test", "exc"))
        if isinstance(statement, (ast.While, ast.FunctionDef)):
            return before
        for field in fields:
            value = getattr(statement, field, None)
            if isinstance(value, ast.expr):
                setattr(statement, field, self.without(value, before))
        return before

    def without(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        if isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda)):
            return node  # not always evaluated
        if isinstance(node, ast.ListComp):
            one = len(node.generators) == 1
            return self.comprehension(node, before) if one else self.nested_comprehension(node, before)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.without(value, before))
            elif isinstance(value, list):
                value[:] = [self.without(v, before) if isinstance(v, ast.expr) else v for v in value]
        return node

    def comprehension(self, node: ast.ListComp, before: list[ast.stmt]) -> ast.expr:
        (generator,) = node.generators
        if any(draws(test, self.known) for test in generator.ifs):
            return self.nested_comprehension(node, before)
        generator.iter = self.without(generator.iter, before)
        drawn, generator.iter = once(generator.iter, self.known, self.fresh)
        before += drawn
        self.rename_bound(node)
        array, count = self.fresh("list"), self.fresh("count")
        inside: list[ast.stmt] = []
        element = self.without(node.elt, inside)
        if inside:
            return node
        size: ast.expr = Length(generator.iter)
        if generator.ifs:
            number = self.fresh("number")
            more = self.when(generator.ifs, [increase(number)])
            before += [assign(number, ast.Constant(0)), loop(copied(generator.target), copied(generator.iter), more)]
            size = named(number)
        fill = [put(array, named(count), element), increase(count)]
        filling = loop(generator.target, copied(generator.iter), self.when(generator.ifs, fill))
        before += [assign(array, new_list(size, array)), assign(count, ast.Constant(0)), filling]
        for statement in before:
            placed(statement, node)
        return placed(named(array), node)

    def nested_comprehension(self, node: ast.ListComp, before: list[ast.stmt]) -> ast.expr:
        """A comprehension with several loops, as a list that grows in them."""
        self.rename_bound(node)
        name = self.fresh("list")
        inside: list[ast.stmt] = []
        element = self.without(node.elt, inside)
        append = ast.Call(ast.Attribute(named(name), "append", ast.Load()), [element], [])
        body: list[ast.stmt] = [*inside, ast.Expr(append)]
        for generator in reversed(node.generators):
            drawn, generator.iter = once(generator.iter, self.known, self.fresh)
            body = [*drawn, loop(generator.target, generator.iter, self.when(generator.ifs, body))]
        begin = assign(name, ast.List([], ast.Load()))
        before += self.grown([placed(s, node) for s in (begin, *body)])
        return placed(named(name), node)

    def rename_bound(self, node: ast.ListComp) -> None:
        """Give the variables of a comprehension new names, since it has a separate scope."""
        targets = [g.target for g in node.generators]
        names = {n.id: self.fresh(n.id) for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        later = [g.iter for g in node.generators[1:]]
        for part in (*targets, *later, node.elt, *(i for g in node.generators for i in g.ifs)):
            for n in ast.walk(part):
                if isinstance(n, ast.Name) and n.id in names:
                    n.id = names[n.id]

    def when(self, conditions: list[ast.expr], body: list[ast.stmt]) -> list[ast.stmt]:
        for condition in reversed(conditions):
            body = [ast.If(copied(condition), body, [])]
        return body

    # lists that grow

    def grown(self, body: list[ast.stmt]) -> list[ast.stmt]:
        for number, statement in enumerate(body):
            name = started(statement)
            if name is None:
                continue
            end = next((k for k in range(number + 1, len(body)) if started(body[k]) == name), len(body))
            if any(changes(s, name) for s in body[number + 1 : end]):
                return self.grown([*Growing(self, body[:end], number, name).block(), *body[end:]])
        return body

    # lists whose elements are assigned

    def assigned_elements(self, definition: ast.AST) -> None:
        stored = {
            n.value.id
            for n in ast.walk(definition)
            if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name)
        }
        for n in ast.walk(definition):
            if not (isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name)):
                continue
            value = n.value
            if n.targets[0].id in stored and ((isinstance(value, ast.List) and value.elts) or _is_repeated(value)):
                n.value = placed(Elements(value), value)


def _one_by_one(statement: ast.stmt) -> list[ast.stmt]:
    """Split ``l, m = [], [x]`` into two assignments."""
    match statement:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            names = {t.id for t in targets if isinstance(t, ast.Name)}
            used = {n.id for v in values for n in ast.walk(v) if isinstance(n, ast.Name)}
            if len(names) == len(targets) and not names & used and any(isinstance(v, ast.List) for v in values):
                return [placed(ast.Assign([t], v), statement) for t, v in zip(targets, values)]
    return [statement]


def _spell_calls(definition: ast.AST, known: dict[str, Any]) -> None:
    """Replace ``list()``, and ``List()`` and ``List.empty_list(float64)`` of ``numba.typed``, by ``[]``.

    Items added to a list of a given type are converted to that type.
    """
    given: dict[str, set[Any]] = {}
    for node in ast.walk(definition):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        call, item = node.value, None
        found = known_by(call.func, known)
        if call.keywords or len(call.args) > 1:
            continue
        if call.args:
            item = known_by(call.args[0], known)
            if found != typed.List.empty_list or not isinstance(item, types.Number):
                continue
        elif found is not list and found is not typed.List:
            continue
        node.value = ast.copy_location(ast.List([], ast.Load()), call)
        for target in node.targets:
            if item is not None and isinstance(target, ast.Name):
                given.setdefault(target.id, set()).add(item)
    for node in ast.walk(definition):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append" | "insert"), args=[*_, value]):
                for item in given.get(name, ()):
                    node.args[-1] = placed(ast.Call(Known(as_dtype(item).type), [value], []), value)


def _spell_copies(definition: ast.FunctionDef, known: dict[str, Any]) -> None:
    """Replace ``list(x)`` by a comprehension if x is a generator, range, enumerate or zip, or if the list changes."""

    def is_copy(node: ast.AST) -> bool:
        is_call = isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords
        return is_call and known_by(node.func, known) is list  # type: ignore[attr-defined]

    grow = {
        id(node.value)
        for node in ast.walk(definition)
        if isinstance(node, ast.Assign) and is_copy(node.value)
        for name in map(name_of, node.targets)
        if name is not None and any(changes(s, name) for s in definition.body)
    }

    class Copies(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            grows = id(node) in grow
            self.generic_visit(node)
            if not is_copy(node):
                return node
            (copied,) = node.args
            if isinstance(copied, ast.GeneratorExp):
                return placed(ast.ListComp(copied.elt, copied.generators), node)
            of_numbers = isinstance(copied, ast.Call) and known_by(copied.func, known) in (range, enumerate, zip)
            if not (of_numbers or grows):
                return node
            each = ast.comprehension(named("item", ast.Store()), copied, [], 0)
            return placed(ast.ListComp(named("item"), [each]), node)

    Copies().visit(definition)


def _is_repeated(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List)
