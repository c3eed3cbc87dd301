"""Active arrays inside Python objects: found by pickling, and their adjoints as one message.

While a tape records, an object with active arrays in it (in lists, dicts, dataclasses, attributes) travels as a
`Parcel`, which pickles the object together with the list of these arrays.  On arrival the same arrays are found again
in the unpickled object, as `ampi.ndarray`s which are active, and their adjoints go back as one flat message.  Objects
without active arrays travel as they are, by which the receiver knows as well that they have no part in derivatives.
In forward mode a parcel has the tangents of its arrays in it.
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
    """The active arrays inside an object, as one message: what `Buffer` is for a buffer.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the message of adjoints: the least one that holds all of them.
    count : int
        Number of elements.
    """

    __slots__ = ("count", "dtype", "regions")

    packed = False

    def __init__(self, arrays: Iterable[np.ndarray] = ()) -> None:
        self.fill(arrays)

    def fill(self, arrays: Iterable[np.ndarray]) -> None:
        """Say which arrays these are."""
        self.regions: list[Region] = [region_of(array) for array in arrays]
        self.dtype = np.result_type(*(_dtype_of(region) for region in self.regions), np.float32)
        self.count = sum(map(_size, self.regions))

    @property
    def nbytes(self) -> int:
        """Bytes of the message of adjoints."""
        return self.count * self.dtype.itemsize

    def within(self, nbytes: int) -> Bundle:
        """Objects arrive as a whole."""
        return self

    def take(self, sweep: Sweep) -> np.ndarray:
        """The adjoints in one array; the shadows become zero."""
        taken = np.empty(self.count, self.dtype)
        start = 0
        for region in self.regions:
            end = start + _size(region)
            adjoint = sweep.take(region)
            taken[start:end] = 0 if adjoint is None else adjoint.ravel()
            start = end
        return taken

    def zero(self, sweep: Sweep) -> None:
        """The shadows become zero."""
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
    """Of the adjoint."""
    return region.dtype if region.dtype.kind in "fc" else SLOT_DTYPE


def _size(region: Region) -> int:
    size = 1
    for n in region.shape:
        size *= n
    return size


class Parcel:
    """An object on its way, with the list of the active arrays in it; unpickled it is the object.

    In forward mode and in second order with their tangents, one row for each direction.  An object whose class has a
    say in how it is pickled has been pickled already, into `_Contents`.
    """

    __slots__ = ("arrays", "contents", "tangents")

    def __init__(self, contents: Any, arrays: Sequence[TrackedArray], tangents: np.ndarray | None) -> None:
        self.contents = contents
        self.arrays = arrays
        self.tangents = tangents

    def __reduce__(self) -> Any:
        return _open, (_Arrays(list(self.arrays), self.tangents), self.contents)


class _Arrays:
    """The active arrays of a parcel, unpickled before its contents: code of the contents' classes finds them active."""

    __slots__ = ("arrays", "tangents")

    def __init__(self, arrays: list[TrackedArray], tangents: np.ndarray | None) -> None:
        self.arrays = arrays
        self.tangents = tangents

    def __reduce__(self) -> Any:
        return _begin, (self.arrays, self.tangents)


class _Contents:
    """A pickled object, in which arrays are numbers of places: its class's code has run, and does so only once."""

    __slots__ = ("arrays", "pickled")

    def __init__(self, pickled: bytes, arrays: list[TrackedArray]) -> None:
        self.pickled = pickled
        self.arrays = arrays

    def __reduce__(self) -> Any:
        return _contents_of, (self.arrays, self.pickled)


def _contents_of(arrays: list[TrackedArray], pickled: bytes) -> Any:
    outer, _noting.places = _noting.places, arrays
    try:
        return mpi.pickle.loads(pickled)
    finally:
        _noting.places = outer


def _at_place(place: int) -> TrackedArray:
    """An array in `_Contents`."""
    return _noting.places[place]


def _begin(arrays: list[TrackedArray], tangents: np.ndarray | None) -> tuple[Any, ...]:
    """Make the arrays of a parcel active; gives what `_open` wants to know."""
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
    """Where a tape has come to: another value as soon as anything has been recorded."""
    return len(tape), len(tape.elements.integers)


