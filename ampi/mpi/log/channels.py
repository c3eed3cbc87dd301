"""Channels of reverse traffic: communicators that the user's communicators use, one after the other.

The adjoints of a communicator's messages are sent on another one with the same ranks, which a tape with messages on it
needs for as long as it can be swept.  But programs make and free communicators and windows in loops, and MPI has room
for a few thousand communicators.  So the next one that is made on the same ranks takes over the channel of one that has
been freed.  Two never use a channel at the same time, since messages on both have no order that all ranks agree on.

Three rules hold for a channel that a tape still refers to.  Ranks free communicators at different times: they agree on
a channel that is free on all of them.  Agreements and notices carry the identity of the communicator that they are
about; a message for another one is put aside for it.  Tags of adjoints, and the order of reversed collectives,
are counted over all communicators of a channel, in the order in which they used it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

# mpi4py's own: the names in its module may be rebound to ours.
_Comm, _Intracomm, _Intercomm, _WORLD = mpi.Comm, mpi.Intracomm, mpi.Intercomm, mpi.COMM_WORLD

LEAVING_TAG = 4
"""Tag of the messages by which ranks tell each other that they no longer use a channel."""


class Channel:
    """Communicators for the reverse traffic of one of the user's communicators or windows, and then of the next one.

    It lives as long as one of these uses it, and as long as a tape refers to one that has used it.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The user's ranks in a communication context of their own.
    local : mpi4py.MPI.Intracomm or None
        For an intercommunicator: the ranks of this group.
    group : Channel or None
        For an intercommunicator: the channel for messages inside this group, which reductions of objects send.
    comms : list of mpi4py.MPI.Comm
        ``comm``, and ``local`` if there is one.
    pending : list of mpi4py.MPI.Request
        The requests that create them.
    identity : int
        The same on all ranks, different for each channel.
    is_taken : bool
        True if a communicator or window that the user has not freed uses it.
    kind : hashable or None
        The key of those that can use it; None: it has a single user.
    turns : int
        The number of communicators and windows that have used it.
    tenants : mapping
        Those of them that still exist, by their identities.
    broken : str
        The reason why no further sweep can use it: an earlier one stopped, and messages of it may still be in transit.
    by_thread : int or None
        The thread whose sweep is using it.
    threads : set of int
        The threads that have recorded on it.
    in_forward_mode : list of weakref.ref
        Logs of messages with tangents on it.
    """

    __slots__ = (
        *("__weakref__", "broken", "by_thread", "comm", "comms", "group", "identity", "in_forward_mode", "is_taken"),
        "kind",
        *("local", "pending", "tenants", "threads", "turns"),
    )

    def __init__(self, comm: mpi.Comm, identity: int, pending: mpi.Request | None = None) -> None:
        self.comm = comm
        self.local: mpi.Intracomm | None = None
        self.group: Channel | None = None
        self.comms = [comm]
        self.pending = [] if pending is None else [pending]
        self.identity = identity
        self.is_taken = False
        self.kind: Any = None
        self.turns = 0
        self.tenants: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.broken = ""
        self.by_thread: int | None = None
        self.threads: set[int] = set()
        self.in_forward_mode: list[weakref.ref] = []
        weakref.finalize(self, _unused.append, (self.comms, self.pending)).atexit = False

    def enter(self, tenant: Any) -> int:
        """Give the channel to the next user; return the number of users so far."""
        self.is_taken = True
        self.tenants[tenant.identity] = tenant
        self.turns += 1
        left = _left_by_kind.get(self.kind)
        if left:
            left[:] = [other for other in left if other() not in (self, None)]
        return self.turns

    def leave(self) -> None:
        """Release the channel: another communicator or window may use it."""
        self.is_taken = False
        if self.kind is not None:
            _left_by_kind.setdefault(self.kind, []).insert(0, weakref.ref(self))

    def is_free(self) -> bool:
        """Return whether another communicator or window can take over the channel, as far as this rank knows."""
        if self.is_taken or self.pending or not self.threads <= {threading.get_ident()}:
            return False
        parts = (self,) if self.group is None else (self, self.group)
        return all(part.by_thread is None and not part.broken and part._is_settled() for part in parts)

    def _is_settled(self) -> bool:
        """Return whether no receive of forward mode is still open."""
        self.in_forward_mode[:] = [log for log in self.in_forward_mode if log() is not None]
        return not any(log.waiting for log in self._forward_logs())

    def _forward_logs(self) -> list[Any]:
        """Return the logs of forward mode that exist; the list keeps them alive."""
        return [log for other in self.in_forward_mode if (log := other()) is not None]

    def under_way(self) -> int:
        """Return the number of messages of forward mode sent minus those received; its sum over ranks is under way."""
        parts = (self,) if self.group is None else (self, self.group)
        return sum(log.balance for part in parts for log in part._forward_logs())

    def keep(self) -> None:
        """Never return the channel to MPI: there may be messages on it that are not received."""
        _never_freed.update(comm.handle for comm in self.comms)

    def told(self, identity: int, comm: mpi.Comm, source: int, tag: int, status: mpi.Status) -> np.ndarray | None:
        """Receive the next message of a rank about the tenant of this identity; return None if it has not come.

        Messages about other tenants are put aside, and those about tenants that no longer exist are dropped.
        """
        place = comm.handle, source, tag
        tenant = self.tenants.get(identity)
        known = None if tenant is None else tenant.aside.get(place)
        if known:
            return known.popleft()
        while (message := comm.Improbe(source, tag, status)) is not None:
            came = np.empty(status.Get_count(mpi.INT64_T), np.int64)
            message.Recv(came)
            if came[0] == identity:
                return came
            self.put_aside(place, came)
        return None

    def put_aside(self, place: tuple[int, int, int], came: np.ndarray) -> None:
        """Keep a message for the tenant that it is about, if that still exists; its place is its handle of a
        communicator, its sender and its tag."""
        tenant = self.tenants.get(int(came[0]))
        if tenant is not None:
            tenant.aside.setdefault(place, deque()).append(came)


# ------------------------------------------------------------------------------------------------------- taking over

_left_by_kind: dict[Any, list[weakref.ref[Channel]]] = {}
"""Channels that no communicator or window uses, by kind, the latest first."""

_MOST_OFFERED = 8
"""The number of channels that one rank proposes to the others."""


def channel_for(comm: Any, of_window: bool = False) -> tuple[Channel, int]:
    """Return a channel for a new communicator, or a window on it, and a new identity; collective.

    The ranks agree by a message on the new communicator itself, on which nothing else is in transit; for a window, by a
    collective on its communicator.
    """
    group = _Comm.Get_group(comm)
    merged = _Intercomm.Merge(comm) if _Comm.Is_inter(comm) else None
    inside = comm if merged is None else merged
    kind = _kind_of(comm, group, of_window)
    known = _left_by_kind.get(kind, [])
    free = {channel.identity: channel for other in known if (channel := other()) is not None and channel.is_free()}
    identity, offered = _offer(inside, list(free)[:_MOST_OFFERED])
    channel = _agreed(inside, [free.get(other) for other in offered])
    if channel is None:
        # Unlike Dup, Create calls no attribute callbacks of the user's.
        channel = Channel(_Comm.Create(comm, group), identity)
        if merged is not None:
            channel.local = merged.Create(group)
            channel.comms.append(channel.local)
            channel.group = Channel(merged.Create(group), identity ^ 1)
        channel.kind = kind
    if merged is not None:
        merged.Free()
    group.Free()
    return channel, identity


def _kind_of(comm: Any, group: mpi.Group, of_window: bool) -> Any:
    """Return a key shared by communicators that can use one channel; None if there are ranks of other worlds."""
    between = _Comm.Is_inter(comm)
    ranks = [in_world(group, keep=True)]
    if between:
        ranks.append(in_world(_Intercomm.Get_remote_group(comm)))
    if any(-1 in found for found in ranks):
        return None
    return of_window, between, *(np.array(found, np.int32).tobytes() for found in ranks)


def _offer(comm: Any, free: list[int]) -> tuple[int, list[int]]:
    """Return a unique number, and the channels that the first rank proposes; collective."""
    message = np.zeros(2 + _MOST_OFFERED, np.int64)
    message[0] = abs(int.from_bytes(os.urandom(8), "little", signed=True) >> 1) | 1
    message[1] = len(free)
    message[2 : 2 + len(free)] = free
    if _Comm.Get_size(comm) > 1:
        _Comm.Bcast(comm, message, 0)
    identity, count, *offered = message.tolist()
    return identity, offered[:count]


def _agreed(comm: Any, free: list[Channel | None]) -> Channel | None:
    """Return the first of these channels that is free on all ranks; collective."""
    ballot, size = _ballot(free), _Comm.Get_size(comm)
    if free and size > 1:
        _Comm.Allreduce(comm, mpi.IN_PLACE, ballot)
    return _elected(free, ballot, size)


def _ballot(free: list[Channel | None]) -> np.ndarray:
    """Return for each channel whether it is free here, and the number of messages under way on it."""
    return np.array([(0, 0) if channel is None else (1, channel.under_way()) for channel in free], np.int64)


def _elected(free: list[Channel | None], ballot: Any, size: int) -> Channel | None:
    return next((channel for channel, (votes, much) in zip(free, ballot.tolist()) if votes == size and not much), None)


class Election:
    """The nonblocking choice of an earlier duplicate's channel that a duplicate by Idup takes over.

    Parameters
    ----------
    comms : list of mpi4py.MPI.Comm
        The communicators on which all ranks vote: for an intercommunicator, that of this group and the one between
        both.
    elder : list of Channel or None
        The channels of earlier duplicates, the same on all ranks.
    """

    __slots__ = ("_ballots", "_free", "_requests", "_size")

    def __init__(self, comms: list[Any], elder: list[Channel | None]) -> None:
        self._free = [channel if channel is not None and channel.is_free() else None for channel in elder]
        mine = _ballot(self._free)
        for channel in self._free:
            if channel is not None:
                channel.is_taken = True  # until the choice is known
        self._ballots = [np.zeros_like(mine) for _ in comms]
        self._requests = [comm.Iallreduce(mine, ballot) for comm, ballot in zip(comms, self._ballots)]
        self._size = sum(comm.Get_remote_size() if comm.Is_inter() else comm.Get_size() for comm in comms)

    def result(self) -> Channel | None:
        """Wait for the choice: all ranks have voted."""
        mpi.Request.Waitall(self._requests)
        for channel in self._free:
            if channel is not None:
                channel.is_taken = False
        return _elected(self._free, sum(self._ballots), self._size)


def in_world(group: mpi.Group, ranks: list[int] | None = None, keep: bool = False) -> list[int]:
    """Translate ranks of a group (None: all) to ranks of the world, -1 if they are not in it; the group is freed."""
    world = _Comm.Get_group(_WORLD)
    found = mpi.Group.Translate_ranks(group, ranks, world)
    for used in (world,) if keep else (group, world):
        used.Free()
    return [-1 if rank == mpi.UNDEFINED else rank for rank in found]


# ---------------------------------------------------------------------------------------------------- giving it back

_unused: list[tuple[list[mpi.Comm], list[mpi.Request]]] = []  # channels that this rank has left
_left: list[tuple[list[mpi.Comm], Iterator[None]]] = []  # channels of which other ranks are being informed
_never_freed: set[int] = set()  # handles of channels with messages that may never be received

_leaving = threading.Lock()

MOST_LEFT = 256
"""The number of channels that may wait until all ranks have left them; the others are never returned to MPI."""

# Release 2021.18 crashes in a later Rget if they wait.
_FREED_AT_ONCE = mpi.get_vendor()[0] == "Intel MPI"


def free_unused() -> None:
    """Return channels to MPI that all ranks have left.

    If a channel were returned earlier, a new communicator with its context could receive messages that another rank
    still sends.  This function does not wait, because garbage is collected at a different time on each rank.  (It is
    not called by finalizers, which may run at any moment.)
    """
    if not _leaving.acquire(blocking=False):
        return  # another thread does so
    try:
        _free_what_all_have_left()
    finally:
        _leaving.release()


def _free_what_all_have_left() -> None:
    while _unused:
        comms, pending = _unused.pop()
        if any(comm.handle in _never_freed for comm in comms):
            continue
        steps: Iterator[None] = _leave(pending, *comms)
        if _FREED_AT_ONCE:
            mpi.Request.Waitall(pending)
            steps = iter(())
        _left.append((comms, steps))
    for left in _left.copy():
        comms, steps = left
        if any(True for _ in steps):
            continue
        _left.remove(left)
        if any(comm.Iprobe(mpi.ANY_SOURCE, mpi.ANY_TAG) for comm in comms):  # from a sweep that this rank never ran
            _never_freed.update(comm.handle for comm in comms)
            continue
        for comm in comms:
            comm.Free()
    del _left[:-MOST_LEFT]


def _leave(pending: list[mpi.Request], comm: mpi.Comm, local: mpi.Intracomm | None = None) -> Generator[None]:
    """Tell all other ranks that this one has left a channel, and wait until they have left it, too.

    It uses messages, which cannot be mistaken for a collective of a sweep that other ranks still run.
    """
    for request in pending:
        while not request.Test():
            yield
    inside = comm if local is None else local
    rank, size = inside.Get_rank(), inside.Get_size()
    distance = 1
    while distance < size:  # dissemination
        yield from _tell(inside, [(rank + distance) % size], (rank - distance) % size)
        distance *= 2
    if local is not None:
        others = comm.Get_remote_size()
        yield from _tell(comm, range(rank, others, size), rank % others)


def _tell(comm: mpi.Comm, dests: Iterable[int], source: int) -> Generator[None]:
    nothing = [None, 0, mpi.BYTE]
    going = [comm.Isend(nothing, dest, LEAVING_TAG) for dest in dests]
    while not comm.Iprobe(source, LEAVING_TAG):
        yield
    comm.Recv(nothing, source, LEAVING_TAG)
    for request in going:
        while not request.Test():
            yield
