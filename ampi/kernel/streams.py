"""Copies of large arrays that go past the processor's caches.

A tape reads what it saved much later.  Storing it with non-temporal instructions leaves the caches to the program, and
the memory need not be read before it is overwritten: a copy takes two passes over memory instead of three.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from ampi import memory

LARGE = 1 << 19
"""Bytes from which on a copy is expected to leave the caches anyway."""
LINE = 64  # bytes; a line of the cache, to which stores are aligned


def copied(array: np.ndarray) -> np.ndarray:
    """A copy of an array, in the same order of its elements in memory."""
    if array.nbytes < LARGE or not array.flags.forc or array.dtype.hasobject or config.DISABLE_JIT:
        return array.copy(order="K")
    copy = np.empty_like(array, subok=False)
    _compiled()(memory.address_of(array), memory.address_of(copy), array.nbytes)
    return copy


@functools.cache
def _compiled() -> Any:
    from ampi.kernel import cache

    return cache.compiled(_copy, f"stream_{cache.fingerprint(cache.versions())}", {})


def _copy(source, target, size):
    _stream(source, target, size)


@intrinsic
def _stream(typing: Any, source: Any, target: Any, size: Any) -> Any:
    """Copy bytes from one address to another."""
    signature = types.void(types.intp, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target, size = arguments
        word, byte = source.type, llvm.IntType(8)
        number = functools.partial(llvm.Constant, word)

        def move(offset: Any, count: Any) -> None:
            there, here = (builder.inttoptr(builder.add(a, offset), byte.as_pointer()) for a in (target, source))
            cgutils.raw_memcpy(builder, there, here, count, 1)

        before = builder.and_(builder.neg(target), number(LINE - 1))
        lines = builder.udiv(builder.sub(size, before), number(LINE))
        after = builder.add(before, builder.mul(lines, number(LINE)))
        move(number(0), before)
        line = llvm.VectorType(llvm.IntType(64), LINE // 8)
        ends = [builder.inttoptr(builder.add(a, before), line.as_pointer()) for a in (source, target)]
        once = builder.module.add_metadata([llvm.Constant(llvm.IntType(32), 1)])
        with cgutils.for_range(builder, lines) as loop:
            value = builder.load(builder.gep(ends[0], [loop.index]), align=1)
            builder.store(value, builder.gep(ends[1], [loop.index]), align=LINE).set_metadata("nontemporal", once)
        move(after, builder.sub(size, after))
        builder.fence("seq_cst")  # for other threads, which may read it next
        return context.get_dummy_value()

    return signature, generate