# Contents of parcels that were unpickled a moment ago, by id, with the active arrays in them and their tangents.
arrived: dict[int, tuple[Any, list[TrackedArray], np.ndarray | None]] = {}


def _open(begun: tuple[Any, ...], contents: Any) -> Any:
    arrays, tangents, tape, position = begun
    if (
        tape is not None and _position(tape) != position
    ):  # their record comes after those of what was computed with them
        raise ActivityError(
            f"an object that arrives ({type(contents).__name__}) computes with an active array while it is unpickled, "
            "in __setstate__, or in what __reduce__ names; its derivative would be lost: keep the array as it is, and "
            "compute after the object has been received"
        )
    if living:
        arrived[id(contents)] = contents, arrays, tangents
    return contents


_ATOMS = (numbers.Number, str, bytes, type(None))


class _Noting(threading.local):
    """Arrays that this thread pickles, None if nobody asks; and the error for active ones, if there is to be one.

    ``places`` are arrays of contents that this thread unpickles.
    """

    arrays: list[TrackedArray] | None = None
    places: Sequence[TrackedArray] = ()
    refused: Callable[[TrackedArray], Exception] | None = None


_noting = _Noting()


def _reduced(array: TrackedArray) -> Any:
    """How arrays are pickled: as they say themselves, but noted where somebody asks for it.

    A pickle that is no message (compiled code has no frame, so whoever called it is next) loses derivatives.
    """
    if _noting.arrays is not None:
        _noting.arrays.append(array)
        return _at_place, (len(_noting.arrays) - 1,)
    if _noting.refused is not None:
        if would_be_lost(array):
            raise _noting.refused(array)
    elif _pickler_of(sys._getframe(1)) not in ("ampi", "mpi4py"):
        warn_lost("a pickle of", array, "send it with methods of ampi's communicators")
    return array.__reduce__()


def _pickler_of(frame: Any) -> str:
    """The package that pickles, be it by a pickler that is written in Python."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("pickle", "dill", "cloudpickle", "copyreg"):
            return package
        frame = frame.f_back
    return ""


@contextlib.contextmanager
def refusing_pickles(error: Callable[[TrackedArray], Exception]) -> Iterator[None]:
    """Around what pickles objects that must not hold active arrays."""
    outer, _noting.refused = _noting.refused, error
    try:
        yield
    finally:
        _noting.refused = outer


for_array_types(lambda cls: copyreg.pickle(cls, _reduced))


def _arrays_in(obj: Any) -> tuple[list[TrackedArray], Any]:
    """All arrays of ours in an object, and what to pickle for it."""
    if isinstance(obj, TrackedArray) and not obj.dtype.hasobject:
        return [obj], obj
    if isinstance(obj, _ATOMS):
        return [], obj
    found: dict[int, TrackedArray] = {}
    if _walk(obj, found, set()):
        return list(found.values()), obj
    outer, _noting.arrays = _noting.arrays, []
    try:
        pickled = mpi.pickle.dumps(obj)
        return _noting.arrays, _Contents(pickled, _noting.arrays)
    finally:
        _noting.arrays = outer


def _walk(obj: Any, found: dict[int, TrackedArray], seen: set[int]) -> bool:
    """Look for arrays in built-in containers; False if there is something else, which only pickling can look into."""
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
    """What to send for an object, and the active arrays in it."""
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
    """The active arrays in an object that has arrived."""
    _, arrays, tangents = arrived.pop(id(message), _NOTHING)
    _activate(tape, arrays)
    bundle = Bundle(arrays) if arrays else EMPTY
    push = tape.forward or tape.tangents
    if arrays and push is not None:
        here = len(lanes_of(push))
        if tape.forward is not None and tangents is not None and len(tangents) == here:
            return bundle, arrays  # they came before the object
        if tangents is not None and len(tangents) != here:
            raise CommunicationError(
                f"derivatives go in {here} directions here, and those in an object that came in {len(tangents)}: the "
                "leading axis of the tangents must be as long on all ranks"
            )
        set_tangent(push, bundle, None if tangents is None else tangents.reshape(-1))
    return bundle, arrays


def refuse_others_in(obj: Any) -> None:
    """Raise if an object that no tape of this thread records holds what is active on one of another thread's."""
    tape = current()
    if tape is not None:
        pack(tape, obj)
