"""Walks over one-sided communication: `tape.tangent` takes tangents through shadow windows in the order of the tape.

What a sweep does backwards is done forwards.  Operations are carried out on windows on the tangents of memory, as in
forward mode (`forward_windows`); in epochs of locks, and where their order matters, each has its turn (`rma_order`), in
the order in which the sweep takes them back.  A rank's own work on its memory, between two marks on its tape, follows
the tickets that it had seen by then, and precedes the others.  Nobody waits for anything but what happened earlier in
the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

from ..memory import Storage
from ..tape import Push
from .forward_windows import ForwardShadow, ForwardTrace
from .rma_order import Mark, Schedule
from .rma_shadow import DONE, READY
from .rma_window import Window
from .waiting import Patience

_DONE, _LAST = 0, 1  # the last ticket whose turn is over; the last one that may have its turn by now


class ForwardTurns(Schedule):
    """Turns in a walk, in ascending order."""

    __slots__ = ("_last", "_preceding")

    def beginning(self, count: int, works: dict[Mark, int]) -> list[int]:
        """The first ticket has the first turn, as soon as this rank has come far enough."""
        # Marks say what had been seen before.  What lies between two of them comes after the tickets up to the limit of
        # the second one, and before those above its bound.  Where nothing between them touches the memory, there is no
        # need to wait for that: a fence may end after accesses that nobody had seen before it.
        limits = [(mark, limit) for mark, (limit, _) in self.places.items() if mark.limit is not None]
        end: tuple[Any, int] = None, self.seen
        self._preceding = {mark: limit for (mark, _), (_, limit) in pairwise([*limits, end])}
        bounds = [(mark, bound) for mark, (_, bound) in self.places.items() if mark.bound is not None]
        last = self.seen
        self._last = {bounds[-1][0]: last} if bounds else {}
        for (mark, _), (following, bound) in reversed(list(pairwise(bounds))):
            if works[following] > works[mark]:
                last = bound
            self._last[mark] = last
        if bounds and works[bounds[0][0]]:
            last = bounds[0][1]
        return [0, last]

    def begin(self, rank: int, ticket: int, describe: Callable[[], str]) -> None:
        """Wait for the turn of one of this rank's tickets."""
        number = self.numbers[rank, ticket]
        with Patience(describe, lambda: [(self.reverse, None)]) as patience:
            while self.cells.read(rank, _LAST) < number or self.cells.read(rank, _DONE) != number - 1:
                patience.pause()

    def end(self, rank: int, ticket: int) -> None:
        """The turn is over."""
        self.cells.write(rank, _DONE, self.numbers[rank, ticket])

    def pass_by(self, mark: Mark) -> None:
        """The walk has come to a mark: let others have their turns, and wait for those that come first."""
        last = self._last.get(mark)
        if last is not None and last > int(self.cells.own[_LAST]):
            self.cells.write(self.cells.rank, _LAST, last)
        preceding = self._preceding.get(mark, 0)
        if int(self.cells.own[_DONE]) < preceding:
            with Patience(self._waiting, lambda: [(self.reverse, None)]) as patience:
                while int(self.cells.own[_DONE]) < preceding:
                    patience.pause()

    def let_in(self) -> None:
        """Let those have their turns whose accesses came after this rank's tape had been closed."""
        self.cells.write(self.cells.rank, _LAST, 1 << 62)

    def _waiting(self) -> str:
        return f"other ranks' accesses to this rank's memory in {self.reverse.name}, before it works on its tangent"


class Walked(ForwardTrace):
    """What a walk does with a window, in one direction."""

    __slots__ = ("turns",)

    def __init__(self, push: Push, window: Window, shadow: ForwardShadow) -> None:
        super().__init__(push.tape, window, [shadow])
        self.turns: ForwardTurns | None = None

    @property
    def shadow(self) -> ForwardShadow:
        """The window on the tangents."""
        return self.shadows[0]

    def is_touched(self) -> bool:
        """No memory has a tangent yet that others could change too early: they are let in at the end."""
        return False

    def follow(self, push: Push, turns: ForwardTurns) -> None:
        """Have this rank wait for the turns of others before it goes on."""
        self.turns = turns

    def visit(self, rank: int, begins: bool) -> None:
        """Local work on a rank's memory begins, or has ended."""
        (self.shadow.visiting.add if begins else self.shadow.visiting.discard)(rank)
        self.sync()

    def meet(self, describe: Callable[[], str]) -> None:
        """At a fence: what all ranks have done is complete."""
        self.settle()
        self.shadow.barrier(describe)

    def shake_hands(self, push: Push, name: str, partners: list[int], describe: Callable[[], str]) -> None:
        """Post, Start, Complete or Wait."""
        shadow = self.shadow
        self.settle()
        self.sync()
        for rank in partners:
            if name in ("Post", "Complete"):
                shadow.tell(push, rank, READY if name == "Post" else DONE, None, describe)  # type: ignore[arg-type]
            else:
                shadow.hear(rank, READY if name == "Start" else DONE, describe)
        self.sync()

    def free(self) -> None:
        """The walk is over; collective."""
        self.settle()
        self.shadow.free()


def walked(push: Push, window: Window, attached: Iterable[Storage]) -> Walked:
    """Expose the tangents of window memory in one direction; collective over the window."""
    shadow = ForwardShadow(push, window, attached)
    for rank, segment in (window.segments or {}).items():
        push.guard(segment, partial(shadow.require_turn, rank))
    return Walked(push, window, shadow)
