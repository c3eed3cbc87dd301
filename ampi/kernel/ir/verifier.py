"""The verifier of the intermediate representation: a check of the invariants that every pass preserves.

It rejects

* a use before the definition, or outside the block of the definition; in an adjoint, a value that is neither recomputed
  nor saved;
* a name that is defined twice (in single assignment form);
* a join, or a carried scalar, whose values differ in type;
* a store to an argument that the program may only read, or to a constant array;
* indices, shapes and types that do not follow from those of the operands;
* an operation that the tables of intrinsics and of matrices do not know.

Both forms are checked, that of ``ir`` and that of ``ssa``.  In the first a variable may be assigned several times, and
in other branches than those that read it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from typing import Any, NoReturn

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Stmt, Var, matrices, ssa
from ampi.kernel.ir.intrinsics import TABLE
from ampi.kernel.ir.printer import expression, printed
from ampi.kernel.ir.random_draws import draws

_OF_PARTS = {"abs", "real", "imag", "eq", "ne", "not", "and", "or", "cast", "select", "isnan", "isinf", "isfinite"}
_TO_INTEGERS = {"cast", "select", "floor", "ceil", "trunc", "round", "sign", "exponent"}
Path = tuple[tuple[Any, ...], ...]


class Malformed(AssertionError):
    """A pass has made an invalid program: a defect of ampi."""


def verify(
    function: ir.Function,
    plain: bool,
    when: str = "",
    writable: Collection[str] | None = None,
    given: Iterable[str] = (),
    partial: bool = False,
) -> None:
    """Raise `Malformed` if a program is invalid.

    Parameters
    ----------
    function : ir.Function
        The program, in either form.
    plain : bool
        Whether the program is in the form of ``ir``, not of ``ssa``.
    when : str, optional
        The origin of the program, for the message.
    writable : collection of str, optional
        The arguments that the program may write; by default those whose types allow it.
    given : iterable of str, optional
        Names that become arguments later.
    partial : bool, optional
        Whether the program may return values that only some branches define.
    """
    _Verifier(function, when, writable, plain, given, partial).run()


class _Verifier:
    def __init__(
        self,
        function: ir.Function,
        when: str,
        writable: Collection[str] | None,
        plain: bool,
        given: Iterable[str],
        partial: bool,
    ) -> None:
        self.function, self.when, self.writable, self.plain = function, when, writable, plain
        self.partial = partial
        self.derived = any(a.role is not None and a.role[0] in ("shadow", "seed") for a in function.arguments)
        self.arguments = {a.name: a for a in function.arguments}
        self.constants = {name for name, _ in function.constants}
        self.constants |= {a.name for a in function.arguments if a.is_a("constant")}
        self.types: dict[str, Any] = {a.name: a.type for a in function.arguments}
        self.where: dict[str, Path] = {name: () for name in (*self.arguments, *self.constants, *given)}
        self.path: Path = ()
        self.empty: set[str] = set()  # local arrays without values
        self.statement: Stmt | None = None

    def run(self) -> None:
        if len(self.arguments) != len(self.function.arguments):
            self.fail("two arguments have one name")
        self.block(self.function.body)

    def fail(self, problem: str) -> NoReturn:
        line = self.statement.line if self.statement is not None else self.function.first_line
        text = "" if self.statement is None else f"\n{printed(self.statement)[:2000]}"
        raise Malformed(f"{self.function.name}{self.when and ' '}{self.when}, line {line}: {problem}{text}")

    # names

    def define(self, var: Var, path: Path | None = None) -> None:
        if var.name in self.where and not self.plain:
            self.fail(f"'{var.name}' is defined twice")
        if var.name in self.arguments:
            self.fail(f"the argument '{var.name}' is assigned")
        self.types.setdefault(var.name, var.type)
        self.where.setdefault(var.name, self.path if path is None else path)

    def use(self, var: Var) -> None:
        if var.name not in self.where:
            self.fail(f"'{var.name}' is used before it is defined{self.unsaved()}")
        anywhere = self.plain or (self.partial and isinstance(self.statement, ir.Return))
        if not anywhere and not self.is_visible(self.where[var.name]):
            self.fail(f"'{var.name}' is used outside of the block that defines it{self.unsaved()}")
        known = self.types.get(var.name, var.type)
        if not self.plain and not _is_same(known, var.type):
            self.fail(f"'{var.name}' is a {known}, and used as a {var.type}")

    def carry(self, body: tuple[Stmt, ...]) -> None:
        """Allow a user's loop to read values that an earlier iteration has assigned, in any order of statements."""
        for s in ir.walk(body) if not self.derived else ():
            for target in (getattr(s, "target", None), *getattr(s, "outputs", ())):
                if isinstance(target, Var):
                    self.where.setdefault(target.name, self.path)
                    self.types.setdefault(target.name, target.type)

    def unsaved(self) -> str:
        return ": it is neither recomputed nor saved" if self.derived else ""

    def is_visible(self, path: Path) -> bool:
        """Return whether definitions in a block are visible here: it is this block, an enclosing one, or one on the
        same side of the same condition."""
        if path == self.path[: len(path)]:
            return True
        here = set(self.path)
        return all(block in here for block in path)

    # statements

    def block(self, body: tuple[Stmt, ...], *inside: tuple[Any, ...]) -> None:
        around, self.path = self.path, (*self.path, *inside)
        for s in body:
            outer, self.statement = self.statement, s
            self.check(s)
            self.statement = outer
        self.path = around

    def check(self, s: Stmt) -> None:
        match s:
            case ir.Assign(target=target, value=value):
                self.value(value)
                self.converts(value.type, target.type)
                self.define(target)
            case ir.Store(array=array, index=index, value=value) | ir.Accumulate(array=array, index=index, value=value):
                self.element(array, index)
                self.value(value)
                self.write(array)
                self.converts(value.type, array.type.dtype)
            case ir.Alloc():
                self.alloc(s)
            case ir.Grow(target=target, size=size):
                self.integer(size)
                self.write(target)
            case ir.Fill(target=target, function=function, arguments=arguments):
                if not matrices.is_known(function):
                    self.fail(f"there is no operation '{function}' on matrices")
                for a in arguments:
                    self.array(a)
                self.write(target)
            case ir.Alias(target=target, array=array, index=index):
                self.array(array)
                for i in index:
                    self.integer(i)
                if target.type.ndim != array.type.ndim - len(index) or target.type.dtype != array.type.dtype:
                    self.fail(f"a part of a {array.type} with {len(index)} indices is no {target.type}")
                self.define(target)
            case ir.View() | ir.Elementwise():
                self.axes(s)
            case ir.Agree(first=first, second=second):
                self.integer(first)
                self.integer(second)
            case ir.Return(values=values):
                for v in values:
                    self.value(v, whole=True)
            case ir.Launch():
                self.launch(s)
            case ir.Raise() | ir.Break() | ir.Continue():
                pass
            case _:
                self.nested(s)

    def nested(self, s: Stmt) -> None:
        """Statements with blocks in them."""
        match s:
            case ir.For(var=var, start=start, stop=stop, step=step, body=body):
                for e in (start, stop, step):
                    self.integer(e)
                self.define(var)
                self.carry(body)
                self.block(body)
            case ir.While(condition=condition, body=body):
                self.condition(condition)
                self.carry(body)
                self.block(body)
            case ir.If(condition=condition, then=then, orelse=orelse):
                self.condition(condition)
                self.block(then)
                self.block(orelse)
            case ir.Custom(body=body, arguments=arguments, results=results, outputs=outputs, residuals=residuals):
                for e in arguments:
                    self.value(e, whole=True)
                self.block(body)
                for e in (*results, *residuals):
                    self.value(e, whole=True)
                for v in outputs:
                    if not _is_a(type(v.type), types.Array):
                        self.define(v)
            case ssa.Loop():
                self.loop(s)
            case ssa.Branch():
                self.branch(s)
            case _:
                self.fail(f"{type(s).__name__} is no statement of either form")

    def loop(self, s: ssa.Loop) -> None:
        if self.plain:
            self.fail("a loop in single assignment form among plain statements")
        counted = s.condition is None
        for e in (s.start, s.stop) if counted else ():
            self.integer(e)
        if s.step not in (1, -1):
            self.fail(f"a step of {s.step}")
        for c in s.carried:
            self.value(c.init)
        for c in s.carried:
            if not (_is_same(c.init.type, c.var.type) and _is_same(c.next.type, c.var.type)):
                self.fail(f"'{c.var.name}' is a {c.var.type}, carries a {c.init.type} in and a {c.next.type} on")
            self.define(c.var)
        if counted:
            self.define(s.var, (*self.path, ("loop", s.var.name)))
        elif s.condition is None or s.condition.name not in {c.var.name for c in s.carried}:
            self.fail("the condition of a loop is not carried")
        self.block(s.body, ("loop", s.var.name))
        around, self.path = self.path, (*self.path, ("loop", s.var.name))
        for c in s.carried:
            self.value(c.next)
        self.path = around

    def branch(self, s: ssa.Branch) -> None:
        if self.plain:
            self.fail("a branch in single assignment form among plain statements")
        self.condition(s.condition)
        sides: tuple[tuple[Any, ...], ...] = ((s.condition, True),), ((s.condition, False),)
        if isinstance(s, ssa.Custom):  # its body is always run
            sides = (), ()
            for e in s.arguments:
                self.value(e, whole=True)
        for body, inside in zip((s.then, s.orelse), sides):
            self.block(body, *inside)
        for j in s.joins:
            if not (_is_same(j.then.type, j.var.type) and _is_same(j.orelse.type, j.var.type)):
                self.fail(f"'{j.var.name}' is a {j.var.type} and joins a {j.then.type} and a {j.orelse.type}")
            for value, inside in zip((j.then, j.orelse), sides):
                around, self.path = self.path, (*self.path, *inside)
                self.value(value)
                self.path = around
        for j in s.joins:
            self.define(j.var)
        for e in (*s.results, *s.residuals) if isinstance(s, ssa.Custom) else ():
            self.value(e, whole=True)

    def alloc(self, s: ir.Alloc) -> None:
        if not _is_a(type(s.target.type), types.Array) or len(s.shape) != s.target.type.ndim:
            self.fail(f"a {s.target.type} of {len(s.shape)} sizes")
        for e in s.shape:
            self.integer(e)
        if s.fill is not None:
            self.value(s.fill, whole=True)
            is_array = _is_a(type(s.fill.type), types.Array)
            if is_array and s.fill.type.ndim != s.target.type.ndim:
                self.fail(f"a {s.target.type} is filled with a {s.fill.type}")
            self.converts(s.fill.type.dtype if is_array else s.fill.type, s.target.type.dtype)
        else:
            self.empty.add(s.target.name)
        self.define(s.target)

    def axes(self, s: ir.View | ir.Elementwise) -> None:
        """A view, or an operation on whole arrays."""
        for e in s.shape:
            self.integer(e)
        if len(s.axes) != len(s.shape):
            self.fail(f"{len(s.axes)} axes of {len(s.shape)} sizes")
        around = dict(self.where)
        for axis in s.axes:
            self.define(axis)
        self.element(s.array, s.index)
        if isinstance(s, ir.Elementwise):
            self.value(s.value)
            self.write(s.array)
            self.converts(s.value.type, s.array.type.dtype)
        self.where = around
        if isinstance(s, ir.View):
            if s.target.type.ndim != len(s.axes) or s.target.type.dtype != s.array.type.dtype:
                self.fail(f"a view of {len(s.axes)} axes into a {s.array.type} is no {s.target.type}")
            self.define(s.target)

    def launch(self, s: ir.Launch) -> None:
        for e in (s.start, s.stop):
            self.integer(e)
        for e in (*s.arguments, *(r.init for r in s.reduced), *s.shared, *s.distinct):
            self.value(e, whole=True)
        for e in (*s.arguments, *s.shared):
            if isinstance(e, Var) and _is_a(type(e.type), types.Array):
                self.empty.discard(e.name)
        for part in (s.part, s.atomic):
            if part is not None:
                if len(part.arguments) != 2 + len(s.arguments):
                    self.fail(f"{part.name} takes {len(part.arguments)} arguments, not {2 + len(s.arguments)}")
                verify(part, plain=True, when=self.when)
        for v in (*(r.var for r in s.reduced), *s.temporaries.values()):
            self.define(v)

    def write(self, array: Var) -> None:
        self.array(array)
        self.empty.discard(array.name)
        known = self.arguments.get(array.name)
        if array.name in self.constants:
            self.fail(f"a store to the constant '{array.name}'")
        if known is not None:
            allowed = known.type.mutable if self.writable is None else array.name in self.writable
            if not allowed:
                self.fail(f"a store to '{array.name}', which was not declared written")

    # expressions

    def value(self, e: Expr, whole: bool = False) -> None:
        """An expression; ``whole``: it may be an array, or a part of one."""
        match e:
            case Var():
                self.use(e)
                if _is_a(type(e.type), types.Array) and not whole:
                    self.fail(f"the array '{e.name}' where a number is expected")
            case ir.Const():
                pass
            case ir.Size(array=array, axis=axis):
                self.array(array)
                if not 0 <= axis < array.type.ndim:
                    self.fail(f"axis {axis} of a {array.type}")
            case ir.Load(array=array, index=index):
                if whole and len(index) < array.type.ndim:
                    self.array(array)
                    for i in index:
                        self.integer(i)
                    return
                self.element(array, index)
                if e.type != array.type.dtype:
                    self.fail(f"an element of a {array.type} is no {e.type}")
                if array.name in self.empty and self.derived and not self.plain and not self.path:
                    self.fail(f"elements of '{array.name}' are read before any is stored")
            case ir.Op():
                self.operation(e)
            case _:
                self.fail(f"{type(e).__name__} is no expression")

    def operation(self, e: ir.Op) -> None:
        for a in e.args:
            self.value(a)
        entry = TABLE.get(e.name)
        if entry is None:
            self.fail(f"there is no operation '{e.name}'")
        if len(e.args) != entry.arity:
            self.fail(f"'{e.name}' of {len(e.args)} operands")
        if e.name not in _OF_PARTS and any(_is_a(type(a.type), types.Complex) for a in e.args):
            if not _is_a(type(e.type), types.Complex):
                self.fail(f"{expression(e)} of complex numbers is a {e.type}")
        numbers = [a.type for a in (e.args[1:] if e.name == "select" else e.args)]
        if _is_a(type(e.type), types.Integer) and e.name not in _TO_INTEGERS and not draws(e):
            if any(_rank(type(t)) in (2, 3) for t in numbers):
                self.fail(f"{expression(e)} of {', '.join(map(str, numbers))} is a {e.type}")
        if e.name == "select" and not all(_is_same(t, e.type) for t in numbers):
            self.fail(f"{expression(e)} selects from {', '.join(map(str, numbers))} and is a {e.type}")

    def element(self, array: Var, index: tuple[Expr, ...]) -> None:
        self.array(array)
        if len(index) != array.type.ndim:
            self.fail(f"{len(index)} indices of '{array.name}', a {array.type}")
        for i in index:
            self.integer(i)

    def array(self, array: Var) -> None:
        self.use(array)
        if not _is_a(type(array.type), types.Array):
            self.fail(f"'{array.name}' is no array but a {array.type}")

    def integer(self, e: Expr) -> None:
        self.value(e)
        if _rank(type(e.type)) not in (0, 1):
            self.fail(f"{expression(e)} is a {e.type}, where an integer is expected")

    def condition(self, e: Expr) -> None:
        self.value(e)
        if not _is_a(type(e.type), types.Boolean):
            self.fail(f"{expression(e)} is a {e.type}, where a condition is expected")

    def converts(self, found: Any, wanted: Any) -> None:
        """Raise an error if a conversion to a variable's or an array's type loses more than digits."""
        ranks = _rank(type(found)), _rank(type(wanted))
        if ranks[0] is None or ranks[1] is None:
            self.fail(f"a {found} instead of a {wanted}")
        if ranks[0] > ranks[1] and ranks[0] > 1:
            self.fail(f"a {found} instead of a {wanted}")


_is_a = functools.cache(issubclass)  # Numba's classes of types are abstract ones, which are slow to compare


@functools.cache
def _rank(kind: type) -> int | None:
    """The place of a class of types among those of numbers, in the order of conversions."""
    kinds = (types.Boolean, types.Integer, types.Float, types.Complex)
    return next((k for k, wider in enumerate(kinds) if issubclass(kind, wider)), None)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether types are equal, apart from layouts of arrays and write access."""
    if first is second:
        return True
    if _is_a(type(first), types.Array) and _is_a(type(second), types.Array):
        return bool(first.dtype == second.dtype and first.ndim == second.ndim)
    return bool(first == second)
