"""Activity analysis: the values that are varied (depend on an active argument) and useful (results depend on them).

Scalars are in single assignment form, so one answer per name is exact up to control flow; arrays have one answer each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import TABLE, is_differentiable
from ampi.kernel.ir.ssa import Branch, Custom, Loop, definitions, every


@dataclass(frozen=True)
class Activity:
    """The names of scalars and arrays that are varied, and of those that are useful as well."""

    varied: frozenset[str]
    active: frozenset[str]


def analyse(function: ir.Function, arguments: Iterable[str], switched_on: bool = True) -> Activity:
    """Activity for a set of active arguments.

    Arrays among the arguments are useful throughout: the caller may read them.  Switched off, all that can carry a
    derivative counts as varied and useful.
    """
    flows = list(_flows(function.body))
    if not switched_on:
        names = {v.name for s in every(function.body) for v in definitions(s) if is_differentiable(v.type)}
        names |= {a.name for a in function.arguments if is_differentiable(a.type)}
        passive = {a.name for a in function.arguments} - set(arguments)
        written_to = {target for target, _ in flows}
        names -= {n for n in passive if n not in written_to}
        return Activity(frozenset(names), frozenset(names))
    varied = set(arguments)
    _close(varied, [(target, sources) for target, sources in flows], forward=True)
    useful = {a.name for a in function.arguments if isinstance(a.type, types.Array)}
    for s in every(function.body):
        if isinstance(s, ir.Return):
            useful |= {v.name for v in s.values if isinstance(v, Var)}
    _close(useful, flows, forward=False)
    return Activity(frozenset(varied), frozenset(varied & useful))


def _close(names: set[str], flows: list[tuple[str, tuple[str, ...]]], forward: bool) -> None:
    """Add the names into (or out of) which the names of a set flow, until nothing is added."""
    growing = True
    while growing:
        size = len(names)
        for target, sources in flows if forward else reversed(flows):
            if forward and not names.isdisjoint(sources):
                names.add(target)
            elif not forward and target in names:
                names.update(sources)
        growing = len(names) > size


def _flows(body: tuple[Stmt, ...]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """For each value or array that can carry a derivative, the names whose derivatives flow into it."""
    for s in every(body):
        if isinstance(s, Custom):
            names = tuple(n for e in s.inputs if (n := _name(e)) is not None)
            yield from ((n, names) for e in s.results if (n := _name(e)) is not None and is_differentiable(e.type))
        match s:
            case ir.Assign(target=target, value=value):
                yield from _flow(target, value)
            case ir.Store(array=array, value=value) | ir.Accumulate(array=array, value=value):
                yield from _flow(array, value)
            case ir.Fill(target=target, arguments=arguments):
                for argument in arguments:
                    yield from _flow(target, argument)
            case ir.Alloc(target=target, fill=fill) if fill is not None:
                yield from _flow(target, fill)
            case Loop(carried=carried):
                for c in carried:
                    yield from _flow(c.var, c.init)
                    yield from _flow(c.var, c.next)
            case Branch(joins=joins):
                for j in joins:
                    yield from _flow(j.var, j.then)
                    yield from _flow(j.var, j.orelse)


def _name(e: Expr) -> str | None:
    """The scalar, or the array that a value is a part of."""
    return e.name if isinstance(e, Var) else e.array.name if isinstance(e, ir.Load) else None


def _flow(target: Var, value: Expr) -> Iterable[tuple[str, tuple[str, ...]]]:
    if not is_differentiable(target.type):
        return
    match value:
        case Var() if is_differentiable(value.type):
            yield target.name, (value.name,)
        case ir.Load(array=array):
            yield target.name, (array.name,)
        case Op(name=name, args=args):
            partials = TABLE[name].partials
            moving = [a for a, p in zip(args, partials) if p is not None and isinstance(a, Var)]
            yield target.name, tuple(a.name for a in moving if is_differentiable(a.type))
