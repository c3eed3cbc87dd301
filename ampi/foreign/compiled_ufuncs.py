"""Ufuncs that are differentiated by a kernel over their elements: Numba's, and SciPy's with respect to parameters."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import numpy as anp
from ..arrays import extensions
from ..arrays.activity import plain_of
from ..arrays.writing import assign
from ..base.missing_rules import no_rule
from ..kernel import kernel
from ..memory.storages import carries_derivatives, tracked


def apply(ufunc: Any, method: str, inputs: tuple, keywords: dict[str, Any]) -> Any:
    """Call ``ufunc.method(*inputs, **keywords)`` with derivatives.

    Raises
    ------
    ActivityError
        The method is not a call, or the ufunc is a generalized one (``@numba.guvectorize``).
    """
    function = _function(ufunc)
    if function is None or method != "__call__" or set(keywords) - {"out", "where"}:
        raise no_rule(ufunc, f" for .{method}()" if method != "__call__" else " with these arguments")
    (out,) = keywords.get("out", (None,))
    where = keywords.get("where", True)
    exact = np.asarray(ufunc(*map(plain_of, inputs)))  # the ufunc chooses loop, dtype and shape
    result = _elementwise(ufunc, function, inputs, exact)
    if where is not True:
        target = tracked(np.empty(np.broadcast_shapes(exact.shape, np.shape(where)), exact.dtype))
        anp.copyto(target if out is None else out, result, where=where)
        return target if out is None else out
    if out is None:
        return result
    assign(out, result, f"{ufunc.__name__}(..., out=...)", "same_kind")
    return out


def _function(ufunc: Any) -> Callable[..., Any] | None:
    if getattr(ufunc, "signature", None) is not None:
        return None
    if isinstance(ufunc, np.ufunc):
        return _element_of_special(ufunc.__name__, ufunc.nin) if _is_special(ufunc) else None
    dispatcher = getattr(ufunc, "_dispatcher", ufunc)
    return getattr(dispatcher, "py_func", None)


def has_kernel(ufunc: np.ufunc, inputs: tuple, active: tuple) -> bool:
    """Return whether kernels know the derivatives of a special function with respect to its active arguments."""
    if not _is_special(ufunc) or any(np.asarray(plain_of(x)).dtype.kind == "c" for x in inputs):
        return False
    from ..kernel.frontend.scipy.special import knows_derivatives

    return knows_derivatives(ufunc.__name__, active)


def _is_special(ufunc: np.ufunc) -> bool:
    return getattr(sys.modules.get("scipy.special"), ufunc.__name__, None) is ufunc


def _elementwise(ufunc: Any, function: Callable[..., Any], inputs: tuple, exact: np.ndarray) -> Any:
    from . import arities  # which makes kernels

    loop = getattr(arities, f"of_{len(inputs)}", None)
    if loop is None or not carries_derivatives(exact.dtype):
        raise no_rule(ufunc, f" of {len(inputs)} arrays with results of dtype {exact.dtype}")
    arrays = [anp.asarray(x).astype(dtype) for x, dtype in zip(inputs, _dtypes(ufunc, inputs, exact))]
    flat = [anp.ravel(anp.broadcast_to(x, exact.shape)) for x in arrays]
    result = anp.empty(exact.size, exact.dtype)
    loop(_element(function), *flat, result)
    if isinstance(ufunc, np.ufunc):  # kernels may round differently; the values must be the function's own
        found = plain_of(result)
        with np.errstate(invalid="ignore"):
            result = result + np.where(np.isfinite(found), exact.ravel() - found, found.dtype.type(0))
    return anp.reshape(result, exact.shape) if exact.ndim else result[0]


def _dtypes(ufunc: Any, inputs: tuple, exact: np.ndarray) -> list[np.dtype]:
    """The dtypes to which inputs are converted, by the first compiled loop that accepts them."""
    given = [type(x) if type(x) in (int, float, complex) else np.asarray(plain_of(x)).dtype for x in inputs]
    for loop in ufunc.types:
        accepted, results = loop.split("->")
        if np.dtype(results[0]) == exact.dtype and all(map(_is_accepted, given, accepted)):
            return [np.dtype(t) for t in accepted]
    raise no_rule(ufunc, f" for {given}")


def _is_accepted(given: Any, code: str) -> bool:
    """Return whether a loop accepts an input of this dtype; Python's numbers adopt the loop's precision."""
    if isinstance(given, type):
        return np.can_cast({int: "b", float: "e", complex: "F"}[given], code)
    return np.can_cast(given, code)


@functools.cache
def _element_of_special(name: str, count: int) -> Callable[..., Any]:
    from ..kernel.frontend.scipy.special import by_name
    from . import arities

    return getattr(arities, f"call_of_{count}")(by_name(name))


@functools.cache
def _element(function: Callable[..., Any]) -> Any:
    return kernel(function, error_model="python")


extensions.compiled_ufuncs = sys.modules[__name__]  # type: ignore[assignment]
