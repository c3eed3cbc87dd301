"""Adjoints of reductions, on flat arrays: the share of each contribution in the adjoint of the result.

Every function here is a generator that runs on all ranks of the reverse communicator: it yields lists of MPI requests,
is resumed when they are complete, and returns its result.  Each rank needs a few times the memory of the message,
whatever the number of ranks.

For a result y = x_0 ∘ x_1 ∘ … with adjoint g, element by element:

- SUM: x̄_r = g.
- PROD: x̄_r = conj(Π_{k≠r} x_k) g, the product computed from a prefix and a suffix product: without a division,
  zeros need no special case.
- MIN, MAX: the lowest rank that holds the extremum gets g, the others nothing.  (The one-sided derivative that a serial
  program with ``if x[k] < y: y = x[k]`` has.)
- MINLOC, MAXLOC: the lowest rank that holds both the extremum and its location gets g.
- A user's operation, whose combine function is a kernel: with the prefix p and the suffix s of the other ranks,
  y = (p ∘ x_r) ∘ s is differentiated by the kernel's own adjoint; ∘ has to be associative only.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from mpi4py import MPI

from ..log.reverse import COLLECTIVE_TAG

Steps = Generator[list[MPI.Request], None, Any]


class Reduction:
    """The rule of an MPI operation for adjoints of reductions.

    Attributes
    ----------
    share : callable
        ``share(comm, x, g)`` -> x̄, a generator, for a result that is a single function of all ranks' x.
    prefix : callable or None
        ``prefix(comm, x)`` -> x_0 ∘ … ∘ x_{r-1}, a generator; arbitrary on rank 0.
    partials : callable or None
        ``partials(prefix, x, g)`` -> adjoints of prefix and x, for y = prefix ∘ x.
    needs_values : bool
        True if the adjoint needs the contributions x.
    located : bool
        True if x and prefix are arrays of pairs ``(value, location)``; adjoints are those of the values.
    further : tuple of (str, int or None)
        The collectives that `share` calls, with the bytes of each element (None: those of x).
    """

    __slots__ = ("further", "located", "needs_values", "partials", "prefix", "share")

    def __init__(
        self,
        share: Callable,
        prefix: Callable | None = None,
        partials: Callable | None = None,
        located: bool = False,
        further: tuple[tuple[str, int | None], ...] = (),
    ) -> None:
        self.further = further
        self.share = share
        self.prefix = prefix
        self.partials = partials
        self.needs_values = partials is not None
        self.located = located


def known(op: MPI.Op) -> Reduction | None:
    """Return the rule of an operation; None if it has none."""
    return _REDUCTIONS.get(op.handle)


def learn(op: MPI.Op, kernel: Any) -> None:
    """Enter the combine function of a new operation: a kernel, or None for one that has no derivative."""
    _REDUCTIONS.pop(op.handle, None)  # the handle may have belonged to another operation
    if kernel is not None:
        combine = Combination(kernel)
        _REDUCTIONS[op.handle] = Reduction(_share_combination(combine), combine.prefix, combine.partials)


def forget(handle: int) -> None:
    """Forget an operation that the user has freed."""
    _REDUCTIONS.pop(handle, None)


# -------------------------------------------------------------------------------------- one result of all ranks' x


def _share_sum(comm: MPI.Intracomm, x: Any, g: np.ndarray) -> Steps:
    return g
    yield


def _share_product(comm: MPI.Intracomm, x: np.ndarray, g: np.ndarray) -> Steps:
    others = yield from _prefix(MPI.PROD)(comm, x)
    others *= yield from suffix(comm, x, np.multiply, exclusive=True)
    return np.conj(others) * g


def _share_extremum(op: MPI.Op) -> Callable:
    def share(comm: MPI.Intracomm, x: np.ndarray, g: np.ndarray) -> Steps:
        extremum = np.empty_like(x)
        yield [comm.Iallreduce(_message(x), _message(extremum), op)]
        holder = np.where(x == extremum, comm.rank, comm.size).astype(np.intc)
        lowest = np.empty_like(holder)
        yield [comm.Iallreduce(holder, lowest, MPI.MIN)]
        return np.where(lowest == comm.rank, g, g.dtype.type(0))

    return share


def _share_combination(combine: Combination) -> Callable:
    def share(comm: MPI.Intracomm, x: np.ndarray, g: np.ndarray) -> Steps:
        before = yield from combine.prefix(comm, x)
        after = yield from shifted(comm, (yield from accumulated(comm, x, combine, 1)), 1)
        if after is not None:
            up_to_here = x if before is None else combine(before, x)
            g = combine.partials(up_to_here, after, g)[0]
        return g if before is None else combine.partials(before, x, g)[1]

    return share


# ----------------------------------------------------------------------------------- results that grow with the rank


def unscan(comm: MPI.Intracomm, rule: Reduction, x: np.ndarray | None, y_bar: np.ndarray, exclusive: bool) -> Steps:
    """Compute x̄ for y_r = x_0 ∘ … ∘ x_r, or up to x_{r-1} if exclusive (then ȳ of rank 0 is zero).

    Sums of adjoints take a logarithmic number of messages.  Other operations pass a carry down from rank to rank: since
    y_r = y_{r-1} ∘ x_r, the adjoint of y_r contributes to that of y_{r-1}.
    """
    if rule.partials is None:
        return (yield from suffix(comm, y_bar, np.add, exclusive))
    prefix = yield from rule.prefix(comm, x)  # type: ignore[misc]
    carry = np.zeros_like(y_bar)
    yield [comm.Irecv(carry, comm.rank + 1, COLLECTIVE_TAG)] if comm.rank + 1 < comm.size else []
    if not exclusive:
        carry += y_bar
    if comm.rank == 0:
        return carry
    prefix_bar, x_bar = rule.partials(prefix, x, carry)
    if exclusive:
        prefix_bar = prefix_bar + y_bar
    yield [comm.Isend(prefix_bar, comm.rank - 1, COLLECTIVE_TAG)]
    return x_bar


def _partials_of_product(prefix: np.ndarray, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.conj(x) * g, np.conj(prefix) * g


def _partials_of_extremum(beats: Callable) -> Callable:
    def partials(prefix: np.ndarray, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        won = beats(x, prefix)
        zero = g.dtype.type(0)
        return np.where(won, zero, g), np.where(won, g, zero)

    return partials


def before(values: np.ndarray, others: np.ndarray, beats: Callable) -> np.ndarray:
    """Return a mask of the pairs that win against others: by value, or by the lower location if values are equal."""
    a, b = values["value"], others["value"]
    return beats(a, b) | ((a == b) & (values["location"] < others["location"]))


def _smaller(x: np.ndarray, prefix: np.ndarray) -> np.ndarray:
    return before(x, prefix, np.less)


def _greater(x: np.ndarray, prefix: np.ndarray) -> np.ndarray:
    return before(x, prefix, np.greater)


# ------------------------------------------------------------------------------------------------ pairs and messages


def pair_of(dtype: np.dtype) -> np.dtype:
    """Return the dtype of the pairs of MINLOC and MAXLOC with values of a dtype."""
    return np.dtype([("value", dtype), ("location", np.intc)], align=True)


PAIR_TYPES = {"f": MPI.FLOAT_INT, "d": MPI.DOUBLE_INT, "g": MPI.LONG_DOUBLE_INT}


def _message(x: np.ndarray) -> Any:
    return x if x.dtype.names is None else [x, x.size, PAIR_TYPES[x.dtype["value"].char]]


class Combination:
    """A custom combine function: ``kernel(a, b)`` puts a ∘ b into b, both flat arrays of the message's dtype."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.contracts: dict[np.dtype, Any] = {}
        self.pairs: Any = None  # of second order: `reductions_second`

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return a ∘ b."""
        result = b.copy()
        self.kernel.dispatcher(a, result)
        return result

    def prefix(self, comm: MPI.Intracomm, x: np.ndarray) -> Steps:
        """Compute x_0 ∘ … ∘ x_{r-1}; None on rank 0."""
        total = yield from accumulated(comm, x, lambda total, incoming: self(incoming, total), -1)
        return (yield from shifted(comm, total, -1))

    def partials(self, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the adjoints of a and b for that of a ∘ b."""
        contract = self.contract(a, b)
        shadows = np.zeros_like(a), np.array(g, b.dtype)
        if contract.adjoint is not None:
            contract.adjoint(a.copy(), b.copy(), *(shadows[k] for k in contract.shadows))
        return shadows

    def contract(self, a: np.ndarray, b: np.ndarray) -> Any:
        """Return the kernel's contract for arrays like these."""
        contract = self.contracts.get(b.dtype)
        if contract is None:
            from ...kernel.case import Case
            from ...kernel.contract import make_contract

            case = Case(self.kernel.types_of((a.copy(), b)), frozenset({0, 1}))
            contract = self.contracts[b.dtype] = make_contract(self.kernel, case)
        return contract


