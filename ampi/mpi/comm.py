"""Communicators: subclasses of mpi4py's, each with a reverse communicator made when it is made.

Each method that creates a communicator from one of ampi's returns one of ampi's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI as mpi

from .base.handles import AcceptsBase
from .collectives.neighborhoods import Neighborhoods
from .collectives.object_collectives import TopocommObjects
from .collectives.object_reductions import IntracommObjects
from .collectives.table import Collectives, IntracommCollectives
from .guards import guard
from .log.reverse import forgetting, register, register_duplicate, reverse_of, set_reverse
from .messages import (
    forward_partitioned as forward_partitioned,  # which enters itself into `forward`, and that into the log
)
from .messages import (
    second as second,  # which enters itself into the log
)
from .messages.point_to_point import PointToPoint
from .objects import Objects
from .waiting.meetings import attend_all, forget

# mpi4py's own classes: the names in its module may be rebound to ours.
_Comm, _Intracomm, _Cartcomm, _Intercomm = mpi.Comm, mpi.Intracomm, mpi.Cartcomm, mpi.Intercomm


_constants: dict[int, Any] = {}  # our COMM_WORLD and COMM_SELF, by handle


def make_constant(name: str, base: Any) -> Any:
    """Return our object for a communicator that exists from the start; collective over it."""
    ours = Intracomm.__new__(Intracomm, base)
    set_reverse(ours, register(base))
    ours._constant = name
    _constants[ours.handle] = ours
    return ours


def adopt(comm: Any) -> Any:
    """Return one of our communicators for a new communicator of mpi4py; collective over the new communicator.

    Null communicators are returned unchanged.
    """
    if not comm:
        return comm
    ours = _OURS[type(comm)]
    adopted = ours.__new__(ours, comm)
    set_reverse(adopted, register(comm))
    return adopted


def _ours(comm: Any) -> Any:
    """Return one of our communicators for the handle of an existing one; null communicators unchanged."""
    if comm and comm.Is_inter():
        forget()
    return _OURS[type(comm)](comm) if comm else comm


class Communicator(PointToPoint, Collectives, Objects):
    """The methods of all communicators.

    While a tape records, active buffers and objects are differentiated through the messages that carry them.  The table
    (``python -m ampi.coverage``) lists the adjoint of each method.  Adjoints run in the sweep, on a separate
    communicator, so each rank that has communicated must ask for the gradient.  Active values that are received into
    untracked memory, or combined by an operation without a rule, are an `ActivityError` if one rank can detect it, or a
    `CommunicationError` at the beginning of the sweep if it takes two.

    ``_base`` is mpi4py's class, ``_reverse`` the reverse side, ``_constant`` the name of ``COMM_WORLD`` and
    ``COMM_SELF``.
    """

    _base: Any
    _constant: str

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Communicator of an MPI handle."""
        return _ours(cls._base.fromhandle(handle))

    @classmethod
    def fromint(cls, arg: int) -> Any:
        """Communicator of an integer handle of the MPI ABI."""
        return _ours(cls._base.fromint(arg))

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """Communicator of a Fortran handle."""
        return _ours(cls._base.f2py(arg))

    @classmethod
    def Get_parent(cls) -> Any:
        """Parent intercommunicator of a program that was spawned; without a reverse side, as `Intracomm.Spawn`'s."""
        return _ours(_Comm.Get_parent())

    @classmethod
    def Join(cls, fd: int) -> Any:
        """Connect two processes by a socket; without a reverse side, as `Intracomm.Spawn`'s."""
        return _ours(_Comm.Join(fd))

    # --------------------------------------------------------------------------------------------- constructors

    def Dup(self: Any, info: Any = None) -> Any:
        """Duplicate a communicator; collective."""
        return _registered(_Comm.Dup(self, info))

    def Clone(self: Any) -> Any:
        """Clone a communicator; collective."""
        return _registered(_Comm.Clone(self))

    def Dup_with_info(self: Any, info: Any) -> Any:
        """Duplicate a communicator with hints; collective."""
        return _registered(_Comm.Dup_with_info(self, info))

    def Idup(self: Any, info: Any = None) -> tuple[Any, Any]:
        """Duplicate a communicator, nonblocking; collective."""
        comm, request = _Comm.Idup(self, info)
        register_duplicate(self, comm)
        return comm, request

    def Idup_with_info(self: Any, info: Any) -> tuple[Any, Any]:
        """Duplicate a communicator with hints, nonblocking; collective."""
        comm, request = _Comm.Idup_with_info(self, info)
        register_duplicate(self, comm)
        return comm, request

    def Split(self, color: int = 0, key: int = 0) -> Any:
        """Split a communicator by color and key; collective."""
        return adopt(_Comm.Split(self, color, key))

    def Split_type(self, split_type: int, key: int = 0, info: Any = mpi.INFO_NULL) -> Any:
        """Split a communicator by type; collective."""
        return adopt(_Comm.Split_type(self, split_type, key, info))

    def Create(self, group: Any) -> Any:
        """Create a communicator from a group; collective."""
        return adopt(_Comm.Create(self, group))

    def Shrink(self) -> Any:
        """Shrink a communicator to the ranks that have not failed; collective."""
        return adopt(_Comm.Shrink(self))

    def __reduce__(self) -> Any:
        constant = _constants.get(self.handle)
        if constant is None:
            return super().__reduce__()
        return constant._constant if self is constant else (type(self), (constant,))

    # ---------------------------------------------------------------------------------------------- destructors

    def Free(self) -> None:
        """Free a communicator; collective.  A tape that recorded on it can still be swept."""
        with forgetting(self):
            _Comm.Free(self)

    def free(self) -> None:
        """Free a communicator; collective.  Nothing happens to constants and null communicators."""
        if "_constant" not in self.__dict__:
            _Comm.free(self)

    def Disconnect(self) -> None:
        """Disconnect from a communicator; collective."""
        with forgetting(self):
            _Comm.Disconnect(self)


