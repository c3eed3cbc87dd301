"""Lowercase methods: Python objects that contain active arrays.

While a tape records, an object with active arrays in it (in lists, dicts, dataclasses, attributes) travels as a
`Parcel`, which pickles the object together with the list of these arrays.  On arrival the same arrays are found again
in the unpickled object, as `ampi.ndarray`s which are active, and their adjoints go back as one flat message.  Objects
without active arrays travel as they are.

Reductions combine the objects with the Python operation, which works on active arrays as everything else in Python
does, in the order and with the messages of mpi4py; these messages are differentiated one by one.
"""

from __future__ import annotations

import copyreg
import numbers
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..array import ndarray
from ..bits import movable
from ..errors import ActivityError
from ..indexing import is_active
from ..memory import RECEIVED, Region, TrackedArray, carries_derivatives, region_of, storage_of
from ..outside import warn_lost
from ..recording import current, open_tapes, opened, recording
from ..scalars import scalar
from ..tape import Sweep, Tape
from .agreement import count_passive, log_collective, log_received, log_sent
from .between import exchanged, gathered, scattered, split
from .flights import fly
from .messages import Received
from .neighborhoods import Edges, edges_of, go_back
from .reductions import Steps
from .requests import recorded
from .reverse import COLLECTIVE_TAG, reverse_of
from .rules import Operation, Treatment, enter
from .slots import SLOT

_PROC_NULL = mpi.PROC_NULL
_Comm, _Intracomm, _Topocomm, _Message = (
    mpi.Comm,
    mpi.Intracomm,
    mpi.Topocomm,
    mpi.Message,
)  # mpi4py's own: its names may be rebound


# -------------------------------------------------------------------------------------------- arrays inside an object


class Bundle:
    """The active arrays inside an object, as one message: what `Buffer` is for a buffer.

    Attributes
    ----------
    dtype : numpy.dtype
        Of the message of adjoints: the least one that holds all of them.
    count : int
        Number of elements.
    """

    __slots__ = ("count", "dtype", "regions")

    packed = False

    def __init__(self, arrays: Iterable[np.ndarray] = ()) -> None:
        self.fill(arrays)

    def fill(self, arrays: Iterable[np.ndarray]) -> None:
        """Say which arrays these are."""
        self.regions: list[Region] = [region_of(array) for array in arrays]
        self.dtype = np.result_type(*(_dtype_of(region) for region in self.regions), np.float32)
        self.count = sum(map(_size, self.regions))

    @property
    def nbytes(self) -> int:
        """Bytes of the message of adjoints."""
        return self.count * self.dtype.itemsize

    def within(self, nbytes: int) -> Bundle:
        """Objects arrive as a whole."""
        return self

    def take(self, sweep: Sweep) -> np.ndarray:
        """The adjoints in one array; the shadows become zero."""
        taken = np.empty(self.count, self.dtype)
        start = 0
        for region in self.regions:
            end = start + _size(region)
            adjoint = sweep.take(region)
            taken[start:end] = 0 if adjoint is None else adjoint.ravel()
            start = end
        return taken

    def zero(self, sweep: Sweep) -> None:
        """The shadows become zero."""
        for region in self.regions:
            sweep.zero(region)

    def add(self, sweep: Sweep, flat: np.ndarray) -> None:
        """Add to the adjoints."""
        start = 0
        for region in self.regions:
            end = start + _size(region)
            value = flat[start:end].reshape(region.shape)
            dtype = _dtype_of(region)
            if dtype.kind == "f":
                value = value.real
            sweep.add(region, value.astype(dtype, copy=False))
            start = end


def _dtype_of(region: Region) -> np.dtype:
    """Of the adjoint."""
    return region.dtype if region.dtype.kind in "fc" else SLOT


def _size(region: Region) -> int:
    size = 1
    for n in region.shape:
        size *= n
    return size


class Parcel:
    """An object on its way, with the list of the active arrays in it; unpickled it is the object."""

    __slots__ = ("arrays", "contents")

    def __init__(self, contents: Any, arrays: Sequence[TrackedArray]) -> None:
        self.contents = contents
        self.arrays = arrays

    def __reduce__(self) -> Any:
        return _open, (self.contents, list(self.arrays))


# Objects that were unpickled a moment ago, by id, with the active arrays in them: `_arrays_of` fetches them.
_arrived: dict[int, tuple[Any, list[TrackedArray]]] = {}


