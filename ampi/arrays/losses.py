"""Arrays that leave for code outside ampi: what is lost by it is said, and what that code may write is provided for."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

from ..base import checks
from ..base.program_lines import calling_frame, warning_level
from ..errors import ActivityError, ActivityWarning
from ..memory import handouts
from ..memory.storages import LENT, behind, storage_of
from ..tape import BaseAdjoint, Bystander, current, keep_needed, where_called
from .activity import is_active
from .callers import SHOWING, is_formatting, is_of_program, package_of

_warned: set[str] = set()

KEEP = "keep the array (a 0-d ampi.ndarray computes like a number)"

_DRAWING = {"matplotlib", "mpl_toolkits"}
"""Packages that draw: nothing is computed of what they are given."""
_FOR_DRAWING = {"ampi", "numpy", "PIL"}
"""Packages that may be at work for one that draws."""


def would_be_lost(array: Any) -> bool:
    """Whether an array carries derivatives, be it on a tape of another thread if this one has none."""
    tape = current()
    return tape.watches_over(array) if isinstance(tape, Bystander) else is_active(tape, array)


def warn_lost(what: str, array: Any, instead: str = KEEP) -> None:
    """Say once per source line that a derivative is dropped, and what to write instead."""
    if would_be_lost(array) and not _is_drawn():
        say_lost(what, instead)


def say_lost(what: str, instead: str, place: str = "") -> None:
    """Say once per source line (of each function on it) that the derivative of something active is dropped."""
    frame = None if place else calling_frame()
    place = place or _place()
    key = f"{place} {hash(frame.f_code) if frame is not None else 0}"
    if key not in _warned:
        _warned.add(key)
        warnings.warn(_message(place, what, instead), ActivityWarning, stacklevel=warning_level())


FILED = "what is read back from the file carries none: write it inside `with ampi.passive():`"


def warn_filed(what: str, array: Any, place: str = "") -> None:
    """Say once per source line that an active array goes into a file, from which it comes back as a constant."""
    if would_be_lost(array):
        say_lost(what, FILED, place)


def _place() -> str:
    """The line that runs; where it is of another library, in a program that is differentiated as it stands, the
    program's line before it."""
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
    """The same where an array becomes a plain one: an error if `checks.strict`."""
    if checks.strict and would_be_lost(array) and not _is_drawn():
        raise ActivityError(_message(_place(), what, instead))
    warn_lost(what, array, instead)


def _is_drawn() -> bool:
    """Whether it is a package that draws pictures which asks, by itself or through NumPy."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = package_of(frame)
        if package not in _FOR_DRAWING:
            return package in _DRAWING
        frame = frame.f_back
    return False


def lose_number(what: str, array: Any, depth: int = 3) -> None:
    """The same where a number becomes Python's in a program that is differentiated as it stands: an error, unless it is
    only to be shown."""
    if would_be_lost(array) and not _is_shown(depth):
        raise _refused(_message(_place(), what, KEEP))


def _refused(message: str) -> ActivityError:
    """The error, which code in C may put another one in the place of."""
    global latest_refusal
    latest_refusal = message
    return ActivityError(message)


latest_refusal = ""
"""The message of the latest error that was raised for a number."""


def lose_exactly(what: str, array: Any) -> None:
    """The same for what computes with a number in another form than a `float`."""
    if checks.whole and would_be_lost(array):
        raise _refused(_message(_place(), what, KEEP))
    warn_lost(what, array)


def lose_unheard(what: str, array: Any, instead: str) -> None:
    """The same where an error would not be heard, since who asks takes any as a no: if `checks.strict`, every sweep and
    walk of the tape raises it."""
    tape = current()
    if checks.strict and would_be_lost(array) and tape is not None and tape.forward is None:
        tape.append(_Lost(_message(_place(), what, instead)))
    warn_lost(what, array, instead)


class _Lost(BaseAdjoint):
    """Stands among the records of a tape for a derivative that has been lost."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __call__(self, sweep: Any) -> None:
        raise ActivityError(self.message)

    tangent = __call__


def _is_shown(depth: int) -> bool:
    """Whether a number is asked for by the formatting of a text (``"%.3f" % x``), or by code that shows numbers."""
    frame = sys._getframe(depth)
    return package_of(frame) in SHOWING or is_formatting(frame)


def lend(array: np.ndarray) -> None:
    """Code outside ampi is given the address of an array's memory, and may write to it from now on.

    Values that tapes need are saved; those that they will need are copied then (see `handouts`).
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
    """The array that an array is a view of, or itself."""
    while isinstance(base := behind(array.base), np.ndarray):
        array = base
    return array
