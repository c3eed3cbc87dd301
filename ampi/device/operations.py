"""Calls of the library that computes on a device (CuPy; NumPy where the processor is the device), and their records.

A rule computes with the library's arrays through NumPy's functions, which dispatch on their class: the same rule runs
on all devices, and never touches the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..base.program_lines import where_called
from ..base.structures import leaves, mapped
from ..errors import KernelError
from ..memory.regions import Region
from ..memory.storages import carries_derivatives
from ..tape import BaseAdjoint, recording
from .arrays import DeviceArray, foreign, region, to_device
from .backends import device
from .memory import Memory, append, is_active, need


def operand(x: Any, name: str) -> Any:
    """Return an operand that the library accepts: an array on the device as `Memory`, or a number.

    A tracked number of the host that carries derivatives is copied to the device, which is recorded.
    """
    if isinstance(x, DeviceArray):
        if x.device is not device():
            raise KernelError(
                f"{where_called()}: {name}: an array is on {x.device!r}, not on {device()!r}; copy it there"
            )
        return x
    if isinstance(x, np.ndarray):
        if x.ndim:
            return _of_host(x, name)
        tape = recording()
        if tape is not None and carries_derivatives(x.dtype) and tape.is_active(x):
            return to_device(x)
        return plain_of(x)[()]
    if hasattr(type(x), "__cuda_array_interface__") and not isinstance(x, Memory):
        return foreign(x)
    return x


def _of_host(x: np.ndarray, name: str) -> Any:
    raise KernelError(
        f"{where_called()}: {name}: one array of shape {x.shape} is on the host, and another one on a device; copy it "
        "there: ampi.cuda.to_device(x)"
    )


def operands(values: Any, name: str) -> Any:
    """Return the same structure with `operand` of each leaf."""
    return mapped(lambda x: operand(x, name), values)


def array_of(x: Any) -> Any:
    """Return a value in the form that the library takes."""
    return x.device.array(x) if isinstance(x, Memory) else x


def compute(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Call a function of the library with arrays on the device; its results are on the device as well."""
    one = device()
    inputs = [x for x in leaves((arguments, keywords)) if isinstance(x, DeviceArray)]
    with one.computing():
        found = function(*mapped(array_of, arguments), **mapped(array_of, keywords))
        return mapped(lambda r: _returned(one, r, inputs), found)


def _returned(one: Any, found: Any, inputs: Iterable[DeviceArray]) -> Any:
    """Return a result as an array on the device: a part of an argument if it shares its memory."""
    if isinstance(found, np.generic):
        found = np.asarray(found)
    elif not isinstance(found, one.library.ndarray):
        return found
    address, owner = one.adopted(found)
    for x in inputs:
        if x.storage.address <= address < x.storage.address + x.storage.nbytes and found.size:
            return x.part(address - x.address, found.shape, found.strides, found.dtype)
    return DeviceArray.over(Memory(one, address, owner, found.shape, found.strides, found.dtype), True)


def active(tape: Any, x: Any) -> bool:
    """Return whether a value is an array on the device that carries derivatives."""
    return tape is not None and isinstance(x, DeviceArray) and carries_derivatives(x.dtype) and is_active(tape, x)


def any_active(values: Any) -> bool:
    """Return whether a leaf of a structure is active."""
    tape = recording()
    return tape is not None and any([active(tape, x) for x in leaves(values)])


Adjoint = Callable[[list[int], Any, Any], Iterable[tuple[int, Any]]]
Push = Callable[[dict[int, Any], Any], Any]


def each(adjoint: Callable[[int, Any, Any], Any]) -> Adjoint:
    """Return an adjoint of all sources, given ``adjoint(k, g, values)`` of one."""
    return lambda ks, g, values: ((k, adjoint(k, g, values)) for k in ks)


