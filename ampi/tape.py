"""The tape: a log of operations, an undo log of overwritten memory, and the sweeps over both.

How floor 1 records an operation (a NumPy call, a kernel, an MPI operation)::

    tape = current()                      # None: nothing records, just do it (but see `overwrite`)
    x = tape.need(x)                      # the adjoint wants the value x has now
    undo = overwrite(y)                   # y is about to be overwritten: saves the old bytes if a record needs them
    ... the primal ...
    tape.append(adjoint, undo, writes=[y])

A record's ``adjoint(sweep)`` runs with the primal memory as it was when the operation ran: before any of its writes.
It takes the adjoints of what was overwritten with ``sweep.take(region)`` and adds to those of what was read with
``sweep.add(region, value)`` or in place through ``sweep.shadow(region)``.

The idea of saving only what is "to be recorded" (TBR) is that of Hascoët, Naumann and Pascual, "To be recorded analysis
in reverse-mode automatic differentiation" (2005), done here at run time by region.
"""

from __future__ import annotations

import math
import threading
import warnings
import weakref
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from . import checks, handouts
from .errors import ActivityError, ActivityWarning, AmpiError, TapeError
from .handouts import where_called as where_called  # for the floors above
from .memory import (
    LENT,
    SLOT,
    Extent,
    Region,
    Storage,
    TrackedArray,
    address_of,
    carries_derivatives,
    copied,
    is_power_of_two,
    plain,
    region_of,
    same_bytes,
    storage_of,
    tracked_copy,
    zeroed,
)
from .needs import Needs
from .recording import (
    PARENT,
    Scope,
    actively,
    current,
    enter,
    is_around,
    is_passive,
    leave,
    open_tapes,
    opened,
    passive,
    passively,
    recording,
    set_bystander,
    this_thread,
    would_lose,
)

__all__ = ["Tape", "current", "living", "open_tapes", "opened", "overwrite", "passive", "recording"]

_needs_lock = threading.RLock()  # of all storages: threads may use parts of one
_swap_lock = threading.RLock()  # of what sweeps do to memory

living: set[weakref.ref[Tape]] = set()  # all tapes that exist; while it is empty nobody needs what is overwritten
at_opening: list[Callable[[Tape], None]] = []
"""For the floors above: called when a tape begins to record."""
at_closing: list[Callable[[Tape], None]] = []
"""For the floors above: called when a tape ends to record."""

MOST_PENDING = 16  # undos of one storage that a sweep puts off


class Undo:
    """Values that were overwritten: `swap` exchanges them with what the memory holds."""

    __slots__ = ("extent", "key", "saved", "storage", "view")

    def __init__(self, storage: Storage, view: np.ndarray, extent: Extent, key: Any = None) -> None:
        self.storage = storage
        self.view = view
        self.extent = extent
        self.key = key
        self.saved = self._present()

    def _present(self) -> np.ndarray:
        return copied(self.view) if self.key is None else self.view[self.key]

    def swap(self) -> None:
        """Exchange saved and present values."""
        present = self._present()
        self.view[... if self.key is None else self.key] = self.saved
        self.saved = present

    def holds(self, view: np.ndarray, extent: Extent) -> np.ndarray | None:
        """The saved values of an array that lies in what was overwritten; None if they are not to be had as a view."""
        if self.key is not None or not self.extent.covers(extent):
            return None
        if self.extent.pattern == extent.pattern and view.dtype == self.saved.dtype:
            found = self.saved
        elif self.extent.dense and self.saved.flags.c_contiguous and min(self.view.strides, default=1) > 0:
            offset = address_of(view) - self.extent.low
            found = np.ndarray(view.shape, view.dtype, self.saved.reshape(-1).view(np.uint8), offset, view.strides)
        else:
            return None
        if not view.flags.writeable:
            found = found[...]
            found.flags.writeable = False
        return found


class Record:
    """One operation: how to undo its writes and how to apply its adjoint.

    An adjoint with an attribute ``reads_memory = False`` does not read the program's arrays, or only through
    `Sweep.value` and after `Sweep.put_back`; others find all memory as it was when the operation ran.  The arrays in an
    attribute ``arrays_after`` (from `Tape.need`, when the operation had run) it finds in `Sweep.after`.
    """

    __slots__ = ("adjoint", "created", "undo")

    def __init__(
        self, adjoint: Callable[[Sweep], None] | None, undo: Sequence[Undo], created: Sequence[Storage]
    ) -> None:
        self.adjoint = adjoint
        self.undo = undo
        self.created = created


class IsRecord:
    """What is a record by itself, and its own adjoint: a tape has thousands of messages and of calls of kernels."""

    __slots__ = ()
    undo: Sequence[Undo] = ()
    created: Sequence[Storage] = ()

    @property
    def adjoint(self) -> Any:
        """Itself, to be called in the sweep."""
        return self


