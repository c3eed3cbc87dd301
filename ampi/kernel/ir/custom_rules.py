"""Custom derivatives: the rule of an ``ir.Custom``, for arguments of certain types.

A `Rule` has an adjoint; a `Tangent` has a tangent from which the adjoint follows by transposition.
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
    derivatives (``tangents``); it returns the leaves of the result, then their tangents.  ``values`` and ``dots`` have,
    for each leaf of the result, the positions of the leaf and of its tangent among the returned values (None: no
    tangent).
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
            f"{self.function.filename}:{line}: the tangent of '{self.name}' cannot be transposed: it is not linear as "
            f"written: {stem(problem)}\n  write it with sums of tangents, and products of tangents with other "
            f"values, or make '{self.name}' an ampi.custom_vjp and define its adjoint"
        )


@dataclass(frozen=True)
class Rule:
    """The author's derivatives, for arguments of certain types.

    ``backward`` takes the leaves of the residuals and of the adjoints of the results; ``positions`` has for every input
    the position of its adjoint among the returned values (None: zero).
    """

    name: str
    backward: ir.Function
    positions: tuple[int | None, ...]
    tangent: Tangent | None = None


def constant_arguments(function: ir.Function) -> tuple[ir.Argument, ...]:
    return tuple(ir.Argument(n, numba.typeof(array), role=("constant", n)) for n, array in function.constants)
