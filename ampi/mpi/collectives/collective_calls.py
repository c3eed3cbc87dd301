"""Collective calls: this rank's part in a call, and its record on the tape.

An operation's *plan* is a function of the call's arguments that gives a `Call`: which memory is read and written on
this rank, and the `Part` that moves derivatives between the two.  Its adjoint takes the adjoints of what was written,
sends them on the reverse communicator, and adds what arrives to the adjoints of what was read; its tangent goes the
other way.  The blocking form runs these through at once; for a form with a request the adjoint begins at the mirror of
the wait and ends at the mirror of the start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...memory.storages import Storage, plain
from ...tape import AdjointRecord, Push, Sweep, Tape, Undo, lanes_of, where_called
from ..base.call_sites import line_of, name_of
from ..log.log import log_collective
from ..log.messages import Collective
from ..log.reverse import Reverse
from ..log.sizes import Sizes
from ..memory.buffers import Buffer
from ..memory.plain_buffers import warn_if_plain
from .reductions import Steps
from .reductions_second import WithTangents, steps_in_lanes
from .replicated import look_for_replicated
from .reverse_schedule import in_step, run_reversed
from .tangents import begin_tangent


class Part(Protocol):
    """Protocol of the objects that move derivatives in a collective: `movements.Movement`, `reduction_plans.Reducing`.

    Both methods are generators that yield lists of MPI requests on the reverse communicator, and return a function to
    be called at the end, or None.
    """

    def adjoint(self, sweep: Sweep, reverse: Reverse, x: Any) -> Steps:
        """Carry adjoints back; ``x`` has the values that were needed, flat."""

    def tangent(self, push: Push, reverse: Reverse, name: str, values: Any = None) -> Steps:
        """Carry tangents in one direction; ``values()`` gives the values needed, where they are not in memory."""


class Call:
    """This rank's part in one collective operation; calls with the same arguments share it.

    Attributes
    ----------
    name : str
        mpi4py's name of the form that was called.
    reads, writes : sequence of Buffer
        Memory whose values go to other ranks, and memory that is overwritten.
    part : Part
    needed : Buffer or None
        Memory whose values the adjoint needs.
    refused : str
        Why the operation has no derivative; empty if it has one.
    spoils : sequence of Buffer
        Memory to be saved before MPI runs the operation: the writes, or more where MPI may use more as its workspace.
    overlaps : bool
        True if the adjoint takes one step on all ranks: it yields once.
    root : int or None
        The one rank that all others exchange data with, as the arguments name it.
    sizes : callable or None
        Returns the lengths that must match those of other ranks.
    """

    __slots__ = (
        *("_known_sizes", "name", "needed", "overlaps", "part", "reads", "refused", "root", "sizes", "spoils"),
        "writes",
    )

    def __init__(self, reads: Sequence[Buffer], writes: Sequence[Buffer], part: Part, root: int | None = None) -> None:
        self.name = ""
        self.root = root
        self.reads = reads
        self.writes = writes
        self.part = part
        self.needed: Any = None
        self.refused = ""
        self.spoils = writes
        self.overlaps = True
        self.sizes: Callable[[], Sizes] | None = None
        self._known_sizes: Sizes | None = None

    def known_sizes(self) -> Sizes | None:
        """Return the lengths that must match those of other ranks; None if there are none."""
        if self._known_sizes is None and self.sizes is not None:
            self._known_sizes = self.sizes()
        return self._known_sizes

    def overwrite(self) -> list[Undo]:
        """Save the values that MPI is about to overwrite."""
        undo: list[Undo] = []
        for buffer in self.spoils:
            undo += buffer.overwrite()
        return undo

    def log(self, tape: Tape, comm: mpi.Comm) -> Performed:
        """Check the call and log it, before MPI runs it."""
        active = certain = tracked = loses = False
        for buffer in self.reads:
            carries = buffer.active(tape)
            if carries:
                active = True
                certain = certain or not buffer.uncertain()
            if not carries or type(buffer) is not Buffer:
                warn_if_plain(self.name, buffer, "reads", "on", comm)
        for buffer in self.writes:
            if buffer.nbytes:
                tracked = tracked or buffer.tracked
                loses = loses or buffer.loses
        if active:
            self._check(loses and certain, comm)
        performed = log_collective(tape, comm, self.name, active, tracked, loses, certain, self.root, Performed)
        performed.call = self
        performed.values = None
        performed.undo = ()
        return performed

    def check_counts(self, comm: mpi.Comm) -> None:
        """Raise an error if this rank's own counts do not match."""
        sizes = self.known_sizes()
        problem = "" if sizes is None else sizes.problem()
        if problem:
            raise CommunicationError(
                f"{where_called()}: {self.name} on {name_of(comm)}, rank {comm.Get_rank()}: the counts do not fit: "
                f"{problem}; MPI requires them to be equal"
            )

    def _check(self, loses: bool, comm: mpi.Comm) -> None:
        self.check_counts(comm)
        if self.refused:
            raise ActivityError(f"{self.name}: {self.refused}")
        if loses:
            raise ActivityError(
                f"{self.name}: an active array is received into memory that is not tracked, where its derivative would "
                "be lost; make the receive buffer with ampi.numpy, or send ampi.value(...)"
            )

    def activate(self, tape: Tape, comm: mpi.Comm, contributes: bool) -> None:
        """Mark the memory that is written as active."""
        if contributes or comm.Get_size() > 1 or comm.Is_inter():
            for buffer in self.writes:
                buffer.activate(tape)

    def detach(self) -> None:
        """Drop the references to the arrays."""
        for buffer in (*self.reads, *self.writes, *self.spoils):
            buffer.detach()


