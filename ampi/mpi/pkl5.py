"""`mpi4py.util.pkl5`: communicators whose lowercase methods pickle with protocol 5 and send large buffers separately.

They are made from a communicator, ``pkl5.Intracomm(comm)``, and written in Python on top of mpi4py's own methods, so
they would call no override of ours.  One that is made from a communicator of ours is therefore an instance of a
subclass here: its uppercase methods are ours, and so are the lowercase ones, with those of pkl5 as transport.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI as mpi
from mpi4py.util import pkl5

from ..tape.recording import opened
from .comm import Communicator, Intracommunicator
from .log.log import log_received
from .log.messages import Received
from .log.reverse import reverse_of
from .memory.buffers import NOTHING
from .messages.object_messages import matched, received, record_matched

_Comm = mpi.Comm  # mpi4py's own: the name in its module may be rebound


class Pkl5Objects:
    """Lowercase methods with pkl5 as transport."""

    _primal: Any = pkl5.Comm
    irecv = pkl5.Comm.irecv  # unsupported there

    def mprobe(
        self: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> pkl5.Message:
        """Blocking test for a matched message."""
        status = mpi.Status() if status is None else status
        return _logged("mprobe", self, pkl5.Comm.mprobe(self, source, tag, status), status)

    def improbe(
        self: Any, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG, status: mpi.Status | None = None
    ) -> pkl5.Message | None:
        """Nonblocking test for a matched message."""
        status = mpi.Status() if status is None else status
        return _logged("improbe", self, pkl5.Comm.improbe(self, source, tag, status), status)


class Pkl5Intracomm(Pkl5Objects, Intracommunicator, pkl5.Intracomm):
    """Intracommunicator."""

    _base = pkl5.Intracomm


class Pkl5Intercomm(Pkl5Objects, Communicator, pkl5.Intercomm):
    """Intercommunicator."""

    _base = pkl5.Intercomm


class Message(pkl5.Message):
    """A message that was matched while a tape records."""

    logged: Received | None = None

    def recv(self, status: mpi.Status | None = None) -> Any:
        """Blocking receive of matched message."""
        receive = matched(self, "mrecv")
        message = super().recv(status)
        if receive is None:
            return message
        return record_matched(receive, message)

    def irecv(self) -> pkl5.Request:
        """Nonblocking receive of matched message."""
        receive = matched(self, "imrecv")
        request = super().irecv()
        if receive is not None:
            if not receive.dropped:
                opened().append(receive)
            receive.request = request
            request._received = receive, opened()
        return request


def _logged(name: str, comm: Any, message: Any, status: mpi.Status) -> Any:
    """Return a matched message, entered in the log if a tape records."""
    tape = opened()
    if message is None or tape is None or message[0] == mpi.MESSAGE_NO_PROC:
        return message
    ours = Message(message)
    ours.logged = log_received(tape, name, comm, NOTHING, False, status.Get_source(), status.Get_tag())
    return ours


def _loaded(request: Any) -> Any:
    """Return the object that a completed request has received."""
    message = _load(request)
    receive, tape = request.__dict__.pop("_received", (None, None))
    if receive is not None:
        message = received(tape, receive, message)
        receive.resolve(None)
    return message


_load = pkl5._req_load
_OURS = {pkl5.Intracomm: Pkl5Intracomm, pkl5.Intercomm: Pkl5Intercomm}


def _new(cls: type, comm: Any = None) -> Any:
    """Create and return a new communicator."""
    known = comm is not None and reverse_of(comm) is not None
    return _Comm.__new__(_OURS.get(cls, cls) if known else cls, comm)


def install(original: Any) -> None:
    """Make pkl5 create ampi's communicators; its own messages use mpi4py's original methods, and are not recorded."""
    pkl5.Comm.__new__ = staticmethod(_new)  # type: ignore[assignment]
    pkl5._req_load = _loaded
    pkl5.MPI = original
