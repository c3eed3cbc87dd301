"""Strips of a loop whose products with vectors become products of matrices: how the program is written.

The iterations of a strip store their vectors in the rows of a matrix, each at the place of its window in the union of
all windows of the strip; the rest of a row is zero.  Where an infinity or NaN outside of a window would meet such a
zero, the product is computed window by window instead.  The original loop runs if the windows of a strip have little in
common, or if all is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import new_names, rebuild, substitute
from ampi.kernel.ir.ssa import INT, ONE, ZERO, Branch, Carried, Join, Loop, every, written
from ampi.kernel.optimise.product_windows import Iteration, Matrix, Outer, Place, Product, Window, at

ROWS = 64  # iterations in a strip, at most
LEAST = 1 << 15  # multiplications for which strips pay
FEWEST = 4  # iterations for which strips pay

Key = tuple[str, "Window | None", int]


@dataclass(frozen=True)
class Plan:
    """What becomes of a loop.

    ``late`` products, and the statements ``after`` (positions) that use them, follow the iterations of a strip, as
    ``outers`` do.  ``early`` products are made before them; ``vectors`` has the positions of the statements that
    compute the vector of each.  ``kept`` are the positions of the statements that stay.
    """

    iteration: Iteration
    late: tuple[Product, ...]
    after: tuple[int, ...]
    early: tuple[Product, ...]
    vectors: tuple[tuple[int, ...], ...]
    outers: tuple[Outer, ...]
    kept: tuple[int, ...]

    @property
    def windows(self) -> tuple[Window, ...]:
        users = (*(p.matrix for p in (*self.late, *self.early)), *self.outers)
        return tuple(dict.fromkeys(u.window for u in users if u.window is not None))


class Strips(Builder):
    """Writes the strips of one loop."""

    def __init__(self, names: Names, plan: Plan, shadows: set[str]) -> None:
        super().__init__(names)
        self.plan, self.shadows = plan, shadows
        self.loop = plan.iteration.loop
        self.line = self.loop.line
        self.rooms: dict[Key, Var] = {}
        self.low: dict[Window, Expr] = {}
        self.width: dict[Window, Expr] = {}

    def op(self, name: str, *args: Expr) -> Expr:
        return self.value(Op(name, args, INT))

    def run(self) -> list[Stmt]:
        s = self.loop
        lowest, highest = (
            (s.start, s.stop) if s.step == 1 else (self.op("add", s.stop, ONE), self.op("add", s.start, ONE))
        )
        self.length = self.op("max", self.op("sub", highest, lowest), ZERO)
        self.count = self.op("floordiv", self.op("add", self.length, Const(ROWS - 1, INT)), Const(ROWS, INT))
        self.bounds = self.fresh("bounds", types.Array(INT, 2, "C"))
        width = constant(2 * max(1, len(self.plan.windows)), INT)
        self.emit(ir.Alloc(self.bounds, (self.count, width), None, line=self.line))
        worth = self.worth()
        with self.nested() as block:
            strips, ends = self.strips()
            self.emit(strips)
        others = self.copy(s)
        joins = tuple(
            Join(c.var, end, other.var) for c, end, other in zip(s.carried, ends, others.carried, strict=True)
        )
        self.emit(Branch(worth, tuple(block.statements), (others,), joins, line=self.line))
        return self.block.statements

    def copy(self, s: Loop) -> Loop:
        """The loop with other names."""
        (copied,) = _with_loop_names(substitute((s,), self.renamed((s,))))
        assert isinstance(copied, Loop)
        return copied

    def renamed(self, body: tuple[Stmt, ...]) -> dict[str, Expr]:
        names = new_names(body, self.names)
        self.shadows |= {v.name for name, v in names.items() if name in self.shadows and isinstance(v, Var)}
        return names

    # which iterations a strip has, and its windows

    def part(self, strip: Expr) -> tuple[Expr, Expr, Expr]:
        """The first counter of a strip, where it stops, and how many iterations it has."""
        done = self.op("mul", strip, Const(ROWS, INT))
        trips = self.op("min", self.op("sub", self.length, done), Const(ROWS, INT))
        moves = "add" if self.loop.step == 1 else "sub"
        first = self.op(moves, self.loop.start, done)
        return first, self.op(moves, first, trips), trips

    def worth(self) -> Expr:
        """Whether strips pay; writes the union of the windows of each into ``bounds``."""
        iteration, strip = self.plan.iteration, self.inner("strip", INT)
        weights = {w: self.weight(w) for w in (*self.plan.windows, None)}
        asked, made = self.fresh("asked", INT), self.fresh("made", INT)
        with self.nested({self.bounds.name}) as block:
            first, stop, trips = self.part(strip)
            total: Expr = asked
            used: Expr = made
            for k, window in enumerate(self.plan.windows):
                i = self.inner("i", INT)
                low, high, size = (self.fresh(n, INT) for n in ("low", "high", "size"))
                with self.nested() as inside:
                    begin = at(self, window.low, i, iteration.loop.var)
                    number = self.op("max", at(self, window.count, i, iteration.loop.var), ZERO)
                    some = self.value(Op("gt", (number, ZERO), types.boolean))
                    least = self.op("select", some, self.op("min", low, begin), low)
                    most = self.op("select", some, self.op("max", high, self.op("add", begin, number)), high)
                    added = self.op("add", size, number)
                carried = (
                    Carried(low, Const((1 << 62), INT), least),
                    Carried(high, ZERO, most),
                    Carried(size, ZERO, added),
                )
                self.emit(
                    Loop(i.name, i, first, stop, tuple(inside.statements), carried, self.loop.step, line=self.line)
                )
                low_of_strip = self.op("min", low, high)
                width = self.op("sub", high, low_of_strip)
                self.store(self.bounds, (strip, constant(2 * k, INT)), low_of_strip)
                self.store(self.bounds, (strip, constant(2 * k + 1, INT)), width)
                total = self.op("add", total, self.op("mul", size, weights[window]))
                used = self.op("add", used, self.op("mul", self.op("mul", width, trips), weights[window]))
            fixed = self.op("mul", trips, weights[None])
            total, used = self.op("add", total, fixed), self.op("add", used, fixed)
        carried = Carried(asked, ZERO, total), Carried(made, ZERO, used)
        self.emit(Loop(strip.name, strip, ZERO, self.count, tuple(block.statements), carried, line=self.line))
        compare = lambda name, a, b: self.value(Op(name, (a, b), types.boolean))
        pays = compare("le", made, self.op("mul", asked, constant(2, INT)))
        large = compare("ge", asked, constant(LEAST, INT))
        many = compare("ge", self.length, constant(FEWEST, INT))
        both = self.value(Op("and", (pays, large), types.boolean))
        return self.value(Op("and", (both, many), types.boolean))

    def weight(self, window: Window | None) -> Expr:
        """Multiplications for each element of a window (None: in each iteration, without windows)."""
        total: Expr = ZERO
        for user in (*(p.matrix for p in (*self.plan.late, *self.plan.early)), *self.plan.outers):
            if user.window == window:
                counts = [at(self, c) for k, c in enumerate(user.counts) if k != user.axis]
                total = self.op("add", total, counts[0] if len(counts) == 1 else self.op("mul", *counts))
        return total

    # the strips

    def strips(self) -> tuple[Loop, list[Expr]]:
        s, plan = self.loop, self.plan
        strip = self.inner("strip", INT)
        within: dict[str, Expr] = {c.var.name: self.fresh(c.var.name, c.var.type) for c in s.carried}
        outside: dict[str, Expr] = {c.var.name: self.fresh(c.var.name, c.var.type) for c in s.carried}
        written = {a.array.name for a in plan.outers} | plan.iteration.changed
        with self.nested(written) as block:
            self.first, stop, self.trips = self.part(strip)
            for k, window in enumerate(plan.windows):
                self.low[window] = self.load(self.bounds, (strip, constant(2 * k, INT)))
                self.width[window] = self.load(self.bounds, (strip, constant(2 * k + 1, INT)))
            matrices = {p.matrix.name: self.collected(p.matrix) for p in (*plan.late, *plan.early)}
            made = {}
            for p, positions in zip(plan.early, plan.vectors):
                room = self.room(p.vector, self.window_of(p), p.matrix.counts[p.over])
                self.vectors_before(p, positions, room, stop)
                self.rooms[self.key(p.vector, self.window_of(p), p.position)] = room
                made[p.position] = self.product(p, room, matrices[p.matrix.name])
            stores = self.stores()
            i = self.inner("i", INT)
            self.iterations(i, stop, stores, made, matrices, within, outside)
            for o in plan.outers:
                self.add(o)
            if plan.late:
                self.results(stop, matrices)
        carried = tuple(Carried(outside[c.var.name], c.init, within[c.var.name]) for c in s.carried)  # type: ignore[arg-type]
        loop = Loop(strip.name, strip, ZERO, self.count, tuple(block.statements), carried, line=s.line)
        return loop, [c.var for c in carried]

    def window_of(self, p: Product) -> Window | None:
        """The window of a product's vector."""
        return p.matrix.window if p.matrix.axis == p.over else None

    def collected(self, m: Matrix) -> Var:
        """The union of the windows of a matrix in this strip."""
        if not m.places:
            return m.source
        shape = tuple(self.width[m.window] if k == m.axis and m.window else at(self, c) for k, c in enumerate(m.counts))
        shape = tuple(self.op("max", n, ZERO) for n in shape)
        collected = self.fresh("window", types.Array(m.source.type.dtype, 2, "C"))
        self.emit(ir.Alloc(collected, shape, None, line=self.line))

        def element(index: tuple[Expr, ...]) -> None:
            of = dict(zip(m.counters, index))
            self.store(collected, index, self.load(m.source, self.index(m.places, of, m.counters, m.axis, m.window)))

        self.over(collected, element, {collected.name})
        return collected

    def index(
        self,
        places: tuple[Place, ...],
        of: dict[Var, Expr],
        counters: tuple[Var, ...],
        axis: int | None,
        window: Window | None,
        low: Expr | None = None,
    ) -> tuple[Expr, ...]:
        """The index of an element, whose place in the union (or, from ``low``, in a window) is given."""
        found = []
        for p in places:
            if p.counter is None:
                found.append(at(self, p.offset))
                continue
            is_window = axis is not None and p.counter == counters[axis] and window is not None
            offset = (self.low[window] if low is None else low) if is_window and window else at(self, p.offset)
            found.append(self.op("add", offset, of[p.counter]))
        return tuple(found)

    def room(self, vector: Var, window: Window | None, count: Expr) -> Var:
        """A matrix with a row for the vector of each iteration."""
        dtype = vector.type.dtype
        size = self.op("max", at(self, count), ZERO) if window is None else self.width[window]
        room = self.fresh("rows", types.Array(dtype, 2, "C"))
        fill = None if window is None else constant(0.0, dtype)
        self.emit(ir.Alloc(room, (self.trips, size), fill, line=self.line))
        return room

    def key(self, vector: Var, window: Window | None, position: int) -> Key:
        """What tells apart stored rows: the vector, with the number of its changes so far, and a window."""
        before = every(self.loop.body[:position])
        return vector.name, window, sum(getattr(written(s), "name", None) == vector.name for s in before)

    def row(self, i: Expr) -> Expr:
        return self.op("sub", i, self.first) if self.loop.step == 1 else self.op("sub", self.first, i)

    def shift(self, window: Window | None, i: Expr) -> Expr:
        """Where the window of an iteration begins in the union."""
        return ZERO if window is None else self.op("sub", at(self, window.low, i, self.loop.var), self.low[window])

    def each(self, stop: Expr, changed: set[str], body: Callable[[Var], Any]) -> None:
        k = self.inner("k", INT)
        with self.nested(changed) as block:
            body(k)
        self.emit(Loop(k.name, k, ZERO, stop, tuple(block.statements), independent=True, line=self.line))

    def put_row(self, room: Var, vector: Var, window: Window | None, count: Expr, i: Expr) -> None:
        """Store the vector of an iteration."""
        row, shift = self.row(i), self.shift(window, i)
        self.each(
            at(self, count, i, self.loop.var),
            {room.name},
            lambda k: self.store(room, (row, self.op("add", shift, k)), self.load(vector, (k,))),
        )

    def vectors_before(self, p: Product, positions: tuple[int, ...], room: Var, stop: Expr) -> None:
        i = self.inner("i", INT)
        with self.nested({room.name}) as block:
            names = self.statements(positions, i)
            vector = names.get(p.vector.name, p.vector)
            assert isinstance(vector, Var)
            self.put_row(room, vector, self.window_of(p), p.matrix.counts[p.over], i)
        self.emit(Loop(i.name, i, self.first, stop, tuple(block.statements), step=self.loop.step, line=self.line))

    def statements(
        self, positions: tuple[int, ...], i: Var, instead: dict[int, Callable[[dict[str, Expr]], None]] | None = None
    ) -> dict[str, Expr]:
        """Write some statements of the iteration ``i``, with other names; scalars that they need come from forms."""
        body = tuple(self.loop.body[k] for k in positions)
        names = self.renamed(body)
        names[self.loop.var.name] = i
        for s in body:
            for node in ir.walk(s):
                if isinstance(node, Var) and node.name not in names and node.name in self.plan.iteration.assigned:
                    form = self.plan.iteration.form(node)
                    if form is not None and not isinstance(node.type, types.Array):
                        names[node.name] = at(self, form, i, self.loop.var)
        for k, s in zip(positions, body):
            if instead and k in instead:
                instead[k](names)
            else:
                (new,) = _with_loop_names(substitute((s,), names))
                self.emit(new)
        return names

    def product(self, p: Product, room: Var, collected: Var) -> Var:
        """The results of all iterations, in the rows of a matrix."""
        function, axis = ("dot_with_turned", 0) if p.over else ("dot", 1)
        target = self.fresh("product", types.Array(p.target.type.dtype, 2, "C"))
        size = ir.Size(collected, axis, INT)
        self.emit(ir.Alloc(target, (self.trips, size), None, line=self.line))
        self.emit(ir.Fill(target, function, (room, collected), line=self.line))
        return target

    def stores(self) -> dict[int, list[tuple[Var, Var, Window | None, Expr]]]:
        """What is stored at which position of the body: the rows, the vector, its window and its size."""
        found: dict[int, list[tuple[Var, Var, Window | None, Expr]]] = {}
        wanted = [(p.position, p.vector, self.window_of(p), p.matrix.counts[p.over]) for p in self.plan.late]
        for o in self.plan.outers:
            for k, load in enumerate(o.factors):
                wanted.append((o.position, load.array, o.window if k == o.axis else None, o.counts[k]))
        for position, vector, window, count in wanted:
            key = self.key(vector, window, position)
            if key not in self.rooms:
                self.rooms[key] = room = self.room(vector, window, count)
                found.setdefault(position, []).append((room, vector, window, count))
        return found

    def iterations(
        self,
        i: Var,
        stop: Expr,
        stores: dict[int, list[tuple[Var, Var, Window | None, Expr]]],
        made: dict[int, Var],
        matrices: dict[str, Var],
        within: dict[str, Expr],
        outside: dict[str, Expr],
    ) -> None:
        """The loop over the iterations of a strip, with what stays there."""
        s, plan = self.loop, self.plan
        kept = tuple(s.body[k] for k in plan.kept)
        names = self.renamed(kept) | within
        names[s.var.name] = i
        renamed = lambda v: names.get(v.name, v) if isinstance(v, Var) else v
        early = {p.position: p for p in plan.early}
        rooms = {room.name for found in stores.values() for room, *_ in found}
        with self.nested(plan.iteration.changed | rooms) as block:
            for k, t in enumerate(s.body):
                for room, vector, window, count in stores.get(k, ()):
                    self.put_row(room, renamed(vector), window, count, i)
                if k in early:
                    p = early[k]
                    room = self.rooms[self.key(p.vector, self.window_of(p), k)]
                    self.result(p, made[k], room, matrices[p.matrix.name], renamed(p.target), i)
                elif k in plan.kept:
                    (new,) = _with_loop_names(substitute((t,), names))
                    self.emit(new)
        carried = tuple(Carried(within[c.var.name], outside[c.var.name], renamed(c.next)) for c in s.carried)  # type: ignore[arg-type]
        self.emit(
            replace(s, name=i.name, var=i, start=self.first, stop=stop, body=tuple(block.statements), carried=carried)
        )

    def result(self, p: Product, made: Var, room: Var, collected: Var, target: Var, i: Expr) -> None:
        """Copy the result of an iteration to its array."""
        window = p.matrix.window if p.matrix.axis == 1 - p.over else None
        row, shift = self.row(i), self.shift(window, i)
        count = at(self, p.matrix.counts[1 - p.over], i, self.loop.var)
        checked = self.window_of(p) is not None
        bad, k = self.fresh("bad", types.boolean), self.inner("k", INT)
        carried: tuple[Carried, ...] = ()
        with self.nested({target.name}) as block:
            value = self.load(made, (row, self.op("add", shift, k)))
            self.store(target, (k,), value)
            if checked:
                worse = self.value(Op("or", (bad, self.is_bad(value)), types.boolean))
                carried = (Carried(bad, Const(False, types.boolean), worse),)
        body = tuple(block.statements)
        self.emit(Loop(k.name, k, ZERO, count, body, carried, independent=not checked, line=self.line))
        self.forget(target.name)
        if checked:
            with self.nested({target.name}) as block:
                self.alone(p, room, collected, target, i, count)
            self.emit(Branch(bad, tuple(block.statements), line=self.line))

    def alone(self, p: Product, room: Var, collected: Var, target: Var, i: Expr, count: Expr) -> None:
        """The result of one iteration, from its window only."""
        row, shift = self.row(i), self.shift(self.window_of(p), i)
        dtype = target.type.dtype

        def element(k: Var) -> None:
            c, total = self.inner("c", INT), self.fresh("total", dtype)
            with self.nested() as block:
                place = self.op("add", shift, c)
                factor = self.load(collected, (k, place) if p.over else (place, k))
                term = self.value(Op("mul", (factor, self.load(room, (row, place))), dtype))
                value = self.value(Op("add", (total, term), dtype))
            inner = at(self, p.matrix.counts[p.over], i, self.loop.var)
            carried = (Carried(total, constant(0.0, dtype), value),)
            self.emit(Loop(c.name, c, ZERO, inner, tuple(block.statements), carried, line=self.line))
            self.store(target, (k,), total)

        self.each(count, {target.name}, element)

    def is_bad(self, value: Expr) -> Expr:
        """Whether a number is infinite or NaN."""
        difference = self.value(Op("sub", (value, value), value.type))  # type: ignore[attr-defined]
        return self.value(Op("ne", (difference, constant(0.0, value.type)), types.boolean))  # type: ignore[attr-defined]

    # after the iterations of a strip

    def results(self, stop: Expr, matrices: dict[str, Var]) -> None:
        plan = self.plan
        made = {}
        for p in plan.late:
            room = self.rooms[self.key(p.vector, self.window_of(p), p.position)]
            made[p.position] = self.product(p, room, matrices[p.matrix.name]), room
        i = self.inner("i", INT)

        def instead(p: Product) -> Callable[[dict[str, Expr]], None]:
            def write(names: dict[str, Expr]) -> None:
                target = names[p.target.name]
                assert isinstance(target, Var)
                self.result(p, made[p.position][0], made[p.position][1], matrices[p.matrix.name], target, i)

            return write

        with self.nested(plan.iteration.changed) as block:
            self.statements(plan.after, i, {p.position: instead(p) for p in plan.late})
        self.emit(Loop(i.name, i, self.first, stop, tuple(block.statements), step=self.loop.step, line=self.line))

    def add(self, o: Outer) -> None:
        """Add the product of the rows."""
        windows = [o.window if k == o.axis else None for k in (0, 1)]
        keys = [self.key(load.array, w, o.position) for load, w in zip(o.factors, windows)]
        rooms = [self.rooms[key] for key in keys]
        with self.nested({o.array.name}) as fast:
            self.add_product(o, rooms)
        if o.axis is None:
            for s in fast.statements:
                self.emit(s)
            self.forget(o.array.name)
            return
        bad = self.has_bad(rooms[1 - o.axis])
        with self.nested({o.array.name}) as slow:
            self.add_windows(o, rooms)
        self.emit(Branch(bad, tuple(slow.statements), tuple(fast.statements), line=self.line))

    def has_bad(self, room: Var) -> Expr:
        found = [self.fresh("bad", types.boolean) for _ in range(2)]
        outer = self.inner("row", INT)
        with self.nested() as rest:
            k = self.inner("k", INT)
            with self.nested() as block:
                value = self.is_bad(self.load(room, (outer, k)))
                worse = self.value(Op("or", (found[1], value), types.boolean))
            carried = (Carried(found[1], found[0], worse),)
            self.emit(Loop(k.name, k, ZERO, ir.Size(room, 1, INT), tuple(block.statements), carried, line=self.line))
        carried = (Carried(found[0], Const(False, types.boolean), found[1]),)
        self.emit(Loop(outer.name, outer, ZERO, self.trips, tuple(rest.statements), carried, line=self.line))
        return found[0]

    def add_product(self, o: Outer, rooms: list[Var]) -> None:
        made = self.fresh("product", types.Array(o.array.type.dtype, 2, "C"))
        self.emit(ir.Alloc(made, tuple(ir.Size(r, 1, INT) for r in rooms), None, line=self.line))
        self.emit(ir.Fill(made, "dot_of_turned", (rooms[0], rooms[1]), line=self.line))

        def element(index: tuple[Expr, ...]) -> None:
            of = dict(zip(o.counters, index))
            place = self.index(o.places, of, o.counters, o.axis, o.window)
            self.accumulate(o.array, place, self.load(made, index))

        self.over(made, element, {o.array.name})

    def add_windows(self, o: Outer, rooms: list[Var]) -> None:
        assert o.axis is not None and o.window is not None
        window = o.window

        def update(row: Var) -> None:
            i = self.op("add" if self.loop.step == 1 else "sub", self.first, row)
            low, shift = at(self, window.low, i, self.loop.var), self.shift(window, i)
            counts = [at(self, c, i, self.loop.var) for c in o.counts]

            def line(a: Var) -> None:
                def element(b: Var) -> None:
                    of = dict(zip(o.counters, (a, b)))
                    columns = [self.op("add", shift, n) if k == o.axis else n for k, n in enumerate((a, b))]
                    factors = tuple(self.load(r, (row, c)) for r, c in zip(rooms, columns))
                    place = self.index(o.places, of, o.counters, o.axis, o.window, low)
                    self.accumulate(o.array, place, self.value(Op("mul", factors, o.array.type.dtype)))

                self.each(counts[1], {o.array.name}, element)

            self.each(counts[0], {o.array.name}, line)

        k = self.inner("k", INT)
        with self.nested({o.array.name}) as block:
            update(k)
        self.emit(Loop(k.name, k, ZERO, self.trips, tuple(block.statements), line=self.line))


def _with_loop_names(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements whose loops have the names of their counters."""
    same = lambda x: x
    found = tuple(rebuild(s, same, same, _with_loop_names) for s in body)
    return tuple(replace(s, name=s.var.name) if isinstance(s, Loop) else s for s in found)
