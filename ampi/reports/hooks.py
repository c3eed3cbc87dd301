"""Methods of MPI's classes and of kernels, wrapped while a tracer runs."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns as now
from typing import Any

from ..checkpoint.replay import Stored
from ..kernel.dispatcher import Kernel
from ..mpi.collectives import COLLECTIVES, SCANS
from ..mpi.namespace import MPI
from ..mpi.neighborhoods import NEIGHBORHOODS
from ..mpi.waiting import Patience
from ..recording import opened
from .tracer import COMMUNICATION, KERNEL, PRIMAL, WAITING, TracedRecords, Tracer, running

_COMMUNICATORS = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
_BUFFERED = tuple(operation.name for operation in (*COLLECTIVES, *SCANS, *NEIGHBORHOODS))
_OBJECTS = tuple("bcast gather scatter allgather alltoall reduce allreduce scan exscan barrier".split())
_WAITS = {
    **dict.fromkeys(
        _COMMUNICATORS,
        (
            *_BUFFERED,
            *_OBJECTS,
            *"neighbor_allgather neighbor_alltoall Barrier Recv recv Sendrecv sendrecv Sendrecv_replace".split(),
            *"Probe probe Mprobe mprobe Ssend ssend".split(),
        ),
    ),
    **dict.fromkeys(("Request", "Prequest"), tuple("Wait wait Waitall waitall Waitany waitany Waitsome".split())),
    "Message": ("Recv", "recv"),
    "Win": tuple("Fence Lock Lock_all Unlock Unlock_all Flush Flush_all Wait Complete Start".split()),
    "File": tuple("Read_all Write_all Read_at_all Write_at_all Read_ordered Write_ordered".split()),
}
_OTHERS = {
    **dict.fromkeys(
        _COMMUNICATORS,
        (
            *(f"I{name[0].lower()}{name[1:]}" for name in _BUFFERED),
            *"Send send Bsend bsend Rsend Isend isend Issend issend Ibsend ibsend Irsend Irecv irecv".split(),
            *"Isendrecv Isendrecv_replace Iprobe iprobe Improbe improbe".split(),
        ),
    ),
    "Request": tuple("Test test Testall testall Testany testany Testsome testsome waitsome".split()),
    "Prequest": tuple("Test Testall Start Startall Pready Pready_range Pready_list".split()),
    "Message": ("Irecv", "irecv"),
    "Win": tuple("Put Get Accumulate Get_accumulate Fetch_and_op Compare_and_swap Rput Rget Raccumulate".split()),
    "File": tuple("Read Write Read_at Write_at Read_shared Write_shared".split()),
}
_MISSING = object()
_replaced: list[tuple[Any, str, Any]] = []


def _put(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, owner.__dict__.get(name, _MISSING)))
    setattr(owner, name, value)


def remove() -> None:
    """Put everything back."""
    while _replaced:
        owner, name, value = _replaced.pop()
        if value is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def install(tracer: Tracer) -> None:
    """Wrap what a tracer is to see."""
    for kind, table in ((WAITING, _WAITS), (COMMUNICATION, _OTHERS)):
        for cls_name, names in table.items():
            cls = getattr(MPI, cls_name)
            completes = cls_name in ("Request", "Prequest")
            for name in names:
                found = getattr(cls, name, None)
                if found is None:
                    continue
                bound = getattr(found, "__self__", None) is cls
                wrapped = _traced(tracer, found, name, kind, completes)
                _put(cls, name, staticmethod(wrapped) if bound else wrapped)
    _put(Kernel, "__call__", _traced_kernel(tracer, Kernel.__call__))
    _put(Patience, "__enter__", _entering(tracer, Patience.__enter__))
    _put(Patience, "__exit__", _leaving(tracer, Patience.__exit__))
    _put(Stored, "__init__", _storing(tracer, Stored.__init__))


def _traced(tracer: Tracer, function: Callable, name: str, kind: int, completes: bool) -> Callable:
    """A method of MPI's that looks at the clock."""
    thread = tracer.thread

    def method(*arguments: Any, **keywords: Any) -> Any:
        if tracer.call >= 0 or get_ident() != thread:
            return function(*arguments, **keywords)
        site = tracer.call = tracer.site(1, name, kind)
        parts = _parts(arguments) if completes and tracer.phase != PRIMAL else None
        begin = now()
        try:
            return function(*arguments, **keywords)
        finally:
            end = now()
            tracer.call = -1
            tracer.event(begin, end, site)
            if tracer.phase != PRIMAL:
                _stamp(begin, end, site, parts)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = getattr(function, "__doc__", None)
    return method


def _parts(arguments: tuple) -> list[tuple[Any, Any]]:
    """Requests, and the messages that they will complete."""
    first = arguments[0] if arguments else ()
    requests = first if isinstance(first, (list, tuple)) else [first]
    return [(request, getattr(request, "parts", None)) for request in requests]


def _stamp(begin: int, end: int, site: int, parts: list[tuple[Any, Any]] | None) -> None:
    """Remember when messages were begun, and when they had come."""
    tape = opened()
    if tape is None or not isinstance(tape.records, TracedRecords):
        return
    communication = tape.sweep_starts.get("communication")
    for log in () if communication is None else communication.logs.values():  # a call may use several
        stamps = tape.records.stamps.get(id(log))
        if stamps is None:
            stamps = tape.records.stamps[id(log)] = []
        missing = len(log.messages) - len(stamps)
        if missing:
            stamps.extend([(begin, end, site)] * missing)
    for request, messages in parts or ():
        if messages and (not request or getattr(request, "parts", None) is not messages):
            for message in messages:
                tape.records.completed[id(message)] = end


def _traced_kernel(tracer: Tracer, function: Callable) -> Callable:
    thread = tracer.thread

    def __call__(self: Kernel, *arguments: Any, **keywords: Any) -> Any:
        if tracer.call >= 0 or get_ident() != thread:
            return function(self, *arguments, **keywords)
        site = tracer.call = tracer.site(1, self.__name__, KERNEL)
        begin = now()
        try:
            return function(self, *arguments, **keywords)
        finally:
            tracer.call = -1
            tracer.event(begin, now(), site)

    return __call__


_entered: list[int] = []


def _entering(tracer: Tracer, function: Callable) -> Callable:
    def __enter__(self: Patience) -> Any:
        if get_ident() == tracer.thread:
            _entered.append(now())
        return function(self)

    return __enter__


def _leaving(tracer: Tracer, function: Callable) -> Callable:
    def __exit__(self: Patience, *error: Any) -> Any:
        if get_ident() == tracer.thread and _entered:
            latest = tracer.latest
            site = tracer.sweeping if tracer.call < 0 else tracer.call
            tracer.event(_entered.pop(), now(), site, tracer.phase, WAITING)
            tracer.latest = latest
        return function(self, *error)

    return __exit__


def _storing(tracer: Tracer, function: Callable) -> Callable:
    def __init__(self: Stored, *arguments: Any) -> None:
        function(self, *arguments)
        if get_ident() == tracer.thread:
            tracer.checkpoints.append((now(), self.nbytes))
            weakref.finalize(self, _freed, tracer, self.nbytes).atexit = False

    return __init__


def _freed(tracer: Tracer, nbytes: int) -> None:
    """A state that has been stored is not needed any more."""
    if tracer in running:
        tracer.checkpoints.append((now(), -nbytes))
