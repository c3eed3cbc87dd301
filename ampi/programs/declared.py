"""`ampi.independent` and `ampi.dependent`: variables that a program itself marks, for ``python -m ampi.run``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

_sessions: list[Any] = []


@contextlib.contextmanager
def declaring(session: Any) -> Iterator[None]:
    """A context in which the running program is differentiated."""
    _sessions.append(session)
    try:
        yield
    finally:
        _sessions.remove(session)


def independent(x: Any, name: str | None = None) -> Any:
    """Mark a value with respect to which a program is differentiated.

    Under ``python -m ampi.run --declared program.py`` (or ``--wrt NAME``), and in `ampi.trace`, the value is an
    independent; anywhere else the function returns it unchanged. Not collective.

    Parameters
    ----------
    x : float, complex, array of them, or a list, tuple or dictionary of these
        Arrays, lists and dictionaries remain the same objects where possible.
    name : str, optional
        Its name in the results; by default ``file:line`` of the call.

    Returns
    -------
    object
        ``x``, or the object to use instead: ``k = ampi.independent(0.5, name="stiffness")``.

    Raises
    ------
    ProgramError
        While the program is differentiated: ``x`` contains integers, or is not a number.

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
    """Mark a value of a program that is differentiated; the last value counts, for an array its sum.

    Under ``python -m ampi.run --declared program.py`` (or ``--of NAME``), and in `ampi.trace`, the value is a
    dependent; anywhere else the function returns it unchanged. Not collective.

    Parameters
    ----------
    y : float or array of float
        This rank's part (None: nothing).
    name : str, optional
        Its name in the results; by default ``file:line`` of the call.

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
