"""Records of one-sided operations and epochs, and their adjoints on the shadow window.

The origin of an operation alone executes its adjoint: it fetches x̄ for a Put, and adds x̄ for a Get.  Operations whose
derivatives depend on values (PROD, MIN, MAX, MINLOC, MAXLOC) fetch the target's old value along with the primal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...tape import BaseAdjoint, Push, Sweep, lanes_of
from ..base.call_sites import call_site, line_of
from ..collectives.reductions import PAIR_TYPES, known, pair_of
from ..collectives.reductions_second import partials_of_pairs
from ..log.messages import Collective, CollectiveAdjoint
from ..memory.buffers import Buffer
from ..memory.datatypes import datatype_named
from ..memory.tangents import set_tangent
from ..waiting.waiting import wait
from .shadow import DONE, READY, Shadow, leave, shadow_of
from .target import Target

if TYPE_CHECKING:
    from .window import Window

_Win = mpi.Win  # mpi4py's own: the name in its module is rebound


LOCATED = (mpi.MINLOC, mpi.MAXLOC)
"""Operations on pairs of a value and a location."""
NONLINEAR = (mpi.PROD, mpi.MIN, mpi.MAX, *LOCATED)
"""Operations whose derivatives depend on values."""


def elements_of(buffer: Buffer) -> np.ndarray:
    """Return the elements that an atomic operation reads: values, or pairs of a value and a location."""
    if not buffer.mixed:
        return buffer.values()
    locations = buffer.others(np.dtype(np.intc))
    if len(locations) != buffer.count:
        raise ActivityError(
            "an atomic operation on a datatype that is neither of one dtype nor of pairs, on a window that may carry "
            "derivatives; use an operation for each dtype"
        )
    pairs = np.empty(buffer.count, pair_of(buffer.dtype))
    pairs["value"], pairs["location"] = buffer.values(), locations
    return pairs


def type_of(dtype: np.dtype) -> mpi.Datatype:
    """Return the datatype of values, or of pairs of a value and a location."""
    return datatype_named(dtype.char) if dtype.names is None else PAIR_TYPES[dtype["value"].char]


class Access(BaseAdjoint):
    """One operation on a target's memory, and its adjoint.

    Attributes
    ----------
    op : MPI.Op or None
        The operation on the target's memory; None if it is only read.
    origin : Buffer or None
        The buffer that was read on this rank, if it is active.
    result : Buffer or None
        The buffer that was received into on this rank, if it is tracked.
    old : Buffer or ndarray or None
        Receives the target's old value, if the derivative needs it or the operation has been postponed.
    request : object or None
        For an operation with a request that returns a result: the request's `Requested`.
    dots : list of (ndarray, ndarray)
        In second order, if the partial derivatives depend smoothly on values: the tangents of `values`, in each
        direction.
    """

    __slots__ = (
        *("_operand", "_sink", "_values", "dots", "name", "old", "op", "origin", "request", "result"),
        *("target", "where", "window"),
    )
    is_local = False
    second_order = "linear"
    propagates_tangents = True

    def __init__(
        self, name: str, window: Window, target: Target, op: mpi.Op | None, origin: Buffer | None, result: Buffer | None
    ) -> None:
        self.name = name
        self.window = window
        self.target = target
        self.op = op
        self.origin = origin
        self.result = result
        self.old: Any = None
        self.request: Any = None
        self.where = call_site()
        self._operand: np.ndarray | None = None
        self._sink: Buffer | None = None
        self._values: tuple[np.ndarray, np.ndarray] | None = None  # the target's before the operation, and the origin's
        self.dots: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def updates(self) -> bool:
        """True if it changes the target's memory."""
        return self.op is not None and self.op != mpi.NO_OP

    @property
    def nonlinear(self) -> bool:
        """True if the derivative depends on values."""
        return self.op in NONLINEAR

    @property
    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Values of a completed nonlinear operation: the target's before it, and the origin's."""
        return self._values  # type: ignore[return-value]

    def keep(self, source: Buffer, sink: Buffer | None) -> None:
        """Save what the derivative of a nonlinear operation needs, before it starts."""
        self._operand = elements_of(source)
        self.old = np.empty_like(self._operand) if sink is None else sink

    def postpone(self, source: Buffer | None, sink: Buffer | None) -> None:
        """Save what is needed to execute an atomic operation at the end of its epoch."""
        if source is None:
            self._operand = np.zeros(sink.count, pair_of(sink.dtype) if sink.mixed else sink.dtype)  # type: ignore
        else:
            self._operand = elements_of(source)
        self._sink = sink
        if sink is not None or self.nonlinear:
            self.old = np.empty_like(self._operand)

    def holds(self, buffer: Buffer) -> bool:
        """Return whether the operation will still write to the buffer's memory."""
        return buffer is self.old or buffer is self._sink

    def execute(self, win: Any) -> None:
        """Start the operation that was postponed, with ampi's datatypes: the user may have freed the original ones."""
        target, datatype = self.target, type_of(self._operand.dtype)  # type: ignore[union-attr]
        if not target.count:
            return
        operand = [self._operand, datatype]
        with target.argument(target.start, self.window.units[target.rank], datatype) as spec:
            if self.old is None:
                _Win.Accumulate(win, operand, target.rank, spec, self.op)
            else:
                _Win.Get_accumulate(win, operand, [self.old, datatype], target.rank, spec, self.op)

    def complete(self) -> None:
        """Complete the operation: the target's old value has arrived."""
        if self._operand is None:
            return
        x, old = self._operand, self.old
        if isinstance(old, Buffer):
            old = elements_of(old)
        if self._sink is not None:
            self._sink.store(old)
        if self.result is not None:
            self.result.detach()
        self._values = (old, x) if self.nonlinear else None
        self._operand = self.old = self._sink = None

    def take(self, sweep: Sweep) -> np.ndarray | None:
        """Return the result's adjoint, and set it to zero."""
        return None if self.result is None else self.result.take(sweep)

    def exchange(self, shadow: Shadow, going: np.ndarray | None) -> None:
        """Add the result's adjoint to the target's, and fetch the contribution to the origin's."""
        target = self.target
        if self.origin is not None and shadow.place(target) is None:
            raise CommunicationError(
                f"rank {self.window.reverse.rank}: {self.describe()}, puts an active array into memory that is not "
                f"tracked on rank {target.rank}; make the memory that is attached there with ampi.numpy"
            )
        if self.op is None:
            shadow.exchange(target, going, mpi.SUM, self.waiting)
        elif self.op == mpi.REPLACE:
            going = np.zeros(target.count, target.dtype) if going is None else going
            shadow.came[self] = shadow.exchange(target, going, mpi.REPLACE, self.waiting)
        elif self.nonlinear:
            after = shadow.exchange(target, None, mpi.NO_OP, self.waiting)
            before, shadow.came[self] = known(self.op).partials(*self._values, after)  # type: ignore
            if going is not None:
                before = before + going
            shadow.exchange(target, before, mpi.REPLACE, self.waiting)
        else:
            op = mpi.NO_OP if going is None else mpi.SUM
            shadow.came[self] = shadow.exchange(target, going, op, self.waiting)

    def exchange_pairs(self, shadows: Sequence[Shadow], going: Sequence[np.ndarray | None]) -> None:
        """Exchange adjoints and their tangents in second order, where partial derivatives have tangents."""
        value, *tangents = [shadow.exchange(self.target, None, mpi.NO_OP, self.waiting) for shadow in shadows]
        rule: Any = known(self.op)  # type: ignore[arg-type]
        pairs = []
        for dots, tangent in zip(self.dots, tangents):
            old, x = (np.stack(pair) for pair in zip(self.values, dots))
            with np.errstate(all="ignore"):
                pairs.append(partials_of_pairs(rule, old, x, np.stack([value, tangent])))
        (first, second), *_ = pairs
        found = [(first[0], second[0]), *((before[1], came[1]) for before, came in pairs)]
        for shadow, mine, (its, part) in zip(shadows, going, found):
            shadow.came[self] = part
            shadow.exchange(self.target, its if mine is None else its + mine, mpi.REPLACE, self.waiting)

    def collect(self, sweep: Sweep) -> None:
        """Mirror the start in a lock epoch; the exchange took place at the mirror of the completion."""
        shadow = shadow_of(sweep, self.window)
        came = None if shadow is None else shadow.came.pop(self, None)
        if self.origin is not None and came is not None:
            self.origin.add(sweep, came)

    def __call__(self, sweep: Sweep) -> None:
        """Reverse the access in an epoch of Fence or Start."""
        going = self.take(sweep)
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        if self.op is None:
            if going is not None:
                shadow.later.append((self.target, going))
            return
        shadow.add_what_precedes(self.target, self.waiting)
        self.exchange(shadow, going)
        self.collect(sweep)

    def tangent(self, push: Push) -> None:
        """In a walk: start to send the tangent in such an epoch; it arrives at the end of the epoch."""
        forward = shadow_of(push, self.window)
        if forward is None:
            self.forget(push)
            return
        forward.note(self, self.origin)
        forward.push(self)

    def forget(self, push: Push) -> None:
        """In a walk: set the tangent of the result to zero, since the window had no differentiable use."""
        if self.result is not None:
            set_tangent(push, self.result, None)

    def describe(self) -> str:
        """Describe it for error messages."""
        return f"{self.name} with target rank {self.target.rank} in {self.window.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"the adjoint of {self.describe()}"


