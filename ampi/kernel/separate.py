"""Compile a program for arrays that do not overlap in memory.

Numba tells LLVM nothing about its array arguments.  Where they are known to be separate, saying so lets loops over many
of them be vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.core.compiler import Compiler

from ampi import memory


class SeparateArrays(Compiler):
    """Numba's compiler, with array arguments marked as free of aliases: ``njit(pipeline_class=SeparateArrays)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state.flags.noalias = True


def are_separate(ranges: Sequence[tuple[int, int] | None], arrays: Sequence[np.ndarray]) -> bool:
    """Whether no two arrays share an element; ``ranges`` are first and last byte, None for what is to be left out."""
    found = sorted((r[0], r[1], k) for k, r in enumerate(ranges) if r is not None and r[0] < r[1])
    reach = -1
    for place, (low, high, k) in enumerate(found):
        if low < reach:
            before = (j for _, end, j in found[:place] if end > low)
            if any(memory.Extent(arrays[k]).overlaps(memory.Extent(arrays[j])) for j in before):
                return False
        reach = max(reach, high)
    return True