def _registered(comm: Any) -> Any:
    set_reverse(comm, register(comm))
    return comm


class Intracommunicator(Communicator, IntracommCollectives, IntracommObjects):
    """Further methods of intracommunicators."""

    def Create_group(self, group: Any, tag: int = 0) -> Any:
        """Create a communicator from a group; collective over the group."""
        return adopt(_Intracomm.Create_group(self, group, tag))

    @classmethod
    def Create_from_group(
        cls, group: Any, stringtag: str = "org.mpi4py", info: Any = mpi.INFO_NULL, errhandler: Any = None
    ) -> Any:
        """Create a communicator from a group; collective over the group."""
        return adopt(_Intracomm.Create_from_group(group, stringtag, info, errhandler))

    def Create_cart(self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False) -> Any:
        """Create a communicator with a Cartesian topology; collective."""
        return adopt(_Intracomm.Create_cart(self, dims, periods, reorder))

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        """Create a communicator with a graph topology; collective."""
        return adopt(_Intracomm.Create_graph(self, index, edges, reorder))

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int],
        destinations: Sequence[int],
        sourceweights: Sequence[int] | None = None,
        destweights: Sequence[int] | None = None,
        info: Any = mpi.INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        """Create a communicator with a distributed graph topology, each rank giving its own edges; collective."""
        return adopt(
            _Intracomm.Create_dist_graph_adjacent(
                self, sources, destinations, sourceweights, destweights, info, reorder
            )
        )

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | None = None,
        info: Any = mpi.INFO_NULL,
        reorder: bool = False,
    ) -> Any:
        """Create a communicator with a distributed graph topology; collective."""
        return adopt(_Intracomm.Create_dist_graph(self, sources, degrees, destinations, weights, info, reorder))

    def Create_intercomm(self, local_leader: int, peer_comm: Any, remote_leader: int, tag: int = 0) -> Any:
        """Create an intercommunicator; collective over both groups."""
        return adopt(_Intracomm.Create_intercomm(self, local_leader, peer_comm, remote_leader, tag))

    # It is not known whether the program at the other end uses ampi, so nothing is sent to it beyond the user's own
    # messages.  If it does, `Dup` on both sides makes a communicator with a reverse side.

    def Spawn(self, *arguments: Any, **keywords: Any) -> Any:
        """Spawn instances of a program; collective.

        Messages on the intercommunicator are not differentiated, and active ones are an error.  On a duplicate, made on
        both sides by ampi's ``Dup()``, they are differentiated.
        """
        return _ours(_Intracomm.Spawn(self, *arguments, **keywords))

    def Spawn_multiple(self, *arguments: Any, **keywords: Any) -> Any:
        """Spawn instances of several programs; collective.  As `Spawn`."""
        return _ours(_Intracomm.Spawn_multiple(self, *arguments, **keywords))

    def Accept(self, port_name: str, info: Any = mpi.INFO_NULL, root: int = 0) -> Any:
        """Accept a request to form a new intercommunicator; collective.  As `Spawn`."""
        return _ours(_Intracomm.Accept(self, port_name, info, root))

    def Connect(self, port_name: str, info: Any = mpi.INFO_NULL, root: int = 0) -> Any:
        """Request to form a new intercommunicator; collective.  As `Spawn`."""
        return _ours(_Intracomm.Connect(self, port_name, info, root))


