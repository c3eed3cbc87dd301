"""Derivatives of SciPy's special functions with respect to parameters and orders, and densities.

Incomplete gamma and beta functions, in first and second order: the series and continued fractions of Press et al.,
*Numerical Recipes*, 6.2 and 6.4, in Taylor arithmetic: a triple is a number with its first and second derivative along
one direction.  Student's distribution function is taken from the incomplete beta function (Abramowitz and Stegun,
26.7.1), the noncentral chi-squared one is a mixture (26.4.25).  Bessel functions: DLMF 10.32, 10.38.
"""

from __future__ import annotations

import math
from typing import Any

import numba

from ampi.kernel.runtime import scipy_formulas
from ampi.kernel.runtime.special import digamma, trigamma

gamma_density = scipy_formulas.FUNCTIONS["gamma_density"]

_SMALL = 1e-17  # of the last term, in comparison with the sum
_TINY = 1e-300
_MOST = 100_000  # terms


# ------------------------------------------------------------------------------------------------ Taylor arithmetic


@numba.njit
def _times(p, q):
    return p[0] * q[0], p[0] * q[1] + p[1] * q[0], p[0] * q[2] + 2.0 * p[1] * q[1] + p[2] * q[0]


@numba.njit
def _inverse(p):
    r = 1.0 / p[0]
    return r, -p[1] * r * r, (2.0 * p[1] * p[1] * r - p[2]) * r * r


@numba.njit
def _log(p):
    slope = p[1] / p[0]
    return math.log(p[0]), slope, p[2] / p[0] - slope * slope


@numba.njit
def _lgamma(p):
    psi = digamma(p[0])
    return math.lgamma(p[0]), psi * p[1], trigamma(p[0]) * p[1] * p[1] + psi * p[2]


@numba.njit
def _exp(p):
    r = math.exp(p[0])
    return r, r * p[1], r * (p[1] * p[1] + p[2])


@numba.njit
def _sum(p, q, factor):
    """p + factor * q"""
    return p[0] + factor * q[0], p[1] + factor * q[1], p[2] + factor * q[2]


@numba.njit
def _scaled(p, factor):
    return factor * p[0], factor * p[1], factor * p[2]


@numba.njit
def _shifted(p, number):
    return p[0] + number if abs(p[0] + number) > _TINY else _TINY, p[1], p[2]


# ------------------------------------------------------------------------------------------ incomplete gamma function


@numba.njit
def _gammainc(a, x):
    """P(a, x) in Taylor arithmetic along ``a``; its value is -Q where Q = 1 - P is smaller."""
    if not (a > 0.0 and 0.0 <= x):
        return math.nan, math.nan, math.nan
    if x == 0.0 or x == math.inf:
        return 0.0, 0.0, 0.0
    order = (a, 1.0, 0.0)
    front = (a * math.log(x) - x, math.log(x), 0.0)
    if x < a + 1.0:
        front = _exp(_sum(front, _lgamma(_shifted(order, 1.0)), -1.0))
        term = total = (1.0, 0.0, 0.0)
        for k in range(1, _MOST):
            term = _times(term, _times((x, 0.0, 0.0), _inverse(_shifted(order, float(k)))))
            total = _sum(total, term, 1.0)
            if term[0] < _SMALL * total[0] and abs(term[2]) <= _SMALL * abs(total[2]):
                break
        return _times(front, total)
    front = _exp(_sum(front, _lgamma(order), -1.0))
    b = (x + 1.0 - a, -1.0, 0.0)
    c = (1.0 / _TINY, 0.0, 0.0)
    d = h = _inverse(b)
    close = 0
    for k in range(1, _MOST):
        factor = (-k * (k - a), float(k), 0.0)
        b = _shifted(b, 2.0)
        d = _inverse(_shifted(_sum(b, _times(factor, d), 1.0), 0.0))
        c = _shifted(_sum(b, _times(factor, _inverse(c)), 1.0), 0.0)
        change = _times(c, d)
        h = _times(h, change)
        close = close + 1 if _is_one(change) else 0
        if close == 4:
            break
    return _scaled(_times(front, h), -1.0)


@numba.njit
def _is_one(p):
    return abs(p[0] - 1.0) < 1e-15 and abs(p[1]) < 1e-15 and abs(p[2]) < 1e-15


@numba.njit
def gammainc_a(a, x):
    return _gammainc(a, x)[1]


@numba.njit
def gammainc_aa(a, x):
    return _gammainc(a, x)[2]


# ------------------------------------------------------------------------------------------- incomplete beta function


