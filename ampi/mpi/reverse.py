"""The reverse communicator of a communicator: what its adjoint traffic runs on, made when it is made."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Collection, Generator, Iterable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from .waiting import wait

# mpi4py's own: the names in its module may be rebound to ours.
_Comm, _Intracomm, _Intercomm, _WORLD = mpi.Comm, mpi.Intracomm, mpi.Intercomm, mpi.COMM_WORLD
_Topocomm, _Cartcomm, _Graphcomm = mpi.Topocomm, mpi.Cartcomm, mpi.Graphcomm

AGREEMENT_TAG = 1
"""Tag of what two ranks agree on at the beginning of a sweep."""

COLLECTIVE_AGREEMENT_TAG = 2
"""Tag of what all ranks agree on at the beginning of a sweep."""

COLLECTIVE_TAG = 3
"""Tag of messages inside reversed collectives: all ranks of a communicator run these in the same order."""

LEAVING_TAG = 4
"""Tag of what ranks tell each other when they use the reverse communicator no more."""

SIZES_TAG = 5
"""Tag of the lengths of collective calls, which two ranks compare at the beginning of a sweep."""

FIRST_TAG = 6
"""First tag of the adjoints of messages."""


class Reverse:
    """The reverse side of a communicator.

    It lives as long as the communicator, and as long as a tape refers to it.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The same ranks in a communication context of their own.
    identity : int
        The same on all ranks, and another for each communicator. A rank may give a communicator back to MPI and get
        its context again for a new one while a message of another rank, of a sweep that never took place here, is
        still under way on it: what is agreed upon, and notices, bear the identity, and others are thrown away. 0 for
        duplicates by Idup of a communicator that has no reverse side.
    place : object
        Stands for it where it must not be kept alive.
    duplicates : int
        Number of duplicates by Idup.
    rank : int
    name : str
        The communicator's, for messages.
    local : mpi4py.MPI.Intracomm or None
        Of an intercommunicator: the ranks of this group.
    group : Reverse or None
        Of an intercommunicator: for messages inside this group, which reductions of objects send.
    slots, slots_started : list of int or None
        Of a topology: from which of its neighbors' slots the edges come that arrive here, in blocking collectives and
        in those with a request. Implementations disagree where two edges join two ranks, some even with themselves.
    tags : int
        Number of tags for adjoints.
    sweeps : int
        Number of sweeps begun, or refused, that concern all ranks.
    sweeps_with : dict
        Number of those besides that concern one other rank, by rank.
    notices : list of tuple
        From ranks that stopped a sweep: the rank, the sweep's number, and why; those that are still to be heeded.
    partitioned : dict
        Number of partitioned requests made so far, by method, partner and tag.
    calls : dict
        What collective calls with the same arguments have in common.
    comms : list of mpi4py.MPI.Comm
        ``comm``, and ``local`` where there is one.
    tapes : list of weakref.ref
        That have logged messages on it, and may be open.
    by_thread : int or None
        Whose sweep is using it.
    world : dict
        What partners are called in the world, of those that have been asked for one by one.
    broken : str
        Why no further sweep can use it: an earlier one stopped half-way, and messages of it may still be under way.
    """

    __slots__ = (
        "__weakref__",
        "_broken",
        "by_thread",
        "calls",
        "comm",
        "comms",
        "duplicates",
        "group",
        "identity",
        "local",
        "name",
        "notices",
        "partitioned",
        "pending",
        "place",
        "rank",
        "slots",
        "slots_started",
        "sweeps",
        "sweeps_with",
        "tags",
        "tapes",
        "world",
    )

    def __init__(self, comm: mpi.Comm, rank: int, name: str, identity: int, pending: mpi.Request | None = None) -> None:
        self.comm = comm
        self.place = object()
        self.identity = identity
        self.duplicates = 0
        self.rank = rank
        self.name = name
        self.tags = _tag_limit() + 1 - FIRST_TAG
        self._broken = ""
        self.pending = [] if pending is None else [pending]
        self.comms = [comm]
        self.sweeps = 0
        self.sweeps_with: dict[int, int] = {}
        self.notices: list[tuple[int, int, str]] = []
        self.partitioned: dict[tuple[str, int, int], int] = {}
        self.calls: dict[Any, Any] = {}
        self.tapes: list[weakref.ref] = []
        self.by_thread: int | None = None
        self.slots: list[int] | None = None
        self.slots_started: list[int] | None = None
        self.local: mpi.Intracomm | None = None
        self.group: Reverse | None = None
        self.world: dict[int, int] = {}
        weakref.finalize(self, _unused.append, (self.comms, self.pending)).atexit = False

    @property
    def broken(self) -> str:
        return self._broken

    @broken.setter
    def broken(self, why: str) -> None:
        self._broken = why
        self.keep()

    def keep(self) -> None:
        """There may be messages on it that nobody receives: MPI must not get it back."""
        _kept.update(comm.handle for comm in self.comms)

    @property
    def partners(self) -> int:
        """Number of ranks that a message can go to."""
        return self.comm.Get_remote_size() if self.comm.Is_inter() else self.comm.Get_size()

    def in_world(self, partner: int | None = None) -> list[int]:
        """What a partner, or all ranks (None), are called in the world; -1 if they are not in it."""
        if self.pending:
            return list(range(_WORLD.Get_size()))  # MPI has not made it yet
        between = self.comm.Is_inter()
        if partner is None:  # of so many ranks as there may be, nothing is kept
            own_group = _in_world(_Comm.Get_group(self.comm)) if between else []
            return own_group + _in_world(self._partners(between))
        known = self.world.get(partner)
        if known is None:
            (known,) = _in_world(self._partners(between), [partner])
            self.world[partner] = known
        return [known]

    def _partners(self, between: bool) -> mpi.Group:
        return _Intercomm.Get_remote_group(self.comm) if between else _Comm.Get_group(self.comm)

    def count(self, others: Collection[int] | None) -> None:
        """A sweep begins that concerns some ranks, or all (None)."""
        if others is None:
            self.sweeps += 1
            return
        for rank in others:
            self.sweeps_with[rank] = self.sweeps_with.get(rank, 0) + 1

    def sweep_with(self, rank: int) -> int:
        """Number of the latest sweep that concerns another rank; it counts the same sweeps."""
        return self.sweeps + self.sweeps_with.get(rank, 0)

    def ready(self) -> None:
        """Complete the nonblocking creation of the reverse communicator."""
        while self.pending:
            wait(self.pending[-1], lambda: f"the creation of {self.name} by Idup")
            self.pending.pop()
        if self.group is not None:
            self.group.ready()


_reverses: dict[int, Reverse] = {}  # by handle of the communicator
_duplicates: list[Any] = []  # by Idup, of which the handle is not known yet
_unused: list[tuple[list[mpi.Comm], list[mpi.Request]]] = []  # that this rank has left
_left: list[tuple[list[mpi.Comm], Iterator[None]]] = []  # of which other ranks are being told, and asked
_kept: set[int] = set()  # handles of those on which messages may be under way for ever

_leaving = threading.Lock()

MOST_LEFT = 256
"""So many reverse sides may wait until all ranks have left them; others are never given back to MPI."""

# Release 2021.18 crashes in a later Rget where they wait.
_FREED_AT_ONCE = mpi.get_vendor()[0] == "Intel MPI"


def register(comm: Any) -> Reverse:
    """Make the reverse communicator of a new communicator; collective over it."""
    free_unused()
    group = _Comm.Get_group(comm)
    # Create, unlike Dup, calls no attribute callbacks of the user's.
    reverse = Reverse(_Comm.Create(comm, group), _Comm.Get_rank(comm), name_of(comm), 0)
    reverse.slots, reverse.slots_started = slots_of(comm)
    if _Comm.Is_inter(comm):
        merged = _Intercomm.Merge(comm)
        reverse.identity = new_identity(merged)
        reverse.local = merged.Create(group)
        reverse.comms.append(reverse.local)
        reverse.group = Reverse(merged.Create(group), reverse.rank, _name_of_group(reverse), reverse.identity ^ 1)
        merged.Free()
    else:
        reverse.identity = new_identity(reverse.comm)
    group.Free()
    _reverses[comm.handle] = reverse
    return reverse


def new_identity(comm: mpi.Intracomm) -> int:
    """A number that no other communicator has; collective."""
    number = np.frombuffer(bytearray(os.urandom(8)), np.int64)
    comm.Bcast(number, 0)
    return abs(int(number[0])) | 1


def register_duplicate(parent: Any, comm: Any) -> None:
    """The same for a nonblocking duplicate of `parent` which is not complete yet."""
    free_unused()
    known = reverse_of(parent)
    if known is not None or not _Comm.Is_inter(parent):
        _duplicates.append(comm)
    if _Comm.Is_inter(parent):
        _register_duplicate_between(known, comm)
        return
    # Two at once of one communicator are not to be had in every implementation.
    origin = _Intracomm(parent) if known is None or known.pending else known.comm
    other, request = origin.Idup()
    name = f"a duplicate of {name_of(parent)}"
    comm._reverse = Reverse(other, parent.Get_rank(), name, _identity_of_duplicate(known), request)
    if known is not None:
        comm._reverse.slots, comm._reverse.slots_started = known.slots, known.slots_started


def _register_duplicate_between(known: Reverse | None, comm: Any) -> None:
    """Duplicates of an intercommunicator without a reverse side have none either."""
    comm._reverse = None
    if known is None:
        return
    known.ready()  # all ranks have begun it
    identity = _identity_of_duplicate(known)
    other, request = known.comm.Idup()
    reverse = comm._reverse = Reverse(other, known.rank, f"a duplicate of {known.name}", identity, request)
    reverse.local, request = known.local.Idup()  # type: ignore[union-attr]
    reverse.pending.append(request)
    reverse.comms.append(reverse.local)
    inside, request = known.group.comm.Idup()  # type: ignore[union-attr]
    reverse.group = Reverse(inside, known.rank, _name_of_group(reverse), identity ^ 1, request)


def _enter_duplicates() -> None:
    """Let duplicates by Idup that are complete by now be known by their handles, as other objects have them."""
    for comm in _duplicates:
        if comm:
            _reverses.setdefault(comm.handle, comm._reverse)
    _duplicates[:] = [comm for comm in _duplicates if not comm]


def _identity_of_duplicate(known: Reverse | None) -> int:
    if known is None or not known.identity:
        return 0
    known.duplicates += 1
    return hash((known.identity, known.duplicates)) & 0x7FFFFFFFFFFFFFFF


def _name_of_group(reverse: Reverse) -> str:
    return f"this rank's group of {reverse.name}"


def slots_of(comm: Any) -> tuple[list[int] | None, list[int] | None]:
    """From which of its neighbors' slots each edge of a topology comes that arrives at this rank; collective.

    For blocking collectives, and for those with a request. None without a topology, and for graphs on which MPI has no
    neighborhood collectives.
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
    """Whether every edge that leaves a rank of a distributed graph arrives where it leads."""
    left = sorted((rank, dest) for rank, (_, leaving) in enumerate(edges) for dest in leaving)
    return left == sorted((source, rank) for rank, (arriving, _) in enumerate(edges) for source in arriving)


