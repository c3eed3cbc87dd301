"""Whether the steps of a time loop, run again, give what they gave.

A sweep records each step once, after the steps that follow it. What a step gives then is compared with what the next
one began with when it was recorded, and what the last one gives with the state that the program has got. So the steps
whose adjoints are computed are those of one run, from the first state to the last.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ..derivatives import frames_of_ampi
from ..errors import ActivityWarning, TapeError
from ..handouts import describe
from ..memory import plain, storage_of
from .views import View, spelled
from .written import block_of, fingerprints

if TYPE_CHECKING:
    from .replay import Loop


class Held:
    """What a state held at some time.

    Attributes
    ----------
    lasting : dict
        See `Loop.sort`.
    others : dict
        By the ways to them, shape, dtype and fingerprint of all other arrays.
    written : list of int
        Fingerprints of the memory from before the loop that steps had written, whatever arrays see it.
    numbers : dict
        By the ways to them, NumPy's numbers and arrays of one, as bytes, and those of Python.
    """

    __slots__ = ("lasting", "numbers", "others", "written")

    def __init__(self, loop: Loop, state: Any) -> None:
        view, self.lasting, others = loop.looked(state)
        copies: list[np.ndarray] = []
        blocks = [block_of(array, copies) for array in others.values()]
        found = fingerprints(blocks + loop.written.blocks(copies))
        self.written = found[len(blocks) :]
        self.others = {way: (a.shape, a.dtype, number) for (way, a), number in zip(others.items(), found)}
        self.numbers = {way: _told(value) for way, value in view.numbers().items()}
        for way, array in others.items():
            if not array.ndim and not array.dtype.hasobject:
                self.numbers[way] = _told(plain(array)[()])
                del self.others[way]

    def __getstate__(self) -> tuple:
        """For another process, in which memory lies elsewhere."""
        return self.others, self.written, self.numbers

    def __setstate__(self, told: tuple) -> None:
        self.others, self.written, self.numbers = told
        self.lasting = {}


def _told(value: Any) -> Any:
    return value.tobytes() if issubclass(type(value), np.generic) else value


def compare(loop: Loop, step: int, found: Held, expected: Held, state: Any) -> None:
    """Raise if a state that a step has given is not the expected one; of numbers of Python that is said only."""
    differing = [
        spelled(way)
        for before, now in ((expected.lasting, found.lasting), (expected.others, found.others))
        if before is not now
        for way, what in before.items()
        if way in now and now[way] != what
    ]
    loose: list[str] = []
    for way, number in expected.numbers.items():
        now = found.numbers.get(way, number)
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
            stacklevel=frames_of_ampi() + 1,
        )


def _name_of(view: np.ndarray, arrays: dict[tuple, np.ndarray]) -> str:
    """Written memory in words: by the ways to it in the state, or what is known of it."""
    storage = storage_of(view)
    ways = [spelled(way) for way, array in arrays.items() if storage_of(array) is storage]
    return ", ".join(ways) or describe(storage, view)
