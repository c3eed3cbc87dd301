"""Kernels whose names refer to one array or another, and to those of earlier iterations; part of `language_cases`."""

import numba
import numpy as np
from language_cases import Pair, case, x, y

import ampi

# ------------------------------------------------------------------------------------------------ one array or another


@case(x, y, 3)
def swapped_buffers(u, v, n):
    for _ in range(n):
        for i in range(1, len(u) - 1):
            v[i] = u[i - 1] * u[i] + 0.5 * u[i + 1]
        u, v = v, u
    s = 0.0
    for i in range(len(u)):
        s += u[i] * v[i]
    return s


@case(x, 4)
def swapped_local_buffers(start, n):
    u = np.zeros_like(start)
    v = np.zeros_like(start)
    for i in range(len(start)):
        u[i] = start[i] * 2
    for _ in range(n):
        for i in range(len(u)):
            left = u[i - 1] if i else u[-1]
            v[i] = left * u[i]
        t = u
        u = v
        v = t
    return u


@case(x, y, 5)
def three_buffers(old, now, n):
    new = np.empty(len(old))
    for _ in range(n):
        for i in range(len(old)):
            new[i] = 1.5 * now[i] - 0.2 * old[i] * now[(i + 1) % len(now)]
        old, now, new = now, new, old
    return now[0] * old[1]


@case(np.outer(x, y), 3)
def swapped_rows(m, n):
    u = m[0]
    v = m[1]
    for _ in range(n):
        for i in range(len(u)):
            v[i] = u[i] * u[i] + v[i]
        u, v = v, u
    return u[1]


@case(x, y, True)
def one_or_the_other(a, b, first):
    if first:
        z = a
    else:
        z = b
    s = 0.0
    for i in range(len(z)):
        s += z[i] * a[i]
        z[i] *= 2.0
    return s


@case(x, y)
def until_small(u, v):
    n = 0
    while u[0] > 0.1 and n < 20:
        for i in range(len(u)):
            v[i] = 0.5 * u[i] * u[i]
        if n % 3 < 2:
            u, v = v, u
        n += 1
    return u[0] + v[1], n


@case(x, y, 2)
def returned_early(u, v, n):
    for k in range(5):
        for i in range(len(u)):
            v[i] = u[i] * y[i]
        if k == n:
            return v
        u, v = v, u
    return u


@ampi.kernel
def larger(a, b):
    if a[0] > b[0]:
        return a
    return b


@case(x, y)
def one_of_the_arguments(a, b):
    c = larger(a, b)
    s = 0.0
    for v in c:
        s += v * v
    return s * b[1]


# ------------------------------------------------------------------------------------------------ arrays of iterations


@ampi.kernel
def step(u, c):
    new = np.empty_like(u)
    for i in range(len(u)):
        new[i] = u[i] + c * u[i - 1] * u[i]
    return new


@case(x, 0.3, 3)
def stepped(u, c, n):
    for _ in range(n):
        u = step(u, c)
    return u


@case(x, y, 0.3, 3)
def leapfrog(old, u, c, n):
    for _ in range(n):
        old, u = u, 2 * u - 0.5 * old + c * np.sin(u)
    return old, u


@case(x, 0.3, 2)
def midpoint_rule(u, c, n):
    for _ in range(n):
        middle = u + 0.5 * c * np.sin(u)
        u = u + c * np.sin(middle) * u
    return u.sum()


@case(x, 0.3, 4)
def until_it_changes_little(u, c, n):
    k, change = 0, 1.0
    while change > 0.02 and k < n:
        before = u
        u = u - c * u * u
        change = np.max(np.abs(u - before))
        k += 1
    return u, k


@case(x, y, 0.3, 3)
def two_at_a_time(u, v, c, n):
    for k in range(n):
        if k != 1:
            u, v = step(v, c), step(u, c) * u
        else:
            v = u * 1.3
    return u * v


@case(x, 0.3)
def chosen_in_a_branch(u, c):
    if c > 0.2:
        w = u[u > 0.57] * c
    s = u[0] * c
    if c > 0.2:
        s += np.sum(w * w)
    return s


@case(x, 0.3, 3)
def nested_steps(u, c, n):
    s = 0.0
    for k in range(n):
        for _ in range(k):
            u = step(u, c)
        s += u[k]
    return s, u


@case(x, 0.3, 3)
def steps_and_changes(u, c, n):
    u = u.copy()
    for _ in range(n):
        u[0] = u[1] * c
        u = step(u, c)
        u[2] *= u[0]
    return u


@case(x, y, 0.3, 3)
def leapfrog_with_boundaries(old, u, c, n):
    u = u.copy()
    for _ in range(n):
        old, u = u, 2 * u - 0.5 * old + c * np.sin(u)
        u[0] = c * old[1]
        u[-1] *= u[1]
    u[1] *= 2.0
    return u[1] * old


