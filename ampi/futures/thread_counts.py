"""The number of threads that kernels use in a task: Numba has a setting per thread, which adjoints use as well."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any


def thread_count() -> int | None:
    """Return the number of threads used by kernels that this thread calls; None until Numba has started threads."""
    pool: Any = sys.modules.get("numba.np.ufunc.parallel")
    if not getattr(pool, "_is_initialized", False) or not hasattr(pool, "_get_num_threads"):
        return None
    return pool._get_num_threads()


@contextlib.contextmanager
def on_threads(count: int | None) -> Iterator[None]:
    """Inside this block, run kernels that this thread calls on this many threads."""
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
