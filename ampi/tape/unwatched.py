"""Records made before the first independent of a tape: they carry no derivatives, and sweeps skip them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .records import Watch

if TYPE_CHECKING:
    from .tape import Tape

_LOCAL = (
    "ampi.arrays.",
    "ampi.rules.",
    "ampi.kernel.",
    "ampi.tape.",
    "ampi.mpi.collectives.",
    "ampi.mpi.packing",
    "ampi.mpi.operations",
)
"""Packages whose adjoints compute on this rank alone, and call no function of the program."""


def number_before_independents(tape: Tape) -> int:
    """Return the number of records before the first independent, 0 if it cannot be found now.

    On a tape with messages, these records carry no derivative only if no rank watched anything before (see
    ``ampi.mpi.log.early``).
    """
    records: Any = tape.records
    if not (tape.closed and tape.watches) or tape.tasks is not None or tape.observer is not None:
        return 0
    if not records or isinstance(next(iter(records)).adjoint, Watch):  # a report counts what a sweep reads by index
        return 0
    return next((k for k, record in enumerate(records) if isinstance(record.adjoint, Watch)), 0)


def is_local(adjoint: Any) -> bool:
    """Return whether an adjoint computes on this rank alone, and calls no function of the program."""
    made_by = getattr(adjoint, "function", adjoint)
    module = getattr(made_by, "__module__", None) or type(made_by).__module__
    return adjoint.is_local and module.startswith(_LOCAL)


def number_to_skip(tape: Tape) -> int:
    """Return the number of records that a sweep of a tape without messages skips."""
    count = number_before_independents(tape)
    if all(record.adjoint is None or is_local(record.adjoint) for record in tape.records[:count]):
        return count
    return 0
