"""Copies of large arrays that bypass the processor's caches, and large blocks of zeros.

A tape reads saved values much later.  Storing them with non-temporal instructions leaves the caches to the program, and
avoids reading memory before it is overwritten: a copy moves two thirds of the data.  If kernels run on threads, these
threads also make copies and blocks of zeros.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from llvmlite import ir as llvm
from numba import prange, types
from numba.core import cgutils, config
from numba.extending import intrinsic

from ampi.kernel.runtime import cache
from ampi.kernel.runtime.threads import ONLY_PRANGE, started_threads
from ampi.memory import storages as memory

LARGE = 1 << 19
"""Size in bytes from which a copy exceeds the caches anyway, and starting threads pays off."""
FRESH = 1 << 25
"""Size in bytes from which the C library gets memory directly from the system, already zeroed."""
LINE = 64  # bytes; a line of the cache, to which stores are aligned
PAGE = 4096  # bytes; the part of each thread begins at a multiple


def copied(array: np.ndarray) -> np.ndarray:
    """A copy of an array with the same order of elements in memory."""
    if array.nbytes < LARGE or not array.flags.forc or array.dtype.hasobject or config.DISABLE_JIT:
        return array.copy(order="K")
    copy = np.empty_like(array, subok=False)
    source, target = memory.address_of(array), memory.address_of(copy)
    parts = started_threads()
    if parts > 1:
        _compiled_on_threads()(source, target, array.nbytes, parts)
    else:
        _compiled()(source, target, array.nbytes)
    return copy


def zeroed(nbytes: int) -> np.ndarray:
    """A new block of bytes, all of them zero."""
    parts = started_threads() if LARGE <= nbytes < FRESH and not config.DISABLE_JIT else 1
    if parts == 1:
        return np.zeros(nbytes, np.uint8)
    block = np.empty(nbytes, np.uint8)
    _compiled_on_threads()(0, memory.address_of(block), nbytes, parts)
    return block


@functools.cache
def _compiled() -> Any:
    return cache.compiled(_copy, f"stream_{cache.key()}", {})


@functools.cache
def _compiled_on_threads() -> Any:
    options = {"parallel": {**ONLY_PRANGE}}
    return cache.compiled(_write_on_threads, f"stream_on_threads_{cache.key()}", options)


def _copy(source, target, size):
    _stream(source, target, size)


def _write_on_threads(source, target, size, parts):
    # One function for copies and zeros, since compiling for threads takes seconds.
    pages = (size + PAGE - 1) // PAGE
    for part in prange(parts):
        begin = pages * part // parts * PAGE
        end = min(pages * (part + 1) // parts * PAGE, size)
        if source == 0:
            _clear(target + begin, end - begin)
        else:
            _stream(source + begin, target + begin, end - begin)


@intrinsic
def _clear(typing: Any, target: Any, size: Any) -> Any:
    """Set bytes at an address to zero."""
    signature = types.void(types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, size = arguments
        cgutils.memset(builder, builder.inttoptr(target, llvm.IntType(8).as_pointer()), size, 0)
        return context.get_dummy_value()

    return signature, generate


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
