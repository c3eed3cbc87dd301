"""Allocation hoisting: a loop's local arrays of constant size are allocated once, before the loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import INT, ZERO, Loop, definitions, every


def allocate_once(function: ir.Function, names: Names) -> ir.Function:
    """Move allocations out of the loops of a function (in single assignment form) that run on one thread."""
    return replace(function, body=_Moving(function, names).block(function.body))


class _Moving:
    def __init__(self, function: ir.Function, names: Names) -> None:
        self.names = names
        self.returned = {
            v.name for s in function.body if isinstance(s, ir.Return) for v in s.values if isinstance(v, Var)
        }
        fills = [s for s in every(function.body) if isinstance(s, ir.Fill)]
        self.kept = {a.name for s in fills for a in (s.target, *s.arguments)}  # these are written once
        self.grown = {s.target.name for s in every(function.body) if isinstance(s, ir.Grow)}
        self.value = {s.target.name: s.value for s in every(function.body) if isinstance(s, ir.Assign)}

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            s = ir.in_blocks(s, self.block)
            if isinstance(s, Loop) and not s.parallel:
                moved, s = self.out_of(s)
                out += moved
            out.append(s)
        return tuple(out)

    def out_of(self, s: Loop) -> tuple[list[Stmt], Loop]:
        """The allocations to make before a loop, and the loop without them."""
        inside = {v.name for t in every((s,)) for v in definitions(t)}
        moved: list[Stmt] = []
        body: list[Stmt] = []
        for t in s.body:
            if not isinstance(t, ir.Alloc) or t.target.name in self.returned or not self.is_movable(t, inside):
                body.append(t)
                continue
            moved.append(replace(t, fill=None))
            inside.discard(t.target.name)
            if t.fill is not None:
                body.append(self.filling(t, ()))
        return moved, replace(s, body=tuple(body))

    def is_movable(self, t: ir.Alloc, inside: set[str]) -> bool:
        if t.target.name in self.kept:
            return False
        if t.fill is not None and not isinstance(t.fill, Const):
            return False
        return all(self.is_extent(e) and not self.names_any(e, inside) for e in t.shape)

    @staticmethod
    def names_any(e: Expr, inside: set[str]) -> bool:
        """Return whether a size is that of an array, or the value of a variable, that exists in the loop only."""
        return any(isinstance(v, Var) and v.name in inside for v in ir.walk(e))

    def is_extent(self, e: Expr) -> bool:
        """Return whether a size is not negative, so that allocating is harmless even if the loop is never entered."""
        match e:
            case Const(value=value):
                return value >= 0
            case Size(array=array):
                return array.name not in self.grown  # these may be longer in a later iteration
            case Var(name=name):
                value = self.value.get(name)
                return isinstance(value, Op) and value.name == "max" and ZERO in value.args
        return False

    def filling(self, t: ir.Alloc, index: tuple[Any, ...]) -> Stmt:
        """Loops that set all elements to the value that the array was allocated with."""
        assert t.fill is not None
        if len(index) == len(t.shape):
            return ir.Store(t.target, index, t.fill, line=t.line)
        i = Var(self.names.fresh("i"), INT)
        inner = self.filling(t, (*index, i))
        return Loop(i.name, i, ZERO, t.shape[len(index)], (inner,), independent=True, line=t.line)
