"""One-sided communication: windows, what is done through them, and epochs.

The target of a Put or Get makes no call that a tape could record.  In a sweep every rank of a window therefore exposes
the adjoint of its window memory through a *shadow window* (`shadows`), and the origin alone does the adjoint of what it
did.  Epochs are mirrored, each kind in its own way; those of locks have no mirror at the target, and an order of their
own (`turns`).  So have atomic operations whose adjoints depend on their order: in epochs of Fence and of Start, where
MPI does not say it, they are put off while a tape records, and carried out one after the other at the end of the epoch.

Two things follow for window memory.  Others overwrite it unseen, so values that an adjoint needs are copied when they
are used (`Storage.volatile`), and it counts as active from the beginning of a tape.  And others add to its adjoint:
where both a rank itself and others may read a location in one epoch, what the others add has to wait for the end of the
mirrored epoch, when the rank does not touch its shadow.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import ActivityError, CommunicationError
from ..memory import Storage, address_of, carries_derivatives, plain, storage_of, track_block
from ..recording import open_tapes, opened, recording, this_thread
from ..tape import Sweep, Tape, at_closing, at_opening, living, overwrite, where_called
from .agreement import call_site, communication_of, line_of, wait
from .buffers import Buffer, arrive, as_array, parse, refuse_others
from .datatypes import datatype_named
from .messages import Collective
from .requests import AcceptsBase, Handles, recorded
from .reverse import Reverse, name_of, new_identity
from .rules import Operation, Treatment, enter
from .shadows import LOCATED, NONLINEAR, Access, Completed, Fence, Handshake, Shadow, close_all, target_of
from .turns import Observer, Order

_Win, _Comm, _Group = mpi.Win, mpi.Comm, mpi.Group  # mpi4py's own: the names in its module are rebound


class Window:
    """What ampi knows of a window.

    Attributes
    ----------
    reverse : Reverse
        For what the ranks say to one another in a sweep.
    storage : Storage or None
        Of this rank's memory; None if it is not tracked.
    offset, nbytes : int
        The window in its storage.
    units : list of int
        Displacement unit of each rank.
    tracked : list of bool
        Whether the memory of each rank is tracked.
    posted, started : list of int
        Ranks of the present epochs of Post and Start.
    starts : list of int
        Number of epochs of Start so far, by rank.
    fences : int
        Number of fences so far.
    locked : dict
        Kinds of the present locks, by rank; that of Lock_all under `_ALL`.
    order : Order
        Of accesses in lock epochs.
    incomplete : list of Access
        In lock epochs, with the tapes' traces.
    put_off : list of Access
        To the end of the present epoch of Fence or Start, with the tapes' traces.
    segments : dict or None
        Of a shared window: other ranks' memory that is known here, by rank.
    attached : dict or None
        Of a dynamic window: arrays of this rank's tracked memory by storage, kept alive as long as they are attached.
    freed : bool
    thread : object
        That made it (`this_thread`): only tapes of this thread see what is done with it.
    """

    __slots__ = (
        "__weakref__",
        "attached",
        "fences",
        "freed",
        "incomplete",
        "locked",
        "nbytes",
        "offset",
        "order",
        "posted",
        "put_off",
        "reverse",
        "segments",
        "started",
        "starts",
        "storage",
        "thread",
        "tracked",
        "units",
    )

    def __init__(
        self, reverse: Reverse, storage: Storage | None, address: int, nbytes: int, unit: int, dynamic: bool = False
    ) -> None:
        self.reverse = reverse
        self.storage = storage
        self.offset = 0 if storage is None else address - storage.address
        self.nbytes = nbytes
        self.order = Order(reverse.comm)
        facts = reverse.comm.allgather((unit, dynamic or storage is not None))
        self.units = [fact[0] for fact in facts]
        self.tracked = [fact[1] for fact in facts]
        self.posted: list[int] = []
        self.started: list[int] = []
        self.starts = [0] * len(facts)
        self.fences = 0
        self.locked: dict[int, int] = {}
        self.incomplete: list[tuple[Trace, Access]] = []
        self.put_off: list[tuple[Trace, Access]] = []
        self.segments: dict[int, Elsewhere] | None = None
        self.attached: dict[Storage, list[np.ndarray]] | None = {} if dynamic else None
        self.freed = False
        self.thread = this_thread()

    def is_locked(self, rank: int) -> bool:
        """Whether this rank has an epoch of Lock or Lock_all at the target."""
        return rank in self.locked or _ALL in self.locked

    def puts_off(self, rank: int) -> bool:
        """Whether an atomic operation on a target's memory has been put off in this epoch."""
        return any(access.target.rank == rank for _, access in self.put_off)


