"""Conversion of `ampi.ndarray` objects to plain arrays in Matplotlib."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..arrays.array import ndarray
from ..arrays.scalars import scalar
from ..base.arrivals import when_imported
from ..memory.storages import TrackedArray


def _register() -> None:
    """Register a converter with Matplotlib, which would otherwise ask for the class of each element."""
    units = sys.modules["matplotlib.units"]

    class Converter(units.ConversionInterface):  # type: ignore[name-defined]
        """Converter to plain copies."""

        @staticmethod
        def convert(value: Any, unit: Any, axis: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [Converter.convert(x, unit, axis) for x in value]
            return np.array(plain_of(value))[()]

    for kind in (ndarray, scalar):
        units.registry[kind] = Converter()
    natively = units._is_natively_supported
    # Matplotlib does not convert numbers, and isinstance treats tracked scalars as NumPy's numbers.
    units._is_natively_supported = lambda x: not isinstance(x, TrackedArray) and natively(x)


when_imported("matplotlib.units", _register)
