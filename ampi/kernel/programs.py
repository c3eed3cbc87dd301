"""Generated files as text: a kernel's derivative programs, and the facts about them that a tape needs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.kernel import ir, pipeline
from ampi.kernel.case import Case
from ampi.kernel.codegen import emit, identifiers
from ampi.kernel.codegen.in_lanes import NotInLanes
from ampi.kernel.differentiate.derivative import Derivative, Split
from ampi.kernel.frontend.base.values import forms_in
from ampi.kernel.ir import random_draws
from ampi.kernel.ir.inference import is_array
from ampi.kernel.ir.ssa import results_of, written
from ampi.kernel.options import Options
from ampi.kernel.runtime import cache, threads


def derive(kernel: Any, case: Case, options: Options | None = None) -> tuple[ir.Function, Derivative, Split | None]:
    """The primal, its adjoint, and the adjoint in two parts (see `split_of`)."""
    primal, adjoint = adjoint_of(kernel, case, options)
    split = split_of(kernel, case, primal, adjoint)
    return primal, adjoint.whole(), split


def adjoint_of(kernel: Any, case: Case, options: Options | None = None) -> tuple[ir.Function, pipeline.Adjoint]:
    """The primal, and its adjoint in forms that are built on demand."""
    primal = kernel.ir_of(case.types, case.same, case.single)
    pipeline.refuse_active_parameters(primal, wanted(primal, case))
    options = options_for(kernel, case) if options is None else options
    return primal, pipeline.Adjoint(prepared(primal), wanted(primal, case), options)


def split_of(kernel: Any, case: Case, primal: ir.Function, adjoint: pipeline.Adjoint) -> Split | None:
    """The adjoint in two parts, the first of which replaces the kernel's own run; None if that gains nothing."""
    runs_itself = kernel.checked or primal.has_effects or random_draws.arguments_of(primal)
    return adjoint.split() if case.active and not runs_itself and adjoint.saves else None


def wanted(primal: ir.Function, case: Case) -> set[str]:
    """The names of the active leaves."""
    return {a.name for k, a in enumerate(primal.arguments) if k in case.active}


def options_for(kernel: Any, case: Case) -> Options:
    """The options of the adjoint."""
    fast = kernel.options.get("fastmath", False)
    return Options(
        without=kernel.without,
        threads=case.threaded and bool(kernel.options.get("parallel")) and not kernel.checked,
        deterministic=kernel.deterministic,
        reassociate=fast is True or (not isinstance(fast, bool) and "reassoc" in fast),
        separate=case.separate,
        after=case.after,
        plain=case.plain,
        unchecked=kernel.unchecked,
        raising=kernel.options.get("error_model") != "numpy",
    )


def generate(kernel: Any, case: Case) -> str:
    """The file of an adjoint: facts and program, or both parts of it if the kernel's run is to save values."""
    primal, adjoint = adjoint_of(kernel, case)
    split = split_of(kernel, case, primal, adjoint)
    return adjoint_file(kernel, case, primal, adjoint.whole() if split is None else None, split)


def generate_whole(kernel: Any, case: Case) -> str:
    """The file of an adjoint as one program, although the kernel's run may save values."""
    primal, adjoint = adjoint_of(kernel, case)
    return adjoint_file(kernel, case, primal, adjoint.whole(), None)