@numba.njit
def _betainc(a, b, x, y):
    """I(a, b; x) in Taylor arithmetic, y = 1 - x; its value is I - 1 where the complement 1 - I is smaller."""
    if not (a[0] > 0.0 and b[0] > 0.0 and 0.0 <= x[0] <= 1.0):
        return math.nan, math.nan, math.nan
    if x[0] == 0.0 or y[0] == 0.0:
        return 0.0, 0.0, 0.0
    if x[0] < (a[0] + 1.0) / (a[0] + b[0] + 2.0):
        return _lower_beta(a, b, x, y)
    return _scaled(_lower_beta(b, a, y, x), -1.0)


@numba.njit
def _lower_beta(a, b, x, y):
    front = _sum(_times(a, _log(x)), _times(b, _log(y)), 1.0)
    front = _sum(front, _lgamma(_sum(a, b, 1.0)), 1.0)
    front = _sum(_sum(front, _lgamma(_shifted(a, 1.0)), -1.0), _lgamma(b), -1.0)
    return _times(_exp(front), _fraction(a, b, x))


@numba.njit
def _fraction(a, b, x):
    both = _sum(a, b, 1.0)
    c = (1.0, 0.0, 0.0)
    factor = _times(_times(both, x), _inverse(_shifted(a, 1.0)))
    d = h = _inverse(_shifted(_scaled(factor, -1.0), 1.0))
    close = 0
    for k in range(1, _MOST):
        left, right = _inverse(_shifted(a, 2.0 * k - 1.0)), _inverse(_shifted(a, 2.0 * k))
        for odd in range(2):
            if odd:
                factor = _scaled(_times(_shifted(a, 1.0 * k), _shifted(both, 1.0 * k)), -1.0)
                left = _inverse(_shifted(a, 2.0 * k + 1.0))
            else:
                factor = _scaled((b[0] - k, b[1], b[2]), 1.0 * k)
            factor = _times(_times(factor, x), _times(left, right))
            d = _inverse(_shifted(_times(factor, d), 1.0))
            c = _shifted(_times(factor, _inverse(c)), 1.0)
            change = _times(c, d)
            h = _times(h, change)
            close = close + 1 if _is_one(change) else 0
        if close >= 8:
            break
    return h


@numba.njit
def _betainc_along(a, b, x, da, db):
    return _betainc((a, da, 0.0), (b, db, 0.0), (x, 0.0, 0.0), (1.0 - x, 0.0, 0.0))


def _of_betainc(da: float, db: float, order: int) -> Any:
    """The derivative of this order along ``a`` or ``b``."""

    @numba.njit
    def derivative(a, b, x):
        return _betainc_along(a, b, x, da, db)[order]

    return derivative


@numba.njit
def betainc_ab(a, b, x):
    """The mixed derivative, by polarisation."""
    both = _betainc_along(a, b, x, 1.0, 1.0)[2]
    return 0.5 * (both - _betainc_along(a, b, x, 1.0, 0.0)[2] - _betainc_along(a, b, x, 0.0, 1.0)[2])


# ------------------------------------------------------------- distributions of Student and of noncentral chi-squared


@numba.njit
def _stdtr(v, t):
    """Student's distribution function in Taylor arithmetic along ``v``; only its derivatives are valid."""
    if not v > 0.0 or t != t:
        return math.nan, math.nan, math.nan
    r = _inverse((v + t * t, 1.0, 0.0))
    z = _times((t * t, 0.0, 0.0), r)
    found = _betainc((0.5, 0.0, 0.0), (0.5 * v, 0.5, 0.0), z, _times((v, 1.0, 0.0), r))
    return _scaled(found, math.copysign(0.5, t))


@numba.njit
def stdtr_v(v, t):
    return _stdtr(v, t)[1]


@numba.njit
def stdtr_vv(v, t):
    return _stdtr(v, t)[2]


@numba.njit
def _mixture(x, v, nc, kind):
    """The noncentral chi-squared distribution, as a mixture of chi-squared distributions with Poisson weights.

    The density (kind 0), its derivatives with respect to x (1) and v (2), or the first (3) and second (4) derivative of
    the distribution function with respect to v.
    """
    if not (x >= 0.0 and v > 0.0 and nc >= 0.0):
        return math.nan
    half = 0.5 * nc
    total = 0.0
    for k in range(_MOST):
        weight = math.exp(k * math.log(half) - half - math.lgamma(k + 1.0)) if nc > 0.0 else 1.0
        order = 0.5 * v + k
        if kind == 3:
            part = 0.5 * gammainc_a(order, 0.5 * x)
        elif kind == 4:
            part = 0.25 * gammainc_aa(order, 0.5 * x)
        else:
            part = 0.5 * gamma_density(order, 0.5 * x)
            if kind == 1:
                part *= (order - 1.0) / x - 0.5
            elif kind == 2:
                part *= 0.5 * (math.log(0.5 * x) - digamma(order))
        total += weight * part
        if nc == 0.0 or (k > half and (abs(weight * part) <= _SMALL * abs(total) or weight < _TINY)):
            break
    return total


