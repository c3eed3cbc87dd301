"""Destination forwarding: an operation on whole matrices writes directly into the array to which its result is copied.

::

    product = np.empty(...)                        if x_bar_is_new:
    np.dot(a, b, product)                              np.dot(a, b, x_bar)
    for i, j:                                      else:
        if x_bar_is_new:                   ->          product = np.empty(...)
            x_bar[i, j] = product[i, j]                np.dot(a, b, product)
        else:                                          for i, j:
            x_bar[i, j] += product[i, j]                   x_bar[i, j] += product[i, j]

Adjoints of matrix products spend most of their remaining time on such copies.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Size, Stmt, Var
from ampi.kernel.ir.ssa import ZERO, Branch, Loop, every, names_read, written


def with_destinations(function: ir.Function) -> ir.Function:
    """Remove matrices that are only copied once from a function in single assignment form."""
    if not any(isinstance(s, ir.Fill) for s in every(function.body)):
        return function
    uses: Counter[str] = Counter()
    for s in every(function.body):
        array = written(s)
        uses.update(names_read(s) | ({array.name} if array is not None else set()))
    return replace(function, body=_block(function.body, uses))


def _block(body: tuple[Stmt, ...], uses: Counter[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        s = ir.in_blocks(s, lambda block: _block(block, uses))
        out.append(s)
        match out[-3:]:
            case [ir.Alloc() as allocation, ir.Fill() as fill, Loop()] if allocation.target == fill.target:
                forwarded = _forwarded(allocation, fill, s)
                if uses[fill.target.name] == 3 and forwarded is not None:  # it is allocated, filled and copied
                    out[-3:] = [forwarded]
    return tuple(out)


def _forwarded(allocation: ir.Alloc, fill: ir.Fill, nest: Loop) -> Stmt | None:
    """``fill`` into the array to which ``nest`` copies all of the result; None if ``nest`` does anything else."""
    loops: list[Loop] = []
    body: tuple[Stmt, ...] = (nest,)
    while len(body) == 1 and isinstance(body[0], Loop):
        loops.append(body[0])
        body = body[0].body
    index = tuple(loop.var for loop in loops)
    value: Expr = ir.Load(fill.target, index, fill.target.type.dtype)
    match body:
        case [ir.Assign(target=target, value=loaded), s] if loaded == value:
            value = target
        case [s]:
            pass
        case _:
            return None
    flag, added = None, None
    match s:
        case Branch(condition=Var() as flag, then=(store,), orelse=(ir.Accumulate() as added,), joins=()):
            pass
        case store:
            pass
    if not (isinstance(store, ir.Store) and store.value == value and store.index == index):
        return None
    whole = all(_is_whole(loop, axis, store.array) for axis, loop in enumerate(loops))
    if not (whole and _can_be_filled(store.array, fill)):
        return None
    direct = replace(fill, target=store.array)
    if added is None:
        return direct
    if (added.array, added.index, added.value) != (store.array, index, value):
        return None
    adding: tuple[Stmt, ...] = (*body[:-1], added)
    for loop in reversed(loops):
        adding = (replace(loop, body=adding),)
    return Branch(flag, (direct,), (allocation, fill, *adding), (), line=fill.line)


def _can_be_filled(array: Var, fill: ir.Fill) -> bool:
    """Return whether an operation can write into this array."""
    kind, wanted = array.type, fill.target.type
    alike = (kind.dtype, kind.ndim, kind.layout) == (wanted.dtype, wanted.ndim, "C")
    return alike and array.name not in {a.name for a in fill.arguments}


def _is_whole(loop: Loop, axis: int, array: Var) -> bool:
    """Return whether a loop runs over a whole axis of an array, from the beginning."""
    plain = not loop.carried and loop.condition is None and not loop.parallel and loop.step == 1
    return plain and loop.start == ZERO and loop.stop == Size(array, axis, loop.stop.type)
