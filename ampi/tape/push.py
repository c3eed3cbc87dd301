"""Forward mode: tangents of memory, and the tape that pushes them through each operation as soon as it has run.

A record knows one rule for both ways of going forward: its adjoint's ``tangent(push)`` takes the tangents of what the
operation read and sets those of what it wrote.  `ForwardTape` is a tape of length one: a record that is complete is
pushed forward and dropped, so memory is twice the program's.  `walk` pushes all records of a closed tape, in the order
of the program, with memory as it was when they ran.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ActivityError, TapeError
from ..memory.blocks import zeroed
from ..memory.extents import Extent
from ..memory.handouts import where_called
from ..memory.regions import SLOT
from ..memory.storages import Region, Storage, carries_derivatives, plain, region_of, storage_of
from .recording import actively, is_around, passively
from .records import Adjoint, Zero, name_of
from .seeds import in_structure_of, leaves
from .tape import Tape
from .undo import Need, Undo

LOSSY = 1e-2  # a part of ⟨Jᵀȳ, ẋ⟩: more than iterative solvers and single precision leave
_ANY = np.random.default_rng(0).uniform(0.5, 1.5, 4093)
_USUAL = np.dtype(np.float64), 0


class _Guarded(weakref.WeakKeyDictionary[Storage, np.ndarray]):
    """Blocks of tangents, some of which are not to be touched at any time."""

    def __init__(self, blocks: weakref.WeakKeyDictionary[Storage, np.ndarray]) -> None:
        super().__init__(blocks)
        self.checks: weakref.WeakKeyDictionary[Storage, Callable[[], None]] = weakref.WeakKeyDictionary()

    def get(self, storage: Storage, default: Any = None) -> Any:
        """The block of a storage, which is going to be touched."""
        check = self.checks.get(storage)
        if check is not None:
            check()
        return super().get(storage, default)


class Push:
    """Tangents of memory.

    Attributes
    ----------
    tape : Tape
    state : dict
        What the floors above keep.
    after : list of numpy.ndarray
        The values that the present record's ``arrays_after`` had when its operation had run.
    at_last : list of callable
        In a walk: called when all records have been passed.
    ahead, then : dict of list of callable
        In a walk: called before and after a record, by its place on the tape.
    ends : list of callable
        Called at the very end, the last one first, with the error that has come or None.
    """

    lanes: Any = None  # in vector mode: those of each direction
    most = 0  # bytes; in vector mode
    pairs = False

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.at_last: list[Callable[[], None]] = []
        self.ahead: dict[int, list[Callable[[], None]]] = {}
        self.then: dict[int, list[Callable[[], None]]] = {}
        self.ends: list[Callable[[BaseException | None], None]] = []
        self.state: dict[Any, Any] = {}
        self.after: list[np.ndarray] = []
        self._blocks: weakref.WeakKeyDictionary[Storage, np.ndarray] = weakref.WeakKeyDictionary()
        # Dtype and place of the first numbers in a storage, where they are no doubles at multiples of their size.
        self._unusual: weakref.WeakKeyDictionary[Storage, tuple[np.dtype, int]] = weakref.WeakKeyDictionary()

    @property
    def whole(self) -> Push:
        """The tangents of all directions, of which these are one."""
        return self

    def like(self, tape: Tape) -> Push:
        """The tangents of another tape, in as many directions."""
        return Push(tape)

    @property
    def walks(self) -> bool:
        """Whether this is a walk over the records of a closed tape."""
        return self.tape.forward is not self and self.tape.tangents is not self

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Have ``callback(error)`` called at the very end, with the error that has come or None; the last one first."""
        self.ends.append(callback)

    def finish(self, error: BaseException | None, refuse: Callable[[BaseException], None] | None = None) -> None:
        """This is the end.  What goes wrong in it, those who come later are told, and first of all ``refuse``."""
        ends, self.ends = self.ends, []
        raised: BaseException | None = None
        for end in reversed(ends):
            try:
                end(error)
            except Exception as problem:
                if error is None and refuse is not None:
                    refuse(problem)
                error = raised = problem
        if raised is not None:
            raise raised

    def dismantle(self) -> None:
        """All is over: in a circle, the tape would outlive its last reference, with all that it keeps."""
        self.state, self.ahead, self.then, self.at_last = {}, {}, {}, []
        self._blocks = weakref.WeakKeyDictionary()  # and with them what guards them
        for lane in self.lanes or ():
            lane.dismantle()
        if self.lanes:
            self.lanes = ()  # which refer to this one
        self.tape = None  # type: ignore[assignment]

    def has_shadow(self, region: Region) -> bool:
        """Whether the region's storage has a tangent; if not, it is zero."""
        return region.storage in self._blocks

    def has_block(self, storage: Storage) -> bool:
        """The same for all of a storage."""
        return storage in self._blocks

    def block(self, storage: Storage) -> np.ndarray:
        """The tangent of all of a storage, as bytes in place; zeros at first use."""
        block = self._blocks.get(storage)
        if block is None:
            block = self._blocks[storage] = zeroed(storage.nbytes * SLOT if storage.packed else storage.nbytes)
        return self._in_slots(storage, block) if storage.packed else block

    def adopt(self, storage: Storage, block: np.ndarray) -> None:
        """The tangent of a storage is kept elsewhere: in these bytes."""
        self._blocks[storage] = block

    def guard(self, storage: Storage, check: Callable[[], None]) -> None:
        """Have ``check()`` called before the tangent of a storage is taken or set."""
        if not isinstance(self._blocks, _Guarded):
            self._blocks = _Guarded(self._blocks)
        self._blocks.checks[storage] = check

    def _in_slots(self, storage: Storage, block: np.ndarray) -> np.ndarray:
        """The block of memory of bytes into which numbers have been written so far, with a slot for each byte."""
        if block.size == storage.nbytes * SLOT:
            return block
        dtype, start = self._unusual.get(storage, _USUAL)
        slots = zeroed(storage.nbytes * SLOT)
        real = np.empty(0, dtype).real.dtype if dtype.names is None else None
        if real is None or real.kind != "f":
            raise no_tangent("bytes of a structured array")
        start %= real.itemsize
        whole = (storage.nbytes - start) // real.itemsize * real.itemsize
        numbers = block[start : start + whole].view(real)
        slots.view(np.float64)[start : start + whole : real.itemsize] = numbers
        self._blocks[storage] = slots
        return slots

    def shadow(self, region: Region) -> np.ndarray:
        """The region's tangent, in place; zeros at first use."""
        storage = region.storage
        block = self._blocks.get(storage)
        if block is None:
            block = self.block(storage)
            self._note_numbers(region)
        elif storage.packed:
            block = self._in_slots(storage, block)
        return region.view(block)

    def _note_numbers(self, region: Region) -> None:
        """A storage has its first numbers."""
        if region.dtype.char != "d" or region.offset & 7:
            self._unusual[region.storage] = region.dtype, region.offset

    shadow_again = reading = shadow

    def get(self, region: Region) -> np.ndarray:
        """The region's tangent, to be read at once and not to be changed."""
        block = self._blocks.get(region.storage)
        if block is not None:
            return region.view(self._in_slots(region.storage, block) if region.storage.packed else block)
        zero = np.zeros((), region.dtype)
        return np.broadcast_to(zero, region.shape) if region.dtype.names is None else self.shadow(region)

    def dtype(self, region: Region) -> np.dtype:
        """Of the region's tangent."""
        return _USUAL[0] if region.storage.packed else region.dtype

    def put(self, region: Region, value: Any, mask: Any = True) -> None:
        """Set the tangent of memory that was overwritten (where a mask is true); the value is broadcast.

        The imaginary part is dropped where the region is real.
        """
        if region.dtype.kind == "f" and np.iscomplexobj(value):
            value = np.real(value)
        if mask is True:
            self.shadow(region)[...] = value
        else:
            np.copyto(self.shadow(region), value, "unsafe", np.broadcast_to(mask, region.shape))

    def zero(self, region: Region, key: Any = ...) -> None:
        """The tangent of memory overwritten by a constant (of ``region[key]`` only, where a key is given)."""
        if region.storage in self._blocks:
            self.shadow(region)[key] = 0

    def add(self, region: Region, value: Any) -> None:
        """Add to the tangent."""
        shadow = self.shadow(region)
        np.add(shadow, np.real(value) if region.dtype.kind == "f" else value, out=shadow, casting="same_kind")

    def value(self, array: np.ndarray) -> np.ndarray:
        """The values that an array (from `Tape.need`) had when the operation of this record ran: memory has them."""
        return array

    def put_back(self, storages: Any) -> None:
        """Nothing: memory is as it was when the operation of this record ran."""

    def push(self, adjoint: Any, undos: Sequence[Undo]) -> None:
        """Push the tangents through one operation.  Memory is as after it, and is so again afterwards."""
        rule = tangent_of(adjoint)
        wanted = adjoint.arrays_after
        if wanted:
            extents = [undo.extent for undo in undos]
            self.after = [
                plain(a).copy(order="K") if any(e.overlaps(Extent(a)) for e in extents) else plain(a) for a in wanted
            ]
        for undo in reversed(undos):
            undo.swap_values()
        try:
            with np.errstate(all="ignore"):
                self.apply(adjoint, rule)
        finally:
            for undo in undos:
                undo.swap_values()

    def apply(self, adjoint: Any, rule: Callable[[Any], None]) -> None:
        """Push the tangents through an operation."""
        rule(self)


