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
from ampi.kernel import adjoint, arguments, cache, emit, ir, tangent, threads
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
    adjoint : callable or None
        ``adjoint(*leaves, *shadows, *seeds, *flags)``, with one seed per active leaf of the result and one flag per
        array in ``distinct``.  Shadows are updated in place, from the adjoint of the values after the call to that of
        the values before.  None if nothing is active.
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
) -> Contract:
    """The contract of a kernel; ``same`` says which array leaves are one and the same memory (later, first),
    ``separate`` that no others overlap, and ``threaded`` that the adjoint of a parallel kernel runs on threads."""
    separate = separate and "separate" not in kernel.without
    described = tuple(map(cache.describe, argument_types))
    key = cache.fingerprint(cache.versions(), kernel.identity, described, sorted(active), same, separate, threaded)
    name = f"{kernel.__name__}_adjoint_{key}"
    path = cache.folder() / f"{name}.py"
    if not path.exists():
        with cache.locked(name):
            if not path.exists():
                cache.write(path, generate(kernel, argument_types, active, same, separate, threaded))
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
) -> tuple[ir.Function, adjoint.Derivative]:
    """The primal and its adjoint."""
    primal = kernel.ir_of(argument_types, same)
    fast = kernel.options.get("fastmath", False)
    options = adjoint.Options(
        strips=separate,
        stages=separate,
        threads=threaded and bool(kernel.options.get("parallel")),
        deterministic=kernel.deterministic,
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
) -> str:
    """The text of the file: facts and adjoint program."""
    primal, derivative = derive(kernel, argument_types, active, same, separate, threaded)
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
    recording = tape.current()
    bound = kernel.bind(args)
    leaves = arguments.leaves_of(bound)
    given = tuple(map(arguments.plain, args))
    if recording is None and not any(is_watched(leaf) for leaf in leaves):
        return arguments.like(kernel.dispatcher(*given), args)
    call = _Call(kernel, recording, bound, leaves)
    if call.active:
        call.prepare()
    undo = tape.overwrite(*(leaves[k] for k in call.contract.writes))
    try:
        result = kernel.dispatcher(*given)
    except BaseException:
        if undo and recording is not None:
            recording.append(None, undo)  # it may have written something before it failed
        raise
    if call.active:
        return call.finish(result, undo)
    if undo and recording is not None:
        recording.append(None, undo)
    return arguments.like(result, args)


def is_watched(leaf: Any) -> bool:
    """Whether a tape must hear of a write into this array even if none records now."""
    if not isinstance(leaf, np.ndarray):
        return False
    storage = memory.storage_of(leaf)
    return storage is not None and (bool(storage.needs) or storage.tape is not None)


@dataclass(frozen=True)
class Plan:
    """What calls with the same arrays have in common; it keeps none of them alive.

    Attributes
    ----------
    contract : Contract
    active : frozenset of int
        The array leaves that are active before the call.
    values : tuple
        For each leaf: a `StandIn`, `NUMBER`, `NEEDED` (by the adjoint), or what `Tape.need_again` takes.
    shadows, outputs : tuple of Region
        Of the arrays for which the adjoint takes a shadow, and of those among them that the kernel writes.
    """

    contract: Contract
    active: frozenset[int]
    values: tuple[Any, ...] = ()
    shadows: tuple[memory.Region, ...] = ()
    outputs: tuple[memory.Region, ...] = ()


NUMBER, NEEDED = "number", "needed"
MOST_PLANS = 64  # of a kernel


