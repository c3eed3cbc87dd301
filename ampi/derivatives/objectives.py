"""Objectives: which of the values that ranks return are differentiated, and with what weights."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from mpi4py import MPI

from ..base.pools import runs_alone
from ..base.program_lines import warning_level
from ..errors import ActivityError, ActivityWarning, AmpiError, CommunicationError, TapeError
from ..memory.storages import plain

OBJECTIVES = ("sum", "replicated", "root")


def require_objective(objective: str) -> None:
    """Raise an error if there is no such objective."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {', '.join(map(repr, OBJECTIVES))}, not {objective!r}")


def weight_of(tape: Any, y: Any, objective: str, comm: Any) -> float | None:
    """Return this rank's weight in the objective; None if its output has no part in it. The following sweep checks
    whether a sum counts one value several times.

    Raises
    ------
    AmpiError
        There is no such objective; ranks that wait for this one's sweep are informed.
    """
    tape.returned = tape.replicated = None
    try:
        seed = _seed_of(y, objective, comm)
    except Exception as error:
        tape.refuse(error)
        raise
    if seed is not None and objective == "sum" and comm.Get_size() > 1 and tape.is_active(y):
        tape.returned = float(plain(y).reshape(()))
    return seed


def _seed_of(y: Any, objective: str, comm: Any) -> float | None:
    rank = comm.Get_rank()
    if objective == "replicated":
        _check_replicated(y, comm)
        return 1.0 if rank == 0 else 0.0
    if y is None and comm.Get_size() > 1 and objective == "sum":
        return None
    if objective == "root" and rank:
        return None
    _check_scalar(y)
    return 1.0


def _check_scalar(y: Any) -> None:
    if isinstance(y, np.ndarray) and y.size == 1 and y.dtype.kind == "f":
        return
    if isinstance(y, (float, np.floating)):
        raise ActivityError(
            f"the function returned a plain {type(y).__name__}, which carries no derivative; compute it with "
            "ampi.numpy and return the 0-d array as it is (on a rank that has no part in the objective: None)"
        )
    shape = f" of shape {y.shape} and dtype {y.dtype}" if isinstance(y, np.ndarray) else ""
    raise TapeError(f"the function must return one real number to have a gradient, not a {type(y).__name__}{shape}")


def ranks_of(comm: Any) -> Any:
    """Return the communicator of the ranks that call together: the given one, or by default that of all ranks."""
    if comm is not None:
        return comm
    return MPI.COMM_SELF if runs_alone() else MPI.COMM_WORLD


def _check_replicated(y: Any, comm: Any) -> None:
    """Raise on every rank if the values differ by more than rounding, or if a rank has no value."""
    problem: Exception | None = None
    try:
        _check_scalar(y)
    except AmpiError as error:
        problem = error
    given = comm.allgather(str(problem) if problem else float(plain(y).reshape(())))
    if problem:
        raise problem
    for rank, found in enumerate(given):
        if isinstance(found, str):
            raise CommunicationError(f'objective="replicated": rank {rank} has no value: {found}')
    values: list[float] = given
    low, high = min(values), max(values)
    tolerance = 16 * float(np.finfo(y.dtype).eps) * max(abs(low), abs(high))
    if all(v != v for v in values) or high - low <= tolerance:
        return
    shown = ", ".join(f"rank {rank}: {v!r}" for rank, v in enumerate(values[:8]))
    raise CommunicationError(
        f'objective="replicated": the ranks returned different values ({shown}{", …" if len(values) > 8 else ""}); '
        'reduce them to one value (Allreduce) or use objective="sum"'
    )


def warn_of_replicated(call: Any) -> None:
    """Warn on the first rank, after a sweep that noted this call, that one value was counted on each rank."""
    if call is None or call.reverse.rank:
        return
    size = call.reverse.comm.Get_size()
    warnings.warn(
        f"all {size} ranks returned the same value, which they have from {call.describe()}: their sum, which "
        f'objective="sum" differentiates, counts it {size} times, and so does the gradient. If it is one value, '
        'objective="replicated" counts it once.',
        ActivityWarning,
        stacklevel=warning_level(),
    )
