"""What the tape knows of a kernel, and how a call is recorded.

A `Contract` holds for one signature and one choice of active arguments.  It is made once per machine: the adjoint
program and these facts are saved together as a readable file of Python in the cache folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from numba import types
from numba.np import numpy_support

from ampi import memory, tape
from ampi.errors import ActivityError
from ampi.kernel import adjoint, arguments, cache, emit, ir, streams, tangent, threads
from ampi.kernel.expand import ADVICE
from ampi.kernel.inference import is_array
from ampi.kernel.separate import SeparateArrays, are_separate


@dataclass(frozen=True)
class Contract:
    """What a call of a kernel does, by position of the argument leaves.

    Attributes
    ----------
    names : tuple of str
        The leaves, as the generated program names them.
    reads, writes : tuple of int
        Arrays which the kernel reads, and writes.
    needs : tuple of int
        Arrays whose values before the call the adjoint reads.
    becomes_active : tuple of int
        Arrays that are passive before the call and active after it.
    shadows : tuple of int
        Arrays for which the adjoint takes a shadow: active before or after.
    scalars : tuple of int
        Active scalars; the adjoint returns their adjoints.
    result_active : tuple of bool
        For each leaf of the result.
    result_dtypes : tuple of str
        For each leaf of the result, the dtype it (or its elements) has in the kernel.
    distinct : tuple of int
        Arrays of indices of which the adjoint is told whether they name no element twice.
    after : tuple of int
        Arrays which the adjoint reads as they were after the call (only if it was made for that).
    adjoint : callable or None
        ``adjoint(*leaves, *shadows, *seeds, *after, *flags)``, with one seed per active leaf of the result, the arrays
        in ``after`` as they were after the call, and one flag per array in ``distinct``.  Shadows are updated in place,
        from the adjoint of the values after the call to that of the values before.  None if nothing is active.
    disagreement : callable or None
        ``disagreement(*leaves)`` is the line of an operation on arrays whose sizes differ although the adjoint relies
        on their being the same, or zero.  None if there is nothing to check.
    """

    names: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    needs: tuple[int, ...]
    becomes_active: tuple[int, ...]
    shadows: tuple[int, ...]
    scalars: tuple[int, ...]
    result_active: tuple[bool, ...]
    result_dtypes: tuple[str, ...]
    distinct: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    adjoint: Callable[..., tuple] | None = None
    disagreement: Callable[..., int] | None = None


FACTS = ("names", "reads", "writes", "needs", "becomes_active", "shadows", "scalars", "result_active", "distinct")

# --------------------------------------------------------------------------------------------------- making it


def make_contract(
    kernel: Any,
    argument_types: tuple[types.Type, ...],
    active: frozenset[int],
    same: tuple[tuple[int, int], ...] = (),
    separate: bool = True,
    threaded: bool = True,
    after: bool = False,
    single: frozenset[tuple[int, int]] = frozenset(),
) -> Contract:
    """The contract of a kernel; ``same`` says which array leaves are one and the same memory (later, first),
    ``separate`` that no others overlap, ``threaded`` that the adjoint of a parallel kernel runs on threads, ``after``
    that it may read arrays as they were after the call, ``single`` which axes (leaf, axis) stretch from one."""
    separate = separate and "separate" not in kernel.without
    described = tuple(map(cache.describe, argument_types))
    choices = sorted(active), same, separate, threaded, after, sorted(single)
    key = cache.fingerprint(cache.versions(), kernel.identity, described, *choices)
    name = f"{kernel.__name__}_adjoint_{key}"
    path = cache.folder() / f"{name}.py"
    if not path.exists():
        with cache.locked(name):
            if not path.exists():
                text = generate(kernel, argument_types, active, same, separate, threaded, after, single)
                cache.write(path, text)
    module = cache.load_module(path)
    program = getattr(module, module.ADJOINT) if module.ADJOINT else None
    options = derivative_options(kernel.options, bool(module.PARTS))
    if separate:
        options["pipeline_class"] = SeparateArrays
    for part in module.PARTS:
        serial = numba.njit(**{**options, "parallel": False})
        setattr(module, part, serial(getattr(module, part)))
    compiled = program and cache.compiled(program, name, options)
    return Contract(**module.CONTRACT, adjoint=compiled, disagreement=getattr(module, "disagreement", None))


def derivative_options(options: dict[str, Any], parallel: bool) -> dict[str, Any]:
    """Numba's options for a generated program: those of its primal that are about arithmetic and threads.

    Where a derivative divides by zero it gives what IEEE arithmetic gives, whatever the primal does: what made the
    primal raise did so before.
    """
    kept = {k: v for k, v in options.items() if k not in ("inline", "forceinline", "no_cpython_wrapper")}
    # Of what Numba makes parallel itself only prange: the rest costs seconds of its time, and time for short arrays.
    only = dict.fromkeys("comprehension numpy reduction inplace_binop setitem stencil fusion".split(), False)
    on_threads = {**only, "prange": True} if parallel and kept.get("parallel") else False
    return {**kept, "error_model": "numpy", "parallel": on_threads}


def derive(
    kernel: Any,
    argument_types: tuple[types.Type, ...],
    active: frozenset[int],
    same: tuple[tuple[int, int], ...] = (),
    separate: bool = True,
    threaded: bool = True,
    after: bool = True,
    single: frozenset[tuple[int, int]] = frozenset(),
) -> tuple[ir.Function, adjoint.Derivative]:
    """The primal and its adjoint."""
    primal = kernel.ir_of(argument_types, same, single)
    fast = kernel.options.get("fastmath", False)
    options = adjoint.Options(
        strips=separate,
        stages=separate,
        threads=threaded and bool(kernel.options.get("parallel")),
        deterministic=kernel.deterministic,
        after=after,
        reassociate=fast is True or (not isinstance(fast, bool) and "reassoc" in fast),
    )
    options = replace(options, **{name: False for name in kernel.without if hasattr(options, name)})
    wanted = {a.name for k, a in enumerate(primal.arguments) if k in active}
    return primal, adjoint.build(with_constants(primal), wanted, options)


def generate(
    kernel: Any,
    argument_types: tuple[types.Type, ...],
    active: frozenset[int],
    same: tuple[tuple[int, int], ...] = (),
    separate: bool = True,
    threaded: bool = True,
    after: bool = True,
    single: frozenset[tuple[int, int]] = frozenset(),
) -> str:
    """The text of the file: facts and adjoint program."""
    primal, derivative = derive(kernel, argument_types, active, same, separate, threaded, after, single)
    names = [a.name for a in primal.arguments]
    position = {n: k for k, n in enumerate(names)}

    def positions(some: Any) -> tuple[int, ...]:
        return tuple(sorted(position[n] for n in some if n in position))

    facts = {
        "names": tuple(names),
        "reads": positions(derivative.reads),
        "writes": positions(derivative.writes),
        "needs": positions(derivative.needs),
        "becomes_active": positions(derivative.becomes_active),
        "shadows": tuple(position[n] for n in derivative.shadows),
        "scalars": tuple(position[n] for n in derivative.scalars),
        "result_active": tuple(derivative.result_active),
        "result_dtypes": tuple(numpy_support.as_dtype(element(v.type)).name for v in results_of(primal)),
        "distinct": tuple(position[n] for n in derivative.distinct),
        "after": tuple(position[n] for n in derivative.after),
    }
    program = without_constants(derivative.function, primal)
    parts = emit.parts(program)
    costs = () if not parts else threads.TYPICAL if kernel.deterministic else threads.costs()
    text = [
        title("Adjoint", kernel, primal, [names[k] for k in active], derivative.facts),
        emit.HEADER,
        *(f"{n} = {array_source(a)}" for n, a in program.constants),
        "CONTRACT = {",
        *(f'    "{n}": {v!r},' for n, v in facts.items()),
        "}",
        f"ADJOINT = {program.name if active else ''!r}",
        f"SOURCE = {(primal.filename, primal.first_line)!r}",
        f"PARTS = {[p.name for p in parts]!r}",
        f"COSTS = {costs!r}  # nanoseconds: {', '.join(threads.NAMES)}",
        "\n",
        emit.source(program) if active else "",
        *disagreement(primal),
    ]
    return "\n".join(text)


def disagreement(primal: ir.Function) -> list[str]:
    """A function that checks sizes before a call, as Python source (nothing if there is nothing to check)."""
    if not primal.agreeing:
        return []
    checks = [
        f"    if {emit.expression(s.first)} != {emit.expression(s.second)}:\n        return {s.line}"
        for s in primal.agreeing
    ]
    return [f"\ndef disagreement({', '.join(a.name for a in primal.arguments)}):", *checks, "    return 0\n"]


def array_source(array: np.ndarray) -> str:
    """A constant array as Python source."""
    return f"np.array({array.tolist()!r}, dtype=np.{array.dtype.name})"


def with_constants(function: ir.Function) -> ir.Function:
    """Constant arrays as further arguments: to the analyses they are arrays that nothing writes."""
    constants = tuple(ir.Argument(name, numba.typeof(array), ("constant", name)) for name, array in function.constants)
    return replace(function, arguments=(*function.arguments, *constants))


def without_constants(program: ir.Function, primal: ir.Function) -> ir.Function:
    """Constant arrays as globals of the generated module, as far as the program reads them."""
    constants = dict(primal.constants)
    read = {n.name for n in ir.walk(program.body) if isinstance(n, ir.Var)}
    leaves = tuple(a for a in program.arguments if a.name not in constants)
    return replace(program, arguments=leaves, constants=tuple((n, a) for n, a in constants.items() if n in read))


def adjoint_source(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> str:
    """The text of the generated file for these active leaves (by name; all that can carry derivatives if None)."""
    return generate(kernel, argument_types, positions_of(kernel, argument_types, active), threaded=kernel.is_threaded())


def positions_of(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> frozenset[int]:
    """The positions of active leaves (by name; all that can carry derivatives if None)."""
    leaves = kernel.ir_of(argument_types).arguments
    names = active_leaves(kernel, leaves, active)
    return frozenset(k for k, a in enumerate(leaves) if a.name in names)


def tangent_source(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> str:
    """The tangent program as the text of a file, for these active leaves."""
    primal = kernel.ir_of(argument_types)
    names = active_leaves(kernel, primal.arguments, active)
    options = replace(adjoint.ALL_ON, **{name: False for name in kernel.without if hasattr(adjoint.ALL_ON, name)})
    derivative = tangent.build(with_constants(primal), names, options)
    program = without_constants(derivative.function, primal)
    constants = "".join(f"{n} = {array_source(a)}\n" for n, a in program.constants)
    return f"{title('Tangent', kernel, primal, names)}\n{emit.HEADER}\n{constants}\n\n{emit.source(program)}"


def active_leaves(kernel: Any, leaves: tuple[ir.Argument, ...], active: frozenset[str] | None) -> frozenset[str]:
    """The names of the leaves to differentiate; all that can carry derivatives if None is given."""
    if active is None:
        return frozenset(a.name for a in leaves if isinstance(element(a.type), (types.Float, types.Complex)))
    named = {"_".join(map(str, a.path)): a.name for a in leaves}  # as the user wrote them
    unknown = active - set(named)
    if unknown:
        raise ValueError(f"{kernel.__name__} has no argument {sorted(unknown)}; it has {list(named)}")
    return frozenset(named[n] for n in active)


def title(kind: str, kernel: Any, primal: ir.Function, active: Iterable[str], facts: Iterable[str] = ()) -> str:
    """The docstring of a generated file."""
    shown = ", ".join(f"{a.name}: {a.type}" for a in primal.arguments)
    wanted = ", ".join(a.name for a in primal.arguments if a.name in set(active)) or "nothing"
    lines = "".join(f"{fact}\n" for fact in facts)
    return (
        f'"""{kind} of the kernel {kernel.__qualname__} ({primal.filename}:{primal.first_line}); made by ampi.\n\n'
        f'Arguments: {shown}\nActive: {wanted}\n{lines}"""\n'
    )


