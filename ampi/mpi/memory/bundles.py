"""Active arrays inside Python objects: found by pickling; their adjoints are one message.

While a tape records, an object that contains active arrays (in lists, dicts, dataclasses, attributes) is sent as a
`Parcel`, which pickles the object together with the list of these arrays.  On arrival the arrays are found again in the
unpickled object, as active `ampi.ndarray`s, and their adjoints are returned as one flat message.  Objects without
active arrays are sent unmodified, which tells the receiver that they carry no derivatives.  In forward mode a parcel
contains the tangents of its arrays.
"""

from __future__ import annotations

import contextlib
import copyreg
import numbers
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...arrays.activity import is_active
from ...arrays.byte_views import movable
from ...arrays.losses import warn_lost, would_be_lost
from ...base.program_lines import calling_frame
from ...errors import ActivityError, CommunicationError
from ...memory.storages import (
    RECEIVED,
    Region,
    TrackedArray,
    carries_derivatives,
    for_array_types,
    region_of,
    storage_of,
)
from ...tape import Push, Sweep, Tape, lanes_of, living
from ...tape.recording import current, recording
from .packed_adjoints import SLOT_DTYPE
from .tangents import set_tangent, tangents_in


class Bundle:
    """The active arrays inside an object, as the memory of one message.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the message of adjoints: the smallest one that can represent all of them.
    count : int
        Number of elements.
    """

    __slots__ = ("count", "dtype", "regions")

    packed = False

    def __init__(self, arrays: Iterable[np.ndarray] = ()) -> None:
        self.fill(arrays)

    def fill(self, arrays: Iterable[np.ndarray]) -> None:
        """Set the arrays."""
        self.regions: list[Region] = [region_of(array) for array in arrays]
        self.dtype = np.result_type(*(_dtype_of(region) for region in self.regions), np.float32)
        self.count = sum(map(_size, self.regions))

    @property
    def nbytes(self) -> int:
        """Bytes of the message of adjoints."""
        return self.count * self.dtype.itemsize

    def within(self, nbytes: int) -> Bundle:
        """Return the bundle itself: objects arrive as a whole."""
        return self

    def take(self, sweep: Sweep) -> np.ndarray:
        """Return the adjoints in one array, and set the shadows to zero."""
        taken = np.empty(self.count, self.dtype)
        start = 0
        for region in self.regions:
            end = start + _size(region)
            adjoint = sweep.take(region)
            taken[start:end] = 0 if adjoint is None else adjoint.ravel()
            start = end
        return taken

    def zero(self, sweep: Sweep) -> None:
        """Set the shadows to zero."""
        for region in self.regions:
            sweep.zero(region)

    def add(self, sweep: Sweep, flat: np.ndarray) -> None:
        """Add to the adjoints."""
        start = 0
        for region in self.regions:
            end = start + _size(region)
            value = flat[start:end].reshape(region.shape)
            dtype = _dtype_of(region)
            if dtype.kind == "f":
                value = value.real
            sweep.add(region, value.astype(dtype, copy=False))
            start = end


def _dtype_of(region: Region) -> np.dtype:
    """Return the dtype of the adjoint."""
    return region.dtype if region.dtype.kind in "fc" else SLOT_DTYPE


def _size(region: Region) -> int:
    size = 1
    for n in region.shape:
        size *= n
    return size


class Parcel:
    """An object to be sent, with the list of the active arrays in it; unpickling it gives the object.

    In forward mode and in second order it also contains their tangents, one row for each direction.  An object whose
    class customises pickling has already been pickled, into `_Contents`.
    """

    __slots__ = ("arrays", "contents", "tangents")

    def __init__(self, contents: Any, arrays: Sequence[TrackedArray], tangents: np.ndarray | None) -> None:
        self.contents = contents
        self.arrays = arrays
        self.tangents = tangents

    def __reduce__(self) -> Any:
        return _open, (_Arrays(list(self.arrays), self.tangents), self.contents)


