"""Matplotlib takes our arrays as plain ones: what is drawn has no derivative."""

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
    """Tell Matplotlib's registry of units: it would look for the class of the elements, which are such arrays again."""
    units = sys.modules["matplotlib.units"]

    class Converter(units.ConversionInterface):  # type: ignore[name-defined]
        """Plain copies of our arrays."""

        @staticmethod
        def convert(value: Any, unit: Any, axis: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [Converter.convert(x, unit, axis) for x in value]
            return np.array(plain_of(value))[()]

    for kind in (ndarray, scalar):
        units.registry[kind] = Converter()
    natively = units._is_natively_supported
    # It leaves what holds numbers as it is, and asks isinstance, which takes our numbers for NumPy's.
    units._is_natively_supported = lambda x: not isinstance(x, TrackedArray) and natively(x)


when_imported("matplotlib.units", _register)
