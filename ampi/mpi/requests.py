"""Requests and matched messages: subclasses of mpi4py's which complete what the log of a tape holds.

`mpi4py.MPI.Request` and its relatives are rebound to these classes by ``import ampi``, because programs write
``MPI.Request.Waitall(requests)`` against mpi4py's name. Objects of mpi4py's own classes are taken everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mpi4py import MPI as mpi

from ..recording import opened
from ..tape import Tape, living
from .arrivals_seen import forget, is_done, take, take_all, take_first, take_some
from .buffers import Buffer
from .log import begin
from .messages import CUT, Completion, Lost, Received, Sent


class AcceptsBase(type):
    """Metaclass: objects of the mpi4py class that a class stands for (``_base``) count as instances."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls.__dict__.get("_base", cls), instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return type.__subclasscheck__(cls.__dict__.get("_base", cls), subclass)


class Handles:
    """Constructors from handles: mpi4py's give objects of its own classes."""

    __slots__ = ()
    _base: Any

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        """Object of an MPI handle."""
        return cls(cls._base.fromhandle(handle))  # type: ignore[call-arg]

    @classmethod
    def fromint(cls, arg: int) -> Any:
        """Object of an integer handle of the MPI ABI."""
        return cls(cls._base.fromint(arg))  # type: ignore[call-arg]

    @classmethod
    def f2py(cls, arg: int) -> Any:
        """Object of a Fortran handle."""
        return cls(cls._base.f2py(arg))  # type: ignore[call-arg]


class Constant:
    """Objects that are predefined: pickled by their names, never freed."""

    __slots__ = ()

    def free(self) -> None:
        """Free the object if it is not predefined or null."""
        if id(self) not in constant_names:
            super().free()  # type: ignore[misc]

    def __reduce__(self) -> Any:
        name = constant_names.get(id(self))
        return super().__reduce__() if name is None else name


constant_names: dict[int, str] = {}
"""Names of our predefined datatypes and operations, by id."""


def predefined(base: dict[str, Any], kind: type, ours: Any) -> dict[str, Any]:
    """Our objects for the predefined ones of a class of mpi4py's, by name."""
    made: dict[int, Any] = {}
    constants = {}
    for name, value in base.items():
        if type(value) is kind:
            if id(value) not in made:
                made[id(value)] = ours.__new__(ours, value)
                constant_names[id(made[id(value)])] = name
            constants[name] = made[id(value)]
    return constants