class Computed(BaseAdjoint):
    """Record of a computation of the library; its adjoint and tangent run there as well.

    Attributes
    ----------
    adjoint : callable
        ``adjoint(ks, g, values)``: pairs of k and the contribution to the adjoint of source k, for these sources.
    push : callable
        ``push(dots, values)``: the tangent of the result; ``dots`` has those of sources that are not zero, by k.
    sources : list of (int, Region)
    values : structure
        What both need: numbers, and arrays as `Memory`.
    storages : set
        Those of arrays among the values, which are put back before they are read.
    """

    __slots__ = ("adjoint", "device", "name", "push", "result", "sources", "storages", "values")
    reads_memory = False

    def __init__(
        self,
        name: str,
        adjoint: Adjoint,
        push: Push,
        sources: list[tuple[int, Region]],
        result: Region,
        values: Any,
        storages: set[Any],
    ) -> None:
        self.name = f"{name} of arrays on a device"
        self.adjoint, self.push, self.sources, self.result = adjoint, push, sources, result
        self.values, self.storages, self.device = values, storages, device()

    def __call__(self, sweep: Any) -> None:
        """Add the contributions to the adjoints of the sources."""
        if not sweep.has_shadow(self.result):
            return
        sweep.put_back(self.storages)
        with self.device.computing(), np.errstate(all="ignore"):
            values = mapped(array_of, self.values)
            g = array_of(sweep.shadow(self.result))
            sources = dict(self.sources)
            for k, bar in self.adjoint(list(sources), g, values):
                add(sweep.shadow(sources[k]), bar)

    def tangent(self, push: Any) -> None:
        """Set the tangent of the result."""
        shadows = {k: push.shadow(source) for k, source in self.sources if push.has_shadow(source)}
        if not shadows:
            return  # the result is new: its tangent is zero
        with self.device.computing(), np.errstate(all="ignore"):
            dots = {k: array_of(shadow) for k, shadow in shadows.items()}
            found = self.push(dots, mapped(array_of, self.values))
            target = array_of(push.shadow(self.result))
            target[...] = of_kind(found, target.dtype)


def of_kind(x: Any, dtype: np.dtype) -> Any:
    """Return the real part of complex numbers that are stored as real ones."""
    return x.real if dtype.kind == "f" and getattr(x, "dtype", dtype).kind == "c" else x


def add(shadow: Memory, bar: Any) -> None:
    """Add an array of the library to a shadow; to an element with several indices, the sum over these."""
    if shadow.repeats_elements():
        axes = tuple([k for k, stride in enumerate(shadow.strides) if stride == 0])
        bar = np.sum(np.broadcast_to(bar, shadow.shape), axis=axes, keepdims=True)
        once = tuple([slice(1) if k in axes else slice(None) for k in range(shadow.ndim)])
        shadow = shadow.like(shadow.sketch()[once])
    target = array_of(shadow)
    np.add(target, of_kind(bar, target.dtype), out=target)


def record(
    name: str,
    inputs: Sequence[Any],
    result: DeviceArray,
    values: Any,
    adjoint: Adjoint,
    push: Push,
) -> DeviceArray:
    """Record a computation, if one of the inputs is active and the result is not a view of it; return the result.

    The values are inputs, the result, or numbers, in any structure: rules get them as they were when it ran.
    """
    tape = recording()
    sources = [(k, region(x)) for k, x in enumerate(inputs) if active(tape, x)]
    if not sources or not carries_derivatives(result.dtype):
        return result
    if any([source.storage is result.storage for _, source in sources]):
        return result
    storages: set[Any] = set()
    kept = mapped(lambda x: kept_value(tape, x, storages), values)
    tape.set_active(result.storage)
    append(tape, Computed(name, adjoint, push, sources, region(result), kept, storages), [], (result.storage,))
    return result


def kept_value(tape: Any, x: Any, storages: set[Any]) -> Any:
    """Return a value for a record: not copied if it is tracked, as the tape saves it before it is overwritten."""
    if isinstance(x, DeviceArray):
        need(tape, x)
        storages.add(x.storage)
        return x.bare()
    return Memory.copy(x) if isinstance(x, Memory) else x
