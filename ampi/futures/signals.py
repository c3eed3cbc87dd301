"""Signals between strands: the order imposed by queues, events, conditions, semaphores, barriers and locks.

A strand that puts an item, sets an event or releases a lock gives a signal.  One that gets the item, sees the event or
acquires the lock afterwards receives it, and all that the first did before happened before all that the second does
next.  Only calls by the program count: locks inside libraries would impose an order by chance, and in the middle of an
operation.
"""

from __future__ import annotations

import concurrent.futures._base as base
import concurrent.futures.thread as thread
import queue
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ..base.program_lines import is_of_a_library
from ..interception.hooks import AlwaysHook, Hook, hook
from ..tape.recording import around, at_first_task, had_tasks, is_passive
from ..tape.recording import tasks as running
from .strands import Path, Token
from .tasks import root_of, strand_lock

Signals = dict[tuple[int, Path], tuple[Any, Token]]
"""The latest signal of each strand, with its episode."""


_OPERATIONS = {"arrays", "foreign", "kernel", "memory", "mpi", "numpy", "rules", "tape"}
"""Packages of ampi whose functions record operations."""


def _is_in_an_operation() -> bool:
    """Return whether an operation is running: no event may come between its writes and its record."""
    if is_passive():
        return True
    frame = sys._getframe(2)
    while (frame := frame.f_back) is not None:
        package, _, name = frame.f_globals.get("__name__", "").partition(".")
        if package == "ampi":
            room = name.partition(".")[0]
            if room in _OPERATIONS:
                return True
            if room == "futures" and frame.f_code.co_name == "run":
                return False
    return False


def given() -> Signals:
    """Return a signal of this thread for each tape around it."""
    found: Signals = {}
    if _is_in_an_operation():
        return found
    for tape in around():
        root = root_of(tape)
        episode = None if root.tasks is None else root.tasks.present
        if episode is None:
            continue
        with strand_lock:
            if tape is root and tape.before_append is not None:
                tape.before_append()
            token = (episode.own if tape is root else tape.strand).release()
        found[id(episode), token.path] = episode, token
    return found


def got(signals: Signals) -> None:
    """Receive signals: the earlier work of their strands happened before the next work of this thread."""
    if not signals or _is_in_an_operation():
        return
    with strand_lock:
        found = sorted(signals.items())
    for key, (episode, token) in found:
        if episode.closed:
            signals.pop(key, None)
            continue
        for tape in around():
            root = root_of(tape)
            if root.tasks is None or root.tasks.present is not episode:
                continue
            with strand_lock:
                if tape is root and tape.before_append is not None:
                    tape.before_append()
                (episode.own if tape is root else tape.strand).acquire(token)
            break


class _Items:
    """The signals of a queue: of its items, of places that became free, and of items that are done."""

    def __init__(self) -> None:
        self.of_items: dict[int, deque[Signals]] = defaultdict(deque)
        self.free: deque[Signals] = deque()
        self.older: Signals = {}
        self.done: Signals = {}

    def put(self, item: Any, room: int) -> None:
        """Note that an item is about to be put into a queue with ``room`` free places (0: unbounded)."""
        if room:  # the place that it takes was free before, so others' places do not count
            while len(self.free) >= room:
                self.older.update(self.free.popleft())
            got(self.older)
        self.of_items[id(item)].append(given())

    def get(self, item: Any, latest: bool, bounded: bool) -> None:
        """Note that an item has been taken from the queue."""
        signals = self.of_items.get(id(item))
        if signals:
            got(signals.pop() if latest else signals.popleft())
        if not signals:
            self.of_items.pop(id(item), None)
        if bounded:
            self.free.append(given())


_queues: WeakKeyDictionary[Any, _Items] = WeakKeyDictionary()
_signals: WeakKeyDictionary[Any, Signals] = WeakKeyDictionary()
_rounds: WeakKeyDictionary[Any, tuple[int, Signals]] = WeakKeyDictionary()  # of barriers


def signals_of(x: Any) -> Signals:
    """Return the signals that an event, a lock or a future without a task gives."""
    x = x._lock if isinstance(x, threading.Condition) else x
    with strand_lock:
        found = _signals.get(x)
        if found is None:
            found = _signals[x] = {}
    return found


