"""Zeros for adjoints to add to, also while an adjoint is itself recorded for its transpose (forward mode)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ampi.numpy as anp

from ...memory.storages import TrackedArray


def zeros(shape: Any, dtype: Any, *adjoints: Any) -> Any:
    """Zeros to which parts of adjoints are added: of `ampi.numpy` where one of these is."""
    ours = any(isinstance(g, TrackedArray) for g in adjoints)
    return anp.zeros(shape, dtype) if ours else np.zeros(shape, dtype)
