"""Whether a step of a time loop runs for the first time here, or once more for its adjoint: `once`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Any

_first: ContextVar[bool | None] = ContextVar("ampi_first_time", default=None)

is_first = _first.get
"""None outside of the steps of `ampi.timeloop`; in a step, whether it runs for the first time."""


def is_again() -> bool:
    """Whether a step of `ampi.timeloop` runs once more here: what has an effect outside of the program is left out."""
    return _first.get() is False


class StepRuns:
    """Around a step: what it does is done for the first time, unless a loop around it runs its own step once more."""

    __slots__ = ("_first", "_token")

    def __init__(self, first: bool) -> None:
        self._first = first

    def __enter__(self) -> None:
        self._token: Token = _first.set(self._first and _first.get() is not False)

    def __exit__(self, *exception: Any) -> None:
        _first.reset(self._token)


def once(function: Callable[..., Any] | None = None, *args: Any, **keywords: Any) -> Any:
    """Do something once for each step of `ampi.timeloop`, however often the step runs: printing, plotting, logs.

    Local.  A gradient runs steps again; ``File.Write...`` of ampi's files and `once` are left out there, everything
    else is done each time.  What it says is true of the thread that runs the step.

    Parameters
    ----------
    function : callable, optional
        What to call with the other arguments.  It must not change what the step computes.

    Returns
    -------
    bool, or what ``function`` returns
        Without ``function``: whether the step runs for the first time (True outside of a time loop).  With it: what it
        returns, or None where it was not called.

    Notes
    -----
    A loop that goes on from a folder (``resume=True``) does again what the killed run had done since the last state in
    the folder; what a step did before that state, or in a run that was killed in its sweep, is not done again.

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
