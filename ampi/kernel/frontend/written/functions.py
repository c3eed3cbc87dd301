"""Functions of NumPy that are written as kernels, following Numba's implementations; calls of them are inlined.

``@written(np.nanmean)`` registers a kernel with the same parameters.  Parameters named in ``lists`` also take tuples
and lists of numbers, as arrays.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.frontend.arrays import creation as array_creation
from ampi.kernel.frontend.arrays import orders as array_orders
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import shapes as array_shapes
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import METHODS, array, binary, filled, fold, is_none, number, rule
from ampi.kernel.frontend.base.values import Group, Static, Value
from ampi.kernel.frontend.language.inline import call_function
from ampi.kernel.ir.index_algebra import INT, ZERO
from ampi.kernel.ir.intrinsics import cast


def written(
    *functions: Any, method: str | None = None, lists: str = "", of_anything: bool = False
) -> Callable[[Any], Any]:
    """Register a kernel for functions of NumPy, and for a method of arrays."""

    def register(function: Any) -> Any:
        def handler(builder: Any, node: ast.Call, *positional: Value, **keywords: Value) -> Value:
            return inlined(builder, node, function, positional, keywords)

        handler.__signature__ = with_first(function)  # type: ignore[attr-defined]
        rule(*functions, method=method, lists=lists, of_anything=of_anything)(handler)
        return Written(function)

    return register


@dataclass(frozen=True)
class Written:
    """A registered kernel, which others can call, with the interface of a Numba dispatcher."""

    py_func: Any


def inlined(builder: Any, node: ast.Call, function: Any, positional: Any, keywords: dict[str, Value]) -> Value:
    try:
        return call_function(builder, node, function, list(positional), keywords)
    except KernelError as problem:
        name = ast.unparse(node.func)
        found = str(problem).partition(f"in kernel '{function.__name__}': ")[2].partition("\n")[0]
        raise builder.source.error(node, f"{name}: {found or problem}", "use the arguments that Numba knows") from None


def with_first(function: Any) -> inspect.Signature:
    """A function's signature, preceded by parameters for the parser and the call."""
    first = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("builder", "node")]
    rest = inspect.signature(function).parameters.values()
    return inspect.Signature([*first, *rest])


# --------------------------------------------------------------------------------------- functions that skip nan


def fold_numbers(builder: Any, node: ast.Call, function: Any, a: Any, op: ast.operator, first: int) -> ir.Expr:
    """The sum or product of the elements that are not nan."""
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
    return fold_numbers(builder, node, np.nansum, a, ast.Add(), 0)


