"""Execution of a checkpointed time loop: steps are run, recorded one at a time, and swept, as a schedule requires."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from checkpoint_schedules import Copy, EndForward, EndReverse, Forward, Move, Reverse, StorageType

from ..base.program_lines import where_called
from ..errors import ActivityError, CommunicationError, TapeError
from ..memory.extents import address_of
from ..memory.storages import Region, Storage, is_scalar, storage_of
from ..mpi.outcomes import install
from ..tape import Record, Sweep, Tape, Undo, may_change, passive
from ..tape.replays import StepRuns
from . import progress
from .generators import generators_of_kernels
from .left_behind import Left
from .open_communication import left_open, with_objects_of_the_first_time
from .reproduction import Held, Once, compare
from .resuming import Disk, OnDisk
from .schedules import Commit
from .states import InPlace, Snapshot, owner_of, with_tracked_numbers
from .stored import InPlaceView, StepTape, Stored, Taped, places_of, set_tape
from .views import Paths, View, spelled
from .written import Values, Written, block_of, fingerprints


class Loop:
    """A time loop on a tape.

    Attributes
    ----------
    outside : dict
        All tracked memory that existed when the loop began, and weak references to arrays on all of it.
    active : set of Storage
        The part of it that carried derivatives on the tape.
    written : Written
        The part of it that steps have written so far.
    first_values : Values or None
        In a sweep: the values of ``written`` when the loop began.
    earlier : dict
        See `Snapshot`.
    left : Left
        What steps leave behind.
    references : set of weakref.ref
        References to the tapes of steps.
    figures : Figures
        Number of steps that have been run, recorded ones included, the largest memory used, and so on.
    shown : callable or None
        Called with these after each step.
    final : tuple
        The number of steps, and the contents of the state that the program received.
    outcomes : dict
        By the numbers of the steps: the entries of their books.
    not_reproduced : set of str
        Numbers that steps do not reproduce, about which a warning has been issued.
    made_bytes : int
        Memory of a recorded step in addition to old values and the values that kernels store: arrays that it creates,
        and its records; 0 if it has not been measured.
    """

    def __init__(self, step: Callable[[Any], Any], tape: Tape, owners: dict[Storage, np.ndarray]) -> None:
        self.step = step
        self.reference = tape.reference  # weak: the tape owns the loop's record
        self.outside = {storage: weakref.ref(owner) for storage, owner in owners.items()}
        self.active = {s for s in owners if s.tape is tape.reference}
        self.written = Written()
        self.first_values: Values | None = None
        self.references: set[Any] = set()
        self.earlier: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.left = Left(self.outside)
        self.paths, self.once = Paths(), Once()
        self.final: tuple[int, Held | None] = 0, None
        self.not_reproduced: set[str] = set()
        self.outcomes: dict[int, list[list[Any]]] = {}
        install()
        self.where = where_called()
        self.disk: Disk | None = None
        self.made_bytes = 0
        self.figures = progress.Figures()
        self.shown: Callable[[progress.Figures], None] | None = None
        self._constant: dict[int, tuple[Any, int]] = {}  # read-only arrays and their fingerprints, by identity
        self._room = 1000  # number of these above which those that no longer exist are dropped
        self._latest: InPlaceView | None = None
        self._is_fresh = False  # True if nothing has happened since the last view

    @property
    def tape(self) -> Tape:
        """The tape on which the loop is recorded."""
        tape = self.reference()
        assert tape is not None
        return tape

    def is_saved(self, array: np.ndarray) -> bool:
        """Return whether an array lies in memory that existed when the loop began, which is saved as a whole."""
        return storage_of(array) in self.outside

    def note_written(self, undo: list[Undo]) -> None:
        """Note memory from before the loop that steps have overwritten."""
        for action in undo:
            self.written.add(action.storage, action.view)
            set_tape(action.storage, None)

    def adopt_written(self, views: list[np.ndarray]) -> None:
        """Note memory that steps of an earlier process have overwritten."""
        for view in views:
            storage = storage_of(view)
            self.written.add(storage, view)  # type: ignore[arg-type]
            set_tape(storage, None)

    # ------------------------------------------------------------------------------------------------------ steps

    def _runs(self, n: int | None, first: bool, recorded: bool) -> StepRuns:
        """Return the context of step ``n`` (None: of a step that is only measured)."""
        if n is None:
            return StepRuns(first, None, recorded)
        if first:
            self.outcomes[n] = []
        elif n not in self.outcomes:  # another process has run it first
            return StepRuns(first, None, recorded)
        return StepRuns(first, self.outcomes[n], recorded)

    def run(self, state: Any, n: int, first: bool) -> Any:
        """Run step ``n`` without recording it; ``first``: it has not run before."""
        self.figures.executed += 1
        self._is_fresh = False
        self.left.is_known, self.left.has_more = self.left.is_known and not first, True
        with self._runs(n, first, False), passive():
            result = self.step(state) if first else self._again(state)
        return state if result is None else result

    def _again(self, state: Any) -> Any:
        with with_objects_of_the_first_time(self.where):
            return self.step(state)

    def observe(self, state: Any, n: int, first: bool) -> Any:
        """Run step ``n``, recording it only to learn which of the arrays that it makes are active."""
        state, taped = self.record(state, n, first)
        for storage in self.outside:
            storage.needs.pop(taped.tape.reference, None)
        self.left.note_first()
        return state

    def view_of(self, state: Any) -> View:
        """Return the view of a state: its present contents."""
        latest = self._latest
        if latest is None or latest.view.state is not state or not (self._is_fresh or latest.view.still_holds()):
            view = View(state, self.paths)
            self._latest = None
            if not view.has_numbers and all(map(self.is_saved, view.tracked())):
                self._latest = InPlaceView(view, *self.sort(view))
        else:
            view = latest.view
        self._is_fresh = True
        return view

    def forget_view(self) -> None:
        """Forget the view of the state, which may have changed."""
        self._is_fresh = False

    def snapshot(self, state: Any) -> Snapshot | InPlace:
        """Save the state, except memory from before the loop."""
        view, latest = self.view_of(state), self._latest
        if latest is None:
            return Snapshot(state, self.is_saved, earlier=self.earlier)
        return InPlace(view, self.earlier)

    def _places_of(self, view: View) -> dict[tuple, Region]:
        latest = self._latest
        return places_of(view.differentiable) if latest is None else latest.places

    def record(self, state: Any, n: int | None, first: bool) -> tuple[Any, Taped]:
        """Run step ``n`` and record it."""
        self.figures.executed += 1
        tape = StepTape(self.references)
        reference = tape.reference
        self.references.add(reference)
        try:
            with tape:
                tape.append_record(Record(None, (), ()))  # activity must follow from a record on the tape
                given = with_tracked_numbers(self.view_of(state))
                self.left.before_recorded(self, given)
                self._enter(tape, given)
                before = self._places_of(given)
                state = given.state
                self._is_fresh = False
                with self._runs(n, first, True):
                    result = self.step(state) if first else self._again(state)
                state = state if result is None else result
                left = self.view_of(state)
                after = self._places_of(left)
        finally:
            for storage in self.active:  # for steps that run without being recorded
                set_tape(storage, self.reference)
            for storage in self.written.storages:
                set_tape(storage, None)
        self.check_windows(tape)
        problem = left_open(tape)
        if problem:
            error = CommunicationError(f"{self.where}: ampi.timeloop: {problem}")
            tape.refuse(error)  # its sweep may begin on other ranks
            raise error
        owners = {**self._owners(before, given), **self._owners(after, left)}
        taped = Taped(tape, before, after, owners)
        taped.more = self.made_bytes
        return state, taped

    def check_windows(self, tape: Tape) -> None:
        """Raise an error if a step has used a window from before the loop.

        Other ranks write to its memory, which is in no state.
        """
        windows = tape.sweep_starts.get("windows")
        if windows is not None and any(storage in self.outside for storage in windows.used()):  # type: ignore[attr-defined]
            raise ActivityError(
                f"{self.where}: a step of ampi.timeloop uses one-sided communication with the memory of a window "
                "that was made before the loop; make the window inside the step, or write the loop without "
                "ampi.timeloop"
            )

    def _enter(self, tape: StepTape, given: View) -> None:
        """Mark the inputs of a step as active on its tape."""
        for storage in self.active:
            set_tape(storage, tape.reference)
        for storage in self.written.storages:
            set_tape(storage, tape.reference)
        for array in given.differentiable.values():
            storage = storage_of(array)
            if storage.tape is not tape.reference:  # type: ignore[union-attr]
                set_tape(storage, tape.reference)  # it was on the tape of the step which computed it
            if not array.ndim or storage.guard:  # type: ignore[union-attr]
                tape.activate(array)

    def _owners(self, regions: dict[tuple, Region], view: View) -> dict[Storage, Any]:
        """Return weak references to the arrays that own some memory, except memory from before the loop."""
        if self._latest is not None and view is self._latest.view:
            return {}
        made = [(region.storage, path) for path, region in regions.items() if region.storage not in self.outside]
        return {storage: weakref.ref(owner_of(view.differentiable[path])) for storage, path in made}

    def begin(self, phase: str, total: int | None) -> None:
        """Begin to run steps, or to sweep them."""
        self.figures.begin(phase, total)
        if phase == progress.END:
            self._show()

    def _show(self) -> None:
        if self.disk is not None:
            self.figures.disk_peak = self.disk.folder.peak_bytes
        if self.shown is not None:
            self.shown(self.figures)

    def report_step(self) -> None:
        """Report that a step has been run, or swept."""
        self.figures.done += 1
        if self.shown is not None:
            self._show()

    def contents_of(self, state: Any) -> tuple[View, dict, dict]:
        """Return the present contents of a state, and its arrays as `sort` returns them."""
        view, latest = self.view_of(state), self._latest
        return (view, *self.sort(view)) if latest is None else (view, latest.persistent, latest.others)

    def sort(self, view: View) -> tuple[dict, dict]:
        """Return a state's arrays in memory from before the loop (fingerprints of read-only ones), and the others."""
        persistent, others = {}, {}
        for path, array in view.arrays.items():
            if self.is_saved(array):
                persistent[path] = array.shape, array.dtype, address_of(array)
            elif may_change(array) or is_scalar(array):
                others[path] = array
            else:
                persistent[path] = array.shape, array.dtype, self._sum_of(array)
        return persistent, others

    def _sum_of(self, array: np.ndarray) -> int:
        """Return the fingerprint of a read-only array, which is computed once."""
        alive, found = self._constant.get(id(array), (None, 0))
        if alive is None or alive() is not array:
            (found,) = fingerprints([block_of(array, [])])
            if len(self._constant) > self._room:
                self._constant = {k: (ref, number) for k, (ref, number) in self._constant.items() if ref() is not None}
                self._room = 2 * len(self._constant) + 1000
            self._constant[id(array)] = weakref.ref(array), found
        return found


