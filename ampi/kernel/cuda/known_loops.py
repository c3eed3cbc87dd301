"""Unrolling of loops around barriers whose iterations are known when a launch is compiled.

A tree reduction (``half = blockDim.x // 2``, ``while half > 0``) becomes a few phases with constant strides, and
its adjoint needs no saved values.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.cuda.constants import evaluated, is_exact
from ampi.kernel.cuda.guards import has_barrier
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.frontend.cuda.language import AXES
from ampi.kernel.ir.rewrite import mapped

MOST = 16
"""Largest number of iterations of an unrolled loop."""


def written_out(body: tuple[ir.Stmt, ...], block: tuple[int, int, int]) -> tuple[ir.Stmt, ...]:
    """Unroll the loops around barriers whose iterations are known for blocks of this shape."""
    return _Known({f"blockDim.{axis}": n for axis, n in zip(AXES, block)}).block(body)


class _Known:
    """Unrolling of statements, with the integers whose values are known at each of them."""

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
        """Return the iterations of a loop; None if they are not known, or too many."""
        before = dict(self.values)
        out: list[ir.Stmt] = []
        for _ in range(MOST):
            holds = self.value(s.condition)
            if holds is None:
                break
            if not holds:
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
        """Return the value of an integer or a condition; None if it is not known."""
        return evaluated(e, self.values, self.places)


def _with(s: ir.Stmt, known: dict[str, Any]) -> ir.Stmt:
    """Return a statement with the values of integers that it does not change."""
    change = lambda e: (
        ir.Const(known[e.name], e.type) if isinstance(e, ir.Var) and e.name in known and is_exact(e.type) else e
    )
    return mapped(s, change)  # type: ignore[no-any-return]
