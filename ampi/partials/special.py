"""Partial derivatives of the special functions of ``scipy.special``.

Second derivatives differentiate an expression once more: it must hold in a neighbourhood, also around points where a
quotient is 0 / 0, and is written so that terms do not cancel where the function has a limit.

Bessel functions: DLMF 10.6, 10.29, 10.40; elliptic integrals: DLMF 19.18, 19.25 in Carlson's forms, which have no
0 / 0 at m = 0; exponential integrals: 6.2, 8.19; hypergeometric functions: 13.3, 15.5; error functions: 7.2, 7.10,
7.12; orthogonal polynomials: 18.9; Owen's T: Owen, *Ann. Math. Stat.* 27 (1956); distribution functions: Abramowitz
and Stegun, 26.4 to 26.7, and their inverses by the implicit function theorem.
``ampi.kernel.runtime.scipy_parameters`` has the derivatives that no function of SciPy's gives.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable

from . import elementary

UNKNOWN = "unknown"
"""Entry for a derivative that is not known: an error if the argument carries derivatives."""

_PI = repr(math.pi)
_ROOT = repr(math.sqrt(2 * math.pi))
_BY_ROOT_PI = repr(2 / math.sqrt(math.pi))
_HALF_ROOT = repr(math.sqrt(0.5))


def _polynomial(coefficients: Iterable[float], t: str) -> str:
    """Return a polynomial in Horner's form; coefficients start with the constant term."""
    found = ""
    for c in reversed(list(coefficients)):
        found = f"({c!r} + {t} * {found})" if found else repr(c)
    return found


def _odd_factorials(count: int, factor: float) -> list[float]:
    """(2k + 1)!! factor^k"""
    found = [1.0]
    for k in range(1, count):
        found.append(found[-1] * (2 * k + 1) * factor)
    return found


# ------------------------------------------------------------------------------------------- formulas of the table

_TERMS = 18
_LOG1PMX = _polynomial([(-1) ** k / (k + 2) for k in range(_TERMS)], "x")
_LOG1P_SLOPE = _polynomial([(-1) ** k * (k + 1) / (k + 2) for k in range(_TERMS)], "x")
_LOG1P_CURVE = _polynomial([(-1) ** (k + 1) * (k + 1) * (k + 2) / (k + 3) for k in range(_TERMS)], "x")
_PERIOD = f"{_PI} * (x - 2 * round(0.5 * x))"
_STIRLING = "(1 / 12 - (1 / 360 - (1 / 1260 - 1 / 1680 / ({0} * {0})) / ({0} * {0})) / ({0} * {0})) / {0}"
_U, _V = "(1 / (x * x))", "(1 / ((x + y) * (x + y)))"
_RISE = " + ".join(f"y / ((x + {k}) * (x + {k} + y))" for k in range(20)) + " + digamma_rise_far(x + 20, y)"
_P, _Q = "(1 / x)", "(1 / (x + y))"
_MEANS = {n: " + ".join(" * ".join([_P] * k + [_Q] * (n - k)) for k in range(n + 1)) for n in (1, 2, 4, 6)}
_FALL = (
    " - ".join(f"y * (2 * x + {2 * k} + y) / (x + {k}) ** 2 / (x + {k} + y) ** 2" for k in range(20))
    + " + trigamma_rise_far(x + 20, y)"
)
_APART = "(digamma(1 - x - y) - digamma(1 - x) if round(y) == y else digamma(x + y) - digamma(x))"
_APART_SLOPE = "(trigamma(1 - x) - trigamma(1 - x - y) if round(y) == y else trigamma(x + y) - trigamma(x))"
_TETRAGAMMAS = ("tetragamma(x + y) - tetragamma(x)", "tetragamma(x + y)")
_MODE, _LEFT, _RIGHT = "((y - x) / x)", "((z * y - x * (1 - z)) / x)", "((x * (1 - z) - z * y) / y)"
_GAMMA_FAR = (
    f"sqrt(x / {2 * math.pi!r}) / y * "
    f"exp(x * (log1pmx({_MODE}) if abs({_MODE}) < 0.5 else log(y / x) - {_MODE}) - {_STIRLING.format('x')})"
)
_BETA_NEAR = "exp((x - 1) * log(z) + (y - 1) * log1p(-z)) * rgamma(x) * rgamma(y) * gamma(x + y)"
_BETA_FAR = (
    f"sqrt(x * (y / (x + y)) / {2 * math.pi!r}) / (z * (1 - z)) * exp("
    f"x * (log1pmx({_LEFT}) if abs({_LEFT}) < 0.5 else log(z + z * y / x) - {_LEFT}) + "
    f"y * (log1pmx({_RIGHT}) if abs({_RIGHT}) < 0.5 else log1p(-z) + log1p(x / y) - {_RIGHT}) + "
    f"{_STIRLING.format('(x + y)')} - {_STIRLING.format('x')} - {_STIRLING.format('y')})"
)
_BETA_POWERS = "(x - 1) * log(z) + (y - 1) * log1p(-z)"
_BETA_INSIDE = (
    f"({_BETA_NEAR} if x + y < 40 else ({_BETA_FAR} if y > 20 else "
    f"rgamma(y) * exp({_BETA_POWERS} + lgamma_rise(x, y))) if x > 20 else "
    f"rgamma(x) * exp({_BETA_POWERS} + lgamma_rise(y, x)))"
)
_BETA_AT_ENDS = (
    "((y if x == 1 else 0 if x > 1 else rgamma(x) / z) if z == 0 else "
    "(x if y == 1 else 0 if y > 1 else rgamma(y) / (1 - z)))"
)
_T_RATIO = (
    "(gamma(0.5 * x + 0.5) * rgamma(0.5 * x) / sqrt(x) if x < 300 else "
    f"{_HALF_ROOT} * (1 - (1 / 4 - (1 / 32 + (5 / 128 - 21 / 2048 / x) / x) / x) / x))"
)

