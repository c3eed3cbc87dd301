"""Gradients of a program's variables, with errors raised on all ranks."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import pathlib
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..arrays import losses as outside
from ..base import checks
from ..derivatives.arguments import leaves_of
from ..derivatives.first_order import adjoints_of
from ..derivatives.objectives import OBJECTIVES, weight_of
from ..errors import ActivityError, AmpiError, ProgramError
from ..memory import storages as memory
from ..memory.storages import TrackedArray
from ..tape import Tape
from . import bindings, names, verdicts
from .decisions import Decisions
from .declared import declaring
from .modules import Modules
from .outlining.guarded import Loops
from .runs import Program, Runner
from .session import Dependent, Independent, Session, memory_of


@dataclasses.dataclass
class Gradients:
    """The results of a program's run on this rank.

    Attributes
    ----------
    session : Session
        The variables.
    values : list of float
        The objective of each dependent, the same on all ranks.
    parts : list of list of structures, one for each dependent and independent
        The gradients with respect to this rank's parts of the independents, in their structures; None where this rank
        has none.
    replicated : Any
        The collective call that gave all ranks one value which was counted once per rank, if any.
    """

    session: Session
    values: list[float]
    parts: list[list[Any]]
    replicated: Any = None

    def leaves(self, dependent: int, independent: int) -> list[Any]:
        """The numbers and arrays of a gradient."""
        return leaves_of(self.parts[dependent][independent])


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Turn warnings about lost derivatives into errors."""
    before = checks.strict, checks.whole
    checks.strict = checks.whole = True
    try:
        yield
    finally:
        checks.strict, checks.whole = before


@contextlib.contextmanager
def _with_reason() -> Iterator[None]:
    """Raise ampi's error about a lost derivative where C code has replaced it by another error."""
    outside.latest_refusal = ""
    try:
        yield
    except AmpiError:
        raise
    except Exception as error:
        lost = outside.latest_refusal
        places = [f"{s.filename}:{s.lineno}" for s in traceback.extract_tb(error.__traceback__)]
        if lost and lost.startswith(tuple(f"{place}{end}" for place in places for end in (": ", " ("))):
            raise ActivityError(lost) from error
        raise


class NotApart(Exception):
    """A program cannot run with different values on each rank where all had the same."""


class _Watching(Tape):
    """A tape that notes whether anything is computed in single precision."""

    is_single = False

    def activate(self, array: Any) -> None:
        if array.dtype.char in "fFe":
            self.is_single = True
        super().activate(array)


