"""Arrays on a device, and differentiable copies between host and device.

The names are those of ``numba.cuda``: `to_device`, `device_array`, `copy_to_host` and `copy_to_device`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ..arrays import array as _arrays  # noqa: F401 (the class of copies on the host)
from ..base.locks import RLock
from ..base.program_lines import where_called
from ..errors import ActivityError, KernelError, TapeError
from ..memory.extents import array_at, bounds_of
from ..memory.regions import Region
from ..memory.storages import carries_derivatives, plain, region_of, storage_of, tracked
from ..tape import BaseAdjoint, Zero, recording
from ..tape import overwrite as overwrite_host
from ..tape.apart import is_apart
from ..tape.sweep import lanes_of
from .backends import device
from .memory import DeviceRegion, Memory, append, is_active, keep, overwrite, storage_for
from .methods import Methods, arithmetic

_announcing = RLock()


class DeviceArray(Methods, Memory):
    """An array on a device, as returned by `ampi.cuda.to_device` and `ampi.cuda.device_array`.

    CUDA kernels accept it, functions of NumPy compute with it on the device (on a GPU by CuPy), and it can be copied to
    and from the host.  Slices (``d[1:-1]``) are arrays on the device, and can be assigned to; reading an element
    (``d[0]``) copies it to the host.  While a tape records, all of this is differentiated.
    """

    __slots__ = ("storage",)
    storage: Any
    at_first: list[Callable[[], None]] = []  # called when the first array is made

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("shape", "dtype", "strides") and hasattr(self, "storage"):
            raise AttributeError(
                f"the {name} of an array on a device cannot be set; write d = d.reshape(shape), or d = d.astype(dtype)"
            )
        object.__setattr__(self, name, value)

    @classmethod
    def new(cls, shape: Any, dtype: Any, strides: Sequence[int] | None = None) -> DeviceArray:
        """Return a new array on the device."""
        shape = tuple(map(operator.index, shape)) if isinstance(shape, (tuple, list)) else (operator.index(shape),)
        made: DeviceArray = cls.make(device(), shape, dtype, strides)
        made.storage = storage_for(made.device, made.address, made.nbytes, True)
        made.announce()
        return made

    @classmethod
    def over(cls, memory: Memory, is_new: bool, owner: Any = None) -> DeviceArray:
        """Return the tracked array with this memory, which is new, or another package's."""
        made = cls(memory.device, memory.address, memory.owner, memory.shape, memory.strides, memory.dtype)
        low, high = bounds_of(made.sketch()) if made.size else (made.address, made.address)
        made.storage = storage_for(made.device, low, high - low, is_new, owner)
        made.announce()
        return made

    def region(self) -> DeviceRegion:
        """Return its place in its storage."""
        return ArrayRegion(self.storage, self)

    def is_active_on(self, tape: Any) -> bool:
        """Return whether it carries derivatives on a tape; raise an error if another tape would lose them."""
        return tape is not None and carries_derivatives(self.dtype) and is_active(tape, self)

    def copied(self) -> DeviceArray:
        """Return a copy on the device, which is recorded."""
        return to_device(self)

    def passive(self) -> DeviceArray:
        """Return a copy on the device that carries no derivatives."""
        return DeviceArray.over(Memory.copy(self), True)

    @classmethod
    def announce(cls) -> None:
        """Tell other modules that arrays on a device exist."""
        if cls.at_first:
            with _announcing:  # an array that another thread makes meanwhile waits for its methods
                while cls.at_first:
                    first = cls.at_first[0]
                    first()
                    cls.at_first.remove(first)

    def part(self, offset: int, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> DeviceArray:
        """Return an array in the same block."""
        made = type(self)(self.device, self.address + offset, self.owner, shape, strides, dtype)
        made.storage = self.storage
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if not sys._getframe(1).f_globals.get("__name__", "").startswith("ampi."):
            self._hand_out()
        return self.interface()

    def _hand_out(self) -> None:
        """Prepare for other code to use the memory: save needed values, and raise an error for active ones."""
        tape = recording()
        if is_active(tape, self):
            raise ActivityError(
                f"{where_called()}: an array on a device that carries derivatives is passed to another package, "
                "where they would be lost; compute with functions of ampi.numpy, with the other array as "
                "ampi.cuda.as_cuda_array(c); write d.copy_to_host(), or `with ampi.passive():` if a constant is meant"
            )
        if self.storage.needs:
            undo = keep(self)
            if undo and tape is not None:
                append(tape, None, undo)

    def __reduce__(self) -> NoReturn:
        raise KernelError(
            f"{where_called()}: an array on a device cannot be copied by the module copy, or pickled; write "
            "d.copy_to_host(), or ampi.cuda.to_device(d) for a copy on the device"
        )

    def __repr__(self) -> str:
        return f"<ampi array on a device: shape {self.shape}, dtype {self.dtype}>"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d array")
        return self.shape[0]

    # ------------------------------------------------------------------------------------------------ views

    def __getitem__(self, key: Any) -> Any:
        """Return a part as an array on the device, or a single element as a number on the host."""
        if has_arrays(key):
            return arithmetic[0].gather(self, key)
        view = self._part(key)
        is_element = not view.shape and key is not Ellipsis and not (isinstance(key, tuple) and Ellipsis in key)
        return view.copy_to_host()[()] if is_element else view

    def _part(self, key: Any) -> DeviceArray:
        key = key if isinstance(key, tuple) else (key,)
        if not any(item is Ellipsis for item in key):
            key = (*key, Ellipsis)  # without it NumPy would read an element
        return self.like(self.sketch()[key])  # type: ignore[return-value]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Copy an array, or a number, from the device or the host."""
        arithmetic[0].assign(self, key, value)

    def reshape(self, *shape: Any, order: str = "C") -> DeviceArray:
        """Return the same elements in another shape."""
        shape = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return np.reshape(self, shape, order)  # type: ignore[return-value,call-overload]

    def ravel(self, order: str = "C") -> DeviceArray:
        """Return the same elements with one axis."""
        return np.ravel(self, order)  # type: ignore[return-value,call-overload]

    def transpose(self, *axes: Any) -> DeviceArray:
        """Return the same elements with axes in another order."""
        return self.like(self.sketch().transpose(*axes))  # type: ignore[return-value]

    @property
    def T(self) -> DeviceArray:
        """The transposed array."""
        return self.transpose()

    @property
    def flags(self) -> Any:
        """NumPy's flags of an array of this layout."""
        return self.sketch().flags

    def is_c_contiguous(self) -> bool:
        """Return whether the elements are in C order without gaps."""
        return bool(self.sketch().flags.c_contiguous)

    def is_f_contiguous(self) -> bool:
        """Return whether the elements are in Fortran order without gaps."""
        return bool(self.sketch().flags.f_contiguous)

    # ------------------------------------------------------------------------------------------------ copies

    def copy_to_host(self, ary: Any = None, stream: Any = 0) -> Any:
        """Return a copy on the host, or copy into ``ary``, an array of this shape made with `ampi.numpy`."""
        if ary is None:
            ary = tracked(np.empty(self.shape, self.dtype))
        transfer(ary, self)
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Copy an array of this shape into this one, from the host or from the device."""
        transfer(self, ary)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        self.require_constant("numpy.asarray()")
        values = self.to_host()
        return values if dtype is None else values.astype(dtype)

    def require_constant(self, what: str) -> None:
        """Raise an error if the array carries derivatives, which a call would lose."""
        if is_active(recording(), self):
            raise ActivityError(
                f"{where_called()}: {what} of an array on a device drops its derivative; write .copy_to_host()"
            )

    def __dlpack_device__(self) -> tuple[int, int]:
        if self.device.is_gpu and not self.device.is_simulated:
            return 2, self.device.cuda.get_current_device().id
        return 1, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        self.require_constant("DLPack's view")
        if self.device.is_gpu and not self.device.is_simulated:
            raise KernelError(
                f"{where_called()}: an array on a GPU cannot be passed on by DLPack; use a function that reads its "
                "__cuda_array_interface__, such as torch.as_tensor or cupy.asarray"
            )
        return array_at(self.address, self.shape, self.strides, self.dtype).__dlpack__(**keywords)

    get = copy_to_host

    def item(self) -> Any:
        """Return the only element as a number."""
        return self._number("item()").item()

    def __float__(self) -> float:
        return float(self._number("float()"))

    def __int__(self) -> int:
        return int(self._number("int()"))

    def __complex__(self) -> complex:
        return complex(self._number("complex()"))

    def __index__(self) -> int:
        return operator.index(self._number("an index"))

    def __bool__(self) -> bool:
        return bool(self.to_host())  # a decision, which has no derivative

    def _number(self, what: str) -> Any:
        self.require_constant(what)
        return self.to_host()


# ------------------------------------------------------------------------------------------------------ makers


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> DeviceArray:
    """Copy an array to the device.

    Parameters
    ----------
    obj : array_like
        An array on the host, or on a device.
    stream : optional
        Ignored: a copy is complete when the call returns.
    copy : bool, optional
        If False, the new array is not initialised.
    to : DeviceArray, optional
        The array to copy into.
    """
    if isinstance(obj, DeviceArray) or (hasattr(obj, "__cuda_array_interface__") and not isinstance(obj, np.ndarray)):
        source: Any = as_cuda_array(obj)
        order = None
    else:
        source = obj if isinstance(obj, np.ndarray) else np.asarray(obj)
        order = source.strides if source.flags.f_contiguous and not source.flags.c_contiguous else None
    if source.dtype.hasobject:
        raise KernelError(f"{where_called()}: ampi.cuda.to_device() cannot copy an array of Python objects")
    made = DeviceArray.new(source.shape, source.dtype, order) if to is None else to
    if copy:
        transfer(made, source, is_new=to is None)
    return made


def device_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0) -> Any:
    """Return a new array on the device, not initialised."""
    shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    if strides is None and order == "F":
        strides = np.empty(shape, dtype, order="F").strides
    return DeviceArray.new(shape, dtype, strides)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceArray:
    """Return a new array on the device with the shape, dtype and order of another one, not initialised."""
    order = "F" if ary.flags.f_contiguous and not ary.flags.c_contiguous else "C"
    return device_array(tuple(ary.shape), ary.dtype, order=order)


def foreign(array: Any) -> Memory:
    """Return an array of another package on the device, whose derivatives are not tracked."""
    one = device()
    one.adopt(array)
    interface = array.__cuda_array_interface__
    dtype = np.dtype(interface["typestr"])
    if dtype.kind == "V":
        dtype = np.dtype(interface["descr"])
    return Memory(one, interface["data"][0], array, interface["shape"], interface.get("strides"), dtype)


def has_arrays(key: Any) -> bool:
    """Return whether an index has arrays, lists or masks."""
    simple = (slice, int, np.integer)
    return any(
        not (item is None or item is Ellipsis or (isinstance(item, simple) and not isinstance(item, bool)))
        for item in (key if isinstance(key, tuple) else (key,))
    )


def as_cuda_array(obj: Any, sync: bool = True) -> DeviceArray:
    """Return an array on the device that shares memory with an array of CuPy, PyTorch, JAX or numba-cuda.

    Its derivatives are tracked, as those of arrays from `to_device` are.  Pass whole arrays, and slice the result.
    """
    if isinstance(obj, DeviceArray):
        return obj
    interface = getattr(obj, "__cuda_array_interface__", None)
    if interface is None:
        raise KernelError(
            f"{where_called()}: ampi.cuda.as_cuda_array() of a {type(obj).__name__}, which is not on a device; copy it "
            "there: ampi.cuda.to_device(x)"
        )
    return DeviceArray.over(foreign(obj), False, obj)


def from_dlpack(obj: Any) -> Any:
    """Return an array that shares the memory of an object that supports DLPack.

    It is an `ampi.ndarray` for memory of the host, and an array on the device otherwise.
    """
    if hasattr(obj, "__cuda_array_interface__") and not isinstance(obj, np.ndarray):
        return as_cuda_array(obj)
    kind = obj.__dlpack_device__()[0] if hasattr(obj, "__dlpack_device__") else 1
    if int(kind) not in (1, 3):
        raise KernelError(
            f"{where_called()}: ampi.cuda.from_dlpack() of a {type(obj).__name__}, whose memory is neither on the "
            f"host nor on a CUDA device (DLPack's device type is {int(kind)}); copy it to the host"
        )
    return tracked(np.from_dlpack(obj))


# ------------------------------------------------------------------------------------------------------ transfers


def transfer(target: Any, source: Any, is_new: bool = False) -> None:
    """Copy an array or a number; the target and the source may each be on the host or on the device."""
    if hasattr(source, "__cuda_array_interface__") and not isinstance(source, (np.ndarray, Memory)):
        source = as_cuda_array(source)
    if not isinstance(source, (np.ndarray, DeviceArray)):
        source = np.asarray(source)
    if not isinstance(target, (np.ndarray, DeviceArray)):
        raise KernelError(
            f"{where_called()}: an array on a device cannot be copied into a {type(target).__name__}; write "
            "x = d.copy_to_host()"
        )
    if source.shape != target.shape and source.size != 1:
        raise KernelError(
            f"{where_called()}: an array of shape {source.shape} is copied into one of shape {target.shape}; the "
            "shapes must be equal"
        )
    if not np.can_cast(source.dtype, target.dtype, "same_kind"):
        raise KernelError(
            f"{where_called()}: an array of dtype {source.dtype} is copied into one of dtype {target.dtype}; convert "
            "it on the host: x.astype(...)"
        )
    tape = recording()
    active = tape is not None and carries_derivatives(source.dtype) and _is_active(tape, source)
    if active and isinstance(target, np.ndarray) and storage_of(target) is None:
        raise ActivityError(
            f"{where_called()}: the derivative of an array on a device would be lost in a plain NumPy array; write "
            "x = d.copy_to_host(), or make the array with ampi.numpy"
        )
    if active and not carries_derivatives(target.dtype):
        active = False
    was_active = tape is not None and carries_derivatives(target.dtype) and _is_active(tape, target)
    undo = overwrite(target) if isinstance(target, DeviceArray) else overwrite_host(target)
    _move(target, source)
    if tape is None or not (active or was_active or undo):
        return
    adjoint: Any = None
    if active:
        adjoint = Transfer(region(target), region(source))
        if isinstance(target, DeviceArray):
            tape.set_active(target.storage)
        else:
            tape.activate(target)
    elif was_active:
        adjoint = Zero([region(target)])
    append(tape, adjoint, undo, (target.storage,) if is_new else ())


def _is_active(tape: Any, array: Any) -> bool:
    return is_active(tape, array) if isinstance(array, DeviceArray) else tape.is_active(array)


def region(array: Any) -> Region:
    """Return the place of an array on the host or a device in its storage."""
    return array.region() if isinstance(array, DeviceArray) else region_of(array)


def _move(target: Any, source: Any) -> None:
    """Copy values; a single one is broadcast."""
    if isinstance(target, np.ndarray):
        values = source.to_host() if isinstance(source, Memory) else plain(source)
        plain(target)[...] = values if values.shape == target.shape else values.reshape(())
        return
    if isinstance(source, Memory):
        if source.shape == target.shape and source.dtype == target.dtype:
            overlaps = np.shares_memory(source.sketch(), target.sketch(), max_work=1) if source.size else False
            Memory.take(target, Memory.copy(source) if overlaps else source)
            return
        source = source.to_host()
    values = np.asarray(plain(source), target.dtype)
    Memory.take(target, values if values.shape == target.shape else values.reshape(()))


class ArrayRegion(DeviceRegion):
    """The place of an array on a device, as an independent or an output."""

    __slots__ = ()

    def adjoint(self, sweep: Any, is_new: bool) -> DeviceArray:
        """Return a copy of the adjoint, on the device."""
        return self.tangent(sweep)

    def seed(self, sweep: Any, value: Any) -> None:
        """Add to the adjoint of an output: an array on the host or on the device."""
        if is_apart(value):
            value = value if isinstance(value, Memory) else foreign(value)
            if value.shape != self.shape:
                raise TapeError(f"tape.gradient: the seed has shape {value.shape}, its output {self.shape}")
            value = value.to_host() if value.dtype != self.dtype else value
        added(sweep, self, value)

    def tangent(self, push: Any) -> DeviceArray:
        """Return a copy of the tangent, on the device; in vector mode with a first axis for the directions."""
        lead = () if push.lanes is None else (len(push.lanes),)
        made = DeviceArray.new((*lead, *self.shape), self.dtype)
        Memory.fill(made, 0)
        for part, lane in zip(made if lead else [made], lanes_of(push)):
            if lane.has_shadow(self):
                Memory.take(part, lane.shadow(self))
        return made


def tracked_apart(x: Any) -> DeviceArray:
    """Return an array on a device as one whose derivatives are tracked: itself, or a copy of another package's."""
    return x if isinstance(x, DeviceArray) else to_device(x)


class Transfer(BaseAdjoint):
    """A copy between host and device, or on the device."""

    __slots__ = ("source", "target")
    name = "a copy between host and device"
    reads_memory = False
    second_order = "linear"

    def __init__(self, target: Region, source: Region) -> None:
        self.target, self.source = target, source

    def __call__(self, sweep: Any) -> None:
        """Take the adjoint of the copy, and add it to that of the source."""
        bar = taken(sweep, self.target)
        if bar is not None:
            added(sweep, self.source, bar)

    def tangent(self, push: Any) -> None:
        """Copy the tangent."""
        if not push.has_shadow(self.source):
            push.zero(self.target)
            return
        value = push.shadow(self.source)
        if (
            self.source.shape == self.target.shape
            and isinstance(value, Memory)
            and isinstance(self.target, DeviceRegion)
        ):
            push.shadow(self.target).take(value.copy())
            return
        value = value.to_host() if isinstance(value, Memory) else np.array(value)
        value = value if value.shape == self.target.shape else value.reshape(())
        if isinstance(self.target, DeviceRegion):
            push.shadow(self.target).take(value.astype(self.target.dtype))
        else:
            push.put(self.target, value)


def taken(sweep: Any, place: Region) -> Any:
    """Return the adjoint of memory that was overwritten, or None if it is zero; set it to zero there."""
    if not isinstance(place, DeviceRegion):
        return sweep.take(place)
    if not sweep.has_shadow(place):
        return None
    shadow = sweep.shadow(place)
    bar = shadow.copy()
    shadow.fill(0)
    return bar


def added(sweep: Any, place: Region, bar: Any) -> None:
    """Add to the adjoint of a place on the host or a device; for a single element, add the sum of ``bar``."""
    on_device = isinstance(place, DeviceRegion)
    if on_device and isinstance(bar, Memory) and bar.shape == place.shape and bar.dtype == place.dtype:
        sweep.shadow(place).add(bar)
        return
    values = bar.to_host() if isinstance(bar, Memory) else bar
    if values.shape != place.shape:
        values = values.sum().reshape(place.shape)
    if place.dtype.kind == "f":
        values = np.real(values)
    if on_device:
        sweep.shadow(place).add(np.asarray(values, place.dtype))
    else:
        sweep.add(place, values)
