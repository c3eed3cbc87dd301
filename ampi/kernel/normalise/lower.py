"""Structured jumps (single exit): ``break``, ``continue`` and early ``return`` become conditions and flags.

Statements after a jump are moved into the branches that do not jump; a flag is tested only after a branch that may
jump.  A loop that may be left early becomes a ``While`` with a flag (a ``For`` gets an explicit counter).  Other
``For`` loops do not change.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast, constant
from ampi.kernel.ir.names import Names

TRUE, FALSE = ir.Const(True, types.boolean), ir.Const(False, types.boolean)


def lower(function: ir.Function, bounded: bool = False) -> ir.Function:
    """The function without ``Break`` and ``Continue``, with at most one ``Return``, which is its last statement.

    ``bounded``: a ``For`` that may be left early remains a ``For``, whose later iterations do nothing.
    """
    *body, last = function.body or (ir.Return(),)
    if isinstance(last, ir.Return) and not any(
        isinstance(n, (ir.Return, ir.Break, ir.Continue)) for n in ir.walk(tuple(body))
    ):
        return function
    return replace(function, body=_Lowering(function, bounded).run())


class _Lowering:
    def __init__(self, function: ir.Function, bounded: bool):
        self.function = function
        self.bounded = bounded
        self.fresh = Names.of(function).fresh
        self.results: tuple[ir.Var, ...] | None = None
        self.returned: ir.Var | None = None  # set inside a loop that a return leaves

    def flag(self, base: str) -> ir.Var:
        return ir.Var(self.fresh(base), types.boolean)

    def run(self) -> tuple[ir.Stmt, ...]:
        returns = [n for n in ir.walk(self.function.body) if isinstance(n, ir.Return)]
        values = returns[0].values if returns else ()
        at_end = self.function.body and self.function.body[-1] in returns
        if len(returns) == 1 and at_end:
            *body, last = self.function.body
            return (*self.block(tuple(body), _Exits()), last)
        arrays = [
            v if inference.is_array(v.type) and all(r.values[k] == v for r in returns) else None
            for k, v in enumerate(values)
        ]
        self.results = tuple(
            array if array is not None else ir.Var(self.fresh("result"), v.type)
            for array, v in zip(arrays, values, strict=True)
        )
        start = [ir.Assign(r, constant(0, r.type)) for r in self.results if inference.is_scalar(r.type)]
        exits = _Exits(returned=self.flag("returned") if _return_in_loop(self.function.body) else None)
        if exits.returned is not None:
            start.append(ir.Assign(exits.returned, FALSE))
        body = self.block(self.function.body, exits)
        return (*start, *body, ir.Return(self.results, line=returns[-1].line if returns else 0))

    def block(self, body: tuple[ir.Stmt, ...], exits: _Exits) -> tuple[ir.Stmt, ...]:
        """Lower a block, so that no jump is left in it."""
        result: list[ir.Stmt] = []
        for number, statement in enumerate(body):
            rest = body[number + 1 :]
            match statement:
                case ir.Break():
                    result.append(ir.Assign(exits.going, FALSE, line=statement.line))
                    return tuple(result)
                case ir.Continue():
                    return tuple(result)
                case ir.Return() if self.results is not None:
                    result.extend(self.return_values(statement, exits))
                    return tuple(result)
                case ir.If() if _jumps(statement):
                    result.extend(self.branch(statement, rest, exits))
                    return tuple(result)
                case ir.If():
                    result.append(
                        replace(
                            statement,
                            then=self.block(statement.then, exits),
                            orelse=self.block(statement.orelse, exits),
                        )
                    )
                case ir.For() | ir.While():
                    result.extend(self.loop(statement, exits))
                    if _has_return(statement):
                        result.extend(self.guarded(_not(exits.returned), rest, exits))
                        return tuple(result)
                case _:
                    result.append(statement)
        return tuple(result)

    def return_values(self, statement: ir.Return, exits: _Exits) -> list[ir.Stmt]:
        assignments: list[ir.Stmt] = []
        for target, value in zip(self.results, statement.values, strict=True):
            if target == value:
                continue
            make = ir.Alias(target, value, ()) if inference.is_array(value.type) else ir.Assign(target, value)
            assignments.append(replace(make, line=statement.line))
        if exits.returned is not None:
            assignments.append(ir.Assign(exits.returned, TRUE, line=statement.line))
        if exits.going is not None:
            assignments.append(ir.Assign(exits.going, FALSE, line=statement.line))
        return assignments

    def branch(self, statement: ir.If, rest: tuple[ir.Stmt, ...], exits: _Exits) -> list[ir.Stmt]:
        """An ``If`` that jumps, and the statements after it in the block."""
        if not rest:
            then, orelse = self.block(statement.then, exits), self.block(statement.orelse, exits)
            return [] if not then and not orelse else [replace(statement, then=then, orelse=orelse)]
        then_ends, else_ends = _always_jumps(statement.then), _always_jumps(statement.orelse)
        if then_ends or else_ends:
            then = statement.then if then_ends else (*statement.then, *rest)
            orelse = statement.orelse if else_ends else (*statement.orelse, *rest)
            return _tidy(replace(statement, then=self.block(then, exits), orelse=self.block(orelse, exits)))
        skip = self.flag("skip")
        marked = replace(statement, then=_with_flag(statement.then, skip), orelse=_with_flag(statement.orelse, skip))
        done = replace(marked, then=self.block(marked.then, exits), orelse=self.block(marked.orelse, exits))
        return [ir.Assign(skip, FALSE, line=statement.line), done, *self.guarded(_not(skip), rest, exits)]

    def guarded(self, condition: ir.Expr, rest: tuple[ir.Stmt, ...], exits: _Exits) -> list[ir.Stmt]:
        lowered = self.block(rest, exits)
        return [ir.If(condition, lowered, line=rest[0].line)] if lowered else []

    def loop(self, statement: Any, exits: _Exits) -> list[ir.Stmt]:
        leaves = _leaves_loop(statement.body)
        if not leaves:
            inner = _Exits(returned=exits.returned)
            return [replace(statement, body=self.block(statement.body, inner))]
        going = self.flag("going")
        inner = _Exits(going=going, returned=exits.returned)
        after = [ir.Assign(exits.going, ir.Op("and", (exits.going, _not(exits.returned)), types.boolean))]
        propagate = after if exits.going is not None and _has_return(statement) else []
        start = ir.Assign(going, TRUE, line=statement.line)
        if isinstance(statement, ir.While):
            condition = (
                going if statement.condition == TRUE else ir.Op("and", (going, statement.condition), types.boolean)
            )
            loop = replace(statement, condition=condition, body=self.block(statement.body, inner))
            return [start, loop, *propagate]
        if self.bounded:
            body = (ir.If(going, self.block(statement.body, inner), line=statement.line),)
            return [start, replace(statement, body=body), *propagate]
        return [start, *self.counted(statement, inner), *propagate]

    def counted(self, loop: ir.For, exits: _Exits) -> list[ir.Stmt]:
        """A ``For`` loop as a ``While`` loop with a counter."""
        type_ = loop.var.type
        counter = ir.Var(self.fresh(f"{loop.var.name}_next"), type_)
        before: list[ir.Stmt] = [ir.Assign(counter, cast(loop.start, type_), line=loop.line)]
        stop, step = loop.stop, loop.step
        if not isinstance(stop, ir.Const):
            stop = ir.Var(self.fresh(f"{loop.var.name}_stop"), stop.type)
            before.append(ir.Assign(stop, loop.stop, line=loop.line))
        if not isinstance(step, ir.Const):
            step = ir.Var(self.fresh(f"{loop.var.name}_step"), step.type)
            before.append(ir.Assign(step, loop.step, line=loop.line))
        below, above = (ir.Op(name, (counter, stop), types.boolean) for name in ("lt", "gt"))
        if isinstance(step, ir.Const):
            inside = below if step.value > 0 else above
        else:
            positive = ir.Op("gt", (step, ir.Const(0, types.int64)), types.boolean)
            inside = ir.Op("select", (positive, below, above), types.boolean)
        advance = ir.Op("add", (counter, step), types.int64)
        body = (
            ir.Assign(loop.var, counter, line=loop.line),
            ir.Assign(counter, cast(advance, type_), line=loop.line),
            *self.block(loop.body, exits),
        )
        condition = ir.Op("and", (exits.going, inside), types.boolean)
        return [*before, ir.While(condition, body, line=loop.line)]


class _Exits:
    """The flags that a jump changes: ``going`` of the innermost loop, ``returned`` of the function."""

    def __init__(self, going: ir.Var | None = None, returned: ir.Var | None = None):
        self.going = going
        self.returned = returned


def _jumps(node: Any) -> bool:
    """Return whether a node contains a jump out of its block (not counting a break of an inner loop)."""
    if isinstance(node, (ir.Break, ir.Continue, ir.Return)):
        return True
    if isinstance(node, ir.If):
        return any(_jumps(s) for s in (*node.then, *node.orelse))
    return isinstance(node, (ir.For, ir.While)) and _has_return(node)


def _always_jumps(body: tuple[ir.Stmt, ...]) -> bool:
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ir.If):
        return _always_jumps(last.then) and _always_jumps(last.orelse)
    return isinstance(last, (ir.Break, ir.Continue, ir.Return, ir.Raise))


def _leaves_loop(body: tuple[ir.Stmt, ...]) -> bool:
    """Return whether a break or return inside leaves the loop with this body."""
    for statement in body:
        if isinstance(statement, (ir.Break, ir.Return)):
            return True
        if isinstance(statement, ir.If) and (_leaves_loop(statement.then) or _leaves_loop(statement.orelse)):
            return True
        if isinstance(statement, (ir.For, ir.While)) and _has_return(statement):
            return True
    return False


def _has_return(node: Any) -> bool:
    return any(isinstance(n, ir.Return) for n in ir.walk(node))


def _return_in_loop(body: tuple[ir.Stmt, ...]) -> bool:
    return any(isinstance(n, (ir.For, ir.While)) and _has_return(n) for n in ir.walk(body))


def _with_flag(body: tuple[ir.Stmt, ...], skip: ir.Var) -> tuple[ir.Stmt, ...]:
    """Set the flag ``skip`` wherever a jump leaves this block."""
    result: list[ir.Stmt] = []
    for statement in body:
        if isinstance(statement, (ir.Break, ir.Continue, ir.Return)):
            result.append(ir.Assign(skip, TRUE, line=statement.line))
        if isinstance(statement, ir.If):
            statement = replace(
                statement, then=_with_flag(statement.then, skip), orelse=_with_flag(statement.orelse, skip)
            )
        elif isinstance(statement, (ir.For, ir.While)):
            statement = replace(statement, body=_with_flag_at_returns(statement.body, skip))
        result.append(statement)
    return tuple(result)


def _with_flag_at_returns(body: tuple[ir.Stmt, ...], skip: ir.Var) -> tuple[ir.Stmt, ...]:
    result: list[ir.Stmt] = []
    for statement in body:
        if isinstance(statement, ir.Return):
            result.append(ir.Assign(skip, TRUE, line=statement.line))
        if isinstance(statement, ir.If):
            statement = replace(
                statement,
                then=_with_flag_at_returns(statement.then, skip),
                orelse=_with_flag_at_returns(statement.orelse, skip),
            )
        elif isinstance(statement, (ir.For, ir.While)):
            statement = replace(statement, body=_with_flag_at_returns(statement.body, skip))
        result.append(statement)
    return tuple(result)


def _tidy(statement: ir.If) -> list[ir.Stmt]:
    """An ``If`` without an empty ``then``; nothing if both sides are empty."""
    if statement.then:
        return [statement]
    if not statement.orelse:
        return []
    return [replace(statement, condition=_not(statement.condition), then=statement.orelse, orelse=())]


_OPPOSITE = {"eq": "ne", "ne": "eq"}


def _not(condition: ir.Expr) -> ir.Expr:
    if isinstance(condition, ir.Op) and condition.name == "not":
        return condition.args[0]
    if isinstance(condition, ir.Op) and condition.name in _OPPOSITE:
        return replace(condition, name=_OPPOSITE[condition.name])
    return ir.Op("not", (condition,), types.boolean)
