"""A census of communication: calls and bytes of one rank's tapes, by source line, operation and communicator size.

``mpiexec -n 8 python -m ampi.scaling.census FOLDER program.py ARGUMENTS...`` runs a program as Python does (or as
``-m ampi.run`` does, if that is given) and writes ``rank-0.json`` and so on to the folder, without any communication.

Rows of a sweep have the operation's adjoint from the table of MPI operations, if the ranks agreed to apply it.  Calls
that are not in the logs of tapes are counted when they are made, or listed as left out (`unlogged`).
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import runpy
import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from mpi4py import MPI as mpi

from ..base import whole_files
from ..mpi.base.call_sites import line_of
from ..mpi.collectives.collective_calls import Performed
from ..mpi.collectives.movements import AlongEdges, nbytes_of
from ..mpi.collectives.neighborhoods import NEIGHBORHOODS
from ..mpi.collectives.reductions import SUFFIX
from ..mpi.collectives.table import COLLECTIVES, SCANS
from ..mpi.log.log import Communication, Log
from ..mpi.log.messages import ALL, LoggedMessage, Sent
from ..tape import Sweep, Tape, VectorSweep, at_closing, at_opening, where_called
from .unlogged import Watch, of_windows, shadows_of

PRIMAL, SWEEP, RECORDING = "primal", "sweep", "recording"


class Key(NamedTuple):
    """The key of a row of the census.

    Attributes
    ----------
    phase : str
        ``"primal"`` or ``"sweep"``.
    line : str
        File and line of the call; of a sweep, of the call whose adjoint it is.
    operation : str
        mpi4py's name; ``"send"`` and ``"receive"`` for the two sides of a message, ``"Win.Put"`` for a window's Put.
    size : int
        Ranks of the communicator.
    """

    phase: str
    line: str
    operation: str
    size: int


@dataclasses.dataclass
class Count:
    """Calls with their outgoing and incoming bytes; for messages also the ranks on the other side."""

    calls: int = 0
    sent: int = 0
    received: int = 0
    partners: set[int] = dataclasses.field(default_factory=set)

    def add(self, other: Count, sign: int = 1) -> None:
        """Add or subtract another count; partners do not change."""
        self.calls += sign * other.calls
        self.sent += sign * other.sent
        self.received += sign * other.received
        self.partners |= other.partners


Counts = dict[Key, Count]


_OPERATIONS = {operation.name: operation for operation in (*COLLECTIVES, *SCANS, *NEIGHBORHOODS)}
_SCANS = {operation.name for operation in SCANS}
_FORMS = {
    form: name[:-1] if name[:-1] in _OPERATIONS else name
    for name in _OPERATIONS
    for form in (name, f"I{name[0].lower()}{name[1:]}", f"{name}_init")
}


def plain(name: str) -> str:
    """The basic collective (blocking, with equal blocks) of which an operation is a variant.

    Examples
    --------
    >>> from ampi.scaling.census import plain
    >>> plain("Ialltoallv"), plain("Bcast")
    ('Alltoall', 'Bcast')
    """
    return _FORMS[name]


def adjoint_of(name: str) -> str:
    """The collective that is the adjoint of another one, from the table of MPI operations.

    Examples
    --------
    >>> from ampi.scaling.census import adjoint_of
    >>> adjoint_of("Bcast"), adjoint_of("Alltoall")
    ('Reduce', 'Alltoall')
    """
    names = [word for word in re.findall(r"\w+", _OPERATIONS[name].adjoint) if word in _FORMS]
    return plain(names[0]) if names else SUFFIX


def counted(tape: Tape, phase: str) -> Counts:
    """Counts of the communication that a tape recorded, or of its latest sweep."""
    found: Counts = {}
    communication = tape.sweep_starts.get("communication")
    if isinstance(communication, Communication):
        for log in communication.logs.values():
            if log.reverse is not None:
                for key, count in _of_log(log, phase):
                    found.setdefault(key, Count()).add(count)
    if phase == SWEEP:
        for row, count in of_windows(tape):
            found.setdefault(Key(phase, *row), Count()).add(Count(*count))
    return found


def left_out(tape: Tape) -> set[tuple[str, str]]:
    """The communication in a tape's sweep that is not counted, with source lines."""
    communication = tape.sweep_starts.get("communication")
    found = shadows_of(tape)
    if isinstance(communication, Communication):
        for log in communication.logs.values():
            between = log.reverse is not None and bool(log.collectives) and log.reverse.comm.Is_inter()
            for call in log.collectives if between else ():
                found.add((f"the adjoint of {call.name} between two groups, message by message", line_of(call.where)))
    return found


