"""What the ranks agree on at the beginning of a sweep: which messages and collectives carry an adjoint back.

While a tape records, every message and every collective on an ampi communicator is logged on the tape, active or not. A
receiver cannot know whether what it received was active, nor a sender whether it arrived in tracked memory. At the
beginning of a sweep each pair of ranks that exchanged messages therefore exchanges the lists of them, and each
communicator the list of its collectives; all then know for each whether an adjoint travels back, and under which tag.

Messages are matched as MPI matched them: two messages of one sender with one tag on one communicator are received in
the order in which they were sent, by the receives in the order in which those were posted (MPI 4.1, section 3.5).
"""

from __future__ import annotations

import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import CommunicationError
from ..memory import is_power_of_two
from ..recording import opened
from ..tape import Sweep, Tape
from .buffers import Buffer, Composite, arrive
from .messages import (
    ALL,
    Collective,
    Completion,
    LoggedMessage,
    Received,
    Route,
    Sent,
    call_site,
    line_of,
    new_received,
    new_sent,
)
from .reverse import AGREEMENT_TAG, COLLECTIVE_AGREEMENT_TAG, FIRST_TAG, Reverse, name_of, reverse_of
from .rules import TABLE
from .sharing import claim, release, require_alone
from .slots import Slots
from .waiting import Patience, notice_of, outbox_of, running, stranded, tell, wait

__all__ = [
    "begin",
    "call_site",
    "communication_of",
    "line_of",
    "log_collective",
    "log_for",
    "log_received",
    "log_sent",
    "wait",
]

_KEY = "communication"  # of the tape's sweep starts

MOST_PENDING = 64
"""So many receives that may have ended unseen are looked at before each record."""

_WORLD, _Prequest = mpi.COMM_WORLD, mpi.Prequest  # mpi4py's own: the names in its module may be rebound


class Log:
    """What a rank said on one communicator while a tape recorded.

    Attributes
    ----------
    place : object
        The communicator's `Reverse.place`.
    messages : list of LoggedMessage
        In the order of sending and posting.
    collectives : list of Collective
        In the order of the calls.
    passive : int
        Number of collective calls so far inside `ampi.passive`; all ranks must have made as many.
    passively : tuple
        Call site of the last of these.
    """

    __slots__ = (
        "agreed",
        "agreed_collectives",
        "collectives",
        "messages",
        "passive",
        "passively",
        "place",
        "reverse",
        "stirred",
        "touched",
    )

    def __init__(self, reverse: Reverse) -> None:
        self.reverse = reverse
        self.place = None if reverse is None else reverse.place
        self.messages: list[LoggedMessage] = []
        self.collectives: list[Collective] = []
        self.passive = 0
        self.passively: Any = None
        self.agreed: dict[int, tuple[int, int]] = {}
        self.agreed_collectives = 0, 0
        self.touched = False  # of a window: this rank has made calls on it
        self.stirred: Callable[[], bool] | None = None  # of a window: whether others have used it without a call here

    def says_nothing(self) -> bool:
        """Whether there is no more in it than that a window exists."""
        if self.touched or self.messages or self.passive or (self.stirred is not None and self.stirred()):
            return False
        return all(call.name == "Win" for call in self.collectives)

    def partners(self) -> set[int]:
        """Ranks that messages went to or came from."""
        return {message.route.partner for message in self.messages if message.route.partner >= 0}

    def concerned(self) -> set[int] | None:
        """Ranks whose sweeps wait for this rank's; None: all."""
        return None if self.collectives or self.passive else self.partners()

    def by_partner(self) -> tuple[dict[int, list[Sent]], dict[int, list[Received]]]:
        """Messages by destination, in the order of sending, and receives by source, in the order of posting.

        Raises
        ------
        CommunicationError
            A receive has not completed, or nobody saw what it matched.
        """
        sent: defaultdict[int, list[Sent]] = defaultdict(list)
        received: defaultdict[int, list[Received]] = defaultdict(list)
        for message in self.messages:
            if message.cancelled:
                message.back = None
            elif isinstance(message, Sent):
                sent[message.route.partner].append(message)
            else:
                _check_completed(message)
                received[message.route.partner].append(message)
        return sent, received