class Begun(BaseAdjoint):
    """Record of the start of an access in a lock epoch, or of a postponed one: the origin is read now."""

    __slots__ = ("access",)
    is_local = False
    second_order = "linear"
    propagates_tangents = True

    def __init__(self, access: Access) -> None:
        self.access = access

    def __call__(self, sweep: Sweep) -> None:
        """Add to the origin's adjoint."""
        self.access.collect(sweep)

    def tangent(self, push: Push) -> None:
        """In a walk: save the tangent of the origin until the turn of the access."""
        forward = shadow_of(push, self.access.window)
        if forward is not None:
            forward.note(self.access, self.access.origin)


class Completed(BaseAdjoint):
    """Record of the completion of accesses to one target in a lock epoch, which share a ticket."""

    __slots__ = ("accesses", "rank", "ticket", "window")
    is_local = False
    second_order = "joint"
    batched = True
    touches_windows = False  # only under its ticket
    propagates_tangents = True

    def __init__(self, window: Window, rank: int, ticket: int, accesses: list[Access]) -> None:
        self.window = window
        self.rank = rank
        self.ticket = ticket
        self.accesses = accesses

    def __call__(self, sweep: Sweep) -> None:
        """Reverse the accesses, one after the other."""
        lanes = lanes_of(sweep)
        going = [(access, [access.take(lane) for lane in lanes]) for access in reversed(self.accesses)]
        shadows: list[Any] = [shadow_of(lane, self.window) for lane in lanes]
        if shadows[0] is None:
            return
        turns = shadows[0].turns
        turns.begin(self.rank, self.ticket, self.waiting)
        for access, adjoints in going:
            if access.dots:
                access.exchange_pairs(shadows, adjoints)
                continue
            for shadow, adjoint in zip(shadows, adjoints):
                access.exchange(shadow, adjoint)
        turns.end(self.rank, self.ticket)

    def tangent(self, push: Push) -> None:
        """In a walk: compute the tangents of the accesses, one after the other."""
        lanes = lanes_of(push)
        forward: list[Any] = [shadow_of(lane, self.window) for lane in lanes]
        if forward[0] is None:
            for lane in lanes:
                for access in self.accesses:
                    access.forget(lane)
            return
        turns = forward[0].turns
        turns.begin(self.rank, self.ticket, self.waiting)
        for each in forward:
            for access in self.accesses:
                each.push(access)
            each.settle()
        turns.end(self.rank, self.ticket)

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"its turn for {self.accesses[-1].waiting()}"


