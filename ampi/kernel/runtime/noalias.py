"""Numba compilers for derivative programs: no overflow by reassociation, and arrays that do not overlap in memory.

With ``fastmath`` compilers turn ``(d / y) * (x / y)`` into ``d * x / (y * y)``, whose square may overflow although
quotients and derivative do not.  Derivatives are full of such products: in their programs products and quotients keep
the order in which they are written, and infinities and nan are respected.  Sums may be added in any order, so that they
can be vectorised.

Numba tells LLVM nothing about aliases of array arguments.  Where they are known to be separate, telling LLVM so
lets it vectorise loops over several of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite.ir import DoubleType, FloatType
from llvmlite.ir.transforms import CallVisitor, Visitor
from numba.core.compiler import Compiler

from ampi.memory.extents import Extent


class InRange(Compiler):
    """Numba's compiler, whose ``fastmath`` does not reassociate products: ``njit(pipeline_class=InRange)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_in_range(self.state)


def keep_in_range(state: Any) -> None:
    """Let a compilation set only the flags of ``fastmath`` that cannot cause overflow in derivatives."""
    if state.flags.fastmath:
        context = state.targetctx  # of this compilation only
        allowed = frozenset(state.flags.fastmath.flags)
        context.post_lowering = functools.partial(_post_lowering, type(context).post_lowering, context, allowed)


def _post_lowering(original: Any, context: Any, allowed: frozenset[str], module: Any, library: Any) -> None:
    flags = {name: [f for f in some if f in allowed or "fast" in allowed] for name, some in _FLAGS.items()}
    _Operations(flags).visit(module)
    _Calls(flags["call"]).visit(module)
    saved, context.fastmath = context.fastmath, False
    try:
        original(context, module, library)
    finally:
        context.fastmath = saved


_FLAGS = {
    "fadd": ("reassoc", "contract"),
    "fsub": ("reassoc", "contract"),
    "fmul": ("nsz", "contract"),
    "fdiv": ("nsz", "contract"),
    "call": ("nsz", "contract", "afn"),
}


class _Operations(Visitor):
    def __init__(self, flags: dict[str, list[str]]) -> None:
        self.flags = flags

    def visit_Instruction(self, instr: Any) -> None:
        if not instr.flags and instr.opname in self.flags:
            instr.flags.extend(self.flags[instr.opname])


class _Calls(CallVisitor):
    def __init__(self, flags: list[str]) -> None:
        self.flags = flags

    def visit_Call(self, instr: Any) -> None:
        if isinstance(instr.type, (FloatType, DoubleType)):
            for flag in self.flags:
                instr.fastmath.add(flag)


class SeparateArrays(InRange):
    """Numba's compiler, with array arguments marked as free of aliases: ``njit(pipeline_class=SeparateArrays)``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state.flags.noalias = True


def are_separate(ranges: Sequence[tuple[int, int] | None], arrays: Sequence[np.ndarray]) -> bool:
    """Return whether no two arrays share an element; ``ranges`` has their first and last bytes, or None to skip one."""
    found = sorted((r[0], r[1], k) for k, r in enumerate(ranges) if r is not None and r[0] < r[1])
    reach = -1
    for place, (low, high, k) in enumerate(found):
        if low < reach:
            before = (j for _, end, j in found[:place] if end > low)
            if any(Extent(arrays[k]).overlaps(Extent(arrays[j])) for j in before):
                return False
        reach = max(reach, high)
    return True
