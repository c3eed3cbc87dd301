"""Checksums of blocks of memory, computed as fast as memory is read.

A block is read as vectors of eight words.  Their sum changes if a word changes, and the sum of the partial sums also if
words are swapped; each word is first mixed with its upper half, so that signs do not cancel.  Both sums are multiplied
by odd weights and added.  (Fletcher, "An arithmetic checksum for serial transmissions", 1982, in eight lanes.)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from ampi.kernel.runtime import cache
from ampi.memory.handouts import checksum_of_bytes
from ampi.memory.storages import memory_at

LANES = 8
WEIGHTS = np.random.default_rng(1982).integers(1, 1 << 62, (2, LANES)) | 1


def fingerprints(blocks: Sequence[tuple[int, int]]) -> list[int]:
    """The checksums of blocks of memory (address, bytes); equal in all processes on one kind of machine."""
    if config.DISABLE_JIT:
        return [checksum_of_bytes(memory_at(*block)) if block[1] else 0 for block in blocks]
    found = np.empty(len(blocks), np.uint64)
    if blocks:
        _compiled()(np.array(blocks, np.int64), found)
    return found.tolist()


@functools.cache
def _compiled() -> Any:
    return cache.compiled(_all_of, f"fingerprints_{cache.key()}", {})


def _all_of(places, found):
    for k in range(len(found)):
        found[k] = _fingerprint(places[k, 0], places[k, 1])


@intrinsic
def _fingerprint(typing: Any, source: Any, size: Any) -> Any:
    """The checksum of the bytes at an address."""
    signature = types.uint64(types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, size = arguments
        word, byte = llvm.IntType(64), llvm.IntType(8).as_pointer()
        line = llvm.VectorType(word, LANES)
        zero, half = llvm.Constant(line, [0] * LANES), llvm.Constant(line, [32] * LANES)
        first, second, rest = (cgutils.alloca_once_value(builder, zero) for _ in range(3))

        def take(words: Any) -> None:
            mixed = builder.xor(words, builder.lshr(words, half))
            total = builder.add(builder.load(first), mixed)
            builder.store(total, first)
            builder.store(builder.add(builder.load(second), total), second)

        nbytes = llvm.Constant(word, 8 * LANES)
        lines = builder.udiv(size, nbytes)
        begin = builder.inttoptr(source, line.as_pointer())
        with cgutils.for_range(builder, lines) as loop:
            take(builder.load(builder.gep(begin, [loop.index]), align=1))
        done = builder.mul(lines, nbytes)
        left = builder.inttoptr(builder.add(source, done), byte)
        cgutils.raw_memcpy(builder, builder.bitcast(rest, byte), left, builder.sub(size, done), 1)
        take(builder.load(rest))
        weights = [llvm.Constant(line, row.tolist()) for row in WEIGHTS]
        weighed = [builder.mul(builder.load(total), row) for total, row in zip((first, second), weights)]
        both = builder.add(*weighed)
        found = size
        for k in range(LANES):
            found = builder.add(found, builder.extract_element(both, llvm.Constant(llvm.IntType(32), k)))
        return found

    return signature, generate
