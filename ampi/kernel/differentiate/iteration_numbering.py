"""Iteration numbering: consecutive numbers for the iterations of inner loops whose length varies.

Values saved in a nest of loops are kept in an array with one dimension per loop, if the lengths of the loops are known
before the nest begins.  Otherwise they are saved one after another in a single dimension, and this pass adds integer
scalars to the kernel that count the iterations before each run of the innermost loop.
"""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.tbr import Accesses, Source
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import INT, ZERO, Branch, Carried, Join, Loop, blocks, is_rectangular

Nest = tuple[str, str]  # the names of its innermost and outermost loop


def irregular_nests(accesses: Accesses, sources: dict[str, Source]) -> list[Nest]:
    """The nests of loops (inside the home of an array) whose saved loads do not fit a rectangular array."""
    found: dict[Nest, None] = {}
    for array, of_array in accesses.of.items():
        depth = len(accesses.home.get(array, ()))
        for load in of_array:
            if load.is_load and sources[load.statement.target.name] is Source.SAVED:
                nest = load.loops[depth:]
                if not all(is_rectangular(loop, nest[0]) for loop in nest):
                    found[nest[-1].name, nest[0].name] = None
    return list(found)


def add_counters(function: ir.Function, nests: list[Nest], names: Names) -> tuple[ir.Function, dict[Nest, Expr]]:
    """The function with counters, and for each nest the count at the beginning of its innermost loop."""
    before: dict[Nest, Expr] = {}
    body = function.body
    for innermost, outermost in nests:
        body = _Counting(innermost, outermost, names, before).outside(body)
    return replace(function, body=body), before


class _Counting:
    def __init__(self, innermost: str, outermost: str, names: Names, before: dict[Nest, Expr]) -> None:
        self.innermost, self.outermost, self.names, self.before = innermost, outermost, names, before

    def fresh(self) -> Var:
        return Var(self.names.fresh("count"), INT)

    def outside(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Look for the nest."""
        out: list[Stmt] = []
        for s in body:
            found = isinstance(s, Loop) and s.name == self.outermost
            out += self.block((s,), ZERO)[0] if found else [ir.in_blocks(s, self.outside)]
        return tuple(out)

    def block(self, body: tuple[Stmt, ...], count: Expr) -> tuple[tuple[Stmt, ...], Expr]:
        """Statements that keep count, and the count after them."""
        out: list[Stmt] = []
        for s in body:
            if not self.contains(s):
                out.append(s)
            elif isinstance(s, Loop) and s.name == self.innermost:
                self.before[self.innermost, self.outermost] = count
                out.append(s)
                trips = self.trips(s, out)
                total = self.fresh()
                out.append(ir.Assign(total, Op("add", (count, trips), INT), line=s.line))
                count = total
            elif isinstance(s, Loop):
                carried = self.fresh()
                inner, after = self.block(s.body, carried)
                out.append(replace(s, body=inner, carried=(*s.carried, Carried(carried, count, after))))
                count = carried
            else:
                assert isinstance(s, Branch)
                then, after_then = self.block(s.then, count)
                orelse, after_else = self.block(s.orelse, count)
                joined = self.fresh()
                out.append(replace(s, then=then, orelse=orelse, joins=(*s.joins, Join(joined, after_then, after_else))))
                count = joined
        return tuple(out), count

    def contains(self, s: Stmt) -> bool:
        if isinstance(s, Loop) and s.name == self.innermost:
            return True
        return any(self.contains(inner) for block in blocks(s) for inner in block)

    def trips(self, s: Loop, out: list[Stmt]) -> Expr:
        if s.condition is not None:
            return s.var
        length, trips = self.fresh(), self.fresh()
        out.append(ir.Assign(length, Op("sub", (s.stop, s.start), types.int64), line=s.line))
        out.append(ir.Assign(trips, Op("max", (length, ZERO), INT), line=s.line))
        return trips
