"""The error for arrays whose derivatives would be lost: on an outer tape, on another thread's, or unknown."""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from typing import Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import ActivityError, AmpiError, TapeError
from .recording import is_around


class Unknown:
    """Stands for the tape of memory whose derivatives are not known, so that using it is an error.

    Attributes
    ----------
    reference : weakref.ref, the `Storage.tape` of such memory
    reason : str
        What the error says about the array.
    closed : bool
        True if no tape would lose the derivatives any more.
    """

    def __init__(self, tape: Any, reason: str) -> None:
        self.reference = weakref.ref(self)
        self.reason = reason
        self._tape = tape.reference

    @property
    def closed(self) -> bool:
        tape = self._tape()
        return tape is None or tape.closed

    def append_unobserved(self, record: Any) -> None:
        """Record nothing."""


def lost(array: np.ndarray, tape: Any) -> AmpiError:
    """The error for an array that carries derivatives on an open tape which does not record here."""
    what = f"an array of shape {array.shape} and dtype {array.dtype}"
    if isinstance(tape, Unknown):
        return ActivityError(f"{where_called()}: {what} {tape.reason}")
    if is_around(tape):
        return TapeError(
            f"{what} that carries derivatives on an outer tape is used inside an inner tape, where they would be lost; "
            "pass ampi.value(x) if it is a constant there"
        )
    here = threading.current_thread().name
    if tape.thread == get_ident():
        who, instead = "another task of this thread", "start this task inside of the tape"
    else:
        who, instead = f"thread '{tape.thread_name}'", f"let thread '{tape.thread_name}' do it"
    return ActivityError(
        f"{where_called()}: {what} carries derivatives on a tape of {who}, and is used by thread '{here}', where they "
        f"would be lost; {instead}, or differentiate here what this thread does (`y, pullback = ampi.vjp(f, "
        "ampi.value(x))`, which ampi.custom_vjp makes a part of the other tape), or pass ampi.value(x) if it is a "
        "constant here"
    )