class Differentiation:
    """A program to be differentiated, its variables, and the ranks that run it.

    Parameters
    ----------
    program : Program
    wrt, of : sequence of str
        Names of variables.
    packages : sequence of str
        Packages that belong to the program.
    objective : {"sum", "replicated", "root"}
    declared : bool
        True to add the variables that the program marks (`ampi.independent`, `ampi.dependent`).
    replicated : sequence of str
        Independents that are one value of all ranks: they are displaced equally.
    compares : bool
        True if there may be runs with displaced independents.
    compiles : bool
        True if hot loops of the program's modules are compiled.
    comm : mpi4py.MPI.Intracomm
        The ranks that run the program.
    """

    def __init__(
        self,
        program: Program,
        wrt: Sequence[str],
        of: Sequence[str],
        packages: Sequence[str] = (),
        objective: str = "sum",
        declared: bool = False,
        comm: Any = None,
        replicated: Sequence[str] = (),
        compares: bool = True,
        compiles: bool = True,
    ) -> None:
        if objective not in OBJECTIVES:
            raise ProgramError(f"the objective is one of {', '.join(OBJECTIVES)}, not {objective!r}")
        self.program = program
        self.objective = objective
        self.comm = mpi.Intracomm(mpi.COMM_WORLD) if comm is None else comm
        self.session = Session([self._named(text) for text in wrt], [self._named(text) for text in of], declared)
        self.replicated = frozenset(replicated)
        self.decisions = Decisions() if compares and self.comm.Get_size() > 1 else None
        hooks = {**self.session.hooks, **(self.decisions.hooks if self.decisions is not None else {})}
        loops = Loops(lambda: self.decisions is not None and self.decisions.are_kept)
        packages = [*packages, *program.packages]
        self.modules = Modules(program.folders, packages, self._edit, hooks, loops if compiles else None)
        self.runner = Runner(program, self.modules)
        self.verdicts: dict[str, None] = {}  # the program's errors about its results with displaced independents
        self.is_single = False  # whether a part of it is computed in single precision
        self._times: list[int] = []
        self._seconds = 0.0  # duration of the run that was differentiated

    def _named(self, text: str) -> names.Name:
        found = names.parse(text)
        if self.program.kind == "file" and found.module == pathlib.Path(self.program.what).stem:
            return dataclasses.replace(found, module="")
        return found

    def _edit(self, tree: ast.Module, filename: str, name: str) -> ast.Module:
        from .edits import edit

        wanted = [request for request in self.session.requests if request.name.module == name]
        edited = edit(tree, filename, wanted, self.decisions is not None)
        if not name and "dependent(" not in ast.unparse(tree):
            self._require_placed(wanted)
        return edited

    # ------------------------------------------------------------------------------------------------------- runs

    def gradients(self) -> Gradients:
        """Run the program and differentiate it. Collective."""
        session = self.session
        begun = time.monotonic()
        if self.decisions is not None:
            self.decisions.keep()
        with strictly(), _Watching() as tape:
            session.begin(tape)
            with declaring(session), _with_reason():
                self.runner.run()
            session.finish(self._namespace_of)
        self._seconds = time.monotonic() - begun
        if self.decisions is not None:
            self.decisions.release()
        self.is_single = bool(self.comm.allreduce(int(tape.is_single)))
        session.align(self.comm)
        self._times = [dependent.times for dependent in session.dependents]
        self._require_variables()
        values, parts, replicated = [], [], None
        for dependent in session.dependents:
            y = dependent.value
            y = memory.tracked_copy(np.float64(y)) if y is not None and not isinstance(y, TrackedArray) else y
            self._require_active(tape, dependent)
            values.append(self.value_of(dependent))
            seed = self._seed(tape, dependent, y)
            watched = [x for x in session.independents if x.is_watched]
            counted = [] if seed is None else [y]
            found = [x.watched for x in watched]
            given = iter(adjoints_of(tape, counted, found, [seed] * len(counted), warn=False))  # ranks without a part
            replicated = replicated or tape.replicated
            parts.append([next(given) if x.is_watched else None for x in session.independents])
        return Gradients(session, values, parts, replicated)

    def _seed(self, tape: Tape, dependent: Dependent, y: Any) -> float | None:
        if y is None and self.objective == "sum":
            return None
        try:
            return weight_of(tape, y, self.objective, self.comm)
        except AmpiError as error:
            raise ProgramError(f"{dependent.text}: {error}") from None

    def displaced_values(self, step: float) -> list[float]:
        """The dependents' values with displaced independents. Collective."""
        self.session.begin(None, step)
        with declaring(self.session):
            end = self.runner.run_displaced()
        self.session.finish(self._namespace_of)
        if end is not None:
            if [dependent.times for dependent in self.session.dependents] != self._times:
                raise end  # before they were computed
            self.verdicts.setdefault(verdicts.described(end))
        verdicts.await_others(self.comm, end)
        return [self.value_of(dependent) for dependent in self.session.dependents]

    def values_apart(self, step: float) -> list[float]:
        """`displaced_values` with directions that differ among ranks with equal values; decisions are held. Collective.

        Raises
        ------
        NotApart
            On all ranks: the program cannot run so.
        """
        assert self.decisions is not None or self.comm.Get_size() == 1
        names = ", ".join(x.text for x in self.session.independents)
        self.session.begin(None, step)
        with verdicts.ending(self.comm, self._seconds, names):
            try:
                if self.decisions is not None:
                    self.decisions.hold()
                with declaring(self.session):
                    end = self.runner.run_displaced(anyhow=True)
            finally:
                if self.decisions is not None:
                    self.decisions.release()
            self.session.finish(self._namespace_of)
            verdicts.await_others(self.comm, end)
        has_values = [dependent.times for dependent in self.session.dependents] == self._times
        found = self.comm.allgather("" if end is None or has_values else verdicts.described(end))
        if any(found):
            rank, text = next((rank, text) for rank, text in enumerate(found) if text)
            raise NotApart(f"it ends with {text}, on rank {rank}")
        return [self.value_of(dependent) for dependent in self.session.dependents]

    def held(self) -> list[str]:
        """The places where the program would have decided differently in `values_apart`. Collective."""
        given = self.comm.allgather([] if self.decisions is None else list(self.decisions.held))
        return sorted({place for places in given for place in places})

    def value_of(self, dependent: Dependent) -> float:
        """The objective: the same number on all ranks. Collective."""
        given = self.comm.allgather(None if dependent.value is None else float(memory_of(dependent.value)))
        if self.objective == "sum":
            return sum(v for v in given if v is not None)
        return given[0] if given[0] is not None else float("nan")

    def magnitude_of(self, dependent: Dependent) -> float:
        """The sum of the absolute values of the objective's terms. Collective."""
        given = self.comm.allgather(dependent.magnitude)
        return {"sum": sum, "replicated": max, "root": lambda x: x[0]}[self.objective](given)

    def _namespace_of(self, module: str) -> Any:
        if not module:
            return self.runner.namespace
        found = sys.modules.get(module)
        return None if found is None else vars(found)

    # ------------------------------------------------------------------------------------------------------- errors

    def agree(self, problems: Sequence[str]) -> None:
        """Raise the problems of any rank on all ranks. Collective."""
        found = [problem for given in self.comm.allgather(list(problems)) for problem in given]
        if found:
            raise ProgramError("\n".join(dict.fromkeys(found)))

    def _require_placed(self, requests: Sequence[Any]) -> None:
        """Raise an error, before the script runs, if a variable is not in its source."""
        problems = [self._not_found(request.name) for request in requests if not request.placed]
        if problems:
            raise ProgramError("\n".join(problems))

    def _require_variables(self) -> None:
        problems = []
        if not self.session.independents or not self.session.dependents:
            raise ProgramError("the program calls ampi.independent and ampi.dependent nowhere; name variables of it")
        somewhere = self.comm.allgather(
            ([x.is_watched for x in self.session.independents], [y.value is not None for y in self.session.dependents])
        )
        for k, independent in enumerate(self.session.independents):
            if not any(watched[k] for watched, _ in somewhere):
                problems.append(self._never(independent))
        for k, dependent in enumerate(self.session.dependents):
            having = [found[k] for _, found in somewhere]
            needed = having[:1] if self.objective == "root" else having
            if not (all if self.objective == "replicated" else any)(needed):
                problems.append(self._valueless(dependent))
        self.agree([problem for problem in problems if problem])

    def _never(self, independent: Independent) -> str:
        name = independent.name
        if name is None:
            return f"{independent.text} was declared and is nowhere watched"
        (request,) = [r for r in self.session.requests if r.role == "watch" and r.name is name]
        if not request.placed:
            return self._not_found(name)
        if request.compiled:
            return _compiled(name)
        line = f" in line {name.line}" if name.line else ""
        if name.is_result:
            return f"{independent.text}: {name.where} {'returns None' if independent.is_none else 'is never called'}"
        if independent.is_none:
            return f"{independent.text} is None wherever the program assigns {name.path}{line} at {name.where}"
        what = ", which is not run" if line else ", which is never called" if name.function else ""
        written = "" if name.function else "; a variable of a function is written function:name"
        return f"{independent.text}: the program does not assign {name.path}{line} at {name.where}{what}" + (
            "" if name.path == name.root else f" (or {name.path} cannot be found there{written})"
        )

    def _valueless(self, dependent: Dependent) -> str:
        name = dependent.name
        if name is not None and not dependent.reason:
            (request,) = [r for r in self.session.requests if r.role == "read" and r.name is name]
            if not request.placed:
                return self._not_found(name)
            if request.compiled:
                return _compiled(name)
            if name.is_result:
                return f"{dependent.text}: no return statement of {name.where} is reached; is it called?"
            if name.function or name.line:
                return f"{dependent.text}: the end of {name.where} is never reached; is it called?"
        if dependent.reason.startswith("is not there") and name is not None:
            return f"{dependent.text} {dependent.reason}{self._suggest(name)}"
        return f"{dependent.text} {dependent.reason or 'has no value'}"

    def _require_active(self, tape: Tape, dependent: Dependent) -> None:
        y = dependent.value
        active = isinstance(y, TrackedArray) and tape.is_active(y)
        if self.comm.allreduce(int(active)):
            return
        asked = ", ".join(x.text for x in self.session.independents)
        later = "".join([self.changed_later(x) for x in self.session.independents])
        self.agree(
            [
                f"{dependent.text} does not depend on {asked}: no derivative arrives there. Either the value is not "
                f"used for it (or is assigned anew before), or the path leads through something that carries no "
                f"derivative: python -m ampi.check lists such places{later}"
            ]
        )

    def _not_found(self, name: names.Name) -> str:
        if name.line is not None:
            return (
                f"{name.text}: line {name.line} of {f'module {name.module}' if name.module else 'the script'} has no "
                f"statement in a scope that assigns {name.path}{self._suggest(name)}"
            )
        if name.module and name.module not in self.modules.loaded:
            there = ", ".join(sorted(self.modules.loaded)) or "none"
            return f"{name.text}: the program does not import a module {name.module} of its own (its own: {there})"
        if name.is_result:
            place, there = name.where.split("() of ")
            return f"{name.text}: {there} has no function {place} that returns something{self._suggest(name)}"
        text = name.path if name.text == name.path else f"{name.text}: {name.path}"
        return f"{text} is never assigned at {name.where}{self._suggest(name)}"

    def _suggest(self, name: names.Name) -> str:
        """A suggestion of existing variables."""
        try:
            tree = ast.parse(self._source(name.module))
        except (OSError, SyntaxError, AttributeError, TypeError):
            return ""
        table = {scope: bindings.assigned_in(tree, scope) for scope, _ in bindings.scopes(tree)}
        prefix = f"{name.module}:" if name.module else ""
        elsewhere = [s for s, known in table.items() if s != name.function and name.path in known]
        if elsewhere:
            said = [f"{prefix}{s}:{name.path}" if s or prefix else name.path for s in elsewhere]
            return f"; it is assigned elsewhere: write {' or '.join(said[:6])}"
        if name.function and name.function not in table:
            close = difflib.get_close_matches(name.function, [s for s in table if s])
            close += [s for s in table if s.endswith(f".{name.function}") and s not in close]
            if not name.module and name.function in self.modules.loaded:
                return f"; for the top level of the module {name.function} write {name.function}::{name.path}"
            return f"; there is no {name.function} in it" + (f", did you mean {' or '.join(close)}?" if close else "")
        known = sorted(x for x in table.get(name.function, ()) if not x.startswith("__"))
        close = difflib.get_close_matches(name.path, known)
        shown = close or known[:12]
        more = ", …" if shown is not close and len(known) > 12 else ""
        return f"; assigned there: {', '.join(shown)}{more}" if shown else ""

    def changed_later(self, independent: Independent) -> str:
        """A note on later assignments of a variable that were not watched, and what to write. Collective."""
        assigned = [int(place.rpartition(":")[2]) for place in self.comm.allgather(independent.place) if place]
        name = independent.name
        if name is None or name.line is not None:
            return ""
        try:
            lines = bindings.lines_that_change(ast.parse(self._source(name.module)), name.function, name.path)
        except (OSError, SyntaxError, AttributeError, TypeError):
            return ""
        lines = [line for line in lines if line > min(assigned)]
        if not lines:
            return ""
        listed = ", ".join(map(str, lines[:6])) + (", …" if len(lines) > 6 else "")
        return (
            f". {name.text} is that of line {min(assigned)} here; line{'s' * (len(lines) > 1)} {listed} assign or "
            f"change it: {name.text}@{lines[0]} is what it is after line {lines[0]}"
        )

    def _source(self, module: str) -> Any:
        if module:
            return pathlib.Path(sys.modules[module].__file__ or "").read_bytes()
        if self.program.kind in ("-c", "-"):
            return self.program.what
        path = (self.runner.namespace or {}).get("__file__") or self.program.what
        return pathlib.Path(path).read_bytes()


def _compiled(name: names.Name) -> str:
    return (
        f"{name.text}: {name.where} is compiled by Numba, and its variables are not seen; name one of what it is given "
        "or gives, in the function that calls it"
    )
