"""Registry of windows: the state of each while it exists."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import CommunicationError
from ...memory.storages import Storage
from ...tape import Tape, where_called
from ...tape.recording import open_tapes, opened, recording, this_thread
from ...tape.replays import Book, books
from ..log.reverse import Reverse
from .order import Order

if TYPE_CHECKING:
    from .access import Access
    from .memory import Elsewhere
    from .trace import Trace


class InSteps:
    """The uses of a window by steps of time loops: see `replay`.

    Attributes
    ----------
    later : list of replay.Call
        Operations postponed to the end of the present epoch.
    locks : dict
        The entries in books of the present lock epochs, by rank, to which numbers are added at the end.
    touched : set of int
        Ranks whose memory was accessed in an epoch of Lock_all.
    """

    __slots__ = ("_beside", "_made_in", "later", "locks", "touched")

    def __init__(self) -> None:
        self._made_in = books()
        tape = opened()
        unrecorded = tape is not None and recording() is None and self._made_in and not self._made_in[-1].recorded
        self._beside = tape.reference if unrecorded else None
        self.later: list[Any] = []
        self.locks: dict[int, list[list[Any]]] = {}
        self.touched: set[int] = set()

    def made_in(self, book: Book) -> bool:
        """Return whether the window was made in the step that has this book."""
        return any(book is other for other in self._made_in)

    def is_beside(self, tape: Tape) -> bool:
        """Return whether a tape does not see the window, because an unrecorded step of a loop made it."""
        return tape.reference is self._beside and recording() is None

    def taken(self) -> list[Any]:
        """Remove and return the postponed operations."""
        later, self.later = self.later, []
        return later


class Window:
    """The state of a window.

    Attributes
    ----------
    reverse : Reverse
        The communicator for messages between the ranks in a sweep.
    storage : Storage or None
        The storage of this rank's memory; None if it is not tracked.
    offset, nbytes : int
        Position and size of the window in its storage.
    units : list of int
        Displacement unit of each rank.
    tracked : list of bool
        For each rank, True if its memory is tracked.
    posted, started : list of int
        Ranks of the present epochs of Post and Start.
    starts : list of int
        Number of epochs of Start so far, by rank.
    fences : int
        Number of fences so far.
    locked : dict
        Kinds of the present locks, by rank; that of Lock_all under `ALL`.
    order : Order
        The order of accesses in lock epochs.
    incomplete : list of Access
        The incomplete accesses in lock epochs, with their traces.
    postponed : list of Access
        Operations postponed to the end of the present epoch of Fence or Start, with their traces.
    segments : dict or None
        For a shared window: other ranks' memory that this rank has queried, by rank.
    attached : dict or None
        For a dynamic window: arrays of this rank's tracked memory by storage, kept alive while they are attached.
    shared : bool
    handle : int
        MPI's handle of the window.
    in_steps : InSteps
    to_push : callable or None
        Sends the tangents of an operation that is about to start.
    freed : bool
    thread : object
        The thread that made it (`this_thread`): only tapes of this thread see its uses.
    """

    __slots__ = (
        "__weakref__",
        "attached",
        "fences",
        "freed",
        "handle",
        "in_steps",
        "incomplete",
        "locked",
        "nbytes",
        "offset",
        "order",
        "posted",
        "postponed",
        "reverse",
        "segments",
        "shared",
        "started",
        "starts",
        "storage",
        "thread",
        "to_push",
        "tracked",
        "units",
    )

    def __init__(
        self, reverse: Reverse, storage: Storage | None, address: int, nbytes: int, unit: int, dynamic: bool = False
    ) -> None:
        self.reverse = reverse
        self.storage = storage
        self.offset = 0 if storage is None else address - storage.address
        self.nbytes = nbytes
        self.order = Order(reverse.comm)
        tape = opened()
        facts = reverse.comm.allgather((unit, dynamic or storage is not None, _carries_tangents(tape)))
        if len({fact[2] for fact in facts}) > 1:
            raise CommunicationError(
                f"{where_called()}: some ranks make {reverse.name} inside ampi.jvp or ampi.hvp and some do not; make "
                "it there on all of them, or before"
            )
        self.units = [fact[0] for fact in facts]
        self.tracked = [fact[1] for fact in facts]
        self.posted: list[int] = []
        self.started: list[int] = []
        self.starts = [0] * len(facts)
        self.fences = 0
        self.locked: dict[int, int] = {}
        self.incomplete: list[tuple[Trace, Access]] = []
        self.postponed: list[tuple[Trace, Access]] = []
        self.segments: dict[int, Elsewhere] | None = None
        self.attached: dict[Storage, list[np.ndarray]] | None = {} if dynamic else None
        self.shared = False
        self.handle = 0
        self.in_steps = InSteps()
        self.to_push: Any = None
        self.freed = False
        self.thread = this_thread()

    def is_locked(self, rank: int) -> bool:
        """Return whether this rank has an epoch of Lock or Lock_all at the target."""
        return rank in self.locked or ALL in self.locked

    def puts_off(self, rank: int) -> bool:
        """Return whether an atomic operation on a target's memory has been postponed in this epoch."""
        return any(access.target.rank == rank for _, access in self.postponed)


def _carries_tangents(tape: Tape | None) -> bool:
    return tape is not None and (tape.forward is not None or tape.tangents is not None)


ALL = -(1 << 30)  # stands for all ranks; MPI's negative ranks are greater
windows: dict[int, Window] = {}
"""By handle, in the order of their creation."""


def window_of(win: Any) -> Window | None:
    """Return the state of a window; None if ampi did not see it being made."""
    return windows.get(win.handle)


def tape_of(window: Window | None) -> Any:
    """Return the innermost open tape of this thread if it sees the uses of a window; else None."""
    tape = opened()
    return None if tape is None or (window is not None and window.in_steps.is_beside(tape)) else tape


def alive(window: weakref.ref[Window]) -> Window | None:
    """Return the window, or None if it has been freed."""
    found = window()
    return None if found is None or found.freed else found


def require_own(window: Window) -> None:
    """Raise an error unless this is the thread that made the window, or no tape can see its uses.

    Other ranks use a window without a call of this one, so only one thread's tapes can be concerned.
    """
    if window.thread is this_thread():
        return
    if opened() is None and not any(tape.owner is window.thread for tape in open_tapes):
        return
    raise CommunicationError(
        f"{where_called()}: {window.reverse.name} is used by thread '{threading.current_thread().name}', but a tape "
        "sees the uses of a window only in the thread that made it; make the window in the thread that uses it"
    )