def results_of(function: ir.Function) -> tuple[ir.Expr, ...]:
    last = function.body[-1] if function.body else None
    return last.values if isinstance(last, ir.Return) else ()


def element(type_: types.Type) -> types.Type:
    return type_.dtype if is_array(type_) else type_


# --------------------------------------------------------------------------------------------------- recording calls


def record(kernel: Any, args: tuple[Any, ...]) -> Any:
    """Call a kernel while tapes are alive."""
    recording = tape.recording_now[0]
    bound = kernel.bind(args)
    if recording is None:
        leaves = arguments.leaves_of(bound)
        if not any(is_watched(leaf) for leaf in leaves):
            return arguments.like(kernel.dispatcher(*map(arguments.plain, args)), args)
    plan = plan_of(kernel, recording, bound)
    contract = plan.contract
    leaves = bound if plan.flat else arguments.leaves_of(bound)
    values: list[Any] = []
    if plan.active:
        if contract.disagreement is not None:
            refuse_stretching(kernel, contract.disagreement(*leaves))
        values = plan.values_for(recording, leaves)
    undo = tape.overwrite(*[leaves[k] for k in contract.writes]) if contract.writes else []
    try:
        result = plan.run(args)
    except BaseException:
        if undo and recording is not None:
            recording.append(None, undo)  # it may have written something before it failed
        raise
    if plan.active:
        return finish(plan, recording, leaves, values, result, undo)
    if undo and recording is not None:
        recording.append(None, undo)
    return arguments.like(result, args)