def _of_log(log: Log, phase: str) -> Iterator[tuple[Key, Count]]:
    size = log.reverse.partners
    for message in log.messages:
        if message.void or message.route.partner < 0 or (phase == SWEEP and message.back is None):
            continue
        (partner,) = log.reverse.in_world(message.route.partner)
        going = isinstance(message, Sent) == (phase == PRIMAL)
        nbytes = _length(message, phase)
        key = Key(phase, line_of(message.route.where), "send" if going else "receive", size)
        yield key, Count(1, nbytes if going else 0, 0 if going else nbytes, {partner})
    for call in log.collectives:
        if isinstance(call, Performed) and (phase == PRIMAL or call.happening):
            yield from _of_collective(call, phase, log)


def _length(message: LoggedMessage, phase: str) -> int:
    """Bytes of a message; for a receive of unknown length those of its buffer."""
    known = getattr(message, "nbytes", ALL)  # of a receive: not before the agreement
    if phase == PRIMAL and known != ALL:
        return known
    return 0 if message.buffer is None else message.buffer.count * np.dtype(message.buffer.dtype).itemsize


def _of_collective(call: Performed, phase: str, log: Log) -> Iterator[tuple[Key, Count]]:
    size = log.reverse.partners
    if plain(call.name).startswith("Neighbor"):
        yield from _along_edges(call, phase, log)
        return
    reads = sum(buffer.nbytes for buffer in call.call.reads)
    writes = sum(buffer.nbytes for buffer in call.call.writes)
    line, name = line_of(call.where), plain(call.name)
    if phase == PRIMAL:
        yield Key(phase, line, name, size), Count(1, reads, writes)
        return
    reads = sum(map(nbytes_of, call.call.reads))  # of pairs of a value and a location, the values alone
    writes = sum(map(nbytes_of, call.call.writes))
    rule = getattr(call.call.part, "rule", None)  # of a reduction
    if name in _SCANS and rule is not None and rule.partials is not None:
        yield from ((Key(phase, line, operation, size), count) for operation, count in _chain(call, log))
        return
    yield Key(phase, line, adjoint_of(name), size), Count(1, writes, reads)
    if rule is not None and name not in _SCANS:
        (x,) = call.call.reads
        for extra, itemsize in rule.further:
            nbytes = x.nbytes if itemsize is None else itemsize * x.count
            yield Key(phase, line, extra, size), Count(1, nbytes, nbytes)


def _along_edges(call: Performed, phase: str, log: Log) -> Iterator[tuple[Key, Count]]:
    """Counts of a neighborhood collective; its adjoint consists of messages along the edges."""
    movement = call.call.part
    assert isinstance(movement, AlongEdges)
    sent, received = movement.sent.parts, movement.received.parts
    size, line = log.reverse.partners, line_of(call.where)
    others = {rank for at in (*movement.dests, *movement.sources) for rank in log.reverse.in_world(at)}
    if phase == PRIMAL:
        there, here = (sum(block.nbytes for block in blocks) for blocks in (sent, received))
        yield Key(phase, line, plain(call.name), size), Count(1, there, here, others)
        return
    for at, block in zip(movement.sources, received):
        yield Key(phase, line, "send", size), Count(1, nbytes_of(block), 0, set(log.reverse.in_world(at)))
    for at, block in zip(movement.dests, sent):
        yield Key(phase, line, "receive", size), Count(1, 0, nbytes_of(block), set(log.reverse.in_world(at)))


def _chain(call: Performed, log: Log) -> Iterator[tuple[str, Count]]:
    """The adjoint of a scan other than SUM: the prefixes again, and a carry from each rank to the one below."""
    rank, size, x = log.reverse.comm.Get_rank(), log.reverse.partners, call.call.reads[0]
    yield "Exscan", Count(1, x.nbytes, x.nbytes)
    nbytes = nbytes_of(x)
    if rank + 1 < size:
        yield "receive", Count(1, 0, nbytes, set(log.reverse.in_world(rank + 1)))
    if rank > 0:
        yield "send", Count(1, nbytes, 0, set(log.reverse.in_world(rank - 1)))


