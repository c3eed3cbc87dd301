"""Results that have another form while they are recorded: lists, optional numbers and structured arrays.

A list is recorded as arrays; a number or None as a pair of a flag and the number; a structured array as one array for
each field.  The program gets back lists, None and structured arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampi.kernel import arguments
from ampi.memory import storages as memory


class Fields(tuple):
    """The fields of a structured array that a kernel has returned.

    Attributes
    ----------
    records : ampi.ndarray
        The structured array, of which they are views.
    is_new : bool
        Whether it is neither an argument nor a part of one.
    """

    records: np.ndarray
    is_new: bool


def fields_of(records: np.ndarray, leaves: Any) -> Fields:
    """The fields of numbers, in the order of a kernel's leaves; ``leaves`` are those of its arguments."""
    records = arguments.with_base(records, leaves)
    is_new, whole = memory.storage_of(records) is None, memory.tracked(records)
    found = Fields(arguments.flatten(whole))
    found.records, found.is_new = whole, is_new
    return found


def as_arrays(value: Any, forms: Any, dtypes: Iterator[str], leaves: Any) -> Any:
    """A result in the form in which it is recorded.

    It has a tuple of arrays (the columns) for each list, a pair for each number or None, and `Fields` for each
    structured array; ``forms`` is as in `Contract`, ``leaves`` are those of the arguments.
    """
    if isinstance(forms, tuple):
        parts = [as_arrays(v, inner, dtypes, leaves) for v, inner in zip(value, forms, strict=True)]
        return arguments.rebuilt(value, parts)
    if forms is None:
        for _ in _leaves(value):
            next(dtypes)
        return value
    if forms == RECORDS:
        fields = fields_of(value, leaves)
        for _ in fields:
            next(dtypes)
        return fields
    if forms == NUMBER_OR_NONE:
        next(dtypes)
        return (value is not None, np.dtype(next(dtypes)).type(value or 0))
    columns = zip(*value) if forms and value else [value] * max(forms, 1)
    return tuple(np.array(column, next(dtypes)) for column in columns)


def as_returned(value: Any, forms: Any, plain: Any, active: Iterator[bool]) -> Any:
    """The result in the form that the program expects: the inverse of `as_arrays`.

    Where its leaves have no derivatives it is ``plain``, Numba's own result.
    """
    if isinstance(forms, tuple):
        parts = [as_returned(*both, active) for both in zip(value, forms, plain, strict=True)]
        return arguments.rebuilt(plain, parts)
    if forms is None:
        for _ in _leaves(plain):
            next(active)
        return value
    flags = [next(active) for _ in value]
    if isinstance(value, Fields):
        return value.records
    if not any(flags) or plain is None:
        return plain
    if forms == NUMBER_OR_NONE:
        return value[1]
    if not forms:
        return [value[0][k] for k in range(len(plain))]
    return [
        tuple(column[k] if flag else v for column, flag, v in zip(value, flags, items, strict=True))
        for k, items in enumerate(plain)
    ]


NUMBER_OR_NONE, RECORDS = -1, -2  # instead of a list's width


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _leaves(v)
    elif value is not None:
        yield value
