"""Compile ``min`` and ``max`` so that loops that search for an extreme are vectorised.

With ``fastmath`` LLVM vectorises such a loop only if the selection itself, and not just the comparison, may ignore
nan and the sign of zero.  Numba marks only comparisons.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from llvmlite.ir import instructions
from llvmlite.ir.transforms import Visitor
from numba.core import fastmathpass


@contextlib.contextmanager
def vectorised_extremes() -> Iterator[None]:
    """A context in which Numba gives ``min`` and ``max`` the ``fastmath`` flags of the code around them.

    Enter it only while holding Numba's compiler lock.
    """
    # Numba compiles `min` as a separate function, which an option of the caller would not reach.
    rewrite_module = fastmathpass.rewrite_module

    def rewrite(module: Any, options: Any) -> None:
        _Marking(options.flags).visit(module)
        rewrite_module(module, options)

    fastmathpass.rewrite_module = rewrite
    try:
        yield
    finally:
        fastmathpass.rewrite_module = rewrite_module


class _Marking(Visitor):
    """Adds flags to selections between two numbers that have just been compared.

    Other selections may serve to exclude nan, and stay unchanged.
    """

    def __init__(self, flags: Collection[str]) -> None:
        self.flags = flags

    def visit_Instruction(self, instruction: Any) -> None:
        if not isinstance(instruction, instructions.SelectInstr) or instruction.flags:
            return
        condition, *values = instruction.operands
        if isinstance(condition, instructions.FCMPInstr) and set(condition.operands) == set(values):
            instruction.flags = [*self.flags]
