"""`timeloop`: a loop over time steps, whose gradient takes the memory of a few states."""

from __future__ import annotations

import gc
import math
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..base.program_lines import warning_level
from ..errors import CommunicationError, PerformanceWarning, TapeError
from ..foreign.numpy_in_c import redirected as intercepted
from ..memory.handouts import describe
from ..memory.live_arrays import tracked_arrays
from ..memory.storages import Region, Storage, TrackedArray, arrays_of_blocks, forget_node, is_scalar, plain, storage_of
from ..mpi import COMM_WORLD
from ..mpi.files import positions
from ..tape import AdjointRecord, Push, Record, Sweep, Tape, not_kept, passive, recording, where_called
from ..tape.budget import bytes_of
from .device_states import carried, carried_step, kept, landed
from .folder import FORWARD, REVERSE, Folder
from .measured import MadeArrays
from .open_communication import completed_of, open_receives
from .progress import Figures, close, shown_by
from .replay import Executor, Loop, StepTape, Stored, move, places_of, set_tape
from .reproduction import Held
from .resuming import Disk, OnDisk
from .schedules import IN_MEMORY, ON_DISK, Online, TwoLevel, distance, of_package, offline
from .states import Snapshot, owner_of, with_tracked_numbers, write
from .views import Carried, View
from .window_values import WindowValues
from .written import Values, Written


