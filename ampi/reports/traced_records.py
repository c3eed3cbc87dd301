"""Lists of a tape's records that trace: with the line of each record and the time when a sweep reached it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import compress, islice, repeat
from operator import attrgetter
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

import numpy as np

from ..mpi.log.messages import Collective, Completion, Received, Sent
from ..mpi.windows.access import Access, Begun, Completed
from ..tape import Sweep, Tape
from .events import AGREEMENT, EVENT, STAMP, SWEEP

if TYPE_CHECKING:
    from .tracer import Tracer

SAMPLES = 256
"""Maximum number of measurements of shadows' sizes while the duration of a sweep doubles."""
SHARE = 400
"""These measurements take at most the fraction ``1 / SHARE`` of the sweep's time."""
_MOST_TURNS = 1 << 14
_append = list.append
_item = list.__getitem__
_adjoint_of = attrgetter("adjoint")


class TracedRecords(list):
    """The records of a tape, with the site of each.

    Attributes
    ----------
    tracer : Tracer
    number : int
        The number of the tape among the tracer's.
    sites : dict
        The numbers of sites, by the ids of records.
    stamps : dict
        By the ids of logs: site, begin and end of the calls that logged their messages, in the same order; flat.
    accesses : dict
        By the ids of one-sided operations: site, begin and end of the call.
    completed : dict
        Times of arrival, by the ids of received messages.
    passages : array
        The times when the latest sweep reached each record, and when it left the last one.
    swept : dict
        By the ids of messages, collective calls and one-sided operations: the index of their record in ``passages``.
    agreed : int
        The time when the latest sweep reached its first record.
    saved, kept : int
        Bytes of the tape that have been assigned to a line.
    memory : array
        Time, site, and growth of the saved and kept bytes; flat.
    """

    def __init__(self, tracer: Tracer, tape: Tape) -> None:
        super().__init__()
        self.tracer = tracer
        self.number = len(tracer.tapes)
        self.tape: Tape | None = tape  # None after it is closed: it owns these records
        self.sites: dict[int, int] = {}
        self.stamps: dict[int, array[int]] = {}
        self.latest: tuple[Any, array[int]] = None, array("q")  # the log of the last call, and its stamps
        self.accesses: dict[int, tuple[int, int, int]] = {}
        self.completed: dict[int, int] = {}
        self.passages: array[int] = array("q")
        self.swept: dict[int, int] = {}
        self.saved = self.kept = 0
        self.memory: array[int] = array("q")
        self.harvested = False
        self.agreed = 0

    def append(self, record: Any) -> None:
        """Append a record, and note its line."""
        _append(self, record)
        site = self.tracer.call
        if site < 0:
            site = self.tracer.outside(record)
        self.sites[id(record)] = site
        tape = self.tape
        if tape is not None:
            saved, kept = tape.saved_bytes, tape.kept_bytes
            if saved != self.saved or kept != self.kept:
                self.memory.extend((now(), site, saved - self.saved, kept - self.kept))
                self.saved, self.kept = saved, kept

    @staticmethod
    def of_task() -> list:
        """Make a list for the records of a task, which have no times (`ampi.reports.tasks` has those of tasks)."""
        return []

    def close(self, site: int) -> None:
        """End recording; bytes saved since the last record belong to this line."""
        tape, self.tape = self.tape, None
        if tape is not None and (tape.saved_bytes != self.saved or tape.kept_bytes != self.kept):
            self.memory.extend((now(), site, tape.saved_bytes - self.saved, tape.kept_bytes - self.kept))
            self.saved, self.kept = tape.saved_bytes, tape.kept_bytes

    def stamp(self, found: tuple[int, int, int]) -> bool:
        """Assign the messages logged since the last call to this call (site, begin, end).

        Returns True if the call has used the latest communicator.
        """
        log = self.tape.latest[1]  # type: ignore[union-attr]
        latest, stamps = self.latest
        if log is not latest:
            stamps = array("q") if log is None else self.stamps.setdefault(id(log), array("q"))
            self.latest = log, stamps
        if log is not None and STAMP * len(log.messages) == len(stamps) + STAMP:
            stamps.extend(found)
            return True
        self.stamp_all(found)
        return False

    def stamp_all(self, found: tuple[int, int, int]) -> None:
        """Assign messages to a call that may have used several communicators."""
        communication = self.tape.sweep_starts.get("communication")  # type: ignore[union-attr]
        for log in () if communication is None else communication.logs.values():  # type: ignore[attr-defined]
            stamps = self.stamps.setdefault(id(log), array("q"))
            stamps.extend(found * (len(log.messages) - len(stamps) // STAMP))

    def passage(self, thing: Any) -> tuple[int, int]:
        """Return the times when the latest sweep reached and left a message, call or operation; zeros if it did not."""
        place = self.swept.get(id(thing))
        return (0, 0) if place is None else (self.passages[place], self.passages[place + 1])

    def note_access(self, found: tuple[int, int, int]) -> bool:
        """Assign the latest one-sided operation to this call (site, begin, end); return whether there is a new one."""
        for record in islice(reversed(self), 4):  # under a shared lock, the record of its completion may follow
            access = access_of(record)
            if access is not None:
                if id(access) in self.accesses:
                    return False
                self.accesses[id(access)] = found
                return True
        return False


def access_of(record: Any) -> Access | None:
    """Return the one-sided operation whose start a record describes; None for other records."""
    adjoint = record.adjoint.access if isinstance(record.adjoint, Begun) else record.adjoint
    return adjoint if isinstance(adjoint, Access) else None


_FIRST, _NONE = -1, -2


class SweptRecords(TracedRecords):
    """The records of a tape during a sweep, which reads them from last to first.

    Attributes
    ----------
    sweep : Sweep
    due : int
        Position of the record that the sweep reaches next; `_FIRST`: before the first one, `_NONE`: after all of them.
    first : int
        Position of the record to which the first time belongs.
    times, inside : array
        The times when the sweep reached records that are not counted yet, and the time that had been counted by then.
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
    stop_noting: Callable[[], None]

    def begin(self, sweep: Sweep) -> None:
        """Begin a sweep."""
        self.sweep, self.counted, self.next_sample = sweep, 0, 0
        self.due = _FIRST
        self.times, self.inside = array("q"), array("q")
        self.agreed = 0
        self.homes: dict[Any, int] = {}  # the site of the record at which each shadow was made
        self.stop_noting = sweep.note_shadows(self._note_shadow)
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
        """Measure the shadows, rarely enough to cost little."""
        begin = now()
        self.tracer.shadows.append((begin, self.shadows_by_site()))
        end = now()
        first = self.agreed or self.times[0]
        self.next_sample = end + max(SHARE * (end - begin), (end - first) // SAMPLES)

    def _note_shadow(self, storage: Any) -> None:
        self.homes[storage] = self.current()

    def shadows_by_site(self) -> dict[int, int]:
        """Return the bytes of the shadows, by the sites whose records made them; those of seeds belong to none."""
        found: dict[int, int] = {}
        for storage, size in self.sweep.sizes():
            site = self.homes.get(storage, AGREEMENT)
            found[site] = found.get(site, 0) + size
        return found

    def current(self) -> int:
        """Return the site of the sweep's present record."""
        if not self.times:
            return 0 if self.agreed else AGREEMENT
        return self.sites.get(id(_item(self, 0 if self.due == _NONE else self.due + 1)), 0)

    def settle(self) -> None:
        """Count the records that the sweep has passed, and note the times of those that send or receive."""
        many, tracer = len(self.times) - 1, self.tracer
        if many >= 0:
            self.agreed = self.agreed or self.times[0]
        if many < 1:
            return
        records = _item(self, slice(self.first - many + 1, self.first + 1))
        records.reverse()
        spans = np.diff(self.times) - np.diff(self.inside)
        adjoints = list(map(_adjoint_of, records))  # the record itself, unless it also undoes something
        kinds = list(map(type, adjoints))
        for cls in set(kinds).difference(_passed):
            _passed[cls] = _passed_by(cls)
        self._note_passed(adjoints, list(map(_passed.__getitem__, kinds)))
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

    def pause(self) -> None:
        """End a part of the sweep: tasks come next, or another part."""
        if not self.times:
            return
        self.times.append(now())
        self.inside.append(self.tracer.inside)
        self.settle()
        self.passages.extend(self.times[-1:])
        self.times, self.inside = array("q"), array("q")
        self.due = _FIRST

    def _note_passed(self, adjoints: list[Any], passes: list[int]) -> None:
        """Note at which record the sweep has passed each message, collective call and one-sided operation."""
        swept, before = self.swept, len(self.passages)
        for k in compress(range(len(passes)), map(SEVERAL.__le__, passes)):
            adjoint = adjoints[k]
            parts = adjoint if passes[k] == PARTS else adjoint.accesses
            swept.update(zip(map(id, parts), repeat(before + k)))
        for k in compress(range(len(passes)), map(FIRST.__eq__, passes)):
            swept.setdefault(id(adjoints[k]), before + k)
        itself = list(map(ITSELF.__eq__, passes))
        swept.update(zip(map(id, compress(adjoints, itself)), compress(range(before, before + len(itself)), itself)))

    def end(self) -> None:
        """End a sweep."""
        self.stop_noting()
        self.pause()
        self.tracer.inside += self.counted

    def passed_before(self, things: Iterable[Any], begin: int) -> None:
        """Note the messages that the sweep has handled before its first record."""
        self.passages.extend((begin, self.agreed))
        self.swept.update(zip(map(id, things), repeat(len(self.passages) - 2)))


NOTHING, ITSELF, FIRST, PARTS, ACCESSES = range(5)
"""Operations that a sweep passes with a record, by class of its adjoint: the adjoint itself (`FIRST`: only once), its
parts, or its accesses."""
SEVERAL = PARTS
"""This kind and the following ones have several operations."""
_passed: dict[type, int] = {}


def _passed_by(cls: type) -> int:
    if issubclass(cls, Received):  # its adjoint is sent at the mirror of the wait
        return FIRST
    if issubclass(cls, Completed):
        return ACCESSES
    return PARTS if issubclass(cls, Completion) else ITSELF if issubclass(cls, (Sent, Collective, Access)) else NOTHING


def name_of(record: Any) -> str:
    """Return the name of the operation that a record holds."""
    adjoint = record.adjoint
    for part in ("name", "call", "operation", "function", "kernel", "ufunc"):
        found = getattr(adjoint, part, None)
        if isinstance(found, str):
            return found
        if found is not None and isinstance(getattr(found, "__name__", None), str):
            return found.__name__
    cls = getattr(adjoint, "__qualname__", None) or type(adjoint).__name__
    module = type(adjoint).__module__ if cls == type(adjoint).__name__ else getattr(adjoint, "__module__", "")
    kind = "message" if ".mpi." in f"{module}." else "kernel" if ".kernel." in f"{module}." else "NumPy"
    return f"{kind} ({cls.partition('.<locals>')[0].strip('_').lower()})"
