"""Kernels that use the many forms of Python, with example arguments."""

import cmath
import math
from collections import namedtuple

import numba
import numpy as np
from numba.core import types
from numba.extending import overload, register_jitable

SCALE = 2.5
WEIGHTS = (1.0, 0.5, 0.25)
Pair = namedtuple("Pair", "left right")
x = np.array([0.7, 0.8, 1.3, 0.4])
y = np.array([1.1, 0.4, 0.3, 0.9])
CASES = {}


def case(*arguments):
    def register(function):
        CASES[function.__name__] = function, arguments
        return function

    return register


def outer(exponent, count):
    def closure_over_constants(a):
        s = 0.0
        for i in range(count):
            s += a[i] ** exponent * SCALE
        return s

    return closure_over_constants


case(x)(outer(1.5, 3))


# ------------------------------------------------------------------------------------------------ functions inside


@case(x, y)
def order_of_tuples(a, b):
    s = a[0] * b[0]
    for i in range(4):
        for j in range(4):
            if (i // 2, a[i]) < (j // 2, b[j]):
                s += a[i] * b[j]
            if (j, a[i], 1) >= (i, a[i]):
                s += 0.5 * b[j] * b[i]
            if (a[i], i) > (a[j], j) or (i, j) <= (1, 2):
                s *= 1.0 + 0.1 * a[j]
    return s


@case(x, y, 0.7)
def arrays_functions_of_numbers(a, b, c):
    kept = [True] * 3
    kept[1] = bool(a[0] > 1.0)
    s = np.sum(c) * np.mean(a[1]) + np.max(c * b[0]) - np.min(b[1]) + np.prod(a[2]) * np.sum(c != 0)
    for k in range(3):
        if kept[k] is False or not np.any(c):
            continue
        s += a[k] * b[k] if kept[k] is not True else a[k] * a[k]
    for row in list(np.outer(a, b)):
        s += row[0] * row[1]
    return s * list(a.reshape(2, 2))[1][0] * np.mean(3)


@case(x, y)
def truth_of_one_element(a, b):
    s = 0.0
    if a[1:2] > 0.5:
        s = b[0] * b[1]
    if not a[:1] - a[0]:
        s += a[0] * b[2]
    while b[2:3] * s < 2.0:
        s = s * 1.5 + a[3]
    return s * (b[1] if b[:1] else a[2])


@case(x, np.array([0.3, 1.2, 0.8]), 0.0)
def sizes_that_agree_where_it_is_run(a, b, limit):
    """Parts whose sizes differ are in branches that are not taken, or after an exit."""
    s = a[0] * b[0]
    if limit > 0.5:
        s += (a * b).sum()
        for k in range(2):
            s += ((a + b) * k).sum()
    for k in range(3):
        if a.shape[0] == b.shape[0]:
            s += (a - b)[k]
        s += a[k] * b[k]
    if a.shape[0] != b.shape[0]:
        return s * a[3]
    return s + np.dot(a, b) + (a * b).sum()


@case(x, y.reshape(-1, 1))
def stored_into_an_axis_of_size_one(a, b):
    c = np.zeros((a.shape[0], 1))
    c[:] = a.reshape(-1, 1) * 2.0 + b
    c[1:] += b[1:] * b[0]
    return c


@case(x, 0.3)
def functions_inside(a, c):
    def weighted(t, k=2):
        return c * t**k

    square = lambda t: t * t

    def both(t):
        return weighted(square(t)) + weighted(t, 3)

    c = c + 1.0
    return both(a[0]) + weighted(a[1], 1)


@case(x, y)
def function_inside_that_writes(a, b):
    def move(i, j):
        b[i] += a[j] * a[i]
        return b[i] * SCALE

    s = 0.0
    for i in range(len(a) - 1):
        s += move(i, i + 1)
    return s


@register_jitable
def rolled(a, function, window, *more):
    result = np.zeros(a.shape[0])
    for i in range(a.shape[0]):
        result[i] = function(i, a[max(0, i - window + 1) : i + 1], *more)
    return result


@case(x)
def functions_inside_are_passed(a):
    power = lambda i, part, factor: (part * part).sum() * factor / (i + 1)

    def ends(i, part):
        return part[0] * part[-1] + i

    return rolled(a, power, 2, 0.3).sum() * rolled(a, ends, 3), rolled(a, ends, 2)


@numba.njit
def spread_out(a, b, c):
    return a * b + c


@case(x)
def tuples_are_spread(a):
    pair = a[0], a[1]
    both = (*pair, a[2])
    return spread_out(*both) + spread_out(a[3], *pair) + sum(both) + max(*pair)


# ------------------------------------------------------------------------------------------------ loops


@case(np.outer(x, y), 3)
def indices_of_arrays(a, n):
    s = 0.0
    for i, j in np.ndindex(a.shape):
        if i == j:
            continue
        s += a[i, j] * a[j, i] * (i + 2 * j)
    for i, j in np.ndindex(n, 2):
        s += a[j, i] ** 2
    for ij in np.ndindex(2, 2):
        s += a[ij] ** 3 * (ij[1] + 1)
    for k in np.ndindex(n):
        s += a[k[0], 0]
    return s


@case(np.outer(x, y))
def indices_for_threads(a):
    s = 0.0
    for i, j in numba.pndindex(a.shape):
        s += a[i, j] * a[j, i] * (i + 2 * j)
    return s


@case(np.outer(x, y), np.array([0, 2, 3], np.uint64))
def loops_between_unsigned_bounds(a, bounds):
    s = np.zeros(4)
    for part in range(2):
        for i in range(bounds[part], bounds[part + 1]):
            w = a[i, 0]
            for j in range(1, 4):
                w = math.sin(w) * a[i, j]
                s[j] += w * w
    return s[1] + 2 * s[2] * s[3]


@case(x)
def enumerated(a):
    s = 0.0
    for i, v in enumerate(a):
        s += i * v * v
    for i, v in enumerate(a, 2):
        s += v / i
    for i, w in enumerate(WEIGHTS):
        s += w * a[i] ** i
    return s


@case(x, y)
def zipped(a, b):
    s = 0.0
    for u, v in zip(a, b):
        s += u * v * s + u
    for i, (u, v) in enumerate(zip(a, b)):
        s += i * u * v
    for u, k in zip(a, range(7, 0, -2)):
        s += u * k
    for (u, v), w in zip(zip(a, b), WEIGHTS):
        s *= u * v + w
    for w, v in zip(WEIGHTS, (a[0], a[1], b[1])):
        s += w * v
    return s


@case(np.outer(x, y), x)
def rows_and_their_elements(m, a):
    s = 0.0
    for row, v in zip(m, a):
        for w in row:
            s += w * v
        row[1] = v * s
    return s


@case(x, 3, -1)
def steps(a, n, down):
    s = 1.0
    for i in range(n, -1, down):
        s = s * a[i] + a[i]
    for i in range(0, n, 2):
        s *= a[i]
    for i in range(n, 0, -2):
        s += a[i] * s
    return s


@case(x)
def endless(a):
    s, n = a[0], 0
    while True:
        s *= a[1]
        n += 1
        if n > 50:
            return s * 2
        if s < 0.3:
            break
        if n < 2:
            continue
        s += a[2]
        if s > 100.0:
            break
    return s + n


@case(x, 1.0)
def found_or_not(a, limit):
    for i in range(len(a)):
        if a[i] > limit:
            s = a[i] * 3
            break
    else:
        s = a[0]
    for i in range(len(a)):
        if a[i] > 10 * limit:
            s += 1000.0
            break
    else:
        s *= a[1]
    n = 0
    while n < 3:
        n += 1
        s *= a[n]
    else:
        s += a[0]
    return s


# ------------------------------------------------------------------------------------------------ expressions


@case(x, np.array([1, 2, 3], np.int32))
def integers_and_booleans(a, index):
    n, mask, any_large = 0, np.int32(0), False
    for k in index:
        n += k
        mask ^= np.int32(k << 1)
        any_large = any_large or k > 2
    n //= 2
    n %= 5
    n |= 8
    n &= 11
    n <<= 1
    n >>= 2
    return a[n % 3] * mask * any_large, n, any_large


@case(x)
def augmented(a):
    s = a[0]
    s *= a[1]
    s /= a[2]
    s -= a[3]
    s **= 2
    t = np.empty(2)
    t[0] = s
    t[1] = a[1]
    t[0] *= a[1]
    t[0] /= a[2]
    t[1] **= 3
    t[0] -= t[1]
    t[0] %= 5.0
    return t[0] + t[1] // 1.0


@case(x)
def conditions(a):
    s = 0.0
    for v in a:
        if 0.5 < v <= 1.0 < 2 * v + 0.9:
            s += v**2
        s += v if v > 0.9 else (v * v if not v > 0.5 else 1.0)
    k = len(a)
    if k in (3, 4) and k not in (5, 6):
        s *= a[0]
    return s


@case(0.3 + 0.2j, 0.4)
def complex_functions(z, r):
    return (
        cmath.exp(z) * abs(z)
        + cmath.sqrt(z).real * r
        + z.conjugate() * z.imag
        + complex(r, r) ** 2
        + complex(r) / complex(z)
    )


@case(0.3 + 0.2j, 0.4)
def polar_coordinates(z, angle):
    r, phi = cmath.polar(z * z)
    w = cmath.rect(r * angle, angle + phi)
    quotient, rest = np.divmod(angle, 0.3)
    n = math.gcd(12, 18) * (1 if np.signbit(-angle) else 2)
    tiny = np.finfo(np.float64).eps + np.iinfo(np.int32).max * 0.0
    return w.real * np.angle(w) + cmath.phase(z) * rest + quotient * n * r + tiny


@case(x)
def refused_values(a):
    assert a[0] > 0, f"{a[0]} is not positive"
    assert len(a) > 2
    if a[1] < 0:
        raise ValueError("negative", a[1])
    print("never seen in a derivative")
    return math.sqrt(a[0]) * a[1]


@case(x)
def tuples_of_tuples(a):
    t = Pair((a[0], 2.0), a[1] * a[2])
    (u, two), v = t
    t = Pair((v, two), u)
    return t, (t.left[0] * two, 3)


# ------------------------------------------------------------------------------------------------ ways through


@numba.njit
def relative(a, start, floor):
    if start == 0.0 or not floor < start:
        return a - floor
    if start != start:
        return a * a
    return a / start


@case(x, y)
def early_returns_of_constants(a, b):
    s = 0.0
    c = relative(a, 0.0, -1.0) * relative(b, 2.0, 0.5)
    for k, v in enumerate(c):
        while 1.0 > 2.0:
            s += v
        s += v * relative(a, 0.1, 0.25)[k] if 3.0 >= 3.0 else v
    return s + relative(b, np.float32(0.1), 0.25)[0]


@case(x)
def narrow_constants(a):
    tenth = np.float32(0.1)
    z = np.complex64(0.1 + 0.3j)
    return a[0] * tenth + a[1] * (z * z).imag + np.float64(tenth)


@case(x, 1)
def loop_that_does_not_begin(a, n):
    s = 0.0
    for v in a:
        while n > 2:
            s += v
        while s < 0.0:
            s += v
            break
        s += v * v
    return s


@case(x, 4)
def loop_that_is_left_at_once(a, n):
    s = 0.0
    for v in a:
        while n > 2:
            s += v * s
            if s > 0.0 or n > 3:
                break
        s += v * v
    return s


@case(x)
def places_computed_behind_their_values(a):
    means, logs, weights = np.empty(len(a)), np.empty(len(a)), np.empty(len(a))
    for k in range(1, len(a) + 1):
        s = 0.0
        for m in range(k):
            s += a[m] * a[m]
        s /= k
        means[k - 1] = s
        weights[k - 1] = math.log(1.5 * k)
        logs[k - 1] = math.log(s) if s > 0 else 0.0
    total = 0.0
    for k in range(len(logs)):
        total += weights[k] * logs[k]
    return total


@case(x, 3)
def types_are_called(a, n):
    number, whole = type(a[0]), type(n)
    s = number(0)
    for i in range(n):
        s += number(0.5) * a[i] if a[i] > number(0) else a[i]
    return s * a[1] * whole(2.9) * types.float64(a[0]) + numba.int64(a[2])


# ---------------------------------------------------------------------------- plain functions that extensions know


@register_jitable
def scaled(a, factor=2.0):
    return a * factor


def combined(a, b, how="product"):
    """In Python; compiled as `_combined` says."""
    return a * b if how == "product" else a - b**2


@overload(combined)
def _combined(a, b, how="product"):
    if not isinstance(a, types.Array):
        return lambda a, b, how="product": scaled(a, b)
    dtype = a.dtype

    def of_arrays(a, b, how="product"):
        out = np.zeros(a.shape, dtype)
        for i in range(len(a)):
            out[i] = a[i] * b[i] if how == "product" else a[i] - b[i] ** 2
        return out

    return of_arrays


@case(x, y)
def parallel_loops_for_each_of_a_tuple(a, b):
    s = 0.0
    for weight in (0.5, 1.5):
        for i in numba.prange(a.shape[0]):
            t = a[i] * weight
            t = t * b[i] + a[i]
            s += t
            a[i] = np.sin(t)
    return s


@case(x, np.array([3, 5, 7, 2]))
def floats_in_integer_arrays(a, k):
    n = np.full_like(k, 2.7)
    n[1:] = a[1:] * 10.7
    n[0] = a[0] * 33.3
    n[a > 0.75] = 3.9
    k[:] = a[0] * 10.3
    k[1] += a[1] * 10.7
    t = np.arange(4, dtype=np.float64) * a
    return t * n, (np.arange(0.5, 4.0, 1.0, np.int64) + k) * a


RECORD = np.dtype([("k", "i8"), ("x", "f8"), ("p", [("a", "f8"), ("b", "f8", (2,))])])


@numba.njit
def records_with(a, n):
    made = np.zeros(n, RECORD)
    for i in range(n):
        made[i]["x"] = a[i] * a[i]
        made[i]["k"] = n - 1 - i
        made["p"]["b"][i, 1] = np.sin(a[i])
    return made


@case(x, y)
def records_that_are_made(a, b):
    made = records_with(a, 4)
    rest = made[1:]
    rest["x"][0] *= b[0]
    other = made.copy()
    other[0] = made[3]
    s = 0.0
    for i in range(4):
        other[i]["p"]["a"] = b[made["k"][i]] * other["x"][i]
        s += other[i]["p"]["a"] * made[i]["p"]["b"][1]
    a[0] = made["x"].sum() * s
    return s * b[1]


@case(x, y)
def extended(a, b):
    c = combined(a, b) + combined(a, b, how="difference")
    return combined(scaled(c[0], factor=3.0), c[1]) * np.sum(scaled(c))


@case(x, y)
def some_of_a_tuple(a, b):
    s = 0.0
    for v in (a[0], b[1], a[2] * b[0]):
        w = v * v
        if v > 1.0:
            s += 1.5 * v
            continue
        elif v < 0.6:
            s -= w
            continue
        else:
            s += 2 * w
        s = s * v
        if w > 0.7:
            continue
        s += w
    return s


@case(x, y)
def angles_strides_and_arrays_like_numbers(a, b):
    z, m = a + 1j * b, np.outer(a, b)
    steps = m.strides[0] + 2 * m.T.strides[1] - a.itemsize * len(m.strides)
    scale = np.ones_like(a[0]) * b[1]
    return np.sum(np.angle(z) * a) + np.angle(z[1], True) * scale + steps * m[1, 0]


import assignment_cases  # noqa: E402, F401 (enters its cases)
import call_cases  # noqa: E402, F401 (enters its cases)
import carried_cases  # noqa: E402, F401 (enters its cases)
import list_cases  # noqa: E402, F401 (enters its cases)
import recursion_cases  # noqa: E402, F401 (enters its cases)
import reference_cases  # noqa: E402, F401
