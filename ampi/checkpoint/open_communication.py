"""Communication that has not completed when a step of a time loop begins or ends, or that has no object any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from mpi4py import MPI as mpi

from ..errors import CommunicationError
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


_OF_FREED_OBJECTS = {
    mpi.ERR_COMM: "communicator",
    mpi.ERR_TYPE: "datatype",
    mpi.ERR_REQUEST: "request",
    mpi.ERR_OP: "operation",
    mpi.ERR_GROUP: "group",
    mpi.ERR_WIN: "window",
    mpi.ERR_FILE: "file",
}
"""The classes of MPI's errors for a null handle, and what it was a handle of."""


@contextlib.contextmanager
def with_objects_of_the_first_time(where: str) -> Iterator[None]:
    """Run a step again: if an object of MPI was freed after the loop, the error says so, and not that it is null."""
    try:
        yield
    except (mpi.Exception, ValueError) as error:
        kind = _freed_object_of(error)
        if kind is None:
            raise
        raise CommunicationError(
            f"{where}: ampi.timeloop: a step that runs again in the sweep uses a {kind} that was freed after the loop; "
            "free it after the gradient, or make and free it inside the step"
        ) from error


def _freed_object_of(error: Exception) -> str | None:
    """Return the kind of MPI object whose null handle an error is about; None: it is about something else."""
    if not isinstance(error, mpi.Exception):
        return "datatype" if str(error).endswith("datatype is null") else None  # mpi4py reads the argument itself
    return _OF_FREED_OBJECTS.get(error.Get_error_class())
