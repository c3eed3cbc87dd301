"""Checkpointing schedules, which determine the states to be saved and the steps to run again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from checkpoint_schedules import (
    Copy,
    DiskRevolve,
    EndForward,
    EndReverse,
    Forward,
    HRevolve,
    MixedCheckpointSchedule,
    Move,
    MultistageCheckpointSchedule,
    NoneCheckpointSchedule,
    Reverse,
    Revolve,
    StorageType,
    TwoLevelCheckpointSchedule,
)
from checkpoint_schedules.mixed import mixed_steps_tabulation

from ..errors import TapeError
from ..tape import where_called

RAM, DISK, WORK, NONE = StorageType.RAM, StorageType.DISK, StorageType.WORK, StorageType.NONE


# The package computes tables with compiled code, which it would otherwise compile anew in every process.
mixed_steps_tabulation.enable_caching()


def offline(steps: int, checkpoints: int) -> Iterator[Any]:
    """Return the actions that run as few steps as possible, with a number of units of memory (Maddison 2024)."""
    units = min(checkpoints, max(1, steps - 1))
    return iter(_known(steps, units)) if steps <= MOST_KNOWN else iter(_made(steps, units))


MOST_KNOWN = 1000
"""Number of steps up to which a schedule is cached; the package takes 30 microseconds for each action."""


def _made(steps: int, units: int) -> Iterable[Any]:
    return MixedCheckpointSchedule(steps, units, storage=RAM)


@functools.lru_cache(16)
def _known(steps: int, units: int) -> tuple[Any, ...]:
    found = []
    for action in _made(steps, units):
        found.append(action)
        if isinstance(action, EndReverse):
            break
    return tuple(found)


class Online:
    """Schedule for a number of steps that is not known before the last one; `finish` sets it.

    States are stored at equal distances, which double when there is no room for another one, so that at least half of
    the units are in use.  Then each part between two states is reversed by the best schedule for the free units, the
    last part first.

    At the end the distance d is the smallest power of two with which N steps have m = ⌈N/d⌉ ≤ K states: d < 2N/K. The
    k-th part from the front, of d steps at most, is reversed with K - k + 1 units, by a schedule that runs no more
    steps than Revolve's p(d, c) = r d - C(c + r, c + 1), with the least r for which C(c + r, c) ≥ d (A. Griewank and
    A. Walther, Algorithm 799, ACM Transactions on Mathematical Software 26, 2000), and each step runs one more
    time to be recorded.  With the first run that is at most 2N + p(d, K - m + 1) + … + p(d, K) steps.

    M. Stumm and A. Walther, New algorithms for optimal online checkpointing, SIAM Journal on Scientific Computing 32
    (2010), describe the optimal one.  This one is simpler: for 1000 steps with 5, 10 and 40 units each step runs 9.0,
    4.5 and 2.3 times; with a known number of steps 6.8, 3.9 and 2.1 times are optimal.
    """

    def __init__(self, checkpoints: int) -> None:
        self.checkpoints = checkpoints
        self.steps: int | None = None

    def finish(self, steps: int) -> None:
        """Set the number of steps."""
        self.steps = steps

    def __iter__(self) -> Iterator[Any]:
        kept: list[int] = []
        distance, n = 1, 0
        while self.steps is None:
            if n % distance == 0 and len(kept) == self.checkpoints:
                distance *= 2
                for dropped in [m for m in kept if m % distance]:
                    yield Move(dropped, RAM, NONE)
                    kept.remove(dropped)
                while n % distance == 0 and len(kept) == self.checkpoints:  # if the only unit is in use
                    distance *= 2
            stores = n % distance == 0
            yield Forward(n, n + 1, stores, False, RAM if stores else WORK)
            if self.steps is None or self.steps > n:
                n += 1
                kept += [n - 1] * stores
        yield EndForward()
        end = self.steps
        while kept:
            begin = kept.pop()
            if begin >= end:
                yield Move(begin, RAM, NONE)
                continue
            yield Move(begin, RAM, WORK)
            for action in offline(end - begin, self.checkpoints - len(kept)):
                if not isinstance(action, (EndForward, EndReverse)):
                    yield _later(action, begin)
            end = begin
        yield EndReverse()


class Commit:
    """An action of `TwoLevel`: the adjoint of the state before step ``n`` is known."""

    def __init__(self, n: int) -> None:
        self.n = n


class TwoLevel:
    """Schedule with states on disk at equal distances.

    Each part between two of them is reversed by the best schedule in memory, the last part first (similar to G. Aupy,
    J. Herrmann, P. Hovland and Y. Robert, Optimal multistage algorithm for adjoint computation, SIAM Journal on
    Scientific Computing 38, 2016).

    Parameters
    ----------
    steps : int or None
        Number of steps; None: `finish` sets it.
    checkpoints : int
        Units in memory.
    begin : int
        Where to resume; earlier steps have run, with a state on disk at each distance.
    end : int, optional
        The step before which adjoints are known: those of later steps have been computed.
    """

    def __init__(self, steps: int | None, checkpoints: int, begin: int = 0, end: int | None = None) -> None:
        self.checkpoints = checkpoints
        self.distance = distance(checkpoints)
        self.steps = steps
        self.begin = begin
        self.end = end

    def finish(self, steps: int) -> None:
        """Set the number of steps."""
        self.steps = steps

    def __iter__(self) -> Iterator[Any]:
        n = self.begin
        while self.steps is None or n < self.steps:
            stores = n % self.distance == 0
            yield Forward(n, n + 1, stores, False, DISK if stores else WORK)
            if self.steps is None or self.steps > n:
                n += 1
        yield EndForward()
        end = self.steps if self.end is None else self.end
        while end:
            begin = (end - 1) // self.distance * self.distance
            yield Move(begin, DISK, WORK)
            for action in offline(end - begin, self.checkpoints):
                if not isinstance(action, (EndForward, EndReverse)):
                    yield _later(action, begin)
            yield Commit(begin)
            end = begin
        yield EndReverse()


def distance(checkpoints: int) -> int:
    """Return the number of steps between states on disk: with states in memory, each step runs about twice more."""
    return max(1, checkpoints * (checkpoints + 1) // 2)


def _later(action: Any, steps: int) -> Any:
    """Return the same action a number of steps later."""
    if isinstance(action, Forward):
        return Forward(action.n0 + steps, action.n1 + steps, *action.args[2:])
    if isinstance(action, Reverse):
        return Reverse(action.n1 + steps, action.n0 + steps, action.clear_adj_deps)
    assert isinstance(action, (Copy, Move))
    return type(action)(action.n + steps, *action.args[1:])


def _states_on_disk(steps: int, checkpoints: int) -> int:
    return -(-steps // distance(checkpoints))


Maker = Callable[[int, int], Iterable[Any]]
IN_MEMORY: dict[str, Maker] = {
    "MixedCheckpoint": offline,
    "Revolve": Revolve,
    "Multistage": lambda n, k: MultistageCheckpointSchedule(n, k, 0),
}
"""Schedules of the package by name, as functions of the numbers of steps and of states in memory."""
ON_DISK: dict[str, Maker] = {
    "HRevolve": lambda n, k: HRevolve(n, k, _states_on_disk(n, k)) if n > 1 else offline(n, k),
    "DiskRevolve": DiskRevolve,
    "Multistage": lambda n, k: MultistageCheckpointSchedule(n, k, _states_on_disk(n, k)),
    "TwoLevel": lambda n, k: TwoLevelCheckpointSchedule(distance(k), k, binomial_storage=RAM),
}
"""Schedules of the package that also store states on disk."""


def of_package(made: Iterable[Any], steps: int) -> Iterator[Any]:
    """Iterate over the actions of the package's schedule until all steps are reversed; it may be online or offline."""
    if isinstance(made, NoneCheckpointSchedule):
        raise TapeError(f"{where_called()}: ampi.timeloop: NoneCheckpointSchedule stores nothing for the sweep")
    finalize, is_known = getattr(made, "finalize", None), getattr(made, "max_n", steps) is not None
    for action in made:
        if is_known or not isinstance(action, Forward):
            yield action
        else:
            end = min(int(action.n1), steps)
            yield Forward(action.n0, end, *action.args[2:])
            if end == steps and finalize is not None:
                finalize(steps)
                is_known = True
        if isinstance(action, EndReverse):
            return