at_plain_start: list[Callable[[mpi.Prequest], None]] = []
"""Called with requests of mpi4py's own class that are about to start."""

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
        if _parts_of(self) is None:
            return _Wait(self, status)
        status = _status_for(self, status)
        try:
            if not take(self, status):
                _Wait(self, status)
        except mpi.Exception as error:
            _raised([self], [status], error)
            raise
        _finish([self], [status])
        return True

    def Test(self, status: mpi.Status | None = None) -> bool:
        """Test for the completion of a non-blocking operation."""
        if _parts_of(self) is None:
            return _Test(self, status)
        status = _status_for(self, status)
        try:
            if not take(self, status) and not _Test(self, status):
                return False
        except mpi.Exception as error:
            _raised([self], [status], error)
            raise
        _finish([self], [status])
        return True

    @classmethod
    def Waitall(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> bool:
        """Wait for all previously initiated requests."""
        if not living:
            return _Waitall(requests, statuses)
        completion = _complete(requests)
        if completion is None:
            statuses = _statuses_for(requests, statuses)
            try:
                _Waitall(requests, statuses)
            except mpi.Exception as error:
                _raised(requests, statuses, error)
                raise
            take_all(requests, statuses)
            _finish(requests, statuses)
            return True
        try:
            _Waitall(requests, statuses)
            take_all(requests, statuses)
            return True
        except BaseException as error:
            _restore(requests, completion)
            if isinstance(error, mpi.Exception):
                _raised(requests, None, error)
            raise

    @classmethod
    def Testall(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> bool:
        """Test for the completion of all previously initiated requests."""
        if not _any_recorded(requests):
            return _Testall(requests, statuses)
        statuses = _statuses_for(requests, statuses)
        try:
            if not _Testall(requests, statuses):
                return False
        except mpi.Exception as error:
            _raised(requests, statuses, error)
            raise
        take_all(requests, statuses)
        _finish(requests, statuses)
        return True

    @classmethod
    def Waitany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> int:
        """Wait for any previously initiated request to complete."""
        if not _any_recorded(requests):
            return _Waitany(requests, status)
        status = mpi.Status() if status is None else status
        index = take_first(requests, status)
        if index < 0:
            try:
                index = _Waitany(requests, status)
            except mpi.Exception as error:
                _raised(requests, [status] * len(requests), error)
                raise
        if index >= 0:
            _finish([requests[index]], [status])
        return index

    @classmethod
    def Testany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> tuple[int, bool]:
        """Test for completion of any previously initiated request."""
        if not _any_recorded(requests):
            return _Testany(requests, status)
        status = mpi.Status() if status is None else status
        index, flag = take_first(requests, status), True
        if index < 0:
            try:
                index, flag = _Testany(requests, status)
            except mpi.Exception as error:
                _raised(requests, [status] * len(requests), error)
                raise
        if flag and index >= 0:
            _finish([requests[index]], [status])
        return index, flag

    @classmethod
    def Waitsome(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> list[int] | None:
        """Wait for some previously initiated requests to complete."""
        if not _any_recorded(requests):
            return _Waitsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        return _some(_Waitsome, requests, statuses)

    @classmethod
    def Testsome(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> list[int] | None:
        """Test for completion of some previously initiated requests."""
        if not _any_recorded(requests):
            return _Testsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        return _some(_Testsome, requests, statuses)

    def Get_status(self, status: mpi.Status | None = None) -> bool:
        """Non-destructive test for the completion of a request."""
        parts = _parts_of(self)
        if parts is None:
            return _Get_status(self, status)
        status = _status_for(self, status)
        done = is_done(self, status)
        if done and status is not None and status.Is_cancelled():  # MPICH says so only once
            for part in parts:
                part.resolve(status)
        return done

    def Cancel(self) -> None:
        """Cancel a request."""
        for part in _parts_of(self) or ():
            part.wild = True  # the status at completion says whether it succeeded
        _Request.Cancel(self)

    # ------------------------------------------------------------------------------------------- Python objects

    def wait(self, status: mpi.Status | None = None) -> Any:
        """Wait for a non-blocking operation to complete."""
        if _parts_of(self) is None:
            return _wait(self, status)
        status = _status_for(self, status)
        try:
            message = None if take(self, status) else _wait(self, status)
        except BaseException:
            _lost([self])
            raise
        return _finish_objects([self], [status], [message])[0]

    def test(self, status: mpi.Status | None = None) -> tuple[bool, Any]:
        """Test for the completion of a non-blocking operation."""
        if _parts_of(self) is None:
            return _test(self, status)
        status = _status_for(self, status)
        try:
            flag, message = (True, None) if take(self, status) else _test(self, status)
        except BaseException:
            _lost([self])
            raise
        if not flag:
            return flag, message
        return flag, _finish_objects([self], [status], [message])[0]

    @classmethod
    def waitall(cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None) -> list[Any]:
        """Wait for all previously initiated requests."""
        if not _any_recorded(requests):
            return _waitall(requests, statuses)
        statuses = _statuses_for(requests, statuses)
        try:
            messages = _waitall(requests, statuses)
        except BaseException:
            _lost(requests)
            raise
        take_all(requests, statuses)
        return _finish_objects(requests, statuses, messages)

    @classmethod
    def testall(
        cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Test for the completion of all previously initiated requests."""
        if not _any_recorded(requests):
            return _testall(requests, statuses)
        statuses = _statuses_for(requests, statuses)
        flag, messages = _testall(requests, statuses)
        if flag:
            take_all(requests, statuses)
        return (True, _finish_objects(requests, statuses, messages)) if flag else (flag, messages)

    @classmethod
    def waitany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> tuple[int, Any]:
        """Wait for any previously initiated request to complete."""
        if not _any_recorded(requests):
            return _waitany(requests, status)
        status = mpi.Status() if status is None else status
        index, message = take_first(requests, status), None
        if index < 0:
            index, message = _waitany(requests, status)
        if index < 0:
            return index, message
        return index, _finish_objects([requests[index]], [status], [message])[0]

    @classmethod
    def testany(cls, requests: Sequence[mpi.Request], status: mpi.Status | None = None) -> tuple[int, bool, Any]:
        """Test for completion of any previously initiated request."""
        if not _any_recorded(requests):
            return _testany(requests, status)
        status = mpi.Status() if status is None else status
        index, flag, message = take_first(requests, status), True, None
        if index < 0:
            index, flag, message = _testany(requests, status)
        if not flag or index < 0:
            return index, flag, message
        return index, flag, _finish_objects([requests[index]], [status], [message])[0]

    @classmethod
    def waitsome(
        cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for some previously initiated requests to complete."""
        if not _any_recorded(requests):
            return _waitsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        indices = take_some(requests, statuses)
        some = _waitsome(requests, statuses) if indices is None else (indices, [None] * len(indices))
        return _finish_some_objects(requests, some, statuses)

    @classmethod
    def testsome(
        cls, requests: Sequence[mpi.Request], statuses: list[mpi.Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Test for completion of some previously initiated requests."""
        if not _any_recorded(requests):
            return _testsome(requests, statuses)
        statuses = [] if statuses is None else statuses
        indices = take_some(requests, statuses)
        some = _testsome(requests, statuses) if indices is None else (indices, [None] * len(indices))
        return _finish_some_objects(requests, some, statuses)


# What a recording tape knows of a request, absent if nothing: the messages in its log, the tape (by reference), and
# what makes the object for the user of the one that mpi4py's lowercase wait returns. And what `held_buffers` holds.
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

    # _start logs the operation that starts, and returns its parts; receives with wildcards can be narrowed; the status
    # of one that a tape has seen to arrive
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
    """The request of a persistent operation; ``start()`` is called before each start while a tape exists."""
    ours = Prequest.__new__(Prequest, request)
    ours._start = start
    return ours


def _ready(request: Any, partitions: Iterable[int]) -> None:
    ready = getattr(getattr(request, "_start", None), "ready", None)
    if living and ready is not None:
        ready(partitions)


def _log_start(request: mpi.Prequest) -> tuple[Sent | Received, ...]:
    """Log and record what is about to start."""
    start = getattr(request, "_start", None)
    if start is None and type(request) is _Prequest:
        for look in at_plain_start:
            look(request)
    return () if start is None else start()


def _start(requests: Sequence[mpi.Prequest], primal: Callable[[], None]) -> None:
    """Start requests.  MPI looks at all of them, and starts none if it refuses one, by an error that programs catch."""
    tape = opened()
    # A tangent goes before its message, and cannot be called back.  Of what is active MPI knows more than a tape does.
    pushes = tape is not None and (tape.forward is not None or tape.tangents is not None)
    first = not all(requests) or (pushes and _any_recorded(requests))
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
    """MPI has refused to start a request."""
    for part in parts:
        if hasattr(part, "take_back"):
            part.take_back(opened(), error)
        else:
            part.void = True
            if isinstance(part, Received):
                part.resolve(None)


def _started(request: mpi.Prequest, parts: tuple[Sent | Received, ...]) -> None:
    """A request has been started.  Before, MPI says of it that it has completed."""
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
    """The request of a recorded operation.

    Parameters
    ----------
    tape : Tape
        That logged the parts.
    request : mpi4py.MPI.Request
        To be dropped: the one returned takes its place.
    *parts : Sent, Received or Started
        Messages that the request completes, or a collective.
    unpack : callable, optional
        For requests of Python objects: given the object that mpi4py's lowercase wait returns, the one for the user.
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


def _parts_of(request: Any) -> tuple[Sent | Received, ...] | None:
    return getattr(request, "parts", None)


def _any_recorded(requests: Iterable[Any]) -> bool:
    for request in requests:
        if getattr(request, "parts", None) is not None:
            return True
    return False


def _status_for(request: Any, status: mpi.Status | None) -> mpi.Status | None:
    if status is None:
        for part in request.parts:
            if part.wild:
                return mpi.Status()
    return status


def _statuses_for(requests: Sequence[Any], statuses: list[mpi.Status] | None) -> list[mpi.Status] | None:
    if statuses is None:
        for request in requests:
            for part in getattr(request, "parts", None) or ():
                if part.wild:
                    return []
    return statuses


def _complete(requests: Sequence[Any]) -> Completion | None:
    """Record the completion of requests that are about to be waited for, while what is known of them is in the caches.

    Returns
    -------
    Completion or None
        What each of them completes.  None where something is to be learned when they have completed (`_finish`), or
        some have not been recorded.
    """
    completed = []
    reference = None
    for request in requests:
        parts = getattr(request, "parts", None)
        if parts is None or len(parts) > 1:
            return None
        part = parts[0]
        if part.wild or type(part.buffer) is not Buffer:
            return None
        if type(part) is Sent:
            if part.request is not None:
                return None
        elif type(part) is not Received or part.buffer.storage is None:
            return None
        if request.recorded_by is not reference:
            if reference is not None:
                return None
            reference = request.recorded_by
        completed.append(part)
    if reference is None:
        return None
    tape = reference()
    if tape is None or tape.observer is not None:  # which looks at what others do, when this is recorded
        return None
    for request in requests:
        part = request.parts[0]
        request.parts = None
        if type(part) is Received:
            part.request = None
            part.buffer.storage.arriving -= 1
    completion = Completion(completed)
    tape.append_record(completion)
    return completion


def _restore(requests: Sequence[Any], completion: Completion) -> None:
    """The wait has failed: nobody knows which of them have completed."""
    for request, part in zip(requests, completion):
        request.parts = (part,)
        if type(part) is Received:
            part.request = request
            part.buffer.storage.arriving += 1
    completion.clear()


def _finish(requests: Sequence[Any], statuses: Sequence[mpi.Status | None] | None) -> None:
    """Requests have completed: resolve what they matched, and record the wait on the tape of the start."""
    begun = Completion()
    reference = None
    position = -1
    for request in requests:
        position += 1
        parts = getattr(request, "parts", None)
        if parts is None:
            continue
        request.parts = None
        if request.recorded_by is not reference:
            if begun:
                _record_completion(reference, begun)
                begun = Completion()
            reference = request.recorded_by
        for part in parts:
            if type(part) is Sent:
                if part.wild:
                    part.resolve(None if statuses is None else statuses[position])
                if part.buffer is not None:
                    begun.append(part)
            elif type(part) is Received:
                part.resolve(None if statuses is None else statuses[position])
                if part.buffer is not None:
                    begun.append(part)
            else:
                part.resolve(None if statuses is None else statuses[position])
                if part.active:
                    begun.append(part)
    if begun:
        _record_completion(reference, begun)


def _record_completion(reference: Any, completed: Completion) -> None:
    """Record the wait on the tape of the start."""
    tape = reference()
    if tape is not None:
        tape.append_record(completed)


def _some(
    primal: Callable[..., list[int] | None], requests: Sequence[Any], statuses: list[mpi.Status]
) -> list[int] | None:
    indices = take_some(requests, statuses)
    if indices is None:
        try:
            indices = primal(requests, statuses)
        except mpi.Exception as error:
            _raised(requests, None, error)
            raise
    if indices:
        _finish([requests[index] for index in indices], statuses)
    return indices


def _raised(requests: Sequence[Any], statuses: Sequence[mpi.Status | None] | None, error: mpi.Exception) -> None:
    """A wait or test has raised an error, which the program may catch: some requests have completed nevertheless.

    MPI fills the memory of a message that was too long with its head.
    """
    alone = len(requests) == 1 and error.Get_error_class() == mpi.ERR_TRUNCATE
    if statuses is not None and len(statuses) < len(requests):
        statuses = None
    ended = [k for k, request in enumerate(requests) if _parts_of(request) is not None and (alone or not request)]
    for k in ended:
        for part in requests[k].parts:
            if isinstance(part, Received):
                part.nbytes = CUT
    _finish([requests[k] for k in ended], None if statuses is None else [statuses[k] for k in ended])


def _lost(requests: Sequence[Any]) -> None:
    """A wait for objects has raised an error: those that have come could not be unpickled, or were too long."""
    ended = [request for request in requests if _parts_of(request) is not None and not request]
    for request in ended:
        for part in request.parts:
            if isinstance(part, Received):
                part.__class__ = Lost
                part.buffer, part.dropped = None, True
    _finish(ended, None)


def _finish_objects(
    requests: Sequence[Any], statuses: Sequence[mpi.Status | None] | None, messages: Sequence[Any]
) -> list[Any]:
    unpackers = [getattr(request, "unpack", None) if _parts_of(request) else None for request in requests]
    messages = [message if unpack is None else unpack(message) for unpack, message in zip(unpackers, messages)]
    _finish(requests, statuses)
    return messages


def _finish_some_objects(
    requests: Sequence[Any], some: tuple[list[int] | None, list[Any] | None], statuses: Sequence[mpi.Status]
) -> tuple[list[int] | None, list[Any] | None]:
    indices, messages = some
    if not indices:
        return indices, messages
    return indices, _finish_objects([requests[index] for index in indices], statuses, messages or ())
