"""Destruction of single assignment form: readable plain statements.

Four steps: the test of a factor moves into the selection of its product; values that are used once move into the
expression that uses them; names share a variable where they can (``s = s + f`` again, by which Numba also recognises a
reduction); joined and carried scalars become assignments.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.codegen.coalesce import share_names
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import is_nonzero_test
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import names_of, rebuild
from ampi.kernel.ir.ssa import INT, Branch, Loop, blocks, every, names_read, reads, written

MAX_OPERATIONS = 8


def destruct(function: ir.Function) -> ir.Function:
    """A function in single assignment form as plain statements of ``ir``."""
    body = nest(with_tests_inside(function.body))
    body = share_names(body)
    names = names_of(replace(function, body=body))
    return replace(function, body=_Plain(names).block(body))


# --------------------------------------------------------------------------------------------- nesting


def with_tests_inside(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Write a selection between a product and zero, and the test of its factor, as one operation, ``where_nonzero``:
    Numba types and lowers half as many statements."""
    tests = {s.target.name: s.value for s in every(body) if isinstance(s, ir.Assign) and isinstance(s.value, Op)}
    found: set[str] = set()

    def change(e: Expr) -> Expr:
        match e:
            case Op(name="select", args=(Var(name=name), x, Const(value=0) as zero), type=types.float64):
                test = tests.get(name)
                if test is not None and is_nonzero_test(test) and math.copysign(1, zero.value) > 0:
                    found.add(name)
                    return Op("where_nonzero", (test.args[0], x), e.type)
        return e

    def block(part: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(rebuild(s, change, lambda v: v, block) for s in part)

    body = block(body)
    uses = _uses(body)
    return _without(body, {name for name in found if not uses[name]})


def _without(body: tuple[Stmt, ...], names: set[str]) -> tuple[Stmt, ...]:
    """Statements without the assignments of these names."""
    kept = (s for s in body if not (isinstance(s, ir.Assign) and s.target.name in names))
    return tuple(ir.in_blocks(s, lambda block: _without(block, names)) for s in kept)


def nest(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Move values that are used once, later in the same block, into the expression that uses them."""
    return _nest_block(body, _uses(body))


def _uses(body: tuple[Stmt, ...]) -> Counter[str]:
    """The number of reads of each name."""
    uses = Counter(n.name for s in every(body) for e in reads(s) for n in ir.walk(e) if isinstance(n, Var))
    uses.update(s.condition.name for s in every(body) if isinstance(s, Loop) and s.condition is not None)
    return uses


def _nest_block(body: tuple[Stmt, ...], uses: Counter[str]) -> tuple[Stmt, ...]:
    pending: dict[str, Expr] = {}
    origin: dict[str, ir.Assign] = {}
    loaded: dict[str, set[str]] = {}  # the arrays that a pending value reads
    kept: list[Stmt] = []

    def settle(names: set[str]) -> None:
        """Write the assignments of values that cannot be moved any further."""
        for name in [n for n in pending if n in names]:
            kept.append(ir.changed(origin[name], value=pending.pop(name)))

    for s in body:
        array = written(s)
        changed = {array.name} if array is not None else set()
        for block in blocks(s):
            changed |= {w.name for inner in every(block) if (w := written(inner)) is not None}
        for inner in every((s,)):
            if isinstance(inner, ir.Launch):
                changed |= {a.name for a in inner.arguments if isinstance(a, Var)}
        s = _absorb(s, pending)
        if blocks(s):
            inside = {n for block in blocks(s) for inner in every(block) for n in names_read(inner)}
            settle(inside)
        settle(names_read(s))
        if changed:
            settle({n for n in pending if not loaded[n].isdisjoint(changed)})
        if isinstance(s, ir.Assign) and uses[s.target.name] == 1 and _may_move(s.value):
            pending[s.target.name] = s.value
            origin[s.target.name] = s
            loaded[s.target.name] = _arrays(s.value)
            continue
        kept.append(ir.in_blocks(s, lambda b: _nest_block(b, uses)))
    settle(set(pending))
    return tuple(kept)


def _may_move(value: Expr) -> bool:
    return isinstance(value, (Op, ir.Load)) and _operations(value) <= MAX_OPERATIONS


def _operations(e: Expr) -> int:
    return sum(isinstance(n, (Op, ir.Load)) for n in ir.walk(e))


def _arrays(e: Expr) -> set[str]:
    return {n.array.name for n in ir.walk(e) if isinstance(n, ir.Load)}


def _absorb(s: Stmt, pending: dict[str, Expr]) -> Stmt:
    """Replace names in a statement by pending values, as long as expressions stay short."""

    def change(e: Expr, room: list[int]) -> Expr:
        match e:
            case Var(name=name) if name in pending and _operations(pending[name]) <= room[0]:
                room[0] -= _operations(pending[name])
                return pending.pop(name)
            case Op(name="select", args=(condition, a, b)):
                new = (change(condition, room), _cheap(a, pending), _cheap(b, pending))
                return e if all(map(operator.is_, new, e.args)) else Op(e.name, new, e.type)
            case Op(args=args):
                new = tuple([change(a, room) for a in args])
                return e if all(map(operator.is_, new, args)) else Op(e.name, new, e.type)
            case ir.Load(index=index):
                new = tuple([change(i, room) for i in index])
                return e if all(map(operator.is_, new, index)) else ir.changed(e, index=new)
            case _:
                return e

    room = [MAX_OPERATIONS]
    if isinstance(s, ir.Launch):
        return s  # its text repeats an operand
    if isinstance(s, Loop):
        return ir.changed(s, start=change(s.start, room), stop=change(s.stop, room))
    if isinstance(s, Branch):
        return ir.changed(s, condition=change(s.condition, room))
    return rebuild(s, lambda e: change(e, room), lambda v: v, lambda b: b)


def _cheap(e: Expr, pending: dict[str, Expr]) -> Expr:
    """Move only a sign into the sides of a conditional expression, which are computed before it, without a branch."""
    if isinstance(e, Var) and isinstance(value := pending.get(e.name), Op) and value.name == "neg":
        if isinstance(value.args[0], (Var, Const)):
            return pending.pop(e.name)
    return e


# --------------------------------------------------------------------------------------------- plain statements


class _Plain:
    """Writes carried and joined scalars as assignments."""

    def __init__(self, names: Names) -> None:
        self.names = names

    def block(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            match s:
                case Loop():
                    out += self.loop(s)
                case Branch():
                    out.append(self.branch(s))
                case _:
                    out.append(s)
        return tuple(out)

    def loop(self, s: Loop) -> list[Stmt]:
        begin = self.moves([(c.var, c.init) for c in s.carried], s.line)
        body = self.block(s.body) + tuple(self.moves([(c.var, c.next) for c in s.carried], s.line))
        if s.condition is not None:
            return [*begin, ir.While(s.condition, body, line=s.line)]
        carried = tuple((c.var.name, "carried") for c in s.carried) if s.axis else ()
        facts: Any = {"parallel": s.parallel, "axis": s.axis, "reductions": carried, "line": s.line}
        return [*begin, ir.For(s.var, s.start, s.stop, Const(s.step, INT), body, **facts)]

    def branch(self, s: Branch) -> Stmt:
        then = self.block(s.then) + tuple(self.moves([(j.var, j.then) for j in s.joins], s.line))
        orelse = self.block(s.orelse) + tuple(self.moves([(j.var, j.orelse) for j in s.joins], s.line))
        condition = s.condition
        if not then and orelse:
            condition, then, orelse = Op("not", (condition,), types.boolean), orelse, ()
        return ir.If(condition, then, orelse, line=s.line)

    def moves(self, pairs: list[tuple[Var, Expr]], line: int) -> list[Stmt]:
        """Simultaneous assignments in an order, with copies where needed, that has the same effect."""
        pairs = [(v, e) for v, e in pairs if v != e]
        out: list[Stmt] = []
        while pairs:
            read = {e.name for _, e in pairs if isinstance(e, Var)}
            free = next((p for p in pairs if p[0].name not in read), None)
            if free is not None:
                pairs.remove(free)
                out.append(ir.Assign(*free, line=line))
                continue
            v = pairs[0][0]
            copy = Var(self.names.fresh(f"{v.name}_old"), v.type)
            out.append(ir.Assign(copy, v, line=line))
            pairs = [(w, copy if e == v else e) for w, e in pairs]
        return out
