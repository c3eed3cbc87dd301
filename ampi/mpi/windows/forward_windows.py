"""Tangents of one-sided communication: they pass through a shadow window as values pass through the window.

This holds in forward mode, and in second order while the program runs, when the operations are recorded for the sweep
as well.  The shadow window exposes the tangents of window memory.  It is made, collectively, with the window, or at the
first fence inside `ampi.jvp` or `ampi.hvp` of an older window.  The origin of an operation also applies it to the
target's tangents, in a passive epoch that lasts as long as the shadow.  All operations of an epoch are under way
together with the values, and complete before the call that ends the epoch ends it for other ranks.  Atomic operations
whose order matters are executed one after the other, as on a tape of reverse mode (`epochs`), and so are those on their
tangents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError, CommunicationError
from ...memory.storages import Storage, address_of
from ...tape import Push, Tape, lanes_of, no_tangent, where_called
from ..collectives.reductions import known
from ..collectives.reductions_second import is_nonlinear
from ..log.log import communication_of
from ..memory.buffers import Buffer
from ..memory.tangents import set_tangent, tangent_in
from ..messages.forward import ForwardLog
from ..waiting.notices import stranded
from ..waiting.waiting import wait
from .access import Access
from .shadow import Exchange, Shadow
from .target import Target, target_of
from .window import Window

_Win = mpi.Win  # mpi4py's own: the name in its module is rebound

_COMPLETED = 1  # key of the message from the origin of an epoch of Start at its end
_MOST_ATTACHED = 256


class ForwardShadow(Shadow):
    """The window on the tangents of window memory, while `ampi.jvp` or the program of `ampi.hvp` runs, or in a walk.

    Parameters
    ----------
    attached : iterable of Storage, optional
        For a dynamic window, in a walk: all memory that was attached at some time.
    """

    __slots__ = ("_directory", "_listed", "push")

    def __init__(self, push: Push, window: Window, attached: Iterable[Storage] | None = None) -> None:
        self.push = push
        self.window = window
        self.places = None
        self.visiting = set()
        self.later = []
        self.turns = None
        self.blocks = {}
        self._directory: Any = None
        comm, storage = window.reverse.comm, window.storage
        if window.attached is not None:
            self._open_dynamic(comm, window.attached if attached is None else attached)
        elif window.segments is not None or window.shared:
            self.win = _Win.Allocate_shared(window.nbytes, 1, comm=comm)
            block = self._segment(window.reverse.rank)
            block[:] = push.block(storage) if push.has_block(storage) else 0  # type: ignore[arg-type]
            self._share(storage, block)  # type: ignore[arg-type]
            for rank, segment in (window.segments or {}).items():
                self.know(rank, segment)
        else:
            whole = np.zeros(window.nbytes, np.uint8) if storage is None else push.block(storage)
            offset = 0 if storage is None else window.offset
            self.block = whole[offset : offset + window.nbytes]
            self.win = _Win.Create(self.block, 1, comm=comm)
        self.win.Lock_all()
        comm.Barrier()

    def know(self, rank: int, segment: Storage) -> None:
        """Share the tangents of another rank's memory in a shared window."""
        self._share(segment, self._segment(rank))

    def _share(self, storage: Storage, block: np.ndarray) -> None:  # type: ignore[override]
        self.push.adopt(storage, block)
        self.blocks[storage] = block

    def _open_dynamic(self, comm: mpi.Intracomm, attached: Iterable[Storage]) -> None:
        """Open the shadow of a dynamic window: the places of tangents of attached memory are read from the target."""
        self.win = _Win.Create_dynamic(comm=comm)
        self._listed = np.zeros((_MOST_ATTACHED, 3), np.int64)
        self._directory = _Win.Create(self._listed, 8, comm=comm)
        self._directory.Lock_all()
        for storage in attached:
            self.attach(storage)

    def attach(self, storage: Storage) -> None:
        """Attach the tangents of memory that this rank attaches."""
        if storage in self.blocks or not storage.nbytes:
            return
        if len(self.blocks) == _MOST_ATTACHED:
            raise no_tangent(f"a dynamic window with more than {_MOST_ATTACHED} arrays attached")
        block = self.push.block(storage)
        self.win.Attach(block)
        self._listed[len(self.blocks)] = storage.address, storage.nbytes, address_of(block)
        self.blocks[storage] = block
        self._directory.Sync()

    def place(self, target: Target) -> int | None:
        """Return the displacement of a target's elements in the shadow window; None if its memory is not tracked."""
        if self._directory is None:
            return target.start
        listed = np.zeros((_MOST_ATTACHED, 3), np.int64)
        self._directory.Get(listed, target.rank)
        self._directory.Flush(target.rank)
        for address, nbytes, block in listed[::-1].tolist():
            if nbytes and address <= target.start and target.stop <= address + nbytes:
                return target.start - address + block
        return None

    def free(self) -> None:
        """Free the shadow window at the end of the program; collective."""
        self.barrier(lambda: f"the end of the other ranks' part in {self.window.reverse.name}")
        self.win.Unlock_all()
        if self._directory is not None:
            for block in self.blocks.values():
                self.win.Detach(block)
            self._directory.Unlock_all()
            self._directory.Free()
        elif self.blocks:  # their memory ends with the window
            for storage, block in self.blocks.items():
                self.push.adopt(storage, block.copy())
        self.win.Free()


