"""Value numbering: a writer of programs in single assignment form that reuses values already computed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.intrinsics import constant, convert
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.operators import QUOTIENTS, compared
from ampi.kernel.ir.ssa import INT, ZERO, Loop, definitions


@dataclass
class Block:
    """Statements under construction, with the values available at their end."""

    statements: list[Stmt] = field(default_factory=list)
    operations: dict[Any, Expr] = field(default_factory=dict)
    loads: dict[Any, Expr] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)


class Builder:
    """Writes statements in single assignment form; equal operations and loads are written once.

    Different arrays are assumed not to overlap in memory.  ``raising``: divisions may raise an exception, and stores
    before them must not be dropped.
    """

    def __init__(self, names: Names, raising: bool = False) -> None:
        self.names = names
        self.raising = raising
        self.stack = [Block()]
        self.level: dict[str, int] = {}
        self.scaled: dict[str, tuple[float, Expr]] = {}  # values that are a power of two times another one
        self.counted: dict[str, Expr] = {}  # upper bounds of counters that start at zero
        self.integers: dict[str, Op] = {}  # sums and products of integers
        self.line = 0

    @property
    def block(self) -> Block:
        """The block to which statements are added."""
        return self.stack[-1]

    def emit(self, statement: Stmt) -> None:
        self.block.statements.append(statement)
        self.define(statement, len(self.stack) - 1)

    def define(self, statement: Stmt, level: int) -> None:
        for var in definitions(statement):
            self.level[var.name] = level

    def fresh(self, hint: str, ty: Any) -> Var:
        return Var(self.names.fresh(hint), ty)

    def inner(self, hint: str, ty: Any) -> Var:
        """A new variable of the loop that is about to begin; values computed from it stay inside."""
        var = self.fresh(hint, ty)
        self.level[var.name] = len(self.stack)
        return var

    def value(self, expression: Expr, hint: str = "t") -> Expr:
        """An atom for the value of a pure expression; operations are written unless their values are available."""
        if not isinstance(expression, Op):
            return expression
        args = tuple(self.value(a) for a in expression.args)
        args, scale = self.rescaled(expression.name, args, expression.type)
        folded = fold(expression.name, args, expression.type)
        if folded is None and expression.name in ("floordiv", "mod") and expression.type == INT:
            folded = self.digit(expression.name, *args)
        if folded is not None:
            return folded
        key = (expression.name, tuple(map(_key, args)), expression.type)
        known = self.block.operations.get(key)
        if known is None:
            known = self.fresh(hint, expression.type)
            level = self.outermost(expression.name, args, expression.type)
            statement = ir.Assign(known, Op(expression.name, args, expression.type), line=self.line)
            self.stack[level].statements.append(statement)
            self.level[known.name] = level
            for block in self.stack[level:]:
                block.operations[key] = known
            if expression.name in ("add", "mul") and isinstance(expression.type, types.Integer):
                self.integers[known.name] = statement.value
            if scale is not None:
                self.scaled[known.name] = scale
        return known

    def digit(self, name: str, number: Expr, size: Expr) -> Expr | None:
        """The quotient or remainder of ``h * size + l``, where ``l`` is a counter from zero to the size."""
        is_below = lambda e: isinstance(e, Var) and self.counted.get(e.name) == size
        if is_below(number):
            return ZERO if name == "floordiv" else number
        total = self.integers.get(number.name) if isinstance(number, Var) else None
        if total is None or total.name != "add":
            return None
        for high, low in (total.args, total.args[::-1]):
            product = self.integers.get(high.name) if isinstance(high, Var) and is_below(low) else None
            if product is not None and product.name == "mul" and size in product.args:
                quotient = product.args[0 if product.args[1] == size else 1]
                return quotient if name == "floordiv" else low
        return None

    def rescaled(
        self, name: str, args: tuple[Expr, ...], ty: Any
    ) -> tuple[tuple[Expr, ...], tuple[float, Expr] | None]:
        """The arguments of a product with a power of two, combined (exactly) with an earlier such product if possible.

        The second result is the power of two and the value that it multiplies, or None for other operations.
        """
        if name != "mul" or not isinstance(ty, types.Float):
            return args, None
        a, b = args if isinstance(args[0], Const) else args[::-1]
        if not isinstance(a, Const) or isinstance(b, Const) or b.type != ty or not _is_power_of_two(a.value):
            return args, None
        factor, of = a.value, b
        if isinstance(b, Var) and b.name in self.scaled:
            before, of = self.scaled[b.name]
            factor *= before
        return (constant(factor, ty), of), (factor, of)

    def outermost(self, name: str, args: tuple[Expr, ...], ty: Any) -> int:
        """The level of the outermost block that can hold an operation; only plain integers move outwards."""
        if name not in _MOVABLE or not isinstance(ty, types.Integer):
            return len(self.stack) - 1
        inside = len(self.stack) - 1
        variables = [self.level.get(a.name, inside) for a in args if isinstance(a, Var)]
        sizes = [self.level.get(a.array.name, 0) for a in args if isinstance(a, Size)]
        return max((*variables, *sizes), default=0)

    def load(self, array: Var, index: tuple[Expr, ...], hint: str = "t") -> Expr:
        key = (array.name, _place(index))
        known = self.block.loads.get(key)
        if known is None:
            known = self.fresh(hint, array.type.dtype)
            self.emit(ir.Assign(known, ir.Load(array, index, array.type.dtype), line=self.line))
            self.block.loads[key] = known
        return known

    def store(self, array: Var, index: tuple[Expr, ...], value: Expr) -> None:
        self.drop_store(array, index, only_zero=False)
        self.forget(array.name, index)
        value = self.value(convert(value, array.type.dtype))
        self.emit(ir.Store(array, index, value, line=self.line))
        self.block.loads[array.name, _place(index)] = value

    def accumulate(self, array: Var, index: tuple[Expr, ...], value: Expr, kind: str = "add") -> None:
        if kind == "add" and self.drop_store(array, index, only_zero=True):
            self.store(array, index, value)
            return
        self.forget(array.name, index)
        value = self.value(convert(value, array.type.dtype))
        self.emit(ir.Accumulate(array, index, value, kind=kind, line=self.line))

    def drop_store(self, array: Var, index: tuple[Expr, ...], only_zero: bool) -> bool:
        """Remove the last store to an element if nothing has touched the element since."""
        here = _place(index)
        statements = self.block.statements
        for k in range(len(statements) - 1, -1, -1):
            s = statements[k]
            match s:
                case ir.Store(array=other, index=place, value=value) if other == array and _place(place) == here:
                    if only_zero and not (isinstance(value, Const) and value.value == 0):
                        return False
                    del statements[k]
                    return True
                case ir.Assign(value=ir.Load(array=other, index=place)):
                    touched = other == array and not _differ(_place(place), here)
                case ir.Store(array=other, index=place) | ir.Accumulate(array=other, index=place):
                    touched = other == array and not _differ(_place(place), here)
                case ir.Assign(value=value):
                    touched = self.raising and isinstance(value, Op) and value.name in QUOTIENTS
                case _:
                    touched = True
            if touched:
                return False
        return False

    def forget(self, array: str, index: tuple[Expr, ...] = ()) -> None:
        """Drop the known values of an array's elements, except those that certainly have another index."""
        here = _place(index)
        for known in [k for k in self.block.loads if k[0] == array and not _differ(k[1], here)]:
            del self.block.loads[known]
        self.block.stored.add(array)

    def over(self, array: Var, body: Callable[[tuple[Expr, ...]], None], overwritten: set[str]) -> None:
        """Write loops over all elements of an array; ``body`` writes their body for an index."""

        def level(index: tuple[Expr, ...]) -> None:
            if len(index) == array.type.ndim:
                body(index)
                return
            i = self.inner("i", INT)
            with self.nested(overwritten) as block:
                level((*index, i))
            stop = Size(array, len(index), INT)
            self.emit(Loop(i.name, i, ZERO, stop, tuple(block.statements), independent=True, line=self.line))

        level(())

    @contextlib.contextmanager
    def nested(self, overwritten: set[str] = frozenset()) -> Iterator[Block]:
        """Write to a block inside the current one; ``overwritten`` are the arrays that other iterations of it write."""
        outer = self.block
        loads = {k: v for k, v in outer.loads.items() if k[0] not in overwritten}
        self.stack.append(Block([], dict(outer.operations), loads))
        try:
            yield self.block
        finally:
            for array in self.stack.pop().stored:
                self.forget(array)


