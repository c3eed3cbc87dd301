"""Objects of xarray, which hold active arrays, and of pandas, which cannot."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..arrays.array import ndarray
from ..arrays.losses import would_be_lost
from ..base.arrivals import when_imported
from ..base.program_lines import line_outside
from ..base.structures import leaves
from ..errors import ActivityError
from ..interception.hooks import hook
from ..memory.storages import TrackedArray


def _is_held(x: Any) -> bool:
    return isinstance(x, TrackedArray) and would_be_lost(x)


# ------------------------------------------------------------------------------------------ xarray


def _prepare_xarray(module: str, function: str, handle: Callable) -> None:
    found = getattr(sys.modules[module], function, None)
    if found is not None:
        hook(found, handle)


def _return_active(found: Any, tape: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Return the active array itself for ``.values``, as ``.data`` does."""
    return arguments[0] if arguments and _is_held(arguments[0]) else found.original(*arguments, **keywords)


def _keep_numbers(found: Any, tape: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Convert active numbers to arrays without axes: xarray would take them for NumPy's numbers and convert them."""
    given = [np.ndarray.view(x, ndarray) if _is_held(x) and not x.shape else x for x in arguments]
    return found.original(*given, **keywords)


for _module, _function, _handle in (
    ("xarray.core.variable", "_as_array_or_item", _return_active),
    ("xarray.core.variable", "as_compatible_data", _keep_numbers),
    ("xarray.namedarray.core", "from_array", _keep_numbers),
):
    when_imported(_module, functools.partial(_prepare_xarray, _module, _function, _handle))


# ------------------------------------------------------------------------------------------ pandas


def _prepare_pandas() -> None:
    pandas = sys.modules["pandas"]
    for name in ("DataFrame", "Series"):
        kind = getattr(pandas, name)
        for method in ("__init__", "__setitem__", "insert"):
            function = vars(kind).get(method)
            if function is not None:
                hook(function, _refuse_active, f"pandas.{name}" if method == "__init__" else f"pandas.{name}.{method}")


def _refuse_active(found: Any, tape: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    for x in leaves((arguments[1:], keywords)):
        if _is_held(x):
            raise ActivityError(
                f"{line_outside(found.name)}: {found.name} gets an array of shape {np.shape(plain_of(x))} that carries "
                "derivatives, and pandas would compute with a copy that has none: compute with arrays "
                "(frame[name].to_numpy()), and put ampi.value(x) into the frame"
            )
    return found.original(*arguments, **keywords)


when_imported("pandas", _prepare_pandas)
