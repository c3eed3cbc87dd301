"""Tangents of memory, and how they are pushed through an operation.

A record has one rule for both forms of forward mode: its adjoint's ``tangent(push)`` reads the tangents of what the
operation read and sets those of what it wrote.  `forward.ForwardTape` pushes and drops each record as soon as it is
complete, which takes twice the program's memory; `walks.walk` pushes all records of a closed tape, in the order of the
program, with memory as it was when they ran.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.locks import RLock
from ..base.program_lines import where_called
from ..errors import ActivityError
from ..memory.blocks import zeroed
from ..memory.extents import Extent
from ..memory.regions import SLOT
from ..memory.storages import Region, Storage, plain
from .records import name_of
from .undo import Undo

if TYPE_CHECKING:
    from .tape import Tape

new_blocks = RLock()  # tasks in other threads share blocks
_USUAL = np.dtype(np.float64), 0


class _Guarded(weakref.WeakKeyDictionary[Storage, np.ndarray]):
    """Blocks of tangents, some of which must be checked before each access."""

    def __init__(self, blocks: weakref.WeakKeyDictionary[Storage, np.ndarray]) -> None:
        super().__init__(blocks)
        self.checks: weakref.WeakKeyDictionary[Storage, Callable[[], None]] = weakref.WeakKeyDictionary()

    def get(self, storage: Storage, default: Any = None) -> Any:
        """Return the block of a storage after its check."""
        check = self.checks.get(storage)
        if check is not None:
            check()
        return super().get(storage, default)


class Push:
    """Tangents of memory.

    Attributes
    ----------
    tape : Tape
    state : dict
        Data of other packages.
    after : list of numpy.ndarray
        The values of the present record's ``arrays_after``, as they were after its operation.
    at_last : list of callable
        In a walk: called when all records have been passed.
    ahead, then : dict of list of callable
        In a walk: called before and after a record, by its index on the tape.
    ends : list of callable
        Called at the very end, the last one first, with the error that was raised or None.
    """

    lanes: Any = None  # in vector mode: those of each direction
    most = 0  # bytes; in vector mode
    pairs = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.at_last: list[Callable[[], None]] = []
        self.ahead: dict[int, list[Callable[[], None]]] = {}
        self.then: dict[int, list[Callable[[], None]]] = {}
        self.ends: list[Callable[[BaseException | None], None]] = []
        self.state: dict[Any, Any] = {}
        self.after: list[np.ndarray] = []
        self._blocks: weakref.WeakKeyDictionary[Storage, np.ndarray] = weakref.WeakKeyDictionary()
        # Dtype and offset of the first numbers in a storage, unless they are doubles at multiples of their size.
        self._unusual: weakref.WeakKeyDictionary[Storage, tuple[np.dtype, int]] = weakref.WeakKeyDictionary()

    @property
    def whole(self) -> Push:
        """The push of all directions to which this one belongs."""
        return self

    def share_blocks(self, whole: Push) -> None:
        """Use the same memory as another push, in another thread."""
        self._blocks, self._unusual, self.state = whole._blocks, whole._unusual, whole.state

    def like(self, tape: Tape) -> Push:
        """Return a push for another tape, with as many directions."""
        return Push(tape)

    @property
    def walks(self) -> bool:
        """True if this is a walk over the records of a closed tape."""
        return self.tape.forward is not self and self.tape.tangents is not self

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have ``callback(error)`` called at the very end, with the error that stopped the program or None; callbacks
        run in reverse order."""
        self.ends.append(callback)

    def finish(self, error: BaseException | None, refuse: Callable[[BaseException], None] | None = None) -> None:
        """Call the callbacks of `at_end`. An error in one of them is passed to ``refuse``, and then to the others."""
        ends, self.ends = self.ends, []
        raised: BaseException | None = None
        for end in reversed(ends):
            try:
                end(error)
            except Exception as problem:
                if error is None and refuse is not None:
                    refuse(problem)
                error = raised = problem
        if raised is not None:
            raise raised

    def dismantle(self) -> None:
        """Break reference cycles: in one, the tape would outlive its last reference with all that it keeps."""
        self.state, self.ahead, self.then, self.at_last = {}, {}, {}, []
        self._blocks = weakref.WeakKeyDictionary()  # drops the checks as well
        for lane in self.lanes or ():
            lane.dismantle()
        if self.lanes:
            self.lanes = ()  # they refer to this one
        self.tape = None  # type: ignore[assignment]

    def has_shadow(self, region: Region) -> bool:
        """Return whether a region's storage has a tangent; if not, it is zero."""
        return region.storage in self._blocks

    def has_block(self, storage: Storage) -> bool:
        """Return whether a storage has a tangent."""
        return storage in self._blocks

    def block(self, storage: Storage) -> np.ndarray:
        """Return the tangent of a whole storage, as bytes, in place; zeros at first use."""
        block = self._blocks.get(storage)
        if block is None:
            with new_blocks:
                block = self._blocks.get(storage)
                if block is None:
                    block = storage.blank(storage.nbytes * SLOT if storage.packed else storage.nbytes)
                    self._blocks[storage] = block
        return self._in_slots(storage, block) if storage.packed else block

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Use these bytes as the tangent of a storage."""
        self._blocks[storage] = block

    def guard(self, storage: Storage, check: Callable[[], None]) -> None:
        """Have ``check()`` called before each access to the tangent of a storage."""
        if not isinstance(self._blocks, _Guarded):
            self._blocks = _Guarded(self._blocks)
        self._blocks.checks[storage] = check

    def _in_slots(self, storage: Storage, block: np.ndarray) -> np.ndarray:
        """Return the block of a packed storage with a slot for each byte; numbers written so far are moved to their
        slots."""
        if block.size == storage.nbytes * SLOT:
            return block
        with new_blocks:
            block = self._blocks[storage]
            return block if block.size == storage.nbytes * SLOT else self._moved(storage, block)

    def _moved(self, storage: Storage, block: np.ndarray) -> np.ndarray:
        dtype, start = self._unusual.get(storage, _USUAL)
        slots = zeroed(storage.nbytes * SLOT)
        real = np.empty(0, dtype).real.dtype if dtype.names is None else None
        if real is None or real.kind != "f":
            raise no_tangent("bytes of a structured array")
        start %= real.itemsize
        whole = (storage.nbytes - start) // real.itemsize * real.itemsize
        numbers = block[start : start + whole].view(real)
        slots.view(np.float64)[start : start + whole : real.itemsize] = numbers
        self._blocks[storage] = slots
        return slots

    def shadow(self, region: Region) -> np.ndarray:
        """Return the tangent of a region, in place; zeros at first use."""
        storage = region.storage
        block = self._blocks.get(storage)
        if block is None:
            block = self.block(storage)
            self._note_numbers(region)
        elif storage.packed:
            block = self._in_slots(storage, block)
        return region.view(block)

    def _note_numbers(self, region: Region) -> None:
        """Note the dtype and offset of the first numbers in a storage."""
        if region.dtype.char != "d" or region.offset & 7:
            self._unusual[region.storage] = region.dtype, region.offset

    shadow_again = reading = shadow

    def get(self, region: Region) -> np.ndarray:
        """Return the tangent of a region, to be read at once and not to be modified."""
        block = self._blocks.get(region.storage)
        if block is not None:
            return region.view(self._in_slots(region.storage, block) if region.storage.packed else block)
        zero = np.zeros((), region.dtype)
        return np.broadcast_to(zero, region.shape) if region.dtype.names is None else self.shadow(region)

    def dtype(self, region: Region) -> np.dtype:
        """Return the dtype of a region's tangent."""
        return _USUAL[0] if region.storage.packed else region.dtype

    def put(self, region: Region, value: Any, mask: Any = True) -> None:
        """Set the tangent of memory that was overwritten (where a mask is true); the value is broadcast.

        The imaginary part is dropped where the region is real.
        """
        if region.dtype.kind == "f" and np.iscomplexobj(value):
            value = np.real(value)
        if mask is True:
            self.shadow(region)[...] = value
        else:
            np.copyto(self.shadow(region), value, "unsafe", np.broadcast_to(mask, region.shape))

    def zero(self, region: Region, key: Any = ...) -> None:
        """Set the tangent of memory overwritten by a constant to zero; with a key, that of ``region[key]`` only."""
        if region.storage in self._blocks:
            self.shadow(region)[key] = 0

    def add(self, region: Region, value: Any) -> None:
        """Add to the tangent."""
        shadow = self.shadow(region)
        np.add(shadow, np.real(value) if region.dtype.kind == "f" else value, out=shadow, casting="same_kind")

    def value(self, array: np.ndarray) -> np.ndarray:
        """Return the values that an array (from `Tape.need`) had when the operation ran: they are in memory."""
        return array

    def put_back(self, storages: Any) -> None:
        """Do nothing: memory is as it was when the operation ran."""

    def push(self, adjoint: Any, undos: Sequence[Undo]) -> None:
        """Push tangents through one operation. Memory is as after it, before and after the call."""
        rule = tangent_of(adjoint)
        wanted = adjoint.arrays_after
        if wanted:
            extents = [undo.extent for undo in undos]
            self.after = [
                plain(a).copy(order="K") if any(e.overlaps(Extent(a)) for e in extents) else plain(a) for a in wanted
            ]
        for undo in reversed(undos):
            undo.swap_values()
        try:
            with np.errstate(all="ignore"):
                self.apply(adjoint, rule)
        finally:
            for undo in undos:
                undo.swap_values()

    def apply(self, adjoint: Any, rule: Callable[[Any], None]) -> None:
        """Call the tangent rule of an operation."""
        rule(self)


def tangent_of(adjoint: Any) -> Callable[[Push], None]:
    """Return the tangent rule of an adjoint."""
    rule = adjoint.tangent
    if rule is None:
        raise no_tangent(f"this operation ({name_of(adjoint)})")
    return rule


def no_tangent(what: str) -> ActivityError:
    """Return the error for an operation that forward mode does not cover."""
    return ActivityError(
        f"{where_called()}: {what} has no tangent yet, so ampi.jvp and tape.tangent cannot go through it; use "
        "ampi.vjp, or ampi.value(x) if it is a constant"
    )


def not_kept(what: str) -> ActivityError:
    """Return the error for an operation that can be walked only on tapes made with ``tangents=True``."""
    return ActivityError(
        f"{where_called()}: {what}: this tape keeps the values for reverse mode only; make it with "
        "ampi.Tape(tangents=True), or use ampi.linearize or ampi.jvp"
    )
