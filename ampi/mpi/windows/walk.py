"""Walks over one-sided communication: `tape.tangent` moves tangents through shadow windows in the order of the tape.

Operations are executed on windows on the tangents of memory, as in forward mode (`forward_windows`); in lock epochs,
and where their order matters, each has its turn (`order`), in the order that the sweep reverses.  A rank's own work on
its memory, between two marks on its tape, follows the tickets that it had seen by then, and precedes the others.  Each
rank waits only for events that were earlier in the program.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ...memory.storages import Storage
from ...tape import Push
from ..waiting.waiting import Patience
from .forward_windows import ForwardShadow, ForwardTrace
from .order import Schedule
from .precedence import Drawn
from .shadow import DONE, READY
from .window import Window

_DONE, _LAST = 0, 1  # the last ticket whose turn is over; the last one that may have its turn now


class ForwardTurns(Schedule):
    """Turns in a walk, in ascending order."""

    __slots__ = ("lasts", "waits")

    def beginning(self, order: list[Drawn], history: Any) -> list[int]:
        """Give the first ticket the first turn, as soon as this rank has reached it."""
        # A mark gives the tickets seen before it: records that touch the memory come before the tickets above the bound
        # of the next mark, and after those up to its limit.
        touching = history.touching()
        places = [history.facts[mark][0] for mark in self.places]
        *above, end = history.preceding(order, self.places)
        last = max(self.seen, end)
        self.lasts: dict[int, int] = {}  # by record, the last ticket that may have its turn after it
        self.waits: dict[int, int] = {}  # by record, the last ticket that comes before it
        following, limit_after = len(touching), self.seen
        for mark, (limit, bound), at, other in reversed(list(zip(self.places, self.places.values(), places, above))):
            before = bisect_left(touching, at)
            if mark.bound is not None:
                if before:
                    self.lasts.setdefault(touching[before - 1], last)  # of adjacent marks the last one counts
                    last = max(bound, other)
            if mark.limit is not None:
                if before < following:
                    self.waits[touching[before]] = limit_after
                following, limit_after = before, limit
        return [0, last]

    def begin(self, rank: int, ticket: int, describe: Callable[[], str]) -> None:
        """Wait for the turn of one of this rank's tickets."""
        number = self.numbers[rank, ticket]
        if rank == self.cells.rank and number > int(self.cells.own[_LAST]):
            self.cells.write(rank, _LAST, number)
        with Patience(describe, lambda: [(self.reverse, None)]) as patience:
            while self.cells.read(rank, _LAST) < number or self.cells.read(rank, _DONE) != number - 1:
                patience.pause()

    def end(self, rank: int, ticket: int) -> None:
        """End the turn."""
        self.cells.write(rank, _DONE, self.numbers[rank, ticket])

    def attend(self, push: Push, forward: Sequence[Walked]) -> None:
        """Prepare a walk: schedule the waits at its records."""

        def let_in(last: int) -> None:
            for each in forward:
                each.sync()
            if last > int(self.cells.own[_LAST]):
                self.cells.write(self.cells.rank, _LAST, last)

        def settle(preceding: int) -> None:
            if int(self.cells.own[_DONE]) < preceding:
                with Patience(self._waiting, lambda: [(self.reverse, None)]) as patience:
                    while int(self.cells.own[_DONE]) < preceding:
                        patience.pause()
            for each in forward:
                each.sync()

        for place, last in self.lasts.items():
            push.then.setdefault(place, []).append(partial(let_in, last))
        for place, preceding in self.waits.items():
            push.ahead.setdefault(place, []).append(partial(settle, preceding))
        push.at_last.append(partial(settle, self.seen))

    def let_in(self) -> None:
        """Let accesses have their turns that came after this rank's tape had been closed."""
        self.cells.write(self.cells.rank, _LAST, 1 << 62)

    def _waiting(self) -> str:
        return f"other ranks' accesses to this rank's memory in {self.reverse.name}, before it works on its tangent"


class Walked(ForwardTrace):
    """The operations of a walk on a window, in one direction."""

    __slots__ = ("turns",)

    def __init__(self, push: Push, window: Window, shadow: ForwardShadow) -> None:
        super().__init__(push.tape, window, [shadow])
        self.turns: ForwardTurns | None = None

    @property
    def shadow(self) -> ForwardShadow:
        """The window on the tangents."""
        return self.shadows[0]

    def is_touched(self) -> bool:
        """Return False: at the start of a walk no memory has a tangent."""
        return False

    def follow(self, push: Push, turns: ForwardTurns) -> None:
        """Use these turns."""
        self.turns = turns

    def visit(self, rank: int, begins: bool) -> None:
        """Note that local work on a rank's memory begins or has ended."""
        (self.shadow.visiting.add if begins else self.shadow.visiting.discard)(rank)
        self.sync()

    def meet(self, describe: Callable[[], str]) -> None:
        """Complete the operations of all ranks at a fence."""
        self.settle()
        self.shadow.barrier(describe)

    def shake_hands(self, push: Push, name: str, partners: list[int], describe: Callable[[], str]) -> None:
        """Notify partners or wait for them, at Post, Start, Complete or Wait."""
        shadow = self.shadow
        self.settle()
        self.sync()
        for rank in partners:
            if name in ("Post", "Complete"):
                shadow.send(push, rank, READY if name == "Post" else DONE, None, describe)  # type: ignore[arg-type]
            else:
                shadow.receive(rank, READY if name == "Start" else DONE, describe)
        self.sync()

    def free(self) -> None:
        """Free the shadow at the end of the walk; collective."""
        self.settle()
        self.shadow.free()


def walked(push: Push, window: Window, attached: Iterable[Storage]) -> Walked:
    """Expose the tangents of window memory in one direction; collective over the window."""
    shadow = ForwardShadow(push, window, attached)
    for rank, segment in (window.segments or {}).items():
        push.guard(segment, partial(shadow.require_turn, rank))
    return Walked(push, window, shadow)
