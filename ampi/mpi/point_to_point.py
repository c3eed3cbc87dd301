"""Point-to-point communication: recording, and the methods of communicators and matched messages."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from sys import _getframe
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..memory import plain
from ..recording import open_tapes, opened, recording, scope_now
from ..tape import Tape, Undo, living, overwrite
from .agreement import MOST_PENDING, log_for, log_received, log_sent
from .buffers import NOTHING, Buffer, keep_message, lasting, parse_bytes, refuse_others
from .messages import Received, Route, Sent, call_site
from .objects import MatchedObjects
from .partitioned import Partitioned
from .requests import AcceptsBase, Handles, Request, persistent, recorded

_PROC_NULL = mpi.PROC_NULL
_Comm = mpi.Comm
_Send, _Recv, _Isend, _Irecv = _Comm.Send, _Comm.Recv, _Comm.Isend, _Comm.Irecv
_Ssend, _Bsend, _Rsend = _Comm.Ssend, _Comm.Bsend, _Comm.Rsend
_Issend, _Ibsend, _Irsend = _Comm.Issend, _Comm.Ibsend, _Comm.Irsend
_Sendrecv, _Sendrecv_replace = _Comm.Sendrecv, _Comm.Sendrecv_replace
_Isendrecv, _Isendrecv_replace = _Comm.Isendrecv, _Comm.Isendrecv_replace
_Send_init, _Bsend_init = _Comm.Send_init, _Comm.Bsend_init
_Rsend_init, _Ssend_init = _Comm.Rsend_init, _Comm.Ssend_init
_Recv_init, _Mprobe, _Improbe = _Comm.Recv_init, _Comm.Mprobe, _Comm.Improbe
_Message = mpi.Message
_Wait = mpi.Request.Wait
_ANY_SOURCE = mpi.ANY_SOURCE

_LARGE = 1 << 16
"""Bytes of a message that takes so long that the recording of a blocking send may be done meanwhile."""


class PointToPoint(Partitioned):
    """Methods of communicators that send and receive buffers."""

    __slots__ = ()

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send."""
        if not open_tapes or dest == _PROC_NULL:
            return _Send(self, buf, dest, tag)
        sent = _send_again("Send", self, buf, dest, tag, _Isend, _LARGE)
        if sent is None:
            _log_send("Send", self, buf, dest, tag)
        elif type(sent) is Request:
            _Wait(sent)
            return None
        return _Send(self, buf, dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send in synchronous mode."""
        if not open_tapes or dest == _PROC_NULL:
            return _Ssend(self, buf, dest, tag)
        if _send_again("Ssend", self, buf, dest, tag) is None:
            _log_send("Ssend", self, buf, dest, tag)
        _Ssend(self, buf, dest, tag)

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send in buffered mode."""
        if not open_tapes or dest == _PROC_NULL:
            return _Bsend(self, buf, dest, tag)
        if _send_again("Bsend", self, buf, dest, tag) is None:
            _log_send("Bsend", self, buf, dest, tag)
        _Bsend(self, buf, dest, tag)

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send in ready mode."""
        if not open_tapes or dest == _PROC_NULL:
            return _Rsend(self, buf, dest, tag)
        if _send_again("Rsend", self, buf, dest, tag) is None:
            _log_send("Rsend", self, buf, dest, tag)
        _Rsend(self, buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send."""
        if not open_tapes or dest == _PROC_NULL:
            return _Isend(self, buf, dest, tag)
        request = _send_again("Isend", self, buf, dest, tag, _Isend)
        return _begin_send("Isend", self, buf, dest, tag, _Isend) if request is None else request

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send in synchronous mode."""
        if not open_tapes or dest == _PROC_NULL:
            return _Issend(self, buf, dest, tag)
        request = _send_again("Issend", self, buf, dest, tag, _Issend)
        return _begin_send("Issend", self, buf, dest, tag, _Issend) if request is None else request

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send in buffered mode."""
        if not open_tapes or dest == _PROC_NULL:
            return _Ibsend(self, buf, dest, tag)
        request = _send_again("Ibsend", self, buf, dest, tag, _Ibsend)
        return _begin_send("Ibsend", self, buf, dest, tag, _Ibsend) if request is None else request

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send in ready mode."""
        if not open_tapes or dest == _PROC_NULL:
            return _Irsend(self, buf, dest, tag)
        request = _send_again("Irsend", self, buf, dest, tag, _Irsend)
        return _begin_send("Irsend", self, buf, dest, tag, _Irsend) if request is None else request

    def Recv(
        self,
        buf: Any,
        source: int = mpi.ANY_SOURCE,
        tag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> None:
        """Blocking receive."""
        if not living or source == _PROC_NULL:
            return _Recv(self, buf, source, tag, status)
        receive = _receive_again("Recv", self, buf, source, tag) or _post("Recv", self, buf, source, tag)
        if receive is None or _nothing_to_learn(receive):
            return _Recv(self, buf, source, tag, status)
        status = _status_for(receive, status)
        _Recv(self, buf, source, tag, status)
        _received(receive, status)

    def Irecv(self, buf: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Request:
        """Nonblocking receive."""
        if not living or source == _PROC_NULL:
            return _Irecv(self, buf, source, tag)
        request = _receive_again("Irecv", self, buf, source, tag, _Irecv)
        if request is not None:
            return request
        receive = _post("Irecv", self, buf, source, tag)
        request = _Irecv(self, buf, source, tag)
        return request if receive is None else recorded(opened(), request, receive)

    def Sendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = mpi.ANY_SOURCE,
        recvtag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> None:
        """Send and receive a message."""
        if not living:
            return _Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        # The send's record comes first: the receive overwrites what it has read.
        if open_tapes and dest != _PROC_NULL and not _send_again("Sendrecv", self, sendbuf, dest, sendtag):
            _log_send("Sendrecv", self, sendbuf, dest, sendtag)
        receive = None
        if source != _PROC_NULL:
            receive = _receive_again("Sendrecv", self, recvbuf, source, recvtag)
            if receive is None:
                receive = _post("Sendrecv", self, recvbuf, source, recvtag)
        if receive is None or _nothing_to_learn(receive):
            return _Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        status = _status_for(receive, status)
        _Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        _received(receive, status)

    def Sendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = mpi.ANY_SOURCE,
        recvtag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> None:
        """Send and receive a message in the same buffer."""
        if not living:
            return _Sendrecv_replace(self, buf, dest, sendtag, source, recvtag, status)
        _, receive = _exchange("Sendrecv_replace", self, buf, dest, sendtag, buf, source, recvtag)
        status = _status_for(receive, status)
        _Sendrecv_replace(self, buf, dest, sendtag, source, recvtag, status)
        if receive is not None:
            _received(receive, status)

    def Isendrecv(
        self,
        sendbuf: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = mpi.ANY_SOURCE,
        recvtag: int = mpi.ANY_TAG,
    ) -> mpi.Request:
        """Nonblocking send and receive."""
        if not living:
            return _Isendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        parts = _exchange("Isendrecv", self, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        if _is_wild(parts):
            return _two_requests(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, parts)
        return _recorded(_Isendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag), parts)

    def Isendrecv_replace(
        self,
        buf: Any,
        dest: int,
        sendtag: int = 0,
        source: int = mpi.ANY_SOURCE,
        recvtag: int = mpi.ANY_TAG,
    ) -> mpi.Request:
        """Nonblocking send and receive in the same buffer."""
        if not living:
            return _Isendrecv_replace(self, buf, dest, sendtag, source, recvtag)
        parts = _exchange("Isendrecv_replace", self, buf, dest, sendtag, buf, source, recvtag)
        if _is_wild(parts):
            return _two_requests(self, _copied(buf), dest, sendtag, buf, source, recvtag, parts)
        return _recorded(_Isendrecv_replace(self, buf, dest, sendtag, source, recvtag), parts)

    # ------------------------------------------------------------------------------------------- persistent requests

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> mpi.Prequest:
        """Create a persistent request for a standard send."""
        return _send_init("Send_init", _Send_init, self, buf, dest, tag)

    def Bsend_init(self, buf: Any, dest: int, tag: int = 0) -> mpi.Prequest:
        """Create a persistent request for a buffered send."""
        return _send_init("Bsend_init", _Bsend_init, self, buf, dest, tag)

    def Rsend_init(self, buf: Any, dest: int, tag: int = 0) -> mpi.Prequest:
        """Create a persistent request for a ready send."""
        return _send_init("Rsend_init", _Rsend_init, self, buf, dest, tag)

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> mpi.Prequest:
        """Create a persistent request for a synchronous send."""
        return _send_init("Ssend_init", _Ssend_init, self, buf, dest, tag)

    def Recv_init(self, buf: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Prequest:
        """Create a persistent request for a receive."""
        request = _Recv_init(self, buf, source, tag)
        if source == _PROC_NULL:
            return request
        buf = lasting(buf)
        return persistent(request, lambda: _some(_posted("Recv_init", self, buf, source, tag)))

    # ----------------------------------------------------------------------------------------------- matched probes

    def Mprobe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message:
        """Blocking test for a matched message."""
        if not open_tapes:
            return _Mprobe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        return _matched("Mprobe", self, _Mprobe(self, source, tag, status), status)

    def Improbe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        """Nonblocking test for a matched message."""
        if not open_tapes:
            return _Improbe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        message = _Improbe(self, source, tag, status)
        return None if message is None else _matched("Improbe", self, message, status)

    def mprobe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message:
        """Blocking test for a matched message with an object."""
        if not open_tapes:
            return _Comm.mprobe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        return _matched("mprobe", self, _Comm.mprobe(self, source, tag, status), status)

    def improbe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        """Nonblocking test for a matched message with an object."""
        if not open_tapes:
            return _Comm.improbe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        message = _Comm.improbe(self, source, tag, status)
        return None if message is None else _matched("improbe", self, message, status)


class Message(MatchedObjects, Handles, _Message, metaclass=AcceptsBase):
    """Matched message."""

    __slots__ = ("_receive",)  # in the log of the tape that recorded the probe
    _base = _Message

    @classmethod
    def Probe(
        cls, comm: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message:
        """Blocking test for a matched message."""
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        """Nonblocking test for a matched message."""
        return comm.Improbe(source, tag, status)

    @classmethod
    def probe(
        cls, comm: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message:
        """Blocking test for a matched message with an object."""
        return comm.mprobe(source, tag, status)

    @classmethod
    def iprobe(
        cls, comm: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        """Nonblocking test for a matched message with an object."""
        return comm.improbe(source, tag, status)

    def Recv(self, buf: Any, status: mpi.Status | None = None) -> None:
        """Blocking receive of the matched message."""
        receive = _post_matched("Mrecv", self, buf) if living else None
        _Message.Recv(self, buf, status)
        if receive is not None:
            _received(receive, status)

    def Irecv(self, buf: Any) -> mpi.Request:
        """Nonblocking receive of the matched message."""
        receive = _post_matched("Imrecv", self, buf) if living else None
        request = _Message.Irecv(self, buf)
        return request if receive is None else recorded(opened(), request, receive)


def _nothing_to_learn(receive: Received) -> bool:
    """Whether a blocking receive that has been recorded needs nothing more when it has ended."""
    return not receive.wild and opened().observer is None


def _received(receive: Received, status: mpi.Status | None) -> None:
    """A blocking receive has ended."""
    if receive.wild:
        receive.resolve(status)
    observer = opened().observer
    if observer is not None:
        observer.look()


def _begin_send(
    name: str, comm: Any, buf: Any, dest: int, tag: int, start: Callable[[Any, Any, int, int], mpi.Request]
) -> mpi.Request:
    """A nonblocking send, of anything."""
    sent = _log_send(name, comm, buf, dest, tag)
    request = start(comm, buf, dest, tag)
    return request if sent is None or sent.buffer is None else recorded(opened(), request, sent)


def _send_init(
    name: str, primal: Callable[[Any, Any, int, int], mpi.Prequest], comm: Any, buf: Any, dest: int, tag: int
) -> mpi.Prequest:
    request = primal(comm, buf, dest, tag)
    if dest == _PROC_NULL:
        return request
    buf = lasting(buf)
    return persistent(request, lambda: _some(_sent(name, comm, buf, dest, tag) if open_tapes else None))


def _some(part: Sent | Received | None) -> tuple[Sent | Received, ...]:
    return () if part is None else (part,)


# After a large message most of the caches are filled with it, and what recording looks at comes from afar.  So for
# arrays that were in messages before, these two look at little more than their buffers and the latest routes, and make
# the user's request without further calls.


def _send_again(
    name: str,
    comm: Any,
    buf: Any,
    dest: int,
    tag: int,
    start: Callable[[Any, Any, int, int], mpi.Request] | None = None,
    least: int = 0,
) -> Any:
    """Log and record a send of an array that was in a message before, and is active.

    Parameters
    ----------
    start : callable, optional
        Begins to send, if the message has so many bytes at least, and gives the request of the message, which is
        recorded while it is on its way.

    Returns
    -------
    Sent, Request or None
        The request, if the message has been begun.  None for other arrays, of which nothing has been recorded.
    """
    scope = scope_now()
    tape = scope.tape
    buffer = getattr(buf, "_message", None)
    if buffer is None or tape is None or scope.thread != get_ident():
        return None
    storage = buffer.storage
    if storage.tape is not tape._reference or storage.arriving:
        return None
    latest, log, _ = tape.latest
    if latest is not comm:
        log = log_for(tape, name, comm, True)
    request = None
    if start is not None and buffer.nbytes >= least:
        request = start(comm, buf, dest, tag)
    route = buffer.sent
    frame = _getframe(2)
    if (
        route is None
        or route.partner != dest
        or route.tag != tag
        or route.instruction != frame.f_lasti
        or route.code is not frame.f_code
        or route.place is not log.place
        or route.name != name
    ):
        route = buffer.sent = Route(name, log.place, dest, tag, False, call_site(3))
    sent = Sent()
    sent.route = route
    sent.buffer = buffer
    sent.nbytes = buffer.nbytes
    sent.request = None
    sent.wild = False
    sent.cancelled = False
    log.messages.append(sent)
    tape.append_record(sent)
    if request is None:
        return sent
    ours = Request(request)  # type: ignore[call-arg]
    ours._parts = (sent,)
    ours._tape = tape._reference
    return ours


def _receive_again(
    name: str,
    comm: Any,
    buf: Any,
    source: int,
    tag: int,
    start: Callable[[Any, Any, int, int], mpi.Request] | None = None,
) -> Any:
    """The same before a receive into an array that was in a message before: saves what it overwrites."""
    scope = scope_now()
    tape = scope.tape
    buffer = getattr(buf, "_message", None)
    if buffer is None or tape is None or scope.thread != get_ident():
        return None
    latest, log, communication = tape.latest
    if latest is not comm:
        log = log_for(tape, name, comm, False)
        if log.reverse is None:
            return None
        communication = tape.latest[2]
    route = buffer.received
    frame = _getframe(2)
    if (
        route is None
        or route.partner != source
        or route.tag != tag
        or route.instruction != frame.f_lasti
        or route.code is not frame.f_code
        or route.place is not log.place
        or route.name != name
    ):
        route = buffer.received = Route(name, log.place, source, tag, source == _ANY_SOURCE, call_site(3))
    receive = Received()
    receive.route = route
    receive.buffer = buffer
    receive.request = None
    receive.wild = route.wild
    receive.cancelled = False
    receive.dropped = False
    storage = buffer.storage
    if start is None and storage.arriving:
        communication.look()  # what came into the same memory has been overwritten
    receive.undo = overwrite(buf) if storage.needs or storage.guard else ()
    storage.tape = tape._reference
    log.messages.append(receive)
    tape.append_record(receive)
    if start is None:
        return receive
    ours = receive.request = Request(start(comm, buf, source, tag))  # type: ignore[call-arg]
    ours._parts = (receive,)
    ours._tape = tape._reference
    storage.arriving += 1
    pending = communication.pending
    if len(pending) < MOST_PENDING:
        pending.append(receive)
    else:
        communication.enter(receive)
    if tape.before_append is None:
        tape.before_append = communication.look
    return ours


def _sent(name: str, comm: Any, buf: Any, dest: int, tag: int) -> Sent | None:
    return _send_again(name, comm, buf, dest, tag) or _log_send(name, comm, buf, dest, tag)


def _posted(name: str, comm: Any, buf: Any, source: int, tag: int) -> Received | None:
    return _receive_again(name, comm, buf, source, tag) or _post(name, comm, buf, source, tag)


def _log_send(name: str, comm: Any, buf: Any, dest: int, tag: int) -> Sent | None:
    """Log and record any send, if this thread has a tape."""
    tape = opened()
    buffer = parse_bytes(buf)
    if tape is None:
        refuse_others(buffer)
        return None
    active = buffer.active(tape) and recording() is not None
    sent = log_sent(tape, name, comm, buffer, active, dest, tag)
    if active:
        keep_message(buf, buffer.detach())
        tape.append_record(sent)
    return sent


def _post(name: str, comm: Any, buf: Any, source: int, tag: int) -> Received | None:
    """Before any receive: save what it overwrites, and log it if a tape is open."""
    buffer = parse_bytes(buf)
    tape = opened()
    if tape is None:
        refuse_others(buffer)
    undo = overwrite(*buffer.overwritten())
    if tape is None:
        return None
    receive = log_received(tape, name, comm, buffer, buffer.tracked and recording() is not None, source, tag)
    _record_receive(tape, receive, buffer, undo)
    if receive.active:
        keep_message(buf, buffer)
    return receive


def _record_receive(tape: Tape, receive: Received, buffer: Buffer, undo: list[Undo]) -> None:
    """What a receive does to memory: overwrites it, with what may be active."""
    receive.dropped = recording() is None
    receive.buffer = buffer if buffer.tracked and not receive.dropped else None
    if receive.active:
        buffer.activate(tape)
        receive.undo = undo
        tape.append_record(receive)
    elif undo:
        tape.append_start(None, undo)
    buffer.detach()


def _matched(name: str, comm: Any, message: mpi.Message, status: mpi.Status) -> mpi.Message:
    """A message that was matched while a tape records: it is in the log from here on."""
    tape = opened()
    if tape is None or message == mpi.MESSAGE_NO_PROC:
        return message
    ours = Message.__new__(Message, message)
    ours._receive = log_received(tape, name, comm, NOTHING, False, status.Get_source(), status.Get_tag())
    return ours


def _post_matched(name: str, message: Any, buf: Any) -> Received | None:
    """Before a matched message is received."""
    if message == mpi.MESSAGE_NO_PROC:
        return None
    buffer = parse_bytes(buf)
    tape = opened()
    if tape is None:
        refuse_others(buffer)
    undo = overwrite(*buffer.overwritten())
    receive = getattr(message, "_receive", None)
    if tape is None or receive is None:
        return None
    message._receive = None
    receive.rename(name)
    _record_receive(tape, receive, buffer, undo)
    return receive


def _exchange(
    name: str, comm: Any, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int
) -> tuple[Sent | None, Received | None]:
    """Log a send and a receive of one call.  The send's record comes first: the receive overwrites what it has read."""
    sent = _sent(name, comm, sendbuf, dest, sendtag) if open_tapes and dest != _PROC_NULL else None
    receive = _posted(name, comm, recvbuf, source, recvtag) if source != _PROC_NULL else None
    return sent, receive


def _is_wild(parts: tuple[Sent | None, Received | None]) -> bool:
    return parts[1] is not None and parts[1].wild


def _two_requests(
    comm: Any, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int, parts: tuple
) -> mpi.Request:
    """A nonblocking exchange with wildcards as a send and a receive of their own.

    MPICH 5.0 does not say in the status of Isendrecv what was matched.
    """
    sent, _ = parts
    pair = _Isend(comm, sendbuf, dest, sendtag)
    request = _Irecv(comm, recvbuf, source, recvtag)
    if sent is not None:
        sent.request = pair
        sent.wild = True
    return _recorded(request, parts)


def _copied(spec: Any) -> Any:
    """A message argument with a copy of its memory."""
    if isinstance(spec, (list, tuple)):
        return [_copied(spec[0]), *spec[1:]]
    return plain(np.asarray(spec if isinstance(spec, np.ndarray) else memoryview(spec))).copy(order="K")


def _status_for(receive: Received | None, status: mpi.Status | None) -> mpi.Status | None:
    """A status of our own where the program asks for none and the receive has a wildcard."""
    return mpi.Status() if status is None and receive is not None and receive.wild else status


def _recorded(request: mpi.Request, parts: tuple[Sent | None, Received | None]) -> mpi.Request:
    logged = [part for part in parts if part is not None]
    return recorded(opened(), request, *logged) if logged else request
