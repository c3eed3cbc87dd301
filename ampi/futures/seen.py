"""Hooks of `concurrent.futures` for open tapes: submits, and calls by which a thread learns that a task has ended."""

from __future__ import annotations

import concurrent.futures._base as base
import concurrent.futures.thread as thread
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ..interception.hooks import AlwaysHook, EverHook, Hook, hook, when_imported
from ..tape.earlier_values import is_sweeping
from ..tape.recording import is_passive, open_tapes
from ..tape.recording import tasks as running
from ..tape.spill import PlainExecutor
from .signals import given, got, signals_of
from .tasks import Task, joined, passively, strand_lock, submitted, tasks_of


def _submit(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    executor, function, *rest = arguments
    if executor._shutdown and is_sweeping():
        executor = _again(executor)
    if not open_tapes or isinstance(executor, PlainExecutor):
        return found.original(executor, function, *rest, **keywords)
    if is_passive():
        return found.original(executor, passively(function), *rest, **keywords)
    task = submitted(executor, getattr(executor, "_max_workers", 1))
    if task is None:
        return found.original(*arguments, **keywords)
    try:
        future = found.original(executor, task.run, function, tuple(rest), keywords)
    except BaseException:
        task.drop()
        joined([task])
        raise
    task.future = weakref.ref(future)
    future._ampi_task = task
    return future


_stand_ins: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _again(executor: Any) -> Any:
    """Return an executor like one that is shut down, for the steps of a time loop that run again in the sweep."""
    with strand_lock:
        found = _stand_ins.get(executor)
        if found is None:
            given = vars(executor)  # Python 3.14 has no initializer there
            options = executor._thread_name_prefix, given.get("_initializer"), given.get("_initargs", ())
            found = _stand_ins[executor] = thread.ThreadPoolExecutor(executor._max_workers, *options)
        return found


def _task_of(future: Any) -> Task | None:
    return getattr(future, "_ampi_task", None)


def _asked(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``future.result``, ``future.exception``: their return happens after the task."""
    try:
        return found.original(*arguments, **keywords)
    finally:
        if arguments and arguments[0]._state in _DONE:
            _learned(arguments[0])


def _learned(future: Any) -> None:
    """Note that this thread has learned that a future is done."""
    task = _task_of(future)
    if task is not None:
        joined([task])
    elif running:
        got(signals_of(future))


def _fulfilled(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``future.set_result``, ``future.set_exception`` of a future that is not a task's."""
    if running and arguments and _task_of(arguments[0]) is None and arguments[0]._state not in _DONE:
        signals_of(arguments[0]).update(given())
    return found.original(*arguments, **keywords)


_DONE = (base.FINISHED, base.CANCELLED, base.CANCELLED_AND_NOTIFIED)


def _done(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    done = found.original(*arguments, **keywords)
    if done:
        _learned(arguments[0])
    return done


def _wait(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    result = found.original(*arguments, **keywords)
    tasks = [task for future in result.done if (task := _task_of(future)) is not None]
    joined(sorted(tasks, key=lambda task: task.strand.path))
    for future in result.done if running else ():
        if _task_of(future) is None:
            got(signals_of(future))
    return result


def _as_completed(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Iterator[Any]:
    for future in found.original(*arguments, **keywords):
        _learned(future)
        yield future


def _add_done_callback(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    future, function = _bind_callback(*arguments, **keywords)
    task = _task_of(future)
    executor = None if task is None else task.executor()
    own = None if executor is None else submitted(executor, 1)
    if own is None:
        return found.original(future, functools.partial(_learning, function) if running else function)
    own.calls_back = task

    def call(future: Any) -> Any:
        return own.run(_after, (task, function, future), {})

    # If the task has ended, the callback runs at once in this thread.  That is chance, and orders nothing.
    return found.original(future, call)


def _bind_callback(self: Any, fn: Callable) -> tuple[Any, Callable]:
    return self, fn


def _learning(function: Callable, future: Any) -> Any:
    """Run a callback, perhaps at once in the thread that adds it, which has learned by this that the future is done."""
    _learned(future)
    return function(future)


def _after(task: Task, function: Callable, future: Any) -> Any:
    joined([task])
    return function(future)


def _shutdown(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    result = found.original(*arguments, **keywords)
    waits = keywords.get("wait", arguments[1] if len(arguments) > 1 else True)
    if waits:
        joined(tasks_of(arguments[0]))
    return result


def _see() -> None:
    for function, handle in (
        (thread.ThreadPoolExecutor.shutdown, _shutdown),
        (base.Future.result, _asked),
        (base.Future.exception, _asked),
        (base.Future.done, _done),
        (base.Future.set_result, _fulfilled),
        (base.Future.set_exception, _fulfilled),
        (base.Future.add_done_callback, _add_done_callback),
        (base.wait, _wait),
        (base.as_completed, _as_completed),
    ):
        hook(function, handle, f"concurrent.futures.{function.__qualname__}", AlwaysHook)
    if hasattr(base.Future, "_get_snapshot"):  # by which asyncio asks, from Python 3.14 on
        hook(base.Future._get_snapshot, _asked, "concurrent.futures.Future._get_snapshot", AlwaysHook)
    hook(thread.ThreadPoolExecutor.submit, _submit, "concurrent.futures.ThreadPoolExecutor.submit", EverHook)


when_imported("concurrent.futures.thread", _see)
