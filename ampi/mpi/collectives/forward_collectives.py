"""Collectives on buffers in forward mode: tangents are sent beside the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...tape import Push, Tape, no_tangent, where_called
from ..base.call_sites import name_of
from ..log.reverse import reverse_of
from ..memory.buffers import NOTHING, arrive
from ..memory.tangents import set_tangent
from ..waiting.arrivals_seen import has_ended
from ..waiting.notices import stranded
from .collective_calls import Call
from .reduction_plans import Reducing
from .tangents import begin_tangent

if TYPE_CHECKING:
    from .collective_recording import CollectiveOperation


def perform(
    comm: mpi.Comm, operation: CollectiveOperation, primal: Callable, arguments: Sequence[Any], tape: Tape
) -> None:
    """Run a blocking collective in forward mode."""
    if tape.before_append is not None:
        tape.before_append()
    call = operation.call(comm, arguments)
    try:
        finish = begin(comm, call, tape, False)
        undo = call.overwrite()
        if undo:
            tape.append(None, undo)
        try:
            primal(comm, *arguments)
        except BaseException:
            stranded.append(finish)  # MPI may still use its memory
            raise
        for buffer in call.writes:
            buffer.activate(tape)
        finish()
    finally:
        call.detach()


def start(
    comm: mpi.Comm, operation: CollectiveOperation, arguments: Sequence[Any], keywords: Mapping[str, Any], tape: Tape
) -> ForwardStarted:
    """Begin to send tangents, before a collective with a request starts in forward mode."""
    if tape.before_append is not None:
        tape.before_append()
    call = operation.call(comm, arguments, keywords, started=True)
    finish = begin(comm, call, tape, True)
    undo = call.overwrite()
    if undo:
        tape.append(None, undo)
    for buffer in call.writes:
        buffer.activate(tape)
    started = ForwardStarted(finish, next(iter(call.writes), NOTHING), f"{call.name} at {where_called()}")
    call.detach()
    return started


class ForwardStarted:
    """A collective with a request in forward mode, which ends with the request."""

    __slots__ = ("buffer", "describe", "finish", "request", "wild")
    active = True

    def __init__(self, finish: Callable[[], None], buffer: Any, what: str) -> None:
        self.finish = finish
        self.buffer = buffer
        self.describe = lambda: what
        self.request: Any = None
        self.wild = False

    def resolve(self, status: mpi.Status | None) -> None:
        """End the collective: the request has completed."""
        if self.request is not None:
            self.request.held = None
            self.request = None
            arrive(self.buffer, -1)
            self.finish()

    def completed(self) -> bool:
        """Return whether the request has been completed, even by a method that ampi does not see."""
        return has_ended(self.request)

    def take_back(self, tape: Tape, error: BaseException) -> None:
        """Clean up: MPI has refused to start it."""
        stranded.append(self.finish)  # MPI may still use its memory


def begin(comm: mpi.Comm, call: Call, tape: Tape, started: bool) -> Callable[[], None]:
    """Check a call and begin to send its tangents, before the values; returns the function that ends it."""
    if tape.at_message is not None:
        tape.at_message()
    push: Push = tape.forward
    reverse = reverse_of(comm)
    active = any([buffer.active(tape) for buffer in call.reads])
    if reverse is None:
        if active:
            raise CommunicationError(
                f"{call.name} of an active array on {name_of(comm)}, which has no reverse communicator because it was "
                "made from mpi4py's own; make it from ampi.COMM_WORLD"
            )
        return lambda: _forget(push, call)
    reverse.require_usable()
    if active:
        call.check_counts(comm)
        if call.refused:
            raise ActivityError(f"{call.name}: {call.refused}")
    part = call.part
    if isinstance(part, Reducing) and part.rule is None and not part.is_of_integers():
        raise no_tangent(f"{call.name} with an operation without derivative")
    return begin_tangent(part, push, reverse, call.name, started)


def _forget(push: Push, call: Call) -> None:
    for buffer in call.writes:
        set_tangent(push, buffer, None)
