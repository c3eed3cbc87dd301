"""What the tape knows of a kernel.

A `Contract` holds for one `Case`: one signature and one choice of active arguments.  It is made once per machine: the
adjoint program and these facts are saved together as a readable file of Python in the cache folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.kernel import adjoint, cache, emit, ir, tangent, threads
from ampi.kernel.bounds import checking
from ampi.kernel.inference import is_array
from ampi.kernel.separate import SeparateArrays


@dataclass(frozen=True)
class Case:
    """For which calls a contract holds.

    Attributes
    ----------
    types : tuple of numba types
        One for each parameter.
    active : frozenset of int
        The leaves that carry derivatives.
    same : tuple of (int, int)
        Array leaves that are one and the same memory (later, first).
    separate : bool
        Whether no others overlap.
    threaded : bool
        Whether the adjoint of a parallel kernel runs on threads.
    after : bool
        Whether the adjoint may read arrays as they were after the call.
    single : frozenset of (int, int)
        Axes (leaf, axis) that have size one and stretch.
    plain : bool
        Whether the adjoint is told which shadows are new and hold anything, and may leave anything in those of arrays
        that are passive before the call.
    """

    types: tuple[types.Type, ...]
    active: frozenset[int]
    same: tuple[tuple[int, int], ...] = ()
    separate: bool = True
    threaded: bool = True
    after: bool = False
    single: frozenset[tuple[int, int]] = frozenset()
    plain: bool = False


@dataclass(frozen=True)
class Contract:
    """What a call of a kernel does, by position of the argument leaves.

    Attributes
    ----------
    names : tuple of str
        The leaves, as the user names them.
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
    ends : tuple of int
        Arrays, passive before the call, whose shadow the adjoint only reads.
    new : tuple of int
        Arrays of which the adjoint is told whether their shadow is new: it then sets what is there.
    adjoint : callable or None
        ``adjoint(*leaves, *shadows, *seeds, *after, *kept, *flags)``, with one seed per active leaf of the result, the
        arrays in ``after`` as they were after the call, what ``forward`` kept, and one flag per array in ``distinct``
        and in ``new``.  Shadows are updated in place, from the adjoint of the values after the call to that of the
        values before.  None if nothing is active.
    forward : callable or None
        ``forward(*leaves)`` does what the kernel does.  It returns a tuple: the kernel's result, if it has one, and
        what the adjoint takes as ``kept``.  None if the kernel itself is to be run.
    split : Contract or None
        Another one for the same case, with ``forward``.
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
    ends: tuple[int, ...] = ()
    new: tuple[int, ...] = ()
    adjoint: Callable[..., tuple] | None = None
    forward: Callable[..., tuple] | None = None
    split: Contract | None = None
    disagreement: Callable[..., int] | None = None


# --------------------------------------------------------------------------------------------------- making it


def make_contract(kernel: Any, case: Case) -> Contract:
    """The contract of a kernel."""
    if "separate" in kernel.without:
        case = replace(case, separate=False)
    described = tuple(map(cache.describe, case.types))
    choices = sorted(case.active), case.same, case.separate, case.threaded, case.after, sorted(case.single), case.plain
    name = f"{kernel.__name__}_adjoint_{cache.key(kernel.identity, described, *choices)}"
    module = cache.load_or_make(name, lambda: generate(kernel, case))
    program = getattr(module, module.ADJOINT) if module.ADJOINT else None
    options = derivative_options(kernel.options, bool(module.PARTS))
    if kernel.checked:
        options = checking(options)
    elif case.separate:
        options["pipeline_class"] = SeparateArrays
    for part in module.PARTS:
        serial = numba.njit(**{**options, "parallel": False})
        setattr(module, part, serial(getattr(module, part)))
    # Contracts which differ in what is active only may have one and the same program.
    code = cache.key(module.PROGRAM, cache.of_options(options))
    compiled = program and cache.compiled(program, f"{kernel.__name__}_adjoint_{code}", options)
    contract = Contract(**module.CONTRACT, adjoint=compiled, disagreement=getattr(module, "disagreement", None))
    if not module.SPLIT:
        return contract
    code = cache.key(module.SPLIT_PROGRAM, cache.of_options(options))
    forward, reverse = (getattr(module, module.SPLIT[part]) for part in ("forward", "adjoint"))
    split = replace(
        contract,
        **{what: module.SPLIT[what] for what in ("needs", "after", "distinct", "new")},
        forward=cache.compiled(forward, f"{kernel.__name__}_forward_{code}", options),
        adjoint=cache.compiled(reverse, f"{kernel.__name__}_reverse_{code}", options),
    )
    return replace(contract, split=split)