class Census:
    """Counts what tapes of this process communicate, from `start` on.

    Attributes
    ----------
    counts : dict
    seconds : dict
        For each tape from opening to closing (``"recording"``), and for each sweep, apart from inner ones.
    left_out : set
        Calls that are not counted, with source lines.
    """

    def __init__(self) -> None:
        self.counts: Counts = {}
        self.seconds: dict[str, list[float]] = {RECORDING: [], SWEEP: []}
        self._depth = 0
        self._at_closing: dict[int, Counts] = {}
        self._opened: dict[int, float] = {}
        self.left_out: set[tuple[str, str]] = set()
        self._watch = Watch(self._count_call, lambda what, line: self.left_out.add((what, line)))

    def start(self) -> None:
        """Start counting."""
        at_opening.insert(0, self._on_opening)  # before windows put their marks on the tape
        at_closing.append(self._on_closing)
        self._watch.start()

    def stop(self) -> None:
        """Stop counting."""
        at_opening.remove(self._on_opening)
        at_closing.remove(self._on_closing)
        self._watch.stop()

    def _count_call(self, row: tuple[str, str, int], count: tuple[int, int, int, set[int]]) -> None:
        self._add({Key(PRIMAL, *row): Count(*count)})

    def _on_opening(self, tape: Tape) -> None:
        if tape.forward is not None or tape.tangents is not None or tape.records:
            return
        self._at_closing.pop(id(tape), None)
        self._opened[id(tape)] = time.perf_counter()
        self._depth += 1
        tape.at_sweep_start("census", self._on_sweep)

    def _on_closing(self, tape: Tape) -> None:
        opened = self._opened.pop(id(tape), None)
        if opened is not None:
            self._add_time(RECORDING, opened)
            self._at_closing[id(tape)] = counted(tape, PRIMAL)
            self._add(self._at_closing[id(tape)])

    def _on_sweep(self, sweep: Sweep) -> None:
        if isinstance(sweep, VectorSweep):
            self.left_out.add(("the messages of a sweep in several directions (seeds=)", where_called()))
        if type(sweep) is not Sweep:
            return
        began = time.perf_counter()
        self._depth += 1

        def end(error: BaseException | None) -> None:
            self._add_time(SWEEP, began)
            if error is None:
                known = self._at_closing.pop(id(sweep.tape), None)
                if known is not None:  # the lengths of received messages are known now
                    self._add(known, -1)
                    self._add(counted(sweep.tape, PRIMAL))
                self._add(counted(sweep.tape, SWEEP))
                self.left_out |= left_out(sweep.tape)

        sweep.at_end(end)

    def _add_time(self, what: str, began: float) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds[what].append(time.perf_counter() - began)

    def _add(self, counts: Counts, sign: int = 1) -> None:
        for key, count in counts.items():
            self.counts.setdefault(key, Count()).add(count, sign)

    def described(self) -> dict[str, object]:
        """The contents of the file, with JSON's types only."""
        rows = [
            [*key, count.calls, count.sent, count.received, sorted(count.partners)]
            for key, count in self.counts.items()
            if count.calls
        ]
        rank, ranks = mpi.COMM_WORLD.Get_rank(), mpi.COMM_WORLD.Get_size()
        # The first tape and sweep also import and compile.
        seconds = {
            what: statistics.median(took[1:] or took or [0.0]) * len(took) for what, took in self.seconds.items()
        }
        left = sorted(map(list, self.left_out))
        tapes = len(self.seconds[RECORDING])
        return {"rank": rank, "ranks": ranks, "tapes": tapes, "seconds": seconds, "rows": rows, "left out": left}


def main(arguments: list[str]) -> None:
    """Run a program, and write the census of its tapes to a folder."""
    folder, *program = arguments
    census = Census()
    path = pathlib.Path(folder) / f"rank-{mpi.COMM_WORLD.Get_rank()}.json"
    census.start()
    try:
        if program[0] == "-m":
            sys.argv = program[1:]
            runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = program
            sys.path[0] = str(pathlib.Path(program[0]).absolute().parent)
            runpy.run_path(program[0], run_name="__main__")
    except SystemExit as exit:
        if exit.code not in (None, 0):
            raise
    whole_files.write(path, json.dumps(census.described()))


if __name__ == "__main__":
    from ampi.scaling.census import main as run  # not this copy of the module, which is named __main__

    run(sys.argv[1:])
