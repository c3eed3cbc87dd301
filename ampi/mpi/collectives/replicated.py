"""Objectives that are one value of all ranks, and are counted once for each: seen when their sweep begins."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...memory.storages import Storage
from ...tape import lanes_of

if TYPE_CHECKING:
    from ...tape import Sweep
    from ..log.log import Communication
    from ..log.messages import Collective

_BUFFERS_TO_ALL = ("Allreduce", "Allgather", "Allgatherv", "Bcast")
_TO_ALL = {form for name in _BUFFERS_TO_ALL for form in (name, f"I{name[0].lower()}{name[1:]}", f"{name}_init")}
_TO_ALL |= {"bcast", "allgather", "allreduce"}
"""Operations that give all ranks the same."""


def look_for_replicated(sweep: Sweep, call: Collective, results: Collection[Storage | None]) -> None:
    """At the first collective call that a sweep reverses: note it if the ranks have all returned the same value, which
    has no derivative but through what the call gave them.

    ``results``: where that is.
    """
    tape = sweep.tape
    tape.returned = None  # only what comes first can be all that there is
    communication: Communication = tape.latest[2] or next(iter(tape.sweep_starts.values()))
    log = communication.logs.get(call.reverse)
    if log is None or not log.alike or call.name not in _TO_ALL or call.reverse.comm.Get_size() == 1:
        return
    for lane in lanes_of(sweep):
        for storage, _ in lane.sizes():
            if storage not in results and lane.block(storage).any():
                return
    tape.replicated = call
