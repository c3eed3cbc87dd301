"""Blocks of memory that are used again: what tapes save and sweeps add up in.

A program that asks for gradients again and again would otherwise get fresh pages from the system each time, and their
first touch costs more than the copying.
"""

from __future__ import annotations

import sys

import numpy as np

SMALLEST = 1 << 14  # bytes; what is smaller, the system's allocator gives quickly
KEPT_BYTES = 1 << 26  # that are kept for later at most

_free: dict[int, list[np.ndarray]] = {}
_free_bytes = 0
_REFERENCES = 2  # to a block that nobody else looks at: the argument, and what it is counted through


def take(nbytes: int) -> np.ndarray:
    """A block of bytes, to be handed back by `give` if it is not small."""
    global _free_bytes
    blocks = _free.get(nbytes)
    if not blocks:
        return np.empty(nbytes, np.uint8)
    _free_bytes -= nbytes
    return blocks.pop()


def give(blocks: list[np.ndarray]) -> None:
    """Take blocks back, except those that somebody still has a view of; the list is emptied."""
    global _free_bytes
    while blocks:
        block = blocks.pop()
        if block.nbytes < SMALLEST or sys.getrefcount(block) > _REFERENCES:
            continue
        if _free_bytes + block.nbytes > KEPT_BYTES:
            _free.clear()  # of other sizes than are asked for now, as far as one can tell
            _free_bytes = 0
        if block.nbytes <= KEPT_BYTES:
            _free.setdefault(block.nbytes, []).append(block)
            _free_bytes += block.nbytes
