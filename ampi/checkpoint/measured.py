"""Measurement of the memory of arrays that a piece of a program creates and keeps alive."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np

_OF_ARRAYS = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)


class MadeArrays:
    """Context that counts NumPy's memory for arrays that are created inside it and alive at its end.

    Other allocations are not counted, such as those for compiling kernels and importing modules.

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
