"""Parts of arrays, whole-array expressions and NumPy's functions of arrays inside kernels.

Each kernel's generated loops are compared with Numba's results for the kernel; derivatives with differences and each
other.
"""

from collections import namedtuple

import numba
import numpy as np
import pytest
from kernel_cases import random_array
from kernel_checks import Check, copies, float_arguments, kernel_ir, load
from numbas import agree, anew, is_old, results_of

from ampi.kernel import pipeline
from ampi.kernel.options import Options

CASES = {}


def case(*shapes, **options):
    """Register a kernel; a tuple is the shape of a random array, anything else an argument itself."""

    def register(function):
        CASES[function.__name__] = function, shapes, options
        return function

    return register


def arguments_of(name, dtype=np.float64):
    rng = np.random.default_rng(3)
    _, shapes, _ = CASES[name]
    return [random_array(rng, dtype, s, 0.5, 1.5) if isinstance(s, tuple) else s for s in shapes]


REAL = {"real": True}
INDEX = np.array([0, 3, 0, 5])


# ------------------------------------------------------------------------------------------- slices


@case((8,), (8,), 0.3)
def heat(u, v, c):
    v[1:-1] = u[1:-1] + c * (u[2:] - 2 * u[1:-1] + u[:-2])
    v[0] = v[-1] = 0.0


@case((5, 6), (5, 6), 0.2)
def heat_in_two_dimensions(u, v, c):
    inner = u[1:-1, 1:-1]
    v[1:-1, 1:-1] = inner + c * (u[2:, 1:-1] + u[:-2, 1:-1] - 4.0 * inner + u[1:-1, 2:] + u[1:-1, :-2])
    v[0, :] = v[1, :]
    v[:, 0] = v[:, -2]


@case((9,), (4,))
def steps_of_all_signs(u, x):
    u[::2] *= u[1]
    u[::-3] = x[:3] * u[-1:-4:-1]
    u[-2:] += x[1:3]
    x[2:0:-1] = u[5:100:2][:2] * x[:2]
    u[5:2] = 7.0
    u[-100:2] -= x[-2:]


@case((7,), 0.1, 3)
def upwind(u, c, n):
    for t in range(n):
        left = u[:-1]
        u[1:] += c * (left - u[1:]) * u[1:]
        u[0] = u[-1]


@case((7,), numpy_differs=True)
def onto_itself(u):
    u[1:] = u[:-1]
    u[::-1] = u
    u[2:] = u[:-2] * u[2:]
    u[1:] += u[:-1]  # Numba adds in place, one element after the other
    u[:] = 2 * u


@case((4, 5), (4,), (4,))
def rows_and_columns(a, x, y):
    for i in range(a.shape[0]):
        row = a[i]
        row[1:] -= row[0] * a[i - 1, :-1]
        y[i] = row[-1] * x[i] + a[:, i][i]
    a[:, 0] = a[:, -2]
    a[..., 1] = x
    a[0] = x[:, None][1] * a[1]


@case((6,), (3,), 2)
def bounds_of_variables(u, x, n):
    for i in range(x.shape[0]):
        u[i : i + n] *= x[i]
        u[i - 2 : i] += x[: max(0, min(2, i))].sum()
    u[n:] = u[n - 1 : -1] * x[n - 3 :][0]


@case((6,), (6,))
def names_and_updates(x, y):
    w = x * y + np.sin(x)
    w += y
    for _ in range(2):
        w *= x
    w[::2] **= 2
    z = w[::-2]
    return z, -w


def smooth(u, out):
    out[1:-1] = 0.25 * (u[:-2] + 2 * u[1:-1] + u[2:])
    return out[0] * u[-1]


smooth = numba.njit(smooth)


@case((8,), (3, 8))
def parts_passed_on(u, a):
    s = smooth(u[::2], a[1, 1:5])
    s += smooth(a[0], a[2])
    return s * smooth(a[:, 2], a[:, 3])


Pair = namedtuple("Pair", "a b")


