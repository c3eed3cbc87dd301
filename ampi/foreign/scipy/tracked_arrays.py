"""Tracked arrays in rules: arguments, and zeros to which adjoints add."""

from __future__ import annotations

from typing import Any

import numpy as np

import ampi.numpy as anp

from ...arrays.nested import from_nested
from ...memory.storages import TrackedArray, tracked


def as_tracked(x: Any) -> Any:
    """An array, a number, or a nested list of these as a tracked array."""
    return tracked(np.asanyarray(from_nested(x)))


def zeros(shape: Any, dtype: Any, *adjoints: Any) -> Any:
    """Zeros to which parts of adjoints are added; tracked if an adjoint is: it is recorded to be transposed then."""
    ours = any(isinstance(g, TrackedArray) for g in adjoints)
    return anp.zeros(shape, dtype) if ours else np.zeros(shape, dtype)
