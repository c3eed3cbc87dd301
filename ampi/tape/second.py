"""Second order, forward over reverse: a tape that carries tangents along, and the sweep that does so as well.

While the program runs, a `SecondTape` records as any tape does and pushes tangents through each operation, as forward
mode does; its undo log saves overwritten values with their tangents.  `PairSweep` is the sweep over it: every adjoint
has a value and tangents in one direction or several, and the tape, which now only pushes tangents, differentiates what
the adjoints of the operations compute.  `records.Adjoint.second_order` distinguishes three kinds of adjoints; recording
an operation with any other raises an error.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import ActivityError
from ..memory.blocks import copied
from ..memory.extents import Extent
from ..memory.storages import (
    CHECKED,
    Region,
    Storage,
    array_type,
    as_viewed,
    carries_derivatives,
    plain,
    region_of,
    storage_of,
    tracked,
    tracked_copy,
)
from .forward import ForwardTape
from .lanes import Lane, LanedSweep
from .push import Push
from .recording import actively, passively, resumed
from .records import Adjoint, SecondOrder, name_of
from .seeds import set_seeds
from .sweep import lanes_of, size_of_block
from .tape import Tape
from .undo import Undo


def kind_of(adjoint: Adjoint) -> SecondOrder:
    """Return how an adjoint is applied in second order; raise if it cannot be."""
    kind = adjoint.second_order
    if kind is None:
        raise no_second_derivative(f"this operation ({name_of(adjoint)})")
    return kind


def no_second_derivative(what: str) -> ActivityError:
    """Return the error for an operation that second order does not cover."""
    return ActivityError(
        f"{where_called()}: {what} has no second derivative yet, so ampi.hvp cannot go through it; use differences of "
        "ampi.grad, or ampi.value(x) if it is a constant"
    )


class PairUndo(Undo):
    """Overwritten values and their tangents.

    Attributes
    ----------
    tangents : list of numpy.ndarray, or None
        One for each direction; None where all are zero.
    """

    __slots__ = ("push", "region", "tangents")
    region_of: Callable[[Storage, Any], Region] = Region

    def __init__(self, storage: Storage, view: np.ndarray, extent: Extent, key: Any, push: Push) -> None:
        super().__init__(storage, view, extent, key)
        self.push = push
        self.region = self.region_of(storage, view)
        self.tangents: Any = self._present_tangents() if push.has_block(storage) else None

    def _present_tangents(self) -> list[Any]:
        return [self._copied(lane.shadow(self.region)) for lane in lanes_of(self.push)]

    def _copied(self, tangent: Any) -> Any:
        return copied(tangent) if self.key is None else np.array(tangent[self.key])

    def _put_back_tangent(self, place: Any, tangent: Any) -> None:
        place[... if self.key is None else self.key] = tangent

    swap_values = Undo.swap

    def holds_tangents(self, view: np.ndarray, extent: Extent) -> list[np.ndarray] | None:
        """Return the saved tangents of an array whose values `holds` returns; None if they are zero."""
        if self.tangents is None:
            return None
        return [self.part_of(tangent, view, extent) for tangent in self.tangents]  # type: ignore[misc]

    def swap(self) -> None:
        """Exchange saved and present values and tangents."""
        Undo.swap(self)
        if self.tangents is None and not self.push.has_block(self.storage):
            return
        present = self._present_tangents()
        for lane, tangent in zip(lanes_of(self.push), self.tangents or [0] * len(present)):
            self._put_back_tangent(lane.shadow(self.region), tangent)
        self.tangents = present

    def nbytes_of_tangents(self) -> int:
        """Return the size of the saved tangents in bytes."""
        return sum(tangent.nbytes for tangent in self.tangents or ())


class SecondTape(ForwardTape):
    """The tape of `ampi.hvp`: it records, and pushes tangents as well.

    Attributes
    ----------
    tangents : Push
        The tangents, in one direction or several; they are `forward`, too, once the tape only pushes.
    sweeping : bool
        True once the tape no longer records: the program has ended, and adjoints with their tangents are computed.
    undone_bytes : int
        The bytes of the tangents in the undo log.
    """

    walks = True

    def __init__(self, make: Callable[[Tape], Push] = Push) -> None:
        super().__init__(make)
        self.tangents: Push = self.forward
        self.forward = None
        self.sweeping = False
        self.undone_bytes = 0

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Make the tape behave as one of forward mode inside the block."""
        outer, self.forward = self.forward, self.tangents
        try:
            yield
        finally:
            self.forward = outer

    def sweep_begins(self) -> None:
        """Stop recording: from here on the tape only pushes tangents."""
        if self.observer is not None:
            self.observer.close()
            self.observer = None
        self.append_record = self.append_unobserved
        self.forward = self.tangents
        self.sweeping = True

    def finish(self, error: BaseException | None) -> None:
        """End the program; if that raises an error, there is no sweep, and ranks that wait for it are informed."""
        self.tangents.finish(error, self.refuse)

    watch = Tape.watch
    append = Tape.append
    append_start = Tape.append_start

    def append_unobserved(self, record: Any) -> None:
        """Push tangents through an operation, and record it while the program runs."""
        adjoint = record.adjoint
        if self.sweeping:
            self._push(adjoint, record.undo)
            return
        self._noted.clear()
        if adjoint is not None:
            kind_of(adjoint)
        self.records.append(record)
        if adjoint is not None and not adjoint.propagates_tangents:
            scope = passively()  # the values of rules are tracked, for the sweep
            try:
                self.tangents.push(adjoint, record.undo)
            finally:
                actively(scope)

    def activate(self, array: np.ndarray) -> None:
        """As for other tapes, but ``AMPI_CHECK`` does not guard the memory as it does in `ampi.grad`."""
        super().activate(array)
        storage: Any = storage_of(array)
        if storage.guard == CHECKED:
            storage.guard = 0

    def start(self, array: np.ndarray, tangent: Any) -> None:
        """Give an array a tangent."""
        self.activate(array)
        self.tangents.put(region_of(array), tangent)

    def tangent_at(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of the tangent of an array; in several directions with a first axis for them."""
        with self.pushing():
            return super().tangent_at(array)

    def deactivate(self, array: np.ndarray) -> None:
        """Do nothing: a sweep restores values that carry derivatives."""

    def undo_of(self, storage: Storage, array: np.ndarray, extent: Extent, key: Any) -> Undo:
        """Return the undo of a write that is about to be made, with tangents."""
        if self.sweeping:
            return Undo(storage, array, extent, key)
        new = PairUndo(storage, array, extent, key, self.tangents)
        self.undone_bytes += new.nbytes_of_tangents()
        return new

    def need(self, array: np.ndarray) -> np.ndarray:
        """As for other tapes, with tracked arrays for those that carry derivatives."""
        if self.sweeping:
            return ForwardTape.need(self, array)
        found = Tape.need(self, array)
        storage = storage_of(array)
        if storage is None or not carries_derivatives(array.dtype):
            return found
        if storage_of(found) is storage:  # it may become active later
            return as_viewed(found, array_type())
        return self.pair(np.array(found), self.tangent_at(array)) if self.is_active(array) else found

    def need_again(self, need: Any) -> None:
        """As for other tapes."""
        (ForwardTape if self.sweeping else Tape).need_again(self, need)

    def stacked(self, tangents: Sequence[np.ndarray]) -> np.ndarray:
        """Stack tangents of each direction in the form of `tangent_at`."""
        return tangents[0] if self.tangents.lanes is None else np.stack(tangents)

    def pair(self, value: np.ndarray, tangent: np.ndarray) -> np.ndarray:
        """Return a new tracked array with these values and tangents (in the form of `tangent_at`)."""
        new = tracked_copy(value)
        self.start(new, tangent)
        return new


class PairLane(Lane):
    """The values of all adjoints, or their tangents in one direction.

    Attributes
    ----------
    held, most : int
        The bytes that these take now, and the most that they have taken.
    """

    def __init__(self, pair: PairSweep) -> None:
        super().__init__(pair)
        self.state["watch results"] = {}
        self.held = self.most = 0

    def new_block(self, storage: Storage) -> np.ndarray:
        """Return zeros that own their memory, as the array of a storage must."""
        size = size_of_block(storage)
        block = storage.blank(size) if storage.is_apart else np.zeros(size, np.uint8)
        self.held += block.nbytes
        self.most = max(self.most, self.held)
        return block

    def forget(self, storage: Storage) -> None:
        """Drop a storage's adjoint, which is zero from here on."""
        block = self._shadows.get(storage)
        if block is not None:
            self.held -= block.nbytes
            super().forget(storage)


class PairSweep(LanedSweep):
    """A sweep of adjoints with their tangents. Adjoints that compute with both get tracked arrays.

    Attributes
    ----------
    lanes : tuple of PairLane
        The adjoints, and then their tangents, in as many directions as the tape has.
    products : list of numpy.ndarray
        After the walk: the tangents of the results, with a first axis for the directions if the tape has several.
    most : int
        After the walk: the most bytes that tangents of adjoints have taken.
    """

    tape: SecondTape
    pairs = True

    def __init__(self, tape: SecondTape) -> None:
        super().__init__(tape)
        self.lanes = tuple(PairLane(self) for _ in range(1 + len(lanes_of(tape.tangents))))
        self.products: list[np.ndarray] = []
        self.most = 0
        self._active: dict[Storage, tuple[list[np.ndarray], np.ndarray]] = {}

    # ------------------------------------------------------------------------------------------ for adjoints on pairs

    def block(self, storage: Storage) -> np.ndarray:
        """Raise an error: bytes have no tangents."""
        raise no_second_derivative("an operation that reads the bytes of adjoints")

    def shadow(self, region: Region) -> np.ndarray:
        """Return the region's adjoint, in place, as an array that has a tangent."""
        storage = region.storage
        blocks = [lane.block(storage) for lane in self.lanes]
        known = self._active.get(storage)
        if known is None or any(map(operator.is_not, known[0], blocks)):
            holder = tracked(blocks[0])
            mine: Any = storage_of(holder)
            mine.tape, mine.guard = self.tape.reference, 0  # all lanes write into it
            for tangents, block in zip(lanes_of(self.tape.tangents), blocks[1:]):
                tangents.adopt(mine, block)
            self._active[storage] = blocks, holder
        return as_viewed(region.view(blocks[0]), array_type())

    shadow_again = reading = shadow

    def take(self, region: Region) -> np.ndarray | None:
        """Return a copy of the adjoint of memory that the operation overwrote, and set it to zero there."""
        if not self.has_shadow(region):
            return None
        zero = np.zeros(region.shape, region.dtype)
        value, *tangents = (zero if taken is None else taken for taken in (lane.take(region) for lane in self.lanes))
        return self.tape.pair(value, self.tape.stacked(tangents))

    def add(self, region: Region, value: Any) -> None:
        """Add to the adjoint of memory that the operation read, and to its tangent."""
        values, *tangents = self.lanes
        values.add(region, plain(value) if isinstance(value, np.ndarray) else value)
        if isinstance(value, np.ndarray) and self.tape.is_active(value):
            given = region_of(value)
            for lane, its in zip(tangents, lanes_of(self.tape.tangents)):
                lane.add(region, its.get(given))
        elif np.any(value):
            raise no_second_derivative("an operation whose adjoint drops derivatives")

    def add_once(self, region: Region, value: np.ndarray, kept: np.ndarray) -> None:
        """Add to the adjoint."""
        self.add(region, value)

    def begin(self, region: Region, value: np.ndarray) -> None:
        """Add the seed of an output, which is constant."""
        self.lanes[0].add(region, value)

    def forget(self, storage: Storage) -> None:
        """Drop a storage's adjoint, which is zero from here on."""
        for lane in self.lanes:
            lane.forget(storage)
        self._active.pop(storage, None)

    def values(self, array: np.ndarray) -> tuple[np.ndarray, list[np.ndarray] | None]:
        """Return the values that an array had when the operation ran, and their tangents in each direction (None:
        zero), read-only; from the undo log where possible."""
        storage = storage_of(array)
        pending = self._pending.get(storage) if storage is not None else None
        if pending:
            extent = Extent(array)
            for undo in reversed(pending):
                if undo.extent.overlaps(extent):
                    saved = undo.holds(array, extent)
                    if saved is not None:
                        return saved, undo.holds_tangents(array, extent)  # type: ignore[attr-defined]
                    self._undo(storage)
                    break
        push = self.tape.tangents
        if storage is None or not push.has_block(storage) or not carries_derivatives(array.dtype):
            return plain(array), None
        region = region_of(array)
        return plain(array), [lane.get(region) for lane in lanes_of(push)]

    def value(self, array: np.ndarray) -> np.ndarray:
        """Return the values that an array had when the operation ran, with their tangents."""
        self.put_back([storage_of(array)])
        return array

    def _values_after(self, arrays: Sequence[np.ndarray], undos: Sequence[Undo]) -> list[np.ndarray]:
        tape = self.tape
        self.put_back([storage_of(array) for array in arrays])
        return [tape.pair(plain(a), tape.tangent_at(a)) if tape.is_active(a) else plain(a).copy() for a in arrays]

    # ------------------------------------------------------------------------------------------------------ the walk

    def run(self) -> None:
        """Walk back over the tape, then restore the memory."""
        self.tape.sweep_begins()
        super().run()

    def apply(self, adjoint: Adjoint) -> None:
        """Apply the adjoint of a record to the adjoints and their tangents."""
        kind = kind_of(adjoint)
        if kind == "differentiated":
            with resumed(self.tape), np.errstate(all="ignore"):
                adjoint(self)
        elif kind == "linear":
            for lane in self.lanes:
                adjoint(lane)
        else:
            adjoint(self)

    def found(self) -> list[np.ndarray]:
        """Return the adjoints of the requested independents; their tangents become `products`."""
        gradient, *products = ([lane.state["watch results"][id(r)] for r in self.wanted] for lane in self.lanes)
        self.products = list(map(self.tape.stacked, zip(*products)))
        self.most = sum(lane.most for lane in self.lanes[1:])
        return gradient


def second_order(
    tape: SecondTape, y: Any, x: Sequence[Any], seed: Any, seed_dots: Sequence[Sequence[np.ndarray]] = ()
) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Return the gradients of outputs with respect to watched arrays, their tangents (with a first axis for the
    directions if the tape has several), and the most bytes that tangents took.

    ``seed_dots`` has, for each output, the tangents of its seed in each direction; by default they are zero."""
    sweep = PairSweep(tape)
    try:
        sweep.wanted = [tape.watched(leaf) for leaf in x]
        set_seeds(sweep, y, seed)
        for output, dots in zip(y, seed_dots):
            for lane, dot in zip(sweep.lanes[1:], dots, strict=True):
                lane.add(region_of(output), dot)
    except Exception as error:
        tape.refuse(error)
        raise
    sweep.run()
    return sweep.results, sweep.products, tape.tangents.most + tape.undone_bytes + sweep.most
