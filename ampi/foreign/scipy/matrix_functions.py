"""`scipy.linalg`: pseudoinverses, functions of matrices, and structured matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as sl

import ampi.numpy as anp

from ...arrays.elementwise import unbroadcast
from ...rules.definitions import define, refusal
from ...rules.factorizations import pinv_bar
from .linalg import columns, h, svdvals_bar
from .tracked_arrays import as_tracked

define(
    sl.pinv,
    adjoint={
        "a": lambda g, a, result, return_rank: pinv_bar(g[0], a, result[0]) if return_rank else pinv_bar(g, a, result)
    },
)


def _pinv_of_rank(a: Any, rank: Any, pivoted: bool) -> Any:
    """The pseudoinverse with a number of singular values (``cond`` decides)."""
    s, rank = np.linalg.svd(a, compute_uv=False), np.asarray(rank)
    if not s.shape[-1] or np.all(rank == s.shape[-1]):
        return np.linalg.pinv(a, rcond=0)
    around = np.concatenate([2 * s[..., :1], s, np.zeros_like(s[..., :1])], -1)
    last, after = (np.take_along_axis(around, (rank + k)[..., None], -1)[..., 0] for k in (0, 1))
    if pivoted and np.any(after > np.sqrt(np.finfo(s.dtype).eps) * s[..., 0]):
        raise refusal(
            "scipy.linalg.lstsq",
            " with lapack_driver='gelsy' for a matrix of a lower rank by cond",
            "use lapack_driver='gelsd'",
        )
    return np.linalg.pinv(a, rcond=(last + after) / (2 * np.where(s[..., 0] > 0, s[..., 0], 1)))


def _lstsq(g: Any, a: Any, b: Any, result: Any) -> tuple:
    x, squares, rank, s = result
    p, vector = _pinv_of_rank(a, rank, s is None), np.ndim(b) == 1
    b2, x2, g2 = columns(b, vector), columns(x, vector), columns(g[0], vector)
    b_bar = np.matmul(h(p), g2)
    a_bar = pinv_bar(np.matmul(g2, h(b2)), a, p)
    if np.size(squares):
        rest = 2 * (b2 - np.matmul(a, x2)) * np.reshape(np.real(g[1]), (*np.shape(x2)[:-2], 1, -1))
        b_bar, a_bar = b_bar + rest, a_bar - np.matmul(rest, h(x2))
    if s is not None and np.any(g[3]):
        a_bar = a_bar + svdvals_bar(g[3], a)
    return unbroadcast(a_bar, np.shape(a)), unbroadcast(b_bar[..., 0] if vector else b_bar, np.shape(b))


define(
    sl.lstsq,
    adjoint={
        "a": lambda g, a, b, result: _lstsq(g, a, b, result)[0],
        "b": lambda g, a, b, result: _lstsq(g, a, b, result)[1],
    },
)


def _expm_bar(g: Any, A: Any) -> Any:
    """The adjoint of `expm`; `expm_frechet` only takes single matrices before SciPy 1.17."""
    if A.ndim == 2:
        return sl.expm_frechet(h(A), g, compute_expm=False)
    return np.stack([_expm_bar(g[k], A[k]) for k in range(len(A))]) if len(A) else g


define(sl.expm, adjoint={"A": _expm_bar})
define(
    sl.expm_frechet,
    adjoint={
        "E": lambda g, A, compute_expm: sl.expm_frechet(h(A), g[1] if compute_expm else g, compute_expm=False),
    },
)
define(sl.sqrtm, adjoint={"A": lambda g, result: sl.solve_sylvester(h(result), h(result), g.astype(result.dtype))})
define(
    sl.solve_sylvester,
    adjoint={
        "a": lambda g, a, b, result: -np.matmul(sl.solve_sylvester(h(a), h(b), g), h(result)),
        "b": lambda g, a, b, result: -np.matmul(h(result), sl.solve_sylvester(h(a), h(b), g)),
        "q": lambda g, a, b: sl.solve_sylvester(h(a), h(b), g),
    },
)


@define(sl.norm)
def _norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Any:
    return np.linalg.norm(a, ord, axis, keepdims)


# ----------------------------------------------------------------------------------------------------- special matrices


def _flat(x: Any) -> Any:
    return as_tracked(x).reshape(-1)


@define(sl.toeplitz)
def _toeplitz(c: Any, r: Any = None) -> Any:
    c = _flat(c)
    r = np.conj(c) if r is None else _flat(r)
    i, j = np.indices((len(c), len(r)))
    return np.concatenate([r[:0:-1], c])[i - j + len(r) - 1]


@define(sl.hankel)
def _hankel(c: Any, r: Any = None) -> Any:
    c = _flat(c)
    r = np.zeros_like(c) if r is None else _flat(r)
    i, j = np.indices((len(c), len(r)))
    return np.concatenate([c, r[1:]])[i + j]


@define(sl.circulant)
def _circulant(c: Any) -> Any:
    c = as_tracked(c)
    i, j = np.indices((c.shape[-1],) * 2)
    return c[..., (i - j) % c.shape[-1]]


@define(sl.block_diag)
def _block_diag(*arrs: Any) -> Any:
    blocks = [np.atleast_2d(as_tracked(a)) for a in arrs]
    if any(block.ndim > 2 for block in blocks):
        raise refusal("scipy.linalg.block_diag", " for several matrices")
    result = anp.zeros([sum(block.shape[k] for block in blocks) for k in (0, 1)], np.result_type(*blocks))
    i = j = 0
    for block in blocks:
        result[i : i + block.shape[0], j : j + block.shape[1]] = block
        i, j = i + block.shape[0], j + block.shape[1]
    return result
