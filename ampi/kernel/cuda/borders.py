"""Index set splitting: conditions like ``0 < i < n - 1`` divide loops into inner points and borders.

The loops over inner points, where the conditions are true, are without them, so that they vectorise and their adjoints
gather; those over borders are short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.loops import ONE, ZERO
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.frontend.cuda.language import INT
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped

THIN = 16
"""The most iterations of a border along an axis."""
MOST = 80
"""The most statements of all loops that are made."""
Bounds = Callable[[ir.Expr, ir.Expr], tuple[ir.Expr | None, ir.Expr | None]]
Conjuncts = Callable[[ir.Expr], Iterator[ir.Expr]]


@dataclass(frozen=True)
class Axis:
    """One axis of the grid: its loop, and the range of inner points; the whole loop for None."""

    loop: ir.For
    low: int = 0
    high: ir.Expr | None = None

    @property
    def is_whole(self) -> bool:
        return not self.low and self.high is None

    @property
    def inner_stop(self) -> ir.Expr:
        return self.loop.stop if self.high is None else ir.Op("min", (self.high, self.loop.stop), INT)


def split(
    body: tuple[ir.Stmt, ...], around: list[ir.For], conjuncts: Conjuncts, bounds: Bounds, names: Names
) -> tuple[ir.Stmt, ...]:
    """Loops (the outermost first, with empty bodies) around the statements of a thread."""
    if all(loop.start == ZERO and loop.step == ONE for loop in around):
        splitting = _Splitting(body, around, conjuncts, bounds, names)
        copies = 1 + sum(bool(a.low) + (a.high is not None) for a in splitting.axes)
        if copies > 1 and copies * sum(isinstance(s, ir.Stmt) for s in ir.walk(body)) <= MOST:
            return splitting.nest(splitting.axes, splitting.inner(body))
    return plain(body, around)


def plain(body: tuple[ir.Stmt, ...], around: list[ir.For]) -> tuple[ir.Stmt, ...]:
    """The same loops without a division."""
    for loop in reversed(around):
        body = (replace(loop, body=body),)
    return body


class _Splitting:
    def __init__(
        self, body: tuple[ir.Stmt, ...], around: list[ir.For], conjuncts: Conjuncts, bounds: Bounds, names: Names
    ) -> None:
        self.body, self.conjuncts, self.names = body, conjuncts, names
        self.axes = [Axis(loop) for loop in around]
        self.true: set[ir.Expr] = set()  # conditions that are true at all inner points
        varying = {v.name for v in assigned(body)} | {loop.var.name for loop in around}
        for s in body:
            for term in conjuncts(s.condition) if isinstance(s, ir.If) else ():
                for k, axis in enumerate(self.axes):
                    self.include(k, term, *bounds(term, axis.loop.var), varying)

    def include(self, k: int, term: ir.Expr, low: ir.Expr | None, high: ir.Expr | None, varying: set[str]) -> None:
        """Take a condition into account that is true within a range of an axis."""
        axis = self.axes[k]
        if isinstance(low, ir.Const) and high is None and 0 <= low.value <= THIN:
            self.axes[k] = replace(axis, low=max(axis.low, int(low.value)))
            self.true.add(term)
        elif low is None and high is not None and _is_thin(high, axis.loop.stop):
            if any(isinstance(n, ir.Var) and n.name in varying for n in ir.walk(high)):
                return
            least = high if axis.high in (None, high) else ir.Op("min", (axis.high, high), INT)  # type: ignore[arg-type]
            self.axes[k] = replace(axis, high=least)
            self.true.add(term)

    def inner(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """Statements without the conditions that are true."""
        out: list[ir.Stmt] = []
        for s in body:
            if isinstance(s, ir.If):
                left = [t for t in self.conjuncts(s.condition) if t not in self.true]
                if not left:
                    out += s.then
                    continue
                condition = left[0]
                for term in left[1:]:
                    condition = ir.Op("and", (condition, term), types.boolean)
                s = replace(s, condition=condition)
            out.append(s)
        return tuple(out)

    def nest(self, axes: list[Axis], inner: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """Loops over the inner points, and over the borders before and behind them."""
        if not axes:
            return inner
        axis, *others = axes
        within = self.nest(others, inner)
        if axis.is_whole:
            return (replace(axis.loop, body=within),)
        low, stop = ir.Const(axis.low, INT), axis.inner_stop
        out: list[ir.Stmt] = []
        if axis.low:
            out.append(self.border(axis.loop, others, ZERO, ir.Op("min", (low, axis.loop.stop), INT)))
        out.append(replace(axis.loop, start=low, stop=stop, body=within))
        if axis.high is not None:
            out.append(self.border(axis.loop, others, ir.Op("max", (low, stop), INT), axis.loop.stop))
        return tuple(out)

    def border(self, loop: ir.For, others: list[Axis], start: ir.Expr, stop: ir.Expr) -> ir.For:
        """A loop over a border, with names of its own."""
        body = plain(self.body, [a.loop for a in others])
        made = replace(loop, start=start, stop=stop, body=body, parallel=False)
        new: dict[str, str] = {}
        for n in ir.walk(made):
            target = n.var if isinstance(n, ir.For) else getattr(n, "target", None) if isinstance(n, ir.Stmt) else None
            for v in (target, *getattr(n, "outputs", ())) if isinstance(n, ir.Stmt) else ():
                if isinstance(v, ir.Var) and v.name not in new:
                    new[v.name] = self.names.fresh(v.name)
        change = lambda e: replace(e, name=new[e.name]) if isinstance(e, ir.Var) and e.name in new else e
        found: ir.For = mapped(made, change)
        return found


def _is_thin(high: ir.Expr, stop: ir.Expr) -> bool:
    """Return whether few iterations of a loop are behind a bound."""
    ends = stop.args if isinstance(stop, ir.Op) and stop.name == "min" else (stop,)
    distances = (index_algebra.as_expression(index_algebra.as_sum(ir.Op("sub", (e, high), INT))) for e in ends)
    return any(isinstance(d, ir.Const) and 0 <= d.value <= THIN for d in distances)
