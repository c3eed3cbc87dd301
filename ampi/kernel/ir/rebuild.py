"""Substitution in programs in single assignment form: copies of statements with other names or expressions."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.nodes import changed
from ampi.kernel.ir.ssa import Branch, Carried, Custom, Join, Loop, definitions, every


def rebuild(s: Stmt, expression: Any, variable: Any, block: Any) -> Stmt:
    """Apply functions to the expressions of a statement, the variables that it defines or writes, and its blocks."""
    many = lambda es: tuple(map(expression, es))
    match s:
        case ir.Assign():
            return changed(s, target=variable(s.target), value=expression(s.value))
        case ir.Store() | ir.Accumulate():
            return changed(s, array=variable(s.array), index=many(s.index), value=expression(s.value))
        case ir.Alloc():
            fill = None if s.fill is None else expression(s.fill)
            return changed(s, target=variable(s.target), shape=many(s.shape), fill=fill)
        case ir.Grow():
            return changed(s, target=variable(s.target), size=expression(s.size))
        case ir.Fill():
            return changed(s, target=variable(s.target), arguments=many(s.arguments))
        case ir.Return():
            return changed(s, values=many(s.values))
        case Loop():
            carried = tuple(Carried(variable(c.var), expression(c.init), expression(c.next)) for c in s.carried)
            condition = None if s.condition is None else variable(s.condition)
            return changed(s, var=variable(s.var), start=expression(s.start), stop=expression(s.stop),
                           carried=carried, condition=condition, body=block(s.body))  # fmt: skip
        case Branch():
            joins = tuple(Join(variable(j.var), expression(j.then), expression(j.orelse)) for j in s.joins)
            if isinstance(s, Custom):
                s = changed(s, arguments=many(s.arguments), results=many(s.results), residuals=many(s.residuals))
            return changed(
                s, condition=expression(s.condition), then=block(s.then), orelse=block(s.orelse), joins=joins
            )
        case ir.Launch():
            reduced = tuple(changed(r, var=variable(r.var), init=expression(r.init)) for r in s.reduced)
            return changed(s, start=expression(s.start), stop=expression(s.stop), arguments=many(s.arguments),
                           reduced=reduced, shared=many(s.shared),
                           reaches=tuple(changed(r, index=expression(r.index)) for r in s.reaches),
                           distinct=many(s.distinct),
                           temporaries={k: variable(v) for k, v in s.temporaries.items()})  # fmt: skip
        case ir.Raise():
            return s
    raise AssertionError(s)


def map_expression(e: Expr, change: Any) -> Expr:
    """An expression with ``change`` applied to its variables, arrays included; the same object if nothing changes."""
    match e:
        case Var():
            return change(e)
        case Op(args=args):
            new = tuple([map_expression(a, change) for a in args])
            return e if all(map(operator.is_, new, args)) else Op(e.name, new, e.type)
        case ir.Load(array=array, index=index):
            new_array, new = change(array), tuple([map_expression(i, change) for i in index])
            same = new_array is array and all(map(operator.is_, new, index))
            return e if same else replace(e, array=new_array, index=new)
        case Size(array=array):
            new_array = change(array)
            return e if new_array is array else replace(e, array=new_array)
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


def names_of(function: ir.Function) -> Names:
    """A source of names that are new to a program."""
    defined = {v.name for s in every(function.body) for v in definitions(s)}
    return Names(defined | {a.name for a in function.arguments})


def new_names(body: tuple[Stmt, ...], names: Names) -> dict[str, Expr]:
    """A new variable for every one that statements define."""
    new: dict[str, Expr] = {}
    for s in every(body):
        for v in definitions(s):
            if v.name not in new:
                new[v.name] = Var(names.fresh(v.name), v.type)
    return new


def instance(function: ir.Function, arguments: dict[str, Expr], names: Names) -> tuple[tuple[Stmt, ...], list[Expr]]:
    """The statements of a function in single assignment form for given arguments, and the values that it returns."""
    *body, last = function.body
    assert isinstance(last, ir.Return)
    new = {**new_names(tuple(body), names), **arguments}
    statements = tuple(_with_loop_names(s) for s in substitute(tuple(body), new))
    return statements, [map_expression(v, lambda v: new.get(v.name, v)) for v in last.values]


def at_line(body: tuple[Stmt, ...], line: int) -> tuple[Stmt, ...]:
    """Statements with another line number."""
    return tuple(replace(ir.in_blocks(s, lambda block: at_line(block, line)), line=line) for s in body)


def _with_loop_names(s: Stmt) -> Stmt:
    s = ir.in_blocks(s, lambda block: tuple(map(_with_loop_names, block)))
    return replace(s, name=s.var.name) if isinstance(s, Loop) else s
