"""Plain arrays in messages while a tape records active data: their derivatives, if they have any, are lost."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from .. import checks
from ..constants import is_constant
from ..errors import ActivityError, ActivityWarning
from ..handouts import LIBRARIES
from ..recording import recording
from ..tape import Tape, where_called
from .buffers import FLOATING, Buffer
from .messages import call_site
from .reverse import name_of

_warned: set[str] = set()
_sites: set[int] = set()  # of calls on these lines: what `call_site` gives lives as long as the process


def mind(name: str, buffer: Any, verb: str, preposition: str, partner: Any) -> None:
    """Say once per source line that a message is sent of a plain array of floating-point numbers, and what to write.

    Parameters
    ----------
    name : str
        The operation.
    buffer : MessageMemory
        What it reads.
    verb, preposition : str
        What it does with that (``"sends"``), and what stands before the partner (``"to rank"``).
    partner : mpi4py.MPI.Comm or int

    Raises
    ------
    ActivityError
        With ``AMPI_CHECK=full``.
    """
    if type(buffer) is not Buffer or buffer.storage is not None or not buffer.nbytes or checks.level == checks.OFF:
        return
    array = buffer.array
    tape = recording()
    if array is None or array.dtype not in FLOATING or tape is None or is_constant(array) or not _has_active(tape):
        return
    site = id(call_site(2))
    if site in _sites and not checks.strict:
        return
    place = where_called()
    if place in _warned and not checks.strict:
        _sites.add(site)
        return
    whom = name_of(partner) if isinstance(partner, mpi.Comm) else partner
    text = (
        f"{place}: {name} {verb} a plain numpy array{_described(array)} {preposition} {whom} while a tape records: it "
        "carries no derivatives, whatever it was computed from; make it with ampi.numpy, or write ampi.constant(...) "
        "around it if it is meant to be constant"
    )
    if checks.strict:
        raise ActivityError(text)
    _warned.add(place)
    warnings.warn(text, ActivityWarning, stacklevel=_depth())


def _has_active(tape: Tape) -> bool:
    """Whether there is an active array on the tape: one that is watched, or was computed from what has come."""
    if tape.watches:
        return True
    return any(r.adjoint is not None and (r.adjoint is not r or r.is_local) for r in tape.records)


def _is_of_library(frame: Any) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES


def _depth() -> int:
    """The level of the innermost frame of the program, for what `mind` warns of."""
    frame, level = sys._getframe(1), 1
    while frame is not None and _is_of_library(frame):
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level


def _described(array: np.ndarray) -> str:
    """Shape and dtype of an array, and what the program's line calls it, or what it is a part of."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_of_library(frame):
        frame = frame.f_back
    name = ""
    known = [] if frame is None else [*frame.f_locals.items(), *frame.f_globals.items()]
    whole = array
    while isinstance(whole, np.ndarray) and not name:
        name = next((key for key, value in known if value is whole), "")
        whole, part = whole.base, whole is not array
    called = f" '{name}'" if name and not part else f" (a part of '{name}')" if name else ""
    return f"{called} of shape {array.shape} and dtype {array.dtype}"
