"""Operations of arrays of a few elements, as statements on the tape (`ampi.tape.flows`) instead of records.

Loops over slices (``z += x[i, j : j + 3] * y[i, j]``) make thousands of them.  Each partial derivative is computed when
the operation runs: no value is kept.  The elements of a result are variables of the tape, as scalars are: most results
exist for one more operation only, and no storage is made for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..memory.regions import Region
from ..memory.storages import Fresh, Storage, TrackedArray, address_of, as_viewed, is_scalar, storage_of
from ..tape import Tape, current
from ..tape.elements import FLOW, LONGEST, READ, SCALE, STORE, Elements
from ..tape.flows import ADDS, COUNT, MAKES, MOST, NEGATIVE, OVERWRITES, SPREAD, WEIGHTED
from . import few_writes
from .element_arithmetic import quietly
from .elements import NUMBERS, node_of, set_elements_of_few
from .elementwise import RULES
from .fast_calls import dtypes_of, run_in_place
from .few_writes import OWN, is_ordinary, open_for, place_in_memory, place_of

_DOUBLE = np.dtype(np.float64)
_array: type = TrackedArray
_PYTHON = frozenset((float, int))
_new = np.ndarray.__new__
_set_item = np.ndarray.__setitem__
_item = np.ndarray.__getitem__
_ones = {n: np.ones(n) for n in range(MOST + 1)}


def set_array_type(cls: type) -> None:
    """Set the class of arrays (`ampi.ndarray`)."""
    global _array
    _array = cls


def call(tape: Tape, ufunc: np.ufunc, inputs: tuple) -> Any:
    """A function of vectors of one length and numbers, as statements; None: it needs a record."""
    pen: Any = tape.pen
    rule = RULES.get(ufunc)
    if pen is None or rule is None or _DOUBLE not in (rule.dtypes or dtypes_of(ufunc, rule)):
        return None
    reference, terms = tape.reference, rule.terms
    count = 0
    values: list[Any] = []
    active: list[tuple] = []  # position, source, storage or None, step or word; 0 for a number
    for x in inputs:
        kind = type(x)
        if kind is _array or kind is np.ndarray:
            shape = x.shape
            if len(shape) != 1 or x.dtype is not _DOUBLE:
                return None
            if count != shape[0]:
                if count or not 0 < shape[0] <= few_writes.MOST:
                    return None
                (count,) = shape
            if kind is np.ndarray:
                if x.strides[0] <= 0 or storage_of(x) is not None:
                    return None
                values.append(x)
                continue
            node = getattr(x, "_node", None)
            if node is not None:
                if node[2] is not reference:
                    return None
                if terms[len(values)] is not None:
                    active.append((len(values), 8 * node[1], None, OWN))
                values.append(as_viewed(x, np.ndarray))
                continue
            storage, offset, step = place_in_memory(x)
            if storage.guard or storage.swapped_by:
                return None
            if storage.tape is not None and terms[len(values)] is not None:
                if not step or storage.tape is not reference or storage.volatile or storage.packed:
                    return None
                if storage.arriving or storage.elsewhere:
                    return None
                active.append((len(values), offset, storage, step))
            elif x.strides[0] <= 0 or (storage.tape is not None and storage.tape is not reference):
                return None
            values.append(as_viewed(x, np.ndarray))
        elif kind in NUMBERS:
            values.append(x)
        elif is_scalar(x):
            node = node_of(x, tape, pen)
            if node is None or type(node[0]) not in NUMBERS:
                return None
            if node[1] is not None and terms[len(values)] is not None:
                active.append((len(values), node[1], None, 0))
            values.append(node[0])
        else:
            return None
    if not active or not count:
        return None
    result: Any = _new(Fresh, (count,), _DOUBLE)
    values.append(as_viewed(result, np.ndarray))
    rule.run(*values)  # type: ignore[misc]
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    first = pen.count
    pen.count = first + count
    result._node = None, first, reference
    result.__class__ = _array
    needs = rule.needs
    form = FLOW + OVERWRITES + count * COUNT
    for k, source, read, step in reversed(active):  # a sweep, which goes backwards, adds to the first operand first
        head = form
        if not needs[k]:
            p = terms[k](1.0)
            if p == -1.0:
                head += NEGATIVE
            elif p != 1.0:
                head += WEIGHTED
                pen.reals += [p] * count
        else:
            if ufunc is np.multiply:
                p = values[1 - k]
            else:
                values = [x if type(x) is np.ndarray or type(x) in _PYTHON else float(x) for x in values]
                p = quietly(_partial, (terms[k], count, values, needs[k]))
            pen.reals += p.tolist() if type(p) is np.ndarray else [float(p)] * count
            head += WEIGHTED
        if not step:
            pen.integers += (source, 0, 8 * first, OWN, head + SPREAD)
        elif read is None:
            pen.integers += (source, step, 8 * first, OWN, head)
        else:
            pen.integers += (source, place_of(pen, read) + step, 8 * first, OWN, head)
        form = FLOW + count * COUNT
    return result


def _partial(term: Any, count: int, values: list, needs: tuple) -> Any:
    return term(_ones[count], *[values[n] for n in needs])


def _target(tape: Tape, target: Any) -> tuple[Storage, int, int] | None:
    """Return storage, offset and step of a vector of a few elements that a statement may overwrite; None: it needs a
    record."""
    if type(target) is not _array or len(target.shape) != 1 or target.dtype is not _DOUBLE:
        return None
    if not 0 < target.shape[0] <= few_writes.MOST or not target.flags.writeable:
        return None
    if tape.pen is None or tape.accesses is not None:
        return None
    storage, offset, to = place_in_memory(target)
    if not to or storage.needs or not is_ordinary(storage):
        return None
    return None if storage.tape is not None and storage.tape is not tape.reference else (storage, offset, to)


def update(tape: Tape, ufunc: np.ufunc, target: Any, x: Any) -> bool:
    """``target op= x`` for a vector of a few elements; False: it needs a record."""
    if (place := _target(tape, target)) is None:
        return False
    pen: Any = tape.pen
    storage, offset, to = place
    reference, count = tape.reference, target.shape[0]
    kind = type(x)
    origin = None
    form = FLOW
    if kind is _array and x.shape == target.shape and x.dtype is _DOUBLE:
        value = as_viewed(x, np.ndarray)
        node = getattr(x, "_node", None)
        if node is not None:
            if node[2] is not reference:
                return False
            source, word = 8 * node[1], OWN
        else:
            origin, source, word = place_in_memory(x)
            if not word or origin is storage or origin.tape is not reference or not is_ordinary(origin):
                return False
    elif is_scalar(x):
        node = node_of(x, tape, pen)
        if node is None or node[1] is None or type(node[0]) is not np.float64:
            return False
        value, source, word, form = node[0], node[1], 0, FLOW + SPREAD
    else:
        return False
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    run_in_place(tape, ufunc, target, value)
    storage.tape = reference
    if origin is not None:
        word += place_of(pen, origin)
    head = form + count * COUNT + (NEGATIVE if ufunc is np.subtract else 0)
    pen.integers += (source, word, offset, place_of(pen, storage) + to, head)
    return True


def in_place(tape: Tape, ufunc: np.ufunc, inputs: tuple) -> bool:
    """``target op= x`` for a vector of a few elements, as an assignment of the result; False: it needs a record."""
    target = inputs[0]
    if _target(tape, target) is None:
        return False
    try:
        made = call(tape, ufunc, inputs)
    except FloatingPointError:
        return False  # NumPy has written a part
    return made is not None and few_writes.assign(target, made)


def _operand(tape: Tape, x: Any) -> tuple | None:
    """Offset, storage and step of a vector of a few elements of ordinary memory, as in `call`; None for all others."""
    if x.dtype is not _DOUBLE or len(x.shape) != 1 or not 0 < x.shape[0] <= few_writes.MOST:
        return None
    node = getattr(x, "_node", None)
    if node is not None:
        return (8 * node[1], None, OWN) if node[2] is tape.reference else None
    storage, offset, step = place_in_memory(x)
    if not step or not is_ordinary(storage) or (storage.tape is not None and storage.tape is not tape.reference):
        return None
    return offset, storage, step


def _active_operand(tape: Tape, x: Any) -> tuple | None:
    """The same as `_operand` for what carries derivatives; None for all others."""
    if tape.pen is None or type(x) is not _array or (place := _operand(tape, x)) is None:
        return None
    return None if place[1] is not None and place[1].tape is None else place


def _combined(tape: Tape, number: Any, place: tuple, count: int, weights: Sequence[float] = ()) -> Any:
    """Return a number as a variable: the sum of elements, or of their products with weights."""
    pen: Any = tape.pen
    source, storage, word = place
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    if storage is not None:
        word += place_of(pen, storage)
    pen.reals += weights
    pen.integers += (source, word, 0, 0, count * COUNT + FLOW + MAKES + (WEIGHTED if weights else 0))
    variable = pen.count
    pen.count = variable + 1
    return pen.made(number, variable)


def total(tape: Tape, x: Any) -> Any:
    """The sum of a few elements as a variable; None: it needs a record."""
    if (place := _active_operand(tape, x)) is None:
        return None
    return _combined(tape, np.add.reduce(as_viewed(x, np.ndarray)), place, x.size)


def reduced(tape: Tape, ufunc: np.ufunc, x: Any) -> Any:
    """The sum, product or extremum of a few elements as a variable; None: it needs a record."""
    if ufunc is np.add:
        return total(tape, x)
    if ufunc not in _REDUCTIONS or (place := _active_operand(tape, x)) is None:
        return None
    view = as_viewed(x, np.ndarray)
    number, values = ufunc.reduce(view), view.tolist()
    if ufunc is np.multiply:
        return _combined(tape, number, place, x.size, _products_of_others(values))
    if number != number:
        return None  # no element is the extremum
    source, storage, word = place
    first = source + values.index(number) * x.strides[0]  # of equal elements
    return _combined(tape, number, (first, storage, word), 1)


_REDUCTIONS = frozenset((np.multiply, np.maximum, np.minimum, np.fmax, np.fmin))


def _products_of_others(values: list) -> list:
    """For each number the product of those before it, times that of those behind it."""
    before, behind = [1.0], [1.0]
    for x, y in zip(values[:-1], reversed(values[1:])):
        before.append(before[-1] * x)
        behind.append(behind[-1] * y)
    return [a * b for a, b in zip(before, reversed(behind))]


def _reduction(ufunc: np.ufunc) -> Callable[[Any], Any]:
    def reduce(x: Any) -> Any:
        if type(x) is not _array or x.size > few_writes.MOST or (tape := current()) is None:
            return None
        return reduced(tape, ufunc, x)

    return reduce


_sum = _reduction(np.add)


def _mean(x: Any) -> Any:
    found = _sum(x)
    return None if found is None else found / x.size


_greatest, _least = _reduction(np.maximum), _reduction(np.minimum)
OF_WHOLE: dict[Callable, Callable[[Any], Any]] = {
    np.sum: _sum,
    np.mean: _mean,
    np.prod: _reduction(np.multiply),
    **dict.fromkeys((np.max, np.amax), _greatest),
    **dict.fromkeys((np.min, np.amin), _least),
}
"""NumPy's functions of all elements of an array: a few elements give a variable; None: it needs a record."""


