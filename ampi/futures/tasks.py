"""Tasks: calls in other threads, each with its own strand, and the joins when they have ended."""

from __future__ import annotations

import contextvars
import functools
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures._base import FINISHED
from time import perf_counter_ns as now
from typing import Any

from ..base.locks import RLock
from ..errors import TapeError
from ..tape import Tape
from ..tape.recording import around, end_resumed, is_passive, open_tapes, passive, recording, resumed
from .episodes import Episode, Episodes
from .strands import Strand
from .task_tapes import OfTask, takes_tasks, tape_for
from .thread_counts import thread_count

strand_lock = RLock()  # of the strands of an episode


class Task:
    """A call in another thread, with its own strand.

    Attributes
    ----------
    strand : Strand
    episode : Episode
    executor : weakref.ref or None
        None for a thread that the program started, for which no sweep waits unless the program does.
    thread : int or None
        The thread that made the call.
    future : weakref.ref or None
        The task's future with ``cancelled()``, once it has been made.  It refers to the task.
    calls_back : Task or None
        The task whose callback this is.
    """

    def __init__(self, episode: Episode, strand: Strand, root: Tape, executor: Any) -> None:
        self.episode, self.strand = episode, strand
        self.executor = None if executor is None else weakref.ref(executor)
        self.thread: int | None = None
        self.future: weakref.ref[Any] | None = None
        self.calls_back: Task | None = None
        self._root = root
        self._over = threading.Event()
        self._tape: Any = None  # while it runs
        self._dropped = False

    def run(self, function: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """Make the call, in the present thread."""
        root, self.thread = self._root, get_ident()
        if self._dropped:
            return function(*arguments, **keywords)
        if self.episode.closed or root.closed:
            raise TapeError("a task began to run when the tape of its program had been closed")
        self._tape = tape = tape_for(root, self.strand)
        strand = self.strand
        function, arguments = _in_context(tape, function, arguments)
        strand.name, strand.worker, strand.begun = name_of(function), (tape.thread, tape.thread_name), now()
        try:
            with resumed(tape):
                return function(*arguments, **keywords)
        finally:
            strand.over, strand.threads = now(), thread_count()
            with strand_lock:
                tape.closed, self._tape = True, None
                tape.ends()
                self.strand.end()
            self._root = None  # type: ignore[assignment]
            self._over.set()

    def drop(self) -> None:
        """Mark the task as one that never runs (its submit failed), or that continues without a tape."""
        with strand_lock:
            self._dropped = True
            if self._tape is not None:
                self._tape.closed = True
                end_resumed(self._tape)
            if not self.strand.ended:
                path = self.strand.path
                self.strand = self.episode.strands[path] = Strand(
                    path, self.strand.where, [], self.strand.segments[0].clock, self.strand.activated
                )

    def is_cancelled(self) -> bool:
        """Return whether the task never runs."""
        if self._dropped or self.future is None:
            return self._dropped
        future = self.future()
        if future is not None and future.cancelled():
            return True
        is_over = future is None or future._state == FINISHED  # nothing waits for it, or an initializer failed
        return is_over and not self.strand.begun

    def wait(self) -> None:
        """Wait until the task has ended or is cancelled."""
        while not self._over.wait(0.05):
            if self.is_cancelled():
                return


def _in_context(tape: Any, function: Callable, arguments: tuple) -> tuple[Callable, tuple]:
    """Have a tape record inside ``contextvars.Context.run``, too, if that is what a task calls: the context knows only
    what recorded where it was copied."""
    if isinstance(function, functools.partial):  # of `asyncio.to_thread`
        inner, given = _in_context(tape, function.func, (*function.args, *arguments))
        if inner is function.func:
            return function, arguments
        return functools.partial(inner, **function.keywords), given
    context = getattr(function, "__self__", None)
    if not (isinstance(context, contextvars.Context) and function == context.run and arguments):
        return function, arguments

    @functools.wraps(arguments[0], updated=())
    def call(*arguments: Any, **keywords: Any) -> Any:
        return context.run(_recorded, tape, *arguments, **keywords)

    return call, arguments


def _recorded(tape: Any, function: Callable, *arguments: Any, **keywords: Any) -> Any:
    with resumed(tape):
        return function(*arguments, **keywords)


def name_of(function: Callable) -> str:
    """Return the name of the thread or function that a task runs."""
    of = getattr(function, "__self__", None)
    if isinstance(of, threading.Thread):
        return of.name
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)


def root_of(tape: Tape) -> Tape:
    """Return the program's tape, to which a task's tape belongs."""
    return tape.root if isinstance(tape, OfTask) else tape


def submitted(executor: Any, number: int) -> Task | None:
    """Make a task on the tape of this thread; return None if no tape records here, or not with tasks."""
    tape = recording()
    if tape is None or not takes_tasks(root_of(tape)):
        return None
    root = root_of(tape)
    with strand_lock:
        if isinstance(tape, OfTask):
            episode = tape.root.tasks.present
            parent = tape.strand
        else:
            if tape.tasks is None:
                tape.tasks = Episodes()
            episode = tape.tasks.begin(tape)
            parent = episode.own
            if tape.before_append is not None:
                tape.before_append()
        task = Task(episode, episode.fork(parent), root, executor)
        episode.unfinished[task.strand.path] = task
        episode.workers = max(episode.workers, number)
        episode.pool = episode.pool or task.executor
        if executor is not None:
            executor.__dict__.setdefault("_ampi_tasks", weakref.WeakSet()).add(task)
    return task


def tasks_of(executor: Any) -> list[Task]:
    """Return the tasks submitted to an executor that still exist, in the order of the program."""
    found = list(executor.__dict__.get("_ampi_tasks", ()))
    return sorted(found, key=lambda task: task.strand.path)


def joined(tasks: Iterable[Task]) -> None:
    """Note that this thread has learned that tasks have ended: they happened before its next segment."""
    if is_passive():
        return
    for task in tasks:
        for tape in (*around(), *_of_this_thread(task.episode)):
            root = root_of(tape)
            episodes = None if tape.closed else root.tasks
            if episodes is None or episodes.present is not task.episode:
                continue
            with strand_lock:
                own = tape.strand if tape is not root else task.episode.own
                if task.strand.ended and own is not task.strand:
                    if tape is root and tape.before_append is not None:
                        tape.before_append()
                    own.join(task.strand)
                if tape is root:
                    episodes.look(tape)
            break


def _of_this_thread(episode: Episode) -> Iterator[Any]:
    """Iterate over the tapes that record an episode in this thread, whose context may be that of another one: asyncio
    runs the callbacks of futures in the context of the thread that has called them."""
    thread = get_ident()
    for task in list(episode.unfinished.values()):
        if task._tape is not None and task._tape.thread == thread:
            yield task._tape
    for tape in list(open_tapes):
        if tape.tasks is not None and tape.tasks.present is episode and tape.thread == thread:
            yield tape


def passively(function: Callable) -> Callable:
    """Wrap a function for another thread, so that it runs inside `ampi.passive` there as well."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        with passive():
            return function(*arguments, **keywords)

    return call
