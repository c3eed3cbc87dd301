"""What a tracer keeps: flat tuples of numbers, since objects by the thousand would have Python look for garbage in the
whole program."""

from __future__ import annotations

from array import array

import numpy as np

PRIMAL, RECORDING, SWEEP = range(3)
"""What a moment belongs to; what is recorded anew in a sweep (of a time loop) belongs to the sweep."""
COMPUTED, KERNEL, COMMUNICATION, WAITING = range(4)
"""What an event is."""
AGREEMENT = 1
"""The site of what the ranks do before a sweep."""
EVENT, STAMP, MEMORY, MESSAGE = 5, 3, 4, 11
"""Numbers in each of the flat tuples."""


def rows_of(flat: array[int], columns: int) -> np.ndarray:
    """Flat tuples as an array of so many columns, a copy."""
    return np.array(flat, np.int64).reshape(-1, columns)
