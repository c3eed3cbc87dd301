"""Collective operations for which all ranks of the world must come: a rank that is in one says so on the `board`.

Another that waits for it in a sweep, and does not come therefore, finds out by this that it waits in vain.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from .board import board

number = itertools.count(1).__next__
"""Of the next such operation."""

meeting = board.meeting
_threads: Any = getattr(threading, "_active", ())  # `threading.active_count` takes a lock
_world = mpi.COMM_WORLD.Get_size() if len(board.places) > 1 else 0


def is_of_all(comm: Any) -> bool:
    """Whether all ranks of the world must come, and no other thread of this one may do what they wait for."""
    return comm.Get_size() == _world and len(_threads) == 1


def meets_others() -> None:
    """There are ranks of other worlds from now on: it is not known any more who is on a communicator."""
    global _world
    _world = 0


def attended(method: Callable[..., Any]) -> Callable[..., Any]:
    """A collective method of communicators that says so while it runs; as it is where nobody would see it."""
    if not _world:
        return method

    @functools.wraps(method)
    def attend(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not is_of_all(self) or not _is_predefined(keywords.get("op", arguments[1] if len(arguments) > 1 else None)):
            return method(self, *arguments, **keywords)
        meeting[0] = number()
        try:
            return method(self, *arguments, **keywords)
        finally:
            meeting[0] = 0

    return attend


def _is_predefined(op: Any) -> bool:
    """Whether this is no function of the program's, which may take its time."""
    return not callable(op) or (isinstance(op, mpi.Op) and op.is_predefined)


def attend_all(cls: type, names: str) -> None:
    """Have methods of a class of communicators, which has them itself or from mpi4py, say so."""
    for name in names.split() if _world else ():
        setattr(cls, name, attended(getattr(cls, name, None) or getattr(mpi.Intracomm, name)))
