"""Optimisation remarks: what a pass did to a loop or an array and why, as data with a sentence for readers.

Modelled after LLVM's remarks (``-Rpass``).  A pass records a `Remark`; `kernel.explain` and tests select by
`Remark.kind` and `Remark.line`, and never parse a sentence.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from ampi.kernel.ir.names import stem


class Kind(enum.Enum):
    """The subjects of remarks, with the names of their data."""

    AFTER = "the values of an array after the call are read: array"
    SAVED = "a value is saved in each iteration: value"
    COPIED = "an array is copied before it is overwritten: array"
    GATHERED = "an adjoint is in gather form: array, neighbours"
    BESIDE = "other increments are in the loop of the gathered ones: arrays"
    BEHIND = "the other statements of an iteration follow row by row"
    SERIAL = "a loop of a parallel kernel runs on one thread: reason"
    PARALLEL = "a loop runs on threads: arrays, distance, distinct, added, atomic, reaches, recomputed"
    STRIPS = "a loop is cut into strips: length, gathered, increments, sums"
    DISTRIBUTED = "a loop is cut into several: loops, kept"


@dataclass(frozen=True)
class Remark:
    """What a pass did: its kind, the line of the loop or statement (None: the whole kernel), and data."""

    kind: Kind
    line: int | None
    data: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, kind: Kind, line: int | None = None, **data: Any) -> Remark:
        """A remark with data under the names that its kind lists; variables have the user's names."""
        return cls(kind, line, tuple((name, _shown(value)) for name, value in data.items()))

    @property
    def sentence(self) -> str:
        """The remark in words, without its line."""
        data = dict(self.data)
        if self.kind is Kind.PARALLEL:
            return _parallel(**data)
        joined = {name: ", ".join(value) if isinstance(value, tuple) else value for name, value in data.items()}
        return _SENTENCES[self.kind].format(**joined)

    def __str__(self) -> str:
        return self.sentence if self.line is None else f"line {self.line}: {self.sentence}"


_SENTENCES = {
    Kind.AFTER: "{array}: its values after the call are read",
    Kind.SAVED: "{value} is saved in each iteration",
    Kind.COPIED: "{array} is copied: values that the kernel writes there are needed",
    Kind.GATHERED: "{array} in gather form, from {neighbours} neighbours",
    Kind.BESIDE: "with {arrays} in the same loop",
    Kind.BEHIND: "the other statements of the loop follow row by row",
    Kind.SERIAL: "on one thread: {reason}",
    Kind.STRIPS: "strips of {length}; {gathered} elements gathered, {increments} increments and {sums} sums postponed",
    Kind.DISTRIBUTED: "in {loops} loops, with {kept} values kept from one to the next",
}


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return stem(value)
    return tuple(map(stem, value)) if isinstance(value, (tuple, list)) else value


def _parallel(
    arrays: tuple[str, ...] = (),
    distance: int = 0,
    distinct: tuple[str, ...] = (),
    added: bool = False,
    atomic: bool = False,
    reaches: tuple[str, ...] = (),
    recomputed: tuple[str, ...] | None = None,
) -> str:
    if recomputed is not None:
        return f"on threads, to recompute {', '.join(recomputed)}"
    if not arrays:
        return "on threads: no two iterations touch an element that is written"
    shared = ", ".join(arrays)
    if distance:
        return (
            f"on threads in alternating blocks: iterations up to {distance} apart touch the same elements of {shared}"
        )
    text = f"on threads if {', '.join(distinct)} names no element twice; otherwise " if distinct else ""
    if not added:
        return f"{text}on one thread: iterations touch the same elements of {shared}"
    ways = f"private arrays per thread{', or atomic additions' if atomic else ''}, or one thread, whichever is fastest"
    if reaches:
        ways = f"alternating blocks if the entries of {', '.join(reaches)} keep them apart; otherwise {ways}"
    return f"{text}iterations touch the same elements of {shared}, to which they only add: {ways}"
