"""Parsing of message arguments: buffers from an array, ``[array, count, datatype]`` and all other forms of mpi4py."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...memory.storages import address_of, memory_of, storage_of
from .absolute_buffers import at_addresses, tracked_blocks, vector_at_addresses
from .argument_forms import (
    as_array,
    is_bottom,
    is_nothing,
    per_rank,
    simple_form,
    typemap_for,
    vector_form,
)
from .buffers import FLOATING, NOTHING, Buffer, as_packed, buffer_at, vector_buffer
from .packed_adjoints import PackedAdjoints

# Dtypes that mpi4py sends without being told a datatype.
_AUTOMATIC = frozenset(np.dtype(c) for c in "?bBhHiIlLqQefdgFDG")


def parse(spec: Any, blocks: int = 0) -> Buffer:
    """Return the buffer that a message argument names.

    Parameters
    ----------
    spec : array, list or tuple
        ``a``; ``[a, type]``; ``[a, count]``; ``[a, (count, displ)]``; ``[a, count, type]``;
        ``[a, (count, displ), type]``; ``[a, count, displ, type]``; counts may be None; ``type`` is a Datatype or one of
        mpi4py's strings.
    blocks : int
        Number of blocks of ``count`` that the buffer holds (the receive buffer of a Gather: one per rank); all of them
        belong to the buffer.  0 and 1 are one block.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py would.
    """
    count = displ = datatype = None
    if isinstance(spec, np.ndarray):
        array = spec if spec.flags.forc else as_array(spec)
    else:
        memory, count, displ, datatype = simple_form(spec)
        if count == 0 and is_nothing(count, displ, datatype):
            return NOTHING
        if not isinstance(memory, np.ndarray) and is_bottom(memory):
            return at_addresses(datatype, (count or 0) * max(blocks, 1), displ or 0)
        array = as_array(memory)
    storage, dtype = storage_of(array), array.dtype
    if array is not spec or (dtype not in FLOATING and (storage is not None or dtype not in _AUTOMATIC)):
        found = memory_of(array, storage)
        typemap = typemap_for(datatype, dtype)
        displ = 0 if displ is None else operator.index(displ)
        if displ < 0:
            raise ValueError(f"message: negative displacement {displ}")
        if count is None:
            count = typemap.fitting(array.nbytes - displ * typemap.extent)
            _require_blocks(count, blocks)
        else:
            count = operator.index(count) * max(blocks, 1)
            if count < 0:
                raise ValueError(f"message: negative count {count}")
        return buffer_at(found, typemap, count, address_of(array) + displ * typemap.extent)
    if blocks > 1:
        _require_blocks(array.size, blocks)
    return Buffer(array, storage, dtype, array.size)


def _require_blocks(count: int, blocks: int) -> None:
    if blocks > 1 and count % blocks:
        raise ValueError(f"message: number of entries {count} is not a multiple of {blocks} blocks")


def parse_bytes(spec: Any) -> Buffer:
    """Parse an argument of an operation that moves data without interpreting it: bytes may be packed elements."""
    buffer = parse(spec)
    return as_packed(buffer)


def parse_moved(spec: Any, blocks: int = 0) -> Buffer:
    """Parse an argument of a collective operation, whose ranks all treat a message of bytes as packed adjoints."""
    return _moved_form(parse(spec, blocks))


def parse_vector_moved(spec: Any, blocks: int) -> Buffer:
    """Parse an argument with one count per rank, as `parse_moved`."""
    return _moved_form(parse_vector(spec, blocks))


def parse_types_moved(spec: Any, blocks: int) -> list[Buffer]:
    """Parse an argument with one datatype per rank, as `parse_moved`."""
    return [_moved_form(buffer) for buffer in parse_types(spec, blocks)]


def _moved_form(buffer: Buffer) -> Any:
    return PackedAdjoints(buffer) if buffer.bytewise and buffer.raw else as_packed(buffer)


def parse_vector(spec: Any, blocks: int) -> Buffer:
    """Return the buffer that an argument with one count per rank names.

    Parameters
    ----------
    spec : array, list or tuple
        ``b`` (divided evenly, the first ranks get the remainder); ``[b, counts]``; ``[b, (counts, displs)]``;
        ``[b, (counts, displs), type]``; ``[b, counts, displs, type]``; counts an int or one per rank, displs an int
        (stride), one per rank, or None (side by side).
    blocks : int
        Number of ranks.

    Returns
    -------
    Buffer
        The concatenation of the blocks in rank order; ``counts`` has the elements of each.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py would.
    """
    memory, counts, displs, datatype = vector_form(spec)
    if is_bottom(memory):
        return vector_at_addresses(datatype, counts, displs, blocks)
    array = as_array(memory)
    typemap = typemap_for(datatype, array.dtype)
    if counts is None:
        whole, rest = divmod(typemap.fitting(array.nbytes), blocks)
        counts = [whole + (r < rest) for r in range(blocks)]
    else:
        counts = per_rank(counts, blocks, lambda value: [value] * blocks)
    if displs is None:
        displs = [0] * blocks
        for r in range(1, blocks):
            displs[r] = displs[r - 1] + counts[r - 1]
    else:
        displs = per_rank(displs, blocks, lambda value: [value * r for r in range(blocks)])
    return vector_buffer(memory_of(array, storage_of(array)), typemap, counts, displs)


def parse_types(spec: Any, blocks: int) -> list[Buffer]:
    """Return the buffers, one per rank, that an argument with one datatype per rank names.

    Parameters
    ----------
    spec : list or tuple
        ``[b, types]``; ``[b, (counts, displs), types]``; ``[b, counts, displs, types]``; displs in bytes.
    blocks : int
        Number of ranks.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py would.
    """
    if len(spec) == 2:
        memory, types = spec
        counts = displs = None
    elif len(spec) == 3:
        memory, (counts, displs), types = spec
    elif len(spec) == 4:
        memory, counts, displs, types = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    counts = [1] * blocks if counts is None else per_rank(counts, blocks, lambda value: [value] * blocks)
    displs = [0] * blocks if displs is None else per_rank(displs, blocks, lambda value: [value] * blocks)
    if is_bottom(memory):
        tracked = tracked_blocks()
        return [
            at_addresses(datatype, count, 0, displ, tracked)
            for count, displ, datatype in zip(counts, displs, types, strict=True)
        ]
    array = as_array(memory)
    memory, start = memory_of(array, storage_of(array)), address_of(array)
    return [
        buffer_at(memory, typemap_for(datatype, array.dtype), count, start + displ)
        for count, displ, datatype in zip(counts, displs, types, strict=True)
    ]
