"""Functions of arrays made from the tables' expressions; their parameters are the values that they need."""

from __future__ import annotations

import ast
from collections.abc import Container, Mapping
from typing import Any

import numpy as np

NAMES = {"x": "x", "y": "y", "z": "w", "w": "v", "r": "z"}
"""Names of the arguments and the result of a function: in the tables, and as parameters of rules."""

ELEMENTARY: dict[str, Any] = {
    **{name: getattr(np, name) for name in "copysign cos cosh exp exp2 hypot imag isinf log maximum minimum".split()},
    **{name: getattr(np, name) for name in "real sign sin sinh sqrt trunc".split()},
    "abs": np.abs,
    "floordiv": np.floor_divide,
    "round": np.rint,
}
"""Functions that expressions may call."""


class _OfNumbers(ast.NodeTransformer):
    """Conversion of an expression to the names of the parameters of rules."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return ast.Call(node.func, [self.visit(a) for a in node.args], [])

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in NAMES:
            return node
        self.used.add(NAMES[node.id])
        return ast.Name(NAMES[node.id], node.ctx)


class _OfArrays(_OfNumbers):
    """The same, with conditional expressions as ``numpy.where``."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        test, *branches = [self.visit(part) for part in (node.test, node.body, node.orelse)]
        # A condition of numbers alone: a number, which arrays of any library take, instead of an array without axes.
        branches = [_item(b) if isinstance(b, ast.Call) and _is_where(b) else b for b in branches]
        return ast.Call(ast.Name("where", ast.Load()), [test, *map(_as_float, branches)], [])


def _is_where(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "where"


def _item(node: ast.AST) -> ast.AST:
    return ast.Subscript(node, ast.Tuple([], ast.Load()), ast.Load())  # type: ignore[arg-type]


def _as_float(node: Any) -> ast.AST:
    """Convert an integer to floating point, for which products with derivatives are faster."""
    if isinstance(node, ast.UnaryOp):
        return ast.UnaryOp(node.op, _as_float(node.operand))
    return ast.Constant(float(node.value)) if isinstance(node, ast.Constant) and type(node.value) is int else node


def called(text: str) -> set[str]:
    """Return the names of the functions that an expression calls."""
    return {node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)}  # type: ignore[attr-defined]


def function(
    text: str, known: Mapping[str, Any], *, of_numbers: bool = False, alone: bool = False, whole: Container[str] = ()
) -> Any:
    """Make a function of arrays from an expression; its parameters are the values that it needs.

    Parameters
    ----------
    text : str
    known : dict
        The functions that it calls.
    of_numbers : bool
        Evaluate conditions once, as Python does, instead of for each element.
    alone : bool
        The function may be called outside sweeps: it emits no warnings, and Python's numbers become NumPy's, which
        may be divided by zero, except for the parameters in ``whole``.
    """
    transformer = _OfNumbers() if of_numbers else _OfArrays()
    body = ast.unparse(ast.fix_missing_locations(transformer.visit(ast.parse(text, mode="eval"))))
    values = [v for v in NAMES.values() if v in transformer.used]
    lines = [f"def partial({', '.join(values)}):", f" return {body}"]
    if alone:
        settled = [f" {v} = number({v}) if type({v}) in plain else {v}" for v in values if v not in whole]
        lines[1:] = [*settled, " with errstate(all='ignore'):", f" {lines[1]}"]
    namespace = {**known, "where": np.where, "errstate": np.errstate, "number": np.float64, "plain": (int, float)}
    exec(compile("\n".join(lines), __file__, "exec"), namespace)
    return namespace["partial"]