class Topocommunicator(TopocommObjects, Neighborhoods, Intracommunicator):
    """Further methods of intracommunicators with a topology."""


attend_all(Communicator, "Barrier barrier bcast gather scatter allgather alltoall reduce allreduce Dup Split Free")
attend_all(Intracommunicator, "scan exscan")

# Methods without a rule raise an error for active buffers.
guard("Comm", Communicator)
guard("Intracomm", Intracommunicator)
guard("Topocomm", Topocommunicator)


class Comm(Communicator, mpi.Comm, metaclass=AcceptsBase):
    """Communication context.

    Examples
    --------
    >>> comm = ampi.COMM_WORLD.Dup()
    >>> isinstance(comm, ampi.Comm)
    True
    >>> comm.Free()
    """

    _base = mpi.Comm


class Intracomm(Intracommunicator, mpi.Intracomm, metaclass=AcceptsBase):
    """Intracommunicator, whose messages are differentiated while a tape records.

    Methods are mpi4py's, and collective where mpi4py's are.  `Communicator` describes what a sweep requires.

    Examples
    --------
    >>> comm = ampi.COMM_SELF  # a communicator of one rank; programs have COMM_WORLD
    >>> def twice(x):
    ...     y = np.zeros(2)
    ...     comm.Allreduce(x, y)
    ...     return np.sum(y * y)
    >>> ampi.grad(twice)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """

    _base = mpi.Intracomm


class Topocomm(Topocommunicator, mpi.Topocomm, metaclass=AcceptsBase):
    """Intracommunicator with a topology."""

    _base = mpi.Topocomm


class Cartcomm(Topocommunicator, mpi.Cartcomm, metaclass=AcceptsBase):
    """Cartesian topology intracommunicator.

    Examples
    --------
    >>> ring = ampi.COMM_SELF.Create_cart([1], periods=[True])
    >>> source, dest = ring.Shift(0, 1)
    >>> def shifted(x):
    ...     y = np.zeros(2)
    ...     ring.Sendrecv(x, dest, recvbuf=y, source=source)
    ...     return np.sum(y**3)
    >>> ampi.grad(shifted)(numpy.array([1.0, 2.0]))
    array([ 3., 12.])
    >>> ring.Free()
    """

    _base = mpi.Cartcomm

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        """Partition into lower-dimensional Cartesian communicators; collective."""
        return adopt(_Cartcomm.Sub(self, remain_dims))


class Graphcomm(Topocommunicator, mpi.Graphcomm, metaclass=AcceptsBase):
    """General graph topology intracommunicator."""

    _base = mpi.Graphcomm


class Distgraphcomm(Topocommunicator, mpi.Distgraphcomm, metaclass=AcceptsBase):
    """Distributed graph topology intracommunicator."""

    _base = mpi.Distgraphcomm


class Intercomm(Communicator, mpi.Intercomm, metaclass=AcceptsBase):
    """Intercommunicator, whose messages are differentiated while a tape records.

    An intercommunicator to spawned or connected programs has no reverse side, since they may not use ampi: messages on
    it are not differentiated, and active ones are an error.  A duplicate, made by ampi's ``Dup()`` on both
    sides, has one.
    """

    _base = mpi.Intercomm

    @classmethod
    def Create_from_groups(cls, *arguments: Any, **keywords: Any) -> Any:
        """Create an intercommunicator from groups; collective over both."""
        return adopt(_Intercomm.Create_from_groups(*arguments, **keywords))

    def Merge(self, high: bool = False) -> Any:
        """Merge both groups into one intracommunicator; collective.  Without a reverse side if this one has none."""
        merged = _Intercomm.Merge(self, high)
        return _ours(merged) if reverse_of(self) is None else adopt(merged)


_OURS: dict[type, Any] = {
    mpi.Comm: Comm,
    mpi.Intracomm: Intracomm,
    mpi.Topocomm: Topocomm,
    mpi.Cartcomm: Cartcomm,
    mpi.Graphcomm: Graphcomm,
    mpi.Distgraphcomm: Distgraphcomm,
    mpi.Intercomm: Intercomm,
}
