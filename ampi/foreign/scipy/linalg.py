"""`scipy.linalg`: systems of equations and decompositions of matrices and stacks of matrices.

Where a function reads one triangle of a matrix, so does its derivative: the other triangle gets zero. The
formulas are those of Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008), and of Wan and Zhang, "Automatic differentiation for complex valued SVD" (2019).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
import scipy.linalg as sl

from ...arrays.elementwise import unbroadcast
from ...rules.definitions import define, refusal
from ...rules.determinants import cofactors
from ...rules.linear_algebra import nearest
from .tracked_arrays import zeros


def h(x: Any) -> Any:
    """The conjugate transpose."""
    return np.conj(np.swapaxes(x, -1, -2))


def t(x: Any) -> Any:
    """The transpose."""
    return np.swapaxes(x, -1, -2)


def columns(b: Any, vector: bool) -> Any:
    """A right-hand side as a matrix."""
    return b[..., None] if vector else b


def _solved(solve: Callable[[Any], Any], g: Any, shape: Any) -> Any:
    """Solve with the adjoint of a solution; a vector on the right of a stack of matrices has a stack of solutions."""
    vector = len(shape) == 1
    found = solve(columns(g, vector))
    return unbroadcast(found[..., 0] if vector else found, shape)


def _diagonal(x: Any) -> Any:
    return np.eye(x.shape[-1], dtype=bool) * x


def _plain_solve(a: Any, b: Any) -> Any:
    return np.linalg.solve(a, b) if a.size and b.size else np.zeros(b.shape, np.result_type(a, b))


# ------------------------------------------------------------------------------------------- the elements that are read


def _triangle(x: Any, lower: Any) -> Any:
    return np.tril(x) if lower else np.triu(x)


def _hermitian(a: Any, lower: Any) -> Any:
    half = _triangle(a, lower)
    return half + h(half) - _diagonal(half.real)


def of_triangle(bar: Any, lower: Any, conjugate: bool = True) -> Any:
    """The adjoint of the triangle that represents a Hermitian (or symmetric) matrix, from that of the matrix."""
    both = bar + (h(bar) if conjugate else t(bar))
    return _triangle(both, lower) - _diagonal(bar if not conjugate else (both - bar.real).astype(bar.dtype))


_MASKS: dict[Any, Callable] = {
    "diagonal": _diagonal,
    "tridiagonal": lambda a: np.triu(np.tril(a, 1), -1),
    "upper triangular": np.triu,
    "lower triangular": np.tril,
}
_SYMMETRIC, _HERMITIAN = ("sym", "symmetric"), ("her", "hermitian", "pos", "positive definite")


def _as_used(a: Any, assume_a: Any, lower: Any) -> Any:
    if assume_a in _SYMMETRIC:
        half = _triangle(a, lower)
        return half + t(half) - _diagonal(half)
    if assume_a in _HERMITIAN:
        return _hermitian(a, lower)
    return _MASKS.get(assume_a, lambda a: a)(a)


def _of_used(bar: Any, assume_a: Any, lower: Any) -> Any:
    if assume_a in _SYMMETRIC:
        return of_triangle(bar, lower, False)
    if assume_a in _HERMITIAN:
        return of_triangle(bar, lower)
    return _MASKS.get(assume_a, lambda a: a)(bar)


# ------------------------------------------------------------------------------------------------ systems of equations


def _solve_b(g: Any, a: Any, shape: Any, lower: Any, assume_a: Any, transposed: Any) -> Any:
    used = _as_used(a, assume_a, lower)
    vector = len(shape) == 1
    found = _plain_solve(used if transposed else h(used), columns(g, vector))
    return unbroadcast(found[..., 0] if vector else found, shape)


def _solve_a(g: Any, a: Any, b: Any, result: Any, shape: Any, lower: Any, assume_a: Any, transposed: Any) -> Any:
    vector = np.ndim(b) == 1
    used = _as_used(a, assume_a, lower)
    bar = _plain_solve(used if transposed else h(used), columns(g, vector))
    found = -np.matmul(bar, h(columns(result, vector)))
    return _of_used(unbroadcast(t(found) if transposed else found, shape), assume_a, lower)


define(sl.solve, adjoint={"a": _solve_a, "b": _solve_b})


def _inv(g: Any, result: Any, assume_a: Any, lower: Any) -> Any:
    return _of_used(-np.matmul(np.matmul(h(result), g), h(result)), assume_a, lower)


def _as_documented(a: Any, assume_a: Any) -> None:
    """Refuse nonzero elements beside the diagonal of a diagonal matrix.

    SciPy may copy them to the result, depending on the memory layout.
    """
    if assume_a == "diagonal" and np.any(a != _diagonal(a)):
        raise refusal(
            "scipy.linalg.inv",
            " with assume_a='diagonal' for a matrix with other elements, which SciPy may leave in the result",
            "take the matrix's diagonal",
        )


if "assume_a" in inspect.signature(sl.inv).parameters:
    define(sl.inv, adjoint={"a": _inv}, require=_as_documented)
else:  # before SciPy 1.17
    define(sl.inv, adjoint={"a": lambda g, result: _inv(g, result, None, False)})


define(sl.det, adjoint={"a": lambda g, a: np.asanyarray(g)[..., None, None] * np.conj(cofactors(a))})

_TRANS = {"N": 0, "T": 1, "C": 2}


def _of_transposed(matrix_bar: Any, trans: int) -> Any:
    """The adjoint of a matrix from that of its transpose or conjugate transpose."""
    return matrix_bar if trans == 0 else t(matrix_bar) if trans == 1 else h(matrix_bar)


def _triangular_columns(g: Any, a: Any, trans: Any, lower: Any, unit_diagonal: Any) -> Any:
    trans = _TRANS.get(trans, trans)
    if trans == 1:
        return np.conj(sl.solve_triangular(a, np.conj(g), 0, lower, unit_diagonal))
    return sl.solve_triangular(a, g, 2 - trans, lower, unit_diagonal)


def _triangular_b(g: Any, a: Any, shape: Any, trans: Any, lower: Any, unit_diagonal: Any) -> Any:
    return _solved(lambda g: _triangular_columns(g, a, trans, lower, unit_diagonal), g, shape)


def _triangular_a(g: Any, a: Any, b: Any, result: Any, shape: Any, trans: Any, lower: Any, unit_diagonal: Any) -> Any:
    vector = np.ndim(b) == 1
    bar = _triangular_columns(columns(g, vector), a, trans, lower, unit_diagonal)
    found = unbroadcast(-np.matmul(bar, h(columns(result, vector))), shape)
    found = _triangle(_of_transposed(found, _TRANS.get(trans, trans)), lower)
    return found - _diagonal(found) if unit_diagonal else found


define(
    sl.solve_triangular,
    adjoint={"a": _triangular_a, "b": _triangular_b},
)


def _banded_bar(bar: Any, x: Any, lower: int, upper: int) -> Any:
    """The sum of -b̄ x̄ᵀ over right-hand sides in banded form."""
    n = x.shape[-2]
    shape = (*np.broadcast_shapes(bar.shape[:-2], x.shape[:-2]), lower + upper + 1, n)
    found = zeros(shape, np.result_type(bar, x), bar)
    for d in range(-upper, lower + 1):
        i, j = slice(max(0, d), n + min(0, d)), slice(max(0, -d), n - max(0, d))
        found[..., upper + d, j] = -(bar[..., i, :] * np.conj(x[..., j, :])).sum(-1)
    return found


def _solve_banded_b(g: Any, l_and_u: Any, ab: Any) -> Any:
    lower, upper = (int(k) for k in l_and_u)
    transposed = np.zeros_like(ab)
    n = ab.shape[-1]
    for d in range(-upper, lower + 1):  # a[j + d, j] is in another row of the transpose
        j = slice(max(0, -d), n - max(0, d))
        i = slice(max(0, d), n + min(0, d))
        transposed[..., lower - d, i] = np.conj(ab[..., upper + d, j])
    return sl.solve_banded((upper, lower), transposed, g)


def _solve_banded_ab(g: Any, l_and_u: Any, ab: Any, b: Any, result: Any, shape: Any) -> Any:
    vector = np.ndim(b) == 1
    bar = _solve_banded_b(columns(g, vector), l_and_u, ab)
    return unbroadcast(_banded_bar(bar, columns(result, vector), *(int(k) for k in l_and_u)), shape)


def _with_axes(ab: Any) -> None:
    if np.ndim(ab) < 2:
        raise refusal("scipy.linalg: a banded matrix", " of one diagonal as a vector", "give it two axes: ab[None]")


define(
    sl.solve_banded,
    require=_with_axes,
    adjoint={
        "b": lambda g, l_and_u, ab, shape: _solved(lambda g: _solve_banded_b(g, l_and_u, ab), g, shape),
        "ab": _solve_banded_ab,
    },
)


def _solveh_banded_ab(g: Any, ab: Any, b: Any, result: Any, lower: Any, shape: Any) -> Any:
    vector = np.ndim(b) == 1
    bar, x = sl.solveh_banded(ab, columns(g, vector), lower=lower), columns(result, vector)
    return unbroadcast(_hermitian_band(bar, x, shape[-2] - 1, lower), shape)


def _hermitian_band(bar: Any, x: Any, k: int, lower: Any) -> Any:
    full = _banded_bar(bar, x, k, k)  # rows: d = -k … k
    n = full.shape[-1]
    found = full[..., k:, :].copy() if lower else full[..., : k + 1, :].copy()
    for d in range(1, k + 1):
        if lower:
            found[..., d, : n - d] += np.conj(full[..., k - d, d:])
        else:
            found[..., k - d, d:] += np.conj(full[..., k + d, : n - d])
    row = 0 if lower else k
    found[..., row, :] = found[..., row, :].real
    return found


define(
    sl.solveh_banded,
    require=_with_axes,
    adjoint={
        "b": lambda g, ab, lower, shape: _solved(lambda g: sl.solveh_banded(ab, g, lower=lower), g, shape),
        "ab": _solveh_banded_ab,
    },
)


_ROWS = -2 if tuple(map(int, scipy.__version__.split(".")[:2])) >= (1, 17) else 0
"""The axis of a right-hand side along which a Toeplitz matrix is applied; older versions of SciPy know no stacks."""


def _toeplitz_parts(c_or_cr: Any) -> tuple:
    """Column and row of a Toeplitz matrix, and whether the row is the column's conjugate."""
    if isinstance(c_or_cr, tuple):
        return np.ravel(c_or_cr[0]), np.ravel(c_or_cr[1]), False
    return np.ravel(c_or_cr), np.conj(np.ravel(c_or_cr)), True


