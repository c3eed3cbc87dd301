"""Accesses of operations that are repeated with the same arrays, described once."""

from __future__ import annotations

from collections.abc import Sequence

from .extents import Extent
from .regions import Region
from .storages import Storage


class Accesses:
    """What an operation accesses; it keeps no array alive.

    Attributes
    ----------
    writes : sequence of Region
        Regions that it overwrites.
    reads : sequence of tuple
        Storages and extents of values that its adjoint needs.
    shadows : sequence of sequences of Region
        Regions whose shadows its adjoint uses, in the containers in which the record has them.
    """

    __slots__ = ("reads", "shadows", "writes")

    def __init__(
        self,
        writes: Sequence[Region],
        reads: Sequence[tuple[Storage, Extent]],
        shadows: Sequence[Sequence[Region]],
    ) -> None:
        self.writes, self.reads, self.shadows = writes, reads, shadows
