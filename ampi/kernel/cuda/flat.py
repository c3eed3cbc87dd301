"""Kernels without barriers as loops over the grid: the division into blocks does not matter to them.

A condition around the whole kernel that limits the grid (``if i < n``) becomes the bound of the loop, and a grid-stride
loop whose iterations are independent becomes a loop over the iterations of all threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda import borders
from ampi.kernel.cuda.loops import ONE, ZERO, Geometry, Launched, Places, by_speed
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.frontend.cuda.language import AXES, INT, place
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped

GRID = tuple(place(f"grid.{a}") for a in AXES)
OF_BLOCKS = frozenset((*(f"{n}.{a}" for n in ("threadIdx", "blockIdx") for a in AXES), "rank", "laneid"))


def with_plain_places(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Return statements with ``grid.x`` instead of ``threadIdx.x + blockIdx.x * blockDim.x``, even across assignments.

    Integers that are computed once, from such indices and constants, are written where they are used.
    """
    counts = Counter(v.name for v in assigned(body))
    values: dict[str, ir.Expr] = {}

    def expanded(e: ir.Expr) -> ir.Expr:
        return values.get(e.name, e) if isinstance(e, ir.Var) else _plain(e)

    def visit(block: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in block:
            match s:
                case ir.Assign(target=target) if counts[target.name] == 1 and isinstance(target.type, types.Integer):
                    value = mapped(s.value, expanded)
                    if is_pure(value) and value.type == target.type:
                        values[target.name] = value
                        continue
                    s = replace(s, value=value)
                case ir.For():
                    bounds = {n: mapped(getattr(s, n), expanded) for n in ("start", "stop", "step")}
                    s = replace(s, **bounds, body=visit(s.body))
                case ir.While():
                    s = replace(s, condition=mapped(s.condition, expanded), body=visit(s.body))
                case ir.If():
                    s = replace(s, condition=mapped(s.condition, expanded), then=visit(s.then), orelse=visit(s.orelse))
                case ir.Assign():
                    s = replace(s, value=mapped(s.value, expanded))
                case _:
                    s = mapped(s, expanded)
            out.append(s)
        return tuple(out)

    return visit(body)


def _mentions_places(e: ir.Expr) -> bool:
    return any(isinstance(n, ir.Op) and not n.args for n in ir.walk(e))


def is_pure(e: ir.Expr) -> bool:
    """Return whether an expression contains only sizes of arguments, constants and indices of threads and blocks."""
    for n in ir.walk(e):
        if isinstance(n, ir.Load) or (isinstance(n, ir.Var) and inference.is_scalar(n.type)):
            return False
        if isinstance(n, ir.Op) and n.name not in ("add", "sub", "mul", "neg", "cast") and n.args:
            return False
    return True


def _plain(e: ir.Expr) -> ir.Expr:
    """Return an integer expression with indices in the grid instead of those in a block."""
    if not (isinstance(e, ir.Op) and e.name in ("add", "sub") and e.type == INT and _mentions_places(e)):
        return e
    total = index_algebra.as_sum(e)
    for axis in AXES:
        thread = place(f"threadIdx.{axis}")
        block, size = place(f"blockIdx.{axis}"), place(f"blockDim.{axis}")
        products = [ir.Op("mul", pair, INT) for pair in ((block, size), (size, block))]
        c = total.terms.get(thread)
        start = next((p for p in products if total.terms.get(p) == c), None)
        if c is not None and start is not None:
            total = total.without(thread).without(start).plus(index_algebra.Sum(0, {place(f"grid.{axis}"): c}))
    return index_algebra.as_expression(total)


def is_flat(body: tuple[ir.Stmt, ...]) -> bool:
    """Return whether no expression depends on the position of a thread in its block."""
    for n in ir.walk(body):
        if isinstance(n, ir.Barrier) or (isinstance(n, ir.Alloc) and n.shared):
            return False
        if isinstance(n, ir.Op) and n.name in OF_BLOCKS:
            return False
    return True


def over_grid(
    body: tuple[ir.Stmt, ...],
    geometry: Geometry,
    launched: Launched,
    names: Names,
    parallel: bool,
    divided: bool = True,
) -> tuple[ir.Stmt, ...]:
    """Return loops over all threads of a launch around the statements of one; ``divided`` at borders (`borders`)."""
    places = Places(geometry, launched)
    line = next((s.line for s in body if s.line), 0)
    extents = [places.known[f"gridsize.{a}"] for a in AXES]
    axes = [k for k in range(3) if geometry.grid[k] or geometry.block[k] > 1]
    strided = _shared_loop(body) if axes == [0] else None
    if strided is not None and parallel:
        loop = replace(strided[1], start=ZERO, step=ONE, parallel=True, axis="stride.x")
        return (*map(places.put_into, strided[0]), places.put_into(loop))
    threads = [ir.Var(names.fresh(f"i{a}"), INT) if k in axes else ZERO for k, a in enumerate(AXES)]
    places.known.update({g.name: t for g, t in zip(GRID, threads)})
    starts: list[ir.Expr] = [ZERO] * 3
    for k in axes:
        body, starts[k], extents[k] = _within(body, GRID[k], extents[k])
    body = tuple(map(places.put_into, body))
    order = by_speed(body, [frozenset((getattr(t, "name", ""),)) for t in threads], axes)
    around: list[ir.For] = []
    distributed = next((k for k in reversed(order) if not geometry.is_short(k)), order[-1]) if order else -1
    for k in reversed(order):
        start, stop = places.put_into(starts[k]), places.put_into(extents[k])
        is_parallel = parallel and k == distributed
        around.append(ir.For(threads[k], start, stop, ONE, (), is_parallel, line=line, axis=f"grid.{AXES[k]}"))  # type: ignore[arg-type]
    if divided:
        return borders.split(body, around, conjuncts, _bounds, names)
    return borders.plain(body, around)


# --------------------------------------------------------------------------------------------- bounds of a grid


def _within(body: tuple[ir.Stmt, ...], own: ir.Expr, extent: ir.Expr) -> tuple[tuple[ir.Stmt, ...], ir.Expr, ir.Expr]:
    """Return statements without an enclosing condition on the thread's index, and the range that it allows."""
    match body:
        case (ir.If(orelse=()) as s,):
            pass
        case _:
            return body, ZERO, extent
    start: ir.Expr = ZERO
    left: list[ir.Expr] = []
    for term in conjuncts(s.condition):
        low, high = _bounds(term, own)
        if low is None and high is None:
            left.append(term)
        if low is not None:
            start = low if start == ZERO else ir.Op("max", (start, low), INT)
        if high is not None:
            extent = ir.Op("min", (extent, high), INT)
    if len(left) == len(list(conjuncts(s.condition))):
        return body, ZERO, extent
    if not left:
        return s.then, start, extent
    condition = left[0]
    for term in left[1:]:
        condition = ir.Op("and", (condition, term), types.boolean)
    return (replace(s, condition=condition),), start, extent


NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}
SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def conjuncts(e: ir.Expr, negated: bool = False) -> Iterator[ir.Expr]:
    """Split a condition (or its negation) into the conditions of which it is the conjunction."""
    match e:
        case ir.Op(name="not", args=(inner,)):
            yield from conjuncts(inner, not negated)
        case ir.Op(name="and" | "or" as name, args=args) if (name == "and") != negated:
            for a in args:
                yield from conjuncts(a, negated)
        case ir.Op(name=name, args=(a, b)) if negated and name in NEGATED and _are_integers(a, b):
            yield ir.Op(NEGATED[name], (a, b), e.type)
        case _:
            yield ir.Op("not", (e,), types.boolean) if negated else e


