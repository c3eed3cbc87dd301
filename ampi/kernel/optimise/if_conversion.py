"""If-conversion: branches that only compute become selections, so that a loop can be vectorised.

The pass applies to derivative programs, not to primals.  The sides were differentiated separately, so the selection
discards an infinite derivative on the side that is not taken, and never multiplies it by zero.
"""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import same
from ampi.kernel.ir.intrinsics import TABLE
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import Branch, definitions, every, names_read, with_innermost_loops

MAX_COST = 80
_TRAPPING = {"floordiv", "mod", "pow"}


def flatten_loops(body: tuple[Stmt, ...], names: Names) -> tuple[Stmt, ...]:
    """Replace branches by selections in innermost independent loops, as far as possible."""
    return with_innermost_loops(body, lambda s: replace(s, body=flatten(s.body, names)) if s.independent else s)


def flatten(body: tuple[Stmt, ...], names: Names) -> tuple[Stmt, ...]:
    """Replace branches whose sides are pure and cheap by selections."""
    return _flatten(body, names, set())


def _flatten(body: tuple[Stmt, ...], names: Names, uncertain: set[str]) -> tuple[Stmt, ...]:
    """See `flatten`; ``uncertain`` are names defined on one side of a remaining branch only, which later branches may
    read."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Branch):
            s = replace(s, then=_flatten(s.then, names, uncertain), orelse=_flatten(s.orelse, names, uncertain))
            inside = (*s.then, *s.orelse)
            certain = all(uncertain.isdisjoint(names_read(t)) for t in every(inside))
            if certain and all(map(_is_harmless, inside)) and _cost(inside) <= MAX_COST:
                out += [*s.then, *s.orelse]
                out += [_selection(j.var, s.condition, j.then, j.orelse, s.line) for j in s.joins]
                continue
            uncertain |= {v.name for t in every(inside) for v in definitions(t)}
        out.append(s)
    return tuple(out)


def _selection(var: Var, condition: Expr, a: Expr, b: Expr, line: int) -> Stmt:
    if same(a, b):
        return ir.Assign(var, Op("cast", (a,), var.type), line=line)
    return ir.Assign(var, Op("select", (condition, a, b), var.type), line=line)


def _is_harmless(s: Stmt) -> bool:
    """Return whether a statement may be executed although its branch is not taken."""
    if not isinstance(s, ir.Assign) or not isinstance(s.value, Op):
        return False
    op = s.value
    if op.name in _TRAPPING and isinstance(op.type, types.Integer):
        return False
    return TABLE[op.name].cost < 20


def _cost(body: tuple[Stmt, ...]) -> int:
    return sum(TABLE[s.value.name].cost for s in body if isinstance(s, ir.Assign) and isinstance(s.value, Op))
