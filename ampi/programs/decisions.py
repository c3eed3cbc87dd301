"""Decisions of a program that depend on active values: recorded in one run and repeated in others.

Ranks with the same value take the same decisions: how many steps to make, whether a result is good enough.  If
``--check`` displaces that value differently on each rank, they would decide differently, and wait for one another
forever.  So comparisons in the program's own modules, and functions there that return whole numbers, keep their
outcomes from the run that was differentiated: a derivative holds for fixed decisions.
"""

from __future__ import annotations

import operator
from _thread import get_ident
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory.storages import TrackedArray, plain
from .numbers import is_active

OPERATORS: dict[str, Callable] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "//": operator.floordiv,
}
DISCRETE = frozenset(
    "int round floor ceil trunc rint sign argmax argmin searchsorted digitize any all allclose isclose array_equal "
    "count_nonzero".split()
)
"""Functions and methods whose results are decisions."""

LARGEST = 64  # elements of an outcome; larger arrays are data, not decisions
MOST = 10_000_000  # outcomes


class Decisions:
    """Outcomes of decisions, by place in the source, in order.

    Attributes
    ----------
    held : dict
        The places (``file:line``) at which the program would have decided differently since `hold`.
    """

    def __init__(self) -> None:
        self.held: dict[str, None] = {}
        self._kept: defaultdict[str, list[Any]] = defaultdict(list)
        self._next: dict[str, int] = {}
        self._count = 0
        self._thread = get_ident()
        self._mode = ""

    @property
    def hooks(self) -> dict[str, Callable]:
        """Built-in names of the program's modules."""
        return {"__ampi_compared__": self.compared, "__ampi_discrete__": self.discrete}

    @property
    def are_kept(self) -> bool:
        """True in a run whose decisions are recorded, or repeated."""
        return bool(self._mode)

    def keep(self) -> None:
        """Begin a run whose decisions are recorded."""
        self._kept.clear()
        self._mode, self._count = "keep", 0

    def hold(self) -> None:
        """Begin a run that repeats the recorded decisions."""
        self._next.clear()
        self._mode = "hold"

    def release(self) -> None:
        """End a run, or begin one with free decisions."""
        self._mode = ""

    def compared(self, place: str, symbol: str, left: Any, right: Any) -> Any:
        """``left < right`` and other comparisons, in a program."""
        found = OPERATORS[symbol](left, right)
        return self._settled(place, found, (left, right)) if self._mode else found

    def discrete(self, place: str, function: Callable, /, *arguments: Any, **keywords: Any) -> Any:
        """A call of a function whose name is in `DISCRETE`."""
        found = function(*arguments, **keywords)
        if not self._mode:
            return found
        return self._settled(place, found, (*arguments, getattr(function, "__self__", None)))

    def _settled(self, place: str, found: Any, by: tuple) -> Any:
        if get_ident() != self._thread:
            return found
        if self._mode == "keep":
            if self._count < MOST:
                self._count += 1
                self._kept[place].append(_outcome(found) if any(map(is_active, by)) else None)
            return found
        turn = self._next.get(place, 0)
        self._next[place] = turn + 1
        kept = self._kept.get(place, ())
        known = kept[turn] if turn < len(kept) else None
        if known is None or np.array_equal(known, _outcome(found), equal_nan=known.dtype.kind == "f"):
            return found
        self.held[place.rpartition(":")[0]] = None
        return _like(found, known)


def _outcome(found: Any) -> Any:
    """A copy of a decision; None for other values."""
    if isinstance(found, (bool, int, float, np.generic, np.ndarray)):
        array = np.array(plain(found) if isinstance(found, TrackedArray) else found)
        if array.size <= LARGEST and array.dtype.kind in "biuf":
            return array
    return None


def _like(found: Any, known: np.ndarray) -> Any:
    """A recorded outcome, in the type of the present one."""
    if isinstance(found, TrackedArray) and found.shape == known.shape:
        made = found.copy()
        plain(made)[...] = known
        return made
    return known.copy() if known.ndim else known.item() if isinstance(found, (bool, int, float)) else known[()]
