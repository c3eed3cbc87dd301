"""`scipy.special`: elementwise functions, with the partial derivatives of `ampi.partials.special`, and other functions.

Derivatives with respect to some arguments (mostly an order or a parameter) need a function that only kernels have;
kernels compute them (see `ampi.foreign.compiled_ufuncs`).  Without a derivative there, or without a rule, active
arguments raise an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp

from ...arrays import elementwise
from ...arrays.activity import plain_of
from ...arrays.elementwise import unbroadcast
from ...arrays.ufuncs import apply_formula
from ...base.missing_rules import no_rule
from ...memory.storages import TrackedArray
from ...partials.of_arrays import ELEMENTARY, called, function
from ...partials.special import COMPLEX, FORMULAS, PARTIALS, UNKNOWN, WHOLE, in_words
from ...rules.definitions import define
from .tracked_arrays import as_tracked

# -------------------------------------------------------------------------------- expressions of the table, for arrays


class Formula:
    """A function of arrays that is in the table but not in SciPy; called like a ufunc."""

    def __init__(self, name: str, function: Callable, nin: int) -> None:
        self.__name__ = name
        self.function = function
        self.nin = nin

    def __call__(self, *inputs: Any) -> Any:
        if any([isinstance(x, TrackedArray) for x in inputs]):
            return apply_formula(self, inputs)
        return self.function(*inputs)

    def described(self) -> str:
        """Return the name for error messages: the derivative of some of SciPy's functions."""
        return in_words(self.__name__)


@functools.cache
def _known(name: str) -> Any:
    """Return the function of arrays for a name in expressions; None if only kernels have it, or SciPy lacks it."""
    if name in FORMULAS:
        found = _function(FORMULAS[name])
        return None if found is None else Formula(name, found, found.__code__.co_argcount)
    found = getattr(sp, name, None) if name in PARTIALS or name not in _ELEMENTARY else None
    return found if isinstance(found, np.ufunc) else _ELEMENTARY.get(name)


def _trigamma(x: Any) -> Any:
    """The trigamma function, by reflection for x <= 0, where SciPy would add a term for each integer."""
    with np.errstate(all="ignore"):
        sine = np.sin(np.pi * (x - 2 * np.rint(0.5 * x)))
        right = sp.polygamma(1, np.where(x > 0, x, 1 - x))
        return np.where(x > 0, right, (np.pi / sine) ** 2 - right)


def _tetragamma(x: Any) -> Any:
    with np.errstate(all="ignore"):
        angle = np.pi * (x - 2 * np.rint(0.5 * x))
        right = sp.polygamma(2, np.where(x > 0, x, 1 - x))
        return np.where(x > 0, right, right - 2 * np.cos(angle) * (np.pi / np.sin(angle)) ** 3)


_ELEMENTARY: dict[str, Any] = {
    **ELEMENTARY,
    "digamma": sp.psi,
    "trigamma": Formula("trigamma", _trigamma, 1),
    "tetragamma": Formula("tetragamma", _tetragamma, 1),
}


def _function(text: str, whole: tuple[str, ...] = ()) -> Any:
    """Return an expression of the table as a function of arrays; None if it needs a function that only kernels have."""
    known = {name: _known(name) for name in called(text)}
    return None if None in known.values() else function(text, known, alone=True, whole=whole)


def _entries(name: str, texts: tuple[str, ...]) -> tuple:
    whole = tuple("xywv"[k] for k in WHOLE.get(name, ()))
    return tuple(... if text == UNKNOWN else _function(text, whole) or ... for text in texts)


def _install(function: Any, name: str) -> None:
    """Install the rules of a function of the table, which are built when it is first called."""
    rule = elementwise.rule(name, functools.partial(_entries, name, PARTIALS[name]))
    rule.whole = WHOLE.get(name, ())
    if name not in COMPLEX:
        rule.of_complex = elementwise.rule(name, (...,) * len(PARTIALS[name]))
    elif COMPLEX[name] is not PARTIALS[name]:
        rule.of_complex = elementwise.rule(name, functools.partial(_entries, name, COMPLEX[name]))
        rule.of_complex.whole = rule.whole
    elementwise.RULES[function] = rule


BY_KERNELS = (*("fdtr", "fdtrc", "gdtr", "gdtrc", "pdtr", "pdtrc", "voigt_profile"),)
"""Functions whose derivatives with respect to all arguments are those of kernels."""

for _name in PARTIALS:
    _found: Any = _known(_name)
    if _found is not None and (isinstance(_found, Formula) or _name not in BY_KERNELS):
        _install(_found, _name)
for _name in BY_KERNELS:
    if isinstance(_found := getattr(sp, _name, None), np.ufunc):
        define(_found, partials=(...,) * _found.nin)
define(sp.round, constant=True)
define(sp.gammasgn, constant=True)


# ---------------------------------------------------------------------------------------------------- other functions


@define(sp.logsumexp)
def _logsumexp(a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False) -> Any:
    a, b = (as_tracked(x) if isinstance(x, (list, tuple)) else x for x in (a, b))
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

    def known(derivative: Any) -> None:
        if derivative:
            raise no_rule(function, " of its derivative")

    def adjoint(g: Any, n: Any, z: Any, shape: Any) -> Any:
        return unbroadcast(np.asanyarray(g * np.conj(function(n, z, True))), shape)

    define(function, adjoint={"z": adjoint}, require=known)


for _name in ("spherical_jn", "spherical_yn", "spherical_in", "spherical_kn"):
    _spherical(_name)
