"""Progress of a time loop, as numbers and as bars on the terminal."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..base.program_lines import where_called
from ..errors import TapeError
from ..tape.replays import is_again, is_first

FORWARD, REVERSE, END = "forward", "reverse", "end"


@dataclasses.dataclass
class Figures:
    """The progress of a time loop on this rank, in numbers.

    Attributes
    ----------
    phase : str
        ``"forward"`` while the program runs the steps, ``"reverse"`` in a sweep, ``"end"`` when that is over.
    done : int
        Steps of this phase that have been executed or swept.
    total : int or None
        The number of steps of this phase; None: unknown.
    steps : int
        Steps of the loop so far.
    executed : int
        Number of executions of steps, since the loop began, or since the end of the previous sweep.
    snapshots : int
        States that have been stored, in memory and on disk.
    memory_peak : int
        The largest number of bytes of states and recorded steps in memory. Arrays that a recorded step creates, and the
        records themselves, are not counted.
    disk_peak : int
        The largest number of bytes of states on disk.
    """

    phase: str = FORWARD
    done: int = 0
    total: int | None = None
    steps: int = 0
    executed: int = 0
    snapshots: int = 0
    memory_peak: int = 0
    disk_peak: int = 0

    def begin(self, phase: str, total: int | None) -> None:
        """Begin another phase."""
        self.phase, self.done, self.total = phase, 0, total

    def __str__(self) -> str:
        each = f" ({self.executed / self.steps:.2f} times each)" if self.steps else ""
        return (
            f"ampi.timeloop: {self.steps} steps, {self.executed} executed{each}, {self.snapshots} snapshots, at most "
            f"{_spelled(self.memory_peak)} of memory and {_spelled(self.disk_peak)} of disk"
        )


def _spelled(nbytes: int) -> str:
    k = min(3, max(0, nbytes.bit_length() - 1) // 10)
    return f"{nbytes / 1024**k:.{min(k, 1)}f} {('B', 'KiB', 'MiB', 'GiB')[k]}"


class Bars:
    """Bars on the terminal: one for each phase, with the remaining time, and a line at the end."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._phase = ""

    def __call__(self, figures: Figures) -> None:
        if self._phase != figures.phase:
            self.close()
            self._phase = figures.phase
            if figures.phase == END:
                print(figures, file=sys.stderr, flush=True)
            else:
                self._bar = self._opened(figures)
        if self._bar is not None:
            self._bar.update(figures.done - self._bar.n)

    @staticmethod
    def _opened(figures: Figures) -> Any:
        from tqdm import tqdm

        text = "run" if figures.phase == FORWARD else "run again and swept"
        form = {"unit": "", "file": sys.stderr, "mininterval": 0.2, "dynamic_ncols": True}
        return tqdm(desc=f"ampi.timeloop: steps {text}", total=figures.total, **form)

    def close(self) -> None:
        """End the bar, wherever it is."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def shown_by(progress: Any, comm: Any) -> Callable[[Figures], None] | None:
    """Return the function to call with the figures after each step, for ``progress=`` of `ampi.timeloop`, or None."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise TapeError(
            f"{where_called()}: ampi.timeloop: progress is {progress!r}; it must be True, False, None (on a terminal), "
            "or a function, which is given ampi.checkpoint.progress.Figures"
        )
    if callable(progress):
        return progress
    if is_again() or progress is False or comm.rank:
        return None
    on_terminal = is_first() is None and sys.stderr is not None and sys.stderr.isatty()
    return Bars() if progress or on_terminal else None


def close(shown: Callable[[Figures], None] | None) -> None:
    """End the bar: a phase has ended, or an error ends it."""
    if isinstance(shown, Bars):
        shown.close()


def counted(actions: Iterable[Any], kinds: tuple[type, ...]) -> tuple[list[Any], int]:
    """Return the actions of a schedule as a list, and the number of steps that those of some kinds run or sweep."""
    found = list(actions)
    return found, sum(len(action) for action in found if isinstance(action, kinds))
