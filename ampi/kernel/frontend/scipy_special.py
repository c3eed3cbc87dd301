"""SciPy's special functions of numbers as functions that have derivatives.

Numba compiles them where numba-scipy is installed, or by their addresses in ``scipy.special.cython_special``.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from ampi.kernel.frontend.scipy_integrals import betainc, erfcx, gammainc, gammaincc, gammaincinv, log_ndtr, ndtri
from ampi.kernel.runtime.scipy_names import name_in_scipy


@numba.njit
def xlogy(x, y):
    if x == 0.0 and (y <= 0.0 or y == math.inf):
        return 0.0
    return x * math.log(y)


@numba.njit
def xlog1py(x, y):
    if x == 0.0 and (y <= -1.0 or y == math.inf):
        return 0.0
    return x * math.log1p(y)


@numba.njit
def expit(x):
    if x < 0.0:
        e = math.exp(x)
        return e / (1.0 + e)
    return 1.0 / (1.0 + math.exp(-x))


@numba.njit
def logit(x):
    return math.log(x) - math.log1p(-x)


@numba.njit
def ndtr(x):
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


_STAND_INS: dict[str, Any] = {
    "xlogy": xlogy,
    "xlog1py": xlog1py,
    "expit": expit,
    "logit": logit,
    "ndtr": ndtr,
    "ndtri": ndtri,
    "log_ndtr": log_ndtr,
    "erfcx": erfcx,
    "gammainc": gammainc,
    "gammaincc": gammaincc,
    "gammaincinv": gammaincinv,
    "betainc": betainc,
    "erf": math.erf,
    "erfc": math.erfc,
    "gamma": math.gamma,
    "gammaln": math.lgamma,
    "cbrt": np.cbrt,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log1p": np.log1p,
}


def stand_in(function: Any) -> Any:
    """What is differentiated in the place of a function of SciPy's; any other function itself."""
    name = name_in_scipy(function)
    return function if name is None else _STAND_INS.get(name, function)
