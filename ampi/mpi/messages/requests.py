"""Requests: subclasses of mpi4py's that complete operations in the log of a tape.

``import ampi`` rebinds `mpi4py.MPI.Request` and `mpi4py.MPI.Prequest` to these classes, because programs call
``MPI.Request.Waitall(requests)`` by mpi4py's name.  Objects of mpi4py's original classes are accepted everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI as mpi

from ...tape import Tape, living
from ...tape.recording import opened
from ..base.handles import AcceptsBase, Handles
from ..log.log import begin
from ..log.messages import Received, Sent
from ..waiting.arrivals_seen import forget, is_done, take, take_all, take_first, take_some
from .completion import (
    any_recorded,
    finish,
    finish_objects,
    finish_some_objects,
    lost,
    parts_of,
    raised,
    record_completion,
    record_some,
    restore,
    status_for,
    statuses_for,
)

at_plain_start: list[Callable[[mpi.Prequest], None]] = []
"""Called with requests of mpi4py's original class that are about to start."""

_Request = mpi.Request  # mpi4py's own: the name in its module is rebound later
_Prequest = mpi.Prequest
_Wait, _Test, _wait, _test = _Request.Wait, _Request.Test, _Request.wait, _Request.test
_Get_status = _Request.Get_status
_Waitall, _Testall, _waitall, _testall = _Request.Waitall, _Request.Testall, _Request.waitall, _Request.testall
_Waitany, _Testany, _waitany, _testany = _Request.Waitany, _Request.Testany, _Request.waitany, _Request.testany
_Waitsome, _Testsome, _waitsome, _testsome = (
    _Request.Waitsome,
    _Request.Testsome,
    _Request.waitsome,
    _Request.testsome,
)


