"""`ampi.independent` and `ampi.dependent`: variables that a program itself names, for ``python -m ampi.run``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_sessions: list[Any] = []


@contextlib.contextmanager
def declaring(session: Any) -> Iterator[None]:
    """In this block the program that runs is differentiated."""
    _sessions.append(session)
    try:
        yield
    finally:
        _sessions.remove(session)


def independent(x: Any, name: str | None = None) -> Any:
    """Say that a program is to be differentiated with respect to this value.

    Under ``python -m ampi.run --declared program.py`` (or ``--wrt NAME``), and in `ampi.trace`, the value is an
    independent; anywhere else nothing is done. Not collective.

    Parameters
    ----------
    x : float, complex, array of them, or a list, tuple or dictionary of these
        Arrays, lists and dictionaries stay the objects that they are where they can.
    name : str, optional
        What it is called in the results; by default ``file:line`` of the call.

    Returns
    -------
    object
        ``x``, or what is to be used in its place: ``k = ampi.independent(0.5, name="stiffness")``.

    Raises
    ------
    ProgramError
        While the program is differentiated: ``x`` has integers, or is no number.

    Examples
    --------
    >>> stiffness = ampi.independent(0.5, name="stiffness")  # python -m ampi.run --declared differentiates for it
    >>> stiffness
    0.5
    """
    if not _sessions:
        return x
    frame = sys._getframe(1)
    place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return _sessions[-1].declare_independent(name or place, f"{place}:0", x)


def dependent(y: Any, name: str | None = None) -> Any:
    """Say that this value of a program is to be differentiated; its latest value counts, of an array the sum.

    Under ``python -m ampi.run --declared program.py`` (or ``--of NAME``), and in `ampi.trace`, the value is a
    dependent; anywhere else nothing is done. Not collective.

    Parameters
    ----------
    y : float or array of float
        What a rank has of it (None: nothing).
    name : str, optional
        What it is called in the results; by default ``file:line`` of the call.

    Returns
    -------
    object
        ``y``: ``energy = ampi.dependent(energy, name="energy")``, or just ``ampi.dependent(energy)``.

    Examples
    --------
    >>> energy = ampi.dependent(0.5 * 3.0**2, name="energy")  # python -m ampi.run --declared differentiates it
    >>> energy
    4.5
    """
    if _sessions:
        frame = sys._getframe(1)
        _sessions[-1].declare_dependent(name or f"{frame.f_code.co_filename}:{frame.f_lineno}", y)
    return y
