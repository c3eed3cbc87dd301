"""The reverse sweep: it walks back over the records, undoes their writes and applies their adjoints to shadows."""

from __future__ import annotations

from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TapeError
from ..memory.blocks import add_repeated
from ..memory.extents import may_repeat
from ..memory.regions import SLOT
from ..memory.storages import Region, Storage, carries_derivatives, storage_of
from .earlier_values import EarlierValues
from .noted_shadows import NotedShadows
from .recording import actively, is_around, passively
from .records import Watch
from .unwatched import number_to_skip

if TYPE_CHECKING:
    from .tape import Tape


class Sweep(EarlierValues):
    """One reverse sweep of a tape, and its shadows.

    Attributes
    ----------
    tape : Tape
    state : dict
        Data of other packages for the duration of a sweep (requests in flight, what the ranks agreed on).
    guards : dict
        For volatile storages: functions that are called before each access to their adjoint.
    around : Sweep or None
        The sweep with which it shares the shadows (see `inside`).
    whole : Sweep or None
        The sweep of the tape of which it is a part (see `be_part_of`).
    lanes : tuple of Sweep or None
        The sweeps of one walk that have shadows of their own: in second order one for the adjoints, and those for their
        tangents; in vector mode one for each direction.
    pairs : bool
        True in second order.
    left : collection of Storage
        Storages that the caller takes care of: what they hold after the sweep does not matter.
    first : int
        The number of records at the beginning that it does not visit, as no derivative comes from there.
    after : list of numpy.ndarray
        The values of the present adjoint's ``arrays_after``, as they were after its operation.
    """

    lanes: Any = None
    pairs = False

    def __init__(self, tape: Tape, around: Sweep | None = None) -> None:
        super().__init__(tape)
        self.around = around
        self.whole: Sweep | None = None
        self.state: dict[Any, Any] = {}
        self.guards: dict[Storage, Callable[[], None]] = {}
        self.after: list[np.ndarray] = []
        self.wanted: list[Region] = []
        self.results: list[np.ndarray] = []
        self._shadows: dict[Storage, np.ndarray] = {}
        self._lent: set[Storage] = set()  # their shadows are in the user's memory
        self._views: dict[Region, np.ndarray] = {}  # of shadows, by `shadow_again`
        self._viewed: dict[Storage, list[Region]] = {}  # their regions
        self._kept: set[Storage] = set()
        self._given_away: set[Storage] = set()
        self._ends: list[Callable[[BaseException | None], None]] = []
        self.first = 0
        if around is not None:
            self._shadows, self._lent = around._shadows, around._lent
            self._views, self._viewed = around._views, around._viewed

    def be_part_of(self, whole: Sweep) -> None:
        """Become the sweep of a part of the tape, in any thread, with shadows of its own: the sweep of the whole
        restores memory and keeps what the ranks have agreed on."""
        self.whole = whole
        self.thread, self.state, self.guards = whole.thread, whole.state, whole.guards
        self.left, self.wanted = whole.left, whole.wanted
        self._kept, self._ends = whole._kept, whole._ends
        self._pending, self._swapped, self._patterns = whole._pending, whole._swapped, whole._patterns

    def inside(self, tape: Tape) -> Sweep:
        """Return a sweep of another tape, for an adjoint of this one to run: it shares the shadows."""
        return Sweep(tape, self)

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have ``callback(error)`` called when the sweep has visited all records (None) or stops with an error.

        Callbacks run in reverse order.
        """
        self._ends.append(callback)

    def has_shadow(self, region: Region) -> bool:
        """Return whether anything has been added to the region's storage yet; if not, its adjoint is zero."""
        return region.storage in self._shadows

    def has_any_shadow(self, regions: Iterable[Region]) -> bool:
        """Return whether anything has been added to the storage of one of these regions."""
        shadows = self._shadows
        for region in regions:
            if region.storage in shadows:
                return True
        return False

    def has_block(self, storage: Storage) -> bool:
        """Return whether anything has been added to a storage's adjoint."""
        return storage in self._shadows

    def nbytes(self) -> int:
        """Return the size of all shadows."""
        return sum(block.nbytes for block in list(self._shadows.values()))

    def note_shadows(self, note: Callable[[Storage], None]) -> Callable[[], None]:
        """Have ``note(storage)`` called for each new shadow, until the returned function is called."""
        if not isinstance(self._shadows, NotedShadows):
            shadows, sweep = NotedShadows(self._shadows), self
            while sweep is not None:  # those around this one share them
                sweep._shadows, sweep = shadows, sweep.around  # type: ignore[assignment]
        notes = self._shadows.notes  # type: ignore[attr-defined]
        notes.append(note)
        return lambda: notes.remove(note)

    def sizes(self) -> list[tuple[Storage, int]]:
        """Return the storages that have shadows, and their sizes."""
        return [(storage, block.nbytes) for storage, block in self.blocks()]

    def shadow(self, region: Region) -> np.ndarray:
        """Return the region's adjoint, in place; zeros at first use."""
        return region.view(self.block(region.storage))

    def shadow_again(self, region: Region) -> np.ndarray:
        """`shadow` for a region that many records share: the view is cached."""
        view = self._views.get(region)
        if view is None:
            view, storage = self.shadow(region), region.storage
            if not (storage.volatile or storage.packed):
                self._views[region] = view
                self._viewed.setdefault(storage, []).append(region)
        return view

    def shadows_again(self, regions: Iterable[Region]) -> list[np.ndarray] | None:
        """`shadow_again` of several regions; None unless all are cached, which those of packed storages never are."""
        try:
            return list(map(self._views.__getitem__, regions))
        except KeyError:
            return None

    def _forget_views(self, storage: Storage) -> None:
        for region in self._viewed.pop(storage, ()):
            del self._views[region]

    def block(self, storage: Storage) -> np.ndarray:
        """Return the adjoint of a whole storage, as bytes, in place; zeros at first use."""
        if storage.volatile and storage in self.guards:
            self.guards[storage]()
        block = self._shadows.get(storage)
        if block is None:
            block = self._shadows[storage] = self.new_block(storage)
        elif storage in self._lent:
            block = block.copy()
            self.adopt(storage, block)
        return block

    def new_block(self, storage: Storage) -> np.ndarray:
        """Allocate the adjoint of a storage. Bytes of zero are the number zero in each dtype of its regions."""
        return storage.blank(size_of_block(storage))

    def reading(self, region: Region) -> np.ndarray:
        """Return the region's adjoint, to be read and not to be kept."""
        block = self._shadows.get(region.storage)
        return self.shadow(region) if block is None or region.storage.volatile else region.view(block)

    def last(self, region: Region, created: Sequence[Storage]) -> np.ndarray | None:
        """Return the adjoint of memory that the operation created, to be read and not to be kept: no earlier record
        asks for it. None unless it is that of a whole storage, contiguous."""
        block = self._shadows.get(region.storage)
        if block is None or region.storage not in created or region.storage in self._kept:
            return None
        shadow = region.view(block)
        is_plain = region.is_all_ordinary() and shadow.flags.c_contiguous and shadow.flags.writeable
        return shadow if is_plain else None

    def begin_anew(self, region: Region, others: Sequence[Region]) -> np.ndarray | None:
        """Return a new, uninitialised shadow for an adjoint that sets all of it; None unless the region is a whole
        storage to which nothing has been added. ``others``: the regions whose shadows the adjoint takes."""
        storage = region.storage
        if storage in self._shadows or not region.is_all_ordinary():
            return None
        for other in others:
            if other.storage is storage and other is not region:
                return None
        block = np.empty(storage.nbytes, np.uint8)
        shadow = region.view(block)
        if not shadow.flags.forc:  # otherwise it has each element once
            return None
        self.adopt(storage, block)
        return shadow

    def end(self, region: Region) -> None:
        """End the adjoint of a storage that was passive before the operation: no earlier record asks for it."""
        if region.storage.volatile or region.storage.elsewhere:
            self.zero(region)  # others refer to the shadow
        else:
            self.forget(region.storage)

    def forget(self, storage: Storage) -> None:
        """Drop a storage's shadow, which is zero from here on."""
        self._shadows.pop(storage, None)
        self._forget_views(storage)
        self._lent.discard(storage)

    def blocks(self) -> list[tuple[Storage, np.ndarray]]:
        """Return the storages that have shadows, with these, as bytes."""
        return list(self._shadows.items())

    def storages(self) -> set[Storage]:
        """Return all storages that have a shadow."""
        return set(self._shadows)

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Use a given block of bytes as the adjoint of a storage."""
        self._shadows[storage] = block
        self._forget_views(storage)
        self._lent.discard(storage)

    def take(self, region: Region) -> np.ndarray | None:
        """Return a C-ordered copy of the adjoint of memory that the operation overwrote, and set it to zero there.

        None stands for zeros where nothing has been added to the storage.
        """
        if region.storage not in self._shadows:
            return None
        shadow = self.shadow(region)
        taken = shadow.copy()
        shadow[...] = 0
        return taken

    def add(self, region: Region, value: Any) -> None:
        """Add to the adjoint of memory that the operation read.

        The value has the region's shape (or broadcasts to it); the imaginary part is dropped where the region is real.
        Elements that the region names more than once (a broadcast array, sliding windows) get the sum.
        """
        if region.dtype.names is not None:
            for name in region.dtype.names:
                if carries_derivatives(region.dtype[name].base):
                    self.add(region.field(name), value[name])
            return
        shadow = self.shadow(region)
        if region.dtype.kind == "f" and np.iscomplexobj(value):
            value = np.real(value)
        if shadow.flags.forc or not may_repeat(shadow.shape, shadow.strides, shadow.itemsize):
            np.add(shadow, value, out=shadow, casting="same_kind")
        else:
            add_repeated(shadow, self._shadows[region.storage], np.broadcast_to(value, shadow.shape))

    def add_once(self, region: Region, value: np.ndarray, kept: np.ndarray) -> None:
        """`add` for a contiguous array that no other code holds, so that it may become the shadow itself, unless it is
        ``kept``."""
        storage = region.storage
        if (
            storage in self._shadows
            or region.offset
            or storage.nbytes != value.nbytes
            or value.dtype is not region.dtype
            or storage.packed
            or storage.volatile
            or storage.elsewhere
        ):
            self.add(region, value)
        else:
            self.adopt(storage, np.ndarray(storage.nbytes, np.uint8, value.copy() if value is kept else value))

    def begin(self, region: Region, value: np.ndarray) -> None:
        """`add` for a value that is not modified until the sweep ends: it may become the shadow itself if the region is
        a whole storage to which nothing has been added."""
        storage = region.storage
        if storage in self._shadows or not region.is_all_ordinary():
            self.add(region, value)
            return
        if region.lies_like(value) and storage_of(value) is None:  # tracked memory changes in a sweep
            self.adopt(storage, np.ndarray(storage.nbytes, np.uint8, value))
            self._lent.add(storage)
            return
        if np.can_cast(value.dtype, region.dtype, "same_kind"):
            block = np.empty(storage.nbytes, np.uint8)
            shadow = region.view(block)
            if shadow.flags.forc:  # each element is there once
                shadow[...] = value
                self.adopt(storage, block)
                return
        self.add(region, value)

    def zero(self, region: Region, key: Any = ...) -> None:
        """Set the adjoint of memory overwritten by a constant to zero (of ``region[key]`` only, where a key is
        given)."""
        if region.storage in self._shadows:
            self.shadow(region)[key] = 0

    def result(self, region: Region) -> np.ndarray:
        """Return the adjoint of an independent at its place on the tape: in place, if nothing will be added to it."""
        shadow = self.shadow(region)
        return shadow if region.storage in self._given_away else shadow.copy(order="K")

    def _last_of_all(self) -> set[Storage]:
        """Return the storages whose shadows are results without a copy: those declared independent, as a whole and
        once, before anything else was recorded."""
        watched = Counter(region.storage for region, _ in self.tape.watches.values())
        found = set()
        for record in self.tape.records:
            if not isinstance(record.adjoint, Watch):
                break
            region = record.adjoint.region
            storage = region.storage
            shared = storage.volatile or storage.packed or storage.elsewhere or watched[storage] > 1
            if region.nbytes == storage.nbytes and not shared:
                found.add(storage)
        return found

    def run(self) -> None:
        """Walk back over the tape, then restore the memory."""
        tape = self.tape
        self.state["watch results"] = {}
        self._kept = {region.storage for region in self.wanted}
        if self.around is None:
            self._given_away = self._last_of_all()
        if not tape.closed and not is_around(tape):
            error = TapeError(f"tape.gradient: the tape is still open in thread '{tape.thread_name}'; close it first")
            tape.refuse(error)
            raise error
        if tape.accesses is not None and tape.thread == get_ident():
            try:
                tape.tasks.settle(tape)
            except BaseException as problem:
                tape.refuse(problem)
                raise
        if tape.accesses is not None:
            error = TapeError(
                "tape.gradient: tasks that record on this tape have not ended; wait for their results first"
            )
            tape.refuse(error)
            raise error
        if not tape.sweep_lock.acquire(blocking=False):
            raise TapeError("tape.gradient: this tape is being swept already; compute one gradient at a time")
        scope = passively()
        try:
            self._begin()
            tape.begin_reading()
            for callback in tape.sweep_starts.values():
                callback(self)
            if not tape.sweep_starts and self.around is None:
                self.first = number_to_skip(tape)
            if tape.tasks is None or self.lanes is not None:
                self.walk(tape.records, len(tape.records), self.first)
            else:
                tape.tasks.sweep(self)
            for callback in reversed(self._ends):
                callback(None)
        except BaseException as error:
            for callback in reversed(self._ends):
                callback(error)
            raise
        finally:
            self._restore()
            self._pending.clear()
            if tape.budget is not None:
                tape.budget.end()
            tape.sweep_lock.release()
            actively(scope)
            self._ends.clear()  # they refer to the sweep, which holds the shadows
            self.guards.clear()
        self.results = self.found()
        if self.around is None:
            self.clear()

    def walk(self, records: Sequence[Any], position: int, begin: int = 0) -> None:
        """Walk back over the records from before ``position`` to ``begin``."""
        notes, single = self.tape.notes, self.lanes is None
        while position > begin:
            position -= 1
            record = records[position]
            adjoint = record.adjoint
            after = () if adjoint is None else adjoint.arrays_after
            if after:
                self.after = self._values_after(after, record.undo)
            if record.undo:
                self._defer(record.undo)
            if notes:
                self._verify(notes.get(id(record), ()), after)
            if adjoint is not None:
                if self._pending and adjoint.reads_memory:
                    self.put_all_back()
                if single:
                    adjoint(self)
                else:
                    self.apply(adjoint)
            for storage in record.created:
                if storage not in self._kept:
                    self.forget(storage)

    def found(self) -> list[np.ndarray]:
        """Return the adjoints of the requested independents."""
        results = self.state["watch results"]
        return [results[id(region)] for region in self.wanted]

    def apply(self, adjoint: Callable[[Any], None]) -> None:
        """Apply the adjoint of a record."""
        adjoint(self)

    def clear(self) -> None:
        """Drop all shadows, and what may refer to this sweep and so keep the tape alive."""
        self.state = {}
        self._shadows.clear()
        self._lent.clear()
        self._views.clear()
        self._viewed.clear()


def size_of_block(storage: Storage) -> int:
    """Return the size in bytes of the adjoint of a storage."""
    return storage.nbytes * SLOT if storage.packed else storage.nbytes


def lanes_of(walk: Any) -> Sequence[Any]:
    """Return the lanes of a sweep or push: those that have shadows (tangents); itself, if it has no lanes."""
    return (walk,) if walk.lanes is None else walk.lanes
