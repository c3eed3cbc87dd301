"""What happened on this rank, and when: calls of MPI and of kernels, records as they are made, and sweeps.

While no tracer runs there is nothing of it: methods are wrapped when tracing begins (`hooks`) and are as before when it
ends, and only tapes that are opened meanwhile get a list of records which looks at the clock.
"""

from __future__ import annotations

import os
import sys
import weakref
from _thread import get_ident
from time import perf_counter_ns as now
from typing import Any

from ..handouts import LIBRARIES
from ..mpi.messages import Completion, line_of
from ..programs.traffic import name_of
from ..recording import opened
from ..tape import Sweep, Tape, VectorSweep, at_closing, at_opening

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
PRIMAL, RECORDING, SWEEP = range(3)
"""What a moment belongs to; what is recorded anew in a sweep (of a time loop) belongs to the sweep."""
COMPUTED, KERNEL, COMMUNICATION, WAITING = range(4)
"""What an event is."""
AGREEMENT = 1
"""The site of what the ranks do before a sweep."""
MOST_EVENTS = 1_000_000
"""Events of a rank that are kept one by one; all of them are counted."""
SAMPLES = 256
"""How often a sweep is asked for the size of its shadows."""

running: list[Tracer] = []
"""The tracer that is installed, if there is one."""


class TracedRecords(list):
    """The records of a tape, with what is known of each: the number of its site, by its id.

    Attributes
    ----------
    tracer : Tracer
    sites : dict
    stamps : dict
        By the ids of logs: begin, end and site of the calls that logged their messages, in the same order.
    completed : dict
        By the ids of received messages: when they had come.
    swept : dict
        By the ids of records' adjoints, and of the messages that a wait has completed: when the latest sweep passed
        them.
    agreed : int
        When the latest sweep came to its first record.
    saved, kept : int
        Bytes of the tape that have been ascribed to a line.
    """

    def __init__(self, tracer: Tracer, tape: Tape) -> None:
        super().__init__()
        self.tracer = tracer
        self.tape = weakref.ref(tape)
        self.sites: dict[int, int] = {}
        self.stamps: dict[int, list[tuple[int, int, int]]] = {}
        self.completed: dict[int, int] = {}
        self.swept: dict[int, tuple[int, int]] = {}
        self.saved = self.kept = 0
        self.harvested = False
        self.sweep: Sweep | None = None
        self.current: Any = None
        self.began = self.inside = self.agreed = 0
        self.every = 1

    def append(self, record: Any) -> None:
        """Append a record, and remember the line that it is of."""
        list.append(self, record)
        tracer = self.tracer
        if get_ident() != tracer.thread:
            return
        site = tracer.call
        if site < 0:
            site = tracer.site_of(record)
            time = now()
            tracer.event(max(tracer.latest, tracer.changed), time, site)
        self.sites[id(record)] = site
        self.ascribe(site)

    def ascribe(self, site: int) -> None:
        """What the tape has saved since the last record is of this line."""
        tape = self.tape()
        if tape is not None and (tape.saved_bytes != self.saved or tape.kept_bytes != self.kept):
            saved, kept = tape.saved_bytes - self.saved, tape.kept_bytes - self.kept
            self.saved, self.kept = tape.saved_bytes, tape.kept_bytes
            self.tracer.memory.append((now(), site, saved, kept))


class SweptRecords(TracedRecords):
    """The same while a sweep asks for one record after the other."""

    def __getitem__(self, k: Any) -> Any:
        record = list.__getitem__(self, k)
        if type(k) is int:
            self.turn(record)
            if not k % self.every and self.sweep is not None:
                self.tracer.shadows.append((now(), self.sweep.nbytes()))
        return record

    def turn(self, record: Any) -> None:
        """The sweep has left one record, and comes to the next."""
        time = now()
        tracer = self.tracer
        if self.current is None:
            self.agreed = time
        else:
            site = self.sites.get(id(self.current), 0)
            tracer.event(self.began, time, site, SWEEP, without=tracer.inside - self.inside)
            tracer.count_adjoint(site)
            adjoint = self.current.adjoint  # itself, unless it undoes something besides
            self.swept[id(adjoint)] = span = (self.began, time)
            if isinstance(adjoint, Completion):
                self.swept.update((id(part), span) for part in adjoint)
        self.current, self.began, self.inside = record, time, tracer.inside
        tracer.sweeping = self.sites.get(id(record), 0)


