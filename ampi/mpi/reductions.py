"""Adjoints of reductions, on flat arrays: who gets what of the result's adjoint.

Every function here is a generator that runs on all ranks of the reverse communicator: it yields lists of MPI requests,
is resumed when they are complete, and returns its result.  Memory is a few times the message on each rank, whatever the
number of ranks.

For a result y = x_0 ∘ x_1 ∘ … with adjoint g, element by element:

- SUM: x̄_r = g.
- PROD: x̄_r = conj(Π_{k≠r} x_k) g, the product made of a prefix and a suffix product: nothing is divided, zeros are
  as good as other values.
- MIN, MAX: the lowest rank that holds the extremum gets g, the others nothing.  (The one-sided derivative that a serial
  program with ``if x[k] < y: y = x[k]`` has.)
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from mpi4py import MPI

Steps = Generator[list[MPI.Request], None, Any]

COLLECTIVE_TAG = 1
"""Tag of messages inside reversed collectives: all ranks of a communicator run these in the same order."""


class Reduction:
    """What the adjoint of a reduction has to know about an MPI operation.

    Attributes
    ----------
    op : MPI.Op
    needs_values : bool
        Whether the adjoint wants the contributions x.
    """

    def __init__(self, op: MPI.Op, share: Callable, partials: Callable | None) -> None:
        self.op = op
        self.share = share  # share(comm, x, g) -> x̄, for a result that is one and the same function of all ranks' x
        self.partials = partials  # partials(prefix, x, g) -> adjoints of prefix and x, for y = prefix ∘ x
        self.needs_values = partials is not None


def known(op: MPI.Op) -> Reduction | None:
    """The rule of an operation, None if it has none."""
    return _REDUCTIONS.get(op.handle)


# -------------------------------------------------------------------------------------- one result of all ranks' x


def _share_sum(comm: MPI.Intracomm, x: Any, g: np.ndarray) -> Steps:
    return g
    yield


def _share_product(comm: MPI.Intracomm, x: np.ndarray, g: np.ndarray) -> Steps:
    others = yield from _prefix(comm, x, MPI.PROD)
    others *= yield from suffix(comm, x, np.multiply, exclusive=True)
    return np.conj(others) * g


def _share_extremum(op: MPI.Op) -> Callable:
    def share(comm: MPI.Intracomm, x: np.ndarray, g: np.ndarray) -> Steps:
        extremum = np.empty_like(x)
        yield [comm.Iallreduce(x, extremum, op)]
        holder = np.where(x == extremum, comm.rank, comm.size).astype(np.intc)
        lowest = np.empty_like(holder)
        yield [comm.Iallreduce(holder, lowest, MPI.MIN)]
        return np.where(lowest == comm.rank, g, g.dtype.type(0))

    return share


# ----------------------------------------------------------------------------------- results that grow with the rank


def unscan(comm: MPI.Intracomm, rule: Reduction, x: np.ndarray | None, y_bar: np.ndarray, exclusive: bool) -> Steps:
    """x̄ for y_r = x_0 ∘ … ∘ x_r, or up to x_{r-1} if exclusive (then ȳ of rank 0 is zero).

    The sum of adjoints goes in a logarithmic number of messages; other operations pass a carry down from rank to rank:
    y_r = y_{r-1} ∘ x_r, so y_{r-1} has an adjoint by way of y_r.
    """
    if rule.partials is None:
        return (yield from suffix(comm, y_bar, np.add, exclusive))
    prefix = yield from _prefix(comm, x, rule.op)
    carry = np.zeros_like(y_bar)
    if comm.rank + 1 < comm.size:
        yield [comm.Irecv(carry, comm.rank + 1, COLLECTIVE_TAG)]
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


# ------------------------------------------------------------------------------------------- prefixes and suffixes


def _prefix(comm: MPI.Intracomm, x: np.ndarray, op: MPI.Op) -> Steps:
    """x_0 ∘ … ∘ x_{r-1}; ones on rank 0."""
    prefix = np.ones_like(x)
    yield [comm.Iexscan(x, prefix, op)]
    if comm.rank == 0:
        prefix[...] = 1
    return prefix


def suffix(comm: MPI.Intracomm, x: np.ndarray, combine: np.ufunc, exclusive: bool) -> Steps:
    """x_r ∘ … ∘ x_{P-1}, or from x_{r+1} if exclusive (the identity of `combine` on the last rank).

    After k rounds a rank has combined the 2^k ranks from its own on (Hillis and Steele, "Data parallel algorithms",
    1986).
    """
    rank, size = comm.rank, comm.size
    total = x.copy()
    came = np.empty_like(total)
    distance = 1
    while distance < size:
        requests = []
        if rank + distance < size:
            requests.append(comm.Irecv(came, rank + distance, COLLECTIVE_TAG))
        if rank - distance >= 0:
            requests.append(comm.Isend(total, rank - distance, COLLECTIVE_TAG))
        yield requests
        if rank + distance < size:
            combine(total, came, out=total)
        distance *= 2
    if not exclusive:
        return total
    came[...] = combine.identity
    requests = []
    if rank + 1 < size:
        requests.append(comm.Irecv(came, rank + 1, COLLECTIVE_TAG))
    if rank > 0:
        requests.append(comm.Isend(total, rank - 1, COLLECTIVE_TAG))
    yield requests
    return came


_REDUCTIONS = {
    rule.op.handle: rule
    for rule in (
        Reduction(MPI.SUM, _share_sum, None),
        Reduction(MPI.PROD, _share_product, _partials_of_product),
        Reduction(MPI.MIN, _share_extremum(MPI.MIN), _partials_of_extremum(np.less)),
        Reduction(MPI.MAX, _share_extremum(MPI.MAX), _partials_of_extremum(np.greater)),
    )
}
