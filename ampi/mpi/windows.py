"""One-sided communication: windows, what is done through them, and epochs.

The target of a Put or Get makes no call that a tape could record.  In a sweep every rank of a window therefore exposes
the adjoint of its window memory through a *shadow window*, and the origin alone does the adjoint of what it did:
fetches x̄ for a Put, accumulates x̄ for a Get.  Epochs are mirrored, each kind in its own way.

Two things follow for window memory.  Others overwrite it unseen, so values that an adjoint needs are copied when they
are used (`Storage.volatile`), and it counts as active from the beginning of a tape.  And others add to its adjoint:
where both a rank itself and others may read a location in one epoch, what the others add has to wait for the end of the
mirrored epoch, when the rank does not touch its shadow.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import ActivityError, CommunicationError
from ..memory import Storage, address_of, carries_derivatives, plain, storage_of, track_block
from ..tape import Sweep, Tape, at_opening, current, living, opened, overwrite
from .agreement import call_site, communication_of, line_of, wait
from .buffers import Buffer, _inferred, _typemap, as_array, parse, simple_form
from .datatypes import Typemap, datatype_named, regrouped, typemap_of
from .messages import Collective
from .requests import AcceptsBase, Handles
from .reverse import FIRST_TAG, Reverse, name_of
from .rules import Operation, Treatment, enter
from .waiting import Patience, outbox_of, stranded

_Win, _Comm, _Group = mpi.Win, mpi.Comm, mpi.Group  # mpi4py's own: the names in its module are rebound

# Tags on a window's reverse communicator: of Wait, of Start, and of what a fence delivers.
_READY, _DONE, _LATER = FIRST_TAG, FIRST_TAG + 1, FIRST_TAG + 2


class Window:
    """What ampi knows of a window.

    Attributes
    ----------
    reverse : Reverse
        For what the ranks say to one another in a sweep.
    storage : Storage or None
        Of this rank's memory; None if it is not tracked.
    offset, nbytes : int
        The window in its storage.
    units : list of int
        Displacement unit of each rank.
    tracked : list of bool
        Whether the memory of each rank is tracked.
    posted, started : list of int
        Ranks of the present epochs of Post and Start.
    locked : set of int
        Ranks of the present epochs of Lock and Lock_all.
    segments : set of int
        Addresses of other ranks' memory that is shared and known here.
    freed : bool
    """

    __slots__ = (
        "__weakref__",
        "freed",
        "locked",
        "nbytes",
        "offset",
        "posted",
        "reverse",
        "segments",
        "started",
        "storage",
        "tracked",
        "units",
    )

    def __init__(self, reverse: Reverse, storage: Storage | None, address: int, nbytes: int, unit: int) -> None:
        self.reverse = reverse
        self.storage = storage
        self.offset = 0 if storage is None else address - storage.address
        self.nbytes = nbytes
        facts = reverse.comm.allgather((unit, storage is not None))
        self.units = [fact[0] for fact in facts]
        self.tracked = [fact[1] for fact in facts]
        self.posted: list[int] = []
        self.started: list[int] = []
        self.locked: set[int] = set()
        self.segments: set[int] = set()
        self.freed = False


class Elsewhere(Storage):
    """Memory of another rank in a shared window.  What is loaded from and stored to it cannot be reversed."""

    __slots__ = ()

    @property
    def tape(self) -> None:  # type: ignore[override]
        """No tape: an error while one records."""
        if current() is not None:
            _refuse_segment()

    @tape.setter
    def tape(self, tape: Any) -> None:
        if tape is not None:
            _refuse_segment()


def _refuse_segment() -> None:
    raise ActivityError(
        "loads from and stores to another rank's memory in a shared window have no derivative rule; use Get and Put, "
        "or `with ampi.passive():` if it is constant"
    )


_windows: dict[int, Window] = {}  # by handle, in the order of their creation


def _alive(window: weakref.ref[Window]) -> Window | None:
    found = window()
    return None if found is None or found.freed else found


def _reverse_for(win: Any, comm: Any) -> Reverse:
    group = _Comm.Get_group(comm)
    reverse = Reverse(_Comm.Create(comm, group), _Comm.Get_rank(comm), f"a window of {name_of(comm)}")
    group.Free()
    return reverse


def _register(win: Any, comm: Any, unit: int, memory: Any = None) -> Any:
    """Know a new window; collective over it.  Without memory of the user's MPI has allocated it."""
    reverse = _reverse_for(win, comm)
    if memory is None:
        buffer = _Win.tomemory(win)
        address, nbytes = buffer.address, buffer.nbytes
        storage = Storage(address, nbytes)
        window = Window(reverse, storage, address, nbytes, unit)
        reference = weakref.ref(window)
        window.storage = track_block(address, nbytes, lambda: _alive(reference))
    else:
        array = None if isinstance(memory, mpi.BottomType) else as_array(memory)
        known = None if array is None or not carries_derivatives(_dtype_of(array)) else storage_of(array)
        address, nbytes = (0, 0) if array is None else (address_of(array), array.nbytes)
        window = Window(reverse, known, address, nbytes, unit)
    _windows[win.handle] = window
    storage = window.storage
    if storage is not None and not storage.volatile:
        tape = opened()
        undo = overwrite(plain(as_array(memory))) if memory is not None else []
        storage.volatile = True
        if tape is not None and undo:
            tape.append(None, undo)
    if opened() is not None:
        _trace(opened(), window)
    return win