class Tracer:
    """Traces this thread, from `start` to `stop`.

    Attributes
    ----------
    sites : list of tuple
        Text of the line, name of what is called there, and what it is.  The first one stands for no line.
    events : list of tuple
        Begin and end in nanoseconds, site, phase, and what it is (`WAITING` may lie inside of another one).
    totals : dict
        By site and phase: number and nanoseconds.
    adjoints : dict
        By site: number of records that sweeps have passed.
    phases : list of tuple
        When a phase began, and which one.
    memory : list of tuple
        When, site, and bytes that were saved and kept then.
    shadows, checkpoints : list of tuple
        When, and how many bytes they are; of checkpoints that are freed, less than zero.
    messages : list of tuple
        By tapes' records: what `harvest.of_tape` gives.
    comms : dict
        Names of communicators, by their identities.
    inside : int
        Nanoseconds of all counted events of sweeps so far: what is inside of a record is not its own time.
    """

    def __init__(self) -> None:
        self.thread = get_ident()
        self.sites: list[tuple[str, str, int]] = [
            ("", "(elsewhere)", COMPUTED),
            ("", "agreement of the ranks", WAITING),
        ]
        self.events: list[tuple[int, int, int, int, int]] = []
        self.totals: dict[tuple[int, int], list[int]] = {}
        self.adjoints: dict[int, int] = {}
        self.phases: list[tuple[int, int]] = []
        self.memory: list[tuple[int, int, int, int]] = []
        self.shadows: list[tuple[int, int]] = []
        self.checkpoints: list[tuple[int, int]] = []
        self.messages: list[tuple[int, list[tuple]]] = []
        self.comms: dict[int, str] = {}
        self.inside = 0
        self.tapes: list[weakref.ref] = []
        self.dropped = 0
        self.phase = PRIMAL
        self.depth = 0  # of sweeps
        self.call = -1  # the site of the traced call that runs
        self.sweeping = 0
        self.latest = self.changed = 0
        self._numbers: dict[Any, int] = {}
        self._own: dict[int, tuple[Any, bool]] = {}

    # -------------------------------------------------------------------------------------------------- begin and end

    def start(self) -> None:
        """Begin."""
        from . import hooks

        running.append(self)
        self.turn(PRIMAL)
        at_opening.insert(0, self.opens)  # before windows put their marks on the tape
        at_closing.append(self.closes)
        hooks.install(self)

    def stop(self) -> None:
        """End: everything is as it was."""
        from . import hooks
        from .harvest import harvest

        hooks.remove()
        at_opening.remove(self.opens)
        at_closing.remove(self.closes)
        self.phases.append((now(), -1))
        running.remove(self)
        for reference in self.tapes:
            tape = reference()
            if tape is not None:
                if isinstance(tape.records, TracedRecords) and not tape.records.harvested:
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
        if get_ident() != self.thread or tape.forward is not None or tape.records:
            return
        records = TracedRecords(self, tape)
        tape.elements.records = records
        if tape.append_record == tape.records.append:
            tape.append_record = records.append
        tape.records = records
        self.tapes.append(weakref.ref(tape))
        tape.at_sweep_start("report", self.sweep_begins)
        self.turn(SWEEP if self.depth else RECORDING)

    def closes(self, tape: Tape) -> None:
        """A tape ends to record."""
        records = tape.records
        if not isinstance(records, TracedRecords) or get_ident() != self.thread:
            return
        records.ascribe(self.call if self.call >= 0 else 0)
        outer = opened()
        around = outer is not None and outer is not tape and isinstance(outer.records, TracedRecords)
        self.turn(SWEEP if self.depth else RECORDING if around else PRIMAL)

    def sweep_begins(self, sweep: Sweep) -> None:
        """A sweep (or a walk) of a tape begins."""
        records = sweep.tape.records
        ours = type(sweep) in (Sweep, VectorSweep)
        if not isinstance(records, TracedRecords) or not ours or get_ident() != self.thread:
            return
        before = self.phase, self.call, self.sweeping
        begun = now()
        self.depth += 1
        self.turn(SWEEP)
        self.call = -1
        self.sweeping = AGREEMENT
        records.__class__ = SweptRecords
        records.current, records.sweep = None, sweep
        records.every = max(len(records) // SAMPLES, 1)

        def end(error: BaseException | None) -> None:
            from .harvest import harvest, unseen_receives

            records.turn(None)  # type: ignore[attr-defined]
            for receive in unseen_receives(sweep.tape):
                records.swept[id(receive)] = begun, records.agreed
            self.shadows.append((now(), sweep.nbytes()))
            records.__class__ = TracedRecords
            records.current = records.sweep = None
            self.depth -= 1
            if error is None:
                harvest(self, sweep.tape)
            phase, self.call, self.sweeping = before
            self.shadows.append((now(), 0))
            self.turn(phase)

        sweep.at_end(end)

    # --------------------------------------------------------------------------------------------------------- events

    def event(
        self, begin: int, end: int, site: int, phase: int | None = None, kind: int | None = None, without: int = 0
    ) -> None:
        """Something has happened; ``without``: nanoseconds of it that have been counted."""
        phase = self.phase if phase is None else phase
        if kind is None:
            kind = self.sites[site][2]
            total = self.totals.get((site, phase))
            if total is None:
                total = self.totals[site, phase] = [0, 0]
            total[0] += 1
            total[1] += end - begin - without
            if phase == SWEEP:
                self.inside += end - begin - without
        self.latest = end
        if len(self.events) < MOST_EVENTS:
            self.events.append((begin, end, site, phase, kind))
        else:
            self.dropped += 1

    def count_adjoint(self, site: int) -> None:
        """A sweep has passed a record."""
        self.adjoints[site] = self.adjoints.get(site, 0) + 1

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

    def site(self, depth: int, name: str, kind: int) -> int:
        """The number of a call at the innermost line of the program."""
        code, instruction = self.place(depth + 1)
        number = self._numbers.get((id(code), instruction, name))
        return self.number(code, instruction, name, kind) if number is None else number

    def number(self, code: Any, instruction: int, name: str, kind: int) -> int:
        """The number of what is called at a line: the same for all instructions of the line."""
        self._own.setdefault(id(code), (code, False))  # keeps it alive
        own = self._own[id(code)][1]
        where = "" if own else line_of((code, instruction))
        number = self._numbers.get((where, name))
        if number is None:
            number = self._numbers[where, name] = len(self.sites)
            self.sites.append((where, name, kind))
        self._numbers[id(code), instruction, name] = number
        return number

    def site_of(self, record: Any) -> int:
        """The number of what a record is of, that was made outside of all traced calls."""
        code, instruction = self.place(3)
        kind = getattr(record.adjoint, "__code__", None) or type(record.adjoint)
        number = self._numbers.get((id(code), instruction, kind))
        if number is None:
            name = "(undo)" if record.adjoint is None else name_of(record)
            number = self._numbers[id(code), instruction, kind] = self.number(code, instruction, name, COMPUTED)
        return number
