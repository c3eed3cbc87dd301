"""Arrays apart: in the memory of a device, as independents and outputs of tapes.

`ampi.device` says what they are: this floor knows only that they have a ``storage`` and what `Apart` demands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..memory.storages import Region, Storage, region_of, storage_of


class Apart(Protocol):
    """An array on a device whose derivatives are tracked (`ampi.device.arrays.DeviceArray`)."""

    storage: Storage
    shape: tuple[int, ...]
    dtype: np.dtype

    def region(self) -> Region:
        """Return its place."""

    def is_active_on(self, tape: Any) -> bool:
        """Return whether it carries derivatives on a tape; raise an error if another tape would lose them."""

    def copied(self) -> Apart:
        """Return a copy on the device."""

    def copy_to_host(self) -> np.ndarray:
        """Return a copy on the host."""


trackers: list[Callable[[Any], Any]] = []
"""Entered by `ampi.device`: returns a tracked array with the elements of an array of any package on a device."""


def is_apart(x: Any) -> bool:
    """Return whether a value is an array on a device."""
    return not isinstance(x, np.ndarray) and hasattr(x, "__cuda_array_interface__")


def tracked_apart(x: Any) -> Any:
    """Return an array on a device as one whose derivatives are tracked: itself, or a copy of another package's."""
    return trackers[0](x)


def copied_apart(x: Any) -> Any:
    """Return a tracked copy of an array on a device."""
    found = tracked_apart(x)
    return found.copied() if found is x else found


def is_tracked(x: Any) -> bool:
    """Return whether a value is an array, on the host or a device, in tracked memory."""
    if isinstance(x, np.ndarray):
        return storage_of(x) is not None
    return is_apart(x) and hasattr(x, "storage")


def region_at(x: Any) -> Region:
    """Return the region of a tracked array on the host or on a device."""
    return x.region() if is_apart(x) else region_of(x)


def is_active_at(tape: Any, x: Any) -> bool:
    """Return whether an array on the host or on a device carries derivatives on a tape."""
    if is_apart(x):
        return hasattr(x, "storage") and x.is_active_on(tape)
    return tape.is_active(x)
