"""Derived datatypes on memory: the buffer of a count of items at a place in an array."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...memory.storages import address_of, carries_derivatives, storage_of
from .buffers import FLOATING, Buffer
from .pieces import Layout, Piece, repeated
from .typemaps import Typemap, regrouped


def vector_buffer(array: np.ndarray, typemap: Typemap, counts: list[int], displs: list[int]) -> Buffer:
    """The buffer of one block for each rank: counts and displacements in items."""
    filled = [r for r in range(len(counts)) if counts[r]]
    if all(displs[r] + counts[r] == displs[s] for r, s in itertools.pairwise(filled)):
        buffer = buffer_of(array, typemap, sum(counts), displs[filled[0]] if filled else 0)
        length = buffer.count // sum(counts) if filled and typemap.dtype == buffer.dtype else 0
        buffer.counts = [n * length for n in counts]
        if length or not filled:
            return buffer
    start = address_of(array)
    blocks = [buffer_of(array, typemap, counts[r], displs[r]) for r in range(len(counts))]
    if any(block.dtype is None for block in blocks):
        buffer = Buffer(array, None, 0, start)
        buffer.mixed = True
    else:
        pieces = [piece.moved(block.address - start) for block in blocks for piece in block.pieces()]
        dtype = blocks[0].dtype
        layout = Layout(pieces, dtype.itemsize)
        buffer = Buffer(array, dtype, layout.count, start, layout)
        buffer.raw, buffer.mixed, buffer.bytewise = blocks[0].raw, typemap.mixed, blocks[0].bytewise
    buffer.extra = [(d, p.moved(block.address - start)) for block in blocks for d, p in block.extra]
    buffer.counts = [block.count for block in blocks]
    buffer.nbytes = sum(block.nbytes for block in blocks)
    return buffer


def buffer_of(array: np.ndarray, typemap: Typemap, count: int, displ: int) -> Buffer:
    """The buffer of ``count`` items of a typemap, ``displ`` items into an array."""
    return buffer_at(array, typemap, count, address_of(array) + displ * typemap.extent)


def buffer_at(array: np.ndarray, typemap: Typemap, count: int, address: int) -> Buffer:
    """The buffer of ``count`` items of a typemap from an address on."""
    dtype = typemap.dtype
    if dtype is None:
        return opaque_buffer(array, typemap, count, address)
    if dtype not in FLOATING:
        memory = memory_dtype(array)
        if memory is not None:
            return _raw(array, typemap, count, address, memory)
    layout = None if typemap.contiguous else typemap.layout(count)
    buffer = Buffer(array, dtype, count * typemap.length, address, layout)
    buffer.bytewise = dtype.itemsize == 1
    if typemap.mixed:
        buffer.mixed = True
        buffer.typemap = typemap
        buffer.nbytes = count * typemap.size
        buffer.extra = _extra(typemap, count)
    return buffer


def _raw(array: np.ndarray, typemap: Typemap, count: int, address: int, dtype: np.dtype) -> Buffer:
    """The buffer of a message of bytes or integers over floating-point memory: in terms of that memory's elements."""
    size = dtype.itemsize
    pieces = [Piece(0, (), ())] if typemap.contiguous else regrouped(typemap, count, size)
    start = address - storage_of(array).address
    if dtype not in FLOATING or not _aligned(pieces, start, size) or count * typemap.size % size:
        return opaque_buffer(array, typemap, count, address)
    layout = None if typemap.contiguous else Layout(pieces, size)
    buffer = Buffer(array, dtype, count * typemap.size // size, address, layout)
    buffer.raw = True
    buffer.bytewise = typemap.dtype.itemsize == 1
    return buffer


def _aligned(pieces: Sequence[Piece] | None, start: int, size: int) -> bool:
    """Whether all elements of a size lie at multiples of it."""
    return pieces is not None and not any(
        (start + piece.offset) % size or any(stride % size for stride in piece.strides) for piece in pieces
    )


def opaque_buffer(array: np.ndarray, typemap: Typemap, count: int, address: int) -> Buffer:
    """The buffer of a message whose elements cannot be told as a sequence of one floating-point dtype."""
    buffer = Buffer(array, None, 0, address)
    buffer.mixed = True
    buffer.nbytes = count * typemap.size
    buffer.extra = _extra(typemap, count)
    if typemap.dtype is not None:
        pieces = typemap.layout(count).pieces if typemap.length else ()
        buffer.extra += [(typemap.dtype, piece) for piece in pieces]
    return buffer


def _extra(typemap: Typemap, count: int) -> list[tuple[np.dtype, Piece]]:
    dtypes = [dtype for dtype, _ in typemap.extra]
    if count == 0 or len(dtypes) == len(set(dtypes)):
        return [(dtype, repeated(piece, count, typemap.extent)) for dtype, piece in typemap.extra if count]
    return [(dtype, piece.moved(k * typemap.extent)) for k in range(count) for dtype, piece in typemap.extra]


def memory_dtype(array: np.ndarray) -> np.dtype | None:
    """Dtype of the tracked memory with floating-point elements that an array looks at; None for other memory."""
    if storage_of(array) is None:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        if carries_derivatives(base.dtype):
            return base.dtype
        base = base.base.obj if isinstance(base.base, memoryview) else base.base
    return None
