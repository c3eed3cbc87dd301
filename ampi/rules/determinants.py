"""Derivatives of determinants, from matrices of cofactors, for singular matrices as well.

∂ det A / ∂A is the matrix of cofactors, det(A) A⁻ᵀ where A is regular and det(A) a number that is neither zero nor
infinite.  Otherwise the cofactors are determinants of minors, or come from singular values if there are too many.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..base.missing_rules import no_rule
from ..memory.storages import TrackedArray

_MOST_BY_MINORS = 6
_MOST_BY_MINORS_TWICE = 24
"""Largest size for minors where the cofactors themselves are differentiated, which singular values do not allow."""


def cofactors(a: Any) -> Any:
    """The matrices of cofactors of a stack of matrices, which may carry derivatives."""
    values = plain_of(a)
    if not values.size:
        return np.ones_like(values)
    with np.errstate(all="ignore"):
        det = np.linalg.det(values)
    is_hard = (det == 0) | ~np.isfinite(det)
    if not is_hard.any():
        return _by_inverse(a)
    if is_hard.all():
        return _by_parts(a)
    flat, hard = a.reshape(-1, *a.shape[-2:]), is_hard.reshape(-1)
    found = [_by_parts(flat[hard]), _by_inverse(flat[~hard])]
    order = np.argsort(np.concatenate([np.flatnonzero(hard), np.flatnonzero(~hard)]))
    return np.concatenate(found)[order].reshape(a.shape)


def _by_inverse(a: Any) -> Any:
    return np.linalg.det(a)[..., None, None] * np.swapaxes(np.linalg.inv(a), -1, -2)


def _by_parts(a: Any) -> Any:
    n = a.shape[-1]
    twice = isinstance(a, TrackedArray)
    if n <= (_MOST_BY_MINORS_TWICE if twice else _MOST_BY_MINORS):
        return _by_minors(a)
    if twice:
        raise no_rule(np.linalg.det, f" of second order at a singular matrix of {n} rows")
    u, s, vh = np.linalg.svd(a)
    others = np.stack([np.prod(np.delete(s, k, -1), -1) for k in range(n)], -1)
    return (np.linalg.det(u) * np.linalg.det(vh))[..., None, None] * np.conj(np.matmul(u * others[..., None, :], vh))


def _by_minors(a: Any) -> Any:
    n = a.shape[-1]
    others = np.array([[k for k in range(n) if k != i] for i in range(n)], np.intp).reshape(n, n - 1)
    signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
    if n == 1:
        return np.ones_like(plain_of(a))
    return signs * np.linalg.det(a[..., others[:, None, :, None], others[None, :, None, :]])


def det(g: Any, a: Any) -> Any:
    """The adjoint of the argument of `numpy.linalg.det`."""
    return np.asanyarray(g)[..., None, None] * cofactors(a)


def slogdet(g: Any, a: Any) -> Any:
    """The adjoint of the argument of `numpy.linalg.slogdet`, of real matrices; infinite at singular ones."""
    inverse_det = 1.0 / np.linalg.det(plain_of(a))
    if np.isfinite(inverse_det).all() and (inverse_det != 0).all():
        found = np.swapaxes(np.linalg.inv(a), -1, -2)
    else:
        found = _scaled_inverse(a)
    g = np.asanyarray(g[1])[..., None, None]
    return np.where(plain_of(g) == 0, 0.0, g * found)


def _scaled_inverse(a: Any) -> Any:
    """A⁻ᵀ; for a singular matrix infinite where the cofactor is not zero."""
    flat = a.reshape(-1, *a.shape[-2:])
    return np.stack([_inverse_of_one(m) for m in flat]).reshape(a.shape)


def _inverse_of_one(m: Any) -> Any:
    try:
        return np.swapaxes(np.linalg.inv(m), -1, -2)
    except np.linalg.LinAlgError:
        found = plain_of(cofactors(plain_of(m)))
        return np.where(found == 0, 0.0, np.copysign(np.inf, found))