# ------------------------------------------------------------------------------------------- prefixes and suffixes


def _prefix(op: MPI.Op) -> Callable:
    """Make the generator of x_0 ∘ … ∘ x_{r-1}, which is one on rank 0."""

    def prefix(comm: MPI.Intracomm, x: np.ndarray) -> Steps:
        before = np.ones_like(x)
        yield [comm.Iexscan(_message(x), _message(before), op)]
        if comm.rank == 0:
            before[...] = 1
        return before

    return prefix


def suffix(comm: MPI.Intracomm, x: np.ndarray, combine: np.ufunc, exclusive: bool) -> Steps:
    """Compute x_r ∘ … ∘ x_{P-1}, or from x_{r+1} if exclusive (the identity of `combine` on the last rank)."""
    total = yield from accumulated(comm, x, combine, 1)
    if not exclusive:
        return total
    incoming = yield from shifted(comm, total, 1)
    return np.full_like(x, combine.identity) if incoming is None else incoming


def accumulated(comm: MPI.Intracomm, x: np.ndarray, combine: Callable, direction: int) -> Steps:
    """Combine this rank's x and those of all ranks above (direction 1) or below (-1) by ``combine(total, incoming)``.

    After k rounds a rank has combined the 2^k ranks from its own on (Hillis and Steele, "Data parallel algorithms",
    1986).
    """
    total = x
    distance = 1
    while distance < comm.size:
        incoming = yield from shifted(comm, total, direction * distance)
        if incoming is not None:
            total = combine(total, incoming)
        distance *= 2
    return total


