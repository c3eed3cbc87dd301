"""Fast path of NumPy's ufuncs for the usual arguments.

Only the usual case is handled here: ordinary memory, one shape, one precision, no keyword arguments. `ufuncs` handles
all others.

For a large array a record avoids copies of the values that its adjoint needs; for one with few elements a copy is
faster than registering which memory must not be overwritten.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..memory.storages import (
    Fresh,
    Region,
    Storage,
    TrackedArray,
    address_of,
    as_viewed,
    is_scalar,
    new_region,
    region_of,
    storage_of,
)
from ..tape import AdjointRecord, BaseAdjoint, Push, Record, Sweep, Tape, Undo
from ..tape.elements import of_variables
from . import fast_writes, few_writes
from .elements import NUMBERS, node_of
from .elementwise import RULES, Rule, unbroadcast
from .fast_writes import is_in_rows, may_write, saved, source_of
from .partial_writes import record_partial_write
from .writing import taken

MOST_ELEMENTS = 64
"""With more elements, values that an adjoint needs are not copied."""

_FLOAT64, _FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)
_PYTHON = frozenset((float, int))
_WEAK = frozenset((float, int, bool))
_CONSTANTS = {_FLOAT64: NUMBERS, _FLOAT32: _WEAK}
"""Types of numbers that leave the result's dtype unchanged."""
_array: type = TrackedArray
_new = np.ndarray.__new__


def set_array_type(cls: type) -> None:
    """Set the class of arrays (`ampi.ndarray`)."""
    global _array
    _array = cls


def call(tape: Tape, ufunc: np.ufunc, inputs: tuple) -> Any:
    """A ufunc of arrays of one shape and constants, one of them active; None: record it with `ufuncs`."""
    rule = RULES.get(ufunc)
    if rule is None or tape.pen is None:
        return None
    dtypes = dtypes_of(ufunc, rule)
    reference, terms = tape.reference, rule.terms
    shape: Any = None
    dtype: Any = None
    values: list[Any] = []
    active: tuple = ()
    sources: tuple = ()
    numbers = False
    for x in inputs:
        kind = type(x)
        if kind is _array or kind is np.ndarray:
            if shape is None:
                shape, dtype = x.shape, x.dtype
                if not shape or not 0 < x.size <= fast_writes.LARGEST or dtype not in dtypes:
                    return None
            elif x.shape != shape or x.dtype is not dtype:
                return None
            if not is_in_rows(x):
                return None  # the result might have another memory order, and elements might be repeated
            if kind is np.ndarray:
                if storage_of(x) is not None:
                    return None
                values.append(x)
                continue
            region = getattr(x, "_region", None) or new_region(x)
            storage = region.storage
            if storage.guard or storage.swapped_by:
                return None
            if storage.tape is not None:
                if (
                    storage.tape is not reference
                    or storage.arriving
                    or storage.volatile
                    or storage.packed
                    or storage.elsewhere
                ):
                    return None
                if terms[len(values)] is not None:
                    active += (len(values),)
                    sources += (region,)
            values.append(as_viewed(x, np.ndarray))
        elif kind in NUMBERS:
            values.append(x)
            numbers = True
        elif is_scalar(x):
            node = node_of(x, tape, tape.pen)
            if node is None:
                return None
            if node[1] is not None and terms[len(values)] is not None:
                active += (len(values),)
                sources += (node[1],)
            values.append(node[0])
            numbers = True
        else:
            return None
    if not active or shape is None:
        return None
    if numbers:
        allowed = _CONSTANTS[dtype]
        for x in values:
            if type(x) is not np.ndarray and type(x) not in allowed:
                return None
    result = _new(Fresh, shape, dtype)
    many = result.size > MOST_ELEMENTS
    if many and any([type(source) is int for source in sources]):
        return None
    values.append(as_viewed(result, np.ndarray))
    rule.run(*values)  # type: ignore[misc]
    result._storage = storage = Storage(address_of(result), result.nbytes)
    storage.tape = reference
    result._region = region = Region.all_of(storage, result)
    result.__class__ = _array
    kept: list[Any] = [None] * len(values)
    for n in rule.wants(active):
        x = values[n]
        if type(x) is not np.ndarray:
            kept[n] = x if type(x) in _PYTHON else float(x)  # not computed in its dtype
        elif many:
            kept[n] = tape.need(result if n < 0 else inputs[n])
        else:
            kept[n] = x.copy()
    if tape.before_append is not None:
        tape.before_append()
    if many:
        if storage.guard:
            tape.activate(result)
        tape.append_record(Record(Elementwise(rule, active, sources, region, kept, True), (), (storage,)))
    else:
        tape.append_record(_Small(rule, active, sources, region, kept))
    return result


