"""Small kernels with example arguments; `kernel_checks` checks their derivatives."""

import math
from collections import namedtuple

import numpy as np
from numba import prange

import ampi

Case = namedtuple("Case", "function arguments complex_too", defaults=(True,))
CASES = {}
COSTS = (1.0, 0.0, 0.1, 0.1)  # for `ampi.kernel.runtime.threads.choose`: threads pay off for the shortest loop


def case(*arguments, complex_too=True):
    """Register a kernel with its example arguments: callables of a random generator, or plain values."""

    def register(function):
        CASES[function.__name__] = Case(function, arguments, complex_too)
        return function

    return register


@ampi.kernel
def eliminate(a, x):
    """Solve ``a x = b``, where x holds b on entry; ``a`` is overwritten."""
    n = len(x)
    for k in range(n):
        for i in range(k + 1, n):
            factor = a[i, k] / a[k, k]
            x[i] -= factor * x[k]
            for j in range(k, n):
                a[i, j] -= factor * a[k, j]
    for k in range(n - 1, -1, -1):
        for j in range(k + 1, n):
            x[k] -= a[k, j] * x[j]
        x[k] /= a[k, k]


def vector(*shape, low=0.5, high=1.5):
    return lambda rng, dtype: random_array(rng, dtype, shape, low, high)


def scalar(low=0.5, high=1.5):
    return lambda rng, dtype: random_array(rng, dtype, (), low, high)[()]


def integers(high, *shape):
    return lambda rng, dtype: rng.integers(0, high, shape)


def permutation(n):
    return lambda rng, dtype: rng.permutation(n)


