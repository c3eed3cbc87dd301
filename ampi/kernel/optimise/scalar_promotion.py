"""Scalar promotion: increments of one element in all iterations become a sum in a register, which is added once.

The adjoint of an element that every iteration reads (a time step, a coefficient stored in an array) is such a sum.  In
memory it would prevent the loop from being vectorised and from running on several threads.
"""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.liveness import used
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import Branch, Carried, Loop, definitions, every, reads, written


def sum_in_registers(body: tuple[Stmt, ...], names: Names) -> tuple[Stmt, ...]:
    """Sum increments of one element in registers, innermost loops first, in single assignment form."""
    out: list[Stmt] = []
    for s in body:
        s = ir.in_blocks(s, lambda block: sum_in_registers(block, names))
        after: list[Stmt] = []
        if isinstance(s, Loop):
            s, after = _without_fixed_increments(s, names)
        out += [s, *after]
    return tuple(out)


def _without_fixed_increments(s: Loop, names: Names) -> tuple[Loop, list[Stmt]]:
    inside = {v.name for t in every((s,)) for v in definitions(t)}
    values = {t.target.name: t.value for t in s.body if isinstance(t, ir.Assign)}
    body: list[Stmt] = []
    carried = list(s.carried)
    after: list[Stmt] = []
    for t in s.body:
        increment = _increment(t, values)
        if increment is None or not _is_fixed(increment, s, inside):
            body.append(t)
            continue
        ty = increment.array.type.dtype
        total, following = names.variable("total", ty), names.variable("total", ty)
        body.append(ir.Assign(following, Op("add", (total, increment.value), ty), line=t.line))
        carried.append(Carried(total, constant(0, ty), following))
        any_, zero = names.variable("any", types.boolean), constant(0, ty)
        after.append(ir.Assign(any_, Op("ne", (total, zero), types.boolean), line=t.line))
        after.append(Branch(any_, (replace(increment, value=total),), line=t.line))
    return replace(s, body=tuple(body), carried=tuple(carried)), after


def _increment(t: Stmt, values: dict[str, Expr]) -> ir.Accumulate | None:
    """The increment in a statement: the statement itself, or one under the condition that its amount is not zero.

    ``values`` are those of the variables that are assigned in the same block.
    """
    match t:
        case ir.Accumulate(value=value, kind="add") if value.type == t.array.type.dtype:
            return t
        case Branch(then=(ir.Accumulate(value=Var() as total) as only,), orelse=(), joins=(), condition=Var() as any_):
            nonzero = Op("ne", (total, constant(0, total.type)), types.boolean)
            return only if values.get(any_.name) == nonzero and total.type == only.array.type.dtype else None
        case _:
            return None


def _is_fixed(increment: ir.Accumulate, s: Loop, inside: set[str]) -> bool:
    """Return whether an increment goes to the same element in all iterations, and its array is only added to."""
    if increment.array.name in inside or any(used(i) & inside for i in increment.index):
        return False
    for t in every(s.body):
        stored = {w.name} if (w := written(t)) is not None and not isinstance(t, ir.Accumulate) else set()
        loaded = {n.array.name for e in reads(t) for n in ir.walk(e) if isinstance(n, ir.Load)}
        if increment.array.name in stored | loaded:
            return False
    return True
