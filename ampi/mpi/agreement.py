"""What the ranks agree on at the beginning of a sweep: which messages and collectives carry an adjoint back.

While a tape records, every message and every collective on an ampi communicator is logged on the tape, active or not. A
receiver cannot know whether what it received was active, nor a sender whether it arrived in tracked memory. At the
beginning of a sweep each pair of ranks that exchanged messages therefore exchanges the lists of them, and each
communicator the list of its collectives; both sides then know for each whether an adjoint travels back and under which tag.

Messages are matched as MPI matched them: two messages of one sender with one tag on one communicator are received in
the order in which they were sent, by the receives in the order in which those were posted (MPI 4.1, section 3.5).

All waiting in a sweep goes through `wait`: it never hangs.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from .. import tape as _tape
from ..errors import CommunicationError
from ..tape import Sweep, Tape
from .rules import TABLE

# mpi4py's own: the names in its module may be rebound to ours.
_Comm, _Intracomm, _Intercomm, _WORLD = mpi.Comm, mpi.Intracomm, mpi.Intercomm, mpi.COMM_WORLD

_KEY = "communication"  # of the tape's sweep starts
_ABORT_TAG = 0
_AGREE_TAG = 1
_FIRST_TAG = 2
_TEXT = 2000  # bytes of a notice that a rank has stopped

# ------------------------------------------------------------------------------------------- reverse communicators


class Reverse:
    """The reverse side of a communicator: what its adjoint traffic runs on.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The same ranks in a communication context of their own.
    rank : int
    name : str
        For messages.
    tags : int
        Number of tags for adjoints.
    broken : str
        Why no further sweep can use it: an earlier one stopped half-way, and messages of it may still be under way.
    """

    __slots__ = ("broken", "comm", "name", "pending", "rank", "tags")

    def __init__(self, comm: mpi.Comm, rank: int, name: str, pending: mpi.Request | None = None) -> None:
        self.comm = comm
        self.rank = rank
        self.name = name
        self.tags = _tag_limit() - _FIRST_TAG
        self.broken = ""
        self.pending = pending

    @property
    def partners(self) -> int:
        """Number of ranks that a message can go to."""
        return self.comm.Get_remote_size() if self.comm.Is_inter() else self.comm.Get_size()

    def ready(self) -> None:
        """Complete the nonblocking creation of the reverse communicator."""
        if self.pending is not None:
            wait(self.pending, lambda: f"creation of {self.name} by Idup")
            self.pending = None


_reverses: dict[int, Reverse] = {}  # by handle of the communicator
_buried: list[Reverse] = []  # of communicators that were freed; a tape may still refer to them


def register(comm: Any) -> Reverse:
    """Make the reverse communicator of a new communicator; collective over it."""
    _release_buried()
    group = _Comm.Get_group(comm)
    # Create, unlike Dup, calls no attribute callbacks of the user's.
    reverse = Reverse(_Comm.Create(comm, group), _Comm.Get_rank(comm), _name(comm))
    group.Free()
    _reverses[comm.handle] = reverse
    return reverse


def register_duplicate(parent: Any, comm: Any) -> None:
    """The same for a nonblocking duplicate of `parent` which is not complete yet."""
    other, request = _Comm.Idup(parent)
    plain = _Intercomm(other) if _Comm.Is_inter(parent) else _Intracomm(other)
    comm._reverse = Reverse(plain, _Comm.Get_rank(parent), f"a duplicate of {_name(parent)}", request)


def forget(comm: Any) -> None:
    """The user frees a communicator."""
    reverse = _reverses.pop(comm.handle, None) or comm.__dict__.get("_reverse")
    comm.__dict__.pop("_reverse", None)
    if reverse is not None:
        _buried.append(reverse)
    _release_buried()


def _release_buried() -> None:
    if not _buried:
        return
    used = {reverse for reference in list(_tape.living) for reverse in _logged(reference())}
    for reverse in [reverse for reverse in _buried if reverse not in used]:
        _buried.remove(reverse)
        reverse.ready()
        reverse.comm.Free()


def _logged(tape: Tape | None) -> Iterable[Reverse]:
    return () if tape is None else communication_of(tape).logs


def reverse_of(comm: Any) -> Reverse | None:
    """The reverse side of a communicator of ours; None if the communicator was not made by one of ours."""
    try:
        return comm._reverse
    except AttributeError:
        reverse = comm._reverse = _reverses.get(comm.handle)
        return reverse


def _log_for(tape: Tape, name: str, comm: Any, active: bool) -> Log:
    reverse = reverse_of(comm)
    if reverse is None:
        if active:
            raise CommunicationError(
                f"{name} of an active array on {_name(comm)}, which has no reverse communicator, because ampi did not see it "
                "being made; before recording write `comm = ampi.MPI.Intracomm(comm).Dup()` on all its ranks"
            )
        return Log(reverse)  # type: ignore[arg-type]  # goes nowhere
    return communication_of(tape).log(reverse)


def _name(comm: Any) -> str:
    return _Comm.Get_name(comm) or f"a communicator of {_Comm.Get_size(comm)} ranks"


def _tag_limit() -> int:
    limit = _WORLD.Get_attr(mpi.TAG_UB)
    return 32767 if limit is None else int(limit)


# ------------------------------------------------------------------------------------------------- the tape's log


class Sent:
    """A message in the log of its sender, and the adjoint of sending it.

    ``where`` is the call site.  ``back`` is the tag of its adjoint, or None if none comes; known after the agreement.
    """

    __slots__ = ("active", "back", "buffer", "cancelled", "dest", "flight", "name", "reverse", "tag", "where", "wild")

    def __init__(self, name: str, reverse: Reverse, buffer: Any, active: bool, dest: int, tag: int) -> None:
        self.name = name
        self.reverse = reverse
        self.active = active
        self.buffer = buffer if active else None
        self.dest = dest
        self.tag = tag
        self.where = call_site()
        self.wild = False  # becomes True when somebody tries to cancel it
        self.cancelled = False
        self.back: int | None = None
        self.flight: Any = None

    def resolve(self, status: mpi.Status | None) -> None:
        """The send has completed."""
        if self.wild and status is not None and status.Is_cancelled():
            self.cancelled = True

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} to rank {self.dest} with tag {self.tag} on {self.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror of the wait: the adjoint may come."""
        if self.back is not None and self.flight is None:
            adjoint = np.empty(self.buffer.count, self.buffer.dtype)
            self.flight = self.reverse.comm.Irecv(_as_real(adjoint), self.dest, self.back), adjoint

    def __call__(self, sweep: Sweep) -> None:
        """Mirror of the start: x̄ += what came."""
        if self.back is None:
            return
        self.begin(sweep)
        request, adjoint = self.flight
        if not request.Test():
            wait(request, self.waiting)
        self.flight = None
        self.buffer.add(sweep, adjoint)


