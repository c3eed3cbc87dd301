"""Episodes: the parts of a tape during which tasks run in other threads.

An episode begins with the first submit and ends when the tape's own thread has learned that all tasks have ended.  The
records of all its strands are then inserted among those of the tape, in an order that agrees with the happened-before
relation, and `races` looks for accesses that nothing orders.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import ActivityError
from ..interception.hooks import hook_of
from ..tape import Need, Sweep, Tape, at_closing
from ..tape.recording import note_tasks
from ..tape.recording import tasks as running
from . import races, sweeps
from .partial_sweep import PartialSweep
from .strands import Path, Strand, in_order
from .task_pushes import note_no_reads, note_reads
from .task_tapes import known_active, need_noted, note_activated

OWN = "the thread of the tape"


def plain_submit() -> Callable:
    """Return the original `ThreadPoolExecutor.submit`, without ampi's hook."""
    found = hook_of(ThreadPoolExecutor.submit)
    return ThreadPoolExecutor.submit if found is None else found.original


class Episode:
    """A part of a tape during which tasks run in other threads.

    Attributes
    ----------
    strands : dict of Strand
    begin, end : int
        The range of its records on the tape, once it has ended.
    places : list of tuple of int
        The parts of this range with the segments of the tape's own thread: first and last (exclusive).
    passes : list of tuple
        Work of the latest sweep on tasks: path, thread, begin and end in nanoseconds.
    links : list of tuple
        Adjoints that the latest sweep passed to a task (True) or added from it (False); path, thread, time.
    workers : int
        The largest number of threads that ran its tasks.
    pool : weakref.ref or None
        The executor of its first task.
    """

    def __init__(self, tape: Tape) -> None:
        self.own = Strand((), OWN, tape.records, {}, {})
        self.strands: dict[Path, Strand] = {(): self.own}
        self.begin = self.end = len(tape.records)
        self.unfinished: dict[Path, Any] = {}  # the `Task` of each strand that may still run
        self.places: list[tuple[int, int]] = []
        self.passes: list[tuple[Path, tuple[int, str], int, int]] = []
        self.links: list[tuple[bool, Path, int, int]] = []
        self.workers = 1
        self.pool: Any = None
        self.closed = False
        self._records = tape.records
        self._pen = tape.pen
        tape.pen = None
        tape.accesses = self.own
        _note_reads(tape, self.own)
        running.append(self)
        note_tasks()

    def fork(self, strand: Strand) -> Strand:
        """Return the strand of a task that a strand submits."""
        of_task = getattr(self._records, "of_task", None)
        child = strand.fork(where_called(), [] if of_task is None else of_task())
        self.strands[child.path] = child
        return child

    @contextlib.contextmanager
    def lend_threads(self) -> Iterator[Callable]:
        """Yield a function that submits to the executor of the tasks, or to a new one if that is shut down."""
        pool = None if self.pool is None else self.pool()
        submit = plain_submit()
        if pool is not None and not (pool._shutdown or pool._broken):
            yield functools.partial(submit, pool)
            return
        with ThreadPoolExecutor(self.workers, "ampi") as made:
            yield functools.partial(submit, made)

    def is_over(self) -> bool:
        """Return whether the tape's own thread has learned that all tasks have ended."""
        own = self.own
        return all(s is own or (s.ended and own.knows(s)) or self._is_cancelled(s) for s in list(self.strands.values()))

    def _is_cancelled(self, strand: Strand) -> bool:
        task = self.unfinished.get(strand.path)
        return task is not None and task.is_cancelled()

    def close(self, tape: Tape) -> None:
        """End the episode: insert the records of all strands into the tape."""
        self.closed = True
        running.remove(self)
        tape.accesses = None
        tape.pen = self._pen
        for name in _NOTED:
            vars(tape).pop(name, None)
        if (push := _push_of(tape)) is not None:
            note_no_reads(push)
        records = tape.records
        found: list[Any] = []
        for strand, k in in_order(self.strands):
            begin, end = strand.bounds(k)
            if strand is self.own:
                self.places.append((self.begin + len(found), self.begin + len(found) + end - begin))
            found += strand.records[begin:end]
        records[self.begin :] = found
        self.own.records = []
        self.end = len(records)
        self.unfinished.clear()


_NOTED = ("need", "need_again", "activate", "is_active")


