"""The reverse side of a communicator: the channel on which adjoints are sent, chosen when the communicator is made."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ..base.call_sites import name_of
from ..waiting.waiting import wait
from .channels import LEAVING_TAG as LEAVING_TAG
from .channels import Channel, Election, channel_for, free_unused, in_world

# mpi4py's own: the names in its module may be rebound to ours.
_Comm, _Intracomm, _Intercomm, _WORLD = mpi.Comm, mpi.Intracomm, mpi.Intercomm, mpi.COMM_WORLD
_Topocomm, _Cartcomm, _Graphcomm = mpi.Topocomm, mpi.Cartcomm, mpi.Graphcomm

AGREEMENT_TAG = 1
"""Tag of the agreement of two ranks at the start of a sweep."""

COLLECTIVE_AGREEMENT_TAG = 2
"""Tag of the agreement of all ranks at the start of a sweep."""

COLLECTIVE_TAG = 3
"""Tag of messages inside reversed collectives: all ranks of a communicator run these in the same order."""

SIZES_TAG = 5
"""Tag of the lengths of collective calls, which two ranks compare at the start of a sweep."""

FIRST_TAG = 6
"""First tag of the adjoints of messages."""


class Reverse:
    """The reverse side of a communicator.

    It lives as long as the communicator, and as long as a tape refers to it.

    Attributes
    ----------
    channel : Channel
        The communicators for the reverse traffic, usable once `ready` has been called.
    comm : mpi4py.MPI.Comm
        The channel's: the same ranks in a communication context of their own.
    local : mpi4py.MPI.Intracomm or None
        For an intercommunicator: the ranks of this group.
    turn : int
        The number of communicators that have used the channel, this one included.
    identity : int
        The same on all ranks, different for each communicator. Agreements and notices carry it, since messages about
        other communicators of the channel may arrive, which are put aside, or about a sweep that never ran here, which
        are dropped. 0 for duplicates by Idup of a communicator that has no reverse side.
    aside : dict
        Messages of an agreement about this one that arrived while another one was expected, by communicator, rank and
        tag.
    place : object
        Stands for it where it must not be kept alive.
    duplicates : int
        Number of duplicates by Idup.
    rank : int
    name : str
        The communicator's, for messages.
    group : Reverse or None
        For an intercommunicator: the reverse side for messages inside this group, which reductions of objects send.
    slots, slots_started : list of int or None
        For a topology: the neighbors' slots from which the edges that end here come, in blocking collectives and in
        those with a request. If two edges join the same ranks, implementations differ, some even between these two.
    tags : int
        Number of tags for adjoints.
    sweeps : int
        Number of sweeps begun, or refused, that concern all ranks.
    sweeps_with : dict
        Number of further sweeps that concern one other rank, by rank.
    notices : list of tuple
        Unprocessed notices of ranks that stopped a sweep: the rank, the sweep's number, and the reason.
    partitioned : dict
        Number of partitioned requests made so far, by method, partner and tag.
    calls : dict
        Data shared by collective calls with the same arguments.
    tapes : list of weakref.ref
        Tapes that have logged messages on it, and may still record.
    election : Election or None
        For a duplicate by Idup: the choice of the channel that it takes over.
    elder : list of weakref.ref
        The channels of earlier duplicates by Idup.
    world : dict
        The ranks in the world of partners that were looked up individually.
    """

    __slots__ = (
        *(
            "__weakref__",
            "aside",
            "calls",
            "channel",
            "comm",
            "duplicates",
            "local",
            "elder",
            "election",
            "group",
            "identity",
            "name",
        ),
        *("notices", "partitioned", "place", "rank", "slots", "slots_started", "sweeps", "sweeps_with", "tags"),
        *("tapes", "turn", "world"),
    )

    def __init__(self, channel: Channel, rank: int, name: str, identity: int) -> None:
        self.place = object()
        self.identity = identity
        self.duplicates = 0
        self.rank = rank
        self.name = name
        self.tags = _tag_limit() + 1 - FIRST_TAG
        self.sweeps = 0
        self.sweeps_with: dict[int, int] = {}
        self.notices: list[tuple[int, int, str]] = []
        self.aside: dict[tuple[int, int, int], deque] = {}
        self.partitioned: dict[tuple[str, int, int], int] = {}
        self.calls: dict[Any, Any] = {}
        self.tapes: list[weakref.ref] = []
        self.slots: list[int] | None = None
        self.slots_started: list[int] | None = None
        self.group: Reverse | None = None
        self.election: Election | None = None
        self.elder: list[weakref.ref] = []
        self.world: dict[int, int] = {}
        self._take(channel)

    def _take(self, channel: Channel) -> None:
        self.channel, self.comm, self.local = channel, channel.comm, channel.local
        self.turn = channel.enter(self)
        if channel.group is not None and self.group is None:
            name = f"this rank's group of {self.name}"
            self.group = Reverse(channel.group, self.rank, name, self.identity ^ 1)
        elif channel.group is not None:
            self.group._take(channel.group)  # type: ignore[union-attr]

    def leave(self) -> None:
        """Release the channel: the user's communicator or window has been freed."""
        self.ready()  # all ranks have begun to make it
        if self.turn == self.channel.turns:
            self.channel.leave()

    @property
    def pending(self) -> bool:
        """True if MPI may not have made the channel yet."""
        return bool(self.channel.pending) or self.election is not None

    @property
    def broken(self) -> str:
        """The reason why no further sweep can use it: an earlier one stopped, and its messages may be in transit."""
        return self.channel.broken

    @broken.setter
    def broken(self, why: str) -> None:
        self.channel.broken = why
        self.keep()

    def keep(self) -> None:
        """Never return the channel to MPI: there may be messages on it that are not received."""
        self.channel.keep()

    @property
    def partners(self) -> int:
        """Number of ranks to which messages can be sent."""
        return self.comm.Get_remote_size() if self.comm.Is_inter() else self.comm.Get_size()

    def in_world(self, partner: int | None = None) -> list[int]:
        """Return the rank of a partner, or of all ranks (None), in the world; -1 if they are not in it."""
        if self.pending:
            return list(range(_WORLD.Get_size()))  # MPI has not made it yet
        between = self.comm.Is_inter()
        if partner is None:  # there may be many: nothing is stored
            own_group = in_world(_Comm.Get_group(self.comm)) if between else []
            return own_group + in_world(self._partners(between))
        known = self.world.get(partner)
        if known is None:
            (known,) = in_world(self._partners(between), [partner])
            self.world[partner] = known
        return [known]

    def _partners(self, between: bool) -> mpi.Group:
        return _Intercomm.Get_remote_group(self.comm) if between else _Comm.Get_group(self.comm)

    def count(self, others: Collection[int] | None) -> None:
        """Count a sweep that concerns some ranks, or all (None)."""
        if others is None:
            self.sweeps += 1
            return
        for rank in others:
            self.sweeps_with[rank] = self.sweeps_with.get(rank, 0) + 1

    def sweep_with(self, rank: int) -> int:
        """Return the number of the latest sweep that concerns another rank, which counts alike."""
        return self.sweeps + self.sweeps_with.get(rank, 0)

    def ready(self) -> None:
        """Complete the nonblocking creation of the reverse side."""
        if self.election is not None:
            self._take_elected()
        while self.channel.pending:
            wait(self.channel.pending[-1], lambda: f"the creation of {self.name} by Idup")
            self.channel.pending.pop()
        if self.group is not None:
            self.group.ready()

    def require_usable(self) -> None:
        """Complete the creation of the reverse side; raise an error if it can no longer be used."""
        self.ready()
        if self.broken:
            raise CommunicationError(
                f"rank {self.rank}: {self.name} cannot be used for derivatives any more, continue with a duplicate, "
                f"comm.Dup(), made on all its ranks: {self.broken}"
            )

    def _take_elected(self) -> None:
        """Take over the channel that the ranks have agreed on, if there is one, and give up the present one."""
        election, self.election = self.election, None
        elected = election.result()  # type: ignore[union-attr]
        if elected is not None:
            self._take(elected)


