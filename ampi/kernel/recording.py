"""Recording of kernel calls on tapes.

The overhead of a call in Python matters for short kernels, so work that calls share is done once: a `Primal` for
arguments of the same types, a contract for those with the same activity and aliases, and a `PreparedCall` for the same
arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from numba import typeof

from ampi import tape
from ampi.arrays.activity import is_active
from ampi.arrays.partial_writes import record_any_writes
from ampi.errors import ActivityError
from ampi.kernel import arguments, forward
from ampi.kernel.call_contracts import (
    find_contract,
    find_tangent_contract,
    refuse_stretching,
)
from ampi.kernel.call_record import StandIn, finish
from ampi.kernel.contract import Contract, suspects
from ampi.kernel.list_arguments import refuse_overlap as refuse_overlap_of_lists
from ampi.kernel.list_arguments import with_lists
from ampi.kernel.repeated_calls import (
    REGION,
    RecordedAgain,
    RepeatedCall,
    has_room,
    is_free,
    is_identified,
    is_on_tape,
)
from ampi.kernel.runtime import nontemporal_copy, threads
from ampi.memory import blocks, handouts
from ampi.memory import storages as memory

blocks.set_functions(nontemporal_copy.copied, nontemporal_copy.zeroed)


def record(kernel: Any, args: tuple[Any, ...]) -> Any:
    """Call a kernel while tapes are alive."""
    recording = tape.current()
    key = (kernel.is_threaded(), *map(getattr, args, REGION, map(type, args)))
    if recording is not None:
        for again in kernel.recorded_again.get(key, ()):
            if again.fits(recording, args):
                return again.record(recording, args)
    else:
        repeated = kernel.untaped_repeated.get(key)
        if repeated is not None and repeated.fits(args):
            result = repeated.entry(*args)
            return None if result is None else arguments.like(result, args)
    if arguments.any_list(args):
        args = with_lists(kernel, args, recording)
    if recording is None and no_tape_needs(args):
        return arguments.like(kernel.dispatcher(*map(arguments.plain, args)), args)
    bound = args if kernel.has_rest else kernel.bind(args)  # kernels with *args have bound them already
    if recording is None:
        kinds = tuple(map(arguments.kind, bound))
        known = kernel.untaped.get((kinds, kernel.is_threaded()))
        if known is not None and known[0].entry is not None and len(args) == known[0].count:
            if all(is_free(args[k]) for k in known[1]):
                if all(map(is_identified, args)):
                    if len(kernel.untaped_repeated) >= MAX_PREPARED:
                        kernel.untaped_repeated.clear()
                    kernel.untaped_repeated[key] = RepeatedCall(known[0].entry, known[1], args)
                result = known[0].entry(*args)
                return None if result is None else arguments.like(result, args)
        leaves = arguments.leaves_of(bound)
        if not any(is_watched(leaf) for leaf in leaves):
            return arguments.like(kernel.dispatcher(*map(arguments.plain, args)), args)
    elif recording.forward is not None:
        found = forward.call(kernel, recording, args, bound, find_tangent_contract)
        if found is not forward.NOTHING_ACTIVE:
            return found
    prepared = prepared_call(kernel, recording, bound)
    contract = prepared.contract
    if recording is not None:
        prepared.times += 1
        if prepared.times > 1 and bound is args and RecordedAgain.applies(prepared, recording, args):
            if len(kernel.recorded_again) >= MAX_PREPARED:
                kernel.recorded_again.clear()
            both = [RecordedAgain(prepared, recording, args), *kernel.recorded_again.get(key, ())[:1]]
            kernel.recorded_again[key] = sorted(both, key=lambda again: -again.actives)  # most calls of a loop
    leaves = bound if prepared.flat else arguments.leaves_of(bound)
    if recording is None and known is None and prepared.flat:
        if not arguments.same_places(list(map(arguments.place, leaves))):  # equal arrays are recorded once
            kernel.untaped[kinds, kernel.is_threaded()] = prepared.primal, contract.writes
    values: list[Any] = []
    if prepared.active:
        if contract.disagreement is not None:
            refuse_stretching(kernel, contract.disagreement(*leaves))
        values = prepared.values_for(recording, leaves)
    if prepared.active and recording is not None and recording.tangents is not None:
        return record_with_tangents(kernel, prepared, recording, args, leaves, values)
    undo = tape.overwrite(*[leaves[k] for k in contract.writes]) if contract.writes else []
    try:
        result, saved = prepared.run(args, leaves, values)
    except BaseException as error:
        prepared.note_failure(recording, leaves, undo, error)
        raise
    if prepared.active:
        return finish(prepared, recording, leaves, values, result, saved, undo)
    if prepared.guarded:
        handouts.settle_all([leaves[k] for k in contract.writes])
    if undo and recording is not None:
        recording.append(None, undo)
    return arguments.like(result, args)


def record_with_tangents(
    kernel: Any,
    prepared: PreparedCall,
    recording: Any,
    args: tuple[Any, ...],
    leaves: Sequence[Any],
    values: list[Any],
) -> Any:
    """Call a kernel in second order: its tangent program replaces it."""
    contract = prepared.contract
    assert contract.tangent is not None
    assert contract.second is not None
    contract.second()  # raises an error if there is none
    tangent = contract.tangent()
    undo = tape.overwrite(*[leaves[k] for k in sorted({*contract.writes, *tangent.writes})])
    try:
        numbers = contract.drawing()(args, leaves) if contract.drawn and contract.drawing is not None else None
        if numbers is not None:
            values += numbers.arrays
        result, dots = forward.run(kernel, tangent, recording.tangents, args, leaves, numbers)
    except BaseException as error:
        prepared.note_failure(recording, leaves, undo, error)
        raise
    return finish(prepared, recording, leaves, values, result, (), undo, dots)


def no_tape_needs(args: tuple[Any, ...]) -> bool:
    """Return whether no tape needs to be informed of writes to arguments; a fast test of tracked arrays and numbers."""
    for value in args:
        storage = getattr(value, "_storage", None)
        if storage is None:
            if isinstance(value, np.ndarray):
                if not memory.is_surely_untracked(value):
                    return False
            elif isinstance(value, (tuple, list)):
                return False
        elif storage.needs or storage.tape is not None:
            return False
    return True


def knows_active(recording: tape.Tape, storage: memory.Storage) -> bool:
    """Return whether a storage was activated before this operation, and not in a concurrent task."""
    return recording.accesses is None or recording.accesses.knows_active(storage)


def is_watched(leaf: Any) -> bool:
    """Return whether a tape needs to be informed of writes to this array although none records now."""
    if not isinstance(leaf, np.ndarray):
        return False
    storage = memory.storage_of(leaf)
    return storage is not None and (bool(storage.needs) or is_on_tape(storage))


class Primal:
    """The compiled primal for arguments of certain types.

    Attributes
    ----------
    dispatcher : callable
        Numba's dispatcher.
    entry : callable or None
        The compiled code, once it exists, if no argument is a tuple or a tracked scalar.  It takes arrays of any class,
        while the dispatcher takes plain ones.
    count : int
        The number of arguments, defaults included.
    types : tuple of numba types
        The types of the arguments.
    """

    __slots__ = ("_direct", "count", "dispatcher", "entry", "types")

    def __init__(self, kernel: Any, bound: tuple[Any, ...], threaded: bool, direct: bool) -> None:
        self.dispatcher = kernel.dispatcher_for(threaded)
        self.types = kernel.types_of(tuple(map(arguments.plain, bound)))
        self.count = len(bound)
        self.entry: Any = None
        self._direct = direct

    def by_dispatcher(self, args: tuple[Any, ...]) -> Any:
        """Call the primal by Numba's dispatcher, which works for all arguments."""
        result = self.dispatcher(*map(arguments.plain, args))
        if self._direct and self.entry is None and len(args) == self.count:
            self.entry = arguments.entry_point(self.dispatcher, self.types)
        return result


