"""Array privatization: a local array that every iteration of a loop fills is allocated in the loop.

Scratch memory is often allocated once, before the loop that uses it.  Where an iteration writes all elements before it
reads any, nothing passes through the array from one iteration to the next.  Allocated inside the loop, it is recomputed
with the iteration instead of being saved, and the iterations can be independent.  (``allocations`` takes the allocation
itself out of the loop again.)
"""

from __future__ import annotations

from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Size, Stmt, Var
from ampi.kernel.ir.ssa import ZERO, Custom, Loop, every, names_read, written


def with_private_arrays(function: ir.Function) -> ir.Function:
    """Move the allocations of a function (in single assignment form) as far into loops as possible."""
    return replace(function, body=_block(function.body))


def _block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    out = list(body)
    for s in body:
        if isinstance(s, ir.Alloc):
            _move(s, out)
    return tuple(ir.in_blocks(s, _block) for s in out)


def _move(s: ir.Alloc, body: list[Stmt]) -> None:
    """Move an allocation of a block into the only statement that uses the array, if that is a loop which allows it."""
    users = [k for k, t in enumerate(body) if t is not s and _uses(t, s.target.name)]
    if len(users) != 1:
        return
    loop = body[users[0]]
    if isinstance(loop, Loop) and not _is_used_whole(loop, s) and _is_filled(loop.body, s):
        body[users[0]] = replace(loop, body=(replace(s, fill=None), *loop.body))
        body.remove(s)


def _uses(t: Stmt, name: str) -> bool:
    return any(_touches(inner, name) for inner in every((t,)))


def _touches(t: Stmt, name: str) -> bool:
    target = written(t)
    return name in names_read(t) or (target is not None and target.name == name)


def _is_used_whole(loop: Loop, s: ir.Alloc) -> bool:
    """Return whether the array is used in any other way than element by element."""
    name = s.target.name
    for t in every(loop.body):
        match t:
            case Custom() | ir.Fill() | ir.Grow() | ir.Alloc() | ir.Return() if _touches(t, name):
                return True
    return False


def _is_filled(body: tuple[Stmt, ...], s: ir.Alloc) -> bool:
    """Return whether statements write all elements of the array before they read any."""
    for t in body:
        if _fills(t, s):
            return True
        if any(_reads_elements(inner, s.target.name) for inner in every((t,))):
            return False
    return False


def _reads_elements(t: Stmt, name: str) -> bool:
    match t:
        case ir.Assign(value=ir.Load(array=array)) | ir.Accumulate(array=array):
            return array.name == name
        case _:
            return False


def _fills(t: Stmt, s: ir.Alloc) -> bool:
    """Return whether a statement is a nest of loops that stores all elements of the array and reads none."""
    if any(_reads_elements(inner, s.target.name) for inner in every((t,))):
        return False
    counters: dict[Expr, Expr] = {}
    body: tuple[Stmt, ...] = (t,)
    for _ in s.shape:
        loops = [inner for inner in body if isinstance(inner, Loop) and _uses(inner, s.target.name)]
        if len(loops) != 1:
            return False
        loop = loops[0]
        if loop.condition is not None or loop.step != 1 or loop.start != ZERO:
            return False
        counters[loop.var] = loop.stop
        body = loop.body
    return any(
        isinstance(inner, ir.Store)
        and inner.array == s.target
        and set(inner.index) == set(counters)
        and all(_is_extent(counters[i], e, s.target, k) for k, (i, e) in enumerate(zip(inner.index, s.shape)))
        for inner in body
    )


def _is_extent(stop: Expr, extent: Expr, array: Var, axis: int) -> bool:
    return stop == extent or (isinstance(stop, Size) and stop.array == array and stop.axis == axis)
