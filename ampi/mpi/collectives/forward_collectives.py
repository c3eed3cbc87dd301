"""Forward mode of collectives on buffers.

Movements of data and sums are linear: the tangent goes by the same operation, called with the same arguments but for
the memory, in whose place stands that of its tangents, which has the same layout.  It runs on the reverse communicator
beside the operation itself, which it begins before.  Other reductions combine pairs of a value and its tangent by an
operation that is made of the derivative of theirs: at a tie the lowest rank's counts, as in reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...tape import Push, Tape, lanes_of, no_tangent, where_called
from ..base.call_sites import name_of
from ..log.reverse import COLLECTIVE_TAG, Reverse, reverse_of
from ..memory.argument_forms import is_in_place
from ..memory.buffers import NOTHING, arrive
from ..memory.tangents import set_tangent, tangent_in
from ..waiting.arrivals_seen import has_ended
from ..waiting.notices import stranded
from ..waiting.waiting import wait
from . import collective_calls
from .collective_calls import Call
from .forward_arguments import Arguments
from .reduction_plans import refusal
from .reductions import Reduction, known
from .reductions_forward import combination, elements_with_tangents

_Comm, _Intracomm, _Topocomm = mpi.Comm, mpi.Intracomm, mpi.Topocomm  # mpi4py's own: the names may be rebound
_Op = mpi.Op


class TangentCall:
    """The tangent's part in a collective call of this rank.

    Attributes
    ----------
    finish : callable
        Waits for it and puts the tangents where they belong.
    """

    __slots__ = ("finish",)

    def __init__(self, finish: Callable[[], None]) -> None:
        self.finish = finish


def perform(comm: Any, operation: Any, primal: Callable, arguments: Sequence[Any], tape: Tape) -> None:
    """Run a blocking collective in forward mode."""
    if tape.before_append is not None:
        tape.before_append()
    call = operation.call(comm, arguments)
    try:
        tangent = begin(comm, operation, call, operation.given(arguments, {}), tape, False)
        undo = call.overwrite()
        if undo:
            tape.append(None, undo)
        try:
            primal(comm, *arguments)
        except BaseException:
            stranded.append(tangent)  # MPI may still use its memory
            raise
        for buffer in call.writes:
            buffer.activate(tape)
        tangent.finish()
    finally:
        call.detach()


def start(
    comm: Any, operation: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], tape: Tape
) -> ForwardStarted:
    """Before a collective with a request starts in forward mode."""
    if tape.before_append is not None:
        tape.before_append()
    call = operation.call(comm, arguments, keywords, started=True)
    tangent = begin(comm, operation, call, operation.given(arguments, keywords), tape, True)
    undo = call.overwrite()
    if undo:
        tape.append(None, undo)
    for buffer in call.writes:
        buffer.activate(tape)
    started = ForwardStarted(tangent, next(iter(call.writes), NOTHING), f"{call.name} at {where_called()}")
    call.detach()
    return started


class ForwardStarted:
    """What the request of a collective completes in forward mode."""

    __slots__ = ("buffer", "describe", "request", "tangent", "wild")
    active = True

    def __init__(self, tangent: TangentCall, buffer: Any, what: str) -> None:
        self.tangent = tangent
        self.buffer = buffer
        self.describe = lambda: what
        self.request: Any = None
        self.wild = False

    def resolve(self, status: mpi.Status | None) -> None:
        """The request has completed."""
        if self.request is not None:
            self.request.held = None
            self.request = None
            arrive(self.buffer, -1)
            self.tangent.finish()

    def completed(self) -> bool:
        """Whether the request has been completed, be it by a method that ampi does not see."""
        return has_ended(self.request)

    def take_back(self, tape: Tape, error: BaseException) -> None:
        """MPI has refused to start it."""
        stranded.append(self.tangent)  # MPI may still use its memory


def begin(comm: Any, operation: Any, call: Call, given: dict[str, Any], tape: Tape, started: bool) -> TangentCall:
    """Before the operation itself: begin what its tangent does; ``given`` are the arguments by name."""
    push: Push = tape.forward
    reverse = reverse_of(comm)
    active = any([buffer.active(tape) for buffer in call.reads])
    if reverse is None:
        if active:
            raise CommunicationError(
                f"{call.name} of an active array on {name_of(comm)}, which has no reverse communicator because it was "
                "made from mpi4py's own; make it from ampi.COMM_WORLD"
            )
        return TangentCall(lambda: _forget(push, call))
    reverse.ready()
    if reverse.broken:
        raise CommunicationError(f"{name_of(comm)} cannot be used for derivatives any more: {reverse.broken}")
    if active:
        call.check_counts(comm)
    op = given.get("op")
    if op is not None and not _is_of_integers(call):
        rule = known(op)
        if rule is None and not active:
            raise no_tangent(f"{call.name} with an operation without derivative")
        refused = refusal(op, rule, call.reads[0]) if active and (rule is None or rule.partials is None) else ""
        if refused:
            raise ActivityError(f"{call.name}: {refused}")
    return tangent_of_call(comm, operation, call, given, push, reverse, started, None if op is None else rule_of(op))


def tangent_of_call(
    comm: Any,
    operation: Any,
    call: Call,
    given: dict[str, Any],
    push: Push,
    reverse: Reverse,
    started: bool,
    rule: tuple[int, Reduction | None] | None,
    values: Callable[[], np.ndarray] | None = None,
) -> TangentCall:
    """Begin what the tangent of a call does that nothing is wrong with.

    ``rule`` is what is known of the operation of a reduction (`rule_of`), which may have been freed; ``values()`` gives
    those that an operation which is not linear works on, if they are not in memory.
    """
    describe = lambda: f"the tangent of {call.name} on {reverse.name}"
    if rule is not None and _is_of_integers(call):
        return TangentCall(lambda: None)
    compare = None if push.lanes is None else _count(push, reverse, describe)
    if compare is not None and not started:
        compare()  # now: Open MPI mixes up a nonblocking reduction with a Reduce_scatter that overtakes it
    begun = []
    try:
        for lane in lanes_of(push):
            if rule is None or rule[1].partials is None:  # type: ignore[union-attr]
                begun.append(_linear(comm, operation, call, given, lane, reverse, describe))
            else:
                begun.append(_by_pairs(operation, call, given, lane, reverse, rule, describe, values))
    except BaseException:  # of MPI's, for wrong arguments: no other call will wait for the comparison
        if compare is not None and started:
            compare()
        raise
    if compare is None:
        return begun[0]

    def finish() -> None:
        if started:
            compare()
        for tangent in begun:
            tangent.finish()

    return TangentCall(finish)


def _count(push: Push, reverse: Reverse, describe: Callable[[], str]) -> Callable[[], None]:
    """In vector mode, once on each communicator: begin to compare with all ranks in how many directions they go; what
    is given back waits for that."""
    key = "directions", reverse
    if key in push.state:
        return lambda: None
    push.state[key] = True
    here = len(push.lanes)
    mine, most = np.array([here, -here]), np.zeros(2, np.int64)
    inside = reverse.comm if reverse.local is None else reverse.local
    request = inside.Iallreduce(mine, most, mpi.MAX)

    def finish(mine: np.ndarray = mine) -> None:  # which MPI reads until then
        wait(request, describe, reverse)
        if most[0] != -most[1]:
            raise CommunicationError(
                f"rank {reverse.rank}: ampi.jvp goes in {here} directions here, and on the ranks of {reverse.name} in "
                f"{-most[1]} to {most[0]}: the leading axis of the tangents must be as long on all ranks"
            )

    return finish


def _forget(push: Push, call: Call) -> None:
    for buffer in call.writes:
        set_tangent(push, buffer, None)


def _are_whole_numbers(operation: Any, given: dict[str, Any]) -> bool:
    """Whether the arguments are arrays of integers: so they are on all ranks, and there are no tangents."""
    arrays = [given[name] for name in set(operation.buffers) if given.get(name) is not None]
    arrays = [a for a in arrays if not is_in_place(a)]
    whole = [isinstance(a, np.ndarray) and a.dtype.kind in "iub" and a.dtype.itemsize > 1 for a in arrays]
    return bool(whole) and all(whole)


def rule_of(op: Any) -> tuple[int, Reduction | None]:
    """What is known of an operation: its handle and its rule."""
    return op.handle, known(op)


def _is_of_integers(call: Call) -> bool:
    """Whether a reduction is one of integers, which no byte of a floating-point number can be part of."""
    buffers = [buffer for buffer in (*call.reads, *call.writes) if buffer is not NOTHING]
    whole = [b.dtype is not None and b.dtype.kind in "iub" and not (b.raw or b.mixed) for b in buffers]
    return bool(whole) and all(whole)


# ---------------------------------------------------------------------------------------------- linear operations


def _linear(
    comm: Any,
    operation: Any,
    call: Call,
    given: dict[str, Any],
    push: Push,
    reverse: Reverse,
    describe: Callable[[], str],
) -> TangentCall:
    if _are_whole_numbers(operation, given):
        return TangentCall(lambda: None)
    found = Arguments(comm, operation, call, given, push)
    arguments, check = found.of_tangents, found.finish
    name = operation.name
    if name.startswith("Neighbor"):  # the topology is the communicator's own
        requests = [getattr(_Topocomm, _nonblocking(name))(comm, **arguments)]
    elif name == "Bcast" and comm.Is_inter():
        requests = _broadcast_between(reverse.comm, **arguments)
    else:
        requests = [getattr(type(reverse.comm), _nonblocking(name))(reverse.comm, **arguments)]

    def finish() -> None:
        for request in requests:
            wait(request, describe, reverse)
        arguments.clear()
        check()

    return TangentCall(finish)


def _broadcast_between(comm: Any, buf: Any, root: int) -> list[mpi.Request]:
    """Ibcast from one group to the other, in messages: it hangs or goes wrong in each MPI where two are under way."""
    if root == mpi.ROOT:
        return [comm.Isend(buf, rank, COLLECTIVE_TAG) for rank in range(comm.Get_remote_size())]
    return [] if root == mpi.PROC_NULL else [comm.Irecv(buf, root, COLLECTIVE_TAG)]


def _nonblocking(name: str) -> str:
    return f"I{name[0].lower()}{name[1:]}"


# ------------------------------------------------------------------------------------------- pairs with tangents


def _by_pairs(
    operation: Any,
    call: Call,
    given: dict[str, Any],
    push: Push,
    reverse: Reverse,
    rule: tuple[int, Any],
    describe: Callable[[], str],
    values: Callable[[], np.ndarray] | None,
) -> TangentCall:
    x, y = (next(iter(buffers), NOTHING) for buffers in (call.reads, call.writes))
    known_by = x if y is NOTHING else y
    dtype = np.dtype(np.float64) if known_by is NOTHING else known_by.dtype
    located = rule[1].located
    if x.raw or (x is not NOTHING and x.mixed != located) or dtype is None or dtype.kind not in "fc":
        raise no_tangent(f"{call.name} of another datatype than the memory's own")
    elements = elements_with_tangents(dtype, located)
    combined, pair = _combining(push, *rule, elements)
    going = np.zeros(x.count, elements)
    if x is not NOTHING:
        found = None if values is None else values()
        going["tangent"] = tangent_in(push, x)
        if located:
            going["value"] = x.values() if found is None else found["value"]
            going["location"] = x.others(np.dtype(np.intc)) if found is None else found["location"]
        else:
            going["value"] = x.values() if found is None else found
    coming = np.zeros(x.count if y is NOTHING else y.count, elements)
    comm, name = reverse.comm, operation.name
    arguments: list[Any] = [[going, pair], [coming, pair]]
    if name == "Reduce":
        arguments += [combined, given["root"]]
        if comm.Is_inter() and given["root"] in (mpi.ROOT, mpi.PROC_NULL):
            arguments[0] = None
            if given["root"] == mpi.PROC_NULL:
                arguments[1] = None
        elif comm.Is_inter() or comm.Get_rank() != given["root"]:
            arguments[1] = None
    elif name == "Reduce_scatter":
        counts = np.empty(comm.Get_size(), np.int64)
        inside = comm if reverse.local is None else reverse.local
        wait(inside.Iallgather(np.array([y.count], np.int64), counts), describe, reverse)
        arguments += [counts.tolist(), combined]
    else:
        arguments.append(combined)
    request = getattr(type(comm), _nonblocking(name))(comm, *arguments)

    def finish() -> None:
        wait(request, describe, reverse)
        if arguments[1] is not None and y is not NOTHING:
            set_tangent(push, y, np.ascontiguousarray(coming["tangent"]))
        arguments.clear()

    return TangentCall(finish)


def _combining(push: Push, handle: int, rule: Reduction, elements: np.dtype) -> tuple[Any, Any]:
    """The operation on elements of a value, its tangent (and its location), and their datatype: one for all directions,
    since mpi4py has room for 32 operations."""
    push, key = push.whole, (handle, rule, elements)
    found = push.state.get(("pairs", key))
    if found is None:
        pair = mpi.BYTE.Create_contiguous(elements.itemsize).Commit()
        push.at_end(lambda error: pair.Free())  # type: ignore[attr-defined]
        if key in _left:
            found = push.state["pairs", key] = _left[key], pair
            return found
        combine = combination(handle, rule)

        def function(inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
            a, b = (np.frombuffer(buffer, elements) for buffer in (inbuf, inoutbuf))
            with np.errstate(all="ignore"):
                combine(a, b)

        made = _Op.Create(function, False)
        found = push.state["pairs", key] = made, pair
        push.at_end(lambda error: made.Free() if error is None else _left.__setitem__(key, made))
    return found


_left: dict[tuple[int, Reduction, np.dtype], mpi.Op] = {}
"""Operations that MPI may still call for what an error has left under way: they are used again, and not freed."""
stranded.append(_left)


collective_calls.tangent_of_call.append(tangent_of_call)
