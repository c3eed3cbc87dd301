"""`scipy.special`: partial derivatives of elementwise functions (see `ampi.rules.elementwise`), and other functions.

`...` stands for an argument (an order, a parameter) whose derivative is not known here: kernels may know it (see
`ampi.compiled_ufuncs`); it is an error where they do not.  What stands neither here nor in autograd's table is an error
as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.special as sp

from ..activity import plain_of
from ..errors import no_rule
from ..rules.definitions import define
from ..rules.elementwise import unbroadcast

_PI, _LN10 = float(np.pi), float(np.log(10.0))
_ROOT = float(np.sqrt(2 * np.pi))
_TWO_BY_ROOT_PI = float(2 / np.sqrt(np.pi))


def _density(a: Any, x: Any) -> Any:
    """Of the gamma distribution."""
    return np.exp(sp.xlogy(a - 1, x) - x - sp.gammaln(a))


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    return np.exp(sp.xlogy(a - 1, x) + sp.xlog1py(b - 1, -x) - sp.betaln(a, b))


def _ellipk(m: Any) -> Any:
    return np.where(m == 0, _PI / 8, (sp.ellipe(m) / (1 - m) - sp.ellipk(m)) / (2 * np.where(m == 0, 1, m)))


PARTIALS: dict[str, tuple] = {
    "betainc": (..., ..., lambda x, y, w: _beta_density(x, y, w)),
    "betaincc": (..., ..., lambda x, y, w: -_beta_density(x, y, w)),
    "betaincinv": (..., ..., lambda x, y, z: 1 / _beta_density(x, y, z)),
    "bei": (lambda x: sp.beip(x),),
    "ber": (lambda x: sp.berp(x),),
    "kei": (lambda x: sp.keip(x),),
    "ker": (lambda x: sp.kerp(x),),
    "boxcox": (
        lambda x, y: x ** (y - 1),
        lambda x, y, z: np.where(y == 0, np.log(x) ** 2 / 2, (x**y * np.log(x) - z) / np.where(y == 0, 1, y)),
    ),
    "boxcox1p": (lambda x, y: (1 + x) ** (y - 1), ...),
    "inv_boxcox": (lambda y, z: z ** (1 - y), ...),
    "inv_boxcox1p": (lambda y, z: (1 + z) ** (1 - y), ...),
    "cbrt": (lambda z: 1 / (3 * z * z),),
    "chdtr": (..., lambda x, y: _density(x / 2, y / 2) / 2),
    "chdtrc": (..., lambda x, y: -_density(x / 2, y / 2) / 2),
    "cosm1": (lambda x: -np.sin(x),),
    "cosdg": (lambda x: -np.sin(np.radians(x)) * _PI / 180,),
    "sindg": (lambda x: np.cos(np.radians(x)) * _PI / 180,),
    "tandg": (lambda z: (1 + z * z) * _PI / 180,),
    "cotdg": (lambda z: -(1 + z * z) * _PI / 180,),
    "dawsn": (lambda x, z: 1 - 2 * x * z,),
    "ellipe": (lambda x, z: np.where(x == 0, -_PI / 8, (z - sp.ellipk(x)) / (2 * np.where(x == 0, 1, x))),),
    "ellipeinc": (lambda x, y: np.sqrt(1 - y * np.sin(x) ** 2), ...),
    "ellipk": (lambda x: _ellipk(x),),
    "ellipkinc": (lambda x, y: 1 / np.sqrt(1 - y * np.sin(x) ** 2), ...),
    "ellipkm1": (lambda x: -(sp.ellipe(1 - x) / x - sp.ellipkm1(x)) / (2 * (1 - x)),),
    "entr": (lambda x: -np.log(x) - 1,),
    "erfcx": (lambda x, z: 2 * x * z - _TWO_BY_ROOT_PI,),
    "erfi": (lambda x: _TWO_BY_ROOT_PI * np.exp(x * x),),
    "eval_chebyt": (..., lambda x, y: x * sp.eval_chebyu(x - 1, y)),
    "eval_hermite": (..., lambda x, y: 2 * x * sp.eval_hermite(np.maximum(x - 1, 0), y)),
    "eval_hermitenorm": (..., lambda x, y: x * sp.eval_hermitenorm(np.maximum(x - 1, 0), y)),
    "eval_laguerre": (..., lambda x, y: np.where(x == 0, 0, -sp.eval_genlaguerre(np.maximum(x - 1, 0), 1, y))),
    "eval_legendre": (..., lambda x, y, z: x * (y * z - sp.eval_legendre(x - 1, y)) / (y * y - 1)),
    "exp1": (lambda x: -np.exp(-x) / x,),
    "exp2": (lambda z: np.log(2.0) * z,),
    "exp10": (lambda z: _LN10 * z,),
    "expi": (lambda x: np.exp(x) / x,),
    "expm1": (lambda x: np.exp(x),),
    "expn": (..., lambda x, y: np.where(x == 0, -np.exp(-y) * (1 + 1 / y) / y, -sp.expn(np.maximum(x - 1, 0), y))),
    "exprel": (
        lambda x, z: np.where(np.abs(x) < 1e-3, 0.5 + x / 3 + x * x / 8, (np.exp(x) - z) / np.where(x == 0, 1, x)),
    ),
    "gammainc": (..., lambda x, y: _density(x, y)),
    "gammaincc": (..., lambda x, y: -_density(x, y)),
    "gammaincinv": (..., lambda x, z: 1 / _density(x, z)),
    "gammainccinv": (..., lambda x, z: -1 / _density(x, z)),
    "huber": (lambda x, y: np.where(np.abs(y) <= x, 0, np.abs(y) - x), lambda x, y: np.clip(y, -x, x)),
    "pseudo_huber": (..., lambda x, y: y / np.sqrt(1 + (y / x) ** 2)),
    "hyp0f1": (..., lambda x, y: sp.hyp0f1(x + 1, y) / x),
    "hyp1f1": (..., ..., lambda x, y, w: x / y * sp.hyp1f1(x + 1, y + 1, w)),
    "hyp2f1": (..., ..., ..., lambda x, y, w, v: x * y / w * sp.hyp2f1(x + 1, y + 1, w + 1, v)),
    "hyperu": (..., ..., lambda x, y, w: -x * sp.hyperu(x + 1, y + 1, w)),
    "i0e": (lambda x, z: sp.i1e(x) - np.sign(x) * z,),
    "i1e": (lambda x, z: np.where(x == 0, 0.5, sp.i0e(x) - z * (np.sign(x) + 1 / np.where(x == 0, 1, x))),),
    "k0": (lambda x: -sp.k1(x),),
    "k0e": (lambda x, z: z - sp.k1e(x),),
    "k1": (lambda x, z: -sp.k0(x) - z / x,),
    "k1e": (lambda x, z: z - sp.k0e(x) - z / x,),
    "kn": (..., lambda x, y, z: -sp.kv(x - 1, y) - x * z / y),
    "kv": (..., lambda x, y: -(sp.kv(x - 1, y) + sp.kv(x + 1, y)) / 2),
    "kve": (..., lambda x, y, z: z - (sp.kve(x - 1, y) + sp.kve(x + 1, y)) / 2),
    "jv": (..., lambda x, y: (sp.jv(x - 1, y) - sp.jv(x + 1, y)) / 2),
    "jn": (..., lambda x, y: (sp.jv(x - 1, y) - sp.jv(x + 1, y)) / 2),
    "yv": (..., lambda x, y: (sp.yv(x - 1, y) - sp.yv(x + 1, y)) / 2),
    "iv": (..., lambda x, y: (sp.iv(x - 1, y) + sp.iv(x + 1, y)) / 2),
    "ive": (..., lambda x, y, z: (sp.ive(x - 1, y) + sp.ive(x + 1, y)) / 2 - np.sign(np.real(y)) * z),
    "yn": (..., lambda x, y: (sp.yv(x - 1, y) - sp.yv(x + 1, y)) / 2),
    "hankel1": (..., lambda x, y: (sp.hankel1(x - 1, y) - sp.hankel1(x + 1, y)) / 2),
    "hankel2": (..., lambda x, y: (sp.hankel2(x - 1, y) - sp.hankel2(x + 1, y)) / 2),
    "kl_div": (lambda x, y: np.log(x / y), lambda x, y: 1 - x / y),
    "rel_entr": (lambda x, y: np.log(x / y) + 1, lambda x, y: -x / y),
    "log1p": (lambda x: 1 / (1 + x),),
    "log_expit": (lambda x: sp.expit(-x),),
    "log_ndtr": (lambda x, z: np.exp(-x * x / 2 - z) / _ROOT,),
    "loggamma": (lambda x: sp.psi(x),),
    "ndtr": (lambda x: np.exp(-x * x / 2) / _ROOT,),
    "ndtri": (lambda z: _ROOT * np.exp(z * z / 2),),
    "ndtri_exp": (lambda x, z: np.exp(x + z * z / 2) * _ROOT,),
    "owens_t": (
        lambda x, y: -np.exp(-x * x / 2) * sp.erf(x * y / np.sqrt(2.0)) / (2 * _ROOT),
        lambda x, y: np.exp(-x * x * (1 + y * y) / 2) / (2 * _PI * (1 + y * y)),
    ),
    "powm1": (lambda x, y: y * x ** (y - 1), lambda x, z: np.log(x) * (z + 1)),
    "spence": (lambda x: np.where(x == 1, -1, np.log(x) / np.where(x == 1, 1, 1 - x)),),
    "stdtr": (
        ...,
        lambda x, y: np.exp(-(x + 1) / 2 * np.log1p(y * y / x) - sp.betaln(x / 2, 0.5)) / np.sqrt(x),
    ),
    "stdtrit": (
        ...,
        lambda x, z: np.exp((x + 1) / 2 * np.log1p(z * z / x) + sp.betaln(x / 2, 0.5)) * np.sqrt(x),
    ),
    "wofz": (lambda x, z: -2 * x * z + 1j * _TWO_BY_ROOT_PI,),
    "wrightomega": (lambda z: z / (1 + z),),
    "xlogy": (lambda x, y: np.where(x == 0, np.log(np.where(y == 0, 1, y)), np.log(y)), lambda x, y: x / y),
    "xlog1py": (lambda y: np.log1p(y), lambda x, y: x / (1 + y)),
}

BY_KERNELS = (
    *("binom", "chdtri", "chndtr", "chndtrix", "elliprc", "elliprd", "elliprf", "fdtr", "fdtrc", "fdtri", "gdtr"),
    *("gdtrc", "pdtr", "pdtrc", "poch", "voigt_profile"),
)
"""Functions whose derivatives with respect to all arguments are those of kernels."""

for _name, _entries in PARTIALS.items():
    if isinstance(_found := getattr(sp, _name, None), np.ufunc):
        define(_found, partials=_entries)
for _name in BY_KERNELS:
    if isinstance(_found := getattr(sp, _name, None), np.ufunc):
        define(_found, partials=(...,) * _found.nin)
define(sp.round, constant=True)


# ---------------------------------------------------------------------------------------------------- other functions


@define(sp.logsumexp)
def _logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    top = np.max(
        np.where(plain_of(b) == 0, -np.inf, plain_of(a).real) if b is not None else plain_of(a).real,
        axis=axis,
        keepdims=True,
    )
    top = np.where(np.isfinite(top), top, 0)
    terms = np.exp(np.subtract(a, top))
    total = np.sum(terms if b is None else np.multiply(b, terms), axis=axis, keepdims=True)
    if np.iscomplexobj(plain_of(total)) and return_sign:
        raise no_rule(sp.logsumexp, " for complex numbers with return_sign=True")
    sign = np.sign(plain_of(total))
    result = (np.log(total * sign) if return_sign else np.log(total)) + top
    if not keepdims:
        result, sign = np.squeeze(result, axis=axis)[()], np.squeeze(sign, axis=axis)[()]
    return (result, sign) if return_sign else result


@define(sp.softmax)
def _softmax(x: Any, axis: Any = None) -> Any:
    terms = np.exp(np.subtract(x, np.max(plain_of(x), axis=axis, keepdims=True)))
    return terms / np.sum(terms, axis=axis, keepdims=True)


@define(sp.log_softmax)
def _log_softmax(x: Any, axis: Any = None) -> Any:
    moved = np.subtract(x, np.max(plain_of(x), axis=axis, keepdims=True))
    return moved - np.log(np.sum(np.exp(moved), axis=axis, keepdims=True))


define(sp.polygamma, adjoint={"x": lambda g, n, x, shape: unbroadcast(g * sp.polygamma(np.asarray(n) + 1, x), shape)})
define(
    sp.multigammaln,
    adjoint={"a": lambda g, a, d: g * sum(sp.psi(np.asarray(a) + (1 - j) / 2) for j in range(1, int(d) + 1))},
)
define(
    sp.zeta, adjoint={"q": lambda g, x, q, shape: unbroadcast(np.asanyarray(-g * x * sp.zeta(np.add(x, 1), q)), shape)}
)
define(
    sp.lambertw,
    adjoint={"z": lambda g, z, result, shape: unbroadcast(g * np.conj(np.exp(-result) / (1 + result)), shape)},
)
if hasattr(sp, "softplus"):

    @define(sp.softplus)
    def _softplus(x: Any, **keywords: Any) -> Any:
        return np.logaddexp(0, x)


def _spherical(name: str) -> None:
    function = getattr(sp, name)

    def adjoint(g: Any, n: Any, z: Any, derivative: Any, shape: Any) -> Any:
        if derivative:
            raise no_rule(function, " of its derivative")
        return unbroadcast(np.asanyarray(g * np.conj(function(n, z, True))), shape)

    define(function, adjoint={"z": adjoint})


for _name in ("spherical_jn", "spherical_yn", "spherical_in", "spherical_kn"):
    _spherical(_name)