def overwrite(*arrays: np.ndarray, key: Any = None) -> list[Undo]:
    """To be called before the memory of arrays is overwritten by one operation, whether or not a tape records.

    Saves the old bytes for every tape that needs them.

    Parameters
    ----------
    *arrays : numpy.ndarray
        What is overwritten as a whole (pass views).
    key : tuple of integer and boolean arrays, optional
        Only ``array[key]`` is overwritten.  The key must not change afterwards.

    Returns
    -------
    list of Undo
        What the innermost open tape must undo; goes into the operation's record.  (Nothing is returned for other
        tapes: they have got a record of their own.)
    """
    undo: list[Undo] = []
    for array in arrays:
        storage = storage_of(array)
        if storage is None:
            continue
        if storage.swapped_by:
            _refuse_swapped(storage, array)
        if storage.guard:
            handouts.unsettle(storage, array if key is None else None)
        if storage.needs:
            with _needs_lock:
                _save(storage, plain(array), key, undo)
    if open_tapes and is_passive():
        _passive_overwrite(arrays, key, undo)
        return []
    return undo


def _passive_overwrite(arrays: Sequence[np.ndarray], key: Any, undo: list[Undo]) -> None:
    """Inside `passive`: whatever tape the arrays carry derivatives on, they do not any more."""
    inner = opened()
    lost: dict[Tape | None, list[Region]] = {}
    for array in arrays:
        storage = storage_of(array)
        tape = None if storage is None or storage.tape is None else storage.tape()
        if tape is not None and not tape.closed:
            lost.setdefault(tape, []).append(region_of(array))
    for tape, regions in lost.items():
        if tape is not inner:
            tape._records.append(Record(Zero(regions, key), (), ()))  # type: ignore[union-attr]
    zeroed = lost.get(inner)
    if inner is not None and (undo or zeroed):
        if inner.before_append is not None:
            inner.before_append()
        inner.append_record(Record(Zero(zeroed, key) if zeroed else None, undo, ()))


def _save(storage: Storage, array: np.ndarray, key: Any, undo: list[Undo]) -> None:
    extent = Extent(array)
    inner = opened()
    for reference, needs in list(storage.needs.items()):
        tape = reference()
        if tape is None:
            del storage.needs[reference]
            continue
        if extent.pattern not in needs and not needs.meets(extent):
            continue
        saved = Undo(storage, array, extent, key)
        tape.saved_bytes += saved.saved.nbytes
        if key is None:
            needs.drop(extent)
            if not needs and needs.is_empty():
                del storage.needs[reference]
        if tape is inner:
            undo.append(saved)
        else:
            tape._records.append(Record(None, [saved], ()))


def _first_need(storage: Storage, reference: Any) -> Needs:
    """What a tape needs of a storage: nothing so far."""
    found = storage.needs
    if is_power_of_two(len(found)):
        for dead in [other for other in found if other() is None]:
            del found[dead]
    needs = found[reference] = Needs()
    return needs


def keep_needed(array: np.ndarray) -> None:
    """Save the values that records need of an array into which others may write unseen from now on."""
    storage = storage_of(array)
    if storage is not None and storage.needs:
        undo: list[Undo] = []
        with _needs_lock:
            _save(storage, plain(array), None, undo)
        if undo:
            opened().append(None, undo)


def _refuse_swapped(storage: Storage, array: np.ndarray) -> None:
    """Raise if a sweep of another thread has put earlier values into an array."""
    extent = Extent(array)
    for sweep in storage.swapped_by:
        if sweep.thread != get_ident() and sweep.has_swapped(storage, (extent,)):
            raise TapeError(
                f"{where_called()}: an array of shape {array.shape} is used by thread "
                f"'{threading.current_thread().name}', while a sweep of another thread has put it back to earlier "
                "values; wait until that gradient is there, or let the threads work on copies"
            )


class Need:
    """Where an array lies whose values are needed again and again."""

    __slots__ = ("extent", "storage")

    def __init__(self, storage: Storage, view: np.ndarray) -> None:
        self.storage = storage
        self.extent = Extent(view)


