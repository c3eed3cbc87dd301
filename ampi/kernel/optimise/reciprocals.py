"""Strength reduction of divisions: several quotients by one number become products with its reciprocal.

A division takes a processor as long as a dozen multiplications.  Adjoints divide several times by the kernel's
divisors: for each operand, and in gather form for each neighbour.  The product differs from the quotient by rounding
(and where the reciprocal of a subnormal number overflows), which is acceptable in a derivative.  Exact values (see
``exactness``) do not change, nor do quotients by results of ``hypot``, whose dividend may be one of its operands.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.exactness import exact_values
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import Branch, Loop, definitions, every

SHARED = 2  # quotients by one number for which a reciprocal pays


def with_reciprocals(function: ir.Function, names: Names, shadows: set[str]) -> ir.Function:
    """Replace quotients by products with reciprocals, in single assignment form; ``shadows`` are arrays of adjoints."""
    return replace(function, body=_Reciprocals(function, names, shadows).block(function.body, False))


class _Reciprocals:
    def __init__(self, function: ir.Function, names: Names, shadows: set[str]) -> None:
        self.names = names
        self.exact = exact_values(function, shadows, zero_stays=True)
        self.hypotenuses = {
            s.target.name
            for s in every(function.body)
            if isinstance(s, ir.Assign) and isinstance(s.value, Op) and s.value.name == "hypot"
        }

    def block(self, body: tuple[Stmt, ...], is_loop: bool) -> tuple[Stmt, ...]:
        here = {v.name for s in body for v in definitions(s)}
        quotients: dict[Expr, list[Stmt]] = defaultdict(list)
        for s in body:
            if self.is_quotient(s):
                quotients[s.value.args[1]].append(s)
        chosen = {
            divisor
            for divisor, group in quotients.items()
            if len(group) >= SHARED or (is_loop and isinstance(divisor, Var) and divisor.name not in here)
        }
        reciprocals: dict[Expr, Var] = {}
        out: list[Stmt] = []
        for s in body:
            if self.is_quotient(s) and s.value.args[1] in chosen:
                assert isinstance(s, ir.Assign)
                dividend, divisor = s.value.args
                ty = s.value.type
                if divisor not in reciprocals:
                    reciprocals[divisor] = Var(self.names.fresh("reciprocal"), ty)
                    once = Op("truediv", (constant(1, ty), divisor), ty)
                    out.append(ir.Assign(reciprocals[divisor], once, line=s.line))
                s = replace(s, value=Op("mul", (dividend, reciprocals[divisor]), ty))
            elif isinstance(s, Loop):
                s = replace(s, body=self.block(s.body, True))
            elif isinstance(s, Branch):
                s = replace(s, then=self.block(s.then, False), orelse=self.block(s.orelse, False))
            out.append(s)
        return tuple(out)

    def is_quotient(self, s: Stmt) -> bool:
        """Return whether a statement divides numbers of one type, and may be replaced by a product."""
        match s:
            case ir.Assign(target=target, value=Op(name="truediv", args=(dividend, divisor), type=types.Float() as ty)):
                same = dividend.type == divisor.type == ty
                of_variable = isinstance(divisor, Var) and divisor.name not in self.hypotenuses
                return same and of_variable and target.name not in self.exact
        return False
