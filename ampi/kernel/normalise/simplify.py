"""Constant folding: integer arithmetic, comparisons and conditions with a known outcome.

Floating-point arithmetic is left as written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.operators import compared
from ampi.kernel.ir.rewrite import mapped

_INTEGER: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}


def simplify(function: ir.Function) -> ir.Function:
    """The function with known integers, comparisons and branches resolved."""
    return replace(function, body=_Simplify(function).block(function.body))


class _Simplify:
    def __init__(self, function: ir.Function):
        self.constants: dict[str, np.ndarray] = dict(function.constants)
        self.shapes: dict[str, tuple[ir.Expr, ...]] = {name: _extents(a) for name, a in self.constants.items()}
        for s in ir.walk(function.body):
            if isinstance(s, ir.Alloc):
                self.shapes[s.target.name] = s.shape
            elif isinstance(s, ir.Alias) and s.array.name in self.shapes:
                self.shapes[s.target.name] = self.shapes[s.array.name][len(s.index) :]

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(s for statement in body for s in self.statement(statement))

    def statement(self, statement: ir.Stmt) -> tuple[ir.Stmt, ...]:
        match statement:
            case ir.If(condition=condition):
                known = self.expression(condition)
                if isinstance(known, ir.Const):
                    return self.block(statement.then if known.value else statement.orelse)
                then, orelse = self.block(statement.then), self.block(statement.orelse)
                if not then and not orelse:
                    return ()
                if not then:
                    known, then, orelse = ir.Op("not", (known,), types.boolean), orelse, ()
                return (replace(statement, condition=known, then=then, orelse=orelse),)
            case ir.For():
                bounds = {name: self.expression(getattr(statement, name)) for name in ("start", "stop", "step")}
                loop = replace(statement, **bounds, body=self.block(statement.body))
                trips = trip_count(loop)
                return () if trips == 0 else (loop,)
            case ir.While(condition=condition):
                known = self.expression(condition)
                if isinstance(known, ir.Const) and not known.value:
                    return ()
                return (replace(statement, condition=known, body=self.block(statement.body)),)
            case ir.Custom():
                body = self.block(statement.body)
                return (replace(mapped(replace(statement, body=()), self.fold), body=body),)
        statement = mapped(statement, self.fold)
        if isinstance(statement, (ir.Store, ir.Accumulate, ir.Alias)):
            statement = replace(statement, index=self.from_start(statement.array, statement.index))
        if isinstance(statement, ir.Alias) and statement.array.name in self.constants:
            place = _place(statement.index, self.constants[statement.array.name])
            if place is not None:
                self.constants[statement.target.name] = self.constants[statement.array.name][place]
        return (statement,)

    def expression(self, value: ir.Expr) -> ir.Expr:
        return mapped(value, self.fold)

    def from_start(self, array: ir.Var, index: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """Constant indices counted from the start, not from the end."""
        return tuple(self.counted(array, axis, i) for axis, i in enumerate(index))

    def counted(self, array: ir.Var, axis: int, index: ir.Expr) -> ir.Expr:
        if not (isinstance(index, ir.Const) and index.value < 0):
            return index
        size = self.fold(ir.Size(array, axis, types.int64))
        back = ir.Const(-index.value, types.int64)
        return self.fold(ir.Op("sub", (size, back), types.int64))

    def fold(self, value: ir.Expr) -> ir.Expr:
        if isinstance(value, ir.Load):
            value = replace(value, index=self.from_start(value.array, value.index))
        match value:
            case ir.Op(name="and" | "or" as word, args=(ir.Const(value=known), right)):
                return right if bool(known) == (word == "and") else ir.Const(bool(known), types.boolean)
            case ir.Op(name="and" | "or" as word, args=(left, ir.Const(value=known))) if bool(known) == (word == "and"):
                return left
            case ir.Op(name="not", args=(ir.Const(value=known),)):
                return ir.Const(not known, types.boolean)
            case ir.Op(name="select", args=(ir.Const(value=known), a, b)):
                return a if known else b
            case ir.Op(name="cast", args=(ir.Const(value=int(known)),)) if isinstance(value.type, types.Integer):
                return ir.Const(known, value.type) if _fits(known, value.type) else value
            case ir.Op(name=name, args=(ir.Const() as a, ir.Const() as b)):
                return self.binary(value, name, a, b)
            case ir.Load(array=array, index=index) if array.name in self.constants:
                return self.element(value, self.constants[array.name], index)
            case ir.Size(array=array, axis=axis) if array.name in self.shapes:
                size = self.shapes[array.name][axis]
                return ir.Const(size.value, types.int64) if isinstance(size, ir.Const) else value
        return value

    def binary(self, value: ir.Op, name: str, a: ir.Const, b: ir.Const) -> ir.Expr:
        integers = all(isinstance(v.type, types.Integer) for v in (a, b))
        outcome = compared(name, a, b)
        if outcome is not None:
            return outcome
        if name in _INTEGER and integers and isinstance(value.type, types.Integer):
            if name in ("floordiv", "mod") and b.value == 0:
                return value
            result = _INTEGER[name](a.value, b.value)
            return ir.Const(result, value.type) if _fits(result, value.type) else value
        return value

    def element(self, value: ir.Load, array: np.ndarray, index: tuple[ir.Expr, ...]) -> ir.Expr:
        place = _place(index, array)
        return value if place is None else ir.Const(array[place].item(), value.type)


def _place(index: tuple[ir.Expr, ...], array: np.ndarray) -> tuple[int, ...] | None:
    """A constant index within the bounds of an array, as integers, or None."""
    if not all(isinstance(i, ir.Const) and 0 <= i.value < n for i, n in zip(index, array.shape)):
        return None
    return tuple(i.value for i in index)


def _extents(array: np.ndarray) -> tuple[ir.Expr, ...]:
    return tuple(ir.Const(n, types.int64) for n in array.shape)


def _fits(value: int, type_: types.Integer) -> bool:
    return type_.minval <= value <= type_.maxval


def trip_count(loop: ir.For) -> int | None:
    """The number of iterations of a loop, if known."""
    bounds = (loop.start, loop.stop, loop.step)
    if not all(isinstance(b, ir.Const) for b in bounds) or loop.step.value == 0:
        return None
    return len(range(*(b.value for b in bounds)))