def copied(x: Any) -> Any:
    """A copy of a vector of a few elements; None: it needs a record."""
    if (tape := current()) is None or (place := _active_operand(tape, x)) is None:
        return None
    source, storage, word = place
    pen: Any = tape.pen
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    count = x.size
    result: Any = _new(Fresh, (count,), _DOUBLE)
    _set_item(result, slice(None), as_viewed(x, np.ndarray))
    if storage is not None:
        word += place_of(pen, storage)
    first = pen.count
    pen.integers += (source, word, 8 * first, OWN, FLOW + OVERWRITES + count * COUNT)
    pen.count = first + count
    result._node = None, first, tape.reference
    result.__class__ = _array
    return result


def elements_of(x: Any) -> Iterator[Any]:
    """The elements of a vector of a few elements, one after the other."""
    for k in range(len(x)):
        number = None
        if (tape := current()) is not None and (pen := tape.pen) is not None:
            storage, offset, step = place_in_memory(x)
            if step and storage.tape is tape.reference and is_ordinary(storage):
                open_for(pen)
                number = pen.count
                pen.integers += (offset + k * x.strides[0], place_of(pen, storage) + READ)
                pen.count = number + 1
        yield x[k] if number is None else pen.made(_item(x, k), number)


def product(tape: Tape, function: Callable, a: Any, b: Any) -> Any:
    """The inner product of two vectors of a few elements as a variable; None: it needs a record."""
    pen = tape.pen
    if pen is None:
        return None
    places = []
    for x in (a, b):
        if type(x) is not _array or (place := _operand(tape, x)) is None:
            return None
        places.append(place)
    count = a.size
    active = [k for k, (_, storage, _) in enumerate(places) if storage is None or storage.tape is not None]
    if b.size != count or not active:
        return None
    values = as_viewed(a, np.ndarray), as_viewed(b, np.ndarray)
    number = function(*values)
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    variable = pen.count
    form, target = MAKES, 0
    for k in active:
        source, storage, word = places[k]
        if storage is not None:
            word += place_of(pen, storage)
        pen.reals += values[1 - k].tolist()
        pen.integers += (source, word, target, 0, count * COUNT + FLOW + form + WEIGHTED)
        form, target = ADDS, variable
    pen.count = variable + 1
    return pen.made(number, variable)


