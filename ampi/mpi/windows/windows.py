"""One-sided communication: the methods of windows.

The target of a Put or Get makes no call that a tape could record.  In a sweep every rank of a window therefore exposes
the adjoint of its window memory through a *shadow window* (`shadow`), and the origin alone reverses its operation.
Epochs are mirrored, each kind in its own way; lock epochs have no mirror at the target, but are ordered (`order`).  So
are atomic operations whose adjoints depend on their order: in epochs of Fence and of Start, where MPI does not define
it, they are postponed while a tape records, and executed one after the other at the end of the epoch.

Two things follow for window memory.  Other ranks overwrite it unseen, so values that an adjoint needs are copied when
they are used (`Storage.volatile`), and it counts as active from the start of a tape.  And other ranks add to its
adjoint: if both a rank itself and others may read a location in one epoch, the contributions of the others wait for the
end of the mirrored epoch, when the rank does not use its shadow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...memory.storages import carries_derivatives
from ...tape import living, overwrite
from ...tape.recording import open_tapes, opened
from ..base.handles import AcceptsBase, Handles
from ..base.rules import Operation, Treatment, enter
from ..memory.arguments import parse
from ..messages.held_buffers import hold, let_go, let_go_of
from .epochs import catch_up, complete, end_exposure, handshake, in_order, note_fence, one_by_one, ranks_of
from .forward_windows import fenced, push_of
from .memory import attach, detach, register, register_dynamic, require_innermost_memory, track_segment
from .recording import old_argument, read_argument, record, requested, wants_old, was_postponed, with_rollback
from .trace import window_freed
from .window import ALL, require_own, tape_of, window_of, windows

_Win = mpi.Win  # mpi4py's own: its names may be rebound
_Accumulate, _Attach, _Compare_and_swap, _Complete = _Win.Accumulate, _Win.Attach, _Win.Compare_and_swap, _Win.Complete
_Detach, _Fence, _Fetch_and_op, _Flush = _Win.Detach, _Win.Fence, _Win.Fetch_and_op, _Win.Flush
_Flush_all, _Flush_local, _Flush_local_all, _Free = _Win.Flush_all, _Win.Flush_local, _Win.Flush_local_all, _Win.Free
_Get, _Get_accumulate, _Lock, _Lock_all = _Win.Get, _Win.Get_accumulate, _Win.Lock, _Win.Lock_all
_Post, _Put, _Raccumulate, _Rget = _Win.Post, _Win.Put, _Win.Raccumulate, _Win.Rget
_Rget_accumulate, _Rput, _Shared_query, _Start = _Win.Rget_accumulate, _Win.Rput, _Win.Shared_query, _Win.Start
_Test, _Unlock, _Unlock_all, _Wait = _Win.Test, _Win.Unlock, _Win.Unlock_all, _Win.Wait


class Win(Handles, _Win, metaclass=AcceptsBase):  # type: ignore[valid-type]
    """Remote memory access context.

    Examples
    --------
    >>> memory = np.zeros(2)
    >>> win = ampi.Win.Create(memory, 8, comm=ampi.COMM_SELF)
    >>> def through(x):
    ...     win.Fence()
    ...     win.Put(x, 0)
    ...     win.Fence()
    ...     return np.sum(memory * memory)
    >>> ampi.grad(through)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    >>> win.Free()
    """

    _base = _Win

    # ------------------------------------------------------------------------------------------------- windows

    @classmethod
    def Create(cls, memory: Any, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window on the user's memory; collective."""
        require_innermost_memory(memory)
        win = super().Create(memory, disp_unit, info, comm)
        return register(win, comm, disp_unit, mpi.BOTTOM if memory is None else memory)

    @classmethod
    def Allocate(cls, size: int, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window and its memory; collective."""
        return register(super().Allocate(size, disp_unit, info, comm), comm, disp_unit)

    @classmethod
    def Allocate_shared(
        cls, size: int, disp_unit: int = 1, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF
    ) -> Any:
        """Create a window and its memory, which other ranks of the node can load from and store to; collective."""
        win = register(super().Allocate_shared(size, disp_unit, info, comm), comm, disp_unit, shared=True)
        windows[win.handle].segments = {}
        return win

    @classmethod
    def Create_dynamic(cls, info: mpi.Info = mpi.INFO_NULL, comm: Any = mpi.COMM_SELF) -> Any:
        """Create a window without memory; collective."""
        return register_dynamic(super().Create_dynamic(info, comm), comm)

    def Attach(self, memory: Any) -> None:
        """Attach a local memory region."""
        require_innermost_memory(memory)
        _Attach(self, memory)
        attach(self, memory)

    def Detach(self, memory: Any) -> None:
        """Detach a local memory region.  A tape that recorded with it keeps the memory alive."""
        _Detach(self, memory)
        detach(self, memory)

    def Shared_query(self, rank: int) -> tuple[mpi.buffer, int]:
        """Query the memory of a rank in a shared window.

        An `ampi.ndarray` on it is differentiated, whichever rank's memory it is.  While a tape records, loads from
        another rank's memory and stores to it must be ordered with the accesses of others, as MPI requires.
        """
        buffer, unit = _Shared_query(self, rank)
        track_segment(self, rank, buffer)
        return buffer, unit

    def Free(self) -> None:
        """Free a window; collective.  A tape that recorded with it can still be swept."""
        window = windows.pop(self.handle, None)
        let_go(self)
        _Free(self)
        if window is not None:
            window_freed(window)
            window.freed = True
            window.order.cells.free()
            window.reverse.leave()

    # ---------------------------------------------------------------------------------------------- operations

    @with_rollback
    def Put(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Put data into a memory window on a remote process."""
        if living:
            record(self, "Put", target_rank, target, reads=origin, op=mpi.REPLACE)
        _Put(self, origin, target_rank, target)
        hold(self, target_rank, origin)

    @with_rollback
    def Get(self, origin: Any, target_rank: int, target: Any = None) -> None:
        """Get data from a memory window on a remote process."""
        if living:
            record(self, "Get", target_rank, target, writes=origin)
        _Get(self, origin, target_rank, target)
        hold(self, target_rank, origin)

    @with_rollback
    def Accumulate(self, origin: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM) -> None:
        """Accumulate data into the target process."""
        if not living:
            _Accumulate(self, origin, target_rank, target, op)
            return hold(self, target_rank, origin)
        access = record(self, "Accumulate", target_rank, target, reads=origin, op=op)
        if was_postponed(access):
            return None
        hold(self, target_rank, origin)
        with in_order(self, access):
            if wants_old(access):
                _Get_accumulate(self, origin, old_argument(access), target_rank, target, op)
            else:
                _Accumulate(self, origin, target_rank, target, op)

    @with_rollback
    def Get_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM
    ) -> None:
        """Fetch-and-accumulate data into the target process."""
        access = None
        if living:
            access = record(self, "Get_accumulate", target_rank, target, read_argument(origin, op), result, op)
        if was_postponed(access):
            return
        hold(self, target_rank, origin, result)
        with in_order(self, access):
            _Get_accumulate(self, origin, result, target_rank, target, op)

    @with_rollback
    def Fetch_and_op(
        self, origin: Any, result: Any, target_rank: int, target_disp: int = 0, op: mpi.Op = mpi.SUM
    ) -> None:
        """Perform one-sided read-modify-write."""
        access = None
        if living:
            access = record(self, "Fetch_and_op", target_rank, target_disp, read_argument(origin, op), result, op)
        if was_postponed(access):
            return
        hold(self, target_rank, origin, result)
        with in_order(self, access):
            _Fetch_and_op(self, origin, result, target_rank, target_disp, op)

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
        _Compare_and_swap(self, origin, compare, result, target_rank, target_disp)
        hold(self, target_rank, origin, compare, result)

    @with_rollback
    def Rput(self, origin: Any, target_rank: int, target: Any = None) -> mpi.Request:
        """Put data into a memory window on a remote process, with a request."""
        if living:
            record(self, "Rput", target_rank, target, reads=origin, op=mpi.REPLACE)
        return _Rput(self, origin, target_rank, target)

    @with_rollback
    def Rget(self, origin: Any, target_rank: int, target: Any = None) -> mpi.Request:
        """Get data from a memory window on a remote process, with a request."""
        access = record(self, "Rget", target_rank, target, writes=origin) if living else None
        return requested(self, access, _Rget(self, origin, target_rank, target))

    @with_rollback
    def Raccumulate(self, origin: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM) -> mpi.Request:
        """Accumulate data into the target process, with a request."""
        access = record(self, "Raccumulate", target_rank, target, reads=origin, op=op) if living else None
        with in_order(self, access):
            if wants_old(access):
                request = _Rget_accumulate(self, origin, old_argument(access), target_rank, target, op)
            else:
                request = _Raccumulate(self, origin, target_rank, target, op)
        return request

    @with_rollback
    def Rget_accumulate(
        self, origin: Any, result: Any, target_rank: int, target: Any = None, op: mpi.Op = mpi.SUM
    ) -> mpi.Request:
        """Fetch-and-accumulate data into the target process, with a request."""
        access = None
        if living:
            access = record(self, "Rget_accumulate", target_rank, target, read_argument(origin, op), result, op)
        with in_order(self, access):
            request = _Rget_accumulate(self, origin, result, target_rank, target, op)
        return requested(self, access, request)

    # -------------------------------------------------------------------------------------------------- epochs

    def Fence(self, assertion: int = 0) -> None:
        """Perform an MPI fence synchronization; collective."""
        window = window_of(self)
        if window is None:
            _Fence(self, assertion)
            return let_go(self)
        window.fences += 1
        tape = tape_of(window)
        if tape is None and open_tapes:
            require_own(window)
        if tape is not None:
            note_fence(tape, window)
        if window.postponed:
            window.order.call(window.fences)
        _Fence(self, assertion)
        if tape is not None and push_of(tape) is not None:
            fenced(tape, window, assertion)
        if window.order.called(window.fences):
            catch_up(self, window, assertion)
            if tape is not None:
                note_fence(tape, window)
        let_go(self)

    def Post(self, group: mpi.Group, assertion: int = 0) -> None:
        """Start an RMA exposure epoch."""
        window = window_of(self)
        if window is not None:
            window.posted = ranks_of(self, group)
            handshake(self, "Post", window.posted)
        _Post(self, group, assertion)
        if window is not None:
            window.order.post(window.posted)

    def Start(self, group: mpi.Group, assertion: int = 0) -> None:
        """Start an RMA access epoch for MPI."""
        window = window_of(self)
        if window is not None:
            window.started = ranks_of(self, group)
            for rank in window.started:
                window.starts[rank] += 1
            handshake(self, "Start", window.started)
        _Start(self, group, assertion)

    def Complete(self) -> None:
        """Complete an RMA operation started by Start."""
        window = window_of(self)
        if window is not None and window.postponed:
            one_by_one(self, window)
        else:
            _Complete(self)
        let_go(self)
        if window is not None:
            handshake(self, "Complete", window.started)
            window.started = []

    def Lock(self, rank: int, lock_type: int = mpi.LOCK_EXCLUSIVE, assertion: int = 0) -> None:
        """Begin an RMA access epoch at the target process."""
        _Lock(self, rank, lock_type, assertion)
        window = window_of(self)
        if window is not None:
            window.locked[rank] = lock_type

    def Unlock(self, rank: int) -> None:
        """Complete an RMA access epoch at the target process."""
        window = window_of(self)
        if window is None:
            _Unlock(self, rank)
        else:
            complete(window, rank, lambda: _Unlock(self, rank))
            window.locked.pop(rank, None)
        let_go_of(self, rank)

    def Lock_all(self, assertion: int = 0) -> None:
        """Begin an RMA access epoch at all processes."""
        _Lock_all(self, assertion)
        window = window_of(self)
        if window is not None:
            window.locked[ALL] = mpi.LOCK_SHARED

    def Unlock_all(self) -> None:
        """Complete an RMA access epoch at all processes."""
        window = window_of(self)
        if window is None:
            _Unlock_all(self)
        else:
            complete(window, ALL, lambda: _Unlock_all(self))
            window.locked.pop(ALL, None)
        let_go(self)

    def Flush(self, rank: int) -> None:
        """Complete all outstanding RMA operations at a target."""
        self._flush(rank, lambda: _Flush(self, rank))

    def Flush_all(self) -> None:
        """Complete all outstanding RMA operations at all targets."""
        self._flush(ALL, lambda: _Flush_all(self))

    def Flush_local(self, rank: int) -> None:
        """Complete locally all outstanding RMA operations to a target."""
        self._flush(rank, lambda: _Flush_local(self, rank))

    def Flush_local_all(self) -> None:
        """Complete locally all outstanding RMA operations to all targets."""
        self._flush(ALL, lambda: _Flush_local_all(self))

    def _flush(self, rank: int, primal: Callable[[], None]) -> None:
        window = window_of(self)
        if window is None or not window.incomplete:
            primal()
        else:
            complete(window, rank, primal)
        if rank == ALL:
            let_go(self)
        else:
            let_go_of(self, rank)

    def Wait(self) -> Any:
        """Complete an RMA exposure epoch started by Post."""
        done = _Wait(self)
        end_exposure(self)
        return done

    def Test(self) -> bool:
        """Test whether an RMA exposure epoch has completed."""
        done = _Test(self)
        if done:
            end_exposure(self)
        return done


_PUT = "Get t from the target's adjoint; x̄ += t; the target's adjoint is zero"
_GET = "Accumulate(SUM) of x̄ into the target's adjoint; x̄ = 0"
_ACCUMULATE = (
    "SUM: Get t from the target's adjoint; x̄ += t; REPLACE: as Put; PROD, MIN, MAX, MINLOC, MAXLOC: t times the "
    "partial derivatives, one operation after the other"
)
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
