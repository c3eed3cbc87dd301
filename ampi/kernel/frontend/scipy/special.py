"""SciPy's special functions in kernels, replaced by functions that have derivatives.

Numba compiles calls of them where numba-scipy is installed, or with their addresses in
``scipy.special.cython_special``.  Those in `_STAND_INS` are differentiated as Python source; the others are SciPy's,
with the derivatives of `ampi.partials.special`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numba
import numpy as np

from ampi.kernel.frontend.scipy import distributions
from ampi.kernel.runtime import scipy_calls
from ampi.kernel.runtime.scipy_names import name_in_scipy
from ampi.kernel.runtime.special import digamma
from ampi.partials.special import PARTIALS, UNKNOWN


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
def log_expit(x):
    return x - math.log1p(math.exp(x)) if x < 0.0 else -math.log1p(math.exp(-x))


@numba.njit
def logit(x):
    return math.log(x) - math.log1p(-x)


@numba.njit
def entr(x):
    if x < 0.0:
        return -math.inf
    return -x * math.log(x) if x > 0.0 else 0.0


@numba.njit
def exp10(x):
    return 10.0**x


@numba.njit
def ndtr(x):
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


_STAND_INS: dict[str, Any] = {
    "xlogy": xlogy,
    "xlog1py": xlog1py,
    "expit": expit,
    "logit": logit,
    "ndtr": ndtr,
    "log_expit": log_expit,
    "entr": entr,
    "exp10": exp10,
    **{name: getattr(distributions, name) for name in distributions.__all__},
    "psi": digamma,
    "loggamma": math.lgamma,
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
    """The kernel that replaces a function of SciPy; any other function unchanged."""
    name = name_in_scipy(function)
    found = None if name is None else by_name(name)
    return function if found is None else found


def by_name(name: str) -> Any:
    """The kernel that replaces ``scipy.special.<name>``; None if there is none."""
    scipy_calls.link()
    if name in _STAND_INS:
        return _STAND_INS[name]
    return scipy_calls.FUNCTIONS.get(name)


def knows_derivatives(name: str, positions: Iterable[int]) -> bool:
    """Return whether ``scipy.special.<name>`` has derivatives with respect to these arguments."""
    return name in _STAND_INS or (
        name in scipy_calls.FUNCTIONS and not any(PARTIALS[name][k] == UNKNOWN for k in positions)
    )
