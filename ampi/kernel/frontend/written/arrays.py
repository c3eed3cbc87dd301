"""More functions of NumPy that are written as kernels (see ``functions``): sets, parts of arrays, grids, norms, QR."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
from numba import types

from ampi.kernel.frontend.arrays import functions as array_functions
from ampi.kernel.frontend.arrays import places as array_places
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.elementwise import each
from ampi.kernel.frontend.arrays.functions import FUNCTIONS, array, is_none, rule
from ampi.kernel.frontend.base.values import Group
from ampi.kernel.frontend.written.functions import Written, inlined, written
from ampi.kernel.ir import Const
from ampi.kernel.ir.intrinsics import cast

# --------------------------------------------------------------------------------------- sets


@written(np.isin)
def isin(element, test_elements, assume_unique=False, invert=False):
    result = np.empty(element.size, np.bool_)
    for k, v in enumerate(element.flat):
        found = False
        for w in test_elements.flat:
            if v == w:
                found = True
        result[k] = found != invert
    return result.reshape(element.shape)


@written(np.union1d)
def union1d(ar1, ar2):
    return np.unique(np.concatenate((ar1.ravel(), ar2.ravel())))


@written(np.intersect1d)
def intersect1d(ar1, ar2, assume_unique=False):
    first, second = np.unique(ar1), np.unique(ar2)
    return first[np.isin(first, second)]


@written(np.setdiff1d)
def setdiff1d(ar1, ar2, assume_unique=False):
    if assume_unique:
        first = ar1.ravel()
    else:
        first = np.unique(ar1)
    return first[~np.isin(first, ar2)]


@written(np.setxor1d)
def setxor1d(ar1, ar2, assume_unique=False):
    both = np.concatenate((np.unique(ar1), np.unique(ar2)))
    both = np.sort(both)
    single = np.ones(len(both), np.bool_)
    for k in range(1, len(both)):
        if both[k] == both[k - 1]:
            single[k] = False
            single[k - 1] = False
    return both[single]


# --------------------------------------------------------------------------------------- parts of arrays


@written(np.ediff1d, lists="to_end to_begin")
def ediff1d(ary, to_end=None, to_begin=None):
    change = np.diff(ary.ravel())
    if to_begin is not None:
        change = np.append(to_begin, change)
    if to_end is not None:
        change = np.append(change, to_end)
    return change


@written(np.trapezoid, lists="y x")
def trapezoid(y, x=None, dx=1.0):
    middle = (y[..., 1:] + y[..., :-1]) / 2.0
    if x is None:
        return np.sum(middle * dx, -1)
    return np.sum(middle * np.diff(x), -1)


if (_older := getattr(np, "trapz", None)) is not None:
    FUNCTIONS[_older] = FUNCTIONS[np.trapezoid]


@rule(np.delete)
def delete(builder: Any, node: ast.Call, arr: Any, obj: Any) -> Any:
    if not array_values.is_array(obj) and not isinstance(getattr(obj, "type", None), types.Integer):
        builder.fail(node, "np.delete takes an integer or an array of integers here", "use an array of the indices")
    function = delete_several if array_values.is_array(obj) else delete_one
    return inlined(builder, node, function.py_func, [array(builder, node, arr), obj], {})


@Written
def delete_one(arr, obj):
    flat = arr.ravel()
    if obj < -len(flat) or obj >= len(flat):
        raise IndexError("obj must be less than the len(arr)")
    place = obj if obj >= 0 else obj + len(flat)
    result = np.empty(len(flat) - 1, flat.dtype)
    for k in range(len(result)):
        result[k] = flat[k + 1] if k >= place else flat[k]
    return result


@Written
def delete_several(arr, obj):
    flat = arr.ravel()
    keep = np.ones(len(flat), np.bool_)
    for k in obj:
        keep[k] = False
    return flat[keep]


@written(np.extract)
def extract(condition, arr):
    return arr.ravel()[condition.ravel()]


@rule(np.select)
def select(builder: Any, node: ast.Call, condlist: Any, choicelist: Any, default: Any = None) -> Any:
    """The first condition that holds decides."""
    lists = [v.items for v in (condlist, choicelist) if isinstance(v, Group)]
    if len(lists) != 2 or len(lists[0]) != len(lists[1]) or not lists[0]:
        builder.fail(node, "np.select takes two lists of equally many arrays", "use np.where")
    found = Const(0, array(builder, node, lists[1][0]).type.dtype) if default is None else default
    for condition, choice in reversed(list(zip(*lists))):
        found = array_functions.where(builder, node, condition, choice, found)
    return found


@written(np.fill_diagonal)
def fill_diagonal(a, val, wrap=False):
    if wrap and a.shape[0] > a.shape[1]:
        raise NotImplementedError("np.fill_diagonal with wrap=True in a kernel: use a loop")
    for k in range(min(a.shape[0], a.shape[1])):
        a[k, k] = val


@written(np.trim_zeros)
def trim_zeros(filt, trim="fb"):
    first, last = 0, len(filt)
    if trim != "b":
        while first < last and filt[first] == 0:
            first += 1
    if trim != "f":
        while last > first and filt[last - 1] == 0:
            last -= 1
    return filt[first:last].copy()


@rule(np.rot90)
def rot90(builder: Any, node: ast.Call, m: Any, k: Any = None) -> Any:
    if k is not None and not isinstance(k, Const):
        builder.fail(node, "np.rot90 with a k that is not constant", "write it with an if")
    turn = (quarter, half, three_quarters)[(1 if k is None else k.value) % 4 - 1] if k is None or k.value % 4 else same
    return inlined(builder, node, turn.py_func, [array(builder, node, m)], {})


@Written
def same(m):
    return m * 1


@Written
def quarter(m):
    return m.T[::-1] * 1


@Written
def half(m):
    return m[::-1, ::-1] * 1


@Written
def three_quarters(m):
    return m.T[:, ::-1] * 1


# --------------------------------------------------------------------------------------- grids and elements


@written(np.logspace, of_anything=True)
def logspace(start, stop, num=50):
    return np.power(10.0, np.linspace(start, stop, num))


@written(np.geomspace, of_anything=True)
def geomspace(start, stop, num=50):
    if start == 0 or stop == 0:
        raise ValueError("Geometric sequence cannot include zero")
    sign = -1.0 if start < 0 and stop < 0 else 1.0
    result = sign * np.power(10.0, np.linspace(np.log10(sign * start), np.log10(sign * stop), num))
    if num > 0:
        result[0] = start
    if num > 1:
        result[-1] = stop
    return result


@written(np.vander)
def vander(x, N=None, increasing=False):
    if N is None:
        count = len(x)
    else:
        count = N
    wide = x * 1.0  # single precision becomes double, as in NumPy
    result = np.ones((len(x), count), wide.dtype)
    for i in range(len(x)):
        for k in range(1, count):
            if increasing:
                result[i, k] = result[i, k - 1] * x[i]
            else:
                result[i, count - 1 - k] = result[i, count - k] * x[i]
    return result


@written(np.unwrap)
def unwrap(p, discont=None, axis=-1, period=6.283185307179586):
    result = p * 1.0
    turns = 0.0
    for k in range(1, len(p)):
        step = p[k] - p[k - 1]
        near = step - period * math.floor((step + period / 2) / period)
        if near == -period / 2 and step > 0:
            near = period / 2
        change = near - step
        if abs(step) < (period / 2 if discont is None else discont):
            change = 0.0
        turns += change
        result[k] = p[k] + turns
    return result


@rule(np.sinc, of_anything=True)
def sinc(builder: Any, node: ast.Call, x: Any) -> Any:
    """A kernel for numbers, and one that calls it for all elements of an array."""
    function = sincs if array_values.is_array(x) else sinc_of_one
    return inlined(builder, node, function.py_func, [x], {})


@Written
def sinc_of_one(x):
    if abs(x) < 0.1:  # a quotient of two small numbers has no accurate derivatives
        w = (math.pi * x) * (math.pi * x)
        return 1.0 - w / 6.0 * (
            1.0 - w / 20.0 * (1.0 - w / 42.0 * (1.0 - w / 72.0 * (1.0 - w / 110.0 * (1.0 - w / 156.0))))
        )
    return np.sin(math.pi * x) / (math.pi * x)


@Written
def sincs(x):
    result = np.sin(x)  # an array of the right dtype
    for index in np.ndindex(x.shape):
        result[index] = sinc_of_one(x[index])
    return result


def truth_of(make: Any) -> Any:
    """A rule for a truth value of each element."""

    def test(builder: Any, node: ast.Call, x: Any) -> Any:
        return each(builder, x, types.boolean, lambda v: make(builder, node, v))

    return test


for _function, _bound in ((np.isposinf, math.inf), (np.isneginf, -math.inf)):
    rule(_function, of_anything=True)(
        truth_of(lambda builder, node, v, bound=_bound: builder.compare(node, ast.Eq(), v, Const(bound, v.type)))
    )


@rule(np.logical_xor, of_anything=True)
def logical_xor(builder: Any, node: ast.Call, x1: Any, x2: Any) -> Any:
    def differ(a: Any, b: Any) -> Any:
        return builder.compare(node, ast.NotEq(), builder.truth(node, a), builder.truth(node, b))

    if not (array_values.is_array(x1) or array_values.is_array(x2)):
        return differ(x1, x2)
    return array_values.operation(builder, node, np.logical_xor, differ, x1, x2)


# --------------------------------------------------------------------------------------- along an axis


@rule(np.argmax, method="argmax")
def argmax(builder: Any, node: ast.Call, a: Any, axis: Any = None) -> Any:
    return place(builder, node, a, axis, places_of_largest, ast.Gt())


@rule(np.argmin, method="argmin")
def argmin(builder: Any, node: ast.Call, a: Any, axis: Any = None) -> Any:
    return place(builder, node, a, axis, places_of_smallest, ast.Lt())


def place(builder: Any, node: ast.Call, a: Any, axis: Any, function: Written, op: ast.cmpop) -> Any:
    from ampi.kernel.frontend.arrays.orders import place_of

    if is_none(axis) or array(builder, node, a).type.ndim == 1:
        return place_of(builder, node, a, op)
    along = array_functions.axis_of(builder, node, a, axis)
    last = array_places.moveaxis(builder, node, a, Const(along, types.int64), Const(-1, types.int64))
    return inlined(builder, node, function.py_func, [last], {})


@Written
def places_of_largest(a):
    result = np.zeros(a.shape[:-1], np.intp)
    for index in np.ndindex(a.shape[:-1]):
        result[index] = np.argmax(a[index])
    return result


@Written
def places_of_smallest(a):
    result = np.zeros(a.shape[:-1], np.intp)
    for index in np.ndindex(a.shape[:-1]):
        result[index] = np.argmin(a[index])
    return result


# --------------------------------------------------------------------------------------- matrices


@rule(np.linalg.norm)
def norm(builder: Any, node: ast.Call, x: Any, ord: Any = None) -> Any:
    if is_none(ord):
        return array_functions.norm(builder, node, x)
    function = vector_norm if array(builder, node, x).type.ndim == 1 else matrix_norm
    return inlined(builder, node, function.py_func, [x, ord], {})


@Written
def vector_norm(x, ord):
    if ord == 2:
        return np.linalg.norm(x)
    if len(x) == 0:
        return 0.0 * np.linalg.norm(x)
    if ord == np.inf:
        return np.max(np.abs(x))
    if ord == -np.inf:
        return np.min(np.abs(x))
    if ord == 0:
        return 0.0 * np.linalg.norm(x) + np.count_nonzero(x)
    if ord == 1:
        return np.sum(np.abs(x))
    total = 0.0
    for v in x:
        total += abs(v) ** ord
    return total ** (1.0 / ord)


@Written
def matrix_norm(x, ord):
    if abs(ord) == 2:
        values = np.linalg.svd(x, False)[1]
        return values[0] if ord == 2 else values[-1]
    if abs(ord) == 1:
        sums = np.sum(np.abs(x), axis=0)
    elif abs(ord) == np.inf:
        sums = np.sum(np.abs(x), axis=1)
    else:
        raise ValueError("Invalid norm order for matrices.")
    return np.max(sums) if ord > 0 else np.min(sums)


@written(np.linalg.cond)
def cond(x, p=None):
    if p is None:
        values = np.linalg.svd(x, False)[1]
        return values[0] / values[-1]
    elif abs(p) == 2:
        values = np.linalg.svd(x, False)[1]
        return values[0] / values[-1] if p > 0 else values[-1] / values[0]
    return np.linalg.norm(x, p) * np.linalg.norm(np.linalg.inv(x), p)


@written(np.linalg.matrix_rank)
def matrix_rank(A, tol=None):
    values = np.linalg.svd(A, False)[1]
    if tol is None:
        smallest = values[0] * max(A.shape[0], A.shape[1]) * np.finfo(values.dtype).eps
    else:
        smallest = tol
    rank = 0
    for v in values:
        if v > smallest:
            rank += 1
    return rank


@rule(np.linalg.qr)
def qr(builder: Any, node: ast.Call, a: Any) -> Any:
    if isinstance(array(builder, node, a).type.dtype, types.Complex):
        builder.fail(node, "np.linalg.qr of complex matrices", "orthogonalise with loops, or call ampi.numpy.linalg.qr")
    return inlined(builder, node, householder.py_func, [a], {})


@Written
def householder(a):
    """The QR decomposition by Householder reflections, with LAPACK's signs."""
    m, n = a.shape
    count = min(m, n)
    r = a.copy()
    q = np.zeros((m, count), r.dtype)
    v = np.zeros((count, m), r.dtype)
    for j in range(count):
        below = 0.0
        for i in range(j + 1, m):
            below += r[i, j] ** 2
        if below > 0.0:
            size = math.sqrt(r[j, j] ** 2 + below)
            diagonal = -size if r[j, j] >= 0.0 else size
            v[j, j] = r[j, j] - diagonal
            for i in range(j + 1, m):
                v[j, i] = r[i, j]
            scale = 2.0 / (v[j, j] ** 2 + below)
            for k in range(j, n):
                s = 0.0
                for i in range(j, m):
                    s += v[j, i] * r[i, k]
                for i in range(j, m):
                    r[i, k] -= scale * s * v[j, i]
            for i in range(m):
                v[j, i] *= math.sqrt(scale)
    for j in range(count):
        q[j, j] = 1.0
    for j in range(count - 1, -1, -1):
        for k in range(count):
            s = 0.0
            for i in range(j, m):
                s += v[j, i] * q[i, k]
            for i in range(j, m):
                q[i, k] -= s * v[j, i]
    for i in range(count):
        for k in range(i):
            r[i, k] = 0.0
    return q, r[:count].copy()


