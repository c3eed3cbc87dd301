"""Tasks on other ranks: the pool of ``mpi4py.futures.MPICommExecutor`` while a tape is open on any of its ranks.

mpi4py's own pool sends tasks from another thread, which no tape observes.  This one sends them as messages of ampi, in
the threads that entered the executor: a task is an object that is sent to a worker, and its result one that is sent
back.  So a task is recorded where it runs; its adjoint runs there in the sweep, and forward mode, second order and
vector modes are those of messages.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np

from ..arrays.activity import is_active
from ..base import arrivals
from ..base.program_lines import where_called
from ..base.structures import leaves, mapped
from ..errors import ActivityError
from ..interception.hooks import AlwaysHook, EverHook, Hook, hook
from ..mpi.comm import Communicator, adopt
from ..mpi.messages.object_messages import send_object
from ..mpi.namespace import BASE
from ..tape.recording import is_passive, opened, passive, recording, resumed
from . import remote

_TASK, _RESULT = 1, 2  # tags
_LONGEST = 1e-3  # most seconds between two checks for messages


class _Pause:
    """Pauses of growing length, as in mpi4py's pool, since other ranks may need the core."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, until: float | None = None) -> None:
        left = self.seconds if until is None else min(self.seconds, max(until - time.monotonic(), 0.0))
        time.sleep(left)
        self.seconds = min(_LONGEST, max(self.seconds * 2, _LONGEST / 1024))


class _Event:
    """The event of a waiter for futures, which keeps the pool working meanwhile."""

    def __init__(self, pool: Pool, event: Any) -> None:
        self.pool, self.event = pool, event
        self.set, self.clear, self.is_set = event.set, event.clear, event.is_set

    def wait(self, timeout: float | None = None) -> bool:
        return self.pool.go_on(self.event.is_set, timeout)


class _Waiters(list):
    """The waiters of a future, which ``wait`` and ``as_completed`` append."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool

    def append(self, waiter: Any) -> None:
        if not isinstance(waiter.event, _Event):
            waiter.event = _Event(self.pool, waiter.event)
        super().append(waiter)


class RankFuture(Future):
    """The future of a task on another rank; asking for its state keeps the pool working."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self._pool = pool
        self._waiters = _Waiters(pool)

    def result(self, timeout: float | None = None) -> Any:
        """Return the task's result, as `concurrent.futures.Future.result`."""
        self._pool.go_on(super().done, timeout)
        return super().result(self._pool.rest_of(timeout))

    def exception(self, timeout: float | None = None) -> Any:
        """Return the task's exception, as `concurrent.futures.Future.exception`."""
        self._pool.go_on(super().done, timeout)
        return super().exception(self._pool.rest_of(timeout))

    def done(self) -> bool:
        """Return whether the task has ended or was cancelled."""
        self._pool.step()
        return super().done()