def paired(p):
    return np.sum(p.a * p.b)


paired = numba.njit(paired)


@case((6,), (6,))
def several_targets(x, y):
    x[1:] = x[:-1] = x[:-1] * 2 * y[1:]
    a = b = x + y
    a[0] *= 2.0
    x[0], x[1:] = x[1], 2 * x[:-1]
    pair = Pair(x * y, y + 1)
    return paired(pair) + paired(Pair(x * x, y * x)), b, pair.a


# ------------------------------------------------------------------------------------------- expressions


@case((3, 4), (4,), (3,), 0.7)
def broadcasting(a, x, y, c):
    b = a * x + y[:, None] * c - np.exp(x) / 2
    a[1:] = x
    a[:, 1:] *= y[:, np.newaxis]
    return b, x[None] * y[:, None], -a, +a


@case((6,), (6,), **REAL)
def choices(x, y):
    w = np.where(x > 1.0, x * x, y)
    low = (x > 0.8) & ~(y < 0.7)
    w[:] = np.where(low, w, np.minimum(w, y)) + np.where(x > y, 0.0, x[0])
    if np.any(low) and not np.all(low):
        w *= 2.0
    w[(x > 1.2) | (y < 0.6)] = x[0] * y[1]
    return w, np.clip(x, 0.8, 1.2), np.maximum(np.abs(x[1:]), 0.9), np.count_nonzero(low)


@case((3,))
def nested_lists(x):
    m = np.array([[x[0], 2.0, x[1]], [1, x[2] * x[2], x[0]]])
    s = m[0, 1] * m[1, 1] + np.array(((1, 2), (3, 4)), dtype=np.float64)[1, 0]
    for row in np.array([[x[0], x[1]], [x[1], x[2]]]):
        s += row[0] * row[1]
    return m[:, 1:] * x[:2], s


@case((6,), INDEX, (4,))
def fancy_indices(x, idx, v):
    y = x[idx] * v
    x[idx] += v  # of an element that is named twice the last value stays
    x[idx[::-1]] = x[1] * v
    x[idx] = x[idx[::-1]] * x[-idx - 1]
    return y


@case((4, 5), np.array([2, 0, 2]), (3,))
def fancy_indices_of_rows(a, idx, v):
    a[idx, 1] *= v
    a[1:, 2] = a[idx, 3]
    return a[idx].sum(axis=0), a[:, idx] * v


@case((6,), (6,), **REAL)
def masks(x, y):
    z = x[x > 0.8]
    w = np.zeros_like(x)
    w[y < 1.0] = x[y < 1.0] * y[y < 1.0]
    x[y > 0.8] *= 2.0
    return z, x[x > 0.9].sum(), w, y[(x > 0.7) & (y > 0.7)].mean()


@case((4, 6), (4,), (6,), **REAL)
def masks_of_rows(a, x, y):
    rows, columns = x > 0.8, y > 1.0
    a[rows] = a[rows] * 2.0 + x[rows][:, None]
    a[:, columns] += 1.0
    return a[rows, 1], a[1, columns].sum()


@case((6,), (6,), **REAL)
def places_that_are_true(x, y):
    i = np.flatnonzero(x > 0.8)
    (j,) = np.nonzero(y > 0.7)
    s = 0.0 * x[0]
    for k in i:
        s += x[k] * y[k]
    return s * x[i[0]], x[j] * y[j], x[np.where(y > 1.0)[0]].sum()


def any_steps(x, y, k, n):
    z = x[::k] * 2.0
    w = x[1::k]
    w[:] = w * y[0]
    for j in range(1, n):
        y[::j] *= x[j]
        x[j::-j] += y[0]
    u = y[n:0:-k] if k > 0 else y[0:n:-k]
    return z, u.sum(), np.arange(0, n, k)[-1:] * x[0]


for number in (1, 2, -1, -2):
    CASES[f"any_steps of {number}"] = any_steps, ((6,), (6,), number, 4), {}


# ------------------------------------------------------------------------------------------- parts by name


