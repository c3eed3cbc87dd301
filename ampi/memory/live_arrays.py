"""All live tracked arrays, found through Python's garbage collector.

Messages from ``MPI.BOTTOM`` name memory by its address alone; the arrays on that memory have to be found.  Nothing else
needs a list of all arrays, and keeping one would make every new array more expensive.
"""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from typing import Any

from ..base.live_objects import objects_of_types
from .storages import Pool, TrackedArray

_GENERATIONAL = sys.version_info < (3, 14)  # later versions collect old objects incrementally
_UNUSED = 100  # collections (of more than the youngest objects) without a search, after which the cache is dropped


class _LiveArrays:
    """A cache of the tracked arrays that the last search found; afterwards only young objects can be new.

    An object is made in the collector's generation 0 and becomes old (generation 2) in a collection of generation 1 or
    2. The objects that are young when such a collection begins are added to the known ones.

    Attributes
    ----------
    known : list of weakref.ref or None
        All old tracked arrays, and perhaps some young ones and dead references.
    room : int
        Length of `known` at which dead references are dropped.
    unused : int
        Number of collections since the last search.
    frozen : list of weakref.ref or None
        The tracked arrays that ``gc.freeze`` has taken out of all generations; None until these were looked for.
    """

    def __init__(self) -> None:
        self.known: list[weakref.ref[TrackedArray]] | None = None
        self.room = 0
        self.unused = 0
        self.frozen: list[weakref.ref[TrackedArray]] | None = None
        if _GENERATIONAL:
            gc.callbacks.append(self.collected)
        freeze = gc.freeze

        @functools.wraps(freeze)
        def noted() -> None:
            self.frozen = [*map(weakref.ref, self.take())]
            freeze()

        gc.freeze = noted

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """Add young arrays before a collection makes them old (a callback of the collector)."""
        if phase == "stop" or info["generation"] == 0 or self.known is None:
            return
        self.unused += 1
        if self.unused > _UNUSED:
            self.known = None
            return
        self.known += map(weakref.ref, _young())
        if len(self.known) > self.room:
            self.known = [*map(weakref.ref, _alive(self.known))]
            self.room = 2 * len(self.known) + 1000

    def take(self) -> list[TrackedArray]:
        """Return all tracked arrays; some more than once."""
        if self.frozen is None:
            thawed = gc.get_freeze_count() > 0
            if thawed:
                gc.unfreeze()
            self.frozen = []
            everything = self.take()
            if thawed:
                gc.freeze()
            return everything
        self.unused = 0
        if self.known is not None:
            young = _young()  # first: a collection may make them old at any time
            return young + _alive(self.known) + _alive(self.frozen)
        if _GENERATIONAL:
            self.known = []  # from here on, collections add to it
        everything = objects_of_types(_kinds())
        if self.known is not None:
            self.known += map(weakref.ref, everything)
        return everything + _alive(self.frozen)


def _alive(references: list[weakref.ref[TrackedArray]]) -> list[TrackedArray]:
    return [array for reference in references if (array := reference()) is not None]


def _young() -> list[TrackedArray]:
    """Return the tracked arrays in generations 0 and 1."""
    return objects_of_types(_kinds(), (0, 1))


def _kinds() -> set[type]:
    """Return `TrackedArray` and all classes derived from it, except `Pool`."""
    kinds: set[type] = {TrackedArray}
    pending = [TrackedArray]
    while pending:
        subclasses = pending.pop().__subclasses__()
        kinds.update(subclasses)
        pending += subclasses
    return kinds - {Pool}


_live: _LiveArrays | None = None


def tracked_arrays() -> list[TrackedArray]:
    """Return all live tracked arrays; some more than once."""
    global _live
    if _live is None:
        _live = _LiveArrays()
    return _live.take()