def timeloop(
    step: Callable[[Any], Any],
    state: Any,
    steps: int | None = None,
    *,
    until: Callable[[Any], bool] | None = None,
    checkpoints: int | None = None,
    memory: int | str | None = None,
    schedule: str | Callable[[int, int], Iterable[Any]] | None = None,
    storage: Any = None,
    resume: bool = False,
    progress: bool | Callable[[Figures], None] | None = None,
    comm: Any = None,
) -> Any:
    """Run a step repeatedly; on a tape, store a few states instead of all steps.

    Collective over the ranks that communicate in ``step``; with ``until``, ``memory`` or ``storage`` over ``comm``.

    Parameters
    ----------
    step : callable
        ``step(state)`` updates the state in place and returns None, or returns the next state, in the same structure.
        It may communicate.  Everything else that it reads must not change during the loop; arrays of `ampi.numpy` that
        it writes count as part of the state.
    state
        An array, number, tuple, list, deque, dictionary, dataclass, or an object with such attributes.  Random
        generators and sets in it are restored with it.
    steps : int, optional
        Number of steps, the same on all these ranks.  With ``until``: the maximum.
    until : callable, optional
        ``until(state)`` is called before each step and returns whether to stop; the same on all these ranks.
    checkpoints : int, optional
        Maximum number of states or recorded steps that are stored at a time, the same on all these ranks.  By default
        √(2 steps), for which each step runs about three times at most; 30 with ``until``; on a tape with a budget, as
        many as fit in it.
    memory : int or str, optional
        Instead of ``checkpoints``: bytes for each rank, such as ``"8GiB"``, for everything that the loop and its sweep
        store in addition to the program's own arrays (and to a budget of the tape).  The first step runs one more time
        to measure its needs: old values, arrays that it creates (measured by `tracemalloc`), its records.  The rank
        with the least room decides.
    schedule : str or callable, optional
        A schedule of the package ``checkpoint_schedules`` instead of ``MixedCheckpointSchedule``: ``"Revolve"``,
        ``"MixedCheckpoint"`` or ``"Multistage"``; with ``storage`` ``"HRevolve"``, ``"DiskRevolve"``, ``"Multistage"``
        or ``"TwoLevel"``, which place states in the folder.  Or a function ``schedule(steps, checkpoints)`` that
        returns one.  Recorded steps are kept in memory.
    storage : str, path or Storage, optional
        A folder for states: one is stored every K (K + 1) / 2 steps, where K is ``checkpoints``; the K states in memory
        serve the steps between two of them (`ampi.checkpoint.schedules.TwoLevel`).  Each rank has its own files, which
        remain after the sweep.  `ampi.Storage` is a folder with one file for each node, or with compressed files.
    resume : bool, optional
        Continue from the folder: a program that was killed, on one rank or all, is started again by the same command,
        runs up to the loop, and loses at most the steps between two states.  The gradient is bitwise identical.
    progress : bool or callable, optional
        True: progress bars on standard error of rank 0 for the run and for the sweep, with the remaining time, and a
        summary at the end (steps executed, snapshots, largest memory and disk space).  False: never.  By default, if
        standard error is a terminal and the loop is not inside a step of another one.  A function is called after each
        step, on all ranks, with the same numbers (`ampi.checkpoint.progress.Figures`, one object for a loop).
    comm : ampi.Comm, optional
        The ranks that agree on ``until``, ``memory`` and ``storage``; COMM_WORLD by default.

    Returns
    -------
    state
        The final state, in the structure of ``state``.

    Raises
    ------
    ActivityError
        A step, or the program after the loop, uses an array that an earlier step has computed and that is not in the
        state; the program uses what the steps of a loop have written that ended with an error; or a step accesses
        memory by one-sided communication with a window from before the loop.
    CommunicationError
        ``until`` is true on some ranks and false on others.
    TapeError
        An argument is invalid; the folder belongs to another step, other numbers or sizes, another version of ampi or
        another number of ranks; in a sweep: a step that runs again gives another result.

    Warns
    -----
    PerformanceWarning
        ``checkpoints``, ``memory``, ``schedule`` or ``storage`` is given in `ampi.hvp` or `ampi.linearize`, whose tapes
        store all steps.

    Notes
    -----
    Without a tape, in forward mode and inside `ampi.passive` it is a plain loop.  On a tape, the first step is recorded
    only to tell constants that it leaves behind (tables) from results that belong in the state.  In a sweep, steps run
    again from the saved states, and are recorded one at a time and swept, by all ranks in the same order.  A step
    prints each time that it runs, except by `ampi.once`; ``File.Write...`` is executed the first time only.  The
    default schedule runs the fewest steps that are possible with this number of units of memory, each of which holds a
    state or a recorded step (J. R. Maddison, Journal of Computational Science 82, 2024); with ``until`` see
    `ampi.checkpoint.schedules.Online`.

    Examples
    --------
    >>> def step(u):
    ...     u[1:-1] += 0.1 * (u[2:] - 2.0 * u[1:-1] + u[:-2])
    >>> def f(u):
    ...     u = ampi.timeloop(step, u, steps=100, checkpoints=5)
    ...     return (u * u).sum()
    >>> ampi.grad(f)(np.ones(4)).shape
    (4,)
    """
    if steps is None and until is None:
        raise TapeError(f"{where_called()}: ampi.timeloop: give steps=..., a number, or until=..., a condition to stop")
    most = None if steps is None else _count("steps", steps, 0)
    if checkpoints is not None:
        checkpoints = _count("checkpoints", checkpoints, 1)
    if checkpoints is not None and memory is not None:
        raise TapeError(f"{where_called()}: ampi.timeloop: give checkpoints=... or memory=..., not both")
    if until is not None and schedule is not None:
        raise TapeError(f"{where_called()}: ampi.timeloop: schedule=... needs steps=... without until=...")
    if resume and schedule is not None:
        raise TapeError(
            f"{where_called()}: ampi.timeloop: resume=True continues with its own schedule; leave out schedule="
        )
    if isinstance(schedule, str):
        schedule = _named(schedule, storage is not None)
    if resume and storage is None:
        raise TapeError(f"{where_called()}: ampi.timeloop: resume=True needs storage=..., the folder to resume from")
    budget = None if memory is None else bytes_of(memory, "ampi.timeloop")
    last = _Last(until, most, COMM_WORLD if comm is None else comm)
    shown = shown_by(progress, last.comm)
    tape = recording()
    if last(state, 0):
        return state
    if tape is None or tape.forward is not None or tape.walks or tape.accesses is not None:
        if tape is not None and tape.forward is None:
            _keep_all(tape, checkpoints=checkpoints, memory=memory, schedule=schedule, storage=storage)
        return _plainly(step, state, last, shown)
    if storage is not None and isinstance(tape, StepTape):
        raise TapeError(
            f"{where_called()}: ampi.timeloop: a loop in a step of another one has storage={storage!r}; give it to the "
            "outer one"
        )
    if "ampi.device.arrays" in sys.modules and (with_copies := carried(state)) is not None:
        given = with_copies, carried_step(step), last, shown, checkpoints, budget, schedule, storage, resume
        return landed(_on_tape(tape, *given))
    return _on_tape(tape, state, step, last, shown, checkpoints, budget, schedule, storage, resume)


