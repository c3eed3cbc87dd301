"""Derivatives of NumPy's elementwise functions: one table of partial derivatives.

An entry gives, for each argument, the partial derivative of the result ``z`` with respect to that argument, as a
function whose parameter names say which values it needs: ``x`` and ``y`` are the arguments, ``z`` the result.  A number
stands for a constant partial, None for an argument through which no derivative passes, ``...`` for one whose derivative
is not known.  The adjoint multiplies by the
conjugate, the tangent by the partial itself; what must be kept is read off the parameter names.

Functions that are not holomorphic (`absolute`, `conjugate`, …) give the adjoint itself, in the real inner product
Re⟨x̄, ẋ⟩: a function of ``g`` (the result's adjoint) and of values.

Ufuncs that stand in neither table get autograd's rules.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory.storages import TrackedArray, plain

_LN2 = float(np.log(2.0))
_LN10 = float(np.log(10.0))
_INF = float("inf")


def _holds(x: Any, z: Any) -> Any:
    """The first argument's share of an extremum's adjoint: one where it is the extremum, ties included."""
    return np.where(x == z, 1.0, 0.0)


def _does_not_hold(x: Any, z: Any) -> Any:
    """The second argument's share of an extremum's adjoint."""
    return np.where(x == z, 0.0, 1.0)


def _side(x: Any) -> Any:
    """The derivative of |x|; at zero (negative zero included), where x and -x tie, that of x."""
    return np.copysign(1.0, x + 0.0)


def _power_base(x: Any, y: Any) -> Any:
    nowhere = (y == 0) & ((x == 0) | (x != x))
    return np.where(nowhere, 0.0, y * x ** np.where(nowhere, 1.0, y - 1.0))


def _power_exponent(x: Any, z: Any) -> Any:
    return z * np.log(np.where(x == 0, z.dtype.type(1), x))  # complex for negative numbers too, if the power is


def _unit(x: Any, z: Any) -> Any:
    """x/|x|; one at zero."""
    return np.where(z == 0, 1.0, x / np.where(z == 0, 1.0, z))


def leg(x: Any, z: Any) -> Any:
    """The derivative of a hypotenuse z with respect to x: one-sided at zero, one for an infinite x."""
    quotient = x / np.where((z == 0) | np.isinf(z), 1.0, z)
    return np.where(x == z, 1.0, np.where(x == -z, -1.0, np.where(np.isinf(z), 0.0, quotient)))


def _other_leg(x: Any) -> Any:
    """sqrt(1 - x²).  On branch cuts the sign of a zero imaginary part selects the side: subtraction keeps it."""
    return np.sqrt(-(x - 1.0)) * np.sqrt(x - -1.0) if np.iscomplexobj(x) else np.sqrt((1.0 - x) * (1.0 + x))


def _around(a: Any, x: Any, y: Any) -> Any:
    """a / (x² + y²) without overflow of the squares; zero at the origin and at infinity."""
    distance = np.hypot(x, y)
    nowhere = (distance == 0) | np.isinf(distance)
    safe = np.where(nowhere, 1.0, distance)
    return np.where(nowhere, 0.0, a / safe / safe)


def _weight(x: Any, y: Any, z: Any, exp: Any) -> Any:
    """exp(x - z), also for infinite arguments: one for the larger one, 1/2 each if they are equal."""
    return np.where(x == y, 0.5, exp(np.where(x == z, 0.0, x - z)))


def times(g: Any, p: Any) -> Any:
    """Adjoint times partial derivative; zero where one of them is exactly zero, even if the other is not finite."""
    product = g * p
    if has_nan(product):
        nothing = np.isnan(product) & ((g == 0) | (p == 0))  # a zero elsewhere may carry a derivative
        return np.where(nothing, product.dtype.type(0), product)
    return product


def has_nan(x: Any) -> bool:
    """Return whether an element may be NaN, by the fastest reduction that raises no warning about large numbers."""
    if isinstance(x, TrackedArray):
        x = plain(x)
    size = x.size
    if _FEW < size < _MANY and x.dtype.kind == "c":
        total: Any = np.vdot(x, x)  # infinite squares give NaN as well: the caller checks each element
    elif size:
        total = _maximum(x, None)
    else:
        return False
    return bool(total != total)


_maximum = np.maximum.reduce  # slow for complex numbers
_FEW, _MANY = 64, 8192
"""Between these numbers of elements a product is faster; for more, BLAS uses threads."""


PARTIALS: dict[str, tuple] = {
    "add": (1.0, 1.0),
    "subtract": (1.0, -1.0),
    "multiply": (lambda y: y, lambda x: x),
    "divide": (lambda y: 1.0 / y, lambda y, z: -z / y),
    "power": (_power_base, _power_exponent),
    "float_power": (_power_base, _power_exponent),
    "remainder": (1.0, lambda x, y: -np.floor_divide(x, y)),
    "fmod": (1.0, lambda x, y, z: -np.rint((x - z) / y)),
    "maximum": (_holds, _does_not_hold),
    "minimum": (_holds, _does_not_hold),
    "fmax": (_holds, _does_not_hold),
    "fmin": (_holds, _does_not_hold),
    "logaddexp": (lambda x, y, z: _weight(x, y, z, np.exp), lambda x, y, z: _weight(y, x, z, np.exp)),
    "logaddexp2": (lambda x, y, z: _weight(x, y, z, np.exp2), lambda x, y, z: _weight(y, x, z, np.exp2)),
    "arctan2": (lambda x, y: _around(y, x, y), lambda x, y: -_around(x, x, y)),
    "hypot": (leg, lambda y, z: leg(y, z)),
    "nextafter": (1.0, None),
    "heaviside": (None, lambda x: np.where(x == 0, 1.0, 0.0)),
    "copysign": (lambda x, y: _side(x) * np.copysign(1.0, y), None),
    "ldexp": (lambda y: np.exp2(y + 0.0), None),
    "negative": (-1.0,),
    "positive": (1.0,),
    "fabs": (_side,),
    "sqrt": (lambda z: 0.5 / z,),
    "cbrt": (lambda z: 1.0 / (3.0 * z * z),),
    "square": (lambda x: 2.0 * x,),
    "reciprocal": (lambda z: -z * z,),
    "exp": (lambda z: z,),
    "exp2": (lambda z: _LN2 * z,),
    "expm1": (lambda x: np.exp(x),),
    "log": (lambda x: 1.0 / x,),
    "log2": (lambda x: 1.0 / (_LN2 * x),),
    "log10": (lambda x: 1.0 / (_LN10 * x),),
    "log1p": (lambda x: 1.0 / (x + 1.0),),
    "sin": (lambda x: np.cos(x),),
    "cos": (lambda x: -np.sin(x),),
    "tan": (lambda z: 1.0 + z * z,),
    "arcsin": (lambda x: 1.0 / _other_leg(x),),
    "arccos": (lambda x: -1.0 / _other_leg(x),),
    "arctan": (lambda x: 1.0 / (1.0 + x * x),),
    "sinh": (lambda x: np.cosh(x),),
    "cosh": (lambda x: np.sinh(x),),
    "tanh": (lambda z: (1.0 - z) * (1.0 + z),),
    "arcsinh": (lambda x: 1.0 / (np.sqrt(x * x - -1.0) if np.iscomplexobj(x) else np.hypot(x, 1.0)),),
    "arccosh": (lambda x: 1.0 / (np.sqrt(x - 1.0) * np.sqrt(x - -1.0)),),
    "arctanh": (lambda x: 1.0 / ((1.0 - x) * (1.0 + x)),),
    "degrees": (180.0 / np.pi,),
    "rad2deg": (180.0 / np.pi,),
    "radians": (np.pi / 180.0,),
    "deg2rad": (np.pi / 180.0,),
}

ADJOINTS: dict[str, tuple] = {
    # The absolute value is real, even in complex memory.
    "absolute": (lambda g, x, z: times(np.real(g), _unit(x, z) if np.iscomplexobj(x) else _side(x)),),
    "conjugate": (lambda g: np.conj(g),),
    # The bounds get the adjoint where they are active.
    "clip": (
        lambda g, x, y, w: np.where((x >= y) & (x <= w), g, g.dtype.type(0)),
        lambda g, x, y, w: np.where((x < y) & (y <= w), g, g.dtype.type(0)),
        lambda g, x, y, w: np.where((x > w) | (y > w), g, g.dtype.type(0)),
    ),
}

# The derivative is zero wherever it exists; functions with integer or boolean results need no entry.
CONSTANT = {
    "ceil",
    "floor",
    "floor_divide",
    "rint",
    "sign",
    "trunc",
}
# These are not piecewise constant on complex numbers.
CONSTANT_REAL = {"sign"}


class Rule:
    """The derivatives of one elementwise function.

    Attributes
    ----------
    name : str
    terms : tuple
        For each argument ``term(g, *values)``, its contribution before summing over broadcast axes; None without one.
    needs : tuple
        For each argument the positions of the arguments whose values its term takes; -1 is the result.
    unknown : tuple
        Positions of arguments whose derivative is not known: they must not be active.
    partials : tuple of callable, or None
        For each argument the partial derivative as a function of these values; None where the adjoint is given.
    dtypes : tuple of dtype, or None
    run : callable, or None
        For `small_arrays`.
    of_complex : Rule, or None
        The rule for complex arguments if it differs.
    whole : tuple
        Positions of arguments that stay integers, for which the function is more accurate.
    """

    __slots__ = (
        "dtypes",
        "mixed",
        "name",
        "needs",
        "of_complex",
        "partials",
        "run",
        "terms",
        "unknown",
        "wants_cache",
        "whole",
    )

    def __init__(
        self, name: str, terms: tuple, needs: tuple, partials: tuple | None = None, unknown: tuple = ()
    ) -> None:
        self.unknown = unknown
        self.name = name
        self.partials = partials
        self.terms = terms
        self.needs = needs
        self.wants_cache: dict[tuple, tuple] = {}
        self.dtypes: tuple | None = None
        self.run: Callable | None = None
        self.of_complex: Rule | None = None
        self.whole: tuple = ()
        self.mixed: dict[np.dtype, Rule] = {}

    def tangent(self, k: int, x_dot: Any, values: Any) -> Any:
        """The contribution of argument k's tangent to the result's; ``values`` are those in ``needs[k]``."""
        if self.name == "absolute":
            return np.real(np.conj(self.terms[k](np.ones((), x_dot.real.dtype), *values)) * x_dot)
        # The term multiplies by the conjugate of the partial derivative.
        if x_dot.dtype.kind == "c":
            x_dot = np.conj(x_dot)
        found = self.terms[k](x_dot, *values)
        return np.conj(found) if found.dtype.kind == "c" else found

    def wants(self, active: tuple) -> tuple:
        """Positions of the values that the adjoint needs for these active arguments; -1 is the result."""
        try:
            return self.wants_cache[active]
        except KeyError:
            wanted = tuple(sorted({n for k in active for n in self.needs[k]}))
            self.wants_cache[active] = wanted
            return wanted

    def of_mixed(self, values: list, dtype: np.dtype) -> Rule:
        """The rule for values with other dtypes than the result's: they are converted to its precision.

        Otherwise derivatives would be computed in the dtype of integers, booleans or less precise numbers.
        """
        if (self.partials is None and not self.unknown) or all([getattr(x, "dtype", dtype) is dtype for x in values]):
            return self
        try:
            return self.mixed[dtype]
        except KeyError:
            real = np.empty(0, dtype).real.dtype
            terms = tuple(
                None if term is None else self._converting(term, needs, real)
                for term, needs in zip(self.terms, self.needs)
            )
            found = self.mixed[dtype] = Rule(self.name, terms, self.needs, self.partials, self.unknown)
            return found

    def _converting(self, term: Callable, needs: tuple, real: np.dtype) -> Callable:
        whole = [n in self.whole for n in needs]
        return lambda g, *values: term(g, *[_converted(x, real, w) for x, w in zip(values, whole)])


def _converted(x: Any, real: np.dtype, whole: bool) -> Any:
    """A value converted to at least this real precision."""
    if type(x) is bool:
        return int(x)
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        return x
    wanted = np.dtype(np.int64) if whole and dtype.kind in "biu" else np.promote_types(dtype, real)
    return x if dtype == wanted else x.astype(wanted)


def _positions(parameters: list[str]) -> tuple:
    order = {"x": 0, "y": 1, "w": 2, "v": 3, "z": -1}
    return tuple(order[name] for name in parameters)


def _constant_term(partial: float) -> Callable:
    if partial == 1.0:
        return lambda g: g
    if partial == -1.0:
        return lambda g: -g
    return lambda g: g * partial


def _partial_term(partial: Callable) -> Callable:
    def term(g: Any, *values: Any) -> Any:
        p = partial(*values)
        if isinstance(p, (np.ndarray, np.generic)):
            return times(g, p if p.dtype.kind != "c" else np.conj(p))
        return g * p if type(p) is float and p and -_INF < p < _INF else times(g, np.conj(p))

    return term


def rule(name: str, entries: tuple, are_adjoints: bool) -> Rule:
    terms: list = []
    needs: list = []
    for entry in entries:
        if entry is None or entry is ...:
            terms.append(None)
            needs.append(())
        elif callable(entry):
            names = list(inspect.signature(entry).parameters)
            terms.append(entry if are_adjoints else _partial_term(entry))
            needs.append(_positions(names[1:] if are_adjoints else names))
        else:
            terms.append(_constant_term(entry))
            needs.append(())
    unknown = tuple(k for k, entry in enumerate(entries) if entry is ...)
    partials = [
        entry if entry is None or callable(entry) else functools.partial(float, entry)
        for entry in entries
        if entry is not ...
    ]
    return Rule(name, tuple(terms), tuple(needs), None if are_adjoints or unknown else tuple(partials), unknown)


def _ufunc(name: str) -> np.ufunc:
    return np._core.umath.clip if name == "clip" else getattr(np, name)


RULES: dict[np.ufunc, Rule] = {
    **{_ufunc(name): rule(name, entries, False) for name, entries in PARTIALS.items()},
    **{_ufunc(name): rule(name, entries, True) for name, entries in ADJOINTS.items()},
}
CONSTANTS: set[np.ufunc] = {getattr(np, name) for name in CONSTANT}
# Some versions of NumPy call it for x**0.
CONSTANTS |= {getattr(np._core.umath, name) for name in ("_ones_like",) if hasattr(np._core.umath, name)}
CONSTANT_FOR_REAL: set[np.ufunc] = {getattr(np, name) for name in CONSTANT_REAL}


def unbroadcast(g: Any, shape: tuple) -> Any:
    """Sum an adjoint over the axes along which a value of the given shape was broadcast."""
    if g.shape == shape:
        return g
    if g.dtype.names is not None:
        total = np.zeros(shape, g.dtype)
        for name in g.dtype.names:
            total[name] = unbroadcast(g[name], total[name].shape)
        return total
    extra = g.ndim - len(shape)
    if extra > 0:
        g = g.sum(axis=tuple(range(extra)))
    elif extra < 0:
        g = g.reshape((1,) * -extra + g.shape)
    axes = tuple(k for k, n in enumerate(shape) if n == 1 and g.shape[k] != 1)
    return g.sum(axis=axes, keepdims=True) if axes else g