class Received:
    """A receive in the log of its rank, in the order of posting, and the adjoint of receiving.

    ``source`` and ``tag`` are what the receive was posted with until it has completed, then what it matched.
    ``active`` says that it overwrites tracked floating-point memory: whether the sender was active is not known before the
    agreement.  ``dropped`` says that it was received inside `ampi.passive`.  ``elements`` is the length of its adjoint, ``back`` the
    adjoint's tag; known after the agreement.
    """

    __slots__ = (
        "active",
        "back",
        "buffer",
        "cancelled",
        "dropped",
        "elements",
        "flight",
        "name",
        "request",
        "reverse",
        "source",
        "tag",
        "where",
        "wild",
    )

    def __init__(self, name: str, reverse: Reverse, buffer: Any, tracked: bool, source: int, tag: int) -> None:
        self.name = name
        self.reverse = reverse
        self.buffer = buffer
        self.active = tracked
        self.source = source
        self.tag = tag
        self.wild = source == mpi.ANY_SOURCE or tag == mpi.ANY_TAG
        self.where = call_site()
        self.request: Any = None
        self.cancelled = False
        self.dropped = False
        self.back: int | None = None
        self.elements = 0
        self.flight: Any = None

    def describe(self) -> str:
        """For error messages."""
        source = "any rank" if self.source == mpi.ANY_SOURCE else f"rank {self.source}"
        tag = "any tag" if self.tag == mpi.ANY_TAG else f"tag {self.tag}"
        return f"{self.name} from {source} with {tag} on {self.reverse.name}, {line_of(self.where)}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror of the wait: x̄ of what was received goes back, and is zero here."""
        if self.flight is sweep:
            return
        self.flight = sweep  # done in this sweep
        if self.back is None:
            self.buffer.zero(sweep)
            return
        adjoint = self.buffer.first(self.elements).take(sweep)
        outbox_of(sweep).send(self.reverse.comm, _as_real(adjoint), self.source, self.back, self.waiting)

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"

    def __call__(self, sweep: Sweep) -> None:
        """Mirror of the start.  What went back was a copy: nothing to wait for."""
        if self.flight is not sweep:
            self.begin(sweep)
        self.flight = None

    def resolve(self, status: mpi.Status | None) -> None:
        """The receive has completed."""
        self.request = None
        if status is None:
            return
        if status.Is_cancelled():
            self.cancelled = True
        else:
            self.source = status.Get_source()
            self.tag = status.Get_tag()
            self.wild = False


