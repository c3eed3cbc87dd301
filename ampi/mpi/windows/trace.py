"""Window traces: the uses of each window by a rank while a tape recorded, compared at the start of a sweep."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...memory.storages import Storage
from ...tape import Push, Sweep, Tape, at_closing, at_opening, lanes_of, where_called
from ...tape.recording import around, is_around, recording
from ...tape.replays import books
from ..base.call_sites import call_site, call_sites, line_of
from ..log.log import communication_of
from ..log.messages import Collective
from ..memory.tangents import require_program
from ..waiting.waiting import wait
from .access import Access, Completed, Freed, Handshake, Made
from .forward_windows import ForwardTrace, close_shadow, forward_trace, push_of
from .history import History
from .order import Observer, Turns
from .shadow import Shadow, close_all
from .walk import ForwardTurns, walked
from .window import Window, require_own, tape_of, windows


class Trace:
    """The uses of a window by a rank while a tape recorded.

    Attributes
    ----------
    token : Collective
        The entry in the log, by which the ranks agree whether any has used the window differentiably.
    refused : str
        The reason why the window cannot be differentiated, if a sweep needs it.
    accesses : list of Access
        The accesses since the last fence that were not postponed.
    access_epoch, exposure : Handshake or None
        The records of Start and Post, while their epochs last.
    epoch : bool
        True if an epoch was opened while the tape recorded.
    tickets : dict
        Tickets drawn in lock epochs, by target; negative for updates.
    announced : bool
        True if other ranks have been informed that the window is used in epochs in which they take no part.
    counted : uses.Counted or None
        The numbers of the tape among those that this rank opens while the window exists.  None for tapes of a loop's
        steps if the window is older than the loop, since steps cannot use it.
    sweeps : int
        Number of sweeps of the tape so far.
    joined : bool
        True if all ranks have swept it together.
    attached : dict
        For a dynamic window: an array for each storage that was attached at some time.
    made, freed : bool
        True if there are records of the window's creation, and of its Free.
    """

    pushes = False
    """True if tangents are sent beside the operations, through a `ForwardTrace`."""

    __slots__ = (
        *(
            "access_epoch",
            "accesses",
            "announced",
            "attached",
            "counted",
            "epoch",
            "exposure",
            "freed",
            "joined",
            "made",
            "refused",
            "sweeps",
            "tape",
            "tickets",
            "token",
        ),
        "window",
    )

    def __init__(self, tape: Tape, window: Window, site: int) -> None:
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
        self.announced = self.made = self.freed = False
        is_used = not tape.of_step or any(window.in_steps.made_in(book) for book in books())
        self.sweeps = 0
        self.counted = window.order.uses.begin(site) if is_used else None
        self.joined = False
        communication_of(tape).log(window.reverse).used_by_others = self.used_by_others

    def used_by_others(self) -> bool:
        """Return whether any rank has used the window in epochs of some ranks: all have to take part in the sweep."""
        return self.joined or bool(np.any(self.announcers()))

    def announcers(self) -> np.ndarray:
        """Return which ranks have announced such uses."""
        if self.counted is None:
            return np.zeros(self.window.order.size, bool)
        return self.window.order.uses.by(self.counted, self.sweeps)

    def leave_alone(self) -> None:
        """Note that this rank has closed and swept the tape alone."""
        if self.counted is not None:
            self.window.order.uses.alone(self.counted)
            self.counted = None

    def log(self, tape: Tape, name: str, active: bool, tracked: bool) -> Collective:
        """Log a collective operation of the window."""
        token = Collective(name, self.window.reverse, active, tracked, False)
        communication_of(tape).log(self.window.reverse).add_collective(token)
        return token

    def begin(self, access: Access) -> None:
        """Start an access in a lock epoch."""
        self.announce()
        self.window.incomplete.append((self, access))

    def announce(self) -> None:
        """Announce to the other ranks that the window is used in epochs in which they make no call."""
        if self.announced:
            return
        self.announced = True
        if self.counted is None:
            self.window.order.misuse()
        else:
            self.window.order.uses.announce(self.counted, self.sweeps)

    def visit(self, tape: Tape, rank: int) -> int:
        """Draw a ticket for a load from or store to another rank's memory."""
        self.announce()
        self.token.reads_active = True
        communication_of(tape).log(self.window.reverse).touched = True
        ticket = self.window.order.ticket(rank)
        self.tickets.setdefault(rank, []).append(-ticket)
        return ticket

    def refuse(self, text: str) -> None:
        """Note that the sweep cannot reverse an operation."""
        self.refused = self.refused or f"{text}, {line_of(call_site())}"

    def note_creation(self, tape: Tape) -> None:
        """Record that the window has just been made."""
        self.made = True
        tape.append(Made(self.window, self.token))

    def note_end(self, tape: Tape) -> None:
        """Record that the window has just been freed."""
        self.freed = True
        tape.append(Freed(self.window, self.log(tape, "Free", False, False)))

    def draw(self, rank: int, accesses: list[Access]) -> None:
        """Draw and record a ticket for completed accesses to a target's memory."""
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
        """Return why the window cannot be swept; '' if it can."""
        here = f"rank {self.window.reverse.rank}"
        if self.refused:
            return f"{here}: {self.refused}"
        left = self.window.incomplete + self.window.postponed
        unfinished = [access for trace, access in left if trace is self] + self.accesses
        if unfinished:
            return (
                f"{here}: {unfinished[0].describe()}, belongs to an epoch that is still open; complete it (Fence, "
                "Complete, Unlock or Flush) before computing the gradient"
            )
        epoch = self.access_epoch or self.exposure
        if epoch is not None:
            return f"{here}: {epoch.describe()}, began an epoch that is still open; end it before the sweep"
        return ""


