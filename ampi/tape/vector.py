"""Vector mode: one walk back over a tape for k seeds at once.

A `VectorSweep` is a sweep with k *lanes*, which are sweeps themselves, each with the shadows of one direction.  It
walks once: old values are restored once, and the ranks agree once.  The shadows of all lanes are in one block of memory
for each storage, with k rows of its bytes; those of a lane are views of a row.  Kernels ask for interleaved shadows
(see ``interleaved``), and they stay interleaved until another operation asks for the shadows of a lane.

An adjoint with the attribute ``batched = True`` is given the `VectorSweep`, and handles all directions:

* messages go through ``sweep.lanes``, as in second order, and carry k adjoints at once;
* compiled adjoints of kernels run for several lanes at once;
* others use the shadows of all lanes as one array, whose first axis has the directions.

Any other adjoint is written for one direction, and is run for each lane.  So every operation that has an adjoint has a
vector mode, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import TapeError
from ..memory.storages import Region, Storage
from . import interleaved
from .apart import is_tracked
from .lanes import Lane, LanedSweep
from .records import Output
from .seeds import leaves, set_seeds
from .sweep import Sweep, size_of_block

if TYPE_CHECKING:
    from .tape import Tape

_ALIGNED = 16  # bytes, to whose multiples the rows of a block begin


class VectorLane(Lane):
    """One direction of a vector sweep."""

    def inside(self, tape: Tape) -> Sweep:
        """Raise an error: an inner sweep has all directions."""
        raise TapeError("a sweep inside another one has all directions")

    def new_block(self, storage: Storage) -> np.ndarray:
        """Return this direction's row of a new block."""
        if storage.is_apart:
            self.whole.apart.add(storage)
            return storage.blank(size_of_block(storage))
        self.whole.make(storage)
        return self._shadows[storage]

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Use bytes elsewhere as this direction's adjoint of a storage."""
        self.whole.part(storage)
        self.whole.apart.add(storage)
        super().adopt(storage, block)

    def forget(self, storage: Storage) -> None:
        """Set the adjoint of a storage to zero."""
        if storage in self._shadows:
            self.block(storage)[:] = 0

    def hold(self, storage: Storage, row: np.ndarray) -> None:
        """Use a row of a block as this direction's adjoint of a storage."""
        Sweep.adopt(self, storage, row)

    def nbytes(self) -> int:
        """Return the size of all shadows; of interleaved ones, the share of this direction."""
        return sum(size for _, size in self.sizes())

    def sizes(self) -> list[tuple[Storage, int]]:
        """Return the storages that have shadows, and their sizes."""
        shadows = list(self._shadows.items())
        return [(storage, storage.nbytes if block is None else block.nbytes) for storage, block in shadows]

    def lay_aside(self, storage: Storage) -> None:
        """Note that this direction's adjoint of a storage is interleaved with those of the others."""
        self._shadows[storage] = None  # type: ignore[assignment]  # until `block` asks for it
        self._forget_views(storage)

    def let_go(self, storage: Storage) -> None:
        """Drop this direction's adjoint of a storage."""
        Sweep.forget(self, storage)