class _Arrays:
    """The active arrays of a parcel, unpickled before its contents, so that code of their classes finds them active."""

    __slots__ = ("arrays", "tangents")

    def __init__(self, arrays: list[TrackedArray], tangents: np.ndarray | None) -> None:
        self.arrays = arrays
        self.tangents = tangents

    def __reduce__(self) -> Any:
        return _begin, (self.arrays, self.tangents)


class _Contents:
    """A pickled object in which arrays are replaced by their positions: the code of its class runs only once."""

    __slots__ = ("arrays", "pickled")

    def __init__(self, pickled: bytes, arrays: list[TrackedArray]) -> None:
        self.pickled = pickled
        self.arrays = arrays

    def __reduce__(self) -> Any:
        return loaded, (self.pickled, self.arrays)


def loaded(pickled: bytes, arrays: Sequence[Any]) -> Any:
    """Return the object that `dumped` has pickled, with these arrays."""
    outer, _pickling.places = _pickling.places, arrays
    try:
        return mpi.pickle.loads(pickled)
    finally:
        _pickling.places = outer


def _at_place(place: int) -> TrackedArray:
    """Return an array in `_Contents`."""
    return _pickling.places[place]


def _begin(arrays: list[TrackedArray], tangents: np.ndarray | None) -> tuple[Any, ...]:
    """Make the arrays of a parcel active; return the arguments of `_open`."""
    tape = recording() if living else None
    if tape is None:
        return [], tangents, None, None
    _activate(tape, arrays)
    if tape.forward is not None and tangents is not None and len(tangents) == len(lanes_of(tape.forward)):
        set_tangent(tape.forward, Bundle(arrays), tangents.reshape(-1))
    return arrays, tangents, tape, _position(tape)


def _activate(tape: Tape, arrays: Sequence[TrackedArray]) -> None:
    for array in arrays:
        tape.activate(array)
        if not carries_derivatives(array.dtype):
            storage_of(array).packed = RECEIVED  # type: ignore[union-attr]


def _position(tape: Tape) -> tuple[int, int]:
    """Return the length of a tape; it changes as soon as anything is recorded."""
    return len(tape), len(tape.elements.integers)


# Contents of parcels that have just been unpickled, by id, with the active arrays in them and their tangents.
arrived: dict[int, tuple[Any, list[TrackedArray], np.ndarray | None]] = {}


def _open(activated: tuple[Any, ...], contents: Any) -> Any:
    arrays, tangents, tape, position = activated
    # The record of the arrays would come after those of what was computed with them.
    if tape is not None and _position(tape) != position:
        raise ActivityError(
            f"a received object ({type(contents).__name__}) computes with an active array while it is unpickled, "
            "in __setstate__ or a function that __reduce__ names; its derivative would be lost: store the array "
            "unmodified, and compute after the object has been received"
        )
    if living:
        arrived[id(contents)] = contents, arrays, tangents
    return contents


_ATOMS = (numbers.Number, str, bytes, type(None))


of_processes: set[str] = set()
"""Packages that pickle for other processes, in threads of their own: what the program gives them has been examined."""


class _Pickling(threading.local):
    """The arrays that this thread pickles (None if they are not collected), and the error for active ones, if any.

    ``places`` are the arrays of contents that this thread unpickles.
    """

    arrays: list[TrackedArray] | None = None
    places: Sequence[TrackedArray] = ()
    refused: Callable[[TrackedArray], Exception] | None = None


_pickling = _Pickling()


def _reduced(array: TrackedArray) -> Any:
    """Pickle an array by its own method, and collect it where `_arrays_in` asks for that.

    A pickle that is not a message loses derivatives.  (Compiled code has no frame: the next one is that of its caller.)
    """
    if _pickling.arrays is not None:
        _pickling.arrays.append(array)
        return _at_place, (len(_pickling.arrays) - 1,)
    if _pickling.refused is not None:
        if would_be_lost(array):
            raise _pickling.refused(array)
    elif (pickler := _pickler_of(sys._getframe(1))) not in ("ampi", "mpi4py"):
        if pickler not in of_processes or calling_frame() is not None:
            warn_lost("a pickle of", array, "send it with methods of ampi's communicators")
    return array.__reduce__()


