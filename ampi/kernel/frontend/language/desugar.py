"""Syntactic sugar of Python, rewritten in the syntax tree before type inference.

* ``x += y`` on a name becomes ``x = x + y``: every ``Name`` is then a use or an assignment, never both (see
  ``Augmented``);
* ``else`` after a loop becomes a condition on a flag that every ``break`` clears;
* nested functions and lambdas become separate functions, which get as further arguments the variables of the
  enclosing function that they use (lambda lifting).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

from ampi.kernel.frontend.base.source import Source
from ampi.kernel.frontend.lists.spelling import spell_lists
from ampi.kernel.ir.names import Names


class Nested:
    """A function defined inside a kernel, with the interface of a Numba dispatcher."""

    def __init__(self, function: Any):
        self.py_func = function


def spell_out(source: Source, names: dict[str, Any]) -> dict[str, Nested]:
    """Rewrite ``source.definition`` in place; return the nested functions by name.

    ``names`` are the built-ins, globals and closure variables.
    """
    nested = _Lifting(source, names).run()
    spell_lists(source, in_order(source.definition), names)
    _SpellOut(in_order(source.definition)).visit(source.definition)
    return nested


def in_order(definition: ast.AST) -> list[str]:
    """All names, parameters included, in an order that does not depend on their spelling."""
    found = (n.id if isinstance(n, ast.Name) else n.arg for n in ast.walk(definition) if isinstance(n, _NAMING))
    return list(dict.fromkeys(found))


_NAMING = (ast.Name, ast.arg)


def bound_names(definition: ast.AST) -> set[str]:
    """All names that a function binds: its local variables."""
    names: set[str] = set()
    for n in ast.walk(definition):
        if isinstance(n, ast.arg):
            names.add(n.arg)
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            names.add(n.id)
    return names


# --------------------------------------------------------------------------------------------- nested functions


class _Lifting:
    """Lambda lifting: makes nested functions separate ones, without closure variables."""

    def __init__(self, source: Source, names: dict[str, Any]):
        self.source = source
        self.names = names

    def run(self) -> dict[str, Nested]:
        definition = self.source.definition
        naming = _Naming(in_order(definition))
        definition.body = [naming.visit(s) for s in definition.body]
        found = [*naming.found, *_functions_inside(definition.body)]
        if not found:
            return {}
        self.inside = {f.name: f for f in found}
        _Remove(self.inside).visit(definition)
        self.check(found, bound_names(definition))
        self.place = {name: number for number, name in enumerate(in_order(definition))}
        self.free = self.free_variables(bound_names(definition))
        for function in found:
            self.pass_on(function, self.free[function.name])
        self.pass_on(definition, [])
        space = dict(self.names)
        nested = {f.name: Nested(self.function(f, space)) for f in found}
        space.update(nested)
        return nested

    def check(self, found: list[ast.FunctionDef], variables: set[str]) -> None:
        for function in found:
            if function.decorator_list:
                self.source.fail(function, "a nested function with a decorator", "define it outside of the kernel")
            if function.name in variables or sum(f.name == function.name for f in found) > 1:
                self.source.fail(function, f"'{function.name}' stands for different things", "use two names")
            defaults = [*function.args.defaults, *(d for d in function.args.kw_defaults if d is not None)]
            if not all(isinstance(d, ast.Constant) for d in defaults):
                self.source.fail(
                    function, "a default value of a nested function is not a constant", "pass it as an argument"
                )

    def free_variables(self, variables: set[str]) -> dict[str, list[str]]:
        """For each nested function, the variables of the enclosing function that it, or a function it calls, uses."""
        free: dict[str, set[str]] = {}
        calls: dict[str, set[str]] = {}
        for name, function in self.inside.items():
            read = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)} - bound_names(function)
            free[name] = read & variables
            calls[name] = read & set(self.inside)
        for _ in self.inside:
            for name in self.inside:
                free[name] = free[name].union(*(free[other] for other in calls[name]))
        for name, function in self.inside.items():
            hidden = free[name] & bound_names(function)
            if hidden:
                variable = min(hidden)
                self.source.fail(
                    function, f"'{variable}' is a variable both here and in the function around it", "use two names"
                )
        return {name: sorted(variables, key=self.place.__getitem__) for name, variables in free.items()}

    def pass_on(self, function: ast.FunctionDef, given: list[str]) -> None:
        """Pass to nested functions, wherever they are called, the variables that they use."""
        called = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Call):  # a function that uses no variables may be an argument
                called |= {id(a) for a in node.args if isinstance(a, ast.Name) and self.free.get(a.id) == []}
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.inside:
                called.add(id(node.func))
                if node.keywords:  # Numba takes the default instead
                    self.source.fail(node, "keyword arguments for a nested function", "pass them by position")
                for name in self.free[node.func.id]:
                    value = ast.copy_location(ast.Name(name, ast.Load()), node)
                    node.keywords.append(ast.copy_location(ast.keyword(name, value), node))
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and node.id in self.inside and id(node) not in called:
                uses = self.free[node.id]
                how = f"pass it '{uses[0]}' as an argument" if uses else "as an argument of a call, by position"
                problem = f"'{node.id}' is a nested function, used as a value"
                self.source.fail(node, problem, f"call it, or {how}")
        for name in given:
            function.args.kwonlyargs.append(ast.copy_location(ast.arg(name), function))
            function.args.kw_defaults.append(None)

    def function(self, definition: ast.FunctionDef, space: dict[str, Any]) -> Any:
        module = ast.fix_missing_locations(ast.Module([copy.deepcopy(definition)], []))
        code = compile(module, self.source.filename, "exec")
        (body,) = (c for c in code.co_consts if hasattr(c, "co_code"))
        arguments = definition.args
        function = FunctionType(body, space, definition.name, tuple(d.value for d in arguments.defaults))
        given = zip(arguments.kwonlyargs, arguments.kw_defaults)
        function.__kwdefaults__ = {a.arg: d.value for a, d in given if isinstance(d, ast.Constant)}
        function.__ampi_source__ = replace(self.source, name=definition.name, definition=definition)
        return function


def _functions_inside(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """The functions, and lambdas bound to a name, that statements define; not those nested in them."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            yield statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
            if len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
                yield _named(statement.targets[0].id, statement.value)
        else:
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    yield from _functions_inside([inner])