def _dtype_of(array: np.ndarray) -> np.dtype:
    """Dtype of the memory that an array, perhaps of bytes, looks at."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if carries_derivatives(base.dtype):
            return base.dtype
        base = base.base.obj if isinstance(base.base, memoryview) else base.base
    return array.dtype


# ------------------------------------------------------------------------------------------------- while recording


class Trace:
    """What a rank did with a window while a tape recorded.

    Attributes
    ----------
    token : Collective
        For the agreement: whether anything differentiable happened through the window on any rank.
    refused : str
        Why it cannot be differentiated, if it happens to be necessary.
    accesses : list of Access
        Since the last fence.
    epoch : bool
        An epoch was opened while the tape recorded.
    """

    __slots__ = ("accesses", "epoch", "refused", "token", "window")

    def __init__(self, tape: Tape, window: Window) -> None:
        self.window = window
        self.token = self.log(tape, "Win", False, window.storage is not None)
        self.refused = ""
        self.accesses: list[Access] = []
        self.epoch = False

    def log(self, tape: Tape, name: str, active: bool, tracked: bool) -> Collective:
        """Log something collective."""
        token = Collective(name, self.window.reverse, active, tracked, False)
        communication_of(tape).log(self.window.reverse).collectives.append(token)
        return token

    def refuse(self, text: str) -> None:
        """The sweep cannot reverse what happens here."""
        self.refused = self.refused or f"{text}, {line_of(call_site())}"


class Traces:
    """What a rank did with windows while a tape recorded; called at the beginning of each sweep."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[Window, Trace] = {}

    def __call__(self, sweep: Sweep) -> None:
        """Expose the adjoints of window memory; collective over each window that was used."""
        shadows: dict[Window, Shadow] = {}
        sweep.state["windows"] = shadows
        sweep.at_end(lambda error: _close(shadows, error))
        logs = communication_of(sweep.tape).logs
        for window, trace in self.of.items():
            if not trace.token.happening:
                logs.pop(window.reverse, None)  # agreed, and not concerned by what happens from now on
            else:
                if trace.refused:
                    raise ActivityError(f"rank {window.reverse.rank}: {trace.refused}")
                shadows[window] = Shadow(sweep, window)


def _trace(tape: Tape, window: Window) -> Trace:
    communication_of(tape)  # the ranks agree before windows are opened
    traces = tape._sweep_starts.get("windows")
    if traces is None:
        traces = Traces()
        tape.at_sweep_start("windows", traces)
    trace = traces.of.get(window)  # type: ignore[attr-defined]
    if trace is None:
        trace = traces.of[window] = Trace(tape, window)  # type: ignore[attr-defined]
        storage = window.storage
        if storage is not None and (storage.tape is None or storage.tape() is None or storage.tape() is not opened()):
            storage.tape = tape._reference
    return trace


def _begin(tape: Tape) -> None:
    """A tape begins to record: windows that exist may be used by other ranks without a call of this one."""
    for window in _windows.values():
        if not window.reverse.broken:
            _trace(tape, window)


at_opening.append(_begin)


