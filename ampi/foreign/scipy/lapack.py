"""`scipy.linalg.lapack`: tridiagonal systems (``gtsv``); all other functions are refused."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from scipy.linalg import lapack

from ...errors import ActivityError
from ...interception.hooks import hook
from ...memory.storages import TrackedArray
from ...rules.definitions import Adjoint
from ...tape import no_tangent

_NAMES = ("dl", "d", "du", "b", "overwrite_dl", "overwrite_d", "overwrite_du", "overwrite_b")
_GTSV = inspect.Signature(
    [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=0 if name.startswith("overwrite_") else inspect.Parameter.empty,
        )
        for name in _NAMES
    ]
)


def _of_gtsv(function: Any) -> dict[str, Any]:
    """The adjoints of ``du2, d, du, x, info = gtsv(dl, d, du, b)``, by a system with the conjugate transpose."""

    def solved(g: Any, dl: Any, d: Any, du: Any, result: Any) -> tuple[Any, Any]:
        if isinstance(g[3], TrackedArray):  # recorded to be transposed: for all four results
            raise no_tangent(f"scipy.linalg.lapack.{function.__name__.rpartition(' ')[2]}")
        if any(np.any(x) for x in g[:3]):
            raise ActivityError(f"{function.__name__}: its factors du2, d and du have no derivative, only x has one")
        if result[4]:
            raise ActivityError(f"{function.__name__}: there is no solution (info = {result[4]}), and no derivative")
        columns = lambda a: a.reshape(len(a), -1)
        bar = function(np.conj(du), np.conj(d), np.conj(dl), g[3])[3]
        return columns(bar), np.conj(columns(result[3]))

    def lower(g: Any, dl: Any, d: Any, du: Any, result: Any) -> Any:
        bar, x = solved(g, dl, d, du, result)
        return -np.sum(bar[1:] * x[:-1], axis=1)

    def diagonal(g: Any, dl: Any, d: Any, du: Any, result: Any) -> Any:
        bar, x = solved(g, dl, d, du, result)
        return -np.sum(bar * x, axis=1)

    def upper(g: Any, dl: Any, d: Any, du: Any, result: Any) -> Any:
        bar, x = solved(g, dl, d, du, result)
        return -np.sum(bar[:-1] * x[1:], axis=1)

    def right(g: Any, dl: Any, d: Any, du: Any, b: Any, result: Any) -> Any:
        return solved(g, dl, d, du, result)[0].reshape(b.shape)

    return {"dl": lower, "d": diagonal, "du": upper, "b": right}


for _kind in "sdcz":
    _function = getattr(lapack, f"{_kind}gtsv")
    _handle = Adjoint(_of_gtsv(_function))
    _hook = hook(_function, _handle, f"scipy.linalg.lapack.{_kind}gtsv")
    _hook.signature = _GTSV
    _handle.prepare(_hook)
