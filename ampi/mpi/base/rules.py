"""The table of MPI operations: what each of mpi4py's methods does with memory, and how it is differentiated.

Reports, guards and tests of operations use `TABLE`, which has one entry for each method.  Blocking, nonblocking and
persistent forms name the same adjoint.  The coverage report is made from this table, gaps included.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Treatment(enum.Enum):
    """What happens to derivatives that reach an operation."""

    DIFFERENTIATED = "differentiated"
    PASSES = "passes through"  # moves nothing that could carry a derivative
    ERROR = "error"  # moves data, has no rule yet: an error on active buffers, otherwise plain mpi4py


class Operation(NamedTuple):
    """One method of an mpi4py class.

    Attributes
    ----------
    owner, name : str
        mpi4py's class and method.
    treatment : Treatment
    reads, writes : tuple of str
        Names of the buffer arguments (mpi4py's) whose memory is read and written.  An argument in both is read first.
    adjoint : str
        The reverse operation, as in the documentation's table.
    objects : bool
        A lowercase method: the arguments are Python objects, not buffers.
    """

    owner: str
    name: str
    treatment: Treatment
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    adjoint: str = ""
    objects: bool = False


TABLE: dict[str, Operation] = {}
"""Operations by ``"Class.method"``, the class being the one where mpi4py defines the method."""


def enter(*operations: Operation) -> None:
    """Add operations to the table."""
    for operation in operations:
        TABLE[f"{operation.owner}.{operation.name}"] = operation


_SENT = "Recv t from the destination; x̄ += t"
_RECEIVED = "Send x̄ to the matched source; x̄ = 0"
_EXCHANGED = "the same with source and destination exchanged; x̄ = 0 where it was received"

for _mode in ("", "s", "b", "r"):
    for _name in (f"{_mode}send".capitalize(), f"I{_mode}send", f"{_mode}send_init".capitalize()):
        enter(Operation("Comm", _name, Treatment.DIFFERENTIATED, reads=("buf",), adjoint=_SENT))
for _owner, _name in (
    *(("Comm", "Recv"), ("Comm", "Irecv"), ("Comm", "Recv_init")),
    *(("Message", "Recv"), ("Message", "Irecv")),
):
    enter(Operation(_owner, _name, Treatment.DIFFERENTIATED, writes=("buf",), adjoint=_RECEIVED))
for _name in ("Sendrecv", "Isendrecv"):
    enter(Operation("Comm", _name, Treatment.DIFFERENTIATED, ("sendbuf",), ("recvbuf",), _EXCHANGED))
    enter(Operation("Comm", f"{_name}_replace", Treatment.DIFFERENTIATED, ("buf",), ("buf",), _EXCHANGED))
