"""Helpers of rules: tracked arguments, zeros to which parts of adjoints are added, and axes."""

from __future__ import annotations

from typing import Any

import numpy as np

import ampi.numpy as anp

from ...arrays.nested import from_nested
from ...memory.storages import TrackedArray, tracked


def as_tracked(x: Any) -> Any:
    """Convert an array, a number, or a nested list of these to a tracked array."""
    return tracked(np.asanyarray(from_nested(x)))


def zeros(shape: Any, dtype: Any, *adjoints: Any) -> Any:
    """Make zeros to which parts of adjoints are added.

    They are tracked if one of the adjoints is: then it is recorded, in order to be transposed.
    """
    ours = any(isinstance(g, TrackedArray) for g in adjoints)
    return anp.zeros(shape, dtype) if ours else np.zeros(shape, dtype)


def axes_of(axes: Any, ndim: int) -> tuple:
    """Return axes of an array as nonnegative numbers; None stands for all of them."""
    return tuple(range(ndim)) if axes is None else tuple(k % ndim for k in np.atleast_1d(axes))
