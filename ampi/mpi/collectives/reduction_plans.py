"""Plans of reductions: Reduce, Allreduce, Reduce_scatter, Scan and Exscan; `reductions` has the mathematics.

A mover carries the adjoint of the result back to all ranks that have contributed, where the rule of the operation
determines the share of each contribution.  Tangents go the same way as the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...memory.storages import Storage
from ...tape import Push, Sweep, Tape, no_tangent
from ..log.reverse import Reverse
from ..log.sizes import Sizes
from ..memory.argument_forms import is_in_place
from ..memory.arguments import parse
from ..memory.buffers import NOTHING, Buffer
from ..memory.tangents import tangent_in, tangent_in_place
from ..waiting.waiting import wait
from .collective_calls import Call
from .movements import (
    OF_ROOTS_GROUP,
    Message,
    Mover,
    group_of,
    is_root,
    receive_tangent,
    shared,
    shared_unevenly,
    spread,
    summed,
)
from .reductions import Reduction, Steps, known, pair_of, unscan
from .reductions_forward import Elements

Combine = Callable[[Any, Any, Any, Any, Any], mpi.Request]
"""``combine(comm, going, coming, op, counts)`` starts the operation on other messages, with ``counts`` elements."""


def _iallreduce(comm: mpi.Comm, going: Any, coming: Any, op: mpi.Op, counts: None) -> mpi.Request:
    return comm.Iallreduce(going, coming, op)


def _ireduce_scatter_block(comm: mpi.Comm, going: Any, coming: Any, op: mpi.Op, counts: None) -> mpi.Request:
    return comm.Ireduce_scatter_block(going, coming, op)


def _ireduce_scatter(comm: mpi.Comm, going: Any, coming: Any, op: mpi.Op, counts: list[int]) -> mpi.Request:
    return comm.Ireduce_scatter(going, coming, counts, op)


def _iscan(comm: mpi.Comm, going: Any, coming: Any, op: mpi.Op, counts: None) -> mpi.Request:
    return comm.Iscan(going, coming, op)


def _iexscan(comm: mpi.Comm, going: Any, coming: Any, op: mpi.Op, counts: None) -> mpi.Request:
    return comm.Iexscan(going, coming, op)


class Reducing:
    """This rank's part in a reduction of contributions x to a result y.

    Attributes
    ----------
    handle : int
        The handle of MPI's operation.
    rule : Reduction or None
        The derivative of the operation, if it has one.
    combine : callable
        Starts the operation.
    back : Mover or None
        Carries the adjoint of the result to all ranks that contribute.
    root : int or None
    counts : sequence of int or None
        Elements of the result of each rank, if the call gives them.
    shares : bool
        True if x is memory of y (``MPI.IN_PLACE``).
    """

    __slots__ = ("back", "combine", "counts", "handle", "root", "rule", "shares", "x", "y")

    def __init__(self, op: mpi.Op, x: Buffer, y: Buffer, combine: Combine, back: Mover | None) -> None:
        self.handle = op.handle
        self.rule = known(op)
        self.x = x
        self.y = y
        self.combine = combine
        self.back = back
        self.root: int | None = None
        self.counts: Sequence[int] | None = None
        self.shares = False

    def adjoint(self, sweep: Sweep, reverse: Reverse, x: Any, rule: Reduction | None = None) -> Steps:
        """Carry the adjoint of the result back, with the rule of the operation or another one."""
        own, y, back = self.x, self.y, self.back
        counts = [own.count // reverse.partners] * reverse.partners if back is shared else [own.count]
        coming = Message([], counts, own.dtype)
        yield from back(reverse, Message([y.take(sweep)], [y.count]), coming, self.root)  # type: ignore[misc]
        if own is NOTHING:
            return None
        g, rule = coming.whole(), rule or self.rule
        if rule.partials is not None:  # type: ignore[union-attr]
            g = yield from rule.share(group_of(reverse), x, g)  # type: ignore[union-attr]
        return partial(own.add, sweep, g)

    def is_of_integers(self) -> bool:
        """Return whether the numbers are integers, which have no tangents; the answer is the same on all ranks."""
        buffers = [buffer for buffer in (self.x, self.y) if buffer is not NOTHING]
        return bool(buffers) and all(b.raw or b.dtype is None or b.dtype.kind in "iub" for b in buffers)

    def tangent(self, push: Push, reverse: Reverse, name: str, values: Callable[[], np.ndarray] | None = None) -> Steps:
        """Combine tangents, or pairs of values and tangents; ``values()`` gives values that are no longer in memory."""
        x, y, rule = self.x, self.y, self.rule
        if self.is_of_integers():
            return None
        here = x if y is NOTHING else y
        count, dtype = (x if y is NOTHING else y).count, np.dtype(np.float64) if here is NOTHING else here.dtype
        place: np.ndarray | None = None
        going: Any
        coming: Any
        if rule.partials is None:  # type: ignore[union-attr]
            place, op = tangent_in_place(push, y, True), mpi.SUM
            mine = None if self.shares else tangent_in_place(push, x)
            going = tangent_in(push, x) if mine is None else mine
            coming = found = np.zeros(count, dtype) if place is None else place
        else:
            located = rule.located  # type: ignore[union-attr]
            if (x is not NOTHING and x.mixed != located) or dtype.kind not in "fc":
                raise no_tangent(f"{name} of a datatype other than the memory's own")
            elements = Elements(push, self.handle, rule, dtype)  # type: ignore[arg-type]
            op, pairs = elements.operation, np.zeros(count, elements.dtype)
            going, coming = [elements.of(push, x, values), elements.datatype], [pairs, elements.datatype]
            found = pairs["tangent"]
        counts = self.counts
        if counts is None and self.back is shared_unevenly:
            counts = _all_counts(reverse, y.count, name)
        yield [self.combine(reverse.comm, going, coming, op, counts)]
        if y is NOTHING or place is not None:
            return None
        return lambda: receive_tangent(push, y, np.ascontiguousarray(found), name)


def _all_counts(reverse: Reverse, count: int, name: str) -> list[int]:
    inside = group_of(reverse)
    counts = np.empty(inside.Get_size(), np.int64)
    wait(inside.Iallgather(np.array([count], np.int64), counts), lambda: f"the counts of {name}", reverse)
    return counts.tolist()


class Scanning(Reducing):
    """This rank's part in a scan, whose result grows with the rank."""

    __slots__ = ("exclusive",)

    def __init__(self, op: mpi.Op, x: Buffer, y: Buffer, combine: Combine, exclusive: bool) -> None:
        super().__init__(op, x, y, combine, None)
        self.exclusive = exclusive

    def adjoint(self, sweep: Sweep, reverse: Reverse, x: Any, rule: Reduction | None = None) -> Steps:
        """Carry the adjoints of the results back."""
        g = np.zeros(self.x.count, self.x.dtype) if self.y is NOTHING else self.y.take(sweep)
        back = unscan(reverse.comm, rule or self.rule, x, g, self.exclusive)  # type: ignore[arg-type]
        return partial(self.x.add, sweep, (yield from back))