def update(tape: Tape, ufunc: np.ufunc, target: Any, x: Any) -> Any:
    """``target += x`` or ``-=``; None: record it with `ufuncs`."""
    if type(target) is not _array or tape.pen is None or tape.accesses is not None:
        return None
    region = region_of(target)
    storage, dtype = region.storage, region.dtype
    if not may_write(tape, target, region):
        return None
    if is_scalar(x):
        node = node_of(x, tape, tape.pen)
        if node is None or node[1] is None or type(node[0]) is not dtype.type:
            return None
        value, source = node[:2]
    elif type(x) is _array:
        source = source_of(tape, x, region)
        if source is None or source.storage is storage:
            return None
        value = as_viewed(x, np.ndarray)
    else:
        return None
    if tape.before_append is not None:
        tape.before_append()
    view = as_viewed(target, np.ndarray)
    undo = saved(tape, storage, view)
    run_in_place(tape, ufunc, target, value, undo)
    storage.tape = tape.reference
    if not undo and region.dtype is _FLOAT64 and target.size <= few_writes.MOST:
        if few_writes.add(tape, source, region, target.size, ufunc is np.subtract):
            return target
    tape.append_record(_Update(region, source, ufunc is np.subtract, undo))
    return target


def run_in_place(tape: Tape, ufunc: np.ufunc, target: Any, value: Any, undo: Sequence[Undo] = ()) -> None:
    """Compute ``target op= value``, and record what an error leaves behind."""
    view = as_viewed(target, np.ndarray)
    run = lambda: ufunc(view, value, view)
    try:
        run()
    except FloatingPointError as error:
        if undo:
            tape.append(None, undo)
        record_partial_write(tape, [target], run, False, error)
        raise


def _with_result_last(ufunc: np.ufunc) -> Callable:
    """A ufunc that takes the output array as its last argument, which is faster than by keyword."""
    if ufunc in (np.maximum, np.minimum):  # NumPy deprecates it for these
        return lambda *values: ufunc(*values[:-1], out=values[-1])
    return ufunc


def dtypes_of(ufunc: np.ufunc, rule: Rule) -> tuple:
    """The dtypes that a ufunc's result shares with its arguments."""
    dtypes = rule.dtypes
    if dtypes is None:
        dtypes = rule.dtypes = _dtypes_kept(ufunc, rule)
        rule.run = _with_result_last(ufunc)
    return dtypes


def _dtypes_kept(ufunc: np.ufunc, rule: Rule) -> tuple:
    kept = []
    for dtype in () if rule.unknown else (_FLOAT64, _FLOAT32):
        with contextlib.suppress(TypeError):
            resolved = ufunc.resolve_dtypes((*[dtype] * ufunc.nin, *[None] * ufunc.nout))
            if all(other is dtype for other in resolved):
                kept.append(dtype)
    return tuple(kept)