class _OfAllRanks(CollectiveAdjoint):
    """Record of a collective call on a window that moves no data itself."""

    __slots__ = ("window",)
    touches_windows = False
    propagates_tangents = True

    def __init__(self, window: Window, token: Collective) -> None:
        self.window = window
        self.token = token

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"the mirror of {self.token.describe()}"


class Fence(_OfAllRanks):
    """Record of a fence: closes an epoch of all ranks, opens another."""

    __slots__ = ()
    second_order = "linear"

    def __call__(self, sweep: Sweep) -> None:
        """Mirror the fence: close the mirror of the epoch that it opened."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.win.Sync()
        shadow.deliver(sweep, self.waiting)
        shadow.barrier(self.waiting)

    def tangent(self, push: Push) -> None:
        """In a walk: complete the tangents of the epoch that it closes."""
        forward = shadow_of(push, self.window)
        if forward is not None:
            forward.meet(self.waiting)


class Made(_OfAllRanks):
    """Record of the creation of a window: the sweep no longer needs its shadow."""

    __slots__ = ()
    second_order = "joint"
    batched = True

    def __call__(self, sweep: Sweep) -> None:
        """Close the shadow window, if it was opened at the mirror of the window's Free; collective."""
        if self.window in lanes_of(sweep)[0].state["passing windows"]:
            leave(sweep, self.window)

    def tangent(self, push: Push) -> None:
        """Do nothing: in a walk all shadow windows are open from the start."""


