"""Fast access to single elements, for the loops of programs.

While no tape is open, `ampi.ndarray` has no item access of its own: NumPy's runs, at NumPy's speed. (Structured arrays
are an exception: their elements are views that may carry derivatives later.)
While a tape records, an active element, and each number computed from it, is a variable of the tape (`tape.elements`).
Cases that this module does not handle are treated as for any other array; the variable is then stored in the array's
memory.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from sys import getrefcount
from typing import Any

import numpy as np

from ..base import checks
from ..base.locks import RLock
from ..memory.storages import TrackedArray, at_first_structured, region_of, set_node, set_region, storage_of
from ..memory.storages import variable as new_variable
from ..tape import Tape, at_opening, living, open_tapes
from ..tape.element_places import BITS, PAIR, offset_of, row_of
from ..tape.elements import CLEAR, FLOW, LONGEST, READ, SCALE, STORE, UNUSED, Elements
from ..tape.flows import COUNT, OVERWRITES, SPREAD, STEP, WEIGHTED
from ..tape.recording import scope_now
from . import few_writes, indexing

_item = np.ndarray.__getitem__
_set_item = np.ndarray.__setitem__
_double = np.float64
_ALL = ()
_scalar: type = TrackedArray

NUMBERS = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool))
"""Types of constants in statements."""


# ------------------------------------------------------------------------------------------------------- item access


def getitem(self: Any, key: Any) -> Any:
    """``array[key]`` while a tape is open; fast for elements of arrays that have a table of variables."""
    try:
        region = self._region
        if type(key) is int and (rows := region.rows) is not None:
            found = _item(self, key)
            set_region(found, rows[key])
            return found
        offset = region.offsets[key]  # raises an error for slices
        found = region.numbers[key]
        storage = region.storage
        reference = storage.tape
    except (AttributeError, IndexError, KeyError, NotImplementedError, TypeError):
        found = None  # the error below must not show this one as its context
    if type(found) is not _double:
        return _getitem(self, key)
    scope = scope_now()
    tape = scope.tape
    if (
        tape is None
        or reference is not tape.reference
        or scope.thread != get_ident()
        or (pen := tape.pen) is None
        or storage.guard
        or storage.volatile
        or pen.records[-1] is not pen.current
        or (place := pen.places.get(storage)) is None
    ):
        return _getitem(self, key)
    pen.integers += (offset, place)
    number = pen.count
    pen.count = number + 1
    room = pen.room or pen.enlarge()
    pen.room = room = room - 1
    made = pen.ring[room]
    if getrefcount(made) > UNUSED:
        return pen.missing(found, (found, number, reference))
    pen.pool[room] = found
    made._node = found, number, reference
    return made


def _getitem(self: Any, key: Any) -> Any:
    found = _item(self, key)
    kind = type(found)
    if kind not in BITS:
        if kind is type(self):
            if type(key) is int and (row := row_of(region_of(self), key)) is not None:
                set_region(found, row)
                return found
            base = found.base
            if base is self or (base is not None and base is self.base):
                return found  # a view
        elif kind is np.complex128 and (made := _pair_at(self, key, found)) is not None:
            return made
        return indexing.selected(self, key, found)
    try:
        region = self._region
    except AttributeError:
        if (made := _variable_at(self, key, found)) is not None:
            return made
        region = region_of(self)
    storage = region.storage
    reference = storage.tape
    if reference is None:
        return _constant(self, key, found)
    scope = scope_now()
    tape = scope.tape
    if tape is None or tape.reference is not reference or scope.thread != get_ident():
        return indexing.selected(self, key, found)
    pen = tape.pen
    if pen is None or storage.guard or storage.volatile:
        return indexing.selected(self, key, found)
    if (offset := offset_of(region, key)) is None:
        return indexing.selected(self, key, found)
    code = region.steps[3]
    if pen.records[-1] is not pen.current:
        pen.open()
    place = pen.places.get(storage)
    if place is None:
        if not pen.can_read(storage):
            return indexing.selected(self, key, found)
        place = pen.place(storage)
    integers = pen.integers
    integers += (offset, place | code)
    number = pen.count
    pen.count = number + 1
    return pen.made(found, number)


def _pair_at(self: Any, key: Any, found: Any) -> Any:
    """A complex element, as a pair of variables (see `complex_numbers`); None: there is no fast path."""
    scope = scope_now()
    tape = scope.tape
    if tape is None or scope.thread != get_ident() or (pen := tape.pen) is None:
        return None
    region = region_of(self)
    storage = region.storage
    if storage.tape is None:
        return new_variable(found, (found, None, pen.pairs))
    if storage.tape is not tape.reference or not few_writes.is_ordinary(storage):
        return None
    try:
        offset = region.offsets[key]
    except (AttributeError, TypeError):
        if (offset := offset_of(region, key)) is None:
            return None
    few_writes.open_for(pen)
    number = pen.count
    place = few_writes.place_of(pen, storage) + STEP
    pen.integers += (offset, place, 8 * number, few_writes.OWN, FLOW + OVERWRITES + 2 * COUNT)
    pen.count = number + 2
    return new_variable(found, (found, number, pen.pairs))


def _set_pair(self: Any, key: Any, number: Any, variable: int | None, is_pair: bool, tape: Tape) -> bool:
    """``array[key] = value`` for an array of complex numbers; False: there is no fast path."""
    pen: Any = tape.pen
    region = region_of(self)
    storage, reference = region.storage, tape.reference
    is_active = storage.tape is not None
    if region.dtype.type is not np.complex128 or storage.needs or not few_writes.is_ordinary(storage):
        return False
    if (is_active and storage.tape is not reference) or (offset := offset_of(region, key)) is None:
        return False
    few_writes.open_for(pen)
    _set_item(self, key, number)
    place = few_writes.place_of(pen, storage)
    if variable is None:
        if is_active:
            pen.integers += (offset, place + CLEAR, offset + 8, place + CLEAR)
        return True
    storage.tape = reference
    if is_pair:
        head = FLOW + OVERWRITES + 2 * COUNT
        pen.integers += (8 * variable, few_writes.OWN, offset, place + STEP, head)
    else:
        pen.reals += (1.0, 0.0)
        pen.integers += (variable, 0, offset, place + STEP, FLOW + OVERWRITES + 2 * COUNT + SPREAD + WEIGHTED)
    return True


def _variable_at(self: Any, key: Any, found: Any) -> Any:
    """An element of a vector whose elements are variables; None: there is no such."""
    node = getattr(self, "_node", None)
    if node is None or type(key) is not int:
        return None
    scope = scope_now()
    tape = scope.tape
    if tape is None or node[2] is not tape.reference or scope.thread != get_ident() or (pen := tape.pen) is None:
        return None
    number = pen.count  # of its own: adjoints are summed in the order in which those of memory would be
    pen.count = number + 1
    pen.integers += (node[1] + (key if key >= 0 else key + len(self)), SCALE)
    pen.reals.append(1.0)
    return pen.made(found, number)


def _constant(self: Any, key: Any, found: Any) -> Any:
    """An element that carries no derivative."""
    if not open_tapes:
        _count_idle()
        return found
    scope = scope_now()
    tape = scope.tape
    if tape is None or (pen := tape.pen) is None or scope.thread != get_ident():
        return indexing.selected(self, key, found)
    return pen.made(found, None)


def setitem(self: Any, key: Any, value: Any) -> None:
    """``array[key] = value`` while a tape exists; fast for variables and elements of such arrays."""
    if type(value) is not _scalar:
        if open_tapes:
            _setitem(self, key, value)
        else:
            _set_passively(self, key, value)
        return
    try:
        number, variable, known = value._node
        region = self._region
        if type(key) is not int and key is not _ALL:
            i, j = key
            if type(i) is not int or type(j) is not int:  # True is no index here
                raise TypeError
        offset = region.offsets[key]
        scope = scope_now()
        tape = scope.tape
        pen = tape.pen
        storage = region.storage
        if (
            variable is None
            or known is not tape.reference
            or storage.tape is not known
            or scope.thread != get_ident()
            or storage.needs
            or storage.guard
            or storage.volatile
            or storage.swapped_by
            or region.steps[3]
            or pen.records[-1] is not pen.current
            or (place := pen.places.get(storage)) is None
        ):
            raise TypeError
    except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError):
        pass  # the error below must not show this one as its context
    else:
        _set_item(self, key, number)
        pen.integers += (variable, offset, place + STORE)
        return
    _setitem(self, key, value)


def _setitem(self: Any, key: Any, value: Any) -> None:
    if type(value) is type(self) and value.size <= few_writes.MOST:
        target = _item(self, key)
        if type(target) is type(self) and ((base := target.base) is self or (base is not None and base is self.base)):
            if few_writes.assign(target, value):
                return
    scope = scope_now()
    tape = scope.tape
    kind = type(value)
    if type(key) is slice or (type(key) is tuple and slice in map(type, key)):
        if tape is not None and scope.thread == get_ident() and _fill(self, key, value, tape):
            return
        if open_tapes:
            indexing.setitem(self, key, value)
            return
    if tape is None or (pen := tape.pen) is None or scope.thread != get_ident():
        _set_passively(self, key, value)
        return
    if kind is _scalar:
        try:
            number, variable, known = value._node
        except AttributeError:
            known = None
        if known is not tape.reference:
            if known is pen.pairs:
                if not _set_pair(self, key, number, variable, True, tape):
                    indexing.setitem(self, key, value)
                return
            if (node := node_of(value, tape, pen)) is None:
                indexing.setitem(self, key, value)
                return
            number, variable, known = node
    elif kind in NUMBERS:
        number, variable = value, None
    else:
        indexing.setitem(self, key, value)
        return
    try:
        region = self._region
    except AttributeError:
        region = region_of(self)
    storage = region.storage
    reference = storage.tape
    if reference is not tape.reference and (
        reference is not None or storage.swapped_by or storage.arriving or storage.packed
    ):
        indexing.setitem(self, key, value)
        return
    if (offset := offset_of(region, key)) is None:
        indexing.setitem(self, key, value)
        return
    if (
        storage.guard
        or storage.volatile
        or storage.swapped_by
        or (storage.needs and not pen.save(storage, self, region, offset))
    ):
        indexing.setitem(self, key, value)
        return
    integers = pen.integers
    if not pen.records or pen.records[-1] is not pen.current or len(integers) > LONGEST:
        integers = pen.open()
    code = region.steps[3]
    if code == PAIR:
        if not _set_pair(self, key, number, variable, False, tape):
            indexing.setitem(self, key, value)
        return
    place = pen.places.get(storage)
    if place is None:
        if not pen.can_read(storage):
            indexing.setitem(self, key, value)
            return
        place = pen.place(storage)
    code |= place
    _set_item(self, key, number)
    if variable is not None:
        integers += (variable, offset, code + STORE)
        storage.tape = tape.reference
    elif reference is not None:
        integers += (offset, code + CLEAR)
        if storage.nbytes == self.itemsize:
            storage.tape = None


def _fill(self: Any, key: Any, value: Any, tape: Tape) -> bool:
    """``array[key] = number`` for a key with slices that selects a few elements; False: there is no fast path."""
    if (pen := tape.pen) is None:
        return False
    if type(value) is _scalar:
        if (node := node_of(value, tape, pen)) is None:
            return False
        number, variable, _ = node
    elif type(value) in NUMBERS:
        number, variable = value, None
    else:
        return False
    target = _item(self, key)
    if type(target) is not type(self):
        return False
    base = target.base
    is_view = base is self or (base is not None and base is self.base)
    return is_view and few_writes.fill(tape, target, number, variable)


def _set_passively(self: Any, key: Any, value: Any) -> None:
    """``array[key] = value`` where no tape records statements."""
    if not open_tapes:
        storage: Any = storage_of(self)
        if not storage.needs and not storage.guard:
            _count_idle()
            _set_item(self, key, value)
            return
    indexing.setitem(self, key, value)


def iterated(self: Any) -> Iterator[Any]:
    """``iter(array)`` while a tape is open."""
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d array")
    if getattr(self, "_node", None) is None:
        if self.ndim == 1 and self.size <= few_writes.MOST and self.dtype.type is _double and self.base is not None:
            return _elements_of_few(self)
        return (self[k] for k in range(len(self)))
    return (self[k] if (x := _variable_at(self, k, _item(self, k))) is None else x for k in range(len(self)))


_elements_of_few: Callable[[Any], Iterator[Any]]


def set_elements_of_few(function: Callable[[Any], Iterator[Any]]) -> None:
    """Set `few_elements.elements_of`, which that module does when it is imported."""
    global _elements_of_few
    _elements_of_few = function


def node_of(x: Any, tape: Tape, pen: Elements) -> tuple | None:
    """Value, variable and tape of a scalar; the variable is None for a constant.  None: treat it as an array."""
    try:
        node = x._node
        if node[2] is tape.reference:
            return node
    except AttributeError:
        pass
    if x.dtype.type not in BITS or not x.dtype.isnative:
        return None
    storage: Any = storage_of(x)
    value = _item(x, ())
    if storage.tape is None:
        return value, None, None
    if storage.tape is not tape.reference or storage.guard or storage.volatile or storage.packed or storage.elsewhere:
        return None
    if pen.records[-1] is not pen.current or len(pen.integers) > LONGEST:
        pen.open()
    place = pen.places.get(storage)
    if place is None:
        if not pen.can_read(storage):
            return None
        place = pen.place(storage)
    pen.integers += (region_of(x).offset, place + BITS[x.dtype.type] + READ)
    number = pen.count
    pen.count = number + 1
    node = value, number, tape.reference
    set_node(x, node)
    return node


# ------------------------------------------------------------------------------------------------ methods come and go

_arrays: list[type] = []
_lock = RLock()
_idle = 0  # uses of ampi's item access since the last tape was closed
_ENOUGH = 32
# From Python 3.13 on, attribute lookups on a class that has changed a thousand times are no longer cached.
_changes_left = 400 if sys.version_info >= (3, 13) else sys.maxsize


def set_scalar_type(cls: type) -> None:
    """Set the class of variables (`ampi.arrays.scalars.scalar`)."""
    global _scalar
    _scalar = cls


def leave_to_numpy(cls: type) -> None:
    """Give a class of arrays ampi's item access only while a tape needs it."""
    _arrays.append(cls)
    if checks.is_full():
        _take_over()
    else:
        at_opening.append(_take_over)


def _take_over(tape: Any = None) -> None:
    global _idle
    _idle = 0
    (cls,) = _arrays
    with _lock:  # another thread may be about to remove them
        if "__getitem__" in vars(cls) and "__setitem__" in vars(cls):
            return
        methods: dict[str, Callable] = {"__getitem__": getitem, "__setitem__": setitem, "__iter__": iterated}
        for name, method in methods.items():
            if name not in vars(cls):
                setattr(cls, name, method)


def _keep() -> None:
    """Keep ampi's item access permanently: elements of structured arrays are views that may carry derivatives later."""
    global _changes_left
    _changes_left = 0
    _take_over()


at_first_structured.append(_keep)


def _count_idle() -> None:
    """Count a use of ampi's item access while no tape is open; after several, restore NumPy's."""
    global _idle, _changes_left
    _idle += 1
    if _idle < _ENOUGH or checks.is_full() or not _changes_left:
        return
    with _lock:
        _idle = 0
        (cls,) = _arrays
        for name in ("__getitem__", "__iter__", *(() if living else ("__setitem__",))):
            if not open_tapes and name in vars(cls):
                delattr(cls, name)
                _changes_left -= 1
