"""What is done through windows, as a tape has it, and its adjoint on the shadow window.

In a sweep each window has a *shadow window* on the adjoint of its memory.  The origin of an operation alone does the
adjoint of what it did: it fetches x̄ for a Put, and adds x̄ for a Get.

Operations whose derivatives depend on values (PROD, MIN, MAX, MINLOC, MAXLOC) fetch the target's old value along with
the primal.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import ActivityError, CommunicationError
from ..memory import Storage, address_of
from ..tape import Sweep
from .agreement import call_site, line_of, wait
from .buffers import Buffer, _inferred, _typemap, as_array, simple_form
from .datatypes import Piece, Typemap, datatype_named, made_of, reach, regrouped, typemap_of
from .messages import Collective
from .reductions import PAIR_TYPES, known, pair_of
from .reverse import FIRST_TAG
from .turns import Turns
from .waiting import Patience, outbox_of, stranded

_Win = mpi.Win  # mpi4py's own: the name in its module is rebound

# Tags on a window's reverse communicator: of Wait, of Start, and of what a fence delivers.
_READY, _DONE, _LATER = FIRST_TAG, FIRST_TAG + 1, FIRST_TAG + 2

LOCATED = (mpi.MINLOC, mpi.MAXLOC)
"""Operations on pairs of a value and a location."""

NONLINEAR = (mpi.PROD, mpi.MIN, mpi.MAX, *LOCATED)
"""Operations whose derivatives depend on values."""


_REQUESTS_CRASH = mpi.get_vendor()[0] == "Intel MPI"  # in Raccumulate and Rget_accumulate, release 2021.18


class Target:
    """Which elements of a target's window an operation touches.

    Attributes
    ----------
    rank : int
    start, stop : int
        Range of bytes in the window; of addresses in a dynamic window.
    count : int
        Number of basic elements of ``dtype``.
    pieces : list of Piece or None
        Where the elements lie, from ``start`` on; None: one after the other.
    """

    __slots__ = ("count", "dtype", "pieces", "rank", "start", "stop")

    def __init__(self, rank: int, start: int, count: int, dtype: np.dtype, pieces: Sequence[Piece] | None) -> None:
        self.rank = rank
        self.count = count
        self.dtype = dtype
        low, high = (0, count * dtype.itemsize) if pieces is None else reach(pieces, dtype.itemsize)
        self.start, self.stop = start + low, start + high
        self.pieces = None if pieces is None else [piece._replace(offset=piece.offset - low) for piece in pieces]

    def overlaps(self, other: Target) -> bool:
        """Whether both may touch one location (never denied if they do)."""
        return self.rank == other.rank and self.start < other.stop and other.start < self.stop

    @contextlib.contextmanager
    def argument(self, start: int, unit: int, datatype: mpi.Datatype) -> Iterator[tuple[int, int, mpi.Datatype]]:
        """mpi4py's target argument for these elements, from ``start`` on, in a window with a displacement unit."""
        displacement, rest = divmod(start, unit)
        if self.pieces is None and not rest:
            yield displacement, self.count, datatype
            return
        pieces = [Piece(0, (self.count,), (self.dtype.itemsize,))] if self.pieces is None else self.pieces
        derived = made_of(datatype, [piece._replace(offset=piece.offset + rest) for piece in pieces])
        try:
            yield displacement, 1, derived
        finally:
            derived.Free()


def target_of(rank: int, unit: int, spec: Any, origin: Any, dtype: np.dtype) -> Target:
    """The elements of the dtype that a target argument of mpi4py's means.

    Parameters
    ----------
    unit : int
        Displacement unit of the target.
    spec
        The target argument; what it does not say is as in the origin argument.
    """
    displacement, count, datatype = 0, None, None
    if isinstance(spec, (list, tuple)):
        displacement, count, datatype = (*spec, *(0, None, None)[len(spec) :])
    elif spec is not None:
        displacement = spec
    own_count, own_typemap = _items(origin)
    typemap = own_typemap if datatype is None else typemap_of(_datatype(datatype))
    count = own_count if count is None else count
    start = displacement * unit
    if typemap.dtype == dtype and typemap.contiguous:
        return Target(rank, start, count * typemap.length, dtype, None)
    pieces = list(typemap.layout(count).pieces) if typemap.dtype == dtype else _regrouped(typemap, count, dtype)
    return Target(rank, start, sum(piece.count for piece in pieces), dtype, pieces)


