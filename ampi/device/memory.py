"""Device memory that carries derivatives: storages, regions, needed values, and the undo log.

A shadow is a block on the device as well.  Old values are saved on the device, or on the host if the tape has a budget,
which counts them and may write them to a file.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import ActivityError
from ..memory.extents import Extent, array_at
from ..memory.regions import Region
from ..memory.storages import Storage
from ..tape import Need, Record, Undo, Zero, open_tapes, opened
from ..tape.budget import UndoInFile
from ..tape.elsewhere import lost
from ..tape.recording import is_passive, would_lose
from ..tape.replays import step_began
from ..tape.second import PairUndo
from ..tape.undo import needs_lock, refuse_swapped


class Memory:
    """An array in the memory of a device that is not tracked."""

    __slots__ = ("__weakref__", "address", "device", "dtype", "owner", "shape", "strides")

    def __init__(
        self, device: Any, address: int, owner: Any, shape: Sequence[int], strides: Sequence[int] | None, dtype: Any
    ) -> None:
        self.device, self.address, self.owner = device, address, owner
        self.shape, self.dtype = tuple(shape), np.dtype(dtype)
        self.strides = contiguous(self.shape, self.dtype.itemsize) if strides is None else tuple(strides)

    @classmethod
    def make(cls, device: Any, shape: Sequence[int], dtype: Any, strides: Sequence[int] | None = None) -> Any:
        """Return a new array without values, contiguous in some order of its axes."""
        dtype = np.dtype(dtype)
        address, owner = device.empty(math.prod(shape) * dtype.itemsize)
        return cls(device, address, owner, shape, strides, dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return self.size * self.dtype.itemsize

    def interface(self) -> dict[str, Any]:
        """Return the array interface that other packages know."""
        return {
            "shape": self.shape,
            "strides": None if self.is_contiguous() else self.strides,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.address, False),
            "version": 3,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface()

    def is_contiguous(self) -> bool:
        """Return whether elements lie in C order without gaps."""
        return self.strides == contiguous(self.shape, self.dtype.itemsize) or not self.size

    def sketch(self) -> np.ndarray:
        """Return an array at the same address, for tests of overlap and the like: it must never be read."""
        return array_at(self.address, self.shape, self.strides, self.dtype)

    def part(self, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Memory:
        """Return an array in the same block."""
        return Memory(self.device, self.address + offset, self.owner, shape, strides, dtype)

    def bare(self) -> Memory:
        """Return the same array, not tracked; it keeps the block alive."""
        return Memory(self.device, self.address, self.owner, self.shape, self.strides, self.dtype)

    def like(self, view: np.ndarray) -> Memory:
        """Return the array in this block that a view of `sketch` describes."""
        address = view.__array_interface__["data"][0] if view.size else self.address
        return self.part(address - self.address, view.shape, view.strides, view.dtype)

    def in_three_axes(self, shape: Sequence[int]) -> Memory:
        """Return the same elements with three axes."""
        if self.ndim > 3 and not self.is_contiguous():
            return Memory.copy(self).in_three_axes(shape)
        view = self.sketch()
        return self.like(view.reshape(shape) if self.ndim > 3 else view[(None,) * (3 - self.ndim)])

    def new_like(self, values: np.ndarray | None = None) -> Memory:
        """Return a new array of this shape."""
        made: Memory = Memory.make(self.device, self.shape, self.dtype)
        if values is not None:
            made.device.write(made, values)
        return made

    def copy(self) -> Memory:
        """Return a copy on the device."""
        made = self.new_like()
        self.device.copy(made, self)
        return made

    def to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        return self.device.read(self)

    def any(self) -> bool:
        """Return whether an element is not zero."""
        return bool(self.to_host().any())

    def fill(self, value: Any) -> None:
        """Set all elements to a number."""
        self.device.write(self, value)

    def take(self, source: Any) -> None:
        """Copy from an array on the device or on the host."""
        if isinstance(source, Memory):
            self.device.copy(self, source)
        else:
            self.device.write(self, source)

    def repeats_elements(self) -> bool:
        """Return whether several indices stand for the same element, as in an array that was broadcast."""
        return any(stride == 0 and n > 1 for n, stride in zip(self.shape, self.strides))

    def add(self, source: Any) -> None:
        """Add an array on the device or on the host; to an element with several indices, the sum over these."""
        if self.repeats_elements():
            axes = tuple(k for k, stride in enumerate(self.strides) if stride == 0)
            values = source.to_host() if isinstance(source, Memory) else np.broadcast_to(source, self.shape)
            once = tuple(slice(1) if k in axes else slice(None) for k in range(self.ndim))
            self.like(self.sketch()[once]).add(values.sum(axis=axes, keepdims=True))
            return
        self.device.add(self, source if isinstance(source, Memory) else self.new_like(source))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set elements, as sweeps set parts of shadows to zero."""
        (self if key is ... else self.like(self.sketch()[key])).fill(value)


