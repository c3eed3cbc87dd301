"""Window memory: storages of windows, of dynamic windows, and of other ranks in shared windows.

Other ranks overwrite window memory unseen, so values that an adjoint needs are copied when they are used
(`Storage.volatile`), and it counts as active from the start of a tape.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...memory.storages import Storage, address_of, dtype_of_memory, plain, storage_of, track_block
from ...tape import overwrite, require_seen
from ...tape.recording import opened, recording
from ..log.reverse import reverse_of_window
from ..memory.argument_forms import as_array
from .forward_windows import forward_trace, open_shadow, push_of
from .trace import activate, require_innermost, trace_of
from .window import Window, alive, tape_of, window_of, windows

_Win = mpi.Win  # mpi4py's own: its names may be rebound


class Elsewhere(Storage):
    """Memory of another rank in a shared window: loads from it and stores to it are communication."""

    __slots__ = ("rank", "window")
    elsewhere = True

    def __init__(self, address: int, nbytes: int, window: Window, rank: int) -> None:
        self.window = weakref.ref(window)
        self.rank = rank
        super().__init__(address, nbytes)
        self.volatile = True

    @property
    def tape(self) -> Any:  # type: ignore[override]
        """The open tape: it is active on every one.  The caller is about to record a load or store."""
        return self._visited()

    @tape.setter
    def tape(self, tape: Any) -> None:
        """Do nothing: it is active on every tape."""

    @property
    def needs(self) -> dict:  # type: ignore[override]
        """Always empty: values are copied when they are used.  The caller is about to store."""
        self._visited()
        return {}

    @needs.setter
    def needs(self, needs: dict) -> None:
        """Do nothing: it stays empty."""

    def _visited(self) -> Any:
        window = self.window()
        tape = tape_of(window)
        if tape is None or window is None or window.freed:
            return None
        if tape.tangents is not None and tape.sweeping:
            return tape.reference
        trace_of(tape, window)
        if recording() is not None:
            require_innermost(tape, window)
        if tape.forward is not None:
            return tape.reference
        tape.observer.visited.add((window, self.rank))
        return tape.reference


def register(win: Any, comm: Any, unit: int, memory: Any = None, shared: bool = False) -> Any:
    """Register a new window; collective over it.  If the user gave no memory, MPI has allocated it."""
    reverse = reverse_of_window(comm)
    if memory is None:
        buffer = _Win.tomemory(win)
        address, nbytes = buffer.address, buffer.nbytes
        storage = Storage(address, nbytes)
        window = Window(reverse, storage, address, nbytes, unit)
        reference = weakref.ref(window)
        window.storage = track_block(storage, lambda: alive(reference))
    else:
        array = None if isinstance(memory, mpi.BottomType) else as_array(memory)
        known = None if array is None or dtype_of_memory(array) is None else storage_of(array)
        address, nbytes = (0, 0) if array is None else (address_of(array), array.nbytes)
        window = Window(reverse, known, address, nbytes, unit)
    window.shared = shared
    _enter(win, window)
    if window.storage is not None:
        _expose(window.storage, None if memory is None else as_array(memory))
    _trace(window)
    return win


def _enter(win: Any, window: Window) -> None:
    windows[win.handle] = window
    window.handle = win.handle


def _trace(window: Window) -> None:
    """Trace a new window on the open tape."""
    tape = tape_of(window)
    if tape is not None and push_of(tape) is not None:
        open_shadow(tape, window)
    if tape is not None:
        trace_of(tape, window, is_new=True)


def require_innermost_memory(memory: Any) -> None:
    """Raise an error if memory of a new window, which others write, carries derivatives on an outer tape."""
    tape = opened()
    if tape is None or memory is None or isinstance(memory, mpi.BottomType):
        return
    array = as_array(memory)
    if storage_of(array) is not None and dtype_of_memory(array) is not None:
        require_seen(tape, array)


def _expose(storage: Storage, memory: np.ndarray | None) -> None:
    """Mark memory that others may write to unseen from now on."""
    if storage.volatile:
        return
    tape = opened()
    undo = [] if memory is None else overwrite(plain(memory))
    storage.volatile = True
    if tape is not None and undo:
        tape.append(None, undo)


def register_dynamic(win: Any, comm: Any) -> Any:
    """Register a new window without memory; collective over it."""
    window = Window(reverse_of_window(comm), None, 0, 0, 1, True)
    _enter(win, window)
    _trace(window)
    return win


def attach(win: Any, memory: Any) -> None:
    """Attach memory to a dynamic window."""
    window = window_of(win)
    array = as_array(memory)
    storage = storage_of(array) if dtype_of_memory(array) is not None else None
    if window is None or window.attached is None or storage is None:
        return
    _expose(storage, array)
    window.attached.setdefault(storage, []).append(array)
    tape = tape_of(window)
    if tape is not None:
        trace = trace_of(tape, window)
        if push_of(tape) is not None:
            for shadow in forward_trace(tape, window).shadows:
                shadow.attach(storage)
        trace.attached.setdefault(storage, array)
        activate(storage, tape)


def detach(win: Any, memory: Any) -> None:
    """Detach memory from a dynamic window; a tape that recorded with it keeps it alive."""
    window = window_of(win)
    array = as_array(memory)
    storage = storage_of(array)
    if window is None or window.attached is None or storage not in window.attached:
        return
    arrays = window.attached[storage]
    arrays[:] = [other for other in arrays if address_of(other) != address_of(array)]
    if not arrays:
        del window.attached[storage]


def track_segment(win: Any, rank: int, segment: mpi.buffer) -> None:
    """Track another rank's memory in a shared window from now on."""
    window = window_of(win)
    if window is None or window.segments is None or not segment.nbytes:
        return
    owner = rank if rank >= 0 else _owner_of(win, window.reverse.comm.Get_size())
    if owner != window.reverse.rank and owner not in window.segments:
        storage = Elsewhere(segment.address, segment.nbytes, window, owner)
        reference = weakref.ref(window)
        track_block(storage, lambda: alive(reference))
        window.segments[owner] = storage
        tape = tape_of(window)
        if tape is not None and push_of(tape) is not None:
            for shadow in forward_trace(tape, window).shadows:
                shadow.know(owner, storage)


def _owner_of(win: Any, size: int) -> int:
    """Return the lowest rank that has memory in a shared window, which ``MPI.PROC_NULL`` stands for."""
    return next(rank for rank in range(size) if _Win.Shared_query(win, rank)[0].nbytes)
