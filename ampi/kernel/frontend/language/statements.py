"""Statements of a kernel, except ``for`` loops: Python -> IR."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import structured_arrays
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.sequences import array_of, as_list, is_list
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.arrays.values import Lazy, is_array
from ampi.kernel.frontend.base.refusals import advice_for, describe
from ampi.kernel.frontend.base.values import (
    TRUE,
    Group,
    Named,
    Static,
    Unknown,
    Value,
    is_maybe,
    kind_of,
    leaves_of,
    list_class,
    merge_kinds,
    negation,
    number_or_none,
)
from ampi.kernel.frontend.language import assignments, expressions, loops, subscripts
from ampi.kernel.frontend.language.desugar import Augmented
from ampi.kernel.frontend.lists.nodes import Known
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast


def _message(node: ast.expr) -> str:
    """The source of an argument of an exception in a generated program: a constant, or the original source as text."""
    return ast.unparse(node if isinstance(node, ast.Constant) else ast.Constant(ast.unparse(node)))


def pass_statement(builder: Any, node: ast.Pass) -> None:
    pass


def expression_statement(builder: Any, node: ast.Expr) -> None:
    if isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node.value, ast.NamedExpr):
        builder.value(node.value)
        return
    if isinstance(node.value, ast.Call):
        if is_print(builder, node.value):
            builder.has_effects = True
        else:
            builder.any_value(node.value)
        return
    if isinstance(node.value, ast.Yield | ast.YieldFrom):
        builder.fail(node, f"{describe(node.value)} is not supported in a kernel", advice_for(node.value))
    builder.fail(node, "an expression whose value is not used", "remove it or assign it")


def is_print(builder: Any, call: ast.Call) -> bool:
    """Return whether a call prints; derivative programs do not."""
    name = call.func
    is_global = isinstance(name, ast.Name) and name.id not in builder.webs.definitions
    return is_global and builder.value(name) == Static(print)


def assign_statement(builder: Any, node: ast.Assign) -> None:
    first = node.targets[0]
    alone = isinstance(first, ast.Name)
    value = (builder.any_value if alone else builder.value)(node.value, hint=first.id if alone else None)
    in_place = isinstance(node.value, Augmented) and is_array(value) and isinstance(value, ir.Var)
    if in_place and value.name == first.id:
        builder.scope.kinds[first.id] = Named(value)  # the same array as before
        return
    if len(node.targets) > 1 and isinstance(value, Lazy):
        value = array_values.computed(builder, value, "value")
    if len(node.targets) > 1 and isinstance(value, ir.Expr) and not isinstance(value, (ir.Const, ir.Var)):
        value = builder.temporary("value", value)
    for target in node.targets:
        assignments.assign(builder, target, value)


def annotated_statement(builder: Any, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assignments.assign(builder, node.target, builder.value(node.value))


def augmented_statement(builder: Any, node: ast.AugAssign) -> None:
    if not isinstance(node.target, (ast.Subscript, ast.Attribute)):
        builder.fail(node, "augmented assignment to this target is not supported", "assign to a name or an element")
    array, items = assignments.indexed(builder, node.target)
    if not assignments.is_element(array, items):
        place = array_values.place(builder, node.target, array, items)
        array_values.update(builder, node, node.op, place, builder.value(node.value))
        return
    index = subscripts.index_of(builder, node.target, array, items)
    (value,) = builder.operands(lambda: builder.scalar(node.value))
    old = ir.Load(array, index, array.type.dtype)
    of_integers = isinstance(value.type, types.Float) and not isinstance(array.type.dtype, (types.Float, types.Complex))
    if isinstance(node.op, (ast.Add, ast.Sub)) and not of_integers:
        builder.require_store(node, array, builder.binary(node, node.op, old, value).type)
        if isinstance(node.op, ast.Sub):
            value = builder.negated(node, value)
        builder.emit(ir.Accumulate(array, index, value))
        return
    result = builder.binary(node, node.op, old, value)
    builder.require_store(node, array, result.type)
    builder.emit(ir.Store(array, index, result))


def return_statement(builder: Any, node: ast.Return) -> None:
    value = Static(None) if node.value is None else returned(builder, node, value_of_result(builder, node.value))
    value = as_declared(value, builder.result_type)
    leaves = list(leaves_of(value)) if value != Static(None) else []
    nothing = Static(None)
    for leaf in leaves:
        if isinstance(leaf, Static) and leaf != nothing:
            builder.fail(node, f"returns {leaf.value!r}", "kernels return scalars, arrays and tuples of these")
    kind = kind_of(value)
    old = builder.scope.results
    merged = kind if old is None else merge_kinds(old, kind)
    if merged is None:
        merged = number_or_none(old, kind)
    if merged is None:
        what = (
            "None on one path and an array or a tuple on another"
            if nothing in (old, kind)
            else "results of different structure"
        )
        advice = "return the same structure everywhere, for instance an empty array or np.nan instead of None"
        builder.fail(node, f"returns {what}", advice)
    builder.scope.results = merged
    if is_maybe(merged) and not is_maybe(value):
        number = merged.items[1]
        there = value != nothing
        leaves = [ir.Const(there, types.boolean), value if there else cast(ir.Const(0, types.int64), number)]
    leaves = [leaf for leaf in leaves if leaf != nothing]
    wanted = [kind for kind in leaves_of(builder.scope.results) if kind != nothing]
    values = tuple(
        leaf if inference.is_array(type_) else cast(leaf, type_) for leaf, type_ in zip(leaves, wanted, strict=True)
    )
    builder.emit(ir.Return(values))


def as_declared(value: Value, type_: types.Type | None) -> Value:
    """A result with its numbers in the types that a signature declares."""
    if isinstance(value, Group) and isinstance(type_, types.BaseTuple) and len(type_.types) == len(value.items):
        return Group(tuple(map(as_declared, value.items, type_.types)), value.cls)
    if type_ is not None and isinstance(value, ir.Expr) and inference.is_scalar(type_) and not is_array(value):
        return cast(value, type_)
    return value


def value_of_result(builder: Any, node: ast.expr) -> Value:
    if isinstance(node, ast.Tuple):
        return expressions.tuple_value(builder, node, lambda n: value_of_result(builder, n))
    value = builder.any_value(node)
    if isinstance(node, ast.List) and isinstance(value, Group) and value.items:
        if all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in value.items):
            return as_list(builder, array_of(builder, node, value))
    return value


def returned(builder: Any, node: ast.Return, value: Value) -> Value:
    """The value of a result, with parts of arrays copied (see `own_array`)."""
    leaves = [v for v in leaves_of(value) if isinstance(v, ir.Var) and is_array(v)]
    if len(builder.callers) == 1 and any(map(builder.is_of_list, leaves)):
        builder.fail(node, "returns a list among its arguments, or an array of one", "return a copy: a.copy()")
    if is_list(builder, value):
        return Group((own_array(builder, value),), list_class(0))
    if isinstance(value, Group):
        return Group(tuple(returned(builder, node, v) for v in value.items), value.cls)
    if isinstance(value, Records):
        if value.index:
            builder.fail(node, "returns a record", "return its fields")
        return structured_arrays.as_result(structured_arrays.with_arrays(value, lambda a: own_array(builder, a)))
    if isinstance(value, Lazy):
        return array_values.computed(builder, value, "result")
    return own_array(builder, value) if is_array(value) else value


def own_array(builder: Any, array: ir.Var) -> ir.Var:
    """An array that a kernel returns, copied if it is a part of another array.

    Callers in Python still get a view, by running the kernel itself; a derivative program only needs to return the same
    values.
    """
    is_part = array.name in builder.extents and array.name not in builder.owned
    return array_values.copied(builder, array, "result") if is_part and len(builder.callers) == 1 else array


def break_statement(builder: Any, node: ast.Break) -> None:
    require_loop(builder, node, "break")
    builder.emit(ir.Break())


def continue_statement(builder: Any, node: ast.Continue) -> None:
    require_loop(builder, node, "continue")
    builder.emit(ir.Continue())


def require_loop(builder: Any, node: ast.stmt, word: str) -> None:
    if builder.loops and builder.loops[-1] == "unrolled":
        builder.fail(node, f"{word} in a loop over a tuple", "loop over range() instead")


def raise_statement(builder: Any, node: ast.Raise) -> None:
    called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    arguments = node.exc.args if isinstance(node.exc, ast.Call) else []
    is_name = isinstance(called, (Known, ast.Name, ast.Attribute)) and (
        isinstance(called, Known) or loops.is_outside(builder, called)
    )
    cls = getattr(builder.any_value(called), "value", None) if is_name else None
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        builder.fail(node, "only exception classes and calls of them can be raised", 'write raise ValueError("text")')
    name = next(c.__name__ for c in cls.__mro__ if c.__module__ == "builtins")
    exact = cls.__module__ == "builtins" and all(isinstance(a, ast.Constant) for a in arguments)
    builder.emit(ir.Raise(f"raise {name}({', '.join(map(_message, arguments))})", exact=exact))


def assert_statement(builder: Any, node: ast.Assert) -> None:
    condition = builder.condition(node.test)
    message = "" if node.msg is None else _message(node.msg)
    exact = node.msg is None or isinstance(node.msg, ast.Constant)
    refuse = ir.Raise(f"raise AssertionError({message})", exact=exact, line=node.lineno)
    builder.emit(ir.If(negation(condition), (refuse,)))


def if_statement(builder: Any, node: ast.If) -> None:
    try:
        test = builder.value(node.test)
    except Unknown:
        learn_from(builder, node.test, node.body, node.orelse)
        raise
    if isinstance(test, (Static, ir.Const, Group)):
        taken = bool(test.items if isinstance(test, Group) else test.value)
        builder.statements(node.body if taken else node.orelse)
        return
    condition = builder.truth(node.test, test)
    then, _ = builder.sub_block(lambda: builder.statements(node.body))
    orelse, _ = builder.sub_block(lambda: builder.statements(node.orelse))
    builder.emit(ir.If(condition, then, orelse, line=node.lineno))


def learn_from(builder: Any, test: ast.expr, *bodies: list[ast.stmt]) -> None:
    """Infer types from branches whose condition reads variables they assign: ``if first or x > best: best = x``."""
    if isinstance(test, ast.BoolOp):
        known = builder.value(test.values[0])
        if isinstance(known, ir.Expr) and not isinstance(known, ir.Const):
            for body in bodies:
                builder.sub_block(functools.partial(builder.statements, body))


def while_statement(builder: Any, node: ast.While) -> None:
    builder.loops.append("while")
    try:
        before, condition = builder.sub_block(lambda: builder.condition(node.test))
    except Unknown:
        learn_from(builder, node.test, node.body)
        raise

    def body() -> None:
        if before:
            builder.block.extend(before)
            builder.emit(ir.If(negation(condition), (ir.Break(line=node.lineno),), line=node.lineno))
        builder.statements(node.body)

    statements, _ = builder.sub_block(body)
    builder.loops.pop()
    condition = TRUE if before else condition
    builder.emit(ir.While(condition, statements, line=node.lineno))


STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    ast.Pass: pass_statement,
    ast.Expr: expression_statement,
    ast.Assign: assign_statement,
    ast.AnnAssign: annotated_statement,
    ast.AugAssign: augmented_statement,
    ast.Return: return_statement,
    ast.Break: break_statement,
    ast.Continue: continue_statement,
    ast.Raise: raise_statement,
    ast.Assert: assert_statement,
    ast.If: if_statement,
    ast.While: while_statement,
    ast.For: loops.for_statement,
}
