"""Lengths of the messages of a collective call that MPI requires to be equal on two ranks, or on all of them.

MPI libraries accept some calls with inconsistent counts, whose adjoints would move other elements, or fail in the
middle of a sweep.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from ..memory.message_memory import AdjointMemory

_NONE: Mapping[int, int] = {}


class Sizes:
    """The lengths in the arguments of this rank, in bytes.

    Attributes
    ----------
    same : int
        The length that must be equal on all ranks: of the contribution, or of the whole.
    blocks : int
        A checksum of the lengths of all ranks' blocks, if these must be the same on all ranks.
    going, coming : dict
        Lengths of messages to and from other ranks, if these ranks must give the same.
    own : tuple of int or None
        Lengths of the messages that this rank sends to itself and expects from itself.
    itemsize : int
        Bytes of an element.
    """

    __slots__ = ("blocks", "coming", "going", "itemsize", "own", "same")

    def __init__(
        self,
        buffer: AdjointMemory,
        same: int = 0,
        blocks: Sequence[int] = (),
        going: Mapping[int, int] = _NONE,
        coming: Mapping[int, int] = _NONE,
        own: tuple[int, int] | None = None,
    ) -> None:
        self.same = same
        self.blocks = zlib.crc32(np.array(blocks, np.int64).tobytes()) if len(blocks) else 0
        self.going = going
        self.coming = coming
        self.own = own
        empty = 1 if buffer.dtype is None else buffer.dtype.itemsize
        self.itemsize = buffer.nbytes // buffer.count if buffer.count else empty

    def problem(self) -> str:
        """Describe a mismatch that this rank can detect alone; '' if there is none."""
        if self.own is None or self.own[0] == self.own[1]:
            return ""
        gives, takes = map(self.amount, self.own)
        return f"this rank contributes {gives}, and expects {takes} of itself"

    def amount(self, nbytes: int) -> str:
        """Return a length as text."""
        if nbytes % max(self.itemsize, 1):
            return f"{nbytes} bytes"
        count = nbytes // max(self.itemsize, 1)
        return f"{count} element{'' if count == 1 else 's'} of {self.itemsize} bytes"


def of_blocks(buffer: AdjointMemory, counts: Sequence[int]) -> list[int]:
    """Return the bytes of the blocks of a buffer."""
    unit = buffer.nbytes // buffer.count if buffer.count else 0
    return [int(n) * unit for n in counts]


def to_others(nbytes: Sequence[int], rank: int) -> dict[int, int]:
    """Return the lengths of the blocks of all ranks but this one."""
    return {other: n for other, n in enumerate(nbytes) if other != rank}
