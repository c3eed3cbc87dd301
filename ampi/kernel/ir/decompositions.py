"""Derivatives of decompositions of matrices: eigenvalues, singular values, pseudoinverses.

These are operations on whole matrices as in ``matrices``, with derivatives made of the same operations.  ``^H`` is the
conjugate transpose, ``o`` the elementwise product, ``F_ij = 1 / (d_j - d_i)`` off the diagonal, where ``d`` are the
eigenvalues, or the squares of the singular values.

===============  =========================================  ==========================================================
operation        tangent                                    adjoint
===============  =========================================  ==========================================================
eigenvalues      ``diag(V^H dA V)``                         ``A_bar += V diag(C_bar) V^H``, of the lower triangle
eigenvectors     ``V (F o (V^T dA V))``                     ``A_bar += V (F o (V^T C_bar)) V^T``, likewise
singular_values  ``diag(U^H dA V)``                         ``A_bar += U diag(C_bar) V^H``
left_vectors     ``U (F o (Q S + S Q^T))``                  ``A_bar += U (J + J^T) S V^T + N S^-1 V^T`` with
                 ``+ (I - U U^T) dA V S^-1``,               ``J = F o (U^T C_bar)`` and
                 ``Q = U^T dA V``                           ``N = C_bar - U U^T C_bar``
right_vectors    those of ``A^T``                           those of ``A^T``
pinv             ``-C dA C + C C^H dA^H (I - A C)``         ``A_bar += -C^H C_bar C^H + (I - A C) C_bar^H C C^H``
                 ``+ (I - C A) dA^H C^H C``                 ``+ C^H C C_bar^H (I - C A)``
===============  =========================================  ==========================================================

Eigenvectors and singular vectors are differentiated only for real matrices, where a small change keeps their signs.
Those of equal eigenvalues or singular values have no derivative; the result is infinite unless they are unused.  A
pseudoinverse has a derivative where the rank is constant.
(M. Giles, An extended collection of matrix derivative results, 2008; G. Golub, V. Pereyra, The differentiation of
pseudo-inverses, 1973.)
"""

from __future__ import annotations

from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Size, Var
from ampi.kernel.ir.intrinsics import arithmetic, conjugate, constant
from ampi.kernel.ir.matrices import Writer, derivatives, hermitian, real, shape
from ampi.kernel.ir.ssa import INT

Index = tuple[Expr, ...]
Bars = list[Var | None]


def _filled(w: Writer, function: str, a: Var, sizes: Index, dtype: Any = None) -> Var:
    return w.fill(w.array(function, dtype or a.type.dtype, sizes), function, a)


def _eigenvalues(w: Writer, a: Var) -> Var:
    return _filled(w, "eigenvalues", a, (Size(a, 0, INT),), real(a))


def _rank(w: Writer, a: Var) -> Expr:
    sizes = shape(a)
    return w.b.value(ir.Op("select", (ir.Op("lt", sizes, types.boolean), *sizes), INT))


def _left(w: Writer, a: Var) -> Var:
    return _filled(w, "left_vectors", a, (Size(a, 0, INT), _rank(w, a)))


def _right(w: Writer, a: Var) -> Var:
    return _filled(w, "right_vectors", a, (_rank(w, a), Size(a, 1, INT)))


def _singular(w: Writer, a: Var) -> Var:
    return _filled(w, "singular_values", a, (_rank(w, a),), real(a))


def _scaled(w: Writer, a: Var, d: Var, divide: bool = False) -> Var:
    """``a diag(d)``, or ``a diag(d)^-1``."""

    def element(k: Index) -> Expr:
        factor = w.b.load(d, k[1:])
        if isinstance(a.type.dtype, types.Complex):
            factor = ir.Op("cast", (factor,), a.type.dtype)
        return arithmetic("truediv" if divide else "mul", w.b.load(a, k), factor)

    return w.set(w.like(a, "scaled"), element)


def _combined(w: Writer, operation: str, a: Var, b: Var) -> Var:
    return w.set(w.like(a, "both"), lambda k: arithmetic(operation, w.b.load(a, k), w.b.load(b, k)))


