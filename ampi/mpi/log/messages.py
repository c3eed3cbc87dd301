"""Logged messages and collective calls, and the adjoints of sending and receiving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...tape import AdjointRecord, BaseAdjoint, Push, Sweep, Undo, lanes_of
from ..base.call_sites import call_site, line_of
from ..memory.buffers import Buffer, arrive
from ..memory.tangents import set_tangent, tangent_in
from ..waiting.arrivals_seen import has_arrived
from ..waiting.waiting import outbox_of, wait
from .reverse import Reverse

_FLOAT64 = np.dtype(np.float64)
_Prequest = mpi.Prequest  # mpi4py's own: the name in its module is rebound later


ALL = 1 << 62
"""Length in bytes of a message that is not known to be shorter than its memory."""
CUT = ALL + 1
"""Length of a message that may have been too long for its memory, which holds its beginning."""


class Route:
    """The common facts of messages that one line of the program sends to one partner, or receives from it.

    Buffers, which live as long as arrays, refer to their latest routes: so a route keeps no communicator alive.

    Attributes
    ----------
    name : str
        mpi4py's name of the method.
    place : object
        The communicator's `Reverse.place`.
    partner, tag : int
        As given to the call.
    wild : bool
        True for a receive from any source.
    code, instruction : code object and int
        The call site.
    key : tuple
        What tells it from others of the same code object, to be compared at once.
    matched : Route or None
        For a receive with a wildcard: the route of the latest message that it matched.
    """

    __slots__ = ("code", "instruction", "key", "matched", "name", "partner", "place", "tag", "wild")

    def __init__(self, name: str, place: object, partner: int, tag: int, wild: bool, where: tuple[Any, int]) -> None:
        self.name = name
        self.place = place
        self.partner = partner
        self.tag = tag
        self.wild = wild
        self.code, self.instruction = where
        self.key = partner, tag, self.instruction, place, name
        self.matched: Route | None = None

    @property
    def where(self) -> tuple[Any, int]:
        """The call site, as `call_site` returns it."""
        return self.code, self.instruction

    def match(self, source: int, tag: int) -> Route:
        """Return the route of a message that a receive has matched."""
        self.matched = Route(self.name, self.place, source, tag, False, self.where)
        return self.matched


class LoggedMessage(AdjointRecord):
    """One side of a message in the log of a tape.

    Attributes
    ----------
    route : Route
        For a receive, that of the message it has matched, once it has completed.
    buffer : AdjointMemory or None
        The memory.  None if it has no adjoint: a sent message carries no derivatives, or a receive does not overwrite
        tracked floating-point memory (whether the sender was active is not known before the agreement).
    nbytes : int
        Length of the message; for a receive, known after the agreement.
    request : mpi4py.MPI.Request or None
        For a receive: the one that will complete it.  For a send: one that belongs to the user's request.
    wild : bool
        True if the status at completion is needed: the sender is unknown, or the program has tried to cancel it.
        (Which message a receive with ``ANY_TAG`` gets from a known sender follows from MPI's order of messages.)
    void : bool
        True if it has no part in derivatives, and both sides know: it was cancelled, or is an object without active
        arrays.
    back : int or None
        The tag of its adjoint, None if there is none; known after the agreement.
    flight : object or None
        In a sweep: the state of the adjoint.
    reverse : Reverse
        In a sweep: that of the log.
    """

    __slots__ = ("back", "buffer", "flight", "nbytes", "request", "reverse", "route", "void", "wild")
    is_local = False
    reads_memory = False
    second_order = "joint"
    batched = True
    back: int | None
    buffer: Any
    flight: Any
    nbytes: int
    request: Any
    reverse: Reverse
    route: Route
    void: bool
    wild: bool

    @property
    def active(self) -> bool:
        """True if the memory can have an adjoint."""
        return self.buffer is not None

    def rename(self, name: str) -> None:
        """Set the method that is running as the one that receives the message."""
        route = self.route
        self.route = Route(name, route.place, route.partner, route.tag, route.wild, call_site(3))

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"the adjoint of {self.describe()}"

    def describe(self) -> str:
        """Describe it for error messages."""
        raise NotImplementedError


class Sent(LoggedMessage):
    """A message in the log of its sender, and the adjoint of sending it."""

    __slots__ = ()
    propagates_tangents = True

    def resolve(self, status: mpi.Status | None) -> None:
        """Note that the send has completed."""
        if self.request is not None:
            self.request.Wait()
            self.request = None
        if self.wild and status is not None and status.Is_cancelled():
            self.void = True

    def describe(self) -> str:
        """Describe it for error messages."""
        route = self.route
        where = line_of(route.where)
        return f"{route.name} to rank {route.partner} with tag {route.tag} on {self.reverse.name}, {where}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror the wait: post the receive of the adjoint."""
        if self.back is not None and self.flight is None:
            buffer, lanes = self.buffer, sweep.lanes
            adjoint = np.empty(buffer.count if lanes is None else buffer.count * len(lanes), buffer.dtype)
            coming = adjoint if buffer.dtype is _FLOAT64 else _as_real(adjoint)
            self.flight = self.reverse.comm.Irecv(coming, self.route.partner, self.back), adjoint

    def __call__(self, sweep: Sweep) -> None:
        """Mirror the start: x̄ += the adjoint received."""
        if self.back is None:
            return
        if self.flight is None:
            self.begin(sweep)
        request, adjoint = self.flight
        if not request.Test():
            wait(request, self.waiting, self.reverse, self.route.partner)
        self.flight = None
        if sweep.lanes is None:
            self.buffer.add(sweep, adjoint)
            return
        for lane, part in zip(sweep.lanes, np.split(adjoint, len(sweep.lanes))):
            self.buffer.add(lane, part)

    def tangent(self, push: Push) -> None:
        """Send the tangent in a walk; otherwise it was sent with the message."""
        if push.walks and self.back is not None:
            going = _as_real(tangent_in(push, self.buffer))
            outbox_of(push).send(self.reverse, going, self.route.partner, self.back, self.waiting)  # type: ignore[arg-type]


class Received(LoggedMessage):
    """A receive in the log of its rank, in the order of posting, and the adjoint of receiving.

    ``undo`` holds the overwritten values; ``dropped`` is True for a receive inside `ampi.passive`.
    """

    __slots__ = ("dropped", "undo")
    dropped: bool
    undo: Sequence[Undo]

    def describe(self) -> str:
        """Describe it for error messages."""
        route = self.route
        source = "any rank" if route.partner == mpi.ANY_SOURCE else f"rank {route.partner}"
        tag = "any tag" if route.tag == mpi.ANY_TAG else f"tag {route.tag}"
        return f"{route.name} from {source} with {tag} on {self.reverse.name}, {line_of(route.where)}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror the wait: send back x̄ of the received values, and set it to zero."""
        if self.flight is sweep or self.void:
            return
        self.flight = sweep  # done in this sweep
        buffer = self.buffer
        if sweep.lanes is None and self.back is not None and type(buffer) is Buffer and self.nbytes == buffer.nbytes:
            adjoint = buffer.take(sweep)
            going = adjoint if buffer.dtype is _FLOAT64 else _as_real(adjoint)
            outbox_of(sweep).send(self.reverse, going, self.route.partner, self.back, self.waiting)
            return
        overwritten = buffer.within(self.nbytes)
        lanes = lanes_of(sweep)
        if self.back is None:
            for lane in lanes:
                overwritten.zero(lane)
            return
        adjoint = _as_real(
            overwritten.take(sweep) if sweep.lanes is None else _joined([overwritten.take(lane) for lane in lanes])
        )
        if self.nbytes > overwritten.nbytes:
            adjoint = self._lengthened(adjoint, len(lanes))
        source = self.route.partner
        outbox_of(sweep).send(self.reverse, adjoint, source, self.back, self.waiting)

    def _lengthened(self, adjoint: np.ndarray, directions: int) -> np.ndarray:
        """Return the adjoint of a message that was too long: MPI filled the memory, and dropped the rest."""
        head = adjoint.reshape(directions, -1)
        whole = np.zeros((directions, self._length(adjoint.dtype)), adjoint.dtype)
        whole[:, : head.shape[1]] = head
        return whole.reshape(-1)

    def _length(self, dtype: np.dtype) -> int:
        """Return the number of elements in the adjoint of the message."""
        return self.nbytes if self.buffer.packed else self.nbytes // dtype.itemsize

    def completed(self) -> bool:
        """Return whether the request has been completed, perhaps by a method that ampi does not see."""
        request = self.request
        if request is None or not request:
            return True
        if not isinstance(request, _Prequest):
            return False
        status = has_arrived(request)
        if status is not None and status.Is_cancelled():
            self.void, self.wild = True, False
        return status is not None

    def __call__(self, sweep: Sweep) -> None:
        """Mirror the start.  A copy was sent back: there is nothing to wait for."""
        if self.flight is not sweep:
            self.begin(sweep)
        self.flight = None

    def tangent(self, push: Push) -> None:
        """In a walk: receive the tangent of a blocking receive.  Otherwise it is zero: the communicator has none."""
        if not push.walks:
            set_tangent(push, self.buffer, None)
        elif self not in push.state["completed later"]:
            self.arrive(push)

    def arrive(self, push: Push) -> None:
        """Receive the tangent in a walk."""
        if self.void or self.buffer is None or self.flight is push:
            return
        self.flight = push
        overwritten = self.buffer.within(self.nbytes)
        if self.back is None:
            set_tangent(push, overwritten, None)
            return
        directions, source = len(lanes_of(push)), self.route.partner
        too_long = self.nbytes > overwritten.nbytes
        count = self._length(overwritten.dtype) if too_long else overwritten.count
        came = np.empty(count * directions, overwritten.dtype)
        wait(self.reverse.comm.Irecv(_as_real(came), source, self.back), self.waiting, self.reverse, source)
        if too_long:
            came = came.reshape(directions, -1)[:, : overwritten.count].reshape(-1)
        set_tangent(push, overwritten, came)

    def resolve(self, status: mpi.Status | None) -> None:
        """Note that the receive has completed."""
        if self.request is not None:
            self.request = None
            buffer = self.buffer
            if type(buffer) is Buffer and buffer.storage is not None:
                buffer.storage.arriving -= 1
            else:
                arrive(buffer, -1)
        if status is None or not self.wild:
            return
        self.wild = False
        if status.Is_cancelled():
            self.void = True
            return
        source, tag = status.Get_source(), status.Get_tag()
        matched = self.route.matched
        if matched is None or matched.tag != tag or matched.partner != source:
            matched = self.route.match(source, tag)
        self.route = matched


class Lost(Received):
    """A receive whose object could not be unpickled: its derivatives are dropped."""

    __slots__ = ()
    propagates_tangents = True

    def begin(self, sweep: Sweep) -> None:
        """Nothing."""

    def __call__(self, sweep: Sweep) -> None:
        """Nothing."""

    def tangent(self, push: Push) -> None:
        """Nothing."""

    def arrive(self, push: Push) -> None:
        """Nothing."""


class Completion(AdjointRecord, list):
    """Record of a wait, a list of the operations it completed: its adjoint starts the reverse transfers."""

    __slots__ = ()
    is_local = False
    reads_memory = False  # only memory that the adjoint of a collective has restored
    second_order = "joint"
    batched = True
    propagates_tangents = True

    def __call__(self, sweep: Sweep) -> None:
        """Mirror the wait."""
        for part in self:
            part.begin(sweep)

    def tangent(self, push: Push) -> None:
        """Wait for the tangents of receives in a walk; otherwise they have been received."""
        if push.walks:
            for part in self:
                if not isinstance(part, Sent):
                    part.arrive(push)


class LateCompletion(Completion):
    """Record of receives that were found to have completed just before another record is appended."""

    __slots__ = ()


class Collective:
    """A collective call in a tape's log.

    Attributes
    ----------
    reverse : Reverse
        Its ``comm`` is the communicator of the reverse traffic.
    certain : bool
        False if this rank contributes bytes that may or may not hold active values.
    after : int
        Number of collective calls inside `ampi.passive` that came before it.
    root : int or None
        The rank that all others exchange data with, as given to the call, if there is one.
    passed : bool
        In a sweep: True once the next reversed collective of the communicator may begin.
    """

    depth = 2
    """Number of frames between the call and `call_site` that belong to ampi."""
    __slots__ = (
        "after",
        "certain",
        "happening",
        "loses",
        "name",
        "passed",
        "reads_active",
        "reverse",
        "root",
        "where",
        "writes_tracked",
    )

    def __init__(
        self,
        name: str,
        reverse: Reverse,
        reads_active: bool,
        writes_tracked: bool,
        loses: bool,
        certain: bool = True,
        root: int | None = None,
    ) -> None:
        self.name = name
        self.reverse = reverse
        self.reads_active = reads_active
        self.writes_tracked = writes_tracked
        self.loses = loses
        self.certain = certain
        self.root = root
        self.where = call_site(self.depth)
        self.after = 0
        self.happening = False
        self.passed = False

    def happens(self, sweep: Sweep) -> bool:
        """Return whether the collective is reversed: a rank contributed active values and a rank received tracked ones.

        The same on all ranks of the communicator.
        """
        return self.happening

    def describe(self) -> str:
        """Describe it for error messages."""
        return f"{self.name} on {self.reverse.name}, {line_of(self.where)}"


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([part.reshape(-1) for part in parts])


def _as_real(array: np.ndarray) -> np.ndarray:
    """View a contiguous array as real numbers: a complex number may be received as two real ones."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


class CollectiveAdjoint(BaseAdjoint):
    """Base of adjoints of collective calls that are not themselves in the log; ``token`` is the call's entry there."""

    __slots__ = ("token",)
    is_local = False
    synchronizes = True
    token: Collective
