"""Transposition: the adjoint that follows from a user's tangent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.linearity import departure
from ampi.kernel.differentiate.derivative import Derivative
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.custom_rules import Rule, Tangent, constant_arguments
from ampi.kernel.ir.inference import is_array
from ampi.kernel.ir.intrinsics import constant, is_differentiable
from ampi.kernel.ir.liveness import assigned, stored
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped

Build = Callable[[ir.Function, Iterable[str]], Derivative]


def transpose(tangent: Tangent, build: Build) -> Rule:
    """The adjoint that follows from a tangent, built by ``build``; its residuals are the arguments and the result.

    A linear function is its own tangent, so its adjoint at any point is the transpose.
    """
    constants = constant_arguments(tangent.function)
    names = [a.name for a in tangent.tangents]
    body, results = with_known_results(tangent)
    arguments = (*tangent.primals, *results, *tangent.tangents, *constants)
    function = replace(tangent.function, arguments=arguments, constants=(), body=body)
    problem = departure(construct(function), names)
    if problem is not None:
        raise tangent.error(*problem)
    adjoint = build(function, names)
    dots = [k for k in tangent.dots if k is not None]
    beyond = [k for k, is_active in enumerate(adjoint.result_active) if is_active and k not in dots]
    if beyond or adjoint.becomes_active:
        raise tangent.error(function.first_line, "the result itself depends on the tangents")
    *adjoint_body, last = adjoint.function.body
    assert isinstance(last, ir.Return)
    like = dict(zip(names, (a for a in tangent.primals if is_differentiable(a.type))))
    shadow = {a.role[1]: ir.Var(a.name, a.type) for a in adjoint.function.arguments if a.is_a("shadow")}
    seeds = {a.role[1]: a for a in adjoint.function.arguments if a.is_a("seed")}
    fresh = Names.of(adjoint.function).fresh
    begin = []
    for n, array in shadow.items():
        of = ir.Var(like[n].name, like[n].type)
        shape = tuple(ir.Size(of, axis, types.intp) for axis in range(of.type.ndim))
        begin.append(ir.Alloc(array, shape, constant(0, array.type.dtype)))
    scalars = dict(zip(adjoint.scalars, last.values))
    bars = [shadow.get(n, scalars.get(n)) for n in names]
    counter = iter(range(len(bars)))
    positions = tuple(None if bar is None else next(counter) for bar in bars)
    values = tuple(bar for bar in bars if bar is not None)
    extra = []
    for at, dot in zip(tangent.values, tangent.dots):
        type_ = tangent.results[at].type
        if is_differentiable(type_):
            plain = type_.copy(layout="C", readonly=False) if is_array(type_) else type_
            extra.append(seeds.get(dot, ir.Argument(fresh("unused"), plain, role=("unused", at))))
    sizes = {n: ir.Var(a.name, a.type) for n, a in like.items()}
    resized = lambda e: replace(e, array=sizes[e.array.name]) if isinstance(e, ir.Size) and e.array.name in sizes else e
    whole = tuple(mapped(s, resized) for s in (*begin, *adjoint_body, ir.Return(values)))
    assert not {n.name for n in ir.walk(whole) if isinstance(n, ir.Var)} & set(names)
    leaves = (*tangent.primals, *results, *constants, *extra)
    backward = replace(function, arguments=leaves, body=whole, result=("tuple", len(values)))
    return Rule(tangent.name, backward, positions)


def with_known_results(tangent: Tangent) -> tuple[tuple[ir.Stmt, ...], tuple[ir.Argument, ...]]:
    """The body of a tangent without the statements that compute known results, and arguments for these results.

    A result is known if it is complete before the first statement that involves tangents.
    """
    function = tangent.function
    names = {a.name for a in tangent.tangents}
    body = function.body
    *body, last = body
    begin = next((k for k, s in enumerate(body) if _mentions(s, names)), len(body))
    before, after = tuple(body[:begin]), tuple(body[begin:])
    changed = assigned(after) | stored(after) | {s.array.name for s in ir.walk(after) if isinstance(s, ir.Alias)}
    complete = (assigned(before) | stored(before)) - changed
    fresh = Names.of(function).variable
    known: dict[str, ir.Expr] = {}
    extra = []
    for at in tangent.values:
        value = tangent.results[at]
        name = value.name if isinstance(value, ir.Var) else None
        type_ = value.type.copy(layout="C", readonly=False) if is_array(value.type) else value.type
        argument = fresh(f"{name or 'result'}_given", type_)
        extra.append(ir.Argument(argument.name, type_, role=("result", at)))
        if name is not None and name in complete:
            known[name] = argument
    known_or_same = lambda e: known.get(e.name, e) if isinstance(e, ir.Var) else e
    put = lambda e: mapped(e, known_or_same)
    values = tuple(v if k in tangent.values else put(v) for k, v in enumerate(tangent.results))
    assert isinstance(last, ir.Return)
    return (*before, *map(put, after), replace(last, values=values)), tuple(extra)


def _mentions(s: ir.Stmt, names: set[str]) -> bool:
    """Return whether a statement uses any of these names, other than for the size of an array."""
    nodes = list(ir.walk(s))
    count = Counter(n.name for n in nodes if isinstance(n, ir.Var))
    count.subtract(n.array.name for n in nodes if isinstance(n, ir.Size))
    return any(count[n] for n in names)
