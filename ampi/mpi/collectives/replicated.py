"""Detection of objectives that are equal on all ranks, which a sweep would count once for each rank."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ...memory.storages import Storage
from ...tape import lanes_of
from ...tape.elements import Elements

if TYPE_CHECKING:
    from ...tape import Sweep
    from ..log.log import Communication
    from ..log.messages import Collective

_BUFFERS_TO_ALL = ("Allreduce", "Allgather", "Allgatherv", "Bcast")
_TO_ALL = {form for name in _BUFFERS_TO_ALL for form in (name, f"I{name[0].lower()}{name[1:]}", f"{name}_init")}
_TO_ALL |= {"bcast", "allgather", "allreduce"}
"""Operations whose results are the same on all ranks."""


def look_for_replicated(sweep: Sweep, call: Collective, results: Collection[Storage | None]) -> None:
    """Note the first collective call that a sweep reverses if it causes a replicated objective.

    That is so if all ranks have returned the same value, and its derivative comes from the results of this call alone.
    ``results`` are the storages of the results.
    """
    tape = sweep.tape
    tape.returned = None  # only for the first call
    communication: Communication = tape.latest[2] or next(iter(tape.sweep_starts.values()))
    log = communication.logs.get(call.reverse)
    if log is None or not log.alike or call.name not in _TO_ALL or call.reverse.comm.Get_size() == 1:
        return
    for lane in lanes_of(sweep):
        variables = lane.state.get(Elements)  # those made before the call: others have been swept
        if variables is not None and variables.any():
            return
        for storage, _ in lane.sizes():
            if storage not in results and lane.block(storage).any():
                return
    tape.replicated = call
