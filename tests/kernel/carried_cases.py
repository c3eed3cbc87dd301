"""Kernels whose names refer to parts of arrays, in later iterations and after loops; part of `language_cases`."""

import numpy as np
from language_cases import case, x

M = np.array([[0.3, 1.2, 0.7], [0.5, 0.9, 1.4], [1.1, 0.2, 0.6]])


@case(M)
def rows_before(a):
    row = a[0]
    s = 0.0
    for i in range(1, a.shape[0]):
        s += (row * a[i]).sum()
        row = a[i]
    return s + row[0] ** 2


@case(x)
def pieces_before(a):
    p = a[:2]
    s = 0.0
    for i in range(1, 3):
        s += p[0] * p[1] * i
        p = a[i : i + 2]
    return s


@case(x)
def a_part_that_shrinks(a):
    p = a
    s = 0.0
    while len(p) > 1:
        s += p[0] * p[-1]
        p = p[1:]
    return s


@case(M, x)
def filtered_states(g, z):
    m = np.zeros((4, 3))
    p = np.ones(3)
    q = g.copy()
    C = np.zeros((4, 3, 3))
    for t in range(4):
        m[t] = g @ p * z[t]
        C[t] = q @ g * 0.1 + z[t]
        m[t] = m[t] + C[t] @ p
        p = m[t]
        q = C[t]
    return m.sum() + C[3, 0, 0]


@case(x)
def rows_from_the_first(z):
    m = np.zeros((4, 2))
    m[0, 0] = z[0]
    m[0, 1] = z[1]
    p = m[0]
    for t in range(1, 4):
        m[t, 0] = p[0] * z[t] + p[1]
        m[t, 1] = p[1] * z[t] * 0.5
        p = m[t]
    return p[0] * p[1]


@case(x)
def best_row(z):
    m = np.outer(z, z)
    best = m[0]
    for t in range(1, 4):
        if m[t, 0] < best[0]:
            best = m[t]
    return best[1] * best[2]


@case(x)
def best_row_chosen(z):
    m = np.outer(z, z)
    best = m[0]
    for t in range(1, 4):
        best = m[t] if m[t, 0] < best[0] else best
    return best[1] * best[2]


@case(x)
def row_chosen_in_a_branch_and_after_it(z):
    m = np.outer(z, z)
    order = np.array([2, 0, 1, 3])
    for t in range(3):
        for k in range(1, 4):
            if m[order[k], 0] < 0.3:
                p = m[order[t]]
            p = m[order[t]]
    return p[1] * p[2]


@case(x)
def number_read_in_a_branch_and_after_it(z):
    m = np.outer(z, z)
    s = 0.0
    for t in range(3):
        for k in range(1, 4):
            if m[k, 0] < 0.3:
                s = m[t, 1]
            s = m[t, 1]
    return s * s


@case(x)
def rows_of_two_arrays(z):
    m = np.outer(z, z)
    n = m * 2
    c = m[0]
    s = 0.0
    for t in range(1, 4):
        s += c[0] * c[1]
        c = m[t] if z[t] > 0.75 else n[t]
    return s + c[2]


@case(x)
def array_changed_under_its_part(z):
    m = np.outer(z, z)
    p = m[0]
    s = 0.0
    for t in range(1, 4):
        m[0, 0] = m[0, 0] * z[t]
        s += p[0]
        p = m[t]
    return s


@case(x)
def array_changed_through_its_part(z):
    m = np.outer(z, z)
    p = m[0]
    for t in range(1, 4):
        p[0] = p[1] * z[t]
        p = m[t]
    return m[0, 0] * m[1, 0] * m[2, 0]


@case(x)
def columns_before(z):
    m = np.outer(z, z)
    p = m[:, 0]
    s = 0.0
    for t in range(1, 4):
        s += (p * m[:, t]).sum()
        p = m[:, t]
    return s


@case(x)
def the_last_row_after_a_loop(z):
    m = np.outer(z, z)
    for t in range(4):
        p = m[t]
        m[t, 1] = z[t] * z[0]
    return p[0] * p[1]


@case(x)
def rows_written_ahead(z):
    m = np.zeros((5, 2))
    m[0, :] = z[:2]
    p = m[0]
    q = m[0]
    for t in range(4):
        m[t + 1, 0] = p[0] * z[t] + q[1]
        m[t + 1, 1] = p[1] + z[t]
        q = p
        p = m[t + 1]
    return p[0] * q[0]


@case(x)
def halves_exchanged(a):
    lo = a[:2]
    hi = a[2:]
    s = 0.0
    for k in range(3):
        s += lo[0] * hi[1] + k * lo[1]
        lo, hi = hi, lo
    return s


@case(x)
def rows_handed_on(z):
    m = np.outer(z, z)
    u = m[0]
    v = m[1]
    for k in range(2, 4):
        u = v
        v = m[k]
        v[0] = u[1] * z[k]
    return u[0] * v[0]


@case(x, M)
def parts_of_parts(z, m):
    rows = m[1:]
    p = rows[0, 1:]
    s = 0.0
    for i in range(1, 4):
        q = p[::-1]
        s += q[0] * p[0] * z[i]
        p = rows[i % 2][i % 2 :][:2]
        s += q[1] * p[-1]
        q[0] *= z[0]
    return s


@case(np.outer(x, x))
def every_other(m):
    p = m[0]
    s = 0.0
    i = 0
    while p.shape[0] > 1 and p[0] < 10.0:
        s += p[0] * p[-1]
        i += 1
        p = m[i, ::2] if i == 1 else p[1:]
    return s * p[0]


@case(x, np.outer(x, x))
def parts_in_two_loops(z, m):
    s = 0.0
    best = m[0]
    for k in range(2):
        for i in range(4):
            if m[i, k] * z[i] > best[k]:
                best = m[i]
        s += best[0] * best[k + 1]
        best = best[::-1]
    return s * best[3]