@case(x, 3)
def array_after_its_loop(a, n):
    best, s = a, 0.0
    for k in range(n):
        w = np.zeros(len(a))
        w[0] = a[k] * a[k]
        w[1] = s
        s += w[0] * w[0]
        if a[k] > 0.75:
            best = w
    return w * s, best[0] * a[1]


@case(x, y, 4)
def array_of_an_earlier_iteration(a, b, n):
    s = 0.0
    for k in range(n):
        if k % 2 == 0:
            w = a * b[k % 3]
        for _ in range(2):
            v = w * a[0]
        s += (w * w[::-1]).sum() * v[k % 3]
        b[k % 3] *= 1.1
        w[0] += s
    return s


@case(x, y, 3)
def array_of_the_iteration_before(a, b, n):
    s = 0.0
    for k in range(n):
        if k > 0:
            s += (w * b).sum()  # noqa: F821 (the array of the previous iteration)
        w = a * (b + s)
        a[0] += w[1]
    return s


@case(np.outer(x, y), 3)
def part_after_its_loop(m, n):
    for k in range(n):
        w = m * (k + 1.0)
        row = w[1:, 0]
    return row * w[0, 0]


@case(x, 3)
def array_after_its_branch(a, k):
    if k > 2:
        b = a * 2.0
        c = b[1:] * a[0]
    else:
        b = np.sin(a)
        c = b[:2] * b[1]
    return b, c


@case(x, y, 3)
def new_arrays_on_every_way(a, b, k):
    for i in range(len(a)):
        if a[i] > 1.2:
            return Pair(a * b, b[1])
    if k > 5:
        return Pair(b[1:] * a[0], a[0])
    return Pair(b + 1.0, b[0])


@case(x, y, 3)
def arrays_by_condition(a, b, k):
    c = a if k > 2 else b * 2.0
    d = (a * b if k > 4 else b[1:] + a[0]).sum()
    return c * d


@case(x)
def array_of_a_known_branch(a):
    scale = 100.0
    if scale == 0.0:
        c = a - 1.0
    else:
        c = a * scale
    t = 0.0
    for i in range(c.shape[0]):
        if i > 0:
            t += c[i] * c[i]
        else:
            t = t * c[i]
    return t


# ------------------------------------------------------------------------------------- sizes that only a branch knows


@case(x, y)
def counted_in_a_branch(a, b):
    s = 0.0
    for k in range(3):
        if a[k] > 0.75:
            n, t = 0, 0.0
            for v in a:
                if v < a[k]:
                    n += 1
                    t += v
            w = np.zeros(n)
            m = 0
            for v in a:
                if v < a[k]:
                    w[m] = v * b[m]
                    m += 1
            w[0] *= t
        else:
            w = a * 2.0
            n = 1
        s = s * b[k] + (w * w).sum() * n
    return s


@numba.njit
def without_repetition(a):
    ordered = np.sort(a)
    return ordered[np.concatenate((np.ones(1, np.bool_), ordered[1:] != ordered[:-1]))]


@numba.njit
def joined(a, b):
    if a.shape[0] == 0:
        return b
    elif b.shape[0] == 0:
        return a
    else:
        return without_repetition(np.concatenate((a, b)))


@case(x, y + 0.05)
def joined_with_others(a, b):
    both, one, other = joined(a, b), joined(a, b[:0]), joined(b[2:2], b)
    s = 0.0
    for k in range(both.shape[0]):
        s += both[k] ** 2 * (k + 1)
    return s * one[1] + other[2] * both[-1], both


@case(x)
def several_sizes_in_one_branch(a):
    if a[0] > 10.0:
        first = a[:2] * 1.0
        second = a
    else:
        chosen = a[a > 0.5]
        first = np.empty(chosen.shape[0] + 1)
        first[0] = 1.0
        for k in range(chosen.shape[0]):
            first[k + 1] = first[k] * chosen[k]
        second = first[first > 0.6] * chosen[0]
    return first.sum() * second[-1] + len(second) * second[0]


@case(x[:4], np.outer(y[:4], y[:3]))
def columns_by_a_name_with_two_meanings(x, m):
    """One column in each case, and arrays that are columns in some."""
    first = np.expand_dims(x * 0.5, 1)
    out = np.empty((4, 3))
    total = 0.0
    for i in range(3):
        column = first if i == 0 else np.expand_dims(x * i, 1)
        if i == 2:
            c = column
        else:
            c = column * column
        out[:, i * c.shape[1] : (i + 1) * c.shape[1]] = c
        if i == 1:
            s = m
        else:
            s = c
        total += np.sum(s * s) * s.shape[1]
    return out, total
