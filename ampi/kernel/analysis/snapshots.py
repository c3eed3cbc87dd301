"""Snapshots: one copy of an array at the beginning of an iteration, for several loads from it.

A time loop around a stencil loads each element of the field once for every neighbour.  If the field does not change
between the beginning of the time step and the loads, one copy of the part that they read is enough: it saves the state,
instead of a value for each load.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Access, Accesses, Source
from ampi.kernel.ir import Expr, Var
from ampi.kernel.ir.ssa import Loop, is_rectangular


@dataclass(frozen=True)
class Range:
    """The indices in one dimension: a loop's counter plus ``low`` to ``high``; without a loop ``low`` to ``high``."""

    loop: Loop | None
    low: int
    high: int


@dataclass(frozen=True)
class Snapshot:
    """A part of an array, saved at the beginning of each iteration of a loop (by name), for some loads (by target)."""

    array: Var
    loop: str
    ranges: tuple[Range, ...]
    loads: frozenset[str]


def find_snapshots(accesses: Accesses, sources: dict[str, Source]) -> list[Snapshot]:
    """The snapshots that take less memory than the loads saved one by one."""
    groups: dict[tuple, list[Access]] = defaultdict(list)
    for array, of_array in accesses.of.items():
        depth = len(accesses.home.get(array, ()))
        for a in of_array:
            if a.is_load and sources[a.statement.target.name] is Source.SAVED and len(a.loops) > depth + 1:
                groups[array, tuple(loop.name for loop in a.loops)].append(a)
    found = []
    for (array, _), loads in groups.items():
        depth = len(accesses.home.get(array, ()))
        loads = [a for a in loads if not changes_before(a, depth, accesses)]
        ranges = common_ranges(loads, depth, accesses) if len({a.index for a in loads}) > 1 else None
        if ranges is not None:
            names = frozenset(a.statement.target.name for a in loads)
            found.append(Snapshot(loads[0].array, loads[0].loops[depth].name, ranges, names))
    return found


def changes_before(load: Access, depth: int, accesses: Accesses) -> bool:
    """Return whether the element may have been written since the iteration of the outermost loop began."""
    return any(tbr.may_reach(w, load, depth + 1, accesses) for w in accesses.writes(load.array.name))


def common_ranges(loads: list[Access], depth: int, accesses: Accesses) -> tuple[Range, ...] | None:
    """The part of the array that loads in a nest of loops read; None unless it is a box that is known before them."""
    outermost, inner = loads[0].loops[depth], loads[0].loops[depth + 1 :]
    if outermost.condition is not None or not all(is_rectangular(loop, outermost) for loop in inner):
        return None
    ranges: list[Range] = []
    for dimension in range(loads[0].array.type.ndim):
        places = [place(a.index[dimension], inner, accesses) for a in loads]
        if any(p is None for p in places):
            return None
        offsets = [p[1] for p in places if p is not None]
        counters = {p[0].name if p[0] is not None else None for p in places if p is not None}
        if len(counters) > 1:
            return None
        ranges.append(Range(places[0][0], min(offsets), max(offsets)))  # type: ignore[index]
    used = [r.loop.name for r in ranges if r.loop is not None]
    return tuple(ranges) if len(used) == len(set(used)) == len(inner) else None


def place(index: Expr, inner: tuple[Loop, ...], accesses: Accesses) -> tuple[Loop | None, int] | None:
    """The loop on whose counter an index depends, and the offset from it."""
    form = tbr.affine(index, accesses)
    if not tbr.is_nonnegative(index, accesses):
        return None
    if not form.terms:
        return None, form.constant
    for loop in inner:
        if form.terms == {(loop.var.name, ""): 1}:
            return loop, form.constant
    return None
