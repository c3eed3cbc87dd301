"""xarray objects as arguments, gradients and results of differentiated functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..base.structures import leaves, like

_FLOATS = "fc"


def unlabelled(x: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return an argument with arrays instead of xarray objects, and a function that puts arrays back into these."""
    xarray = sys.modules.get("xarray")
    if xarray is None or not any(isinstance(leaf, (xarray.DataArray, xarray.Dataset)) for leaf in leaves(x)):
        return x, lambda given: given
    return _opened(xarray, x), lambda given: _labelled(xarray, x, given)


def _opened(xarray: Any, x: Any) -> Any:
    if isinstance(x, xarray.DataArray):
        return x.data
    if isinstance(x, xarray.Dataset):
        return {name: part.data for name, part in x.data_vars.items() if part.dtype.kind in _FLOATS}
    if isinstance(x, (tuple, list, dict)):
        return like(x, [_opened(xarray, item) for item in (x.values() if isinstance(x, dict) else x)])
    return x


def _labelled(xarray: Any, x: Any, given: Any) -> Any:
    if isinstance(x, xarray.DataArray):
        return None if given is None else x.copy(data=given)
    if isinstance(x, xarray.Dataset):
        return x.assign({name: x[name].copy(data=part) for name, part in given.items() if part is not None})
    if isinstance(x, dict):
        return like(x, [_labelled(xarray, item, given[name]) for name, item in x.items()])
    if isinstance(x, (tuple, list)):
        return like(x, [_labelled(xarray, item, part) for item, part in zip(x, given)])
    return given


def array_of(y: Any) -> Any:
    """Return the array of a DataArray, and other results unmodified."""
    xarray = sys.modules.get("xarray")
    return y.data if xarray is not None and isinstance(y, xarray.DataArray) else y
