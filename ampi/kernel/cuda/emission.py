"""Source for ``numba.cuda.jit`` of a launch of a CUDA kernel, of its adjoint and of its tangent.

They are made from the same lowered form that runs on the processor: ``device_source`` replaces its loops over blocks
and threads by the indices of a thread.  Each program consists of a kernel and a host function, which makes what the
kernel needs (buffers, copies of arrays, sums), launches it, and returns the adjoints or tangents of numbers.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from numba import types

from ampi.kernel import arguments, ir, pipeline, programs
from ampi.kernel.codegen import emit
from ampi.kernel.cuda import second_program
from ampi.kernel.cuda.device_source import BOUND, Refuse, Writer, _Fresh, is_launch
from ampi.kernel.cuda.dialect import in_dialect
from ampi.kernel.cuda.fits import Fitting
from ampi.kernel.cuda.kernel_text import Kernel
from ampi.kernel.cuda.loops import OF_LAUNCH, Geometry
from ampi.kernel.cuda.lowering import Notes, lowered
from ampi.kernel.cuda.owners import Several
from ampi.kernel.cuda.preparations import FINAL, LENGTH, RUN, WINNER, Form, is_prepared
from ampi.kernel.cuda.spaces import Spaces
from ampi.kernel.frontend.base.source import read_source
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.inference import is_array
from ampi.kernel.options import Options

WITHOUT = frozenset({"gather", "behind", "strips", "stages", "products", "chains", "branches", "flat", "allocations"})
"""Passes that rearrange loops for a processor."""
HEADER = """\
import cmath
import math

import numpy as np