def _toeplitz_bar(left: Any, right: Any, c_or_cr: Any) -> Any:
    """The adjoint of column and row, from that of the matrix as left @ rightᴴ: sums over its diagonals."""
    one = _toeplitz_parts(c_or_cr)[-1]
    left, right = (columns(x, x.ndim == 1) for x in (left, right))
    left, right = (np.moveaxis(x, _ROWS, 0).reshape(x.shape[_ROWS], -1) for x in (left, right))
    sums = sum(np.convolve(left[:, k], np.conj(right[::-1, k])) for k in range(left.shape[1]))
    middle = len(right) - 1
    c_bar, r_bar = sums[middle:].copy(), sums[middle::-1].copy()
    r_bar[0] = 0  # the corner is the column's
    if not one:
        return c_bar.reshape(np.shape(c_or_cr[0])), r_bar.reshape(np.shape(c_or_cr[1]))
    return (c_bar + np.conj(r_bar)).reshape(np.shape(c_or_cr))


def _toeplitz_h(c_or_cr: Any) -> tuple:
    column, row, _ = _toeplitz_parts(c_or_cr)
    first = np.conj(row).astype(np.result_type(row, column))
    first[0] = np.conj(column[0])
    return first, np.conj(column)


def _one_matrix(c_or_cr: Any) -> None:
    if any(np.ndim(x) != 1 for x in (c_or_cr if isinstance(c_or_cr, tuple) else (c_or_cr,))):
        raise refusal("scipy.linalg: a Toeplitz matrix", " for several matrices")


