"""Recording of collectives: the blocking, nonblocking and persistent forms of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import _getframe
from typing import Any

from mpi4py import MPI as mpi

from ...memory.storages import TrackedArray, region_of
from ...tape import Tape, living
from ...tape.recording import opened, recording
from ..base.call_sites import call_site, sites
from ..base.rules import Operation, Treatment, enter
from ..log.log import count_passive, note_accesses, refused
from ..log.reverse import reverse_of
from ..memory.argument_forms import is_in_place, with_typemaps
from ..memory.buffers import NOTHING, Buffer, refuse_others
from ..messages.held_buffers import holding
from ..messages.requests import persistent, recorded
from ..waiting.meetings import attended, begin, forget, is_of_all, meeting
from . import forward_collectives, second
from .collective_calls import Call, Performed
from .reductions import PREDEFINED
from .reverse_schedule import Started

NO_KEYWORDS: Mapping[str, Any] = {}
_Op = mpi.Op  # mpi4py's own: its names may be rebound


class CollectiveOperation:
    """An entry in the table of collective operations; the methods of all forms, and reports, derive from it.

    Attributes
    ----------
    name : str
        mpi4py's name of the blocking form.
    adjoint : str
        The adjoint in words.
    plan, plan_started : callable
        ``plan(comm, ...)`` returns this rank's `Call`, of the blocking form and of the forms with a request; it has the
        positional parameters of the method.
    form : callable or None
        The plan's keyword argument ``form``: how block arguments are parsed.
    buffers : (str, str)
        Names of the arguments that are read and written.
    parameters, defaults : tuple
        Parameters of the method, and the defaults of the last of them.
    remembers : bool
        True if calls with the same arrays share a `Call`.
    """

    __slots__ = (
        *("adjoint", "buffers", "defaults", "name", "parameters", "plan", "plan_started"),
        "remembers",
    )

    def __init__(
        self,
        name: str,
        adjoint: str,
        plan: Callable[..., Call],
        *,
        form: Callable[..., Buffer] | None = None,
        buffers: tuple[str, str] = ("sendbuf", "recvbuf"),
    ) -> None:
        self.name = name
        self.adjoint = adjoint
        self.buffers = buffers
        code: Any = plan.__code__
        self.parameters = code.co_varnames[1 : code.co_argcount]
        self.defaults = plan.__defaults__  # type: ignore[attr-defined]
        of_edges = "started" in code.co_varnames
        self.remembers = not of_edges
        self.plan = plan if form is None else partial(plan, form=form)
        self.plan_started = partial(self.plan, started=True) if of_edges else self.plan

    def call(
        self, comm: mpi.Comm, arguments: Sequence[Any], keywords: Mapping[str, Any] = NO_KEYWORDS, started: bool = False
    ) -> Call:
        """Return this rank's part in a call with these arguments; ``started``: the form has a request."""
        plan: Any = self.plan_started if started else self.plan
        call = plan(comm, *arguments, **keywords)
        call.name = self.name
        if comm.Is_inter():
            call.sizes = None  # the lengths of one group are not those of the other
        return call

    def give(self, cls: type, base: Any) -> None:
        """Define the methods of all forms on a class, instead of mpi4py's, and enter them into `rules.TABLE`."""
        nonblocking, init = f"I{self.name[0].lower()}{self.name[1:]}", f"{self.name}_init"
        setattr(cls, self.name, _blocking(self, getattr(base, self.name)))
        setattr(cls, nonblocking, _nonblocking(nonblocking, self, getattr(base, nonblocking)))
        setattr(cls, init, _persistent(init, self, getattr(base, init)))
        reads, writes = self.buffers
        for form in (self.name, nonblocking, init):
            enter(Operation(base.__name__, form, Treatment.DIFFERENTIATED, (reads,), (writes,), self.adjoint))


MOST_CALLS = 64  # remembered per communicator


def _call_of(comm: mpi.Comm, operation: CollectiveOperation, arguments: Sequence[Any]) -> Call:
    """Return the call with these arguments: an earlier one if the arrays are the same."""
    key = _key(operation, arguments)
    reverse = None if key is None else reverse_of(comm)
    if reverse is None:
        return operation.call(comm, arguments)
    known = reverse.calls.get(key)
    if known is not None:
        call, places, _ = known
        for buffer, k in places:
            buffer.array = arguments[k]
        return call
    call = operation.call(comm, arguments)
    places = _places(call, arguments)
    if places is not None and not comm.Is_inter():
        if len(reverse.calls) >= MOST_CALLS:
            reverse.calls.clear()
        reverse.calls[key] = call, places, _is_simple(call)
    return call


