"""Memory budgets of tapes: if exceeded, old values go to a file, or an error names the lines that keep the most."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.locks import RLock
from ..base.program_lines import where_called
from ..errors import TapeError
from .spill import Place, SpillFile, folder_for, may_go
from .undo import Undo

_UNITS = {
    "": 1,
    "B": 1,
    **{p + "iB": 1024**k for k, p in enumerate("KMGT", 1)},
    **{p + "B": 1000**k for k, p in enumerate("KMGT", 1)},
    "kB": 1000,
}


def bytes_of(memory: Any, what: str) -> int:
    """Return a size such as ``2**30``, ``"8GiB"`` or ``"500 MB"`` in bytes; ``what`` names the caller in errors."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([kKMGT]?i?B?)\s*", str(memory))
    if found is None or found[2] not in _UNITS or isinstance(memory, bool):
        raise TapeError(f"{where_called()}: {what}: memory is {memory!r}; write a number of bytes, or '8GiB'")
    return int(float(found[1]) * _UNITS[found[2]])


def in_words(nbytes: float) -> str:
    """Return a size in bytes as text for messages."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024
    return f"{nbytes:.4g} GiB"


def budget_for(memory: Any, spill: Any) -> Limit | Spool | None:
    """Return the budget that ``ampi.Tape(memory=..., spill=...)`` asks for."""
    if memory is None:
        if spill is not None and spill is not False:
            raise TapeError(
                f"{where_called()}: ampi.Tape: spill={spill!r} needs memory=..., the size above which values go there"
            )
        return None
    most = bytes_of(memory, "ampi.Tape")
    return Limit(most) if spill is None or spill is False else Spool(most, folder_for(spill))


class _Budget:
    """A budget in bytes.

    Attributes
    ----------
    most, held : int
        Bytes that may be in memory, and bytes that are.
    error : str
        The error that was raised when the budget was exhausted: the tape is incomplete then and cannot be swept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self.error = ""

    def fail(self, error: str) -> TapeError:
        """Note that the budget is exhausted; return the error."""
        self.error = error
        return TapeError(error)

    def room(self) -> int:
        """Return the number of bytes that are left of the budget."""
        return max(self.most - self.held, 0)

    def begin(self) -> None:
        """Prepare for a sweep or a walk."""
        if self.error:
            raise TapeError(f"the tape is incomplete, so it has no derivatives: {self.error}")

    def end(self) -> None:
        """Finish a sweep or a walk."""


