"""The tangent of a kernel, by source transformation: the kernel with a derivative beside every active value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numba
from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.analysis.activity import Activity, analyse
from ampi.kernel.analysis.singularities import find_singularities
from ampi.kernel.differentiate.derivative import Derivative, arrays_read
from ampi.kernel.ir import (
    Const,
    Expr,
    Op,
    Size,
    Stmt,
    Var,
    decompositions,  # noqa: F401  registers its derivatives
    matrices,
)
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.custom_rules import Tangent
from ampi.kernel.ir.intrinsics import (
    LINEAR,
    arithmetic,
    constant,
    convert,
    is_differentiable,
    is_nonzero,
    nonzero_only,
    select,
    without_factors,
)
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.partials import tangent_of
from ampi.kernel.ir.rebuild import at_line, instance
from ampi.kernel.ir.ssa import INT, Branch, Carried, Custom, Join, Loop, definitions, every, results_of, written


@dataclass(frozen=True)
class Draft:
    """The first form of a kernel's tangent: the program, the kernel, and facts about both."""

    function: ir.Function
    primal: ir.Function
    active: frozenset[str]
    shadowed: tuple[ir.Argument, ...]
    scalars: tuple[ir.Argument, ...]
    result_active: tuple[bool, ...]

    def derivative(self, generated: ir.Function, needs: frozenset[str]) -> Derivative:
        """A program built from this draft, with the facts about it."""
        arrays = frozenset(a.name for a in self.primal.arguments if isinstance(a.type, types.Array))
        stored = {w.name for s in every(self.primal.body) if (w := written(s)) is not None}
        return Derivative(
            function=generated,
            needs=needs & arrays,
            reads=arrays_read(self.primal) & arrays,
            writes=frozenset(stored & arrays),
            becomes_active=frozenset(a.name for a in self.shadowed if a.name not in self.active),
            result_active=self.result_active,
            shadows=tuple(a.name for a in self.shadowed),
            scalars=tuple(a.name for a in self.scalars),
        )


def build(primal: ir.Function, active: frozenset[str], activity: Activity) -> Draft:
    """The tangent of a kernel.

    The generated function is called as ``tangent(*arguments, *shadows, *tangents of the active scalar arguments)``.
    It does what the kernel does to its arguments, carries the shadows (which hold tangents) along, and returns a
    tuple of the kernel's results followed by the tangents of those that are active.
    """
    return _Tangent(primal, active, activity).run()


