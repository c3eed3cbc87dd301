"""Unsigned indices: those that cannot be negative, which Numba then need not treat as counting from the end.

A compiler sees by itself that a counter from zero on is not negative, but not that a loop does not begin below.
"""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Accesses
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.rebuild import rebuild
from ampi.kernel.ir.ssa import INT


def with_unsigned_indices(function: ir.Function) -> ir.Function:
    """The function (in single assignment form) with indices that cannot be negative written as unsigned."""
    return replace(function, body=in_all_blocks(function.body, tbr.collect(function)))


def in_all_blocks(body: tuple[Stmt, ...], accesses: Accesses) -> tuple[Stmt, ...]:
    """Statements, and those in the blocks inside them, with unsigned indices."""
    inside = lambda block: in_all_blocks(block, accesses)
    return tuple(rebuild(t, lambda e: e, lambda v: v, inside) for t in in_block(body, accesses))


def in_block(body: tuple[Stmt, ...], accesses: Accesses) -> tuple[Stmt, ...]:
    """Statements with unsigned indices, and the blocks inside them as they are."""

    def index(es: tuple[Expr, ...]) -> tuple[Expr, ...]:
        is_one = lambda e: isinstance(e, Var) and e.type == INT and tbr.is_nonnegative(e, accesses)
        return tuple(unsigned(e) if is_one(e) else e for e in es)

    out: list[Stmt] = []
    for t in body:
        match t:
            case ir.Assign(value=ir.Load() as load):
                t = replace(t, value=replace(load, index=index(load.index)))
            case ir.Store() | ir.Accumulate():
                t = replace(t, index=index(t.index))
        out.append(t)
    return tuple(out)


def unsigned(e: Expr) -> Expr:
    """The cast stands inside the index, since the value may be negative where the element is not touched."""
    return Op("cast", (e,), types.uint64)
