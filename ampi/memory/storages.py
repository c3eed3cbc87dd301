"""Memory that carries derivatives: storages, regions of them, and the classes of tracked arrays.

A **storage** is one owned block of memory.  Derivatives belong to it and not to the Python objects that view it: every
view of the block, of whatever type, finds the same storage.  A **region** is the place of an array in its storage
(offset, shape, strides, dtype); it keeps no memory alive, so a tape may keep thousands of them.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..base import checks
from ..base.locks import RLock
from .blocks import zeroed
from .extents import address_of, behind, bounds_of, is_power_of_two, memory_at
from .layouts import alike, require_plain_class
from .regions import Region

CHECKED, LENT = 1, 2
"""Kinds of guards (`Storage.guard`)."""


_serials = itertools.count()
next_serial: Callable[[], int] = _serials.__next__
"""Take the next serial number of storages."""
first_guard = CHECKED if checks.is_full() else 0
"""The guard of a new storage."""


class Storage:
    """One owned block of memory.

    Attributes
    ----------
    address, nbytes : int
        The block: bytes ``address`` to ``address + nbytes``.
    tape : weakref.ref or None
        Reference to the tape on which the block carries derivatives (it is *active* there).
    needs : dict of needs.Needs
        For each tape (by reference) the extents whose present values its records need: an entry is made by
        `Tape.need` and dropped when the old values have been saved.
    volatile : bool
        Other ranks may overwrite the block unseen (the memory of a window): values that are needed are copied at once.
    arriving : int
        Number of receives into the block that are not known to be complete.
    guard : int
        The protection against code outside ampi that writes to the block.  0: none; `CHECKED`: a checksum finds writes
        that were not announced; `LENT`: in addition, values that are needed are copied at once, since the block's
        address has been handed out.
    baseline : tuple or None
        For guarded blocks: tape, checksum and source line of the last write that was announced (see `handouts`).
    swapped_by : tuple of Sweep
        The sweeps that have put earlier values into the block.
    serial : int
        Position in the order in which storages were made.
    packed : int
        Nonzero if elements may have been packed into the bytes of the block; its shadow then has a double for each
        byte, the adjoint of the real number that begins there.  `RECEIVED`: packed by the sender; `PACKED`: here.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "arriving",
        "baseline",
        "guard",
        "nbytes",
        "needs",
        "packed",
        "serial",
        "swapped_by",
        "tape",
        "volatile",
    )
    elsewhere = False
    """True if it is the memory of another rank, which holds its adjoint."""
    is_apart = False
    """True if the blocks of its derivatives cannot be rows of one array: they are on a device."""
    blank = staticmethod(zeroed)
    """Makes a block of zeros for its derivatives, given the number of bytes."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.tape: Any = None
        self.needs: dict[Any, Any] = {}
        self.volatile = False
        self.arriving = 0
        self.guard = first_guard
        self.baseline: Any = None
        self.packed = 0
        self.swapped_by: tuple[Any, ...] = ()
        self.serial = next(_serials)

    def __repr__(self) -> str:
        return f"<Storage of {self.nbytes} bytes at {self.address:#x}>"


RECEIVED, PACKED = 1, 2
"""Kinds of packed storages: bytes that may hold packed elements, and bytes that do."""


class TrackedArray(np.ndarray):
    """Base class of `ampi.ndarray`: an array that remembers its storage and region once they have been looked up.

    ``_message`` is for other packages, which cache here how the array is sent.  Scalars that are variables of a tape
    (see `tape.elements`) have a ``_node``: value, number of the variable (None: a constant), and reference to the tape.
    So have new vectors of a few elements, which are successive variables, until their storage is looked up.
    """

    __slots__ = ("_message", "_node", "_region", "_storage")

    def __setattr__(self, name: str, value: Any) -> None:
        forget_node(self)
        object.__setattr__(self, name, value)
        forget_region(self)  # it may have another shape now


# These bypass `TrackedArray.__setattr__`, which would forget the values again.
_set_storage = TrackedArray._storage.__set__  # type: ignore[attr-defined]
set_region = TrackedArray._region.__set__  # type: ignore[attr-defined]
_item = np.ndarray.__getitem__
_set_item = np.ndarray.__setitem__  # not recorded on a tape
set_message = TrackedArray._message.__set__  # type: ignore[attr-defined]
set_node = TrackedArray._node.__set__  # type: ignore[attr-defined]


def forget_region(array: TrackedArray) -> None:
    """Forget the cached region of an array, which may have changed."""
    for slot in (TrackedArray._message, TrackedArray._region):
        with contextlib.suppress(AttributeError):
            slot.__delete__(array)  # type: ignore[attr-defined]


def forget_node(array: TrackedArray) -> None:
    """Turn a scalar that is a variable of a tape, or an array of such, into one whose values are in its memory."""
    if hasattr(array, "_node"):
        storage_of(array)
        with contextlib.suppress(AttributeError):
            TrackedArray._node.__delete__(array)  # type: ignore[attr-defined]


def plain(array: np.ndarray) -> np.ndarray:
    """The same memory as a base-class `numpy.ndarray`."""
    return array if type(array) is np.ndarray else as_viewed(array, np.ndarray)


as_viewed = np.ndarray.view  # `ampi.ndarray` overrides it for the program


# ------------------------------------------------------------------------------------------ from arrays to storages

# Storages of memory that a plain array owns (what NumPy computes, seen as ampi.ndarray afterwards), by the owner's id.
_owned: dict[int, tuple[Storage, weakref.ref]] = {}
is_id_of_owner: Callable[[int], bool] = _owned.__contains__
"""Return whether this is the id of a plain array that owns tracked memory."""

# Storages of memory that no array owns (MPI windows, buffers), by address.
_foreign_addresses: list[int] = []
_foreign: list[tuple[Storage, Callable[[], Any]]] = []


def storage_of(array: Any, create: bool = False) -> Storage | None:
    """Return the storage of the memory of an array; None if that is not tracked.

    Memory is tracked if an `ampi.ndarray` is, or has been, in the array's chain of bases.

    Parameters
    ----------
    array : numpy.ndarray
        Any array or view, of whatever class.
    create : bool
        Start to track the memory if it is not tracked (as `Tape.watch` and `ampi.ndarray` do).
    """
    if isinstance(array, TrackedArray):
        try:
            return array._storage
        except AttributeError:
            if hasattr(array, "_node"):
                return _storage_of_variables(array)
            if array.base is None:
                return _new_storage(array)
            storage = _find(array, True)
            _set_storage(array, storage)
            return storage
    return _find(array, create)


def _storage_of_variables(array: TrackedArray) -> Storage:
    """Return the storage of a scalar that was a variable of a tape, or of an array of such, after storing the values of
    the variables there."""
    with _lock:
        try:
            return array._storage
        except AttributeError:
            storage = Storage(address_of(array), array.nbytes)
            _, variable, reference = array._node
            tape = reference()
            if tape is not None and variable is not None:
                is_complex = array.dtype.kind == "c"  # each number is two variables
                tape.elements.store(variable, storage, array.dtype, 2 if is_complex else array.size)
                storage.tape = tape.reference
            is_number = type(array) is _scalar_type
            if tape is not None and is_number:
                tape.elements.note_seen(array)
            _set_storage(array, storage)
            if not is_number:  # it may be overwritten
                TrackedArray._node.__delete__(array)  # type: ignore[attr-defined]
            return storage


_lock = RLock()  # two threads that look up new memory get the same storage


def _new_storage(owner: TrackedArray) -> Storage:
    """Return the storage of an array that owns its memory; made unless another thread has just made it."""
    with _lock:
        try:
            return owner._storage
        except AttributeError:
            storage = Storage(*_block(owner))
            _set_storage(owner, storage)
            return storage


def _find(array: np.ndarray, create: bool) -> Storage | None:
    owner = array
    if type(owner) is np.ndarray and owner.base is None and owner.flags.owndata:
        return _find_owned(owner, create)
    while True:
        base = behind(owner.base)
        if not isinstance(base, np.ndarray):
            break
        owner = base
        if isinstance(owner, TrackedArray):
            # A cached storage of a view is the storage of the block as well.
            try:
                return owner._storage
            except AttributeError:
                if hasattr(owner, "_node"):
                    return _storage_of_variables(owner)
                create = True
    if isinstance(owner, TrackedArray) and owner.base is None:
        return _new_storage(owner)
    if owner.base is None and owner.flags.owndata:
        return _find_owned(owner, create)
    with _lock:
        return _find_foreign(array, owner, create)


def _find_owned(owner: np.ndarray, create: bool) -> Storage | None:
    key = id(owner)
    found = _owned.get(key)
    if found is not None:
        return found[0]
    if not create:
        return None
    entry = Storage(*_block(owner)), weakref.ref(owner, lambda _, key=key: _owned.pop(key, None))
    return _owned.setdefault(key, entry)[0]  # another thread may have been first


def _block(owner: np.ndarray) -> tuple[int, int]:
    if owner.flags.forc:
        return address_of(owner), owner.nbytes
    low, high = bounds_of(owner)
    return low, high - low


def _find_foreign(array: np.ndarray, owner: np.ndarray, create: bool) -> Storage | None:
    low = address_of(array) if _foreign else 0
    k = bisect.bisect_right(_foreign_addresses, low) - 1
    while k >= 0 and _foreign[k][1]() is None:
        _forget_foreign(k)
        k -= 1
    if k >= 0 and low < _foreign[k][0].address + max(_foreign[k][0].nbytes, 1):
        return _foreign[k][0]
    if not create:
        return None
    storage = Storage(*_block(owner))
    _remember_foreign(storage, owner)
    return storage


def arrays_of_blocks() -> list[np.ndarray]:
    """Return an array on each block of tracked memory that no tracked array owns."""
    owned = [owner() for _, owner in list(_owned.values())]
    with _lock:
        foreign = [memory_at(storage.address, storage.nbytes) for storage, alive in _foreign if alive() is not None]
    return [array for array in owned if array is not None] + foreign


def track_block(storage: Storage, alive: Callable[[], Any]) -> Storage:
    """Track a block of memory that no array owns, until ``alive()`` is None."""
    with _lock:
        _insert_foreign(storage, alive)
    return storage


def _remember_foreign(storage: Storage, owner: np.ndarray) -> None:
    holder = owner if owner.base is None else owner.base
    try:
        alive: Callable[[], Any] = weakref.ref(holder)
    except TypeError:
        alive = weakref.ref(owner)
    _insert_foreign(storage, alive)


def _insert_foreign(storage: Storage, alive: Callable[[], Any]) -> None:
    if is_power_of_two(len(_foreign)):
        kept = [(storage, alive) for storage, alive in _foreign if alive() is not None]
        _foreign[:] = kept
        _foreign_addresses[:] = [storage.address for storage, _ in kept]
    k = bisect.bisect_right(_foreign_addresses, storage.address)
    _foreign_addresses.insert(k, storage.address)
    _foreign.insert(k, (storage, alive))


def _forget_foreign(k: int) -> None:
    del _foreign_addresses[k], _foreign[k]


def is_view_of(array: TrackedArray, others: Iterable[np.ndarray]) -> bool:
    """Return whether a result of NumPy is a view of one of these arrays, even a view without elements."""
    storage = storage_of(array)
    return any(storage_of(other) is storage for other in others)


def is_unseen(array: Any) -> bool:
    """Return whether an array owns its tracked memory, whose storage has not been looked up yet."""
    return isinstance(array, TrackedArray) and array.base is None and not hasattr(array, "_storage")


def is_surely_untracked(array: np.ndarray) -> bool:
    """Return whether an array owns its memory and has no storage: it is then certainly not tracked."""
    if array.base is not None:
        return False
    if isinstance(array, TrackedArray):
        return not hasattr(array, "_storage") and not hasattr(array, "_node")
    return id(array) not in _owned


def region_of(array: np.ndarray) -> Region:
    """The region of a tracked array.

    Raises
    ------
    ValueError
        The memory is not tracked.
    """
    if isinstance(array, TrackedArray):
        region = getattr(array, "_region", None)  # an exception would take longer for each new view
        return new_region(array) if region is None else region
    storage = storage_of(array)
    if storage is None:
        raise ValueError("the array's memory is not tracked; make it with ampi.numpy")
    return Region(storage, array)


def new_region(array: TrackedArray) -> Region:
    """Make the region of a tracked array that has none yet."""
    base = array.base
    if type(base) is _array_type:  # the usual view
        storage = storage_of(base)
        _set_storage(array, storage)
    else:
        storage = storage_of(array)
    region = Region(storage, array)  # type: ignore[arg-type]
    if type(array) is not _scalar_type:  # of which there are many
        set_region(array, region)
    return region


# ----------------------------------------------------------------------------------------------------- array type

_array_type: type[TrackedArray] = TrackedArray
_scalar_type: type[TrackedArray] = TrackedArray
_record_type: type[TrackedArray] = TrackedArray


at_first_structured: list[Callable[[], None]] = []
"""Functions of other packages that are called once, when a structured array first becomes a tracked one."""


def note_structured() -> None:
    """Note that a structured array becomes a tracked one."""
    while at_first_structured:
        at_first_structured.pop()()


_registered: list[Callable[[type[TrackedArray]], None]] = []


def for_array_types(then: Callable[[type[TrackedArray]], None]) -> None:
    """Register a function that is called with each class of tracked arrays and scalars once it exists."""
    _registered.append(then)


def set_array_type(cls: type[TrackedArray]) -> None:
    """Register the class of tracked arrays (`ampi.ndarray`)."""
    global _array_type
    _array_type = cls
    for then in _registered:
        then(cls)


def array_type() -> type[TrackedArray]:
    """Return the class of tracked arrays."""
    return _array_type


def set_scalar_types(scalar: type[TrackedArray], record: type[TrackedArray]) -> None:
    """Register the classes of tracked scalars and structured elements (those of `ampi.arrays.scalars`)."""
    global _scalar_type, _record_type
    _scalar_type, _record_type = scalar, record
    for then in _registered:
        then(scalar)


def is_scalar(x: Any) -> bool:
    """Return whether this is a tracked scalar, and not a 0-d array."""
    return type(x) is _scalar_type


_set_class = object.__dict__["__class__"].__set__
_set_flags = np.ndarray.setflags
_new = np.ndarray.__new__


def is_numpys(x: Any) -> bool:
    """Return whether this is NumPy's own floating-point scalar and not a tracked one (`isinstance` cannot tell)."""
    return issubclass(type(x), np.inexact)