def _regrouped(typemap: Typemap, count: int, dtype: np.dtype) -> list[Piece]:
    pieces = None if typemap.dtype is None else regrouped(typemap, count, dtype.itemsize)
    if pieces is None:
        raise ActivityError(
            f"the target's datatype in one-sided communication is not made of whole elements of {dtype}; "
            "use the datatype of the elements"
        )
    return pieces


def _datatype(datatype: Any) -> mpi.Datatype:
    return datatype_named(datatype) if isinstance(datatype, str) else datatype


def _items(spec: Any) -> tuple[int, Typemap]:
    """Number of items of an origin argument and their typemap."""
    memory, count, displ, datatype = simple_form(spec)
    array = as_array(memory)
    typemap = _typemap(array, datatype)
    if count is None:
        count = _inferred(array.nbytes - (displ or 0) * typemap.extent, typemap.extent)
    return count, typemap


# ------------------------------------------------------------------------------------------------- what was recorded


def elements_of(buffer: Buffer) -> np.ndarray:
    """The elements that an atomic operation reads: values, or pairs of a value and a location."""
    if not buffer.mixed:
        return buffer.values()
    locations = buffer.others(np.dtype(np.intc))
    if len(locations) != buffer.count:
        raise ActivityError(
            "an atomic operation on a datatype that is neither of one dtype nor of pairs, on a window that may carry "
            "derivatives; use an operation for each dtype"
        )
    pairs = np.empty(buffer.count, pair_of(buffer.dtype))
    pairs["value"], pairs["location"] = buffer.values(), locations
    return pairs


def _type_of(dtype: np.dtype) -> mpi.Datatype:
    return datatype_named(dtype.char) if dtype.names is None else PAIR_TYPES[dtype["value"].char]