def adjoint_file(kernel: Any, case: Case, primal: ir.Function, whole: Derivative | None, split: Split | None) -> str:
    """The file of an adjoint in one or both of its forms."""
    derivative = split.derivative if whole is None else whole  # type: ignore[union-attr]
    names = [a.shown for a in primal.arguments]
    position = {a.name: k for k, a in enumerate(primal.arguments)}

    def positions(some: Any) -> tuple[int, ...]:
        return tuple(sorted(position[n] for n in some if n in position))

    functions = [] if whole is None else [whole.function]
    functions += [] if split is None else [split.forward, split.derivative.function]
    programs = emit.spelled(*(without_constants(f, primal) for f in functions))
    program, halves = (None, programs) if whole is None else (programs[0], programs[1:])
    split_facts: dict[str, Any] = {}
    if split is not None:
        split_facts = {
            "needs": positions(split.derivative.needs),
            "after": tuple(position[n] for n in split.derivative.after),
            "distinct": tuple(position[n] for n in split.derivative.distinct),
            "new": tuple(position[n] for n in split.derivative.new),
            "forward": halves[0].name,
            "several": isinstance(primal.result, tuple),
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
        "forms": forms_in(primal.result),
        "drawn": random_draws.dtypes_of(primal),
        "checks_first": checks_first(primal),
    }
    parts = [] if program is None else emit.parts(program)
    is_made = program is not None and bool(case.active)
    source = emit.source(program) if is_made else ""
    costs: tuple[float, ...] = ()
    if parts:  # costs are measured (in a second, once per machine) only if there are several forms to choose from
        chosen = not kernel.deterministic and any(form in source for form in ("OWN", "ATOMIC"))
        costs = threads.costs() if chosen else threads.TYPICAL
    constants = constant_lines(*programs)
    text = [
        title("Adjoint", kernel, primal, wanted(primal, case), map(str, derivative.remarks)),
        emit.header(source, *split_sources),
        *constants,
        *contract_lines(facts),
        f"ADJOINT = {program.name if is_made else ''!r}",
        f"SOURCE = {(primal.filename, primal.first_line)!r}",
        f"PARTS = {[p.name for p in parts]!r}",
        f"COSTS = {costs!r}  # nanoseconds: {', '.join(threads.NAMES)}",
        f"PROGRAM = {cache.fingerprint(identity(kernel, primal, [source]), constants, costs)!r}",
        f"SPLIT = {split_facts!r}",
        f"SPLIT_PROGRAM = {cache.fingerprint(identity(kernel, primal, split_sources), constants)!r}",
        "\n",
        source,
        *(f"\n{text}" for text in split_sources),
        *disagreement(primal),
    ]
    return "\n".join(text)


def identity(kernel: Any, primal: ir.Function, sources: list[str]) -> Any:
    """A key of compiled programs: their text, with file and lines of the source if they can raise an exception."""
    raises = kernel.checked or any(re.search(r"^ *(raise|assert)\b", s, re.MULTILINE) for s in sources)
    if raises:
        return sources, primal.filename
    return [re.sub(r" +# line \d+$", "", s, flags=re.MULTILINE) for s in sources]


def disagreement(primal: ir.Function) -> list[str]:
    """The source of a function that checks sizes before a call; empty if there is nothing to check."""
    if not primal.agreeing:
        return []
    leaves = tuple(a for a in primal.arguments if not (a.is_a("drawn") or a.is_a("generator")))
    (primal,) = emit.spelled(replace(primal, arguments=leaves, body=()))
    checks = [
        f"    if {emit.expression(s.first)} != {emit.expression(s.second)}:\n        return {s.line}"
        for s in primal.agreeing
    ]
    return [f"\ndef disagreement({', '.join(a.name for a in primal.arguments)}):", *checks, "    return 0\n"]


def array_source(array: np.ndarray) -> str:
    """A constant array as Python source."""
    return f"np.array({array.tolist()!r}, dtype=np.{array.dtype.name})"


def constant_lines(*programs: ir.Function) -> list[str]:
    """The definitions of the constant arrays of programs."""
    arrays = dict(constant for program in programs for constant in program.constants)
    return [f"{name} = {array_source(array)}" for name, array in arrays.items()]


def contract_lines(facts: dict[str, Any]) -> list[str]:
    """The definition of ``CONTRACT``, the facts about a program."""
    return ["CONTRACT = {", *(f'    "{n}": {v!r},' for n, v in facts.items()), "}"]


def source_lines(kernel: Any, primal: ir.Function, sources: list[str], constants: list[str]) -> list[str]:
    """The place of the kernel, and the key of the compiled programs."""
    return [
        f"SOURCE = {(primal.filename, primal.first_line)!r}",
        f"PROGRAM = {cache.fingerprint(identity(kernel, primal, sources), constants)!r}",
    ]


def prepared(primal: ir.Function) -> ir.Function:
    """The kernel in the form that is differentiated, with random numbers and constant arrays as arguments."""
    return with_constants(random_draws.replayed(primal))


def with_constants(function: ir.Function) -> ir.Function:
    """The function with constant arrays as further, read-only arguments."""
    constants = tuple(
        ir.Argument(name, numba.typeof(array), role=("constant", name)) for name, array in function.constants
    )
    return replace(function, arguments=(*function.arguments, *constants))


def without_constants(program: ir.Function, primal: ir.Function) -> ir.Function:
    """The program with the constant arrays that it reads as globals of the generated module."""
    constants = dict(primal.constants)
    read = {n.name for n in ir.walk(program.body) if isinstance(n, ir.Var)}
    leaves = tuple(a for a in program.arguments if a.name not in constants)
    return replace(program, arguments=leaves, constants=tuple((n, a) for n, a in constants.items() if n in read))