def move(sweep: Sweep, sources: dict[tuple, Region], targets: dict[tuple, Region]) -> None:
    """Convert the adjoint of a state, as the next step received it, to that of the results of a step."""
    missing = [path for path in targets if path not in sources]
    if missing:
        raise TapeError(
            f"ampi.timeloop: {', '.join(map(spelled, missing))} is one of ampi's arrays or numbers after a recorded "
            "step, but not after the step that was only run; keep the structure of the state, and its arrays, the same"
        )
    if sources is targets:
        return
    moved = []
    for path, source in sources.items():
        target = targets.get(path)
        if target is None:  # a number that the step has not computed
            sweep.take(source)
        elif source.place != target.place:
            if source.shape != target.shape or source.dtype != target.dtype:
                raise TapeError(
                    f"ampi.timeloop: {spelled(path)} has shape {target.shape} and dtype {target.dtype} after a step, "
                    f"but the next step receives it with {source.shape} and {source.dtype}"
                )
            moved.append((target, sweep.take(source)))
    for target, value in moved:
        if value is not None:
            sweep.add(target, value)


class Executor:
    """One pass over a schedule, forward and back; ``again``: all steps have been run before."""

    def __init__(self, loop: Loop, schedule: Iterable[Any], state: Any, again: bool = False) -> None:
        self.loop = loop
        self.schedule = iter(schedule)
        self.state = state
        self.again = again
        self.stored: dict[int, Stored | Taped | OnDisk] = {}
        self.work: dict[int, Taped] = {}
        self.nbytes = 0  # of stored states and steps
        self.steps = 0
        self.later: dict[tuple, Region] = {}  # the regions of the state whose adjoint is known
        self.starts: dict[int, Held] = {}  # the contents of the states with which recorded steps began
        self._latest: tuple[int, Held | None] = -1, None
        self._recorded: Taped | None = None

    def forward(self, after_step: Callable[[], None], is_last: Callable[[Any, int], bool] | None = None) -> Any:
        """Run to the end; return the final state.  ``is_last(state, n)`` is True if the loop ends before step n."""
        try:
            for action in self.schedule:
                if isinstance(action, EndForward):
                    return self.state
                if is_last is not None and isinstance(action, Forward):
                    self.loop.forget_view()
                    if is_last(self.state, int(action.n0)):
                        continue
                self._perform(action, after_step, None)
        finally:
            progress.close(self.loop.shown)
        raise TapeError("ampi.timeloop: the schedule ends before the last step")

    def reverse(self, sweep: Sweep, final: dict[tuple, Region], after_step: Callable[[], None]) -> None:
        """Sweep all steps that have not been swept."""
        self.later = final
        actions, total = self.schedule, None
        if self.loop.shown is not None:
            actions, total = progress.counted(self.schedule, (Forward, Reverse))
        self.loop.begin(progress.REVERSE, total)
        generators = generators_of_kernels()
        try:
            for action in actions:
                if isinstance(action, EndReverse):
                    break
                self._perform(action, after_step, sweep)
            else:
                raise TapeError(f"{self.loop.where}: ampi.timeloop: the schedule ends before all steps are reversed")
        finally:
            progress.close(self.loop.shown)
            if generators is not None:
                generators.put_back()
        self.loop.begin(progress.END, None)

    def _perform(self, action: Any, after_step: Callable[[], None], sweep: Sweep | None) -> None:
        loop = self.loop
        if isinstance(action, Forward):
            if action.write_ics:
                self._store_state(int(action.n0), action.storage)
            for n in action:
                self._run(int(n), action)
                after_step()
        elif isinstance(action, Commit):
            loop.disk.save_adjoint(action.n, sweep, self.later, self.starts.get(action.n))  # type: ignore[union-attr, arg-type]
        elif isinstance(action, Reverse):
            for n in action:
                self._sweep(n, sweep)
        elif isinstance(action, (Copy, Move)):
            found = self.stored[action.n] if isinstance(action, Copy) else self.stored.pop(action.n)
            if isinstance(found, Taped):
                self.work[action.n] = found
            elif action.to_storage is not StorageType.NONE:
                self.state = found.restore(loop)
                self._latest = -1, None
                loop.forget_view()
            if isinstance(action, Move) and not isinstance(found, Taped):
                self._forget(found)
                if isinstance(found, OnDisk):
                    found.remove()

    def _run(self, n: int, action: Forward) -> None:
        """Run step ``n``, and record it if the action requires that."""
        loop, first = self.loop, not self.again and n >= self.steps
        if action.write_adj_deps and action.storage is StorageType.DISK:
            raise TapeError(
                f"{loop.where}: ampi.timeloop: the schedule stores recorded steps on disk, but they can only be in "
                "memory; give it storage=StorageType.RAM, or take another schedule"
            )
        if not action.write_adj_deps:
            self._latest = -1, None
            run = loop.observe if first and loop.left.is_new else loop.run
            self.state = run(self.state, n, first)
        else:
            taped = self._record(n, first)
            if first and loop.left.is_new:
                loop.left.note_first()
            if action.storage is StorageType.WORK:
                self.work[n] = taped
                self._keep(taped)
            else:
                self._store(n, taped)
        self.steps = max(self.steps, n + 1)
        loop.figures.steps = max(loop.figures.steps, n + 1)
        loop.report_step()

    def _record(self, n: int, first: bool) -> Taped:
        """Record step ``n``."""
        loop, (known, held) = self.loop, self._latest
        self.starts[n] = held if held is not None and known == n else Held(loop, self.state)
        self.state, taped = loop.record(self.state, n, first)
        held = Held(loop, self.state)
        self._latest = n + 1, held
        expected = self.starts.pop(n + 1, None)  # that step was recorded earlier
        if n + 1 == loop.final[0]:
            expected = loop.final[1]
        if expected is not None:
            try:
                compare(loop, n, held, expected, self.state)
            except TapeError as error:
                taped.tape.refuse(error)  # its sweep begins on ranks where it does reproduce itself
                raise
        return taped

    def _store_state(self, n: int, storage: StorageType) -> None:
        disk = self.loop.disk
        if storage is not StorageType.DISK:
            self._store(n, Stored(self.loop, self.state))
        elif disk is None:
            raise TapeError(
                f"{self.loop.where}: ampi.timeloop: the schedule stores states on disk; give storage=..., a folder, "
                "or take a schedule whose states are in memory (storage=StorageType.RAM)"
            )
        elif n not in self.stored:
            disk.save_state(f"state-{n}", self.state)
            self.stored[n] = OnDisk(disk, n)
        self.loop.figures.snapshots += 1

    def _store(self, n: int, what: Stored | Taped) -> None:
        self.stored[n] = what
        self._keep(what)

    def _keep(self, what: Stored | Taped) -> None:
        """Count the memory of a stored state or step, and the growth of the step that was recorded before it."""
        before, self._recorded = self._recorded, what if isinstance(what, Taped) else self._recorded
        if before is not None and before.counted:
            self._count(before)
        self._count(what)
        figures = self.loop.figures
        figures.memory_peak = max(figures.memory_peak, self.nbytes)

    def _count(self, what: Stored | Taped) -> None:
        more = what.nbytes - what.counted
        what.counted += more
        self.nbytes += more

    def _forget(self, what: Stored | Taped | OnDisk) -> None:
        """Stop counting a state or step that is no longer stored."""
        self.nbytes -= what.counted
        what.counted = 0

    def freeze(self) -> None:
        """Make recorded steps save those values that they need and that may change before they are swept."""
        loop = self.loop
        known = dict(loop.written.storages)
        for array in View(self.state, loop.paths).arrays.values():
            storage = storage_of(array)
            if storage is not None:
                known[storage] = owner_of(array)
        for taped in (*self.stored.values(), *self.work.values()):
            if isinstance(taped, Taped):
                taped.freeze({**taped.alive(loop.outside), **known})
                self._keep(taped)

    def _sweep(self, n: int, sweep: Sweep) -> None:
        """Sweep a recorded step; ``later`` has the regions that received its result."""
        taped = self.work.pop(n)
        inside = sweep.inside(taped.tape)
        is_last = self.stored.get(n) is not taped
        if is_last:
            self._forget(taped)
            inside.left = self.loop.written.storages  # restored by the next sweep of a step, a state, or `run`
        move(sweep, self.later, taped.after)
        outside, left = self.loop.outside, {region.storage for region in taped.after.values()}
        for region in self.later.values():  # an array that was made for the next step only
            if region.storage not in outside and region.storage not in left:
                sweep.forget(region.storage)
        known = sweep.storages()
        inside.run()
        left = {region.storage for region in taped.before.values()}
        for storage in sweep.storages() - known:  # of arrays that the step has made
            if storage not in outside and storage not in left:
                sweep.forget(storage)
        self.loop.check_windows(taped.tape)  # once more: now the accesses of other ranks are known
        if is_last:
            taped.forget_needs(self.loop.written.storages)
        self.later = taped.before
        self.starts.pop(n + 1, None)  # this step is not recorded again
        self.loop.report_step()
