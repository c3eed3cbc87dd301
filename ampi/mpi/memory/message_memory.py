"""Protocols of a message's memory: what the log, the sweep and the recording of messages ask of it.

`Bundle` (the arrays inside a Python object) is an `AdjointMemory`; `Buffer`, `Composite` and `PackedAdjoints` are
`MessageMemory` besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...memory.storages import Storage
from ...tape import Sweep, Tape, Undo


@runtime_checkable
class AdjointMemory(Protocol):
    """Memory whose adjoint goes in one message: flat, contiguous, of one dtype.

    Attributes
    ----------
    count, dtype
        Of the message of adjoints.
    nbytes : int
        Bytes of the message, packed.
    packed : bool
        The message is of bytes: its adjoint has a number for each.
    """

    count: int
    dtype: Any
    nbytes: int
    packed: bool

    def within(self, nbytes: int) -> Any:
        """The memory of the elements that so many bytes of the packed message hold."""

    def take(self, sweep: Sweep) -> np.ndarray:
        """The adjoint of what the message overwrote; the shadow becomes zero there."""

    def zero(self, sweep: Sweep) -> None:
        """The shadow becomes zero where the message is."""

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
        Whether elements can carry derivatives here, and whether some that are received would lose them.
    raw, mixed : bool
        Whether the datatype names other elements than the memory has, and whether it has several dtypes.
    """

    counts: list[int] | None
    storages: Sequence[Storage | None]
    tracked: bool
    loses: bool
    raw: bool
    mixed: bool

    def active(self, tape: Tape) -> bool:
        """Whether the memory carries derivatives on the tape."""

    def uncertain(self) -> bool:
        """Whether it holds bytes from elsewhere, of which it is not known what they are."""

    def activate(self, tape: Tape) -> None:
        """The memory carries derivatives from now on."""

    def overwrite(self) -> list[Undo]:
        """Save what records need, before the memory is overwritten."""

    def part(self, start: int, stop: int) -> Any:
        """The memory of elements ``start`` to ``stop``."""

    def detach(self) -> Any:
        """Keep the memory alive no longer."""