def adjoint_source(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> str:
    """The file of an adjoint for these active leaves (by name; all that can carry derivatives if None)."""
    case = whole_case(kernel, argument_types, active)
    return adjoint_file(kernel, case, *derive(kernel, case))


def whole_case(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> Case:
    """The case of a recorded call with arrays that do not overlap, for these active leaves (by name)."""
    positions = positions_of(kernel, argument_types, active)
    return Case(argument_types, positions, threaded=kernel.is_threaded(), after=True, plain=True)


def positions_of(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> frozenset[int]:
    """The positions of active leaves (by name; all that can carry derivatives if None)."""
    leaves = kernel.ir_of(argument_types).arguments
    names = active_leaves(kernel, leaves, active)
    return frozenset(k for k, a in enumerate(leaves) if a.name in names)


def tangent_source(kernel: Any, argument_types: tuple[types.Type, ...], active: frozenset[str] | None) -> str:
    """The tangent program for these active leaves (compare `adjoint_source`), without facts."""
    primal = kernel.ir_of(argument_types)
    names = active_leaves(kernel, primal.arguments, active)
    derivative = pipeline.build_tangent(prepared(primal), names, Options(without=kernel.without))
    (program,) = emit.spelled(without_constants(derivative.function, primal))
    constants = "".join(f"{line}\n" for line in constant_lines(program))
    source = emit.source(program)
    return f"{title('Tangent', kernel, primal, names)}\n{emit.header(source)}\n{constants}\n\n{source}"


def generate_tangent(kernel: Any, case: Case) -> str:
    """The file of a tangent: facts and program."""
    primal = kernel.ir_of(case.types, case.same, case.single)
    names = frozenset(wanted(primal, case))
    pipeline.refuse_active_parameters(primal, names)
    options = options_for(kernel, case)
    options = replace(options, threads=options.threads and is_race_free(kernel, primal))
    derivative = pipeline.build_tangent(prepared(primal), names, options)
    position = {a.name: k for k, a in enumerate(primal.arguments)}
    (program,) = emit.spelled(without_constants(derivative.function, primal))
    structure, twice = plain_structure(primal.result)
    facts = {
        "names": tuple(a.shown for a in primal.arguments),
        "writes": tuple(sorted(position[n] for n in derivative.writes if n in position)),
        "becomes_active": tuple(sorted(position[n] for n in derivative.becomes_active if n in position)),
        "shadows": tuple(position[n] for n in derivative.shadows),
        "scalars": tuple(position[n] for n in derivative.scalars),
        "result_active": tuple(derivative.result_active),
        "result_dtypes": tuple(numpy_support.as_dtype(element(v.type)).name for v in results_of(primal)),
        "structure": structure,
        "twice": twice
        or primal.has_effects
        or not all(s.exact for s in ir.walk(primal.body) if isinstance(s, ir.Raise)),
        "forms": forms_in(primal.result),
        "drawn": random_draws.dtypes_of(primal),
        "checks_first": checks_first(primal),
    }
    source = emit.source(program)
    constants = constant_lines(program)
    text = [
        title("Tangent", kernel, primal, names),
        emit.header(source),
        *constants,
        *contract_lines(facts),
        f"TANGENT = {program.name!r}",
        f"THREADS = {case.threaded and bool(kernel.options.get('parallel')) and is_race_free(kernel, primal)!r}",
        *source_lines(kernel, primal, [source], constants),
        "\n",
        source,
        *disagreement(primal),
    ]
    return "\n".join(text)


def checks_first(primal: ir.Function) -> bool:
    """Return whether a kernel raises its exceptions before it writes to an argument."""
    own: set[str] = set()  # arrays that the kernel has made

    def may_write(body: tuple[ir.Stmt, ...]) -> bool:
        return any((w := written(s)) is not None and w.name not in own for s in ir.walk(body) if isinstance(s, ir.Stmt))

    def is_clean(body: tuple[ir.Stmt, ...], before: bool) -> bool:
        for s in body:
            if isinstance(s, (ir.For, ir.While)):
                before = before or may_write(s.body)
                inside = [s.body]
            else:
                inside = [s.then, s.orelse] if isinstance(s, ir.If) else [s.body] if isinstance(s, ir.Custom) else []
            sizes = s.shape if isinstance(s, ir.Alloc) else ()
            fails = isinstance(s, ir.Raise) or not all(isinstance(n, (ir.Const, ir.Size)) for n in sizes)
            if (before and fails) or not all(is_clean(part, before) for part in inside):
                return False
            before = before or may_write((s,))
        return True

    own |= {s.target.name for s in ir.walk(primal.body) if isinstance(s, ir.Alloc)}
    return not primal.has_effects and is_clean(primal.body, False)


def generate_second(kernel: Any, case: Case) -> str:
    """The file of the tangent of an adjoint: facts and program, on one thread."""
    usual = options_for(kernel, case)
    options = replace(usual, without=usual.without | OF_NUMBERS | pipeline.LAST)
    primal, adjoint = adjoint_of(kernel, case, options)
    first = adjoint.whole()
    code = first.function
    active = wanted(primal, case) | {a.name for a in code.arguments if a.role and a.role[0] in ("shadow", "seed")}
    derivative = pipeline.build_second(code, active, options_for(kernel, case))
    constants_of = dict(primal.constants)
    position = {a.name: k for k, a in enumerate(a for a in code.arguments if a.name not in constants_of)}
    (program,) = emit.spelled(without_constants(derivative.function, primal))
    facts = {
        "arrays": tuple(position[n] for n in derivative.shadows),
        "numbers": tuple(position[n] for n in derivative.scalars),
        "results": tuple(derivative.result_active),
        "distinct": tuple(position[n] for n in first.distinct),
        "new": tuple(position[n] for n in first.new),
    }
    source = emit.source(program)
    constants = constant_lines(program)
    text = [
        title("Tangent of the adjoint", kernel, primal, wanted(primal, case)),
        emit.header(source),
        *constants,
        *contract_lines(facts),
        f"SECOND = {program.name!r}",
        *source_lines(kernel, primal, [source], constants),
        "\n",
        source,
    ]
    return "\n".join(text)


def generate_lanes(kernel: Any, case: Case, count: int) -> str:
    """The file of an adjoint for several directions at once, whole and as the second part of a split adjoint.

    It has no programs if the adjoint has to run once for each direction.
    """
    usual = options_for(kernel, case)
    options = replace(usual, without=usual.without | OF_NUMBERS, lanes=count)
    functions: dict[str, Derivative] = {}
    why = ""
    try:
        primal, functions["whole"], split = derive(kernel, case, options)
        if split is not None:
            functions["split"] = split.derivative
    except NotInLanes as problem:
        primal, functions, why = kernel.ir_of(case.types, case.same, case.single), {}, str(problem)
    programs = emit.spelled(*(without_constants(d.function, primal) for d in functions.values()))
    position = {a.name: k for k, a in enumerate(primal.arguments)}
    facts = {
        form: {
            "program": program.name,
            "needs": tuple(sorted(position[n] for n in derivative.needs if n in position)),
            "distinct": tuple(position[n] for n in derivative.distinct),
            "after": tuple(position[n] for n in derivative.after),
            "new": tuple(position[n] for n in derivative.new),
        }
        for (form, derivative), program in zip(functions.items(), programs)
    }
    sources = [emit.source(program) for program in programs]
    heading = title(f"Adjoint in {count} directions at once", kernel, primal, wanted(primal, case))
    return lanes_file(kernel, primal, heading, facts, sources, constant_lines(*programs), why)


def generate_tangent_lanes(kernel: Any, case: Case, count: int) -> str:
    """The file of a tangent for several directions at once, without a program if it has to run once for each."""
    usual = options_for(kernel, case)
    primal = kernel.ir_of(case.types, case.same, case.single)
    options = replace(usual, without=usual.without | OF_NUMBERS, lanes=count)
    name, why, source = "", "", ""
    constants: list[str] = []
    try:
        derivative = pipeline.build_tangent(prepared(primal), wanted(primal, case), options)
        (program,) = emit.spelled(without_constants(derivative.function, primal))
        name, source, constants = program.name, emit.source(program), constant_lines(program)
    except NotInLanes as problem:
        why = str(problem)
    heading = title(f"Tangent in {count} directions at once", kernel, primal, wanted(primal, case))
    return lanes_file(kernel, primal, heading, name, [source], constants, why)


def lanes_file(
    kernel: Any, primal: ir.Function, heading: str, lanes: Any, sources: list[str], constants: list[str], why: str
) -> str:
    """A file of programs for several directions: with ``lanes``, the facts about them, or ``why`` there are none."""
    text = [
        heading,
        f"{emit.header(*sources)}from ampi.kernel.runtime.lanes import {', '.join(emit.LANES)}\n",
        *constants,
        f"LANES = {lanes!r}",
        *source_lines(kernel, primal, sources, constants),
        f"# once for each direction: {why}" if why else "",
        "\n",
        *(f"{source}\n" for source in sources),
    ]
    return "\n".join(text)


OF_NUMBERS = frozenset({"products", "strips", "stages"})
"""Passes that gain nothing if derivatives are vectors, or if the program is differentiated again."""


def generate_drawing(kernel: Any, case: Case) -> str:
    """The file of the program that draws a kernel's random numbers."""
    primal = kernel.ir_of(case.types, case.same, case.single)
    program = without_constants(pipeline.build_drawing(with_constants(primal)), primal)
    (program,) = identifiers.spelled((program,), emit.reserved())
    source = emit.source(program)
    constants = constant_lines(program)
    text = [
        title("Random numbers", kernel, primal, ()),
        f"{emit.header(source)}from ampi.kernel.runtime.random_state import {', '.join(emit.DRAWING)}\n",
        *constants,
        f"DRAWING = {program.name!r}",
        f"DTYPES = {random_draws.dtypes_of(primal)!r}",
        f"GENERATORS = {bool(primal.generators)!r}",
        *source_lines(kernel, primal, [source], constants),
        "\n",
        source,
    ]
    return "\n".join(text)


def plain_structure(result: Any) -> tuple[Any, bool]:
    """The structure of a result, and whether only the kernel itself can make it (named tuples)."""
    if not isinstance(result, tuple):
        return (None if result is None else "leaf"), False
    _, kind, items = result
    parts = [plain_structure(item) for item in items]
    return tuple(part for part, _ in parts), kind is not None or any(own or part is None for part, own in parts)


def is_race_free(kernel: Any, primal: ir.Function) -> bool:
    """Return whether parallel loops of the tangent may run on threads unchanged.

    An iteration writes the tangents of the elements that it writes.  A sum's tangent is a sum.  Tangents of products
    and extremes are carried from iteration to iteration, and Numba does not recognise these as reductions, nor those in
    loops over elements that come from operations on whole arrays.  Atomic additions of CUDA kernels are plain ones in
    single assignment form.
    """
    if any(isinstance(s, (ir.Accumulate, ir.Store)) and s.atomic for s in ir.walk(primal.body)):
        return False
    loops = [s for s in ir.walk(primal.body) if isinstance(s, ir.For) and s.parallel]
    operations = {operation for s in loops for _, operation in s.reductions}
    if any(s.reduces_arrays for s in loops):
        return False
    return operations <= (set() if kernel.deterministic else {"add"})


def active_leaves(kernel: Any, leaves: tuple[ir.Argument, ...], active: frozenset[str] | None) -> frozenset[str]:
    """The names of the leaves to differentiate; None: all that can carry derivatives."""
    if active is None:
        leaves = tuple(a for a in leaves if not a.is_a("drawn"))
        return frozenset(a.name for a in leaves if isinstance(element(a.type), (types.Float, types.Complex)))
    named: dict[str, list[str]] = {}
    for leaf in leaves:
        for name in {leaf.shown, "_".join(map(str, leaf.path))}:
            named.setdefault(name, []).append(leaf.name)
    shown = [leaf.shown for leaf in leaves]
    unknown = active - set(named)
    if unknown:
        raise ValueError(f"{kernel.__name__} has no argument {sorted(unknown)}; write some of {shown}")
    unclear = sorted(n for n in active if len(named[n]) > 1)
    if unclear:
        raise ValueError(f"{kernel.__name__} has several arguments called {unclear}; write some of {shown}")
    return frozenset(named[n][0] for n in active)


def title(kind: str, kernel: Any, primal: ir.Function, active: Iterable[str], remarks: Iterable[str] = ()) -> str:
    """The docstring of a generated file."""
    shown = ", ".join(f"{a.shown}: {a.type}" for a in primal.arguments)
    wanted = ", ".join(a.shown for a in primal.arguments if a.name in set(active)) or "nothing"
    lines = "".join(f"{remark}\n" for remark in remarks)
    return (
        f'"""{kind} of the kernel {kernel.__qualname__} ({primal.filename}:{primal.first_line}); made by ampi.\n\n'
        f'Arguments: {shown}\nActive: {wanted}\n{lines}"""\n'
    )


def element(type_: types.Type) -> types.Type:
    return type_.dtype if is_array(type_) else type_