def shifted(comm: MPI.Intracomm, x: np.ndarray, distance: int) -> Steps:
    """Receive the x of the rank at this distance; None where there is no such rank."""
    source, dest = comm.rank + distance, comm.rank - distance
    incoming = None
    requests = []
    if 0 <= source < comm.size:
        incoming = np.empty_like(x)
        requests.append(comm.Irecv(incoming, source, COLLECTIVE_TAG))
    if 0 <= dest < comm.size:
        requests.append(comm.Isend(x, dest, COLLECTIVE_TAG))
    yield requests
    return incoming


SUFFIX = "suffix sums"
"""The name, in reports, of suffix sums by a logarithmic number of messages."""
_OTHERS = (("Exscan", None), (SUFFIX, None))
_HOLDER = (("Allreduce", None), ("Allreduce", np.dtype(np.intc).itemsize))  # the extremum, and which rank holds it


def _extremum(op: MPI.Op, beats: Callable, located: bool = False) -> Reduction:
    return Reduction(_share_extremum(op), _prefix(op), _partials_of_extremum(beats), located, _HOLDER)


_REDUCTIONS = {
    op.handle: rule
    for op, rule in (
        (MPI.SUM, Reduction(_share_sum)),
        (MPI.PROD, Reduction(_share_product, _prefix(MPI.PROD), _partials_of_product, False, _OTHERS)),
        (MPI.MIN, _extremum(MPI.MIN, np.less)),
        (MPI.MAX, _extremum(MPI.MAX, np.greater)),
        (MPI.MINLOC, _extremum(MPI.MINLOC, _smaller, located=True)),
        (MPI.MAXLOC, _extremum(MPI.MAXLOC, _greater, located=True)),
    )
}

PREDEFINED = frozenset(_REDUCTIONS)
"""Handles of MPI's own operations with a rule, which are never freed."""