def contiguous(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the strides of an array in C order."""
    strides, step = [], itemsize
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


class DeviceStorage(Storage):
    """A block of a device's memory that carries derivatives."""

    __slots__ = ("device", "owner")
    is_apart = True

    def __init__(self, device: Any, address: int, nbytes: int, owner: Any = None) -> None:
        super().__init__(address, nbytes)
        self.device = device
        self.owner = owner  # keeps memory of another package alive: no other array may get its address
        self.guard = 0  # the host cannot read it to check it

    def blank(self, nbytes: int) -> Any:
        """Return a block of zeros on the device."""
        block = Memory.make(self.device, (nbytes,), np.uint8)
        block.fill(0)
        return block


class DeviceRegion(Region):
    """The place of an array in its storage on a device."""

    __slots__ = ()

    def __init__(self, storage: Storage, memory: Memory) -> None:
        self.storage = storage
        self.offset = memory.address - storage.address
        self.shape, self.strides, self.dtype = memory.shape, memory.strides, memory.dtype

    def view(self, block: Any) -> Any:
        """View this region in a block of the storage's layout."""
        return block.part(self.offset, self.shape, self.strides, self.dtype)


class DeviceUndo(Undo):
    """Overwritten values of a device: on the device, or on the host."""

    __slots__ = ()

    def __init__(self, storage: Storage, view: Memory, extent: Extent, on_host: bool) -> None:
        self.storage, self.view, self.extent, self.key = storage, view, extent, None  # type: ignore[assignment]
        self.saved = view.to_host() if on_host else view.copy()  # type: ignore[assignment]

    def _present(self) -> Any:
        return self.view.copy() if isinstance(self.saved, Memory) else self.view.to_host()  # type: ignore[attr-defined]

    def put_back(self) -> None:
        """Restore the saved values."""
        self.view.take(self.saved)

    def again(self) -> Undo:
        """Return an undo with the present values."""
        return DeviceUndo(self.storage, self.view, self.extent, True)  # type: ignore[arg-type]

    def holds(self, view: np.ndarray, extent: Extent) -> None:
        """Return None: the host has no view of the values."""


class DeviceUndoInFile(UndoInFile):
    """Overwritten values of a device in a file."""

    __slots__ = ()

    def _present(self) -> Any:
        return self.view.to_host()  # type: ignore[attr-defined]

    put_back = DeviceUndo.put_back
    again = DeviceUndo.again  # type: ignore[assignment]
    holds = DeviceUndo.holds


DeviceUndo.filed = DeviceUndoInFile


class DevicePairUndo(PairUndo):
    """Overwritten values of a device and their tangents, in second order; all are on the device."""

    __slots__ = ()
    region_of = DeviceRegion

    def _present(self) -> Any:
        return self.view.copy()

    def _copied(self, tangent: Any) -> Any:
        return tangent.copy()

    def _put_back_tangent(self, place: Any, tangent: Any) -> None:
        place.take(tangent)

    put_back = DeviceUndo.put_back
    holds = DeviceUndo.holds


def _undo_of(tape: Any, storage: Storage, array: Any, extent: Extent) -> Undo:
    """Return the undo of a write that is about to be made."""
    view = array.bare()
    if tape.tangents is None or tape.sweeping:
        return DeviceUndo(storage, view, extent, tape.budget is not None)
    saved = DevicePairUndo(storage, view, extent, None, tape.tangents)
    tape.undone_bytes += saved.nbytes_of_tangents()
    return saved


_adopted: weakref.WeakValueDictionary[int, DeviceStorage] = weakref.WeakValueDictionary()  # by address


def storage_for(device: Any, address: int, nbytes: int, is_new: bool, owner: Any = None) -> DeviceStorage:
    """Return the storage of a block; memory of another package may have one already."""
    if is_new:
        return DeviceStorage(device, address, nbytes)
    for storage in list(_adopted.values()):
        if storage.address <= address and address + nbytes <= storage.address + storage.nbytes:
            return storage
        if storage.address < address + nbytes and address < storage.address + storage.nbytes:
            raise ActivityError(
                f"{where_called()}: this array overlaps another one on the device, for which "
                "ampi.cuda.as_cuda_array was called before; call it for the whole array, and slice the result"
            )
    storage = _adopted[address] = DeviceStorage(device, address, nbytes, owner)
    return storage


def is_active(tape: Any, array: Any) -> bool:
    """Return whether an array on a device carries derivatives on a tape; raise an error if they would be lost."""
    reference = array.storage.tape
    if tape is not None and tape.accesses is not None:
        raise ActivityError(
            f"{where_called()}: an array on a device is used while tasks record on this tape, which is not "
            "differentiated; wait for the tasks first"
        )
    if reference is None or tape is None or reference is tape.reference:
        return reference is not None and tape is not None
    other = reference()
    in_step = tape.of_step and array.storage not in state_of_step.get()
    if in_step and (reference in tape.siblings or (other is not None and not other.closed)):
        raise ActivityError(
            f"{where_called()}: a step of ampi.timeloop uses an array on a device that carries derivatives, was made "
            "before the step and is not in the state; add it to the state, or keep it on the host: "
            "ampi.cuda.to_device(x) in the step"
        )
    if other is not None and not other.closed and would_lose(other):
        raise lost(array, other)
    return False


def need(tape: Any, array: Any) -> None:
    """Register that a record needs the present values of an array."""
    storage, view = array.storage, array.sketch()
    if storage.swapped_by:
        refuse_swapped(storage, view)
    tape.need_again(Need(storage, view))


def keep(array: Any) -> list[Undo]:
    """Save the values of an array that tapes need, since they may be overwritten."""
    storage = array.storage
    undo: list[Undo] = []
    if storage.swapped_by:
        refuse_swapped(storage, array.sketch())
    if storage.needs:
        with needs_lock:
            _save(storage, array, undo)
    return undo


state_of_step: ContextVar[frozenset[Storage]] = ContextVar("ampi_state_of_step", default=frozenset())
"""In a step of `ampi.timeloop`: the memory of the arrays on a device in its state."""


def release(array: Any) -> None:
    """Save all values that tapes need of an array's memory, and make it constant from now on."""
    storage, tape = array.storage, opened()
    whole = type(array)(array.device, storage.address, array.owner, (storage.nbytes,), None, np.uint8)
    whole.storage = storage
    undo = keep(whole)
    reference = storage.tape
    active = None if reference is None else reference()
    zero = None if active is None or active.closed else Zero([DeviceRegion(storage, whole)])
    if zero is not None and active is not tape:
        active.append_unobserved(Record(zero, (), ()))
        zero = None
    storage.tape = None
    if undo or zero:
        append(tape, zero, undo)


def overwrite(array: Any) -> list[Undo]:
    """Save the values of an array that tapes need, before they are overwritten; `ampi.tape.overwrite` for a device."""
    storage, tape = array.storage, opened()
    if tape is not None and tape.accesses is not None:
        raise ActivityError(
            f"{where_called()}: an array on a device is written while tasks record on this tape, which is not "
            "differentiated; wait for them first"
        )
    began = step_began()
    if began is not None and open_tapes and storage.serial < began and storage not in state_of_step.get():
        raise ActivityError(
            f"{where_called()}: a step of ampi.timeloop writes to an array on a device that was made before the step "
            "and is not in the state, so that its old values are not restored for the adjoint; add it to the state, or "
            "make it in the step, with ampi.cuda.to_device(x) or ampi.cuda.device_array(...)"
        )
    undo = keep(array)
    if not (open_tapes and is_passive()):
        return undo
    inner, reference = opened(), storage.tape
    tape = None if reference is None else reference()
    zero = None if tape is None or tape.closed else Zero([DeviceRegion(storage, array)])
    if zero is not None and tape is not inner:
        tape.append_unobserved(Record(zero, (), ()))
        zero = None
    if inner is not None and (undo or zero):
        append(inner, zero, undo)
    return []


def _save(storage: Storage, array: Any, undo: list[Undo]) -> None:
    extent = Extent(array.sketch())
    inner = opened()
    for reference, needs in list(storage.needs.items()):
        tape = reference()
        if tape is None:
            del storage.needs[reference]
            continue
        if not needs.meets(extent):
            continue
        saved = _undo_of(tape, storage, array, extent)
        tape.saved_bytes += saved.saved.nbytes
        if tape.budget is not None:
            tape.budget.note_undo(saved)
        needs.drop(extent)
        if not needs and needs.is_empty():
            del storage.needs[reference]
        if inner is not None and reference is inner.reference:
            undo.append(saved)
        else:
            tape.append_unobserved(Record(None, [saved], ()))


def append(tape: Any, adjoint: Any, undo: Sequence[Undo], created: Sequence[Storage] = ()) -> None:
    """Append the record of an operation that has just run."""
    if tape.before_append is not None:
        tape.before_append()
    tape.append_record(Record(adjoint, undo, created))
