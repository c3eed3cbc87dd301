"""Protocols of the reverse side of a communicator: what waiting asks of it (`log.reverse.Reverse` is one)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Tenant(Protocol):
    """A communicator that has, or had, a channel.

    Attributes
    ----------
    notices : list of tuple
        Notices of ranks that stopped a sweep: the rank, the number of the sweep, and the reason.
    """

    notices: list[tuple[int, int, str]]


class Line(Protocol):
    """A channel: the communicator on which adjoints are sent, and the user's communicators that use it, by identity."""

    comm: Any
    tenants: Mapping[int, Tenant]


class Side(Tenant, Protocol):
    """The reverse side of a communicator.

    Attributes
    ----------
    comm : mpi4py.MPI.Comm
        The communicator that adjoints are sent on.
    identity : int
        The same on all ranks, different for each communicator.
    """

    comm: Any
    identity: int

    @property
    def channel(self) -> Line:
        """The channel of the communicator."""

    @property
    def pending(self) -> bool:
        """True while MPI may not have made the channel."""

    def keep(self) -> None:
        """Never return the channel to MPI: messages that no rank receives may be under way."""

    def in_world(self, partner: int | None = None) -> list[int]:
        """Return the ranks of a partner, or of all ranks (None), in the world."""

    def sweep_with(self, rank: int) -> int:
        """Return the number of the latest sweep that concerns another rank."""
