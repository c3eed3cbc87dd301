"""Shadows of a sweep that report each new one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..memory.storages import Storage


class NotedShadows(dict):
    """A dictionary of shadows that reports each new one to the functions in ``notes``."""

    def __init__(self, known: dict[Storage, np.ndarray]) -> None:
        super().__init__(known)
        self.notes: list[Callable[[Storage], None]] = []

    def __setitem__(self, storage: Storage, block: np.ndarray) -> None:
        if storage not in self:
            for note in self.notes:
                note(storage)
        super().__setitem__(storage, block)
