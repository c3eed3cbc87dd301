"""Differentiated tasks in other threads and on other ranks: the names of `concurrent.futures` and `mpi4py.futures`.

Programs may also import them from there.  A task records its computations wherever it runs; the reverse sweep runs the
graph of the tasks backwards, on the same executor.
"""

from __future__ import annotations

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
from typing import TYPE_CHECKING, Any

from . import seen as _seen  # noqa: F401
from . import signals as _signals  # noqa: F401
from . import threads as _threads  # noqa: F401

if TYPE_CHECKING:
    from mpi4py.futures import MPICommExecutor, MPIPoolExecutor

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "CancelledError",
    "Executor",
    "Future",
    "MPICommExecutor",
    "MPIPoolExecutor",
    "ThreadPoolExecutor",
    "as_completed",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name not in ("MPICommExecutor", "MPIPoolExecutor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import mpi4py.futures

    return getattr(mpi4py.futures, name)
