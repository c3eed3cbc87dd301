"""Adjoints of minima and maxima in loops: a search for the iterations from which they came."""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel.analysis.reduction_recognition import Extreme
from ampi.kernel.differentiate.recompute import Forward
from ampi.kernel.differentiate.scopes import Scope
from ampi.kernel.ir import Const, Expr, Op
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.names import stem
from ampi.kernel.ir.ssa import INT, Branch, Carried, Join, Loop


def search(
    forward: Forward, s: Loop, scope: Scope, wanted: list[tuple[Extreme, Expr]]
) -> list[tuple[Extreme, Expr, Expr]]:
    """Search for the iterations from which extremes came (-1: the value before the loop), if an adjoint is not zero."""
    if not wanted:
        return []
    to = forward.to
    any_nonzero: Expr | None = None
    for _, g in wanted:
        nonzero = Op("ne", (g, constant(0, g.type)), types.boolean)
        any_nonzero = nonzero if any_nonzero is None else Op("or", (any_nonzero, nonzero), types.boolean)
    assert any_nonzero is not None
    condition = to.value(any_nonzero)
    nowhere = Const(-1, INT)
    with to.nested() as branch:
        var = to.inner(s.var.name, INT)
        inner = Scope(scope, s, {s.var.name: var})
        values = [to.inner(x.carried.var.name, x.carried.var.type) for x, _ in wanted]
        places = [to.inner(f"{stem(x.carried.var.name)}_from", INT) for x, _ in wanted]
        with to.nested() as block:
            forward.restore(s, inner)
            inner.values.update({x.carried.var.name: v for (x, _), v in zip(wanted, values)})
            forward.run(s.body, inner, top=True)
            carried = []
            (trip,) = forward.saving.trips((s,), inner)
            for (x, _), value, place in zip(wanted, values, places):
                carried.append(Carried(value, scope.atom(x.carried.init), inner.atom(x.carried.next)))
                options = (place, trip) if x.negated else (trip, place)
                replaces = _computed(x.replaces, inner, to)
                carried.append(Carried(place, nowhere, to.value(Op("select", (replaces, *options), INT))))
        start, stop, step = forward.range(s, scope)
        again, parallel = tuple(block.statements), forward.is_shared(s)
        to.emit(Loop(var.name, var, start, stop, again, tuple(carried), step, parallel=parallel, line=s.line))
    joined = [to.fresh(p.name, INT) for p in places]
    joins = tuple(Join(j, p, nowhere) for j, p in zip(joined, places))
    to.emit(Branch(condition, tuple(branch.statements), (), joins, line=s.line))
    return [(x, g, j) for (x, g), j in zip(wanted, joined)]


def _computed(e: Expr, scope: Scope, to: Builder) -> Expr:
    """The value of an expression of a scope's variables, as an atom."""
    if isinstance(e, Op):
        return to.value(replace(e, args=tuple([_computed(a, scope, to) for a in e.args])))
    return to.value(scope.atom(e))