class SecondTrace(Trace):
    """A trace in second order, where tangents are sent beside the operations."""

    __slots__ = ()
    pushes = True

    @property
    def forward(self) -> ForwardTrace:
        """The trace of the tangents."""
        return forward_trace(self.tape(), self.window)  # type: ignore[arg-type]

    def note(self, access: Access, source: Any) -> None:
        """Save the tangent of an operation's origin buffer, before the operation starts."""
        self.forward.note(access, source)

    def push(self, access: Access) -> None:
        """Apply an operation to the target's tangents; see `ForwardTrace`."""
        self.forward.push(access)

    def settle(self) -> None:
        """Complete the operations that are under way."""
        self.forward.settle()


class Traces:
    """The traces of all windows on a tape; called at the beginning of each sweep."""

    __slots__ = ("observer", "of")

    def __init__(self, tape: Tape) -> None:
        self.of: dict[Window, Trace] = {}
        of, reference = self.of, tape.reference
        self.observer = Observer(tape, lambda window, rank: of[window].visit(reference(), rank))

    def used(self) -> list[Storage]:
        """Return the memory of windows that this rank has used, or knows that others have, while the tape recorded."""
        used: list[Storage] = []
        for window, trace in self.of.items():
            tape = trace.tape()
            if tape is None:
                continue
            is_misused = trace.counted is None and window.order.is_misused()
            if is_misused or not communication_of(tape).log(window.reverse).is_unused():
                used += trace.attached if window.storage is None else [window.storage]
        return used

    def __call__(self, sweep: Sweep) -> None:
        """Expose adjoints (in a walk, tangents) of window memory; collective over each window that was used."""
        shadow_for, turns_for = (walked, ForwardTurns) if isinstance(sweep, Push) else (Shadow, Turns)
        lanes = lanes_of(sweep)  # each has its own shadow of a window; they share the turns
        shadows: list[dict[Window, Any]] = [{} for _ in lanes]
        openings: dict[Window, Callable[[], None]] = {}
        passing: set[Window] = set()
        for lane, mine in zip(lanes, shadows):
            lane.state["windows"], lane.state["opened windows"], lane.state["passing windows"] = mine, openings, passing
        sweep.at_end(lambda error: close_all(shadows, error))
        logs = communication_of(sweep.tape).logs
        happening = {}
        for window, trace in self.of.items():
            if trace.token.happening:
                happening[window] = trace
            elif (log := logs.get(window.reverse)) is not None:
                if not sweep.tape.closed:
                    log.agreed_collectives = 0, 0  # the token may change until the next sweep
                    continue
                del logs[window.reverse]  # later uses by others do not concern this tape
                if log.agreed_collectives == (0, 0):
                    trace.leave_alone()
        is_untouched = all(log.is_untouched() for log in logs.values())
        facts = {window: _agreed(trace, is_untouched) for window, trace in happening.items()}
        for trace in self.of.values():
            trace.sweeps += 1
        problems = [text for window, (wrong, *_) in facts.items() if wrong for text in _problems(happening[window])]
        if problems:
            raise CommunicationError("\n".join(problems))
        drawn = any(tickets for _, tickets, *_ in facts.values())
        history = History(sweep.tape.records, logs.values()) if drawn else None
        orders = []
        for window, trace in happening.items():
            _, has_tickets, is_made, is_freed = facts[window]
            later = is_freed and not isinstance(sweep, Push)
            if not later:
                for lane, mine in zip(lanes, shadows):
                    mine[window] = shadow_for(lane, window, trace.attached)
            order = None
            if has_tickets:
                touched = not later and any(mine[window].is_touched() for mine in shadows)
                order = turns_for(window, trace.tickets, self._seen(window), touched, history)
                orders.append(order)
            follow = partial(_follow, sweep, window, order)
            if not later:
                follow()
                continue
            openings[window] = partial(_open, sweep, window, trace, follow)
            if is_made:
                passing.add(window)
        problems = list(dict.fromkeys(text for order in orders for text in order.problems))
        if problems:
            raise CommunicationError("\n".join(problems))

    def _seen(self, window: Window) -> int:
        """Return the number of tickets for this rank's memory that its tape knows of."""
        seen = self.observer.seen.get(window)
        return self.observer.last[window] if seen is None else seen