class Completions:
    """Methods of requests that complete them."""

    __slots__ = ()

    def Wait(self, status: mpi.Status | None = None) -> bool:
        """Wait for a non-blocking operation to complete."""
        if parts_of(self) is None:
            return _Wait(self, status)
        status = status_for(self, status)
        try:
            if not take(self, status):
                _Wait(self, status)
        except mpi.Exception as error:
            raised([self], [status], error)
            raise
        finish([self], [status])
        return True

    def Test(self, status: mpi.Status | None = None) -> bool:
        """Test for the completion of a non-blocking operation."""
        if parts_of(self) is None:
            return _Test(self, status)
        status = status_for(self, status)
        try:
            if not take(self, status) and not _Test(self, status):
                return False
        except mpi.Exception as error:
            raised([self], [status], error)
            raise
        finish([self], [status])
        return True

    @classmethod
    def Waitall(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> bool:
        """Wait for all previously initiated requests."""
        if not living:
            return _Waitall(requests, statuses)
        completion = record_completion(requests)
        if completion is None:
            statuses = statuses_for(requests, statuses)
            try:
                _Waitall(requests, statuses)
            except mpi.Exception as error:
                raised(requests, statuses, error)
                raise
            take_all(requests, statuses)
            finish(requests, statuses)
            return True
        try:
            _Waitall(requests, statuses)
            take_all(requests, statuses)
            return True
        except BaseException as error:
            restore(requests, completion)
            if isinstance(error, mpi.Exception):
                raised(requests, None, error)
            raise

    @classmethod
    def Testall(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> bool:
        """Test for the completion of all previously initiated requests."""
        if not any_recorded(requests):
            return _Testall(requests, statuses)
        statuses = statuses_for(requests, statuses)
        try:
            if not _Testall(requests, statuses):
                return False
        except mpi.Exception as error:
            raised(requests, statuses, error)
            raise
        take_all(requests, statuses)
        finish(requests, statuses)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> int:
        """Wait for any previously initiated request to complete."""
        if not any_recorded(requests):
            return _Waitany(requests, status)
        status = mpi.Status() if status is None else status
        index = take_first(requests, status)
        if index < 0:
            try:
                index = _Waitany(requests, status)
            except mpi.Exception as error:
                raised(requests, [status] * len(requests), error)
                raise
        if index >= 0:
            finish([requests[index]], [status])
        return index

    @classmethod
    def Testany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> tuple[int, bool]:
        """Test for completion of any previously initiated request."""
        if not any_recorded(requests):
            return _Testany(requests, status)
        status = mpi.Status() if status is None else status
        index, flag = take_first(requests, status), True
        if index < 0:
            try:
                index, flag = _Testany(requests, status)
            except mpi.Exception as error:
                raised(requests, [status] * len(requests), error)
                raise
        if flag and index >= 0:
            finish([requests[index]], [status])
        return index, flag

    @classmethod
    def Waitsome(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> list[int] | None:
        """Wait for some previously initiated requests to complete."""
        if not any_recorded(requests):
            return _Waitsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        return record_some(_Waitsome, requests, statuses)

    @classmethod
    def Testsome(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> list[int] | None:
        """Test for completion of some previously initiated requests."""
        if not any_recorded(requests):
            return _Testsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        return record_some(_Testsome, requests, statuses)

    def Get_status(self, status: mpi.Status | None = None) -> bool:
        """Non-destructive test for the completion of a request."""
        parts = parts_of(self)
        if parts is None:
            return _Get_status(self, status)
        status = status_for(self, status)
        done = is_done(self, status)
        if done and status is not None and status.Is_cancelled():  # MPICH reports it only once
            for part in parts:
                part.resolve(status)
        return done

    def Cancel(self) -> None:
        """Cancel a request."""
        for part in parts_of(self) or ():
            part.wild = True  # the status at completion tells whether it succeeded
        _Request.Cancel(self)

    # ------------------------------------------------------------------------------------------- Python objects

    def wait(self, status: mpi.Status | None = None) -> Any:
        """Wait for a non-blocking operation to complete."""
        if parts_of(self) is None:
            return _wait(self, status)
        status = status_for(self, status)
        try:
            message = None if take(self, status) else _wait(self, status)
        except BaseException:
            lost([self])
            raise
        return finish_objects([self], [status], [message])[0]

    def test(self, status: mpi.Status | None = None) -> tuple[bool, Any]:
        """Test for the completion of a non-blocking operation."""
        if parts_of(self) is None:
            return _test(self, status)
        status = status_for(self, status)
        try:
            flag, message = (True, None) if take(self, status) else _test(self, status)
        except BaseException:
            lost([self])
            raise
        if not flag:
            return flag, message
        return flag, finish_objects([self], [status], [message])[0]

    @classmethod
    def waitall(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> list[Any]:
        """Wait for all previously initiated requests."""
        if not any_recorded(requests):
            return _waitall(requests, statuses)
        statuses = statuses_for(requests, statuses)
        try:
            messages = _waitall(requests, statuses)
        except BaseException:
            lost(requests)
            raise
        take_all(requests, statuses)
        return finish_objects(requests, statuses, messages)

    @classmethod
    def testall(
        cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Test for the completion of all previously initiated requests."""
        if not any_recorded(requests):
            return _testall(requests, statuses)
        statuses = statuses_for(requests, statuses)
        flag, messages = _testall(requests, statuses)
        if flag:
            take_all(requests, statuses)
        return (True, finish_objects(requests, statuses, messages)) if flag else (flag, messages)

    @classmethod
    def waitany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> tuple[int, Any]:
        """Wait for any previously initiated request to complete."""
        if not any_recorded(requests):
            return _waitany(requests, status)
        status = mpi.Status() if status is None else status
        index, message = take_first(requests, status), None
        if index < 0:
            index, message = _waitany(requests, status)
        if index < 0:
            return index, message
        return index, finish_objects([requests[index]], [status], [message])[0]

    @classmethod
    def testany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> tuple[int, bool, Any]:
        """Test for completion of any previously initiated request."""
        if not any_recorded(requests):
            return _testany(requests, status)
        status = mpi.Status() if status is None else status
        index, flag, message = take_first(requests, status), True, None
        if index < 0:
            index, flag, message = _testany(requests, status)
        if not flag or index < 0:
            return index, flag, message
        return index, flag, finish_objects([requests[index]], [status], [message])[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for some previously initiated requests to complete."""
        if not any_recorded(requests):
            return _waitsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        indices = take_some(requests, statuses)
        some = _waitsome(requests, statuses) if indices is None else (indices, [None] * len(indices))
        return finish_some_objects(requests, some, statuses)

    @classmethod
    def testsome(
        cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Test for completion of some previously initiated requests."""
        if not any_recorded(requests):
            return _testsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        indices = take_some(requests, statuses)
        some = _testsome(requests, statuses) if indices is None else (indices, [None] * len(indices))
        return finish_some_objects(requests, some, statuses)


# Set by a recording tape: ``parts``, the messages in its log; ``recorded_by``, a weak reference to it; ``unpack``,
# which makes the user's object from the one that mpi4py's lowercase wait returns.  ``held`` is what `held_buffers`
# keeps alive.
_SLOTS = ("held", "parts", "recorded_by", "unpack")


class Request(Completions, Handles, _Request, metaclass=AcceptsBase):
    """Request handler.

    Whatever completes it, here or by mpi4py's own class, ends the operation for the tape that recorded its start; one
    that is never completed is a `CommunicationError` in the sweep.  A cancelled message carries nothing.

    Examples
    --------
    >>> comm = ampi.COMM_SELF
    >>> def moved(x):
    ...     y = np.zeros(2)
    ...     requests = [comm.Irecv(y, 0), comm.Isend(x, 0)]
    ...     ampi.Request.Waitall(requests)
    ...     return np.sum(y * y)
    >>> ampi.grad(moved)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """

    __slots__ = _SLOTS
    _base = _Request


class Prequest(Completions, Handles, _Prequest, metaclass=AcceptsBase):
    """Persistent request handler.

    Examples
    --------
    >>> comm = ampi.COMM_SELF
    >>> def moved(x):
    ...     u, y = np.array(x), np.zeros(2)
    ...     requests = [comm.Recv_init(y, 0), comm.Send_init(u, 0)]
    ...     ampi.Prequest.Startall(requests)
    ...     ampi.Request.Waitall(requests)
    ...     return np.sum(y * y)
    >>> ampi.grad(moved)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """

    # ``_start`` logs the operation that starts and returns its parts; ``receive`` is a `WildReceive`; ``arrived`` is
    # the status if a tape has found that the request has completed.
    __slots__ = (*_SLOTS, "_start", "arrived", "receive")
    _base = _Prequest

    def Start(self) -> None:
        """Initiate a communication with a persistent request."""
        if not living:
            return _Prequest.Start(self)
        _start([self], lambda: _Prequest.Start(self))

    @classmethod
    def Startall(cls, requests: list[mpi.Prequest]) -> None:
        """Start a collection of persistent requests."""
        if not living:
            return _Prequest.Startall(requests)
        requests = list(requests)
        _start(requests, lambda: _Prequest.Startall(requests))

    def Pready(self, partition: int) -> None:
        """Mark a given partition as ready."""
        _ready(self, (partition,))
        _Prequest.Pready(self, partition)

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Mark a range of partitions as ready."""
        _ready(self, range(partition_low, partition_high + 1))
        _Prequest.Pready_range(self, partition_low, partition_high)

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Mark a sequence of partitions as ready."""
        _ready(self, partitions)
        _Prequest.Pready_list(self, partitions)

    def Parrived(self, partition: int) -> bool:
        """Test partial completion of a partitioned receive operation."""
        flag = _Prequest.Parrived(self, partition)
        arrived = getattr(getattr(self, "_start", None), "arrived", None)
        if flag and living and arrived is not None:
            arrived(partition)
        return flag


def persistent(request: mpi.Prequest, start: Callable[[], tuple[Sent | Received, ...]]) -> Prequest:
    """Return the request of a persistent operation; ``start()`` is called before each start while a tape exists."""
    ours = Prequest.__new__(Prequest, request)
    ours._start = start
    return ours


def _ready(request: Any, partitions: Iterable[int]) -> None:
    ready = getattr(getattr(request, "_start", None), "ready", None)
    if living and ready is not None:
        ready(partitions)


def _log_start(request: mpi.Prequest) -> tuple[Sent | Received, ...]:
    """Log and record an operation that is about to start."""
    start = getattr(request, "_start", None)
    if start is None and type(request) is _Prequest:
        for look in at_plain_start:
            look(request)
    return () if start is None else start()


def _start(requests: Sequence[mpi.Prequest], primal: Callable[[], None]) -> None:
    """Start requests.  MPI checks all of them, and starts none if it refuses one, with an error that programs catch."""
    tape = opened()
    # A tangent is sent before its message, and cannot be recalled.  Only MPI knows which requests are active.
    pushes = tape is not None and (tape.forward is not None or tape.tangents is not None)
    first = not all(requests) or (pushes and any_recorded(requests))
    if first:
        primal()
    logged: list[tuple[Sent | Received, ...]] = []
    try:
        for request in requests:
            logged.append(_log_start(request))
        if not first:
            primal()
    except BaseException as error:
        for parts in logged:
            _take_back(parts, error)
        raise
    for request, parts in zip(requests, logged):
        _started(request, parts)


def _take_back(parts: Iterable[Sent | Received], error: BaseException) -> None:
    """Void the entries of a request that MPI has refused to start."""
    for part in parts:
        if hasattr(part, "take_back"):
            part.take_back(opened(), error)
        else:
            part.void = True
            if isinstance(part, Received):
                part.resolve(None)


def _started(request: mpi.Prequest, parts: tuple[Sent | Received, ...]) -> None:
    """Store the parts of a request that has been started; before the start, MPI reports it as completed."""
    if getattr(request, "_start", None) is None:
        return
    forget(request)
    request.parts = parts or None
    if parts:
        request.recorded_by = opened().reference
        request.unpack = None
        for part in parts:
            if not isinstance(part, Sent):
                part.request = request
                if part.active:
                    begin(opened(), part)


def recorded(
    tape: Tape, request: mpi.Request, *parts: Sent | Received, unpack: Callable[[Any], Any] | None = None
) -> Request:
    """Return the request of a recorded operation.

    Parameters
    ----------
    tape : Tape
        The tape that logged the parts.
    request : mpi4py.MPI.Request
        To be dropped: the returned request replaces it.
    *parts : Sent, Received or Started
        Messages that the request completes, or a collective.
    unpack : callable, optional
        For requests of Python objects: makes the user's object from the one that mpi4py's lowercase wait returns.
    """
    ours = Request(request)  # type: ignore[call-arg]
    ours.parts = parts
    ours.recorded_by = tape.reference
    if unpack is not None:
        ours.unpack = unpack
    for part in parts:
        if type(part) is not Sent:
            part.request = ours
            if unpack is None and part.active:
                begin(tape, part)
    return ours
