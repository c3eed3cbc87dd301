"""Refusal of active values by mpi4py's own communicators, such as ``MPI.COMM_WORLD`` beside ``import ampi``.

Their methods are mpi4py's, which tapes do not see, so an active value would arrive without its derivative.  While a
tape is open, the methods call this module first (by `trampolines`; without these, by methods that replace them).
Inactive values pass, and so do ampi's own messages.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..arrays.losses import would_be_lost
from ..base.program_lines import where_called
from ..base.structures import leaves
from ..errors import ActivityError
from ..foreign.numpy_in_c import redirected
from ..interception.entry_points import call_slot, object_at
from ..interception.hooks import replace_method
from ..interception.redirection import arguments_at
from ..interception.trampolines import NOTHING, Place
from ..memory.extents import bounds_of
from ..memory.live_arrays import tracked_arrays
from ..memory.storages import storage_of
from ..tape import Tape, at_opening, current
from ..tape.recording import open_tapes
from .memory.bundles import refusing_pickles
from .messages.requests import at_plain_start
from .namespace import BASE

_CLASSES = (
    "Comm",
    "Intracomm",
    "Topocomm",
    "Cartcomm",
    "Graphcomm",
    "Distgraphcomm",
    "Intercomm",
    "Message",
    "Prequest",
)
PLAIN = tuple(BASE[name] for name in _CLASSES)
"""Classes of mpi4py whose instances tapes do not see."""

_PASSES = {"Attach_buffer", "Detach_buffer", "Iagree", "recv", "irecv", "mrecv", "imrecv"}
_WHAT = {"Message": "mpi4py's own message", "Prequest": "mpi4py's own request"}


def _methods() -> Iterator[tuple[type, str, Any]]:
    """The methods that take buffers or objects."""
    for cls in PLAIN:
        for name, method in list(vars(cls).items()):
            if name[0] == "_" or name in _PASSES or isinstance(method, (classmethod, staticmethod, property)):
                continue
            try:
                parameters = inspect.signature(method).parameters
            except (TypeError, ValueError):
                continue
            if name == "Start" or any(
                "BufSpec" in str(p.annotation) or p.name in ("obj", "sendobj") for p in parameters.values()
            ):
                yield cls, name, method


class _Inside(threading.local):
    """Flag of each thread: True while it is in a method that has been checked."""

    flag = False


_inside = _Inside()


def _called(function: int, items: int, n: int, names: int) -> Any:
    """Handle a call of a method of mpi4py's own instances while a tape is open."""
    if _inside.flag or current() is None or _is_called_by_ampi():
        return None
    method = object_at(function)
    arguments, keywords = arguments_at("fast", items, n & sys.maxsize, names)
    return _looked(method, method.__name__, arguments, keywords)


def _is_called_by_ampi() -> bool:
    return sys._getframe(2).f_globals.get("__name__", "").partition(".")[0] in ("ampi", "mpi4py")


def _looked(method: Callable, name: str, arguments: tuple, keywords: dict) -> Any:
    """Refuse active values among the arguments; return None if the method may continue, or else its result."""
    self, *given = arguments
    if name == "Start":
        return _look_at_start(self)
    for x in _arrays((given, keywords)):
        if would_be_lost(x):
            raise refused(f"{type(self).__name__}.{name}", x, type(self).__name__)
    if not name[0].islower():
        return None
    _inside.flag = True
    try:
        with refusing_pickles(lambda x: refused(f"{type(self).__name__}.{name}", x, type(self).__name__)):
            found = method(*arguments, **keywords)
    finally:
        _inside.flag = False
    return NOTHING if found is None else found


def _arrays(given: Any) -> Iterator[np.ndarray]:
    for x in leaves(given):
        if isinstance(x, np.ndarray):
            yield x
        elif isinstance(x, (memoryview, mpi.buffer)):
            array = np.asarray(x)
            if storage_of(array) is not None:
                yield array


def refused(name: str, x: np.ndarray, kind: str = "") -> ActivityError:
    """Return the error for an active value that reaches an object of mpi4py's own."""
    own = _WHAT.get(kind, "mpi4py's own communicator")
    what = f"an array of shape {np.shape(x)}" if np.ndim(x) else "a number"
    return ActivityError(
        f"{where_called()}: {name} of {own} was given {what} that carries derivatives, and "
        "which no tape would see: use ampi.COMM_WORLD instead of MPI.COMM_WORLD, or import "
        "MPI by `from ampi import MPI` (ampi.value(x) sends a constant)"
    )


def _look_at_start(request: Any) -> None:
    """Refuse a persistent request of mpi4py's own that sends an active array, or receives into one."""
    blocks = [(b.address, b.address + b.nbytes) for b in _buffers(request, 3) if b.nbytes] if current() else []
    for x in tracked_arrays() if blocks else ():
        if would_be_lost(x):
            low, high = bounds_of(x)
            if any(low < end and begin < high for begin, end in blocks):
                raise refused("Prequest.Start", x, "Prequest")


def _buffers(x: Any, depth: int) -> Iterator[mpi.buffer]:
    for part in gc.get_referents(x):
        if isinstance(part, mpi.buffer):
            yield part
        elif depth and type(part).__module__ == "mpi4py.MPI":
            yield from _buffers(part, depth - 1)


def _instead(name: str, method: Callable) -> Callable:
    """Make a method that replaces mpi4py's, where no machine code intercepts it."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if open_tapes and type(self) in PLAIN and not (_inside.flag or current() is None or _is_called_by_ampi()):
            found = _looked(method, name, (self, *arguments), keywords)
            if found is not None:
                return None if found is NOTHING else found
        return method(self, *arguments, **keywords)

    return call


_preparing = threading.Lock()


def _begin(tape: Tape) -> None:
    """Prepare for the first tape of the process; tapes of other threads wait until that is done."""
    with _preparing:
        if _begin in at_opening:
            _redirect()
            at_opening.remove(_begin)


def _redirect() -> None:
    places: dict[tuple[int, str], list[int]] = {}
    for cls, name, method in _methods():
        address, original = call_slot(method)
        if redirected.is_working and original:
            kind = "gate method, objects" if name == "Start" or name[0].islower() else "gate method"
            places.setdefault((original, kind), []).append(address)
        else:
            replace_method(cls, name, functools.partial(_instead, name))
    redirected.add([Place(tuple(at), original, kind, _called, True, PLAIN) for (original, kind), at in places.items()])


at_opening.append(_begin)
at_plain_start.append(_look_at_start)