def _check_completed(receive: Received) -> None:
    if receive.request is not None:
        if not receive.completed():
            raise CommunicationError(
                f"rank {receive.reverse.rank}: {receive.describe()} was never completed: "
                "wait for the request before the gradient is asked for"
            )
        receive.request = None  # completed through a class of mpi4py's that ampi does not see
    if receive.route.partner == mpi.ANY_SOURCE:
        raise CommunicationError(
            f"rank {receive.reverse.rank}: which message {receive.describe()} matched is not known because its "
            "request was completed by mpi4py's own class; import Request from mpi4py.MPI after `import ampi` or from "
            "ampi.MPI"
        )


class Communication:
    """All that a rank said while a tape recorded; called at the beginning of each sweep to agree with the others.

    Attributes
    ----------
    logs : dict
        One for each communicator.
    pending : list
        Receives into tracked memory with all those that have not been seen to complete, whose ``request`` is not None.
        Programs can complete a request unseen, through a class of mpi4py's that they imported before ampi.
    unwatched : list
        The same of those that were posted while `MOST_PENDING` were pending: they must be seen to complete, for to look
        at all of them before each record would take time that grows with their number.
    unseen : dict
        Receives that had not been seen to complete when a sweep began.
    """

    __slots__ = ("logs", "pending", "tape", "unseen", "unwatched")

    def __init__(self, tape: Tape) -> None:
        self.logs: dict[Reverse, Log] = {}
        self.pending: list[Received] = []
        self.unwatched: list[Received] = []
        self.unseen: dict[Received, None] = {}
        self.tape = weakref.ref(tape)

    def enter(self, receive: Received) -> None:
        """A receive has been posted that its request will complete."""
        if len(self.pending) < MOST_PENDING or self.forget():
            self.pending.append(receive)
            return
        if is_power_of_two(len(self.unwatched)):
            self.unwatched = [other for other in self.unwatched if other.request is not None]
        self.unwatched.append(receive)

    def look(self) -> None:
        """Record the completion of receives that ended unseen, before anything that may use what came."""
        ended = Completion()
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
            receive.resolve(None)
        if ended:
            self.forget()
            self.tape().append_start(ended)  # type: ignore[union-attr]

    def forget(self) -> bool:
        """Drop receives that have been seen to complete; whether some more may be pending now."""
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
        """The log of one communicator."""
        log = self.logs.get(reverse)
        if log is None:
            require_alone(self.tape(), reverse)
            log = self.logs[reverse] = Log(reverse)
        return log

    def __call__(self, sweep: Sweep) -> None:
        """Agree with the other ranks."""
        if all(log.says_nothing() for log in self.logs.values()):
            return  # a gradient of local work must not wait for ranks of a window that it has not touched
        if not sweep.tape.closed:
            self.look()
        self.unseen.update((receive, None) for receive in self.pending if receive.request is not None)
        claim(sweep, self.logs)
        end = running.begin(self.logs)
        sweep.at_end(lambda error: _finish(self, sweep, end, error))
        for log in self.logs.values():
            log.reverse.count(log.concerned())
        for log in self.logs.values():
            for message in log.messages:
                message.flight = None
                message.reverse = log.reverse
        for log in self.logs.values():
            if log.reverse.broken:
                raise CommunicationError(
                    f"rank {log.reverse.rank}: {log.reverse.name} cannot be swept any more, go on with a duplicate, "
                    f"comm.Dup(), made on all its ranks: {log.reverse.broken}"
                )
            log.reverse.ready()
            for call in log.collectives:
                call.passed = False
        self._check_unwatched()
        _agree(self)
        for receive in self.unseen:  # nothing that was recorded uses what came
            receive.begin(sweep)

    def refuse(self, error: BaseException) -> None:
        """This rank's sweep does not begin: tell those who may wait for it."""
        if all(log.says_nothing() for log in self.logs.values()):
            return
        for reverse, log in self.logs.items():
            if reverse.broken or reverse.pending:
                continue
            reverse.count(log.concerned())
            _tell_all(log, error)