from ampi.kernel.gpu import added, blocks_of, copied, cuda, empty, number, parts, zeros
"""
RESERVED = frozenset("cmath math np cuda added blocks_of copied empty number parts zeros griddim stream blocks".split())


@dataclass
class Emitted:
    """A program for a GPU.

    Attributes
    ----------
    text : str
        The source.
    launch : str
        The name of the function that launches it.
    arguments : tuple of str
        The parameters of that function, after the grid.
    roles : tuple of (str, str)
        Their roles: ``("argument", name)``, ``("shadow", name)`` of an array or ``("tangent", name)`` of a number; in
        second order `second_program.build` has more.
    kernels : dict
        The types of the arguments of each of its kernels, by the kernels' names.
    facts : list of Kernel
        Facts about the kernels.
    leaves : tuple of str
        The arguments that a user passes, a structured array as one for each field.
    reads, writes : frozenset of str
        The arguments that are arrays of which elements are read, and written.
    dotted : tuple of bool
        In second order: for each active number, whether its adjoint has a tangent, which is returned after all
        adjoints.
    several : tuple of Several
        Lines in which threads store to the same element.
    fitting : Fitting
        Requires arrays of a launch to be large enough.
    """

    text: str
    launch: str
    arguments: tuple[str, ...]
    roles: tuple[tuple[str, str], ...]
    kernels: dict[str, tuple[Any, ...]]
    facts: list[Kernel]
    leaves: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    dotted: tuple[bool, ...] = ()
    several: tuple[Several, ...] = ()
    fitting: Fitting | None = None


_primals: weakref.WeakKeyDictionary[Any, dict[Any, tuple[ir.Function, Notes]]]
_primals = weakref.WeakKeyDictionary()


def primal(
    launch: Any, args: tuple[Any, ...], bounded: bool = False, form: Form = RUN
) -> tuple[ir.Function, Notes, Refuse]:
    """Return the lowered form of a launch, ready to be differentiated, what is found in it, and the function that
    refuses a line.  All programs of a launch share it."""
    kernel = launch.kernel
    plain = kernel.make(kernel.py_func, {})
    types_ = plain.types_of(tuple(map(arguments.plain, args)))
    key = geometry_of(launch), launch.shared, types_, bounded, form
    made = _primals.setdefault(kernel, {})
    if key not in made:
        notes = Notes()
        function = lowered(kernel.frozen_func, types_, *key[:2], bounded, None, notes, form)
        way = pipeline.State()
        made[key] = way.run("simplify", way.run("normalise", function)), notes
    source = read_source(kernel.frozen_func)

    def refuse(line: int, problem: str, advice: str) -> NoReturn:
        raise source.error(line, problem, advice) from None

    return (*made[key], refuse)


def geometry_of(launch: Any) -> Geometry:
    """Return the geometry of an emitted program: any number of blocks along x and along axes with several blocks."""
    return replace(launch.geometry, grid=(True, *launch.geometry.grid[1:]))


def emitted(launch: Any, args: tuple[Any, ...], mode: str, active: frozenset[str] | None = None) -> Emitted:
    """Return one of the programs (``mode``: "primal", "adjoint", "tangent" or "second") of a launch."""
    what = "run" if mode == "primal" else "known"
    for bounded, counted in ((False, False), (True, False), (True, True)):
        function, notes, refuse = primal(launch, args, bounded, Form(what, counted))
        made, dotted = program(launch, function, mode, active)
        (made,) = emit.identifiers.spelled((programs.without_constants(made, function),), RESERVED)
        before = tuple(preparations(launch, args, made, bounded, counted))
        try:
            result = written(made, launch, refuse if counted else _counted_next(refuse), before)
            break
        except _UnknownLength:
            continue
    result.dotted, result.several = dotted, tuple(notes.several)
    result.fitting = Fitting(launch.kernel, notes.accesses, visible(function))
    shown = {a.name: a.shown for a in made.arguments if a.path and not is_prepared(a)}
    result.leaves = tuple(a.shown for a in visible(function))
    result.reads = frozenset(shown[n] for n in read_in(made.body) if n in shown)
    result.writes = frozenset(shown[n] for n in stored_in(made.body) if n in shown)
    for one in before:
        result.reads |= one.emitted.reads
    return result


@dataclass
class Preparation:
    """A launch before that of a derivative: its program, and the first words of paths of arguments that it fills."""

    what: str
    emitted: Emitted
    function: ir.Function


def preparations(
    launch: Any, args: tuple[Any, ...], made: ir.Function, bounded: bool, counted: bool
) -> Iterator[Preparation]:
    """Iterate over the launches that fill arguments of a derivative."""
    wanted = {a.path[0] for a in made.arguments if is_prepared(a)}
    for first, whats in ((WINNER, ("run", "winners")), (LENGTH, ("lengths",))):
        for what in whats if first in wanted else ():
            function, _, refuse = primal(launch, args, bounded, Form(what))
            name = f"{function.name}_{EARLIER[what]}"
            run, _ = program(launch, replace(function, name=name), "primal", None)
            (run,) = emit.identifiers.spelled((programs.without_constants(run, function),), {*RESERVED, made.name})
            found = written(run, launch, refuse)
            shown = {a.name: a.shown for a in run.arguments if a.path and not is_prepared(a)}
            found.reads = frozenset(shown[n] for n in read_in(run.body) | stored_in(run.body) if n in shown)
            yield Preparation(what, found, run)


EARLIER = {"run": "extremes", "winners": "winners", "lengths": "lengths"}
"""Ends of the names of launches before a derivative."""


class _UnknownLength(Exception):
    """An array of the adjoint has no size that is known before the launch."""


def _counted_next(refuse: Refuse) -> Refuse:
    def raise_or_refuse(line: int, problem: str, advice: str) -> NoReturn:
        if advice == BOUND:
            raise _UnknownLength
        refuse(line, problem, advice)

    return raise_or_refuse


def read_in(body: tuple[ir.Stmt, ...]) -> set[str]:
    """Return the names of arrays whose elements a program reads, or which it copies."""
    copies = {n.fill.name for n in ir.walk(body) if isinstance(n, ir.Alloc) and isinstance(n.fill, ir.Var)}
    return copies | {n.array.name for n in ir.walk(body) if isinstance(n, (ir.Load, ir.Accumulate))}


def stored_in(body: tuple[ir.Stmt, ...]) -> set[str]:
    """Return the names of arrays whose elements a program changes."""
    return {n.array.name for n in ir.walk(body) if isinstance(n, (ir.Store, ir.Accumulate))}


def program(
    launch: Any, function: ir.Function, mode: str, active: frozenset[str] | None
) -> tuple[ir.Function, tuple[bool, ...]]:
    """Return a program of a lowered kernel, with loops over blocks and threads, and `Emitted.dotted`."""
    options = Options(without=WITHOUT, unchecked=True)
    if mode == "primal":
        way = pipeline.State(options)
        made = way.run("prune", way.run("construct", programs.prepared(function)))
        return way.run("finish", made, only=("destruct",)), ()
    build = {"adjoint": pipeline.build_adjoint, "tangent": pipeline.build_tangent, "second": second_program.build}[mode]
    names = programs.active_leaves(launch.kernel, visible(function), active)
    made = build(programs.prepared(function), names, options)
    return made.function, made.result_active if mode == "second" else ()


def visible(function: ir.Function) -> tuple[ir.Argument, ...]:
    """Return the arguments that a user passes."""
    return tuple(a for a in function.arguments if not (of_launch(a) or is_prepared(a)))


def of_launch(a: ir.Argument) -> bool:
    return a.path in OF_LAUNCH


def written(function: ir.Function, launch: Any, refuse: Refuse, before: tuple[Preparation, ...] = ()) -> Emitted:
    """Return a program as text: a kernel for each of its launches, and a function that launches them, after those
    ``before`` it."""
    leaves = [a for a in function.arguments if not of_launch(a)]
    given = [a.name for a in leaves]
    types_ = {a.name: a.type for a in leaves}
    own = {s.target.name: s for s in function.body if isinstance(s, ir.Alloc)}
    numbers = [k for k, s in enumerate(function.body) if is_launch(s)]
    name, block = function.name, launch.geometry.block
    texts: list[str] = []
    calls: list[str] = []
    kernels: dict[str, tuple[Any, ...]] = {}
    facts: list[Kernel] = []
    totals: dict[str, str] = {}
    constants = dict(function.constants)
    for one in before:
        texts += [one.emitted.text.removeprefix(HEADER).strip(), "", ""]
        kernels |= one.emitted.kernels
        facts += one.emitted.facts
    for k, number in enumerate(numbers):
        writer = Writer(function, number, geometry_of(launch), refuse)
        made = writer.run()
        facts.append(made)
        totals |= {v.name: writer.totals[v.name] for v in made.sums}
        used = {n.name for n in ir.walk(writer.body) if isinstance(n, ir.Var)}
        shared = [n for n in own if n in used]
        extra = [*shared, *(writer.totals[v.name] for v in made.sums), *(n for n, _, _ in made.buffers)]
        views = [f"parts({n})" for n in made.parts]
        kernel = f"{name}_kernel" if len(numbers) == 1 else f"{name}_kernel_{k + 1}"
        parameters = ", ".join([*given, *extra, *made.parts.values()])
        arguments = ", ".join([*given, *extra, *views])
        texts += ["@cuda.jit", f"def {kernel}({parameters}):", *made.lines, "", ""]
        calls += [f"    {writer.totals[v.name]} = zeros(1, {emit.numpy_name(v.type)})" for v in made.sums]
        calls += [f"    {b} = empty(({shape},), {emit.numpy_name(ty.dtype)})" for b, shape, ty in made.buffers]
        calls.append(f"    {kernel}[griddim, {block}, stream]({arguments})")
        sums = [types.Array(v.type, 1, "C") for v in made.sums]
        buffers = [ty for _, _, ty in made.buffers]
        kernels[kernel] = (*(types_[n] for n in given), *(own[n].target.type for n in shared), *sums, *buffers)
        known = dict(zip([*given, *extra], kernels[kernel]))
        kernels[kernel] += tuple(parts_type(known[n]) for n in made.parts)
    blocks = [a.name for a in function.arguments if of_launch(a)][:3]
    prepared, leaves = host_preparations(function, leaves, before)
    lines = [
        f"def {name}({', '.join(['griddim', *(a.name for a in leaves), 'stream=0'])}):",
        f"    {', '.join(blocks)} = blocks_of(griddim)",
    ]
    lines.append(f"    blocks = {' * '.join(blocks)}")
    lines += prepared
    space = Spaces(function.body, geometry_of(launch), frozenset(a.name for a in function.arguments))
    lines += [f"    {n} = {host_array(s, space, refuse)}" for n, s in own.items()]
    lines += calls + after_launches(function.body, totals, refuse)
    globals_ = [f"{n} = {programs.array_source(a)}" for n, a in constants.items()]
    text = "\n".join([HEADER, *globals_, "" if not globals_ else "\n", *texts, *lines]) + "\n"
    roles = tuple(("argument", a.shown) if a.path else (a.role[0], str(a.role[1])) for a in leaves if a.path or a.role)
    return Emitted(text, name, tuple(a.name for a in leaves), roles, kernels, facts)


def host_preparations(
    function: ir.Function, leaves: list[ir.Argument], before: tuple[Preparation, ...]
) -> tuple[list[str], list[ir.Argument]]:
    """Return the host's statements that find arguments of a derivative by launches before it, and the arguments that
    remain: those, and any other that these launches need."""
    if not before:
        return [], leaves
    own = {a.shown: a.name for a in leaves if is_prepared(a)}
    leaves = [a for a in leaves if not is_prepared(a)]
    known = {a.shown: a.name for a in leaves if a.path}
    fresh = _Fresh(
        {a.name for a in function.arguments} | {n.name for n in ir.walk(function.body) if isinstance(n, ir.Var)}
    )
    finals: dict[str, str] = {}
    lines: list[str] = []
    for one in before:
        after: list[str] = []
        items: list[str] = []
        stored = stored_in(one.function.body)
        for a in one.function.arguments:
            if of_launch(a):
                continue
            if a.path and a.path[0] == LENGTH:
                length = own.get(a.shown) or fresh("length")
                lines.append(f"    {length} = zeros(1, np.int64)")
                after.append(f"    {length} = number({length})")
                items.append(length)
            elif a.path and a.path[0] == WINNER:
                winner = own.get(a.shown) or fresh("winner")
                lines.append(f"    {winner} = zeros({known[a.path[1]]}.shape, np.int64)")
                items.append(winner)
            elif a.path and a.path[0] == FINAL:
                items.append(finals[a.path[1]])
            else:
                if a.shown not in known:
                    known[a.shown] = fresh(a.name)
                    leaves.append(replace(a, name=known[a.shown]))
                item = known[a.shown]
                if a.name in stored:
                    copy = fresh(f"{item}_copy")
                    lines.append(f"    {copy} = copied({item})")
                    if one.what == "run":
                        finals[a.shown] = copy
                    item = copy
                items.append(item)
        lines += [f"    {one.emitted.launch}(griddim, {', '.join(items)}, stream=stream)", *after]
    return lines, leaves


def parts_type(array: types.Array) -> types.Array:
    """Return the type of an array of the real and imaginary parts of complex numbers."""
    return types.Array(array.dtype.underlying_float, array.ndim + 1, "A")


def host_array(s: ir.Alloc, spaces: Spaces, refuse: Refuse) -> str:
    """Return the host's statement that makes an array of a program."""
    if isinstance(s.fill, ir.Var) and is_array(s.fill.type):
        return f"copied({s.fill.name})"
    sizes = [spaces.of_host(n) for n in s.shape]
    if any(n is None for n in sizes):
        refuse(s.line, "the size of an array of the adjoint is not known before the launch", BOUND)
    shape = ", ".join(emit.expression(index_algebra.tidy(n)) for n in sizes if n is not None)
    made = "empty" if s.fill is None else "zeros"
    if s.fill is not None and not (isinstance(s.fill, ir.Const) and s.fill.value == 0):
        refuse(s.line, "an array is filled before the launch", "fill it in a separate launch")
    return f"{made}(({shape},), {emit.numpy_name(s.target.type.dtype)})"