def scalar(number: np.inexact) -> TrackedArray:
    """Return a number as a tracked scalar."""
    memory = np.asarray(number)
    _set_flags(memory, False)
    new = memory.view(_array_type)
    _set_class(new, _scalar_type)
    return new


def variable(number: np.floating, node: tuple) -> TrackedArray:
    """Return a new number as a tracked scalar that is a variable of a tape; its memory is the number's."""
    new = _new(_array_type, (), number.dtype, number)  # type: ignore[arg-type]
    _set_class(new, _scalar_type)
    set_node(new, node)
    return new


class Fresh(TrackedArray):
    """A new array before it gets its class."""

    __slots__ = ()
    __setattr__ = object.__setattr__  # faster


class Pool(Fresh):
    """Memory for the numbers of scalars.  (A separate class: views must not mistake it for a tracked array.)"""

    __slots__ = ()


def variables_in(memory: np.ndarray, node: tuple) -> list[TrackedArray]:
    """Return new scalars for variables of a tape, one for each element of an array."""
    pool = memory.view(Pool)
    _set_flags(pool, False)
    made: list[Any] = [_item(pool, (k, ...)) for k in range(len(memory))]
    for scalar in made:
        scalar._node = node
        _set_class(scalar, _scalar_type)
    return made


def as_scalar(array: TrackedArray) -> TrackedArray:
    """Turn a new 0-d array, which no other code has seen, into a scalar."""
    _set_flags(array, False)
    _set_class(array, _scalar_type)
    return array