# --------------------------------------------------------------------------------------- further parameters


@rule(np.trace)
def trace(builder: Any, node: ast.Call, a: Any, offset: Any = None) -> Any:
    if offset is None:
        return array_functions.trace(builder, node, a)
    return inlined(builder, node, shifted_trace.py_func, [a, offset], {})


@Written
def shifted_trace(a, offset):
    return np.sum(np.diag(a, offset))


@rule(np.diag)
def diag(builder: Any, node: ast.Call, v: Any, k: Any = None) -> Any:
    from ampi.kernel.frontend.arrays import shapes as array_shapes

    if k is None or k == Const(0, types.int64):
        return array_shapes.diag(builder, node, v)
    function = shifted_diagonal if array(builder, node, v).type.ndim == 2 else matrix_of_diagonal
    return inlined(builder, node, function.py_func, [v, k], {})


@Written
def shifted_diagonal(v, k):
    rows, columns = max(-k, 0), max(k, 0)
    result = np.empty(max(min(v.shape[0] - rows, v.shape[1] - columns), 0), v.dtype)
    for i in range(len(result)):
        result[i] = v[i + rows, i + columns]
    return result


@Written
def matrix_of_diagonal(v, k):
    result = np.zeros((len(v) + abs(k), len(v) + abs(k)), v.dtype)
    for i in range(len(v)):
        result[i + max(-k, 0), i + max(k, 0)] = v[i]
    return result


