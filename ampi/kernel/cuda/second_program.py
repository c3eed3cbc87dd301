"""The tangent of the adjoint of a lowered CUDA kernel, as source for a GPU needs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir, pipeline, programs
from ampi.kernel.ir import index_algebra
from ampi.kernel.options import Options


def build(function: ir.Function, active: frozenset[str], options: Options) -> Any:
    """Return the tangent of an adjoint, a `Derivative`.

    Its ``result_active`` says which adjoints of numbers have a tangent.

    Arguments that hold tangents have the role ``("tangent", name)``; tangents of adjoints have ``("shadow tangent",
    name)``.
    """
    more = replace(options, without=options.without | programs.OF_NUMBERS | pipeline.LAST)
    adjoint = pipeline.build_adjoint(function, active, more).function
    adjoint = replace(adjoint, body=tuple(map(_upward, adjoint.body)))
    shadows = {a.name: str(a.role[1]) for a in adjoint.arguments if a.role and a.role[0] == "shadow"}
    made = pipeline.build_second(adjoint, active | set(shadows), options)
    count = len(adjoint.arguments)
    dots = [
        replace(a, role=("shadow tangent", shadows[n]) if n in shadows else ("tangent", n))
        for a in made.function.arguments[count:]
        if a.role and (n := str(a.role[1]))
    ]
    arguments = (*made.function.arguments[:count], *dots)
    return replace(made, function=with_copies(replace(made.function, arguments=arguments)))


def _upward(s: ir.Stmt) -> ir.Stmt:
    """Return a statement whose loops over blocks and threads, which need no order, count upwards."""
    s = ir.in_blocks(s, lambda block: tuple(map(_upward, block)))
    if isinstance(s, ir.For) and s.axis and isinstance(s.step, ir.Const) and s.step.value == -1:
        return replace(s, start=_next(s.stop), stop=_next(s.start), step=ir.Const(1, types.int64))
    return s


def _next(e: ir.Expr) -> ir.Expr:
    return index_algebra.tidy(ir.Op("add", (e, ir.Const(1, types.int64)), types.int64))


def with_copies(function: ir.Function) -> ir.Function:
    """Return a function in which loops at its top that only copy arguments into new arrays are copies of arrays."""
    primal = {a.name: str(a.role[1]) if a.is_a("tangent") else a.name for a in function.arguments}
    new = {s.target.name for s in function.body if isinstance(s, ir.Alloc)}
    sources: dict[str, ir.Var] = {}
    body: list[ir.Stmt] = []
    for s in function.body:
        copied = _copied(s, (), primal)
        if copied and new.issuperset(copied):
            sources |= copied
        else:
            body.append(s)
    made = (
        replace(s, fill=sources[s.target.name]) if isinstance(s, ir.Alloc) and s.target.name in sources else s
        for s in body
    )
    return replace(function, body=tuple(made))


def _copied(s: ir.Stmt, around: tuple[ir.For, ...], primal: dict[str, str]) -> dict[str, ir.Var]:
    """Return the arrays that nested loops fill with all elements of arguments, if that is all they do."""
    match s:
        case ir.For(axis="", start=ir.Const(value=0), step=ir.Const(value=1), stop=ir.Size()):
            found = [_copied(inner, (*around, s), primal) for inner in s.body]
            return {n: v for part in found for n, v in part.items()} if all(found) else {}
        case ir.Store(value=ir.Load(array=source, index=index)) if index == s.index and source.name in primal:
            name = primal[source.name]  # a tangent has the shape of its primal
            whole = [(n.array.name, n.axis) for loop in around if isinstance(n := loop.stop, ir.Size)]
            if whole == [(name, k) for k in range(len(index))] and index == tuple(loop.var for loop in around):
                return {s.array.name: source}
    return {}
