"""`once`, and whether a step of a time loop runs for the first time or again for its adjoint."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

from ..base.program_lines import where_called
from ..errors import TapeError
from ..memory.storages import next_serial

_first: ContextVar[bool | None] = ContextVar("ampi_first_time", default=None)

is_first = _first.get
"""None outside of the steps of `ampi.timeloop`; in a step, whether it runs for the first time."""


def is_again() -> bool:
    """Return whether a step of `ampi.timeloop` is being rerun: effects outside the program are then left out."""
    return _first.get() is False


class Book:
    """Outcomes that the program does not determine, such as the request that completes first, in the order of the calls
    of a step; see `mpi.outcomes`.

    Parameters
    ----------
    entries : list
        Pairs of the name of the function that was called and its outcome, as lists.
    follows : bool
        True if the step runs again, and is to get the same outcomes.
    recorded : bool
        True if the step is recorded while it runs.
    """

    __slots__ = ("_at", "entries", "follows", "recorded")

    def __init__(self, entries: list[list[Any]], follows: bool, recorded: bool) -> None:
        self.entries = entries
        self.follows = follows
        self.recorded = recorded
        self._at = 0

    def enter(self, name: str, outcome: Any) -> list[Any]:
        """Add an outcome; return its entry, whose outcome may be set later."""
        self.entries.append([name, outcome])
        return self.entries[-1]

    def next(self, name: str) -> Any:
        """Return the next recorded outcome."""
        known = self.entries[self._at][0] if self._at < len(self.entries) else "nothing of the kind"
        if known != name:
            raise TapeError(
                f"{where_called()}: a step of ampi.timeloop that is rerun calls {name} where its first run called "
                f"{known}; the values that decide this must be a part of the state"
            )
        self._at += 1
        return self.entries[self._at - 1][1]


_serial: ContextVar[int | None] = ContextVar("ampi_step_began", default=None)
step_began = _serial.get
"""In a step, the latest serial (`Storage.serial`) before it: its own storages have larger ones.  None outside steps."""

_books: ContextVar[tuple[Book, ...]] = ContextVar("ampi_books", default=())
books = _books.get
"""The books of the running step, and of the steps of the loops around it."""


class StepRuns:
    """Context of a step: it runs for the first time unless a loop around it reruns its own step.

    ``outcomes`` are the entries of the step's book, which it fills if they are empty and it runs for the first time.
    """

    __slots__ = ("_began", "_book", "_first", "_token", "_tokens")

    def __init__(self, first: bool, outcomes: list[list[Any]] | None, recorded: bool) -> None:
        self._first = first
        self._book = None if outcomes is None else Book(outcomes, not first, recorded)

    def __enter__(self) -> None:
        self._began: Token = _serial.set(next_serial())
        self._token: Token = _first.set(self._first and _first.get() is not False)
        self._tokens: Token | None = None if self._book is None else _books.set((*_books.get(), self._book))

    def __exit__(self, *exception: Any) -> None:
        _first.reset(self._token)
        _serial.reset(self._began)
        if self._tokens is not None:
            _books.reset(self._tokens)


def once(function: Callable[..., Any] | None = None, *args: Any, **keywords: Any) -> Any:
    """Do something once for each step of `ampi.timeloop`, however often the step runs: printing, plotting, logs.

    Local.  A gradient reruns steps; ``File.Write...`` of ampi's files and `once` are left out then, everything else is
    done each time.  Call it in the thread that runs the step.

    Parameters
    ----------
    function : callable, optional
        Called with the other arguments.  It must not change what the step computes.

    Returns
    -------
    bool, or the result of ``function``
        Without ``function``: True if the step runs for the first time, or outside of a time loop.  With it: its result,
        or None if it was not called.

    Notes
    -----
    A loop that continues from a folder (``resume=True``) repeats what the killed run had done since the last state in
    the folder; what steps did before that state, or in a run that was killed in its sweep, is not repeated.

    Examples
    --------
    >>> def step(u):
    ...     u *= 0.5
    ...     if ampi.once():
    ...         print("halved")
    >>> gradient = ampi.grad(lambda u: ampi.timeloop(step, u, 3, checkpoints=1).sum())(np.ones(2))
    halved
    halved
    halved
    """
    first = _first.get() is not False
    if function is None:
        return first
    return function(*args, **keywords) if first else None
