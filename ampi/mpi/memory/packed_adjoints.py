"""Adjoints of packed bytes: one number for each byte, the adjoint of the real element that begins there.

Neither the bytes nor a rank that forwards them show what was packed, but adjoints must be added as numbers.  So the
shadow of memory of bytes (`Storage.packed`) has a double for each byte: the adjoint of a real number is stored at its
first byte, that of a complex number at the first bytes of its two parts, and the others are zero.  Adjoints of
messages of bytes are sent in this form, and `PackedAdjoints` converts a message of typed elements to it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...tape import Sweep, Tape

SLOT_DTYPE = np.dtype(np.float64)


class PackedAdjoints:
    """A buffer of typed elements as a message of bytes: the interface of `Buffer`, with a number for each byte.

    Attributes
    ----------
    inner : Buffer
        The elements.
    count : int
        Number of bytes of the packed message.
    """

    __slots__ = ("count", "counts", "inner")

    dtype = SLOT_DTYPE
    packed = True
    raw = mixed = False

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.count = inner.nbytes
        itemsize = 1 if inner.dtype is None else inner.dtype.itemsize
        self.counts = None if inner.counts is None else [n * itemsize for n in inner.counts]

    array = property(lambda self: self.inner.array)
    storage = property(lambda self: self.inner.storage)
    tracked = property(lambda self: self.inner.tracked)
    nbytes = property(lambda self: self.inner.nbytes)
    storages = property(lambda self: self.inner.storages)
    loses = property(lambda self: self.inner.loses)

    def active(self, tape: Tape) -> bool:
        """As `Buffer.active`."""
        return self.inner.active(tape)

    def uncertain(self) -> bool:
        """As `Buffer.uncertain`."""
        return self.inner.uncertain()

    def activate(self, tape: Tape) -> None:
        """As `Buffer.activate`."""
        self.inner.activate(tape)

    def overwrite(self) -> Any:
        """As `Buffer.overwrite`."""
        return self.inner.overwrite()

    def detach(self) -> PackedAdjoints:
        """As `Buffer.detach`."""
        self.inner.detach()
        return self

    def within(self, nbytes: int) -> PackedAdjoints:
        """Return the memory of the first bytes."""
        return PackedAdjoints(self.inner.within(nbytes))

    def part(self, start: int, stop: int) -> PackedAdjoints:
        """Return the memory of bytes ``start`` to ``stop``; whole elements."""
        itemsize = self.inner.dtype.itemsize
        return PackedAdjoints(self.inner.part(start // itemsize, stop // itemsize))

    def take(self, sweep: Sweep) -> np.ndarray:
        """Return the adjoint of what the message overwrote, and set the shadow to zero."""
        slots = np.zeros(self.count, SLOT_DTYPE)
        places = self.inner.places()
        taken = self.inner.take(sweep)
        slots[places] = taken.real
        if taken.dtype.kind == "c":
            slots[places + taken.itemsize // 2] = taken.imag
        return slots

    def zero(self, sweep: Sweep) -> None:
        """Set the shadow to zero where the message is."""
        self.inner.zero(sweep)

    def add(self, sweep: Sweep, slots: np.ndarray) -> None:
        """Add to the adjoint."""
        inner = self.inner
        if not inner.tracked or not inner.count:
            return
        places = inner.places()
        flat = slots[places].astype(inner.dtype)
        if inner.dtype.kind == "c":
            flat.imag = slots[places + inner.dtype.itemsize // 2]
        inner.add(sweep, flat)