class Tape:
    """Records what this rank computes and communicates, for `gradient`.

    Use it as a context manager on every rank of the program::

        with ampi.Tape() as tape:
            x = tape.watch(x0)
            y = program(x)
        x_bar = tape.gradient(y, x)

    A tape can be swept as often as wanted, with different outputs and seeds.

    Attributes
    ----------
    saved_bytes : int
        Size of all old values that were saved.
    kept_bytes : int
        Size of what kernels, as they ran, saved for their adjoints.
    outputs : list of Output
        What was written to files of active arrays, in order: `gradient` takes them as outputs.
    at_refusal : callable or None
        For the floors above: called with the error that keeps a sweep from beginning on this rank.
    before_append : callable or None
        For the floors above: called before the record of any operation is appended (communication that has ended
        unseen must have its record before those of operations that use what came).
    append_record : callable
        Appends a record, without calling ``before_append``.
    observer : object or None
        For the floors above: has ``append(record)``, which takes the place of the tape's own.
    latest : tuple
        For the floors above: the communicator of the latest message, its log, and all logs.
    closed : bool
    thread, thread_name, owner
        Of the thread that opened it: identifier, name, and what `this_thread` gives; alone what it does is recorded.
    scope, inner_scopes : Scope or None, set of Scope
        Where it records: that of its block, and what is left of those of tapes that were opened and closed inside.
    """

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._watches: dict[tuple, tuple[Region, int]] = {}  # by place, with the number of other records before it
        self._reference = weakref.ref(self, living.discard)
        living.add(self._reference)
        self._copies: dict[tuple, np.ndarray] = {}
        self.outputs: list[Output] = []
        self._sweep_starts: dict[Any, Callable[[Sweep], None]] = {}
        self.closed = False
        self.thread = 0
        self.thread_name = ""
        self.owner: object = None
        self.scope: Scope | None = None
        self.inner_scopes: Collection[Scope] = ()
        self._sweep_lock = threading.Lock()
        self.at_refusal: Callable[[BaseException], None] | None = None
        self.before_append: Callable[[], None] | None = None
        self.append_record: Callable[[Any], None] = self._records.append
        self._noted: list[handouts.Note] = []  # of the record that is appended next
        self._notes: dict[int, list[handouts.Note]] = {}  # by records' ids
        if checks.is_full():
            self.append_record = self._noting(self._records.append)
        self.observer: Any = None
        self.latest: tuple[Any, Any, Any] = None, None, None
        self.saved_bytes = 0
        self.kept_bytes = 0

    def __enter__(self) -> Tape:
        if self.thread:
            raise TapeError("a tape records once; make a new ampi.Tape()")
        self.thread, self.owner = get_ident(), this_thread()
        self.thread_name = threading.current_thread().name
        enter(self)
        for callback in tuple(at_opening):  # one may take itself away
            callback(self)
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
        """This is a child process: what it does is no part of what the tape records."""
        self.thread, self.owner = PARENT, None
        self.thread_name = f"{self.thread_name} of the parent process"

    def __len__(self) -> int:
        return len(self._records)

    # ------------------------------------------------------------------------------------------- for the user

    def watch(self, x: Any) -> TrackedArray:
        """Declare an independent.

        Parameters
        ----------
        x : array_like of float or complex
            A plain array or a scalar is copied into a new `ampi.ndarray` and left untouched; an `ampi.ndarray` is
            itself declared, with respect to the value it has here.

        Returns
        -------
        ampi.ndarray
            What to compute with.

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
        self.is_active(x)  # raises if an outer tape would lose it
        array = x if isinstance(x, TrackedArray) else tracked_copy(x)
        if not carries_derivatives(array.dtype):
            raise ActivityError(
                f"cannot differentiate with respect to an array of dtype {array.dtype}; "
                "convert it to a floating-point or complex dtype before tape.watch"
            )
        region = region_of(array)
        place = region.place
        if place in self._watches:
            self._require_same_value(place)
            return array
        self.activate(array)
        self._watches[place] = region, len(self._records) - len(self._watches)
        self.append_record(Record(_Watch(region, array is not x), (), ()))
        return array

    def _require_same_value(self, place: tuple) -> None:
        """Raise unless nothing was recorded since a region was watched."""
        _, others = self._watches[place]
        if len(self._records) - len(self._watches) != others:
            raise TapeError(
                "tape.watch(x): this array is watched already, and tape.gradient(y, x) could not tell its earlier "
                "value from the present one; go on with a copy: `x = tape.watch(x.copy())`"
            )

    def gradient(self, y: Any, x: Any, seed: Any = None) -> Any:
        """One reverse sweep: the adjoint of ``x`` for a seed on ``y``, summed over all ranks' outputs.

        Collective over the ranks that communicated while the tape recorded: each of them must sweep, even one that has
        neither output nor input.

        Parameters
        ----------
        y : ampi.ndarray, Output, tuple or list of them, or None
            Outputs: the memory of these arrays as it was when the tape was closed, or what was written to a file
            (from ``tape.outputs``; without being named here it contributes nothing).  None on a rank without output.
        x : ampi.ndarray, or a tuple or list (nested as you like) of them, or None
            Watched arrays.
        seed : array_like, or a tuple like ``y``
            Adjoint of ``y``, of y's shape; 1.0 by default, for a ``y`` of one element.

        Returns
        -------
        numpy.ndarray, or the structure of ``x``
            For each ``x``: Σ over ranks ⟨seed, ∂y/∂x⟩, of x's shape and dtype; for complex data in the real inner
            product Re⟨x̄, ẋ⟩.

        Raises
        ------
        TapeError
            An ``x`` was not watched, a ``y`` is not tracked memory, or a seed does not fit.

        Warns
        -----
        ActivityWarning
            A ``y`` carries no derivative on this tape.
        """
        sweep = Sweep(self)
        try:
            sweep.wanted = [self._watched(leaf) for leaf in _leaves(x)]
            _plant(sweep, y, seed)
            self._warn_of_constants(y)
        except Exception as error:
            self.refuse(error)
            raise
        sweep.run()
        found = iter(sweep.results)
        return _like(x, found)

    def refuse(self, error: BaseException) -> None:
        """No sweep begins on this rank because of an error: tell the other ranks, which may wait for it."""
        if self.at_refusal is not None:
            self.at_refusal(error)

    def _warn_of_constants(self, y: Any) -> None:
        if any(not isinstance(output, Output) and storage_of(output).tape is None for output in _leaves(y)):
            warnings.warn(
                "tape.gradient(y, x): a y carries no derivative on this tape, so it contributes nothing; was it "
                "computed after the tape was closed? (Pass None on a rank without output.)",
                ActivityWarning,
                stacklevel=3,
            )

    # ------------------------------------------------------------------------------- for those who record operations

    def is_active(self, array: Any) -> bool:
        """Whether the memory of an array carries derivatives on this tape."""
        if not isinstance(array, np.ndarray):
            return False
        storage = storage_of(array)
        if storage is None or storage.tape is None:
            return False
        if storage.tape is self._reference:
            if storage.guard:
                handouts.look(storage, array)
            return True
        other = storage.tape()
        if other is not None and not other.closed and would_lose(other):
            raise _lost(array, other)
        return False

    def activate(self, array: np.ndarray) -> None:
        """Memory of a (tracked) array carries derivatives from now on."""
        storage = storage_of(array)
        if storage is None:
            raise ActivityError("only the memory of an ampi.ndarray can carry derivatives")
        storage.tape = self._reference
        if storage.guard:
            handouts.settle(storage)

    def deactivate(self, array: np.ndarray) -> None:
        """The array was overwritten by constants: its memory is passive again if the array is all of its storage."""
        storage = storage_of(array)
        whole = array.flags.forc and storage is not None and array.nbytes == storage.nbytes and not storage.volatile
        if whole and storage.tape is self._reference:
            storage.tape = None

    def need(self, array: np.ndarray) -> np.ndarray:
        """Say that a record's adjoint wants the values an array has now.

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
                return self.constant(view, place_of(view)) if _may_change(view) else view
            self._noted.append(handouts.Note(view))
        if storage.swapped_by:
            _refuse_swapped(storage, view)
        extent = Extent(view)
        with _needs_lock:
            needs = storage.needs.get(self._reference)
            if needs is None:
                needs = _first_need(storage, self._reference)
            needs.setdefault(extent.pattern, extent)
        return view

    def constant(self, view: np.ndarray, place: tuple[Any, ...]) -> np.ndarray:
        """The values that a plain array at a place has now: a copy, shared between equal values."""
        copy = self._copies.get(place)
        present = view if view.flags.forc else view.copy(order="K")
        if copy is None or not same_bytes(copy, present):
            copy = self._copies[place] = view.copy(order="K") if present is view else present
        return copy

    def need_again(self, need: Need) -> None:
        """`need` for an array of which it is known where it lies."""
        reference, extent = self._reference, need.extent
        if extent.listed is reference:
            return
        with _needs_lock:
            needs = need.storage.needs.get(reference)
            if needs is None:
                needs = _first_need(need.storage, reference)
            need.extent = listed = needs.setdefault(extent.pattern, extent)
            listed.listed = reference

    @property
    def reference(self) -> Any:
        """A weak reference, which `Storage.tape` of active memory is."""
        return self._reference

    def append(
        self,
        adjoint: Callable[[Sweep], None] | None,
        undo: Sequence[Undo] = (),
        created: Sequence[np.ndarray] = (),
    ) -> None:
        """Append the record of an operation that has just run.

        Parameters
        ----------
        adjoint : callable
            ``adjoint(sweep)`` applies the operation's adjoint to the shadows.  None if there is only memory to undo.
        undo : list of Undo
            From `overwrite`.
        created : sequence of ampi.ndarray
            Results whose memory the operation made: their shadows end where the sweep passes this record.
        """
        if self.before_append is not None:
            self.before_append()
        storages = tuple([s for s in map(storage_of, created) if s is not None]) if created else ()
        self.append_record(Record(adjoint, undo, storages))

    def append_start(self, adjoint: Callable[[Sweep], None] | None, undo: Sequence[Undo] = ()) -> None:
        """Append the record of the start of a communication, without calling ``before_append``."""
        self.append_record(Record(adjoint, undo or (), ()))

    def observe(self, observer: Any) -> None:
        """Have an observer append the records from now on."""
        self.observer = observer
        self.append_record = self._noting(observer.append) if checks.is_full() else observer.append

    def _noting(self, append: Callable[[Any], None]) -> Callable[[Any], None]:
        """A way to append records that keeps the notes of what they need."""

        def append_noted(record: Any) -> None:
            if self._noted:
                self._notes[id(record)] = self._noted
                self._noted = []
            append(record)

        return append_noted

    def append_output(self, output: Output) -> None:
        """Append the record of something that leaves the program."""
        self.append(output)
        self.outputs.append(output)

    def absorb(self, start: int) -> tuple[list[Undo], list[Zero]]:
        """Take back the records from number ``start`` on, made inside `passive`, to be part of one record.

        Returns
        -------
        undo : list of Undo
            What all of them overwrote.
        overwritten : list of Zero
            Adjoints of overwriting active memory, in the order of the writes.
        """
        records = self._records[start:]
        del self._records[start:]
        undo = [action for record in records for action in record.undo]
        return undo, [record.adjoint for record in records if isinstance(record.adjoint, Zero)]

    def at_sweep_start(self, key: Any, callback: Callable[[Sweep], None]) -> None:
        """Have ``callback(sweep)`` called once at the beginning of every sweep (the ranks agree on messages there)."""
        self._sweep_starts.setdefault(key, callback)

    # ------------------------------------------------------------------------------------------------- internals

    def _watched(self, x: Any) -> Region:
        if isinstance(x, TrackedArray):
            found = self._watches.get(region_of(x).place)
            if found is not None:
                return found[0]
        raise TapeError(
            "tape.gradient(y, x): x is not an array that tape.watch returned; "
            "write `x = tape.watch(x0)` inside the tape and pass that x"
        )


