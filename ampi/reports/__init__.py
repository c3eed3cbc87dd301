"""Reports about a program and its gradient on all ranks: a page, a trace and a table.

``tracer`` and ``hooks`` record events on a rank, ``harvest`` reads messages from the logs of tapes, ``gathering``
collects the traces of all ranks, ``figures`` computes the numbers to show, and ``written`` writes the files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import AmpiError
from ..tape import Tape
from . import gathering, tracer, written
from .checked import described
from .figures import figures_of
from .harvest import harvest


class Trace:
    """The events that `tracing` has recorded on this rank."""

    def __init__(self) -> None:
        self.clocks = gathering.Clocks()
        self.tracer = tracer.Tracer()
        self._gathered: Any = None
        self._known = False

    def gather(self, tape: Tape | None = None) -> Any:
        """Return the events of all ranks, on rank 0; None elsewhere. Collective."""
        if not self._known:
            if tape is not None and tape.reference not in self.tracer.tapes:
                harvest(self.tracer, tape)
            about = (
                {}
                if tape is None
                else {"saved": tape.saved_bytes, "kept": tape.kept_bytes, "records": len(tape.records)}
            )
            self._gathered = gathering.gather(self.tracer, self.clocks, about)
            self._known = True
        return self._gathered

    def write(self, path: str, title: str = "ampi", tape: Tape | None = None, check: Any = None) -> list[str]:
        """Write page and trace to a folder; return, on rank 0, notes on what was left out. Collective."""
        ranks = self.gather(tape)
        found = described(check)
        return self._written(lambda: [] if ranks is None else self._write(path, title, ranks, found))

    def _written(self, work: Callable[[], Any]) -> Any:
        """Call a function that writes files on rank 0; raise an error on all ranks if it fails."""
        found, failure = None, None
        try:
            found = work()
        except Exception as error:  # the other ranks wait here
            failure = error
        finally:
            gathering.wait_for_all(self.clocks.comm)  # or a rank that ends early would seem to be missing
        problem = self.clocks.comm.bcast(None if failure is None else str(failure) or type(failure).__name__)
        if failure is not None and not isinstance(failure, AmpiError):
            raise failure
        if problem is not None:
            raise AmpiError(problem)
        return found

    @staticmethod
    def _write(path: str, title: str, ranks: Any, found: Any) -> list[str]:
        data = figures_of(ranks, title, found)
        left_out = written.write_trace(written.in_folder(path, "trace.json.gz"), ranks)
        if left_out:
            data["notes"].append(left_out)
        written.write_page(written.in_folder(path, "index.html"), data)
        return data["notes"]

    def write_graph(self, path: str) -> None:
        """Write the communication graph for Graphviz. Collective."""
        ranks = self.gather()
        self._written(lambda: None if ranks is None else written.write_graph(path, ranks))

    def profile(self) -> str:
        """Return the table of source lines, on rank 0. Collective."""
        ranks = self.gather()
        return "" if ranks is None else written.profile(figures_of(ranks, ""))


_traces: list[Trace] = []
"""The latest traces, whose tapes the program may still report."""
_MOST_TRACES = 4


def begin() -> Trace:
    """Begin to trace. Collective."""
    if tracer.running:
        raise RuntimeError("ampi.tracing(): this program is already being traced, by an outer block or by ampi.run")
    trace = Trace()
    _traces[:] = [*_traces[1 - _MOST_TRACES :], trace]
    trace.tracer.start()
    return trace


def end(trace: Trace) -> None:
    """Stop tracing; do nothing if it has ended."""
    if trace.tracer in tracer.running:
        trace.tracer.stop()


@contextlib.contextmanager
def tracing() -> Iterator[Trace]:
    """Trace calls of MPI and kernels, recording and sweeps in a ``with`` block, with their times.

    Collective over all ranks, at the beginning (clocks are compared).  It traces the thread that calls it.  Outside the
    block tracing costs nothing.

    Yields
    ------
    Trace
        ``write("out/")`` writes the files of `report`, also for programs without a tape; ``profile()`` returns the
        table of source lines as text on rank 0; ``write_graph("out.dot")`` writes the communication graph for Graphviz.
        All are collective, and are called after the block.

    Raises
    ------
    RuntimeError
        The program is already being traced.

    Examples
    --------
    >>> with ampi.tracing() as trace:
    ...     gradient = ampi.grad(lambda x: np.sum(x * x))(numpy.ones(3))
    >>> print(trace.profile())
    Seconds on 1 rank(s) together, by source line...
    """
    trace = begin()
    try:
        yield trace
    finally:
        end(trace)


def report(tape: Tape, path: str | os.PathLike[str], *, check: Any = None, title: str | None = None) -> list[str]:
    """Write a report of a program and its gradient on all ranks: a page for a browser, and a trace.

    Collective over all ranks.

    Parameters
    ----------
    tape : Tape
        A closed tape.  The report has times if the tape recorded inside `tracing`, otherwise only messages and memory.
    path : str or path
        A folder, made if necessary: ``index.html`` (one page that needs no other file and no network) and
        ``trace.json.gz`` (for Perfetto, in the Trace Event format, with the clocks of the ranks aligned).
    check : optional
        The result of `ampi.testing.dot_test` or `ampi.testing.taylor_test`, or a list of these, shown on the page.
    title : str, optional
        By default the name of the program.

    Returns
    -------
    list of str
        On rank 0: what was left out because the page or the trace would be too large; elsewhere empty.

    Examples
    --------
    >>> with ampi.tracing():
    ...     with ampi.Tape() as tape:
    ...         x = tape.watch(numpy.ones(3))
    ...         y = np.sum(x * x)
    ...     x_bar = tape.gradient(y, x)
    >>> ampi.report(tape, "out")
    []
    """
    trace = next((known for known in _traces if tape.reference in known.tracer.tapes), None)
    if trace is None:
        trace = Trace()
        trace.tracer.start()
    end(trace)
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "ampi"
    return trace.write(os.fspath(path), name if title is None else title, tape, check)
