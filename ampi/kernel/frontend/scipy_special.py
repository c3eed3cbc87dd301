"""SciPy's special functions of numbers as functions that have derivatives.

Numba compiles them where numba-scipy is installed, or by their addresses in ``scipy.special.cython_special``.  Those of
`_STAND_INS` are differentiated as the programs that they are; the others are SciPy's own, with the derivatives of
`ir.scipy_partials`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numba
import numpy as np

from ampi.kernel.frontend import scipy_distributions as distributions
from ampi.kernel.ir.scipy_partials import PARTIALS, UNKNOWN
from ampi.kernel.runtime import scipy_calls
from ampi.kernel.runtime.scipy_names import name_in_scipy
from ampi.kernel.runtime.special import digamma

_TURN = math.pi / 180.0


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
def rel_entr(x, y):
    if x > 0.0 and y > 0.0:
        return x * math.log(x / y)
    return 0.0 if x == 0.0 and y >= 0.0 else math.inf


@numba.njit
def kl_div(x, y):
    if x > 0.0 and y > 0.0:
        return x * math.log(x / y) - x + y
    return y if x == 0.0 and y >= 0.0 else math.inf


@numba.njit
def huber(delta, r):
    if delta < 0.0:
        return math.inf
    return 0.5 * r * r if abs(r) <= delta else delta * (abs(r) - 0.5 * delta)


@numba.njit
def pseudo_huber(delta, r):
    if delta < 0.0:
        return math.inf
    if delta == 0.0 or r == 0.0:
        return 0.0
    q = (r / delta) * (r / delta)
    return delta * delta * q / (math.sqrt(1.0 + q) + 1.0)


@numba.njit
def boxcox(x, y):
    return _of_log(math.log(x), y)


@numba.njit
def boxcox1p(x, y):
    return _of_log(math.log1p(x), y)


@numba.njit
def _of_log(log, y):
    return log + 0.5 * y * log * log if abs(y) < 1e-9 else math.expm1(y * log) / y


@numba.njit
def inv_boxcox(x, y):
    return math.exp(x) * (1.0 - 0.5 * y * x * x) if abs(y) < 1e-9 else math.exp(math.log1p(y * x) / y)


@numba.njit
def inv_boxcox1p(x, y):
    return inv_boxcox(x, y) - 1.0


@numba.njit
def cosm1(x):
    half = math.sin(0.5 * x)
    return -2.0 * half * half


@numba.njit
def sindg(x):
    return math.sin(_TURN * x)


@numba.njit
def cosdg(x):
    return math.cos(_TURN * x)


@numba.njit
def tandg(x):
    return math.tan(_TURN * x)


@numba.njit
def cotdg(x):
    return 1.0 / math.tan(_TURN * x)


@numba.njit
def exp10(x):
    return 10.0**x


@numba.njit
def ndtr(x):
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


@numba.njit
def erfcx(x):
    if x < 6.0:
        return math.exp(x * x) * math.erfc(x)
    term = total = 1.0
    for k in range(1, 30):
        term *= -(k - 0.5) / (x * x)
        total += term
    return total / (x * math.sqrt(math.pi))


@numba.njit
def log_ndtr(x):
    t = x * math.sqrt(0.5)
    if x < -1.0:
        return math.log(0.5 * erfcx(-t)) - t * t
    return math.log1p(-0.5 * math.erfc(t))


_STAND_INS: dict[str, Any] = {
    "xlogy": xlogy,
    "xlog1py": xlog1py,
    "expit": expit,
    "logit": logit,
    "ndtr": ndtr,
    "log_expit": log_expit,
    "entr": entr,
    "rel_entr": rel_entr,
    "kl_div": kl_div,
    "huber": huber,
    "pseudo_huber": pseudo_huber,
    "boxcox": boxcox,
    "boxcox1p": boxcox1p,
    "inv_boxcox": inv_boxcox,
    "inv_boxcox1p": inv_boxcox1p,
    "cosm1": cosm1,
    "sindg": sindg,
    "cosdg": cosdg,
    "tandg": tandg,
    "cotdg": cotdg,
    "exp10": exp10,
    "erfcx": erfcx,
    "log_ndtr": log_ndtr,
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
    """What is differentiated in the place of a function of SciPy's; any other function itself."""
    name = name_in_scipy(function)
    found = None if name is None else by_name(name)
    return function if found is None else found


def by_name(name: str) -> Any:
    """What is differentiated in the place of ``scipy.special.<name>``; None if nothing is known of it."""
    scipy_calls.link()
    if name in _STAND_INS:
        return _STAND_INS[name]
    return scipy_calls.FUNCTIONS[name] if name in PARTIALS else None


def knows_derivatives(name: str, positions: Iterable[int]) -> bool:
    """Whether ``scipy.special.<name>`` has derivatives with respect to these arguments."""
    return name in _STAND_INS or (name in PARTIALS and not any(PARTIALS[name][k] == UNKNOWN for k in positions))
