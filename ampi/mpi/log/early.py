"""Records that the ranks made before they watched anything: they carry no derivatives, and sweeps skip them.

A rank cannot know alone that nothing it received depends on an independent of another rank.  So the ranks find out
together: each states which of its messages and collective calls are *early*, recorded before its first independent.
If no early receive on any rank got a message that was sent later, and each collective call was early on all of its
ranks or on none, then no early record carries a derivative on any rank.  They agree on this on a communicator of all
ranks on which they made a collective call; if there is none, partners pass it on from one to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI as mpi

from ...tape import Tape
from ...tape.unwatched import is_local, number_before_independents
from .messages import Collective, Completion, LoggedMessage, Received, Sent
from .reverse import Reverse

if TYPE_CHECKING:
    from .log import Log


class Early:
    """The records that a rank made before its first independent.

    Attributes
    ----------
    first : int
        The number of records before the first independent.
    holds : bool
        True if none of them carries a derivative, as far as this rank knows.
    some : bool
        True if a rank of a communicator on which collective calls were made has such records.
    met : list of Log
        The communicators whose collective calls all of their ranks compare in this agreement.
    edges : list of tuple
        Communicators and partners that messages went to or came from, where one of the two has such records.
    """

    def __init__(self, tape: Tape, logs: Iterable[Log], is_incomplete: bool) -> None:
        self.first = 0
        self.holds = True
        self.some = False
        self.met: list[Log] = []
        self.edges: list[tuple[Reverse, int]] = []
        self._early: set[int] = set()  # messages and calls, by their ids
        self._late: set[int] = set()
        self._dead: list[LoggedMessage] = []
        self._quiet: list[Collective] = []
        records: Any = tape.records
        self.first = number_before_independents(tape)
        if not self.first:
            return
        self.some = True
        self.holds = not is_incomplete and "windows" not in tape.sweep_starts and all(map(_is_among_all, logs))
        for record in records[: self.first]:
            self._enter(record.adjoint)
        for record in records[self.first :]:
            adjoint = record.adjoint
            if isinstance(adjoint, Completion):  # perhaps of operations that were started earlier
                self._late.update(id(getattr(part, "performed", part)) for part in adjoint)
            else:
                self._late.add(id(_logged(adjoint)))

    def _enter(self, adjoint: Any) -> None:
        logged = _logged(adjoint)
        if isinstance(logged, LoggedMessage):
            self._early.add(id(logged))
            self.holds = self.holds and not type(logged).__module__.endswith(".partitioned") and logged.request is None
        elif isinstance(logged, Collective):
            self._early.add(id(logged))
        elif adjoint is not None and not isinstance(adjoint, Completion):
            self.holds = self.holds and is_local(adjoint)

    def is_early(self, sent: Sent) -> bool:
        """Return whether a message was sent before the first independent."""
        return id(sent) in self._early

    def note_sent(self, sent: Sent) -> None:
        """Note that a message has an adjoint, according to its two ranks."""
        if id(sent) in self._early:
            self._dead.append(sent)

    def note_received(self, received: Received, was_early: bool) -> None:
        """Note whether a received message that has an adjoint was early on its sender's side."""
        if was_early:
            self._dead.append(received)
        elif id(received) in self._early and id(received) not in self._late:
            self.holds = False

    def connect(self, log: Log, partner: int) -> None:
        """Note that messages were exchanged with a partner; one of the two ranks has such records."""
        if partner != log.reverse.rank and _is_among_all(log):
            self.edges.append((log.reverse, partner))

    def sides_of(self, call: Collective) -> tuple[bool, bool]:
        """Return whether a call was early on this rank, and whether it was late."""
        early, late = id(call) in self._early, id(call) in self._late
        if not (early or late):
            late = bool(call.reads_active or call.writes_tracked)
        return early, late

    def note_call(self, call: Collective, early: int, late: int) -> None:
        """Note whether a reversed call was early on some ranks, and whether it was late on some."""
        if early and late:
            self.holds = False
        elif early:
            self._quiet.append(call)

    def settle(self, holds: bool) -> int:
        """Apply the ranks' decision; return the number of records that sweeps skip."""
        if not holds:
            return 0
        for message in self._dead:
            message.back = None
        for call in self._quiet:
            call.happening = False
        return self.first


def _logged(adjoint: Any) -> Any:
    """Return the entry of a log that a record's adjoint belongs to, or the adjoint itself."""
    return getattr(adjoint, "performed", None) or getattr(adjoint, "token", None) or adjoint


def _is_among_all(log: Log) -> bool:
    """Return whether all ranks of a communicator are ranks of this program's world."""
    comm = log.reverse.comm
    if comm.Is_inter():
        return False
    world, group = mpi.COMM_WORLD.Get_group(), comm.Get_group()
    both = mpi.Group.Union(world, group)
    try:
        return both.Get_size() == world.Get_size()
    finally:
        for made in (world, group, both):
            made.Free()


def meeting_place(logs: Iterable[Log]) -> Log | None:
    """Return the log of a communicator of all ranks on which they made collective calls, the same on all ranks."""
    size = mpi.COMM_WORLD.Get_size()
    found = [log for log in logs if log.collectives and log.reverse.comm.Get_size() == size and _is_among_all(log)]
    return min(found, key=lambda log: log.reverse.identity) if found else None