class Target:
    """Which elements of a target's window an operation touches.

    Attributes
    ----------
    rank : int
    start : int
        Byte in the window.
    count : int
        Number of basic elements of ``dtype``.
    offsets : ndarray or None
        Byte offsets of the elements from ``start``; None: one after the other.
    """

    __slots__ = ("count", "dtype", "offsets", "rank", "start", "stop")

    def __init__(self, rank: int, start: int, count: int, dtype: np.dtype, offsets: np.ndarray | None) -> None:
        self.rank = rank
        self.start = start
        self.count = count
        self.dtype = dtype
        self.offsets = offsets
        reach = (
            count * dtype.itemsize if offsets is None else int(offsets.max(initial=-dtype.itemsize)) + dtype.itemsize
        )
        self.stop = start + reach

    def overlaps(self, other: Target) -> bool:
        """Whether both may touch one location (never denied if they do)."""
        return self.rank == other.rank and self.start < other.stop and other.start < self.stop


def _target(window: Window, rank: int, spec: Any, origin: Any, dtype: np.dtype) -> Target:
    """The elements of the dtype that a target argument of mpi4py's means."""
    displacement, count, datatype = 0, None, None
    if isinstance(spec, (list, tuple)):
        displacement, count, datatype = (*spec, *(0, None, None)[len(spec) :])
    elif spec is not None:
        displacement = spec
    own_count, own_typemap = _items(origin)
    typemap = own_typemap if datatype is None else typemap_of(_datatype(datatype))
    count = own_count if count is None else count
    start = displacement * window.units[rank]
    if typemap.dtype == dtype and typemap.contiguous:
        return Target(rank, start, count * typemap.length, dtype, None)
    offsets = typemap.layout(count).offsets() if typemap.dtype == dtype else _regrouped(typemap, count, dtype)
    return (
        Target(rank, start, len(offsets), dtype, offsets - offsets[:1].sum())
        if False
        else _placed(rank, start, dtype, offsets)
    )


def _placed(rank: int, start: int, dtype: np.dtype, offsets: np.ndarray) -> Target:
    low = int(offsets.min(initial=0)) if len(offsets) else 0
    low = int(offsets.min()) if len(offsets) else 0
    return Target(rank, start + low, len(offsets), dtype, offsets - low)


def _regrouped(typemap: Typemap, count: int, dtype: np.dtype) -> np.ndarray:
    offsets = None if typemap.dtype is None else regrouped(typemap, count, dtype.itemsize)
    if offsets is None:
        raise ActivityError(
            f"the target's datatype in one-sided communication is not made of whole elements of {dtype}; "
            "use the datatype of the elements"
        )
    return offsets


def _datatype(datatype: Any) -> mpi.Datatype:
    return datatype_named(datatype) if isinstance(datatype, str) else datatype


def _items(spec: Any) -> tuple[int, Typemap]:
    """Number of items of an origin argument and their typemap."""
    memory, count, displ, datatype = simple_form(spec)
    array = as_array(memory)
    typemap = _typemap(array, datatype)
    if count is None:
        count = _inferred(array.nbytes - (displ or 0) * typemap.extent, typemap.extent)
    return count, typemap