class Bystander(Tape):
    """What `current` is in a thread that has no tape while another thread, or another task, has one.

    It records nothing, and on it nothing is active: to use what carries derivatives on the other's tape is an error.
    """

    def __init__(self) -> None:
        super().__init__()
        living.discard(self._reference)

    def append(self, *arguments: Any, **keywords: Any) -> None:
        """Nothing is recorded."""

    append_start = append

    def need(self, array: np.ndarray) -> np.ndarray:
        """Nothing is needed."""
        return array

    def watches_over(self, array: np.ndarray) -> bool:
        """Whether an array carries derivatives on the tape of somebody else."""
        storage = storage_of(array)
        tape = None if storage is None or storage.tape is None else storage.tape()
        return tape is not None and not tape.closed


set_bystander(Bystander())


def _lost(array: np.ndarray, tape: Tape) -> AmpiError:
    """The error for an array that carries derivatives on an open tape which does not record here."""
    what = f"an array of shape {array.shape} and dtype {array.dtype}"
    if is_around(tape):
        return TapeError(
            f"{what} that carries derivatives on an outer tape is used inside an inner tape, where they would be lost; "
            "pass ampi.value(x) if it is a constant there"
        )
    here = threading.current_thread().name
    if tape.thread == get_ident():
        who, instead = "another task of this thread", "start this task inside of the tape"
    else:
        who, instead = f"thread '{tape.thread_name}'", f"let thread '{tape.thread_name}' do it"
    return ActivityError(
        f"{where_called()}: {what} carries derivatives on a tape of {who}, and is used by thread '{here}', where they "
        f"would be lost; {instead}, or differentiate here what this thread does (`y, pullback = ampi.vjp(f, "
        "ampi.value(x))`, which ampi.custom_vjp makes a part of the other tape), or pass ampi.value(x) if it is a "
        "constant here"
    )