def is_watched(leaf: Any) -> bool:
    """Whether a tape must hear of a write into this array even if none records now."""
    if not isinstance(leaf, np.ndarray):
        return False
    storage = memory.storage_of(leaf)
    return storage is not None and (bool(storage.needs) or storage.tape is not None)


class Plan:
    """What calls with the same arrays have in common; it keeps none of them alive.

    Attributes
    ----------
    contract : Contract
    active : bool
        Whether an argument is active before the call.
    flat : bool
        Whether each argument is a leaf.
    values : list
        For each leaf: a `StandIn`, or None for one whose value is told by each call.
    numbers, needed : tuple of int
        Leaves that are numbers, and arrays whose values are needed of which `Tape.need` takes care.
    again : tuple of (int, Need)
        Arrays whose values are needed that lie where they lay.
    shadows, outputs : tuple of Region
        Of the arrays for which the adjoint takes a shadow, and of those among them that the kernel writes.
    activated : tuple of Storage
        What is active after the call.
    on, off : tuple of Storage
        What is active before the call, and what is not: the plan is for this case only (for any if no tape records).
    dispatcher : callable
        Numba's, of the primal.
    entry : callable or None
        The compiled primal for these types.  It takes arrays of any class, where the dispatcher takes plain ones.
    types : tuple of numba types, or None
        Of the arguments, until ``entry`` is known; None if it is not to be used.
    written : tuple of int
        Arguments that must not be read-only.
    count : int
        Number of arguments, defaults included.
    """

    __slots__ = (
        "activated",
        "active",
        "again",
        "contract",
        "count",
        "dispatcher",
        "entry",
        "flat",
        "needed",
        "numbers",
        "off",
        "on",
        "outputs",
        "shadows",
        "types",
        "values",
        "written",
    )

    def __init__(self, kernel: Any, contract: Contract, bound: tuple[Any, ...], leaves: Sequence[Any], threaded: bool):
        self.contract = contract
        self.active = False
        self.count = len(bound)
        self.flat = leaves is bound
        self.values: list[Any] = []
        self.numbers: tuple[int, ...] = ()
        self.needed: tuple[int, ...] = ()
        self.again: tuple[tuple[int, tape.Need], ...] = ()
        self.shadows: tuple[memory.Region, ...] = ()
        self.outputs: tuple[memory.Region, ...] = ()
        self.activated: tuple[memory.Storage, ...] = ()
        self.on: tuple[memory.Storage, ...] = ()
        self.off: tuple[memory.Storage, ...] = ()
        self.dispatcher = kernel.dispatcher_for(threaded)
        self.entry: Any = None
        self.types = None
        self.written: tuple[int, ...] = ()
        if self.flat and not any(map(arguments.is_scalar, bound)):
            self.types = kernel.types_of(tuple(map(arguments.plain, bound)))
            self.written = contract.writes

    def fits(self, reference: Any) -> bool:
        """Whether the same arrays are active on a tape, given by reference, as when the plan was made."""
        for storage in self.on:
            if storage.volatile or storage.tape is not reference:
                return False
        for storage in self.off:
            if storage.volatile:
                return False
            other = storage.tape
            if other is not None and (other is reference or other() is not None):
                return False
        return True

    def run(self, args: tuple[Any, ...]) -> Any:
        """The primal."""
        entry = self.entry
        if entry is not None and len(args) == self.count:
            for k in self.written:
                if not args[k].flags.writeable:
                    break
            else:
                return entry(*args)
        result = self.dispatcher(*map(arguments.plain, args))
        if self.types is not None and len(args) == self.count:
            compiled = getattr(self.dispatcher, "overloads", {}).get(self.types)
            self.entry = None if compiled is None else compiled.entry_point
            self.types = None
        return result

    def values_for(self, recording: tape.Tape, leaves: Sequence[Any]) -> list[Any]:
        """Before the primal runs: what the adjoint takes of each leaf."""
        values = self.values.copy()
        for k in self.numbers:
            values[k] = arguments.plain(leaves[k])
        for k, need in self.again:
            recording.need_again(need)
            values[k] = leaves[k]
        for k in self.needed:
            values[k] = recording.need(leaves[k])
        return values


