"""Forward mode of messages: the tangent of a message is sent beside it, on the reverse communicator.

Every message of a buffer has a message with its tangent, which is empty if the sender's memory carries none, since the
receiver cannot know this.  (Pickled objects contain the tangents of their arrays: `bundles`.)  The tangent is sent
before the message itself, so both are in flight together.  Messages of one sender and tag are received in the order in
which they were sent.  So are their tangents, if their receives are posted in the order in which MPI matches the
receives of the messages: that of posting.  A receive that names its partner posts the receive of its tangent at once;
one with a wildcard does so when it has completed, and after those that were posted before it.

A last byte, which makes the length odd, gives the size of the elements' real numbers; it is omitted for the usual size,
eight.  If it is zero, the message consists of bytes with packed elements, whose tangents (`packed_adjoints`) come in a
separate message, with the number that this one contains.
"""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...tape import Push, Tape, lanes_of, no_tangent
from ..log import log
from ..log.log import Communication, Log
from ..log.messages import ALL, CUT, Received, Sent
from ..log.reverse import FIRST_TAG, SIZES_TAG, Reverse
from ..memory.buffers import Buffer
from ..memory.bundles import Bundle
from ..memory.packed_adjoints import SLOT_DTYPE, PackedAdjoints
from ..memory.tangents import set_tangent, tangent_in
from ..waiting.arrivals_seen import is_done
from ..waiting.notices import STOPPED_TAG, put_aside, stranded
from ..waiting.waiting import Patience, outbox_of


