"""`scipy.sparse.linalg`: factors of sparse matrices, and solutions of systems with them.

The adjoint system is solved with the same factors, which also solve systems with the (conjugate) transpose.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import scipy.sparse as ss
import scipy.sparse.linalg as sl

from ...arrays.activity import plain_of
from ...interception.hooks import Hook, hook, replace_method
from ...rules.definitions import any_active, refusal
from ...tape import Tape, current, passive
from .sparse import define_twice, sampled
from .sparse_entries import copied

_approximating: ContextVar[bool] = ContextVar("_approximating", default=False)


@contextmanager
def as_preconditioners() -> Iterator[None]:
    """Context in which factors are preconditioners, which do not change results."""
    token = _approximating.set(True)
    try:
        yield
    finally:
        _approximating.reset(token)


_superlu = type(sl.splu(ss.csc_array(np.eye(1))))


def _lu_solve(self: Any, rhs: Any, trans: str = "N") -> Any:
    """`SuperLU.solve`."""
    return _original_solve(self, rhs, trans)


def _lu_solve_bar(g: Any, self: Any, trans: Any) -> Any:
    if trans == "T":
        return np.conj(_lu_solve(self, np.conj(g), "N"))
    return _lu_solve(self, g, "H" if trans == "N" else "N")


_original_solve = vars(_superlu)["solve"]
define_twice(_lu_solve, {"rhs": _lu_solve_bar}).name = "scipy.sparse.linalg.SuperLU.solve"
replace_method(_superlu, "solve", lambda _: _lu_solve)


# ------------------------------------------------------------------------------------------------ with active entries


def factored_solve(A: Any, rhs: Any, factors: Any, trans: str) -> Any:
    """The solution of a system by its factors."""
    return _original_solve(factors, rhs, trans)


def _factored_b_bar(g: Any, A: Any, factors: Any, trans: Any) -> Any:
    if trans == "T":
        return np.conj(factored_solve(A, np.conj(g), factors, "N"))
    return factored_solve(A, g, factors, "H" if trans == "N" else "N")


def _factored_bar(g: Any, A: Any, factors: Any, trans: Any, result: Any) -> Any:
    b_bar, x = _factored_b_bar(g, A, factors, trans), result
    if trans == "N":
        return sampled(A, -b_bar, x)
    if trans == "T":
        return sampled(A, -np.conj(x), np.conj(b_bar))
    return sampled(A, -x, b_bar)


define_twice(
    factored_solve,
    {"rhs": _factored_b_bar, "A": _factored_bar},
).name = "scipy.sparse.linalg.SuperLU.solve"


class Factors:
    """Result of `splu` for a matrix with active entries: SuperLU's object and the matrix.

    Attributes
    ----------
    factors : SuperLU
        Its attributes are attributes of this object as well.
    matrix : sparse array
    exact : bool
        True if the factors are those of the matrix, not of an approximation (`spilu`).
    """

    def __init__(self, factors: Any, matrix: Any, exact: bool) -> None:
        self.factors = factors
        self.matrix = matrix
        self.exact = exact

    def solve(self, rhs: Any, trans: str = "N") -> Any:
        """`SuperLU.solve`."""
        if current() is None or _approximating.get():
            return _original_solve(self.factors, np.asarray(plain_of(rhs)), trans)
        if not self.exact:
            raise refusal(
                "scipy.sparse.linalg.spilu(A).solve",
                " (except as a preconditioner, scipy.sparse.linalg.LinearOperator(A.shape, spilu(A).solve))",
                "use scipy.sparse.linalg.splu",
            )
        return factored_solve(self.matrix, rhs, self.factors, trans)

    def __getattr__(self, name: str) -> Any:
        if name in ("L", "U"):
            raise refusal(f"scipy.sparse.linalg.SuperLU.{name}", "")
        return getattr(self.factors, name)


def _factors(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """`splu` and `spilu`."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    given = found.signature.bind(*arguments, **keywords)
    matrix = given.arguments["A"]
    with passive():
        given.arguments["A"] = copied(matrix)
        factors = found.original(*given.args, **given.kwargs)
    matrix = matrix.copy() if ss.issparse(matrix) else ss.csc_array(matrix)
    return Factors(factors, matrix, found.name.endswith("splu"))


hook(sl.splu, _factors, "scipy.sparse.linalg.splu")
hook(sl.spilu, _factors, "scipy.sparse.linalg.spilu")


def _factorized(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """`factorized`, which returns a function that solves the system."""
    if not any_active(tape, arguments, keywords):
        return found.original(*arguments, **keywords)
    return sl.splu(*arguments, **keywords).solve


hook(sl.factorized, _factorized, "scipy.sparse.linalg.factorized")
