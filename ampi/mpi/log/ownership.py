"""Ownership of communicators by threads: messages of two threads have no order that all ranks could agree on.

Each thread records on its own tape.  Tapes of two threads that record at the same time must not share a communicator,
even if their messages do not interleave: a rank could not know to which of them a message of another rank belongs.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Collection
from typing import Any

from ...errors import CommunicationError
from ...tape import Sweep, Tape, where_called
from ...tape.recording import is_around
from .reverse import Reverse

_lock = threading.Lock()


def require_alone(tape: Tape, reverse: Reverse) -> None:
    """Raise an error if a tape starts to log on a communicator on which another thread or task records.

    Raises
    ------
    CommunicationError
    """
    if reverse is None:
        return
    reverse.channel.threads.add(get_ident())
    with _lock:
        reverse.tapes[:] = [other for other in reverse.tapes if other() is not None and not other().closed]
        others: list[Any] = [other() for other in reverse.tapes]
        reverse.tapes.append(tape.reference)
    for other in others:
        if other is not tape and not is_around(other):
            _refuse(tape, other, reverse)


def _refuse(tape: Tape, other: Tape, reverse: Reverse) -> None:
    reverse.tapes.remove(tape.reference)
    who = "another task of this thread" if other.thread == tape.thread else f"thread '{other.thread_name}'"
    raise CommunicationError(
        f"{where_called()}: rank {reverse.rank}: thread '{tape.thread_name}' communicates on {reverse.name} while its "
        f"tape records, and so does {who} on another tape: the ranks could not agree which messages belong to which; "
        "give each thread its own communicator, `comm.Dup()`, made in the same order on all ranks"
    )


def claim(sweep: Sweep, reverses: Collection[Reverse]) -> None:
    """Claim communicators for a sweep.

    Raises
    ------
    CommunicationError
        A sweep of another thread is using one.
    """
    me = get_ident()
    channels = {reverse.channel: reverse for reverse in reverses}
    with _lock:
        for channel, reverse in channels.items():
            if channel.by_thread not in (None, me):
                raise CommunicationError(
                    f"rank {reverse.rank}: two threads sweep tapes with messages on {reverse.name} at the same time; "
                    "ask for one gradient after the other, in the same order on all ranks, or give each thread its "
                    "own communicator, `comm.Dup()`"
                )
        sweep.state["claimed"] = [channel for channel in channels if channel.by_thread is None]
        for channel in channels:
            channel.by_thread = me


def release(sweep: Sweep) -> None:
    """Release the communicators at the end of a sweep; an outer sweep of the same thread keeps its own."""
    for channel in sweep.state.pop("claimed", ()):
        channel.by_thread = None