class VectorSweep(LanedSweep):
    """A sweep for several directions at once. Its arguments and results have a leading axis for them.

    Attributes
    ----------
    lanes : tuple of VectorLane
        One for each direction.
    apart : set of Storage
        The storages for which lanes may have adjoints outside the blocks.
    """

    lanes: tuple[VectorLane, ...]

    def __init__(self, tape: Tape, count: int, around: VectorSweep | None = None) -> None:
        super().__init__(tape)
        self.around = around
        self.lanes = tuple(VectorLane(self, None if around is None else around.lanes[j]) for j in range(count))
        self._blocks: dict[Storage, np.ndarray] = {} if around is None else around._blocks  # rows for the lanes
        self._held: list[int] = [0, 0] if around is None else around._held  # bytes now, and at most
        self.apart: set[Storage] = set() if around is None else around.apart
        # Of the lanes' shadows, by `each`.
        self._rows: dict[Storage, dict[Region, list[np.ndarray]]] = {} if around is None else around._rows
        # Interleaved blocks instead of rows, and views of these by `side_by_side`.
        self._woven: dict[Storage, np.ndarray] = {} if around is None else around._woven
        self._seen: dict[Storage, dict[Region, np.ndarray]] = {} if around is None else around._seen

    def inside(self, tape: Tape) -> VectorSweep:
        """Return a sweep of another tape, for an adjoint of this one to run."""
        return VectorSweep(tape, len(self.lanes), self)

    # --------------------------------------------------------------------------------------------------- memory

    def make(self, storage: Storage) -> np.ndarray:
        """Make the rows of a storage: zeros, or the interleaved adjoints if there are any."""
        block, woven = np.zeros(self._size(storage), np.uint8), self._woven.get(storage)
        if woven is not None:
            interleaved.into_rows(woven, block)
        self.adopt(storage, block)
        return block

    def _size(self, storage: Storage) -> tuple[int, int]:
        size = size_of_block(storage)
        return len(self.lanes), -(-size // _ALIGNED) * _ALIGNED

    def part(self, storage: Storage) -> None:
        """Prepare for adjoints of a storage that lie in different places from here on."""
        if storage in self._woven:
            self.make(storage)
        self._drop(storage)

    def _drop(self, storage: Storage) -> None:
        """Remove the blocks of a storage."""
        for blocks in (self._blocks, self._woven):
            block = blocks.pop(storage, None)
            self._held[0] -= 0 if block is None else block.nbytes
        for views in (self._rows, self._seen):
            views.pop(storage, None)

    def _install(self, blocks: dict[Storage, np.ndarray], storage: Storage, block: np.ndarray) -> None:
        self._drop(storage)
        blocks[storage] = block
        self._held[0] += block.nbytes
        self._held[1] = max(self._held)

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Use the rows of a given block of bytes as the adjoints of a storage."""
        size = size_of_block(storage)
        self._install(self._blocks, storage, block)
        self.apart.discard(storage)
        for lane, row in zip(self.lanes, block):
            lane.hold(storage, row[:size])

    def _weave(self, storage: Storage, woven: np.ndarray) -> None:
        self._install(self._woven, storage, woven)
        self.apart.discard(storage)
        for lane in self.lanes:
            lane.lay_aside(storage)

    def fit_side_by_side(self, regions: Sequence[Region]) -> bool:
        """Return whether `side_by_side` can return the adjoints of all these regions."""
        dtypes: dict[Storage, np.dtype] = {}
        for region in regions:
            storage = region.storage
            woven = self._woven.get(storage)
            known = dtypes.setdefault(storage, region.dtype if woven is None else woven.dtype)
            if known != region.dtype or not interleaved.fits(region):
                return False
        return True

    def begin_side_by_side(self, region: Region, others: Sequence[Region]) -> bool:
        """Begin an uninitialised interleaved shadow, as `Sweep.begin_anew`; return False where that returns None."""
        storage = region.storage
        if not self._is_new(region, others):
            return False
        self._weave(storage, interleaved.allocate(storage, region.dtype, len(self.lanes)))
        return True

    def _is_new(self, region: Region, others: Sequence[Region]) -> bool:
        """Return whether a region is a whole storage, each element once, to which nothing has been added."""
        storage = region.storage
        if self.has_block(storage) or not region.is_all_ordinary():
            return False
        if any(other.storage is storage and other is not region for other in others):
            return False
        return region.view(np.empty(storage.nbytes, np.uint8)).flags.forc

    def side_by_side(self, region: Region) -> np.ndarray:
        """Return the interleaved adjoints of a region that fits, in place; the last axis has the directions, padded by
        zeros."""
        storage = region.storage
        woven = self._woven.get(storage)
        if woven is None:
            rows = self.block(storage) if self.has_block(storage) else None
            woven = interleaved.of_rows(rows, storage, region.dtype, len(self.lanes))
            self._weave(storage, woven)
        views = self._seen.setdefault(storage, {})
        view = views.get(region)
        if view is None:
            view = views[region] = interleaved.view_of(woven, region)
        return view

    def forget(self, storage: Storage) -> None:
        """Drop a storage's shadow, which is zero from here on."""
        if not self.has_block(storage):
            return
        self._drop(storage)
        self.apart.discard(storage)
        for lane in self.lanes:
            lane.let_go(storage)

    def has_block(self, storage: Storage) -> bool:
        """Return whether anything has been added to a storage's adjoint in any direction."""
        if storage in self._blocks or storage in self._woven:
            return True
        return storage in self.apart and any(lane.has_block(storage) for lane in self.lanes)

    def storages(self) -> set[Storage]:
        """Return all storages that have a shadow in any direction."""
        return {*self._blocks, *self._woven, *(storage for storage in self.apart if self.has_block(storage))}

    def note_shadows(self, note: Callable[[Storage], None]) -> Callable[[], None]:
        """Have ``note(storage)`` called for each new shadow of a lane, until the returned function is called."""
        ends = [lane.note_shadows(note) for lane in self.lanes]

        def end() -> None:
            for end_of_lane in ends:
                end_of_lane()

        return end

    def sizes(self) -> list[tuple[Storage, int]]:
        """Return the storages that have shadows in each lane, and their sizes."""
        return [pair for lane in self.lanes for pair in lane.sizes()]

    def nbytes(self) -> int:
        """Return the size of all shadows."""
        return sum(lane.nbytes() for lane in self.lanes)

    def block(self, storage: Storage) -> np.ndarray:
        """Return the adjoints of a whole storage, as rows of bytes."""
        rows = [lane.block(storage) for lane in self.lanes]  # after the guards of each
        block = self._blocks.get(storage)
        return np.stack(rows) if block is None else block

    def shadow(self, region: Region) -> np.ndarray:
        """Return the region's adjoints: in place where all are in one block, as those of ordinary memory are."""
        rows = [lane.shadow(region) for lane in self.lanes]
        block = self._blocks.get(region.storage)
        if block is None or region.storage.packed or not rows[0].size:
            return np.stack(rows)
        strides = (block.strides[0], *region.strides)
        return np.ndarray((len(rows), *region.shape), region.dtype, block, region.offset, strides)

    shadow_again = reading = shadow

    def result(self, region: Region) -> np.ndarray:
        """Return a copy of the adjoints of an independent at its place on the tape."""
        return self.shadow(region).copy(order="K")

    def take(self, region: Region) -> np.ndarray | None:
        """Return a copy of the adjoints of memory that the operation overwrote, and set them to zero there."""
        if not self.has_shadow(region):
            return None
        taken = self.shadow(region).copy()
        self.zero(region)
        return taken

    def add(self, region: Region, value: Any) -> None:
        """Add to the adjoints of memory that the operation read."""
        for lane, part in zip(self.lanes, value):
            lane.add(region, part)

    def begin_all_anew(self, region: Region, others: Sequence[Region]) -> bool:
        """Begin an uninitialised shadow in all lanes, as `Sweep.begin_anew`; return False where that returns None."""
        if not self._is_new(region, others):
            return False
        self.adopt(region.storage, np.empty(self._size(region.storage), np.uint8))
        return True

    def each(self, region: Region) -> list[np.ndarray]:
        """Return the shadows of all lanes, for a region that many records share."""
        storage = region.storage
        if storage.volatile:
            return [lane.shadow(region) for lane in self.lanes]
        rows = self._rows.get(storage, {}).get(region)
        if rows is None:
            rows = [lane.shadow(region) for lane in self.lanes]  # this may allocate the block
            self._rows.setdefault(storage, {})[region] = rows
        return rows

    # ------------------------------------------------------------------------------------------------- the walk

    def apply(self, adjoint: Any) -> None:
        """Apply the adjoint of a record."""
        if adjoint.batched:
            adjoint(self)
            return
        for lane in self.lanes:
            lane.after = self.after
            adjoint(lane)

    def clear(self) -> None:
        """Drop all shadows."""
        self.tape.latest_shadows = self._held[1]
        self.apart.clear()
        for kept in (self._blocks, self._rows, self._woven, self._seen):
            kept.clear()
        super().clear()


def count_of(y: Any, seeds: Any) -> int:
    """Return the number of directions of the seeds."""
    outputs = list(leaves(y))
    if isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        if outputs:
            raise TapeError(
                "tape.gradient: seeds= is a number, which only a rank without output passes; pass one array for each "
                "output, with an axis for the directions before those of the output"
            )
        return _at_least_one(int(seeds))
    if not outputs:
        raise TapeError(
            "tape.gradient: on a rank without output pass the number of directions, which the others have: seeds=k"
        )
    given = _in_order(y, seeds)
    if len(given) != len(outputs):
        raise TapeError(f"tape.gradient: {len(outputs)} outputs but {len(given)} seeds")
    count = None
    for number, (output, seed) in enumerate(zip(outputs, given)):
        shape, wanted = np.shape(seed), output.shape
        if wanted is None:  # an output that cannot carry a seed: `set_seeds` raises the error
            continue
        if shape[1:] != wanted or not shape:
            raise TapeError(
                f"tape.gradient: seed {number} has shape {shape}; its output has shape {wanted}, so that with k "
                f"directions it must have shape {shape_of_all(wanted)}"
            )
        if count is not None and shape[0] != count:
            raise TapeError(
                f"tape.gradient: seed {number} has shape {shape}, of {shape[0]} directions, and those before it have "
                f"{count}"
            )
        count = shape[0]
    return _at_least_one(count or 0)


def _at_least_one(count: int) -> int:
    if count < 1:
        raise TapeError(f"tape.gradient: seeds= of {count} directions; pass one at least")
    return count


def shape_of_all(shape: tuple[int, ...]) -> str:
    """Return the shape of one array for each of k directions, as text."""
    return f"(k, {', '.join(map(str, shape))})" if shape else "(k,)"


def _in_order(y: Any, seeds: Any) -> list[Any]:
    return list(leaves(seeds)) if isinstance(y, (tuple, list)) else [seeds]


def set_lane_seeds(sweep: VectorSweep, y: Any, seeds: Any) -> None:
    """Set the seeds of the outputs, in each lane those of its direction."""
    given = [] if isinstance(seeds, (int, np.integer)) else [np.asarray(seed) for seed in _in_order(y, seeds)]
    for output, seed in zip(leaves(y), given):
        if not isinstance(output, Output) and not is_tracked(output):
            set_seeds(sweep, output, seed)  # raises the error
        for lane, part in zip(sweep.lanes, seed):
            set_seeds(lane, output, part)