class Performed(Collective, AdjointRecord):
    """One call of a collective operation: its entry in the log of the tape, and its record.

    Attributes
    ----------
    call : Call
    values : callable or None
        Returns the values that the adjoint needs.
    undo : list of Undo
        The values that MPI has overwritten.
    """

    __slots__ = ("call", "undo", "values")
    depth = 5
    is_local = False
    synchronizes = True
    reads_memory = False  # except for what `steps` has restored
    second_order = "joint"
    batched = True

    def keep_values(self, tape: Tape, started: bool) -> None:
        """Save the values that the adjoint needs, before MPI runs the operation.

        Where a form with a request works in place, they are no longer in memory at the mirror of the wait: the adjoint
        gets a copy.
        """
        needed = self.call.needed
        if needed is None:
            return
        if started and any(needed is spoilt for spoilt in self.call.spoils):
            copy = needed.values()
            self.values = lambda: copy
        else:
            self.values = needed.need(tape)

    def results(self) -> set[Storage | None]:
        """Return the storages of the results; on the root of a Bcast, those of what it sends."""
        buffers = self.call.writes or self.call.reads
        return {storage for buffer in buffers for storage in buffer.storages}

    def __call__(self, sweep: Sweep) -> None:
        """The adjoint of the blocking form."""
        if self.happens(sweep):
            if sweep.tape.returned is not None:
                look_for_replicated(sweep, self, self.results())
            run_reversed(sweep, self, self.steps(sweep), self.waiting)
        else:
            self.zero(sweep)

    def tangent(self, push: Push) -> None:
        """Push tangents through the blocking form, in a walk over the tape."""
        tangent = self.begin_tangent(push, False)
        if tangent is not None:
            tangent()

    def begin_tangent(self, push: Push, started: bool) -> Callable[[], None] | None:
        """Begin to push tangents, and return the function that ends it; None if there is nothing to do."""
        if not self.happening:
            self.zero(push)
            return None
        if self.call.refused:
            raise ActivityError(f"{self.describe()}: {self.call.refused}")
        return begin_tangent(self.call.part, push, self.reverse, self.call.name, started, self.values)

    def zero(self, sweep: Sweep | Push) -> None:
        """Zero the derivatives of overwritten memory if no derivatives are sent: it holds constants."""
        for lane in lanes_of(sweep):
            for buffer in self.call.writes:
                buffer.zero(lane)

    def steps(self, sweep: Sweep) -> Steps:
        """Return the steps of the adjoint."""
        call = self.call
        if call.refused:
            raise ActivityError(f"{self.name} at {line_of(self.where)}: {call.refused}")
        x = None
        if self.values is not None:
            sweep.put_back(call.needed.storages)  # type: ignore[union-attr]
            x = self.values()
        if sweep.lanes is None:
            return call.part.adjoint(sweep, self.reverse, x)
        if isinstance(x, WithTangents):
            return in_step(steps_in_lanes(call.part, sweep, self.reverse, x))
        x = plain(x) if isinstance(x, np.ndarray) else x
        return in_step([call.part.adjoint(lane, self.reverse, x) for lane in sweep.lanes])

    def waiting(self) -> str:
        """Describe what this rank waits for, for error messages."""
        return f"the adjoint of {self.describe()}"
