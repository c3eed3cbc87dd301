"""Message log: the messages, receives and collective calls of a rank on each communicator while a tape recorded.

Every message and every collective on an ampi communicator is logged, active or not: a receiver cannot know whether a
message was active, nor a sender whether it arrived in tracked memory.  At the start of a sweep the ranks
compare their logs (`agreement`).
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ...memory.storages import is_power_of_two
from ...tape import Push, Sweep, Tape
from ...tape.recording import opened
from ..base.call_sites import call_site, name_of
from ..memory.buffers import Buffer, arrive
from ..memory.message_memory import AdjointMemory
from ..waiting.notices import across, neighbours, notice_of, stranded, tell
from ..waiting.waiting import outbox_of, running
from .agreement import agree
from .early import Early
from .messages import (
    ALL,
    Collective,
    Completion,
    LateCompletion,
    LoggedMessage,
    Received,
    Route,
    Sent,
)
from .ownership import claim, release, require_alone
from .reverse import Reverse, reverse_of

_Prequest, _WORLD = mpi.Prequest, mpi.COMM_WORLD  # mpi4py's own: its names may be rebound


_KEY = "communication"  # of the tape's sweep starts
communication_classes: dict[str, Any] = {}
"""The class of a tape's communication: ``"reverse"`` (`Communication`), ``"forward"``, ``"second"``."""
MOST_PENDING = 64
"""The number of receives that may have ended unseen, and are tested before each record."""


class Log:
    """The communication of a rank on one communicator while a tape recorded.

    Attributes
    ----------
    place : object
        The communicator's `Reverse.place`.
    messages : list of LoggedMessage
        In the order of sending and posting.
    collectives : list of Collective
        In the order of the calls.
    add_message, add_collective : callable
        Append to these; in forward mode and second order they first send the tangents.
    passive : int
        Number of collective calls so far inside `ampi.passive`; all ranks must have made as many.
    passively : tuple
        Call site of the last of these.
    """

    __slots__ = (
        "add_collective",
        "add_message",
        "agreed",
        "agreed_collectives",
        "alike",
        "collectives",
        "messages",
        "passive",
        "passively",
        "place",
        "returned",
        "reverse",
        "touched",
        "used_by_others",
    )

    def __init__(self, reverse: Reverse) -> None:
        self.reverse = reverse
        self.place = None if reverse is None else reverse.place
        self.messages: list[LoggedMessage] = []
        self.collectives: list[Collective] = []
        self.add_message: Callable[[Any], None] = self.messages.append
        self.add_collective: Callable[[Any], None] = self.collectives.append
        self.passive = 0
        self.passively: Any = None
        self.returned: Any = None  # the result of this rank, to be summed over ranks
        self.alike = False  # all ranks have returned the same result
        self.agreed: dict[int, tuple[int, int]] = {}
        self.agreed_collectives = 0, 0
        self.touched = False  # of a window: this rank has made calls on it
        self.used_by_others: Callable[[], bool] | None = None  # of a window: without a call here

    def is_unused(self) -> bool:
        """Return True if a window was made at most, and no rank has used it."""
        return self.is_untouched() and not (self.used_by_others is not None and self.used_by_others())

    def is_untouched(self) -> bool:
        """Return True if this rank has at most made a window, which others may use."""
        if self.touched or self.messages or self.passive:
            return False
        return all(call.name in ("Win", "Free") for call in self.collectives)

    def partners(self) -> set[int]:
        """Return the ranks with which messages were exchanged: their sweeps and this rank's belong together."""
        return {message.route.partner for message in self.messages if not message.void and message.route.partner >= 0}

    def concerned(self) -> set[int] | None:
        """Return the ranks whose sweeps wait for this rank's; None: all."""
        return None if self.collectives or self.passive else self.partners()

    def spread(self, error: BaseException) -> None:
        """Tell partners why this rank has stopped; they pass it on to all ranks that wait for it, directly or not."""
        reverse, told = self.reverse, self.partners()
        if self.concerned() is None:
            told |= self._to_inform()
        if not reverse.comm.Is_inter():
            told.discard(reverse.rank)
        tell(reverse, told, error)

    def _to_inform(self) -> set[int]:
        """Return the ranks to inform that this one has stopped, if collectives have been recorded."""
        reverse = self.reverse
        between = reverse.comm.Is_inter()
        # Others wait in the first one that this rank has not begun, or have gone on to earlier ones of the program.
        root = next((call.root for call in reversed(self.collectives) if call.happening and not call.passed), None)
        if root == (mpi.ROOT if between else reverse.rank):
            return set(range(reverse.partners))
        told = set() if root is None or root < 0 else {root}
        if between:
            return told | across(reverse.rank, reverse.local.Get_size(), reverse.partners)  # type: ignore[union-attr]
        return told | neighbours(reverse.rank, reverse.partners)

    def prepare(self) -> None:
        """Reset the log at the start of a sweep."""
        for message in self.messages:
            message.flight = None
            message.reverse = self.reverse
            if message.request is not None and isinstance(message, Received):
                message.completed()  # or cancelled
        for call in self.collectives:
            call.passed = False

    def by_partner(self) -> tuple[dict[int, list[Sent]], dict[int, list[Received]]]:
        """Return messages by destination, in the order of sending, and receives by source, in the order of posting.

        Raises
        ------
        CommunicationError
            A receive has not completed, or it is not known which message it matched.
        """
        sent: defaultdict[int, list[Sent]] = defaultdict(list)
        received: defaultdict[int, list[Received]] = defaultdict(list)
        for message in self.messages:
            partner = message.route.partner
            if message.void:
                message.back = None
            elif isinstance(message, Sent):
                sent[partner].append(message)
            else:
                if message.request is not None or partner == mpi.ANY_SOURCE:
                    _check_completed(message)
                received[partner].append(message)
        return sent, received