def _named(name: str, function: ast.Lambda) -> ast.FunctionDef:
    body = [ast.copy_location(ast.Return(function.body), function.body)]
    definition = ast.FunctionDef(name, function.args, body, [])
    return ast.fix_missing_locations(ast.copy_location(definition, function))


class _Naming(ast.NodeTransformer):
    """Gives names to lambdas that are called or passed as arguments."""

    def __init__(self, taken: list[str]):
        self.fresh = Names(taken).fresh
        self.found: list[ast.FunctionDef] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node  # visited separately

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.func = self.named(node.func)
        node.args = [self.named(a) for a in node.args]
        return self.generic_visit(node)

    def named(self, node: ast.expr) -> ast.expr:
        if not isinstance(node, ast.Lambda):
            return node
        name = self.fresh("function")
        self.found.append(_named(name, node))
        return ast.copy_location(ast.Name(name, ast.Load()), node)


class _Remove(ast.NodeTransformer):
    """Removes the definitions of nested functions."""

    def __init__(self, inside: dict[str, ast.FunctionDef]):
        self.inside = inside

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if self.inside.get(node.name) is node:
            return ast.copy_location(ast.Pass(), node)
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if isinstance(node.value, ast.Lambda) and isinstance(node.targets[0], ast.Name) and len(node.targets) == 1:
            return ast.copy_location(ast.Pass(), node)
        return node


# --------------------------------------------------------------------------------------------- statements


class Augmented(ast.BinOp):
    """The value of an augmented assignment, which changes an array in place."""


class _SpellOut(ast.NodeTransformer):
    def __init__(self, taken: list[str]):
        self.names = Names(taken)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if not isinstance(node.target, ast.Name):
            return node
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        value = ast.copy_location(Augmented(old, node.op, node.value), node)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        self.generic_visit(node)
        return self.without_else(node)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self.generic_visit(node)
        return self.without_else(node)

    def without_else(self, node: ast.For | ast.While) -> list[ast.stmt]:
        """The loop, and statements that replace its ``else``."""
        orelse, node.orelse = node.orelse, []
        if not orelse:
            return [node]
        flag = self.names.fresh("finished")
        if not _flag_breaks(node.body, flag):
            return [node, *orelse]
        start = _placed(ast.Assign([ast.Name(flag, ast.Store())], ast.Constant(True)), node)
        return [start, node, _placed(ast.If(ast.Name(flag, ast.Load()), orelse, []), orelse[0])]


def _placed(node: Any, like: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(node, like))


def _flag_breaks(body: list[ast.stmt], flag: str) -> bool:
    """Clear a flag before every ``break`` out of the loop with this body; return whether there is one."""
    found = False
    for position, statement in reversed(list(enumerate(body))):
        if isinstance(statement, ast.Break):
            body.insert(position, _placed(ast.Assign([ast.Name(flag, ast.Store())], ast.Constant(False)), statement))
            found = True
        elif isinstance(statement, ast.If):
            inside = [_flag_breaks(statement.body, flag), _flag_breaks(statement.orelse, flag)]
            found = found or any(inside)
    return found
