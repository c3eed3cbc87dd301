"""Sweeps whose shadows are used in parts: boxes that tasks pass to each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..memory.blocks import is_zero
from ..memory.extents import address_of
from ..memory.storages import Region, Storage
from ..tape import Sweep, Tape
from .boxes import everything, hull, is_inside, is_part, meeting, remainder

LEAST_SHARE = 4
"""A box has a block of its own, of the size of its storage, if it is at least one such part of it."""


class PartialSweep(Sweep):
    """A sweep whose shadows may be initialised in part.

    Attributes
    ----------
    parts : dict of Region
        For storages whose shadows are used in part: the region outside of which the block is not initialised.
    pieces : dict of list of tuple
        For some of these: further boxes, each with its adjoint in a block of its own, as it was received.  They are
        disjoint from the part and from each other, and are combined with it when the shadow is used.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self.parts: dict[Storage, Region] = {}
        self.pieces: dict[Storage, list[tuple[Region, np.ndarray]]] = {}
        self._is_whole = False

    def note(self, region: Region) -> None:
        """Note that a region of a shadow is used."""

    def is_all_of(self, storage: Storage, dtype: np.dtype) -> bool:
        """Return whether a shadow has certainly been used in regions of this dtype only."""
        return False

    def _use(self, region: Region) -> None:
        """Initialise the shadow of a region that is about to be used."""
        storage = region.storage
        if storage in self.pieces:
            self._combine(storage)
        part = self.parts.get(storage)
        if part is None:
            is_new = storage not in self._shadows and not self._is_whole
            if is_new and is_part(region) and region.nbytes < storage.nbytes:
                block = self._shadows[storage] = np.empty(storage.nbytes, np.uint8)
                region.view(block)[...] = 0
                self.parts[storage] = region
        elif not is_inside(region, part):
            self._extend(storage, hull(part, region) if is_part(region) else None)

    def _extend(self, storage: Storage, larger: Region | None, received: Region | None = None) -> None:
        """Zero more of a shadow that is used in part: up to a larger box, or all; without what is being received.

        This is done in place, since the present adjoint may have views of the part.
        """
        part, block = self.parts[storage], self._shadows[storage]
        box = everything(part) if larger is None else larger
        rest = None if box is None else remainder(box, part)
        if rest is None:
            values = part.view(block).copy()
            block[...] = 0
            part.view(block)[...] = values
            larger = None
        else:
            for new in rest:
                if received is None or (new.offset, new.shape) != (received.offset, received.shape):
                    new.view(block)[...] = 0
        if larger is None:
            del self.parts[storage]
        else:
            self.parts[storage] = larger

    def _combine(self, storage: Storage) -> None:
        """Copy the pieces of a shadow into its block."""
        block = self._shadows[storage]
        for region, values in self.pieces.pop(storage):
            part = self.parts.get(storage)
            if part is not None:
                self._extend(storage, hull(part, region), region)
            region.view(block)[...] = values

    def complete(self, storage: Storage) -> np.ndarray:
        """Initialise all of a shadow, and return its block."""
        if storage in self.pieces:
            self._combine(storage)
        if storage in self.parts:
            self._extend(storage, None)
        return self._shadows[storage]

    def boxes(self, storage: Storage) -> list[tuple[Region, np.ndarray]]:
        """Return the boxes outside of which a shadow is zero, with their adjoints; none if all of it is used."""
        part = self.parts.get(storage)
        if part is None:
            return []
        return [(part, part.view(self._shadows[storage])), *self.pieces.get(storage, ())]

    def forget_zeros(self) -> None:
        """Drop shadows that are zero: of memory that the task wrote before it read it, for example."""
        for storage, block in list(self._shadows.items()):
            boxes = self.boxes(storage)
            if not boxes:
                if is_zero(block):
                    self.forget(storage)
            elif len(left := [box for box in boxes if not is_zero(box[1])]) < len(boxes):
                self._put_whole(storage, left)

    def _put_whole(self, storage: Storage, boxes: Sequence[tuple[Region, np.ndarray]]) -> None:
        """Make these boxes the shadow of a storage."""
        self.forget(storage)
        if boxes:
            (part, values), *others = boxes
            self._shadows[storage] = _block_of(part, values)
            self.parts[storage] = part
            if others:
                self.pieces[storage] = others
            for region, _ in boxes:
                self.note(region)

    def inside(self, tape: Tape) -> Sweep:
        """Do as `Sweep.inside`: from now on, shadows are whole, since the other sweep shares them."""
        for storage in list(self.parts):
            self.complete(storage)
        self._is_whole = True
        return super().inside(tape)

    def blocks(self) -> list[tuple[Storage, np.ndarray]]:
        """Do as `Sweep.blocks`."""
        for storage in list(self.parts):
            self.complete(storage)
        return super().blocks()

    def sizes(self) -> list[tuple[Storage, int]]:
        """Do as `Sweep.sizes`."""
        return [(storage, block.nbytes) for storage, block in self._shadows.items()]

    def block(self, storage: Storage) -> np.ndarray:
        """Do as `Sweep.block`."""
        if storage in self.parts:
            self.complete(storage)
        return super().block(storage)

    def shadow(self, region: Region) -> np.ndarray:
        """Do as `Sweep.shadow`, and note the region."""
        self.note(region)
        self._use(region)
        return region.view(
            self._shadows[region.storage] if region.storage in self.parts else self.block(region.storage)
        )

    def reading(self, region: Region) -> np.ndarray:
        """Do as `Sweep.reading`."""
        return self.shadow(region) if region.storage in self.parts else super().reading(region)

    def last(self, region: Region, created: Sequence[Storage]) -> np.ndarray | None:
        """Do as `Sweep.last`."""
        if region.storage in self.parts:
            self._use(region)
        return super().last(region, created)

    def hand_on(self, region: Region) -> tuple[Region, np.ndarray | None]:
        """Do as `Sweep.take`, and return the region outside of which the adjoint is zero.

        A box that is in use, or an end of it, is given away with its block, and not copied.
        """
        storage = region.storage
        boxes = self.boxes(storage) or self._all_as_box(region)
        if not boxes or any(box.dtype != region.dtype for box, _ in boxes):
            return region, taken_from(self, region)
        for k, (box, values) in enumerate(boxes):
            if box.offset == region.offset and box.shape == region.shape and box.strides == region.strides:
                self._put_whole(storage, boxes[:k] + boxes[k + 1 :])
                return region, None if is_zero(values) else values
        meetings = [meeting(box, region) for box, _ in boxes]
        met = [k for k, both in enumerate(meetings) if both is None or 0 not in both.shape]
        if not met:
            return region, None
        both, (box, whole) = meetings[met[0]], boxes[met[0]]
        rest = None if len(met) > 1 or both is None else remainder(box, both)
        if len(met) == 1 and both is not None:
            region = both
        if both is None or rest is None or len(rest) > 1:
            return region, taken_from(self, region)
        block = self._shadows[storage] if not met[0] else _block_of(box, whole)
        values = both.view(block)
        if is_zero(values):
            return both, None
        left = boxes[: met[0]] + boxes[met[0] + 1 :]
        for new in rest:
            own = new.view(np.empty(storage.nbytes, np.uint8))
            own[...] = new.view(block)
            left.insert(0, (new, own))
        self._put_whole(storage, left)
        return both, values

    def _all_as_box(self, region: Region) -> list[tuple[Region, np.ndarray]]:
        """Return all of a shadow as a box like a region that is to be handed on; nothing if that is not certain."""
        storage = region.storage
        block = self._shadows.get(storage)
        if block is None or self._is_whole or storage in self._lent:
            return []
        if not (is_part(region) and self.is_all_of(storage, region.dtype)):
            return []
        box = everything(region)
        return [] if box is None else [(box, box.view(block))]

    def receive(self, region: Region, values: np.ndarray) -> None:
        """Do as `Sweep.add` for values of `hand_on`: they become the shadow where it has not been used."""
        storage = region.storage
        if self._is_whole or not is_part(region) or values.dtype != region.dtype:
            self.add(region, values)
        elif storage not in self._shadows:
            self._put_whole(storage, [(region, values)])
        elif self._is_apart(region):
            self.pieces.setdefault(storage, []).append((region, values))
            self.note(region)
            if LEAST_SHARE * region.nbytes < storage.nbytes:
                self._combine(storage)
        else:
            self.add(region, values)

    def _is_apart(self, region: Region) -> bool:
        """Return whether a box is certainly disjoint from those in use."""
        boxes = self.boxes(region.storage)
        for box, _ in boxes:
            both = meeting(box, region)
            if both is None or 0 not in both.shape:
                return False
        return bool(boxes)

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Do as `Sweep.adopt`."""
        self.parts.pop(storage, None)
        self.pieces.pop(storage, None)
        super().adopt(storage, block)

    def forget(self, storage: Storage) -> None:
        """Do as `Sweep.forget`."""
        super().forget(storage)
        self.parts.pop(storage, None)
        self.pieces.pop(storage, None)

    def clear(self) -> None:
        """Do as `Sweep.clear`."""
        super().clear()
        self.parts.clear()
        self.pieces.clear()


def _block_of(region: Region, values: np.ndarray) -> np.ndarray:
    """Return the block of which values of a region are a view, or a new one with these values."""
    block = values.base
    if isinstance(block, np.ndarray) and block.dtype == np.uint8 and block.nbytes >= region.storage.nbytes:
        if address_of(block) + region.offset == address_of(values):
            return block
    block = np.empty(region.storage.nbytes, np.uint8)
    region.view(block)[...] = values
    return block


def taken_from(sweep: Sweep, region: Region) -> np.ndarray | None:
    """Do as `Sweep.take`; values of a box are a view of a new block in the layout of the storage, and None may stand
    for zeros."""
    if not sweep.has_shadow(region):
        return None
    shadow = sweep.shadow(region)
    if is_zero(shadow):
        return None
    if not is_part(region):
        return sweep.take(region)
    taken = region.view(np.empty(region.storage.nbytes, np.uint8))
    taken[...] = shadow
    shadow[...] = 0
    return taken