def _check_completed(receive: Received) -> None:
    if receive.request is not None:
        if not receive.completed():
            raise CommunicationError(
                f"rank {receive.reverse.rank}: {receive.describe()} was never completed: "
                "wait for the request before computing the gradient"
            )
        receive.request = None  # completed through a class of mpi4py's that ampi does not see
    if receive.route.partner == mpi.ANY_SOURCE:
        raise CommunicationError(
            f"rank {receive.reverse.rank}: which message {receive.describe()} matched is not known because its "
            "request was completed by mpi4py's own class; import Request from mpi4py.MPI after `import ampi` or from "
            "ampi.MPI"
        )


class Communication:
    """All communication of a rank while a tape recorded; called at the start of each sweep to agree with other ranks.

    Attributes
    ----------
    logs : dict
        One for each communicator.
    pending : list
        Receives into tracked memory, among them all whose completion ampi has not seen: their ``request`` is not
        None.  A program can complete a request unseen, by way of a class that it imported from mpi4py before ampi.
    unwatched : list
        Receives that were posted while `MOST_PENDING` were pending.  ampi must see their completion: testing all of
        them before each record would take time that grows with their number.
    unseen : dict
        Receives whose completion had not been seen when a sweep began.
    early : Early or None
        The records that this rank made before it watched anything.
    first : int
        The number of records that sweeps skip, since no rank had watched anything.
    """

    __slots__ = ("early", "first", "logs", "pending", "tape", "unseen", "unwatched")

    def __init__(self, tape: Tape) -> None:
        self.logs: dict[Reverse, Log] = {}
        self.pending: list[Received] = []
        self.unwatched: list[Received] = []
        self.unseen: dict[Received, None] = {}
        self.tape = weakref.ref(tape)
        self.first = 0
        self.early: Early | None = None

    def enter(self, receive: Received) -> None:
        """Add a receive that its request will complete."""
        if len(self.pending) < MOST_PENDING or self.forget():
            self.pending.append(receive)
            return
        if is_power_of_two(len(self.unwatched)):
            self.unwatched = [other for other in self.unwatched if other.request is not None]
        self.unwatched.append(receive)

    def look(self) -> None:
        """Record receives that completed unseen, before any record that may use the received values."""
        ended = LateCompletion()
        left = False
        for receive in reversed(self.pending):  # of two into the same memory, the later one has its adjoint
            request = receive.request
            if request is None:
                continue
            left = True
            if (not request or isinstance(request, _Prequest)) and receive.completed():
                ended.append(receive)
        if not left:
            self.pending.clear()
            self.tape().before_append = None  # type: ignore[union-attr]
            return
        for receive in ended:
            receive.resolve(getattr(receive.request, "arrived", None))
        if ended:
            self.forget()
            self.tape().append_start(ended)  # type: ignore[union-attr]

    def forget(self) -> bool:
        """Drop receives whose completion has been seen; return whether more may be pending now."""
        self.pending[:] = [receive for receive in self.pending if receive.request is not None]
        return len(self.pending) < MOST_PENDING

    def _check_unwatched(self) -> None:
        for receive in self.unwatched:
            if receive.request is not None and receive.completed():
                raise CommunicationError(
                    f"rank {_WORLD.Get_rank()} of the world: {receive.describe()} was completed by mpi4py's own class "
                    f"while more than {MOST_PENDING} requests were outstanding, and what was computed from it is not "
                    "known; import Request from mpi4py.MPI after `import ampi` or from ampi.MPI"
                )

    def log(self, reverse: Reverse) -> Log:
        """Return the log of one communicator."""
        log = self.logs.get(reverse)
        if log is None:
            require_alone(self.tape(), reverse)
            log = self.logs[reverse] = Log(reverse)
        return log

    def __call__(self, sweep: Sweep) -> None:
        """Agree with the other ranks, at the start of a sweep or walk."""
        if isinstance(sweep, Push):
            completed = (record.adjoint for record in sweep.tape.records if isinstance(record.adjoint, Completion))
            sweep.state["completed later"] = {part for parts in completed for part in parts}
        if all(log.is_unused() for log in self.logs.values()):
            return  # a gradient of local work must not wait for ranks of a window that it has not touched
        if not sweep.tape.closed:
            self.look()
        self.unseen.update((receive, None) for receive in self.pending if receive.request is not None)
        claim(sweep, self.logs)
        end = running.begin(self.logs)
        sweep.at_end(lambda error: self._finish(sweep, end, error))
        for lane in sweep.lanes or ():
            lane.state["outbox"] = outbox_of(sweep)
        for log in self.logs.values():
            log.prepare()
            log.reverse.count(log.concerned())
        for log in self.logs.values():
            if log.reverse.broken:
                raise CommunicationError(
                    f"rank {log.reverse.rank}: {log.reverse.name} cannot be swept any more, continue with a duplicate, "
                    f"comm.Dup(), made on all its ranks: {log.reverse.broken}"
                )
            log.reverse.ready()
        self._check_unwatched()
        for log in self.logs.values():
            log.returned = sweep.tape.returned
        if self.early is None or not sweep.tape.closed:
            self.early = Early(sweep.tape, self.logs.values(), bool(self.unseen))
        holds = agree(self.logs.values(), 0 if sweep.lanes is None else len(sweep.lanes), self.early)
        if holds is not None:
            self.first = self.early.settle(holds)
        if isinstance(sweep, Push):
            sweep.state["completed later"].update(self.unseen)
            sweep.at_last.extend(partial(receive.arrive, sweep) for receive in self.unseen)
            return
        sweep.first = self.first
        for receive in self.unseen:  # no record uses the received values
            receive.begin(sweep)

    def _finish(self, sweep: Sweep, end: Callable[[], list], error: BaseException | None) -> None:
        """End a sweep: deliver everything, or tell all ranks that might wait that this rank has stopped."""
        if error is None:
            outbox_of(sweep).flush()
            end()
            release(sweep)
            return
        stranded.extend(end())
        release(sweep)
        text = notice_of(error)
        stranded.append(outbox_of(sweep).flights)
        for reverse, log in self.logs.items():
            reverse.broken = reverse.broken or text
            stranded.extend(message.flight for message in log.messages if isinstance(message, Sent) and message.flight)
            log.spread(error)

    def refuse(self, error: BaseException) -> None:
        """Tell ranks that may wait for this rank's sweep that it does not start."""
        if all(log.is_unused() for log in self.logs.values()):
            return
        for reverse, log in self.logs.items():
            if reverse.broken or reverse.pending:
                continue
            log.prepare()
            reverse.count(log.concerned())
            log.spread(error)


