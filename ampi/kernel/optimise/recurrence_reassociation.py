"""Reassociation of recurrences: a carried adjoint that an iteration updates linearly is updated by one operation.

The loop of a recurrence can run no faster than the chain of operations from one value of a carried scalar to the next.
In an adjoint the next value is linear in the previous one, mostly ``(c + a) * b``: an addition and then a
multiplication.  As ``c * b + a * b`` it is one operation of most processors, and the product can be computed before
``c`` is known.  The two differ by rounding (and where ``a * b`` is not finite), which is acceptable in a derivative.
Exact values (see ``exactness``) do not change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.exactness import exact_values
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import Carried, Loop, definitions, every, names_read, with_innermost_loops

MIN_LENGTH = 2  # operations in a chain that is worth changing


def with_short_chains(function: ir.Function, names: Names, shadows: set[str]) -> ir.Function:
    """Shorten recurrences in a function (in single assignment form); ``shadows`` are the arrays of adjoints."""
    return replace(function, body=with_innermost_loops(function.body, _Chains(function, names, shadows).shortened))


@dataclass(frozen=True)
class _Linear:
    """``c * factor + term``, and its number of operations on ``c``; None stands for a factor of one, or a zero term."""

    factor: Expr | None = None
    term: Expr | None = None
    length: int = 0


class _Chains:
    def __init__(self, function: ir.Function, names: Names, shadows: set[str]) -> None:
        self.names = names
        self.exact = exact_values(function, shadows)

    def shortened(self, s: Loop) -> Loop:
        if s.independent or s.parallel:
            return s
        defined = {t.target.name: t for t in s.body if isinstance(t, ir.Assign)}
        dependent = _dependent(s)
        carried: list[Carried] = []
        more: list[Stmt] = []
        for c in s.carried:
            found: _Linear | None = None
            if isinstance(c.var.type, types.Float) and isinstance(c.next, Var) and c.next.name not in self.exact:
                found = self.linear(c.next, c.var, defined, dependent)
            if found is not None and found.length >= MIN_LENGTH:
                line = defined[c.next.name].line
                c = replace(c, next=self.next_value(c.var, found, more, line))
            carried.append(c)
        if not more:
            return s
        body = (*s.body, *more)
        changed = replace(s, carried=tuple(carried), body=body)
        used = {name for t in every((changed,)) for name in names_read(t)}
        replaced = {c.next.name for c in s.carried if isinstance(c.next, Var)} - used
        kept = (t for t in body if not (isinstance(t, ir.Assign) and t.target.name in replaced))
        return replace(changed, body=tuple(kept))

    def linear(self, e: Expr, c: Var, defined: dict[str, ir.Assign], dependent: set[str]) -> _Linear | None:
        """A value as a linear function of a carried scalar, with at most one factor; None if it is not one."""
        if e == c:
            return _Linear()
        assign = defined.get(e.name) if isinstance(e, Var) else None
        if assign is None or not isinstance(assign.value, Op) or assign.value.type != c.type:
            return None
        op = assign.value
        if op.name not in ("add", "sub", "mul") or any(a.type != c.type for a in op.args):
            return None
        depends = [isinstance(a, Var) and a.name in dependent for a in op.args]
        if depends == [False, True] and op.name != "sub":
            inner, other = op.args[::-1]
        elif depends == [True, False]:
            inner, other = op.args
        else:
            return None
        known = self.linear(inner, c, defined, dependent)
        if known is None:
            return None
        if op.name == "mul":
            if known.factor is not None:
                return None
            term = None if known.term is None else Op("mul", (known.term, other), c.type)
            return _Linear(other, term, known.length + 1)
        if known.term is None:
            term = other if op.name == "add" else Op("neg", (other,), c.type)
        else:
            term = Op(op.name, (known.term, other), c.type)
        return replace(known, term=term, length=known.length + 1)

    def next_value(self, c: Var, found: _Linear, more: list[Stmt], line: int) -> Var:
        """Write the next value of the carried scalar."""

        def atom(e: Expr) -> Expr:
            if not isinstance(e, Op):
                return e
            var = Var(self.names.fresh("t"), c.type)
            more.append(ir.Assign(var, replace(e, args=tuple(map(atom, e.args))), line=line))
            return var

        term = constant(0, c.type) if found.term is None else atom(found.term)
        value = Op("add", (c, term), c.type)
        if found.factor is not None:
            value = Op("fused", (c, found.factor, term), c.type)
        result = Var(self.names.fresh(c.name), c.type)
        more.append(ir.Assign(result, value, line=line))
        return result


def _dependent(s: Loop) -> set[str]:
    """The names that depend on a number that the loop carries."""
    found = {c.var.name for c in s.carried if c.var != s.var}
    for t in every(s.body):
        if names_read(t) & found:
            found |= {v.name for v in definitions(t)}
    return found
