"""Kernels with matrix decompositions and searches; part of `function_cases`."""

import numpy as np
from function_cases import case, vector


@case(vector(3, 3), complex_too=False)
def eigenvectors(a):
    s = a + a.T
    s[0, 0] += 2.0
    s[1, 1] -= 3.0
    w, v = np.linalg.eigh(s)
    return w, v**2, np.linalg.eigvalsh(a)[0]


@case(vector(3, 3))
def eigenvalues(a):
    s = a @ np.conj(a.T)
    s[1, 1] += 3.0
    return np.linalg.eigvalsh(s)


@case(vector(4, 3), complex_too=False)
def singular_vectors(a):
    u, s, v = np.linalg.svd(a, False)
    turned, values, rest = np.linalg.svd(a.T.copy(), full_matrices=False)
    square = np.linalg.svd(a[:3].copy())
    return u**2, s, v**2, turned[0] * rest[0, 1], values[0], square[0] ** 2, square[1]


@case(vector(4, 3))
def pseudoinverses(a):
    a[0, 0] += 2.0
    a[1, 1] -= 2.0
    a[2, 2] += 3.0
    return np.linalg.pinv(a), np.linalg.pinv(a.T.copy())[1], np.linalg.matrix_power(a[:3], 3), a[0, 0]


@case(vector(5, 2), vector(5), vector(5, 3), complex_too=False, single_too=False)
def least_squares(a, b, c):
    a[0, 0] += 2.0
    a[1, 1] -= 2.0
    x, residual, rank, values = np.linalg.lstsq(a, b)
    y, residuals, _, _ = np.linalg.lstsq(a, c)
    short = np.linalg.lstsq(a.T.copy(), x)
    return x * rank, residual[0], values, y, residuals, short[0], len(short[1])


@case(vector(3, 2), vector(4), complex_too=False)
def searched(a, b):
    b[1] = b[3]
    bins = np.array([0.6, 0.9, 1.2])
    once = np.unique(b)
    s = once[0] * once[-1] * len(once)
    for k in np.digitize(b, bins) + np.digitize(b, bins[::-1], True):
        s += b[k % 4] ** 2
    return s * a[0, 0] if b[3] in b[:2] and 2.5 not in a else s + a[1, 0], np.unique(a)
