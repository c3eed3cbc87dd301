"""Messages and collective calls as the log of a tape has them, and the adjoints of sending and receiving."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..tape import IsRecord, Sweep
from .reverse import Reverse
from .waiting import outbox_of, wait

_Prequest = mpi.Prequest  # mpi4py's own: the name in its module is rebound later
_ANY_SOURCE, _ANY_TAG = mpi.ANY_SOURCE, mpi.ANY_TAG
_ALL = 1 << 62  # bytes of a message that is not known to have come short


class Sent(IsRecord):
    """A message in the log of its sender, and the adjoint of sending it.

    ``where`` is the call site.  ``pair`` is a request of mpi4py's that belongs to the one that the user has, or None.
    ``back`` is the tag of its adjoint, or None if none comes; known after the agreement.
    """

    __slots__ = (
        "active",
        "back",
        "buffer",
        "cancelled",
        "dest",
        "flight",
        "name",
        "nbytes",
        "pair",
        "reverse",
        "tag",
        "where",
        "wild",
    )
    reads_memory = False

    def __init__(self, name: str, reverse: Reverse, buffer: Any, active: bool, dest: int, tag: int) -> None:
        self.name = name
        self.reverse = reverse
        self.active = active
        self.nbytes = buffer.nbytes
        self.buffer = buffer if active else None
        self.dest = dest
        self.tag = tag
        self.where = call_site(5)
        self.wild = False  # becomes True when somebody tries to cancel it
        self.pair: mpi.Request | None = None
        self.cancelled = False
        self.back: int | None = None
        self.flight: Any = None

    def resolve(self, status: mpi.Status | None) -> None:
        """The send has completed."""
        if self.pair is not None:
            self.pair.Wait()
            self.pair = None
        if self.wild and status is not None and status.Is_cancelled():
            self.cancelled = True

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} to rank {self.dest} with tag {self.tag} on {self.reverse.name}, {line_of(self.where)}"

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror of the wait: the adjoint may come."""
        if self.back is not None and self.flight is None:
            adjoint = np.empty(self.buffer.count, self.buffer.dtype)
            self.flight = self.reverse.comm.Irecv(_as_real(adjoint), self.dest, self.back), adjoint

    def __call__(self, sweep: Sweep) -> None:
        """Mirror of the start: x̄ += what came."""
        if self.back is None:
            return
        self.begin(sweep)
        request, adjoint = self.flight
        if not request.Test():
            wait(request, self.waiting)
        self.flight = None
        self.buffer.add(sweep, adjoint)


class Received(IsRecord):
    """A receive in the log of its rank, in the order of posting, and the adjoint of receiving.

    ``source`` and ``tag`` are what the receive was posted with until it has completed, then what it matched.
    ``active`` says that it overwrites tracked floating-point memory (whether the sender was active is not known before
    the agreement), ``dropped`` that it was received inside `ampi.passive`; ``undo`` is what it overwrites.  ``awaited``
    is the `agreement.Communication` that waits for its request to be completed, or None.  ``came`` is the length of the
    message in bytes, ``back`` the tag of its adjoint, or None if none goes back; known after the agreement.
    """

    __slots__ = (
        "active",
        "awaited",
        "back",
        "buffer",
        "came",
        "cancelled",
        "dropped",
        "flight",
        "name",
        "request",
        "reverse",
        "source",
        "tag",
        "undo",
        "where",
        "wild",
    )
    reads_memory = False

    def __init__(self, name: str, reverse: Reverse, buffer: Any, tracked: bool, source: int, tag: int) -> None:
        self.name = name
        self.reverse = reverse
        self.buffer = buffer
        self.active = tracked
        self.source = source
        self.tag = tag
        self.wild = source == _ANY_SOURCE or tag == _ANY_TAG
        self.where = call_site(4)
        self.request: Any = None
        self.awaited: Any = None
        self.undo = ()
        self.cancelled = False
        self.dropped = False
        self.back: int | None = None
        self.came = _ALL
        self.flight: Any = None

    def describe(self) -> str:
        """For error messages."""
        source = "any rank" if self.source == mpi.ANY_SOURCE else f"rank {self.source}"
        tag = "any tag" if self.tag == mpi.ANY_TAG else f"tag {self.tag}"
        return f"{self.name} from {source} with {tag} on {self.reverse.name}, {line_of(self.where)}"

    def begin(self, sweep: Sweep) -> None:
        """Mirror of the wait: x̄ of what was received goes back, and is zero here."""
        if self.flight is sweep or self.cancelled:
            return
        self.flight = sweep  # done in this sweep
        overwritten = self.buffer.within(self.came)
        if self.back is None:
            overwritten.zero(sweep)
            return
        adjoint = overwritten.take(sweep)
        outbox_of(sweep).send(self.reverse.comm, _as_real(adjoint), self.source, self.back, self.waiting)

    def completed(self) -> bool:
        """Whether the request has been completed, be it by a method that ampi does not see."""
        request = self.request
        if request is None or not request:
            return True
        if not isinstance(request, _Prequest):
            return False
        status = mpi.Status()
        done = _Prequest.Get_status(request, status)
        if done and status.Is_cancelled():  # MPICH says so only once
            self.cancelled, self.wild = True, False
        return done

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.describe()}"

    def __call__(self, sweep: Sweep) -> None:
        """Mirror of the start.  What went back was a copy: nothing to wait for."""
        if self.flight is not sweep:
            self.begin(sweep)
        self.flight = None

    def resolve(self, status: mpi.Status | None) -> None:
        """The receive has completed."""
        self.request = None
        if self.awaited is not None:
            self.awaited.end(self)
        if status is None or not self.wild:
            return
        self.wild = False
        if status.Is_cancelled():
            self.cancelled = True
        else:
            self.source = status.Get_source()
            self.tag = status.Get_tag()