def _open(contents: Any, arrays: list[TrackedArray]) -> Any:
    if recording() is not None:
        _arrived[id(contents)] = contents, arrays
    return contents


def _arrays_of(message: Any) -> list[TrackedArray]:
    return _arrived.pop(id(message), (None, []))[1]


_ATOMS = (numbers.Number, str, bytes, type(None))


class _Noting(threading.local):
    """Arrays that this thread pickles; None if nobody asks."""

    arrays: list[TrackedArray] | None = None


_noting = _Noting()


def _reduced(array: TrackedArray) -> Any:
    """How arrays are pickled: as they say themselves, but noted where somebody asks for it.

    A pickle that is no message (compiled code has no frame, so whoever called it is next) loses derivatives.
    """
    if _noting.arrays is not None:
        _noting.arrays.append(array)
    elif sys._getframe(1).f_globals.get("__name__", "").split(".")[0] not in ("ampi", "mpi4py"):
        warn_lost("a pickle of", array, "send it with methods of ampi's communicators")
    return array.__reduce__()


copyreg.pickle(ndarray, _reduced)
copyreg.pickle(scalar, _reduced)


def _arrays_in(obj: Any) -> list[TrackedArray]:
    """All arrays of ours that pickling an object would meet."""
    if isinstance(obj, _ATOMS):
        return []
    if isinstance(obj, TrackedArray) and not obj.dtype.hasobject:
        return [obj]
    found: dict[int, TrackedArray] = {}
    if _walk(obj, found, set()):
        return list(found.values())
    outer, _noting.arrays = _noting.arrays, []
    try:
        mpi.pickle.dumps(obj)
        return _noting.arrays
    finally:
        _noting.arrays = outer


def _walk(obj: Any, found: dict[int, TrackedArray], seen: set[int]) -> bool:
    """Look for arrays in built-in containers; False if there is something else, which only pickling can look into."""
    if isinstance(obj, np.ndarray):
        if obj.dtype.hasobject:
            return False
        if isinstance(obj, TrackedArray):
            found[id(obj)] = obj
        return True
    if isinstance(obj, _ATOMS):
        return True
    if id(obj) in seen:
        return True
    seen.add(id(obj))
    if type(obj) in (list, tuple, set, frozenset):
        return all(_walk(item, found, seen) for item in obj)
    if type(obj) is dict:
        return all(_walk(item, found, seen) for pair in obj.items() for item in pair)
    return False


def _packed(tape: Tape, obj: Any) -> tuple[Any, Bundle]:
    """What to send for an object, and the active arrays in it."""
    arrays, memory = [], []
    for array in _arrays_in(obj):
        if not array.size:
            continue
        moved = movable(tape, array)
        if moved is None and not is_active(tape, array):
            continue
        if moved is None and array.dtype.names is not None:
            raise ActivityError(
                "an active structured array is sent inside an object; send its fields, or ampi.value(array)"
            )
        arrays.append(array)
        memory.append(array if moved is None else moved)
    return (Parcel(obj, arrays), Bundle(memory)) if arrays else (obj, _EMPTY)


_EMPTY = Bundle()


def _unpacked(tape: Tape, message: Any) -> tuple[Bundle, list[TrackedArray]]:
    """The active arrays in an object that has arrived."""
    arrays = _arrays_of(message)
    for array in arrays:
        tape.activate(array)
        if not carries_derivatives(array.dtype):
            storage_of(array).packed = RECEIVED  # type: ignore[union-attr]
    return (Bundle(arrays) if arrays else _EMPTY), arrays


# ------------------------------------------------------------------------------------------------- point to point


def _send(name: str, primal: Callable[..., Any], comm: Any, obj: Any, dest: int, tag: int) -> Any:
    """Send an object, blocking or not, while a tape is open."""
    tape = opened()
    if tape is None:
        _refuse_others(obj)
        return primal(comm, obj, dest, tag)
    payload, bundle = (obj, _EMPTY) if recording() is None else _packed(tape, obj)
    sent = log_sent(tape, name, comm, bundle, bundle.count > 0, dest, tag)
    if sent.active:
        tape.append(sent)
    request = primal(comm, payload, dest, tag)
    return recorded(tape, request, sent) if sent.active and isinstance(request, mpi.Request) else request