def _pickler_of(frame: Any) -> str:
    """Return the package whose code pickles, even if the pickler is written in Python."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("pickle", "dill", "cloudpickle", "copyreg"):
            return package
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def refusing_pickles(error: Callable[[TrackedArray], Exception]) -> Iterator[None]:
    """Raise an error inside the block if an active array is pickled."""
    outer, _pickling.refused = _pickling.refused, error
    try:
        yield
    finally:
        _pickling.refused = outer


for_array_types(lambda cls: copyreg.pickle(cls, _reduced))


def _arrays_in(obj: Any) -> tuple[list[TrackedArray], Any]:
    """Return all `ampi.ndarray`s in an object, and what to pickle for it."""
    if isinstance(obj, TrackedArray) and not obj.dtype.hasobject:
        return [obj], obj
    if isinstance(obj, _ATOMS):
        return [], obj
    found: dict[int, TrackedArray] = {}
    if _walk(obj, found, set()):
        return list(found.values()), obj
    pickled, arrays = dumped(obj)
    return arrays, _Contents(pickled, arrays)


def dumped(obj: Any) -> tuple[bytes, list[TrackedArray]]:
    """Pickle an object without the `ampi.ndarray`s in it; return the bytes, and these arrays."""
    outer, _pickling.arrays = _pickling.arrays, []
    try:
        return mpi.pickle.dumps(obj), _pickling.arrays
    finally:
        _pickling.arrays = outer


def _walk(obj: Any, found: dict[int, TrackedArray], seen: set[int]) -> bool:
    """Find arrays in built-in containers; return False for other objects, which only pickling can search."""
    if isinstance(obj, np.ndarray):
        if obj.dtype.hasobject:
            return False
        if isinstance(obj, TrackedArray):
            found[id(obj)] = obj
        return True
    if isinstance(obj, _ATOMS):
        return True
    if id(obj) in seen:
        return True
    seen.add(id(obj))
    if type(obj) in (list, tuple, set, frozenset):
        return all(_walk(item, found, seen) for item in obj)
    if type(obj) is dict:
        return all(_walk(item, found, seen) for pair in obj.items() for item in pair)
    return False


def pack(tape: Tape, obj: Any) -> tuple[Any, Bundle]:
    """Return what to send for an object, and the active arrays in it."""
    arrays, memory = [], []
    found, contents = _arrays_in(obj)
    for array in found:
        if not array.size:
            continue
        moved = movable(tape, array)
        if moved is None and not is_active(tape, array):
            continue
        if moved is None and array.dtype.names is not None:
            raise ActivityError(
                "an active structured array is sent inside an object; send its fields, or ampi.value(array)"
            )
        arrays.append(array)
        memory.append(array if moved is None else moved)
    if not arrays:
        return obj, EMPTY
    bundle = Bundle(memory)
    push: Push | None = tape.forward or tape.tangents
    return Parcel(contents, arrays, None if push is None else np.stack(tangents_in(push, bundle))), bundle


EMPTY = Bundle()
_NOTHING: tuple[Any, list[TrackedArray], np.ndarray | None] = None, [], None


def unpack(tape: Tape, message: Any) -> tuple[Bundle, list[TrackedArray]]:
    """Return the active arrays in a received object, as a bundle and as a list."""
    _, arrays, tangents = arrived.pop(id(message), _NOTHING)
    _activate(tape, arrays)
    bundle = Bundle(arrays) if arrays else EMPTY
    push = tape.forward or tape.tangents
    if arrays and push is not None:
        here = len(lanes_of(push))
        if tape.forward is not None and tangents is not None and len(tangents) == here:
            return bundle, arrays  # set before the object was unpickled
        if tangents is not None and len(tangents) != here:
            raise CommunicationError(
                f"derivatives have {here} directions here, and {len(tangents)} in a received object: the leading axis "
                "of the tangents must have the same length on all ranks"
            )
        set_tangent(push, bundle, None if tangents is None else tangents.reshape(-1))
    return bundle, arrays


def refuse_others_in(obj: Any) -> None:
    """Raise an error if an object that no tape of this thread records is active on a tape of another thread."""
    tape = current()
    if tape is not None:
        pack(tape, obj)
