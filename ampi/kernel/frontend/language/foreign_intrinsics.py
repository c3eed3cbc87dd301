"""Calls of ``@numba.extending.intrinsic`` functions of integers, whose results carry no derivatives.

Such a function is LLVM code, for instance a population count.  Derivative programs call it again, so it must have no
side effects.  Of such functions of floating-point numbers only the fused multiply-add, ``x * y + z`` rounded once, is
supported; it is recognised by its results, since packages define their own to compute rounding errors of products.
"""

from __future__ import annotations

import ast
import functools
import random
import sys
from fractions import Fraction
from typing import Any

import numba
from numba import types
from numba.core.extending import _Intrinsic

from ampi.kernel import ir
from ampi.kernel.frontend.language import expressions
from ampi.kernel.ir import intrinsics


def is_foreign(function: Any) -> bool:
    return isinstance(function, _Intrinsic)


def call(builder: Any, node: ast.Call, function: _Intrinsic) -> ir.Expr:
    """The value of a call."""
    named = f"{function.__module__}.{function.__name__}"
    if getattr(sys.modules.get(function.__module__), function.__name__, None) is not function:
        builder.fail(
            node,
            f"the Numba intrinsic {named} is not an attribute of its module",
            "define it at the top level",
        )
    if function.__module__ == "__main__":
        builder.fail(
            node, f"the Numba intrinsic {named} is defined in the main script", "move it to an importable module"
        )
    arguments = expressions.spread(builder, node.args)
    given = [getattr(a, "type", None) for a in arguments]
    numbers = types.float64 in given and all(isinstance(t, (types.Integer, types.Float)) for t in given)
    if numbers and len(arguments) == 3 and not node.keywords and multiplies_and_adds(function):
        arguments = [intrinsics.cast(a, types.float64) for a in arguments]
        return builder.operation(node, intrinsics.foreign(function, 3, ("d * y", "d * x", "d")), function, *arguments)
    integers = all(isinstance(getattr(a, "type", None), (types.Integer, types.Boolean)) for a in arguments)
    if node.keywords or not integers or not 1 <= len(arguments) <= len(intrinsics.ARGUMENTS):
        builder.fail(
            node,
            f"the Numba intrinsic {named} with other arguments than one to four integers",
            "write it in Python, or give its derivative with ampi.custom_jvp",
        )
    return builder.operation(node, intrinsics.foreign(function, len(arguments)), function, *arguments)


@functools.cache
def multiplies_and_adds(function: _Intrinsic) -> bool:
    """Return whether a function is a fused ``x * y + z``, by trying numbers for which rounding makes a difference."""
    try:
        call = numba.njit(lambda x, y, z: function(x, y, z))
        generator = random.Random(1)
        for _ in range(64):
            x, y = generator.uniform(-1e3, 1e3), generator.gauss(0, 1)
            for z in (-x * y, generator.gauss(0, 1) * x):
                if call(x, y, z) != float(Fraction(x) * Fraction(y) + Fraction(z)):
                    return False
    except (numba.core.errors.NumbaError, TypeError, ArithmeticError):
        return False
    return True
