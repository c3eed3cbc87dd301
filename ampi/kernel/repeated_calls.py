"""Fast paths for calls that were seen before with the same arrays."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ampi import tape
from ampi.kernel import arguments
from ampi.kernel.call_record import CallRecord, finish
from ampi.memory import storages as memory
from ampi.memory.accesses import Accesses
from ampi.memory.extents import Extent

MAX_SAVED = 1 << 27  # bytes of kernels' values on a tape; beyond that adjoints run forward once more


class RepeatedCall:
    """A call outside tapes that was seen before.

    Its tracked arrays have the same addresses, its plain arrays the same kinds, and its numbers the same classes.

    Attributes
    ----------
    entry : callable
        The compiled code.
    """

    __slots__ = ("_integers", "_plain", "_plainly_written", "_written", "entry")

    def __init__(self, entry: Any, writes: Iterable[int], args: Sequence[Any]) -> None:
        self.entry = entry
        self._written = [(k, args[k]._storage) for k in writes if isinstance(args[k], memory.TrackedArray)]
        self._plainly_written = [k for k in writes if not isinstance(args[k], memory.TrackedArray)]
        self._plain = [(k, arguments.kind(value)) for k, value in enumerate(args) if type(value) is np.ndarray]
        self._integers = [k for k, value in enumerate(args) if type(value) is int]

    def fits(self, args: Sequence[Any]) -> bool:
        """Return whether a call is such a repetition, and may write its arrays without informing a tape."""
        for k, storage in self._written:
            if storage.needs or storage.swapped_by or storage.guard:
                return False
            if storage.tape is not None and storage.tape() is not None:
                return False
            if not args[k].flags.writeable:
                return False
        for k, kind in self._plain:
            if arguments.kind(args[k]) != kind:
                return False
        for k in self._plainly_written:
            if not is_free(args[k]):
                return False
        for k in self._integers:
            if arguments.is_large(args[k]):
                return False
        return True


REGION = itertools.repeat("_region")
"""For ``map(getattr, args, REGION, map(type, args))``: the region of each argument that has one, or else its class."""


def is_identified(value: Any) -> bool:
    """Return whether an argument determines the compiled code by its region (tracked arrays), or class and kind."""
    if isinstance(value, memory.TrackedArray):
        return getattr(value, "_region", None) is not None
    return type(value) is np.ndarray or isinstance(value, (int, float, complex, np.generic))


class RecordedAgain:
    """A recorded call that was seen before: all its arrays have the same addresses, and its numbers the same classes.

    It does what `recording.record` does, in the same order, without tests whose outcome cannot differ.  It keeps no
    array alive.

    Attributes
    ----------
    prepared : PreparedCall
    actives : int
        The number of storages that are active before the call.
    """

    __slots__ = (
        *("_accesses", "_entry", "_forward", "_integers", "_is_special", "_needed", "_needs", "_plain"),
        *("_room", "_several", "_stand_ins", "_written"),
        *("actives", "prepared"),
    )

    def __init__(self, prepared: Any, recording: tape.Tape, args: Sequence[Any]) -> None:
        contract = prepared.contract
        self.prepared = prepared
        self._forward = contract.forward
        if self._forward is None:
            self._entry = prepared.primal.entry
        else:
            self._entry = arguments.entry_point(self._forward, prepared.primal.types)
        self._room = has_room(recording)
        self.actives = len(prepared.on)
        self._written = [(k, memory.storage_of(args[k]), Extent(args[k])) for k in contract.writes]
        self._plain = [(k, _Seen(value)) for k, value in enumerate(args) if type(value) is np.ndarray]
        fixed = {k for k, seen in self._plain if seen.is_fixed}
        self._needs = [need for _, need in prepared.repeated]
        self._stand_ins = [(k, value) for k, value in enumerate(prepared.values) if value is not None]
        self._needed = [k for k in prepared.needed if k not in fixed]
        self._integers = [k for k, value in enumerate(args) if type(value) is int]
        self._several = contract.several
        self._is_special = bool(contract.after or contract.result_dtypes)
        self._accesses = Accesses(
            [memory.region_of(args[k]) for k, storage, _ in self._written if storage is not None],
            [(need.storage, need.extent) for _, need in prepared.repeated],
            (prepared.shadows, prepared.outputs),
        )

    @staticmethod
    def applies(prepared: Any, recording: tape.Tape, args: Sequence[Any]) -> bool:
        """Return whether a call, which has been prepared, can be recognised by its regions and classes."""
        contract = prepared.contract
        if not prepared.flat or prepared.guarded or len(args) != prepared.primal.count:
            return False
        if contract.disagreement is not None or contract.drawn or contract.scalars or contract.forms is not None:
            return False
        if contract.forward is None and prepared.primal.entry is None:
            return False
        if recording.tangents is not None or not recording.thread:  # nothing records on a `Bystander`
            return False
        for value in args:
            if isinstance(value, memory.TrackedArray):
                if not value.ndim or getattr(value, "_region", None) is None:
                    return False
            elif type(value) is np.ndarray:
                if memory.storage_of(value) is not None:
                    return False
            elif not isinstance(value, (float, int)) or callable(value):
                return False
        return True

    def fits(self, recording: tape.Tape, args: Sequence[Any]) -> bool:
        """Return whether a call with these regions and classes is such a repetition."""
        if recording.tangents is not None or recording.forward is not None:
            return False
        if (None if recording.walks else recording.kept_bytes < MAX_SAVED) is not self._room:
            return False
        prepared, reference, accesses = self.prepared, recording.reference, recording.accesses
        if accesses is None and not prepared.off:
            for storage in prepared.on:
                if storage.tape is not reference or storage.volatile or storage.guard:
                    return False
        elif not prepared.fits(reference, accesses):
            return False
        for k, storage, _ in self._written:
            if (storage is not None and storage.swapped_by) or not args[k].flags.writeable:
                return False
        for k, seen in self._plain:
            array = args[k]
            if (
                array is not seen.array()
                or memory.is_id_of_owner(id(array))  # it is tracked now
                or array.flags.num != seen.flags
                or array.shape != seen.shape
                or array.strides != seen.strides
                or array.dtype is not seen.dtype
            ) and not seen.is_at_same_place(array):
                return False
        for k in self._integers:
            if arguments.is_large(args[k]):
                return False
        return True

    def record(self, recording: tape.Tape, args: tuple[Any, ...]) -> Any:
        """Run and record the call."""
        prepared = self.prepared
        values = list(args) if prepared.active else []
        for k, stand_in in self._stand_ins:
            values[k] = stand_in
        reference = recording.reference
        if recording.accesses is not None:
            recording.accesses.repeat(self._accesses)
        for need in self._needs:
            if need.extent.listed is not reference:
                recording.need_again(need)
        for k, place in prepared.constants:
            values[k] = recording.constant(args[k], place)
        for k in self._needed:
            values[k] = recording.need(args[k])
        undo: list[tape.Undo] = []
        for k, storage, extent in self._written:
            if storage is not None and storage.needs:
                tape.save(recording, storage, args[k], extent, undo)
        saved: tuple[Any, ...] = ()
        try:
            if self._forward is None:
                result = self._entry(*args)
            else:
                entry = self._entry
                try:
                    found = self._forward(*map(arguments.plain, args)) if entry is None else entry(*args)
                except Exception as failure:
                    prepared.fail(args, failure)
                count = len(prepared.contract.result_dtypes)
                result = found[:count] if self._several else found[0] if count else None
                saved = found[count:]
        except BaseException as error:
            prepared.note_failure(recording, args, undo, error)
            raise
        if not prepared.active:
            if undo:
                recording.append(None, undo)
            return arguments.like(result, args)
        if saved or self._is_special:
            return finish(prepared, recording, args, values, result, saved, undo)
        reference = recording.reference
        for storage in prepared.activated:
            if storage.tape is not reference or recording.accesses is not None:
                recording.set_active(storage)
        record = CallRecord(prepared, values, undo)
        if recording.before_append is not None:
            recording.before_append()
        recording.append_record(record)
        return result


class _Seen:
    """A plain array, by which a call is recognised; ``is_fixed``: nothing can write to it, so no copy is needed.

    An array that owns its memory shares it with no other one, so its address does not matter.
    """

    __slots__ = ("array", "dtype", "flags", "is_fixed", "location", "shape", "strides")

    def __init__(self, array: np.ndarray) -> None:
        self.array = weakref.ref(array) if memory.is_surely_untracked(array) else _nothing
        self.flags = array.flags.num
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.location = arguments.location(array)
        self.is_fixed = self.array is not _nothing and not array.flags.writeable

    def is_at_same_place(self, array: np.ndarray) -> bool:
        """Return whether another plain array is at the same place, and unknown to tapes."""
        return not self.is_fixed and arguments.location(array) == self.location


def _nothing() -> None:
    return None


def is_on_tape(storage: memory.Storage) -> bool:
    """Return whether memory is active on a tape that is alive."""
    return storage.tape is not None and storage.tape() is not None


def is_free(array: np.ndarray) -> bool:
    """Return whether an array can be written without informing a tape."""
    storage = memory.storage_of(array)
    if storage is not None and (storage.needs or is_on_tape(storage) or storage.swapped_by or storage.guard):
        return False
    return bool(array.flags.writeable)


def has_room(recording: tape.Tape) -> bool | None:
    """Return whether a tape has room for the values that kernels save.

    None if the tape will also be walked forward, which takes the values from before the calls instead.
    """
    return None if recording.walks else recording.kept_bytes < MAX_SAVED
