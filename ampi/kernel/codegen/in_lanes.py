"""Vector mode of derivative programs: derivatives become vectors over the directions, everything else is computed once.

Scalars and arrays that depend on a shadow or a seed get the type `Lanes`: such scalars are vectors, and such arrays
have one more axis, the last, for the directions.  Statements and their order do not change, so each direction's
results are bitwise identical to those of a run for that direction alone, if the programs are interpreted.  (Compiled
programs for one direction are cut into strips, which add up sums in another order, and with ``fastmath`` a compiler may
fuse a product and a sum.)

Programs that run on threads, have complex derivatives, call functions on whole arrays of derivatives, or store
derivatives in growing arrays are not transformed; they run once for each direction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.lanes import LINEAR, MASKS, Lanes
from ampi.kernel.ir.rebuild import names_of, rebuild
from ampi.kernel.ir.ssa import Branch, Custom, Loop, every

ROLES = ("shadow", "seed", "tangent")


class NotInLanes(Exception):
    """A program has to run once for each direction."""


def in_lanes(function: ir.Function, count: int, values: int = 0) -> ir.Function:
    """A program in single assignment form for ``count`` directions; its first ``values`` results are common to all.

    Raises `NotInLanes` if the program has to run once for each direction.
    """
    found = _Derivatives(function)
    return _Writer(function, found.names, count, values).function()


class _Derivatives:
    """The names that depend on shadows and seeds."""

    def __init__(self, function: ir.Function) -> None:
        self.names = {a.name for a in function.arguments if a.role is not None and a.role[0] in ROLES}
        seeds = set(self.names)
        statements = list(every(function.body))
        before = -1
        while before != len(self.names):
            before = len(self.names)
            for s in statements:
                self.enter(s)
        if ({a.name for a in function.arguments} - seeds) & self.names:
            raise NotInLanes("values of the kernel depend on derivatives")

    def has(self, e: Expr | None) -> bool:
        """Return whether an expression depends on derivatives."""
        match e:
            case Var(name=name):
                return name in self.names
            case Op(args=args):
                return any(map(self.has, args))
            case ir.Load(array=array):
                return array.name in self.names
            case _:
                return False

    def enter(self, s: Stmt) -> None:
        match s:
            case ir.Assign(target=target, value=value):
                if self.has(value):
                    self.names.add(target.name)
            case ir.Store(array=array, value=value) | ir.Accumulate(array=array, value=value):
                if self.has(value):
                    self.names.add(array.name)
            case ir.Alloc(target=target, fill=fill):
                if fill is not None and self.has(fill):
                    self.names.add(target.name)
            case Loop(carried=carried):
                self.names |= {c.var.name for c in carried if self.has(c.init) or self.has(c.next)}
            case Branch(joins=joins):
                self.names |= {j.var.name for j in joins if self.has(j.then) or self.has(j.orelse)}


class _Writer:
    def __init__(self, function: ir.Function, derivatives: set[str], count: int, values: int) -> None:
        self.given = function
        self.values = values
        self.derivatives = derivatives
        self.count = count
        self.names = names_of(function)
        self.seeds: dict[str, Var] = {}
        self.where: Expr | None = None  # the directions in which statements take effect; None: all

    def function(self) -> ir.Function:
        first: list[Stmt] = []
        arguments = []
        for a in self.given.arguments:
            if a.name not in self.derivatives:
                arguments.append(a)
                continue
            if isinstance(a.type, types.Array):
                arguments.append(replace(a, type=self.array(a.type)))
                continue
            row = types.Array(self.number(a.type), 1, "A")
            inside = Var(self.names.fresh(a.name), self.lanes(a.type))
            self.seeds[a.name] = inside
            first.append(ir.Assign(inside, ir.Load(Var(a.name, row), (), inside.type)))
            arguments.append(replace(a, type=row))
        body = (*first, *map(self.statement, self.given.body))
        return replace(self.given, name=f"{self.given.name}_lanes", arguments=tuple(arguments), body=body)

    # ------------------------------------------------------------------------------------------------ types

    def number(self, ty: Any) -> types.Float:
        if ty not in (types.float64, types.float32):
            raise NotInLanes(f"derivatives of the type {ty}")
        return ty

    def lanes(self, ty: Any) -> Lanes:
        """The vector type of a scalar: of numbers, or of conditions that derivatives are zero."""
        return Lanes(ty if ty == types.boolean else self.number(ty), self.count)

    def array(self, ty: types.Array) -> types.Array:
        return types.Array(self.number(ty.dtype), ty.ndim + 1, "A")

    def variable(self, v: Var) -> Var:
        if v.name not in self.derivatives:
            return v
        if v.name in self.seeds:
            return self.seeds[v.name]
        return Var(v.name, self.array(v.type) if isinstance(v.type, types.Array) else self.lanes(v.type))

    # ------------------------------------------------------------------------------------------ expressions

    def common(self, e: Expr) -> Expr:
        """An expression that is common to all directions."""
        for n in ir.walk(e):
            if isinstance(n, Var) and n.name in self.derivatives and not isinstance(n.type, types.Array):
                raise NotInLanes("an index, a condition or a size that depends on derivatives")
            if isinstance(n, ir.Load) and n.array.name in self.derivatives:
                raise NotInLanes("an index, a condition or a size that depends on derivatives")
        return self.sizes(e)

    def sizes(self, e: Expr) -> Expr:
        match e:
            case ir.Size(array=array):
                return replace(e, array=self.variable(array))
            case Op(args=args):
                return replace(e, args=tuple(map(self.sizes, args)))
            case ir.Load(index=index):
                return replace(e, index=tuple(map(self.sizes, index)))
            case _:
                return e

    def many(self, es: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple(map(self.common, es))

    def is_lanes(self, e: Expr) -> bool:
        return isinstance(e.type, Lanes)

    def operand(self, e: Expr) -> Expr:
        """An expression that may depend on derivatives: a vector over the directions if it does."""
        match e:
            case Var():
                return self.variable(e)
            case ir.Load(array=array, index=index):
                if array.name not in self.derivatives:
                    return self.common(e)
                return ir.Load(self.variable(array), self.many(index), self.lanes(e.type))
            case Op(name=name, args=args):
                operands = tuple(map(self.operand, args))
                if not any(map(self.is_lanes, operands)):
                    return self.common(e)
                return self.operation(name, operands, e.type)
            case _:
                return self.common(e)

    def operation(self, name: str, args: tuple[Expr, ...], ty: Any) -> Expr:
        if name in MASKS:
            return self.mask(name, args)
        if name not in LINEAR:
            raise NotInLanes(f"'{name}' of derivatives")
        lanes = self.lanes(ty)
        if name == "cast":
            return self.converted(args[0], lanes)
        if name in ("add", "sub", "neg", "pos"):
            return Op(name, tuple(self.spread(a, lanes) for a in args), lanes)
        if name == "select":
            return Op(name, (args[0], *(self.spread(a, lanes) for a in args[1:])), lanes)
        if name == "fused":
            *factors, more = args
            factors = [self.factor(a, lanes) for a in factors]
            if sum(map(self.is_lanes, factors)) != 1:
                raise NotInLanes("a product of two derivatives")
            return Op(name, (*factors, self.spread(more, lanes)), lanes)
        if sum(map(self.is_lanes, args)) != 1 or (name == "truediv" and not self.is_lanes(args[0])):
            raise NotInLanes("a product of two derivatives")
        return Op(name, tuple(self.factor(a, lanes) for a in args), lanes)

    def mask(self, name: str, args: tuple[Expr, ...]) -> Expr:
        """The directions in which derivatives are zero, or not."""
        if name in ("ne", "eq"):
            derivative, number = args
            if not (self.is_lanes(derivative) and isinstance(number, Const) and number.value == 0):
                raise NotInLanes("derivatives are compared")
            args = derivative, self.spread(number, derivative.type)  # type: ignore[assignment]
        else:
            args = tuple(self.spread(a, self.lanes(types.boolean)) for a in args)
        return Op(name, args, self.lanes(types.boolean))

    def factor(self, e: Expr, lanes: Lanes) -> Expr:
        """A factor in the precision of a product."""
        if self.is_lanes(e):
            return self.converted(e, lanes)
        return e if e.type == lanes.dtype else Op("cast", (e,), lanes.dtype)

    def spread(self, e: Expr, lanes: Lanes) -> Expr:
        """A value as a vector of this type."""
        if self.is_lanes(e):
            return self.converted(e, lanes)
        return Op("spread", (self.factor(e, lanes),), lanes)

    def converted(self, e: Expr, lanes: Lanes) -> Expr:
        return e if e.type == lanes else Op("cast", (e,), lanes)

    def as_target(self, value: Expr, target: Var) -> Expr:
        """A value in the type of the scalar to which it is assigned."""
        return self.spread(self.operand(value), target.type) if self.is_lanes(target) else self.common(value)

    # ------------------------------------------------------------------------------------------- statements

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(map(self.statement, body))

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case ir.Assign(target=target, value=value):
                target = self.variable(target)
                return replace(s, target=target, value=self.as_target(value, target))
            case ir.Store(array=array, index=index, value=value) | ir.Accumulate(array=array, index=index, value=value):
                if array.name not in self.derivatives:
                    return replace(s, index=self.many(index), value=self.common(value))
                if isinstance(s, ir.Accumulate) and s.atomic:
                    raise NotInLanes("threads add to the same elements")
                array, index = self.variable(array), self.many(index)
                lanes = self.lanes(array.type.dtype)
                value = self.spread(self.operand(value), lanes)
                if self.where is not None:  # unchanged in the other directions
                    zero = self.spread(Const(0.0, lanes.dtype), lanes)
                    other = zero if isinstance(s, ir.Accumulate) else ir.Load(array, index, lanes)
                    value = Op("select", (self.where, value, other), lanes)
                return replace(s, array=array, index=index, value=value)
            case ir.Alloc(target=target, shape=shape, fill=fill):
                return self.allocation(s, target, self.many(shape), fill)
            case Loop(carried=carried):
                found = []
                for c in carried:
                    var = self.variable(c.var)
                    found.append(
                        replace(c, var=var, init=self.as_target(c.init, var), next=self.as_target(c.next, var))
                    )
                if s.parallel:
                    raise NotInLanes("a loop on threads")
                body = self.block(s.body)
                return replace(s, start=self.common(s.start), stop=self.common(s.stop), carried=tuple(found), body=body)
            case Custom():
                raise NotInLanes("a custom derivative")
            case Branch():
                return self.branch(s)
            case ir.Return(values=values):
                found = (self.common(v) if k < self.values else self.result(v) for k, v in enumerate(values))
                return replace(s, values=tuple(found))
            case ir.Launch():
                raise NotInLanes("a loop on threads")
            case ir.Grow() | ir.Fill():
                for v in (s.target, *getattr(s, "arguments", ())):
                    if v.name in self.derivatives:
                        raise NotInLanes("whole arrays of derivatives")
                return rebuild(s, self.common, lambda v: v, self.block)
            case _:
                return rebuild(s, self.common, self.variable, self.block)

    def branch(self, s: Branch) -> Branch:
        """A branch; one whose condition depends on derivatives is taken if it holds in any direction, without effect on
        the others."""
        condition = self.operand(s.condition)
        apart = self.is_lanes(condition)
        if apart and s.orelse:
            raise NotInLanes("a choice that depends on derivatives")
        joins = []
        for j in s.joins:
            var = self.variable(j.var)
            then, orelse = self.as_target(j.then, var), self.as_target(j.orelse, var)
            if apart and self.is_lanes(var):
                then = Op("select", (condition, then, orelse), var.type)
            joins.append(replace(j, var=var, then=then, orelse=orelse))
        if not apart:
            then, orelse = self.block(s.then), self.block(s.orelse)
            return replace(s, condition=condition, then=then, orelse=orelse, joins=tuple(joins))
        around = self.where
        self.where = condition if around is None else Op("and", (around, condition), condition.type)
        then = self.block(s.then)
        self.where = around
        return replace(s, condition=Op("any", (condition,), types.boolean), then=then, joins=tuple(joins))

    def result(self, value: Expr) -> Expr:
        """The derivatives of a result."""
        if not isinstance(value.type, types.Array):
            return self.spread(self.operand(value), self.lanes(value.type))
        if not (isinstance(value, Var) and value.name in self.derivatives):
            raise NotInLanes("an array of zeros is a result")
        return self.variable(value)

    def allocation(self, s: ir.Alloc, target: Var, shape: tuple[Expr, ...], fill: Expr | None) -> ir.Alloc:
        if target.name not in self.derivatives:
            return replace(s, shape=shape, fill=None if fill is None else self.sizes(fill))
        whole = Var(target.name, self.array(target.type))
        if fill is None or isinstance(fill, Const):
            return replace(s, target=whole, shape=(*shape, Const(self.count, types.int64)), fill=fill)
        if isinstance(fill, Var) and fill.name in self.derivatives and isinstance(fill.type, types.Array):
            return replace(s, target=whole, shape=shape, fill=self.variable(fill))
        raise NotInLanes("an array of derivatives that begins as another one")