def tangent_of(adjoint: Any) -> Callable[[Push], None]:
    """The tangent rule that belongs to an adjoint."""
    rule = adjoint.tangent
    if rule is None:
        raise no_tangent(f"this operation ({name_of(adjoint)})")
    return rule


def no_tangent(what: str) -> ActivityError:
    """The error for what forward mode does not cover."""
    return ActivityError(
        f"{where_called()}: {what} has no tangent yet, so ampi.jvp and tape.tangent cannot go through it; take "
        "ampi.vjp, or ampi.value(x) if it is a constant"
    )


def not_kept(what: str) -> ActivityError:
    """The error for what a walk covers on tapes that are made for it."""
    return ActivityError(
        f"{where_called()}: {what}: this tape keeps what takes it back and not what takes it forward; make it with "
        "ampi.Tape(tangents=True), or take ampi.linearize or ampi.jvp"
    )


class _AtOnce(list):
    """Records that are given to somebody as soon as they are there."""

    def __init__(self, give: Callable[[Any], None]) -> None:
        self.append = give  # type: ignore[method-assign]


class ForwardTape(Tape):
    """What records while `ampi.jvp` runs: it pushes tangents through every operation at once, and keeps nothing.

    Attributes
    ----------
    forward : Push
        The tangents.
    """

    def __init__(self, make: Callable[[Tape], Push] = Push) -> None:
        super().__init__()
        self.records = _AtOnce(self._push_record)
        self.forward = make(self)
        self.pen = None
        self.append_record = self._push_record
        self._needed: set[Storage] = set()
        self._overwritten: list[Region] | None = None

    @property
    def latest(self) -> tuple[Any, Any, Any]:  # type: ignore[override]
        """Of no communicator: none of the short ways of messages is taken."""
        return self._latest

    @latest.setter
    def latest(self, given: tuple[Any, Any, Any]) -> None:
        self._latest = None, *given[1:]

    def start(self, array: np.ndarray, tangent: Any) -> None:
        """Memory of an independent has a tangent."""
        self.activate(array)
        self.forward.put(region_of(array), tangent)

    def tangent_at(self, array: np.ndarray) -> np.ndarray:
        """A copy of the tangent of an array."""
        if not self.is_active(array):
            lead = () if self.forward.lanes is None else (len(self.forward.lanes),)
            return np.zeros((*lead, *array.shape), array.dtype)
        return np.array(self.forward.get(region_of(array)))

    def finish(self, error: BaseException | None) -> None:
        """The program has ended."""
        self.forward.finish(error)

    def dismantle(self) -> None:
        """Nothing is asked of the tape any more; see `Push.dismantle`."""
        vars(self.records).clear()  # which give them to this tape
        self.records = []
        self.append_record = self.records.append
        self.forward.dismantle()

    def append(self, adjoint: Any, undo: Sequence[Undo] = (), created: Sequence[np.ndarray] = ()) -> None:
        """An operation has just run: push the tangents through it."""
        if self.before_append is not None:
            self.before_append()
        self._push(adjoint, undo)

    def append_start(self, adjoint: Any, undo: Sequence[Undo] = ()) -> None:
        """The same for the start of a communication."""
        self._push(adjoint, undo)

    def _push_record(self, record: Any) -> None:
        self._push(record.adjoint, record.undo)

    def _push(self, adjoint: Any, undo: Sequence[Undo]) -> None:
        self._noted.clear()
        try:
            if adjoint is not None:
                if self._overwritten is not None and type(adjoint) is Zero:
                    self._overwritten += adjoint.regions
                self.forward.push(adjoint, undo)
        finally:
            self._forget_needs()

    @contextlib.contextmanager
    def noting_overwritten(self) -> Iterator[list[Region]]:
        """Gives the regions of active memory that constants overwrite inside."""
        found: list[Region] = []
        outer, self._overwritten = self._overwritten, found
        try:
            yield found
        finally:
            self._overwritten = outer

    def _forget_needs(self) -> None:
        for storage in self._needed:
            needs = storage.needs.pop(self.reference, None)
            if needs is not None:
                for extent in needs.values():
                    extent.listed = None
        self._needed.clear()
        self._copies.clear()

    def need(self, array: np.ndarray) -> np.ndarray:
        """Say that the record that comes next wants the values an array has now."""
        storage = storage_of(array)
        if storage is not None:
            self._needed.add(storage)
        return super().need(array)

    def need_again(self, need: Need) -> None:
        """`need` for an array of which it is known where it lies."""
        self._needed.add(need.storage)
        super().need_again(need)

    def watch(self, x: Any) -> Any:
        """Not of forward mode."""
        raise TapeError("ampi.jvp is not a tape to watch on")

    gradient = watch


