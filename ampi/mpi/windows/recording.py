"""Recording of one-sided operations: the memory that each reads and writes, and when it is executed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...tape import BaseAdjoint, Sweep, Tape, living
from ...tape.recording import opened, recording
from ..log.log import communication_of
from ..memory.arguments import parse
from ..memory.buffers import FLOATING, Buffer, arrive, refuse_others
from ..memory.plain_buffers import warn_if_plain
from ..memory.tangents import set_tangent
from ..messages.requests import recorded
from .access import LOCATED, NONLINEAR, Access, Begun, type_of
from .epochs import complete
from .forward_windows import check_lost
from .target import target_of
from .trace import Trace, require_innermost, trace_of
from .window import Window, require_own, tape_of, window_of


def record(
    win: Any, name: str, rank: int, spec: Any, reads: Any = None, writes: Any = None, op: mpi.Op | None = None
) -> tuple[Trace, Access] | None:
    """Record an operation, before it starts, while some tape exists.

    Parameters
    ----------
    spec
        mpi4py's target argument.
    reads, writes
        Buffer arguments that are read, and received into, on this rank; None if there is none.
    op : MPI.Op
        The operation on the target's memory; None if it is only read.

    Returns
    -------
    (Trace, Access) or None
        None if the operation has no adjoint.
    """
    tape, window = opened(), window_of(win)
    if rank == mpi.PROC_NULL or (window is not None and not 0 <= rank < window.order.size):
        return None  # nothing is moved, or MPI refuses it
    source = None if reads is None else parse(reads)
    sink = None if writes is None else parse(writes)
    if tape is not None and window is None:
        _refuse_unknown(name, tape, source, sink)
    if tape is None:
        if window is not None:
            require_own(window)
        refuse_others(*(buffer for buffer in (source, sink) if buffer is not None))
    undo = [] if sink is None else sink.overwrite()
    if tape is None:
        return None
    trace = None if window is None or tape_of(window) is None else trace_of(tape, window)
    access = None
    if trace is not None:
        access = _access(trace, tape, name, rank, spec, (reads, writes), source, sink, op)
    is_forward = trace is not None and tape.forward is not None
    if is_forward and sink is not None and recording() is not None:
        check_lost(trace, access, name, rank, spec, reads if writes is None else writes, sink)  # type: ignore[arg-type]
    if access is None:
        _cut(tape, window, sink, undo, is_forward)
        return None
    assert trace is not None and window is not None
    if trace.pushes:
        trace.note(access, source)
    waits = _waits(trace, access, rank, source, sink)
    if trace.pushes and not waits:
        window.to_push = partial(trace.push, access)
    if is_forward:
        if undo:
            tape.append(None, undo)
        return trace, access
    if not waits:
        trace.accesses.append(access)
    tape.append(Begun(access) if waits else access, undo)
    for buffer in (access.origin, access.result):
        if buffer is not None and not access.holds(buffer):
            buffer.detach()
    return trace, access


def _cut(tape: Tape, window: Window | None, sink: Buffer | None, undo: Any, is_forward: bool) -> None:
    """Record that the received values carry no derivatives."""
    cut = sink is not None and sink.tracked and window is not None
    if cut and is_forward:
        window.to_push = partial(set_tangent, tape.forward, sink, None)  # type: ignore[union-attr]
    elif cut:
        return tape.append(Cut(sink.detach()), undo)  # type: ignore[union-attr]
    if undo:
        tape.append(None, undo)


def with_rollback(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that records an operation and starts it.

    If MPI refuses it with an error, which the program may catch, the records are removed; otherwise its tangents are
    sent as well.
    """

    @functools.wraps(method)
    def execute(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not living:
            return method(self, *arguments, **keywords)
        tape, window = opened(), window_of(self)
        if tape is None or window is None:
            return method(self, *arguments, **keywords)
        before = len(tape.records), len(window.incomplete), len(window.postponed)
        trace = _trace_so_far(tape, window)
        refused = "" if trace is None else trace.refused
        try:
            result = method(self, *arguments, **keywords)
        except BaseException:
            _roll_back(tape, window, *before)
            if trace is not None:
                trace.refused = refused
            raise
        push, window.to_push = window.to_push, None
        if push is not None:
            push()
        return result

    return execute


def _trace_so_far(tape: Tape, window: Window) -> Any:
    traces = None if tape.forward is not None and tape.tangents is None else tape.sweep_starts.get("windows")
    return None if traces is None else traces.of.get(window)  # type: ignore[attr-defined]


def _roll_back(tape: Tape, window: Window, records: int, incomplete: int, postponed: int) -> None:
    """Remove the records of an operation that was refused, which follow these numbers of records and operations."""
    window.to_push = None
    del window.incomplete[incomplete:], window.postponed[postponed:]
    dropped = [record for record in tape.records[records:] if isinstance(record.adjoint, (Access, Begun, Cut))]
    trace = trace_of(tape, window) if dropped else None
    for record in dropped:  # its undo entries restore what was not overwritten, which does no harm
        if record.adjoint in trace.accesses:  # type: ignore[union-attr]
            trace.accesses.remove(record.adjoint)  # type: ignore[union-attr]
        record.adjoint = None


class Cut(BaseAdjoint):
    """Adjoint of receiving values without derivatives into tracked memory: it is overwritten."""

    __slots__ = ("sink",)
    second_order = "linear"

    def __init__(self, sink: Buffer) -> None:
        self.sink = sink

    def __call__(self, sweep: Sweep) -> None:
        """Set to zero the adjoint of the overwritten memory, or the tangent of the received values."""
        self.sink.zero(sweep)

    tangent = __call__


def _waits(trace: Any, access: Access, rank: int, source: Buffer | None, sink: Buffer | None) -> bool:
    """Return whether an access takes effect later, at the end of its lock or epoch; if so, note it there."""
    window = trace.window
    if window.is_locked(rank):
        if access.nonlinear:
            access.keep(source, sink)  # type: ignore[arg-type]
        trace.begin(access)
        return True
    if _is_postponed(trace, access, sink is not None):
        access.postpone(source, sink)
        window.postponed.append((trace, access))
        return True
    return False


def _access(
    trace: Trace,
    tape: Tape,
    name: str,
    rank: int,
    spec: Any,
    given: tuple[Any, Any],
    source: Buffer | None,
    sink: Buffer | None,
    op: mpi.Op | None,
) -> Access | None:
    """Return the access that the sweep reverses, or None if there is none; note its activity for the agreement."""
    window, token = trace.window, trace.token
    dtype = (source if sink is None else sink).dtype  # type: ignore[union-attr]
    updates = op is not None and op != mpi.NO_OP
    records = recording() is not None
    if records:
        require_innermost(tape, window)
    active = updates and records and source.active(tape)  # type: ignore[union-attr]
    if updates and records and (not active or type(source) is not Buffer):
        warn_if_plain(name, source, "moves", "to the window of rank", rank)
    if not window.tracked[rank]:
        if active:
            raise ActivityError(
                f"{name}: an active array goes into window memory of rank {rank} that is not tracked, where its "
                "derivative would be lost; make the memory with ampi.numpy or Win.Allocate, or send ampi.value(...)"
            )
        return None
    if dtype is None and not (source if sink is None else sink).nbytes:  # type: ignore[union-attr]
        return None  # nothing is moved
    if dtype is None:
        raise ActivityError(
            f"{name}: a datatype with several floating-point dtypes, or bytes that are not whole elements, on a window "
            "that may carry derivatives; use an operation for each dtype"
        )
    if dtype not in FLOATING:
        if dtype.itemsize > 1:
            return None
        if sink is not None and records:
            token.loses = True  # bytes of what may be floating-point numbers
        if op != mpi.REPLACE:
            return None
    elif sink is not None and records:
        token.reads_active = True
        if sink.tracked:
            token.writes_tracked = True
        if sink.loses and sink.nbytes:
            token.loses = True
    result = sink if sink is not None and sink.tracked and records else None
    nonlinear = op in NONLINEAR and not source.raw and source.mixed == (op in LOCATED)  # type: ignore[union-attr]
    if updates and not nonlinear and op not in (mpi.SUM, mpi.REPLACE):
        text = f"{name} has no derivative rule for this operation and datatype"
        if active:
            raise ActivityError(
                f"{text}; send ampi.value(...), or use SUM, PROD, MIN, MAX, REPLACE, NO_OP, or MINLOC, MAXLOC of pairs"
            )
        trace.refuse(text)
        token.reads_active = True
    if not (active or nonlinear or op == mpi.REPLACE or result is not None or (op and window.puts_off(rank))):
        return None
    token.reads_active = token.reads_active or dtype in FLOATING
    target = target_of(rank, window.units[rank], spec, given[0] if given[1] is None else given[1], dtype)
    access = Access(name, window, target, op, source if active else None, result)
    communication_of(tape).log(window.reverse).touched = True
    if result is not None:
        result.activate(tape)
    return access


def _is_postponed(trace: Trace, access: Access, fetches: bool) -> bool:
    """Return whether an operation in an epoch of Fence or Start is postponed to its end.

    In an epoch of Start every atomic operation is.  In one of Fence, sums that do not fetch are executed at once, since
    they commute, and the postponed operations come after them.
    """
    if trace.access_epoch is None and not trace.epoch:
        trace.refuse(
            f"{access.name} belongs to an epoch that was opened before the tape recorded; open it (Fence, Start) inside"
        )
        return False
    if access.op is None or access.name in ("Put", "Rput"):
        return False
    window = trace.window
    matters = fetches or access.op != mpi.SUM or bool(window.started) or window.puts_off(access.target.rank)
    if matters and access.name.startswith("R"):
        trace.refuse(f"{access.name} outside of lock epochs")
        return False
    return matters


class Requested:
    """The operation that a request of Rget or Rget_accumulate completes, which `requests` treats as a receive."""

    __slots__ = ("access", "active", "buffer", "request", "wild", "win")

    def __init__(self, win: Any, access: Access) -> None:
        self.win = win
        self.access = access
        self.buffer = access.result
        self.active = True
        self.wild = False
        self.request: Any = None

    def resolve(self, status: mpi.Status | None) -> None:
        """Note that the request has completed, and with it all earlier operations of this rank there."""
        if self.active:
            complete(self.access.window, self.access.target.rank)

    def describe(self) -> str:
        """Describe it for error messages."""
        return self.access.describe()

    def completed(self) -> bool:
        """Return whether the request has been completed, perhaps by a method that ampi does not see."""
        return not self.request

    def begin(self, sweep: Sweep) -> None:
        """Do nothing: `Completed` mirrors the wait."""

    arrive = begin

    def end(self) -> None:
        """Note that the access is complete."""
        self.active = False
        if self.request is not None:
            self.request = None
            arrive(self.buffer, -1)


def _refuse_unknown(name: str, tape: Tape, source: Buffer | None, sink: Buffer | None) -> None:
    if recording() is None:
        return
    if (source is not None and source.active(tape)) or (sink is not None and sink.tracked):
        raise ActivityError(
            f"{name} of an array that may carry derivatives, through a window that ampi did not see being made, "
            "has no derivative rule; make it by ampi.Win, or pass ampi.value(array)"
        )


def was_postponed(access: tuple[Trace, Access] | None) -> bool:
    """Return whether an operation was postponed."""
    if access is None:
        return False
    postponed = access[1].window.postponed
    return bool(postponed) and postponed[-1][1] is access[1]


def wants_old(access: tuple[Trace, Access] | None) -> bool:
    """Return whether the target's old value has to be fetched."""
    return access is not None and access[1].old is not None


def old_argument(access: Any) -> Any:
    """Return the result argument for fetching the target's old value."""
    old = access[1].old
    return [old, type_of(old.dtype)]


def requested(win: Any, access: tuple[Trace, Access] | None, request: mpi.Request) -> mpi.Request:
    """Return the request of an operation with a result."""
    if access is None or access[1].result is None or access not in access[1].window.incomplete:
        return request
    trace, operation = access
    operation.request = Requested(win, operation)
    return recorded(trace.tape(), request, operation.request)


def read_argument(origin: Any, op: mpi.Op) -> Any:
    """Return the origin argument, if it is read."""
    return None if op == mpi.NO_OP else origin
