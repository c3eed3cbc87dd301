"""Message buffers: a message's memory as a flat sequence of basic elements.

A `Buffer` lists the elements of a storage that a message consists of; `arguments` makes buffers from mpi4py's message
arguments.  In a sweep its adjoint is read and updated as a contiguous one-dimensional array of the basic dtype,
whatever the datatype was; gaps are not touched.

A buffer keeps no handle of MPI: the user may free the datatype.  After `Buffer.detach` it keeps no memory alive either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...arrays.byte_views import bits_in
from ...errors import ActivityError
from ...memory.storages import RECEIVED, Memory, Region, Storage, TrackedArray, address_of, plain, set_message
from ...tape import Sweep, Tape, Undo, overwrite
from ...tape.recording import current, open_tapes, recording
from ...tape.recording import tasks as running
from .packed_adjoints import SLOT_DTYPE
from .typemaps import Layout, Piece, Typemap

FLOATING = frozenset(np.dtype(c) for c in "efdgFDG")
_BYTE = np.dtype(np.uint8)


class Buffer:
    """The memory of one message (or of one block of messages of a collective operation).

    Attributes
    ----------
    array : numpy.ndarray or None
        The memory; None if there is none (``PROC_NULL``, ``IN_PLACE``, ``BOTTOM``) or after `detach`.
    dtype : numpy.dtype or None
        Basic dtype of the elements; None if they have several floating-point dtypes or cut through elements of memory.
    count : int
        Number of elements of that dtype.
    counts : list of int or None
        For the forms with counts: elements of the block for each rank; the buffer is the concatenation of the blocks.
    storage : Storage or None
        The storage of the memory, if it is tracked.
    tracked : bool
        The elements can carry derivatives: tracked memory, floating-point or complex elements.
    raw : bool
        The datatype names bytes or integers, but the memory holds floating-point elements: the message can be copied,
        but not reduced.
    bytewise : bool
        The datatype names bytes.
    packed : bool
        The memory consists of bytes, into which elements may have been packed: the adjoint has a number for each byte
        (`packed_adjoints`), and ``dtype`` is the dtype of these numbers.
    mixed : bool
        The message also has elements of other dtypes.
    nbytes : int
        Bytes of the message, packed.
    address : int or None
        Of the message; None: that of the array.
    layout : Layout or None
        Where the elements lie relative to that address; None: contiguous.
    extra : sequence of (dtype, Piece)
        Elements of other dtypes, which a receive overwrites as well.
    typemap : Typemap or None
        Of a mixed message: where its elements are once packed.
    sent, received : messages.Route or None
        Where the latest message of the memory went to, and came from.
    """

    __slots__ = (
        "_regions",
        "_start",
        "address",
        "array",
        "bytewise",
        "count",
        "counts",
        "dtype",
        "extra",
        "layout",
        "mixed",
        "nbytes",
        "packed",
        "raw",
        "received",
        "sent",
        "storage",
        "tracked",
        "typemap",
    )

    def __init__(
        self,
        array: np.ndarray | None,
        storage: Storage | None,
        dtype: np.dtype | None,
        count: int,
        address: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.array = array
        self.dtype = dtype
        self.count = count
        self.counts: list[int] | None = None
        self.storage = storage
        self.tracked = storage is not None and dtype in FLOATING
        self.raw = False
        self.mixed = False
        self.bytewise = False
        self.packed = False
        self.nbytes = 0 if dtype is None else count * dtype.itemsize
        self.address = address
        self.layout = layout
        self.extra: Sequence[tuple[np.dtype, Piece]] = ()
        self._regions: list[Region] | None = None
        self.typemap: Typemap | None = None
        self._start = 0
        self.sent: Any = None
        self.received: Any = None

    def __repr__(self) -> str:
        what = "no memory" if self.array is None and self.storage is None else "tracked" if self.tracked else "plain"
        return f"<Buffer of {self.count} {self.dtype} ({what})>"

    # ------------------------------------------------------------------------------------------------ when recorded

    def active(self, tape: Tape) -> bool:
        """Return whether the message's memory carries derivatives on the tape.

        Raises
        ------
        ActivityError
            It does, and the message cuts through its elements or mixes floating-point dtypes.
        """
        storage = self.storage
        if storage is None:
            return False
        self._require_own()
        if storage.tape is None:
            return False
        if storage.tape is not tape.reference:
            return tape.is_active(self.array)
        if self.packed:
            if self.tracked and not storage.packed:
                storage.packed = bits_in(tape, self.array)  # numbers were written into it by a view
            return self.tracked and bool(storage.packed)
        if self.dtype is None:
            raise ActivityError(
                "an active array is sent as a datatype with several floating-point dtypes, or as bytes that are not "
                "whole aligned elements of it; send each dtype in a message of its own, or ampi.value(array)"
            )
        return self.tracked

    @property
    def storages(self) -> Sequence[Storage | None]:
        """The storages of the memory."""
        return (self.storage,)

    @property
    def loses(self) -> bool:
        """True if some derivatives that are received would be lost."""
        return not self.tracked

    def on(self, tape: Tape) -> bool:
        """Return whether any of the memory is active on the tape, whatever the message's datatype."""
        return tape.is_active(self.array)

    def activate(self, tape: Tape) -> None:
        """Mark the message's memory as carrying derivatives."""
        if self.tracked:
            tape.set_active(self.storage)
            if self.packed:
                self.storage.packed = self.storage.packed or RECEIVED

    def uncertain(self) -> bool:
        """Return whether the message consists of received bytes whose contents are unknown."""
        return self.packed and self.storage is not None and self.storage.packed == RECEIVED

    def need(self, tape: Tape) -> Callable[[], np.ndarray]:
        """Request the values that the message's memory has now, for the adjoint.

        Returns
        -------
        callable
            Gives them in the sweep: a contiguous one-dimensional array of ``dtype``, not to be written to.
        """
        if self.array is None or self.count == 0:
            empty = np.zeros(self.count, self.dtype)
            return lambda: empty
        if self._is_whole():
            whole = tape.need(self.array)
            return lambda: whole.ravel("K")
        views = [tape.need(view) for view in self._views()]
        index = self._index()
        if index is not None:
            return lambda: views[0][index]
        if len(views) == 1:
            return lambda: views[0].reshape(-1)
        return lambda: np.concatenate([view.reshape(-1) for view in views])

    def values(self) -> np.ndarray:
        """Return the present values of the message's memory as a contiguous one-dimensional copy."""
        if self.array is None or self.count == 0:
            return np.zeros(self.count, self.dtype)
        index = self._index()
        if index is not None:
            return self._views()[0][index]
        return np.concatenate([view.reshape(-1) for view in self._views()])

    def store(self, values: np.ndarray) -> None:
        """Store values, or pairs of a value and a location, in the message's memory; nothing is recorded."""
        if values.dtype.names is not None:
            _fill(self._others(values.dtype["location"]), values["location"])
            values = values["value"]
        index = self._index()
        if index is not None:
            self._views()[0][index] = values
        elif self.count:
            _fill(self._views(), values)

    def others(self, dtype: np.dtype) -> np.ndarray:
        """Return the values of the message's elements of another dtype as a one-dimensional array."""
        return np.concatenate([np.zeros(0, dtype), *(view.reshape(-1) for view in self._others(dtype))])

    def overwritten(self) -> list[np.ndarray]:
        """Return arrays on exactly the memory that a receive writes, for `tape.overwrite` before it."""
        if not self._matters():
            return []
        if self._is_whole():
            return [self.array] if self.count else []
        dtype = self._item()
        views = [] if dtype is None else [self._memory(dtype, piece) for piece in self.pieces()]
        return views + [self._memory(other, piece) for other, piece in self.extra]

    def overwrite(self) -> list[Undo]:
        """Save values that records need, before the message is received (`tape.overwrite`)."""
        storage, tape = self.storage, recording()
        unneeded = storage is not None and not (storage.needs or storage.guard or storage.elsewhere)
        if unneeded and tape is not None and tape.accesses is None:
            if storage.tape is None or storage.tape is tape.reference:
                return []
        if not self._matters():
            return []
        index = self._index()
        if index is None or self.extra:
            return overwrite(*self.overwritten())
        return overwrite(self._views()[0], key=index)

    def detach(self) -> Buffer:
        """Drop the reference to the message's memory, for buffers that a record holds; returns the buffer."""
        if self.tracked and self.address is None:
            self.address = address_of(self.array)
        self.array = None
        return self

    def first(self, n: int) -> Buffer:
        """Return the buffer of the first ``n`` elements: what a receive of a shorter message has written."""
        return self if n >= self.count else self.part(0, n)

    def places(self) -> np.ndarray:
        """Return the first byte of each element in the packed message, int64."""
        if self.typemap is None:
            return np.arange(self.count, dtype=np.int64) * self._item().itemsize
        items, elements = np.divmod(self._start + np.arange(self.count), self.typemap.length)
        first = self.typemap.places - self._item().itemsize
        return items * self.typemap.size + first[elements]

    def within(self, nbytes: int) -> Buffer:
        """Return the buffer of the elements in the first ``nbytes`` of the packed message."""
        if self.dtype is None or nbytes >= self.nbytes:
            return self
        itemsize = self._item().itemsize
        if self.typemap is None:
            return self.first(nbytes // itemsize)
        return self.first(int(np.searchsorted(self.places() + itemsize, nbytes, side="right")))

    def part(self, start: int, stop: int) -> Buffer:
        """Return the buffer of elements ``start`` to ``stop``."""
        itemsize = self._item().itemsize if self.dtype is not None else 1
        part = Buffer(self.array, self.storage, self.dtype, stop - start)
        part.tracked = self.tracked
        part.raw, part.mixed = self.raw, self.mixed
        part.bytewise, part.packed = self.bytewise, self.packed
        part.typemap, part._start = self.typemap, self._start + start
        part.nbytes = part.count * itemsize
        if self.address is None:
            self.address = 0 if self.array is None else address_of(self.array)
        if self.layout is None:
            part.address = self.address + start * itemsize
        else:
            part.address = self.address
            part.layout = self.layout.part(start, stop, itemsize)
        return part

    def shape(self) -> tuple[tuple[int, ...], str]:
        """Return shape and order of the elements: those of the array if it is sent as a whole."""
        array = self.array
        if array is None or self.layout is not None or array.dtype != self.dtype or array.size != self.count:
            return (self.count,), "C"
        return array.shape, "C" if array.flags.c_contiguous else "F"

    # ------------------------------------------------------------------------------------------------ in the sweep

    def regions(self) -> list[Region]:
        """Return the regions of the tracked memory: one for each piece, or the range that an index array refers to."""
        if self._regions is None:
            self._regions = [] if self.storage is None or self.count == 0 else self._make_regions()
        return self._regions

    def peek(self, sweep: Sweep) -> np.ndarray:
        """Return a contiguous one-dimensional copy of the adjoint; zeros where the memory is not tracked."""
        if not self._has_adjoint() or not sweep.has_shadow(self.regions()[0]):
            return np.zeros(self.count, self.dtype)
        index = self._index()
        if index is not None:
            adjoint = sweep.shadow(self._regions[0])[index]
        elif len(self._regions) == 1:
            adjoint = sweep.shadow(self._regions[0]).flatten()
        else:
            adjoint = np.concatenate([sweep.shadow(region).reshape(-1) for region in self._regions])
        # PackedAdjoints are doubles, whatever type of real numbers the packed bytes are viewed as.
        return adjoint if adjoint.dtype == self.dtype else adjoint.astype(self.dtype)

    def take(self, sweep: Sweep) -> np.ndarray:
        """Return the adjoint of what the message overwrote, and set the shadow to zero there."""
        shadow = self._shadow_again(sweep, False) if self._is_sent_again() else self.in_place(sweep)
        if shadow is not None:
            taken = shadow.copy()
            shadow.fill(0)
            return taken
        taken = self.peek(sweep)
        self.zero(sweep)
        return taken

    def in_place(self, sweep: Sweep, always: bool = False) -> np.ndarray | None:
        """Return the adjoint itself, one-dimensional; None if it is not contiguous, or (unless ``always``) is zero."""
        if self.layout is None and self._has_adjoint() and (always or sweep.has_shadow(self.regions()[0])):
            shadow = sweep.shadow(self.regions()[0])
            if shadow.dtype == self.dtype:
                return shadow
        return None

    def zero(self, sweep: Sweep) -> None:
        """Set the shadow of the message's elements to zero."""
        if self.dtype is None:
            self._zero_pieces(sweep)
        if not self._has_adjoint():
            return
        index = self._index()
        for region in self.regions():
            if not sweep.has_shadow(region):
                continue
            if index is not None:
                sweep.shadow(region)[index] = 0
            else:
                sweep.shadow(region)[...] = 0

    def add(self, sweep: Sweep, flat: np.ndarray) -> None:
        """Add a one-dimensional array of ``count`` elements to the adjoint; nothing where the memory has none."""
        if self._is_sent_again():
            shadow = self._shadow_again(sweep, True)
            shadow += flat
            return
        if not self._has_adjoint():
            return
        regions = self.regions()
        index = self._index()
        if index is not None:
            shadow = sweep.shadow(regions[0])
            if self.layout.overlapping:
                np.add.at(shadow, index, flat)
            else:
                shadow[index] += flat
        elif len(regions) == 1:
            shadow = sweep.shadow(regions[0])
            shadow += flat if shadow.ndim == 1 else flat.reshape(shadow.shape)
        else:
            start = 0
            for region in regions:
                shadow = sweep.shadow(region)
                shadow += flat[start : start + shadow.size].reshape(shadow.shape)
                start += shadow.size

    # ------------------------------------------------------------------------------------------------ internals

    def _is_sent_again(self) -> bool:
        """True if all messages of a whole array share the buffer, whose views of shadows are then cached."""
        if self.sent is None and self.received is None:
            return False
        return self.layout is None and self.count > 0 and not self.storage.packed  # type: ignore[union-attr]

    def _shadow_again(self, sweep: Sweep, always: bool) -> Any:
        """Return the adjoint itself, one-dimensional; None if it is zero (unless ``always``)."""
        region = (self._regions or self.regions())[0]
        return sweep.shadow_again(region) if always or sweep.has_shadow(region) else None

    def _has_adjoint(self) -> bool:
        """True if the memory has a shadow: it is tracked, and does not consist only of packed constants."""
        return self.tracked and self.count > 0 and (not self.packed or bool(self.storage.packed))  # type: ignore[union-attr]

    def _item(self) -> Any:
        """Return the dtype of the elements in memory."""
        return _BYTE if self.packed else self.dtype

    def _zero_pieces(self, sweep: Sweep) -> None:
        """Set to zero the shadow of elements that have no common dtype: zero bytes are zeros in any dtype."""
        if self.storage is None or self.address is None:
            return
        for dtype, piece in self.extra:
            sweep.zero(self._region(dtype, piece, self.address - self.storage.address))

    def _require_own(self) -> None:
        if self.storage.elsewhere and current() is not None:
            raise ActivityError(
                "the buffer of a message is another rank's memory in a shared window, where its derivative would be "
                "lost; send a copy of it, or receive into an array of this rank and assign it"
            )

    def _matters(self) -> bool:
        """True if any record can depend on values that would be overwritten."""
        storage = self.storage
        if storage is None or self.array is None:
            return False
        self._require_own()
        seen = storage.tape is not None or bool(storage.needs) or bool(storage.guard)
        return seen or bool(running)

    def _is_whole(self) -> bool:
        """True if the message is the whole array."""
        array = self.array
        return self.layout is None and self.count == array.size and self.dtype == array.dtype

    def _index(self) -> np.ndarray | None:
        return None if self.layout is None else self.layout.index

    def pieces(self) -> Sequence[Piece]:
        """Return the places of the elements, relative to the address."""
        if self.count == 0:
            return ()
        if self.layout is None:
            return (Piece(0, (self.count,), (self._item().itemsize,)),)
        return self.layout.pieces

    def _covered(self) -> Sequence[Piece]:
        """The pieces, or the range of the index array."""
        layout = self.layout
        if layout is None or layout.index is None:
            return self.pieces()
        return (Piece(layout.low, (layout.span,), (self._item().itemsize,)),)

    def _make_regions(self) -> list[Region]:
        address = self.address
        if address is None:
            address = address_of(self.array)
        offset = address - self.storage.address
        return [self._region(self._item(), piece, offset) for piece in self._covered()]

    def _region(self, dtype: np.dtype, piece: Piece, offset: int) -> Region:
        region = Region.__new__(Region)
        region.storage = self.storage
        region.offset = offset + piece.offset
        region.shape = piece.shape
        region.strides = piece.strides
        region.dtype = dtype
        return region

    def _views(self) -> list[np.ndarray]:
        """Return plain arrays on the memory of `_covered`."""
        return [self._memory(self._item(), piece) for piece in self._covered()]

    def _others(self, dtype: np.dtype) -> list[np.ndarray]:
        """Return plain arrays on the memory of the elements of another dtype."""
        return [self._memory(other, piece) for other, piece in self.extra if other == dtype]

    def _memory(self, dtype: np.dtype, piece: Piece) -> np.ndarray:
        owner = self.array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        owner = plain(owner)
        if owner.flags.f_contiguous and not owner.flags.c_contiguous:
            owner = owner.T
        address = address_of(self.array) if self.address is None else self.address
        try:
            return np.ndarray(piece.shape, dtype, owner, address - address_of(owner) + piece.offset, piece.strides)
        except (TypeError, ValueError):
            raise ValueError(
                f"message: {self.count} elements of {self.dtype} reach beyond the memory of the array"
            ) from None


def _fill(views: Sequence[np.ndarray], values: np.ndarray) -> None:
    start = 0
    for view in views:
        view[...] = values[start : start + view.size].reshape(view.shape)
        start += view.size


def buffer_at(memory: Memory, typemap: Typemap, count: int, address: int) -> Buffer:
    """Return the buffer of ``count`` items of a typemap, starting at an address."""
    array, storage, dtype = memory
    if not typemap.size or (not count and typemap.dtype is None):  # no elements: as an empty part of the array
        return Buffer(array, storage, array.dtype if dtype is None else dtype, 0, address)
    if dtype is None or typemap.dtype is None or typemap.dtype in FLOATING:
        dtype, start = None, 0
        if typemap.contiguous:
            buffer = Buffer(array, storage, typemap.dtype, count * typemap.length, address)
            buffer.bytewise = typemap.dtype.itemsize == 1
            return buffer
    else:
        start = address - storage.address  # type: ignore[union-attr]
    chosen = typemap.selection(count, dtype, start)
    buffer = Buffer(array, storage, chosen.dtype, chosen.count, address, chosen.layout)
    buffer.extra = chosen.extra
    if chosen.dtype is None:
        buffer.mixed = True
        buffer.nbytes = count * typemap.size
        return buffer
    buffer.raw = dtype is not None
    buffer.bytewise = typemap.dtype.itemsize == 1
    if typemap.mixed and dtype is None:
        buffer.mixed = True
        buffer.typemap = typemap
        buffer.nbytes = count * typemap.size
    return buffer


def vector_buffer(memory: Memory, typemap: Typemap, counts: list[int], displs: list[int]) -> Buffer:
    """Return the buffer of one block for each rank: counts and displacements in items."""
    array, storage, _ = memory
    start, extent = address_of(array), typemap.extent
    filled = [r for r in range(len(counts)) if counts[r]]
    if all(displs[r] + counts[r] == displs[s] for r, s in itertools.pairwise(filled)):
        first = displs[filled[0]] if filled else 0
        buffer = buffer_at(memory, typemap, sum(counts), start + first * extent)
        length = buffer.count // sum(counts) if filled and typemap.dtype == buffer.dtype else 0
        buffer.counts = [n * length for n in counts]
        if length or not filled:
            return buffer
    blocks = [buffer_at(memory, typemap, n, start + displ * extent) for n, displ in zip(counts, displs)]
    if any(block.dtype is None for block in blocks):
        buffer = Buffer(array, storage, None, 0, start)
        buffer.mixed = True
    else:
        pieces = [piece.moved(block.address - start) for block in blocks for piece in block.pieces()]
        dtype = blocks[0].dtype
        layout = Layout(pieces, dtype.itemsize)
        buffer = Buffer(array, storage, dtype, layout.count, start, layout)
        buffer.raw, buffer.mixed, buffer.bytewise = blocks[0].raw, typemap.mixed, blocks[0].bytewise
    buffer.extra = [(d, p.moved(block.address - start)) for block in blocks for d, p in block.extra]
    buffer.counts = [block.count for block in blocks]
    buffer.nbytes = sum(block.nbytes for block in blocks)
    return buffer


NOTHING = Buffer(None, None, None, 0)
"""The buffer of ``PROC_NULL``, and of arguments that are not significant on this rank."""


def arrive(buffer: Any, receives: int) -> None:
    """Count pending receives into a buffer: 1 when one starts, -1 when one has ended."""
    if type(buffer) is Buffer and buffer.storage is not None:
        buffer.storage.arriving += receives
        return
    for storage in getattr(buffer, "storages", ()):  # a `Bundle` has none
        if storage is not None:
            storage.arriving += receives


def refuse_others(*buffers: Any) -> None:
    """Raise an error if a message that no tape of this thread records is active on a tape of another thread."""
    tape = current() if open_tapes else None
    if tape is not None:
        for buffer in buffers:
            buffer.active(tape)


def keep_message(array: Any, buffer: Buffer) -> None:
    """Store a detached buffer as ``array._message`` if it covers a whole `ampi.ndarray`.

    From then on, all records of messages of the array share it.
    """
    if isinstance(array, TrackedArray) and type(buffer) is Buffer and buffer.tracked and buffer.dtype is array.dtype:
        set_message(array, buffer)


def as_packed(buffer: Buffer) -> Buffer:
    """Convert a buffer of bytes to the form in which it can carry derivatives; others are returned unchanged."""
    if buffer.bytewise and not buffer.raw and not buffer.mixed:
        buffer.packed = True
        buffer.dtype = SLOT_DTYPE
        buffer.tracked = buffer.storage is not None and not buffer.storage.volatile
    return buffer
