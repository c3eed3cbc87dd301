"""Calls of NumPy's functions with arrays on a device (`DeviceArray.__array_ufunc__`, ``__array_function__``).

A function belongs to one of these groups:

- `CONSTANT`: its result carries no derivative;
- `RULES`: it has a rule (`elementwise`, `reductions`, `movement`, `products`, `fourier`), or is composed of functions
  that have one (`composites`).

Any other function is called if no argument is active, and raises an error otherwise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.missing_rules import no_rule
from ..rules import functions as of_host
from ..rules.inplace import WRITERS
from . import composites, fourier, methods, movement, products, reductions
from .arrays import DeviceArray
from .elementwise import CLIP, ON_DEVICE, call, constant, outer, passively
from .movement import assign, astype, gather
from .operations import any_active, compute, operand

__all__ = ["RULES", "assign", "astype", "call_function", "call_ufunc", "gather"]

# -------------------------------------------------------------------------------------------------------- the others


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = a_min if min is None else min, a_max if max is None else max
    if low is None or high is None:
        return a if low is high else np.minimum(a, high) if low is None else np.maximum(a, low)
    return call(CLIP, (a, low, high), function=np.clip)


def _sort(a: Any, axis: Any = -1, kind: Any = None) -> Any:
    a = operand(a, "numpy.sort")
    if axis is None:
        a, axis = np.ravel(a), -1
    return np.take_along_axis(a, np.argsort(a, axis=axis), axis)


def _trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    options = {} if dtype is None else {"dtype": dtype}
    return np.sum(np.diagonal(a, offset, axis1, axis2), axis=-1, **options)


def _polyval(p: Any, x: Any) -> Any:
    p, x = operand(p, "numpy.polyval"), operand(x, "numpy.polyval")
    found = np.zeros_like(x) if isinstance(x, DeviceArray) else 0.0
    for coefficient in p:
        found = found * x + coefficient
    return found


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if where is not True or not isinstance(dst, DeviceArray):
        raise no_rule(np.copyto, f" with a mask, or to the host{ON_DEVICE}")
    assign(dst, ..., src)


def _without_nan(function: Callable, fill: float) -> Callable:
    """Return a reduction with NaNs replaced by its neutral element; an extremum of NaNs alone is NaN."""

    def reduce(a: Any, axis: Any = None, **keywords: Any) -> Any:
        is_nan = np.isnan(a)
        found = function(np.where(is_nan, fill, a), axis=axis, **keywords)
        return np.where(np.all(is_nan, axis=axis, **keywords), np.nan, found) if np.isinf(fill) else found

    return reduce


def _full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: Any = True, shape: Any = None
) -> Any:
    options = {} if shape is None else {"shape": shape}
    made = compute(np.empty_like, operand(a, "numpy.full_like"), dtype, order, **options)
    assign(made, ..., fill_value)
    return made


def _kron(a: Any, b: Any) -> Any:
    a, b = operand(a, "numpy.kron"), operand(b, "numpy.kron")
    ndim = max(a.ndim, b.ndim)
    of_a, of_b = ((1,) * (ndim - x.ndim) + x.shape for x in (a, b))
    wide = np.reshape(a, [n for k in of_a for n in (k, 1)]) * np.reshape(b, [n for k in of_b for n in (1, k)])
    return np.reshape(wide, [m * n for m, n in zip(of_a, of_b)])


def _median(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    a = operand(a, "numpy.median")
    if axis is None:
        return np.reshape(_median(np.ravel(a), 0), (1,) * a.ndim if keepdims else ())
    ordered = np.moveaxis(np.sort(a, axis), axis, 0)
    n = len(ordered)
    if n:
        found = (ordered[(n - 1) // 2, ...] + ordered[n // 2, ...]) * 0.5
        found = np.where(np.isnan(ordered[-1, ...]), np.nan, found)  # sorted last
    else:
        found = np.mean(ordered, axis=0)
    return np.expand_dims(found, axis) if keepdims else found


def _convolve(a: Any, v: Any, mode: str = "full") -> Any:
    a, v = operand(a, "numpy.convolve"), operand(v, "numpy.convolve")
    full = products.convolve(a, v)
    longer, shorter = max(len(a), len(v)), min(len(a), len(v))
    if mode == "full":
        return full
    start, count = ((shorter - 1) // 2, longer) if mode == "same" else (shorter - 1, longer - shorter + 1)
    return full[start : start + count]


def _nan_to_num(x: Any, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Any:
    x = operand(x, "numpy.nan_to_num")
    if not copy or x.dtype.kind != "f":
        raise no_rule(np.nan_to_num, f" in place, or of complex numbers{ON_DEVICE}")
    limits = np.finfo(x.dtype)
    high, low = (limits.max if posinf is None else posinf), (limits.min if neginf is None else neginf)
    numbers = np.where(np.isnan(x), nan, np.where(x > 0, high, low))
    return np.where(np.isfinite(x), x, numbers)


RULES: dict[Callable, Callable] = {
    **movement.RULES,
    **products.RULES,
    **reductions.RULES,
    **composites.RULES,
    **fourier.RULES,
    np.clip: _clip,
    np.convolve: _convolve,
    np.copyto: _copyto,
    np.full_like: _full_like,
    np.kron: _kron,
    np.median: _median,
    np.nan_to_num: _nan_to_num,
    np.nanmax: _without_nan(np.max, -np.inf),
    np.nanmin: _without_nan(np.min, np.inf),
    np.nanprod: _without_nan(np.prod, 1.0),
    np.nansum: _without_nan(np.sum, 0.0),
    np.polyval: _polyval,
    np.sort: _sort,
    np.trace: _trace,
}
CONSTANT: set[Callable] = of_host.CONSTANT - of_host.FILED
"""Functions whose results carry no derivatives."""


def call_function(function: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Call a function of NumPy, and record it if it has an active argument."""
    out = of_host.given_out(function, arguments, keywords)
    if out is not None:
        if not isinstance(out, DeviceArray):
            raise no_rule(function, f" with an argument out on the host{ON_DEVICE}")
        arguments, keywords = of_host.without_out(function, arguments, keywords)
        assign(out, ..., call_function(function, arguments, keywords))
        return out
    keywords = {name: x for name, x in keywords.items() if name != "out"}
    if function in RULES:
        return RULES[function](*arguments, **keywords)
    if function in WRITERS:
        raise no_rule(function, f", which overwrites an argument,{ON_DEVICE} (assign to it: d[key] = x)")
    if function in CONSTANT:
        return constant(function, arguments, keywords)
    return passively(function, arguments, keywords)