def after_launches(body: tuple[ir.Stmt, ...], totals: dict[str, str], refuse: Refuse) -> list[str]:
    """Return the host's statements after the launches, which use the sums over threads."""
    result = body[-1] if body else None  # a kernel without effect has no statements
    if not isinstance(result, ir.Return):
        return []
    wanted = {n.name for v in result.values for n in ir.walk(v) if isinstance(n, ir.Var)}
    lines: list[str] = []

    def text(e: ir.Expr) -> str:
        if any(isinstance(n, ir.Load) for n in ir.walk(e)):
            refuse(result.line, "all threads read this element, and its adjoint is added up after the launch",
                   "read it inside a condition on the thread, or pass it as a number")  # fmt: skip
        shared = "of a number that all threads share"
        no = lambda name: refuse(result.line, f"{name}() {shared}", "compute it before the launch")
        return in_dialect(emit.expression(e), no)

    def statement(s: ir.Stmt, depth: int) -> list[str]:
        indent = "    " * depth
        match s:
            case ir.Assign():
                return [f"{indent}{s.target.name} = {text(s.value)}"]
            case ir.Accumulate():
                return [f"{indent}added({s.array.name}, ({', '.join(map(text, s.index))},), {text(s.value)})"]
            case ir.If():
                then = [line for t in s.then for line in statement(t, depth + 1)]
                orelse = [line for t in s.orelse for line in statement(t, depth + 1)]
                rest = [f"{indent}else:", *orelse] if orelse else []
                return [f"{indent}if {text(s.condition)}:", *(then or [f"{indent}    pass"]), *rest]
        refuse(
            s.line, "a statement of all threads together after the launch", "let one thread run it in a separate launch"
        )

    needed: list[list[str]] = []
    is_after = True
    for s in reversed(body[:-1]):
        if is_launch(s):
            is_after = False
            names = [name for name, _ in s.reductions if name in totals]  # type: ignore[attr-defined]
            needed.append([f"    {n} = number({totals[n]})" for n in names])
            continue
        if isinstance(s, ir.Alloc):
            continue
        changed = {n.target.name for n in ir.walk(s) if isinstance(n, ir.Assign)}
        stores = any(isinstance(n, (ir.Store, ir.Accumulate)) for n in ir.walk(s))
        if stores and not is_after:
            refuse(s.line, "a statement of all threads together before a launch",
                   "let one thread run it in a separate launch")  # fmt: skip
        if changed & wanted or stores:
            wanted |= {n.name for n in ir.walk(s) if isinstance(n, ir.Var)}
            needed.append(statement(s, 1))
    for found in reversed(needed):
        lines += found
    return [*lines, f"    return ({', '.join(map(text, result.values))},)"] if result.values else lines


