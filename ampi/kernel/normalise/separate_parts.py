"""Dependence test: whether a loop writes to a part of an array while a name stands for that part."""

from __future__ import annotations

from ampi.kernel import ir
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.liveness import assigned, live_before
from ampi.kernel.normalise.array_phi import live_around, with_live

Loop = ir.For | ir.While
Write = ir.Store | ir.Accumulate | ir.Elementwise


class SeparateParts:
    """Proves parts separate: after ``p = m[t]`` at the end of an iteration, ``m[t] = ...`` writes another part in the
    next."""

    def __init__(self, function: ir.Function):
        self.loops: dict[int, tuple[Loop, ...]] = {}  # around each statement, outermost first
        self.position: dict[int, int] = {}
        self.begins: dict[int, set[str]] = {}  # the names live at the beginning of an iteration
        self.bindings: dict[str, list[ir.Stmt]] = {}
        self.walk(function.body, (), set())

    def walk(self, body: tuple[ir.Stmt, ...], loops: tuple[Loop, ...], live: set[str]) -> None:
        for s, after in with_live(body, live):
            self.loops[id(s)] = loops
            self.position[id(s)] = len(self.position)
            match s:
                case ir.Alias() | ir.View() | ir.Alloc():
                    self.bindings.setdefault(s.target.name, []).append(s)
                case ir.If():
                    self.walk(s.then, loops, after)
                    self.walk(s.orelse, loops, after)
                case ir.For() | ir.While():
                    around = live_around(s, after)
                    self.begins[id(s)] = live_before(s.body, around)
                    self.walk(s.body, (*loops, s), around)
                case ir.Custom():
                    self.walk(s.body, loops, after)

    def parts(self, name: str, array: str, seen: frozenset[str] = frozenset()) -> list[ir.Stmt] | None:
        """The statements that bind a name, directly or not, to a part of an array; None if one binds it to the
        whole."""
        found: list[ir.Stmt] = []
        for b in self.bindings.get(name, ()):
            if isinstance(b, ir.Alloc) or b.array.name in seen:  # type: ignore[attr-defined]
                continue
            if isinstance(b, ir.View) or (isinstance(b, ir.Alias) and b.index):
                if b.array.name == array:
                    found.append(b)
                elif self.parts(b.array.name, array, seen | {name}) != []:
                    return None
                continue
            assert isinstance(b, ir.Alias)
            more = None if b.array.name == array else self.parts(b.array.name, array, seen | {name})
            if more is None:
                return None
            found += more
        return found

    def are_separate(self, s: Write, name: str) -> bool:
        """Return whether a statement never writes a part for which the name, bound before, stands."""
        parts = self.parts(name, s.array.name)
        return bool(parts) and all(self.is_separate(s, b, name) for b in parts or ())

    def is_separate(self, s: Write, b: ir.Stmt, name: str) -> bool:
        common = [a for a, c in zip(self.loops[id(s)], self.loops[id(b)]) if a is c]
        if not common or not isinstance(b, ir.Alias):
            return False
        loop = common[-1]
        if not isinstance(loop, ir.For) or not isinstance(loop.step, ir.Const) or loop.step.value <= 0:
            return False
        if loop.var.name in assigned(loop.body) or any(name in self.begins[id(outer)] for outer in common[:-1]):
            return False
        for mine, other in zip(s.index, b.index):
            first, second = index_algebra.as_sum(mine), index_algebra.as_sum(other)
            if first.terms == second.terms == {loop.var: 1}:
                distance = second.constant - first.constant
                if distance < 0 or (distance == 0 and self.position[id(b)] > self.position[id(s)]):
                    return True
        return False
