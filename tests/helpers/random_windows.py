"""Random programs of one-sided accesses whose order follows from communication between ranks, not from timing.

A program is a sequence of events, of which each rank executes its own part.  It is generated with vector clocks: a rank
accesses an element only if it knows, from messages and collectives that must have ended before, that every earlier
conflicting access (unless both read, or both add) is complete.  A collective synchronises no more than MPI guarantees
(a rank that has left a reduction knows nothing of the others).  So values do not depend on timing, and are those of the
events executed one after another; meanwhile ranks may run ahead of others, and pause at random.
"""

import random
import time
from dataclasses import dataclass

import numpy
from mpi4py import MPI

SIZE = 3  # elements of each rank's vector, and of its part of each window


@dataclass
class Event:
    """Part of a program: ``rank`` accesses element ``cell`` of rank ``other``'s part of a window, or sends to it; for
    collectives these are the root and the communicator (0: all ranks, 1: those of equal parity)."""

    kind: str
    rank: int
    other: int
    cell: int = 0
    window: int = 0
    factor: float = 1.0
    exclusive: bool = False
    pauses: tuple[float, ...] = ()  # seconds, by rank


ACCESSES = ("put", "get", "accumulate", "fetch", "load", "store", "put", "get", "accumulate")
SAID = ("send", "send", "bcast", "reduce", "reduce", "allreduce", "barrier")
READS, ADDS = ("get", "load"), ("accumulate",)


def draw(seed: int, ranks: int, length: int, parts: bool = True) -> list[Event]:
    """A random program for ``ranks`` ranks; ``parts``: with collectives of some of them, too."""
    choose = random.Random(seed)
    known = [[0] * ranks for _ in range(ranks)]  # vector clocks: how many events of each rank a rank knows of
    made: dict[tuple[int, int, int], list[tuple[str, int, int]]] = {}
    events: list[Event] = []
    while len(events) < length:
        rank, other = choose.randrange(ranks), choose.randrange(ranks)
        factor, pauses = round(choose.uniform(0.3, 1.2), 2), _pauses(choose, ranks)
        if choose.random() < 0.3:
            kind = choose.choice(SAID)
            if kind == "send":
                if rank != other:
                    events.append(Event(kind, rank, other, factor=factor, pauses=pauses))
                    _tell(known, [rank], [other])
                continue
            which = choose.randrange(2) if parts else 0
            group = members(which, rank, ranks)
            events.append(Event(kind, rank, which, factor=factor, pauses=pauses))
            _tell(known, [rank] if kind == "bcast" else group, [rank] if kind == "reduce" else group)
            continue
        kind, cell, window = choose.choice(ACCESSES), choose.randrange(SIZE), choose.randrange(2)
        if kind in ("load", "store"):
            other = rank
        earlier = made.setdefault((window, other, cell), [])
        if any(minds(kind, before) and known[rank][who] < count for before, who, count in earlier):
            continue
        known[rank][rank] += 1
        earlier.append((kind, rank, known[rank][rank]))
        events.append(Event(kind, rank, other, cell, window, factor, choose.random() < 0.3, pauses))
    return events


def _pauses(choose: random.Random, ranks: int) -> tuple[float, ...]:
    if choose.random() < 0.6:
        return ()
    return tuple(choose.choice((0, 0, 5e-4, 2e-3)) for _ in range(ranks))


def _tell(known: list[list[int]], whose: list[int], whom: list[int]) -> None:
    """Merge the vector clocks of some ranks into those of others."""
    most = [max(known[r][k] for r in whose) for k in range(len(known))]
    for rank in whom:
        known[rank] = [max(pair) for pair in zip(known[rank], most)]


def minds(kind: str, other: str) -> bool:
    """Return whether two accesses to an element conflict: their order matters."""
    return not any({kind, other} <= set(alike) for alike in (READS, ADDS))


def members(which: int, rank: int, ranks: int) -> list[int]:
    """The ranks of a rank's communicator."""
    return list(range(ranks)) if which == 0 else list(range(rank % 2, ranks, 2))


