"""Derivatives that their author writes, for arguments of certain types: what an ``ir.Custom`` carries as its rule.

A `Rule` has an adjoint; a `Tangent` stands for one from which the adjoint follows by transposition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.ir.names import stem


@dataclass(frozen=True)
class Tangent:
    """The author's tangent, for arguments of certain types.

    ``function`` takes the leaves of the arguments (``primals``), then a tangent for each of those that can carry
    derivatives (``tangents``); it returns the leaves of the result, then their tangents.  ``values`` and ``dots`` say
    for each leaf of the result where it and its tangent are among what is returned (None: no tangent).
    """

    name: str
    function: ir.Function
    primals: tuple[ir.Argument, ...]
    tangents: tuple[ir.Argument, ...]
    values: tuple[int, ...]
    dots: tuple[int | None, ...]

    @property
    def results(self) -> tuple[ir.Expr, ...]:
        last = self.function.body[-1]
        return last.values if isinstance(last, ir.Return) else ()

    def error(self, line: int, problem: str) -> KernelError:
        return KernelError(
            f"{self.function.filename}:{line}: the tangent of '{self.name}' has no transpose, for it is not linear as "
            f"it is written: {stem(problem)}\n  write it with sums and products of tangents and other values, or make "
            f"'{self.name}' a custom_vjp, whose adjoint is given as well"
        )


@dataclass(frozen=True)
class Rule:
    """The author's derivatives, for arguments of certain types.

    ``backward`` takes the leaves of the residuals and of the adjoints of the results; ``positions`` says for every
    input which of its results is the input's adjoint (None: zero).
    """

    name: str
    backward: ir.Function
    positions: tuple[int | None, ...]
    tangent: Tangent | None = None


def constant_arguments(function: ir.Function) -> tuple[ir.Argument, ...]:
    return tuple(ir.Argument(n, numba.typeof(array), role=("constant", n)) for n, array in function.constants)
