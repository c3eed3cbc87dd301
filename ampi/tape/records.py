"""Records of a tape: an operation's undos, its adjoint, and the simplest adjoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..memory.storages import Region, Storage

if TYPE_CHECKING:
    from .push import Push
    from .sweep import Sweep
    from .undo import Undo


class Record:
    """One operation: how to undo its writes and how to apply its adjoint.

    An adjoint with an attribute ``reads_memory = False`` does not read the program's arrays, or only through
    `Sweep.value` and after `Sweep.put_back`; others find all memory as it was when the operation ran.  The arrays in an
    attribute ``arrays_after`` (from `Tape.need`, when the operation had run) it finds in `Sweep.after`.
    """

    __slots__ = ("adjoint", "created", "undo")

    def __init__(
        self, adjoint: Callable[[Sweep], None] | None, undo: Sequence[Undo], created: Sequence[Storage]
    ) -> None:
        self.adjoint = adjoint
        self.undo = undo
        self.created = created


class IsRecord:
    """What is a record by itself, and its own adjoint: a tape has thousands of messages and of calls of kernels."""

    __slots__ = ()
    undo: Sequence[Undo] = ()
    created: Sequence[Storage] = ()
    arrays_after: Sequence[np.ndarray] = ()
    is_local = False
    """Whether it is of something that this rank computed."""

    @property
    def adjoint(self) -> Any:
        """Itself, to be called in the sweep."""
        return self


class Watch:
    """Where an independent begins; ``is_new``: its memory as well, so that no earlier record adds to its shadow."""

    __slots__ = ("is_new", "region")
    second = "each"
    together = True
    reads_memory = False

    def __init__(self, region: Region, is_new: bool) -> None:
        self.region = region
        self.is_new = is_new

    def __call__(self, sweep: Sweep) -> None:
        found = sweep.shadow(self.region) if self.is_new else sweep.result(self.region)
        if not found.flags.forc:
            found = found.copy(order="K")  # without gaps
        sweep.state["watch results"][id(self.region)] = found

    def tangent(self, push: Push) -> None:
        """The tangent of an independent is what it is given."""
        push.put(self.region, push.state.get(self.region.place, 0.0))


class Zero:
    """Adjoint of overwriting regions (or ``region[key]``) by constants."""

    __slots__ = ("key", "regions")
    second = "each"
    together = True
    reads_memory = False

    def __init__(self, regions: list[Region], key: Any = None) -> None:
        self.regions = regions
        self.key = ... if key is None else key

    def __call__(self, sweep: Sweep) -> None:
        for region in self.regions:
            sweep.zero(region, self.key)

    tangent = __call__


class Output:
    """Active values that left the program while a tape recorded; where a seed may come in.

    Attributes
    ----------
    operation, target, where : str
        What wrote them, to what, and on which source line.
    shape : tuple of int or None
        Of the seed: the array's, or flat if only elements of it were written.  None if it cannot carry a seed.
    """

    __slots__ = ("buffer", "operation", "order", "shape", "target", "where")
    reads_memory = False
    second = "each"

    def __init__(
        self, buffer: Any, operation: str, target: str, where: str, shape: tuple[int, ...] | None, order: str = "C"
    ) -> None:
        self.buffer = buffer
        self.operation = operation
        self.target = target
        self.where = where
        self.shape = shape
        self.order: Any = order  # in which the array's elements were written

    def __repr__(self) -> str:
        return f"<Output of shape {self.shape} by {self.operation} to {self.target}, {self.where}>"

    def __call__(self, sweep: Sweep) -> None:
        """What was written gets its seed."""
        seed = sweep.state.get(self)
        if seed is not None:
            self.buffer.add(sweep, seed.ravel(self.order))

    def tangent(self, push: Push) -> None:
        """Nothing: it has left the program."""
