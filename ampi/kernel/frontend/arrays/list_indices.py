"""Indices of lists and tuples: an IndexError where they are out of range, as in Python and Numba.

Indices of arrays are not checked, see `ampi.kernel.runtime.bounds`.
"""

from __future__ import annotations

from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.intrinsics import cast


def within(builder: Any, index: ir.Expr, size: ir.Expr, text: str) -> ir.Expr:
    """The index, with a check unless it is known to be in range; negative ones count from the end."""
    if "prange" in builder.loops:  # threads raise no exceptions
        return index
    wide = cast(index, types.intp)
    is_below = index_algebra.is_not_negative(
        index_algebra.sub(size, index_algebra.add(wide, ir.Const(1, types.intp))), builder.lowest, builder.ends
    )
    lowest = index_algebra.lowest(index, builder.lowest)
    is_natural = lowest is not None and lowest >= 0
    if is_below and is_natural:
        return index
    index = array_values.steady(builder, index)
    wide = cast(index, types.intp)
    low = ir.Const(0, types.intp) if is_natural else index_algebra.sub(ir.Const(0, types.intp), size)
    beyond = ir.Op("ge", (wide, size), types.boolean)
    before = ir.Op("lt", (wide, low), types.boolean)
    wrong = beyond if is_natural else before if is_below else ir.Op("or", (before, beyond), types.boolean)
    array_values.refuse(builder, wrong, text, error="IndexError")
    return index
