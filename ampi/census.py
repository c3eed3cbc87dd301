"""All tracked arrays that exist, found through Python's garbage collector.

Messages from ``MPI.BOTTOM`` name memory by its address alone; arrays that look there have to be found. Nothing else
needs a list of all arrays, so none is kept: arrays would pay for it whenever they are made.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from .memory import TrackedArray


class _Census:
    """Keeps what the last look at all objects found; afterwards only young objects can be new.

    An object is made in the collector's generation 0, and is in generation 2 no sooner than a collection of
    generation 1 has ended.
    """

    def __init__(self) -> None:
        self.known: list[weakref.ref[TrackedArray]] | None = None
        gc.callbacks.append(self.collected)

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """The collector's callback."""
        if phase == "stop" and info["generation"] >= 1:
            self.known = None

    def take(self) -> list[TrackedArray]:
        """All tracked arrays; some more than once."""
        kinds, known = _kinds(), self.known
        if known is not None:
            young = [item for age in (0, 1) for item in gc.get_objects(generation=age) if type(item) in kinds]
            if self.known is known:  # no collection has moved young objects meanwhile
                return young + [array for reference in known if (array := reference()) is not None]
        self.known = known = []  # before the look: a collection from here on asks for another one
        everything = [item for item in gc.get_objects() if type(item) in kinds]
        known += [weakref.ref(array) for array in everything]
        return everything


def _kinds() -> set[type]:
    """`TrackedArray` and all classes derived from it."""
    kinds: set[type] = {TrackedArray}
    unseen = [TrackedArray]
    while unseen:
        subclasses = unseen.pop().__subclasses__()
        kinds.update(subclasses)
        unseen += subclasses
    return kinds


_census: _Census | None = None


def tracked_arrays() -> list[TrackedArray]:
    """All tracked arrays that exist; some more than once."""
    global _census
    if _census is None:
        _census = _Census()
    return _census.take()
