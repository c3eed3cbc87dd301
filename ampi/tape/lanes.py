"""Sweeps with lanes: one walk back over a tape with several shadows of each storage, one in each lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..memory.storages import Region, Storage, plain
from .sweep import Sweep


class Lane(Sweep):
    """The shadows of one lane; ``whole``, the sweep of all lanes, does the walk."""

    def __init__(self, whole: LanedSweep, around: Sweep | None = None) -> None:
        super().__init__(whole.tape, around)
        self.whole: Any = whole

    def value(self, array: np.ndarray) -> np.ndarray:
        """The values that an array had when the operation of this record ran."""
        return plain(self.whole.value(array))

    def put_back(self, storages: Any) -> None:
        """Put memory back to what it was when the operation of this record ran."""
        self.whole.put_back(storages)

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have ``callback(error)`` called when the walk ends."""
        self.whole.at_end(callback)

    def begin_anew(self, region: Region, others: Sequence[Region]) -> None:
        """Return None: adjoints set the shadows of all lanes, or add to the existing ones."""

    def add_once(self, region: Region, value: np.ndarray, kept: np.ndarray) -> None:
        """Add to the adjoint: the array is copied."""
        self.add(region, value)

    def begin(self, region: Region, value: np.ndarray) -> None:
        """Add a seed to the adjoint."""
        self.add(region, value)


class LanedSweep(Sweep):
    """A sweep whose shadows are in its lanes.

    Attributes
    ----------
    lanes : tuple of Lane
    """

    lanes: tuple[Any, ...]

    def has_shadow(self, region: Region) -> bool:
        """Return whether anything has been added to a region's storage in any lane."""
        return self.has_block(region.storage)

    def has_block(self, storage: Storage) -> bool:
        """Return whether anything has been added to a storage's adjoint in any lane."""
        return any(lane.has_block(storage) for lane in self.lanes)

    def zero(self, region: Region, key: Any = ...) -> None:
        """Set the adjoints of memory overwritten by a constant to zero."""
        for lane in self.lanes:
            lane.zero(region, key)

    def begin_anew(self, region: Region, others: Sequence[Region]) -> None:
        """Return None: adjoints that set shadows ask for those of all lanes."""

    def clear(self) -> None:
        """Drop all shadows: the walk is over."""
        for lane in self.lanes:
            lane.clear()
        super().clear()

    def run(self) -> None:
        """Walk back over the tape, then restore the memory."""
        super().run()
        self.lanes = ()  # they refer to the sweep: a reference cycle would keep the tape alive
