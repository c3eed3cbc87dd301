"""NumPy's polynomials in arrays of coefficients: values, sums, products, derivatives, roots and fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..arrays.exact import exactly
from ..arrays.nested import as_array as _array
from ..base.missing_rules import no_rule
from ..memory.storages import plain, tracked


def _coefficients(x: Any) -> Any:
    return np.atleast_1d(_array(x))


def _of_arrays(function: Callable) -> Callable:
    """Decorate a formula for arrays of coefficients; `numpy.poly1d` is refused, since it does not keep derivatives."""

    def decorate(formula: Callable) -> Callable:
        exact = exactly(function)(formula)

        def run(*arguments: Any, **keywords: Any) -> Any:
            if any(isinstance(x, np.poly1d) for x in (*arguments, *keywords.values())):
                raise no_rule(function, " of a numpy.poly1d (pass the array of its coefficients)")
            return exact(*arguments, **keywords)

        return run

    return decorate


@exactly(np.polyval)
def _polyval(p: Any, x: Any) -> Any:
    p, x = _array(p), _array(x)
    result = np.zeros_like(plain(x), dtype=np.result_type(p, x)).view(type(x))
    for k in range(len(p)):
        result = result * x + p[k]
    return result


def _padded(p: Any, length: int) -> Any:
    return np.concatenate([np.zeros_like(plain(p), shape=length - len(p)), p]) if length > len(p) else p


@_of_arrays(np.polyadd)
def _polyadd(a1: Any, a2: Any) -> Any:
    a1, a2 = _coefficients(a1), _coefficients(a2)
    return _padded(a1, len(a2)) + _padded(a2, len(a1))


@_of_arrays(np.polysub)
def _polysub(a1: Any, a2: Any) -> Any:
    a1, a2 = _coefficients(a1), _coefficients(a2)
    return _padded(a1, len(a2)) - _padded(a2, len(a1))


def _without_leading_zeros(p: Any) -> Any:
    p = _coefficients(p)
    present = np.flatnonzero(plain(p))
    return p[present[0] :] if present.size else p[-1:]


@_of_arrays(np.polymul)
def _polymul(a1: Any, a2: Any) -> Any:
    return np.convolve(_without_leading_zeros(a1), _without_leading_zeros(a2))


@_of_arrays(np.polydiv)
def _polydiv(u: Any, v: Any) -> Any:
    exact = np.polydiv(plain_of(u), plain_of(v))
    u, v = _coefficients(u) + 0.0, _coefficients(v) + 0.0
    steps, quotient = max(len(u) - len(v) + 1, 1), []
    for k in range(steps):
        quotient.append(u[k] / v[0])
        if len(u) >= len(v):
            u = u - np.concatenate([np.zeros(k), quotient[-1] * v, np.zeros(len(u) - len(v) - k)])
    return np.stack(quotient) if len(u) >= len(v) else 0.0 * u[:1], u[len(u) - len(exact[1]) :]


@_of_arrays(np.polyder)
def _polyder(p: Any, m: int = 1) -> Any:
    p = _array(p)
    for _ in range(m):
        p = p[:-1] * np.arange(len(p) - 1, 0, -1)
    return p


@_of_arrays(np.polyint)
def _polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    p = _array(p)
    constants = np.broadcast_to(np.atleast_1d(_array(0.0 if k is None else k)), (max(m, 1),))
    for i in range(m):
        p = np.concatenate([p / np.arange(len(p), 0, -1), constants[i : i + 1]])
    return p


@exactly(np.poly)
def _poly(seq_of_zeros: Any) -> Any:
    exact = np.poly(plain_of(seq_of_zeros))
    zeros = np.atleast_1d(_array(seq_of_zeros))
    zeros = np.linalg.eigvals(zeros) if zeros.ndim == 2 else zeros
    result = np.ones(1)
    for k in range(len(zeros)):
        result = np.concatenate([result, [0.0]]) - zeros[k] * np.concatenate([[0.0], result])
    return result if np.iscomplexobj(exact) else result.real


@exactly(np.roots)
def _roots(p: Any) -> Any:
    """Two steps of Newton's method from NumPy's values: the first has the right derivative, the second its derivative.

    Roots at zero, of trailing coefficients that are zero, stay constant.
    """
    exact = np.roots(plain_of(p))
    p = _coefficients(p)
    present = np.flatnonzero(plain(p))
    if not present.size or not exact.size:
        return tracked(exact)
    p = p[present[0] : present[-1] + 1]
    found = exact[: len(p) - 1]
    for _ in range(2):
        found = found - np.polyval(p, found) / np.polyval(np.polyder(p), found)
    return np.concatenate([found, exact[len(p) - 1 :]])


@exactly(np.vander)
def _vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    x = _array(x)
    powers = [np.ones_like(plain(x)).view(type(x))]
    for _ in range(1, len(x) if N is None else N):
        powers.append(powers[-1] * x)
    if N == 0:
        return np.stack(powers, axis=1)[:, :0]
    return np.stack(powers if increasing else powers[::-1], axis=1)


@exactly(np.polyfit)
def _polyfit(x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    x, y = _array(x) + 0.0, _array(y) + 0.0
    rcond = len(x) * np.finfo(x.dtype).eps if rcond is None else rcond
    powers = np.vander(x, int(deg) + 1)
    if w is not None:
        w = _array(w) + 0.0
        powers, y = powers * w[:, None], y * (w[:, None] if y.ndim == 2 else w)
    scale = np.sqrt((powers * powers).sum(axis=0))
    c, residuals, rank, s = np.linalg.lstsq(powers / scale, y, rcond)
    c = (c.T / scale).T
    if full:
        return c, residuals, rank, s, rcond
    if not cov:
        return c
    inverse = np.linalg.inv(np.matmul((powers / scale).T, powers / scale)) / np.outer(scale, scale)
    factor = 1.0 if cov == "unscaled" else residuals / (len(x) - len(scale))
    return c, inverse * factor if y.ndim == 1 else inverse[:, :, None] * factor


RULES: dict[Callable, Callable] = {
    np.poly: _poly,
    np.polyadd: _polyadd,
    np.polyder: _polyder,
    np.polydiv: _polydiv,
    np.polyfit: _polyfit,
    np.polyint: _polyint,
    np.polymul: _polymul,
    np.polysub: _polysub,
    np.polyval: _polyval,
    np.roots: _roots,
    np.vander: _vander,
}