_reverses: dict[int, Reverse] = {}  # by handle of the communicator
_duplicates: list[Any] = []  # by Idup, whose handles are not known yet


def register(comm: Any) -> Reverse:
    """Give a new communicator its reverse side; collective over it."""
    free_unused()
    channel, identity = channel_for(comm)
    reverse = Reverse(channel, _Comm.Get_rank(comm), name_of(comm), identity)
    reverse.slots, reverse.slots_started = slots_of(comm)
    _reverses[comm.handle] = reverse
    return reverse


def reverse_of_window(comm: Any) -> Reverse:
    """Return the reverse side of a new window; collective over its communicator."""
    free_unused()
    channel, identity = channel_for(comm, of_window=True)
    return Reverse(channel, _Comm.Get_rank(comm), f"a window of {name_of(comm)}", identity)


def register_duplicate(parent: Any, comm: Any) -> None:
    """Give a nonblocking duplicate of `parent`, which is not complete yet, its reverse side."""
    free_unused()
    known = reverse_of(parent)
    if known is not None or not _Comm.Is_inter(parent):
        _duplicates.append(comm)
    if _Comm.Is_inter(parent):
        _register_duplicate_between(known, comm)
        return
    # Not every implementation can make two duplicates of one communicator at the same time.
    origin = _Intracomm(parent) if known is None or known.pending else known.comm
    identity, election = _identity_of_duplicate(known), _election(known)
    channel = Channel(*_idup(origin, identity))
    comm._reverse = reverse = Reverse(channel, parent.Get_rank(), f"a duplicate of {name_of(parent)}", identity)
    _has_begun(reverse, known, election)


def _register_duplicate_between(known: Reverse | None, comm: Any) -> None:
    """Give a duplicate of an intercommunicator its reverse side, if the parent has one."""
    comm._reverse = None
    if known is None:
        return
    known.ready()  # all ranks have begun it
    identity, election = _identity_of_duplicate(known), _election(known)
    channel = Channel(*_idup(known.comm, identity))
    channel.local, request = known.local.Idup()  # type: ignore[union-attr]
    channel.pending.append(request)
    channel.comms.append(channel.local)
    channel.group = Channel(*_idup(known.group.comm, identity ^ 1))  # type: ignore[union-attr]
    comm._reverse = reverse = Reverse(channel, known.rank, f"a duplicate of {known.name}", identity)
    _has_begun(reverse, known, election)


