"""Recording of point-to-point messages: entries of sends and receives of buffers in the log and on the tape."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from sys import _getframe
from typing import Any

from mpi4py import MPI as mpi

from ...tape import Tape, Undo, overwrite
from ...tape.recording import open_tapes, opened, recording, scope_now
from ..base.call_sites import call_site
from ..log.log import MOST_PENDING, log_for, log_received, log_sent
from ..log.messages import CUT, Received, Route, Sent
from ..memory.arguments import parse_bytes
from ..memory.buffers import Buffer, keep_message, refuse_others
from ..memory.plain_buffers import warn_if_plain
from .requests import Request

_ANY_SOURCE = mpi.ANY_SOURCE
_PROC_NULL = mpi.PROC_NULL


def send_again(
    name: str,
    comm: Any,
    buf: Any,
    dest: int,
    tag: int,
    start: Callable[[Any, Any, int, int], mpi.Request] | None = None,
    least: int = 0,
) -> Any:
    """Log and record a send of an active array that was sent or received before.

    Parameters
    ----------
    start : callable, optional
        Starts the send if the message has at least ``least`` bytes, and returns its request; the message is recorded
        while it is under way.

    Returns
    -------
    Sent, Request or None
        The request, if the message has been started.  None for other arrays, of which nothing has been recorded.
    """
    scope = scope_now()
    tape = scope.tape
    buffer = getattr(buf, "_message", None)
    if buffer is None or tape is None or scope.thread != get_ident():
        return None
    storage = buffer.storage
    if storage.tape is not tape.reference or storage.arriving:
        return None
    latest, log, _ = tape.latest
    if latest is not comm:
        log = log_for(tape, name, comm, True)
    request = None
    if start is not None and buffer.nbytes >= least and tape.observer is None:
        request = start(comm, buf, dest, tag)  # if it raises an error, nothing has been recorded
    route = buffer.sent
    frame = _getframe(2)
    key = dest, tag, frame.f_lasti, log.place, name
    if route is None or route.key != key or route.code is not frame.f_code:
        route = buffer.sent = _route(frame.f_back, route, name, log.place, dest, tag, False)
    sent = Sent()
    sent.route = route
    sent.buffer = buffer
    sent.nbytes = buffer.nbytes
    sent.request = None
    sent.wild = False
    sent.void = False
    log.add_message(sent)
    tape.append_record(sent)
    if request is None:
        return sent
    ours = Request(request)  # type: ignore[call-arg]
    ours.parts = (sent,)
    ours.recorded_by = tape.reference
    return ours


def receive_again(
    name: str,
    comm: Any,
    buf: Any,
    source: int,
    tag: int,
    start: Callable[[Any, Any, int, int], mpi.Request] | None = None,
) -> Any:
    """Log and record a receive into an array that was sent or received before, and save what it overwrites."""
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
    key = source, tag, frame.f_lasti, log.place, name
    if route is None or route.key != key or route.code is not frame.f_code:
        route = buffer.received = _route(frame.f_back, route, name, log.place, source, tag, source == _ANY_SOURCE)
    receive = Received()
    receive.route = route
    receive.buffer = buffer
    receive.request = None
    receive.wild = route.wild
    receive.void = False
    receive.dropped = False
    storage = buffer.storage
    if start is None and storage.arriving:
        communication.look()  # earlier receives into the same memory are overwritten
    if storage.needs or storage.guard or storage.tape is not tape.reference or tape.accesses is not None:
        is_seen = storage.tape is None and tape.accesses is None
        receive.undo = () if is_seen and not (storage.needs or storage.guard) else overwrite(buf)
        tape.set_active(storage)
    else:
        receive.undo = ()
    log.add_message(receive)
    tape.append_record(receive)
    if start is None:
        return receive
    try:
        request = start(comm, buf, source, tag)
    except BaseException as error:
        raised(error, None, receive)
        raise
    ours = receive.request = Request(request)  # type: ignore[call-arg]
    ours.parts = (receive,)
    ours.recorded_by = tape.reference
    storage.arriving += 1
    pending = communication.pending
    if len(pending) < MOST_PENDING:
        pending.append(receive)
    else:
        communication.enter(receive)
    if tape.before_append is None:
        tape.before_append = communication.look
    return ours


def _route(frame: Any, route: Route | None, name: str, place: object, partner: int, tag: int, wild: bool) -> Route:
    """Return the route of a call that seems to differ from the latest one: it may have been made by way of a tracer."""
    same = (
        route is not None
        and route.partner == partner
        and route.tag == tag
        and route.place is place
        and route.name == name
    )
    if same and frame is not None and route.instruction == frame.f_lasti and route.code is frame.f_code:  # type: ignore[union-attr]
        return route  # type: ignore[return-value]
    where = call_site(4)
    if same and (route.code, route.instruction) == where:  # type: ignore[union-attr]
        return route  # type: ignore[return-value]
    return Route(name, place, partner, tag, wild, where)


def record_send(name: str, comm: Any, buf: Any, dest: int, tag: int) -> Sent | None:
    """Log and record any send."""
    return send_again(name, comm, buf, dest, tag) or record_first_send(name, comm, buf, dest, tag)


def record_receive(name: str, comm: Any, buf: Any, source: int, tag: int) -> Received | None:
    """Log and record any receive, before it."""
    return receive_again(name, comm, buf, source, tag) or record_first_receive(name, comm, buf, source, tag)


def record_first_send(name: str, comm: Any, buf: Any, dest: int, tag: int) -> Sent | None:
    """Log and record a send whose buffer has to be parsed, if this thread has a tape."""
    tape = opened()
    buffer = parse_bytes(buf)
    if tape is None:
        refuse_others(buffer)
        return None
    active = buffer.active(tape) and recording() is not None
    if active:
        detached = buffer.detach()
        keep_message(buf, detached)
    if not active or type(buffer) is not Buffer:
        warn_if_plain(name, buffer, "sends", "to rank", dest)
    sent = log_sent(tape, name, comm, buffer, active, dest, tag)
    if active:
        tape.append_record(sent)
    return sent


def record_first_receive(name: str, comm: Any, buf: Any, source: int, tag: int) -> Received | None:
    """Save what a receive overwrites whose buffer has to be parsed, and log it if a tape is open."""
    buffer = parse_bytes(buf)
    tape = opened()
    if tape is None:
        refuse_others(buffer)
    undo = overwrite(*buffer.overwritten())
    if tape is None:
        return None
    receive = log_received(tape, name, comm, buffer, buffer.tracked and recording() is not None, source, tag)
    _overwrite_and_record(tape, receive, buffer, undo)
    if receive.active:
        keep_message(buf, buffer)
    return receive


def _overwrite_and_record(tape: Tape, receive: Received, buffer: Buffer, undo: list[Undo]) -> None:
    """Record that a receive overwrites memory with values that may be active."""
    receive.dropped = recording() is None
    receive.buffer = buffer if buffer.tracked and not receive.dropped else None
    if receive.active:
        buffer.activate(tape)
        receive.undo = undo
        tape.append_record(receive)
    elif undo:
        tape.append_start(None, undo)
    buffer.detach()


def record_matched_receive(name: str, message: Any, buf: Any) -> Received | None:
    """Record a receive of a matched message, before it."""
    if message == mpi.MESSAGE_NO_PROC:
        return None
    buffer = parse_bytes(buf)
    tape = opened()
    if tape is None:
        refuse_others(buffer)
    undo = overwrite(*buffer.overwritten())
    receive = getattr(message, "logged", None)
    if tape is None or receive is None:
        return None
    message.logged = None
    receive.rename(name)
    _overwrite_and_record(tape, receive, buffer, undo)
    return receive


def record_exchange(
    name: str, comm: Any, sendbuf: Any, dest: int, sendtag: int, recvbuf: Any, source: int, recvtag: int
) -> tuple[Sent | None, Received | None]:
    """Log a send and a receive of one call.  The send's record comes first: the receive overwrites what it has read."""
    sent = record_send(name, comm, sendbuf, dest, sendtag) if open_tapes and dest != _PROC_NULL else None
    receive = record_receive(name, comm, recvbuf, source, recvtag) if source != _PROC_NULL else None
    return sent, receive


def nothing_to_learn(receive: Received) -> bool:
    """Return True if nothing remains to be done after a recorded blocking receive."""
    return not receive.wild and opened().observer is None


def receive_ended(receive: Received, status: mpi.Status | None) -> None:
    """Note that a blocking receive has ended."""
    if receive.wild:
        receive.resolve(status)
    observer = opened().observer
    if observer is not None:
        observer.has_received(receive)


def raised(
    error: BaseException, sent: Sent | None, receive: Received | None = None, status: mpi.Status | None = None
) -> None:
    """Keep the records of the transfers in a call that raised an error, which the program may catch.

    If a message was too long, MPI has filled the buffer with its beginning.  All other errors are raised before
    anything is sent or posted.
    """
    if isinstance(error, mpi.Exception) and error.Get_error_class() == mpi.ERR_TRUNCATE:
        if receive is not None:
            receive.nbytes = CUT
            receive_ended(receive, status)
        return
    for part in (sent, receive):
        if part is not None:
            part.void = True
            part.resolve(None)
