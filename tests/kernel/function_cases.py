"""Kernels of NumPy's and Python's functions as Numba has them, with example arguments.

What they compute is compared with what Numba compiles, and their derivatives with differences of that.
"""

import numba
import numpy as np
from kernel_cases import Case, random_array, scalar, vector
from numba import literal_unroll

CASES = {}
DOUBLE = set()  # kernels that Numba does not compile in single precision


def case(*arguments, complex_too=True, single_too=True):
    """Register a kernel with its example arguments: callables of a random generator, or plain values."""

    def register(function):
        if not single_too:
            DOUBLE.add(function.__name__)
        CASES[function.__name__] = Case(function, arguments, complex_too)
        return function

    return register


def make_arguments(name, dtype):
    rng = np.random.default_rng(2)
    return [a(rng, dtype) if callable(a) else a for a in CASES[name].arguments]


def gaps(*shape):
    """A random array in which some elements are not numbers."""

    def draw(rng, dtype):
        values = random_array(rng, dtype, shape, 0.5, 1.5)
        values.ravel()[1::3] = np.nan
        return values

    return draw


def no_numbers(*shape):
    return lambda rng, dtype: np.full(shape, np.nan, dtype)


# ------------------------------------------------------------------------------------------- arrays unpacked


@case(vector(3), vector(4, 2), 2)
def unpacked(u, p, i):
    x, y, z = u
    a, b = p[i]
    (c, d), e = p[0], p[1, 1] * x
    return x * y - z * a + b * c / d + e


@case(vector(3, 2), vector(2))
def unpacked_rows(m, v):
    first, second, third = m
    first[0] = second[1] * v[0]
    v[1], v[0] = v * third[0]
    x, y = first + second
    return x * y


@case(vector(6), 0.1, 3)
def unpacked_in_a_loop(u, h, n):
    for _ in range(n):
        x, y, z, vx, vy, vz = u
        r = (x * x + y * y + z * z) ** 1.5
        u[:] = u + h * np.array([vx, vy, vz, -x / r, -y / r, -z / r])
    return u[0] * u[5]


@case(vector(4, 2), 0.3)
def unpacked_by_a_loop(p, c):
    s = c * 0.0
    for k, (x, y) in enumerate(p):
        s += x * y * k
    for row in p:
        row[0], row[1] = row[1] * s, row[0]
    return s


# ------------------------------------------------------------------------------------------- without what is no number


@case(gaps(7))
def without_gaps(a):
    return np.nanmean(a), np.nansum(a), np.nanprod(a), np.nanvar(a), np.nanstd(a)


@case(vector(2, 3))
def nothing_is_missing(a):
    return np.nanmean(a), np.nansum(a), np.nanprod(a), np.nanvar(a), np.nanstd(a)


@case(gaps(3, 4), complex_too=False)
def extremes_without_gaps(a):
    return np.nanmin(a), np.nanmax(a), np.nanmedian(a)


@case(gaps(3, 4))
def running_without_gaps(a):
    return np.nancumsum(a), np.nancumprod(a), np.nancumsum(a[0])


@case(gaps(7), vector(7), 2)
def of_what_is_there(a, b, n):
    return np.nanmean(a - b) + np.nanvar(a, ddof=n), np.nanstd(a[1:] + b[1:], ddof=1) * np.nansum(b)


@case(no_numbers(4), vector(4))
def of_nothing(a, b):
    nothing = np.isnan(np.nanmean(a)) and np.isnan(np.nanvar(a)) and np.isnan(np.nanmean(b[:0]))
    return np.nansum(a) + b[0], np.nanprod(a) * b[1], np.nansum(b[:0]), nothing


@case(gaps(5), complex_too=False)
def filled_gaps(a):
    return np.nan_to_num(a), np.nan_to_num(a, nan=2.0) * a[0], np.nanargmax(a), np.nanargmin(a)


# ------------------------------------------------------------------------------------------- lists for arrays


@case(vector(3), vector(4, 3), scalar())
def lists_for_arrays(h, m, s):
    a = np.cross([0, 0, 1], h)
    b = np.cross(h, (s, 1.0, s * s)) + np.cross([s, s, 0.0], [0.5, s, 1.0])
    return a * b, np.cross(m, [0.0, 1.0, 2.0]), np.cross([s, 1.0], a)


