"""Singularities: values at which a derivative may be infinite, so that products with it need a test for zero.

An adjoint that is exactly zero contributes nothing, and a derivative that is exactly zero passes nothing on.  IEEE
arithmetic gets both wrong where the other factor is infinite or not a number.  Few products can have such a factor:

* ``regular`` are values whose derivatives are finite because of a sign: quotients by positive numbers, roots of them;
* ``flat`` are roots of sums of squares: where such a root is zero, so is all that its adjoint would be multiplied by;
* ``unbounded`` are finite values whose adjoint may be infinite: the arguments of all other square roots and powers at
  zero, and of inverse sines at one (``sqrt(1 - cos(d))`` at d = 0), except for a root that is only a divisor: where
  it is zero, the quotient is infinite itself;
* ``steep`` are values whose tangent may be infinite for the same reason: they are computed from such roots;
* ``wild`` are values that the kernel may make infinite or not a number, and ``masked`` are those that may be discarded
  by a selection, an extreme, a branch, or a function with a limit (``where(x > 0, x * log(x), 0)`` at x = 0).
"""

from __future__ import annotations

import cmath
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ampi.kernel import ir
from ampi.kernel.analysis.signs import APART, FLAT, NONNEGATIVE, POSITIVE, Facts, Signs
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.operators import QUOTIENTS
from ampi.kernel.ir.ssa import Branch, Custom, Loop, every, names_read

_ROOTS = {"sqrt", "cbrt", "asin", "acos", "acosh"}
_ZERO_AT_ZERO = {"sqrt", "cbrt", "pow"}
_LOGARITHMS = {"log", "log2", "log10"}
_POLES = {"atanh", "gamma", "lgamma", "digamma", "trigamma", "tetragamma"}
_GROWING = {"exp", "exp2", "expm1", "sinh", "cosh"}
# Their arguments may be infinite where their derivative is zero.
_MASKING = {"select", "min", "max", "minimum", "maximum", "fmin", "fmax", "exp", "exp2", "expm1", "logaddexp",
            "logaddexp2", "tanh", "atan", "atan2", "erf", "erfc", "log", "sqrt", "asinh", "pow"}  # fmt: skip


@dataclass(frozen=True)
class Singularities:
    regular: frozenset[str]
    flat: frozenset[str]
    unbounded: frozenset[str]
    steep: frozenset[str]
    wild: frozenset[str]
    masked: frozenset[str]


def find_singularities(body: tuple[Stmt, ...]) -> Singularities:
    """The facts about the values of statements in single assignment form; an array stands for all its elements."""
    found = _Found(body)
    Signs(body, found.visit)
    dependencies = _dependencies(body)
    dependents: dict[str, set[str]] = defaultdict(set)
    for target, sources in dependencies.items():
        for source in sources:
            dependents[source].add(target)
    return Singularities(
        frozenset(found.regular),
        frozenset(found.flat),
        _reached((a.name for op in found.roots.values() for a in op.args if isinstance(a, Var)), dependencies),
        _reached(found.roots, dependents),
        _reached(found.wild | _wild_arrays(body), dependents),
        _reached(_masked_by(body), dependencies),
    )


class _Found:
    def __init__(self, body: tuple[Stmt, ...]) -> None:
        self.regular: set[str] = set()
        self.flat: set[str] = set()
        self.wild: set[str] = set()
        self.roots: dict[str, Op] = {}
        self.divided_by_only = _divided_by_only(body)

    def visit(self, s: ir.Assign, facts: Callable[[Expr], Facts]) -> None:
        if not isinstance(s.value, Op):
            return
        name, op = s.target.name, s.value
        if any(isinstance(a, Const) and not cmath.isfinite(a.value) for a in op.args):
            self.wild.add(name)
        of = [facts(a) for a in op.args]
        if op.name in QUOTIENTS | {"reciprocal"}:
            (self.regular if of[-1] >= APART else self.wild).add(name)
        elif op.name in _LOGARITHMS:
            (self.regular if of[0] >= POSITIVE else self.wild).add(name)
        elif op.name in _POLES | _GROWING or (op.name == "log1p" and not of[0] >= NONNEGATIVE):
            self.wild.add(name)
        elif op.name in _ROOTS or (op.name == "pow" and _is_root(op)):
            self.root(name, op, of[0])

    def root(self, name: str, op: Op, of: Facts) -> None:
        if op.name in _ZERO_AT_ZERO and of >= POSITIVE:
            self.regular.add(name)
            return
        if op.name != "cbrt" and not of >= NONNEGATIVE:
            self.wild.add(name)
        if op.name == "sqrt" and of >= FLAT:
            self.flat.add(name)
        elif not (op.name in _ZERO_AT_ZERO and name in self.divided_by_only):
            self.roots[name] = op


