"""Reproducibility: do the steps of a time loop give the same results when they are run again?

A sweep records each step once, after the steps that follow it. Its result is compared with the state with which the
next step began when it was recorded; the result of the last step is compared with the state that the program received.
So adjoints are those of the steps of a single run, from the first state to the last.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.program_lines import warning_level
from ..errors import ActivityWarning, TapeError
from ..memory.handouts import describe
from ..memory.storages import plain, storage_of
from .views import View, spelled
from .written import block_of, fingerprints

if TYPE_CHECKING:
    from .replay import Loop


class Once:
    """A cache of the last tuple: an equal one is replaced by it."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple] = {}

    def __call__(self, what: str, found: tuple) -> tuple:
        if self.latest.get(what) != found:
            self.latest[what] = found
        return self.latest[what]


class Held:
    """The contents of a state at some time, for comparison.

    Attributes
    ----------
    lasting : dict
        See `Loop.sort`.
    written : list of int
        Fingerprints of the memory from before the loop that steps had written, whatever arrays see it.
    """

    __slots__ = ("_kinds", "_numbers", "_prints", "_ways", "_ways_to_numbers", "lasting", "written")

    def __init__(self, loop: Loop, state: Any) -> None:
        view, self.lasting, others = loop.looked(state)
        copies: list[np.ndarray] = []
        numbers = view.numbers()
        for way, array in others.items():
            if not array.ndim and not array.dtype.hasobject:
                numbers[way] = plain(array)[()]
        arrays = {way: array for way, array in others.items() if way not in numbers}
        blocks = [block_of(array, copies) for array in arrays.values()]
        found = fingerprints(blocks + loop.written.blocks(copies))
        self.written = found[len(blocks) :]
        self._ways = loop.once("ways", tuple(arrays))
        self._kinds = loop.once("kinds", tuple((array.shape, array.dtype) for array in arrays.values()))
        self._prints = tuple(found[: len(blocks)])
        self._ways_to_numbers = loop.once("ways to numbers", tuple(numbers))
        self._numbers = tuple(map(_told, numbers.values()))

    @property
    def others(self) -> dict[tuple, tuple]:
        """Shape, dtype and fingerprint of all other arrays, by their paths."""
        return dict(zip(self._ways, zip(self._kinds, self._prints)))

    @property
    def numbers(self) -> dict[tuple, Any]:
        """NumPy's numbers and arrays of one element, as bytes, and Python's numbers, by their paths."""
        return dict(zip(self._ways_to_numbers, self._numbers))

    @property
    def nbytes(self) -> int:
        """Return its approximate size in bytes."""
        return _NUMBER * len(self._numbers) + _PRINT * (len(self._prints) + len(self.written))

    def is_same(self, other: Held) -> bool:
        """Return whether the other one is equal, without finding differences."""
        return self.lasting == other.lasting and self.__getstate__() == other.__getstate__()

    def __getstate__(self) -> tuple:
        """Return data for another process, which has other addresses."""
        return self._ways, self._kinds, self._prints, self.written, self._ways_to_numbers, self._numbers

    def __setstate__(self, told: tuple) -> None:
        self._ways, self._kinds, self._prints, self.written, self._ways_to_numbers, self._numbers = told
        self.lasting = {}


def held_again(told: tuple) -> Held:
    """Decode what another process has written about a state."""
    held = Held.__new__(Held)
    held.__setstate__(told)
    return held


_NUMBER, _PRINT = 50, 50  # bytes of a number or a fingerprint, and of what refers to it


def _told(value: Any) -> Any:
    return value.tobytes() if issubclass(type(value), np.generic) else value


def compare(loop: Loop, step: int, found: Held, expected: Held, state: Any) -> None:
    """Raise if a step has produced another state than expected; warn if only Python numbers differ."""
    if found.is_same(expected):
        return
    differing = [
        spelled(way)
        for before, now in ((expected.lasting, found.lasting), (expected.others, found.others))
        if before is not now
        for way, what in before.items()
        if way in now and now[way] != what
    ]
    loose: list[str] = []
    numbers = found.numbers
    for way, number in expected.numbers.items():
        now = numbers.get(way, number)
        if now != number and (now == now or number == number):
            (differing if isinstance(now, bytes) and isinstance(number, bytes) else loose).append(spelled(way))
    if expected.written != found.written:
        arrays = View(state).arrays
        for view, what, now in zip(loop.written, expected.written, found.written):
            if what != now:
                differing.append(_name_of(view, arrays))
    if differing:
        raise TapeError(
            f"{loop.where}: ampi.timeloop: step {step} does not reproduce itself: run again from the same state, "
            f"it gives other values in {', '.join(dict.fromkeys(differing))}; what it reads or counts besides must be "
            "a part of the state (random generators, too)"
        )
    loose = [name for name in loose if name not in loop.loose]
    if loose:
        loop.loose.update(loose)
        warnings.warn(
            f"{loop.where}: ampi.timeloop: step {step} gives other numbers in {', '.join(loose)} when it is run "
            "again; if steps compute with them, this is not the gradient of what was computed (measured times and the "
            "like do no harm)",
            ActivityWarning,
            stacklevel=warning_level(),
        )


def _name_of(view: np.ndarray, arrays: dict[tuple, np.ndarray]) -> str:
    """Describe written memory: by the paths to it in the state, or by its storage."""
    storage = storage_of(view)
    ways = [spelled(way) for way, array in arrays.items() if storage_of(array) is storage]
    return ", ".join(ways) or describe(storage, view)
