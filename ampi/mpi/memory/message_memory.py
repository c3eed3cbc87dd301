"""Protocols of a message's memory, used by the log, the sweep and the recording of messages.

`Bundle` (the arrays inside a Python object) is an `AdjointMemory`; `Buffer`, `Composite` and `PackedAdjoints` are also
`MessageMemory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...memory.storages import Storage
from ...tape import Sweep, Tape, Undo


@runtime_checkable
class AdjointMemory(Protocol):
    """Memory whose adjoint is sent in one message: flat, contiguous, of one dtype.

    Attributes
    ----------
    count, dtype
        Of the message of adjoints.
    nbytes : int
        Bytes of the message, packed.
    packed : bool
        The message consists of bytes: its adjoint has a number for each byte.
    """

    count: int
    dtype: Any
    nbytes: int
    packed: bool

    def within(self, nbytes: int) -> Any:
        """Return the memory of the elements in the first ``nbytes`` of the packed message."""

    def take(self, sweep: Sweep) -> np.ndarray:
        """Return the adjoint of what the message overwrote, and set the shadow to zero there."""

    def zero(self, sweep: Sweep) -> None:
        """Set the shadow to zero where the message is."""

    def add(self, sweep: Sweep, flat: np.ndarray) -> None:
        """Add to the adjoint of what the message read."""


@runtime_checkable
class MessageMemory(AdjointMemory, Protocol):
    """Memory that a message of a buffer reads or overwrites.

    Attributes
    ----------
    counts : list of int or None
        Elements of the block for each rank.
    storages : sequence of Storage or None
        Those of the memory.
    tracked, loses : bool
        The elements can carry derivatives; derivatives of some elements that are received would be lost.
    raw, mixed : bool
        The datatype names elements of another kind than the memory has; the message has several dtypes.
    """

    counts: list[int] | None
    storages: Sequence[Storage | None]
    tracked: bool
    loses: bool
    raw: bool
    mixed: bool

    def active(self, tape: Tape) -> bool:
        """Return whether the memory carries derivatives on the tape."""

    def uncertain(self) -> bool:
        """Return whether it holds received bytes whose contents are unknown."""

    def activate(self, tape: Tape) -> None:
        """Mark the memory as carrying derivatives."""

    def overwrite(self) -> list[Undo]:
        """Save values that records need, before the memory is overwritten."""

    def part(self, start: int, stop: int) -> Any:
        """Return the memory of elements ``start`` to ``stop``."""

    def detach(self) -> Any:
        """Drop the reference to the memory."""
