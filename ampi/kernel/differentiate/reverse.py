"""Reverse accumulation: adjoints of the statements of a scope, from the last to the first.

A loop is reversed iteration by iteration; each iteration is first recomputed, in a separate scope.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.reduction_recognition import extreme, is_sum
from ampi.kernel.differentiate.extremes import search
from ampi.kernel.differentiate.facts import Facts
from ampi.kernel.differentiate.recompute import Forward
from ampi.kernel.differentiate.scopes import Scope
from ampi.kernel.ir import (
    Const,
    Expr,
    Op,
    Size,
    Stmt,
    Var,
    decompositions,  # noqa: F401  registers its derivatives
    matrices,
)
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.custom_rules import Rule
from ampi.kernel.ir.intrinsics import (
    LINEAR,
    arithmetic,
    constant,
    convert,
    is_constant,
    is_differentiable,
    nonzero_only,
    select,
    without_factors,
)
from ampi.kernel.ir.names import stem
from ampi.kernel.ir.partials import GUARD, adjoint_of
from ampi.kernel.ir.rebuild import at_line, instance
from ampi.kernel.ir.ssa import INT, ONE, ZERO, Branch, Carried, Custom, Join, Loop, definitions, every, reads, written

Adjoints = dict[str, Expr]  # of scalars; those of arrays are in their shadows
Transpose = Callable[[Any], Rule]


class Backward:
    """Computes adjoints of the values that statements of the primal read, from those of the values that they
    compute."""

    def __init__(
        self, to: Builder, facts: Facts, forward: Forward, shadow: dict[str, Var], transpose: Transpose
    ) -> None:
        self.to = to
        self.facts = facts
        self.forward = forward
        self.shadow = shadow
        self.transpose = transpose
        self.guarded: set[str] = set()  # loops that run only if an adjoint is not zero
        self.grown = {s.target.name for s in every(facts.primal.body) if isinstance(s, ir.Grow)}

    def is_active(self, value: Expr) -> bool:
        return isinstance(value, Var) and value.name in self.facts.activity.active

    def add_seed(self, value: Expr, seed: Var, adjoints: Adjoints) -> None:
        """Add the seed of a result to its adjoint."""
        if not isinstance(value.type, types.Array):
            self.contribute(adjoints, value, seed)
            return
        self.add_array(self.shadow[value.name], seed)

    def add_array(self, target: Var, source: Var) -> None:
        """``target += source``, element by element."""
        self.to.over(source, lambda i: self.to.accumulate(target, i, self.to.load(source, i)), {target.name})

    def contribute(self, adjoints: Adjoints, value: Expr, amount: Expr) -> None:
        """Add to the adjoint of a scalar."""
        if not self.is_active(value) or is_constant(amount, 0):
            return
        amount = convert(amount, value.type)
        known = adjoints.get(value.name)
        total = amount if known is None else arithmetic("add", known, amount)
        adjoints[value.name] = self.to.value(total, f"{stem(value.name)}_bar")

    def allocate_shadows(self, body: tuple[Stmt, ...], scope: Scope) -> None:
        """Allocate shadows, filled with zeros, for the local arrays that a block allocates."""
        for s in body:
            if isinstance(s, Custom):
                results = {e.array.name for e in s.results if isinstance(e, ir.Load)}
                allocations = (t for t in s.then if isinstance(t, ir.Alloc) and t.target.name in results)
                self.allocate_shadows(tuple(allocations), scope)
            if isinstance(s, ir.Alloc) and s.target.name in self.facts.activity.active - self.shadow.keys():
                array = scope.values[s.target.name]
                shadow = self.to.fresh(f"{s.target.name}_bar", s.target.type)
                shape = scope.atoms(s.shape)
                if s.target.name in self.grown:
                    shape = (Size(array, 0, INT),)
                self.to.emit(ir.Alloc(shadow, shape, constant(0, shadow.type.dtype), line=s.line))
                self.to.forget(shadow.name)
                self.shadow[s.target.name] = shadow

    def run(self, body: tuple[Stmt, ...], scope: Scope, adjoints: Adjoints) -> None:
        for s in reversed(body):
            self.to.line = s.line or self.to.line
            match s:
                case ir.Assign(target=target, value=value):
                    g = adjoints.pop(target.name, None)
                    if g is not None and not is_constant(g, 0):
                        self.assign(target, value, g, scope, adjoints)
                case ir.Store(array=array, index=index, value=value):
                    self.store(array, scope.atoms(index), value, adjoints)
                case ir.Accumulate(array=array, index=index, value=value, kind="add"):
                    if array.name in self.shadow and self.is_active(value):
                        g = self.to.load(self.shadow[array.name], scope.atoms(index), bar_name(value))
                        self.contribute(adjoints, value, g)
                case Custom():
                    self.custom(s, scope, adjoints)
                case ir.Fill():
                    self.fill(s, scope)
                case Branch():
                    self.branch(s, scope, adjoints)
                case Loop():
                    self.loop(s, scope, adjoints)

    def assign(self, target: Var, value: Expr, g: Expr, scope: Scope, adjoints: Adjoints) -> None:
        match value:
            case ir.Load(array=array, index=index):
                if array.name in self.shadow:
                    self.to.accumulate(self.shadow[array.name], scope.atoms(index), g)
            case Op(name=name, args=args):
                if name == "mul" and args[0] == args[1]:
                    value, args = replace(value, name="square", args=args[:1]), args[:1]
                op = replace(value, args=scope.atoms(args))
                result = scope.atom(target)
                for k, argument in enumerate(args):
                    if self.is_active(argument):
                        amount = self.product(op, k, result, g, target, args)
                        if amount is not None:
                            self.contribute(adjoints, argument, self.to.value(amount))
            case Var():
                self.contribute(adjoints, value, g)

    def product(self, op: Op, k: int, result: Expr, g: Expr, target: Var, original: tuple[Expr, ...]) -> Expr | None:
        """The contribution of an adjoint to that of an operand.

        It is zero where one factor is zero, if the other factor may be infinite.
        """
        known = self.facts.singularities
        others = original[:k] + original[k + 1 :] if op.name == "mul" else original
        is_masked = target.name in known.masked and any(is_in(e, known.wild) for e in others)
        guard = GUARD
        if target.name in known.flat:
            guard = "r != 0"
        elif is_masked or target.name in known.regular:
            guard = "True"
        amount = adjoint_of(op, k, result, g, guard)
        if amount is None or not isinstance(op.type, types.Float) or op.name in LINEAR:
            return amount
        if target.name in known.unbounded:
            partial = adjoint_of(op, k, result, constant(1, op.type))
            if partial is not None and not isinstance(partial, Const):
                amount = nonzero_only(without_factors(partial), amount)
        return nonzero_only(g, amount) if is_masked else amount

    def store(self, array: Var, index: tuple[Expr, ...], value: Expr, adjoints: Adjoints) -> None:
        shadow = self.shadow.get(array.name)
        if shadow is None:
            return
        if self.is_active(value):
            self.contribute(adjoints, value, self.to.load(shadow, index, bar_name(value)))
        if array.name not in self.facts.ends:
            self.to.store(shadow, index, constant(0, shadow.type.dtype))

    def fill(self, s: ir.Fill, scope: Scope) -> None:
        bar = self.shadow.get(s.target.name)
        bars = [self.shadow.get(a.name) for a in s.arguments]
        if bar is None or all(b is None for b in bars):
            return
        target, *arguments = (scope.array(a) for a in (s.target, *s.arguments))
        matrices.adjoint(self.to, s, target, tuple(arguments), bar, bars)

    def branch(self, s: Branch, scope: Scope, adjoints: Adjoints) -> None:
        condition = scope.atom(s.condition)
        joined = [(j, g) for j in s.joins if (g := adjoints.pop(j.var.name, None)) is not None]
        sides: list[tuple[tuple[Stmt, ...], Adjoints]] = []
        for body, side in ((s.then, "then"), (s.orelse, "orelse")):
            own = dict(adjoints)
            with self.to.nested() as block:
                self.allocate_shadows(body, scope)
                for j, g in joined:
                    self.contribute(own, getattr(j, side), g)
                self.run(body, scope, own)
            sides.append((tuple(block.statements), own))
        (then, after_then), (orelse, after_else) = sides
        joins = []
        for name in {**after_then, **after_else}:
            ty = self.types[name]
            a, b = after_then.get(name, constant(0, ty)), after_else.get(name, constant(0, ty))
            if a == b:
                adjoints[name] = a
                continue
            var = self.to.fresh(f"{stem(name)}_bar", ty)
            joins.append(Join(var, a, b))
            adjoints[name] = var
        if then or orelse or joins:
            self.to.emit(Branch(condition, then, orelse, tuple(joins), line=s.line))

    def custom(self, s: Custom, scope: Scope, adjoints: Adjoints) -> None:
        """Write the user's adjoint of a call."""
        numbers = {j.var.name: adjoints.pop(j.var.name, None) for j in s.joins}
        shadows = [self.shadow.get(e.array.name) for e in s.results if isinstance(e, ir.Load)]
        if not any(shadows) and all(g is None for g in numbers.values()):
            return
        values_in = [self.whole(e, scope) for e in s.residuals]
        for e in s.results:
            if isinstance(e, ir.Load) and is_differentiable(e.type):
                values_in.append(self.moved_out(e, scope))
            elif isinstance(e, Var) and is_differentiable(e.type):
                g = numbers[e.name]
                values_in.append(constant(0, e.type) if g is None else convert(g, e.type))
        rule = s.rule if isinstance(s.rule, Rule) else self.transpose(s.rule)
        function = construct(rule.backward)
        named = {a.name: self.to.value(v) for a, v in zip(function.arguments, values_in, strict=True)}
        body, values = instance(function, named, self.to.names)
        for statement in body if function.filename == self.facts.primal.filename else at_line(body, s.line):
            self.to.emit(statement)
        for e, position in zip(s.inputs, rule.positions, strict=True):
            if position is None:
                continue
            if isinstance(e, ir.Load):
                self.add_part(e, values[position], scope)
            else:
                self.contribute(adjoints, e, values[position])

    def whole(self, e: Expr, scope: Scope) -> Expr:
        """A number or a whole array."""
        return scope.atom(e.array if isinstance(e, ir.Load) else e)

    def moved_out(self, e: ir.Load, scope: Scope) -> Var:
        """A copy of the adjoint of an array or of a part; the shadow becomes zero."""
        shadow = self.shadow.get(e.array.name)
        like = self.whole(e, scope) if shadow is None else shadow
        index = scope.atoms(e.index)
        shape = tuple(Size(like, k, INT) for k in range(len(index), like.type.ndim))
        target = self.to.fresh(bar_name(e.array), types.Array(e.type.dtype, e.type.ndim, "C"))
        self.to.emit(ir.Alloc(target, shape, constant(0, e.type.dtype) if shadow is None else None, line=self.to.line))

        def move(inner: tuple[Expr, ...]) -> None:
            self.to.store(target, inner, self.to.load(shadow, (*index, *inner)))
            self.to.store(shadow, (*index, *inner), constant(0, shadow.type.dtype))

        if shadow is not None:
            self.to.over(target, move, {target.name, shadow.name})
        return target

    def add_part(self, e: ir.Load, amount: Var, scope: Scope) -> None:
        """Add an array to the shadow of an array or of a part."""
        shadow = self.shadow.get(e.array.name)
        index = scope.atoms(e.index)
        if shadow is not None:
            add = lambda inner: self.to.accumulate(shadow, (*index, *inner), self.to.load(amount, inner))
            self.to.over(amount, add, {shadow.name})

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """The type of every name of the primal."""
        known = {a.name: a.type for a in self.facts.primal.arguments}
        return known | {v.name: v.type for s in every(self.facts.primal.body) for v in definitions(s)}

    def loop(self, s: Loop, scope: Scope, adjoints: Adjoints) -> None:
        """Reverse a loop, recomputing and reversing one iteration after the other."""
        if not self.has_work(s, adjoints):
            for c in s.carried:
                adjoints.pop(c.var.name, None)
            return
        if s.name not in self.guarded and self.is_search(s) and self.has_inner_search(s):
            self.loop_if_nonzero(s, scope, adjoints)
            return
        active = [c for c in s.carried if self.is_active(c.var)]
        extremes = [x for c in active if (x := extreme(c, s)) is not None]
        chained = [c for c in active if not any(x.carried is c for x in extremes)]
        any_order = self.is_independent(s) and all(is_sum(c, s) for c in chained)
        found = search(
            self.forward, s, scope, [(x, g) for x in extremes if (g := adjoints.pop(x.carried.var.name, None))]
        )
        finals = [adjoints.pop(c.var.name, constant(0, c.var.type)) for c in chained]
        bars = [self.to.inner(f"{stem(c.var.name)}_bar", c.var.type) for c in chained]
        outer = self.outer_scalars(s)
        totals = [self.to.inner(f"{stem(v.name)}_bar", v.type) for v in outer]
        start, stop, step = self.reversed_range(s, scope, any_order)
        var = self.to.inner(s.var.name, INT)
        inner = Scope(scope, s, {s.var.name: var})
        with self.to.nested(self.shadows_touched(s)) as block:
            self.forward.restore(s, inner)
            self.forward.run(s.body, inner, top=True)
            self.allocate_shadows(s.body, inner)
            own: Adjoints = {}
            for c, bar in zip(chained, bars):
                self.contribute(own, c.next, bar)
            for x, g, place in found:
                (trip,) = self.forward.saving.trips((s,), inner)
                here = Op("eq", (trip, place), types.boolean)
                self.contribute(own, x.value, self.to.value(select(here, g, constant(0, g.type))))
            self.run(s.body, inner, own)
            carried_back = [own.get(c.var.name, constant(0, c.var.type)) for c in chained]
            sums = [self.add(total, own.get(v.name)) for v, total in zip(outer, totals)]
        carried = [Carried(bar, g, n) for bar, g, n in zip(bars, finals, carried_back)]
        begins = [adjoints.get(v.name, constant(0, v.type)) for v in outer]
        carried += [Carried(total, g, n) for total, g, n in zip(totals, begins, sums)]
        reversed_loop = Loop(
            var.name, var, start, stop, tuple(block.statements), tuple(carried), step, line=s.line,
            axis=s.axis, parallel=any_order and self.forward.is_shared(s), independent=any_order,
        )  # fmt: skip
        self.to.emit(reversed_loop)
        for v, total in zip(outer, totals):
            adjoints[v.name] = total
        for c, bar in zip(chained, bars):
            self.contribute(adjoints, c.init, bar)
        for x, g, place in found:
            nowhere = Op("lt", (place, ZERO), types.boolean)
            self.contribute(adjoints, x.carried.init, self.to.value(select(nowhere, g, constant(0, g.type))))

    def loop_if_nonzero(self, s: Loop, scope: Scope, adjoints: Adjoints) -> None:
        """Reverse a nest that only searches an extreme, if an adjoint is not zero."""
        self.guarded |= {t.name for t in every((s,)) if isinstance(t, Loop)}
        given = [g for c in s.carried if (g := adjoints.get(c.var.name)) is not None]
        nonzero = [Op("ne", (g, constant(0, g.type)), types.boolean) for g in given]
        condition = self.to.value(functools.reduce(lambda a, b: Op("or", (a, b), types.boolean), nonzero))
        own = dict(adjoints)
        with self.to.nested(self.shadows_touched(s)) as block:
            self.loop(s, scope, own)
        joins = []
        for name in {**adjoints, **own}:
            if name not in own:
                del adjoints[name]
            elif own[name] is not adjoints.get(name):
                before = adjoints.get(name, constant(0, self.types[name]))
                adjoints[name] = var = self.to.fresh(f"{stem(name)}_bar", self.types[name])
                joins.append(Join(var, own[name], before))
        self.to.emit(Branch(condition, tuple(block.statements), (), tuple(joins), line=s.line))

    def is_search(self, s: Loop) -> bool:
        """Return whether all that a loop, or a nest of loops, computes and is active are extremes."""
        active = [c for c in s.carried if self.is_active(c.var)]
        found = {c.var.name for t in s.body if isinstance(t, Loop) and self.is_search(t) for c in t.carried}
        if not active or s.condition is not None or s.parallel:
            return False
        if any((w := written(t)) is not None and self.is_active(w) for t in every(s.body)):
            return False
        return all(getattr(c.next, "name", "") in found or extreme(c, s) is not None for c in active)

    def has_inner_search(self, s: Loop) -> bool:
        return any(isinstance(t, Loop) and self.is_search(t) for t in s.body)

    def is_independent(self, s: Loop) -> bool:
        """Return whether the iterations of a loop, its carried scalars aside, may be reversed in any order."""
        if s.condition is not None:
            return False
        return s.parallel or (self.facts.independence and tbr.are_independent(s, self.facts.accesses))

    def add(self, total: Var, amount: Expr | None) -> Expr:
        return total if amount is None else self.to.value(arithmetic("add", total, amount), total.name)

    def has_work(self, s: Loop, adjoints: Adjoints) -> bool:
        """Return whether a loop computes anything active."""
        if any(c.var.name in adjoints for c in s.carried):
            return True
        return any((w := written(t)) is not None and w.name in self.facts.activity.active for t in every(s.body))

    def reversed_range(self, s: Loop, scope: Scope, any_order: bool) -> tuple[Expr, Expr, int]:
        """The range of a reversed loop; independent iterations keep their order."""
        start, stop, step = self.forward.range(s, scope)
        if any_order:
            return start, stop, step
        below = self.to.value(Op("sub", (start, ONE), INT))
        return self.to.value(Op("sub", (stop, ONE), INT)), below, -1

    def outer_scalars(self, s: Loop) -> list[Var]:
        """The active scalars from outside that a loop's body uses."""
        inside = {v.name for t in every((s,)) for v in definitions(t)}
        found: dict[str, Var] = {}
        nexts = [c.next for c in s.carried]
        for e in [e for t in every(s.body) for e in reads(t)] + nexts:
            for n in ir.walk(e):
                if isinstance(n, Var) and n.name not in inside and self.is_active(n):
                    if not isinstance(n.type, types.Array):
                        found[n.name] = n
        return list(found.values())

    def shadows_touched(self, s: Loop) -> set[str]:
        """The shadows that the reversed loop may change."""
        arrays = {
            t.value.array.name for t in every(s.body) if isinstance(t, ir.Assign) and isinstance(t.value, ir.Load)
        }
        arrays |= {w.name for t in every(s.body) if (w := written(t)) is not None}
        for t in every(s.body):
            if isinstance(t, Custom):
                arrays |= {e.array.name for e in t.inputs if isinstance(e, ir.Load)}
        arrays |= {a.name for t in every(s.body) if isinstance(t, ir.Fill) for a in t.arguments}
        return {self.shadow[name].name for name in arrays if name in self.shadow}


def bar_name(value: Expr) -> str:
    return f"{stem(value.name)}_bar" if isinstance(value, Var) else "g"


def is_in(e: Expr, names: frozenset[str]) -> bool:
    return isinstance(e, Var) and e.name in names
