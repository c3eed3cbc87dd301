"""The Taylor test: remainders of a program's first-order expansion for decreasing steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..derivatives.first_order import grad, value_and_grad
from ..derivatives.second_order import hvp
from .numbers import (
    checked,
    directions,
    displaced,
    epsilon,
    maximum,
    numbers,
    objective_of,
    pairing,
    ranks,
    relative_size,
    varying,
)

_RATIO = 2.0


@dataclasses.dataclass(frozen=True)
class TaylorTest:
    """Outcome of `taylor_test`.

    Attributes
    ----------
    steps : list of float
        h, each half of the one before.
    zeroth : list of float
        ``|J(x + h v) − J(x)|``, which scales like h; with ``order=2`` ``|g(x + h v) − g(x)|``. Over all ranks.
    first : list of float
        ``|J(x + h v) − J(x) − h ⟨g, v⟩|``, which must scale like h²; with ``order=2``
        ``|g(x + h v) − g(x) − h H v|``. Over all ranks.
    floor : float
        Remainders below this are rounding errors.
    order : {1, 2}
        The order of the tested derivative.

    Examples
    --------
    >>> found = ampi.testing.taylor_test(lambda x: np.sum(x**3), numpy.array([1.0, 2.0]), verbose=False)
    >>> round(found.orders[0])
    2
    """

    steps: list[float]
    zeroth: list[float]
    first: list[float]
    floor: float
    order: int = 1

    @property
    def orders(self) -> list[float]:
        """Observed orders of the first remainder from each step to the next; nan where it is a rounding error."""
        return [_order(a, b) if b > self.floor else math.nan for a, b in zip(self.first, self.first[1:])]

    @property
    def curve(self) -> list[tuple[float, float]]:
        """The first remainder at each step, for a plot."""
        return list(zip(self.steps, self.first))

    @property
    def passed(self) -> bool:
        """True if the remainder is of second order down to rounding."""
        if not all(map(math.isfinite, self.first)):
            return False
        seen = [order for order in self.orders if not math.isnan(order)]
        if not seen:
            return True
        # If rounding is reached before three orders have been observed, the remainder is as small as can be measured.
        return min(seen[-3:]) >= 1.9

    def __str__(self) -> str:
        what, before, after = "", "|J(x+hv)-J(x)|", "|... - h<g,v>|"
        if self.order == 2:
            what, before, after = " of second order", "|g(x+hv)-g(x)|", "|... - h H v|"
        rows = [("h", before, "order", after, "order")]
        for k, h in enumerate(self.steps):
            orders = ("", "")
            if k:
                first = self.orders[k - 1]
                orders = (
                    f"{_order(self.zeroth[k - 1], self.zeroth[k]):.2f}",
                    "rounding" if math.isnan(first) else f"{first:.2f}",
                )
            rows.append((f"{h:.3e}", f"{self.zeroth[k]:.6e}", orders[0], f"{self.first[k]:.6e}", orders[1]))
        lines = [f"Taylor test{what}: {'passed' if self.passed else 'FAILED'}"]
        lines += ["".join(f"{text:>{width}}" for text, width in zip(row, (11, 16, 7, 15, 10))).rstrip() for row in rows]
        return "\n".join(lines)


def _order(a: float, b: float) -> float:
    return math.log(a / b) / math.log(_RATIO) if a > 0 and b > 0 else math.nan


def taylor_test(
    f: Callable,
    *x: Any,
    direction: tuple | None = None,
    objective: str = "sum",
    seed: int = 0,
    step: float | None = None,
    steps: int = 12,
    comm: Any = None,
    check: bool = True,
    verbose: bool = True,
    order: int = 1,
) -> TaylorTest:
    """Check that J(x + h v) − J(x) − h ⟨g, v⟩, or g(x + h v) − g(x) − h H v, scales like h², with g from `ampi.grad`.

    Collective over ``comm``.

    Parameters
    ----------
    f : callable
        ``f(*x)`` on every rank; returns a real scalar, as for `ampi.grad`.
    *x
        This rank's arguments.
    direction : tuple, optional
        v, of the structure of ``x``; random by default.
    objective : {"sum", "replicated", "root"}
        The objective J, as for `ampi.grad`.
    seed : int
        Seed of the random numbers, which differ from rank to rank.
    step : float, optional
        Largest h, relative to the size of ``x``; by default 1e-2 in double precision, 0.2 in single.
    steps : int
        Number of halvings of h.
    comm : mpi4py.MPI.Comm, optional
        The ranks that take part; by default all.  For an intercommunicator, both groups.
    check : bool
        Raise AssertionError if the test does not pass.
    verbose : bool
        Print the table on rank 0.
    order : {1, 2}
        1: the gradient is compared with differences of ``f``; 2: H v from `ampi.hvp` is compared with differences of
        gradients, in the norm over all ranks' arguments.

    Raises
    ------
    ActivityError
        With ``order=2``: an operation of ``f`` has no second derivative yet.

    Examples
    --------
    >>> ampi.testing.taylor_test(lambda x: (x**3).sum(), numpy.array([1.0, 2.0]), verbose=False).passed
    True
    >>> ampi.testing.taylor_test(lambda x: (x**3).sum(), numpy.array([1.0, 2.0]), verbose=False, order=2).passed
    True
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, not {order!r}")
    with ranks(comm) as comm:
        generator = np.random.default_rng((seed, comm.Get_rank()))
        f, x, v = varying(f, x, directions(x, direction, generator))
        eps = comm.allreduce(epsilon(x), op=maximum())
        largest = (1e-2 if eps < 1e-10 else 0.2) if step is None else step
        hs = [largest * relative_size(comm, x, v) / _RATIO**k for k in range(steps + 1)]
        test = _taylor_test if order == 1 else _taylor_test_of_gradients
        result = test(f, x, v, objective, hs, eps, comm)
        if verbose and comm.Get_rank() == 0:
            print(result, flush=True)
    return checked(result, check)


def _taylor_test(f: Callable, x: tuple, v: tuple, objective: str, hs: list[float], eps: float, comm: Any) -> TaylorTest:
    mine, gradient = value_and_grad(f, tuple(range(len(x))), objective, comm)(*x)
    slope = comm.allreduce(pairing(gradient, v))
    start = objective_of(comm, mine, objective)
    values = [objective_of(comm, f(*displaced(x, v, h)), objective) for h in hs]
    zeroth = [abs(value - start) for value in values]
    first = [abs(value - start - h * slope) for value, h in zip(values, hs)]
    return TaylorTest(hs, zeroth, first, 200 * eps * max(abs(start), *map(abs, values)))


def _taylor_test_of_gradients(
    f: Callable, x: tuple, v: tuple, objective: str, hs: list[float], eps: float, comm: Any
) -> TaylorTest:
    gradient = grad(f, tuple(range(len(x))), objective, comm)
    norm = lambda parts: math.sqrt(comm.allreduce(sum(pairing(part, part) for part in parts)))
    start, product = gradient(*x), hvp(f, x, v, objective, comm)
    zeroth, first, sizes = [], [], [norm(start)]
    for h in hs:
        there = gradient(*displaced(x, v, h))
        zeroth.append(norm([numbers(a) - numbers(b) for a, b in zip(there, start)]))
        first.append(norm([numbers(a) - numbers(b) - h * numbers(c) for a, b, c in zip(there, start, product)]))
        sizes.append(norm(there))
    return TaylorTest(hs, zeroth, first, 200 * eps * max(sizes), 2)