class Access:
    """One operation on a target's memory, and its adjoint.

    Attributes
    ----------
    origin : Buffer or None
        What was read here, if it is active.
    result : Buffer or None
        What was received here.
    updates, overwrites, fetches : bool
        Whether the target's memory is changed, whether its old value is lost, and whether that is part of the result of
        an atomic step.
    """

    __slots__ = ("fetches", "name", "origin", "overwrites", "result", "target", "updates", "where", "window")

    def __init__(
        self,
        name: str,
        window: Window,
        target: Target,
        origin: Buffer | None,
        result: Buffer | None,
        updates: bool,
        overwrites: bool,
        fetches: bool,
    ) -> None:
        self.name = name
        self.window = window
        self.target = target
        self.origin = origin
        self.result = result
        self.updates = updates
        self.overwrites = overwrites
        self.fetches = fetches
        self.where = call_site()

    def __call__(self, sweep: Sweep) -> None:
        """Add the result's adjoint to the target's, from which the origin's comes; zero what was overwritten."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            if self.result is not None:
                self.result.zero(sweep)
            return
        going = None if self.result is None else self.result.take(sweep)
        if not self.updates and not self.fetches:
            if going is not None:
                shadow.later.append((self.target, going))
            return
        shadow.add_what_precedes(self.target, self.waiting)
        if self.overwrites:
            going = np.zeros(self.target.count, self.target.dtype) if going is None else going
            op = mpi.REPLACE
        else:
            op = mpi.NO_OP if going is None else mpi.SUM
        came = shadow.exchange(self.target, going, op, self.waiting)
        if self.origin is not None:
            self.origin.add(sweep, came)

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} with target rank {self.target.rank} in {self.window.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"


# --------------------------------------------------------------------------------------------------- in the sweep


class Shadow:
    """A window on the adjoint of window memory, for the time of a sweep.

    Attributes
    ----------
    later : list of (Target, ndarray)
        Adjoints that are added to targets' at the end of the mirrored epoch.
    """

    __slots__ = ("block", "later", "win", "window")

    def __init__(self, sweep: Sweep, window: Window) -> None:
        self.window = window
        if window.storage is None:
            block = np.zeros(window.nbytes, np.uint8)
        else:
            block = sweep.block(window.storage)[window.offset : window.offset + window.nbytes]
        self.block = block
        self.win = _Win.Create(block, 1, comm=window.reverse.comm)
        self.win.Lock_all()
        self.later: list[tuple[Target, np.ndarray]] = []

    def exchange(self, target: Target, going: np.ndarray | None, op: mpi.Op, describe: Callable[[], str]) -> np.ndarray:
        """Combine an array with the target's adjoint, in one atomic step; what was there before."""
        came = np.zeros(target.count, target.dtype)
        if not target.count:
            return came
        going = came.copy() if going is None else going
        datatype = datatype_named(target.dtype.char)
        spec: tuple[Any, ...] = (target.start, target.count, datatype)
        if target.offsets is not None:
            derived = datatype.Create_hindexed_block(1, target.offsets.tolist()).Commit()
            spec = (target.start, 1, derived)
        request = self.win.Rget_accumulate([going, datatype], [came, datatype], target.rank, spec, op)
        wait(request, describe)
        self.win.Flush(target.rank)
        if target.offsets is not None:
            derived.Free()
        return came

    def add_what_precedes(self, target: Target, describe: Callable[[], str]) -> None:
        """Add now what this rank received from the same place later in the program."""
        now = [entry for entry in self.later if entry[0].overlaps(target)]
        if now:
            self.later = [entry for entry in self.later if not entry[0].overlaps(target)]
            self.add(now, describe)

    def add(self, entries: Sequence[tuple[Target, np.ndarray]], describe: Callable[[], str]) -> None:
        """Add adjoints to targets'."""
        for target, going in entries:
            if target.rank == self.window.reverse.rank and target.offsets is None:
                adjoint = np.ndarray((target.count,), target.dtype, self.block, target.start)
                adjoint += going
            else:
                self.exchange(target, going, mpi.SUM, describe)

    def deliver(self, sweep: Sweep, describe: Callable[[], str]) -> None:
        """Send what had to wait to its targets, who add it in the order of the ranks; collective."""
        comm = self.window.reverse.comm
        going: dict[int, list[tuple[Target, np.ndarray]]] = {}
        for entry in self.taken_later():
            going.setdefault(entry[0].rank, []).append(entry)
        counts, coming = np.zeros(comm.size, np.int64), np.zeros(comm.size, np.int64)
        counts[list(going)] = 1
        wait(comm.Ialltoall(counts, coming), describe)
        for rank, entries in going.items():
            self.tell(sweep, rank, _LATER, entries, describe)
        for rank in np.flatnonzero(coming).tolist():
            self.add(self.hear(rank, _LATER, describe), describe)

    def tell(
        self,
        sweep: Sweep,
        partner: int,
        tag: int,
        entries: list[tuple[Target, np.ndarray]],
        describe: Callable[[], str],
    ) -> None:
        """Send adjoints to the rank that adds them."""
        message = np.frombuffer(pickle.dumps(entries), np.uint8)
        outbox_of(sweep).send(self.window.reverse.comm, message, partner, tag, describe)

    def hear(self, partner: int, tag: int, describe: Callable[[], str]) -> list[tuple[Target, np.ndarray]]:
        """Receive adjoints to be added here."""
        comm, status, patience = self.window.reverse.comm, mpi.Status(), Patience()
        while (message := comm.Improbe(partner, tag, status)) is None:
            patience.pause(describe)
        came = np.empty(status.Get_count(mpi.BYTE), np.uint8)
        message.Recv(came)
        return pickle.loads(came.tobytes())

    def taken_later(self) -> list[tuple[Target, np.ndarray]]:
        """Hand out what had to wait for the end of the mirrored epoch."""
        entries, self.later = self.later, []
        return entries

    def barrier(self, describe: Callable[[], str]) -> None:
        """All ranks of the window have come here, and see each other's updates."""
        self.win.Sync()
        wait(self.window.reverse.comm.Ibarrier(), describe)
        self.win.Sync()


