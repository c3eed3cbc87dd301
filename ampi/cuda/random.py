"""Names of ``numba.cuda.random``: the generator xoroshiro128+, with a state for each thread.

The numbers are those of Numba, bit for bit.  In kernels the functions take an array of states and an index; outside
kernels they cannot be called.

D. Blackman and S. Vigna, "Scrambled linear pseudorandom number generators" (2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampi.kernel.frontend.base.cuda_names import RANDOM

globals().update(vars(RANDOM))
__all__ = ["create_xoroshiro128p_states", "xoroshiro128p_dtype", *vars(RANDOM)]

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)
WORD = (1 << 64) - 1
JUMP = 0xBEAC0467EBA5FACB | 0xD86B048B86AA9922 << 64


def create_xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0, stream: Any = 0) -> np.ndarray:
    """Return states for ``n`` generators, whose sequences are 2**64 numbers apart.

    Parameters
    ----------
    n : int
        The number of states, at least that of the threads that draw.
    seed : int
    subsequence_start : int, optional
        The sequence of the first state.
    stream : optional
        Ignored.

    Returns
    -------
    numpy.ndarray
        An array on the host; copy it with ``ampi.cuda.to_device`` for launches with arrays on a device.
    """
    s0 = s1 = _mixed(seed & WORD)
    states = np.empty(n, xoroshiro128p_dtype)
    for k in range(-subsequence_start, n):
        if k >= 0:
            states[k] = s0, s1
        s0, s1 = _jumped(s0, s1)
    return states


def _mixed(seed: int) -> int:
    """Return a word of SplitMix64."""
    z = seed + 0x9E3779B97F4A7C15 & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def _jumped(s0: int, s1: int) -> tuple[int, int]:
    """Return the state after 2**64 numbers."""
    j0 = j1 = 0
    for bit in range(128):
        if JUMP >> bit & 1:
            j0, j1 = j0 ^ s0, j1 ^ s1
        s1 ^= s0
        s0, s1 = (s0 << 55 | s0 >> 9) & WORD ^ s1 ^ s1 << 14 & WORD, (s1 << 36 | s1 >> 28) & WORD
    return j0, j1