class PreparedCall:
    """The part of a call that all calls with the same arrays share; it keeps none of these alive.

    Attributes
    ----------
    primal : Primal
    contract : Contract
    active : bool
        Whether an argument is active before the call.
    flat : bool
        Whether each argument is a leaf.
    values : list
        For each leaf: a `StandIn`, or None if each call supplies its value.
    numbers, needed : tuple of int
        Leaves that are numbers, and arrays whose values are needed and are registered by `Tape.need`.
    repeated : tuple of (int, Need)
        Arrays at unchanged addresses whose values are needed.
    constants : tuple of (int, tuple)
        Plain arrays whose values are needed, and the places at which calls record them.
    shadows, outputs : tuple of Region
        The regions of arrays for which the adjoint takes a shadow, and of those among them that the kernel writes.
    activated : tuple of Storage
        The storages that become active by the call.
    guarded : bool
        Whether code outside ampi may write to an argument; it then serves a single call.
    on, off : tuple of Storage
        Storages that are active before the call, and passive ones: other calls fit only if theirs are, too (not
        considered if no tape records).
    times : int
        The number of recorded calls so far.
    reverse : callable or None
        The compiled code of the adjoint for these arrays, once a sweep has called it.
    """

    __slots__ = (
        "activated",
        "active",
        "constants",
        "contract",
        "flat",
        "guarded",
        "needed",
        "numbers",
        "off",
        "on",
        "outputs",
        "primal",
        "repeated",
        "reverse",
        "shadows",
        "times",
        "values",
    )

    def __init__(self, primal: Primal, contract: Contract, flat: bool) -> None:
        self.primal = primal
        self.contract = contract
        self.active = False
        self.flat = flat
        self.values: list[Any] = []
        self.numbers: Sequence[int] = ()
        self.needed: Sequence[int] = ()
        self.repeated: Sequence[tuple[int, tape.Need]] = ()
        self.constants: Sequence[tuple[int, tuple[Any, ...]]] = ()
        self.shadows: Sequence[memory.Region] = ()
        self.outputs: Sequence[memory.Region] = ()
        self.guarded = False
        self.activated: Sequence[memory.Storage] = ()
        self.on: Sequence[memory.Storage] = ()
        self.off: Sequence[tuple[memory.Storage, memory.Region]] = ()
        self.times = 0
        self.reverse: Any = None

    def fits(self, reference: Any, accesses: Any) -> bool:
        """Return whether the same arrays are active on a tape (a reference) as when the call was prepared.

        ``accesses`` are those of the tape, see `Tape`.
        """
        for storage in self.on:
            if storage.volatile or storage.guard or storage.tape is not reference:
                return False
        if accesses is not None and not accesses.all_known_active(self.on):
            return False
        for storage, region in self.off:
            if storage.volatile or storage.guard:
                return False
            other = storage.tape
            if other is not None and other is not reference and _is_open(other):
                return False
            if other is reference and reference is not None:
                if accesses is None or accesses.knows_active(storage):
                    return False
                accesses.see(region)  # another part of it, unless there is a race
        return True

    def run(self, args: tuple[Any, ...], leaves: Sequence[Any], values: list[Any]) -> tuple[Any, tuple[Any, ...]]:
        """Run the primal: its result, and the values saved for the adjoint; random numbers are added to ``values``."""
        primal, contract = self.primal, self.contract
        if contract.drawn and self.active and contract.drawing is not None:
            numbers = contract.drawing()(args, leaves)
            values += numbers.arrays
            return numbers.run(lambda: primal.by_dispatcher(args)), ()
        if contract.forward is not None:
            if all(leaves[k].flags.writeable for k in contract.writes):
                try:
                    found = contract.forward(*map(arguments.plain, leaves))
                except Exception as failure:
                    self.fail(args, failure)
                count = len(contract.result_dtypes)
                return found[:count] if contract.several else found[0] if count else None, found[count:]
            return primal.by_dispatcher(args), ()  # raises the error
        entry = primal.entry
        if entry is not None and len(args) == primal.count:
            for k in contract.writes:
                if not args[k].flags.writeable:
                    break
            else:
                return entry(*args), ()
        return primal.by_dispatcher(args), ()

    def fail(self, args: tuple[Any, ...], failure: Exception) -> NoReturn:
        """Raise the exception of the kernel's own run, which the forward part of an adjoint has replaced.

        It may have another text or class than ``failure``, that of the forward part (see `raises_exactly`).
        """
        if not self.contract.writes:
            try:
                self.primal.by_dispatcher(args)
            except Exception as error:
                error.__context__ = None
                raise
        raise failure

    def note_failure(
        self, recording: Any, leaves: Sequence[Any], undo: Sequence[tape.Undo], error: BaseException
    ) -> None:
        """Record a call that has raised an error: it may have written to arrays before."""
        if recording is None:
            return
        if undo:
            recording.append(None, undo)
        if self.active:
            arrays = (leaves[k] for k in suspects(self.contract, error))
            record_any_writes(recording, [a for a in arrays if isinstance(a, np.ndarray)], "a kernel", error)

    def bind(self, given: Sequence[Any]) -> None:
        """Keep the compiled code of the adjoint, which has been called with these arguments.

        The arrays of all calls have the same layouts, and so have their shadows, which are views of the same regions.
        """
        if self.flat and not self.guarded and all(isinstance(v, (np.ndarray, float, int)) for v in given):
            self.reverse = arguments.entry_point(self.contract.adjoint, tuple(map(typeof, given)))

    def values_for(self, recording: tape.Tape, leaves: Sequence[Any]) -> list[Any]:
        """The value of each leaf for the adjoint; called before the primal runs."""
        values = self.values.copy()
        for k in self.numbers:
            values[k] = arguments.plain(leaves[k])
        for k, need in self.repeated:
            recording.need_again(need)
            values[k] = leaves[k]
        for k, place in self.constants:
            values[k] = recording.constant(leaves[k], place)
        for k in self.needed:
            values[k] = recording.need(leaves[k])
        return values


