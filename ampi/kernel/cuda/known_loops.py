"""Loops around barriers whose iterations are known when a launch is compiled, written out.

A tree of a reduction (``half = blockDim.x // 2``, ``while half > 0``) becomes a few phases with constant strides, and
nothing is saved to walk it backwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.guards import has_barrier
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.frontend.cuda.language import AXES
from ampi.kernel.ir.rewrite import mapped

MOST = 16
"""Iterations that are written out."""


def written_out(body: tuple[ir.Stmt, ...], block: tuple[int, int, int]) -> tuple[ir.Stmt, ...]:
    """Statements without loops around barriers whose iterations are known for blocks of this shape."""
    return _Known({f"blockDim.{axis}": n for axis, n in zip(AXES, block)}).block(body)


class _Known:
    """Statements, with the integers whose values are known there."""

    def __init__(self, places: dict[str, int]) -> None:
        self.places = places
        self.values: dict[str, Any] = {}

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            out += self.statement(s)
        return tuple(out)

    def forget(self, body: tuple[ir.Stmt, ...]) -> None:
        for v in assigned(body):
            self.values.pop(v.name, None)

    def statement(self, s: ir.Stmt) -> tuple[ir.Stmt, ...]:
        match s:
            case ir.Assign(target=target):
                value = self.value(s.value)
                if value is None:
                    self.values.pop(target.name, None)
                else:
                    self.values[target.name] = value
                return (s,)
            case ir.While() if has_barrier(s):
                found = self.unrolled(s)
                if found is not None:
                    return found
                self.forget(s.body)
                body = self.block(s.body)
                self.forget(s.body)
                return (replace(s, body=body),)
            case ir.For() | ir.While():
                self.forget((s,))
                body = self.block(s.body)
                self.forget((s,))
                return (replace(s, body=body),)
            case ir.If():
                before = dict(self.values)
                then = self.block(s.then)
                self.values = before
                orelse = self.block(s.orelse)
                self.forget((*s.then, *s.orelse))
                return (replace(s, then=then, orelse=orelse),)
        self.forget((s,))
        return (s,)

    def unrolled(self, s: ir.While) -> tuple[ir.Stmt, ...] | None:
        """The iterations of a loop; None if they are not known, or too many."""
        before = dict(self.values)
        out: list[ir.Stmt] = []
        for _ in range(MOST):
            go_on = self.value(s.condition)
            if go_on is None:
                break
            if not go_on:
                return tuple(out)
            controls = {n.name for n in ir.walk(s.condition) if isinstance(n, ir.Var)}
            known = {name: self.values[name] for name in controls if name in self.values}
            for t in self.block(s.body):
                if controls & {v.name for v in assigned((t,))}:
                    known = {}
                out.append(_with(t, known))
        self.values = before
        return None

    def value(self, e: ir.Expr) -> Any:
        """The value of an integer or a condition, if it is known."""
        match e:
            case ir.Const(value=value):
                return value
            case ir.Var(name=name):
                return self.values.get(name)
            case ir.Op(name=name, args=()):
                return self.places.get(name)
            case ir.Op(name=name, args=args) if name in _OPERATIONS and _is_exact(e.type):
                if all(_is_exact(a.type) for a in args):
                    values = [self.value(a) for a in args]
                    if all(v is not None for v in values):
                        try:
                            return _OPERATIONS[name](*values)
                        except ArithmeticError:
                            return None
        return None


def _with(s: ir.Stmt, known: dict[str, Any]) -> ir.Stmt:
    """A statement with the values of integers that it does not change."""
    change = lambda e: (
        ir.Const(known[e.name], e.type) if isinstance(e, ir.Var) and e.name in known and _is_exact(e.type) else e
    )
    return mapped(s, change)  # type: ignore[no-any-return]


def _is_exact(ty: Any) -> bool:
    return isinstance(ty, (types.Integer, types.Boolean))


_OPERATIONS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
    "neg": lambda a: -a,
    "cast": lambda a: a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "not": lambda a: not a,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
}