class Access:
    """One operation on a target's memory, and its adjoint.

    Attributes
    ----------
    op : MPI.Op or None
        What is done to the target's memory; None: nothing.
    origin : Buffer or None
        What was read here, if it is active.
    result : Buffer or None
        What was received here, if it is tracked.
    old : Buffer or ndarray or None
        Where the target's old value arrives, if the derivative needs it or the operation has been put off.
    request : object or None
        Of an operation with a request that brings a result: the request's part.
    """

    __slots__ = (
        *("_came", "_operand", "_sink", "_values", "name", "old", "op", "origin", "request", "result"),
        *("target", "where", "window"),
    )

    def __init__(
        self, name: str, window: Any, target: Target, op: mpi.Op | None, origin: Buffer | None, result: Buffer | None
    ) -> None:
        self.name = name
        self.window = window
        self.target = target
        self.op = op
        self.origin = origin
        self.result = result
        self.old: Any = None
        self.request: Any = None
        self.where = call_site()
        self._operand: np.ndarray | None = None
        self._sink: Buffer | None = None
        self._values: tuple[np.ndarray, np.ndarray] | None = None  # of the target before, and of the origin
        self._came: np.ndarray | None = None

    @property
    def updates(self) -> bool:
        """Whether the target's memory is changed."""
        return self.op is not None and self.op != mpi.NO_OP

    @property
    def nonlinear(self) -> bool:
        """Whether the derivative depends on values."""
        return self.op in NONLINEAR

    def keep(self, source: Buffer, sink: Buffer | None) -> None:
        """Before a nonlinear operation starts: keep what its derivative needs."""
        self._operand = elements_of(source)
        self.old = np.empty_like(self._operand) if sink is None else sink

    def put_off(self, source: Buffer | None, sink: Buffer | None) -> None:
        """Keep what is needed to carry out an atomic operation at the end of its epoch."""
        if source is None:
            self._operand = np.zeros(sink.count, pair_of(sink.dtype) if sink.mixed else sink.dtype)  # type: ignore
        else:
            self._operand = elements_of(source)
        self._sink = sink
        if sink is not None or self.nonlinear:
            self.old = np.empty_like(self._operand)

    def holds(self, buffer: Buffer) -> bool:
        """Whether values are yet to be read from the buffer's memory, or written there."""
        return buffer is self.old or buffer is self._sink

    def carry_out(self, win: Any) -> None:
        """Start the operation that was put off, in words of our own: the user may have freed the datatypes."""
        target, datatype = self.target, _type_of(self._operand.dtype)  # type: ignore[union-attr]
        if not target.count:
            return
        operand = [self._operand, datatype]
        with target.argument(target.start, self.window.units[target.rank], datatype) as spec:
            if self.old is None:
                _Win.Accumulate(win, operand, target.rank, spec, self.op)
            else:
                _Win.Get_accumulate(win, operand, [self.old, datatype], target.rank, spec, self.op)

    def complete(self) -> None:
        """The operation has completed: the target's old value is here."""
        if self._operand is None:
            return
        x, old = self._operand, self.old
        if isinstance(old, Buffer):
            old = elements_of(old)
        if self._sink is not None:
            self._sink.store(old)
        if self.result is not None:
            self.result.detach()
        self._values = (old, x) if self.nonlinear else None
        self._operand = self.old = self._sink = None

    def take(self, sweep: Sweep) -> np.ndarray | None:
        """The result's adjoint, which is zero from here on."""
        return None if self.result is None else self.result.take(sweep)

    def exchange(self, shadow: Shadow, going: np.ndarray | None) -> None:
        """Add the result's adjoint to the target's, and fetch from there what the origin's gets."""
        target = self.target
        if self.origin is not None and shadow.place(target) is None:
            raise CommunicationError(
                f"rank {self.window.reverse.rank}: {self.describe()}, puts an active array into memory that is not "
                f"tracked on rank {target.rank}; make the memory that is attached there with ampi.numpy"
            )
        if self.op is None:
            shadow.exchange(target, going, mpi.SUM, self.waiting)
        elif self.op == mpi.REPLACE:
            going = np.zeros(target.count, target.dtype) if going is None else going
            self._came = shadow.exchange(target, going, mpi.REPLACE, self.waiting)
        elif self.nonlinear:
            after = shadow.exchange(target, None, mpi.NO_OP, self.waiting)
            before, self._came = known(self.op).partials(*self._values, after)  # type: ignore
            if going is not None:
                before = before + going
            shadow.exchange(target, before, mpi.REPLACE, self.waiting)
        else:
            self._came = shadow.exchange(target, going, mpi.NO_OP if going is None else mpi.SUM, self.waiting)

    def collect(self, sweep: Sweep) -> None:
        """Mirror of the start in a lock epoch, the exchange having taken place at the mirror of the completion."""
        if self.origin is not None and self._came is not None:
            self.origin.add(sweep, self._came)
        self._came = None

    def __call__(self, sweep: Sweep) -> None:
        """The adjoint in an epoch of Fence or Start."""
        going = self.take(sweep)
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        if self.op is None:
            if going is not None:
                shadow.later.append((self.target, going))
            return
        shadow.add_what_precedes(self.target, self.waiting)
        self.exchange(shadow, going)
        self.collect(sweep)

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} with target rank {self.target.rank} in {self.window.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"


class Completed:
    """Record of the completion of accesses to one target in a lock epoch: their ticket has its turn."""

    __slots__ = ("accesses", "rank", "ticket", "window")

    def __init__(self, window: Any, rank: int, ticket: int, accesses: list[Access]) -> None:
        self.window = window
        self.rank = rank
        self.ticket = ticket
        self.accesses = accesses

    def __call__(self, sweep: Sweep) -> None:
        """The adjoints of the accesses, one after the other."""
        going = [(access, access.take(sweep)) for access in reversed(self.accesses)]
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.turns.begin(self.rank, self.ticket, self.waiting)
        for access, adjoint in going:
            access.exchange(shadow, adjoint)
        shadow.turns.end(self.rank, self.ticket)

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"its turn for {self.accesses[-1].waiting()}"


class Fence:
    """Record of a fence: closes an epoch of all ranks, opens another."""

    __slots__ = ("token", "window")

    def __init__(self, window: Any, token: Collective) -> None:
        self.window = window
        self.token = token

    def __call__(self, sweep: Sweep) -> None:
        """The same the other way round: closes the mirror of the epoch that it opened."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.win.Sync()
        shadow.deliver(sweep, self.waiting)
        shadow.barrier(self.waiting)

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the mirror of {self.token.describe()}"


class Handshake:
    """Record of Post, Start, Complete or Wait: in the sweep it hears from the other side, or tells it."""

    __slots__ = ("name", "partners", "where", "window")

    def __init__(self, name: str, window: Any, partners: list[int]) -> None:
        self.name = name
        self.window = window
        self.partners = partners
        self.where = call_site()

    def __call__(self, sweep: Sweep) -> None:
        """Tell the other side, or wait for it."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.win.Sync()
        if self.name == "Wait":
            for origin in self.partners:
                shadow.tell(sweep, origin, _READY, [], self.waiting)
        elif self.name == "Complete":
            for target in self.partners:
                shadow.hear(target, _READY, self.waiting)
        elif self.name == "Start":
            # The target adds it: it alone knows when it does not touch its shadow.
            later = shadow.taken_later()
            for target in self.partners:
                entries = [entry for entry in later if entry[0].rank == target]
                shadow.tell(sweep, target, _DONE, entries, self.waiting)
        else:
            came = [shadow.hear(origin, _DONE, self.waiting) for origin in self.partners]
            shadow.settle()
            for entries in came:
                shadow.add(entries, self.waiting)
        shadow.win.Sync()

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} in {self.window.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the mirror of {self.describe()}"


# --------------------------------------------------------------------------------------------------- in the sweep


class Shadow:
    """A window on the adjoint of window memory, for the time of a sweep.

    Attributes
    ----------
    later : list of (Target, ndarray)
        Adjoints that are added to targets' at the end of the mirrored epoch.
    turns : Turns or None
        Of the tickets that were drawn in lock epochs; None if there are none.
    visiting : set of int
        Ranks whose shared memory's adjoint this rank works on.
    """

    __slots__ = ("block", "blocks", "later", "places", "turns", "visiting", "win", "window")

    def __init__(
        self, sweep: Sweep, window: Any, attached: Iterable[Storage], tickets: dict[int, list[int]] | None, seen: int
    ) -> None:
        self.window = window
        comm = window.reverse.comm
        storages = list(attached) if window.storage is None else [window.storage]
        self.blocks = {storage: sweep.block(storage) for storage in storages}
        self.places: list[list[tuple[int, int, int]]] | None = None
        self.visiting: set[int] = set()
        if window.segments is not None:
            self._share(sweep, window)
        elif window.attached is None:
            whole = self.blocks.get(window.storage, np.zeros(window.nbytes, np.uint8))
            self.block = whole[window.offset : window.offset + window.nbytes]
            self.win = _Win.Create(self.block, 1, comm=comm)
        else:
            self.win = _Win.Create_dynamic(comm=comm)
            for block in self._attachable():
                self.win.Attach(block)
            mine = [(storage.address, storage.nbytes, address_of(block)) for storage, block in self.blocks.items()]
            self.places = comm.allgather(mine)
        self.win.Lock_all()
        self.later: list[tuple[Target, np.ndarray]] = []
        self.turns: Any = None
        if tickets is not None:
            touched = any(block.any() for block in self.blocks.values())
            self.turns = Turns(comm, window.reverse.name, tickets, seen, touched)
            for storage in storages:
                others = sweep.guards.get(storage)  # of another window on the same memory
                sweep.guards[storage] = self.settle if others is None else _both(others, self.settle)

    def _share(self, sweep: Sweep, window: Any) -> None:
        """Adjoints of shared memory are shared as the memory is."""
        self.win = _Win.Allocate_shared(window.nbytes, 1, comm=window.reverse.comm)
        self.block = self._segment(window.reverse.rank)
        self.block[:] = self.blocks[window.storage]
        self.blocks[window.storage] = self.block
        sweep.adopt(window.storage, self.block)
        for rank, segment in window.segments.items():
            sweep.adopt(segment, self._segment(rank))
            sweep.guards[segment] = partial(self._require_turn, rank)
        window.reverse.comm.Barrier()

    def _segment(self, rank: int) -> np.ndarray:
        return np.asarray(memoryview(self.win.Shared_query(rank)[0])).view(np.uint8)

    def _require_turn(self, rank: int) -> None:
        if rank not in self.visiting:
            raise CommunicationError(
                f"rank {self.window.reverse.rank}: work on rank {rank}'s memory in {self.window.reverse.name} was "
                "recorded without its order; copy that memory into an array of this rank's first"
            )

    def _attachable(self) -> list[np.ndarray]:
        return [block for block in self.blocks.values() if block.nbytes]

    def place(self, target: Target) -> int | None:
        """Displacement of a target's elements in the shadow window; None if its memory was not tracked there."""
        if self.places is None:
            return target.start
        for address, nbytes, shadow in self.places[target.rank]:
            if address <= target.start and target.stop <= address + nbytes:
                return target.start - address + shadow
        return None

    def settle(self) -> None:
        """Before this rank touches the adjoint of its memory."""
        if self.turns is not None and self.window.reverse.rank not in self.visiting:
            self.turns.settle()
            self.win.Sync()

    def exchange(self, target: Target, going: np.ndarray | None, op: mpi.Op, describe: Callable[[], str]) -> np.ndarray:
        """Combine an array with the target's adjoint, in one atomic step; what was there before."""
        came = np.zeros(target.count, target.dtype)
        start = self.place(target)
        if not target.count or start is None:
            return came
        going = came.copy() if going is None else going
        datatype = datatype_named(target.dtype.char)
        with target.argument(start, 1, datatype) as spec:
            if _REQUESTS_CRASH:
                self.win.Get_accumulate([going, datatype], [came, datatype], target.rank, spec, op)
            else:
                wait(self.win.Rget_accumulate([going, datatype], [came, datatype], target.rank, spec, op), describe)
            self.win.Flush(target.rank)
        return came

    def add_what_precedes(self, target: Target, describe: Callable[[], str]) -> None:
        """Add now what this rank received from the same place later in the program."""
        now = [entry for entry in self.later if entry[0].overlaps(target)]
        if now:
            self.later = [entry for entry in self.later if not entry[0].overlaps(target)]
            self.add(now, describe)

    def add(self, entries: Sequence[tuple[Target, np.ndarray]], describe: Callable[[], str]) -> None:
        """Add adjoints to targets'."""
        for target, going in entries:
            if self.places is None and target.rank == self.window.reverse.rank and target.pieces is None:
                adjoint = np.ndarray((target.count,), target.dtype, self.block, target.start)
                adjoint += going
            else:
                self.exchange(target, going, mpi.SUM, describe)

    def deliver(self, sweep: Sweep, describe: Callable[[], str]) -> None:
        """Send what had to wait to its targets, who add it in the order of the ranks; collective."""
        comm = self.window.reverse.comm
        going: dict[int, list[tuple[Target, np.ndarray]]] = {}
        for entry in self.taken_later():
            going.setdefault(entry[0].rank, []).append(entry)
        counts, coming = np.zeros(comm.size, np.int64), np.zeros(comm.size, np.int64)
        counts[list(going)] = 1
        wait(comm.Ialltoall(counts, coming), describe)
        for rank, entries in going.items():
            self.tell(sweep, rank, _LATER, entries, describe)
        for rank in np.flatnonzero(coming).tolist():
            self.add(self.hear(rank, _LATER, describe), describe)

    def tell(self, sweep: Sweep, partner: int, tag: int, what: Any, describe: Callable[[], str]) -> None:
        """Send adjoints to the rank that adds them."""
        message = np.frombuffer(pickle.dumps(what), np.uint8)
        outbox_of(sweep).send(self.window.reverse.comm, message, partner, tag, describe)

    def hear(self, partner: int, tag: int, describe: Callable[[], str]) -> Any:
        """Receive what another rank tells."""
        comm, status, patience = self.window.reverse.comm, mpi.Status(), Patience()
        while (message := comm.Improbe(partner, tag, status)) is None:
            patience.pause(describe)
        came = np.empty(status.Get_count(mpi.BYTE), np.uint8)
        message.Recv(came)
        return pickle.loads(came.tobytes())

    def taken_later(self) -> list[tuple[Target, np.ndarray]]:
        """Hand out what had to wait for the end of the mirrored epoch."""
        entries, self.later = self.later, []
        return entries

    def barrier(self, describe: Callable[[], str]) -> None:
        """All ranks of the window have come here, and see each other's updates."""
        self.win.Sync()
        wait(self.window.reverse.comm.Ibarrier(), describe)
        self.win.Sync()

    def free(self) -> None:
        """The sweep is over; collective."""
        self.barrier(lambda: "the end of the other ranks' sweep")
        self.win.Unlock_all()
        if self.places is not None:
            for block in self._attachable():
                self.win.Detach(block)
        self.win.Free()
        if self.turns is not None:
            self.turns.cells.free()


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def settle() -> None:
        first()
        second()

    return settle


def shadow_of(sweep: Sweep, window: Any) -> Shadow | None:
    """The shadow window of a window; None if nothing differentiable happened through it."""
    return sweep.state["windows"].get(window)


def close_all(shadows: dict[Any, Shadow], error: BaseException | None) -> None:
    """At the end of a sweep."""
    if error is not None:
        stranded.append(shadows)
        return
    for shadow in shadows.values():
        shadow.free()
