"""Scalar replacement: small local arrays with constant indices become scalars, one per element."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.inference import result_type
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped

MAX_ELEMENTS = 64

Place = tuple[str, tuple[int, ...]]  # an array and leading indices


def scalarise(function: ir.Function, max_elements: int = MAX_ELEMENTS) -> ir.Function:
    """Replace local arrays of at most ``max_elements`` that are only used element by element, at constant indices."""
    return _Scalarise(function, max_elements).run()


class _Scalarise:
    def __init__(self, function: ir.Function, max_elements: int):
        self.function = function
        self.allocations = {s.target.name: s for s in ir.walk(function.body) if isinstance(s, ir.Alloc)}
        self.shapes = {
            name: shape
            for name, alloc in self.allocations.items()
            if (shape := _constants(alloc.shape)) is not None and math.prod(shape) <= max_elements
        }
        self.views: dict[str, Place] = {name: (name, ()) for name in self.shapes}

    def run(self) -> ir.Function:
        self.follow_views()
        escaping = {self.views[n][0] for n in self.views if self.escapes(n)}
        for name in escaping | self.shared() | self.across_rules():
            self.shapes.pop(name, None)
        self.views = {n: place for n, place in self.views.items() if place[0] in self.shapes}
        if not self.shapes:
            return self.function
        names = Names.of(self.function)
        self.scalars = {
            (name, index): names.variable("_".join(map(str, (name, *index))), self.dtype(name))
            for name, shape in self.shapes.items()
            for index in itertools.product(*map(range, shape))
        }
        return replace(self.function, body=self.block(self.function.body))

    def dtype(self, name: str) -> types.Type:
        return self.allocations[name].target.type.dtype

    # the arrays to replace

    def follow_views(self) -> None:
        """Find the names of parts of the arrays, at constant indices."""
        for s in ir.walk(self.function.body):
            if isinstance(s, ir.Alias) and s.array.name in self.views:
                index = _constants(s.index)
                if index is not None:
                    name, leading = self.views[s.array.name]
                    self.views[s.target.name] = name, leading + index

    def shared(self) -> set[str]:
        """Arrays that the iterations of a parallel loop, or the threads of a block, share.  As scalars they would be
        carried from one to another."""
        shared: set[str] = set()
        for loop in ir.walk(self.function.body):
            if isinstance(loop, ir.For) and (loop.parallel or loop.axis):
                own = {s.target.name for s in ir.walk(loop.body) if isinstance(s, ir.Alloc)}
                used = {n.name for n in ir.walk(loop.body) if isinstance(n, ir.Var) and n.name in self.views}
                shared |= {self.views[name][0] for name in used} - own
        return shared

    def across_rules(self) -> set[str]:
        """Arrays used both inside and outside a call with custom derivatives.  No scalar but its results leaves it."""
        uses = Counter(self.places_used(self.function.body))
        across: set[str] = set()
        for call in ir.walk(self.function.body):
            if isinstance(call, ir.Custom):
                inside = Counter(self.places_used(call.body))
                across |= {name for name, count in inside.items() if count != uses[name]}
        return across

    def places_used(self, body: tuple[ir.Stmt, ...]) -> Iterator[str]:
        """The array for which each name in a block stands."""
        return (self.views[n.name][0] for n in ir.walk(body) if isinstance(n, ir.Var) and n.name in self.views)

    def escapes(self, name: str) -> bool:
        """Return whether a name is used in any other way than element by element, at constant indices within bounds."""
        uses = sum(isinstance(n, ir.Var) and n.name == name for n in ir.walk(self.function.body))
        return uses != sum(self.element_uses(n, name) for n in ir.walk(self.function.body))

    def element_uses(self, node: Any, name: str) -> int:
        """The number of uses of the name in this node that address one element at a constant index, or none."""
        match node:
            case ir.Load(array=array, index=index) | ir.Store(array=array, index=index) if array.name == name:
                return self.element(name, index) is not None
            case ir.Accumulate(array=array, index=index) if array.name == name:
                return self.element(name, index) is not None
            case ir.Size(array=array) if array.name == name:
                return 1
            case ir.Alloc(target=target) if target.name == name:
                return 1
            case ir.Alias(target=target, array=array):
                defines = target.name == name and self.views.get(name, (name, ()))[0] != name
                known = array.name == name and self.views.get(target.name, (None,))[0] == self.views[name][0]
                return defines + known
        return 0

    def element(self, name: str, index: tuple[ir.Expr, ...]) -> Place | None:
        """The array and place of ``name[index]``; None unless the index is constant and within bounds."""
        constants = _constants(index)
        if constants is None:
            return None
        array, leading = self.views[name]
        place = leading + constants
        shape = self.shapes.get(array)
        if shape is None or not all(0 <= i < n for i, n in zip(place, shape, strict=True)):
            return None
        return array, place

    # replacing

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(s for statement in body for s in self.statement(statement))

    def statement(self, s: ir.Stmt) -> tuple[ir.Stmt, ...]:
        match s:
            case ir.Alloc(target=target, fill=fill) if target.name in self.shapes:
                return self.allocate(s, target.name, fill)
            case ir.Alias(target=target) if target.name in self.views:
                return ()
            case ir.Store(array=array, index=index, value=value) if array.name in self.views:
                scalar = self.scalar(array.name, index)
                return (ir.Assign(scalar, cast(self.expression(value), scalar.type), line=s.line),)
            case ir.Accumulate(array=array, index=index, value=value) if array.name in self.views:
                scalar, value = self.scalar(array.name, index), self.expression(value)
                return (ir.Assign(scalar, _sum(scalar, value), line=s.line),)
            case ir.If():
                return (
                    replace(
                        s,
                        condition=self.expression(s.condition),
                        then=self.block(s.then),
                        orelse=self.block(s.orelse),
                    ),
                )
            case ir.For():
                bounds = {name: self.expression(getattr(s, name)) for name in ("start", "stop", "step")}
                return (replace(s, **bounds, body=self.block(s.body)),)
            case ir.While():
                return (replace(s, condition=self.expression(s.condition), body=self.block(s.body)),)
            case ir.Custom():
                outside = mapped(replace(s, body=()), self.replaced)
                return (replace(outside, body=self.block(s.body)),)
        return (mapped(s, self.replaced),)

    def allocate(self, s: ir.Alloc, name: str, fill: ir.Expr | None) -> tuple[ir.Stmt, ...]:
        # Elements of np.empty are undefined; zero makes every scalar defined.
        dtype = s.target.type.dtype
        value = cast(ir.Const(0, types.int64), dtype) if fill is None else self.expression(fill)
        return tuple(
            ir.Assign(self.scalars[name, index], value, line=s.line)
            for index in itertools.product(*map(range, self.shapes[name]))
        )

    def expression(self, value: ir.Expr) -> ir.Expr:
        return mapped(value, self.replaced)

    def replaced(self, value: ir.Expr) -> ir.Expr:
        match value:
            case ir.Load(array=array, index=index) if array.name in self.views:
                return self.scalar(array.name, index)
            case ir.Size(array=array, axis=axis) if array.name in self.views:
                name, leading = self.views[array.name]
                return ir.Const(self.shapes[name][len(leading) + axis], types.int64)
        return value

    def scalar(self, name: str, index: tuple[ir.Expr, ...]) -> ir.Var:
        place = self.element(name, index)
        assert place is not None
        return self.scalars[place]


def _constants(values: tuple[ir.Expr, ...]) -> tuple[int, ...] | None:
    return tuple(v.value for v in values) if all(isinstance(v, ir.Const) for v in values) else None


def _sum(scalar: ir.Var, value: ir.Expr) -> ir.Expr:
    type_ = result_type(operator.add, (scalar.type, value.type))
    return cast(ir.Op("add", (scalar, value), type_), scalar.type)