def communication_of(tape: Tape) -> Communication:
    """What was said while a tape recorded."""
    communication = tape._sweep_starts.get(_KEY)
    if communication is None:
        communication = Communication(tape)
        tape.at_sweep_start(_KEY, communication)
        tape.at_refusal = communication.refuse
    return communication  # type: ignore[return-value]


def begin(tape: Tape, receive: Received) -> None:
    """A receive has been posted that its request will complete."""
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
    """The log in which an operation on a communicator is entered."""
    try:
        reverse = comm._reverse
    except AttributeError:
        reverse = reverse_of(comm)
    if reverse is None:
        if active:
            kind = "Intercomm" if comm.Is_inter() else "Intracomm"
            raise CommunicationError(
                f"{name} of an active array on {name_of(comm)}, which has no reverse communicator because ampi did not "
                f"see it being made; before recording write `comm = ampi.MPI.{kind}(comm).Dup()` on all its ranks"
            )
        return Log(reverse)  # type: ignore[arg-type]  # goes nowhere
    communication = tape._sweep_starts.get(_KEY) or communication_of(tape)
    if communication.pending:
        for storage in getattr(buffer, "storages", ()):
            if storage is not None and storage.arriving:
                communication.look()
                break
    log = communication.logs.get(reverse) or communication.log(reverse)
    tape.latest = comm, log, communication
    return log


def log_sent(
    tape: Tape, name: str, comm: Any, buffer: Any, active: bool, dest: int, tag: int, kind: type[Sent] = Sent
) -> Any:
    """Log a message; in the order of the calls that send.

    Parameters
    ----------
    buffer : Buffer
        Needs ``count``, ``dtype`` and ``nbytes``, and ``add(sweep, flat)`` in the sweep if it is active.
    """
    log = log_for(tape, name, comm, active, buffer)
    sent = new_sent(kind, buffer, active, Route(name, log.place, dest, tag, False, call_site(3)))
    log.messages.append(sent)
    return sent


def log_received(
    tape: Tape,
    name: str,
    comm: Any,
    buffer: Any,
    tracked: bool,
    source: int,
    tag: int,
    kind: type[Received] = Received,
) -> Any:
    """Log a receive; in the order of the calls that post (for a matched probe: the probe).

    Parameters
    ----------
    buffer : Buffer
        Needs ``count`` and ``dtype``; in the sweep, if it is tracked, ``within(nbytes)`` with ``zero(sweep)`` and
        ``take(sweep)``.
    """
    # On a communicator without a reverse side, no active values can have been sent.
    log = log_for(tape, name, comm, False, buffer)
    receive = new_received(
        kind, buffer, tracked, Route(name, log.place, source, tag, source == mpi.ANY_SOURCE, call_site(3))
    )
    log.messages.append(receive)
    return receive


def log_collective(
    tape: Tape,
    comm: Any,
    name: str,
    reads_active: bool,
    writes_tracked: bool,
    loses: bool = False,
    certain: bool = True,
    kind: type[Collective] = Collective,
) -> Any:
    """Log a collective call of this rank on a communicator of ours; every rank calls it, in the order of its calls.

    Parameters
    ----------
    comm : ampi.mpi.comm.Comm
    name : str
        mpi4py's name of the operation (the blocking form's for all forms); the ranks must agree on it.
    reads_active : bool
        This rank contributes active values.
    writes_tracked : bool
        This rank receives into tracked floating-point memory.
    loses : bool
        This rank receives into memory that is not tracked, where a derivative would be lost.
    certain : bool
        The values that it contributes are not just bytes which may hold active ones.

    Returns
    -------
    Collective
        ``token.reverse.comm`` is the communicator for the reverse traffic, ``token.happens(sweep)`` the agreement.
    """
    log = log_for(tape, name, comm, reads_active)
    collective = kind(name, log.reverse, reads_active, writes_tracked, loses, certain)
    collective.after = log.passive
    log.collectives.append(collective)
    return collective


def count_passive(comm: Any) -> None:
    """A collective call inside `ampi.passive`: it must be there on all ranks."""
    tape, reverse = opened(), reverse_of(comm)
    if tape is not None and reverse is not None:
        log = communication_of(tape).log(reverse)
        log.passive += 1
        log.passively = call_site()


# -------------------------------------------------------------------------------------------------- the agreement

