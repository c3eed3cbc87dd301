"""Sign analysis, by abstract interpretation: which values are positive, and which vanish only with their derivative.

``max(x, 1e-9)`` and ``a * a + 1.0`` are positive, so quotients by them and roots of them have no singularity, nor has
the root of ``r`` under ``if r > 0.0``.  A sum of squares is *flat*: where it is zero, its terms and all their
derivatives are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.ssa import Branch, Loop

Facts = frozenset[str]

NOTHING: Facts = frozenset()
NONZERO = frozenset({"nonzero"})
APART = NONZERO | {"apart"}  # so far from zero that the reciprocal is finite
NONNEGATIVE = frozenset({"nonnegative"})
POSITIVE = NONZERO | NONNEGATIVE
FLAT = NONNEGATIVE | {"flat"}

_LARGER = {"max", "maximum", "fmax"}
_SMALLER = {"min", "minimum", "fmin"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


class Signs:
    """Walks through statements in single assignment form until the facts hold around all loops, and then calls
    ``visit(statement, facts)`` for every assignment."""

    def __init__(self, body: tuple[Stmt, ...], visit: Callable[[ir.Assign, Callable[[Expr], Facts]], None]) -> None:
        self.known: dict[str, Facts] = {}
        self.conditions: dict[str, Op] = {}
        self.here: list[dict[str, Facts]] = []  # from the conditions around the current statement
        self.visit: Callable | None = None
        self.changed = True
        while self.changed:
            self.changed = False
            self.block(body)
        self.visit = visit
        self.block(body)

    def of(self, e: Expr) -> Facts:
        """The facts about an atom."""
        if isinstance(e, Const):
            return _of_constant(e.value)
        if not isinstance(e, Var):
            return NOTHING
        found = self.known.get(e.name, NOTHING)
        for facts in self.here:
            found |= facts.get(e.name, NOTHING)
        return found

    def block(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case ir.Assign(target=target, value=value):
                    if isinstance(value, Op):
                        self.conditions[target.name] = value
                        self.known[target.name] = self.of_operation(value)
                    elif isinstance(value, (Const, Var)):
                        self.known[target.name] = self.of(value)
                    if self.visit is not None:
                        self.visit(s, self.of)
                case Loop():
                    for c in s.carried:
                        self.known[c.var.name] = self.known.get(c.var.name, self.of(c.init)) & self.of(c.init)
                    self.block(s.body)
                    for c in s.carried:
                        common = self.known[c.var.name] & self.of(c.next)
                        self.changed |= common != self.known[c.var.name]
                        self.known[c.var.name] = common
                case Branch():
                    ends = []
                    for block, side, holds in ((s.then, "then", True), (s.orelse, "orelse", False)):
                        self.here.append(self.implied_by(s.condition, holds))
                        self.block(block)
                        ends.append([self.of(getattr(j, side)) for j in s.joins])
                        self.here.pop()
                    for j, then, orelse in zip(s.joins, *ends):
                        self.known[j.var.name] = then & orelse

    def implied_by(self, condition: Expr, holds: bool) -> dict[str, Facts]:
        """The facts about the variables of a condition that follow where it holds, or does not hold."""
        op = self.conditions.get(condition.name) if isinstance(condition, Var) else condition
        match op:
            case Op(name="not", args=(other,)):
                return self.implied_by(other, not holds)
            case Op(name="and" | "or" as name, args=(a, b)) if (name == "and") == holds:
                first, second = self.implied_by(a, holds), self.implied_by(b, holds)
                return {n: first.get(n, NOTHING) | second.get(n, NOTHING) for n in (*first, *second)}
            case Op(name=name, args=(a, b)) if name in _MIRRORED:
                if isinstance(a, Const):
                    name, a, b = _MIRRORED[name], b, a
                if isinstance(a, Var) and isinstance(b, Const) and not isinstance(b.value, complex):
                    return {a.name: _compared(name if holds else _NEGATED[name], b.value)}
        return {}

    def of_operation(self, op: Op) -> Facts:
        facts = [self.of(a) for a in op.args]
        match op.name, facts:
            case "add", (a, b):
                return _positive_of(a, b) if a & b >= NONNEGATIVE else NOTHING
            case "mul", (a, b):
                if op.args[0] == op.args[1]:
                    return FLAT
                scaled = _scaled(op.args[0], b) | _scaled(op.args[1], a)
                return (a & b & NONNEGATIVE) | scaled
            case "truediv", (a, b):
                return (a & b & NONNEGATIVE) | _scaled(op.args[1], a)
            case "square", _:
                return FLAT
            case "pow", _:
                return _of_power(op.args[1], facts[0])
            case "abs", (a,):
                return NONNEGATIVE | (a & APART)
            case "sqrt", (a,):
                return NONNEGATIVE | (a & APART if a >= POSITIVE else NOTHING)
            case "exp" | "exp2" | "hypot", _:
                return NONNEGATIVE
            case "cosh", _:
                return APART | NONNEGATIVE
            case "neg", (a,):
                return a & APART
            case "pos" | "cast", (a,):
                return a
            case "select", (_, a, b):
                return a & b
            case name, (a, b) if name in _LARGER:
                return ((a | b) & NONNEGATIVE) | _positive_of(a, b)
            case name, (a, b) if name in _SMALLER:
                return a & b
        return NOTHING


def _of_constant(value: complex) -> Facts:
    if isinstance(value, complex) or value != value:
        return NOTHING
    apart = APART if abs(value) > 1e-37 else NONZERO if value else NOTHING  # in single precision as well
    return apart | (FLAT if value >= 0 else NOTHING)


def _positive_of(a: Facts, b: Facts) -> Facts:
    """The facts common to two numbers, and those that follow because one of them is positive."""
    return (a & b) | NOTHING.union(*[f & (APART | NONNEGATIVE) for f in (a, b) if f >= POSITIVE])


def _scaled(factor: Expr, other: Facts) -> Facts:
    """The facts about a number that are still true of its product with a positive factor, or its quotient."""
    is_positive = isinstance(factor, Const) and _of_constant(factor.value) >= POSITIVE
    return other & FLAT if is_positive and math.isfinite(factor.value) else NOTHING


def _of_power(exponent: Expr, base: Facts) -> Facts:
    if isinstance(exponent, Const) and not isinstance(exponent.value, complex) and exponent.value % 2 == 0:
        return FLAT if exponent.value > 0 else NONNEGATIVE
    return base & NONNEGATIVE


def _compared(name: str, number: float) -> Facts:
    """The facts about x that follow from ``x name number``."""
    match name:
        case "gt":
            return POSITIVE | (_of_constant(number) - {"flat"}) if number >= 0 else NOTHING
        case "ge":
            return _of_constant(number) - {"flat"} if number >= 0 else NOTHING
        case "lt":
            return NONZERO | (_of_constant(number) & APART) if number <= 0 else NOTHING
        case "le":
            return _of_constant(number) & APART if number <= 0 else NOTHING
        case "ne":
            return NONZERO if number == 0 else NOTHING
        case "eq":
            return _of_constant(number) - {"flat"}
    return NOTHING
