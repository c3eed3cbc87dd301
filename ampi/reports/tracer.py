"""What happened on this rank, and when: calls of MPI and of kernels, records as they are made, and sweeps.

While no tracer runs there is nothing of it: methods are wrapped when tracing begins (`hooks`) and are as before when it
ends, and only tapes that are opened meanwhile get a list of records which looks at the clock.
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
from ..tape import Sweep, Tape, VectorSweep, at_closing, at_opening
from . import hooks
from .events import COMPUTED, EVENT, MEMORY, PRIMAL, RECORDING, SWEEP, WAITING, rows_of
from .harvest import harvest, unseen_receives
from .plain import Plain
from .traced_records import SweptRecords, TracedRecords, name_of

MOST_EVENTS = 1_000_000
"""Events of a rank that are kept one by one; all of them are counted."""
MOST_UNSETTLED = 100_000
"""Events that are not counted yet."""
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
running: list[Tracer] = []
"""The tracer that is installed, if there is one."""


class Tracer:
    """Traces this thread, from `start` to `stop`.

    Attributes
    ----------
    sites : list of tuple
        Text of the line, name of what is called there, and what it is.  The first one stands for no line.
    events : array
        Begin and end in nanoseconds, site, phase, and what it is; flat.
    passed : array
        The same of what is not to be counted any more: records that sweeps have passed, and waits inside of others.
    totals : dict
        By site and phase: number and nanoseconds of what has been counted (`settle`).
    adjoints : Counter
        By site: number of records that sweeps have passed.
    phases : list of tuple
        When a phase began, and which one.
    memory : array
        Of the tapes that are no more: when, site, and bytes that were saved and kept then (less than zero: given back
        with their tape); flat.
    shadows, checkpoints : list of tuple
        When, and how many bytes they are; of checkpoints that are freed, less than zero.
    messages : dict
        By the numbers of tapes: what `harvest.of_tape` gives; flat.
    plain : Plain
        Messages of which no tape knows.
    comms : dict
        Names of communicators, by their identities.
    named : dict
        The names that the program has given them by the first call that uses them.
    spoken : array
        When calls of communicators began, and the identities of these; flat.
    known : dict
        Sites of calls, by the program's code, the instruction, and the name of what is called.
    compiling : float
        Seconds, when tracing has ended: what compiling kernels has taken meanwhile.
    inside : int
        Nanoseconds of all counted events of sweeps so far: what is inside of a record is not its own time.
    """

    def __init__(self) -> None:
        self.thread = get_ident()
        self.sites: list[tuple[str, str, int]] = [
            ("", "(elsewhere)", COMPUTED),
            ("", "agreement of the ranks", WAITING),
        ]
        self.kinds = [COMPUTED, WAITING]  # of the sites
        self.lines = [0, 0]  # of the sites: the same number for the same line
        self.events: array[int] = array("q")
        self.passed: array[int] = array("q")
        self.totals: dict[tuple[int, int], list[int]] = {}
        self.adjoints: Counter[int] = Counter()
        self.phases: list[tuple[int, int]] = []
        self.memory: array[int] = array("q")
        self.growths: dict[int, array[int]] = {}  # the same of those that are alive, by their numbers
        self.shadows: list[tuple[int, dict[int, int]]] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.messages: dict[int, array[int]] = {}
        self.comms: dict[int, str] = {}
        self.named: dict[int, str] = {}
        self.spoken: array[int] = array("q")
        self.speaker: tuple[Any, int | None] = None, None  # the communicator that was used last, and its identity
        self.plain = Plain()
        self.inside = 0
        self.tapes: list[weakref.ref] = []
        self.dropped = 0
        self.phase = PRIMAL
        self.depth = 0  # of sweeps
        self.call = -1  # the site of the traced call that runs
        self.swept: SweptRecords | None = None  # of the sweep that runs
        self.recording: TracedRecords | None = None  # of the innermost tape
        self._around: list[TracedRecords | None] = []  # the same of those around it
        self.full = EVENT * MOST_UNSETTLED
        self.settled = 0
        self.latest = self.changed = 0
        self.compiling = 0.0
        self.is_first = False  # the next record is the first one of the first tape
        self.known: dict[tuple[int, int, str], int] = {}
        self._numbers: dict[Any, int] = {}
        self._lines = {"": 0}
        self._own: dict[int, tuple[Any, bool]] = {}

    # -------------------------------------------------------------------------------------------------- begin and end

    def start(self) -> None:
        """Begin."""
        running.append(self)
        self.compiling = progress.seconds()
        self.turn(PRIMAL)
        at_opening.insert(0, self.opens)  # before windows put their marks on the tape
        at_closing.append(self.closes)
        hooks.install(self)

    def stop(self) -> None:
        """End: everything is as it was."""
        hooks.remove()
        self.compiling = progress.seconds() - self.compiling
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
        """Another phase begins, unless a sweep runs."""
        self.changed = now()
        if phase != self.phase or not self.phases:
            self.phases.append((self.changed, phase))
        self.phase = phase

    def opens(self, tape: Tape) -> None:
        """A tape begins to record."""
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
        """A tape ends to record."""
        if get_ident() != self.thread:
            return
        records, self.recording = tape.records, self._around.pop() if self._around else None
        around = self.recording is not None
        if not isinstance(records, TracedRecords):
            return
        records.close(max(self.call, 0))
        self.turn(SWEEP if self.depth else RECORDING if around else PRIMAL)

    def gone(self, number: int) -> None:
        """A tape is no more: so many bytes have been given back."""
        if self not in running:
            return
        growth, when = self.growths.pop(number), now()
        self.memory.extend(growth)
        _, sites, saved, kept = rows_of(growth, MEMORY).T
        for site in set(sites.tolist()):
            of_site = sites == site
            self.memory.extend((when, site, -int(saved[of_site].sum()), -int(kept[of_site].sum())))

    def memory_of_all(self) -> np.ndarray:
        """What `memory` has of all tapes, in the order of time."""
        found = self.memory[:]
        for growth in self.growths.values():
            found.extend(growth)
        rows = rows_of(found, MEMORY)
        return rows[np.argsort(rows[:, 0], kind="stable")]

    def sweep_begins(self, sweep: Sweep) -> None:
        """A sweep (or a walk) of a tape begins."""
        records = sweep.tape.records
        ours = type(sweep) in (Sweep, VectorSweep)
        if not isinstance(records, TracedRecords) or not ours or get_ident() != self.thread:
            return
        before = self.phase, self.call, self.swept
        begun = now()
        self.depth += 1
        self.turn(SWEEP)
        self.call = -1
        records.__class__ = SweptRecords
        self.swept = records  # type: ignore[assignment]
        records.begin(sweep)  # type: ignore[attr-defined]

        def end(error: BaseException | None) -> None:
            records.end()  # type: ignore[attr-defined]
            records.passed_before(unseen_receives(sweep.tape), begun)  # type: ignore[attr-defined]
            self.shadows.append((now(), records.shadows_by_site()))  # type: ignore[attr-defined]
            records.__class__ = TracedRecords
            del records.sweep, records.homes  # type: ignore[attr-defined]  # a circle would keep the tape alive
            self.depth -= 1
            if error is None:
                harvest(self, sweep.tape)
            phase, self.call, self.swept = before
            self.shadows.append((now(), {}))
            self.turn(phase)

        sweep.at_end(end)

    # --------------------------------------------------------------------------------------------------------- events

    def event(self, begin: int, end: int, site: int) -> None:
        """Something has happened."""
        phase = self.phase
        if phase == SWEEP:
            self.inside += end - begin
        self.latest = end
        self.events.extend((begin, end, site, phase, self.kinds[site]))
        if len(self.events) >= self.full:
            self.settle()

    def spoke(self, comm: Any, begin: int) -> None:
        """A call has used a communicator."""
        if comm is not self.speaker[0]:
            self.speaker = comm, self.identity(comm)
        identity = self.speaker[1]
        if identity is not None and len(self.spoken) < 2 * MOST_EVENTS:
            self.spoken.extend((begin, identity))

    def identity(self, comm: Any) -> int | None:
        """What a communicator has been noted by, with its name; None: it has no reverse."""
        reverse = reverse_of(comm)
        if reverse is None:
            return None
        if reverse.identity not in self.named:
            self.named[reverse.identity] = (comm.Get_name() if comm else "") or reverse.name
        return reverse.identity

    def wait(self, begin: int, end: int) -> None:
        """A wait inside of what happens."""
        site = self.call
        if site < 0:
            site = 0 if self.swept is None else self.swept.current()
        if self.room():
            self.passed.extend((begin, end, site, self.phase, WAITING))
        else:
            self.dropped += 1

    def room(self) -> int:
        """How many more events can be kept one by one."""
        return max(MOST_EVENTS - (len(self.events) + len(self.passed)) // EVENT, 0)

    def keep(self, passed: np.ndarray) -> None:
        """Keep events that are not to be counted, as long as there is room."""
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
        """Add to the totals what so many events of so many nanoseconds were."""
        which = 3 * sites + phases
        counts, sums = np.bincount(which), np.bincount(which, spans)
        for key in np.flatnonzero(counts).tolist():
            total = self.totals.setdefault(divmod(key, 3), [0, 0])
            total[0] += int(counts[key])
            total[1] += int(sums[key])

    def place(self, depth: int) -> tuple[Any, int]:
        """Code and instruction of the innermost line of the program."""
        frame: Any = sys._getframe(depth)
        while True:
            code = frame.f_code
            known = self._own.get(id(code))
            if known is None:
                own = frame.f_globals.get("__name__", "").partition(".")[0] in LIBRARIES
                own |= code.co_filename.startswith((_PACKAGE, "<frozen"))  # what is run as __main__
                known = self._own[id(code)] = code, own
            if not known[1] or frame.f_back is None:
                return code, frame.f_lasti
            frame = frame.f_back

    def site(self, depth: int, name: str, kind: int) -> tuple[int, bool]:
        """The number of a call at the innermost line of the program, and whether that line itself has called."""
        code, instruction = self.place(depth + 1)
        number = self.number(code, instruction, name, kind)
        return number, code is sys._getframe(depth).f_code

    def number(self, code: Any, instruction: int, name: str, kind: int) -> int:
        """The number of what is called at a line: the same for all instructions of the line."""
        number = self._numbers.get((id(code), instruction, name))
        if number is not None:
            return number
        self._own.setdefault(id(code), (code, False))  # keeps it alive
        own = self._own[id(code)][1]
        where = "" if own else line_of((code, instruction))
        number = self._numbers.get((where, name))
        if number is None:
            number = self._numbers[where, name] = len(self.sites)
            self.sites.append((where, name, kind))
            self.kinds.append(kind)
            self.lines.append(self._lines.setdefault(where, len(self._lines)))
        self._numbers[id(code), instruction, name] = number
        return number

    def outside(self, record: Any) -> int:
        """Something has been computed outside of all traced calls, since the last one; the number of its line."""
        site = self.site_of(record)
        begin, end = max(self.latest, self.changed), now()
        self.event(end if self.is_first else begin, end, site)
        self.is_first = False  # what came before it is above all what the program and the first tape import
        return site

    def site_of(self, record: Any) -> int:
        """The number of what a record is of, that was made outside of all traced calls."""
        code, instruction = self.place(4)
        kind = type(record.adjoint)
        number = self._numbers.get((id(code), instruction, kind))
        if number is None:
            name = "(undo)" if record.adjoint is None else name_of(record)
            number = self._numbers[id(code), instruction, kind] = self.number(code, instruction, name, COMPUTED)
        return number