@rule(np.diff)
def diff(builder: Any, node: ast.Call, a: Any, n: Any = None) -> Any:
    from ampi.kernel.frontend.arrays import shapes as array_shapes

    if n is not None and not isinstance(n, Const):
        builder.fail(node, "np.diff with an n that is not constant", "call it n times")
    for _ in range(1 if n is None else n.value):
        a = array_shapes.diff(builder, node, a)
    return a


@rule(np.count_nonzero)
def count_nonzero(builder: Any, node: ast.Call, a: Any, axis: Any = None) -> Any:
    if is_none(axis):
        return array_functions.count_nonzero(builder, node, a)
    count = lambda v: cast(builder.truth(node, v), types.int64)
    counts = each(builder, array(builder, node, a), types.int64, count)
    return array_functions.sum_(builder, node, counts, axis)


def with_result(function: Any) -> None:
    """Let the rule of a function also take an output array."""
    handler = FUNCTIONS[function]

    def into(builder: Any, node: ast.Call, *given: Any, out: Any = None, **keywords: Any) -> Any:
        count = {np.clip: 3}.get(function, 2)
        if len(given) > count:
            *given, out = given
        found = handler(builder, node, *given, **keywords)
        if out is None or is_none(out):
            return found
        array_values.assign(builder, node, array_values.whole(builder, out), found)
        return out

    rule(function)(into)


for _function in (np.clip, np.dot, np.outer):
    with_result(_function)