class Completion(IsRecord):
    """Record of a wait: its adjoint starts the reverse transfers."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Sent | Received]) -> None:
        self.parts = parts

    @property
    def reads_memory(self) -> bool:
        """Whether the adjoint of a part does (a collective's may)."""
        return any(getattr(part, "reads_memory", True) for part in self.parts)

    def __call__(self, sweep: Sweep) -> None:
        """Mirror of the wait."""
        for part in self.parts:
            part.begin(sweep)


class Collective:
    """A collective call in a tape's log.

    Attributes
    ----------
    reverse : Reverse
        ``token.reverse.comm`` is the communicator of the reverse traffic.
    certain : bool
        Active values that this rank contributes are no bytes of which it is not known what they hold.
    after : int
        Number of collective calls inside `ampi.passive` that came before it.
    passed : bool
        In a sweep: the next reversed collective of the communicator may begin.
    """

    depth = 2
    """How many frames between the call and `call_site` are known to be ampi's own."""
    __slots__ = (
        "after",
        "certain",
        "happening",
        "loses",
        "name",
        "passed",
        "reads_active",
        "reverse",
        "where",
        "writes_tracked",
    )

    def __init__(
        self,
        name: str,
        reverse: Reverse,
        reads_active: bool,
        writes_tracked: bool,
        loses: bool,
        certain: bool = True,
    ) -> None:
        self.name = name
        self.reverse = reverse
        self.reads_active = reads_active
        self.writes_tracked = writes_tracked
        self.loses = loses
        self.certain = certain
        self.where = call_site(self.depth)
        self.after = 0
        self.happening = False
        self.passed = False

    def happens(self, sweep: Sweep) -> bool:
        """Whether the reversed collective takes place: a rank contributed active values and a rank received tracked.

        The same on all ranks of the communicator.
        """
        return self.happening

    def describe(self) -> str:
        """For error messages."""
        return f"{self.name} on {self.reverse.name}, {line_of(self.where)}"


def _as_real(array: np.ndarray) -> np.ndarray:
    """A contiguous array as real numbers: a complex number may be received as two real ones."""
    return array.view(array.real.dtype) if array.dtype.kind == "c" else array


_OWN = ("ampi.", "mpi4py.")
# A loop has thousands of messages and a few lines.  Code objects are told by their ids, for their hashes take long.
_codes: dict[int, tuple[Any, bool]] = {}  # and whether they are ampi's own (or mpi4py's)
_sites: dict[tuple[int, int], tuple[Any, int]] = {}


def call_site(depth: int = 2) -> tuple[Any, int]:
    """Code object and instruction of the innermost caller outside ampi; `line_of` makes text of it.

    The ``depth`` innermost frames are known to be ampi's own.
    """
    frame: Any = sys._getframe(depth)
    while True:
        code = frame.f_code
        key = id(code)
        known = _codes.get(key)
        if known is None:
            known = _codes[key] = code, frame.f_globals.get("__name__", "").startswith(_OWN)
        if not known[1] or frame.f_back is None:
            break
        frame = frame.f_back
    site = key, frame.f_lasti
    where = _sites.get(site)
    if where is None:
        where = _sites[site] = code, site[1]
    return where


def line_of(where: tuple[Any, int]) -> str:
    """``file:line`` of a call site."""
    code, instruction = where
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end and number is not None:
            line = number
    return f"{code.co_filename}:{line}"