communication_classes["reverse"] = Communication


def communication_of(tape: Tape) -> Communication:
    """Return the communication of a tape."""
    communication = tape.sweep_starts.get(_KEY)
    if communication is None:
        kind = "second" if tape.tangents is not None else "reverse" if tape.forward is None else "forward"
        communication = communication_classes[kind](tape)
        tape.at_sweep_start(_KEY, communication)
        tape.at_refusal = communication.refuse
    return communication  # type: ignore[return-value]


def begin(tape: Tape, receive: Received) -> None:
    """Note that a receive has been posted, which its request will complete."""
    communication = tape.latest[2] or communication_of(tape)
    if tape.before_append is None:
        tape.before_append = communication.look
    communication.enter(receive)
    buffer = receive.buffer
    if type(buffer) is Buffer and buffer.storage is not None:
        buffer.storage.arriving += 1
    else:
        arrive(buffer, 1)


def log_for(tape: Tape, name: str, comm: Any, active: bool, buffer: Any = None) -> Log:
    """Return the log for an operation on a communicator."""
    reverse = reverse_of(comm)
    if reverse is None:
        if active:
            kind = "Intercomm" if comm.Is_inter() else "Intracomm"
            raise CommunicationError(
                f"{name} of an active array on {name_of(comm)}, which has no reverse communicator because it was made "
                f"from mpi4py's own: make it from ampi.COMM_WORLD (or import MPI by `from ampi import MPI`), or write "
                f"`comm = ampi.MPI.{kind}(comm).Dup()` on all its ranks before recording"
            )
        return Log(reverse)  # type: ignore[arg-type]  # belongs to no sweep
    communication = tape.sweep_starts.get(_KEY) or communication_of(tape)
    if communication.pending:
        for storage in getattr(buffer, "storages", ()):
            if storage is not None and storage.arriving:
                communication.look()
                break
    log = communication.logs.get(reverse) or communication.log(reverse)
    tape.latest = comm, log, communication
    return log