class Elsewhere(Storage):
    """Memory of another rank in a shared window: loads from it and stores to it are communication."""

    __slots__ = ("rank", "window")
    elsewhere = True

    def __init__(self, address: int, nbytes: int, window: Window, rank: int) -> None:
        self.window = weakref.ref(window)
        self.rank = rank
        super().__init__(address, nbytes)
        self.volatile = True

    @property
    def tape(self) -> Any:  # type: ignore[override]
        """It always carries derivatives; who asks is about to record a load or store."""
        return self._visited()

    @tape.setter
    def tape(self, tape: Any) -> None:
        """It does so for every tape."""

    @property
    def needs(self) -> dict:  # type: ignore[override]
        """Nothing: values are copied when they are used.  Who asks is about to store."""
        self._visited()
        return {}

    @needs.setter
    def needs(self, needs: dict) -> None:
        """Stays empty."""

    def _visited(self) -> Any:
        tape, window = opened(), self.window()
        if tape is None or window is None or window.freed:
            return None
        _trace(tape, window)
        tape.observer.visited.add((window, self.rank))
        return tape._reference


_ALL = -1  # in the place of a rank: all of them

_windows: dict[int, Window] = {}  # by handle, in the order of their creation


def _alive(window: weakref.ref[Window]) -> Window | None:
    found = window()
    return None if found is None or found.freed else found


def _reverse_for(win: Any, comm: Any) -> Reverse:
    group = _Comm.Get_group(comm)
    traffic = _Comm.Create(comm, group)
    reverse = Reverse(traffic, _Comm.Get_rank(comm), f"a window of {name_of(comm)}", new_identity(traffic))
    group.Free()
    return reverse


def _register(win: Any, comm: Any, unit: int, memory: Any = None) -> Any:
    """Know a new window; collective over it.  Without memory of the user's MPI has allocated it."""
    reverse = _reverse_for(win, comm)
    if memory is None:
        buffer = _Win.tomemory(win)
        address, nbytes = buffer.address, buffer.nbytes
        storage = Storage(address, nbytes)
        window = Window(reverse, storage, address, nbytes, unit)
        reference = weakref.ref(window)
        window.storage = track_block(storage, lambda: _alive(reference))
    else:
        array = None if isinstance(memory, mpi.BottomType) else as_array(memory)
        known = None if array is None or not carries_derivatives(_dtype_of(array)) else storage_of(array)
        address, nbytes = (0, 0) if array is None else (address_of(array), array.nbytes)
        window = Window(reverse, known, address, nbytes, unit)
    _windows[win.handle] = window
    if window.storage is not None:
        _expose(window.storage, None if memory is None else as_array(memory))
    if opened() is not None:
        _trace(opened(), window)
    return win


def _expose(storage: Storage, memory: np.ndarray | None) -> None:
    """Others may write to the memory unseen from now on."""
    if storage.volatile:
        return
    tape = opened()
    undo = [] if memory is None else overwrite(plain(memory))
    storage.volatile = True
    if tape is not None and undo:
        tape.append(None, undo)


def _register_dynamic(win: Any, comm: Any) -> Any:
    """Know a new window without memory; collective over it."""
    _windows[win.handle] = window = Window(_reverse_for(win, comm), None, 0, 0, 1, True)
    if opened() is not None:
        _trace(opened(), window)
    return win