_ACTIVE = 1
_DROPPED = 2  # received inside ampi.passive: the derivative is dropped on purpose
_PACKED = 4  # a message of bytes: its adjoint has a number for each
_UNCERTAIN = 8  # bytes of which it is not known whether they hold active values


def _agree(communication: Communication) -> None:
    """Exchange the logs with all partners at once, in no particular order; then compare them."""
    problems: list[str] = []
    exchanges = []
    for log in communication.logs.values():
        sent_to, received_from = log.by_partner()
        for partner in sorted(sent_to.keys() | received_from.keys()):
            sent, got = sent_to[partner], received_from[partner]
            if log.agreed.get(partner) != (len(sent), len(got)):
                exchanges.append(_agree_messages(log, partner, sent, got, problems))
        if log.agreed_collectives != (len(log.collectives), log.passive):
            exchanges.append(_agree_collectives(log, problems))
    _drive(exchanges, problems)
    if problems:
        raise CommunicationError("\n".join(problems))


_AFTER_A_PROBLEM = 1.0  # seconds


class _Exchange:
    """An exchange in steps: a generator that yields while it waits, and what it is, for error messages."""

    __slots__ = ("describe", "steps")

    def __init__(self, steps: Generator[None], describe: Callable[[], str]) -> None:
        self.steps = steps
        self.describe = describe


def _drive(exchanges: list[_Exchange], problems: list[str]) -> None:
    """Go on with all exchanges until they have ended, or for a moment only if there are problems.

    A rank that sees a problem may be one that others have nothing to tell.
    """
    patience = Patience()
    try:
        while exchanges:
            waiting = [exchange for exchange in exchanges if not _finished(exchange)]
            if len(waiting) < len(exchanges):
                patience = Patience()
            exchanges = waiting
            if exchanges and problems and patience.waited() > _AFTER_A_PROBLEM:
                raise CommunicationError("\n".join(problems))
            if exchanges:
                patience.pause(exchanges[0].describe)
    except BaseException:
        stranded.extend(exchanges)
        raise


def _finished(exchange: _Exchange) -> bool:
    for _ in exchange.steps:
        return False
    return True


def _agree_messages(log: Log, partner: int, sent: list[Sent], got: list[Received], problems: list[str]) -> _Exchange:
    """Exchange with one partner the messages sent to it and received from it."""

    def steps() -> Generator[None]:
        reverse = log.reverse
        header = reverse.identity, len(sent), reverse.sweep_with(partner)
        mine = np.array([header, *map(_sent_row, sent), *map(_received_row, got)], np.int64)
        request = reverse.comm.Isend(mine, partner, AGREEMENT_TAG)
        theirs = yield from _told(reverse, reverse.comm, partner, AGREEMENT_TAG, 3)
        n_sent, sweeps = theirs[0, 1:].tolist()
        if sweeps != header[2]:
            problems.append(_other_sweeps(reverse, header[2], f"rank {partner} {sweeps}"))
        _match(reverse, partner, sent, theirs[1 + n_sent :].tolist(), problems)
        _match_received(reverse, partner, got, theirs[1 : 1 + n_sent].tolist(), problems)
        while not request.Test():
            yield
        log.agreed[partner] = len(sent), len(got)

    def describe() -> str:
        first = (sent or got)[0].describe()
        return f"the agreement with rank {partner} about {len(sent) + len(got)} messages, the first of which is {first}"

    return _Exchange(steps(), describe)


