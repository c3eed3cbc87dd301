"""Forward mode of partitioned messages: the tangent of a partition is sent beside it, at its ``Pready``.

Both sides count the starts of a pair of requests, and the receiver's partitions may differ from the sender's.  So a
message of tangents contains the number of the start and the range of its elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...tape import Push, lanes_of
from ..memory.buffers import Buffer
from ..memory.tangents import set_tangent, tangent_in
from .forward import PARTITIONED, ForwardLog, mismatched_elements
from .partitioned import PartitionedReceived, PartitionedSent


class Parts:
    """The tangents of one start of a partitioned request.

    Attributes
    ----------
    log : ForwardLog
    number : int
        The number of the start.
    came : dict
        At the receiver: the number of elements and the tangents (None for zeros), by first element.
    total : int
        Number of elements of the message, once it is known.
    """

    __slots__ = ("came", "log", "number", "total")

    def __init__(self, log: ForwardLog, message: Any) -> None:
        route = message.route
        key = route.name, route.partner, route.tag
        self.log = log
        self.number = log.numbers[key] = log.numbers.get(key, 0) + 1
        self.came: dict[int, tuple[int, np.ndarray | None]] = {}
        self.total = -1

    def ready(self, sent: PartitionedSent, buffer: Buffer, part: int, active: bool) -> None:
        """Send the tangent of a partition."""
        size = buffer.count // sent.parts
        if not size:
            return
        flat = tangent_in(self.log.push, buffer.part(part * size, (part + 1) * size)) if active else _NOTHING
        head = sent.route.tag, self.number, part * size, size, buffer.count
        describe = lambda: f"the delivery of the tangent of {sent.describe()}"
        self.log.send_aside(sent.route.partner, head, flat, describe)

    def get(self, received: ForwardPartitionedReceived, start: int, stop: int) -> None:
        """Wait for the tangents of some elements."""
        while start < stop:
            if self._has(start):
                start = self._end_of(start)
                continue
            route = received.route
            (*_, first, size, self.total), flat = self.log.receive_aside(
                route.partner, route.tag, self.number, 5, received.waiting
            )
            self.came[first] = size, flat if flat.size else None

    def _has(self, start: int) -> bool:
        return self._end_of(start) > start

    def _end_of(self, start: int) -> int:
        """Return where the received block ends that has an element; the element itself if none has."""
        for first, (size, _) in self.came.items():
            if first <= start < first + size:
                return first + size
        return start

    def put(self, received: ForwardPartitionedReceived, buffer: Buffer | None, start: int, stop: int) -> None:
        """Set the tangents of some elements of a buffer."""
        directions = len(lanes_of(self.log.push))
        for first, (size, flat) in self.came.items():
            low, high = max(first, start), min(first + size, stop)
            if low >= high:
                continue
            if buffer is None:
                if flat is not None and flat.any() and not received.dropped:
                    raise ActivityError(
                        f"{received.describe()}: the message carries derivatives, but is received into memory that is "
                        "not tracked, where they would be lost; make the array with ampi.numpy, or send "
                        "ampi.value(...)"
                    )
                continue
            if flat is None:
                set_tangent(self.log.push, buffer.part(low, high), None)
            elif buffer.dtype is None or flat.size != size * directions * buffer.dtype.itemsize:
                raise mismatched_elements(received, directions)
            else:
                values = flat.view(buffer.dtype).reshape(directions, size)[:, low - first : high - first]
                set_tangent(self.log.push, buffer.part(low, high), values.reshape(-1))


_NOTHING = np.zeros(0, np.uint8)


class ForwardPartitionedReceived(PartitionedReceived):
    """A started partitioned receive in forward mode."""

    __slots__ = ()
    tangents: Parts

    def may_match(self, source: int, tag: int) -> bool:
        """Return False: it matches no ordinary message."""
        return False

    def tangent(self, push: Push) -> None:
        """Do nothing: tangents are received with the partitions."""

    def arrived(self, part: int) -> None:
        """Receive the tangents of a partition that has arrived."""
        size = self.buffer.count // self.parts
        self._take(part * size, (part + 1) * size)

    def resolve(self, status: mpi.Status | None) -> None:
        """Receive the tangents of partitions that were not used before the wait."""
        PartitionedReceived.resolve(self, status)
        parts = self.tangents
        if self not in parts.log.waiting:
            return
        parts.log.waiting.remove(self)
        count = self.count
        size = count // self.parts
        for part in range(self.parts):
            if part not in self.early:
                self._take(part * size, (part + 1) * size)

    def _take(self, start: int, stop: int) -> None:
        self.tangents.get(self, start, stop)
        self.tangents.put(self, self.buffer, start, stop)

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"the tangent of {self.describe()}"


def _start_to_send(log: ForwardLog, sent: PartitionedSent) -> None:
    sent.tangents = Parts(log, sent)


def _start_to_receive(log: ForwardLog, received: PartitionedReceived) -> None:
    received.__class__ = ForwardPartitionedReceived
    received.tangents = Parts(log, received)
    log.waiting.append(received)


PARTITIONED["Psend_init"] = _start_to_send
PARTITIONED["Precv_init"] = _start_to_receive
