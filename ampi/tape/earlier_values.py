"""Earlier values in a reverse sweep: memory that records overwrote is put back before an adjoint reads it.

The undos of visited records are deferred: many adjoints find the values that they need in what was saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.locks import RLock
from ..errors import TapeError
from ..memory import handouts
from ..memory.extents import Extent
from ..memory.storages import Storage, plain, storage_of
from .recording import sweeping_for
from .undo import Need, Undo, needs_lock

if TYPE_CHECKING:
    from .tape import Tape

swap_lock = RLock()  # of what sweeps do to memory
MOST_PENDING = 16  # undos of one storage that a sweep defers


class EarlierValues:
    """What a sweep does to the memory of its tape's arrays.

    Attributes
    ----------
    tape : Tape
    whole : EarlierValues or None
        The sweep of the tape of which it is a part: that one restores memory.
    thread : int
        The thread for which it runs.
    left : collection of Storage
        Storages that the caller takes care of: what they hold after the sweep does not matter.
    """

    whole: EarlierValues | None = None

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.thread = sweeping_for()
        self.left: Collection[Storage] = ()
        self._pending: dict[Storage, list[Undo]] = {}  # of visited records, latest first: memory is as after them
        self._swapped: list[Undo] = []
        self._patterns: dict[Storage, set[Any]] = {}  # of undos put back from a file, since the last other undo
        self._claimed: list[Storage] = []  # those of the swapped undos

    def value(self, array: np.ndarray) -> np.ndarray:
        """Return the values that an array (from `Tape.need`) had when the operation ran, for an adjoint with
        ``reads_memory = False``, which finds memory in a later state.

        They are read from what was saved, where that is possible, and the memory put back otherwise.
        """
        storage = storage_of(array) if self._pending else None
        if storage is None or not self._pending.get(storage):
            return array
        return self._earlier(array, storage, Extent(array))

    def values_again(self, values: list[Any], needs: Iterable[tuple[int, Need]]) -> bool:
        """`value` for some of a list, whose extents are known; return whether another array replaces one of them."""
        replaced = False
        for k, need in needs if self._pending else ():
            if self._pending.get(need.storage):
                array, values[k] = values[k], self._earlier(values[k], need.storage, need.extent)
                replaced = replaced or values[k] is not array
        return replaced

    def _earlier(self, array: np.ndarray, storage: Storage, extent: Extent) -> np.ndarray:
        """Return the values that an array had when the operation ran; undos of its storage are pending."""
        with swap_lock:
            for undo in reversed(self._pending.get(storage, ())):
                if undo.extent.overlaps(extent):
                    saved = undo.holds(array, extent)
                    if saved is not None and (saved.flags.forc is array.flags.forc or self.tape.tasks is None):
                        return saved  # in tasks only if it lies like memory, which others may have restored by now
                    self._undo(storage)
                    break
        return array

    def _values_after(self, arrays: Sequence[np.ndarray], undos: Sequence[Undo]) -> list[np.ndarray]:
        """Return the values that arrays had after the operation of the next record, which has these undos."""
        found = []
        for array in arrays:
            values = self.value(array)
            if values is array and undos:
                extent = Extent(array)
                if any(undo.extent.overlaps(extent) for undo in undos):
                    values = array.copy(order="K")
            found.append(plain(values))
        return found

    def _verify(self, notes: Sequence[handouts.Note], after: Sequence[np.ndarray] | None) -> None:
        """Check that the values a record needs are unmodified; ``after``: those that it needs as its operation left
        them."""
        if notes:
            self.put_all_back()
        for note in notes:
            if not any(note.view is view for view in after or ()):
                note.verify()

    def _defer(self, undos: Sequence[Undo]) -> None:
        """Queue undos, which are applied before the memory is read."""
        with swap_lock:
            for undo in reversed(undos):
                pending = self._pending.setdefault(undo.storage, [])
                if undo.key is None:
                    pending[:] = [later for later in pending if not undo.extent.covers(later.extent)]
                pending.append(undo)
                if len(pending) > MOST_PENDING:
                    self._undo(undo.storage)

    def put_back(self, storages: Iterable[Storage | None]) -> None:
        """Restore the memory of these storages to its state when the operation ran, for an adjoint with ``reads_memory
        = False`` that is about to read it."""
        for storage in storages:
            if storage in self._pending:
                self._undo(storage)

    def put_all_back(self) -> None:
        """Restore all memory to its state when the operation of the present record ran."""
        for storage in list(self._pending):
            self._undo(storage)

    def _undo(self, storage: Storage) -> None:
        """Restore a storage's memory to its state when the operation of the present record ran."""
        with swap_lock:
            pending = self._pending.get(storage, ())
            (self.whole or self).claim(storage, [undo.extent for undo in pending])
            for undo in pending:
                if undo.in_file:
                    self._put_back(undo)
                    continue
                if self._patterns:
                    self._patterns.pop(storage, None)
                undo.swap()
                self._swapped.append(undo)
            self._pending.pop(storage, None)  # last: until then other threads wait for the lock

    def _put_back(self, undo: Undo) -> None:
        """Restore the values that an undo has in a file, where they stay. What memory held is saved once for each
        pattern of bytes, to restore it at the end."""
        known = self._patterns.setdefault(undo.storage, set())
        if undo.extent.pattern not in known:
            known.add(undo.extent.pattern)
            self._swapped.append(undo.again())
        undo.put_back()

    def claim(self, storage: Storage, extents: Sequence[Extent]) -> None:
        """Claim a storage before earlier values are put into it; raise if another sweep has claimed it."""
        if storage.swapped_by == (self,):
            return
        others = [other for other in (*storage.swapped_by, *_sweeping) if other.thread != self.thread]
        if any(other.has_swapped(storage, extents) or other.wants(storage, extents) for other in others):
            raise _at_once()
        if self not in storage.swapped_by:
            storage.swapped_by = (*storage.swapped_by, self)
            self._claimed.append(storage)

    def has_swapped(self, storage: Storage, extents: Sequence[Extent]) -> bool:
        """Return whether this sweep has put earlier values into memory that overlaps any of these extents."""
        mine = [undo.extent for undo in self._swapped if undo.storage is storage]
        return any(extent.overlaps(other) for extent in extents for other in mine)

    def wants(self, storage: Storage, extents: Sequence[Extent]) -> bool:
        """Return whether this sweep may read the present values of any of these extents."""
        with needs_lock:
            needs = storage.needs.get(self.tape.reference)
            return needs is not None and any(needs.meets(extent) for extent in extents)

    def _begin(self) -> None:
        """Register this sweep as running: no sweep of another thread may then change what it reads."""
        with swap_lock:
            for other in _sweeping:
                for undo in other._swapped if other.thread != self.thread else ():
                    if self.wants(undo.storage, (undo.extent,)):
                        error = _at_once()
                        self.tape.refuse(error)
                        raise error
            _sweeping.append(self)

    def _restore(self) -> None:
        """Restore all memory to its state before the sweep."""
        while self._swapped:
            undo = self._swapped.pop()
            if undo.storage not in self.left:
                undo.swap()
        self._patterns.clear()
        with swap_lock:
            while self._claimed:
                storage = self._claimed.pop()
                storage.swapped_by = tuple(other for other in storage.swapped_by if other is not self)
            if self in _sweeping:
                _sweeping.remove(self)


_sweeping: list[EarlierValues] = []  # all sweeps that run, in any thread


def is_sweeping() -> bool:
    """Return whether this thread takes part in a sweep."""
    thread = sweeping_for()
    return any(sweep.thread == thread for sweep in _sweeping)


def _at_once() -> TapeError:
    return TapeError(
        "tape.gradient: the sweeps of two threads would restore earlier values of the same array at the same time, as "
        "both tapes used it before it was overwritten; compute one gradient after the other, or let the threads work "
        "on copies"
    )
