"""Completion of requests: what is recorded when they have completed, and before.

The attributes ``parts``, ``recorded_by`` and ``unpack`` of a request say what it completes (see `requests`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI as mpi

from ...tape import Tape
from ..log.messages import CUT, Completion, Lost, Received, Sent
from ..memory.buffers import Buffer
from ..waiting.arrivals_seen import take_some


def parts_of(request: Any) -> tuple[Sent | Received, ...] | None:
    """Return the logged operations that a request completes; None if it was not recorded."""
    return getattr(request, "parts", None)


def any_recorded(requests: Iterable[Any]) -> bool:
    """Return whether a tape has recorded the start of any of these requests."""
    for request in requests:
        if getattr(request, "parts", None) is not None:
            return True
    return False


def status_for(request: Any, status: mpi.Status | None) -> mpi.Status | None:
    """Return a status for a recorded request: the given one, or a new one if a receive has a wildcard."""
    if status is None:
        for part in request.parts:
            if part.wild:
                return mpi.Status()
    return status


def statuses_for(requests: Sequence[Any], statuses: list[mpi.Status] | None) -> list[mpi.Status] | None:
    """Return a list for statuses: the given one, or a new one if a receive has a wildcard."""
    if statuses is None:
        for request in requests:
            for part in getattr(request, "parts", None) or ():
                if part.wild:
                    return []
    return statuses


def record_completion(requests: Sequence[Any]) -> Completion | None:
    """Record the completion of requests that are about to be waited for, while their objects are in the caches.

    Returns
    -------
    Completion or None
        The operations that they complete.  None if some have not been recorded, or if their statuses are needed
        (`finish`).
    """
    completion = Completion()
    reference = None
    try:
        for request in requests:
            (part,) = request.parts
            buffer = part.buffer
            if part.wild or type(buffer) is not Buffer:
                return None
            kind = type(part)
            if kind is Sent:
                if part.request is not None:
                    return None
            elif kind is not Received or buffer.storage is None:
                return None
            if request.recorded_by is not reference:
                if reference is not None:
                    return None
                reference = request.recorded_by
            completion.append(part)
    except (AttributeError, TypeError, ValueError):  # mpi4py's own, not recorded, or with several parts
        return None
    if reference is None:
        return None
    tape = reference()
    if tape is None or tape.observer is not None:  # it is notified after the wait
        return None
    for request, part in zip(requests, completion):
        request.parts = None
        if part.request is not None:  # a receive
            part.request = None
            part.buffer.storage.arriving -= 1
    if tape.accesses is not None:
        note_arrivals(tape, completion)
    tape.append_record(completion)
    return completion


def restore(requests: Sequence[Any], completion: Completion) -> None:
    """Restore requests after a failed wait: which of them have completed is unknown."""
    for request, part in zip(requests, completion):
        request.parts = (part,)
        if type(part) is Received:
            part.request = request
            part.buffer.storage.arriving += 1
    completion.clear()


def finish(requests: Sequence[Any], statuses: Sequence[mpi.Status | None] | None) -> None:
    """Determine which messages completed requests have matched, and record the wait on the tape of their start."""
    completed = Completion()
    reference = None
    position = -1
    for request in requests:
        position += 1
        parts = getattr(request, "parts", None)
        if parts is None:
            continue
        request.parts = None
        if request.recorded_by is not reference:
            if completed:
                _record(reference, completed)
                completed = Completion()
            reference = request.recorded_by
        for part in parts:
            if type(part) is Sent:
                if part.wild:
                    part.resolve(None if statuses is None else statuses[position])
                if part.buffer is not None:
                    completed.append(part)
            elif type(part) is Received:
                part.resolve(None if statuses is None else statuses[position])
                if part.buffer is not None:
                    completed.append(part)
            else:
                part.resolve(None if statuses is None else statuses[position])
                if part.active:
                    completed.append(part)
    if completed:
        _record(reference, completed)


def _record(reference: Any, completed: Completion) -> None:
    """Record a wait on the tape that has recorded the start."""
    tape = reference()
    if tape is not None:
        if tape.accesses is not None:
            note_arrivals(tape, completed)
        tape.append_record(completed)


def note_arrivals(tape: Tape, completed: Completion) -> None:
    """Note, while tasks run, that messages have arrived: their receives have noted the writes when they started."""
    for part in completed:
        call = getattr(part, "performed", None)
        for buffer in () if type(part) is Sent else (part.buffer,) if call is None else call.call.writes:
            for region in buffer.regions() if isinstance(buffer, Buffer) else ():
                tape.accesses.wrote(region)


def record_some(
    primal: Callable[..., list[int] | None], requests: Sequence[Any], statuses: list[mpi.Status]
) -> list[int] | None:
    """Run Waitsome or Testsome, and record the requests that have completed."""
    indices = take_some(requests, statuses)
    if indices is None:
        try:
            indices = primal(requests, statuses)
        except mpi.Exception as error:
            raised(requests, None, error)
            raise
    if indices:
        finish([requests[index] for index in indices], statuses)
    return indices


def raised(requests: Sequence[Any], statuses: Sequence[mpi.Status | None] | None, error: mpi.Exception) -> None:
    """Finish the requests that completed although a wait or test raised an error, which the program may catch.

    If a message was too long, MPI has filled the buffer with its beginning.
    """
    alone = len(requests) == 1 and error.Get_error_class() == mpi.ERR_TRUNCATE
    if statuses is not None and len(statuses) < len(requests):
        statuses = None
    ended = [k for k, request in enumerate(requests) if parts_of(request) is not None and (alone or not request)]
    for k in ended:
        for part in requests[k].parts:
            if isinstance(part, Received):
                part.nbytes = CUT
    finish([requests[k] for k in ended], None if statuses is None else [statuses[k] for k in ended])


def lost(requests: Sequence[Any]) -> None:
    """Finish requests whose objects could not be unpickled, or were too long, after a wait has raised an error."""
    ended = [request for request in requests if parts_of(request) is not None and not request]
    for request in ended:
        for part in request.parts:
            if isinstance(part, Received):
                part.__class__ = Lost
                part.buffer, part.dropped = None, True
    finish(ended, None)


def finish_objects(
    requests: Sequence[Any], statuses: Sequence[mpi.Status | None] | None, messages: Sequence[Any]
) -> list[Any]:
    """Record a wait for requests of Python objects; return the objects for the user."""
    unpackers = [getattr(request, "unpack", None) if parts_of(request) else None for request in requests]
    messages = [message if unpack is None else unpack(message) for unpack, message in zip(unpackers, messages)]
    finish(requests, statuses)
    return messages


def finish_some_objects(
    requests: Sequence[Any], some: tuple[list[int] | None, list[Any] | None], statuses: Sequence[mpi.Status]
) -> tuple[list[int] | None, list[Any] | None]:
    indices, messages = some
    if not indices:
        return indices, messages
    return indices, finish_objects([requests[index] for index in indices], statuses, messages or ())
