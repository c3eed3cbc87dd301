"""Tools for tests of derivatives: random directions, and numbers summed over all ranks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..base.pools import runs_alone
from ..base.structures import leaves, mapped
from ..memory.storages import TrackedArray, carries_derivatives, is_scalar, plain, tracked_copy

_RATIO = 2.0


def checked(result: Any, check: bool) -> Any:
    """Return the outcome of a test; raise an AssertionError if it has not passed and ``check`` is true."""
    if check and not result.passed:
        raise AssertionError(str(result))
    return result


@contextlib.contextmanager
def ranks(comm: Any) -> Iterator[Any]:
    """The communicator of the participating ranks; for an intercommunicator, one of both groups."""
    from mpi4py import MPI

    if comm is None:
        comm = MPI.COMM_SELF if runs_alone() else MPI.COMM_WORLD
    if not comm.Is_inter():
        yield comm
        return
    both = comm.Merge()
    try:
        yield both
    finally:
        both.Free()


def maximum() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def numbers(x: Any) -> np.ndarray:
    return plain(np.asarray(x))


def varying(f: Callable, x: tuple, x_dot: Any) -> tuple[Callable, tuple, tuple]:
    """A function of the floating-point arguments alone, these arguments, and their directions.

    The other arguments are fixed.
    """
    moving = [varies(leaf) for leaf in leaves(x)]

    def function(*values: Any) -> Any:
        given, moves = iter(values), iter(moving)
        return f(*mapped(lambda leaf: next(given) if next(moves) else leaf, x))

    chosen = [[leaf for leaf, moves in zip(leaves(part), moving) if moves] for part in (x, x_dot)]
    return function, tuple(chosen[0]), tuple(chosen[1])


def varies(x: Any) -> bool:
    return x is not None and carries_derivatives(numbers(x).dtype)


def pairs(a: Any, b: Any) -> list:
    return [(p, q) for p, q in zip(leaves(a), leaves(b)) if varies(p) and varies(q)]


def pairing(a: Any, b: Any) -> float:
    """Real inner product of two structures of arrays."""
    return sum(float(np.real(np.vdot(numbers(p), numbers(q)))) for p, q in pairs(a, b))


def random_like(x: Any, generator: np.random.Generator) -> Any:
    x = numbers(x)
    if not carries_derivatives(x.dtype):
        return np.zeros(x.shape)
    draw = generator.standard_normal(x.shape)
    if x.dtype.kind == "c":
        draw = draw + 1j * generator.standard_normal(x.shape)
    return np.asarray(draw, x.dtype)


def directions(x: tuple, direction: tuple | None, generator: np.random.Generator) -> Any:
    if direction is None:
        return mapped(lambda leaf: None if leaf is None else random_like(leaf, generator), x)
    given, wanted = list(leaves(direction)), list(leaves(x))
    if [np.shape(leaf) for leaf in given] != [np.shape(leaf) for leaf in wanted]:
        raise ValueError("direction must be a tuple with the structure and the shapes of the arguments")
    return direction


def displaced(x: tuple, x_dot: Any, h: float) -> tuple:
    """New arrays with x + h ẋ."""
    ahead = iter(list(leaves(x_dot)))

    def move(leaf: Any) -> Any:
        d = next(ahead)
        if not varies(leaf):
            return leaf
        here = numbers(leaf)
        displaced = np.asarray(here + h * numbers(d), here.dtype)
        if is_scalar(leaf) or not isinstance(leaf, np.ndarray):
            return tracked_copy(displaced[()])
        new = tracked_copy(here if isinstance(leaf, TrackedArray) else leaf)
        plain(new)[...] = displaced
        return new

    return mapped(move, x)


def epsilon(x: Any) -> float:
    found = [np.finfo(numbers(leaf).dtype).eps for leaf in leaves(x) if varies(leaf)]
    return float(max(found, default=np.finfo(float).eps))


def relative_size(comm: Any, x: tuple, x_dot: Any) -> float:
    """|x| / |ẋ| over all ranks; 1 / |ẋ| where x is zero."""
    size, speed = comm.allreduce(pairing(x, x)), comm.allreduce(pairing(x_dot, x_dot))
    return math.sqrt((size or 1.0) / (speed or 1.0))


def objective_of(comm: Any, y: Any, objective: str) -> float:
    mine = 0.0 if y is None else float(numbers(y).reshape(()))
    if objective == "sum":
        return comm.allreduce(mine)
    return comm.bcast(mine, root=0)


def ridders(difference: Callable[[float], float], h: float, rows: int = 8) -> tuple[float, float]:
    """Derivative by central differences extrapolated to step zero, and its uncertainty."""
    previous = [difference(h)]
    best, uncertainty = previous[0], math.inf
    for k in range(1, rows):
        row = [difference(h / _RATIO**k)]
        for m in range(1, k + 1):
            factor = _RATIO ** (2 * m)
            row.append((factor * row[m - 1] - previous[m - 1]) / (factor - 1))
            error = max(abs(row[m] - row[m - 1]), abs(row[m] - previous[m - 1]))
            if error <= uncertainty:
                best, uncertainty = row[m], error
        previous = row
    return best, uncertainty
