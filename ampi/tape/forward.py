"""Forward mode: the tape that pushes tangents through each operation as soon as it has run, and keeps no record."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import TapeError
from ..memory.storages import Region, Storage, storage_of
from .apart import is_apart, region_at
from .push import Push
from .records import Zero
from .tape import Tape
from .undo import Need, Undo


class ForwardTape(Tape):
    """The tape of `ampi.jvp`: it pushes tangents through each operation at once, and keeps no record.

    Attributes
    ----------
    forward : Push
        The tangents.
    """

    def __init__(self, make: Callable[[Tape], Push] = Push) -> None:
        super().__init__()
        self.forward = make(self)
        self.pen = None
        self.append_record = self.append_unobserved
        self._needed: set[Storage] = set()
        self._overwritten: list[Region] | None = None

    @property
    def latest(self) -> tuple[Any, Any, Any]:  # type: ignore[override]
        """The log of the latest message, without its communicator, so that the fast paths for messages do not apply."""
        return self._latest

    @latest.setter
    def latest(self, given: tuple[Any, Any, Any]) -> None:
        self._latest = None, *given[1:]

    def start(self, array: Any, tangent: Any) -> None:
        """Give the memory of an independent its tangent."""
        region = region_at(array)
        if region.storage.is_apart:
            self.set_active(region.storage)
        else:
            self.activate(array)
        self.forward.put(region, tangent)

    def tangent_at(self, array: Any) -> Any:
        """Return a copy of the tangent of an array."""
        if not is_apart(array) and not self.is_active(array):
            lead = () if self.forward.lanes is None else (len(self.forward.lanes),)
            return np.zeros((*lead, *array.shape), array.dtype)
        return region_at(array).tangent(self.forward)

    def finish(self, error: BaseException | None) -> None:
        """End forward mode; ``error`` is the one with which the program ended, or None."""
        self.forward.finish(error)

    def dismantle(self) -> None:
        """Break reference cycles once the tape is no longer used; see `Push.dismantle`."""
        self.append_record = self.records.append
        self.forward.dismantle()

    def append(self, adjoint: Any, undo: Sequence[Undo] = (), created: Sequence[np.ndarray] = ()) -> None:
        """Push tangents through an operation that has just run."""
        if self.before_append is not None:
            self.before_append()
        self._push(adjoint, undo)

    def append_start(self, adjoint: Any, undo: Sequence[Undo] = ()) -> None:
        """Push tangents through the start of a communication."""
        self._push(adjoint, undo)

    def append_unobserved(self, record: Any) -> None:
        """Push tangents through an operation."""
        self._push(record.adjoint, record.undo)

    def appender(self) -> Callable[[Any], None]:
        """`append_unobserved` as a function that does not keep the tape alive."""
        reference = self.reference
        return lambda record: reference().append_unobserved(record)  # type: ignore[union-attr]

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
        """Collect the regions of active memory that constants overwrite inside the block."""
        found: list[Region] = []
        outer, self._overwritten = self._overwritten, found
        try:
            yield found
        finally:
            self._overwritten = outer

    def _forget_needs(self) -> None:
        for storage in self._needed:
            needs = storage.needs.pop(self.needer, None)
            if needs is not None:
                for extent in needs.values():
                    extent.listed = None
        self._needed.clear()
        self.constant.clear()

    def need(self, array: np.ndarray) -> np.ndarray:
        """Note that the next record needs the present values of an array."""
        storage = storage_of(array)
        if storage is not None:
            self._needed.add(storage)
        return super().need(array)

    def need_again(self, need: Need) -> None:
        """`need` for an array whose extent is known."""
        self._needed.add(need.storage)
        super().need_again(need)

    def watch(self, x: Any) -> Any:
        """Raise an error: forward mode has no `watch`."""
        raise TapeError("ampi.jvp has no tape to watch on: its arguments are the independents")

    gradient = watch
