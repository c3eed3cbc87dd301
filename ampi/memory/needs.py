"""The bytes of a storage that a tape still needs.

A few needs are compared one by one.  More of them are indexed (`filed_needs`, imported then), so that an overwrite does
not search all needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .extents import Extent

if TYPE_CHECKING:
    from .filed_needs import Files

FEW = 16
"""The largest number of needs that are compared one by one."""


class Needs(dict[tuple, Extent]):
    """The needs of a tape for a storage: extents of which all bytes are still needed, by pattern.

    `meets` and `drop` move the extents entered since their last call to the index, if there is one.
    """

    __slots__ = ("_filed", "_files", "_keyed", "_saved")

    def __init__(self) -> None:
        self._files: Files | None = None
        self._filed = 0  # the number of needs that are in the index, the first ones entered
        self._saved: set[tuple] | None = None  # patterns that have been dropped since the last need was entered
        self._keyed: dict[tuple, int] | None = None  # bytes of single elements that were saved since, by pattern

    def enter(self, extent: Extent) -> Extent:
        """Note that the bytes of an extent are needed; return the extent that represents them."""
        if self._saved is not None:
            self._saved = None
        if self._keyed is not None:
            self._keyed = None
        return self.setdefault(extent.pattern, extent)

    def meets(self, extent: Extent) -> bool:
        """Return whether a byte of an extent is needed and has not been saved since."""
        if extent.pattern in self:
            return True
        if self._saved is not None and extent.pattern in self._saved:  # a part of a need that is written repeatedly
            return False
        if self._files is None:
            if len(self) <= FEW:
                for need in self.values():
                    if extent.overlaps(need):
                        return True
                return False
            self._files = _new_files()
        self._file()
        return self._files.meets(extent)

    def drop(self, extent: Extent) -> None:
        """Note that the bytes of an extent, some of which were needed, have been saved."""
        if len(self) == 1 and self._files is None:
            only = self.pop(extent.pattern, None)
            if only is not None:
                only.listed = None
                return
        for need in self.values():
            need.listed = None  # to be entered when it is needed again
        if self._files is None and len(self) > FEW:
            self._files = _new_files()
        if self._files is None:
            for covered in [pattern for pattern, need in self.items() if extent.covers(need)]:
                del self[covered]
            if self:
                self._note_saved(extent)
            return
        self._file()
        self._note_saved(extent)
        self.clear()
        self._filed = 0
        self._files.drop(extent)
        if self._files.is_empty():
            self._files = None

    def _note_saved(self, extent: Extent) -> None:
        if self._saved is None:
            self._saved = set()
        self._saved.add(extent.pattern)

    def saves_all(self, extent: Extent, part: int, whole: int) -> bool:
        """Count ``part`` bytes of single elements that are saved; return whether saving the ``whole`` costs no more."""
        if self._keyed is None:
            self._keyed = {}
        if extent.pattern not in self._keyed:
            self._keyed[extent.pattern] = part
            return False
        self._keyed[extent.pattern] += part
        return self._keyed[extent.pattern] >= whole

    def meets_range(self, low: int, high: int) -> bool:
        """Return whether a contiguous need contains one of these bytes."""
        if self._files is None:
            self._files = _new_files()
        self._file()
        return self._files.solid.meets(low, high)

    def cut(self, extent: Extent) -> None:
        """`drop` for bytes that may be a part of a need."""
        if self._files is None:
            self._files = _new_files()
        self.drop(extent)

    def is_empty(self) -> bool:
        """Return whether no bytes are needed."""
        return not self and self._files is None

    def _file(self) -> None:
        new = len(self) - self._filed
        if new:
            self._filed += new
            for need in reversed(self.values()):
                self._files.add(need)  # type: ignore[union-attr]
                new -= 1
                if not new:
                    break


def _new_files() -> Files:
    from .filed_needs import Files

    return Files()