def _over_gaps(w: Writer, a: Var, d: Var) -> Var:
    """``F o a``, zero where both ``a`` and the gap are zero."""
    zero = constant(0, a.type.dtype)

    def element(k: Index) -> Expr:
        value = w.b.load(a, k)
        gap = arithmetic("sub", w.b.load(d, k[1:]), w.b.load(d, k[:1]))
        is_zero = ir.Op("eq", (value, zero), types.boolean)
        no_gap = ir.Op("eq", (gap, constant(0, gap.type)), types.boolean)
        both = ir.Op("and", (is_zero, no_gap), types.boolean)
        unused = ir.Op("or", (ir.Op("eq", k, types.boolean), both), types.boolean)
        divisor = ir.Op("select", (unused, constant(1, gap.type), gap), gap.type)
        return ir.Op("select", (unused, zero, arithmetic("truediv", value, divisor)), a.type.dtype)

    return w.set(w.like(a, "quotients"), element)


def _add_lower(w: Writer, a_bar: Var, s: Var) -> None:
    """Add the adjoint of a Hermitian matrix to that of its lower triangle."""

    def element(k: Index) -> Expr:
        both = arithmetic("add", w.b.load(s, k), conjugate(w.b.load(s, k[::-1])))
        on = arithmetic("mul", both, constant(0.5, real(s)))
        return w.select(k, constant(0, s.type.dtype), on, both)

    w.add(a_bar, element)


def _add(w: Writer, target: Var, a: Var) -> None:
    w.add(target, lambda k: w.b.load(a, k))


def _set_zero(w: Writer, dot: Var) -> None:
    w.set(dot, lambda k: constant(0, dot.type.dtype))


def _set_diagonal(w: Writer, dot: Var, a: Var) -> None:
    """Set a vector to the real parts of a diagonal."""

    def element(k: Index) -> Expr:
        value = w.b.load(a, (*k, *k))
        return ir.Op("real", (value,), dot.type.dtype) if isinstance(value.type, types.Complex) else value

    w.set(dot, element)


# ------------------------------------------------------------------------------------------- eigenvalues


@derivatives("eigenvalues")
def eigenvalues_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: Bars) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is not None:
        v = _filled(w, "eigenvectors", a, shape(a))
        _add_lower(w, a_bar, w.dot(_scaled(w, v, bar), w.adjoint_matrix(v)))


@derivatives("eigenvalues")
def _eigenvalues_tangent(w: Writer, c: Var, arguments: tuple[Var, ...], dot: Var, dots: Bars) -> None:
    (a,), (a_dot,) = arguments, dots
    if a_dot is None:
        return _set_zero(w, dot)
    v = _filled(w, "eigenvectors", a, shape(a))
    _set_diagonal(w, dot, w.dot(w.adjoint_matrix(v), w.dot(hermitian(w, a_dot), v)))


@derivatives("eigenvectors")
def _eigenvectors_adjoint(w: Writer, v: Var, arguments: tuple[Var, ...], bar: Var, bars: Bars) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is not None:
        transposed = w.adjoint_matrix(v)
        quotients = _over_gaps(w, w.dot(transposed, bar), _eigenvalues(w, a))
        _add_lower(w, a_bar, w.dot(w.dot(v, quotients), transposed))


@derivatives("eigenvectors")
def _eigenvectors_tangent(w: Writer, v: Var, arguments: tuple[Var, ...], dot: Var, dots: Bars) -> None:
    (a,), (a_dot,) = arguments, dots
    if a_dot is None:
        return _set_zero(w, dot)
    transposed = w.adjoint_matrix(v)
    inner = w.dot(transposed, w.dot(hermitian(w, a_dot), v))
    product = w.dot(v, _over_gaps(w, inner, _eigenvalues(w, a)))
    w.set(dot, lambda k: w.b.load(product, k))


# ------------------------------------------------------------------------------------------- singular values


@derivatives("singular_values")
def _singular_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: Bars) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is not None:
        _add(w, a_bar, w.dot(_scaled(w, _left(w, a), bar), _right(w, a)))


@derivatives("singular_values")
def _singular_tangent(w: Writer, c: Var, arguments: tuple[Var, ...], dot: Var, dots: Bars) -> None:
    (a,), (a_dot,) = arguments, dots
    if a_dot is None:
        return _set_zero(w, dot)
    moved = w.dot(a_dot, w.adjoint_matrix(_right(w, a)))
    _set_diagonal(w, dot, w.dot(w.adjoint_matrix(_left(w, a)), moved))


def _vectors_adjoint(w: Writer, u: Var, s: Var, transposed: Var, bar: Var) -> Var:
    """The contribution of the adjoint ``bar`` of ``u`` to that of ``u s transposed``."""
    inner = w.dot(w.adjoint_matrix(u), bar)
    j = _over_gaps(w, inner, _squares(w, s))
    both = _combined(w, "add", j, w.adjoint_matrix(j))
    within = w.dot(u, _scaled(w, both, s))
    beyond = _scaled(w, _combined(w, "sub", bar, w.dot(u, inner)), s, divide=True)
    return w.dot(_combined(w, "add", within, beyond), transposed)