def log_sent(
    tape: Tape, name: str, comm: Any, buffer: AdjointMemory, active: bool, dest: int, tag: int, kind: type[Sent] = Sent
) -> Any:
    """Log a message; in the order of the calls that send.

    Parameters
    ----------
    active : bool
        True if the message carries derivatives: it has an adjoint.
    """
    log = log_for(tape, name, comm, active, buffer)
    sent = _new_sent(kind, buffer, active, Route(name, log.place, dest, tag, False, call_site(3)))
    log.add_message(sent)
    return sent


def log_received(
    tape: Tape,
    name: str,
    comm: Any,
    buffer: AdjointMemory,
    tracked: bool,
    source: int,
    tag: int,
    kind: type[Received] = Received,
) -> Any:
    """Log a receive; in the order of the calls that post (for a matched probe: the probe).

    Parameters
    ----------
    tracked : bool
        True if the message may carry derivatives: it may have an adjoint.
    """
    # On a communicator without a reverse side, no active values can have been sent.
    log = log_for(tape, name, comm, False, buffer)
    receive = _new_received(
        kind, buffer, tracked, Route(name, log.place, source, tag, source == mpi.ANY_SOURCE, call_site(3))
    )
    log.add_message(receive)
    return receive


def _new_sent(kind: type[Sent], buffer: AdjointMemory, active: bool, route: Route) -> Any:
    """Make the entry of a message that is sent."""
    sent = kind()
    sent.route = route
    sent.buffer = buffer if active else None
    sent.nbytes = buffer.nbytes
    sent.request = None
    sent.wild = False
    sent.void = False
    sent.back = None
    sent.flight = None
    return sent


def _new_received(kind: type[Received], buffer: AdjointMemory, active: bool, route: Route) -> Any:
    """Make the entry of a receive."""
    receive = kind()
    receive.route = route
    receive.buffer = buffer if active else None
    receive.nbytes = ALL
    receive.request = None
    receive.undo = ()
    receive.wild = route.wild
    receive.void = False
    receive.dropped = False
    receive.back = None
    receive.flight = None
    return receive


def log_collective(
    tape: Tape,
    comm: Any,
    name: str,
    reads_active: bool,
    writes_tracked: bool,
    loses: bool = False,
    certain: bool = True,
    root: int | None = None,
    kind: type[Collective] = Collective,
) -> Any:
    """Log a collective call of this rank on one of ampi's communicators, in the order of the calls.

    Parameters
    ----------
    comm : ampi.mpi.comm.Comm
    name : str
        mpi4py's name of the operation (the blocking form's for all forms); the ranks must agree on it.
    reads_active : bool
        True if this rank contributes active values.
    writes_tracked : bool
        True if this rank receives into tracked floating-point memory.
    loses : bool
        True if this rank receives into memory that is not tracked, where a derivative would be lost.
    certain : bool
        False if its contribution is of bytes that may or may not hold active values.
    root : int, optional
        The rank that all others exchange data with, as given to the call.

    Returns
    -------
    Collective
        The entry; its ``reverse.comm`` is the communicator for the reverse traffic.
    """
    log = log_for(tape, name, comm, reads_active)
    collective = kind(name, log.reverse, reads_active, writes_tracked, loses, certain, root)
    collective.after = log.passive
    log.add_collective(collective)
    return collective


def refused(tape: Tape, collective: Collective, error: BaseException) -> bool:
    """Drop a logged collective that MPI has refused with an error which the program may catch; return whether it has.

    Data that were too long for the memory of a rank may have been moved nevertheless.
    """
    if isinstance(error, mpi.Exception) and error.Get_error_class() == mpi.ERR_TRUNCATE:
        return False
    log = communication_of(tape).logs.get(collective.reverse)
    calls = [] if log is None else log.collectives
    for k in reversed(range(len(calls))):
        if calls[k] is collective:
            del calls[k]
            break
    return True


def note_accesses(tape: Tape | None) -> None:
    """Note which accesses to this rank's window memory precede a collective, whose buffers may lie there."""
    if tape is not None and tape.observer is not None:
        tape.observer.close()


def count_passive(comm: Any) -> None:
    """Count a collective call inside `ampi.passive`; it must be inside it on all ranks."""
    tape, reverse = opened(), reverse_of(comm)
    if tape is not None and reverse is not None:
        log = communication_of(tape).log(reverse)
        log.passive += 1
        log.passively = call_site()
