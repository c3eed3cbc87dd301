"""Shadows of a sweep that report each new one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..memory.storages import Storage


class NotedShadows(dict):
    """A dictionary of shadows that reports each new one."""

    def __init__(self, note: Callable[[Storage], None], known: dict[Storage, np.ndarray]) -> None:
        super().__init__(known)
        self.note = note

    def __setitem__(self, storage: Storage, block: np.ndarray) -> None:
        if storage not in self:
            self.note(storage)
        super().__setitem__(storage, block)
