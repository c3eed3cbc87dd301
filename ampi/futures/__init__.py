"""Tasks in other threads, differentiated: the names of `concurrent.futures`, which a program may as well import there.

A task records what it computes, wherever it runs; the reverse sweep is the graph of the tasks backwards, on the same
executor.
"""

from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
    as_completed,
    wait,
)

from . import seen as _seen  # noqa: F401
from . import signals as _signals  # noqa: F401
from . import threads as _threads  # noqa: F401

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "CancelledError",
    "Executor",
    "Future",
    "ThreadPoolExecutor",
    "as_completed",
    "wait",
]
