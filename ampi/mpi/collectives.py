"""Collective operations on buffers: the methods, what each reads and writes on this rank, and its adjoint.

An operation is a *plan*: a function of the call's arguments that gives a `Call`, this rank's part in it.  The adjoint
is a generator which takes the adjoints of what was written, sends them on their way on the reverse communicator, yields
the requests, and returns what adds that which came to the adjoints of what was read.  The blocking form runs it through
at once; a form with a request begins it at the mirror of the wait and ends it at the mirror of the start.
Copies travel as bytes, so that ranks whose memory is plain can take part without knowing its dtype.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from sys import _getframe
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import ActivityError
from ..memory import Storage, TrackedArray, region_of
from ..recording import opened, recording
from ..tape import IsRecord, Sweep, Tape, Undo, living
from .agreement import count_passive, line_of, log_collective
from .between import exchanged, split
from .buffers import (
    NOTHING,
    Buffer,
    is_in_place,
    lasting,
    parse,
    parse_moved,
    parse_types_moved,
    parse_vector_moved,
    refuse_others,
)
from .flights import Started, fly
from .messages import Collective, call_site, sites
from .reductions import PREDEFINED, Reduction, Steps, known, pair_of, unscan
from .requests import persistent, recorded
from .reverse import reverse_of
from .rules import Operation, Treatment, enter

_Comm, _Intracomm, _Op = mpi.Comm, mpi.Intracomm, mpi.Op  # mpi4py's own: its names may be rebound


class Call:
    """This rank's part in one collective operation, as its arguments say; calls with the same arguments share it.

    Attributes
    ----------
    name : str
        mpi4py's.
    reads, writes : sequence of Buffer
        Memory whose values go to other ranks, and memory that is overwritten.
    adjoint : callable
        ``adjoint(sweep, comm, x)``, a generator, on the reverse communicator; x are the values needed, flat.  It
        returns a function to be called at the end, or None.
    needed : Buffer or None
        Memory whose values the adjoint wants.
    refused : str
        If not empty: why the operation has no adjoint.
    spoils : sequence of Buffer
        What is to be saved before the primal: the writes, or more where MPI may use more as its workspace.
    overlaps : bool
        The adjoint goes in one step, on all ranks: it yields once.
    """

    __slots__ = ("adjoint", "name", "needed", "overlaps", "reads", "refused", "spoils", "writes")

    def __init__(
        self,
        name: str,
        reads: Sequence[Buffer],
        writes: Sequence[Buffer],
        adjoint: Callable[[Sweep, Any, Any], Steps] | None,
        needed: Buffer | None = None,
        refused: str = "",
    ) -> None:
        self.name = name
        self.reads = reads
        self.writes = writes
        self.adjoint = adjoint
        self.needed = needed
        self.refused = refused
        self.spoils = writes
        self.overlaps = True

    def overwrite(self) -> list[Undo]:
        """Save what the primal overwrites."""
        undo: list[Undo] = []
        for buffer in self.spoils:
            undo += buffer.overwrite()
        return undo

    def log(self, tape: Tape, comm: Any) -> Performed:
        """Before the primal starts: check the call and log it."""
        active = certain = tracked = loses = False
        for buffer in self.reads:
            if buffer.active(tape):
                active = True
                certain = certain or not buffer.uncertain()
        for buffer in self.writes:
            if buffer.nbytes:
                tracked = tracked or buffer.tracked
                loses = loses or buffer.loses
        if active:
            self._check(loses and certain)
        performed = log_collective(tape, comm, self.name, active, tracked, loses, certain, Performed)
        performed.call = self
        performed.values = None
        performed.undo = ()
        return performed

    def _check(self, loses: bool) -> None:
        if self.refused:
            raise ActivityError(f"{self.name}: {self.refused}")
        if loses:
            raise ActivityError(
                f"{self.name}: an active array is received into memory that is not tracked, where its derivative would "
                "be lost; make the receive buffer with ampi.numpy, or send ampi.value(...)"
            )

    def activate(self, tape: Tape, comm: Any, contributes: bool) -> None:
        """What is written carries derivatives from now on."""
        if contributes or comm.Get_size() > 1 or comm.Is_inter():
            for buffer in self.writes:
                buffer.activate(tape)

    def detach(self) -> None:
        """Keep no memory alive any longer."""
        for buffer in (*self.reads, *self.writes, *self.spoils):
            buffer.detach()


class Performed(IsRecord, Collective):
    """One call of a collective operation: in the log of the tape, and its record.

    Attributes
    ----------
    call : Call
    values : callable or None
        Gives the values that the adjoint wants.
    undo : list of Undo
        What the primal has overwritten.
    """

    __slots__ = ("call", "undo", "values")
    depth = 5
    reads_memory = False  # but what `steps` has put back

    def keep_values(self, tape: Tape, started: bool) -> None:
        """Before the primal: see to it that the sweep has the values that the adjoint wants.

        Where the primal of a form with a request works in place, they are not in memory any more at the mirror of the
        wait: the adjoint gets a copy.
        """
        needed = self.call.needed
        if needed is None:
            return
        if started and any(needed is spoilt for spoilt in self.call.spoils):
            copy = needed.values()
            self.values = lambda: copy
        else:
            self.values = needed.need(tape)

    def __call__(self, sweep: Sweep) -> None:
        """The adjoint of the blocking form."""
        if self.happens(sweep):
            fly(sweep, self, self.steps(sweep), self.waiting)
        else:
            self.zero(sweep)

    def zero(self, sweep: Sweep) -> None:
        """The adjoint if nothing travels back: what was written has been overwritten by constants."""
        for buffer in self.call.writes:
            buffer.zero(sweep)

    def steps(self, sweep: Sweep) -> Steps:
        """The adjoint's steps."""
        call = self.call
        if call.refused:
            raise ActivityError(f"{self.name} at {line_of(self.where)}: {call.refused}")
        x = None
        if self.values is not None:
            sweep.put_back(call.needed.storages)  # type: ignore[union-attr]
            x = self.values()
        return call.adjoint(sweep, self.reverse.comm, x)  # type: ignore[misc]

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"


