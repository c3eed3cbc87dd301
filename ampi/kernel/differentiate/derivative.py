"""Derivative programs, and the facts about them that a tape needs."""

from __future__ import annotations

from dataclasses import dataclass

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.remarks import Remark
from ampi.kernel.ir.ssa import every


@dataclass(frozen=True)
class Derivative:
    """A derivative program of a kernel, and the facts about it that a tape needs.

    ``function`` takes these arguments:

    * the leaves of the kernel's arguments;
    * one shadow array for each of ``shadows`` (names of array arguments, active on entry or made so by the kernel);
    * one seed for each active leaf of the result;
    * for each array argument in ``after``, its values after the call, which the program reads;
    * for each array of indices in ``distinct``, True if all its elements differ and none is negative;
    * for each array in ``new``, True if its shadow is new, with undefined elements.

    ``needs`` are the array arguments whose values before the call it reads; ``reads`` and ``writes`` are the arrays
    that the kernel itself reads and writes; ``becomes_active`` are array arguments that are passive on entry and active
    after the call; ``result_active`` has True for each leaf of the result that depends on an active argument.  ``ends``
    are array arguments whose shadow it only reads, because the values before the call have no adjoint.  ``saves``: it
    runs forward first and saves values.
    """

    function: ir.Function
    needs: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]
    becomes_active: frozenset[str]
    result_active: tuple[bool, ...]
    shadows: tuple[str, ...]
    scalars: tuple[str, ...]
    distinct: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    saves: bool = False


@dataclass(frozen=True)
class Split:
    """A program that runs the kernel and saves what the adjoint needs, and the adjoint that continues from there.

    ``forward`` takes the kernel's argument leaves; it returns the kernel's results and then the saved values.
    ``derivative`` is like that of an adjoint, except that its function takes the saved values after all others.
    """

    forward: ir.Function
    derivative: Derivative


def arrays_read(function: ir.Function) -> frozenset[str]:
    """The arrays whose elements a function reads."""
    found = set()
    for s in every(function.body):
        if isinstance(s, ir.Assign) and isinstance(s.value, ir.Load):
            found.add(s.value.array.name)
        elif isinstance(s, ir.Accumulate):
            found.add(s.array.name)
        elif isinstance(s, ir.Fill):
            found |= {a.name for a in s.arguments}
        elif isinstance(s, ir.Alloc) and isinstance(s.fill, ir.Var) and isinstance(s.fill.type, types.Array):
            found.add(s.fill.name)
        elif isinstance(s, ir.Return):
            found |= {v.name for v in s.values if isinstance(v, ir.Var) and isinstance(v.type, types.Array)}
    return frozenset(found)
