"""Point-to-point communication: recording, and the methods of communicators and matched messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..memory import plain
from ..tape import Tape, Undo, _recording, current, living, overwrite, recording_now
from .agreement import log_for, log_received
from .buffers import NOTHING, Buffer, keep_message, lasting, parse_bytes
from .messages import Received, Sent, call_site
from .objects import MatchedObjects
from .partitioned import Partitioned
from .requests import AcceptsBase, Handles, persistent, recorded

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


class PointToPoint(Partitioned):
    """Methods of communicators that send and receive buffers."""

    __slots__ = ()

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send."""
        if not _recording or dest == _PROC_NULL:
            return _Send(self, buf, dest, tag)
        return _send("Send", _Send, self, buf, dest, tag)

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send in synchronous mode."""
        if not _recording or dest == _PROC_NULL:
            return _Ssend(self, buf, dest, tag)
        return _send("Ssend", _Ssend, self, buf, dest, tag)

    def Bsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send in buffered mode."""
        if not _recording or dest == _PROC_NULL:
            return _Bsend(self, buf, dest, tag)
        return _send("Bsend", _Bsend, self, buf, dest, tag)

    def Rsend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send in ready mode."""
        if not _recording or dest == _PROC_NULL:
            return _Rsend(self, buf, dest, tag)
        return _send("Rsend", _Rsend, self, buf, dest, tag)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send."""
        if not _recording or dest == _PROC_NULL:
            return _Isend(self, buf, dest, tag)
        return _send("Isend", _Isend, self, buf, dest, tag)

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send in synchronous mode."""
        if not _recording or dest == _PROC_NULL:
            return _Issend(self, buf, dest, tag)
        return _send("Issend", _Issend, self, buf, dest, tag)

    def Ibsend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send in buffered mode."""
        if not _recording or dest == _PROC_NULL:
            return _Ibsend(self, buf, dest, tag)
        return _send("Ibsend", _Ibsend, self, buf, dest, tag)

    def Irsend(self, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send in ready mode."""
        if not _recording or dest == _PROC_NULL:
            return _Irsend(self, buf, dest, tag)
        return _send("Irsend", _Irsend, self, buf, dest, tag)

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
        receive = _post("Recv", self, buf, source, tag)
        if receive is None:
            return _Recv(self, buf, source, tag, status)
        if receive.wild and status is None:
            status = mpi.Status()
        _Recv(self, buf, source, tag, status)
        _received(receive, status)

    def Irecv(self, buf: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Request:
        """Nonblocking receive."""
        if not living or source == _PROC_NULL:
            return _Irecv(self, buf, source, tag)
        receive = _post("Irecv", self, buf, source, tag)
        request = _Irecv(self, buf, source, tag)
        return request if receive is None else recorded(_recording[-1], request, receive)

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
        _, receive = _exchange("Sendrecv", self, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        status = _status_for(receive, status)
        _Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        if receive is not None:
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
        return persistent(request, lambda: _some(_post("Recv_init", self, buf, source, tag)))

    # ----------------------------------------------------------------------------------------------- matched probes

    def Mprobe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message:
        """Blocking test for a matched message."""
        if not _recording:
            return _Mprobe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        return _matched("Mprobe", self, _Mprobe(self, source, tag, status), status)

    def Improbe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        """Nonblocking test for a matched message."""
        if not _recording:
            return _Improbe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        message = _Improbe(self, source, tag, status)
        return None if message is None else _matched("Improbe", self, message, status)

    def mprobe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message:
        """Blocking test for a matched message with an object."""
        if not _recording:
            return _Comm.mprobe(self, source, tag, status)
        status = mpi.Status() if status is None else status
        return _matched("mprobe", self, _Comm.mprobe(self, source, tag, status), status)

    def improbe(
        self, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        """Nonblocking test for a matched message with an object."""
        if not _recording:
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
        return request if receive is None else recorded(_recording[-1], request, receive)


def _received(receive: Received, status: mpi.Status | None) -> None:
    """A blocking receive has ended."""
    if receive.wild:
        receive.resolve(status)
    observer = _recording[-1].observer
    if observer is not None:
        observer.look()


def _send(name: str, primal: Callable[[Any, Any, int, int], Any], comm: Any, buf: Any, dest: int, tag: int) -> Any:
    """Send, blocking or not, while a tape is open."""
    sent = _log_send(name, comm, buf, dest, tag)
    request = primal(comm, buf, dest, tag)
    if request is None or not sent.active:
        return request
    return recorded(_recording[-1], request, sent)


def _send_init(
    name: str, primal: Callable[[Any, Any, int, int], mpi.Prequest], comm: Any, buf: Any, dest: int, tag: int
) -> mpi.Prequest:
    request = primal(comm, buf, dest, tag)
    if dest == _PROC_NULL:
        return request
    buf = lasting(buf)
    return persistent(request, lambda: _some(_log_send(name, comm, buf, dest, tag) if _recording else None))


def _some(part: Sent | Received | None) -> tuple[Sent | Received, ...]:
    return () if part is None else (part,)


def _log_send(name: str, comm: Any, buf: Any, dest: int, tag: int) -> Sent:
    tape = _recording[-1]
    buffer = getattr(buf, "_message", None)
    if buffer is not None and buffer.storage.tape is tape._reference:
        active = recording_now[0] is not None
    else:
        buffer = parse_bytes(buf)
        active = buffer.active(tape) and current() is not None
    log = log_for(tape, name, comm, active, buffer)
    sent = Sent(name, log.reverse, buffer, active, dest, tag)
    log.sent[dest].append(sent)
    if active:
        if buffer.array is not None:
            keep_message(buf, buffer.detach())
        tape.append_record(sent)
    return sent


def _post(name: str, comm: Any, buf: Any, source: int, tag: int) -> Received | None:
    """Before a receive: save what it overwrites, and log it if a tape is open."""
    tape = recording_now[0]
    buffer = getattr(buf, "_message", None)
    if buffer is None or tape is None:
        return _post_unknown(name, comm, buf, source, tag)
    storage = buffer.storage
    log = log_for(tape, name, comm, False)
    receive = Received(name, log.reverse, buffer, True, source, tag)
    log.posted.append(receive)
    if storage.needs:
        receive.undo = overwrite(buf)
    storage.tape = tape._reference
    tape.append_record(receive)
    return receive


def _post_unknown(name: str, comm: Any, buf: Any, source: int, tag: int) -> Received | None:
    buffer = parse_bytes(buf)
    undo = overwrite(*buffer.overwritten())
    if not _recording:
        return None
    tape = _recording[-1]
    receive = log_received(tape, name, comm, buffer, buffer.tracked and current() is not None, source, tag)
    _record_receive(tape, receive, buffer, undo)
    if receive.active:
        keep_message(buf, buffer)
    return receive


def _record_receive(tape: Tape, receive: Received, buffer: Buffer, undo: list[Undo]) -> None:
    """What a receive does to memory: overwrites it, with what may be active."""
    receive.dropped = current() is None
    receive.active = buffer.tracked and not receive.dropped
    receive.buffer = buffer if receive.active else None
    if receive.active:
        buffer.activate(tape)
        receive.undo = undo
        tape.append_record(receive)
    elif undo:
        tape.append_start(None, undo)
    buffer.detach()


def _matched(name: str, comm: Any, message: mpi.Message, status: mpi.Status) -> mpi.Message:
    """A message that was matched while a tape records: it is in the log from here on."""
    if message == mpi.MESSAGE_NO_PROC:
        return message
    ours = Message.__new__(Message, message)
    ours._receive = log_received(_recording[-1], name, comm, NOTHING, False, status.Get_source(), status.Get_tag())
    return ours


def _post_matched(name: str, message: Any, buf: Any) -> Received | None:
    """Before a matched message is received."""
    if message == mpi.MESSAGE_NO_PROC:
        return None
    buffer = parse_bytes(buf)
    undo = overwrite(*buffer.overwritten())
    receive = getattr(message, "_receive", None)
    if not _recording or receive is None:
        return None
    message._receive = None
    receive.name = name
    receive.where = call_site()
    _record_receive(_recording[-1], receive, buffer, undo)
    return receive


def _exchange(
    name: str, comm: Any, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int
) -> tuple[Sent | None, Received | None]:
    """Log a send and a receive of one call.  The send's record comes first: the receive overwrites what it has read."""
    sent = _log_send(name, comm, sendbuf, dest, sendtag) if _recording and dest != _PROC_NULL else None
    receive = _post(name, comm, recvbuf, source, recvtag) if source != _PROC_NULL else None
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
        sent.pair = pair
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
    return recorded(_recording[-1], request, *logged) if logged else request
