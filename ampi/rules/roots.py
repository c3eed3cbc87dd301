"""Roots of sums of powers (norms, standard deviations), with subgradient zero where the sum is zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory.storages import plain, tracked, writable
from ..tape.recording import passive


def root(x: Any, p: Any = 2) -> Any:
    """``x ** (1 / p)`` of an array without negative elements."""
    x = tracked(x)
    positive = plain(x) != 0
    if positive.all():
        return np.sqrt(x) if p == 2 else x ** (1.0 / p)
    # Where the mask is false, no derivative passes.
    result = np.sqrt(x, out=None, where=positive) if p == 2 else np.power(x, 1.0 / p, out=None, where=positive)
    np.copyto(writable(result), 0, where=~positive)
    return result


def std(a: Any, *arguments: Any, **keywords: Any) -> Any:
    """`numpy.std`."""
    variance = np.var(a, *arguments, **keywords)
    if variance.dtype.kind in "iub":  # an integer dtype was requested: a constant
        with passive():
            return np.std(a, *arguments, **keywords)
    return root(variance)
