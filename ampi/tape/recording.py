"""The tape that records in this thread: a context variable, separate for each thread and each asyncio task.

A tape records what the thread that opened it does.  It does not record in another thread, even one that runs in a copy
of the context; there `current` returns a `Bystander` as long as any tape is open, so that using an array that carries
derivatives raises an error instead of losing them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

from ..base.locks import RLock


class Scope:
    """The recording state of a block of the program; copies of a context share it.

    Attributes
    ----------
    tape : Tape, Bystander or None
        What records in the thread; None inside `ampi.passive`, and where no tape is open in any thread.  A `Bystander`
        in contexts that have outlived their tapes.
    opened : Tape or None
        The innermost tape that was opened around it.
    thread : int or None
        The thread that may record; None where no tape is open around it.
    outer : Scope or None
    """

    __slots__ = ("__weakref__", "opened", "outer", "tape", "thread")

    def __init__(self, tape: Any, opened: Any, thread: int | None, outer: Scope | None) -> None:
        self.tape = tape
        self.opened = opened
        self.thread = thread
        self.outer = outer


open_tapes: list[Any] = []
"""All tapes that are open, in any thread: while it is empty, nothing records and nothing can be lost."""

had_tasks = [False]
"""``[True]`` if a program has submitted tasks that record, in this process."""
at_first_task: list[Callable[[], None]] = []
"""Functions of other packages that are called when a program first submits such a task."""
tasks: list[Any] = []
"""The episodes whose tasks are running in other threads: writes are noted even if no record needs the old values."""

_nowhere = Scope(None, None, None, None)
_scope: ContextVar[Scope] = ContextVar("ampi_recording", default=_nowhere)
_lock = RLock()  # a garbage collection inside may close the tape of a generator
_bystander: list[Any] = [None]

scope_now = _scope.get
"""The scope of this context."""


class _Thread(threading.local):
    """A thread.  (Its identifier is not unique: Python reuses those of threads that have ended.)"""

    def __init__(self) -> None:
        self.token = object()
        self.sweeping_for = get_ident()


_thread = _Thread()


def this_thread() -> object:
    """Return an object that stands for this thread, and for no other before or after it."""
    return _thread.token


def sweeping_for() -> int:
    """The identifier of the thread whose sweep this thread takes part in; by default its own."""
    return _thread.sweeping_for


@contextlib.contextmanager
def sweeps_for(thread: int) -> Iterator[None]:
    """Do a part of another thread's sweep inside this block, and record nothing."""
    before = _thread.sweeping_for
    _thread.sweeping_for = thread
    scope = passively()
    try:
        yield
    finally:
        actively(scope)
        _thread.sweeping_for = before


def note_tasks() -> None:
    """Note that a program submits tasks that record."""
    if not had_tasks[0]:
        had_tasks[0] = True
        for callback in at_first_task:
            callback()


def set_bystander(bystander: Any) -> None:
    """Register what `current` returns in threads without a tape while others have one."""
    _bystander[0] = bystander


def current() -> Any:
    """The tape that records what this thread does now.

    None if none is open in any thread, or inside `ampi.passive`; a `Bystander` if only others have a tape.
    """
    scope = scope_now()
    tape = scope.tape
    if tape is None or scope.thread == get_ident():
        return tape
    return _bystander[0] if open_tapes else None


def recording() -> Any:
    """The tape that records what this thread does now, or None."""
    scope = scope_now()
    tape = scope.tape
    return tape if tape is not None and scope.thread == get_ident() else None


def opened() -> Any:
    """The innermost open tape of this thread, even inside `ampi.passive`, or None."""
    scope = scope_now()
    tape = scope.opened
    return tape if tape is not None and scope.thread == get_ident() and not tape.closed else None


def around() -> Iterator[Any]:
    """Iterate over the tapes that this thread opened around the running code, the innermost first."""
    scope: Scope | None = scope_now()
    while scope is not None:
        if scope.opened is not None and scope.thread == get_ident():
            yield scope.opened
        scope = scope.outer


def is_around(tape: Any) -> bool:
    """Return whether this thread opened a tape around the running code."""
    return any(other is tape for other in around())


