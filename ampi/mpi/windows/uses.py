"""Uses of a window: on which tapes other ranks have used it, in epochs in which this rank makes no call.

A rank that has said nothing while a tape recorded does not take part in the tape's sweep, so that gradients of local
work wait for nobody.  If others have used one of its windows on their tapes, it has to: they *announce* that, once for
a tape, with the number that the tape has at their window.  Ranks that open the same tapes in the same order count them
alike.  Tapes of some ranks only are not counted once they have been swept alone; and what a tape has been counted as on
all ranks is exchanged in its sweep, so that ranks which have counted differently know it from there on.

A tape on which nobody uses the window is swept alone as well, by each rank in its time: the next one then has the same
number on a rank that is ahead.  So it is also told the how manieth tape has been opened, there and in all.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .cells import Cells

SLOTS = 16
"""Tapes that can wait for their sweeps at a time, if there are ranks that have no part in any communication on them."""
CELLS = 2 * SLOTS
"""Of every rank, for each other one."""
_SWEEPS, _SITE = 1 << 8, 1 << 31  # more than what is told of sweeps, and than the number of any site


class Counted(NamedTuple):
    """A tape as this rank counts it.

    Attributes
    ----------
    number : int
        Its own, without those that this rank has swept alone before it was opened.
    opened : int
        The how manieth it is.
    site : int
        Where in the program it has been opened; 0 if that was before there was the window.
    here : int
        The how manieth it is there.
    """

    number: int
    opened: int
    site: int
    here: int


class _Common(NamedTuple):
    """A tape that all ranks have swept: what it is here, and on all ranks."""

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
        Number of the last tape that this rank has opened beside the window.
    opened : int
        How many these were.
    common : list
        Tapes that all ranks have swept, in the order of their numbers, as far as they tell how the ranks count.
    sites : dict
        Where in the program this rank has opened tapes, and how many.
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
        """A tape begins to see the window."""
        self.last += 1
        self.opened += 1
        self.sites[site] = self.sites.get(site, 0) + 1
        return Counted(self.last, self.opened, site, self.sites[site])

    def announce(self, tape: Counted, sweeps: int) -> None:
        """Let every rank know that the window is used on a tape, which has been swept so often before."""
        cell = self._first + CELLS * self._cells.rank + 2 * (tape.number % SLOTS)
        for rank in range(self._size):
            self._cells.write(rank, cell + 1, _SITE * tape.opened + tape.here)
            self._cells.write(rank, cell, _SITE * (_SWEEPS * tape.number + min(sweeps, _SWEEPS - 1)) + tape.site)

    def by(self, tape: Counted, sweeps: int) -> np.ndarray:
        """Which ranks have announced that they used the window on this tape before its sweep number ``sweeps``.

        Ranks may be ahead, and this tape may be one of this rank only that stands where their next one will.  That has
        been opened at another place of the program, where this rank has also been, or it is not the same in the row of
        those that have been opened.
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
        """A tape has been swept by this rank alone: others do not count it."""
        if tape.number == self.last:
            self.last -= 1

    def agree(self, tape: Counted, everywhere: np.ndarray, told: np.ndarray | None) -> bool:
        """All ranks of the window sweep a tape, which is counted so on them, a row for each: whether that can be.

        It cannot if the numbers of an earlier tape are higher, or if this rank takes part only because others have
        announced the window's use (``told``: which ones), and they did so on tapes with other numbers.
        """
        numbers, opened, sites, here = everywhere.T
        known = self._known(tape.number)
        expected = known.numbers + (tape.number - known.mine.number)
        k = bisect.bisect_left(self.common, tape.number, key=_number)
        misled = told is not None and not np.any(told & (expected == numbers))
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
        """The last tape before one with this number that tells how the ranks count."""
        return self.common[max(bisect.bisect_right(self.common, number, key=_number) - 1, 0)]

    def _ahead(self, tape: Counted) -> np.ndarray:
        """How many more tapes than this rank the others have opened where this one was, as far as is known."""
        found = np.zeros(self._size, np.int64)
        for common in self.common[: bisect.bisect_right(self.common, tape.number, key=_number)]:
            there = common.sites == tape.site
            if common.mine.site == tape.site:
                found[there] = (common.here - common.mine.here)[there]
        return found


def _number(common: _Common) -> int:
    return common.mine.number
