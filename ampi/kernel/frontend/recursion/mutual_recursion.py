"""Mutual recursion: functions that call one another are inlined in the one that is called first, before type inference.

The result is a function that calls itself (see `recursion.stack`)::

    def even(x, n):                               def even(x, n):
        if n == 0:                                    if n == 0:
            return x                                      return x
        return odd(x * 0.5, n - 1)                    m, y = n - 1, x * 0.5
                                          ->          while True:
    def odd(x, n):                                        if m == 0:
        if n == 0:                                            result = 0.0
            return 0.0                                        break
        return even(x * 0.7, n - 1)                       result = even(y * 0.7, m - 1)
                                                          break
                                                      return result
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from ampi.kernel.frontend.base.declared import declared
from ampi.kernel.frontend.base.outside import free_names
from ampi.kernel.frontend.base.source import Source, read_source
from ampi.kernel.frontend.language.desugar import bound_names, in_order, spell_out
from ampi.kernel.frontend.lists.nodes import Rename, assign, name_of, named, placed
from ampi.kernel.frontend.recursion.nodes import ONE_FUNCTION, Call
from ampi.kernel.frontend.recursion.separate_calls import Separate
from ampi.kernel.ir.names import Names

FunctionOf = Callable[[Any], Any]


def inline_partners(function: Any, source: Source, known: dict[str, Any], function_of: FunctionOf) -> None:
    """Rewrite ``source.definition`` in place, and add the globals of the inlined functions to its globals, ``known``.

    ``function_of`` is the Python function of a kernel, and None for anything else.
    """
    others = [f for f in _reached(function, function_of) if f.__code__ is not function.__code__]
    partners = [f for f in others if _reaches(f, function, function_of)]
    if partners:
        _Inlining(source, known, function_of, partners).run()


def _called(function: Any, function_of: FunctionOf) -> Iterator[Any]:
    known = free_names(function)
    for name in (*function.__code__.co_names, *function.__code__.co_freevars):
        found = function_of(known.get(name))
        if found is not None:
            yield found


def _reached(function: Any, function_of: FunctionOf) -> list[Any]:
    """The kernels that a function calls, directly or indirectly."""
    found: list[Any] = []
    waiting = [function]
    while waiting:
        for other in _called(waiting.pop(), function_of):
            if not any(other.__code__ is f.__code__ for f in found):
                found.append(other)
                waiting.append(other)
    return found


def _reaches(function: Any, other: Any, function_of: FunctionOf) -> bool:
    return any(f.__code__ is other.__code__ for f in _reached(function, function_of))


class _Inlining:
    def __init__(self, source: Source, known: dict[str, Any], function_of: FunctionOf, partners: list[Any]):
        self.source, self.known, self.function_of, self.partners = source, known, function_of, partners
        self.fresh = Names([*in_order(source.definition), *known]).fresh
        self.local = bound_names(source.definition)
        self.enclosing: list[Any] = []  # the functions that are being inlined

    def run(self) -> None:
        self.source.definition.body = self.body(self.source.name, self.source.definition.body)

    def partner(self, node: Any) -> Any:
        """The partner that a node calls, or None."""
        if isinstance(node, ast.Call) and name_of(node.func) not in self.local | {None}:
            found = self.function_of(self.known.get(name_of(node.func) or ""))
            return next((f for f in self.partners if found is not None and f.__code__ is found.__code__), None)
        return None

    def body(self, name: str, statements: list[ast.stmt]) -> list[ast.stmt]:
        is_call = lambda node: self.partner(node) is not None
        return self.without_calls(Separate(name, is_call, self.fresh, self.source.fail).body(statements))

    def without_calls(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for s in body:
            if isinstance(s, Call):
                out += [placed(made, s) for made in self.replacement(s)]
                continue
            for field in ("body", "orelse"):
                if isinstance(getattr(s, field, None), list):
                    setattr(s, field, self.without_calls(getattr(s, field)))
            out.append(s)
        return out

    def replacement(self, s: Call) -> list[ast.stmt]:
        """The statements that replace a call."""
        function = self.partner(s.call)
        source = read_source(function)
        self.refuse(s, function, source)
        outside = free_names(function)
        outside |= spell_out(source, outside)
        definition = source.definition
        if source.filename != self.source.filename:  # errors point into one file
            for node in ast.walk(definition):
                ast.copy_location(node, s)
        arguments = self.arguments(s, function)
        assigned = bound_names(ast.Module(definition.body, []))
        names = {n: self.fresh(n) for n in sorted(bound_names(definition))}
        before: list[ast.stmt] = []
        for parameter, value in arguments.items():
            known_by = name_of(value)
            if known_by is not None and parameter not in assigned:
                names[parameter] = known_by
            else:
                before.append(assign(names[parameter], value))
        self.local |= set(names.values()) - set(self.known)
        for name in in_order(definition):
            if name not in names and name in outside:
                names[name] = self.outside(name, outside[name])
        body = [Rename(names).visit(statement) for statement in definition.body]
        result = s.target or self.fresh("result")
        whole = [*_returning(body, result, lambda node: self.refuse_no_result(s, node, function)), ast.Break()]
        self.enclosing.append(function)
        inside = self.body(source.name, whole)
        self.enclosing.pop()
        return [*before, ast.While(ast.Constant(True), inside, [])]

    def outside(self, name: str, value: Any) -> str:
        """A global name of the function for a global of an inlined function."""
        if name not in self.local and name in self.known and self.known[name] is value:
            return name
        made = self.fresh(name)
        self.known[made] = value
        return made

    def refuse(self, s: Call, function: Any, source: Source) -> None:

        pair = f"'{self.source.name}' and '{function.__name__}' call one another"
        if any(f.__code__ is function.__code__ for f in self.enclosing):
            self.source.fail(s, f"{pair}, and '{function.__name__}' also itself", ONE_FUNCTION)
        declaration = declared(function)
        if declaration is not None and (declaration.signatures or declaration.locals):
            self.source.fail(s, f"{pair}, and '{function.__name__}' declares types", ONE_FUNCTION)
        if source.definition.args.vararg or source.definition.args.kwarg:
            self.source.fail(s, f"{pair}, and '{function.__name__}' has *args", "name every parameter")
        for node in ast.walk(source.definition):
            if isinstance(node, (ast.For, ast.While)) and any(isinstance(n, ast.Return) for n in ast.walk(node)):
                advice = "leave the loop by break, and return after it"
                self.source.fail(node, f"{pair}, and '{function.__name__}' returns from inside a loop", advice)

    def arguments(self, s: Call, function: Any) -> dict[str, ast.expr]:
        call, signature = s.call, inspect.signature(function)
        if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
            self.source.fail(s, f"* in a call of '{function.__name__}'", "pass the arguments one by one")
        try:
            found = signature.bind(*call.args, **{k.arg: k.value for k in call.keywords}).arguments
        except TypeError as problem:
            self.source.fail(s, f"{function.__name__}(): {problem}")
        defaults = {n: p.default for n, p in signature.parameters.items() if n not in found}
        return {**found, **{n: named(self.outside(n, value)) for n, value in defaults.items()}}

    def refuse_no_result(self, s: Call, node: ast.AST, function: Any) -> None:
        if s.target is not None:
            self.source.fail(node, f"'{function.__name__}' returns no value, but its result is used", "return a value")


def _returning(body: list[ast.stmt], result: str, nothing: Callable[[ast.AST], None]) -> list[ast.stmt]:
    """Statements with ``break`` instead of ``return``."""
    out: list[ast.stmt] = []
    for s in body:
        if isinstance(s, ast.Return):
            if s.value is None or (isinstance(s.value, ast.Constant) and s.value.value is None):
                nothing(s)
            else:
                out.append(placed(assign(result, s.value), s))
            out.append(placed(ast.Break(), s))
            continue
        if isinstance(s, ast.If):
            s.body, s.orelse = (_returning(way, result, nothing) for way in (s.body, s.orelse))
        out.append(s)
    return out
