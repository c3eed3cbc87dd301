"""Vector mode, forward: tangents in k directions at once.

A `VectorPush` has lanes, as a `VectorSweep` has.  Each is a `Push`, and they go through each operation together, so old
values are restored once.  An adjoint's ``tangent`` is given the `VectorPush` if the adjoint has ``batched = True``,
otherwise each of the lanes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TapeError
from ..memory.storages import Region, Storage
from . import interleaved
from .push import Push, new_blocks
from .vector import shape_of_all

if TYPE_CHECKING:
    from .tape import Tape


class PushLane(Push):
    """The tangents in one direction."""

    def __init__(self, vector: VectorPush) -> None:
        super().__init__(vector.tape)
        self.vector = vector

    @property
    def whole(self) -> VectorPush:
        """The push of all directions."""
        return self.vector

    @property
    def walks(self) -> bool:
        """True if this is a walk over the records of a closed tape."""
        return self.vector.walks

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have ``callback(error)`` called at the very end."""
        self.vector.at_end(callback)

    def block(self, storage: Storage) -> np.ndarray:
        """Return the tangent of a whole storage, as bytes, in place; zeros at first use."""
        self.vector.take_apart(storage)
        is_new = not self.has_block(storage)
        block = super().block(storage)
        if is_new:
            self.vector.hold(storage, block.nbytes)
        return block

    def has_block(self, storage: Storage) -> bool:
        """Return whether a storage has a tangent, in rows or interleaved."""
        return super().has_block(storage) or self.vector.has_woven(storage)

    def has_shadow(self, region: Region) -> bool:
        """Return whether a region's storage has a tangent."""
        return self.has_block(region.storage)

    def shadow(self, region: Region) -> np.ndarray:
        """Return the region's tangent, in place; zeros at first use."""
        self.vector.take_apart(region.storage)
        return super().shadow(region)

    shadow_again = reading = shadow

    def get(self, region: Region) -> np.ndarray:
        """Return the region's tangent, to be read at once and not to be modified."""
        self.vector.take_apart(region.storage)
        return super().get(region)

    def zero(self, region: Region, key: Any = ...) -> None:
        """Set the tangent of memory overwritten by a constant to zero."""
        self.vector.take_apart(region.storage)
        super().zero(region, key)

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Use these bytes as the tangent of a storage."""
        self.vector.take_apart(storage)
        self.vector.adopted.add(storage)
        super().adopt(storage, block)

    def hold_row(self, storage: Storage, block: np.ndarray) -> None:
        """Use this row as the tangent of a storage."""
        self._blocks[storage] = block

    def lay_aside(self, region: Region) -> None:
        """Note that the tangent of a region's storage is interleaved."""
        if self._blocks.pop(region.storage, None) is None:
            self._note_numbers(region)