def derivative_options(options: dict[str, Any], parallel: bool) -> dict[str, Any]:
    """Numba's options for a generated program: those of its primal that are about arithmetic and threads.

    Where a derivative divides by zero it gives what IEEE arithmetic gives, whatever the primal does: what made the
    primal raise did so before.
    """
    kept = {k: v for k, v in options.items() if k not in ("inline", "forceinline", "no_cpython_wrapper")}
    on_threads = {**threads.ONLY_PRANGE} if parallel and kept.get("parallel") else False
    return {**kept, "error_model": "numpy", "parallel": on_threads}


def derive(kernel: Any, case: Case) -> tuple[ir.Function, adjoint.Derivative]:
    """The primal and its adjoint."""
    primal = kernel.ir_of(case.types, case.same, case.single)
    return primal, adjoint.build(with_constants(primal), wanted(primal, case), options_for(kernel, case))


def derive_split(kernel: Any, case: Case, primal: ir.Function, derivative: adjoint.Derivative) -> adjoint.Split | None:
    """The adjoint in two parts, the first of which takes the place of the kernel's run; None if that is of no use."""
    if not derivative.saves or not case.active:
        return None
    return adjoint.build_split(with_constants(primal), wanted(primal, case), options_for(kernel, case))


def wanted(primal: ir.Function, case: Case) -> set[str]:
    """The names of the active leaves."""
    return {a.name for k, a in enumerate(primal.arguments) if k in case.active}


def options_for(kernel: Any, case: Case) -> adjoint.Options:
    """What the adjoint is made for, and with which analyses."""
    fast = kernel.options.get("fastmath", False)
    options = adjoint.Options(
        strips=case.separate,
        stages=case.separate,
        threads=case.threaded and bool(kernel.options.get("parallel")) and not kernel.checked,
        deterministic=kernel.deterministic,
        after=case.after,
        ends=case.plain,
        new=case.plain,
        reassociate=fast is True or (not isinstance(fast, bool) and "reassoc" in fast),
        # Statements in another order may raise what the kernel does not.
        split=kernel.options.get("error_model") == "numpy" and not kernel.checked,
    )
    return replace(options, **{name: False for name in kernel.without if hasattr(options, name)})


def generate(kernel: Any, case: Case) -> str:
    """The text of the file: facts and adjoint program; the same in two parts, where the kernel's run is to save."""
    primal, derivative = derive(kernel, case)
    names = [a.shown for a in primal.arguments]
    position = {a.name: k for k, a in enumerate(primal.arguments)}

    def positions(some: Any) -> tuple[int, ...]:
        return tuple(sorted(position[n] for n in some if n in position))

    split = derive_split(kernel, case, primal, derivative)
    functions = (
        [derivative.function] if split is None else [derivative.function, split.forward, split.derivative.function]
    )
    program, *halves = emit.spelled(*(without_constants(f, primal) for f in functions))
    split_facts: dict[str, Any] = {}
    if split is not None:
        split_facts = {
            "needs": positions(split.derivative.needs),
            "after": tuple(position[n] for n in split.derivative.after),
            "distinct": tuple(position[n] for n in split.derivative.distinct),
            "new": tuple(position[n] for n in split.derivative.new),
            "forward": halves[0].name,
            "adjoint": halves[1].name,
        }
    split_sources = [emit.source(f) for f in halves]
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
        "ends": tuple(position[n] for n in derivative.ends),
        "new": tuple(position[n] for n in derivative.new),
    }
    parts = emit.parts(program)
    costs = () if not parts else threads.TYPICAL if kernel.deterministic else threads.costs()
    source = emit.source(program) if case.active else ""
    read = dict(c for f in (program, *halves) for c in f.constants)
    constants = [f"{n} = {array_source(a)}" for n, a in read.items()]
    text = [
        title("Adjoint", kernel, primal, wanted(primal, case), derivative.facts),
        emit.HEADER,
        *constants,
        "CONTRACT = {",
        *(f'    "{n}": {v!r},' for n, v in facts.items()),
        "}",
        f"ADJOINT = {program.name if case.active else ''!r}",
        f"SOURCE = {(primal.filename, primal.first_line)!r}",
        f"PARTS = {[p.name for p in parts]!r}",
        f"COSTS = {costs!r}  # nanoseconds: {', '.join(threads.NAMES)}",
        f"PROGRAM = {cache.fingerprint(source, constants, costs, primal.filename)!r}",
        f"SPLIT = {split_facts!r}",
        f"SPLIT_PROGRAM = {cache.fingerprint(split_sources, constants, primal.filename)!r}",
        "\n",
        source,
        *(f"\n{text}" for text in split_sources),
        *disagreement(primal),
    ]
    return "\n".join(text)


