"""The tape: it records operations in their order, and knows what their adjoints need."""

from __future__ import annotations

import os
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..base import checks
from ..base.public_help import PublicHelp
from ..errors import ActivityError, TapeError
from ..memory import handouts
from ..memory.blocks import SharedCopies
from ..memory.extents import Extent, may_change, place_of
from ..memory.storages import (
    LENT,
    Region,
    Storage,
    TrackedArray,
    carries_derivatives,
    forget_node,
    plain,
    storage_of,
    tracked_copy,
)
from .apart import is_active_at, is_apart, is_tracked, region_at, tracked_apart
from .budget import Limit, Spool, budget_for
from .elements import Elements
from .elsewhere import Unknown, lost
from .recording import PARENT, Scope, current, enter, leave, this_thread, would_lose
from .records import Adjoint, Output, Record, Watch, Zero
from .seeds import in_structure_of, leaves, set_seeds, warn_of_constants
from .sweep import Sweep
from .undo import Need, Undo, first_need, needs_lock, refuse_swapped
from .vector import VectorSweep, count_of, set_lane_seeds
from .walks import walk_for

living: set[weakref.ref[Tape]] = set()  # all tapes that exist; while it is empty no overwritten value is needed
# Other packages register functions here, to be called before a tape begins to record (until they remove themselves),
# when it begins, and when it ends recording.
at_first_opening: list[Callable[[], None]] = []
at_opening: list[Callable[[Tape], None]] = []
at_closing: list[Callable[[Tape], None]] = []

_ATTRIBUTES = ("closed", "kept_bytes", "outputs", "saved_bytes")


