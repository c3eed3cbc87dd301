"""Saved values: those that iterations cannot recompute are saved while the outer scope runs forward.

Each is saved in an array with a place for every iteration of the enclosing loops: loaded elements that are overwritten
later, snapshots of arrays for several loads, outcomes of comparisons, and carried scalars.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.tbr import Source
from ampi.kernel.differentiate.facts import Facts
from ampi.kernel.differentiate.scopes import Scope
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.names import stem
from ampi.kernel.ir.ssa import INT, ONE, ZERO, Branch, Loop, every

START = Const(16, INT)  # initial capacity where the number of iterations is not known


class Saving:
    """Makes the arrays of saved values, and finds the places of the current iterations in them."""

    def __init__(self, to: Builder, facts: Facts) -> None:
        self.to = to
        self.facts = facts
        self.tapes: dict[str, str] = {}  # descriptions of what the arrays hold

    def trips(self, loops: tuple[Loop, ...], scope: Scope) -> tuple[Expr, ...]:
        """The numbers, from zero, of the current iterations of loops."""
        numbers = []
        for loop in loops:
            start = scope.atom(loop.start)
            numbers.append(self.to.value(Op("sub", (scope.atom(loop.var), start), INT)))
        return tuple(numbers)

    def slot(self, loops: tuple[Loop, ...], scope: Scope) -> tuple[Expr, ...]:
        """The place of the values saved in the current iterations of loops."""
        before = self.facts.before.get((loops[-1].name, loops[0].name))
        if before is None:
            return self.trips(loops, scope)
        (trip,) = self.trips(loops[-1:], scope)
        return (self.to.value(Op("add", (scope.atom(before), trip), INT)),)

    def tape(self, hint: str, description: str, ty: Any, dimensions: int) -> Var:
        """An array for saved values."""
        tape = self.to.fresh(f"{hint}_saved", types.Array(ty, dimensions, "C"))
        self.tapes[tape.name] = description
        return tape

    @functools.cached_property
    def primal_arrays(self) -> dict[str, str]:
        """For each loaded value, the array it comes from."""
        return {
            s.target.name: s.value.array.name
            for s in every(self.facts.primal.body)
            if isinstance(s, ir.Assign) and isinstance(s.value, ir.Load)
        }

    def count(self, start: Expr, stop: Expr) -> Expr:
        """The number of iterations of a loop, not below zero."""
        trips = self.to.value(Op("sub", (stop, start), INT))
        return self.to.value(Op("max", (trips, ZERO), INT), "trips")

    def prepare_saved_loads(self, s: Loop, scope: Scope) -> None:
        """Make room for the loads and outcomes to save in a loop (directly in the scope)."""
        for name, ty, loops in self.loads_to_save(s, scope):
            if (loops[-1].name, loops[0].name) in self.facts.before:
                extents = (START,)
            else:
                ranges = [(scope.atom(loop.start), scope.atom(loop.stop)) for loop in loops]
                extents = tuple(self.count(start, stop) for start, stop in ranges)
            array = self.primal_arrays.get(name)
            description = f"an element of {array}" if array else "the outcome of a comparison"
            tape = self.tape(stem(name), description, ty, len(extents))
            self.to.emit(ir.Alloc(tape, extents, None, line=s.line))
            scope.saved_loads[name] = (tape, loops)

    def prepare_carried(self, s: Loop, scope: Scope) -> dict[str, Var]:
        """Make room for the values that a loop's carried scalars have at the beginning of its iterations."""
        length = START if s.condition is not None else self.count(scope.atom(s.start), scope.atom(s.stop))
        tapes = {}
        for c in s.carried:
            if c.var != s.var and c.var != s.condition:
                tape = self.tape(stem(c.var.name), stem(c.var.name), c.var.type, 1)
                self.to.emit(ir.Alloc(tape, (length,), None, line=s.line))
                tapes[c.var.name] = tape
        scope.saved_scalars.update(tapes)
        return tapes

    def prepare_snapshots(self, s: Loop, scope: Scope) -> list[tuple[Var, Var, tuple[Expr, ...]]]:
        """Make room for snapshots at the beginning of a loop's iterations: the room, the array, its first index."""
        found = []
        for snapshot in self.facts.snapshots:
            if snapshot.loop != s.name or snapshot.array.name not in scope.values:
                continue
            array = scope.values[snapshot.array.name]
            assert isinstance(array, Var)
            first, extents = [], []
            for k, r in enumerate(snapshot.ranges):
                start = ZERO if r.loop is None else scope.atom(r.loop.start)
                stop = ONE if r.loop is None else scope.atom(r.loop.stop)
                first.append(self.to.value(Op("add", (start, Const(r.low, INT)), INT)))
                end = self.to.value(Op("add", (stop, Const(r.high, INT)), INT))
                end = self.to.value(Op("min", (end, Size(array, k, INT)), INT))  # where the loop does not run
                extents.append(self.count(first[-1], end))
            name = snapshot.array.name
            tape = self.tape(stem(name), f"the part of {name} that is read", array.type.dtype, 1 + len(extents))
            length = self.count(scope.atom(s.start), scope.atom(s.stop))
            self.to.emit(ir.Alloc(tape, (length, *extents), None, line=s.line))
            scope.snapshots.update({load: (tape, s, tuple(first)) for load in snapshot.loads})
            found.append((tape, array, tuple(first)))
        return found

    def take_snapshot(self, tape: Var, array: Var, trip: Expr, first: tuple[Expr, ...]) -> None:
        """``tape[trip] = array[first:]``, as far as the snapshot has room."""

        def level(index: tuple[Expr, ...]) -> None:
            axis = len(index)
            if axis == len(first):
                here = (self.to.value(Op("add", (i, begin), INT)) for i, begin in zip(index, first))
                self.to.store(tape, (trip, *index), self.to.load(array, tuple(here)))
                return
            i = self.to.inner("i", INT)
            with self.to.nested({tape.name}) as block:
                level((*index, i))
            last = axis == len(first) - 1
            room = Size(tape, axis + 1, INT)
            self.to.emit(Loop(i.name, i, ZERO, room, tuple(block.statements), independent=last, line=self.to.line))

        level(())

    def make_room(self, s: Loop, scope: Scope, more: Expr) -> None:
        """Lengthen the arrays of saved values of a loop with numbered iterations, for ``more`` iterations."""
        for tape, loops in scope.saved_loads.values():
            before = self.facts.before.get((loops[-1].name, loops[0].name))
            if loops[-1].name == s.name and before is not None:
                size = self.to.value(Op("add", (scope.atom(before), more), INT))
                self.lengthen(tape, size, s)

    def lengthen(self, tape: Var, size: Expr, s: Loop) -> None:
        self.to.emit(ir.Grow(tape, size, line=s.line))
        self.to.forget(tape.name)

    def loads_to_save(self, s: Loop, scope: Scope) -> list[tuple[str, Any, tuple[Loop, ...]]]:
        """The loads and outcomes of comparisons that are saved in a loop, with their types and the loops around
        them."""
        found = []

        def visit(body: tuple[Stmt, ...], loops: tuple[Loop, ...]) -> None:
            for t in body:
                match t:
                    case ir.Assign(target=target, value=ir.Load(array=array)):
                        if array.name in scope.values and self.facts.sources[target.name] is Source.SAVED:
                            found.append((target.name, target.type, loops))
                    case ir.Assign(target=target) if target.name in self.facts.outcomes and scope.parent is None:
                        found.append((target.name, target.type, loops))
                    case Loop():
                        visit(t.body, (*loops, t))
                    case Branch():
                        visit(t.then, loops)
                        visit(t.orelse, loops)

        visit(s.body, (s,))
        return found
