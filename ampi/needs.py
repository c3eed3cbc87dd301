"""Which bytes of a storage a tape still needs: interval sets, so that an overwrite does not look at all needs.

A few needs are looked at one by one.  Where there are more they are filed (`filed_needs`), which is imported then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .extents import Extent

if TYPE_CHECKING:
    from .filed_needs import Files

FEW = 16
"""So many needs are looked at one by one."""


class Needs(dict[tuple, Extent]):
    """What a tape needs of a storage: the extents by pattern, for as long as all of each is needed.

    `meets` and `drop` see those which have been entered since the last call of one of them.
    """

    __slots__ = ("_filed", "_files")

    def __init__(self) -> None:
        self._files: Files | None = None
        self._filed = 0  # the first ones, in the order of entering

    def meets(self, extent: Extent) -> bool:
        """Whether a byte of an extent is needed."""
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
        """The bytes of an extent, some of which were needed, have been saved."""
        if self._files is None:
            for covered in [pattern for pattern, need in self.items() if extent.covers(need)]:
                self.pop(covered).listed = None
            return
        for need in self.values():
            need.listed = None
        self.clear()
        self._filed = 0
        self._files.drop(extent)
        if self._files.is_empty():
            self._files = None

    def meets_range(self, low: int, high: int) -> bool:
        """Whether one of some bytes is needed by something without gaps."""
        if self._files is None:
            self._files = _new_files()
        self._file()
        return self._files.solid.meets(low, high)

    def cut(self, extent: Extent) -> None:
        """`drop`, for bytes that may be a part of something that is needed."""
        if self._files is None:
            self._files = _new_files()
        self._file()
        self.drop(extent)

    def is_empty(self) -> bool:
        """Whether nothing is needed any more."""
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
