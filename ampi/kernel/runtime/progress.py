"""A line on the terminal for as long as something is compiled, if that takes long; nothing in files and pipes.

How long everything has taken that was compiled, or loaded from the cache, is counted (`seconds`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

SOON = 2.0
"""Seconds after which it is said what is waited for."""


class _Busy(threading.local):
    with_something = False
    announced = False


_busy = _Busy()
_seconds = 0.0
at_turns: list[Callable[[bool], object]] = []
"""Called with True when a thread of this process begins to compile or to load, and with False when it ends."""


def _always() -> bool:
    return True


shows: Callable[[], bool] = _always
"""True if this process reports progress (see `show_where`)."""


def show_where(condition: Callable[[], bool]) -> None:
    """Say it in one of several processes only (rank 0)."""
    global shows
    shows = condition


@contextlib.contextmanager
def announced(what: str, function: Any) -> Iterator[None]:
    """While this lasts, after some time: ``ampi: compiling the adjoint of f (program.py:12)...``.

    Parameters
    ----------
    what : str
        What is compiled.
    function : function
        Where it is in the program.
    """
    if _busy.announced:
        yield
        return
    shown = _is_terminal() and shows()
    _busy.announced = True
    try:
        with counted(), _said(what, function.__code__) if shown else contextlib.nullcontext():
            yield
    finally:
        _busy.announced = False


@contextlib.contextmanager
def counted() -> Iterator[None]:
    """Count the time that this takes, once where it is inside of such a context."""
    if _busy.with_something:
        yield
        return
    global _seconds
    _busy.with_something = True
    for tell in at_turns:
        tell(True)
    begun = time.perf_counter()
    try:
        yield
    finally:
        _busy.with_something = False
        _seconds += time.perf_counter() - begun
        for tell in at_turns:
            tell(False)


def seconds() -> float:
    """The time this process has spent compiling, waiting for other processes, and loading compiled code."""
    return _seconds


@contextlib.contextmanager
def _said(what: str, code: Any) -> Iterator[None]:
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
    """A line that is written, and erased, by two threads."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._written = self._over = False
        self._lock = threading.Lock()

    def write(self) -> None:
        with self._lock:
            if not self._over:
                self._written = True
                _say(self._text)

    def erase(self) -> None:
        with self._lock:
            self._over = True
            if self._written:
                _say("\r\x1b[K")  # to the end of the line


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it has been closed
        return False


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()
