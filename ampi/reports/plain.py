"""Messages and one-sided operations outside tapes: those of a program without a tape, or before it records.

Destinations and sources are arguments of the calls; the source of a receive from any rank is found in its status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mpi4py import MPI as mpi

from ..mpi.log.reverse import reverse_of
from ..mpi.memory.arguments import parse_bytes
from ..mpi.namespace import BASE
from ..mpi.windows.window import window_of

SENT, RECEIVED, COLLECTIVE, WRITTEN, FETCHED = range(5)
"""Kinds of messages; the last two are the parts of one-sided operations, to their target and from it."""
MOST = 200_000
"""Maximum number of messages that a rank saves."""
_ANY_SOURCE, _ANY_TAG, _PROC_NULL, _Status = mpi.ANY_SOURCE, mpi.ANY_TAG, mpi.PROC_NULL, mpi.Status
_Op, _Request = BASE["Op"], BASE["Request"]  # mpi4py's own: these names are rebound

_SEND, _RECEIVE = ("buf", "dest", "tag"), ("buf", "source", "tag", "status")
_EXCHANGE = ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status")
_REPLACE = ("buf", "dest", "sendtag", "source", "recvtag", "status")
PARAMETERS = {
    **dict.fromkeys("Send Bsend Rsend Ssend Isend Ibsend Irsend Issend".split(), _SEND),
    **dict.fromkeys("send bsend ssend isend ibsend issend".split(), ("obj", *_SEND[1:])),
    **dict.fromkeys("Recv recv Irecv irecv".split(), _RECEIVE),
    **dict.fromkeys(("Sendrecv", "Isendrecv"), _EXCHANGE),
    "sendrecv": ("sendobj", *_EXCHANGE[1:]),
    **dict.fromkeys(("Sendrecv_replace", "Isendrecv_replace"), _REPLACE),
}
"""Parameters of the methods that send and receive, after the communicator."""
PERSISTENT = {
    **dict.fromkeys("Send_init Bsend_init Rsend_init Ssend_init".split(), _SEND),
    "Recv_init": _RECEIVE[:3],
    "Psend_init": ("buf", "partitions", "dest", "tag", "info"),
    "Precv_init": ("buf", "partitions", "source", "tag", "info"),
}
"""The same for methods that make persistent requests."""
PARTS = {
    **dict.fromkeys(("Put", "Rput", "Accumulate", "Raccumulate"), (WRITTEN,)),
    **dict.fromkeys(("Get", "Rget"), (FETCHED,)),
    **dict.fromkeys("Get_accumulate Rget_accumulate Fetch_and_op Compare_and_swap".split(), (WRITTEN, FETCHED)),
}
"""The transfers of one-sided operations."""
_ONE_SIDED = {
    **dict.fromkeys("Get_accumulate Rget_accumulate Fetch_and_op".split(), ("origin", "result", "target_rank")),
    "Compare_and_swap": ("origin", "compare", "result", "target_rank"),
}
"""The first parameters of one-sided operations, where they are not the origin and the target's rank."""
_STATUSES = {
    **dict.fromkeys("Wait wait Waitany Test Testany".split(), "status"),
    **dict.fromkeys("Waitall Waitsome Testall Testsome".split(), "statuses"),
}
"""The status arguments of methods that complete requests, which have the sources of messages."""
_DEFAULTS = {"dest": None, "source": _ANY_SOURCE, "tag": _ANY_TAG, "recvtag": _ANY_TAG, "sendtag": 0}