def _dtype_of(array: np.ndarray) -> np.dtype:
    """Dtype of the memory that an array, perhaps of bytes, looks at."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if carries_derivatives(base.dtype):
            return base.dtype
        base = base.base.obj if isinstance(base.base, memoryview) else base.base
    return array.dtype


# ------------------------------------------------------------------------------------------------- while recording


class Trace:
    """What a rank did with a window while a tape recorded.

    Attributes
    ----------
    token : Collective
        For the agreement: whether anything differentiable happened through the window on any rank.
    refused : str
        Why it cannot be differentiated, if it happens to be necessary.
    accesses : list of Access
        Since the last fence, those that were not put off.
    access_epoch, exposure : Handshake or None
        Of Start and Post, while they last.
    epoch : bool
        An epoch was opened while the tape recorded.
    tickets : dict
        Tickets drawn in lock epochs, by target; negative for updates.
    announced : bool
        The other ranks can see that the window is used in epochs that they have no part in.
    joined : bool
        All ranks have swept it.
    attached : dict
        Of a dynamic window: an array by storage of all that was attached at some time.
    """

    __slots__ = (
        *(
            "access_epoch",
            "accesses",
            "announced",
            "attached",
            "epoch",
            "exposure",
            "joined",
            "refused",
            "tape",
            "tickets",
            "token",
        ),
        "window",
    )

    def __init__(self, tape: Tape, window: Window) -> None:
        self.tape = tape._reference
        self.window = window
        self.attached = {} if window.attached is None else {s: arrays[0] for s, arrays in window.attached.items()}
        self.token = self.log(tape, "Win", False, window.storage is not None or window.attached is not None)
        self.refused = ""
        self.accesses: list[Access] = []
        self.access_epoch: Handshake | None = None
        self.exposure: Handshake | None = None
        self.epoch = False
        self.tickets: dict[int, list[int]] = {}
        self.announced = False
        self.joined = False
        communication_of(tape).log(window.reverse).stirred = self.stirred

    def stirred(self) -> bool:
        """Whether any rank has used the window in epochs that concern some ranks: all have to take part in the sweep.

        An announcement may come before this rank's tape begins: what counts is what it knew at the last common sweep.
        """
        return self.joined or self.window.order.uses != self.window.order.known

    def log(self, tape: Tape, name: str, active: bool, tracked: bool) -> Collective:
        """Log something collective."""
        token = Collective(name, self.window.reverse, active, tracked, False)
        communication_of(tape).log(self.window.reverse).collectives.append(token)
        return token

    def begin(self, access: Access) -> None:
        """An access in a lock epoch begins."""
        self.announce()
        self.window.incomplete.append((self, access))

    def announce(self) -> None:
        """Let the other ranks see that the window is used by more than calls of theirs."""
        if not self.announced:
            self.announced = True
            self.window.order.announce()

    def visit(self, tape: Tape, rank: int) -> int:
        """Draw a ticket for a load from or store to another rank's memory."""
        self.announce()
        self.token.reads_active = True
        communication_of(tape).log(self.window.reverse).touched = True
        ticket = self.window.order.ticket(rank)
        self.tickets.setdefault(rank, []).append(-ticket)
        return ticket

    def refuse(self, text: str) -> None:
        """The sweep cannot reverse what happens here."""
        self.refused = self.refused or f"{text}, {line_of(call_site())}"

    def draw(self, rank: int, accesses: list[Access]) -> None:
        """Accesses to a target's memory are completed: draw a ticket, and record it."""
        tape, window = self.tape(), self.window
        if tape is None:
            return
        ticket = window.order.ticket(rank)
        sign = -1 if any(access.updates for access in accesses) else 1
        self.tickets.setdefault(rank, []).append(sign * ticket)
        tape.append_start(Completed(window, rank, ticket, accesses))
        for access in accesses:
            if access.request is not None:
                access.request.end()

    def problem(self) -> str:
        """Why the window cannot be swept; empty if it can."""
        here = f"rank {self.window.reverse.rank}"
        if self.refused:
            return f"{here}: {self.refused}"
        left = self.window.incomplete + self.window.put_off
        unfinished = [access for trace, access in left if trace is self] + self.accesses
        if unfinished:
            return (
                f"{here}: {unfinished[0].describe()}, belongs to an epoch that is still open; complete it (Fence, "
                "Complete, Unlock or Flush) before the gradient is asked for"
            )
        epoch = self.access_epoch or self.exposure
        if epoch is not None:
            return f"{here}: {epoch.describe()}, began an epoch that is still open; end it before the sweep"
        return ""


class Traces:
    """What a rank did with windows while a tape recorded; called at the beginning of each sweep."""

    __slots__ = ("observer", "of")

    def __init__(self, tape: Tape) -> None:
        self.of: dict[Window, Trace] = {}
        reference = tape._reference
        self.observer = Observer(tape, lambda window, rank: self.of[window].visit(reference(), rank))

    def __call__(self, sweep: Sweep) -> None:
        """Expose the adjoints of window memory; collective over each window that was used."""
        shadows: dict[Window, Shadow] = {}
        sweep.state["windows"] = shadows
        sweep.at_end(lambda error: close_all(shadows, error))
        logs = communication_of(sweep.tape).logs
        happening = {}
        for window, trace in self.of.items():
            if trace.token.happening:
                happening[window] = trace
            else:
                logs.pop(window.reverse, None)  # agreed, and not concerned by what happens from now on
        facts = {window: _agreed(trace) for window, trace in happening.items()}
        problems = [text for window, (wrong, _) in facts.items() if wrong for text in _problems(happening[window])]
        if problems:
            raise CommunicationError("\n".join(problems))
        for window, trace in happening.items():
            tickets = trace.tickets if facts[window][1] else None
            shadows[window] = Shadow(sweep, window, trace.attached, tickets, self.observer.seen[window])
        problems = [text for shadow in shadows.values() if shadow.turns is not None for text in shadow.turns.problems]
        if problems:
            raise CommunicationError("\n".join(problems))


def _agreed(trace: Trace) -> tuple[bool, bool]:
    """Whether any rank of a window has a problem, and whether any has drawn tickets."""
    reverse = trace.window.reverse
    trace.joined = True
    trace.window.order.known = trace.window.order.uses  # no other tape can begin to use it before the sweep has ended
    facts = np.array([bool(trace.problem()), bool(trace.tickets)])
    wait(reverse.comm.Iallreduce(mpi.IN_PLACE, facts, mpi.LOR), lambda: f"the beginning of the sweep in {reverse.name}")
    return bool(facts[0]), bool(facts[1])


