"""Uses of a window: on which tapes other ranks have used it, in epochs in which this rank makes no call.

A rank that has said nothing while a tape recorded does not take part in the tape's sweep, so that gradients of local
work wait for nobody.  If others have used one of its windows on their tapes, it has to: they *announce* that, once for
a tape, with the number that the tape has at their window.  Ranks that open the same tapes in the same order count them
alike.  Tapes of some ranks only are not counted once they have been swept alone; and the numbers that a tape has on all
ranks are exchanged in its sweep, so that ranks which have counted differently know it from there on.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .rma_order import Cells

SLOTS = 16
"""Tapes that can wait for their sweeps at a time, if there are ranks that have no part in any communication on them."""
_SWEEPS, _SITE = 1 << 8, 1 << 31  # more than what is told of sweeps, and than the number of any site


class Uses:
    """Announcements of a window's uses, in cells of every rank: for each origin its latest ones.

    Attributes
    ----------
    last : int
        Number of the last tape that this rank has opened beside the window.
    common : list of tuple
        Tapes that all ranks have swept, in the order of their numbers, as far as they tell how the ranks count: the
        number here, and the numbers on all ranks.
    sites : set of int
        Where in the program this rank has opened tapes.
    """

    __slots__ = ("_cells", "_first", "_size", "common", "last", "sites")

    def __init__(self, cells: Cells, first: int, size: int) -> None:
        self._cells = cells
        self._first = first
        self._size = size
        self.last = 0
        self.common = [(0, np.zeros(size, np.int64))]
        self.sites: set[int] = set()

    def begin(self, site: int) -> int:
        """The number of a tape that begins to see the window; ``site``: of its opening, 0 if that was before."""
        self.last += 1
        if site:
            self.sites.add(site)
        return self.last

    def announce(self, number: int, site: int, sweeps: int) -> None:
        """Let every rank know that the window is used on a tape, which has been swept so often before."""
        cell = self._first + SLOTS * self._cells.rank + number % SLOTS
        for rank in range(self._size):
            self._cells.write(rank, cell, _SITE * (_SWEEPS * number + min(sweeps, _SWEEPS - 1)) + site)

    def by(self, number: int, site: int, sweeps: int) -> np.ndarray:
        """Which ranks have announced that they used the window on this tape before its sweep number ``sweeps``.

        Ranks may be ahead, and this tape one of this rank only that stands where their next one will: then that has
        been opened at another place of the program, where this rank has also been.
        """
        numbers = self.numbers(number)
        announced = self._cells.own[self._first :].reshape(self._size, SLOTS)[np.arange(self._size), numbers % SLOTS]
        there, sites = np.divmod(announced, _SITE)
        there, after = np.divmod(there, _SWEEPS)
        elsewhere = [other != site and other in self.sites for other in sites.tolist()]
        return (there == numbers) & (numbers > 0) & (after <= sweeps) & np.logical_not(elsewhere)

    def alone(self, number: int) -> None:
        """A tape has been swept by this rank alone: others do not count it."""
        if number == self.last:
            self.last -= 1

    def agree(self, number: int, numbers: np.ndarray, told: np.ndarray | None) -> bool:
        """All ranks of the window sweep a tape, which has these numbers on them: whether that can be.

        It cannot if those of an earlier tape are higher, or if this rank takes part only because others have announced
        the window's use (``told``: which ones), and they did so on tapes with other numbers.
        """
        k = bisect.bisect_left(self.common, number, key=_number)
        misled = told is not None and not np.any(told & (self.numbers(number) == numbers))
        above = k == 0 or np.all(self.common[k - 1][1] < numbers)
        below = k == len(self.common) or np.all(numbers <= self.common[k][1])
        if misled or not (above and below):
            return False
        if np.any(self.numbers(number) != numbers):
            self.common.insert(k, (number, numbers))
            del self.common[: -4 * SLOTS]
        return True

    def numbers(self, number: int) -> np.ndarray:
        """What the number of a tape is on all ranks, as far as this one knows."""
        k = bisect.bisect_right(self.common, number, key=_number) - 1
        here, everywhere = self.common[max(k, 0)]
        return everywhere + (number - here)


def _number(tape: tuple[int, np.ndarray]) -> int:
    return tape[0]
