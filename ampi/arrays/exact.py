"""Formulas that give a NumPy function's derivative, while the function itself gives the value."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base import checks
from ..base.missing_rules import no_rule
from ..base.structures import leaves, mapped
from ..memory.storages import as_scalar, is_scalar, writable
from .activity import plain_of
from .indexing import copied


def exactly(function: Callable) -> Callable:
    """Decorate a formula for a NumPy function: derivatives are the formula's, values are NumPy's."""

    def decorate(formula: Callable) -> Callable:
        @functools.wraps(formula)
        def rewritten(*arguments: Any, **keywords: Any) -> Any:
            exact = function(
                *mapped(plain_of, arguments), **mapped(plain_of, keywords)
            )  # raises NumPy's own errors first
            with np.errstate(all="ignore"):
                result = formula(*arguments, **keywords)
            if isinstance(exact, np.ndarray) and exact.shape != result.shape:
                raise no_rule(function, f" for these arguments (its formula gives the shape {result.shape})")
            if isinstance(exact, (np.ndarray, np.inexact)) and result.dtype != exact.dtype:
                result = result.astype(exact.dtype)
            elif isinstance(exact, tuple):
                dtypes = iter([getattr(x, "dtype", None) for x in leaves(exact)])
                result = mapped(lambda made: _cast(made, next(dtypes)), result)
            if isinstance(exact, np.ndarray) and (is_scalar(result) or _order(result) != _order(exact)):
                return copied(result, exact)
            if checks.is_full():  # full checks inspect the formula's results, which must stay
                values = iter(leaves(exact))
                return mapped(lambda made: _copied(made, next(values)), result)
            for made, wanted in zip(leaves(result), leaves(exact)):
                if not isinstance(made, np.ndarray):
                    continue  # an exponent
                writable(made)[...] = wanted
                if isinstance(wanted, np.inexact) and not is_scalar(made):
                    as_scalar(made)
            return result

        return rewritten

    return decorate


def _cast(made: Any, dtype: np.dtype | None) -> Any:
    return made.astype(dtype) if dtype is not None and isinstance(made, np.ndarray) and made.dtype != dtype else made


def _copied(made: Any, wanted: Any) -> Any:
    return copied(made, np.asarray(wanted)[()]) if isinstance(made, np.ndarray) else made


def _order(x: np.ndarray) -> list[int]:
    """The axes in the order of the elements in memory."""
    return [stride for stride, n in zip(x.strides, x.shape) if n > 1]
