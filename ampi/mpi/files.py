"""Files: data read are constants, data written are outputs that can carry a seed.

The adjoint of memory that a read has overwritten becomes zero (a read may be short).  A write of an active array adds
an entry to ``tape.outputs``.  `Tape.gradient` accepts such an entry instead of an array, so that quantities computed
from the file afterwards can be differentiated through the write.

When a step of a time loop runs again, nothing is written, deleted or resized; reads and pointers are as they were the
first time (`positions`).  Files that no longer exist at the end of their step are an exception: they are created again,
with all operations on them.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ..base.program_lines import warning_level
from ..errors import ActivityWarning, CommunicationError
from ..tape import BaseAdjoint, Output, Push, Sweep, Tape, lanes_of, living
from ..tape.recording import current, opened, recording
from ..tape.replays import is_again, is_first
from .base.call_sites import call_site, line_of
from .base.handles import AcceptsBase, Handles
from .base.rules import Operation, Treatment, enter
from .memory.arguments import parse
from .memory.buffers import Buffer, refuse_others
from .memory.plain_buffers import warn_if_plain
from .memory.tangents import set_tangent
from .messages.requests import Request, recorded

_File = mpi.File  # mpi4py's own: the name in its module is rebound later
_open: weakref.WeakValueDictionary[int, File] = weakref.WeakValueDictionary()
_numbers = itertools.count()
_made_again: set[str] = set()
"""Files that steps of time loops have deleted, and have created anew when they ran again."""


class File(Handles, _File, metaclass=AcceptsBase):
    """File I/O context.

    Each ``Write`` of an active array while a tape records appends an output to ``tape.outputs``.  Without a seed it
    contributes nothing; ``tape.gradient(tape.outputs[0], x, seed=s)`` differentiates ⟨s, written values⟩.  Memory that
    a ``Read`` overwrites becomes constant.

    Examples
    --------
    >>> mode = ampi.MPI.MODE_CREATE | ampi.MPI.MODE_WRONLY
    >>> with ampi.Tape() as tape:
    ...     x = tape.watch(numpy.array([1.0, 2.0]))
    ...     file = ampi.File.Open(ampi.COMM_SELF, "squares.bin", mode)
    ...     file.Write_at_all(0, x * x)
    ...     file.Close()
    >>> tape.gradient(tape.outputs, x, seed=[numpy.ones(2)])
    array([2., 4.])
    """

    _base = _File

    @classmethod
    def Open(cls, comm: Any, filename: Any, amode: int = mpi.MODE_RDONLY, info: mpi.Info = mpi.INFO_NULL) -> File:
        """Open a file; collective over ``comm``."""
        if is_again():
            file = cls._open_again(comm, filename, amode, info)
        else:
            file = super().Open(comm, filename, amode, info)
            file._passing = is_first() is not None and bool(amode & mpi.MODE_DELETE_ON_CLOSE)
        file._filename = str(filename)
        file._views = 0
        _open[next(_numbers)] = file
        return file

    @classmethod
    def _open_again(cls, comm: Any, filename: Any, amode: int, info: mpi.Info) -> File:
        """Open, in a step that runs again, the file that the step has created, or a new one if it no longer exists."""
        name = str(filename)
        passing = bool(amode & mpi.MODE_DELETE_ON_CLOSE) or name in _made_again
        if not passing:
            try:
                file = super().Open(comm, filename, amode & ~(mpi.MODE_EXCL | mpi.MODE_CREATE), info)
            except mpi.Exception as error:
                if error.Get_error_class() != mpi.ERR_NO_SUCH_FILE or not amode & mpi.MODE_CREATE:
                    raise
                _made_again.add(name)
                passing = True
        if passing:
            file = super().Open(comm, filename, amode, info)
        file._passing = passing
        return file

    @classmethod
    def Delete(cls, filename: Any, info: mpi.Info = mpi.INFO_NULL) -> None:
        """Delete a file."""
        if not is_again() or str(filename) in _made_again:
            _made_again.discard(str(filename))
            _File.Delete(filename, info)

    def Set_size(self, size: int) -> None:
        """Set the file's size; collective."""
        if not _is_done(self):
            super().Set_size(size)

    def Preallocate(self, size: int) -> None:
        """Preallocate storage for the file; collective."""
        if not _is_done(self):
            super().Preallocate(size)

    def Set_view(self, *arguments: Any, **keywords: Any) -> None:
        """Set the file's view; collective."""
        if not _is_gone(self):
            self._views = self.__dict__.get("_views", 0) + 1
            super().Set_view(*arguments, **keywords)

    def Seek(self, offset: int, whence: int = mpi.SEEK_SET) -> None:
        """Move this rank's pointer."""
        if not _is_gone(self):
            super().Seek(offset, whence)

    def Sync(self) -> None:
        """Flush written data to the disk; collective."""
        if not _is_gone(self):
            super().Sync()


def _is_done(file: File) -> bool:
    """Return whether a step runs again, so that its operation on a file has already been executed."""
    return is_again() and not file.__dict__.get("_passing", False)


def _is_gone(file: File) -> bool:
    """Return whether a step runs again and uses a file that the program has closed since then."""
    return not file and is_again()