class Tape(metaclass=PublicHelp):
    """Records what this rank computes and communicates, for `gradient`.

    Use it as a context manager on every rank of the program::

        with ampi.Tape() as tape:
            x = tape.watch(x0)
            y = program(x)
        x_bar = tape.gradient(y, x)

    A tape can be swept any number of times, with different outputs and seeds.

    Parameters
    ----------
    memory : int or str, optional
        A budget in bytes of this rank, such as ``"2GiB"``, for what `saved_bytes` and `kept_bytes` count.  Exceeding it
        raises a `TapeError` that names the lines that keep the most, unless there is ``spill``.
    spill : str, path or True, optional
        A folder on a disk of this node (True: ``$TMPDIR``), to which the oldest values go when the budget is exceeded.
        Sweeps read them ahead.  The file has no name and disappears with the tape, or the process.
    tangents : bool, optional
        Also keep what `tangent` needs: all steps of `ampi.timeloop`, and the values before the call of a kernel instead
        of those that it would save for its adjoint alone (sweeps then run it forward once more).

    Attributes
    ----------
    saved_bytes : int
        Size of all old values that were saved.
    kept_bytes : int
        Size of the values that kernels saved for their adjoints.
    outputs : list of Output
        The active arrays that were written to files, in order: `gradient` takes them as outputs.
    closed : bool
        True if it no longer records.

    Examples
    --------
    >>> with ampi.Tape() as tape:
    ...     x = tape.watch(numpy.array([1.0, 2.0]))
    ...     y = np.sum(x * x)
    >>> tape.gradient(y, x).tolist()
    [2.0, 4.0]
    """

    # Attributes for other modules and packages:
    #
    # at_refusal : callable or None, called with the error that keeps a sweep from beginning on this rank
    # at_message : callable or None, called before a collective in forward mode (in tasks it raises an error)
    # before_append : callable or None
    #     Called before the record of any operation is appended (communication that has completed unnoticed must have
    #     its record before those of operations that use the received values).
    # append_record : callable, which appends a record without calling ``before_append``
    # elements : Elements, the statements on single elements
    # pen : Elements or None, the same, as long as such statements are recorded there
    # forward : Push or None, in forward mode: the tangents, which are pushed through each operation at once
    # tangents : Push or None, in second order: the tangents, which are pushed while the tape records
    # walks : bool, True if the tape is to be walked forward: calls of kernels keep the values for that
    # observer : object or None, whose ``append(record)`` is called instead of the tape's own
    # latest : tuple
    #     The communicator of the latest message, its log, and all logs.
    # thread, thread_name, owner
    #     Identifier, name, and result of `this_thread` of the thread that opened it, the only one that it records.
    # scope, inner_scopes : Scope or None, set of Scope
    #     The scope of its block, and remaining scopes of tapes that were opened and closed inside.
    # resumed : Scope or None, that of the latest block in which it was resumed
    # records : list of Record, in the order of the operations
    # of_step : bool, True if a time loop has made it for one of its steps
    # reference : weakref.ref of the tape, the `Storage.tape` of active memory
    # needer : weakref.ref
    #     The key under which storages note what the tape needs: `reference`, except for tasks in forward mode.
    # watches : dict of the independents
    # sweep_starts : dict of the callbacks of `at_sweep_start`
    # notes : dict
    #     With ``AMPI_CHECK``: notes of needed memory that other code may write, by the ids of records.
    # tasks, accesses : object or None
    #     For tasks in other threads: an object with ``sweep(sweep)``; while some run, one with
    #     ``write(storage, array)``.
    # sweep_lock : threading.Lock, held by the sweep of the tape
    # unknown : tuple of elsewhere.Unknown, which stand for it in memory whose derivatives are not known
    # latest_shadows : int, the most bytes that the shadows of the latest sweep in vector mode took

    forward: Any = None
    returned: Any = None  # this rank's term of the objective, if that is a sum over ranks
    replicated: Any = None  # the collective call that gave all ranks the same objective, if the sweep found one
    tangents: Any = None
    walks = False
    of_step = False
    latest_shadows = 0
    unknown: tuple[Unknown, ...] = ()
    tasks: Any = None
    accesses: Any = None
    resumed: Scope | None = None
    at_message: Callable[[], None] | None = None

    for_users = frozenset({"gradient", "tangent", "watch"})

    def __init__(
        self,
        memory: int | str | None = None,
        spill: str | os.PathLike[str] | bool | None = None,
        *,
        tangents: bool = False,
    ) -> None:
        if tangents:
            self.walks = True
        self.budget: Limit | Spool | None = None if memory is None and not spill else budget_for(memory, spill)
        self.records: list[Record] = []
        self.watches: dict[tuple, tuple[Region, int]] = {}  # by place, with the number of other records before it
        self.reference = self.needer = weakref.ref(self, living.discard)
        living.add(self.reference)
        self.constant = SharedCopies()
        self.outputs: list[Output] = []
        self.sweep_starts: dict[Any, Callable[[Sweep], None]] = {}
        self.closed = False
        self.thread = 0
        self.thread_name = ""
        self.owner: object = None
        self.scope: Scope | None = None
        self.inner_scopes: Collection[Scope] = ()
        self.sweep_lock = threading.Lock()
        self.at_refusal: Callable[[BaseException], None] | None = None
        self.before_append: Callable[[], None] | None = None
        self.append_record: Callable[[Any], None] = self.records.append
        self.elements = Elements(self.records, self.reference)
        self.pen: Elements | None = self.elements
        self._noted: list[handouts.Note] = []  # of the record that is appended next
        self.notes: dict[int, list[handouts.Note]] = {}  # by records' ids
        if checks.is_full():
            self.append_record = self._noting(self.records.append)
            self.pen = None
        self.observer: Any = None
        self.latest: tuple[Any, Any, Any] = None, None, None
        self.saved_bytes = 0
        self.kept_bytes = 0

    def __enter__(self) -> Tape:
        if self.thread:
            raise TapeError("a tape records once; make a new ampi.Tape()")
        for prepare in tuple(at_first_opening):
            prepare()
        self.thread, self.owner = get_ident(), this_thread()
        self.thread_name = threading.current_thread().name
        enter(self)
        problems: list[BaseException] = []
        for callback in tuple(at_opening):  # a callback may remove itself
            try:
                callback(self)
            except (
                BaseException
            ) as problem:  # the others are called nevertheless: their counterparts at closing will be
                problems.append(problem)
        if problems:
            self.__exit__()
            raise problems[0]
        return self

    def __exit__(self, *exception: Any) -> None:
        if self.closed or not self.thread:
            raise TapeError("a tape is closed once, by the end of its `with` block")
        if self.thread == PARENT:
            return
        try:
            for callback in at_closing:
                callback(self)
        finally:
            self.closed = True
            in_order = leave(self)
        if not in_order and self.thread != get_ident():
            raise TapeError(
                f"a tape of thread '{self.thread_name}' was closed by thread '{threading.current_thread().name}'; let "
                "the thread that opens a tape close it"
            )
        if not in_order:
            raise TapeError(
                "tapes must be closed in the reverse order of their opening, and by the task that opened them"
            )

    def leave_to_parent(self) -> None:
        """Stop recording in a child process."""
        self.thread, self.owner = PARENT, None
        self.thread_name = f"{self.thread_name} of the parent process"

    def __len__(self) -> int:
        return len(self.records)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *_ATTRIBUTES})

    # ------------------------------------------------------------------------------------------- for the user

    def watch(self, x: Any) -> Any:
        """Declare an independent.

        Parameters
        ----------
        x : array_like of float or complex
            A plain array or a scalar is copied into a new `ampi.ndarray` and left untouched; an `ampi.ndarray`, or an
            array of `ampi.cuda` on a device, is itself declared, with respect to the value it has here.

        Returns
        -------
        ampi.ndarray, or an array of `ampi.cuda`
            The array to compute with.

        Raises
        ------
        ActivityError
            ``x`` is of an integer, boolean or object dtype.
        TapeError
            The tape is not recording; ``x`` carries derivatives on an outer tape, which would lose them; or its memory
            was watched before, with respect to an earlier value that `gradient` could not tell from this one.
        """
        if current() is not self:
            raise TapeError("tape.watch(x) must be called inside `with tape:`, on the innermost tape")
        given = tracked_apart(x) if is_apart(x) else x
        is_active_at(self, given)  # raises if an outer tape would lose it
        array = given if is_apart(given) or isinstance(given, TrackedArray) else tracked_copy(given)
        if not carries_derivatives(array.dtype):
            if array.dtype.kind not in "biu":
                raise ActivityError(
                    f"cannot differentiate with respect to {'an array' if x is array else f'a {type(x).__name__}'} of "
                    f"dtype {array.dtype}; pass arrays of numbers, or tuples, lists and dictionaries of them"
                )
            raise ActivityError(
                f"cannot differentiate with respect to an array of dtype {array.dtype}; "
                "convert it to a floating-point or complex dtype before tape.watch"
            )
        region = region_at(array)
        place = region.place
        if place in self.watches:
            self._require_same_value(place)
            return array
        if region.storage.is_apart:
            self.set_active(region.storage)
        else:
            self.activate(array)
        self.watches[place] = region, len(self.records) - len(self.watches)
        self.append_record(Record(Watch(region, array is not x), (), ()))
        return array

    def _require_same_value(self, place: tuple) -> None:
        """Raise an error if an operation was recorded since a region was watched."""
        _, others = self.watches[place]
        if len(self.records) - len(self.watches) != others:
            raise TapeError(
                "tape.watch(x): this array is watched already, and tape.gradient(y, x) could not tell its earlier "
                "value from the present one; continue with a copy: `x = tape.watch(x.copy())`"
            )

    def gradient(self, y: Any, x: Any, seed: Any = None, *, seeds: Any = None) -> Any:
        """One reverse sweep: the adjoint of ``x`` for a seed on ``y``, summed over all ranks' outputs; or for k seeds.

        Collective over the ranks that communicated while the tape recorded: each of them must sweep, even one that has
        neither output nor input.

        Parameters
        ----------
        y : ampi.ndarray, Output, tuple or list of them, or None
            Outputs: the memory of these arrays as it was when the tape was closed, or what was written to a file
            (from ``tape.outputs``; it contributes only if it is given here).  None on a rank without output.
        x : ampi.ndarray, or a tuple or list (nested as you like) of them, or None
            Watched arrays.
        seed : array_like, or a tuple like ``y``
            Adjoint of ``y``, of y's shape; 1.0 by default, for a ``y`` of one element.
        seeds : array_like, or a tuple like ``y``; or int
            Instead of ``seed``, for k sweeps in one (vector mode): k adjoints of ``y``, of shape ``(k, *y.shape)``.
            All ranks pass the same k, a rank without output as a number.

        Returns
        -------
        numpy.ndarray, or the structure of ``x``
            For each ``x``: Σ over ranks ⟨seed, ∂y/∂x⟩, of x's shape and dtype; for complex data in the real inner
            product Re⟨x̄, ẋ⟩.  With ``seeds``, of shape ``(k, *x.shape)``: the results of k sweeps, stacked.

        Raises
        ------
        CommunicationError
            On all ranks that communicate: the ranks disagree about k, or about a message.
        TapeError
            An ``x`` was not watched, a ``y`` is not tracked memory, or a seed does not fit.

        Warns
        -----
        ActivityWarning
            A ``y`` carries no derivative on this tape.
        """
        sweep = Sweep(self) if self.tasks is None else self.tasks.new_sweep(self)
        try:
            if seeds is not None:
                if seed is not None:
                    raise TapeError("tape.gradient: pass seed= or seeds=, not both")
                sweep = VectorSweep(self, count_of(y, seeds))
            sweep.wanted = [self.watched(leaf) for leaf in leaves(x)]
            if seeds is None:
                set_seeds(sweep, y, seed)
            else:
                set_lane_seeds(sweep, y, seeds)  # type: ignore[arg-type]
            warn_of_constants(self, y)
        except Exception as error:
            self.refuse(error)
            raise
        # Infinite derivatives, which may not even contribute, must not raise the errors of numpy.errstate.
        with np.errstate(all="ignore"):
            sweep.run()
        found = iter(sweep.results)
        return in_structure_of(x, found)

    def tangent(self, y: Any, x: Any, x_dot: Any, *, vectorised: bool | int = False) -> Any:
        """One forward walk: the tangent of ``y`` for tangents of ``x``, with all values as they were.

        The tape must be closed; it can be walked and swept any number of times.  Collective over the ranks that
        communicated while the tape recorded.

        Parameters
        ----------
        y : ampi.ndarray, or a tuple or list (nested as you like) of them, or None
            Outputs: the memory of these arrays as it was when the tape was closed.  None on a rank without output.
        x : ampi.ndarray, or a tuple or list (nested as you like) of them, or None
            Watched arrays.  The tangents of others are zero.
        x_dot : array_like, or the structure of ``x``
            Tangents of ``x``, of its shapes.
        vectorised : bool or int
            Tangents in k directions at once: those of ``x`` have shape ``(k, *x.shape)``, and so has the result.  A
            rank without an ``x`` passes k itself.

        Returns
        -------
        numpy.ndarray, or the structure of ``y``
            ∂y/∂x ẋ, of y's shape and dtype; if vectorised, of shape ``(k, *y.shape)``.

        Raises
        ------
        ActivityError
            An operation on the tape has no tangent.
        TapeError
            The tape is open, an ``x`` was not watched, a ``y`` is not tracked memory, or a tangent does not fit.

        Examples
        --------
        >>> with ampi.Tape() as tape:
        ...     x = tape.watch(np.array([1.0, 2.0]))
        ...     y = x * x
        >>> tape.tangent(y, x, np.array([1.0, 10.0]))
        array([ 2., 40.])
        """
        return walk_for(self, y, x, x_dot, vectorised)

    def refuse(self, error: BaseException) -> None:
        """Tell the other ranks that no sweep begins here because of an error; they may wait for it."""
        if self.at_refusal is not None:
            self.at_refusal(error)

    def begin_reading(self) -> None:
        """Prepare the budget for a sweep or a walk, which reads old values in their order."""
        if self.budget is not None:
            try:
                self.budget.begin()
            except TapeError as error:
                self.refuse(error)
                raise

    # ----------------------------------------------------------------------------- for code that records operations

    def is_active(self, array: Any) -> bool:
        """Return whether the memory of an array carries derivatives on this tape."""
        if not isinstance(array, np.ndarray):
            return False
        if (node := getattr(array, "_node", None)) and node[2] is self.reference and not hasattr(array, "_storage"):
            return node[1] is not None
        if (storage := storage_of(array)) is None or storage.tape is None:
            return False
        if storage.tape is self.reference:
            if storage.guard:
                handouts.look(storage, array)
            return True
        other = storage.tape()
        if other is not None and not other.closed and would_lose(other):
            raise lost(array, other)
        return False

    def activate(self, array: np.ndarray) -> None:
        """Note that the memory of a tracked array carries derivatives from now on."""
        if not array.shape and isinstance(array, TrackedArray):
            forget_node(array)
        if (storage := storage_of(array)) is None:
            raise ActivityError("only the memory of an ampi.ndarray can carry derivatives")
        if storage.tape is not self.reference:
            self.is_active(array)  # raises if an outer tape would lose it
        self.set_active(storage)
        if storage.guard:
            handouts.settle(storage)

    def set_active(self, storage: Storage) -> None:
        """Make a storage active, which no outer tape would lose."""
        if self.accesses is not None:
            self.accesses.activate(storage, self.reference)
        storage.tape = self.reference

    def deactivate(self, array: np.ndarray) -> None:
        """Make the memory of an array that constants have overwritten passive, if the array is all of its storage."""
        storage = storage_of(array)
        whole = array.flags.forc and storage is not None and array.nbytes == storage.nbytes and not storage.volatile
        if whole and storage.tape is self.reference:
            storage.tape = None

    def need(self, array: np.ndarray) -> np.ndarray:
        """Note that a record's adjoint needs the values that an array has now.

        Returns
        -------
        numpy.ndarray
            A plain array that holds these values whenever the record's adjoint runs: a view if the memory is tracked or
            read-only, otherwise a copy (a write into a plain array, or into a window's memory from another rank, could
            not be seen), shared between equal values.
        """
        view = plain(array)
        storage = storage_of(array)
        if storage is None or storage.volatile or storage.guard:
            if storage is None or storage.volatile or storage.guard == LENT:
                return self.constant(view, place_of(view)) if may_change(view) else view
            self._noted.append(handouts.Note(view))
        self.save_before_writes(view, storage)
        return view

    def save_before_writes(self, view: np.ndarray, storage: Storage) -> None:
        """Note that the values of tracked memory are to be saved before this rank overwrites them.

        Writes by other ranks into the memory of a window remain unseen.
        """
        if storage.swapped_by:
            refuse_swapped(storage, view)
        extent = Extent(view)
        with needs_lock:
            needs = storage.needs.get(self.needer)
            if needs is None:
                needs = first_need(storage, self.needer)
            needs.enter(extent)

    def need_again(self, need: Need) -> None:
        """`need` for an array whose extent is known."""
        reference, extent = self.needer, need.extent
        if extent.listed is reference:
            return
        with needs_lock:
            needs = need.storage.needs.get(reference)
            if needs is None:
                needs = first_need(need.storage, reference)
            need.extent = listed = needs.enter(extent)
            listed.listed = reference

    def undo_of(self, storage: Storage, array: np.ndarray, extent: Extent, key: Any) -> Undo:
        """Return the undo of a write that is about to be made."""
        return Undo(storage, array, extent, key)

    def append(
        self,
        adjoint: Adjoint | Callable[[Sweep], None] | None,
        undo: Sequence[Undo] = (),
        created: Sequence[np.ndarray] = (),
    ) -> None:
        """Append the record of an operation that has just run.

        Parameters
        ----------
        adjoint : Adjoint or function
            ``adjoint(sweep)`` applies the operation's adjoint to the shadows.  None if there is only memory to undo.
        undo : list of Undo
            From `overwrite`.
        created : sequence of ampi.ndarray
            Results whose memory the operation made: their shadows are dropped when the sweep visits this record.
        """
        if self.before_append is not None:
            self.before_append()
        storages = tuple([s for s in map(storage_of, created) if s is not None]) if created else ()
        self.append_record(Record(adjoint, undo, storages))

    def append_start(self, adjoint: Adjoint | None, undo: Sequence[Undo] = ()) -> None:
        """Append the record of the start of a communication, without calling ``before_append``."""
        self.append_record(Record(adjoint, undo or (), ()))

    def record_in(self, records: list[Any]) -> None:
        """Keep the records in a list of another class from the beginning, one for each operation."""
        self.records = records
        self.pen = None
        self.append_record = self._noting(records.append) if checks.is_full() else records.append

    def observe(self, observer: Any) -> None:
        """Pass records to an observer from now on, which appends them."""
        self.observer = observer
        self.pen = None
        self.append_record = self._noting(observer.append) if checks.is_full() else observer.append

    def _noting(self, append: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a function that appends records, and keeps notes of the memory that they need."""

        def append_noted(record: Any) -> None:
            if self._noted:
                self.notes[id(record)] = self._noted
                self._noted = []
            append(record)

        return append_noted

    def append_unobserved(self, record: Record) -> None:
        """Append a record that is not one of this tape's own operations; observers do not see it."""
        self.records.append(record)

    def appender(self) -> Callable[[Any], None]:
        """Return `append_unobserved` as a function that does not keep the tape alive."""
        return self.records.append

    def append_output(self, output: Output) -> None:
        """Append the record of values that leave the program."""
        self.append(output)
        self.outputs.append(output)

    def absorb(self, start: int) -> tuple[list[Undo], list[Zero]]:
        """Remove the records from index ``start`` on, made inside `passive`, to make them part of one record.

        Returns
        -------
        undo : list of Undo
            What all of them overwrote.
        overwritten : list of Zero
            Adjoints of overwriting active memory, in the order of the writes.
        """
        records = self.records[start:]
        del self.records[start:]
        undo = [action for record in records for action in record.undo]
        return undo, [record.adjoint for record in records if isinstance(record.adjoint, Zero)]

    def at_sweep_start(self, key: Any, callback: Callable[[Sweep], None]) -> None:
        """Have ``callback(sweep)`` called at the beginning of every sweep (the ranks agree on messages there)."""
        self.sweep_starts.setdefault(key, callback)

    # ------------------------------------------------------------------------------------------------- internals

    def watched(self, x: Any, call: str = "gradient(y, x)") -> Region:
        """Return the region of an independent; raise if it was not watched."""
        if isinstance(x, TrackedArray) or (is_apart(x) and is_tracked(x)):
            found = self.watches.get(region_at(x).place)
            if found is not None:
                return found[0]
        raise TapeError(
            f"tape.{call}: x is not an array that tape.watch returned; "
            "write `x = tape.watch(x0)` inside the tape and pass that x"
        )