class Collective:
    """A collective call in a tape's log.

    Attributes
    ----------
    reverse : Reverse
        ``token.reverse.comm`` is the communicator of the reverse traffic.
    """

    __slots__ = ("happening", "name", "reads_active", "reverse", "where", "writes_tracked")

    def __init__(self, name: str, reverse: Reverse, reads_active: bool, writes_tracked: bool) -> None:
        self.name = name
        self.reverse = reverse
        self.reads_active = reads_active
        self.writes_tracked = writes_tracked
        self.where = call_site()
        self.happening = False

    def happens(self, sweep: Sweep) -> bool:
        """Whether the reversed collective takes place: a rank contributed active values and a rank received tracked.

        The same on all ranks of the communicator.
        """
        return self.happening

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} on {self.reverse.name}, {line_of(self.where)}"


class Log:
    """What a rank said on one communicator while a tape recorded.

    Attributes
    ----------
    sent : dict
        Messages by destination, in the order of sending.
    posted : list of Received
        In the order of posting.
    collectives : list of Collective
        In the order of the calls.
    """

    __slots__ = ("agreed", "agreed_collectives", "collectives", "posted", "reverse", "sent")

    def __init__(self, reverse: Reverse) -> None:
        self.reverse = reverse
        self.sent: dict[int, list[Sent]] = {}
        self.posted: list[Received] = []
        self.collectives: list[Collective] = []
        self.agreed: dict[int, tuple[int, int]] = {}
        self.agreed_collectives = 0

    def received(self) -> dict[int, list[Received]]:
        """Receives by source, in the order of posting.

        Raises
        ------
        CommunicationError
            One has not completed, or nobody saw what it matched.
        """
        received: dict[int, list[Received]] = {}
        for receive in self.posted:
            if receive.cancelled:
                continue
            _check_completed(receive)
            received.setdefault(receive.source, []).append(receive)
        return received


def _check_completed(receive: Received) -> None:
    if receive.request is not None:
        if receive.request:
            raise CommunicationError(
                f"rank {receive.reverse.rank}: {receive.describe()} was never completed: "
                "wait for the request before the gradient is asked for"
            )
        receive.request = None  # completed through a class of mpi4py's that ampi does not see
    if receive.wild:
        raise CommunicationError(
            f"rank {receive.reverse.rank}: nobody saw which message {receive.describe()} matched, because its request was "
            "completed by a method that mpi4py's own class still had; write `MPI.Request.Wait...` after `import ampi`, "
            "or use ampi.MPI.Request"
        )


class Communication:
    """All that a rank said while a tape recorded; called at the beginning of each sweep to agree with the others."""

    __slots__ = ("logs",)

    def __init__(self) -> None:
        self.logs: dict[Reverse, Log] = {}

    def log(self, reverse: Reverse) -> Log:
        """The log of one communicator."""
        log = self.logs.get(reverse)
        if log is None:
            log = self.logs[reverse] = Log(reverse)
        return log

    def __call__(self, sweep: Sweep) -> None:
        """Agree with the other ranks."""
        sweep.at_end(lambda error: _finish(self, sweep, error))
        for log in self.logs.values():
            if log.reverse.broken:
                raise CommunicationError(
                    f"rank {log.reverse.rank}: {log.reverse.name} cannot be swept any more: {log.reverse.broken}"
                )
            log.reverse.ready()
            for dest, messages in log.sent.items():
                log.sent[dest] = [sent for sent in messages if not sent.cancelled]
                for sent in messages:
                    sent.flight = None
            for receive in log.posted:
                receive.flight = None
        _agree(self)