@case((6,), (6,), 3)
def parts_of_what_is_swapped(u, v, n):
    for _ in range(n):
        inner = u[1:-1]
        v[1:-1] = inner * u[2:] + 0.1
        u, v = v, u
        u[0] = inner[0] * 2.0
    return u, v[1] * u[2]


@case((3, 6), 3)
def swapped_parts(m, n):
    a = m[0, 1:]
    b = m[1, :-1]
    for _ in range(n):
        b[:] = a * b + a[0]
        a, b = b, a
    return a[1] * b


@case((6,), (6,), 1)
def one_part_or_another(x, y, k):
    if k > 2:
        z = x[1:4]
    else:
        z = y[::2]
    z[0] = z[1] * z[2]
    return z * x[0]


@numba.njit
def inside(u):
    return u[1:-1]


@numba.njit
def either_end(u, k):
    if k:
        return u[1:]
    return u[:-1]


@case((6,), (6,))
def parts_from_calls(x, y):
    z = inside(x)
    z[0] = y[1] * x[3]
    p = either_end(y, y.size > 7)
    p[1] *= x[1]
    return z * x[1], y


@case((3,), (3, 4))
def ellipses_for_no_axis(x, a):
    x[..., 1] = x[..., 0] * a[1, ..., 2]
    x[2, ...] += a[..., 1, 2] * a[0, 3, ...]
    a[0, ..., 1:3] *= x[..., 1]
    return x[..., 2] * 2.0, a


@case((6,), (6,))
def parts_as_results(x, y):
    x[2] *= y[0]
    return x[1:-1], y[::2], x.reshape(2, 3), x[1] * y[2]


# ------------------------------------------------------------------------------------------- functions of arrays


@case((6,), (3, 4))
def sums(x, a):
    s = np.sum(x * x) + x.sum() * a.mean() + a[:, 1].prod() + np.trace(a)
    return s + np.vdot(x, x[::-1]), a.sum(axis=0), np.sum(a * a, axis=1), np.cumsum(x * x), np.cumprod(x)


@case((6,), (3, 4), **REAL)
def extremes_and_deviations(x, a):
    s = (x[1:] - x[:-1]).max() * np.min(a) + np.std(x) + a.var() + np.linalg.norm(a[0])
    return s * x[x.argmax()] + np.argmin(x)


@case((3, 4), (4, 5), (4,))
def products(a, b, x):
    c = a @ b
    y = np.dot(a, x)
    z = x @ b
    return np.dot(c, c.T), y, z, np.dot(x, z[: x.size]), np.outer(x, y)


@case((3, 4), (6,))
def shapes(a, x):
    flat = a.ravel()
    flat[1::2] = 2 * flat[::2]
    pairs = x.reshape(2, -1)
    pairs[0] += pairs[1]
    turned = a.T[1:] * x[None, : a.shape[0]]
    back = a.reshape(a.size)[::-1].copy()
    return turned, back, np.concatenate((x, flat)), np.diff(a), np.roll(x, 1), a.T.copy().ravel(), np.flip(x).copy()


@case((3,), 4, **REAL)
def new_arrays(x, n):
    t = np.linspace(0.0, x[0], n)
    z = np.zeros((n, 2))
    z[:, 0] = t
    z[:, 1:] = (np.arange(n) * x[1])[:, None]
    e = np.eye(n)
    e *= x[2]
    f = np.empty_like(e)
    f.fill(x[2])
    z *= np.ones_like(z) * 2
    return z, e, f, np.arange(x[0], 3.0, 0.5).sum() * np.full(n, x[1])


@case((5,), complex_only=True)
def parts_of_complex_numbers(z):
    return np.sum(z.real * z.imag), np.conj(z) * z, np.abs(z)


@case((3,), (3,), (2, 3))
def joined_and_repeated(x, y, a):
    pairs = np.stack((x, y * y), axis=-1)
    rows = np.vstack((a, y[None, :] * x)) * np.vstack((x, y, x, y))[1:]
    wide = np.hstack((a, a * 2.0))
    columns = np.column_stack((x, a.T))
    return pairs, rows, wide, columns, np.hstack((x, y)), np.expand_dims(x * y, 1) * a[0], np.repeat(x, 2) * 2.0


