"""Affine algebra of sizes and indices: a normal form, and proofs that two are equal or that one is not negative."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numba import types

from ampi.kernel import ir

INT = types.int64
ZERO, ONE = ir.Const(0, INT), ir.Const(1, INT)

Expand = Callable[[ir.Expr], "ir.Expr | None"]


@dataclass(frozen=True)
class Sum:
    """An affine form: ``constant + sum of coefficient * term``, where terms are symbols or expressions other than
    sums."""

    constant: int = 0
    terms: dict[Any, int] = field(default_factory=dict)

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            terms[term] = terms.get(term, 0) + factor * coefficient
        return Sum(self.constant + factor * other.constant, {t: c for t, c in terms.items() if c})

    def times(self, factor: int) -> Sum:
        return Sum().plus(self, factor)

    def without(self, term: Any) -> Sum:
        return Sum(self.constant, {t: c for t, c in self.terms.items() if t != term})


def is_integer(value: ir.Expr) -> bool:
    return isinstance(value.type, types.Integer)


def narrows(value: ir.Expr, old: ir.Expr) -> bool:
    """Return whether a conversion of an integer may change it: ``np.uint8(i)`` is the same for many ``i``."""
    return value.type.bitwidth < old.type.bitwidth  # type: ignore[attr-defined]


def as_sum(value: ir.Expr, known: Expand = lambda _: None) -> Sum:
    """An integer expression as a sum; ``known`` returns the value of a variable or size, or None."""
    match value:
        case ir.Const(value=int(number)):
            return Sum(number)
        case ir.Op(name="add" | "sub" as name, args=(a, b)):
            return as_sum(a, known).plus(as_sum(b, known), 1 if name == "add" else -1)
        case ir.Op(name="neg", args=(a,)):
            return as_sum(a, known).times(-1)
        case ir.Op(name="mul", args=(a, b)):
            x, y = as_sum(a, known), as_sum(b, known)
            if not x.terms or not y.terms:
                return x.times(y.constant) if not y.terms else y.times(x.constant)
            return Sum(0, {replace(value, args=(as_expression(x), as_expression(y))): 1})
        case ir.Op(name="cast", args=(a,)) if is_integer(value) and is_integer(a) and not narrows(value, a):
            return as_sum(a, known)
        case ir.Op(args=args):
            plain = tuple(as_expression(as_sum(a, known)) if is_integer(a) else a for a in args)
            return Sum(0, {replace(value, args=plain): 1})
        case ir.Var() | ir.Size():
            better = known(value)
            return Sum(0, {value: 1}) if better is None else as_sum(better, known)
    return Sum(0, {value: 1})


def as_expression(total: Sum) -> ir.Expr:
    """The sum as an expression: first the added terms, then the subtracted ones."""
    result: ir.Expr | None = None
    added = sorted(total.terms.items(), key=lambda item: item[1] < 0)
    for term, coefficient in added:
        part = term if abs(coefficient) == 1 else ir.Op("mul", (ir.Const(abs(coefficient), INT), term), INT)
        if result is None:
            result = part if coefficient > 0 else ir.Op("neg", (part,), INT)
        else:
            result = ir.Op("add" if coefficient > 0 else "sub", (result, part), INT)
    if result is None:
        return ir.Const(total.constant, INT)
    if total.constant:
        name = "add" if total.constant > 0 else "sub"
        result = ir.Op(name, (result, ir.Const(abs(total.constant), INT)), INT)
    return result


def plain(value: ir.Expr) -> ir.Expr:
    """An integer expression without nested sums, and without products of constants and sums."""
    return as_expression(as_sum(value))


def tidy(value: ir.Expr) -> ir.Expr:
    """A sum or product in its plain form; other expressions unchanged."""
    return plain(value) if isinstance(value, ir.Op) and value.name in _SUMS and value.type == INT else value


_SUMS = ("add", "sub", "mul")


def add(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return plain(ir.Op("add", (a, b), INT))


def sub(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return plain(ir.Op("sub", (a, b), INT))


def mul(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return plain(ir.Op("mul", (a, b), INT))


def floordiv(a: ir.Expr, b: int) -> ir.Expr:
    if b == 1:
        return a
    return ir.Const(a.value // b, INT) if isinstance(a, ir.Const) else ir.Op("floordiv", (a, ir.Const(b, INT)), INT)


def minimum(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    difference = as_sum(a).plus(as_sum(b), -1)
    if not difference.terms:
        return a if difference.constant <= 0 else b
    return ir.Op("min", (a, b), INT)


def maximum(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    difference = as_sum(a).plus(as_sum(b), -1)
    if not difference.terms:
        return a if difference.constant >= 0 else b
    return ir.Op("max", (a, b), INT)


def product(values: tuple[ir.Expr, ...]) -> ir.Expr:
    result: ir.Expr = ONE
    for value in values:
        result = mul(result, value)
    return result


Lowest = Callable[[ir.Var], "int | None"]


def lowest(value: ir.Expr, of_variable: Lowest = lambda _: None) -> int | None:
    """A lower bound of an integer expression, or None; ``of_variable`` returns one for a variable."""
    if getattr(value.type, "signed", True) is False:
        return 0
    below = lambda e: lowest(e, of_variable)
    match value:
        case ir.Const(value=number):
            return int(number)
        case ir.Size():
            return 0
        case ir.Var():
            return of_variable(value)
        case ir.Op(name="add", args=(a, b)):
            return _both(below(a), below(b), lambda x, y: x + y)
        case ir.Op(name="sub", args=(a, ir.Const(value=number))):
            return _both(below(a), number, lambda x, y: x - y)
        case ir.Op(name="mul", args=(a, b)):
            return _both(below(a), below(b), lambda x, y: x * y if x >= 0 and y >= 0 else None)
        case ir.Op(name="max", args=args):
            return max((x for a in args if (x := below(a)) is not None), default=None)
        case ir.Op(name="min", args=(a, b)) | ir.Op(name="select", args=(_, a, b)):
            return _both(below(a), below(b), min)
        case ir.Op(name="floordiv", args=(a, b)):
            return _both(below(a), below(b), lambda x, y: 0 if x >= 0 and y > 0 else None)
        case ir.Op(name="mod", args=(_, b)):
            return _both(0, below(b), lambda x, y: 0 if y > 0 else None)
        case ir.Op(name="cast", args=(a,)) if is_integer(a) and not narrows(value, a):
            return below(a)
    return None


def _both(a: int | None, b: int | None, combine: Callable[[int, int], int | None]) -> int | None:
    return None if a is None or b is None else combine(a, b)


def is_not_negative(value: ir.Expr, of_variable: Lowest, ends: Mapping[ir.Var, ir.Expr]) -> bool:
    """Return whether an integer expression is known not to be negative; ``ends`` are upper bounds of variables."""
    below = lowest(value, of_variable)
    if below is not None and below >= 0:
        return True
    total = as_sum(value)
    for term, factor in total.terms.items():
        end = _end(term, ends)
        if factor < 0 and end is not None:
            last = as_sum(end).plus(Sum(1), -1)
            total = total.without(term).plus(last, factor)
    below = lowest(as_expression(total), of_variable)
    return below is not None and below >= 0


def _end(term: ir.Expr, ends: Mapping[ir.Var, ir.Expr]) -> ir.Expr | None:
    """A number that a variable or a remainder does not reach."""
    match term:
        case ir.Op(name="mod", args=(_, ir.Const(value=number) as divisor)) if number > 0:
            return divisor
        case ir.Var():
            return ends.get(term)
    return None


class Integers:
    """The facts about the integer variables of a function."""

    def __init__(self, function: ir.Function):
        nodes = list(ir.walk(function.body))
        assigned = Counter(n.target.name for n in nodes if isinstance(n, ir.Assign))
        self.definition = {
            n.target.name: n.value
            for n in nodes
            if isinstance(n, ir.Assign) and assigned[n.target.name] == 1 and is_integer(n.target)
        }
        self.counters = {n.var.name for n in nodes if isinstance(n, ir.For)}
        self.arguments = {a.name for a in function.arguments}
        self.bounds: dict[str, int | None] = {}
        self.ends: dict[ir.Var, ir.Expr] = {}  # upper bounds of counters

    def count(self, s: ir.For) -> None:
        """Note the bounds of a counter."""
        if not isinstance(s.step, ir.Const):
            return
        end = s.stop if s.step.value > 0 else add(s.start, ONE)
        if self.is_settled(end, s.var):
            self.ends[s.var] = end
        below = self.lowest(s.start if s.step.value > 0 else s.stop)
        self.bounds[s.var.name] = below if below is None or s.step.value > 0 else below + 1

    def count_axes(self, axes: tuple[ir.Var, ...], shape: tuple[ir.Expr, ...]) -> None:
        self.bounds.update({axis.name: 0 for axis in axes})
        self.ends.update((axis, n) for axis, n in zip(axes, shape, strict=True) if self.is_settled(n, axis))

    def lowest(self, value: ir.Expr) -> int | None:
        return lowest(value, self._of_variable)

    def _of_variable(self, var: ir.Var) -> int | None:
        if var.name not in self.bounds and var.name in self.definition and var.name not in self.counters:
            self.bounds[var.name] = None  # in case it is defined by itself
            self.bounds[var.name] = self.lowest(self.definition[var.name])
        return self.bounds.get(var.name)

    def is_not_negative(self, value: ir.Expr) -> bool:
        return is_not_negative(value, self._of_variable, self.ends)

    def is_settled(self, value: ir.Expr, whose: ir.Expr) -> bool:
        """Return whether a value does not change between the definition of ``whose`` and a use."""
        return not any(isinstance(n, ir.Load) or n == whose or self._may_change(n) for n in ir.walk(value))

    def _may_change(self, node: Any) -> bool:
        if not isinstance(node, ir.Var) or isinstance(node.type, types.Array):
            return False
        return not any(node.name in names for names in (self.definition, self.counters, self.arguments))
