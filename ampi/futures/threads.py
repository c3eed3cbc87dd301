"""Threads of `threading` as tasks: ``start`` forks a strand; ``join`` and ``is_alive`` join it."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from ..base.program_lines import is_of_a_library
from ..interception.hooks import AlwaysHook, Hook, hook
from ..tape.recording import is_passive
from .tasks import joined, passively, submitted

_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"


def _is_installed(frame: Any) -> bool:
    """Return whether a frame is of an installed package: its threads (a progress bar's monitor) are not tasks."""
    file = frame.f_code.co_filename
    return is_of_a_library(frame) or any(folder in file for folder in _INSTALLED)


def start(found: Hook, arguments: tuple, keywords: dict[str, Any], depth: int = 3) -> Any:
    """Start a thread; the program's call of ``start`` is ``depth`` frames further out."""
    if not arguments or _is_installed(sys._getframe(depth)) or not getattr(arguments[0], "_initialized", False):
        return found.original(*arguments, **keywords)
    thread = arguments[0]
    if is_passive():
        _runs(thread, passively(thread.run))
        return found.original(*arguments, **keywords)
    if thread.ident is not None:  # started before, which is an error
        return found.original(*arguments, **keywords)
    task = submitted(None, min(threading.active_count(), os.cpu_count() or 1))
    if task is None:
        return found.original(*arguments, **keywords)
    _runs(thread, functools.partial(task.run, thread.run, (), {}))
    thread._ampi_task = task
    try:
        return found.original(*arguments, **keywords)
    except BaseException:
        task.drop()
        joined([task])
        raise


def _runs(thread: threading.Thread, function: Any) -> None:
    """Make a thread run a function."""

    def run() -> None:
        thread.__dict__.pop("run", None)  # it refers to the thread
        function()

    thread.run = run  # type: ignore[method-assign]


def _join(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    result = found.original(*arguments, **keywords)
    _look(arguments[0])
    return result


def _is_alive(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    result = found.original(*arguments, **keywords)
    if not result:
        _look(arguments[0])
    return result


def _look(thread: threading.Thread) -> None:
    task = thread.__dict__.get("_ampi_task")
    if task is not None and not _alive.original(thread):
        joined([task])


hook(threading.Thread.start, start, "threading.Thread.start", AlwaysHook)
hook(threading.Thread.join, _join, "threading.Thread.join", AlwaysHook)
_alive = hook(threading.Thread.is_alive, _is_alive, "threading.Thread.is_alive", AlwaysHook)