MOST_PLANS = 256  # of a kernel
memory.set_copying(streams.copied)


def plan_of(kernel: Any, recording: tape.Tape | None, bound: tuple[Any, ...]) -> Plan:
    """The plan of a call; without a recording tape that of a call that may overwrite what a tape needs."""
    threaded = kernel.is_threaded()
    reference = None if recording is None else recording.reference
    identity = arguments.identity(bound, reference)
    if identity is None:
        return make_plan(kernel, recording, bound, threaded)
    key = identity, threaded, recording is None
    plans = kernel.plans.get(key)
    if plans is None:
        plans = []
    for plan in plans:
        if plan.fits(reference):
            return plan
    plan = make_plan(kernel, recording, bound, threaded)
    if len(kernel.plans) >= MOST_PLANS:
        kernel.plans.clear()
    kernel.plans[key] = [plan, *plans[:1]]  # an array may be passive in the first of many calls
    return plan


def make_plan(kernel: Any, recording: tape.Tape | None, bound: tuple[Any, ...], threaded: bool) -> Plan:
    """The plan of a call whose like has not been seen."""
    leaves = arguments.leaves_of(bound)
    active = frozenset(
        k
        for k, leaf in enumerate(leaves)
        if recording is not None
        and isinstance(leaf, np.ndarray)
        and recording.is_active(leaf)
        and memory.carries_derivatives(leaf.dtype)
    )
    contract = find_contract(kernel, bound, leaves, active, threaded)
    plan = Plan(kernel, contract, bound, leaves, threaded)
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray) and not arguments.is_scalar(leaf)]
    storages = {memory.storage_of(leaf): None for leaf in arrays}
    storages.pop(None, None)
    for leaf in arrays:
        if isinstance(leaf, memory.TrackedArray):
            memory.region_of(leaf)  # by which the next call is told
    if recording is not None:
        plan.on = tuple(s for s in storages if s.tape is recording.reference)
        plan.off = tuple(s for s in storages if s not in plan.on)
    if not active:
        return plan
    for k in contract.becomes_active:
        if memory.storage_of(leaves[k]) is None:
            raise ActivityError(
                f"{kernel.__name__}() at {tape.where_called()}: argument '{contract.names[k]}' is a "
                "plain array, and would receive values that carry derivatives; make it with ampi.numpy"
            )
    plan.active = True
    plan.activated = tuple(memory.storage_of(leaves[k]) for k in contract.becomes_active)  # type: ignore[misc]
    plan.shadows = tuple(memory.region_of(leaves[k]) for k in contract.shadows)
    plan.outputs = tuple(region for k, region in zip(contract.shadows, plan.shadows) if k in contract.writes)
    for k, leaf in enumerate(leaves):
        plan.values.append(None)
        if not isinstance(leaf, np.ndarray) or arguments.is_scalar(leaf):
            plan.numbers += (k,)
        elif k not in contract.needs:
            plan.values[k] = StandIn(leaf)
        else:
            storage = memory.storage_of(leaf)
            if storage is None or storage.volatile:
                plan.needed += (k,)
            else:
                plan.again += ((k, tape.Need(storage, memory.plain(leaf))),)
    return plan


