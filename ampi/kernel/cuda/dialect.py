"""Translation of expressions to the functions that exist on a GPU."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NoReturn

TEMPLATES = {
    "selected": "y if x else z",
    "where_nonzero": "y if x != 0 else 0.0",
    "fused": "cuda.fma(x, y, z)",
    "np.real": "(x).real",
    "np.imag": "(x).imag",
    "np.conj": "(x).conjugate()",
    "np.conjugate": "(x).conjugate()",
    "np.cbrt": "cuda.cbrt(x)",
    "np.isnan": "math.isnan(x)",
    "np.isinf": "math.isinf(x)",
    "np.isfinite": "math.isfinite(x)",
    "np.exp2": "2.0 ** (x)",
    "np.log2": "math.log2(x)",
    "np.fmod": "math.fmod(x, y)",
    "math.floor": "int(math.floor(x))",  # numba-cuda returns a float
    "math.ceil": "int(math.ceil(x))",
    "math.trunc": "int(math.trunc(x))",
    "np.floor": "float(math.floor(x))",
    "np.ceil": "float(math.ceil(x))",
    "np.trunc": "float(math.trunc(x))",
    "np.sign": "(1.0 if x > 0 else (-1.0 if x < 0 else x))",
    "np.signbit": "math.copysign(1.0, x) < 0",
    "np.minimum": "(x if x < y or x != x else y)",
    "np.maximum": "(x if x > y or x != x else y)",
    "np.fmin": "(x if x < y or y != y else y)",
    "np.fmax": "(x if x > y or y != y else y)",
}
"""Expressions on a GPU for functions of lowered programs."""
KNOWN = frozenset({"min", "max", "abs", "complex", "int", "float", "bool", "round"})
TYPES = frozenset(
    f"np.{n}"
    for n in "bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128".split()
)


class _Dialect(ast.NodeTransformer):
    def __init__(self, fail: Callable[[str], NoReturn]) -> None:
        self.fail = fail

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name in TEMPLATES:
            tree = ast.parse(TEMPLATES[name], mode="eval").body
            return _Fill(dict(zip("xyz", node.args))).visit(tree)
        if not (name in KNOWN or name in TYPES or name.startswith(("math.", "cmath.", "cuda."))):
            self.fail(name)
        return node


class _Fill(ast.NodeTransformer):
    def __init__(self, given: dict[str, ast.expr]) -> None:
        self.given = given

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self.given.get(node.id, node)


def in_dialect(text: str, fail: Callable[[str], NoReturn]) -> str:
    """Return an expression with functions that exist on a GPU; ``fail`` is called with the name of any other."""
    return ast.unparse(ast.fix_missing_locations(_Dialect(fail).visit(ast.parse(text, mode="eval"))))
