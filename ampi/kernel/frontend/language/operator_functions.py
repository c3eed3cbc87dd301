"""Calls equivalent to expressions (functions of ``operator``), and ``isinstance``, which types decide."""

from __future__ import annotations

import ast
import operator
from typing import Any

import numba
from numba import types
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.cpython import builtins as numba_builtins

from ampi.kernel import ir
from ampi.kernel.frontend.base.values import Static, Value
from ampi.kernel.frontend.language.desugar import Augmented
from ampi.kernel.ir.operators import BINARY, COMPARE, UNARY

_BINARY = {function: kind for kind, (_, function) in BINARY.items()} | {operator.matmul: ast.MatMult}
_IN_PLACE = {getattr(operator, f"i{function.__name__.rstrip('_')}"): kind for function, kind in _BINARY.items()}
_COMPARE = {function: kind for kind, (_, function) in COMPARE.items()} | {
    operator.is_: ast.Is,
    operator.is_not: ast.IsNot,
}
_UNARY = {function: kind for kind, (_, function) in UNARY.items()} | {operator.not_: ast.Not, operator.inv: ast.Invert}


def as_expression(function: Any, node: ast.Call) -> ast.expr | None:
    """The expression for a call of a function of ``operator``: ``a + b`` for ``operator.add(a, b)``."""
    if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    try:
        found = _spelled(function, node.args)
    except TypeError:  # not hashable
        return None
    return None if found is None else ast.fix_missing_locations(ast.copy_location(found, node))


def _spelled(function: Any, arguments: list[ast.expr]) -> ast.expr | None:
    if len(arguments) == 1:
        (a,) = arguments
        if function in _UNARY:
            return ast.UnaryOp(_UNARY[function](), a)
        return a if function is numba.literally else None
    if len(arguments) != 2:
        return None
    a, b = arguments
    if function in _BINARY:
        return ast.BinOp(a, _BINARY[function](), b)
    if function in _IN_PLACE:
        return Augmented(a, _IN_PLACE[function](), b)
    if function in _COMPARE:
        return ast.Compare(a, [_COMPARE[function]()], [b])
    if function is operator.contains:
        return ast.Compare(b, [ast.In()], [a])
    return ast.Subscript(a, b, ast.Load()) if function is operator.getitem else None


def is_instance(builder: Any, node: ast.Call) -> ir.Const:
    """``isinstance(x, cls)``, decided at compile time as in Numba."""
    if len(node.args) != 2 or node.keywords:
        builder.fail(node, "isinstance takes a value and a class, or a tuple of classes")
    value, classes = (builder.any_value(a) for a in node.args)
    given = builder.type_of(node, value)
    try:
        decided = numba_builtins.ol_isinstance(types.unliteral(given), _type_of_classes(classes))
    except NumbaError as problem:
        builder.fail(node, f"isinstance: {str(problem).strip()}", "pass a flag instead")
    return ir.Const(decided.__name__ == "true_impl", types.boolean)


def _type_of_classes(classes: Value) -> types.Type:
    items = getattr(classes, "items", None)
    if items is not None:
        return types.Tuple(tuple(map(_type_of_classes, items)))
    given = classes.value if isinstance(classes, Static) else classes
    return cpu_target.typing_context.resolve_value_type(given)
