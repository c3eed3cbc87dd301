"""Lifetimes of buffers: their memory must be kept alive until an operation under way has read or written it.

A program may give an operation an array that nothing else holds: ``comm.Iallreduce(u * u, y)``, ``win.Put(2 * x, 1)``.
mpi4py's requests keep the arrays of most operations, but not those of reductions and of Iallgatherv, and its windows
keep none: MPI then reads memory that has been given to another array.  So our requests hold what mpi4py's do not, and
windows hold the buffers of an operation until the call that completes it at its origin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI as mpi

from .requests import Request


def holding(request: mpi.Request, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Request:
    """Return ampi's request for an operation; it keeps the operation's arguments alive."""
    ours = request if type(request) is Request else Request(request)  # type: ignore[call-arg]
    given = (*arguments, *keywords.values()) if keywords else arguments
    ours.held = [tuple(x) if type(x) is list else x for x in given]
    return ours


_handle_of = mpi.Win.handle.__get__
_held: defaultdict[int, defaultdict[int, list[Any]]] = defaultdict(lambda: defaultdict(list))
"""Buffers of operations under way, by handle of the window and rank of the target."""


def hold(win: mpi.Win, rank: int, *buffers: Any) -> None:
    """Keep the buffers of an operation of a window until it has completed."""
    _held[_handle_of(win)][rank].append(buffers)


def let_go(win: mpi.Win) -> None:
    """Release the buffers of all operations of a window, which have completed here."""
    if _held:
        _held.pop(_handle_of(win), None)


def let_go_of(win: mpi.Win, rank: int) -> None:
    """Release the buffers of all operations on a target, which have completed here."""
    if _held:
        by_rank = _held.get(_handle_of(win))
        if by_rank is not None:
            by_rank.pop(rank, None)