class Output:
    """Active values that left the program while a tape recorded; where a seed may come in.

    Attributes
    ----------
    operation, target, where : str
        What wrote them, to what, and on which source line.
    shape : tuple of int or None
        Of the seed: the array's, or flat if only elements of it were written.  None if it cannot carry a seed.
    """

    __slots__ = ("buffer", "operation", "order", "shape", "target", "where")
    reads_memory = False

    def __init__(
        self, buffer: Any, operation: str, target: str, where: str, shape: tuple[int, ...] | None, order: str = "C"
    ) -> None:
        self.buffer = buffer
        self.operation = operation
        self.target = target
        self.where = where
        self.shape = shape
        self.order: Any = order  # in which the array's elements were written

    def __repr__(self) -> str:
        return f"<Output of shape {self.shape} by {self.operation} to {self.target}, {self.where}>"

    def __call__(self, sweep: Sweep) -> None:
        """What was written gets its seed."""
        seed = sweep.state.get(self)
        if seed is not None:
            self.buffer.add(sweep, seed.ravel(self.order))


class Sweep:
    """One reverse sweep of a tape: holds the shadows.

    Attributes
    ----------
    tape : Tape
    state : dict
        What the floors above keep for the duration of a sweep (requests in flight, what the ranks agreed on).
    guards : dict
        For volatile storages: called each time before their adjoint is touched.
    after : list of numpy.ndarray
        The values that the present adjoint's ``arrays_after`` had when its operation had run.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.thread = get_ident()
        self.state: dict[Any, Any] = {}
        self.guards: dict[Storage, Callable[[], None]] = {}
        self.after: list[np.ndarray] = []
        self.wanted: list[Region] = []
        self.results: list[np.ndarray] = []
        self._shadows: dict[Storage, np.ndarray] = {}
        self._lent: set[Storage] = set()  # whose shadow is memory of the user's
        self._views: dict[Storage, dict[Region, np.ndarray]] = {}  # of shadows, by `shadow_again`
        self._kept: set[Storage] = set()
        self._pending: dict[Storage, list[Undo]] = {}  # of records passed, latest first: memory is still as after them
        self._swapped: list[Undo] = []
        self._claimed: list[Storage] = []  # of the undos that are swapped
        self._given_away: set[Storage] = set()
        self._ends: list[Callable[[BaseException | None], None]] = []

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have ``callback(error)`` called when the sweep has passed all records (None) or stops with an error.

        The last one comes first.
        """
        self._ends.append(callback)

    def has_shadow(self, region: Region) -> bool:
        """Whether anything has been added to the region's storage yet; if not, its adjoint is zero."""
        return region.storage in self._shadows

    def shadow(self, region: Region) -> np.ndarray:
        """The region's adjoint, in place; zeros at first use."""
        return region.view(self.block(region.storage))

    def shadow_again(self, region: Region) -> np.ndarray:
        """`shadow` for a region that many records have in common."""
        storage = region.storage
        views = self._views.get(storage)
        if views is None or storage.volatile:
            views = self._views[storage] = {}
        view = views.get(region)
        if view is None:
            view = views[region] = self.shadow(region)
        return view

    def block(self, storage: Storage) -> np.ndarray:
        """The adjoint of all of a storage, as bytes in place; zeros at first use."""
        if storage.volatile and storage in self.guards:
            self.guards[storage]()
        block = self._shadows.get(storage)
        if block is None:
            # Bytes of zero are the number zero in every dtype that a region of this storage may have.
            size = storage.nbytes * SLOT if storage.packed else storage.nbytes
            block = self._shadows[storage] = zeroed(size)
        elif storage in self._lent:
            block = block.copy()
            self.adopt(storage, block)
        return block

    def reading(self, region: Region) -> np.ndarray:
        """The region's adjoint, to be read and not to be kept."""
        block = self._shadows.get(region.storage)
        return self.shadow(region) if block is None or region.storage.volatile else region.view(block)

    def begin_anew(self, region: Region, together: Sequence[Region]) -> np.ndarray | None:
        """A new shadow that holds anything, for an adjoint that sets all of it; None unless the region is all of a
        storage to which nothing has been added.  ``together``: the regions whose shadows the adjoint takes."""
        storage = region.storage
        if storage in self._shadows or not region.is_all_ordinary():
            return None
        for other in together:
            if other.storage is storage and other is not region:
                return None
        block = np.empty(storage.nbytes, np.uint8)
        shadow = region.view(block)
        if not shadow.flags.forc:  # each element once
            return None
        self.adopt(storage, block)
        return shadow

    def end(self, region: Region) -> None:
        """The region's storage was passive before the operation of the present record: no earlier one asks for its
        adjoint."""
        if region.storage.volatile or region.storage.elsewhere:
            self.zero(region)  # others know the shadow, and where it is
        else:
            self.forget(region.storage)

    def forget(self, storage: Storage) -> None:
        """Drop a storage's shadow, which is zero from here on."""
        self._shadows.pop(storage, None)
        self._views.pop(storage, None)
        self._lent.discard(storage)

    def value(self, array: np.ndarray) -> np.ndarray:
        """The values that an array (from `Tape.need`) had when the operation of this record ran: for an adjoint with
        ``reads_memory = False``, which finds memory in a later state.

        They are read from what was saved, where that is possible, and the memory put back otherwise.
        """
        storage = storage_of(array)
        pending = self._pending.get(storage) if storage is not None else None
        if not pending:
            return array
        extent = Extent(array)
        for undo in reversed(pending):
            if undo.extent.overlaps(extent):
                saved = undo.holds(array, extent)
                if saved is not None:
                    return saved
                self._undo(storage)
                break
        return array

    def _values_after(self, arrays: Sequence[np.ndarray], undos: Sequence[Undo]) -> list[np.ndarray]:
        """The values that arrays had after the operation of the next record, which has these undos."""
        found = []
        for array in arrays:
            values = self.value(array)
            if values is array and undos:
                extent = Extent(array)
                if any(undo.extent.overlaps(extent) for undo in undos):
                    values = array.copy(order="K")
            found.append(plain(values))
        return found

    def _verify(self, notes: Sequence[handouts.Note], after: Sequence[np.ndarray] | None) -> None:
        """Compare what a record needs with what it needed; ``after``: what it needs as its operation left it."""
        if notes:
            self.put_back(list(self._pending))
        for note in notes:
            if not any(note.view is view for view in after or ()):
                note.verify()

    def _defer(self, undos: Sequence[Undo]) -> None:
        """Note that these undos are to be made before memory is read."""
        for undo in reversed(undos):
            pending = self._pending.setdefault(undo.storage, [])
            if undo.key is None:
                pending[:] = [later for later in pending if not undo.extent.covers(later.extent)]
            pending.append(undo)
            if len(pending) > MOST_PENDING:
                self._undo(undo.storage)

    def put_back(self, storages: Iterable[Storage | None]) -> None:
        """For an adjoint with ``reads_memory = False`` that is about to read the memory of these storages: what they
        held when the operation of this record ran."""
        for storage in storages:
            if storage in self._pending:
                self._undo(storage)

    def _undo(self, storage: Storage) -> None:
        """Put a storage's memory back to what it was when the operation of the present record ran."""
        with _swap_lock:
            if storage.swapped_by != (self,):
                self._claim(storage)
            for undo in self._pending.pop(storage):
                undo.swap()
                self._swapped.append(undo)

    def _claim(self, storage: Storage) -> None:
        """This sweep is about to put earlier values into memory: no other one may have done so."""
        extents = [undo.extent for undo in self._pending[storage]]
        for other in storage.swapped_by:
            if other.thread != self.thread and other.has_swapped(storage, extents):
                raise _at_once()
        for other in _sweeping:
            if other.thread != self.thread and other.wants(storage, extents):
                raise _at_once()
        if self not in storage.swapped_by:
            storage.swapped_by = (*storage.swapped_by, self)
            self._claimed.append(storage)

    def has_swapped(self, storage: Storage, extents: Sequence[Extent]) -> bool:
        """Whether this sweep has put earlier values into memory that overlaps any of these parts of a storage."""
        mine = [undo.extent for undo in self._swapped if undo.storage is storage]
        return any(extent.overlaps(other) for extent in extents for other in mine)

    def wants(self, storage: Storage, extents: Sequence[Extent]) -> bool:
        """Whether this sweep may read the present values of any of these parts of a storage."""
        with _needs_lock:
            needs = storage.needs.get(self.tape._reference)
            return needs is not None and any(needs.meets(extent) for extent in extents)

    def _begin(self) -> None:
        """From here on no sweep of another thread may put earlier values into what this one reads."""
        with _swap_lock:
            for other in _sweeping:
                for undo in other._swapped if other.thread != self.thread else ():
                    if self.wants(undo.storage, (undo.extent,)):
                        error = _at_once()
                        self.tape.refuse(error)
                        raise error
            _sweeping.append(self)

    def _restore(self) -> None:
        """Put all memory back to what it was before the sweep."""
        while self._swapped:
            self._swapped.pop().swap()
        with _swap_lock:
            while self._claimed:
                storage = self._claimed.pop()
                storage.swapped_by = tuple(other for other in storage.swapped_by if other is not self)
            if self in _sweeping:
                _sweeping.remove(self)

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """Have the adjoint of a storage in a given block of bytes."""
        self._shadows[storage] = block
        self._views.pop(storage, None)
        self._lent.discard(storage)

    def take(self, region: Region) -> np.ndarray | None:
        """The adjoint of memory that the operation overwrote: a copy, C-ordered; the shadow becomes zero there.

        None stands for zeros where nothing has been added to the storage.
        """
        if region.storage not in self._shadows:
            return None
        shadow = self.shadow(region)
        taken = shadow.copy()
        shadow[...] = 0
        return taken

    def add(self, region: Region, value: Any) -> None:
        """Add to the adjoint of memory that the operation read.

        The value has the region's shape (or broadcasts to it); the imaginary part is dropped where the region is real.
        Elements that the region names more than once (a broadcast array, sliding windows) get the sum.
        """
        if region.dtype.names is not None:
            for name in region.dtype.names:
                if carries_derivatives(region.dtype[name].base):
                    self.add(region.field(name), value[name])
            return
        shadow = self.shadow(region)
        if region.dtype.kind == "f" and np.iscomplexobj(value):
            value = np.real(value)
        if shadow.flags.forc or not _repeats_elements(shadow):
            np.add(shadow, value, out=shadow, casting="same_kind")
        else:
            _add_repeated(shadow, self._shadows[region.storage], np.broadcast_to(value, shadow.shape))

    def begin(self, region: Region, value: np.ndarray) -> None:
        """`add`, of a value that stays as it is until the sweep has ended; without a pass over memory where the region
        is all of a storage to which nothing has been added."""
        storage = region.storage
        if storage in self._shadows or not region.is_all_ordinary():
            self.add(region, value)
            return
        if _lies_like(value, region) and storage_of(value) is None:  # tracked memory changes in a sweep
            self.adopt(storage, np.ndarray(storage.nbytes, np.uint8, value))
            self._lent.add(storage)
            return
        if np.can_cast(value.dtype, region.dtype, "same_kind"):
            block = np.empty(storage.nbytes, np.uint8)
            shadow = region.view(block)
            if shadow.flags.forc:  # each element once
                shadow[...] = value
                self.adopt(storage, block)
                return
        self.add(region, value)

    def zero(self, region: Region, key: Any = ...) -> None:
        """The adjoint of memory overwritten by a constant (of ``region[key]`` only, where a key is given)."""
        if region.storage in self._shadows:
            self.shadow(region)[key] = 0

    def result(self, region: Region) -> np.ndarray:
        """The adjoint of an independent at its place on the tape: in place, if nothing will be added to it."""
        shadow = self.shadow(region)
        return shadow if region.storage in self._given_away else shadow.copy()

    def _last_of_all(self) -> set[Storage]:
        """The storages whose shadows are results as they are: declared independent, as a whole and once, before
        anything else was recorded."""
        watched = Counter(region.storage for region, _ in self.tape._watches.values())
        found = set()
        for record in self.tape._records:
            if not isinstance(record.adjoint, _Watch):
                break
            region = record.adjoint.region
            storage = region.storage
            shared = storage.volatile or storage.packed or storage.elsewhere or watched[storage] > 1
            if region.nbytes == storage.nbytes and not shared:
                found.add(storage)
        return found

    def run(self) -> None:
        """Walk back over the tape, then restore the memory."""
        tape = self.tape
        records = tape._records
        results: dict[int, np.ndarray] = {}
        self.state["watch results"] = results
        self._kept = {region.storage for region in self.wanted}
        self._given_away = self._last_of_all()
        position = len(records)
        notes = tape._notes
        if not tape.closed and not is_around(tape):
            error = TapeError(f"tape.gradient: the tape is still open in thread '{tape.thread_name}'; close it first")
            tape.refuse(error)
            raise error
        if not tape._sweep_lock.acquire(blocking=False):
            raise TapeError("tape.gradient: this tape is being swept already; ask for one gradient of it at a time")
        scope = passively()
        try:
            self._begin()
            for callback in tape._sweep_starts.values():
                callback(self)
            while position:
                position -= 1
                record = records[position]
                after = getattr(record.adjoint, "arrays_after", None)
                if after:
                    self.after = self._values_after(after, record.undo)
                if record.undo:
                    self._defer(record.undo)
                if notes:
                    self._verify(notes.get(id(record), ()), after)
                if record.adjoint is not None:
                    if self._pending and getattr(record.adjoint, "reads_memory", True):
                        for storage in list(self._pending):
                            self._undo(storage)
                    record.adjoint(self)
                for storage in record.created:
                    if storage not in self._kept:
                        self.forget(storage)
            for callback in reversed(self._ends):
                callback(None)
        except BaseException as error:
            for callback in reversed(self._ends):
                callback(error)
            raise
        finally:
            self._restore()
            self._pending.clear()
            tape._sweep_lock.release()
            actively(scope)
            self._ends.clear()  # they refer to the sweep, which holds the shadows
            self.guards.clear()
        self.results = [results[id(region)] for region in self.wanted]
        self._shadows.clear()
        self._lent.clear()
        self._views.clear()