@case((4,), (3, 4))
def diagonals(x, a):
    return np.diag(x) * x, np.diag(a) * x[1:], np.diag(a * 2.0)


@case((7,), (3,), **REAL)
def orders(x, y):
    first = np.sort(x)[:3] * np.arange(3)
    order = np.argsort(x * y[0], kind="mergesort")
    first[1] += x[order[2]] * np.median(x) + np.median(x[1:]) * np.ptp(y)
    place = np.searchsorted(np.sort(x), y, side="right")
    first += x[np.minimum(place, 6)]
    y.sort()
    return first, np.nansum(x * y[1])


@case((4,), (5,), (5,), **REAL)
def interpolated(x, xp, fp):
    points = np.cumsum(xp)
    return np.interp(4.0 * x - 1.0, points, fp), np.interp(x[0] + x[1], points, fp * fp)


@case((3,), (4, 3), (2, 2), (4,))
def other_products(x, a, m, c):
    turned = np.cross(x, a[0] * 2.0) + np.cross(a, x)[1] + np.cross(a, a[::-1])[2]
    smooth = np.convolve(c, x, mode="same") + np.convolve(c, x)[1:-1] + np.correlate(c, x[:1])
    return turned, np.kron(m, a), smooth, np.correlate(c, x), np.convolve(x, c, mode="valid"), np.kron(x, c)


@case((3, 3), (3,), **REAL)
def logarithm_of_a_determinant(a, x):
    for i in range(3):
        a[i, i] -= 4.0 * x[i]
    sign, size = np.linalg.slogdet(a)
    return sign * size, size * x


# ------------------------------------------------------------------------------------------- matrices


@case((3, 3), (3,), (3, 2))
def linear_systems(a, b, c):
    for i in range(3):
        a[i, i] += 3.0
    x = np.linalg.solve(a, b)
    y = np.linalg.solve(a, c)
    x[0] *= 2.0
    d = np.linalg.det(a)
    return x, y, d * d, np.linalg.inv(a)


@case((3, 3), (3,), 2)
def cholesky_factors(a, b, n):
    s = a @ np.conj(a.T) + np.eye(3)
    e = 0.0 * s[0, 0]
    for k in range(n):
        lower = np.linalg.cholesky(s)
        s[0] *= 1.1
        s[:, 0] *= 1.1
        e += lower[1, 0] * b[k] + lower[2, 2]
        s += np.outer(b, np.conj(b))
    return e, np.linalg.cholesky(s)


@case((5, 4), (5,), (3, 5), (4,))
def network(w1, b1, w2, x):
    hidden = np.tanh(w1 @ x + b1)
    return w2 @ hidden, np.sum(np.exp(hidden) * b1)


@case((3,), (2, 3), **REAL)
def small_matrices(angles, points):
    turn = np.zeros((3, 3), angles.dtype)
    turn[0, 0] = turn[1, 1] = np.cos(angles[0])
    turn[0, 1] = -np.sin(angles[0])
    turn[1, 0] = np.sin(angles[0])
    turn[2, 2] = angles[1]
    for i in range(points.shape[0]):
        points[i] = np.dot(turn, points[i].copy())


# ------------------------------------------------------------------------------------------- checks


def named(condition):
    return [n for n, (_, _, options) in CASES.items() if condition(options)]


@pytest.mark.parametrize("name", CASES)
def test_the_loops_compute_what_the_kernel_computes(name):
    agree(lambda numbas: require_values(numbas, name))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (k > 0)) for k, n in enumerate(CASES)])
def test_the_loops_compute_what_numba_computes_today(name):
    """For the first case; the others are marked slow."""
    require_values(anew, name)


