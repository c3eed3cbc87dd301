"""Program termination on one of several ranks: it ends the others, or a warning says that they may wait forever.

Without a runner, an uncaught exception or ``sys.exit(3)`` ends one process while the others wait in MPI.  ``import
ampi`` makes it end all of them, as ``python -m ampi.run`` does, if there are several and the session is not
interactive; ``AMPI_ABORT=0`` restores mpi4py's behaviour.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

import mpi4py.run
from mpi4py import MPI as mpi

from ..base.checks import setting
from ..errors import AmpiError
from .log.reverse import LEAVING_TAG
from .waiting.notices import status_of, stranded

TOGETHER = 1.0
"""Seconds within which ranks that end with a nonzero status are assumed to end together."""

SOON, LATE = 10.0, 60.0
"""Seconds after which a rank that has ended reports that another has not: after `sys.exit`, after its last line."""

UNREACHABLE = 10.0
"""Seconds after which a process ends itself if its launcher has not ended it."""

_exits: dict[int, tuple[weakref.ref[Any], int]] = {}  # exceptions of `sys.exit` in flight, and their status
_ended: list[int] = []  # the status with which `sys.exit` has ended the program


def install(world: mpi.Comm, comm: mpi.Comm) -> None:
    """Make the end of this rank's program end the others, or report it to them.

    Parameters
    ----------
    world : mpi4py.MPI.Comm
    comm : mpi4py.MPI.Comm
        The same ranks in a communication context that the program does not use.

    Raises
    ------
    AmpiError
        AMPI_ABORT has an invalid value.
    """
    meaning = "0 (an error ends only its own rank), or 1 or not be set (it ends all ranks)"
    try:
        text = setting("AMPI_ABORT", ("0", "1"), meaning)
        problem = None
    except AmpiError as error:  # which ends all ranks
        text, problem = "1", error
    if text != "0" and world.size > 1 and "pytest" not in sys.modules and not _is_interactive():
        sys.excepthook = _hook(sys.excepthook, world, os.getpid())
        sys.exit = _exit  # type: ignore[assignment]
        for name in ("exit", "quit"):
            if hasattr(builtins, name):
                setattr(builtins, name, _exit)
        atexit.register(_end, comm, os.getpid())
    if problem is not None:
        raise problem


def abort(world: mpi.Comm, status: int) -> None:
    """End all ranks; this one even if the launcher cannot be reached, because a link between hosts is cut."""
    if (processes := sys.modules.get("multiprocessing.process")) is not None:
        for child in processes.active_children():  # they would wait forever for tasks of this process
            child.terminate()
    timer = threading.Timer(UNREACHABLE, os._exit, (status or 1,))
    timer.daemon = True
    timer.start()
    world.Abort(status)


def _is_interactive() -> bool:
    return bool(sys.flags.interactive) or hasattr(sys, "ps1") or "IPython" in sys.modules


def _hook(previous: Callable[..., Any], world: mpi.Comm, process: int) -> Callable[..., None]:
    rank, size = world.rank, world.size  # a program may fail after Finalize

    def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Print an uncaught exception with the rank, and end all ranks."""
        if os.getpid() != process or mpi.Is_finalized() or not _is_over(sys._getframe()):
            previous(kind, error, trace)
            return
        sys.stdout.flush()
        text = f"Rank {rank} of {size} failed, which ends all ranks (with AMPI_ABORT=0 it ends alone):\n"
        if previous is sys.__excepthook__:  # in one piece: several ranks may fail at once
            sys.stderr.write(text + "".join(traceback.format_exception(kind, error, trace)))
        else:
            sys.stderr.write(text)
            previous(kind, error, trace)
        sys.stdout.flush()
        sys.stderr.flush()
        # mpiexec may drop output that it has not read yet.  The rank where the error began has more to report than
        # those that were notified of it, which wait for it.
        time.sleep(TOGETHER if hasattr(error, "notice") else 0.05)
        abort(world, status_of(error))

    return excepthook


def _is_over(frame: FrameType | None) -> bool:
    """Return whether the interpreter has called a hook at the end of the program, rather than the program itself (a
    console in it, for example), and not for a thread."""
    if threading.current_thread() is not threading.main_thread() or _is_interactive():
        return False
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            return False
        frame = frame.f_back
    return True


class _Exit(SystemExit):
    """The exception that `sys.exit` raises: unlike its base class it supports weak references."""

    def __reduce__(self) -> Any:
        return SystemExit, self.args


_Exit.__name__ = _Exit.__qualname__ = "SystemExit"
_Exit.__module__ = "builtins"


def _exit(status: Any = None, /) -> None:
    """Exit the interpreter by raising SystemExit(status)."""
    raise _make_exit(status)  # no name refers to it here: its traceback would keep it alive


def _make_exit(status: Any) -> SystemExit:
    error = _Exit() if status is None else _Exit(*status) if isinstance(status, tuple) else _Exit(status)
    if threading.current_thread() is threading.main_thread():
        key, code = id(error), status_of(error)

        def gone(_: Any) -> None:
            del _exits[key]
            try:
                sys._getframe(1)
            except ValueError:  # no Python is running: the interpreter has dropped it to end the program
                _ended.append(code)

        _exits[key] = weakref.ref(error, gone), code
    return error


def _end(comm: mpi.Comm, process: int) -> None:
    """Note that the program has ended on this rank."""
    if os.getpid() != process or mpi.Is_finalized():
        return
    sys.stdout.flush()
    status = _ended[-1] if _ended else 0
    if status:
        if _await_all(comm, TOGETHER):
            mpi4py.run.set_abort_status(status)
        return
    if _await_all(comm, SOON if _ended or hasattr(sys, "last_type") else LATE) == 1:
        rank, size = comm.rank, comm.size
        sys.stderr.write(
            f"ampi: rank {rank} of {size} has ended and rank {(rank - 1) % size} has not: if that one waits for rank "
            f"{rank}, in a collective or a receive, it will do so forever\n"
        )
        sys.stderr.flush()


def _await_all(comm: mpi.Comm, seconds: float) -> int:
    """Wait until all ranks have ended, but no longer than a number of seconds.

    Returns
    -------
    int
        0 if all have ended.  Otherwise the distance to the nearest lower rank that may not have ended; it is 1 on at
        least one rank that has ended, above one that has not.
    """
    rank, size = comm.rank, comm.size
    start = time.monotonic()
    missing, distance = 0, 1
    while distance < size:  # dissemination: a rank that gives up reports it, and no other rank waits for it
        stranded.append(comm.Isend([bytes([not missing]), mpi.BYTE], (rank + distance) % size, LEAVING_TAG))
        source = (rank - distance) % size
        while not missing and not comm.Iprobe(source, LEAVING_TAG):
            waited = time.monotonic() - start
            if waited > seconds:
                missing = distance
            time.sleep(min(1e-2, waited / 10))
        if not missing:
            all_below = bytearray(1)
            comm.Recv([all_below, mpi.BYTE], source, LEAVING_TAG)
            missing = 0 if all_below[0] else 2 * distance
        distance *= 2
    return missing
