"""Loop unrolling: short loops are written out, so that values and derivatives stay in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import rename
from ampi.kernel.normalise.simplify import trip_count

MAX_TRIPS = 16
MAX_SIZE = 2000  # nodes of an unrolled loop


def unroll(function: ir.Function, max_trips: int = MAX_TRIPS, max_size: int = MAX_SIZE) -> ir.Function:
    """Write out loops of at most ``max_trips`` iterations that contain no other loop, innermost loops first."""
    return replace(function, body=_Unroll(function, max_trips, max_size).block(function.body))


class _Unroll:
    def __init__(self, function: ir.Function, max_trips: int, max_size: int):
        self.max_trips = max_trips
        self.max_size = max_size
        self.fresh = Names.of(function).fresh

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(s for statement in body for s in self.statement(statement))

    def statement(self, statement: ir.Stmt) -> Iterator[ir.Stmt]:
        match statement:
            case ir.If():
                yield replace(statement, then=self.block(statement.then), orelse=self.block(statement.orelse))
            case ir.While() | ir.Custom():
                yield replace(statement, body=self.block(statement.body))
            case ir.For():
                loop = replace(statement, body=self.block(statement.body))
                if self.is_short(loop):
                    yield from self.iterations(loop)
                else:
                    yield loop
            case _:
                yield statement

    def is_short(self, loop: ir.For) -> bool:
        trips = trip_count(loop)
        if loop.parallel or loop.axis or trips is None or trips > self.max_trips:
            return False
        inside = list(ir.walk(loop.body))
        has_loop = any(isinstance(n, (ir.For, ir.While)) for n in inside)
        return not has_loop and len(inside) * trips <= self.max_size

    def iterations(self, loop: ir.For) -> Iterator[ir.Stmt]:
        arrays = [n.target.name for n in ir.walk(loop.body) if isinstance(n, (ir.Alloc, ir.Alias))]
        for number, value in enumerate(range(loop.start.value, loop.stop.value, loop.step.value)):
            names: dict[str, ir.Expr] = {loop.var.name: ir.Const(value, loop.var.type)}
            # An array is defined once in the text, so every copy of its definition has a new name.
            renamed = {} if number == 0 else {name: self.fresh(name) for name in arrays}
            keep = lambda name, renamed=renamed: renamed.get(name, name)
            for statement in loop.body:
                yield rename(statement, names, keep)
