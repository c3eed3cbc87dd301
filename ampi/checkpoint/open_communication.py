"""Communication that has not completed when a step of a time loop begins or ends."""

from __future__ import annotations

from collections.abc import Iterable

from ..mpi.collectives.reverse_schedule import Started
from ..mpi.log.log import Communication
from ..mpi.log.messages import Received
from ..tape import Tape


def open_receives(tape: Tape) -> list[Received]:
    """Return the receives of a tape that have not completed."""
    communication = tape.sweep_starts.get("communication")
    if not isinstance(communication, Communication):
        return []
    found = []
    for log in communication.logs.values():
        for message in log.messages:
            if isinstance(message, Received) and not message.void and message.request is not None:
                message.reverse = log.reverse  # to describe it
                if not message.completed():
                    found.append(message)
    return found


def _open_collectives(tape: Tape) -> list[Started]:
    """Return the nonblocking collectives of a tape that have not completed."""
    adjoints = [record.adjoint for record in tape.records]
    return [started for started in adjoints if type(started) is Started and not started.completed()]


def completed_of(receives: Iterable[Received]) -> list[Received]:
    """Return the receives that have completed in the meantime."""
    return [receive for receive in receives if receive.request is None or receive.completed()]


def left_open(tape: Tape) -> str:
    """Describe communication that has not completed at the end of a recorded step; empty if there is none."""
    for started in (*open_receives(tape), *_open_collectives(tape)):
        return (
            f"{started.describe()} has not completed at the end of the step that started it; wait for its request "
            "in this step, since steps run again one at a time"
        )
    for trace in getattr(tape.sweep_starts.get("windows"), "of", {}).values():
        problem = trace.problem()
        if problem:
            return f"at the end of a step, {problem}; steps run again one at a time, each with whole epochs"
    return ""
