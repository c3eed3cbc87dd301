"""Reduction recognition: sums and extremes, which the adjoint need not carry through a loop.

The adjoint of a sum is the same in all iterations.  The adjoint of a minimum or maximum belongs to the iteration from
which the value came; if it is not zero, a search finds that iteration.  If a loop carries nothing else, its iterations
can be reversed in any order.  Several threads can compute sums, extremes and the places of extremes in parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.ssa import Branch, Carried, Loop, every, names_read, reads

_FIRST_IF = {"minimum": "le", "maximum": "ge"}
_SECOND_IF = {"min": "lt", "max": "gt"}  # second compared with first; otherwise the first, also if either is nan


def _choice(name: str, a: Expr, b: Expr) -> tuple[Expr, bool]:
    """The comparison by which an operation selects one of two numbers, and whether it selects the first if it holds."""
    if name in _SECOND_IF:
        return Op(_SECOND_IF[name], (b, a), types.boolean), False
    return first_taken(_FIRST_IF[name], a, b), True


def first_taken(compare: str, a: Expr, b: Expr) -> Expr:
    """The condition under which NumPy's extreme of two numbers is the first one: it is the better one, or NaN."""
    better, is_nan = Op(compare, (a, b), types.boolean), Op("ne", (a, a), types.boolean)
    return Op("or", (better, is_nan), types.boolean)


@dataclass(frozen=True)
class Extreme:
    """A carried scalar that an iteration replaces by ``value`` where ``replaces`` holds (``negated``: does not
    hold)."""

    carried: Carried
    value: Expr
    replaces: Expr
    negated: bool


def is_sum(c: Carried, loop: Loop) -> bool:
    """Return whether the iterations only add to a carried scalar."""
    members = {c.var.name}
    return _only_added(loop.body, members) and isinstance(c.next, Var) and c.next.name in members


def _only_added(body: tuple[Stmt, ...], members: set[str]) -> bool:
    for s in body:
        match s:
            case ir.Assign(target=target, value=Op(name="add" | "sub" as name, args=(a, b), type=ty)) if _one(
                a, b, members
            ):
                if (name == "sub" and _is(b, members)) or ty != target.type:
                    return False
                members.add(target.name)
            case Branch(condition=condition):
                if _is(condition, members) or not all(_only_added(block, members) for block in (s.then, s.orelse)):
                    return False
                for j in s.joins:
                    if _is(j.then, members) != _is(j.orelse, members):
                        return False
                    if _is(j.then, members):
                        members.add(j.var.name)
            case Loop():
                inner = [d for d in s.carried if _is(d.init, members)]
                members |= {d.var.name for d in inner}
                if any(_is(e, members) for e in (s.start, s.stop)) or not _only_added(s.body, members):
                    return False
                if any(_is(d.next, members) != (d in inner) for d in s.carried):
                    return False
            case _:
                if not members.isdisjoint(names_read(s)):
                    return False
    return True


def _is(e: Expr, members: set[str]) -> bool:
    return isinstance(e, Var) and e.name in members


def _one(a: Expr, b: Expr, members: set[str]) -> bool:
    return _is(a, members) != _is(b, members)


def extreme(c: Carried, loop: Loop) -> Extreme | None:
    """The extreme that a carried scalar holds: a minimum, a maximum or another selected value; otherwise None."""
    if not isinstance(c.next, Var):
        return None
    uses = [s for s in every(loop.body) if c.var.name in names_read(s)]
    if sum(c.next.name in names_read(s) for s in every(loop.body)) or any(d.next == c.var for d in loop.carried):
        return None
    if sum(d.next == c.next for d in loop.carried) > 1:
        return None
    for s in loop.body:
        match s:
            case ir.Assign(target=target, value=Op(name=name, args=(a, b))) if target == c.next and (
                name in _FIRST_IF or name in _SECOND_IF
            ):
                if uses != [s] or a == b or a.type != b.type:
                    return None
                comparison, is_first = _choice(name, a, b)
                return Extreme(c, a if b == c.var else b, comparison, negated=(a == c.var) == is_first)
            case Branch(joins=joins) if any(j.var == c.next for j in joins):
                return _chosen(c, s, uses, loop)
    return None


