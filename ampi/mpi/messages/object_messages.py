"""Lowercase point-to-point methods: messages of Python objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ...tape import Tape
from ...tape.recording import open_tapes, opened, recording
from ..log.log import log_received, log_sent
from ..log.messages import Lost, Received
from ..memory.bundles import EMPTY, Bundle, arrived, pack, refuse_others_in, unpack
from ..memory.plain_buffers import warn_of_plain_objects
from .forward import Flight
from .requests import recorded

_Comm, _Message = mpi.Comm, mpi.Message  # mpi4py's own: its names may be rebound
_PROC_NULL = mpi.PROC_NULL


def send_object(name: str, primal: Callable[..., Any], comm: Any, obj: Any, dest: int, tag: int) -> Any:
    """Send an object, blocking or not, while a tape is open."""
    tape = opened()
    if tape is None:
        refuse_others_in(obj)
        return primal(comm, obj, dest, tag)
    payload, bundle = (obj, EMPTY) if recording() is None else pack(tape, obj)
    if bundle is EMPTY:
        return primal(comm, obj, dest, tag)
    sent = log_sent(tape, name, comm, bundle, True, dest, tag)
    tape.append(sent)
    try:
        request = primal(comm, payload, dest, tag)
    except BaseException:  # nothing has been sent
        sent.void = True
        raise
    return recorded(tape, request, sent) if isinstance(request, mpi.Request) else request


def _sending(name: str) -> Callable[..., Any]:
    """Make the method that sends an object in one of MPI's modes, blocking or not.

    The message of an object with active arrays is a few hundred bytes longer than the pickled object: buffered modes
    need a larger buffer.
    """

    def method(self: Any, obj: Any, dest: int, tag: int = 0) -> Any:
        primal = getattr(self._primal, name)
        if not open_tapes or dest == _PROC_NULL:
            return primal(self, obj, dest, tag)
        warn_of_plain_objects(obj)
        return send_object(name, primal, self, obj, dest, tag)

    method.__name__ = name
    return method


def posted(name: str, comm: Any, source: int, tag: int) -> Received:
    """Log the receive of an object."""
    passive = recording() is None
    receive = log_received(opened(), name, comm, Bundle(), not passive, source, tag)
    receive.dropped = passive
    return receive


def received(tape: Tape, receive: Received, message: Any) -> Any:
    """Activate the arrays of an object that has arrived, and return it."""
    if id(message) not in arrived:
        receive.void = True  # the sender sent no active arrays
    elif receive.dropped:
        del arrived[id(message)]
    else:
        _, arrays = unpack(tape, message)
        receive.buffer.fill(arrays)
    return message


def not_received(receive: Received, status: mpi.Status | None, error: BaseException) -> None:
    """Drop a receive of an object that has raised an error, which the program may catch.

    The message is lost if it was too long for its buffer, or if unpickling the object raised the error.
    """
    if isinstance(error, mpi.Exception) and error.Get_error_class() != mpi.ERR_TRUNCATE:
        receive.void = True
    else:
        receive.__class__ = Lost
        receive.buffer, receive.dropped = None, True
    receive.resolve(status)


def _status_for(receive: Received, status: mpi.Status | None) -> mpi.Status | None:
    return mpi.Status() if status is None and receive.wild else status


class ObjectMessages:
    """Methods of all communicators that send and receive Python objects."""

    __slots__ = ()

    _primal: Any = _Comm
    """The class whose methods move the pickled objects."""

    send = _sending("send")
    bsend = _sending("bsend")
    ssend = _sending("ssend")
    isend = _sending("isend")
    ibsend = _sending("ibsend")
    issend = _sending("issend")

    def recv(
        self,
        buf: Any = None,
        source: int = mpi.ANY_SOURCE,
        tag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> Any:
        """Receive an object."""
        tape = opened() if open_tapes else None
        if tape is None or source == _PROC_NULL:
            return self._primal.recv(self, buf, source, tag, status)
        receive = posted("recv", self, source, tag)
        status = _status_for(receive, status)
        try:
            message = received(tape, receive, self._primal.recv(self, buf, source, tag, status))
        except BaseException as error:
            not_received(receive, status, error)
            raise
        receive.resolve(status)
        if receive.active and receive.buffer.count:
            tape.append(receive)
        return message

    def irecv(self, buf: Any = None, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Request:
        """Nonblocking receive of an object."""
        tape = opened() if open_tapes else None
        if tape is None or source == _PROC_NULL:
            return self._primal.irecv(self, buf, source, tag)
        receive = posted("irecv", self, source, tag)
        if not receive.dropped:
            tape.append(receive)
        try:
            request = self._primal.irecv(self, buf, source, tag)
        except BaseException:  # nothing has been posted
            receive.void = True
            raise
        return recorded(tape, request, receive, unpack=lambda message: received(tape, receive, message))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = mpi.ANY_SOURCE,
        recvtag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> Any:
        """Send and receive an object."""
        if not open_tapes:
            return self._primal.sendrecv(self, sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        going = self.isend(sendobj, dest, sendtag)
        message = self.recv(recvbuf, source, recvtag, status)
        going.wait()
        return message


def record_matched(receive: Received, message: Any) -> Any:
    """Record a blocking receive of a matched message; return the object."""
    tape = opened()
    message = received(tape, receive, message)
    if receive.wild:
        receive.resolve(None)
    if receive.active and receive.buffer.count:
        tape.append(receive)
    return message


class MatchedObjects:
    """Methods of matched messages that receive Python objects.  ``logged`` is the probe's entry in the log."""

    __slots__ = ()

    def recv(self, status: mpi.Status | None = None) -> Any:
        """Blocking receive of the matched message."""
        receive = matched(self, "mrecv")
        message = _Message.recv(self, status)
        if receive is None:
            return message
        return record_matched(receive, message)

    def irecv(self) -> mpi.Request:
        """Nonblocking receive of the matched message."""
        receive = matched(self, "imrecv")
        request = _Message.irecv(self)
        if receive is None:
            return request
        tape = opened()
        if not receive.dropped:
            tape.append(receive)
        return recorded(tape, request, receive, unpack=lambda message: received(tape, receive, message))


def matched(message: Any, name: str) -> Received | None:
    """Return the probe's entry in the log, as that of a receive of an object."""
    receive = getattr(message, "logged", None)
    if opened() is None or receive is None:
        return None
    message.logged = None
    receive.rename(name)
    if isinstance(receive.flight, Flight):
        receive.flight.forget(receive)
    receive.dropped = recording() is None
    receive.buffer = None if receive.dropped else Bundle()
    return receive