def disagreement(primal: ir.Function) -> list[str]:
    """A function that checks sizes before a call, as Python source (nothing if there is nothing to check)."""
    if not primal.agreeing:
        return []
    (primal,) = emit.spelled(replace(primal, body=()))
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
    constants = tuple(
        ir.Argument(name, numba.typeof(array), role=("constant", name)) for name, array in function.constants
    )
    return replace(function, arguments=(*function.arguments, *constants))


def without_constants(program: ir.Function, primal: ir.Function) -> ir.Function:
    """Constant arrays as globals of the generated module, as far as the program reads them."""
    constants = dict(primal.constants)
    read = {n.name for n in ir.walk(program.body) if isinstance(n, ir.Var)}
    leaves = tuple(a for a in program.arguments if a.name not in constants)
    return replace(program, arguments=leaves, constants=tuple((n, a) for n, a in constants.items() if n in read))


def adjoint_source(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> str:
    """The text of the generated file for these active leaves (by name; all that can carry derivatives if None)."""
    return generate(kernel, whole_case(kernel, argument_types, active))


def whole_case(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> Case:
    """The case of calls with arrays that do not overlap, as a tape would have it, for these active leaves (by name)."""
    positions = positions_of(kernel, argument_types, active)
    return Case(argument_types, positions, threaded=kernel.is_threaded(), after=True, plain=True)


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
    (program,) = emit.spelled(without_constants(derivative.function, primal))
    constants = "".join(f"{n} = {array_source(a)}\n" for n, a in program.constants)
    return f"{title('Tangent', kernel, primal, names)}\n{emit.HEADER}\n{constants}\n\n{emit.source(program)}"


def active_leaves(kernel: Any, leaves: tuple[ir.Argument, ...], active: frozenset[str] | None) -> frozenset[str]:
    """The names of the leaves to differentiate; all that can carry derivatives if None is given."""
    if active is None:
        return frozenset(a.name for a in leaves if isinstance(element(a.type), (types.Float, types.Complex)))
    named: dict[str, list[str]] = {}
    for leaf in leaves:
        for name in {leaf.shown, "_".join(map(str, leaf.path))}:
            named.setdefault(name, []).append(leaf.name)
    shown = [leaf.shown for leaf in leaves]
    unknown = active - set(named)
    if unknown:
        raise ValueError(f"{kernel.__name__} has no argument {sorted(unknown)}; it has {shown}")
    unclear = sorted(n for n in active if len(named[n]) > 1)
    if unclear:
        raise ValueError(f"{kernel.__name__} has several arguments that {unclear} may be; write one of {shown}")
    return frozenset(named[n][0] for n in active)


def title(kind: str, kernel: Any, primal: ir.Function, active: Iterable[str], facts: Iterable[str] = ()) -> str:
    """The docstring of a generated file."""
    shown = ", ".join(f"{a.shown}: {a.type}" for a in primal.arguments)
    wanted = ", ".join(a.shown for a in primal.arguments if a.name in set(active)) or "nothing"
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
