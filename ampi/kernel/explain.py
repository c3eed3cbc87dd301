"""A description of a kernel's adjoint for users: `Kernel.explain`."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import numba
import numpy as np
from numba import types

from ampi.kernel import arguments, ir
from ampi.kernel.ir import Const, Expr, Op, Size, Var
from ampi.kernel.ir.names import stem
from ampi.kernel.ir.remarks import Kind
from ampi.kernel.runtime import threads

FORMS = {
    threads.ALONE: "one thread",
    threads.APART: "threads",
    threads.OWN: "private arrays per thread",
    threads.ATOMIC: "atomic additions",
    threads.NEAR: "alternating blocks",
}
_INTEGERS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "cast": int,
}


def explain(
    kernel: Any, bound: tuple[Any, ...], primal: ir.Function, derivative: Any, split: Any, active: list[str]
) -> str:
    """The text of `Kernel.explain` for arguments given by position."""
    leaves = dict(zip((a.name for a in primal.arguments), map(arguments.plain, arguments.flatten(bound))))
    wanted = ", ".join(a.shown for a in primal.arguments if a.name in active) or "nothing"
    lines = [f"{kernel.__qualname__} ({primal.filename}:{primal.first_line})", f"adjoint with respect to {wanted}", ""]
    lines += ["arguments", *_indented(_arguments(primal, derivative, active)), ""]
    lines += ["loops", *_indented(_loops(primal, derivative, leaves)), ""]
    lines += ["kept", *_indented(_kept(derivative, split)), ""]
    lines += ["costs", *_indented(_costs(primal, derivative, split, leaves))]
    return "\n".join(lines)


def explain_passes(seen: Iterable[Any]) -> str:
    """A table of the passes: number of runs, time, and statements after the last run."""
    rows: dict[tuple[str, str], list[Any]] = {}
    for observation in seen:
        rows.setdefault((observation.stage, observation.name), []).append(observation)
    lines = ["passes", f"    {'stage':14}{'pass':14}{'times':>6}{'ms':>9}{'statements':>12}"]
    for (stage, name), found in rows.items():
        total = 1e3 * sum(o.seconds for o in found)
        lines.append(f"    {stage:14}{name:14}{len(found):6}{total:9.2f}{found[-1].statements:12}")
    return "\n".join(lines)


def _indented(lines: Iterator[str]) -> list[str]:
    return ["    " + line for line in lines]


def _arguments(primal: ir.Function, derivative: Any, active: list[str]) -> Iterator[str]:
    width = max((len(a.shown) for a in primal.arguments), default=0)
    for a in primal.arguments:
        words = []
        if a.name in active:
            words.append("differentiated")
        elif a.name in derivative.becomes_active:
            words.append("receives derivatives")
        if isinstance(a.type, types.Array):
            words.append({(True, True): "read and written", (True, False): "read", (False, True): "written"}.get(
                (a.name in derivative.reads, a.name in derivative.writes), "not used"))  # fmt: skip
            if a.name in derivative.needs:
                words.append("the adjoint needs its values")
            elif a.name in active:
                words.append("the adjoint does not need its values")
        yield f"{a.shown:{width}}  {'; '.join(words) or 'not differentiated'}"


def _loops(primal: ir.Function, derivative: Any, leaves: dict[str, Any]) -> Iterator[str]:
    launches = {s.line: s for s in ir.walk(derivative.function.body) if isinstance(s, ir.Launch)}
    by_line: dict[int, list[str]] = {}
    for remark in derivative.remarks:
        if remark.line is not None and remark.kind is not Kind.SAVED:
            by_line.setdefault(remark.line, []).append(remark.sentence)
    loops = {s.line for s in ir.walk(primal.body) if isinstance(s, (ir.For, ir.While))}
    for line in sorted(loops | set(launches)):
        yield f"line {line}: {linecache.getline(primal.filename, line).strip()}"
        facts = by_line.get(line, [])
        if line in launches:
            facts += list(_chosen(launches[line], derivative, leaves))
        for fact in facts or ["on one thread, iteration by iteration"]:
            yield from textwrap.wrap(fact, 100, initial_indent="    ", subsequent_indent="        ")
    if not loops:
        yield "none"


def _kept(derivative: Any, split: Any) -> Iterator[str]:
    remarks = derivative.remarks if split is None else split.derivative.remarks
    found = [str(remark) for remark in remarks if remark.kind in (Kind.SAVED, Kind.COPIED)]
    yield from found or ["nothing: the adjoint recomputes what it needs"]
    if split is not None:
        yield "saved while the kernel runs, as long as the tape has room; otherwise the adjoint runs forward once more"


def _costs(primal: ir.Function, derivative: Any, split: Any, leaves: dict[str, Any]) -> Iterator[str]:
    """Notes on why an adjoint is expensive: large arrays with little arithmetic, or operations of BLAS and LAPACK."""
    nbytes = sum(leaves[name].nbytes for name in derivative.shadows)
    yield f"adjoints of arrays: {nbytes / 2**20:.3g} MiB to write, where the kernel may only read that much once"
    backward = (derivative if split is None else split.derivative).function
    own, others = (sum(isinstance(s, ir.Fill) for s in ir.walk(f.body)) for f in (primal, backward))
    if own:
        yield f"operations on whole matrices: {own} in the kernel, {others} in the adjoint"


def _chosen(s: ir.Launch, derivative: Any, leaves: dict[str, Any]) -> Iterator[str]:
    """The form that `threads.choose` picks for these arguments, with the costs that it compares."""
    shadows = {a.name: a.role[1] for a in derivative.function.arguments if a.is_a("shadow")}
    start, stop = (_value(e, derivative.function, leaves) for e in (s.start, s.stop))
    sizes = [np.size(leaves[shadows[a.name]]) if a.name in shadows else None for a in s.shared]
    if start is None or stop is None or None in sizes:
        yield "the form is chosen when it runs: it depends on values computed there"
        return
    trips, count = max(stop - start, 0), s.count or numba.get_num_threads()
    costs = threads.TYPICAL if s.count else threads.costs()
    index_of = {a.name: a.role[1] for a in derivative.function.arguments if a.is_a("distinct")}
    flags = [index_of[flag.name] for flag in s.distinct if isinstance(flag, Var)]
    apart = not s.shared
    if s.distance:
        apart = trips >= 2 * s.distance * count
    elif flags:
        answers = {n: threads.distinct(leaves[n]) for n in flags}
        apart = all(answers.values())
        for n, answer in answers.items():
            yield f"here {stem(n)} names {'no element twice' if answer else 'an element more than once'}"
    facts = (trips, s.work, sum(n or 0 for n in sizes), s.increments, count, apart, s.added and not s.distance)
    near = bool(s.reaches) and count > 1 and all(_are_apart(r, start, stop, 2 * count, leaves) for r in s.reaches)
    form = getattr(threads.choose, "py_func", threads.choose)(*facts, near, costs)
    parts = "" if form == threads.ALONE else f" in {2 * count if form == threads.NEAR else count} parts"
    found = threads.estimates(*facts, near, costs)
    estimates = ", ".join(f"{FORMS[f]} {cost / 1e3:.3g} us" for f, cost in found.items())
    word = "on" if form in (threads.ALONE, threads.APART) else "in" if form == threads.NEAR else "with"
    yield f"here {trips} iterations run {word} {FORMS[form]}{parts} (estimates: {estimates})"


def _are_apart(r: ir.Reach, start: int, stop: int, blocks: int, leaves: dict[str, Any]) -> bool:
    index = leaves[r.index.name]
    facts = (r.first, r.last, r.own, r.low, r.high, start, stop, blocks)
    return bool(threads.blocks_are_apart.py_func(index.reshape(-1), index.shape[0], *facts))


def _value(e: Expr, function: ir.Function, leaves: dict[str, Any], depth: int = 0) -> int | None:
    """The value of an integer expression that the arguments determine, or None."""
    match e:
        case Const(value=value):
            return int(value)
        case Size(array=array, axis=axis) if array.name in leaves:
            return int(np.shape(leaves[array.name])[axis])
        case Var(name=name) if name in leaves:
            return int(leaves[name])
        case Var(name=name) if depth < 20:
            found = [s.value for s in ir.walk(function.body) if isinstance(s, ir.Assign) and s.target.name == name]
            return _value(found[0], function, leaves, depth + 1) if len(found) == 1 else None
        case Op(name=name, args=args) if name in _INTEGERS:
            values = [_value(a, function, leaves, depth + 1) for a in args]
            return None if None in values else int(_INTEGERS[name](*values))
    return None