# Hankel's expansion of a Bessel function without its exponential factor, S(u) = 1 + a_1 u + a_2 u^2 + ..., with
# x = 4 v^2: the derivative of its logarithm.
_HANKEL = ["1"]
for _k in range(1, 7):
    _HANKEL.append(f"{_HANKEL[-1]} * (x - {(2 * _k - 1) ** 2}) / {8 * _k}" if _k > 1 else "(x - 1) / 8")
_HANKEL_SUM = " + ".join(f"({c}) * y ** {k}" for k, c in enumerate(_HANKEL) if k) + " + 1"
_HANKEL_SLOPE = " + ".join(f"{k} * ({c}) * y ** {k - 1}" for k, c in enumerate(_HANKEL) if k > 1) + f" + {_HANKEL[1]}"
_HANKEL_CURVE = " + ".join(f"{k * (k - 1)} * ({c}) * y ** {k - 2}" for k, c in enumerate(_HANKEL) if k > 2) + (
    f" + 2 * ({_HANKEL[2]})"
)

FORMULAS: dict[str, str] = {
    "sinpi": f"sin({_PERIOD})",
    "cospi": f"cos({_PERIOD})",
    # log(1 + x) - x; log(1 + x) / x, and its derivative with the opposite sign
    "log1pmx": f"-x * x * {_LOG1PMX} if abs(x) < 0.1 else log1p(x) - x",
    "log1p_mean": "1 if x == 0 else log1p(x) / x",
    "log1p_slope": f"{_LOG1P_SLOPE} if abs(x) < 0.1 else (log1p(x) - x / (1 + x)) / (x * x)",
    # the derivative of 1 / Gamma, by reflection near the zeros of 1 / Gamma
    "rgamma_slope": (
        f"gamma(1 - x) * (cospi(x) - digamma(1 - x) * sinpi(x) / {_PI}) if x < 0.5 else -rgamma(x) * digamma(x)"
    ),
    # psi(x + y) - psi(x)
    "digamma_rise_far": (
        f"log1p(y / x) + 0.5 * y / (x * (x + y)) + y * (2 * x + y) * {_U} * {_V} * (1 / 12 - ({_U} + {_V}) / 120 "
        f"+ ({_U} * {_U} + {_U} * {_V} + {_V} * {_V}) / 252 - ({_U} + {_V}) * ({_U} * {_U} + {_V} * {_V}) / 240)"
    ),
    "digamma_rise": f"({_RISE} if x + y > 0 else {_APART}) if x > 0 else {_APART}",
    "trigamma_rise_far": (
        f"-y * {_P} * {_Q} * (1 + ({_MEANS[1]}) / 2 + ({_MEANS[2]}) / 6 - ({_MEANS[4]}) / 30 + ({_MEANS[6]}) / 42)"
    ),
    "trigamma_rise": f"(-{_FALL} if x + y > 0 else {_APART_SLOPE}) if x > 0 else {_APART_SLOPE}",
    # log(Gamma(x + y) / Gamma(x)), x > 20
    "lgamma_rise": (
        f"(x - 0.5) * log1p(y / x) + y * log(x + y) - y + {_STIRLING.format('(x + y)')} - {_STIRLING.format('x')}"
    ),
    "gamma_density": (
        f"(1 if x == 1 else 0 if x > 1 else rgamma(x) / y if x != 0 else 0) if y == 0 else "
        f"(exp((x - 1) * log(y) - y) * rgamma(x) if x < 20 else {_GAMMA_FAR})"
    ),
    "beta_density": f"0 if x * y == 0 else ({_BETA_INSIDE} if z * (1 - z) != 0 else {_BETA_AT_ENDS})",
    "t_density": f"exp(-0.5 * (x + 1) * log1p(y * y / x)) * {_T_RATIO} / {math.sqrt(math.pi)!r}",
    "hankel_slope": f"({_HANKEL_SLOPE}) / ({_HANKEL_SUM})",
}
"""Values of auxiliary functions that SciPy does not have, as expressions."""