define(
    sl.solve_toeplitz,
    require=_one_matrix,
    adjoint={
        "b": lambda g, c_or_cr: sl.solve_toeplitz(_toeplitz_h(c_or_cr), g),
        "c_or_cr": lambda g, c_or_cr, result: _toeplitz_bar(
            -sl.solve_toeplitz(_toeplitz_h(c_or_cr), g), result, c_or_cr
        ),
    },
)
define(
    sl.matmul_toeplitz,
    require=_one_matrix,
    adjoint={
        "x": lambda g, c_or_cr: sl.matmul_toeplitz(_toeplitz_h(c_or_cr), g),
        "c_or_cr": lambda g, c_or_cr, x: _toeplitz_bar(g, x, c_or_cr),
    },
)


# ------------------------------------------------------------------------------------------------------- factorizations


def _permutation(piv: Any) -> Any:
    order = np.arange(len(piv))
    for k, other in enumerate(piv):
        order[[k, other]] = order[[other, k]]
    return order


def _square(a: Any) -> None:
    if np.ndim(a) != 2 or np.shape(a)[0] != np.shape(a)[1]:
        raise refusal("scipy.linalg: an LU decomposition", " of a matrix that is not square, or of several matrices")


def _unpacked(lu: Any) -> tuple[Any, Any]:
    return np.tril(lu, -1) + np.eye(len(lu), dtype=lu.dtype), np.triu(lu)