def _on_tape(tape: Tape, state: Any, step: Callable[[Any], Any], *given: Any) -> Any:
    """Run the loop for a tape that will be swept, which stores the states of a schedule."""
    if given[-2] is not None:
        gc.collect()  # memory that is no longer used would be identified as well
    record = _Steps(step, tape, state)
    try:
        return _recorded(record, tape, step, *given)
    except BaseException:
        record.abandon()
        raise


def _recorded(
    record: _Steps,
    tape: Tape,
    step: Callable[[Any], Any],
    last: _Last,
    shown: Callable[[Figures], None] | None,
    checkpoints: int | None,
    budget: int | None,
    schedule: Callable[[int, int], Iterable[Any]] | None,
    storage: Any,
    resume: bool,
) -> Any:
    """Run the loop and append its record."""
    until, most = last.until, last.most
    record.loop.shown = shown
    record.loop.begin("forward", last.known)
    record.is_counted = budget is None
    if budget is None and checkpoints is None and schedule is None and tape.budget is not None:
        budget = tape.budget.room()
    if budget is not None:
        checkpoints = record.units(budget, last.comm)
    elif checkpoints is None:
        checkpoints = 30 if until is not None or most is None else max(1, math.isqrt(2 * most))
    kept = checkpoints
    if storage is not None and schedule is None:
        return record.run_on_disk(step, storage, resume, kept, most, last)
    if until is not None:
        return record.run(lambda n: Online(kept) if n is None else offline(n, kept), last)
    if schedule is None:
        return record.run(lambda n: offline(most, kept), None)  # type: ignore[arg-type]
    made = lambda n: of_package(schedule(most, kept), most)  # type: ignore[arg-type, misc]
    if storage is not None:
        record.open_folder(step, storage, most, last.comm)
    return record.run(made, None)


def _named(name: str, on_disk: bool) -> Callable[[int, int], Iterable[Any]]:
    """Return the schedule of a name."""
    known = ON_DISK if on_disk else IN_MEMORY
    if name not in known:
        if on_disk and name in IN_MEMORY:
            reason = "stores no states on disk; with storage=..."
        elif name in ON_DISK:
            reason = "needs storage=..., a folder; without it"
        else:
            reason = "is not a known schedule;"
        raise TapeError(
            f"{where_called()}: ampi.timeloop: schedule={name!r} {reason} there are "
            f"{', '.join(map(repr, known))}, and functions that return a schedule"
        )
    return known[name]


def _keep_all(tape: Tape, **asked: Any) -> None:
    """Warn that the tape stores all steps, if the program asks for fewer."""
    given = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not None)
    if given:
        who = "the tapes of ampi.hvp and ampi.linearize" if tape.walks else "a task, and a tape while tasks run,"
        warnings.warn(
            f"ampi.timeloop: {who} store all steps, so their memory grows with the number of steps; without effect "
            f"here: {given}",
            PerformanceWarning,
            stacklevel=warning_level(),
        )


def _plainly(step: Callable[[Any], Any], state: Any, last: _Last, shown: Callable[[Figures], None] | None) -> Any:
    """Run the loop where nothing will be swept."""
    figures = Figures(total=last.known)
    try:
        while figures.steps == 0 or not last(state, figures.steps):
            result = step(state)
            state = state if result is None else result
            figures.steps += 1
            if shown is not None:
                figures.done = figures.executed = figures.steps
                shown(figures)
    finally:
        close(shown)
    return state


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise TapeError(
            f"{where_called()}: ampi.timeloop: {name} is {value!r}; it must be an integer of at least {least}"
        )
    return int(value)


