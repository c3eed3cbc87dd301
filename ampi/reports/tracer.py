"""Tracer of one rank: times of MPI calls, of kernels, of records and of sweeps.

Without a tracer there is no cost: methods are wrapped when tracing begins (`hooks`) and restored when it ends, and only
tapes that are opened in between get a list of records that notes times.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from array import array
from collections import Counter
from time import perf_counter_ns as now
from typing import Any

import numpy as np

from ..base.program_lines import LIBRARIES
from ..kernel.runtime import progress
from ..mpi.base.call_sites import line_of
from ..mpi.log.reverse import reverse_of
from ..tape import Sweep, Tape, at_closing, at_opening
from . import hooks
from .events import COMPILING, COMPUTED, EVENT, KERNEL, MEMORY, PRIMAL, RECORDING, SWEEP, WAITING, rows_of
from .harvest import harvest, unseen_receives
from .plain import Plain
from .tasks import Tasks
from .traced_records import SweptRecords, TracedRecords, name_of

MOST_EVENTS = 1_000_000
"""Maximum number of events that a rank saves individually; all are counted."""
MOST_UNSETTLED = 100_000
"""Maximum number of events that are not counted yet."""
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
running: list[Tracer] = []
"""The installed tracer, if any."""


class Tracer:
    """Tracer of this thread, from `start` to `stop`.

    Attributes
    ----------
    sites : list of tuple
        Text of the line, name of the called function, and kind.  The first entry stands for no line.
    events : array
        Begin and end in nanoseconds, site, phase, and kind; flat.
    passed : array
        The same for events already counted: records that sweeps have passed, and waits inside others.
    totals : dict
        By site and phase: number and nanoseconds of counted events (`settle`).
    adjoints : Counter
        By site: number of records that sweeps have passed.
    phases : list of tuple
        The beginnings of phases, and the phases.
    memory : array
        For freed tapes: time, site, and bytes saved and kept (negative: freed with their tape); flat.
    shadows, checkpoints : list of tuple
        Time and bytes; negative for freed checkpoints.
    messages : dict
        The results of `harvest.of_tape`, flat, by the numbers of tapes.
    plain : Plain
        Messages outside tapes.
    tasks : Tasks
        Tasks in other threads.
    comms : dict
        Names of communicators, by their identities.
    named : dict
        The names that the program had given them at the first call that uses them.
    comm_uses : array
        Beginnings of calls on communicators, and the identities of these; flat.
    known : dict
        Sites of calls, by the program's code, the instruction, and the name of the called function.
    compiling : float
        Seconds for compiling kernels, set when tracing has ended.
    compiled : dict
        Nanoseconds of compilation by site and phase; the totals include them.
    inside : int
        Nanoseconds of all counted events of sweeps so far; the time of a record excludes events inside it.
    """

    def __init__(self) -> None:
        self.thread = get_ident()
        self.sites: list[tuple[str, str, int]] = [
            ("", "(elsewhere)", COMPUTED),
            ("", "agreement of the ranks", WAITING),
        ]
        self.kinds = [COMPUTED, WAITING]  # for each site
        self.lines = [0, 0]  # for each site, the number of its line
        self.events: array[int] = array("q")
        self.passed: array[int] = array("q")
        self.totals: dict[tuple[int, int], list[int]] = {}
        self.adjoints: Counter[int] = Counter()
        self.phases: list[tuple[int, int]] = []
        self.memory: array[int] = array("q")
        self.growths: dict[int, array[int]] = {}  # the same for live tapes, by their numbers
        self.shadows: list[tuple[int, dict[int, int]]] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.messages: dict[int, array[int]] = {}
        self.comms: dict[int, str] = {}
        self.named: dict[int, str] = {}
        self.comm_uses: array[int] = array("q")
        self.latest_comm: tuple[Any, int | None] = None, None  # the communicator that was used last, and its identity
        self.plain = Plain()
        self.tasks = Tasks(self.thread)
        self.inside = 0
        self.tapes: list[weakref.ref] = []
        self.dropped = 0
        self.phase = PRIMAL
        self.depth = 0  # nesting of sweeps
        self.call = -1  # the site of the running traced call
        self.swept: SweptRecords | None = None  # the records of the running sweep
        self.recording: TracedRecords | None = None  # the records of the innermost tape
        self._around: list[TracedRecords | None] = []  # those of the enclosing tapes
        self.full = EVENT * MOST_UNSETTLED
        self.settled = 0
        self.latest = self.changed = 0
        self.compiling = 0.0
        self.compiled: dict[tuple[int, int], int] = {}
        self.compiling_since = self.compiled_until = 0
        self.is_first = False  # the next record is the first one of the first tape
        self.known: dict[tuple[int, int, str], int] = {}
        self._numbers: dict[Any, int] = {}
        self._lines = {"": 0}
        self._own: dict[int, tuple[Any, bool]] = {}

    # -------------------------------------------------------------------------------------------------- begin and end

    def start(self) -> None:
        """Begin tracing."""
        running.append(self)
        self.compiling = progress.seconds()
        progress.at_turns.append(self.compiles)
        self.turn(PRIMAL)
        at_opening.insert(0, self.opens)  # before windows mark the tape
        at_closing.append(self.closes)
        hooks.install(self)

    def stop(self) -> None:
        """End tracing, and restore everything."""
        hooks.remove()
        self.compiling = progress.seconds() - self.compiling
        progress.at_turns.remove(self.compiles)
        self.settle()
        at_opening.remove(self.opens)
        at_closing.remove(self.closes)
        self.phases.append((now(), -1))
        running.remove(self)
        for reference in self.tapes:
            tape = reference()
            if tape is not None:
                if isinstance(tape.records, TracedRecords):
                    tape.records.close(0)
                    if not tape.records.harvested:
                        harvest(self, tape)
                tape.sweep_starts.pop("report", None)

    def turn(self, phase: int) -> None:
        """Begin another phase, unless a sweep runs."""
        self.changed = now()
        if phase != self.phase or not self.phases:
            self.phases.append((self.changed, phase))
        self.phase = phase

    def opens(self, tape: Tape) -> None:
        """Trace a tape that begins to record."""
        if get_ident() != self.thread:
            return
        self._around.append(self.recording)
        self.recording = None
        if tape.forward is not None or tape.records:
            return
        records = TracedRecords(self, tape)
        tape.elements.records = records
        if tape.append_record == tape.records.append:
            tape.append_record = records.append
        tape.records = self.recording = records
        self.is_first = not self.tapes
        self.tapes.append(weakref.ref(tape))
        self.growths[records.number] = records.memory
        weakref.finalize(tape, self.gone, records.number).atexit = False
        tape.at_sweep_start("report", self.sweep_begins)
        self.turn(SWEEP if self.depth else RECORDING)

    def closes(self, tape: Tape) -> None:
        """Note that a tape has stopped recording."""
        if get_ident() != self.thread:
            return
        records, self.recording = tape.records, self._around.pop() if self._around else None
        around = self.recording is not None
        if not isinstance(records, TracedRecords):
            return
        records.close(max(self.call, 0))
        self.tasks.recorded(self, tape)
        self.turn(SWEEP if self.depth else RECORDING if around else PRIMAL)

    def gone(self, number: int) -> None:
        """Note the memory of a freed tape."""
        if self not in running:
            return
        growth, when = self.growths.pop(number), now()
        self.memory.extend(growth)
        _, sites, saved, kept = rows_of(growth, MEMORY).T
        for site in set(sites.tolist()):
            of_site = sites == site
            self.memory.extend((when, site, -int(saved[of_site].sum()), -int(kept[of_site].sum())))

    def memory_of_all(self) -> np.ndarray:
        """The rows of `memory` for all tapes, in order of time."""
        found = self.memory[:]
        for growth in self.growths.values():
            found.extend(growth)
        rows = rows_of(found, MEMORY)
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def sweep_begins(self, sweep: Sweep) -> None:
        """Trace a sweep (or a walk) of a tape."""
        records = sweep.tape.records
        ours = isinstance(sweep, Sweep) and not sweep.pairs
        if not isinstance(records, TracedRecords) or not ours or get_ident() != self.thread:
            return
        before = self.phase, self.call, self.swept
        start = now()
        self.depth += 1
        self.turn(SWEEP)
        self.call = -1
        records.__class__ = SweptRecords
        self.swept = records  # type: ignore[assignment]
        records.begin(sweep)  # type: ignore[attr-defined]

        def end(error: BaseException | None) -> None:
            records.end()  # type: ignore[attr-defined]
            records.passed_before(unseen_receives(sweep.tape), start)  # type: ignore[attr-defined]
            self.shadows.append((now(), records.shadows_by_site()))  # type: ignore[attr-defined]
            records.__class__ = TracedRecords
            # A cycle of references would keep the tape alive.
            del records.sweep, records.homes, records.stop_noting  # type: ignore[attr-defined]
            self.depth -= 1
            self.tasks.swept(self, sweep.tape)
            if error is None:
                harvest(self, sweep.tape)
            phase, self.call, self.swept = before
            self.shadows.append((now(), {}))
            self.turn(phase)

        sweep.at_end(end)

    # --------------------------------------------------------------------------------------------------------- events

    def event(self, begin: int, end: int, site: int) -> None:
        """Add an event."""
        phase = self.phase
        if phase == SWEEP:
            self.inside += end - begin
        self.latest = end
        self.events.extend((begin, end, site, phase, self.kinds[site]))
        if len(self.events) >= self.full:
            self.settle()

    def note_comm(self, comm: Any, begin: int) -> None:
        """Note the communicator of a call."""
        if comm is not self.latest_comm[0]:
            self.latest_comm = comm, self.identity(comm)
        identity = self.latest_comm[1]
        if identity is not None and len(self.comm_uses) < 2 * MOST_EVENTS:
            self.comm_uses.extend((begin, identity))

    def identity(self, comm: Any) -> int | None:
        """Return the identity of a communicator and note its name; None if it has no reverse side."""
        reverse = reverse_of(comm)
        if reverse is None:
            return None
        if reverse.identity not in self.named:
            self.named[reverse.identity] = (comm.Get_name() if comm else "") or reverse.name
        return reverse.identity

    def wait(self, begin: int, end: int) -> None:
        """Add a wait inside another event."""
        site = self.call
        if site < 0:
            site = 0 if self.swept is None else self.swept.current()
        if self.room():
            self.passed.extend((begin, end, site, self.phase, WAITING))
        else:
            self.dropped += 1

    def compiles(self, begins: bool) -> None:
        """Note that this thread begins to compile a kernel or load it from the cache, or has finished that."""
        if get_ident() != self.thread:
            return
        if begins:  # what a kernel's call does between compiling the kernel and its derivative belongs to it
            within = self.call >= 0 and self.kinds[self.call] == KERNEL and self.compiled_until > self.latest
            self.compiling_since = self.compiled_until if within else now()
            return
        begin, end, site = self.compiling_since, now(), self.call
        if not begin:  # before tracing
            return
        self.compiling_since, self.compiled_until = 0, end
        if site < 0 and self.swept is not None:
            site = self.swept.current()
        elif site < 0:
            site, self.latest = 0, end  # the time of the next record begins here
        key = site, self.phase
        self.compiled[key] = self.compiled.get(key, 0) + end - begin
        if self.room():
            self.passed.extend((begin, end, site, self.phase, COMPILING))
        else:
            self.dropped += 1

    def room(self) -> int:
        """Return the number of further events that can be saved individually."""
        return max(MOST_EVENTS - (len(self.events) + len(self.passed)) // EVENT, 0)

    def keep(self, passed: np.ndarray) -> None:
        """Save events that need not be counted, as long as there is room."""
        room = self.room()
        self.passed.frombytes(passed[:room].tobytes())
        self.dropped += max(len(passed) - room, 0)

    def settle(self) -> None:
        """Count the events that have not been counted yet."""
        events = self.events
        begins, ends, sites, phases, _ = rows_of(events[self.settled :], EVENT).T
        self.count(sites, phases, ends - begins)
        most = max(EVENT * MOST_EVENTS - len(self.passed), 0)
        self.dropped += max(len(events) - most, 0) // EVENT
        del events[most:]
        self.settled = len(events)
        self.full = len(events) + EVENT * MOST_UNSETTLED

    def count(self, sites: np.ndarray, phases: Any, spans: np.ndarray) -> None:
        """Add events and their nanoseconds to the totals."""
        which = 3 * sites + phases
        counts, sums = np.bincount(which), np.bincount(which, spans)
        for key in np.flatnonzero(counts).tolist():
            total = self.totals.setdefault(divmod(key, 3), [0, 0])
            total[0] += int(counts[key])
            total[1] += int(sums[key])

    def place(self, depth: int) -> tuple[Any, int]:
        """Return code and instruction of the innermost line of the program."""
        frame: Any = sys._getframe(depth)
        while True:
            code = frame.f_code
            known = self._own.get(id(code))
            if known is None:
                own = frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES
                own |= code.co_filename.startswith((_PACKAGE, "<frozen"))  # modules run as __main__
                known = self._own[id(code)] = code, own
            if not known[1] or frame.f_back is None:
                return code, frame.f_lasti
            frame = frame.f_back

    def site(self, depth: int, name: str, kind: int) -> tuple[int, bool]:
        """Return the site of a call at the program's innermost line, and whether that line itself made the call."""
        code, instruction = self.place(depth + 1)
        number = self.number(code, instruction, name, kind)
        return number, code is sys._getframe(depth).f_code

    def number(self, code: Any, instruction: int, name: str, kind: int) -> int:
        """Return the number of a function called at a line: the same for all instructions of the line."""
        number = self._numbers.get((id(code), instruction, name))
        if number is not None:
            return number
        self._own.setdefault(id(code), (code, False))  # keeps it alive
        own = self._own[id(code)][1]
        where = "" if own else line_of((code, instruction))
        number = self._numbers[id(code), instruction, name] = self.site_at(where, name, kind)
        return number

    def site_at(self, where: str, name: str, kind: int) -> int:
        """Return the number of a function called at a line, by the text of the line."""
        number = self._numbers.get((where, name))
        if number is None:
            number = self._numbers[where, name] = len(self.sites)
            self.sites.append((where, name, kind))
            self.kinds.append(kind)
            self.lines.append(self._lines.setdefault(where, len(self._lines)))
        return number

    def outside(self, record: Any) -> int:
        """Add an event for computation since the last traced call; return the number of its line."""
        site = self.site_of(record)
        begin, end = max(self.latest, self.changed), now()
        self.event(end if self.is_first else begin, end, site)
        self.is_first = False  # the time before the first record is mostly that of imports
        return site

    def site_of(self, record: Any) -> int:
        """Return the site of a record that was made outside all traced calls."""
        code, instruction = self.place(4)
        kind = type(record.adjoint)
        number = self._numbers.get((id(code), instruction, kind))
        if number is None:
            name = "(undo)" if record.adjoint is None else name_of(record)
            number = self._numbers[id(code), instruction, kind] = self.number(code, instruction, name, COMPUTED)
        return number