def array_of(tape: Tape, items: Sequence) -> Any:
    """An array of a list of numbers, some of them variables; None: it needs a record."""
    pen = tape.pen
    if pen is None:
        return None
    values: list[Any] = []
    variables: list[int | None] = []
    for x in items:
        if type(x) in NUMBERS:
            values.append(x)
            variables.append(None)
            continue
        if not is_scalar(x) or (node := node_of(x, tape, pen)) is None or type(node[0]) is not np.float64:
            return None
        values.append(node[0])
        variables.append(node[1])
    if all([variable is None for variable in variables]):
        return None
    result: Any = _new(Fresh, (len(values),), _DOUBLE)
    _set_item(result, slice(None), values)
    if len(values) <= MOST:
        _as_variables(pen, result, variables)
    else:
        _as_memory(tape, result, variables)
    result.__class__ = _array
    return result


def _as_variables(pen: Elements, result: Any, sources: list[int | None]) -> None:
    """Make a variable for each element; that of a constant is zero times another one."""
    if len(pen.integers) > LONGEST:
        pen.open()
    first = pen.count
    pen.count = first + len(sources)
    result._node = None, first, pen.reference
    for source in sources:
        pen.integers += (source or 0, SCALE)
        pen.reals.append(0.0 if source is None else 1.0)


def _as_memory(tape: Tape, result: Any, sources: list[int | None]) -> None:
    pen: Any = tape.pen
    result._storage = storage = Storage(address_of(result), result.nbytes)
    result._region = Region.all_of(storage, result)
    code = pen.creates(storage) + STORE
    integers = pen.integers
    for k, variable in enumerate(sources):
        if variable is not None:
            integers += (variable, 8 * k, code)
    storage.tape = tape.reference


set_elements_of_few(elements_of)
