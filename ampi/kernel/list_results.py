"""Results that are something else while they are recorded.

Lists are arrays, and lists again for the program; a number or None is a pair: whether there is a number, and which.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ampi.kernel import arguments


def as_arrays(value: Any, lists: Any, dtypes: Iterator[str]) -> Any:
    """A result with a tuple of arrays, its columns, in the place of each list, and a pair in that of a number or None;
    ``lists`` is as in `Contract`."""
    if isinstance(lists, tuple):
        return arguments.rebuilt(value, [as_arrays(v, inner, dtypes) for v, inner in zip(value, lists, strict=True)])
    if lists is None:
        for _ in _leaves(value):
            next(dtypes)
        return value
    if lists < 0:
        next(dtypes)
        return (value is not None, np.dtype(next(dtypes)).type(value or 0))
    columns = zip(*value) if lists and value else [value] * max(lists, 1)
    return tuple(np.array(column, next(dtypes)) for column in columns)


def as_lists(value: Any, lists: Any, plain: Any, active: Iterator[bool]) -> Any:
    """The result with lists and None again: of elements of the columns, or what Numba gave where these have no
    derivatives."""
    if isinstance(lists, tuple):
        parts = [as_lists(*both, active) for both in zip(value, lists, plain, strict=True)]
        return arguments.rebuilt(plain, parts)
    if lists is None:
        for _ in _leaves(plain):
            next(active)
        return value
    flags = [next(active) for _ in value]
    if not any(flags) or plain is None:
        return plain
    if lists < 0:
        return value[1]
    if not lists:
        return [value[0][k] for k in range(len(plain))]
    return [
        tuple(column[k] if flag else v for column, flag, v in zip(value, flags, items, strict=True))
        for k, items in enumerate(plain)
    ]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _leaves(v)
    elif value is not None:
        yield value
