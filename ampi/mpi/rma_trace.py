"""Window traces: what a rank did with each window while a tape recorded, agreed upon when a sweep begins."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import CommunicationError
from ..memory import Storage
from ..recording import opened
from ..tape import Push, Sweep, Tape, at_closing, at_opening, lanes_of, no_tangent
from .forward_windows import ForwardTrace, forward_trace
from .log import communication_of
from .messages import Collective, call_site, line_of
from .rma_access import Access, Completed, Handshake
from .rma_history import History
from .rma_order import Observer, Turns
from .rma_shadow import Shadow, close_all
from .rma_window import Window, require_own, windows
from .tangents import require_program
from .waiting import wait


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

    pushes = False
    """Whether tangents go along, through a `ForwardTrace`."""

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
        self.tape = tape.reference
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


class SecondTrace(Trace):
    """The same in second order, where tangents go along."""

    __slots__ = ()
    pushes = True

    @property
    def forward(self) -> ForwardTrace:
        """By which they go."""
        return forward_trace(self.tape(), self.window)  # type: ignore[arg-type]

    def note(self, access: Access, source: Any) -> None:
        """Before an operation: keep the tangent of what it reads here."""
        self.forward.note(access, source)

    def push(self, access: Access) -> None:
        """Do to the target's tangents what was done to its memory."""
        self.forward.push(access)
        access.x_dot = None


class Traces:
    """What a rank did with windows while a tape recorded; called at the beginning of each sweep."""

    __slots__ = ("observer", "of")

    def __init__(self, tape: Tape) -> None:
        self.of: dict[Window, Trace] = {}
        reference = tape.reference
        self.observer = Observer(tape, lambda window, rank: self.of[window].visit(reference(), rank))

    def used(self) -> list[Storage]:
        """Memory of windows that this rank has used, or of which it knows that others have, while the tape recorded."""
        used: list[Storage] = []
        for window, trace in self.of.items():
            tape = trace.tape()
            if tape is not None and not communication_of(tape).log(window.reverse).says_nothing():
                used += trace.attached if window.storage is None else [window.storage]
        return used

    def check_walk(self) -> None:
        """Raise if a walk cannot go through what was done with windows."""
        for window, trace in self.of.items():
            if not communication_of(trace.tape()).log(window.reverse).says_nothing():
                raise no_tangent("one-sided communication on a tape (ampi.jvp goes through it), which")

    def __call__(self, sweep: Sweep) -> None:
        """Expose the adjoints of window memory; collective over each window that was used."""
        if isinstance(sweep, Push):
            return
        lanes = lanes_of(sweep)  # of which each has its own shadow of a window; their turns are the same
        shadows: list[dict[Window, Shadow]] = [{} for _ in lanes]
        for lane, mine in zip(lanes, shadows):
            lane.state["windows"] = mine
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
        drawn = any(tickets for _, tickets in facts.values())
        history = History(sweep.tape.records, logs.values()) if drawn else None
        for window, trace in happening.items():
            for lane, mine in zip(lanes, shadows):
                mine[window] = Shadow(lane, window, trace.attached)
            if facts[window][1]:
                touched = any(mine[window].is_touched() for mine in shadows)
                order = Turns(window, trace.tickets, self.observer.seen[window], touched, history)
                for lane, mine in zip(lanes, shadows):
                    mine[window].follow(lane, order)
        turns = [shadow.turns for shadow in shadows[0].values() if shadow.turns is not None]
        problems = list(dict.fromkeys(text for t in turns for text in t.problems))
        if problems:
            raise CommunicationError("\n".join(problems))


def _agreed(trace: Trace) -> tuple[bool, bool]:
    """Whether any rank of a window has a problem, and whether any has drawn tickets."""
    reverse = trace.window.reverse
    trace.joined = True
    trace.window.order.known = trace.window.order.uses  # no other tape can begin to use it before the sweep has ended
    facts = np.array([bool(trace.problem()), bool(trace.tickets)])
    request = reverse.comm.Iallreduce(mpi.IN_PLACE, facts, mpi.LOR)
    wait(request, lambda: f"the beginning of the sweep in {reverse.name}", reverse)
    return bool(facts[0]), bool(facts[1])


def _problems(trace: Trace) -> list[str]:
    return [text for text in trace.window.reverse.comm.allgather(trace.problem()) if text]


def trace_of(tape: Tape, window: Window) -> Any:
    """What this rank does with a window while a tape records."""
    if tape.tangents is not None:
        require_program(tape)
    elif tape.forward is not None:
        return _forward(tape, window)
    communication_of(tape)  # the ranks agree before windows are opened
    traces = tape.sweep_starts.get("windows")
    if traces is None:
        traces = Traces(tape)
        tape.at_sweep_start("windows", traces)
    trace = traces.of.get(window)  # type: ignore[attr-defined]
    if trace is None:
        require_own(window)
        kind = Trace if tape.tangents is None else SecondTrace
        trace = traces.of[window] = kind(tape, window)  # type: ignore[attr-defined]
        traces.observer.watch(window)  # type: ignore[attr-defined]
        for storage in trace.attached if window.storage is None else (window.storage,):
            activate(storage, tape)
    return trace


def _forward(tape: Tape, window: Window) -> Any:
    """The same in forward mode."""
    trace = forward_trace(tape, window)
    for storage in () if window.storage is None else (window.storage,):
        activate(storage, tape)
    return trace


def activate(storage: Storage, tape: Tape) -> None:
    """Window memory carries derivatives: others may write active values into it unseen."""
    if storage.tape is None or storage.tape() is None or storage.tape() is not opened():
        storage.tape = tape.reference


def _begin(tape: Tape) -> None:
    """A tape begins to record: windows that exist may be used by other ranks without a call of this one."""
    for window in list(windows.values()) if tape.forward is None else ():
        if window.thread is tape.owner and not window.reverse.broken:
            trace_of(tape, window)


def _end(tape: Tape) -> None:
    """A tape ends to record."""
    if tape.observer is not None:
        tape.observer.close()


at_opening.append(_begin)
at_closing.append(_end)
