"""Reflections: functions that call themselves once, with an argument on the other side of a point, need no recursion.

Special functions use symmetries in this way::

    def cdf(x):                        def cdf(x):
        if x >= 0:                         def reflected(x):
            return formula(x)    ->            return formula(x)
        return 1 - cdf(-x)                 if x >= 0:
                                               return formula(x)
                                           return 1 - reflected(-x)

The call takes the other branch of the condition, which has no call.  A loop with a stack (see `recursion.stack`)
would be correct as well, but takes ten times as long to compile.  For NaN Python's recursion does not end; here the
result is that of the formula.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Callable
from typing import Any

from ampi.kernel.frontend.base.source import Source
from ampi.kernel.frontend.language.desugar import bound_names, in_order
from ampi.kernel.ir.names import Names

_OPPOSITE = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}


def unfold_reflection(source: Source, signature: inspect.Signature, is_call: Callable[[Any], bool]) -> None:
    """Rewrite ``source.definition`` in place if it is such a function; ``is_call`` recognises its calls of itself."""
    definition = source.definition
    calls = [n for n in ast.walk(definition) if is_call(n)]
    if not calls:
        return
    found = _condition_around(definition, calls)
    parameters = list(signature.parameters)
    if found is None or any(len(c.args) != len(parameters) or c.keywords for c in calls):
        return
    condition, holds, other = found
    bound = _bound(condition, holds)
    if bound is None or bound[0] not in parameters or _assigns(definition, bound[0]):
        return
    name, op, limit = bound
    place = parameters.index(name)
    if not all(_crosses(c.args[place], name, op, limit) for c in calls):
        return
    read = {n.id for n in ast.walk(other) if isinstance(n, ast.Name)}
    if read & bound_names(definition) - bound_names(other):
        return  # it reads a variable that the omitted branch assigns
    other.name = Names([*in_order(definition), definition.name]).fresh(f"{definition.name}_reflected")
    other.decorator_list = []
    for call in calls:
        call.func = ast.copy_location(ast.Name(other.name, ast.Load()), call.func)
    definition.body.insert(0, other)


def _condition_around(definition: ast.FunctionDef, calls: list[Any]) -> tuple[ast.expr, bool, ast.FunctionDef] | None:
    """The innermost condition with all calls in one branch, whether it holds there, and a function without this branch.

    None if there is no such condition.
    """
    inside = {id(c) for c in calls}
    here = lambda *nodes: {id(n) for s in nodes for n in ast.walk(s)} & inside
    found = None
    for number, node in enumerate(ast.walk(definition)):
        if (
            isinstance(node, (ast.FunctionDef, ast.Lambda, ast.While, ast.For))
            and node is not definition
            and here(node)
        ):
            return None
        if isinstance(node, (ast.If, ast.IfExp)):
            branches = [branch if isinstance(branch, list) else [branch] for branch in (node.body, node.orelse)]
            found = next(((number, node, k) for k, branch in enumerate(branches) if here(*branch) == inside), found)
    other = copy.deepcopy(definition)
    if found is not None:
        number, node, branch = found
        twin = next(n for k, n in enumerate(ast.walk(other)) if k == number)
        _Prune(twin, twin.body if branch else twin.orelse).visit(other)
        return node.test, not branch, other
    first = next((k for k, s in enumerate(definition.body) if here(s)), 0)
    for number in reversed(range(first)):
        match definition.body[number]:
            case ast.If(test=test, body=[*_, ast.Return()] as body, orelse=[]):
                other.body[number:] = copy.deepcopy(body)
                return test, False, other
    return None


def _bound(test: ast.expr, holds: bool) -> tuple[str, type, float] | None:
    """A comparison that holds in a branch: a name, the operator, and a number."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[limit]):
            number = _number(limit)
            kind = type(op) if holds else _OPPOSITE.get(type(op))
            return (name, kind, number) if kind in _OPPOSITE and number is not None else None
    return None


def _number(node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return None


def _crosses(argument: ast.expr, name: str, op: type, limit: float) -> bool:
    """Return whether an argument is beyond the limit whenever the value of the name is not."""
    match argument:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id=read)) if read == name:
            total: float | None = 0
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Name(id=read)) if read == name:
            total = _number(left)
        case _:
            return False
    if total is None:
        return False
    nearest = total - limit  # subtraction is monotonic, rounding included
    match op:
        case ast.Lt:
            return nearest >= limit
        case ast.LtE:
            return nearest > limit
        case ast.Gt:
            return nearest <= limit
    return nearest < limit


def _assigns(definition: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(definition))


class _Prune(ast.NodeTransformer):
    """Replaces a condition by one of its branches."""

    def __init__(self, condition: Any, branch: Any):
        self.condition, self.branch = condition, branch

    def visit(self, node: ast.AST) -> Any:
        if node is not self.condition:
            return self.generic_visit(node)
        return self.branch if self.branch else ast.copy_location(ast.Pass(), node)
