"""Which adjoint loops may run on several threads.

The iterations of a primal ``prange`` are independent, but those of its adjoint need not be: an element that two
iterations read gets increments from both.  An adjoint loop stays parallel if every element that it writes is touched
by one iteration only, which is shown

* by the index: it is affine in the loop's counter and differs from iteration to iteration;
* by the primal: an element that an iteration of a ``prange`` assigns is no other iteration's business, so neither is
  its shadow;

and if all that it carries are sums.  Where elements that several iterations touch are only added to, each thread
adds into an array of its own; these are added up afterwards (in a fixed order: the same number of threads gives the
same bits).  A loop that is short in comparison with such arrays, and any other loop, runs on one thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir, tbr
from ampi.kernel.intrinsics import constant
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ssa import (
    INT,
    ONE,
    ZERO,
    Branch,
    Builder,
    Carried,
    Join,
    Loop,
    Names,
    blocks,
    definitions,
    every,
    names_read,
    reads,
    rebuild,
    renamed,
    written,
)

COST_OF_AN_ELEMENT = 4  # of a thread's own array, in operations of the loop
LENGTH_OF_AN_INNER_LOOP = 32


def decide(function: ir.Function, names: Names, threads: bool) -> tuple[ir.Function, list[str]]:
    """The program (in single assignment form) with only the loops marked parallel that may be, and the reasons."""
    if not threads:
        return replace(function, body=_all_serial(function.body)), []
    deciding = _Deciding(tbr.collect(function), names)
    return replace(function, body=deciding.block(function.body)), deciding.facts


def _all_serial(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            s = replace(s, parallel=False, body=_all_serial(s.body))
        elif isinstance(s, Branch):
            s = replace(s, then=_all_serial(s.then), orelse=_all_serial(s.orelse))
        out.append(s)
    return tuple(out)


class _Deciding:
    def __init__(self, accesses: tbr.Accesses, names: Names) -> None:
        self.accesses = accesses
        self.names = names
        self.facts: list[str] = []

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop) and s.parallel:
                out += self.parallel_loop(s)
                continue
            if isinstance(s, Loop):
                s = replace(s, body=self.block(s.body))
            elif isinstance(s, Branch):
                s = replace(s, then=self.block(s.then), orelse=self.block(s.orelse))
            out.append(s)
        return tuple(out)

    def parallel_loop(self, s: Loop) -> list[Stmt]:
        """What becomes of a ``prange``."""
        reason = self.obstacle(s)
        met = [] if reason else self.met(s)
        serial = replace(s, parallel=False, body=_all_serial(s.body))
        if reason is None and not met:
            self.facts.append(f"line {s.line}: parallel")
            return [replace(serial, parallel=True)]
        others = [a for a in met if not self.is_only_added_to(a, s)]
        if others:
            reason = f"iterations meet in elements of {', '.join(others)}"
        if reason is not None:
            self.facts.append(f"line {s.line}: on one thread: {reason}")
            return [replace(s, parallel=False, body=self.block(s.body))]
        self.facts.append(f"line {s.line}: parallel, with arrays of each thread's own for {', '.join(met)}")
        return _Private(serial, [self.array(a, s) for a in met], self.names).statements()

    def array(self, name: str, s: Loop) -> Var:
        return next(w for t in every(s.body) if (w := written(t)) is not None and w.name == name)

    def is_only_added_to(self, array: str, s: Loop) -> bool:
        accesses = [a for a in self.accesses.of[array] if any(around is s for around in a.loops)]
        return all(isinstance(a.statement, ir.Accumulate) for a in accesses)

    def obstacle(self, s: Loop) -> str | None:
        """Why a loop cannot run on several threads, whatever its arrays are."""
        for c in s.carried:
            if addition(c, s.body) is None:
                return f"{c.var.name} is carried from one iteration to the next"
        inside = {v.name for t in every(s.body) for v in definitions(t)}
        if any(isinstance(t, ir.Grow) and t.target.name not in inside for t in every(s.body)):
            return "it saves values whose number is not known"
        return None

    def met(self, s: Loop) -> list[str]:
        """The arrays in whose elements iterations meet."""
        inside = {v.name for t in every(s.body) for v in definitions(t)}
        arrays = {w.name for t in every(s.body) if (w := written(t)) is not None} - inside
        return [array for array in sorted(arrays) if not self.is_private(array, s)]

    def is_private(self, array: str, s: Loop) -> bool:
        """Whether each element of an array that the loop writes is touched by one iteration only."""
        accesses = [a for a in self.accesses.of[array] if any(around is s for around in a.loops)]
        assigned = self.assigned(array, s.body)
        level = next(k for k, around in enumerate(accesses[0].loops) if around is s)
        for w in accesses:
            if w.is_load or _place(w.index) in assigned:
                continue
            for other in accesses:
                if _place(other.index) in assigned:
                    continue
                common = tbr.common_loops(w, other)
                if tbr.may_overlap(w, other, common, level, self.accesses):
                    return False
                if tbr.may_overlap(other, w, common, level, self.accesses):
                    return False
        return True

    def assigned(self, array: str, body: tuple[Stmt, ...]) -> set[Any]:
        """The places which every iteration assigns."""
        found = set()
        for t in body:
            if isinstance(t, ir.Store) and t.array.name == array:
                found.add(_place(t.index))
            for block in blocks(t) if isinstance(t, Loop) else ():
                found |= self.assigned(array, block)
        return found


class _Private(Builder):
    """Writes a loop in as many parts as there are threads, each of which adds into arrays of its own."""

    def __init__(self, loop: Loop, arrays: list[Var], names: Names) -> None:
        super().__init__(names)
        self.loop, self.arrays = loop, arrays
        self.line = loop.line

    def op(self, name: str, *args: Expr) -> Expr:
        return self.value(Op(name, args, INT))

    def statements(self) -> list[Stmt]:
        """The loop on threads if it is long enough to pay for the arrays, and otherwise as it is."""
        s = self.loop
        sizes = {a.name: [Size(a, k, INT) for k in range(a.type.ndim)] for a in self.arrays}
        total: Expr = ZERO
        for extents in sizes.values():
            size: Expr = ONE
            for e in extents:
                size = self.op("mul", size, e)
            total = self.op("add", total, size)
        span = self.op("max", self.op("sub", s.stop, s.start), ZERO)
        work = self.op("mul", span, Const(_work(s.body), INT))
        cost = self.op("mul", total, Const(COST_OF_AN_ELEMENT, INT))
        pays = self.value(Op("ge", (work, cost), types.boolean))
        with self.nested() as serial:
            (alone,) = renamed((s,), self.names)
            self.emit(alone)
        with self.nested() as threaded:
            self.threaded(span, sizes)
        joins = tuple(
            Join(c.var, Var(self.totals[c.var.name].name, c.var.type), d.var) for c, d in zip(s.carried, alone.carried)
        )
        self.emit(Branch(pays, tuple(threaded.statements), tuple(serial.statements), joins, line=s.line))
        return self.block.statements

    def threaded(self, span: Expr, sizes: dict[str, list[Expr]]) -> None:
        s = self.loop
        threads = self.op("threads")
        own = {}
        for a in self.arrays:
            ty = types.Array(a.type.dtype, a.type.ndim + 1, "C")
            own[a.name] = self.fresh(a.name, ty)
            fill = constant(0, a.type.dtype)
            self.emit(ir.Alloc(own[a.name], (threads, *sizes[a.name]), fill, line=s.line))
        self.totals = {c.var.name: self.inner(c.var.name, c.var.type) for c in s.carried}
        t = self.inner("thread", INT)
        with self.nested() as block:
            begin = self.op("add", s.start, self.op("floordiv", self.op("mul", span, t), threads))
            following = self.op("mul", span, self.op("add", t, ONE))
            end = self.op("add", s.start, self.op("floordiv", following, threads))
            (part,) = renamed((s,), self.names)
            assert isinstance(part, Loop)
            body = _into(part.body, {a.name: (own[a.name], t) for a in self.arrays})
            inner = tuple(replace(c, init=constant(0, c.var.type)) for c in part.carried)
            self.emit(replace(part, start=begin, stop=end, body=body, carried=inner, independent=True))
            after = [
                self.value(Op("add", (self.totals[c.var.name], d.var), c.var.type)) for c, d in zip(s.carried, inner)
            ]
        carried = tuple(Carried(self.totals[c.var.name], c.init, a) for c, a in zip(s.carried, after))
        self.emit(Loop(t.name, t, ZERO, threads, tuple(block.statements), carried, parallel=True, line=s.line))
        for a in self.arrays:
            self.add_up(own[a.name], a, threads, sizes[a.name])

    def add_up(self, own: Var, array: Var, threads: Expr, extents: list[Expr]) -> None:
        """``array += own[t]`` for all threads t."""

        def level(index: tuple[Expr, ...]) -> None:
            if len(index) == 1 + len(extents):
                self.accumulate(array, index[1:], self.load(own, index))
                return
            i = self.inner("i", INT)
            stop = threads if not index else extents[len(index) - 1]
            with self.nested({array.name}) as block:
                level((*index, i))
            last = len(index) == len(extents)
            self.emit(Loop(i.name, i, ZERO, stop, tuple(block.statements), independent=last, line=self.line))

        level(())


def _work(body: tuple[Stmt, ...]) -> int:
    """About how many operations an iteration has, with a guess for the length of inner loops."""
    work = 0
    for s in body:
        inner = sum(map(_work, blocks(s)))
        work += inner * LENGTH_OF_AN_INNER_LOOP if isinstance(s, Loop) else inner + 1
    return work


def _into(body: tuple[Stmt, ...], own: dict[str, tuple[Var, Expr]]) -> tuple[Stmt, ...]:
    """Statements whose increments of some arrays go to a thread's own."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, ir.Accumulate) and s.array.name in own:
            array, thread = own[s.array.name]
            s = replace(s, array=array, index=(thread, *s.index))
        out.append(rebuild(s, lambda e: e, lambda v: v, lambda b: _into(b, own)))
    return tuple(out)


def _place(index: tuple[Expr, ...]) -> tuple[str, ...]:
    return tuple(map(repr, index))


def addition(c: Carried, body: tuple[Stmt, ...]) -> Expr | None:
    """The amount that each iteration adds to a carried scalar, if that is all that happens to it."""
    uses = sum(isinstance(n, Var) and n == c.var for t in every(body) for e in reads(t) for n in ir.walk(e))
    if uses != 1 or any(c.next.name in names_read(t) for t in every(body) if isinstance(c.next, Var)):
        return None
    for t in body:
        match t:
            case ir.Assign(target=target, value=Op(name="add", args=(a, b))) if target == c.next and c.var in (a, b):
                return (b if a == c.var else a) if a.type == b.type else None
    return None
