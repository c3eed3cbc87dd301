"""Functions of ``cuda`` that are written in Python: numbers of bits, and random numbers.

Kernels inline them.  Those of bits take int64; of narrower integers all higher bits must be zero.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import float32, uint64

from ampi.kernel.frontend.base.cuda_names import NAMES, RANDOM

popc, brev, clz = NAMES["popc"], NAMES["brev"], NAMES["clz"]
next_word = RANDOM.xoroshiro128p_next
uniform_float32, uniform_float64 = RANDOM.xoroshiro128p_uniform_float32, RANDOM.xoroshiro128p_uniform_float64
TWO_PI_FLOAT32 = np.float32(2 * math.pi)


def _popc(x: Any, width: Any) -> Any:
    low, high = x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF  # apart: a sum of all bits would overflow
    low = (low & 0x55555555) + ((low >> 1) & 0x55555555)
    high = (high & 0x55555555) + ((high >> 1) & 0x55555555)
    low = (low & 0x33333333) + ((low >> 2) & 0x33333333) + (high & 0x33333333) + ((high >> 2) & 0x33333333)
    low = (low & 0x0F0F0F0F) + ((low >> 4) & 0x0F0F0F0F)
    low = (low & 0x00FF00FF) + ((low >> 8) & 0x00FF00FF)
    return (low & 0xFFFF) + (low >> 16)


def _brev(x: Any, width: Any) -> Any:
    x = ((x & 0x5555555555555555) << 1) | ((x >> 1) & 0x5555555555555555)
    x = ((x & 0x3333333333333333) << 2) | ((x >> 2) & 0x3333333333333333)
    x = ((x & 0x0F0F0F0F0F0F0F0F) << 4) | ((x >> 4) & 0x0F0F0F0F0F0F0F0F)
    x = ((x & 0x00FF00FF00FF00FF) << 8) | ((x >> 8) & 0x00FF00FF00FF00FF)
    x = ((x & 0x0000FFFF0000FFFF) << 16) | ((x >> 16) & 0x0000FFFF0000FFFF)
    if width == 32:
        return x & 0xFFFFFFFF
    return ((x & 0x00000000FFFFFFFF) << 32) | ((x >> 32) & 0x00000000FFFFFFFF)


def _clz(x: Any, width: Any) -> Any:
    x = x | (x >> 1)
    x = x | (x >> 2)
    x = x | (x >> 4)
    x = x | (x >> 8)
    x = x | (x >> 16)
    x = x | (x >> 32)
    return width - popc(x)


def _ffs(x: Any, width: Any) -> Any:
    if x == 0:
        return 0
    return clz(brev(x)) + 1


BITS = {"popc": _popc, "brev": _brev, "clz": _clz, "ffs": _ffs}


def _next(states: Any, index: Any) -> Any:
    s0 = states[index].s0
    s1 = states[index].s1
    x = s1 ^ s0
    states[index].s0 = ((s0 << uint64(55)) | (s0 >> uint64(9))) ^ x ^ (x << uint64(14))
    states[index].s1 = (x << uint64(36)) | (x >> uint64(28))
    return s0 + s1


def _uniform_float64(states: Any, index: Any) -> Any:
    return (next_word(states, index) >> uint64(11)) * (1.0 / 9007199254740992.0)


def _uniform_float32(states: Any, index: Any) -> Any:
    return float32(uniform_float64(states, index))


def _normal_float32(states: Any, index: Any) -> Any:
    u = uniform_float32(states, index)
    v = uniform_float32(states, index)
    return math.sqrt(float32(-2.0) * math.log(u)) * math.cos(TWO_PI_FLOAT32 * v)


def _normal_float64(states: Any, index: Any) -> Any:
    u = uniform_float32(states, index)  # as in Numba
    v = uniform_float32(states, index)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


DRAWS = {
    "random.xoroshiro128p_next": _next,
    "random.xoroshiro128p_uniform_float32": _uniform_float32,
    "random.xoroshiro128p_uniform_float64": _uniform_float64,
    "random.xoroshiro128p_normal_float32": _normal_float32,
    "random.xoroshiro128p_normal_float64": _normal_float64,
}
