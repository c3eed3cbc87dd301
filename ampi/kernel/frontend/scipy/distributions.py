"""Distribution functions of ``scipy.special``, in terms of others such as incomplete gamma functions."""

from __future__ import annotations

import math

import numba

from ampi.kernel.runtime.scipy_calls import FUNCTIONS

__all__ = ["fdtr", "fdtrc", "gdtr", "gdtrc", "pdtr", "pdtrc", "voigt_profile"]
_ROOT = math.sqrt(2.0 * math.pi)
betainc = FUNCTIONS["betainc"]
gammainc = FUNCTIONS["gammainc"]
gammaincc = FUNCTIONS["gammaincc"]
_wofz_real = FUNCTIONS["wofz_real"]


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
def voigt_profile(x, sigma, gamma):
    if sigma == 0.0:
        return gamma / math.pi / (x * x + gamma * gamma)
    width = sigma * math.sqrt(2.0)
    return _wofz_real(x / width, gamma / width) / (sigma * _ROOT)
