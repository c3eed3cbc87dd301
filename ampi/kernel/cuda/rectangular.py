"""Loops whose length depends on the counters of loops around them, as loops of one length.

The arrays that hold what an adjoint on a GPU saves are allocated before the launch.  ``for j in range(i + 1)`` inside
``for i in range(n)`` becomes a loop over ``range(n)`` whose iterations from ``i + 1`` on do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.guards import has_barrier
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.ir.index_algebra import INT, ONE, Sum, add, as_expression, as_sum, is_integer, sub
from ampi.kernel.ir.names import Names


@dataclass(frozen=True)
class Range:
    """Bounds of a counter, inclusive, in terms of names that its loop does not assign."""

    low: Sum
    high: Sum


Ranges = dict[str, Range]


def rectangular(body: tuple[ir.Stmt, ...], names: Names, ranges: Ranges | None = None) -> tuple[ir.Stmt, ...]:
    """Return statements whose loops have a length that depends on no counter, where bounds of it can be told."""
    known = ranges or {}
    out: list[ir.Stmt] = []
    for s in body:
        match s:
            case ir.For():
                out += _loop(s, names, known)
            case ir.While():
                out.append(replace(s, body=rectangular(s.body, names, _outside(known, s.body))))
            case ir.If():
                then, orelse = (rectangular(part, names, known) for part in (s.then, s.orelse))
                out.append(replace(s, then=then, orelse=orelse))
            case _:
                out.append(s)
    return tuple(out)


def _outside(ranges: Ranges, body: tuple[ir.Stmt, ...]) -> Ranges:
    """Return the ranges whose counters and bounds the body of a loop does not assign."""
    changed = {v.name for v in assigned(body)}
    names = {name: {n.name for n in _symbols(r.low) | _symbols(r.high)} for name, r in ranges.items()}
    return {name: r for name, r in ranges.items() if name not in changed and not names[name] & changed}


def _symbols(total: Sum) -> set[ir.Var]:
    return {n for term in total.terms if isinstance(term, ir.Expr) for n in ir.walk(term) if isinstance(n, ir.Var)}


def _loop(s: ir.For, names: Names, ranges: Ranges) -> tuple[ir.Stmt, ...]:
    inside = {k: r for k, r in _outside(ranges, s.body).items() if k != s.var.name}
    step = s.step.value if isinstance(s.step, ir.Const) else None
    if step not in (1, -1) or s.axis or s.parallel or not (is_integer(s.start) and is_integer(s.stop)):
        return (replace(s, body=rectangular(s.body, names, inside)),)
    first, end = (s.start, s.stop) if step == 1 else (add(s.stop, ONE), add(s.start, ONE))
    sums = as_sum(first), as_sum(end)
    low, high = _extreme(sums[0], ranges, -1), _extreme(sums[1], ranges, 1)
    if low is None or high is None:
        return (replace(s, body=rectangular(s.body, names, inside)),)
    own = _outside({s.var.name: Range(low, high.plus(Sum(-1)))}, s.body)
    body = rectangular(s.body, names, {**inside, **own})
    if not any(isinstance(t, ir.Var) and t.name in ranges for total in sums for t in total.terms) or has_barrier(s):
        return (replace(s, body=body),)
    begin, stop, var = (names.variable(hint, INT) for hint in ("begin", "end", s.var.name))
    bounds = as_expression(low), as_expression(high)
    start, last = bounds if step == 1 else (sub(bounds[1], ONE), sub(bounds[0], ONE))
    conditions = ir.Op("le", (begin, var), types.boolean), ir.Op("lt", (var, stop), types.boolean)
    taken = ir.If(ir.Op("and", conditions, types.boolean), (ir.Assign(s.var, var, line=s.line), *body), line=s.line)
    return (
        ir.Assign(begin, first, line=s.line),
        ir.Assign(stop, end, line=s.line),
        replace(s, var=var, start=start, stop=last, body=(taken,)),
    )


def _extreme(total: Sum, ranges: Ranges, sign: int) -> Sum | None:
    """Return a lower (``sign`` -1) or upper bound of an affine form without counters; None if there is none."""
    found = Sum(total.constant)
    for term, coefficient in total.terms.items():
        if isinstance(term, ir.Var) and term.name in ranges:
            bound = ranges[term.name].high if coefficient * sign > 0 else ranges[term.name].low
            found = found.plus(bound, coefficient)
        elif isinstance(term, (ir.Var, ir.Size)):
            found = found.plus(Sum(0, {term: 1}), coefficient)
        else:
            return None
    return found