def _are_integers(*expressions: ir.Expr) -> bool:
    return all(isinstance(e.type, types.Integer) for e in expressions)


def _bounds(e: ir.Expr, own: ir.Expr) -> tuple[ir.Expr | None, ir.Expr | None]:
    """Return the range of a thread's index in which a comparison is true; None for no bound."""
    match e:
        case ir.Op(name="lt" | "le" | "gt" | "ge" as name, args=(a, b)) if _are_integers(a, b):
            pass
        case _:
            return None, None
    if b == own:
        a, b, name = b, a, SWAPPED[name]
    if a != own:  # i + 1 < n
        rest = index_algebra.as_sum(ir.Op("sub", (b, a), INT))
        c = rest.terms.get(own)
        if c not in (1, -1):
            return None, None
        name = name if c == -1 else SWAPPED[name]
        b = index_algebra.as_expression(rest.without(own).times(-c))
    if not _is_fixed(b):
        return None, None
    match name:
        case "lt":
            return None, b
        case "le":
            return None, index_algebra.add(b, ONE)
        case "ge" if isinstance(b, ir.Const):
            return ir.Const(max(b.value, 0), INT), None
        case "gt" if isinstance(b, ir.Const):
            return ir.Const(max(b.value + 1, 0), INT), None
    return None, None