def posted(name: str, comm: Any, source: int, tag: int) -> Received:
    """Log the receive of an object."""
    passive = recording() is None
    receive = log_received(opened(), name, comm, Bundle(), not passive, source, tag)
    receive.dropped = passive
    return receive


def received(tape: Tape, receive: Received, message: Any) -> Any:
    """The object of a receive has arrived."""
    if not receive.dropped:
        _, arrays = _unpacked(tape, message)
        receive.buffer.fill(arrays)
    return message


def _status_for(receive: Received, status: mpi.Status | None) -> mpi.Status | None:
    return mpi.Status() if status is None and receive.wild else status


class Objects:
    """Methods of all communicators that send and receive Python objects."""

    __slots__ = ()

    _primal: Any = _Comm
    """Whose methods move the pickled objects."""

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object in standard mode."""
        if not open_tapes or dest == _PROC_NULL:
            return self._primal.send(self, obj, dest, tag)
        return _send("send", self._primal.send, self, obj, dest, tag)

    def bsend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object in buffered mode.  With active arrays in it, it takes some hundred bytes more than pickled."""
        if not open_tapes or dest == _PROC_NULL:
            return self._primal.bsend(self, obj, dest, tag)
        return _send("bsend", self._primal.bsend, self, obj, dest, tag)

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object in synchronous mode."""
        if not open_tapes or dest == _PROC_NULL:
            return self._primal.ssend(self, obj, dest, tag)
        return _send("ssend", self._primal.ssend, self, obj, dest, tag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send of an object."""
        if not open_tapes or dest == _PROC_NULL:
            return self._primal.isend(self, obj, dest, tag)
        return _send("isend", self._primal.isend, self, obj, dest, tag)

    def ibsend(self, obj: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send of an object in buffered mode."""
        if not open_tapes or dest == _PROC_NULL:
            return self._primal.ibsend(self, obj, dest, tag)
        return _send("ibsend", self._primal.ibsend, self, obj, dest, tag)

    def issend(self, obj: Any, dest: int, tag: int = 0) -> mpi.Request:
        """Nonblocking send of an object in synchronous mode."""
        if not open_tapes or dest == _PROC_NULL:
            return self._primal.issend(self, obj, dest, tag)
        return _send("issend", self._primal.issend, self, obj, dest, tag)

    def recv(
        self,
        buf: Any = None,
        source: int = mpi.ANY_SOURCE,
        tag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> Any:
        """Receive an object."""
        tape = opened() if open_tapes else None
        if tape is None or source == _PROC_NULL:
            return self._primal.recv(self, buf, source, tag, status)
        receive = posted("recv", self, source, tag)
        status = _status_for(receive, status)
        message = received(tape, receive, self._primal.recv(self, buf, source, tag, status))
        receive.resolve(status)
        if receive.active and receive.buffer.count:
            tape.append(receive)
        return message

    def irecv(self, buf: Any = None, source: int = mpi.ANY_SOURCE, tag: int = mpi.ANY_TAG) -> mpi.Request:
        """Nonblocking receive of an object."""
        tape = opened() if open_tapes else None
        if tape is None or source == _PROC_NULL:
            return self._primal.irecv(self, buf, source, tag)
        receive = posted("irecv", self, source, tag)
        if not receive.dropped:
            tape.append(receive)
        request = self._primal.irecv(self, buf, source, tag)
        return recorded(tape, request, receive, unpack=lambda message: received(tape, receive, message))

    def sendrecv(
        self,
        sendobj: Any,
        dest: int,
        sendtag: int = 0,
        recvbuf: Any = None,
        source: int = mpi.ANY_SOURCE,
        recvtag: int = mpi.ANY_TAG,
        status: mpi.Status | None = None,
    ) -> Any:
        """Send and receive an object."""
        if not open_tapes:
            return self._primal.sendrecv(self, sendobj, dest, sendtag, recvbuf, source, recvtag, status)
        going = self.isend(sendobj, dest, sendtag)
        message = self.recv(recvbuf, source, recvtag, status)
        going.wait()
        return message

    # ------------------------------------------------------------------------------------------------- collectives

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast an object."""
        tape = _tape_or_passive(self, obj)
        if tape is None:
            return self._primal.bcast(self, obj, root)
        return _bcast(tape, self, obj, root, partial(self._primal.bcast, self))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather objects."""
        tape = _tape_or_passive(self, sendobj)
        if tape is None:
            return self._primal.gather(self, sendobj, root)
        receives_only = root in _OF_ROOTS_GROUP
        payload, sent = (None, _EMPTY) if receives_only else _packed(tape, sendobj)
        messages = self._primal.gather(self, payload, root)
        came, arrays = _unpacked_each(tape, messages or ())

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            mine = np.empty(sent.nbytes, np.uint8)
            going = _in_bytes(sweep, came)
            if comm.Is_inter():
                yield scattered(comm, going, mine, root)
            else:
                yield [comm.Iscatterv(_joined(going), mine, root)]
            sent.add(sweep, mine.view(sent.dtype))

        _record(tape, self, "gather", [sent], adjoint, arrays)
        return messages

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter objects."""
        tape = _tape_or_passive(self, sendobj)
        sends = _is_root(self, root)
        if tape is None or (sends and sendobj is None):
            return self._primal.scatter(self, sendobj, root)
        packed = [_packed(tape, item) for item in sendobj] if sends else []  # type: ignore[union-attr]
        sent = [bundle for _, bundle in packed]
        message = self._primal.scatter(self, [payload for payload, _ in packed] if sends else None, root)
        came, arrays = _unpacked(tape, message)

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            counts = [bundle.nbytes for bundle in sent]
            total = np.empty(sum(counts), np.uint8)
            mine = None if root in _OF_ROOTS_GROUP else came.take(sweep).view(np.uint8)
            if comm.Is_inter():
                yield gathered(comm, mine, split(total, counts), root)
            else:
                yield [comm.Igatherv(mine, [total, counts] if counts else None, root)]
            _add_bytes(sweep, sent, total)

        _record(tape, self, "scatter", sent, adjoint, arrays)
        return message

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects on all ranks."""
        tape = _tape_or_passive(self, sendobj)
        if tape is None:
            return self._primal.allgather(self, sendobj)
        payload, sent = _packed(tape, sendobj)
        messages = self._primal.allgather(self, payload)
        came, arrays = _unpacked_each(tape, messages)

        def adjoint_between_groups(sweep: Sweep, comm: Any) -> Steps:
            total = np.empty((len(came), sent.nbytes), np.uint8)
            yield exchanged(comm, _in_bytes(sweep, came), total)
            for mine in total:
                sent.add(sweep, mine.view(sent.dtype))

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            dtype = np.result_type(*(bundle.dtype for bundle in came))
            total = np.concatenate([bundle.take(sweep).astype(dtype, copy=False) for bundle in came])
            mine = np.empty(sent.count, dtype)
            yield [comm.Ireduce_scatter(total, mine, [bundle.count for bundle in came], mpi.SUM)]
            sent.add(sweep, mine)

        _record(tape, self, "allgather", [sent], adjoint_between_groups if self.Is_inter() else adjoint, arrays)
        return messages

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send an object from each rank to each."""
        tape = _tape_or_passive(self, sendobj)
        if tape is None or sendobj is None:
            return self._primal.alltoall(self, sendobj)
        packed = [_packed(tape, item) for item in sendobj]
        sent = [bundle for _, bundle in packed]
        messages = self._primal.alltoall(self, [payload for payload, _ in packed])
        came, arrays = _unpacked_each(tape, messages)

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            counts = [bundle.nbytes for bundle in sent]
            total = np.empty(sum(counts), np.uint8)
            going = _in_bytes(sweep, came)
            if comm.Is_inter():
                yield exchanged(comm, going, split(total, counts))
            else:
                yield [comm.Ialltoallv(_joined(going), [total, counts])]
            _add_bytes(sweep, sent, total)

        _record(tape, self, "alltoall", sent, adjoint, arrays)
        return messages

    # -------------------------------------------------------------------------------------------------- reductions

    def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM, root: int = 0) -> Any:
        """Combine objects of all ranks on one, in the order of the ranks."""
        if _tape_for(self, "reduce", sendobj) is None:
            return self._primal.reduce(self, sendobj, op, root)
        if self.Is_inter():
            return _reduce_between(self, sendobj, op, root)
        if not 0 <= root < self.Get_size():
            return self._primal.reduce(self, sendobj, op, root)
        messages = _Messages(self, "reduce")
        result = _on_rank_0(messages, sendobj, op)
        if root != 0:
            if messages.rank == 0:
                messages.send(result, root)
            elif messages.rank == root:
                result = messages.receive(0)
        return result if messages.rank == root else None

    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
        """Combine objects of all ranks on all, in the order of the ranks."""
        tape = _tape_for(self, "allreduce", sendobj)
        if tape is None:
            return self._primal.allreduce(self, sendobj, op)
        if self.Is_inter():
            return _allreduce_between(tape, self, sendobj, op)
        messages = _Messages(self, "allreduce")
        return _bcast(tape, self, _on_rank_0(messages, sendobj, op), 0, partial(_Comm.bcast, messages.comm))