def communication_of(tape: Tape) -> Communication:
    """What was said while a tape recorded."""
    communication = tape._sweep_starts.get(_KEY)
    if communication is None:
        communication = Communication()
        tape.at_sweep_start(_KEY, communication)
    return communication  # type: ignore[return-value]


def log_sent(tape: Tape, name: str, comm: Any, buffer: Any, active: bool, dest: int, tag: int) -> Sent:
    """Log a message; in the order of the calls that send.

    Parameters
    ----------
    buffer : Buffer
        Needs ``count`` and ``dtype``, and ``add(sweep, flat)`` in the sweep if it is active.
    """
    log = _log_for(tape, name, comm, active)
    sent = Sent(name, log.reverse, buffer, active, dest, tag)
    messages = log.sent.get(dest)
    if messages is None:
        messages = log.sent[dest] = []
    messages.append(sent)
    return sent


def log_received(tape: Tape, name: str, comm: Any, buffer: Any, tracked: bool, source: int, tag: int) -> Received:
    """Log a receive; in the order of the calls that post (for a matched probe: the probe).

    Parameters
    ----------
    buffer : Buffer
        Needs ``count`` and ``dtype``; in the sweep, if it is tracked, ``zero(sweep)`` and ``first(n).take(sweep)``.
    """
    log = _log_for(tape, name, comm, tracked)
    receive = Received(name, log.reverse, buffer, tracked, source, tag)
    log.posted.append(receive)
    return receive


