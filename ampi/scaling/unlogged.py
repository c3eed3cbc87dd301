"""Communication outside the logs of tapes: one-sided calls, barriers, files, pickled objects.

One-sided calls and barriers are counted when they are called, and adjoints of one-sided operations from a tape's
records.  Other operations, and those without a cost, are listed with their lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI as mpi

from ..mpi.base.call_sites import call_site, line_of
from ..mpi.base.rules import TABLE
from ..mpi.memory.arguments import parse
from ..mpi.namespace import MPI
from ..mpi.windows.access import Access, Begun, Fence, Handshake
from ..mpi.windows.window import window_of
from ..tape import Tape
from ..tape.recording import opened

MOVING = ("Put", "Get", "Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")
"""One-sided operations; each but the last two has a form with a request."""
SYNCHRONISING = ("Fence", "Post", "Start", "Complete", "Wait", "Lock", "Unlock", "Flush")
BARRIERS = ("Barrier", "Ibarrier", "Barrier_init")
NOT_COSTED = ("Lock_all", "Unlock_all", "Flush_all", "Flush_local", "Flush_local_all")
COMMUNICATORS = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
_READS = ("Put", "Accumulate", "Get_accumulate", "Fetch_and_op", "Compare_and_swap")
_RESULT = {"Get": 0, "Get_accumulate": 1, "Fetch_and_op": 1, "Compare_and_swap": 2}

Row = tuple[str, str, int]
"""Line, operation, number of ranks."""
Numbers = tuple[int, int, int, set[int]]
"""Calls, bytes out and in, ranks on the other side."""


def plain(name: str) -> str:
    """The basic one-sided operation of which an operation is a variant.

    Examples
    --------
    >>> from ampi.scaling.unlogged import plain
    >>> plain("Rget_accumulate"), plain("Put")
    ('Get_accumulate', 'Put')
    """
    return name if name in MOVING else name[1:].capitalize()


class Watch:
    """Observes calls while a tape records, from `start` to `stop`.

    Parameters
    ----------
    count : callable
        Called with a row and its numbers.
    leave_out : callable
        Called with operations that are not counted, and their lines.
    """

    def __init__(self, count: Callable[[Row, Numbers], None], leave_out: Callable[[str, str], object]) -> None:
        self._count = count
        self._leave_out = leave_out
        self._inside = False
        self._replaced: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        """Start observing."""
        forms = (*MOVING, *(f"R{name.lower()}" for name in MOVING[:4]))
        for name in forms:
            self._observe(MPI.Win, name, functools.partial(self._count_access, plain(name)))
        for name in SYNCHRONISING:
            self._observe(MPI.Win, name, functools.partial(self._count_synchronisation, name))
        for name in NOT_COSTED:
            self._observe(MPI.Win, name, functools.partial(self._note_left_out, f"Win.{name}"))
        for operation in TABLE.values():
            if operation.owner == "File":
                self._observe(
                    MPI.File, operation.name, functools.partial(self._note_left_out, f"File.{operation.name}")
                )
        objects = [(op.name, f"{op.name} of objects") for op in TABLE.values() if op.objects and op.owner != "Message"]
        for cls_name in COMMUNICATORS:
            cls = getattr(MPI, cls_name)
            for name in BARRIERS:
                self._observe(cls, name, self._count_barrier)
            for name, what in objects:
                self._observe(cls, name, functools.partial(self._note_left_out, what))

    def stop(self) -> None:
        """Stop observing, and restore the methods."""
        while self._replaced:
            owner, name, value = self._replaced.pop()
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)

    def _observe(self, owner: Any, name: str, see: Callable[..., Any]) -> None:
        function = getattr(owner, name, None)
        if function is None:
            return

        @functools.wraps(function)
        def method(*arguments: Any, **keywords: Any) -> Any:
            tape = opened()
            if self._inside or tape is None or tape.forward is not None or tape.tangents is not None:
                return function(*arguments, **keywords)
            self._inside = True
            try:
                return see(line_of(call_site()), function, *arguments, **keywords)
            finally:
                self._inside = False

        self._replaced.append((owner, name, owner.__dict__.get(name)))
        setattr(owner, name, method)

    # --------------------------------------------------------------------------------------------------- observers

    def _note_left_out(
        self, what: str, line: str, function: Callable[..., Any], *arguments: Any, **keywords: Any
    ) -> Any:
        self._leave_out(what, line)
        return function(*arguments, **keywords)

    def _count_barrier(
        self, line: str, function: Callable[..., Any], comm: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        self._count((line, "Barrier", comm.Get_size()), (1, 0, 0, set()))
        return function(comm, *arguments, **keywords)

    def _count_access(
        self, name: str, line: str, function: Callable[..., Any], win: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        window = window_of(win)
        names = ("origin", "compare", "result") if name == "Compare_and_swap" else ("origin", "result")
        buffers = names if name in _RESULT and name != "Get" else ("origin",)
        given = {**dict(zip((*buffers, "target_rank", "target", "op"), arguments)), **keywords}
        rank = given["target_rank"]
        if window is None:
            self._leave_out(f"Win.{name} in a window that ampi did not see being made", line)
        elif rank != mpi.PROC_NULL:
            sent = parse(given["origin"]).nbytes if name in _READS and given.get("op") != mpi.NO_OP else 0
            came = parse(given[buffers[_RESULT[name]]]).nbytes if name in _RESULT else 0
            size, others = window.reverse.partners, set(window.reverse.in_world(rank))
            self._count((line, f"Win.{name}", size), (1, sent, came, others))
        return function(win, *arguments, **keywords)

    def _count_synchronisation(
        self, name: str, line: str, function: Callable[..., Any], win: Any, *arguments: Any, **keywords: Any
    ) -> Any:
        window = window_of(win)
        if window is None:
            self._leave_out(f"Win.{name} of a window that ampi did not see being made", line)
            return function(win, *arguments, **keywords)
        known = lambda: {"Post": window.posted, "Wait": window.posted}.get(name, window.started)
        before = list(known())
        try:
            return function(win, *arguments, **keywords)
        finally:
            ranks: set[int] = set()
            if name in ("Post", "Start", "Complete", "Wait"):
                ranks = {*before, *known()}
            elif name != "Fence":
                ranks = {keywords["rank"] if "rank" in keywords else arguments[0]} - {mpi.PROC_NULL}
            others = {there for rank in ranks for there in window.reverse.in_world(rank)}
            self._count((line, f"Win.{name}", window.reverse.partners), (1, 0, 0, others))


# ---------------------------------------------------------------------------------------------------- in the sweep


def of_windows(tape: Tape) -> Iterator[tuple[Row, Numbers]]:
    """The adjoints of a tape's one-sided operations and epochs, in its latest sweep.

    The origin performs the adjoint of an operation, on the target's shadow.  Additions to the target at the end of a
    mirrored epoch count as Accumulate, although they are sent in a message.
    """
    for window, _ in _happening(tape):
        size = window.reverse.partners
        for record in tape.records:
            adjoint = record.adjoint
            part = adjoint.access if isinstance(adjoint, Begun) else adjoint
            if getattr(part, "window", None) is not window:
                continue
            if isinstance(part, Access) and part.target.count:
                others = set(window.reverse.in_world(part.target.rank))
                for name, sent, came in _of_access(part, part is not adjoint):
                    yield (line_of(part.where), name, size), (1, sent, came, others)
            elif isinstance(part, Fence):
                line = line_of(part.token.where)
                yield (line, "Alltoall", size), (1, 8 * size, 8 * size, set())
                yield (line, "Barrier", size), (1, 0, 0, set())
            elif isinstance(part, Handshake):
                name = "send" if part.name in ("Start", "Wait") else "receive"
                for partner in part.partners:
                    yield (line_of(part.where), name, size), (1, 0, 0, set(window.reverse.in_world(partner)))


def _of_access(access: Access, in_lock_epoch: bool) -> list[tuple[str, int, int]]:
    """Operation, and bytes out and in, of `Access.exchange`."""
    nbytes = access.target.count * access.target.dtype.itemsize
    both = "Win.Get_accumulate", nbytes, nbytes
    if access.op is None:
        return [both if in_lock_epoch else ("Win.Accumulate", nbytes, 0)]
    if access.nonlinear:
        return [("Win.Get", 0, nbytes), both]
    if access.op == mpi.REPLACE or access.result is not None:
        return [both]
    return [("Win.Get", 0, nbytes)]


def shadows_of(tape: Tape) -> set[tuple[str, str]]:
    """Descriptions of a sweep's other communication for windows, with the lines where the windows were first used."""
    found = set()
    for _, trace in _happening(tape):
        what = "the set-up of a window by a sweep"
        if trace.tickets:
            what += ", and the turns of accesses under locks or atomic ones"
        found.add((what, line_of(trace.token.where)))
    return found


def _happening(tape: Tape) -> list[tuple[Any, Any]]:
    traces = tape.sweep_starts.get("windows")
    return [] if traces is None else [pair for pair in traces.of.items() if pair[1].token.happening]  # type: ignore
