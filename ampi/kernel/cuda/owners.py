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

Elements = dict[Any, tuple[tuple[int, int], ...]]
"""The threads, by block and number, that store to elements."""
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
        self.interval = _intervals(body)
        self.stored: dict[str, list[tuple[int, Elements, frozenset[ir.Expr]]]] = {}
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
            self.compare(s, around)
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

    def compare(self, s: ir.Store, around: _Around) -> None:
        """Note two threads that store to one element here, or one here and another one in an earlier line."""
        name = s.array.name
        found = self.elements(s, around)
        if found is None:
            return
        elements, assumed = found
        here, mine = self.interval.get(id(s), -1), elements.copy()
        for threads in elements.values():
            if len(threads) > 1:
                self.found.append(Several(s.line, stem(name), (threads[0], threads[1])))
                return
        for interval, others, known in self.stored.get(name, ()):
            if any(negated(c) in known for c in assumed) or any(negated(c) in assumed for c in known):
                continue  # it is one or the other
            for key in mine.keys() & others.keys():
                for first, second in ((x, y) for x in others[key] for y in mine[key] if x != y):
                    if interval == here or first[0] != second[0]:
                        self.found.append(Several(s.line, stem(name), (first, second)))
                        return
        self.stored.setdefault(name, []).append((here, mine, assumed))

    def elements(self, s: ir.Store, around: _Around) -> tuple[Elements, frozenset[ir.Expr]] | None:
        """Return the elements to which threads store, with these, and the conditions that are assumed to hold; None if
        that does not follow from indices."""
        index = tuple(map(self.expanded, s.index))
        conditions = tuple(map(self.expanded, around.conditions))
        found: dict[Any, tuple[tuple[int, int], ...]] = {}
        assumed: set[ir.Expr] = set()
        for block, places in self.threads():
            outcomes = [self.holds(c, places, assumed) for c in conditions]
            if None in outcomes:
                return None
            if not all(outcomes):
                continue
            key = tuple(self.element(i, places) for i in index)
            if None in key:
                return None
            whose = (block,) if s.array.name in self.shared else ()
            equal = tuple(e for outcome in outcomes if isinstance(outcome, tuple) for e in outcome)
            key = (whose, key, equal)
            found[key] = (*found.get(key, ()), (block, places["rank"]))
        return found, frozenset(assumed)

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

    def holds(self, condition: ir.Expr, places: dict[str, int], assumed: set[ir.Expr]) -> Any:
        """Return whether a condition holds; None if that is not known.

        A limit that is the same for all threads is taken to be beyond the first threads, and a condition that is the
        same for all to hold.  For a number that is to be equal to one that all share, it is returned in a tuple.
        """
        value = evaluated(condition, {}, places)
        if value is not None:
            return bool(value)
        match condition:
            case ir.Op(name="and", args=args):
                return self.both([self.holds(e, places, assumed) for e in args])
            case ir.Op(name="not", args=(ir.Op(name="or", args=args),)):
                return self.both([self.holds(ir.Op("not", (e,), types.boolean), places, assumed) for e in args])
            case ir.Op(name="not", args=(ir.Op(name=name, args=args),)) if name in _OPPOSITE:
                return self.holds(ir.Op(_OPPOSITE[name], args, types.boolean), places, assumed)
            case ir.Op(name="lt" | "le", args=(one, limit)) | ir.Op(name="gt" | "ge", args=(limit, one)):
                if evaluated(one, {}, places) is not None and not self.of_grid.differs(limit):
                    return True
            case ir.Op(name="eq", args=(one, other)):
                for number, shared in ((one, other), (other, one)):
                    value = evaluated(number, {}, places)
                    if value is not None and not self.of_grid.differs(shared):
                        return ((str(shared), value),)
        if self.of_grid.differs(condition):
            return None
        assumed.add(condition)
        return True

    @staticmethod
    def both(outcomes: list[Any]) -> Any:
        """Return the outcome of two conditions that must hold both."""
        if None in outcomes or not all(outcomes):
            return None if None in outcomes else False
        return tuple(e for outcome in outcomes if isinstance(outcome, tuple) for e in outcome) or True


_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def negated(condition: ir.Expr) -> ir.Expr:
    """Return the opposite of a condition."""
    match condition:
        case ir.Op(name="not", args=(inner,)):
            return inner
        case ir.Op(name=name, args=args) if name in _OPPOSITE:
            return ir.Op(_OPPOSITE[name], args, types.boolean)
    return ir.Op("not", (condition,), types.boolean)


def _intervals(body: tuple[ir.Stmt, ...]) -> dict[int, int]:
    """Return for each store, by its identity, the number of barriers before it in the text."""
    found: dict[int, int] = {}
    count = 0
    for n in ir.walk(body):
        if isinstance(n, ir.Barrier):
            count += 1
        elif isinstance(n, ir.Store):
            found[id(n)] = count
    return found


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
