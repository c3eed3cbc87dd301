"""Status board: a memory-mapped file by which the ranks of a node know each other's state without messages.

A rank that waits in a sweep cannot ask one that computes, or is inside an MPI call, for minutes.  So each rank
publishes whether it waits, and for which ranks.  Each cell has one writer.  Only the moment at which an endless wait
becomes an error depends on the board: ranks of other nodes, or without such a file, are waited for.
"""

from __future__ import annotations

import mmap
import os
import resource
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np
from mpi4py import MPI as mpi

from ...base.pools import has_servers
from ...kernel.runtime import progress
from ...tape import Tape, at_closing, at_opening

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound to ours

RUNS, WAITS, ENDED, DIED, MEETS = range(5)
"""States of a rank: it does something other than waiting in a sweep; it waits there; its program has ended; its process
has disappeared; or it is in a collective operation of all ranks of the world, outside of any sweep, which this rank has
not reached."""

IMPORT_PATIENCE = 20
"""Seconds after which a rank that waits in ``import ampi`` says so."""

ELSEWHERE = "elsewhere"
"""State of a rank of which nothing is known."""

_STATE, _WAIT, _LOOKS, _BYTES, _PID, _AFAR, _OPENED, _TAPES, _RECORDING, _COMPILING, _MEETING, _NEEDED = range(12)
# the last one and those after it have a bit for each rank of the node