def _lu_bar(lower: Any, upper: Any, l_bar: Any, u_bar: Any) -> Any:
    """The adjoint of the matrix with its rows in order from those of its factors."""
    middle = np.tril(h(lower) @ l_bar, -1) + np.triu(u_bar @ h(upper))
    left = sl.solve_triangular(h(lower), middle, lower=False, unit_diagonal=True)
    return h(sl.solve_triangular(upper, h(left), lower=False))


def _lu_factor(g: Any, result: Any) -> Any:
    lu, piv = result
    bar = _lu_bar(*_unpacked(lu), np.tril(g[0], -1), np.triu(g[0]))
    return bar[np.argsort(_permutation(piv))]


def _lu_solve_b(g: Any, lu_and_piv: Any, trans: Any, shape: Any) -> Any:
    if trans == 1:
        return unbroadcast(np.conj(sl.lu_solve(lu_and_piv, np.conj(g), 0)), shape)
    return unbroadcast(sl.lu_solve(lu_and_piv, g, 2 - trans), shape)


def _lu_solve_lu(g: Any, lu_and_piv: Any, b: Any, trans: Any, result: Any) -> Any:
    lu, piv = lu_and_piv
    vector = np.ndim(b) == 1
    bar = columns(_lu_solve_b(g, lu_and_piv, trans, g.shape), vector)
    bar = unbroadcast(-bar @ h(columns(result, vector)), lu.shape)
    bar = _of_transposed(bar, trans)[_permutation(piv)]
    lower, upper = _unpacked(lu)
    return np.tril(bar @ h(upper), -1) + np.triu(h(lower) @ bar), None


def _lu(g: Any, a: Any, permute_l: Any) -> Any:
    order, lower, upper = sl.lu(a, p_indices=True)
    l_bar, u_bar = g[-2], g[-1]
    bar = _lu_bar(lower, upper, np.tril(l_bar[np.argsort(order)] if permute_l else l_bar, -1), np.triu(u_bar))
    return bar[order]


