"""Exactness: the recomputed values that must be bitwise identical to the kernel's own.

A value is *exact* if a condition, an index or a stored value depends on it.  Other values may be rounded differently,
which changes derivatives by rounding only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.reduction_recognition import addition
from ampi.kernel.ir import Const, Expr, Op, Var
from ampi.kernel.ir.liveness import used
from ampi.kernel.ir.ssa import Branch, Loop, every, names_read, with_innermost_loops


def sums_in_any_order(function: ir.Function, shadows: set[str]) -> ir.Function:
    """Mark innermost loops as independent if their iterations share only sums that need not be exact.

    The function is in single assignment form; ``shadows`` are the arrays of adjoints.
    """
    return replace(function, body=with_innermost_loops(function.body, _Sums(function, shadows).marked))


class _Sums:
    def __init__(self, function: ir.Function, shadows: set[str]) -> None:
        self.exact = exact_values(function, shadows)
        self.accesses = tbr.collect(function)

    def marked(self, s: Loop) -> Loop:
        return replace(s, independent=True) if self.is_sum(s) else s

    def is_sum(self, s: Loop) -> bool:
        """Return whether a loop only computes sums."""
        if s.condition is not None or not s.carried:
            return False
        for c in s.carried:
            numbers = isinstance(c.var.type, (types.Float, types.Complex))
            if not numbers or c.var.name in self.exact or addition(c, s.body) is None:
                return False
        return tbr.are_independent(s, self.accesses)


def exact_values(function: ir.Function, shadows: set[str], zero_stays: bool = False) -> set[str]:
    """The names of the exact values of a function; ``shadows`` are the arrays of adjoints.

    ``zero_stays``: computing a value in another way never changes whether it is zero.  A test that prevents a division
    by zero, or skips an adjoint that is zero, then does not count as a condition.
    """
    needs: dict[str, set[str]] = defaultdict(set)
    guards = _guards(function, shadows) if zero_stays else set()
    exact: set[str] = set()
    for s in every(function.body):
        match s:
            case ir.Assign(target=target, value=value):
                needs[target.name] |= names_read(s)
                if target.name not in guards:
                    exact |= _discrete(value) - guards
            case ir.Store(array=array, index=index, value=value) | ir.Accumulate(array=array, index=index, value=value):
                exact |= used(index if array.name in shadows else (*index, value))
            case Loop(start=start, stop=stop, carried=carried):
                exact |= used((start, stop))
                for c in carried:
                    needs[c.var.name] |= used((c.init, c.next))
            case Branch(condition=condition, joins=joins):
                exact |= used((condition,)) - guards
                for j in joins:
                    needs[j.var.name] |= used((j.then, j.orelse))
            case ir.Return():
                pass
            case _:
                exact |= names_read(s)
    waiting = list(exact)
    while waiting:
        for name in needs[waiting.pop()] - exact:
            exact.add(name)
            waiting.append(name)
    return exact


def _guards(function: ir.Function, shadows: set[str]) -> set[str]:
    """Comparisons of numbers with zero that only choose between a value and zero, or whether to add to adjoints."""
    compared: set[str] = set()
    uses: Counter[str] = Counter()
    for s in every(function.body):
        uses.update(names_read(s))
        match s:
            case ir.Assign(target=target, value=Op(name="ne", args=(Var(type=types.Float()), Const(value=0)))):
                compared.add(target.name)
            case ir.Assign(value=Op(name="select", args=(Var(name=name), _, Const(value=0)))):
                uses[name] -= 1
            case Branch(condition=Var(name=name)) if _adds_zero_otherwise(s, shadows):
                uses[name] -= 1
    return {name for name in compared if not uses[name]}


def _adds_zero_otherwise(s: Branch, shadows: set[str]) -> bool:
    """Return whether a branch only computes and adds to adjoints, and has zeros as results where it is not taken."""
    for t in s.then:
        if not isinstance(t, ir.Assign) and not (isinstance(t, ir.Accumulate) and t.array.name in shadows):
            return False
    return not s.orelse and all(isinstance(j.orelse, Const) and j.orelse.value == 0 for j in s.joins)


def _discrete(value: Expr) -> set[str]:
    """The names on which conditions, indices and integers in an expression depend."""
    match value:
        case ir.Load(index=index):
            return used(index)
        case Op(name="select", args=(condition, *_)):
            return used((condition,))
        case Op(type=ty, args=args) if not isinstance(ty, (types.Float, types.Complex)):
            return used(args)
    return set()


def has_parallel_sum(code: ir.Function) -> bool:
    """Return whether a parallel loop has a sum or a product, whose rounding depends on the number of threads."""
    loops = [s for s in ir.walk(code.body) if isinstance(s, ir.For) and s.parallel]
    if any(s.reduces_arrays or any(kind in ("add", "mul") for _, kind in s.reductions) for s in loops):
        return True
    return any(isinstance(s, ir.Accumulate) and s.atomic for loop in loops for s in ir.walk(loop))