class _Tangent(Builder):
    def __init__(self, primal: ir.Function, active: frozenset[str], activity: Activity) -> None:
        taken = {a.name for a in primal.arguments} | {v.name for s in every(primal.body) for v in definitions(s)}
        super().__init__(Names(taken))
        self.primal = primal
        self.active_arguments = active
        self.steep = find_singularities(primal.body).steep
        self.varied = activity.varied
        self.dot: dict[str, Expr] = {}
        seeds = [a.name for a in primal.arguments if a.role and a.role[0] in ("shadow", "seed")]
        self.adjoints = analyse(primal, seeds).varied if seeds else frozenset()  # where it is an adjoint program
        self.conditions = {
            s.target.name: s.value
            for s in every(primal.body)
            if isinstance(s, ir.Assign) and isinstance(s.value, Op) and isinstance(s.target.type, types.Boolean)
        }
        self.level.update({a.name: 0 for a in primal.arguments})

    def run(self) -> Draft:
        arguments = self.primal.arguments
        shadowed = [a for a in arguments if isinstance(a.type, types.Array) and a.name in self.varied]
        scalars = [a for a in arguments if not isinstance(a.type, types.Array) and a.name in self.active_arguments]
        for a in (*shadowed, *scalars):
            self.dot[a.name] = self.fresh(f"{a.name}_dot", a.type)
        results = results_of(self.primal)
        result_active = tuple(self.is_varied(v) for v in results)
        self.statements(tuple(s for s in self.primal.body if not isinstance(s, ir.Return)))
        values = (*results, *(self.tangent(v) for v in results if self.is_varied(v)))
        self.emit(ir.Return(values, line=self.primal.body[-1].line if results else self.primal.first_line))
        leaves = (
            *arguments,
            *(ir.Argument(self.dot[a.name].name, a.type, role=("shadow", a.name)) for a in shadowed),
            *(ir.Argument(self.dot[a.name].name, a.type, role=("tangent", a.name)) for a in scalars),
        )
        name, count = f"{self.primal.name}_tangent", len(results) + sum(result_active)
        generated = replace(
            self.primal, name=name, arguments=leaves, body=tuple(self.block.statements), result=("tuple", count)
        )
        active = self.active_arguments
        return Draft(generated, self.primal, active, tuple(shadowed), tuple(scalars), result_active)

    def is_varied(self, value: Expr) -> bool:
        return isinstance(value, Var) and value.name in self.varied

    def tangent(self, value: Expr) -> Expr:
        """The tangent of an atom; zero if it is passive."""
        if isinstance(value, Var) and value.name in self.dot:
            return self.dot[value.name]
        return constant(0, value.type)

    def statements(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            self.line = s.line or self.line
            self.statement(s)

    def statement(self, s: Stmt) -> None:
        match s:
            case ir.Assign(target=target, value=value):
                if target.name in self.varied:
                    self.assign(target, value, s)
                else:
                    self.emit(s)
            case ir.Store(array=array, index=index, value=value) if array.name in self.dot:
                self.store(self.dot[array.name], index, self.value(convert(self.tangent(value), array.type.dtype)))
                self.emit(s)
            case ir.Accumulate(array=array, index=index, value=value) if array.name in self.dot:
                if s.kind == "add" and self.is_varied(value):
                    self.accumulate(self.dot[array.name], index, self.tangent(value))
                self.emit(s)
            case ir.Alloc(target=target) if target.name in self.varied:
                fill = constant(0, target.type.dtype) if s.fill is None else self.tangent(s.fill)
                self.dot[target.name] = self.fresh(f"{stem(target.name)}_dot", target.type)
                self.emit(ir.Alloc(self.dot[target.name], s.shape, fill, line=s.line))
                self.emit(s)
            case ir.Fill(target=target, arguments=arguments) if target.name in self.dot:
                self.emit(replace(s, raises=s.function in matrices.RAISING))
                self.forget(target.name)
                dots = [d if isinstance(d := self.dot.get(a.name), Var) else None for a in arguments]
                matrices.tangent(self, s, target, arguments, self.dot[target.name], dots)
            case ir.Grow(target=target, size=size) if target.name in self.dot:
                self.emit(ir.Grow(self.dot[target.name], size, line=s.line))
                self.emit(s)
            case Custom() if any(n.name in self.varied for e in s.inputs for n in ir.walk(e) if isinstance(n, Var)):
                self.custom(s)
            case Branch():
                self.branch(s)
            case Loop():
                self.loop(s)
            case _:
                self.emit(s)

    def assign(self, target: Var, value: Expr, s: Stmt) -> None:
        hint = f"{stem(target.name)}_dot"
        self.emit(s)
        if isinstance(value, ir.Load):
            shadow = self.dot.get(value.array.name)
            self.dot[target.name] = self.load(shadow, value.index, hint) if shadow else constant(0, target.type)
            return
        assert isinstance(value, Op)
        total: Expr | None = None
        for k, argument in enumerate(value.args):
            if self.is_varied(argument) and is_differentiable(argument.type):
                d = (
                    self.value(convert(self.tangent(argument), value.type))
                    if value.name == "select"
                    else self.tangent(argument)
                )
                change = self.product(value, k, target, d, argument)
                if change is not None:
                    total = change if total is None else arithmetic("add", total, change)
        if value.name == "select" and total is not None:
            total = self.masked(value) or total
        self.dot[target.name] = constant(0, target.type) if total is None else self.value(total, hint)

    def product(self, op: Op, k: int, target: Var, d: Expr, argument: Expr) -> Expr | None:
        """The contribution of an operand's tangent to that of the result.

        It is zero where the derivative is zero, if the tangent may be infinite.
        """
        change = tangent_of(op, k, target, d)
        is_steep = isinstance(argument, Var) and argument.name in self.steep
        if change is None or not is_steep or op.name in LINEAR or not isinstance(op.type, types.Float):
            return change
        partial = tangent_of(op, k, target, constant(1, d.type))
        if partial is None or isinstance(partial, Const):
            return change
        return nonzero_only(without_factors(partial), change)

    def masked(self, op: Op) -> Expr | None:
        """The tangent of ``product if g != 0 else 0`` in an adjoint program; None for other selections.

        The product is that of an adjoint g and a partial derivative.  It is zero where g is, but where g has a tangent,
        the product has one.
        """
        condition, product, other = op.args
        if not (self.adjoints and isinstance(other, Const) and other.value == 0):
            return None
        wider = self.wider(condition)
        if wider is None:
            return None
        return select(wider, convert(self.tangent(product), op.type), constant(0, op.type))

    def wider(self, condition: Expr) -> Expr | None:
        """A condition on an adjoint, widened to hold also where its tangent is not zero; None for other conditions."""
        if isinstance(condition, Var):
            condition = self.conditions.get(condition.name, condition)
        match condition:
            case Op(name="ne", args=(Var(name=name) as g, Const(value=0))) if name in self.adjoints:
                return Op("or", (condition, is_nonzero(self.tangent(g))), types.boolean)
            case Op(name="and" | "or" as name, args=(first, second)):
                left, right = self.wider(first), self.wider(second)
                if left is None and right is None:
                    return None
                return Op(name, (left or first, right or second), types.boolean)
        return None

    def branch(self, s: Branch) -> None:
        if self.adjoints and (wider := self.wider(s.condition)) is not None:
            if any(is_differentiable(j.var.type) for j in s.joins):
                raise KernelError(
                    f"{self.primal.filename}:{s.line}: no second derivative of this line: its adjoint skips statements "
                    "where the incoming adjoint is zero"
                )
            s = replace(s, condition=self.value(wider))  # where only the adjoint is zero, zeros are added
        with self.nested() as then:
            self.statements(s.then)
        with self.nested() as orelse:
            self.statements(s.orelse)
        joins = list(s.joins)
        for j in s.joins:
            if j.var.name in self.varied:
                dot = self.fresh(f"{stem(j.var.name)}_dot", j.var.type)
                joins.append(Join(dot, self.tangent(j.then), self.tangent(j.orelse)))
                self.dot[j.var.name] = dot
        self.emit(replace(s, then=tuple(then.statements), orelse=tuple(orelse.statements), joins=tuple(joins)))

    def custom(self, s: Custom) -> None:
        """Write the user's tangent of a call."""
        rule = s.rule if isinstance(s.rule, Tangent) else s.rule.tangent
        if rule is None:
            raise KernelError(
                f"{self.primal.filename}:{s.line}: '{s.rule.name}' has a custom adjoint and no tangent; "
                f"differentiate in reverse mode, or define the tangent with {s.rule.name}.defjvp"
            )
        function = construct(rule.function)
        values = [self.whole(e) for e in s.arguments]
        dots = [self.whole_dot(e, value) for e, value in zip(s.arguments, values) if is_differentiable(e.type)]
        names = [a.name for a in (*rule.primals, *rule.tangents)]
        named = dict(zip(names, (*values, *dots), strict=True))
        named |= {n: Var(n, numba.typeof(array)) for n, array in function.constants}
        own = {t.target.name for t in every(s.then) if isinstance(t, ir.Alloc)}
        for e, at in zip(s.results, rule.values):
            if isinstance(e, ir.Load) and e.array.name in own:
                named[results_of(function)[at].name] = e.array
        body, returned = instance(function, named, self.names)
        for statement in body if function.filename == self.primal.filename else at_line(body, s.line):
            self.emit(statement)
        for array in {w.name for t in every(body) if (w := written(t)) is not None}:
            self.forget(array)
        numbers = iter(s.joins)
        for e, at, dot in zip(s.results, rule.values, rule.dots, strict=True):
            if isinstance(e, ir.Load):
                self.array_result(e, returned[at], None if dot is None else returned[dot], own)
                continue
            output = next(numbers).var
            self.emit(ir.Assign(output, self.value(convert(returned[at], output.type)), line=s.line))
            if dot is not None:
                self.dot[output.name] = self.value(convert(returned[dot], output.type))

    def whole(self, e: Expr) -> Expr:
        """An argument of a call with a rule: a number, an array, or a copy of a part."""
        if not isinstance(e, ir.Load):
            return e
        return e.array if not e.index else self.part(e.array, e)

    def whole_dot(self, e: Expr, like: Expr) -> Expr:
        """The tangent of an argument of a call with a rule."""
        if not isinstance(e, ir.Load):
            return self.tangent(e)
        dot = self.dot.get(e.array.name)
        if isinstance(dot, Var):
            return dot if not e.index else self.part(dot, e)
        assert isinstance(like, Var)
        target = self.fresh(f"{stem(e.array.name)}_dot", types.Array(e.type.dtype, e.type.ndim, "C"))
        shape = tuple(Size(like, k, INT) for k in range(e.type.ndim))
        self.emit(ir.Alloc(target, shape, constant(0, e.type.dtype), line=self.line))
        self.forget(target.name)
        return target

    def part(self, array: Var, e: ir.Load) -> Var:
        """A copy of a part of an array."""
        target = self.fresh(array.name, types.Array(e.type.dtype, e.type.ndim, "C"))
        shape = tuple(Size(array, k, INT) for k in range(len(e.index), array.type.ndim))
        self.emit(ir.Alloc(target, shape, None, line=self.line))
        self.forget(target.name)
        self.over(target, lambda i: self.store(target, i, self.load(array, (*e.index, *i))), {target.name})
        return target

    def array_result(self, e: ir.Load, value: Expr, dot: Expr | None, own: set[str]) -> None:
        """An array that a call with a rule returns: a new one, or one of its arguments."""
        assert isinstance(value, Var) and (dot is None or isinstance(dot, Var))
        if e.array.name in own:
            self.dot[e.array.name] = self.whole_dot(e, value) if dot is None else dot
        elif e.index:
            for array, new in ((e.array, value), (self.dot.get(e.array.name), dot)):
                if isinstance(array, Var) and new is not None:
                    move = lambda i, a=array, n=new: self.store(a, (*e.index, *i), self.load(n, i))
                    self.over(new, move, {array.name})
        elif dot is None and isinstance(there := self.dot.get(e.array.name), Var):
            zero = constant(0, there.type.dtype)
            self.over(there, lambda i: self.store(there, i, zero), {there.name})

    def loop(self, s: Loop) -> None:
        moving = [c for c in s.carried if c.var.name in self.varied]
        begins = [self.tangent(c.init) for c in moving]
        for c in s.carried:
            self.level[c.var.name] = len(self.stack)
        for c in moving:
            self.dot[c.var.name] = self.inner(f"{stem(c.var.name)}_dot", c.var.type)
        changed = {w.name for t in every(s.body) if (w := written(t)) is not None}
        changed |= {d.name for name in changed if isinstance(d := self.dot.get(name), Var)}
        with self.nested(changed) as block:
            self.statements(s.body)
            ends = [self.tangent(c.next) for c in moving]
        extra = []
        for c, begin, end in zip(moving, begins, ends):
            dot = self.dot[c.var.name]
            assert isinstance(dot, Var)
            extra.append(Carried(dot, begin, end))
        self.emit(replace(s, body=tuple(block.statements), carried=(*s.carried, *extra)))
