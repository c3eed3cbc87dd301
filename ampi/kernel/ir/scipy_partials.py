"""Derivatives of SciPy's special functions of real numbers, as `intrinsics` states them.

Bessel functions: DLMF 10.6, 10.29; elliptic integrals: DLMF 19.25 in Carlson's forms, which have no 0 / 0 at m = 0;
exponential integrals: 6.2, 8.19; hypergeometric functions: 13.3, 15.5; error functions: 7.2, 7.10; Owen's T: Owen,
*Ann. Math. Stat.* 27 (1956); distribution functions: Abramowitz and Stegun, 26.4 to 26.7, and their inverses by the
implicit function theorem.  `runtime.scipy_parameters` has the derivatives that no function of SciPy's gives.
"""

from __future__ import annotations

import math

UNKNOWN = "unknown"
"""In the place of a derivative that nobody has: an error where the argument carries one."""

_ROOT = math.sqrt(2 * math.pi)
_BY_ROOT_PI = 2 / math.sqrt(math.pi)
_TURNS = f"round(x / {math.pi!r})"  # of the amplitude of an elliptic integral, by half a circle each
_SINE = f"sin(x - {math.pi!r} * {_TURNS})"
_INCOMPLETE = f"{_SINE} * {_SINE} * {_SINE} / 6 * elliprd(1 - {_SINE} * {_SINE}, "
_BY_FIRST = "(0.5 * (r - elliprd(y, z, x)) / (z - x))"  # of elliprd
_BY_SECOND = "(0.5 * (r - elliprd(x, z, y)) / (z - y))"


_DENSITY = "gamma_density(x, r)"  # at a quantile
_BETA_DENSITY = "beta_density(x, y, r)"
_HALVES = "0.5 * x, 0.5 * r"
_F_RATIO = "0.5 * x, 0.5 * y, x * r / (y + x * r)"  # Fisher's distribution as a beta distribution, at a quantile
_F_DENSITY = f"(beta_density({_F_RATIO}) * x * y / ((y + x * r) * (y + x * r)))"
_T_DENSITY_BY_ORDER = (
    "(0.5 * (digamma(0.5 * x + 0.5) - digamma(0.5 * x) - log1p(y * y / x)) "
    "+ 0.5 * ((x + 1) * y * y / (x + y * y) - 1) / x)"
)


def _of_order(derivative: str, by_order: str = UNKNOWN) -> tuple[str, str]:
    return by_order, derivative