def _open(sweep: Sweep, window: Window, trace: Trace, follow: Callable[[], None]) -> None:
    """In a sweep: expose the adjoint of a window's memory at the mirror of its Free; collective over it."""
    for lane in lanes_of(sweep):
        lane.state["windows"][window] = Shadow(lane, window, trace.attached)
    follow()


def _follow(sweep: Sweep, window: Window, order: Any) -> None:
    """Start the turns of accesses to a window's memory; collective over it."""
    if order is None:
        return
    order.open()
    lanes = lanes_of(sweep)
    shadows = [lane.state["windows"][window] for lane in lanes]
    for lane, shadow in zip(lanes, shadows):
        shadow.follow(lane, order)
    order.attend(sweep, shadows)


def _agreed(trace: Trace, is_untouched: bool) -> tuple[bool, bool, bool, bool]:
    """Return whether any rank has a problem, any has drawn tickets, all have made the window, and all have freed it.

    ``is_untouched``: this rank takes part in the sweep only because others have announced uses.
    """
    reverse, order = trace.window.reverse, trace.window.order
    announced = trace.announcers() if is_untouched and not trace.joined else None
    trace.joined = True
    mine = np.array(
        [bool(trace.problem()), bool(trace.tickets), trace.made, trace.freed, *(trace.counted or (0, 0, 0, 0))]
    )
    facts = np.empty((order.size, len(mine)), mine.dtype)
    wait(reverse.comm.Iallgather(mine, facts), lambda: f"the beginning of the sweep in {reverse.name}", reverse)
    fits = np.array([trace.counted is None or order.uses.agree(trace.counted, facts[:, 4:], announced)])
    request = reverse.comm.Iallreduce(mpi.IN_PLACE, fits, mpi.LAND)
    wait(request, lambda: f"the beginning of the sweep in {reverse.name}", reverse)
    if not fits:
        raise CommunicationError(
            f"the ranks of {reverse.name} sweep different tapes; ask for gradients in the same order on all of them, "
            "and for those of tapes that only some ranks have right after recording them"
        )
    problem, tickets, made, freed = facts[:, :4].astype(bool).T
    return bool(problem.any()), bool(tickets.any()), bool(made.all()), bool(freed.all())


