"""`scipy.sparse.linalg`: solutions of sparse systems, differentiated by systems with the conjugate transpose.

Iterative solvers are treated as if they had converged. The adjoint system is solved by the same method with the same
relative tolerance, which is the order of the derivative's error; initial guess and preconditioner have no influence.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as ss
import scipy.sparse.linalg as sl

from ...arrays.activity import is_active, plain_of
from ...arrays.known_classes import mapped
from ...errors import TapeError
from ...interception.hooks import Hook, hook
from ...memory.storages import TrackedArray, region_of, wrapped
from ...rules.definitions import Adjoint, any_active, refusal
from ...tape import BaseAdjoint
from . import sparse_factors as factors
from . import sparse_operators as operators
from .sparse import define_twice, h, sampled, through, unmodified
from .sparse_entries import as_array, copied, matrix_of, numbered


def _matrix_bar(a: Any, left: Any, right: Any) -> Any:
    """Return the adjoint left @ rightᴴ of a matrix (for a sparse one, the adjoints of its arrays)."""
    if isinstance(a, sl._interface.MatrixLinearOperator):
        a = a.A
    if ss.issparse(a):
        return sampled(a, left, right)
    left, right = (np.reshape(x, (len(x), -1)) for x in (left, right))
    return left @ np.conj(right).T


def _copied(x: Any) -> Any:
    return np.array(plain_of(x))[()] if isinstance(x, TrackedArray) else x


def _adjoint_of(a: Any) -> Any:
    return None if a is None else a.adjoint() if isinstance(a, sl.LinearOperator) else h(a)


def _adjoint_of_preconditioner(M: Any) -> Any:
    """Return the adjoint of a preconditioner; None if it has none: then the adjoint system is solved without one."""
    if isinstance(M, sl.LinearOperator):
        try:
            M.rmatvec(np.zeros(M.shape[0], M.dtype))
        except (NotImplementedError, TypeError):
            return None
    return _adjoint_of(M)


# --------------------------------------------------------------------------------------------------------------- direct


def _spsolve_b(g: Any, A: Any, b: Any, shape: Any) -> Any:
    return np.reshape(sl.spsolve(ss.csc_array(h(A)), g), shape)


define_twice(
    sl.spsolve,
    {
        "b": _spsolve_b,
        "A": lambda g, A, b, result: _matrix_bar(A, -_spsolve_b(g, A, b, np.shape(g)), result),
    },
    calls_back=True,
)


def _solved_sparse(rule: Callable, found: Hook, tape: Any, arguments: tuple, keywords: dict) -> Any:
    """`spsolve`; with a sparse right-hand side the result has all entries, zeros included."""
    given = found.signature.bind(*arguments, **keywords).arguments
    b = given.get("b")
    if not ss.issparse(b) or not any_active(tape, arguments, keywords):
        return rule(found, tape, arguments, keywords)
    exact = found.original(**{key: copied(x) for key, x in given.items()})
    dense = sl.spsolve(**{**given, "b": b.toarray()}).reshape(b.shape)
    if not ss.issparse(exact):
        return dense.reshape(exact.shape)
    return matrix_of(found.name, tape, exact, np.arange(dense.size), dense.reshape(-1))


_hook = hook(sl.spsolve, None)
_hook.handle = functools.partial(_solved_sparse, _hook.handle)
_hook.name = "scipy.sparse.linalg.spsolve"
hook(sl.inv, through, "scipy.sparse.linalg.inv")


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


define_twice(sl.spsolve_triangular, {"b": _triangular_b, "A": _triangular_a}, calls_back=True, require=_triangular)


# ------------------------------------------------------------------------------------------------------------ iterative


def _solver(solve: Callable) -> None:
    known = set(inspect.signature(solve).parameters)
    options = sorted(known & {"rtol", "atol", "maxiter", "restart", "shift", "M", "m", "k", "inner_m", "outer_k"})

    def bar(g: Any, A: Any, b: Any, given: dict) -> Any:
        settings = {name: x for name, x in given.items() if name != "M"}
        if settings.get("atol"):  # an absolute tolerance has the right-hand side's scale
            settings["atol"] *= np.linalg.norm(g) / max(np.linalg.norm(b), np.finfo(float).tiny)
        if given.get("shift"):
            settings["shift"] = np.conj(given["shift"])
        found, info = solve(_adjoint_of(A), g, M=_adjoint_of_preconditioner(given.get("M")), **settings)
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
        operators.require_matrix(found, tape, arguments, keywords)
        with factors.as_preconditioners():
            result = rule(found, tape, arguments, keywords)
        if result[1] and tape.is_active(result[0]):
            raise refusal(found.name, f" where it has not converged (info={result[1]})")
        return result

    rule.second_order = "differentiated"
    rule.prepare(hook(solve, handle, f"scipy.sparse.linalg.{solve.__name__}"))


def _asking(function: Callable, names: tuple) -> Callable:
    """Give an adjoint a signature with the parameters that it needs."""

    def adjoint(g: Any, **needed: Any) -> Any:
        return function(g, **needed)

    adjoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("g", *names)]
    )
    return adjoint


for _name in "cg bicg bicgstab cgs gmres lgmres minres gcrotmk".split():
    if hasattr(sl, _name):
        _solver(getattr(sl, _name))


# ------------------------------------------------------------------------------------------------------- least squares


def _least_squares(solve: Callable, norms: dict[int, str]) -> None:
    """Solutions of least squares problems, with minimal norm if there are several.

    With the pseudoinverse A⁺ and the residual r: dx = A⁺ db - A⁺ dA x + A⁺ A⁺ᴴ dAᴴ r + (1 - A⁺ A) dAᴴ A⁺ᴴ x (Golub and
    Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems", 1973).
    """

    def solved(A: Any, b: Any, settings: dict) -> Any:
        return solve(A, b, **settings)[0]

    def solution(A: Any, b: Any, exact: Any, settings: dict) -> Any:
        """The solution."""
        return np.array(exact)

    def of_b(g: Any, A: Any, settings: dict) -> Any:
        return solved(_adjoint_of(A), g, settings)

    def of_a(g: Any, A: Any, b: Any, settings: dict, result: Any) -> Any:
        b_bar = of_b(g, A, settings)
        bars = _matrix_bar(A, -b_bar, result)
        if A.shape[0] != A.shape[1]:
            bars = _total(bars, _matrix_bar(A, b - A @ result, solved(A, b_bar, settings)))
            null = g - solved(A, A @ g, settings)
            bars = _total(bars, _matrix_bar(A, solved(_adjoint_of(A), result, settings), null))
        return bars

    name = f"scipy.sparse.linalg.{solve.__name__}"
    define_twice(solution, {"b": of_b, "A": of_a}).name = name

    def handle(found: Hook, tape: Any, arguments: tuple, keywords: dict) -> Any:
        given = found.signature.bind(*arguments, **keywords)
        given.apply_defaults()
        given = given.arguments
        given.pop("x0")
        if not any_active(tape, given):
            return found.original(*arguments, **keywords)
        operators.require_matrix(found, tape, arguments, keywords)
        if any_active(tape, given["damp"]) or given["damp"]:
            raise refusal(name, " with damping", "stack A and damp * identity (scipy.sparse.vstack), and b and zeros")
        A, b = given["A"], as_array(given["b"]).reshape(-1)
        if not ss.issparse(A) and not isinstance(A, sl.LinearOperator):
            A = np.atleast_2d(as_array(A))
        with factors.as_preconditioners():
            exact = found.original(*[mapped(_copied, x) for x in arguments], **mapped(_copied, keywords))
        settings = {key: given[key] for key in ("atol", "btol", "conlim", "maxiter", "iter_lim") if key in given}
        x = solution(A, b, exact[0], settings)
        of = {"residual": lambda: np.linalg.norm(b - A @ x), "solution": lambda: np.linalg.norm(x)}
        found = [x if k == 0 else of[norms[k]]() if k in norms else y for k, y in enumerate(exact)]
        return tuple(
            [_estimated(tape, name, y) if isinstance(y, (float, np.floating, np.ndarray)) else y for y in found]
        )

    hook(solve, handle, name)


class _Estimate(BaseAdjoint):
    """Norms and variances that the iterations estimate, whose derivatives are not known."""

    __slots__ = ("name", "result")
    second_order = "linear"

    def __init__(self, name: str, result: Any) -> None:
        self.name = name
        self.result = result

    def __call__(self, sweep: Any) -> None:
        if sweep.has_shadow(self.result) and np.any(sweep.shadow(self.result)):
            raise refusal(self.name, " that gives estimates of norms and variances (except its solution and residual)")

    def tangent(self, push: Any) -> None:
        """The tangent of an estimate: NaN."""
        push.put(self.result, np.full(self.result.shape, np.nan))


def _estimated(tape: Any, name: str, x: Any) -> Any:
    if is_active(tape, x):
        return x
    x = wrapped(np.array(x)[()])
    tape.activate(x)
    tape.append(_Estimate(name, region_of(x)), created=(x,))
    return x


def _total(left: Any, right: Any) -> Any:
    """The sum of two adjoints of a matrix."""
    if not isinstance(left, tuple):
        return left + right
    return (left[0] + right[0], *left[1:])


_least_squares(sl.lsqr, {3: "residual", 4: "residual", 8: "solution"})
_least_squares(sl.lsmr, {3: "residual", 7: "solution"})


# ------------------------------------------------------------------------------------------------------------ functions

hook(sl.norm, through, "scipy.sparse.linalg.norm")
hook(sl.matrix_power, unmodified, "scipy.sparse.linalg.matrix_power")
define_twice(
    sl.expm_multiply,
    {"B": lambda g, A, start, traceA: _expm_multiply_b(g, A, start, traceA)},
    calls_back=True,
)


def _expm_multiply_b(g: Any, A: Any, start: Any, traceA: Any) -> Any:
    if start is not None:
        raise refusal("scipy.sparse.linalg.expm_multiply", " for several times")
    return sl.expm_multiply(_adjoint_of(A), g, traceA=None if traceA is None else np.conj(traceA))