def walk(
    tape: Tape,
    prepare: Callable[[Push], None],
    finish: Callable[[Push], Any],
    make: Callable[[Tape], Push] = Push,
) -> Any:
    """Push tangents through all records of a closed tape.

    ``prepare(push)`` plants those of the independents, ``finish(push)`` collects, with memory as it was at the end.
    """
    if not tape.closed:
        raise TapeError(
            "tape.tangent: the tape is still open; close it first"
            if is_around(tape)
            else f"tape.tangent: the tape is still open in thread '{tape.thread_name}'; close it first"
        )
    if not tape.sweep_lock.acquire(blocking=False):
        raise TapeError("tape.tangent: this tape is being swept already; ask for one derivative of it at a time")
    push = make(tape)
    undos: list[Undo] = []
    done = 0
    scope = passively()
    try:
        _check(tape)
        tape.begin_reading()
        for callback in tape.sweep_starts.values():
            callback(push)  # type: ignore[arg-type]
        prepare(push)
        undos = [undo for record in tape.records for undo in record.undo]
        for undo in reversed(undos):
            undo.swap()
            done += 1
        for place, record in enumerate(tape.records):
            for undo in record.undo:
                undo.swap()
                done -= 1
            for call in push.ahead.get(place, ()):
                call()
            if record.adjoint is not None:
                push.push(record.adjoint, record.undo)
            for call in push.then.get(place, ()):
                call()
        for last in push.at_last:
            last()
        result = finish(push)
        push.finish(None)
        return result
    except BaseException as error:
        push.finish(error)
        raise
    finally:
        for undo in undos[len(undos) - done :]:
            undo.swap()
        if tape.budget is not None:
            tape.budget.end()
        actively(scope)
        tape.sweep_lock.release()
        push.dismantle()