class _Call:
    """One call that a tape records."""

    def __init__(self, kernel: Any, recording: tape.Tape | None, bound: tuple[Any, ...], leaves: Sequence[Any]):
        self.kernel = kernel
        self.recording = recording
        self.leaves = leaves
        known = None if recording is None else arguments.identity(bound, recording.reference)
        key = None if known is None else (known, kernel.is_threaded())
        plan = kernel.plans.get(key)
        if plan is None:
            plan = self.make_plan(bound)
            if key is not None:
                if len(kernel.plans) >= MOST_PLANS:
                    kernel.plans.clear()
                kernel.plans[key] = plan
        self.plan = plan
        self.contract = plan.contract
        self.active = plan.active
        if plan.active and plan.contract.disagreement is not None:
            self.refuse_stretching(plan.contract.disagreement(*leaves))

    def make_plan(self, bound: tuple[Any, ...]) -> Plan:
        recording, leaves = self.recording, self.leaves
        active = frozenset(
            k
            for k, leaf in enumerate(leaves)
            if recording is not None
            and isinstance(leaf, np.ndarray)
            and recording.is_active(leaf)
            and memory.carries_derivatives(leaf.dtype)
        )
        contract = self.find_contract(bound, active)
        if not active:
            return Plan(contract, active)
        for k in contract.becomes_active:
            if memory.storage_of(leaves[k]) is None:
                raise ActivityError(
                    f"{self.kernel.__name__}() at {tape.where_called()}: argument '{contract.names[k]}' is a "
                    "plain array, and would receive values that carry derivatives; make it with ampi.numpy"
                )
        shadows = tuple(memory.region_of(leaves[k]) for k in contract.shadows)
        outputs = tuple(region for k, region in zip(contract.shadows, shadows) if k in contract.writes)
        values = tuple(self.source(leaf, k in contract.needs) for k, leaf in enumerate(leaves))
        return Plan(contract, active, values, shadows, outputs)

    def source(self, leaf: Any, needed: bool) -> Any:
        """Where the adjoint gets the value of an argument from."""
        if not isinstance(leaf, np.ndarray) or arguments.is_scalar(leaf):
            return NUMBER
        if not needed:
            return StandIn(leaf)
        storage = memory.storage_of(leaf)
        return NEEDED if storage is None or storage.volatile else tape.Need(storage, memory.plain(leaf))

    def find_contract(self, bound: tuple[Any, ...], active: frozenset[int]) -> Contract:
        places = tuple(map(arguments.place, self.leaves))
        same, kinds = arguments.same_places(places), tuple(map(arguments.kind, bound))
        merged = {k for k, _ in same}
        separate = are_separate([None if k in merged else p and p[:2] for k, p in enumerate(places)], self.leaves)
        threaded = self.kernel.is_threaded()
        key = kinds, active, same, separate, threaded
        contract = self.kernel.contracts.get(key)
        if contract is None:
            argument_types = self.kernel.types_of(tuple(map(arguments.plain, bound)))
            contract = self.kernel.contracts[key] = make_contract(
                self.kernel, argument_types, active, same, separate, threaded
            )
        if active and not separate:
            self.refuse_overlap(contract, places, merged)
        return contract

    def refuse_stretching(self, line: int) -> None:
        """Axes of size one that fit to longer ones are only known to derivatives where the source shows them."""
        if line:
            raise ActivityError(
                f"{self.kernel.py_func.__code__.co_filename}:{line}: in kernel '{self.kernel.__name__}': arrays of "
                f"different sizes in one operation; {ADVICE}"
            )

    def refuse_overlap(self, contract: Contract, places: tuple[Any, ...], merged: set[int]) -> None:
        """Arguments that overlap without being the same array cannot be analysed."""
        for w in contract.writes:
            for k, other in enumerate(places):
                if k == w or other is None or k in merged or places[w][0] >= other[1] or other[0] >= places[w][1]:
                    continue
                if memory.Extent(self.leaves[w]).overlaps(memory.Extent(self.leaves[k])):
                    raise ActivityError(
                        f"{self.kernel.__name__}(): arguments '{contract.names[k]}' and '{contract.names[w]}' overlap "
                        "in memory, and the kernel writes one of them; pass the whole array once, or a copy"
                    )

    def prepare(self) -> None:
        """Before the primal runs: what the adjoint will need."""
        self.values = list(map(self.value, self.leaves, self.plan.values))
        self.scalars = [memory.region_of(self.leaves[k]) for k in self.contract.scalars]

    def value(self, leaf: Any, source: Any) -> Any:
        if type(source) is StandIn:
            return source
        if source is NUMBER:
            return arguments.plain(leaf)
        assert self.recording is not None
        return self.recording.need(leaf) if source is NEEDED else self.recording.need_again(leaf, source)

    def finish(self, result: Any, undo: list[tape.Undo]) -> Any:
        """After the primal ran: activity of what it wrote, and the record."""
        for k in self.contract.becomes_active:
            self.recording.activate(self.leaves[k])
        created: list[np.ndarray] = []
        seeds: list[Any] = []
        outputs = self.plan.outputs
        if result is not None:
            facts = zip(self.contract.result_active, self.contract.result_dtypes, strict=True)
            result = self.wrap(result, facts, seeds, created)
            outputs = (*outputs, *(s for s in seeds if isinstance(s, memory.Region)))
        adjoint = _Adjoint(self.contract, self.values, self.plan.shadows, self.scalars, seeds, outputs)
        self.recording.append(adjoint, undo, created)
        return result

    def wrap(self, value: Any, facts: Iterator[tuple[bool, str]], seeds: list[Any], created: list[np.ndarray]) -> Any:
        """The result for the user: active leaves as ``ampi.ndarray``."""
        if value is None:
            return None
        if isinstance(value, tuple):
            parts = [self.wrap(v, facts, seeds, created) for v in value]
            return arguments.rebuilt(value, parts)
        is_active, dtype = next(facts)
        if not is_active:
            return memory.tracked(value) if isinstance(value, np.ndarray) else value
        if not isinstance(value, np.ndarray):
            wrapped = memory.tracked_copy(np.asarray(value, dtype))  # Numba gives a float32 as a Python float
        elif memory.storage_of(value) is not None:  # an argument: its adjoint is in the argument's shadow
            seeds.append(StandIn(value, zeros=True))
            return memory.tracked(value)
        else:
            wrapped = memory.tracked(value)
        self.recording.activate(wrapped)
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


