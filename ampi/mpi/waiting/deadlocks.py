"""Deadlock detection: the `board` shows whether the message that a rank waits for in a sweep can still come.

It cannot if a rank that has to send it has ended, or is in a collective operation of the program that needs this
rank; or if all ranks that this rank waits for, directly or not, only wait. The last messages may still be in transit,
so this state must persist for some time (longer if large messages may be in transit), in which each of these ranks
checks repeatedly. If one of them computes, or its state is unknown, the wait continues; a line on stderr says so.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from mpi4py import MPI as mpi

from ...errors import CommunicationError
from . import board as boards
from .sides import Side

Whom = tuple["Side | None", "int | None"]
"""A rank that has to act: a rank of a communicator, any of its ranks (None), or any rank of the world (two None)."""

NOTICE = 60.0
"""Seconds after which a rank reports that it waits; then after twice that time, and so on."""

SUSPICIOUS = 5.0
"""Seconds after which it first reports this if it waits for a rank that records on no tape."""

QUIET = 3.0
"""Seconds without a change after which a deadlock is reported."""

SPEED = 1e8
"""Assumed bytes per second of messages in transit."""

LOOKS = 50
"""Number of checks of each rank in that time."""

EVERY = 0.25
"""Seconds between two checks."""

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound to ours


class Judge:
    """The diagnosis of one wait.

    Parameters
    ----------
    describe : callable
        Describes what is waited for.
    whom : sequence
    """

    __slots__ = ("_at", "_before", "_ended", "_met", "_moved", "_needed", "_ranks", "_said", "board", "describe")

    def __init__(self, describe: Callable[[], str], whom: Sequence[Whom]) -> None:
        self.board = boards.board
        self.describe = describe
        world = range(_WORLD.Get_size())
        self._ranks = {
            rank for reverse, partner in whom for rank in (world if reverse is None else reverse.in_world(partner))
        }
        self._needed = {
            rank
            for reverse, partner in whom
            if reverse is not None and partner is not None
            for rank in reverse.in_world(partner)
        }
        self._at = self._said = 0.0
        self._moved = -1
        self._ended: dict[int, float] = {}  # when this was first seen
        self._met: dict[int, tuple[int, float]] = {}  # the collective operation, and when it was first seen
        self._before: tuple[float, dict, dict] | None = (
            None  # since when nothing can come, the ranks involved, their checks then
        )
        self.board.waits(self._ranks)

    def consider(self, waited: float, moved: int) -> None:
        """Check the board, after ``waited`` seconds and ``moved`` steps of other work.

        Raises
        ------
        CommunicationError
            What is waited for cannot come.
        """
        self.board.looks()
        if waited < self._at:
            return
        self._at = waited + EVERY
        if moved != self._moved:
            self._moved = moved
            self.board.moves()
        why = self._why_never(time.monotonic())
        if why:
            raise CommunicationError(
                f"rank {_WORLD.Get_rank()} of the world: gave up waiting for {self.describe()}, because {why}; open "
                "tapes, and ask for the same gradients (or call ampi.grad, or the pullback), on all ranks in the same "
                "order"
            )
        if waited > max(NOTICE, 2 * self._said):
            self._said = waited
            self._say(waited)
        elif waited > SUSPICIOUS and not self._said and self._without_tape():
            self._said = min(waited, NOTICE / 2)
            self._say(waited)

    def _why_never(self, now: float) -> str:
        states = {rank: self.board.state(rank) for rank in self._ranks}
        for rank, state in states.items():
            if state == boards.DIED:
                return f"the process of rank {rank} of the world does not exist any more"
        for rank in self._needed:
            if states[rank] == boards.ENDED and now - self._ended.setdefault(rank, now) > QUIET:
                return f"rank {rank} of the world has ended its program without its part of this sweep"
            if states[rank] == boards.MEETS and self._stays(rank, now):
                return f"rank {rank} of the world {self._does(rank, boards.MEETS)}"
        involved = self.board.involved(states)
        if involved is None:
            self._before = None
            return ""
        looks = self.board.looked(involved)
        if self._before is None or self._before[1] != involved:
            self._before = now, involved, looks
            return ""
        since, _, before = self._before
        if now - since < QUIET + self.board.most_bytes(involved) / SPEED:
            return ""
        if any(looks.get(rank, 0) - n < LOOKS for rank, n in before.items()):
            return ""
        others = [
            f"rank {rank} {self._does(rank, state)}"
            for rank, (state, _) in sorted(involved.items())
            if rank != self.board.rank
        ]
        return "no rank can do anything but wait" + (f" ({', '.join(others[:_MOST])})" if others else "")

    def _stays(self, rank: int, now: float) -> bool:
        """Return whether a rank has been in one collective operation for so long that no message is still under way."""
        number = self.board.meeting_of(rank)
        before, since = self._met.setdefault(rank, (number, now))
        if before != number:
            self._met[rank] = number, now
        return before == number and now - since > QUIET + self.board.most_bytes([rank, self.board.rank]) / SPEED

    def _does(self, rank: int, state: int | str) -> str:
        why = self.board.without_tape(rank) if state == boards.MEETS else ""
        return _does(state) + (f", and {why}" if why else "")

    def _without_tape(self) -> dict[int, str]:
        """Return the ranks that are in no sweep and record on no tape, with the reason."""
        found = {rank: self.board.without_tape(rank) for rank in sorted(self._ranks)}
        return {rank: why for rank, why in found.items() if why}

    def _say(self, waited: float) -> None:
        """Print a line, on each rank that waits for one that does not wait, and on one of those that wait for many."""
        without = self._without_tape()
        if without:
            if len(self._ranks) > 1 and not self.board.first_to_wait():
                return
            found = [f"rank {rank} of the world {why}" for rank, why in without.items()]
            about = (
                f"; {', '.join(found[:_MOST])}: if it does not just compute, open a tape and ask for its gradient (or "
                "call ampi.grad, or the pullback) on all ranks alike"
            )
        elif len(self._ranks) == 1:
            (rank,) = self._ranks
            state = self.board.state(rank)
            if state == boards.WAITS:
                return  # that rank reports for whom it waits
            compiles = state == boards.RUNS and self.board.is_compiling(rank)
            about = f"; rank {rank} of the world {'compiles a kernel' if compiles else _does(state)}"
        else:
            if not self.board.first_to_wait():
                return
            running = [rank for rank in sorted(self._ranks) if self.board.state(rank) == boards.RUNS]
            about = f"; in no sweep, or computing: ranks {', '.join(map(str, running[:_MOST]))}" if running else ""
        sys.stderr.write(
            f"ampi: rank {_WORLD.Get_rank()} of the world has waited for {waited:.0f} s in a sweep for "
            f"{self.describe()}{about} (with AMPI_TIMEOUT=seconds it ends with an error after so long)\n"
        )
        sys.stderr.flush()


_MOST = 8  # ranks named in a message


def _does(state: int | str) -> str:
    return {
        boards.RUNS: "computes, or is in no sweep",
        boards.WAITS: "waits in a sweep as well",
        boards.ENDED: "has ended its program",
        boards.DIED: "has ended its program",
        boards.MEETS: "is in a collective operation outside of this sweep",
    }.get(state, "is not seen from here")
