"""Syntax tree nodes for recursive functions, and their IR (see `recursion.stack`)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.base.declared import declared
from ampi.kernel.frontend.base.values import Group, Unknown, Value, describe_kind, is_listed, kind_of, merge_kinds
from ampi.kernel.frontend.language import statements
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast

FIRST_ROOM = 16  # frames, before the stack grows
OF_ARRAYS = "pass whole arrays on unchanged, with numbers that tell which part to use, and return numbers"
ONE_FUNCTION = "make one recursive function of them, with a parameter that tells which of the two it is"

# ------------------------------------------------------------------------------- while control flow is rewritten


class Call(ast.stmt):
    """``target = f(...)``: a call of the function itself, as a separate statement."""

    _fields = ("call",)
    target: str | None = None


class Jump(ast.stmt):
    """Continue at a label; at the end of the function if it is None."""

    _fields = ()
    label: int | None = None


class PushFrame(ast.stmt):
    """Call the function with these arguments, and continue at ``back`` with its result.

    If ``back`` is None the call is a tail call: its result is returned.
    """

    _fields = ("arguments",)
    back: int | None = None


class PopFrame(ast.stmt):
    """Return a value."""

    _fields = ("value",)


# ----------------------------------------------------------------------------------------- in the loop over blocks


class Enter(ast.Assign):
    """``block = label``: run the block of this label next."""

    label: int
    key: str


class Block(ast.If):
    """The block of a label in the chain of all blocks; the last one has no ``orelse``.

    A block that is never entered, since a condition is constant, is left out: it may use undefined variables.
    """

    label: int
    key: str


class Stack(ast.Assign):
    """``stack = Slots()``, if anything is saved in it."""

    key: str


class Slots(ast.expr):
    """A stack with a slot for each frame, whose type is that of the saved values."""

    _fields = ()
    key: str
    room: int


class Slot(ast.expr):
    """The value in one frame of a stack."""

    _fields = ("stack", "frame")


class Save(ast.stmt):
    """``stack[frame] = value``; ``name`` describes the value to users, ``given`` is its type if it is an argument."""

    _fields = ("stack", "frame", "value")
    key: str
    name: str
    given: Any = None
    is_result = False
    entry: tuple[str, int] | None = None  # the block that can be entered because of it


class Grow(ast.stmt):
    """Make room in the stacks for a frame and the next one."""

    _fields = ("stacks", "frame")
    keys: list[str]


def enter(builder: Any, node: Enter) -> None:
    _note_entry(builder, node.key, node.label)
    statements.assign_statement(builder, node)


def _note_entry(builder: Any, key: str, label: int) -> None:
    builder.scope.kinds[key] = builder.scope.kinds.get(key, frozenset()) | {label}


def block(builder: Any, node: Block) -> None:
    if node.label not in builder.scope.kinds.get(node.key, ()):
        builder.statements(node.orelse)
    elif node.orelse:
        statements.if_statement(builder, node)
    else:
        builder.statements(node.body)


def stack(builder: Any, node: Stack) -> None:
    if node.key in builder.scope.kinds:
        statements.assign_statement(builder, node)


def slots(builder: Any, node: Slots) -> Value:
    kind = builder.scope.kinds.get(node.key)
    if kind is None:
        raise Unknown
    length = ir.Const(node.room, types.intp)
    make = lambda dtype: array_values.new_array(builder, "frames", dtype, (length,))
    return sequences.of_columns(map(make, kind.items)) if isinstance(kind, Group) else make(kind)


def slot(builder: Any, node: Slot) -> Value:
    stack, frame = builder.any_value(node.stack), builder.scalar(node.frame)
    if is_listed(stack):
        return sequences.tuple_at(stack, frame)
    return ir.Load(stack, (frame,), stack.type.dtype)


def save(builder: Any, node: Save) -> None:
    value = builder.value(node.value)
    if node.entry is not None:
        _note_entry(builder, *node.entry)
    if node.is_result:
        value = statements.as_declared(value, builder.result_type)
    items = value.items if isinstance(value, Group) and value.cls is None else (value,)
    if not items or not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in items):
        _refuse(builder, node, value)
    kind = _declared_kind(builder, node, kind_of(value))
    known = builder.scope.kinds.get(node.key)
    merged = kind if known is None else merge_kinds(known, kind)
    if merged is None or not _keeps_value(node.given, merged):
        was, is_ = describe_kind(known if merged is None else node.given), describe_kind(kind)
        problem = f"{node.name} is {was} here and {is_} there, where '{builder.source.name}' calls itself"
        builder.fail(node, problem, "give it one type: convert it in the first call")
    builder.scope.kinds[node.key] = merged
    stack = builder.any_value(node.stack)
    frame = array_values.steady(builder, builder.scalar(node.frame))
    items = tuple(builder.temporary("value", v) for v in items) if len(items) > 1 else items
    for array, item in zip(stack.items if is_listed(stack) else (stack,), items, strict=True):
        builder.emit(ir.Store(array, (frame,), cast(item, array.type.dtype)))


def _refuse(builder: Any, node: Save, value: Value) -> None:
    itself = f"'{builder.source.name}' calls itself"
    if any(map(array_values.is_array, value.items if isinstance(value, Group) else (value,))):
        problem = f"{node.name} is an array (or a list) that differs from call to call, where {itself}"
        builder.fail(node, problem, OF_ARRAYS)
    problem = f"{node.name} is neither a number nor a tuple of numbers, where {itself}"
    builder.fail(node, problem, "pass it on unchanged, under its name")


def _declared_kind(builder: Any, node: Save, kind: Any) -> Any:
    """The type of an argument; all calls convert to the type that a signature declares."""
    given = node.given
    if not isinstance(given, types.Type) or not inference.is_scalar(given) or not isinstance(kind, types.Type):
        return kind
    declaration = declared(builder.function)
    if declaration is None or not declaration.signatures:
        return kind
    if inference.unify(given, kind) != inference.plain(given):
        problem = f"{node.name} is declared to be {given}, and is {kind} where '{builder.source.name}' calls itself"
        builder.fail(node, problem, "convert it in the call")
    return inference.plain(given)


def _keeps_value(given: Any, kind: Any) -> bool:
    """Return whether an argument keeps its value when it is converted to the common type of all calls."""
    if not isinstance(given, types.Type) or not isinstance(kind, types.Type) or inference.plain(given) == kind:
        return True
    return isinstance(given, types.Integer) and (kind == types.float64 or (given.signed and kind == types.int64))


def grow(builder: Any, node: Grow) -> None:
    two = ir.Const(2, types.intp)
    frame = array_values.steady(builder, cast(builder.scalar(node.frame), types.intp))
    room = builder.temporary("room", ir.Op("add", (frame, two), types.intp))
    for key, stack in zip(node.keys, node.stacks, strict=True):
        if key not in builder.scope.kinds:
            continue
        value = builder.any_value(stack)
        for array in value.items if is_listed(value) else (value,):
            builder.emit(ir.Grow(array, room))


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {Slots: slots, Slot: slot}
STATEMENTS: dict[type[ast.stmt], Callable[..., None]] = {
    Save: save,
    Grow: grow,
    Enter: enter,
    Block: block,
    Stack: stack,
}