class ForwardTrace:
    """The operations of this rank on a window in forward mode, instead of a `trace.Trace`.

    It has a shadow window for each direction.
    """

    pushes = True

    __slots__ = (
        *("_noted", "access_epoch", "accesses", "announced", "attached", "epoch", "exposure", "heard", "shadows"),
        *("tape", "token", "under_way", "window"),
    )

    def __init__(self, tape: Tape, window: Window, shadows: list[ForwardShadow]) -> None:
        self.tape = tape.reference
        self.window = window
        self.shadows = shadows
        self._noted: dict[Access, list[np.ndarray]] = {}  # tangents of the origin buffers
        self.under_way: dict[Access, list[Exchange]] = {}
        self.token = SimpleNamespace(reads_active=False)  # it is used by sweeps only
        self.attached: dict[Storage, Any] = {}
        self.accesses: list[Access] = []
        self.access_epoch: Any = None
        self.exposure: Any = None
        self.epoch = False
        self.announced: dict[int, int] = {}
        self.heard: dict[int, int] = {}

    def refuse(self, text: str) -> None:
        """Raise the error that forward mode cannot differentiate an operation."""
        raise no_tangent(text)

    def announce(self) -> None:
        """Do nothing: there is no sweep."""

    def begin(self, access: Access) -> None:
        """Start an access in a lock epoch."""
        self.window.incomplete.append((self, access))  # type: ignore[arg-type]

    def draw(self, rank: int, accesses: list[Access]) -> None:
        """Note that accesses to a target's memory are complete."""
        for access in accesses:
            if access.request is not None:
                access.request.end()

    def note(self, access: Access, source: Buffer | None) -> None:
        """Save the tangent of an operation's origin buffer, before the operation starts."""
        self._noted.pop(access, None)
        if access.origin is not None:
            self._noted[access] = [tangent_in(shadow.push, source) for shadow in self.shadows]

    def push(self, access: Access) -> None:
        """Apply an operation to the target's tangents.

        If this needs no values, it is under way until `settle`, together with the values and other operations.  If it
        does, the values have arrived, and it is executed after all operations that are under way.
        """
        if not access.nonlinear:
            if access not in self.under_way:
                self.under_way[access] = [self._started(access, *each) for each in self._by_shadow(access)]
            return
        self.settle()
        for shadow, x_dot in self._by_shadow(access):
            self._combine(access, shadow, x_dot)
        self._noted.pop(access, None)

    def _started(self, access: Access, shadow: ForwardShadow, x_dot: np.ndarray | None) -> Exchange:
        reads = not access.updates or (access.op == mpi.SUM and x_dot is None)
        return shadow.begin(access.target, x_dot, mpi.NO_OP if reads else access.op)

    def settle(self) -> None:
        """Complete the operations that are under way."""
        under_way, self.under_way = self.under_way, {}
        for access, exchanges in under_way.items():
            for shadow, exchange in zip(self.shadows, exchanges):
                shadow.await_request(exchange, access.waiting)
        for access, exchanges in under_way.items():
            for shadow, exchange in zip(self.shadows, exchanges):
                shadow.flush(exchange)
                if access.result is not None:
                    set_tangent(shadow.push, access.result, exchange.came)
            self._noted.pop(access, None)

    def _by_shadow(self, access: Access) -> Iterator[tuple[ForwardShadow, np.ndarray | None]]:
        """Iterate over the shadows, each with the tangent of an operation's origin buffer."""
        for shadow, x_dot in zip(self.shadows, self._noted.get(access, [None] * len(self.shadows))):
            if x_dot is not None and shadow.place(access.target) is None:
                raise CommunicationError(
                    f"rank {self.window.reverse.rank}: {access.describe()}, puts an active array into memory that is "
                    f"not tracked on rank {access.target.rank}; make the memory that is attached there with ampi.numpy"
                )
            yield shadow, x_dot

    def _combine(self, access: Access, shadow: ForwardShadow, x_dot: np.ndarray | None) -> None:
        """Apply an operation whose derivative needs the target's values to its tangents."""
        target = access.target
        came = shadow.exchange(target, None, mpi.NO_OP, access.waiting)
        rule: Any = known(access.op)  # type: ignore[arg-type]
        if self.tape().tangents is not None and is_nonlinear(rule, access.values[0]):
            access.dots.append((came, np.zeros_like(came) if x_dot is None else x_dot))
        with np.errstate(all="ignore"):
            of_old, of_x = rule.partials(*access.values, np.ones(target.count, target.dtype))
            new = np.conj(of_old) * came
            if x_dot is not None:
                new += np.conj(of_x) * x_dot
        shadow.exchange(target, new, mpi.REPLACE, access.waiting)
        if access.result is not None:
            set_tangent(shadow.push, access.result, came)

    def shake(self, name: str, partners: list[int]) -> None:
        """Mirror Post, Start, Complete or Wait, between which tangents are accessed as well."""
        log: Any = log_of(self.tape(), self.window)
        self.settle()
        self.sync()
        for rank in partners:
            if name == "Start":
                self.window.order.await_post(rank, self.window.starts[rank])
            elif name == "Complete":
                number = self.announced[rank] = self.announced.get(rank, 0) + 1
                describe = lambda: f"the end of an epoch of Start in {self.window.reverse.name}"
                log.send_aside(rank, (_COMPLETED, number), np.zeros(0, np.uint8), describe)
            elif name == "Wait":
                number = self.heard[rank] = self.heard.get(rank, 0) + 1
                describe = lambda: f"the tangents of an epoch of Post in {self.window.reverse.name}"
                log.receive_aside(rank, _COMPLETED, number, 2, describe)
        self.sync()

    def sync(self) -> None:
        """Synchronise memory with the operations of other ranks."""
        for shadow in self.shadows:
            shadow.win.Sync()


