"""Partitioned messages: one message for each start, whose parts are sent when they are ready and arrive one by one.

A partition is sent with its contents at its ``Pready``, and may be used at the receiver from its ``Parrived`` on.  The
adjoint is sent back in partitions of the receiver: each at the mirror of its ``Parrived``, or of the wait; the adjoint
of a ``Pready`` waits for those that overlap its partition.  So a program that computes one partition from the answer
to another one does not deadlock in the sweep.  Forward walks use the partitions of the sender.  Messages of one pair
of requests are matched with one another and with no others, in the order in which the requests were made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...tape import BaseAdjoint, Push, Sweep, Tape, lanes_of
from ...tape.recording import opened, recording
from ..base.call_sites import line_of
from ..base.rules import Operation, Treatment, enter
from ..log.log import log_received, log_sent
from ..log.messages import Received, Sent
from ..log.reverse import reverse_of
from ..memory.arguments import parse
from ..memory.buffers import Buffer, arrive, as_packed, refuse_others
from ..memory.plain_buffers import warn_if_plain
from ..memory.tangents import set_tangent, tangent_in
from ..waiting.waiting import Patience, outbox_of, wait
from .requests import persistent

_Comm = mpi.Comm  # mpi4py's own: the name in its module may be rebound
_FIRST_KEY = -2000  # first of the tags that stand for pairs of requests in the log; no other tag is so low
_TAGS = 1 << 31


class PartitionedSent(Sent):
    """A started partitioned send in the log.

    ``flight`` holds the received parts of the adjoint, ``tangents`` the state of forward mode.
    """

    __slots__ = ("parts", "parts_there", "tangents", "user_tag")

    def tangent(self, push: Push) -> None:
        """Do nothing: the tangents of partitions are sent at their ``Pready``."""

    def describe(self) -> str:
        """Describe it for error messages."""
        tag = self.user_tag
        route = self.route
        return f"{route.name} to rank {route.partner} with tag {tag} on {self.reverse.name}, {line_of(route.where)}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror the wait: post the receives of the partitions' adjoints, which come in any order."""
        if self.back is None or self.flight is not None:
            return
        size = self.buffer.count // self.parts_there
        header = np.dtype([("part", np.int64), ("adjoint", self.buffer.dtype, (len(lanes_of(sweep)), size))])
        arrays = [np.empty(1, header) for _ in range(self.parts_there)]
        comm, dest = self.reverse.comm, self.route.partner
        self.flight = [(comm.Irecv(array.view(np.uint8), dest, self.back), array) for array in arrays], {}

    def adjoint(self, sweep: Sweep, part: int) -> np.ndarray:
        """Return the adjoint of one partition, for each lane of the sweep."""
        self.begin(sweep)
        flights, came = self.flight
        size, size_there = self.buffer.count // self.parts, self.buffer.count // self.parts_there
        start = part * size
        pieces = []
        for there in range(start // size_there, -(-(start + size) // size_there)):
            while there not in came:
                self._next(flights, came)
            offset = there * size_there
            pieces.append(came[there][:, max(start - offset, 0) : start + size - offset])
        return np.concatenate(pieces, axis=1)

    def _next(self, flights: list, came: dict[int, np.ndarray]) -> None:
        # Messages with one tag come in the order in which they were sent.
        request, array = flights.pop(0)
        wait(request, self.waiting, self.reverse, self.route.partner)
        came[int(array["part"][0])] = array["adjoint"][0]

    def __call__(self, sweep: Sweep) -> None:
        """Mirror the start."""
        self.flight = None


class _Ready(BaseAdjoint):
    """Record of a Pready: x̄ of the partition += the adjoint that came.

    Partitions of constants are recorded as well, since in a walk the receiver cannot know which ones these are.
    """

    __slots__ = ("active", "part", "sent")
    is_local = False
    reads_memory = False
    second_order = "joint"
    batched = True
    propagates_tangents = True

    def __init__(self, sent: PartitionedSent, part: int, active: bool) -> None:
        self.sent = sent
        self.part = part
        self.active = active

    def tangent(self, push: Push) -> None:
        """In a walk: send the tangent of the partition, after its index and the number of partitions."""
        sent = self.sent
        if sent.back is None:
            return
        going = np.array([self.part, sent.parts], np.int64).view(np.uint8)
        if self.active:
            flat = tangent_in(push, _part(sent.buffer, sent.parts, self.part))
            going = np.concatenate([going, flat.view(np.uint8)])
        outbox_of(push).send(sent.reverse, going, sent.route.partner, sent.back, sent.waiting)  # type: ignore[arg-type]

    def __call__(self, sweep: Sweep) -> None:
        sent = self.sent
        if sent.back is not None and self.active:
            for lane, adjoint in zip(lanes_of(sweep), sent.adjoint(sweep, self.part)):
                _part(sent.buffer, sent.parts, self.part).add(lane, adjoint)


class PartitionedReceived(Received):
    """A started partitioned receive in the log.

    ``early`` are the partitions that ``Parrived`` has reported, ``count`` is the number of elements, ``tangents`` the
    state of forward mode.
    """

    __slots__ = ("count", "early", "parts", "tangents", "user_tag")
    propagates_tangents = True
    count: int
    parts: int
    early: set[int]

    def tangent(self, push: Push) -> None:
        """In a walk: start without any tangents."""
        self.flight = {}
        push.at_last.append(self._forget)

    def _forget(self) -> None:
        self.flight = None

    def arrive(self, push: Push) -> None:
        """In a walk, at the wait: receive the tangents of all partitions that were not used before it."""
        for part in range(self.parts):
            if part not in self.early:
                self.receive(push, part)

    def receive(self, push: Push, part: int) -> None:
        """In a walk: receive the tangents of a partition, which may lie in several partitions of the sender."""
        buffer = _part(self.buffer, self.parts, part)
        if self.back is None:
            set_tangent(push, buffer, None)
            return
        came: dict[int, np.ndarray] = self.flight
        size = self.buffer.count // self.parts
        start, stop, directions = part * size, (part + 1) * size, len(lanes_of(push))
        found = np.zeros((directions, size), buffer.dtype)
        while start < stop:
            first = next((k for k, piece in came.items() if k <= start < k + piece.shape[1]), None)
            if first is None:
                self._next(came, directions)
                continue
            piece = came[first]
            end = min(stop, first + piece.shape[1])
            found[:, start - part * size : end - part * size] = piece[:, start - first : end - first]
            start = end
        set_tangent(push, buffer, found.reshape(-1))

    def _next(self, came: dict[int, np.ndarray], directions: int) -> None:
        """Wait for the tangents of the sender's next partition."""
        comm, source, status = self.reverse.comm, self.route.partner, mpi.Status()
        with Patience(self.waiting, lambda: [(self.reverse, source)]) as patience:
            while True:
                message = comm.Improbe(source, self.back, status)  # type: ignore[arg-type]
                if message is not None:
                    break
                patience.pause()
        array = np.empty(status.Get_count(mpi.BYTE), np.uint8)
        message.Recv(array)
        part, parts = array[:16].view(np.int64).tolist()
        size = self.buffer.count // parts
        flat = array[16:].view(self.buffer.dtype)
        came[part * size] = flat.reshape(directions, size) if flat.size else np.zeros((directions, size))

    def arrived(self, part: int) -> None:
        """In forward mode: note that a partition has arrived."""
        raise NotImplementedError

    def describe(self) -> str:
        """Describe it for error messages."""
        tag = self.user_tag
        route = self.route
        return f"{route.name} from rank {route.partner} with tag {tag} on {self.reverse.name}, {line_of(route.where)}"

    def resolve(self, status: mpi.Status | None) -> None:
        """Note that the receive has completed."""
        if self.request is not None:
            self.request = None
            arrive(self.buffer, -1)

    def begin(self, sweep: Sweep) -> None:
        """Mirror the wait: send back x̄ of all partitions that were not used before it."""
        if self.flight is sweep:
            return
        self.flight = sweep
        for part in range(self.parts):
            if part not in self.early:
                self.send(sweep, part)

    def send(self, sweep: Sweep, part: int) -> None:
        """Send back x̄ of a partition, and set it to zero."""
        overwritten = _part(self.buffer, self.parts, part)
        if self.back is None:
            for lane in lanes_of(sweep):
                overwritten.zero(lane)
            return
        adjoint = np.stack([overwritten.take(lane) for lane in lanes_of(sweep)])
        message = np.empty(1, np.dtype([("part", np.int64), ("adjoint", adjoint.dtype, adjoint.shape)]))
        message["part"], message["adjoint"] = part, adjoint
        route = self.route
        outbox_of(sweep).send(self.reverse, message.view(np.uint8), route.partner, self.back, self.waiting)


class _Arrived(BaseAdjoint):
    """Record of a Parrived that returned True."""

    __slots__ = ("part", "received")
    is_local = False
    reads_memory = False
    second_order = "joint"
    batched = True
    propagates_tangents = True

    def __init__(self, received: PartitionedReceived, part: int) -> None:
        self.received = received
        self.part = part

    def tangent(self, push: Push) -> None:
        """In a walk: receive the tangents of the partition."""
        self.received.receive(push, self.part)

    def __call__(self, sweep: Sweep) -> None:
        self.received.send(sweep, self.part)


def _part(buffer: Buffer, parts: int, part: int) -> Buffer:
    size = buffer.count // parts
    return buffer.part(part * size, (part + 1) * size)


# ------------------------------------------------------------------------------------------------------ requests


class _Partitioned:
    """The operation of a partitioned request; called when it is started."""

    __slots__ = ("buf", "comm", "key", "message", "name", "partitions", "partner", "user_tag")

    def __init__(self, name: str, comm: Any, buf: Any, partitions: int, partner: int, tag: int) -> None:
        self.name = name
        self.comm = comm
        self.buf = buf
        self.partitions = partitions
        self.partner = partner
        self.user_tag = tag
        self.key = _key(comm, name, partner, tag)
        self.message: Any = None

    def buffer(self) -> Buffer:
        """Return the memory of all partitions."""
        return as_packed(parse(self.buf, self.partitions))


class _Sending(_Partitioned):
    __slots__ = ()

    def __call__(self) -> tuple[PartitionedSent, ...]:
        """Log the message."""
        self.message = None
        tape = opened()
        if tape is None:
            return ()
        sent = log_sent(tape, self.name, self.comm, self.buffer(), False, self.partner, self.key, PartitionedSent)
        sent.parts, sent.parts_there, sent.user_tag = self.partitions, 1, self.user_tag
        self.message = sent, tape.reference
        return (sent,)

    def ready(self, parts: Iterable[int]) -> None:
        """Record that the present contents of partitions are sent."""
        tape = recording()
        buffer = self.buffer()
        if opened() is not None and goes_forward(opened()):
            self._ready_forward(buffer, parts)
        if tape is None:
            refuse_others(buffer)
            self._constant(opened(), parts)
            return
        if not buffer.active(tape):
            warn_if_plain("Pready", buffer, "sends", "to rank", self.partner)
            self._constant(tape, parts)
            return
        if self.message is None or self.message[1] is not tape.reference:
            raise ActivityError(
                "Pready: a partition holds active values, but the request was started before this tape began to record"
            )
        sent = self.message[0]
        if tape.forward is not None:
            return
        if not sent.active:
            sent.buffer = buffer.detach()
            tape.append_start(sent)
        for part in parts:
            tape.append(_Ready(sent, part, True))

    def _constant(self, tape: Tape | None, parts: Iterable[int]) -> None:
        """Record that partitions of constants are sent."""
        if tape is None or goes_forward(tape) or self.message is None or self.message[1] is not tape.reference:
            return
        for part in parts:
            tape.append_start(_Ready(self.message[0], part, False))

    def _ready_forward(self, buffer: Buffer, parts: Iterable[int]) -> None:
        """Send the tangents of partitions beside them."""
        if self.message is None or self.message[1] is not opened().reference:
            return
        active = recording() is not None and buffer.active(opened())
        sent = self.message[0]
        for part in parts:
            sent.tangents.ready(sent, buffer, part, active)


class _Receiving(_Partitioned):
    __slots__ = ()

    def __call__(self) -> tuple[PartitionedReceived, ...]:
        """Log the receive, and save what it overwrites."""
        self.message = None
        buffer = self.buffer()
        tape = opened()
        if tape is None:
            refuse_others(buffer)
        undo = buffer.overwrite()
        if tape is None:
            return ()
        active = buffer.tracked and recording() is not None
        received = log_received(tape, self.name, self.comm, buffer, active, self.partner, self.key, PartitionedReceived)
        received.dropped = recording() is None
        received.parts, received.user_tag, received.early = self.partitions, self.user_tag, set()
        received.count = buffer.count
        if active:
            buffer.activate(tape)
            tape.append_start(received, undo)
        elif undo:
            tape.append_start(None, undo)
        buffer.detach()
        self.message = received, tape.reference
        return (received,)

    def arrived(self, part: int) -> None:
        """Record that a partition has arrived."""
        tape = recording()
        if tape is None or self.message is None or self.message[1] is not tape.reference:
            return
        received = self.message[0]
        if received.active and part not in received.early:
            received.early.add(part)
            if goes_forward(tape):
                received.arrived(part)
            if tape.forward is None:
                tape.append(_Arrived(received, part))


def goes_forward(tape: Tape) -> bool:
    """Return whether a tape sends tangents beside the values."""
    return tape.forward is not None or tape.tangents is not None


def _key(comm: Any, name: str, partner: int, tag: int) -> int:
    """Return a pair of requests' tag in the log, made from their tag and their index among those with that tag."""
    reverse = reverse_of(comm)
    if reverse is None:
        return 0
    count = reverse.partitioned.get((name, partner, tag), 0)
    reverse.partitioned[name, partner, tag] = count + 1
    return _FIRST_KEY - tag - count * _TAGS


class Partitioned:
    """Methods of communicators that make partitioned requests."""

    __slots__ = ()

    def Psend_init(
        self, buf: Any, partitions: int, dest: int, tag: int = 0, info: mpi.Info = mpi.INFO_NULL
    ) -> mpi.Prequest:
        """Create request for a partitioned send operation."""
        request = _Comm.Psend_init(self, buf, partitions, dest, tag, info)
        if dest == mpi.PROC_NULL:
            return request
        return persistent(request, _Sending("Psend_init", self, buf, partitions, dest, tag))

    def Precv_init(
        self,
        buf: Any,
        partitions: int,
        source: int = mpi.ANY_SOURCE,
        tag: int = mpi.ANY_TAG,
        info: mpi.Info = mpi.INFO_NULL,
    ) -> mpi.Prequest:
        """Create request for a partitioned recv operation."""
        request = _Comm.Precv_init(self, buf, partitions, source, tag, info)
        if source < 0 or tag < 0:  # from no rank; MPI has no wildcards here
            return request
        return persistent(request, _Receiving("Precv_init", self, buf, partitions, source, tag))


enter(
    Operation("Comm", "Psend_init", Treatment.DIFFERENTIATED, ("buf",), (), "by partition: Recv t; x̄ += t"),
    Operation("Comm", "Precv_init", Treatment.DIFFERENTIATED, (), ("buf",), "by partition: Send x̄; x̄ = 0"),
)
for _name in ("Pready", "Pready_range", "Pready_list", "Parrived"):
    enter(
        Operation(
            "Prequest", _name, Treatment.DIFFERENTIATED, adjoint="determines when the partition's adjoint is sent"
        )
    )
