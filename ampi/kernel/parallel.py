"""Which adjoint loops may run on several threads.

The iterations of a primal ``prange`` are independent, but those of its adjoint need not be: an element that two
iterations read gets increments from both.  An adjoint loop stays parallel if every element that it writes is touched
by one iteration only, which is shown

* by the index: it is affine in the loop's counter and differs from iteration to iteration;
* by the primal: an element that an iteration of a ``prange`` assigns is no other iteration's business, so neither is
  its shadow;

and if all that it carries are sums.  Other loops run on one thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ampi.kernel import ir, tbr
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ssa import Branch, Carried, Loop, blocks, definitions, every, names_read, reads, written


def decide(function: ir.Function, threads: bool) -> tuple[ir.Function, list[str]]:
    """The program (in single assignment form) with only the loops marked parallel that may be, and the reasons."""
    if not threads:
        return replace(function, body=_all_serial(function.body)), []
    deciding = _Deciding(tbr.collect(function))
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
    def __init__(self, accesses: tbr.Accesses) -> None:
        self.accesses = accesses
        self.facts: list[str] = []

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                if s.parallel:
                    reason = self.obstacle(s)
                    where = f"line {s.line}: "
                    self.facts.append(where + (f"on one thread: {reason}" if reason else "parallel"))
                    s = replace(s, parallel=reason is None, body=_all_serial(s.body) if reason is None else s.body)
                if not s.parallel:
                    s = replace(s, body=self.block(s.body))
            elif isinstance(s, Branch):
                s = replace(s, then=self.block(s.then), orelse=self.block(s.orelse))
            out.append(s)
        return tuple(out)

    def obstacle(self, s: Loop) -> str | None:
        """Why a loop cannot run on several threads; None if it can."""
        for c in s.carried:
            if addition(c, s.body) is None:
                return f"{c.var.name} is carried from one iteration to the next"
        if any(isinstance(t, ir.Grow) for t in every(s.body)):
            return "it saves values whose number is not known"
        inside = {v.name for t in every(s.body) for v in definitions(t)}
        arrays = {w.name for t in every(s.body) if (w := written(t)) is not None} - inside
        for array in sorted(arrays):
            if not self.is_private(array, s):
                return f"iterations meet in elements of {array}"
        return None

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