_sweeping: list[Sweep] = []  # all sweeps that run, in any thread


def _at_once() -> TapeError:
    return TapeError(
        "tape.gradient: an array that the programs of two tapes used, and that was overwritten since, would be put "
        "back to earlier values by the sweeps of two threads at this moment; ask for one gradient after the other, "
        "or let the threads work on copies"
    )


class _Watch:
    """Where an independent begins; ``is_new``: its memory as well, so that no earlier record adds to its shadow."""

    __slots__ = ("is_new", "region")
    reads_memory = False

    def __init__(self, region: Region, is_new: bool) -> None:
        self.region = region
        self.is_new = is_new

    def __call__(self, sweep: Sweep) -> None:
        found = sweep.shadow(self.region) if self.is_new else sweep.result(self.region)
        sweep.state["watch results"][id(self.region)] = found


class Zero:
    """Adjoint of overwriting regions (or ``region[key]``) by constants."""

    __slots__ = ("key", "regions")
    reads_memory = False

    def __init__(self, regions: list[Region], key: Any = None) -> None:
        self.regions = regions
        self.key = ... if key is None else key

    def __call__(self, sweep: Sweep) -> None:
        for region in self.regions:
            sweep.zero(region, self.key)


def _lies_like(array: np.ndarray, region: Region) -> bool:
    """Whether a C-ordered array has the same elements, in the same places, as a region that begins its storage."""
    flags = array.flags
    same = array.dtype == region.dtype and array.shape == region.shape and array.strides == region.strides
    return same and flags.c_contiguous and flags.writeable and flags.aligned and not region.offset


