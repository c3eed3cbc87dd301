"""Conversions of active numbers by NumPy's classes, such as ``np.float32(x)``, which keep derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import numpy as ours
from ..arrays import element_arithmetic
from ..arrays.activity import plain_of
from ..arrays.array import ndarray
from ..arrays.callers import is_called_by_ampi
from ..arrays.losses import warn_lost, would_be_lost
from ..base.structures import leaves, mapped
from ..errors import ActivityError
from ..interception import entry_points
from ..interception.entry_points import object_at
from ..interception.redirection import arguments_at
from ..interception.trampolines import Place
from ..memory.storages import carries_derivatives, is_scalar
from ..tape import current

NUMBERS = tuple(
    dict.fromkeys(
        cls
        for cls in np.sctypeDict.values()
        if issubclass(cls, (np.number, np.bool_)) and not issubclass(cls, np.timedelta64)
    )
)


def places() -> list[Place]:
    """The constructors of NumPy's numbers, except booleans, which carry no derivative."""
    found = []
    for cls in NUMBERS:
        if cls is not np.bool_:
            address, original = entry_points.constructor_slot(cls)
            derived = entry_points.inheriting_slots(cls, original)
            found.append(Place((address, *derived), original, "tuple", _construct, permanent=True))
    return found


def _construct(kind: int, items: int, named: int) -> Any:
    """``kind(x)``, also for subclasses of NumPy's classes."""
    if current() is None or is_called_by_ampi(2):
        return None
    arguments, keywords = arguments_at("tuple", items, named)
    if len(arguments) != 1 or keywords:
        return None
    (x,) = arguments
    if is_scalar(x) and (made := element_arithmetic.converted(x, object_at(kind))) is not None:
        return made
    active = next((leaf for leaf in leaves(x) if isinstance(leaf, ndarray) and would_be_lost(leaf)), None)
    return None if active is None else _converted(object_at(kind), x, active)


def _converted(kind: type, x: Any, active: ndarray) -> Any:
    if not carries_derivatives(np.dtype(kind)):
        warn_lost(f"numpy.{kind.__name__}() of", active)
        return None
    if kind not in NUMBERS:
        raise ActivityError(
            f"{kind.__qualname__}, a subclass of numpy.{kind.__mro__[1].__name__}, stores plain numbers, but was "
            "called with an active array; use the array itself, or pass ampi.value(x) if a constant is meant"
        )
    if kind is np.float64 and active.dtype.kind == "c":
        try:
            kind(mapped(plain_of, x))  # warns, or raises NumPy's error
        except TypeError:
            return None
    found = ours.asarray(x).astype(kind)
    return found if found.ndim else found[()]
