"""Strip mining: loops that add to indirectly addressed elements, in strips whose arithmetic can be vectorised.

``x_bar[index[i]] += …`` prevents a compiler from vectorising a loop, since two iterations may add to one element.  This
pass cuts the iterations into strips of some dozens.  For each strip

* a first loop copies indirectly addressed elements to a buffer in the cache (gather instructions are no faster, and
  much slower on some processors);
* a second loop, with only independent arithmetic on adjacent elements, stores the increments in another buffer;
* further loops add them up.

Sums over the iterations and increments of neighbouring elements (stencils) are postponed likewise, and so are other
values passed from one iteration to the next if nothing else depends on them: a minimum and its tangent, for one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.reduction_recognition import addition
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Block
from ampi.kernel.ir.intrinsics import TABLE, constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import map_expression, substitute
from ampi.kernel.ir.remarks import Kind, Remark
from ampi.kernel.ir.ssa import INT, ZERO, Carried, Loop, names_read, reads, written
from ampi.kernel.optimise.if_conversion import flatten
from ampi.kernel.optimise.innermost import InnermostLoops, array_of, index_of, used_part
from ampi.kernel.optimise.unsigned_indices import in_block

BUFFER_BYTES = 16384
SMALLEST, LARGEST = 16, 256  # iterations in a strip
LANES_SHIFT = 3
LANES = 1 << LANES_SHIFT  # partial sums
MAX_CHECKS = 3  # rows of one array that may overlap; LLVM makes at most 8 such checks when the program runs
WIDEST = 8  # distance of the elements of one row whose increments are added together


def in_strips(
    function: ir.Function, names: Names, reassociate: bool, in_order: bool = False
) -> tuple[ir.Function, list[Remark]]:
    """Cut independent loops of a function (in single assignment form) into strips where that pays; with remarks.

    ``reassociate``: the compiler may add in another order, so that it can vectorise sums.  ``in_order``: this pass must
    keep the order of additions.
    """
    pass_ = _Strips(function, names, reassociate, in_order)
    return pass_.run(function), pass_.remarks


@dataclass(frozen=True)
class Increment:
    """``array[index] += amount``, or a store to one of many rows of an array, made after the arithmetic.

    ``adjacent``: the index moves with the loop.
    """

    statement: ir.Accumulate | ir.Store
    adjacent: bool


Group = list[tuple[Increment, int]]  # increments of one row, with the distance from the lowest


@dataclass(frozen=True)
class Sum:
    carried: Carried
    amount: Expr


@dataclass(frozen=True)
class Chain:
    """Scalars that each iteration computes from those of the previous one: by ``body``, which also takes ``inputs`` and
    recomputes the conditions named ``repeated``."""

    carried: tuple[Carried, ...]
    body: tuple[ir.Assign, ...]
    inputs: tuple[Var, ...]
    repeated: frozenset[str]


@dataclass
class Partition:
    """The parts into which a loop is divided.

    ``gather`` are loads of elements that are not adjacent, and stores of zeros to such elements; ``body`` is the
    arithmetic; ``postponed``, ``sums`` and ``chain`` come last.  ``rows`` and ``gathered`` are the distinct values that
    are stored in buffers, by type.
    """

    loop: Loop
    whole: tuple[Stmt, ...]
    gather: list[Stmt]
    body: tuple[Stmt, ...]
    postponed: list[Increment]
    sums: list[Sum]
    chain: Chain
    rows: dict[Any, list[Expr]]
    gathered: dict[Any, list[Expr]]

    def length(self) -> int:
        """Iterations in a strip: a power of two, so that the buffers stay in the cache."""
        buffers = (*self.rows.items(), *self.gathered.items())
        size = sum(ty.bitwidth // 8 * len(values) for ty, values in buffers)
        length = LARGEST
        while length > SMALLEST and length * size > BUFFER_BYTES:
            length //= 2
        return length


class _Strips(InnermostLoops):
    def __init__(self, function: ir.Function, names: Names, reassociate: bool, in_order: bool) -> None:
        super().__init__(function, names)
        self.reassociate = reassociate
        self.in_order = in_order and not reassociate

    def loop(self, s: Loop) -> list[Stmt]:
        """An innermost loop in strips, or unchanged if that does not pay."""
        if not s.independent or s.step != 1 or not tbr.is_nonnegative(s.start, self.accesses):
            return [s]
        partition = self.partition(s)
        return [s] if partition is None else self.strips(partition)

    # partition

    def partition(self, s: Loop) -> Partition | None:
        """Divide a loop into parts; None where that is impossible or does not pay."""
        body = flatten(s.body, self.names)
        if not all(isinstance(t, (ir.Assign, ir.Store, ir.Accumulate)) for t in body):
            return None
        amounts = [None if self.in_order else addition(c, body) for c in s.carried]
        sums = [Sum(c, a) for c, a in zip(s.carried, amounts) if a is not None]
        chain = chain_of(tuple(c for c, a in zip(s.carried, amounts) if a is None), body, sums)
        postponed = self.to_postpone(s, body)
        gather = self.to_gather(s, body)
        if chain is None or postponed is None or gather is None:
            return None
        if not (postponed or gather or chain.carried or (sums and not self.reassociate)):
            return None
        postponed += self.stores_to_postpone(s, body)
        later = (t for t in chain.body if t.target.name not in chain.repeated)
        separate = {id(x.statement) for x in postponed} | {id(t) for t in (*gather, *later)}
        nexts = {x.carried.next for x in sums}
        rest = [t for t in body if id(t) not in separate and not (isinstance(t, ir.Assign) and t.target in nexts)]
        amounts_kept = [x.amount for x in sums if not self.reassociate]
        rows = by_type([*(x.statement.value for x in postponed), *amounts_kept, *chain.inputs])
        gathered = by_type([t.target for t in gather if isinstance(t, ir.Assign)])
        needed = used_part(rest, [*(a for row in rows.values() for a in row), *(x.amount for x in sums)])
        partition = Partition(s, body, gather, needed, postponed, sums, chain, rows, gathered)
        return partition if self.pays(partition) else None

    def crowded(self, s: Loop, body: tuple[Stmt, ...]) -> set[str]:
        """The arrays that are written and accessed at more places than compilers check for overlap."""
        places: dict[str, set[Any]] = defaultdict(set)
        for t in body:
            if array_of(t) is not None:
                places[array_of(t)].add(self.place(t, s))
        names = {w.name for t in body if (w := written(t)) is not None and len(places[w.name]) > 1}
        separate = {n for n in names if _different_rows(places[n])}
        checks = sum(len(places[n]) * (len(places[n]) - 1) // 2 for n in separate)
        return names - separate if checks <= MAX_CHECKS else names

    def to_gather(self, s: Loop, body: tuple[Stmt, ...]) -> list[Stmt] | None:
        """Loads of numbers that are not adjacent, and zeros stored there; None if other values are stored.

        The same goes for arrays that are written and accessed at more places than compilers check for overlap.
        """
        crowded = self.crowded(s, body)

        def beside(t: Stmt) -> bool:
            return (self.place(t, s) is not None or self.is_fixed(t, s)) and array_of(t) not in crowded

        index = {a.name for t in body for a in index_of(t) if isinstance(a, Var)}
        index |= {t.target.name for t in self.slice(tuple(Var(n, INT) for n in index), body)}
        found: list[Stmt] = []
        scattered: set[str] = set()
        for t in body:
            match t:
                case ir.Assign(target=target, value=ir.Load()) if not beside(t) and target.name not in index:
                    found.append(t)
                case ir.Store(value=Const()) if not beside(t):
                    found.append(t)
                case ir.Store(array=array) if not beside(t):
                    scattered.add(array.name)
        arrays = {array_of(t) for t in found}
        if arrays & scattered or any(beside(t) and array_of(t) in arrays for t in body if isinstance(t, ir.Store)):
            return None
        stored = {w.name for t in body if (w := written(t)) is not None}
        slices = self.slice(tuple(i for t in found for i in index_of(t)), body)
        return None if any(array_of(t) in stored for t in slices) else found

    def pays(self, partition: Partition) -> bool:
        """Return whether the arithmetic outweighs the traffic with the buffers."""
        numbers = (types.Float, types.Complex)
        work = sum(
            TABLE[t.value.name].cost
            for t in partition.body
            if isinstance(t, ir.Assign) and isinstance(t.value, Op) and isinstance(t.value.type, numbers)
        )
        traffic = sum(len(values) for rows in (partition.rows, partition.gathered) for values in rows.values())
        return work >= max(1, 2 * traffic)

    def to_postpone(self, s: Loop, body: tuple[Stmt, ...]) -> list[Increment] | None:
        """The increments that prevent vectorisation."""
        crowded = self.crowded(s, body)
        touched: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        for k, t in enumerate(body):
            array = t.value.array if isinstance(t, ir.Assign) and isinstance(t.value, ir.Load) else written(t)
            if array is not None:
                touched[array.name].append((k, t))
        found = []
        for accesses in touched.values():
            increments = [(k, t) for k, t in accesses if isinstance(t, ir.Accumulate)]
            if not increments:
                continue
            places = {self.place(t, s) for _, t in accesses}
            if None not in places and accesses[0][1] is not None and array_of(accesses[0][1]) not in crowded:
                continue
            last = max((k for k, t in accesses if not isinstance(t, ir.Accumulate)), default=-1)
            if last > increments[0][0] or any(not self.can_repeat(t, body) for _, t in increments):
                return None
            found += [Increment(t, self.place(t, s) is not None and not self.in_order) for _, t in increments]
        return found

    def stores_to_postpone(self, s: Loop, body: tuple[Stmt, ...]) -> list[Increment]:
        """The stores to arrays that are not read, which compilers cannot prove not to overlap.

        They go to many rows, or to elements that are not adjacent.
        """
        crowded = self.crowded(s, body)
        stores = [
            t
            for t in body
            if isinstance(t, ir.Store) and (t.array.name in crowded or not (self.place(t, s) or self.is_fixed(t, s)))
        ]
        kept = {array_of(t) for t in body if not any(t is u for u in stores)}
        kept |= {t.array.name for t in stores if not isinstance(t.value, Var) or not self.can_repeat(t, body)}
        return [Increment(t, False) for t in stores if t.array.name not in kept]

    def can_repeat(self, t: ir.Accumulate | ir.Store, body: tuple[Stmt, ...]) -> bool:
        """Return whether the index of an increment can be recomputed after the strip."""
        stored = {w.name for u in body if (w := written(u)) is not None}
        return all(
            not isinstance(u.value, ir.Load) or u.value.array.name not in stored for u in self.slice(t.index, body)
        )

    def slice(self, atoms: tuple[Expr, ...], body: tuple[Stmt, ...]) -> list[ir.Assign]:
        """The statements of a body that compute some atoms."""
        names = {n.name for a in atoms for n in ir.walk(a) if isinstance(n, Var)}
        found: list[ir.Assign] = []
        for t in reversed(body):
            if isinstance(t, ir.Assign) and t.target.name in names:
                names |= names_read(t)
                found.append(t)
        return found[::-1]

    # writing

    def strips(self, partition: Partition) -> list[Stmt]:
        s, length = partition.loop, partition.length()
        self.line = s.line
        if not s.parallel:
            self.stack = [Block()]
            increments, gathered = self.buffers(partition, length)
            self.buffers_of[-1] += self.block.statements
        self.stack = [Block()]  # nothing that is computed for another loop is known here
        span = self.op("add", self.op("sub", s.stop, s.start), constant(length - 1, INT))
        count = self.op("rshift", span, constant(length.bit_length() - 1, INT))
        number = self.inner("strip", INT)
        with self.nested() as strip:
            first = self.op("add", s.start, self.op("mul", number, constant(length, INT)))
            trips = self.op("min", self.op("sub", s.stop, first), constant(length, INT))
            if s.parallel:  # each thread has its own
                increments, gathered = self.buffers(partition, length)
            work = _Strip(self, partition, length, first, trips, increments, gathered)
            if partition.gather:
                work.gathering()
            totals = work.arithmetic()
            groups = self.groups(partition)
            work.clear_ends(groups)
            for group in groups:
                work.adding_adjacent(group)
            scattered = [x for x in partition.postponed if not x.adjacent]
            if scattered:
                work.adding(scattered)
            if not self.reassociate:
                totals = [work.summing(x) for x in partition.sums]
            ends = work.chaining() if partition.chain.carried else []
        around = [x.carried for x in partition.sums] + list(partition.chain.carried)
        carried = tuple(replace(c, next=after) for c, after in zip(around, (*totals, *ends), strict=True))
        self.emit(
            Loop(number.name, number, ZERO, count, tuple(strip.statements), carried, parallel=s.parallel, line=s.line)
        )
        counts = {
            "gathered": len(partition.gather),
            "increments": len(partition.postponed),
            "sums": len(partition.sums),
        }
        self.remarks.append(Remark.of(Kind.STRIPS, s.line, length=length, **counts))
        return self.block.statements

    def buffers(self, partition: Partition, length: int) -> tuple[dict[Any, Var], dict[Any, Var]]:
        width = length + 2 * self.padding(partition)
        increments = {ty: self.buffer("increments", ty, len(row) * width) for ty, row in partition.rows.items()}
        gathered = {ty: self.buffer("gathered", ty, len(row) * width) for ty, row in partition.gathered.items()}
        return increments, gathered

    def groups(self, partition: Partition) -> list[Group]:
        """Adjacent increments of the same row of an array, with their distances from the first element touched."""
        rows: dict[Any, list[tuple[Increment, int]]] = defaultdict(list)
        for x in partition.postponed:
            if x.adjacent:
                place = self.place(x.statement, partition.loop)
                assert place is not None
                offset, terms = place[-1]
                key = x.statement.array.name, place[:-1], terms, offset.denominator == 1 or id(x)
                rows[key].append((x, int(offset) if offset.denominator == 1 else 0))
        groups = []
        for members in rows.values():
            lowest = min(offset for _, offset in members)
            if max(offset for _, offset in members) - lowest <= WIDEST:
                groups.append([(x, offset - lowest) for x, offset in members])
            else:
                groups += [[(x, 0)] for x, _ in members]
        return groups

    def padding(self, partition: Partition) -> int:
        """The number of zeros around a row of the buffer, so that increments of neighbours can be read shifted.

        Rows begin at cache lines, since storing vectors across these is slow.
        """
        span = max((offset for group in self.groups(partition) for _, offset in group), default=0)
        needed = max(span, LANES - 1 if partition.sums and not self.reassociate else 0)
        return (needed + LANES - 1) // LANES * LANES


@dataclass
class _Strip:
    """Writes the loops of one strip, which begins at iteration ``first`` and has ``trips`` iterations."""

    to: _Strips
    partition: Partition
    length: int
    first: Expr
    trips: Expr
    increments: dict[Any, Var]
    gathered: dict[Any, Var]

    def cell(self, rows: dict[Any, list[Expr]], value: Expr, k: Expr, shift: int = 0) -> Expr:
        """The place in its buffer of a value of iteration ``k - shift`` of the strip."""
        padding = self.to.padding(self.partition)
        begin = rows[value.type].index(value) * (self.length + 2 * padding) + padding - shift
        return self.to.op("add", constant(begin, INT), k)

    def loop(self, write: Any, carried: tuple[Carried, ...] = ()) -> None:
        """``for k in range(trips)``, with a body written by ``write(k, number of the iteration)``."""
        k = self.to.inner("k", INT)
        with self.to.nested() as block:
            write(k, self.to.op("add", self.first, k))
        s = self.partition.loop
        self.to.emit(Loop(k.name, k, ZERO, self.trips, tuple(block.statements), carried, line=s.line))

    def repeat_indices(self, statements: list[Stmt], own: Expr) -> dict[str, Expr]:
        """Recompute the indices of statements; returns the values of the names in them."""
        to, partition = self.to, self.partition
        needed = to.slice(tuple(i for t in statements for i in index_of(t)), partition.whole)
        new: dict[str, Expr] = {t.target.name: to.fresh(t.target.name, t.target.type) for t in needed}
        new[partition.loop.var.name] = own
        for t in substitute(in_block(tuple(needed), to.accesses), new):
            to.emit(t)
        return new

    def gathering(self) -> None:
        def write(k: Var, own: Expr) -> None:
            new = self.repeat_indices(self.partition.gather, own)
            for t in self.partition.gather:
                if isinstance(t, ir.Assign):
                    new[t.target.name] = self.to.fresh(t.target.name, t.target.type)
                (moved,) = substitute(in_block((t,), self.to.accesses), new)
                self.to.emit(moved)
                if isinstance(t, ir.Assign):
                    cell = self.cell(self.partition.gathered, t.target, k)
                    self.to.emit(ir.Store(self.gathered[t.target.type], (cell,), moved.target, line=t.line))

        self.loop(write)

    def arithmetic(self) -> list[Expr]:
        """Write the loop with the arithmetic, and with its sums if the compiler vectorises them; returns the sums."""
        partition, to = self.partition, self.to
        sums = partition.sums if to.reassociate else []
        totals = [to.inner(x.carried.var.name, x.carried.var.type) for x in sums]
        following = [to.fresh(x.carried.var.name, x.carried.var.type) for x in sums]

        def write(k: Var, own: Expr) -> None:
            for ty, row in partition.gathered.items():
                for target in row:
                    load = ir.Load(self.gathered[ty], (self.cell(partition.gathered, target, k),), ty)
                    to.emit(ir.Assign(target, load, line=partition.loop.line))
            for t in substitute(in_block(partition.body, to.accesses), {partition.loop.var.name: own}):
                to.emit(t)
            for ty, row in partition.rows.items():
                for amount in row:
                    to.emit(
                        ir.Store(
                            self.increments[ty],
                            (self.cell(partition.rows, amount, k),),
                            amount,
                            line=partition.loop.line,
                        )
                    )
            for x, total, after in zip(sums, totals, following):
                to.emit(ir.Assign(after, Op("add", (total, x.amount), after.type), line=partition.loop.line))

        self.loop(write, tuple(Carried(t, x.carried.var, a) for x, t, a in zip(sums, totals, following)))
        return list(totals)

    def chaining(self) -> list[Expr]:
        """Write the serial loop of the chain; returns the scalars after the strip."""
        chain, to = self.partition.chain, self.to
        inner = [to.inner(c.var.name, c.var.type) for c in chain.carried]
        after: list[Expr] = []

        def write(k: Var, own: Expr) -> None:
            new: dict[str, Expr] = {c.var.name: v for c, v in zip(chain.carried, inner)}
            new[self.partition.loop.var.name] = own
            for v in chain.inputs:
                new[v.name] = to.load(self.increments[v.type], (self.cell(self.partition.rows, v, k),))
            for t in chain.body:
                new[t.target.name] = to.fresh(t.target.name, t.target.type)
            for t in substitute(chain.body, new):
                to.emit(t)
            after.extend(map_expression(c.next, lambda v: new.get(v.name, v)) for c in chain.carried)

        k = to.inner("k", INT)
        with to.nested() as block:
            write(k, to.op("add", self.first, k))
        carried = tuple(Carried(v, c.var, e) for v, c, e in zip(inner, chain.carried, after))
        to.emit(Loop(k.name, k, ZERO, self.trips, tuple(block.statements), carried, line=self.partition.loop.line))
        return list(inner)

    def clear_ends(self, groups: list[Group]) -> None:
        """Set the buffer to zero after the last iteration of the strip, where increments of neighbours are read."""
        last: dict[Expr, int] = {}
        for group in groups:
            span = max(offset for _, offset in group)
            for x, _ in group:
                last[x.statement.value] = max(span, last.get(x.statement.value, 0))
        for amount, span in last.items():
            for n in range(span):
                cell = self.cell(self.partition.rows, amount, self.trips, -n)
                buffer = self.increments[amount.type]
                self.to.emit(ir.Store(buffer, (cell,), constant(0, amount.type), line=self.partition.loop.line))

    def adding_adjacent(self, group: Group) -> None:
        """A loop over the touched elements of a row that adds all increments to each."""
        to, span = self.to, max(offset for _, offset in group)
        lowest = next(x for x, offset in group if offset == 0)
        k = to.inner("k", INT)
        with to.nested() as block:
            new = self.repeat_indices([lowest.statement], to.op("add", self.first, k))
            total: Expr | None = None
            for x, offset in group:
                amount = x.statement.value
                value = to.load(self.increments[amount.type], (self.cell(self.partition.rows, amount, k, offset),))
                total = value if total is None else to.value(Op("add", (total, value), amount.type))
            (plain,) = substitute(in_block((replace(lowest.statement, value=total),), to.accesses), new)
            to.emit(plain)
        length = to.op("add", self.trips, constant(span, INT))
        to.emit(Loop(k.name, k, ZERO, length, tuple(block.statements), line=self.partition.loop.line))

    def adding(self, postponed: list[Increment]) -> None:
        def write(k: Var, own: Expr) -> None:
            new = self.repeat_indices([x.statement for x in postponed], own)
            for x in postponed:
                amount = x.statement.value
                value = self.to.load(self.increments[amount.type], (self.cell(self.partition.rows, amount, k),))
                (plain,) = substitute(in_block((replace(x.statement, value=value),), self.to.accesses), new)
                self.to.emit(plain)

        self.loop(write)

    def summing(self, x: Sum) -> Expr:
        """Write a sum as several partial sums, so that additions do not wait for one another; returns the total."""
        to, buffer = self.to, self.increments[x.amount.type]
        for n in range(LANES - 1):
            cell = self.cell(self.partition.rows, x.amount, self.trips, -n)
            to.emit(ir.Store(buffer, (cell,), constant(0, x.amount.type), line=self.partition.loop.line))
        parts = [to.inner(x.carried.var.name, x.carried.var.type) for _ in range(LANES)]
        k = to.inner("k", INT)
        with to.nested() as block:
            first = to.op("mul", k, constant(LANES, INT))
            values = [to.load(buffer, (self.cell(self.partition.rows, x.amount, first, -n),)) for n in range(LANES)]
            after = [to.value(Op("add", (part, value), part.type)) for part, value in zip(parts, values)]
        carried = tuple(Carried(part, constant(0, part.type), a) for part, a in zip(parts, after))
        groups = to.op("rshift", to.op("add", self.trips, constant(LANES - 1, INT)), constant(LANES_SHIFT, INT))
        to.emit(Loop(k.name, k, ZERO, groups, tuple(block.statements), carried, line=self.partition.loop.line))
        totals: list[Expr] = list(parts)
        while len(totals) > 1:
            totals = [to.value(Op("add", pair, x.amount.type)) for pair in zip(totals[::2], totals[1::2])]
        return to.value(Op("add", (x.carried.var, totals[0]), x.amount.type))


def _different_rows(places: set[Any]) -> bool:
    """Return whether places are in different rows, by literal indices: ``a[0, i]``, ``a[1, i]`` and so on."""
    if None in places or len({p[-1] for p in places}) != 1:
        return False
    rows = [p[:-1] for p in places]
    return all(any(x[1] == y[1] and x[0] != y[0] for x, y in zip(a, b)) for a in rows for b in rows if a is not b)


def chain_of(carried: tuple[Carried, ...], body: tuple[Stmt, ...], sums: list[Sum]) -> Chain | None:
    """The computation of some carried scalars from those of the previous iteration; None if anything else reads
    them."""
    definitions = {t.target.name: t for t in body if isinstance(t, ir.Assign)}
    within = {c.var.name for c in carried}
    for t in body:
        if names_read(t) & within:
            if not isinstance(t, ir.Assign) or isinstance(t.value, ir.Load):
                return None
            within.add(t.target.name)
    if any(isinstance(x.amount, Var) and x.amount.name in within for x in sums):
        return None
    tail = [t for t in body if isinstance(t, ir.Assign) and t.target.name in within]
    while True:  # conditions are recomputed instead of being stored in buffers
        taken = {v.name: v for t in tail for e in reads(t) for v in ir.walk(e) if isinstance(v, Var)}
        taken |= {c.next.name: c.next for c in carried if isinstance(c.next, Var)}
        inputs = [v for n, v in taken.items() if n in definitions and not any(t.target.name == n for t in tail)]
        repeat_indices = {v.name for v in inputs if not isinstance(v.type, (types.Float, types.Complex, types.Integer))}
        if any(isinstance(definitions[n].value, ir.Load) for n in repeat_indices):
            return None
        if not repeat_indices:
            break
        chosen = repeat_indices | {t.target.name for t in tail}
        tail = [t for t in body if isinstance(t, ir.Assign) and t.target.name in chosen]
    repeated = frozenset(t.target.name for t in tail) - within
    return Chain(carried, tuple(tail), tuple(inputs), repeated)


def by_type(values: list[Expr]) -> dict[Any, list[Expr]]:
    """The distinct values, by type."""
    rows: dict[Any, list[Expr]] = {}
    for value in values:
        row = rows.setdefault(value.type, [])
        if value not in row:
            row.append(value)
    return rows
