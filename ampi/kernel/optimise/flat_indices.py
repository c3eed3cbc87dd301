"""Linearised subscripts: indices computed from a position in the flattened array are replaced by that position.

::

    i = k // n;  j = k % n;  a[i, j]        a[0, k]

where ``a`` is contiguous and ``n`` is the size of its last axis.  Reshaped views have such indices, and a division
takes a processor as long as twenty multiplications.  An index beyond the end of its axis is right for contiguous memory
only, so this pass comes last, after all passes that compare indices.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.ir import Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.ssa import ZERO, every, names_read
from ampi.kernel.optimise.unsigned_indices import unsigned

DIGITS = ("floordiv", "mod")


def with_flat_indices(function: ir.Function) -> ir.Function:
    """The function (in single assignment form) with flat indices, and without the quotients that become unused."""
    flat = _Flat(function)
    if not flat.operations:
        return function
    body = flat.block(function.body)
    return replace(function, body=_without_unused(body) if flat.found else function.body)


class _Flat:
    def __init__(self, function: ir.Function) -> None:
        self.function = function
        self.like = {a.name: a.role[1] for a in function.arguments if a.role and a.role[0] in ("shadow", "after")}
        self.shapes = {s.target.name: s.shape for s in every(function.body) if isinstance(s, ir.Alloc)}
        self.operations = {
            s.target.name: s.value
            for s in every(function.body)
            if isinstance(s, ir.Assign) and isinstance(s.value, Op) and s.value.name in DIGITS
        }
        self.found = False

    @functools.cached_property
    def accesses(self) -> tbr.Accesses:
        return tbr.collect(self.function)

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(ir.in_blocks(self.statement(s), self.block) for s in body)

    def statement(self, s: Stmt) -> Stmt:
        match s:
            case ir.Assign(value=ir.Load(array=array, index=index) as load) if array.type.layout == "C":
                return replace(s, value=replace(load, index=self.index(array, index)))
            case ir.Store(array=array, index=index) | ir.Accumulate(array=array, index=index):
                return replace(s, index=self.index(array, index)) if array.type.layout == "C" else s
        return s

    def index(self, array: Var, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        last = len(index) - 1
        while last > 0:
            first, place = self.digits(array, index, last)
            if first < last:
                self.found = True
                index = (*index[:first], *[ZERO] * (last - first), unsigned(place), *index[last + 1 :])
            last = first - 1
        return index

    def digits(self, array: Var, index: tuple[Expr, ...], last: int) -> tuple[int, Expr]:
        """The first of the axes up to ``last`` whose indices are the digits of one number, and that number."""
        number = rest = self.operand("mod", index[last], array, last)
        if number is None or rest is None or not tbr.is_nonnegative(number, self.accesses):
            return last, index[last]
        for axis in range(last - 1, -1, -1):
            if self.operand("floordiv", index[axis], array, axis + 1) == rest:
                return axis, number
            higher = self.operand("mod", index[axis], array, axis)
            if higher is None or self.operand("floordiv", higher, array, axis + 1) != rest:
                break
            rest = higher
        return last, index[last]

    def operand(self, name: str, value: Expr, array: Var, axis: int) -> Expr | None:
        """The dividend of a value that is a quotient, or a remainder, by the size of an axis."""
        op = self.operations.get(value.name) if isinstance(value, Var) else None
        if op is None or op.name != name:
            return None
        size = op.args[1]
        of = (array.name, self.like.get(array.name))
        shaped = isinstance(size, Size) and size.axis == axis and size.array.name in of
        local = array.name in self.shapes and size == self.shapes[array.name][axis]
        return op.args[0] if shaped or local else None


def _without_unused(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements without the quotients and remainders that no statement reads."""
    while True:
        read = set().union(*map(names_read, every(body)))
        unused = {
            s.target.name
            for s in every(body)
            if isinstance(s, ir.Assign) and isinstance(s.value, Op) and s.value.name in DIGITS
        } - read
        if not unused:
            return body
        body = _without(body, unused)


def _without(body: tuple[Stmt, ...], names: set[str]) -> tuple[Stmt, ...]:
    return tuple(
        ir.in_blocks(s, lambda block: _without(block, names))
        for s in body
        if not (isinstance(s, ir.Assign) and s.target.name in names)
    )