def _problems(trace: Trace) -> list[str]:
    return [text for text in trace.window.reverse.comm.allgather(trace.problem()) if text]


def _trace(tape: Tape, window: Window) -> Trace:
    communication_of(tape)  # the ranks agree before windows are opened
    traces = tape._sweep_starts.get("windows")
    if traces is None:
        traces = Traces(tape)
        tape.at_sweep_start("windows", traces)
    trace = traces.of.get(window)  # type: ignore[attr-defined]
    if trace is None:
        _require_own(window)
        trace = traces.of[window] = Trace(tape, window)  # type: ignore[attr-defined]
        traces.observer.watch(window)  # type: ignore[attr-defined]
        for storage in trace.attached if window.storage is None else (window.storage,):
            _activate(storage, tape)
    return trace


def _require_own(window: Window) -> None:
    """Raise unless this is the thread that made the window, or no tape can see what is done.

    Other ranks use a window without a call of this one: which of two threads' tapes is concerned must be known before.
    """
    if window.thread is this_thread():
        return
    if opened() is None and not any(tape.owner is window.thread for tape in open_tapes):
        return
    raise CommunicationError(
        f"{where_called()}: {window.reverse.name} is used by thread '{threading.current_thread().name}', but a tape "
        "sees what is done with a window only in the thread that made it; make the window in the thread that uses it"
    )


def _activate(storage: Storage, tape: Tape) -> None:
    if storage.tape is None or storage.tape() is None or storage.tape() is not opened():
        storage.tape = tape._reference


def _begin(tape: Tape) -> None:
    """A tape begins to record: windows that exist may be used by other ranks without a call of this one."""
    for window in list(_windows.values()):
        if window.thread is tape.owner and not window.reverse.broken:
            _trace(tape, window)


def _end(tape: Tape) -> None:
    """A tape ends to record."""
    if tape.observer is not None:
        tape.observer.close()


at_opening.append(_begin)
at_closing.append(_end)


# ---------------------------------------------------------------------------------------------- recording operations


def _record(
    win: Any, name: str, rank: int, spec: Any, reads: Any = None, writes: Any = None, op: mpi.Op | None = None
) -> tuple[Trace, Access] | None:
    """Record an operation, before it starts, while some tape exists.

    Parameters
    ----------
    spec
        mpi4py's target argument.
    reads, writes
        Buffer arguments: what is read and what is received on this rank; None if there is none.
    op : MPI.Op
        What is done to the target's memory; None: nothing.

    Returns
    -------
    (Trace, Access) or None
        None if the operation has no adjoint.
    """
    if rank == mpi.PROC_NULL:
        return None
    tape, window = opened(), _windows.get(win.handle)
    source = None if reads is None else parse(reads)
    sink = None if writes is None else parse(writes)
    if tape is not None and window is None:
        _refuse_unknown(name, tape, source, sink)
    if tape is None:
        if window is not None:
            _require_own(window)
        refuse_others(*(buffer for buffer in (source, sink) if buffer is not None))
    undo = [] if sink is None else sink.overwrite()
    if tape is None:
        return None
    trace = None if window is None else _trace(tape, window)
    access = None
    if trace is not None:
        access = _access(trace, tape, name, rank, spec, (reads, writes), source, sink, op)
    if access is None:
        cut = sink is not None and sink.tracked and window is not None
        if cut or undo:
            tape.append(sink.detach().zero if cut else None, undo)  # type: ignore[union-attr]
        return None
    assert trace is not None and window is not None and (source is not None or sink is not None)
    if window.is_locked(rank):
        if access.nonlinear:
            access.keep(source, sink)  # type: ignore[arg-type]
        trace.begin(access)
        tape.append(access.collect, undo)
    elif _is_put_off(trace, access, sink is not None):
        access.put_off(source, sink)
        window.put_off.append((trace, access))
        tape.append(access.collect, undo)
    else:
        trace.accesses.append(access)
        tape.append(access, undo)
    for buffer in (access.origin, access.result):
        if buffer is not None and not access.holds(buffer):
            buffer.detach()
    return trace, access


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
    """What the sweep has to do for an operation; says to the agreement what the operation means."""
    window, token = trace.window, trace.token
    dtype = (source if sink is None else sink).dtype  # type: ignore[union-attr]
    updates = op is not None and op != mpi.NO_OP
    records = recording() is not None
    active = updates and records and source.active(tape)  # type: ignore[union-attr]
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
    if not carries_derivatives(dtype):
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
    token.reads_active = token.reads_active or carries_derivatives(dtype)
    target = target_of(rank, window.units[rank], spec, given[0] if given[1] is None else given[1], dtype)
    access = Access(name, window, target, op, source if active else None, result)
    communication_of(tape).log(window.reverse).touched = True
    if result is not None:
        result.activate(tape)
    return access


