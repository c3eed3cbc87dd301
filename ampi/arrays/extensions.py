"""Derivatives that other rooms give to arrays: each room enters its functions here when it is imported.

Arrays know the derivatives of ufuncs; `ampi.rules` adds those of NumPy's other functions, and `ampi.foreign` those of
ufuncs that other packages compiled. A call reads the functions from here, so that this room imports neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np


class CompiledUfuncs(Protocol):
    """Derivatives of ufuncs by kernels over their elements (`ampi.foreign.compiled_ufuncs`)."""

    def apply(self, ufunc: Any, method: str, inputs: tuple, keywords: dict[str, Any]) -> Any:
        """Call ``ufunc.method(*inputs, **keywords)`` and record it."""

    def has_kernel(self, ufunc: np.ufunc, inputs: tuple, active: tuple) -> bool:
        """Return whether kernels know the derivatives with respect to the active arguments."""


call_function: Callable[[Callable, tuple, dict], Any]
"""``call_function(function, arguments, keywords)``: a function of NumPy with an array among its arguments."""
call_ufunc_without_partials: Callable[[np.ufunc, tuple, dict], Any]
"""``call_ufunc_without_partials(ufunc, inputs, keywords)``: a ufunc that is not in the table of partial derivatives."""
generalized_ufuncs: dict[np.ufunc, Callable] = {}
"""Rules of generalized ufuncs (`numpy.matmul`)."""
compiled_ufuncs: CompiledUfuncs