def _is_symmetric(index: list[int], edges: list[int]) -> bool:
    starts = [0, *index[:-1]]
    pairs = [(rank, other) for rank, (start, end) in enumerate(zip(starts, index)) for other in edges[start:end]]
    return sorted(pairs) == sorted((other, rank) for rank, other in pairs)


@contextlib.contextmanager
def forgetting(comm: Any) -> Iterator[None]:
    """The user frees a communicator inside.  Its reverse communicator is freed when no tape refers to it any more.

    It is forgotten before: its handle may at once be that of a communicator which another thread makes.
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
    reverse = own = None
    free_unused()


def free_unused() -> None:
    """Give those back to MPI that all ranks have left.

    Before, a new communicator in the place of one would receive what another rank still says on it.  Nothing waits
    here: garbage is collected at another time on each rank.  (Finalizers may run in the middle of anything: not there.)
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
        if any(comm.handle in _kept for comm in comms):
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
        if any(comm.Iprobe(mpi.ANY_SOURCE, mpi.ANY_TAG) for comm in comms):  # of a sweep that never took place here
            _kept.update(comm.handle for comm in comms)
            continue
        for comm in comms:
            comm.Free()
    del _left[:-MOST_LEFT]


def _leave(pending: list[mpi.Request], comm: mpi.Comm, local: mpi.Intracomm | None = None) -> Generator[None]:
    """Tell all other ranks that this one has left a reverse side, and wait until they have.

    In messages, which no collective of a sweep that other ranks still believe in can take for its own.
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


def reverse_of(comm: Any) -> Reverse | None:
    """The reverse side of a communicator of ours; None if the communicator was not made by one of ours."""
    try:
        return comm._reverse
    except AttributeError:
        if comm.handle not in _reverses:
            _enter_duplicates()
        reverse = _reverses.get(comm.handle)
    if hasattr(comm, "__dict__"):  # one of mpi4py's own has none
        comm._reverse = reverse
    return reverse


def set_reverse(comm: Any, reverse: Reverse | None) -> None:
    """Say which is the reverse side of a communicator of ours."""
    comm._reverse = reverse


def _in_world(group: mpi.Group, ranks: list[int] | None = None) -> list[int]:
    """What ranks of a group (None: all) are called in the world; the group is freed."""
    world = _Comm.Get_group(_WORLD)
    found = mpi.Group.Translate_ranks(group, ranks, world)
    for used in (group, world):
        used.Free()
    return [-1 if rank == mpi.UNDEFINED else rank for rank in found]


def name_of(comm: Any) -> str:
    """A communicator's name, or what to call it, for messages."""
    return _Comm.Get_name(comm) or f"a communicator of {_Comm.Get_size(comm)} ranks"


def _tag_limit() -> int:
    limit = _WORLD.Get_attr(mpi.TAG_UB)
    return 32767 if limit is None else int(limit)
