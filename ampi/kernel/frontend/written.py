"""NumPy's functions that are written as kernels, after what Numba compiles for them: calls of them are inlined.

``@written(np.nanmean)`` enters a function of the same parameters.  Arrays come as they are; tuples and lists of numbers
as arrays, for the parameters named in ``lists``.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.frontend import array_values
from ampi.kernel.frontend.array_functions import array, binary, fold, number, rule
from ampi.kernel.frontend.inline import call_function
from ampi.kernel.frontend.values import Value
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import ZERO


def written(*functions: Any, method: str | None = None, lists: str = "") -> Callable[[Any], Any]:
    """Register what a function of NumPy does, as a kernel."""

    def register(function: Any) -> Any:
        def handler(builder: Any, node: ast.Call, *positional: Value, **keywords: Value) -> Value:
            return inlined(builder, node, function, positional, keywords)

        handler.__signature__ = with_first(function)  # type: ignore[attr-defined]
        rule(*functions, method=method, lists=lists)(handler)
        return Written(function)

    return register


@dataclass(frozen=True)
class Written:
    """Stands for a function where others of these call it (compare ``numba``'s dispatchers)."""

    py_func: Any


def inlined(builder: Any, node: ast.Call, function: Any, positional: Any, keywords: dict[str, Value]) -> Value:
    try:
        return call_function(builder, node, function, list(positional), keywords)
    except KernelError as problem:
        name = ast.unparse(node.func)
        found = str(problem).partition(f"in kernel '{function.__name__}': ")[2].partition("\n")[0]
        raise builder.source.error(node, f"{name}: {found or problem}", "use the arguments that Numba knows") from None


def with_first(function: Any) -> inspect.Signature:
    """A function's signature, after the parser and the call."""
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("builder", "node")]
    rest = inspect.signature(function).parameters.values()
    return inspect.Signature([*first, *rest])


# --------------------------------------------------------------------------------------- without what is no number


def present(builder: Any, node: ast.Call, function: Any, a: Any, op: ast.operator, first: int) -> ir.Expr:
    """The sum or product of the elements that are numbers."""
    type_ = array_values.result_type(builder, node, function, array(builder, node, a))
    nothing, combine = number(first, type_), binary(builder, node, op)

    def take(total: ir.Expr, x: ir.Expr) -> ir.Expr:
        if not isinstance(type_, (types.Float, types.Complex)):
            return combine(total, x)
        missing = builder.operation(node, "isnan", np.isnan, x)
        return combine(total, ir.Op("select", (missing, nothing, x), type_))

    return fold(builder, a, nothing, take, "total")


@rule(np.nansum)
def nansum(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return present(builder, node, np.nansum, a, ast.Add(), 0)


@rule(np.nanprod)
def nanprod(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return present(builder, node, np.nanprod, a, ast.Mult(), 1)


def extreme(builder: Any, node: ast.Call, function: Any, a: Any, pick: str) -> ir.Expr:
    """The smallest or largest of the elements that are numbers."""
    type_ = array_values.result_type(builder, node, function, array(builder, node, a))
    if isinstance(type_, types.Complex):
        problem = f"{ast.unparse(node.func)} of complex numbers has no derivative"
        builder.fail(node, problem, "use the real parts or magnitudes")
    a = array_values.computed(builder, a)
    require_elements(builder, a)
    first = array_values.element_at(a, (ZERO,) * a.type.ndim)
    return fold(builder, a, first, lambda x, y: builder.operation(node, pick, getattr(np, pick), x, y), "extreme")


def require_elements(builder: Any, a: Any) -> None:
    size = index_algebra.product(array_values.shape_of(builder, a))
    empty = ir.Op("eq", (size, ZERO), types.boolean)
    text = 'raise ValueError("zero-size array to reduction operation which has no identity")'
    builder.emit(ir.If(empty, (ir.Raise(text, line=builder.line),)))


@rule(np.nanmin, lists="a")
def nanmin(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return extreme(builder, node, np.nanmin, a, "fmin")


@rule(np.nanmax, lists="a")
def nanmax(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return extreme(builder, node, np.nanmax, a, "fmax")


@written(np.nanmean)
def nanmean(a):
    total = 0.0
    count = 0
    for v in a.flat:
        if not np.isnan(v):
            total += v
            count += 1
    if count == 0:
        return total * np.nan
    return total / count


@written(np.nanvar)
def nanvar(a, axis=None, dtype=None, out=None, ddof=0):
    assert axis is None and dtype is None and out is None
    middle = nanmean(a)
    total = 0.0
    count = 0
    for v in a.flat:
        if not np.isnan(v):
            d = v - middle
            total += (d * np.conj(d)).real
            count += 1
    if count <= ddof:
        return np.nan
    return total / (count - ddof)


@written(np.nanstd)
def nanstd(a, axis=None, dtype=None, out=None, ddof=0):
    return nanvar(a, axis, dtype, out, ddof) ** 0.5


@written(np.nancumsum)
def nancumsum(a):
    result = np.empty(a.size, a.dtype)
    total = a.dtype.type(0)
    for k, v in enumerate(a.flat):
        if not np.isnan(v):
            total += v
        result[k] = total
    return result


@written(np.nancumprod)
def nancumprod(a):
    result = np.empty(a.size, a.dtype)
    product = a.dtype.type(1)
    for k, v in enumerate(a.flat):
        if not np.isnan(v):
            product *= v
        result[k] = product
    return result


@written(np.nanmedian)
def nanmedian(a):
    flat = a.flatten()
    there = flat[~np.isnan(flat)]
    if len(there) == 0:
        return np.nan
    return np.median(there)


@written(np.nanargmin)
def nanargmin(a):
    best, place = np.inf, 0
    for k, v in enumerate(a.flat):
        if v < best:
            best, place = v, k
    return place


@written(np.nanargmax)
def nanargmax(a):
    best, place = -np.inf, 0
    for k, v in enumerate(a.flat):
        if v > best:
            best, place = v, k
    return place