def _repeats_elements(array: np.ndarray) -> bool:
    reach = array.itemsize
    for stride, n in sorted((abs(stride), n) for stride, n in zip(array.strides, array.shape) if n != 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False


def _add_repeated(shadow: np.ndarray, block: np.ndarray, value: np.ndarray) -> None:
    first = (address_of(shadow) - address_of(block)) // shadow.itemsize
    shift = (address_of(shadow) - address_of(block)) % shadow.itemsize
    n = (block.nbytes - shift) // shadow.itemsize
    elements = np.ndarray((n,), shadow.dtype, block, shift)
    place = np.full((), first)
    for axis, (stride, length) in enumerate(zip(shadow.strides, shadow.shape)):
        steps = np.arange(length) * (stride // shadow.itemsize)
        place = place + steps.reshape((length,) + (1,) * (shadow.ndim - axis - 1))
    np.add.at(elements, place, value.astype(shadow.dtype, copy=False))


def place_of(view: np.ndarray) -> tuple[Any, ...]:
    """Where an array lies, and what it takes its bytes for."""
    return address_of(view), view.shape, view.strides, view.dtype


def _may_change(view: np.ndarray) -> bool:
    array: Any = view
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return array is not None and not isinstance(array, bytes)


def _leaves(x: Any) -> Iterator[Any]:
    if x is None:
        return
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from _leaves(item)
    else:
        yield x


def _like(x: Any, found: Iterator[np.ndarray]) -> Any:
    if x is None:
        return None
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_like(item, found) for item in x))
    if isinstance(x, (tuple, list)):
        return type(x)(_like(item, found) for item in x)
    return next(found)


