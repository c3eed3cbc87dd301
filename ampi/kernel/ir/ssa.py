"""Static single assignment: the form in which kernels are analysed and differentiated.

In this form every scalar is assigned once per execution of its block, every operand is an atom (a ``Var``, a ``Const``
or a ``Size`` of an argument), loops have unit step, views are resolved, and two statements replace those of ``ir``:

* ``Loop`` names its loop-carried scalars (``Carried``);
* ``Branch`` names the scalars that its two sides join (``Join``).

The module has these statements, and functions for their blocks, reads and definitions.  ``construct`` converts the
parsed form to this one and ``destruct`` converts back; ``builder`` writes programs in it, and ``rebuild`` copies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Stmt, Var
from ampi.kernel.ir.intrinsics import is_differentiable
from ampi.kernel.ir.nodes import block_fields

INT = types.int64
ZERO, ONE = Const(0, INT), Const(1, INT)


@dataclass(frozen=True)
class Carried:
    """A scalar that lives from one iteration to the next: ``var`` is ``init`` before the first iteration, becomes
    ``next`` at the end of each, and keeps its last value after the loop."""

    var: Var
    init: Expr
    next: Expr


@dataclass(frozen=True)
class Loop(Stmt):
    """``for var in range(start, stop, step)``, or ``while condition`` where ``condition`` is a carried scalar.

    A ``while`` loop carries a counter of its iterations, ``var``, which is also the number of trips after the loop.
    ``step`` is one except in reversed loops of derivatives, where it is minus one.  ``name`` identifies the loop.
    The iterations of an ``independent`` loop may run in any order; those of a ``parallel`` one also at the same time.
    ``whole``: an operation on whole arrays, which Numba runs on threads where it can.  ``axis``: that of `ir.For`.
    """

    name: str
    var: Var
    start: Expr
    stop: Expr
    body: tuple[Stmt, ...]
    carried: tuple[Carried, ...] = ()
    step: int = 1
    condition: Var | None = None
    parallel: bool = False
    independent: bool = False
    whole: bool = False
    axis: str = ""


@dataclass(frozen=True)
class Join:
    var: Var
    then: Expr
    orelse: Expr


@dataclass(frozen=True)
class Branch(Stmt):
    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()
    joins: tuple[Join, ...] = ()


@dataclass(frozen=True)
class Custom(Branch):
    """``ir.Custom``: ``then`` is the body, always run; the joins are the results that are numbers.

    Arguments and results that are arrays, or parts of arrays, are ``Load``s with fewer indices than dimensions.
    """

    arguments: tuple[Expr, ...] = ()
    results: tuple[Expr, ...] = ()
    residuals: tuple[Expr, ...] = ()
    rule: Any = None

    @property
    def inputs(self) -> tuple[Expr, ...]:
        """The arguments that can carry derivatives."""
        return tuple(e for e in self.arguments if is_differentiable(e.type))


def blocks(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks of statements inside a statement."""
    return tuple([getattr(s, name) for name in block_fields(type(s))])


def every(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a block and of the blocks inside them, in the order of the text."""
    return chain.from_iterable(map(_with_inner, body))


def _with_inner(s: Stmt) -> tuple[Stmt, ...]:
    """A statement and all statements inside it."""
    if not isinstance(s, (Loop, Branch)):
        return (s,)
    known = s.__dict__
    found = known.get("_with_inner")
    if found is None:  # statements do not change
        found = known["_with_inner"] = (s, *chain.from_iterable(map(every, blocks(s))))
    return found


def reads(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates, without its blocks and the arrays that it writes."""
    match s:
        case ir.Assign(value=value):
            return (value,)
        case ir.Store(index=index, value=value) | ir.Accumulate(index=index, value=value):
            return (*index, value)
        case ir.Alloc(shape=shape, fill=fill):
            return shape if fill is None else (*shape, fill)
        case ir.Grow(size=size):
            return (size,)
        case ir.Fill(arguments=arguments):
            return arguments
        case ir.Return(values=values):
            return values
        case Loop(start=start, stop=stop, carried=carried):
            return (start, stop, *(c.init for c in carried), *(c.next for c in carried))
        case Branch(condition=condition, joins=joins):
            more = (*s.arguments, *s.results, *s.residuals) if isinstance(s, Custom) else ()
            return (condition, *(j.then for j in joins), *(j.orelse for j in joins), *more)
        case ir.Launch(start=start, stop=stop, arguments=arguments, reduced=reduced, shared=shared, distinct=distinct):
            indices = (r.index for r in s.reaches)
            return (start, stop, *arguments, *(r.init for r in reduced), *shared, *distinct, *indices)
        case ir.Raise():
            return ()
    raise AssertionError(s)


def names_read(s: Stmt) -> frozenset[str]:
    """The variables in ``reads``."""
    known = s.__dict__
    found = known.get("_names_read")
    if found is None:  # statements do not change
        found = known["_names_read"] = frozenset(n.name for e in reads(s) for n in ir.walk(e) if isinstance(n, Var))
    return found


def definitions(s: Stmt) -> tuple[Var, ...]:
    """The variables that a statement itself defines."""
    match s:
        case ir.Assign(target=target) | ir.Alloc(target=target):
            return (target,)
        case Loop(var=var, carried=carried):
            return (var, *(c.var for c in carried if c.var != var))
        case Branch(joins=joins):
            return tuple(j.var for j in joins)
        case ir.Launch(reduced=reduced, temporaries=temporaries):
            return (*(r.var for r in reduced), *temporaries.values())
        case _:
            return ()


def results_of(function: ir.Function) -> tuple[Expr, ...]:
    """The leaves of a function's result."""
    last = function.body[-1] if function.body else None
    return last.values if isinstance(last, ir.Return) else ()


def written(s: Stmt) -> Var | None:
    """The array whose elements a statement writes."""
    match s:
        case ir.Store(array=array) | ir.Accumulate(array=array):
            return array
        case ir.Grow(target=target) | ir.Alloc(target=target) | ir.Fill(target=target):
            return target
        case _:
            return None


def with_innermost_loops(body: tuple[Stmt, ...], change: Callable[[Loop], Loop]) -> tuple[Stmt, ...]:
    """Apply a function to all innermost loops in statements."""
    out: list[Stmt] = []
    for s in body:
        innermost = isinstance(s, Loop) and not contains_loop(s.body)
        out.append(change(s) if innermost else ir.in_blocks(s, lambda block: with_innermost_loops(block, change)))
    return tuple(out)


def contains_loop(body: tuple[Stmt, ...]) -> bool:
    return any(isinstance(s, Loop) or any(contains_loop(b) for b in blocks(s)) for s in body)


def is_rectangular(loop: Loop, outermost: Loop) -> bool:
    """Return whether the range of a loop is fixed before ``outermost`` (around it, or itself) begins."""
    if loop.condition is not None:
        return False
    inside = {v.name for t in every((outermost,)) for v in definitions(t)}
    return all(not isinstance(e, Var) or e.name not in inside for e in (loop.start, loop.stop))
