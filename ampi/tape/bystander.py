"""What looks like a tape where only other threads or tasks have one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory.storages import storage_of
from .recording import set_bystander
from .tape import Tape, living


class Bystander(Tape):
    """What `current` is in a thread that has no tape while another thread, or another task, has one.

    It records nothing, and on it nothing is active: to use what carries derivatives on the other's tape is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        living.discard(self.reference)
        self.pen = None

    def append(self, *arguments: Any, **keywords: Any) -> None:
        """Nothing is recorded."""

    append_start = append

    def need(self, array: np.ndarray) -> np.ndarray:
        """Nothing is needed."""
        return array

    def watches_over(self, array: np.ndarray) -> bool:
        """Whether an array carries derivatives on the tape of somebody else."""
        storage = storage_of(array)
        tape = None if storage is None or storage.tape is None else storage.tape()
        return tape is not None and not tape.closed


set_bystander(Bystander())