def _problems(trace: Trace) -> list[str]:
    return [text for text in trace.window.reverse.comm.allgather(trace.problem()) if text]


def trace_of(tape: Tape, window: Window, site: int = 0, is_new: bool = False) -> Any:
    """Return the trace of a window, which may be new, on a tape that records."""
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
        trace = traces.of[window] = kind(tape, window, site)  # type: ignore[attr-defined]
        if is_new and recording() is not None:
            trace.note_creation(tape)
        traces.observer.watch(window)  # type: ignore[attr-defined]
        for storage in trace.attached if window.storage is None else (window.storage,):
            activate(storage, tape)
    return trace


def _forward(tape: Tape, window: Window) -> Any:
    """Return the trace of a window in forward mode."""
    trace = forward_trace(tape, window)
    for storage in () if window.storage is None else (window.storage,):
        activate(storage, tape)
    return trace


def window_freed(window: Window) -> None:
    """Record on the open tape that a window has been freed; collective over it."""
    tape = tape_of(window)
    if tape is None:
        return
    if push_of(tape) is not None:
        close_shadow(tape, window)
    traces = None if tape.forward is not None else tape.sweep_starts.get("windows")
    trace = None if traces is None else traces.of.get(window)  # type: ignore[attr-defined]
    if trace is not None:
        traces.observer.leave(window)  # type: ignore[union-attr, attr-defined]
        if recording() is not None:
            trace.note_end(tape)


def activate(storage: Storage, tape: Tape) -> None:
    """Mark window memory as active: others may write active values into it unseen.

    Memory that is active on an outer tape stays so: it may hold values that were computed there.
    """
    other = None if storage.tape is None else storage.tape()
    if other is None or not is_around(other):
        tape.set_active(storage)


def require_innermost(tape: Tape, window: Window) -> None:
    """Raise an error if a window of an outer tape is used on an inner tape, where the outer tape would not see it.

    Steps of time loops, which have their own tapes, are checked by the loop.
    """
    if tape.of_step:
        return
    for outer in around():
        traces = None if outer is tape else outer.sweep_starts.get("windows")
        if traces is not None and window in traces.of:
            raise ActivityError(
                f"{where_called()}: {window.reverse.name} is used inside an inner tape, and was made before it on an "
                "outer tape, which would not see the changes of its memory; make the window inside the inner tape"
            )


def _begin(tape: Tape) -> None:
    """Trace the existing windows on a tape that starts to record: others may use them without a call of this rank."""
    if tape.forward is not None or not windows:
        return
    site = zlib.crc32("\n".join(map(line_of, call_sites())).encode()) >> 1
    for window in list(windows.values()):
        if window.thread is tape.owner and not window.reverse.broken:
            trace_of(tape, window, site)


def _end(tape: Tape) -> None:
    """Complete the traces of a tape that stops recording."""
    if tape.observer is not None:
        tape.observer.close()
    traces = tape.sweep_starts.get("windows")
    if traces is not None:
        logs = communication_of(tape).logs
        for window, trace in traces.of.items():  # type: ignore[attr-defined]
            if trace.sweeps and window.reverse in logs and logs[window.reverse].is_unused():
                trace.leave_alone()


at_opening.append(_begin)
at_closing.append(_end)