def random_array(rng, dtype, shape, low, high):
    values = rng.uniform(low, high, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.uniform(-0.4, 0.4, shape)
    return np.asarray(values, dtype)


# ------------------------------------------------------------------------------------------- straight line and branches


@case(scalar(), scalar())
def product(x, y):
    return x * y + x / y - y


@case(scalar(), scalar())
def reassigned(x, y):
    x = x * y
    y = x + y
    x = x * x * y
    return x, y


@case(scalar(), complex_too=False)
def branches(x):
    y = x
    if x > 1.0:
        y = x * x
    elif x > 0.7:
        y = 3.0 * x
        z = y * x
        y = z * z
    else:
        y = -x
    return y * x


@case(scalar(), 3)
def powers(x, n):
    return x**2 + x**3 + x**-1 + x**0.5 + x**n + 2.0**x + x**1 + x**0


@case(scalar(), scalar(), complex_too=False)
def conditional_expression(x, y):
    t = math.sqrt(x - y) if x > y else math.sqrt(y - x) * 2.0
    return t * (x if y > 0.0 and x / y > 1.0 else y)


@case(scalar(), True, complex_too=False)
def early_return(x, flag):
    if flag:
        return x * x
    y = math.sin(x)
    return y


# ------------------------------------------------------------------------------------------- independent loops


@case(vector(7), vector(7), vector(7), scalar())
def axpy(x, y, out, a):
    for i in prange(x.shape[0]):
        out[i] = a * x[i] + y[i] * y[i]


@case(vector(7), vector(7), vector(7), scalar(), complex_too=False)
def guarded(x, y, out, c):
    for i in prange(x.shape[0]):
        t = x[i] * y[i]
        if t > 0.9:
            t = math.sqrt(t) * c
        out[i] = t + x[i] ** 2


@case(vector(6), vector(6))
def in_place(a, b):
    for i in range(a.shape[0]):
        a[i] = a[i] * b[i]
        a[i] = a[i] * a[i]
        b[i] *= a[i]


@case(vector(6), vector(6))
def overwritten_twice(a, b):
    for i in range(a.shape[0]):
        b[i] = a[i] * 3.0
        t = b[i] * a[i]
        b[i] = t * t


@case(vector(5), vector(9), integers(5, 9))
def gather(x, out, index):
    for i in prange(out.shape[0]):
        out[i] = x[index[i]] * x[index[i]] * out[i]


@case(vector(5), vector(9), integers(5, 9))
def scatter_add(total, x, index):
    for i in prange(x.shape[0]):
        total[index[i]] += x[i] * x[i]


@case(vector(5), vector(9), integers(5, 9))
def scatter(target, x, index):
    for i in range(x.shape[0]):
        target[index[i]] = x[i] * target[index[i]]


@case(vector(6), permutation(6), vector(6))
def permuted(x, order, y):
    for i in prange(x.shape[0]):
        j = order[i]
        x[j] = x[j] * y[i]


@case(vector(8), vector(8), scalar())
def stencil(u, new, c):
    for i in range(1, u.shape[0] - 1):
        new[i] = u[i] + c * (u[i + 1] - 2.0 * u[i] + u[i - 1]) * u[i]


@case(vector(9), vector(9), scalar())
def linear_stencil(u, new, c):
    for i in prange(2, u.shape[0] - 1):
        new[i] = u[i] + c * (u[i + 1] - 2.0 * u[i] + u[i - 2])


@case(vector(5, 6), vector(5, 6), vector(5, 6))
def linear_stencil_in_two_dimensions(u, new, k):
    for i in range(1, u.shape[0] - 1):
        for j in range(2, u.shape[1] - 1):
            new[i, j] = k[i, j] * (u[i - 1, j] + u[i + 1, j + 1] + 2.0 * u[i, j - 2]) + u[i, j]


@case(vector(2), vector(2), vector(3), vector(3))
def stencils_without_middle(u, new, v, other):
    for i in range(1, u.shape[0] - 1):  # no iteration
        new[i] = u[i - 1] + u[i + 1]
    for i in range(1, v.shape[0] - 1):  # one iteration
        other[i] = v[i - 1] + 3.0 * v[i + 1]


@case(vector(3, 8), vector(8), complex_too=False)
def periodic_stencil(u, new):
    for i in range(new.shape[0]):
        new[i] = 2.0 * u[1, i] - u[1, i - 1] + (0.5 * u[2, i] if u[1, i] > 1.0 else 0.0)


@case(vector(2, 4, 6), vector(4, 6), vector(6), 3)
def nonlinear_stencil_in_time(u, new, w, steps):
    for t in range(steps):
        for i in range(1, new.shape[0] - 1):
            for j in range(1, new.shape[1] - 1):
                new[i, j] = u[1, i, j] * (u[1, i - 1, j] + u[1, i + 1, j]) + u[1, i, j + 1] * w[j] * 0.1
        for j in range(1, w.shape[0] - 1):
            w[j] = w[j - 1] * w[j + 1] + 0.1 * w[j]  # already changed when it is read: no snapshot
        for i in range(1, new.shape[0] - 1):
            for j in range(1, new.shape[1] - 1):
                u[1, i, j] = new[i, j] * new[i, j]


@case(vector(7), vector(7), 3, 2)
def boundary_loads_in_time(u, new, steps, n):
    for t in range(steps):
        for i in range(n, 2):  # no iteration
            new[i] = u[i] * u[i + 5]
        for i in range(n):
            new[i] = u[i] * u[i + 4] - u[i + 1]
        for i in range(u.shape[0]):
            u[i] = u[i] * 0.5 + new[i] * new[i]


@case(vector(4, 5), vector(4, 5), vector(5))
def two_dimensions(a, out, w):
    for i in prange(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = a[i, j] * w[j] * a[i, j]


@case(vector(8), vector(4), complex_too=False)
def strides(x, out):
    for i in range(0, x.shape[0], 2):
        out[i // 2] = x[i] * x[i + 1]
    for i in range(x.shape[0] - 1, 0, -3):
        out[i // 2] += math.exp(x[i])


@case(vector(6), vector(3, 6))
def rows(x, a):
    for i in range(a.shape[0]):
        row = a[i]
        for j in range(1, x.shape[0]):
            row[j] = row[j] * x[j] + row[j - 1]


# ------------------------------------------------------------------------------------------- reductions and recurrences


@case(vector(6), vector(6))
def dot(x, y):
    s = 0.0 * x[0]
    for i in prange(x.shape[0]):
        s += x[i] * y[i]
    return s


@case(vector(6))
def norm_then_scale(x):
    s = 0.0 * x[0]
    for i in prange(x.shape[0]):
        s += x[i] * x[i]
    for i in prange(x.shape[0]):
        x[i] = x[i] / s
    return s


@case(vector(6), vector(6))
def cumulative_product(x, out):
    s = 1.0 + 0.0 * x[0]
    for i in range(x.shape[0]):
        s = s * x[i]
        out[i] = s
    return s


@case(vector(6))
def recurrence_in_memory(a):
    for i in range(1, a.shape[0]):
        a[i] = a[i] * a[i - 1]


@case(vector(6))
def recurrence_backwards(a):
    for i in range(a.shape[0] - 2, -1, -1):
        a[i] = a[i] * a[i + 1] + a[i]


@case(vector(6), complex_too=False)
def extrema(x):
    x[1] = 0.3 * x[1]
    x[2] = 2.5 * x[2]
    lowest = x[0]
    highest = x[0]
    for i in range(1, x.shape[0]):
        lowest = min(lowest, x[i])
        highest = max(x[i], highest)
    return lowest * highest


@case(scalar(), scalar(0.01, 0.02), 5)
def runge_kutta(y, h, n):
    for _ in range(n):
        k1 = -y * y
        t = y + 0.5 * h * k1
        k2 = -t * t
        t = y + 0.5 * h * k2
        k3 = -t * t
        t = y + h * k3
        k4 = -t * t
        y = y + h / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return y


@case(vector(3), scalar(), 4)
def swapped_scalars(x, y, n):
    a = x[0]
    b = x[1]
    for _ in range(n):
        a, b = b * y, a + b
    return a * b


@case(vector(7), vector(7), 3, scalar())
def heat(u, w, n, c):
    for _ in range(n):
        for i in range(1, u.shape[0] - 1):
            w[i] = u[i] + c * (u[i + 1] - 2.0 * u[i] + u[i - 1]) * u[i]
        for i in range(1, u.shape[0] - 1):
            u[i] = w[i]


@case(vector(5), vector(5), vector(5), vector(5))
def thomas(a, b, c, d):
    n = d.shape[0]
    for i in range(1, n):
        w = a[i] / b[i - 1]
        b[i] = b[i] - w * c[i - 1] * 0.1
        d[i] = d[i] - w * d[i - 1]
    d[n - 1] = d[n - 1] / b[n - 1]
    for i in range(n - 2, -1, -1):
        d[i] = (d[i] - c[i] * d[i + 1]) / b[i]


# ------------------------------------------------------------------------------------------- while, nests, local arrays


@case(scalar(1.2, 1.6), complex_too=False)
def newton(a):
    x = a
    while abs(x * x - a) > 1e-14:
        x = 0.5 * (x + a / x)
    return x


@case(vector(5), vector(5), complex_too=False)
def while_in_loop(x, out):
    for i in prange(x.shape[0]):
        y = x[i] * 8.0
        k = 0
        while y > 1.0:
            y = y * 0.5 * x[i]
            k += 1
            if k > 20:
                break
        out[i] = y * x[i]


@case(vector(4), vector(3), complex_too=False)
def nested_recurrences(x, y):
    s = 1.0
    for i in range(x.shape[0]):
        t = x[i]
        for j in range(y.shape[0]):
            t = t * y[j] + s
            if t > 3.0:
                t = math.sqrt(t)
        s = s * t
    return s


@case(vector(5), vector(5))
def local_array(x, out):
    for i in prange(x.shape[0]):
        t = np.empty(3, x.dtype)
        t[0] = x[i]
        for k in range(1, 3):
            t[k] = t[k - 1] * x[i]
        t[0] = t[0] * t[2]
        out[i] = t[0] + t[1] * t[2]


@case(vector(4, 4), vector(4))
def triangular_solve(a, b):
    n = b.shape[0]
    for i in range(n):
        for j in range(i):
            b[i] -= a[i, j] * b[j]
        b[i] = b[i] / a[i, i]


@case(scalar(), vector(3), 4)
def filled_array(x, y, n):
    t = np.full(n, x)
    for i in range(1, n):
        t[i] = t[i] * t[i - 1] * y[i - 1]
    return t


@case(vector(6), vector(6), vector(6))
def own_index(x, y, out):
    n = x.shape[0]
    p = np.empty(n, np.int64)
    for i in range(n):
        p[i] = (i * 5 + 1) % n
    for i in range(n):
        out[p[i]] = x[i] * y[p[i]]
        p[i] = (p[i] + 1) % n
    s = 0.0 * x[0]
    for i in range(n):
        s += out[p[i]] * x[i]
    return s


@case(lambda rng, dtype: rng.permutation(6).astype(dtype) + 0.5, complex_too=False)
def sorted_in_place(x):
    n = x.shape[0]
    for i in range(n):
        for j in range(n - 1 - i):
            if x[j] > x[j + 1]:
                t = x[j]
                x[j] = x[j + 1]
                x[j + 1] = t
    s = 0.0
    for i in range(n):
        s += x[i] * x[i] * i
    return s


@case(vector(6), vector(6), complex_too=False)
def place_of_the_smallest(x, y):
    best = x[0]
    k = 0
    for i in range(1, x.shape[0]):
        if x[i] < best:
            best = x[i]
            k = i
    return best * y[k]


@case(vector(5), vector(5))
def results_and_arrays(x, y):
    z = np.zeros((2, x.shape[0]), x.dtype)
    for i in range(x.shape[0]):
        z[0, i] = x[i] * y[i]
        x[i] = z[0, i] * z[0, i]
    return z, x, z[0, 0] * x[1], z


@case(vector(5), vector(2))
def element_read_while_added_to(x, h):
    for i in range(x.shape[0]):
        h[0] += x[i] * h[1]
        h[1] *= x[i]


@case(vector(4, 4), 4)
def deep_irregular_nest(a, n):
    for i in range(n):
        for j in range(i, n):
            for k in range(j):
                a[i, j] = 0.3 * a[i, j] * a[j, k] + 0.3 * a[k, i]


@case(vector(6), scalar(0.7, 0.8), scalar(1.2, 1.3), complex_too=False)
def clamped(x, low, high):
    s = 0.0
    for i in range(x.shape[0]):
        s += max(low, min(x[i], high)) ** 2
    return s


@case(vector(6), 4)
def work_array(x, n):
    t = np.zeros(x.shape[0], x.dtype)
    for i in range(x.shape[0]):
        t[i] = x[i] * x[i]
    s = 0.0 * x[0]
    for i in range(1, x.shape[0]):
        s += t[i] * t[i - 1]
    return s, t


@case(vector(4, 4), vector(4, 4), vector(4, 4))
def matrix_product(a, b, c):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            s = 0.0 * a[0, 0]
            for k in range(a.shape[1]):
                s += a[i, k] * b[k, j]
            c[i, j] = s * s


@case(vector(12), vector(5), vector(5), lambda rng, dtype: np.array([0, 3, 4, 4, 9, 12]), integers(5, 12))
def sparse_product(values, x, y, begin, column):
    for i in prange(y.shape[0]):
        s = 0.0 * x[0]
        for k in range(begin[i], begin[i + 1]):
            s += values[k] * x[column[k]]
        y[i] = s


@case(vector(5, 3), vector(5, 3), complex_too=False)
def n_body(x, f):
    for i in prange(x.shape[0]):
        for k in range(3):
            f[i, k] = 0.0
        for j in range(x.shape[0]):
            if i != j:
                r2 = 0.1
                for k in range(3):
                    d = x[i, k] - x[j, k]
                    r2 += d * d
                w = 1.0 / (r2 * math.sqrt(r2))
                for k in range(3):
                    f[i, k] += w * (x[j, k] - x[i, k])


@case(vector(6), scalar(), complex_too=False)
def loop_with_exit(x, limit):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i] * x[i]
        if s > 2.0 * limit:
            break
        s *= 1.1
    return s


@case(vector(6), complex_too=False)
def skipped_iterations(x):
    s = 1.0
    for i in range(x.shape[0]):
        if x[i] < 0.8:
            continue
        s = s * x[i]
    return s


@case(vector(6), vector(6), integers(3, 6), 4)
def last_value_before_an_exit(x, y, which, n):
    s = x[0]
    for i in range(x.shape[0]):
        if i > n:
            break
        if which[i] != 1:
            s = 0.0 * x[0]
            for j in range(y.shape[0]):
                s += y[j] * x[j]
    return s * y[0]


@case(scalar(), vector(6), complex_too=False)
def value_of_an_arm_before_a_loop(v, x):
    """The loop continues with the value of a branch, which the derivative of that branch needs again."""
    s = x[0] if x[0] > 2.0 else math.tanh(v * v)
    for i in range(x.shape[0]):
        s = s * math.sin(x[i])
    return s


@case(vector(6), 3)
def bits_and_integers(x, n):
    s = 0.0 * x[0]
    k = 1
    for i in range(x.shape[0]):
        k = (k * 7 + i) % 11
        if k & 1 and n > 2:
            s += x[k % x.shape[0]] * x[i] * k
    return s
