"""Rules tried out: one derivative in one direction, near the arguments of a call, against finite differences.

A rule is bound to the function that it was written for.  A newer release may have changed a function and kept its
parameters; the first call in such a release shows whether the rule still fits.
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
CONVERGED, WRONG = 1e-3, 1e-2  # iterative solvers leave more than rounding
NOISE = 1e-6  # of the results' size: what differences of them leave


def agrees(
    function: Callable,
    rule: Callable,
    tape: Tape,
    arguments: tuple,
    keywords: dict,
    structures: tuple[Callable, Callable] = (leaves, mapped),
) -> bool | None:
    """Whether a rule gives the derivative that finite differences of the function give; None: that cannot be told.

    Nothing of the program's is called or changed: functions among the arguments, and differences that do not converge
    (kinks, functions that draw random numbers), tell nothing.

    Parameters
    ----------
    function : callable
        Of plain arrays.
    rule : callable
        ``rule(tape, arguments, keywords)``, the call as a tape records it.
    tape : Tape
        On which arguments are active.
    arguments, keywords : tuple, dict
        Those of a call.
    structures : tuple of callable
        ``(parts(x), mapped(function, x))``, of what arguments and results consist of.
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
    """Whether a rule fits, found out at its first calls with active arguments.

    Attributes
    ----------
    left : int
        Calls that may still tell nothing, until the rule is believed.
    """

    __slots__ = ("fits", "left")

    def __init__(self, most: int = 10) -> None:
        self.fits: bool | None = None
        self.left = most

    @property
    def is_over(self) -> bool:
        """Whether the rule is known to fit or not, or believed."""
        return self.fits is not None or not self.left

    def refutes(self, *call: Any) -> bool:
        """Whether the rule is wrong, as far as this call, or one before, tells; arguments of `agrees`."""
        if not self.is_over:
            self.left -= 1
            self.fits = agrees(*call)
        return self.fits is False


def _is_active(tape: Tape, x: Any) -> bool:
    return isinstance(x, np.ndarray) and is_active(tape, x)


def _own(x: Any) -> Any:
    """A copy of an array, in which the function may compute."""
    return np.array(plain_of(x)) if isinstance(x, (np.ndarray, TrackedArray)) else x


def _near(x: Any, rng: np.random.Generator) -> np.ndarray:
    """Values near those of an array, in double precision: not at a tie, not at a knot."""
    x = np.asarray(x)
    x = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    return x + 1e-3 * _drawn(rng, x.shape, x.dtype) * (np.abs(x) + _size(x))


def _size(x: np.ndarray) -> float:
    return float(np.abs(x).mean()) if x.any() else 1.0


def _drawn(rng: np.random.Generator, shape: tuple, dtype: np.dtype) -> Any:
    found = rng.uniform(-1, 1, shape)
    return found + 1j * rng.uniform(-1, 1, shape) if dtype.kind == "c" else found


def _weighted(found: Iterable) -> tuple[Any, float]:
    """A sum of all numbers of a result with any weights, and the sum of their sizes."""
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