def shadow_of(sweep: Sweep, window: Window) -> Shadow | None:
    """The shadow window of a window; None if nothing differentiable happened through it."""
    return sweep.state["windows"].get(window)


def _close(shadows: dict[Window, Shadow], error: BaseException | None) -> None:
    if error is not None:
        stranded.append(shadows)
        return
    for shadow in shadows.values():
        shadow.barrier(lambda: "the end of the other ranks' sweep")
        shadow.win.Unlock_all()
        shadow.win.Free()


class Fence:
    """Record of a fence: closes an epoch of all ranks, opens another."""

    __slots__ = ("accesses", "token", "window")

    def __init__(self, window: Window, token: Collective, accesses: list[Access]) -> None:
        self.window = window
        self.token = token
        self.accesses = accesses

    def __call__(self, sweep: Sweep) -> None:
        """The same the other way round: closes the mirror of the epoch that it opened."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.win.Sync()
        shadow.deliver(sweep, self.waiting)
        shadow.barrier(self.waiting)
        if self.token.happening:
            self._check_order()

    def _check_order(self) -> None:
        """Operations that update and fetch at once depend on their order, which nobody knows if ranks concurred."""
        mine = [(a.target.rank, a.target.start, a.target.stop, a.fetches) for a in self.accesses]
        everybody = self.window.reverse.comm.allgather(mine)
        for rank, accesses in enumerate(everybody):
            for target, start, stop, fetches in accesses:
                if not fetches:
                    continue
                for other, others in enumerate(everybody):
                    for t, s, e, _ in others:
                        if other != rank and t == target and s < stop and start < e:
                            raise CommunicationError(
                                f"ranks {rank} and {other} update the same memory of rank {target} in one epoch of "
                                f"{self.window.reverse.name} and fetch what was there; in which order is not known, so "
                                f"it cannot be reversed; put a fence between them ({line_of(self.token.where)})"
                            )

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the mirror of {self.token.describe()}"


class Handshake:
    """Record of Post, Start, Complete or Wait: in the sweep it hears from the other side, or tells it."""

    __slots__ = ("name", "partners", "where", "window")

    def __init__(self, name: str, window: Window, partners: list[int]) -> None:
        self.name = name
        self.window = window
        self.partners = partners
        self.where = call_site()

    def __call__(self, sweep: Sweep) -> None:
        """Tell the other side, or wait for it."""
        shadow = shadow_of(sweep, self.window)
        if shadow is None:
            return
        shadow.win.Sync()
        if self.name == "Wait":
            for origin in self.partners:
                shadow.tell(sweep, origin, _READY, [], self.waiting)
        elif self.name == "Complete":
            for target in self.partners:
                shadow.hear(target, _READY, self.waiting)
        elif self.name == "Start":
            # The target adds it: it alone knows when it does not touch its shadow.
            later = shadow.taken_later()
            for target in self.partners:
                entries = [entry for entry in later if entry[0].rank == target]
                shadow.tell(sweep, target, _DONE, entries, self.waiting)
        else:
            for origin in self.partners:
                shadow.add(shadow.hear(origin, _DONE, self.waiting), self.waiting)
        shadow.win.Sync()

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the mirror of {self.name} in {self.window.reverse.name}, {line_of(self.where)}"


# ---------------------------------------------------------------------------------------------- recording operations


def _record(
    win: Any, name: str, rank: int, spec: Any, reads: Any = None, writes: Any = None, op: mpi.Op | None = None
) -> None:
    """Record an operation, before it starts, while some tape exists.

    Parameters
    ----------
    spec
        mpi4py's target argument.
    reads, writes
        Buffer arguments: what is read and what is received on this rank; None if there is none.
    op : MPI.Op
        What is done to the target's memory; None: nothing.
    """
    if rank == mpi.PROC_NULL:
        return
    tape, window = opened(), _windows.get(win.handle)
    source = None if reads is None else parse(reads)
    sink = None if writes is None else parse(writes)
    if tape is not None and window is None:
        _refuse_unknown(name, tape, source, sink)
    undo = [] if sink is None else sink.overwrite()
    if tape is None:
        return
    trace = None if window is None else _trace(tape, window)
    adjoint = None if trace is None else _adjoint(trace, tape, name, rank, spec, (reads, writes), source, sink, op)
    if adjoint is not None or undo:
        tape.append(adjoint, undo)


def _adjoint(
    trace: Trace,
    tape: Tape,
    name: str,
    rank: int,
    spec: Any,
    given: tuple[Any, Any],
    source: Buffer | None,
    sink: Buffer | None,
    op: mpi.Op | None,
) -> Callable[[Sweep], None] | None:
    """What the sweep has to do for an operation; says to the agreement what the operation means."""
    window, token = trace.window, trace.token
    dtype = (source if sink is None else sink).dtype  # type: ignore[union-attr]
    updates = op is not None and op != mpi.NO_OP
    overwrites = op == mpi.REPLACE
    recording = current() is not None
    active = updates and recording and source.active(tape)  # type: ignore[union-attr]
    if not window.tracked[rank]:
        if active:
            raise ActivityError(
                f"{name}: an active array goes into window memory of rank {rank} that is not tracked, where its "
                "derivative would be lost; make the memory with ampi.numpy or Win.Allocate, or send ampi.value(...)"
            )
        return None if sink is None or not sink.tracked else sink.detach().zero
    if dtype is None:
        raise ActivityError(
            f"{name}: a datatype with several floating-point dtypes, or bytes that are not whole elements, on a window "
            "that may carry derivatives; use an operation for each dtype"
        )
    if not carries_derivatives(dtype):
        if dtype.itemsize > 1:
            return None
        if sink is not None and recording:
            token.loses = True  # bytes of what may be floating-point numbers
        if not overwrites:
            return None
    elif sink is not None and recording:
        token.reads_active = True
        if sink.tracked:
            token.writes_tracked = True
        elif sink.nbytes:
            token.loses = True
    result = sink if sink is not None and sink.tracked and recording else None
    if updates and op not in (mpi.SUM, mpi.REPLACE):
        text = f"{name} with another operation than SUM, REPLACE and NO_OP has no derivative rule"
        if active:
            raise ActivityError(f"{text}; send ampi.value(...)")
        trace.refuse(text)
        token.reads_active = True
    if not (active or overwrites or result is not None):
        return None
    token.reads_active = token.reads_active or carries_derivatives(dtype)
    target = _target(window, rank, spec, given[0] if given[1] is None else given[1], dtype)
    fetches = sink is not None and op is not None
    access = Access(name, window, target, source if active else None, result, updates, overwrites, fetches)
    _note_epoch(trace, access)
    communication_of(tape).log(window.reverse).touched = True
    for buffer in (source, result):
        if buffer is not None:
            if buffer is result:
                buffer.activate(tape)
            buffer.detach()
    return access


def _note_epoch(trace: Trace, access: Access) -> None:
    window = trace.window
    if window.locked:
        trace.refuse(f"{access.name} in an epoch of Lock or Lock_all cannot be reversed yet; use Fence")
    elif not trace.epoch:
        trace.refuse(
            f"{access.name} belongs to an epoch that was opened before the tape recorded; open it (Fence, Start) inside"
        )
    elif window.started and access.fetches and access.updates:
        trace.refuse(f"{access.name} in an epoch of Start cannot be reversed: its order is not known; use Fence")
    if access.updates or access.fetches:
        trace.accesses.append(access)


def _refuse_unknown(name: str, tape: Tape, source: Buffer | None, sink: Buffer | None) -> None:
    if current() is None:
        return
    if (source is not None and source.active(tape)) or (sink is not None and sink.tracked):
        raise ActivityError(
            f"{name} of an array that may carry derivatives, through a dynamic window or one that ampi did not see "
            "being made, has no derivative rule; use ampi.Win.Create or Allocate, or pass ampi.value(array)"
        )


def _ranks_of(win: Any, group: mpi.Group) -> list[int]:
    own = _Win.Get_group(win)
    try:
        return list(_Group.Translate_ranks(group, None, own))
    finally:
        own.Free()


def _handshake(win: Any, name: str, partners: list[int]) -> None:
    tape, window = opened(), _windows.get(win.handle)
    if tape is not None and window is not None:
        trace = _trace(tape, window)
        trace.epoch = trace.epoch or name == "Start"
        communication_of(tape).log(window.reverse).touched = True
        tape.append(Handshake(name, window, partners))


# ----------------------------------------------------------------------------------------------------- the methods


class Win(Handles, _Win, metaclass=AcceptsBase):  # type: ignore[valid-type]
    """Remote memory access context."""

    _base = _Win

    # ------------------------------------------------------------------------------------------------- windows

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window on memory of the user's; collective."""
        win = super().Create(memory, disp_unit, info, comm)
        return _register(win, comm, disp_unit, mpi.BOTTOM if memory is None else memory)

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window and its memory; collective."""
        return _register(super().Allocate(size, disp_unit, info, comm), comm, disp_unit)

    @classmethod
    def Allocate_shared(
        cls, size: int, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF
    ) -> Any:
        """Create a window and its memory, which other ranks of the node can load from and store to; collective."""
        return _register(super().Allocate_shared(size, disp_unit, info, comm), comm, disp_unit)

    def Shared_query(self, rank: int) -> tuple[mpi.buffer, int]:
        """Query the memory of another rank in a shared window.

        While a tape records, only this rank's own segment may be used as an `ampi.ndarray` of floating-point numbers.
        """
        buffer, unit = _Win.Shared_query(self, rank)
        window = _windows.get(self.handle)
        own = _Win.tomemory(self).address
        if window is not None and buffer.nbytes and buffer.address != own and buffer.address not in window.segments:
            reference = weakref.ref(window)
            track_block(buffer.address, buffer.nbytes, lambda: _alive(reference), Elsewhere)
            window.segments.add(buffer.address)
        return buffer, unit

    def Free(self) -> None:
        """Free a window; collective.  A tape that recorded with it can still be swept."""
        window = _windows.pop(self.handle, None)
        _Win.Free(self)
        if window is not None:
            window.freed = True

    # ---------------------------------------------------------------------------------------------- operations

    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Put data into a memory window on a remote process."""
        if living:
            _record(self, "Put", target_rank, target, reads=origin, op=mpi.REPLACE)
        _Win.Put(self, origin, target_rank, target)

    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Get data from a memory window on a remote process."""
        if living:
            _record(self, "Get", target_rank, target, writes=origin)
        _Win.Get(self, origin, target_rank, target)

    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM) -> None:
        """Accumulate data into the target process."""
        if living:
            _record(self, "Accumulate", target_rank, target, reads=origin, op=op)
        _Win.Accumulate(self, origin, target_rank, target, op)

    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM
    ) -> None:
        """Fetch-and-accumulate data into the target process."""
        if living:
            _record(self, "Get_accumulate", target_rank, target, _read(origin, op), result, op)
        _Win.Get_accumulate(self, origin, result, target_rank, target, op)

    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: mpi.Op = mpi.SUM
    ) -> None:
        """Perform one-sided read-modify-write."""
        if living:
            _record(self, "Fetch_and_op", target_rank, target_disp, _read(origin, op), result, op)
        _Win.Fetch_and_op(self, origin, result, target_rank, target_disp, op)

    def Compare_and_swap(self, origin: Any, compare: Any, result: Any, target_rank: int, target_disp: int = 0) -> None:
        """Perform one-sided atomic compare-and-swap."""
        if living:
            for spec in (origin, compare, result):
                buffer = parse(spec)
                if opened() is not None and carries_derivatives(buffer.dtype) and buffer.active(opened()):
                    raise ActivityError("Compare_and_swap of active values has no derivative; pass ampi.value(array)")
            undo = overwrite(*parse(result).overwritten())
            if undo and opened() is not None:
                opened().append(None, undo)
        _Win.Compare_and_swap(self, origin, compare, result, target_rank, target_disp)

    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> mpi.Request:
        """Put data into a memory window on a remote process, with a request."""
        if living:
            _record(self, "Rput", target_rank, target, reads=origin, op=mpi.REPLACE)
        return _Win.Rput(self, origin, target_rank, target)

    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> mpi.Request:
        """Get data from a memory window on a remote process, with a request."""
        if living:
            _record(self, "Rget", target_rank, target, writes=origin)
        return _Win.Rget(self, origin, target_rank, target)

    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM) -> mpi.Request:
        """Accumulate data into the target process, with a request."""
        if living:
            _record(self, "Raccumulate", target_rank, target, reads=origin, op=op)
        return _Win.Raccumulate(self, origin, target_rank, target, op)

    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM
    ) -> mpi.Request:
        """Fetch-and-accumulate data into the target process, with a request."""
        if living:
            _record(self, "Rget_accumulate", target_rank, target, _read(origin, op), result, op)
        return _Win.Rget_accumulate(self, origin, result, target_rank, target, op)

    # -------------------------------------------------------------------------------------------------- epochs

    def Fence(self, assertion: int = 0) -> None:
        """Perform an MPI fence synchronization; collective."""
        tape, window = opened(), _windows.get(self.handle)
        if tape is not None and window is not None:
            trace = _trace(tape, window)
            fetched = any(access.fetches for access in trace.accesses)
            token = trace.log(tape, "Fence", fetched, fetched)
            tape.append(Fence(window, token, trace.accesses))
            trace.accesses = []
            trace.epoch = True
        _Win.Fence(self, assertion)

    def Post(self, group: mpi.Group, assertion: int = 0) -> None:
        """Start an RMA exposure epoch."""
        window = _windows.get(self.handle)
        if window is not None:
            window.posted = _ranks_of(self, group)
            _handshake(self, "Post", window.posted)
        _Win.Post(self, group, assertion)

    def Start(self, group: mpi.Group, assertion: int = 0) -> None:
        """Start an RMA access epoch for MPI."""
        window = _windows.get(self.handle)
        if window is not None:
            window.started = _ranks_of(self, group)
            _handshake(self, "Start", window.started)
        _Win.Start(self, group, assertion)

    def Complete(self) -> None:
        """Complete an RMA operation begun after a Start."""
        _Win.Complete(self)
        window = _windows.get(self.handle)
        if window is not None:
            _handshake(self, "Complete", window.started)
            window.started = []

    def Lock(self, rank: int, lock_type: int = mpi.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an RMA access epoch at the target process."""
        _Win.Lock(self, rank, lock_type, assertion)
        _lock(self, rank)

    def Unlock(self, rank: int) -> None:
        """Complete an RMA access epoch at the target process."""
        _Win.Unlock(self, rank)
        _unlock(self, rank)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an RMA access epoch at all processes."""
        _Win.Lock_all(self, assertion)
        _lock(self, _ALL)

    def Unlock_all(self) -> None:
        """Complete an RMA access epoch at all processes."""
        _Win.Unlock_all(self)
        _unlock(self, _ALL)

    def Wait(self) -> Any:
        """Complete an RMA exposure epoch begun with Post."""
        done = _Win.Wait(self)
        _end_exposure(self)
        return done

    def Test(self) -> bool:
        """Test whether an RMA exposure epoch has completed."""
        done = _Win.Test(self)
        if done:
            _end_exposure(self)
        return done


_ALL = -1  # in the place of a rank: all of them


def _lock(win: Any, rank: int) -> None:
    window = _windows.get(win.handle)
    if window is not None:
        window.locked.add(rank)


def _unlock(win: Any, rank: int) -> None:
    window = _windows.get(win.handle)
    if window is not None:
        window.locked.discard(rank)


def _end_exposure(win: Any) -> None:
    window = _windows.get(win.handle)
    if window is not None:
        _handshake(win, "Wait", window.posted)
        window.posted = []


def _read(origin: Any, op: mpi.Op) -> Any:
    """The origin argument, if it is read."""
    return None if op == mpi.NO_OP else origin


_PUT = "Get t from the target's adjoint; x̄ += t; the target's adjoint is zero"
_GET = "Accumulate(SUM) of x̄ into the target's adjoint; x̄ = 0"
_ACCUMULATE = "SUM: Get t from the target's adjoint; x̄ += t; REPLACE: as Put"
for _names, _reads, _writes, _text in (
    (("Put", "Rput"), ("origin",), (), _PUT),
    (("Get", "Rget"), (), ("origin",), _GET),
    (("Accumulate", "Raccumulate"), ("origin",), (), _ACCUMULATE),
    (("Get_accumulate", "Rget_accumulate"), ("origin",), ("result",), f"{_ACCUMULATE}; as Get for the result"),
    (("Fetch_and_op",), ("origin",), ("result",), f"{_ACCUMULATE}; as Get for the result"),
):
    for _name in _names:
        enter(Operation("Win", _name, Treatment.DIFFERENTIATED, _reads, _writes, _text))
enter(Operation("Win", "Compare_and_swap", Treatment.PASSES, ("origin", "compare"), ("result",), "integers only"))
