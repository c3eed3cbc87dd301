"""Loops over the threads of a block, and over the blocks of a launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.cuda.fission import Phase
from ampi.kernel.frontend.base.cuda_names import WARP
from ampi.kernel.frontend.cuda.language import AXES, INT
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped

ZERO, ONE = ir.Const(0, INT), ir.Const(1, INT)
SHORT = 4
"""The most threads of a block along an axis that is short if it has few blocks."""
OF_LAUNCH = (*((f"blocks along {axis}",) for axis in AXES), ("bytes of shared memory",))
"""Paths of the additional arguments of a lowered kernel; arguments of users have no such paths."""


@dataclass(frozen=True)
class Geometry:
    """The geometry for which a kernel is lowered.

    Attributes
    ----------
    block : tuple of int
        Threads of a block along x, y and z.
    grid : tuple of bool
        True if there is more than one block along the axis.
    wide : tuple of bool
        True if there are enough blocks along the axis to distribute them to threads.
    dynamic : bool
        True if there is dynamic shared memory.
    """

    block: tuple[int, int, int]
    grid: tuple[bool, bool, bool]
    wide: tuple[bool, bool, bool]
    dynamic: bool

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def is_short(self, axis: int) -> bool:
        """Return whether an axis has too few threads to distribute them, as that of a vector's components."""
        return self.block[axis] <= SHORT and not self.wide[axis] and any(self.wide)


@dataclass(frozen=True)
class Launched:
    """The additional arguments of a lowered kernel: blocks along the axes, and bytes of dynamic shared memory."""

    blocks: tuple[ir.Var, ir.Var, ir.Var]
    shared: ir.Var

    @classmethod
    def of(cls, names: Names) -> Launched:
        x, y, z = (ir.Var(names.fresh(f"blocks_{a}"), INT) for a in AXES)
        return cls((x, y, z), ir.Var(names.fresh("shared_bytes"), INT))

    def arguments(self) -> tuple[ir.Argument, ...]:
        return tuple(ir.Argument(v.name, v.type, path) for v, path in zip((*self.blocks, self.shared), OF_LAUNCH))


