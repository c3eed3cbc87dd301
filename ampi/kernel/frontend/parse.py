"""Python source -> typed IR.

``parse`` reads the source of a function, splits its variables into webs (``webs``), and builds the IR statement by
statement for the given argument types.  Types flow forward through expressions (``inference``); the type of a variable
is what Numba's unification makes of all its assignments, found by building again until nothing changes.

This module has what all statements and expressions share; each kind of them has its own: ``statements`` and ``loops``,
``assignments``, ``expressions``, ``subscripts``, ``invocations``.  ``values`` defines the values of expressions while
the IR is built.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import (
    creation,  # noqa: F401 (registers its rules)
    decompositions,  # noqa: F401 (registers its rules)
    elementwise,  # noqa: F401 (registers its rules)
    orders,  # noqa: F401 (registers its rules)
    places,  # noqa: F401 (registers its rules)
    structured_arrays,
)
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.sequences import OF_ARRAYS, OF_TUPLES, is_list
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.arrays.values import Lazy
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.declared import Declared, declared
from ampi.kernel.frontend.base.refusals import advice_for, describe
from ampi.kernel.frontend.base.source import Source, read_source
from ampi.kernel.frontend.base.values import (
    Group,
    Leaf,
    Named,
    Single,
    Static,
    Unknown,
    Value,
    is_list_of_arrays,
    is_listed,
    is_maybe,
    negation,
    structure_of,
)
from ampi.kernel.frontend.cuda import language as cuda_language  # noqa: F401 (registers its calls)
from ampi.kernel.frontend.language import (
    custom_calls,  # noqa: F401 (registers its rules)
    expressions,
    invocations,
    list_nodes,
    optional_names,
    statements,
    stencils,  # noqa: F401 (registers its calls)
    subscripts,
    ufuncs,  # noqa: F401 (registers its calls)
)
from ampi.kernel.frontend.language.desugar import bound_names, spell_out
from ampi.kernel.frontend.language.optional_names import spell_optional_names
from ampi.kernel.frontend.language.parameters import declare, given_values, static_test
from ampi.kernel.frontend.language.reductions import find_reductions
from ampi.kernel.frontend.language.webs import Webs, split_webs
from ampi.kernel.frontend.random import (
    generators,  # noqa: F401 (registers its rules)
    numbers,  # noqa: F401 (registers its rules)
)
from ampi.kernel.frontend.recursion import nodes as recursion_nodes
from ampi.kernel.frontend.recursion.mutual_recursion import inline_partners
from ampi.kernel.frontend.recursion.reflections import unfold_reflection
from ampi.kernel.frontend.recursion.stack import is_call_of, remove_recursion
from ampi.kernel.frontend.written import arrays as written_arrays  # noqa: F401 (registers its rules)
from ampi.kernel.frontend.written import functions as written_functions  # noqa: F401 (registers its rules)
from ampi.kernel.frontend.written import grids  # noqa: F401 (registers its rules)
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import into_array
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.operators import BINARY, COMPARE, fold
from ampi.kernel.ir.random_draws import with_arguments
from ampi.kernel.normalise.lower import lower

EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    **expressions.EXPRESSIONS,
    ast.Attribute: subscripts.attribute_value,
    ast.Subscript: subscripts.subscript_value,
    ast.Call: invocations.call_value,
    **list_nodes.EXPRESSIONS,
    **recursion_nodes.EXPRESSIONS,
    **optional_names.EXPRESSIONS,
}
STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    **statements.STATEMENTS,
    **recursion_nodes.STATEMENTS,
    **list_nodes.STATEMENTS,
}


@global_compiler_lock
def parse(
    function: Any, argument_types: Iterable[types.Type], single: Single = frozenset(), derivatives: Any = None
) -> ir.Function:
    """The typed IR of a Python function for arguments of these Numba types (trailing defaults may be left out).

    The axes in ``single`` are known to have size one, so they are broadcast.  Calls of other kernels are inlined;
    those of large ones are not if there are ``derivatives`` for them (see ``large_calls``).
    ``break``, ``continue`` and early ``return`` remain: see ``lower``.

    Raises
    ------
    KernelError
        The function uses a part of Python that kernels do not support.
    """
    known = getattr(function, "__ampi_ir__", None)  # of a function that was generated from IR
    if known is not None:
        return known
    return with_arguments(_parse(function, tuple(argument_types), (), single, derivatives))


def _parse(
    function: Any,
    argument_types: tuple[types.Type, ...],
    callers: tuple[Any, ...],
    single: Single,
    derivatives: Any = None,
) -> ir.Function:
    source = read_source(function)
    builder = _Builder(function, source, argument_types, callers, single, derivatives)
    for _ in range(100):
        before = builder.state()
        result = builder.build()
        if builder.state() == before:
            builder.check_complete()
            return find_reductions(result, source.fail)
    raise source.error(source.first_line, "the types of its variables cannot be inferred")


@dataclass
class _Scope:
    """What is known of one function's names while its IR is built."""

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
        derivatives: Any,
    ):
        self.function = function
        self.derivatives = derivatives
        self.single_axes = single
        self.source = source
        self.callers = (*callers, (function.__code__, argument_types))
        self.definition = source.definition
        declaration = declared(function)
        self.declared = {} if declaration is None else declaration.locals
        self.result_type = None if declaration is None else self.signature(declaration, argument_types)[1]
        self.globals = outside.free_names(function)
        self.given = given_values(function, source, argument_types, bool(callers))
        is_call = is_call_of(self.definition, self.is_itself, self.globals)
        unfold_reflection(source, inspect.signature(function), is_call)
        self.globals |= spell_out(source, self.globals)
        inline_partners(function, source, self.globals, _called_function)
        is_call = is_call_of(self.definition, self.is_itself, self.globals)
        if any(map(is_call, ast.walk(self.definition))):
            remove_recursion(source, inspect.signature(function), self.given, self.globals, is_call, self.split())
        self.webs = self.split()
        is_kernel = lambda value: _called_function(value) is not None
        if spell_optional_names(self.definition, self.given, self.globals, self.fail, is_kernel):
            self.webs = self.split()
        self.scope = _Scope()
        self.callees: dict[Any, ir.Function] = {}
        self.frozen: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # id of a global array -> it, and its constant copy
        self.tables: dict[str, np.ndarray] = {}
        self.leaf_names: dict[tuple[str, Any], str] = {}
        self.pending: list[ast.AST] = []

    # ------------------------------------------------------------------------------------------- building

    def is_itself(self, value: Any) -> bool:
        """Return whether a value is this function: plain, or compiled by Numba or ampi."""
        function = _called_function(value)
        return function is not None and function.__code__ is self.function.__code__

    def split(self) -> Webs:
        self.local_names = bound_names(self.definition)
        return split_webs(
            self.definition,
            functools.partial(static_test, self.given),
            lambda node: outside.is_prange(node, self.globals, self.local_names),
        )

    def signature(self, declaration: Declared, argument_types: tuple[types.Type, ...], node: Any = None) -> Any:
        """The types of arguments and result that are declared for arguments of these types."""
        try:
            return declaration.signature(self.source.name, argument_types)
        except TypeError as problem:
            return self.fail(node or self.source.definition, str(problem), "convert the arguments before the call")

    def state(self) -> Any:
        return dict(self.scope.kinds), self.scope.results

    def build(self) -> ir.Function:
        self.names = Names(self.webs.definitions)
        self.pending = []
        self.constants: dict[str, np.ndarray] = {}
        self.references: set[str] = set()  # names that stand for one array or another
        self.extents: dict[str, tuple[ir.Expr, ...]] = {}  # of local arrays and parts of arrays
        self.owned: set[str] = set()  # local arrays
        self.parts: set[str] = set()  # parts of local arrays
        self.narrow: set[ir.Expr] = set()  # sizes of one-element slices, which may be empty
        self.single: set[tuple[str, int]] = set()  # axes of arguments, and of callees' arrays, that have size one
        self.bounds: dict[str, int | None] = {}  # lower bounds of integer variables
        self.ends: dict[ir.Var, ir.Expr] = {}  # upper bounds of counters
        self.lists: set[str] = set()  # arrays that represent the program's lists
        self.list_arguments: set[str] = set()  # arrays with the items of lists among the arguments
        self.roots: dict[str, str] = {}  # the array of each part of an array
        self.drawn: dict[types.Type, ir.Drawn] = {}  # the arrays for random numbers, by their types
        self.generators: list[ir.Argument] = []  # random generators among the arguments
        self.has_effects = False
        self.unrolling = 0
        self.loops: list[str] = []
        self.block: list[ir.Stmt] = []
        self.line = self.source.first_line
        arguments = declare(self)
        self.statements(self.definition.body)
        if self.webs.falls_through and self.scope.results not in (None, Static(None)):
            statements.return_statement(self, ast.copy_location(ast.Return(None), self.definition.body[-1]))
        return ir.Function(
            name=self.source.name,
            arguments=arguments,
            body=tuple(self.block),
            filename=self.source.filename,
            first_line=self.source.first_line,
            result=structure_of(self.scope.results),
            constants=tuple(self.constants.items()),
            drawn=tuple(self.drawn.values()),
            generators=tuple(self.generators),
            has_effects=self.has_effects,
        )

    def check_complete(self) -> None:
        if self.webs.maybe_undefined:
            node = self.webs.maybe_undefined[0]
            self.fail(node, f"'{node.id}' is used before it is assigned", "assign it first")
        if self.pending:
            self.fail(self.pending[0], "a variable is used here before it has a value", "assign it first")

    def fail(self, node: Any, problem: str, advice: str = "") -> NoReturn:
        self.source.fail(node, problem, advice)

    def emit(self, statement: ir.Stmt) -> None:
        if isinstance(statement, (ir.Store, ir.Elementwise)):
            statement = replace(statement, value=into_array(statement.value, statement.array.type.dtype))
        self.note_root(statement)
        self.block.append(statement if statement.line else replace(statement, line=self.line))

    def note_root(self, statement: ir.Stmt) -> None:
        if isinstance(statement, (ir.Alias, ir.View)):
            self.roots[statement.target.name] = self.roots.get(statement.array.name, statement.array.name)

    def is_of_list(self, array: ir.Var) -> bool:
        """Return whether an array is an item of a list among the arguments, or a part of one."""
        return self.roots.get(array.name, array.name) in self.list_arguments

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

    def is_assigned_once(self, name: str) -> bool:
        """Return whether a scalar variable is assigned only once."""
        return name in self.immutable or self.webs.definitions.get(name, 1) == 1

    def lowest(self, var: ir.Var) -> int | None:
        return self.bounds.get(var.name)

    # ------------------------------------------------------------------------------------------- statements

    def statements(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.line = node.lineno
            parse_statement = STATEMENTS.get(type(node))
            if parse_statement is None:
                self.fail(node, f"{describe(node)} is not supported in a kernel", advice_for(node))
            depth = len(self.loops), self.unrolling
            try:
                parse_statement(self, node)
            except Unknown:
                self.pending.append(node)
                del self.loops[depth[0] :]
                self.unrolling = depth[1]
            if self.block and isinstance(self.block[-1], (ir.Return, ir.Break, ir.Continue, ir.Raise)):
                break

    # ------------------------------------------------------------------------------------------- assignment

    def require_store(self, node: ast.AST, array: ir.Var, type_: types.Type) -> None:
        if not inference.convertible(type_, array.type.dtype):
            self.fail(node, f"a {type_} cannot be stored in an array of {array.type.dtype}", "convert it")
        if array.name in self.constants or not array.type.mutable:
            of_list = "; pass arrays that the kernel writes in a tuple" if self.is_of_list(array) else ""
            self.fail(node, f"'{array.name}' is read-only", f"copy it into a local array first{of_list}")

    # ------------------------------------------------------------------------------------------- expressions

    def value(self, node: ast.expr, hint: str | None = None, tuples: bool = False) -> Value:
        """The value of an expression, which may be a list of tuples only with ``tuples``.

        A new array or view is named after ``hint``, the variable to which it is bound.
        """
        value = self.a_number(node, self.any_value(node, hint))
        if is_listed(value) and not tuples:
            self.fail(node, "a list of tuples here", OF_TUPLES)
        if is_list_of_arrays(value):
            self.fail(node, "a list of arrays here", OF_ARRAYS)
        return value

    def a_number(self, node: ast.expr, value: Value) -> Value:
        """The number in the result of a callee that may be None; any other value unchanged."""
        if not is_maybe(value):
            return value
        there, number = value.items
        if not isinstance(there, ir.Const):
            text = 'raise TypeError("a number is needed, and a call has returned None")'
            self.emit(ir.If(negation(there), (ir.Raise(text, exact=False, line=self.line),)))
        return number

    def any_value(self, node: ast.expr, hint: str | None = None) -> Value:
        """The value of an expression, which may be a list of tuples, a list of arrays, or None instead of a number."""
        parse_expression = EXPRESSIONS.get(type(node))
        if parse_expression is None:
            self.fail(node, f"{describe(node)} is not supported in a kernel", advice_for(node))
        if hint is not None and isinstance(node, (ast.Call, ast.Subscript)):
            return parse_expression(self, node, hint)
        return parse_expression(self, node)

    def scalar(self, node: ast.expr) -> ir.Expr:
        value = self.value(node)
        if isinstance(value, Lazy) or not isinstance(value, ir.Expr):
            self.fail(node, "a number is needed here")
        if not inference.is_scalar(value.type):
            self.fail(node, f"a number is needed here, this is an array ({value.type})", "loop over its elements")
        return value

    def operands(self, *makers: Callable[[], Value]) -> list[Value]:
        """Evaluate from left to right; a value that the statements of a later operand could change is saved first."""
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
            if ends[-1] > ends[number] and isinstance(value, ir.Expr) and self.may_change(value, ends[number]):
                saved = ir.Var(self.names.fresh("value"), value.type)
                self.block.insert(ends[number], ir.Assign(saved, value, line=self.line))
                values[number] = saved
        return values

    def may_change(self, value: ir.Expr, position: int) -> bool:
        """Return whether later statements may change an operand: an element, or a variable that ``:=`` assigns."""
        nodes = list(ir.walk(value))
        if any(isinstance(n, ir.Load) for n in nodes):
            return True
        assigned = {n.target.name for n in ir.walk(tuple(self.block[position:])) if isinstance(n, ir.Assign)}
        scalars = (n for n in nodes if isinstance(n, ir.Var) and inference.is_scalar(n.type))
        return any(n.name in assigned for n in scalars)

    def writes(self, position: int) -> bool:
        """Return whether later statements write into an array that they do not create."""
        nodes = list(ir.walk(tuple(self.block[position:])))
        own = {n.target.name for n in nodes if isinstance(n, ir.Alloc)}
        kinds = (ir.Store, ir.Accumulate, ir.Elementwise)
        return any(isinstance(n, kinds) and n.array.name not in own for n in nodes)

    def read(self, node: ast.AST, name: str) -> Value:
        kind = self.scope.kinds.get(name)
        if kind is None:
            raise Unknown
        return self.of_kind(node, name, kind)

    def of_kind(self, node: ast.AST, name: str, kind: Any) -> Value:
        match kind:
            case Named(var=var):
                return var
            case Group():
                return self.map_group(node, kind)
            case Records():
                return structured_arrays.with_arrays(
                    kind, lambda item: self.read(node, item.name) if isinstance(item, Leaf) else item
                )
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

    def negated(self, node: ast.AST, value: ir.Expr) -> ir.Expr:
        if isinstance(value, ir.Const) and isinstance(value.type, types.Integer):
            type_ = value.type
            if type_.signed and type_.bitwidth == 64 and -value.value <= type_.maxval:
                return ir.Const(-value.value, type_)
        elif isinstance(value, ir.Const) and not isinstance(value.type, types.Boolean):
            return ir.Const(-value.value, value.type)
        return self.operation(node, "neg", operator.neg, value)

    def binary(self, node: ast.AST, op: ast.operator, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        name, function = BINARY[type(op)]
        folded = fold(name, function, left, right)
        return folded if folded is not None else self.operation(node, name, function, left, right)

    def operation(self, node: ast.AST, name: str, function: Any, *arguments: ir.Expr) -> ir.Op:
        type_ = inference.result_type(function, tuple(a.type for a in arguments))
        if type_ is None or not inference.is_scalar(type_):
            shown = ", ".join(str(a.type) for a in arguments)
            called = getattr(function, "__name__", name)
            problem = f"Numba has no {getattr(function, '__module__', None)}.{called}({shown})"
            self.fail(node, problem, f"write np.{name}" if hasattr(np, name) and hasattr(math, name) else "")
        return ir.Op(name, arguments, type_)

    def compare(self, node: ast.AST, op: ast.cmpop, left: ir.Expr, right: ir.Expr) -> ir.Expr:
        name, function = COMPARE[type(op)]
        if isinstance(left, ir.Const) and isinstance(right, ir.Const):
            return ir.Const(function(left.value, right.value), types.boolean)
        return self.operation(node, name, function, left, right)

    def condition(self, node: ast.expr) -> ir.Expr:
        return self.truth(node, self.value(node))

    def truth(self, node: ast.AST, value: Value) -> ir.Expr:
        if isinstance(value, Static):
            return ir.Const(bool(value.value), types.boolean)
        if isinstance(value, Group):
            return ir.Const(bool(value.items), types.boolean)
        if is_list(self, value):
            return ir.Op("ne", (ir.Size(value, 0, types.intp), ir.Const(0, types.intp)), types.boolean)
        if inference.is_array(value.type):
            otherwise = "the truth of an array that has not one element: write np.any(...), np.all(...) or a.size > 0"
            return self.truth(node, array_values.only_element(self, value, otherwise))
        if isinstance(value.type, types.Boolean):
            return value
        if isinstance(value, ir.Const):
            return ir.Const(bool(value.value), types.boolean)
        return ir.Op("ne", (value, ir.Const(0, types.int64)), types.boolean)

    # ------------------------------------------------------------------------------------------- attributes, indices

    def subscript(self, node: ast.AST, array: ir.Var, index: tuple[ir.Expr, ...], hint: str | None) -> Value:
        if len(index) == array.type.ndim:
            return ir.Load(array, index, array.type.dtype)
        if not index:
            return array
        view = inference.element_view(array.type, len(index))
        target = ir.Var(self.new_array_name(hint, f"{array.name}_part"), view)
        self.emit(ir.Alias(target, array, index))
        self.describe_part(target, array, len(index))
        return target

    def describe_part(self, target: ir.Var, array: ir.Var, axis: int) -> None:
        """Note the shape and the owner of a part of an array, which has the array's axes from ``axis`` on."""
        self.extents[target.name] = array_values.shape_of(self, array)[axis:]
        if array.name in self.owned | self.parts:
            self.parts.add(target.name)

    def new_array_name(self, variable: str | None, word: str) -> str:
        """A name for a new array or view: the user's variable to which it is bound, if that is assigned once."""
        if variable is None:
            return self.names.fresh(word)
        alone = self.webs.definitions.get(variable) == 1 and not self.unrolling
        return variable if alone else self.names.fresh(variable)

    def index(self, node: ast.Subscript, array: ir.Var, items: list[Any]) -> tuple[ir.Expr, ...]:
        """The index of an element, or the leading indices of a part."""
        if len(items) > array.type.ndim:
            self.fail(node, f"{len(items)} indices for an array of {array.type.ndim} dimensions")
        for value in items:
            if not isinstance(value.type, types.Integer):
                self.fail(node, f"an index must be an integer, not {value.type}", "use integers; loop over masks")
        return tuple(_from_end(value, array, axis) for axis, value in enumerate(items))

    # ------------------------------------------------------------------------------------------- calls

    def dtype(self, node: ast.AST, value: Value, structured: bool = False) -> types.Type:
        try:
            given = value.value
            found = given if isinstance(given, types.Type) else numpy_support.from_dtype(np.dtype(given))
            if inference.is_scalar(found) or (structured and isinstance(found, types.Record)):
                return found
            return self.fail(node, "this cannot make a structured array", "make it by np.empty or np.zeros")
        except (AttributeError, TypeError, NumbaError):
            return self.fail(node, "the dtype must be a NumPy scalar type", "write dtype=np.float64 and the like")

    def callee(
        self, node: ast.Call, function: Any, argument_types: tuple[types.Type, ...], single: Single = frozenset()
    ) -> ir.Function:
        key = (function.__code__, id(function), argument_types, single)
        if key not in self.callees:
            if any(code is function.__code__ for code, _ in self.callers):
                self.fail(node, *self.recursion(function))
            self.callees[key] = lower(_parse(function, argument_types, self.callers, single, self.derivatives))
        return self.callees[key]

    def recursion(self, function: Any) -> tuple[str, str]:
        """The error message for functions that call one another recursively."""
        if self.is_itself(function) or function.__code__ is self.function.__code__:
            return f"'{function.__name__}' calls itself by another name", f"call it as {function.__name__}(...)"
        problem = f"'{function.__name__}' and '{self.source.name}' call one another"
        return problem, recursion_nodes.ONE_FUNCTION

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
        if isinstance(value, ir.Var) and value.name in self.lists:
            item = value.type.dtype if value.type.ndim == 1 else value.type.copy(ndim=value.type.ndim - 1)
            return types.List(item, reflected=True)
        if isinstance(value, Records) and value.index:
            self.fail(node, "a record as an argument", "pass the array and the index")
        return value.type


# ------------------------------------------------------------------------------------------------------- helpers


def _called_function(value: Any) -> Any:
    """The Python function of a kernel whose derivative is made from its source; None for anything else."""
    authored = any(c in invocations.AUTHORED for c in type(value).__mro__)
    return None if authored else invocations.kernel_function(value)


def _from_end(index: ir.Expr, array: ir.Var, axis: int) -> ir.Expr:
    """A constant negative index, counted from the start."""
    if isinstance(index, ir.Const) and index.value < 0:
        size = ir.Size(array, axis, types.intp)
        return ir.Op("sub", (size, ir.Const(-index.value, types.int64)), types.intp)
    return index