def _of_mixture(kind: int) -> Any:
    @numba.njit
    def function(x, v, nc):
        return _mixture(x, v, nc, kind)

    return function


# ---------------------------------------------------------------------------------------------------- Bessel functions


@numba.njit
def kv_by_order(v, x):
    """The derivative of ``kv(v, x)`` with respect to ``v``: the integral of t sinh(v t) exp(-x cosh t) over t > 0, by
    the trapezoidal rule, which converges faster than any power of the step (DLMF 10.32.9)."""
    step = 0.03125
    total = 0.0
    k = 1
    while k < 100_000:
        t = k * step
        far = abs(v) * t - x * math.cosh(t)
        if far < -745.0 and x * math.sinh(t) > abs(v):
            break
        total += t * 0.5 * (math.exp(far) - math.exp(far - 2.0 * abs(v) * t))
        k += 1
    return math.copysign(step, v) * total


@numba.njit
def ive_by_order(v, x):
    """The derivative of ``ive(v, x)``, x > 0, with respect to ``v``: its power series term by term (DLMF 10.38.1)."""
    log = math.log(0.5 * x)
    total = 0.0
    k = 0
    while k < 1_000_000:
        order = k + v + 1.0
        size = math.exp((2.0 * k + v) * log - math.lgamma(k + 1.0) - math.lgamma(order) - x)
        if order < 0.0 and math.floor(order) % 2.0 != 0.0:
            size = -size
        term = size * (log - digamma(order))
        total += term
        if order > 0.5 * x + 2.0 and abs(term) < 1e-18 * abs(total):
            break
        k += 1
    return total


# ----------------------------------------------------------------------------------------- Carlson's elliptic integrals


def _carlson(i: int, j: int, k: int) -> Any:
    """The integral of (t + x)^(-i - 1/2) (t + y)^(-j - 1/2) (t + z)^(-k - 1/2) over t > 0: derivatives of Carlson's
    R_D, which is 3/2 of that for i = j = 0 and k = 1 (DLMF 19.18), where differences of R_D would cancel.

    By the trapezoidal rule in log t: the integrand is analytic within a distance of pi from the real axis, so that the
    error is of the size of exp(-2 pi^2 / step).
    """

    @numba.njit(error_model="numpy")
    def function(x, y, z):
        if not (x >= 0.0 and y >= 0.0 and z >= 0.0):
            return math.nan
        if (i and x == 0.0) or (j and y == 0.0) or (k and z == 0.0) or (x == 0.0 and y == 0.0):
            return math.inf
        largest = max(x, y, z)
        smallest = largest
        for v in (x, y, z):
            if v > 0.0:
                smallest = min(smallest, v)
        begin = math.log(smallest) - (40.0 if min(x, y, z) > 0.0 else 80.0)
        count = int((math.log(largest) + 25.0 - begin) / _STEP)
        total = 0.0
        for n in range(count):
            t = math.exp(begin + n * _STEP)
            a, b, c = t + x, t + y, t + z
            total += t / math.sqrt(a) / math.sqrt(b) / math.sqrt(c) / (a**i * b**j * c**k)
        return _STEP * total

    return function


_STEP = 0.375

PARAMETERS: dict[str, Any] = {
    **scipy_formulas.FUNCTIONS,
    "carlson_011": _carlson(0, 1, 1),
    "carlson_002": _carlson(0, 0, 2),
    "carlson_111": _carlson(1, 1, 1),
    "carlson_012": _carlson(0, 1, 2),
    "carlson_003": _carlson(0, 0, 3),
    "gammainc_a": gammainc_a,
    "gammainc_aa": gammainc_aa,
    "betainc_a": _of_betainc(1.0, 0.0, 1),
    "betainc_b": _of_betainc(0.0, 1.0, 1),
    "betainc_aa": _of_betainc(1.0, 0.0, 2),
    "betainc_bb": _of_betainc(0.0, 1.0, 2),
    "betainc_ab": betainc_ab,
    "stdtr_v": stdtr_v,
    "stdtr_vv": stdtr_vv,
    "chn_density": _of_mixture(0),
    "chn_density_x": _of_mixture(1),
    "chn_density_v": _of_mixture(2),
    "chndtr_v": _of_mixture(3),
    "chndtr_vv": _of_mixture(4),
    "kv_by_order": kv_by_order,
    "ive_by_order": ive_by_order,
}
