"""Plans of reductions: Reduce, Allreduce, Reduce_scatter, Scan and Exscan; `reductions` has the mathematics."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...memory.storages import Storage
from ...tape import Sweep, Tape
from ..log.sizes import Sizes
from ..memory.argument_forms import is_in_place
from ..memory.arguments import parse
from ..memory.buffers import NOTHING, Buffer
from .collective_calls import Call
from .reductions import Reduction, Steps, known, pair_of, unscan


def plan_reduction(
    op: Any,
    x: Buffer,
    y: Buffer,
    adjoint: Callable[[Reduction, Sweep, Any, Any], Steps],
    in_steps: bool = False,
    root: int | None = None,
) -> Call:
    """A reduction of contributions x with its result in y; ``in_steps``: even for sums its adjoint goes in several."""
    rule = known(op)
    refused = refusal(op, rule, x)
    needed: Any = None
    if not refused and rule.needs_values:
        needed = values_of(rule, x)
    call = Call((x,), (y,), partial(adjoint, rule), needed, refused, root)
    call.overlaps = rule is not None and not rule.needs_values and not in_steps
    call.sizes = lambda: Sizes(x, x.nbytes)
    return call


def refusal(op: Any, rule: Reduction | None, x: Buffer) -> str:
    """Why a reduction of active values in a buffer has no adjoint; empty if it has one."""
    if rule is None:
        refused = f"there is no derivative rule for {_name_of(op)} on floating-point data; send ampi.value(...)"
        return refused + (", or make the operation of a kernel: ampi.Op.Create(kernel)" if _is_own(op) else "")
    if x.raw or x.mixed != rule.located or x.dtype is None or x.dtype.kind not in "fc":
        return "an active array is reduced as another datatype than its own; send ampi.value(...)"
    return ""


def values_of(rule: Reduction, x: Buffer) -> Any:
    """What has the values that a rule wants: with ``need(tape)``."""
    return _Pairs(x) if rule.located else x


class _Pairs:
    """The values and locations of a buffer."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    @property
    def storages(self) -> Sequence[Storage | None]:
        """Those whose memory is read in the sweep: none."""
        return ()

    def need(self, tape: Tape) -> Callable[[], np.ndarray]:
        """As `Buffer.need`, an array of pairs."""
        buffer = self.buffer
        pairs = np.empty(buffer.count, pair_of(buffer.dtype))
        pairs["value"] = buffer.values()
        pairs["location"] = buffer.others(np.dtype(np.intc))
        return lambda: pairs


def _name_of(op: Any) -> str:
    for name in ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "REPLACE", "NO_OP"):
        if op == getattr(mpi, name):
            return f"MPI.{name}"
    return "a user-defined MPI.Op"


def _is_own(op: Any) -> bool:
    return not op.is_predefined


def reduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM, root: int = 0) -> Call:
    """Reduce."""
    y = parse(recvbuf) if comm.Get_rank() == root else NOTHING
    x = y if y is not NOTHING and is_in_place(sendbuf) else parse(sendbuf)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = np.empty(x.count, x.dtype) if y is NOTHING else y.take(sweep)
        yield [comm.Ibcast(g, root)]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    call = plan_reduction(op, x, y, adjoint, root=root)
    if y is not NOTHING:
        call.sizes = lambda: Sizes(x, x.nbytes, own=(x.nbytes, y.nbytes))
    return call


def allreduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    """Allreduce."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = y.take(sweep)
        yield [comm.Iallreduce(mpi.IN_PLACE, g, mpi.SUM)]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    call = plan_reduction(op, x, y, adjoint)
    call.sizes = lambda: Sizes(x, x.nbytes, own=(x.nbytes, y.nbytes))
    return call


def reduce_scatter_block(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    """Reduce_scatter_block."""
    size = comm.Get_size()
    in_place = is_in_place(sendbuf)
    y = parse(recvbuf, size if in_place else 0)
    x = y if in_place else parse(sendbuf, size)
    whole, y = y, y.first(x.count // size)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g, taken = np.empty(x.count, x.dtype), y.take(sweep)
        yield [comm.Iallgather(taken, g)]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    call = plan_reduction(op, x, y, adjoint)
    call.spoils = (whole,)
    return call


def reduce_scatter(comm: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = mpi.SUM) -> Call:
    """Reduce_scatter."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    whole = y
    if recvcounts is not None and is_in_place(sendbuf):
        items = [operator.index(n) for n in recvcounts]
        y = y.first(items[comm.Get_rank()] * (y.count // max(sum(items), 1)))

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        counts, mine = np.empty(comm.size, np.int64), np.array([y.count], np.int64)
        yield [comm.Iallgather(mine, counts)]
        g, taken = np.empty(x.count, x.dtype), y.take(sweep)
        yield [comm.Iallgatherv(taken, [g, counts])]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    call = plan_reduction(op, x, y, adjoint, in_steps=True)
    if recvcounts is not None:
        call.sizes = lambda: Sizes(x, x.nbytes, [operator.index(n) for n in recvcounts])
    call.spoils = (whole,)
    return call


def scan(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    """Scan."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        return partial(x.add, sweep, (yield from unscan(comm, rule, values, y.take(sweep), exclusive=False)))

    call = plan_reduction(op, x, y, adjoint, in_steps=True)
    call.sizes = lambda: Sizes(x, x.nbytes, own=(x.nbytes, y.nbytes))
    return call


def exscan(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    """Exscan."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    if comm.Get_rank() == 0:  # nothing is received there
        y = NOTHING

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = np.zeros(x.count, x.dtype) if y is NOTHING else y.take(sweep)
        return partial(x.add, sweep, (yield from unscan(comm, rule, values, g, exclusive=True)))

    return plan_reduction(op, x, y, adjoint, in_steps=True)
