"""Elements that several threads of a launch store: one of the stores counts, and its thread owns the adjoint.

CUDA lets any of the threads win.  Where all threads store to one element, only the last one does so in the lowered
form.  Where several, but perhaps not all, store to one element, and that follows from their indices, it is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.constants import evaluated, is_exact
from ampi.kernel.cuda.loops import Geometry
from ampi.kernel.cuda.uniformity import OF_BLOCKS, Uniformity, analyse, assigned
from ampi.kernel.frontend.base.cuda_names import WARP
from ampi.kernel.frontend.cuda.language import AXES, INT, place
from ampi.kernel.ir.names import stem
from ampi.kernel.ir.rewrite import mapped

MOST = 64
"""Threads of a block whose indices are compared."""


@dataclass(frozen=True)
class Several:
    """A line in which two threads store to the same element of an array; the threads are given by block and number."""

    line: int
    array: str
    threads: tuple[tuple[int, int], tuple[int, int]]

    @property
    def in_one_block(self) -> bool:
        """True if the threads belong to one block."""
        (first, _), (second, _) = self.threads
        return first == second

    def __str__(self) -> str:
        first, second = (f"thread {thread} of block {block}" for block, thread in self.threads)
        return (
            f"line {self.line}: {first} and {second} store to the same element of '{self.array}', so that its "
            "derivative may be counted more than once; let one of them store it, by a condition on the thread's index"
        )


def with_owners(
    body: tuple[ir.Stmt, ...], geometry: Geometry, arguments: frozenset[str]
) -> tuple[tuple[ir.Stmt, ...], list[Several]]:
    """Return statements of a thread in which only the last one stores what all store, and what else was found."""
    if geometry.threads == 1 and not any(geometry.grid):
        return body, []
    owners = _Owners(body, geometry, arguments)
    return owners.block(body, _Around()), owners.found


@dataclass(frozen=True)
class _Around:
    """The control flow around a statement: its conditions, and whether threads or blocks differ in it."""

    conditions: tuple[ir.Expr, ...] = ()
    differs: bool = False
    blocks_differ: bool = False
    in_loop: bool = False


class _Owners:
    def __init__(self, body: tuple[ir.Stmt, ...], geometry: Geometry, arguments: frozenset[str]) -> None:
        self.geometry, self.arguments = geometry, arguments
        self.of_block: Uniformity = analyse(body)
        shared = {s.target.name for s in ir.walk(body) if isinstance(s, ir.Alloc) and s.shared}
        self.of_grid: Uniformity = analyse(body, OF_BLOCKS, frozenset(shared))
        self.found: list[Several] = []
        views = {s.array.name for s in ir.walk(body) if isinstance(s, (ir.Alias, ir.View))}
        loaded = {n.array.name for n in ir.walk(body) if isinstance(n, ir.Load)}
        changed = {n.array.name for n in ir.walk(body) if isinstance(n, ir.Accumulate)}
        self.shared = shared - views
        self.stored_only = (arguments | shared) - loaded - changed - views
        self.apart = self.shared - self.stored_only if not changed & shared else set()
        self.between = _loads_between_barriers(body)
        counts = Counter(v.name for v in assigned(body))
        self.values = {
            s.target.name: s.value
            for s in ir.walk(body)
            if isinstance(s, ir.Assign) and counts[s.target.name] == 1 and is_exact(s.target.type)
        }

    def block(self, body: tuple[ir.Stmt, ...], around: _Around) -> tuple[ir.Stmt, ...]:
        return tuple(self.statement(s, around) for s in body)

    def inside(self, around: _Around, *controls: ir.Expr, condition: ir.Expr | None = None) -> _Around:
        more = () if condition is None else (condition,)
        return _Around(
            (*around.conditions, *more),
            around.differs or any(map(self.of_block.differs, controls)),
            around.blocks_differ or any(map(self.of_grid.differs, controls)),
            around.in_loop or condition is None,
        )

    def statement(self, s: ir.Stmt, around: _Around) -> ir.Stmt:
        match s:
            case ir.If(condition=condition):
                negated = ir.Op("not", (condition,), types.boolean)
                then = self.block(s.then, self.inside(around, condition, condition=condition))
                orelse = self.block(s.orelse, self.inside(around, condition, condition=negated))
                return replace(s, then=then, orelse=orelse)
            case ir.For():
                return replace(s, body=self.block(s.body, self.inside(around, s.start, s.stop, s.step)))
            case ir.While():
                return replace(s, body=self.block(s.body, self.inside(around, s.condition)))
            case ir.Store(atomic=False) if s.array.name in self.arguments | self.shared:
                if isinstance(s.array.type.dtype, (types.Float, types.Complex)) and not isinstance(s.value, ir.Const):
                    return self.store(s, around)
        return s

    def store(self, s: ir.Store, around: _Around) -> ir.Stmt:
        name = s.array.name
        if around.differs or self.of_block.differs(s.index):
            threads = self.meeting(s, around)
            if threads is not None:
                self.found.append(Several(s.line, stem(name), threads))
            return s
        is_free = name in self.stored_only or (
            name in self.apart and not around.in_loop and name not in self.between.get(id(s), {name})
        )
        if not is_free:
            return s
        of_blocks = name in self.arguments and not (around.blocks_differ or self.of_grid.differs(s.index))
        conditions = self.last_thread(of_blocks)
        return ir.If(conditions, (s,), (), line=s.line) if conditions is not None else s

    def last_thread(self, of_blocks: bool) -> ir.Expr | None:
        """Return the condition for the last thread of a block, or of the launch; None if there is only one."""
        found: list[ir.Expr] = []
        for k, axis in enumerate(AXES):
            if of_blocks and (self.geometry.grid[k] or self.geometry.block[k] > 1):
                last = ir.Op("sub", (place(f"gridsize.{axis}"), ir.Const(1, INT)), INT)
                found.append(ir.Op("eq", (place(f"grid.{axis}"), last), types.boolean))
            elif self.geometry.block[k] > 1:
                last_one = ir.Const(self.geometry.block[k] - 1, INT)
                found.append(ir.Op("eq", (place(f"threadIdx.{axis}"), last_one), types.boolean))
        if not found:
            return None
        condition, *rest = found
        for more in rest:
            condition = ir.Op("and", (condition, more), types.boolean)
        return condition

    # ------------------------------------------------------------------------------- stores that threads compute alone

    def meeting(self, s: ir.Store, around: _Around) -> tuple[tuple[int, int], tuple[int, int]] | None:
        """Return two threads that store to one element; None if it does not follow from their indices."""
        index = tuple(map(self.expanded, s.index))
        conditions = tuple(map(self.expanded, around.conditions))
        seen: dict[Any, tuple[int, int]] = {}
        for block, places in self.threads():
            holds = [self.holds(c, places) for c in conditions]
            if None in holds:
                return None
            if not all(holds):
                continue
            key = tuple(self.element(i, places) for i in index)
            if None in key:
                return None
            if s.array.name in self.shared:
                key = (block, *key)
            thread = block, places["rank"]
            if key in seen:
                return seen[key], thread
            seen[key] = thread
        return None

    def threads(self) -> Iterator[tuple[int, dict[str, int]]]:
        """Iterate over the first threads of a launch: the number of the block, and the values of their indices."""
        x, y, z = self.geometry.block
        blocks = 2 if self.geometry.grid[0] and x * y * z <= MOST else 1
        for block in range(blocks):
            for rank in range(min(x * y * z, MOST)):
                thread = rank % x, rank // x % y, rank // (x * y)
                places = {"rank": rank, "laneid": rank % WARP, "threads": x * y * z}
                for k, axis in enumerate(AXES):
                    at = block if k == 0 else 0
                    places[f"threadIdx.{axis}"], places[f"blockIdx.{axis}"] = thread[k], at
                    places[f"blockDim.{axis}"] = self.geometry.block[k]
                    places[f"grid.{axis}"] = at * self.geometry.block[k] + thread[k]
                yield block, places

    def expanded(self, e: ir.Expr, depth: int = 0) -> ir.Expr:
        """Return an integer or a condition in terms of indices of the thread."""

        def change(n: ir.Expr) -> ir.Expr:
            value = self.values.get(n.name) if isinstance(n, ir.Var) and depth < 20 else None
            return n if value is None else self.expanded(value, depth + 1)

        return mapped(e, change)  # type: ignore[no-any-return]

    def element(self, index: ir.Expr, places: dict[str, int]) -> Any:
        """Return the index of an element, which may be unknown if it is the same for all threads; else None."""
        value = evaluated(index, {}, places)
        return index if value is None and not self.of_grid.differs(index) else value

    def holds(self, condition: ir.Expr, places: dict[str, int]) -> bool | None:
        """Return whether a condition holds; a limit that is the same for all threads is beyond the first threads."""
        value = evaluated(condition, {}, places)
        if value is not None:
            return bool(value)
        match condition:
            case ir.Op(name="and", args=(first, second)):
                both = self.holds(first, places), self.holds(second, places)
                return None if None in both else all(both)
            case ir.Op(name="not", args=(ir.Op(name="or", args=(first, second)),)):
                parts = [self.holds(ir.Op("not", (e,), types.boolean), places) for e in (first, second)]
                return None if None in parts else all(parts)
            case ir.Op(name="not", args=(ir.Op(name=name, args=(first, second)),)) if name in _OPPOSITE:
                return self.holds(ir.Op(_OPPOSITE[name], (first, second), types.boolean), places)
            case ir.Op(name="lt" | "le", args=(one, limit)) | ir.Op(name="gt" | "ge", args=(limit, one)):
                if evaluated(one, {}, places) is not None and not self.of_grid.differs(limit):
                    return True
        return None if self.of_grid.differs(condition) else True


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def _loads_between_barriers(body: tuple[ir.Stmt, ...]) -> dict[int, set[str]]:
    """Return for each store, by its identity, the arrays of which elements are loaded between the same barriers."""
    found: dict[int, set[str]] = {}
    loads: set[str] = set()
    for n in ir.walk(body):
        if isinstance(n, ir.Barrier):
            loads = set()
        elif isinstance(n, ir.Load):
            loads.add(n.array.name)
        elif isinstance(n, ir.Store):
            found[id(n)] = loads
    return found