_TURNS = f"round(x / {_PI})"  # number of half turns in the amplitude of an elliptic integral
_SINE = f"sin(x - {_PI} * {_TURNS})"
_SQUARES = f"{_SINE} * {_SINE}"
_DELTA = f"(1 - y * {_SQUARES} if y < 0.5 else cos(x) * cos(x) + (1 - y) * {_SQUARES})"
_INCOMPLETE = f"{_SINE} * {_SQUARES} / 6 * elliprd(cos(x) * cos(x), "
_DENSITY = "gamma_density(x, r)"  # at a quantile
_BETA_DENSITY = "beta_density(x, y, r)"
_HALVES = "0.5 * x, 0.5 * r"
_F_RATIO = "0.5 * x, 0.5 * y, x * r / (y + x * r)"  # Fisher's distribution as a beta distribution, at a quantile
_F_DENSITY = f"(beta_density({_F_RATIO}) * x * y / ((y + x * r) * (y + x * r)))"
_T_DENSITY_BY_ORDER = (
    "(0.5 * (digamma_rise(0.5 * x, 0.5) - log1p(y * y / x)) + 0.5 * ((x + 1) * y * y / (x + y * y) - 1) / x)"
)
_POCH = "r * digamma(x + y) + gamma(x + y) * rgamma_slope(x)"
_LOG_RATIO = "(log1p((x - y) / y) if abs(x - y) < 0.5 * y else log(x) - log(y))"


def _of_order(derivative: str, by_order: str = UNKNOWN) -> tuple[str, str]:
    return by_order, derivative


def _scaled(near: str, square: str, x: str, kind: int, count: str = "1") -> str:
    """Return the derivative of a Bessel function without its exponential factor.

    ``near`` holds everywhere, but its terms cancel for large arguments, for which Hankel's expansion is used;
    ``square`` is 4 times the square of the order.
    """
    u = f"1 / abs({x})" if kind > 0 else f"-1 / abs({x})"
    far = f"r * sign({x}) * (-0.5 / abs({x}) {'-' if kind > 0 else '+'} hankel_slope({square}, {u}) / ({x} * {x}))"
    return f"({far} if abs({x}) > 100 * (1 + {square}) else {near})"


_ERFCX_FAR = f"-{_polynomial(_odd_factorials(8, -0.5), '(1 / (x * x))')} / ({math.sqrt(math.pi)!r} * x * x)"
_DAWSN_FAR = f"-{_polynomial(_odd_factorials(8, 0.5), '(1 / (x * x))')} / (2 * x * x)"
_WOFZ_FAR = f"-1j * {_polynomial(_odd_factorials(8, 0.5), '(1 / (x * x))')} / ({math.sqrt(math.pi)!r} * x * x)"
_ERFCX = f"(2 * x * r - {_BY_ROOT_PI})"
_DAWSN = "(1 - 2 * x * r)"
_WOFZ = f"(1j * {_BY_ROOT_PI} - 2 * x * r)"
_LOG_NDTR_LEFT = f"{math.sqrt(2 / math.pi)!r} / erfcx(-{_HALF_ROOT} * x)"
_LOG_NDTR_RIGHT = f"exp(-0.5 * x * x - r) / {_ROOT}"
_CYLINDER = "0.5 * ({0}(x - 1, y) - {0}(x + 1, y))"

