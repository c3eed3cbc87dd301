"""Operators, comparisons, conditions and tuples in a kernel: Python -> values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import functions as array_functions
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.sequences import array_of, as_list, is_list, of_columns, refuse_lists
from ampi.kernel.frontend.arrays.values import Lazy, is_array
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.refusals import describe
from ampi.kernel.frontend.base.values import (
    TRUE,
    Group,
    Static,
    Unknown,
    Value,
    is_listed,
    is_maybe,
    leaves_of,
    negation,
)
from ampi.kernel.frontend.language import assignments
from ampi.kernel.frontend.language.desugar import Augmented
from ampi.kernel.frontend.lists import nodes as list_nodes
from ampi.kernel.ir import inference, random_draws
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.operators import BINARY, COMPARE, UNARY, literal


def constant_value(builder: Any, node: ast.Constant) -> Value:
    return outside.constant(builder, node.value, node)


def name_value(builder: Any, node: ast.Name) -> Value:
    if node.id in builder.webs.definitions:
        return builder.read(node, node.id)
    if node.id in builder.globals:
        return outside.value_of(builder, node, node.id, builder.globals[node.id])
    if any(node is n for n in builder.webs.maybe_undefined):
        raise Unknown
    return builder.fail(node, f"'{node.id}' is not defined")


def tuple_value(builder: Any, node: ast.Tuple, make: Callable[[ast.expr], Value] | None = None) -> Value:
    items = spread(builder, node.elts, make)
    return Group(tuple(array_values.computed(builder, v) if isinstance(v, Lazy) else v for v in items))


def spread(builder: Any, nodes: list[ast.expr], make: Callable[[ast.expr], Value] | None = None) -> list[Value]:
    """The values of expressions, with ``*t`` replaced by the items of the tuple ``t``."""
    plain = [n.value if isinstance(n, ast.Starred) else n for n in nodes]
    values: list[Value] = []
    make = make or builder.value
    for node, value in zip(nodes, builder.operands(*[lambda n=n: make(n) for n in plain]), strict=True):
        if not isinstance(node, ast.Starred):
            values.append(value)
            continue
        if isinstance(value, Static) and isinstance(value.value, (tuple, list)):
            value = outside.constant(builder, tuple(value.value), node)
        if not isinstance(value, Group) or is_listed(value):
            builder.fail(node, "only a tuple can be spread with *", "write the elements out")
        values.extend(value.items)
    return values


def unary_value(builder: Any, node: ast.UnaryOp) -> Value:
    if isinstance(node.op, ast.Not):
        operand = builder.value(node.operand)
        if isinstance(operand, Static):
            return ir.Const(not operand.value, types.boolean)
        return negation(builder.truth(node.operand, operand))
    if (known := literal(node)) is not None:
        return known
    operand = builder.value(node.operand)
    name, function = UNARY[type(node.op)]
    if is_array(operand):
        make = unary_maker(builder, node, name, function)
        return array_values.operation(builder, node, function, make, operand)
    if not isinstance(operand, ir.Expr):
        builder.fail(node.operand, "a number is needed here")
    if name == "neg":
        return builder.negated(node, operand)
    return builder.operation(node, name, function, operand)


def unary_maker(builder: Any, node: ast.AST, name: str, function: Any) -> Callable[[ir.Expr], ir.Expr]:
    if name == "neg":
        return lambda x: builder.negated(node, x)
    if name == "invert":  # of a truth value
        general = lambda x: builder.operation(node, name, function, x)
        return lambda x: negation(x) if isinstance(x.type, types.Boolean) else general(x)
    return lambda x: builder.operation(node, name, function, x)


def binary_value(builder: Any, node: ast.BinOp) -> Value:
    if (known := literal(node)) is not None:
        return known
    adds = isinstance(node.op, ast.Add)
    tuples = adds and not isinstance(node, Augmented)  # += changes the list itself
    left, right = builder.operands(*(lambda n=n: builder.value(n, tuples=tuples) for n in (node.left, node.right)))
    if tuples and any(is_listed(v) or is_list(builder, v) for v in (left, right)):
        return joined(builder, node, left, right)
    refuse_lists(builder, node, "arithmetic of a list", left, right)
    if isinstance(node.op, ast.Mult) and isinstance(left, Group) and is_count(right):
        return repeated(builder, node, left, right)
    if isinstance(node.op, ast.MatMult):
        return array_functions.matmul(builder, node, left, right)
    if isinstance(left, Group) and isinstance(right, Group) and adds:
        return Group(left.items + right.items)
    if isinstance(node, Augmented) and isinstance(left, ir.Var) and is_array(left):
        array_values.update(builder, node, node.op, array_values.whole(builder, left), right)
        return left
    if is_array(left) or is_array(right):
        function = BINARY[type(node.op)][1]
        return array_values.operation(
            builder, node, function, lambda x, y: builder.binary(node, node.op, x, y), left, right
        )
    for side, value in ((node.left, left), (node.right, right)):
        if not isinstance(value, ir.Expr):
            builder.fail(side, "a number is needed here")
    return builder.binary(node, node.op, left, right)


def joined(builder: Any, node: ast.BinOp, *lists: Value) -> Value:
    """``l + m`` of lists of numbers or of tuples."""

    def columns(value: Value) -> tuple[Value, ...]:
        if is_listed(value):
            return value.items
        if is_list(builder, value):
            return (value,)
        if not (isinstance(value, Group) and value.items):
            builder.fail(node, "a list plus something else", "add lists of numbers, or lists of tuples of numbers")
        rows = [item.items if isinstance(item, Group) else (item,) for item in value.items]
        if len(set(map(len, rows))) > 1:
            builder.fail(node, "tuples of different length in one list", "use two lists")
        return tuple(array_of(builder, node, Group(column)) for column in zip(*rows, strict=True))

    left, right = map(columns, lists)
    if len(left) != len(right):
        builder.fail(node, "tuples of different length in one list", "use two lists")
    both = [array_shapes.concatenate(builder, node, Group(arrays)) for arrays in zip(left, right, strict=True)]
    return of_columns(both) if any(map(is_listed, lists)) else as_list(builder, *both)


def is_count(value: Value) -> bool:
    return isinstance(value, ir.Expr) and isinstance(value.type, types.Integer)


def repeated(builder: Any, node: ast.BinOp, group: Group, count: ir.Expr) -> Value:
    """``[x] * n``."""
    if isinstance(count, ir.Const):
        return Group(group.items * count.value)
    item = group.items[0] if len(group.items) == 1 else None
    if not (isinstance(item, ir.Expr) and inference.is_scalar(item.type)):
        builder.fail(node, "a list of several items times a number", "use np.empty and assign the elements")
    dtype = inference.plain(item.type)
    array = array_values.new_array(builder, "list", dtype, (array_values.steady(builder, count),), item)
    builder.lists.add(array.name)
    return array


def compare_value(builder: Any, node: ast.Compare) -> Value:
    if len(node.ops) == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
        left, right = builder.any_value(node.left), builder.any_value(node.comparators[0])
        if is_maybe(left) and right == Static(None):
            return left.items[0] if isinstance(node.ops[0], ast.IsNot) else negation(left.items[0])
        same = isinstance(left, Static) and isinstance(right, Static) and left.value is right.value
        if all(isinstance(v, ir.Expr) and isinstance(v.type, types.Boolean) for v in (left, right)):
            return builder.compare(node, ast.Eq() if isinstance(node.ops[0], ast.Is) else ast.NotEq(), left, right)
        if not (isinstance(left, Static) or isinstance(right, Static)):
            builder.fail(node, "'is' between numbers or arrays", "use ==")
        return ir.Const(same == isinstance(node.ops[0], ast.Is), types.boolean)
    if any(isinstance(n, ast.NamedExpr) for part in node.comparators[1:] for n in ast.walk(part)):
        builder.fail(
            node, "an assignment (:=) in a chain of comparisons, which may skip it", "write it on its own line"
        )
    is_membership = list_nodes.is_membership(node)
    if is_membership and isinstance(node.comparators[0], list_nodes.Filled):
        return in_list(builder, node)
    begin = len(builder.block)
    values = builder.operands(*[lambda n=n: builder.value(n) for n in (node.left, *node.comparators)])
    if len(values) > 2 and any(random_draws.draws(n) for n in ir.walk(tuple(builder.block[begin:]))):
        builder.fail(node, "random numbers in a chain of comparisons", "draw the number on its own line")
    if is_membership and is_array(values[1]):
        refuse_lists(builder, node, "a list in a list", values[0])
        return among(builder, node, *values)
    refuse_lists(builder, node, "a comparison of a list", *values)
    if any(map(is_array, values)) and len(values) == 2 and type(node.ops[0]) in COMPARE:
        function = COMPARE[type(node.ops[0])][1]
        make = lambda x, y: builder.compare(node, node.ops[0], x, y)
        return array_values.operation(builder, node, function, make, *values)
    if all(isinstance(v, Static) for v in values) and len(values) == 2:
        return compare_static(builder, node, values[0].value, values[1].value)
    if len(values) == 2 and all(isinstance(v, Group) for v in values):
        return compare_groups(builder, node, *values)
    for number in range(1, len(values) - 1):
        if isinstance(values[number], ir.Expr) and not isinstance(values[number], (ir.Const, ir.Var)):
            values[number] = builder.temporary("value", values[number])
    parts = []
    for op, left, right in zip(node.ops, values, values[1:], strict=False):
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, Group):
            parts.append(contained(builder, node, op, left, right))
            continue
        if type(op) not in COMPARE:
            builder.fail(node, f"'{describe(op)}' is not supported in a kernel", "compare numbers")
        for value in (left, right):
            if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
                builder.fail(node, "only numbers can be compared", "loop over the elements")
        parts.append(builder.compare(node, op, left, right))
    result = parts[0]
    for part in parts[1:]:
        result = ir.Op("and", (result, part), types.boolean)
    return result


def compare_groups(builder: Any, node: ast.Compare, left: Group, right: Group) -> ir.Expr:
    """A comparison of two tuples of numbers, such as ``a.shape == b.shape``."""
    if not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return compare_in_order(builder, node, left, right)
    result: ir.Expr = TRUE if len(left.items) == len(right.items) else negation(TRUE)
    for pair in zip(left.items, right.items) if result == TRUE else ():
        if all(isinstance(v, Group) for v in pair):
            same = compare_groups(builder, ast.copy_location(ast.Compare(node, [ast.Eq()], []), node), *pair)
        elif all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in pair):
            same = TRUE if pair[0] == pair[1] and is_size(pair[0]) else builder.compare(node, ast.Eq(), *pair)
        else:
            builder.fail(node, "only tuples of numbers can be compared", "compare their items")
        result = same if result == TRUE else ir.Op("and", (result, same), types.boolean)
    return result if isinstance(node.ops[0], ast.Eq) else negation(result)


def compare_in_order(builder: Any, node: ast.Compare, left: Group, right: Group) -> ir.Expr:
    """``(a, b) < (c, d)``: the first items that differ decide; if there are none, the lengths."""
    (op,) = node.ops
    if type(op) not in COMPARE:
        builder.fail(node, f"'{describe(op)}' of tuples is not supported in a kernel", "compare their items")
    differ = ast.Lt() if isinstance(op, (ast.Lt, ast.LtE)) else ast.Gt()
    result: ir.Expr = ir.Const(COMPARE[type(op)][1](len(left.items), len(right.items)), types.boolean)
    for a, b in reversed(list(zip(left.items, right.items))):
        if not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in (a, b)):
            builder.fail(node, "only tuples of numbers have an order", "compare their items")
        rest = ir.Op("and", (builder.compare(node, ast.Eq(), a, b), result), types.boolean)
        result = ir.Op("or", (builder.compare(node, differ, a, b), rest), types.boolean)
    return result


def is_size(value: ir.Expr) -> bool:
    return isinstance(value, ir.Size)


def contained(builder: Any, node: ast.AST, op: ast.cmpop, value: Value, group: Group) -> ir.Expr:
    """``value in (a, b)``."""
    for item in (value, *group.items):
        if not (isinstance(item, ir.Expr) and inference.is_scalar(item.type)):
            builder.fail(node, "'in' searches for a number among numbers only", "loop over the elements")
    if not isinstance(value, (ir.Const, ir.Var)):
        value = builder.temporary("value", value)
    result: ir.Expr = ir.Const(False, types.boolean)
    for item in group.items:
        same = builder.compare(node, ast.Eq(), value, item)
        result = same if result == ir.Const(False, types.boolean) else ir.Op("or", (result, same), types.boolean)
    return result if isinstance(op, ast.In) else negation(result)


def in_list(builder: Any, node: ast.Compare) -> ir.Expr:
    """``value in list`` of a list that grows; it counts as empty until the type of its items is inferred."""
    try:
        values = builder.operands(*[lambda n=n: builder.value(n) for n in (node.left, node.comparators[0])])
    except Unknown:
        builder.pending.append(node)
        return ir.Const(isinstance(node.ops[0], ast.NotIn), types.boolean)
    return among(builder, node, *values)


def among(builder: Any, node: ast.Compare, value: Value, array: Any) -> ir.Expr:
    """``value in array``."""
    if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
        builder.fail(node, "'in' searches an array for a number only", "loop over the elements")
    make = lambda x, y: builder.compare(node, ast.Eq(), x, y)
    same = array_values.operation(builder, node, COMPARE[ast.Eq][1], make, array, value)
    no = ir.Const(False, types.boolean)
    either = lambda found, x: ir.Op("or", (found, x), types.boolean)
    result = array_functions.fold(builder, same, no, either, "found")
    return result if isinstance(node.ops[0], ast.In) else negation(result)


def compare_static(builder: Any, node: ast.Compare, left: Any, right: Any) -> Value:
    if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
        return ir.Const((left == right) == isinstance(node.ops[0], ast.Eq), types.boolean)
    return builder.fail(node, "these cannot be compared")


def bool_value(builder: Any, node: ast.BoolOp) -> Value:
    word = "and" if isinstance(node.op, ast.And) else "or"
    result = builder.value(node.values[0])
    for operand in node.values[1:]:
        result = short_circuit(builder, operand, word, node, result)
    return result


def short_circuit(builder: Any, node: ast.expr, word: str, whole: ast.BoolOp, left: Value) -> Value:
    if isinstance(left, (Static, ir.Const, Group)):
        truth = bool(left.items if isinstance(left, Group) else left.value)
        return builder.value(node) if truth == (word == "and") else left
    before, right = builder.sub_block(lambda: builder.value(node))
    if not isinstance(right, ir.Expr) or not inference.is_scalar(right.type):
        builder.fail(node, "a truth value is needed here")
    if isinstance(left.type, types.Boolean) and isinstance(right.type, types.Boolean) and not before:
        return ir.Op(word, (left, right), types.boolean)
    if not isinstance(left, ir.Var):
        left = builder.temporary("value", left)
    condition = builder.truth(whole, left)
    first, second = (right, left) if word == "and" else (left, right)
    arms = ((before, first), ((), second)) if word == "and" else (((), first), (before, second))
    return choose(builder, whole, condition, *arms)


def named_value(builder: Any, node: ast.NamedExpr) -> Value:
    """``(x := y)``: the assignment, and x."""
    assignments.assign(builder, node.target, builder.any_value(node.value, hint=node.target.id))
    return builder.read(node, node.target.id)


def if_value(builder: Any, node: ast.IfExp) -> Value:
    test = builder.value(node.test)
    if isinstance(test, (Static, ir.Const, Group)):
        taken = bool(test.items if isinstance(test, Group) else test.value)
        return builder.value(node.body if taken else node.orelse)
    condition = builder.truth(node.test, test)
    arms: list[Any] = []
    unknown = 0
    for arm in (node.body, node.orelse):
        try:
            arms.append(builder.sub_block(lambda n=arm: builder.value(n)))
        except Unknown:
            unknown += 1
    if unknown == 1:  # x = first if x is None else max(x, ...): for now, x has the type of first
        builder.pending.append(node)
        builder.block.extend(arms[0][0])
        return arms[0][1]
    if unknown:
        raise Unknown
    return choose(builder, node, condition, *arms)


def choose(builder: Any, node: ast.AST, condition: ir.Expr, then: tuple, orelse: tuple) -> Value:
    """``a if condition else b``, where each arm is its statements and its value."""
    (then_block, a), (else_block, b) = then, orelse
    if isinstance(a, Group) and isinstance(b, Group) and len(a.items) == len(b.items):
        if then_block or else_block or any(map(is_array, [*leaves_of(a), *leaves_of(b)])):
            return choose_group(builder, node, condition, then, orelse)
        return Group(
            tuple(choose(builder, node, condition, ((), x), ((), y)) for x, y in zip(a.items, b.items, strict=True))
        )
    if is_array(a) and is_array(b):
        return choose_array(builder, node, condition, then, orelse)
    for value in (a, b):
        if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
            builder.fail(node, "a conditional expression chooses between numbers, or between arrays", "use an if")
    type_ = inference.unify(a.type, b.type)
    if type_ is None:
        builder.fail(node, f"chooses between {a.type} and {b.type}", "convert one")
    if not then_block and not else_block:
        return ir.Op("select", (condition, cast(a, type_), cast(b, type_)), type_)
    target = ir.Var(builder.names.fresh("chosen"), type_)
    builder.emit(
        ir.If(
            condition,
            (*then_block, ir.Assign(target, cast(a, type_), line=builder.line)),
            (*else_block, ir.Assign(target, cast(b, type_), line=builder.line)),
        )
    )
    return target


def choose_group(builder: Any, node: ast.AST, condition: ir.Expr, then: tuple, orelse: tuple) -> Value:
    """Choose between tuples by a condition, where the arms have statements or arrays."""
    blocks: list[list[ir.Stmt]] = [list(then[0]), list(orelse[0])]

    def chosen(a: Value, b: Value) -> Value:
        if isinstance(a, Group) and isinstance(b, Group) and len(a.items) == len(b.items):
            return Group(tuple(chosen(x, y) for x, y in zip(a.items, b.items)), a.cls if a.cls is b.cls else None)
        if not all(isinstance(v, ir.Expr) for v in (a, b)):
            builder.fail(node, "a conditional expression of different tuples", "use an if")
        type_ = inference.unify(a.type, b.type)
        if type_ is None:
            builder.fail(node, f"chooses between {a.type} and {b.type}", "convert one")
        target = ir.Var(builder.names.fresh("chosen"), type_)
        if is_array(target):
            note_choice(builder, target, a, b)
        for block, value in zip(blocks, (a, b)):
            line = builder.line
            name = ir.Alias(target, value, (), line=line) if is_array(target) else None
            block.append(name or ir.Assign(target, cast(value, type_), line=line))
        return target

    result = chosen(then[1], orelse[1])
    builder.emit(ir.If(condition, *map(tuple, blocks)))
    return result


def note_choice(builder: Any, target: ir.Var, first: ir.Expr, second: ir.Expr) -> None:
    """Note that a name stands for one of two arrays."""
    builder.references.add(target.name)
    axes = array_values.single_axes(builder, first) & array_values.single_axes(builder, second)
    builder.single |= {(target.name, axis) for axis in axes}


def choose_array(builder: Any, node: ast.AST, condition: ir.Expr, then: tuple, orelse: tuple) -> ir.Var:
    """Choose between arrays by a condition."""
    arms = []
    for block, value in (then, orelse):
        more, array = builder.sub_block(lambda v=value: array_values.computed(builder, v, "chosen"))
        arms.append(((*block, *more), array))
    type_ = inference.unify(*(array.type for _, array in arms))
    if type_ is None:
        builder.fail(node, f"chooses between {arms[0][1].type} and {arms[1][1].type}", "convert one")
    target = ir.Var(builder.names.fresh("chosen"), type_)
    note_choice(builder, target, *(array for _, array in arms))
    blocks = ((*block, ir.Alias(target, array, (), line=builder.line)) for block, array in arms)
    builder.emit(ir.If(condition, *blocks))
    return target


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    ast.Constant: constant_value,
    ast.Name: name_value,
    ast.Tuple: tuple_value,
    ast.List: tuple_value,
    ast.UnaryOp: unary_value,
    ast.BinOp: binary_value,
    Augmented: binary_value,
    ast.Compare: compare_value,
    ast.BoolOp: bool_value,
    ast.IfExp: if_value,
    ast.NamedExpr: named_value,
}
