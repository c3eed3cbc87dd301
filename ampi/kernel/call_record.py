"""The record of a kernel's call on a tape, with its adjoint and its tangent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ampi import tape
from ampi.kernel import arguments, second, vector
from ampi.kernel.contract import Contract
from ampi.kernel.result_forms import Fields, as_arrays, as_returned
from ampi.kernel.runtime import threads
from ampi.memory import handouts
from ampi.memory import storages as memory


def wrap(
    recording: tape.Tape,
    value: Any,
    leaves: Sequence[Any],
    facts: Iterator[tuple[bool, str]],
    seeds: list[Any],
    created: list[np.ndarray],
) -> Any:
    """The result for the user: active leaves as ``ampi.ndarray``."""
    if value is None:
        return None
    if isinstance(value, Fields):
        return _with_seeds(recording, value, facts, seeds, created)
    if isinstance(value, (tuple, list)):
        parts = [wrap(recording, v, leaves, facts, seeds, created) for v in value]
        return arguments.rebuilt(value, parts)
    has_derivatives, dtype = next(facts)
    if isinstance(value, np.ndarray):
        value = arguments.with_base(value, leaves)
    if not has_derivatives:
        return memory.tracked(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, np.ndarray):
        wrapped = memory.scalar(_class_of(dtype)(value))  # Numba returns a float32 as a Python float
    elif memory.storage_of(value) is not None:  # an argument: its adjoint is in the argument's shadow
        seeds.append(StandIn(value, zeros=True))
        return memory.tracked(value)
    else:
        wrapped = memory.tracked(value)
    recording.activate(wrapped)
    created.append(wrapped)
    if isinstance(value, np.ndarray) and not value.ndim:
        seeds.append(WithoutAxes(memory.storage_of(wrapped), wrapped))
    else:
        seeds.append(memory.region_of(wrapped))
    return wrapped


@functools.cache
def _class_of(dtype: str) -> Any:
    return np.dtype(dtype).type


def put_tangents(push: tape.Push, seeds: Sequence[Any], dots: Iterable[Any]) -> None:
    """Set the tangents of the results that `wrap` made; those of arguments are already set."""
    for seed, dot in zip(seeds, dots):
        if isinstance(seed, memory.Region):
            push.put(seed, dot)


def _with_seeds(
    recording: tape.Tape, value: Fields, facts: Iterator[tuple[bool, str]], seeds: list[Any], created: list[np.ndarray]
) -> Fields:
    """The fields of a structured array."""
    active = [field for field in value if next(facts)[0]]
    if not value.is_new:  # an argument: its adjoint is in the argument's shadow
        seeds += [StandIn(field, zeros=True) for field in active]
        return value
    if active:
        recording.activate(value.records)
        created.append(value.records)
    seeds += map(memory.region_of, active)
    return value


class WithoutAxes(memory.Region):
    """The region of a result that is a 0-d array rather than a number; its seed is a 0-d array, too."""

    __slots__ = ()


class StandIn:
    """A placeholder for an array whose values are not read; it does not keep the array's memory alive."""

    __slots__ = ("dtype", "shape", "strides", "writeable", "zeros")

    def __init__(self, array: np.ndarray, zeros: bool = False):
        self.shape, self.dtype = array.shape, array.dtype
        self.strides = None if array.flags.c_contiguous else array.strides
        self.writeable = array.flags.writeable
        self.zeros = zeros

    def make(self) -> np.ndarray:
        if self.zeros:
            return np.zeros(self.shape, self.dtype)
        if self.strides is None:
            array = np.empty(self.shape, self.dtype)
        else:
            array = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        if not self.writeable:
            array.flags.writeable = False
        return array

    def filled(self) -> np.ndarray:
        """Return zeros in the layout of the array, with memory for all elements: `make` has it for one only."""
        if self.strides is None or 0 in self.shape:
            return np.zeros(self.shape, self.dtype)
        reach = [(n - 1) * stride for n, stride in zip(self.shape, self.strides)]
        low = sum(min(each, 0) for each in reach)
        high = sum(max(each, 0) for each in reach) + self.dtype.itemsize
        array = np.ndarray(self.shape, self.dtype, np.zeros(high - low, np.uint8), -low, self.strides)
        array.flags.writeable = self.writeable
        return array