def _idup(origin: Any, identity: int) -> tuple[mpi.Comm, int, mpi.Request]:
    comm, request = origin.Idup()
    return comm, identity, request


_MOST_ELDER = 8
"""The number of earlier duplicates by Idup whose channels a new one may take over."""


def _election(known: Reverse | None) -> Election | None:
    """Begin to agree with the other ranks on the channel of an earlier duplicate that a new one takes over."""
    if known is None or known.pending or not known.elder:
        return None
    elder = [other() for other in known.elder]
    channels = [None if other is None or other.election is not None else other.channel for other in elder]
    return Election([known.comm] if known.local is None else [known.local, known.comm], channels)


def _has_begun(reverse: Reverse, known: Reverse | None, election: Election | None) -> None:
    if known is None:
        return
    reverse.slots, reverse.slots_started = known.slots, known.slots_started
    reverse.election = election
    if not known.pending:
        known.elder.insert(0, weakref.ref(reverse))
        del known.elder[_MOST_ELDER:]


def _enter_duplicates() -> None:
    """Register duplicates by Idup that are complete under their handles, which other objects share."""
    for comm in _duplicates:
        if comm:
            _reverses.setdefault(comm.handle, comm._reverse)
    _duplicates[:] = [comm for comm in _duplicates if not comm]


def _identity_of_duplicate(known: Reverse | None) -> int:
    if known is None or not known.identity:
        return 0
    known.duplicates += 1
    return hash((known.identity, known.duplicates)) & 0x7FFFFFFFFFFFFFFF


def slots_of(comm: Any) -> tuple[list[int] | None, list[int] | None]:
    """Return the neighbors' slots from which the edges of a topology that end at this rank come; collective.

    They are returned for blocking collectives, and for those with a request; None without a topology, and for graphs on
    which MPI has no neighborhood collectives.
    """
    if not isinstance(comm, _Topocomm):
        return None, None
    if isinstance(comm, _Cartcomm) and comm.ndim == 0:
        return [], []
    if isinstance(comm, _Graphcomm) and not _is_symmetric(*_Graphcomm.Get_topo(comm)):
        return None, None
    arriving, leaving = comm.inoutedges
    if not isinstance(comm, (_Cartcomm, _Graphcomm)) and not _is_consistent(_Comm.allgather(comm, (arriving, leaving))):
        return None, None
    blocking, started = np.full((2, len(arriving)), -1, np.intc)
    numbers = np.arange(len(leaving), dtype=np.intc)
    _Topocomm.Neighbor_alltoall(comm, numbers, blocking)
    _Topocomm.Ineighbor_alltoall(comm, numbers, started).Wait()
    return blocking.tolist(), started.tolist()


def _is_consistent(edges: list[tuple[list[int], list[int]]]) -> bool:
    """Return whether each edge of a distributed graph is given on both of its ranks."""
    left = sorted((rank, dest) for rank, (_, leaving) in enumerate(edges) for dest in leaving)
    return left == sorted((source, rank) for rank, (arriving, _) in enumerate(edges) for source in arriving)


def _is_symmetric(index: list[int], edges: list[int]) -> bool:
    starts = [0, *index[:-1]]
    pairs = [(rank, other) for rank, (start, end) in enumerate(zip(starts, index)) for other in edges[start:end]]
    return sorted(pairs) == sorted((other, rank) for rank, other in pairs)


@contextlib.contextmanager
def forgetting(comm: Any) -> Iterator[None]:
    """Forget a communicator that the user frees inside the block; its channel is freed when no tape refers to it.

    It is forgotten first, since another thread may at once make a communicator with the same handle.
    """
    handle = comm.handle
    reverse = _reverses.pop(handle, None)
    own = comm.__dict__.pop("_reverse", None)
    _duplicates[:] = [other for other in _duplicates if other is not comm and other.handle != handle]
    try:
        yield
    except BaseException:
        if reverse is not None:
            _reverses[handle] = reverse
        if own is not None:
            comm._reverse = own
        raise
    freed = reverse or own
    if freed is not None:
        freed.leave()
    freed = reverse = own = None
    free_unused()


def reverse_of(comm: Any) -> Reverse | None:
    """Return the reverse side of one of ampi's communicators; None for others."""
    try:
        return comm._reverse
    except AttributeError:
        if comm.handle not in _reverses:
            _enter_duplicates()
        reverse = _reverses.get(comm.handle)
    if hasattr(comm, "__dict__"):  # communicators of mpi4py have none
        comm._reverse = reverse
    return reverse


def set_reverse(comm: Any, reverse: Reverse | None) -> None:
    """Set the reverse side of one of ampi's communicators."""
    comm._reverse = reverse


def _tag_limit() -> int:
    limit = _WORLD.Get_attr(mpi.TAG_UB)
    return 32767 if limit is None else int(limit)