def _note_reads(tape: Tape, strand: Strand) -> None:
    """Make a tape record the reads and writes of its own thread while tasks run."""
    reference = weakref.ref(tape)  # its own attributes must not keep the tape alive
    kind = type(tape)

    def need(array: np.ndarray) -> np.ndarray:
        own = reference()
        return need_noted(own, strand, array, lambda array: kind.need(own, array))  # type: ignore[arg-type]

    def need_again(need: Need) -> None:
        strand.read(need.storage, need.extent)
        kind.need_again(reference(), need)  # type: ignore[arg-type]

    def activate(array: np.ndarray) -> None:
        kind.activate(reference(), array)  # type: ignore[arg-type]
        note_activated(strand, array)

    def is_active(array: Any) -> bool:
        return kind.is_active(reference(), array) and known_active(strand, array)  # type: ignore[arg-type]

    vars(tape).update(need=need, need_again=need_again, activate=activate, is_active=is_active)
    if (push := _push_of(tape)) is not None:
        note_reads(push, strand)


def _push_of(tape: Tape) -> Any:
    return tape.forward if tape.tangents is None else tape.tangents


class Episodes:
    """The episodes of a tape.

    Attributes
    ----------
    present : Episode or None
    past : list of Episode
    """

    def __init__(self) -> None:
        self.present: Episode | None = None
        self.past: list[Episode] = []

    def begin(self, tape: Tape) -> Episode:
        """Return the present episode, or begin one."""
        if self.present is None:
            if tape.before_append is not None:
                tape.before_append()
            self.present = Episode(tape)
        return self.present

    def look(self, tape: Tape, check: bool = True) -> None:
        """End the present episode if it is over; raise an error if tasks were in a race."""
        episode = self.present
        if episode is None or not episode.is_over():
            return
        error = races.found_in(episode.strands, tape) if check else None
        episode.close(tape)
        self.present = None
        self.past.append(episode)
        if error is not None:
            raise error

    def settle(self, tape: Tape) -> None:
        """Wait for callbacks of tasks that have ended: the program learns of their end in no other way."""
        episode = self.present
        for task in [] if episode is None else list(episode.unfinished.values()):
            if task.calls_back is None or not task.calls_back.strand.ended or episode.own.knows(task.strand):
                continue
            task.wait()
            if task.strand.ended:
                episode.own.join(task.strand)
        self.look(tape)

    def give_up(self, tape: Tape) -> None:
        """End the present episode, and drop the records of other strands."""
        episode, self.present = self.present, None
        episode.strands = {(): episode.own}  # type: ignore[union-attr]
        episode.own.segments[1:], episode.own.events = [], []  # type: ignore[union-attr]
        episode.close(tape)  # type: ignore[union-attr]

    @staticmethod
    def new_sweep(tape: Tape) -> Sweep:
        """Return a sweep of the tape, whose shadows may be initialised in part."""
        return PartialSweep(tape)

    def sweep(self, sweep: Sweep) -> None:
        """Sweep the tape, each episode by as many threads as ran it."""
        position = len(sweep.tape.records)
        for episode in reversed(self.past):
            sweeps.walk_part(sweep, position, episode.end)
            sweeps.Reversal(episode, sweep).run()
            position = episode.begin
        sweeps.walk_part(sweep, position, 0)


def _end(tape: Tape) -> None:
    """Wait, when a tape stops recording, for its tasks, whose records belong to it.

    Threads are not waited for, since the program would not wait for them either.
    """
    episodes = tape.tasks
    if episodes is None or episodes.present is None:
        return
    episode, regular = episodes.present, sys.exc_info()[0] is None
    while True:
        unknown = [task for path, task in list(episode.unfinished.items()) if not episode.own.knows(task.strand)]
        waiting = [task for task in unknown if task.executor is not None and not task.is_cancelled()]
        if not waiting:
            break
        for task in waiting:
            task.wait()
        if tape.before_append is not None:
            tape.before_append()
        for task in waiting:
            if task.strand.ended:
                episode.own.join(task.strand)
    threads = [task for task in unknown if not task.is_cancelled()]
    lost = [task for task in threads if task.strand.has_accessed()]
    for task in threads:
        task.drop()
    if lost:
        episodes.give_up(tape)
        if regular:
            raise ActivityError(
                f"the thread started at {lost[0].strand.where} has used arrays that carry derivatives, and the program "
                "continues without having learned that it has ended; call its join() before the result is used"
            )
        return
    episodes.look(tape, check=regular)


at_closing.insert(0, _end)