class CallRecord(tape.AdjointRecord):
    """The record of a kernel's call; calling it runs the adjoint."""

    __slots__ = (
        "arrays_after",
        "contract",
        "created",
        "outputs",
        "prepared",
        "saved",
        "scalars",
        "seeds",
        "shadows",
        "undo",
        "values",
    )
    reads_memory = False  # except by `Sweep.value`
    second_order = "joint"
    propagates_tangents = True
    batched = True
    held = "shadows", "outputs", "seeds", "scalars"

    def __init__(
        self,
        prepared: Any,
        values: list[Any],
        undo: Sequence[tape.Undo],
    ):
        self.prepared = prepared
        self.contract: Contract = prepared.contract
        self.values = values
        self.shadows: Sequence[memory.Region] = prepared.shadows
        self.outputs: Sequence[memory.Region] = prepared.outputs
        self.undo = undo
        self.created = ()
        self.arrays_after: Sequence[np.ndarray] = ()
        self.scalars: Sequence[memory.Region] = ()
        self.seeds: Sequence[Any] = ()
        self.saved: Sequence[Any] = ()

    def __call__(self, sweep: tape.Sweep) -> None:
        if sweep.lanes is not None:
            (second if sweep.pairs else vector).sweep_call(self, sweep)  # type: ignore[arg-type]
            return
        if not sweep.has_any_shadow(self.outputs):
            return  # the results and outputs of the call are not used
        prepared, contract = self.prepared, self.contract
        entry = prepared.reverse
        is_like_first = not self.arrays_after  # all arguments have the types of earlier calls with these arrays
        values = [v.make() if type(v) is StandIn else v for v in self.values]
        replaced = sweep.values_again(values, prepared.repeated)
        for k in prepared.needed:
            values[k] = sweep.value(values[k])
            replaced = replaced or values[k] is not self.values[k]
        if replaced:
            for found, v in zip(values, self.values):  # saved values may have another layout
                if found is not v and type(v) is not StandIn:
                    if found.flags.num & arguments.LAYOUT != v.flags.num & arguments.LAYOUT:
                        is_like_first = False
        is_special = contract.new or contract.ends
        shadows = None if is_special else sweep.shadows_again(self.shadows)
        if shadows is None:
            for region in self.shadows:
                if region.storage.packed:
                    is_like_first = False
        if entry is None or not is_like_first:
            values = [memory.plain(v) if isinstance(v, np.ndarray) else v for v in values]
        flags = [self.is_distinct(sweep, k, memory.plain(values[k])) for k in contract.distinct]
        if is_special:
            shadows = self.special_shadows(sweep, flags)
        elif shadows is None:
            shadows = [sweep.shadow_again(region) for region in self.shadows]
        seeds = [self.last_seed_in(sweep, s) for s in self.seeds]
        after = sweep.after if self.arrays_after else ()
        given = *values, *shadows, *seeds, *after, *self.saved, *flags
        if entry is not None and is_like_first:
            found = entry(*given)
        else:
            assert contract.adjoint is not None
            found = contract.adjoint(*given)
            if is_like_first:
                prepared.bind(given)
        if self.scalars:
            for region, value in zip(self.scalars, found):
                sweep.add(region, value)
        if contract.ends:
            for k, region in zip(contract.shadows, self.shadows):
                if k in contract.ends:
                    sweep.end(region)

    @property
    def tangent(self) -> Callable[[tape.Push], None]:
        """A function that pushes tangents through the call in a forward walk, on copies of the saved arguments."""
        if self.contract.tangent is None or self.contract.after or self.saved:
            raise tape.not_kept("a kernel")
        return self._tangent

    def _tangent(self, push: tape.Push) -> None:
        contract: Any = self.contract
        found = contract.tangent()
        values = []
        for v in self.values:
            if isinstance(v, StandIn):  # no derivative depends on it
                v = v.filled()
            elif isinstance(v, np.ndarray):
                v = memory.plain(v)
            values.append(v)
        regions = dict(zip((*contract.shadows, *contract.scalars), (*self.shadows, *self.scalars), strict=True))
        for lane in tape.lanes_of(push):
            given = [np.array(v, order="K") if k in found.writes else v for k, v in enumerate(values)]
            shadows = [lane.shadow(regions[k]) for k in found.shadows]
            dots = [lane.get(regions[k])[()] for k in found.scalars]
            results = found.tangent(*given, *shadows, *dots)
            for s, dot in zip(self.seeds, results[len(found.result_dtypes) :], strict=True):
                if isinstance(s, memory.Region):
                    lane.put(s, dot)

    def special_shadows(self, sweep: tape.Sweep, flags: list[bool]) -> list[np.ndarray]:
        """The shadows of an adjoint that assigns or only reads some; adds to ``flags`` which new ones it assigns."""
        contract = self.contract
        found = []
        for k, region in zip(contract.shadows, self.shadows):
            if k in contract.new:
                new = sweep.begin_anew(region, self.shadows)
                flags.append(new is not None)
                found.append(sweep.shadow_again(region) if new is None else new)
            else:
                found.append(sweep.reading(region) if k in contract.ends else sweep.shadow_again(region))
        return found

    def is_distinct(self, sweep: tape.Sweep, k: int, array: np.ndarray) -> bool:
        """Return whether all entries of an array of indices differ."""
        v = self.values[k]
        if memory.storage_of(v) is not None:
            return threads.distinct(array)
        known = sweep.state.setdefault("distinct", {})  # of arrays that do not change as long as the tape exists
        if id(v) not in known:
            known[id(v)] = threads.distinct(array)
        return known[id(v)]

    @staticmethod
    def seed_in(sweep: tape.Sweep, s: Any) -> Any:
        """The adjoint of a leaf of the result."""
        return s.make() if isinstance(s, StandIn) else seed(sweep, s)

    def last_seed_in(self, sweep: tape.Sweep, s: Any) -> Any:
        """`seed_in` for reading only: an array that the call created no longer needs its shadow."""
        found = sweep.last(s, self.created) if isinstance(s, memory.Region) and s.shape else None
        return self.seed_in(sweep, s) if found is None else found

    def value(self, sweep: tape.Sweep, v: Any) -> Any:
        """An argument as it was before the call."""
        if isinstance(v, StandIn):
            return v.make()
        return memory.plain(sweep.value(v)) if isinstance(v, np.ndarray) else v


