"""Warnings and errors where a derivative is lost, and arrays that code outside ampi may write to (`lend`)."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from ..base import checks
from ..base.program_lines import calling_frame, warning_level
from ..errors import ActivityError, ActivityWarning
from ..memory import handouts
from ..memory.extents import behind
from ..memory.storages import LENT, storage_of
from ..tape import BaseAdjoint, Bystander, current, keep_needed, where_called
from .activity import is_active
from .callers import SHOWING, is_formatting, is_of_program, package_of

_warned: set[str] = set()

KEEP = "keep the array (a 0-d ampi.ndarray computes like a number)"

_DRAWING = {"matplotlib", "mpl_toolkits"}
"""Plotting packages: nothing is computed from the arrays that they are given."""
_FOR_DRAWING = {"ampi", "numpy", "PIL"}
"""Packages that a plotting package may call."""


def would_be_lost(array: Any) -> bool:
    """Return whether an array carries derivatives, on a tape of another thread if this one has none."""
    tape = current()
    return tape.watches_over(array) if isinstance(tape, Bystander) else is_active(tape, array)


def warn_lost(what: str, array: Any, instead: str = KEEP) -> None:
    """Warn once per source line that an active array's derivative is dropped, and say what to write instead."""
    if would_be_lost(array) and not _is_drawn():
        say_lost(what, instead)


def say_lost(what: str, instead: str, place: str = "") -> None:
    """Warn once per source line (and function on it) that a derivative is dropped."""
    frame = None if place else calling_frame()
    place = place or _place()
    key = f"{place} {hash(frame.f_code) if frame is not None else 0}"
    if key not in _warned:
        _warned.add(key)
        warnings.warn(_message(place, what, instead), ActivityWarning, stacklevel=warning_level())


FILED = "what is read back from the file carries none: write it inside `with ampi.passive():`"


def warn_filed(what: str, array: Any, place: str = "") -> None:
    """Warn once per source line that an active array is written to a file, from which it is read as a constant."""
    if would_be_lost(array):
        say_lost(what, FILED, place)


def _place() -> str:
    """The current source line; in an unmodified program the program's own line that called another package."""
    place = where_called()
    frame: Any = sys._getframe(1)
    while frame is not None:
        if is_of_program(frame):
            own = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return place if own == place else f"{own} (in {place})"
        frame = frame.f_back
    return place


def _message(place: str, what: str, instead: str) -> str:
    advice = f"{instead}, or write ampi.value(x) if a constant is meant"
    return f"{place}: {what} an active array drops its derivative; {advice}"


def lose(what: str, array: Any, instead: str) -> None:
    """Warn that an active array becomes a plain one; raise an error if `checks.strict`."""
    if checks.strict and would_be_lost(array) and not _is_drawn():
        raise ActivityError(_message(_place(), what, instead))
    warn_lost(what, array, instead)


def _is_drawn() -> bool:
    """Return whether the caller is a plotting package, perhaps through NumPy."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = package_of(frame)
        if package not in _FOR_DRAWING:
            return package in _DRAWING
        frame = frame.f_back
    return False


def lose_number(what: str, array: Any, depth: int = 3) -> None:
    """Raise an error where an active number of an unmodified program becomes Python's, unless it is only shown."""
    if would_be_lost(array) and not _is_shown(depth):
        raise _refused(_message(_place(), what, KEEP))


def _refused(message: str) -> ActivityError:
    """The error; its message is kept, since code in C may replace the error by its own."""
    global latest_refusal
    latest_refusal = message
    return ActivityError(message)


latest_refusal = ""
"""Message of the latest error of `lose_number` or `lose_exactly`."""


def lose_exactly(what: str, array: Any) -> None:
    """Warn that a number is used in another form than a `float`; raise an error in an unmodified program."""
    if checks.whole and would_be_lost(array):
        raise _refused(_message(_place(), what, KEEP))
    warn_lost(what, array)


def lose_unheard(what: str, array: Any, instead: str) -> None:
    """Warn where the caller would suppress an error; if `checks.strict`, each sweep and walk of the tape raises it."""
    tape = current()
    if checks.strict and would_be_lost(array) and tape is not None and tape.forward is None:
        tape.append(_Lost(_message(_place(), what, instead)))
    warn_lost(what, array, instead)


class _Lost(BaseAdjoint):
    """Record of a lost derivative, which raises an error in every sweep."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __call__(self, sweep: Any) -> None:
        raise ActivityError(self.message)

    tangent = __call__


def _is_shown(depth: int) -> bool:
    """Return whether a number is used to format a text (``"%.3f" % x``), or by code that shows numbers."""
    frame = sys._getframe(depth)
    return package_of(frame) in SHOWING or is_formatting(frame)


def lend(array: np.ndarray) -> None:
    """Prepare an array for code outside ampi that gets its address and may write to it from now on.

    Values that tapes need are saved; values that they will need later are copied at that time (see `memory.handouts`).
    """
    storage = storage_of(array)
    if storage is None or storage.guard == LENT or storage.volatile or storage.elsewhere:
        return
    if checks.level == checks.OFF or not array.flags.writeable:
        return
    keep_needed(_owner(array))
    storage.guard = LENT
    if storage.tape is not None and storage.baseline is None:
        handouts.settle(storage)


def _owner(array: np.ndarray) -> np.ndarray:
    """The array that owns the memory of a view."""
    while isinstance(base := behind(array.base), np.ndarray):
        array = base
    return array
