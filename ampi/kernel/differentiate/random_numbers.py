"""Random numbers: the part of a kernel that draws them, as a program, and errors for active parameters."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from numba import types

from ampi.errors import ActivityError
from ampi.kernel import ir
from ampi.kernel.analysis import activity
from ampi.kernel.ir import intrinsics, random_draws
from ampi.kernel.ir.index_algebra import INT, ZERO
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.rewrite import mapped
from ampi.kernel.ir.ssa import definitions, every, written

ADVICE = "draw standard numbers, and compute with these and the parameters"
QUANTILE = "apply scipy.special.{} to uniform numbers u, outside of the kernel or with numba-scipy"
QUANTILES = {
    **dict.fromkeys(("draw_gamma", "draw_by_gamma"), "gammaincinv(shape, u)"),
    **dict.fromkeys(("draw_beta", "draw_by_beta"), "betaincinv(a, b, u)"),
    **dict.fromkeys(("draw_standard_t", "draw_by_standard_t"), "stdtrit(df, u)"),
}
"""Differentiable functions that map a uniform number to one of these distributions."""


def counting(primal: ir.Function) -> ir.Function:
    """A kernel that stores the numbers that it draws, as far as there is room, and returns their counts."""
    drawn = random_draws.arguments_of(primal)
    names = {a.name for a in drawn}
    places = tuple(ir.Var(a.role[1], INT) for a in drawn if a.role is not None)

    def within(array: ir.Var, index: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        fits = ir.Op("lt", (index[0], ir.Size(array, 0, types.intp)), types.boolean)
        return (ir.Op("select", (fits, index[0], ZERO), INT),)

    def change(e: ir.Expr) -> ir.Expr:
        return replace(e, index=within(e.array, e.index)) if isinstance(e, ir.Load) and e.array.name in names else e

    def statement(s: ir.Stmt) -> ir.Stmt:
        return replace(s, index=within(s.array, s.index)) if isinstance(s, ir.Store) and s.array.name in names else s

    body = [mapped(s, change, statement) for s in primal.body]
    if body and isinstance(body[-1], ir.Return):
        body.pop()
    body.append(ir.Return(places, line=primal.first_line))
    return replace(primal, name=f"{primal.name}_drawing", body=tuple(body), result=("tuple", len(places)))


def with_copies(function: ir.Function) -> ir.Function:
    """A program (in single assignment form) that changes copies of arguments, except the arrays of random numbers."""
    taken = {a.name for a in function.arguments} | {v.name for s in every(function.body) for v in definitions(s)}
    fresh = Names(taken)
    changed = {array.name for s in every(function.body) if (array := written(s)) is not None}
    copies: list[ir.Stmt] = []
    renamed: dict[str, ir.Expr] = {}
    for a in function.arguments:
        if a.name in changed and not a.is_a("drawn"):
            array, copy = ir.Var(a.name, a.type), ir.Var(fresh.fresh(a.name), a.type)
            sizes = tuple(ir.Size(array, axis, INT) for axis in range(a.type.ndim))
            copies.append(ir.Alloc(copy, sizes, array, line=function.first_line))
            renamed[a.name] = copy
    return replace(function, body=(*copies, *substitute(function.body, renamed)))


def refuse_active_parameters(function: ir.Function, active: Collection[str]) -> None:
    """Raise an error if a kernel (in single assignment form) needs a derivative that does not exist.

    That is one with respect to a parameter of a random number, or to an argument for which a function has none.
    """
    varied = activity.analyse(function, active).varied
    for s in every(function.body):
        if isinstance(s, ir.Assign) and isinstance(s.value, ir.Op) and s.value.name in intrinsics.WITHOUT_DERIVATIVE:
            partials = intrinsics.TABLE[s.value.name].partials
            for k, a in enumerate(s.value.args):
                if partials[k] == intrinsics.UNKNOWN and isinstance(a, ir.Var) and a.name in varied:
                    what = intrinsics.without_derivative(s.value.name, k)
                    raise ActivityError(f"{function.where(s.line)}: {what}")
        if isinstance(s, ir.Assign) and isinstance(s.value, ir.Op) and random_draws.draws(s.value):
            if any(isinstance(a, ir.Var) and a.name in varied for a in s.value.args[1:]):
                what = intrinsics.DRAWS[s.value.name]
                quantile = QUANTILES.get(s.value.name)
                advice = QUANTILE.format(quantile) if quantile else ADVICE
                raise ActivityError(
                    f"{function.where(s.line)}: {what} has no derivative with respect to its parameters, and one of "
                    f"them carries derivatives\n  {advice}"
                )
