"""The memory of arrays that a piece of a program makes and keeps."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

_OF_ARRAYS = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)


class MadeArrays:
    """Context that counts NumPy's memory for arrays that are made inside and alive at its end.

    What else it allocates is not counted: kernels that are compiled, modules that are imported.

    Attributes
    ----------
    nbytes : int
    """

    nbytes = 0

    def __enter__(self) -> MadeArrays:
        self._starts = not tracemalloc.is_tracing()
        if self._starts:
            tracemalloc.start(1)
        self._before = 0 if self._starts else _present()
        return self

    def __exit__(self, *error: Any) -> None:
        self.nbytes = max(_present() - self._before, 0)
        if self._starts:
            tracemalloc.stop()


def _present() -> int:
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([_OF_ARRAYS]).traces)