def would_lose(tape: Any) -> bool:
    """Return whether arrays that carry derivatives on an open tape, which does not record here, would lose them here.

    They are constants inside a block of `ampi.passive`, unless the tape was opened inside that block.
    """
    scope: Scope | None = scope_now()
    while scope is not None:
        if scope.tape is tape:
            return True
        if scope.tape is None and scope.thread is not None:
            return False
        scope = scope.outer
    return True


def enter(tape: Any) -> None:
    """Start recording on a tape."""
    scope = Scope(tape, tape, get_ident(), scope_now())
    with _lock:
        open_tapes.append(tape)
        _nowhere.tape = _bystander[0]
    tape.scope = scope
    _scope.set(scope)


def leave(tape: Any) -> bool:
    """Stop recording on a tape, in any context: contexts that still have its scopes go on with the tapes around it.

    Returns
    -------
    bool
        True if this is the thread and the place where it was to end.
    """
    here = scope_now()
    in_order = here is tape.scope and here.thread == get_ident()
    if here is tape.scope:
        _scope.set(here.outer)  # type: ignore[arg-type]
    with _lock:
        open_tapes.remove(tape)
        if not open_tapes:
            _nowhere.tape = None
        for scope in (tape.scope, *tape.inner_scopes):
            outer = scope.outer
            scope.tape, scope.opened, scope.thread = outer.tape, outer.opened, outer.thread
            if outer.thread is None:
                scope.tape = _bystander[0]
            elif outer.opened is not None and outer.opened is not tape:
                outer.opened.inner_scopes = outer.opened.inner_scopes or WeakSet()
                outer.opened.inner_scopes.add(scope)
    tape.scope, tape.inner_scopes = None, ()
    return in_order


@contextlib.contextmanager
def passive() -> Iterator[None]:
    """Inside this block nothing is differentiated: what is computed from active values is taken as constant.

    This holds for the thread (and the asyncio task) that runs the block, and for tapes that are open there.  Memory
    that is overwritten inside loses its derivative (by a kernel: all of every array that it may write to).  Messages
    sent inside carry no derivatives; a collective call must be inside on all ranks or on none.

    Examples
    --------
    >>> def scaled(x):
    ...     with ampi.passive():
    ...         largest = np.max(x)  # taken as constant
    ...     return np.sum(x * x) / largest
    >>> ampi.grad(scaled)(numpy.array([1.0, 2.0]))
    array([1., 2.])
    """
    scope = passively()
    try:
        yield
    finally:
        actively(scope)


def passively() -> Scope:
    """Enter a block of `passive`; `actively` ends it."""
    outer = scope_now()
    scope = Scope(None, opened(), get_ident(), outer)
    _scope.set(scope)
    return scope


def actively(scope: Scope) -> None:
    """End the block that `passively` entered."""
    if scope_now() is scope:  # not so if a generator ends the block in another context
        _scope.set(scope.outer)  # type: ignore[arg-type]


@contextlib.contextmanager
def resumed(tape: Any) -> Iterator[None]:
    """Have an open tape record again inside this block, whatever is around it."""
    scope = Scope(tape, tape, get_ident(), scope_now())
    outer, tape.resumed = tape.resumed, scope
    _scope.set(scope)
    try:
        yield
    finally:
        tape.resumed = outer  # the scope refers to the tape
        actively(scope)


def end_resumed(tape: Any) -> None:
    """End the latest `resumed` block of a tape in another thread, where the block goes on."""
    scope = tape.resumed
    if scope is None:
        return  # the other thread has just left the block
    scope.tape, scope.opened, scope.thread = _bystander[0], None, None


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the recording state after this block, whatever was left open inside."""
    before = scope_now()
    try:
        yield
    finally:
        _scope.set(before)


def is_passive() -> bool:
    """Return whether the caller is inside `ampi.passive`."""
    scope = scope_now()
    return scope.tape is None and scope.thread is not None


def _after_fork() -> None:
    """Stop the parent's tapes in a child process, where their active arrays belong to another process."""
    global _lock
    _lock = RLock()
    for tape in open_tapes:
        tape.leave_to_parent()
        for scope in (tape.scope, *tape.inner_scopes):
            scope.thread = PARENT


PARENT = -1
"""Stands for a thread of the parent process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
