"""Hooks of a tracer: wrappers of methods of MPI's classes and of kernels, installed while it runs."""

from __future__ import annotations

import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import chain
from sys import _getframe
from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from ..checkpoint.stored import Stored
from ..interception import layers
from ..kernel.dispatcher import Kernel
from ..mpi.collectives.neighborhoods import NEIGHBORHOODS
from ..mpi.collectives.table import COLLECTIVES, SCANS
from ..mpi.namespace import BASE, MPI
from ..mpi.pkl5 import Pkl5Intercomm, Pkl5Intracomm
from ..mpi.waiting.waiting import Patience
from ..tape.recording import opened
from . import plain
from .events import COMMUNICATION, KERNEL, SWEEP, WAITING

if TYPE_CHECKING:
    from .tracer import Tracer

_COMMUNICATORS = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
_BUFFERED = tuple(operation.name for operation in (*COLLECTIVES, *SCANS, *NEIGHBORHOODS))
_OBJECTS = tuple("bcast gather scatter allgather alltoall reduce allreduce scan exscan barrier".split())
_WAITS = {
    "Comm": (
        *_BUFFERED,
        *_OBJECTS,
        *"neighbor_allgather neighbor_alltoall Barrier Recv recv Sendrecv sendrecv Sendrecv_replace".split(),
        *"Probe probe Mprobe mprobe Ssend ssend".split(),
        *"Dup Dup_with_info Clone Split Split_type Create Create_group Create_cart Create_graph".split(),
        *"Create_dist_graph Create_dist_graph_adjacent Create_intercomm Merge Sub".split(),
    ),
    **dict.fromkeys(("Request", "Prequest"), tuple("Wait wait Waitall waitall Waitany waitany Waitsome".split())),
    "Message": ("Recv", "recv"),
    "Win": tuple("Fence Lock Lock_all Unlock Unlock_all Flush Flush_all Wait Complete Start".split()),
    "File": tuple("Read_all Write_all Read_at_all Write_at_all Read_ordered Write_ordered".split()),
}
_TESTS = tuple("Test test Testall testall Testany testany Testsome testsome waitsome".split())
_OTHERS = {
    "Comm": (
        *(f"I{name[0].lower()}{name[1:]}" for name in _BUFFERED),
        *"Send send Bsend bsend Rsend Isend isend Issend issend Ibsend ibsend Irsend Irecv irecv".split(),
        *"Isendrecv Isendrecv_replace Iprobe iprobe Improbe improbe".split(),
    ),
    "Request": _TESTS,
    "Prequest": (*_TESTS, "Start", "Startall", "Pready", "Pready_range", "Pready_list"),
    "Message": ("Irecv", "irecv"),
    "Win": (*plain.PARTS, "Post", "Test", "Flush_local", "Flush_local_all"),
    "File": tuple("Read Write Read_at Write_at Read_shared Write_shared".split()),
}
_Request = BASE["Request"]
_tracer: Tracer | None = None
"""The tracer to which the wrapped methods report."""


def remove() -> None:
    """Remove the wrappers of all methods."""
    global _tracer
    _tracer = None
    _paused.clear()
    layers.remove(layers.REPORT)


def install(tracer: Tracer) -> None:
    """Wrap all methods that a tracer observes."""
    global _tracer
    communicators = [getattr(MPI, name) for name in _COMMUNICATORS] + [Pkl5Intracomm, Pkl5Intercomm]
    wrapped: list[tuple[Any, str, Callable]] = []
    for kind, table in ((WAITING, _WAITS), (COMMUNICATION, _OTHERS)):
        for cls_name, names in table.items():
            for cls in communicators if cls_name == "Comm" else (getattr(MPI, cls_name),):
                for name in _found(cls, names):
                    wrapped.append((cls, name, partial(_seen, cls_name=cls_name, name=name, kind=kind)))
    for cls in communicators:
        for name in _found(cls, plain.PERSISTENT):
            wrapped.append((cls, name, partial(_making, name)))
    for cls, name, wrap in (
        (Kernel, "__call__", _calling),
        (Patience, "pause", _pausing),
        (Patience, "__exit__", _leaving),
        (Stored, "__init__", _storing),
    ):
        wrapped.append((cls, name, wrap))
    for cls, name, make in wrapped:
        layers.add(layers.REPORT, cls, name, make)
    _tracer = tracer


def _found(cls: type, names: Iterable[str]) -> Iterator[str]:
    """Yield the methods of a class that are not inherited from another one of ampi's."""
    for name in names:
        method = getattr(cls, name, None)
        inherited = any(
            getattr(base, name, None) is method for base in cls.__mro__[1:] if base.__module__ == "ampi.MPI"
        )
        if method is not None and not inherited:
            yield name


# Wrappers are made once: there are many, and making new ones each time would trigger garbage collections.