def _plan(op: mpi.Op, part: Reducing, in_steps: bool = False) -> Call:
    """Return the call with this part; ``in_steps``: its adjoint takes several steps, even of a sum."""
    rule, x = part.rule, part.x
    call = Call((x,), (part.y,), part, root=part.root)
    call.refused = "" if x is NOTHING else refusal(op, rule, x)
    if rule is not None and rule.needs_values and not call.refused and x is not NOTHING:
        call.needed = values_of(rule, x)
    call.overlaps = rule is not None and not rule.needs_values and not in_steps
    call.sizes = lambda: Sizes(x, x.nbytes)
    return call


def refusal(op: mpi.Op, rule: Reduction | None, x: Buffer) -> str:
    """Return why a reduction of active values in a buffer has no derivative; empty if it has one."""
    if rule is None:
        if op == mpi.OP_NULL:
            return "the operation is MPI.OP_NULL: it was never made, or has been freed; free it after the gradient"
        refused = f"there is no derivative rule for {_name_of(op)} on floating-point data; send ampi.value(...)"
        return refused + ("" if op.is_predefined else ", or make the operation of a kernel: ampi.Op.Create(kernel)")
    if x.raw or x.mixed != rule.located or x.dtype is None or x.dtype.kind not in "fc":
        return "an active array is reduced as a datatype other than its own; send ampi.value(...)"
    return ""


def values_of(rule: Reduction, x: Buffer) -> Any:
    """Return the memory of the values that a rule needs, with a method ``need(tape)``."""
    return _Pairs(x) if rule.located else x