class Plain:
    """Messages of one rank outside tapes.

    Attributes
    ----------
    started : list of tuple
        In the order of the calls: kind, reverse side of the communicator, partner, tag, bytes, site, begin and end.
    ended : dict
        For receives, by their index in ``started``: time of arrival, source and tag (-1 if there is no status).
    pending : dict
        Numbers of receives that have not ended, by the handles of their requests.
    persistent : dict
        By the handles of persistent requests: the method that made it, and its arguments.
    recorded : set
        Numbers of messages that a recording tape did not record: they carry no derivative.
    left_out : int
        The number of messages beyond the limit, which were not saved.
    """

    def __init__(self) -> None:
        self.started: list[tuple] = []
        self.ended: dict[int, tuple[int, int, int]] = {}
        self.pending: dict[int, int] = {}
        self.persistent: dict[int, tuple[Call, list[Any]]] = {}
        self.recorded: set[int] = set()
        self.left_out = 0

    def end(self, number: int, end: int, status: Any) -> None:
        """Note the end of a receive."""
        self.ended[number] = end, *((-1, -1) if status is None else (status.Get_source(), status.Get_tag()))

    def messages(self, comms: dict[int, str], recorded: bool) -> Iterable[tuple]:
        """Iterate over kind, identity of the communicator, partner in the world, tag, bytes, site, begin and end.

        Parameters
        ----------
        comms : dict
            The names of the communicators are added to it.
        recorded : bool
            Whether to return those that a recording tape did not record, or all others.
        """
        for number, (kind, reverse, partner, tag, nbytes, site, begin, end) in enumerate(self.started):
            if reverse is None or partner == _PROC_NULL or (number in self.recorded) != recorded:
                continue
            if number in self.ended:
                end, source, received_tag = self.ended[number]
                if partner == _ANY_SOURCE and source >= 0:  # it was not cancelled
                    partner, tag = source, received_tag
            comms[reverse.identity] = reverse.name
            world = -1 if partner < 0 else reverse.in_world(partner)[0]
            yield kind, reverse.identity, world, tag, nbytes, site, begin, end


def _size(data: Any) -> int:
    nbytes = getattr(data, "nbytes", None)
    if nbytes is None and data is not None:
        nbytes = parse_bytes(data).nbytes
    return -1 if nbytes is None else nbytes