def _is_root(op: Op) -> bool:
    """Return whether a power may have an infinite derivative where its base is zero."""
    exponent = op.args[1]
    if not isinstance(exponent, Const):
        return True
    return not (exponent.value.real >= 1 or exponent.value == 0)


# ------------------------------------------------------------------------------------------------------ data flow


def _dependencies(body: tuple[Stmt, ...]) -> dict[str, set[str]]:
    """The names from which the value of each name is computed."""
    sources: dict[str, set[str]] = defaultdict(set)

    def flow(target: str, *values: Expr) -> None:
        for value in values:
            sources[target] |= {n.name for n in ir.walk(value) if isinstance(n, Var)}

    for s in every(body):
        match s:
            case ir.Assign(target=target, value=ir.Load(array=array)):
                flow(target.name, array)
            case ir.Assign(target=target, value=value):
                flow(target.name, value)
            case ir.Store(array=array, value=value) | ir.Accumulate(array=array, value=value):
                flow(array.name, value)
            case ir.Alloc(target=target, fill=fill) if fill is not None:
                flow(target.name, fill)
            case ir.Fill(target=target, arguments=arguments):
                flow(target.name, *arguments)
            case Loop(carried=carried):
                for c in carried:
                    flow(c.var.name, c.init, c.next)
            case Branch(joins=joins):
                for j in joins:
                    flow(j.var.name, j.then, j.orelse)
                if isinstance(s, Custom):
                    for result in s.results:
                        flow(result.array.name if isinstance(result, ir.Load) else result.name, *s.arguments)
    return sources


def _reached(names: Iterable[str], edges: dict[str, set[str]]) -> frozenset[str]:
    """The names that can be reached from some along edges, these included."""
    found = set(names)
    waiting = list(found)
    while waiting:
        for name in edges.get(waiting.pop(), set()) - found:
            found.add(name)
            waiting.append(name)
    return frozenset(found)


def _wild_arrays(body: tuple[Stmt, ...]) -> set[str]:
    """Arrays, and scalars of loops and branches, that get a constant which is infinite or not a number."""
    found = set()
    for s in every(body):
        match s:
            case ir.Store(array=array, value=Const(value=value)) | ir.Alloc(target=array, fill=Const(value=value)):
                if not cmath.isfinite(value):
                    found.add(array.name)
            case Loop(carried=carried):
                found |= {c.var.name for c in carried if _is_wild(c.init) or _is_wild(c.next)}
            case Branch(joins=joins):
                found |= {j.var.name for j in joins if _is_wild(j.then) or _is_wild(j.orelse)}
    return found


def _is_wild(e: Expr) -> bool:
    return isinstance(e, Const) and not cmath.isfinite(e.value)


def _masked_by(body: tuple[Stmt, ...]) -> set[str]:
    """Arguments of operations that may discard them, and values used in branches that may not be taken."""
    found: set[str] = set()

    def visit(block: tuple[Stmt, ...], outside: frozenset[str]) -> None:
        own = {s.target.name for s in block if isinstance(s, ir.Assign)}
        for s in block:
            match s:
                case ir.Assign(value=Op(name=name, args=args)):
                    discarded = args[1:] if name in QUOTIENTS else args if name in _MASKING | {"reciprocal"} else ()
                    found.update(a.name for a in discarded if isinstance(a, Var))
                    found.update(a.name for a in args if isinstance(a, Var) and a.name in outside)
                case ir.Store(value=Var(name=name)) | ir.Accumulate(value=Var(name=name)) if name in outside:
                    found.add(name)
                case Loop():
                    visit(s.body, outside)
                case Branch():
                    for j in s.joins:
                        found.update(e.name for e in (j.then, j.orelse) if isinstance(e, Var))
                    for part in (s.then, s.orelse):
                        visit(part, outside | own)

    visit(body, frozenset())
    return found


def _divided_by_only(body: tuple[Stmt, ...]) -> set[str]:
    """The names that occur in denominators only."""
    divided, otherwise = set(), set()
    for s in every(body):
        if isinstance(s, ir.Assign) and isinstance(s.value, Op) and s.value.name in ("truediv", "reciprocal"):
            *first, last = s.value.args
            divided |= {last.name} if isinstance(last, Var) else set()
            otherwise |= {a.name for a in first if isinstance(a, Var)}
        else:
            otherwise |= names_read(s)
    return divided - otherwise