def as_record(view: TrackedArray) -> TrackedArray:
    """Turn a new 0-d view of structured elements into an element."""
    _set_class(view, _record_type)
    return view


def is_record(x: Any) -> bool:
    """Return whether this is a tracked structured element (as `numpy.void`), and not a 0-d array."""
    return type(x) is _record_type


def as_array(view: TrackedArray) -> None:
    """Change the class of a view of a scalar from that of scalars to that of arrays."""
    _set_class(view, _array_type)


def writable(x: np.ndarray) -> np.ndarray:
    """Return the memory of an array, as `plain` does, but writable if it is that of a new scalar.

    No other code may have seen the scalar.
    """
    if not is_scalar(x):
        return plain(x)
    forget_node(x)  # type: ignore[arg-type]
    owner: Any = x.base if x.base is not None else x
    if not isinstance(owner, np.ndarray) or owner.shape:  # the scalar was a variable
        return memory_at(address_of(x), x.nbytes).view(x.dtype).reshape(())
    _set_flags(owner, True)
    view = plain(owner)[...]
    _set_flags(owner, False)
    return view


def tracked(array: Any) -> TrackedArray:
    """Return the same memory as an `ampi.ndarray`, tracked from now on (an existing array is not copied)."""
    array = np.asanyarray(array)
    if array.dtype.names:
        note_structured()
    if not isinstance(array, _array_type):
        array = array.view(_array_type)
    storage_of(array)
    return array


