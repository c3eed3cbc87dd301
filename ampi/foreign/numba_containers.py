"""Numba's typed lists and dictionaries (``numba.typed``) with active arrays.

A container stores the address of an array, so an item is active when it is read again. A function of ``numba.njit``
that gets the container reads the arrays itself, and drops their derivatives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.array import ndarray
from ..arrays.callers import caller_of_numba
from ..arrays.losses import lend, lose_unheard, would_be_lost
from ..base.structures import leaves
from ..errors import ActivityError
from ..interception.hooks import replace_method
from ..tape import current


def guard_lists() -> None:
    """Guard the methods that add items to a typed list, and its use by functions of Numba's."""
    _guard(sys.modules["numba.typed.typedlist"].List, ("append", "extend", "insert", "__setitem__"))


def guard_dictionaries() -> None:
    """Guard the method that adds items to a typed dictionary, and its use by functions of Numba's."""
    _guard(sys.modules["numba.typed.typeddict"].Dict, ("__setitem__",))


def _guard(container: type, adding: tuple[str, ...]) -> None:
    for name in adding:
        replace_method(container, name, _refusing_numbers)
    of_dispatch: property = container._numba_type_  # type: ignore[attr-defined]

    def numba_type(self: Any) -> Any:
        found = of_dispatch.fget(self)  # type: ignore[misc]
        if (
            hasattr(self, "_ampi_arrays")
            and current() is not None
            and caller_of_numba(2).partition(".")[0] not in ("numba", "ampi")
        ):
            _warn(self)
        return found

    container._numba_type_ = property(numba_type, doc=of_dispatch.__doc__)  # type: ignore[attr-defined]


def _refusing_numbers(method: Callable) -> Callable:
    """Wrap a method that adds items to a container, which stores arrays unchanged but converts numbers."""

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if current() is not None:
            for x in leaves([arguments, keywords]):
                if isinstance(x, ndarray) and would_be_lost(x):
                    if not np.ndim(x):
                        raise ActivityError(
                            f"a number that carries derivatives in numba.typed.{type(self).__name__}, which stores "
                            "plain numbers; use Python's own list or dict, or put arrays into it"
                        )
                    self._ampi_arrays = True
        return method(self, *arguments, **keywords)

    return call


def _warn(container: Any) -> None:
    for x in container.values() if hasattr(container, "values") else container:
        for item in leaves(x):
            if isinstance(item, ndarray) and would_be_lost(item):
                what = f"a function of numba.njit given a typed {type(container).__name__.lower()} with"
                lose_unheard(what, item, "make it an ampi.kernel")
                lend(item)