def _is_put_off(trace: Trace, access: Access, fetches: bool) -> bool:
    """Whether an operation in an epoch of Fence or Start is put off to its end.

    In an epoch of Start that is every atomic operation.  In one of Fence the sums that do not fetch come first: they
    commute, and what is put off comes after them.
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
    """What a request of Rget or Rget_accumulate completes: like a receive, for `requests`."""

    __slots__ = ("access", "active", "buffer", "request", "wild", "win")

    def __init__(self, win: Any, access: Access) -> None:
        self.win = win
        self.access = access
        self.buffer = access.result
        self.active = True
        self.wild = False
        self.request: Any = None

    def resolve(self, status: mpi.Status | None) -> None:
        """The request has completed, and with it all that this rank has done there before."""
        if self.active:
            _complete(self.access.window, self.access.target.rank)

    def describe(self) -> str:
        """For error messages."""
        return self.access.describe()

    def completed(self) -> bool:
        """Whether the request has been completed, be it by a method that ampi does not see."""
        return not self.request

    def begin(self, sweep: Sweep) -> None:
        """Mirror of the wait: see `Completed`."""

    def end(self) -> None:
        """The access is complete."""
        self.active = False
        if self.request is not None:
            self.request = None
            arrive(self.buffer, -1)


def _complete(window: Window, rank: int = -1, primal: Callable[[], None] | None = None) -> None:
    """Complete this rank's accesses to a target's memory (to all of them) in lock epochs.

    The tickets are drawn before: others may be let in at once.
    """
    done: list[tuple[Trace, Access]] = []
    left: list[tuple[Trace, Access]] = []
    for entry in window.incomplete:
        (done if rank in (_ALL, entry[1].target.rank) else left).append(entry)
    if done:
        window.incomplete = left
        _draw(window, done)
    if primal is not None:
        primal()
    for _, access in done:
        access.complete()


def _draw(window: Window, accesses: list[tuple[Trace, Access]]) -> None:
    """Draw the tickets for accesses to targets' memory."""
    groups: dict[tuple[Trace, int], list[Access]] = {}
    for trace, access in accesses:
        groups.setdefault((trace, access.target.rank), []).append(access)
    for (trace, target), group in groups.items():
        trace.draw(target, group)


def _carry_out(win: Any, window: Window, primal: Callable[[], Any]) -> None:
    """Carry out what this rank has put off, while no other rank does; the primal call completes it."""
    accesses, window.put_off = window.put_off, []
    for trace, access in accesses:
        if trace.tape() is not opened():
            trace.refuse(f"{access.name} belongs to an epoch that ended when the tape had been closed")
    _draw(window, accesses)
    for _, access in accesses:
        access.carry_out(win)
    primal()
    for _, access in accesses:
        access.complete()


def _catch_up(win: Any, window: Window, assertion: int) -> None:
    """At a fence: the ranks carry out what they have put off, one after the other; collective."""
    if assertion:  # what it says of the epoch to come is not true yet
        _Win.Fence(win, mpi.MODE_NOPRECEDE)
    comm = window.reverse.comm
    late = np.empty(comm.Get_size(), bool)
    comm.Allgather(np.array([bool(window.put_off)]), late)
    ranks = np.flatnonzero(late).tolist()
    for rank in ranks:
        fence = partial(_Win.Fence, win, assertion if rank == ranks[-1] else 0)
        if rank == window.reverse.rank:
            _carry_out(win, window, fence)
        else:
            fence()


def _one_by_one(win: Any, window: Window) -> None:
    """Complete an epoch of Start: one origin at a time carries out what it has put off.

    A rank that holds others up waits for nothing that these have to do first: its targets have posted.
    """
    order = window.order
    for target in window.started:
        order.await_post(target, window.starts[target])
    targets = sorted({access.target.rank for _, access in window.put_off})
    for target in targets:
        order.enter(target)
    try:
        _carry_out(win, window, lambda: _Win.Complete(win))
    finally:
        for target in targets:
            order.leave(target)


@contextlib.contextmanager
def _in_order(win: Any, recorded_access: tuple[Trace, Access] | None) -> Iterator[None]:
    """Do an atomic operation; in an epoch of a shared lock at once, with a ticket of its own."""
    if recorded_access is None:
        yield
        return
    window, rank = recorded_access[1].window, recorded_access[1].target.rank
    if not window.is_locked(rank) or window.locked.get(rank) == mpi.LOCK_EXCLUSIVE:
        yield
        return
    window.order.enter(rank)
    try:
        yield
        _complete(window, rank, lambda: _Win.Flush(win, rank))
    finally:
        window.order.leave(rank)


def _refuse_unknown(name: str, tape: Tape, source: Buffer | None, sink: Buffer | None) -> None:
    if recording() is None:
        return
    if (source is not None and source.active(tape)) or (sink is not None and sink.tracked):
        raise ActivityError(
            f"{name} of an array that may carry derivatives, through a window that ampi did not see being made, "
            "has no derivative rule; make it by ampi.Win, or pass ampi.value(array)"
        )


