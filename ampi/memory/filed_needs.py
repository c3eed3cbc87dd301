"""An index of the needs of one storage, for storages with many of them.

Contiguous needs become disjoint ranges of bytes.  Those with gaps are indexed by their pitch (the stride over a gap),
by their offset within it, and by address: each column of an array begins at another offset within a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sortedcontainers import SortedDict

from .extents import Extent


class Files:
    """An index of many needs of one storage."""

    __slots__ = ("combs", "solid")

    def __init__(self) -> None:
        self.solid = Ranges()
        self.combs: dict[int, Comb] = {}

    def add(self, need: Extent) -> None:
        """Add a need."""
        if need.low == need.high:
            return
        if need.dense:
            self.solid.add(need.low, need.high)
            return
        teeth = Teeth(need)
        comb = self.combs.get(teeth.pitch)
        if comb is None:
            comb = self.combs[teeth.pitch] = Comb(teeth.pitch)
        comb.add(need, teeth)

    def meets(self, extent: Extent) -> bool:
        """Return whether a byte of an extent is needed."""
        if extent.low == extent.high:
            return False
        teeth = None if extent.dense else Teeth(extent)
        if self.solid.meets(extent.low, extent.high) and (teeth is None or self._hits(extent, teeth)):
            return True
        for comb in self.combs.values():
            for need in comb.near(extent, teeth):
                if extent.overlaps(need):
                    return True
        return False

    def _hits(self, extent: Extent, teeth: Teeth) -> bool:
        """Return whether an extent with gaps has bytes in one of the ranges."""
        for low, high in self.solid.between(extent.low, extent.high):
            if teeth.may_touch(low, high) and extent.overlaps(Extent.of_range(low, high)):
                return True
        return False

    def drop(self, extent: Extent) -> None:
        """Remove the bytes of an extent; of one with gaps, only the need that has exactly these bytes."""
        if not extent.dense:
            teeth = Teeth(extent)
            if teeth.pitch in self.combs:
                self._discard(self.combs[teeth.pitch], extent, teeth)
            return
        self.solid.remove(extent.low, extent.high)
        for pitch, comb in list(self.combs.items()):
            if pitch < extent.high - extent.low:  # extents with gaps are longer than their pitch
                for need in [need for need in comb.near(extent, None) if extent.covers(need)]:
                    self._discard(comb, need, Teeth(need))

    def _discard(self, comb: Comb, need: Extent, teeth: Teeth) -> None:
        comb.discard(need, teeth)
        if not comb.columns:
            del self.combs[comb.pitch]

    def is_empty(self) -> bool:
        """Return whether there are no needs."""
        return not self.combs and self.solid.is_empty()


class Ranges:
    """A set of integers, as disjoint ranges with gaps between them."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: Any = SortedDict()  # by first element

    def add(self, low: int, high: int) -> None:
        """Add the integers from ``low`` up to ``high``."""
        ends = self._ends
        k = ends.bisect_right(low) - 1
        if k >= 0:
            start, end = ends.peekitem(k)
            if end >= high:
                return
            if end >= low:
                low = start
        for start in list(ends.irange(low, high)):
            high = max(high, ends.pop(start))
        ends[low] = high

    def remove(self, low: int, high: int) -> None:
        """Remove the integers from ``low`` up to ``high``."""
        ends = self._ends
        for start, end in list(self.between(low, high)):
            del ends[start]
            if start < low:
                ends[start] = low
            if end > high:
                ends[high] = end

    def meets(self, low: int, high: int) -> bool:
        """Return whether one of the integers from ``low`` up to ``high`` is in the set."""
        k = self._ends.bisect_left(high) - 1
        return k >= 0 and self._ends.peekitem(k)[1] > low

    def between(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Iterate over the ranges that contain some of the integers from ``low`` up to ``high``."""
        ends = self._ends
        k = ends.bisect_right(low) - 1
        if k >= 0:
            start, end = ends.peekitem(k)
            if end > low:
                yield start, end
        for start in ends.irange(low, high, (False, False)):
            yield start, ends[start]

    def is_empty(self) -> bool:
        """Return whether the set is empty."""
        return not self._ends


class Teeth:
    """A pattern with gaps: all its bytes are among the ``width`` bytes at ``phase`` in each ``pitch`` of addresses.

    An extent without such a pattern has the pitch 1.
    """

    __slots__ = ("phase", "pitch", "width")

    def __init__(self, extent: Extent) -> None:
        _, shape, strides, itemsize = extent.pattern
        width, pitch = itemsize, 1
        steps = sorted((abs(stride), n) for stride, n in zip(strides, shape) if n > 1)
        for stride, n in steps:
            if stride > width:
                pitch = stride
                break
            width += stride * (n - 1)
        if any(stride % pitch for stride, _ in steps if stride >= pitch):
            pitch = 1
        self.pitch = pitch
        self.phase = extent.low % pitch
        self.width = min(width, pitch)

    def may_touch(self, low: int, high: int) -> bool:
        """Return whether a range of addresses overlaps a tooth of the comb, continued in both directions."""
        after = (low - self.phase) % self.pitch
        return after < self.width or after + high - low > self.pitch


class Comb:
    """Needs with gaps that have one pitch."""

    __slots__ = ("_phases", "columns", "pitch")

    def __init__(self, pitch: int) -> None:
        self.pitch = pitch
        self.columns = Spread()  # by phase
        self._phases = Ranges()  # where teeth have been

    def add(self, need: Extent, teeth: Teeth) -> None:
        """Add a need."""
        self._phases.add(teeth.phase, teeth.phase + teeth.width)
        column = self.columns.at(teeth.phase, teeth.width, Spread)
        column.at(need.low, need.high - need.low, dict)[need.pattern] = need

    def discard(self, need: Extent, teeth: Teeth) -> None:
        """Remove a need, if it is present."""
        column = self.columns.get(teeth.phase)
        needs = None if column is None else column.get(need.low)
        if needs is not None and needs.pop(need.pattern, None) is not None and not needs:
            del column[need.low]
            if not column:
                del self.columns[teeth.phase]

    def near(self, extent: Extent, teeth: Teeth | None) -> Iterator[Extent]:
        """Iterate over the needs that an extent may overlap."""
        phase, width = extent.low, extent.high - extent.low
        if teeth is not None:
            phase, width = (teeth.phase, teeth.width) if teeth.pitch % self.pitch == 0 else (0, self.pitch)
        if width >= self.pitch:
            windows = [(0, self.pitch)]
        else:
            phase %= self.pitch
            windows = [(phase, phase + width), (phase - self.pitch, phase + width - self.pitch)]
            windows.append((phase + self.pitch, phase + width + self.pitch))  # teeth reach into the next pitch
        for low, high in windows:
            if self._phases.meets(low, high):
                for column in self.columns.near(low, high):
                    for needs in column.near(extent.low, extent.high):
                        yield from needs.values()


class Spread(SortedDict):
    """Values of ranges, sorted by where the ranges begin."""

    def at(self, low: int, length: int, make: Any) -> Any:
        """Return the value of ranges that begin at ``low``, one of which has this length; make it if there is none."""
        self.longest = max(getattr(self, "longest", 0), length)
        found = self.get(low)
        if found is None:
            found = self[low] = make()
        return found

    def near(self, low: int, high: int) -> Iterator[Any]:
        """Iterate over the values with a range that may meet this one."""
        for start in self.irange(low - self.longest, high, (False, False)):
            yield self[start]
