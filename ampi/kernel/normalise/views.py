"""View resolution: an element of a part of an array becomes an element of the array itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ZERO, Integers
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.rewrite import mapped
from ampi.kernel.normalise.array_phi import references


def resolve_views(function: ir.Function) -> ir.Function:
    """Resolve views; ``Alias`` and ``View`` are left only for names that stand for one of several arrays."""
    captured: set[str] = set()
    while True:
        try:
            return _Views(function, captured).run()
        except _Stale as problem:
            captured = captured | {problem.name}


class _Stale(Exception):
    """A part of a name's previous array is used after the name was bound again."""

    def __init__(self, name: str):
        super().__init__(name)
        self.name = name


class _Views:
    def __init__(self, function: ir.Function, captured: set[str]):
        self.function = function
        self.captured = captured  # views that stay valid when the name is bound again
        self.integers = Integers(function)
        self.fresh = Names.of(function).variable
        self.references = references(function)
        aliases = [n for n in ir.walk(function.body) if isinstance(n, ir.Alias)]
        self.rebound_to = {n.array.name for n in aliases if n.target.name in self.references}
        self.views: dict[str, ir.View] = {}
        self.stale: set[str] = set()  # views of a name's previous array
        self.line = function.first_line

    def run(self) -> ir.Function:
        return replace(self.function, body=self.block(self.function.body))

    def fail(self, problem: str) -> NoReturn:
        raise KernelError(f"{self.function.where(self.line)}: {stem(problem)}")

    # statements

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(new for s in body for new in self.statement(s))

    def statement(self, s: ir.Stmt) -> tuple[ir.Stmt, ...]:
        self.line = s.line or self.line
        match s:
            case ir.View() if s.target.name in self.rebound_to:
                array, index = self.element(s.array, self.all(s.index))
                return (replace(s, array=array, index=index, shape=self.all(s.shape)),)
            case ir.View():
                return self.capture(s)
            case ir.Alias(target=target) if target.name in self.references:
                self.rebind(s)
                return (self.element_statement(s),)
            case ir.Alias(target=target, index=index):
                index = self.all(index)
                settled = all(self.integers.is_settled(i, target) for i in index)
                if s.array.name in self.views or (settled and not (index and target.name in self.rebound_to)):
                    self.add(self.part(replace(s, index=index)))
                    return ()
                return (replace(s, index=index),)
            case ir.Elementwise():
                shape = self.all(s.shape)
                self.integers.count_axes(s.axes, shape)
                s = replace(s, shape=shape, value=self.expression(s.value))
                return (self.element_statement(s),)
            case ir.Store() | ir.Accumulate():
                return (self.element_statement(replace(s, value=self.expression(s.value))),)
            case ir.Custom():
                return self.custom(s)
            case ir.If():
                condition = self.expression(s.condition)
                return (replace(s, condition=condition, then=self.block(s.then), orelse=self.block(s.orelse)),)
            case ir.While():
                self.enter(s)
                return (replace(s, condition=self.expression(s.condition), body=self.block(s.body)),)
            case ir.For():
                bounds = {name: self.expression(getattr(s, name)) for name in ("start", "stop", "step")}
                s = replace(s, **bounds)
                self.integers.count(s)
                self.enter(s)
                return (replace(s, body=self.block(s.body)),)
        return (mapped(s, self.resolved),)

    def custom(self, s: ir.Custom) -> tuple[ir.Stmt, ...]:
        """A call with a custom rule, which takes arrays, and parts at leading indices, by name."""
        before: list[ir.Stmt] = []
        for e in (*s.arguments, *s.results):
            view = self.view(e) if isinstance(e, ir.Var) else None
            if view is None or self.is_whole(view) or any(n.target == e for n in before if isinstance(n, ir.Alias)):
                continue
            leading = view.index[: len(view.index) - len(view.axes)]
            axes = {axis.name for axis in view.axes}
            whole = all(self.is_whole_axis(view, k) for k in range(len(axes))) and view.index == (*leading, *view.axes)
            if not whole or any(isinstance(n, ir.Var) and n.name in axes for i in leading for n in ir.walk(i)):
                self.fail(
                    f"'{s.rule.name}' has a custom derivative and is called with a slice; pass a copy of the slice"
                )
            before.append(ir.Alias(view.target, view.array, leading, line=s.line))
        keep = {n.target.name for n in before if isinstance(n, ir.Alias)}
        resolved = lambda e: e if isinstance(e, ir.Var) and e.name in keep else self.expression(e)
        parts = {name: tuple(map(resolved, getattr(s, name))) for name in ("arguments", "results", "residuals")}
        outputs = tuple(resolved(v) for v in s.outputs)
        return (*before, replace(s, body=self.block(s.body), outputs=outputs, **parts))

    def element_statement(self, s: Any) -> Any:
        """A statement that writes elements."""
        array, index = self.element(s.array, self.all(s.index))
        return replace(s, array=array, index=index)

    # names that stand for different arrays

    def rebind(self, s: ir.Alias) -> None:
        view = self.view(s.array)
        if view is not None and not self.is_whole(view):
            self.fail(
                f"'{s.target.name}' stands for different arrays, and '{s.array.name}' is only a part of one; copy the "
                "part, or give it another name"
            )
        self.stale |= {name for name, view in self.views.items() if view.array.name == s.target.name}

    def enter(self, s: ir.For | ir.While) -> None:
        """Drop views of names that a loop binds again."""
        bound = {n.target.name for n in ir.walk(s.body) if isinstance(n, ir.Alias)} & self.references
        self.stale |= {name for name, view in self.views.items() if view.array.name in bound}

    # views

    def capture(self, s: ir.View) -> tuple[ir.Stmt, ...]:
        """Note a view, under a new name if its array's name is bound again while the view is in use."""
        array = s.array
        whole = self.views.get(array.name)
        if whole is not None and array.name not in self.stale and self.is_whole(whole):
            array = whole.array
        if s.target.name not in self.captured or array.name not in self.references:
            self.add(s)
            return ()
        now = self.fresh(f"{array.name}_then", array.type)
        self.add(replace(s, array=now))
        return (ir.Alias(now, array, (), line=s.line),)

    def add(self, view: ir.View) -> None:
        """Note a view as a part of an array that is no view itself."""
        shape = self.all(view.shape)
        self.integers.count_axes(view.axes, shape)
        array, index = self.element(view.array, self.all(view.index))
        self.views[view.target.name] = replace(view, array=array, index=index, shape=shape)
        self.stale.discard(view.target.name)

    def part(self, s: ir.Alias) -> ir.View:
        """A part of an array at leading indices, as a view."""
        rest = range(len(s.index), s.array.type.ndim)
        axes = tuple(self.fresh("i", INT) for _ in rest)
        shape = tuple(self.resolved(ir.Size(s.array, k, types.intp)) for k in rest)
        return ir.View(s.target, s.array, axes, shape, (*s.index, *axes), line=s.line)

    def view(self, array: ir.Var) -> ir.View | None:
        if array.name in self.stale:
            whole = self.views[array.name].array.name
            if array.name not in self.captured:
                raise _Stale(array.name)
            self.fail(
                f"'{array.name}' is a part of the array that '{whole}' named before; take the part of '{whole}' again"
            )
        return self.views.get(array.name)

    def element(self, array: ir.Var, index: tuple[ir.Expr, ...]) -> tuple[ir.Var, tuple[ir.Expr, ...]]:
        """An element of an array that may be a view."""
        view = self.view(array)
        if view is None:
            return array, index
        if not index:  # the array itself
            return (view.array, ()) if self.is_whole(view) else (array, ())
        names = {
            axis.name: self.from_start(i, view, k) for k, (axis, i) in enumerate(zip(view.axes, index, strict=True))
        }
        replaced = lambda e: names.get(e.name, e) if isinstance(e, ir.Var) else index_algebra.tidy(e)
        return view.array, tuple(mapped(i, replaced) for i in view.index)

    def from_start(self, index: ir.Expr, view: ir.View, axis: int) -> ir.Expr:
        """An index of a view counted from its first element."""
        if self.integers.is_not_negative(index) or self.is_whole_axis(view, axis):
            return index
        negative = ir.Op("lt", (index, ZERO), types.boolean)
        return ir.Op("select", (negative, index_algebra.add(index, view.shape[axis]), index), INT)

    @staticmethod
    def is_whole_axis(view: ir.View, axis: int) -> bool:
        """Return whether an axis of a view is one of the array, with the same indices."""
        places = [k for k, i in enumerate(view.index) if i == view.axes[axis]]
        return bool(places) and view.shape[axis] == ir.Size(view.array, places[0], types.intp)

    def is_whole(self, view: ir.View) -> bool:
        """Return whether a view is another name of the array."""
        return view.index == view.axes and all(self.is_whole_axis(view, k) for k in range(len(view.axes)))

    # expressions

    def expression(self, value: ir.Expr) -> ir.Expr:
        return mapped(value, self.resolved)

    def all(self, values: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(map(self.expression, values))

    def resolved(self, value: ir.Expr) -> ir.Expr:
        match value:
            case ir.Load(array=array, index=index) if array.name in self.views:
                array, index = self.element(array, index)
                return replace(value, array=array, index=index)
            case ir.Size(array=array, axis=axis):
                view = self.view(array)
                return value if view is None else view.shape[axis]
            case ir.Var(name=name) if name in self.views:
                view = self.view(value)
                return view.array if view is not None and self.is_whole(view) else value
        return value