class _Pairs:
    """The values and locations of a buffer."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer

    @property
    def storages(self) -> Sequence[Storage | None]:
        """The storages that are read in the sweep: none."""
        return ()

    def need(self, tape: Tape) -> Callable[[], np.ndarray]:
        """Save values and locations as they are now, as `Buffer.need` does."""
        buffer = self.buffer
        pairs = np.empty(buffer.count, pair_of(buffer.dtype))
        pairs["value"] = buffer.values()
        pairs["location"] = buffer.others(np.dtype(np.intc))
        return lambda: pairs


def _name_of(op: mpi.Op) -> str:
    for name in ("LAND", "LOR", "LXOR", "BAND", "BOR", "BXOR", "REPLACE", "NO_OP"):
        if op == getattr(mpi, name):
            return f"MPI.{name}"
    return "a user-defined MPI.Op"


def reduce(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, op: mpi.Op = mpi.SUM, root: int = 0) -> Call:
    """Plan of Reduce."""
    between = comm.Is_inter()
    y = parse(recvbuf) if is_root(comm, root) else NOTHING
    in_place = y is not NOTHING and not between and is_in_place(sendbuf)
    x = NOTHING if between and root in OF_ROOTS_GROUP else y if in_place else parse(sendbuf)

    def combine(comm: mpi.Comm, going: Any, coming: Any, op: mpi.Op, counts: None) -> mpi.Request:
        sends = not (between and root in OF_ROOTS_GROUP)
        return comm.Ireduce(going if sends else None, coming if is_root(comm, root) else None, op, root)

    part = Reducing(op, x, y, combine, spread)
    part.root, part.shares = root, in_place
    call = _plan(op, part)
    if y is not NOTHING:
        call.sizes = lambda: Sizes(x, x.nbytes, own=(x.nbytes, y.nbytes))
    return call


def allreduce(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, op: mpi.Op = mpi.SUM) -> Call:
    """Plan of Allreduce."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    part = Reducing(op, x, y, _iallreduce, summed)
    part.shares = x is y
    call = _plan(op, part, in_steps=comm.Is_inter())
    call.sizes = lambda: Sizes(x, x.nbytes, own=(x.nbytes, y.nbytes))
    return call


def reduce_scatter_block(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, op: mpi.Op = mpi.SUM) -> Call:
    """Plan of Reduce_scatter_block."""
    size, in_place = 0 if comm.Is_inter() else comm.Get_size(), is_in_place(sendbuf)
    whole = parse(recvbuf, size if in_place else 0)
    x = whole if in_place else parse(sendbuf, size)
    part = Reducing(op, x, whole.first(x.count // size) if size else whole, _ireduce_scatter_block, shared)
    part.shares = in_place
    call = _plan(op, part)
    call.spoils = (whole,)
    return call


def reduce_scatter(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: mpi.Op = mpi.SUM) -> Call:
    """Plan of Reduce_scatter."""
    whole, in_place = parse(recvbuf), is_in_place(sendbuf)
    x, y = (whole, whole) if in_place else (parse(sendbuf), whole)
    items = None if recvcounts is None else [operator.index(n) for n in recvcounts]
    length = 0 if items is None else x.count // max(sum(items), 1)
    if items is not None and in_place:
        y = whole.first(items[comm.Get_rank()] * length)
    part = Reducing(op, x, y, _ireduce_scatter, shared_unevenly)
    part.shares = in_place
    if items is not None:
        part.counts = [n * length for n in items]
    call = _plan(op, part, in_steps=True)
    if items is not None:
        call.sizes = lambda: Sizes(x, x.nbytes, items)
    call.spoils = (whole,)
    return call


def scan(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, op: mpi.Op = mpi.SUM) -> Call:
    """Plan of Scan."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    part = Scanning(op, x, y, _iscan, False)
    part.shares = x is y
    call = _plan(op, part, in_steps=True)
    call.sizes = lambda: Sizes(x, x.nbytes, own=(x.nbytes, y.nbytes))
    return call


def exscan(comm: mpi.Comm, sendbuf: Any, recvbuf: Any, op: mpi.Op = mpi.SUM) -> Call:
    """Plan of Exscan."""
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    part = Scanning(op, x, NOTHING if comm.Get_rank() == 0 else y, _iexscan, True)  # nothing is received there
    part.shares = x is y
    return _plan(op, part, in_steps=True)
