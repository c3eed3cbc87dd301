"""Scatter to gather: adjoints of stencils in gather form.

The adjoint of ``new[i] = f(u[i - 1], u[i], u[i + 1])`` adds to three elements of ``u_bar`` in each iteration.  In
gather form the loop runs over the elements of ``u_bar`` and adds all contributions to each of them at once.  Each
element is then written by one iteration only: the loop can be vectorised and run on several threads, and passes over
memory once.  This pays where contributions are cheap, since each is computed for each neighbour: for stencils that
are linear, or nearly so.

A nest of loops becomes

* a nest over the elements to which it adds, with all neighbours in the interior, and with the existing ones at the
  boundary;
* the original nest with its other statements (setting adjoints of overwritten elements to zero, for one).

Other increments of adjacent elements are added in the same loops as the first.  The other statements follow row by
row, as soon as no neighbour needs the values that they overwrite, while their arrays are in the caches.

The method is that of Hückelheim et al., "Automatic differentiation for adjoint stencil loops" (2019).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Block, Builder
from ampi.kernel.ir.intrinsics import TABLE
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.remarks import Kind, Remark
from ampi.kernel.ir.ssa import Loop
from ampi.kernel.optimise.gather_nests import Nest, Target, Writer, iteration, reach
from ampi.kernel.optimise.if_conversion import flatten
from ampi.kernel.optimise.innermost import used_part
from ampi.kernel.optimise.loop_distribution import CALLED

COST_OF_AN_INCREMENT = 3  # cost of an increment through a buffer, in operations
WIDEST = 4  # largest distance of neighbours in one direction


def in_gather_form(
    function: ir.Function, names: Names, behind: bool = True, threads: bool = False
) -> tuple[ir.Function, list[Remark]]:
    """Bring the nests of a function (in single assignment form) into gather form where that pays; with remarks.

    ``behind``: the other statements of a nest follow row by row, unless ``threads`` share the nest.
    """
    pass_ = _Gather(function, names, behind, threads)
    return replace(function, body=pass_.visit(function.body)), pass_.remarks


class _Gather(Builder):
    def __init__(self, function: ir.Function, names: Names, behind: bool, threads: bool) -> None:
        super().__init__(names)
        self.behind = behind
        self.threads = threads
        self.accesses = tbr.collect(function)
        self.remarks: list[Remark] = []

    def visit(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            changed = self.nest(s) if isinstance(s, Loop) else None
            out += [ir.in_blocks(s, self.visit)] if changed is None else changed
        return tuple(out)

    def nest(self, s: Loop) -> list[Stmt] | None:
        """A nest of loops in gather form; None if that is impossible or does not pay."""
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
        rest = used_part([t for t in nest.body if id(t) not in done])
        self.stack = [Block()]
        self.line = s.line
        Writer(self, self.accesses, nest, targets, beside, rest if follows else ()).write()
        for target in targets:
            count = len(target.increments)
            self.remarks.append(Remark.of(Kind.GATHERED, s.line, array=target.array.name, neighbours=count))
        if beside:
            self.remarks.append(Remark.of(Kind.BESIDE, s.line, arrays=tuple(x.array.name for x in beside)))
        if rest and follows:
            self.remarks.append(Remark.of(Kind.BEHIND, s.line))
        apart = [] if follows or not rest else [replace(s, body=iteration(nest, rest))]
        return self.block.statements + apart

    # nests

    def perfect(self, s: Loop) -> Nest | None:
        """The loops from ``s`` inwards, if they are independent and have only arithmetic between them."""
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
        """Return whether increments may be done first: nothing is stored but zeros, at places that were read before."""
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

    # arrays

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
                if len(form.terms) > 1 or form.terms[own[0], ""] != 1:
                    return None
                k = counters.index(own[0])
                offset[k] = form.constant
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
        """The other increments, if each has a separate array and targets the element of the iteration itself.

        Their elements must be adjacent, and none may call a function, so that the loop can be vectorised.
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
        """Return whether a value needs a function call."""
        value = values.get(e.name) if isinstance(e, Var) else None
        if not isinstance(value, Op):
            return False
        return TABLE[value.name].cost >= CALLED or any(self.calls(a, values) for a in value.args)

    def is_adjacent(self, x: ir.Accumulate, nest: Nest) -> bool:
        """Return whether the innermost loop moves the index by one element in the last dimension, and not in others."""
        counters = [s.var.name for s in nest.loops]
        *before, last = [tbr.affine(e, self.accesses) for e in x.index]
        fixed = all(name in counters[:-1] or not self.varies(name, nest) for f in before for name, _ in f.terms)
        return fixed and last.terms == {(counters[-1], ""): 1}

    def varies(self, name: str, nest: Nest) -> bool:
        return any(loop.name == nest.loops[0].name for loop in self.accesses.depth.get(name, ()))

    def pays(self, targets: list[Target], nest: Nest) -> bool:
        """Return whether the work repeated for each neighbour costs less than increments through buffers.

        The work that neighbours have in common is done once.
        """
        for k in range(len(nest.loops)):
            low, high = reach(targets, k)
            if high - low > WIDEST:
                return False
        known = nest.values
        if any(not self.can_be_moved(x.value, known) for t in targets for x, _ in t.increments):
            return False
        self.stack = [Block()]
        Writer(self, self.accesses, nest, targets).one_element()
        count = sum(len(t.increments) for t in targets)
        return cost(self.block.statements) <= cost(nest.body) + COST_OF_AN_INCREMENT * count

    def can_be_moved(self, e: Expr, values: dict[str, Expr]) -> bool:
        """Return whether a value can be computed for another iteration: from loads and operations."""
        if not isinstance(e, Var) or e.name not in values:
            return True
        value = values[e.name]
        inner = value.index if isinstance(value, ir.Load) else value.args if isinstance(value, Op) else None
        return inner is not None and all(self.can_be_moved(a, values) for a in inner)


def cost(body: Iterable[Stmt]) -> int:
    """The number of loads, and of operations on numbers that are not indices."""
    total = 0
    for t in body:
        if isinstance(t, ir.Assign) and isinstance(t.value, ir.Load):
            total += 1
        elif isinstance(t, ir.Assign) and isinstance(t.value, Op) and not isinstance(t.value.type, types.Integer):
            total += TABLE[t.value.name].cost
    return total
