"""Special functions that are integrals, by series and continued fractions; derivatives are made from these.

Incomplete gamma and beta functions: Press et al., *Numerical Recipes*, 6.2 and 6.4.  A few more terms are taken than
the values need: the derivatives with respect to parameters converge later.
"""

from __future__ import annotations

import math

import numba

__all__ = ["betainc", "erfcx", "gammainc", "gammaincc", "gammaincinv", "log_ndtr", "ndtri"]
_SMALL = 1e-18  # of the last term, in comparison with the sum
_TINY = 1e-300
_MOST = 10_000  # terms
_ROOT = math.sqrt(math.pi)


@numba.njit
def erfcx(x):
    if x < 6.0:
        return math.exp(x * x) * math.erfc(x)
    term = total = 1.0
    for k in range(1, 30):
        term *= -(k - 0.5) / (x * x)
        total += term
    return total / (x * _ROOT)


@numba.njit
def log_ndtr(x):
    t = x * math.sqrt(0.5)
    if x < -1.0:
        return math.log(0.5 * erfcx(-t)) - t * t
    return math.log1p(-0.5 * math.erfc(t))


@numba.njit
def ndtri(p):
    """By Newton's method for the logarithm, which is concave; the last step makes the derivative exact."""
    if not 0.0 < p < 1.0:
        return -math.inf if p == 0.0 else math.inf if p == 1.0 else math.nan
    upper = p > 0.5
    q = math.log1p(-p) if upper else math.log(p)
    x = -math.sqrt(-2.0 * q)
    last = False
    for _ in range(100):
        step = (log_ndtr(x) - q) / math.exp(-0.5 * x * x - log_ndtr(x)) * math.sqrt(2.0 * math.pi)
        x -= step
        if last:
            break
        last = abs(step) <= 1e-9 * (1.0 + abs(x))
    return -x if upper else x


@numba.njit
def gammainc(a, x):
    if not (a >= 0.0 and x >= 0.0) or (a == 0.0 and x == 0.0):
        return math.nan
    if x == math.inf or a == 0.0:
        return 1.0
    if x == 0.0:
        return x**a / math.gamma(a + 1.0)
    return _lower(a, x) if x < a + 1.0 else 1.0 - _upper(a, x)


@numba.njit
def gammaincc(a, x):
    if not (a >= 0.0 and x >= 0.0) or (a == 0.0 and x == 0.0):
        return math.nan
    if x == math.inf or a == 0.0:
        return 0.0
    if x == 0.0:
        return 1.0 - x**a / math.gamma(a + 1.0)
    return 1.0 - _lower(a, x) if x < a + 1.0 else _upper(a, x)


@numba.njit
def gammaincinv(a, p):
    """By Newton's method from the approximations of *Numerical Recipes*, 6.2.1; the last step makes the derivatives
    exact, those with respect to ``a`` as well."""
    if not (a > 0.0 and 0.0 <= p <= 1.0):
        return math.nan
    if p == 0.0 or p == 1.0:
        return 0.0 if p == 0.0 else math.inf
    x = _first_quantile(a, p)
    last = False
    for _ in range(100):
        density = math.exp((a - 1.0) * math.log(x) - x - math.lgamma(a))
        far = gammainc(a, x) - p if p < 0.5 else (1.0 - p) - gammaincc(a, x)
        step = far / density
        if last:
            x -= step
            break
        step /= 1.0 - 0.5 * min(1.0, step * ((a - 1.0) / x - 1.0))  # Halley's
        x = x - step if step < x else 0.5 * x
        last = abs(step) <= 1e-8 * x
    return x


@numba.njit
def _first_quantile(a, p):
    if a <= 1.0:
        t = 1.0 - a * (0.253 + a * 0.12)
        return (p / t) ** (1.0 / a) if p < t else 1.0 - math.log1p(-(p - t) / (1.0 - t))
    t = math.sqrt(-2.0 * math.log(min(p, 1.0 - p)))
    x = (2.30753 + t * 0.27061) / (1.0 + t * (0.99229 + t * 0.04481)) - t
    x = -x if p < 0.5 else x
    return max(1e-3, a * (1.0 - 1.0 / (9.0 * a) - x / (3.0 * math.sqrt(a))) ** 3)


@numba.njit
def _lower(a, x):
    term = total = 1.0 / a
    for k in range(1, _MOST):
        term *= x / (a + k)
        total += term
        if term < _SMALL * total:
            break
    return total * math.exp(a * math.log(x) - x - math.lgamma(a))


@numba.njit
def _upper(a, x):
    b = x + 1.0 - a
    c = 1.0 / _TINY
    d = 1.0 / b
    h = d
    close = 0
    for k in range(1, _MOST):
        factor = -k * (k - a)
        b += 2.0
        d = 1.0 / _no_zero(factor * d + b)
        c = _no_zero(b + factor / c)
        h *= d * c
        close = close + 1 if abs(d * c - 1.0) < 1e-15 else 0
        if close == 4:
            break
    return h * math.exp(a * math.log(x) - x - math.lgamma(a))


@numba.njit
def betainc(a, b, x):
    if not (a > 0.0 and b > 0.0 and 0.0 <= x <= 1.0):
        return math.nan
    if x == 0.0 or x == 1.0:
        whole = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
        return whole * x**a / a if x == 0.0 else 1.0 - whole * (1.0 - x) ** b / b
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


@numba.njit
def _fraction(a, b, x):
    c = 1.0
    d = 1.0 / _no_zero(1.0 - (a + b) * x / (a + 1.0))
    h = d
    close = 0
    for k in range(1, _MOST):
        even = k * (b - k) * x / ((a + 2 * k - 1.0) * (a + 2 * k))
        d = 1.0 / _no_zero(1.0 + even * d)
        c = _no_zero(1.0 + even / c)
        h *= d * c
        odd = -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1.0))
        d = 1.0 / _no_zero(1.0 + odd * d)
        c = _no_zero(1.0 + odd / c)
        h *= d * c
        close = close + 1 if abs(d * c - 1.0) < 1e-15 else 0
        if close == 4:
            break
    return h


@numba.njit
def _no_zero(x):
    return x if abs(x) > _TINY else _TINY
