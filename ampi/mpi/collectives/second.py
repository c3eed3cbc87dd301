"""Collectives on buffers in second order: tangents are sent beside the values, and calls are recorded for the sweep.

In the sweep the adjoint and its tangents take their steps together, each with the messages of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI as mpi

from ...memory.storages import plain
from ...tape import Push, Tape, Undo
from ..log import log
from ..memory.tangents import require_program, tangents_in
from ..waiting.notices import stranded
from . import forward_collectives
from .collective_calls import Call, Performed
from .reduction_plans import Reducing
from .reductions_second import WithTangents, is_nonlinear
from .reverse_schedule import Started

if TYPE_CHECKING:
    from .collective_recording import CollectiveOperation


class SecondPerformed(Performed):
    """A collective call whose tangents were sent beside the values."""

    __slots__ = ()
    propagates_tangents = True

    def tangent(self, push: Push) -> None:
        """Do nothing: tangents were sent with the values."""


class SecondStarted(Started):
    """A collective with a request, and with tangents."""

    __slots__ = ()
    propagates_tangents = True

    def __init__(self, performed: Performed, finish_tangent: Callable[[], None]) -> None:
        super().__init__(performed)
        self.finish_tangent = finish_tangent

    def tangent(self, push: Push) -> None:
        """Do nothing: tangents arrive with the values."""

    def resolve(self, status: mpi.Status | None) -> None:
        """End the collective: the request has completed."""
        ends = self.request is not None
        super().resolve(status)
        if ends:
            self.finish_tangent()

    def take_back(self, tape: Tape, error: BaseException) -> None:
        """Clean up: MPI has refused to start it."""
        super().take_back(tape, error)
        stranded.append(self.finish_tangent)  # MPI may still use its memory


def perform(
    comm: mpi.Comm, operation: CollectiveOperation, primal: Callable, arguments: Sequence[Any], tape: Any
) -> None:
    """Run a blocking collective in second order."""
    call = _prepared(comm, operation, arguments, {}, tape, False)
    try:
        performed, finish = _log_and_begin(comm, call, tape, False)
        try:
            primal(comm, *arguments)
        except BaseException as error:
            _clean_up(tape, performed, finish, performed.undo, error)
            raise
        call.activate(tape, comm, performed.reads_active)
        finish()
    finally:
        call.detach()
    tape.append_record(performed)


def start(
    name: str,
    comm: mpi.Comm,
    operation: CollectiveOperation,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    tape: Any,
) -> SecondStarted:
    """Check, log and record a collective with a request before it starts."""
    call = _prepared(comm, operation, arguments, keywords, tape, True)
    call.name = name
    performed, finish = _log_and_begin(comm, call, tape, True)
    undo, performed.undo = performed.undo, []
    call.activate(tape, comm, performed.reads_active)
    call.detach()
    started = SecondStarted(performed, finish)
    tape.append_start(started, undo)
    return started


def _prepared(
    comm: mpi.Comm,
    operation: CollectiveOperation,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    tape: Any,
    started: bool,
) -> Call:
    require_program(tape)
    if tape.before_append is not None:
        tape.before_append()
    return operation.call(comm, arguments, keywords, started=started)


def _log_and_begin(comm: mpi.Comm, call: Call, tape: Any, started: bool) -> tuple[Performed, Callable[[], None]]:
    """Log a call, save what its adjoint needs, and begin to send tangents; also return the function that ends this."""
    performed = call.log(tape, comm)
    performed.__class__ = SecondPerformed
    performed.keep_values(tape, started)
    rule = call.part.rule if isinstance(call.part, Reducing) else None
    if performed.values is not None and rule is not None and is_nonlinear(rule, call.needed):
        find, dots = performed.values, tangents_in(tape.tangents, call.needed)
        performed.values = lambda: WithTangents(plain(find()), dots)
    performed.undo = call.overwrite()  # before a tangent arrives
    try:
        with tape.pushing():
            return performed, forward_collectives.begin(comm, call, tape, started)
    except BaseException as error:
        _clean_up(tape, performed, None, performed.undo, error)
        raise


def _clean_up(
    tape: Any, performed: Performed, finish: Callable[[], None] | None, undo: Sequence[Undo], error: BaseException
) -> None:
    """Clean up after a logged call, or the transfer of its tangents, has raised an error."""
    log.refused(tape, performed, error)
    if finish is not None:
        stranded.append(finish)  # MPI may still use its memory
    if undo:
        tape.append(None, undo)  # nothing else saves these values