class IntracommObjects:
    """Methods of intracommunicators that combine Python objects."""

    __slots__ = ()

    def scan(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
        """Combine objects of the ranks up to this one."""
        if _tape_for(self, "scan", sendobj) is None:
            return _Intracomm.scan(self, sendobj, op)
        messages = _Messages(self, "scan")
        result = partial = _copied(sendobj)
        for partner in messages.partners():
            came = messages.exchange(partial, partner)
            if partner < messages.rank:
                partial = op(came, partial)
                result = op(came, result)
            else:
                partial = op(partial, came)
        return result

    def exscan(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
        """Combine objects of the ranks before this one; None on rank 0."""
        if _tape_for(self, "exscan", sendobj) is None:
            return _Intracomm.exscan(self, sendobj, op)
        messages = _Messages(self, "exscan")
        partial = _copied(sendobj)
        result: tuple[Any] | None = None
        for partner in messages.partners():
            came = messages.exchange(partial, partner)
            if partner < messages.rank:
                partial = op(came, partial)
                result = (came if result is None else op(came, result[0]),)
            else:
                partial = op(partial, came)
        return None if result is None else result[0]


def record_matched(receive: Received, message: Any) -> Any:
    """Record what a blocking receive of a matched message gave; the object for the user."""
    tape = opened()
    message = received(tape, receive, message)
    if receive.active and receive.buffer.count:
        tape.append(receive)
    return message


class MatchedObjects:
    """Methods of matched messages that receive Python objects.  ``_receive`` is the probe's entry in the log."""

    __slots__ = ()

    def recv(self, status: mpi.Status | None = None) -> Any:
        """Blocking receive of the matched message."""
        receive = matched(self, "mrecv")
        message = _Message.recv(self, status)
        if receive is None:
            return message
        return record_matched(receive, message)

    def irecv(self) -> mpi.Request:
        """Nonblocking receive of the matched message."""
        receive = matched(self, "imrecv")
        request = _Message.irecv(self)
        if receive is None:
            return request
        tape = opened()
        if not receive.dropped:
            tape.append(receive)
        return recorded(tape, request, receive, unpack=lambda message: received(tape, receive, message))


def matched(message: Any, name: str) -> Received | None:
    """The probe's entry in the log, made that of the receive of an object."""
    receive = getattr(message, "_receive", None)
    if opened() is None or receive is None:
        return None
    message._receive = None
    receive.rename(name)
    receive.dropped = recording() is None
    receive.buffer = None if receive.dropped else Bundle()
    return receive


class TopocommObjects:
    """Methods of communicators with a topology that send and receive Python objects."""

    __slots__ = ()

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects from the neighbors."""
        tape = _tape_or_passive(self, sendobj)
        if tape is None:
            return _Topocomm.neighbor_allgather(self, sendobj)
        payload, sent = _packed(tape, sendobj)
        return _among_neighbors(
            tape,
            self,
            "neighbor_allgather",
            payload,
            lambda edges: [sent] * len(edges.leaving),
            _Topocomm.neighbor_allgather,
        )

    def neighbor_alltoall(self, sendobj: Any) -> list[Any]:
        """Send an object to each neighbor."""
        tape = _tape_or_passive(self, sendobj)
        if tape is None:
            return _Topocomm.neighbor_alltoall(self, sendobj)
        packed = [_packed(tape, item) for item in sendobj]
        payload = [item for item, _ in packed]
        return _among_neighbors(
            tape,
            self,
            "neighbor_alltoall",
            payload,
            lambda edges: [packed[slot][1] for slot, _ in edges.leaving],
            _Topocomm.neighbor_alltoall,
        )


def _among_neighbors(
    tape: Tape,
    comm: Any,
    name: str,
    payload: Any,
    sent_by: Callable[[Edges], list[Bundle]],
    primal: Callable[[Any, Any], list[Any]],
) -> list[Any]:
    """A neighborhood collective; ``sent_by`` gives what each edge that leaves has of the payload."""
    edges = edges_of(comm)
    sent = sent_by(edges)
    if not edges.known and any(bundle.count for bundle in sent):
        raise ActivityError(f"{name}: which edge is which in an asymmetric graph is not known; send ampi.value(...)")
    messages = primal(comm, payload)
    came, arrays = _unpacked_each(tape, (messages[slot] for slot, _ in edges.arriving))

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        going = [bundle.take(sweep).view(np.uint8) for bundle in came]
        coming = [np.empty(bundle.nbytes, np.uint8) for bundle in sent]
        yield go_back(comm, edges, going, coming)
        for bundle, array in zip(sent, coming, strict=True):
            bundle.add(sweep, array.view(bundle.dtype))

    _record(tape, comm, name, sent, adjoint, arrays)
    return messages


# ------------------------------------------------------------------------------------------- parts of a collective


class _Collective:
    """Record of a collective: its adjoint."""

    __slots__ = ("adjoint", "token")

    def __init__(self, token: Any, adjoint: Callable[[Sweep, Any], Steps]) -> None:
        self.token = token
        self.adjoint = adjoint

    def __call__(self, sweep: Sweep) -> None:
        if self.token.happens(sweep):
            fly(sweep, self.token, self.adjoint(sweep, self.token.reverse.comm), self.waiting)

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.token.describe()}"


def _record(
    tape: Tape,
    comm: Any,
    name: str,
    sent: Iterable[Bundle],
    adjoint: Callable[[Sweep, Any], Steps],
    arrays: Sequence[TrackedArray],
) -> None:
    """Put a collective on the tape.  Active arrays always arrive in tracked memory."""
    token = log_collective(tape, comm, name, any(bundle.count for bundle in sent), True)
    tape.append(_Collective(token, adjoint), (), arrays)


def _unpacked_each(tape: Tape, messages: Iterable[Any]) -> tuple[list[Bundle], list[TrackedArray]]:
    """The active arrays in each of several objects that have arrived, and all of them together."""
    bundles, everything = [], []
    for message in messages:
        bundle, arrays = _unpacked(tape, message)
        bundles.append(bundle)
        everything += arrays
    return bundles, everything


def _in_bytes(sweep: Sweep, came: Sequence[Bundle]) -> list[np.ndarray]:
    """Adjoints of what came from each rank."""
    return [bundle.take(sweep).view(np.uint8) for bundle in came]


def _joined(parts: Sequence[np.ndarray]) -> Any:
    """A vector message; None if there are no parts."""
    return [np.concatenate(parts), [part.size for part in parts]] if parts else None


def _add_bytes(sweep: Sweep, sent: Sequence[Bundle], total: np.ndarray) -> None:
    start = 0
    for bundle in sent:
        end = start + bundle.nbytes
        bundle.add(sweep, total[start:end].copy().view(bundle.dtype))
        start = end


def _tape_for(comm: Any, name: str, obj: Any) -> Tape | None:
    """The tape that records a reduction of objects; None if mpi4py does it alone.

    Its messages are logged one by one; that all ranks take part in it is agreed upon as for other collectives.
    """
    tape = _tape_or_passive(comm, obj)
    if tape is None:
        return None
    if comm.Is_inter() and reverse_of(comm) is None:
        _refuse(f"{name} on an intercommunicator that ampi did not see being made", obj)
        return None
    log_collective(tape, comm, name, False, False)
    return tape


def _tape_or_passive(comm: Any, obj: Any = None) -> Tape | None:
    """The tape that records a collective; inside `ampi.passive` it is counted only."""
    tape = recording()
    if tape is None and open_tapes:
        count_passive(comm)
        _refuse_others(obj)
    return tape


def _refuse_others(obj: Any) -> None:
    """Raise if an object that no tape of this thread records holds what is active on one of another thread's."""
    tape = current()
    if tape is not None:
        _packed(tape, obj)


_OF_ROOTS_GROUP = (mpi.ROOT, mpi.PROC_NULL)
"""What the members of the root's group say for the root of an operation on an intercommunicator."""


def _is_root(comm: Any, root: int) -> bool:
    return root == mpi.ROOT if comm.Is_inter() else comm.Get_rank() == root


def _refuse(name: str, obj: Any) -> None:
    tape = recording()
    if tape is not None and _packed(tape, obj)[1].count:
        raise ActivityError(
            f"{name} has no derivative rule, and the object has active arrays in it; send ampi.value(...) or use Dup"
        )


def _bcast(tape: Tape, comm: Any, obj: Any, root: int, primal: Callable[[Any, int], Any]) -> Any:
    sends = _is_root(comm, root)
    payload, sent = _packed(tape, obj) if sends else (None, _EMPTY)
    message = primal(payload, root)
    came, arrays = _unpacked(tape, message)

    reverse = reverse_of(comm)

    def adjoint_between_groups(sweep: Sweep, comm: Any) -> Steps:
        if sends:
            total = np.zeros(sent.count, sent.dtype)
            yield [comm.Irecv(total, 0, COLLECTIVE_TAG)]
            sent.add(sweep, total)
        elif root not in _OF_ROOTS_GROUP:
            mine = came.take(sweep)
            total = np.zeros_like(mine)
            yield [reverse.local.Ireduce(mine, total, mpi.SUM, 0)]  # type: ignore[union-attr]
            if reverse.rank == 0:  # type: ignore[union-attr]
                yield [comm.Isend(total, root, COLLECTIVE_TAG)]

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        total = came.take(sweep)
        yield [comm.Ireduce(mpi.IN_PLACE if sends else total, total if sends else None, mpi.SUM, root)]
        if sends:
            sent.add(sweep, total)

    _record(tape, comm, "bcast", [sent], adjoint_between_groups if comm.Is_inter() else adjoint, arrays)
    return message


# ------------------------------------------------------------------------------------------ messages of a reduction


def _on_rank_0(messages: _Messages, sendobj: Any, op: Callable[[Any, Any], Any]) -> Any:
    """Combine objects along a binomial tree, in the order of the ranks; the result counts on rank 0."""
    rank, size = messages.rank, messages.size
    result = _copied(sendobj)
    distance = 1
    while distance < size:
        if rank & distance:
            messages.send(result, rank - distance)
        elif rank + distance < size:
            result = op(result, messages.receive(rank + distance))
        distance *= 2
    return result


def _copied(obj: Any) -> Any:
    """What would arrive of an object."""
    tape = opened()
    payload, sent = _packed(tape, obj)
    copy = mpi.pickle.loads(mpi.pickle.dumps(payload))
    came, arrays = _unpacked(tape, copy)
    if sent.count:
        tape.append(lambda sweep: sent.add(sweep, came.take(sweep)), (), arrays)
    return copy


class _Group(mpi.Intracomm):
    """The ranks of one group of an intercommunicator: mpi4py's communicator for them, with a reverse side."""


def _messages_between(comm: Any, name: str) -> tuple[_Messages, _Messages]:
    """Messages inside a reduction on an intercommunicator: to the other group, and in this one."""
    between, tag, local, _ = mpi._commctx_inter(comm)
    group = _Group(local)
    group._reverse = reverse_of(comm).group  # type: ignore[union-attr, attr-defined]
    return _Messages(comm, name, between, tag), _Messages(group, name, local, tag)


def _reduce_between(comm: Any, sendobj: Any, op: Callable[[Any, Any], Any], root: int) -> Any:
    """Rank 0 of the group that contributes sends the result to the root."""
    if not (root in _OF_ROOTS_GROUP or 0 <= root < comm.Get_remote_size()):
        return _Comm.reduce(comm, sendobj, op, root)
    between, local = _messages_between(comm, "reduce")
    if root == mpi.ROOT:
        return between.receive(0)
    if root != mpi.PROC_NULL:
        result = _on_rank_0(local, sendobj, op)
        if local.rank == 0:
            between.send(result, root)
    return None


def _allreduce_between(tape: Tape, comm: Any, sendobj: Any, op: Callable[[Any, Any], Any]) -> Any:
    """The ranks 0 exchange what their groups contribute, and tell the others."""
    between, local = _messages_between(comm, "allreduce")
    result = _on_rank_0(local, sendobj, op)
    if local.rank == 0:
        result = between.exchange(result, 0)
    return _bcast(tape, local.logged, result, 0, partial(_Comm.bcast, local.comm))


class _Messages:
    """The messages inside a reduction.

    They travel as those of mpi4py do, on the communicator that it keeps for them, so that a rank without a tape is no
    obstacle; in the log they are messages of the user's communicator with a tag that no user can give.
    """

    __slots__ = ("comm", "logged", "name", "rank", "size", "tag")

    comm: Any

    def __init__(self, comm: Any, name: str, transport: Any = None, tag: int = 0) -> None:
        self.comm, self.tag = mpi._commctx_intra(comm) if transport is None else (transport, tag)
        self.logged = comm
        self.name = name
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def partners(self) -> list[int]:
        """With whom a scan exchanges its partial results."""
        distances = [1 << k for k in range(self.size.bit_length())]
        return [self.rank ^ d for d in distances if d < self.size and self.rank ^ d < self.size]

    def send(self, obj: Any, dest: int) -> None:
        """Send an object."""
        _send(self.name, self._send, self.logged, obj, dest, _INNER_TAG)

    def receive(self, source: int) -> Any:
        """Receive an object."""
        return self._receive(source, ())

    def exchange(self, obj: Any, partner: int) -> Any:
        """Send an object and receive one."""
        requests: list[mpi.Request] = []
        _send(self.name, lambda *message: requests.extend(self._start(*message)), self.logged, obj, partner, _INNER_TAG)
        return self._receive(partner, requests)

    def _start(self, comm: Any, payload: Any, dest: int, tag: int) -> list[mpi.Request]:
        data = mpi.pickle.dumps(payload)
        length = np.array([len(data)], np.int64)
        return [
            self.comm.Isend([length, 1, mpi.COUNT], dest, self.tag),
            self.comm.Isend([data, mpi.BYTE], dest, self.tag),
        ]

    def _send(self, *message: Any) -> None:
        for request in self._start(*message):
            request.Wait()

    def _receive(self, source: int, going: Iterable[mpi.Request]) -> Any:
        tape = opened()
        receive = posted(self.name, self.logged, source, _INNER_TAG)
        length = np.empty(1, np.int64)
        self.comm.Recv([length, 1, mpi.COUNT], source, self.tag)
        data = bytearray(int(length[0]))
        self.comm.Recv([data, mpi.BYTE], source, self.tag)
        for request in going:
            request.Wait()
        message = received(tape, receive, mpi.pickle.loads(data))
        receive.resolve(None)
        if receive.active and receive.buffer.count:
            tape.append(receive)
        return message


_INNER_TAG = -1000


for _name in ("send", "bsend", "ssend", "isend", "ibsend", "issend"):
    enter(Operation("Comm", _name, Treatment.DIFFERENTIATED, ("obj",), (), "recv of the arrays' adjoints", True))
for _owner in ("Comm", "Message"):
    for _name in ("recv", "irecv"):
        enter(Operation(_owner, _name, Treatment.DIFFERENTIATED, (), (), "send of the arrays' adjoints", True))
enter(
    Operation("Comm", "sendrecv", Treatment.DIFFERENTIATED, ("sendobj",), (), "sendrecv, roles exchanged", True),
    Operation("Comm", "bcast", Treatment.DIFFERENTIATED, ("obj",), (), "Reduce(SUM) of the arrays' adjoints", True),
    Operation("Comm", "gather", Treatment.DIFFERENTIATED, ("sendobj",), (), "Scatterv of the arrays' adjoints", True),
    Operation("Comm", "scatter", Treatment.DIFFERENTIATED, ("sendobj",), (), "Gatherv of the arrays' adjoints", True),
    Operation("Comm", "allgather", Treatment.DIFFERENTIATED, ("sendobj",), (), "Reduce_scatter(SUM)", True),
    Operation("Comm", "alltoall", Treatment.DIFFERENTIATED, ("sendobj",), (), "the transposed Alltoallv", True),
    Operation("Comm", "reduce", Treatment.DIFFERENTIATED, ("sendobj",), (), "down the tree of messages", True),
    Operation("Comm", "allreduce", Treatment.DIFFERENTIATED, ("sendobj",), (), "down the tree of messages", True),
    Operation("Intracomm", "scan", Treatment.DIFFERENTIATED, ("sendobj",), (), "back along the messages", True),
    Operation("Intracomm", "exscan", Treatment.DIFFERENTIATED, ("sendobj",), (), "back along the messages", True),
)
for _name in ("neighbor_allgather", "neighbor_alltoall"):
    enter(Operation("Topocomm", _name, Treatment.DIFFERENTIATED, ("sendobj",), (), "back along the edges", True))