def add(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return index_algebra.tidy(ir.Op("add", (a, b), INT))


def mul(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return index_algebra.tidy(ir.Op("mul", (a, b), INT))


class Places:
    """Indices of threads and blocks, in terms of loop variables."""

    def __init__(self, geometry: Geometry, launched: Launched) -> None:
        self.known: dict[str, ir.Expr] = {"threads": ir.Const(geometry.threads, INT), "shared": launched.shared}
        for k, axis in enumerate(AXES):
            size = ir.Const(geometry.block[k], INT)
            blocks = launched.blocks[k] if geometry.grid[k] else ONE
            self.known[f"blockDim.{axis}"], self.known[f"gridDim.{axis}"] = size, blocks
            self.known[f"gridsize.{axis}"] = mul(blocks, size)

    def with_blocks(self, blocks: Iterable[ir.Expr]) -> None:
        self.known.update({f"blockIdx.{axis}": b for axis, b in zip(AXES, blocks)})

    def with_threads(self, threads: tuple[ir.Expr, ...], geometry: Geometry) -> None:
        for axis, t in zip(AXES, threads):
            self.known[f"threadIdx.{axis}"] = t
            start = mul(self.known[f"blockIdx.{axis}"], self.known[f"blockDim.{axis}"])
            self.known[f"grid.{axis}"] = add(start, t)
        x, y, z = threads
        rank = add(x, mul(ir.Const(geometry.block[0], INT), add(y, mul(ir.Const(geometry.block[1], INT), z))))
        self.known["rank"] = rank
        one_warp = geometry.threads <= WARP
        self.known["laneid"] = rank if one_warp else ir.Op("mod", (rank, ir.Const(WARP, INT)), INT)

    def put_into(self, node: Any) -> Any:
        return mapped(node, self.value)

    def value(self, e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Op) and not e.args and e.name in self.known:
            return self.known[e.name]
        if isinstance(e, ir.Op) and e.name == "old":
            return e.args[0]
        return e


def over_blocks(
    body: tuple[ir.Stmt, ...], geometry: Geometry, launched: Launched, names: Names, parallel: bool
) -> tuple[ir.Stmt, ...]:
    """Return loops over the blocks of a launch, the outermost of them parallel, around the statements of a block."""
    places = Places(geometry, launched)
    blocks = [ir.Var(names.fresh(f"block_{a}"), INT) if g else ZERO for a, g in zip(AXES, geometry.grid)]
    places.with_blocks(blocks)
    inner = over_threads(body, geometry, places, names)
    axes = [k for k in range(3) if geometry.grid[k]]
    order = by_speed(body, [places_of_axis(axis) for axis in AXES], axes)
    outermost = next((k for k in reversed(order) if geometry.wide[k]), -1)
    order = [k for k in order if k != outermost] + [k for k in order if k == outermost]
    for k in order:
        is_outer = parallel and k == order[-1]
        axis, line = f"blockIdx.{AXES[k]}", _line(body)
        inner = (ir.For(counter(blocks[k]), ZERO, launched.blocks[k], ONE, inner, is_outer, line=line, axis=axis),)
    return inner


def over_threads(body: tuple[ir.Stmt, ...], geometry: Geometry, places: Places, names: Names) -> tuple[ir.Stmt, ...]:
    """Return the statements of a block, with phases as loops over its threads."""
    out: list[ir.Stmt] = []
    for s in body:
        match s:
            case Phase():
                out += phase(s, geometry, places, names)
                continue
            case ir.For():
                bounds = {n: places.put_into(getattr(s, n)) for n in ("start", "stop", "step")}
                s = replace(s, **bounds, body=over_threads(s.body, geometry, places, names))
            case ir.While():
                condition = places.put_into(s.condition)
                s = replace(s, condition=condition, body=over_threads(s.body, geometry, places, names))
            case ir.If():
                then, orelse = (over_threads(b, geometry, places, names) for b in (s.then, s.orelse))
                s = replace(s, condition=places.put_into(s.condition), then=then, orelse=orelse)
            case _:
                s = places.put_into(s)
        out.append(s)
    return tuple(out)


def phase(p: Phase, geometry: Geometry, places: Places, names: Names) -> tuple[ir.Stmt, ...]:
    threads = [ir.Var(names.fresh(f"t{a}"), INT) if n > 1 else ZERO for a, n in zip(AXES, geometry.block)]
    places.with_threads(tuple(threads), geometry)
    body = tuple(map(places.put_into, p.body))
    axes = [k for k in range(3) if geometry.block[k] > 1]
    for k in by_speed(p.body, [places_of_axis(axis) for axis in AXES], axes):
        size, axis = ir.Const(geometry.block[k], INT), f"threadIdx.{AXES[k]}"
        body = (ir.For(counter(threads[k]), ZERO, size, ONE, body, line=p.line, axis=axis),)
    return body


def places_of_axis(axis: str) -> frozenset[str]:
    """Return the names of the indices that vary along an axis."""
    return frozenset(f"{name}.{axis}" for name in ("threadIdx", "blockIdx", "grid"))


def by_speed(body: Any, places: list[frozenset[str]], axes: list[int]) -> list[int]:
    """Return the axes, first the one that most often is the last index of an array, directly or through variables."""
    values: dict[str, set[str]] = {}
    for s in ir.walk(body):
        if isinstance(s, ir.Assign):
            values.setdefault(s.target.name, set()).update(mentioned(s.value, values))
    count: Counter[int] = Counter()
    for n in ir.walk(body):
        if isinstance(n, (ir.Load, ir.Store, ir.Accumulate)) and n.index:
            names = mentioned(n.index[-1], values)
            count.update(k for k in axes if places[k] & names)
    first = max(axes, key=lambda k: (count[k], -k)) if axes else -1
    return [k for k in axes if k == first] + [k for k in axes if k != first]


def mentioned(e: ir.Expr, values: dict[str, set[str]]) -> set[str]:
    """Return the indices and variables in an expression, and those in the values of these variables."""
    found: set[str] = set()
    for n in ir.walk(e):
        if isinstance(n, ir.Op) and not n.args:
            found.add(n.name)
        elif isinstance(n, ir.Var):
            found |= {n.name, *values.get(n.name, ())}
    return found


def _line(body: tuple[ir.Stmt, ...]) -> int:
    return next((n.line for n in ir.walk(body) if isinstance(n, ir.Stmt) and n.line), 0)


def counter(place: ir.Expr) -> ir.Var:
    """Return the loop variable of an axis; it must have one."""
    assert isinstance(place, ir.Var)
    return place
