"""Forward mode: the tape that pushes tangents through each operation as soon as it has run, and keeps no record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import TapeError
from ..memory.storages import Region, Storage, region_of, storage_of
from .push import Push
from .records import Zero
from .tape import Tape
from .undo import Need, Undo


class _AtOnce(list):
    """Records that are given to somebody as soon as they are there."""

    def __init__(self, give: Callable[[Any], None]) -> None:
        self.append = give  # type: ignore[method-assign]


class ForwardTape(Tape):
    """What records while `ampi.jvp` runs: it pushes tangents through every operation at once, and keeps nothing.

    Attributes
    ----------
    forward : Push
        The tangents.
    """

    def __init__(self, make: Callable[[Tape], Push] = Push) -> None:
        super().__init__()
        self.records = _AtOnce(self._push_record)
        self.forward = make(self)
        self.pen = None
        self.append_record = self._push_record
        self._needed: set[Storage] = set()
        self._overwritten: list[Region] | None = None

    @property
    def latest(self) -> tuple[Any, Any, Any]:  # type: ignore[override]
        """Of no communicator: none of the short ways of messages is taken."""
        return self._latest

    @latest.setter
    def latest(self, given: tuple[Any, Any, Any]) -> None:
        self._latest = None, *given[1:]

    def start(self, array: np.ndarray, tangent: Any) -> None:
        """Memory of an independent has a tangent."""
        self.activate(array)
        self.forward.put(region_of(array), tangent)

    def tangent_at(self, array: np.ndarray) -> np.ndarray:
        """A copy of the tangent of an array."""
        if not self.is_active(array):
            lead = () if self.forward.lanes is None else (len(self.forward.lanes),)
            return np.zeros((*lead, *array.shape), array.dtype)
        return np.array(self.forward.get(region_of(array)))

    def finish(self, error: BaseException | None) -> None:
        """The program has ended."""
        self.forward.finish(error)

    def dismantle(self) -> None:
        """Nothing is asked of the tape any more; see `Push.dismantle`."""
        vars(self.records).clear()  # which give them to this tape
        self.records = []
        self.append_record = self.records.append
        self.forward.dismantle()

    def append(self, adjoint: Any, undo: Sequence[Undo] = (), created: Sequence[np.ndarray] = ()) -> None:
        """An operation has just run: push the tangents through it."""
        if self.before_append is not None:
            self.before_append()
        self._push(adjoint, undo)

    def append_start(self, adjoint: Any, undo: Sequence[Undo] = ()) -> None:
        """The same for the start of a communication."""
        self._push(adjoint, undo)

    def _push_record(self, record: Any) -> None:
        self._push(record.adjoint, record.undo)

    def _push(self, adjoint: Any, undo: Sequence[Undo]) -> None:
        self._noted.clear()
        try:
            if adjoint is not None:
                if self._overwritten is not None and type(adjoint) is Zero:
                    self._overwritten += adjoint.regions
                self.forward.push(adjoint, undo)
        finally:
            self._forget_needs()

    @contextlib.contextmanager
    def noting_overwritten(self) -> Iterator[list[Region]]:
        """Gives the regions of active memory that constants overwrite inside."""
        found: list[Region] = []
        outer, self._overwritten = self._overwritten, found
        try:
            yield found
        finally:
            self._overwritten = outer

    def _forget_needs(self) -> None:
        for storage in self._needed:
            needs = storage.needs.pop(self.reference, None)
            if needs is not None:
                for extent in needs.values():
                    extent.listed = None
        self._needed.clear()
        self._copies.clear()

    def need(self, array: np.ndarray) -> np.ndarray:
        """Say that the record that comes next wants the values an array has now."""
        storage = storage_of(array)
        if storage is not None:
            self._needed.add(storage)
        return super().need(array)

    def need_again(self, need: Need) -> None:
        """`need` for an array of which it is known where it lies."""
        self._needed.add(need.storage)
        super().need_again(need)

    def watch(self, x: Any) -> Any:
        """Not of forward mode."""
        raise TapeError("ampi.jvp is not a tape to watch on")

    gradient = watch
