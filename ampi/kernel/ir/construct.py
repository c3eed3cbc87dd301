"""Construction of single assignment form from the parsed form, in one walk through the program.

``current`` has the current value of each variable.  Where control flow joins, live variables that differ are joined;
loops carry the variables that their body assigns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import TABLE, constant, convert, join_types, nonzero_only
from ampi.kernel.ir.liveness import assigned, live_before, stored, used
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.ssa import INT, ONE, ZERO, Branch, Carried, Custom, Join, Loop


def construct(function: ir.Function, raising: bool = False) -> ir.Function:
    """A parsed and lowered kernel in single assignment form; for ``raising`` see `Builder`."""
    return _Construction(function, raising).run()


@dataclass(frozen=True)
class _View:
    """A name of (part of) an array: the leading indices are fixed."""

    array: Var
    index: tuple[Expr, ...] = ()


class _Construction(Builder):
    def __init__(self, function: ir.Function, raising: bool) -> None:
        super().__init__(Names(a.name for a in function.arguments), raising)
        self.function = function
        self.types = _variable_types(function)
        self.position = {name: number for number, name in enumerate(self.types)}
        self.shapes: dict[str, tuple[Expr, ...]] = {}
        self.current: dict[str, Expr | _View] = {}
        for a in function.arguments:
            var = Var(a.name, a.type)
            self.level[a.name] = 0
            self.current[a.name] = _View(var) if isinstance(a.type, types.Array) else var

    def run(self) -> ir.Function:
        self.statements(self.function.body, set())
        return replace(self.function, body=tuple(self.block.statements))

    def error(self, message: str) -> KernelError:
        return KernelError(f"{self.function.filename}:{self.line}: {stem(message)}")

    # expressions

    def atom(self, e: Expr, hint: str = "t") -> Expr:
        match e:
            case Const():
                return e
            case Var(name=name):
                value = self.current.get(name)
                if value is None:  # assigned on no path so far: any value will do
                    return constant(0, e.type)
                return value.array if isinstance(value, _View) else value
            case Size(array=array, axis=axis):
                view = self.view(array)
                return self.extent(view.array, axis + len(view.index))
            case ir.Load(array=array, index=index):
                base, full = self.element(array, index)
                return self.load(base, full, hint)
            case Op(name="and" | "or", args=(left, right)) if not _is_plain(right):
                condition = self.atom(left)
                fallback = Const(e.name == "or", types.boolean)
                first, second = (right, fallback) if e.name == "and" else (fallback, right)
                return self.choose(condition, first, second, e.type, hint)
            case Op(name="select", args=(condition, a, b)) if not all(
                isinstance(e, (Const, Var, Size)) for e in (a, b)
            ):
                return self.choose(self.atom(condition), a, b, e.type, hint)
            case Op(name="where_nonzero", args=args):  # of a program that was in single assignment form before
                return self.value(nonzero_only(*map(self.atom, args)), hint)
            case Op(name=name, args=args, type=ty):
                return self.value(Op(name, tuple(self.atom(a) for a in args), ty), hint)
        raise self.error(f"unexpected expression {e}")

    def choose(self, condition: Expr, a: Expr, b: Expr, ty: Any, hint: str) -> Expr:
        """A conditional expression whose sides must only be evaluated when they are chosen."""
        if isinstance(condition, Const):
            return self.value(convert(self.atom(a if condition.value else b), ty))
        with self.nested() as then:
            then_value = self.value(convert(self.atom(a), ty))
        with self.nested() as orelse:
            else_value = self.value(convert(self.atom(b), ty))
        var = self.fresh(hint, ty)
        join = Join(var, then_value, else_value)
        self.emit(Branch(condition, tuple(then.statements), tuple(orelse.statements), (join,), line=self.line))
        return var

    def extent(self, array: Var, axis: int) -> Expr:
        shape = self.shapes.get(array.name)
        return shape[axis] if shape else Size(array, axis, INT)

    def view(self, array: Var) -> _View:
        view = self.current.get(array.name)
        if not isinstance(view, _View):
            raise self.error(f"array {array.name!r} may be undefined here: define it on every path")
        return view

    def whole(self, array: Var) -> Var:
        view = self.view(array)
        if view.index:
            raise self.error(f"{array.name!r} is a part of another array")
        return view.array

    def element(self, array: Var, index: tuple[Expr, ...]) -> tuple[Var, tuple[Expr, ...]]:
        view = self.view(array)
        return view.array, view.index + tuple(self.atom(_as_counted(i)) for i in index)

    # statements

    def statements(self, body: tuple[Stmt, ...], live: set[str]) -> None:
        after = []
        for s in reversed(body):
            after.append(live)
            live = live_before((s,), live)
        for s, live_after in zip(body, reversed(after)):
            self.line = s.line or self.line
            self.statement(s, live_after)

    def statement(self, s: Stmt, live: set[str]) -> None:
        match s:
            case ir.Assign(target=target, value=value):
                self.bind(target.name, self.atom(value, target.name))
            case ir.Store(array=array, index=index, value=value):
                v = self.atom(value)
                self.store(*self.element(array, index), v)
            case ir.Accumulate(array=array, index=index, value=value, kind=kind):
                v = self.atom(value)
                self.accumulate(*self.element(array, index), v, kind)
            case ir.Alloc():
                self.allocate(s)
            case ir.Fill(target=target, arguments=arguments):
                target = self.whole(target)
                self.emit(replace(s, target=target, arguments=tuple(map(self.whole, arguments))))
                self.forget(target.name)
            case ir.Grow(target=target, size=size):
                array = self.view(target).array
                self.emit(ir.Grow(array, self.atom(size), line=s.line))
                self.forget(array.name)
                self.shapes.pop(array.name, None)
            case ir.Alias(target=target, array=array, index=index):
                base, full = self.element(array, index)
                self.current[target.name] = _View(base, full)
            case ir.If():
                self.branch(s, live)
            case ir.Custom():
                self.custom(s, live)
            case ir.For():
                self.for_loop(s, live)
            case ir.While():
                self.while_loop(s, live)
            case ir.Return(values=values):
                self.emit(ir.Return(tuple(self.result(v) for v in values), line=s.line))
            case ir.Raise():
                self.emit(s)
            case _:
                raise self.error(f"{type(s).__name__} is left after lowering")

    def bind(self, name: str, value: Expr) -> None:
        ty = self.types[name]
        self.current[name] = self.value(convert(value, ty), name) if value.type != ty else value

    def result(self, value: Expr) -> Expr:
        if isinstance(value, Var) and isinstance(value.type, types.Array):
            view = self.view(value)
            if view.index:
                raise self.error(f"the result {value.name!r} is a part of another array: return a copy")
            return view.array
        return self.atom(value)

    def allocate(self, s: ir.Alloc) -> None:
        shape = tuple(self.atom(e) for e in s.shape)
        target = self.fresh(s.target.name, s.target.type)
        fill, source = s.fill, None
        if fill is not None and isinstance(fill.type, types.Array):
            fill, source = None, self.view(fill)
        elif fill is not None:
            fill = self.value(convert(self.atom(fill), target.type.dtype))
            if not isinstance(fill, Const):
                fill, source = None, fill
        self.emit(ir.Alloc(target, shape, fill, line=s.line))
        self.forget(target.name)
        self.shapes[target.name] = shape
        self.current[s.target.name] = _View(target)
        if source is not None:
            self.copy(source, target, shape, ())

    def copy(self, source: _View | Expr, target: Var, shape: tuple[Expr, ...], index: tuple[Expr, ...]) -> None:
        """Set all elements of an array to those of another one, or to a scalar."""
        if len(index) == len(shape):
            is_array = isinstance(source, _View)
            self.store(target, index, self.load(source.array, source.index + index) if is_array else source)
            return
        i = self.inner("i", INT)
        with self.nested({target.name}) as block:
            self.copy(source, target, shape, (*index, i))
        self.emit(Loop(i.name, i, ZERO, shape[len(index)], tuple(block.statements), independent=True, line=self.line))

    def branch(self, s: ir.If, live: set[str]) -> None:
        condition = self.atom(s.condition)
        if isinstance(condition, Const):
            return self.statements(s.then if condition.value else s.orelse, live)
        before = dict(self.current)
        with self.nested() as then:
            self.statements(s.then, live)
        after_then, self.current = self.current, dict(before)
        with self.nested() as orelse:
            self.statements(s.orelse, live)
        after_else, self.current = self.current, dict(before)
        joins = []
        for name in self.in_order(assigned(s.then) | assigned(s.orelse)):
            a, b = after_then.get(name), after_else.get(name)
            if a == b:
                if a is not None:
                    self.current[name] = a
            elif name in live:
                joins.append(self.join(name, a, b))
            else:
                self.current.pop(name, None)  # undefined after a branch that binds it on one side
        self.emit(Branch(condition, tuple(then.statements), tuple(orelse.statements), tuple(joins), line=s.line))

    def custom(self, s: ir.Custom, live: set[str]) -> None:
        arguments = tuple(map(self.part, s.arguments))
        with self.nested() as block:  # its values are not available outside, where they would have derivatives
            self.statements(s.body, live | used((*s.results, *s.residuals)))
            results = tuple(map(self.part, s.results))
            residuals = tuple(map(self.part, s.residuals))
        joins, outputs = [], []
        for output, value in zip(s.outputs, results):
            if isinstance(output.type, types.Array):
                outputs.append(value)
                continue
            var = self.fresh(output.name, output.type)
            joins.append(Join(var, value, constant(0, output.type)))
            self.current[output.name] = var
            outputs.append(var)
        true = Const(True, types.boolean)
        body = tuple(block.statements)
        self.emit(Custom(true, body, (), tuple(joins), arguments, tuple(outputs), residuals, s.rule, line=s.line))

    def part(self, e: Expr) -> Expr:
        """An atom, or an array or a part of one."""
        if isinstance(e, Var) and isinstance(e.type, types.Array):
            view = self.view(e)
            return ir.Load(view.array, view.index, e.type)
        return self.atom(e)

    def in_order(self, names: set[str]) -> list[str]:
        """Variables in the order of their first assignments, whatever their names."""
        return sorted(names, key=self.position.__getitem__)

    def join(self, name: str, a: Expr | _View | None, b: Expr | _View | None) -> Join:
        if isinstance(a, _View) or isinstance(b, _View):
            raise self.error(f"{name!r} names different arrays, depending on a condition: copy into one array instead")
        ty = self.types[name]
        var = self.fresh(name, ty)
        self.current[name] = var
        absent = constant(0, ty)
        return Join(var, absent if a is None else a, absent if b is None else b)

    def carry(self, names: set[str]) -> list[tuple[str, Var, Expr]]:
        """Begin a loop: a fresh variable for every scalar that is carried from one iteration to the next."""
        entries = []
        for name in self.in_order(names):
            value = self.current.get(name)
            ty = self.types.get(name)
            if isinstance(value, _View) or isinstance(ty, types.Array):
                raise self.error(f"{name!r} names another array in the next iteration: write into one array instead")
            var = self.inner(name, ty)
            entries.append((name, var, constant(0, ty) if value is None else value))
            self.current[name] = var
        return entries

    def end_carry(self, entries: list[tuple[str, Var, Expr]]) -> tuple[Carried, ...]:
        carried = tuple(Carried(var, init, self.current[name]) for name, var, init in entries)
        for name, var, _ in entries:
            self.current[name] = var
        return carried

    def overwritten(self, body: tuple[Stmt, ...]) -> set[str]:
        """The names of the arrays in memory that statements write."""
        names = stored(body)
        for node in ir.walk(body):
            if isinstance(node, ir.Alias) and node.target.name in names:
                names.add(node.array.name)
        views = (self.current.get(n) for n in names)
        inside = any(isinstance(n, ir.Alias) for n in ir.walk(body))
        found = {v.array.name for v in views if isinstance(v, _View)}
        return found | ({v.array.name for v in self.current.values() if isinstance(v, _View)} if inside else set())

    def for_loop(self, s: ir.For, live: set[str]) -> None:
        start, stop, step = (self.atom(e) for e in (s.start, s.stop, s.step))
        unit = isinstance(step, Const) and step.value == 1
        lower, upper = (start, stop) if unit else (ZERO, self.trips(start, stop, step))
        names = assigned(s.body) | {s.var.name}
        carried_names = names & (live | live_before(s.body, live) - {s.var.name})
        before = dict(self.current)
        var = self.inner(s.var.name if unit else "k", INT)
        if lower == ZERO:
            self.counted[var.name] = upper
        entries = self.carry(carried_names)
        with self.nested(self.overwritten(s.body)) as block:
            self.bind(s.var.name, var if unit else self.number(start, step, var, s.var.name))
            around = live | live_before(s.body, live)
            self.statements(s.body, around)
        carried = self.end_carry(entries)
        self.leave(before, names, carried_names)
        body = tuple(block.statements)
        facts: Any = {"parallel": s.parallel, "whole": s.whole, "axis": s.axis, "line": s.line}
        self.emit(Loop(var.name, var, lower, upper, body, carried, **facts))

    def trips(self, start: Expr, stop: Expr, step: Expr) -> Expr:
        """The number of iterations of a range."""
        if isinstance(step, Const):
            span = Op("sub", (stop, start) if step.value > 0 else (start, stop), INT)
            size = abs(step.value)
            if size > 1:
                span = Op("floordiv", (Op("add", (span, constant(size - 1, INT)), INT), constant(size, INT)), INT)
            return self.value(span)
        up = Op("floordiv", (Op("sub", (Op("add", (Op("sub", (stop, start), INT), step), INT), ONE), INT), step), INT)
        down = Op("floordiv", (Op("add", (Op("add", (Op("sub", (stop, start), INT), step), INT), ONE), INT), step), INT)
        return self.value(Op("select", (Op("gt", (step, ZERO), types.boolean), up, down), INT))

    def number(self, start: Expr, step: Expr, trip: Var, hint: str) -> Expr:
        return self.value(Op("add", (start, Op("mul", (trip, step), INT)), INT), hint)

    def leave(self, before: dict[str, Any], names: set[str], carried: set[str]) -> None:
        """After a loop, forget the bindings of its body that it does not carry."""
        for name in names - carried:
            if name in before:
                self.current[name] = before[name]
            else:
                self.current.pop(name, None)

    def while_loop(self, s: ir.While, live: set[str]) -> None:
        names = assigned(s.body)
        around = live | used(s.condition)
        around |= live_before(s.body, around)
        before = dict(self.current)
        first = self.atom(s.condition)
        carried_names = names & around
        entries = self.carry(carried_names)
        condition = self.inner("go_on", types.boolean)
        counter = self.inner("trip", INT)
        with self.nested(self.overwritten(s.body)) as block:
            self.statements(s.body, around)
            self.line = s.line
            again = self.atom(s.condition)
            count = self.value(Op("add", (counter, ONE), INT), counter.name)
        carried = self.end_carry(entries)
        self.leave(before, names, carried_names)
        carried += (Carried(condition, first, again), Carried(counter, ZERO, count))
        self.emit(
            Loop(counter.name, counter, ZERO, ZERO, tuple(block.statements), carried, condition=condition, line=s.line)
        )


def _as_counted(e: Expr) -> Expr:
    """An index without its conversion to unsigned.

    Generated programs convert inside the brackets, for Numba.  A separate atom may be computed where the element is not
    accessed, and may be negative there.
    """
    match e:
        case Op(name="cast", args=(inner,), type=types.Integer(bitwidth=64, signed=False)):
            return inner if isinstance(inner.type, types.Integer) and inner.type.signed else e
    return e


def _is_plain(e: Expr) -> bool:
    """Return whether an expression may be evaluated although its value is not used: it has no effects and is cheap."""
    if isinstance(e, ir.Load):
        return False
    if isinstance(e, Op):
        return TABLE[e.name].cost == 1 and e.name != "select" and all(map(_is_plain, e.args))
    return True


def _variable_types(function: ir.Function) -> dict[str, Any]:
    """The type of every variable; of a scalar, the type that holds the types of all its assignments."""
    found: dict[str, Any] = {a.name: a.type for a in function.arguments}
    for node in ir.walk(function.body):
        if isinstance(node, (ir.Assign, ir.For)):
            var = node.target if isinstance(node, ir.Assign) else node.var
            known = found.get(var.name)
            found[var.name] = var.type if known is None else join_types(known, var.type)
        elif isinstance(node, (ir.Alloc, ir.Alias)):
            found[node.target.name] = node.target.type
        elif isinstance(node, ir.Custom):
            found |= {v.name: v.type for v in node.outputs}
    return found
