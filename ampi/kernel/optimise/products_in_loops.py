"""Delayed and fused rank-one updates: several updates of a matrix in a loop become one matrix product.

``W_bar[i, j] += x[i] * y_bar[j]`` in each iteration is the adjoint of ``y = W @ x`` there, and goes through all of
``W_bar`` each time.  Instead, ``x`` and ``y_bar`` of some dozens of iterations are stored in the rows of two matrices,
whose product is added once.  The updates of ``W_bar`` by ``W @ x`` and ``z @ W`` in one block are made in one nest of
loops (loop fusion).  If ``W`` is a part of a matrix, or computed, its adjoint is a temporary array that a later nest
reads once: that nest computes the products instead (array contraction).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import TABLE, constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.ssa import INT, ONE, ZERO, Carried, Loop, definitions, every, names_read, written
from ampi.kernel.optimise.innermost import used_part

ROWS = 64  # updates that become one product, at most


def with_products(function: ir.Function, names: Names, shadows: Collection[str]) -> ir.Function:
    """Replace rank-one updates of ``shadows`` (arrays of adjoints) by products, in single assignment form."""
    return replace(function, body=_Products(names, shadows).block(function.body))


@dataclass(frozen=True)
class Update:
    """``array[index] += left * right`` for all elements of a matrix.

    ``loops`` are those around it, the outer one first; ``factors`` has the statements that compute each factor, which
    depends on one of the loops, and the factor.
    """

    loops: tuple[Loop, Loop]
    statement: ir.Accumulate
    factors: tuple[tuple[tuple[Stmt, ...], Expr], tuple[tuple[Stmt, ...], Expr]]

    @property
    def array(self) -> Var:
        return self.statement.array


class _Products:
    def __init__(self, names: Names, shadows: Collection[str]) -> None:
        self.names = names
        self.shadows = shadows

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(new for s in self.fused(self.contracted(body)) for new in self.statement(s))

    def contracted(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The statements without new matrices that are filled by one update and read in one place."""
        shapes = {s.target.name: s.shape for s in body if isinstance(s, ir.Alloc)}
        for s in body if shapes else ():
            update = self.update(s, shapes)
            if update is not None and update.array.name in shapes:
                body = self.without(body, update)
        return body

    def without(self, body: tuple[Stmt, ...], update: Update) -> tuple[Stmt, ...]:
        """The statements without the matrix of an update, if possible."""
        name = update.array.name
        allocated = [k for k, s in enumerate(body) if isinstance(s, ir.Alloc) and s.target.name == name]
        users = [k for k, s in enumerate(body) if name in _arrays_of(s) and k not in allocated]
        if len(allocated) != 1 or len(users) != 2 or body[users[0]] is not update.loops[0]:
            return body
        alloc, (first, last) = body[allocated[0]], users
        reads = [s for s in every(body[last : last + 1]) if _is_load_of(s, name)]
        mentions = [s for s in every(body[last : last + 1]) if name in _direct_names(s)]
        if not isinstance(alloc, ir.Alloc) or alloc.fill != constant(0.0, update.array.type.dtype):
            return body
        if len(reads) != 1 or mentions != reads or not isinstance(body[last], Loop):
            return body
        if not all(map(_is_cheap, (t for f, _ in update.factors for t in f))):  # the place may be in further loops
            return body
        used = {n.name for f, _ in update.factors for s in f for n in ir.walk(s) if isinstance(n, Var)}
        between = every(body[first + 1 : last + 1])
        if any(isinstance(s, ir.Launch) or getattr(written(s), "name", None) in used for s in between):
            return body
        kept = [s for k, s in enumerate(body) if k not in (first, last)]
        kept.insert(last - 1, self.with_product(body[last], reads[0], update))
        if not any(isinstance(n, Size) and n.array.name == name for s in kept for n in ir.walk(s)):
            kept.remove(alloc)
        return tuple(kept)

    def with_product(self, s: Any, read: Stmt, update: Update) -> Any:
        """A statement in which a product replaces the element that ``read`` loads."""
        blocks = {}
        for f in ("body", "then", "orelse"):
            block = getattr(s, f, None)
            if isinstance(block, tuple):
                blocks[f] = tuple(
                    new
                    for t in block
                    for new in (self.product_for(t, update) if t is read else (self.with_product(t, read, update),))
                )
        return replace(s, **blocks) if blocks else s

    def product_for(self, read: Any, update: Update) -> list[Stmt]:
        """The statements that compute an element of an update where it was loaded."""
        new: list[Stmt] = []
        values: list[Expr] = []
        at = dict(zip((v.name for v in update.statement.index), read.value.index))  # type: ignore[attr-defined]
        for statements, factor in update.factors:
            names: dict[str, Expr] = dict(at)
            names |= {v.name: self.names.variable(v.name, v.type) for t in statements for v in definitions(t)}
            new += [replace(t, line=read.line) for t in substitute(statements, names)]
            values.append(_atom(factor, names))
        return [*new, replace(read, value=Op("mul", tuple(values), read.target.type))]

    def fused(self, body: tuple[Stmt, ...]) -> list[Stmt]:
        """The statements, with several updates of one matrix fused where possible."""
        out: dict[int, Stmt] = dict(enumerate(body))
        last: dict[str, int] = {}
        for k, s in enumerate(body):
            update = self.update(s)
            if update is None:
                continue
            first = last.get(update.array.name)
            if first is not None and _can_wait(out[first], body[first + 1 : k], update.array.name):
                joined = self.joined(out[first], s)
                if joined is not None:
                    out[k] = joined
                    del out[first]
            last[update.array.name] = k
        return list(out.values())

    def joined(self, first: Any, second: Any) -> Stmt | None:
        """One nest for two that add to the same elements; None if the elements differ."""
        within, inner = first.body[-1], second.body[-1]
        names: dict[str, Expr] = {first.var.name: second.var, within.var.name: inner.var}
        added, adds = within.body[-1], inner.body[-1]
        if tuple(_atom(i, names) for i in added.index) != adds.index:
            return None
        total = self.names.variable("t", adds.array.type.dtype)
        value = Op("add", (_atom(added.value, names), adds.value), total.type)
        new = (ir.Assign(total, value, line=adds.line), replace(adds, value=total))
        body = (*substitute(within.body[:-1], names), *inner.body[:-1], *new)
        return replace(second, body=(*substitute(first.body[:-1], names), *second.body[:-1], replace(inner, body=body)))

    def statement(self, s: Stmt) -> Iterable[Stmt]:
        if not isinstance(s, Loop):
            return [ir.in_blocks(s, self.block)]
        updates = {k: update for k, t in enumerate(s.body) if (update := self.update(t)) and _is_alone(update, s)}
        if not updates or s.parallel or s.condition is not None:
            return [ir.in_blocks(s, self.block)]
        return self.in_strips(s, updates)

    def update(self, outer: Stmt, shapes: Mapping[str, tuple[Expr, ...]] | None = None) -> Update | None:
        """The rank-one update that a statement makes; None if it makes none.

        That is two loops over all elements of a matrix, to each of which they add a product of a number that depends on
        the row and one that depends on the column.  ``shapes`` has those of new matrices.
        """
        if not (isinstance(outer, Loop) and outer.body and isinstance(outer.body[-1], Loop)):
            return None
        inner = outer.body[-1]
        if not inner.body or not isinstance(s := inner.body[-1], ir.Accumulate) or s.array.name not in self.shadows:
            return None
        before = (*outer.body[:-1], *inner.body[:-1])
        places = {v: axis for axis, v in enumerate(s.index)}
        if not all(isinstance(t, ir.Assign) for t in before) or set(places) != {outer.var, inner.var}:
            return None
        shape = (shapes or {}).get(s.array.name, ())
        for loop in (outer, inner):
            stops = (Size(s.array, places[loop.var], INT), *shape[places[loop.var] :][:1])
            over_all = loop.start == ZERO and loop.stop in stops and loop.step == 1
            if not over_all or loop.carried or loop.condition is not None or loop.parallel:
                return None
        definitions_of = {t.target: t for t in before if isinstance(t, ir.Assign)}
        product = definitions_of.get(s.value) if isinstance(s.value, Var) else None
        if product is None or not isinstance(product.value, Op) or product.value.name != "mul":
            return None
        if any(a.type != s.array.type.dtype for a in product.value.args) or s.array.type.ndim != 2:
            return None
        factors = [(used_part(before, (a,)), a) for a in product.value.args]
        depends = [_depends((*statements, a), (outer.var, inner.var)) for statements, a in factors]
        if depends == [{inner.var}, {outer.var}]:
            factors.reverse()
        elif depends != [{outer.var}, {inner.var}]:
            return None
        return Update((outer, inner), s, (factors[0], factors[1]))

    def in_strips(self, s: Loop, updates: dict[int, Update]) -> list[Stmt]:
        rest = {k: self.statement(t) for k, t in enumerate(s.body) if k not in updates}
        self.to = to = Builder(self.names)
        to.line = s.line
        lowest, highest = (s.start, s.stop) if s.step == 1 else (s.stop, s.start)
        length = to.value(Op("max", (to.value(Op("sub", (highest, lowest), INT)), ZERO), INT), "trips")
        rows = to.value(Op("min", (length, Const(ROWS, INT)), INT), "rows")
        room = {k: self.room(update, rows) for k, update in updates.items()}
        last = to.value(Op("sub", (to.value(Op("add", (length, Const(ROWS, INT)), INT)), ONE), INT))
        count = to.value(Op("floordiv", (last, Const(ROWS, INT)), INT), "strips")
        strip = to.inner("strip", INT)
        changed = {a.name for pair in room.values() for a in pair} | {u.array.name for u in updates.values()}
        within: dict[str, Expr] = {c.var.name: to.fresh(c.var.name, c.var.type) for c in s.carried}
        with to.nested(changed) as block:
            done = to.value(Op("mul", (strip, Const(ROWS, INT)), INT))
            trips = to.value(Op("min", (to.value(Op("sub", (length, done), INT)), Const(ROWS, INT)), INT), "trips")
            moves = "add" if s.step == 1 else "sub"
            first = to.value(Op(moves, (s.start, done), INT))
            stop = to.value(Op(moves, (first, trips), INT))
            row = to.inner("row", INT)
            body: list[Stmt] = [ir.Assign(row, Op("sub", (s.var, first) if s.step == 1 else (first, s.var), INT))]
            for k in range(len(s.body)):
                body += self.store_factors(updates[k], row, room[k]) if k in updates else rest[k]
            inside = tuple(Carried(within[c.var.name], c.var, _atom(c.next, within)) for c in s.carried)
            to.emit(replace(s, start=first, stop=stop, body=substitute(tuple(body), within), carried=inside))
            for k, update in updates.items():
                self.add(update, room[k], trips, rows)
        carried = tuple(replace(c, next=within[c.var.name]) for c in s.carried)
        to.emit(Loop(strip.name, strip, ZERO, count, tuple(block.statements), carried, line=s.line))
        return to.block.statements

    def room(self, update: Update, rows: Expr) -> tuple[Var, Var]:
        """Matrices for the factors of ``rows`` updates."""
        found = []
        for loop, hint in zip(update.loops, ("left", "right")):
            matrix = self.to.fresh(hint, types.Array(update.array.type.dtype, 2, "C"))
            self.to.emit(ir.Alloc(matrix, (rows, loop.stop), None, line=self.to.line))
            found.append(matrix)
        return found[0], found[1]

    def store_factors(self, update: Update, row: Var, room: tuple[Var, Var]) -> list[Stmt]:
        """Store the factors of an update in a row of the matrices."""
        new: list[Stmt] = []
        for loop, (statements, factor), matrix in zip(update.loops, update.factors, room):
            definitions_of = [v for t in statements for v in definitions(t)]
            names: dict[str, Expr] = {v.name: self.to.fresh(v.name, v.type) for v in definitions_of}
            names[loop.var.name] = var = self.to.fresh(loop.var.name, INT)
            body = substitute(statements, names)
            value = _atom(factor, names)
            store = ir.Store(matrix, (row, var), value, line=loop.line)
            new.append(Loop(var.name, var, ZERO, loop.stop, (*body, store), independent=True, line=loop.line))
        return new

    def add(self, update: Update, room: tuple[Var, Var], trips: Expr, rows: Expr) -> None:
        """Add the product of the matrices to the array; unused rows become zero."""
        to, array = self.to, update.array
        for loop, matrix in zip(update.loops, room):
            k = to.inner("k", INT)
            with to.nested({matrix.name}) as rest:
                i = to.inner("i", INT)
                with to.nested({matrix.name}) as block:
                    to.store(matrix, (k, i), constant(0, array.type.dtype))
                to.emit(Loop(i.name, i, ZERO, loop.stop, tuple(block.statements), independent=True, line=to.line))
            to.emit(Loop(k.name, k, trips, rows, tuple(rest.statements), independent=True, line=to.line))
        product = to.fresh("product", types.Array(array.type.dtype, 2, "C"))
        to.emit(ir.Alloc(product, tuple(loop.stop for loop in update.loops), None, line=to.line))
        to.emit(ir.Fill(product, "dot_of_turned", room, line=to.line))
        axes = [update.loops[n].var for n in (0, 1)]

        def element(index: tuple[Expr, ...]) -> None:
            at = dict(zip(axes, index))
            to.accumulate(array, tuple(at[v] for v in update.statement.index), to.load(product, index))

        to.over(product, element, {array.name})