@cache
def _seen(function: Callable, cls_name: str, name: str, kind: int) -> Callable:
    """Wrap an MPI method to record times and messages."""
    stamps = cls_name == "Comm" and name in plain.PARAMETERS
    return _traced(function, name, kind, *_around(cls_name, name), has_comm=cls_name == "Comm", stamps=stamps)


@cache
def _calling(function: Callable) -> Callable:
    """Wrap the call of a kernel."""
    return _traced(function, "", KERNEL)


def _traced(
    function: Callable,
    name: str,
    kind: int,
    before: Callable | None = None,
    after: Callable | None = None,
    *,
    has_comm: bool = False,
    stamps: bool = False,
) -> Callable:
    """Wrap a method to record the times of its calls.

    Parameters
    ----------
    name : str
        The name to show; empty: the object's own name.
    before, after : callable
        Further work: ``before(tracer, arguments, keywords)``, and ``after(tracer, (site, begin, end), arguments,
        keywords, result, before)``, which returns the result.
    has_comm : bool
        True if the first argument is the communicator in use.
    stamps : bool
        True if the method may log messages; then ``before`` and ``after`` are for messages outside tapes.
    """

    def method(*arguments: Any, **keywords: Any) -> Any:
        tracer = _tracer
        if tracer is None or tracer.call >= 0 or get_ident() != tracer.thread:
            return function(*arguments, **keywords)
        frame = _getframe(1)
        called = name or arguments[0].__name__
        key = id(frame.f_code), frame.f_lasti, called
        site = tracer.known.get(key, -1)
        if site < 0:
            site, itself = tracer.site(2, called, kind)
            if itself:
                tracer.known[key] = site  # the tracer keeps the code alive
        tracer.call = site
        records = tracer.recording if stamps else None
        noted = None if before is None or records is not None else before(tracer, arguments, keywords)
        begin = now()
        try:
            result = function(*arguments, **keywords)
        finally:
            tracer.latest = end = now()
            tracer.call = -1
            phase = tracer.phase
            if phase == SWEEP:
                tracer.inside += end - begin
            events = tracer.events
            events.extend((begin, end, site, phase, kind))
            if len(events) > tracer.full:
                tracer.settle()
        if records is not None:
            if not records.stamp((site, begin, end)):  # a stamp identifies the communicator
                tracer.note_comm(arguments[0], begin)
            return result
        if has_comm:
            tracer.note_comm(arguments[0], begin)
        if after is not None:
            return after(tracer, (site, begin, end), arguments, keywords, result, noted)
        return result

    method.__name__ = method.__qualname__ = name or "__call__"
    method.__doc__ = getattr(function, "__doc__", None)
    return method


def _around(cls_name: str, name: str) -> tuple[Callable | None, Callable | None]:
    """Return the functions that run before and after a method of a class; None for no further work."""
    if cls_name in ("Request", "Prequest") and not name.startswith(("Start", "Pready")):
        return _around_completion(name)
    if cls_name == "Win":
        return None, _after_access(name) if name in plain.PARTS else None
    if name in plain.PARAMETERS and cls_name == "Comm":
        return _around_message(name)
    if name in _BUFFERED or (name[0] == "I" and cls_name == "Comm") or cls_name == "File":
        return None, None  # collective, or a probe
    return None, _after_others(name)


def _around_message(name: str) -> tuple[Callable | None, Callable]:
    first, then = plain.send_or_receive(name)

    def before(tracer: Tracer, arguments: tuple, keywords: dict[str, Any]) -> Any:
        return first(arguments, keywords) if opened() is None else None

    def after(tracer: Tracer, found: tuple, arguments: tuple, keywords: dict, result: Any, noted: Any) -> Any:
        if opened() is not None:
            return result
        if type(result) is _Request:
            result = MPI.Request(result)  # its waits are traced
        then(tracer.plain, found, arguments, keywords, result, noted)
        return result

    return (before if first else None), after


def _after_others(name: str) -> Callable:
    """Return the function that runs after methods that may log messages in other ways."""
    several = name == "Startall"

    def after(tracer: Tracer, found: tuple, arguments: tuple, keywords: dict, result: Any, noted: Any) -> Any:
        if tracer.recording is not None:
            tracer.recording.stamp_all(found)
        elif name.startswith("Start") and opened() is None:
            plain.start(tracer.plain, found, arguments[0] if several else arguments)
        return result

    return after


