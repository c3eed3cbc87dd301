"""Messages of arrays on a device: sent directly where MPI supports CUDA and nothing is recorded, else through the host.

A copy on the host replaces the array in the call; copies are differentiated, and so is the message.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..base.program_lines import where_called
from ..device.arrays import DeviceArray, transfer
from ..device.memory import overwrite
from ..errors import CommunicationError
from ..interception import layers
from ..memory.storages import tracked
from ..tape import open_tapes
from .base.rules import TABLE, Operation
from .messages.held_buffers import holding
from .messages.requests import Completions

LATER = "_init", "_begin", "_end"
"""Ends of the names of methods that use a buffer after the call."""
_waiting: dict[int, tuple[Any, list[tuple[DeviceArray, Any]]]] = {}  # requests whose arrays are to be copied back


@functools.cache
def supports_cuda() -> bool:
    """Return whether the MPI library reports that it accepts buffers in the memory of CUDA devices."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        return bool(ctypes.CDLL(mpi.__file__).MPIX_Query_cuda_support())
    return False


def install() -> None:
    """Make all methods accept arrays on a device; called when the first one is made, as it slows other messages."""
    from .namespace import MPI
    from .pkl5 import Pkl5Intercomm, Pkl5Intracomm

    by_name = {o.name: o for o in TABLE.values() if not o.objects and (o.reads or o.writes)}
    for cls in dict.fromkeys(v for v in (*vars(MPI).values(), Pkl5Intracomm, Pkl5Intercomm) if isinstance(v, type)):
        if not cls.__module__.startswith("ampi."):
            continue
        if issubclass(cls, (mpi.Comm, mpi.File, mpi.Win)):
            for name, operation in by_name.items():
                if _is_ours(cls, name):
                    layers.add(layers.DEVICE, cls, name, functools.partial(staged, operation))
        elif issubclass(cls, mpi.Request):
            for name in dir(cls):
                if name.lower().startswith(("wait", "test")):
                    layers.add(layers.DEVICE, cls, name, _completing)


def _is_ours(cls: type, name: str) -> bool:
    """Return whether a class has a method, and has it from ampi."""
    found = next((base for base in cls.__mro__ if name in vars(base)), None)
    return found is not None and found.__module__.startswith("ampi.") and callable(getattr(cls, name))


def staged(operation: Operation, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that also accepts arrays on a device."""
    names: list[str] = []

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not (_any_on_device(arguments) or (keywords and _any_on_device(keywords.values()))):
            return method(self, *arguments, **keywords)
        if not names:
            of_mpi4py = next(
                c for c in type(self).__mro__ if c.__module__ == mpi.__name__ and operation.name in vars(c)
            )
            names.extend(inspect.signature(vars(of_mpi4py)[operation.name]).parameters)
        given = {**dict(zip(names[1:], arguments)), **keywords}
        return _staged(operation, method, self, given)

    return call


def _any_on_device(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, DeviceArray):
            return True
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], DeviceArray):
            return True
    return False


def _staged(operation: Operation, method: Callable[..., Any], self: Any, given: dict[str, Any]) -> Any:
    name = f"{operation.owner}.{operation.name}"
    buffers = {n: v for n, v in given.items() if n in operation.reads or n in operation.writes}
    if operation.owner == "Win" or operation.name.endswith(LATER):
        raise CommunicationError(
            f"{where_called()}: {name} of an array on a device, which MPI would use after the call; use an array on "
            "the host, and copy it: d.copy_to_host(), d.copy_to_device(x)"
        )
    if not open_tapes and supports_cuda() and all(_array_of(v).device.is_gpu for v in buffers.values() if _on(v)):
        for n in operation.writes:
            if _on(given.get(n)):
                overwrite(_array_of(given[n]))
        for value in buffers.values():
            if _on(value):
                _array_of(value).device.synchronize()
        return method(self, **given)
    back: list[tuple[DeviceArray, Any]] = []
    for n, value in buffers.items():
        if not _on(value):
            continue
        array = _array_of(value)
        host = _host_copy(array)
        given[n] = type(value)((host, *value[1:])) if isinstance(value, (list, tuple)) else host
        if n in operation.writes:
            back.append((array, host))
    result = method(self, **given)
    if not isinstance(result, mpi.Request):
        _copy_back(back)
        return result
    if not isinstance(result, Completions):
        result = holding(result, tuple(given.values()), {})
    if back:
        _waiting[id(result)] = result, back
    return result


def _on(value: Any) -> bool:
    return _any_on_device((value,))


def _array_of(value: Any) -> DeviceArray:
    return value if isinstance(value, DeviceArray) else value[0]


def _host_copy(array: DeviceArray) -> Any:
    """A copy with the elements in the same order in memory, as MPI sends them."""
    flags = array.flags
    if not flags.forc:
        raise BufferError("message: array on a device is not contiguous; copy it: ampi.cuda.to_device(d)")
    host = tracked(np.empty(array.shape, array.dtype, order="C" if flags.c_contiguous else "F"))
    transfer(host, array)
    return host


def _copy_back(pairs: list[tuple[DeviceArray, Any]]) -> None:
    for array, host in pairs:
        transfer(array, host)


def _completing(inner: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that waits for requests, and then copies to the device what they have received."""

    @functools.wraps(inner)
    def call(*arguments: Any, **keywords: Any) -> Any:
        result = inner(*arguments, **keywords)
        for key, (request, pairs) in list(_waiting.items()):
            if request == mpi.REQUEST_NULL:
                del _waiting[key]
                _copy_back(pairs)
        return result

    return call


DeviceArray.at_first.append(install)
