"""Calls of the function itself as separate statements (A-normal form of these calls only; see `recursion.stack`).

::

    return a[i] + f(i - 1) * f(i - 2)         t = a[i]
                                              u = f(i - 1)
                                     ->       v = f(i - 2)
                                              return t + u * v

Elements of arrays that Python reads before a call, which may change them, are read before it here as well.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ampi.kernel.frontend.base.refusals import describe
from ampi.kernel.frontend.lists.nodes import Put, assign, copied, named, placed
from ampi.kernel.frontend.recursion.nodes import Call

_NOT_ALWAYS = (ast.NamedExpr, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Separate:
    """Makes the calls for which ``is_call`` is true separate statements."""

    def __init__(self, name: str, is_call: Callable[[Any], bool], fresh: Callable[[str], str], fail: Any):
        self.name, self.is_call, self.fresh, self.fail = name, is_call, fresh, fail

    def calls(self, node: ast.AST) -> bool:
        return any(self.is_call(n) for n in ast.walk(node))

    def refuse(self, node: ast.AST, where: str) -> Any:
        problem = f"a call of '{self.name}' itself in {where}"
        self.fail(node, problem, "assign its result to a name first, on a line of its own")

    # ------------------------------------------------------------------------------------------------- statements

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [placed(made, s) for s in statements for made in self.statement(s)]

    def statement(self, s: ast.stmt) -> list[ast.stmt]:
        if not self.calls(s):
            return [s]
        match s:
            case ast.Expr(value=value) if self.is_call(value):
                return self.call(value, None)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self.is_call(value):
                return self.call(value, name)
            case ast.Return(value=ast.IfExp(test=test, body=body, orelse=orelse)):
                branches = [placed(ast.Return(v), s) for v in (body, orelse)]
                return self.statement(placed(ast.If(test, branches[:1], branches[1:]), s))
            case ast.Assign(targets=targets, value=value):
                before, (s.value, *s.targets) = self.parts([value, *targets])
            case ast.AugAssign(target=target, op=op, value=value):
                return self.augmented(target, op, value)
            case ast.Expr(value=value) | ast.Return(value=value) | ast.AnnAssign(value=value):
                before, s.value = self.expression(value)
            case ast.Assert(test=test):
                before, s.test = self.expression(test)
            case Put(place=place, value=value):
                before, (s.place, s.value) = self.parts([place, value])
            case ast.If():
                before, s.test = self.expression(s.test)
                s.body, s.orelse = self.body(s.body), self.body(s.orelse)
            case ast.While():
                before, test = self.expression(s.test)
                s.body = self.body(s.body)
                if before:
                    out = ast.If(test, [ast.Pass()], [ast.Break()])
                    s.body, before = [*(placed(b, s) for b in (*before, out)), *s.body], []
                    s.test = ast.Constant(True)
            case ast.For():
                before, s.iter = self.expression(s.iter)
                s.body = self.body(s.body)
            case _:
                return self.refuse(s, describe(s))
        return [*before, s]

    def call(self, node: ast.Call, target: str | None) -> list[ast.stmt]:
        before, values = self.parts([*node.args, *(k.value for k in node.keywords)])
        number = len(node.args)
        keywords = [ast.keyword(k.arg, v) for k, v in zip(node.keywords, values[number:])]
        made = Call(ast.copy_location(ast.Call(node.func, values[:number], keywords), node))
        made.target = target
        return [*before, placed(made, node)]

    def augmented(self, target: Any, op: ast.operator, value: ast.expr) -> list[ast.stmt]:
        """``a[i] += f(x)``: Python reads the element before the call."""
        before: list[ast.stmt] = []
        if isinstance(target, ast.Subscript):
            pre, (target.value, target.slice) = self.parts([target.value, target.slice], all_of_them=True)
            before += pre
        old = copied(target)
        old.ctx = ast.Load()
        pre, (first, second) = self.parts([old, value])
        return [*before, *pre, ast.Assign([target], ast.BinOp(first, op, second))]

    # ------------------------------------------------------------------------------------------------- expressions

    def parts(self, nodes: list[Any], all_of_them: bool = False) -> tuple[list[ast.stmt], list[Any]]:
        """Statements that evaluate the calls in several expressions, and the expressions that remain."""
        last = max((k for k, n in enumerate(nodes) if self.calls(n)), default=-1)
        last = len(nodes) if all_of_them else last
        before: list[ast.stmt] = []
        values = []
        for k, node in enumerate(nodes):
            pre, value = self.expression(node)
            before += pre
            values.append(self.saved(value, before) if k < last else value)
        return before, values

    def saved(self, node: Any, before: list[ast.stmt]) -> Any:
        """A name for the value of an expression that a later call may change."""
        if isinstance(node, (ast.Slice, ast.Tuple, ast.keyword, ast.Starred)):
            for field, value in ast.iter_fields(node):
                if isinstance(value, ast.expr):
                    setattr(node, field, self.saved(value, before))
                elif isinstance(value, list):
                    value[:] = [self.saved(v, before) for v in value]
            return node
        if not any(isinstance(n, (ast.Subscript, ast.Call)) for n in ast.walk(node)):
            return node
        name = self.fresh("value")
        before.append(placed(assign(name, node), node))
        return placed(named(name), node)

    def expression(self, node: Any) -> tuple[list[ast.stmt], Any]:
        """Statements that evaluate the calls in an expression, and the expression that remains."""
        if node is None or not self.calls(node):
            return [], node
        if self.is_call(node):
            name = self.fresh("result")
            return self.call(node, name), placed(named(name), node)
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                before, test = self.expression(test)
                name = self.fresh("value")
                branches = [[*pre, assign(name, v)] for pre, v in map(self.expression, (body, orelse))]
                return [*before, placed(ast.If(test, *branches), node)], placed(named(name), node)
            case ast.BoolOp(op=op, values=[first, *others]):
                name = self.fresh("value")
                before, first = self.expression(first)
                made: list[ast.stmt] = []
                for other in reversed(others):
                    pre, value = self.expression(other)
                    test = named(name) if isinstance(op, ast.And) else ast.UnaryOp(ast.Not(), named(name))
                    made = [ast.If(test, [*pre, assign(name, value), *made], [])]
                made = [placed(m, node) for m in (assign(name, first), *made)]
                return [*before, *made], placed(named(name), node)
            case ast.Compare(comparators=[_, *others]) if any(map(self.calls, others)):
                return self.refuse(node, "a chain of comparisons")
        if isinstance(node, _NOT_ALWAYS):
            return self.refuse(node, describe(node))
        return self.inside(node)

    def inside(self, node: Any) -> tuple[list[ast.stmt], Any]:
        """`expression` for the parts of an expression that always evaluates all of them."""
        places = [(field, None) for field, value in ast.iter_fields(node) if isinstance(value, (ast.expr, ast.keyword))]
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                places += [(field, k) for k, v in enumerate(value) if isinstance(v, (ast.expr, ast.keyword))]
        order = list(node._fields)
        places.sort(key=lambda place: (order.index(place[0]), place[1] or 0))
        if isinstance(node, ast.Call):  # the name of a function is not saved
            places = [p for p in places if p[0] != "func"]
            if self.calls(node.func):
                before, node.func = self.expression(node.func)
                return before, node
        take = lambda field, k: getattr(node, field) if k is None else getattr(node, field)[k]
        before, values = self.parts([take(*place) for place in places])
        for (field, k), value in zip(places, values):
            if k is None:
                setattr(node, field, value)
            else:
                getattr(node, field)[k] = value
        return before, node