def find_contract(
    kernel: Any, bound: tuple[Any, ...], leaves: Sequence[Any], active: frozenset[int], threaded: bool
) -> Contract:
    """The contract of a call, which is made where its like has not been seen."""
    places = tuple(map(arguments.place, leaves))
    same, kinds = arguments.same_places(places), tuple(map(arguments.kind, bound))
    merged = {k for k, _ in same}
    separate = are_separate([None if k in merged else p and p[:2] for k, p in enumerate(places)], leaves)
    choices = active, same, separate, threaded, True

    def contract_for(single: frozenset[tuple[int, int]]) -> Contract:
        key = kinds, choices, single
        contract = kernel.contracts.get(key)
        if contract is None:
            argument_types = kernel.types_of(tuple(map(arguments.plain, bound)))
            contract = kernel.contracts[key] = make_contract(kernel, argument_types, *choices, single)
        return contract

    contract = contract_for(frozenset())
    if active and contract.disagreement is not None and contract.disagreement(*leaves):
        arrays = [(k, leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]
        contract = contract_for(frozenset((k, axis) for k, a in arrays for axis, n in enumerate(a.shape) if n == 1))
    if active and not separate:
        refuse_overlap(kernel, contract, places, merged, leaves)
    return contract


def refuse_stretching(kernel: Any, line: int) -> None:
    """An axis of size one that fits to longer ones is only known to derivatives if it is an argument's own, or if the
    source shows it."""
    if line:
        raise ActivityError(
            f"{kernel.py_func.__code__.co_filename}:{line}: in kernel '{kernel.__name__}': arrays of "
            f"different sizes in one operation; {ADVICE}"
        )


def refuse_overlap(
    kernel: Any, contract: Contract, places: tuple[Any, ...], merged: set[int], leaves: Sequence[Any]
) -> None:
    """Arguments that overlap without being the same array cannot be analysed."""
    for w in contract.writes:
        for k, other in enumerate(places):
            if k == w or other is None or k in merged or places[w][0] >= other[1] or other[0] >= places[w][1]:
                continue
            if memory.Extent(leaves[w]).overlaps(memory.Extent(leaves[k])):
                raise ActivityError(
                    f"{kernel.__name__}(): arguments '{contract.names[k]}' and '{contract.names[w]}' overlap "
                    "in memory, and the kernel writes one of them; pass the whole array once, or a copy"
                )


def finish(
    plan: Plan, recording: tape.Tape, leaves: Sequence[Any], values: list[Any], result: Any, undo: list[tape.Undo]
) -> Any:
    """After the primal ran: activity of what it wrote, and the record."""
    contract = plan.contract
    for storage in plan.activated:
        storage.tape = recording.reference
    record = _Adjoint(contract, values, plan.shadows, plan.outputs, undo)
    if contract.after:
        record.arrays_after = [recording.need(leaves[k]) for k in contract.after]
    if contract.scalars:
        record.scalars = [memory.region_of(leaves[k]) for k in contract.scalars]
    if result is not None:
        facts = zip(contract.result_active, contract.result_dtypes, strict=True)
        created: list[np.ndarray] = []
        seeds: list[Any] = []
        result = wrap(recording, result, leaves, facts, seeds, created)
        record.seeds = seeds
        record.outputs = (*record.outputs, *(s for s in seeds if isinstance(s, memory.Region)))
        record.created = [memory.storage_of(array) for array in created]
    if recording.before_append is not None:
        recording.before_append()
    recording.append_record(record)
    return result


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
    if isinstance(value, (tuple, list)):
        parts = [wrap(recording, v, leaves, facts, seeds, created) for v in value]
        return arguments.rebuilt(value, parts)
    is_active, dtype = next(facts)
    if isinstance(value, np.ndarray):
        value = arguments.seated(value, leaves)
    if not is_active:
        return memory.tracked(value) if isinstance(value, np.ndarray) else value
    if not isinstance(value, np.ndarray):
        wrapped = memory.tracked_copy(np.asarray(value, dtype))  # Numba gives a float32 as a Python float
    elif memory.storage_of(value) is not None:  # an argument: its adjoint is in the argument's shadow
        seeds.append(StandIn(value, zeros=True))
        return memory.tracked(value)
    else:
        wrapped = memory.tracked(value)
    recording.activate(wrapped)
    created.append(wrapped)
    seeds.append(memory.region_of(wrapped))
    return wrapped


class StandIn:
    """Takes the place of an array whose values nobody reads, without keeping its memory alive."""

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


class _Adjoint(tape.IsRecord):
    """The record of a call, and its adjoint."""

    __slots__ = ("arrays_after", "contract", "created", "outputs", "scalars", "seeds", "shadows", "undo", "values")
    reads_memory = False  # but through `Sweep.value`

    def __init__(
        self,
        contract: Contract,
        values: list[Any],
        shadows: tuple[memory.Region, ...],
        outputs: tuple[memory.Region, ...],
        undo: Sequence[tape.Undo],
    ):
        self.contract = contract
        self.values = values
        self.shadows = shadows
        self.outputs = outputs
        self.undo = undo
        self.created = ()
        self.arrays_after: Sequence[np.ndarray] = ()
        self.scalars: Sequence[memory.Region] = ()
        self.seeds: Sequence[Any] = ()

    def __call__(self, sweep: tape.Sweep) -> None:
        if not any(map(sweep.has_shadow, self.outputs)):
            return  # nobody uses what the call wrote or gave
        values = [self.value(sweep, v) for v in self.values]
        shadows = [sweep.shadow_again(r) for r in self.shadows]
        seeds = [s.make() if isinstance(s, StandIn) else seed(sweep, s) for s in self.seeds]
        flags = [threads.distinct(values[k]) for k in self.contract.distinct]
        assert self.contract.adjoint is not None
        after = sweep.after if self.arrays_after else ()
        for region, value in zip(self.scalars, self.contract.adjoint(*values, *shadows, *seeds, *after, *flags)):
            sweep.add(region, value)

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
    return taken if region.shape else taken[()]