PARTIALS: dict[str, tuple[str, ...]] = {
    # Bessel functions
    "j0": ("-j1(x)",),
    "j1": ("j0(x) - j1(x) / x if abs(x) > 1 else 0.5 * (j0(x) - jv(2, x))",),
    "jv": _of_order(_CYLINDER.format("jv")),
    "jn": _of_order(_CYLINDER.format("jv")),
    "jve": _of_order(_CYLINDER.format("jve")),
    "y0": ("-y1(x)",),
    "y1": ("y0(x) - r / x",),
    "yn": _of_order(_CYLINDER.format("yv")),
    "yv": _of_order(_CYLINDER.format("yv")),
    "yve": _of_order(_CYLINDER.format("yve")),
    "hankel1": _of_order(_CYLINDER.format("hankel1")),
    "hankel2": _of_order(_CYLINDER.format("hankel2")),
    "hankel1e": _of_order(f"{_CYLINDER.format('hankel1e')} - 1j * r"),
    "hankel2e": _of_order(f"{_CYLINDER.format('hankel2e')} + 1j * r"),
    "i0": ("i1(x)",),
    "i1": ("0.5 * (i0(x) + iv(2, x))",),
    "iv": _of_order("0.5 * (iv(x - 1, y) + iv(x + 1, y))", "ive_by_order(x, y) * exp(y)"),
    "i0e": (_scaled("i1e(x) - sign(x) * r", "0", "x", -1),),
    "i1e": (_scaled("0.5 * (i0e(x) + ive(2, x)) - sign(x) * r", "4", "x", -1),),
    "ive": _of_order(
        _scaled("0.5 * (ive(x - 1, y) + ive(x + 1, y)) - sign(y) * r", "4 * x * x", "y", -1), "ive_by_order(x, y)"
    ),
    "k0": ("-k1(x)",),
    "k1": ("-k0(x) - r / x",),
    "kn": _of_order("-0.5 * (kv(x - 1, y) + kv(x + 1, y))"),
    "kv": _of_order("-0.5 * (kv(x - 1, y) + kv(x + 1, y))", "kv_by_order(x, y)"),
    "k0e": (_scaled("r - k1e(x)", "0", "x", 1),),
    "k1e": (_scaled("r - k0e(x) - r / x", "4", "x", 1),),
    "kve": _of_order(
        _scaled("r - 0.5 * (kve(x - 1, y) + kve(x + 1, y))", "4 * x * x", "y", 1), "kv_by_order(x, y) * exp(y)"
    ),
    "kv_by_order": (UNKNOWN, UNKNOWN),
    "ive_by_order": (UNKNOWN, UNKNOWN),
    "hankel_slope": (UNKNOWN, f"({_HANKEL_CURVE}) / ({_HANKEL_SUM}) - r * r"),
    "ber": ("berp(x)",),
    "bei": ("beip(x)",),
    "ker": ("kerp(x)",),
    "kei": ("keip(x)",),
    "berp": ("-bei(x) - r / x if x != 0 else 0",),
    "beip": ("ber(x) - r / x if x != 0 else 0.5",),
    "kerp": ("-kei(x) - r / x",),
    "keip": ("ker(x) - r / x",),
    # elliptic integrals
    "ellipk": ("elliprd(0, 1, 1 - x) / 6",),
    "ellipkm1": ("-elliprd(0, 1, x) / 6",),
    "ellipe": ("-elliprd(0, 1 - x, 1) / 6",),
    "ellipkinc": (
        f"1 / sqrt{_DELTA}",
        f"{_INCOMPLETE}1, {_DELTA}) + {_TURNS} * elliprd(0, 1, 1 - y) / 3",
    ),
    "ellipeinc": (
        f"sqrt{_DELTA}",
        f"-({_INCOMPLETE}{_DELTA}, 1) + {_TURNS} * elliprd(0, 1 - y, 1) / 3)",
    ),
    "elliprf": tuple(f"-elliprd({v}) / 6" for v in ("y, z, x", "z, x, y", "x, y, z")),
    "elliprc": (
        "-elliprd(y, y, x) / 6 if y > 0 else 0.5 * (r - 1 / sqrt(x)) / (y - x)",
        "-elliprd(x, y, y) / 3 if y > 0 else 0.5 * (r - sqrt(x) / y) / (y - x)",
    ),
    "elliprd": ("-0.75 * carlson_011(y, x, z)", "-0.75 * carlson_011(x, y, z)", "-2.25 * carlson_002(x, y, z)"),
    "carlson_011": (
        "-0.5 * carlson_111(x, y, z)",
        "-1.5 * carlson_012(x, z, y)",
        "-1.5 * carlson_012(x, y, z)",
    ),
    "carlson_002": (
        "-0.5 * carlson_012(y, x, z)",
        "-0.5 * carlson_012(x, y, z)",
        "-2.5 * carlson_003(x, y, z)",
    ),
    # exponential integrals, error functions
    "exp1": ("-exp(-x) / x",),
    "expi": ("exp(x) / x",),
    "expn": _of_order("-exp(-y) * (1 + 1 / y) / y if x == 0 else -expn(maximum(x - 1, 0), y)"),
    "exprel": ("0.5 * hyp1f1(2, 3, x)",),
    "spence": ("-log1p_mean(x - 1) if abs(x - 1) < 0.5 else log(x) / (1 - x)",),
    "erf": (f"{_BY_ROOT_PI} * exp(-x * x)",),
    "erfc": (f"-{_BY_ROOT_PI} * exp(-x * x)",),
    "erfcx": (f"{_ERFCX_FAR} if x > 30 else {_ERFCX}",),
    "dawsn": (f"{_DAWSN_FAR} if abs(x) > 30 else {_DAWSN}",),
    "erfi": (f"{_BY_ROOT_PI} * exp(x * x)",),
    "erfinv": (f"exp(r * r) / {_BY_ROOT_PI}",),
    "erfcinv": (f"-exp(r * r) / {_BY_ROOT_PI}",),
    "ndtr": (f"exp(-0.5 * x * x) / {_ROOT}",),
    "log_ndtr": (f"{_LOG_NDTR_LEFT} if x < 0 else {_LOG_NDTR_RIGHT}",),
    "ndtri": (f"{_ROOT} * exp(0.5 * r * r)",),
    "ndtri_exp": (
        f"{math.sqrt(math.pi / 2)!r} * erfcx(-{_HALF_ROOT} * r) if r < 0 else {_ROOT} * exp(x + 0.5 * r * r)",
    ),
    "owens_t": (
        f"-exp(-0.5 * x * x) * erf(x * y * {_HALF_ROOT}) / {2 * math.sqrt(2 * math.pi)!r}",
        f"exp(-0.5 * x * x * (1 + y * y)) / ({2 * math.pi!r} * (1 + y * y))",
    ),
    "wofz": (_WOFZ,),
    # of x + 1j * y: the Cauchy-Riemann equations
    "wofz_real": (
        "-2 * (x * r - y * wofz_imag(x, y))",
        f"2 * (x * wofz_imag(x, y) + y * r) - {_BY_ROOT_PI}",
    ),
    "wofz_imag": (
        f"{_BY_ROOT_PI} - 2 * (x * r + y * wofz_real(x, y))",
        "-2 * (x * wofz_real(x, y) - y * r)",
    ),
    # exponentials, logarithms and powers
    "expit": ("r * expit(-x)",),
    "log_expit": ("expit(-x)",),
    "logit": ("1 / (x * (1 - x))",),
    **{name: elementary.PARTIALS[name] for name in ("exp2", "expm1", "log1p", "cbrt")},
    "exp10": (f"{math.log(10.0)!r} * r",),
    "cosm1": ("-sin(x)",),
    "sindg": (f"cosdg(x) * {math.pi / 180!r}",),
    "cosdg": (f"-sindg(x) * {math.pi / 180!r}",),
    "tandg": (f"(1 + r * r) * {math.pi / 180!r}",),
    "cotdg": (f"-(1 + r * r) * {math.pi / 180!r}",),
    "wrightomega": ("r / (1 + r)",),
    "xlogy": (
        "(log(y) if y != 0 else 0) if x == 0 else log(y)",
        "x / y if y != 0 else 0 if x == 0 else x / y",
    ),
    "xlog1py": (
        "(log1p(y) if y != -1 else 0) if x == 0 else log1p(y)",
        "x / (1 + y) if y != -1 else 0 if x == 0 else x / (1 + y)",
    ),
    "powm1": (
        elementary.POWER[0],
        "log(x) * x ** y if x != 0 else 0",
    ),
    "boxcox": (
        "x ** (y - 1)",
        "0.5 * log(x) * log(x) * hyp1f1(2, 3, y * log(x)) if x != 0 else 1 / (y * y)",
    ),
    "boxcox1p": (
        "exp((y - 1) * log1p(x))",
        "0.5 * log1p(x) * log1p(x) * hyp1f1(2, 3, y * log1p(x)) if x != -1 else 1 / (y * y)",
    ),
    "inv_boxcox": ("r ** (1 - y)", "-r * x * x * log1p_slope(x * y)"),
    "inv_boxcox1p": ("exp((1 - y) * log1p(r))", "-(1 + r) * x * x * log1p_slope(x * y)"),
    "entr": ("-log(x) - 1",),
    "rel_entr": (f"{_LOG_RATIO} + 1", "-x / y"),
    "kl_div": (_LOG_RATIO, "(y - x) / y if abs(x - y) < 0.5 * y else 1 - x / y"),
    "huber": ("0 if abs(y) <= x else abs(y) - x", "y if abs(y) <= x else x * sign(y)"),
    "pseudo_huber": (
        "(y / (hypot(x, y) + x)) ** 2 * y * (y / hypot(x, y)) if y != 0 else 0",
        "x * (y / hypot(x, y)) if x != 0 else 0",
    ),
    "sinpi": (f"{_PI} * cospi(x)",),
    "cospi": (f"-{_PI} * sinpi(x)",),
    "log1pmx": ("-x / (1 + x)",),
    "log1p_mean": ("-log1p_slope(x)",),
    "log1p_slope": (f"{_LOG1P_CURVE} if abs(x) < 0.1 else 1 / (x * (1 + x) * (1 + x)) - 2 * r / x",),
    # gamma and hypergeometric functions, polynomials
    "gamma": ("r * digamma(x)",),
    "gammaln": ("digamma(x)",),
    "loggamma": ("digamma(x)",),
    "psi": ("trigamma(x)",),
    "trigamma": ("tetragamma(x)",),
    "tetragamma": (UNKNOWN,),
    "rgamma": ("rgamma_slope(x)",),
    "rgamma_slope": (
        f"gamma(1 - x) * ((digamma(1 - x) * digamma(1 - x) + trigamma(1 - x)) * sinpi(x) / {_PI} - {_PI} * sinpi(x)"
        " - 2 * digamma(1 - x) * cospi(x)) if x < 0.5 else rgamma(x) * (digamma(x) * digamma(x) - trigamma(x))",
    ),
    "digamma_rise_far": ("trigamma_rise_far(x, y)", "trigamma(x + y)"),
    "digamma_rise": ("trigamma_rise(x, y)", "trigamma(x + y)"),
    "trigamma_rise_far": _TETRAGAMMAS,
    "trigamma_rise": _TETRAGAMMAS,
    "lgamma_rise": ("digamma_rise(x, y)", "digamma(x + y)"),
    "beta": ("-r * digamma_rise(x, y)", "-r * digamma_rise(y, x)"),
    "betaln": ("-digamma_rise(x, y)", "-digamma_rise(y, x)"),
    "poch": (
        f"r * digamma_rise(x, y) if x > 0 else ((r * digamma_rise(x, y) if round(y) == y else {_POCH}) if x + y <= 0"
        f" else {_POCH})",
        "r * digamma(x + y)",
    ),
    "binom": (
        "r * digamma(x + 1) + gamma(x + 1) * rgamma(y + 1) * rgamma_slope(x - y + 1) if x - y + 1 <= 0 else "
        "-r * digamma_rise(x + 1, -y)",
        "r * (digamma(x - y + 1) - digamma(y + 1)) if minimum(x - y, y) > -1 else gamma(x + 1) * "
        "(rgamma_slope(y + 1) * rgamma(x - y + 1) - rgamma(y + 1) * rgamma_slope(x - y + 1))",
    ),
    "hyp0f1": _of_order("hyp0f1(x + 1, y) / x"),
    "hyp1f1": (UNKNOWN, UNKNOWN, "x / y * hyp1f1(x + 1, y + 1, z)"),
    "hyperu": (UNKNOWN, UNKNOWN, "-x * hyperu(x + 1, y + 1, z)"),
    "hyp2f1": (UNKNOWN, UNKNOWN, UNKNOWN, "x * y / z * hyp2f1(x + 1, y + 1, z + 1, w)"),
    "eval_chebyt": _of_order("x * eval_chebyu(x - 1, y)"),
    "eval_chebyu": _of_order("0 if x == -1 else 2 * eval_gegenbauer(x - 1, 2, y)"),
    "eval_chebyc": _of_order("x * eval_chebys(x - 1, y)"),
    "eval_chebys": _of_order("0 if x == -1 else eval_gegenbauer(x - 1, 2, 0.5 * y)"),
    "eval_sh_chebyt": _of_order("2 * x * eval_chebyu(x - 1, 2 * y - 1)"),
    "eval_sh_chebyu": _of_order("0 if x == -1 else 4 * eval_gegenbauer(x - 1, 2, 2 * y - 1)"),
    "eval_hermite": _of_order("2 * x * eval_hermite(maximum(x - 1, 0), y)"),
    "eval_hermitenorm": _of_order("x * eval_hermitenorm(maximum(x - 1, 0), y)"),
    "eval_laguerre": _of_order("-eval_genlaguerre(x - 1, 1, y)"),
    "eval_genlaguerre": (UNKNOWN, UNKNOWN, "0 if x == -1 else -eval_genlaguerre(x - 1, y + 1, z)"),
    "eval_legendre": _of_order("eval_gegenbauer(x - 1, 1.5, y)"),
    "eval_sh_legendre": _of_order("2 * eval_gegenbauer(x - 1, 1.5, 2 * y - 1)"),
    "eval_gegenbauer": (UNKNOWN, UNKNOWN, "0 if x == -1 else 2 * y * eval_gegenbauer(x - 1, y + 1, z)"),
    "eval_jacobi": (
        UNKNOWN,
        UNKNOWN,
        UNKNOWN,
        "0 if x == -1 else 0.5 * (x + y + z + 1) * eval_jacobi(x - 1, y + 1, z + 1, w)",
    ),
    # distribution functions, densities, quantiles
    "gammainc": ("gammainc_a(x, y)", "gamma_density(x, y)"),
    "gammaincc": ("-gammainc_a(x, y)", "-gamma_density(x, y)"),
    "gammainc_a": ("gammainc_aa(x, y)", "gamma_density(x, y) * (log(y) - digamma(x)) if y > 0 else 0"),
    "gamma_density": (
        "r * (log(y) - digamma(x)) if y > 0 else 0",
        "r * ((x - 1 - y) / y) if y > 0 else gamma_density(x - 1, y) - r",
    ),
    "gammaincinv": (f"-gammainc_a(x, r) / {_DENSITY}", f"1 / {_DENSITY}"),
    "gammainccinv": (f"-gammainc_a(x, r) / {_DENSITY}", f"-1 / {_DENSITY}"),
    "chdtr": ("0.5 * gammainc_a(0.5 * x, 0.5 * y)", "0.5 * gamma_density(0.5 * x, 0.5 * y)"),
    "chdtrc": (
        "-0.5 * gammainc_a(0.5 * x, 0.5 * y) if y >= 0 else 0",
        "-0.5 * gamma_density(0.5 * x, 0.5 * y) if y >= 0 else 0",
    ),
    "chdtri": (f"-gammainc_a({_HALVES}) / gamma_density({_HALVES})", f"-1 / (0.5 * gamma_density({_HALVES}))"),
    "betainc": ("betainc_a(x, y, z)", "betainc_b(x, y, z)", "beta_density(x, y, z)"),
    "betaincc": ("-betainc_a(x, y, z)", "-betainc_b(x, y, z)", "-beta_density(x, y, z)"),
    "betainc_a": (
        "betainc_aa(x, y, z)",
        "betainc_ab(x, y, z)",
        "beta_density(x, y, z) * (log(z) + digamma_rise(x, y)) if z > 0 else 0",
    ),
    "betainc_b": (
        "betainc_ab(x, y, z)",
        "betainc_bb(x, y, z)",
        "beta_density(x, y, z) * (log1p(-z) + digamma_rise(y, x)) if z < 1 else 0",
    ),
    "beta_density": (
        "r * (log(z) + digamma_rise(x, y)) if z > 0 else 0",
        "r * (log1p(-z) + digamma_rise(y, x)) if z < 1 else 0",
        "r * ((x - 1) / z - (y - 1) / (1 - z)) if z * (1 - z) != 0 else "
        "(x + y - 1) * (beta_density(x - 1, y, z) - beta_density(x, y - 1, z))",
    ),
    "betaincinv": (
        f"-betainc_a(x, y, r) / {_BETA_DENSITY}",
        f"-betainc_b(x, y, r) / {_BETA_DENSITY}",
        f"1 / {_BETA_DENSITY}",
    ),
    "fdtri": (
        f"-(0.5 * betainc_a({_F_RATIO}) / {_F_DENSITY} + r / x)",
        f"-(0.5 * betainc_b({_F_RATIO}) / {_F_DENSITY} - r / y)",
        f"1 / {_F_DENSITY}",
    ),
    "stdtr": ("stdtr_v(x, y)", "t_density(x, y)"),
    "stdtr_v": ("stdtr_vv(x, y)", f"t_density(x, y) * {_T_DENSITY_BY_ORDER}"),
    "t_density": (f"r * {_T_DENSITY_BY_ORDER}", "-r * ((x + 1) * y / (x + y * y))"),
    "stdtrit": ("-stdtr_v(x, r) / t_density(x, r)", "1 / t_density(x, r)"),
    "chndtr": ("chn_density(x, y, z)", "chndtr_v(x, y, z)", "-chn_density(x, y + 2, z)"),
    "chndtr_v": ("chn_density_v(x, y, z)", "chndtr_vv(x, y, z)", "-chn_density_v(x, y + 2, z)"),
    "chn_density": (
        "chn_density_x(x, y, z)",
        "chn_density_v(x, y, z)",
        "0.5 * (chn_density(x, y + 2, z) - r)",
    ),
    "chndtrix": (
        "1 / chn_density(r, y, z)",
        "-chndtr_v(r, y, z) / chn_density(r, y, z)",
        "chn_density(r, y + 2, z) / chn_density(r, y, z)",
    ),
    **dict.fromkeys(("gammainc_aa", "stdtr_vv"), (UNKNOWN,) * 2),
    **dict.fromkeys(("betainc_aa", "betainc_ab", "betainc_bb"), (UNKNOWN,) * 3),
    **dict.fromkeys(("chn_density_x", "chn_density_v", "chndtr_vv"), (UNKNOWN,) * 3),
    **dict.fromkeys(("carlson_111", "carlson_012", "carlson_003"), (UNKNOWN,) * 3),
}

