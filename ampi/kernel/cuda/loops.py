"""Loops over the threads of a block, and over the blocks of a launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.cuda.fission import Phase
from ampi.kernel.frontend.cuda.language import AXES, INT
from ampi.kernel.frontend.cuda.names import WARP
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped

ZERO, ONE = ir.Const(0, INT), ir.Const(1, INT)


@dataclass(frozen=True)
class Geometry:
    """What a kernel is lowered for.

    Attributes
    ----------
    block : tuple of int
        Threads of a block along x, y and z.
    grid : tuple of bool
        Whether there is more than one block along these.
    outermost : int
        The axis of the grid along which blocks run on threads.
    dynamic : bool
        Whether there is dynamic shared memory.
    """

    block: tuple[int, int, int]
    grid: tuple[bool, bool, bool]
    outermost: int
    dynamic: bool

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Launched:
    """The arguments that a lowered kernel takes besides: blocks along the axes, and bytes of dynamic shared memory."""

    blocks: tuple[ir.Var, ir.Var, ir.Var]
    shared: ir.Var

    @classmethod
    def of(cls, names: Names) -> Launched:
        x, y, z = (ir.Var(names.fresh(f"blocks_{a}"), INT) for a in AXES)
        return cls((x, y, z), ir.Var(names.fresh("shared_bytes"), INT))

    def arguments(self) -> tuple[ir.Argument, ...]:
        return tuple(ir.Argument(v.name, v.type, (v.name.partition("@")[0],)) for v in (*self.blocks, self.shared))


def add(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return index_algebra.tidy(ir.Op("add", (a, b), INT))


def mul(a: ir.Expr, b: ir.Expr) -> ir.Expr:
    return index_algebra.tidy(ir.Op("mul", (a, b), INT))


class Places:
    """What the places of threads are in terms of loop variables."""

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
    """Loops over the blocks of a launch, the outermost of them in parallel, around statements of a block."""
    places = Places(geometry, launched)
    blocks = [ir.Var(names.fresh(f"block_{a}"), INT) if g else ZERO for a, g in zip(AXES, geometry.grid)]
    places.with_blocks(blocks)
    inner = over_threads(body, geometry, places, names)
    axes = [k for k in range(3) if geometry.grid[k]]
    order = [geometry.outermost, *(k for k in reversed(axes) if k != geometry.outermost)] if axes else []
    for k in reversed(order):
        is_outer = parallel and k == geometry.outermost
        inner = (ir.For(blocks[k], ZERO, launched.blocks[k], ONE, inner, is_outer, line=_line(body)),)  # type: ignore[arg-type]
    return inner


def over_threads(body: tuple[ir.Stmt, ...], geometry: Geometry, places: Places, names: Names) -> tuple[ir.Stmt, ...]:
    """Statements of a block with loops over its threads for phases."""
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
    for t, n in zip(threads, geometry.block):
        if isinstance(t, ir.Var):
            body = (ir.For(t, ZERO, ir.Const(n, INT), ONE, body, line=p.line),)
    return body


def _line(body: tuple[ir.Stmt, ...]) -> int:
    return next((n.line for n in ir.walk(body) if isinstance(n, ir.Stmt) and n.line), 0)