@case(vector(3), scalar())
def as_arrays(a, s):
    b = np.asarray(a)
    b[0] *= s
    c = np.asarray([s, a[1], 1.0])
    d = np.asarray((1, 2, 3))
    e = np.asarray(s)
    f = np.asarray(a * s)
    return b * c * d * e + f, np.asarray(s * 2.0).item() * a[1], np.atleast_1d(a)


@case(vector(3), scalar())
def arrays_of_no_dimension(a, s):
    b = np.array(s)
    c = np.asarray(2.0)
    b[()] += a[0] * s
    return b[()] * c[()] * b.item(), np.atleast_1d(b) + a, np.asarray(2) * a


@case(vector(5), complex_too=False)
def pythons_functions_of_arrays(a):
    return sum(a) + max(a) * min(a), sum(a[1:] * a[:-1]), max(a * a), sum(a, 2.0), sum(a[:0])


# ------------------------------------------------------------------------------------------- triangles and keywords


@case(vector(4, 5), vector(3), 1)
def triangles(m, v, k):
    return np.triu(m), np.tril(m, k), np.triu(m, k=-1), np.tril(m, k - 3), np.triu(v), np.tril(v, 1)


@case(vector(2, 3, 3))
def triangles_of_stacks(m):
    return np.triu(m, 1), np.tril(m)


@case(vector(3, 4), 3, 2)
def units(m, n, k):
    return (
        np.eye(3, 4) * m,
        np.eye(n, M=k, k=-1)[:, 0] * m[:, 0],
        np.eye(N=n, k=1) * m[:, :3],
        np.eye(3, dtype=np.float32) * m[:, 1:],
        np.identity(n) * m[:, :3],
        np.tri(3, 4, k=1) * m,
    )


@case(vector(5), vector(5))
def results_into_arrays(a, b):
    np.multiply(a, a, a)
    np.sin(a * b, b)
    c = np.add(a[1:], b[:-1], np.empty_like(a[1:]))
    d = np.multiply(b, 2.0, b)
    d[0] = c[0]
    return c * 2.0, np.abs(c)


@case(vector(4, 3), 5)
def keywords(m, n):
    a = np.linspace(start=0.0, stop=1.0, num=n)
    b = np.full(shape=3, fill_value=2.0) + np.zeros(shape=3) + np.ones(shape=(3,), dtype=np.float64)
    c = np.concatenate((m[0], m[1]), axis=0)
    d = np.array([1.0, 2.0], dtype=np.float64)
    return m.sum(axis=0) * b, np.sum(a=m, axis=1), c * d[0] + a[1], np.expand_dims(m[0], axis=1), np.roll(m[0], shift=1)


@case(vector(5), complex_too=False)
def rounded(a):
    return np.round(a, decimals=1), np.round(a, 2), np.around(a[0], 1), round(a[1], 2), np.clip(a, a_min=0.7, a_max=1.2)


# ------------------------------------------------------------------------------------------- stencils


@numba.stencil
def laplacian(a):
    return a[1, 0] + a[-1, 0] + a[0, 1] + a[0, -1] - 4 * a[0, 0]


@numba.stencil(cval=0.5)
def upwind(u, c):
    if c.real > 0.5:
        return u[0] - c * (u[0] - u[-1])
    return u[0] - c * (u[1] - u[0])


@numba.stencil(neighborhood=((-2, 1),))
def smoothed(u, w):
    s = u[0] * 0.0
    for k in range(-2, 2):
        s += u[k] * w[k]
    return s / 4


@numba.stencil(standard_indexing=("w",))
def weighted(u, w):
    return w[0] * u[-1] + w[1] * u[2]


@case(vector(5, 4), vector(5, 4), single_too=False)
def stencils_of_matrices(a, b):
    c = a + 0.1 * laplacian(a)
    laplacian(c, out=b)
    return laplacian(b[1:] * 2.0)


@case(vector(7), 0.3, 3)
def stencils_in_time(u, c, n):
    for _ in range(n):
        u[:] = upwind(u, c * u[0])
    return u


@case(vector(8), vector(8), vector(8), single_too=False)
def stencils_with_neighborhoods(u, w, out):
    upwind(u, 0.2, out=out)
    return smoothed(u, w) + weighted(u, w)