def _can_wait(update: Stmt, others: tuple[Stmt, ...], array: str) -> bool:
    """Return whether an update of an array can be moved after other statements."""
    used = _arrays_of(update)
    if any(array in _arrays_of(s) for s in others):
        return False
    return not any(isinstance(s, ir.Launch) or getattr(written(s), "name", None) in used for s in every(others))


def _is_alone(update: Update, s: Loop) -> bool:
    """Return whether no other statement in a loop touches the array."""
    return all(update.array.name not in _arrays_of(t) for t in s.body if t is not update.loops[0])


def _is_load_of(s: Stmt, array: str) -> bool:
    """Return whether a statement loads an element of an array."""
    return isinstance(s, ir.Assign) and isinstance(s.value, ir.Load) and s.value.array.name == array


def _is_cheap(s: Stmt) -> bool:
    """Return whether a statement loads an element or makes a simple operation."""
    value = s.value if isinstance(s, ir.Assign) else None
    return isinstance(value, ir.Load) or (isinstance(value, Op) and TABLE[value.name].cost == 1)


def _direct_names(s: Stmt) -> set[str]:
    """The names in a statement itself, without those in the blocks inside it."""
    blocks = {f: () for f in ("body", "then", "orelse") if isinstance(getattr(s, f, None), tuple)}
    return _arrays_of(replace(s, **blocks)) if blocks else _arrays_of(s)  # type: ignore[type-var]


def _arrays_of(s: Stmt) -> set[str]:
    """The names in a statement, except those of arrays of which it only reads the size."""
    found = set()
    waiting: list[object] = [s]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Size):
            continue
        if isinstance(node, Var):
            found.add(node.name)
        waiting.extend(ir.children(node))
    return found


def _depends(values: Iterable[Stmt | Expr], counters: tuple[Var, Var]) -> set[Var]:
    names = {name for v in values for name in (names_read(v) if isinstance(v, Stmt) else {getattr(v, "name", "")})}
    return {c for c in counters if c.name in names}


def _atom(value: Expr, names: dict[str, Expr]) -> Expr:
    return names.get(value.name, value) if isinstance(value, Var) else value
