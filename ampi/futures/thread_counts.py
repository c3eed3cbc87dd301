"""The number of threads that kernels use in a task: Numba keeps one for each thread, and the adjoints use the same."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def thread_count() -> int | None:
    """On how many threads kernels run that this thread calls; None as long as Numba has started none."""
    pool: Any = sys.modules.get("numba.np.ufunc.parallel")
    if not getattr(pool, "_is_initialized", False) or not hasattr(pool, "_get_num_threads"):
        return None
    return pool._get_num_threads()


@contextlib.contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """Run kernels that this thread calls on so many threads inside this block."""
    before = thread_count()
    if count is None or before is None or count == before:
        yield
        return
    from numba import set_num_threads

    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)