@pytest.mark.parametrize("name", CASES)
def test_stored_values_are_those_of_the_present_kernel(name):
    assert not is_old(CASES[name][0]), "run scripts/test -n 1 --regenerate tests/kernel/test_arrays.py"


def require_values(numbas, name):
    function, _, options = CASES[name]
    arguments = arguments_of(name, np.complex128 if "complex_only" in options else np.float64)
    expected, found = copies(arguments), copies(arguments)
    results = numbas(function)(*expected)
    same = results_of(load(kernel_ir(function, arguments))(*found))
    for a, b in zip([*found, *same], [*expected, *results], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def half_slow(names, odd):
    """All of these cases, every second one marked slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] * (k % 2 == odd)) for k, n in enumerate(names)]


@pytest.mark.parametrize("name", named(lambda o: "complex_only" not in o))
def test_derivatives(name):
    function, _, options = CASES[name]
    arguments = arguments_of(name)
    check = Check(function, arguments, tuple(float_arguments(function, arguments)))
    check.compare(1e-12, against_differences="numpy_differs" not in options)


@pytest.mark.parametrize("name", half_slow(named(lambda o: "real" not in o), 0))
def test_derivatives_of_complex_numbers(name):
    function, _, options = CASES[name]
    arguments = arguments_of(name, np.complex128)
    active = tuple(n for n in float_arguments(function, arguments))
    Check(function, arguments, active).compare(1e-12, against_differences="numpy_differs" not in options)


@pytest.mark.parametrize("name", ["heat", "broadcasting", "sums", "fancy_indices", "products", "linear_systems"])
def test_single_precision(name):
    """Compare tangent and adjoint in the arguments' precision."""
    function, _, _ = CASES[name]
    arguments = arguments_of(name, np.float32)
    active = tuple(float_arguments(function, arguments))
    Check(function, arguments, active).compare(1e-5, against_differences=False)


@pytest.mark.parametrize("name", half_slow(named(lambda o: "complex_only" not in o), 1))
def test_each_argument_alone(name):
    function, _, _ = CASES[name]
    arguments = arguments_of(name)
    for active in float_arguments(function, arguments):
        Check(function, arguments, (active,)).compare(1e-12, against_differences=False)


@pytest.mark.parametrize("kind", ["adjoint", "tangent"])
@pytest.mark.parametrize("name", ["heat", "fancy_indices", "products", "linear_systems", "cholesky_factors"])
def test_second_derivatives(name, kind):
    function, _, _ = CASES[name]
    arguments = arguments_of(name)
    active = tuple(float_arguments(function, arguments))
    check = Check(function, arguments, active, Options(without=pipeline.LAST))
    if kind == "adjoint":
        array_seeds, result_seeds = check.seeds()
        more = [*array_seeds.values(), *result_seeds]
    else:
        direction = check.direction()
        shadows = [direction.get(n, np.zeros_like(check.value[n])) for n in check.tangent.shadows]
        more = [*shadows, *(direction[n] for n in check.tangent.scalars)]
    code = getattr(check, kind).function
    again = [a.copy() if isinstance(a, np.ndarray) else a for a in (*arguments, *more)]
    Check(load(code), again, active, code=code).compare(1e-11)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["heat", "heat_in_two_dimensions", "upwind", "onto_itself"])
def test_small_arrays(name, size):
    """Slices are cut off at the end of the array."""
    function, _, _ = CASES[name]
    if name in ("heat", "upwind") and size == 0:
        pytest.skip("its first element is used")
    if name == "heat_in_two_dimensions" and size < 2:
        pytest.skip("its second row is used")
    cut = [a[(slice(size),) * a.ndim].copy() if isinstance(a, np.ndarray) else a for a in arguments_of(name)]
    active = tuple(float_arguments(function, cut))
    check = Check(function, cut, active)
    check.compare(1e-12, against_differences=name != "onto_itself")

    def compare(numbas):
        expected, found = copies(cut), copies(cut)
        numbas(function)(*expected)
        load(kernel_ir(function, cut))(*found)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-14)

    agree(compare)
