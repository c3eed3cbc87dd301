"""Kernels that pass functions on, define them where they are called, or branch on types; part of `language_cases`."""

import operator

import numpy as np
from language_cases import case, x, y
from numba import literally
from numba.extending import register_jitable

# ------------------------------------------------------------------------------------------------ functions


@register_jitable
def folded(op, a, first):
    s = first
    for v in a:
        s = op(s, v)
    return s


@case(x, 0.3)
def functions_where_they_are_called(a, c):
    s = (lambda u, v: u * v + c)(a[0], a[1])
    for i in range(3):
        s = (lambda t: t * a[i] + i)(s)
    return s + folded(lambda u, v: u * v + u, a, 0.5)


@case(x, y)
def operators_as_functions(a, b):
    s = operator.add(a[0], operator.mul(a[1], b[2])) - operator.truediv(operator.neg(a[2]), b[0])
    t = folded(operator.mul, a, 1.0) * folded(operator.sub, b, 2.0)
    u = operator.pow(a, 2) * operator.getitem(b, 1)
    if operator.lt(a[0], b[0]) and operator.not_(operator.ge(s, 100.0)):
        t *= operator.matmul(a, b)
    v = a.copy()
    v = operator.iadd(v, b)
    return s, t, u, v, a[operator.floordiv(7, 3)] + operator.mod(7, 4)


@case(x, 2)
def literal_arguments(a, n):
    return a[literally(n)] ** 2 + a[0]


# ------------------------------------------------------------------------------------------------ types


@register_jitable
def by_its_type(value, a):
    if isinstance(value, int):
        return a[value] * 2.0
    if isinstance(value, (float, complex)):
        return a[0] * value
    if isinstance(value, tuple):
        return a[1] * value[0]
    return a[2]


@case(x, 1, 0.7)
def decided_by_types(a, n, c):
    return by_its_type(n, a) + by_its_type(c, a) ** 2 + by_its_type((c, n), a) * by_its_type(None, a)


@case(x)
def numbers_in_texts(a):
    low, high = float("inf"), -float("Infinity")
    for v in a:
        low, high = min(low, v * v), max(high, v)
    if np.isnan(float("nan")):
        low *= float("1.5e0")
    return low * high


# ------------------------------------------------------------------------------------------------ a number or None


@register_jitable
def bin_of(v, edges):
    if v == edges[-1]:
        return len(edges) - 2
    for k in range(len(edges) - 1):
        if edges[k] <= v < edges[k + 1]:
            return k
    return None


@register_jitable
def root_of(v):
    if v > 0.75:
        return np.sqrt(v)


@register_jitable
def root_or_more(v, limit):
    if v > limit:
        return 2
    return root_of(v)


@case(x, y)
def results_that_may_be_none(a, edges):
    sums = np.zeros(3)
    edges = np.sort(edges) * 1.05
    for v in a:
        k = bin_of(v, edges)
        if k is not None:
            sums[k] += v * v
        root = root_of(v)
        sums[2] += v if root is None else root * v
        if (more := root_or_more(v, 1.2)) is not None:
            sums[1] *= more
    return sums, root_of(a[1] * 1.0) + 1.0