def _told(reverse: Reverse, comm: mpi.Comm, source: int, tag: int, width: int) -> Generator[None, None, np.ndarray]:
    """What a rank says in the agreement of this communicator: rows of integers, the first one begins with whose."""
    status = mpi.Status()
    while True:
        while (message := comm.Improbe(source, tag, status)) is None:
            yield
        theirs = np.empty((status.Get_count(mpi.INT64_T) // width, width), np.int64)
        message.Recv(theirs)
        if theirs[0, 0] == reverse.identity:
            return theirs


def _other_sweeps(reverse: Reverse, sweeps: int, others: str) -> str:
    return (
        f"rank {reverse.rank}: on {reverse.name} this rank has begun {sweeps} sweeps, {others}: ask for as many "
        "gradients on each rank; go on with a duplicate of the communicator, comm.Dup(), made on all its ranks"
    )


def _sent_row(sent: Sent) -> tuple[int, int, int]:
    if not sent.active:
        return sent.route.tag, sent.nbytes, 0
    uncertain = _UNCERTAIN if sent.buffer.packed and sent.buffer.uncertain() else 0
    return sent.route.tag, sent.nbytes, _ACTIVE | uncertain | _form(sent.buffer)


def _received_row(got: Received) -> tuple[int, int, int]:
    if not got.active:
        return got.route.tag, 0, _DROPPED if got.dropped else 0
    return got.route.tag, getattr(got, "parts", 0), _ACTIVE | _form(got.buffer)


def _form(buffer: Any) -> int:
    """How the adjoint of a message travels: flag of a message of bytes, and size of a real number."""
    return (_PACKED if buffer.packed else 0) | _real(buffer.dtype) << 8


def _same_form(message: Sent | Received, theirs: int) -> bool:
    """See a message of elements as bytes if the partner does; False if it is one of other elements there."""
    if theirs & _PACKED and not message.buffer.packed:
        if not isinstance(message.buffer, Buffer):
            return False
        message.buffer = Slots(message.buffer)
    return bool(message.buffer.packed) or theirs >> 8 == _real(message.buffer.dtype)


def _real(dtype: np.dtype) -> int:
    """Size of a real number of a dtype: a complex number may be received as two real ones."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _loses(receive: Received) -> bool:
    """Whether some of what came is in memory that is not tracked."""
    if not receive.active:
        return True
    return isinstance(receive.buffer, Composite) and receive.buffer.within(receive.nbytes).loses


def _pair(sent: list[int], posted: list[int]) -> list[int]:
    """Which message each receive has got, for the messages of one sender to one receiver.

    Messages in the order of sending and receives in the order of posting go together as MPI says they do, whenever they
    met: the first receive has the first message that it accepts, and so on.

    Parameters
    ----------
    sent, posted : list of int
        Tags; a posted one may be ANY_TAG.

    Returns
    -------
    list of int
        For each receive the number of its message, or -1.
    """
    waiting: dict[int, list[int]] = {}
    for k in range(len(sent) - 1, -1, -1):
        waiting.setdefault(sent[k], []).append(k)
    gone = [False] * len(sent)
    first = 0
    pairs = []
    for tag in posted:
        queue = waiting.get(tag)
        if tag == mpi.ANY_TAG:
            while first < len(sent) and gone[first]:
                first += 1
            k = first if first < len(sent) else -1
            if k >= 0:
                waiting[sent[k]].pop()  # the first one left of its tag
        else:
            k = queue.pop() if queue else -1
        if k >= 0:
            gone[k] = True
        pairs.append(k)
    return pairs


def _match(reverse: Reverse, partner: int, sent: list[Sent], theirs: list[list[int]], problems: list[str]) -> None:
    """Find out which of the messages sent to a partner have an adjoint that comes back."""
    here = f"rank {reverse.rank}"
    pairs = _pair([message.route.tag for message in sent], [tag for tag, _, _ in theirs])
    flags_of = {k: flags for k, (_, _, flags) in zip(pairs, theirs) if k >= 0}
    parts_of = {k: parts for k, (_, parts, _) in zip(pairs, theirs) if k >= 0}
    for position, message in enumerate(sent):
        message.back = None
        if not message.active:
            continue
        flags = flags_of.get(position)
        if flags is None and message.buffer.packed and message.buffer.uncertain():
            continue
        if flags is None:
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} did not receive it while its "
                "tape recorded"
            )
        elif flags & _ACTIVE:
            if not _same_form(message, flags):
                problems.append(f"{here}: {message.describe()} of {message.buffer.dtype} is received as another dtype")
            message.back = FIRST_TAG + position % reverse.tags
            if parts_of[position]:
                message.parts_there = parts_of[position]  # type: ignore[attr-defined]
        elif not flags & _DROPPED and not (message.buffer.packed and message.buffer.uncertain()):
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} receives it into memory that "
                "is not tracked; make its receive buffer with ampi.numpy, or send ampi.value(...)"
            )
    active = {message.route.tag for message in sent if message.active}
    extra = [tag for k, (tag, _, _) in zip(pairs, theirs) if k < 0 and (tag in active or (active and tag < 0))]
    if extra:
        problems.append(
            f"{here}: rank {partner} received {len(extra)} messages more with tag {extra[0]} than this rank sent on "
            f"{reverse.name} while its tape recorded; which ones carry derivatives is not known"
        )


def _match_received(
    reverse: Reverse, partner: int, got: list[Received], theirs: list[list[int]], problems: list[str]
) -> None:
    """Find out which of the messages received from a partner have an adjoint to be sent back, and its length."""
    here = f"rank {reverse.rank}"
    pairs = _pair([tag for tag, _, _ in theirs], [receive.route.tag for receive in got])
    active = {tag for tag, _, flags in theirs if flags & _ACTIVE}
    missing = dict(enumerate(theirs))
    for position, receive in zip(pairs, got):
        receive.back, receive.nbytes = None, ALL
        if position < 0:
            tag = receive.route.tag
            if tag in active or (active and tag < 0):
                problems.append(f"{here}: {receive.describe()} was not sent while rank {partner}'s tape recorded")
            continue
        tag, nbytes, flags = missing.pop(position)
        receive.nbytes = nbytes
        if not flags & _ACTIVE:
            continue
        if receive.active:
            if not _same_form(receive, flags):
                problems.append(f"{here}: {receive.describe()} as {receive.buffer.dtype} was sent as another dtype")
            receive.back = FIRST_TAG + position % reverse.tags
        if not receive.dropped and not flags & _UNCERTAIN and _loses(receive):
            problems.append(
                f"{here}: {receive.describe()} brings a derivative, but into memory that is not tracked; make the "
                "receive buffer with ampi.numpy, or receive it inside `with ampi.passive():`"
            )
    for tag, _, flags in missing.values():
        if flags & _ACTIVE and not flags & _UNCERTAIN:
            problems.append(
                f"{here}: rank {partner} sent a message that carries a derivative with tag {tag} on {reverse.name}, "
                "which this rank did not receive while its tape recorded"
            )


def _agree_collectives(log: Log, problems: list[str]) -> _Exchange:
    """Find out with all ranks of a communicator which of its collectives are reversed."""
    calls = log.collectives

    def steps() -> Generator[None]:
        n, sweeps = len(calls), log.reverse.sweeps
        facts = np.zeros((1 + n, 7), np.int64)
        facts[0] = log.reverse.identity, n, -n, sweeps, -sweeps, log.passive, -log.passive
        for k, call in enumerate(calls, 1):
            code = _code(call.name)
            active = call.reads_active * (1 + call.certain)
            facts[k] = code, -code, active, call.writes_tracked, call.loses, call.after, -call.after
        facts = yield from _most(log.reverse, facts)
        signs = (1, 1, -1, 1, -1, 1, -1)
        _, most, least, most_sweeps, least_sweeps, most_passive, least_passive = (facts[0] * signs).tolist()
        if most_sweeps != least_sweeps:
            problems.append(_other_sweeps(log.reverse, sweeps, f"others {least_sweeps} to {most_sweeps}"))
            return
        for k in range(least):
            call = calls[k]
            code = _code(call.name)
            high, low, active, tracked, lost, most_before, least_before = facts[1 + k].tolist()
            if high != code or low != -code:
                other = _name_of(high if high != code else -low)
                problems.append(
                    f"rank {log.reverse.rank}: where this rank called {call.describe()}, another called {other}"
                )
                return
            if most_before != -least_before:
                problems.append(
                    f"rank {log.reverse.rank}: before this rank called {call.describe()}, it had made {call.after} "
                    f"collective calls inside ampi.passive(), other ranks {-least_before} to {most_before}; a "
                    "collective call must be inside it on all ranks or on none"
                )
                return
            call.happening = bool(active and tracked)
            if active > 1 and lost:
                who = "this rank" if call.loses else "another rank"
                problems.append(
                    f"rank {log.reverse.rank}: {call.describe()} carries a derivative, but {who} receives it into "
                    "memory that is not tracked; make the receive buffer with ampi.numpy, or send ampi.value(...)"
                )
        if most_passive != least_passive:
            last = "" if log.passively is None else f" (the last one at {line_of(log.passively)})"
            first = f"; {calls[least].describe()} is not" if n > least else ""
            problems.append(
                f"rank {log.reverse.rank}: {log.passive} collective calls of this rank on {log.reverse.name}{last} are "
                f"inside ampi.passive(), {least_passive} to {most_passive} of others{first}; a collective call must be "
                "inside it on all ranks or on none"
            )
            return
        if most > least:
            extra = f"; the first one that misses on another is {calls[least].describe()}" if n > least else ""
            problems.append(
                f"rank {log.reverse.rank}: {n} collective calls were recorded on {log.reverse.name}, "
                f"but {least} to {most} on other ranks{extra}"
            )
            return
        log.agreed_collectives = n, log.passive

    def last_call() -> str:
        return calls[-1].describe() if calls else f"inside ampi.passive(), {line_of(log.passively)}"

    return _Exchange(
        steps(),
        lambda: f"the agreement about {len(calls) + log.passive} collective calls, the last of which is {last_call()}",
    )


def _most(reverse: Reverse, mine: np.ndarray) -> Generator[None, None, np.ndarray]:
    """Elementwise maximum over all ranks, of both groups of an intercommunicator, of as many rows as the shortest has.

    In messages, which can be told from those that a sweep left behind; MPI's collectives cannot.
    """
    if not reverse.comm.Is_inter():
        return (yield from _most_of_group(reverse, reverse.comm, mine))
    mine = yield from _most_of_group(reverse, reverse.local, mine)
    size, others = reverse.local.Get_size(), reverse.comm.Get_remote_size()
    dests = range(reverse.rank, others, size)
    going = [reverse.comm.Isend(mine, dest, COLLECTIVE_AGREEMENT_TAG) for dest in dests]
    source = reverse.rank % others
    theirs = yield from _told(reverse, reverse.comm, source, COLLECTIVE_AGREEMENT_TAG, mine.shape[1])
    for request in going:
        while not request.Test():
            yield
    return _higher(mine, theirs)


def _most_of_group(reverse: Reverse, comm: mpi.Intracomm, mine: np.ndarray) -> Generator[None, None, np.ndarray]:
    """After k rounds a rank knows of the 2^k ranks up to its own (dissemination: a maximum may count a rank twice)."""
    rank, size = comm.Get_rank(), comm.Get_size()
    going = []
    distance = 1
    while distance < size:
        going.append(comm.Isend(mine, (rank + distance) % size, COLLECTIVE_AGREEMENT_TAG))
        source = (rank - distance) % size
        mine = _higher(mine, (yield from _told(reverse, comm, source, COLLECTIVE_AGREEMENT_TAG, mine.shape[1])))
        distance *= 2
    for request in going:
        while not request.Test():
            yield
    return mine


def _higher(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    rows = min(len(mine), len(theirs))
    return np.maximum(mine[:rows], theirs[:rows])


def _code(name: str) -> int:
    """A positive number for an operation's name, the same on all ranks."""
    return zlib.crc32(name.encode()) + 1


def _name_of(code: int) -> str:
    names = (operation.name for operation in TABLE.values())
    return next((name for name in names if _code(name) == code), "another operation")


def _finish(communication: Communication, sweep: Sweep, end: Callable[[], list], error: BaseException | None) -> None:
    """At the end of a sweep: deliver everything, or tell everybody who might wait that this rank has stopped."""
    if error is None:
        outbox_of(sweep).flush()
        end()
        release(sweep)
        return
    stranded.extend(end())
    release(sweep)
    text = notice_of(error)
    stranded.append(outbox_of(sweep).flights)
    for reverse, log in communication.logs.items():
        reverse.broken = reverse.broken or text
        stranded.extend(message.flight for message in log.messages if isinstance(message, Sent) and message.flight)
        _tell_all(log, error)


def _tell_all(log: Log, error: BaseException) -> None:
    reverse = log.reverse
    partners = log.concerned()
    if partners is None:
        partners = set(range(reverse.partners))
    if not reverse.comm.Is_inter():
        partners.discard(reverse.rank)
    tell(reverse, partners, error)