PARTIALS: dict[str, tuple[str | None, ...]] = {
    # Bessel functions
    "j0": ("-d * j1(x)",),
    "j1": ("d * (0.5 * (j0(x) - jv(2, x)))",),
    "jv": _of_order("d * (0.5 * (jv(x - 1, y) - jv(x + 1, y)))"),
    "y0": ("-d * y1(x)",),
    "y1": ("d * (0.5 * (y0(x) - yv(2, x)))",),
    "yn": _of_order("d * (0.5 * (yv(x - 1, y) - yv(x + 1, y)))"),
    "yv": _of_order("d * (0.5 * (yv(x - 1, y) - yv(x + 1, y)))"),
    "i0": ("d * i1(x)",),
    "i1": ("d * (0.5 * (i0(x) + iv(2, x)))",),
    "iv": _of_order("d * (0.5 * (iv(x - 1, y) + iv(x + 1, y)))", "d * (ive_by_order(x, y) * exp(y))"),
    "i0e": ("d * (i1e(x) - sign(x) * r)",),
    "i1e": ("d * (0.5 * (i0e(x) + ive(2, x)) - sign(x) * r)",),
    "ive": _of_order("d * (0.5 * (ive(x - 1, y) + ive(x + 1, y)) - sign(y) * r)", "d * ive_by_order(x, y)"),
    "k0": ("-d * k1(x)",),
    "k1": ("-d * (0.5 * (k0(x) + kv(2, x)))",),
    "kn": _of_order("-d * (0.5 * (kv(x - 1, y) + kv(x + 1, y)))"),
    "kv": _of_order("-d * (0.5 * (kv(x - 1, y) + kv(x + 1, y)))", "d * kv_by_order(x, y)"),
    "k0e": ("d * (r - k1e(x))",),
    "k1e": ("d * (r - 0.5 * (k0e(x) + kve(2, x)))",),
    "kve": _of_order("d * (r - 0.5 * (kve(x - 1, y) + kve(x + 1, y)))", "d * (kv_by_order(x, y) * exp(y))"),
    "kv_by_order": (UNKNOWN, UNKNOWN),
    "ive_by_order": (UNKNOWN, UNKNOWN),
    # elliptic integrals
    "ellipk": ("d * (elliprd(0, 1, 1 - x) / 6)",),
    "ellipkm1": ("-d * (elliprd(0, 1, x) / 6)",),
    "ellipe": ("-d * (elliprd(0, 1 - x, 1) / 6)",),
    "ellipkinc": (
        "d / sqrt(1 - y * sin(x) * sin(x))",
        f"d * ({_INCOMPLETE}1, 1 - y * {_SINE} * {_SINE}) + {_TURNS} * elliprd(0, 1, 1 - y) / 3)",
    ),
    "ellipeinc": (
        "d * sqrt(1 - y * sin(x) * sin(x))",
        f"-d * ({_INCOMPLETE}1 - y * {_SINE} * {_SINE}, 1) + {_TURNS} * elliprd(0, 1 - y, 1) / 3)",
    ),
    "elliprf": tuple(f"-d * (elliprd({v}) / 6)" for v in ("y, z, x", "z, x, y", "x, y, z")),
    "elliprc": ("d * (0.5 * (r - 1 / sqrt(x)) / (y - x))", "-d * (0.5 * (r - sqrt(x) / y) / (y - x))"),
    "elliprd": (
        f"d * {_BY_FIRST}",
        f"d * {_BY_SECOND}",
        f"-d * ((1.5 * r + (0 if x == 0 else x * {_BY_FIRST}) + (0 if y == 0 else y * {_BY_SECOND})) / z)",
    ),
    # exponential integrals, error functions
    "exp1": ("-d * (exp(-x) / x)",),
    "expi": ("d * (exp(x) / x)",),
    "expn": _of_order("-d * (exp(-y) * (1 + 1 / y) / y if x == 0 else expn(x - 1, y))"),
    "exprel": ("d * (0.5 + x / 3 + x * x / 8 + x * x * x / 30 if abs(x) < 1e-3 else (exp(x) - r) / x)",),
    "spence": ("d * (-1 if x == 1 else log(x) / (1 - x))",),
    "dawsn": ("d * (1 - 2 * x * r)",),
    "erfi": (f"d * ({_BY_ROOT_PI!r} * exp(x * x))",),
    "erfinv": (f"d * (exp(r * r) / {_BY_ROOT_PI!r})",),
    "erfcinv": (f"-d * (exp(r * r) / {_BY_ROOT_PI!r})",),
    "ndtri_exp": (f"d * ({_ROOT!r} * exp(x + 0.5 * r * r))",),
    "owens_t": (
        f"-d * (exp(-0.5 * x * x) * erf(x * y * {math.sqrt(0.5)!r}) / {2 * _ROOT!r})",
        f"d * (exp(-0.5 * x * x * (1 + y * y)) / ({2 * math.pi!r} * (1 + y * y)))",
    ),
    # of x + 1j * y: the Cauchy-Riemann equations
    "wofz_real": (
        "-d * (2 * (x * r - y * wofz_imag(x, y)))",
        f"d * (2 * (x * wofz_imag(x, y) + y * r) - {_BY_ROOT_PI!r})",
    ),
    "wofz_imag": (
        f"d * ({_BY_ROOT_PI!r} - 2 * (x * r + y * wofz_real(x, y)))",
        "-d * (2 * (x * wofz_real(x, y) - y * r))",
    ),
    # gamma and hypergeometric functions
    "rgamma": ("-d * (r * digamma(x))",),
    "beta": tuple(f"d * (r * (digamma({v}) - digamma(x + y)))" for v in "xy"),
    "betaln": tuple(f"d * (digamma({v}) - digamma(x + y))" for v in "xy"),
    "poch": ("d * (r * (digamma(x + y) - digamma(x)))", "d * (r * digamma(x + y))"),
    "binom": (
        "d * (r * (digamma(x + 1) - digamma(x - y + 1)))",
        "d * (r * (digamma(x - y + 1) - digamma(y + 1)))",
    ),
    "hyp0f1": _of_order("d * (hyp0f1(x + 1, y) / x)"),
    "hyp1f1": (UNKNOWN, UNKNOWN, "d * (x / y * hyp1f1(x + 1, y + 1, z))"),
    "hyperu": (UNKNOWN, UNKNOWN, "-d * (x * hyperu(x + 1, y + 1, z))"),
    "hyp2f1": (UNKNOWN, UNKNOWN, UNKNOWN, "d * (x * y / z * hyp2f1(x + 1, y + 1, z + 1, w))"),
    "eval_legendre": _of_order("d * (x * (y * r - eval_legendre(x - 1, y)) / (y * y - 1))"),
    # distribution functions, densities, quantiles
    "gammainc": ("d * gammainc_a(x, y)", "d * gamma_density(x, y)"),
    "gammaincc": ("-d * gammainc_a(x, y)", "-d * gamma_density(x, y)"),
    "gammainc_a": ("d * gammainc_aa(x, y)", "d * (gamma_density(x, y) * (log(y) - digamma(x)))"),
    "gamma_density": ("d * (r * (log(y) - digamma(x)))", "d * (r * ((x - 1) / y - 1))"),
    "gammaincinv": (f"-d * (gammainc_a(x, r) / {_DENSITY})", f"d / {_DENSITY}"),
    "gammainccinv": (f"-d * (gammainc_a(x, r) / {_DENSITY})", f"-d / {_DENSITY}"),
    "chdtri": (f"-d * (gammainc_a({_HALVES}) / gamma_density({_HALVES}))", f"-d / (0.5 * gamma_density({_HALVES}))"),
    "betainc": ("d * betainc_a(x, y, z)", "d * betainc_b(x, y, z)", "d * beta_density(x, y, z)"),
    "betaincc": ("-d * betainc_a(x, y, z)", "-d * betainc_b(x, y, z)", "-d * beta_density(x, y, z)"),
    "betainc_a": (
        "d * betainc_aa(x, y, z)",
        "d * betainc_ab(x, y, z)",
        "d * (beta_density(x, y, z) * (log(z) + digamma(x + y) - digamma(x)))",
    ),
    "betainc_b": (
        "d * betainc_ab(x, y, z)",
        "d * betainc_bb(x, y, z)",
        "d * (beta_density(x, y, z) * (log1p(-z) + digamma(x + y) - digamma(y)))",
    ),
    "beta_density": (
        "d * (r * (log(z) + digamma(x + y) - digamma(x)))",
        "d * (r * (log1p(-z) + digamma(x + y) - digamma(y)))",
        "d * (r * ((x - 1) / z - (y - 1) / (1 - z)))",
    ),
    "betaincinv": (
        f"-d * (betainc_a(x, y, r) / {_BETA_DENSITY})",
        f"-d * (betainc_b(x, y, r) / {_BETA_DENSITY})",
        f"d / {_BETA_DENSITY}",
    ),
    "fdtri": (
        f"-d * (0.5 * betainc_a({_F_RATIO}) / {_F_DENSITY} + r / x)",
        f"-d * (0.5 * betainc_b({_F_RATIO}) / {_F_DENSITY} - r / y)",
        f"d / {_F_DENSITY}",
    ),
    "stdtr": ("d * stdtr_v(x, y)", "d * t_density(x, y)"),
    "stdtr_v": ("d * stdtr_vv(x, y)", f"d * (t_density(x, y) * {_T_DENSITY_BY_ORDER})"),
    "t_density": (f"d * (r * {_T_DENSITY_BY_ORDER})", "-d * (r * ((x + 1) * y / (x + y * y)))"),
    "stdtrit": ("-d * (stdtr_v(x, r) / t_density(x, r))", "d / t_density(x, r)"),
    "chndtr": ("d * chn_density(x, y, z)", "d * chndtr_v(x, y, z)", "-d * chn_density(x, y + 2, z)"),
    "chndtr_v": ("d * chn_density_v(x, y, z)", "d * chndtr_vv(x, y, z)", "-d * chn_density_v(x, y + 2, z)"),
    "chn_density": (
        "d * chn_density_x(x, y, z)",
        "d * chn_density_v(x, y, z)",
        "d * (0.5 * (chn_density(x, y + 2, z) - r))",
    ),
    "chndtrix": (
        "d / chn_density(r, y, z)",
        "-d * (chndtr_v(r, y, z) / chn_density(r, y, z))",
        "d * (chn_density(r, y + 2, z) / chn_density(r, y, z))",
    ),
    "ndtri": (f"d * ({_ROOT!r} * exp(0.5 * r * r))",),
    **dict.fromkeys(("gammainc_aa", "stdtr_vv"), (UNKNOWN,) * 2),
    **dict.fromkeys(("betainc_aa", "betainc_ab", "betainc_bb"), (UNKNOWN,) * 3),
    **dict.fromkeys(("chn_density_x", "chn_density_v", "chndtr_vv"), (UNKNOWN,) * 3),
}  # fmt: skip