@dataclass(frozen=True)
class Combined:
    """How a carried scalar is combined from its values in parts of a loop: see `ir.Reduced`."""

    operation: str
    of: int = -1
    last: bool = False


def combined(loop: Loop) -> list[Combined | None]:
    """For each carried scalar, how to combine its values in parts of the loop; None if that cannot be done."""
    found: list[Combined | None] = []
    for c in loop.carried:
        operation = "add" if addition(c, loop.body) is not None else _compared(c, loop)
        found.append(None if operation is None else Combined(operation))
    for k, c in enumerate(loop.carried):
        if found[k] is None:
            found[k] = _place(c, loop, found)
    return found


def addition(c: Carried, body: tuple[Stmt, ...]) -> Expr | None:
    """The amount that each iteration adds to a carried scalar, if nothing else changes or reads the scalar."""
    uses = sum(isinstance(n, Var) and n == c.var for t in every(body) for e in reads(t) for n in ir.walk(e))
    if uses != 1 or any(c.next.name in names_read(t) for t in every(body) if isinstance(c.next, Var)):
        return None
    for t in body:
        match t:
            case ir.Assign(target=target, value=Op(name="add", args=(a, b))) if target == c.next and c.var in (a, b):
                return (b if a == c.var else a) if a.type == b.type else None
    return None


def _compared(c: Carried, loop: Loop) -> str | None:
    """``min`` or ``max`` for a carried scalar that is compared with one value per iteration; None for others.

    The scalar may have one other use: to find the iteration of the extreme.
    """
    value = _value_of(c.next, loop.body)
    match value:
        case Op(name="min" | "max" as name, args=(a, b)) if (a == c.var) != (b == c.var) and a.type == b.type:
            comparison, _ = _choice(name, a, b)
        case _:
            return None
    for t in every(loop.body):
        if c.next.name in names_read(t) or (
            c.var.name in names_read(t) and not (isinstance(t, ir.Assign) and t.value in (value, comparison))
        ):
            return None
    others = [d for d in loop.carried if d is not c]
    return None if any(d.next in (c.var, c.next) for d in others) else name


def _place(c: Carried, loop: Loop, found: list[Combined | None]) -> Combined | None:
    """How to combine a scalar that holds the iteration of an extreme (-1: it is the value before the loop)."""
    value = _value_of(c.next, loop.body)
    uses = [t for t in every(loop.body) if c.var.name in names_read(t)]
    match value:
        case Op(name="select", args=(Var() as condition, a, b)) if (a == c.var) != (b == c.var):
            comparison = _value_of(condition, loop.body)
        case _:
            return None
    if len(uses) != 1 or c.init != Const(-1, c.var.type) or any(c.next.name in names_read(t) for t in every(loop.body)):
        return None
    for k, (extreme_, how) in enumerate(zip(loop.carried, found)):
        extremum = _value_of(extreme_.next, loop.body)
        if how is None or how.operation not in ("min", "max") or not isinstance(extremum, Op):
            continue
        keeps_first = extremum.args[0] == extreme_.var
        expected, is_first = _choice(extremum.name, *extremum.args)
        if comparison == expected and keeps_first == ((a == c.var) == is_first):
            return Combined("place", k, last=not keeps_first)
    return None


def _value_of(e: Expr, body: tuple[Stmt, ...]) -> Expr | None:
    """The expression that a block itself assigns to a variable."""
    return next((t.value for t in body if isinstance(t, ir.Assign) and t.target == e), None)


def _chosen(c: Carried, s: Branch, uses: list[Stmt], loop: Loop) -> Extreme | None:
    """``if condition: carried = value``, where only the condition reads the carried scalar."""
    j = next(j for j in s.joins if j.var == c.next)
    if (j.then == c.var) == (j.orelse == c.var):
        return None
    if any(c.var in (k.then, k.orelse) for k in s.joins if k is not j):
        return None
    condition = next((t for t in loop.body if isinstance(t, ir.Assign) and t.target == s.condition), None)
    if any(u is not s and u is not condition for u in uses):
        return None
    negated = j.then == c.var
    value = j.orelse if negated else j.then
    inside = s.orelse if negated else s.then
    if any(value == t.target for t in inside if isinstance(t, ir.Assign)):
        return None
    return Extreme(c, value, s.condition, negated)
