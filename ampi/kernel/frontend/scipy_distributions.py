"""Distribution functions and their inverses by incomplete gamma and beta functions, with derivatives in all arguments.

A quantile is SciPy's own, a constant, and two steps of Newton's method from there: they change nothing but make first
and second derivatives exact.  Student's distribution near zero: Abramowitz and Stegun, *Handbook of Mathematical
Functions*, 26.7.1 with 15.1.1; the noncentral chi-squared distribution: 26.4.25.
"""

from __future__ import annotations

import math

import numba

from ampi.kernel.frontend.scipy_integrals import betainc, gammainc, gammaincc
from ampi.kernel.runtime.scipy_calls import FUNCTIONS

__all__ = [
    "betaincc",
    "betaincinv",
    "chdtr",
    "chdtrc",
    "chdtri",
    "chndtr",
    "chndtrix",
    "fdtr",
    "fdtrc",
    "fdtri",
    "gammainccinv",
    "gdtr",
    "gdtrc",
    "pdtr",
    "pdtrc",
    "stdtr",
    "stdtrit",
    "voigt_profile",
]
_STEPS = 2  # of Newton's method
_ROOT = math.sqrt(2.0 * math.pi)
_betaincinv = FUNCTIONS["betaincinv"]
_chdtri = FUNCTIONS["chdtri"]
_chndtrix = FUNCTIONS["chndtrix"]
_fdtri = FUNCTIONS["fdtri"]
_gammainccinv = FUNCTIONS["gammainccinv"]
_stdtrit = FUNCTIONS["stdtrit"]
_wofz_real = FUNCTIONS["wofz_real"]


@numba.njit
def _gamma_density(a, x):
    return math.exp((a - 1.0) * math.log(x) - x - math.lgamma(a))


@numba.njit
def _beta_density(a, b, x):
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    return math.exp(front + (a - 1.0) * math.log(x) + (b - 1.0) * math.log1p(-x))


@numba.njit
def betaincc(a, b, x):
    return betainc(b, a, 1.0 - x)


@numba.njit
def betaincinv(a, b, p):
    x = _betaincinv(a, b, p)
    if 0.0 < x < 1.0:
        for _ in range(_STEPS):
            x -= (betainc(a, b, x) - p) / _beta_density(a, b, x)
    return x


@numba.njit
def gammainccinv(a, p):
    x = _gammainccinv(a, p)
    if 0.0 < x < math.inf:
        for _ in range(_STEPS):
            x += (gammaincc(a, x) - p) / _gamma_density(a, x)
    return x


@numba.njit
def chdtr(v, x):
    return gammainc(0.5 * v, 0.5 * x)


@numba.njit
def chdtrc(v, x):
    return gammaincc(0.5 * v, 0.5 * x) if x >= 0.0 else 1.0


@numba.njit
def chdtri(v, p):
    x = _chdtri(v, p)
    if 0.0 < x < math.inf:
        for _ in range(_STEPS):
            x += (gammaincc(0.5 * v, 0.5 * x) - p) / (0.5 * _gamma_density(0.5 * v, 0.5 * x))
    return x


@numba.njit
def gdtr(a, b, x):
    return gammainc(b, a * x)


@numba.njit
def gdtrc(a, b, x):
    return gammaincc(b, a * x)


@numba.njit
def pdtr(k, m):
    return gammaincc(math.floor(k) + 1.0, m)


@numba.njit
def pdtrc(k, m):
    return gammainc(math.floor(k) + 1.0, m)


@numba.njit
def fdtr(n, m, x):
    return betainc(0.5 * n, 0.5 * m, n * x / (m + n * x))


@numba.njit
def fdtrc(n, m, x):
    return betainc(0.5 * m, 0.5 * n, m / (m + n * x))


@numba.njit
def fdtri(n, m, p):
    x = _fdtri(n, m, p)
    if 0.0 < x < math.inf:
        for _ in range(_STEPS):
            all_of = m + n * x
            x -= (fdtr(n, m, x) - p) / (_beta_density(0.5 * n, 0.5 * m, n * x / all_of) * n * m / (all_of * all_of))
    return x


@numba.njit
def _t_density(v, t):
    front = math.lgamma(0.5 * (v + 1.0)) - math.lgamma(0.5 * v)
    return math.exp(front - 0.5 * (v + 1.0) * math.log1p(t * t / v)) / math.sqrt(math.pi * v)


@numba.njit
def stdtr(v, t):
    if not v > 0.0 or t != t:
        return math.nan
    if t * t < 0.25 * min(v, 4.0):
        w = t * t / (v + t * t)
        term = total = 1.0
        for k in range(1, 1000):
            term *= w * (0.5 * v + k - 0.5) / (0.5 + k)
            total += term
            if term < 1e-18 * total:
                break
        return 0.5 + t * _t_density(v, t) * total
    tail = 0.5 * betainc(0.5 * v, 0.5, v / (v + t * t))
    return tail if t < 0.0 else 1.0 - tail


@numba.njit
def stdtrit(v, p):
    t = _stdtrit(v, p)
    if abs(t) < math.inf:
        for _ in range(_STEPS):
            t -= (stdtr(v, t) - p) / _t_density(v, t)
    return t


@numba.njit
def chndtr(x, v, nc):
    """A mixture of chi-squared distributions, whose degrees of freedom are Poisson's."""
    if not (x >= 0.0 and v > 0.0 and nc >= 0.0):
        return math.nan
    if nc == 0.0:
        return gammainc(0.5 * v, 0.5 * x) + 0.5 * nc * (gammainc(0.5 * v + 1.0, 0.5 * x) - gammainc(0.5 * v, 0.5 * x))
    half = 0.5 * nc
    total = 0.0
    k = 0
    while k < 100_000:
        weight = math.exp(k * math.log(half) - half - math.lgamma(k + 1.0))
        term = weight * gammainc(0.5 * v + k, 0.5 * x)
        total += term
        if k > half and (term <= 1e-18 * total or weight < 1e-300):
            break
        k += 1
    return total


@numba.njit
def _chn_density(x, v, nc):
    half = 0.5 * nc
    total = 0.0
    k = 0
    while k < 100_000:
        weight = math.exp(k * math.log(half) - half - math.lgamma(k + 1.0)) if nc > 0.0 else 1.0
        term = weight * 0.5 * _gamma_density(0.5 * v + k, 0.5 * x)
        total += term
        if nc == 0.0 or (k > half and (term <= 1e-18 * total or weight < 1e-300)):
            break
        k += 1
    return total


@numba.njit
def chndtrix(p, v, nc):
    x = _chndtrix(p, v, nc)
    if 0.0 < x < math.inf:
        for _ in range(_STEPS):
            x -= (chndtr(x, v, nc) - p) / _chn_density(x, v, nc)
    return x


@numba.njit
def voigt_profile(x, sigma, gamma):
    if sigma == 0.0:
        return gamma / math.pi / (x * x + gamma * gamma)
    width = sigma * math.sqrt(2.0)
    return _wofz_real(x / width, gamma / width) / (sigma * _ROOT)