class _Adjoint:
    """The adjoint of one recorded call."""

    __slots__ = ("contract", "outputs", "scalars", "seeds", "shadows", "values")
    reads_memory = False  # but through `Sweep.value`

    def __init__(
        self,
        contract: Contract,
        values: list[Any],
        shadows: tuple[memory.Region, ...],
        scalars: list[Any],
        seeds: list[Any],
        outputs: tuple[memory.Region, ...],
    ):
        self.contract = contract
        self.values = values
        self.shadows = shadows
        self.scalars = scalars
        self.seeds = seeds
        self.outputs = outputs

    def __call__(self, sweep: tape.Sweep) -> None:
        if not any(map(sweep.has_shadow, self.outputs)):
            return  # nobody uses what the call wrote or gave
        values = [self.value(sweep, v) for v in self.values]
        shadows = [sweep.shadow(r) for r in self.shadows]
        seeds = [s.make() if isinstance(s, StandIn) else seed(sweep, s) for s in self.seeds]
        flags = [threads.distinct(values[k]) for k in self.contract.distinct]
        assert self.contract.adjoint is not None
        for region, value in zip(self.scalars, self.contract.adjoint(*values, *shadows, *seeds, *flags)):
            sweep.add(region, value)

    def value(self, sweep: tape.Sweep, v: Any) -> Any:
        """An argument as it was before the call."""
        if isinstance(v, StandIn):
            return v.make()
        return sweep.value(v) if isinstance(v, np.ndarray) else v


def seed(sweep: tape.Sweep, region: memory.Region) -> Any:
    """The adjoint of a result: a scalar or an array of the result's type."""
    taken = sweep.take(region)
    if taken is None:
        taken = np.zeros(region.shape, region.dtype)
    return taken if region.shape else taken[()]