def _requests(arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Return the requests among the arguments of a method that completes several."""
    return arguments[0] if arguments else keywords.get("requests", ())


def _around_completion(name: str) -> tuple[Callable, Callable]:
    """Record the times of arrival of messages."""
    if name in ("Wait", "wait"):
        return _around_wait(name)
    if name in ("Waitall", "waitall"):
        return _around_waitall(name)
    several = name.lower().endswith(("all", "any", "some"))

    def before(tracer: Tracer, arguments: tuple, keywords: dict[str, Any]) -> Any:
        requests = _requests(arguments, keywords) if several else arguments[:1]
        if opened() is not None:
            return [(request, getattr(request, "parts", None)) for request in requests]
        if not tracer.plain.pending:
            return None
        return plain.completing(tracer.plain, name, requests, arguments, keywords)

    def after(tracer: Tracer, found: tuple, arguments: tuple, keywords: dict, result: Any, noted: Any) -> Any:
        if not noted:
            return result
        end = found[2]
        if opened() is None:
            plain.completed(tracer.plain, noted, end, result)
        elif tracer.recording is not None:
            completed = tracer.recording.completed
            for request, messages in noted:
                if messages and (not request or getattr(request, "parts", None) is not messages):
                    for message in messages:
                        completed[id(message)] = end
        return result

    return before, after


def _around_wait(name: str) -> tuple[Callable, Callable]:
    """Record the time of arrival of the message of one request, which is complete after the call."""

    def before(tracer: Tracer, arguments: tuple, keywords: dict[str, Any]) -> Any:
        if tracer.recording is not None:
            return getattr(arguments[0], "parts", None)
        if not tracer.plain.pending or opened() is not None:
            return None
        return plain.completing(tracer.plain, name, arguments[:1], arguments, keywords)

    def after(tracer: Tracer, found: tuple, arguments: tuple, keywords: dict, result: Any, noted: Any) -> Any:
        if noted:
            if tracer.recording is None:
                plain.completed(tracer.plain, noted, found[2], result)
            else:
                for message in noted:
                    tracer.recording.completed.setdefault(id(message), found[2])
        return result

    return before, after


def _around_waitall(name: str) -> tuple[Callable, Callable]:
    """Record the times of arrival of the messages of several requests, which are all complete after the call."""

    def before(tracer: Tracer, arguments: tuple, keywords: dict[str, Any]) -> Any:
        requests = _requests(arguments, keywords)
        if tracer.recording is not None:
            return [getattr(request, "parts", None) for request in requests]
        if not tracer.plain.pending or opened() is not None:
            return None
        return plain.completing(tracer.plain, name, requests, arguments, keywords)

    def after(tracer: Tracer, found: tuple, arguments: tuple, keywords: dict, result: Any, noted: Any) -> Any:
        if noted:
            if tracer.recording is None:
                plain.completed(tracer.plain, noted, found[2], result)
            else:
                note = tracer.recording.completed.setdefault
                for number in map(id, chain.from_iterable(filter(None, noted))):
                    note(number, found[2])
        return result

    return before, after


def _after_access(name: str) -> Callable:
    """Record the time of a one-sided operation."""

    def after(tracer: Tracer, found: tuple, arguments: tuple, keywords: dict, result: Any, noted: Any) -> Any:
        recorded = tracer.recording is not None
        if not (recorded and tracer.recording.note_access(found)):  # type: ignore[union-attr]
            plain.access(tracer.plain, name, arguments, keywords, found, recorded)
        return result

    return after


@cache
def _making(name: str, function: Callable) -> Callable:
    """Wrap a method that makes a persistent request, to record it."""
    remember = plain.make_persistent(name)

    def method(*arguments: Any, **keywords: Any) -> Any:
        request = function(*arguments, **keywords)
        if _tracer is not None:
            remember(_tracer.plain, request, arguments, keywords)
        return request

    method.__name__ = method.__qualname__ = name
    return method


_paused: list[tuple[Patience, int]] = []
"""Waits that did not end at once, innermost last, and the times when they began."""


def _here() -> Tracer | None:
    """Return the tracer if it traces this thread."""
    return _tracer if _tracer is not None and get_ident() == _tracer.thread else None


@cache
def _pausing(function: Callable) -> Callable:
    def pause(self: Patience) -> None:
        if not self.turns and _here() is not None:
            _paused.append((self, now()))
        function(self)

    return pause


@cache
def _leaving(function: Callable) -> Callable:
    def __exit__(self: Patience, *error: Any) -> Any:
        if self.turns and _paused and _paused[-1][0] is self:
            begin = _paused.pop()[1]
            tracer = _here()
            if tracer is not None:
                tracer.wait(begin, now())
        return function(self, *error)

    return __exit__


@cache
def _storing(function: Callable) -> Callable:
    def __init__(self: Stored, *arguments: Any) -> None:
        function(self, *arguments)
        tracer = _here()
        if tracer is not None:
            tracer.checkpoints.append((now(), self.nbytes))
            weakref.finalize(self, _freed, tracer, self.nbytes).atexit = False

    return __init__


def _freed(tracer: Tracer, nbytes: int) -> None:
    """Record that a stored state has been freed."""
    if tracer is _tracer:
        tracer.checkpoints.append((now(), -nbytes))
