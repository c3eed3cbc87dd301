"""Unsigned indices: indices that cannot be negative become unsigned, so that Numba does not wrap them around.

A compiler knows that a counter that starts at zero is not negative, but often not that a loop starts at zero or above.
"""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Accesses
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.ssa import INT


def with_unsigned_indices(function: ir.Function) -> ir.Function:
    """The function (in single assignment form) with indices that cannot be negative written as unsigned."""
    return replace(function, body=in_all_blocks(function.body, tbr.collect(function)))


def in_all_blocks(body: tuple[Stmt, ...], accesses: Accesses) -> tuple[Stmt, ...]:
    """Make indices unsigned in statements and in all their inner blocks."""
    inside = lambda block: in_all_blocks(block, accesses)
    return tuple(ir.in_blocks(t, inside) for t in in_block(body, accesses))


def in_block(body: tuple[Stmt, ...], accesses: Accesses) -> tuple[Stmt, ...]:
    """Make indices unsigned in statements, but not in their inner blocks."""

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
    """An index cast to unsigned; only for use in an access, as elsewhere the value may be negative."""
    return Op("cast", (e,), types.uint64)