def one_after_the_other(events: list[Event], x: numpy.ndarray) -> numpy.ndarray:
    """The program's results by NumPy: shape (ranks, 3, SIZE), vectors and the parts of both windows."""
    y = [row * 1.0 for row in x]
    memory = [[row * (k + 1.0) for row in x] for k in range(2)]
    for e in events:
        if e.kind in SAID[2:]:
            group, all_of_them = members(e.other, e.rank, len(x)), [y[r] for r in members(e.other, e.rank, len(x))]
            total = sum(all_of_them)
            for r in group:
                if (e.kind == "bcast" and r != e.rank) or e.kind == "allreduce" or (e.kind == "reduce" and r == e.rank):
                    y[r] = 0.7 * y[r] + 0.2 * e.factor * (y[e.rank] if e.kind == "bcast" else total)
            continue
        if e.kind == "send":
            y[e.other] = 0.7 * y[e.other] + 0.2 * e.factor * y[e.rank]
            continue
        there, mine = memory[e.window][e.other], y[e.rank]
        before = there[e.cell]
        if e.kind in ("put", "store"):
            there[e.cell] = e.factor * mine[e.cell]
        elif e.kind in ("accumulate", "fetch"):
            there[e.cell] = before + e.factor * mine[e.cell]
        if e.kind in ("get", "load", "fetch"):
            y[e.rank] = mine * (1.0 + 0.1 * before) + 0.2 * before
    return numpy.array([[y[r], memory[0][r], memory[1][r]] for r in range(len(x))])


def run(np, comm, win_type, events: list[Event], x):
    """Run this rank's part with MPI; returns its vector and its parts of both windows."""
    rank, ranks = comm.rank, comm.size
    y = x * 1.0
    memory = [np.array(x * (k + 1.0)) for k in range(2)]
    wins = [win_type.Create(part, part.itemsize, comm=comm) for part in memory]
    comms = [comm, comm.Split(rank % 2, rank)]
    comm.Barrier()
    for e in events:
        if e.pauses and e.pauses[rank]:
            time.sleep(e.pauses[rank])
        came = np.zeros(SIZE, x.dtype)
        if e.kind in SAID[2:]:
            if rank not in members(e.other, e.rank, ranks):
                continue
            said, root = comms[e.other], e.rank if e.other == 0 else e.rank // 2
            if e.kind == "bcast":
                came = y * 1.0 if rank == e.rank else came
                said.Bcast(came, root)
            elif e.kind == "reduce":
                said.Reduce(y, came, root=root)
            elif e.kind == "allreduce":
                said.Allreduce(y, came)
            else:
                said.Barrier()
            if (
                (e.kind == "bcast" and rank != e.rank)
                or e.kind == "allreduce"
                or (e.kind == "reduce" and rank == e.rank)
            ):
                y = 0.7 * y + 0.2 * e.factor * came
        elif e.kind == "send":
            if rank == e.rank:
                comm.Send(y, e.other)
            elif rank == e.other:
                comm.Recv(came, e.rank)
                y = 0.7 * y + 0.2 * e.factor * came
        elif rank == e.rank:
            y = _access(np, wins[e.window], memory[e.window], e, y)
    comm.Barrier()
    for win in wins:
        win.Free()
    comms[1].Free()
    return [y, *memory]


def _access(np, win, part, e: Event, y):
    going, came = e.factor * y[e.cell : e.cell + 1], np.zeros(1, y.dtype)
    win.Lock(e.other, MPI.LOCK_EXCLUSIVE if e.exclusive or e.kind in ("load", "store") else MPI.LOCK_SHARED)
    if e.kind == "put":
        win.Put(going, e.other, e.cell)
    elif e.kind == "get":
        win.Get(came, e.other, e.cell)
    elif e.kind == "accumulate":
        win.Accumulate(going, e.other, e.cell)
    elif e.kind == "fetch":
        win.Fetch_and_op(going, came, e.other, e.cell)
    elif e.kind == "store":
        part[e.cell : e.cell + 1] = going
    else:
        came[:] = part[e.cell : e.cell + 1]
    win.Unlock(e.other)
    return y * (1.0 + 0.1 * came) + 0.2 * came if e.kind in ("get", "load", "fetch") else y
