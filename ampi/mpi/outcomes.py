"""Nondeterministic outcomes in the steps of a time loop: recorded when a step runs first, repeated when it runs again.

When a step runs again, a receive with wildcards may get another message, another one of several requests may complete
first, and tests and probes may return other results.  So each step has a book in which the methods here enter the
outcomes, in the order of the calls.  A step that runs again posts its receives for the messages that it got the first
time, waits for the requests that had completed, and gets the same results of tests and probes.  The methods are put
into MPI's classes when the first loop begins.  Outside steps they do nothing.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI as mpi
from mpi4py.util import pkl5

from ..interception import layers
from ..tape.replays import Book, books
from .namespace import BASE, MPI
from .pkl5 import Pkl5Intercomm, Pkl5Intracomm
from .windows.replay import METHODS

_ANY_SOURCE, _UNDEFINED, _Status = mpi.ANY_SOURCE, mpi.UNDEFINED, mpi.Status

_RECEIVE, _PROBE = ("buf", "source", "tag", "status"), ("source", "tag", "status")
_EXCHANGE = ("dest", "sendtag", "recvbuf", "source", "recvtag", "status")
_REPLACE = ("buf", "dest", "sendtag", "source", "recvtag", "status")
RECEIVES = {
    "Recv": _RECEIVE,
    "recv": _RECEIVE,
    "Irecv": _RECEIVE[:3],
    "irecv": _RECEIVE[:3],
    "Sendrecv": ("sendbuf", *_EXCHANGE),
    "sendrecv": ("sendobj", *_EXCHANGE),
    "Isendrecv": ("sendbuf", *_EXCHANGE[:-1]),
    "Sendrecv_replace": _REPLACE,
    "Isendrecv_replace": _REPLACE[:-1],
    **dict.fromkeys("Probe probe Mprobe mprobe".split(), _PROBE),
    **dict.fromkeys("Iprobe iprobe Improbe improbe".split(), _PROBE),
}
"""Parameters of the methods of communicators that receive or probe."""
COMPLETIONS = ("Wait", "Waitall", "Waitany", "Waitsome", "Test", "Testall", "Testany", "Testsome")

_STARTS = re.compile(r"[Ii](?!s_)[a-z]\w*$|R(put|get|accumulate)|\w+_init$")
_OURS = {BASE["Request"]: MPI.Request, BASE["Prequest"]: MPI.Prequest}

pending: dict[int, list[list[Any]]] = {}
"""By the handles of their requests: the entries for the messages that receives with wildcards will get."""


@functools.cache
def install() -> None:
    """Put the methods into the classes."""
    names = "Comm Intracomm Topocomm Cartcomm Graphcomm Distgraphcomm Intercomm".split()
    communicators = [*(getattr(MPI, name) for name in names), Pkl5Intracomm, Pkl5Intercomm]
    for cls in (*communicators, MPI.Message, MPI.Win, MPI.File):
        for name in filter(_STARTS.match, dir(cls)):
            _put(cls, name, _starting)
    for cls in communicators:
        for name, parameters in RECEIVES.items():
            _put(cls, name, functools.partial(_receiving, parameters=parameters))
    for cls in (MPI.Request, MPI.Prequest):
        for name in COMPLETIONS:
            for spelling in (name, name.lower()):
                _put(cls, spelling, _completing)
        _put(cls, "Get_status", _asking)
    for name in ("Start", "Startall"):
        _put(MPI.Prequest, name, _restarting)
    for name, make in (("test", _completing), ("testall", _completing), ("get_status", _asking)):
        _put(pkl5.Request, name, make)
    _put(MPI.Win, "Test", _asking)
    for name, make in METHODS.items():
        _put(MPI.Win, name, make)


def _put(cls: type, name: str, make: Callable[[Callable, str], Callable]) -> None:
    for base in cls.__mro__:
        found = vars(base).get(name)
        if found is not None:
            if base is not cls and base.__module__ == "ampi.MPI" and base is not object:
                return  # it inherits the method from a class that already has it
            break
    else:
        return
    function = getattr(cls, name)
    if not callable(function):
        return  # a property

    def wrapped(inner: Callable) -> Callable:
        return functools.wraps(inner)(make(inner, name))

    layers.add(layers.OUTCOMES, cls, name, wrapped)


def _followed(open_books: Sequence[Book], name: str) -> tuple[bool, Any]:
    """Return whether a step runs again and must repeat an outcome, and that outcome."""
    found = [book.next(name) for book in open_books if book.follows]
    return (True, found[0]) if found else (False, None)


def _note(open_books: Sequence[Book], name: str, outcome: Any) -> list[list[Any]]:
    """Enter outcomes; return the entries."""
    return [book.enter(name, outcome) for book in open_books if not book.follows]


def _receiving(function: Callable, name: str, parameters: tuple[str, ...]) -> Callable:
    """Decorate a method that receives or probes.

    When it runs again, its source is that of the first run: the messages of one sender arrive in the order in which
    they were sent, whatever their tags.
    """
    source_at, status_at = parameters.index("source"), parameters.index("status") if "status" in parameters else -1
    asks = name.lower() in ("iprobe", "improbe")

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        open_books = books()
        if not open_books:
            return function(self, *arguments, **keywords)
        given = list(arguments)

        def value(at: int, default: Any) -> Any:
            return given[at] if at < len(given) else keywords.get(parameters[at], default)

        def put(at: int, value: Any) -> None:
            if at < len(given):
                given[at] = value
            else:
                keywords[parameters[at]] = value

        if not asks and value(source_at, _ANY_SOURCE) != _ANY_SOURCE:
            return function(self, *given, **keywords)
        follows, known = _followed(open_books, name)
        if follows and known is not None:
            put(source_at, known)
        if status_at < 0:
            request = function(self, *given, **keywords)
            entries = _note(open_books, name, known)
            if entries and not follows:
                pending[request.handle] = entries
            return request
        if follows and asks and known is None:
            _note(open_books, name, None)
            return False if name.lower() == "iprobe" else None
        status = value(status_at, None)
        if status is None:
            status = _Status()
            put(status_at, status)
        result = function(self, *given, **keywords)
        while follows and asks and not result:
            os.sched_yield()
            result = function(self, *given, **keywords)
        _note(open_books, name, None if asks and not result else status.Get_source())
        return result

    return method


def _starting(function: Callable, name: str) -> Callable:
    """Decorate a method that returns a request: it returns one of ampi's, with the methods here."""

    def method(*arguments: Any, **keywords: Any) -> Any:
        request = function(*arguments, **keywords)
        ours = _OURS.get(type(request)) if books() else None
        return request if ours is None else ours(request)

    return method


