"""`ampi.trace`: gradients of an unmodified program, from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..derivatives.objectives import warn_of_replicated
from ..errors import TapeError
from ..mpi import installed
from ..tape import current
from .gradients import Differentiation
from .runs import Program


def trace(
    script: Any,
    wrt: str | Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    arguments: Sequence[str] = (),
    objective: str = "sum",
    also: Sequence[str] = (),
    comm: Any = None,
) -> tuple[Any, Any]:
    """Run a program that was written without ampi, and differentiate variables of it.

    Collective over ``comm``; the program runs in this process as if it were ``__main__``.

    Parameters
    ----------
    script : path
        The program.  Its own modules (those below its folder, and the packages in ``also``) get `ampi.numpy` for
        ``numpy`` and kernels for ``numba.njit`` while they are loaded; mpi4py's names are ampi's while it runs.
    wrt, of : str or sequence of str, optional
        Variables as for ``python -m ampi.run``: ``"k"``, ``"step:dt"``, ``"module:function:x"``,
        ``"Solver.__init__:self.u"``, ``"x@12"``, ``"energy:return"``.  By default those that the program marks with
        `ampi.independent` and `ampi.dependent`.
    arguments : sequence of str
        The program's ``sys.argv[1:]``.
    objective : {"sum", "replicated", "root"}
        As in `ampi.value_and_grad`.
    also : sequence of str
        Packages that belong to the program.
    comm : mpi4py.MPI.Intracomm, optional
        By default all ranks.

    Returns
    -------
    value : float, or tuple of float
        The objective, the same on all ranks; a tuple if ``of`` is not a str; for variables that the program marks, a
        dictionary by name.
    gradient
        The gradient with respect to this rank's part of ``wrt``, with the shapes and dtypes of the variable where it is
        first assigned (None where this rank has none); a tuple if ``wrt`` is not a str; a tuple of these for each of
        ``of`` if that is not a str.  For variables that the program marks, ``gradient[dependent][independent]``.

    Raises
    ------
    ProgramError
        A variable is never assigned, is not a number, or does not depend on any independent.
    TapeError
        A tape is already recording.

    Examples
    --------
    >>> with open("springs.py", "w") as file:
    ...     _ = file.write("k, x = 2.0, 3.0\\nenergy = 0.5 * k * x**2\\n")
    >>> energy, (k_bar, x_bar) = ampi.trace("springs.py", wrt=("k", "x"), of="energy")
    >>> float(energy), float(k_bar), float(x_bar)
    (9.0, 4.5, 6.0)
    """
    if current() is not None:
        raise TapeError("ampi.trace opens its own tape; call it where no tape records")
    given_wrt, given_of = _texts(wrt), _texts(of)
    program = Program("file", os.fspath(script), list(arguments))
    declared = wrt is None and of is None
    problem = Differentiation(program, given_wrt, given_of, also, objective, declared, comm, compares=False)
    try:
        with installed():
            found = problem.gradients()
        warn_of_replicated(found.replicated)
    finally:
        problem.runner.forget()
    if declared:
        names = [x.text for x in problem.session.independents]
        texts = [y.text for y in problem.session.dependents]
        return dict(zip(texts, found.values)), {y: dict(zip(names, row)) for y, row in zip(texts, found.parts)}
    rows = [row[0] if isinstance(wrt, str) else tuple(row) for row in found.parts]
    return (found.values[0], rows[0]) if isinstance(of, str) else (tuple(found.values), tuple(rows))


def _texts(given: str | Sequence[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())
