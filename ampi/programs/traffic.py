"""The lines, arrays and messages of a program's run that carried derivatives."""

from __future__ import annotations

import collections
import threading
import warnings
from typing import Any

import numpy as np

from ..errors import ActivityWarning
from ..memory.storages import TrackedArray
from ..mpi.log.messages import Collective
from ..reports.traced_records import name_of
from ..tape import Tape, where_called
from .declared import declaring
from .gradients import Differentiation, strictly


class Recorded(list):
    """The list of a tape's records, which counts them by the program's lines.

    Attributes
    ----------
    lines : Counter
        The number of records, by line and operation.
    receptions : Counter
        The same for collective calls without active input on this rank; only other ranks know if they carry
        derivatives.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: collections.Counter = collections.Counter()
        self.receptions: collections.Counter = collections.Counter()
        self._lock = threading.Lock()  # tasks count as well

    def of_task(self) -> Recorded:
        """A list for the records of a task, which are counted with these."""
        records = Recorded()
        records.lines, records.receptions, records._lock = self.lines, self.receptions, self._lock
        return records

    def append(self, record: Any) -> None:
        """Append a record, and count it."""
        if record.adjoint is not None:
            counts = self.receptions if is_reception(record.adjoint) else self.lines
            with self._lock:
                counts[where_called(), name_of(record)] += 1
        super().append(record)


def is_reception(adjoint: Any) -> bool:
    """Return whether an adjoint is that of a collective call to which this rank contributed nothing active."""
    return isinstance(adjoint, Collective) and not adjoint.reads_active


def run(problem: Differentiation) -> str:
    """Run a program with watched independents, and describe which operations carried derivatives. Collective.

    Returns
    -------
    str
        On rank 0 the findings of all ranks; elsewhere empty.
    """
    session = problem.session
    tape = Tape()
    records = Recorded()
    tape.record_in(records)
    with warnings.catch_warnings(record=True) as told, strictly():
        warnings.simplefilter("always", ActivityWarning)
        with tape:
            session.begin(tape)
            with declaring(session):
                problem.runner.run(silent=True)
            session.finish(lambda module: problem.runner.namespace if not module else None)
            arrays = _arrays(tape, problem.runner.namespace or {})
    said = [str(w.message) for w in told if issubclass(w.category, ActivityWarning)]
    gathered = problem.comm.gather((dict(records.lines), dict(records.receptions), arrays, said))
    if gathered is None:
        return ""
    return _text(gathered)


def _arrays(tape: Tape, namespace: dict[str, Any]) -> dict[str, str]:
    """Return whether the arrays and numbers at the end of the script's top level carry derivatives, by name."""
    found = {}
    for name, value in namespace.items():
        if isinstance(value, (np.ndarray, np.inexact, float)) and not name.startswith("__"):
            active = isinstance(value, TrackedArray) and value.dtype.kind in "fcV" and tape.is_active(value)
            found[name] = "carries derivatives" if active else "does not"
    return found


def _text(gathered: list[Any]) -> str:
    lines: collections.Counter = collections.Counter()
    ranks: dict[Any, set[int]] = collections.defaultdict(set)
    arrays: dict[str, set[str]] = collections.defaultdict(set)
    warned: dict[str, None] = {}
    carried = {key for counted, *_ in gathered for key in counted}
    for rank, (counted, received, known, said) in enumerate(gathered):
        for found in (counted, {key: count for key, count in received.items() if key in carried}):
            lines.update(found)
            for key in found:
                ranks[key].add(rank)
        for name, state in known.items():
            arrays[name].add(state)
        warned.update(dict.fromkeys(said))
    text = ["Where derivatives were carried (times on all ranks, operation, number of ranks):"]
    for (place, what), count in sorted(lines.items(), key=lambda item: (_place(item[0][0]), item[0][1])):
        text.append(f"   {place}: {count} x {what} on {len(ranks[place, what])}")
    if not lines:
        text.append("   nowhere")
    text.append("Variables at the end of the script's top level:")
    for name, states in arrays.items():
        text.append(f"   {name}: {' on some ranks, '.join(sorted(states))}{' on others' if len(states) > 1 else ''}")
    if warned:
        text.append("Warnings:")
        text += [f"   {message}" for message in warned]
    return "\n".join(text)


def _place(text: str) -> tuple[str, int]:
    file, _, line = text.rpartition(":")
    return file, int(line) if line.isdigit() else 0
