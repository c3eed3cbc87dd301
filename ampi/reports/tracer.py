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
from collections.abc import Iterable
from itertools import compress, islice, repeat
from operator import attrgetter
from time import perf_counter_ns as now
from typing import Any

import numpy as np

from ..handouts import LIBRARIES
from ..kernel.runtime import progress
from ..mpi.messages import Collective, Completion, Received, Sent, line_of
from ..mpi.reverse import reverse_of
from ..mpi.rma_access import Access, Completed
from ..programs.traffic import name_of
from ..tape import Sweep, Tape, VectorSweep, at_closing, at_opening
from .plain import Plain

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
PRIMAL, RECORDING, SWEEP = range(3)
"""What a moment belongs to; what is recorded anew in a sweep (of a time loop) belongs to the sweep."""
COMPUTED, KERNEL, COMMUNICATION, WAITING = range(4)
"""What an event is."""
AGREEMENT = 1
"""The site of what the ranks do before a sweep."""
MOST_EVENTS = 1_000_000
"""Events of a rank that are kept one by one; all of them are counted."""
MOST_UNSETTLED = 100_000
"""Events that are not counted yet."""
SAMPLES = 256
"""So many times, at most, shadows are asked for their size while a sweep goes on twice as long as it has."""
SHARE = 400
"""Asking them takes one part in so many of the sweep's time, or less."""

EVENT, STAMP, MEMORY, MESSAGE = 5, 3, 4, 11
"""Numbers in each of the flat tuples that are kept."""

_append = list.append
_item = list.__getitem__
_adjoint_of = attrgetter("adjoint")
running: list[Tracer] = []
"""The tracer that is installed, if there is one."""