@rule(np.nanprod)
def nanprod(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return fold_numbers(builder, node, np.nanprod, a, ast.Mult(), 1)


def extreme(builder: Any, node: ast.Call, function: Any, a: Any, pick: str) -> ir.Expr:
    """The smallest or largest of the elements that are not nan."""
    type_ = array_values.result_type(builder, node, function, array(builder, node, a))
    if isinstance(type_, types.Complex):
        problem = f"{ast.unparse(node.func)} of complex numbers has no derivative"
        builder.fail(node, problem, "use the real parts or magnitudes")
    a = array_values.computed(builder, a)
    array_values.require_elements(builder, a, "zero-size array to reduction operation not possible")
    first = array_values.element_at(a, (ZERO,) * a.type.ndim)
    return fold(builder, a, first, lambda x, y: builder.operation(node, pick, getattr(np, pick), x, y), "extreme")


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
    if a.size == 0:
        raise ValueError("attempt to get argmin of an empty sequence")
    best, place, some = np.inf, 0, False
    for k, v in enumerate(a.flat):
        if v < best:
            best, place = v, k
        some = some or not np.isnan(v)
    if not some:
        raise ValueError("All-NaN slice encountered")
    return place


@written(np.nanargmax)
def nanargmax(a):
    if a.size == 0:
        raise ValueError("attempt to get argmax of an empty sequence")
    best, place, some = -np.inf, 0, False
    for k, v in enumerate(a.flat):
        if v > best:
            best, place = v, k
        some = some or not np.isnan(v)
    if not some:
        raise ValueError("All-NaN slice encountered")
    return place


# --------------------------------------------------------------------------------------- orders


@written(np.unique)
def unique(ar):
    ordered = np.sort(ar.ravel())
    count = min(len(ordered), 1)
    for k in range(1, len(ordered)):
        if ordered[k] != ordered[k - 1]:
            count += 1
    result = np.empty(count, ordered.dtype)
    place = 0
    for k in range(len(ordered)):
        if k == 0 or ordered[k] != ordered[k - 1]:
            result[place] = ordered[k]
            place += 1
    return result


@written(np.median)
def median(a):
    ordered = np.sort(a.flatten())
    count = len(ordered)
    if count == 0:
        return np.nan
    if count % 2 == 0:
        return (ordered[count // 2 - 1] + ordered[count // 2]) / 2
    return ordered[count // 2]


@Written
def percentiles(a, q, largest, factor, skip):
    """Percentiles of an array for a vector of ``q`` up to ``largest``; with ``skip`` NaN is left out."""
    flat = a.flatten().astype(np.float64)
    there = flat[~np.isnan(flat)]
    result = np.full(len(q), np.nan)
    for k in range(len(q)):
        if not (0 <= q[k] <= largest):
            if largest == 1.0:
                raise ValueError("Quantiles must be in the range [0, 1]")
            raise ValueError("Percentiles must be in the range [0, 100]")
    if len(there) > 0 and (skip or len(there) == len(flat)):
        ordered = np.sort(there)
        for k in range(len(q)):
            result[k] = percentile_of(ordered, q[k] * factor)
    return result


@Written
def percentile_of(ordered, q):
    last = len(ordered) - 1
    if last == 0:
        return ordered[0] if np.isfinite(ordered[0]) else np.nan
    if q == 100:
        return ordered[last] if np.isfinite(ordered[last]) else np.nan
    if q == 0:
        return smallest(ordered)
    rank = 1 + last * (q / 100.0)
    place = math.floor(rank)
    part = rank - place
    low = int(place) - 1
    return ordered[low] * (1 - part) + ordered[low + 1] * part


@Written
def smallest(ordered):
    """The smallest number, or NaN for those combinations of infinities for which Numba returns NaN."""
    below, above = 0, 0
    for v in ordered:
        if v == -np.inf:
            below += 1
        elif v == np.inf:
            above += 1
    finite = len(ordered) - below - above
    unclear = finite == 0 or (above == 1 and len(ordered) == 2) or below > 1
    if below + above > 0 and (unclear or (finite == 1 and above > 1 and below != 1)):
        return np.nan
    return ordered[0]


def quantiles(*functions: Any, largest: float, factor: float, skip: bool) -> None:
    options = [Static(largest), Static(factor), Static(skip)]

    def rule_of_them(builder: Any, node: ast.Call, a: Any, q: Any) -> Any:
        if isinstance(array(builder, node, a).type.dtype, types.Complex):
            builder.fail(node, f"{ast.unparse(node.func)} of complex numbers", "use the real parts or magnitudes")
        single = not array_values.is_array(q) or q.type.ndim == 0
        if not array_values.is_array(q):
            q = sequences.array_of(builder, node, q, types.float64)
        q = array_shapes.ravel(builder, node, array_values.computed(builder, q))
        found = inlined(builder, node, percentiles.py_func, [a, q, *options], {})
        return array_values.element_at(found, (ZERO,)) if single else found

    rule(*functions, lists="a q")(rule_of_them)


quantiles(np.percentile, largest=100.0, factor=1.0, skip=False)
quantiles(np.nanpercentile, largest=100.0, factor=1.0, skip=True)
quantiles(np.quantile, largest=1.0, factor=100.0, skip=False)
quantiles(np.nanquantile, largest=1.0, factor=100.0, skip=True)


# --------------------------------------------------------------------------------------- orders


def partition_vector(builder: Any, node: ast.Call, a: Any, kth: Any) -> Any:
    """The elements in the order in which Numba's partition leaves them."""
    order = argpartition_vector(builder, node, a, kth)
    axes = array_values.axes_for(builder, 1)
    value = array_values.element_at(a, (array_values.element_at(order, axes),))
    return array_values.Lazy(a.type.copy(layout="C"), axes, array_values.shape_of(builder, a), value)


def argpartition_vector(builder: Any, node: ast.Call, a: Any, kth: Any) -> ir.Var:
    a = array_values.computed(builder, array_orders.vector(builder, node, a), "values")
    if not array_values.is_array(kth):
        kth = sequences.array_of(builder, node, kth if isinstance(kth, Group) else Group((kth,)), INT)
    return filled(builder, "argpartition", INT, array_values.shape_of(builder, a), a, kth)


def along_rows(function: Any, of_vector: Any) -> Callable[[Any], Any]:
    """Register a rule for vectors, and a kernel that calls it for all rows (the last axis) of other arrays."""

    def register(of_rows: Any) -> Any:
        @rule(function)
        def handler(builder: Any, node: ast.Call, a: Any, *kth: Any) -> Any:
            if array(builder, node, a).type.ndim == 1:
                return of_vector(builder, node, a, *kth)
            return inlined(builder, node, of_rows, [a, *kth], {})

        handler.__signature__ = with_first(of_rows)  # type: ignore[attr-defined]
        return handler

    return register


@along_rows(np.sort, array_orders.sorted_vector)
def sort(a):
    result = a.copy()
    for row in np.ndindex(a.shape[:-1]):
        result[row] = np.sort(a[row])
    return result


@along_rows(np.partition, partition_vector)
def partition(a, kth):
    result = a.copy()
    for row in np.ndindex(a.shape[:-1]):
        result[row] = np.partition(a[row], kth)
    return result


@along_rows(np.argpartition, argpartition_vector)
def argpartition(a, kth):
    result = np.empty(a.shape, np.intp)
    for row in np.ndindex(a.shape[:-1]):
        result[row] = np.argpartition(a[row], kth)
    return result


def sort_in_place(builder: Any, node: ast.Call, a: Any) -> Any:
    array_values.assign(builder, node, array_values.whole(builder, a), sort(builder, node, a))
    return Static(None)


METHODS["sort"] = sort_in_place

# --------------------------------------------------------------------------------------- statistics


@written(np.average)
def average(a, axis=None, weights=None):
    assert axis is None
    if weights is None:
        return np.mean(a)
    scale = np.sum(weights)
    if scale == 0.0:
        raise ZeroDivisionError("Weights sum to zero, can't be normalized.")
    return np.sum(np.multiply(a, weights)) / scale


@Written
def covariance(x, free):
    """The covariances of the rows of a matrix; ``free`` is NumPy's ``ddof``."""
    rows, count = x.shape
    centred = np.empty_like(x)
    for i in range(rows):
        middle = np.sum(x[i]) / count
        for k in range(count):
            centred[i, k] = x[i, k] - middle
    found = np.dot(centred, np.conj(centred.T))
    return found * np.divide(1.0, max(count - free, 0))


def of_rows(builder: Any, node: ast.Call, m: Any, y: Any, rowvar: Any) -> ir.Var:
    """The variables as rows of a matrix, in the type in which their covariances are computed."""
    turned = not getattr(rowvar, "value", True)
    if isinstance(rowvar, ir.Expr) and not isinstance(rowvar, ir.Const):
        builder.fail(node, "rowvar must be a constant", "write rowvar=True or rowvar=False")
    parts = []
    for given in (m, y):
        if is_none(given):
            continue
        if not array_values.is_array(given):
            given = sequences.array_of(builder, node, given)
        if given.type.ndim > 2:
            builder.fail(node, f"{ast.unparse(node.func)} of an array of {given.type.ndim} dimensions")
        matrix = array_creation.at_least(builder, node, (given,), 2)
        alone = given.type.ndim == 1 and not is_none(y)
        parts.append(array_shapes.transpose(builder, node, matrix) if turned and not alone else matrix)
    kinds = [p.type.dtype for p in parts]
    dtype = types.complex128 if any(isinstance(k, types.Complex) for k in kinds) else types.float64
    wide = []
    for p in parts:
        axes = array_values.axes_for(builder, 2)
        value = cast(array_values.element_at(p, axes), dtype)
        shape = array_values.shape_of(builder, p)
        wide.append(array_values.Lazy(types.Array(dtype, 2, "C"), axes, shape, value))
    joined = wide[0] if len(wide) == 1 else array_shapes.concatenate(builder, node, Group(tuple(wide)))
    return array_values.computed(builder, joined, "variables")


def is_single(m: Any, y: Any) -> bool:
    """Return whether there is only one variable, whose variance is a 0-d array."""
    return is_none(y) and (m.type.ndim == 1 if array_values.is_array(m) else not isinstance(m.items[0], Group))


@rule(np.cov, of_anything=True)
def cov(
    builder: Any, node: ast.Call, m: Any, y: Any = None, rowvar: Any = None, bias: Any = None, ddof: Any = None
) -> Any:
    if is_none(ddof):
        if isinstance(bias, ir.Expr) and not isinstance(bias, ir.Const):
            builder.fail(node, "bias must be a constant", "write ddof=0 or ddof=1")
        ddof = ir.Const(0 if getattr(bias, "value", False) else 1, types.int64)
    x = of_rows(builder, node, m, y, rowvar)
    found = inlined(builder, node, covariance.py_func, [x, ddof], {})
    if not is_single(m, y):
        return found
    return sequences.array_of(builder, node, array_values.element_at(found, (ZERO, ZERO)))


@Written
def within_one(c):
    return np.sign(c) if np.fabs(c) > 1 else c


@Written
def correlation(found, is_complex):
    count = len(found)
    result = np.empty_like(found)
    for i in range(count):
        for j in range(count):
            c = found[i, j] / np.sqrt(found[j, j].real) / np.sqrt(found[i, i].real)
            if is_complex:
                result[i, j] = complex(within_one(c.real), within_one(c.imag))
            else:
                result[i, j] = within_one(c)
    return result


@rule(np.corrcoef, of_anything=True)
def corrcoef(builder: Any, node: ast.Call, x: Any, y: Any = None, rowvar: Any = None) -> Any:
    found = cov(builder, node, x, y, rowvar)
    if is_single(x, y):
        divide = binary(builder, node, ast.Div())
        return array_values.operation(builder, node, np.divide, divide, found, found)
    return inlined(builder, node, correlation.py_func, [found, Static(isinstance(found.type.dtype, types.Complex))], {})


@rule(np.histogram, of_anything=True)
def histogram(builder: Any, node: ast.Call, a: Any, bins: Any = None, range: Any = None) -> Any:
    bins = ir.Const(10, types.int64) if bins is None else bins
    if isinstance(bins, Group):
        bins = sequences.array_of(builder, node, bins)
    if array_values.is_array(bins):
        return inlined(builder, node, histogram_between.py_func, [a, bins], {})
    if is_none(range):
        return inlined(builder, node, histogram_of_all.py_func, [a, bins], {})
    return inlined(builder, node, histogram_within.py_func, [a, bins, *getattr(range, "items", ())], {})


@Written
def histogram_of_all(a, bins):
    low, high = np.inf, -np.inf
    for v in a.flat:
        low, high = min(low, v), max(high, v)
    return histogram_within(a, bins, low, high)


@Written
def histogram_within(a, bins, low, high):
    if bins <= 0:
        raise ValueError("histogram(): `bins` should be a positive integer")
    if not low <= high:
        raise ValueError("histogram(): max must be larger than min in range parameter")
    counts = np.zeros(bins, np.intp)
    if high > low:
        ratio = bins / (high - low)
        for v in a.flat:
            place = math.floor((v - low) * ratio)
            if 0 <= place < bins:
                counts[int(place)] += 1
            elif v == high:
                counts[bins - 1] += 1
    return counts, np.linspace(low, high, bins + 1)


@Written
def histogram_between(a, bins):
    for k in range(len(bins) - 1):
        if not bins[k] <= bins[k + 1]:
            raise ValueError("histogram(): bins must increase monotonically")
    last = len(bins) - 1
    counts = np.zeros(last, np.intp)
    for v in a.flat:
        if bins[0] <= v <= bins[last]:
            low, high = 0, last - 1
            while low < high:
                middle = (low + high + 1) // 2
                if v < bins[middle]:
                    high = middle - 1
                else:
                    low = middle
            counts[low] += 1
    return counts, bins


@written(np.bincount)
def bincount(a, weights=None, minlength=0):
    if weights is not None and len(a) != len(weights):
        raise ValueError("bincount(): weights and list don't have the same length")
    if minlength < 0:
        raise ValueError("'minlength' must not be negative")
    largest = -1
    for k in a:
        if k < 0:
            raise ValueError("bincount(): first argument must be non-negative")
        largest = max(largest, k)
    if weights is None:
        counts = np.zeros(max(largest + 1, minlength), np.intp)
        for k in a:
            counts[k] += 1
        return counts
    sums = np.zeros(max(largest + 1, minlength))
    for i in range(len(a)):
        sums[a[i]] += weights[i]
    return sums


# --------------------------------------------------------------------------------------- linear systems


@written(np.linalg.lstsq)
def lstsq(a, b, rcond=-1.0):
    values = np.linalg.svd(a, False)[1]
    solution = np.dot(np.linalg.pinv(a), b)
    smallest = rcond if 0.0 <= rcond else np.finfo(values.dtype).eps
    rank = 0
    for k in range(len(values)):
        if values[k] > smallest * values[0]:
            rank += 1
    told = rank == a.shape[1] and a.shape[0] > a.shape[1]
    left = np.dot(a, solution)
    if b.ndim == 1:
        residuals = np.zeros(1 if told else 0, values.dtype)
        for k in range(len(residuals)):
            for i in range(len(left)):
                residuals[k] += (left[i] - b[i]) ** 2
    else:
        residuals = np.zeros(b.shape[1] if told else 0, values.dtype)
        for k in range(len(residuals)):
            for i in range(len(left)):
                residuals[k] += (left[i, k] - b[i, k]) ** 2
    return solution, residuals, rank, values


@written(np.linalg.matrix_power)
def matrix_power(a, n):
    result = np.eye(len(a), dtype=a.dtype)
    base = a if n >= 0 else np.linalg.inv(a)
    for _ in range(abs(n)):
        result = np.dot(result, base)
    return result
