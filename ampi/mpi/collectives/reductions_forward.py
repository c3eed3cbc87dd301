"""Operations of reductions on elements that are a value and its tangent: ``combine(a, b)`` puts a ∘ b into b."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from .reductions import Reduction, before


def elements_with_tangents(dtype: np.dtype, located: bool) -> np.dtype:
    """Dtype of elements of a value and its tangent, and of a location where there is one."""
    names = ["value", "tangent", *(["location"] if located else [])]
    return np.dtype(list(zip(names, (dtype, dtype, np.dtype(np.intc)))), align=True)


def combination(handle: int, rule: Reduction) -> Callable[[np.ndarray, np.ndarray], None]:
    """``combine(a, b)`` of an operation with a rule, other than the sum."""
    return _COMBINED.get(handle) or _by_kernel(rule)


def _product(a: np.ndarray, b: np.ndarray) -> None:
    b["tangent"] = a["tangent"] * b["value"] + a["value"] * b["tangent"]
    b["value"] *= a["value"]


def _extremum(beats: Callable[[Any, Any], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], None]:
    def combine(a: np.ndarray, b: np.ndarray) -> None:
        stays = ~beats(b["value"], a["value"])
        b[stays] = a[stays]

    return combine


def _located(beats: Callable[[np.ndarray, np.ndarray, np.ufunc], np.ndarray], better: np.ufunc) -> Callable:
    def combine(a: np.ndarray, b: np.ndarray) -> None:
        stays = ~beats(b, a, better)
        b[stays] = a[stays]

    return combine


_COMBINED: dict[int, Callable] = {
    mpi.PROD.handle: _product,
    mpi.MIN.handle: _extremum(np.less),
    mpi.MAX.handle: _extremum(np.greater),
    mpi.MINLOC.handle: _located(before, np.less),
    mpi.MAXLOC.handle: _located(before, np.greater),
}


def _by_kernel(rule: Reduction) -> Callable[[np.ndarray, np.ndarray], None]:
    """By the tangent of a user's combine function."""
    from ...kernel.case import Case
    from ...kernel.forward import make_tangent_contract

    kernel = rule.prefix.__self__.kernel  # type: ignore[union-attr]
    made: list[Any] = []

    def combine(a: np.ndarray, b: np.ndarray) -> None:
        names = "value", "tangent"
        (x, x_dot), (y, y_dot) = ([np.ascontiguousarray(c[name]) for name in names] for c in (a, b))
        if not made:
            made.append(make_tangent_contract(kernel, Case(kernel.types_of((x, y)), frozenset({0, 1}))))
        shadows = x_dot, y_dot
        made[0].tangent(x, y, *(shadows[k] for k in made[0].shadows))
        b["value"], b["tangent"] = y, y_dot

    return combine
