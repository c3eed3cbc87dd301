"""Array expansion: operations on whole arrays become loops over elements.

``Elementwise`` statements become loops over the indices of the elements that are written, as one would write by hand;
where a value is stored in an element from which other values are computed, all are first computed in a temporary array.
Sizes that must agree, and are not proven to, are checked before the kernel is called, or before the branch or the
statement that needs them if it may not run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO, Integers, as_sum
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.rewrite import mapped


def expand(function: ir.Function) -> ir.Function:
    """The function (its views resolved) without ``Elementwise`` and ``Agree``."""
    return _Expansion(function).run()


def may_leave(s: ir.Stmt) -> bool:
    """Return whether statements after this one in its block may be skipped."""
    if isinstance(s, (ir.For, ir.While)):
        return any(isinstance(n, ir.Return) or (isinstance(n, ir.Raise) and not n.implied) for n in ir.walk(s))
    if isinstance(s, ir.If):
        return any(map(may_leave, (*s.then, *s.orelse)))
    return isinstance(s, (ir.Return, ir.Break, ir.Continue)) or (isinstance(s, ir.Raise) and not s.implied)


class _Expansion:
    def __init__(self, function: ir.Function):
        self.function = function
        self.integers = Integers(function)
        self.fresh = Names.of(function).variable
        self.roots: dict[str, str] = {}
        self.agreeing: list[ir.Agree] = []
        self.before: list[ir.If] | None = None  # the checks before the statement; None: they are made before the call
        self.parallel = 0  # parallel loops around the statement
        self.allocated: dict[str, tuple[ir.Expr, ...]] = {
            name: tuple(ir.Const(n, INT) for n in array.shape) for name, array in function.constants
        }
        self.line = function.first_line

    def run(self) -> ir.Function:
        body = self.block(self.function.body)
        return replace(self.function, body=body, agreeing=tuple(self.agreeing))

    def fail(self, problem: str) -> NoReturn:
        raise KernelError(f"{self.function.where(self.line)}: {stem(problem)}")

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        result: list[ir.Stmt] = []
        may_have_left = False
        for s in body:
            result += self.not_always((s,), self.statement) if may_have_left else self.statement(s)
            may_have_left = may_have_left or may_leave(s)
        return tuple(result)

    def branch(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return self.not_always((body,), self.block)

    def not_always(self, what: tuple[Any], expanded: Callable[[Any], tuple[ir.Stmt, ...]]) -> tuple[ir.Stmt, ...]:
        """Statements that may be skipped, preceded by the size checks that they need.

        Threads cannot raise errors: inside parallel loops the checks are made before the loop.
        """
        if self.parallel:
            return expanded(*what)
        around, self.before = self.before, []
        result = expanded(*what)
        checks, self.before = self.before, around
        return (*checks, *result)

    def statement(self, s: ir.Stmt) -> tuple[ir.Stmt, ...]:
        self.line = s.line or self.line
        match s:
            case ir.Alias(target=target, array=array):
                self.roots[target.name] = self.root(array.name)
            case ir.Alloc(target=target, shape=shape):
                self.allocated[target.name] = shape
            case ir.Elementwise():
                return self.elementwise(s)
            case ir.Agree():
                return self.agree(s)
            case ir.If():
                return (replace(s, then=self.branch(s.then), orelse=self.branch(s.orelse)),)
            case ir.For():
                self.integers.count(s)
                self.parallel += s.parallel
                body = self.block(s.body)
                self.parallel -= s.parallel
                return (replace(s, body=body),)
        return (ir.in_blocks(s, self.block),)

    # whole arrays

    def elementwise(self, s: ir.Elementwise) -> tuple[ir.Stmt, ...]:
        self.integers.count_axes(s.axes, s.shape)
        overlaps = self.overlaps_itself(s)
        if not (s.snapshot and overlaps):
            return self.loops(s, backwards=s.array.type.layout == "F" and not overlaps)
        dtype = s.array.type.dtype if inference.convertible(s.value.type, s.array.type.dtype) else s.value.type
        values = self.fresh(f"{s.array.name}_new", types.Array(dtype, len(s.axes), "C"))
        axes = tuple(self.fresh(a.name, INT) for a in s.axes)
        self.integers.count_axes(axes, s.shape)
        names = dict(zip((a.name for a in s.axes), axes, strict=True))
        renamed = lambda e: names.get(e.name, e) if isinstance(e, ir.Var) else e
        first = replace(s, array=values, index=s.axes, accumulate=False)
        index = tuple(mapped(i, renamed) for i in s.index)
        then = replace(s, axes=axes, index=index, value=ir.Load(values, axes, dtype))
        return (ir.Alloc(values, s.shape, None, line=s.line), *self.loops(first), *self.loops(then))

    def root(self, name: str) -> str:
        return self.roots.get(name, name)

    def overlaps_itself(self, s: ir.Elementwise) -> bool:
        """Return whether a value may be computed from an element in which another value is stored."""
        root = self.root(s.array.name)
        loads = [n for e in (s.value, *s.index) for n in ir.walk(e) if isinstance(n, ir.Load)]
        return any(self.root(n.array.name) == root and not self.same_element(n, s) for n in loads)

    def same_element(self, load: ir.Load, s: ir.Elementwise) -> bool:
        """Return whether equal indices show that no iteration loads an element that another iteration writes."""
        if load.array.name != s.array.name:
            return False
        axes = {axis.name for axis in s.axes}
        matched = set()
        for a, b in zip(load.index, s.index, strict=True):
            x = as_sum(a)
            moving = [t for t in x.terms if any(isinstance(n, ir.Var) and n.name in axes for n in ir.walk(t))]
            if x == as_sum(b) and len(moving) == 1 and isinstance(moving[0], ir.Var):
                matched.add(moving[0].name)
        return axes <= matched

    def loops(self, s: ir.Elementwise, backwards: bool = False) -> tuple[ir.Stmt, ...]:
        """The loops over the elements, counted by the indices of the array that is written."""
        starts = [self.offset(axis, s) for axis in s.axes]
        names = {a.name: index_algebra.sub(a, begin) for a, begin in zip(s.axes, starts, strict=True) if begin != ZERO}
        shift = lambda e: names.get(e.name, e) if isinstance(e, ir.Var) else index_algebra.tidy(e)
        value, index = mapped(s.value, shift), tuple(mapped(i, shift) for i in s.index)
        kind = ir.Accumulate if s.accumulate else ir.Store
        body: ir.Stmt = kind(s.array, index, value, line=s.line)
        order = list(zip(s.axes, starts, s.shape, strict=True))
        for axis, begin, size in order if backwards else reversed(order):
            body = ir.For(axis, begin, self.end(begin, size), ONE, (body,), line=s.line)
        return (replace(body, whole=True) if isinstance(body, ir.For) else body,)

    def offset(self, axis: ir.Var, s: ir.Elementwise) -> ir.Expr:
        """The first value of the index along an axis, if it increases in steps of one."""
        for i in s.index:
            total = as_sum(i)
            rest = total.plus(index_algebra.Sum(0, {axis: 1}), -1)
            names = {n.name for term in rest.terms for n in ir.walk(term) if isinstance(n, ir.Var)}
            if total.terms.get(axis) == 1 and names.isdisjoint(a.name for a in s.axes):
                begin = index_algebra.as_expression(rest)
                if self.integers.is_not_negative(begin):
                    return begin
        return ZERO

    @staticmethod
    def end(begin: ir.Expr, size: ir.Expr) -> ir.Expr:
        """The end of a range of this size; it may be before the beginning if the size is negative."""
        if isinstance(size, ir.Op) and size.name == "max" and size.args[1] == ZERO:
            size = size.args[0]
        return index_algebra.add(begin, size)

    # sizes

    def agree(self, s: ir.Agree) -> tuple[ir.Stmt, ...]:
        """The check of two sizes; nothing if they are proven to be equal, or can be checked before the call."""
        a, b = as_sum(s.first, self.known), as_sum(s.second, self.known)
        difference = a.plus(b, -1)
        if not difference.terms and difference.constant == 0:
            return ()
        problem = s.problem or f"arrays of different sizes in one operation; {ADVICE}"
        if not difference.terms or (not s.problem and index_algebra.Sum(1) in ((b,) if s.into else (a, b))):
            self.fail(problem)
        x, y = index_algebra.as_expression(a), index_algebra.as_expression(b)
        early = not s.problem and all(self.is_known_at_call(n) for e in (x, y) for n in ir.walk(e))
        before = self.before
        if early and before is None:
            if not any((c.first, c.second) == (x, y) for c in self.agreeing):
                self.agreeing.append(replace(s, first=x, second=y, line=self.line))
            return ()
        differ = ir.Op("ne", (x, y) if early else (s.first, s.second), types.boolean)
        text = f"{self.function.where(self.line)}: {problem}"
        error = ir.Raise(f"raise ValueError({text!r})", own=True, line=self.line)
        check = ir.If(differ, (error,), line=self.line)
        if not early or before is None:
            return (check,)
        if all(c.condition != differ for c in before):
            before.append(check)
        return ()

    def known(self, value: ir.Expr) -> ir.Expr | None:
        """The value of a variable that is assigned once, or of the size of a local array."""
        found: ir.Expr | None = None
        if isinstance(value, ir.Var):
            found = self.integers.definition.get(value.name)
        elif isinstance(value, ir.Size) and value.array.name in self.allocated:
            found = self.allocated[value.array.name][value.axis]
        return found if found is not None and self.integers.is_settled(found, value) else None

    def is_known_at_call(self, node: Any) -> bool:
        if isinstance(node, ir.Var):
            return node.name in self.integers.arguments
        return isinstance(node, (ir.Const, ir.Size, ir.Op))


ADVICE = (
    "an axis of size one is broadcast only if it is a whole axis of an argument, or its size shows in the source: "
    "insert the axis with None (x[:, None]), or take the element (x[0])"
)