class Elementwise(BaseAdjoint):
    """Adjoint of an elementwise function.

    ``values`` are the arguments and, last, the result, as far as the adjoint needs them. ``recompute`` computes the
    result again if it overwrote other values, which the memory holds during the sweep.
    """

    __slots__ = ("active", "fresh", "mask", "recompute", "regions", "result", "rule", "values")
    second_order = "differentiated"

    def __init__(
        self,
        rule: Rule,
        active: tuple,
        regions: list[Region],
        result: Region,
        values: list,
        fresh: bool,
        mask: Any = None,
        recompute: Callable | None = None,
    ) -> None:
        self.rule = rule
        self.active = active
        self.regions = regions
        self.result = result
        self.values = values
        self.fresh = fresh
        self.mask = mask
        self.recompute = recompute

    @property
    def reads_memory(self) -> bool:  # type: ignore[override]
        """True if the adjoint needs values: that of a sum needs none, for which memory would have to be put back."""
        return (
            self.recompute is not None or self.mask is not None or any(isinstance(v, np.ndarray) for v in self.values)
        )

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = taken(sweep, self.result, self.fresh, self.mask)
        values = self.values
        if self.recompute is not None:
            with np.errstate(all="ignore"):
                values = [*values[:-1], self.recompute(values[:-1])]
        terms, needs = self.rule.terms, self.rule.needs
        for k, region in zip(self.active, self.regions):
            if self.mask is None:
                contribution = terms[k](g, *[values[n] for n in needs[k]])
            else:
                # The function may be undefined where the mask is false.
                with np.errstate(all="ignore"):
                    contribution = np.where(self.mask, terms[k](g, *[values[n] for n in needs[k]]), 0)
            sweep.add(region, unbroadcast(contribution, region.shape))

    def tangent(self, push: Push) -> None:
        """ż = Σ ∂z/∂x ẋ."""
        values = self.values
        if self.recompute is not None:
            values = [*values[:-1], self.recompute(values[:-1])]
        rule, total = self.rule, None
        for k, region in zip(self.active, self.regions):
            term = rule.tangent(k, push.get(region), [values[n] for n in rule.needs[k]])
            total = term if total is None else total + term
        push.put(self.result, total, True if self.mask is None else self.mask)


class _Small(AdjointRecord):
    """Record and adjoint of a call with small arrays; ``values`` are copies, ``sources`` regions, or variables."""

    __slots__ = ("active", "created", "result", "rule", "sources", "values")
    reads_memory = False

    def __init__(self, rule: Rule, active: tuple, sources: tuple, result: Region, values: list) -> None:
        self.rule = rule
        self.active = active
        self.sources = sources
        self.result = result
        self.values = values
        self.created = (result.storage,)

    def __call__(self, sweep: Sweep) -> None:
        result = self.result
        if not sweep.has_block(result.storage):
            return
        g = sweep.reading(result)
        values, terms, needs = self.values, self.rule.terms, self.rule.needs
        for k, source in zip(self.active, self.sources):
            contribution = terms[k](g, *[values[n] for n in needs[k]])
            if type(source) is int:
                of_variables(sweep, sweep.tape.elements.count)[source] += contribution.sum()
            else:
                sweep.add_once(source, contribution, g)

    def tangent(self, push: Push) -> None:
        """ż = Σ ∂z/∂x ẋ."""
        rule, values = self.rule, self.values
        total: Any = 0.0
        for k, source in zip(self.active, self.sources):
            x_dot = _tangent_of(source, push, self.result)
            total = total + rule.tangent(k, x_dot, [values[n] for n in rule.needs[k]])
        push.put(self.result, total)


def _tangent_of(source: Any, push: Push, result: Region) -> np.ndarray:
    """The tangent of a region, or of a variable for all elements of the result."""
    if type(source) is not int:
        return push.get(source)
    x_dot = of_variables(push, push.tape.elements.count)[source]
    return np.full(result.shape, x_dot, result.dtype)


class _Update(AdjointRecord):
    """Record and adjoint of adding to a small array, or subtracting from it."""

    __slots__ = ("negative", "source", "target", "undo")
    reads_memory = False

    def __init__(self, target: Region, source: Any, negative: bool, undo: Sequence[Undo]) -> None:
        self.target = target
        self.source = source
        self.negative = negative
        self.undo = undo

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_block(self.target.storage):
            return
        g = sweep.reading(self.target)
        source = self.source
        if type(source) is int:
            total = g.sum()
            of_variables(sweep, sweep.tape.elements.count)[source] += -total if self.negative else total
        else:
            sweep.add(source, -g if self.negative else g)

    def tangent(self, push: Push) -> None:
        """ż = ż ± ẋ."""
        x_dot = _tangent_of(self.source, push, self.target)
        push.put(self.target, push.get(self.target) + (-x_dot if self.negative else x_dot))