def _is_open(reference: Any) -> bool:
    """Return whether a tape records: arrays that were active on a closed one are passive."""
    tape = reference()
    return tape is not None and not tape.closed


MAX_PREPARED = 256  # calls of a kernel


def _kind_of(recording: tape.Tape | None) -> Any:
    """A key of the properties of a tape on which prepared calls depend."""
    return None if recording is None else (has_room(recording), recording.tangents is not None)


def prepared_call(kernel: Any, recording: tape.Tape | None, bound: tuple[Any, ...]) -> PreparedCall:
    """A prepared call for these arguments; without a recording tape it may still overwrite values that a tape needs."""
    threaded = kernel.is_threaded()
    reference = None if recording is None else recording.reference
    identity = None if any(map(memory.is_unseen, bound)) else arguments.identity(bound, reference)
    if identity is None:
        return prepare_call(kernel, recording, bound, threaded)
    key = identity, threaded, _kind_of(recording)
    calls = kernel.prepared.get(key)
    if calls is None:
        calls = []
    for prepared in calls:
        if prepared.fits(reference, None if recording is None else recording.accesses):
            return prepared
    prepared = prepare_call(kernel, recording, bound, threaded)
    if len(kernel.prepared) >= MAX_PREPARED:
        kernel.prepared.clear()
    kernel.prepared[key] = [prepared, *calls[:1]]  # an array may be passive in the first of many calls
    return prepared