define(sl.lu_factor, adjoint={"a": _lu_factor}, require=_square)
define(
    sl.lu_solve,
    adjoint={"b": _lu_solve_b, "lu_and_piv": _lu_solve_lu},
    require=lambda lu_and_piv: _square(lu_and_piv[0]),
)
define(sl.lu, adjoint={"a": _lu}, require=_square)


def _cholesky_bar(factor: Any, bar: Any, lower: Any) -> Any:
    if not lower:
        factor, bar = h(factor), h(bar)
    factor, bar = np.tril(factor), np.tril(bar)
    inner = np.tril(np.matmul(h(factor), bar))
    inner = inner - 0.5 * _diagonal(inner)
    left = _plain_solve(h(factor), inner)
    full = h(_plain_solve(h(factor), h(left)))
    return of_triangle(0.5 * (full + h(full)), lower)


define(sl.cholesky, adjoint={"a": lambda g, result, lower: _cholesky_bar(result, g, lower)})


_OTHER = float(sl.cho_factor(np.array([[4.0, 1.0], [1.0, 4.0]]))[0][1, 0])
"""An element of the triangle that `cho_factor` does not use: SciPy copies the argument's (1), since 1.18 it is zero."""


def _cho_factor(g: Any, result: Any, lower: Any) -> Any:
    bar = _cholesky_bar(result[0], g[0], lower)
    return bar + (np.triu(g[0], 1) if lower else np.tril(g[0], -1)) if _OTHER else bar


define(sl.cho_factor, adjoint={"a": _cho_factor})


def _cho_solve_c(g: Any, c_and_lower: Any, b: Any, result: Any) -> Any:
    c, lower = c_and_lower
    vector = np.ndim(b) == 1
    bar = -np.matmul(sl.cho_solve(c_and_lower, columns(g, vector)), h(columns(result, vector)))
    bar = unbroadcast(bar, c.shape)
    factor = _triangle(c, lower)
    both = bar + h(bar)
    return _triangle(np.matmul(both, factor) if lower else np.matmul(factor, both), lower), None


define(
    sl.cho_solve,
    adjoint={
        "b": lambda g, c_and_lower, shape: _solved(lambda g: sl.cho_solve(c_and_lower, g), g, shape),
        "c_and_lower": _cho_solve_c,
    },
)
define(
    sl.cho_solve_banded,
    adjoint={"b": lambda g, cb_and_lower, shape: _solved(lambda g: sl.cho_solve_banded(cb_and_lower, g), g, shape)},
)


def _qr(g: Any, a: Any, mode: Any) -> Any:
    q, r = sl.qr(a, mode="economic")
    q_bar, r_bar = (np.zeros_like(q), g[0] if isinstance(g, tuple) else g) if mode == "r" else g
    r_bar = np.triu(r_bar)
    inner = np.matmul(r, h(r_bar)) - np.matmul(h(q_bar), q)
    lower = np.tril(inner, -1)
    inner = lower + h(lower) + _diagonal(inner.real)
    return h(_plain_solve(r, h(q_bar + np.matmul(q, inner))))


def _qr_known(a: Any, mode: Any, pivoting: Any) -> None:
    m, n = np.shape(a)[-2:]
    if pivoting or m < n or mode == "raw" or (mode != "economic" and m != n):
        known = "matrices with as many rows as columns, or more rows with mode='economic',"
        raise refusal("scipy.linalg.qr", f" except for {known}")


define(sl.qr, adjoint={"a": _qr}, require=_qr_known)


def _inverse_or_zero(x: Any) -> Any:
    return np.where(x == 0, 0.0, 1.0 / np.where(x == 0, 1.0, x))