def tracked_copy(value: Any) -> TrackedArray:
    """Return a new `ampi.ndarray` with the values and layout of an array; for a number, a tracked scalar."""
    source = np.asarray(value)
    if source is not value and isinstance(value, np.ndarray) and not isinstance(value, TrackedArray):
        require_plain_class(type(value))
    if not source.ndim and (is_scalar(value) or not isinstance(value, np.ndarray)) and source.dtype.kind in "fc":
        return scalar(source[()])
    if source.dtype.names:
        note_structured()
    copy, owner = alike(_array_type, source)
    _set_item(copy, ..., source)
    storage = Storage(address_of(owner), owner.nbytes)
    _set_storage(copy, storage)
    if owner is not copy:
        _set_storage(owner, storage)
    return copy


def wrapped(result: Any) -> Any:
    """Return a result of NumPy with arrays as `ampi.ndarray` and floating-point scalars as tracked scalars.

    Integer and boolean scalars are returned unmodified: they index, count and decide, and carry no derivative.
    """
    if type(result) is np.ndarray:
        if result.dtype.names:
            note_structured()
        return result.view(_array_type)
    if is_numpys(result):
        return scalar(result)
    if isinstance(result, (tuple, list)):
        items = [wrapped(item) for item in result]
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)
    return result


Memory = tuple[np.ndarray, Storage | None, np.dtype | None]
"""An array, the storage of its memory, and the dtype of the floating-point elements in it."""


def memory_of(array: np.ndarray, storage: Storage | None) -> Memory:
    """Describe the memory of an array whose storage has been found."""
    if storage is None:
        return array, None, None
    dtype = array.dtype
    return array, storage, dtype if dtype.kind in "fc" else dtype_of_memory(array)


def dtype_of_memory(array: np.ndarray) -> np.dtype | None:
    """The dtype of the floating-point memory that an array views, as numbers or as bytes; None for other memory."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if carries_derivatives(base.dtype):
            return base.dtype
        base = base.base.obj if isinstance(base.base, memoryview) else base.base
    return None


def carries_derivatives(dtype: np.dtype) -> bool:
    """Return whether values of a dtype can carry derivatives: floating-point or complex, alone or in a field."""
    if dtype.names is not None:
        return any(carries_derivatives(dtype[name]) for name in dtype.names)
    if dtype.subdtype is not None:
        return carries_derivatives(dtype.subdtype[0])
    return dtype.kind in "fc"
