"""The case of a kernel's call: the types, activity and aliases of arguments for which a derivative is made."""

from __future__ import annotations

from dataclasses import dataclass

from numba import types


@dataclass(frozen=True)
class Case:
    """The kind of calls for which a contract holds.

    Attributes
    ----------
    types : tuple of numba types
        One for each parameter.
    active : frozenset of int
        The leaves that carry derivatives.
    same : tuple of (int, int)
        Array leaves that are the same memory (later, first).
    separate : bool
        Whether no others overlap.
    threaded : bool
        Whether the adjoint of a parallel kernel runs on threads.
    after : bool
        Whether the adjoint may read the values of arrays after the call.
    single : frozenset of (int, int)
        Axes (leaf, axis) of size one that are broadcast.
    plain : bool
        Whether the caller flags the shadows that are new (with undefined elements), and ignores the final values of the
        shadows of arrays that are passive before the call.
    """

    types: tuple[types.Type, ...]
    active: frozenset[int]
    same: tuple[tuple[int, int], ...] = ()
    separate: bool = True
    threaded: bool = True
    after: bool = False
    single: frozenset[tuple[int, int]] = frozenset()
    plain: bool = False
