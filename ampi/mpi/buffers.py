"""A message's memory as a flat sequence of basic elements.

`parse` and `parse_vector` take what mpi4py takes for a message (an array, ``[array, count, datatype]``, …) and give a
`Buffer`: which elements of which storage the message consists of.  In a sweep a buffer's adjoint is handed out and
added to as a contiguous one-dimensional array of the basic dtype, whatever the datatype was; gaps are left alone.

A buffer keeps no handle of MPI: the user may free the datatype.  After `Buffer.detach` it keeps no memory alive either.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..bits import bits_in
from ..census import tracked_arrays
from ..errors import ActivityError
from ..memory import (
    RECEIVED,
    Region,
    Storage,
    TrackedArray,
    address_of,
    arrays_of_blocks,
    carries_derivatives,
    memory_at,
    plain,
    set_message,
    storage_of,
)
from ..recording import current, open_tapes, recording
from ..tape import Sweep, Tape, Undo, overwrite
from .datatypes import Layout, Piece, Typemap, datatype_named, reach, regrouped, repeated, typemap_at, typemap_of
from .slots import SLOT, Slots

# Dtypes that mpi4py sends without being told a datatype.
_AUTOMATIC = frozenset(np.dtype(c) for c in "?bBhHiIlLqQefdgFDG")
_FLOATING = frozenset(np.dtype(c) for c in "efdgFDG")
_Blocks = list[tuple[Storage, np.ndarray]]
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
        Whether the elements can carry derivatives here: tracked memory, floating-point or complex elements.
    raw : bool
        The datatype names bytes or integers, the memory holds floating-point elements: good for copying only.
    bytewise : bool
        The datatype names bytes.
    packed : bool
        A message of memory of bytes, into which elements may have been packed: elements of the adjoint are `slots`, one
        for each byte, and ``dtype`` is theirs.
    mixed : bool
        The message has elements of other dtypes besides.
    nbytes : int
        Bytes of the message, packed.
    sent, received : messages.Route or None
        Where the latest message of the memory went to, and came from.
    """

    __slots__ = (
        "_address",
        "_extra",
        "_layout",
        "_regions",
        "_start",
        "_typemap",
        "array",
        "bytewise",
        "count",
        "counts",
        "dtype",
        "mixed",
        "nbytes",
        "packed",
        "raw",
        "received",
        "sent",
        "storage",
        "tracked",
    )

    def __init__(
        self,
        array: np.ndarray | None,
        dtype: np.dtype | None,
        count: int,
        address: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        self.array = array
        self.dtype = dtype
        self.count = count
        self.counts: list[int] | None = None
        self.storage: Storage | None = None if array is None else storage_of(array)
        self.tracked = self.storage is not None and dtype in _FLOATING
        self.raw = False
        self.mixed = False
        self.bytewise = False
        self.packed = False
        self.nbytes = 0 if dtype is None else count * dtype.itemsize
        self._address = address  # None: that of the array
        self._layout = layout  # None: contiguous
        self._extra: Sequence[tuple[np.dtype, Piece]] = ()
        self._regions: list[Region] | None = None
        self._typemap: Typemap | None = None  # of a mixed message: where its elements are once packed
        self._start = 0
        self.sent: Any = None
        self.received: Any = None

    def __repr__(self) -> str:
        what = "no memory" if self.array is None and self.storage is None else "tracked" if self.tracked else "plain"
        return f"<Buffer of {self.count} {self.dtype} ({what})>"

    # ------------------------------------------------------------------------------------------------ when recorded

    def active(self, tape: Tape) -> bool:
        """Whether the message's memory carries derivatives on the tape.

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
        if storage.tape is not tape._reference:
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
        """Whether derivatives that are received would be lost, at least some."""
        return not self.tracked

    def on(self, tape: Tape) -> bool:
        """Whether any of the memory is active on the tape, whatever the message makes of it."""
        return tape.is_active(self.array)

    def activate(self, tape: Tape) -> None:
        """The message's memory carries derivatives from now on."""
        if self.tracked:
            self.storage.tape = tape._reference
            if self.packed:
                self.storage.packed = self.storage.packed or RECEIVED

    def uncertain(self) -> bool:
        """Whether the message is of bytes that came from elsewhere, of which it is not known what they are."""
        return self.packed and self.storage is not None and self.storage.packed == RECEIVED

    def need(self, tape: Tape) -> Callable[[], np.ndarray]:
        """Say that the adjoint wants the values the message's memory has now.

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
        """The values the message's memory has now: a contiguous one-dimensional copy."""
        if self.array is None or self.count == 0:
            return np.zeros(self.count, self.dtype)
        index = self._index()
        if index is not None:
            return self._views()[0][index]
        return np.concatenate([view.reshape(-1) for view in self._views()])

    def store(self, values: np.ndarray) -> None:
        """Put values, or pairs of a value and a location, into the message's memory; nothing is recorded."""
        if values.dtype.names is not None:
            _fill(self._others(values.dtype["location"]), values["location"])
            values = values["value"]
        index = self._index()
        if index is not None:
            self._views()[0][index] = values
        elif self.count:
            _fill(self._views(), values)

    def others(self, dtype: np.dtype) -> np.ndarray:
        """The values of the elements of another dtype that the message has besides: one-dimensional."""
        return np.concatenate([np.zeros(0, dtype), *(view.reshape(-1) for view in self._others(dtype))])

    def overwritten(self) -> list[np.ndarray]:
        """Arrays for `tape.overwrite` before the message is received: exactly the memory that is written."""
        if not self._matters():
            return []
        if self._is_whole():
            return [self.array] if self.count else []
        dtype = self._item()
        views = [] if dtype is None else [self._memory(dtype, piece) for piece in self._pieces()]
        return views + [self._memory(other, piece) for other, piece in self._extra]

    def overwrite(self) -> list[Undo]:
        """To be called before the message is received: saves what records need, as `tape.overwrite`."""
        storage = self.storage
        unneeded = storage is not None and not (storage.needs or storage.guard or storage.elsewhere)
        if unneeded and recording() is not None:
            return []
        if not self._matters():
            return []
        index = self._index()
        if index is None or self._extra:
            return overwrite(*self.overwritten())
        return overwrite(self._views()[0], key=index)

    def detach(self) -> Buffer:
        """Keep the message's memory alive no longer; for buffers that a record holds.  Returns the buffer."""
        if self.tracked and self._address is None:
            self._address = address_of(self.array)
        self.array = None
        return self

    def first(self, n: int) -> Buffer:
        """The buffer of the first ``n`` elements (what a receive that came short has written)."""
        return self if n >= self.count else self.part(0, n)

    def places(self) -> np.ndarray:
        """The first byte of each element in the packed message, int64."""
        if self._typemap is None:
            return np.arange(self.count, dtype=np.int64) * self._item().itemsize
        items, elements = np.divmod(self._start + np.arange(self.count), self._typemap.length)
        first = self._typemap.places - self._item().itemsize
        return items * self._typemap.size + first[elements]

    def within(self, nbytes: int) -> Buffer:
        """The buffer of the elements that so many bytes of the packed message hold."""
        if self.dtype is None or nbytes >= self.nbytes:
            return self
        itemsize = self._item().itemsize
        if self._typemap is None:
            return self.first(nbytes // itemsize)
        return self.first(int(np.searchsorted(self.places() + itemsize, nbytes, side="right")))

    def part(self, start: int, stop: int) -> Buffer:
        """The buffer of elements ``start`` to ``stop``."""
        itemsize = self._item().itemsize if self.dtype is not None else 1
        part = Buffer(self.array, self.dtype, stop - start)
        part.storage = self.storage
        part.tracked = self.tracked
        part.raw, part.mixed = self.raw, self.mixed
        part.bytewise, part.packed = self.bytewise, self.packed
        part._typemap, part._start = self._typemap, self._start + start
        part.nbytes = part.count * itemsize
        if self._address is None:
            self._address = 0 if self.array is None else address_of(self.array)
        if self._layout is None:
            part._address = self._address + start * itemsize
        else:
            part._address = self._address
            part._layout = self._layout.part(start, stop, itemsize)
        return part

    def shape(self) -> tuple[tuple[int, ...], str]:
        """Shape and order of the elements as the user has them: those of the array, if it is sent as a whole."""
        array = self.array
        if array is None or self._layout is not None or array.dtype != self.dtype or array.size != self.count:
            return (self.count,), "C"
        return array.shape, "C" if array.flags.c_contiguous else "F"

    # ------------------------------------------------------------------------------------------------ in the sweep

    def regions(self) -> list[Region]:
        """The regions of the tracked memory: one for each piece, or the range that an index array refers to."""
        if self._regions is None:
            self._regions = [] if self.storage is None or self.count == 0 else self._make_regions()
        return self._regions

    def peek(self, sweep: Sweep) -> np.ndarray:
        """A contiguous one-dimensional copy of the adjoint; zeros where the memory is not tracked."""
        if not self.tracked or self.count == 0 or not sweep.has_shadow(self.regions()[0]):
            return np.zeros(self.count, self.dtype)
        index = self._index()
        if index is not None:
            adjoint = sweep.shadow(self._regions[0])[index]
        elif len(self._regions) == 1:
            adjoint = sweep.shadow(self._regions[0]).flatten()
        else:
            adjoint = np.concatenate([sweep.shadow(region).reshape(-1) for region in self._regions])
        # Slots are doubles, whatever real numbers packed bytes are looked at as.
        return adjoint if adjoint.dtype == self.dtype else adjoint.astype(self.dtype)

    def take(self, sweep: Sweep) -> np.ndarray:
        """The adjoint of what the message overwrote: as `peek`; the shadow becomes zero there."""
        if self._layout is None and self.tracked and self.count and sweep.has_shadow(self.regions()[0]):
            shadow = sweep.shadow(self.regions()[0])
            if shadow.dtype == self.dtype:
                taken = shadow.copy()
                shadow.fill(0)
                return taken
        taken = self.peek(sweep)
        self.zero(sweep)
        return taken

    def zero(self, sweep: Sweep) -> None:
        """The shadow becomes zero where the message is."""
        if self.dtype is None:
            self._zero_pieces(sweep)
        if not self.tracked or self.count == 0:
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
        """Add a one-dimensional array of ``count`` elements to the adjoint; lost where the memory is not tracked."""
        if not self.tracked or self.count == 0:
            return
        regions = self.regions()
        index = self._index()
        if index is not None:
            shadow = sweep.shadow(regions[0])
            if self._layout.overlapping:
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

    def _item(self) -> Any:
        """Dtype of the elements in memory."""
        return _BYTE if self.packed else self.dtype

    def _zero_pieces(self, sweep: Sweep) -> None:
        """The same for elements of which no adjoint could be told: bytes of zero are zeros in any dtype."""
        if self.storage is None or self._address is None:
            return
        for dtype, piece in self._extra:
            sweep.zero(self._region(dtype, piece, self._address - self.storage.address))

    def _require_own(self) -> None:
        if self.storage.elsewhere and current() is not None:
            raise ActivityError(
                "the buffer of a message is another rank's memory in a shared window, where its derivative would be "
                "lost; send a copy of it, or receive into an array of this rank's and assign it"
            )

    def _matters(self) -> bool:
        """Whether overwriting the memory can concern anybody."""
        storage = self.storage
        if storage is None or self.array is None:
            return False
        self._require_own()
        return storage.tape is not None or bool(storage.needs) or bool(storage.guard)

    def _is_whole(self) -> bool:
        """Whether the message is the array, all of it."""
        array = self.array
        return self._layout is None and self.count == array.size and self.dtype == array.dtype

    def _index(self) -> np.ndarray | None:
        return None if self._layout is None else self._layout.index

    def _pieces(self) -> Sequence[Piece]:
        if self.count == 0:
            return ()
        if self._layout is None:
            return (Piece(0, (self.count,), (self._item().itemsize,)),)
        return self._layout.pieces

    def _covered(self) -> Sequence[Piece]:
        """The pieces, or the range of the index array."""
        layout = self._layout
        if layout is None or layout.index is None:
            return self._pieces()
        return (Piece(layout.low, (layout.span,), (self._item().itemsize,)),)

    def _make_regions(self) -> list[Region]:
        address = self._address
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
        """Plain arrays on the memory of `_covered`."""
        return [self._memory(self._item(), piece) for piece in self._covered()]

    def _others(self, dtype: np.dtype) -> list[np.ndarray]:
        """Plain arrays on the memory of the elements of another dtype."""
        return [self._memory(other, piece) for other, piece in self._extra if other == dtype]

    def _memory(self, dtype: np.dtype, piece: Piece) -> np.ndarray:
        owner = self.array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        owner = plain(owner)
        if owner.flags.f_contiguous and not owner.flags.c_contiguous:
            owner = owner.T
        address = address_of(self.array) if self._address is None else self._address
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


class Composite(Buffer):
    """A message from ``MPI.BOTTOM`` whose elements lie in several storages, or in some and in plain memory.

    Attributes
    ----------
    parts : list of (numpy.ndarray, Buffer)
        For each storage, and for plain memory: which elements of the message lie there (ascending), and their buffer.
    asides : list of Buffer
        Elements of other dtypes: memory that a receive overwrites as well.
    ends : numpy.ndarray of int64 or None
        Of a mixed message: number of packed bytes up to and including each element.
    """

    __slots__ = ("asides", "ends", "parts")

    def __init__(
        self, dtype: np.dtype, count: int, parts: list[tuple[np.ndarray, Buffer]], ends: np.ndarray | None = None
    ) -> None:
        super().__init__(None, dtype, count)
        self.parts = parts
        self.asides: list[Buffer] = []
        self.ends = ends
        self.mixed = ends is not None
        self.tracked = any(part.tracked for _, part in parts)
        self.storage = next((part.storage for _, part in parts if part.storage is not None), None)

    @property
    def storages(self) -> Sequence[Storage | None]:
        """The storages of the memory."""
        return [part.storage for part in self._all() if part.storage is not None]

    @property
    def loses(self) -> bool:
        """Whether derivatives that are received would be lost, at least some."""
        return any(part.loses for _, part in self.parts)

    def _all(self) -> list[Buffer]:
        return [part for _, part in self.parts] + self.asides

    def on(self, tape: Tape) -> bool:
        """As `Buffer.on`."""
        return any([part.on(tape) for part in self._all()])

    def active(self, tape: Tape) -> bool:
        """As `Buffer.active`."""
        return any([part.active(tape) for part in self._all()])

    def activate(self, tape: Tape) -> None:
        """As `Buffer.activate`."""
        for _, part in self.parts:
            part.activate(tape)

    def need(self, tape: Tape) -> Callable[[], np.ndarray]:
        """As `Buffer.need`."""
        values = [(where, part.need(tape)) for where, part in self.parts]
        return lambda: self._gathered((where, value()) for where, value in values)

    def values(self) -> np.ndarray:
        """As `Buffer.values`."""
        return self._gathered((where, part.values()) for where, part in self.parts)

    def store(self, values: np.ndarray) -> None:
        """As `Buffer.store`."""
        if values.dtype.names is not None:
            raise _not_composed()
        for where, part in self.parts:
            part.store(values[where])

    def others(self, dtype: np.dtype) -> np.ndarray:
        """As `Buffer.others`: not kept in order."""
        raise _not_composed()

    def overwritten(self) -> list[np.ndarray]:
        """As `Buffer.overwritten`."""
        return [view for part in self._all() for view in part.overwritten()]

    def overwrite(self) -> list[Undo]:
        """As `Buffer.overwrite`."""
        return [undo for part in self._all() for undo in part.overwrite()]

    def detach(self) -> Composite:
        """As `Buffer.detach`."""
        for part in self._all():
            part.detach()
        return self

    def places(self) -> np.ndarray:
        """As `Buffer.places`."""
        itemsize = self.dtype.itemsize
        return np.arange(self.count, dtype=np.int64) * itemsize if self.ends is None else self.ends - itemsize

    def within(self, nbytes: int) -> Buffer:
        """As `Buffer.within`."""
        if nbytes >= self.nbytes:
            return self
        ends = self.places() + self.dtype.itemsize
        return self.first(int(np.searchsorted(ends, nbytes, side="right")))

    def part(self, start: int, stop: int) -> Composite:
        """As `Buffer.part`."""
        parts = []
        for where, part in self.parts:
            low, high = np.searchsorted(where, [start, stop])
            if low < high:
                parts.append((where[low:high] - start, part.part(int(low), int(high))))
        return Composite(self.dtype, stop - start, parts, None if self.ends is None else self.ends[start:stop])

    def shape(self) -> tuple[tuple[int, ...], str]:
        """As `Buffer.shape`."""
        return (self.count,), "C"

    def regions(self) -> list[Region]:
        """As `Buffer.regions`."""
        return [region for _, part in self.parts for region in part.regions()]

    def peek(self, sweep: Sweep) -> np.ndarray:
        """As `Buffer.peek`."""
        return self._gathered((where, part.peek(sweep)) for where, part in self.parts)

    def take(self, sweep: Sweep) -> np.ndarray:
        """As `Buffer.take`."""
        taken = self.peek(sweep)
        self.zero(sweep)
        return taken

    def zero(self, sweep: Sweep) -> None:
        """As `Buffer.zero`."""
        for _, part in self.parts:
            part.zero(sweep)

    def add(self, sweep: Sweep, flat: np.ndarray) -> None:
        """As `Buffer.add`."""
        for where, part in self.parts:
            part.add(sweep, flat[where])

    def _gathered(self, found: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        whole = np.zeros(self.count, self.dtype)
        for where, flat in found:
            whole[where] = flat
        return whole


def _not_composed() -> ActivityError:
    return ActivityError(
        "a message from MPI.BOTTOM of bytes, with several floating-point dtypes, or reduced with locations, mixes the "
        "memory of an array that ampi tracks with other memory; send each array in a message of its own"
    )


NOTHING = Buffer(None, None, 0)
"""What ``PROC_NULL`` sends, and what stands for a buffer that is not significant on this rank."""


# ------------------------------------------------------------------------------------------------ what mpi4py takes


def arrive(buffer: Any, receives: int) -> None:
    """So many receives more are on their way into a buffer; -1: one has ended."""
    if type(buffer) is Buffer and buffer.storage is not None:
        buffer.storage.arriving += receives
        return
    for storage in getattr(buffer, "storages", ()):  # those of objects have none
        if storage is not None:
            storage.arriving += receives


def is_in_place(spec: Any) -> bool:
    """Whether a send buffer argument stands for ``MPI.IN_PLACE`` (mpi4py takes None for it, too)."""
    return spec is None or spec is MPI.IN_PLACE


def lasting(spec: Any) -> Any:
    """A message argument with typemaps for its datatypes: a program may free these before it starts the request."""
    if type(spec) in (list, tuple):
        return type(spec)(lasting(item) for item in spec)
    if isinstance(spec, MPI.Datatype) and spec != MPI.DATATYPE_NULL and not spec.is_predefined:
        try:
            return typemap_of(spec)
        except NotImplementedError:  # said when the request starts while a tape records
            return spec
    return spec


def parse(spec: Any, blocks: int = 0) -> Buffer:
    """The buffer that a message argument means.

    Parameters
    ----------
    spec : array, list or tuple
        ``a``; ``[a, type]``; ``[a, count]``; ``[a, (count, displ)]``; ``[a, count, type]``;
        ``[a, (count, displ), type]``; ``[a, count, displ, type]``; counts may be None; ``type`` is a Datatype or one of
        mpi4py's strings.
    blocks : int
        Number of blocks of ``count`` that the buffer holds (the receive buffer of a Gather: one per rank); all of them
        belong to the buffer.  0 and 1 are one block.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py would.
    """
    if isinstance(spec, np.ndarray) and spec.flags.forc and _is_plain_sequence(spec):
        if blocks > 1 and spec.size % blocks:
            raise ValueError(f"message: number of entries {spec.size} is not a multiple of {blocks} blocks")
        return Buffer(spec, spec.dtype, spec.size)
    memory, count, displ, datatype = simple_form(spec)
    if _is_nothing(count, displ, datatype):
        return NOTHING
    if _is_bottom(memory):
        return _at_addresses(datatype, (count or 0) * max(blocks, 1), displ or 0)
    array = as_array(memory)
    typemap = _typemap(array, datatype)
    displ = 0 if displ is None else operator.index(displ)
    if displ < 0:
        raise ValueError(f"message: negative displacement {displ}")
    blocks = max(blocks, 1)
    if count is None:
        count = _inferred(array.nbytes - displ * typemap.extent, typemap.extent)
        if count % blocks:
            raise ValueError(f"message: number of entries {count} is not a multiple of {blocks} blocks")
    else:
        count = operator.index(count) * blocks
        if count < 0:
            raise ValueError(f"message: negative count {count}")
    return _buffer(array, typemap, count, displ)


def _is_plain_sequence(array: np.ndarray) -> bool:
    dtype = array.dtype
    return dtype in _FLOATING or (dtype in _AUTOMATIC and storage_of(array) is None)


def parse_bytes(spec: Any) -> Buffer:
    """The same for an operation that moves data and does not look at it: messages of bytes may hold packed elements."""
    return as_packed(parse(spec))


def refuse_others(*buffers: Any) -> None:
    """Raise if memory of a message, that no tape of this thread records, carries derivatives on one of another's."""
    tape = current() if open_tapes else None
    if tape is not None:
        for buffer in buffers:
            buffer.active(tape)


def keep_message(array: Any, buffer: Buffer) -> None:
    """Keep a detached buffer as ``array._message``, if it is that of a whole `ampi.ndarray`.

    All records of messages of the array then share it.
    """
    if isinstance(array, TrackedArray) and type(buffer) is Buffer and buffer.tracked and buffer.dtype is array.dtype:
        set_message(array, buffer)


def parse_moved(spec: Any, blocks: int = 0) -> Buffer:
    """The same for a collective operation, whose ranks must see a message of bytes in one way: all of them as slots."""
    return _moved_form(parse(spec, blocks))


def parse_vector_moved(spec: Any, blocks: int) -> Buffer:
    """The same for a message with one count per rank."""
    return _moved_form(parse_vector(spec, blocks))


def parse_types_moved(spec: Any, blocks: int) -> list[Buffer]:
    """The same for a message with one datatype per rank."""
    return [_moved_form(buffer) for buffer in parse_types(spec, blocks)]


def as_packed(buffer: Buffer) -> Buffer:
    """A message of memory of bytes in the form in which it may carry derivatives; others as they are."""
    if buffer.bytewise and not buffer.raw and not buffer.mixed:
        buffer.packed = True
        buffer.dtype = SLOT
        buffer.tracked = buffer.storage is not None and not buffer.storage.volatile
    return buffer


def _moved_form(buffer: Buffer) -> Any:
    return Slots(buffer) if buffer.bytewise and buffer.raw else as_packed(buffer)


def parse_vector(spec: Any, blocks: int) -> Buffer:
    """The buffer that an argument with one count per rank means.

    Parameters
    ----------
    spec : array, list or tuple
        ``b`` (divided evenly, the first ranks get the remainder); ``[b, counts]``; ``[b, (counts, displs)]``;
        ``[b, (counts, displs), type]``; ``[b, counts, displs, type]``; counts an int or one per rank, displs an int
        (stride), one per rank, or None (side by side).
    blocks : int
        Number of ranks.

    Returns
    -------
    Buffer
        The concatenation of the blocks in rank order; ``counts`` has the elements of each.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py would.
    """
    memory, counts, displs, datatype = _vector_form(spec)
    if _is_bottom(memory):
        return _vector_at_addresses(datatype, counts, displs, blocks)
    array = as_array(memory)
    typemap = _typemap(array, datatype)
    if counts is None:
        whole, rest = divmod(_inferred(array.nbytes, typemap.extent), blocks)
        counts = [whole + (r < rest) for r in range(blocks)]
    else:
        counts = _per_rank(counts, blocks, lambda value: [value] * blocks)
    if displs is None:
        displs = [0] * blocks
        for r in range(1, blocks):
            displs[r] = displs[r - 1] + counts[r - 1]
    else:
        displs = _per_rank(displs, blocks, lambda value: [value * r for r in range(blocks)])
    return _vector_buffer(array, typemap, counts, displs)


def parse_types(spec: Any, blocks: int) -> list[Buffer]:
    """The buffers, one per rank, that an argument with one datatype per rank means.

    Parameters
    ----------
    spec : list or tuple
        ``[b, types]``; ``[b, (counts, displs), types]``; ``[b, counts, displs, types]``; displs in bytes.
    blocks : int
        Number of ranks.

    Raises
    ------
    TypeError, ValueError, KeyError, BufferError
        As mpi4py would.
    """
    if len(spec) == 2:
        memory, types = spec
        counts = displs = None
    elif len(spec) == 3:
        memory, (counts, displs), types = spec
    elif len(spec) == 4:
        memory, counts, displs, types = spec
    else:
        raise ValueError("message: expecting 2 to 4 items")
    counts = [1] * blocks if counts is None else _per_rank(counts, blocks, lambda value: [value] * blocks)
    displs = [0] * blocks if displs is None else _per_rank(displs, blocks, lambda value: [value] * blocks)
    if _is_bottom(memory):
        tracked = _blocks()
        return [
            _at_addresses(datatype, count, 0, displ, tracked)
            for count, displ, datatype in zip(counts, displs, types, strict=True)
        ]
    array = as_array(memory)
    return [
        _buffer_at(array, _typemap(array, datatype), count, address_of(array) + displ)
        for count, displ, datatype in zip(counts, displs, types, strict=True)
    ]


def _vector_at_addresses(datatype: Any, counts: Any, displs: Any, blocks: int) -> Buffer:
    """The same for a message with one count per rank."""
    counts = [0] * blocks if counts is None else _per_rank(counts, blocks, lambda value: [value] * blocks)
    displs = (
        [0] * blocks if displs is None else _per_rank(displs, blocks, lambda value: [value * r for r in range(blocks)])
    )
    if not any(counts) or datatype is None:
        nothing = Buffer(None, None, 0)
        nothing.counts = [0] * blocks
        return nothing
    typemap = _typemap(None, datatype)
    items = [displ + np.arange(count) for count, displ in zip(counts, displs)]
    buffer = _at_items(typemap, np.concatenate(items) * typemap.extent, _blocks())
    length = buffer.count // sum(counts)
    buffer.counts = [count * length for count in counts]
    return buffer


def _at_addresses(datatype: Any, count: int, displ: int, start: int = 0, tracked: _Blocks | None = None) -> Buffer:
    """The buffer of a message from ``MPI.BOTTOM``: the datatype's displacements are addresses in memory.

    Raises
    ------
    ActivityError
        It touches the memory of several storages, or of one and something else, and is of bytes or has several
        floating-point dtypes.
    """
    if count == 0 or datatype is None:
        return NOTHING
    typemap = _typemap(None, datatype)
    address = start + displ * typemap.extent
    low, high = _bounds(typemap, count, address)
    tracked = _between(_blocks() if tracked is None else tracked, low, high)
    for storage, array in tracked:
        if storage.address <= low and high <= storage.address + storage.nbytes:
            return _buffer_at(array, typemap, count, address)
    return _at_items(typemap, address + np.arange(count, dtype=np.int64) * typemap.extent, tracked)


def _at_items(typemap: Typemap, items: np.ndarray, tracked: _Blocks) -> Buffer:
    """The buffer of items of a typemap at these addresses, in memory of any owner."""
    elements = [(dtype, (items[:, None] + piece.offsets()).ravel()) for dtype, piece in typemap.extra]
    if typemap.dtype is not None:
        elements.insert(0, (typemap.dtype, (items[:, None] + typemap.offsets).ravel()))
    elements = [(dtype, addresses) for dtype, addresses in elements if len(addresses)]
    low = min((int(addresses.min()) for _, addresses in elements), default=0)
    high = max((int(addresses.max()) + dtype.itemsize for dtype, addresses in elements), default=0)
    blocks = _between(tracked, low, high)
    owners = [_owners(blocks, addresses, dtype.itemsize) for dtype, addresses in elements]
    touched = {int(k) for owner in owners for k in np.unique(owner)}
    if not touched:
        return NOTHING
    if touched != {_PLAIN} and (typemap.dtype is None or typemap.dtype.itemsize == 1):
        raise _not_composed()
    arrays = [array for _, array in blocks] + [memory_at(low, high - low)]  # the last one is that at _PLAIN
    if typemap.dtype is None:
        return _opaque(arrays[_PLAIN], typemap, len(items), 0)
    parts = [(where, _scattered(arrays[k], typemap.dtype, elements[0][1][where])) for k, where in _by_owner(owners[0])]
    ends = None
    if typemap.mixed:
        ends = (typemap.size * np.arange(len(items))[:, None] + typemap.places).ravel()
    buffer = Composite(typemap.dtype, len(elements[0][1]), parts, ends)
    buffer.nbytes = len(items) * typemap.size
    buffer.asides = [
        _scattered(arrays[k], dtype, addresses[where])
        for (dtype, addresses), owner in zip(elements[1:], owners[1:])
        for k, where in _by_owner(owner)
        if k != _PLAIN
    ]
    return buffer


_PLAIN = -1  # in the place of a storage's number: memory that is not tracked


def _by_owner(owner: np.ndarray) -> list[tuple[int, np.ndarray]]:
    return [(int(k), np.flatnonzero(owner == k)) for k in np.unique(owner)]


def _scattered(array: np.ndarray, dtype: np.dtype, addresses: np.ndarray) -> Buffer:
    """The buffer of elements at these addresses in one memory."""
    low = int(addresses.min())
    buffer = _buffer_at(array, typemap_at(dtype, addresses - low), 1, low)
    if buffer.dtype != dtype or buffer.raw or (buffer.storage is not None and buffer.storage.packed):
        raise _not_composed()
    return buffer


def _blocks() -> _Blocks:
    """All storages, with an array on each, in the order of their addresses."""
    found: dict[int, tuple[Storage, np.ndarray]] = {}
    for array in [*tracked_arrays(), *arrays_of_blocks()]:
        storage = storage_of(array)
        if storage is not None:
            found.setdefault(id(storage), (storage, array))
    return sorted(found.values(), key=lambda block: block[0].address)


def _between(blocks: _Blocks, low: int, high: int) -> _Blocks:
    """Those that have bytes between two addresses."""
    return [
        (storage, array)
        for storage, array in blocks
        if storage.address < high and low < storage.address + storage.nbytes
    ]


def _owners(blocks: _Blocks, addresses: np.ndarray, itemsize: int) -> np.ndarray:
    """The number of the storage of each element; _PLAIN for none."""
    if not blocks:
        return np.full(len(addresses), _PLAIN)
    begins = np.array([storage.address for storage, _ in blocks])
    ends = np.array([storage.address + storage.nbytes for storage, _ in blocks])

    def owner_of(byte: np.ndarray) -> np.ndarray:
        k = np.searchsorted(begins, byte, side="right") - 1
        return np.where((k >= 0) & (byte < ends[k]), k, _PLAIN)

    owner = owner_of(addresses)
    if (owner != owner_of(addresses + itemsize - 1)).any():
        raise _not_composed()
    return owner


def _bounds(typemap: Typemap, count: int, address: int) -> tuple[int, int]:
    """First byte of a message's elements, and the one after the last."""
    ends = [reach([piece], dtype.itemsize) for dtype, piece in _elements(typemap)]
    low = min((end[0] for end in ends), default=0)
    high = max((end[1] for end in ends), default=0)
    last = (count - 1) * typemap.extent
    return address + low + min(last, 0), address + high + max(last, 0)


def _elements(typemap: Typemap) -> list[tuple[np.dtype, Piece]]:
    """The elements of one item."""
    pieces = [] if typemap.dtype is None else [(typemap.dtype, piece) for piece in typemap.pieces(1)]
    return [*pieces, *typemap.extra]


def _vector_buffer(array: np.ndarray, typemap: Typemap, counts: list[int], displs: list[int]) -> Buffer:
    filled = [r for r in range(len(counts)) if counts[r]]
    if all(displs[r] + counts[r] == displs[s] for r, s in itertools.pairwise(filled)):
        buffer = _buffer(array, typemap, sum(counts), displs[filled[0]] if filled else 0)
        length = buffer.count // sum(counts) if filled and typemap.dtype == buffer.dtype else 0
        buffer.counts = [n * length for n in counts]
        if length or not filled:
            return buffer
    blocks = [_buffer(array, typemap, counts[r], displs[r]) for r in range(len(counts))]
    if any(block.dtype is None for block in blocks):
        buffer = Buffer(array, None, 0, address_of(array))
        buffer.mixed = True
    else:
        pieces = [_moved(piece, block._address - address_of(array)) for block in blocks for piece in block._pieces()]
        dtype = blocks[0].dtype
        layout = Layout(pieces, dtype.itemsize)
        buffer = Buffer(array, dtype, layout.count, address_of(array), layout)
        buffer.raw, buffer.mixed, buffer.bytewise = blocks[0].raw, typemap.mixed, blocks[0].bytewise
    buffer._extra = [(d, _moved(p, block._address - address_of(array))) for block in blocks for d, p in block._extra]
    buffer.counts = [block.count for block in blocks]
    buffer.nbytes = sum(block.nbytes for block in blocks)
    return buffer


def _moved(piece: Piece, offset: int) -> Piece:
    return Piece(piece.offset + offset, piece.shape, piece.strides)


def _buffer(array: np.ndarray, typemap: Typemap, count: int, displ: int) -> Buffer:
    """The buffer of ``count`` items of a typemap, ``displ`` items into an array."""
    return _buffer_at(array, typemap, count, address_of(array) + displ * typemap.extent)


def _buffer_at(array: np.ndarray, typemap: Typemap, count: int, address: int) -> Buffer:
    dtype = typemap.dtype
    if dtype is None:
        return _opaque(array, typemap, count, address)
    if dtype not in _FLOATING:
        memory = _memory_dtype(array)
        if memory is not None:
            return _raw(array, typemap, count, address, memory)
    layout = None if typemap.contiguous else typemap.layout(count)
    buffer = Buffer(array, dtype, count * typemap.length, address, layout)
    buffer.bytewise = dtype.itemsize == 1
    if typemap.mixed:
        buffer.mixed = True
        buffer._typemap = typemap
        buffer.nbytes = count * typemap.size
        buffer._extra = _extra(typemap, count)
    return buffer


def _raw(array: np.ndarray, typemap: Typemap, count: int, address: int, dtype: np.dtype) -> Buffer:
    """The buffer of a message of bytes or integers over floating-point memory: in terms of that memory's elements."""
    size = dtype.itemsize
    pieces = [Piece(0, (), ())] if typemap.contiguous else regrouped(typemap, count, size)
    start = address - storage_of(array).address
    if dtype not in _FLOATING or not _aligned(pieces, start, size) or count * typemap.size % size:
        return _opaque(array, typemap, count, address)
    layout = None if typemap.contiguous else Layout(pieces, size)
    buffer = Buffer(array, dtype, count * typemap.size // size, address, layout)
    buffer.raw = True
    buffer.bytewise = typemap.dtype.itemsize == 1
    return buffer


def _aligned(pieces: Sequence[Piece] | None, start: int, size: int) -> bool:
    """Whether all elements of a size lie at multiples of it."""
    return pieces is not None and not any(
        (start + piece.offset) % size or any(stride % size for stride in piece.strides) for piece in pieces
    )


def _opaque(array: np.ndarray, typemap: Typemap, count: int, address: int) -> Buffer:
    """The buffer of a message whose elements cannot be told as a sequence of one floating-point dtype."""
    buffer = Buffer(array, None, 0, address)
    buffer.mixed = True
    buffer.nbytes = count * typemap.size
    buffer._extra = _extra(typemap, count)
    if typemap.dtype is not None:
        pieces = typemap.layout(count).pieces if typemap.length else ()
        buffer._extra += [(typemap.dtype, piece) for piece in pieces]
    return buffer


def _extra(typemap: Typemap, count: int) -> list[tuple[np.dtype, Piece]]:
    dtypes = [dtype for dtype, _ in typemap.extra]
    if count == 0 or len(dtypes) == len(set(dtypes)):
        return [(dtype, repeated(piece, count, typemap.extent)) for dtype, piece in typemap.extra if count]
    return [(dtype, _moved(piece, k * typemap.extent)) for k in range(count) for dtype, piece in typemap.extra]


def _memory_dtype(array: np.ndarray) -> np.dtype | None:
    """Dtype of the tracked memory with floating-point elements that an array looks at; None for other memory."""
    if storage_of(array) is None:
        return None
    base: Any = array
    while isinstance(base, np.ndarray):
        if carries_derivatives(base.dtype):
            return base.dtype
        base = base.base.obj if isinstance(base.base, memoryview) else base.base
    return None


# ------------------------------------------------------------------------------------------- the forms of an argument


def _is_memory(spec: Any) -> bool:
    if isinstance(spec, (list, tuple)):
        return False
    if hasattr(spec, "__dlpack__") or hasattr(spec, "__cuda_array_interface__"):
        return True
    try:
        memoryview(spec)
    except TypeError:
        return False
    return True


def _is_datatype(item: Any) -> bool:
    return isinstance(item, (MPI.Datatype, Typemap, str))


def _is_bottom(memory: Any) -> bool:
    return memory is None or isinstance(memory, MPI.BottomType)


def _is_nothing(count: Any, displ: Any, datatype: Any) -> bool:
    """No items of the null datatype."""
    return count == 0 and not displ and isinstance(datatype, MPI.Datatype) and datatype == MPI.DATATYPE_NULL


def _form(spec: Any, pairs: type | tuple[type, ...]) -> tuple[Any, Any, Any, Any]:
    """Memory, counts, displacements and datatype of a message; ``(counts, displs)`` is one of the types in pairs."""
    if not isinstance(spec, (list, tuple)):
        if not _is_memory(spec):
            raise TypeError("message: expecting buffer or list/tuple")
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    memory, counts, *rest = spec
    displs = datatype = None
    if len(spec) == 4:
        return memory, counts, *rest
    if len(spec) == 3:
        (datatype,) = rest
    elif _is_datatype(counts):
        counts, datatype = None, counts
    if isinstance(counts, pairs):
        counts, displs = counts
    return memory, counts, displs, datatype


def simple_form(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Memory, count, displacement and datatype of a message with one count."""
    return _form(spec, (list, tuple))


def _vector_form(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Memory, counts, displacements and datatype of a message with one count per rank."""
    return _form(spec, tuple)  # mpi4py: a list has one count per rank


def _per_rank(values: Any, blocks: int, spread: Callable[[int], list[int]]) -> list[int]:
    try:
        return spread(operator.index(values))
    except TypeError:
        pass
    values = [operator.index(value) for value in values]
    if len(values) != blocks:
        raise ValueError(f"expecting {blocks} items, got {len(values)}")
    return values


def _inferred(nbytes: int, extent: int) -> int:
    if nbytes <= 0:
        return 0
    if extent <= 0:
        raise ValueError(f"message: cannot infer count, datatype extent {extent}")
    count, rest = divmod(nbytes, extent)
    if rest:
        raise ValueError(
            f"message: cannot infer count, buffer length {nbytes} is not a multiple of datatype extent {extent}"
        )
    return count


def as_array(memory: Any) -> np.ndarray:
    """A NumPy array of any memory that mpi4py takes, without a copy.

    What only speaks DLPack or the CUDA array interface is never tracked: bytes will do.
    """
    if isinstance(memory, np.ndarray):
        array = memory
    else:
        try:
            array = np.asarray(memoryview(memory))
        except TypeError:
            array = np.asarray(memoryview(MPI.memory(memory)))
    if not array.flags.forc:
        raise BufferError("message: ndarray is not contiguous")
    return array


def _typemap(array: np.ndarray | None, datatype: Any) -> Typemap:
    if isinstance(datatype, Typemap):
        return datatype
    if datatype is None:
        datatype = datatype_named(array.dtype.char)
    elif isinstance(datatype, str):
        datatype = datatype_named(datatype)
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError("message: datatype is null")
    return typemap_of(datatype)
