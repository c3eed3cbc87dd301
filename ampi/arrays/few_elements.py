"""Operations of arrays of a few elements, as statements on the tape (`ampi.tape.flows`) instead of records.

Loops over slices (``z += x[i, j : j + 3] * y[i, j]``) make thousands of them.  Each partial derivative is computed when
the operation runs: no value is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..memory.regions import Region
from ..memory.storages import Fresh, Storage, TrackedArray, address_of, as_viewed, is_scalar, new_region, storage_of
from ..tape import Tape, current
from ..tape.elements import FLOW, STORE
from ..tape.flows import ADDS, COUNT, MAKES, MOST, NEGATIVE, SPREAD, STEP, WEIGHTED
from . import few_writes
from .element_arithmetic import quietly
from .elements import NUMBERS, node_of
from .elementwise import RULES
from .fast_writes import is_ordinary
from .few_writes import open_for, place_of, step_of

_DOUBLE = np.dtype(np.float64)
_array: type = TrackedArray
_PYTHON = frozenset((float, int))
_new = np.ndarray.__new__
_set_item = np.ndarray.__setitem__
_ones = {n: np.ones(n) for n in range(MOST + 1)}


def set_array_type(cls: type) -> None:
    """Set the class of arrays (`ampi.ndarray`)."""
    global _array
    _array = cls


def call(tape: Tape, ufunc: np.ufunc, inputs: tuple) -> Any:
    """A function of vectors of one length and numbers, as statements; None: it needs a record."""
    pen: Any = tape.pen
    rule = RULES.get(ufunc)
    if pen is None or rule is None or not rule.dtypes or _DOUBLE not in rule.dtypes:
        return None  # the dtypes are found at the first call, which has a record
    reference, terms = tape.reference, rule.terms
    count = 0
    values: list[Any] = []
    active: list[tuple] = []
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
            region = getattr(x, "_region", None) or new_region(x)
            storage = region.storage
            if storage.guard or storage.swapped_by:
                return None
            if storage.tape is not None and terms[len(values)] is not None:
                step = step_of(region)
                if not step or storage.tape is not reference or storage.volatile or storage.packed:
                    return None
                if storage.arriving or storage.elsewhere:
                    return None
                active.append((len(values), region.offset, storage, step))
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
    result._storage = storage = Storage(address_of(result), 8 * count)
    storage.tape = reference
    result.__class__ = _array
    if tape.before_append is not None:
        tape.before_append()
    to = pen.creates(storage) + STEP
    needs = rule.needs
    for k, source, read, step in active:
        head = count * COUNT + FLOW
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
        if read is None:
            pen.integers += (source, 0, 0, to, head + SPREAD)
        else:
            pen.integers += (source, place_of(pen, read) + step, 0, to, head)
    return result


def _partial(term: Any, count: int, values: list, needs: tuple) -> Any:
    return term(_ones[count], *[values[n] for n in needs])


def _operand(tape: Tape, x: Any) -> Region | None:
    """The region of a vector of a few elements of ordinary memory; None for all others."""
    if x.dtype is not _DOUBLE or x.ndim != 1 or not 0 < x.size <= few_writes.MOST:
        return None
    region = getattr(x, "_region", None) or new_region(x)
    storage = region.storage
    if not is_ordinary(storage) or (storage.tape is not None and storage.tape is not tape.reference):
        return None
    return region


def total(tape: Tape, x: Any) -> Any:
    """The sum of a few elements as a variable; None: it needs a record."""
    pen = tape.pen
    if pen is None or type(x) is not _array or (region := _operand(tape, x)) is None:
        return None
    if region.storage.tape is None or not (step := step_of(region)):
        return None
    number = np.add.reduce(as_viewed(x, np.ndarray))
    if tape.before_append is not None:
        tape.before_append()
    open_for(pen)
    pen.integers += (region.offset, place_of(pen, region.storage) + step, 0, 0, x.size * COUNT + FLOW + MAKES)
    variable = pen.count
    pen.count = variable + 1
    return pen.made(number, variable)


def sum_of(x: Any) -> Any:
    """`numpy.sum` of a few elements as a variable; None: it needs a record."""
    if type(x) is not _array or x.size > few_writes.MOST or (tape := current()) is None:
        return None
    return total(tape, x)


def product(tape: Tape, function: Callable, a: Any, b: Any) -> Any:
    """The inner product of two vectors of a few elements as a variable; None: it needs a record."""
    pen = tape.pen
    if pen is None:
        return None
    regions = []
    for x in (a, b):
        if type(x) is not _array or (region := _operand(tape, x)) is None or not step_of(region):
            return None
        regions.append(region)
    count = a.size
    active = [k for k, region in enumerate(regions) if region.storage.tape is not None]
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
        region = regions[k]
        word = place_of(pen, region.storage) + step_of(region)
        pen.reals += values[1 - k].tolist()
        pen.integers += (region.offset, word, target, 0, count * COUNT + FLOW + form + WEIGHTED)
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
    result._storage = storage = Storage(address_of(result), result.nbytes)
    result._region = Region.all_of(storage, result)
    result.__class__ = _array
    code = pen.creates(storage) + STORE
    integers = pen.integers
    for k, variable in enumerate(variables):
        if variable is not None:
            integers += (variable, 8 * k, code)
    storage.tape = tape.reference
    return result
