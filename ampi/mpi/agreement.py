"""What the ranks agree on at the beginning of a sweep: which messages and collectives carry an adjoint back.

While a tape records, every message and every collective on an ampi communicator is logged on the tape, active or not.  A
receiver cannot know whether what it received was active, nor a sender whether it arrived in tracked memory.  At the beginning of a sweep
each pair of ranks therefore exchanges the list of its messages, and each communicator the list of its collectives; both sides then know for
each whether an adjoint travels back, how long it is, and under which tag.

All waiting in a sweep goes through `wait`: it never hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tape import Sweep, Tape


class Collective:
    """A collective call in a tape's log (the token that `log_collective` returns)."""

    __slots__ = ("name", "reads_active", "reverse", "where", "writes_tracked")

    def happens(self, sweep: Sweep) -> bool:
        """Whether the reversed collective takes place: some rank's read part is active and some rank's written part tracked.

        The same on all ranks of the communicator.  Known from the beginning of the sweep.
        """
        raise NotImplementedError


def log_collective(tape: Tape, comm: Any, name: str, reads_active: bool, writes_tracked: bool) -> Collective:
    """Log a collective call of this rank on a communicator of ours; every rank calls it, in the order of its calls.

    Parameters
    ----------
    comm : ampi.mpi.comm.Comm
    name : str
        mpi4py's name of the operation (the blocking form's for all forms); the ranks must agree on it.
    reads_active : bool
        This rank contributes active values.
    writes_tracked : bool
        This rank receives into tracked floating-point memory.

    Returns
    -------
    Collective
        ``token.reverse`` is the communicator for the reverse traffic, ``token.happens(sweep)`` the agreement.
    """
    raise NotImplementedError


def wait(request: Any, describe: Callable[[], str]) -> None:
    """Wait for a request (plain mpi4py) in a sweep.

    Parameters
    ----------
    request : mpi4py.MPI.Request
    describe : callable
        Gives the text for the error message: the operation, its partner, tag and source line.

    Raises
    ------
    CommunicationError
        Nothing came for AMPI_TIMEOUT seconds (60 by default), or a partner stopped its sweep with an error.
    """
    raise NotImplementedError


def call_site() -> tuple[Any, int]:
    """Code object and instruction of the innermost caller outside ampi; `line_of` makes text of it."""
    raise NotImplementedError


def line_of(where: tuple[Any, int]) -> str:
    """``file:line`` of a call site."""
    raise NotImplementedError