def _eigh(
    g: Any, a: Any, result: Any, lower: Any, eigvals_only: Any, subset_by_index: Any, subset_by_value: Any
) -> Any:
    some = {"subset_by_index": subset_by_index, "subset_by_value": subset_by_value}
    if eigvals_only:
        _, v = sl.eigh(a, lower=lower, **some)
        return _eigh_fold(np.matmul(v * g[..., None, :], h(v)), lower)
    (w, v), (w_bar, v_bar) = result, g
    gaps = _inverse_or_zero(w[..., None, :] - w[..., :, None])
    inner = gaps * np.matmul(h(v), v_bar) + np.eye(w.shape[-1]) * w_bar[..., None, :]
    return _eigh_fold(np.matmul(np.matmul(v, inner), h(v)), lower)


def _eigh_fold(bar: Any, lower: Any) -> Any:
    return of_triangle(0.5 * (bar + h(bar)), lower)


def _whole(b: Any, eigvals_only: Any, subset_by_index: Any, subset_by_value: Any) -> None:
    if b is not None or (not eigvals_only and (subset_by_index is not None or subset_by_value is not None)):
        raise refusal("scipy.linalg.eigh", " of two matrices, or for a part of the eigenvectors,")


def _alone(b: Any) -> None:
    if b is not None:
        raise refusal("scipy.linalg: eigenvalues", " of two matrices")


define(sl.eigh, adjoint={"a": _eigh}, require=_whole)
define(
    sl.eigvalsh,
    adjoint={
        "a": lambda g, a, result, lower, subset_by_index, subset_by_value: _eigh(
            g, a, result, lower, True, subset_by_index, subset_by_value
        ),
    },
    require=_alone,
)


def _svd(g: Any, a: Any, result: Any, compute_uv: Any) -> Any:
    if not compute_uv:
        return svdvals_bar(g, a)
    u, s, vh = result
    u_bar, s_bar, v_bar = g[0], g[1], h(g[2])
    v, one = h(vh), np.eye(s.shape[-1])
    squares = s * s
    gaps = _inverse_or_zero(squares[..., None, :] - squares[..., :, None])
    inverse = _inverse_or_zero(s)
    left, right = gaps * np.matmul(h(u), u_bar), gaps * np.matmul(h(v), v_bar)
    inner = (left + h(left)) * s[..., None, :] + s[..., :, None] * (right + h(right)) + one * s_bar[..., None, :]
    if np.iscomplexobj(a):
        phase = one * np.matmul(h(v), v_bar)
        inner = inner + 0.5 * inverse[..., :, None] * (h(phase) - phase)
    found = np.matmul(np.matmul(u, inner), vh)
    if a.shape[-2] > a.shape[-1]:
        rest = u_bar * inverse[..., None, :]
        found = found + np.matmul(rest - np.matmul(u, np.matmul(h(u), rest)), vh)
    if a.shape[-1] > a.shape[-2]:
        rest = inverse[..., :, None] * h(v_bar)
        found = found + np.matmul(u, rest - np.matmul(np.matmul(rest, v), vh))
    return found


def svdvals_bar(g: Any, a: Any) -> Any:
    """The adjoint of a matrix from that of its singular values."""
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    return np.matmul(u * np.where(s > 0, g, 0)[..., None, :], vh)


def _thin(a: Any, full_matrices: Any, compute_uv: Any) -> None:
    if compute_uv and full_matrices and np.shape(a)[-1] != np.shape(a)[-2]:
        raise refusal("scipy.linalg.svd", " with full_matrices=True for a matrix that is not square")


define(sl.svd, adjoint={"a": _svd}, require=_thin)
define(sl.svdvals, adjoint={"a": svdvals_bar})


def _simple(b: Any, homogeneous_eigvals: Any) -> None:
    if b is not None or homogeneous_eigvals:
        raise refusal("scipy.linalg.eigvals", " of two matrices, or of homogeneous eigenvalues,")


def _eigvals(g: Any, a: Any, result: Any) -> Any:
    w, v = np.linalg.eig(a)
    v = np.take_along_axis(v, nearest(w, result)[..., None, :], -1)
    return _plain_solve(h(v), np.asanyarray(g)[..., :, None] * h(v))


define(sl.eigvals, adjoint={"a": _eigvals}, require=_simple)
