"""Reloading instead of recomputation: expensive values are read from a local array that holds them.

The adjoint recomputes each iteration.  If an iteration stored its values in an array that the enclosing iteration fills
as a whole, and nothing has overwritten them, a load replaces a function call or a whole loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Access, Accesses
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import TABLE
from ampi.kernel.ir.ssa import Loop, blocks, definitions, names_read

COSTLY = 20  # cost of an operation that is worth a load


@dataclass(frozen=True)
class Kept:
    """The place where a value is kept: array, index, and the statements after the value that compute the index."""

    array: Var
    index: tuple[Expr, ...]
    following: tuple[ir.Assign, ...] = ()


def find_kept(body: tuple[Stmt, ...], accesses: Accesses) -> dict[str, Kept]:
    """The places from which values can be read again, by the values' names."""
    access = {id(a.statement): a for of_array in accesses.of.values() for a in of_array}
    found: dict[str, Kept] = {}
    for block in _all_blocks(body):
        costly = _costly(block)
        for s in block:
            if not isinstance(s, ir.Store) or not isinstance(s.value, Var) or s.value.name not in costly:
                continue
            if s.array.name in accesses.home and s.array.type.dtype == s.value.type and _stays(access[id(s)], accesses):
                following = _following(block, s.value, s.index)
                if following is not None:
                    found.setdefault(s.value.name, Kept(s.array, s.index, following))
    return found


def _following(block: tuple[Stmt, ...], value: Var, index: tuple[Expr, ...]) -> tuple[ir.Assign, ...] | None:
    """The statements after a value in its block that compute an index; None if they are not all plain operations."""
    made = [{v.name for v in definitions(s)} for s in block]
    begin = next(k for k, names in enumerate(made) if value.name in names)
    needed = {i.name for i in index if isinstance(i, Var)}
    found: list[ir.Assign] = []
    for s, names in zip(reversed(block[begin:]), reversed(made[begin:])):
        if not needed & names:
            continue
        if not isinstance(s, ir.Assign) or not isinstance(s.value, Op) or value.name in names:
            return None
        needed |= set(names_read(s))
        found.insert(0, s)
    return tuple(found)


def _all_blocks(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    yield body
    for s in body:
        for block in blocks(s):
            yield from _all_blocks(block)


def _costly(block: tuple[Stmt, ...]) -> set[str]:
    """The values of operations in a block that need a costly function, or the results of a loop in it."""
    sources: set[str] = set()
    found: set[str] = set()
    for s in block:
        if isinstance(s, Loop):
            sources |= {v.name for v in definitions(s)}
        elif isinstance(s, ir.Assign) and isinstance(s.value, Op):
            if TABLE[s.value.name].cost >= COSTLY or names_read(s) & sources:
                sources.add(s.target.name)
                found.add(s.target.name)
    return found


def _stays(store: Access, accesses: Accesses) -> bool:
    """Return whether the element still holds the value at the end of the iteration that allocates the array."""
    name = store.array.name
    depth = len(accesses.home[name])
    if len(store.loops) <= depth:
        return False
    return not any(tbr.may_reach(store, w, depth, accesses) for w in accesses.writes(name))