def prepare_call(kernel: Any, recording: tape.Tape | None, bound: tuple[Any, ...], threaded: bool) -> PreparedCall:
    """Prepare a call, the first of its kind."""
    leaves = arguments.leaves_of(bound)
    reference = None if recording is None else recording.reference
    storages: list[memory.Storage | None] = []
    active: list[int] = []
    on: list[memory.Storage] = []
    off: list[tuple[memory.Storage, memory.Region]] = []
    plain = True
    for k, leaf in enumerate(leaves):
        storage = memory.storage_of(leaf) if isinstance(leaf, np.ndarray) else None
        storages.append(storage)
        if storage is None:
            continue
        if storage.tape is not None and recording is not None and is_active(recording, leaf):
            active.append(k)
        if storage.volatile or storage.packed or storage.elsewhere:
            plain = False
        if recording is not None and not arguments.is_scalar(leaf):
            if storage.tape is reference and knows_active(recording, storage):
                on.append(storage)
            else:
                off.append((storage, memory.Region(storage, leaf)))
        if leaf.ndim and isinstance(leaf, memory.TrackedArray):
            memory.region_of(leaf)  # by which the next call is recognised
    kinds = tuple(map(arguments.kind, bound))
    primal = kernel.primals.get((kinds, threaded))
    if primal is None:
        direct = leaves is bound and not any(map(arguments.is_scalar, bound))
        primal = kernel.primals[kinds, threaded] = Primal(kernel, bound, threaded, direct)
        if threaded:
            threads.use_threads()
    after = recording is None or not recording.walks
    in_pairs = recording is not None and recording.tangents is not None  # adjoints then run on one thread
    contract = find_contract(
        kernel, primal, kinds, leaves, storages, frozenset(active), threaded and not in_pairs, plain, after
    )
    if contract.split is not None and contract.whole is not None:
        contract = contract.split if recording is not None and has_room(recording) else contract.whole()
    prepared = PreparedCall(primal, contract, leaves is bound)
    prepared.on, prepared.off = tuple(dict.fromkeys(on)), tuple(off)
    prepared.guarded = any(storage is not None and storage.guard for storage in storages)
    if not active:
        return prepared
    refuse_overlap_of_lists(kernel, contract.names, contract.writes, bound, leaves)
    for k in contract.becomes_active:
        if storages[k] is None:
            raise ActivityError(
                f"{kernel.__name__}() at {tape.where_called()}: argument '{contract.names[k]}' is a "
                "plain array, and would receive values that carry derivatives; make it with ampi.numpy"
            )
    prepared.active = True
    prepared.activated = [storages[k] for k in contract.becomes_active]  # type: ignore[misc]
    prepared.shadows = [memory.region_of(leaves[k]) for k in contract.shadows]
    prepared.outputs = [region for k, region in zip(contract.shadows, prepared.shadows) if k in contract.writes]
    prepared.values = [None] * len(leaves)
    numbers, needed, repeated, constants = [], [], [], []
    for k, (leaf, storage) in enumerate(zip(leaves, storages)):
        if not isinstance(leaf, np.ndarray) or arguments.is_scalar(leaf):
            numbers.append(k)
        elif k not in contract.needs:
            prepared.values[k] = StandIn(leaf)
        elif storage is None and type(leaf) is np.ndarray and leaf.flags.writeable:
            constants.append((k, tape.place_of(leaf)))
        elif storage is None or storage.volatile or storage.guard:
            needed.append(k)
        else:
            repeated.append((k, tape.Need(storage, leaf)))
    prepared.numbers, prepared.needed, prepared.repeated, prepared.constants = numbers, needed, repeated, constants
    return prepared
