"""Loop distribution: a loop with long arithmetic is cut into stages, so that the processor can overlap more iterations.

A processor works on as many iterations of a loop at a time as fit into its window of operations.  Where each operation
of an iteration waits for the one before (a distance needs a root, a force the distance, an adjoint the force), these
iterations are too few to keep it busy.  A vectorised iteration takes about

    max(operations / operations per cycle, operations * latency of the longest chain / operations looked ahead)

cycles, unless its divisions take longer.  In two loops, each with half of the operations and half of the chain, the
second term is halved.  Values that the later loop needs from the earlier one are stored in a buffer in the cache, or
recomputed if that is as cheap.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.reduction_recognition import addition
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Block
from ampi.kernel.ir.intrinsics import TABLE, constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.remarks import Kind, Remark
from ampi.kernel.ir.ssa import INT, ZERO, Carried, Loop, names_read, written
from ampi.kernel.optimise.innermost import InnermostLoops, array_of
from ampi.kernel.optimise.unsigned_indices import in_block

LOOKED_AHEAD = 190  # operations in the processor's window
PER_CYCLE = 4
LATENCY, LATENCY_OF_A_LOAD = 4, 6  # cycles: of an addition, of a load
CYCLES_OF_A_DIVISION = 4  # of single precision
COST_OF_KEEPING = 2  # operations to store a value, and as many to load it
OVERHEAD = 0.5  # cycles per iteration for another loop
WORTH_IT = 0.9  # the largest ratio of the new to the old time for which a further loop pays
MAX_STAGES = 3
MAX_TAKEN = 4  # values from a buffer: each is another stream through the cache
CHEAP = 2  # operations: to store a value and to load it
CALLED = 20  # an operation that costs more is a function call
BUFFER_BYTES = 16384
SHORTEST, LONGEST = 128, 2048  # iterations whose values a buffer holds


def in_stages(function: ir.Function, names: Names, reassociate: bool) -> tuple[ir.Function, list[Remark]]:
    """Distribute long arithmetic of a function (in single assignment form) over several loops; with remarks.

    ``reassociate``: the compiler may add in another order, so that it vectorises sums.
    """
    pass_ = _Stages(function, names, reassociate)
    return pass_.run(function), pass_.remarks


@dataclass
class Stage:
    """One of the loops: values taken from earlier loops, its statements, and values stored for later ones.

    ``free`` are the values that take no processor operation.
    """

    takes: list[Var]
    statements: list[Stmt]
    keeps: list[Var]
    free: set[str]

    def cycles(self) -> float:
        """The estimated time of a vectorised iteration."""
        ready = {v.name: LATENCY_OF_A_LOAD for v in self.takes}
        for t in self.statements:
            if isinstance(t, ir.Assign):
                ready[t.target.name] = _finished(t, ready, self.free)
        operations = COST_OF_KEEPING * (len(self.takes) + len(self.keeps)) + sum(
            _operations(t, self.free) for t in self.statements
        )
        chain = max(ready.values(), default=0)
        dividing = sum(map(_dividing, self.statements))
        return max(operations / PER_CYCLE, dividing, operations * chain / LOOKED_AHEAD) + OVERHEAD


class _Stages(InnermostLoops):
    def __init__(self, function: ir.Function, names: Names, reassociate: bool) -> None:
        super().__init__(function, names)
        self.reassociate = reassociate

    def loop(self, s: Loop) -> list[Stmt]:
        if not s.body or not s.independent or s.step != 1 or not self.is_vectorised(s):
            return [s]
        stages = _Division(s, self.reassociate).best()
        return [s] if len(stages) == 1 else self.write(s, stages)

    def is_vectorised(self, s: Loop) -> bool:
        """Return whether a compiler can vectorise a loop."""
        if s.carried and not (self.reassociate and all(addition(c, s.body) for c in s.carried)):
            return False
        for t in s.body:
            if not isinstance(t, (ir.Assign, ir.Store, ir.Accumulate)):
                return False
            if isinstance(t, ir.Assign) and isinstance(t.value, Op) and TABLE[t.value.name].cost >= CALLED:
                return False
            if array_of(t) is not None and self.place(t, s) is None and (written(t) or not self.is_fixed(t, s)):
                return False
        return True

    def write(self, s: Loop, stages: list[Stage]) -> list[Stmt]:
        """Write the loops, over so few iterations at a time that the values between them stay in the cache."""
        kept = [v for stage in stages for v in stage.keeps]
        length = LONGEST
        while length > SHORTEST and length * sum(v.type.bitwidth // 8 for v in kept) > BUFFER_BYTES:
            length //= 2
        self.line = s.line
        if not s.parallel:
            self.stack = [Block()]
            buffers = {v: self.buffer(f"{v.name}_kept", v.type, length) for v in kept}
            self.buffers_of[-1] += self.block.statements
        self.stack = [Block()]  # values of another loop are not available here
        span = self.op("add", self.op("sub", s.stop, s.start), constant(length - 1, INT))
        count = self.op("rshift", span, constant(length.bit_length() - 1, INT))
        number = self.inner("strip", INT)
        totals: dict[Var, Var] = {}
        with self.nested() as strip:
            first = self.op("add", s.start, self.op("mul", number, constant(length, INT)))
            trips = self.op("min", self.op("sub", s.stop, first), constant(length, INT))
            if s.parallel:  # each thread has its own
                buffers = {v: self.buffer(f"{v.name}_kept", v.type, length) for v in kept}
            for stage in stages:
                totals |= self.stage(s, stage, first, trips, buffers)
        carried = tuple(Carried(c.var, c.init, totals[c.var]) for c in s.carried)
        self.emit(
            Loop(number.name, number, ZERO, count, tuple(strip.statements), carried, parallel=s.parallel, line=s.line)
        )
        self.remarks.append(Remark.of(Kind.DISTRIBUTED, s.line, loops=len(stages), kept=len(kept)))
        return self.block.statements

    def stage(self, s: Loop, stage: Stage, first: Expr, trips: Expr, buffers: dict[Var, Var]) -> dict[Var, Var]:
        """Write one of the loops; returns its sums, by the scalars that carry them from strip to strip."""
        k = self.inner("k", INT)
        defined = dict.fromkeys(t.target for t in stage.statements if isinstance(t, ir.Assign))  # in order
        new: dict[str, Expr] = {v.name: self.fresh(v.name, v.type) for v in (*stage.takes, *defined)}
        sums = [c for c in s.carried if c.next in defined]
        totals = {c.var: self.inner(c.var.name, c.var.type) for c in sums}
        new |= {var.name: total for var, total in totals.items()}
        with self.nested() as block:
            new[s.var.name] = self.op("add", first, k)
            for v in stage.takes:
                self.emit(ir.Assign(new[v.name], ir.Load(buffers[v], (k,), v.type), line=s.line))
            for t in substitute(in_block(tuple(stage.statements), self.accesses), new):
                self.emit(t)
            for v in stage.keeps:
                self.emit(ir.Store(buffers[v], (k,), new[v.name], line=s.line))
        carried = tuple(Carried(totals[c.var], c.var, new[c.next.name]) for c in sums)
        self.emit(Loop(k.name, k, ZERO, trips, tuple(block.statements), carried, line=s.line))
        return totals


class _Division:
    """Divisions of the statements of one loop into stages."""

    def __init__(self, loop: Loop, fused: bool) -> None:
        self.body = loop.body
        self.free = _free(loop.body, fused)
        self.definition = {t.target.name: i for i, t in enumerate(self.body) if isinstance(t, ir.Assign)}
        self.needs = [sorted(self.definition[n] for n in names_read(t) if n in self.definition) for t in self.body]
        self.users: dict[int, list[int]] = defaultdict(list)
        for i, needs in enumerate(self.needs):
            for j in needs:
                self.users[j].append(i)
        stored = {w.name for t in self.body if (w := written(t)) is not None}
        self.groups: dict[Any, list[int]] = defaultdict(list)  # statements that must keep their order
        for i, t in enumerate(self.body):
            if array_of(t) in stored:
                self.groups[array_of(t)].append(i)
        self.fixed = {i for group in self.groups.values() for i in group}
        self.fixed |= {self.definition[c.next.name] for c in loop.carried if isinstance(c.next, Var)}
        ready: dict[str, float] = {}
        self.finished = []
        for t in self.body:
            self.finished.append(_finished(t, ready, self.free))
            if isinstance(t, ir.Assign):
                ready[t.target.name] = self.finished[-1]

    def best(self) -> list[Stage]:
        """The stages with the least estimated time; a single one if division does not pay."""
        cuts: tuple[float, ...] = ()
        stages = self.divided(cuts)
        assert stages is not None
        least = _cycles(stages)
        while len(stages) < MAX_STAGES:
            found = None
            for cut in sorted(set(self.finished)):
                more = self.divided((*cuts, cut))
                if more is not None and _cycles(more) < WORTH_IT * least and (not found or _cycles(more) < found[0]):
                    found = _cycles(more), (*cuts, cut), more
            if found is None:
                break
            least, cuts, stages = found
        return stages

    def divided(self, cuts: tuple[float, ...]) -> list[Stage] | None:
        """The stages if the chain of operations is cut after these numbers of cycles.

        None if one of them is empty, or takes too many values from others.
        """
        level = self.levels(cuts)
        kept: list[set[int]] = [set() for _ in range(len(cuts) + 1)]
        taken: list[set[int]] = [set() for _ in range(len(cuts) + 1)]
        members = [{i for i, at in enumerate(level) if at == k} for k in range(len(cuts) + 1)]
        if not all(members):
            return None
        for k, inside in enumerate(members):
            wanted = [j for i in inside for j in self.needs[i]]
            while wanted:
                j = wanted.pop()
                if j in inside or j in taken[k]:
                    continue
                if self.is_repeatable(j):
                    inside.add(j)
                    wanted += self.needs[j]
                else:
                    taken[k].add(j)
            for j in sorted(taken[k], reverse=True):
                again = self.steps(j, inside | taken[k] - {j})
                if again is not None:
                    taken[k].remove(j)
                    inside |= again
        if sum(map(len, taken)) > MAX_TAKEN:
            return None
        for some in taken:
            for j in some:
                if not isinstance(self.body[j].target.type, types.Float):
                    return None
                kept[level[j]].add(j)
        values = lambda some: [self.body[j].target for j in sorted(some)]
        return [
            Stage(values(taken[k]), [self.body[i] for i in sorted(inside)], values(kept[k]), self.free)
            for k, inside in enumerate(members)
        ]

    def levels(self, cuts: tuple[float, ...]) -> list[int]:
        """The stage of each statement; cheap values are computed where they are first used."""
        level = [sum(cut < at for cut in cuts) for at in self.finished]
        before = None
        while level != before:
            before = list(level)
            for i, needs in enumerate(self.needs):
                level[i] = max([level[i], *(level[j] for j in needs)])
            for group in self.groups.values():
                last = max(level[i] for i in group)
                for i in group:
                    level[i] = last
        for i in reversed(range(len(level))):
            if self.users[i] and self.is_repeatable(i):
                level[i] = min(level[j] for j in self.users[i])
        return level

    def is_repeatable(self, i: int) -> bool:
        """Return whether a value is recomputed wherever it is needed: indices, conditions, and loads with at most one
        operation."""
        if i in self.fixed:
            return False
        if not self.is_number(i):
            return True
        return sum(self.operations(j) for j in (i, *self.needs[i])) <= CHEAP and all(
            isinstance(self.body[j].value, ir.Load) and j not in self.fixed for j in self.needs[i] if self.is_number(j)
        )

    def steps(self, i: int, known: set[int]) -> set[int] | None:
        """The statements that compute a value from known ones; None if they take more than a few operations."""
        found: set[int] = set()
        wanted = [i]
        while wanted:
            j = wanted.pop()
            if j in known or j in found:
                continue
            found.add(j)
            if j in self.fixed or sum(map(self.operations, found)) > CHEAP:
                return None
            wanted += self.needs[j]
        return found

    def is_number(self, i: int) -> bool:
        return isinstance(self.body[i].target.type, (types.Float, types.Complex))

    def operations(self, i: int) -> int:
        return _operations(self.body[i], self.free)


def _cycles(stages: list[Stage]) -> float:
    return sum(stage.cycles() for stage in stages)


def _finished(t: Stmt, ready: dict[str, float], free: set[str]) -> float:
    """The time when the value of a statement is available, in cycles after the beginning of the iteration."""
    begin = max((ready.get(n, 0) for n in names_read(t)), default=0)
    match t:
        case ir.Assign(value=ir.Load()):
            return begin + LATENCY_OF_A_LOAD
        case ir.Assign(target=target, value=Op(name=name)) if target.name not in free:
            return begin + LATENCY * TABLE[name].cost
        case _:
            return begin


def _operations(t: Stmt, free: set[str]) -> int:
    """The approximate number of processor operations in a statement."""
    match t:
        case ir.Assign(value=ir.Load()) | ir.Store():
            return 1
        case ir.Accumulate():
            return 3
        case ir.Assign(target=target, value=Op(name=name)) if target.name not in free:
            return TABLE[name].cost
        case _:
            return 0


def _dividing(t: Stmt) -> float:
    """The cycles for which a statement occupies the unit for divisions and roots."""
    if isinstance(t, ir.Assign) and isinstance(t.value, Op) and t.value.name in ("truediv", "sqrt", "reciprocal"):
        return CYCLES_OF_A_DIVISION * t.target.type.bitwidth / 32
    return 0


def _free(body: tuple[Stmt, ...], fused: bool) -> set[str]:
    """Values that take no processor operation: indices, signs, selections, and products to which a value is added."""
    users: dict[str, list[Stmt]] = defaultdict(list)
    for t in body:
        for n in names_read(t):
            users[n].append(t)

    def is_free(t: ir.Assign) -> bool:
        match t.value:
            case Op(name="neg" | "select"):
                return True
            case Op(name="mul") if fused and len(users[t.target.name]) == 1:
                (user,) = users[t.target.name]
                return isinstance(user, ir.Accumulate) or (
                    isinstance(user, ir.Assign) and isinstance(user.value, Op) and user.value.name in ("add", "sub")
                )
        return isinstance(t.target.type, types.Integer)

    return {t.target.name for t in body if isinstance(t, ir.Assign) and is_free(t)}
