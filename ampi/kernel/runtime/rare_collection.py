"""Python's garbage collector runs rarely while anything is compiled.

A compiler makes many objects that it needs to the end.  With the usual thresholds the collector visits them, and all
objects of the program, again and again: a sixth of the time of a first gradient.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

OBJECTS = 50_000
"""New objects after which the collector runs in the meantime; by default Python counts to 700 or 2000."""


class _Shared:
    """The thresholds belong to the process: the first thread that compiles sets them, and the last one resets them."""

    lock = threading.Lock()
    compiling = 0  # threads
    before = raised = (0, 0, 0)


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """A context in which the garbage collector runs rarely; thresholds that the program sets meanwhile remain."""
    with _Shared.lock:
        _Shared.compiling += 1
        if _Shared.compiling == 1:
            _Shared.before = first, *others = gc.get_threshold()
            _Shared.raised = (max(first, OBJECTS) if first else 0, *others)  # zero: the program has switched it off
            gc.set_threshold(*_Shared.raised)
    try:
        yield
    finally:
        with _Shared.lock:
            _Shared.compiling -= 1
            if not _Shared.compiling and gc.get_threshold() == _Shared.raised:
                gc.set_threshold(*_Shared.before)
