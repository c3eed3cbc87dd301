"""Collective operations that need all ranks of the world: a rank that is in one publishes this on the `board`.

A rank that waits for it in a sweep, and has not reached this operation, thus learns that it waits in vain.  The ranks
count these operations: if a rank has the same count, it has reached the operation, and its partner waits there for
another rank.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from .board import board

met = board.met
meeting = board.meeting
_threads: Any = getattr(threading, "_active", ())  # `threading.active_count` takes a lock
_world = mpi.COMM_WORLD.Get_size() if len(board.places) > 1 else 0


def is_of_all(comm: Any) -> bool:
    """Return whether a communicator has all ranks of the world."""
    return comm.Get_size() == _world


def begin(shown: bool = True) -> None:
    """Count an operation, and publish it unless it may take long or other threads continue meanwhile."""
    met[0] += 1
    meeting[0] = met[0] if shown and len(_threads) == 1 else 0


def forget() -> None:
    """Stop publishing operations, and stop using those of others: the ranks may count differently.

    There are ranks of other worlds, so the members of a communicator are no longer known; or an operation has
    ended with an exception, before or after the ranks met.
    """
    global _world
    _world = meeting[0] = 0
    board.counts = False


def attended(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a collective method to be shown on the board while it runs; unchanged if no rank could see it."""
    if not _world:
        return method

    @functools.wraps(method)
    def attend(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not is_of_all(self):
            return method(self, *arguments, **keywords)
        begin(_is_predefined(keywords.get("op", arguments[1] if len(arguments) > 1 else None)))
        try:
            result = method(self, *arguments, **keywords)
        except BaseException:
            forget()
            raise
        meeting[0] = 0
        return result

    return attend


def _is_predefined(op: Any) -> bool:
    """Return whether an operation is MPI's: a function of the program may take long."""
    return not callable(op) or (isinstance(op, mpi.Op) and op.is_predefined)


def attend_all(cls: type, names: str) -> None:
    """Decorate methods of a class of communicators, its own or mpi4py's, with `attended`."""
    for name in names.split() if _world else ():
        setattr(cls, name, attended(getattr(cls, name, None) or getattr(mpi.Intracomm, name)))
