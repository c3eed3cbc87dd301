"""This rank's window memory, as it was when a time loop began."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from ..memory.storages import Storage, arrays_of_blocks, plain, storage_of
from .states import write


class WindowValues:
    """Copies of it for steps that run again: other ranks may have overwritten the memory since, unseen.

    Parameters
    ----------
    owners : mapping
        An array on each storage from before the loop.
    """

    def __init__(self, owners: Mapping[Storage, np.ndarray]) -> None:
        own = {s: array for s, array in owners.items() if s.volatile and not s.elsewhere}
        self._allocated = set(own) & _allocated() if own else set()
        self._copies = {s: (array, plain(array).copy()) for s, array in own.items()}
        self.nbytes = sum(copy.nbytes for _, copy in self._copies.values())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Put the values where they are not, and what was there back at the end."""
        gone = self._allocated - _allocated() if self._allocated else set()
        overwritten = [
            (array, plain(array).copy(), copy)
            for storage, (array, copy) in self._copies.items()
            if storage not in gone and plain(array).tobytes() != copy.tobytes()
        ]
        for array, _, copy in overwritten:
            write(array, copy)
        try:
            yield
        finally:
            for array, present, _ in overwritten:
                write(array, present)


def _allocated() -> set[Storage]:
    """The storages of the memory that windows have allocated, and not freed."""
    return {storage for array in arrays_of_blocks() if (storage := storage_of(array)) is not None}