class Pool:
    """The pool of workers of an executor, with the interface of mpi4py's pools.

    Attributes
    ----------
    tape : Tape or None
        The tape that was open on the root when the executor was entered.
    size : int
        The number of workers.
    """

    def __init__(self, comm: Any, tape: Any, options: dict[str, Any]) -> None:
        self.comm, self.tape = comm, tape
        self.size = max(comm.size - 1, 1)
        self._thread = get_ident()
        self._queue: deque[tuple[Any, tuple, bool]] = deque()
        self._free = deque(rank for rank in range(comm.size) if rank != comm.rank)
        self._pending: dict[int, tuple[Any, Any, bool]] = {}  # future, request and passivity, by worker
        self._broken = not _start_workers(comm, options, comm.rank)
        self._joined = False

    def wait(self) -> None:
        """Do nothing: the workers exist."""

    def done(self) -> None:
        """Do nothing: no further tasks are pushed."""

    def push(self, item: tuple[Any, tuple]) -> None:
        """Send a task to a worker, or run it here if there is none."""
        future, task = item
        if self._broken:
            future.set_running_or_notify_cancel()
            future.set_exception(_core().BrokenExecutor("initializer failed"))
        elif self.comm.size == 1:
            _run_here(future, task)
        else:
            # It gets the present values, and gradients are summed in the order of the submits.
            task = task[0], *mapped(lambda x: x.copy() if isinstance(x, np.ndarray) else x, task[1:])
            self._queue.append((future, task, is_passive()))
            self.step()

    def cancel(self, handler: Callable[[Any], None] | None = None) -> None:
        """Cancel the tasks that no worker has started."""
        while self._queue:
            future, _, _ = self._queue.popleft()
            if handler is not None:
                handler(future)
            elif future.cancel():
                future.set_running_or_notify_cancel()

    def join(self) -> None:
        """Wait for all tasks, and release the workers."""
        if self._joined:
            return
        self._joined = True
        self.go_on(lambda: not (self._queue or self._pending), None)
        with self._recording(False):
            for rank in self._free:
                _send("send", self.comm, None, rank, _TASK)
        self.comm.Free()

    def rest_of(self, timeout: float | None) -> float | None:
        """Return the remaining time after `go_on` has waited for this long."""
        return timeout if get_ident() != self._thread else 0

    def go_on(self, is_enough: Callable[[], bool], timeout: float | None) -> bool:
        """Send tasks and receive results until ``is_enough()``; return whether it is."""
        until = None if timeout is None else time.monotonic() + timeout
        if get_ident() != self._thread:
            return is_enough()
        pause = _Pause()
        while not is_enough():
            if self.step():
                pause = _Pause()
            elif until is not None and time.monotonic() >= until:
                return False
            else:
                pause(until)
        return True

    def step(self) -> bool:
        """Send and receive without waiting; return whether there was anything."""
        if (self._joined and not (self._queue or self._pending)) or get_ident() != self._thread:
            return False
        sent = False
        while self._queue and self._free:
            sent = True
            self._send(*self._queue.popleft())
        status = BASE["Status"]()
        if self._pending and BASE["Comm"].Iprobe(self.comm, BASE["ANY_SOURCE"], _RESULT, status):
            self._receive(status.Get_source())
            return True
        return sent

    def _send(self, future: Any, task: tuple, passively: bool) -> None:
        if not future.set_running_or_notify_cancel():
            return
        rank = self._free.popleft()
        try:
            with self._recording(passively):
                request = _send("isend", self.comm, (passively, *task), rank, _TASK)
        except BaseException as error:  # of objects that cannot be pickled, as in mpi4py's pool
            self._free.append(rank)
            future.set_exception(error)
        else:
            self._pending[rank] = future, request, passively

    def _receive(self, rank: int) -> None:
        future, request, passively = self._pending.pop(rank)
        with self._recording(passively):
            try:
                result, error = self.comm.recv(source=rank, tag=_RESULT)
            except BaseException as problem:
                result, error = None, problem
            request.wait()
        self._free.append(rank)
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    @contextlib.contextmanager
    def _recording(self, passively: bool) -> Iterator[None]:
        """Make the executor's tape record inside the block, whatever tapes are open around the present call."""
        tape = self.tape
        with contextlib.ExitStack() as stack:
            if tape is not None and not tape.closed and recording() is not tape:
                stack.enter_context(resumed(tape))
            if passively:
                stack.enter_context(passive())
            yield


def _core() -> Any:
    return sys.modules["mpi4py.futures._core"]


def _run_here(future: Any, task: tuple) -> None:
    function, arguments, keywords = task
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments, **keywords)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _send(name: str, comm: Any, obj: Any, dest: int, tag: int) -> Any:
    """Send an object; plain arrays in it are constants, as in tasks of threads, and cause no warning."""
    return send_object(name, getattr(BASE["Comm"], name), comm, obj, dest, tag)


def _failed(error: BaseException, comm: Any) -> tuple[None, BaseException]:
    core = _core()
    return None, core._wrap_exc(error, core._format_exc(error, comm))


