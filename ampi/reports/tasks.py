"""Tasks in the timeline: the thread and the time of each task and its adjoint, and the edges of the graph."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..tape import Tape
from .events import RECORDING, SWEEP

if TYPE_CHECKING:
    from .tracer import Tracer

TASK, EDGE = 5, 5
"""Number of values per task and per edge in the flat arrays."""
MOST_TASKS = 100_000
"""Maximum number of tasks, and of edges, that a rank saves."""


Worker = tuple[int, str]
"""A thread: identifier and name."""


class Tasks:
    """The tasks that a tracer has seen on a rank.

    Attributes
    ----------
    events : array
        Begin and end in nanoseconds, lane, site and phase; flat.
    edges : array
        Time and lane where an edge begins, the same where it ends, and phase; flat.
    lanes : int
        The number of lanes: the first one belongs to the tape's thread, the others to workers.
    dropped : int
        The number of tasks that are not saved.
    """

    def __init__(self, thread: int) -> None:
        self.events: array[int] = array("q")
        self.edges: array[int] = array("q")
        self.lanes = 1
        self.dropped = 0
        self._numbers: dict[Worker, int] = {}
        self._thread = thread

    def _lanes_of(self, workers: Iterable[Worker]) -> dict[Worker, int]:
        """Assign lanes to threads that work at the same time: each gets its previous lane, if that is free."""
        found: dict[Worker, int] = {}
        taken = {0}
        for worker in dict.fromkeys(workers):
            lane = 0 if worker[0] == self._thread else self._numbers.get(worker, 0)
            if worker[0] != self._thread and lane in taken:
                lane = next(k for k in range(1, len(taken) + 1) if k not in taken)
            taken.add(lane)
            found[worker] = self._numbers[worker] = lane
            self.lanes = max(self.lanes, lane + 1)
        return found

    def recorded(self, tracer: Tracer, tape: Tape) -> None:
        """Note the tasks of a tape that has stopped recording."""
        phase = SWEEP if tracer.depth else RECORDING
        for episode in self._episodes(tape):
            strands = episode.strands
            ran = sorted((s for s in strands.values() if s.begun), key=lambda s: s.begun)
            lanes = self._lanes_of(s.worker for s in ran)
            for strand in strands.values():
                if strand.begun:
                    self._add(strand.begun, strand.over, lanes[strand.worker], self._site(tracer, strand), phase)
                for event in strand.events:
                    forks, here = hasattr(event, "child"), lanes.get(strand.worker, 0)
                    if not forks and getattr(event, "number", 0) is not None:  # a signal
                        continue
                    child = strands[event.child if forks else event.path]
                    if child.begun:
                        there = lanes[child.worker]
                        edge = (
                            (event.time, here, child.begun, there) if forks else (child.over, there, event.time, here)
                        )
                        self._link(*edge, phase)

    def swept(self, tracer: Tracer, tape: Tape) -> None:
        """Note the adjoints of tasks in the latest sweep of a tape."""
        for episode in self._episodes(tape):
            passes = sorted(episode.passes, key=lambda one: one[2])
            lanes = self._lanes_of(worker for _, worker, _, _ in passes)
            of_threads = {self._thread: 0, **{worker[0]: lane for worker, lane in lanes.items()}}
            first: dict[Any, tuple[int, int]] = {}
            last: dict[Any, tuple[int, int]] = {}
            for path, worker, begin, end in passes:
                lane = lanes[worker]
                self._add(begin, end, lane, self._site(tracer, episode.strands[path]), SWEEP)
                first.setdefault(path, (begin, lane))
                last[path] = end, lane
            for handed_on, path, thread, time in episode.links:
                if path in first and thread in of_threads:
                    here = time, of_threads[thread]
                    self._link(*(here + first[path] if handed_on else last[path] + here), SWEEP)

    @staticmethod
    def _episodes(tape: Tape) -> list[Any]:
        return [] if tape.tasks is None else tape.tasks.past

    @staticmethod
    def _site(tracer: Tracer, strand: Any) -> int:
        return tracer.site_at(strand.where, strand.name, 0)

    def _add(self, *event: int) -> None:
        if len(self.events) < TASK * MOST_TASKS:
            self.events.extend(event)
        else:
            self.dropped += 1

    def _link(self, *edge: int) -> None:
        if len(self.edges) < EDGE * MOST_TASKS:
            self.edges.extend(edge)
