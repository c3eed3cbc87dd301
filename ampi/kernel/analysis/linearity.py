"""Linearity: a test of whether a function (in single assignment form) is linear in some of its arguments.

It is linear as written if every value that depends on these arguments comes from sums, from products with and quotients
by values that do not depend on them, from selections that do not depend on them, and from copies of elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ampi.kernel import ir
from ampi.kernel.analysis import activity
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import is_differentiable
from ampi.kernel.ir.matrices import PRODUCTS
from ampi.kernel.ir.ssa import Branch, Custom, Loop, every


def departure(function: ir.Function, arguments: Iterable[str]) -> tuple[int, str] | None:
    """The line of the first statement that is not linear in these arguments, and the reason; None if all are."""
    check = _Linear(activity.analyse(function, arguments).varied)
    for s in every(function.body):
        for problem in check.statement(s):
            return s.line, problem
    return None


class _Linear:
    def __init__(self, varied: frozenset[str]) -> None:
        self.varied = varied

    def is_varied(self, e: Expr) -> bool:
        return isinstance(e, Var) and e.name in self.varied

    def fits(self, *values: Expr) -> bool:
        """Return whether values can be parts of one linear value: they are linear themselves, or zero."""
        return all(self.is_varied(e) or (isinstance(e, Const) and e.value == 0) for e in values)

    def statement(self, s: Stmt) -> Iterator[str]:
        match s:
            case ir.Assign(value=Op() as value) if any(map(self.is_varied, value.args)):
                yield from self.operation(value)
            case ir.Store(array=array, value=value) | ir.Accumulate(array=array, value=value):
                yield from self.part(array, value)
            case ir.Alloc(target=target, fill=fill) if fill is not None:
                yield from self.part(target, fill)
            case ir.Fill(function=function, arguments=arguments):
                yield from self.matrices(function, [self.is_varied(a) for a in arguments])
            case Custom(inputs=inputs, rule=rule):
                if any(e.name in self.varied for i in inputs for e in ir.walk(i) if isinstance(e, Var)):
                    yield f"'{rule.name}' has a custom derivative, so it may not be linear"
            case Loop(carried=carried):
                for c in carried:
                    yield from self.part(c.var, c.init, c.next)
            case Branch(joins=joins):
                for j in joins:
                    yield from self.part(j.var, j.then, j.orelse)

    def part(self, target: Var, *values: Expr) -> Iterator[str]:
        if target.name in self.varied and not self.fits(*values):
            yield "a value that does not depend on the tangents replaces one that does"

    def operation(self, op: Op) -> Iterator[str]:
        problem = f"'{op.name}' is applied to a value that depends on the tangents"
        depends = [self.is_varied(a) for a in op.args]
        match op.name:
            case "add" | "sub" | "complex":
                if not self.fits(*op.args):
                    yield "a value that does not depend on the tangents is added to one that does"
            case "select":
                if depends[0] or not self.fits(*op.args[1:]):
                    yield problem
            case "mul":
                if all(depends):
                    yield "two values that depend on the tangents are multiplied"
            case "truediv":
                if depends[1]:
                    yield "something is divided by a value that depends on the tangents"
            case "neg" | "pos" | "cast" | "real" | "imag" | "conj" if is_differentiable(op.type):
                return
            case _:
                yield problem

    def matrices(self, function: str, depends: list[bool]) -> Iterator[str]:
        is_linear = {**dict.fromkeys(PRODUCTS, not all(depends)), "solve": not depends[0]}.get(function, False)
        if any(depends) and not is_linear:
            yield f"'{function}' is applied to an array that depends on the tangents"
