"""Derivatives of inverses, solutions of linear systems, determinants and decompositions of matrices.

The formulas pair complex numbers without conjugation: adjoints are conjugated on the way in and out.  Inverses and
systems: Giles, "An extended collection of matrix derivative results", 2008; Cholesky: Murray, "Differentiation of the
Cholesky decomposition", 2016; general eigenvectors: Boeddeker et al., arXiv:1701.00392, (4.77); singular vectors:
Townsend, "Differentiating the singular value decomposition", 2016, and Wan and Zhang, arXiv:1909.02659; QR: Walter and
Lehmann, arXiv:1009.6112.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import is_active, is_inexact, plain_of
from ..arrays.nested import from_nested
from ..base.missing_rules import no_rule
from ..base.structures import bound, leaves, mapped
from ..memory.storages import plain, region_of, wrapped
from ..tape import BaseAdjoint, Push, Sweep, current, transposed
from . import determinants


def _transpose(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _adjoint(x: Any) -> Any:
    return np.conj(_transpose(x))


def _product(*factors: Any) -> Any:
    found = factors[0]
    for factor in factors[1:]:
        found = np.matmul(found, factor)
    return found


def _inv(g: Any, result: Any) -> Any:
    return -_product(_transpose(result), g, _transpose(result))


def pinv_bar(g: Any, a: Any, result: Any) -> Any:
    """The adjoint of a matrix from that of its pseudoinverse, of the same rank or of a lower one."""
    rows, columns, r = np.eye(a.shape[-2]), np.eye(a.shape[-1]), _adjoint(result)
    rest = rows - _product(a, result)
    if _are_large(_product(plain_of(rest), plain_of(a)), plain_of(a)):
        return _truncated_pinv_bar(g, a, result)
    found = _product(rest, _adjoint(g), result, r) - _product(r, g, r)
    return found + _product(r, result, _adjoint(g), columns - _product(result, a))


def _are_large(rest: np.ndarray, a: np.ndarray) -> bool:
    sizes = [np.max(np.abs(x), axis=(-2, -1), initial=0) for x in (rest, a)]
    return bool(np.any(sizes[0] > np.sqrt(np.finfo(a.dtype).eps) * sizes[1]))


def _truncated_pinv_bar(g: Any, a: Any, result: Any) -> Any:
    """The adjoint of a matrix from that of its pseudoinverse without some singular values (``rcond``).

    The pseudoinverse's adjoint is U f(S) Vᴴ, f(s) = 1/s or 0. Its derivative applies difference quotients of f to the
    Hermitian part of Uᴴ Ȧ V and quotients of sums to the other part, and is its own adjoint.
    """
    u, s, vh = np.linalg.svd(a, full_matrices=False)
    v, uh = _adjoint(vh), _adjoint(u)
    kept = plain_of(s) * np.linalg.norm(_product(plain_of(result), plain_of(u)), axis=-2) > 0.5
    f = np.where(kept, 1 / np.where(kept, s, 1), 0)
    s1, f1, k1 = (x[..., :, None] for x in (s, f, kept))
    s2, f2, k2 = (x[..., None, :] for x in (s, f, kept))
    one = k1 != k2
    falling = np.where(one, (f1 - f2) / np.where(one, s1 - s2, 1), -f1 * f2)
    rising = np.where(k1 | k2, (f1 + f2) / np.where(k1 | k2, s1 + s2, 1), 0)
    g = _adjoint(g)
    inner = _product(uh, g, v)
    both, other = 0.5 * (inner + _adjoint(inner)), 0.5 * (inner - _adjoint(inner))
    slopes = f * f
    found = _product(u, falling * both + rising * other, vh)
    found = found + _product((_product(g, v) - _product(u, inner)) * slopes[..., None, :], vh)
    return found + _product(u, slopes[..., :, None] * (_product(uh, g) - _product(inner, vh)))


def _pinv(g: Any, a: Any, result: Any) -> Any:
    return np.conj(pinv_bar(np.conj(g), a, result))


def _qr(g: Any, result: Any) -> Any:
    """Adjoint of `qr` for at least as many rows as columns; LAPACK makes the diagonal of R real."""
    (q, r), (q_bar, r_bar) = result, [np.conj(x) for x in g]
    pairs = _product(r, _adjoint(r_bar)) - _product(_adjoint(q_bar), q)
    below = np.tril(pairs, -1)
    inner = below + _adjoint(below) + np.real(pairs) * np.eye(r.shape[-1])
    return np.conj(_adjoint(np.linalg.solve(r, _adjoint(q_bar + _product(q, inner)))))


def _solve_of_matrix(g: Any, a: Any, result: Any) -> Any:
    return -_product(np.linalg.solve(_transpose(a), g), _transpose(result))


def _solve_of_columns(g: Any, a: Any) -> Any:
    return np.linalg.solve(_transpose(a), g)


def _cholesky(g: Any, result: Any) -> Any:
    """Adjoint of `cholesky`, which reads only the lower triangle."""
    inner = np.tril(np.matmul(_adjoint(result), np.tril(np.conj(g))))
    inner = inner - 0.5 * inner * np.eye(inner.shape[-1])
    left = np.linalg.solve(_adjoint(result), inner)
    full = _adjoint(np.linalg.solve(_adjoint(result), _adjoint(left)))
    both = 0.5 * (full + _adjoint(full))
    return np.conj(np.tril(both) + np.tril(both, -1))


def _eigh(g: Any, result: Any, UPLO: str = "L") -> Any:
    """Adjoint of `eigh`, which reads one triangle; eigenvalues may coincide if the vectors have no adjoint."""
    (w, v), (w_bar, v_bar) = result, g
    diagonal = np.eye(w.shape[-1])
    found = _product(np.conj(v) * w_bar[..., None, :], _transpose(v))
    if np.any(plain(v_bar)):
        gaps = w[..., None, :] - w[..., :, None] + diagonal
        found = found + _product(np.conj(v), (1.0 - diagonal) / gaps * _product(_transpose(v), v_bar), _transpose(v))
    triangle = np.tril(1.0 - diagonal) if UPLO.upper() == "L" else np.triu(1.0 - diagonal)
    return np.real(found) * diagonal + (found + _adjoint(found)) * triangle


def _eig(g: Any, a: Any, result: Any) -> Any:
    (w, v), (w_bar, v_bar) = result, g
    diagonal = np.eye(w.shape[-1])
    factors = 1 / (w[..., None, :] - w[..., :, None] + 1.0e-20) * (1.0 - diagonal)
    vt = _transpose(v)
    inner = _product(vt, v_bar)
    inner_bar = w_bar[..., None] * diagonal + factors * (inner - _product(vt, np.conj(v), np.real(inner) * diagonal))
    found = _product(np.linalg.inv(vt), inner_bar, vt)
    return found if a.dtype.kind == "c" else np.real(found)


def _svd(g: Any, result: Any) -> Any:
    (u, s, vh), (u_bar, s_bar, vh_bar) = result, g
    v, v_bar, diagonal = _adjoint(vh), _adjoint(vh_bar), np.eye(s.shape[-1])
    factors = 1 / (s[..., None, :] ** 2 - s[..., :, None] ** 2 + diagonal)
    of_u, of_v = _product(_transpose(u), u_bar), _product(_transpose(v), v_bar)
    inner = factors * (of_u - _adjoint(of_u)) * s[..., None, :] + diagonal * s_bar[..., :, None]
    inner = inner + s[..., :, None] * (factors * (of_v - _adjoint(of_v)))
    if u.dtype.kind == "c":
        inner = inner + 1j * np.imag(of_u * diagonal) / s[..., None, :]
    found = _product(np.conj(u), inner, _transpose(v))
    m, n = u.shape[-2], v.shape[-2]
    if m < n:
        beside = np.eye(n) - _product(v, vh)
        found = found + np.conj(_product(u / s[..., None, :], _transpose(v_bar), beside))
    elif m > n:
        beside = np.eye(m) - _product(u, _adjoint(u))
        found = found + _transpose(_product(v / s[..., None, :], _transpose(u_bar), beside))
    return found


_LINALG = np.linalg
_ADJOINTS: dict[Callable, tuple[Callable, ...]] = {
    _LINALG.inv: (_inv,),
    _LINALG.pinv: (_pinv,),
    _LINALG.solve: (_solve_of_matrix, _solve_of_columns),
    _LINALG.cholesky: (_cholesky,),
    _LINALG.det: (determinants.det,),
    _LINALG.slogdet: (determinants.slogdet,),
    _LINALG.eigh: (_eigh,),
    _LINALG.eig: (_eig,),
    _LINALG.qr: (_qr,),
    _LINALG.svd: (_svd,),
}
"""For each argument, a function that returns its adjoint. Its first parameter is the result's adjoint; the names of the
others request values: the arguments ``a`` and ``b``, the ``result``, and options."""


class _Factorization(BaseAdjoint):
    __slots__ = ("adjoints", "function", "known", "regions", "results")
    second_order = "differentiated"

    def __call__(self, sweep: Sweep) -> None:
        if not any(sweep.has_shadow(result) for result in self.results):
            return
        g = [np.conj(sweep.shadow(result)) for result in self.results]
        for region, adjoint in zip(self.regions, self.adjoints):
            found = self._of_pairs(sweep, adjoint, g) if sweep.pairs else self._of(adjoint, g)
            sweep.add(region, np.conj(found))

    def _of(self, adjoint: Callable, g: list) -> Any:
        known = {name: self.known[name] for name in _needs(adjoint) if name in self.known}
        return np.asanyarray(adjoint(g[0] if len(g) == 1 else tuple(g), **known))

    def _of_pairs(self, sweep: Any, adjoint: Callable, g: list) -> Any:
        """Compute the adjoint where the result's adjoint has a tangent.

        A rule skips the terms of a zero adjoint, and would so lose those of its tangent. Instead of zero it is given
        another number, whose contribution is then subtracted.
        """
        hidden = [not plain(a).any() and bool(np.any(sweep.tape.tangent_at(a))) for a in g]
        if not any(hidden):
            return self._of(adjoint, g)
        others = [np.full(a.shape, float(h), a.dtype) for a, h in zip(g, hidden)]
        return self._of(adjoint, [a + b for a, b in zip(g, others)]) - self._of(adjoint, others)

    def tangent(self, push: Push) -> None:
        """Apply the transposed adjoint."""
        transposed(push, self, self.regions, self.results)


def _needs(adjoint: Callable) -> list[str]:
    return list(inspect.signature(adjoint).parameters)[1:]


def factorized(function: Callable, *arrays: Any, **options: Any) -> Any:
    """Run a function of this table, some of whose arrays are active, and record it."""
    tape = current()
    assert tape is not None
    result = wrapped(function(*map(plain_of, arrays), **options))
    results = [r for r in leaves(result) if is_inexact(r)]
    active = [k for k, x in enumerate(arrays) if is_active(tape, x)]
    record = _Factorization()
    record.function = function
    record.adjoints = [_ADJOINTS[function][k] for k in active]
    record.regions = [region_of(arrays[k]) for k in active]
    record.results = [region_of(r) for r in leaves(result)]
    needs = {name for adjoint in record.adjoints for name in _needs(adjoint)}
    record.known = {name: tape.need(x) for name, x in zip("ab", arrays) if name in needs} | options
    if "result" in needs:
        record.known["result"] = mapped(tape.need, result)
    for r in results:
        tape.activate(r)
    tape.append(record, created=results)
    return result


def rule(function: Callable, parameters: str = "a", complex_too: bool = True) -> Callable:
    """The rule of a function of one array, the first of its parameters."""

    def run(*arguments: Any, **keywords: Any) -> Any:
        given = bound(parameters, arguments, keywords)
        unknown = set(given) - set(parameters.split())
        if unknown:
            raise no_rule(function, f" with the argument {', '.join(sorted(unknown))}")
        a = np.asanyarray(from_nested(given.pop("a")))
        if not complex_too and a.dtype.kind == "c":
            raise no_rule(function, " for complex arguments")
        return factorized(function, a, **given)

    return run
