"""`scipy.interpolate`: interpolants of active values, and evaluation at active points.

An interpolant made from active values stores them (piecewise polynomials and splines store their coefficients); the
adjoint of an evaluation is distributed over them. Since SciPy 1.18 splines and piecewise polynomials contain an inner
object, which has the arrays.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.interpolate as ip
import scipy.sparse.linalg

from ...arrays.activity import plain_of
from ...arrays.elementwise import unbroadcast
from ...arrays.known_classes import define_class
from ...interception.hooks import Hook, hook
from ...rules.definitions import any_active, define, refusal
from ...tape import Tape, passive
from . import guards
from .sources import with_ours
from .tracked_arrays import as_tracked, zeros

_BSPLINE = ip.BSpline


def _holder(x: Any) -> tuple[Any, str]:
    """The object that holds the coefficients of a spline or piecewise polynomial, and the name of its attribute."""
    inner = getattr(x, "_delegate_to", None)
    inner = x if inner is None else inner
    return inner, "_c" if hasattr(inner, "_c") else "c"


def _take_apart(x: Any) -> tuple:
    inner, name = _holder(x)
    return ((getattr(inner, name),) if hasattr(inner, name) else ()), x


def _put_together(arrays: tuple, x: Any) -> Any:
    new = copy.copy(x)
    inner, name = _holder(new)
    if inner is not new:
        inner = new._delegate_to = copy.copy(inner)
    setattr(inner, name, arrays[0])
    return new


def _classes(*public: type) -> list[type]:
    """Some classes, their bases in SciPy with constructors, and the classes of their inner objects."""
    found = [base for cls in public for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    for cls in public:
        inner = getattr(sys.modules[cls.__module__], f"_{cls.__name__}", None)
        if inner is not None:
            found += [base for base in inner.__mro__ if "__init__" in vars(base) and base is not object]
    return list(dict.fromkeys(found))


# ------------------------------------------------------------------------------------------------ piecewise polynomials

for _cls in _classes(ip.PPoly, ip.BPoly, _BSPLINE):
    define_class(_cls, _take_apart, _put_together)


def _differentiate_constructor(cls: type) -> None:
    """Differentiate a class's constructor through SciPy's own source."""
    ours: list = []

    def handle(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
        if not any_active(tape, arguments, keywords):
            return found.original(*arguments, **keywords)
        given = found.signature.bind(*arguments, **keywords).arguments
        if any_active(tape, given.get("x"), given.get("t")):  # the objects cannot store active x or t
            raise refusal(found.name, " with respect to its knots")
        if not ours:
            ours.append(with_ours(vars(cls)["__init__"]))
        ours[0](*arguments, **keywords)
        if not any_active(tape, arguments[0]):
            raise refusal(found.name, " for these arguments")
        return None

    hook(vars(cls)["__init__"], handle, f"scipy.interpolate.{cls.__name__}")


for _cls in _classes(
    ip.PPoly, ip.BPoly, ip.CubicSpline, ip.CubicHermiteSpline, ip.PchipInterpolator, ip.Akima1DInterpolator, _BSPLINE
):
    _differentiate_constructor(_cls)


def _flat_places(self: Any, x: Any, extrapolate: Any) -> tuple:
    """Points relative to their intervals, the intervals, and a mask of the points with values."""
    knots = np.asarray(self.x)
    extrapolate = self.extrapolate if extrapolate is None else extrapolate
    x = np.asarray(x, float).ravel()
    inside = np.isfinite(x)
    if extrapolate == "periodic":
        x = knots[0] + (x - knots[0]) % (knots[-1] - knots[0])
    elif not extrapolate:
        inside = inside & (x >= knots.min()) & (x <= knots.max())
    if knots[0] > knots[-1]:
        cell = len(knots) - 1 - np.searchsorted(knots[::-1], x, side="left")
    else:
        cell = np.searchsorted(knots, x, side="right") - 1
    cell = np.clip(cell, 0, len(knots) - 2)
    return np.where(inside, x - knots[cell], 0.0), cell, inside


def _values_first(g: Any, axis: int, x: Any) -> Any:
    """An adjoint with the axes of the points merged into the first axis."""
    ndim = np.ndim(x)
    g = np.moveaxis(np.asanyarray(g), range(axis, axis + ndim), range(ndim))
    return g.reshape(np.size(x), -1)


def _ppoly_of_c(g: Any, self: Any, x: Any, nu: Any, extrapolate: Any) -> Any:
    at, cell, inside = _flat_places(self, x, extrapolate)
    g = np.where(inside[:, None], _values_first(g, self.axis, x), 0)
    c = np.asarray(self.c)
    bar = zeros((*c.shape[:2], g.shape[1]), np.result_type(g, c), g)
    for m in range(c.shape[0]):
        power = c.shape[0] - 1 - m
        if power >= nu:
            factor = np.prod(np.arange(power, power - nu, -1.0)) * at ** (power - nu)
            np.add.at(bar[m], cell, g * factor[:, None])
    return (bar.reshape(c.shape),)


def _of_places(g: Any, slope: Any, axis: int, x: Any) -> Any:
    slopes = _values_first(slope, axis, x)
    found = (_values_first(g, axis, x) * np.conj(slopes)).real.sum(1)
    return np.where(np.isnan(slopes).any(1), 0, found).reshape(np.shape(x))


define(
    ip.PPoly.__call__,
    adjoint={
        "self": _ppoly_of_c,
        "x": lambda g, self, x, nu, extrapolate: _of_places(g, self(x, nu + 1, extrapolate), self.axis, x),
    },
    require=lambda self: _powers(self),
)
hook(ip.PPoly.__call__, None).name = "scipy.interpolate: a piecewise polynomial"


def _powers(self: Any) -> None:
    if not isinstance(self, ip.PPoly):
        raise refusal(f"scipy.interpolate.{type(self).__name__}", "")


# ------------------------------------------------------------------------------------------------------------- splines


def _design(self: Any, x: Any) -> Any:
    return _BSPLINE.design_matrix(np.asarray(x, float).ravel(), np.asarray(self.t), self.k, extrapolate=True)


def _spline_of_c(g: Any, self: Any, x: Any, extrapolate: Any) -> Any:
    t, k, places = np.asarray(self.t), self.k, np.asarray(x, float)
    extrapolate = self.extrapolate if extrapolate is None else extrapolate
    first, last = t[k], t[-k - 1]
    g = _values_first(g, self.axis, x)
    if extrapolate == "periodic":
        places = first + (places - first) % (last - first)
    elif not extrapolate:
        g = np.where(((places >= first) & (places <= last)).reshape(-1, 1), g, 0)
    bar = _design(self, places).T @ g
    wide = zeros((self.c.shape[0], g.shape[1]), bar.dtype, bar)
    wide[: len(bar)] = bar[: len(wide)]
    return (wide.reshape(self.c.shape),)


def _no_derivative(nu: Any) -> None:
    if nu:
        raise refusal("scipy.interpolate.BSpline", " for derivatives of splines")


define(
    _BSPLINE.__call__,
    adjoint={
        "self": _spline_of_c,
        "x": lambda g, self, x, extrapolate: _of_places(g, self(x, 1, extrapolate), self.axis, x),
    },
    require=_no_derivative,
)
hook(_BSPLINE.__call__, None).name = "scipy.interpolate.BSpline"


def _plain_ends(bc_type: Any) -> None:
    if bc_type not in (None, "not-a-knot"):
        raise refusal("scipy.interpolate.make_interp_spline", f" for bc_type={bc_type!r}")


def _of_values(g: Any, x: Any, k: Any, axis: Any, y: Any, result: Any) -> Any:
    bar = np.asanyarray(g[0])
    shape = bar.shape
    matrix = _design(result, x).T.tocsc()
    found = scipy.sparse.linalg.spsolve(matrix, bar.reshape(len(bar), -1)).reshape(-1, *shape[1:])
    return np.moveaxis(found, 0, axis)


define(ip.make_interp_spline, adjoint={"y": _of_values}, require=_plain_ends)


# ------------------------------------------------------------------------------------------ one axis, and regular grids


def _holding_values(cls: type, name: str, known: Callable, arranged: Callable) -> None:
    """Let objects of a class hold active values beside SciPy's plain ones, arranged as these."""
    init = vars(cls)["__init__"]

    def handle(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
        if not any_active(tape, arguments, keywords):
            return guards.refuse(found, tape, arguments, keywords)
        bound = found.signature.bind(*arguments, **keywords)
        bound.apply_defaults()
        given = dict(bound.arguments)
        values = as_tracked(given[name])
        if any_active(tape, {key: x for key, x in given.items() if key != name}):
            raise refusal(found.name, f" with respect to other arguments than {name}")
        known(given)
        with passive():
            bound.arguments[name] = np.array(plain_of(values))
            found.original(*bound.args, **bound.kwargs)
        held = arranged(values, given).copy()
        arguments[0]._ampi_values = held
        show(arguments[0], held.copy())
        return None

    def show(x: Any, values: Any) -> None:
        """Make the values that the program can read the ones with derivatives."""
        attribute = name if name in vars(x) else f"_{name}"
        plain = vars(x).get(attribute)
        if isinstance(values, np.ndarray) and isinstance(plain, np.ndarray) and plain.shape == values.shape:
            setattr(x, attribute, values.astype(plain.dtype, copy=False))

    hook(init, handle, f"scipy.interpolate.{cls.__name__}")

    def take_apart(x: Any) -> tuple:
        held = vars(x).get("_ampi_values")
        return (() if held is None else (held,)), x

    def put_together(arrays: tuple, x: Any) -> Any:
        new = copy.copy(x)
        new._ampi_values = arrays[0]
        show(new, arrays[0])
        return new

    define_class(cls, take_apart, put_together)


_TAPS = ("linear", "nearest", "nearest-up", "previous", "next")


def _known_kind(given: dict) -> None:
    if given["kind"] not in _TAPS or (isinstance(given["fill_value"], str) and given["kind"] != "linear"):
        raise refusal(
            "scipy.interpolate.interp1d", f" for kind={given['kind']!r}", "use CubicSpline or make_interp_spline"
        )


def _taps(self: Any, x: Any) -> tuple:
    """Return for each point its neighbours' indices and weights, the weights' slopes, and whether it is inside."""
    knots, x = np.asarray(self.x, float), np.asarray(x, float).ravel()
    inside = np.ones(x.shape, bool) if self._extrapolate else (x >= knots[0]) & (x <= knots[-1])
    if self._kind == "linear":
        high = np.clip(np.searchsorted(knots, x), 1, len(knots) - 1)
        width = knots[high] - knots[high - 1]
        part = (x - knots[high - 1]) / width
        return [(high - 1, 1 - part, -1 / width), (high, part, 1 / width)], inside
    numbers = np.arange(len(knots), dtype=float)
    kind = copy.copy(self)
    kind._y, kind._extrapolate = numbers[:, None], True
    return [(np.rint(kind._call(kind, x)[:, 0]).astype(np.intp), np.ones(x.shape), np.zeros(x.shape))], inside


def _interp1d_of_y(g: Any, self: Any, x: Any) -> Any:
    axis = self._y_axis
    g = _values_first(g, axis, x)
    taps, inside = _taps(self, x)
    shape = np.moveaxis(np.empty(np.shape(self.y), bool), axis, 0).shape
    bar = zeros((shape[0], g.shape[1]), g.dtype, g)
    for place, weight, _ in taps:
        np.add.at(bar, place, np.where(inside[:, None], g * weight[:, None], 0))
    return (np.moveaxis(bar.reshape(shape), 0, axis),)


def _interp1d_of_x(g: Any, self: Any, x: Any) -> Any:
    axis = self._y_axis
    g = _values_first(g, axis, x)
    taps, inside = _taps(self, x)
    y = np.moveaxis(np.asarray(self.y), axis, 0)
    y = y.reshape(len(y), -1)
    slope = sum(y[place] * rise[:, None] for place, _, rise in taps)
    return np.where(inside, (g * np.conj(slope)).real.sum(1), 0).reshape(np.shape(x))


def _splined(self: Any) -> None:
    if self._kind not in _TAPS:
        raise refusal("scipy.interpolate.interp1d", f" for kind={self._kind!r}", "use make_interp_spline")


def _in_order_of_x(values: Any, given: dict) -> Any:
    if given["assume_sorted"]:
        return values
    return np.take(values, np.argsort(given["x"], kind="mergesort"), given["axis"])


_holding_values(ip.interp1d, "y", _known_kind, _in_order_of_x)
_call = ip.interp1d.__mro__[1].__call__
define(_call, adjoint={"self": _interp1d_of_y, "x": _interp1d_of_x}, require=_splined)
hook(_call, None).name = "scipy.interpolate.interp1d"


def _known_method(given: dict) -> None:
    if given["method"] not in ("linear", "nearest"):
        raise refusal("scipy.interpolate.RegularGridInterpolator", f" for method={given['method']!r}", "use 'linear'")


def _corners(self: Any, xi: Any, method: Any) -> tuple:
    """The corners of each point's cell: their indices and, by axis, the weights and their slopes."""
    xi = np.asarray(xi, float)
    xi = xi.reshape(-1, len(self.grid))
    inside, axes = np.isfinite(xi).all(1), []
    for x, knots in zip(xi.T, self.grid):
        low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
        width = knots[low + 1] - knots[low]
        part = np.where(np.isfinite(x), (x - knots[low]) / width, 0)
        if method == "nearest":
            axes.append([(np.where(part <= 0.5, low, low + 1), np.ones(len(x)), np.zeros(len(x)))])
        else:
            axes.append([(low, 1 - part, -1 / width), (low + 1, part, 1 / width)])
        if self.fill_value is not None:
            inside = inside & (x >= knots[0]) & (x <= knots[-1])
    return axes, inside


def _grid_of_values(g: Any, self: Any, xi: Any, method: Any) -> Any:
    axes, inside = _corners(self, _as_places(xi, self), method or self.method)
    shape = np.shape(self._ampi_values)
    g = np.asanyarray(g).reshape(len(inside), -1)
    bar = zeros((*shape[: len(axes)], g.shape[1]), g.dtype, g)
    for corner in itertools.product(*axes):
        weight = functools.reduce(np.multiply, [w for _, w, _ in corner])
        np.add.at(bar, tuple(k for k, _, _ in corner), np.where(inside[:, None], g * weight[:, None], 0))
    return (bar.reshape(shape),)


def _as_places(xi: Any, self: Any) -> Any:
    if isinstance(xi, tuple):
        xi = np.stack(np.broadcast_arrays(*xi), -1)
    return np.asarray(xi)


def _grid_of_places(g: Any, self: Any, xi: Any, method: Any) -> Any:
    if isinstance(xi, tuple):
        bar = _grid_of_places(g, self, _as_places(xi, self), method)
        return tuple(unbroadcast(bar[..., k], np.shape(x)) for k, x in enumerate(xi))
    axes, inside = _corners(self, xi, method or self.method)
    g = np.asanyarray(g).reshape(len(inside), -1)
    values = np.asarray(self.values).reshape(*self.values.shape[: len(axes)], -1)
    bar = zeros((len(inside), len(axes)), float, g)
    for corner in itertools.product(*axes):
        found = (g * np.conj(values[tuple(k for k, _, _ in corner)])).real.sum(1)
        for n in range(len(axes)):
            weights = [rise if m == n else w for m, (_, w, rise) in enumerate(corner)]
            bar[:, n] += found * functools.reduce(np.multiply, weights)
    return np.where(inside[:, None], bar, 0).reshape(np.shape(xi))


def _rising(self: Any, xi: Any, method: Any) -> None:
    if any(knots[0] > knots[-1] for knots in self.grid) or getattr(self, "_descending_dimensions", ()):
        raise refusal("scipy.interpolate.RegularGridInterpolator", " for descending points")
    if any(len(knots) < 2 for knots in self.grid):
        raise refusal("scipy.interpolate.RegularGridInterpolator", " for an axis with one point")
    _known_method({"method": method or self.method})


_holding_values(ip.RegularGridInterpolator, "values", _known_method, lambda values, _: values)
define(
    ip.RegularGridInterpolator.__call__,
    adjoint={"self": _grid_of_values, "xi": _grid_of_places},
    require=_rising,
)


@define(ip.interpn)
def _interpn(
    points: Any, values: Any, xi: Any, method: str = "linear", bounds_error: bool = True, fill_value: Any = np.nan
) -> Any:
    grid = ip.RegularGridInterpolator(points, values, method, bounds_error, fill_value)
    return grid(xi).reshape(np.shape(xi)[:-1] + np.shape(values)[len(points) :] if not isinstance(xi, tuple) else -1)