def seed(sweep: tape.Sweep, region: memory.Region) -> Any:
    """The adjoint of a result: a scalar or an array of the result's type."""
    taken = sweep.take(region)
    if taken is None:
        taken = np.zeros(region.shape, region.dtype)
    return taken if region.shape or isinstance(region, WithoutAxes) else taken[()]


def finish(
    prepared: Any,
    recording: tape.Tape,
    leaves: Sequence[Any],
    values: list[Any],
    result: Any,
    saved: tuple[Any, ...],
    undo: Sequence[tape.Undo],
    dots: Iterator[Any] | None = None,
) -> Any:
    """Finish a call after the primal's run: set activity and append the record; in second order with tangents."""
    contract = prepared.contract
    for storage in prepared.activated:
        recording.set_active(storage)
    if prepared.guarded:
        handouts.settle_all([leaves[k] for k in contract.writes])
    record = CallRecord(prepared, values, undo)
    if saved:
        record.saved = saved
        nbytes = sum(part.nbytes for part in saved if isinstance(part, np.ndarray))
        recording.kept_bytes += nbytes
        if recording.budget is not None:
            recording.budget.note_kept(record, nbytes)
    if contract.after:
        record.arrays_after = [recording.need(leaves[k]) for k in contract.after]
    if contract.scalars:
        record.scalars = [memory.region_of(leaves[k]) for k in contract.scalars]
    if contract.result_dtypes:
        facts = zip(contract.result_active, contract.result_dtypes, strict=True)
        created: list[np.ndarray] = []
        seeds: list[Any] = []
        given = result
        if contract.forms is not None:
            result = as_arrays(given, contract.forms, iter(contract.result_dtypes), leaves)
        result = wrap(recording, result, leaves, facts, seeds, created)
        record.seeds = seeds
        record.outputs = (*record.outputs, *(s for s in seeds if isinstance(s, memory.Region)))
        record.created = [memory.storage_of(array) for array in created]
        if dots is not None:
            put_tangents(recording.tangents, seeds, dots)
    if recording.before_append is not None:
        recording.before_append()
    recording.append_record(record)
    if contract.forms is not None:
        return as_returned(result, contract.forms, given, iter(contract.result_active))
    return result