class Call:
    """A method that sends or receives: the positions of partners, tags and data among its arguments.

    Attributes
    ----------
    sides : list of tuple
        For each message that it begins: kind, and the positions of partner, tag and data (0: an object).
    status : int
        Position of the status of a receive that is complete when the method returns; 0 if there is none.
    """

    def __init__(self, name: str, parameters: tuple[str, ...]) -> None:
        self.places = {parameter: k + 1 for k, parameter in enumerate(parameters)}  # after the communicator
        self.defaults = [None, *(_DEFAULTS.get(parameter) for parameter in parameters)]
        if "dest" in parameters and "tag" in parameters:
            self.defaults[self.places["tag"]] = 0
        self.status = 0 if name.lower().startswith("i") else self.places.get("status", 0)
        self.sides: list[tuple[int, int, int, int]] = []
        for kind, partner, own in ((SENT, "dest", "send"), (RECEIVED, "source", "recv")):
            if partner in parameters:
                tag = self.places[f"{own}tag" if f"{own}tag" in parameters else "tag"]
                data = self.places.get(f"{own}buf", self.places.get("buf", 0)) if name[0].isupper() else 0
                self.sides.append((kind, self.places[partner], tag, data))
        self.last = max(place for _, *places in self.sides for place in places)

    def bound(self, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        """Return all arguments by position."""
        found = self.defaults.copy()
        found[: len(arguments)] = arguments
        for name, value in keywords.items():
            found[self.places[name]] = value
        return found

    def with_status(self, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """Return the status of a receive from any rank; add one to the keywords if there is none."""
        if not self.status:
            return None
        found = self.bound(arguments, keywords)
        if found[self.places["source"]] != _ANY_SOURCE:
            return None
        if found[self.status] is None and len(arguments) <= self.status:
            found[self.status] = keywords["status"] = _Status()
        return found[self.status]

    def enter(self, plain: Plain, arguments: Any, keywords: dict[str, Any], found: tuple[int, int, int]) -> bool:
        """Enter the messages of a call (site, begin and end); return whether the last one is a receive."""
        if keywords or len(arguments) <= self.last:
            arguments = self.bound(arguments, keywords)
        started = plain.started
        if len(started) >= MOST:
            plain.left_out += len(self.sides)
            return False
        reverse = reverse_of(arguments[0])
        for kind, partner, tag, data in self.sides:
            started.append(
                (kind, reverse, arguments[partner], arguments[tag], _size(arguments[data]) if data else -1, *found)
            )
        return kind == RECEIVED


# The following functions run around MPI methods: one before, whose result is passed to the one after.


def send_or_receive(name: str) -> tuple[Any, Any]:
    """Make the functions that run before and after a method that sends or receives, or starts to."""
    call = Call(name, PARAMETERS[name])

    def before(arguments: tuple, keywords: dict[str, Any]) -> Any:
        return call.with_status(arguments, keywords)

    def after(plain: Plain, found: tuple, arguments: tuple, keywords: dict, result: Any, status: Any) -> None:
        if call.enter(plain, arguments, keywords, found):
            number = len(plain.started) - 1
            if status is not None:
                plain.end(number, found[2], status)
            elif isinstance(result, _Request):
                plain.pending[result.handle] = number

    return (before if call.status else None), after


def make_persistent(name: str) -> Any:
    """Make the function that runs after a method that makes a persistent request."""
    call = Call(name, PERSISTENT[name])

    def after(plain: Plain, request: Any, arguments: tuple, keywords: dict[str, Any]) -> None:
        plain.persistent[request.handle] = call, call.bound(arguments, keywords)

    return after


def start(plain: Plain, found: tuple[int, int, int], requests: Sequence[Any]) -> None:
    """Enter the messages of persistent requests that have been started."""
    for request in requests:
        call, arguments = plain.persistent.get(request.handle, (None, []))
        if call is not None and call.enter(plain, arguments, {}, found):
            plain.pending[request.handle] = len(plain.started) - 1


def completing(plain: Plain, name: str, requests: Sequence[Any], arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Return the method, the receives among requests to be completed, and the statuses that will have their sources."""
    pending = plain.pending
    found = [(request.handle, k) for k, request in enumerate(requests) if request.handle in pending]
    if not found:
        return None
    parameter = _STATUSES.get(name)
    statuses = arguments[1] if len(arguments) > 1 else keywords.get(parameter or "")
    wild = any(plain.started[pending[handle]][2] == _ANY_SOURCE for handle, _ in found)
    if statuses is None and parameter is not None and wild:
        statuses = keywords[parameter] = [] if parameter == "statuses" else _Status()
    return name, found, statuses


def completed(plain: Plain, noted: Any, end: int, result: Any) -> None:
    """Note the completion of some of these requests."""
    name, found, statuses = noted
    several = _completed_ones(name, result)
    if isinstance(statuses, list) and several is not None:
        statuses = dict(zip(several, statuses))
    for handle, k in found:
        if several is None or k in several:
            number = plain.pending.pop(handle, -1)
            if number >= 0:
                status = statuses.get(k) if isinstance(statuses, dict) else statuses
                plain.end(number, end, status[k] if isinstance(status, list) else status)


def _completed_ones(name: str, result: Any) -> Sequence[int] | None:
    """Return the indices of the requests that a method has completed, from its result; None: all of them."""
    kind = name.lower()
    if kind in ("wait", "waitall"):
        return None
    if kind == "testany":
        index, flag = result[:2]
        return [index] if flag else ()
    found = result[0] if name.islower() else result  # of methods that also return objects
    if kind == "waitany":
        return [found]
    if kind in ("test", "testall"):
        return None if found else ()
    return found or ()


def access(
    plain: Plain,
    name: str,
    arguments: tuple,
    keywords: dict[str, Any],
    found: tuple[int, int, int],
    recorded: bool,
) -> None:
    """Enter a one-sided operation."""
    window = window_of(arguments[0])
    if window is None:
        return
    given = {**dict(zip(_ONE_SIDED.get(name, ("origin", "target_rank")), arguments[1:])), **keywords}
    target = int(given["target_rank"])
    fetches = any(isinstance(value, _Op) and value == mpi.NO_OP for value in (*arguments, *keywords.values()))
    buffers = {WRITTEN: given["origin"], FETCHED: given.get("result", given["origin"])}
    for kind in (FETCHED,) if fetches else PARTS[name]:
        if len(plain.started) >= MOST:
            plain.left_out += 1
            continue
        if recorded:
            plain.recorded.add(len(plain.started))
        plain.started.append((kind, window.reverse, target, 0, _size(buffers[kind]), *found))