def _restarting(function: Callable, name: str) -> Callable:
    """Decorate a method that starts persistent requests: receives with wildcards are posted for the known sender."""

    def method(*arguments: Any, **keywords: Any) -> None:
        open_books = books()
        requests = keywords.get("requests") or (arguments[0] if name == "Startall" else arguments)
        for request in requests:
            receive = getattr(request, "receive", None)
            if receive is None:
                continue
            follows, known = _followed(open_books, name)
            receive.narrow(request, known if follows and known is not None else _ANY_SOURCE)
            entries = _note(open_books, name, known)
            if entries and not follows:
                pending[request.handle] = entries
        function(*arguments, **keywords)

    return method


def _asking(function: Callable, name: str) -> Callable:
    """Decorate `Get_status`: a step that runs again gets the same result."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> bool:
        open_books = books()
        if not open_books:
            return function(self, *arguments, **keywords)
        follows, known = _followed(open_books, name)
        if follows and not known:
            return False
        result = function(self, *arguments, **keywords)
        while follows and not result:
            os.sched_yield()
            result = function(self, *arguments, **keywords)
        _note(open_books, name, result)
        return result

    return method


def _completing(function: Callable, name: str) -> Callable:
    """Decorate a method that completes all or some requests, or tests them."""
    kind, objects = name.lower(), name[0].islower()
    several = kind.endswith(("all", "any", "some"))
    parameter = "statuses" if kind.endswith(("all", "some")) else "status"
    decides = kind not in ("wait", "waitall")

    def method(*arguments: Any, **keywords: Any) -> Any:
        open_books = books()
        if not open_books:
            return function(*arguments, **keywords)
        first = arguments[0] if arguments else keywords.pop("requests")
        given = arguments[1] if len(arguments) > 1 else keywords.get(parameter)
        requests = first if several else [first]
        follows, known = _followed(open_books, name) if decides else (False, None)
        if follows:
            _note(open_books, name, known)
            return _again(function, kind, objects, first, given, known)
        handles = [getattr(request, "handle", None) for request in requests] if pending else []
        awaited = [pending.get(handle) for handle in handles]
        if given is None and any(awaited):
            given = [] if parameter == "statuses" else _Status()
        result = function(first, given)
        outcome = result
        if objects and decides:
            outcome = result[:2] if kind == "testany" else result[0]
        if decides:
            _note(open_books, name, outcome)
        if any(awaited):
            for j, k in enumerate(_ended(kind, outcome, len(awaited))):
                if awaited[k] is not None:
                    status = given[j] if parameter == "statuses" else given
                    del pending[handles[k]]
                    if not status.Is_cancelled():
                        for entry in awaited[k]:  # type: ignore[union-attr]
                            entry[1] = status.Get_source()
        return result

    return method


def _ended(kind: str, outcome: Any, count: int) -> Sequence[int]:
    """Return which of these requests have completed."""
    if kind in ("wait", "waitall"):
        return range(count)
    if kind in ("test", "testall"):
        return range(count) if outcome else ()
    if kind.endswith("some"):
        return outcome or ()
    index = outcome[0] if kind == "testany" else outcome
    return () if index == _UNDEFINED else (index,)


def _again(function: Callable, kind: str, objects: bool, first: Any, given: Any, known: Any) -> Any:
    """Complete the requests that had completed in the first run."""
    if kind == "test":
        message = _wait(first, objects, given) if known else None
        return (known, message) if objects else known
    if kind == "testall":
        cls = pkl5.Request if first and isinstance(first[0], pkl5.Request) else MPI.Request
        message = (cls.waitall if objects else cls.Waitall)(first, given) if known else None
        return (known, message) if objects else known
    if kind.endswith("some"):
        if known is None:
            return function(first, given)
        if given is not None:
            given.extend(_Status() for _ in range(len(known) - len(given)))
        messages = [_wait(first[k], objects, None if given is None else given[j]) for j, k in enumerate(known)]
        return (list(known), messages) if objects else list(known)
    index, flag = known if kind == "testany" else (known, True)
    if flag and index == _UNDEFINED:
        return function(first, given)
    message = _wait(first[index], objects, given) if flag else None
    found = (index, flag) if kind == "testany" else (index,)
    if objects:
        return (*found, message)
    return found if kind == "testany" else index


def _wait(request: Any, objects: bool, status: Any) -> Any:
    return request.wait(status) if objects else request.Wait(status)
