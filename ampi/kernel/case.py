"""For which calls what is known of a kernel holds."""

from __future__ import annotations

from dataclasses import dataclass

from numba import types


@dataclass(frozen=True)
class Case:
    """For which calls a contract holds.

    Attributes
    ----------
    types : tuple of numba types
        One for each parameter.
    active : frozenset of int
        The leaves that carry derivatives.
    same : tuple of (int, int)
        Array leaves that are one and the same memory (later, first).
    separate : bool
        Whether no others overlap.
    threaded : bool
        Whether the adjoint of a parallel kernel runs on threads.
    after : bool
        Whether the adjoint may read arrays as they were after the call.
    single : frozenset of (int, int)
        Axes (leaf, axis) that have size one and stretch.
    plain : bool
        Whether the adjoint is told which shadows are new and hold anything, and may leave anything in those of arrays
        that are passive before the call.
    """

    types: tuple[types.Type, ...]
    active: frozenset[int]
    same: tuple[tuple[int, int], ...] = ()
    separate: bool = True
    threaded: bool = True
    after: bool = False
    single: frozenset[tuple[int, int]] = frozenset()
    plain: bool = False
