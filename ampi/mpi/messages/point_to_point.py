"""Point-to-point communication: the methods of communicators and matched messages."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...memory.storages import plain
from ...tape import living
from ...tape.recording import open_tapes, opened
from ..base.handles import AcceptsBase, Handles
from ..log.log import log_received
from ..log.messages import Received, Sent
from ..memory.argument_forms import duplicated, with_typemaps
from ..memory.buffers import NOTHING
from .message_recording import (
    nothing_to_learn,
    raised,
    receive_again,
    receive_ended,
    record_exchange,
    record_first_receive,
    record_first_send,
    record_matched_receive,
    record_receive,
    record_send,
    send_again,
)
from .object_messages import MatchedObjects
from .partitioned import Partitioned
from .requests import Request, persistent, recorded

# mpi4py's own: its names may be rebound.
_Comm = mpi.Comm
_Message = mpi.Message
_Wait = mpi.Request.Wait
_Send, _Isend, _Recv, _Irecv, _Recv_init = _Comm.Send, _Comm.Isend, _Comm.Recv, _Comm.Irecv, _Comm.Recv_init
_Sendrecv, _Sendrecv_replace = _Comm.Sendrecv, _Comm.Sendrecv_replace
_Isendrecv, _Isendrecv_replace = _Comm.Isendrecv, _Comm.Isendrecv_replace
_PROC_NULL = mpi.PROC_NULL

_LARGE = 1 << 16
"""Bytes from which on a blocking send takes long enough to be recorded while the message is under way."""


def _blocking_send(name: str, primal: Callable[[Any, Any, int, int], None]) -> Callable[[Any, Any, int, int], None]:
    """Make the method that sends a buffer in one of MPI's modes."""

    def method(self: Any, buf: Any, dest: int, tag: int = 0) -> None:
        if not open_tapes or dest == _PROC_NULL:
            return primal(self, buf, dest, tag)
        sent = send_again(name, self, buf, dest, tag) or record_first_send(name, self, buf, dest, tag)
        try:
            primal(self, buf, dest, tag)
        except BaseException as error:
            raised(error, sent)
            raise

    method.__name__ = name
    return method


def _nonblocking_send(
    name: str, primal: Callable[[Any, Any, int, int], mpi.Request]
) -> Callable[[Any, Any, int, int], mpi.Request]:
    """Make the nonblocking method that sends a buffer in one of MPI's modes."""

    def method(self: Any, buf: Any, dest: int, tag: int = 0) -> mpi.Request:
        if not open_tapes or dest == _PROC_NULL:
            return primal(self, buf, dest, tag)
        request = send_again(name, self, buf, dest, tag, primal)
        if request is not None:
            return request
        sent = record_first_send(name, self, buf, dest, tag)
        try:
            request = primal(self, buf, dest, tag)
        except BaseException as error:
            raised(error, sent)
            raise
        return request if sent is None or sent.buffer is None else recorded(opened(), request, sent)

    method.__name__ = name
    return method


def _persistent_send(
    name: str, primal: Callable[[Any, Any, int, int], mpi.Prequest]
) -> Callable[[Any, Any, int, int], mpi.Prequest]:
    """Make the method for persistent sends in one of MPI's modes."""

    def method(self: Any, buf: Any, dest: int, tag: int = 0) -> mpi.Prequest:
        request = primal(self, buf, dest, tag)
        if dest == _PROC_NULL:
            return request
        buf = with_typemaps(buf)
        return persistent(request, lambda: _some(record_send(name, self, buf, dest, tag) if open_tapes else None))

    method.__name__ = name
    return method


