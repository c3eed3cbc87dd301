"""Quotients of derivatives by one and the same number become products with its reciprocal.

A processor divides once in the time of a dozen multiplications.  Adjoints divide by what the kernel divides by, several
times: for each operand, and in gather form for each neighbour.  The product differs from the quotient by rounding (and
where the reciprocal of a subnormal number overflows), which a derivative can bear.  What is computed again of the
kernel itself stays as it is where a condition, an index or a value that is kept depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.intrinsics import constant
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ssa import Branch, Loop, Names, definitions, every, names_read

SHARED = 2  # quotients by one number for which a reciprocal pays


def with_reciprocals(function: ir.Function, names: Names, shadows: set[str]) -> ir.Function:
    """The function (in single assignment form) with such products; ``shadows`` are the arrays of adjoints."""
    return replace(function, body=_Reciprocals(function, names, shadows).block(function.body, False))


class _Reciprocals:
    def __init__(self, function: ir.Function, names: Names, shadows: set[str]) -> None:
        self.names = names
        self.exact = exact_values(function, shadows)

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
        """Whether a statement divides numbers of one type, and a product would do as well."""
        match s:
            case ir.Assign(target=target, value=Op(name="truediv", args=(dividend, divisor), type=types.Float() as ty)):
                same = dividend.type == divisor.type == ty
                return same and not isinstance(divisor, Const) and target.name not in self.exact
        return False


def exact_values(function: ir.Function, shadows: set[str]) -> set[str]:
    """The names of values on which something else than adjoints depends."""
    needs: dict[str, set[str]] = defaultdict(set)
    exact: set[str] = set()
    for s in every(function.body):
        match s:
            case ir.Assign(target=target, value=value):
                needs[target.name] |= names_read(s)
                exact |= _discrete(value)
            case ir.Store(array=array, index=index, value=value) | ir.Accumulate(array=array, index=index, value=value):
                exact |= _names(index if array.name in shadows else (*index, value))
            case Loop(start=start, stop=stop, carried=carried):
                exact |= _names((start, stop))
                for c in carried:
                    needs[c.var.name] |= _names((c.init, c.next))
            case Branch(condition=condition, joins=joins):
                exact |= _names((condition,))
                for j in joins:
                    needs[j.var.name] |= _names((j.then, j.orelse))
            case ir.Return():
                pass
            case _:
                exact |= names_read(s)
    waiting = list(exact)
    while waiting:
        for name in needs[waiting.pop()] - exact:
            exact.add(name)
            waiting.append(name)
    return exact


def _discrete(value: Expr) -> set[str]:
    """What conditions, indices and integers in an expression are made of."""
    match value:
        case ir.Load(index=index):
            return _names(index)
        case Op(name="select", args=(condition, *_)):
            return _names((condition,))
        case Op(type=ty, args=args) if not isinstance(ty, (types.Float, types.Complex)):
            return _names(args)
    return set()


def _names(expressions: tuple[Expr, ...]) -> set[str]:
    return {n.name for e in expressions for n in ir.walk(e) if isinstance(n, Var)}