def _plant(sweep: Sweep, y: Any, seed: Any) -> None:
    outputs = list(_leaves(y))
    known = {id(output) for output in sweep.tape.outputs}
    if isinstance(y, (tuple, list)) and seed is not None:
        seeds = list(_leaves(seed))
    else:
        seeds = [seed] * len(outputs)
    if len(seeds) != len(outputs):
        raise TapeError(f"tape.gradient: {len(outputs)} outputs but {len(seeds)} seeds")
    for output, s in zip(outputs, seeds, strict=True):
        if isinstance(output, Output):
            if id(output) not in known:
                raise TapeError(f"tape.gradient(y, x): {output!r} is an output of another tape")
            _plant_output(sweep, output, s)
            continue
        if not isinstance(output, np.ndarray) or storage_of(output) is None:
            raise TapeError(
                f"tape.gradient(y, x): y is a plain {type(output).__name__}, which carries no derivative; "
                "compute it with ampi.numpy so that it is an ampi.ndarray, or pass None on a rank without output"
            )
        if not carries_derivatives(output.dtype):
            raise TapeError(f"tape.gradient(y, x): y of dtype {output.dtype} has no derivative")
        sweep.begin(region_of(output), _seed_for(output.shape, s))


def _plant_output(sweep: Sweep, output: Output, seed: Any) -> None:
    if output.shape is None:
        raise TapeError(
            f"tape.gradient(y, x): {output!r} cannot carry a seed: it has several floating-point dtypes, or bytes that "
            "are not whole elements of the array; write each dtype by itself"
        )
    value = np.broadcast_to(_seed_for(output.shape, seed), output.shape).astype(output.buffer.dtype)
    sweep.state[output] = sweep.state[output] + value if output in sweep.state else value


def _seed_for(shape: tuple[int, ...], seed: Any) -> np.ndarray:
    """The seed for an output of a shape."""
    size = math.prod(shape)
    if seed is None:
        if size != 1:
            raise TapeError(f"tape.gradient(y, x): y has shape {shape}; pass seed= with an array of that shape")
        seed = 1.0
    value = np.asarray(seed)
    if value.shape == shape:
        return value
    if value.size != 1:
        raise TapeError(f"tape.gradient: the seed has shape {value.shape}, its output {shape}")
    return value.reshape(shape) if value.size == size else value