# ------------------------------------------------------------------------------------------- vectorize, guvectorize


@numba.vectorize
def limited(x, y):
    s = x * y
    for _ in range(2):
        s = s * x + 1.0
    return s


@numba.vectorize(["float64(float64, float64)", "complex128(complex128, complex128)"])
def wide(x, y):
    return x * y - x


@numba.guvectorize(["void(f8[:], f8, f8[:])", "void(c16[:], c16, c16[:])"], "(n),()->(n)")
def running_sums(x, c, out):
    s = c
    for i in range(x.shape[0]):
        s += x[i] * x[i]
        out[i] = s


@numba.guvectorize(["void(f8[:,:], f8[:], f8[:])", "void(c16[:,:], c16[:], c16[:])"], "(m,n),(n)->()")
def form(a, x, out):
    out[0] = 0.0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[0] += a[i, j] * x[j]


@case(vector(3, 4), vector(4), scalar())
def elementwise_functions(a, x, s):
    b = limited(a, x) + limited(s, s)
    limited(a, 0.5, b[::-1])
    return limited(x, s), wide(x, s) + wide(s, 2.0), b, wide(x[1:] + s, x[:-1])


@case(vector(3, 4), vector(4), scalar(), single_too=False)
def generalized_functions(a, x, s):
    out, sums = a * 0.0, x[:3] * 0.0
    running_sums(a, s, out)
    running_sums(out, x[:3], a)
    form(out, x, sums[:1])
    form(out.reshape((3, 2, 2)), x[:2], sums)
    return sums, out


# ------------------------------------------------------------------------------------------- orders and statistics


@case(vector(7), vector(3, 2), 30.0, complex_too=False)
def percentiles(a, m, q):
    c = np.percentile(a, [10, 50.0, q])
    d = np.quantile(m, 0.35) + np.percentile(a, a[0]) + np.median(m) + np.median(a)
    return c, d, np.percentile(a[:1], 40), np.quantile(m, np.array([0.0, 1.0, 0.2]))


@case(gaps(7), complex_too=False)
def percentiles_without_gaps(a):
    return np.nanpercentile(a, 37.0), np.nanquantile(a, [0.2, 0.9]), np.isnan(np.percentile(a, 50))


@case(vector(3, 5), vector(2, 2, 3), complex_too=False)
def rows_in_order(a, b):
    b.sort()
    return np.sort(a), b[1, 1, 2] * b[0, 0, 0]


@case(vector(3, 5), complex_too=False, single_too=False)
def rows_in_parts(a):
    place = np.argpartition(a, (1, 3))[:, 3]
    return np.partition(a, 2)[:, 2], a[0, place[0]] + a[2, place[2]]


@case(vector(2, 3), vector(3))
def conjugates(a, b):
    return a.conj(), np.sum(a * a.T.conjugate().T), (b * 2.0).conj()


@case(vector(9), complex_too=False)
def partitions(a):
    return np.partition(a, 3), a[np.argpartition(a, 4)[:4]].sum(), np.partition(a, (2, 5))


@case(vector(3, 5), vector(5), vector(5))
def covariances(m, x, y):
    a = np.cov(m) + np.cov(m, ddof=0) + np.cov(m, bias=True)
    b = np.cov(x, y), np.cov(m, x), np.cov(m, rowvar=False)
    return a, b[0], b[1], b[2], np.cov(x)


@case(vector(3, 5), vector(5), vector(5))
def correlations(m, x, y):
    return np.corrcoef(m), np.corrcoef(x, y)[0, 1], np.corrcoef(m, rowvar=False)[0, 1], np.corrcoef(x)


@case(vector(12), 4, complex_too=False)
def histograms(a, n):
    counts, edges = np.histogram(a, n)
    others, _ = np.histogram(a, bins=n, range=(0.6, 1.3))
    third, limits = np.histogram(a, np.array([0.5, 0.8, 0.9, 1.5]))
    return edges * edges, counts, others, third, limits * a[0], np.average(a), np.average(a, weights=a[::-1])


@case(np.array([0, 2, 2, 1]), vector(4), complex_too=False)
def counted(k, w):
    return np.bincount(k), np.bincount(k, w), np.bincount(k, weights=w, minlength=5)


# ------------------------------------------------------------------------------------------- places and comparisons


