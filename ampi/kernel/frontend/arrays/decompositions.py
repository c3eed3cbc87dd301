"""Rules of NumPy's decompositions of matrices, and of ``np.digitize`` (see ``functions``)."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import array, as_lazy, filled, rule, system
from ampi.kernel.frontend.arrays.values import Lazy, computed, is_array, shape_of
from ampi.kernel.frontend.base.values import Group
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO


def matrix(builder: Any, node: ast.Call, function: Any, a: Any, vectors: bool = True) -> ir.Var:
    """The argument of a decomposition: a matrix of floats, real if the results include ``vectors``."""
    system(builder, node, function, a)
    if vectors and isinstance(a.type.dtype, types.Complex):
        name = ast.unparse(node.func)
        builder.fail(node, f"{name} of complex numbers, whose vectors have no derivative", "use [[re, -im], [im, re]]")
    return computed(builder, a, "matrix")


def real(a: ir.Var) -> types.Type:
    return a.type.dtype.underlying_float if isinstance(a.type.dtype, types.Complex) else a.type.dtype


@rule(np.linalg.eigvalsh)
def eigvalsh(builder: Any, node: ast.Call, a: Any) -> Lazy:
    a = matrix(builder, node, np.linalg.eigvalsh, a, vectors=False)
    return as_lazy(builder, filled(builder, "eigenvalues", real(a), shape_of(builder, a)[:1], a))


@rule(np.linalg.eigh)
def eigh(builder: Any, node: ast.Call, a: Any) -> Group:
    a = matrix(builder, node, np.linalg.eigh, a)
    vectors = filled(builder, "eigenvectors", a.type.dtype, shape_of(builder, a), a)
    return Group((computed(builder, eigvalsh(builder, node, a)), computed(builder, as_lazy(builder, vectors))))


def rank_of(builder: Any, a: ir.Var) -> ir.Expr:
    return array_values.steady(builder, index_algebra.minimum(*shape_of(builder, a)))


@rule(np.linalg.svd)
def svd(builder: Any, node: ast.Call, a: Any, full_matrices: Any = None) -> Group:
    a = matrix(builder, node, np.linalg.svd, a)
    m, n = shape_of(builder, a)
    if not (isinstance(full_matrices, ir.Const) and not full_matrices.value):
        text = "np.linalg.svd in a kernel, of a matrix that is not square: its derivative needs full_matrices=False"
        other = ir.Op("ne", (m, n), types.boolean)
        builder.emit(ir.If(other, (ir.Raise(f"raise ValueError({text!r})", own=True, line=builder.line),)))
    k, dtype = rank_of(builder, a), a.type.dtype
    shapes = (("left_vectors", (m, k)), ("singular_values", (k,)), ("right_vectors", (k, n)))
    return Group(tuple(computed(builder, as_lazy(builder, filled(builder, f, dtype, s, a))) for f, s in shapes))


@rule(np.linalg.pinv)
def pinv(builder: Any, node: ast.Call, a: Any) -> Lazy:
    a = matrix(builder, node, np.linalg.pinv, a, vectors=False)
    return as_lazy(builder, filled(builder, "pinv", a.type.dtype, shape_of(builder, a)[::-1], a))


@rule(np.digitize, lists="bins")
def digitize(builder: Any, node: ast.Call, x: Any, bins: Any, right: Any = None) -> Any:
    if not (right is None or isinstance(right, ir.Const)):
        builder.fail(node, "np.digitize with a 'right' that is not constant", "write it twice, with an if")
    function = "digitize_right" if right is not None and right.value else "digitize"
    if isinstance(x, ir.Expr) and not is_array(x):
        alone = sequences.filled_array(builder, "local", (1,), {(0,): x}, inference.plain(x.type))
        found = filled(builder, function, INT, (ONE,), alone, bins)
        return ir.Load(found, (ZERO,), INT)
    return filled(builder, function, INT, shape_of(builder, array(builder, node, x)), x, bins)
