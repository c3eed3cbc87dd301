"""Kernels of NumPy's functions for indices, parts and elements along an axis; part of `function_cases`."""

import math

import numpy as np
from function_cases import case, vector

TABLE = np.array([3, 5, 0, 7], np.int64)


@case(vector(3, 4), vector(5), complex_too=False)
def places_of_elements(m, v):
    s = 0.0 * v[0]
    i, j = np.nonzero(m > 0.9)
    for k in range(len(i)):
        s += m[i[k], j[k]] * v[j[k]]
    for p in np.argwhere(m.T > 0.8):
        s += m[p[1], p[0]] ** 2
    a, b, c = (np.expand_dims(m, 0) > 0.7).nonzero()
    rows, columns = np.where(m * m < 1.0)
    flat = np.flatnonzero(m > 0.9)
    single = np.argwhere(v > 0.6)
    return s, (a + 2 * b + 3 * c) * s, m.ravel()[flat], rows, columns, single


@case(vector(4, 4), vector(2, 3), 1)
def triangles_of_indices(m, r, k):
    s = 0.0 * m[0, 0]
    i, j = np.triu_indices(4)
    for n in range(i.size):
        s += m[i[n], j[n]] * m[j[n], i[n]]
    i, j = np.tril_indices(4, -k)
    for n in range(i.size):
        s = s * m[i[n], j[n]] + m[j[n], 0]
    return s, np.triu_indices(3, k, 4), np.tril_indices_from(r), np.triu_indices_from(r, k=1), np.tril_indices(2, m=3)


@case(vector(2, 3), vector(3), 2)
def grids_of_indices(m, v, n):
    g = np.indices((n, 3))
    line = np.indices((3,))
    return (m * g[0] + m * m * g[1]).sum() * (v * line[0]).sum(), g, np.indices((1, n, 2))[2]


@case(vector(3), vector(3), vector(2, 3), vector(2, 3, 2))
def stacked_in_depth(u, v, m, t):
    d = np.dstack((u, v * u))
    e = np.dstack((m, m * m, m))
    d[0, 1, 1] *= e[1, 2, 0]
    return d, e, np.dstack((t, t[:, :, :1]))


@case(vector(7), vector(4, 2), vector(2, 2, 4), 3)
def parts_in_turn(v, m, t, k):
    s = 0.0 * v[0]
    for p in np.array_split(v, 3):
        s += (p * p).sum() * len(p)
    first, second, third = np.split(v, (2, k))
    above, below = np.vsplit(m, 2)
    left, right = np.hsplit(m, 2)
    near, far = np.dsplit(t, 2)
    above[0, 0] *= s
    head, tail = np.hsplit(v[:6], 2)
    a, b = np.array_split(m, 2, axis=0)
    tail[0] = head[1] * first[0]
    return s, second * third[:1], above * below, left + right, near * far, head * tail, a * b[:2]


@case(vector(3, 4), vector(4), complex_too=False)
def elements_along_axes(m, v):
    order = np.argsort(v).reshape(1, 4)
    places = np.array([[0, -1, 2, 1], [2, 2, 0, -3]])
    a = np.take_along_axis(m, order, 1), np.take_along_axis(m, places, axis=0), np.take_along_axis(v, order[0], 0)
    return a, np.take_along_axis(m, order[0] * 2, None)


@case(vector(5), complex_too=False)
def in_order(x):
    a = sorted(x)
    b = sorted([x[0] * x[1], x[2], x[3]], reverse=True)
    s = 0.0 * x[0]
    for k, v in enumerate(sorted(x * x, reverse=True)):
        s = s * v + k
    return a[0] * a[-1] ** 2, b[0] / b[1] - b[2], s, sum(sorted((x[4], x[1]))[:1])


@case(vector(3), 3, complex_too=False)
def parts_of_numbers(x, n):
    m, e = math.frexp(x[0])
    whole = np.ldexp(x, n)
    return m * m + e, math.ldexp(x[1], -n) * x[2], whole, np.nextafter(x, 2.0), np.nextafter(x[1], x[2])


@case(vector(4))
def bits_of_constants(x):
    bits, same = TABLE.view(np.uint32), x.view(x.dtype)
    same[0] = x[1] * bits[2]
    return x * bits[0], TABLE.view(np.int64)[1] * same[0]