@case(vector(3, 4), vector(4), 2)
def other_places(m, v, i):
    a = np.swapaxes(m, 0, 1) * v[:, None] + np.moveaxis(m, 1, 0)
    b = np.broadcast_to(v, (3, 4)) * m + np.fliplr(m) - np.flipud(m)
    c = np.take(m, 5) * v.take(np.array([1, 1, 3])) + np.take(m, np.array([0, 2, 11])) * m.take(-1)
    d = np.append(m, v), np.append(v, [1.0, 2.0]), np.append(v, v[0])
    return a, b, c, d[0], d[1], d[2], np.diagflat(v, -1), np.take(m, (0, 2), axis=1), m.take(i)


@case(vector(2, 3), vector(3))
def places_of_a_grid(m, v):
    s = 0.0 * v[0]
    for i, j in np.ndindex(m.shape):
        s += m[i, j] * v[j] * (i + 2 * j)
    for (i, j), x in np.ndenumerate(m):
        m[i, j] = x * s
        if i == 1:
            continue
        m[i + 1, j] += x
    for index in np.ndindex(2, 3):
        m[index] *= v[index[1]]
    for k, x in enumerate(m.flat):
        s += x * k
    for x in m.T.flat:
        if x.real > 1e3:
            break
        s = s * 0.5 + x
    m.flat[1] = m.flat[5] * s
    return s * m.flat[4]


@case(vector(2, 3), vector(2, 3), 2)
def shapes_compared(m, n, k):
    s = m[0, 0]
    if m.shape == n.shape:
        s = s * n[0, 0]
    if m.shape != (2, k) and (1, 2) == (1, k):
        s += 1.0
    a, b = (m[0], n[1, 0]) if k > 1 else (n[0], m[1, 0])
    c, (d, e) = (s, (b, 2.0)) if k > 3 else (np.sin(s), (s, b))
    return a * b, c * d + e


@case(vector(4), vector(4), complex_too=False, single_too=False)
def compared(a, b):
    s = 0.0
    if np.allclose(a, a + 1e-10) and not np.allclose(a, b) and np.array_equal(a, a):
        s = a[0] * b[0]
    if np.isclose(a[0], b[0]) or not np.isclose(a[1], a[1] + 1e-9):
        s = a[1]
    return s, np.where(np.isclose(a, b, rtol=0.3), a, b), np.isclose(a, np.nan), np.size(a), np.shape(b)[0]


@numba.njit
def total(*values):
    s = 1.0
    for v in values:
        s = s * v + 1.0
    return s


@case(vector(5), scalar())
def any_number_of_arguments(a, s):
    return total(s, s, s * s) + total(*(a[1], a[2]))


@case(vector(3), scalar())
def unrolled(a, s):
    r = s * 0.0
    for p in literal_unroll((2, 3.0, s)):
        r += p * a[0]
    return r


# ------------------------------------------------------------------------------------------- lists


@case(vector(5), vector(5), 3)
def comprehensions(a, b, n):
    c = [x * y for x, y in zip(a, b)]
    s = 0.0 * a[0]
    for i in range(len(c)):
        s += c[i] * i
    d = np.array([np.sin(x) * s for x in a])
    e = np.array([k * x for k, x in enumerate(b) if k != 1 and x.real > 0.7])
    for x in [a[k] * 2.0 for k in range(n)]:
        s = s * 0.5 + x
    return d, e, s, sum([x * s for x in d]), np.array([k * 1.5 for k in (1, 2, 3)]) * s


@case(vector(5), 0.3, 4, single_too=False)
def lists_that_grow(a, h, n):
    x = a[0]
    path = [x, 2.0 * x]
    other = []
    for i in range(n):
        if x.real > 0.2:
            x = x - h * x * path[-1]
            path.append(x)
        else:
            path.append(0.5 * x)
        for k in range(2):
            other.append(x * a[k] + len(path))
    short = []
    short.append(a[1] * x)
    short.append(x)
    return np.array(path), np.array(other), np.array(short), len(path), path[-1] * other[3]


