"""Shadow windows: in a sweep each window has a window on the adjoint of its memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ...memory.storages import Storage, address_of
from ...tape import Sweep, lanes_of
from ..log.reverse import FIRST_TAG
from ..memory.datatypes import datatype_named
from ..waiting.notices import stranded
from ..waiting.waiting import Patience, outbox_of, wait
from .order import Turns
from .target import Target

if TYPE_CHECKING:
    from .window import Window

_Win = mpi.Win  # mpi4py's own: the name in its module is rebound


# Tags on a window's reverse communicator: of Wait, of Start, and of the adjoints that a fence delivers.
READY, DONE, _LATER = FIRST_TAG, FIRST_TAG + 1, FIRST_TAG + 2
_REQUESTS_CRASH = mpi.get_vendor()[0] == "Intel MPI"  # in Raccumulate and Rget_accumulate, release 2021.18


@dataclass(slots=True)
class Exchange:
    """An atomic operation under way on a target's adjoint or tangent; ``came`` receives the value before it."""

    target: Target
    came: np.ndarray
    going: np.ndarray | None = None
    request: Any = None
    is_complete: bool = True


class Shadow:
    """A window on the adjoint of window memory, for the time of a sweep.

    Attributes
    ----------
    came : dict
        The adjoints fetched for the origins of accesses, until they are added.
    later : list of (Target, ndarray)
        Adjoints that are added to targets' at the end of the mirrored epoch.
    turns : Turns or None
        The turns of the tickets drawn in lock epochs; None without any.  All lanes of a sweep share them.
    visiting : set of int
        Ranks whose shared memory's adjoint this rank works on.
    """

    __slots__ = ("_guarded", "block", "blocks", "came", "later", "places", "turns", "visiting", "win", "window")

    def __init__(self, sweep: Sweep, window: Window, attached: Iterable[Storage]) -> None:
        self.window = window
        comm = window.reverse.comm
        storages = list(attached) if window.storage is None else [window.storage]
        self.blocks = {storage: sweep.block(storage) for storage in storages}
        self.places: list[list[tuple[int, int, int]]] | None = None
        self.visiting: set[int] = set()
        self._guarded: dict[Storage, tuple[Callable[[], None], Callable[[], None] | None]] = {}
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
        self.came: dict[Any, np.ndarray] = {}
        self.later: list[tuple[Target, np.ndarray]] = []
        self.turns: Any = None

    def is_touched(self) -> bool:
        """Return whether the window's memory has an adjoint at the start of the sweep: it is an output."""
        return any(block.any() for block in self.blocks.values())

    def follow(self, sweep: Sweep, turns: Turns) -> None:
        """Have this rank wait for the turns of others before it touches the adjoint of its memory."""
        self.turns = turns
        for storage in self.blocks:
            others = sweep.guards.get(storage)  # of another window on the same memory
            guard = self.settle if others is None else _both(others, self.settle)
            sweep.guards[storage] = guard
            self._guarded[storage] = guard, others

    def leave(self, sweep: Sweep) -> None:
        """Mirror the window's creation: the adjoint of its memory belongs to this rank alone again; collective."""
        if self.window.segments is not None:
            self.barrier(lambda: f"the mirror of the creation of {self.window.reverse.name}")
            sweep.adopt(self.window.storage, self.block.copy())
            for segment in self.window.segments.values():
                sweep.guards.pop(segment, None)
                sweep.adopt(segment, np.zeros(segment.nbytes, np.uint8))
                sweep.forget(segment)
        guarded = self._guarded
        self.free()
        self.turns = None
        for storage, (guard, others) in guarded.items():
            if sweep.guards.get(storage) is guard:
                sweep.guards.pop(storage)
                if others is not None:
                    sweep.guards[storage] = others

    def _share(self, sweep: Sweep, window: Window) -> None:
        """Share the adjoints of shared memory."""
        self.win = _Win.Allocate_shared(window.nbytes, 1, comm=window.reverse.comm)
        self.block = self._segment(window.reverse.rank)
        self.block[:] = self.blocks[window.storage]
        self.blocks[window.storage] = self.block
        sweep.adopt(window.storage, self.block)
        for rank, segment in window.segments.items():
            sweep.adopt(segment, self._segment(rank))
            sweep.guards[segment] = partial(self.require_turn, rank)
        window.reverse.comm.Barrier()

    def _segment(self, rank: int) -> np.ndarray:
        return np.asarray(memoryview(self.win.Shared_query(rank)[0])).view(np.uint8)

    def require_turn(self, rank: int) -> None:
        """Raise an error if local work on another rank's memory has no turn."""
        if rank not in self.visiting:
            raise CommunicationError(
                f"rank {self.window.reverse.rank}: work on rank {rank}'s memory in {self.window.reverse.name} was "
                "recorded without its order; copy that memory into an array of this rank's first"
            )

    def _attachable(self) -> list[np.ndarray]:
        return [block for block in self.blocks.values() if block.nbytes]

    def place(self, target: Target) -> int | None:
        """Return the displacement of a target's elements in the shadow window; None if its memory is not tracked."""
        if self.places is None:
            return target.start
        for address, nbytes, shadow in self.places[target.rank]:
            if address <= target.start and target.stop <= address + nbytes:
                return target.start - address + shadow
        return None

    def settle(self) -> None:
        """Wait for the turns of others before this rank touches the adjoint of its memory."""
        if self.turns is not None and self.window.reverse.rank not in self.visiting:
            self.turns.settle()
            self.win.Sync()

    def exchange(self, target: Target, going: np.ndarray | None, op: mpi.Op, describe: Callable[[], str]) -> np.ndarray:
        """Combine an array with the target's adjoint in one atomic operation; return the value before it."""
        under_way = self.begin(target, going, op)
        self.await_request(under_way, describe)
        self.flush(under_way)
        return under_way.came

    def begin(self, target: Target, going: np.ndarray | None, op: mpi.Op) -> Exchange:
        """Start to combine an array, which must not change meanwhile, with the target's adjoint."""
        came = np.zeros(target.count, target.dtype)
        start = self.place(target)
        if not target.count or start is None:
            return Exchange(target, came)
        going = came.copy() if going is None else going
        datatype = datatype_named(target.dtype.char)
        with target.argument(start, 1, datatype) as spec:
            make = self.win.Get_accumulate if _REQUESTS_CRASH else self.win.Rget_accumulate
            request = make([going, datatype], [came, datatype], target.rank, spec, op)
        return Exchange(target, came, going, request, is_complete=False)

    def await_request(self, under_way: Exchange, describe: Callable[[], str]) -> None:
        """Wait until the target's old value has arrived."""
        if under_way.request is not None:
            wait(under_way.request, describe, self.window.reverse, under_way.target.rank)

    def flush(self, under_way: Exchange) -> None:
        """Complete the exchange at the target."""
        if not under_way.is_complete:
            self.win.Flush(under_way.target.rank)

    def add_what_precedes(self, target: Target, describe: Callable[[], str]) -> None:
        """Add at once the adjoints of later Gets of this rank from the same place."""
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
        """Send adjoints that had to wait to their targets, which add them in the order of the ranks; collective."""
        comm = self.window.reverse.comm
        going: dict[int, list[tuple[Target, np.ndarray]]] = {}
        for entry in self.taken_later():
            going.setdefault(entry[0].rank, []).append(entry)
        counts, coming = np.zeros(comm.size, np.int64), np.zeros(comm.size, np.int64)
        counts[list(going)] = 1
        wait(comm.Ialltoall(counts, coming), describe, self.window.reverse)
        for rank, entries in going.items():
            self.send(sweep, rank, _LATER, entries, describe)
        for rank in np.flatnonzero(coming).tolist():
            self.add(self.receive(rank, _LATER, describe), describe)

    def send(self, sweep: Sweep, partner: int, tag: int, what: Any, describe: Callable[[], str]) -> None:
        """Send adjoints to the rank that adds them."""
        message = np.frombuffer(pickle.dumps(what), np.uint8)
        outbox_of(sweep).send(self.window.reverse, message, partner, tag, describe)

    def receive(self, partner: int, tag: int, describe: Callable[[], str]) -> Any:
        """Receive the adjoints of another rank."""
        reverse, status = self.window.reverse, mpi.Status()
        with Patience(describe, lambda: [(reverse, partner)]) as patience:
            while (message := reverse.comm.Improbe(partner, tag, status)) is None:
                patience.pause()
        came = np.empty(status.Get_count(mpi.BYTE), np.uint8)
        message.Recv(came)
        return pickle.loads(came.tobytes())

    def taken_later(self) -> list[tuple[Target, np.ndarray]]:
        """Remove and return the adjoints that had to wait for the end of the mirrored epoch."""
        entries, self.later = self.later, []
        return entries

    def barrier(self, describe: Callable[[], str]) -> None:
        """Wait until all ranks of the window are here and see each other's updates."""
        self.win.Sync()
        wait(self.window.reverse.comm.Ibarrier(), describe, self.window.reverse)
        self.win.Sync()

    def free(self) -> None:
        """Free the shadow window at the end of the sweep; collective."""
        self._guarded = {}
        self.barrier(lambda: "the end of the other ranks' sweep")
        self.win.Unlock_all()
        if self.places is not None:
            for block in self._attachable():
                self.win.Detach(block)
        self.win.Free()


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def settle() -> None:
        first()
        second()

    return settle


def shadow_of(sweep: Sweep, window: Window) -> Shadow | None:
    """Return the shadow window of a window; None if the window had no differentiable use."""
    return sweep.state["windows"].get(window)


def leave(sweep: Sweep, window: Window) -> None:
    """Close the shadow windows of a window before the end of the sweep; collective over it."""
    lanes = lanes_of(sweep)
    closed = [lane.state["windows"].pop(window) for lane in lanes]
    turns = closed[0].turns
    for lane, shadow in zip(lanes, closed):
        shadow.leave(lane)
    if turns is not None:
        turns.close()


def close_all(shadows: Sequence[dict[Any, Shadow]], error: BaseException | None) -> None:
    """Close all shadow windows of all lanes at the end of a sweep or a walk."""
    if error is not None:
        stranded.append(shadows)
        return
    for shadow in shadows[0].values():
        if shadow.turns is not None:
            shadow.turns.let_in()
    for mine in shadows:
        for shadow in mine.values():
            shadow.free()
    for shadow in shadows[0].values():
        if shadow.turns is not None:
            shadow.turns.close()
