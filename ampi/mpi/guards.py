"""Methods that move data and have no rule yet: plain mpi4py, but an error when they touch an active buffer.

They are found by mpi4py's signatures, so that methods of a newer mpi4py are guarded as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import ActivityError
from ..memory.storages import storage_of
from ..tape import living, overwrite
from ..tape.recording import current, opened
from .base.rules import TABLE, Operation, Treatment, enter
from .messages.requests import persistent

# Buffers that a method writes; all others it reads.
_WRITTEN = {"recvbuf", "result", "outbuf", "inoutbuf"}
# Methods that take buffers without moving what is in them.
_PASSES = {"Attach_buffer", "Detach_buffer", "Iagree", "Create", "Attach", "Detach"}

_CLASSES = dict(vars(mpi))  # mpi4py's own: the names in its module are rebound later


def _writes_origin(name: str) -> bool:
    return name.startswith(("Read", "Iread", "Recv", "Precv"))


def _operation(owner: str, name: str, method: Any) -> Operation | None:
    """Return the table's entry for a method without a rule; None if it moves no data."""
    if f"{name}(" in (text := method.__doc__ or "") and "BufSpec" not in text:
        return None  # the docstring begins with the signature
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return None
    buffers = [p.name for p in parameters.values() if "BufSpec" in str(p.annotation)]
    if not buffers or name in _PASSES:
        return None
    writes = [b for b in buffers if b in _WRITTEN or _writes_origin(name)]
    reads = [b for b in buffers if b not in writes]
    return Operation(owner, name, Treatment.ERROR, tuple(reads), tuple(writes))


def _guarded(operation: Operation, method: Any) -> Callable[..., Any]:
    names = list(inspect.signature(method).parameters)
    roles = [(names.index(name), name, name in operation.writes) for name in (*operation.reads, *operation.writes)]

    def guarded(self: Any, *arguments: Any, **keywords: Any) -> Any:
        def check() -> tuple[()]:
            for position, name, written in roles:
                given = arguments[position - 1] if position <= len(arguments) else keywords.get(name)
                _check(operation, given, written)
            return ()

        if living:
            check()
        result = method(self, *arguments, **keywords)
        return persistent(result, check) if isinstance(result, mpi.Prequest) else result

    guarded.__name__ = operation.name
    guarded.__qualname__ = f"{operation.owner}.{operation.name}"
    guarded.__doc__ = method.__doc__
    return guarded


def _check(operation: Operation, given: Any, written: bool) -> None:
    tape = current()
    for array in _arrays(given):
        if tape is not None and tape.is_active(array):
            raise ActivityError(
                f"{operation.owner}.{operation.name} has no derivative rule, and its buffer carries derivatives; "
                "pass ampi.value(array), or use an operation that has one (python -m ampi.coverage lists them)"
            )
        if written:
            undo = overwrite(array)
            if undo:
                opened().append(None, undo)


def _arrays(given: Any) -> Iterator[np.ndarray]:
    """Return the tracked arrays in a buffer argument of any form."""
    if isinstance(given, (list, tuple)):
        for item in given:
            yield from _arrays(item)
    elif isinstance(given, (np.ndarray, memoryview, mpi.buffer)):
        array = np.asarray(given)
        if storage_of(array) is not None:
            yield array


def guard(owner: str, cls: type) -> None:
    """Guard the methods of one of ampi's classes that have no rule, and enter them into the table.

    Parameters
    ----------
    owner : str
        The name of mpi4py's class.
    cls : type
        The class that gets the guarded methods.
    """
    for name, member in vars(_CLASSES[owner]).items():
        if name[0] == "_" or not name[0].isupper() or f"{owner}.{name}" in TABLE or isinstance(member, property):
            continue
        operation = _operation(owner, name, member)
        if operation is not None:
            enter(operation)
            setattr(cls, name, _guarded(operation, member))
