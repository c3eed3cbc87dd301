"""Names in ``scipy.special`` of functions that Numba calls: ufuncs, or objects with an address."""

from __future__ import annotations

import functools
import re
import sys
from typing import Any

import numpy as np
from numba.extending import get_cython_function_address


def name_in_scipy(function: Any) -> str | None:
    """The name of a function in ``scipy.special``; None if it is not one, or if that is not imported."""
    module = sys.modules.get("scipy.special")
    if module is None:
        return None
    if isinstance(function, np.ufunc):
        name = function.__name__
        return name if getattr(module, name, None) is function else None
    address = getattr(function, "__wrapper_address__", None)
    return None if address is None else _addresses().get(address())


@functools.cache
def _addresses() -> dict[int, str]:
    """The names of SciPy's compiled special functions, by their addresses."""
    from scipy.special import cython_special

    found = {}
    for name in cython_special.__pyx_capi__:
        plain = re.sub(r"^__pyx_fuse_\d(_\d)?", "", name)  # a function for one of several types
        found[get_cython_function_address("scipy.special.cython_special", name)] = plain
    return found
