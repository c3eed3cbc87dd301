"""Destination forwarding: an operation on whole matrices writes into the array that its result is copied to.

::

    product = np.empty(...)                        if x_bar_is_new:
    np.dot(a, b, product)                              np.dot(a, b, x_bar)
    for i, j:                                      else:
        if x_bar_is_new:                   ->          product = np.empty(...)
            x_bar[i, j] = product[i, j]                np.dot(a, b, product)
        else:                                          for i, j:
            x_bar[i, j] += product[i, j]                   x_bar[i, j] += product[i, j]

Most of what adjoints of products of matrices do besides the products is going through such arrays once more.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Size, Stmt, Var
from ampi.kernel.ir.rebuild import rebuild
from ampi.kernel.ir.ssa import ZERO, Branch, Loop, every, names_read, written


def with_destinations(function: ir.Function) -> ir.Function:
    """The function, in single assignment form, in which matrices that are copied once are not made."""
    if not any(isinstance(s, ir.Fill) for s in every(function.body)):
        return function
    uses: Counter[str] = Counter()
    for s in every(function.body):
        array = written(s)
        uses.update(names_read(s) | ({array.name} if array is not None else set()))
    return replace(function, body=_block(function.body, uses))


@dataclass(frozen=True)
class Copy:
    """A nest of loops that sets each element of ``target`` to that of another array, where ``flag`` is set (always if
    it is None), and otherwise does ``instead``, a nest as well."""

    target: Var
    flag: Expr | None
    instead: Stmt | None


def _block(body: tuple[Stmt, ...], uses: Counter[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        s = rebuild(s, lambda e: e, lambda v: v, lambda block: _block(block, uses))
        if isinstance(s, Loop) and len(out) > 1:
            made, fill = out[-2:]
            if isinstance(made, ir.Alloc) and isinstance(fill, ir.Fill) and made.target == fill.target:
                copy = _copy(s, fill, uses)
                if copy is not None:
                    out[-2:] = _forwarded(made, fill, copy)
                    continue
        out.append(s)
    return tuple(out)


def _forwarded(made: ir.Alloc, fill: ir.Fill, copy: Copy) -> tuple[Stmt, ...]:
    direct = replace(fill, target=copy.target)
    if copy.flag is None or copy.instead is None:
        return (direct,)
    return (Branch(copy.flag, (direct,), (made, fill, copy.instead), (), line=fill.line),)


def _copy(s: Loop, fill: ir.Fill, uses: Counter[str]) -> Copy | None:
    """What a nest is that does nothing but copy what ``fill`` has made, and nobody else reads."""
    if uses[fill.target.name] != 3:  # where it is allocated, filled and copied
        return None
    counters: list[Expr] = []
    around: list[Loop] = []
    body: tuple[Stmt, ...] = (s,)
    while len(body) == 1 and isinstance(body[0], Loop):
        loop = body[0]
        if loop.carried or loop.condition is not None or loop.parallel or loop.step != 1 or loop.start != ZERO:
            return None
        counters.append(loop.var)
        around.append(loop)
        body = loop.body
    value: Expr = ir.Load(fill.target, tuple(counters), fill.target.type.dtype)
    if len(body) == 2 and isinstance(body[0], ir.Assign) and body[0].value == value:
        named, body = body[0], body[1:]
        value = named.target
    else:
        named = None
    if len(body) != 1:
        return None
    flag, instead, store = None, None, body[0]
    if isinstance(store, Branch):
        if store.joins or len(store.then) != 1 or len(store.orelse) != 1 or not isinstance(store.condition, Var):
            return None
        flag, (store,), (instead,) = store.condition, store.then, store.orelse
        if not isinstance(instead, ir.Accumulate) or instead.value != value:
            return None
    if not (isinstance(store, ir.Store) and store.value == value and store.index == tuple(counters)):
        return None
    target = store.array
    if target.type.dtype != fill.target.type.dtype or target.type.ndim != len(counters) or target.type.layout != "C":
        return None
    if any(a.name == target.name for a in fill.arguments):
        return None
    if tuple(loop.stop for loop in around) != tuple(Size(target, k, loop.stop.type) for k, loop in enumerate(around)):
        return None
    if instead is None:
        return Copy(target, flag, None)
    inner: tuple[Stmt, ...] = (instead,) if named is None else (named, instead)
    for loop in reversed(around):
        inner = (replace(loop, body=inner),)
    return Copy(target, flag, inner[0])