def log_collective(tape: Tape, comm: Any, name: str, reads_active: bool, writes_tracked: bool) -> Collective:
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

    Returns
    -------
    Collective
        ``token.reverse.comm`` is the communicator for the reverse traffic, ``token.happens(sweep)`` the agreement.
    """
    log = _log_for(tape, name, comm, reads_active or writes_tracked)
    collective = Collective(name, log.reverse, reads_active, writes_tracked)
    log.collectives.append(collective)
    return collective


# -------------------------------------------------------------------------------------------------- the agreement

_ACTIVE = 1
_DROPPED = 2  # received inside ampi.passive: the derivative is dropped on purpose


def _agree(communication: Communication) -> None:
    """Exchange the logs with all partners at once, in no particular order; then compare them."""
    problems: list[str] = []
    exchanges = []
    for log in communication.logs.values():
        received = log.received()
        for partner in sorted(log.sent.keys() | received.keys()):
            sent = log.sent.get(partner, [])
            got = received.get(partner, [])
            if log.agreed.get(partner) != (len(sent), len(got)):
                exchanges.append(_agree_messages(log, partner, sent, got, problems))
        if log.agreed_collectives != len(log.collectives):
            exchanges.append(_agree_collectives(log, problems))
    _drive(exchanges)
    if problems:
        raise CommunicationError("\n".join(problems))


class _Exchange:
    """An exchange in steps: a generator that yields while it waits, and what it is, for error messages."""

    __slots__ = ("describe", "steps")

    def __init__(self, steps: Generator[None], describe: Callable[[], str]) -> None:
        self.steps = steps
        self.describe = describe


def _drive(exchanges: list[_Exchange]) -> None:
    patience = _Patience()
    while exchanges:
        waiting = [exchange for exchange in exchanges if not _finished(exchange)]
        if len(waiting) < len(exchanges):
            patience = _Patience()
        exchanges = waiting
        if exchanges:
            patience.pause(exchanges[0].describe)


def _finished(exchange: _Exchange) -> bool:
    for _ in exchange.steps:
        return False
    return True


def _agree_messages(log: Log, partner: int, sent: list[Sent], got: list[Received], problems: list[str]) -> _Exchange:
    """Exchange with one partner the messages sent to it and received from it."""

    def steps() -> Generator[None]:
        comm = log.reverse.comm
        mine = np.array([(len(sent), len(got), 0), *map(_sent_row, sent), *map(_received_row, got)], np.int64)
        request = comm.Isend(mine, partner, _AGREE_TAG)
        status = mpi.Status()
        while (message := comm.Improbe(partner, _AGREE_TAG, status)) is None:
            yield
        theirs = np.empty((status.Get_count(mpi.INT64_T) // 3, 3), np.int64)
        message.Recv(theirs)
        n_sent = int(theirs[0, 0])
        _match(log.reverse, partner, sent, theirs[1 + n_sent :].tolist(), problems)
        _match_received(log.reverse, partner, got, theirs[1 : 1 + n_sent].tolist(), problems)
        while not request.Test():
            yield
        log.agreed[partner] = len(sent), len(got)

    def describe() -> str:
        example = sent[0] if sent else got[0]
        return f"the agreement with rank {partner} about {len(sent) + len(got)} messages, the first of which is {example.describe()}"

    return _Exchange(steps(), describe)


def _sent_row(sent: Sent) -> tuple[int, int, int]:
    if not sent.active:
        return sent.tag, 0, 0
    return sent.tag, sent.buffer.count * sent.buffer.dtype.itemsize, _ACTIVE | _real(sent.buffer.dtype) << 8


def _received_row(got: Received) -> tuple[int, int, int]:
    if not got.active:
        return got.tag, 0, _DROPPED if got.dropped else 0
    return got.tag, 0, _ACTIVE | _real(got.buffer.dtype) << 8


def _real(dtype: np.dtype) -> int:
    """Size of a real number of a dtype: a complex number may be received as two real ones."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _as_real(array: np.ndarray) -> np.ndarray:
    """A contiguous array as real numbers."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


def _by_tag(tags: Iterable[int]) -> dict[int, list[int]]:
    """Positions in a list of messages by tag, last first."""
    positions: dict[int, list[int]] = {}
    for position, tag in enumerate(tags):
        positions.setdefault(tag, []).append(position)
    for queue in positions.values():
        queue.reverse()
    return positions


def _match(reverse: Reverse, partner: int, sent: list[Sent], theirs: list[list[int]], problems: list[str]) -> None:
    """Find out which of the messages sent to a partner have an adjoint that comes back."""
    here = f"rank {reverse.rank}"
    waiting = _by_tag(tag for tag, _, _ in theirs)
    for position, message in enumerate(sent):
        message.back = None
        queue = waiting.get(message.tag)
        flags = theirs[queue.pop()][2] if queue else None
        if not message.active:
            continue
        if flags is None:
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} did not receive it while its "
                "tape recorded"
            )
        elif flags & _ACTIVE:
            if flags >> 8 != _real(message.buffer.dtype):
                problems.append(f"{here}: {message.describe()} of {message.buffer.dtype} is received as another dtype")
            message.back = _FIRST_TAG + position % reverse.tags
        elif not flags & _DROPPED:
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} receives it into memory that is "
                "not tracked; make its receive buffer with ampi.numpy, or send ampi.value(...)"
            )
    active = {message.tag for message in sent if message.active}
    for tag, queue in waiting.items():
        if queue and tag in active:
            problems.append(
                f"{here}: rank {partner} received {len(queue)} messages more with tag {tag} than rank {reverse.rank} sent "
                f"on {reverse.name} while its tape recorded; which ones carry derivatives is not known"
            )


def _match_received(
    reverse: Reverse, partner: int, got: list[Received], theirs: list[list[int]], problems: list[str]
) -> None:
    """Find out which of the messages received from a partner have an adjoint to be sent back, and its length."""
    here = f"rank {reverse.rank}"
    waiting = _by_tag(receive.tag for receive in got)
    active = set()
    for receive in got:
        receive.back = None
    for position, (tag, nbytes, flags) in enumerate(theirs):
        queue = waiting.get(tag)
        receive = got[queue.pop()] if queue else None
        if not flags & _ACTIVE:
            continue
        active.add(tag)
        if receive is None:
            problems.append(
                f"{here}: rank {partner} sent a message that carries a derivative with tag {tag} on {reverse.name}, which "
                f"rank {reverse.rank} did not receive while its tape recorded"
            )
        elif receive.active:
            if flags >> 8 != _real(receive.buffer.dtype):
                problems.append(f"{here}: {receive.describe()} as {receive.buffer.dtype} was sent as another dtype")
            receive.back = _FIRST_TAG + position % reverse.tags
            receive.elements = nbytes // receive.buffer.dtype.itemsize
        elif not receive.dropped:
            problems.append(
                f"{here}: {receive.describe()} brings a derivative, but into memory that is not tracked; make the receive "
                "buffer with ampi.numpy, or receive it inside `with ampi.passive():`"
            )
    for tag, queue in waiting.items():
        for position in queue:
            if tag in active:
                problems.append(f"{here}: {got[position].describe()} was not sent while rank {partner}'s tape recorded")


def _agree_collectives(log: Log, problems: list[str]) -> _Exchange:
    """Find out with all ranks of a communicator which of its collectives are reversed."""
    calls = log.collectives

    def steps() -> Generator[None]:
        n = len(calls)
        extremes = np.array([n, -n], np.int64)
        yield from _all_max(log.reverse, extremes)
        most, least = int(extremes[0]), -int(extremes[1])
        facts = np.zeros((least, 4), np.int64)
        for k in range(least):
            code = _code(calls[k].name)
            facts[k] = code, -code, calls[k].reads_active, calls[k].writes_tracked
        yield from _all_max(log.reverse, facts)
        for k in range(least):
            call = calls[k]
            code = _code(call.name)
            high, low, active, tracked = facts[k].tolist()
            if high != code or low != -code:
                other = _name_of(high if high != code else -low)
                problems.append(
                    f"rank {log.reverse.rank}: where this rank called {call.describe()}, another called {other}"
                )
                return
            call.happening = bool(active and tracked)
            if call.reads_active and not tracked:
                problems.append(
                    f"rank {log.reverse.rank}: {call.describe()} carries a derivative, but no rank receives it into memory "
                    "that is tracked; make the receive buffers with ampi.numpy, or send ampi.value(...)"
                )
        if most > least:
            extra = f"; the first one that misses on another is {calls[least].describe()}" if n > least else ""
            problems.append(
                f"rank {log.reverse.rank}: {n} collective calls were recorded on {log.reverse.name}, "
                f"but {least} to {most} on other ranks{extra}"
            )
            return
        log.agreed_collectives = n

    return _Exchange(
        steps(),
        lambda: f"the agreement about {len(calls)} collective calls, the last of which is {calls[-1].describe()}",
    )


def _all_max(reverse: Reverse, values: np.ndarray) -> Generator[None]:
    """Elementwise maximum over all ranks, in place; both groups of an intercommunicator."""
    comm = reverse.comm
    both = [values]
    if comm.Is_inter():
        both = [values.copy(), values.copy()]
        for source, target in ((values, both[0]), (both[0], both[1])):
            request = comm.Iallreduce(source, target, mpi.MAX)
            while not request.Test():
                yield
        np.maximum(both[0], both[1], out=values)
        return
    request = comm.Iallreduce(mpi.IN_PLACE, values, mpi.MAX)
    while not request.Test():
        yield


def _code(name: str) -> int:
    """A positive number for an operation's name, the same on all ranks."""
    return zlib.crc32(name.encode()) + 1


