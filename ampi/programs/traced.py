"""Traced runs of programs: ``--report``, ``--graph`` and ``--profile``."""

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
"""The files of a report."""

_pending: list[argparse.Namespace] = []
"""The options of the run whose report has not been written yet."""


def is_asked_for(options: argparse.Namespace) -> bool:
    """Return whether the options request a report, a graph or a profile."""
    return bool(options.report or options.graph or options.profile)


def unwritten() -> str:
    """A line about output that a failed program leaves unwritten; empty if there is none."""
    if not _pending:
        return ""
    (options,) = _pending
    asked = [name for name, given in (("report", options.report), ("graph", options.graph)) if given]
    older = options.report and os.path.exists(os.path.join(options.report, FILES[0]))
    older = older or (options.graph and os.path.exists(options.graph))
    what = " or ".join(asked + ["table"] * bool(options.profile))
    there = "; the files there are from an earlier one" if older else ""
    return f"ampi.run: this run failed, so there is no {what} of it{there}\n"


class Seen:
    """The trace of a program's run."""

    def __init__(self, trace: Any, title: str) -> None:
        self.trace = trace
        self.title = title
        self.check: list[Any] = []

    def see_primal(self, problem: Any) -> None:
        """Run the program once more without a tape, for its own cost, and stop tracing. Collective."""
        from .. import reports
        from .displacements import choose_direction

        with contextlib.suppress(ProgramError):  # a program that cannot be displaced does not run again
            choose_direction(problem, 0)
            problem.displaced_values(0.0)
        reports.end(self.trace)

    def add_check(self, problem: Any, found: Any, compared: list[Any]) -> None:
        """Add a comparison with differences to the report, and the worst of some entries. Collective."""
        from ..reports.checked import described
        from .differences import worst_entry

        self.check += described(compared)
        self.check[0]["worst"] = worst_entry(problem, found)

    def write(self, options: argparse.Namespace) -> None:
        """Write and print the requested output. Collective."""
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
    """Trace a ``with`` block, if requested, and write the output at its end. Collective.

    Raises
    ------
    ProgramError
        On all ranks: the output cannot be written.
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
    """Raise an error before the program runs if the output cannot be written."""
    reported = [os.path.join(options.report, name) for name in FILES] if options.report else []
    require_writable("--report", options.report, reported)
    require_writable("--graph", options.graph, [options.graph] if options.graph else [])


def require_writable(option: str, given: str, paths: list[str]) -> None:
    """Raise an error on all ranks if rank 0 cannot write the files of an option. Collective."""
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
    """Raise OSError if a file cannot be written; its folder is made."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    is_new = not os.path.exists(path)
    with open(path, "ab"):
        pass
    if is_new:
        os.unlink(path)


def run_as_it_is(options: argparse.Namespace, arguments: list[str]) -> None:
    """Run a program as ``python -m mpi4py.run`` does, and trace it. Collective."""
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
