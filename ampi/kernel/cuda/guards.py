"""Structured exits: statements after an early ``return`` of some threads are guarded, except barriers.

A thread that has returned waits at no barrier, and the others do not wait for it.  So the rest of the kernel becomes a
`Guard`, and not a branch: all threads that have not returned reach the barriers inside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.names import Names

TRUE, FALSE = ir.Const(True, types.boolean), ir.Const(False, types.boolean)


@dataclass(frozen=True)
class Guard(ir.If):
    """Statements for the threads for which a condition holds: barriers inside only synchronise these.

    ``returned``: the others have left the kernel (and not only this part of it).
    """

    returned: bool = True


def has_barrier(node: object) -> bool:
    return any(isinstance(n, ir.Barrier) for n in ir.walk(node))


def with_guards(body: tuple[ir.Stmt, ...], names: Names) -> tuple[ir.Stmt, ...]:
    """Guard the statements after an early return, if there is a barrier among them."""
    fresh: Callable[[], ir.Var] = lambda: ir.Var(names.fresh("there"), types.boolean)
    out: list[ir.Stmt] = []
    for number, s in enumerate(body):
        rest = body[number + 1 :]
        if isinstance(s, ir.Return):
            return tuple(out)
        if not (isinstance(s, ir.If) and _returns(s) and has_barrier(rest)):
            out.append(s)
            continue
        there = fresh()
        guarded = Guard(there, with_guards(rest, names), line=s.line)
        if isinstance(s.then[-1] if s.then else None, ir.Return) and not s.orelse and not _returns(s.then[:-1]):
            negated = ir.Op("not", (s.condition,), types.boolean)
            out.append(ir.Assign(there, negated, line=s.line))
            if s.then[:-1]:
                out.append(ir.If(ir.Op("not", (there,), types.boolean), s.then[:-1], line=s.line))
        else:
            out += [ir.Assign(there, TRUE, line=s.line), *_marked((s,), there)]
        return (*out, guarded)
    return tuple(out)


def _returns(node: object) -> bool:
    """Return whether statements contain a return outside their loops."""
    if isinstance(node, tuple):
        return any(map(_returns, node))
    if isinstance(node, ir.If):
        return _returns(node.then) or _returns(node.orelse)
    return isinstance(node, ir.Return)


def _marked(body: tuple[ir.Stmt, ...], there: ir.Var) -> tuple[ir.Stmt, ...]:
    """Replace returns by a flag, and guard the statements after them."""
    out: list[ir.Stmt] = []
    for number, s in enumerate(body):
        if isinstance(s, ir.Return):
            return (*out, ir.Assign(there, FALSE, line=s.line))
        if isinstance(s, ir.If) and _returns(s):
            out.append(replace(s, then=_marked(s.then, there), orelse=_marked(s.orelse, there)))
            rest = _marked(body[number + 1 :], there)
            return (*out, Guard(there, rest, line=s.line)) if rest else tuple(out)
        out.append(s)
    return tuple(out)