class Freed(_OfAllRanks):
    """Record of Free: the sweep opens the shadow window here."""

    __slots__ = ()
    second_order = "joint"
    batched = True

    def __call__(self, sweep: Sweep) -> None:
        """Open the shadow window when all ranks are here; collective."""
        opening = lanes_of(sweep)[0].state["opened windows"].pop(self.window, None)
        if opening is not None:
            reverse = self.window.reverse
            wait(reverse.comm.Ibarrier(), self.waiting, reverse)
            opening()

    def tangent(self, push: Push) -> None:
        """Do nothing: in a walk all shadow windows are open until its end."""


class Handshake(BaseAdjoint):
    """Record of Post, Start, Complete or Wait: in the sweep it notifies the other side, or waits for it."""

    __slots__ = ("name", "partners", "where", "window")
    is_local = False
    synchronizes = True
    second_order = "linear"
    touches_windows = False
    propagates_tangents = True

    def __init__(self, name: str, window: Window, partners: list[int]) -> None:
        self.name = name
        self.window = window
        self.partners = partners
        self.where = call_site()

    def __call__(self, sweep: Sweep) -> None:
        """Notify the other side, or wait for it."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.win.Sync()
        if self.name == "Wait":
            for origin in self.partners:
                shadow.send(sweep, origin, READY, [], self.waiting)
        elif self.name == "Complete":
            for target in self.partners:
                shadow.receive(target, READY, self.waiting)
        elif self.name == "Start":
            # The target adds them: only the target knows when it does not use its shadow.
            later = shadow.taken_later()
            for target in self.partners:
                entries = [entry for entry in later if entry[0].rank == target]
                shadow.send(sweep, target, DONE, entries, self.waiting)
        else:
            came = [shadow.receive(origin, DONE, self.waiting) for origin in self.partners]
            shadow.settle()
            for entries in came:
                shadow.add(entries, self.waiting)
        shadow.win.Sync()

    def tangent(self, push: Push) -> None:
        """In a walk: notify or wait in MPI's direction."""
        forward = shadow_of(push, self.window)
        if forward is not None:
            forward.shake_hands(push, self.name, self.partners, self.waiting)

    def meetings(self) -> list[tuple[Any, bool]]:
        """Return the counters that it shares with its partners, and whether each partner's call comes after it."""
        rank, identity = self.window.reverse.rank, self.window.reverse.identity
        kind, comes_first = (
            ("access" if self.name in ("Start", "Post") else "exposure"),
            self.name in ("Post", "Complete"),
        )
        pairs = [(rank, other) if self.name in ("Start", "Complete") else (other, rank) for other in self.partners]
        return [((kind, identity, *pair), comes_first) for pair in pairs]

    def describe(self) -> str:
        """Describe it for error messages."""
        return f"{self.name} in {self.window.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """Describe what is waited for, for messages."""
        return f"the mirror of {self.describe()}"
