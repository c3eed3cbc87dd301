"""Sums of products in adjoints: of matrices, over named axes, of shifted vectors.

A term with a factor that is exactly zero is zero, even if the others are not finite, as in `arrays.elementwise.times`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.elementwise import has_nan


def contracted(product: Callable[..., Any], *factors: Any) -> Any:
    """``product(*factors)``, linear in each factor, without the NaNs of zero times infinity.

    Only if the result has a NaN, more is computed: the sum of the finite terms, and the number of the other terms, by
    the same function of zeros and ones.
    """
    with np.errstate(all="ignore"):
        result = product(*factors)
        if not has_nan(np.asarray(result)) or all(np.isfinite(x).all() for x in factors):
            return result
        finite = product(*[np.where(np.isfinite(x), x, x.dtype.type(0)) for x in factors])
        # Numbers of terms without a zero: all of them, those with finite factors, those without NaN.
        present = product(*[_ones(x != 0) for x in factors])
        ordinary = product(*[_ones((x != 0) & np.isfinite(x)) for x in factors])
        if result.dtype.kind == "c":
            return np.where(present == ordinary, finite, result)
        known = product(*[_ones((x != 0) & ~np.isnan(x)) for x in factors])
        # Infinite terms of either sign: their number, and the difference between positive and negative ones.
        number = known - ordinary
        signed = product(*[_signs(x) for x in factors]) - product(
            *[_signs(np.where(np.isinf(x), 0, x)) for x in factors]
        )
        infinite = np.where(np.abs(signed) == number, np.copysign(np.inf, signed), np.nan)
        infinite = np.where(known == present, infinite, np.nan)
        return np.where(present == ordinary, finite, infinite).astype(result.dtype)


def _ones(mask: Any) -> np.ndarray:
    return mask.astype(np.float64)


def _signs(x: Any) -> np.ndarray:
    return np.where(np.isnan(x), 0.0, np.sign(x, dtype=np.float64))
