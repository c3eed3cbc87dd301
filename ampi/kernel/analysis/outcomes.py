"""Saved outcomes: one byte for the outcome of a comparison, instead of the numbers that were compared.

After ``x[i] = min(x[i], y)`` the adjoint has to know which of the two numbers was taken, but one is overwritten.
Where nothing else needs the numbers, the outcome is saved in one byte, and the adjoint does not recompute ``y``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.tbr import Accesses, Source
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import LINEAR
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.operators import COMPARE
from ampi.kernel.ir.ssa import Branch, Loop, every

COMPARED = {"min": ("lt", True), "max": ("gt", True), "minimum": ("le", False), "maximum": ("ge", False)}
"""The comparison that each extreme makes, and whether it compares its second operand with the first."""
_COMPARISONS = {name for name, _ in COMPARE.values()}


def find_outcomes(
    body: tuple[Stmt, ...], accesses: Accesses, sources: dict[str, Source], names: Names
) -> tuple[tuple[Stmt, ...], frozenset[str]]:
    """The statements (in single assignment form) with the outcomes of extremes as separate values, and the names of
    the outcomes to save."""
    search = _Search(body, accesses, sources, names)
    return search.block(body, ()), frozenset(search.found)


class _Search:
    def __init__(self, body: tuple[Stmt, ...], accesses: Accesses, sources: dict[str, Source], names: Names) -> None:
        self.accesses = accesses
        self.sources = sources
        self.names = names
        self.found: set[str] = set()
        self.values = {s.target.name: s.value for s in every(body) if isinstance(s, ir.Assign)}
        self.loops: dict[str, tuple[str, ...]] = {}
        self.needed = {name for s in every(body) for name in _needed_by(s)}

    def block(self, body: tuple[Stmt, ...], loops: tuple[str, ...]) -> tuple[Stmt, ...]:
        return tuple(new for s in body for new in self.statement(s, loops))

    def statement(self, s: Stmt, loops: tuple[str, ...]) -> Iterator[Stmt]:
        match s:
            case Loop():
                yield replace(s, body=self.block(s.body, (*loops, s.name)))
            case Branch():
                yield replace(s, then=self.block(s.then, loops), orelse=self.block(s.orelse, loops))
            case ir.Assign(target=target, value=Op(name=name, args=args)):
                self.loops[target.name] = loops
                if name in COMPARED and isinstance(target.type, types.Float) and self.is_worth_it(args, loops):
                    yield from self.extreme(s, name, args)
                else:
                    yield s
                    if name in _COMPARISONS and self.is_worth_it(args, loops):
                        self.found.add(target.name)
            case _:
                if isinstance(s, ir.Assign):
                    self.loops[s.target.name] = loops
                yield s

    def extreme(self, s: ir.Assign, name: str, args: tuple[Expr, ...]) -> Iterator[Stmt]:
        compare, second_first = COMPARED[name]
        first, second = args
        outcome = Var(self.names.fresh(f"{stem(s.target.name)}_chosen"), types.boolean)
        value = Var(self.names.fresh(stem(s.target.name)), s.target.type)
        if second_first:
            yield ir.Assign(outcome, Op(compare, (second, first), types.boolean), line=s.line)
        else:
            parts = [Var(self.names.fresh(stem(outcome.name)), types.boolean) for _ in range(2)]
            yield ir.Assign(parts[0], Op(compare, (first, second), types.boolean), line=s.line)
            yield ir.Assign(parts[1], Op("ne", (first, first), types.boolean), line=s.line)
            yield ir.Assign(outcome, Op("or", tuple(parts), types.boolean), line=s.line)
        yield ir.Assign(value, s.value, line=s.line)
        chosen = (outcome, second, first, value) if second_first else (outcome, first, second, value)
        yield ir.Assign(s.target, Op("chosen", chosen, s.target.type), line=s.line)
        self.found.add(outcome.name)

    def is_worth_it(self, args: tuple[Expr, ...], loops: tuple[str, ...]) -> bool:
        """Return whether numbers would be saved for this comparison only, at least one in each iteration of these
        loops."""
        loads = [load for a in args for load in self.loads(a)]
        saved = [n for n in loads if self.sources[n] is Source.SAVED]
        if any(n in self.needed or self.accesses.home.get(self.values[n].array.name) for n in saved):
            return False
        return any(self.loops[n] == loops for n in saved)

    def loads(self, value: Expr) -> Iterator[str]:
        """The loads from which a number is computed."""
        waiting, seen = [value], set()
        while waiting:
            e = waiting.pop()
            if not isinstance(e, Var) or e.name in seen or e.name not in self.values:
                continue
            seen.add(e.name)
            definition = self.values[e.name]
            if isinstance(definition, ir.Load):
                yield e.name
            elif isinstance(definition, Op):
                waiting.extend(definition.args)


def _needed_by(s: Stmt) -> Iterator[str]:
    """The names whose values adjoints of a statement need, apart from comparisons and extremes."""
    if isinstance(s, ir.Assign) and isinstance(s.value, Op):
        if s.value.name not in LINEAR and s.value.name not in _COMPARISONS:
            yield from (a.name for a in s.value.args if isinstance(a, Var))
