"""Identifier allocation: unique Python identifiers for the names in emitted programs.

Names in the IR may be any text (see ``names``).  Each gets an identifier as close to it as possible: ``x`` stays ``x``,
``x_bar@3`` becomes ``x_bar``, or ``x_bar_1`` if that is taken.  An identifier is never a keyword, a built-in, or a name
that the surrounding text defines, so it hides none of these.

Numba calls the second value of ``s`` in a parallel loop ``s_2``, even if that name is taken: in programs with such
loops no name ends with an underscore and a number.
"""

from __future__ import annotations

import builtins
import keyword
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.ir.names import stem

_NUMBERED = re.compile(r"_\d+$")
WORDS = frozenset(keyword.kwlist) | frozenset(dir(builtins))


class Identifiers:
    """Assigns identifiers to names, but none of those in ``taken``."""

    def __init__(self, taken: Iterable[str], numbered: bool = True) -> None:
        self.taken = set(taken)
        self.numbered = numbered
        self.assigned: dict[str, str] = {}
        self.count: dict[str, int] = {}

    def __call__(self, name: str) -> str:
        if name not in self.assigned:
            self.assigned[name] = self.new(_legal(stem(name)))
        return self.assigned[name]

    def new(self, base: str) -> str:
        identifier = self.without_number(base)
        while identifier in self.taken:
            self.count[base] = self.count.get(base, 0) + 1
            identifier = self.without_number(f"{base}_{self.count[base]}")
        self.taken.add(identifier)
        return identifier

    def without_number(self, identifier: str) -> str:
        return identifier if self.numbered or not _NUMBERED.search(identifier) else f"{identifier}_"


def spelled(functions: Iterable[ir.Function], taken: Iterable[str]) -> tuple[ir.Function, ...]:
    """The functions of one module with identifiers for names; ``taken`` are other names that the module defines.

    Each function has a different name; constants of the same name are the same.  Inside a function, no name of the
    module is used for anything else.
    """
    functions = tuple(functions)
    of_module = Identifiers(WORDS | set(taken))
    function_names: dict[int, str] = {}
    for function in functions:
        for part in (*parts(function), function):
            function_names[id(part)] = of_module(part.name)
        for name, _ in function.constants:
            of_module(name)
    return tuple(_spelled(f, of_module, function_names) for f in functions)


def _spelled(function: ir.Function, of_module: Identifiers, function_names: dict[int, str]) -> ir.Function:
    nodes = list(ir.walk(function.body))
    own = Identifiers(of_module.taken, numbered=not any(map(_is_parallel, nodes)))
    own.assigned = {name: of_module(name) for name, _ in function.constants}
    arguments = tuple(replace(a, name=own(a.name)) for a in function.arguments)
    change = lambda v: v if (name := own(v.name)) == v.name else ir.Var(name, v.type)
    part = lambda f: _spelled(f, of_module, function_names)
    return replace(
        function,
        name=function_names[id(function)],
        arguments=arguments,
        body=tuple(_changed(s, change, part) for s in function.body),
        constants=tuple((own(name), array) for name, array in function.constants),
        agreeing=tuple(_changed(s, change, part) for s in function.agreeing),
    )


def _is_parallel(node: Any) -> bool:
    return isinstance(node, ir.Launch) or (isinstance(node, ir.For) and node.parallel)


def parts(function: ir.Function) -> list[ir.Function]:
    """The functions that a function calls on threads."""
    launches = [s for s in ir.walk(function.body) if isinstance(s, ir.Launch)]
    return [p for s in launches for p in (s.part, s.atomic) if p is not None]


def _changed(node: Any, change: Callable[[ir.Var], ir.Var], part: Callable[[ir.Function], ir.Function]) -> Any:
    """A node of the IR with its variables changed, in all fields."""
    kind = type(node)
    if kind is ir.Var:
        return change(node)
    if kind is ir.Const or node is None or kind in (str, int, bool):
        return node
    if isinstance(node, tuple):
        inside = tuple([_changed(inner, change, part) for inner in node])
        return inside if any(map(operator.is_not, inside, node)) else node
    if kind is ir.Function:
        return part(node)
    if kind is dict:
        return {key: _changed(value, change, part) for key, value in node.items()}
    if not isinstance(node, (ir.Expr, ir.Stmt, ir.Reduced, ir.Reach)):
        return node
    new: dict[str, Any] = {}
    if kind is ir.For and node.reductions:
        new["reductions"] = tuple((change(ir.Var(name, None)).name, how) for name, how in node.reductions)
    for name in ir.places(kind):
        value = getattr(node, name)
        if name != "reductions" and (changed := _changed(value, change, part)) is not value:
            new[name] = changed
    return ir.changed(node, **new) if new else node


def _legal(name: str) -> str:
    """A valid identifier close to a name."""
    found = re.sub(r"\W", "_", name) or "_"
    return found if found.isidentifier() else f"_{found}"
