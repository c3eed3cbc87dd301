"""Files: what is read is a constant, what is written is an output that can carry a seed.

A read overwrites memory, whose adjoint becomes zero as far as it was overwritten (a read may come short).  A write of
an active array is noted in ``tape.outputs``; `Tape.gradient` takes such a note in the place of an array, so that what
the program computes from the file afterwards can be differentiated through the write.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ..errors import ActivityWarning
from ..recording import current, opened, recording
from ..tape import Output, Push, Sweep, Tape, living
from .arguments import parse
from .buffers import Buffer, refuse_others
from .messages import call_site, line_of
from .plain_buffers import mind
from .requests import AcceptsBase, Handles, recorded
from .rules import Operation, Treatment, enter

_File = mpi.File  # mpi4py's own: the name in its module is rebound later


class File(Handles, _File, metaclass=AcceptsBase):
    """File I/O context.

    Every ``Write`` of an active array while a tape records appends an output to ``tape.outputs``.  Without a seed it
    contributes nothing; ``tape.gradient(tape.outputs[0], x, seed=s)`` differentiates ⟨s, what was written⟩.
    Every ``Read`` makes what it overwrites a constant.
    """

    _base = _File

    @classmethod
    def Open(cls, comm: Any, filename: Any, amode: int = mpi.MODE_RDONLY, info: mpi.Info = mpi.INFO_NULL) -> File:
        """Open a file; collective over ``comm``."""
        file = super().Open(comm, filename, amode, info)
        file._filename = str(filename)
        return file


class Reading:
    """A read in a tape's log: its adjoint is zero where it came."""

    __slots__ = ("buffer", "push", "request")

    reads_memory = False
    active = False  # its completion starts no transfer
    wild = True  # the status says how much came

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.push: Push | None = None  # of forward mode, until it has completed
        self.request: Any = None

    def resolve(self, status: mpi.Status | None) -> None:
        """The read has completed."""
        self.request = None
        if status is not None:
            self.buffer = self.buffer.within(status.Get_elements(mpi.BYTE))
        if self.push is not None:
            self.buffer.zero(self.push)  # type: ignore[arg-type]
            self.push = None

    def __call__(self, sweep: Sweep) -> None:
        """What was overwritten by a constant has no adjoint."""
        self.buffer.zero(sweep)

    def tangent(self, push: Push) -> None:
        """Nor a tangent, as soon as it is known how much has come."""
        if push.walks:
            self.buffer.zero(push)  # type: ignore[arg-type]
        else:
            self.push = push


def _read(operation: str, primal: Callable, position: int) -> Callable:
    def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not living:
            return primal(self, *arguments, **keywords)
        buffer = parse(arguments[position] if len(arguments) > position else keywords["buf"])
        array = buffer.array
        reading = _begin_reading(self, operation, buffer)
        if reading is None:
            return primal(self, *arguments, **keywords)
        if operation.startswith("I"):
            return recorded(opened(), primal(self, *arguments, **keywords), reading)
        if operation.endswith("_begin"):
            self._reading = reading
            return primal(self, *arguments, **keywords)
        status = arguments[position + 1] if len(arguments) > position + 1 else keywords.get("status")
        status = mpi.Status() if status is None else status
        primal(self, *arguments[: position + 1], **{**keywords, "status": status})
        reading.resolve(status)
        if reading.buffer is buffer and array is not None and buffer.nbytes == array.nbytes:
            opened().deactivate(array)
        return None

    return read


def _read_end(operation: str, primal: Callable, position: int) -> Callable:
    def read_end(self: Any, buf: Any, status: mpi.Status | None = None) -> None:
        reading = self.__dict__.pop("_reading", None)
        status = mpi.Status() if status is None and reading is not None else status
        primal(self, buf, status)
        if reading is not None:
            reading.resolve(status)

    return read_end


def _begin_reading(file: Any, operation: str, buffer: Buffer) -> Reading | None:
    """Before a read: save what records need, and log it if it overwrites active memory."""
    tape = recording()
    if tape is None:
        refuse_others(buffer)
    undo = buffer.overwrite()
    if tape is None or buffer.storage is None:
        return None
    _warn_if_written(tape, file, operation)
    active = buffer.on(tape)
    reading = Reading(buffer.detach()) if active else None
    if active or undo:
        tape.append_start(reading, undo)
    return reading


def _warn_if_written(tape: Tape, file: Any, operation: str) -> None:
    name = getattr(file, "_filename", None)
    if name is not None and any(output.target == name for output in tape.outputs):
        warnings.warn(
            f"File.{operation} from {name}, into which this rank has written active values: what is read back is a "
            "constant; keep the array instead",
            ActivityWarning,
            stacklevel=4,
        )


def _write(operation: str, primal: Callable, position: int) -> Callable:
    def write(self: Any, *arguments: Any, **keywords: Any) -> Any:
        tape = current()
        if tape is not None:
            buf = arguments[position] if len(arguments) > position else keywords["buf"]
            _log_write(tape, self, operation, buf)
        return primal(self, *arguments, **keywords)

    return write


def _log_write(tape: Tape, file: Any, operation: str, buf: Any) -> None:
    buffer = parse(buf)
    if not buffer.nbytes:
        return
    if buffer.storage is None or not buffer.on(tape):
        mind(f"File.{operation}", buffer, "writes", "to", getattr(file, "_filename", "a file"))
        return
    shape, order = (None, "C") if not buffer.tracked else buffer.shape()
    name = getattr(file, "_filename", "a file")
    tape.append_output(Output(buffer.detach(), f"File.{operation}", name, line_of(call_site()), shape, order))


def _passing(operation: str, primal: Callable, position: int) -> Callable:
    return primal


def _methods() -> None:
    kinds = [f"{at}{form}" for at in ("_at", "") for form in ("", "_all")] + ["_shared"]
    for kind in (*kinds, "_ordered"):
        _method(f"Read{kind}", _read)
        _method(f"Write{kind}", _write)
    for kind in kinds:
        _method(f"Iread{kind}", _read)
        _method(f"Iwrite{kind}", _write)
    for kind in ("_at_all", "_all", "_ordered"):
        _method(f"Read{kind}_begin", _read)
        _method(f"Read{kind}_end", _read_end)
        _method(f"Write{kind}_begin", _write)
        _method(f"Write{kind}_end", _passing)


def _method(name: str, make: Callable[[str, Callable, int], Callable]) -> None:
    primal = getattr(_File, name)
    position = 1 if "_at" in name and not name.endswith("_end") else 0
    method = make(name, primal, position)
    if method is not primal:
        method.__name__, method.__qualname__ = name, f"File.{name}"
        method.__doc__ = primal.__doc__
        setattr(File, name, method)
    if make is _read:
        enter(Operation("File", name, Treatment.DIFFERENTIATED, (), ("buf",), "x̄ = 0"))
    elif make is _write:
        enter(Operation("File", name, Treatment.DIFFERENTIATED, ("buf",), (), "x̄ += seed of the output"))
    else:
        enter(Operation("File", name, Treatment.DIFFERENTIATED, adjoint="part of the one that begins it"))


_methods()