class VectorPush(Push):
    """Tangents of memory in several directions. Arguments and results have a leading axis for them.

    Attributes
    ----------
    lanes : tuple of PushLane
        One for each direction.
    adopted : set of Storage
        Storages whose tangents are in memory of other objects, where they stay.
    """

    lanes: tuple[PushLane, ...]
    interleaves = True

    def __init__(self, tape: Tape, count: int) -> None:
        super().__init__(tape)
        self.lanes = tuple(PushLane(self) for _ in range(count))
        self.adopted: weakref.WeakSet[Storage] = weakref.WeakSet()
        self._held = [0, 0]  # bytes now, and at most
        self._woven: weakref.WeakKeyDictionary[Storage, np.ndarray] = weakref.WeakKeyDictionary()

    @property
    def most(self) -> int:  # type: ignore[override]
        """The most bytes that the tangents have taken."""
        return self._held[1]

    def keep_in_rows(self, is_so: bool) -> None:
        """Interleave no tangents from now on, or do so again: other threads, too, have views of the rows."""
        self.interleaves = not is_so
        for storage in list(self._woven):
            self.take_apart(storage)

    def share(self, whole: VectorPush, lanes: Iterable[PushLane]) -> None:
        """Become the push of a part of the program that runs in another thread, with lanes that share the blocks."""
        self.lanes = tuple(lanes)
        self.adopted, self._held, self._woven = whole.adopted, whole._held, whole._woven
        self.interleaves = False

    def like(self, tape: Tape) -> VectorPush:
        """Return a push for another tape, with as many directions."""
        return VectorPush(tape, len(self.lanes))

    def has_shadow(self, region: Region) -> bool:
        """Return whether the region's storage has a tangent in any direction."""
        return self.has_block(region.storage)

    def has_block(self, storage: Storage) -> bool:
        """Return whether a storage has a tangent in any direction."""
        return any(lane.has_block(storage) for lane in self.lanes)

    def has_woven(self, storage: Storage) -> bool:
        """Return whether the tangents of a storage are interleaved."""
        return storage in self._woven

    def side_by_side(self, region: Region) -> np.ndarray | None:
        """Return the region's interleaved tangents, in place; the last axis has the directions, padded by zeros. None
        where they cannot be interleaved."""
        storage = region.storage
        woven = self._woven.get(storage)
        if (
            not self.interleaves
            or storage in self.adopted
            or not interleaved.fits(region)
            or (woven is not None and woven.dtype != region.dtype)
        ):
            return None
        if woven is None:
            rows = None
            if any(lane.has_block(storage) for lane in self.lanes):
                rows = np.stack([lane.block(storage) for lane in self.lanes])
            woven = self._woven[storage] = interleaved.of_rows(rows, storage, region.dtype, len(self.lanes))
            for lane in self.lanes:
                lane.lay_aside(region)
            self.hold(storage, woven.nbytes)
        return interleaved.view_of(woven, region)

    def take_apart(self, storage: Storage) -> None:
        """Move interleaved tangents of a storage into rows, one for each direction."""
        woven = self._woven.pop(storage, None)
        if woven is None:
            return
        rows = np.zeros((len(self.lanes), storage.nbytes), np.uint8)
        interleaved.into_rows(woven, rows)
        for lane, row in zip(self.lanes, rows):
            lane.hold_row(storage, row)

    def hold(self, storage: Storage, nbytes: int) -> None:
        """Count bytes that are held as long as a storage exists."""
        held = self._held
        with new_blocks:
            held[0] += nbytes
            held[1] = max(held)
        weakref.finalize(storage, _let_go, held, nbytes).atexit = False

    def block(self, storage: Storage) -> np.ndarray:
        """Raise an error: the tangents of several directions are not in one place."""
        raise TapeError("an operation asks for the tangents of all directions in one block, and they are in several")

    shadow = shadow_again = reading = block  # type: ignore[assignment]

    def get(self, region: Region) -> np.ndarray:
        """Return a copy of the region's tangents."""
        return np.stack([lane.get(region) for lane in self.lanes])

    def put(self, region: Region, value: Any, mask: Any = True) -> None:
        """Set the tangents of memory that was overwritten: a number, or one array for each direction."""
        for lane, part in zip(self.lanes, value if np.ndim(value) else [value] * len(self.lanes)):
            lane.put(region, part, mask)

    def zero(self, region: Region, key: Any = ...) -> None:
        """Set the tangents of memory overwritten by a constant to zero."""
        for lane in self.lanes:
            lane.zero(region, key)

    def add(self, region: Region, value: Any) -> None:
        """Add to the tangents."""
        for lane, part in zip(self.lanes, value):
            lane.add(region, part)

    def apply(self, adjoint: Any, rule: Callable[[Any], None]) -> None:
        """Push the tangents through an operation."""
        if adjoint.batched:
            rule(self)
            return
        for lane in self.lanes:
            lane.after = self.after
            rule(lane)


def _let_go(held: list[int], nbytes: int) -> None:
    with new_blocks:
        held[0] -= nbytes


def directions_of(where: str, leaves: list[Any], tangents: list[Any], given: bool | int) -> int:
    """Return the number of directions: the length of the first axis of tangents, or ``given`` without any tangent."""
    count = None if isinstance(given, bool) else int(given)
    for number, (leaf, tangent) in enumerate(zip(leaves, tangents)):
        if tangent is None:
            continue
        shape, wanted = np.shape(tangent), np.shape(leaf)
        if not shape or shape[1:] != wanted:
            raise TapeError(
                f"{where}: tangent {number} has shape {shape}; its primal has shape {wanted}, so that with k "
                f"directions it must have shape {shape_of_all(wanted)}"
            )
        if count is not None and count != shape[0]:
            raise TapeError(f"{where}: tangent {number} has {shape[0]} directions, and not {count}")
        count = shape[0]
    if count is None:
        raise TapeError(f"{where}: the number of directions is unknown without a tangent; pass it: vectorised=k")
    if count < 1:
        raise TapeError(f"{where}: {count} directions; pass one at least")
    return count