def _check(tape: Tape) -> None:
    """Raise, on all ranks that communicated, if something on the tape has no tangent."""
    try:
        for record in tape.records:
            if record.adjoint is not None:
                tangent_of(record.adjoint)
    except ActivityError as error:
        tape.refuse(error)
        raise


def walk_for(tape: Tape, y: Any, x: Any, x_dot: Any, vectorised: bool | int = False) -> Any:
    """`Tape.tangent`."""
    pairs = []
    places = [tape.watched(leaf, "tangent(y, x, x_dot)") for leaf in leaves(x)]
    given = list(leaves(x_dot)) if isinstance(x, (tuple, list)) else [x_dot] if places else []
    if len(given) != len(places):
        raise TapeError(f"tape.tangent: {len(places)} arrays but {len(given)} tangents")
    lead: tuple[int, ...] = ()
    if vectorised is not False:
        from .vector_push import VectorPush, directions_of

        like = [np.broadcast_to(0.0, region.shape) for region in places]
        lead = (directions_of("tape.tangent", like, [np.asarray(value) for value in given], vectorised),)
    for region, value in zip(places, given):
        value = np.asarray(value)
        if value.shape != (*lead, *region.shape):
            raise TapeError(f"tape.tangent: the tangent has shape {value.shape}, its x {region.shape}")
        pairs.append((region, value))
    for output in leaves(y):
        if not isinstance(output, np.ndarray) or storage_of(output) is None:
            raise TapeError(f"tape.tangent: y is a plain {type(output).__name__}, which carries no derivative")
        if not carries_derivatives(output.dtype):
            raise TapeError(f"tape.tangent: y of dtype {output.dtype} has no derivative")

    def prepare(push: Push) -> None:
        push.state.update((region.place, value) for region, value in pairs)

    def finish(push: Push) -> Any:
        return in_structure_of(y, iter([np.array(push.get(region_of(output))) for output in leaves(y)]))

    return walk(tape, prepare, finish, (lambda tape: VectorPush(tape, *lead)) if lead else Push)


