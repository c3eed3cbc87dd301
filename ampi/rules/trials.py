"""Trials of rules: a directional derivative near the arguments of a call, compared with finite differences.

A newer release may change a function and keep its parameters; the first call in such a release shows whether the rule
still fits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..arrays.activity import is_active, is_inexact, plain_of
from ..base.structures import leaves, mapped
from ..errors import AmpiError
from ..memory.storages import TrackedArray
from ..tape import Tape, passive

STEP = 2.0**-17
CONVERGED, WRONG = 1e-3, 1e-2  # iterative solvers have errors above rounding
NOISE = 1e-6  # relative error of differences of results


def agrees(
    function: Callable,
    rule: Callable,
    tape: Tape,
    arguments: tuple,
    keywords: dict,
    structures: tuple[Callable, Callable] = (leaves, mapped),
) -> bool | None:
    """Return whether a rule agrees with finite differences of the function; None if the trial is inconclusive.

    The program's functions are not called and its arrays not changed: functions among the arguments, and differences
    that do not converge (kinks, random numbers), make a trial inconclusive.

    Parameters
    ----------
    function : callable
        A function of plain arrays.
    rule : callable
        ``rule(tape, arguments, keywords)`` makes the recorded call.
    tape : Tape
        The tape on which arguments are active.
    arguments, keywords : tuple, dict
        The arguments of a call.
    structures : tuple of callable
        ``parts(x)`` and ``mapped(function, x)`` for the structure of arguments and results.
    """
    parts, mapped = structures
    given = (arguments, keywords)
    if any(callable(x) for x in parts(given)):
        return None
    rng = np.random.default_rng(1)
    points = [_near(plain_of(x), rng) for x in parts(given) if _is_active(tape, x)]
    moves = [_drawn(rng, p.shape, p.dtype) * _size(p) for p in points]
    if not points or not all(p.size for p in points):
        return None

    def called_with(run: Callable, values: list) -> Any:
        rest = iter(values)
        return run(*mapped(lambda x: next(rest) if _is_active(tape, x) else _own(x), given))

    def along(h: float) -> float:
        values = [(p + h * m)[()] for p, m in zip(points, moves)]
        total, _ = _weighted(parts(called_with(lambda a, k: function(*a, **k), values)))
        return float(total)

    try:
        with passive(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            near, far = ((along(h) - along(-h)) / (2 * h) for h in (STEP, 2 * STEP))
            with Tape() as own:
                watched = [own.watch(p) for p in points]
                total, size = _weighted(parts(called_with(lambda a, k: rule(own, a, k), watched)))
            found: list = own.gradient(total, watched) if is_active(own, total) else [np.zeros(1)] * len(moves)
    except (AmpiError, ArithmeticError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError):
        return None
    value = sum(float(np.sum(np.conj(g) * m).real) for g, m in zip(found, moves))
    scale = max(abs(near), abs(value))
    if not np.isfinite([near, far, value]).all() or abs(near - far) > CONVERGED * scale + NOISE * size:
        return None
    return abs(value - near) <= WRONG * scale + NOISE * size


class Trial:
    """Trial of a rule at its first calls with active arguments.

    Attributes
    ----------
    left : int
        Number of further inconclusive calls until the rule is accepted.
    """

    __slots__ = ("fits", "left")

    def __init__(self, most: int = 10) -> None:
        self.fits: bool | None = None
        self.left = most

    @property
    def is_over(self) -> bool:
        """True if the rule is known to fit or not, or was accepted."""
        return self.fits is not None or not self.left

    def refutes(self, *call: Any) -> bool:
        """Return whether this call, or an earlier one, shows that the rule is wrong; arguments as in `agrees`."""
        if not self.is_over:
            self.left -= 1
            self.fits = agrees(*call)
        return self.fits is False


def _is_active(tape: Tape, x: Any) -> bool:
    return isinstance(x, np.ndarray) and is_active(tape, x)


def _own(x: Any) -> Any:
    """A copy of an array, in which the function may compute in place."""
    return np.array(plain_of(x)) if isinstance(x, (np.ndarray, TrackedArray)) else x


def _near(x: Any, rng: np.random.Generator) -> np.ndarray:
    """Random values near those of an array, in double precision, away from ties and knots."""
    x = np.asarray(x)
    x = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return x + 1e-3 * _drawn(rng, x.shape, x.dtype) * (np.abs(x) + _size(x))


def _size(x: np.ndarray) -> float:
    return float(np.abs(x).mean()) if x.any() else 1.0


def _drawn(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> Any:
    found = rng.uniform(-1, 1, shape)
    return found + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else found


def _weighted(found: Iterable) -> tuple[Any, float]:
    """A sum of all numbers of a result with random weights, and the sum of their magnitudes."""
    rng = np.random.default_rng(2)
    total: Any = 0.0
    size = 0.0
    for x in found:
        if not isinstance(x, (float, complex, np.inexact)) and not is_inexact(x):
            continue
        weights, others = rng.uniform(0.5, 1.5, (2, *np.shape(x)))
        total = total + (np.real(x) * weights).sum()
        if np.asarray(plain_of(x)).dtype.kind == "c":
            total = total + (np.imag(x) * others).sum()
        size += float(np.abs(plain_of(x)).sum())
    return total, size