def push_of(tape: Tape) -> Any:
    """Return the `Push` that computes tangents beside the program; None in reverse mode."""
    return tape.forward if tape.tangents is None else tape.tangents


def log_of(tape: Tape, window: Window) -> ForwardLog:
    """Return the log of the messages that accompany a window's operations, on its reverse communicator."""
    log: Any = communication_of(tape).log(window.reverse)
    log.used = True
    return log


def open_shadow(tape: Tape, window: Window) -> ForwardTrace:
    """Make the shadow of a window; collective over it."""
    log_of(tape, window)
    push = push_of(tape)
    traces: dict[Window, ForwardTrace] | None = push.state.get("windows")
    if traces is None:
        traces = push.state["windows"] = {}
        push.at_end(lambda error: _close(traces, error))
    trace = traces[window] = ForwardTrace(tape, window, [ForwardShadow(lane, window) for lane in lanes_of(push)])
    return trace


def close_shadow(tape: Tape, window: Window) -> None:
    """Free the shadow of a window that has been freed; collective over it."""
    trace = push_of(tape).state.get("windows", {}).pop(window, None)
    if trace is not None:
        trace.settle()
        for shadow in trace.shadows:
            shadow.free()


def _close(traces: dict[Window, ForwardTrace], error: BaseException | None) -> None:
    if error is not None:
        stranded.append(traces)
        return
    for trace in traces.values():
        trace.settle()
    for trace in traces.values():
        for shadow in trace.shadows:
            shadow.free()


def forward_trace(tape: Tape, window: Window) -> ForwardTrace:
    """Return the trace of a window in forward mode."""
    trace = push_of(tape).state.get("windows", {}).get(window)
    if trace is None:
        name = "ampi.jvp" if tape.tangents is None else "ampi.hvp"
        raise no_tangent(
            f"{window.reverse.name} that was made before {name}, and is used there before its first Fence: make it "
            "inside the function; it"
        )
    return trace


def open_at_fence(tape: Tape, window: Window) -> ForwardTrace:
    """Return the trace of a window at a fence of all ranks; collective if the window has no shadow yet."""
    trace = push_of(tape).state.get("windows", {}).get(window)
    if trace is not None:
        return trace
    reverse = window.reverse
    ranks = np.array([1], np.int64)
    name = "ampi.jvp" if tape.tangents is None else "ampi.hvp"
    wait(reverse.comm.Iallreduce(mpi.IN_PLACE, ranks), lambda: f"{name} on all ranks of {reverse.name}", reverse)
    return open_shadow(tape, window)


def fenced(tape: Tape, window: Window, assertion: int) -> None:
    """Synchronise the shadows after a fence."""
    trace = forward_trace(tape, window)
    if assertion & mpi.MODE_NOPRECEDE:  # MPI may let ranks continue before the others are here
        trace.shadows[0].barrier(lambda: f"a fence of {window.reverse.name}")
    trace.sync()


def check_lost(
    trace: ForwardTrace, access: Access | None, name: str, rank: int, spec: Any, given: Any, sink: Buffer
) -> None:
    """Raise an error if tangents are received from a target into memory where they would be lost."""
    window = trace.window
    if not sink.loses or not sink.nbytes or not window.tracked[rank] or sink.dtype is None or sink.raw or sink.mixed:
        return
    if sink.dtype.kind not in "fc":
        return
    if access is None:
        target = target_of(rank, window.units[rank], spec, given, sink.dtype)
        access = Access(name, window, target, None, None, None)
    trace.settle()
    if any(shadow.exchange(access.target, None, mpi.NO_OP, access.waiting).any() for shadow in trace.shadows):
        raise ActivityError(
            f"{name} at {where_called()}: the data of rank {rank} carry derivatives, but are received into memory "
            "that is not tracked, where they would be lost; make the array with ampi.numpy"
        )