def _ranks_of(win: Any, group: mpi.Group) -> list[int]:
    own = _Win.Get_group(win)
    try:
        return list(_Group.Translate_ranks(group, None, own))
    finally:
        own.Free()


def _handshake(win: Any, name: str, partners: list[int]) -> None:
    tape, window = opened(), _windows.get(win.handle)
    if tape is None and window is not None and open_tapes:
        _require_own(window)
    if tape is None or window is None:
        return
    trace = _trace(tape, window)
    communication_of(tape).log(window.reverse).touched = True
    record = Handshake(name, window, partners)
    if name in ("Start", "Post") and len({*partners, window.reverse.rank}) < window.order.size:
        trace.announce()  # to those that have no part in it
    if name == "Start":
        trace.epoch, trace.access_epoch = True, record
    elif name == "Complete" and trace.access_epoch is not None:
        trace.accesses = []
        trace.access_epoch = None
    elif name == "Post":
        trace.exposure = record
    else:
        trace.exposure = None
    tape.append(record)


# ----------------------------------------------------------------------------------------------------- the methods


class Win(Handles, _Win, metaclass=AcceptsBase):  # type: ignore[valid-type]
    """Remote memory access context."""

    _base = _Win

    # ------------------------------------------------------------------------------------------------- windows

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window on memory of the user's; collective."""
        win = super().Create(memory, disp_unit, info, comm)
        return _register(win, comm, disp_unit, mpi.BOTTOM if memory is None else memory)

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window and its memory; collective."""
        return _register(super().Allocate(size, disp_unit, info, comm), comm, disp_unit)

    @classmethod
    def Allocate_shared(
        cls, size: int, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF
    ) -> Any:
        """Create a window and its memory, which other ranks of the node can load from and store to; collective."""
        win = _register(super().Allocate_shared(size, disp_unit, info, comm), comm, disp_unit)
        _windows[win.handle].segments = {}
        return win

    @classmethod
    def Create_dynamic(cls, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window without memory; collective."""
        return _register_dynamic(super().Create_dynamic(info, comm), comm)

    def Attach(self, memory: Any) -> None:
        """Attach a local memory region."""
        _Win.Attach(self, memory)
        window = _windows.get(self.handle)
        array = as_array(memory)
        storage = storage_of(array) if carries_derivatives(_dtype_of(array)) else None
        if window is None or window.attached is None or storage is None:
            return
        _expose(storage, array)
        window.attached.setdefault(storage, []).append(array)
        tape = opened()
        if tape is not None:
            _trace(tape, window).attached.setdefault(storage, array)
            _activate(storage, tape)

    def Detach(self, memory: Any) -> None:
        """Detach a local memory region.  A tape that recorded with it keeps the memory alive."""
        _Win.Detach(self, memory)
        window = _windows.get(self.handle)
        array = as_array(memory)
        storage = storage_of(array)
        if window is None or window.attached is None or storage not in window.attached:
            return
        arrays = window.attached[storage]
        arrays[:] = [other for other in arrays if address_of(other) != address_of(array)]
        if not arrays:
            del window.attached[storage]

    def Shared_query(self, rank: int) -> tuple[mpi.buffer, int]:
        """Query the memory of a rank in a shared window.

        An `ampi.ndarray` on it is differentiated, whosever memory it is.  What loads from another rank's memory or
        stores to it while a tape records must be ordered with what others do there, as MPI demands.
        """
        buffer, unit = _Win.Shared_query(self, rank)
        window = _windows.get(self.handle)
        if window is not None and window.segments is not None and buffer.nbytes:
            owner = rank if rank >= 0 else _owner(self, window.reverse.comm.Get_size())
            if owner != window.reverse.rank and owner not in window.segments:
                segment = Elsewhere(buffer.address, buffer.nbytes, window, owner)
                reference = weakref.ref(window)
                track_block(segment, lambda: _alive(reference))
                window.segments[owner] = segment
        return buffer, unit

    def Free(self) -> None:
        """Free a window; collective.  A tape that recorded with it can still be swept."""
        window = _windows.pop(self.handle, None)
        _Win.Free(self)
        if window is not None:
            window.freed = True
            window.order.cells.free()

    # ---------------------------------------------------------------------------------------------- operations

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Put data into a memory window on a remote process."""
        if living:
            _record(self, "Put", target_rank, target, reads=origin, op=mpi.REPLACE)
        _Win.Put(self, origin, target_rank, target)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Get data from a memory window on a remote process."""
        if living:
            _record(self, "Get", target_rank, target, writes=origin)
        _Win.Get(self, origin, target_rank, target)

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM) -> None:
        """Accumulate data into the target process."""
        if not living:
            return _Win.Accumulate(self, origin, target_rank, target, op)
        access = _record(self, "Accumulate", target_rank, target, reads=origin, op=op)
        if _waits(access):
            return None
        with _in_order(self, access):
            if _wants_old(access):
                _Win.Get_accumulate(self, origin, _old(access), target_rank, target, op)
            else:
                _Win.Accumulate(self, origin, target_rank, target, op)

    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM
    ) -> None:
        """Fetch-and-accumulate data into the target process."""
        access = None
        if living:
            access = _record(self, "Get_accumulate", target_rank, target, _read(origin, op), result, op)
        if _waits(access):
            return
        with _in_order(self, access):
            _Win.Get_accumulate(self, origin, result, target_rank, target, op)

    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: mpi.Op = mpi.SUM
    ) -> None:
        """Perform one-sided read-modify-write."""
        access = None
        if living:
            access = _record(self, "Fetch_and_op", target_rank, target_disp, _read(origin, op), result, op)
        if _waits(access):
            return
        with _in_order(self, access):
            _Win.Fetch_and_op(self, origin, result, target_rank, target_disp, op)

    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        """Perform one-sided atomic compare-and-swap."""
        if living:
            for spec in (origin, compare, result):
                buffer = parse(spec)
                if opened() is not None and carries_derivatives(buffer.dtype) and buffer.active(opened()):
                    raise ActivityError("Compare_and_swap of active values has no derivative; pass ampi.value(array)")
            undo = overwrite(*parse(result).overwritten())
            if undo and opened() is not None:
                opened().append(None, undo)
        _Win.Compare_and_swap(self, origin, compare, result, target_rank, target_disp)

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> mpi.Request:
        """Put data into a memory window on a remote process, with a request."""
        if living:
            _record(self, "Rput", target_rank, target, reads=origin, op=mpi.REPLACE)
        return _Win.Rput(self, origin, target_rank, target)

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> mpi.Request:
        """Get data from a memory window on a remote process, with a request."""
        access = _record(self, "Rget", target_rank, target, writes=origin) if living else None
        return _requested(self, access, _Win.Rget(self, origin, target_rank, target))

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM) -> mpi.Request:
        """Accumulate data into the target process, with a request."""
        access = _record(self, "Raccumulate", target_rank, target, reads=origin, op=op) if living else None
        with _in_order(self, access):
            if _wants_old(access):
                request = _Win.Rget_accumulate(self, origin, _old(access), target_rank, target, op)
            else:
                request = _Win.Raccumulate(self, origin, target_rank, target, op)
        return request

    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM
    ) -> mpi.Request:
        """Fetch-and-accumulate data into the target process, with a request."""
        access = None
        if living:
            access = _record(self, "Rget_accumulate", target_rank, target, _read(origin, op), result, op)
        with _in_order(self, access):
            request = _Win.Rget_accumulate(self, origin, result, target_rank, target, op)
        return _requested(self, access, request)

    # -------------------------------------------------------------------------------------------------- epochs

    def Fence(self, assertion: int = 0) -> None:
        """Perform an MPI fence synchronization; collective."""
        window = _windows.get(self.handle)
        if window is None:
            return _Win.Fence(self, assertion)
        window.fences += 1
        tape = opened()
        if tape is None and open_tapes:
            _require_own(window)
        if tape is not None:
            _note_fence(tape, window)
        if window.put_off:
            window.order.call(window.fences)
        _Win.Fence(self, assertion)
        if window.order.called(window.fences):
            _catch_up(self, window, assertion)
            if tape is not None:
                _note_fence(tape, window)

    def Post(self, group: mpi.Group, assertion: int = 0) -> None:
        """Start an RMA exposure epoch."""
        window = _windows.get(self.handle)
        if window is not None:
            window.posted = _ranks_of(self, group)
            _handshake(self, "Post", window.posted)
        _Win.Post(self, group, assertion)
        if window is not None:
            window.order.post(window.posted)

    def Start(self, group: mpi.Group, assertion: int = 0) -> None:
        """Start an RMA access epoch for MPI."""
        window = _windows.get(self.handle)
        if window is not None:
            window.started = _ranks_of(self, group)
            for rank in window.started:
                window.starts[rank] += 1
            _handshake(self, "Start", window.started)
        _Win.Start(self, group, assertion)

    def Complete(self) -> None:
        """Complete an RMA operation begun after a Start."""
        window = _windows.get(self.handle)
        if window is not None and window.put_off:
            _one_by_one(self, window)
        else:
            _Win.Complete(self)
        if window is not None:
            _handshake(self, "Complete", window.started)
            window.started = []

    def Lock(self, rank: int, lock_type: int = mpi.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an RMA access epoch at the target process."""
        _Win.Lock(self, rank, lock_type, assertion)
        window = _windows.get(self.handle)
        if window is not None:
            window.locked[rank] = lock_type

    def Unlock(self, rank: int) -> None:
        """Complete an RMA access epoch at the target process."""
        window = _windows.get(self.handle)
        if window is None:
            return _Win.Unlock(self, rank)
        _complete(window, rank, lambda: _Win.Unlock(self, rank))
        window.locked.pop(rank, None)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an RMA access epoch at all processes."""
        _Win.Lock_all(self, assertion)
        window = _windows.get(self.handle)
        if window is not None:
            window.locked[_ALL] = mpi.LOCK_SHARED

    def Unlock_all(self) -> None:
        """Complete an RMA access epoch at all processes."""
        window = _windows.get(self.handle)
        if window is None:
            return _Win.Unlock_all(self)
        _complete(window, _ALL, lambda: _Win.Unlock_all(self))
        window.locked.pop(_ALL, None)

    def Flush(self, rank: int) -> None:
        """Complete all outstanding RMA operations at a target."""
        self._flush(rank, lambda: _Win.Flush(self, rank))

    def Flush_all(self) -> None:
        """Complete all outstanding RMA operations at all targets."""
        self._flush(_ALL, lambda: _Win.Flush_all(self))

    def Flush_local(self, rank: int) -> None:
        """Complete locally all outstanding RMA operations to a target."""
        self._flush(rank, lambda: _Win.Flush_local(self, rank))

    def Flush_local_all(self) -> None:
        """Complete locally all outstanding RMA operations to all targets."""
        self._flush(_ALL, lambda: _Win.Flush_local_all(self))

    def _flush(self, rank: int, primal: Callable[[], None]) -> None:
        window = _windows.get(self.handle)
        if window is None or not window.incomplete:
            primal()
        else:
            _complete(window, rank, primal)

    def Wait(self) -> Any:
        """Complete an RMA exposure epoch begun with Post."""
        done = _Win.Wait(self)
        _end_exposure(self)
        return done

    def Test(self) -> bool:
        """Test whether an RMA exposure epoch has completed."""
        done = _Win.Test(self)
        if done:
            _end_exposure(self)
        return done


def _end_exposure(win: Any) -> None:
    window = _windows.get(win.handle)
    if window is not None:
        _handshake(win, "Wait", window.posted)
        window.posted = []


def _owner(win: Any, size: int) -> int:
    """The lowest rank that has memory in a shared window: whose MPI.PROC_NULL means."""
    return next(rank for rank in range(size) if _Win.Shared_query(win, rank)[0].nbytes)


def _note_fence(tape: Tape, window: Window) -> None:
    trace = _trace(tape, window)
    trace.accesses, trace.epoch = [], True
    tape.append(Fence(window, trace.log(tape, "Fence", False, False)))


def _waits(access: tuple[Trace, Access] | None) -> bool:
    """Whether an operation was put off."""
    if access is None:
        return False
    put_off = access[1].window.put_off
    return bool(put_off) and put_off[-1][1] is access[1]


def _wants_old(access: tuple[Trace, Access] | None) -> bool:
    return access is not None and access[1].old is not None


def _old(access: Any) -> Any:
    """The result argument where the target's old value has to be fetched."""
    old = access[1].old
    return [old, datatype_named(old.dtype.char)]


def _requested(win: Any, access: tuple[Trace, Access] | None, request: mpi.Request) -> mpi.Request:
    """The request of an operation that brings a result."""
    if access is None or access[1].result is None or access not in access[1].window.incomplete:
        return request
    trace, operation = access
    operation.request = Requested(win, operation)
    return recorded(trace.tape(), request, operation.request)


def _read(origin: Any, op: mpi.Op) -> Any:
    """The origin argument, if it is read."""
    return None if op == mpi.NO_OP else origin


_PUT = "Get t from the target's adjoint; x̄ += t; the target's adjoint is zero"
_GET = "Accumulate(SUM) of x̄ into the target's adjoint; x̄ = 0"
_ACCUMULATE = (
    "SUM: Get t from the target's adjoint; x̄ += t; REPLACE: as Put; PROD, MIN, MAX, MINLOC, MAXLOC: t times the "
    "partial derivatives, one operation after the other"
)
for _names, _reads, _writes, _text in (
    (("Put", "Rput"), ("origin",), (), _PUT),
    (("Get", "Rget"), (), ("origin",), _GET),
    (("Accumulate", "Raccumulate"), ("origin",), (), _ACCUMULATE),
    (("Get_accumulate", "Rget_accumulate"), ("origin",), ("result",), f"{_ACCUMULATE}; as Get for the result"),
    (("Fetch_and_op",), ("origin",), ("result",), f"{_ACCUMULATE}; as Get for the result"),
):
    for _name in _names:
        enter(Operation("Win", _name, Treatment.DIFFERENTIATED, _reads, _writes, _text))
enter(Operation("Win", "Compare_and_swap", Treatment.PASSES, ("origin", "compare"), ("result",), "integers only"))
