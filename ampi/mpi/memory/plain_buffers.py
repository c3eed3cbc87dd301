"""Warnings of plain arrays in messages while a tape records active data: derivatives that they may have are lost."""

from __future__ import annotations

import collections
import sys
import types
import warnings
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...arrays.constants import holds, is_constant
from ...base import checks
from ...base.program_lines import LIBRARIES
from ...errors import ActivityError, ActivityWarning
from ...memory.extents import bounds_of
from ...memory.storages import carries_derivatives, storage_of
from ...tape import Tape, where_called
from ...tape.recording import recording
from ..base.call_sites import call_site, name_of
from .buffers import FLOATING, Buffer
from .message_memory import MessageMemory

_warned: set[str] = set()
_sites: set[int] = set()  # ids of call sites on these lines: results of `call_site` live as long as the process


def warn_if_plain(name: str, buffer: MessageMemory, verb: str, preposition: str, partner: Any) -> None:
    """Warn once per source line of a plain array of floating-point numbers in a message, and say what to write.

    Parameters
    ----------
    name : str
        The operation.
    buffer : MessageMemory
        The memory that it reads.
    verb, preposition : str
        What it does with the array (``"sends"``), and the words before the partner (``"to rank"``).
    partner : mpi4py.MPI.Comm or int

    Raises
    ------
    ActivityError
        Instead of the warning, with ``AMPI_CHECK=full``.
    """
    if checks.level == checks.OFF or not buffer.nbytes:
        return
    if type(buffer) is Buffer:
        if buffer.storage is None and buffer.array is not None:
            _warn_of(buffer.array, name, verb, preposition, partner, buffer, True)
        return
    for _, part in getattr(buffer, "parts", ()):
        if part.storage is None:
            _warn_of(part.array, name, verb, preposition, partner, part)


def warn_of_plain_objects(obj: Any) -> None:
    """Warn of plain arrays of floating-point numbers in an object that is sent."""
    if type(obj) not in _ATOMS and checks.level != checks.OFF and recording() is not None:
        for array in plain_within(obj):
            _warn_of(array, "an object", "is sent that holds")


def _warn_of(
    array: np.ndarray,
    name: str,
    verb: str,
    preposition: str = "",
    partner: Any = "",
    part: Buffer | None = None,
    is_whole: bool = False,
) -> None:
    """Warn of one array, once per line; ``is_whole`` if the call sends nothing else."""
    if part is not None and not _has_floats(part):
        return
    tape = recording()
    if tape is None or is_constant(array) or not _has_active(tape):
        return
    site = id(call_site(3)) if is_whole else 0
    if site in _sites and not checks.strict:
        return
    place = where_called()
    if place in _warned and not checks.strict:
        if site:
            _sites.add(site)
        return
    low, high = bounds_of(array)
    if holds(low, high):
        return
    whom = name_of(partner) if isinstance(partner, mpi.Comm) else partner
    to = f" {preposition} {whom}" if preposition else ""
    text = (
        f"{place}: {name} {verb} a plain numpy array{_described(array)}{to} while a tape records: it "
        "carries no derivatives, whatever it was computed from; make it with ampi.numpy, or write ampi.constant(...) "
        "around it if it is meant to be constant"
    )
    if checks.strict:
        raise ActivityError(text)
    _warned.add(place)
    warnings.warn(text, ActivityWarning, stacklevel=_depth())


def _has_floats(buffer: Buffer) -> bool:
    return (
        _is_floating(buffer.array.dtype)  # type: ignore[union-attr]
        or buffer.dtype in FLOATING
        or any(dtype in FLOATING for dtype, _ in buffer.extra)
    )


def _is_floating(dtype: np.dtype) -> bool:
    return dtype in FLOATING or (dtype.names is not None and carries_derivatives(dtype))


def plain_within(obj: Any) -> list[np.ndarray]:
    """Return the plain arrays of floating-point numbers in an object: in containers and in attributes."""
    found: dict[int, np.ndarray] = {}
    seen: set[int] = set()
    left = [obj]
    while left:
        x = left.pop()
        if type(x) in _ATOMS or id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, np.ndarray):
            if x.dtype.hasobject:
                left += x.ravel().tolist() if x.dtype.names is None else []
            elif x.size and _is_floating(x.dtype) and storage_of(x) is None:
                found[id(x)] = x
        elif isinstance(x, dict):
            left += x.values()
        elif isinstance(x, (list, tuple, set, frozenset, collections.deque)):
            left += x
        elif type(x).__module__.partition(".")[0] not in _OPAQUE and not isinstance(x, (type, types.ModuleType)):
            left += getattr(x, "__dict__", {}).values()
            for cls in type(x).__mro__:
                slots = vars(cls).get("__slots__", ())
                left += [getattr(x, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    return list(found.values())


_ATOMS = {int, float, complex, bool, str, bytes, type(None), types.FunctionType, types.BuiltinFunctionType}
_OPAQUE = LIBRARIES | {"builtins", "weakref", "threading"}


def _has_active(tape: Tape) -> bool:
    """Return whether an array is active on the tape: watched, or computed from received values."""
    if tape.watches:
        return True
    return any(r.adjoint is not None and (r.adjoint is not r or r.is_local) for r in tape.records)


def _is_of_library(frame: Any) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES


def _depth() -> int:
    """Return the level of the innermost frame of the program, for warnings."""
    frame, level = sys._getframe(1), 1
    while frame is not None and _is_of_library(frame):
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level


def _described(array: np.ndarray) -> str:
    """Return name, shape and dtype of an array, or the name of the array that it is a part of."""
    frame: Any = sys._getframe(1)
    while frame is not None and _is_of_library(frame):
        frame = frame.f_back
    name = ""
    known = [] if frame is None else [*frame.f_locals.items(), *frame.f_globals.items()]
    whole = array
    while isinstance(whole, np.ndarray) and not name:
        name = next((key for key, value in known if value is whole), "")
        whole, part = whole.base, whole is not array
    if not name:  # memory that a datatype names by its address
        low, high = bounds_of(array)
        inside = lambda x: isinstance(x, np.ndarray) and bounds_of(x)[0] <= low and high <= bounds_of(x)[1]
        name = next((key for key, value in known if inside(value)), "")
        part = True
    called = f" '{name}'" if name and not part else f" (a part of '{name}')" if name else ""
    return f"{called} of shape {array.shape} and dtype {array.dtype}"
