"""Schedule of reversed collectives: each begins at the mirror of its wait and ends at the mirror of its start.

Ranks may wait for collectives in different orders, but all ranks of a communicator must begin the reversed ones in
the same order; otherwise different collectives would be matched.  That order is the reverse of the log's.  A reversed
collective that is ready waits for its turn, which comes at the latest when the sweep reaches the mirror of its start:
by then, those that were started later have had their turns.  One that takes several steps has its communicator to
itself until it has ended.  All of them make progress whenever the sweep waits for something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ...tape import BaseAdjoint, Push, Sweep, Tape
from ..log.log import communication_of, refused
from ..log.messages import Collective
from ..log.reverse import Reverse
from ..memory.buffers import NOTHING, arrive
from ..waiting.arrivals_seen import has_ended
from ..waiting.notices import stranded
from ..waiting.waiting import running, wait
from .reductions import Steps
from .replicated import look_for_replicated


class StepsInProgress:
    """A reversed collective, or the tangent of one, that has begun.

    Attributes
    ----------
    steps : generator
        Yields lists of requests to be completed before it goes on; returns a function to be called at the end, or None.
    overlaps : bool
        True if it takes one step: the next one may begin as soon as this one has begun.
    """

    __slots__ = ("finished", "overlaps", "requests", "result", "steps")

    def __init__(self, steps: Steps, overlaps: bool) -> None:
        self.steps = steps
        self.overlaps = overlaps
        self.requests: list[mpi.Request] = []
        self.result: Callable[[], None] | None = None
        self.finished = False

    def advance(self) -> None:
        """Proceed as far as possible without waiting."""
        while not self.finished:
            for request in self.requests:
                if not request.Test():
                    return
            running.moved += 1
            try:
                self.requests = next(self.steps)
            except StopIteration as end:
                self.finished = True
                self.result = end.value

    def finish(self, describe: Callable[[], str], reverse: Reverse) -> None:
        """Wait for the end, and call the function that the steps returned."""
        try:
            self.advance()
            while not self.finished:
                for request in self.requests:
                    wait(request, describe, reverse)
                self.advance()
        except BaseException:
            stranded.append(self)  # with its buffers
            raise
        if self.result is not None:
            self.result()


class Schedule:
    """The order in which the reversed collectives of all communicators of one channel begin in a sweep."""

    __slots__ = ("calls", "position", "started")

    def __init__(self, calls: list[Collective]) -> None:
        self.calls = calls
        self.position = len(calls) - 1
        self.started: dict[Collective, StepsInProgress] = {}

    def proceed(self) -> None:
        """Begin all collectives that are ready and whose turn it is."""
        while self.position >= 0:
            call = self.calls[self.position]
            if call.happening and not call.passed:
                reversed_call = self.started.get(call)
                if reversed_call is None:
                    return
                reversed_call.advance()
                if not reversed_call.overlaps and not reversed_call.finished:
                    return
                call.passed = True
            self.position -= 1


def _schedule(sweep: Sweep, call: Collective) -> Schedule:
    channel = call.reverse.channel
    schedule = sweep.state.get(channel)
    if schedule is None:
        logs = [log for log in communication_of(sweep.tape).logs.values() if log.reverse.channel is channel]
        logs.sort(key=lambda log: log.reverse.turn)
        schedule = sweep.state[channel] = Schedule([call for log in logs for call in log.collectives])
        running.underway.append(schedule.proceed)
    return schedule


def run_reversed(sweep: Sweep, call: Collective, steps: Steps, describe: Callable[[], str]) -> None:
    """Run the reversed collective of a blocking call."""
    requests: list[mpi.Request] = []
    result = None
    try:
        while True:
            running.moved += 1
            requests = next(steps)
            for request in requests:
                if not request.Test():
                    wait(request, describe, call.reverse)
    except StopIteration as end:
        result = end.value
    except BaseException:
        stranded.append((steps, requests))  # with their buffers
        raise
    if result is not None:
        result()
    call.passed = True
    schedule = sweep.state.get(call.reverse.channel)
    if schedule is not None:
        schedule.proceed()


def in_step(several: Sequence[Steps]) -> Steps:
    """Run collectives of the same kind as one: each step runs for all of them at once."""
    ends: list[Any] = [None for _ in several]
    going = dict(enumerate(several))
    while going:
        requests: list[mpi.Request] = []
        for k, steps in list(going.items()):
            try:
                requests += next(steps)
            except StopIteration as end:
                ends[k] = end.value
                del going[k]
        if going:
            yield requests

    def finish() -> None:
        for end in ends:
            if end is not None:
                end()

    return finish


class Started(BaseAdjoint):
    """A collective with a request, which ends it; also the record of its start.

    Attributes
    ----------
    performed : collective_calls.Performed
        The call in the log.
    void : bool
        True if MPI has refused to start it.
    """

    __slots__ = ("buffer", "finish_tangent", "performed", "request", "reversed", "sweep", "void", "wild")

    active = True
    is_local = False
    synchronizes = True
    reads_memory = False  # except for what `Performed.steps` has restored
    second_order = "joint"
    batched = True

    def __init__(self, performed: Any) -> None:
        self.performed = performed
        self.buffer = next(iter(performed.call.writes), NOTHING)
        self.request: Any = None
        self.wild = False
        self.void = False
        self.sweep: Sweep | None = None
        self.reversed: StepsInProgress | None = None
        self.finish_tangent: Callable[[], None] | None = None

    def take_back(self, tape: Tape, error: BaseException) -> None:
        """Clean up: MPI has refused to start it."""
        self.void = refused(tape, self.performed, error)

    def tangent(self, push: Push) -> None:
        """Begin to push tangents, in a walk over the tape."""
        if self.void:
            return
        if not self.completed():
            raise CommunicationError(f"{self.performed.describe()} was never completed: wait for the request")
        self.finish_tangent = self.performed.begin_tangent(push, True)

    def arrive(self, push: Push) -> None:
        """End the transfers that `tangent` has started."""
        finish, self.finish_tangent = self.finish_tangent, None
        if finish is not None:
            finish()

    def resolve(self, status: mpi.Status | None) -> None:
        """End the collective: the request has completed."""
        if self.request is not None:
            self.request.held = None
            self.request = None
            arrive(self.buffer, -1)

    def describe(self) -> str:
        """Return a description for error messages."""
        return self.performed.describe()

    def completed(self) -> bool:
        """Return whether the request has been completed, even by a method that ampi does not see."""
        return has_ended(self.request)

    def begin(self, sweep: Sweep) -> None:
        """At the mirror of the wait, take the adjoints of the written memory, and send them when it is their turn."""
        if self.sweep is sweep or self.void:
            return
        performed = self.performed
        if not self.completed():
            raise CommunicationError(
                f"rank {performed.reverse.rank}: {performed.describe()} was never completed: "
                "wait for the request before computing the gradient"
            )
        self.sweep = sweep
        if not performed.happens(sweep):
            performed.zero(sweep)
            return
        if sweep.tape.returned is not None:
            look_for_replicated(sweep, performed, performed.results())
        self.reversed = StepsInProgress(performed.steps(sweep), performed.call.overlaps)
        schedule = _schedule(sweep, performed)
        schedule.started[performed] = self.reversed
        schedule.proceed()

    def __call__(self, sweep: Sweep) -> None:
        """At the mirror of the start, wait for the end and add the received adjoints."""
        if self.void:
            return
        self.begin(sweep)
        self.sweep = None
        if self.reversed is None:
            return
        schedule = _schedule(sweep, self.performed)
        schedule.proceed()
        self.reversed.finish(self.performed.waiting, self.performed.reverse)
        self.reversed = None
        schedule.proceed()