# ------------------------------------------------------------------------------------------------ blocks, one per rank


def counts_of(buffer: Buffer, size: int) -> list[int]:
    """Elements of the block of each rank."""
    return [buffer.count // size] * size if buffer.counts is None else buffer.counts


class Blocks:
    """A buffer as one block for each rank; with a hole, all but one of them."""

    __slots__ = ("nbytes", "parts")

    def __init__(self, buffer: Buffer, size: int, hole: int | None = None) -> None:
        counts = counts_of(buffer, size)
        itemsize = 1 if buffer.dtype is None else buffer.dtype.itemsize
        self.nbytes = [n * itemsize for n in counts]
        if hole is None:
            self.parts = (buffer,)
            return
        start = sum(counts[:hole])
        self.parts = (buffer.part(0, start), buffer.part(start + counts[hole], buffer.count))
        self.nbytes[hole] = 0

    def take(self, sweep: Sweep) -> np.ndarray:
        return np.concatenate([_bytes(part.take(sweep)) for part in self.parts])

    def add(self, sweep: Sweep, came: np.ndarray) -> None:
        _add_blocks(sweep, self.parts, came)


def _own_block(buffer: Buffer, rank: int, size: int) -> Buffer:
    counts = counts_of(buffer, size)
    start = sum(counts[:rank])
    return buffer.part(start, start + counts[rank])


def nbytes_of(buffer: Buffer) -> int:
    return 0 if buffer.dtype is None else buffer.count * buffer.dtype.itemsize


def _bytes(flat: np.ndarray) -> np.ndarray:
    return flat.view(np.uint8)


def add_bytes(sweep: Sweep, buffer: Buffer, came: np.ndarray) -> None:
    if buffer.tracked:
        buffer.add(sweep, came.view(buffer.dtype))


def _add_blocks(sweep: Sweep, blocks: Sequence[Buffer], came: np.ndarray) -> None:
    start = 0
    for block in blocks:
        end = start + nbytes_of(block)
        add_bytes(sweep, block, came[start:end])
        start = end


# ---------------------------------------------------------------------------------------------------- moving data


def _bcast(comm: Any, buf: Any, root: int = 0) -> Call:
    buffer = parse_moved(buf)
    if comm.Get_rank() == root:
        return Call("Bcast", (buffer,), (), _adjoint_of_bcast_at_root(buffer, root))
    return Call("Bcast", (), (buffer,), _adjoint_of_bcast_elsewhere(buffer, root))


def _adjoint_of_bcast_at_root(buffer: Buffer, root: int) -> Callable:
    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        total = np.zeros(buffer.count, buffer.dtype)
        yield [comm.Ireduce(mpi.IN_PLACE, total, mpi.SUM, root)]
        return partial(buffer.add, sweep, total)

    return adjoint


def _adjoint_of_bcast_elsewhere(buffer: Buffer, root: int) -> Callable:
    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        taken = buffer.take(sweep)  # has a name: requests of mpi4py's reductions do not keep buffers alive
        yield [comm.Ireduce(taken, None, mpi.SUM, root)]

    return adjoint


def _gather(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_gather("Gather", parse_moved, comm, sendbuf, recvbuf, root)


def _gatherv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_gather("Gatherv", parse_vector_moved, comm, sendbuf, recvbuf, root)


def _plan_gather(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    rank, size = comm.Get_rank(), comm.Get_size()
    if rank != root:
        sent = parse_moved(sendbuf)

        def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
            came = np.empty(nbytes_of(sent), np.uint8)
            yield [comm.Iscatterv(None, came, root)]
            return partial(add_bytes, sweep, sent, came)

        return Call(name, (sent,), (), adjoint)

    received = form(recvbuf, size)
    in_place = is_in_place(sendbuf)
    sent = NOTHING if in_place else parse_moved(sendbuf)
    blocks = Blocks(received, size, rank if in_place else None)

    def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(blocks.nbytes[rank], np.uint8)
        yield [comm.Iscatterv([blocks.take(sweep), blocks.nbytes], came, root)]
        return partial(add_bytes, sweep, sent, came)

    return Call(name, (sent,), blocks.parts, adjoint_at_root)


def _scatter(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_scatter("Scatter", parse_moved, comm, sendbuf, recvbuf, root)


def _scatterv(comm: Any, sendbuf: Any, recvbuf: Any, root: int = 0) -> Call:
    return _plan_scatter("Scatterv", parse_vector_moved, comm, sendbuf, recvbuf, root)


def _plan_scatter(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    rank, size = comm.Get_rank(), comm.Get_size()
    if rank != root:
        received = parse_moved(recvbuf)

        def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
            yield [comm.Igatherv(_bytes(received.take(sweep)), None, root)]

        return Call(name, (), (received,), adjoint)

    sent = form(sendbuf, size)
    in_place = is_in_place(recvbuf)
    received = NOTHING if in_place else parse_moved(recvbuf)
    blocks = Blocks(sent, size, rank if in_place else None)

    def adjoint_at_root(sweep: Sweep, comm: Any, x: None) -> Steps:
        mine = np.empty(0, np.uint8) if in_place else _bytes(received.take(sweep))
        came = np.empty(sum(blocks.nbytes), np.uint8)
        yield [comm.Igatherv(mine, [came, blocks.nbytes], root)]
        return partial(blocks.add, sweep, came)

    return Call(name, blocks.parts, (received,), adjoint_at_root)


def _allgather(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return _plan_allgather("Allgather", parse_moved, comm, sendbuf, recvbuf)


def _allgatherv(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return _plan_allgather("Allgatherv", parse_vector_moved, comm, sendbuf, recvbuf)


def _plan_allgather(name: str, form: Callable, comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    rank, size = comm.Get_rank(), comm.Get_size()
    received = form(recvbuf, size)
    sent = _own_block(received, rank, size) if is_in_place(sendbuf) else parse_moved(sendbuf)
    counts = counts_of(received, size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        taken, mine = received.take(sweep), np.empty(counts[rank], received.dtype)
        yield [comm.Ireduce_scatter(taken, mine, counts, mpi.SUM)]
        return partial(sent.add, sweep, mine)

    return Call(name, (sent,), (received,), adjoint)


def _alltoall(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return plan_alltoall("Alltoall", parse_moved, comm.Get_size(), sendbuf, recvbuf)


def _alltoallv(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return plan_alltoall("Alltoallv", parse_vector_moved, comm.Get_size(), sendbuf, recvbuf)


def plan_alltoall(name: str, form: Callable, size: int, sendbuf: Any, recvbuf: Any) -> Call:
    """An Alltoall or Alltoallv with so many ranks."""
    received = form(recvbuf, size)
    sent = received if is_in_place(sendbuf) else form(sendbuf, size)
    there, here = Blocks(received, size), Blocks(sent, size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        came = np.empty(sum(here.nbytes), np.uint8)
        yield _transposed(comm, there.take(sweep), there.nbytes, came, here.nbytes)
        return partial(here.add, sweep, came)

    return Call(name, (sent,), (received,), adjoint)


def _transposed(
    comm: Any, going: np.ndarray, lengths: Sequence[int], came: np.ndarray, sizes: Sequence[int]
) -> list[mpi.Request]:
    """The reversed Alltoall of bytes."""
    if comm.Is_inter():
        return exchanged(comm, split(going, lengths), split(came, sizes))
    return [comm.Ialltoallv([going, lengths], [came, sizes])]


def _alltoallw(comm: Any, sendbuf: Any, recvbuf: Any) -> Call:
    return plan_alltoallw(comm.Get_size(), sendbuf, recvbuf)


def plan_alltoallw(size: int, sendbuf: Any, recvbuf: Any) -> Call:
    """An Alltoallw with so many ranks."""
    received = parse_types_moved(recvbuf, size)
    sent = received if is_in_place(sendbuf) else parse_types_moved(sendbuf, size)

    def adjoint(sweep: Sweep, comm: Any, x: None) -> Steps:
        going = np.concatenate([_bytes(block.take(sweep)) for block in received])
        came = np.empty(sum(map(nbytes_of, sent)), np.uint8)
        yield _transposed(comm, going, list(map(nbytes_of, received)), came, list(map(nbytes_of, sent)))
        return partial(_add_blocks, sweep, sent, came)

    return Call("Alltoallw", sent, received, adjoint)


# ------------------------------------------------------------------------------------------------------ reductions


def plan_reduction(
    name: str, op: Any, x: Buffer, y: Buffer, adjoint: Callable[[Reduction, Sweep, Any, Any], Steps]
) -> Call:
    """A reduction of contributions x with its result in y."""
    rule = known(op)
    refused = refusal(op, rule, x)
    needed: Any = None
    if not refused and rule.needs_values:
        needed = values_of(rule, x)
    call = Call(name, (x,), (y,), partial(adjoint, rule), needed, refused)
    call.overlaps = rule is not None and not rule.needs_values and name not in _IN_STEPS
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


_IN_STEPS = ("Reduce_scatter", "Scan", "Exscan")
"""Operations whose adjoints go in several steps even for sums."""


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


def _reduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM, root: int = 0) -> Call:
    y = parse(recvbuf) if comm.Get_rank() == root else NOTHING
    x = y if y is not NOTHING and is_in_place(sendbuf) else parse(sendbuf)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = np.empty(x.count, x.dtype) if y is NOTHING else y.take(sweep)
        yield [comm.Ibcast(g, root)]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    return plan_reduction("Reduce", op, x, y, adjoint)


def _allreduce(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = y.take(sweep)
        yield [comm.Iallreduce(mpi.IN_PLACE, g, mpi.SUM)]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    return plan_reduction("Allreduce", op, x, y, adjoint)


def _reduce_scatter_block(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    size = comm.Get_size()
    in_place = is_in_place(sendbuf)
    y = parse(recvbuf, size if in_place else 0)
    x = y if in_place else parse(sendbuf, size)
    whole, y = y, y.first(x.count // size)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = np.empty(x.count, x.dtype)
        yield [comm.Iallgather(y.take(sweep), g)]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    call = plan_reduction("Reduce_scatter_block", op, x, y, adjoint)
    call.spoils = (whole,)
    return call


def _reduce_scatter(comm: Any, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = mpi.SUM) -> Call:
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    whole = y
    if recvcounts is not None and is_in_place(sendbuf):
        items = [operator.index(n) for n in recvcounts]
        y = y.first(items[comm.Get_rank()] * (y.count // max(sum(items), 1)))

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        counts = np.empty(comm.size, np.int64)
        yield [comm.Iallgather(np.array([y.count], np.int64), counts)]
        g = np.empty(x.count, x.dtype)
        yield [comm.Iallgatherv(y.take(sweep), [g, counts])]
        return partial(x.add, sweep, (yield from rule.share(comm, values, g)))

    call = plan_reduction("Reduce_scatter", op, x, y, adjoint)
    call.spoils = (whole,)
    return call


def _scan(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        return partial(x.add, sweep, (yield from unscan(comm, rule, values, y.take(sweep), exclusive=False)))

    return plan_reduction("Scan", op, x, y, adjoint)


def _exscan(comm: Any, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> Call:
    y = parse(recvbuf)
    x = y if is_in_place(sendbuf) else parse(sendbuf)
    if comm.Get_rank() == 0:  # nothing is received there
        y = NOTHING

    def adjoint(rule: Reduction, sweep: Sweep, comm: Any, values: Any) -> Steps:
        g = np.zeros(x.count, x.dtype) if y is NOTHING else y.take(sweep)
        return partial(x.add, sweep, (yield from unscan(comm, rule, values, g, exclusive=True)))

    return plan_reduction("Exscan", op, x, y, adjoint)


# ----------------------------------------------------------------------------------------------------- the methods


between_groups: dict[str, Callable[..., Call]] = {}
"""The plans for intercommunicators, by name of the blocking form."""


MOST_CALLS = 64  # of a communicator that are remembered


def _planned(comm: Any, plan: Callable[..., Call], arguments: Sequence[Any], keywords: dict[str, Any]) -> Call:
    if comm.Is_inter():
        plan = between_groups[_NAMES[plan]]
    return plan(comm, *arguments, **keywords)


def _call_of(comm: Any, plan: Callable[..., Call], arguments: Sequence[Any]) -> Call:
    """The call with these arguments, from an earlier one if they are the same arrays."""
    key = _key(plan, arguments)
    reverse = None if key is None else reverse_of(comm)
    if reverse is None:
        return _planned(comm, plan, arguments, {})
    known = reverse.calls.get(key)
    if known is not None:
        call, places, _ = known
        for buffer, k in places:
            buffer.array = arguments[k]
        return call
    call = _planned(comm, plan, arguments, {})
    places = _places(call, arguments)
    if places is not None and not comm.Is_inter():
        if len(reverse.calls) >= MOST_CALLS:
            reverse.calls.clear()
        reverse.calls[key] = call, places, _is_simple(call)
    return call


def _is_simple(call: Call) -> bool:
    """Whether all that has to be known about a call, once it is known, is whether what it reads is active."""
    if call.needed is not None or call.refused or not call.reads or not call.writes:
        return False
    return all(
        buffer.tracked
        and buffer.nbytes
        and not (buffer.packed or buffer.raw or buffer.mixed or buffer.storage.elsewhere)
        for buffer in (*call.reads, *call.writes, *call.spoils)
    )


def _key(plan: Callable[..., Call], arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """What tells whether two calls are given the same arrays, ranks and operations; None if that takes a closer look.

    It holds the regions of the arrays, by which it tells them.
    """
    if plan not in _NAMES:
        return None
    key: list[Any] = [plan]
    for argument in arguments:
        if isinstance(argument, TrackedArray):
            if not argument.ndim or argument.dtype.kind not in "fc":
                return None
            key.append(region_of(argument))
        elif type(argument) is int or is_in_place(argument):
            key.append(argument)
        elif isinstance(argument, _Op) and argument.handle in PREDEFINED:
            key.append(argument.handle)
        else:
            return None
    return tuple(key)


def _places(call: Call, arguments: Sequence[Any]) -> list[tuple[Buffer, int]] | None:
    """Which arguments the memory of a call's buffers is; None if that cannot be told."""
    places = []
    for buffer in {*call.reads, *call.writes, *call.spoils} - {NOTHING}:
        if type(buffer) is not Buffer:
            return None
        for k, argument in enumerate(arguments):
            if buffer.array is argument:
                places.append((buffer, k))
                break
        else:
            return None
    return places


def _begin_again(tape: Tape, comm: Any, plan: Callable[..., Call], arguments: Sequence[Any]) -> Performed | None:
    """Before a call with the arguments of an earlier one, on the communicator that was used last: log it.

    After a large message most of the caches are filled with it, and what recording looks at comes from afar: so this
    looks at little.

    Returns
    -------
    Performed or None
        None for other calls, of which nothing has been logged.
    """
    latest, log, _ = tape.latest
    if latest is not comm:
        return None
    key: list[Any] = [plan]
    for argument in arguments:
        region = getattr(argument, "_region", None)
        if region is not None:
            key.append(region)
        elif argument is _SUM:
            key.append(_SUM_HANDLE)
        elif type(argument) is int:
            key.append(argument)
        elif isinstance(argument, _Op) and argument.handle in PREDEFINED:
            key.append(argument.handle)
        else:
            return None
    call, _, simple = log.reverse.calls.get(tuple(key), _NOT_KNOWN)
    if not simple:
        return None
    reference = tape._reference
    for buffer in call.reads:
        if buffer.storage.tape is not reference:
            return None
    for buffer in call.spoils:
        if buffer.storage.needs or buffer.storage.guard:
            return None
    frame = _getframe(3)
    where = sites.get((id(frame.f_code), frame.f_lasti)) or call_site(4)
    performed = Performed.__new__(Performed)
    performed.name = call.name
    performed.reverse = log.reverse
    performed.reads_active = performed.writes_tracked = performed.certain = True
    performed.loses = performed.happening = performed.passed = False
    performed.where = where
    performed.after = log.passive
    performed.call = call
    performed.values = None
    performed.undo = ()
    log.collectives.append(performed)
    return performed


_SUM = mpi.SUM
_SUM_HANDLE = mpi.SUM.handle
_NOT_KNOWN = None, None, False


def perform(comm: Any, plan: Callable[..., Call], primal: Callable, *arguments: Any) -> None:
    """Run a blocking collective while some tape exists."""
    tape = recording()
    performed = None if tape is None else _begin_again(tape, comm, plan, arguments)
    if performed is not None:
        primal(comm, *arguments)
        for buffer in performed.call.writes:
            buffer.storage.tape = tape._reference  # type: ignore[union-attr]
        if tape.before_append is not None:  # type: ignore[union-attr]
            tape.before_append()  # type: ignore[union-attr]
        tape.append_record(performed)  # type: ignore[union-attr]
        return
    if tape is None:
        count_passive(comm)
        call = _planned(comm, plan, arguments, {})
        refuse_others(*call.reads, *call.writes)
        call.overwrite()
        primal(comm, *arguments)
        return
    call = _call_of(comm, plan, arguments)
    try:
        performed = call.log(tape, comm)
        performed.keep_values(tape, False)
        performed.undo = call.overwrite()
        primal(comm, *arguments)
        call.activate(tape, comm, performed.reads_active)
    finally:
        call.detach()
    if tape.before_append is not None:
        tape.before_append()
    tape.append_record(performed)


def _start(name: str, comm: Any, plan: Callable[..., Call], arguments: Sequence[Any], keywords: dict) -> Started | None:
    """Before a collective with a request starts, while some tape exists: check, log and record it."""
    tape = recording()
    call = _planned(comm, plan, arguments, keywords)
    call.name = name
    if tape is None:
        count_passive(comm)
        refuse_others(*call.reads, *call.writes)
        call.overwrite()
        return None
    if tape.before_append is not None:  # something that this one reads may have come unseen
        tape.before_append()
    performed = call.log(tape, comm)
    performed.keep_values(tape, True)
    undo = call.overwrite()
    call.activate(tape, comm, performed.reads_active)
    call.detach()
    started = Started(performed)
    tape.append_start(started, undo)
    return started


def _nonblocking(name: str, plan: Callable[..., Call], primal: Callable[..., mpi.Request]) -> Callable:
    """The method for a nonblocking form."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> mpi.Request:
        if not living:
            return primal(self, *arguments, **keywords)
        started = _start(name, self, plan, arguments, keywords)
        request = primal(self, *arguments, **keywords)
        return request if started is None else recorded(opened(), request, started)

    method.__name__ = name
    return method


def _persistent(name: str, plan: Callable[..., Call], primal: Callable[..., mpi.Prequest]) -> Callable:
    """The method for a persistent form, which has ``info`` as its last argument."""
    n = plan.__code__.co_argcount - 1

    def method(self: Any, *arguments: Any, **keywords: Any) -> mpi.Prequest:
        request = primal(self, *arguments, **keywords)
        keywords.pop("info", None)
        given = [lasting(argument) for argument in arguments[:n]]
        named = {key: lasting(argument) for key, argument in keywords.items()}

        def start() -> tuple[Started, ...]:
            started = _start(name, self, plan, given, named)
            return () if started is None else (started,)

        return persistent(request, start)

    method.__name__ = name
    return method


def add_forms(cls: type, owner: Any, plans: dict[Callable[..., Call], str]) -> None:
    """Give a class the nonblocking and persistent forms of operations."""
    for plan, name in plans.items():
        nonblocking, init = f"I{name[0].lower()}{name[1:]}", f"{name}_init"
        setattr(cls, nonblocking, _nonblocking(nonblocking, plan, getattr(owner, nonblocking)))
        setattr(cls, init, _persistent(init, plan, getattr(owner, init)))


class Collectives:
    """Collective operations of all communicators."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Broadcast a message from one rank to all."""
        if living:
            perform(self, _bcast, _Comm.Bcast, buf, root)
        else:
            _Comm.Bcast(self, buf, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather equal blocks from all ranks on one."""
        if living:
            perform(self, _gather, _Comm.Gather, sendbuf, recvbuf, root)
        else:
            _Comm.Gather(self, sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather blocks of any length from all ranks on one."""
        if living:
            perform(self, _gatherv, _Comm.Gatherv, sendbuf, recvbuf, root)
        else:
            _Comm.Gatherv(self, sendbuf, recvbuf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter equal blocks from one rank to all."""
        if living:
            perform(self, _scatter, _Comm.Scatter, sendbuf, recvbuf, root)
        else:
            _Comm.Scatter(self, sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter blocks of any length from one rank to all."""
        if living:
            perform(self, _scatterv, _Comm.Scatterv, sendbuf, recvbuf, root)
        else:
            _Comm.Scatterv(self, sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather equal blocks from all ranks on all."""
        if living:
            perform(self, _allgather, _Comm.Allgather, sendbuf, recvbuf)
        else:
            _Comm.Allgather(self, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather blocks of any length from all ranks on all."""
        if living:
            perform(self, _allgatherv, _Comm.Allgatherv, sendbuf, recvbuf)
        else:
            _Comm.Allgatherv(self, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send an equal block from each rank to each."""
        if living:
            perform(self, _alltoall, _Comm.Alltoall, sendbuf, recvbuf)
        else:
            _Comm.Alltoall(self, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of any length from each rank to each."""
        if living:
            perform(self, _alltoallv, _Comm.Alltoallv, sendbuf, recvbuf)
        else:
            _Comm.Alltoallv(self, sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of any length and datatype from each rank to each."""
        if living:
            perform(self, _alltoallw, _Comm.Alltoallw, sendbuf, recvbuf)
        else:
            _Comm.Alltoallw(self, sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM, root: int = 0) -> None:
        """Combine the contributions of all ranks on one."""
        if living:
            perform(self, _reduce, _Comm.Reduce, sendbuf, recvbuf, op, root)
        else:
            _Comm.Reduce(self, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> None:
        """Combine the contributions of all ranks on all."""
        if living:
            perform(self, _allreduce, _Comm.Allreduce, sendbuf, recvbuf, op)
        else:
            _Comm.Allreduce(self, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> None:
        """Combine the contributions of all ranks and scatter the result in equal blocks."""
        if living:
            perform(self, _reduce_scatter_block, _Comm.Reduce_scatter_block, sendbuf, recvbuf, op)
        else:
            _Comm.Reduce_scatter_block(self, sendbuf, recvbuf, op)

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = mpi.SUM) -> None:
        """Combine the contributions of all ranks and scatter the result in blocks of any length."""
        if living:
            perform(self, _reduce_scatter, _Comm.Reduce_scatter, sendbuf, recvbuf, recvcounts, op)
        else:
            _Comm.Reduce_scatter(self, sendbuf, recvbuf, recvcounts, op)


class IntracommCollectives:
    """Collective operations that only intracommunicators have."""

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> None:
        """Combine the contributions of all ranks up to this one."""
        if living:
            perform(self, _scan, _Intracomm.Scan, sendbuf, recvbuf, op)
        else:
            _Intracomm.Scan(self, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = mpi.SUM) -> None:
        """Combine the contributions of all ranks before this one."""
        if living:
            perform(self, _exscan, _Intracomm.Exscan, sendbuf, recvbuf, op)
        else:
            _Intracomm.Exscan(self, sendbuf, recvbuf, op)


_NAMES = {
    _bcast: "Bcast",
    _gather: "Gather",
    _gatherv: "Gatherv",
    _scatter: "Scatter",
    _scatterv: "Scatterv",
    _allgather: "Allgather",
    _allgatherv: "Allgatherv",
    _alltoall: "Alltoall",
    _alltoallv: "Alltoallv",
    _alltoallw: "Alltoallw",
    _reduce: "Reduce",
    _allreduce: "Allreduce",
    _reduce_scatter_block: "Reduce_scatter_block",
    _reduce_scatter: "Reduce_scatter",
    _scan: "Scan",
    _exscan: "Exscan",
}
"""The blocking form's name of each plan."""

add_forms(IntracommCollectives, _Intracomm, {plan: _NAMES[plan] for plan in (_scan, _exscan)})
add_forms(Collectives, _Comm, {plan: name for plan, name in _NAMES.items() if plan not in (_scan, _exscan)})

_SHARES = "; MIN, MAX: to the lowest rank that holds the extremum; PROD: times the product of the other ranks' x"


def describe(names: Sequence[str], adjoint: str, owner: str = "Comm", buffers: Sequence[str] = ()) -> None:
    """Enter operations in all three forms."""
    reads, writes = buffers or ("sendbuf", "recvbuf")
    for name in names:
        for form in (name, f"I{name[0].lower()}{name[1:]}", f"{name}_init"):
            enter(Operation(owner, form, Treatment.DIFFERENTIATED, (reads,), (writes,), adjoint))


for _name in ("Barrier", "Ibarrier", "Barrier_init"):
    enter(
        Operation(
            "Comm", _name, Treatment.PASSES, adjoint="none: it orders nothing that the sweep does not order itself"
        )
    )
describe(("Bcast",), "Reduce(SUM) of x̄ to the root", buffers=("buf", "buf"))
describe(("Gather", "Gatherv"), "Scatterv of ȳ from the root")
describe(("Scatter", "Scatterv"), "Gatherv of ȳ to the root")
describe(("Allgather", "Allgatherv"), "Reduce_scatter(SUM) of ȳ")
describe(("Alltoall", "Alltoallv", "Alltoallw"), "the transposed Alltoallv of ȳ")
describe(("Reduce",), "Bcast of ȳ from the root" + _SHARES)
describe(("Allreduce",), "Allreduce(SUM) of ȳ" + _SHARES)
describe(("Reduce_scatter_block", "Reduce_scatter"), "Allgatherv of ȳ" + _SHARES)
describe(("Scan", "Exscan"), "SUM: suffix sums of ȳ; else a carry from rank to rank, downwards", "Intracomm")
