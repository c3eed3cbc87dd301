"""Derivative programs, and what a tape has to know of them."""

from __future__ import annotations

from dataclasses import dataclass

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.remarks import Remark
from ampi.kernel.ir.ssa import every


@dataclass(frozen=True)
class Derivative:
    """A derivative program of a kernel and what the tape has to know of it.

    ``function`` takes the kernel's own argument leaves, then one shadow array for each of ``shadows`` (names of array
    arguments, active on entry or made so by the kernel), then one seed per active result leaf, then for each array of
    indices in ``distinct`` whether all its elements differ and none is negative.  ``needs`` are the
    array arguments whose values before the call it reads; ``reads`` and ``writes`` are what the kernel itself reads and
    writes; ``becomes_active`` are array arguments that are passive on entry and active after the call;
    ``result_active`` says for each result leaf whether it depends on an active argument.  ``after`` are array
    arguments whose values after the call it reads besides: it takes them behind the seeds.  ``ends`` are array
    arguments whose shadow it only reads, where the values before the call have no adjoint.  ``new`` are those of which
    it is told last of all whether the shadow is new and holds anything.  ``saves`` says whether it runs forward and
    saves values first.
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
    """A program that does what a kernel does and saves what the adjoint needs, and the adjoint that goes on from there.

    ``forward`` takes the kernel's argument leaves; it returns the kernel's results and then what it keeps.
    ``derivative`` is as of an adjoint, except that its function takes what was kept behind the values after the call.
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
