"""Plain arrays that the program has declared constant: results of `value` and `constant`."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from ..memory.extents import bounds_of
from ..memory.storages import TrackedArray, plain

_marked: dict[int, weakref.ref] = {}


def constant(buf: Any) -> np.ndarray:
    """Declare that a plain array does not depend on anything that is differentiated.

    While a tape records, sending a plain array of floating-point numbers gives a warning (an error with
    ``AMPI_CHECK=full``), since it carries no derivatives, whatever it was computed from.  This call does not::

        comm.Send(ampi.constant(weights), dest=1)

    Parameters
    ----------
    buf : array_like
        A plain array, of any shape and dtype; the declaration holds for its memory, as long as the array lives.

    Returns
    -------
    numpy.ndarray
        The array itself; of an `ampi.ndarray` a plain copy (`value`).

    Examples
    --------
    >>> weights = ampi.constant(numpy.ones(2))
    >>> with ampi.Tape() as tape:  # no warning that a plain array is sent
    ...     request = ampi.COMM_SELF.Isend(weights, 0)
    ...     ampi.COMM_SELF.Recv(np.zeros(2), 0)
    ...     done = request.Wait()
    """
    if isinstance(buf, TrackedArray):
        return marked(np.array(plain(buf)))
    return marked(buf if isinstance(buf, np.ndarray) else np.asarray(buf))


def marked(array: Any) -> Any:
    """Mark an array as constant, and return it."""
    if isinstance(array, np.ndarray):
        key = id(array)
        _marked[key] = weakref.ref(array, lambda _: _marked.pop(key, None))
    return array


def holds(begin: int, end: int) -> bool:
    """Return whether the bytes between two addresses belong to an array that is marked as constant."""
    arrays = [found for known in tuple(_marked.values()) if (found := known()) is not None]
    return any(low <= begin and end <= high for low, high in map(bounds_of, arrays))


def is_constant(array: Any) -> bool:
    """Return whether an array, or one that it is a view of, is marked as constant."""
    while array is not None and _marked:
        found = _marked.get(id(array))
        if found is not None and found() is array:
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False
