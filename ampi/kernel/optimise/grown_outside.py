"""Loop splitting for growing arrays: a loop that lengthens arrays becomes two, and only the outer one lengthens them.

::

    while going:                              while going:
        if len(a) < trip + 1:                     room = half as many again as trip + 1
            a = longer(a)                         if len(a) < room:
        a[trip] = x                    ->             a = longer(a)
        ...                                       while going and trip + 1 <= room:
        trip = trip + 1                               a[trip] = x
                                                      ...
                                                      trip = trip + 1

Where a name may be bound to another array, Numba counts references, which takes much longer than saving a number.  The
length that an array needs is known before an iteration if it is a sum of values at its beginning; other arrays are not
moved.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.names import Names

_INT = types.intp
_FIRST = 16  # initial capacity


def grown_outside(function: ir.Function) -> ir.Function:
    """A function of plain statements in which arrays grow outside the loops that fill them, where possible."""
    if not any(isinstance(s, ir.Grow) for s in ir.walk(function.body)):
        return function
    return replace(function, body=_block(function.body, Names.of(function)))


def _block(body: tuple[Stmt, ...], names: Names) -> tuple[Stmt, ...]:
    return tuple(_statement(s, names) for s in body)


def _statement(s: Stmt, names: Names) -> Stmt:
    s = ir.in_blocks(s, lambda block: _block(block, names))
    return _split(s, names) if isinstance(s, ir.While) else s


def _split(s: ir.While, names: Names) -> ir.While:
    if _is_split(s):
        return s
    bound = {t.target.name for t in ir.walk(s.body) if isinstance(t, (ir.Alloc, ir.Alias))}
    found: dict[Expr, list[Var]] = {}
    body = _without(s.body, {}, bound, found)
    if not found:
        return s
    before: list[Stmt] = []
    conditions = [s.condition]
    for size, arrays in found.items():
        room = Var(names.fresh("room"), _INT)
        half = Op("floordiv", (size, Const(2, _INT)), _INT)
        more = Op("add", (Op("add", (size, half), _INT), Const(_FIRST - 1, _INT)), _INT)
        before.append(ir.Assign(room, more, line=s.line))
        before += [ir.Grow(a, room, line=s.line) for a in arrays]
        conditions.append(Op("le", (size, room), types.boolean))
    both = functools.reduce(lambda a, b: Op("and", (a, b), types.boolean), conditions)
    return replace(s, body=(*before, ir.While(both, body, line=s.line)))


def _is_split(s: ir.While) -> bool:
    """Return whether a loop already has this form: it only makes room for an inner loop."""
    *before, last = s.body
    return isinstance(last, ir.While) and all(isinstance(t, (ir.Grow, ir.Assign)) for t in before)


Known = dict[str, "Expr | None"]  # variables that an iteration assigns, in terms of their values at its beginning


def _without(body: tuple[Stmt, ...], known: Known, bound: set[str], found: dict[Expr, list[Var]]) -> tuple[Stmt, ...]:
    """Statements without those that make room of a known size, whose arrays are added to ``found``."""
    out: list[Stmt] = []
    for s in body:
        match s:
            case ir.Grow(target=target, size=size):
                at_first = None if target.name in bound else _at_first(size, known)
                if at_first is not None:
                    arrays = found.setdefault(at_first, [])
                    if target not in arrays:
                        arrays.append(target)
                    continue
            case ir.Assign(target=target, value=value):
                known[target.name] = _at_first(value, known)
            case ir.If():
                sides = dict(known), dict(known)
                then = _without(s.then, sides[0], bound, found)
                s = replace(s, then=then, orelse=_without(s.orelse, sides[1], bound, found))
                known.update(dict.fromkeys(_assigned(s)))
            case ir.For() | ir.While() | ir.Custom():
                known.update(dict.fromkeys(_assigned(s)))
        out.append(s)
    return tuple(out)


def _assigned(s: Stmt) -> set[str]:
    targets = {t.target.name for t in ir.walk(s) if isinstance(t, ir.Assign)}
    outputs = {v.name for t in ir.walk(s) if isinstance(t, ir.Custom) for v in t.outputs}
    return targets | outputs | {t.var.name for t in ir.walk(s) if isinstance(t, ir.For)}


def _at_first(e: Expr, known: Known) -> Expr | None:
    """A sum of integers in terms of the variables at the beginning of the iteration; None for other values."""
    match e:
        case Const():
            return e if isinstance(e.type, types.Integer) else None
        case Var(name=name):
            return known.get(name, e) if isinstance(e.type, types.Integer) else None
        case Op(name="add" | "sub", args=(a, b)):
            first, second = _at_first(a, known), _at_first(b, known)
            return None if first is None or second is None else replace(e, args=(first, second))
    return None