def _name_of(code: int) -> str:
    names = (operation.name for operation in TABLE.values())
    return next((name for name in names if _code(name) == code), "another operation")


# ------------------------------------------------------------------------------------------------ waiting in a sweep


def timeout() -> float:
    """Seconds without progress after which a sweep gives up: AMPI_TIMEOUT."""
    return float(os.environ.get("AMPI_TIMEOUT", "60"))


class _Patience:
    """Waits a little longer each time, and not for ever."""

    __slots__ = ("began", "checked", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.began = self.checked = 0.0

    def pause(self, describe: Callable[[], str]) -> None:
        """Between two looks whether something has come."""
        self.turns += 1
        if self.turns < 50:
            return
        if self.turns < 2000:
            os.sched_yield()
        else:
            time.sleep(1e-4)
        now = time.monotonic()
        if not self.began:
            self.began = self.checked = now
        if now - self.checked > 0.01:
            self.checked = now
            _look_for_notices(describe)
            if now - self.began > timeout():
                raise CommunicationError(
                    f"rank {_WORLD.Get_rank()} of the world: no progress for {timeout():g} s in the sweep, waiting "
                    f"for {describe()}; has every rank asked for the gradient? (AMPI_TIMEOUT sets the time)"
                )


def wait(request: mpi.Request, describe: Callable[[], str]) -> None:
    """Wait for a request of mpi4py's in a sweep.

    Parameters
    ----------
    request : mpi4py.MPI.Request
    describe : callable
        Gives the text for the error message: the operation, its partner, tag and source line.

    Raises
    ------
    CommunicationError
        Nothing came for AMPI_TIMEOUT seconds (60 by default), or a partner stopped its sweep with an error.
    """
    if request.Test():
        return
    patience = _Patience()
    try:
        while not request.Test():
            patience.pause(describe)
    except BaseException:
        _stranded.append(request)
        raise


class Outbox:
    """Adjoints on their way to other ranks.  Sending never blocks: a receiver may have leant on buffering."""

    __slots__ = ("flights", "waiting_bytes")

    _FEW = 32
    _MUCH = 1 << 26

    def __init__(self) -> None:
        self.flights: list[tuple[mpi.Request, np.ndarray, Callable[[], str]]] = []
        self.waiting_bytes = 0

    def send(self, comm: mpi.Comm, array: np.ndarray, dest: int, tag: int, describe: Callable[[], str]) -> None:
        """Send an array that nobody changes any more."""
        request = comm.Isend(array, dest, tag)
        if request.Test():
            return
        self.flights.append((request, array, describe))
        self.waiting_bytes += array.nbytes
        if len(self.flights) > self._FEW or self.waiting_bytes > self._MUCH:
            self._let_go()

    def _let_go(self) -> None:
        self.flights = [flight for flight in self.flights if not flight[0].Test()]
        self.waiting_bytes = sum(array.nbytes for _, array, _ in self.flights)
        # Memory is bounded where the receivers keep up; where they cannot, going on is better than a deadlock.
        deadline = time.monotonic() + 0.1
        while self.waiting_bytes > self._MUCH and time.monotonic() < deadline:
            os.sched_yield()
            self.flights = [flight for flight in self.flights if not flight[0].Test()]
            self.waiting_bytes = sum(array.nbytes for _, array, _ in self.flights)

    def flush(self) -> None:
        """Wait until everything has been delivered."""
        while self.flights:
            request, _, describe = self.flights[-1]
            wait(request, describe)
            self.flights.pop()


def outbox_of(sweep: Sweep) -> Outbox:
    """The outbox of a sweep."""
    outbox = sweep.state.get("outbox")
    if outbox is None:
        outbox = sweep.state["outbox"] = Outbox()
    return outbox


# Requests, buffers included, of sweeps that stopped: MPI may still write to or read from them.
_stranded: list[Any] = []


def _finish(communication: Communication, sweep: Sweep, error: BaseException | None) -> None:
    if error is None:
        if "outbox" in sweep.state:
            outbox_of(sweep).flush()
        return
    text = getattr(error, "notice", None) or (
        f"rank {_WORLD.Get_rank()} of the world stopped its sweep with {type(error).__name__}: {error}"
    )
    _stranded.append(outbox_of(sweep).flights)
    for log in communication.logs.values():
        log.reverse.broken = log.reverse.broken or text
        for messages in log.sent.values():
            _stranded.extend(sent.flight for sent in messages if sent.flight is not None)
        _notify(log, text)


def _notify(log: Log, text: str) -> None:
    """Tell everybody who might wait for this rank that it has stopped."""
    reverse = log.reverse
    if log.collectives:
        partners: Iterable[int] = range(reverse.partners)
    else:
        partners = log.sent.keys() | {receive.source for receive in log.posted if receive.source >= 0}
    notice = text.encode()[:_TEXT]
    for partner in partners:
        if partner != reverse.rank or reverse.comm.Is_inter():
            _stranded.append(reverse.comm.Isend([notice, mpi.BYTE], partner, _ABORT_TAG))


def _look_for_notices(describe: Callable[[], str]) -> None:
    if not _tape._sweeping:
        return
    for reverse in _logged(_tape._sweeping[-1].tape):
        status = mpi.Status()
        if reverse.pending is None and reverse.comm.Iprobe(mpi.ANY_SOURCE, _ABORT_TAG, status):
            notice = bytearray(status.Get_count(mpi.BYTE))
            reverse.comm.Recv([notice, mpi.BYTE], status.Get_source(), _ABORT_TAG)
            text = notice.decode(errors="replace")
            error = CommunicationError(
                f"rank {_WORLD.Get_rank()} of the world: gave up waiting for {describe()}, because {text}"
            )
            error.notice = text  # type: ignore[attr-defined]
            raise error


# ----------------------------------------------------------------------------------------------------- source lines


def call_site() -> tuple[Any, int]:
    """Code object and instruction of the innermost caller outside ampi; `line_of` makes text of it."""
    frame: Any = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


_OWN = ("ampi.", "mpi4py.")


def line_of(where: tuple[Any, int]) -> str:
    """``file:line`` of a call site."""
    code, instruction = where
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return f"{code.co_filename}:{line}"
