"""`scipy.sparse.linalg`: solutions of sparse systems, by solving the system of the conjugate transpose.

Iterative solvers are taken for what they converge to.  The adjoint system is solved by the same method with the same
relative tolerance, of which the derivative has the order of magnitude; initial guess and preconditioner do not count.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as ss
import scipy.sparse.linalg as sl

from ..errors import TapeError
from ..foreign import replace_method
from ..libraries import Hook, hook
from ..memory import tracked
from ..nested import from_nested
from ..rules.definitions import Adjoint, any_active, define, refusal
from . import guards
from .sparse import h, refuse_sparse, sampled, through
from .sparse_entries import numbered


def _matrix_bar(a: Any, left: Any, right: Any) -> Any:
    """The adjoint of a matrix (sparse: of its arrays) where it is left @ rightᴴ."""
    if ss.issparse(a):
        return sampled(a, left, right)
    left, right = (np.reshape(x, (len(x), -1)) for x in (left, right))
    return left @ np.conj(right).T


def _adjoint_of(a: Any) -> Any:
    return None if a is None else a.adjoint() if isinstance(a, sl.LinearOperator) else h(a)


def _adjoint_of_preconditioner(M: Any) -> Any:
    """None for one that says nothing of its adjoint: the adjoint system is solved without."""
    if isinstance(M, sl.LinearOperator):
        try:
            M.rmatvec(np.zeros(M.shape[0], M.dtype))
        except (NotImplementedError, TypeError):
            return None
    return _adjoint_of(M)


# --------------------------------------------------------------------------------------------------------------- direct


def _spsolve_b(g: Any, A: Any, b: Any, shape: Any) -> Any:
    refuse_sparse("spsolve", b)
    return np.reshape(sl.spsolve(ss.csc_array(h(A)), np.asarray(g)), shape)


define(
    sl.spsolve,
    adjoint={
        "b": _spsolve_b,
        "A": lambda g, A, b, result: _matrix_bar(A, -_spsolve_b(g, A, b, np.shape(g)), result),
    },
    calls_back=True,
)


def _triangular_b(g: Any, A: Any, lower: Any, unit_diagonal: Any) -> Any:
    return sl.spsolve_triangular(ss.csr_array(h(A)), g, not lower, unit_diagonal=unit_diagonal)


def _triangular_a(g: Any, A: Any, lower: Any, unit_diagonal: Any, result: Any) -> Any:
    bar = _matrix_bar(A, -_triangular_b(g, A, lower, unit_diagonal), result)
    if not ss.issparse(A):
        bar = np.tril(bar) if lower else np.triu(bar)
        return bar - np.diag(np.diag(bar)) if unit_diagonal else bar
    places = numbered(A).tocoo()
    row, column = places.coords
    unread = (row < column if lower else row > column) | ((row == column) & bool(unit_diagonal))
    bar[0].reshape(-1)[places.data[unread].astype(np.intp) - 1] = 0
    return bar


def _triangular(A: Any, lower: Any) -> None:
    if not sl.is_sptriangular(ss.csr_array(A))[0 if lower else 1]:
        raise refusal("scipy.sparse.linalg.spsolve_triangular", " for a matrix that is not triangular")


define(sl.spsolve_triangular, adjoint={"b": _triangular_b, "A": _triangular_a}, calls_back=True, require=_triangular)


_superlu = type(sl.splu(ss.csc_array(np.eye(1))))


def _lu_solve(self: Any, rhs: Any, trans: str = "N") -> Any:
    """`SuperLU.solve`."""
    return _original_solve(self, rhs, trans)


def _lu_solve_bar(g: Any, self: Any, trans: Any) -> Any:
    g = np.asarray(g)
    if trans == "T":
        return np.conj(_original_solve(self, np.conj(g), "N"))
    return _original_solve(self, g, "H" if trans == "N" else "N")


_original_solve = vars(_superlu)["solve"]
define(_lu_solve, adjoint={"rhs": _lu_solve_bar})
hook(_lu_solve, None).name = "scipy.sparse.linalg.SuperLU.solve"
replace_method(_superlu, "solve", lambda _: _lu_solve)


# ------------------------------------------------------------------------------------------------------------ iterative


def _solver(solve: Callable) -> None:
    known = set(inspect.signature(solve).parameters)
    options = sorted(known & {"rtol", "atol", "maxiter", "restart", "shift", "M", "m", "k", "inner_m", "outer_k"})

    def bar(g: Any, A: Any, b: Any, given: dict) -> Any:
        settings = {name: x for name, x in given.items() if name != "M"}
        if settings.get("atol"):  # which is for the right-hand side's scale
            settings["atol"] *= np.linalg.norm(g) / max(np.linalg.norm(b), np.finfo(float).tiny)
        if given.get("shift"):
            settings["shift"] = np.conj(given["shift"])
        found, info = solve(_adjoint_of(A), np.asarray(g), M=_adjoint_of_preconditioner(given.get("M")), **settings)
        if info:
            raise TapeError(
                f"scipy.sparse.linalg.{solve.__name__} has not converged for the adjoint system (info={info}); "
                "allow more iterations (maxiter=), or solve the system directly"
            )
        return found

    def of_b(g: Any, result: Any, A: Any, b: Any, **given: Any) -> Any:
        return bar(g[0], A, b, given).reshape(np.shape(b))

    def of_a(g: Any, result: Any, A: Any, b: Any, **given: Any) -> Any:
        return _matrix_bar(A, -bar(g[0], A, b, given), result[0])

    rule = Adjoint(
        {
            "b": _asking(of_b, ("result", "A", "b", *options)),
            "A": _asking(of_a, ("result", "A", "b", *options)),
            "x0": None,
            "M": None,
        },
        calls_back=True,
    )

    def handle(found: Hook, tape: Any, arguments: tuple, keywords: dict) -> Any:
        result = rule(found, tape, arguments, keywords)
        if result[1] and tape.is_active(result[0]):
            raise refusal(found.name, f" where it has not converged (info={result[1]})")
        return result

    rule.prepare(hook(solve, handle, f"scipy.sparse.linalg.{solve.__name__}"))


def _asking(function: Callable, names: tuple) -> Callable:
    """A function whose signature names what it needs."""

    def adjoint(g: Any, **needed: Any) -> Any:
        return function(g, **needed)

    adjoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("g", *names)]
    )
    return adjoint


for _name in "cg bicg bicgstab cgs gmres lgmres minres gcrotmk".split():
    if hasattr(sl, _name):
        _solver(getattr(sl, _name))


# ------------------------------------------------------------------------------------------------------------ operators

define(
    sl.LinearOperator.matvec,
    adjoint={"x": lambda g, self, shape: np.reshape(self.rmatvec(g), shape)},
    calls_back=True,
)
define(
    sl.LinearOperator.rmatvec,
    adjoint={"x": lambda g, self, shape: np.reshape(self.matvec(g), shape)},
    calls_back=True,
)
define(sl.LinearOperator.matmat, adjoint={"X": lambda g, self: self.rmatmat(g)}, calls_back=True)
define(sl.LinearOperator.rmatmat, adjoint={"X": lambda g, self: self.matmat(g)}, calls_back=True)
hook(sl._interface._CustomLinearOperator.__init__, guards.refuse, "scipy.sparse.linalg.LinearOperator")
for _name in ("__matmul__", "__mul__", "__call__"):
    hook(vars(sl.LinearOperator)[_name], through, f"scipy.sparse.linalg.LinearOperator.{_name}")


def _dot(found: Hook, tape: Any, arguments: tuple, keywords: dict) -> Any:
    if not any_active(tape, arguments, keywords):
        return guards.refuse(found, tape, arguments, keywords)
    self, x = arguments
    x = tracked(np.asanyarray(from_nested(x)))
    if x.ndim not in (1, 2):
        raise refusal(found.name, " with a number")
    return self.matvec(x) if x.ndim == 1 or x.shape[1] == 1 else self.matmat(x)


hook(sl.LinearOperator.dot, _dot)

define(
    sl.expm_multiply,
    adjoint={"B": lambda g, A, start, traceA: _expm_multiply_b(g, A, start, traceA)},
    calls_back=True,
)


def _expm_multiply_b(g: Any, A: Any, start: Any, traceA: Any) -> Any:
    if start is not None:
        raise refusal("scipy.sparse.linalg.expm_multiply", " for several times")
    return sl.expm_multiply(_adjoint_of(A), np.asarray(g), traceA=None if traceA is None else np.conj(traceA))