def _matching_probe(name: str, primal: Callable[..., mpi.Message | None]) -> Callable[..., mpi.Message | None]:
    """Make the method that probes for a matched message, with a buffer or an object."""

    def method(
        self: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> mpi.Message | None:
        if not open_tapes:
            return primal(self, source, tag, status)
        status = mpi.Status() if status is None else status
        message = primal(self, source, tag, status)
        return None if message is None else _matched(name, self, message, status)

    method.__name__ = name
    return method


class PointToPoint(Partitioned):
    """Methods of communicators that send and receive buffers."""

    __slots__ = ()

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Blocking send."""
        if not open_tapes or dest == _PROC_NULL:
            return _Send(self, buf, dest, tag)
        sent = send_again("Send", self, buf, dest, tag, _Isend, _LARGE)
        if sent is None:
            sent = record_first_send("Send", self, buf, dest, tag)
        elif type(sent) is Request:
            _Wait(sent)
            return None
        try:
            return _Send(self, buf, dest, tag)
        except BaseException as error:
            raised(error, sent)
            raise

    Ssend = _blocking_send("Ssend", _Comm.Ssend)
    Bsend = _blocking_send("Bsend", _Comm.Bsend)
    Rsend = _blocking_send("Rsend", _Comm.Rsend)

    Isend = _nonblocking_send("Isend", _Isend)
    Issend = _nonblocking_send("Issend", _Comm.Issend)
    Ibsend = _nonblocking_send("Ibsend", _Comm.Ibsend)
    Irsend = _nonblocking_send("Irsend", _Comm.Irsend)

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
        receive = receive_again("Recv", self, buf, source, tag) or record_first_receive("Recv", self, buf, source, tag)
        if receive is None:
            return _Recv(self, buf, source, tag, status)
        status = _status_for(receive, status)
        try:
            _Recv(self, buf, source, tag, status)
        except BaseException as error:
            raised(error, None, receive, status)
            raise
        if not nothing_to_learn(receive):
            receive_ended(receive, status)

    def Irecv(self, buf: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Request:
        """Nonblocking receive."""
        if not living or source == _PROC_NULL:
            return _Irecv(self, buf, source, tag)
        request = receive_again("Irecv", self, buf, source, tag, _Irecv)
        if request is not None:
            return request
        receive = record_first_receive("Irecv", self, buf, source, tag)
        try:
            request = _Irecv(self, buf, source, tag)
        except BaseException as error:
            raised(error, None, receive)
            raise
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
        # The record of the send comes first: the receive overwrites what the send has read.
        sent = receive = None
        if open_tapes and dest != _PROC_NULL:
            sent = send_again("Sendrecv", self, sendbuf, dest, sendtag)
            if sent is None:
                sent = record_first_send("Sendrecv", self, sendbuf, dest, sendtag)
        if source != _PROC_NULL:
            receive = receive_again("Sendrecv", self, recvbuf, source, recvtag)
            if receive is None:
                receive = record_first_receive("Sendrecv", self, recvbuf, source, recvtag)
        status = _status_for(receive, status)
        try:
            _Sendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, status)
        except BaseException as error:
            raised(error, sent, receive, status)
            raise
        if receive is not None and not nothing_to_learn(receive):
            receive_ended(receive, status)

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
        sent, receive = record_exchange("Sendrecv_replace", self, buf, dest, sendtag, buf, source, recvtag)
        status = _status_for(receive, status)
        try:
            _Sendrecv_replace(self, buf, dest, sendtag, source, recvtag, status)
        except BaseException as error:
            raised(error, sent, receive, status)
            raise
        if receive is not None:
            receive_ended(receive, status)

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
        parts = record_exchange("Isendrecv", self, sendbuf, dest, sendtag, recvbuf, source, recvtag)
        try:
            if _is_wild(parts):
                return _two_requests(self, sendbuf, dest, sendtag, recvbuf, source, recvtag, parts)
            return _recorded(_Isendrecv(self, sendbuf, dest, sendtag, recvbuf, source, recvtag), parts)
        except BaseException as error:
            raised(error, *parts)
            raise

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
        parts = record_exchange("Isendrecv_replace", self, buf, dest, sendtag, buf, source, recvtag)
        try:
            if _is_wild(parts):
                return _two_requests(self, _copied(buf), dest, sendtag, buf, source, recvtag, parts)
            return _recorded(_Isendrecv_replace(self, buf, dest, sendtag, source, recvtag), parts)
        except BaseException as error:
            raised(error, *parts)
            raise

    # ------------------------------------------------------------------------------------------- persistent requests

    Send_init = _persistent_send("Send_init", _Comm.Send_init)
    Bsend_init = _persistent_send("Bsend_init", _Comm.Bsend_init)
    Rsend_init = _persistent_send("Rsend_init", _Comm.Rsend_init)
    Ssend_init = _persistent_send("Ssend_init", _Comm.Ssend_init)

    def Recv_init(self, buf: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Prequest:
        """Create a persistent request for a receive."""
        request = _Recv_init(self, buf, source, tag)
        if source == _PROC_NULL:
            return request
        kept = with_typemaps(buf)
        found = persistent(request, lambda: _some(record_receive("Recv_init", self, kept, source, tag)))
        if source == mpi.ANY_SOURCE:
            found.receive = WildReceive(self, buf, tag)
        return found

    # ----------------------------------------------------------------------------------------------- matched probes

    Mprobe = _matching_probe("Mprobe", _Comm.Mprobe)
    Improbe = _matching_probe("Improbe", _Comm.Improbe)
    mprobe = _matching_probe("mprobe", _Comm.mprobe)
    improbe = _matching_probe("improbe", _Comm.improbe)


def _probe_of(name: str) -> Any:
    """Make a method of the class of matched messages that calls the communicator's."""

    def method(
        cls: Any, comm: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> Any:
        return getattr(comm, name)(source, tag, status)

    return classmethod(method)


class Message(MatchedObjects, Handles, _Message, metaclass=AcceptsBase):
    """Matched message.

    Examples
    --------
    >>> comm = ampi.COMM_SELF
    >>> def moved(x):
    ...     y, request = np.zeros(2), comm.Isend(x, 0)
    ...     message = comm.Mprobe(source=0)
    ...     message.Recv(y)
    ...     request.Wait()
    ...     return np.sum(y * y)
    >>> ampi.grad(moved)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """

    __slots__ = ("logged",)  # in the log of the tape that recorded the probe
    _base = _Message

    Probe = _probe_of("Mprobe")
    Iprobe = _probe_of("Improbe")
    probe = _probe_of("mprobe")
    iprobe = _probe_of("improbe")

    def Recv(self, buf: Any, status: mpi.Status | None = None) -> None:
        """Blocking receive of the matched message."""
        receive = record_matched_receive("Mrecv", self, buf) if living else None
        status = _status_for(receive, status)
        try:
            _Message.Recv(self, buf, status)
        except BaseException as error:
            raised(error, None, receive, status)
            raise
        if receive is not None:
            receive_ended(receive, status)

    def Irecv(self, buf: Any) -> mpi.Request:
        """Nonblocking receive of the matched message."""
        receive = record_matched_receive("Imrecv", self, buf) if living else None
        try:
            request = _Message.Irecv(self, buf)
        except BaseException as error:
            raised(error, None, receive)
            raise
        return request if receive is None else recorded(opened(), request, receive)


class WildReceive:
    """A persistent receive from any source, which can be restricted to one source temporarily."""

    def __init__(self, comm: Any, buf: Any, tag: int) -> None:
        buf, self._datatypes = duplicated(buf)
        self._arguments = comm, buf, tag
        self._source = mpi.ANY_SOURCE

    def __del__(self) -> None:
        for datatype in self._datatypes if not mpi.Is_finalized() else ():
            datatype.Free()

    def narrow(self, request: mpi.Prequest, source: int) -> None:
        """Make an inactive request a receive from this source (or any), from the next start on."""
        if source == self._source:
            return
        comm, buf, tag = self._arguments
        other = _Recv_init(comm, buf, source, tag)
        size = mpi._sizeof(mpi.Prequest)
        places = [(ctypes.c_char * size).from_address(mpi._addressof(r)) for r in (request, other)]
        handles = [place.raw for place in places]
        places[0].raw, places[1].raw = reversed(handles)
        other.Free()
        self._source = source


def _some(part: Sent | Received | None) -> tuple[Sent | Received, ...]:
    return () if part is None else (part,)


def _matched(name: str, comm: Any, message: mpi.Message, status: mpi.Status) -> mpi.Message:
    """Log a message that was matched while a tape records."""
    tape = opened()
    if tape is None or message == mpi.MESSAGE_NO_PROC:
        return message
    ours = Message.__new__(Message, message)
    ours.logged = log_received(tape, name, comm, NOTHING, False, status.Get_source(), status.Get_tag())
    return ours


def _is_wild(parts: tuple[Sent | None, Received | None]) -> bool:
    return parts[1] is not None and parts[1].wild


def _two_requests(
    comm: Any, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int, parts: tuple
) -> mpi.Request:
    """Start a nonblocking exchange with wildcards as a separate send and receive.

    The status of Isendrecv in MPICH 5.0 does not contain what was matched.
    """
    sent, _ = parts
    pair = _Isend(comm, sendbuf, dest, sendtag)
    request = _Irecv(comm, recvbuf, source, recvtag)
    if sent is not None:
        sent.request = pair
        sent.wild = True
    return _recorded(request, parts)


def _copied(spec: Any) -> Any:
    """Return a message argument with a copy of its memory."""
    if isinstance(spec, (list, tuple)):
        return [_copied(spec[0]), *spec[1:]]
    return plain(np.asarray(spec if isinstance(spec, np.ndarray) else memoryview(spec))).copy(order="K")


def _status_for(receive: Received | None, status: mpi.Status | None) -> mpi.Status | None:
    """Return a status for a receive with a wildcard if the program passes none."""
    return mpi.Status() if status is None and receive is not None and receive.wild else status


def _recorded(request: mpi.Request, parts: tuple[Sent | None, Received | None]) -> mpi.Request:
    logged = [part for part in parts if part is not None]
    return recorded(opened(), request, *logged) if logged else request