def _items_of(x: queue.Queue) -> _Items:
    with strand_lock:
        found = _queues.get(x)
        if found is None:
            found = _queues[x] = _Items()
    return found


def _by_program() -> bool:
    """Return whether the program itself has called the hooked function whose handler asks."""
    return not is_of_a_library(sys._getframe(4))


_PYTHONS = {id(vars(module)) for module in (base, queue, thread, threading)}
"""The globals of Python's modules that use locks most."""


def _gives(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    if running and _by_program():
        signals_of(arguments[0]).update(given())
    return found.original(*arguments, **keywords)


def _gets(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    result = found.original(*arguments, **keywords)
    if running and result and _by_program():
        got(signals_of(arguments[0]))
    return result


def _waits(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``condition.wait``: the lock is released in between, whatever the result."""
    if not (running and _by_program()):
        return found.original(*arguments, **keywords)
    signals_of(arguments[0]).update(given())
    try:
        return found.original(*arguments, **keywords)
    finally:
        got(signals_of(arguments[0]))


def _meets(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``barrier.wait``."""
    if not running:
        return found.original(*arguments, **keywords)
    barrier = arguments[0]
    mine = given()
    with strand_lock:
        count, together = _rounds.get(barrier, (0, {}))
        if count % barrier.parties == 0:
            together = {}
        _rounds[barrier] = count + 1, together
        together.update(mine)
    result = found.original(*arguments, **keywords)
    got(together)
    return result


def _put(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    if running:
        holder, item = arguments
        _items_of(holder).put(item, max(holder.maxsize - holder._qsize(), 0) if holder.maxsize > 0 else 0)
    return found.original(*arguments, **keywords)


def _get(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    item = found.original(*arguments, **keywords)
    if running:
        holder = arguments[0]
        _items_of(holder).get(item, isinstance(holder, queue.LifoQueue), holder.maxsize > 0)
    return item


def _done(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    if running:
        _items_of(arguments[0]).done.update(given())
    return found.original(*arguments, **keywords)


def _all_done(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    result = found.original(*arguments, **keywords)
    if running:
        got(_items_of(arguments[0]).done)
    return result


Handler = Callable[[Hook, tuple, dict[str, Any]], Any]
_HANDLERS: dict[type, dict[str, Handler]] = {
    queue.Queue: {"_put": _put, "_get": _get, "task_done": _done, "join": _all_done},
    queue.LifoQueue: {"_put": _put, "_get": _get},
    queue.PriorityQueue: {"_put": _put, "_get": _get},
    threading.Event: {"set": _gives, "wait": _gets, "is_set": _gets},
    threading.Semaphore: {"acquire": _gets, "__enter__": _gets, "release": _gives, "__exit__": _gives},
    threading.BoundedSemaphore: {"release": _gives},
    threading.Condition: {"__enter__": _gets, "__exit__": _gives, "wait": _waits, "wait_for": _waits},
    threading.Barrier: {"wait": _meets},
    **{
        type(lock()): {"acquire": _gets, "__enter__": _gets, "release": _gives, "__exit__": _gives}
        for lock in (threading.Lock, threading.RLock)
    },
}


class SignalHook(AlwaysHook):
    """A hook that is called while tasks run."""

    __slots__ = ()
    active = running


class LockHook(SignalHook):
    """A hook of locks, events and conditions, whose calls by Python's own modules of threads have no handler."""

    __slots__ = ()

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        if not running or id(sys._getframe(2).f_globals) in _PYTHONS:
            return self.original(*arguments, **keywords)
        return self.handle(self, arguments, keywords)  # type: ignore[misc]


def _see() -> None:
    """Install the hooks, when a task runs for the first time."""
    for cls, handlers in _HANDLERS.items():
        for name, handle in handlers.items():
            if name in vars(cls):
                kind = LockHook if handle in (_gives, _gets, _waits) else SignalHook
                hook(getattr(cls, name), handle, f"{cls.__module__}.{cls.__name__}.{name}", kind)


at_first_task.append(_see)
if had_tasks[0]:
    _see()
