"""Rules of NumPy's elementwise functions, made from the table of partial derivatives (`ampi.partials`).

The adjoint multiplies by the conjugate of a partial derivative, the tangent by the derivative itself; what must be kept
is read off the names of values in the expression.

Functions that are not holomorphic (`absolute`, `conjugate`, …) give the adjoint itself, in the real inner product
Re⟨x̄, ẋ⟩: a function of ``g`` (the result's adjoint) and of values.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory.storages import TrackedArray, plain
from ..partials.elementary import COMPLEX, PARTIALS
from ..partials.of_arrays import ELEMENTARY, function

_INF = float("inf")


try:
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    _quiet = _make_extobj(all="ignore")
    _set_errors, _reset_errors = _extobj_contextvar.set, _extobj_contextvar.reset
except (AttributeError, ImportError):  # of a later NumPy

    def quietly(function: Callable, values: Any) -> Any:
        """Call a function without NumPy's warnings."""
        with np.errstate(all="ignore"):
            return function(*values)

else:

    def quietly(function: Callable, values: Any) -> Any:
        """Call a function without NumPy's warnings; `numpy.errstate` takes ten times as long."""
        token = _set_errors(_quiet)
        try:
            return function(*values)
        finally:
            _reset_errors(token)


def _side(x: Any) -> Any:
    """The derivative of |x|; at zero (negative zero included), where x and -x tie, that of x."""
    return np.copysign(1.0, x + 0.0)


def _unit(x: Any, z: Any) -> Any:
    """x/|x|; one at zero."""
    return np.where(z == 0, 1.0, x / np.where(z == 0, 1.0, z))


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
        try:
            total = _maximum(x, None)
        except (NotImplementedError, TypeError):  # CuPy has functions for reductions
            return bool(np.isnan(x).any())
    else:
        return False
    return bool(total != total)


_maximum = np.maximum.reduce  # slow for complex numbers
_FEW, _MANY = 64, 8192
"""Between these numbers of elements a product is faster; for more, BLAS uses threads."""


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
    make : callable
        Returns the next four attributes, which are made when one of them is first read.
    terms : tuple
        For each argument ``term(g, *values)``, its contribution before summing over broadcast axes; None without one.
    needs : tuple
        For each argument the positions of the arguments whose values its term takes; -1 is the result.
    unknown : tuple
        Positions of arguments whose derivative is not known: they must not be active.
    partials : tuple of callable, or None
        For each argument the partial derivative of numbers as a function of these values; None where the adjoint is
        given.
    dtypes : tuple of dtype, or None
    run : callable, or None
        For `fast_calls`.
    of_complex : Rule, or None
        The rule for complex arguments if it differs.
    whole : tuple
        Positions of arguments that stay integers, for which the function is more accurate.
    """

    __slots__ = (
        "dtypes",
        "make",
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

    def __init__(self, name: str, make: Callable[[], tuple]) -> None:
        self.name = name
        self.make = make
        self.wants_cache: dict[tuple, tuple] = {}
        self.dtypes: tuple | None = None
        self.run: Callable | None = None
        self.of_complex: Rule | None = None
        self.whole: tuple = ()
        self.mixed: dict[np.dtype, Rule] = {}

    def __getattr__(self, name: str) -> Any:
        """Make the rule when one of its empty slots is read."""
        if name not in ("terms", "needs", "partials", "unknown"):
            raise AttributeError(name)
        self.terms, self.needs, self.partials, self.unknown = self.make()
        return getattr(self, name)

    def tangent(self, k: int, x_dot: Any, values: Any) -> Any:
        """The contribution of argument k's tangent to the result's; ``values`` are those in ``needs[k]``."""
        if self.name == "absolute":
            return np.real(np.conj(self.terms[k](x_dot.real.dtype.type(1), *values)) * x_dot)
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
            made = (terms, self.needs, self.partials, self.unknown)
            found = self.mixed[dtype] = Rule(self.name, lambda: made)
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
        dtype = getattr(p, "dtype", None)
        if dtype is not None:
            return times(g, p if dtype.kind != "c" else np.conj(p))
        return g * p if type(p) is float and p and -_INF < p < _INF else times(g, np.conj(p))

    return term


def rule(name: str, entries: tuple | Callable[[], tuple], are_adjoints: bool = False) -> Rule:
    """A rule of the partial derivatives, or adjoints, with respect to each argument.

    An entry is a function whose parameters say which values it needs (``x``, ``y``, ``w``, ``v``: the arguments, ``z``:
    the result), or an expression of `ampi.partials`, or a number; None is for an argument through which no derivative
    passes, ``...`` for one whose derivative is not known.
    """
    return Rule(name, functools.partial(_made, entries, are_adjoints))


def _made(entries: tuple | Callable[[], tuple], are_adjoints: bool) -> tuple:
    terms: list = []
    needs: list = []
    partials: list = []
    for entry in entries() if callable(entries) else entries:
        of_numbers = entry
        if isinstance(entry, str):
            try:
                entry = of_numbers = float(entry)
            except ValueError:
                entry, of_numbers = function(entry, ELEMENTARY), function(entry, ELEMENTARY, of_numbers=True)
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
        is_number = not (entry is None or entry is ... or callable(entry))
        partials.append(functools.partial(float, entry) if is_number else of_numbers)
    unknown = tuple(k for k, p in enumerate(partials) if p is ...)
    return tuple(terms), tuple(needs), None if are_adjoints or unknown else tuple(partials), unknown


def _ufunc(name: str) -> np.ufunc:
    return np._core.umath.clip if name == "clip" else getattr(np, name)


RULES: dict[np.ufunc, Rule] = {
    **{_ufunc(name): rule(name, entries) for name, entries in PARTIALS.items()},
    **{_ufunc(name): rule(name, entries, True) for name, entries in ADJOINTS.items()},
}
for _name, _entries in COMPLEX.items():
    RULES[_ufunc(_name)].of_complex = rule(_name, _entries)
leg = function(PARTIALS["hypot"][0], ELEMENTARY)  # type: ignore[arg-type]
"""The derivative of a hypotenuse z with respect to a leg x."""
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
