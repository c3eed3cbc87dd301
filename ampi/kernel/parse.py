"""Python source -> typed IR.

``parse`` reads the source of a function, splits its variables into webs (``webs``), and builds the IR statement by
statement for the given argument types.  Types flow forward through expressions (``inference``); the type of a variable
is what Numba's unification makes of all its assignments, found by building again until nothing changes.

During building an expression is a *value*: an ``ir.Expr`` (a scalar, or a ``Var`` of array type), a ``Lazy`` (an array
that is an expression), a ``Group`` (a tuple of values) or a ``Static`` (something known now: a module, function,
kernel, dtype, None, a string).
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError
from numba.np import numpy_support

from ampi.custom import custom_vjp
from ampi.kernel import (
    array_functions,
    array_orders,  # noqa: F401 (enters its rules)
    array_shapes,
    array_values,
    compositions,
    extents,
    inference,
    intrinsics,
    ir,
    records,
)
from ampi.kernel.array_values import Lazy, Range, is_array
from ampi.kernel.custom import custom_jvp
from ampi.kernel.records import Records
from ampi.kernel.reductions import find_reductions
from ampi.kernel.references import references
from ampi.kernel.source import Source, read_source
from ampi.kernel.spelling import Augmented, spell_out
from ampi.kernel.webs import Webs, split_webs

MAX_CONSTANT_ARRAY = 100_000
RESERVED = frozenset(dir(builtins)) | {"np", "numpy", "math", "numba", "ampi", "prange", "_", "cmath"}


@dataclass(frozen=True)
class Static:
    """A value known when the kernel is compiled."""

    value: Any


@dataclass(frozen=True)
class Group:
    """A tuple of values; ``cls`` is the named tuple class, if it is one."""

    items: tuple[Any, ...]
    cls: type | None = None


@dataclass(frozen=True)
class Items:
    """What a loop goes through by number: ``item(k)`` for k from 0 to ``length``."""

    length: ir.Expr
    item: Callable[[ir.Expr], Any]


@dataclass(frozen=True)
class Named:
    """What a local name stands for when it is no scalar variable: another name for ``var``."""

    var: ir.Var


@dataclass(frozen=True)
class Leaf:
    """The item of a tuple variable that is kept in the variable ``name``."""

    name: str


Value = Any  # ir.Expr | Group | Static

BINARY: dict[type[ast.operator], tuple[str, Callable]] = {
    ast.Add: ("add", operator.add),
    ast.Sub: ("sub", operator.sub),
    ast.Mult: ("mul", operator.mul),
    ast.Div: ("truediv", operator.truediv),
    ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.BitAnd: ("bitand", operator.and_),
    ast.BitOr: ("bitor", operator.or_),
    ast.BitXor: ("bitxor", operator.xor),
    ast.LShift: ("lshift", operator.lshift),
    ast.RShift: ("rshift", operator.rshift),
}
COMPARE: dict[type[ast.cmpop], tuple[str, Callable]] = {
    ast.Lt: ("lt", operator.lt),
    ast.LtE: ("le", operator.le),
    ast.Gt: ("gt", operator.gt),
    ast.GtE: ("ge", operator.ge),
    ast.Eq: ("eq", operator.eq),
    ast.NotEq: ("ne", operator.ne),
}
UNARY: dict[type[ast.unaryop], tuple[str, Callable]] = {
    ast.USub: ("neg", operator.neg),
    ast.UAdd: ("pos", operator.pos),
    ast.Invert: ("invert", operator.invert),
}
CASTS: tuple[Any, ...] = (
    *(bool, int, float, np.bool_, np.int8, np.int16, np.int32, np.int64, np.intp),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.float32, np.float64, np.complex64, np.complex128),
)
ALLOCATIONS = (np.empty, np.zeros, np.ones, np.full, np.empty_like, np.zeros_like, np.ones_like, np.full_like)


Single = frozenset[tuple[int, int]]  # axes of size one: the argument leaf's number, and the axis


def parse(function: Any, argument_types: Iterable[types.Type], single: Single = frozenset()) -> ir.Function:
    """The typed IR of a Python function for arguments of these Numba types (trailing defaults may be left out), whose
    axes in ``single`` are known to have size one, so that they stretch where they meet longer ones.

    Calls of other kernels are inlined.  ``break``, ``continue`` and early ``return`` are still there: see ``lower``.
    Raises ``KernelError`` for what is outside the language.
    """
    return _parse(function, tuple(argument_types), (), single)


def _parse(
    function: Any, argument_types: tuple[types.Type, ...], callers: tuple[Any, ...], single: Single
) -> ir.Function:
    source = read_source(function)
    builder = _Builder(function, source, argument_types, callers, single)
    for _ in range(100):
        before = builder.state()
        result = builder.build()
        if builder.state() == before:
            builder.check_complete()
            return find_reductions(result, source.fail)
    raise source.error(source.first_line, "the types of its variables do not settle")


class _Unknown(Exception):
    """A variable is used whose type no earlier statement has given yet."""


@dataclass
class _Names:
    """Names in use, and new ones."""

    taken: set[str]

    def fresh(self, base: str) -> str:
        name, number = base, 1
        while name in self.taken or name in RESERVED:
            name, number = f"{base}_{number}", number + 1
        self.taken.add(name)
        return name


@dataclass
class _Scope:
    """What the parser knows about the names of one function while it builds it."""

    kinds: dict[str, Any] = field(default_factory=dict)  # local name -> type, Static, Group of kinds, or Named
    results: Any = None


class _Builder:
    def __init__(
        self,
        function: Any,
        source: Source,
        argument_types: tuple[types.Type, ...],
        callers: tuple[Any, ...],
        single: Single,
    ):
        self.function = function
        self.single_axes = single
        self.source = source
        self.callers = (*callers, (function.__code__, argument_types))
        self.definition = source.definition
        self.globals = _free_names(function)
        self.given = self.bind_arguments(argument_types)
        self.globals |= spell_out(source, self.globals)
        self.webs: Webs = split_webs(self.definition, self.static_test, RESERVED)
        self.scope = _Scope()
        self.callees: dict[Any, ir.Function] = {}
        self.frozen: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # id of a global array -> it, and its constant copy
        self.tables: dict[str, np.ndarray] = {}
        self.leaf_names: dict[tuple[str, Any], str] = {}
        self.pending: list[ast.AST] = []

    # ------------------------------------------------------------------------------------------- arguments

    def bind_arguments(self, argument_types: tuple[types.Type, ...]) -> dict[str, Any]:
        """Parameter -> its type, or ``Static`` for None and for defaults that were left out."""
        arguments = self.definition.args
        if arguments.vararg or arguments.kwarg:
            self.fail(self.definition, "*args and **kwargs are not supported", "name every parameter")
        parameters = list(inspect.signature(self.function).parameters.values())
        if len(argument_types) > len(parameters):
            self.fail(self.definition, f"takes {len(parameters)} arguments, {len(argument_types)} were given")
        given: dict[str, Any] = {}
        for position, parameter in enumerate(parameters):
            if position < len(argument_types):
                type_ = argument_types[position]
                if isinstance(type_, types.Dispatcher):
                    given[parameter.name] = Static(type_.dispatcher)
                elif isinstance(type_, types.Omitted):
                    given[parameter.name] = Static(type_.value)
                else:
                    given[parameter.name] = Static(None) if isinstance(type_, types.NoneType) else type_
            elif parameter.default is not inspect.Parameter.empty:
                given[parameter.name] = Static(parameter.default)
            else:
                self.fail(self.definition, f"missing argument '{parameter.name}'")
        return given

    def static_test(self, test: ast.expr, is_parameter: Callable[[str], bool]) -> bool | None:
        """The outcome of ``x is None`` and ``x is not None`` for a parameter."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.static_test(operand, is_parameter)
                return None if inner is None else not inner
            case ast.Compare(
                left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]
            ) if is_parameter(name):
                return (self.given[name] == Static(None)) == isinstance(op, ast.Is)
        return None

    def declare_arguments(self) -> tuple[ir.Argument, ...]:
        """One argument per leaf; parameters that the body assigns again get a local copy."""
        arguments: list[ir.Argument] = []
        values: dict[str, Value] = {}
        for parameter, kind in self.given.items():
            name = self.webs.parameters[parameter]
            if isinstance(kind, Static):
                values[name] = self.outside(self.definition, name, kind.value)
            else:
                values[name] = self.argument_leaves(name, kind, (parameter,), arguments)
        self.lasting = {a.name for a in arguments}
        for name, value in values.items():
            if isinstance(value, ir.Const) and self.webs.definitions[name] == 1:
                self.scope.kinds[name] = value
            else:
                self.bind(self.definition, name, value)
        return tuple(arguments)

    def argument_leaves(self, name: str, type_: types.Type, path: tuple, arguments: list[ir.Argument]) -> Value:
        if isinstance(type_, types.NoneType):
            return Static(None)
        if isinstance(type_, types.Omitted):
            return self.outside(self.definition, name, type_.value)
        if isinstance(type_, types.Dispatcher):
            return Static(type_.dispatcher)
        if records.is_structured(type_):
            fields = tuple(
                (f, self.argument_leaves(f"{name}_{f}", t, (*path, f), arguments))
                for f, t in records.field_types(type_)
            )
            if not fields:
                self.fail(self.definition, f"argument '{name}' has no field of numbers")
            return Records(type_, type_.ndim, fields)
        if inference.is_scalar(type_) or inference.is_array(type_):
            own_name = len(path) == 1 and self.webs.definitions[name] == 1
            leaf = name if own_name else self.names.fresh(f"{name}_0" if len(path) == 1 else name)
            self.single |= {(leaf, axis) for number, axis in self.single_axes if number == len(arguments)}
            arguments.append(ir.Argument(leaf, type_, path))
            return ir.Var(leaf, type_)
        if isinstance(type_, types.BaseTuple):
            fields_ = getattr(type_, "fields", range(len(type_)))
            items = tuple(
                self.argument_leaves(f"{name}_{f}", t, (*path, f), arguments)
                for f, t in zip(fields_, type_.types, strict=True)
            )
            return Group(items, getattr(type_, "instance_class", None))
        return self.fail(
            self.definition,
            f"argument '{'.'.join(map(str, path))}' is a {type_}",
            "kernels take bools, integers, floats, complex numbers, arrays of them, and (named) tuples of these",
        )

    # ------------------------------------------------------------------------------------------- building

    def state(self) -> Any:
        return dict(self.scope.kinds), self.scope.results

    def build(self) -> ir.Function:
        self.names = _Names(set(self.webs.definitions))
        self.pending = []
        self.constants: dict[str, np.ndarray] = {}
        self.references: set[str] = set()  # names that stand for one array or another
        self.extents: dict[str, tuple[ir.Expr, ...]] = {}  # of local arrays and parts of arrays
        self.owned: set[str] = set()  # local arrays
        self.parts: set[str] = set()  # parts of local arrays
        self.single: set[tuple[str, int]] = set()  # axes of arguments, and of callees' arrays, that have size one
        self.bounds: dict[str, int | None] = {}  # what integer variables are not below
        self.unrolling = 0
        self.loops: list[str] = []
        self.block: list[ir.Stmt] = []
        self.line = self.source.first_line
        arguments = self.declare_arguments()
        self.statements(self.definition.body)
        return ir.Function(
            name=self.source.name,
            arguments=arguments,
            body=tuple(self.block),
            filename=self.source.filename,
            first_line=self.source.first_line,
            result=_structure(self.scope.results),
            constants=tuple(self.constants.items()),
        )

    def check_complete(self) -> None:
        if self.webs.maybe_undefined:
            node = self.webs.maybe_undefined[0]
            self.fail(node, f"'{node.id}' is used before it is assigned", "assign it first")
        if self.pending:
            self.fail(self.pending[0], "a variable is used here that has no value yet", "assign it first")
        if self.webs.falls_through and self.scope.results not in (None, Static(None)):
            self.fail(self.definition, "some ways through return a value and others end without", "return on every way")

    def fail(self, node: Any, problem: str, advice: str = "") -> NoReturn:
        self.source.fail(node, problem, advice)

    def emit(self, statement: ir.Stmt) -> None:
        self.block.append(statement if statement.line else replace(statement, line=self.line))

    def sub_block(self, build: Callable[[], Any]) -> tuple[tuple[ir.Stmt, ...], Any]:
        """The statements that ``build`` emits, and what it returns."""
        outer, self.block = self.block, []
        try:
            result = build()
            return tuple(self.block), result
        finally:
            self.block = outer

    def temporary(self, base: str, value: ir.Expr) -> ir.Var:
        target = ir.Var(self.names.fresh(base), value.type)
        self.emit(ir.Assign(target, value))
        return target

    def is_lasting(self, name: str) -> bool:
        """Whether a scalar keeps its value as long as what is made of it is used."""
        return name in self.lasting or self.webs.definitions.get(name, 1) == 1

    def lowest(self, var: ir.Var) -> int | None:
        return self.bounds.get(var.name)

    cast = staticmethod(lambda value, type_: cast(value, type_))

    # ------------------------------------------------------------------------------------------- statements

    def statements(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.line = node.lineno
            method = getattr(self, f"statement_{type(node).__name__}", None)
            if method is None:
                self.fail(node, f"{_describe(node)} is not supported in a kernel", _advice(node))
            depth = len(self.loops), self.unrolling
            try:
                method(node)
            except _Unknown:
                self.pending.append(node)
                del self.loops[depth[0] :]
                self.unrolling = depth[1]
            if self.block and isinstance(self.block[-1], (ir.Return, ir.Break, ir.Continue, ir.Raise)):
                break

    def statement_Pass(self, node: ast.Pass) -> None:
        pass

    def statement_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node.value, ast.Call):
            if not self.is_print(node.value):
                self.value(node.value)
            return
        self.fail(node, "an expression whose value is not used", "remove it or assign it")

    def is_print(self, call: ast.Call) -> bool:
        """Whether a call prints: that is left to the primal."""
        name = call.func
        return isinstance(name, ast.Name) and name.id not in self.webs.definitions and self.value(name) == Static(print)

    def statement_Assign(self, node: ast.Assign) -> None:
        first = node.targets[0]
        value = self.value(node.value, hint=first.id if isinstance(first, ast.Name) else None)
        if isinstance(node.value, Augmented) and is_array(value) and isinstance(value, ir.Var):
            self.scope.kinds[first.id] = Named(value)  # the same array as before
            return
        if len(node.targets) > 1 and isinstance(value, Lazy):
            value = array_values.computed(self, value, "value")
        if len(node.targets) > 1 and isinstance(value, ir.Expr) and not isinstance(value, (ir.Const, ir.Var)):
            value = self.temporary("value", value)
        for target in node.targets:
            self.assign(target, value)

    def statement_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def statement_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, (ast.Subscript, ast.Attribute)):
            self.fail(node, "augmented assignment to this target is not supported", "assign to a name or an element")
        array, items = self.indexed(node.target)
        if not self.is_element(array, items):
            place = array_values.place(self, node.target, array, items)
            array_values.update(self, node, node.op, place, self.value(node.value))
            return
        index = self.index(node.target, array, items)
        (value,) = self.operands(lambda: self.scalar(node.value))
        old = ir.Load(array, index, array.type.dtype)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            self.require_store(node, array, self.binary(node, node.op, old, value).type)
            if isinstance(node.op, ast.Sub):
                value = self.negated(node, value)
            self.emit(ir.Accumulate(array, index, value))
            return
        result = self.binary(node, node.op, old, value)
        self.require_store(node, array, result.type)
        self.emit(ir.Store(array, index, result))

    def statement_Return(self, node: ast.Return) -> None:
        value = Static(None) if node.value is None else self.result(node, self.value(node.value))
        leaves = list(_leaves(value)) if value != Static(None) else []
        nothing = Static(None)
        for leaf in leaves:
            if isinstance(leaf, Static) and leaf != nothing:
                self.fail(node, f"returns {leaf.value!r}", "kernels return scalars, arrays and tuples of these")
        kind = _kind(value)
        old = self.scope.results
        if old is None:
            self.scope.results = kind
        else:
            merged = _merge_kinds(old, kind)
            if merged is None:
                self.fail(node, "returns of different structure", "return the same everywhere")
            self.scope.results = merged
        leaves = [leaf for leaf in leaves if leaf != nothing]
        wanted = [kind for kind in _leaves(self.scope.results) if kind != nothing]
        values = tuple(
            leaf if inference.is_array(type_) else cast(leaf, type_) for leaf, type_ in zip(leaves, wanted, strict=True)
        )
        self.emit(ir.Return(values))

    def result(self, node: ast.Return, value: Value) -> Value:
        """A result: arrays that are no names of whole arrays are copied where that makes no difference."""
        if isinstance(value, Group):
            return Group(tuple(self.result(node, v) for v in value.items), value.cls)
        if isinstance(value, Records):
            self.fail(node, "returns a structured array or a record", "return its fields")
        if isinstance(value, Lazy):
            return array_values.computed(self, value, "result")
        is_part = is_array(value) and value.name in self.extents and value.name not in self.owned
        # A caller in Python gets a part of an argument, whose derivatives are in those of the argument; what a
        # derivative program returns in its place must only have the same values.
        return array_values.copied(self, value, "result") if is_part and len(self.callers) == 1 else value

    def statement_Break(self, node: ast.Break) -> None:
        self.require_loop(node, "break")
        self.emit(ir.Break())

    def statement_Continue(self, node: ast.Continue) -> None:
        self.require_loop(node, "continue")
        self.emit(ir.Continue())

    def require_loop(self, node: ast.stmt, word: str) -> None:
        if self.loops and self.loops[-1] == "unrolled":
            self.fail(node, f"{word} in a loop over a tuple", "loop over range() instead")

    def statement_Raise(self, node: ast.Raise) -> None:
        self.emit(ir.Raise(self.raise_text(node, node.exc)))

    def statement_Assert(self, node: ast.Assert) -> None:
        condition = self.condition(node.test)
        message = "" if node.msg is None else _message(node.msg)
        refuse = ir.Raise(f"raise AssertionError({message})", line=node.lineno)
        self.emit(ir.If(_not(condition), (refuse,)))

    def raise_text(self, node: ast.Raise, exception: ast.expr | None) -> str:
        name = exception.func if isinstance(exception, ast.Call) else exception
        arguments = exception.args if isinstance(exception, ast.Call) else []
        if not isinstance(name, ast.Name) or not isinstance(getattr(builtins, name.id, None), type):
            self.fail(node, "only built-in exceptions can be raised", 'raise ValueError("text")')
        return f"raise {name.id}({', '.join(map(_message, arguments))})"

    def statement_If(self, node: ast.If) -> None:
        test = self.value(node.test)
        if isinstance(test, (Static, ir.Const, Group)):
            taken = bool(test.items if isinstance(test, Group) else test.value)
            self.statements(node.body if taken else node.orelse)
            return
        condition = self.truth(node.test, test)
        then, _ = self.sub_block(lambda: self.statements(node.body))
        orelse, _ = self.sub_block(lambda: self.statements(node.orelse))
        self.emit(ir.If(condition, then, orelse, line=node.lineno))

    def statement_While(self, node: ast.While) -> None:
        self.loops.append("while")
        before, condition = self.sub_block(lambda: self.condition(node.test))

        def body() -> None:
            if before:
                self.block.extend(before)
                self.emit(ir.If(_not(condition), (ir.Break(line=node.lineno),), line=node.lineno))
            self.statements(node.body)

        statements, _ = self.sub_block(body)
        self.loops.pop()
        condition = TRUE if before else condition
        self.emit(ir.While(condition, statements, line=node.lineno))

    def statement_For(self, node: ast.For) -> None:
        called = self.called(node.iter)
        if called is range or called is numba.prange:
            self.range_loop(node, parallel=called is numba.prange)
            return
        items = self.iterated(node.iter)
        if isinstance(items, Group):
            self.unrolled_loop(node, items)
        else:
            zero, one = ir.Const(0, types.intp), ir.Const(1, types.intp)
            self.counted_loop(node, zero, items.length, one, types.intp, False, items.item)

    def called(self, node: ast.expr) -> Any:
        """The function that an expression calls, if it is a call of one known now."""
        if not isinstance(node, ast.Call):
            return None
        if isinstance(node.func, ast.Attribute) and not self.is_outside(node.func.value):
            return None
        called = self.value(node.func)
        return called.value if isinstance(called, Static) else None

    def is_outside(self, node: ast.expr) -> bool:
        """Whether a (dotted) name does not start at a local variable."""
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id not in self.webs.definitions

    def iterated(self, node: ast.expr) -> Group | Items:
        """What a ``for`` goes through: a group of values known now, or numbered items."""
        called = self.called(node)
        if called is range:
            return self.range_items(node)
        if called is enumerate:
            return self.enumerated(node)
        if called is zip:
            return self.zipped(node)
        items = self.value(node)
        if isinstance(items, ir.Var) and inference.is_array(items.type):
            length = ir.Size(items, 0, types.intp)
            return Items(length, lambda number: self.subscript(node, items, (number,), None))
        if isinstance(items, Records) and items.ndim == 1 and not items.index:
            length = array_values.shape_of(self, items.first)[0]
            return Items(length, lambda number: records.part(self, node, items, [number]))
        if isinstance(items, Static) and isinstance(items.value, (tuple, list)):
            items = self.constant(tuple(items.value), node)
        if not isinstance(items, Group):
            self.fail(node, "this cannot be looped over", "loop over range(...), prange(...), a tuple or an array")
        return items

    def range_items(self, node: ast.Call) -> Items:
        """``range`` inside of ``zip`` or ``enumerate``."""
        start, stop, step, type_ = self.range_bounds(node)
        if not isinstance(step, ir.Const):
            self.fail(node, "a range with a step that is not constant in zip or enumerate", "loop over the range alone")
        low, high = (start, stop) if step.value > 0 else (stop, start)
        span = self.binary(node, ast.Sub(), high, low)
        size = ir.Const(abs(step.value), types.int64)
        rounded = self.binary(node, ast.Add(), span, ir.Const(size.value - 1, types.int64))
        trips = self.operation(node, "max", max, self.binary(node, ast.FloorDiv(), rounded, size), _ZERO)

        def item(number: ir.Expr) -> ir.Expr:
            moved = self.binary(node, ast.Mult(), number, step)
            return cast(self.binary(node, ast.Add(), start, moved), type_)

        return Items(trips, item)

    def enumerated(self, node: ast.Call) -> Group | Items:
        arguments = {k.arg: k.value for k in node.keywords}
        if not 1 <= len(node.args) <= 2 or set(arguments) - {"start"} or len(node.args) + len(arguments) > 2:
            self.fail(node, "enumerate takes what is looped over, and where to start", "write enumerate(x, start)")
        start_node = node.args[1] if len(node.args) == 2 else arguments.get("start")
        items = self.iterated(node.args[0])
        start: ir.Expr = ir.Const(0, types.int64) if start_node is None else self.scalar(start_node)
        if not isinstance(start.type, types.Integer):
            self.fail(node, f"enumerate from a {start.type}", "use an integer")
        start = start if isinstance(start, ir.Const) else self.temporary("start", start)
        number = lambda k: self.binary(node, ast.Add(), start, k)
        if isinstance(items, Group):
            counted = [Group((number(ir.Const(k, types.int64)), item)) for k, item in enumerate(items.items)]
            return Group(tuple(counted))
        return Items(items.length, lambda k: Group((number(k), items.item(k))))

    def zipped(self, node: ast.Call) -> Group | Items:
        if node.keywords or not node.args or any(isinstance(a, ast.Starred) for a in node.args):
            self.fail(node, "zip takes plain arguments here", "write zip(x, y)")
        parts = [self.iterated(a) for a in node.args]
        groups = [p for p in parts if isinstance(p, Group)]
        if len(groups) == len(parts):
            return Group(tuple(Group(together) for together in zip(*(p.items for p in parts))))
        if groups:
            parts = [self.numbered(node, p) if isinstance(p, Group) else p for p in parts]
        length = parts[0].length
        for part in parts[1:]:
            length = self.operation(node, "min", min, length, part.length)
        return Items(length, lambda k: Group(tuple(part.item(k) for part in parts)))

    def numbered(self, node: ast.AST, group: Group) -> Items:
        array = self.as_array(node, group)
        length = ir.Const(len(group.items), types.intp)
        return Items(length, lambda number: self.subscript(node, array, (number,), None))

    def range_bounds(self, call: ast.Call) -> tuple[ir.Expr, ir.Expr, ir.Expr, types.Type]:
        """Start, stop and step of a range, and the type of its items."""
        if call.keywords or not 1 <= len(call.args) <= 3 or any(isinstance(a, ast.Starred) for a in call.args):
            self.fail(call, "range takes one to three plain arguments")
        bounds = self.operands(*[lambda a=a: self.scalar(a) for a in call.args])
        for argument, bound in zip(call.args, bounds, strict=True):
            if not isinstance(bound.type, types.Integer):
                self.fail(argument, f"range of a {bound.type}", "use integers")
        type_ = inference.result_type(range, tuple(b.type for b in bounds)).dtype
        start = bounds[0] if len(bounds) > 1 else ir.Const(0, type_)
        stop = bounds[0] if len(bounds) == 1 else bounds[1]
        step = bounds[2] if len(bounds) == 3 else ir.Const(1, type_)
        if step == ir.Const(0, type_):
            self.fail(call, "range with a step of 0")
        return start, stop, step, type_

    def range_loop(self, node: ast.For, parallel: bool) -> None:
        start, stop, step, type_ = self.range_bounds(node.iter)
        if not isinstance(node.target, ast.Name):
            self.fail(node.target, "the loop variable must be a name")
        self.counted_loop(node, start, stop, step, type_, parallel, None)

    def counted_loop(
        self,
        node: ast.For,
        start: ir.Expr,
        stop: ir.Expr,
        step: ir.Expr,
        type_: types.Type,
        parallel: bool,
        item: Callable[[ir.Var], Value] | None,
    ) -> None:
        """A ``For``; its counter is the user's variable if the loop alone assigns it, otherwise one of our own."""
        name = node.target.id if isinstance(node.target, ast.Name) else "item"
        direct = item is None and name in self.webs.loop_variables and not self.unrolling
        var = ir.Var(name if direct else self.names.fresh(f"{name}_at"), type_)
        if isinstance(step, ir.Const):
            below = extents.lowest(start if step.value > 0 else stop, self.lowest)
            self.bounds[var.name] = below if below is None or step.value > 0 else below + 1

        def body() -> None:
            if direct:
                self.scope.kinds[name] = type_
            else:
                self.assign(node.target, var if item is None else item(var))
            self.statements(node.body)

        self.loops.append("prange" if parallel else "for")
        statements, _ = self.sub_block(body)
        self.loops.pop()
        self.emit(ir.For(var, start, stop, step, statements, parallel, line=node.lineno))

    def unrolled_loop(self, node: ast.For, items: Group) -> None:
        self.loops.append("unrolled")
        self.unrolling += 1
        for item in items.items:
            self.line = node.lineno
            self.assign(node.target, item)
            self.statements(node.body)
        self.unrolling -= 1
        self.loops.pop()

    # ------------------------------------------------------------------------------------------- assignment

    def assign(self, target: ast.expr, value: Value) -> None:
        match target:
            case ast.Name():
                self.bind(target, target.id, value)
            case ast.Tuple() | ast.List():
                self.assign_tuple(target, value)
            case ast.Subscript() | ast.Attribute():
                self.store(target, value)
            case _:
                self.fail(target, f"cannot assign to {_describe(target)}", "assign to a name or to an element")

    def assign_tuple(self, target: ast.Tuple | ast.List, value: Value) -> None:
        if isinstance(value, Static) and isinstance(value.value, (tuple, list)):
            value = self.constant(tuple(value.value), target)
        if not isinstance(value, Group):
            self.fail(target, "only a tuple can be unpacked", "index the elements")
        if len(target.elts) != len(value.items):
            self.fail(target, f"{len(value.items)} values for {len(target.elts)} names")
        items = list(value.items)
        targets = [_root_name(t) for t in target.elts]
        for number, item in enumerate(items):
            earlier = set(targets[:number])
            if isinstance(item, ir.Expr) and inference.is_scalar(item.type) and number and self.depends(item, earlier):
                items[number] = self.temporary("value", item)
            elif (isinstance(item, ir.Var) and item.name in self.references) or (isinstance(item, Group) and number):
                items[number] = self.map_leaves(item, self.kept)
        for element, item in zip(target.elts, items, strict=True):
            self.assign(element, item)

    def kept(self, value: ir.Expr) -> ir.Expr:
        """A value under a name that no assignment changes."""
        if inference.is_scalar(value.type):
            return self.temporary("value", value)
        if not (isinstance(value, ir.Var) and value.name in self.references):
            return value
        target = ir.Var(self.names.fresh("array"), value.type)
        self.references.add(target.name)
        self.emit(ir.Alias(target, value, ()))
        return target

    def depends(self, value: ir.Expr, names: set[str]) -> bool:
        """Whether assigning to these variables or to elements of these arrays could change ``value``."""
        return any(isinstance(n, ir.Load) or (isinstance(n, ir.Var) and n.name in names) for n in ir.walk(value))

    def map_leaves(self, value: Value, function: Callable[[ir.Expr], ir.Expr]) -> Value:
        if isinstance(value, Group):
            return Group(tuple(self.map_leaves(v, function) for v in value.items), value.cls)
        return value if isinstance(value, Static) else function(value)

    def bind(self, node: ast.AST, name: str, value: Value) -> None:
        """``name = value`` for a local name."""
        if isinstance(value, Lazy):
            value = array_values.computed(self, value, name)
        if isinstance(value, Group):
            self.bind_group(node, name, value)
        elif isinstance(value, (Static, Records)):
            if self.scope.kinds.setdefault(name, value) != value and not self.unrolling:
                self.fail(node, f"'{name}' stands for different things", "use two names")
            self.scope.kinds[name] = value
        elif inference.is_array(value.type):
            self.bind_array(node, name, value)
        elif self.webs.definitions[name] == 1 and isinstance(value, ir.Var) and value.name in self.lasting:
            self.scope.kinds[name] = Named(value)
        else:
            self.bind_scalar(node, name, value)

    def bind_scalar(self, node: ast.AST, name: str, value: ir.Expr) -> None:
        old = self.scope.kinds.get(name)
        if old is None or isinstance(old, Named):
            type_ = inference.plain(value.type)
        elif isinstance(old, types.Type) and inference.is_scalar(old):
            type_ = inference.unify(old, value.type)
        else:
            type_ = None
        if type_ is None or not inference.is_scalar(type_):
            self.fail(node, f"'{name}' is {_show(old)} elsewhere and {value.type} here", "use two names")
        self.scope.kinds[name] = type_
        if self.webs.definitions.get(name, 1) == 1 and isinstance(type_, types.Integer):
            self.bounds[name] = extents.lowest(value, self.lowest)
        self.emit(ir.Assign(ir.Var(name, type_), cast(value, type_)))

    def bind_array(self, node: ast.AST, name: str, value: ir.Var) -> None:
        if self.webs.definitions.get(name, 1) > 1 or value.name in self.references:
            self.bind_reference(node, name, value)
            return
        lasting = value.name in self.lasting or value.name in self.constants or value.name == name
        if self.loops and not lasting:
            target = ir.Var(self.names.fresh(name) if self.unrolling else name, value.type)
            self.emit(ir.Alias(target, value, ()))
            self.describe_part(target, value, 0)
            value = target
        self.scope.kinds[name] = Named(value)

    def bind_reference(self, node: ast.AST, name: str, value: ir.Var) -> None:
        """A name that stands for one array or another; ``references`` finds out which."""
        old = self.scope.kinds.get(name)
        single = self.webs.definitions.get(name, 1) == 1
        known = old.var.type if isinstance(old, Named) and not single else value.type
        type_ = inference.unify(known, value.type) if inference.is_array(known) else None
        if type_ is None or not (old is None or isinstance(old, Named)):
            self.fail(node, f"'{name}' is {_show(old)} elsewhere and {value.type} here", "use two names")
        target = ir.Var(self.names.fresh(name) if single and self.unrolling else name, type_)
        self.references.add(target.name)
        self.emit(ir.Alias(target, value, ()))
        self.scope.kinds[name] = Named(target)

    def bind_group(self, node: ast.AST, name: str, value: Group) -> None:
        old = self.scope.kinds.get(name)
        if isinstance(old, Group) and len(old.items) != len(value.items):
            self.fail(node, f"'{name}' is a tuple of {len(old.items)} elsewhere and of {len(value.items)} here")
        fields_ = value.cls._fields if value.cls else range(len(value.items))
        items = tuple(self.bind_leaf(node, name, f, item) for f, item in zip(fields_, value.items, strict=True))
        self.scope.kinds[name] = Group(items, value.cls)

    def bind_leaf(self, node: ast.AST, name: str, part: Any, item: Value) -> Value:
        """Bind one item of a tuple: to itself if it can never change, otherwise to a variable of its own."""
        lasting = isinstance(item, (ir.Const, Static)) or (isinstance(item, ir.Var) and item.name in self.lasting)
        if lasting and self.webs.definitions[name] == 1 and not self.unrolling:
            return item
        leaf = self.leaf_names.get((name, part))
        if leaf is None:
            leaf = self.leaf_names[name, part] = self.names.fresh(f"{name}_{part}")
            self.webs.definitions[leaf] = self.webs.definitions[name]
        self.bind(node, leaf, item)
        return Leaf(leaf)

    def store(self, target: ast.Subscript | ast.Attribute, value: Value) -> None:
        position = len(self.block)
        if isinstance(value, Records):
            records.assign(self, target, self.value(target), value)
            return
        array, items = self.indexed(target)
        if not self.is_element(array, items):
            if not (is_array(value) or isinstance(value, ir.Expr)):
                self.fail(target, "only numbers and arrays can be stored into an array")
            if array_values.is_mask(array, items) and not is_array(value):
                array_values.assign_masked(self, target, array, items[0], value)
                return
            array_values.assign(self, target, array_values.place(self, target, array, items), value)
            return
        if not isinstance(value, ir.Expr) or not inference.is_scalar(value.type):
            self.fail(target, "only a scalar can be stored into an element", "index a part of the array: a[i:j]")
        index = self.index(target, array, items)
        if len(self.block) > position and any(isinstance(n, ir.Load) for n in ir.walk(value)):
            saved = ir.Var(self.names.fresh("value"), value.type)
            self.block.insert(position, ir.Assign(saved, value, line=self.line))
            value = saved
        self.require_store(target, array, value.type)
        if isinstance(value, ir.Const):
            value = cast(value, array.type.dtype) if inference.default_constant(array.type.dtype) else value
        self.emit(ir.Store(array, index, value))

    def require_store(self, node: ast.AST, array: ir.Var, type_: types.Type) -> None:
        if not inference.convertible(type_, array.type.dtype):
            self.fail(node, f"a {type_} cannot be stored in an array of {array.type.dtype}", "convert it")
        if array.name in self.constants or not array.type.mutable:
            self.fail(node, f"'{array.name}' is read-only", "copy it into a local array first")

    def indexed(self, node: ast.Subscript | ast.Attribute) -> tuple[ir.Var, list[Any]]:
        """The array and the index of what is assigned."""
        array = self.value(node.value)
        if isinstance(array, Records):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(self.index_items(node)[0], "value", None)
            if not isinstance(name, str):
                self.fail(node, "a number for a whole record", "assign to its fields")
            return records.field(self, node, array, name), list(array.index)
        if isinstance(node, ast.Attribute):
            self.fail(node, "cannot assign to an attribute", "assign to a name or to an element")
        if not (isinstance(array, ir.Var) and inference.is_array(array.type)):
            self.fail(node, "only elements of arrays can be assigned", "tuples cannot change; use a local array")
        return array, self.index_items(node)

    @staticmethod
    def is_element(array: ir.Var, items: list[Any]) -> bool:
        return array_values.is_simple(items) and len(items) >= array.type.ndim

    # ------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr, hint: str | None = None) -> Value:
        """The value of an expression; a new array or view is named ``hint``."""
        method = getattr(self, f"value_{type(node).__name__}", None)
        if method is None:
            self.fail(node, f"{_describe(node)} is not supported in a kernel", _advice(node))
        if hint is not None and isinstance(node, (ast.Call, ast.Subscript)):
            return method(node, hint)
        return method(node)

    def scalar(self, node: ast.expr) -> ir.Expr:
        value = self.value(node)
        if isinstance(value, Lazy) or not isinstance(value, ir.Expr):
            self.fail(node, "a number is needed here")
        if not inference.is_scalar(value.type):
            self.fail(node, f"a number is needed here, this is an array ({value.type})", "loop over its elements")
        return value

    def operands(self, *makers: Callable[[], Value]) -> list[Value]:
        """Evaluate from left to right; a value that a later operand's statements could change is kept first."""
        values: list[Value] = []
        ends: list[int] = []
        for make in makers:
            values.append(make())
            ends.append(len(self.block))
        for number in reversed(range(len(values) - 1)):
            value = values[number]
            if isinstance(value, Lazy) and self.writes(ends[number]):
                statements, values[number] = self.sub_block(lambda v=value: array_values.computed(self, v, "value"))
                self.block[ends[number] : ends[number]] = statements
            if (
                ends[-1] > ends[number]
                and isinstance(value, ir.Expr)
                and any(isinstance(n, ir.Load) for n in ir.walk(value))
            ):
                saved = ir.Var(self.names.fresh("value"), value.type)
                self.block.insert(ends[number], ir.Assign(saved, value, line=self.line))
                values[number] = saved
        return values

    def writes(self, position: int) -> bool:
        """Whether the statements from here on write into an array that they do not make themselves."""
        nodes = list(ir.walk(tuple(self.block[position:])))
        own = {n.target.name for n in nodes if isinstance(n, ir.Alloc)}
        kinds = (ir.Store, ir.Accumulate, ir.Elementwise)
        return any(isinstance(n, kinds) and n.array.name not in own for n in nodes)

    def value_Constant(self, node: ast.Constant) -> Value:
        return self.constant(node.value, node)

    def constant(self, value: Any, node: Any) -> Value:
        """A Python object found at compile time, as a value."""
        if isinstance(value, (bool, int, float, complex, np.number, np.bool_)):
            try:
                type_ = inference.plain(numba.typeof(value))
            except (NumbaError, ValueError):
                self.fail(node, f"the constant {value!r} has no Numba type")
            return ir.Const(value.item() if isinstance(value, np.generic) else value, type_)
        if isinstance(value, tuple):
            cls = type(value) if hasattr(value, "_fields") else None
            return Group(tuple(self.constant(v, node) for v in value), cls)
        return Static(value)

    def value_Name(self, node: ast.Name) -> Value:
        if node.id in self.webs.definitions:
            return self.read(node, node.id)
        if node.id in self.globals:
            return self.outside(node, node.id, self.globals[node.id])
        if any(node is n for n in self.webs.maybe_undefined):
            raise _Unknown
        return self.fail(node, f"'{node.id}' is not defined")

    def outside(self, node: ast.AST, name: str, value: Any) -> Value:
        """A global or closure variable: its value now, for good."""
        # What ampi.numpy puts around a function of NumPy means that function here.
        value = getattr(value, "numpy_function", value)
        if isinstance(value, np.ndarray):
            if value.ndim == 0 or value.dtype.kind not in "bifuc" or value.size > MAX_CONSTANT_ARRAY:
                self.fail(node, f"the global array '{name}' is too large for a constant", "pass it as an argument")
            return self.constant_array(name, value)
        return self.constant(value, node)

    def constant_array(self, name: str, value: np.ndarray) -> ir.Var:
        """A global array, as a constant of the kernel."""
        if id(value) not in self.frozen:
            copy = value.copy(order="A")
            copy.flags.writeable = False
            self.frozen[id(value)] = (value, copy)
        constant = self.frozen[id(value)][1]
        known = next((n for n, array in self.constants.items() if array is constant), None)
        if known is None:
            known = self.names.fresh(name)
            self.constants[known] = constant
        return ir.Var(known, numba.typeof(constant))

    def read(self, node: ast.AST, name: str) -> Value:
        kind = self.scope.kinds.get(name)
        if kind is None:
            raise _Unknown
        return self.of_kind(node, name, kind)

    def of_kind(self, node: ast.AST, name: str, kind: Any) -> Value:
        match kind:
            case Named(var=var):
                return var
            case Group():
                return self.map_group(node, kind)
            case types.Type():
                return ir.Var(name, kind)
        return kind

    def map_group(self, node: ast.AST, group: Group) -> Group:
        items = []
        for item in group.items:
            if isinstance(item, Leaf):
                items.append(self.read(node, item.name))
            elif isinstance(item, Group):
                items.append(self.map_group(node, item))
            else:
                items.append(item)
        return Group(tuple(items), group.cls)

    def value_Tuple(self, node: ast.Tuple) -> Value:
        items = self.spread(node.elts)
        return Group(tuple(array_values.computed(self, v) if isinstance(v, Lazy) else v for v in items))

    value_List = value_Tuple

    def spread(self, nodes: list[ast.expr]) -> list[Value]:
        """The values of expressions, ``*t`` for a tuple being several."""
        plain = [n.value if isinstance(n, ast.Starred) else n for n in nodes]
        values: list[Value] = []
        for node, value in zip(nodes, self.operands(*[lambda n=n: self.value(n) for n in plain]), strict=True):
            if not isinstance(node, ast.Starred):
                values.append(value)
                continue
            if isinstance(value, Static) and isinstance(value.value, (tuple, list)):
                value = self.constant(tuple(value.value), node)
            if not isinstance(value, Group):
                self.fail(node, "only a tuple can be spread with *", "write the elements out")
            values.extend(value.items)
        return values

    def value_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            operand = self.value(node.operand)
            if isinstance(operand, Static):
                return ir.Const(not operand.value, types.boolean)
            return _not(self.truth(node.operand, operand))
        operand = self.value(node.operand)
        name, function = UNARY[type(node.op)]
        if is_array(operand):
            make = self.unary_maker(node, name, function)
            return array_values.operation(self, node, function, make, operand)
        if not isinstance(operand, ir.Expr):
            self.fail(node.operand, "a number is needed here")
        if name == "neg":
            return self.negated(node, operand)
        return self.operation(node, name, function, operand)

    def unary_maker(self, node: ast.AST, name: str, function: Any) -> Callable[[ir.Expr], ir.Expr]:
        if name == "neg":
            return lambda x: self.negated(node, x)
        if name == "invert":  # of a truth value
            return lambda x: _not(x) if isinstance(x.type, types.Boolean) else self.operation(node, name, function, x)
        return lambda x: self.operation(node, name, function, x)

    def negated(self, node: ast.AST, value: ir.Expr) -> ir.Expr:
        if isinstance(value, ir.Const) and not isinstance(value.type, types.Boolean):
            return ir.Const(-value.value, value.type)
        return self.operation(node, "neg", operator.neg, value)

    def value_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.operands(lambda: self.value(node.left), lambda: self.value(node.right))
        if isinstance(node.op, ast.MatMult):
            return array_functions.matmul(self, node, left, right)
        if isinstance(left, Group) and isinstance(right, Group) and isinstance(node.op, ast.Add):
            return Group(left.items + right.items)
        if isinstance(node, Augmented) and isinstance(left, ir.Var) and is_array(left):
            array_values.update(self, node, node.op, array_values.whole(self, left), right)
            return left
        if is_array(left) or is_array(right):
            function = BINARY[type(node.op)][1]
            return array_values.operation(
                self, node, function, lambda x, y: self.binary(node, node.op, x, y), left, right
            )
        for side, value in ((node.left, left), (node.right, right)):
            if not isinstance(value, ir.Expr):
                self.fail(side, "a number is needed here")
        return self.binary(node, node.op, left, right)

    value_Augmented = value_BinOp

    def binary(self, node: ast.AST, op: ast.operator, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        name, function = BINARY[type(op)]
        folded = _fold(name, function, left, right)
        return folded if folded is not None else self.operation(node, name, function, left, right)

    def operation(self, node: ast.AST, name: str, function: Any, *arguments: ir.Expr) -> ir.Op:
        type_ = inference.result_type(function, tuple(a.type for a in arguments))
        if type_ is None or not inference.is_scalar(type_):
            shown = ", ".join(str(a.type) for a in arguments)
            called = getattr(function, "__name__", name)
            problem = f"Numba has no {getattr(function, '__module__', None)}.{called}({shown})"
            self.fail(node, problem, f"write np.{name}" if hasattr(np, name) and hasattr(math, name) else "")
        return ir.Op(name, arguments, type_)

    def value_Compare(self, node: ast.Compare) -> Value:
        if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            left, right = self.value(node.left), self.value(node.comparators[0])
            same = isinstance(left, Static) and isinstance(right, Static) and left.value is right.value
            if not (isinstance(left, Static) or isinstance(right, Static)):
                self.fail(node, "'is' between numbers or arrays", "use ==")
            return ir.Const(same == isinstance(node.ops[0], ast.Is), types.boolean)
        values = self.operands(*[lambda n=n: self.value(n) for n in (node.left, *node.comparators)])
        if any(map(is_array, values)) and len(values) == 2 and type(node.ops[0]) in COMPARE:
            function = COMPARE[type(node.ops[0])][1]
            make = lambda x, y: self.compare(node, node.ops[0], x, y)
            return array_values.operation(self, node, function, make, *values)
        if all(isinstance(v, Static) for v in values) and len(values) == 2:
            return self.compare_static(node, values[0].value, values[1].value)
        for number in range(1, len(values) - 1):
            if isinstance(values[number], ir.Expr) and not isinstance(values[number], (ir.Const, ir.Var)):
                values[number] = self.temporary("value", values[number])
        parts = []
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, Group):
                parts.append(self.contained(node, op, left, right))
                continue
            if type(op) not in COMPARE:
                self.fail(node, f"'{_describe(op)}' is not supported in a kernel", "compare numbers")
            for value in (left, right):
                if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
                    self.fail(node, "only numbers can be compared", "loop over the elements")
            parts.append(self.compare(node, op, left, right))
        result = parts[0]
        for part in parts[1:]:
            result = ir.Op("and", (result, part), types.boolean)
        return result

    def contained(self, node: ast.AST, op: ast.cmpop, value: Value, group: Group) -> ir.Expr:
        """``value in (a, b)``."""
        for item in (value, *group.items):
            if not (isinstance(item, ir.Expr) and inference.is_scalar(item.type)):
                self.fail(node, "only numbers can be looked for, and only among numbers", "loop over the elements")
        if not isinstance(value, (ir.Const, ir.Var)):
            value = self.temporary("value", value)
        result: ir.Expr = ir.Const(False, types.boolean)
        for item in group.items:
            same = self.compare(node, ast.Eq(), value, item)
            result = same if result == ir.Const(False, types.boolean) else ir.Op("or", (result, same), types.boolean)
        return result if isinstance(op, ast.In) else _not(result)

    def compare(self, node: ast.AST, op: ast.cmpop, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        name, function = COMPARE[type(op)]
        if isinstance(left, ir.Const) and isinstance(right, ir.Const):
            return ir.Const(function(left.value, right.value), types.boolean)
        return self.operation(node, name, function, left, right)

    def compare_static(self, node: ast.Compare, left: Any, right: Any) -> Value:
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return ir.Const((left == right) == isinstance(node.ops[0], ast.Eq), types.boolean)
        return self.fail(node, "these cannot be compared")

    def value_BoolOp(self, node: ast.BoolOp) -> Value:
        word = "and" if isinstance(node.op, ast.And) else "or"
        result = self.value(node.values[0])
        for operand in node.values[1:]:
            result = self.short_circuit(operand, word, node, result)
        return result

    def short_circuit(self, node: ast.expr, word: str, whole: ast.BoolOp, left: Value) -> Value:
        if isinstance(left, (Static, ir.Const, Group)):
            truth = bool(left.items if isinstance(left, Group) else left.value)
            return self.value(node) if truth == (word == "and") else left
        before, right = self.sub_block(lambda: self.value(node))
        if not isinstance(right, ir.Expr) or not inference.is_scalar(right.type):
            self.fail(node, "a truth value is needed here")
        if isinstance(left.type, types.Boolean) and isinstance(right.type, types.Boolean) and not before:
            return ir.Op(word, (left, right), types.boolean)
        if not isinstance(left, ir.Var):
            left = self.temporary("value", left)
        condition = self.truth(whole, left)
        first, second = (right, left) if word == "and" else (left, right)
        arms = ((before, first), ((), second)) if word == "and" else (((), first), (before, second))
        return self.choose(whole, condition, *arms)

    def value_IfExp(self, node: ast.IfExp) -> Value:
        test = self.value(node.test)
        if isinstance(test, (Static, ir.Const, Group)):
            taken = bool(test.items if isinstance(test, Group) else test.value)
            return self.value(node.body if taken else node.orelse)
        condition = self.truth(node.test, test)
        then = self.sub_block(lambda: self.value(node.body))
        orelse = self.sub_block(lambda: self.value(node.orelse))
        return self.choose(node, condition, then, orelse)

    def choose(self, node: ast.AST, condition: ir.Expr, then: tuple, orelse: tuple) -> Value:
        """``a if condition else b`` where the arms may bring statements of their own."""
        (then_block, a), (else_block, b) = then, orelse
        if isinstance(a, Group) and isinstance(b, Group) and len(a.items) == len(b.items):
            if then_block or else_block:
                self.fail(node, "kernel calls in a conditional expression of tuples", "use an if statement")
            return Group(
                tuple(self.choose(node, condition, ((), x), ((), y)) for x, y in zip(a.items, b.items, strict=True))
            )
        if is_array(a) and is_array(b):
            return self.choose_array(node, condition, then, orelse)
        for value in (a, b):
            if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
                self.fail(node, "a conditional expression chooses between numbers, or between arrays", "use an if")
        type_ = inference.unify(a.type, b.type)
        if type_ is None:
            self.fail(node, f"chooses between {a.type} and {b.type}", "convert one")
        if not then_block and not else_block:
            return ir.Op("select", (condition, cast(a, type_), cast(b, type_)), type_)
        target = ir.Var(self.names.fresh("chosen"), type_)
        self.emit(
            ir.If(
                condition,
                (*then_block, ir.Assign(target, cast(a, type_), line=self.line)),
                (*else_block, ir.Assign(target, cast(b, type_), line=self.line)),
            )
        )
        return target

    def choose_array(self, node: ast.AST, condition: ir.Expr, then: tuple, orelse: tuple) -> ir.Var:
        """One array or another, by a condition."""
        arms = []
        for block, value in (then, orelse):
            more, array = self.sub_block(lambda v=value: array_values.computed(self, v, "chosen"))
            arms.append(((*block, *more), array))
        type_ = inference.unify(*(array.type for _, array in arms))
        if type_ is None:
            self.fail(node, f"chooses between {arms[0][1].type} and {arms[1][1].type}", "convert one")
        target = ir.Var(self.names.fresh("chosen"), type_)
        self.references.add(target.name)
        blocks = ((*block, ir.Alias(target, array, (), line=self.line)) for block, array in arms)
        self.emit(ir.If(condition, *blocks))
        return target

    def condition(self, node: ast.expr) -> ir.Expr:
        return self.truth(node, self.value(node))

    def truth(self, node: ast.AST, value: Value) -> ir.Expr:
        if isinstance(value, Static):
            return ir.Const(bool(value.value), types.boolean)
        if isinstance(value, Group):
            return ir.Const(bool(value.items), types.boolean)
        if inference.is_array(value.type):
            self.fail(
                node, "the truth of an array", "compare an element or a.size, or write np.any(...) or np.all(...)"
            )
        if isinstance(value.type, types.Boolean):
            return value
        if isinstance(value, ir.Const):
            return ir.Const(bool(value.value), types.boolean)
        return ir.Op("ne", (value, ir.Const(0, types.int64)), types.boolean)

    # ------------------------------------------------------------------------------------------- attributes, indices

    def value_Attribute(self, node: ast.Attribute) -> Value:
        owner = self.value(node.value)
        if isinstance(owner, Lazy):
            owner = array_values.computed(self, owner)
        if isinstance(owner, Records):
            if node.attr in ("shape", "size", "ndim") and not owner.index:
                return self.shape_of_records(owner, node.attr)
            return records.value_of(self, node, owner, node.attr, None)
        if isinstance(owner, Static):
            return self.static_attribute(node, owner.value)
        if isinstance(owner, Group):
            if owner.cls is not None and node.attr in owner.cls._fields:
                return owner.items[owner.cls._fields.index(node.attr)]
            self.fail(node, f"a tuple has no field '{node.attr}'")
        if inference.is_array(owner.type):
            return self.array_attribute(node, owner)
        if node.attr in ("real", "imag"):
            return self.part(node, node.attr, owner)
        return self.fail(node, f"a {owner.type} has no attribute '{node.attr}' here")

    def static_attribute(self, node: ast.Attribute, owner: Any) -> Value:
        if not hasattr(owner, node.attr):
            self.fail(node, f"{getattr(owner, '__name__', owner)!s} has no attribute '{node.attr}'")
        return self.outside(node, node.attr, getattr(owner, node.attr))

    def array_attribute(self, node: ast.Attribute, array: ir.Var) -> Value:
        sizes = tuple(ir.Size(array, axis, types.intp) for axis in range(array.type.ndim))
        match node.attr:
            case "shape":
                return Group(sizes)
            case "ndim":
                return ir.Const(array.type.ndim, types.int64)
            case "size":
                product: ir.Expr = sizes[0] if sizes else ir.Const(1, types.intp)
                for size in sizes[1:]:
                    product = ir.Op("mul", (product, size), types.intp)
                return product
            case "dtype":
                return Static(numpy_support.as_dtype(array.type.dtype))
            case "T":
                return array_shapes.transpose(self, node, array)
            case "real" | "imag" as name:
                make = lambda x: self.part(node, name, x)
                return array_values.operation(self, node, getattr(np, name), make, array)
        return self.fail(node, f"'.{node.attr}' of an array is not supported in a kernel", "loop over the elements")

    def shape_of_records(self, owner: Records, name: str) -> Value:
        sizes = array_values.shape_of(self, owner.first)[: owner.ndim]
        if name == "shape":
            return Group(sizes)
        return extents.product(sizes) if name == "size" else ir.Const(owner.ndim, types.int64)

    def part(self, node: ast.AST, name: str, value: ir.Expr) -> ir.Expr:
        if isinstance(value.type, types.Complex):
            return ir.Op(name, (value,), value.type.underlying_float)
        return value if name == "real" else ir.Const(0, value.type)

    def value_Subscript(self, node: ast.Subscript, hint: str | None = None) -> Value:
        owner = self.value(node.value)
        if isinstance(owner, Group):
            return self.item(node, owner)
        if isinstance(owner, Static) and isinstance(owner.value, (list, tuple)):
            return self.item(node, self.constant(tuple(owner.value), node))
        if isinstance(owner, Lazy):
            owner = array_values.computed(self, owner)
        if isinstance(owner, Records):
            return records.part(self, node, owner, self.index_items(node), hint)
        if not (isinstance(owner, ir.Var) and inference.is_array(owner.type)):
            self.fail(node, "only arrays and tuples can be indexed")
        items = self.index_items(node)
        if not array_values.is_simple(items):
            return array_values.part(self, node, owner, items, hint)
        return self.subscript(node, owner, self.index(node, owner, items), hint)

    def subscript(self, node: ast.AST, array: ir.Var, index: tuple[ir.Expr, ...], hint: str | None) -> Value:
        if len(index) == array.type.ndim:
            return ir.Load(array, index, array.type.dtype)
        if not index:
            return array
        view = inference.element_view(array.type, len(index))
        target = ir.Var(self.new_array_name(hint or f"{array.name}_part"), view)
        self.emit(ir.Alias(target, array, index))
        self.describe_part(target, array, len(index))
        return target

    def describe_part(self, target: ir.Var, array: ir.Var, axis: int) -> None:
        """Note what is known of a part of an array which keeps its axes from ``axis`` on."""
        self.extents[target.name] = array_values.shape_of(self, array)[axis:]
        if array.name in self.owned | self.parts:
            self.parts.add(target.name)

    def new_array_name(self, hint: str) -> str:
        if hint in self.webs.definitions and self.webs.definitions[hint] == 1 and not self.unrolling:
            return hint
        return self.names.fresh(hint)

    def index_items(self, node: ast.Subscript) -> list[Any]:
        """The items of an index: integers, arrays of integers, ``Range``, None, an ellipsis."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        items: list[Any] = []
        for value in self.operands(*[lambda p=p: self.index_item(p) for p in parts]):
            items.extend(value.items if isinstance(value, Group) else [value])
        return [v.value if v in (Static(None), Static(Ellipsis)) else v for v in items]

    def index_item(self, node: ast.expr) -> Any:
        if not isinstance(node, ast.Slice):
            return self.value(node)
        bounds = [None if p is None else self.value(p) for p in (node.lower, node.upper, node.step)]
        for bound in (b for b in bounds if b is not None and b != Static(None)):
            if not (isinstance(bound, ir.Expr) and isinstance(bound.type, types.Integer)):
                self.fail(node, "the bounds of a slice must be integers")
        return Range(*(None if b == Static(None) else b for b in bounds))

    def index(self, node: ast.Subscript, array: ir.Var, items: list[Any]) -> tuple[ir.Expr, ...]:
        """The index of an element, or the leading indices of a part."""
        if len(items) > array.type.ndim:
            self.fail(node, f"{len(items)} indices for an array of {array.type.ndim} dimensions")
        for value in items:
            if not isinstance(value.type, types.Integer):
                self.fail(node, f"an index must be an integer, not {value.type}", "use integers; loop over masks")
        return tuple(_from_end(value, array, axis) for axis, value in enumerate(items))

    def item(self, node: ast.Subscript, group: Group) -> Value:
        if isinstance(node.slice, ast.Slice):
            parts = [node.slice.lower, node.slice.upper, node.slice.step]
            bounds = [None if p is None else self.value(p) for p in parts]
            if all(b is None or isinstance(b, ir.Const) for b in bounds):
                return Group(group.items[slice(*[None if b is None else b.value for b in bounds])])
            self.fail(node, "a tuple needs constant slice bounds")
        index = self.value(node.slice)
        if isinstance(index, ir.Const) and isinstance(index.type, types.Integer):
            if not -len(group.items) <= index.value < len(group.items):
                self.fail(node, f"index {index.value} of a tuple of {len(group.items)}")
            return group.items[index.value]
        if isinstance(index, ir.Expr) and isinstance(index.type, types.Integer):
            array = self.as_array(node, group)
            if isinstance(array, ir.Var):
                return self.subscript(node, array, (index,), None)
        return self.fail(node, "a tuple index must be an integer")

    def as_array(self, node: ast.AST, group: Group) -> ir.Var:
        """A tuple that is indexed by a variable, as an array: constants once for all, others filled in here."""
        table = _constant_table(group)
        if table is not None:
            return self.constant_array("table", self.tables.setdefault(repr((table.dtype, table.tolist())), table))
        types_ = {v.type for v in group.items if isinstance(v, ir.Expr) and inference.is_scalar(v.type)}
        if len(types_) != 1 or not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in group.items):
            self.fail(node, "a tuple indexed by a variable must hold numbers of one type", "index it by constants")
        places = {(k,): item for k, item in enumerate(group.items)}
        return self.filled_array("table", (len(places),), places, types_.pop())

    def filled_array(
        self, name: str, shape: tuple[int, ...], items: dict[tuple[int, ...], ir.Expr], dtype: types.Type
    ) -> ir.Var:
        target = array_values.new_array(self, name, dtype, tuple(ir.Const(n, types.intp) for n in shape))
        for index, item in items.items():
            self.emit(ir.Store(target, tuple(ir.Const(k, types.intp) for k in index), cast(item, dtype)))
        return target

    # ------------------------------------------------------------------------------------------- calls

    def value_Call(self, node: ast.Call, hint: str | None = None) -> Value:
        if isinstance(node.func, ast.Attribute):
            method = self.method(node)
            if method is not None:
                return method
        called = self.value(node.func)
        if not isinstance(called, Static):
            self.fail(node, "this cannot be called")
        function = called.value
        if isinstance(function, (custom_vjp, custom_jvp)):
            from ampi.kernel import rules

            if not rules.is_inside(function, self.callers):
                return rules.call(self, function, node, hint)
            function = function.f
        python_function = kernel_function(function)
        if python_function is not None:
            return self.call_kernel(node, python_function, hint)
        if _is_one_of(function, ALLOCATIONS) or function is np.array:
            return self.allocate(node, function, hint)
        if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
            return self.named_tuple(node, function)
        handler = array_functions.lookup(function)
        if handler is not None:
            values, keywords = self.call_values(node)
            if array_functions.is_of_arrays(handler, values):
                return array_functions.call(self, node, handler, values, keywords)
        if inspect.isfunction(function) and intrinsics.lookup(function) is None:
            self.fail(node, f"'{function.__name__}' is a plain Python function", "decorate it with @ampi.kernel")
        if node.keywords:
            self.fail(node, "keyword arguments are only supported for kernels", "pass plain positional arguments")
        arguments = self.spread(node.args)
        if isinstance(function, np.ufunc) and len(arguments) > function.nin:
            self.fail(node, f"{_name_of(function)} with an array for its result", "write result[:] = ...")
        if any(map(is_array, arguments)) and intrinsics.lookup(function) is not None:
            make = lambda *values: self.call(node, function, list(values))
            return array_values.operation(self, node, function, make, *arguments)
        return self.call(node, function, arguments)

    def method(self, node: ast.Call) -> Value | None:
        """Methods of scalars and arrays."""
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id not in self.webs.definitions:
            return None
        value = self.value(owner)
        if isinstance(value, ir.Expr) and inference.is_scalar(value.type) and node.func.attr in ("conjugate", "conj"):
            return self.conjugate(value)
        if is_array(value):
            handler = array_functions.METHODS.get(node.func.attr)
            if handler is None:
                self.fail(
                    node, f"'.{node.func.attr}()' of an array is not supported in a kernel", "loop over its elements"
                )
            values, keywords = self.call_values(node)
            return array_functions.call(self, node, handler, [value, *values], keywords)
        return None

    nothing = Static(None)

    @staticmethod
    def group(values: tuple[Value, ...]) -> Group:
        return Group(values)

    def typed_group(self, values: list[Value]) -> Any:
        """A tuple as one argument of a function, for Numba's inference."""
        return ir.Var("", types.Tuple(tuple(v.type for v in values)))

    def conjugate(self, value: ir.Expr) -> ir.Expr:
        return ir.Op("conj", (value,), value.type) if isinstance(value.type, types.Complex) else value

    def named_tuple(self, node: ast.Call, cls: Any) -> Group:
        values, keywords = self.call_values(node)
        try:
            items = cls(*values, **keywords)
        except TypeError as problem:
            self.fail(node, str(problem))
        return Group(tuple(array_values.computed(self, v) if isinstance(v, Lazy) else v for v in items), cls)

    def call_values(self, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
        """The values of positional and keyword arguments."""
        if any(k.arg is None for k in node.keywords):
            self.fail(node, "** in a call is not supported", "pass the arguments one by one")
        values = self.spread([*node.args, *(k.value for k in node.keywords)])
        number = len(values) - len(node.keywords)
        return values[:number], {k.arg: v for k, v in zip(node.keywords, values[number:], strict=True)}

    def call(self, node: ast.Call, function: Any, arguments: list[Value]) -> Value:
        """A call of a built-in, ``math`` or NumPy function on scalars."""
        if function is len and len(arguments) == 1:
            return self.length(node, arguments[0])
        if function in (min, max) and len(arguments) == 1 and isinstance(arguments[0], Group):
            arguments = list(arguments[0].items)
        if function is sum and arguments and isinstance(arguments[0], Group):
            return self.total(node, arguments[0], *arguments[1:])
        compose = compositions.lookup(function, arguments)
        if compose is not None:
            composed = compose(self, node, *arguments)
            return Group(composed) if isinstance(composed, tuple) else composed
        if function in (np.finfo, np.iinfo) and len(arguments) == 1 and isinstance(arguments[0], Static):
            return Static(function(arguments[0].value))
        for argument, given in zip(arguments, node.args, strict=False):
            if not isinstance(argument, ir.Expr):
                self.fail(given, f"{_name_of(function)} takes numbers")
            if inference.is_array(argument.type):
                self.fail(given, f"{_name_of(function)} of a whole array", "loop over its elements")
        if _is_one_of(function, CASTS) and len(arguments) == 1:
            return self.convert(node, function, arguments[0])
        if function in (np.real, np.imag):
            return self.part(node, function.__name__, arguments[0])
        if function in (np.conj, np.conjugate):
            return self.conjugate(arguments[0])
        if function is pow and len(arguments) == 2:
            return self.binary(node, ast.Pow(), *arguments)
        return self.intrinsic(node, function, arguments)

    def convert(self, node: ast.Call, function: Any, value: ir.Expr) -> ir.Expr:
        if function in (bool, np.bool_):
            return self.truth(node, value)
        type_ = inference.result_type(function, (value.type,))
        if type_ is None:
            self.fail(node, f"{_name_of(function)} of a {value.type}", "take .real first")
        return cast(value, type_)

    def total(self, node: ast.Call, group: Group, start: Value | None = None) -> Value:
        """``sum`` of a tuple."""
        total = _ZERO if start is None else start
        for item in group.items:
            if not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in (total, item)):
                self.fail(node, "sum of a tuple that holds other things than numbers")
            total = self.binary(node, ast.Add(), total, item)
        return total

    def intrinsic(self, node: ast.Call, function: Any, arguments: list[ir.Expr]) -> ir.Expr:
        name = intrinsics.lookup(function)
        if name is None:
            self.fail(
                node,
                f"{_name_of(function)} is not known to the differentiator",
                "call a kernel (@ampi.kernel), or a function of math or NumPy on scalars that the table lists",
            )
        if function in (min, max) and len(arguments) > 2:
            result = arguments[0]
            for argument in arguments[1:]:
                result = self.operation(node, name, function, result, argument)
            return result
        result = self.operation(node, name, function, *arguments)
        if name in ("pow", "truediv", "floordiv") and all(isinstance(a.type, types.Integer) for a in arguments):
            # written as an operator of integers it could have another type
            result = replace(result, args=tuple(cast(a, result.type) for a in arguments))
        return result

    def length(self, node: ast.Call, value: Value) -> ir.Expr:
        if isinstance(value, Group):
            return ir.Const(len(value.items), types.intp)
        if isinstance(value, Records) and not value.index:
            return array_values.shape_of(self, value.first)[0]
        if is_array(value):
            return array_values.shape_of(self, value)[0]
        if isinstance(value, Static) and hasattr(value.value, "__len__"):
            return ir.Const(len(value.value), types.intp)
        return self.fail(node, "len of a number")

    def allocate(self, node: ast.Call, function: Any, hint: str | None) -> ir.Var:
        """``np.empty``, ``np.zeros`` and their relatives, and ``np.array`` of a tuple of numbers."""
        values, keywords = self.call_values(node)
        try:
            bound = _ALLOCATION_SIGNATURES[function.__name__].bind(*values, **keywords).arguments
        except TypeError as problem:
            self.fail(node, f"np.{function.__name__}: {problem}")
        if function is np.array:
            return self.array_of(node, bound["object"], bound.get("dtype"), hint)
        if function.__name__.endswith("_like"):
            like = bound["a"]
            if not is_array(like):
                self.fail(node, f"np.{function.__name__} needs an array")
            shape = array_values.shape_of(self, like)
            default = like.type.dtype
        else:
            shape = self.shape(node, bound["shape"])
            default = types.float64
        fill = self.fill(node, function, bound)
        if function in (np.full,) and fill is not None:
            default = fill.type
        dtype = default if bound.get("dtype") is None else self.dtype(node, bound["dtype"])
        fill = None if fill is None else cast(fill, dtype)
        return array_values.new_array(self, hint or "local", dtype, shape, fill)

    def fill(self, node: ast.AST, function: Any, bound: dict[str, Value]) -> ir.Expr | None:
        kind = function.__name__.removesuffix("_like")
        if kind == "full":
            value = bound["fill_value"]
            if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
                self.fail(node, "np.full needs a number to fill with")
            return value
        return {"empty": None, "zeros": ir.Const(0, types.int64), "ones": ir.Const(1, types.int64)}[kind]

    def shape(self, node: ast.AST, value: Value) -> tuple[ir.Expr, ...]:
        items = value.items if isinstance(value, Group) else (value,)
        for item in items:
            if not (isinstance(item, ir.Expr) and isinstance(item.type, types.Integer)):
                self.fail(node, "the shape of a local array must be integers")
        if not 1 <= len(items) <= 4:
            self.fail(node, f"a local array of {len(items)} dimensions", "use one to four")
        return tuple(items)

    def dtype(self, node: ast.AST, value: Value) -> types.Type:
        try:
            found = numpy_support.from_dtype(np.dtype(value.value))
            if inference.is_scalar(found):
                return found
            return self.fail(node, "a structured local array", "make one array for each field")
        except (AttributeError, TypeError, NumbaError):
            return self.fail(node, "the dtype must be a NumPy scalar type", "write dtype=np.float64 and the like")

    def array_of(self, node: ast.Call, value: Value, dtype: Value | None, hint: str | None) -> ir.Var:
        shape, items = self.nested(node, value)
        if dtype is not None:
            type_ = self.dtype(node, dtype)
        else:
            type_ = functools.reduce(inference.unify, (item.type for item in items.values()))
        return self.filled_array(hint or "local", shape, items, type_)

    def nested(self, node: ast.Call, value: Value) -> tuple[tuple[int, ...], dict[tuple[int, ...], ir.Expr]]:
        """Shape and elements of an array that is written as nested tuples or lists of numbers."""
        if isinstance(value, ir.Expr) and inference.is_scalar(value.type):
            return (), {(): value}
        if not isinstance(value, Group) or not value.items:
            self.fail(node, "np.array takes tuples or lists of numbers here", "use np.empty and assign the elements")
        rows = [self.nested(node, item) for item in value.items]
        if len({shape for shape, _ in rows}) > 1:
            self.fail(node, "the lists in np.array differ in length")
        items = {(k, *index): item for k, (_, row) in enumerate(rows) for index, item in row.items()}
        return (len(rows), *rows[0][0]), items

    # ------------------------------------------------------------------------------------------- other kernels

    def call_kernel(self, node: ast.Call, function: Any, hint: str | None) -> Value:
        """Inline the call of another kernel."""
        from ampi.kernel.inline import inline, leaf_values

        arguments = self.bound(node, function)
        single: Single = frozenset()
        if self.single_axes:
            leaves = enumerate(leaf_values(arguments))
            arrays = ((k, array_values.shape_of(self, leaf)) for k, leaf in leaves if is_array(leaf))
            single = frozenset((k, axis) for k, shape in arrays for axis, n in enumerate(shape) if n == extents.ONE)
        callee = self.callee(node, function, tuple(self.type_of(node, v) for v in arguments), single)
        return inline(self, callee, arguments, node, hint)

    def bound(self, node: ast.Call, function: Any) -> list[Value]:
        """The values of a call's arguments in the order of the function's parameters, defaults as `Static`."""
        positional, keywords = self.call_values(node)
        positional = [array_values.computed(self, v) if isinstance(v, Lazy) else v for v in positional]
        keywords = {k: array_values.computed(self, v) if isinstance(v, Lazy) else v for k, v in keywords.items()}
        signature = inspect.signature(function)
        try:
            found = signature.bind(*positional, **keywords).arguments
        except TypeError as problem:
            self.fail(node, f"{function.__name__}(): {problem}")
        return [found.get(p.name, Static(p.default)) for p in signature.parameters.values()]

    references_of = staticmethod(references)

    def assemble(self, structure: Any, leaves: Iterator[ir.Expr]) -> Value:
        """The value of a call from the leaves of its result."""
        if structure is None:
            return Static(None)
        if isinstance(structure, tuple):
            _, cls, parts = structure
            return Group(tuple(self.assemble(p, leaves) for p in parts), cls)
        return next(leaves)

    def callee(
        self, node: ast.Call, function: Any, argument_types: tuple[types.Type, ...], single: Single = frozenset()
    ) -> ir.Function:
        from ampi.kernel.lower import lower

        key = (function.__code__, id(function), argument_types, single)
        if key not in self.callees:
            if any(code is function.__code__ for code, _ in self.callers):
                self.fail(node, f"'{function.__name__}' calls itself", "write the recursion as a loop")
            self.callees[key] = lower(_parse(function, argument_types, self.callers, single))
        return self.callees[key]

    def type_of(self, node: ast.AST, value: Value) -> types.Type:
        if isinstance(value, Static):
            if value.value is None:
                return types.none
            return types.Omitted(value.value)
        if isinstance(value, Group):
            parts = tuple(self.type_of(node, v) for v in value.items)
            if value.cls is not None:
                return types.NamedTuple(parts, value.cls)
            return types.Tuple(parts)
        if isinstance(value, Records) and value.index:
            self.fail(node, "a record as an argument", "pass the array and the index")
        return value.type


# ------------------------------------------------------------------------------------------------------- helpers

TRUE = ir.Const(True, types.boolean)
_ZERO = ir.Const(0, types.int64)
_PARAMETER = inspect.Parameter
_SIGNATURES = {
    "empty": "shape dtype",
    "zeros": "shape dtype",
    "ones": "shape dtype",
    "full": "shape fill_value dtype",
    "empty_like": "a dtype",
    "zeros_like": "a dtype",
    "ones_like": "a dtype",
    "full_like": "a fill_value dtype",
    "array": "object dtype",
}
_ALLOCATION_SIGNATURES = {
    name: inspect.Signature(
        [
            _PARAMETER(p, _PARAMETER.POSITIONAL_OR_KEYWORD, default=None if p == "dtype" else _PARAMETER.empty)
            for p in parameters.split()
        ]
    )
    for name, parameters in _SIGNATURES.items()
}


def cast(value: ir.Expr, type_: types.Type) -> ir.Expr:
    """A scalar in another type."""
    if value.type == type_:
        return value
    if isinstance(value, ir.Const):
        if isinstance(type_, types.Boolean):
            return ir.Const(bool(value.value), type_)
        if isinstance(type_, types.Complex):
            return ir.Const(complex(value.value), type_)
        if isinstance(type_, types.Float):
            return ir.Const(float(value.value), type_)
        if isinstance(value.value, int) and not isinstance(value.value, bool):
            return ir.Const(value.value, type_)
    return ir.Op("cast", (value,), type_)


def kernel_function(value: Any) -> Any:
    """The Python function of a kernel, or of a function compiled by Numba; None for anything else."""
    function = getattr(value, "py_func", None)
    return function if inspect.isfunction(function) else None


def _free_names(function: Any) -> dict[str, Any]:
    """Built-ins, globals and closure variables of a function as they are now."""
    names = {**vars(builtins), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            names.pop(name, None)
    return names


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Group):
        for item in value.items:
            yield from _leaves(item)
    else:
        yield value


def _kind(value: Value) -> Any:
    if isinstance(value, Group):
        return Group(tuple(_kind(v) for v in value.items), value.cls)
    return value if isinstance(value, Static) else inference.plain(value.type)


def _merge_kinds(first: Any, second: Any) -> Any:
    """The structure of a result that is either; None if they do not fit."""
    if isinstance(first, Group) and isinstance(second, Group):
        if len(first.items) != len(second.items) or first.cls is not second.cls:
            return None
        items = tuple(_merge_kinds(a, b) for a, b in zip(first.items, second.items, strict=True))
        return None if None in items else Group(items, first.cls)
    if isinstance(first, types.Type) and isinstance(second, types.Type):
        return inference.unify(first, second)
    return first if first == second else None


def _structure(kind: Any) -> Any:
    """``ir.Function.result`` for what the return statements give."""
    if kind is None or isinstance(kind, Static):
        return None
    if isinstance(kind, Group):
        return ("tuple", kind.cls, tuple(_structure(k) for k in kind.items))
    return "array" if inference.is_array(kind) else "scalar"


def _not(condition: ir.Expr) -> ir.Expr:
    if isinstance(condition, ir.Const):
        return ir.Const(not condition.value, types.boolean)
    return ir.Op("not", (condition,), types.boolean)


def _fold(name: str, function: Callable, left: ir.Expr, right: ir.Expr) -> ir.Const | None:
    """Arithmetic of integer constants, so that sizes and indices stay constants."""
    if name not in ("add", "sub", "mul", "floordiv", "mod"):
        return None
    if not all(isinstance(v, ir.Const) and v.type == types.int64 for v in (left, right)):
        return None
    if name in ("floordiv", "mod") and right.value == 0:
        return None
    value = function(left.value, right.value)
    return ir.Const(value, types.int64) if -(2**63) <= value < 2**63 else None


def _from_end(index: ir.Expr, array: ir.Var, axis: int) -> ir.Expr:
    """A constant negative index, counted from the start."""
    if isinstance(index, ir.Const) and index.value < 0:
        size = ir.Size(array, axis, types.intp)
        return ir.Op("sub", (size, ir.Const(-index.value, types.int64)), types.intp)
    return index


def _root_name(target: ast.expr) -> str | None:
    while isinstance(target, (ast.Subscript, ast.Attribute)):
        target = target.value
    return target.id if isinstance(target, ast.Name) else None


def _constant_table(group: Group) -> np.ndarray | None:
    """A tuple (of tuples) of constants of one type as an array, or None."""

    def unpack(value: Any) -> Any:
        return [unpack(v) for v in value.items] if isinstance(value, Group) else value.value

    leaves = list(_leaves(group))
    if not all(isinstance(v, ir.Const) for v in leaves) or len({v.type for v in leaves}) != 1:
        return None
    try:
        return np.array(unpack(group), dtype=numpy_support.as_dtype(leaves[0].type))
    except ValueError:
        return None


def _is_one_of(function: Any, functions: tuple[Any, ...]) -> bool:
    return any(function is f for f in functions)


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__name__", str(function))
    return name if module in (None, "builtins") else f"{module}.{name}"


def _show(kind: Any) -> str:
    if isinstance(kind, types.Type):
        return str(kind)
    return "a tuple" if isinstance(kind, Group) else "an array" if isinstance(kind, Named) else "something else"


_DESCRIPTIONS = {
    "ListComp": "a list comprehension",
    "SetComp": "a set comprehension",
    "DictComp": "a dict comprehension",
    "GeneratorExp": "a generator expression",
    "Dict": "a dict",
    "Set": "a set",
    "Lambda": "a lambda",
    "FunctionDef": "a nested function",
    "AsyncFunctionDef": "a coroutine",
    "ClassDef": "a class",
    "With": "with",
    "Try": "try",
    "TryStar": "try",
    "Import": "import",
    "ImportFrom": "import",
    "Global": "global",
    "Nonlocal": "nonlocal",
    "Delete": "del",
    "JoinedStr": "an f-string",
    "NamedExpr": "an assignment expression (:=)",
    "Starred": "a starred expression",
    "Slice": "a slice",
    "Match": "match",
    "Yield": "yield",
    "YieldFrom": "yield from",
    "Await": "await",
    "In": "in",
    "NotIn": "not in",
}
_ADVICE = {
    "ListComp": "allocate an array with np.empty and fill it in a loop",
    "GeneratorExp": "write a loop that adds up",
    "Dict": "pass a named tuple",
    "Lambda": "give it a name first, or write an @ampi.kernel",
    "NamedExpr": "assign on a line of its own",
    "Import": "import at the top of the module",
    "ImportFrom": "import at the top of the module",
    "JoinedStr": "use a plain string",
    "Global": "return the value instead",
    "Nonlocal": "return the value instead",
    "Match": "use if and elif",
}


def _message(node: ast.expr) -> str:
    """What a generated program gives an exception: constants as they are, of others the text."""
    return ast.unparse(node if isinstance(node, ast.Constant) else ast.Constant(ast.unparse(node)))


def _describe(node: ast.AST) -> str:
    return _DESCRIPTIONS.get(type(node).__name__, f"'{type(node).__name__}'")


def _advice(node: ast.AST) -> str:
    return _ADVICE.get(type(node).__name__, "write it with scalars, loops and array elements")