def weakly(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a method that does not keep its object alive, to be stored in an attribute of that object."""
    reference = weakref.WeakMethod(method)
    return lambda item: reference()(item)  # type: ignore[misc]


class ForwardCommunication(Communication):
    """The communication of a program in forward mode."""

    __slots__ = ("push",)

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self.push: Push = tape.forward
        tape.forward.at_end(self.end)

    def log(self, reverse: Reverse) -> Log:
        """Return the log of one communicator."""
        found = self.logs.get(reverse)
        if found is None:
            reverse.require_usable()
            found = self.logs[reverse] = ForwardLog(self.push, reverse)
            reverse.channel.threads.add(get_ident())
        return found

    def end(self, error: BaseException | None) -> None:
        """Deliver all tangents at the end of the program."""
        if error is None:
            for found in self.logs.values():
                for receive in found.waiting:  # type: ignore[attr-defined]
                    if not receive.void:
                        error = CommunicationError(
                            f"rank {receive.reverse.rank}: {receive.describe()} was never completed inside ampi.jvp: "
                            "wait for its request there"
                        )
        if error is None:
            outbox_of(self.push).flush()  # type: ignore[arg-type]
            return
        stranded.append(outbox_of(self.push).flights)  # type: ignore[arg-type]
        for reverse, found in self.logs.items():
            stranded.append(found.waiting)  # type: ignore[attr-defined]
            if found.used:  # type: ignore[attr-defined]
                reverse.broken = reverse.broken or f"ampi.jvp ended with an error on rank {reverse.rank}: {error}"
        if isinstance(error, CommunicationError):
            raise error


class ForwardLog(Log):
    """The messages of one communicator.

    Attributes
    ----------
    waiting : list of ForwardReceived
        Receives that have not completed, in the order of posting.
    used : bool
        True if tangents may be under way.
    numbers : dict
        Number of messages of packed elements sent so far, by rank; and of starts of partitioned requests.
    came : dict
        Messages that have arrived before they were needed, by rank, key and number.
    balance : int
        Number of tangents sent minus those received.
    """

    __slots__ = ("__weakref__", "balance", "came", "numbers", "push", "used", "waiting")

    def __init__(self, push: Push, reverse: Reverse) -> None:
        super().__init__(reverse)
        self.push = push
        self.used = False
        self.waiting: list[ForwardReceived] = []
        self.numbers: dict[Any, int] = {}
        self.came: dict[tuple[int, int, int], list[np.ndarray]] = {}
        self.balance = 0
        reverse.channel.in_forward_mode.append(weakref.ref(self))
        self.add_message = weakly(self.log_message)
        self.add_collective = weakly(self.log_collective)

    def log_collective(self, call: Any) -> None:
        """Refuse a collective call that would be recorded."""
        if call.name != "Win":
            raise no_tangent(f"{call.name} on {self.reverse.name}")

    def log_message(self, message: Any) -> None:
        """Send the tangent of a message that is about to be sent, or prepare for that of a receive."""
        message.reverse = self.reverse
        if isinstance(message.buffer, Bundle):
            if isinstance(message, Received):
                message.__class__ = ForwardReceived
            return
        if type(message) in (Sent, Received):
            self.used = True
        if type(message) is Sent:
            self.send(message)
        elif type(message) is Received:
            message.__class__ = ForwardReceived
            message.wild = True  # the status is looked at
            message.nbytes = ALL
            message.flight = Flight(self)
            if message.route.name not in _PROBES:
                self.ask_early(message)
            self.waiting.append(message)
        elif message.route.name in PARTITIONED:
            self.used = True
            PARTITIONED[message.route.name](self, message)
        else:
            raise no_tangent(f"{message.route.name} on {self.reverse.name}")

    def tag(self, tag: int) -> int:
        """Return the tag of the tangent of a message with this tag."""
        if tag < 0:
            return tag  # any, or one that MPI refuses
        if tag >= self.reverse.tags:
            raise CommunicationError(f"forward mode: tag {tag} is too large on {self.reverse.name}; take another one")
        return FIRST_TAG + tag

    def send(self, sent: Sent) -> None:
        """Send the tangent of a message."""
        outbox, route = outbox_of(self.push), sent.route  # type: ignore[arg-type]
        describe = lambda: f"the delivery of the tangent of {sent.describe()}"
        flat = _NOTHING if sent.buffer is None else tangent_in(self.push, sent.buffer)
        if sent.buffer is not None and sent.buffer.packed:
            number = self.numbers[route.partner] = self.numbers.get(route.partner, 0) + 1
            self.send_aside(route.partner, (_SLOTS, number), flat, describe)
            flat = np.append(np.array([number], np.int64).view(np.uint8), np.uint8(0))
        elif _real_size(flat.dtype) not in (1, 8):
            flat = np.append(flat.view(np.uint8), np.uint8(_real_size(flat.dtype)))
        self.balance += 1
        outbox.send(self.reverse, flat.view(np.uint8), route.partner, self.tag(route.tag), describe)

    def ask_early(self, receive: ForwardReceived) -> None:
        """Post the receive of a tangent, if no other receive can match it."""
        route, buffer = receive.route, receive.buffer
        if not isinstance(buffer, Buffer) or buffer.dtype is None or route.partner < 0 or route.tag < 0:
            return
        for other in self.waiting:
            if other.may_match(route.partner, route.tag) and not other.flight.is_settled():
                return
        flight = receive.flight
        nbytes = buffer.nbytes if buffer.packed else buffer.count * buffer.dtype.itemsize
        nbytes = max(nbytes * len(lanes_of(self.push)), np.dtype(np.int64).itemsize)
        flight.array = np.empty(nbytes + 1, np.uint8)
        flight.request = self.reverse.comm.Irecv(flight.array, route.partner, self.tag(route.tag))

    def completed(self, receive: ForwardReceived, status: mpi.Status | None) -> None:
        """Receive the tangent of the message that a completed receive has matched."""
        if not receive.void:
            self.find_earlier_tangents(receive)
        if receive in self.waiting:
            self.waiting.remove(receive)
        flight = receive.flight
        if flight.passed_over:
            raise CommunicationError(
                f"forward mode: {receive.describe()} is of a buffer, but was matched by mprobe or improbe; use Mprobe, "
                "or receive it before later messages of the same sender and tag"
            )
        if receive.void:
            if flight.request is not None:
                flight.request.Cancel()
                flight.request.Wait()
            return
        route = receive.route
        if route.partner < 0:
            raise CommunicationError(
                f"rank {self.reverse.rank}: which message {receive.describe()} matched is not known because its "
                "request was completed by mpi4py's own class; import Request from mpi4py.MPI after `import ampi` or "
                "from ampi.MPI"
            )
        array = flight.take(receive)
        self.balance -= 1
        memory = receive.buffer
        if memory is None:
            if array.any() and not receive.dropped:
                raise ActivityError(
                    f"{receive.describe()}: the message carries derivatives, but is received into memory that is not "
                    "tracked, where they would be lost; make the array with ampi.numpy, or send ampi.value(...)"
                )
            return
        part = memory if status is None else memory.within(status.Get_count(mpi.BYTE))
        if not array.size:
            set_tangent(self.push, part, None)
            return
        size, directions = 8, len(lanes_of(self.push))
        if array.size % 2:
            size, array = int(array[-1]), array[:-1]
        if part.dtype is not None and not size and not part.packed:
            part = PackedAdjoints(part)
        if part.dtype is not None and not size:
            number = int(array.view(np.int64)[0])
            array = self.receive_aside(receive.route.partner, _SLOTS, number, 2, receive.waiting)[1].view(SLOT_DTYPE)
        elif part.packed and array.size == part.nbytes * directions:
            typed = array.view(f"f{size}")
            array = np.zeros(part.count * directions, part.dtype)
            array[::size] = typed
        elif part.dtype is not None:
            array = array.view(part.dtype) if _real_size(part.dtype) == size else _NOTHING
        if receive.nbytes == CUT and array.size > part.count * directions:
            array = array.reshape(directions, -1)[:, : part.count].reshape(-1)
        if part.dtype is None or array.size != part.count * directions:
            raise mismatched_elements(receive, directions)
        set_tangent(self.push, part, array)

    def send_aside(self, partner: int, head: Sequence[int], flat: np.ndarray, describe: Callable[[], str]) -> None:
        """Send tangents that a rank identifies by a key and a number, the first two of ``head``."""
        message = np.concatenate([np.array(head, np.int64).view(np.uint8), flat.view(np.uint8)])
        self.balance += 1
        outbox_of(self.push).send(self.reverse, message, partner, _ASIDE_TAG, describe)  # type: ignore[arg-type]

    def receive_aside(
        self, partner: int, key: int, number: int, length: int, describe: Callable[[], str]
    ) -> tuple[list[int], np.ndarray]:
        """Wait for the next message with a key and a number; return its head of ``length`` integers, and the bytes."""
        comm, status, came = self.reverse.comm, mpi.Status(), self.came
        with Patience(describe, lambda: [(self.reverse, partner)]) as patience:
            while not came.get((partner, key, number)):
                message = comm.Improbe(partner, _ASIDE_TAG, status)
                if message is None:
                    patience.pause()
                    continue
                array = np.empty(status.Get_count(mpi.BYTE), np.uint8)
                message.Recv(array)
                self.keep_aside(partner, array)
        self.balance -= 1
        array = came[partner, key, number].pop(0)
        if not came[partner, key, number]:
            del came[partner, key, number]
        return array[: 8 * length].view(np.int64).tolist(), array[8 * length :]

    def keep_aside(self, partner: int, array: np.ndarray) -> None:
        """Keep a message of `send_aside`."""
        key, number = array[:16].view(np.int64).tolist()
        self.came.setdefault((partner, key, number), []).append(array)

    def find_earlier_tangents(self, receive: ForwardReceived) -> None:
        """Find the tangents of earlier receives that matched earlier messages of the same sender and tag."""
        partner, tag = receive.route.partner, receive.route.tag
        for other in self.waiting:
            if other is receive:
                return
            if not other.may_match(partner, tag) or other.flight.is_settled():
                continue
            source, there = other.route.partner, other.route.tag
            if source < 0 or there < 0:
                # It was posted earlier, so it has matched a message and will complete.
                status = mpi.Status()
                with Patience(other.waiting, lambda: [(self.reverse, None)]) as patience:
                    while not is_done(other.request, status):
                        patience.pause()
                source, there = status.Get_source(), status.Get_tag()
            if source == partner and tag in (mpi.ANY_TAG, there):
                if other.route.name in ("mprobe", "improbe"):  # probably of an object
                    other.flight.passed_over = True
                    continue
                status = mpi.Status()
                other.flight.message = self.probe(other, source, there, status)
                other.flight.size = status.Get_count(mpi.BYTE)

    def probe(self, receive: ForwardReceived, source: int, tag: int, status: mpi.Status) -> mpi.Message:
        """Wait for the next tangent of a sender and tag, and match it.

        If a receive of any tag from a known sender was completed without a status, MPI's order of messages determines
        which message it got.
        """
        with Patience(receive.waiting, lambda: [(self.reverse, source)]) as patience:
            while True:
                message = self.reverse.comm.Improbe(source, self.tag(tag), status)
                if message is None:
                    patience.pause()
                elif status.Get_tag() >= FIRST_TAG:
                    return message
                else:
                    self.put_aside(message, status)

    def put_aside(self, message: mpi.Message, status: mpi.Status) -> None:
        """Receive what is no tangent, but came first of a sender's messages with any tag, for those whom it concerns:
        notices of sweeps that have stopped, and messages of ranks that have begun a sweep."""
        source, tag, channel = status.Get_source(), status.Get_tag(), self.reverse.channel
        came = np.empty(status.Get_count(mpi.BYTE), np.uint8)
        message.Recv(came)
        if tag == STOPPED_TAG:
            put_aside(channel, source, came.tobytes())
        elif tag == _ASIDE_TAG:
            self.keep_aside(source, came)
        else:
            channel.put_aside((self.reverse.comm.handle, source, tag), came.view(np.int64))


_NOTHING = np.zeros(0, np.uint8)
_ASIDE_TAG = SIZES_TAG  # only sweeps use it, and there are none in forward mode
_SLOTS = 0  # the key of the tangents of packed elements; those of partitioned messages have negative ones
_PROBES = ("Mprobe", "Improbe", "mprobe", "improbe")


PARTITIONED: dict[str, Callable[[ForwardLog, Any], None]] = {}
"""Functions called when a partitioned request has been started, by the name of the method that made it."""


def mismatched_elements(receive: Received, directions: int) -> CommunicationError:
    """Return the error for tangents whose number or type is not that of the received elements."""
    others = "" if directions == 1 else f", and jvp in the same number of directions (here: {directions})"
    return CommunicationError(
        f"{receive.describe()}: the sender's elements are not those of the receiver's datatype, so "
        f"derivatives cannot be sent with them; send and receive the same kind of numbers{others}"
    )


def _real_size(dtype: np.dtype) -> int:
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


class Flight:
    """The state of the tangent of a receive.

    Attributes
    ----------
    log : ForwardLog
    request : mpi4py.MPI.Request or None
        The receive of the tangent into ``array``, if it has been posted.
    message : mpi4py.MPI.Message or None
        The matched message with the tangent, of ``size`` bytes, if it has been found.
    passed_over : bool
        True if the message seemed to be an object, which has no separate tangent.
    """

    __slots__ = ("array", "log", "message", "passed_over", "request", "size")

    def __init__(self, log: ForwardLog) -> None:
        self.log = log
        self.request: mpi.Request | None = None
        self.array: np.ndarray = _NOTHING
        self.message: mpi.Message | None = None
        self.size = 0
        self.passed_over = False

    def is_settled(self) -> bool:
        """Return whether the message with the tangent has been matched."""
        return self.request is not None or self.message is not None

    def forget(self, receive: ForwardReceived) -> None:
        """Drop this state: the matched message is an object, which contains its tangents."""
        if self.is_settled():
            raise CommunicationError(
                f"forward mode: {receive.describe()} is of an object, but was matched by Mprobe or Improbe; use "
                "mprobe, or receive it before later messages of the same sender and tag"
            )
        self.log.waiting.remove(receive)
        receive.flight = None

    def take(self, receive: ForwardReceived) -> np.ndarray:
        """Wait for the tangent; return its bytes."""
        reverse, partner = self.log.reverse, receive.route.partner
        status = mpi.Status()
        if self.request is None:
            message = self.message or self.log.probe(receive, partner, receive.route.tag, status)
            self.array = np.empty(self.size if self.message else status.Get_count(mpi.BYTE), np.uint8)
            self.request = message.Irecv(self.array)
        try:
            with Patience(receive.waiting, lambda: [(reverse, partner)]) as patience:
                while not self.request.Test(status):
                    patience.pause()
        except mpi.Exception as problem:
            if problem.Get_error_class() != mpi.ERR_TRUNCATE:
                raise
            return self.head(receive)
        return self.array[: status.Get_count(mpi.BYTE)]

    def head(self, receive: ForwardReceived) -> np.ndarray:
        """Return the received beginning of a tangent that was too long, as its message was."""
        buffer, directions = receive.buffer, len(lanes_of(self.log.push))
        if receive.nbytes != CUT:
            raise mismatched_elements(receive, directions)
        if directions > 1 or buffer.packed:
            raise CommunicationError(
                f"{receive.describe()}: the message was too long for its memory, which ampi.jvp does not differentiate "
                "in several directions, or for packed elements; use a longer buffer"
            )
        head, size = self.array[: buffer.nbytes], _real_size(buffer.dtype)
        return head if size == 8 else np.append(head, np.uint8(size))


class ForwardReceived(Received):
    """A receive in forward mode."""

    __slots__ = ()
    propagates_tangents = True

    def tangent(self, push: Push) -> None:
        """Do nothing: the tangent is received when the message has arrived."""

    def may_match(self, source: int, tag: int) -> bool:
        """Return whether the receive, as it was posted, could match a message of this source and tag."""
        route = self.route
        return route.partner in (mpi.ANY_SOURCE, source) and (tag == mpi.ANY_TAG or route.tag in (mpi.ANY_TAG, tag))

    def resolve(self, status: mpi.Status | None) -> None:
        """Note that the receive has completed."""
        Received.resolve(self, status)
        flight = self.flight
        if flight is not None:
            flight.log.completed(self, status)
            self.flight = None

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"the tangent of {self.describe()}"


log.communication_classes["forward"] = ForwardCommunication
