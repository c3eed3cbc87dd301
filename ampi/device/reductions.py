"""Reductions and accumulations on a device.

A reduction has the weights of its elements: the conjugates of the partial derivatives of the result with respect to
them.  The adjoint multiplies by the weights, and the tangent sums up the products with their conjugates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.elementwise import times
from ..base.missing_rules import no_rule
from ..base.structures import bound
from ..memory.storages import carries_derivatives
from ..tape import recording
from .elementwise import ON_DEVICE
from .operations import active, compute, each, operand, record


@dataclass(frozen=True)
class Case:
    """What is reduced: the axes, how many elements become one, and the correction of a variance."""

    axes: tuple[int, ...]
    count: int
    ddof: Any


Weights = Callable[[Any, Any, Case], Any]
"""``weights(x, z, case)`` of the array and of the result with axes of length one."""


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes of a reduction."""
    if axis is None:
        return tuple(range(ndim))
    return tuple([int(k) % ndim for k in (axis if isinstance(axis, tuple) else (axis,))])


def _rows(x: Any, axes: tuple[int, ...]) -> tuple[Any, Callable[[Any], Any]]:
    """Return an array with the axes of a reduction merged into its last one, and the inverse of that."""
    kept = [k for k in range(x.ndim) if k not in axes]
    order = [*kept, *axes]
    moved = x.transpose(order)
    rows = moved.reshape((*moved.shape[: len(kept)], math.prod(moved.shape[len(kept) :])))
    back = [order.index(k) for k in range(x.ndim)]
    return rows, lambda found: found.reshape(moved.shape).transpose(back)


def _of_product(x: Any, z: Any, case: Case) -> Any:
    # The product of the others from a prefix and a suffix product: no division, so zeros are right.
    rows, back = _rows(x, case.axes)
    others = np.ones_like(rows)
    others[..., 1:] = np.cumprod(rows[..., :-1], axis=-1)
    others[..., :-1] *= np.cumprod(rows[..., :0:-1], axis=-1)[..., ::-1]
    return np.conj(back(others))


def _of_extremum(x: Any, z: Any, case: Case) -> Any:
    """One for the first element that is the extremum."""
    rows, back = _rows((x == z) | ((x != x) & (z != z)), case.axes)
    if not rows.size:
        return np.zeros_like(x)
    places = np.cumsum(rows.astype(np.int32), axis=-1)
    return back((rows & (places == 1)).astype(x.dtype))


def _of_mean(x: Any, z: Any, case: Case) -> Any:
    return 1.0 / case.count


def _deviation(x: Any, case: Case) -> Any:
    return (x - np.mean(x, axis=case.axes, keepdims=True)) / (case.count - case.ddof)


def _of_variance(x: Any, z: Any, case: Case) -> Any:
    return 2 * _deviation(x, case)


def _of_deviation(x: Any, z: Any, case: Case) -> Any:
    # Zero, a subgradient, where all elements are equal.
    return np.where(z == 0, 0, _deviation(x, case) / np.where(z == 0, 1, z))


def _of_norm(x: Any, z: Any, case: Case) -> Any:
    return np.where(z == 0, 0, x / np.where(z == 0, 1, z))


_PLAIN = "a axis dtype out keepdims"
_OF: dict[Callable, tuple[str, Weights | None, bool, bool]] = {
    np.sum: (_PLAIN, None, False, False),
    np.prod: (_PLAIN, _of_product, True, False),
    np.max: ("a axis out keepdims", _of_extremum, True, True),
    np.amax: ("a axis out keepdims", _of_extremum, True, True),
    np.min: ("a axis out keepdims", _of_extremum, True, True),
    np.amin: ("a axis out keepdims", _of_extremum, True, True),
    np.mean: (_PLAIN, _of_mean, False, False),
    np.var: ("a axis dtype out ddof keepdims", _of_variance, True, False),
    np.std: ("a axis dtype out ddof keepdims", _of_deviation, True, True),
}
"""For each function: its parameters, its weights, and whether these need the array and the result."""


def _reduce(function: Callable, *arguments: Any, **keywords: Any) -> Any:
    parameters, weights, needs_x, needs_z = _OF[function]
    return _reduced(function, parameters, weights, needs_x, needs_z, arguments, keywords)


def _reduced(
    function: Callable,
    parameters: str,
    weights: Weights | None,
    needs_x: bool,
    needs_z: bool,
    arguments: tuple,
    keywords: dict[str, Any],
) -> Any:
    given = {n: v for n, v in _bound(function, parameters, arguments, keywords).items() if v is not None}
    x = operand(given.pop("a"), function.__name__)
    is_active = active(recording(), x)
    if is_active and x.dtype.kind == "c" and np.dtype(given.get("dtype", complex)).kind != "c":
        raise no_rule(function, f" that discards imaginary parts{ON_DEVICE}")
    result = compute(function, x, **given)
    if not is_active or not carries_derivatives(result.dtype):
        return result
    axes = axes_of(given.get("axis"), x.ndim)
    case = Case(axes, math.prod([x.shape[k] for k in axes]), given.get("ddof", 0))
    whole, small = x.shape, result.shape
    shape = tuple([1 if k in axes else n for k, n in enumerate(whole)])

    def weighted(a: Any, values: Any, conjugate: bool) -> Any:
        if weights is None:
            return a
        of_x, of_z = values
        found = weights(of_x, None if of_z is None else of_z.reshape(shape), case)
        return times(a, np.conj(found) if conjugate else found)

    def adjoint(k: int, g: Any, values: Any) -> Any:
        return weighted(np.broadcast_to(g.reshape(shape), whole), values, False)

    def push(dots: dict[int, Any], values: Any) -> Any:
        return np.sum(weighted(dots[0], values, True), axis=axes).reshape(small)

    values = x if needs_x else None, result if needs_z else None
    return record(f"numpy.{function.__name__}", [x], result, values, each(adjoint), push)


