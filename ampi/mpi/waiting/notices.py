"""Notices that a sweep has stopped: a rank tells a few others, which stop and tell others in turn.

A rank that waits for one that has stopped waits for a message from it, or in a collective.  In the agreement, and in
collectives whose results depend on all ranks, every rank waits for all: whatever tree or ring MPI's algorithm uses,
ranks at distances of powers of two pass a notice on to all in log2(size) steps.  If only a root needs the
contributions, ranks that would pass the notice on may already have finished.  The root has not: it is told, and tells
all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from mpi4py import MPI as mpi

from ...errors import CommunicationError
from .sides import Line, Side

STOPPED_TAG = 0
"""Tag of notices on reverse communicators."""

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound to ours
_TEXT = 2000  # bytes of a notice

stranded: list[Any] = []
"""Requests of sweeps that stopped, with their buffers, which MPI may read and write until it is finalised.  Since that
is after the interpreter has freed all modules, this list is never freed."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(stranded))


def tell(reverse: Side, partners: Iterable[int], error: BaseException) -> None:
    """Tell partners that may wait for this rank that it has stopped, why, and with which status it may end."""
    reverse.keep()
    stopped = f"{status_of(error)} {notice_of(error)}"
    for partner in partners:
        notice = f"{reverse.identity} {reverse.sweep_with(partner)} {stopped}".encode()[:_TEXT]
        stranded.append(reverse.comm.Isend([notice, mpi.BYTE], partner, STOPPED_TAG))


def neighbours(rank: int, size: int) -> set[int]:
    """Return the ranks at distances of powers of two around a ring: a notice that each passes on soon reaches all."""
    distances = [1 << k for k in range((size - 1).bit_length())]
    return {(rank + sign * distance) % size for distance in distances for sign in (1, -1)}


def across(rank: int, size: int, others: int) -> set[int]:
    """Return the ranks of the other group to inform: such neighbours, and partners in the agreement."""
    return {rank % others} | neighbours(rank, others) | set(range(rank, others, size))


def look(listening: Iterable[Side], describe: Callable[[], str]) -> None:
    """Look for notices from ranks that this one may wait for.

    Parameters
    ----------
    listening : iterable of Side
        Communicators on which notices may come.
    describe : callable
        Describes what is waited for.

    Raises
    ------
    CommunicationError
        One has stopped its sweep.
    """
    reverses = [reverse for reverse in listening if not reverse.pending]  # MPI has not made the others yet
    for channel in {reverse.channel: None for reverse in reverses}:
        _hear(channel)
    for reverse in reverses:
        for notice in reverse.notices.copy():
            source, number, stopped = notice
            if number > reverse.sweep_with(source):
                continue  # of a later sweep: that rank has finished this one
            reverse.notices.remove(notice)
            if number < reverse.sweep_with(source):
                continue  # of a sweep that this rank refused as well
            ending, text = stopped.split(" ", 1)
            error = CommunicationError(
                f"rank {_WORLD.Get_rank()} of the world: gave up waiting for {describe()}, because {text}"
            )
            error.notice = text  # type: ignore[attr-defined]
            error.ending = int(ending)  # type: ignore[attr-defined]
            raise error


def _hear(channel: Line) -> None:
    """Receive the notices on a channel: each concerns one of the communicators that have or had it."""
    comm, status = channel.comm, mpi.Status()
    while comm.Iprobe(mpi.ANY_SOURCE, STOPPED_TAG, status):
        notice, source = bytearray(status.Get_count(mpi.BYTE)), status.Get_source()
        comm.Recv([notice, mpi.BYTE], source, STOPPED_TAG)
        put_aside(channel, source, bytes(notice))


def put_aside(channel: Line, source: int, notice: bytes) -> None:
    """Give a notice to the communicator that it concerns, if that still exists."""
    identity, number, stopped = notice.decode(errors="replace").split(" ", 2)
    reverse = channel.tenants.get(int(identity))
    if reverse is not None:
        reverse.notices.append((source, int(number), stopped))


def notice_of(error: BaseException) -> str:
    """Return the text of a notice: the error that stopped a sweep, on the rank where it began."""
    return getattr(error, "notice", None) or (
        f"rank {_WORLD.Get_rank()} of the world stopped its sweep with {type(error).__name__}: {error}"
    )


def status_of(error: BaseException) -> int:
    """Return the exit status of a program that does not catch an error: that of the rank where the error began."""
    match error:
        case SystemExit(code=int() as status):
            return int(status)
        case SystemExit(code=code):
            return int(code is not None)
        case KeyboardInterrupt():
            import signal

            return 128 + signal.SIGINT
    return getattr(error, "ending", 0) or 1
