"""Recomputation: the statements of a scope run forward once more, for the values that its reversal needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Source
from ampi.kernel.differentiate.facts import Facts
from ampi.kernel.differentiate.saving import Saving
from ampi.kernel.differentiate.scopes import Scope
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.matrices import RAISING
from ampi.kernel.ir.ssa import INT, ONE, ZERO, Branch, Carried, Custom, Join, Loop, every, written


class Forward:
    """Computes statements of the primal forward, in a scope.

    ``after`` are the arrays whose values after the call are available; ``threads``: the program runs on several
    threads; ``in_place``: the outermost scope replaces the run of the kernel, and raises its exceptions.
    """

    def __init__(self, to: Builder, facts: Facts, after: dict[str, Var], threads: bool, in_place: bool) -> None:
        self.to = to
        self.facts = facts
        self.after = after
        self.threads = threads
        self.in_place = in_place
        self.saving = Saving(to, facts)

    def run(self, body: tuple[Stmt, ...], scope: Scope, top: bool) -> None:
        """Write statements that compute a block in a scope; ``top``: no loop lies between the block and the scope."""
        for s in body:
            self.to.line = s.line or self.to.line
            match s:
                case ir.Assign(target=target, value=ir.Load()):
                    scope.values[target.name] = self.reload(s, scope, top)
                case ir.Assign(target=target, value=value):
                    found = self.kept_value(target.name, scope) or self.outcome(target.name, scope)
                    if found is None:
                        new = replace(value, args=scope.atoms(value.args)) if isinstance(value, Op) else value
                        found = self.to.value(new, target.name)
                        self.save_outcome(target.name, found, scope)
                    scope.values[target.name] = found
                case ir.Store(array=array, index=index, value=value):
                    if array.name in scope.values:
                        self.to.store(scope.values[array.name], scope.atoms(index), scope.atom(value))
                case ir.Accumulate(array=array, index=index, value=value, kind=kind):
                    if array.name in scope.values:
                        self.to.accumulate(scope.values[array.name], scope.atoms(index), scope.atom(value), kind)
                case ir.Alloc():
                    self.allocate(s, scope)
                case Custom():
                    self.run(s.then, scope, top)
                    scope.values.update({j.var.name: scope.atom(j.then) for j in s.joins})
                case Branch():
                    self.branch(s, scope, top)
                case Loop():
                    self.loop(s, scope, top)
                case ir.Grow(target=target, size=size):
                    if target.name in scope.values:
                        self.to.emit(ir.Grow(scope.values[target.name], scope.atom(size), line=s.line))
                        self.to.forget(scope.values[target.name].name)
                case ir.Fill(target=target, arguments=arguments):
                    if target.name in scope.values:
                        arrays = tuple(scope.array(a) for a in (target, *arguments))
                        raises = scope.parent is None and self.in_place and s.function in RAISING
                        self.to.emit(replace(s, target=arrays[0], arguments=arrays[1:], raises=raises))
                        self.to.forget(arrays[0].name)
                case ir.Raise(own=own):
                    if scope.parent is None and (own or self.in_place):  # scopes inside repeat what has been checked
                        self.to.emit(s)
                case _:
                    raise AssertionError(s)

    def allocate(self, s: ir.Alloc, scope: Scope) -> None:
        target = self.to.fresh(s.target.name, s.target.type)
        fill = None if s.fill is None else scope.atom(s.fill)
        self.to.emit(ir.Alloc(target, scope.atoms(s.shape), fill, line=s.line))
        self.to.forget(target.name)
        scope.values[s.target.name] = target

    def reload(self, s: ir.Assign, scope: Scope, top: bool) -> Expr:
        """The value of a load, read where TBR analysis has found it."""
        name, array = s.target.name, s.value.array
        index = scope.atoms(s.value.index)
        source = self.facts.sources[name]
        if source is Source.ORIGINAL:
            return self.to.load(array, index, name)
        own = scope.values.get(array.name)
        if own is not None:
            value = self.to.load(own, index, name)
            if name in scope.saved_loads:
                tape, loops = scope.saved_loads[name]
                self.to.store(tape, self.saving.slot(loops, scope), value)
            return value
        if source is Source.FINAL:
            return self.to.load(scope.atom(array), index, name)
        if source is Source.SNAPSHOT:
            tape, loop, first = scope.find_snapshot(name)
            places = (self.to.value(Op("sub", (i, begin), INT)) for i, begin in zip(index, first))
            return self.to.load(tape, (*self.saving.trips((loop,), scope), *places), name)
        tape, loops = scope.find_saved(name)
        return self.to.load(tape, self.saving.slot(loops, scope), name)

    def kept_value(self, name: str, scope: Scope) -> Expr | None:
        """A value that an iteration around the scope has stored in one of its arrays."""
        if name not in self.facts.kept:
            return None
        place = self.facts.kept[name]
        filled = scope.find(place.array.name)
        own = {s.target.name for s in place.following}
        known = all(scope.find(i.name) is not None for i in place.index if isinstance(i, Var) and i.name not in own)
        if place.array.name in scope.values or not isinstance(filled, Var) or not known:
            return None
        for s in place.following:  # a scope around this one may hold those of another iteration
            assert isinstance(s.value, Op)
            scope.values[s.target.name] = self.to.value(replace(s.value, args=scope.atoms(s.value.args)), s.target.name)
        return self.to.load(filled, scope.atoms(place.index), name)

    def outcome(self, name: str, scope: Scope) -> Expr | None:
        """The saved outcome of a comparison."""
        if name not in self.facts.outcomes or name in scope.saved_loads:
            return None
        tape, loops = scope.find_saved(name)
        return self.to.load(tape, self.saving.slot(loops, scope), name)

    def save_outcome(self, name: str, value: Expr, scope: Scope) -> None:
        if name in self.facts.outcomes and name in scope.saved_loads:
            tape, loops = scope.saved_loads[name]
            self.to.store(tape, self.saving.slot(loops, scope), value)

    def branch(self, s: Branch, scope: Scope, top: bool) -> None:
        condition = scope.atom(s.condition)
        with self.to.nested() as then:
            self.run(s.then, scope, top)
        with self.to.nested() as orelse:
            self.run(s.orelse, scope, top)
        joins = []
        for j in s.joins:
            var = self.to.fresh(j.var.name, j.var.type)
            joins.append(Join(var, scope.atom(j.then), scope.atom(j.orelse)))
            scope.values[j.var.name] = var
        self.to.emit(Branch(condition, tuple(then.statements), tuple(orelse.statements), tuple(joins), line=s.line))

    def loop(self, s: Loop, scope: Scope, top: bool) -> None:
        start, stop = scope.atom(s.start), scope.atom(s.stop)
        kept: list[tuple[Var, Var, tuple[Expr, ...]]] = []
        if top:
            self.saving.prepare_saved_loads(s, scope)
            kept = self.saving.prepare_snapshots(s, scope)
        counted = s.condition is None
        inits = scope.atoms(c.init for c in s.carried)
        var = self.to.inner(s.var.name, INT)
        scope.values[s.var.name] = var
        phis = [var if c.var == s.var else self.to.inner(c.var.name, c.var.type) for c in s.carried]
        scope.values.update({c.var.name: phi for c, phi in zip(s.carried, phis)})
        tapes = self.saving.prepare_carried(s, scope) if top else {}
        if counted:
            self.saving.make_room(s, scope, self.saving.count(start, stop))
        saved = {t.name for t in tapes.values()} | {tape.name for tape, _, _ in kept}
        with self.to.nested(self.overwritten(s, scope) | saved) as block:
            (trip,) = self.saving.trips((s,), scope)
            for tape, array, first in kept:
                self.saving.take_snapshot(tape, array, trip, first)
            following = self.to.value(Op("add", (trip, ONE), INT))
            if not counted:
                self.saving.make_room(s, scope, following)
            for name, tape in tapes.items():
                if not counted:
                    self.saving.lengthen(tape, following, s)
                self.to.store(tape, (trip,), scope.values[name])
            self.run(s.body, scope, top=False)
            nexts = scope.atoms(c.next for c in s.carried)
        scope.values.update({c.var.name: phi for c, phi in zip(s.carried, phis)})
        carried = tuple(Carried(phi, i, n) for phi, i, n in zip(phis, inits, nexts))
        condition = None if s.condition is None else scope.values[s.condition.name]
        body, parallel = tuple(block.statements), self.is_shared(s)
        facts: Any = {"parallel": parallel, "axis": s.axis, "line": s.line}
        self.to.emit(Loop(var.name, var, start, stop, body, carried, s.step, condition, **facts))

    def overwritten(self, s: Loop, scope: Scope) -> set[str]:
        """The generated arrays into which a forward copy of a loop writes."""
        found = set()
        for inner in every((s,)):
            array = written(inner)
            if array is not None and array.name in scope.values:
                found.add(scope.values[array.name].name)
        return found | {tape.name for tape, _ in scope.saved_loads.values()}

    def range(self, s: Loop, scope: Scope) -> tuple[Expr, Expr, int]:
        """The start, stop and step of the iterations that a loop has run."""
        if s.condition is not None:
            return ZERO, scope.atom(s.var), 1
        return scope.atom(s.start), scope.atom(s.stop), s.step

    def is_shared(self, s: Loop) -> bool:
        """Return whether threads share a loop: a ``prange``, or an operation on whole arrays with independent
        elements."""
        if s.parallel or not (s.whole and self.threads) or isinstance(s.stop, Const):
            return s.parallel
        return tbr.are_independent(s, self.facts.accesses)

    def restore(self, s: Loop, scope: Scope) -> None:
        """Restore the values that the carried scalars had at the beginning of the iteration."""
        (trip,) = self.saving.trips((s,), scope)
        for c in s.carried:
            if c.var == s.var:
                continue
            if c.var == s.condition:
                scope.values[c.var.name] = Const(True, types.boolean)
                continue
            assert scope.parent is not None
            stored = self.stored_before(s, c, scope)
            if stored is None:
                tape = scope.parent.saved_scalars[c.var.name]
                stored = self.to.load(tape, (trip,), c.var.name)
            scope.values[c.var.name] = stored

    def stored_before(self, s: Loop, c: Carried, scope: Scope) -> Expr | None:
        """A carried scalar as the previous iteration stored it; in the first iteration, its value before the loop."""
        place = self.facts.stored.get(c.var.name)
        assert scope.parent is not None
        if place is None:
            return None
        array: Expr | None = self.after.get(place.array.name)
        if array is None and not self.is_argument(place.array):  # a working copy would take longer than saving
            array = scope.parent.find(place.array.name)
        if not isinstance(array, Var):
            return None
        (trip,) = self.saving.trips((s,), scope)
        value = self.to.fresh(c.var.name, c.var.type)
        loaded: list[Expr] = []
        with self.to.nested() as block:
            index = tuple(
                scope.atom(i)
                if shift is None
                else self.to.value(Op("add", (scope.atom(s.var), constant(shift - 1, INT)), INT))
                for i, shift in zip(place.index, place.shifts)
            )
            loaded.append(self.to.load(array, index, c.var.name))
        first = self.to.value(Op("gt", (trip, ZERO), types.boolean))
        begin = scope.parent.atom(c.init)
        self.to.emit(Branch(first, tuple(block.statements), (), (Join(value, loaded[0], begin),), line=s.line))
        return value

    def is_argument(self, array: Var) -> bool:
        return any(a.name == array.name for a in self.facts.primal.arguments)