def source_of(launch: Any, args: tuple[Any, ...], mode: str, active: frozenset[str] | None = None) -> str:
    """Return a program as the text of a file."""
    made = emitted(launch, args, mode, active)
    kernel = launch.kernel
    size = " x ".join(map(str, launch.block))
    axes = "x" + "".join(f", {a}" for a, several in zip("yz", geometry_of(launch).grid[1:]) if several)
    lines = [
        f'"""{TITLES[mode]} the CUDA kernel {kernel.__qualname__}, for blocks of {size} threads; made by ampi.',
        "",
        f"{made.launch}(griddim, {', '.join(made.arguments)})",
        f"launches it on a grid of blocks along {axes}, with arrays on the device.  {WHAT[mode]}",
        *report(made),
        '"""',
        "",
        made.text,
    ]
    return "\n".join(line.rstrip() for line in lines)


def report(made: Emitted, registers: dict[str, str] | None = None) -> list[str]:
    """Return a report, in lines, of how a program's kernels store into arguments and of the resources that they use."""
    lines: list[str] = []
    for name, facts in zip(made.kernels, made.facts):
        for array in sorted({array for array, _ in facts.stores}):
            ways = [how for how in STORES if (array, how) in facts.stores]
            if len(ways) > 1 and "own" in ways:
                ways.remove("own")  # where one way is atomic, no thread owns the array
            for how in ways:
                places = facts.stores[array, how]
                at = ", ".join(map(str, sorted(places)))
                example = f", as {places[min(places)]}"
                lines.append(f"{array}: {STORES[how].format(at=at, example=example)}")
        sizes = f"{facts.shared_bytes} bytes of shared memory, {facts.barriers} barriers"
        sizes = f"{registers[name]}, {sizes}" if registers else sizes
        lines.append(f"{name}: {sizes}" + "".join(f", buffer {b} of {shape}" for b, shape, _ in facts.buffers))
    for array in dict.fromkeys(re.findall(r"^ +added\((\w+),", made.text, re.MULTILINE)):
        lines.append(f"{array}: sums over all threads, added after the launch: all threads use one element")
    return lines


STORES = {
    "own": "plain stores (line {at}): no two threads use one element, which the indices of a thread tell{example}",
    "stored": "plain stores (line {at}): by the thread that stores the element in the kernel{example}",
    "add": "atomic additions (line {at}): several threads may use one element{example}",
    "max": "atomic maxima (line {at}): several threads may use one element{example}",
    "min": "atomic minima (line {at}): several threads may use one element{example}",
}
TITLES = {"primal": "Source of", "adjoint": "Adjoint of", "tangent": "Tangent of"}
WHAT = {
    "primal": "",
    "adjoint": "The arguments have the values\n"
    "from before the launch of the kernel; the adjoints of arrays are updated, those of numbers returned.",
    "tangent": "It runs the kernel's statements,\nand updates the tangents of arrays.",
}
