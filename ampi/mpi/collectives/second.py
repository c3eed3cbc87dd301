"""Messages and collectives on buffers in second order.

While the program runs, tangents go beside the values, as in forward mode, and everything is logged for the sweep, as in
reverse mode.  In the sweep one message carries the adjoint and its tangents; reversed collectives do the same for all
of them, step by step, with the messages of all under way: all ranks take the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ...memory.storages import plain
from ...tape import Sweep, no_second_derivative
from ..log import log
from ..log.ownership import require_alone
from ..log.reverse import Reverse
from ..memory.tangents import require_program, tangents_in
from ..messages.forward import ForwardCommunication, ForwardLog, weakly
from ..waiting.notices import stranded
from . import forward_collectives
from .collective_calls import Call, Performed
from .reductions import Steps, known
from .reductions_second import is_curved, rules_in_lanes
from .reverse_schedule import Started, in_step


class SecondCommunication(ForwardCommunication):
    """What is said while a tape of second order records."""

    __slots__ = ()

    def __init__(self, tape: Any) -> None:
        with tape.pushing():
            super().__init__(tape)

    def log(self, reverse: Reverse) -> SecondLog:  # type: ignore[override]
        """What is said on one communicator."""
        found = self.logs.get(reverse)
        if found is None:
            reverse.ready()
            if reverse.broken:
                raise CommunicationError(
                    f"rank {reverse.rank}: {reverse.name} cannot be used for derivatives any more, go on with a "
                    f"duplicate, comm.Dup(), made on all its ranks: {reverse.broken}"
                )
            require_alone(self.tape(), reverse)  # type: ignore[arg-type]
            found = self.logs[reverse] = SecondLog(self.push, reverse)
        return found  # type: ignore[return-value]


class _Kept(list):
    """A list whose items are given to somebody before they are in it."""

    def __init__(self, give: Callable[[Any], None]) -> None:
        self._give = give

    def append(self, item: Any) -> None:
        """Give and keep an item."""
        self._give(item)
        super().append(item)


class SecondLog(ForwardLog):
    """The messages of one communicator."""

    __slots__ = ()

    def __init__(self, push: Any, reverse: Reverse) -> None:
        super().__init__(push, reverse)
        self.messages = _Kept(weakly(self.said))
        self.collectives = _Kept(weakly(self.called))

    def said(self, message: Any) -> None:
        """A message is about to be sent, or a receive to be posted."""
        require_program(self.push.tape)
        super().said(message)

    def called(self, call: Any) -> None:
        """A collective call."""
        require_program(self.push.tape)
        if type(call) is not Performed and call.name not in _OF_WINDOWS and not call.name[0].islower():  # of objects
            raise no_second_derivative(f"{call.name} on {self.reverse.name}")


_OF_WINDOWS = ("Win", "Fence", "Free")


def steps_of_pairs(performed: Performed, sweep: Sweep, x: WithTangents) -> Steps:
    """The steps of a reversed reduction that is not linear, for adjoints and their tangents."""
    adjoint: Any = performed.call.adjoint
    rules = rules_in_lanes(adjoint.args[0], len(x.tangents))
    values = x.value, *(np.stack([x.value, tangent]) for tangent in x.tangents)
    comm = performed.reverse.comm
    return in_step([adjoint.func(rules[k], lane, comm, values[k]) for k, lane in enumerate(sweep.lanes)])


class WithTangents:
    """Contributions to a reduction that is not linear, flat, and their tangents in each direction."""

    __slots__ = ("tangents", "value")

    def __init__(self, value: np.ndarray, tangents: list[np.ndarray]) -> None:
        self.value = value
        self.tangents = tangents


class SecondPerformed(Performed):
    """A collective call whose tangent goes beside it."""

    __slots__ = ()
    propagates_tangents = True

    def tangent(self, push: Any) -> None:
        """Nothing: it went with the values."""


class SecondStarted(Started):
    """A collective with a request, and its tangent."""

    __slots__ = ("tangent_call",)
    propagates_tangents = True

    def __init__(self, performed: Performed, tangent: Any) -> None:
        super().__init__(performed)
        self.tangent_call = tangent

    def tangent(self, push: Any) -> None:
        """Nothing: it comes with the values."""

    def resolve(self, status: mpi.Status | None) -> None:
        """The request has completed."""
        ends = self.request is not None
        super().resolve(status)
        if ends:
            self.tangent_call.finish()

    def take_back(self, tape: Any, error: BaseException) -> None:
        """MPI has refused to start it."""
        super().take_back(tape, error)
        stranded.append(self.tangent_call)  # MPI may still use its memory


def _taken_back(tape: Any, performed: Performed, tangent: Any, undo: Any, error: BaseException) -> None:
    """A call, or its tangent's part, has raised an error after it was logged."""
    log.refused(tape, performed, error)
    if tangent is not None:
        stranded.append(tangent)  # MPI may still use its memory
    if undo:
        tape.append(None, undo)  # which says no more what is to be saved when the memory is overwritten


def perform(comm: Any, operation: Any, primal: Callable, arguments: Sequence[Any], tape: Any) -> None:
    """Run a blocking collective."""
    call = _prepared(comm, operation, arguments, {}, tape, False)
    try:
        performed, tangent = _begun(comm, operation, call, arguments, {}, tape, False)
        try:
            primal(comm, *arguments)
        except BaseException as error:
            _taken_back(tape, performed, tangent, performed.undo, error)
            raise
        call.activate(tape, comm, performed.reads_active)
        tangent.finish()
    finally:
        call.detach()
    tape.append_record(performed)


def start(
    name: str, comm: Any, operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], tape: Any
) -> SecondStarted:
    """Before a collective with a request starts."""
    call = _prepared(comm, operation, arguments, keywords, tape, True)
    call.name = name
    performed, tangent = _begun(comm, operation, call, arguments, keywords, tape, True)
    undo, performed.undo = performed.undo, ()
    call.activate(tape, comm, performed.reads_active)
    call.detach()
    started = SecondStarted(performed, tangent)
    tape.append_start(started, undo)
    return started


def _prepared(
    comm: Any, operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], tape: Any, started: bool
) -> Call:
    require_program(tape)
    if tape.before_append is not None:
        tape.before_append()
    call = operation.call(comm, arguments, keywords, started=started)
    return call


def _begun(
    comm: Any,
    operation: Any,
    call: Call,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    tape: Any,
    started: bool,
) -> tuple[Performed, Any]:
    """The call in the log, with what its adjoint wants, and the tangent's part under way."""
    performed = call.log(tape, comm)
    performed.__class__ = SecondPerformed
    performed.keep_values(tape, started)
    op = operation.given(arguments, keywords).get("op")
    rule = None if op is None or performed.values is None else known(op)
    if rule is not None and is_curved(rule, call.needed):
        find, dots = performed.values, tangents_in(tape.tangents, call.needed)
        performed.values = lambda: WithTangents(plain(find()), dots)
    performed.undo = call.overwrite()  # before a tangent comes
    try:
        with tape.pushing():
            given = operation.given(arguments, keywords)
            tangent = forward_collectives.begin(comm, operation, call, given, tape, started)
    except BaseException as error:
        _taken_back(tape, performed, None, performed.undo, error)
        raise
    return performed, tangent


log.made_of["second"] = SecondCommunication
