"""Epochs: completion of accesses, drawing of tickets, and ordered execution of postponed operations."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...tape import Tape
from ...tape.recording import open_tapes, opened
from ..log.log import communication_of
from .access import Access, Fence, Handshake
from .forward_windows import forward_trace, open_at_fence, push_of
from .trace import Trace, trace_of
from .window import ALL, Window, require_own, tape_of, window_of

_Group, _Win = mpi.Group, mpi.Win  # mpi4py's own: its names may be rebound


def complete(window: Window, rank: int = ALL, primal: Callable[[], None] | None = None) -> None:
    """Complete this rank's accesses to a target's memory (to all of them) in lock epochs.

    The tickets are drawn first: other ranks may proceed at once.
    """
    done: list[tuple[Trace, Access]] = []
    left: list[tuple[Trace, Access]] = []
    for entry in window.incomplete:
        (done if rank in (ALL, entry[1].target.rank) else left).append(entry)
    if done:
        window.incomplete = left
        _draw(window, done)
    if any(trace.pushes for trace, _ in done):
        _send(done)
        win = _Win.fromhandle(window.handle)
        for target in {access.target.rank for _, access in done}:
            _Win.Flush(win, target)
        _completed(done)  # other ranks may access the memory after the primal
        done = []
    if primal is not None:
        primal()
    _completed(done)


def _send(accesses: list[tuple[Any, Access]]) -> None:
    """Start the tangents together with the values, up to the first operation that needs values."""
    for trace, access in itertools.takewhile(lambda entry: not entry[1].nonlinear, accesses):
        if trace.pushes:
            trace.push(access)


def _completed(accesses: list[tuple[Any, Access]]) -> None:
    """Complete the tangents of operations that have completed."""
    for _, access in accesses:
        access.complete()
    pushed = [(trace, access) for trace, access in accesses if trace.pushes]
    for trace, access in pushed:
        trace.push(access)
    for trace, _ in pushed:
        trace.settle()


def _draw(window: Window, accesses: list[tuple[Trace, Access]]) -> None:
    """Draw the tickets for accesses to targets' memory."""
    groups: dict[tuple[Trace, int], list[Access]] = {}
    for trace, access in accesses:
        groups.setdefault((trace, access.target.rank), []).append(access)
    for (trace, target), group in groups.items():
        trace.draw(target, group)


def execute_postponed(win: Any, window: Window, primal: Callable[[], Any]) -> None:
    """Execute the operations that this rank has postponed, while no other rank does; the primal call completes them."""
    accesses, window.postponed = window.postponed, []
    for trace, access in accesses:
        if trace.tape() is not opened():
            trace.refuse(f"{access.name} belongs to an epoch that ended when the tape had been closed")
    _draw(window, accesses)
    for _, access in accesses:
        access.execute(win)
    _send(accesses)
    primal()
    _completed(accesses)


def catch_up(win: Any, window: Window, assertion: int) -> None:
    """At a fence, execute the postponed operations, one rank after the other; collective."""
    if assertion:  # its promises about the next epoch do not hold yet
        _Win.Fence(win, mpi.MODE_NOPRECEDE)
    comm = window.reverse.comm
    late = np.empty(comm.Get_size(), np.int8)
    forward = any(trace.pushes for trace, _ in window.postponed)
    comm.Allgather(np.array([2 if forward else bool(window.postponed)], np.int8), late)
    ranks = np.flatnonzero(late).tolist()
    for rank in ranks:
        fence = partial(_Win.Fence, win, assertion if rank == ranks[-1] else 0)
        if rank == window.reverse.rank:
            execute_postponed(win, window, fence)
        else:
            fence()
        if late[rank] == 2:  # its tangents arrive after its fence
            comm.Barrier()


def one_by_one(win: Any, window: Window) -> None:
    """Complete an epoch of Start: one origin at a time executes its postponed operations.

    A rank that makes others wait does not depend on them: its targets have posted.
    """
    order = window.order
    for target in window.started:
        order.await_post(target, window.starts[target])
    targets = sorted({access.target.rank for _, access in window.postponed})
    for target in targets:
        order.enter(target)
    try:
        execute_postponed(win, window, lambda: _Win.Complete(win))
    finally:
        for target in targets:
            order.leave(target)


@contextlib.contextmanager
def in_order(win: Any, recorded_access: tuple[Trace, Access] | None) -> Iterator[None]:
    """Carry out an atomic operation inside the block; in an epoch of a shared lock at once, with its own ticket."""
    if recorded_access is None:
        yield
        return
    window, rank = recorded_access[1].window, recorded_access[1].target.rank
    if not window.is_locked(rank) or window.locked.get(rank) == mpi.LOCK_EXCLUSIVE:
        yield
        return
    window.order.enter(rank)
    try:
        yield
        complete(window, rank, lambda: _Win.Flush(win, rank))
    finally:
        window.order.leave(rank)


def ranks_of(win: Any, group: mpi.Group) -> list[int]:
    """Return the ranks of a group in a window."""
    own = _Win.Get_group(win)
    try:
        return list(_Group.Translate_ranks(group, None, own))
    finally:
        own.Free()


def handshake(win: Any, name: str, partners: list[int]) -> None:
    """Record Post, Start, Complete or Wait."""
    window = window_of(win)
    tape = tape_of(window)
    if tape is None and window is not None and open_tapes:
        require_own(window)
    if tape is None or window is None:
        return
    trace = trace_of(tape, window)
    if tape.forward is None:
        communication_of(tape).log(window.reverse).touched = True
    record = Handshake(name, window, partners)
    if name in ("Start", "Post") and len({*partners, window.reverse.rank}) < window.order.size:
        trace.announce()  # to the ranks that take no part in it
    if name == "Start":
        trace.epoch, trace.access_epoch = True, record
    elif name == "Complete" and trace.access_epoch is not None:
        trace.accesses = []
        trace.access_epoch = None
    elif name == "Post":
        trace.exposure = record
    else:
        trace.exposure = None
    if tape.forward is None:
        tape.append(record)
    if trace.pushes:
        forward_trace(tape, window).shake(name, partners)


def end_exposure(win: Any) -> None:
    """Record that Wait or Test has ended an epoch of Post."""
    window = window_of(win)
    if window is not None:
        handshake(win, "Wait", window.posted)
        window.posted = []


def note_fence(tape: Tape, window: Window) -> None:
    """Record a fence."""
    if push_of(tape) is not None:
        shadows = open_at_fence(tape, window)
        shadows.settle()
        shadows.sync()
    trace = trace_of(tape, window)
    trace.accesses, trace.epoch = [], True
    if tape.forward is not None:
        return
    tape.append(Fence(window, trace.log(tape, "Fence", False, False)))