class Board:
    """The mapped file.

    Attributes
    ----------
    rank : int
        This rank's, in the world.
    places : dict
        The ranks of this node, by rank in the world, and their rows in the file.
    rows : numpy.ndarray
        One row for each rank of the node: its state, the number of its wait, how often it has checked without success,
        the memory and the number of its process, whether it waits for ranks of other nodes, the numbers of tapes that
        it has opened, that still exist, and that record, the number of its threads that compile kernels, the number of
        the collective operation of all ranks of the world that it is in (0: none), and the ranks of this node that it
        waits for.
    meeting : memoryview
        The cell with that number, of this rank.
    met : list of int
        The number of these operations that this rank has reached.
    counts : bool
        True if the ranks count these operations alike.
    """

    def __init__(self, rank: int, places: dict[int, int], memory: mmap.mmap | bytearray, pids: bool) -> None:
        n = len(places)
        self.rank = rank
        self.places = places
        self.ranks = list(places)
        self.rows = np.frombuffer(memory, np.int64).reshape(n, width(n))
        self.mine = self.rows[places[rank]]
        self.mine[_PID] = os.getpid() if pids else 0
        self.process = os.getpid()
        self.met = [0]
        self.counts = True
        start = 8 * (places[rank] * width(n) + _MEETING)
        self.meeting = memoryview(memory)[start : start + 8].cast("q")

    # ------------------------------------------------------------------------------------ what this rank publishes

    def waits(self, ranks: Iterable[int]) -> None:
        """Publish that this rank begins to wait in a sweep for some of these ranks."""
        if threading.active_count() > 1:
            return  # another thread may be about to do what they wait for
        self.mine[_NEEDED:] = 0
        self.mine[_AFAR] = 0
        for rank in ranks:
            place = self.places.get(rank)
            if place is None:
                self.mine[_AFAR] = 1
            else:
                self.mine[_NEEDED + place // 32] |= 1 << place % 32
        self.mine[_LOOKS] = 0
        self.mine[_BYTES] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
        self.mine[_WAIT] += 1
        self.mine[_STATE] = WAITS

    def looks(self) -> None:
        """Publish that this rank has checked again, and what it waits for has not come."""
        self.mine[_LOOKS] += 1

    def moves(self) -> None:
        """Publish that this rank still waits, but has made progress with something else."""
        self.mine[_WAIT] += 1

    def goes_on(self) -> None:
        """Publish that this rank no longer waits."""
        self.mine[_STATE] = RUNS

    def opens(self, tape: Tape) -> None:
        """Publish that a tape of this rank begins to record."""
        if os.getpid() == self.process:
            self.mine[_OPENED] += 1
            self.mine[_TAPES] += 1
            self.mine[_RECORDING] += 1
            weakref.finalize(tape, self._loses).atexit = False

    def closes(self, tape: Tape) -> None:
        """Publish that a tape has stopped recording."""
        if os.getpid() == self.process:
            self.mine[_RECORDING] -= 1

    def compiles(self, begins: bool) -> None:
        """Publish that a thread of this rank begins or ends to compile or load a kernel."""
        if os.getpid() == self.process:
            self.mine[_COMPILING] += 1 if begins else -1

    def _loses(self) -> None:
        if os.getpid() == self.process:
            self.mine[_TAPES] -= 1

    def ends(self) -> None:
        """Publish that this rank's program has ended."""
        if os.getpid() == self.process:
            self.mine[_STATE] = ENDED

    # ------------------------------------------------------------------------------------- what is known of others

    def state(self, rank: int) -> int | str:
        """Return the state of a rank of the world."""
        place = self.places.get(rank)
        if place is None:
            return ELSEWHERE
        state, process = int(self.rows[place, _STATE]), _process(int(self.rows[place, _PID]))
        if state == ENDED or process in _GONE:
            return state if state == ENDED else DIED
        if state == RUNS and self.counts and self.rows[place, _MEETING] > self.met[0] and process not in _STOPPED:
            return MEETS
        return state

    def meeting_of(self, rank: int) -> int:
        """Return the number of the collective operation that a rank of this node is in."""
        return int(self.rows[self.places[rank], _MEETING])

    def is_compiling(self, rank: int) -> bool:
        """Return whether a rank of this node is compiling or loading a kernel."""
        return bool(self.rows[self.places[rank], _COMPILING] > 0)

    def without_tape(self, rank: int) -> str:
        """Describe a rank that is in no sweep, records on no tape and compiles no kernel; return '' for others."""
        if self.state(rank) not in (RUNS, MEETS):
            return ""
        opened, tapes, recording, compiling = self.rows[self.places[rank], _OPENED:_MEETING].tolist()
        if recording or compiling:
            return ""
        if not opened:
            return "has opened no tape"
        return "goes on without asking for this gradient" if tapes else "has no tape any more"

    def involved(self, states: Mapping[int, int | str] = MappingProxyType({})) -> dict[int, tuple[int, int]] | None:
        """Return all ranks that this one waits for, that those wait for, and so on, if none of them can make progress.

        Parameters
        ----------
        states : mapping
            States of some ranks that `state` has just returned.

        Returns
        -------
        dict or None
            State and number of the wait of each.  None if one of them runs, or nothing is known of it.
        """
        found: dict[int, tuple[int, int]] = {}
        ranks = [self.rank]
        while ranks:
            rank = ranks.pop()
            if rank in found:
                continue
            state = states[rank] if rank in states else self.state(rank)
            if state in (ENDED, DIED):
                found[rank] = int(state), 0
                continue
            if state == MEETS:  # no rank leaves it while this rank waits in a sweep
                found[rank] = MEETS, self.meeting_of(rank)
                continue
            row = self.rows[self.places[rank]].tolist() if state == WAITS else None
            if row is None or row[_STATE] != WAITS or row[_AFAR]:
                return None
            found[rank] = WAITS, row[_WAIT]
            ranks += [other for other, place in self.places.items() if row[_NEEDED + place // 32] >> place % 32 & 1]
        return found

    def looked(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return how often the waiting ranks among these have checked."""
        rows = {rank: self.rows[self.places[rank]] for rank in ranks}
        return {rank: int(row[_LOOKS]) for rank, row in rows.items() if row[_STATE] == WAITS}

    def most_bytes(self, ranks: Iterable[int]) -> int:
        """Return the bytes of the largest process among these, a bound for a message under way between them."""
        return max(int(self.rows[self.places[rank], _BYTES]) for rank in ranks)

    def first_to_wait(self) -> bool:
        """Return whether no lower rank of this node waits."""
        return not any(rank < self.rank and self.state(rank) == WAITS for rank in self.ranks)


def width(n: int) -> int:
    """Return the number of cells in a row for ``n`` ranks."""
    return _NEEDED + -(-n // 32)


_GONE, _STOPPED = ("Z", "X"), ("T", "t")


def _process(pid: int) -> str:
    """Return the state of a process as Linux reports it; '' if the state or the process is unknown."""
    if not pid:
        return ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return "X" if os.path.isdir("/proc/self") else ""


def _exists(pid: int) -> bool:
    """Return whether a process can still run; True if the process is unknown."""
    return _process(pid) not in _GONE


def make() -> Board:
    """Make the board of this rank's node; collective over the world.  Without a common file it shows only this rank."""
    if _WORLD.Get_size() == 1:
        return alone()
    if has_servers():
        return alone(_WORLD.Get_rank())
    node = _WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    ranks = node.allgather(_WORLD.Get_rank())
    memory = _mapped(node, 8 * len(ranks) * width(len(ranks)))
    seen = all(map(_exists, node.allgather(os.getpid())))
    usable = node.allreduce(memory is not None and len(ranks) > 1, mpi.LAND)
    node.Free()
    if memory is None or not usable:
        return alone(_WORLD.Get_rank())
    return Board(_WORLD.Get_rank(), {rank: place for place, rank in enumerate(ranks)}, memory, seen)


def _await_import() -> None:
    """Wait until all ranks import ampi, and say what this rank waits for if that takes long."""
    request = _WORLD.Ibarrier()
    begin, pause, silent = time.monotonic(), 1e-5, True
    while not request.Test():
        time.sleep(pause)
        pause = min(2 * pause, 1e-2)
        if silent and time.monotonic() - begin > IMPORT_PATIENCE:
            silent = False
            print(
                f"ampi: rank {_WORLD.Get_rank()} has waited {IMPORT_PATIENCE} s in `import ampi` for the other ranks. "
                "Import ampi on all ranks of MPI.COMM_WORLD, before they communicate otherwise.",
                file=sys.stderr,
                flush=True,
            )


def alone(rank: int = 0) -> Board:
    """Make a board on which a rank sees only itself."""
    return Board(rank, {rank: 0}, bytearray(8 * width(1)), False)


def _mapped(node: mpi.Intracomm, nbytes: int) -> mmap.mmap | None:
    path = None
    if node.Get_rank() == 0:
        import tempfile

        try:
            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            number, path = tempfile.mkstemp(prefix="ampi-", dir=folder)
            with open(number, "wb") as file:
                file.write(bytes(nbytes))
        except OSError:
            pass
    path = node.bcast(path)
    memory = None
    if path is not None:
        try:
            with open(path, "r+b") as file:
                memory = mmap.mmap(file.fileno(), nbytes)
        except (OSError, ValueError):
            pass
    node.Barrier()
    if path is not None and node.Get_rank() == 0:
        os.unlink(path)
    return memory


def _made_at_import() -> Board:
    if not mpi.Is_initialized() or mpi.Is_finalized():
        return alone()
    if _WORLD.Get_size() > 1 and not has_servers():
        _await_import()
    return make()


board = _made_at_import()
"""The board of this rank, made when ampi is imported."""

if len(board.places) > 1:
    at_opening.append(lambda tape: board.opens(tape))
    at_closing.append(lambda tape: board.closes(tape))
    progress.at_turns.append(lambda begins: board.compiles(begins))