@case(vector(4), 3)
def elements_of_lists_assigned(a, n):
    c = [a[0], 0.0 * a[0], 2.0 * a[1]]
    c[1] = c[0] * a[2]
    c[2] += c[1]
    d = [0.0 * a[0]] * n
    for i in range(n):
        d[i] = a[i] * c[i]
    e = [1.0 * a[3]] * 2
    e[0] = d[1]
    return np.array(d), c[0] + c[1] * c[2], np.array(e)


# ------------------------------------------------------------------------------------------- sets, pieces, grids


@case(vector(5), vector(4), complex_too=False)
def sets(a, b):
    b[1], b[3] = a[2], a[0]
    inside = np.isin(a, b)
    both = np.intersect1d(a, b), np.union1d(a, b), np.setdiff1d(a, b), np.setxor1d(a, b)
    return both, a[inside] * b[0], np.isin(a, b, invert=True)


@case(vector(6), vector(3, 4), 2, complex_too=False)
def pieces(a, m, k):
    b = np.delete(a, k), np.delete(m, np.array([0, 5, -1])), np.extract(a > 0.8, a * a), np.ediff1d(m)
    c = np.select([a > 1.0, a > 0.7], [a * a, a + a], a[0]), np.select([m > 1.0], [m])
    np.fill_diagonal(m, a[1] * a[2])
    d = np.trim_zeros(np.where(a > 0.9, a, 0.0)), np.rot90(m), np.rot90(m, 2), np.rot90(m, -1) * a[:3]
    return b, c, d, m


@case(vector(5), vector(3, 5))
def trapezoids(x, y):
    return np.trapezoid(x), np.trapezoid(y, x), np.trapezoid(y[1], dx=0.3), np.ediff1d(x, to_end=x[:2])


@case(scalar(), scalar(), vector(4), complex_too=False)
def grids(s, t, x):
    a = np.logspace(s, t, 5), np.geomspace(s, t + 1.0, num=4), np.vander(x), np.vander(x, 3, increasing=True)
    return a, np.unwrap(np.cumsum(9.0 * x)), np.sinc(x - x[1]), np.sinc(s), np.sinc(0.0) * t


@case(vector(4), complex_too=False)
def truth_values(x):
    y = x / np.where(x > 1.0, 0.0 * x, x)
    return np.isposinf(y), np.isneginf(-y), np.logical_xor(x > 0.8, x > 1.0), x * 2.0


@case(vector(4, 3), vector(5), complex_too=False)
def places_along_axes(m, v):
    a = np.argmax(m, axis=1), np.argmin(m, axis=0), m.argmax(0), np.argmax(v, axis=0), np.argmin(m, 1)
    return a, m[a[1][0], a[0][1]] * v[a[3]], np.count_nonzero(m > 1.0, axis=0)


@case(vector(5), vector(3, 3), vector(4, 3), complex_too=False)
def norms(v, m, r):
    m[0, 0] += 2.0
    m[1, 1] -= 2.0
    m[2, 2] += 4.0
    a = [np.linalg.norm(v, 1), np.linalg.norm(v, np.inf), np.linalg.norm(v, -np.inf), np.linalg.norm(v, 2)]
    b = [np.linalg.norm(v, 3), np.linalg.norm(m, 1), np.linalg.norm(m, -np.inf), np.linalg.norm(m, 2)]
    c = [np.linalg.norm(r, -2), np.linalg.norm(v, ord=0), np.linalg.cond(m), np.linalg.cond(m, 1)]
    rank = np.linalg.matrix_rank(m) + np.linalg.matrix_rank(np.outer(v, v))
    return np.array(a), np.array(b), np.array(c), rank * v[0]


@case(vector(4, 3), vector(3, 4), complex_too=False)
def orthogonal(a, b):
    q, r = np.linalg.qr(a)
    p, s = np.linalg.qr(b - 0.9)
    return q, r, p, s


@case(vector(4, 3), vector(3), vector(6), 1)
def further_parameters(m, v, a, k):
    b = np.trace(m, offset=1), np.trace(m, -k), np.diag(m, -1), np.diag(v, k), np.diff(a, n=2), np.diag(m, k=k)
    out, square = np.zeros_like(v), np.empty((3, 3), v.dtype)
    np.dot(v, np.outer(v, v), out)
    np.outer(v, out, out=square)
    return b, out, square


import decomposition_cases  # noqa: E402, F401 (enters its cases)
import grid_cases  # noqa: E402, F401 (enters its cases)