def _bound(function: Callable, parameters: str, arguments: tuple, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by name; raise an error for those that CuPy does not have."""
    unknown = [n for n in keywords if n not in parameters.split() and keywords[n] is not np._NoValue]
    if unknown or len(arguments) > len(parameters.split()):
        raise no_rule(function, f" with {', '.join(unknown) or 'these arguments'}{ON_DEVICE}")
    given = bound(parameters, arguments, {n: v for n, v in keywords.items() if n in parameters.split()})
    if given.pop("out", None) is not None:
        raise no_rule(function, f" with the argument out by position{ON_DEVICE}")
    return {n: v for n, v in given.items() if v is not np._NoValue}


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """`numpy.linalg.norm`: the root of the sum of squares, and the norms of vectors that are sums and extrema."""
    x = operand(x, "numpy.linalg.norm")
    axes = axes_of(axis, x.ndim)
    euclidean = ord is None or (ord == 2 and len(axes) == 1) or (ord in ("fro", "f") and len(axes) == 2)
    if euclidean and (axis is None or len(axes) <= 2):
        if x.dtype.kind not in "fc":
            return compute(np.linalg.norm, x, ord, axis, keepdims)
        root = lambda a, axis=None, keepdims=False: np.sqrt(np.sum((np.conj(a) * a).real, axis=axis, keepdims=keepdims))
        root.__name__ = "linalg.norm"
        return _reduced(root, "a axis keepdims", _of_norm, True, True, (x,), {"axis": axes, "keepdims": keepdims})
    if len(axes) != 1 or ord not in (1, np.inf, -np.inf):
        if not active(recording(), x):
            return compute(np.linalg.norm, x, ord, axis, keepdims)
        raise no_rule(np.linalg.norm, f" for ord={ord!r}{ON_DEVICE}")
    sizes = np.abs(x)
    return (np.sum if ord == 1 else np.max if ord > 0 else np.min)(sizes, axis=axes, keepdims=keepdims)


# ------------------------------------------------------------------------------------------------- accumulations


def _from_the_end(g: Any, factors: Any) -> Any:
    """Return s with ``s[k] = g[k] + factors[k + 1] * s[k + 1]`` along the first axis, in log(n) steps."""
    s, a = g.copy(), np.zeros_like(factors)
    a[:-1] = factors[1:]
    step = 1
    while step < len(s):
        s[:-step] = s[:-step] + times(s[step:], a[:-step])
        a[:-step] = a[:-step] * a[step:]
        a[-step:] = 0
        step *= 2
    return s


def _cumulative_product_adjoint(g: Any, x: Any) -> Any:
    before = np.ones_like(x)
    before[1:] = np.cumprod(x[:-1], axis=0)
    return times(_from_the_end(g, np.conj(x)), np.conj(before))


def _cumulative_product_tangent(x_dot: Any, x: Any) -> Any:
    # ż_k = x_k ż_{k-1} + ẋ_k z_{k-1}: the same recurrence, from the beginning.
    before = np.ones_like(x)
    before[1:] = np.cumprod(x[:-1], axis=0)
    return _from_the_end((x_dot * before)[::-1], _shifted(x[::-1]))[::-1]


def _shifted(factors: Any) -> Any:
    made = np.ones_like(factors)
    made[1:] = factors[:-1]
    return made


def _accumulate(function: Callable, *arguments: Any, **keywords: Any) -> Any:
    given = _bound(function, "a axis dtype out", arguments, keywords)
    x = operand(given.pop("a"), function.__name__)
    axis = given.get("axis")
    if axis is None:
        x, axis = np.ravel(x), 0
    axis = axis % x.ndim
    result = compute(function, x, **{**given, "axis": axis})
    is_product = function is np.cumprod

    def adjoint(k: int, g: Any, values: Any) -> Any:
        g = np.moveaxis(g, axis, 0)
        if is_product:
            found = _cumulative_product_adjoint(g, np.moveaxis(values, axis, 0))
        else:
            found = np.cumsum(g[::-1], axis=0)[::-1]
        return np.moveaxis(found, 0, axis)

    def push(dots: dict[int, Any], values: Any) -> Any:
        x_dot = np.moveaxis(dots[0], axis, 0)
        if is_product:
            found = _cumulative_product_tangent(x_dot, np.moveaxis(values, axis, 0))
        else:
            found = np.cumsum(x_dot, axis=0)
        return np.moveaxis(found, 0, axis)

    return record(f"numpy.{function.__name__}", [x], result, x if is_product else None, each(adjoint), push)


def _rule(run: Callable, function: Callable) -> Callable:
    return lambda *arguments, **keywords: run(function, *arguments, **keywords)


RULES: dict[Callable, Callable] = {
    **{function: _rule(_reduce, function) for function in _OF},
    np.cumsum: _rule(_accumulate, np.cumsum),
    np.cumprod: _rule(_accumulate, np.cumprod),
    np.linalg.norm: norm,
}
REDUCTIONS: dict[np.ufunc, Callable] = {np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min}
ACCUMULATIONS: dict[np.ufunc, Callable] = {np.add: np.cumsum, np.multiply: np.cumprod}
