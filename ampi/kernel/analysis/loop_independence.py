"""Loop independence: loops whose iterations may run in any order, apart from the scalars that they carry."""

from __future__ import annotations

from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.ir.ssa import Loop, with_innermost_loops


def with_independent_loops(function: ir.Function) -> ir.Function:
    """Mark the innermost loops in which no iteration touches an element that another one writes."""
    accesses = tbr.collect(function)

    def marked(s: Loop) -> Loop:
        if s.condition is None and tbr.are_independent(s, accesses):
            return replace(s, independent=True)
        return s

    return replace(function, body=with_innermost_loops(function.body, marked))