class TracedRecords(list):
    """The records of a tape, with what is known of each: the number of its site, by its id.

    Attributes
    ----------
    tracer : Tracer
    number : int
        Of the tape, among the tracer's.
    sites : dict
    stamps : dict
        By the ids of logs: site, begin and end of the calls that logged their messages, in the same order; flat.
    accesses : dict
        By the ids of one-sided operations: site, begin and end of the call.
    completed : dict
        By the ids of received messages: when they had come.
    passages : array
        When the latest sweep came to each record, and when it had passed the last one.
    swept : dict
        By the ids of messages, collective calls and one-sided operations: the place of their record among these.
    agreed : int
        When the latest sweep came to its first record.
    saved, kept : int
        Bytes of the tape that have been ascribed to a line.
    held : dict
        The same by site.
    """

    def __init__(self, tracer: Tracer, tape: Tape) -> None:
        super().__init__()
        self.tracer = tracer
        self.number = len(tracer.tapes)
        self.tape: Tape | None = tape  # until it is closed, for it holds these
        self.sites: dict[int, int] = {}
        self.stamps: dict[int, array[int]] = {}
        self.latest: tuple[Any, array[int]] = None, array("q")  # the log of the last call, and its stamps
        self.accesses: dict[int, tuple[int, int, int]] = {}
        self.completed: dict[int, int] = {}
        self.passages: array[int] = array("q")
        self.swept: dict[int, int] = {}
        self.saved = self.kept = 0
        self.held: dict[int, list[int]] = {}
        self.harvested = False
        self.agreed = 0

    def append(self, record: Any) -> None:
        """Append a record, and remember the line that it is of."""
        _append(self, record)
        site = self.tracer.call
        if site < 0:
            site = self.tracer.outside(record)
        self.sites[id(record)] = site
        tape = self.tape
        if tape is not None and (tape.saved_bytes != self.saved or tape.kept_bytes != self.kept):
            self.ascribe(tape, site)

    def ascribe(self, tape: Tape, site: int) -> None:
        """What the tape has saved since the last record is of this line."""
        saved, kept = tape.saved_bytes - self.saved, tape.kept_bytes - self.kept
        self.saved, self.kept = tape.saved_bytes, tape.kept_bytes
        if saved or kept:
            self.tracer.memory.extend((now(), site, saved, kept))
            held = self.held.get(site)
            if held is None:
                held = self.held[site] = [0, 0]
            held[0] += saved
            held[1] += kept

    def stamp(self, found: tuple[int, int, int]) -> None:
        """The messages that have been logged since the last call are of this one (site, begin, end)."""
        log = self.tape.latest[1]  # type: ignore[union-attr]
        if log is not self.latest[0]:
            self.latest = log, array("q") if log is None else self.stamps.setdefault(id(log), array("q"))
        if log is not None and STAMP * len(log.messages) == len(self.latest[1]) + STAMP:
            self.latest[1].extend(found)
        else:
            self.stamp_all(found)

    def stamp_all(self, found: tuple[int, int, int]) -> None:
        """The same of a call that may have used several communicators."""
        communication = self.tape.sweep_starts.get("communication")  # type: ignore[union-attr]
        for log in () if communication is None else communication.logs.values():  # type: ignore[attr-defined]
            stamps = self.stamps.setdefault(id(log), array("q"))
            stamps.extend(found * (len(log.messages) - len(stamps) // STAMP))

    def passage(self, thing: Any) -> tuple[int, int]:
        """When the latest sweep came to what it has passed with a record, and when it left it; zeros: not at all."""
        place = self.swept.get(id(thing))
        return (0, 0) if place is None else (self.passages[place], self.passages[place + 1])

    def note_access(self, found: tuple[int, int, int]) -> bool:
        """The one-sided operation that was just recorded is of this call (site, begin, end); whether there is one."""
        for record in islice(reversed(self), 4):  # its completion, in the epoch of a shared lock, may have followed
            access = access_of(record)
            if access is not None:
                if id(access) in self.accesses:
                    return False
                self.accesses[id(access)] = found
                return True
        return False


def access_of(record: Any) -> Access | None:
    """The one-sided operation whose start a record is of."""
    adjoint = getattr(record.adjoint, "__self__", record.adjoint)
    return adjoint if isinstance(adjoint, Access) else None


_FIRST, _NONE = -1, -2


class SweptRecords(TracedRecords):
    """The same while a sweep asks for one record after the other, from the last one to the first.

    Attributes
    ----------
    sweep : Sweep
    due : int
        Position of the record that the sweep comes to next; `_FIRST`: whichever it begins with, `_NONE`: it has come to
        all of them.
    first : int
        Position of the record that the times begin with.
    times, inside : array
        When it came to each of the records that are not counted yet, and how much of the time before had been counted
        then.
    counted : int
        Nanoseconds of records that are not in `Tracer.inside` yet.
    """

    sweep: Sweep
    due: int
    first: int
    times: array[int]
    inside: array[int]
    counted: int
    next_sample: int

    def begin(self, sweep: Sweep) -> None:
        """A sweep begins."""
        self.sweep, self.counted, self.next_sample = sweep, 0, 0
        self.due = _FIRST
        self.times, self.inside = array("q"), array("q")
        self.agreed = 0
        self.homes: dict[Any, int] = {}  # of the shadows: the site of the record that the sweep had come to
        sweep.note_shadows(self._note_shadow)
        self.swept.clear()
        del self.passages[:]

    def __getitem__(self, k: Any) -> Any:
        due = self.due
        if k == due or (due == _FIRST and type(k) is int and k >= 0):
            if due == _FIRST:
                self.first = k
            self.due = k - 1 if k else _NONE
            time = now()
            times = self.times
            times.append(time)
            self.inside.append(self.tracer.inside)
            if time > self.next_sample:
                self.sample()
            if len(times) > _MOST_TURNS:
                self.settle()
        return _item(self, k)

    def sample(self) -> None:
        """How large the shadows are: asked for only so often that it costs little."""
        begin = now()
        self.tracer.shadows.append((begin, self.shadows_by_site()))
        end = now()
        first = self.agreed or self.times[0]
        self.next_sample = end + max(SHARE * (end - begin), (end - first) // SAMPLES)

    def _note_shadow(self, storage: Any) -> None:
        self.homes[storage] = self.current()

    def shadows_by_site(self) -> dict[int, int]:
        """Bytes of the shadows, by the sites whose records have made them; of seeds by none."""
        found: dict[int, int] = {}
        for storage, size in self.sweep.sizes():
            site = self.homes.get(storage, AGREEMENT)
            found[site] = found.get(site, 0) + size
        return found

    def current(self) -> int:
        """The site of the record that the sweep has come to."""
        if not self.times:
            return AGREEMENT
        return self.sites.get(id(_item(self, 0 if self.due == _NONE else self.due + 1)), 0)

    def settle(self) -> None:
        """Count the records that the sweep has passed, and note when it did those that send or receive."""
        many, tracer = len(self.times) - 1, self.tracer
        if many >= 0:
            self.agreed = self.agreed or self.times[0]
        if many < 1:
            return
        records = _item(self, slice(self.first - many + 1, self.first + 1))
        records.reverse()
        spans = np.diff(self.times) - np.diff(self.inside)
        adjoints = list(map(_adjoint_of, records))  # itself, unless it undoes something besides
        kinds = list(map(type, adjoints))
        for cls in set(kinds).difference(_passed):
            _passed[cls] = _passed_by(cls)
        swept, before = self.swept, len(self.passages)
        passes = list(map(_passed.__getitem__, kinds))
        for k in compress(range(many), passes):
            passed, adjoint = passes[k], adjoints[k]
            if passed == ITSELF:
                swept[id(adjoint)] = before + k
            elif passed == FIRST:
                swept.setdefault(id(adjoint), before + k)
            else:
                for part in adjoint if passed == PARTS else adjoint.accesses:
                    swept[id(part)] = before + k
        self.passages.extend(self.times[:-1])
        table = np.empty((many, EVENT), np.int64)
        table[:, 0], table[:, 1] = self.times[:-1], self.times[1:]
        table[:, 2] = sites = np.fromiter(map(self.sites.get, map(id, records), repeat(0)), np.int64, many)
        table[:, 3], table[:, 4] = SWEEP, np.array(tracer.kinds)[sites]
        tracer.count(sites, SWEEP, spans)
        numbers = np.bincount(sites)
        for site in np.flatnonzero(numbers).tolist():
            tracer.adjoints[site] += int(numbers[site])
        self.counted += int(spans.sum())
        tracer.keep(table)
        self.first -= many
        self.times, self.inside = self.times[-1:], self.inside[-1:]

    def end(self) -> None:
        """The sweep has passed all records, or stops."""
        self.times.append(now())
        self.inside.append(self.tracer.inside)
        self.settle()
        self.passages.extend(self.times[-1:])
        self.times, self.inside = array("q"), array("q")
        self.tracer.inside += self.counted

    def passed_before(self, things: Iterable[Any], begin: int) -> None:
        """What the sweep has done between its beginning and its first record."""
        self.passages.extend((begin, self.agreed))
        self.swept.update(zip(map(id, things), repeat(len(self.passages) - 2)))


def rows_of(flat: array[int], columns: int) -> np.ndarray:
    """Flat tuples as an array of so many columns, a copy."""
    return np.array(flat, np.int64).reshape(-1, columns)


NOTHING, ITSELF, FIRST, PARTS, ACCESSES = range(5)
"""What a sweep has passed with a record of some class: the adjoint itself (`FIRST`: unless it has before), what it
consists of, or its accesses.  `NOTHING` is false."""
_passed: dict[type, int] = {}


def _passed_by(cls: type) -> int:
    if issubclass(cls, Received):  # it goes back at the mirror of the wait
        return FIRST
    if issubclass(cls, Completed):
        return ACCESSES
    return PARTS if issubclass(cls, Completion) else ITSELF if issubclass(cls, (Sent, Collective, Access)) else NOTHING


_MOST_TURNS = 1 << 14


class Tracer:
    """Traces this thread, from `start` to `stop`.

    Attributes
    ----------
    sites : list of tuple
        Text of the line, name of what is called there, and what it is.  The first one stands for no line.
    events : array
        Begin and end in nanoseconds, site, phase, and what it is; flat, since objects by the thousand would have Python
        look for garbage in the whole program.
    passed : array
        The same of what is not to be counted any more: records that sweeps have passed, and waits inside of others.
    totals : dict
        By site and phase: number and nanoseconds of what has been counted (`settle`).
    adjoints : Counter
        By site: number of records that sweeps have passed.
    phases : list of tuple
        When a phase began, and which one.
    memory : array
        When, site, and bytes that were saved and kept then (less than zero: given back with their tape); flat.
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
        self.events: array[int] = array("q")
        self.passed: array[int] = array("q")
        self.totals: dict[tuple[int, int], list[int]] = {}
        self.adjoints: Counter[int] = Counter()
        self.phases: list[tuple[int, int]] = []
        self.memory: array[int] = array("q")
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
        self._own: dict[int, tuple[Any, bool]] = {}

    # -------------------------------------------------------------------------------------------------- begin and end

    def start(self) -> None:
        """Begin."""
        from . import hooks

        running.append(self)
        self.compiling = progress.seconds()
        self.turn(PRIMAL)
        at_opening.insert(0, self.opens)  # before windows put their marks on the tape
        at_closing.append(self.closes)
        hooks.install(self)

    def stop(self) -> None:
        """End: everything is as it was."""
        from . import hooks
        from .harvest import harvest

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
                    tape.records.tape = None
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
        weakref.finalize(tape, self.gone, records.held).atexit = False
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
        records.ascribe(tape, max(self.call, 0))
        records.tape = None
        self.turn(SWEEP if self.depth else RECORDING if around else PRIMAL)

    def gone(self, held: dict[int, list[int]]) -> None:
        """A tape is no more: so many bytes have been given back."""
        if self in running:
            when = now()
            for site, sizes in held.items():
                self.memory.extend((when, site, -sizes[0], -sizes[1]))

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
            from .harvest import harvest, unseen_receives

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
        kind = getattr(record.adjoint, "__code__", None) or type(record.adjoint)
        number = self._numbers.get((id(code), instruction, kind))
        if number is None:
            name = "(undo)" if record.adjoint is None else name_of(record)
            number = self._numbers[id(code), instruction, kind] = self.number(code, instruction, name, COMPUTED)
        return number
