"""Progress of compilation: a line on a terminal while something is compiled for long, and the total time spent.

The total (`seconds`) includes loading code from the cache.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ampi.kernel.runtime.rare_collection import rare_collection

SOON = 2.0
"""Seconds of compilation after which the line appears."""


class _Busy(threading.local):
    with_something = False
    announced = False


_busy = _Busy()
_seconds = 0.0
at_turns: list[Callable[[bool], object]] = []
"""Callbacks: called with True when a thread starts to compile or load code, and with False when it ends."""


def _always() -> bool:
    return True


shows: Callable[[], bool] = _always
"""True if this process reports progress (see `show_where`)."""


def show_where(condition: Callable[[], bool]) -> None:
    """Report progress only if a condition holds, for instance in one of several processes."""
    global shows
    shows = condition


@contextlib.contextmanager
def announced(what: str, function: Any) -> Iterator[None]:
    """A context that, after some time, shows ``ampi: compiling the adjoint of f (program.py:12)...``.

    Parameters
    ----------
    what : str
        A description of what is compiled.
    function : function
        The Python function that it comes from.
    """
    if _busy.announced:
        yield
        return
    shown = _is_terminal() and shows()
    _busy.announced = True
    try:
        with counted(), _shown(what, function.__code__) if shown else contextlib.nullcontext():
            yield
    finally:
        _busy.announced = False


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """A context of compilation: its time is added to `seconds` (nested ones are counted once), with few collections."""
    if _busy.with_something:
        yield
        return
    global _seconds
    _busy.with_something = True
    for notify in at_turns:
        notify(True)
    started = time.perf_counter()
    try:
        with rare_collection():
            yield
    finally:
        _busy.with_something = False
        _seconds += time.perf_counter() - started
        for notify in at_turns:
            notify(False)


def seconds() -> float:
    """The time this process has spent compiling, waiting for other processes, and loading compiled code."""
    return _seconds


@contextlib.contextmanager
def _shown(what: str, code: Any) -> Iterator[None]:
    line = _Line(f"ampi: compiling {what} ({code.co_filename}:{code.co_firstlineno})...")
    timer = threading.Timer(SOON, line.write)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.erase()


class _Line:
    """A line that one thread writes and another one erases."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._written = self._over = False
        self._lock = threading.Lock()

    def write(self) -> None:
        with self._lock:
            if not self._over:
                self._written = True
                _write(self._text)

    def erase(self) -> None:
        with self._lock:
            self._over = True
            if self._written:
                _write("\r\x1b[K")  # to the end of the line


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is no stderr, or it is closed
        return False


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