def _is_fixed(e: ir.Expr) -> bool:
    """Return whether an integer expression is equal in all threads: it has only sizes, arguments and constants."""
    differs = lambda n: isinstance(n, ir.Op) and not n.args and n.name not in _OF_LAUNCH
    return not any(isinstance(n, ir.Load) or differs(n) for n in ir.walk(e))


_OF_LAUNCH = frozenset(f"{n}.{a}" for n in ("blockDim", "gridDim", "gridsize") for a in AXES)


# --------------------------------------------------------------------------------------------- grid-stride loops


def _shared_loop(body: tuple[ir.Stmt, ...]) -> tuple[tuple[ir.Stmt, ...], ir.For] | None:
    """Return the single grid-stride loop of a kernel, if its iterations are independent, and the statements before it.

    These have the same values in all threads.
    """
    *before, loop = body or (None,)
    if not (isinstance(loop, ir.For) and loop.start == GRID[0] and loop.step == place("gridsize.x")):
        return None
    if not all(isinstance(s, ir.Assign) and _is_fixed(s.value) for s in before) or not _is_fixed(loop.stop):
        return None
    mine = {v.name for v in assigned(loop.body)}
    if any(isinstance(n, ir.Op) and not n.args and n.name not in _OF_LAUNCH for n in ir.walk(loop.body)):
        return None
    if mine & {v.name for v in assigned(tuple(before))} or not _sets_first(loop.body, set(), mine):
        return None
    written = {n.array.name for n in ir.walk(loop.body) if isinstance(n, (ir.Store, ir.Accumulate)) and not n.atomic}
    if any(isinstance(n, (ir.Alias, ir.View, ir.Elementwise, ir.Custom)) for n in ir.walk(loop.body)):
        return None
    local = {n.target.name for n in ir.walk(loop.body) if isinstance(n, ir.Alloc)}
    axis: dict[str, set[int]] = {}
    for n in ir.walk(loop.body):
        if isinstance(n, (ir.Load, ir.Store, ir.Accumulate)) and n.array.name in written - local:
            own = {k for k, i in enumerate(n.index) if i == loop.var}
            axis[n.array.name] = axis.get(n.array.name, own) & own
    return (tuple(before), loop) if all(axis.values()) else None


def _sets_first(body: tuple[ir.Stmt, ...], known: set[str], mine: set[str]) -> bool:
    """Return whether statements set each of these scalars before they read it."""

    def reads(node: Any) -> bool:
        return any(isinstance(n, ir.Var) and n.name in mine - known for n in ir.walk(node))

    for s in body:
        match s:
            case ir.Assign():
                if reads(s.value):
                    return False
                known.add(s.target.name)
            case ir.If():
                sides = [set(known), set(known)]
                if reads(s.condition) or not all(_sets_first(b, k, mine) for b, k in zip((s.then, s.orelse), sides)):
                    return False
                known |= sides[0] & sides[1]
            case ir.For():
                if reads((s.start, s.stop, s.step)) or not _sets_first(s.body, known | {s.var.name}, mine):
                    return False
            case ir.While():
                if reads(s.condition) or not _sets_first(s.body, set(known), mine):
                    return False
            case _:
                if reads(tuple(ir.children(s))):
                    return False
    return True