def _is_power_of_two(x: Any) -> bool:
    return isinstance(x, (int, float)) and x > 0 and math.isfinite(x) and math.frexp(x)[0] == 0.5


_MOVABLE = {"add", "sub", "mul", "neg", "cast", "min", "max"}


def _key(atom: Expr) -> Any:
    return ("const", repr(atom.value), atom.type) if isinstance(atom, Const) else atom


def same(a: Expr, b: Expr) -> bool:
    """Return whether two atoms are bitwise identical values."""
    return _key(a) == _key(b)


Place = tuple[Any, ...]


def _place(index: tuple[Expr, ...]) -> Place:
    """The element that an index names: ``3`` and ``np.int32(3)`` are the same one."""
    return tuple([i.value if isinstance(i, Const) else i for i in index])


def _differ(a: Place, b: Place) -> bool:
    """Return whether two places certainly differ: different literals of the same sign in one dimension."""
    for x, y in zip(a, b):
        if isinstance(x, int) and isinstance(y, int) and x != y and x >= 0 and y >= 0:
            return True
    return False


def fold(name: str, args: tuple[Expr, ...], ty: Any) -> Expr | None:
    """The atom to which an operation simplifies, if any: neutral integers, constant conditions, casts."""
    match name, args:
        case "pos", (x,) if x.type == ty:
            return x
        case "mul", (Const(value=1.0), x) if isinstance(ty, types.Float) and x.type == ty:
            return x
        case "cast", (x,) if x.type == ty:
            return x
        case "cast", (Const(value=value),) if not isinstance(value, complex) and isinstance(ty, types.Float):
            return constant(value, ty)
        case "select", (Const(value=condition), a, b):
            chosen = a if condition else b
            return chosen if chosen.type == ty else None
        case "select", (_, a, b) if a == b and a.type == ty and _key(a) == _key(b):
            return a
        case "not", (Const(value=x),):
            return Const(not x, types.boolean)
        case _, (Const() as a, Const() as b) if (outcome := compared(name, a, b)) is not None:
            return outcome
        case ("neg", (Const(value=x),)) if not isinstance(x, bool) and ty == args[0].type and x != 0:
            return constant(-x, ty)
        case ("add" | "sub" | "mul", (Const(value=x), Const(value=y))) if isinstance(ty, types.Integer):
            return constant({"add": x + y, "sub": x - y, "mul": x * y}[name], ty)
        case ("add" | "sub", (x, Const(value=0))) if isinstance(ty, types.Integer) and x.type == ty:
            return x
        case ("add", (Const(value=0), x)) | ("mul", (Const(value=1), x)) | ("mul", (x, Const(value=1))) if (
            isinstance(ty, types.Integer) and x.type == ty
        ):
            return x
    return None