# ------------------------------------------------------------------------------------------------------------ ufuncs


def call_ufunc(ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict[str, Any]) -> Any:
    """Call ``ufunc.method(*inputs, **keywords)``, and record it if it has an active operand."""
    keywords = dict(keywords)
    outs = keywords.pop("out", None)
    where = keywords.pop("where", True)
    if where is not True:
        raise no_rule(ufunc, f" with the argument where{ON_DEVICE} (write numpy.where)")
    if outs is not None:
        (out,) = outs if isinstance(outs, tuple) else (outs,)
        if not isinstance(out, DeviceArray):
            raise no_rule(ufunc, f" with an argument out on the host{ON_DEVICE}")
        assign(out, ..., call_ufunc(ufunc, method, inputs, keywords))
        return out
    if keywords.get("dtype", ...) is None:
        del keywords["dtype"]
    if "dtype" in keywords and any_active(inputs):
        dtype = np.dtype(keywords.pop("dtype"))
        inputs = tuple([astype(x, dtype, False) if isinstance(x, DeviceArray) else x for x in inputs])
    if method == "__call__":
        if ufunc is np.matmul and not keywords:
            return products.matmul(*inputs)
        return call(ufunc, inputs, keywords)
    if method == "reduce" and ufunc in reductions.REDUCTIONS:
        x, *rest = inputs
        given = {**dict(zip(("axis", "dtype", "out", "keepdims"), rest)), **keywords}
        axis = given.pop("axis", 0)
        return reductions.REDUCTIONS[ufunc](x, axis=axis, **{n: v for n, v in given.items() if v is not None})
    if method == "accumulate" and ufunc in reductions.ACCUMULATIONS:
        return reductions.ACCUMULATIONS[ufunc](inputs[0], **{"axis": 0, **keywords})
    if method == "outer" and not keywords:
        return outer(ufunc, *inputs)
    if method == "at" and ufunc in (np.add, np.subtract):
        return movement.add_at(inputs[0], inputs[1], inputs[2] if ufunc is np.add else -inputs[2])
    raise no_rule(ufunc, f" for its method {method}{ON_DEVICE}")


methods.arithmetic[:] = [sys.modules[__name__]]  # type: ignore[list-item]
