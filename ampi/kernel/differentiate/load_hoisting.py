"""Load hoisting: a load that is made on both sides of a branch, or after it anyway, is moved before the branch.

The branch can then become a selection, and its loop can be vectorised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Stmt, Var
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.ssa import Branch, blocks, definitions, every, written


def loads_before_branches(function: ir.Function) -> ir.Function:
    """Hoist loads that are made on both sides of a branch, or after it anyway, in single assignment form."""
    return replace(function, body=_block(function.body))


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    rest = list(body)
    while rest:
        s = ir.in_blocks(rest.pop(0), _block)
        if isinstance(s, Branch):
            moved, names = _common_loads(s, rest)
            if moved:
                removed = set(names)
                s, *rest = substitute((_without(s, removed), *(t for t in rest if not _defines(t, removed))), names)
                out += moved
        out.append(s)
    return tuple(out)


def _common_loads(s: Branch, rest: list[Stmt]) -> tuple[list[Stmt], dict[str, Expr]]:
    """The loads to move before a branch, and the names that their values had.

    Of several names, that of the load after the branch stays, since statements around the block may use it.
    """
    inside = {v.name for t in every((s,)) for v in definitions(t)}
    then, orelse, later = _loads(s.then), _loads(s.orelse), _loads(tuple(rest))
    written_in = {w.name for t in every((s,)) if (w := written(t)) is not None}
    moved: list[Stmt] = []
    names: dict[str, Expr] = {}
    for key in {**then, **orelse}:
        array, index = key
        sides = (then, orelse) if array in written_in else (later, then, orelse)
        equal = [loads[key] for loads in sides if key in loads]
        if len(equal) < 2:
            continue
        if any(isinstance(i, Var) and i.name in inside for i in index):
            continue
        moved.append(equal[0])
        names |= {t.target.name: equal[0].target for t in equal}
    return moved, names


def _loads(body: tuple[Stmt, ...]) -> dict[Any, ir.Assign]:
    """The loads that a block always makes before it writes to their array."""
    found: dict[Any, ir.Assign] = {}
    stored: set[str] = set()
    for t in body:
        match t:
            case ir.Assign(value=ir.Load(array=array, index=index)) if array.name not in stored:
                found.setdefault((array.name, index), t)
        for u in every((t,)) if blocks(t) else (t,):
            if (w := written(u)) is not None:
                stored.add(w.name)
    return found


def _without(s: Branch, names: set[str]) -> Branch:
    def kept(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(t for t in body if not _defines(t, names))

    return replace(s, then=kept(s.then), orelse=kept(s.orelse))


def _defines(t: Stmt, names: set[str]) -> bool:
    return isinstance(t, ir.Assign) and t.target.name in names