class Limit(_Budget):
    """A budget without a file: exceeding it raises an error that names the lines that keep the most."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._lines: Counter[str] = Counter()
        self._lock = RLock()  # tasks of a tape share its budget

    def note_undo(self, undo: Undo) -> None:
        """Count old values that have been saved."""
        self._note(undo.saved.nbytes)

    def note_kept(self, record: Any, nbytes: int) -> None:
        """Count the bytes that a kernel has saved for its adjoint."""
        self._note(nbytes)

    def note_states(self, nbytes: int) -> None:
        """Count the bytes of states and recorded steps that a time loop keeps."""
        self._note(nbytes)

    def _note(self, nbytes: int) -> None:
        where = where_called()
        with self._lock:
            self._lines[where] += nbytes
            self.held += nbytes
        if self.held <= self.most:
            return
        lines = "".join(f"\n    {in_words(n):>12}  {line}" for line, n in self._lines.most_common(5))
        raise self.fail(
            f"{where}: the old values that ampi.Tape(memory=...) keeps exceed its budget of {in_words(self.most)}; "
            f"most are kept by{lines}\nallow more memory, or a folder for the rest (spill=True: $TMPDIR), or write the "
            "loop over time steps with ampi.timeloop"
        )


class Spool(_Budget):
    """A budget with a file, to which the oldest values go first.

    Half of the budget is for what is in memory, the rest for blocks that are being written or read.
    """

    def __init__(self, most: int, folder: str) -> None:
        super().__init__(most)
        self.size = min(max(most // 8, 1 << 12), 1 << 26)
        self.file = SpillFile(folder, self.size)
        self._waiting: deque[_Item] = deque()
        self._writing: deque[int] = deque()
        self._lock = RLock()

    def note_undo(self, undo: Undo) -> None:
        """Count old values that have been saved."""
        if may_go(undo.saved):
            self._note(_UndoItem(undo))

    def note_kept(self, record: Any, nbytes: int) -> None:
        """Count the bytes that a kernel has saved for its adjoint."""
        arrays = [part for part in record.saved if may_go(part)]
        if arrays:
            self._note(_KeptItem(record, arrays))

    def note_states(self, nbytes: int) -> None:
        """Count the bytes of states and recorded steps that a time loop keeps; they stay in memory."""
        with self._lock:
            self.held += nbytes
            self._make_room()
        if self.held > self.most:
            raise self.fail(
                f"{where_called()}: the states of ampi.timeloop take {in_words(nbytes)}, more than is left of the "
                f"{in_words(self.most)} of ampi.Tape(memory=...); give fewer checkpoints=, or a folder for states, "
                "storage=..."
            )

    def room(self) -> int:
        """Return the number of bytes for values that stay in memory: half of the budget (the file takes the rest)."""
        return self.most // 2

    def _note(self, item: _Item) -> None:
        with self._lock:
            self._waiting.append(item)
            self.held += item.nbytes
            self._make_room()

    def _make_room(self) -> None:
        while self.held > self.most // 2 and self._waiting and os.getpid() == self.file.pid:
            try:
                self._spill()
            except TapeError as error:
                raise self.fail(str(error)) from None

    def _spill(self) -> None:
        """Hand the oldest block to the writing threads, which have at most two at a time."""
        items: list[_Item] = []
        nbytes = 0
        while self._waiting and nbytes < self.size:
            items.append(self._waiting.popleft())
            nbytes += items[-1].nbytes
        while len(self._writing) > 1:
            self.file.written(self._writing.popleft())
        index, places = self.file.store([array for item in items for array in item.arrays])
        self._writing.append(index)
        self.held -= nbytes
        found = iter(places)
        for item in items:
            item.leave([next(found) for _ in item.arrays])

    def begin(self) -> None:
        """Prepare the file for a sweep or a walk."""
        super().begin()
        for index in self._writing:
            self.file.written(index)
        self._writing.clear()
        self.file.rewind()

    def end(self) -> None:
        """Release the blocks in memory."""
        self.file.release()


class _Item:
    """Arrays that may be moved to the file together."""

    __slots__ = ("arrays", "nbytes")

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = arrays
        self.nbytes = sum(array.nbytes for array in arrays)

    def leave(self, places: list[Place]) -> None:
        """Replace the arrays by their places in the file."""
        raise NotImplementedError


class _UndoItem(_Item):
    __slots__ = ("undo",)

    def __init__(self, undo: Undo) -> None:
        super().__init__([undo.saved])
        self.undo = undo

    def leave(self, places: list[Place]) -> None:
        _saved.__set__(self.undo, places[0])
        self.undo.__class__ = self.undo.filed


class _KeptItem(_Item):
    __slots__ = ("record",)

    def __init__(self, record: Any, arrays: list[np.ndarray]) -> None:
        super().__init__(arrays)
        self.record = record

    def leave(self, places: list[Place]) -> None:
        by_array = {id(array): place for array, place in zip(self.arrays, places)}
        self.record.saved = KeptInFile([by_array.get(id(part), part) for part in self.record.saved])


_saved: Any = Undo.__dict__["saved"]


class UndoInFile(Undo):
    """An `Undo` whose saved values are in a file."""

    __slots__ = ()
    in_file = True

    @property
    def saved(self) -> np.ndarray:  # type: ignore[override]
        """The saved values, read-only."""
        return _saved.__get__(self).array()

    def swap(self) -> None:
        """Exchange saved and present values, for walks.  (Sweeps only put saved values back.)"""
        place = _saved.__get__(self)
        old = self.saved
        present = old.copy(order="K")
        present[...] = self._present()
        self.put_back()
        place.file.put(place, present)


Undo.filed = UndoInFile


class KeptInFile:
    """The values that the run of a kernel saved, some of them in a file."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return (part.array() if isinstance(part, Place) else part for part in self.parts)
