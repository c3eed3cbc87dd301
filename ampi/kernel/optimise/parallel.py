"""Parallelisation: which adjoint loops may run on several threads, and in which form.

The iterations of a primal ``prange``, and the elements of an operation on whole arrays, are independent.  Those of the
adjoint need not be: an element that two iterations read gets increments from both.  For each array that an adjoint loop
writes, one of these is shown:

* *No two iterations touch one element.*  The index is affine in the loop's counter, or a place in a matrix stored as a
  vector (``i * n + j`` with ``j`` in ``range(n)``), and differs from iteration to iteration; or it follows from the
  primal (only one iteration of a ``prange`` may use an element that it assigns, so only one uses its shadow).
* *No two iterations touch one element if the entries of an index array differ.*  That is tested when the adjoint is
  called (`threads.distinct`).
* *Only nearby iterations touch one element* (stencils).  The iterations are cut into twice as many blocks as there are
  threads, each longer than that distance; the even blocks run first, then the odd ones.
* *Iterations that touch one element only add to it.*  If, by an index array, only nearby iterations do so (as in a mesh
  whose nodes are numbered in the order of its elements, which is tested in the call), they are cut into blocks as
  above.  Otherwise each thread adds to private arrays, which are then added up in a fixed order, or each increment is
  an atomic instruction: whichever is faster for this number of iterations, elements and threads (`threads.choose`).

Otherwise, or where one thread is fastest, the loop runs on one thread.  The body of a loop becomes a separate function
(a *part*): it is compiled once, without threads, for all forms of the loop, and is vectorised like a serial loop.

A deterministic program cuts its loops into a number of parts that does not depend on the number of threads, and has no
atomic increments: its results are bitwise identical on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.reduction_recognition import combined
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.remarks import Kind, Remark
from ampi.kernel.ir.ssa import INT, ZERO, Loop, blocks, definitions, every, reads, written

PARTS = 16  # of a loop in a deterministic program
LENGTH_OF_AN_INNER_LOOP = 32


def decide(
    function: ir.Function,
    names: Names,
    threads: bool,
    deterministic: bool,
    finish: Callable[[ir.Function], ir.Function],
) -> tuple[ir.Function, list[Remark]]:
    """Turn the parallel loops of a program (in single assignment form) into `ir.Launch`, or into serial loops; with the
    reasons.  ``finish`` completes the function made from a loop's body."""
    if not threads:
        return replace(function, body=_all_serial(function.body)), []
    deciding = _Deciding(function, names, deterministic, finish)
    body = deciding.block(function.body)
    flags = (ir.Argument(flag.name, flag.type, role=("distinct", n)) for n, flag in deciding.flags.items())
    return replace(function, body=body, arguments=(*function.arguments, *flags)), deciding.remarks