_SAME = (
    "jv jn yv hankel1 hankel2 hankel1e hankel2e iv kv exp1 expi erf erfc erfi ndtr expm1 log1p wrightomega gamma "
    "loggamma hyp0f1 hyp1f1 hyp2f1 eval_chebyt eval_chebyu eval_chebyc eval_chebys eval_sh_chebyt eval_sh_chebyu "
    "eval_laguerre eval_genlaguerre eval_legendre eval_sh_legendre eval_gegenbauer eval_jacobi log1p_mean log1p_slope"
)
COMPLEX: dict[str, tuple[str, ...]] = {
    **{name: PARTIALS[name] for name in _SAME.split()},
    "kve": _of_order("r - 0.5 * (kve(x - 1, y) + kve(x + 1, y))"),
    "rgamma": ("-r * digamma(x)",),
    "spence": PARTIALS["spence"],
    "xlogy": ("log(y + 0j) if y != 0 else 0 if x == 0 else log(y + 0j)", PARTIALS["xlogy"][1]),
    "xlog1py": ("log1p(y + 0j) if y != -1 else 0 if x == 0 else log1p(y + 0j)", PARTIALS["xlog1py"][1]),
    "erfcx": (f"({_ERFCX_FAR} if abs(x) > 30 else {_ERFCX}) if real(x) >= 0 else {_ERFCX}",),
    "dawsn": (f"({_DAWSN_FAR} if abs(x) > 30 else {_DAWSN}) if abs(real(x)) > 2 * abs(imag(x)) else {_DAWSN}",),
    "wofz": (f"({_WOFZ_FAR} if abs(x) > 30 else {_WOFZ}) if imag(x) > -0.5 * abs(real(x)) else {_WOFZ}",),
    "log_ndtr": (f"{_LOG_NDTR_LEFT} if real(x) < 0 else {_LOG_NDTR_RIGHT}",),
}
"""Partial derivatives for complex numbers; functions of `PARTIALS` that are missing here are refused."""

WHOLE: dict[str, tuple[int, ...]] = {name: (0,) for name in PARTIALS if name.startswith("eval_")}
"""Arguments for which SciPy has another algorithm if they are integers: they stay integers."""


def in_words(name: str) -> str:
    """Describe a function of the table to users: by its name, or as the derivative of functions that call it."""
    public = sys.modules.get("scipy.special")
    if public is None or hasattr(public, name):
        return f"scipy.special.{name}"
    users: list[str] = []
    waiting = [name]
    texts = {own: (FORMULAS.get(own, ""), *PARTIALS.get(own, ())) for own in (*FORMULAS, *PARTIALS)}
    seen = set(waiting)
    while waiting:
        called = re.compile(rf"\b{waiting.pop(0)}\(")
        for own, parts in texts.items():
            if own not in seen and any(called.search(text) for text in parts):
                seen.add(own)
                (users if hasattr(public, own) else waiting).append(own)
    return f"the derivative of scipy.special.{' or '.join(users[:4])}" if users else f"scipy.special.{name}"
