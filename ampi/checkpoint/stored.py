"""Stored steps of a time loop: states to restart from, and recorded steps with their tapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import ActivityError
from ..memory.extents import Extent
from ..memory.handouts import describe
from ..memory.storages import Region, Storage, TrackedArray, memory_at, region_of, storage_of
from ..mpi.files import positions
from ..tape import Record, Tape, Undo
from .generators import generators_of_kernels
from .views import View
from .written import Values

if TYPE_CHECKING:
    from .replay import Loop


def set_tape(storage: Any, reference: Any) -> None:
    """Mark memory as carrying derivatives on a tape (None: on none) from now on, with its present values."""
    storage.tape = reference
    storage.baseline = None


class StepTape(Tape):
    """The tape of one step, with references to the tapes of the other steps."""

    of_step = True

    def __init__(self, siblings: set[Any]) -> None:
        super().__init__()
        self.siblings = siblings

    def is_active(self, array: Any) -> bool:
        """Return whether the memory of an array carries derivatives on this tape."""
        storage = storage_of(array) if isinstance(array, np.ndarray) else None
        if storage is not None and storage.tape is not self.reference and storage.tape in self.siblings:
            raise ActivityError(
                f"{where_called()}: a step of ampi.timeloop uses {describe(storage, array)} that an earlier step has "
                "computed, and that is not in its state; add it to the state, or let that step store ampi.value(x) if "
                "it is a constant"
            )
        return super().is_active(array)


class Stored:
    """A state at the beginning of a step, to restart from."""

    def __init__(self, loop: Loop, state: Any) -> None:
        self.snapshot = loop.snapshot(state)
        self.files = positions()
        self.generators = generators_of_kernels()
        self.values = Values(loop.written)
        self.nbytes = self.snapshot.nbytes + self.values.nbytes
        self.counted = 0

    def restore(self, loop: Loop) -> Any:
        if loop.first_values is not None:
            loop.first_values.put_back(len(self.values))  # memory that a later step was the first to write
        self.values.put_back()
        for position in self.files:
            position.put_back()
        if self.generators is not None:
            self.generators.put_back()
        return self.snapshot.restore()


class Taped:
    """A recorded step: its tape, and the memory of its state before and after it.

    ``owners`` has weak references to the arrays that own this memory, if it was created in the loop, and ``more`` is
    the number of bytes that are stored in addition to the tape's old values and the values that kernels store.
    """

    __slots__ = ("after", "before", "counted", "frozen", "more", "owners", "tape")

    def __init__(
        self, tape: StepTape, before: dict[tuple, Region], after: dict[tuple, Region], owners: dict[Storage, Any]
    ) -> None:
        self.tape = tape
        self.before = before
        self.after = after
        self.owners = owners
        self.frozen: list[np.ndarray] = []  # memory that the sweep writes to
        self.more = self.counted = 0

    @property
    def nbytes(self) -> int:
        """The bytes that it stores now; they grow, since later steps overwrite values that it needs."""
        return self.tape.saved_bytes + self.tape.kept_bytes + self.more

    def alive(self, outside: dict[Storage, Any]) -> dict[Storage, np.ndarray]:
        """Return the memory of its states that still exists, and the arrays that own it."""
        found = {}
        for region in (*self.before.values(), *self.after.values()):
            reference = self.owners.get(region.storage) or outside.get(region.storage)
            owner = None if reference is None else reference()
            if owner is not None:
                found[region.storage] = owner
        return found

    def forget_needs(self, storages: Iterable[Storage]) -> None:
        """Drop the needs of a step that has been swept."""
        for storage in storages:
            storage.needs.pop(self.tape.reference, None)

    def freeze(self, owners: dict[Storage, np.ndarray]) -> None:
        """Save the values of some memory that its records need: from now on, any code may write there."""
        undo = []
        for storage, owner in owners.items():
            if storage.needs.pop(self.tape.reference, None) is not None:
                block = memory_at(storage.address, storage.nbytes)
                undo.append(Undo(storage, block, Extent(block)))
                self.frozen.append(owner)
        self.more += sum(action.saved.nbytes for action in undo)
        self.tape.append_unobserved(Record(None, undo, ()))


class InPlaceView:
    """View of a state whose tracked arrays are all in memory from before the loop, analysed once.

    Attributes
    ----------
    view : View
    persistent, others : dict
        See `Loop.sort`.
    places : dict
        The regions of the arrays with derivatives.
    """

    __slots__ = ("others", "persistent", "places", "view")

    def __init__(self, view: View, persistent: dict, others: dict) -> None:
        self.view = view
        self.persistent = persistent
        self.others = others
        self.places = places_of(view.differentiable)


def places_of(arrays: dict[tuple, TrackedArray]) -> dict[tuple, Region]:
    """Return the regions of arrays of a state, by their paths."""
    return {path: region_of(a) for path, a in arrays.items()}
