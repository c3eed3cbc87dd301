"""Adjoints of stencils in gather form.

The adjoint of ``new[i] = f(u[i - 1], u[i], u[i + 1])`` adds to three elements of ``u_bar`` in each iteration.  In
gather form the loop runs over the elements of ``u_bar``, and adds to each of them, once, what the iterations around it
have for it.  Each element is then written by one iteration only: the loop can be vectorised and run on several threads,
and passes over memory once.  This pays where the amounts are cheap to compute from the adjoints that they come from,
since they are computed anew for each neighbour: for stencils that are linear, or nearly so.

A nest of loops becomes

* the nest over the elements that it adds to, with all neighbours where they are all there, and otherwise with
  those that are;
* the nest as it was with what else it does (setting adjoints of overwritten elements to zero, for one).

Other increments, of elements that lie side by side, are added in the same loops as the first.  What is left follows
closely, row by row: it is done as soon as no neighbour needs what it overwrites any more, and finds its arrays in the
caches.

The method is that of Hückelheim et al., "Automatic differentiation for adjoint stencil loops" (2019).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir, tbr
from ampi.kernel.branches import flatten
from ampi.kernel.intrinsics import TABLE, constant
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.names import Names
from ampi.kernel.ssa import INT, ZERO, Block, Branch, Builder, Loop, names_read, substitute
from ampi.kernel.stages import CALLED

WORTH = 3  # operations that the detour of an increment through a buffer costs
WIDEST = 4  # distance of the neighbours in one direction
STRIP_SHIFT = 9
STRIP = 1 << STRIP_SHIFT  # iterations of a loop without loops inside that take the part of a row

Offset = tuple[int, ...]  # from an iteration to the element that it adds to, in each loop's direction


def in_gather_form(
    function: ir.Function, names: Names, behind: bool = True, threads: bool = False
) -> tuple[ir.Function, list[str]]:
    """The function (in single assignment form) with such nests in gather form where that pays; what was done.

    ``behind``: what else a nest does follows row by row, unless ``threads`` share the nest.
    """
    pass_ = _Gather(function, names, behind, threads)
    return replace(function, body=pass_.visit(function.body)), pass_.facts


@dataclass
class Nest:
    """Loops around one body, which may be run in any order; ``between`` are the statements that begin their bodies."""

    loops: list[Loop]
    between: list[tuple[Stmt, ...]]
    body: tuple[Stmt, ...]
    values: dict[str, Expr]


@dataclass
class Target:
    """An array with its increments, and for each of its dimensions which loop's counter the index is made of (None: it
    is the same in all iterations)."""

    array: Var
    increments: list[tuple[ir.Accumulate, Offset]]
    dimensions: tuple[int | None, ...]

    @property
    def is_stencil(self) -> bool:
        """Whether several iterations add to one element."""
        return len({offset for _, offset in self.increments}) > 1


class _Gather(Builder):
    def __init__(self, function: ir.Function, names: Names, behind: bool, threads: bool) -> None:
        super().__init__(names)
        self.behind = behind
        self.threads = threads
        self.accesses = tbr.collect(function)
        self.facts: list[str] = []

    def visit(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                changed = self.nest(s)
                out += changed if changed is not None else [replace(s, body=self.visit(s.body))]
            elif isinstance(s, Branch):
                out.append(replace(s, then=self.visit(s.then), orelse=self.visit(s.orelse)))
            else:
                out.append(s)
        return tuple(out)

    def nest(self, s: Loop) -> list[Stmt] | None:
        """A nest of loops in gather form; None where that is not possible or does not pay."""
        nest = self.perfect(s)
        if nest is None:
            return None
        targets = [t for t in self.targets(nest) if t.is_stencil]
        if not targets or not self.pays(targets, nest):
            return None
        gathered = {id(x) for target in targets for x, _ in target.increments}
        follows = self.behind and not (self.threads and s.parallel)
        beside = self.beside(nest, targets, gathered) if follows else []
        done = gathered | {id(x) for x in beside}
        rest = self.needed([t for t in nest.body if id(t) not in done])
        self.stack = [Block()]
        self.line = s.line
        _Writer(self, nest, targets, beside, rest if follows else ()).write()
        for target in targets:
            count = len(target.increments)
            self.facts.append(f"line {s.line}: {target.array.name} in gather form, from {count} neighbours")
        if beside:
            self.facts.append(f"line {s.line}: with {', '.join(x.array.name for x in beside)} in the same loop")
        if rest and follows:
            self.facts.append(f"line {s.line}: what else the loop does follows row by row")
        apart = [] if follows or not rest else [replace(s, body=iteration(nest, rest))]
        return self.block.statements + apart

    # which nests

    def perfect(self, s: Loop) -> Nest | None:
        """The loops from ``s`` inwards if they are independent and nothing but arithmetic stands between them."""
        nest = Nest([], [], (), {})
        inside: set[str] = set()
        while True:
            simple = s.independent and s.step == 1 and not s.carried and s.condition is None
            if not simple or inside & {e.name for e in (s.start, s.stop) if isinstance(e, Var)}:
                return None
            nest.loops.append(s)
            inside.add(s.var.name)
            body = flatten(s.body, self.names)
            inner = [t for t in body if isinstance(t, Loop)]
            plain = tuple(t for t in body if not isinstance(t, Loop))
            nest.values |= {t.target.name: t.value for t in plain if isinstance(t, ir.Assign)}
            inside |= nest.values.keys()
            if not inner:
                nest.body = body
                known = all(isinstance(t, (ir.Assign, ir.Store, ir.Accumulate)) for t in body)
                return nest if known and self.is_orderly(nest) else None
            arithmetic = all(isinstance(t, ir.Assign) and isinstance(t.value, Op) for t in plain)
            if len(inner) > 1 or body[-1] is not inner[0] or not arithmetic:
                return None
            nest.between.append(plain)
            (s,) = inner

    def is_orderly(self, nest: Nest) -> bool:
        """Whether increments may be done first: nothing is stored but zeros, at places that were read before."""
        loaded: set[tuple[str, tuple[Expr, ...]]] = set()
        stored: dict[str, tuple[Expr, ...]] = {}
        added = {t.array.name for t in nest.body if isinstance(t, ir.Accumulate)}
        for t in nest.body:
            match t:
                case ir.Assign(value=ir.Load(array=array, index=index)):
                    if array.name in added or stored.get(array.name) is not None:
                        return False
                    loaded.add((array.name, index))
                case ir.Store(array=array, index=index, value=value):
                    if array.name in added or array.name in stored or not isinstance(value, Const) or value.value != 0:
                        return False
                    stored[array.name] = index
        return all({i for name, i in loaded if name == array} <= {index} for array, index in stored.items())

    # which arrays

    def targets(self, nest: Nest) -> list[Target]:
        increments: dict[str, list[ir.Accumulate]] = defaultdict(list)
        for t in nest.body:
            if isinstance(t, ir.Accumulate):
                increments[t.array.name].append(t)
        found = (self.target(group, nest) for group in increments.values())
        return [t for t in found if t is not None]

    def target(self, group: list[ir.Accumulate], nest: Nest) -> Target | None:
        """Increments of one array, if their places differ by fixed distances."""
        counters = [s.var.name for s in nest.loops]
        fixed: set[tuple] = set()
        increments = []
        for t in group:
            offset = [0] * len(counters)
            dimensions: list[int | None] = []
            pattern = []
            for e in t.index:
                form = tbr.affine(e, self.accesses)
                own = [name for name, _ in form.terms if name in counters]
                if not own:
                    if any(self.varies(name, nest) for name, _ in form.terms):
                        return None
                    dimensions.append(None)
                    pattern.append((form.constant, tuple(sorted(form.terms.items()))))
                    continue
                if len(form.terms) > 1 or form.terms[own[0], ""] != 1 or form.constant.denominator != 1:
                    return None
                k = counters.index(own[0])
                offset[k] = int(form.constant)
                dimensions.append(k)
                pattern.append(None)
            if sorted(k for k in dimensions if k is not None) != list(range(len(counters))):
                return None
            fixed.add((tuple(dimensions), tuple(pattern)))
            increments.append((t, tuple(offset)))
        if len(fixed) != 1:
            return None
        return Target(group[0].array, increments, next(iter(fixed))[0])

    def beside(self, nest: Nest, targets: list[Target], gathered: set[int]) -> list[ir.Accumulate]:
        """The other increments, if an iteration is the one of its place and each is of an array of its own.

        Their elements must lie side by side, and none may call a function: the loop could not be vectorised.
        """
        others = [t for t in nest.body if isinstance(t, ir.Accumulate) and id(t) not in gathered]
        reaches = [reach(targets, k) for k in range(len(nest.loops))]
        if len({x.array.name for x in others}) < len(others) or any(low > 0 or high < 0 for low, high in reaches):
            return []
        movable = all(self.can_be_moved(e, nest.values) for x in others for e in (x.value, *x.index))
        if not movable or any(self.calls(x.value, nest.values) for x in others):
            return []
        return others if all(self.is_adjacent(x, nest) for x in others) else []

    def calls(self, e: Expr, values: dict[str, Expr]) -> bool:
        """Whether a value is computed by a function that is called."""
        value = values.get(e.name) if isinstance(e, Var) else None
        if not isinstance(value, Op):
            return False
        return TABLE[value.name].cost >= CALLED or any(self.calls(a, values) for a in value.args)

    def is_adjacent(self, x: ir.Accumulate, nest: Nest) -> bool:
        """Whether the index moves by one element in the last dimension with the innermost loop, and not in others."""
        counters = [s.var.name for s in nest.loops]
        *before, last = [tbr.affine(e, self.accesses) for e in x.index]
        fixed = all(name in counters[:-1] or not self.varies(name, nest) for f in before for name, _ in f.terms)
        return fixed and last.terms == {(counters[-1], ""): 1}

    def varies(self, name: str, nest: Nest) -> bool:
        return any(loop.name == nest.loops[0].name for loop in self.accesses.depth.get(name, ()))

    def pays(self, targets: list[Target], nest: Nest) -> bool:
        """Whether the work that is done anew for each neighbour is less than what the detour of the increments through
        buffers costs; what neighbours have in common is done once."""
        for k in range(len(nest.loops)):
            low, high = reach(targets, k)
            if high - low > WIDEST:
                return False
        known = nest.values
        if any(not self.can_be_moved(x.value, known) for t in targets for x, _ in t.increments):
            return False
        self.stack = [Block()]
        _Writer(self, nest, targets).one_element()
        count = sum(len(t.increments) for t in targets)
        return cost(self.block.statements) <= cost(nest.body) + WORTH * count

    def can_be_moved(self, e: Expr, values: dict[str, Expr]) -> bool:
        """Whether a value can be computed for another iteration: from loads and operations."""
        if not isinstance(e, Var) or e.name not in values:
            return True
        value = values[e.name]
        inner = value.index if isinstance(value, ir.Load) else value.args if isinstance(value, Op) else None
        return inner is not None and all(self.can_be_moved(a, values) for a in inner)

    # what remains

    @staticmethod
    def needed(body: list[Stmt]) -> tuple[Stmt, ...]:
        """Statements without the values that are not used any more."""
        names: set[str] = set()
        kept: list[Stmt] = []
        for t in reversed(body):
            if not isinstance(t, ir.Assign) or t.target.name in names:
                names |= names_read(t)
                kept.append(t)
        return tuple(reversed(kept))


def iteration(nest: Nest, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """What the outermost loop of a nest does in an iteration, with another body of the innermost one."""
    for s, before in zip(nest.loops[:0:-1], [(), *nest.between[:0:-1]]):
        body = (replace(s, body=(*before, *body)),)
    return (*nest.between[0], *body) if nest.between else body


def reach(targets: list[Target], k: int) -> tuple[int, int]:
    """The smallest and largest offset in the direction of loop k."""
    offsets = [offset[k] for t in targets for _, offset in t.increments]
    return min(offsets), max(offsets)


def cost(body: Iterable[Stmt]) -> int:
    """Loads and operations on numbers that are not indices."""
    total = 0
    for t in body:
        if isinstance(t, ir.Assign) and isinstance(t.value, ir.Load):
            total += 1
        elif isinstance(t, ir.Assign) and isinstance(t.value, Op) and not isinstance(t.value.type, types.Integer):
            total += TABLE[t.value.name].cost
    return total


class _Writer:
    """Writes the nest that adds to the targets.

    ``beside`` are increments that iterations make besides, in the same loops; ``rest`` is what is to follow.
    """

    def __init__(
        self,
        to: _Gather,
        nest: Nest,
        targets: list[Target],
        beside: Sequence[ir.Accumulate] = (),
        rest: tuple[Stmt, ...] = (),
    ) -> None:
        self.to, self.nest, self.targets, self.beside, self.rest = to, nest, targets, beside, rest
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
        """The loop in the next direction; ``inside``: in the directions so far all neighbours are there."""
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
        """What else the iteration does that no later place needs."""
        number = self.moved(place, -high)
        runs = self.op("ge", number, s.start, types.boolean)
        body = substitute(self.steady(iteration(self.nest, self.rest)), {s.var.name: number})
        self.to.emit(Branch(runs, body, line=s.line))

    def steady(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Statements with indices that cannot be negative written as unsigned."""

        def index(es: tuple[Expr, ...]) -> tuple[Expr, ...]:
            return tuple(self.unsigned(e, isinstance(e, Var) and tbr.is_nonnegative(e, self.to.accesses)) for e in es)

        out: list[Stmt] = []
        for t in body:
            match t:
                case Loop():
                    t = replace(t, body=self.steady(t.body))
                case ir.Assign(value=ir.Load() as load):
                    t = replace(t, value=replace(load, index=index(load.index)))
                case ir.Store() | ir.Accumulate():
                    t = replace(t, index=index(t.index))
            out.append(t)
        return tuple(out)

    def emit_loop(self, s: Loop, place: Var, first: Expr, end: Expr, body: list[Stmt], alone: bool = False) -> None:
        """``alone``: it is too short for threads."""
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
                self.to.emit(Branch(self.there(self.here), tuple(branch.statements), line=s.line))
        self.to.emit(Branch(inside, tuple(all_there.statements), tuple(some_there.statements), line=s.line))

    def row(self, s: Loop, first: Expr, end: Expr) -> None:
        """A row with all neighbours in the other directions: both ends, and what is between them."""
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
        """What iterations add besides, at places where it is not done together with the rest."""
        if not self.beside:
            return
        place = self.to.inner(s.var.name, INT)
        with self.to.nested() as block:
            self.places.append(place)
            self.emit_all(map(self.own, self.beside))
            self.places.pop()
        self.emit_loop(s, place, start, stop, block.statements, alone=True)

    def strips(self, s: Loop, begin: Expr, after: Expr, high: int) -> None:
        """The places between the ends in strips, each followed by what else is done."""
        span = self.op("add", self.op("sub", after, begin), constant(STRIP - 1, INT))
        count = self.op("max", self.op("rshift", span, constant(STRIP_SHIFT, INT)), constant(1, INT))
        number = self.to.inner("strip", INT)
        with self.to.nested() as block:
            first = self.op("add", begin, self.op("mul", number, constant(STRIP, INT)))
            end = self.op("min", self.op("add", first, constant(STRIP, INT)), after)
            self.segment(s, first, end, guarded=False)
            last = self.op("ge", end, after, types.boolean)
            stop = self.to.value(Op("select", (last, s.stop, self.moved(end, -high)), INT))
            body = self.steady(self.rest)
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
        """What is done for one element, in no loop: to see what it costs."""
        self.places = [self.to.fresh(s.var.name, INT) for s in self.nest.loops]
        self.element()

    def element(self) -> None:
        """All that is added to the elements at one place, where all neighbours are there.

        Compilers keep what they have loaded for the next iterations, and still vectorise, if all loads come first.
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
        """One increment, if its iteration is one of the loop's."""
        place, by = self.places[-1], offset[-1]
        there = self.op(
            "and",
            self.op("ge", place, self.moved(s.start, by), types.boolean),
            self.op("lt", place, self.moved(s.stop, by), types.boolean),
            types.boolean,
        )
        with self.to.nested() as block:
            self.to.emit(self.increment(target, self.amount(x, offset)))
        self.to.emit(Branch(there, tuple(block.statements), line=x.line))

    def edge(self, s: Loop) -> None:
        """A row where neighbours are missing in other directions: one loop for each neighbour that is there."""
        for target, x, offset in self.increments():
            there = self.there(offset)
            with self.to.nested() as branch:
                place = self.to.inner(s.var.name, INT)
                with self.to.nested() as block:
                    self.places.append(place)
                    self.to.emit(self.increment(target, self.amount(x, offset)))
                    self.places.pop()
                first, end = self.moved(s.start, offset[-1]), self.moved(s.stop, offset[-1])
                self.emit_loop(s, place, first, end, block.statements)
            self.to.emit(Branch(there, tuple(branch.statements), line=x.line))

    def there(self, offset: Offset) -> Expr:
        """Whether the iteration at this distance is one of the outer loops'."""
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
        """An increment of the iteration of the place itself."""
        known: dict[str, Expr] = {}
        amount = self.at(x.value, self.here, known)
        index = tuple(self.index(e, self.here, known) for e in x.index)
        return replace(x, index=index, value=amount)

    def increment(self, target: Target, amount: Expr) -> ir.Accumulate:
        model = target.increments[0][0]
        index = tuple(
            e if k is None else self.unsigned(self.places[k], self.all_nonnegative(target, d))
            for d, (e, k) in enumerate(zip(model.index, target.dimensions))
        )
        return ir.Accumulate(target.array, index, amount, line=model.line)

    def all_nonnegative(self, target: Target, dimension: int) -> bool:
        accesses = self.to.accesses
        return all(tbr.is_nonnegative(x.index[dimension], accesses) for x, _ in target.increments)

    def amount(self, x: ir.Accumulate, offset: Offset) -> Expr:
        """What the iteration at this distance adds to the element."""
        return self.at(x.value, offset, {})

    def at(self, e: Expr, offset: Offset, known: dict[str, Expr]) -> Expr:
        """A value as it is in the iteration at this distance."""
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
        """An index as it is in the iteration at this distance, made from the place at once where it is a neighbour."""
        form = tbr.affine(e, self.to.accesses)
        if len(form.terms) == 1 and form.constant.denominator == 1:
            ((name, _), factor) = next(iter(form.terms.items()))
            if name in self.counters and factor == 1:
                k = self.counters.index(name)
                place = self.moved(self.places[k], int(form.constant) - offset[k])
                return self.unsigned(place, tbr.is_nonnegative(e, self.to.accesses))
        return self.at(e, offset, known)

    def unsigned(self, place: Expr, nonnegative: bool) -> Expr:
        """An index that cannot be negative as unsigned: Numba then need not treat it as counting from the end."""
        # Inside the index, since it may be negative where the element is not touched.
        return Op("cast", (place,), types.uint64) if nonnegative else place
