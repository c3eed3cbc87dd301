"""Persistent receives and collectives that a tape has found completed before the program has.

A tape calls `Get_status` to find out whether mpi4py's own class has completed a persistent request unseen.  MPICH
treats that as a completion: from then on the request is inactive, and Waitany and statuses report no message.
So the status is stored with the request, and the methods here that complete requests pass it to the program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI as mpi

_Status, _Get_status, _Testsome = mpi.Status, mpi.Request.Get_status, mpi.Request.Testsome
_Prequest = mpi.Prequest  # mpi4py's own: the name in its module is rebound later
_SIZE = mpi._sizeof(mpi.Status)
_kept: set[int] = set()  # handles of requests with such a status; usually empty, and then the lookup is skipped


def has_arrived(request: Any) -> mpi.Status | None:
    """Return the status of a persistent receive's message, an empty one if the request is inactive, or else None."""
    seen = getattr(request, "arrived", None)
    if seen is not None:
        return seen
    status = _Status()
    if not _Get_status(request, status):
        return None
    if status.Get_source() != mpi.ANY_SOURCE or status.Is_cancelled():
        request.arrived = status
        _kept.add(request.handle)
    return status


def has_ended(request: Any) -> bool:
    """True if a request, which may be None, has been completed, perhaps by a method that ampi does not see."""
    return not request or (isinstance(request, _Prequest) and has_arrived(request) is not None)


def is_done(request: Any, status: mpi.Status | None) -> bool:
    """Test a request, persistent or not, without completing it for the program."""
    if not isinstance(request, _Prequest):
        return bool(_Get_status(request, status))
    seen = has_arrived(request)
    if seen is not None:
        tell(seen, status)
    return seen is not None


def take(request: Any, status: mpi.Status | None = None) -> bool:
    """Complete a request that a tape has found completed, with its status; return False if there is none."""
    seen = getattr(request, "arrived", None) if _kept else None
    if seen is None:
        return False
    forget(request)
    tell(seen, status)
    return True


def forget(request: Any) -> None:
    """Drop the status of a request that starts again, or has passed it on."""
    request.arrived = None
    _kept.discard(request.handle)


def tell(seen: mpi.Status, status: mpi.Status | None) -> None:
    """Copy a status."""
    if status is not None:
        ctypes.memmove(mpi._addressof(status), mpi._addressof(seen), _SIZE)


def take_first(requests: Sequence[Any], status: mpi.Status) -> int:
    """Complete the first request that a tape has found completed; return its position, or -1 if there is none."""
    if _kept:
        for position, request in enumerate(requests):
            if take(request, status):
                return position
    return -1


def take_all(requests: Sequence[Any], statuses: Sequence[mpi.Status] | None) -> None:
    """Pass on the statuses of those that a tape has found completed among requests that all have."""
    if _kept:
        for position, request in enumerate(requests):
            take(request, None if statuses is None else statuses[position])


def take_some(requests: Sequence[Any], statuses: list[mpi.Status]) -> list[int] | None:
    """Return the positions of completed requests; None if a tape has found none of them completed before."""
    if not _kept or all(getattr(request, "arrived", None) is None for request in requests):
        return None
    others: list[mpi.Status] = []
    found = dict(zip(_Testsome(requests, others) or (), others))
    for position, request in enumerate(requests):
        status = _Status()
        if take(request, status):
            found[position] = status
    statuses[:] = [found[position] for position in sorted(found)]
    return sorted(found)