RECORD, ELEMENT, ARRAY = 1300, 250, 500
"""Bytes of a record, of an operation on one element, and of one of ampi's arrays or numbers that a step has created,
without its elements; measured with `tracemalloc`."""


class _Last:
    """The test whether the loop ends before a step."""

    def __init__(self, until: Callable[[Any], bool] | None, most: int | None, comm: Any) -> None:
        self.until = until
        self.most = most
        self.known = most if until is None else None
        self.comm = comm

    def __call__(self, state: Any, n: int) -> bool:
        if self.most is not None and n >= self.most:
            return True
        if self.until is None:
            return False
        with passive():
            stops = bool(self.until(state[0] if type(state) is Carried else state))
            if self.comm.size == 1:
                return stops
            answers = self.comm.allgather(stops)
        if len(set(answers)) > 1:
            ranks = ", ".join(str(r) for r, answer in enumerate(answers) if answer)
            raise CommunicationError(
                f"{where_called()}: ampi.timeloop: before step {n}, until(state) is true on the ranks {ranks} of "
                f"{len(answers)} and false on the others; let it depend on values that all ranks share (an allreduce)"
            )
        return stops


class _Steps(AdjointRecord):
    """The record of a time loop on a tape."""

    reads_memory = True
    batched = True

    def __init__(self, step: Callable[[Any], Any], tape: Tape, state: Any) -> None:
        self.steps = 0
        self.owners = _needed(tape)
        self.loop = Loop(step, tape, self.owners)
        self.make: Callable[[int | None], Any] = lambda n: ()
        self.initial = Snapshot(state, self.loop.is_saved)
        self.files = positions()
        self.open_receives = open_receives(tape)
        self.roots = state
        self.executor: Executor | None = None
        self.final: dict[tuple, Region] = {}
        self.windows = WindowValues(self.owners)
        self.start = 0
        self.undo: list[Any] = []
        self.is_counted = True
        """True if the memory that it uses counts towards the tape's budget, if there is one."""
        self.created: tuple[Storage, ...] = ()
        self.swept_to: int | None = None
        """The first of the steps that an earlier process has swept."""

    @property
    def tangent(self) -> Callable[[Push], None]:
        """Raise an error: steps that are not kept can only be swept."""
        raise not_kept("ampi.timeloop")

    def _absorb(self) -> None:
        """Take over the old values of overwritten memory that the tape saved during a step: this record stores them."""
        undo, _ = self.loop.tape.absorb(self.start)
        self.undo += undo
        self.loop.note_written(undo)

    def abandon(self) -> None:
        """Leave the tape as it has to be after an error in a step, which the program may catch."""
        self._absorb()
        self.loop.tape.append_unobserved(Record(None, self.undo, ()))
        self.loop.left.after_error(self.loop)

    def units(self, budget: int, comm: Any) -> int:
        """Return the number of states or recorded steps that fit in memory, on the rank with the least."""
        self.start = len(self.loop.tape)
        with MadeArrays() as made:
            state, taped = self.loop.record(self.roots, None, first=False)
            self.loop.left.note_first()
            self._absorb()
            taped.freeze(self.loop.written.storages)
        old = sum(action.saved.nbytes for action in self.undo)
        stored = Stored(self.loop, state)
        new = stored.snapshot.nbytes
        # Further memory of a recorded step: arrays that it creates, those that it receives, its records.
        objects = RECORD * len(taped.tape.records) + ELEMENT * taped.tape.elements.count + ARRAY * len(taped.after)
        held = Held(self.loop, state).nbytes
        self.loop.made_bytes = max(made.nbytes - old - taped.nbytes, 0) + new + objects + held
        unit = max(taped.nbytes + self.loop.made_bytes, stored.nbytes, 1)
        # In addition: the values when the loop began (a sweep has them once more) and when it ends, and the step that
        # is swept, with its shadows.
        kept = 2 * old + stored.nbytes + 2 * (unit + new)
        for action in reversed(self.undo):
            write(action.view if action.key is None else action.view[action.key], action.saved)
        self.roots = self._begin_anew()
        found = (budget - kept) // unit
        found = found if comm.size == 1 else comm.allreduce(found, MPI.MIN)
        if found < 1:
            for storage in self.loop.written.storages.keys() & self.loop.active:
                set_tape(storage, self.loop.reference)
            self.loop.written = Written()  # nothing, since the values are restored
            raise TapeError(
                f"{where_called()}: ampi.timeloop: a state or a recorded step takes {unit} bytes, and {kept} more are "
                f"needed, so memory={budget} is too small on some rank; give at least {kept + unit}"
            )
        return int(found)

    def _begin_anew(self) -> Any:
        """Return the state with which the loop begins, and restore the files."""
        self.loop.forget_view()
        for position in self.files:
            position.put_back()
        return self.initial.restore()

    def run(self, make: Callable[[int | None], Any], last: _Last | None) -> Any:
        """Run the steps for the first time, and record the loop."""
        self.owners = {}  # no longer needed
        self.make, self.start = make, len(self.loop.tape)
        schedule = make(None)
        return self._run(Executor(self.loop, schedule, self.roots), schedule, last)

    def open_folder(self, step: Any, storage: Any, steps: int | None, comm: Any) -> None:
        """Use a folder for the states that a schedule stores on disk."""
        self.loop.disk = disk = Disk(Folder(storage, comm, self.loop.where), self.loop, self.owners, self.roots)
        disk.open(step, False, **{"number of steps": steps})
        disk.resumable = False

    def run_on_disk(self, step: Any, storage: Any, resume: bool, kept: int, most: int | None, last: _Last) -> Any:
        """Run the steps with states in a folder, and continue from those that it contains."""
        loop = self.loop
        known = None if last.until is not None else most
        self.make, self.start = lambda n: TwoLevel(n, kept), len(loop.tape)
        loop.disk = disk = Disk(Folder(storage, last.comm, loop.where), loop, self.owners, self.roots)
        facts = {"number of steps": most, "until": last.until is not None, "steps between states": distance(kept)}
        disk.open(step, resume, **facts)
        point = disk.folder.point
        if point is None:
            schedule, state = TwoLevel(known, kept), self.roots
        else:
            kind, n = point
            end = None
            if kind == REVERSE:
                steps = int(disk.folder.loaded("end")[0])
                end, self.swept_to = n, n
            else:
                steps = n
            begin = n if kind == FORWARD else steps
            schedule = TwoLevel(known if kind == FORWARD else steps, kept, begin, end)
            with passive():
                state, views = disk.resume_state(f"state-{n}" if kind == FORWARD else f"final-{steps}")
            self._absorb()
            loop.adopt_written(views)
        executor = Executor(loop, schedule, state)
        if point is not None:
            executor.steps = schedule.begin
            below = schedule.begin + (point[0] == FORWARD) if schedule.end is None else schedule.end
            executor.stored.update((m, OnDisk(disk, m)) for m in disk.folder.states(below))
        found = self._run(executor, schedule, last if known is None else None)
        if point is None or point[0] == FORWARD:
            disk.folder.save("end", self.steps, [])
            disk.save_state(f"final-{self.steps}", self.roots[1])
        return found

    def _run(self, executor: Executor, schedule: Any, last: _Last | None) -> Any:
        loop, tape = self.loop, self.loop.tape
        self.executor = executor

        def is_last(state: Any, n: int) -> bool:
            stops = n > 0 and last(state, n)  # type: ignore[misc]
            if stops:
                schedule.finish(n)
            return stops

        state = executor.forward(self._absorb, None if last is None else is_last)
        for receive in completed_of(self.open_receives):
            raise CommunicationError(
                f"{loop.where}: ampi.timeloop: {receive.describe()} was started before the loop and completed in one "
                "of its steps, which run again; wait for its request before the loop, or after it"
            )
        self.steps = executor.steps
        executor.freeze()
        tape.saved_bytes += executor.nbytes + self.windows.nbytes
        if tape.budget is not None and self.is_counted:
            tape.budget.note_states(executor.nbytes + self.windows.nbytes)
        view = with_tracked_numbers(View(state))
        state, finals = view.state, view.differentiable
        self.created = tuple({s for a in finals.values() if (s := storage_of(a)) is not None and s not in loop.outside})
        for array in finals.values():
            tape.activate(array)
        loop.left.after_loop(loop, view)
        for storage in loop.written.storages:
            set_tape(storage, tape.reference)
        self.roots = self.roots, state
        self.final = places_of(finals)
        loop.final = self.steps, Held(loop, state)
        if tape.before_append is not None:
            tape.before_append()
        tape.append_record(self)
        return state

    def __call__(self, sweep: Sweep) -> None:
        with self.windows.restored():
            self._sweep(sweep)

    def _sweep(self, sweep: Sweep) -> None:
        loop, reference = self.loop, self.loop.tape.reference
        loop.first_values = Values(loop.written)
        storages = loop.written.storages.keys() | loop.active
        before = {s: (s.tape, s.baseline, s.swapped_by, s.needs.pop(reference, None)) for s in storages}
        for storage in storages:
            set_tape(storage, None)
            storage.swapped_by = ()
        count = len(loop.tape.records)

        def check() -> None:
            for record in loop.tape.records[count:]:
                for action in record.undo:
                    if action.storage in loop.outside and action.storage not in loop.written.storages:
                        raise TapeError(
                            f"{loop.where}: ampi.timeloop: a step that runs again writes to "
                            f"{describe(action.storage, action.view)}, to which it did not write the first time"
                        )

        executor, self.executor = self.executor, None
        loop.forget_view()
        if loop.disk is not None:
            loop.disk.begin_sweep(sweep, self.final)
        present, files = Snapshot(self.roots, lambda array: isinstance(array, TrackedArray)), positions()
        try:
            with intercepted.on(), kept(*self.roots):
                self._sweep_steps(sweep, executor, check)
        finally:
            loop.first_values.put_back()
            present.restore()
            for position in files:
                position.put_back()
            loop.first_values = None
            for storage, (tape, baseline, swapped_by, needs) in before.items():
                storage.tape, storage.baseline, storage.swapped_by = tape, baseline, swapped_by
                if needs is not None:
                    storage.needs[reference] = needs

    def _sweep_steps(self, sweep: Sweep, executor: Executor | None, check: Callable[[], None]) -> None:
        """Sweep all steps, continuing with the executor of the first run; None: after running them once more."""
        loop, final = self.loop, self.final
        if executor is None:
            executor = Executor(loop, self.make(self.steps), self._begin_anew(), again=True)
            loop.figures.executed = 0
            loop.begin("forward", self.steps)
            executor.forward(check)
            final = places_of(with_tracked_numbers(View(executor.state)).differentiable)
            move(sweep, self.final, final)
        elif self.swept_to is not None:
            final, start = loop.disk.load_adjoint(self.swept_to, sweep)  # type: ignore[union-attr]
            if start is not None:
                executor.starts[self.swept_to] = start
        executor.reverse(sweep, final, check)


def _needed(tape: Tape) -> dict[Storage, np.ndarray]:
    """Note that the tape needs the present values of all tracked memory; return an array on each block."""
    found: dict[Storage, np.ndarray] = {}
    for array in (*tracked_arrays(), *arrays_of_blocks()):
        if is_scalar(array):
            forget_node(array)  # type: ignore[arg-type]
        storage = storage_of(array)
        if storage is None or storage in found:
            continue
        found[storage] = owner_of(array)
        if storage.volatile and not storage.elsewhere:
            tape.save_before_writes(plain(owner_of(array)), storage)
        elif not storage.volatile and not is_scalar(array):
            tape.need(owner_of(array))
    return found
