"""Static single assignment: the form in which kernels are analysed and differentiated.

In this form every scalar is assigned once per execution of the block it stands in, every operand is an atom (a ``Var``,
a ``Const`` or a ``Size`` of an argument), loops have unit step, views are resolved, and two statements replace those
of ``ir``:

* ``Loop`` names its loop-carried scalars (``Carried``);
* ``Branch`` names the scalars that its two sides join (``Join``).

``construct`` makes this form from the parsed one, ``destruct`` goes back.  ``Builder`` writes code in this form and
leaves out what has been computed before.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.intrinsics import TABLE, constant, convert, is_differentiable, join_types
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.names import Names, stem

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
    The iterations of an ``independent`` loop may run in any order; those of a ``parallel`` one besides at once.
    ``whole``: it is an operation on whole arrays, which Numba runs on threads where it can.
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


# --------------------------------------------------------------------------------------------- looking at statements


def blocks(s: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks of statements inside a statement."""
    match s:
        case Loop(body=body):
            return (body,)
        case Branch(then=then, orelse=orelse):
            return (then, orelse)
        case _:
            return ()


def every(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a block and of the blocks inside them, in the order of the text."""
    for s in body:
        yield s
        for block in blocks(s):
            yield from every(block)


def reads(s: Stmt) -> tuple[Expr, ...]:
    """The expressions a statement evaluates itself, without blocks inside it and without arrays that it writes."""
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


def names_read(s: Stmt) -> set[str]:
    """The variables in ``reads``."""
    return {n.name for e in reads(s) for n in ir.walk(e) if isinstance(n, Var)}


def definitions(s: Stmt) -> tuple[Var, ...]:
    """The variables a statement itself defines."""
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


def written(s: Stmt) -> Var | None:
    """The array into whose elements a statement writes."""
    match s:
        case ir.Store(array=array) | ir.Accumulate(array=array):
            return array
        case ir.Grow(target=target) | ir.Alloc(target=target) | ir.Fill(target=target):
            return target
        case _:
            return None


def rebuild(s: Stmt, expression: Any, variable: Any, block: Any) -> Stmt:
    """The statement with expressions, variables that it defines or writes, and blocks replaced by functions' values."""
    many = lambda es: tuple(map(expression, es))
    match s:
        case ir.Assign():
            return replace(s, target=variable(s.target), value=expression(s.value))
        case ir.Store() | ir.Accumulate():
            return replace(s, array=variable(s.array), index=many(s.index), value=expression(s.value))
        case ir.Alloc():
            fill = None if s.fill is None else expression(s.fill)
            return replace(s, target=variable(s.target), shape=many(s.shape), fill=fill)
        case ir.Grow():
            return replace(s, target=variable(s.target), size=expression(s.size))
        case ir.Fill():
            return replace(s, target=variable(s.target), arguments=many(s.arguments))
        case ir.Return():
            return replace(s, values=many(s.values))
        case Loop():
            carried = tuple(Carried(variable(c.var), expression(c.init), expression(c.next)) for c in s.carried)
            condition = None if s.condition is None else variable(s.condition)
            return replace(s, var=variable(s.var), start=expression(s.start), stop=expression(s.stop),
                           carried=carried, condition=condition, body=block(s.body))  # fmt: skip
        case Branch():
            joins = tuple(Join(variable(j.var), expression(j.then), expression(j.orelse)) for j in s.joins)
            if isinstance(s, Custom):
                s = replace(s, arguments=many(s.arguments), results=many(s.results), residuals=many(s.residuals))
            return replace(
                s, condition=expression(s.condition), then=block(s.then), orelse=block(s.orelse), joins=joins
            )
        case ir.Launch():
            reduced = tuple(replace(r, var=variable(r.var), init=expression(r.init)) for r in s.reduced)
            return replace(s, start=expression(s.start), stop=expression(s.stop), arguments=many(s.arguments),
                           reduced=reduced, shared=many(s.shared),
                           reaches=tuple(replace(r, index=expression(r.index)) for r in s.reaches),
                           distinct=many(s.distinct),
                           temporaries={k: variable(v) for k, v in s.temporaries.items()})  # fmt: skip
        case ir.Raise():
            return s
    raise AssertionError(s)


def map_expression(e: Expr, change: Any) -> Expr:
    """An expression with ``change`` applied to its variables (also to arrays) and constants."""
    match e:
        case Op():
            return replace(e, args=tuple(map_expression(a, change) for a in e.args))
        case ir.Load():
            return replace(e, array=change(e.array), index=tuple(map_expression(i, change) for i in e.index))
        case Size():
            return replace(e, array=change(e.array))
        case Var():
            return change(e)
        case _:
            return e


def substitute(body: tuple[Stmt, ...], names: dict[str, Expr]) -> tuple[Stmt, ...]:
    """Statements with variables replaced by atoms where they are read, and renamed where they are defined."""

    def change(v: Var) -> Expr:
        return names.get(v.name, v)

    def variable(v: Var) -> Var:
        new = names.get(v.name, v)
        return new if isinstance(new, Var) else v

    def block(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(rebuild(s, lambda e: map_expression(e, change), variable, block) for s in statements)

    return block(body)


def renamed(body: tuple[Stmt, ...], names: Names) -> tuple[Stmt, ...]:
    """A copy of statements in which all that they define has new names."""
    return tuple(_with_loop_names(s) for s in substitute(body, new_names(body, names)))


def new_names(body: tuple[Stmt, ...], names: Names) -> dict[str, Expr]:
    """A new variable for every one that statements define."""
    new: dict[str, Expr] = {}
    for s in every(body):
        for v in definitions(s):
            if v.name not in new:
                new[v.name] = Var(names.fresh(v.name), v.type)
    return new


def instance(function: ir.Function, arguments: dict[str, Expr], names: Names) -> tuple[tuple[Stmt, ...], list[Expr]]:
    """The statements of a function in this form and the values it returns, for atoms and arrays as its arguments."""
    *body, last = function.body
    assert isinstance(last, ir.Return)
    new = {**new_names(tuple(body), names), **arguments}
    statements = tuple(_with_loop_names(s) for s in substitute(tuple(body), new))
    return statements, [map_expression(v, lambda v: new.get(v.name, v)) for v in last.values]


def at_line(body: tuple[Stmt, ...], line: int) -> tuple[Stmt, ...]:
    """Statements that stand for those of one line."""
    moved = lambda s: replace(rebuild(s, lambda e: e, lambda v: v, lambda b: at_line(b, line)), line=line)
    return tuple(map(moved, body))


def _with_loop_names(s: Stmt) -> Stmt:
    s = rebuild(s, lambda e: e, lambda v: v, lambda body: tuple(map(_with_loop_names, body)))
    return replace(s, name=s.var.name) if isinstance(s, Loop) else s


# --------------------------------------------------------------------------------------------- building


@dataclass
class Block:
    """Statements under construction, with the values known to be at hand where they end."""

    statements: list[Stmt] = field(default_factory=list)
    operations: dict[Any, Expr] = field(default_factory=dict)
    loads: dict[Any, Expr] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)


class Builder:
    """Writes statements in single assignment form; equal operations and loads are written once.

    Distinct arrays are taken not to overlap in memory.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self.stack = [Block()]
        self.level: dict[str, int] = {}
        self.scaled: dict[str, tuple[float, Expr]] = {}  # values that are a power of two times another one
        self.line = 0

    @property
    def block(self) -> Block:
        """The block into which statements are written now."""
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
        """A new variable of the loop that is about to begin: what is computed from it stays inside."""
        var = self.fresh(hint, ty)
        self.level[var.name] = len(self.stack)
        return var

    def value(self, expression: Expr, hint: str = "t") -> Expr:
        """An atom for the value of a pure expression; its operations are written if they are not at hand."""
        if not isinstance(expression, Op):
            return expression
        args = tuple(self.value(a) for a in expression.args)
        args, scale = self.rescaled(expression.name, args, expression.type)
        folded = fold(expression.name, args, expression.type)
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
            if scale is not None:
                self.scaled[known.name] = scale
        return known

    def rescaled(
        self, name: str, args: tuple[Expr, ...], ty: Any
    ) -> tuple[tuple[Expr, ...], tuple[float, Expr] | None]:
        """The arguments of a product with a power of two, where that can be taken together with another one (which is
        exact); what it is a power of two times of."""
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
        """The level of the outermost block in which an operation can stand; only plain integers move outwards."""
        if name not in _MOVABLE or not isinstance(ty, types.Integer):
            return len(self.stack) - 1
        inside = len(self.stack) - 1
        return max((self.level.get(a.name, inside) for a in args if isinstance(a, Var)), default=0)

    def load(self, array: Var, index: tuple[Expr, ...], hint: str = "t") -> Expr:
        key = (array.name, tuple(map(_key, index)))
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
        self.block.loads[array.name, tuple(map(_key, index))] = value

    def accumulate(self, array: Var, index: tuple[Expr, ...], value: Expr) -> None:
        if self.drop_store(array, index, only_zero=True):
            self.store(array, index, value)
            return
        self.forget(array.name, index)
        self.emit(ir.Accumulate(array, index, self.value(convert(value, array.type.dtype)), line=self.line))

    def drop_store(self, array: Var, index: tuple[Expr, ...], only_zero: bool) -> bool:
        """Take back what was stored into an element which nothing has touched since."""
        keys = tuple(map(_key, index))
        statements = self.block.statements
        for k in range(len(statements) - 1, -1, -1):
            s = statements[k]
            match s:
                case ir.Store(array=other, index=place, value=value) if other == array and place == index:
                    if only_zero and not (isinstance(value, Const) and value.value == 0):
                        return False
                    del statements[k]
                    return True
                case ir.Assign(value=ir.Load(array=other, index=place)):
                    touched = other == array and not _differ(tuple(map(_key, place)), keys)
                case ir.Store(array=other, index=place) | ir.Accumulate(array=other, index=place):
                    touched = other == array and not _differ(tuple(map(_key, place)), keys)
                case ir.Assign():
                    touched = False
                case _:
                    touched = True
            if touched:
                return False
        return False

    def forget(self, array: str, index: tuple[Expr, ...] = ()) -> None:
        """Drop what is known of an array's elements, except of those that certainly have another index."""
        keys = tuple(map(_key, index))
        for known in [k for k in self.block.loads if k[0] == array and not _differ(k[1], keys)]:
            del self.block.loads[known]
        self.block.stored.add(array)

    def over(self, array: Var, body: Callable[[tuple[Expr, ...]], None], overwritten: set[str]) -> None:
        """Loops over all elements of an array."""

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
        """Write into a block inside the current one, in which (for loops) other iterations overwrite some arrays."""
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
    """Whether two atoms are the same value, bit by bit."""
    return _key(a) == _key(b)


def _differ(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two index tuples certainly differ: different literals of the same sign in one dimension."""
    for x, y in zip(a, b):
        if x != y and isinstance(x, tuple) and isinstance(y, tuple) and x[1][0] != "-" and y[1][0] != "-":
            return True
    return False


def fold(name: str, args: tuple[Expr, ...], ty: Any) -> Expr | None:
    """The atom that an operation amounts to, where that is plain: neutral integers, constant conditions, casts."""
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


# --------------------------------------------------------------------------------------------- construction


def construct(function: ir.Function) -> ir.Function:
    """A parsed and lowered kernel in single assignment form."""
    return _Construction(function).run()


def assigned(body: tuple[Stmt, ...]) -> set[str]:
    """The names of the scalars and arrays that parsed statements (re)bind."""
    found = set()
    for node in ir.walk(body):
        if isinstance(node, (ir.Assign, ir.Alloc, ir.Alias)):
            found.add(node.target.name)
        elif isinstance(node, ir.For):
            found.add(node.var.name)
        elif isinstance(node, ir.Custom):
            found.update(v.name for v in node.outputs if not isinstance(v.type, types.Array))
    return found


def stored(body: tuple[Stmt, ...]) -> set[str]:
    """The names of the arrays into whose elements statements write (views by their own names)."""
    found = set()
    for node in ir.walk(body):
        if isinstance(node, (ir.Store, ir.Accumulate)):
            found.add(node.array.name)
        elif isinstance(node, (ir.Alloc, ir.Grow, ir.Fill)):
            found.add(node.target.name)
    return found


def used(expression: Any) -> set[str]:
    return {n.name for n in ir.walk(expression) if isinstance(n, Var)}


def live_before(body: tuple[Stmt, ...], live: set[str]) -> set[str]:
    """The variables whose values parsed statements, or what follows them, may read."""
    for statement in reversed(body):
        live = _live_before(statement, live)
    return live


def _live_before(s: Stmt, live: set[str]) -> set[str]:
    match s:
        case ir.Assign(target=target, value=value):
            return live - {target.name} | used(value)
        case ir.Alloc(target=target, shape=shape, fill=fill):
            return live - {target.name} | used(shape) | (used(fill) if fill is not None else set())
        case ir.Alias(target=target, array=array, index=index):
            return live - {target.name} | {array.name} | used(index)
        case ir.View(target=target):
            return live - {target.name} | used((s.array, *s.shape, *s.index))
        case ir.Custom():
            live = live - {v.name for v in s.outputs} | used((*s.results, *s.residuals))
            return live_before(s.body, live) | used(s.arguments)
        case ir.If(condition=condition, then=then, orelse=orelse):
            return used(condition) | live_before(then, live) | live_before(orelse, live)
        case ir.For(var=var, body=body):
            around = live | live_before(body, live) - {var.name}
            around |= live_before(body, around) - {var.name}
            if is_entered(s):
                around = live_before(body, around) - {var.name}
            return around | used((s.start, s.stop, s.step))
        case ir.While(condition=condition, body=body):
            around = live | used(condition)
            around |= live_before(body, around)
            return around | live_before(body, around)
        case _:
            return live | used(s)


def is_entered(s: ir.For) -> bool:
    """Whether a loop is seen to run once at least, up to the end of its body."""
    ends = (s.start, s.stop, s.step)
    if not all(isinstance(e, Const) for e in ends) or not range(*(e.value for e in ends)):  # type: ignore[attr-defined]
        return False
    return not any(isinstance(t, (ir.Break, ir.Continue, ir.Return)) for t in ir.walk(s.body))


@dataclass(frozen=True)
class _View:
    """A name of (part of) an array: the leading indices are fixed."""

    array: Var
    index: tuple[Expr, ...] = ()


class _Construction(Builder):
    def __init__(self, function: ir.Function) -> None:
        super().__init__(Names(a.name for a in function.arguments))
        self.function = function
        self.types = _variable_types(function)
        self.place = {name: number for number, name in enumerate(self.types)}
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
            case Op(name="select", args=(condition, a, b)) if not (_is_atom(a) and _is_atom(b)):
                return self.choose(self.atom(condition), a, b, e.type, hint)
            case Op(name=name, args=args, type=ty):
                return self.value(Op(name, tuple(self.atom(a) for a in args), ty), hint)
        raise self.error(f"unexpected expression {e}")

    def choose(self, condition: Expr, a: Expr, b: Expr, ty: Any, hint: str) -> Expr:
        """A conditional expression whose sides must only be evaluated when they are chosen."""
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
            raise self.error(f"array {array.name!r} may not be defined here")
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
            live = _live_before(s, live)
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
            case ir.Accumulate(array=array, index=index, value=value):
                v = self.atom(value)
                self.accumulate(*self.element(array, index), v)
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
            if name not in live or a == b:
                if a is not None:
                    self.current[name] = a
                continue
            joins.append(self.join(name, a, b))
        self.emit(Branch(condition, tuple(then.statements), tuple(orelse.statements), tuple(joins), line=s.line))

    def custom(self, s: ir.Custom, live: set[str]) -> None:
        arguments = tuple(map(self.part, s.arguments))
        with self.nested() as block:  # what it computes is not at hand outside, where it would have derivatives
            self.statements(s.body, live | used((*s.results, *s.residuals)))
            results = tuple(map(self.part, s.results))
            residuals = tuple(map(self.part, s.residuals))
        joins, given = [], []
        for output, value in zip(s.outputs, results):
            if isinstance(output.type, types.Array):
                given.append(value)
                continue
            var = self.fresh(output.name, output.type)
            joins.append(Join(var, value, constant(0, output.type)))
            self.current[output.name] = var
            given.append(var)
        true = Const(True, types.boolean)
        body = tuple(block.statements)
        self.emit(Custom(true, body, (), tuple(joins), arguments, tuple(given), residuals, s.rule, line=s.line))

    def part(self, e: Expr) -> Expr:
        """An atom, or an array or a part of one."""
        if isinstance(e, Var) and isinstance(e.type, types.Array):
            view = self.view(e)
            return ir.Load(view.array, view.index, e.type)
        return self.atom(e)

    def in_order(self, names: set[str]) -> list[str]:
        """Variables in the order of their first assignments, however they are spelled."""
        return sorted(names, key=self.place.__getitem__)

    def join(self, name: str, a: Expr | _View | None, b: Expr | _View | None) -> Join:
        if isinstance(a, _View) or isinstance(b, _View):
            raise self.error(f"{name!r} is one array or another, depending on a condition")
        ty = self.types[name]
        var = self.fresh(name, ty)
        self.current[name] = var
        absent = constant(0, ty)
        return Join(var, absent if a is None else a, absent if b is None else b)

    def carry(self, names: set[str]) -> list[tuple[str, Var, Expr]]:
        """Begin a loop: a fresh variable for every scalar that is carried from one iteration to the next."""
        begun = []
        for name in self.in_order(names):
            value = self.current.get(name)
            ty = self.types.get(name)
            if isinstance(value, _View) or isinstance(ty, types.Array):
                raise self.error(f"{name!r} names another array in the next iteration")
            var = self.inner(name, ty)
            begun.append((name, var, constant(0, ty) if value is None else value))
            self.current[name] = var
        return begun

    def end_carry(self, begun: list[tuple[str, Var, Expr]]) -> tuple[Carried, ...]:
        carried = tuple(Carried(var, init, self.current[name]) for name, var, init in begun)
        for name, var, _ in begun:
            self.current[name] = var
        return carried

    def overwritten(self, body: tuple[Stmt, ...]) -> set[str]:
        """The arrays which the statements write, by the names of the memory."""
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
        begun = self.carry(carried_names)
        with self.nested(self.overwritten(s.body)) as block:
            self.bind(s.var.name, var if unit else self.number(start, step, var, s.var.name))
            around = live | live_before(s.body, live)
            self.statements(s.body, around)
        carried = self.end_carry(begun)
        self.leave(before, names, carried_names)
        body = tuple(block.statements)
        self.emit(Loop(var.name, var, lower, upper, body, carried, parallel=s.parallel, whole=s.whole, line=s.line))

    def trips(self, start: Expr, stop: Expr, step: Expr) -> Expr:
        """How many iterations a range has."""
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
        """After a loop, what its body bound and nothing carries is as unknown as before."""
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
        begun = self.carry(carried_names)
        condition = self.inner("go_on", types.boolean)
        counter = self.inner("trip", INT)
        with self.nested(self.overwritten(s.body)) as block:
            self.statements(s.body, around)
            self.line = s.line
            again = self.atom(s.condition)
            count = self.value(Op("add", (counter, ONE), INT), counter.name)
        carried = self.end_carry(begun)
        self.leave(before, names, carried_names)
        carried += (Carried(condition, first, again), Carried(counter, ZERO, count))
        self.emit(
            Loop(counter.name, counter, ZERO, ZERO, tuple(block.statements), carried, condition=condition, line=s.line)
        )


def _as_counted(e: Expr) -> Expr:
    """An index before its conversion to unsigned, which generated programs have inside the brackets for Numba's sake:
    an atom may be computed where the element is not touched, and there it may be negative."""
    match e:
        case Op(name="cast", args=(inner,), type=types.Integer(bitwidth=64, signed=False)):
            return inner if isinstance(inner.type, types.Integer) and inner.type.signed else e
    return e


def _is_atom(e: Expr) -> bool:
    return isinstance(e, (Const, Var, Size))


def _is_plain(e: Expr) -> bool:
    """Whether evaluating an expression that is not asked for does no harm and costs little."""
    if isinstance(e, ir.Load):
        return False
    if isinstance(e, Op):
        return TABLE[e.name].cost == 1 and e.name != "select" and all(map(_is_plain, e.args))
    return True


def _variable_types(function: ir.Function) -> dict[str, Any]:
    """The type of every scalar variable; where its assignments have several, the one that holds them all."""
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