def transposed(push: Push, adjoint: Adjoint, sources: Collection[Region], results: Sequence[Region]) -> None:
    """The tangent of an operation that made its results anew, by transposing its adjoint.

    The adjoint is a linear function of ȳ, so that the gradient of ⟨Jᵀȳ, ẋ⟩ with respect to ȳ is Jẋ (Griewank and
    Walther, "Evaluating Derivatives", 2008, section 3.3, backwards).  It is recorded on a tape of its own.
    """
    scope = passively()
    try:
        with Tape() as inner:
            recorded = _Recorded(inner, results)
            adjoint(recorded)
        if any(not inner.is_active(value) and np.any(value) for _, value in recorded.added):
            # It is linear: what is not zero depends on ȳ, unless that was copied into arrays that are not tracked.
            raise no_tangent(adjoint.name or "an operation whose adjoint uses plain arrays")
        pairs = [(value, push.get(source)) for source, value in recorded.added if inner.is_active(value)]
        found = inner.gradient([value for value, _ in pairs], recorded.given, [x_dot for _, x_dot in pairs])
        if _is_lossy(pairs, recorded.given, found):
            raise no_tangent(f"{adjoint.name or 'an operation'}, whose adjoint uses plain arrays,")
    finally:
        actively(scope)
    for region, y_dot in zip(results, found):
        push.put(region, y_dot)


def _is_lossy(pairs: list[tuple[Any, np.ndarray]], given: list[Any], found: Sequence[np.ndarray]) -> bool:
    """Whether parts of an adjoint were not recorded: it is linear, so that ⟨Jᵀȳ, ẋ⟩ and ⟨ȳ, Jẋ⟩ are the same."""
    back = [np.real(np.conj(plain(value)) * x_dot) for value, x_dot in pairs]
    forth = [np.real(np.conj(plain(g)) * y_dot) for g, y_dot in zip(given, found)]
    difference = sum(np.sum(t) for t in back) - sum(np.sum(t) for t in forth)
    # What is rounding only, as of filters that give zeros, says nothing; nor does what is not finite.
    rounding = sum(float(np.finfo(t.dtype).eps) ** 0.6 * np.sum(abs(x_dot)) for t, (_, x_dot) in zip(back, pairs))
    return bool(abs(difference) > LOSSY * sum(np.sum(abs(t)) for t in back + forth) + rounding)


def _any_numbers(region: Region) -> np.ndarray:
    found = np.resize(_ANY, region.shape)
    return (found * (1 - 0.6j) if region.dtype.kind == "c" else found).astype(region.dtype, copy=False)


class _Recorded:
    """Takes the place of a sweep while an adjoint is recorded: ȳ are arrays that are watched."""

    pairs = False

    def __init__(self, tape: Tape, results: Sequence[Region]) -> None:
        # Not zeros: some adjoints leave out what a ȳ of zero does not reach.  Nor ones: filters cancel these.
        self.given = [tape.watch(_any_numbers(region)) for region in results]
        self._of = {id(region): g for region, g in zip(results, self.given)}
        self.added: list[tuple[Region, Any]] = []

    def has_shadow(self, region: Region) -> bool:
        return id(region) in self._of

    def shadow(self, region: Region) -> Any:
        return self._of[id(region)]

    def add(self, region: Region, value: Any) -> None:
        if value.shape != region.shape:
            value = np.broadcast_to(value, region.shape)
        self.added.append((region, value))
