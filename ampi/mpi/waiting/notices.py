"""Notices that a sweep has stopped: a rank tells few others, who stop and tell others in turn, as rumours spread.

Who waits for a rank that has stopped waits for a message of its, or in a collective.  In the agreement, and in those
collectives whose results depend on all ranks, everybody waits until everybody has come: whatever the trees or rings of
MPI's algorithm are, ranks at distances of powers of two pass the news on to all in as many steps as their number has
digits.  Where a root alone needs what the others contribute, those may be through that would pass it on.  The root is
not: it is told, and tells all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from mpi4py import MPI as mpi

from ...errors import CommunicationError
from .sides import Line, Side

STOPPED_TAG = 0
"""Tag of the notice on a reverse communicator that a rank has stopped its sweep."""

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound to ours
_TEXT = 2000  # bytes of a notice

stranded: list[Any] = []
"""Requests of sweeps that stopped, with their buffers: MPI may still read from them or write to them, and does so until
it is finalised, after the interpreter has let go of all modules.  This list is not freed then."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(stranded))


def tell(reverse: Side, partners: Iterable[int], error: BaseException) -> None:
    """Tell partners, who may be waiting for this rank, that it has stopped, why, and with which status it may end."""
    reverse.keep()
    stopped = f"{status_of(error)} {notice_of(error)}"
    for partner in partners:
        notice = f"{reverse.identity} {reverse.sweep_with(partner)} {stopped}".encode()[:_TEXT]
        stranded.append(reverse.comm.Isend([notice, mpi.BYTE], partner, STOPPED_TAG))


def neighbours(rank: int, size: int) -> set[int]:
    """Ranks at distances of powers of two around a ring: news that each passes on reach all in few steps."""
    distances = [1 << k for k in range((size - 1).bit_length())]
    return {(rank + sign * distance) % size for distance in distances for sign in (1, -1)}


def across(rank: int, size: int, others: int) -> set[int]:
    """The same in the other group of an intercommunicator, with those that this rank tells in the agreement."""
    return {rank % others} | neighbours(rank, others) | set(range(rank, others, size))


def look(listening: Iterable[Side], describe: Callable[[], str]) -> None:
    """Look for notices from ranks that this one may wait for.

    Parameters
    ----------
    listening : iterable of Side
        Where they may come from.
    describe : callable
        Says what is waited for.

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
                continue  # of a later sweep: that rank has done its part of this one
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
    """Receive what has come on a channel: it concerns one of the communicators that have it, or have had it."""
    comm, status = channel.comm, mpi.Status()
    while comm.Iprobe(mpi.ANY_SOURCE, STOPPED_TAG, status):
        notice, source = bytearray(status.Get_count(mpi.BYTE)), status.Get_source()
        comm.Recv([notice, mpi.BYTE], source, STOPPED_TAG)
        identity, number, stopped = notice.decode(errors="replace").split(" ", 2)
        reverse = channel.tenants.get(int(identity))
        if reverse is not None:
            reverse.notices.append((source, int(number), stopped))


def notice_of(error: BaseException) -> str:
    """What the other ranks are told about the error that stopped a sweep: where it began."""
    return getattr(error, "notice", None) or (
        f"rank {_WORLD.Get_rank()} of the world stopped its sweep with {type(error).__name__}: {error}"
    )


def status_of(error: BaseException) -> int:
    """The status with which a program ends that does not catch an error: that of the rank where it began."""
    match error:
        case SystemExit(code=int() as status):
            return int(status)
        case SystemExit(code=code):
            return int(code is not None)
        case KeyboardInterrupt():
            import signal

            return 128 + signal.SIGINT
    return getattr(error, "ending", 0) or 1
