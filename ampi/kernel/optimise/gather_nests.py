"""Stencils in gather form: the loops over the elements to which a nest adds.

In the interior all contributions of the neighbours are summed and added at once; at the ends of the loops each
increment has a condition, or a separate loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Accesses
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.ssa import INT, ZERO, Branch, Loop
from ampi.kernel.optimise.unsigned_indices import in_all_blocks, unsigned

STRIP_SHIFT = 9
STRIP = 1 << STRIP_SHIFT  # iterations of an innermost loop that count as a row
Offset = tuple[int, ...]  # from an iteration to the element to which it adds, in each loop's direction


@dataclass
class Nest:
    """Nested loops that may run in any order; ``between`` are the statements at the beginning of their bodies."""

    loops: list[Loop]
    between: list[tuple[Stmt, ...]]
    body: tuple[Stmt, ...]
    values: dict[str, Expr]


@dataclass
class Target:
    """An array with its increments, and for each dimension the loop whose counter is in the index (None: the index is
    the same in all iterations)."""

    array: Var
    increments: list[tuple[ir.Accumulate, Offset]]
    dimensions: tuple[int | None, ...]

    @property
    def is_stencil(self) -> bool:
        """True if several iterations add to one element."""
        return len({offset for _, offset in self.increments}) > 1


def iteration(nest: Nest, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """The body of the outermost loop of a nest, with another body of the innermost one."""
    for s, before in zip(nest.loops[:0:-1], [(), *nest.between[:0:-1]]):
        body = (replace(s, body=(*before, *body)),)
    return (*nest.between[0], *body) if nest.between else body


def reach(targets: list[Target], k: int) -> tuple[int, int]:
    """The smallest and largest offset in the direction of loop k."""
    offsets = [offset[k] for t in targets for _, offset in t.increments]
    return min(offsets), max(offsets)


class Writer:
    """Writes the nest that adds to the targets.

    ``beside`` are further increments in the same loops; ``rest`` are the statements that follow.
    """

    def __init__(
        self,
        to: Builder,
        accesses: Accesses,
        nest: Nest,
        targets: list[Target],
        beside: Sequence[ir.Accumulate] = (),
        rest: tuple[Stmt, ...] = (),
    ) -> None:
        self.to, self.accesses = to, accesses
        self.nest, self.targets, self.beside, self.rest = nest, targets, beside, rest
        self.counters = [s.var.name for s in nest.loops]
        self.places: list[Var] = []

    def op(self, name: str, a: Expr, b: Expr, ty: Any = INT) -> Expr:
        return self.to.value(Op(name, (a, b), ty))

    def moved(self, e: Expr, by: int) -> Expr:
        if not by:
            return e
        return self.op("add" if by > 0 else "sub", e, constant(abs(by), INT))

    def write(self) -> None:
        runs: Expr = Const(True, types.boolean)
        for s in self.nest.loops:
            some = self.op("lt", s.start, s.stop, types.boolean)
            runs = some if runs == Const(True, types.boolean) else self.op("and", runs, some, types.boolean)
        with self.to.nested() as block:
            self.level(Const(True, types.boolean))
        self.to.emit(Branch(runs, tuple(block.statements), line=self.to.line))

    def level(self, inside: Expr) -> None:
        """The loop in the next direction; ``inside``: all neighbours exist in the directions so far."""
        k = len(self.places)
        s = self.nest.loops[k]
        low, high = reach(self.targets, k)
        first, end = self.moved(s.start, low), self.moved(s.stop, high)
        if k == len(self.nest.loops) - 1:
            self.innermost(s, first, end, inside)
            return
        place = self.to.inner(s.var.name, INT)
        with self.to.nested() as block:
            self.places.append(place)
            if low != high:
                for here in (
                    self.op("ge", place, self.moved(s.start, high), types.boolean),
                    self.op("lt", place, self.moved(s.stop, low), types.boolean),
                ):
                    inside = here if isinstance(inside, Const) else self.op("and", inside, here, types.boolean)
            self.level(inside)
            self.places.pop()
            if self.rest and not self.places:
                self.row_behind(s, place, high)
        self.emit_loop(s, place, first, end, block.statements)

    def row_behind(self, s: Loop, place: Var, high: int) -> None:
        """The other statements of an iteration whose values no later place needs."""
        number = self.moved(place, -high)
        runs = self.op("ge", number, s.start, types.boolean)
        body = substitute(in_all_blocks(iteration(self.nest, self.rest), self.accesses), {s.var.name: number})
        self.to.emit(Branch(runs, body, line=s.line))

    def emit_loop(self, s: Loop, place: Var, first: Expr, end: Expr, body: list[Stmt], alone: bool = False) -> None:
        """Write a loop over places; ``alone``: it is too short for threads."""
        outermost = s is self.nest.loops[0]
        parallel = s.parallel and outermost and not alone and not self.rest
        free = not (outermost and self.rest and len(self.nest.loops) > 1)
        loop = Loop(place.name, place, first, end, tuple(body), parallel=parallel, independent=free, line=s.line)
        self.to.emit(loop)

    def innermost(self, s: Loop, first: Expr, end: Expr, inside: Expr) -> None:
        if isinstance(inside, Const):
            self.row(s, first, end)
            return
        with self.to.nested() as all_there:
            self.row(s, first, end)
        with self.to.nested() as some_there:
            self.edge(s)
            with self.to.nested() as branch:
                self.iterations(s, s.start, s.stop)
            if branch.statements:
                self.to.emit(Branch(self.exists_at(self.here), tuple(branch.statements), line=s.line))
        self.to.emit(Branch(inside, tuple(all_there.statements), tuple(some_there.statements), line=s.line))

    def row(self, s: Loop, first: Expr, end: Expr) -> None:
        """A row with all neighbours in the other directions: both ends, and the interior."""
        low, high = reach(self.targets, len(self.places))
        if low == high:
            self.segment(s, first, end, guarded=False)
            return
        begin = self.op("min", self.moved(s.start, high), end)
        after = self.op("max", self.moved(s.stop, low), begin)
        self.segment(s, first, begin, guarded=True)
        self.iterations(s, s.start, self.op("min", begin, s.stop))
        in_strips = self.rest and not self.places
        if not in_strips:
            self.segment(s, begin, after, guarded=False)
        self.segment(s, after, end, guarded=True)
        self.iterations(s, after, s.stop)
        if in_strips:
            self.strips(s, begin, after, high)

    def iterations(self, s: Loop, start: Expr, stop: Expr) -> None:
        """The increments ``beside``, at places where they are not made together with those of the targets."""
        if not self.beside:
            return
        place = self.to.inner(s.var.name, INT)
        with self.to.nested() as block:
            self.places.append(place)
            self.emit_all(map(self.own, self.beside))
            self.places.pop()
        self.emit_loop(s, place, start, stop, block.statements, alone=True)

    def strips(self, s: Loop, begin: Expr, after: Expr, high: int) -> None:
        """The places between the ends in strips, each followed by the other statements."""
        span = self.op("add", self.op("sub", after, begin), constant(STRIP - 1, INT))
        count = self.op("max", self.op("rshift", span, constant(STRIP_SHIFT, INT)), constant(1, INT))
        number = self.to.inner("strip", INT)
        with self.to.nested() as block:
            first = self.op("add", begin, self.op("mul", number, constant(STRIP, INT)))
            end = self.op("min", self.op("add", first, constant(STRIP, INT)), after)
            self.segment(s, first, end, guarded=False)
            last = self.op("ge", end, after, types.boolean)
            stop = self.to.value(Op("select", (last, s.stop, self.moved(end, -high)), INT))
            body = in_all_blocks(self.rest, self.accesses)
            self.to.emit(replace(s, start=self.moved(first, -high), stop=stop, body=body, parallel=False))
        self.to.emit(Loop(number.name, number, ZERO, count, tuple(block.statements), line=s.line))

    def segment(self, s: Loop, first: Expr, end: Expr, guarded: bool) -> None:
        place = self.to.inner(s.var.name, INT)
        with self.to.nested() as block:
            self.places.append(place)
            if guarded:
                for target, x, offset in self.increments():
                    self.guarded(s, target, x, offset)
            else:
                self.element()
            self.places.pop()
        self.emit_loop(s, place, first, end, block.statements, alone=guarded)

    def increments(self) -> Iterator[tuple[Target, ir.Accumulate, Offset]]:
        for target in self.targets:
            for x, offset in target.increments:
                yield target, x, offset

    def one_element(self) -> None:
        """The work for one element, without a loop, to estimate its cost."""
        self.places = [self.to.fresh(s.var.name, INT) for s in self.nest.loops]
        self.element()

    def element(self) -> None:
        """All increments of the elements at one place, where all neighbours exist.

        If all loads come first, compilers keep loaded values for the next iterations, and still vectorise.
        """
        found = []
        for target in self.targets:
            total: Expr | None = None
            for x, offset in target.increments:
                amount = self.amount(x, offset)
                total = amount if total is None else self.to.value(Op("add", (total, amount), amount.type))
            assert total is not None
            found.append(self.increment(target, total))
        self.emit_all([*found, *map(self.own, self.beside)])

    def emit_all(self, increments: Iterable[ir.Accumulate]) -> None:
        for x in list(increments):
            self.to.emit(x)

    def guarded(self, s: Loop, target: Target, x: ir.Accumulate, offset: Offset) -> None:
        """One increment, if its iteration exists."""
        place, by = self.places[-1], offset[-1]
        exists = self.op(
            "and",
            self.op("ge", place, self.moved(s.start, by), types.boolean),
            self.op("lt", place, self.moved(s.stop, by), types.boolean),
            types.boolean,
        )
        with self.to.nested() as block:
            self.to.emit(self.increment(target, self.amount(x, offset)))
        self.to.emit(Branch(exists, tuple(block.statements), line=x.line))

    def edge(self, s: Loop) -> None:
        """A row where neighbours are missing in other directions: one loop for each existing neighbour."""
        for target, x, offset in self.increments():
            exists = self.exists_at(offset)
            with self.to.nested() as branch:
                place = self.to.inner(s.var.name, INT)
                with self.to.nested() as block:
                    self.places.append(place)
                    self.to.emit(self.increment(target, self.amount(x, offset)))
                    self.places.pop()
                first, end = self.moved(s.start, offset[-1]), self.moved(s.stop, offset[-1])
                self.emit_loop(s, place, first, end, block.statements)
            self.to.emit(Branch(exists, tuple(branch.statements), line=x.line))

    def exists_at(self, offset: Offset) -> Expr:
        """The condition that the iteration at this distance exists in the outer loops."""
        found: Expr | None = None
        for place, outer, by in zip(self.places, self.nest.loops, offset):
            for condition in (
                self.op("ge", place, self.moved(outer.start, by), types.boolean),
                self.op("lt", place, self.moved(outer.stop, by), types.boolean),
            ):
                found = condition if found is None else self.op("and", found, condition, types.boolean)
        assert found is not None
        return found

    # one element

    @property
    def here(self) -> Offset:
        """The distance of the iteration of a place itself."""
        return (0,) * len(self.nest.loops)

    def own(self, x: ir.Accumulate) -> ir.Accumulate:
        """An increment by the iteration of the place itself."""
        known: dict[str, Expr] = {}
        amount = self.at(x.value, self.here, known)
        index = tuple(self.index(e, self.here, known) for e in x.index)
        return replace(x, index=index, value=amount)

    def increment(self, target: Target, amount: Expr) -> ir.Accumulate:
        model = target.increments[0][0]
        index = tuple(
            e if k is None else unsigned(self.places[k]) if self.all_nonnegative(target, d) else self.places[k]
            for d, (e, k) in enumerate(zip(model.index, target.dimensions))
        )
        return ir.Accumulate(target.array, index, amount, line=model.line)

    def all_nonnegative(self, target: Target, dimension: int) -> bool:
        return all(tbr.is_nonnegative(x.index[dimension], self.accesses) for x, _ in target.increments)

    def amount(self, x: ir.Accumulate, offset: Offset) -> Expr:
        """The amount that the iteration at this distance adds to the element."""
        return self.at(x.value, offset, {})

    def at(self, e: Expr, offset: Offset, known: dict[str, Expr]) -> Expr:
        """A value in the iteration at this distance."""
        if not isinstance(e, Var):
            return e
        if e.name in self.counters:
            k = self.counters.index(e.name)
            return self.moved(self.places[k], -offset[k])
        if e.name not in self.nest.values:
            return e
        if e.name not in known:
            value = self.nest.values[e.name]
            if isinstance(value, ir.Load):
                index = tuple(self.index(i, offset, known) for i in value.index)
                known[e.name] = self.to.load(value.array, index, e.name)
            else:
                assert isinstance(value, Op)
                args = tuple(self.at(a, offset, known) for a in value.args)
                known[e.name] = self.to.value(replace(value, args=args), e.name)
        return known[e.name]

    def index(self, e: Expr, offset: Offset, known: dict[str, Expr]) -> Expr:
        """An index in the iteration at this distance, computed from the place directly for a neighbour."""
        form = tbr.affine(e, self.accesses)
        if len(form.terms) == 1:
            ((name, _), factor) = next(iter(form.terms.items()))
            if name in self.counters and factor == 1:
                k = self.counters.index(name)
                place = self.moved(self.places[k], form.constant - offset[k])
                return unsigned(place) if tbr.is_nonnegative(e, self.accesses) else place
        return self.at(e, offset, known)
