"""Programs that are looked at while they run: ``--report``, ``--graph`` and ``--profile``."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import mpi4py.run
from mpi4py import MPI as mpi

from ..errors import AmpiError, ProgramError
from .runs import without_the_end_of_mpi

FILES = ("index.html", "trace.json.gz")
"""What a report consists of."""

_pending: list[argparse.Namespace] = []
"""The options of the run whose report has not been written yet."""


def is_asked_for(options: argparse.Namespace) -> bool:
    """Return whether something is to be written or printed of the run."""
    return bool(options.report or options.graph or options.profile)


def unwritten() -> str:
    """A line on what a program that has failed leaves unwritten; empty if there is nothing."""
    if not _pending:
        return ""
    (options,) = _pending
    asked = [name for name, given in (("report", options.report), ("graph", options.graph)) if given]
    older = options.report and os.path.exists(os.path.join(options.report, FILES[0]))
    older = older or (options.graph and os.path.exists(options.graph))
    what = " or ".join(asked + ["table"] * bool(options.profile))
    there = "; what lies there is of an earlier one" if older else ""
    return f"ampi.run: this run failed, so there is no {what} of it{there}\n"


class Seen:
    """What is seen of a program's run."""

    def __init__(self, trace: Any, title: str) -> None:
        self.trace = trace
        self.title = title
        self.check: list[Any] = []

    def see_primal(self, problem: Any) -> None:
        """Run the program once more without a tape, for what it takes by itself, and see no more. Collective."""
        from .. import reports
        from .displacements import choose_direction

        with contextlib.suppress(ProgramError):  # what cannot be displaced is not run again
            choose_direction(problem, 0)
            problem.displaced_values(0.0)
        reports.end(self.trace)

    def add_check(self, problem: Any, found: Any, compared: list[Any]) -> None:
        """Show a comparison with differences, and the worst of some entries. Collective."""
        from ..reports.checked import described
        from .differences import worst_entry

        self.check += described(compared)
        self.check[0]["worst"] = worst_entry(problem, found)

    def write(self, options: argparse.Namespace) -> None:
        """Write and print what is asked for. Collective."""
        say = lambda text, stream: None if mpi.COMM_WORLD.Get_rank() else print(text, file=stream, flush=True)
        if options.report:
            with _as_problem("--report"):
                notes = self.trace.write(options.report, self.title, check=self.check)
            for note in notes:
                say(f"ampi.run --report: {note}", sys.stderr)
            say(f"written to {os.path.join(options.report, 'index.html')}", sys.stderr)
        if options.graph:
            with _as_problem("--graph"):
                self.trace.write_graph(options.graph)
        if options.profile:
            say(self.trace.profile(), sys.stdout)


@contextlib.contextmanager
def _as_problem(option: str) -> Iterator[None]:
    try:
        yield
    except AmpiError as error:
        raise ProgramError(f"{option}: {error}") from error


@contextlib.contextmanager
def observed(options: argparse.Namespace, what: str) -> Iterator[Seen | None]:
    """Look at what happens in a ``with`` block, if that is asked for, and write it at its end. Collective.

    Raises
    ------
    ProgramError
        On all ranks: nothing can be written there.
    """
    if not is_asked_for(options):
        yield None
        return
    from .. import reports

    _require_places(options)
    seen = Seen(reports.begin(), os.path.basename(what.splitlines()[0]) if what else "program")
    _pending.append(options)
    try:
        with without_the_end_of_mpi():
            yield seen
    finally:
        reports.end(seen.trace)
    seen.write(options)
    _pending.clear()


def _require_places(options: argparse.Namespace) -> None:
    """Raise before the program runs if what is seen cannot be written."""
    reported = [os.path.join(options.report, name) for name in FILES] if options.report else []
    require_writable("--report", options.report, reported)
    require_writable("--graph", options.graph, [options.graph] if options.graph else [])


def require_writable(option: str, given: str, paths: list[str]) -> None:
    """Raise on all ranks if rank 0 cannot write files that an option wants. Collective."""
    comm = mpi.Intracomm(mpi.COMM_WORLD)
    problem = ""
    if comm.Get_rank() == 0:
        try:
            for path in paths:
                _require_writable(path)
        except OSError as error:
            problem = f"{option} {given}: {error}"
    problem = comm.bcast(problem)
    if problem:
        raise ProgramError(problem)


def _require_writable(path: str) -> None:
    """Raise OSError if there can be no such file; its folder is made."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    is_new = not os.path.exists(path)
    with open(path, "ab"):
        pass
    if is_new:
        os.unlink(path)


def run_as_it_is(options: argparse.Namespace, arguments: list[str]) -> None:
    """Run a program as ``python -m mpi4py.run`` does, and look at it. Collective."""
    end: SystemExit | None = None
    what = arguments[1] if arguments[0] in ("-m", "-c") else arguments[0]
    with observed(options, "command" if arguments[0] == "-c" else what):
        try:
            mpi4py.run.run_command_line(arguments)
        except SystemExit as exit:
            if exit.code not in (None, 0):
                raise
            end = exit
    if end is not None:
        raise end
