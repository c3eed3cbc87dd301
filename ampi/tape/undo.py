"""The undo log: values that an operation is about to overwrite are saved if an earlier record needs them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.locks import RLock
from ..base.program_lines import where_called
from ..errors import TapeError
from ..memory import handouts
from ..memory.blocks import copied
from ..memory.extents import Extent, bounds_of
from ..memory.needs import Needs
from ..memory.storages import Region, Storage, address_of, is_power_of_two, memory_at, plain, region_of, storage_of
from .recording import is_passive, open_tapes, opened, recording, sweeping_for
from .records import Record, Zero

if TYPE_CHECKING:
    from .tape import Tape

needs_lock = RLock()  # of all storages: threads may use parts of one


class Undo:
    """Overwritten values: `swap` exchanges them with the present ones."""

    __slots__ = ("extent", "key", "saved", "storage", "view")
    in_file = False
    filed: type[Undo]
    """The class of the same undo with its values in a file."""

    def __init__(self, storage: Storage, view: np.ndarray, extent: Extent, key: Any = None) -> None:
        self.storage = storage
        self.view = view
        self.extent = extent
        self.key = key
        self.saved = self._present()

    def _present(self) -> np.ndarray:
        return copied(self.view) if self.key is None else self.view[self.key]

    def swap(self) -> None:
        """Exchange saved and present values."""
        present = self._present()
        self.put_back()
        self.saved = present

    def again(self) -> Undo:
        """Return an undo of the same memory with its present values."""
        return Undo(self.storage, self.view, self.extent)

    def swap_values(self) -> None:
        """Exchange the values, but not the tangents that an undo may have as well."""
        self.swap()

    def put_back(self) -> None:
        """Restore the saved values."""
        key = ... if self.key is None else self.key
        try:
            self.view[key] = self.saved
        except ValueError:  # the view is not writable: NumPy allows such targets if no element changes
            if self.view.flags.writeable:
                raise
            low, high = bounds_of(self.view)
            offset, view = address_of(self.view) - low, self.view
            block = memory_at(low, high - low)
            np.ndarray(view.shape, view.dtype, block, offset, view.strides)[key] = self.saved

    def holds(self, view: np.ndarray, extent: Extent) -> np.ndarray | None:
        """Return the saved values of an array inside the overwritten one; None if they are not available as a view."""
        return self.part_of(self.saved, view, extent)

    def part_of(self, saved: np.ndarray, view: np.ndarray, extent: Extent) -> np.ndarray | None:
        """Return the part of an array in the layout of the saved values that belongs to another array; None as for
        `holds`."""
        if self.key is not None or not self.extent.covers(extent):
            return None
        if self.extent.pattern == extent.pattern and view.dtype == saved.dtype:
            found = saved
        elif self.extent.dense and saved.flags.c_contiguous and min(self.view.strides, default=1) > 0:
            offset = address_of(view) - self.extent.low
            found = np.ndarray(view.shape, view.dtype, saved.reshape(-1).view(np.uint8), offset, view.strides)
        else:
            return None
        if not view.flags.writeable:
            found = found[...]
            found.flags.writeable = False
        return found


def overwrite(*arrays: np.ndarray, key: Any = None) -> list[Undo]:
    """Save the values that tapes need before one operation overwrites the memory of arrays.

    Call it whether or not a tape records: the old bytes are saved for every tape that needs them.

    Parameters
    ----------
    *arrays : numpy.ndarray
        The arrays, or views of them, that are overwritten as a whole.
    key : tuple of integer and boolean arrays, optional
        Indices of the elements that are overwritten, if not all are.  The key must not change afterwards.

    Returns
    -------
    list of Undo
        The undos of the innermost open tape, for the operation's record.  (Other tapes get a separate record.)

    Raises
    ------
    TapeError
        An array carries derivatives on an outer tape, which would not notice the write.
    """
    undo: list[Undo] = []
    tape = recording()
    if tape is not None:
        for array in arrays:
            require_seen(tape, array)
    for array in arrays:
        storage = storage_of(array)
        if storage is None:
            continue
        if tape is not None and tape.accesses is not None:
            tape.accesses.write(storage, array)
        if storage.swapped_by:
            refuse_swapped(storage, array)
        if storage.guard:
            handouts.unsettle(storage, array if key is None else None)
        if storage.needs:
            with needs_lock:
                _save(storage, plain(array), key, undo)
    if open_tapes and is_passive():
        _passive_overwrite(arrays, key, undo)
        return []
    return undo


def require_seen(tape: Tape, array: np.ndarray) -> None:
    """Raise an error if an array carries derivatives on an outer tape, which would not notice an operation on it."""
    storage = storage_of(array)
    if storage is None or storage.elsewhere or storage.tape is None or storage.tape is tape.reference:
        return
    tape.is_active(array)


def _passive_overwrite(arrays: Sequence[np.ndarray], key: Any, undo: list[Undo]) -> None:
    """Remove derivatives from arrays that are overwritten inside `passive`, on every tape."""
    inner = opened()
    own = None if inner is None else inner.reference
    lost: dict[Any, list[Region]] = {}
    for array in arrays:
        storage = storage_of(array)
        tape = None if storage is None or storage.tape is None else storage.tape()
        if tape is not None and not tape.closed:
            lost.setdefault(storage.tape, []).append(region_of(array))  # type: ignore[union-attr]
    for reference, regions in lost.items():
        if reference is not own:
            reference().append_unobserved(Record(Zero(regions, key), (), ()))
    zeroed = None if own is None else lost.get(own)
    if inner is not None and (undo or zeroed):
        if inner.before_append is not None:
            inner.before_append()
        inner.append_record(Record(Zero(zeroed, key) if zeroed else None, undo, ()))


def save(tape: Tape, storage: Storage, array: np.ndarray, extent: Extent, undo: list[Undo]) -> None:
    """`overwrite` on the tape that records, for all of an array that only this tape observes; add to ``undo``.

    The extent of the array is known.
    """
    with needs_lock:
        needs = storage.needs.get(tape.needer)
        if needs is None or len(storage.needs) > 1:
            _save(storage, plain(array), None, undo, extent)
        elif needs.meets(extent):
            saved = tape.undo_of(storage, plain(array), extent, None)
            tape.saved_bytes += saved.saved.nbytes
            if tape.budget is not None:
                tape.budget.note_undo(saved)
            needs.drop(extent)
            if not needs and needs.is_empty():
                storage.needs.clear()
            undo.append(saved)


def _save(storage: Storage, array: np.ndarray, key: Any, undo: list[Undo], extent: Extent | None = None) -> None:
    if extent is None:
        extent = Extent(array)
    inner = opened()
    for reference, needs in list(storage.needs.items()):
        own = inner is not None and reference is inner.needer
        tape = inner if own else reference()
        if tape is None:
            del storage.needs[reference]
            continue
        if not needs.meets(extent):
            continue
        saved = tape.undo_of(storage, array, extent, key)
        if key is not None and needs.saves_all(extent, saved.saved.nbytes, array.nbytes):
            saved = tape.undo_of(storage, array, extent, None)
        tape.saved_bytes += saved.saved.nbytes
        if tape.budget is not None:
            tape.budget.note_undo(saved)
        if saved.key is None:
            needs.drop(extent)
            if not needs and needs.is_empty():
                del storage.needs[reference]
        if own:
            undo.append(saved)
        else:
            tape.append_unobserved(Record(None, [saved], ()))


def first_need(storage: Storage, reference: Any) -> Needs:
    """Return new, empty needs of a tape for a storage."""
    found = storage.needs
    if is_power_of_two(len(found)):
        for dead in [other for other in found if other() is None]:
            del found[dead]
    needs = found[reference] = Needs()
    return needs


def keep_needed(array: np.ndarray) -> None:
    """Save the values that records need of an array, into which other code may write unseen from now on."""
    storage = storage_of(array)
    if storage is not None and storage.needs:
        undo: list[Undo] = []
        with needs_lock:
            _save(storage, plain(array), None, undo)
        if undo:
            opened().append(None, undo)


def refuse_swapped(storage: Storage, array: np.ndarray) -> None:
    """Raise if a sweep of another thread has put earlier values into an array."""
    extent = Extent(array)
    for sweep in storage.swapped_by:
        if sweep.thread != sweeping_for() and sweep.has_swapped(storage, (extent,)):
            raise TapeError(
                f"{where_called()}: an array of shape {array.shape} is used by thread "
                f"'{threading.current_thread().name}', while a sweep of another thread has restored its earlier "
                "values; wait until that gradient is complete, or let the threads work on copies"
            )


class Need:
    """The place of an array whose values are needed repeatedly."""

    __slots__ = ("extent", "storage")

    def __init__(self, storage: Storage, view: np.ndarray) -> None:
        self.storage = storage
        self.extent = Extent(view)
