"""Random numbers in kernels: a call stores the numbers that it draws in arrays, and derivative programs read them.

A kernel that draws random numbers has further arguments: for each type of number an array of them, in the order in
which they are drawn, then the random generators among its arguments.  The kernel itself (left) stores the numbers, and
derivative programs (right) read them::

    drawn[place] = draw_normal(place)
    z = drawn[place]                        z = drawn[place]
    place = place + 1                       place = place + 1
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ampi.kernel import ir
from ampi.kernel.ir.index_algebra import ZERO
from ampi.kernel.ir.intrinsics import DRAWS


def with_arguments(function: ir.Function) -> ir.Function:
    """A parsed kernel with its arrays of drawn numbers as arguments."""
    if not function.drawn:
        return function
    arguments = tuple(
        ir.Argument(d.array.name, d.array.type, ("random numbers", str(d.array.type.dtype)), ("drawn", d.place.name))
        for d in function.drawn
    )
    begin = tuple(ir.Assign(d.place, ZERO, line=function.first_line) for d in function.drawn)
    arguments = (*function.arguments, *arguments, *function.generators)
    return replace(function, arguments=arguments, body=(*begin, *function.body))


def arguments_of(function: ir.Function) -> list[ir.Argument]:
    """The arrays of drawn numbers among a kernel's arguments."""
    return [a for a in function.arguments if a.is_a("drawn")]


def draws(value: Any) -> bool:
    """Return whether an expression draws a number."""
    return isinstance(value, ir.Op) and value.name in DRAWS


def replayed(function: ir.Function) -> ir.Function:
    """A kernel that reads stored numbers instead of drawing them."""
    names = {a.name for a in arguments_of(function)}
    if not names:
        return function
    arguments = tuple(a for a in function.arguments if not a.is_a("generator"))
    return replace(function, arguments=arguments, body=_without(function.body, names))


def _without(body: tuple[ir.Stmt, ...], names: set[str]) -> tuple[ir.Stmt, ...]:
    found = []
    for s in body:
        if isinstance(s, ir.Store) and s.array.name in names:
            continue
        blocks = {f.name: getattr(s, f.name) for f in fields(s)}
        inner = {n: _without(b, names) for n, b in blocks.items() if isinstance(b, tuple) and _is_block(b)}
        found.append(replace(s, **inner) if inner else s)
    return tuple(found)


def _is_block(value: tuple[Any, ...]) -> bool:
    return bool(value) and isinstance(value[0], ir.Stmt)


def dtypes_of(function: ir.Function) -> tuple[str, ...]:
    """The dtypes of the arrays of drawn numbers."""
    return tuple(str(a.type.dtype) for a in arguments_of(function))