def _all_serial(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    serial = (replace(s, parallel=False) if isinstance(s, Loop) else s for s in body)
    return tuple(ir.in_blocks(s, _all_serial) for s in serial)


@dataclass(frozen=True)
class Conflict:
    """An array with elements that several iterations touch.

    They do not if the index arrays ``distinct`` have no element twice (None: this does not help), or if they are more
    than ``distance`` iterations apart (None: they may at any distance).  ``added``: iterations only add to elements.
    """

    array: Var
    distinct: frozenset[str] | None
    distance: int | None
    added: bool


class _Deciding:
    def __init__(
        self, function: ir.Function, names: Names, deterministic: bool, finish: Callable[[ir.Function], ir.Function]
    ) -> None:
        self.function = function
        self.names = names
        self.deterministic = deterministic
        self.finish = finish
        self.accesses = tbr.collect(function)
        changed = {w.name for t in every(function.body) if (w := written(t)) is not None}
        self.index_arrays = {
            a.name
            for a in function.arguments
            if isinstance(a.type, types.Array) and a.name not in changed and not a.is_a("constant")
        }
        self.remarks: list[Remark] = []
        self.flags: dict[str, Var] = {}  # arguments: true if the elements of an index array differ

    def flag(self, array: str) -> Var:
        """The argument that is true if the elements of an index array differ."""
        if array not in self.flags:
            self.flags[array] = self.names.variable(f"{array}_is_distinct", types.boolean)
        return self.flags[array]

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        is_parallel = lambda s: isinstance(s, Loop) and s.parallel
        return tuple(self.parallel_loop(s) if is_parallel(s) else ir.in_blocks(s, self.block) for s in body)

    def parallel_loop(self, s: Loop) -> Stmt:
        """Rewrite a ``prange``."""
        reason = self.obstacle(s)
        conflicts = [] if reason else self.conflicts(s)
        safe = all(m.added for m in conflicts) or all(m.distinct is not None for m in conflicts)
        near = all(m.distance is not None for m in conflicts)
        if reason is None and not safe and not near:
            others = [m.array.name for m in conflicts if not m.added]
            reason = f"iterations touch the same elements of {', '.join(others)}, which they do not only add to"
        if reason is not None:
            self.remarks.append(Remark.of(Kind.SERIAL, s.line, reason=reason))
            return replace(s, parallel=False, body=self.block(s.body))
        s = replace(s, parallel=False, body=_all_serial(s.body))
        launch = _Outlining(self, s, conflicts).launch()
        remark = _remark(s.line, launch, conflicts, bool(self.changed(s)))
        if remark not in self.remarks:
            self.remarks.append(remark)
        return launch

    def obstacle(self, s: Loop) -> str | None:
        """The reason why a loop cannot run on several threads; None if it can."""
        for c, how in zip(s.carried, combined(s)):
            if how is None:
                return f"{c.var.name} is carried from one iteration to the next"
        inside = {v.name for t in every(s.body) for v in definitions(t)}
        if any(isinstance(t, ir.Grow) and t.target.name not in inside for t in every(s.body)):
            return "it saves values whose number is not known"
        if any(isinstance(t, ir.Fill) and t.target.name not in inside for t in every(s.body)):
            return "an operation on whole arrays fills an array that exists outside the loop"
        return None

    def changed(self, s: Loop) -> dict[str, Var]:
        """The arrays from outside whose elements a loop writes."""
        inside = {v.name for t in every(s.body) for v in definitions(t)}
        return {w.name: w for t in every(s.body) if (w := written(t)) is not None and w.name not in inside}

    def conflicts(self, s: Loop) -> list[Conflict]:
        """The arrays with elements that several iterations touch."""
        arrays = self.changed(s)
        found = [self.conflict(array, s) for array in arrays.values()]
        return [m for m in found if m is not None]

    def conflict(self, array: Var, s: Loop) -> Conflict | None:
        """How several iterations touch the same element of an array that the loop writes; None if none do."""
        accesses = [a for a in self.accesses.of[array.name] if any(around is s for around in a.loops)]
        assigned = self.assigned(array.name, s.body)
        exclusive = exclusive_accesses(accesses)
        level = next(k for k, around in enumerate(accesses[0].loops) if around is s)
        distinct: frozenset[str] | None = frozenset()
        distance: int | None = 0
        for w in accesses:
            if w.is_load or _place(w.index) in assigned or w.position in exclusive:
                continue
            for other in accesses:
                if _place(other.index) in assigned or other.position in exclusive:
                    continue
                common = tbr.common_loops(w, other)
                for pair in ((w, other), (other, w)):
                    if not tbr.may_overlap(*pair, common, level, self.accesses):
                        continue
                    needed = self.distinct(*pair, common, level)
                    distinct = None if needed is None or distinct is None else distinct | needed
                    reach = tbr.reach(*pair, common, level, self.accesses)
                    distance = None if reach is None or distance is None else max(distance, reach)
        if distance == 0:
            return None
        return Conflict(array, distinct, distance, all(isinstance(a.statement, ir.Accumulate) for a in accesses))

    def distinct(self, a: tbr.Access, b: tbr.Access, common: tuple[Loop, ...], level: int) -> frozenset[str] | None:
        """The index array whose elements must differ for two accesses to be apart."""
        for x, y in zip(a.index, b.index):
            p, q = self.looked_up(x), self.looked_up(y)
            if p is None or q is None or p.array != q.array:
                continue
            at_p, at_q = replace(a, array=p.array, index=p.index), replace(b, array=q.array, index=q.index)
            if not tbr.may_overlap(at_p, at_q, common, level, self.accesses):
                return frozenset({p.array.name})
        return None

    def looked_up(self, e: Expr) -> ir.Load | None:
        """The element of an index array that serves as this index; None for other indices."""
        while isinstance(e, Var):
            value = self.accesses.value.get(e.name)
            if isinstance(value, Op) and value.name == "cast" and _is_wider(value.type, value.args[0].type):
                e = value.args[0]
                continue
            if isinstance(value, ir.Load) and value.array.name in self.index_arrays:
                return value if isinstance(value.type, types.Integer) else None
            return None
        return None

    def assigned(self, array: str, body: tuple[Stmt, ...]) -> set[Any]:
        """The elements that every iteration assigns."""
        found = set()
        for t in body:
            if isinstance(t, ir.Store) and t.array.name == array:
                found.add(_place(t.index))
            for block in blocks(t) if isinstance(t, Loop) else ():
                found |= self.assigned(array, block)
        return found


def exclusive_accesses(accesses: list[tbr.Access]) -> set[int]:
    """The positions of accesses to elements that their iteration assigns wherever the access is made, in branches too.

    The primal's iterations are independent, so no other one has such an element, nor its shadow.
    """
    stores = [a for a in accesses if isinstance(a.statement, ir.Store)]
    return {
        a.position
        for a in accesses
        for store in stores
        if _place(store.index) == _place(a.index)
        and set(store.arms) <= set(a.arms)
        and all(any(inner is around for inner in a.loops) for around in store.loops)
    }


class _Outlining:
    """Outlining: makes a function from the body of a loop."""

    def __init__(self, deciding: _Deciding, loop: Loop, conflicts: list[Conflict]) -> None:
        self.deciding = deciding
        self.names = deciding.names
        self.accesses = deciding.accesses
        self.loop = loop
        self.conflicts = conflicts
        self.begin, self.end, self.first, self.last = (
            Var(deciding.names.fresh(hint), INT) for hint in ("begin", "end", "first", "last")
        )

    def launch(self) -> ir.Launch:
        s, conflicts = self.loop, self.conflicts
        shared = {m.array.name for m in conflicts}
        added = bool(conflicts) and all(m.added for m in conflicts)
        near = bool(conflicts) and all(m.distance is not None for m in conflicts)
        known = bool(conflicts) and all(m.distinct is not None for m in conflicts)
        reduced = tuple(
            ir.Reduced(c.var, c.init, how.operation, how.of, how.last)
            for c, how in zip(s.carried, combined(s))
            if how is not None
        )
        part, arguments = self.part(s, "line")
        atomic = None
        if added and not near and not self.deciding.deterministic:
            atomic, _ = self.part(replace(s, body=_atomic(s.body, shared)), "atomic_line")
        wanted = {n for m in conflicts for n in m.distinct or ()} if known and not near else set()
        flags = [a.name for a in self.deciding.function.arguments if a.name in wanted]
        reaches = self.reaches() if added and not near else ()
        hints = ["thread", "threads", "begin", "end", "form"]
        hints += ["phase"] if near else ["phase", "phases"] if reaches else []
        temporaries = {hint: Var(self.names.fresh(hint), INT) for hint in hints}
        if added and not near:
            for k, m in enumerate(conflicts):
                own = types.Array(m.array.type.dtype, m.array.type.ndim + 1, "C")
                temporaries[f"own {k}"] = Var(self.names.fresh(f"{m.array.name}_own"), own)
        for k, c in enumerate(s.carried):
            type_of_parts = types.Array(c.var.type, 1, "C")
            temporaries[f"parts {k}"] = Var(self.names.fresh(f"{c.var.name}_parts"), type_of_parts)
        return ir.Launch(
            part=part,
            start=s.start,
            stop=s.stop,
            arguments=arguments,
            reduced=reduced,
            shared=tuple(m.array for m in conflicts),
            added=added,
            distinct=tuple(map(self.deciding.flag, flags)),
            distance=max(m.distance or 0 for m in conflicts) if near else 0,
            reaches=reaches,
            atomic=atomic,
            work=_work(s.body),
            increments=_increments(s.body, shared),
            count=PARTS if self.deciding.deterministic else None,
            temporaries=temporaries,
            line=s.line,
        )

    def reaches(self) -> tuple[ir.Reach, ...]:
        """The ranges that iterations touch, for all arrays that several share; empty if one is not known."""
        found = [self.reach(m.array) for m in self.conflicts]
        known = dict.fromkeys(r for r in found if r is not None)
        return () if None in found else tuple(known)

    def reach(self, array: Var) -> ir.Reach | None:
        accesses = [a for a in self.accesses.of[array.name] if any(s.name == self.loop.name for s in a.loops)]
        for axis in range(array.type.ndim):
            found = self.reach_along([a.index[axis] for a in accesses])
            if found is not None:
                return found
        return None

    def reach_along(self, places: list[Expr]) -> ir.Reach | None:
        """The range of an axis that iterations touch, if it comes from one index array or moves with the iteration."""
        index: set[Var] = set()
        rows: list[int] = []
        own: list[int] = []
        for e in places:
            looked_up = self.deciding.looked_up(e)
            after = self.after_the_counter(e if looked_up is None else looked_up.index[0])
            if after is None:
                return None
            (own if looked_up is None else rows).append(after)
            if looked_up is not None:
                index.add(looked_up.array)
        if len(index) != 1 or next(iter(index)).type.layout != "C":
            return None
        low, high = (min(own), max(own)) if own else (0, 0)
        return ir.Reach(index.pop(), min(rows), max(rows), bool(own), low, high)

    def after_the_counter(self, e: Expr) -> int | None:
        """The constant in an index ``counter + constant``; None for other indices."""
        form = tbr.affine(e, self.accesses)
        if form.terms != {(self.loop.var.name, ""): 1}:
            return None
        return form.constant

    def part(self, s: Loop, word: str) -> tuple[ir.Function, tuple[Expr, ...]]:
        """A function for consecutive iterations, and its arguments after the bounds of these."""
        function = self.deciding.function
        begin, end, first, last = self.begin, self.end, self.first, self.last
        prologue: list[Stmt] = []
        outer = self.free(s)
        prologue, outer = self.computed_inside(outer)
        arguments = [ir.Argument(v.name, v.type) for v in outer]
        for k, v in enumerate(outer):
            if v.type == INT and tbr.is_nonnegative(v, self.accesses):
                arguments[k] = ir.Argument(self.names.fresh(f"{v.name}_given"), INT)
                lowest = Op("max", (Var(arguments[k].name, INT), ZERO), INT)
                prologue.insert(0, ir.Assign(v, lowest, line=s.line))
        # Repeat the facts about the range, for the analyses of this function.
        prologue.append(ir.Assign(first, Op("max", (begin, self.lowest(s)), INT) if self.counts_up(s) else begin))
        prologue.append(ir.Assign(last, Op("min", (s.stop, end), INT)))
        carried = tuple(
            replace(c, init=constant(0, c.var.type)) if how is not None and how.operation == "add" else c
            for c, how in zip(s.carried, combined(s))
        )
        loop = replace(s, start=first, stop=last, carried=carried, independent=True)
        end_: list[Stmt] = [ir.Return(tuple(c.var for c in carried), line=s.line)] if carried else []
        outlined = replace(
            function,
            name=self.names.fresh(f"{function.name}_{word}_{s.line}"),
            arguments=(ir.Argument(begin.name, INT), ir.Argument(end.name, INT), *arguments),
            body=(*prologue, loop, *end_),
            result="scalar" if len(carried) == 1 else ("tuple", len(carried)),
            constants=(),
        )
        return self.deciding.finish(outlined), tuple(outer)

    def counts_up(self, s: Loop) -> bool:
        return tbr.is_nonnegative(s.start, self.accesses)

    def lowest(self, s: Loop) -> Expr:
        return s.start if isinstance(s.start, Const) else ZERO

    def free(self, s: Loop) -> list[Var]:
        """The outer variables that a loop's body and its end use: scalars, then arrays."""
        inside = {v.name for t in every((s,)) for v in definitions(t)}
        found: dict[str, Var] = {}
        expressions = [e for t in every(s.body) for e in reads(t)]
        expressions += [s.stop, *(e for c in s.carried for e in (c.init, c.next))]
        expressions += [w for t in every(s.body) if (w := written(t)) is not None]
        for e in expressions:
            for n in ir.walk(e):
                if isinstance(n, Var) and n.name not in inside:
                    found[n.name] = n
        return sorted(found.values(), key=lambda v: isinstance(v.type, types.Array))

    def computed_inside(self, outer: list[Var]) -> tuple[list[Stmt], list[Var]]:
        """Recompute plain integers in the part, so that the analyses know their definitions."""
        statements: list[Stmt] = []
        outside: dict[str, Var] = {}

        def visit(v: Var) -> None:
            value = self.accesses.value.get(v.name)
            if any(isinstance(t, ir.Assign) and t.target == v for t in statements):
                return
            if isinstance(v.type, types.Integer) and isinstance(value, Op) and _is_plain(value):
                for n in ir.walk(value):
                    if isinstance(n, Var):
                        visit(n)
                statements.append(ir.Assign(v, value))
            else:
                outside[v.name] = v

        for v in outer:
            visit(v)
        return statements, sorted(outside.values(), key=lambda v: isinstance(v.type, types.Array))


def _is_wider(new: Any, old: Any) -> bool:
    integers = isinstance(new, types.Integer) and isinstance(old, types.Integer)
    return integers and new.bitwidth >= old.bitwidth


def _is_plain(value: Op) -> bool:
    return value.name in ("add", "sub", "mul", "neg", "min", "max", "cast") and all(
        isinstance(a, (Const, Size)) or (isinstance(a, Var) and isinstance(a.type, types.Integer)) for a in value.args
    )


def _remark(line: int, launch: ir.Launch, conflicts: list[Conflict], writes: bool) -> Remark:
    """The chosen form and the reason."""
    if not writes:
        found = dict.fromkeys(r.var.name for r in launch.reduced if r.operation != "place")
        return Remark.of(Kind.PARALLEL, line, recomputed=tuple(found))
    return Remark.of(
        Kind.PARALLEL,
        line,
        arrays=tuple(m.array.name for m in conflicts),
        distance=launch.distance,
        distinct=tuple(dict.fromkeys(n for m in conflicts for n in m.distinct or ())) if launch.distinct else (),
        added=launch.added,
        atomic=launch.atomic is not None,
        reaches=tuple(dict.fromkeys(r.index.name for r in launch.reaches)),
    )


def _atomic(body: tuple[Stmt, ...], shared: set[str]) -> tuple[Stmt, ...]:
    """Statements whose increments of some arrays are atomic."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, ir.Accumulate) and s.array.name in shared:
            s = replace(s, atomic=True)
        out.append(ir.in_blocks(s, lambda b: _atomic(b, shared)))
    return tuple(out)


def _work(body: tuple[Stmt, ...]) -> int:
    """The approximate number of operations in an iteration, with a guess for the length of inner loops."""
    work = 0
    for s in body:
        inner = sum(map(_work, blocks(s)))
        work += inner * LENGTH_OF_AN_INNER_LOOP if isinstance(s, Loop) else inner + 1
    return work


def _increments(body: tuple[Stmt, ...], arrays: set[str]) -> int:
    """The number of operations in `_work` that are increments of these arrays."""
    count = 0
    for s in body:
        inner = sum(_increments(b, arrays) for b in blocks(s))
        count += inner * LENGTH_OF_AN_INNER_LOOP if isinstance(s, Loop) else inner
        count += isinstance(s, ir.Accumulate) and s.array.name in arrays
    return count


def _place(index: tuple[Expr, ...]) -> tuple[str, ...]:
    return tuple(map(repr, index))