def _is_simple(call: Call) -> bool:
    """Return whether a repeated call only has to check that the memory it reads is active."""
    if call.needed is not None or call.refused or not call.reads or not call.writes:
        return False
    return all(
        buffer.tracked
        and buffer.nbytes
        and not (buffer.packed or buffer.raw or buffer.mixed or buffer.storage.elsewhere)
        for buffer in (*call.reads, *call.writes, *call.spoils)
    )


def _key(operation: CollectiveOperation, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return a key that is equal for calls with the same arrays, ranks and operations; None if there is no simple one.

    It identifies arrays by their regions.
    """
    if not operation.remembers:
        return None
    key: list[Any] = [operation]
    for argument in arguments:
        if isinstance(argument, TrackedArray):
            if not argument.ndim or argument.dtype.kind not in "fc":
                return None
            key.append(region_of(argument))
        elif type(argument) is int or is_in_place(argument):
            key.append(argument)
        elif isinstance(argument, _Op) and argument.handle in PREDEFINED:
            key.append(argument.handle)
        else:
            return None
    return tuple(key)


def _places(call: Call, arguments: Sequence[Any]) -> list[tuple[Buffer, int]] | None:
    """Return each buffer of a call with the index of the argument that has its memory; None if one has none."""
    places = []
    for buffer in {*call.reads, *call.writes, *call.spoils} - {NOTHING}:
        if type(buffer) is not Buffer:
            return None
        for k, argument in enumerate(arguments):
            if buffer.array is argument:
                places.append((buffer, k))
                break
        else:
            return None
    return places


def _log_repeated(
    tape: Tape, comm: mpi.Comm, operation: CollectiveOperation, arguments: Sequence[Any]
) -> Performed | None:
    """Log a call with the arguments of an earlier one, on the communicator that was used last.

    A large message fills most of the processor's caches, so each memory access while recording is slow; this function
    makes few.

    Returns
    -------
    Performed or None
        None for any other call; it has not been logged.
    """
    latest, log, _ = tape.latest
    if latest is not comm:
        return None
    key: list[Any] = [operation]
    for argument in arguments:
        region = getattr(argument, "_region", None)
        if region is not None:
            key.append(region)
        elif argument is _SUM:
            key.append(_SUM_HANDLE)
        elif type(argument) is int:
            key.append(argument)
        elif isinstance(argument, _Op) and argument.handle in PREDEFINED:
            key.append(argument.handle)
        else:
            return None
    call, _, simple = log.reverse.calls.get(tuple(key), _NOT_KNOWN)
    if not simple:
        return None
    reference = tape.reference
    if tape.accesses is not None:  # what is overwritten has to be noted
        return None
    for buffer in call.reads:
        if buffer.storage.tape is not reference:
            return None
    for buffer in call.spoils:
        storage = buffer.storage
        if storage.needs or storage.guard or not (storage.tape is None or storage.tape is reference):
            return None
    frame = _getframe(3)
    where = sites.get((id(frame.f_code), frame.f_lasti)) or call_site(4)
    performed = Performed.__new__(Performed)
    performed.name = call.name
    performed.reverse = log.reverse
    performed.reads_active = performed.writes_tracked = performed.certain = True
    performed.loses = performed.happening = performed.passed = False
    performed.root = call.root
    performed.where = where
    performed.after = log.passive
    performed.call = call
    performed.values = None
    performed.undo = ()
    log.add_collective(performed)
    return performed


_SUM = mpi.SUM
_SUM_HANDLE = mpi.SUM.handle
_NOT_KNOWN = None, None, False


def perform(comm: mpi.Comm, operation: CollectiveOperation, primal: Callable, *arguments: Any) -> None:
    """Run a blocking collective while a tape exists."""
    tape = recording()
    note_accesses(tape)
    performed = None if tape is None else _log_repeated(tape, comm, operation, arguments)
    if performed is not None:
        try:
            primal(comm, *arguments)
        except BaseException as error:
            refused(tape, performed, error)  # type: ignore[arg-type]
            raise
        for buffer in performed.call.writes:
            tape.set_active(buffer.storage)  # type: ignore[union-attr]
        if tape.before_append is not None:  # type: ignore[union-attr]
            tape.before_append()  # type: ignore[union-attr]
        tape.append_record(performed)  # type: ignore[union-attr]
        return
    if tape is None:
        count_passive(comm)
        call = operation.call(comm, arguments)
        refuse_others(*call.reads, *call.writes)
        call.overwrite()
        primal(comm, *arguments)
        return
    if tape.tangents is not None:
        second.perform(comm, operation, primal, arguments, tape)
        return
    if tape.forward is not None:
        forward_collectives.perform(comm, operation, primal, arguments, tape)
        return
    call = _call_of(comm, operation, arguments)
    try:
        performed = call.log(tape, comm)
        performed.keep_values(tape, False)
        performed.undo = call.overwrite()
        primal(comm, *arguments)
        call.activate(tape, comm, performed.reads_active)
    except BaseException as error:
        if performed is not None:
            _not_performed(tape, comm, performed, error)
        raise
    finally:
        call.detach()
    if tape.before_append is not None:
        tape.before_append()
    tape.append_record(performed)


def _not_performed(tape: Tape, comm: mpi.Comm, performed: Performed, error: BaseException) -> None:
    """Clean up after a blocking collective that raised an error after it was logged."""
    if refused(tape, performed, error):
        if performed.undo:
            tape.append(None, performed.undo)  # nothing else saves these values
        return
    performed.call.activate(tape, comm, performed.reads_active)
    tape.append_record(performed)


def _start(
    name: str, comm: mpi.Comm, operation: CollectiveOperation, arguments: Sequence[Any], keywords: dict[str, Any]
) -> Started | forward_collectives.ForwardStarted | None:
    """Check, log and record a collective with a request before it starts, while a tape exists."""
    tape = recording()
    note_accesses(tape)
    if tape is not None and tape.tangents is not None:
        return second.start(name, comm, operation, arguments, keywords, tape)
    if tape is not None and tape.forward is not None:
        return forward_collectives.start(comm, operation, arguments, keywords, tape)
    call = operation.call(comm, arguments, keywords, started=True)
    call.name = name
    if tape is None:
        count_passive(comm)
        refuse_others(*call.reads, *call.writes)
        call.overwrite()
        return None
    if tape.before_append is not None:  # it may find that memory to be read has been written
        tape.before_append()
    performed = call.log(tape, comm)
    performed.keep_values(tape, True)
    undo = call.overwrite()
    call.activate(tape, comm, performed.reads_active)
    call.detach()
    started = Started(performed)
    tape.append_start(started, undo)
    return started


_BLOCKING = """
def {name}(self, {parameters}):
    if living:
        perform(self, operation, primal, {parameters})
    else:
        primal(self, {parameters})
"""
_ATTENDED = """
def {name}(self, {parameters}):
    if living:
        perform(self, operation, attended, {parameters})
    elif is_of_all(self):
        begin()
        try:
            primal(self, {parameters})
        except BaseException:
            forget()
            raise
        meeting[0] = 0
    else:
        primal(self, {parameters})
"""


def _blocking(operation: CollectiveOperation, primal: Callable[..., None]) -> Callable[..., None]:
    """Make the method of the blocking form from source text, as `collections.namedtuple` does: calls are cheapest."""
    namespace = {
        "__name__": __name__,
        "living": living,
        "perform": perform,
        "operation": operation,
        "primal": primal,
        "attended": attended(primal),
        "begin": begin,
        "forget": forget,
        "is_of_all": is_of_all,
        "meeting": meeting,
    }
    text = _BLOCKING if namespace["attended"] is primal else _ATTENDED
    exec(text.format(name=operation.name, parameters=", ".join(operation.parameters)), namespace)
    method: Any = namespace[operation.name]
    method.__defaults__ = operation.defaults
    return method


def _nonblocking(
    name: str, operation: CollectiveOperation, primal: Callable[..., mpi.Request]
) -> Callable[..., mpi.Request]:
    """Make the method of a nonblocking form."""
    # mpi4py's requests keep buffers alive, except in these operations.
    keeps_buffers = "op" not in operation.parameters and operation.name != "Allgatherv"

    def method(self: Any, *arguments: Any, **keywords: Any) -> mpi.Request:
        started = _start(name, self, operation, arguments, keywords) if living else None
        try:
            request = primal(self, *arguments, **keywords)
        except BaseException as error:
            if started is not None:
                started.take_back(opened(), error)
            raise
        if started is not None:
            request = recorded(opened(), request, started)
        return request if keeps_buffers else holding(request, arguments, keywords)

    method.__name__ = name
    return method


def _persistent(
    name: str, operation: CollectiveOperation, primal: Callable[..., mpi.Prequest]
) -> Callable[..., mpi.Prequest]:
    """Make the method of a persistent form, which has ``info`` as its last argument."""
    n = len(operation.parameters)

    def method(self: Any, *arguments: Any, **keywords: Any) -> mpi.Prequest:
        request = primal(self, *arguments, **keywords)
        keywords.pop("info", None)
        given = [with_typemaps(argument) for argument in arguments[:n]]
        named = {key: with_typemaps(argument) for key, argument in keywords.items()}

        def start() -> tuple[Any, ...]:
            started = _start(name, self, operation, given, named)
            return () if started is None else (started,)

        return persistent(request, start)

    method.__name__ = name
    return method
