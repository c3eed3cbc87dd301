"""The tape that stands for "another thread or task is recording, this one is not"."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory.storages import storage_of
from .recording import set_bystander
from .tape import Tape, living


class Bystander(Tape):
    """The tape that `current` returns in a thread without a tape while another thread or task has one.

    It records nothing, and no array is active on it: using an array that is active on the other tape is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        living.discard(self.reference)
        self.pen = None

    def append(self, *arguments: Any, **keywords: Any) -> None:
        """Record nothing."""

    append_start = append

    def need(self, array: np.ndarray) -> np.ndarray:
        """Return the array: nothing is needed."""
        return array

    def watches_over(self, array: np.ndarray) -> bool:
        """Return whether an array carries derivatives on an open tape of another thread or task."""
        storage = storage_of(array)
        tape = None if storage is None or storage.tape is None else storage.tape()
        return tape is not None and not tape.closed


set_bystander(Bystander())