def _vectors_tangent(w: Writer, u: Var, s: Var, transposed: Var, a_dot: Var) -> Var:
    """The change of ``u`` where ``u s transposed`` changes by ``a_dot``."""
    moved = w.dot(a_dot, w.adjoint_matrix(transposed))
    inner = w.dot(w.adjoint_matrix(u), moved)
    scaled = _scaled(w, inner, s)
    within = _over_gaps(w, _combined(w, "add", scaled, w.adjoint_matrix(scaled)), _squares(w, s))
    beyond = _scaled(w, _combined(w, "sub", moved, w.dot(u, inner)), s, divide=True)
    return _combined(w, "add", w.dot(u, within), beyond)


def _squares(w: Writer, s: Var) -> Var:
    return w.set(w.like(s, "squares"), lambda k: arithmetic("mul", w.b.load(s, k), w.b.load(s, k)))


@derivatives("left_vectors")
def _left_adjoint(w: Writer, u: Var, arguments: tuple[Var, ...], bar: Var, bars: Bars) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is not None:
        _add(w, a_bar, _vectors_adjoint(w, u, _singular(w, a), _right(w, a), bar))


@derivatives("left_vectors")
def _left_tangent(w: Writer, u: Var, arguments: tuple[Var, ...], dot: Var, dots: Bars) -> None:
    (a,), (a_dot,) = arguments, dots
    if a_dot is None:
        return _set_zero(w, dot)
    found = _vectors_tangent(w, u, _singular(w, a), _right(w, a), a_dot)
    w.set(dot, lambda k: w.b.load(found, k))


@derivatives("right_vectors")
def _right_adjoint(w: Writer, v: Var, arguments: tuple[Var, ...], bar: Var, bars: Bars) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is not None:
        transposed = [w.adjoint_matrix(x) for x in (v, _left(w, a), bar)]
        found = _vectors_adjoint(w, transposed[0], _singular(w, a), transposed[1], transposed[2])
        w.add(a_bar, lambda k: w.b.load(found, k[::-1]))


@derivatives("right_vectors")
def _right_tangent(w: Writer, v: Var, arguments: tuple[Var, ...], dot: Var, dots: Bars) -> None:
    (a,), (a_dot,) = arguments, dots
    if a_dot is None:
        return _set_zero(w, dot)
    transposed = [w.adjoint_matrix(x) for x in (v, _left(w, a), a_dot)]
    found = _vectors_tangent(w, transposed[0], _singular(w, a), transposed[1], transposed[2])
    w.set(dot, lambda k: w.b.load(found, k[::-1]))


# ------------------------------------------------------------------------------------------- pseudoinverses


@derivatives("pinv")
def _pinv_adjoint(w: Writer, c: Var, arguments: tuple[Var, ...], bar: Var, bars: Bars) -> None:
    (a,), (a_bar,) = arguments, bars
    if a_bar is None:
        return
    transposed, bar_transposed = w.adjoint_matrix(c), w.adjoint_matrix(bar)
    first = w.dot(w.dot(transposed, bar), transposed)
    w.add(a_bar, lambda k: ir.Op("neg", (w.b.load(first, k),), a.type.dtype))
    below = w.dot(w.dot(bar_transposed, c), transposed)
    _add(w, a_bar, _combined(w, "sub", below, w.dot(a, w.dot(c, below))))
    right = w.dot(transposed, w.dot(c, bar_transposed))
    _add(w, a_bar, _combined(w, "sub", right, w.dot(w.dot(right, c), a)))


@derivatives("pinv")
def _pinv_tangent(w: Writer, c: Var, arguments: tuple[Var, ...], dot: Var, dots: Bars) -> None:
    (a,), (a_dot,) = arguments, dots
    if a_dot is None:
        return _set_zero(w, dot)
    transposed, dot_transposed = w.adjoint_matrix(c), w.adjoint_matrix(a_dot)
    first = w.dot(w.dot(c, a_dot), c)
    left = w.dot(c, w.dot(transposed, dot_transposed))
    right = w.dot(w.dot(dot_transposed, transposed), c)
    both = _combined(w, "sub", left, w.dot(w.dot(left, a), c))
    more = _combined(w, "sub", right, w.dot(c, w.dot(a, right)))

    def element(k: Index) -> Expr:
        return arithmetic("sub", arithmetic("add", w.b.load(both, k), w.b.load(more, k)), w.b.load(first, k))

    w.set(dot, element)
