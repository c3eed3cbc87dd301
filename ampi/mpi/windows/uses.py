"""Uses of a window: the tapes on which other ranks have used it in epochs in which this rank makes no call.

A rank that has not communicated while a tape recorded does not take part in the tape's sweep, so that gradients of
local work wait for no other rank.  If others have used one of its windows on their tapes, it has to take part: they
*announce* this, once for a tape, with the number of the tape.  Ranks that open the same tapes in the same order number
them equally.  Tapes that only some ranks have are not counted once they have been swept alone; and the numbers of a
tape on all ranks are exchanged in its sweep, so ranks that have counted differently know it from then on.

A tape on which no rank uses the window is also swept alone, by each rank at its own time: the next one then has the
same number on a rank that is ahead.  So announcements also contain the ordinals of the tape, among all tapes and among
those opened at the same line.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .cells import Cells

SLOTS = 16
"""Number of tapes that can wait for their sweeps at a time, if some ranks take part in no communication on them."""
CELLS = 2 * SLOTS
"""Number of cells of a rank for each other one."""
_SWEEPS, _SITE = 1 << 8, 1 << 31  # above all announced numbers of sweeps, and all hashes of sites


class Counted(NamedTuple):
    """The numbers of a tape on this rank.

    Attributes
    ----------
    number : int
        Its ordinal, not counting tapes that this rank had swept alone before.
    opened : int
        Its ordinal.
    site : int
        Hash of the line that opened it; 0 if it is older than the window.
    here : int
        Its ordinal among the tapes opened at that line.
    """

    number: int
    opened: int
    site: int
    here: int


class _Common(NamedTuple):
    """A tape that all ranks have swept: its numbers on this rank, and on all ranks."""

    mine: Counted
    numbers: np.ndarray
    opened: np.ndarray
    sites: np.ndarray
    here: np.ndarray


class Uses:
    """Announcements of a window's uses, in cells of every rank: for each origin its latest ones.

    Attributes
    ----------
    last : int
        Number of the last tape that this rank has opened while the window existed.
    opened : int
        Number of tapes that it has opened meanwhile.
    common : list
        Tapes that all ranks have swept and numbered differently than expected, in the order of their numbers.
    sites : dict
        The number of tapes that this rank has opened at each line.
    """

    __slots__ = ("_cells", "_first", "_size", "common", "last", "opened", "sites")

    def __init__(self, cells: Cells, first: int, size: int) -> None:
        self._cells = cells
        self._first = first
        self._size = size
        self.last = self.opened = 0
        none = np.zeros(size, np.int64)
        self.common = [_Common(Counted(0, 0, 0, 0), none, none, none, none)]
        self.sites: dict[int, int] = {}

    def begin(self, site: int) -> Counted:
        """Count a tape that starts to trace the window."""
        self.last += 1
        self.opened += 1
        self.sites[site] = self.sites.get(site, 0) + 1
        return Counted(self.last, self.opened, site, self.sites[site])

    def announce(self, tape: Counted, sweeps: int) -> None:
        """Announce to all ranks that the window is used on a tape that has been swept ``sweeps`` times before."""
        cell = self._first + CELLS * self._cells.rank + 2 * (tape.number % SLOTS)
        for rank in range(self._size):
            self._cells.write(rank, cell + 1, _SITE * tape.opened + tape.here)
            self._cells.write(rank, cell, _SITE * (_SWEEPS * tape.number + min(sweeps, _SWEEPS - 1)) + tape.site)

    def by(self, tape: Counted, sweeps: int) -> np.ndarray:
        """Return which ranks have announced that they used the window on this tape before its sweep number ``sweeps``.

        Ranks may be ahead, and this tape may exist on this rank only, with the number of their next one.  That one was
        opened at another line of the program, where this rank has also been, or its ordinal is a different one.
        """
        known = self._known(tape.number)
        numbers = known.numbers + (tape.number - known.mine.number)
        cells = self._cells.own[self._first :].reshape(self._size, SLOTS, 2)[np.arange(self._size), numbers % SLOTS]
        there, sites = np.divmod(cells[:, 0], _SITE)
        there, after = np.divmod(there, _SWEEPS)
        opened, here = np.divmod(cells[:, 1], _SITE)
        is_next = opened == known.opened + (tape.opened - known.mine.opened)
        is_next_there = here == tape.here + self._ahead(tape)
        elsewhere = np.array([site != 0 and site in self.sites for site in sites.tolist()])
        same = np.where(sites == tape.site, is_next_there, is_next & ~elsewhere)
        return (there == numbers) & (numbers > 0) & (after <= sweeps) & same

    def alone(self, tape: Counted) -> None:
        """Withdraw the number of a tape that this rank has swept alone: others do not count it."""
        if tape.number == self.last:
            self.last -= 1

    def agree(self, tape: Counted, everywhere: np.ndarray, announced: np.ndarray | None) -> bool:
        """Return whether a tape with these numbers, a row for each rank, can be the one that all ranks sweep.

        It cannot if the numbers of an earlier tape are higher, or if this rank takes part only because others have
        announced the window's use (``announced``: which ones), and they did so on tapes with other numbers.
        """
        numbers, opened, sites, here = everywhere.T
        known = self._known(tape.number)
        expected = known.numbers + (tape.number - known.mine.number)
        k = bisect.bisect_left(self.common, tape.number, key=_number)
        misled = announced is not None and not np.any(announced & (expected == numbers))
        above = k == 0 or np.all(self.common[k - 1].numbers < numbers)
        below = k == len(self.common) or np.all(numbers <= self.common[k].numbers)
        if misled or not (above and below):
            return False
        as_expected = (expected == numbers) & (opened == known.opened + (tape.opened - known.mine.opened))
        as_expected &= (sites != tape.site) | (here == tape.here + self._ahead(tape))
        if not np.all(as_expected):
            self.common.insert(k, _Common(tape, numbers, opened, sites, here))
            del self.common[: -4 * SLOTS]
        return True

    def _known(self, number: int) -> _Common:
        """Return the last common tape before this number."""
        return self.common[max(bisect.bisect_right(self.common, number, key=_number) - 1, 0)]

    def _ahead(self, tape: Counted) -> np.ndarray:
        """Return how many more tapes than this rank the others are known to have opened at the line of this one."""
        found = np.zeros(self._size, np.int64)
        for common in self.common[: bisect.bisect_right(self.common, tape.number, key=_number)]:
            there = common.sites == tape.site
            if common.mine.site == tape.site:
                found[there] = (common.here - common.mine.here)[there]
        return found


def _number(common: _Common) -> int:
    return common.mine.number