class Position:
    """The position of a file's individual pointer, and the view in which it counts."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.views = file._views
        self.view = file.Get_view() if self.views else (0, mpi.BYTE, mpi.BYTE, "native")
        self.offset = file.Get_position()

    def put_back(self) -> None:
        """Restore pointer and view; collective if the view was set since then."""
        if not self.file:  # closed
            return
        if self.file._views != self.views:
            self.file.Set_view(*self.view)
            self.file._views = self.views
        self.file.Seek(self.offset)


def positions() -> list[Position]:
    """Positions of all open files, in the order in which they were opened."""
    return [Position(file) for file in list(_open.values()) if file and not file.Get_amode() & mpi.MODE_SEQUENTIAL]


def positions_as_data(found: list[Position]) -> list[tuple[str, int]]:
    """Return the state as data for another process that has opened the same files."""
    return [(position.file._filename, position.offset) for position in found]


def restore_positions(data: list[tuple[str, int]]) -> None:
    """Set the files of this process to the positions of those of another process."""
    here: dict[str, list[Position]] = {}
    for position in positions():
        here.setdefault(position.file._filename, []).append(position)
    for name, offset in data:
        if here.get(name):
            here[name].pop(0).file.Seek(offset)


class Reading(BaseAdjoint):
    """A read in a tape's log: the adjoint of what it overwrote is zero."""

    __slots__ = ("buffer", "push", "request")

    reads_memory = False
    batched = True
    active = False  # its completion starts no transfer
    wild = True  # the status has the length
    second_order = "joint"

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.push: Push | None = None  # of forward mode, until it has completed
        self.request: Any = None

    def resolve(self, status: mpi.Status | None) -> None:
        """Note that the read has completed."""
        self.request = None
        if status is not None:
            self.buffer = self.buffer.within(status.Get_elements(mpi.BYTE))
        if self.push is not None:
            set_tangent(self.push, self.buffer, None)
            self.push = None

    def __call__(self, sweep: Sweep) -> None:
        """Clear the adjoint of memory that was overwritten by a constant."""
        for lane in lanes_of(sweep):
            self.buffer.zero(lane)

    def tangent(self, push: Push) -> None:
        """Clear its tangent as well, as soon as the length is known."""
        if push.walks:
            set_tangent(push, self.buffer, None)
        else:
            self.push = push


def _read(operation: str, primal: Callable, position: int) -> Callable:
    def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not living:
            return primal(self, *arguments, **keywords)
        if _is_gone(self):
            raise CommunicationError(
                f"File.{operation} in a step of ampi.timeloop, which runs again, from {self._filename}, which has "
                "been closed since then; close it after computing the gradient"
            )
        if ("shared" in operation or "ordered" in operation) and _is_done(self):
            raise CommunicationError(
                f"File.{operation} in a step of ampi.timeloop, which runs again: the position of the shared "
                "pointer is unknown; read at an offset (Read_at), or before the loop"
            )
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
    """Save what records need before a read, and log the read if it overwrites active memory."""
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
            stacklevel=warning_level(),
        )


def _write(operation: str, primal: Callable, position: int) -> Callable:
    moves = not any(kind in operation for kind in ("_at", "_shared", "_ordered"))

    def write(self: Any, *arguments: Any, **keywords: Any) -> Any:
        tape, again = current(), _is_done(self)
        if tape is None and not again:
            return primal(self, *arguments, **keywords)
        buf = arguments[position] if len(arguments) > position else keywords["buf"]
        if tape is not None:
            _log_write(tape, self, operation, buf)
        if not again:
            return primal(self, *arguments, **keywords)
        nbytes = parse(buf).nbytes
        if moves and nbytes and not _is_gone(self):
            self.Seek(nbytes // self.Get_view()[1].Get_size(), mpi.SEEK_CUR)
        if operation.endswith("_begin"):
            self._left_out = nbytes
            return None
        _set_status(nbytes, arguments[position + 1] if len(arguments) > position + 1 else keywords.get("status"))
        return Request() if operation.startswith("I") else None

    return write


def _set_status(nbytes: int, status: mpi.Status | None) -> None:
    if status is not None:
        status.Set_elements(mpi.BYTE, nbytes)


def _write_end(operation: str, primal: Callable, position: int) -> Callable:
    def write_end(self: Any, buf: Any, status: mpi.Status | None = None) -> None:
        nbytes = self.__dict__.pop("_left_out", None)
        if nbytes is None:
            primal(self, buf, status)
        else:
            _set_status(nbytes, status)

    return write_end


def _log_write(tape: Tape, file: Any, operation: str, buf: Any) -> None:
    buffer = parse(buf)
    if not buffer.nbytes:
        return
    if buffer.storage is None or not buffer.on(tape):
        warn_if_plain(f"File.{operation}", buffer, "writes", "to", getattr(file, "_filename", "a file"))
        return
    shape, order = (None, "C") if not buffer.tracked else buffer.shape()
    name = getattr(file, "_filename", "a file")
    tape.append_output(Output(buffer.detach(), f"File.{operation}", name, line_of(call_site()), shape, order))


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
        _method(f"Write{kind}_end", _write_end)


def _method(name: str, make: Callable[[str, Callable, int], Callable]) -> None:
    primal = getattr(_File, name)
    position = 1 if "_at" in name and not name.endswith("_end") else 0
    method = make(name, primal, position)
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
