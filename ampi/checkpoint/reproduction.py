"""Checks that the steps of a time loop give the same results when they run again.

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
    """A cache of the latest tuple, which replaces equal ones to save memory."""

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
    persistent : dict
        See `Loop.sort`.
    written : list of int
        Fingerprints of all memory from before the loop that steps had written.
    """

    __slots__ = ("_kinds", "_numbers", "_paths", "_paths_to_numbers", "_prints", "persistent", "written")

    def __init__(self, loop: Loop, state: Any) -> None:
        view, self.persistent, others = loop.contents_of(state)
        copies: list[np.ndarray] = []
        numbers = view.numbers()
        for path, array in others.items():
            if not array.ndim and not array.dtype.hasobject:
                numbers[path] = plain(array)[()]
        arrays = {path: array for path, array in others.items() if path not in numbers}
        blocks = [block_of(array, copies) for array in arrays.values()]
        found = fingerprints(blocks + loop.written.blocks(copies))
        self.written = found[len(blocks) :]
        self._paths = loop.once("paths", tuple(arrays))
        self._kinds = loop.once("kinds", tuple((array.shape, array.dtype) for array in arrays.values()))
        self._prints = tuple(found[: len(blocks)])
        self._paths_to_numbers = loop.once("paths to numbers", tuple(numbers))
        self._numbers = tuple(map(_encoded, numbers.values()))

    @property
    def others(self) -> dict[tuple, tuple]:
        """Shape, dtype and fingerprint of all other arrays, by their paths."""
        return dict(zip(self._paths, zip(self._kinds, self._prints)))

    @property
    def numbers(self) -> dict[tuple, Any]:
        """NumPy's numbers and arrays of one element, as bytes, and Python's numbers, by their paths."""
        return dict(zip(self._paths_to_numbers, self._numbers))

    @property
    def nbytes(self) -> int:
        """Return its approximate size in bytes."""
        return _NUMBER * len(self._numbers) + _PRINT * (len(self._prints) + len(self.written))

    def is_same(self, other: Held) -> bool:
        """Return whether the contents are equal, without finding differences."""
        return self.persistent == other.persistent and self.__getstate__() == other.__getstate__()

    def __getstate__(self) -> tuple:
        """Return data for another process, which has other addresses."""
        return self._paths, self._kinds, self._prints, self.written, self._paths_to_numbers, self._numbers

    def __setstate__(self, encoded: tuple) -> None:
        self._paths, self._kinds, self._prints, self.written, self._paths_to_numbers, self._numbers = encoded
        self.persistent = {}


def held_again(encoded: tuple) -> Held:
    """Decode the contents of a state that another process has written."""
    held = Held.__new__(Held)
    held.__setstate__(encoded)
    return held


_NUMBER, _PRINT = 50, 50  # bytes of a number or a fingerprint, and of the references to it


def _encoded(value: Any) -> Any:
    return value.tobytes() if issubclass(type(value), np.generic) else value


def compare(loop: Loop, step: int, found: Held, expected: Held, state: Any) -> None:
    """Raise an error if a step has not produced the expected state; warn if only Python numbers differ."""
    if found.is_same(expected):
        return
    differing = [
        spelled(path)
        for before, now in ((expected.persistent, found.persistent), (expected.others, found.others))
        if before is not now
        for path, what in before.items()
        if path in now and now[path] != what
    ]
    numbers_only: list[str] = []
    numbers = found.numbers
    for path, number in expected.numbers.items():
        now = numbers.get(path, number)
        if now != number and (now == now or number == number):
            (differing if isinstance(now, bytes) and isinstance(number, bytes) else numbers_only).append(spelled(path))
    if expected.written != found.written:
        arrays = View(state).arrays
        for view, what, now in zip(loop.written, expected.written, found.written):
            if what != now:
                differing.append(_name_of(view, arrays))
    if differing:
        resumed = loop.disk is not None and loop.disk.folder.point is not None
        raise TapeError(
            f"{loop.where}: ampi.timeloop: step {step} does not reproduce itself: run again from the same state, "
            f"it gives other values in {', '.join(dict.fromkeys(differing))}; everything else that it reads or counts "
            "must be part of the state (including random generators)"
            + (", and be as it was when the folder was written" if resumed else "")
        )
    numbers_only = [name for name in numbers_only if name not in loop.not_reproduced]
    if numbers_only:
        loop.not_reproduced.update(numbers_only)
        warnings.warn(
            f"{loop.where}: ampi.timeloop: step {step} gives other numbers in {', '.join(numbers_only)} when it runs "
            "again; if steps compute with them, this is not the gradient of what was computed (measured times and the "
            "like are harmless)",
            ActivityWarning,
            stacklevel=warning_level(),
        )


def _name_of(view: np.ndarray, arrays: dict[tuple, np.ndarray]) -> str:
    """Describe written memory: by the paths to it in the state, or by its storage."""
    storage = storage_of(view)
    paths = [spelled(path) for path, array in arrays.items() if storage_of(array) is storage]
    return ", ".join(paths) or describe(storage, view)
