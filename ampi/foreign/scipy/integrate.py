"""`scipy.integrate`: quadrature sums, and initial value problems by repeating SciPy's steps."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np
import scipy.integrate as si

import ampi.numpy as anp

from ...arrays.activity import plain_of
from ...arrays.known_classes import mapped
from ...interception.hooks import Hook, hook
from ...rules.definitions import any_active, define, exactly, refusal
from ...tape import Bystander, Tape, passive
from . import guards
from .sources import with_ours
from .tracked_arrays import as_tracked


@define(si.trapezoid)
def _trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    return np.trapezoid(as_tracked(y), None if x is None else as_tracked(x), dx, axis)


@define(si.cumulative_trapezoid)
def _cumulative_trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1, initial: Any = None) -> Any:
    y = np.moveaxis(as_tracked(y), axis, -1)
    if x is not None:
        x = as_tracked(x)
        dx = np.diff(x if x.ndim == 1 else np.moveaxis(x, axis, -1))
    found = np.cumsum(dx * (y[..., 1:] + y[..., :-1]) / 2.0, -1)
    if initial is not None:
        found = np.concatenate([anp.full((*found.shape[:-1], 1), initial, found.dtype), found], -1)
    return np.moveaxis(found, -1, axis)


define(si.simpson, with_ours(si.simpson))
define(si.romb, with_ours(si.romb))


# ----------------------------------------------------------------------------------------------- initial value problems

_METHODS = {"RK23": si.RK23, "RK45": si.RK45, "DOP853": si.DOP853}


def _solve_ivp(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """`solve_ivp`, followed by the same steps on the tape.

    Every call is repeated while a tape records: the right-hand side may use active arrays in its closure, or
    communicate.
    """
    bound = found.signature.bind(*arguments, **keywords)
    bound.apply_defaults()
    given = bound.arguments
    method = _METHODS.get(given["method"], given["method"]) if isinstance(given["method"], str) else given["method"]
    why = ""
    if method not in _METHODS.values():
        why = f" with method={given['method']!r}"
    elif given["dense_output"] or given["events"] is not None:
        why = " with dense_output or events"
    elif given["t_eval"] is not None and method is si.DOP853:
        why = " with t_eval and method='DOP853'"
    # Each step is a constant fraction of the interval; step size control is not part of the solution.
    dependent = [name for name, x in given.get("options", {}).items() if any_active(tape, x)]
    if dependent:
        raise refusal(found.name, f" with respect to {' and '.join(dependent)}", "pass a number for it")
    if why and any_active(tape, given):
        raise refusal(found.name, why, "use method='RK45' or 'RK23', without events and dense_output,")
    if why or isinstance(tape, Bystander):
        return guards.refuse(found, tape, arguments, keywords)
    with passive():
        plainly = mapped(plain_of, {name: x for name, x in given.items() if name not in ("fun", "options")})
        options = mapped(plain_of, given.get("options", {}))
        solution = found.original(given["fun"], **plainly, **options)
        steps = solution.t
        if given["t_eval"] is not None:
            steps = found.original(given["fun"], **{**plainly, "t_eval": None}, **options).t
    times, at = _scaled(given["t_span"], np.asarray(steps, float)), list(solution.t)
    if any_active(tape, given["t_eval"]):
        at = [x for x, _ in zip(as_tracked(given["t_eval"]), at)]
    states = _steps(method, given, times, given["t_eval"], at)
    y = np.stack(states, 1) if states else None
    if any_active(tape, moving := times if given["t_eval"] is None else at):
        solution.t = exactly(found.name, tape, np.stack([as_tracked(t) for t in moving]), solution.t, [])
    if y is not None and any_active(tape, y):
        solution.y = exactly(found.name, tape, y, solution.y, [])
    return solution


def _scaled(span: Any, times: np.ndarray) -> list:
    """Return the times of the steps as functions of the interval, which each of them divides in a constant ratio."""
    begin, end = span
    if not any(isinstance(x, np.ndarray) for x in (begin, end)):
        return list(times)
    first, last = plain_of(begin), plain_of(end)
    return [begin + (t - first) / (last - first) * (end - begin) for t in times]


def _steps(method: Any, given: dict, times: list, wanted: Any, at: list) -> list:
    """Return the states at the times of SciPy's steps, or interpolated at other times."""
    y = as_tracked(given["y0"])
    y = y.astype(np.complex128 if y.dtype.kind == "c" else np.float64, copy=False)
    arguments = given["args"] or ()

    def f(t: Any, y: Any) -> Any:
        if given["vectorized"]:
            return as_tracked(given["fun"](t, y[:, None], *arguments)).reshape(-1)
        return as_tracked(given["fun"](t, y, *arguments))

    a, b, c, stages = method.A, method.B, method.C, method.n_stages
    slope = f(times[0], y)
    states = [y] if wanted is None else [_moved(y, slope, t, times[0]) for t in at if plain_of(t) == plain_of(times[0])]
    for begin, end in itertools.pairwise(times):
        step = end - begin
        slopes = [slope]
        for s in range(1, stages):
            slopes.append(f(begin + c[s] * step, y + step * _combined(a[s], slopes)))
        new = y + step * _combined(b, slopes)
        slope = f(end, new)
        if wanted is None:
            states.append(new)
        else:
            states += _between(method, y, [*slopes, slope], begin, step, _inside(at, begin, end))
        y = new
    return states


def _combined(weights: Any, slopes: list) -> Any:
    total = 0.0
    for weight, slope in zip(weights, slopes):
        if isinstance(weight, np.ndarray) or weight:
            total = total + weight * slope
    return total


def _moved(y: Any, slope: Any, t: Any, begin: Any) -> Any:
    """Return the initial state, continued along its slope if the initial time is active."""
    return y + (t - begin) * slope if isinstance(t, np.ndarray) or isinstance(begin, np.ndarray) else y


def _inside(at: list, begin: Any, end: Any) -> list:
    first, last = plain_of(begin), plain_of(end)
    if last > first:
        return [t for t in at if first < plain_of(t) <= last]
    return [t for t in at if last <= plain_of(t) < first]


def _between(method: Any, y: Any, slopes: list, begin: Any, step: Any, at: list) -> list:
    """Interpolate in a step as SciPy does."""
    found = []
    for t in at:
        x = (t - begin) / step
        powers = list(itertools.accumulate([x] * method.P.shape[1], operator.mul))
        weights = [sum(float(p) * power for p, power in zip(row, powers)) for row in method.P]
        found.append(y + step * _combined(weights, slopes))
    return found


hook(si.solve_ivp, _solve_ivp, "scipy.integrate.solve_ivp")
