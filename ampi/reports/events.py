"""Events of a tracer, stored as flat arrays of numbers: thousands of objects would trigger garbage collections."""

from __future__ import annotations

from array import array

import numpy as np

PRIMAL, RECORDING, SWEEP = range(3)
"""The phases; steps of a time loop that are recorded again in a sweep belong to the sweep."""
COMPUTED, KERNEL, COMMUNICATION, WAITING, COMPILING = range(5)
"""The kinds of events."""
AGREEMENT = 1
"""The site of the ranks' consistency check before a sweep."""
EVENT, STAMP, MEMORY, MESSAGE = 5, 3, 4, 11
"""Number of values per event, stamp, change of memory, and message."""


def rows_of(flat: array[int], columns: int) -> np.ndarray:
    """Return a copy of a flat array as a table with the given number of columns."""
    return np.array(flat, np.int64).reshape(-1, columns)