def _start_workers(comm: Any, options: dict[str, Any], root: int) -> bool:
    """Run the initializer on all workers; return whether it succeeded.  Collective."""
    names = ("initializer", "initargs", "initkwargs")
    given = {name: options[name] for name in names if name in options} if comm.rank == root else None
    given = BASE["Comm"].bcast(comm, given, root)
    fine = (comm.rank == root and comm.size > 1) or _core().initialize(dict(given))
    return all(BASE["Comm"].allgather(comm, bool(fine)))


def _serve(comm: Any, root: int) -> None:
    """Run tasks on a worker until the root sends no more."""
    _start_workers(comm, {}, root)
    probe = BASE["Comm"].Iprobe
    pause = _Pause()
    while True:
        if not probe(comm, root, _TASK):
            pause()
            continue
        pause = _Pause()
        try:
            task = comm.recv(source=root, tag=_TASK)
        except BaseException as error:
            _send("send", comm, _failed(error, comm), root, _RESULT)
            continue
        if task is None:
            return
        passively, function, arguments, keywords = task
        with passive() if passively else contextlib.nullcontext():
            try:
                found = function(*arguments, **keywords), None
            except BaseException as error:
                found = _failed(error, comm)
            try:
                _send("send", comm, found, root, _RESULT)
            except BaseException as error:
                _send("send", comm, _failed(error, comm), root, _RESULT)


def _enter(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Run ``MPICommExecutor.__enter__``, collective, with mpi4py's own pool if no rank has a tape."""
    executor, comm, root = _bind(*arguments, **keywords)
    tape = opened()
    if executor is not None:
        remote.of_communicators.add(executor)
    if _core().SharedPool is not None or not any(BASE["Comm"].allgather(comm, tape is not None)):
        return found.original(executor, comm, root)
    own = comm.Dup() if isinstance(comm, Communicator) else adopt(BASE["Comm"].Dup(comm))
    workers = own.Split(int(own.rank == root), own.rank)  # for tasks that communicate
    if own.rank == root:
        workers.Free()
        executor._pool = pool = Pool(own, tape, executor._options)
        executor.Future = lambda: RankFuture(pool)
        return None
    _core().set_comm_server(workers)
    try:
        _serve(own, root)
    finally:
        _core().del_comm_server()
        workers.Free()
        own.Free()
    return None


def _bind(executor: Any, comm: Any, root: int) -> tuple[Any, Any, int]:
    return executor, comm, root


# ---------------------------------------------------------------------- pools whose workers do not run the program


def _submit(found: Hook, arguments: tuple, keywords: dict) -> Any:
    pool, tape = getattr(arguments[0], "_pool", None), recording()
    if not isinstance(pool, Pool):
        return remote.submit(found, arguments, keywords)
    if tape not in (None, pool.tape) and any(is_active(tape, x) for x in _held((arguments[1:], keywords))):
        raise ActivityError(
            f"{where_called()}: a task is given a value that carries derivatives on an inner tape, and the tasks of "
            "this MPICommExecutor are recorded on the tape that was open when it was entered; enter another one "
            "inside, or pass ampi.value(x)"
        )
    return found.original(*arguments, **keywords)


def _held(x: Any) -> Iterator[Any]:
    """Iterate over the values in the arguments of a task."""
    for leaf in leaves(x):
        if isinstance(leaf, functools.partial):
            yield from _held((leaf.func, leaf.args, leaf.keywords))
        else:
            yield leaf


def _see() -> None:
    hook(_core()._comm_executor_helper, _enter, "mpi4py.futures.MPICommExecutor", EverHook)
    kind = sys.modules["mpi4py.futures.pool"].MPIPoolExecutor
    found = hook(kind.submit, _submit, "mpi4py.futures.MPIPoolExecutor.submit", AlwaysHook)
    shut_down = operator.attrgetter("_shutdown")
    remote.enter_kind(kind, found.original, shut_down, lambda executor: type(executor)(**executor._options))


arrivals.when_imported("mpi4py.futures.pool", _see)
